// Appends a line, then another with all signals blocked, and says what became of that.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **args) {
    int fd = open(args[count - 1], O_RDWR | O_CREAT | O_APPEND, 0600);
    sigset_t all;
    if (fd < 0 || write(fd, "one\n", 4) != 4) return 1;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    errno = 0;
    printf("%s\n", write(fd, "two\n", 4) == 4 ? "done" : strerror(errno));
    return 0;
}
