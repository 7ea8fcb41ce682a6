/* Handlers that interrupt calls on a log that is staged: they run outside the engine, exactly as without
   it, whatever they do there and however they leave. */
#include "common.h"
#include <time.h>
#include <ucontext.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define RECORD 64
static int fd;
static sigjmp_buf out;
static volatile long handled, sender_done;

/* One record: who wrote it, which one it is, and filling that shows where it was torn. A log that grows
   beyond all reason ends the program: a signal got lost. */
static void append(char who, long number) {
    static volatile long written;
    char record[RECORD];
    if (written++ > 1000000) _exit(93);
    memset(record, who, RECORD);
    memcpy(record, &number, sizeof number);
    CHECK(write(fd, record, RECORD) == RECORD);
}

static void start_log(void) {
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    CHECK(fd >= 0);
    append('b', 0);
    if (leased(fd)) fprintf(stderr, "served\n");
}

enum order { ANY, RISING, EACH };

/* Reads the log back. Each writer's records are whole, and their numbers in this order. */
static long records(char who, enum order order) {
    static char record[RECORD];
    long found = 0, next = 0;
    CHECK(close(fd) == 0);
    int in = open(path, O_RDONLY);
    CHECK(in >= 0);
    ssize_t got;
    while ((got = read(in, record, RECORD)) == RECORD) {
        if (record[RECORD - 1] != who) continue;
        long number;
        memcpy(&number, record, sizeof number);
        for (int i = sizeof number; i < RECORD; i++) CHECK(record[i] == who);
        CHECK(order == ANY || (order == EACH ? number == next : number >= next));
        next = number + 1, found++;
    }
    CHECK(got == 0);
    fd = in;
    return found;
}

static void tick_every(int microseconds) {
    microseconds *= patience();
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void catch(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static void append_too(int signal) {
    (void)signal;
    append('h', handled++);
}

static void append_both(void) {
    const long count = 20000;
    tick_every(50);
    for (long i = 0; i < count; i++) append('m', i);
    while (handled < 100) append('x', handled);
    tick_every(0);
    CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR);
    long whole = records('m', EACH);
    CHECK(records('h', EACH) == handled);
    printf("%ld records\n", whole);
}
PART(append_in_handler) {
    start_log();
    catch(SIGALRM, append_too, SA_RESTART);
    append_both();
}

/* The handler is given to the kernel behind the library's back, so nothing keeps it out of the engine. It
   waits there for ever: a timer ends it. */
PART(append_unseen) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec end = {.it_value = {10, 0}};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &end, NULL) == 0);
    extern void restore(void) __asm__("restore");
    __asm__(".pushsection .text.restore, \"ax\"\nrestore: mov $15, %eax\nsyscall\n.popsection");
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action = {
        append_too, 0x04000000 | SA_RESTART, restore, 0};
    start_log();
    long result;
    register long size __asm__("r10") = 8;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_rt_sigaction), "D"((long)SIGALRM),
                     "S"(&action), "d"(0L), "r"(size) : "rcx", "r11", "memory");
    CHECK(result == 0);
    append_both();
}

static void jump_away(int signal) {
    (void)signal;
    handled++;
    siglongjmp(out, 1);
}
PART(jump_out) {
    volatile long number = 0;
    start_log();
    catch(SIGALRM, jump_away, 0);
    if (sigsetjmp(out, 1) == 0) tick_every(70);
    while (handled < 2000 / patience()) append('m', number++);
    tick_every(0);
    long found = records('m', RISING);
    fprintf(stderr, "%ld of %ld, %ld jumps\n", found, number, handled);
    CHECK(found > 0 && found <= number && number - found <= handled);
    puts("alive");
}

