// Does many things to one file and says what came of each. Run plainly and under Adit, in whatever
// mode, it must say the same and leave the same file. On standard error it says whether the file was
// staged at some points, which only Adit makes it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "staged.h"

static const char *path;

static void say(const char *what, long result) {
    printf("%s: %ld%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? strerror(errno) : "");
    fflush(stdout);
}


static void staged_now(int fd, const char *when) {
    fprintf(stderr, "%s: %s\n", when, is_staged(fd) ? "staged" : "plain");
}

static unsigned sum(const char *bytes, size_t len) {
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < len; i++) hash = (hash ^ (unsigned char)bytes[i]) * 16777619u;
    return hash;
}

// The whole file as the descriptor shows it.
static void whole(int fd, const char *what) {
    static char bytes[1 << 20];
    ssize_t len = pread(fd, bytes, sizeof bytes, 0);
    printf("%s: %zd bytes, sum %08x\n", what, len, len > 0 ? sum(bytes, (size_t)len) : 0);
    fflush(stdout);
}

// The whole file as another description shows it.
static void elsewhere(const char *what) {
    int fd = open(path, O_RDONLY);
    whole(fd, what);
    close(fd);
}

static int fresh(int flags) {
    unlink(path);
    int fd = open(path, flags | O_CREAT | O_TRUNC, 0600);
    say("open", fd < 0 ? -1 : 0);
    return fd;
}

static void offsets(void) {
    int fd = fresh(O_RDWR);
    char bytes[10000];
    memset(bytes, 'a', sizeof bytes);
    say("write", write(fd, bytes, 100));
    staged_now(fd, "after a write");
    struct iovec many[1025];
    for (int i = 0; i < 1025; i++) many[i] = (struct iovec){bytes + i, i % 7};
    memset(bytes, 'm', 1000);
    say("40 parts", writev(fd, many, 40));
    say("1024 parts", writev(fd, many, 1024));
    say("to be closed", ioctl(fd, FIOCLEX));
    say("terminal", ioctl(fd, TIOCGWINSZ, bytes));
    staged_now(fd, "after many parts");
    say("1025 parts", writev(fd, many, 1025));
    memset(bytes, 0, sizeof bytes);
    say("40 parts", preadv(fd, many, 40, 90));
    say("1025 parts", preadv(fd, many, 1025, 90));
    printf("%.50s\n", bytes);
    memset(bytes, 'a', sizeof bytes);
    say("write", write(fd, bytes, sizeof bytes));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("end", lseek(fd, -10, SEEK_END));
    say("write", write(fd, "0123456789abcdef", 16));
    say("far", lseek(fd, 20000, SEEK_SET));
    say("read", read(fd, bytes, 10));
    say("write", write(fd, "hole before", 11));
    say("set", lseek(fd, 10090, SEEK_SET));
    say("read", read(fd, bytes, 26));
    printf("%.26s\n", bytes);
    say("negative", lseek(fd, -1, SEEK_SET));
    say("too far", lseek(fd, -100000, SEEK_END));
    say("huge", lseek(fd, 0x7fffffffffffffffL, SEEK_SET));
    say("pread", pread(fd, bytes, 5, -1));
    say("pwrite", pwrite(fd, bytes, 5, -1));
    say("pwrite", pwrite(fd, "XYZ", 3, 50));
    struct iovec out[3] = {{"one ", 4}, {"", 0}, {"three", 5}};
    say("set", lseek(fd, 7, SEEK_SET));
    say("writev", writev(fd, out, 3));
    say("pwritev", pwritev(fd, out, 3, 15000));
    say("writev", writev(fd, out, -1));
    char first[3], second[6];
    struct iovec in[2] = {{first, 3}, {second, 6}};
    say("preadv", preadv(fd, in, 2, 7));
    printf("%.3s %.6s\n", first, second);
    say("ftruncate", ftruncate(fd, 12345));
    say("end", lseek(fd, 0, SEEK_END));
    say("ftruncate", ftruncate(fd, 30000));
    say("ftruncate", ftruncate(fd, -1));
    say("whence", lseek(fd, 5, 99));
    volatile size_t all = (size_t)-1;
    say("read", read(fd, bytes, all));
    say("write", write(fd, bytes, all));
    staged_now(fd, "after all that");
    say("fsync", fsync(fd));
    say("fdatasync", fdatasync(fd));
    whole(fd, "own");
    elsewhere("second open");
    say("write", pwrite(fd, "after", 5, 29990));
    whole(fd, "own");
    say("close", close(fd));
    say("close", close(fd));
    elsewhere("closed");
}

