// A program that forks with a file open, and goes on with it when its children have ended.
//   children CASE FILE FLAGS   FLAGS: a for O_APPEND
// Standard output says what any program sees; standard error, when the file is staged and when it is not, which
// only Adit knows.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "staged.h"

static const char *path;
static int fd, number, go[2];

static void die(const char *what) {
    dprintf(1, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

static void tell(const char *when) { dprintf(2, "%s: %s\n", when, is_staged(fd) ? "staged" : "the kernel's"); }

static void lines(const char *who, int count) {
    for (; count > 0; count--) {
        char line[64];
        int len = sprintf(line, "%s %d\n", who, number++);
        if (write(fd, line, (size_t)len) != len) die("write");
    }
}

static void say_at(void) { dprintf(1, "at %ld\n", (long)lseek(fd, 0, SEEK_CUR)); }

static void wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    dprintf(1, "child %d\n", status);
}

static void told(void) {
    char byte;
    if (read(go[0], &byte, 1) != 1) die("read");
}

static void let_go(void) {
    if (write(go[1], "x", 1) != 1) die("write");
}

static pid_t forked(void) {
    pid_t child = fork();
    if (child < 0) die("fork");
    return child;
}

// The usual case: a child that does something and ends, three times over.
static void returns(void) {
    for (int round = 0; round < 3; round++) {
        lines("parent", 300);
        tell("before");
        pid_t child = forked();
        if (child == 0) {
            told();
            lines("child", 7);
            _exit(3);
        }
        lines("beside", 100);
        tell("beside");
        let_go();
        wait_for(child);
        say_at();
        lines("after", 300);
        tell("after");
        say_at();
    }
    if (ftruncate(fd, 1000)) die("ftruncate");
    tell("cut");
}

// A child that has ended and was not waited for has nothing open; it can be waited for all the same.
static void unwaited(void) {
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) _exit(0);
    siginfo_t info;
    if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT)) die("waitid");
    lines("unwaited", 100);
    tell("unwaited");
    wait_for(child);
}

// A grandchild has the description when the child is long gone.
static void grandchild(void) {
    int done[2];
    if (pipe(done)) die("pipe");
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) {
        if (forked() > 0) _exit(0);
        told();
        lines("grandchild", 5);
        if (write(done[1], "x", 1) != 1) die("write");
        _exit(0);
    }
    wait_for(child);
    lines("after", 100);
    tell("grandchild");
    let_go();
    char byte;
    if (read(done[0], &byte, 1) != 1) die("read");
    say_at();
    lines("last", 100);
    tell("last");
}

// So has what the child became, or started.
static void program(void) {
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) {
        dup2(go[0], 0);
        dup2(fd, 9);
        execl("/bin/sh", "sh", "-c", "read x; echo shell >&9", NULL);
        _exit(9);
    }
    lines("beside", 100);
    if (write(go[1], "x\n", 2) != 2) die("write");
    wait_for(child);
    lines("after", 100);
    tell("program");
}

static void spawned(void) {
    lines("parent", 20);
    if (system("true")) die("system");
    lines("after", 100);
    tell("spawned");
}

// A child leaves the description's flags changed.
static void flags(void) {
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) _exit(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK) != 0);
    wait_for(child);
    if (lseek(fd, 5, SEEK_SET) != 5) die("lseek");
    lines("after", 100);
    tell("flags");
    dprintf(1, "flags %x\n", fcntl(fd, F_GETFL));
}

// And another one is forked before anybody looks.
static void flags_twice(void) {
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) _exit(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) ^ O_APPEND) != 0);
    wait_for(child);
    child = forked();
    if (child == 0) _exit(0);
    wait_for(child);
    if (lseek(fd, 5, SEEK_SET) != 5) die("lseek");
    lines("after", 100);
    tell("flags_twice");
    say_at();
    dprintf(1, "flags %x\n", fcntl(fd, F_GETFL));
}

// A handler forks, and its child goes on with the fork that it was called for.
static pid_t between = -1;

static void fork_between(void) {
    if (between == -1) {
        between = 0;
        between = forked();
    }
}