/* Signals of several kinds at once, each of which also interrupts the others' handlers. */
static volatile long kinds[65];
static const int all[] = {SIGUSR1, SIGUSR2, SIGTERM, SIGHUP};
static void append_kind(int signal) {
    append('h', __atomic_fetch_add(&handled, 1, __ATOMIC_SEQ_CST));
    __atomic_fetch_add(&kinds[signal], 1, __ATOMIC_SEQ_CST);
}
static void *send_all(void *argument) {
    for (int i = 0; i < 4000; i++) {
        CHECK(pthread_kill(*(pthread_t *)argument, all[i % 4]) == 0);
        if (i % 16 == 0) usleep(20);
    }
    sender_done = 1;
    return NULL;
}
static void append_kinds(int flags, int masked) {
    pthread_t me = pthread_self(), other;
    struct sigaction action = {.sa_handler = append_kind, .sa_flags = SA_RESTART | flags};
    start_log();
    handled = sender_done = 0;
    for (int i = 0; masked && i < 4; i++) sigaddset(&action.sa_mask, all[i]);
    for (int i = 0; i < 4; i++) CHECK(sigaction(all[i], &action, NULL) == 0);
    CHECK(pthread_create(&other, NULL, send_all, &me) == 0);
    long number = 0;
    while (!sender_done) append('m', number++);
    CHECK(pthread_join(other, NULL) == 0);
    for (int i = 0; i < 4; i++) {
        CHECK(kinds[all[i]] > 0);
        kinds[all[i]] = 0;
    }
    CHECK(records('m', EACH) == number);
    CHECK(records('h', masked ? EACH : ANY) == handled);
}
PART(many_kinds) {
    append_kinds(0, 1), append_kinds(0, 0), append_kinds(SA_NODEFER, 0);
    puts("all kinds");
}

static volatile long next_value, wrong, seen_code;
static void in_order(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_value.sival_int != next_value++) wrong++;
    seen_code = info->si_code;
    append('h', handled++);
}
static void *send_values(void *argument) {
    for (int i = 0; i < 3000; i++) {
        union sigval value = {.sival_int = i};
        while (sigqueue(getpid(), SIGRTMIN, value) != 0) sched_yield();
    }
    return argument;
}
PART(values_in_order) {
    struct sigaction action = {.sa_sigaction = in_order, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGRTMIN, &action, NULL) == 0);
    start_log();
    pthread_t other;
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    CHECK(pthread_create(&other, NULL, send_values, NULL) == 0);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    long number = 0;
    while (next_value < 3000) append('m', number++);
    CHECK(pthread_join(other, NULL) == 0);
    printf("wrong %ld, code %ld\n", wrong, seen_code);
    CHECK(records('m', EACH) == number);
}

