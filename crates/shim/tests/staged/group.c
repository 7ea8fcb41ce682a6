// Writes to two files as it is told, one command for each line of standard input, and answers each:
//   wA TEXT, wB TEXT   appends          fA, fB   fsync          dA, dB   fdatasync
//   g                  adit_commit_group of both                 r        of the first and a pipe
//   hA, hB             of one of them
//   x                  of the first and of a number that is none  cA, cB  closes
//   tA, tB             sets its times to the second million of seconds
//   eA, eB             sync_file_range
//   p                  has a child that ends at once              s        starts a program
//   k, q               has a child that stays; ends it            u        has one that uses both, and stays
//   iA, iB             asks for a clone that there cannot be
// The library may be there or not: its function is looked up weakly, as adit.h says.
#define _GNU_SOURCE
#define ADIT_WEAK
#include <adit.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **args) {
    if (count < 3) return 2;
    int fds[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = open(args[1 + i], O_CREAT | O_WRONLY | O_APPEND, 0600);
        if (fds[i] < 0) return 1;
    }
    int ends[2];
    if (pipe(ends) != 0) return 1;
    pid_t child = 0;
    char line[256];
    size_t len = 0;
    while (len < sizeof line && read(0, line + len, 1) == 1) {
        if (line[len++] != '\n') continue;
        line[len - 1] = 0;
        int fd = line[1] == 'B' ? fds[1] : fds[0], result = -2;
        errno = 0;
        switch (line[0]) {
        case 'w': result = write(fd, line + 3, strlen(line + 3)) < 0 ? -1 : 0; break;
        case 'f': result = fsync(fd); break;
        case 'd': result = fdatasync(fd); break;
        case 'e': result = sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE); break;
        case 'c': result = close(fd); break;
        case 'p': if (fork() == 0) _exit(0); result = wait(NULL) < 0 ? -1 : 0; break;
        case 's': result = system("true"); break;
        case 'u':
            result = (child = fork()) < 0 ? -1 : 0;
            if (child == 0) {
                alarm(20);
                if (lseek(fds[0], 0, SEEK_END) >= 0 && lseek(fds[1], 0, SEEK_END) >= 0) write(ends[1], "x", 1);
                pause();
            }
            if (read(ends[0], line, 1) != 1) result = -1;
            break;
        case 'k': result = (child = fork()) < 0 ? -1 : 0; if (child == 0) { alarm(20); pause(); } break;
        case 'i': result = ioctl(fd, FICLONE, fd); break;
        case 'q': result = kill(child, SIGKILL) < 0 || wait(NULL) < 0 ? -1 : 0; break;
        case 'g': result = adit_commit_group ? adit_commit_group(fds, 2) : 77; break;
        case 'h': result = adit_commit_group ? adit_commit_group(&fd, 1) : 77; break;
        case 't': result = futimens(fd, (struct timespec[]){{2000000, 0}, {2000000, 0}}); break;
        case 'r': result = adit_commit_group ? adit_commit_group((int[]){fds[0], ends[1]}, 2) : 77; break;
        case 'x': result = adit_commit_group ? adit_commit_group((int[]){fds[0], 999}, 2) : 77; break;
        }
        dprintf(1, "%d %s\n", result, result < 0 ? strerrorname_np(errno) : "-");
        len = 0;
    }
    return 0;
}
