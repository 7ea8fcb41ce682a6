// A child of vfork goes on with a file of its parent's when it is not as its parent is any more, or its parent is not.
//   vforks FILE HOW [append]
// HOW: chroot, setuid, limit: the child may open nothing any more, and writes; executes: it gives up its rights, and executes
//      what writes; full: it has no number left, so it may be refused;
//      forks, forks_and_executes: it has another file by that number, which its own child writes to;
//      rotates: a handler of the parent's opens the file again, when the child has ended;
//      beside: a thread of the parent's has opened the file since, and a handler writes to it.
// Says on standard output what became of the calls.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *path, *how;
static char other[4100];
static int fd, flags = O_RDWR | O_CREAT;
static volatile int runs, done;

static int is(const char *name) { return !strcmp(how, name); }

static void say(const char *what, long result) {
    char line[64];
    int len = snprintf(line, sizeof line, "%s %ld\n", what, result < 0 ? -errno : result);
    if (write(1, line, len) != len) _exit(7);
}

static void execute(void) {
    char command[64];
    snprintf(command, sizeof command, "echo child >&%d", fd);
    execl("/bin/sh", "sh", "-c", command, NULL);
    say("exec", -1);
    _exit(9);
}

static void limit(rlim_t numbers) {
    struct rlimit limit = {numbers, numbers};
    if (setrlimit(RLIMIT_NOFILE, &limit)) say("setrlimit", -1);
}

static void child(void) {
    if (is("chroot") && chroot("/mnt")) say("chroot", -1);
    if ((is("setuid") || is("executes")) && (setgid(65534) || setuid(65534))) say("setuid", -1);
    if (is("limit")) limit(3);
    if (is("executes")) execute();
    if (is("forks") || is("forks_and_executes")) {
        int status;
        if (close(fd) || open(other, O_RDWR | O_CREAT | O_TRUNC, 0600) != fd) _exit(8);
        pid_t forked = fork();
        if (!forked) {
            if (is("forks_and_executes")) execute();
            _exit(write(fd, "child\n", 6) != 6);
        }
        say("forked", waitpid(forked, &status, 0) == forked ? status : -1);
        _exit(0);
    }
    if (is("rotates")) {
        kill(getppid(), SIGUSR1);
    } else if (is("beside")) {
        runs = 1;
        while (!done) usleep(100);
    } else {
        say("write", write(fd, "child\n", 6));
    }
    _exit(0);
}

static void handles(int signal) {
    (void)signal;
    if (is("rotates")) {
        close(fd);
        fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
    }
    say("handler", write(fd, "handler\n", 8));
}

static pthread_t starter;

static void *opens(void *nothing) {
    while (!runs) usleep(100);
    fd = open(path, flags | O_TRUNC | O_CLOEXEC, 0600);
    say("before", write(fd, "before\n", 7));
    pthread_kill(starter, SIGUSR1);
    usleep(1000);
    done = 1;
    return nothing;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    path = args[1];
    how = args[2];
    snprintf(other, sizeof other, "%s.other", path);
    pthread_t thread;
    int status;
    if (count > 3) flags |= O_APPEND;
    signal(SIGUSR1, handles);
    starter = pthread_self();
    if (is("beside")) {
        pthread_create(&thread, NULL, opens, NULL);
    } else {
        fd = open(path, flags | O_TRUNC, 0600);
        say("before", write(fd, "before\n", 7));
    }
    if (is("full")) {
        limit(40);
        while (dup(0) >= 0) ;
    }
    pid_t made = vfork();
    if (!made) child();
    say("child", waitpid(made, &status, 0) == made ? status : -1);
    if (is("beside")) pthread_join(thread, NULL);
    say("after", write(fd, "after\n", 6));
    say("close", close(fd));
    return 0;
}
