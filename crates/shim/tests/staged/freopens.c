// Puts other files on the descriptors of streams that write, and looks at what became of both.
//   freopens CASE FILE   (CASE is not looked at)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "staged.h"

static void staged_now(int fd) {
    if (is_staged(fd)) fprintf(stderr, "staged\n");
}

static void show(const char *name) {
    char text[256] = "";
    int fd = open(name, O_RDONLY);
    ssize_t len = read(fd, text, sizeof text - 1);
    printf("%s: %zd bytes: %s\n", name, len, len > 0 ? text : "");
    close(fd);
}

int main(int count, char **args) {
    if (count < 3) return 2;
    FILE *file = fopen(args[2], "w");
    fputs("buffered, and then\n", file);
    fflush(file);
    staged_now(fileno(file));
    fputs("another file\n", file);
    // Over a staged one, to write and to read back.
    file = freopen("second", "w+", file);
    printf("second: %d\n", file != NULL);
    show(args[2]);
    fputs("of the second\n", file);
    rewind(file);
    char line[64] = "";
    printf("reads %d: %s", fgets(line, sizeof line, file) != NULL, line);
    fseek(file, 0, SEEK_END);
    fputs("more\n", file);
    // To append to the first.
    file = freopen(args[2], "a", file);
    show("second");
    fprintf(file, "appended at %ld\n", ftell(file));
    fflush(file);
    // The same file again, cut; then with nothing written in between.
    file = freopen(args[2], "w", file);
    show(args[2]);
    fputs("once more\n", file);
    file = freopen(args[2], "r+", file);
    printf("reads %d: %s", fgets(line, sizeof line, file) != NULL, line);
    fseek(file, 0, SEEK_SET);
    fputs("ONCE", file);
    // A change of mode alone, and a name that there is not.
    file = freopen(NULL, "r", file);
    printf("mode: %s, %s\n", file ? "changed" : strerrorname_np(errno), line);
    if (!file) file = fopen("third", "w");
    FILE *none = freopen("no/such/file", "w", file);
    printf("none: %d %s\n", none != NULL, strerrorname_np(errno));
    show(args[2]);
    // A standard stream, whose number the kernel keeps.
    fflush(stdout);
    int kept = dup(1);
    freopen("output", "w", stdout);
    printf("to a file\n");
    fflush(stdout);
    dup2(kept, 1);
    show("output");
    return 0;
}
