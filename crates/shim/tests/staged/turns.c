// Threads that write to one description at once, long parts and short ones, while another looks: what is behind a part
// is never in the file before it, or the one who looks would find zeros.
//   turns FILE ROUNDS [left]   left: a handler leaves the writes by a jump
// Some parts are there, and read so often before that they are mapped where a mode maps.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONG = 1 << 19, SHORT = 16 };

static int fd, rounds;
static atomic_int writing = 2;
static long from, holes;

static void *write_parts(void *len) {
    size_t size = *(int *)len;
    char *part = malloc(size);
    memset(part, 'x', size);
    for (int i = 0; i < rounds * (size == SHORT ? 20 : 1); i++) {
        if (write(fd, part, size) != (ssize_t)size) {
            perror("write");
            exit(1);
        }
    }
    free(part);
    writing--;
    return 0;
}

// What was whole once need not be looked at again.
static void look(char *room) {
    struct stat stat;
    fstat(fd, &stat);
    while (from < stat.st_size) {
        long len = stat.st_size - from < LONG ? stat.st_size - from : LONG;
        if (pread(fd, room, len, from) != len) perror("pread");
        if (memchr(room, 0, len)) holes++;
        from += len;
    }
}

static sigjmp_buf back;
static pthread_t writer;
static atomic_int done;

// Not a fault, but sent like one.
static void jumps(int _) {
    if (write(fd, "handler\n", 8) != 8) perror("in a handler");
    siglongjmp(back, 1);
}

static void *is_interrupted(void *nothing) {
    static char part[LONG];
    memset(part, 'x', sizeof part);
    for (volatile int i = 0; i < rounds; i++)
        if (!sigsetjmp(back, 1) && write(fd, part, sizeof part) != sizeof part) perror("write");
    done = 1;
    return nothing;
}

static void *sends(void *nothing) {
    while (!done) {
        pthread_kill(writer, SIGSEGV);
        usleep(300);
    }
    return nothing;
}

// Such a handler waits for the write, as others do: it may use the file, and leave by a jump.
static int leaves(void) {
    pthread_t sender;
    signal(SIGSEGV, jumps);
    writer = pthread_self();
    // Not before there is a place to jump to.
    if (!sigsetjmp(back, 1)) pthread_create(&sender, 0, sends, NULL);
    is_interrupted(NULL);
    pthread_join(sender, NULL);
    if (write(fd, "last\n", 5) != 5) perror("the last");
    puts("went on");
    return 0;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    int sizes[2] = {LONG, SHORT};
    pthread_t threads[2];
    char *room = malloc(LONG);
    rounds = atoi(args[2]);
    int is_left = count > 3;
    fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (is_left) return leaves();
    memset(room, 'x', LONG);
    for (int i = 0; i < 4; i++) {
        if (write(fd, room, LONG) != LONG) return 1;
    }
    for (int i = 0; i < 20; i++) {
        if (i % 4 == 0) lseek(fd, 0, SEEK_SET);
        if (read(fd, room, LONG) != LONG) return 1;
    }
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, write_parts, &sizes[i]);
    while (writing) look(room);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    look(room);
    printf("%ld bytes, %ld times a hole\n", (long)lseek(fd, 0, SEEK_CUR), holes);
    return close(fd) != 0;
}
