// What moves nothing, is refused, or is no cancellation point must leave a staged file staged, and everything else as the
// kernel has it.
//   corners CASE FILE
#define _GNU_SOURCE
#define ADIT_WEAK
#include <adit.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "staged.h"

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

static int fd;

static void say(const char *what, long result) {
    printf("%s %ld %s\n", what, result, result < 0 ? strerror(errno) : "-");
    fflush(stdout);
}

// Nothing, in all ways.
static void nothing(void) {
    struct iovec empty[40] = {{"", 0}}, part = {"x", 1};
    char byte;
    say("no part", writev(fd, empty, 0));
    say("an empty part", writev(fd, empty, 1));
    say("empty parts", pwritev(fd, empty, 40, 3));
    say("read nothing", readv(fd, empty, 2));
    say("fewer than none", writev(fd, &part, -1));
    say("too many", writev(fd, &part, 1025));
    say("none", write(fd, "", 0));
    say("no byte", read(fd, &byte, 0));
}

// A mapping that stores reach the medium through, and one that no file has. A file that is not on a medium of that kind is
// not mapped.
static void mapped(void) {
    char *all = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    say("all", all == MAP_FAILED ? -1 : 0);
    char *odd = mmap(NULL, 4096, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 77);
    say("odd", odd == MAP_FAILED ? -1 : 0);
    say("write", write(fd, "more\n", 5));
    if (all != MAP_FAILED) say("same", memcmp(all, "before\nmore\n", 12));
}

// Messages without descriptors in them.
static void messages(void) {
    int ends[2];
    struct iovec part = {"q", 1};
    struct mmsghdr several[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    sigset_t all, before;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) perror("socketpair");
    say("messages", sendmmsg(ends[0], several, 2, 0));
    say("by number", syscall(SYS_sendmmsg, ends[0], several, 2, 0));
    say("one by number", syscall(SYS_sendmsg, ends[0], &several[0].msg_hdr, 0));
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    say("with signals blocked", sendmsg(ends[0], &several[0].msg_hdr, 0));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    say("no message", sendmsg(ends[0], (void *)8, 0));
}

// Flags by number.
static void flags(void) {
    int flags = syscall(SYS_fcntl, fd, F_GETFL, 0);
    say("flags", flags & (O_ACCMODE | O_APPEND | O_ASYNC));
    say("as by name", flags == fcntl(fd, F_GETFL));
    say("close on exec", syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC));
    say("no descriptor", syscall(SYS_fcntl, 900, F_GETFL, 0));
    // What is less than zero is no error where it is the number of a group.
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) perror("socketpair");
    say("owned", fcntl(ends[0], F_SETOWN, -getpgrp()));
    long group = syscall(SYS_fcntl, ends[0], F_GETOWN);
    // Up to here libc takes it for one.
    say("a group", getpgrp() > 4095 ? group == -getpgrp() : errno == getpgrp());
    // Not of a descriptor, whatever the first word is, also where a fault could not be handled.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    say("a thread", syscall(SYS_gettid, fd) > 0);
    pthread_sigmask(SIG_UNBLOCK, &all, NULL);
}

// More names by number.
static void names(void) {
    int other = syscall(SYS_dup, fd);
    say("write", write(other, "second\n", 7));
    say("two", syscall(SYS_dup2, fd, other) == other);
    say("three", syscall(SYS_dup3, fd, fd, 0));
    say("write", write(other, "third\n", 6));
    say("where", lseek(fd, 0, SEEK_CUR));
    say("no descriptor", syscall(SYS_dup, 900));
    close(other);
}

// A bad address by number, while a fault could not be handled.
static void address(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    say("by number", syscall(SYS_write, fd, (void *)8, 10L));
    say("again", syscall(SYS_pwrite64, fd, (void *)8, 10L, 0L));
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int asked;

static void *cuts(void *_) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    while (!asked) usleep(1000);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    pthread_mutex_lock(&mutex);
    say("cut", ftruncate(fd, 10));
    say("fill", posix_fallocate(fd, 0, 100));
    pthread_mutex_unlock(&mutex);
    return NULL;
}

