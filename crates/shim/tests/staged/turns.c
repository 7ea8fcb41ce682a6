// Threads that write to one description at once, long parts and short ones, while another looks: what is behind a part
// is never in the file before it, or the one who looks would find zeros.
//   turns FILE ROUNDS [left|cut]   left: a handler leaves the writes by a jump; cut: a part is written of which not all can
//   be read
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
#include <sys/mman.h>
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

// Not a fault, but sent like one. The last one may come when there is no place to jump to any more.
static void jumps(int _) {
    if (write(fd, "handler\n", 8) != 8) perror("in a handler");
    if (!done) siglongjmp(back, 1);
}

static void *is_interrupted(void *nothing) {
    static char part[LONG];
    memset(part, 'x', sizeof part);
    for (volatile int i = 0; i < rounds; i++)
        if (!sigsetjmp(back, 1) && write(fd, part, sizeof part) != sizeof part) perror("write");
    done = 1;
    return nothing;
}

// The first one is to come in the first write, which the kernel does in some modes.
static void *sends(void *nothing) {
    unsigned state = getpid();
    do {
        usleep(rand_r(&state) % 300);
        pthread_kill(writer, SIGSEGV);
    } while (!done);
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

enum { CUT = 4 << 20, OTHERS = 16 };

static char *cut;

static void *is_cut(void *nothing) {
    usleep(3000);
    if (write(fd, cut, CUT + 4096) != CUT) perror("a cut part");
    writing = 0;
    return nothing;
}

static void *write_now_and_then(void *seed) {
    unsigned state = (unsigned)(long)seed;
    while (writing) {
        usleep(rand_r(&state) % 3000);
        if (write(fd, "xxxxxxxxxxxxxxxx", SHORT) != SHORT) perror("write");
    }
    return NULL;
}

// Whoever writes next writes behind what there is of the part: no byte is left that nobody wrote, and nobody is told of
// bytes before they are there.
static int cuts(const char *path, char *room) {
    long ahead = 0;
    cut = mmap(NULL, CUT + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(cut, 'x', CUT);
    mprotect(cut + CUT, 4096, PROT_NONE);
    for (int i = 0; i < rounds; i++) {
        pthread_t threads[OTHERS + 1];
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (write(fd, "x", 1) != 1) return 1;
        writing = 1;
        pthread_create(&threads[OTHERS], 0, is_cut, NULL);
        for (long t = 0; t < OTHERS; t++) pthread_create(&threads[t], 0, write_now_and_then, (void *)(t + 1));
        while (writing) {
            struct stat stat;
            long at = lseek(fd, 0, SEEK_CUR);
            fstat(fd, &stat);
            ahead += at > stat.st_size;
        }
        for (int t = 0; t <= OTHERS; t++) pthread_join(threads[t], 0);
        from = 0;
        look(room);
        struct stat stat;
        fstat(fd, &stat);
        ahead += lseek(fd, 0, SEEK_CUR) != stat.st_size;
        close(fd);
    }
    printf("%ld times a hole, %ld times ahead\n", holes, ahead);
    return 0;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    int sizes[2] = {LONG, SHORT};
    pthread_t threads[2];
    char *room = malloc(LONG);
    rounds = atoi(args[2]);
    int is_left = count > 3 && !strcmp(args[3], "left");
    if (count > 3 && !is_left) return cuts(args[1], room);
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
