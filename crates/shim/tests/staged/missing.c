/* What dlerror tells of a library that is not there, after calls that the program has not made before. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *path;
static int fd;

static void opens(void) { fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600); }
static void writes(void) { write(fd, "line\n", 5); }
static void reads(void) {
    char text[5];
    struct iovec piece = {text, sizeof text};
    preadv(fd, &piece, 1, 0);
}
static void syncs(void) { fsync(fd); }
static void looks(void) {
    struct stat stat;
    fstat(fd, &stat);
}
static void cuts(void) { ftruncate(fd, 2); }
static void streams(void) { fclose(fopen(path, "a")); }
static void closes(void) { close(fd); }

int main(int argc, char **argv) {
    static void (*const calls[])(void) = {opens, writes, reads, syncs, looks, cuts, streams, closes};
    path = argv[1];
    for (unsigned call = 0; call < sizeof calls / sizeof *calls; call++) {
        char name[32];
        snprintf(name, sizeof name, "libmissing%u.so", call);
        /* By a handle, and by a name. */
        if (call % 2)
            dlsym(dlopen(NULL, RTLD_LAZY), name);
        else
            dlopen(name, RTLD_LAZY);
        calls[call]();
        const char *said = dlerror();
        dprintf(1, "%s\n", said ? said : "nothing");
    }
    return 0;
}
