// Copies a file to standard output, which it opens as tar does.
//   impatient FILE
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **args) {
    char bytes[4096];
    ssize_t got;
    int dir = open("/", O_RDONLY | O_DIRECTORY);
    // By turns through either entry.
    for (int turn = 0; turn < 2; turn++) {
        int flags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW;
        int fd = turn ? openat(dir, args[1], flags) : open(args[1], flags);
        if (fd < 0 || !(fcntl(fd, F_GETFL) & O_NONBLOCK)) return perror("open"), 1;
        while (!turn && (got = read(fd, bytes, sizeof bytes)) > 0) fwrite(bytes, 1, (size_t)got, stdout);
        close(fd);
    }
    return 0;
}
