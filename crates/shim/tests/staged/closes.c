// A thread closes a description while a child of vfork, which another one has made, goes on with it.
//   closes FILE STATE HOW   STATE: staged, fresh (nothing was written through it), inherited (by a forked child)
//                           HOW: close, dup2 (something else gets the number), close_range
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int stage;
static int fd;
static const char *how;

static void *closes(void *nothing) {
    while (stage != 1) ;
    int other = open("/dev/null", O_RDONLY), bad;
    if (!strcmp(how, "close")) bad = close(fd);
    else if (!strcmp(how, "dup2")) bad = dup2(other, fd) != fd;
    else bad = close_range(fd, fd, 0);
    if (bad) perror(how);
    stage = 2;
    return nothing;
}

static int go_on(void) {
    pthread_t closer;
    int status;
    if (pthread_create(&closer, NULL, closes, NULL)) return 1;
    pid_t child = vfork();
    if (!child) {
        stage = 1;
        while (stage != 2) ;
        _exit(write(fd, "child\n", 6) != 6);
    }
    pthread_join(closer, NULL);
    return waitpid(child, &status, 0) != child || status;
}

int main(int count, char **args) {
    if (count < 4) return 2;
    how = args[3];
    fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (write(fd, "before\n", 7) != 7) return perror("write"), 1;
    if (!strcmp(args[2], "fresh")) {
        if (close(fd)) return 1;
        fd = open(args[1], O_RDWR | O_CLOEXEC);
        if (lseek(fd, 7, SEEK_SET) != 7) return 1;
    }
    if (strcmp(args[2], "inherited")) return go_on();
    pid_t child = fork();
    if (!child) _exit(go_on());
    int status;
    return waitpid(child, &status, 0) != child || status || write(fd, "after\n", 6) != 6;
}
