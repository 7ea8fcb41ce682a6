// A library beneath the program, whose constructor runs before ours and that finds libc by itself: its handlers of forks
// write to the program's file, and so does a function of it.
//   -DLIBRARY: the library. -DLINKED: a program that it is loaded with, and else one that loads it.
//   beneath FILE LIBRARY
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// What pthread_atfork calls.
extern void *__dso_handle;
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

#ifdef LIBRARY
int beneath_fd = -1;

void beneath_put(int fd) {
    if (write(fd, "library\n", 8) != 8) perror("library");
    if (lseek(fd, 0, SEEK_CUR) != lseek(fd, 0, SEEK_END)) puts("not at the end");
}

static void puts_there(void) {
    if (beneath_fd >= 0 && write(beneath_fd, "fork\n", 5) != 5) perror("fork");
}

__attribute__((constructor)) static void begin(void) {
    __register_atfork(puts_there, puts_there, NULL, &__dso_handle);
}
#else

static int fd;
static atomic_int before;

static void counts(void) {
    before++;
}

#ifdef LINKED
extern int beneath_fd;
static atomic_int stop;

static void *writes(void *nothing) {
    static char part[20000];
    memset(part, 'x', sizeof part);
    for (int i = 0; !stop; i = (i + 977) % sizeof part)
        if (write(fd, part, 1 + i) != 1 + i) perror("write");
    return nothing;
}

// Who forks waits for threads that write, and they for nobody who waits for the fork.
static void forks(void) {
    pthread_t threads[2];
    beneath_fd = fd;
    alarm(60);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, writes, NULL);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (!child) _exit(0);
        waitpid(child, NULL, 0);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    beneath_fd = -1;
    if (ftruncate(fd, 0) || lseek(fd, 0, SEEK_SET)) perror("cut");
}
#endif

int main(int count, char **args) {
    if (count < 3) return 2;
    fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (write(fd, "before\n", 7) != 7) perror("before");
    __register_atfork(counts, NULL, NULL, &__dso_handle);
#ifdef LINKED
    forks();
#endif
    void *library = dlopen(args[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void (*put)(int) = library ? dlsym(library, "beneath_put") : NULL;
    if (!put) return printf("%s\n", dlerror()), 1;
    put(fd);
    if (write(fd, "after\n", 6) != 6) perror("after");
    printf("done, %d forks\n", before);
    return close(fd) != 0;
}
#endif
