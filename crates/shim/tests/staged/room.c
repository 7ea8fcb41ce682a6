// Starts programs beside one file after another, which none of them gets, and keeps one file open all the time.
//   room FILE HOW COUNT   HOW: fork (and execute), vfork
// Says on standard error which files were not staged.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "staged.h"

int main(int count, char **args) {
    if (count < 4) return 2;
    int forks = !strcmp(args[2], "fork"), files = atoi(args[3]);
    int kept = open(args[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (int i = 0; i < files; i++) {
        char name[4100];
        snprintf(name, sizeof name, "%s.other", args[1]);
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), status;
        if (fd < 0 || write(fd, "one\n", 4) != 4 || write(kept, "line\n", 5) != 5) return perror("write"), 1;
        pid_t child = forks ? fork() : vfork();
        if (!child) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        if (waitpid(child, &status, 0) != child || status) return 1;
        if (write(fd, "two\n", 4) != 4) return perror("write"), 1;
        if (!is_staged(fd)) fprintf(stderr, "%d\n", i);
        if (close(fd)) return perror("close"), 1;
    }
    if (!is_staged(kept)) fprintf(stderr, "kept\n");
    return close(kept);
}
