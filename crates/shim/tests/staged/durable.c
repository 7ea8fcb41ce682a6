// Makes, cuts, moves and removes names, and says on standard output before each call which it is.
//   durable DIR   an empty directory
#define _GNU_SOURCE
#include <aio.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int wrong;

static void is(const char *call) { dprintf(1, "== %s\n", call); }

#define DO(name, call)                                                                                 \
    do {                                                                                               \
        is(name);                                                                                      \
        if ((call) < 0) perror(name), wrong = 1;                                                       \
    } while (0)

// What another thread of libc's writes, or reads: done, and told in two ways that it is.
static void in_the_background(int fd, int reads) {
    static char bytes[10] = "background";
    struct aiocb request = {.aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = sizeof bytes};
    const struct aiocb *list[] = {&request};
    DO("begin", reads ? aio_read(&request) : aio_write(&request));
    while (aio_suspend(list, 1, NULL)) {}
    DO("error", -aio_error(&request));
    DO("return", aio_return(&request) == sizeof bytes ? 0 : -1);
}

// A stream that libc writes by itself: whether its writes wait, and where it begins.
static void libcs(const char *how, long at, int adds) {
    FILE *file = fopen("one/libcs", how);
    is(file && fcntl(fileno(file), F_GETFL) & O_DSYNC ? "waits" : "does not wait");
    if (!file || lseek(fileno(file), 0, SEEK_CUR) != at) wrong = 1;
    if (!file || adds && fputs("libc", file) < 0 || fclose(file)) wrong = 1;
}

static int stream(const char *path, const char *how) {
    FILE *file = fopen(path, how);
    return file ? fclose(file) : -1;
}

int main(int count, char **args) {
    if (count < 2 || chdir(args[1])) return 2;
    char temporary[] = "one/temporary-XXXXXX", made[] = "one/made-XXXXXX";
    int fd, held;
    DO("mkdir", mkdir("one", 0700));
    DO("mkdir again", mkdir("two", 0700));
    DO("create", fd = open("one/a", O_RDWR | O_CREAT, 0600));
    is("none");
    if (write(fd, "0123456789", 10) != 10) wrong = 1;
    close(fd);
    DO("open", fd = open("one/a", O_RDWR | O_CREAT, 0600));
    close(fd);
    DO("cut", fd = open("one/a", O_RDWR | O_TRUNC));
    DO("cut again", held = creat("one/a", 0600));
    DO("exclusive", close(open("one/b", O_WRONLY | O_CREAT | O_EXCL, 0600)));
    DO("no such file", open("one/none", O_WRONLY | O_TRUNC) < 0 ? 0 : -1);
    DO("mkstemp", mkstemp(temporary));
    DO("mkdtemp", mkdtemp(made) ? 0 : -1);
    DO("symlink", symlink("one", "link"));
    DO("create through a link", open("link/c", O_WRONLY | O_CREAT, 0600));
    DO("link", link("one/a", "two/a"));
    DO("rename", rename("one/b", "two/b"));
    DO("rename within", rename("two/b", "two/d"));
    int two = open("two", O_RDONLY | O_DIRECTORY);
    DO("renameat", renameat(two, "d", AT_FDCWD, "d"));
    DO("unlinkat", unlinkat(two, "a", 0));
    DO("truncate what is open", truncate("one/a", 5));
    DO("reserve", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4096));
    DO("allocate", fallocate(fd, 0, 0, 9000));
    DO("allocate portably", -posix_fallocate(fd, 0, 9500));
    DO("punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    DO("cut by descriptor", ftruncate(fd, 100));
    in_the_background(fd, 0);
    in_the_background(fd, 1);
    is("close");
    close(fd);
    close(held);
    DO("truncate", truncate("one/a", 7));
    DO("fopen", stream("one/stream", "w"));
    DO("fopen to cut", stream("one/a", "w"));
    DO("libc's", stream("one/libcs", "wc"));
    libcs("wc", 0, 1);
    libcs("r+c,ccs=UTF-8", 0, 0);
    libcs("ac", 4, 1);
    struct stat is_there;
    if (stat("one/libcs", &is_there) || is_there.st_size != 8) wrong = 1;
    DO("mkfifo", mkfifo("two/fifo", 0600));
    DO("unlink", unlink("one/a"));
    DO("remove", remove("d"));
    DO("rmdir", rmdir(made));
    is("end");
    return wrong;
}
