// Appends records to a file, as many as a test can look at, and counts those whose write has returned in another file, which is
// mapped: so the count is right at whatever instant the program is stopped.
//   ticks FILE COUNT
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **args) {
    if (count < 3) return 2;
    int fd = open(args[1], O_RDWR | O_CREAT | O_APPEND, 0600);
    int counter = open(args[2], O_RDWR);
    volatile long *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, counter, 0);
    if (fd < 0 || done == MAP_FAILED) return 1;
    for (long number = 0; number < 300000; number++) {
        static char record[512];
        int len = sprintf(record, "%08ld ", number), more = (int)(number * 2731 % 400);
        memset(record + len, 'a' + (int)(number % 26), (size_t)more);
        len += more;
        record[len++] = '\n';
        if (write(fd, record, (size_t)len) != len) return 1;
        *done = number + 1;
        // Most of its time a program does something else.
        for (volatile int i = 0; i < 5000; i++) {}
    }
    pause();
}
