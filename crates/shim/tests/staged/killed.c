// Children of vfork use a file that their parent has staged, and are killed at any moment of it; the parent goes on.
//   killed FILE ROUNDS SEED MICROSECONDS   at most so long after they have begun
// Says on standard error what is wrong, and on standard output how many children had written before they died.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "staged.h"

static volatile pid_t child;
static unsigned delay;

static void *kills(void *nothing) {
    while (!child) ;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < delay * 1000L);
    kill(child, SIGKILL);
    return nothing;
}

int main(int count, char **args) {
    if (count < 5) return 2;
    srand(atoi(args[3]));
    int rounds = atoi(args[2]), wrote = 0;
    for (int round = 0; round < rounds; round++) {
        pthread_t killer;
        char content[64] = "", expected[64];
        int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | (round % 2 ? O_APPEND : 0), status;
        int fd = open(args[1], flags, 0600);
        if (fd < 0 || write(fd, "before\n", 7) != 7) return perror("before"), 1;
        if (!is_staged(fd)) return fprintf(stderr, "%d: not staged\n", round), 1;
        child = 0;
        delay = rand() % atoi(args[4]);
        pthread_create(&killer, NULL, kills, NULL);
        pid_t made = vfork();
        if (!made) {
            child = getpid();
            if (dup2(fd, 99) != 99) _exit(8);
            _exit(write(99, "child\n", 6) != 6);
        }
        pthread_join(killer, NULL);
        if (waitpid(made, &status, 0) != made) return perror("waitpid"), 1;
        if (write(fd, "after\n", 6) != 6) return perror("after"), 1;
        if (fsync(fd) || close(fd)) return perror("close"), 1;
        fd = open(args[1], O_RDONLY);
        if (read(fd, content, sizeof content - 1) < 0) return perror("read"), 1;
        close(fd);
        int has = strstr(content, "child") != NULL;
        snprintf(expected, sizeof expected, "before\n%safter\n", has ? "child\n" : "");
        if (strcmp(content, expected) || (!status && !has) || (WIFEXITED(status) && status))
            return fprintf(stderr, "%d: %x, after %u us: %s\n", round, status, delay, content), 1;
        wrote += has;
    }
    printf("%d\n", wrote);
    return 0;
}
