// What room that is reserved inside a file, or behind its end, does to the times that others see.
//   reserved - FILE
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "staged.h"

static const char *path;

static long long modified(void) {
    struct stat now;
    if (stat(path, &now)) perror("stat");
    return now.st_mtim.tv_sec * 1000000000LL + now.st_mtim.tv_nsec;
}

int main(int count, char **args) {
    static char bytes[8192];
    if (count < 3) return 2;
    path = args[2];
    memset(bytes, 'x', sizeof bytes);
    for (int how = 0; how < 4; how++) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        for (int i = 0; i < 3; i++)
            if (write(fd, bytes, sizeof bytes) != sizeof bytes) perror("write");
        if (is_staged(fd)) fprintf(stderr, "staged\n");
        long long before = modified();
        usleep(20000);
        int result = how == 0   ? fallocate(fd, 0, 0, 100)
                     : how == 1 ? fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20)
                     : how == 2 ? posix_fallocate(fd, 0, sizeof bytes)
                                : fallocate(fd, 0, 0, 1 << 20);
        int open = modified() > before;
        usleep(20000);
        close(fd);
        printf("%d: %d, later %d, closed %d\n", how, result, open, modified() > before);
    }
    return 0;
}
