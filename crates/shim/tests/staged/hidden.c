// Closes a staged file where nobody sees it, and opens another one under its number; then it does what has everything
// looked at. It says how long the other file is, in which nothing may be written.
//   hidden FILE OTHER HOW      HOW: popen, fork
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long inline_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

int main(int count, char **args) {
    struct stat seen;
    if (count < 4) return 2;
    int fd = open(args[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (write(fd, "staged\n", 7) != 7) return 1;
    inline_call(SYS_close, fd, 0, 0);
    if (inline_call(SYS_open, (long)args[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600) != fd) return 3;
    if (!strcmp(args[3], "popen")) {
        if (pclose(popen("true", "r"))) return 4;
    } else {
        pid_t child = fork();
        int status;
        if (child == 0) _exit(0);
        if (waitpid(child, &status, 0) != child || status) return 5;
    }
    if (stat(args[2], &seen)) return 6;
    printf("%ld\n", (long)seen.st_size);
    fflush(stdout);
    // What is done at the end of a program is not asked about here.
    inline_call(SYS_exit_group, 0, 0, 0);
}
