// A program that forks with a file open, and goes on with it when its children have ended.
//   children CASE FILE FLAGS [USE]   FLAGS: a for O_APPEND
// Standard output says what any program sees; standard error, when the file is staged and when it is not, which
// only Adit knows.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
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

// By another number, that of a stream or one of which Adit does not know, and the first one is closed; or by the same.
static void becomes(const char *name, int number) {
    char command[64];
    sprintf(command, "echo shell >&%d", number);
    if (number != fd && fcntl(fd, F_SETFD, FD_CLOEXEC)) die("F_SETFD");
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) {
        if (number != fd && (number == 1 ? dup2(fd, 1) : syscall(SYS_dup2, fd, number)) != number) _exit(9);
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(9);
    }
    wait_for(child);
    lines("after", 100);
    tell(name);
}

static void redirected(void) { becomes("redirected", 1); }
static void renumbered(void) { becomes("renumbered", 9); }
static void inherited(void) { becomes("inherited", fd); }

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

// And the kernel copies into the file before anybody looks.
static void flags_then_copied(void) {
    pid_t child = forked();
    if (child == 0) _exit(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) ^ O_APPEND) != 0);
    wait_for(child);
    int from = open("/bin/sh", O_RDONLY);
    errno = 0;
    long copied = sendfile(fd, from, NULL, 10);
    dprintf(1, "copied %ld %d\n", copied, errno);
    if (close(from) || lseek(fd, 5, SEEK_SET) != 5) die("lseek");
    lines("after", 100);
    tell("flags_then_copied");
    say_at();
    dprintf(1, "flags %x\n", fcntl(fd, F_GETFL));
}

// A loan to nobody ends while a child has the description, which changes its flags after that.
static void copied_then_flags(void) {
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) {
        told();
        _exit(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) ^ O_APPEND) != 0);
    }
    int from = open("/bin/sh", O_RDONLY);
    errno = 0;
    long copied = sendfile(fd, from, NULL, 10);
    dprintf(1, "copied %ld %d\n", copied, errno);
    if (close(from)) die("close");
    lines("beside", 20);
    tell("copied");
    let_go();
    wait_for(child);
    if (lseek(fd, 5, SEEK_SET) != 5) die("lseek");
    lines("after", 100);
    tell("then_flags");
    say_at();
    dprintf(1, "flags %x\n", fcntl(fd, F_GETFL));
}

// A handler of the child's uses it after its parent has gone on.
static void in_handler(void) {
    told();
    char first[6] = "";
    dprintf(1, "%ld %.6s\n", (long)pread(fd, first, 6, 0), first);
    lines("handler", 2);
    say_at();
}

// With `first.c` it runs before Adit is told of the child.
static void in_children(void (*what)(void)) {
    void (**first)(void) = dlsym(RTLD_DEFAULT, "in_first");
    if (first) *first = what;
    else if (pthread_atfork(NULL, NULL, what)) die("pthread_atfork");
}

static int fresh;

static void handler(void) {
    in_children(in_handler);
    if (!fresh) lines("parent", 20);
    pid_t child = forked();
    if (child == 0) {
        lines("child", 2);
        _exit(0);
    }
    lines("beside", 20);
    tell("handler");
    let_go();
    wait_for(child);
    lines("after", 3);
    say_at();
}

// The same with a file that is staged after the fork.
static void fresh_handler(void) {
    fresh = 1;
    handler();
}

// A child asks for the file while its parent is about to stage it.
static void both(void) {
    char other[4096];
    snprintf(other, sizeof other, "%s-other", path);
    int before = open(other, O_RDWR | O_CREAT, 0600);
    // What is only done for the first file takes time.
    if (before < 0 || write(before, "x", 1) != 1 || close(before)) die("other");
    pid_t child = forked();
    if (child == 0) {
        usleep(100000);
        lines("child", 1);
        usleep(800000);
        if (lseek(fd, 0, SEEK_SET)) die("lseek");
        lines("child", 1);
        _exit(0);
    }
    lines("parent", 1);
    wait_for(child);
    say_at();
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

// A child that uses the description for the first time in each way, after its parent has gone on with it. Whatever the
// way, it sees all of that, and leaves the offset where its parent goes on.
static void shown(const char *name, long result) {
    struct stat seen;
    if (fstat(fd, &seen)) die("fstat");
    dprintf(1, "%s: %ld, %ld bytes, at %ld\n", name, result, (long)seen.st_size, (long)lseek(fd, 0, SEEK_CUR));
}

static long by_path(void) {
    struct stat seen;
    return stat(path, &seen) ? -1 : (long)seen.st_size;
}

static long locked(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10}, other = lock;
    int again = open(path, O_RDWR);
    if (fcntl(fd, F_SETLK, &lock) || write(fd, "locked\n", 7) != 7) die("lock");
    pid_t asker = forked();
    if (asker == 0) _exit(fcntl(fd, F_GETLK, &other) || other.l_type != F_WRLCK);
    int status;
    if (waitpid(asker, &status, 0) != asker) die("waitpid");
    if (close(again)) die("close");
    return status;
}