// What databases do with a file that they have just made.
static void owned(void) {
    int fd = fresh(O_RDWR);
    say("fchown", fchown(fd, getuid(), getgid()));
    say("fchmod", fchmod(fd, 0640));
    say("write", write(fd, "mine", 4));
    staged_now(fd, "owned");
    say("fchmod", fchmod(fd, 0600));
    elsewhere("permissions changed");
    say("write", write(fd, " still", 6));
    elsewhere("written afterwards");
    say("close", close(fd));
}

// A cut before any write is one more thing that must not be half done.
static void cut_first(void) {
    static char bytes[6000];
    memset(bytes, 0x5a, sizeof bytes);
    int fd = fresh(O_RDWR);
    say("write", write(fd, bytes, sizeof bytes));
    say("close", close(fd));
    fd = open(path, O_RDWR);
    say("ftruncate", ftruncate(fd, 2500));
    staged_now(fd, "cut");
    say("end", lseek(fd, 0, SEEK_END));
    whole(fd, "own");
    say("ftruncate", ftruncate(fd, 2600));
    elsewhere("second open");
    say("close", close(fd));
    fd = open(path, O_RDWR);
    say("ftruncate", ftruncate(fd, -1));
    say("ftruncate", ftruncate(fd, (off_t)1 << 62));
    say("close", close(fd));
    elsewhere("closed");
}

static void appends(void) {
    int fd = fresh(O_WRONLY | O_APPEND);
    off_t last = 0x7fffffffffffffffL;
    say("write", write(fd, "first", 5));
    say("beyond", pwrite(fd, "beyond", 6, last - 2));
    say("last", lseek(fd, last - 2, SEEK_SET) == last - 2 ? 0 : -1);
    say("beyond", write(fd, "beyond", 6));
    say("last", lseek(fd, 0, SEEK_CUR) == last - 2 ? 0 : -1);
    say("set", lseek(fd, 0, SEEK_SET));
    char line[64];
    for (int i = 0; i < 100; i++) {
        int len = sprintf(line, "line %d\n", i);
        if (write(fd, line, (size_t)len) != len) say("write", -1);
    }
    staged_now(fd, "appending");
    say("flags", fcntl(fd, F_GETFL));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("back", lseek(fd, 3, SEEK_SET));
    say("write", write(fd, "at the end\n", 11));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("pwrite appends", pwrite(fd, "so does this\n", 13, 5));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("far", lseek(fd, 100000, SEEK_SET));
    say("write", write(fd, "still\n", 6));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("read", read(fd, line, 5));
    say("pread", pread(fd, line, 5, 0));
    elsewhere("second open");
    say("write", write(fd, "more\n", 5));
    staged_now(fd, "again");
    say("setfl", fcntl(fd, F_SETFL, 0));
    say("flags", fcntl(fd, F_GETFL));
    say("pwrite", pwrite(fd, "LINE", 4, 0));
    say("setfl", fcntl(fd, F_SETFL, O_APPEND));
    say("write", write(fd, "end\n", 4));
    say("close", close(fd));
    elsewhere("closed");
}

