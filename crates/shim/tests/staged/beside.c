// One thread starts a process, slowly; meanwhile another opens a file and writes to it. The new process
// has the file's descriptor and writes as well.
//   beside FILE HOW   HOW: vfork, posix_spawn, popen or fork
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int starting, written;
static const char *path;
static int number;
extern char **environ;

static void *writes(void *nothing) {
    while (!starting) usleep(1000);
    // The other thread is on its way into the kernel, where strace keeps it.
    usleep(200000);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd != number || write(fd, "parent\n", 7) != 7) _exit(3);
    written = 1;
    return NULL;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    const char *how = args[2];
    char command[64];
    pthread_t thread;
    pid_t child = 0;
    path = args[1];
    // popen takes two for its pipe first.
    int low = open("/dev/null", O_RDONLY), next = low + (strcmp(how, "popen") ? 0 : 2);
    close(low);
    number = next;
    sprintf(command, "echo child >&%d", number);
    char *const program[] = {"sh", "-c", command, NULL};
    if (pthread_create(&thread, NULL, writes, NULL)) return 1;
    starting = 1;
    if (!strcmp(how, "vfork")) {
        child = vfork();
        if (child == 0) {
            execve("/bin/sh", program, environ);
            _exit(9);
        }
    } else if (!strcmp(how, "fork")) {
        child = fork();
        if (child == 0) {
            execve("/bin/sh", program, environ);
            _exit(9);
        }
    } else if (!strcmp(how, "posix_spawn")) {
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, program, environ)) return 1;
    } else {
        FILE *pipe = popen(command, "r");
        if (!pipe || pclose(pipe)) return 1;
    }
    int status = 0;
    if (child && (waitpid(child, &status, 0) != child || status)) return 1;
    pthread_join(thread, NULL);
    return written ? close(number) : 1;
}
