// Asks by number for calls of six arguments: writes without flags and with one, and copies into two more files. Says what
// the last of them answers, whose flags mean nothing, and whether the first write and a later one were staged.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "staged.h"

enum { LINE = 5, FLAGS = 1 };

static int beside(const char *path, const char *what) {
    char name[4200];
    sprintf(name, "%s.%s", path, what);
    return open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
}

int main(int count, char **args) {
    if (count < 2) return 2;
    int fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
    int copy = beside(args[1], "copy"), spliced = beside(args[1], "spliced");
    struct iovec part = {"line\n", LINE};
    off_t from = 0;
    struct stat stat;
    if (write(fd, "text\n", LINE) != LINE || write(copy, "text\n", LINE) != LINE) return 1;
    if (syscall(SYS_pwritev2, fd, &part, 1, (long)LINE, 0L, 0) != LINE) return 1;
    int leased = is_staged(fd);

    if (syscall(SYS_pwritev2, fd, &part, 1, 0L, 0L, RWF_APPEND) != LINE) return 1;
    int behind = fstat(fd, &stat) == 0 && stat.st_size == 3 * LINE;

    if (syscall(SYS_copy_file_range, fd, &from, copy, NULL, (long)LINE, 0) != LINE) return 1;
    if (pipe(ends) || write(ends[1], "pipe\n", LINE) != LINE) return 1;
    if (syscall(SYS_splice, ends[0], NULL, spliced, NULL, (long)LINE, 0) != LINE) return 1;
    if (write(copy, "last\n", LINE) != LINE) return 1;
    leased &= is_staged(copy);

    errno = 0;
    long refused = syscall(SYS_copy_file_range, fd, &from, spliced, NULL, (long)LINE, FLAGS);
    printf("flags %s, leased %d, %s\n", refused < 0 ? strerrorname_np(errno) : "done", leased, behind ? "behind end" : "within");
    return 0;
}