static void bad_buffers(void) {
    int fd = fresh(O_RDWR);
    long page = sysconf(_SC_PAGESIZE);
    char *two = mmap(0, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(two, 'b', 2 * (size_t)page);
    mprotect(two + page, (size_t)page, PROT_NONE);
    say("write", write(fd, "good", 4));
    staged_now(fd, "before a bad buffer");
    say("write", write(fd, (void *)8, 10));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("write", write(fd, "good", 4));
    say("write in part", write(fd, two + page - 100, 200));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("set", lseek(fd, 0, SEEK_SET));
    say("read", read(fd, (void *)8, 10));
    say("cur", lseek(fd, 0, SEEK_CUR));
    say("nothing", write(fd, (void *)8, 0));
    say("too much", write(fd, "x", (size_t)-1));
    whole(fd, "own");
    say("close", close(fd));
}

static void shared_with(int how) {
    int fd = fresh(O_RDWR);
    say("write", write(fd, "parent 1\n", 9));
    staged_now(fd, "before sharing");
    if (how == 0) {
        if (fork() == 0) {
            say("child", write(fd, "child\n", 6));
            _exit(0);
        }
        wait(0);
    } else if (how == 1) {
        char number[16], *program[] = {"/bin/sh", "-c", "echo executed >&$0", number, 0};
        sprintf(number, "%d", fd);
        if (vfork() == 0) {
            execv(program[0], program);
            _exit(1);
        }
        wait(0);
    } else if (how == 2) {
        int other = dup(fd);
        say("dup", write(other, "dup\n", 4));
        say("close", close(fd));
        fd = other;
    } else if (how == 3) {
        int other = dup2(fd, 100);
        say("dup2", write(other, "dup2\n", 5));
        say("close", close(other));
    } else {
        char command[300];
        sprintf(command, "wc -c < %s; echo from outside >> %s", path, path);
        say("system", system(command));
    }
    say("write", write(fd, "parent 2\n", 9));
    say("cur", lseek(fd, 0, SEEK_CUR));
    whole(fd, "own");
    say("close", close(fd));
    elsewhere("closed");
}

static void others(void) {
    int fd = fresh(O_RDWR);
    char bytes[5000];
    memset(bytes, 'c', sizeof bytes);
    say("write", write(fd, bytes, sizeof bytes));
    char *map = mmap(0, sizeof bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    printf("mapped: %08x\n", sum(map, sizeof bytes));
    map[7] = 'M';
    say("write", write(fd, "behind", 6));
    whole(fd, "own");
    munmap(map, sizeof bytes);
    close(fd);

    fd = fresh(O_RDWR);
    say("write", write(fd, bytes, sizeof bytes));
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    off_t at = 10;
    say("sendfile", sendfile(pair[0], fd, &at, 4000));
    say("got", recv(pair[1], bytes, sizeof bytes, MSG_DONTWAIT));
    close(fd);

    fd = fresh(O_RDWR);
    say("write", write(fd, bytes, sizeof bytes));
    say("fallocate", posix_fallocate(fd, 0, 9000));
    say("end", lseek(fd, 0, SEEK_END));
    say("hole", lseek(fd, 0, SEEK_HOLE));
    close(fd);

    fd = fresh(O_RDWR);
    say("write", write(fd, bytes, sizeof bytes));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
    say("lock", fcntl(fd, F_SETLK, &lock));
    staged_now(fd, "locked");
    lock.l_whence = SEEK_END;
    say("lock", fcntl(fd, F_SETLK, &lock));
    say("truncate", truncate(path, 33));
    whole(fd, "own");
    say("write", write(fd, "behind the end", 14));
    whole(fd, "own");
    close(fd);

    // What the kernel refuses has done nothing.
    fd = fresh(O_RDWR);
    say("write", write(fd, bytes, sizeof bytes));
    say("dup3", dup3(fd, 77, O_CLOEXEC | O_APPEND));
    say("dup3", dup3(0, fd, 1));
    say("dup3", dup3(fd, fd, 0));
    say("dup3", dup3(fd, fd, O_CLOEXEC));
    say("dup3", syscall(SYS_dup3, fd, 77, 1));
    say("F_DUPFD", fcntl(fd, F_DUPFD, 100000000));
    say("F_DUPFD", fcntl(fd, F_DUPFD_CLOEXEC, -1));
    say("dup2", dup2(fd, -1));
    say("dup2", dup2(fd, 100000000));
    say("dup2", dup2(-1, fd));
    say("dup2", dup2(fd, fd) == fd);
    say("close_range", close_range((unsigned)fd, (unsigned)fd, 8));
    say("close_range", close_range((unsigned)fd, 2, 0));
    say("close_range", syscall(SYS_close_range, (unsigned)fd, ~0u, 1 << 30));
    staged_now(fd, "refused");
    whole(fd, "own");
    close(fd);

    signal(SIGXFSZ, SIG_IGN);
    fd = fresh(O_RDWR);
    say("write", write(fd, bytes, sizeof bytes));
    struct rlimit limit = {6000, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    say("write", write(fd, bytes, sizeof bytes));
    say("write", write(fd, bytes, sizeof bytes));
    whole(fd, "own");
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    close(fd);

    fd = open(path, O_WRONLY | O_CREAT, 0600);
    say("read", read(fd, bytes, 5));
    say("write", write(fd, bytes, 5));
    say("read", read(fd, bytes, 5));
    close_range((unsigned)fd, (unsigned)fd, 0);
    elsewhere("closed by range");
    fd = creat(path, 0600);
    say("write", write(fd, "last words\n", 11));
    staged_now(fd, "at the end");
}

int main(int count, char **args) {
    if (count < 2) return 2;
    path = args[1];
    offsets();
    owned();
    cut_first();
    appends();
    bad_buffers();
    for (int how = 0; how < 5; how++) shared_with(how);
    others();
    // Still open: the exit publishes.
    return 0;
}
