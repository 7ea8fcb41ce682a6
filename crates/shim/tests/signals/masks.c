/* Blocked faults: a thread that has SIGBUS or SIGSEGV blocked must survive what the kernel's read
   survives, and everything about its mask must be the kernel's. */
#include "common.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <ucontext.h>

static char buffer[65536];
static volatile sig_atomic_t calls;
static int file;

static sigset_t faults(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGBUS), sigaddset(&set, SIGSEGV);
    return set;
}

static void read_short(void) {
    printf("cut %zd\n", pread(file, buffer, sizeof buffer, SIZE / 2 - 1000));
}

static void show_mask(const char *when) {
    sigset_t now;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
    printf("%s: bus %d, segv %d\n", when, sigismember(&now, SIGBUS), sigismember(&now, SIGSEGV));
}

PART(blocked) {
    file = promoted(O_RDONLY);
    sigset_t set = faults();
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    shorten(SIZE / 2);
    read_short(), show_mask("blocked");
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    read_short(), show_mask("open");
}

static int child_reads_with_faults_open(void) {
    sigset_t set = faults();
    int status;
    pid_t child = vfork();
    if (!child) {
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        _exit(pread(file, buffer, 100, 0) != 100);
    }
    return waitpid(child, &status, 0) == child ? status : -1;
}

PART(blocked_beside_a_child) {
    file = promoted(O_RDONLY);
    sigset_t set = faults();
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    printf("child %d\n", child_reads_with_faults_open());
    shorten(SIZE / 2);
    read_short(), show_mask("blocked");
}

PART(blocked_sequential) {
    file = promoted(O_RDWR);
    CHECK(lseek(file, SIZE / 2 - 2000, SEEK_SET) == SIZE / 2 - 2000);
    CHECK(read(file, buffer, 500) == 500);
    sigset_t set = faults();
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(read(file, buffer, 500) == 500);
    printf("at %ld\n", (long)lseek(file, 0, SEEK_CUR));
    shorten(SIZE / 2);
    printf("read %zd\n", read(file, buffer, sizeof buffer));
    printf("write %zd\n", write(file, buffer, 100));
    printf("at %ld\n", (long)lseek(file, 0, SEEK_CUR));
}

static void *thread(void *blocked) {
    if (blocked) {
        sigset_t all;
        sigfillset(&all);
        CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    }
    show_mask("thread");
    for (int i = 0; i < 100; i++) CHECK(pread(file, buffer, 4096, i * 4096) == 4096);
    shorten(SIZE / 2);
    read_short();
    return NULL;
}

PART(blocked_thread) {
    file = promoted(O_RDONLY);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, thread, "") == 0 && pthread_join(id, NULL) == 0);
}

PART(inherited_by_thread) {
    file = promoted(O_RDONLY);
    sigset_t set = faults();
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, thread, NULL) == 0 && pthread_join(id, NULL) == 0);
}

PART(blocked_before) {
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    file = promoted(O_RDONLY);
    shorten(SIZE / 2);
    read_short(), show_mask("main");
}

/* Handlers run with more blocked than their thread has. */
static void reading(int signal) {
    (void)signal;
    calls++;
    read_short();
}
static void read_in_handler(void (*before)(void), void (*after)(void)) {
    struct sigaction action = {.sa_handler = reading};
    sigfillset(&action.sa_mask);
    if (before) before();
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    file = promoted(O_RDONLY);
    if (after) after();
    shorten(SIZE / 2);
    raise(SIGALRM);
}
static void again(void) {
    struct sigaction action = {.sa_handler = reading};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
}
PART(handler_before) { read_in_handler(NULL, NULL); }
PART(handler_after) { read_in_handler(NULL, again); }

PART(handler_of_segv) {
    file = promoted(O_RDONLY);
    struct sigaction action = {.sa_handler = reading};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    shorten(SIZE / 2);
    for (int i = 0; i < 100; i++) raise(SIGSEGV);
    read_short(), show_mask("after");
}