// A thread that was cancelled ends at the next cancellation point, and these are none.
static void points(void) {
    pthread_t thread;
    void *ended;
    pthread_create(&thread, NULL, cuts, NULL);
    pthread_cancel(thread);
    asked = 1;
    pthread_join(thread, &ended);
    say("cancelled", ended == PTHREAD_CANCELED);
    say("held", pthread_mutex_trylock(&mutex));
}

static struct {
    char below[1 << 16], stack[1 << 15];
} alternate;

// All that a program may do in a handler, with this file and another one.
static void handles(int _) {
    char name[64];
    struct stat stat;
    if (write(fd, "first\n", 6) != 6 || fsync(fd) || fstat(fd, &stat)) perror("in a handler");
    // What a child has written to, too, is refused.
    if (adit_commit_group && adit_commit_group(&fd, 1) && errno != EINVAL) perror("a group in a handler");
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int other = open(name, O_RDWR);
    if (other < 0 || pwrite(other, "F", 1, 0) != 1 || close(other)) perror("another");
    if (ftruncate(fd, stat.st_size) || lseek(fd, 0, SEEK_END) != stat.st_size) perror("cut");
    fflush(stdout);
    pid_t child = fork();
    if (!child) _exit(write(fd, "child\n", 6) != 6);
    if (waitpid(child, NULL, 0) != child) perror("fork");
}

// Handlers on a stack as small as the kernel allows, with what a frame or two take. Nothing below it is touched.
static void handlers(int flags) {
    size_t size = getauxval(AT_MINSIGSTKSZ) + 4096;
    stack_t own = {.ss_sp = alternate.stack, .ss_size = size, .ss_flags = flags};
    struct sigaction action = {.sa_handler = handles, .sa_flags = SA_ONSTACK};
    memset(alternate.below, 'A', sizeof alternate.below);
    if (sigaltstack(&own, NULL)) perror("sigaltstack");
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    size_t whole = 0;
    while (whole < sizeof alternate.below && alternate.below[whole] == 'A') whole++;
    if (getenv("DEEP")) fprintf(stderr, "%zd bytes below the stack\n", sizeof alternate.below - whole);
    say("below the stack", whole == sizeof alternate.below);
    stack_t now;
    sigaltstack(NULL, &now);
    say("the stack is as it was", now.ss_sp == own.ss_sp && now.ss_size == own.ss_size && now.ss_flags == own.ss_flags);
}

static int ending;

static void ends(int _) {
    if (ending == 0) exit(0);
    if (ending == 1) _exit(setuid(getuid()));
    execl("/bin/true", "true", NULL);
}

// Handlers that end the process, or change what it may do, while it has a file staged.
static void endings(const char *file) {
    size_t below = 1 << 16, size = getauxval(AT_MINSIGSTKSZ) + 5120;
    char *memory = mmap(NULL, below + size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.child", file);
    for (ending = 0; ending < 3; ending++) {
        memset(memory, 'A', below);
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            stack_t own = {.ss_sp = memory + below, .ss_size = size};
            struct sigaction action = {.sa_handler = ends, .sa_flags = SA_ONSTACK};
            int other = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
            if (write(other, "child\n", 6) != 6) perror("in a child");
            sigaltstack(&own, NULL);
            sigaction(SIGUSR1, &action, NULL);
            raise(SIGUSR1);
            _exit(9);
        }
        int status;
        waitpid(child, &status, 0);
        size_t whole = 0;
        while (whole < below && memory[whole] == 'A') whole++;
        if (getenv("DEEP")) fprintf(stderr, "%d: %zd bytes below the stack\n", ending, below - whole);
        say("ended", status);
        say("below the stack", whole == below);
    }
    unlink(path);
}

static volatile int ticks, ran;

static void tick(int _) {
    ticks++;
}

