// Stores to a file through a mapping, and sets its times itself while somebody is just settling them: another thread,
// whose first utimensat the tracer holds up, or the monitor, all of whose it does. Says which time the file has when all
// of that is over.
//   settles FILE thread|monitor
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 1 << 20, OWN = 1000000000 };
static int fd;

// What the kernel says, which nobody settles before.
static long modified(void) {
    struct stat stat;
    long result;
    __asm__ volatile("syscall" : "=a"(result)
                     : "0"(SYS_fstat), "D"((long)fd), "S"(&stat) : "rcx", "r11", "memory");
    return result ? -1 : stat.st_mtime;
}

static void set(void) {
    const struct timespec own[2] = {{OWN, 0}, {OWN, 0}};
    if (futimens(fd, own)) exit(2);
}

static void *syncs(void *none) {
    fsync(fd);
    return none;
}

int main(int count, char **args) {
    static char bytes[SIZE];
    memset(bytes, 'b', sizeof bytes);
    if ((fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600)) < 0) return 2;
    if (pwrite(fd, bytes, sizeof bytes, 0) != sizeof bytes) return 2;
    for (int times = 0; times < 8; times++)
        if (pread(fd, bytes, sizeof bytes / 2, 0) != sizeof bytes / 2) return 2;
    // The first one of this thread, which is held up before anything depends on it.
    set();
    if (pwrite(fd, "stored", 6, 8192) != 6) return 2;
    if (modified() != OWN) {
        printf("it was not stored through a mapping\n");
        return 0;
    }
    if (!strcmp(args[2], "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, syncs, NULL);
        usleep(300000);
        set();
        pthread_join(thread, NULL);
    } else {
        usleep(900000);
        set();
        usleep(2500000);
    }
    printf("%s\n", modified() == OWN ? "its own" : "another");
    return 0;
}
