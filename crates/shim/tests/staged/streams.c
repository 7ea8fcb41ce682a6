// Streams that are left open, refused, or made in vain.
//   streams CASE FILE
// left MODE, beside MODE: opens the file so, prints a thousand lines and ends without closing it; beside a thread that stays
// refused: whether the number of a stream that was refused its next file is free
// exclusive: whether a file that is there is made
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
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

int main(int count, char **args) {
    pthread_t thread;
    if (count < 3) return 2;
    if (!strcmp(args[1], "beside")) pthread_create(&thread, NULL, stays, NULL);
    if (count > 3) return left(args[2], args[3]);
    if (!strcmp(args[1], "refused")) {
        int number;
        stream = fopen(args[2], "r");
        number = fileno(stream);
        stream = freopen(args[2], "wc", stream);
        printf("%s, ", stream ? "there" : strerrorname_np(errno));
        printf("%s\n", fcntl(number, F_GETFD) < 0 ? "free" : "taken");
    }
    if (!strcmp(args[1], "exclusive")) {
        stream = fopen(args[2], "wx");
        printf("%s\n", stream ? "made" : strerrorname_np(errno));
    }
    return 0;
}
