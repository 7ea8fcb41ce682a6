# A C project built in parallel, rebuilt after a change, and run.
mkdir src; cd src
for i in $(seq 1 24); do
  cat >"f$i.c" <<C
#include "all.h"
static int table$i[64];
int f$i(int x) { for (int i = 0; i < 64; i++) table$i[i] = x * i + $i; return table$i[x & 63]; }
C
done
{ for i in $(seq 1 24); do echo "int f$i(int);"; done; } >all.h
{ echo '#include "all.h"'; echo '#include <stdio.h>'; echo 'int main(void) { int s = 0;'
  for i in $(seq 1 24); do echo "s += f$i($i);"; done; echo 'printf("%d\n", s); return 0; }'; } >main.c
cat >Makefile <<'M'
objects := $(patsubst %.c,%.o,$(filter-out main.c,$(wildcard *.c)))
program: main.o libf.a
	$(CC) -o $@ main.o libf.a
libf.a: $(objects)
	$(AR) rcD $@ $(sort $^)
%.o: %.c all.h
	$(CC) -O1 -g -c -o $@ $<
M
make -s -j4 CC=gcc && ./program
touch -d '+2 seconds' f3.c; sed -i 's/+ 3;/+ 4;/' f3.c
make -s -j4 CC=gcc && ./program
make -s -j4 CC=gcc -q && echo 'nothing left to do'
