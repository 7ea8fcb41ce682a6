// Locks a file in two ways, writes to it, says so, and waits to be killed.
//   locked FILE
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

int main(int count, char **args) {
    if (count < 2) return 2;
    int fd = open(args[1], O_RDWR | O_CREAT, 0600);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (flock(fd, LOCK_EX | LOCK_NB) || fcntl(fd, F_OFD_SETLK, &whole)) return 3;
    if (write(fd, "locked\n", 7) != 7 || write(1, "locked\n", 7) != 7) return 1;
    pause();
    return 0;
}