static void long_handler(int _) {
    static char much[1 << 16];
    for (int i = 0; i < 200 || (ticks < 20 && i < 20000); i++)
        if (pwrite(fd, much, sizeof much, 100) != sizeof much || pwrite(fd, (void *)8, 9, 0) != -1 || errno != EFAULT) perror("much");
    ran++;
}

// Signals that arrive while a handler writes, and faults of its buffers, have the same stack and leave its frames alone.
static void interrupted(void) {
    stack_t own = {.ss_sp = alternate.stack, .ss_size = 3 * getauxval(AT_MINSIGSTKSZ) + 4096};
    struct sigaction action = {.sa_handler = long_handler, .sa_flags = SA_ONSTACK}, ticking = {.sa_handler = tick, .sa_flags = SA_ONSTACK | SA_RESTART}, faulty = {.sa_handler = _exit, .sa_flags = SA_ONSTACK};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    if (sigaltstack(&own, NULL)) perror("sigaltstack");
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGSEGV, &faulty, NULL);
    sigaction(SIGALRM, &ticking, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    raise(SIGUSR1);
    setitimer(ITIMER_REAL, &never, NULL);
    say("ticks", ticks >= 20 && ran == 1);
    say("cut", ftruncate(fd, 7));
}

// What fails says why, whatever the stack.
static void fails(const char *where) {
    char missing[64];
    struct stat stat;
    snprintf(missing, sizeof missing, "/proc/self/fd/%d/missing", fd);
    say(where, (errno = 0, mkdir("/tmp", 0700)));
    say(where, (errno = 0, unlink(missing)));
    say(where, (errno = 0, rename(missing, "/tmp")));
    say(where, (errno = 0, lstat(missing, &stat)));
    say(where, (errno = 0, open(missing, O_RDWR)));
    say(where, (errno = 0, open("/tmp", O_RDWR | O_CREAT, 0600)));
    say(where, (errno = 0, ftruncate(fd, -1)));
}

enum way { GIVEN, CONFIGURED, BLOCKED };

// Gives a device the file, while faults can be handled and while not.
static long gives(int device, enum way way) {
    struct loop_config config = {.fd = fd};
    sigset_t all, before;
    if (way == GIVEN) return ioctl(device, LOOP_SET_FD, fd);
    sigfillset(&all);
    if (way == BLOCKED) pthread_sigmask(SIG_BLOCK, &all, &before);
    long given = syscall(SYS_ioctl, device, LOOP_CONFIGURE, &config);
    if (way == BLOCKED) pthread_sigmask(SIG_SETMASK, &before, NULL);
    return given;
}

// A free loop device that is given the file; or none. Others may be faster, and a file system that was just unmounted may
// still have it.
static int attached(enum way way) {
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    for (int tries = 0; tries < 500; tries++) {
        char name[32];
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        snprintf(name, sizeof name, "/dev/loop%d", number);
        int device = number < 0 ? -1 : open(name, O_RDWR | O_CLOEXEC);
        if (device < 0) break;
        if (!gives(device, way)) return close(control), device;
        close(device);
        usleep(20000);
    }
    close(control);
    return -1;
}

// What a device and the descriptor that it was given have written, the other one finds.
static void device(enum way way) {
    char page[4096], found[5] = "";
    for (int nth = 0; nth < 16; nth++) {
        if (pwrite(fd, memset(page, 'a' + nth, sizeof page), sizeof page, nth << 12) != sizeof page) perror("pwrite");
    }
    int device = attached(way);
    if (device < 0) {
        printf("skipped: no loop device can be had\n");
        return;
    }
    say("read", pread(device, found, 4, 2 << 12));
    say(found, 0);
    say("write", pwrite(device, memset(page, 'D', sizeof page), sizeof page, 1 << 12));
    say("sync", fsync(device));
    say("read", pread(fd, found, 4, 1 << 12));
    say(found, 0);
    say("write", pwrite(fd, memset(page, 'F', sizeof page), sizeof page, 9 << 12));
    say("forget", ioctl(device, BLKFLSBUF, 0));
    say("read", pread(device, found, 4, 9 << 12));
    say(found, 0);
    say("detach", ioctl(device, LOOP_CLR_FD, 0));
    close(device);
}

