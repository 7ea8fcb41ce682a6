// Does to a file what it is told, one command for each line of standard input, and answers each with "done" or the
// error.
//   oN FLAGS   opens it as number N (0 to 9), FLAGS: r (O_RDONLY), a (O_APPEND), s (O_SYNC), d (O_DIRECT),
//              t (O_TMPFILE in its directory), T (so that it can get no name), f (fopen "a"), y (tmpfile)
//   ON HOW     opens it and cuts it: c (O_TRUNC), C (creat), n, m (openat and creat by number), w (fopen "w"), W ("w+e"),
//              2 (openat2 by number), 3 (the same with signals blocked), f (freopen "w" of a stream of another file),
//              F ("w+e" of one of itself)
//   wN TEXT    writes a line through it            cN   closes
//   dN         duplicates it and closes the copy   tN   cuts it to nothing
//   bN         duplicates it, closes it by number and goes on with the copy
//   FN         opens it as a stream to be read, and closes that
//   AN TEXT    writes a line through a stream of it that appends
//   DN         duplicates in its place what is not open
//   u          removes its name
//   hN, eN     changes its rights and its owner, or its times, through it; H, E by its name
//   vN HOW     has the kernel copy the line of FILE.source into it, at its offset: r (copy_file_range), s (sendfile),
//              p (splice), c (FICLONE), g (FICLONERANGE), or in vain: z (no byte), d (of a directory), b (of nothing),
//              f (with flags that mean nothing)
//   VN HOW     has the kernel copy it to FILE.copy: r, s, p at its offset, R, S at another one, c (FICLONE)
//   pN HOW     makes room in it: k (FALLOC_FL_KEEP_SIZE), l (posix_fallocate, to 20 bytes), n (to 24, by number), or
//              none: h (punches a hole over its first line)
//   nN TEXT    writes a line through it by the call's number; NN in a vector, xN in one with flags that say nothing, XN
//              in one with RWF_APPEND, and YN by that call's name
//   BN         lets a thread wait in splice into it, writes a line behind, and lets that thread go on
//   q          has a child of vfork execute what is not there, and call exit
//   m COUNT    opens so many files beside it, FILE.0 and so on, and writes to each; says how many were opened
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
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

enum { LINE = 5 };

static int beside(const char *path, const char *what, int flags) {
    char name[4200];
    sprintf(name, "%s.%s", path, what);
    return open(name, flags, 0600);
}

static long copy_into(int fd, const char *path, char how) {
    int source = how == 'd' ? open("/", O_RDONLY) : how == 'b' ? -1 : beside(path, "source", O_RDONLY), ends[2];
    struct file_clone_range range = {source, 0, 0, 0};
    long result = -1;
    switch (how) {
    case 's': result = sendfile(fd, source, NULL, LINE); break;
    case 'p':
        if (pipe(ends) || write(ends[1], "copy\n", LINE) != LINE) return -1;
        result = splice(ends[0], NULL, fd, NULL, LINE, 0);
        close(ends[0]), close(ends[1]);
        break;
    case 'c': result = ioctl(fd, FICLONE, source); break;
    case 'g': result = ioctl(fd, FICLONERANGE, &range); break;
    default: result = copy_file_range(source, NULL, fd, NULL, how == 'z' ? 0 : LINE, how == 'f');
    }
    int saved = errno;
    if (source >= 0) close(source);
    errno = saved;
    return result;
}

static long copy_from(int fd, const char *path, char how) {
    int to = beside(path, "copy", O_WRONLY | O_CREAT | O_TRUNC), ends[2];
    char bytes[4096];
    off_t at = 0;
    long result = -1;
    switch (how) {
    case 'r': lseek(fd, 0, SEEK_SET), result = copy_file_range(fd, NULL, to, NULL, sizeof bytes, 0); break;
    case 'R': result = copy_file_range(fd, &at, to, NULL, sizeof bytes, 0); break;
    case 's': lseek(fd, 0, SEEK_SET), result = sendfile(to, fd, NULL, sizeof bytes); break;
    case 'S': result = sendfile(to, fd, &at, sizeof bytes); break;
    case 'c': result = ioctl(to, FICLONE, fd); break;
    case 'p':
        if (pipe(ends)) return -1;
        lseek(fd, 0, SEEK_SET), result = splice(fd, NULL, ends[1], NULL, sizeof bytes, 0);
        if (write(to, bytes, read(ends[0], bytes, sizeof bytes)) != result) return -1;
        close(ends[0]), close(ends[1]);
    }
    int saved = errno;
    close(to);
    if (result < 0) lseek(fd, 0, SEEK_END);
    errno = saved;
    return result;
}

struct wait { int from, to; long result; };

static void *wait_in_splice(void *argument) {
    struct wait *wait = argument;
    wait->result = splice(wait->from, NULL, wait->to, NULL, LINE, 0);
    return NULL;
}