/* Calls that change the mask while they wait. */
static void waits(int (*wait_for)(const sigset_t *)) {
    struct sigaction action = {.sa_handler = reading};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    file = promoted(O_RDONLY);
    shorten(SIZE / 2);
    sigset_t alarm, all;
    sigemptyset(&alarm), sigaddset(&alarm, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &alarm, NULL) == 0);
    sigfillset(&all), sigdelset(&all, SIGALRM);
    for (int i = 0; i < 3; i++) {
        CHECK(pread(file, buffer, 100, 0) == 100);
        raise(SIGALRM);
        int result = wait_for(&all);
        printf("result %d, errno %d\n", result, errno);
    }
    show_mask("after");
}
static int by_ppoll(const sigset_t *set) { return ppoll(NULL, 0, NULL, set); }
static int by_pselect(const sigset_t *set) { return pselect(0, NULL, NULL, NULL, NULL, set); }
static int by_epoll(const sigset_t *set) {
    struct epoll_event event;
    return epoll_pwait(epoll_create1(0), &event, 1, -1, set);
}
PART(waits_sigsuspend) { waits(sigsuspend); }
PART(waits_ppoll) { waits(by_ppoll); }
PART(waits_pselect) { waits(by_pselect); }
PART(waits_epoll) { waits(by_epoll); }

/* The mask comes back by a jump. */
static sigjmp_buf jump;
PART(jumped) {
    file = promoted(O_RDONLY);
    sigset_t set = faults();
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    volatile int turn = 0;
    if (sigsetjmp(jump, 1) == 0) turn = 1;
    if (turn++ == 1) {
        CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
        CHECK(pread(file, buffer, 100, 0) == 100);
        siglongjmp(jump, 1);
    }
    shorten(SIZE / 2);
    show_mask("jumped"), read_short();
}
PART(switched) {
    file = promoted(O_RDONLY);
    sigset_t set = faults();
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    static ucontext_t context;
    volatile int turn = 0;
    CHECK(getcontext(&context) == 0);
    if (turn++ == 0) {
        CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
        CHECK(pread(file, buffer, 100, 0) == 100);
        setcontext(&context);
    }
    shorten(SIZE / 2);
    show_mask("switched"), read_short();
}

static void counting(int signal) {
    (void)signal;
    calls++;
}
PART(pending) {
    file = promoted(O_RDONLY);
    sigset_t set = faults(), now;
    signal(SIGBUS, counting), signal(SIGSEGV, counting);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    kill(getpid(), SIGBUS), raise(SIGSEGV);
    for (int i = 0; i < 200; i++) CHECK(pread(file, buffer, 100, i) == 100);
    CHECK(sigpending(&now) == 0);
    printf("pending %d %d, calls %d\n", sigismember(&now, SIGBUS), sigismember(&now, SIGSEGV),
           (int)calls);
    int got = 0;
    sigset_t bus;
    sigemptyset(&bus), sigaddset(&bus, SIGBUS);
    CHECK(sigwait(&bus, &got) == 0);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    printf("waited for %d, calls %d\n", got, (int)calls);
}
/* A fault while it is blocked kills in spite of the handler. */
PART(fault_while_blocked) {
    file = promoted(O_RDONLY);
    signal(SIGSEGV, counting);
    sigset_t set = faults();
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(pread(file, buffer, 100, 0) == 100);
    *(char *volatile *)NULL = buffer;
}

int main(int argc, char **argv) {
#define ROW(name) {#name, name}
    static const struct part parts[] = {
        ROW(blocked), ROW(blocked_beside_a_child), ROW(blocked_sequential), ROW(blocked_thread),
        ROW(inherited_by_thread),
        ROW(blocked_before), ROW(handler_before), ROW(handler_after), ROW(handler_of_segv),
        ROW(waits_sigsuspend), ROW(waits_ppoll), ROW(waits_pselect), ROW(waits_epoll), ROW(jumped),
        ROW(switched), ROW(pending), ROW(fault_while_blocked), {0}};
    return run_part(parts, argc, argv);
}
