// Writes formatted text to a file by each function that takes a descriptor, with more arguments than there are registers.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int __dprintf_chk(int fd, int flag, const char *format, ...);
int __vdprintf_chk(int fd, int flag, const char *format, va_list all);

static const char *FORMAT = "%s %d %.1f %d %.1f %d %.1f %d %.1f %d %.1f %d %.1f %d %.1f %.1f %.1f %.1Lf %d\n";

static int listed(int fd, int fortified, ...) {
    va_list all;
    va_start(all, fortified);
    int written = fortified ? __vdprintf_chk(fd, 1, FORMAT, all) : vdprintf(fd, FORMAT, all);
    va_end(all);
    return written;
}

#define ALL(name) name, 1, .1, 2, .2, 3, .3, 4, .4, 5, .5, 6, .6, 7, .7, .8, .9, 1.5L, 8

int main(int count, char **args) {
    if (count < 2) return 2;
    int fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, "first\n", 6) != 6) return 1;
    int all = dprintf(fd, FORMAT, ALL("dprintf")) + __dprintf_chk(fd, 1, FORMAT, ALL("dprintf_chk")) +
        listed(fd, 0, ALL("vdprintf")) + listed(fd, 1, ALL("vdprintf_chk"));
    if (write(fd, "last\n", 5) != 5) return 1;
    printf("%d, at %ld\n", all, (long)lseek(fd, 0, SEEK_CUR));
    // Refused, as the kernel does.
    printf("%d %d\n", dprintf(-1, "%d", 1), dprintf(open(args[1], O_RDONLY), "%d", 1));
    return 0;
}