static long executed(const char *command) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 9);
        execl("/bin/sh", "sh", "-c", command, "sh", path, NULL);
        _exit(9);
    }
    int status;
    return waitpid(child, &status, 0) == child ? status : -1;
}

static long mapped(void) {
    char *bytes = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    return bytes == MAP_FAILED ? -1 : bytes[0] + bytes[7];
}

static long sent(void) {
    int null = open("/dev/null", O_WRONLY);
    off_t at = 0;
    long result = sendfile(null, fd, &at, 1 << 20);
    close(null);
    return result;
}

static char room[1 << 16];
#define USES(X)                                                                                                      \
    X(writes, write(fd, "used\n", 5))                                                                                \
    X(reads, read(fd, room, 10))                                                                                     \
    X(preads, pread(fd, room, sizeof room, 3))                                                                       \
    X(pwrites, pwrite(fd, "USED", 4, 2))                                                                             \
    X(seeks_end, lseek(fd, 0, SEEK_END))                                                                             \
    X(seeks_set, lseek(fd, 11, SEEK_SET))                                                                            \
    X(seeks_hole, lseek(fd, 0, SEEK_HOLE))                                                                           \
    X(looks, by_path())                                                                                              \
    X(flags_of, fcntl(fd, F_GETFL))                                                                                  \
    X(syncs, fsync(fd))                                                                                              \
    X(cuts, ftruncate(fd, 25))                                                                                       \
    X(reserves, posix_fallocate(fd, 0, 9000))                                                                        \
    X(duplicates, dup2(fd, 50) == 50 ? write(50, "dup\n", 4) : -1)                                                   \
    X(locks, locked())                                                                                               \
    X(executes, executed("echo shell >&9; wc -c <$1 >&9"))                                                           \
    X(maps, mapped())                                                                                                \
    X(sends, sent())                                                                                                 \
    X(opens, close(open(path, O_RDONLY)))                                                                            \
    X(changes, fchmod(fd, 0640))                                                                                     \
    X(nothing, 0)

// By a child of vfork, beside which its parent does nothing.
static int vforks;

static void use(const char *name, long (*how)(void)) {
    if (ftruncate(fd, 0) || lseek(fd, 0, SEEK_SET)) die("ftruncate");
    number = 0;
    lines("parent", 30);
    pid_t child = vforks ? vfork() : forked();
    if (child == 0) {
        if (!vforks) told();
        long result = how();
        shown(name, result);
        lines("child", 3);
        _exit(0);
    }
    lines("beside", 20);
    if (!is_staged(fd)) dprintf(2, "%s: the kernel's\n", name);
    if (!vforks) let_go();
    wait_for(child);
    lines("after", 20);
    shown(name, 0);
    static unsigned char all[1 << 16];
    long sum = 0, len = pread(fd, all, sizeof all, 0);
    for (long at = 0; at < len; at++) sum = (sum * 31 + all[at]) % 1000003;
    dprintf(1, "%ld\n", sum);
}

static const char *used;

#define FUNCTION(name, call) static long name(void) { return (long)(call); }
USES(FUNCTION)
static void uses(void) {
#define ONE(name, call) if (!strcmp(used, #name)) use(#name, name);
    USES(ONE)
}

static void vfork_uses(void) {
    vforks = 1;
    uses();
}

// The parent of the process that goes on with the description has died, has been stopped, or has closed it. It is a
// child itself, of one that has nothing open.
static int removed_too;

static void left(int signal) {
    int alive[2], ready[2], gone[2], flags = fcntl(fd, F_GETFL) & O_APPEND;
    if (pipe(alive) || pipe(ready) || pipe(gone) || close(fd)) die("pipe");
    pid_t parent = forked();
    if (parent == 0) {
        fd = open(path, O_RDWR | flags);
        lines("parent", 30);
        if (forked() == 0) {
            close(alive[0]);
            told();
            // Whoever cleans up after the parent does.
            if (removed_too) sleep(1);
            char first[7] = {0};
            if (pread(fd, first, 6, 0) != 6) die("pread");
            dprintf(1, "%s\n", first);
            lines("child", 10);
            say_at();
            _exit(0);
        }
        lines("beside", 20);
        char byte;
        if (removed_too && (write(ready[1], "x", 1) != 1 || read(gone[0], &byte, 1) != 1)) die("ready");
        dprintf(2, "left: %s\n", is_staged(fd) ? "staged" : "the kernel's");
        if (signal) kill(getpid(), signal);
        else if (close(fd)) die("close");
        let_go();
        _exit(0);
    }
    close(alive[1]);
    int status;
    char go_on;
    if (removed_too && (read(ready[0], &go_on, 1) != 1 || unlink(path) || write(gone[1], "x", 1) != 1)) die("unlink");
    if (signal) {
        if (waitpid(parent, &status, WUNTRACED) != parent) die("waitpid");
        let_go();
    }
    char byte;
    if (signal == SIGSTOP) usleep(300000);
    if (signal == SIGSTOP && kill(parent, SIGCONT)) die("kill");
    if (read(alive[0], &byte, 1) != 0) die("read");
    if (signal != SIGKILL && waitpid(parent, &status, 0) != parent) die("waitpid");
    fd = open(path, O_RDWR | O_APPEND | O_CREAT, 0600);
    lines("last", 1);
}

