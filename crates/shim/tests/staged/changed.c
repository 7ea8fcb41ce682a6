/* A new file that somebody else changes before the program writes to it: by calls that no library sees. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long outside(long number, long first, long second) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
    return result;
}

int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR | O_CREAT | O_EXCL | O_APPEND, 0600);
    /* The kernel's clock for files ticks slowly. */
    usleep(50000);
    if (!strcmp(argv[2], "cut"))
        outside(SYS_truncate, (long)argv[1], 10), outside(SYS_truncate, (long)argv[1], 0);
    if (!strcmp(argv[2], "renamed"))
        outside(SYS_rename, (long)argv[1], (long)argv[3]);
    return write(fd, "line\n", 5) == 5 && fsync(fd) == 0 ? 0 : 1;
}
