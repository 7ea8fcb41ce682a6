/* Handlers and cancellation that interrupt calls on a served descriptor. */
#include "common.h"

#define RECORD 256
static int file;
static char buffer[65536];
static volatile long written, interrupted;
static sigjmp_buf out;

static void tick_every(int microseconds) {
    microseconds *= patience();
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void write_too(int signal) {
    (void)signal;
    static char record[RECORD];
    memset(record, 'h', RECORD);
    if (written + interrupted + 2 >= SIZE / RECORD) return;
    if (write(file, record, RECORD) != RECORD) _exit(95);
    interrupted++;
}

/* Counts the records of both kinds: each record was written once and whole. */
static void count_records(long *loop, long *handler) {
    static char all[SIZE];
    CHECK(pread(file, all, SIZE, 0) == SIZE);
    for (int at = 0; at < SIZE; at += RECORD) {
        char kind = all[at];
        for (int i = 1; i < RECORD; i++) CHECK(all[at + i] == kind);
        if (kind == 'w') ++*loop;
        if (kind == 'h') ++*handler;
    }
}

PART(write_in_handler) {
    struct sigaction action = {.sa_handler = write_too, .sa_flags = SA_RESTART};
    char record[RECORD];
    memset(record, 'w', RECORD);
    double end = now() + 1;
    long rounds = 0;
    while (now() < end) {
        file = promoted(O_RDWR);
        CHECK(lseek(file, 0, SEEK_SET) == 0);
        written = interrupted = 0;
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        tick_every(30);
        while (written + interrupted + 2 < SIZE / RECORD) {
            CHECK(write(file, record, RECORD) == RECORD);
            written++;
        }
        tick_every(0);
        CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR);
        CHECK(lseek(file, 0, SEEK_CUR) == (written + interrupted) * RECORD);
        long loop = 0, handler = 0;
        count_records(&loop, &handler);
        CHECK(loop == written && handler == interrupted);
        CHECK(close(file) == 0);
        rounds++;
    }
    fprintf(stderr, "%ld rounds, %ld in the last one's handler\n", rounds, interrupted);
    puts("all accounted for");
}

static void jump_away(int signal) {
    (void)signal;
    interrupted++;
    siglongjmp(out, 1);
}

PART(jump_out_of_reads) {
    file = promoted(O_RDWR);
    CHECK(signal(SIGALRM, jump_away) != SIG_ERR);
    double end = now() + 1;
    volatile long reads = 0;
    if (sigsetjmp(out, 1) == 0) tick_every(50);
    while (now() < end) {
        long at = (reads % 200) * 4096;
        CHECK(pread(file, buffer, 4096, at) == 4096);
        CHECK(buffer[0] == (char)(at / 4096) && buffer[4095] == (char)(at / 4096));
        if (lseek(file, 0, SEEK_CUR) > SIZE / 2) CHECK(lseek(file, 0, SEEK_SET) == 0);
        CHECK(read(file, buffer, 100) == 100);
        CHECK(write(file, buffer, 0) == 0);
        reads++;
    }
    tick_every(0);
    fprintf(stderr, "%ld reads, %ld jumps\n", reads, interrupted);
    CHECK(interrupted > 10);
    CHECK(close(file) == 0);
    puts("alive");
}

static volatile int cleaned, reading;
static void clean(void *argument) {
    (void)argument;
    cleaned++;
}
static void *read_for_ever(void *argument) {
    pthread_cleanup_push(clean, NULL);
    char bytes[4096];
    for (long i = 0;; i++) {
        ssize_t got = argument ? read(file, bytes, 1) : pread(file, bytes, 4096, i % 100 * 4096);
        if (got < 0) break;
        if (argument && i % 1000 == 0) lseek(file, 0, SEEK_SET);
        reading = 1;
    }
    pthread_cleanup_pop(0);
    return NULL;
}
static void cancel_one(void *argument) {
    pthread_t thread;
    void *result;
    reading = 0, cleaned = 0;
    CHECK(pthread_create(&thread, NULL, read_for_ever, argument) == 0);
    while (!reading) usleep(100);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    printf("cancelled %d, cleaned %d\n", result == PTHREAD_CANCELED, cleaned);
}
PART(cancelled) {
    file = promoted(O_RDONLY);
    for (int i = 0; i < 20; i++) cancel_one(NULL), cancel_one("");
}

static void *read_uncancelled(void *argument) {
    (void)argument;
    char bytes[4096];
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    reading = 1;
    while (reading == 1) CHECK(pread(file, bytes, 4096, 0) == 4096);
    CHECK(pread(file, bytes, 4096, 0) == 4096);
    return "whole";
}
PART(cancel_disabled) {
    file = promoted(O_RDONLY);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, read_uncancelled, NULL) == 0);
    while (!reading) usleep(100);
    CHECK(pthread_cancel(thread) == 0);
    usleep(1000), reading = 2;
    CHECK(pthread_join(thread, &result) == 0);
    printf("%s\n", (char *)result);
}

/* What a served read costs; not compared. */
static void *time_reads(void *argument) {
    char bytes[64];
    double start = now();
    for (int i = 0; i < 5000000; i++) pread(file, bytes, 64, i % 1000 * 64);
    fprintf(stderr, "%s: %.2f ns\n", (char *)argument, (now() - start) / 5e6 * 1e9);
    return NULL;
}
PART(cost) {
    pthread_t thread;
    file = promoted(O_RDONLY);
    time_reads("alone"), time_reads("alone");
    CHECK(pthread_create(&thread, NULL, time_reads, "a thread") == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    time_reads("one of two");
}

int main(int argc, char **argv) {
#define ROW(name) {#name, name}
    static const struct part parts[] = {ROW(write_in_handler), ROW(jump_out_of_reads),
                                        ROW(cancelled),        ROW(cancel_disabled),
                                        ROW(cost),             {0}};
    return run_part(parts, argc, argv);
}
