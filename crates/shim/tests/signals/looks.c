/* What a program sees of the files that it stages, and of their names. */
#include "common.h"
#include <ftw.h>
#include <sys/stat.h>
#include <time.h>

static char bytes[1000];

static int create(const char *name, int flags) {
    int fd = open(name, flags | O_CREAT, 0600);
    CHECK(fd >= 0);
    return fd;
}
static void append(int fd, int times) {
    while (times--) CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
}
static void start(void) {
    char directory[4096];
    snprintf(directory, sizeof directory, "%s.XXXXXX", path);
    CHECK(mkdtemp(directory) && chdir(directory) == 0);
    int log = create("log", O_WRONLY | O_APPEND);
    append(log, 1);
    if (leased(log)) fprintf(stderr, "served\n");
    CHECK(close(log) == 0);
}

static void print(const char *what, const struct stat *s) {
    printf("%s: size %ld, %s, %s\n", what, (long)s->st_size,
           s->st_size == 0 || s->st_blocks > 0 ? "blocks" : "none",
           time(NULL) - s->st_mtime < 20 ? "now" : "then");
}
static void look(const char *what, int fd, const char *name) {
    struct stat one, other;
    struct statx x;
    CHECK(fstat(fd, &one) == 0);
    print(what, &one);
    if (!name) return;
    CHECK(stat(name, &other) == 0 && other.st_size == one.st_size && other.st_blocks == one.st_blocks);
    CHECK(other.st_mtime == one.st_mtime && other.st_ino == one.st_ino);
    CHECK(lstat(name, &other) == 0 && other.st_size == one.st_size);
    CHECK(fstatat(AT_FDCWD, name, &other, 0) == 0 && other.st_size == one.st_size);
    CHECK(fstatat(fd, "", &other, AT_EMPTY_PATH) == 0 && other.st_size == one.st_size);
    CHECK(statx(AT_FDCWD, name, 0, STATX_ALL, &x) == 0 && (off_t)x.stx_size == one.st_size);
    CHECK((blkcnt_t)x.stx_blocks == one.st_blocks && x.stx_mtime.tv_sec == one.st_mtime);
}

PART(sizes) {
    start();
    int log = create("log", O_RDWR | O_APPEND);
    for (int i = 0; i < 50; i++) append(log, 3), look("grows", log, "log");
    CHECK(ftruncate(log, 5000) == 0);
    look("cut", log, "log");
    append(log, 1);
    look("on", log, "log");
    int other = create("other", O_WRONLY);
    look("empty", other, "other");
    append(other, 2);
    look("other", other, "other"), look("log", log, "log");
    CHECK(close(log) == 0 && close(other) == 0);
    struct stat s;
    CHECK(stat("log", &s) == 0);
    print("closed", &s);
}

PART(times) {
    struct timespec old[2] = {{1000, 5}, {2000, 6}};
    struct stat s;
    start();
    int log = create("log", O_RDWR | O_APPEND);
    append(log, 1), look("written", log, "log");
    CHECK(futimens(log, old) == 0 && fstat(log, &s) == 0);
    printf("%ld %ld\n", (long)s.st_mtime, s.st_mtim.tv_nsec);
    append(log, 1), look("written", log, "log");
    int other = create("other", O_RDWR);
    append(other, 1);
    CHECK(utimensat(AT_FDCWD, "other", old, 0) == 0 && close(other) == 0 && stat("other", &s) == 0);
    printf("%ld %ld\n", (long)s.st_mtime, s.st_mtim.tv_nsec);
}

static off_t walked;
static int walk(const char *name, const struct stat *s, int kind, struct FTW *at) {
    (void)at;
    if (kind == FTW_F && strstr(name, "log")) walked = s->st_size;
    return 0;
}
PART(walks) {
    start();
    int log = create("log", O_WRONLY | O_APPEND);
    append(log, 7);
    CHECK(nftw(".", walk, 8, FTW_PHYS) == 0);
    printf("%ld\n", (long)walked);
}

