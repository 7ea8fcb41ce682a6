// Starts a command beside a file that it has open and goes on with, and says on standard error whether it is staged.
//   commands FILE HOW [append]
// HOW: system, popen, wordexp, posix_spawn, others (a spawn whose file actions are about other descriptors), vfork,
//      closes (a child that closes everything before), fails (one that finds no program at first): the command does not
//      get the file, but writes its size to FILE.size;
//      actions, inherited, cleared, told: it gets the file, and writes to it now and later; so it does by a child of vfork:
//      vdup, vdup2, vcleared, vinherited, vspawn (by a spawn of that one's), vfork2 (whose own child has closed it before);
//      reopens: a child of vfork has closed it, and opened the file by the same number.
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

static void execute(void) {
    execl("/bin/sh", "sh", "-c", script, NULL);
    _exit(9);
}

static pid_t vfork_and_look(void) {
    pid_t child = vfork();
    if (child) return child;
    if (is("closes")) close_range(3, ~0U, 0);
    if (is("fails")) execl("/nonexistent", "sh", NULL);
    execute();
    return -1;
}

static pid_t spawn_with_others(void) {
    int ends[2];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (pipe2(ends, O_CLOEXEC)) return -1;
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    pid_t child = spawn(&actions);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static int look(const char *file) {
    snprintf(script, sizeof script, "env -u LD_PRELOAD stat -c %%s %s > %s.size", file, file);
    if (is("others")) return ended(spawn_with_others());
    if (is("vfork") || is("closes") || is("fails")) return ended(vfork_and_look());
    if (is("system")) return !system(script);
    if (is("popen")) return !pclose(popen(script, "r"));
    if (!is("wordexp")) return ended(spawn(NULL));
    wordexp_t words;
    char quoted[9000];
    snprintf(quoted, sizeof quoted, "x$(%s)", script);
    return !wordexp(quoted, &words, 0);
}

// A child of vfork makes the number `to` of the file, and executes the command, or has one executed.
static pid_t vfork_and_give(int fd, int to) {
    pid_t child = vfork();
    if (child) return child;
    if (is("vdup") && (fcntl(fd, F_GETFD) != FD_CLOEXEC || fcntl(fd, F_DUPFD, to) != to)) _exit(8);
    if (is("vdup2") && dup2(fd, to) != to) _exit(8);
    if (is("vcleared") && fcntl(fd, F_SETFD, 0)) _exit(8);
    if (is("vspawn")) _exit(spawn(NULL) < 0);
    if (is("vfork2")) {
        pid_t grandchild = vfork();
        if (!grandchild) {
            close(fd);
            _exit(0);
        }
        if (!ended(grandchild) || dup2(fd, to) != to) _exit(8);
    }
    execute();
    return -1;
}

// At the start of the file.
static int reopen(int fd, const char *file) {
    pid_t child = vfork();
    if (child) return ended(child);
    if (close(fd) || open(file, O_RDWR) != fd) _exit(8);
    _exit(write(fd, "now\n", 4) != 4);
}

static void wait_for_offset(int fd, long offset) {
    for (int tries = 0; tries < 5000 && lseek(fd, 0, SEEK_CUR) != offset; tries++) usleep(1000);
}

// Gives the file to a command, and writes between its two writes.
static int give(int fd) {
    int ends[2], copied = strstr("actions vdup vdup2 vfork2", how) != NULL, to = copied ? 8 : fd;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, to);
    if (is("cleared") && fcntl(fd, F_SETFD, 0)) return 0;
    if (is("told") && ioctl(fd, FIONCLEX)) return 0;
    // Another thread could have been starting a command just now.
    if ((is("cleared") || is("told")) && is_staged(fd)) fprintf(stderr, "staged as it is handed on\n");
    if (pipe(ends)) return 0;
    snprintf(script, sizeof script, "echo now >&%d; read line <&%d; echo later >&%d", to, ends[0], to);
    pid_t child = how[0] == 'v' ? vfork_and_give(fd, to) : spawn(is("actions") ? &actions : NULL);
    // It has written once.
    wait_for_offset(fd, 11);
    if (write(fd, "between\n", 8) != 8 || write(ends[1], "\n", 1) != 1 || !ended(child)) return 0;
    // A child may have ended before its own.
    wait_for_offset(fd, 25);
    return 1;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    how = args[2];
    int kept = is("inherited") || is("vinherited") || is("vspawn");
    int looks = is("vfork") || strstr("system popen wordexp posix_spawn others closes fails", how) != NULL, gets = !looks;
    int flags = O_RDWR | O_CREAT | O_TRUNC | (kept ? 0 : O_CLOEXEC) | (count > 3 ? O_APPEND : 0);
    int fd = open(args[1], flags, 0600);
    if (write(fd, "before\n", 7) != 7) return 1;
    // Nothing changes.
    if (fcntl(fd, F_SETFD, kept ? 0 : FD_CLOEXEC) || (kept && ioctl(fd, FIONCLEX))) return 1;
    if (!is_staged(fd)) fprintf(stderr, "not staged before\n");
    if (!(is("reopens") ? reopen(fd, args[1]) : gets ? give(fd) : look(args[1]))) return 1;
    if (!gets && !is_staged(fd)) fprintf(stderr, "not staged since\n");
    if (write(fd, "after\n", 6) != 6 || write(fd, "end\n", 4) != 4) return 1;
    fprintf(stderr, "%s\n", is_staged(fd) ? "staged" : "plain");
    return 0;
}
