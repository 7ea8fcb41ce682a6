// One thread writes to FILE, or moves another in its directory, or cuts one in an empty directory by its path, while another
// forks; says how many children had a descriptor of the pool (PATH: part of its path), another one of the directory (PATH), or
// one in the empty one (PATH), and how often a closed standard descriptor was one to write to, or was the directory's.
//   forks writes|moves|cuts FILE PATH
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static void *moves(void *dir) {
    int at = open(dir, O_PATH);
    close(openat(at, "here", O_CREAT | O_WRONLY, 0600));
    for (long i = 0; !ended; i++) written += renameat(at, i % 2 ? "there" : "here", at, i % 2 ? "here" : "there") == 0;
    return close(at), NULL;
}

static void *cuts(void *dir) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cut", (char *)dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    for (long i = 0; !ended; i++) written += truncate(path, 10 + i % 2) == 0;
    return NULL;
}

static int ends(const char *text, const char *with) {
    size_t len = strlen(text), less = strlen(with);
    return len >= less && !strcmp(text + len - less, with);
}

static int has(const char *path, int moving) {
    int found = 0;
    DIR *open = opendir("/proc/self/fd");
    struct dirent *entry;
    while ((entry = readdir(open))) {
        char link[4096] = "";
        if (readlinkat(dirfd(open), entry->d_name, link, sizeof link - 1) > 0)
            found += moving ? ends(link, path) : !!strstr(link, path);
    }
    // The child of who moves has the one that is the program's.
    return found > moving;
}

int main(int count, char **args) {
    if (count < 4) return 2;
    int writing = !strcmp(args[1], "writes"), moving = !strcmp(args[1], "moves");
    fd = open(args[2], O_RDWR | O_CREAT, 0600);
    if (pwrite(fd, "staged", 6, 0) != 6) return 1;
    int out = dup(1), had = 0, accepted = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, writing ? writes : moving ? moves : cuts, args[3]);
    while (!written) usleep(1000);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (!child) _exit(has(args[3], moving));
        int status;
        waitpid(child, &status, 0);
        had += status != 0;
    }
    close(2);
    // A write that has begun before may have the number.
    for (long before = written; written < before + 2;) usleep(1000);
    struct stat dir, now;
    if (stat(args[3], &dir) && !writing) return 1;
    for (int i = 0; writing && i < 100000; i++) accepted += write(2, "oops\n", 5) == 5;
    for (long before = written; !writing && written < before + 50;) accepted += !fstat(2, &now) && now.st_ino == dir.st_ino;
    ended = 1;
    pthread_join(thread, NULL);
    dprintf(out, "%d %d\n", had, accepted);
    return 0;
}
