/*
 * A library that damages what programs write: what LOSSY names, and nothing else. lab/self-test preloads
 * it to show that the lab's comparisons can fail. Only regular files are harmed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int fault(const char *name)
{
    const char *chosen = getenv("LOSSY");
    return chosen && strcmp(chosen, name) == 0;
}

static int regular(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

ssize_t write(int fd, const void *buf, size_t len)
{
    static ssize_t (*real)(int, const void *, size_t);
    static int calls;
    if (!real)
        real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (len == 0 || !regular(fd))
        return real(fd, buf, len);
    calls++;
    if (fault("flip") && len > 100) {
        char *copy = malloc(len);
        if (!copy)
            return -1;
        memcpy(copy, buf, len);
        copy[len / 2] ^= 1;
        ssize_t done = real(fd, copy, len);
        free(copy);
        return done;
    }
    if (fault("drop") && calls % 50 == 0)
        return (ssize_t)len;
    ssize_t done = real(fd, buf, len);
    if (fault("offset") && calls % 5 == 0)
        lseek(fd, -1, SEEK_CUR);
    return done;
}

static int reads;

/* One byte of every hundredth answer is wrong. */
static ssize_t misread(int fd, unsigned char *buf, ssize_t done)
{
    if (fault("read") && done > 0 && regular(fd) && ++reads % 100 == 0)
        buf[done / 2] ^= 1;
    return done;
}

ssize_t read(int fd, void *buf, size_t len)
{
    static ssize_t (*real)(int, void *, size_t);
    if (!real)
        real = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    return misread(fd, buf, real(fd, buf, len));
}

ssize_t pread(int fd, void *buf, size_t len, off_t at)
{
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real)
        real = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    return misread(fd, buf, real(fd, buf, len, at));
}

int fchmod(int fd, mode_t mode)
{
    static int (*real)(int, mode_t);
    if (!real)
        real = (int (*)(int, mode_t))dlsym(RTLD_NEXT, "fchmod");
    return real(fd, fault("mode") ? mode ^ 0040 : mode);
}

int chmod(const char *path, mode_t mode)
{
    static int (*real)(const char *, mode_t);
    if (!real)
        real = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "chmod");
    return real(path, fault("mode") ? mode ^ 0040 : mode);
}

int fchmodat(int dir, const char *path, mode_t mode, int flags)
{
    static int (*real)(int, const char *, mode_t, int);
    if (!real)
        real = (int (*)(int, const char *, mode_t, int))dlsym(RTLD_NEXT, "fchmodat");
    return real(dir, path, fault("mode") ? mode ^ 0040 : mode, flags);
}

int utimensat(int dir, const char *path, const struct timespec times[2], int flags)
{
    static int (*real)(int, const char *, const struct timespec[2], int);
    struct timespec wrong[2];
    if (!real)
        real = (int (*)(int, const char *, const struct timespec[2], int))dlsym(RTLD_NEXT, "utimensat");
    if (times && fault("time")) {
        memcpy(wrong, times, sizeof wrong);
        wrong[1].tv_nsec = (wrong[1].tv_nsec + 1) % 1000000000;
        return real(dir, path, wrong, flags);
    }
    return real(dir, path, times, flags);
}

__attribute__((destructor)) static void leave(void)
{
    if (fault("status"))
        _exit(3);
}