// Nobody but the child can see the file any more.
static void removed(void) {
    removed_too = 1;
    left(SIGKILL);
}

// Flags that somebody has changed stay changed, whoever uses the description for the first time after that.
static void flags_then_used(void) {
    for (int round = 0; round < 2; round++) {
        lines("parent", 20);
        pid_t later = forked();
        if (later == 0) {
            told();
            if (lseek(fd, 3, SEEK_SET) != 3 || write(fd, "later", 5) != 5) die("later");
            dprintf(1, "later flags %x\n", fcntl(fd, F_GETFL));
            _exit(0);
        }
        pid_t child = forked();
        int flags = fcntl(fd, F_GETFL) & ~O_APPEND;
        if (child == 0) _exit(round == 0 && fcntl(fd, F_SETFL, flags) != 0);
        wait_for(child);
        if (round == 1 && fcntl(fd, F_SETFL, flags)) die("F_SETFL");
        let_go();
        wait_for(later);
        say_at();
        lines("after", 3);
        say_at();
        child = forked();
        if (child == 0) _exit(lseek(fd, 9, SEEK_SET) != 9 || write(fd, "again", 5) != 5);
        wait_for(child);
        say_at();
        dprintf(1, "flags %x\n", fcntl(fd, F_GETFL));
        if (close(fd)) die("close");
        fd = open(path, O_RDWR | O_APPEND);
    }
}

// A child without a number to ask by does not learn where the end is, and moves what its parent goes by nowhere else. The
// flags are those that the program has given the description, all the same.
static void cannot_ask(void) {
    int back[2];
    char byte;
    if (pipe(back)) die("pipe");
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) {
        struct rlimit none = {3, 3};
        told();
        if (setrlimit(RLIMIT_NOFILE, &none)) die("setrlimit");
        lseek(fd, 0, SEEK_END);
        dprintf(1, "flags %x\n", fcntl(fd, F_GETFL));
        _exit(write(back[1], "x", 1) != 1);
    }
    lines("beside", 20);
    let_go();
    if (read(back[0], &byte, 1) != 1) die("read");
    lines("after", 20);
    wait_for(child);
    say_at();
}

// What a child does not use stays staged: it closes all, and starts something; and its parent looks for the end.
static void closes_all(void) {
    lines("parent", 20);
    pid_t child = forked();
    if (child == 0) {
        closefrom(3);
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    wait_for(child);
    lines("after", 20);
    tell("closed");
    if (close(fd)) die("close");
    fd = open(path, O_RDWR);
    child = forked();
    if (child == 0) _exit(0);
    wait_for(child);
    dprintf(1, "end %ld\n", (long)lseek(fd, 0, SEEK_END));
    dprintf(1, "before %ld %d\n", (long)lseek(fd, -1, SEEK_SET), errno);
    lines("end", 20);
    tell("end");
}

static void killed(void) { left(SIGKILL); }
static void stopped(void) { left(SIGSTOP); }
static void closed(void) { left(0); }

// There is room for so many descriptions only, and it is used again.
static void room_for_many(void) {
    for (int nth = 0; nth < 400; nth++) {
        if (close(fd)) die("close");
        fd = open(path, O_RDWR | O_APPEND);
        lines("one", 1);
        pid_t child = forked();
        if (child == 0) _exit(0);
        wait_for(child);
        lines("more", 1);
    }
    tell("room");
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
    in_children(in_child);
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
                 {"spawned", spawned}, {"flags", flags}, {"flags_twice", flags_twice}, {"flags_then_copied", flags_then_copied}, {"copied_then_flags", copied_then_flags}, {"handler", handler}, {"fresh_handler", fresh_handler}, {"both", both}, {"nested", nested},
                 {"many", many}, {"uses", uses}, {"vfork_uses", vfork_uses}, {"redirected", redirected}, {"renumbered", renumbered}, {"inherited", inherited}, {"killed", killed}, {"stopped", stopped},
                 {"closed", closed}, {"removed", removed}, {"flags_then_used", flags_then_used},
                 {"cannot_ask", cannot_ask}, {"closes_all", closes_all}, {"room", room_for_many}, {"visited", visited}, {"reopened", reopened}, {"crowd", crowd}};
    if (count < 4) return 2;
    path = words[2];
    used = count > 4 ? words[4] : "";
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
