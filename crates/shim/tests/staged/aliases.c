// Writes a line, and then gives the file's description to others in every way, or has the kernel use it;
// what each call said goes to standard output.
//   aliases FILE
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed(void) { return errno == 0 ? -1 : errno; }

static void said(const char *call, int error) {
    dprintf(1, "%s %s\n", call, error ? strerrorname_np(error) : "done");
}

static char *const program[] = {"true", NULL};
extern char **environ;

static int ended(pid_t child) {
    int status = 0;
    if (child < 0) return failed();
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : ECHILD;
}

static int forked(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    return ended(child);
}

static int vforked(void) {
    pid_t child = vfork();
    if (child == 0) _exit(0);
    return ended(child);
}

static int spawned(void) {
    pid_t child;
    int error = posix_spawn(&child, "/bin/true", NULL, NULL, program, environ);
    return error ? error : ended(child);
}

static int opened(void) {
    FILE *pipe = popen("true", "r");
    return pipe ? (pclose(pipe) ? EIO : 0) : failed();
}

static int sent(int fd) {
    int pair[2];
    char byte = 0;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {.head = {CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1,
        .msg_control = control.room, .msg_controllen = sizeof control.room};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return failed();
    return sendmsg(pair[0], &message, 0) == 1 ? 0 : failed();
}

static int mapped(int fd) {
    return mmap(NULL, 5, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? failed() : 0;
}

static int streamed(int fd) {
    FILE *stream = fdopen(fd, "a");
    return stream ? 0 : failed();
}

static int waited(int fd) {
    char byte;
    struct aiocb request = {.aio_fildes = fd, .aio_buf = &byte, .aio_nbytes = 1};
    const struct aiocb *list[] = {&request};
    if (aio_read(&request)) return failed();
    aio_suspend(list, 1, NULL);
    return aio_error(&request);
}

#define TRY(name, call) said(name, (errno = 0, (call) >= 0) ? 0 : failed())
#define ERROR(name, call) said(name, (errno = 0, call))

int main(int count, char **args) {
    int fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600), room = 0;
    int null = open("/dev/null", O_WRONLY);
    char byte;
    struct iovec part = {&byte, 1};
    if (fd < 0 || null < 0 || write(fd, "line\n", 5) != 5) return 1;
    // A program that is put in the place of this one would end it: this one cannot start.
    TRY("execve", count > 2 ? execve("/bin/true", program, environ) : 0);
    ERROR("fork", forked());
    ERROR("vfork", vforked());
    ERROR("posix_spawn", spawned());
    ERROR("popen", opened());
    TRY("system", system("true"));
    ERROR("sendmsg", sent(fd));
    TRY("dup", dup(fd));
    TRY("dup2", dup2(fd, 40));
    TRY("dup3", dup3(fd, 41, O_CLOEXEC));
    TRY("F_DUPFD", fcntl(fd, F_DUPFD, 42));
    TRY("F_SETFL", fcntl(fd, F_SETFL, 0));
    TRY("F_SETOWN", fcntl(fd, F_SETOWN, 0));
    TRY("SEEK_HOLE", lseek(fd, 0, SEEK_HOLE));
    TRY("preadv2", preadv2(fd, &part, 1, 0, RWF_HIPRI));
    TRY("pwritev2", pwritev2(fd, &(struct iovec){"l", 1}, 1, 0, RWF_DSYNC));
    TRY("FIONREAD", ioctl(fd, FIONREAD, &room));
    TRY("lockf", lockf(fd, F_TEST, 1));
    TRY("sendfile", sendfile(null, fd, NULL, 0));
    TRY("copy_file_range", copy_file_range(fd, NULL, fd, NULL, 0, 0));
    TRY("fallocate", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 5));
    ERROR("posix_fallocate", posix_fallocate(fd, 0, 5));
    ERROR("mmap", mapped(fd));
    ERROR("aio_read", waited(fd));
    ERROR("fdopen", streamed(fd));
    TRY("syscall", syscall(SYS_lseek, fd, 0, SEEK_CUR));
    TRY("close", close(fd));
    return 0;
}
