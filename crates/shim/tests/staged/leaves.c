// Moves FILE in its directory, DIR, and leaves that by a jump from a handler. Says whether it left it, and how many
// descriptors it has of the directory then.
//   leaves FILE DIR
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sigjmp_buf place;
static volatile sig_atomic_t jumps;

static void jump(int number) {
    if (jumps) siglongjmp(place, 1);
}

static int opened(const char *dir) {
    struct stat wanted, found;
    int count = 0;
    stat(dir, &wanted);
    for (int fd = 0; fd < 100; fd++) count += !fstat(fd, &found) && found.st_ino == wanted.st_ino;
    return count;
}

int main(int count, char **args) {
    if (count < 3) return 2;
    char there[4096];
    snprintf(there, sizeof there, "%s-there", args[1]);
    signal(SIGUSR1, jump);
    close(open(args[1], O_CREAT | O_WRONLY, 0600));
    volatile int left = 1;
    if (!sigsetjmp(place, 1)) {
        jumps = 1;
        rename(args[1], there);
        left = 0;
    }
    jumps = 0;
    printf("left %d, open %d\n", left, opened(args[2]));
    return 0;
}
