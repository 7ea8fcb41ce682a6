// A thread that is cancelled while it opens a FIFO, and what else it opens, by openat2: as libc has it since 2.43, here in
// a library of its own, it is a cancellation point. Says whether it was cancelled, and how often the library was called.
//   -DLIBRARY: the library
//   cancelled FIFO FILE
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef LIBRARY
int calls;

// By an instruction of its own, as libc: Adit sees syscall().
static long by_number(int dir, const char *path, const struct open_how *how, size_t len) {
    long result;
    register size_t last __asm__("r10") = len;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_openat2), "D"((long)dir), "S"(path), "d"(how), "r"(last)
                     : "rcx", "r11", "memory");
    return result;
}

int openat2(int dir, const char *path, const struct open_how *how, size_t len) {
    int before;
    calls++;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    long fd = by_number(dir, path, how, len);
    pthread_setcanceltype(before, NULL);
    return fd < 0 ? -1 : fd;
}
#else
#include "staged.h"

extern int calls;
int openat2(int dir, const char *path, const struct open_how *how, size_t len);

static void *waits(void *fifo) {
    struct open_how how = {.flags = O_RDONLY};
    openat2(AT_FDCWD, fifo, &how, sizeof how);
    return NULL;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    mkfifo(args[1], 0600);
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, waits, args[1]);
    usleep(200000);
    pthread_cancel(thread);
    usleep(200000);
    // One that was not cancelled goes on.
    int writer = open(args[1], O_RDWR);
    pthread_join(thread, &result);
    printf("cancelled %d, ", result == PTHREAD_CANCELED);

    char text[16] = "";
    struct open_how how = {.flags = O_RDWR | O_CREAT | O_TRUNC, .mode = 0600};
    int fd = openat2(AT_FDCWD, args[2], &how, sizeof how);
    if (write(fd, "short", 5) != 5 || pread(fd, text, sizeof text, 0) != 5) return 3;
    printf("staged %d, %s, ", is_staged(fd), text);
    close(fd);
    struct { struct open_how how; unsigned long later; } longer = {{.flags = O_RDONLY}};
    fd = openat2(AT_FDCWD, args[2], &longer.how, sizeof longer);
    printf("longer %d, called %d times\n", fd >= 0, calls);
    return 0;
}
#endif
