// Asks for calls by their numbers while a file is staged, and says what they answered; on standard error whether the
// file was staged.
//   numbers FILE
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "staged.h"

static const char *path;
static char other[4096];

static void staged_now(int fd, const char *when) {
    fprintf(stderr, "%s: %s\n", when, is_staged(fd) ? "staged" : "plain");
}

static void said(const char *what, long result) {
    printf("%s: %ld%s%s\n", what, result < 0 ? -1 : 0, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : "");
    fflush(stdout);
}

static int by_number(int dir, const char *name, const struct open_how *how, size_t len) {
    return (int)syscall(SYS_openat2, dir, name, how, len);
}

// The size as every call of the family gives it; of a path and of a descriptor.
static void sizes(int fd, const char *name, const char *when) {
    struct stat a, b, c, d;
    struct statx e, f;
    memset(&a, 0xff, sizeof a);
    b = c = d = a;
    memset(&e, 0xff, sizeof e);
    f = e;
    long failed = syscall(SYS_fstat, fd, &a) | syscall(SYS_stat, name, &b) | syscall(SYS_lstat, name, &c) |
        syscall(SYS_newfstatat, AT_FDCWD, name, &d, 0) |
        syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &e) |
        syscall(SYS_statx, AT_FDCWD, name, 0, STATX_SIZE, &f);
    printf("%s: %ld, sizes %ld %ld %ld %ld %lld %lld\n", when, failed, (long)a.st_size, (long)b.st_size, (long)c.st_size,
        (long)d.st_size, (long long)e.stx_size, (long long)f.stx_size);
    fflush(stdout);
}

static void whole(const char *name, const char *when) {
    char bytes[256];
    int fd = (int)syscall(SYS_open, name, O_RDONLY);
    ssize_t len = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    printf("%s: %zd bytes, %.*s\n", when, len, len > 0 ? (int)len : 0, bytes);
    fflush(stdout);
    close(fd);
}

int main(int count, char **args) {
    if (count < 2) return 2;
    path = args[1];
    snprintf(other, sizeof other, "%s-moved", path);
    syscall(SYS_unlink, path);
    syscall(SYS_unlink, other);

    // Each record goes where the last one ended.
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL, 0640);
    said("openat", fd);
    for (int i = 0; i < 5; i++) {
        struct statx now;
        char record[16];
        int len = sprintf(record, "rec%d\n", i);
        if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &now)) return 1;
        if (pwrite(fd, record, (size_t)len, (off_t)now.stx_size) != len) return 1;
    }
    staged_now(fd, "records");
    sizes(fd, path, "records");
    said("fstat of nothing", syscall(SYS_fstat, 999, NULL));
    said("stat of nothing", syscall(SYS_stat, "/nothing/here", NULL));
    said("fsync", syscall(SYS_fsync, fd));
    said("fdatasync of nothing", syscall(SYS_fdatasync, 999));
    if (write(fd, "X", 1) != 1) return 1;
    staged_now(fd, "synced");

    said("rename", syscall(SYS_rename, path, other));
    sizes(fd, other, "renamed");
    said("renameat2", syscall(SYS_renameat2, AT_FDCWD, other, AT_FDCWD, path, RENAME_NOREPLACE));
    said("rename of nothing", syscall(SYS_renameat, AT_FDCWD, other, AT_FDCWD, path));
    if (write(fd, "Y", 1) != 1) return 1;
    said("link", syscall(SYS_link, path, other));
    said("unlink", syscall(SYS_unlinkat, AT_FDCWD, other, 0));
    said("mkdir", syscall(SYS_mkdir, other, 0700));
    said("mkdir again", syscall(SYS_mkdirat, AT_FDCWD, other, 0700));
    said("rmdir", syscall(SYS_rmdir, other));
    said("symlink", syscall(SYS_symlink, path, other));
    whole(other, "linked");
    said("unlink", syscall(SYS_unlink, other));

    if (write(fd, "Z", 1) != 1) return 1;
    struct timespec times[2] = {{1000, 0}, {2000, 7}};
    struct stat then;
    said("utimensat", syscall(SYS_utimensat, fd, NULL, times, 0));
    said("fstat", syscall(SYS_fstat, fd, &then));
    printf("modified %ld.%ld, mode %o\n", (long)then.st_mtim.tv_sec, then.st_mtim.tv_nsec, then.st_mode);
    said("fchmod", syscall(SYS_fchmod, fd, 0600));
    said("truncate", syscall(SYS_truncate, path, 9));
    sizes(fd, path, "cut");
    whole(path, "cut");
    close(fd);

    struct open_how how = {.flags = O_WRONLY | O_APPEND};
    fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    said("openat2", fd);
    for (int i = 0; i < 3; i++)
        if (write(fd, "more\n", 5) != 5) return 1;
    staged_now(fd, "more");
    sizes(fd, path, "more");
    close(fd);
    // libc has it since 2.43, and the library has it whatever libc has.
    int (*by_name)(int, const char *, const struct open_how *, size_t) = dlsym(RTLD_DEFAULT, "openat2");
    if (!by_name) by_name = by_number;
    said("openat2 by name", fd = by_name(AT_FDCWD, path, &how, sizeof how));
    for (int i = 0; i < 3; i++)
        if (write(fd, "name\n", 5) != 5) return 1;
    staged_now(fd, "named");
    sizes(fd, path, "named");
    said("openat2 of no name", by_name(AT_FDCWD, NULL, &how, sizeof how));
    said("openat2 of nothing", syscall(SYS_openat2, AT_FDCWD, path, NULL, sizeof how));
    close(fd);
    whole(path, "more");

    fd = (int)syscall(SYS_creat, other, 0600);
    said("creat", fd);
    if (write(fd, "new\n", 4) != 4) return 1;
    staged_now(fd, "created");
    sizes(fd, other, "created");
    close(fd);
    whole(other, "created");
    return 0;
}
