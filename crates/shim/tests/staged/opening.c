// A thread opens a file, slowly; meanwhile another one makes a child of vfork, which finds the file by its number, and
// waits until that thread has written to it.
//   opening FILE [append]
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *path;
static int number, append;
static volatile int written, begun;

static void *opens(void *nothing) {
    begun = 1;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | append, 0600);
    if (fd != number || write(fd, "before\n", 7) != 7) _exit(3);
    written = 1;
    return nothing;
}

int main(int count, char **args) {
    if (count < 2) return 2;
    path = args[1];
    append = count > 2 ? O_APPEND : 0;
    number = dup(0);
    close(number);
    pthread_t thread;
    int status;
    pthread_create(&thread, NULL, opens, NULL);
    while (!begun) ;
    // The other thread's open has returned, and strace keeps what follows.
    while (fcntl(number, F_GETFD) < 0) usleep(1000);
    pid_t child = vfork();
    if (!child) {
        while (!written) usleep(1000);
        _exit(write(number, "child\n", 6) != 6);
    }
    if (waitpid(child, &status, 0) != child || status) return 1;
    pthread_join(thread, NULL);
    return write(number, "after\n", 6) != 6 || close(number);
}
