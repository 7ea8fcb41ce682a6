// Makes a file of so many writes of so many bytes; exits with 28 when there is no space.
//   writes FILE COUNT LEN [log | synced]   log: appends; synced: and has synced it before
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
    int fd = open(words[1], O_RDWR | O_CREAT | O_TRUNC | (count > 4 ? O_APPEND : 0), 0644);
    long writes = atol(words[2]);
    size_t len = atol(words[3]);
    char *bytes = malloc(len);
    memset(bytes, 'w', len);
    if (count > 4 && !strcmp(words[4], "synced") && fsync(fd))
        return 1;
    for (long i = 0; i < writes; i++)
        if (write(fd, bytes, len) != (ssize_t)len)
            return errno == ENOSPC ? 28 : 1;
    return close(fd) != 0;
}
