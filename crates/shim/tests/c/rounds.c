/* Writes, overwrites and reads back one file through one descriptor, and says what every call
 * answered. Nothing it prints depends on whether a call was served in user space. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PAGES = 64, PAGE = 4096 };

static char model[PAGES * PAGE];
static char buffer[PAGE];

static int failures;

static void differ(const char *what, int page)
{
    printf("%s of page %d: %s\n", what, page, strerror(errno));
    failures++;
}

static void overwrite(int fd, int page, int round)
{
    memset(buffer, 'a' + (page + round) % 26, PAGE);
    memcpy(model + page * PAGE, buffer, PAGE);
    if (pwrite(fd, buffer, PAGE, (off_t)page * PAGE) != PAGE)
        differ("pwrite", page);
}

static void check(int fd, int page)
{
    memset(buffer, 0, PAGE);
    if (pread(fd, buffer, PAGE, (off_t)page * PAGE) != PAGE)
        differ("pread", page);
    else if (memcmp(buffer, model + page * PAGE, PAGE) != 0)
        differ("contents", page);
}

static void sequentially(int fd)
{
    if (lseek(fd, 0, SEEK_SET) != 0)
        differ("lseek", 0);
    for (int page = 0; page < PAGES; page++) {
        if (read(fd, buffer, PAGE) != PAGE)
            differ("read", page);
        else if (memcmp(buffer, model + page * PAGE, PAGE) != 0)
            differ("sequential contents", page);
    }
    if (read(fd, buffer, PAGE) != 0)
        differ("end of file", PAGES);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return 3;
    for (int page = 0; page < PAGES; page++)
        overwrite(fd, page, 0);
    for (int round = 1; round < 6; round++) {
        for (int page = 0; page < PAGES; page++)
            check(fd, page);
        sequentially(fd);
        for (int page = 0; page < PAGES; page++)
            overwrite(fd, (page * 7) % PAGES, round);
        if (fsync(fd) != 0)
            differ("fsync", round);
    }
    if (close(fd) != 0)
        differ("close", 0);
    /* When opens are made to fail, this is one of them. */
    int again = -1;
    for (int attempt = 0; attempt < 8 && again < 0; attempt++)
        again = open(argv[1], O_RDONLY);
    for (int page = 0; page < PAGES; page++)
        check(again, page);
    printf("%d differences\n", failures);
    return failures != 0;
}
