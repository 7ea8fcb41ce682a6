/* Faults and dispositions. */
#include "common.h"
#include <spawn.h>

extern char **environ;
static sigjmp_buf out;
static volatile sig_atomic_t calls;
static void *volatile fault_address;
static volatile int fault_code;
static char *volatile nowhere;
static void *volatile null;

static void jump_out(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    calls++;
    fault_address = info->si_addr;
    fault_code = info->si_code;
    siglongjmp(out, 1);
}

static void count(int signal) {
    (void)signal;
    calls++;
}

static void say(int signal) {
    char text[] = "handler 00\n";
    text[8] += signal / 10, text[9] += signal % 10;
    if (write(1, text, sizeof text - 1) < 0) _exit(93);
}

static void install(int signal, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static void *short_read(int fd) {
    static char buffer[65536];
    shorten(SIZE / 2);
    printf("whole %zd\n", pread(fd, buffer, sizeof buffer, 0));
    printf("cut %zd\n", pread(fd, buffer, sizeof buffer, SIZE / 2 - 1000));
    printf("behind %zd\n", pread(fd, buffer, sizeof buffer, SIZE / 2 + 65536));
    return NULL;
}

PART(shortened) { short_read(promoted(O_RDONLY)); }

PART(shortened_write) {
    int fd = promoted(O_RDWR);
    char bytes[1000] = "new";
    CHECK(pwrite(fd, bytes, 100, 5000) == 100);
    shorten(SIZE / 2);
    printf("write %zd\n", pwrite(fd, bytes, 1000, SIZE / 2 - 500));
    printf("size %ld\n", (long)lseek(fd, 0, SEEK_END));
}

/* Takes our handler away behind the library: then the same read must kill, which shows that the
   other tests do fault. */
PART(sabotaged) {
    int fd = promoted(O_RDONLY);
    struct { void *handler; long flags; void *restorer; long mask; } none = {0};
    long result;
    register long size __asm__("r10") = 8;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(SYS_rt_sigaction), "D"(SIGBUS), "S"(&none), "d"(0), "r"(size)
                     : "rcx", "r11", "memory");
    CHECK(result == 0);
    short_read(fd);
}

static void own_segv(int before) {
    if (before) install(SIGSEGV, jump_out, 0);
    const int fd = promoted(O_RDONLY);
    if (!before) install(SIGSEGV, jump_out, 0);
    char byte;
    for (volatile int i = 0; i < 1000; i++) {
        if (sigsetjmp(out, 1) == 0) nowhere[i] = 1;
        CHECK(fault_address == nowhere + i && fault_code == SEGV_MAPERR);
        CHECK(pread(fd, &byte, 1, i * 1000) == 1 && byte == (char)(i * 1000 / 4096));
    }
    printf("calls %d\n", (int)calls);
    short_read(fd);
}
PART(own_segv_before) { own_segv(1); }
PART(own_segv_after) { own_segv(0); }

PART(own_bus) {
    int fd = promoted(O_RDONLY);
    install(SIGBUS, jump_out, 0);
    char *own = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(own != MAP_FAILED);
    short_read(fd);
    if (sigsetjmp(out, 1) == 0) {
        printf("byte %d\n", own[SIZE / 2 + 4096]);
    } else {
        printf("bus at %ld, code %d\n", (long)((char *)fault_address - own), fault_code);
    }
    printf("calls %d\n", (int)calls);
}

PART(bad_buffers) {
    int fd = promoted(O_RDWR);
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + 4096, 4096, PROT_NONE) == 0);
    long result;
#define SHOW(call) errno = 0, result = (call), printf(#call " = %ld, errno %d\n", result, errno)
    SHOW(pread(fd, null, 100, 0));
    SHOW(pread(fd, (char *)-8, 100, 0));
    SHOW(pread(fd, pages + 4096, 100, 0));
    SHOW(pread(fd, pages, 8192, 0));
    SHOW(pread(fd, pages + 4000, 8192, 0));
    SHOW(pwrite(fd, null, 100, 0));
    SHOW(pwrite(fd, pages, 8192, 0));
    SHOW(lseek(fd, 100, SEEK_SET));
    SHOW(read(fd, pages + 4096, 100));
    SHOW(read(fd, pages + 4000, 8192));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(read(fd, (char *)0x8000000000000000ul, 100));
}

