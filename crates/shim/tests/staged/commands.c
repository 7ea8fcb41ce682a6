// Starts a command beside a file that it has open and goes on with, and says on standard error whether it is staged again.
//   commands FILE HOW   HOW: system, popen, posix_spawn, vfork (the command does not get the file), or inherited, dup2,
//                       duplicate, kept (it does, and writes to it now and later)
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "staged.h"

extern char **environ;

static const char *how;

static int is(const char *name) { return !strcmp(how, name); }

// What the child of vfork does before it executes the command: the number, one digit for the shell, under which that finds
// the file.
static int hand_on(int fd) {
    if (is("dup2")) return dup2(fd, 8);
    if (is("duplicate")) return fcntl(fd, F_DUPFD, 7);
    if (is("kept")) return fcntl(fd, F_SETFD, 0) ? -1 : fd;
    return is("inherited") ? fd : -1;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    how = args[2];
    int ends[2], fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    // Neither says anything to the kernel about the file.
    if (ioctl(fd, is("inherited") ? FIONCLEX : FIOCLEX) || isatty(fd)) return 1;
    if (write(fd, "before\n", 7) != 7 || pipe2(ends, O_CLOEXEC)) return 1;
    if (!is_staged(fd)) fprintf(stderr, "not staged before\n");
    // Waits until it is told to go on, by the pipe's end.
    char script[100], *program[] = {"sh", "-c", script, NULL};
    snprintf(script, sizeof script, "true");
    pid_t child = 0;
    if (is("system")) {
        if (system(script)) return 1;
    } else if (is("popen")) {
        FILE *stream = popen(script, "r");
        if (!stream || pclose(stream)) return 1;
    } else if (is("posix_spawn")) {
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, program, environ)) return 1;
    } else if (!(child = vfork())) {
        int number = hand_on(fd);
        if (number >= 0) {
            snprintf(script, sizeof script, "echo now >&%d; read line <&%d; echo later >&%d", number, ends[0], number);
            fcntl(ends[0], F_SETFD, 0);
        }
        execve("/bin/sh", program, environ);
        _exit(1);
    }
    if (is("dup2") || is("duplicate") || is("kept") || is("inherited")) {
        // The command has written once.
        while (lseek(fd, 0, SEEK_CUR) != 11) usleep(1000);
        if (write(fd, "between\n", 8) != 8 || write(ends[1], "\n", 1) != 1) return 1;
    }
    int status = 0;
    if (child && (waitpid(child, &status, 0) != child || status)) return 1;
    if (write(fd, "after\n", 6) != 6 || write(fd, "end\n", 4) != 4) return 1;
    fprintf(stderr, "%s\n", is_staged(fd) ? "staged" : "plain");
    return 0;
}
