#!/bin/bash
# what:   Valgrind, gdb and strace watch programs that write; libfaketime, eatmydata, fakeroot and stdbuf preload more
# needs:  gcc valgrind gdb strace faketime eatmydata fakeroot stdbuf sqlite3
# debian: gcc libc6-dev libc6-dbg valgrind gdb strace faketime libeatmydata1 eatmydata fakeroot coreutils sqlite3
# limit:  90

cat >writes.c <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    FILE *stream = fopen(words[1], "w+");
    for (int i = 0; i < 5000; i++) fprintf(stream, "line %d\n", i);
    fflush(stream);
    int failed = fsync(fileno(stream));
    rewind(stream);
    char line[100];
    failed |= !fgets(line, sizeof line, stream) || strcmp(line, "line 0\n");
    failed |= fclose(stream);
    int fd = open(words[1], O_RDWR | O_APPEND);
    char *many = malloc(4000);
    memset(many, 'z', 4000);
    for (int i = 0; i < 20; i++) failed |= write(fd, many, 4000) != 4000;
    failed |= pread(fd, many, 4000, 100) != 4000 || ftruncate(fd, 60000) || close(fd);
    free(many);
    return failed ? 1 : 0;
}
C
gcc -g -o writes writes.c
./writes alone
valgrind -q --error-exitcode=9 ./writes valgrind
strace -f -o /dev/null ./writes strace
strace -c -o /dev/null ./writes counted
# Behind Adit's entry there is libc's of that name, where gdb stops as well.
gdb -q -batch -nx -ex 'set debuginfod enabled off' -ex 'break pread' -ex run -ex delete -ex continue --args ./writes gdb |
    grep -c 'exited normally'
for file in valgrind strace counted gdb; do cmp alone "$file"; done

seq 1 20000 >numbers
faketime -f '@2020-01-01 00:00:00' sh -c 'date +%Y; seq 1 3000 >then; cp then copy; echo more >>copy; wc -l copy'
eatmydata sh -c 'seq 1 3000 >eaten; dd if=eaten of=synced conv=fsync status=none; sync synced; sed -i s/1/2/ synced'
eatmydata sqlite3 db 'CREATE TABLE t(x); INSERT INTO t VALUES(1),(2); SELECT sum(x) FROM t; PRAGMA integrity_check;'
fakeroot sh -c 'cp numbers owned; chown 1000:1000 owned; chmod 4755 owned; stat -c "%u %g %a" owned
    mknod device b 1 2; stat -c %F device; dd if=then of=owned conv=notrunc status=none; wc -l owned'
stdbuf -o0 seq 1 1000 >unbuffered
stdbuf -i0 -o100 sed 's/1/x/' numbers >replaced
rm device