PART(alternate_stack) {
    int fd = promoted(O_RDONLY);
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    for (int on = 0; on < 2; on++) {
        install(SIGSEGV, jump_out, on ? SA_ONSTACK : 0);
        if (sigsetjmp(out, 1) == 0) *nowhere = 1;
    }
    struct sigaction action;
    CHECK(sigaction(SIGSEGV, NULL, &action) == 0);
    printf("calls %d, flags %x\n", (int)calls, action.sa_flags);
    short_read(fd);
}

static volatile int inside;
static char *alternate_base;
static void where(int signal) {
    (void)signal;
    char local;
    inside = &local >= alternate_base && &local < alternate_base + 65536;
}
PART(stack_used) {
    promoted(O_RDONLY);
    alternate_base = malloc(65536);
    stack_t alternate = {.ss_sp = alternate_base, .ss_size = 65536};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    for (int on = 0; on < 2; on++) {
        struct sigaction action = {.sa_handler = where, .sa_flags = on ? SA_ONSTACK : 0};
        CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
        raise(SIGSEGV);
        printf("on alternate stack: %d\n", inside);
    }
}

PART(overflow) {
    promoted(O_RDONLY);
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    install(SIGSEGV, jump_out, SA_ONSTACK);
    if (sigsetjmp(out, 1) == 0) {
        volatile char *page = __builtin_frame_address(0);
        for (;;) *(page -= 4096) = 1;
    }
    printf("survived, calls %d\n", (int)calls);
}

PART(reset_hand) {
    promoted(O_RDONLY);
    struct sigaction action = {.sa_handler = say, .sa_flags = SA_RESETHAND}, old;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    kill(getpid(), SIGSEGV);
    CHECK(sigaction(SIGSEGV, NULL, &old) == 0);
    printf("default %d, flags %x\n", old.sa_handler == SIG_DFL, old.sa_flags);
    fflush(stdout);
    *nowhere = 1;
}

PART(killed_default) { promoted(O_RDONLY), kill(getpid(), SIGSEGV), puts("alive"); }
PART(killed_default_bus) { promoted(O_RDONLY), kill(getpid(), SIGBUS), puts("alive"); }
PART(killed_ignored) {
    promoted(O_RDONLY);
    signal(SIGSEGV, SIG_IGN), signal(SIGBUS, SIG_IGN);
    kill(getpid(), SIGSEGV), kill(getpid(), SIGBUS);
    puts("alive"), fflush(stdout);
    *nowhere = 1;
}
PART(killed_handled) {
    promoted(O_RDONLY);
    signal(SIGSEGV, count), signal(SIGBUS, count);
    for (int i = 0; i < 100; i++) kill(getpid(), SIGSEGV), raise(SIGBUS);
    printf("calls %d\n", (int)calls);
}
PART(null_store) { promoted(O_RDONLY), *nowhere = 1; }
PART(null_call) { promoted(O_RDONLY), ((void (*volatile)(void))nowhere)(); }
PART(fault_in_handler) {
    promoted(O_RDONLY);
    signal(SIGSEGV, say), signal(SIGBUS, say);
    struct sigaction action = {.sa_handler = say};
    sigaddset(&action.sa_mask, SIGBUS);
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    raise(SIGSEGV);
    sigset_t both;
    sigemptyset(&both), sigaddset(&both, SIGSEGV);
    CHECK(sigprocmask(SIG_BLOCK, &both, NULL) == 0);
    *nowhere = 1;
}