static void nested(void) {
    int done[2];
    pid_t own = getpid();
    if (pipe(done) || pthread_atfork(fork_between, NULL, NULL)) die("pthread_atfork");
    lines("parent", 20);
    pid_t child = forked();
    if (getpid() != own) {
        if (between || child) _exit(0);
        told();
        lines("grandchild", 5);
        if (write(done[1], "x", 1) != 1) die("write");
        _exit(0);
    }
    wait_for(child);
    wait_for(between);
    lines("after", 100);
    tell("nested");
    let_go();
    char byte;
    if (read(done[0], &byte, 1) != 1) die("read");
    say_at();
}

// More than are looked after.
static void many(void) {
    lines("parent", 20);
    pid_t children[70];
    for (int nth = 0; nth < 70; nth++) {
        children[nth] = forked();
        if (children[nth] == 0) {
            told();
            _exit(0);
        }
    }
    lines("beside", 100);
    for (int nth = 0; nth < 70; nth++) let_go();
    for (int nth = 0; nth < 70; nth++) wait_for(children[nth]);
    lines("after", 100);
    tell("many");
}

// Not by a child: whoever looks at the file often has it taken away each time, and for a while.
static void visited(void) {
    for (int round = 0; round < 40; round++) {
        lines("line", 3);
        if (close(open(path, O_RDONLY))) die("close");
    }
    tell("visited");
    lines("more", 20000);
    tell("alone");
    say_at();
}

// Somebody has the file open for a moment, who may have written to it.
static void reopened(void) {
    lines("line", 3);
    if (close(open(path, O_RDONLY))) die("close");
    lines("more", 3);
    tell("reopened");
}

// Threads write through one description while another forks children that do so too. Of few threads and few
// children a write that is made while the offset comes back is seldom among them.
enum { WRITERS = 6, ROUNDS = 150, LINES = 5 };
static int round_now;
static atomic_int over, numbers;

static void one_line(const char *who, int nth) {
    char line[64];
    int len = sprintf(line, "%s %d\n", who, nth);
    if (write(fd, line, (size_t)len) != len) die("write");
}

static void *writer(void *nothing) {
    while (!over) one_line("parent", atomic_fetch_add(&numbers, 1));
    return nothing;
}

// The children write before anybody has told Adit's own code that they are some, unless it looks itself.
static void in_child(void) {
    alarm(20);
    for (int nth = 0; nth < LINES; nth++) one_line("child", LINES * round_now + nth);
}

static void crowd(void) {
    pthread_t writers[WRITERS];
    for (int nth = 0; nth < WRITERS; nth++)
        if (pthread_create(&writers[nth], NULL, writer, NULL)) die("pthread_create");
    int staged = 0, kernels = 0, status;
    if (pthread_atfork(NULL, NULL, in_child)) die("pthread_atfork");
    for (int round = 0; round < ROUNDS; round++) {
        round_now = round;
        pid_t child = forked();
        if (child == 0) _exit(0);
        if (waitpid(child, &status, 0) != child || status) die("waitpid");
        usleep((unsigned)(round % 3 * 100));
        if (is_staged(fd)) staged++;
        else kernels++;
    }
    over = 1;
    for (int nth = 0; nth < WRITERS; nth++) pthread_join(writers[nth], NULL);
    dprintf(2, "crowd: %d staged, %d not\n", staged, kernels);
    dprintf(1, "%d %d\n", ROUNDS * LINES, (int)numbers);
}

int main(int count, char **words) {
    struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"returns", returns}, {"unwaited", unwaited}, {"grandchild", grandchild}, {"program", program},
                 {"spawned", spawned}, {"flags", flags}, {"flags_twice", flags_twice}, {"nested", nested},
                 {"many", many}, {"visited", visited}, {"reopened", reopened}, {"crowd", crowd}};
    if (count < 4) return 2;
    path = words[2];
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | (words[3][0] == 'a' ? O_APPEND : 0), 0600);
    if (fd < 0 || pipe(go)) die("open");
    for (size_t nth = 0; nth < sizeof cases / sizeof *cases; nth++)
        if (!strcmp(words[1], cases[nth].name)) {
            cases[nth].run();
            if (close(fd)) die("close");
            return 0;
        }
    return 2;
}