PART(names) {
    struct stat s;
    start();
    int log = create("log", O_RDWR | O_APPEND);
    append(log, 2);
    CHECK(rename("log", "moved") == 0);
    append(log, 1), look("moved", log, "moved");
    int new = create("log", O_WRONLY);
    append(new, 1);
    CHECK(rename("log", "moved") == 0);
    append(new, 1), look("moved over", new, "moved"), look("replaced", log, NULL);
    CHECK(link("moved", "twin") == 0);
    append(new, 1), look("linked", new, "twin");
    CHECK(unlink("moved") == 0 && stat("moved", &s) == -1 && errno == ENOENT);
    append(new, 1), look("unlinked", new, "twin");
    CHECK(mkdir("d", 0700) == 0);
    int deep = create("d/deep", O_WRONLY);
    append(deep, 1);
    CHECK(rename("d", "e") == 0);
    append(deep, 1), look("deep", deep, "e/deep");
    CHECK(fchmod(deep, 0400) == 0);
    append(deep, 1), look("read-only", deep, "e/deep");
    CHECK(truncate("e/deep", 10) == -1 || geteuid() == 0);
    CHECK(remove("e/deep") == 0 && rmdir("e") == 0);
    append(deep, 1), look("removed", deep, NULL);
    int cut = create("cut", O_WRONLY | O_APPEND);
    append(cut, 5);
    CHECK(truncate("cut", 10) == 0);
    append(cut, 1), look("cut", cut, "cut");
}

/* Calls that make or refuse names, with everything that their paths may look like. */
PART(made) {
    char directory[] = "madeXXXXXX", file[] = "madeXXXXXX";
    const char *volatile nowhere = NULL;
    struct stat s;
    start();
    CHECK(mkdir("a", 0700) == 0 && mkdir("a//b/", 0700) == 0 && mkdirat(AT_FDCWD, "a/c", 0700) == 0);
    CHECK(mkdir("a", 0700) == -1 && errno == EEXIST);
    CHECK(symlink("nothing", "a/link") == 0 && symlink("../log", "a/log") == 0);
    CHECK(mkfifo("a/fifo", 0600) == 0 && mknod("a/node", S_IFREG | 0600, 0) == 0);
    int fd = open("a/link", O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0 && stat("a/nothing", &s) == 0);
    append(fd, 1), look("through a link", fd, "a/nothing");
    CHECK(open("a/link", O_WRONLY | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
    CHECK(open("a/missing/x", O_WRONLY | O_CREAT, 0600) == -1 && errno == ENOENT);
    CHECK(open(nowhere, O_WRONLY | O_CREAT, 0600) == -1 && errno == EFAULT);
    CHECK(rename("missing", "x") == -1 && errno == ENOENT && rename(nowhere, "x") == -1 && errno == EFAULT);
    CHECK(rename("a", "a/b/x") == -1 && errno == EINVAL);
    CHECK(mkdtemp(directory) == directory && stat(directory, &s) == 0 && rmdir(directory) == 0);
    CHECK((fd = mkstemp(file)) >= 0);
    append(fd, 2), look("temporary", fd, file);
    CHECK(chdir("a") == 0 && mkdir("w", 0700) == 0 && rename("w", "../w/") == 0 && rmdir("../w") == 0);
    int dir = open("b", O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0 && (fd = openat(dir, "x", O_WRONLY | O_CREAT, 0600)) >= 0);
    append(fd, 1);
    CHECK(renameat(dir, "x", AT_FDCWD, "y") == 0 && linkat(AT_FDCWD, "y", dir, "z", 0) == 0);
    CHECK(unlinkat(dir, "z", 0) == 0 && unlinkat(AT_FDCWD, "c", AT_REMOVEDIR) == 0);
    look("at", fd, "y");
    CHECK(chmod(".", 0300) == 0 && mkdir("unreadable", 0700) == 0 && chmod(".", 0700) == 0);
    puts("made");
}

int main(int argc, char **argv) {
#define ROW(name) {#name, name}
    static const struct part parts[] = {ROW(sizes), ROW(times), ROW(walks), ROW(names), ROW(made), {0}};
    return run_part(parts, argc, argv);
}
