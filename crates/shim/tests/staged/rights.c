// Writes to FILE, forks, and gives rights up; says in between where a pool is mapped: "here", "in the child" and "after",
// each with a number.
//   rights HOW FILE POOL   POOL: part of its path; HOW: setgid, seteuid, chroot, unshare, by-number
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(const char *where, const char *pool) {
    char line[8192];
    int mapped = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) mapped += strstr(line, pool) != NULL;
    if (maps) fclose(maps);
    dprintf(1, "%s %d\n", where, mapped);
}

static int give_up(const char *how) {
    if (!strcmp(how, "setgid")) return setgid(getgid());
    if (!strcmp(how, "seteuid")) return seteuid(geteuid());
    if (!strcmp(how, "unshare")) return unshare(CLONE_FS);
    if (!strcmp(how, "by-number")) return syscall(SYS_setresgid, getgid(), getgid(), getgid());
    return chroot("/");
}

/* A child that nobody told that it is one: what it maps may lie where its parent has the pool. */
static int untold(void *how) {
    enum { LEN = 512 << 20 };
    char *own = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (own == MAP_FAILED) return 1;
    for (long at = 0; at < LEN; at += LEN / 64) own[at] = 1;
    if (give_up(how) < 0) return 2;
    for (long at = 0; at < LEN; at += LEN / 64)
        if (own[at] != 1) return 3;
    return 0;
}

int main(int count, char **args) {
    if (count < 4) return 2;
    const char *pool = args[3];
    int fd = open(args[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (write(fd, "before\n", 7) != 7) return 1;
    tell("here", pool);
    pid_t child = fork();
    if (!child) {
        tell("in the child", pool);
        _exit(0);
    }
    static char stack[1 << 20];
    int status = -1;
    if (waitpid(child, NULL, 0) != child) return 1;
    pid_t cloned = clone(untold, stack + sizeof stack, SIGCHLD, args[1]);
    if (waitpid(cloned, &status, 0) != cloned || status) return 1;
    if (write(fd, "between\n", 8) != 8 || give_up(args[1]) < 0) return 1;
    tell("after", pool);
    return write(fd, "after\n", 6) != 6;
}