static void count(int signal) { (void)signal, handled++; }
static void show(const char *what, const struct sigaction *action, void *expected) {
    printf("%s: %s, flags %x, mask %d%d%d\n", what,
           (void *)action->sa_handler == expected ? "as set"
           : action->sa_handler == SIG_DFL        ? "default"
           : action->sa_handler == SIG_IGN        ? "ignored"
                                                  : "another",
           (unsigned)action->sa_flags, sigismember(&action->sa_mask, SIGUSR2),
           sigismember(&action->sa_mask, SIGBUS), sigismember(&action->sa_mask, SIGUSR1));
}
static void look(const char *what, int signal, void *expected) {
    struct sigaction action;
    CHECK(sigaction(signal, NULL, &action) == 0);
    show(what, &action, expected);
}
PART(views) {
    struct sigaction action = {.sa_handler = count}, before;
    static const int flags[] = {0, SA_RESTART, SA_NODEFER, SA_RESETHAND, SA_ONSTACK, SA_SIGINFO, SA_NOCLDSTOP};
    start_log();
    sigaddset(&action.sa_mask, SIGUSR2), sigaddset(&action.sa_mask, SIGBUS);
    for (int i = 0; i < 7; i++) {
        append('m', i);
        action.sa_flags = flags[i];
        CHECK(sigaction(SIGUSR1, &action, &before) == 0);
        show("before", &before, count);
        look("set", SIGUSR1, count);
    }
    CHECK(signal(SIGUSR1, SIG_IGN) == count);
    look("ignored", SIGUSR1, count);
    CHECK(signal(SIGUSR1, count) == SIG_IGN);
    look("signal", SIGUSR1, count);
    siginterrupt(SIGUSR1, 1);
    look("interrupts", SIGUSR1, count);
    CHECK(signal(SIGUSR1, SIG_DFL) == count && signal(SIGUSR1, count) == SIG_DFL);
    look("signal after", SIGUSR1, count);
    siginterrupt(SIGUSR1, 0);
    CHECK(sysv_signal(SIGUSR1, count) == count);
    look("sysv_signal", SIGUSR1, count);
    CHECK(raise(SIGUSR1) == 0 && handled == 1);
    look("used", SIGUSR1, count);
    CHECK(sigset(SIGUSR1, count) == SIG_DFL);
    look("sigset", SIGUSR1, count);
    CHECK(sigset(SIGUSR1, SIG_HOLD) == count && raise(SIGUSR1) == 0 && handled == 1);
    CHECK(sigset(SIGUSR1, count) == SIG_HOLD && handled == 2);
    CHECK(sigignore(SIGUSR1) == 0);
    look("sigignore", SIGUSR1, count);
    errno = 0;
    CHECK(signal(SIGKILL, count) == SIG_ERR && errno == EINVAL);
    CHECK(signal(0, count) == SIG_ERR && signal(99, count) == SIG_ERR);
    CHECK(sigaction(SIGSTOP, &action, NULL) == -1 && sigaction(SIGKILL, NULL, &before) == 0);
    puts("done");
}

