#!/bin/bash
# what:   make -j4 of a C project of 60 files: build, run, touch one, build again
# needs:  make gcc ar
# debian: make gcc binutils libc6-dev
# limit:  90

mkdir src
for i in $(seq 1 60); do
    cat >"src/part$i.c" <<EOF
#include "parts.h"
#include <stdio.h>
#include <string.h>
static char text$i[64];
int part$i(int x)
{
    snprintf(text$i, sizeof text$i, "part %d of %d", $i, x);
    return (int)strlen(text$i) + x * $i;
}
EOF
done
{
    echo '#ifndef PARTS_H'
    echo '#define PARTS_H'
    for i in $(seq 1 60); do echo "int part$i(int x);"; done
    echo '#endif'
} >src/parts.h
{
    echo '#include "parts.h"'
    echo '#include <stdio.h>'
    echo 'int main(void) { long sum = 0;'
    for i in $(seq 1 60); do echo "sum += part$i((int)sum % 97);"; done
    echo 'printf("%ld\n", sum); return 0; }'
} >src/main.c
cat >Makefile <<'EOF'
PARTS := $(filter-out src/main.c,$(wildcard src/*.c))
program: main.o libparts.a
	gcc -o $@ $^
libparts.a: $(patsubst src/%.c,%.o,$(sort $(PARTS)))
	ar rcD $@ $^
%.o: src/%.c src/parts.h
	@echo $< >>compiled
	gcc -O0 -c -o $@ $<
EOF

make -s -j4
./program
sort compiled >first
rm compiled

# Nothing is out of date: make must agree, from the time stamps alone.
make -s -j4 && test ! -e compiled && echo "nothing to do"

# One source changes: exactly one object follows it.
touch -d '+1 hour' src/part7.c
make -s -j4 2>/dev/null
cat compiled
touch -d '2020-01-01' src/part7.c
