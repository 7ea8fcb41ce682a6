// A program that finds libc's functions by a handle of libc, and mixes them with others on one file.
//   -DLIBRARY: a library between it and libc, whose function looks for libc's by a handle.
//   handles - FILE
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "staged.h"

static void *of_libc(const char *name) {
    static void *libc;
    if (!libc) libc = dlopen("libc.so.6", RTLD_NOW);
    return dlsym(libc, name);
}

#ifdef LIBRARY
ssize_t write(int fd, const void *from, size_t len) {
    static ssize_t (*next)(int, const void *, size_t);
    static int depth;
    if (++depth > 9) abort();
    if (!next) next = of_libc("write");
    ssize_t done = next(fd, from, len);
    depth--;
    return done;
}
#else

static void looks_up(const char *what, void *handle, const char *name) {
    dlerror();
    int found = dlsym(handle, name) != NULL;
    const char *error = dlerror();
    printf("%s of %s: %d %s\n", name, what, found, error ? "an error" : "no error");
}

static void says(const char *what, long long result) {
    printf("%s %lld %s\n", what, result, result < 0 ? strerror(errno) : "-");
}

int main(int count, char **args) {
    if (count < 3) return 2;
    char seen[64] = "";
    struct stat now;
    ssize_t (*puts_it)(int, const void *, size_t) = of_libc("write");
    ssize_t (*gets_it)(int, void *, size_t, off_t) = of_libc("pread");
    off_t (*moves)(int, off_t, int) = of_libc("lseek");
    int (*cuts)(int, off_t) = of_libc("ftruncate");
    int (*looks)(int, struct stat *) = of_libc("fstat");
    int (*syncs)(int) = of_libc("fsync");
    int (*opens)(const char *, int, ...) = of_libc("open");
    int (*copies)(int) = of_libc("dup");
    int (*closes)(int) = of_libc("close");
    if (!puts_it || !gets_it || !moves || !cuts || !syncs || !opens || !copies || !closes) return 3;

    int fd = open(args[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 8; i++) {
        says("by name", write(fd, "by name\n", 8));
        says("by handle", puts_it(fd, "by handle\n", 10));
    }
    if (is_staged(fd)) fprintf(stderr, "staged\n");
    says("pread", gets_it(fd, seen, 18, 18 * 3));
    printf("%s", seen);
    if (looks) says("fstat", looks(fd, &now)), says("size", now.st_size);
    says("lseek", moves(fd, -8, SEEK_END));
    says("by name", write(fd, "moved\n", 6));
    says("ftruncate", cuts(fd, 130));
    says("fsync", syncs(fd));
    int twin = copies(fd);
    says("dup", twin >= 0);
    says("close", closes(fd));
    says("twin", write(twin, "twin\n", 5));
    says("close", close(twin));
    says("close", closes(twin));
    fd = opens(args[2], O_WRONLY | O_APPEND);
    for (int i = 0; i < 4; i++) says("opened by handle", write(fd, "again\n", 6));
    says("close", close(fd));

    looks_up("libc", dlopen("libc.so.6", RTLD_NOW), "write");
    looks_up("libc", dlopen("libc.so.6", RTLD_NOW), "malloc");
    looks_up("libc", dlopen("libc.so.6", RTLD_NOW), "no_such_name");
    looks_up("libm", dlopen("libm.so.6", RTLD_NOW), "write");
    looks_up("libm", dlopen("libm.so.6", RTLD_NOW), "cos");
    looks_up("the program", dlopen(NULL, RTLD_NOW), "write");
    looks_up("all", RTLD_DEFAULT, "write");
    looks_up("what follows", RTLD_NEXT, "write");
    looks_up("all", RTLD_DEFAULT, "no_such_name");
    return 0;
}
#endif