static int status_of(void (*work)(void)) {
    pid_t child = fork();
    int status;
    CHECK(child >= 0);
    if (child == 0) work(), _exit(0);
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
static void twice(void) {
    catch(SIGUSR1, append_too, SA_RESETHAND);
    tick_every(0);
    for (long i = 0; i < 100; i++) append('m', i);
    raise(SIGUSR1);
    CHECK(handled == 1);
    raise(SIGUSR1);
}
static void *kill_while_writing(void *argument) {
    pthread_t target = *(pthread_t *)argument;
    usleep(2000);
    CHECK(pthread_kill(target, SIGUSR2) == 0);
    while (!handled) usleep(100);
    CHECK(pthread_kill(target, SIGUSR2) == 0);
    usleep(100000);
    sender_done = 1;
    return NULL;
}
static void twice_while_writing(void) {
    pthread_t me = pthread_self(), other;
    catch(SIGUSR2, append_too, SA_RESETHAND);
    CHECK(pthread_create(&other, NULL, kill_while_writing, &me) == 0);
    for (long i = 0; !sender_done; i++) append('m', i);
}
PART(reset_hand) {
    start_log();
    append('m', 0);
    printf("twice %d\n", status_of(twice));
    printf("twice while writing %d\n", status_of(twice_while_writing));
}

static void counts(int signal) {
    (void)signal;
    handled++;
}
static void in_child_and_parent(void) {
    int status;
    catch(SIGUSR1, counts, SA_RESETHAND);
    pid_t child = vfork();
    if (!child) {
        kill(getpid(), SIGUSR1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && handled == 1);
    raise(SIGUSR1);
    _exit((int)handled);
}
PART(reset_hand_of_a_child) {
    start_log();
    printf("each once %d\n", status_of(in_child_and_parent));
}

static volatile int depth, deepest;
static void again(int signal) {
    if (++depth > deepest) deepest = depth;
    append('h', handled++);
    if (handled < 4) raise(signal);
    depth--;
}
PART(no_defer) {
    start_log();
    catch(SIGUSR1, again, SA_NODEFER);
    append('m', 0), raise(SIGUSR1), append('m', EACH);
    printf("%d deep with it\n", deepest);
    deepest = handled = 0;
    catch(SIGUSR1, again, 0);
    raise(SIGUSR1);
    printf("%d deep without, handled %ld\n", deepest, handled);
}

static char stack[1 << 16];
static volatile int on_stack;
static void where(int signal) {
    char here;
    (void)signal;
    on_stack = &here >= stack && &here < stack + sizeof stack;
    append('h', handled++);
}
PART(alternate_stack) {
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    start_log();
    for (int flags = 0; flags < 2; flags++) {
        catch(SIGALRM, where, flags ? SA_ONSTACK | SA_RESTART : SA_RESTART);
        long before = handled, number = 0;
        tick_every(50);
        while (handled < before + 200) append('m', number++);
        tick_every(0);
        printf("on the alternate stack: %d\n", on_stack);
    }
}

static volatile long bad_mask, bad_context;
static void check_masks(int signal, siginfo_t *info, void *context) {
    sigset_t now;
    (void)info;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    if (!sigismember(&now, signal) || !sigismember(&now, SIGUSR2) || !sigismember(&now, SIGHUP) ||
        sigismember(&now, SIGTERM))
        bad_mask++;
    sigset_t *saved = &((ucontext_t *)context)->uc_sigmask;
    if (sigismember(saved, signal) || sigismember(saved, SIGUSR2) || !sigismember(saved, SIGHUP))
        bad_context++;
    append('h', handled++);
}
PART(masks_in_handler) {
    struct sigaction action = {.sa_sigaction = check_masks, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t held, now;
    sigaddset(&action.sa_mask, SIGUSR2);
    sigemptyset(&held), sigaddset(&held, SIGHUP);
    CHECK(sigprocmask(SIG_BLOCK, &held, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    start_log();
    tick_every(50);
    for (long i = 0; handled < 1000; i++) {
        append('m', i);
        CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
        CHECK(sigismember(&now, SIGHUP) && !sigismember(&now, SIGALRM) && !sigismember(&now, SIGTERM));
    }
    tick_every(0);
    printf("wrong in the handler %ld, in the context %ld\n", bad_mask, bad_context);
}

static volatile int code, value;
static void note(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    code = info->si_code;
    value = info->si_code == SI_TIMER || info->si_code == SI_QUEUE ? info->si_value.sival_int : 0;
    append('h', handled++);
}
PART(information) {
    struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 7};
    struct itimerspec every = {{0, 50000}, {0, 50000}};
    timer_t timer;
    long number = 0;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    start_log();
    tick_every(50);
    while (handled < 500) append('m', number++);
    tick_every(0);
    printf("interval timer: code %d\n", code);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &every, NULL) == 0);
    while (handled < 1000) append('m', number++);
    CHECK(timer_delete(timer) == 0);
    printf("timer: code %d, value %d\n", code, value);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    printf("kill: code %d\n", code);
}

/* A thread that is cancelled, at its calls or at any instant, is not cancelled inside the engine: others
   go on. */
static void *append_for_ever(void *kind) {
    int old;
    pthread_setcanceltype(*(int *)kind, &old);
    for (long i = 0;; i++) append('x', i);
    return NULL;
}
static void cancel_many(int kind) {
    start_log();
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, append_for_ever, &kind) == 0);
        usleep(200 + i);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        append('m', i);
    }
    printf("%ld records\n", records('m', EACH));
}
PART(cancelled_at_calls) { cancel_many(PTHREAD_CANCEL_DEFERRED); }
PART(cancelled_anywhere) { cancel_many(PTHREAD_CANCEL_ASYNCHRONOUS); }

int main(int argc, char **argv) {
#define ROW(name) {#name, name}
    static const struct part parts[] = {
        ROW(append_in_handler), ROW(append_unseen),    ROW(jump_out),   ROW(many_kinds),
        ROW(values_in_order),   ROW(views),            ROW(reset_hand), ROW(reset_hand_of_a_child), ROW(no_defer),
        ROW(alternate_stack),   ROW(masks_in_handler), ROW(information), ROW(cancelled_at_calls), ROW(cancelled_anywhere),
        {0}};
    return run_part(parts, argc, argv);
}
