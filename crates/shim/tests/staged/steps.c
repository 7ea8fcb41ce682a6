// Appends to a file, reads, syncs and closes, and says of each call what came of it; what was written
// although not all of the call's bytes counts as failed.
//   steps FILE [syncfs]   syncs in this way
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void said(const char *call, long result, long expected) {
    char line[64];
    const char *came = result == expected ? "done" : result < 0 ? strerrorname_np(errno) : "short";
    // Not dprintf, which asks for the offset first.
    write(1, line, (size_t)sprintf(line, "%s %s\n", call, came));
}

int main(int count, char **args) {
    static char page[5000], back[5000];
    memset(page, 'p', sizeof page);
    page[sizeof page - 1] = '\n';
    said("begin", 0, 0);
    int fd = open(args[1], O_RDWR | O_CREAT | O_APPEND, 0600);
    said("open", fd < 0 ? -1 : 0, 0);
    if (fd < 0) return 0;
    said("one", write(fd, "one\n", 4), 4);
    said("page", write(fd, page, sizeof page), sizeof page);
    said("fsync", count > 2 ? syncfs(fd) : fsync(fd), 0);
    said("two", write(fd, "two\n", 4), 4);
    said("read", pread(fd, back, 4, 0), 4);
    said("three", pwrite(fd, "three\n", 6, 0), 6);
    said("close", close(fd), 0);
    return 0;
}
