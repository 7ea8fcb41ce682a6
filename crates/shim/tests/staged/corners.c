// What moves nothing, is refused, or is no cancellation point must leave a staged file staged, and everything else as the
// kernel has it.
//   corners CASE FILE
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "staged.h"

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
    char below[1 << 16], stack[16384];
} alternate;

static void handles(int _) {
    write(fd, "first\n", 6);
    fsync(fd);
}

// A write, perhaps the first one of a file, on a stack as small as that of Python's faulthandler.
static void stack(void) {
    stack_t own = {.ss_sp = alternate.stack, .ss_size = sizeof alternate.stack};
    struct sigaction action = {.sa_handler = handles, .sa_flags = SA_ONSTACK};
    memset(alternate.below, 'A', sizeof alternate.below);
    sigaltstack(&own, NULL);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    size_t whole = 0;
    while (whole < sizeof alternate.below && alternate.below[whole] == 'A') whole++;
    if (getenv("DEEP")) fprintf(stderr, "%zd bytes below the stack\n", sizeof alternate.below - whole);
    say("below the stack", whole == sizeof alternate.below);
}

int main(int count, char **args) {
    if (count < 3) return 2;
    int on_a_stack = !strcmp(args[1], "stack");
    fd = open(args[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return perror("open"), 1;
    if (!on_a_stack) say("write", write(fd, "before\n", 7));
    if (!strcmp(args[1], "nothing")) nothing();
    if (!strcmp(args[1], "messages")) messages();
    if (!strcmp(args[1], "flags")) flags();
    if (!strcmp(args[1], "names")) names();
    if (!strcmp(args[1], "address")) address();
    if (!strcmp(args[1], "points")) points();
    if (on_a_stack || !strcmp(args[1], "further")) stack();
    if (is_staged(fd)) fprintf(stderr, "staged\n");
    say("write", write(fd, "after\n", 6));
    return 0;
}
