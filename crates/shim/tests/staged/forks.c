// One thread writes to FILE while another forks; says how many children had a descriptor of the pool (POOL: part of its
// path), and how many of its writes to a closed standard descriptor were accepted.
//   forks FILE POOL
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int ended;
static volatile long written;
static int fd;

static void *writes(void *none) {
    char bytes[64] = "";
    for (long i = 0; !ended; i++) written += pwrite(fd, bytes, sizeof bytes, i % 9999 * 64) > 0;
    return none;
}

static int has(const char *pool) {
    DIR *open = opendir("/proc/self/fd");
    struct dirent *entry;
    while ((entry = readdir(open))) {
        char link[4096] = "";
        if (readlinkat(dirfd(open), entry->d_name, link, sizeof link - 1) > 0 && strstr(link, pool)) return 1;
    }
    return 0;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    fd = open(args[1], O_RDWR | O_CREAT, 0600);
    if (pwrite(fd, "staged", 6, 0) != 6) return 1;
    int out = dup(1), had = 0, accepted = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, writes, NULL);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (!child) _exit(has(args[2]));
        int status;
        waitpid(child, &status, 0);
        had += status != 0;
    }
    close(2);
    // A write that has begun before may have the number.
    for (long before = written; written < before + 2;) usleep(1000);
    for (int i = 0; i < 100000; i++) accepted += write(2, "oops\n", 5) == 5;
    ended = 1;
    pthread_join(thread, NULL);
    dprintf(out, "%d %d\n", had, accepted);
    return 0;
}
