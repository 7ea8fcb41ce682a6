// Does to a file what it is told, one command for each line of standard input, and answers each with "done" or the
// error.
//   oN FLAGS   opens it as number N (0 to 9), FLAGS: r (O_RDONLY), a (O_APPEND), s (O_SYNC), d (O_DIRECT),
//              t (O_TMPFILE in its directory), T (so that it can get no name), f (fopen "a"), y (tmpfile)
//   wN TEXT    writes a line through it            cN   closes
//   dN         duplicates it and closes the copy   tN   cuts it to nothing
//   u          removes its name
//   hN, eN     changes its rights and its owner, or its times, through it; H, E by its name
//   m COUNT    opens so many files beside it, FILE.0 and so on, and writes to each; says how many were opened
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int many(const char *path, int count) {
    for (int i = 0; i < count; i++) {
        char name[4200];
        sprintf(name, "%s.%d", path, i);
        int fd = open(name, O_RDWR | O_CREAT, 0600);
        if (fd < 0) return i;
        if (write(fd, name, strlen(name)) != (ssize_t)strlen(name)) return -1;
    }
    return count;
}

int main(int count, char **args) {
    if (count < 2) return 2;
    int fds[10], opened;
    char line[256];
    size_t len = 0;
    while (len < sizeof line && read(0, line + len, 1) == 1) {
        if (line[len++] != '\n') continue;
        line[len - 1] = 0;
        int *fd = &fds[(line[1] - '0') % 10], flags = O_RDWR;
        long result = -1;
        errno = 0;
        switch (line[0]) {
        case 'o':
            flags = strchr(line, 'r') ? O_RDONLY : O_RDWR;
            flags |= strchr(line, 'a') ? O_APPEND : 0;
            flags |= strchr(line, 's') ? O_SYNC : 0;
            flags |= strchr(line, 'd') ? O_DIRECT : 0;
            if (strchr(line, 'f')) {
                FILE *stream = fopen(args[1], "a");
                result = *fd = stream ? fileno(stream) : -1;
            } else if (strchr(line, 't')) {
                result = *fd = open(dirname(strdup(args[1])), flags | O_TMPFILE, 0600);
            } else if (strchr(line, 'T')) {
                result = *fd = open(dirname(strdup(args[1])), flags | O_TMPFILE | O_EXCL, 0600);
            } else if (strchr(line, 'y')) {
                FILE *stream = tmpfile();
                result = *fd = stream ? fileno(stream) : -1;
            } else if (strchr(line, 'k')) {
                result = *fd = open("/proc/self/comm", flags);
            } else if (strchr(line, 'K')) {
                FILE *stream = fopen("/proc/self/comm", "w");
                result = *fd = stream ? fileno(stream) : -1;
            } else {
                result = *fd = open(args[1], flags | (flags & O_ACCMODE ? O_CREAT : 0), 0600);
            }
            break;
        case 'w':
            strcat(line, "\n");
            result = write(*fd, line + 3, strlen(line + 3)) == (ssize_t)strlen(line + 3) ? 0 : -1;
            break;
        case 'd': result = close(dup(*fd)); break;
        case 't': result = ftruncate(*fd, 0); break;
        case 'c': result = close(*fd); break;
        case 'u': result = unlink(args[1]); break;
        case 'h': result = fchmod(*fd, 0640) | fchown(*fd, getuid(), getgid()); break;
        case 'H': result = chmod(args[1], 0600) | chown(args[1], getuid(), getgid()); break;
        case 'e': result = futimens(*fd, NULL); break;
        case 'E': result = utimensat(AT_FDCWD, args[1], NULL, 0); break;
        case 'm':
            opened = many(args[1], atoi(line + 2));
            dprintf(1, "%d %s\n", opened, errno ? strerrorname_np(errno) : "-");
            len = 0;
            continue;
        }
        dprintf(1, "%s\n", result >= 0 ? "done" : strerrorname_np(errno));
        len = 0;
    }
    return 0;
}
