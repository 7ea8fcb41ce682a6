// Threads write to files while others start commands, SPAWNS each; then every file has all lines of each of its threads, in
// order. Says on standard error what is wrong, and which files are not staged any more.
//   busy FILE SPAWNS WAYS [keeps]   WAYS: letters of s(ystem), p(open), a (posix_spawn), v(fork).
// With `keeps`, commands get some of the files as well.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "staged.h"

extern char **environ;

enum { FILES = 4, THREADS = 2 };
static struct file {
    char path[4000];
    int fd, threads;
} files[FILES];
static struct writer {
    pthread_t thread;
    struct file *file;
    int nth;
} writers[FILES][THREADS];
static volatile int ended;
static int spawns;

static void *writes(void *at) {
    struct writer *writer = at;
    char line[32];
    long done = 0;
    for (; !ended && done < 1 << 20; done++) {
        int len = sprintf(line, "%d %ld\n", writer->nth, done), wrote = write(writer->file->fd, line, len);
        if (wrote != len) {
            fprintf(stderr, "write: %d %s\n", wrote, strerror(errno));
            exit(1);
        }
        // In mode atomic some hundred thousand writes have room between two commands, each of which commits them.
        if (done % 16 == 15) usleep(1000);
    }
    return (void *)done;
}

// Files that are opened while commands start, and which these do not get.
static void *opens(void *path) {
    char name[4100];
    snprintf(name, sizeof name, "%s.new", path);
    while (!ended) {
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, "line\n", 5) != 5 || close(fd) || unlink(name)) {
            fprintf(stderr, "a new file: %s\n", strerror(errno));
            exit(1);
        }
    }
    return NULL;
}

static void *starts(void *way) {
    char *program[] = {"true", NULL};
    for (int i = 0; i < spawns; i++) {
        pid_t child;
        int status = 1;
        switch (*(char *)way) {
        case 's': status = system("true"); break;
        case 'p': status = pclose(popen("true", "r")); break;
        case 'a':
            if (posix_spawn(&child, "/bin/true", NULL, NULL, program, environ)) break;
            waitpid(child, &status, 0);
            break;
        default:
            if (!(child = vfork())) {
                execve("/bin/true", program, environ);
                _exit(1);
            }
            waitpid(child, &status, 0);
        }
        if (status) fprintf(stderr, "%c: %d\n", *(char *)way, status);
    }
    return NULL;
}

static void check(struct file *file, long *written) {
    FILE *stream = fopen(file->path, "re");
    long thread, number, next[THREADS] = {0};
    while (fscanf(stream, "%ld %ld", &thread, &number) == 2) {
        if (thread < 0 || thread >= THREADS || number != next[thread]++) {
            fprintf(stderr, "%s: %ld %ld\n", file->path, thread, number);
            break;
        }
    }
    for (int i = 0; i < THREADS; i++)
        if (next[i] != written[i]) fprintf(stderr, "%s: %ld of %ld\n", file->path, next[i], written[i]);
    fclose(stream);
}

int main(int count, char **args) {
    if (count < 4) return 2;
    spawns = atoi(args[2]);
    pthread_t starters[16], opener;
    int ways = strlen(args[3]), all = count > 4 ? FILES : FILES / 2;
    for (int i = 0; i < all; i++) {
        struct file *file = &files[i];
        int flags = (i < FILES / 2 ? O_CLOEXEC : 0) | (i % 2 ? 0 : O_APPEND);
        file->threads = i % 2 ? 1 : THREADS;
        snprintf(file->path, sizeof file->path, "%s.%d", args[1], i);
        file->fd = open(file->path, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
        if (file->fd < 0) return perror("open"), 1;
        for (int j = 0; j < file->threads; j++) {
            struct writer *writer = &writers[i][j];
            *writer = (struct writer){.file = file, .nth = j};
            pthread_create(&writer->thread, NULL, writes, writer);
        }
    }
    pthread_create(&opener, NULL, opens, args[1]);
    for (int i = 0; i < ways; i++) pthread_create(&starters[i], NULL, starts, &args[3][i]);
    for (int i = 0; i < ways; i++) pthread_join(starters[i], NULL);
    ended = 1;
    pthread_join(opener, NULL);
    for (int i = 0; i < all; i++) {
        struct file *file = &files[i];
        long written[THREADS] = {0};
        for (int j = 0; j < file->threads; j++) pthread_join(writers[i][j].thread, (void **)&written[j]);
        if (!is_staged(file->fd)) fprintf(stderr, "%d: plain\n", i);
        if (close(file->fd)) perror("close");
        check(file, written);
    }
    return 0;
}