static long write_beside_a_copy(int fd) {
    int ends[2];
    pthread_t thread;
    if (pipe(ends)) return -1;
    struct wait wait = {ends[0], fd, -1};
    off_t end = lseek(fd, 0, SEEK_END);
    pthread_create(&thread, NULL, wait_in_splice, &wait);
    // Only that it has begun to wait shows that it waits.
    usleep(200000);
    long written = pwrite(fd, "text\n", LINE, end + LINE);
    if (write(ends[1], "copy\n", LINE) != LINE) return -1;
    pthread_join(thread, NULL);
    close(ends[0]), close(ends[1]);
    if (lseek(fd, 0, SEEK_CUR) != end + LINE) return -1;
    lseek(fd, 0, SEEK_END);
    return written == LINE && wait.result == LINE ? 0 : -1;
}

static long make_room(int fd, char how) {
    switch (how) {
    case 'k': return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 9000);
    case 'l': return -(errno = posix_fallocate(fd, 0, 20));
    case 'n': return syscall(SYS_fallocate, fd, 0, 0, 24);
    default: return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4);
    }
}

static int open_cutting(const char *path, char how) {
    FILE *stream;
    struct open_how asked = {O_RDWR | O_CREAT | O_TRUNC, 0600, RESOLVE_NO_MAGICLINKS};
    sigset_t all, before;
    switch (how) {
    case 'c': return open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    case 'C': return creat(path, 0600);
    case 'n': return syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    case 'm': return syscall(SYS_creat, path, 0600);
    case '2': return syscall(SYS_openat2, AT_FDCWD, path, &asked, sizeof asked);
    case '3':
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        int fd = syscall(SYS_openat2, AT_FDCWD, path, &asked, sizeof asked);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return fd;
    case 'f': stream = freopen(path, "w", fopen("/dev/null", "r")); break;
    case 'F': stream = freopen(path, "w+e", fopen(path, "a")); break;
    default: stream = fopen(path, how == 'w' ? "w" : "w+e");
    }
    return stream ? fileno(stream) : -1;
}

static long write_by_number(int fd, char *text, char how) {
    size_t len = strlen(text);
    struct iovec parts[] = {{text, 1}, {text + 1, len - 1}};
    long written = -1;
    switch (how) {
    case 'n': written = syscall(SYS_write, fd, text, len); break;
    case 'N': written = syscall(SYS_writev, fd, parts, 2); break;
    case 'x': written = syscall(SYS_pwritev2, fd, parts, 2, -1L, 0L, 0); break;
    case 'X': written = syscall(SYS_pwritev2, fd, parts, 2, -1L, 0L, RWF_APPEND); break;
    case 'Y': written = pwritev2(fd, parts, 2, -1, RWF_APPEND); break;
    }
    return written == (long)len ? 0 : -1;
}

static int exit_in_the_parents_memory(void) {
    int status;
    pid_t child = vfork();
    if (!child) {
        execl("/nowhere", "nothing", (char *)NULL);
        exit(7);
    }
    return waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7 ? 0 : -1;
}

static long go_on_with_a_copy(int *fd) {
    int copy = dup(*fd);
    long closed = syscall(SYS_close, *fd);
    *fd = copy;
    return closed;
}

int main(int count, char **args) {
    if (count < 2) return 2;
    int fds[10], opened;
    char line[256];
    size_t len = 0;
    FILE *stream;
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
        case 'O': result = *fd = open_cutting(args[1], line[3]); break;
        case 'w':
            strcat(line, "\n");
            result = write(*fd, line + 3, strlen(line + 3)) == (ssize_t)strlen(line + 3) ? 0 : -1;
            break;
        case 'n':
        case 'N':
        case 'x':
        case 'X':
        case 'Y':
            strcat(line, "\n");
            result = write_by_number(*fd, line + 3, line[0]);
            break;
        case 'p': result = make_room(*fd, line[3]); break;
        case 'b': result = go_on_with_a_copy(fd); break;
        case 'd': result = close(dup(*fd)); break;
        case 't': result = ftruncate(*fd, 0); break;
        case 'c': result = close(*fd); break;
        case 'v': result = copy_into(*fd, args[1], line[3]); break;
        case 'V': result = copy_from(*fd, args[1], line[3]); break;
        case 'B': result = write_beside_a_copy(*fd); break;
        case 'F': stream = fopen(args[1], "r"), result = stream ? fclose(stream) : -1; break;
        case 'A':
            stream = fdopen(*fd, "a");
            result = stream && fprintf(stream, "%s\n", line + 3) > 0 ? fflush(stream) : -1;
            break;
        case 'D': result = dup2(-1, *fd); break;
        case 'u': result = unlink(args[1]); break;
        case 'h': result = fchmod(*fd, 0640) | fchown(*fd, getuid(), getgid()); break;
        case 'H': result = chmod(args[1], 0600) | chown(args[1], getuid(), getgid()); break;
        case 'e': result = futimens(*fd, NULL); break;
        case 'E': result = utimensat(AT_FDCWD, args[1], NULL, 0); break;
        case 'q': result = exit_in_the_parents_memory(); break;
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
