// Closes a file that it has written, does something that others could notice, and says what the kernel knows of the file.
//   closed FILE CASE
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 5000 };
static char path[4096], other[4096], bytes[SIZE];

// By an instruction of our own, as Adit corrects what stat() says.
static long ask(long number, const char *name, long third) {
    long result;
    register long call __asm__("rax") = number;
    register long a __asm__("rdi") = AT_FDCWD, b __asm__("rsi") = (long)name, c __asm__("rdx") = third;
    register long d __asm__("r10") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "r"(call), "r"(a), "r"(b), "r"(c), "r"(d) : "rcx", "r11", "memory");
    return result;
}

static void see(const char *name, const char *whose) {
    struct stat stat;
    char line[128];
    long result = ask(SYS_newfstatat, name, (long)&stat);
    long old = stat.st_mtime < 2000000 ? stat.st_mtime + stat.st_mtim.tv_nsec : -1;
    int len = result ? sprintf(line, "error %ld\n", -result)
                     : sprintf(line, "%ld bytes, mode %o, time %ld%s\n", (long)stat.st_size, stat.st_mode & 07777, old, whose);
    write(1, line, len);
}

// Also whether somebody else has it still: who opens it would have to wait.
static void look(const char *name) {
    long fd = ask(SYS_openat, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    see(name, fd == -EAGAIN ? ", somebody's" : "");
}

static int made(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, SIZE) != SIZE) exit(3);
    return fd;
}

static int visit(const char *name, const struct stat *stat, int kind, struct FTW *where) { return 0; }

static void after(const char *what) {
    static const struct timespec times[2] = {{1000000, 5}, {1000000, 5}};
    int status;
    if (!strcmp(what, "stat")) see(path, "");
    if (!strcmp(what, "rename")) rename(path, other), look(other);
    if (!strcmp(what, "link")) link(path, other), look(other);
    if (!strcmp(what, "times")) utimensat(AT_FDCWD, path, times, 0), look(path);
    if (!strcmp(what, "sync")) sync(), look(path);
    if (!strcmp(what, "open")) close(open(path, O_RDONLY)), look(path);
    if (!strcmp(what, "truncate")) truncate(path, 3000), look(path);
    if (!strcmp(what, "unlink")) unlink(path), look(path);
    if (!strcmp(what, "system")) system("true"), look(path);
    if (!strcmp(what, "identity")) setuid(getuid()), look(path);
    if (!strcmp(what, "fork")) {
        if (!fork()) look(path), _exit(0);
        wait(&status);
    }
    if (!strcmp(what, "vfork")) {
        if (!vfork()) look(path), _exit(0);
        wait(&status);
    }
    if (!strcmp(what, "spawn")) {
        pid_t child;
        char *words[] = {"/bin/true", NULL};
        posix_spawn(&child, words[0], NULL, NULL, words, NULL);
        look(path);
        waitpid(child, &status, 0);
    }
    if (!strcmp(what, "walk")) {
        *strrchr(other, '/') = 0;
        nftw(other, visit, 8, 0);
        look(path);
    }
    if (!strcmp(what, "program")) execl("/proc/self/exe", "closed", path, "look", NULL);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    const char *what = words[2];
    strcpy(path, words[1]);
    sprintf(other, "%s.other", path);
    memset(bytes, 'b', SIZE);
    if (!strcmp(what, "look")) return look(path), 0;
    if (!strcmp(what, "many")) {
        for (int nth = 0; nth < 200; nth++) {
            sprintf(other, "%s.%d", path, nth);
            if (close(made(other))) return 3;
        }
        return 0;
    }
    if (!strcmp(what, "script")) {
        // Nobody may have it open for writing who executes it.
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0 || write(fd, "#!/bin/echo\n", 12) != 12 || fchmod(fd, 0700) || close(fd)) return 3;
        execl(path, path, "ran", NULL);
        return errno;
    }
    if (!strcmp(what, "stream")) {
        // More than a buffer, and libc flushes the rest when the program has ended.
        FILE *stream = fopen(path, "w");
        for (int nth = 0; nth < 5000; nth++) fprintf(stream, "line %d\n", nth);
        return 0;
    }
    int fd = made(path);
    static const struct timespec never[2];
    if (!strcmp(what, "others")) {
        // What is committed the monitor publishes when it has aged.
        static const struct timespec then[2] = {{1000000, 5}, {1000000, 5}};
        int second = made(other);
        if (fsync(fd) || pwrite(second, "more", 4, SIZE) != 4 || futimens(fd, then) || fsync(fd)) return 3;
        sleep(2);
        return see(other, ""), 0;
    }
    if (!strcmp(what, "time of none") && (futimens(fd, never) || close(fd))) return 3;
    if (!strcmp(what, "time of none")) return sync(), see(path, ""), 0;
    if (!strcmp(what, "times synced")) {
        static const struct timespec then[2] = {{1000000, 5}, {1000000, 5}};
        if (fsync(fd) || futimens(fd, then) || pwrite(fd, "x", 1, 7) != 1 || futimens(fd, then) || fsync(fd)) return 3;
        see(path, "");
    }
    static const struct timespec times[2] = {{1000000, 5}, {1000000, 5}};
    if (!strcmp(what, "own times") && futimens(fd, times)) return 3;
    if (!strcmp(what, "written since") && (futimens(fd, times) || pwrite(fd, "x", 1, 7) != 1)) return 3;
    static const struct timespec looked[2] = {{1000000, 5}, {0, UTIME_OMIT}};
    if (!strcmp(what, "only looked at") && (futimens(fd, times) || pwrite(fd, "x", 1, 7) != 1 || futimens(fd, looked))) return 3;
    if (!strcmp(what, "own mode") && (fchmod(fd, 0440) || fchown(fd, getuid(), getgid()))) return 3;
    if (!strcmp(what, "wait")) puts("written"), fflush(stdout), getchar();
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    if (close(fd)) return 3;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (!strcmp(what, "close")) puts(ended.tv_sec - begun.tv_sec < 2 ? "at once" : "late");
    if (!strcmp(what, "wait")) puts("closed"), fflush(stdout), getchar(), rename(path, other), look(other), getchar();
    after(what);
    return 0;
}
