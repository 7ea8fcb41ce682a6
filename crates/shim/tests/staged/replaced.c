// A thread writes two pages, of which the second cannot be read, so that the kernel writes the first one, while another
// one puts another file behind the number. Whoever runs it has the kernel's call begin late.
//   replaced FILE OTHER [child]    child: a forked child has the description, too; FILE has 64 pages of zeros
// Says how long OTHER is, which is written at its own offset if at all, and what FILE has behind the offset.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, AT = 16 * PAGE };

static int fd;
static char *two;
static long written;

static void *write_two(void *_) {
    written = write(fd, two, 2 * PAGE);
    return 0;
}

int main(int count, char **args) {
    static char page[PAGE];
    int ends[2];
    if (count < 3) return 2;
    pthread_t thread;
    int other = open(args[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    fd = open(args[1], O_RDWR);
    if (fd < 0 || other < 0 || pipe(ends)) return 3;
    // What is read often, or was written through it before, is served by Adit.
    for (int i = 0; i < 4 * PAGES; i++) pread(fd, page, PAGE, i % PAGES * PAGE);
    lseek(fd, AT - PAGE, SEEK_SET);
    write(fd, page, PAGE);
    pid_t child = count > 3 ? fork() : 0;
    if (count > 3 && child == 0) {
        close(ends[1]);
        _exit(read(ends[0], page, 1) != 0);
    }
    two = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(two, 'x', PAGE);
    mprotect(two + PAGE, PAGE, PROT_NONE);
    pthread_create(&thread, NULL, write_two, NULL);
    usleep(100000);
    int replaced = dup2(other, fd) == fd;
    pthread_join(thread, NULL);
    if (child) close(ends[1]), waitpid(child, NULL, 0);
    struct stat stat;
    fstat(other, &stat);
    int file = open(args[1], O_RDONLY);
    pread(file, page, PAGE, AT);
    printf("%d, wrote %ld, %s\n", replaced, written,
           page[0] == 'x' && stat.st_size == 0      ? "the file"
           : page[0] == 0 && stat.st_size == PAGE ? "the other"
                                                  : "elsewhere");
    return 0;
}
