// Streams that are left open, refused, or made in vain.
//   streams CASE FILE
// left MODE, beside MODE, child MODE: opens the file so, prints a thousand lines and ends without closing it; beside a thread
// that stays, having synced, when it is told to; or in a child, while its parent ends without a word
// refused: whether the number of a stream that was refused its next file is free
// exclusive, cut: whether a file that is there is made; how it is opened to be cut by libc
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINES = 1000 };

static FILE *stream;

static void *stays(void *nothing) {
    pause();
    return nothing;
}

static int left(const char *file, const char *mode) {
    stream = fopen(file, mode);
    if (!stream) return 1;
    for (int line = 0; line < LINES; line++) fprintf(stream, "line %d\n", line);
    return 0;
}

static int left_to_a_child(const char *file, const char *mode) {
    int failed = left(file, mode);
    if (fork() == 0) return failed;
    wait(NULL);
    _exit(0);
}

static int left_beside(const char *file, const char *mode) {
    pthread_t thread;
    char byte;
    pthread_create(&thread, NULL, stays, NULL);
    int failed = left(file, mode);
    if (fsync(fileno(stream)) || write(1, "printed\n", 8) != 8 || read(0, &byte, 1) != 1) return 1;
    return failed;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    if (!strcmp(args[1], "beside")) return left_beside(args[2], args[3]);
    if (!strcmp(args[1], "child")) return left_to_a_child(args[2], args[3]);
    if (!strcmp(args[1], "left")) return left(args[2], args[3]);
    if (!strcmp(args[1], "refused")) {
        int number;
        stream = fopen(args[2], "r");
        number = fileno(stream);
        stream = freopen(args[2], "wc", stream);
        printf("%s, ", stream ? "there" : strerrorname_np(errno));
        printf("%s\n", fcntl(number, F_GETFD) < 0 ? "free" : "taken");
    }
    if (!strcmp(args[1], "exclusive") || !strcmp(args[1], "cut")) {
        stream = fopen(args[2], !strcmp(args[1], "cut") ? "wc" : "wx");
        printf("%s\n", stream ? "made" : strerrorname_np(errno));
    }
    return 0;
}