static void show(int signal, const char *when) {
    struct sigaction old;
    memset(&old, 0xee, sizeof old);
    CHECK(sigaction(signal, NULL, &old) == 0);
    const char *handler = old.sa_handler == SIG_DFL      ? "default"
                          : old.sa_handler == SIG_IGN    ? "ignored"
                          : old.sa_handler == count      ? "count"
                          : old.sa_handler == say        ? "say"
                          : old.sa_sigaction == jump_out ? "jump_out"
                                                         : "other";
    printf("%s: signal %d %s flags %x mask %lx restorer %d\n", when, signal, handler,
           old.sa_flags, *(long *)&old.sa_mask,
           old.sa_restorer != NULL);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
PART(views) {
    struct sigaction full = {.sa_handler = count, .sa_flags = SA_RESTART | 0x1234}, old;
    sigfillset(&full.sa_mask);
    const int signals[] = {SIGBUS, SIGSEGV, SIGUSR1, SIGALRM};
    CHECK(sigaction(SIGSEGV, &full, NULL) == 0 && sigaction(SIGUSR1, &full, NULL) == 0);
    for (int i = 0; i < 4; i++) show(signals[i], "before");
    promoted(O_RDONLY);
    for (int i = 0; i < 4; i++) show(signals[i], "after");
    for (int i = 0; i < 4; i++) {
        int s = signals[i];
        full.sa_handler = say, full.sa_flags = SA_NODEFER | SA_NOCLDSTOP | SA_ONSTACK;
        memset(&old, 0, sizeof old);
        CHECK(sigaction(s, &full, &old) == 0);
        printf("replaced %d\n", old.sa_handler == count), show(s, "sigaction");
        printf("signal %d\n", signal(s, count) == say), show(s, "signal");
        CHECK(siginterrupt(s, 1) == 0); show(s, "siginterrupt");
        printf("signal %d\n", signal(s, say) == count), show(s, "interrupting signal");
        CHECK(siginterrupt(s, 0) == 0); show(s, "no siginterrupt");
        printf("sysv %d\n", __sysv_signal(s, count) == say), show(s, "sysv_signal");
        printf("sigset %d\n", sigset(s, say) == count), show(s, "sigset");
        printf("hold %d\n", sigset(s, SIG_HOLD) == say), show(s, "hold");
        printf("held %d\n", sigset(s, say) == SIG_HOLD), show(s, "unheld");
        CHECK(sigignore(s) == 0); show(s, "sigignore");
        printf("bad %d %d\n", signal(s, SIG_ERR) == SIG_ERR, errno);
        struct sigaction info = {.sa_sigaction = jump_out, .sa_flags = SA_SIGINFO};
        CHECK(sigaction(s, &info, NULL) == 0); show(s, "siginfo");
        CHECK(signal(s, SIG_DFL) != SIG_ERR); show(s, "default");
    }
    printf("invalid %d %d\n", sigaction(SIGKILL, &full, NULL), errno);
    printf("invalid %d %d\n", sigaction(99, &full, NULL), errno);
}

/* What a new program inherits. */
PART(inherited) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "SigBlk", 6) || !strncmp(line, "SigIgn", 6)) {
            /* Of the ignored, only SIGSEGV and SIGBUS: the rest comes from whoever started us. */
            unsigned long set = strtoul(line + 7, NULL, 16);
            printf("%.6s %lx\n", line, line[3] == 'I' ? set & 0x440 : set);
        }
    fclose(status);
}

static char *self;
static void set_up_inheritance(void) {
    promoted(O_RDONLY);
    signal(SIGSEGV, SIG_IGN), signal(SIGBUS, count);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGBUS);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}
PART(inherit_exec) {
    set_up_inheritance();
    char *const arguments[] = {self, "inherited", (char *)path, NULL};
    CHECK(execv("/nonexistent", arguments) < 0);
    show(SIGSEGV, "still here"), fflush(stdout);
    execv(self, arguments);
}
PART(inherit_spawn) {
    set_up_inheritance();
    pid_t child;
    int status;
    char *const arguments[] = {self, "inherited", (char *)path, NULL};
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    show(SIGSEGV, "parent"), show(SIGBUS, "parent");
    fflush(stdout);
    child = vfork();
    if (child == 0) {
        execv(self, arguments);
        _exit(94);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char command[4096];
    snprintf(command, sizeof command, "%s inherited %s", self, path);
    CHECK(system(command) == 0);
    raise(SIGSEGV);
    puts("alive");
}

int main(int argc, char **argv) {
    self = argv[0];
#define ROW(name) {#name, name}
    static const struct part parts[] = {
        ROW(shortened), ROW(shortened_write), ROW(sabotaged), ROW(own_segv_before),
        ROW(own_segv_after), ROW(own_bus), ROW(bad_buffers), ROW(alternate_stack), ROW(stack_used),
        ROW(overflow), ROW(reset_hand), ROW(killed_default), ROW(killed_default_bus),
        ROW(killed_ignored), ROW(killed_handled), ROW(null_store), ROW(null_call),
        ROW(fault_in_handler), ROW(views), ROW(inherited), ROW(inherit_exec), ROW(inherit_spawn),
        {0}};
    return run_part(parts, argc, argv);
}
