// Writes one file over and over, each time all of it with another byte, until its standard input ends; then says how
// often. Who is refused because somebody reads, or because a busy monitor does not answer in time, tries again.
//   versions FILE HOW     one: in one call; parts: in a vector, through the offset; halves: a bug on purpose, in two calls
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LEN = 20000, FIRST = 9000 };
static char bytes[LEN];

static long version(int fd, char how) {
    struct iovec parts[] = {{bytes, FIRST}, {bytes + FIRST, LEN - FIRST}};
    switch (how) {
    case 'o': return pwrite(fd, bytes, LEN, 0);
    case 'p': return lseek(fd, 0, SEEK_SET) ? -1 : writev(fd, parts, 2);
    default:
        if (pwrite(fd, bytes, FIRST, 0) != FIRST) return -1;
        usleep(2000);
        return pwrite(fd, bytes + FIRST, LEN - FIRST, FIRST) < 0 ? -1 : LEN;
    }
}

int main(int count, char **args) {
    int fd = count > 2 ? open(args[1], O_RDWR | O_CREAT, 0600) : -1, done = 0;
    if (fd < 0) return 2;
    struct pollfd end = {0, POLLIN, 0};
    while (poll(&end, 1, 0) == 0) {
        memset(bytes, 'a' + done % 26, LEN);
        long written = version(fd, args[2][0]);
        if (written < 0 && (errno == EBUSY || errno == ECONNREFUSED)) {
            usleep(200);
            continue;
        }
        if (written != LEN) return 1;
        done++;
    }
    printf("%d\n", done);
    return close(fd);
}
