// Reads a file through a description that may write, while somebody else changes it, then writes and
// reads again. Every byte is checked; what was wrong goes to standard output.
//   looks FILE   which it makes first
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, ROUNDS = 40 };
static int wrong;

static void page_of(char *page, int number, int version) {
    for (int i = 0; i < PAGE; i++) page[i] = (char)(number * 7 + version * 31 + i % 251);
}

static void check(const char *what, const char *got, int number, int version) {
    char page[PAGE];
    page_of(page, number, version);
    if (memcmp(page, got, PAGE)) printf("%s: page %d\n", what, number), wrong++;
}

// Another process, which knows nothing of Adit.
static void outsider(const char *path, const char *script) {
    pid_t child = fork();
    int status;
    if (child == 0) {
        char *none[] = {NULL};
        execle("/bin/sh", "sh", "-c", script, path, NULL, none);
        _exit(9);
    }
    if (waitpid(child, &status, 0) != child || status) printf("outsider: %d\n", status), wrong++;
}

int main(int count, char **args) {
    char page[PAGE], back[2 * PAGE];
    int fd = open(args[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < PAGES; i++) {
        page_of(page, i, 0);
        if (write(fd, page, PAGE) != PAGE) return 1;
    }
    close(fd);
    fd = open(args[1], O_RDWR);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PAGES - 1; i++) {
            if (pread(fd, back, PAGE, i * PAGE) != PAGE) printf("pread\n"), wrong++;
            check("pread", back, i, 0);
        }
    }
    for (int i = 0; i < PAGES; i++) {
        if (read(fd, back, PAGE) != PAGE) printf("read\n"), wrong++;
        check("read", back, i, 0);
    }
    if (read(fd, back, PAGE) != 0 || lseek(fd, 0, SEEK_CUR) != PAGES * PAGE) printf("end\n"), wrong++;
    // The first write: from here on the pool has the newest bytes.
    page_of(page, 3, 1);
    if (pwrite(fd, page, PAGE, 3 * PAGE) != PAGE) printf("pwrite\n"), wrong++;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PAGES; i++) {
            if (pread(fd, back, PAGE, i * PAGE) != PAGE) printf("pread\n"), wrong++;
            check("written", back, i, i == 3);
        }
    }
    if (ftruncate(fd, 10 * PAGE)) printf("ftruncate\n"), wrong++;
    if (pread(fd, back, PAGE, 20 * PAGE) != 0) printf("beyond\n"), wrong++;
    close(fd);
    // Somebody cuts what is mapped, and makes it longer again.
    fd = open(args[1], O_RDWR);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 9; i++) {
            if (pread(fd, back, PAGE, i * PAGE) != PAGE) printf("pread\n"), wrong++;
            check("again", back, i, i == 3);
        }
    }
    outsider(args[1], "truncate -s 8192 \"$0\"");
    if (pread(fd, back, PAGE, 4 * PAGE) != 0) printf("cut\n"), wrong++;
    if (pread(fd, back, 2 * PAGE, PAGE) != PAGE) printf("cut in the middle\n"), wrong++;
    check("left", back, 1, 0);
    outsider(args[1], "truncate -s 40960 \"$0\"");
    if (pread(fd, back, PAGE, 4 * PAGE) != PAGE || back[0] || back[PAGE - 1]) printf("grown\n"), wrong++;
    printf("%d wrong\n", wrong);
    return 0;
}
