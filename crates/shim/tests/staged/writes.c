// Makes a file of so many writes of so many bytes.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
    (void)count;
    int fd = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    long writes = atol(words[2]);
    size_t len = atol(words[3]);
    char *bytes = malloc(len);
    memset(bytes, 'w', len);
    for (long i = 0; i < writes; i++)
        if (write(fd, bytes, len) != (ssize_t)len)
            return 1;
    return close(fd) != 0;
}
