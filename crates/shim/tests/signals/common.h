/* What the signal programs share. Each runs twice, plainly and under the library, and must print the
   same and end the same; whether a file was served goes to stderr, which is not compared. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1 << 20)
#define CHECK(x)                                                       \
    do {                                                               \
        if (!(x)) {                                                    \
            printf("line %d: %s: %s\n", __LINE__, #x, strerror(errno)); \
            fflush(stdout);                                            \
            _exit(90);                                                 \
        }                                                              \
    } while (0)

static const char *path;

/* How many times as long everything takes, as the lab says of a slow processor: what ticks must leave it some time. */
static __attribute__((unused)) int patience(void) {
    const char *times = getenv("ADIT_TEST_PATIENCE");
    return times ? atoi(times) : 1;
}

/* Whether the library maps the file; never true in a plain run. */
static int mapped(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, path) != NULL;
    if (maps) fclose(maps);
    return found;
}

/* Whether a lease on the file lets a monitor stage it; never true in a plain run. */
static inline int leased(int fd) {
    char line[512], inode[64];
    struct stat stat;
    int found = 0;
    CHECK(fstat(fd, &stat) == 0);
    snprintf(inode, sizeof inode, ":%lu 0 EOF", (unsigned long)stat.st_ino);
    /* The kernel gives its list in pieces: what others take off it meanwhile moves a line out of sight. */
    for (int i = 0; i < 10 && !found; i++) {
        FILE *locks = fopen("/proc/locks", "r");
        while (locks && fgets(line, sizeof line, locks))
            found |= strstr(line, "LEASE") != NULL && strstr(line, inode) != NULL;
        if (locks) fclose(locks);
    }
    return found;
}

/* Opens the file, one megabyte of known bytes, and uses it until it is served. */
static inline int promoted(int flags) {
    static char bytes[SIZE];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    for (int i = 0; i < SIZE; i++) bytes[i] = (char)(i / 4096);
    CHECK(write(fd, bytes, SIZE) == SIZE);
    CHECK(close(fd) == 0);
    fd = open(path, flags);
    CHECK(fd >= 0);
    for (int i = 0; i < 8; i++) CHECK(pread(fd, bytes, 65536, i * 65536) == 65536);
    if (mapped()) fprintf(stderr, "served\n");
    return fd;
}

/* Shortens the file from another process. */
static inline void shorten(long to) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(truncate(path, to) == 0 ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

#define PART(name) static void name(void)
struct part {
    const char *name;
    void (*run)(void);
};

static int run_part(const struct part *parts, int argc, char **argv) {
    if (argc < 3) return 91;
    path = argv[2];
    for (; parts->name; parts++)
        if (strcmp(parts->name, argv[1]) == 0) {
            parts->run();
            fflush(stdout);
            return 0;
        }
    return 92;
}
