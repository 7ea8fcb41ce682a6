// Writes a line to a file, another when it is told to on standard input, and reads the file by its
// name: what it finds goes to standard output.
//   reopens FILE HOW   HOW: o (open) or f (fopen)
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **args) {
    if (count < 3) return 2;
    int fd = open(args[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    char byte, line[64] = "";
    if (fd < 0 || write(fd, "first\n", 6) != 6) return 1;
    dprintf(1, "written\n");
    if (read(0, &byte, 1) != 1 || write(fd, "second\n", 7) != 7) return 1;
    if (args[2][0] == 'o') {
        int again = open(args[1], O_RDONLY);
        if (read(again, line, sizeof line - 1) < 0) return 1;
    } else {
        FILE *again = fopen(args[1], "r");
        if (!again || !fread(line, 1, sizeof line - 1, again)) return 1;
    }
    dprintf(1, "%s", line);
    return 0;
}
