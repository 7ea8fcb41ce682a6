// Appends numbered lines to a file, one write each, and says so on standard output after each batch.
//   lines FILE FLAGS WHO BATCH...   FLAGS: a (O_APPEND), w (write only) and s (starts another program first); after
//                                   each batch a byte is read from standard input: after an e the file is closed, and at
//                                   its end the program waits for ever
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **args) {
    if (count < 5) return 2;
    int flags = O_CREAT | (strchr(args[2], 'a') ? O_APPEND : 0);
    flags |= strchr(args[2], 'w') ? O_WRONLY : O_RDWR;
    if (strchr(args[2], 's') && system("true")) return 1;
    int fd = open(args[1], flags, 0600), number = 0;
    if (fd < 0) {
        perror("open");
        return 1;
    }
    for (int batch = 4; batch < count; batch++) {
        for (int i = atoi(args[batch]); i > 0; i--) {
            char line[64];
            int len = sprintf(line, "%s %d\n", args[3], number++);
            if (write(fd, line, (size_t)len) != len) {
                perror("write");
                return 1;
            }
        }
        char byte;
        dprintf(1, "%d\n", number);
        if (read(0, &byte, 1) != 1) pause();
        if (byte == 'e') break;
    }
    return close(fd) != 0;
}