// Blocks of the file become another one's, while faults cannot be handled. Not all file systems share blocks.
static void cloned(const char *file) {
    char page[4096], found[5] = "", path[PATH_MAX];
    snprintf(path, sizeof path, "%s.clone", file);
    for (int nth = 0; nth < 4; nth++) {
        if (pwrite(fd, memset(page, 'a' + nth, sizeof page), sizeof page, nth << 12) != sizeof page) perror("pwrite");
    }
    int other = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct file_clone_range range = {.src_fd = fd, .src_length = 2 << 12};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    say("clone", ioctl(other, FICLONERANGE, &range));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    say("read", pread(other, found, 4, 1 << 12));
    say(found, 0);
    close(other);
    unlink(path);
}

// What the kernel takes for the size of a file.
static long size_for_the_kernel(int fd) {
    struct stat stat;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_fstat), "D"(fd), "S"(&stat) : "rcx", "r11", "memory");
    return result ? -1 : stat.st_size;
}

// Requests about a file that name others. What they do depends on the file system; here they are about no byte.
static void exchanged(const char *file) {
    struct { unsigned reserved, donor; unsigned long from, to, len, moved; } moved = {0};
    struct { int file, pad; unsigned long from, to, len, flags; } range = {0};
    struct { int file, pad; unsigned long words[10]; } committed = {0};
    struct { long version, target, temporary, words[21]; } swapped = {0};
    struct { struct file_dedupe_range range; struct file_dedupe_range_info infos[2]; } compared = {0};
    struct { const char *name; unsigned long request; void *about; int *others[2]; } all[] = {
        {"move", 0xc028660f, &moved, {(int *)&moved.donor}},
        {"exchange", 0x40285881, &range, {&range.file}},
        {"commit", 0x40585883, &committed, {&committed.file}},
        {"swap", 0xc0c0586d, &swapped, {(int *)&swapped.target, (int *)&swapped.temporary}},
        {"compare", FIDEDUPERANGE, &compared, {(int *)&compared.infos[0].dest_fd, (int *)&compared.infos[1].dest_fd}},
    };
    compared.range.dest_count = 2;
    for (unsigned nth = 0; nth < sizeof all / sizeof *all; nth++) {
        char paths[2][PATH_MAX];
        int others[2] = {-1, -1};
        for (int one = 0; one < 2 && all[nth].others[one]; one++) {
            snprintf(paths[one], PATH_MAX, "%s.%d", file, one);
            others[one] = *all[nth].others[one] = open(paths[one], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
            if (write(others[one], "other\n", 6) != 6) perror("write");
        }
        int result = ioctl(fd, all[nth].request, all[nth].about);
        // What it says differs by file system, and by what was asked before.
        say(all[nth].name, result < 0 && errno == EBADF ? -1 : 0);
        for (int one = 0; one < 2 && all[nth].others[one]; one++) {
            say("its size", size_for_the_kernel(others[one]));
            close(others[one]);
            unlink(paths[one]);
        }
    }
    say("of nothing", ioctl(fd, FIDEDUPERANGE, NULL));
}

// A sandbox in which the engine's way of looking for room ends the program: nobody looks any more.
static void sandbox(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sigaltstack, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        // libc gives an ended thread's stack back.
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 22 /* MADV_POPULATE_READ */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    say("no new rights", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    say("in a sandbox", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

// In a sandbox, where this thread's stack was never looked at.
static void *is_confined(void *nothing) {
    fails("confined");
    say("write", write(fd, "confined\n", 9));
    return nothing;
}

static void *works(void *nothing) {
    handles(0);
    fails("in a thread");
    return nothing;
}

// Frames of a page, so many of them, where the first thread's stack has not been yet.
static int deep(int frames) {
    volatile char frame[4096];
    frame[0] = frame[4095] = 1;
    if (frames == 0) fails("deep down");
    return frames ? deep(frames - 1) + frame[0] : frame[4095];
}

// What became of a thread is said when it is over: what it says itself always comes first.
static void says_after(pthread_t *thread, int created) {
    say("a thread", created ? created : pthread_join(*thread, NULL));
}

// A thread whose stack is the smallest that there is.
static void thread(void) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN);
    says_after(&thread, pthread_create(&thread, &small, works, NULL));
}

static ucontext_t before, routine;

static void runs(void) {
    handles(0);
    fails("in a coroutine");
}

// A coroutine on a stack of three pages, which end at a guard.
static void coroutine(void) {
    char *stack = mmap(NULL, 4 << 12, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack + 4096, 3 << 12, PROT_READ | PROT_WRITE);
    getcontext(&routine);
    routine.uc_stack.ss_sp = stack + 4096;
    routine.uc_stack.ss_size = 3 << 12;
    routine.uc_link = &before;
    makecontext(&routine, runs, 0);
    say("a coroutine", swapcontext(&before, &routine));
}

// Starts this program anew, where the call that writes and syncs is refused.
static void jail(char **args) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwritev2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    say("filter", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    args[1] = "jailed";
    say("exec", execv("/proc/self/exe", args));
}

// Writes by all calls that it makes itself.
static void jailed(void) {
    struct iovec parts[2] = {{"a", 1}, {"b\n", 2}};
    for (int i = 0; i < 30; i++) {
        say("write", write(fd, "written\n", 8));
        say("pwrite", pwrite(fd, "P", 1, 3 * i));
        say("writev", writev(fd, parts, 2));
        say("pwritev", pwritev(fd, parts, 1, 5 * i));
        if (i % 10 == 4) say("fsync", fsync(fd));
    }
    say("by flags", pwritev2(fd, parts, 1, 0, RWF_DSYNC));
}

int main(int count, char **args) {
    if (count < 3) return 2;
    if (!strcmp(args[1], "jail")) jail(args);
    int on_a_stack = !strcmp(args[1], "stack") || !strcmp(args[1], "thread") || !strcmp(args[1], "coroutine");
    fd = open(args[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return perror("open"), 1;
    if (!on_a_stack) say("write", write(fd, "before\n", 7));
    if (!strcmp(args[1], "nothing")) nothing();
    if (!strcmp(args[1], "mapped")) mapped();
    if (!strcmp(args[1], "jailed")) jailed();
    if (!strcmp(args[1], "messages")) messages();
    if (!strcmp(args[1], "flags")) flags();
    if (!strcmp(args[1], "names")) names();
    if (!strcmp(args[1], "address")) address();
    if (!strcmp(args[1], "cloned")) cloned(args[2]);
    if (!strcmp(args[1], "exchanged")) exchanged(args[2]);
    if (!strcmp(args[1], "device")) device(GIVEN);
    if (!strcmp(args[1], "configured")) device(CONFIGURED);
    if (!strcmp(args[1], "blocked")) device(BLOCKED);
    if (!strcmp(args[1], "points")) points();
    if (on_a_stack || !strcmp(args[1], "further")) {
        handlers(0);
        handlers(SS_AUTODISARM);
        thread();
        coroutine();
    }
    if (!strcmp(args[1], "sandbox")) {
        pthread_t thread;
        sandbox();
        deep(100);
        says_after(&thread, pthread_create(&thread, NULL, is_confined, NULL));
        say("write", write(fd, "after\n", 6));
        _exit(0);
    }
    if (!strcmp(args[1], "deep")) deep(10), deep(60), deep(200);
    if (!strcmp(args[1], "interrupted")) interrupted();
    if (!strcmp(args[1], "endings")) endings(args[2]);
    if (!strcmp(args[1], "thread")) thread();
    if (!strcmp(args[1], "coroutine")) coroutine();
    if (is_staged(fd)) fprintf(stderr, "staged\n");
    say("write", write(fd, "after\n", 6));
    return 0;
}
