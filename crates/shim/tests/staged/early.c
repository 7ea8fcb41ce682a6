// kinds: a library whose constructor runs before any other, with -DLIBRARY; and the program beside it.
//   early CASE FILE   (CASE is not looked at)
// The constructor writes to files by descriptors and by streams, shares them, and leaves one open, to which the
// program and the destructor write.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "staged.h"

int early_fd(void);
FILE *early_stream(void);

#ifdef LIBRARY
static int fd = -1;
static FILE *stream;

static void must(int holds) {
    if (!holds) abort();
}

static void __attribute__((constructor(101))) first(void) {
    // The programs around the one under test load it, too.
    if (strcmp(program_invocation_short_name, "early") != 0) return;
    FILE *file = fopen("stream", "w");
    must(file && fputs("one\n", file) >= 0 && fclose(file) == 0);
    file = fopen("stream", "a+");
    must(file && fputs("two\n", file) >= 0 && fflush(file) == 0);
    rewind(file);
    char text[64] = "";
    must(fread(text, 1, sizeof text, file) == 8 && strcmp(text, "one\ntwo\n") == 0 && fclose(file) == 0);
    stream = fopen("kept-stream", "w");
    must(stream && fputs("constructor\n", stream) >= 0);

    fd = open("kept", O_RDWR | O_CREAT | O_APPEND, 0644);
    must(write(fd, "constructor\n", 12) == 12);
    struct stat stat;
    must(fstat(fd, &stat) == 0 && stat.st_size == 12 && fsync(fd) == 0);
    int other = open("other", O_RDWR | O_CREAT, 0644);
    must(write(other, "0123456789", 10) == 10 && pwrite(other, "AB", 2, 4) == 2);
    must(ftruncate(other, 8) == 0 && lseek(other, 0, SEEK_END) == 8);
    int copy = dup(other);
    must(write(copy, "copy", 4) == 4 && close(other) == 0);
    pid_t child = fork();
    if (child == 0) {
        must(write(copy, "child", 5) == 5);
        _exit(0);
    }
    must(waitpid(child, NULL, 0) == child && write(copy, "parent", 6) == 6 && close(copy) == 0);
    must(rename("other", "renamed") == 0);
}

static void __attribute__((destructor(101))) last(void) {
    if (fd < 0) return;
    must(write(fd, "destructor\n", 11) == 11 && close(fd) == 0);
    must(fputs("destructor\n", stream) >= 0 && fclose(stream) == 0);
}

int early_fd(void) { return fd; }
FILE *early_stream(void) { return stream; }
#else
static void staged_now(int fd) {
    if (is_staged(fd)) fprintf(stderr, "staged\n");
}

int main(int count, char **args) {
    if (count < 3) return 2;
    for (int i = 0; i < 3; i++)
        if (write(early_fd(), "main\n", 5) != 5 || fputs("main\n", early_stream()) < 0) return 1;
    char text[64] = "";
    if (pread(early_fd(), text, 64, 0) != 27) return 1;
    int fd = open(args[2], O_RDWR | O_CREAT, 0644);
    if (write(fd, text, 27) != 27) return 1;
    staged_now(fd);
    printf("%s", text);
    return 0;
}
#endif
