// Opens files, and writes to them for the first time and after somebody has looked, while so many other threads fork again
// and again.
//   waits FILE ROUNDS THREADS
// Says on standard error what was refused.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int go;
static _Atomic int forks;

static void *makes(void *nothing) {
    for (; go; forks++) {
        pid_t child = fork();
        if (!child) _exit(0);
        waitpid(child, NULL, 0);
    }
    return nothing;
}

int main(int count, char **args) {
    if (count < 4) return 2;
    enum { FILES = 20, MEMORY = 64 << 20, MOST = 16 };
    // A fork takes a while.
    memset(malloc(MEMORY), 1, MEMORY);
    pthread_t threads[MOST];
    int started = atoi(args[3]);
    if (started > MOST) return 2;
    go = 1;
    for (int i = 0; i < started; i++) pthread_create(&threads[i], NULL, makes, NULL);
    for (int round = 0; round < atoi(args[2]); round++) {
        int flags = O_RDWR | O_CREAT | O_TRUNC | (round % 2 ? O_CLOEXEC : O_APPEND), fds[FILES];
        char name[4100], content[16] = "";
        for (int i = 0; i < FILES; i++) {
            snprintf(name, sizeof name, "%s.%d", args[1], i);
            fds[i] = open(name, flags, 0600);
            if (fds[i] < 0) return perror("open"), 1;
            if (write(fds[i], "first\n", 6) != 6) perror("write");
            int other = open(name, O_RDONLY);
            if (other < 0 || close(other)) perror("look");
            if (write(fds[i], "next\n", 5) != 5) perror("write again");
            if (pread(fds[i], content, sizeof content, 0) != 11 || strcmp(content, "first\nnext\n")) fprintf(stderr, "%s: %s\n", name, content);
        }
        for (int i = 0; i < FILES; i++)
            if (close(fds[i])) perror("close");
        snprintf(name, sizeof name, "%s.XXXXXX", args[1]);
        int temporary = mkostemp(name, O_CLOEXEC);
        if (temporary < 0 || fcntl(temporary, F_GETFD) != FD_CLOEXEC || close(temporary) || unlink(name)) perror("mkostemp");
    }
    fprintf(stderr, forks > 5 ? "" : "few forks\n");
    go = 0;
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return 0;
}
