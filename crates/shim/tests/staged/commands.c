// Starts a command beside a file that it has open and goes on with, and says on standard error whether it is staged.
//   commands FILE HOW
// HOW: system, popen, wordexp, posix_spawn: the command does not get the file, but writes its size to FILE.size;
//      actions, inherited, cleared, told: it gets the file, and writes to it now and later.
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>
#include "staged.h"

extern char **environ;

static const char *how;
static char script[9000];

static int is(const char *name) { return !strcmp(how, name); }

static pid_t spawn(posix_spawn_file_actions_t *actions) {
    char *program[] = {"sh", "-c", script, NULL};
    pid_t child;
    return posix_spawn(&child, "/bin/sh", actions, NULL, program, environ) ? -1 : child;
}

static int ended(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child && !status;
}

static int look(const char *file) {
    snprintf(script, sizeof script, "stat -c %%s %s > %s.size", file, file);
    if (is("system")) return !system(script);
    if (is("popen")) return !pclose(popen(script, "r"));
    if (!is("wordexp")) return ended(spawn(NULL));
    wordexp_t words;
    char quoted[9000];
    snprintf(quoted, sizeof quoted, "x$(%s)", script);
    return !wordexp(quoted, &words, 0);
}

// Gives the file to a command, and writes between its two writes.
static int give(int fd) {
    int ends[2], to = is("actions") ? 8 : fd;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, to);
    if (is("cleared") && fcntl(fd, F_SETFD, 0)) return 0;
    if (is("told") && ioctl(fd, FIONCLEX)) return 0;
    // Another thread could have been starting a command just now.
    if (!is("actions") && !is("inherited") && is_staged(fd)) fprintf(stderr, "staged as it is handed on\n");
    if (pipe(ends)) return 0;
    snprintf(script, sizeof script, "echo now >&%d; read line <&%d; echo later >&%d", to, ends[0], to);
    pid_t child = spawn(is("actions") ? &actions : NULL);
    // It has written once.
    for (int tries = 0; tries < 5000 && lseek(fd, 0, SEEK_CUR) != 11; tries++) usleep(1000);
    return write(fd, "between\n", 8) == 8 && write(ends[1], "\n", 1) == 1 && ended(child);
}

int main(int count, char **args) {
    if (count < 3) return 2;
    how = args[2];
    int flags = O_RDWR | O_CREAT | O_TRUNC | (is("inherited") ? 0 : O_CLOEXEC);
    int fd = open(args[1], flags, 0600), gets = is("actions") || is("inherited") || is("cleared") || is("told");
    if (write(fd, "before\n", 7) != 7) return 1;
    // Nothing changes.
    if (fcntl(fd, F_SETFD, is("inherited") ? 0 : FD_CLOEXEC) || (is("inherited") && ioctl(fd, FIONCLEX))) return 1;
    if (!is_staged(fd)) fprintf(stderr, "not staged before\n");
    if (!(gets ? give(fd) : look(args[1]))) return 1;
    if (!gets && !is_staged(fd)) fprintf(stderr, "not staged since\n");
    if (write(fd, "after\n", 6) != 6 || write(fd, "end\n", 4) != 4) return 1;
    fprintf(stderr, "%s\n", is_staged(fd) ? "staged" : "plain");
    return 0;
}
