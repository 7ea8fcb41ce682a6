// Programs that do unusual things while they have files staged: they append numbered lines before and
// after, and say what they see on standard output.
//   odd CASE FILE   FILE in an empty directory
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "staged.h"

static const char *path;
static int fd = -1, number;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void say(const char *what, long answer) {
    dprintf(1, "%s %ld\n", what, answer);
}

// Says once on standard error that the file is staged.
static void staged_now(void) {
    static int said;
    if (is_staged(fd) && !said++) dprintf(2, "staged\n");
}

static void begin(int flags) {
    fd = open(path, flags | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) die("open");
}

static long lines(int count) {
    for (; count > 0; count--) {
        char line[64];
        int len = sprintf(line, "line %d\n", number++);
        if (write(fd, line, (size_t)len) != len) return -errno;
    }
    staged_now();
    return lseek(fd, 0, SEEK_CUR);
}

static long size(void) {
    struct stat now;
    return stat(path, &now) ? -errno : (long)now.st_size;
}

// Descriptors go in other ways than by close.
static void close_all_range(void) {
    begin(O_RDWR);
    say("at", lines(20));
    say("close_range", close_range(3, ~0u, 0));
    say("closed", fcntl(fd, F_GETFD));
    begin(O_WRONLY | O_APPEND);
    say("at", lines(20));
}

static void close_all_from(void) {
    begin(O_RDWR | O_APPEND);
    say("at", lines(20));
    closefrom(3);
    say("closed", fcntl(fd, F_GETFD));
    say("size", size());
}

static void close_in_a_loop(void) {
    begin(O_RDWR);
    say("at", lines(20));
    long most = sysconf(_SC_OPEN_MAX) < 5000 ? sysconf(_SC_OPEN_MAX) : 5000;
    for (int i = 3; i < most; i++) close(i);
    say("size", size());
    begin(O_RDWR);
    say("at", lines(7));
}

static void close_at_exec(void) {
    begin(O_RDWR);
    say("at", lines(20));
    close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    say("at", lines(20));
    execl("/bin/sh", "sh", "-c", "wc -c < \"$0\"", path, NULL);
}

// Rights, roots and namespaces change.
static void another_user(void) {
    begin(O_RDWR | O_APPEND);
    say("at", lines(20));
    say("setgroups", setgroups(0, NULL));
    say("setresgid", setresgid(65534, 65534, 65534));
    say("setresuid", setresuid(65534, 65534, 65534));
    say("at", lines(20));
    char back[8] = "";
    say("read", pread(fd, back, 7, 0));
    dprintf(1, "%s", back);
    say("close", close(fd));
}

static void another_user_for_a_while(void) {
    begin(O_RDWR);
    say("at", lines(20));
    say("seteuid", seteuid(65534));
    say("at", lines(20));
    say("back", seteuid(0));
    say("at", lines(20));
    say("size", size());
}

static void another_root(void) {
    begin(O_RDWR);
    say("at", lines(20));
    char dir[4096];
    strcpy(dir, path);
    *strrchr(dir, '/') = 0;
    say("chroot", chroot(dir));
    say("chdir", chdir("/"));
    say("at", lines(20));
    int other = open("/inside", O_RDWR | O_CREAT, 0600);
    say("inside", write(other, "inside\n", 7));
    say("size", lseek(other, 0, SEEK_END));
}

static void unshared(void) {
    begin(O_RDWR | O_APPEND);
    say("at", lines(20));
    say("unshare", unshare(CLONE_FILES | CLONE_FS));
    say("at", lines(20));
    say("size", size());
}

static void daemonized(void) {
    begin(O_RDWR | O_APPEND);
    say("at", lines(20));
    if (fork()) _exit(0);
    setsid();
    if (fork()) _exit(0);
    if (chdir("/")) die("chdir");
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 2);
    say("at", lines(20));
    int other = open(path, O_WRONLY | O_APPEND);
    say("other", write(other, "other\n", 6));
    say("at", lines(3));
    close(other);
    say("size", size());
}

static void daemon_of_libc(void) {
    begin(O_RDWR | O_APPEND);
    say("at", lines(20));
    int out = dup(1);
    if (daemon(0, 0)) die("daemon");
    long at = lines(20);
    dprintf(out, "at %ld\n", at);
}

// Limits.
static void limited_size(void) {
    begin(O_RDWR);
    say("at", lines(20));
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {200, 200};
    say("setrlimit", setrlimit(RLIMIT_FSIZE, &limit));
    say("at", lines(5));
    say("beyond", lines(20));
    say("size", size());
    say("ftruncate", ftruncate(fd, 1000) ? errno : 0);
}

static void limited_descriptors(void) {
    begin(O_RDWR);
    struct rlimit limit = {16, 16};
    say("setrlimit", setrlimit(RLIMIT_NOFILE, &limit));
    while (open("/dev/null", O_RDONLY) >= 0) {}
    say("at", lines(20));
    say("fsync", fsync(fd));
    char back[8] = "";
    say("read", pread(fd, back, 7, 0));
    say("at", lines(20));
    say("size", size());
    say("close", close(fd));
}

static void limited_memory(void) {
    begin(O_RDWR);
    say("at", lines(20));
    struct rlimit limit = {256 << 20, 256 << 20};
    say("setrlimit", setrlimit(RLIMIT_AS, &limit));
    say("at", lines(20));
    close(fd);
    begin(O_RDWR | O_APPEND);
    say("at", lines(20));
    say("size", size());
}

static void no_memory(void) {
    begin(O_RDWR);
    struct rlimit limit = {1 << 20, 1 << 20};
    say("setrlimit", setrlimit(RLIMIT_AS, &limit));
    say("at", lines(20));
    say("size", size());
    say("close", close(fd));
}

// Names and sizes.
static void long_name(void) {
    char name[300], all[4400];
    memset(name, 'n', 255);
    name[255] = 0;
    char dir[4096];
    strcpy(dir, path);
    *strrchr(dir, '/') = 0;
    snprintf(all, sizeof all, "%s/%s", dir, name);
    path = all;
    begin(O_RDWR);
    say("at", lines(20));
    say("fsync", fsync(fd));
    say("size", size());
    say("rename", rename(all, "short"));
    say("at", lines(2));
    say("close", close(fd));
    begin(O_WRONLY | O_APPEND);
    say("at", lines(3));
    say("close", close(fd));
    name[254] = 'm';
    snprintf(all, sizeof all, "%s/%sx", dir, name);
    say("too long", open(all, O_WRONLY | O_CREAT, 0600) < 0 ? errno : 0);
}

static void sparse(void) {
    begin(O_RDWR);
    const off_t end = 1L << 40;
    char back[8] = "";
    say("ftruncate", ftruncate(fd, end));
    say("size", size() / (1 << 20));
    say("near the end", pwrite(fd, "last", 4, end - 4));
    staged_now();
    say("beyond", pwrite(fd, "more", 4, end + 8192));
    say("middle", pwrite(fd, "middle", 6, end / 2));
    say("fsync", fsync(fd));
    say("size", lseek(fd, 0, SEEK_END));
    say("read", pread(fd, back, 7, end - 4));
    dprintf(1, "%s\n", back);
    say("hole", pread(fd, back, 7, 12345678));
    say("zero", back[0] + back[6]);
    say("cut", ftruncate(fd, 100));
    say("size", size());
    say("close", close(fd));
}

static void no_directory(void) {
    char dir[4096];
    strcpy(dir, path);
    strcpy(strrchr(dir, '/'), "/gone");
    say("mkdir", mkdir(dir, 0700));
    say("chdir", chdir(dir));
    int lost = open("lost", O_RDWR | O_CREAT, 0600);
    say("lost", write(lost, "lost\n", 5));
    say("unlink", unlink("lost"));
    say("rmdir", rmdir(dir));
    say("write", write(lost, "more\n", 5));
    char back[16] = "";
    say("read", pread(lost, back, 15, 0));
    dprintf(1, "%s", back);
    say("create", open("none", O_WRONLY | O_CREAT, 0600) < 0 ? errno : 0);
    begin(O_RDWR);
    say("at", lines(20));
    say("size", size());
}

static void many(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < 60100 ? limit.rlim_max : 60100;
    setrlimit(RLIMIT_NOFILE, &limit);
    int most = (int)limit.rlim_cur - 100, wrong = 0;
    if (most > 60000) most = 60000;
    int *all = calloc((size_t)most, sizeof *all);
    char dir[4096], name[4200];
    strcpy(dir, path);
    *strrchr(dir, '/') = 0;
    for (int i = 0; i < most; i++) {
        sprintf(name, "%s/many-%d", dir, i);
        all[i] = open(name, O_RDWR | O_CREAT, 0600);
        if (all[i] < 0) die("open");
        unlink(name);
    }
    say("files", most);
    begin(O_RDWR);
    say("at", lines(20));
    for (int i = 0; i < most; i += 97) {
        if (write(all[i], &i, sizeof i) != sizeof i) wrong++;
    }
    for (int i = 0; i < most; i += 97) {
        int back = -1;
        if (pread(all[i], &back, sizeof back, 0) != sizeof back || back != i) wrong++;
    }
    say("wrong", wrong);
    say("size", size());
}

// More at a time than the pool may have entries for.
static void hundreds(void) {
    enum { MOST = 700 };
    static int all[MOST];
    char dir[4096], name[4200];
    int wrong = 0;
    strcpy(dir, path);
    *strrchr(dir, '/') = 0;
    for (int i = 0; i < MOST; i++) {
        sprintf(name, "%s/staged-%d", dir, i);
        all[i] = open(name, O_RDWR | O_CREAT, 0600);
        if (all[i] < 0 || write(all[i], &i, sizeof i) != sizeof i) wrong++;
    }
    fd = all[0];
    staged_now();
    for (int i = 0; i < MOST; i++) {
        int back = -1;
        if (write(all[i], &i, sizeof i) != sizeof i) wrong++;
        if (pread(all[i], &back, sizeof back, 4) != sizeof back || back != i) wrong++;
        if (close(all[i])) wrong++;
    }
    for (int i = 0; i < MOST; i++) {
        int back[2] = {-1, -1};
        sprintf(name, "%s/staged-%d", dir, i);
        int again = open(name, O_RDONLY);
        if (read(again, back, sizeof back) != sizeof back || back[0] != i || back[1] != i) wrong++;
        close(again);
        unlink(name);
    }
    say("wrong", wrong);
}

// Threads and streams.
static void *leaves_a_buffer(void *nothing) {
    char name[4200];
    sprintf(name, "%s-%ld", path, (long)nothing);
    FILE *stream = fopen(name, "w");
    if (!stream) die("fopen");
    fprintf(stream, "from thread %ld\n", (long)nothing);
    return NULL;
}

static void threads_with_buffers(void) {
    pthread_t all[4];
    for (long i = 0; i < 4; i++) pthread_create(&all[i], NULL, leaves_a_buffer, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
    FILE *stream = fopen(path, "w");
    fprintf(stream, "left to exit\n");
}

static void *ends_the_process(void *nothing) {
    say("at", lines(20));
    exit(0);
}

static void exit_in_a_thread(void) {
    begin(O_RDWR);
    pthread_t thread;
    pthread_create(&thread, NULL, ends_the_process, NULL);
    pthread_join(thread, NULL);
}

static void *outlives_the_first(void *nothing) {
    char leads[16];
    for (int i = 0; i < 5000 && readlink("/proc/self/fd/0", leads, sizeof leads) > 0; i++) usleep(1000);
    return ends_the_process(nothing);
}

static void main_thread_ends(void) {
    begin(O_RDWR);
    pthread_t thread;
    pthread_create(&thread, NULL, outlives_the_first, NULL);
    pthread_exit(NULL);
}

// Handlers of faults that write, and go on or leave.
static sigjmp_buf out;
static char *page;

static void on_fault(int signal) {
    say(signal == SIGBUS ? "SIGBUS" : "SIGSEGV", lines(1));
    siglongjmp(out, 1);
}

static void on_timer(int signal) { lines(1); }

static void own_handlers(void) {
    begin(O_RDWR);
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    say("at", lines(10));
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!sigsetjmp(out, 1)) page[0] = 1;
    say("from a bad buffer", write(fd, page, 10) < 0 ? errno : 0);
    int empty = open("/dev/shm", O_RDWR | O_TMPFILE, 0600);
    char *beyond = mmap(NULL, 4096, PROT_READ, MAP_SHARED, empty, 0);
    if (!sigsetjmp(out, 1)) say("read", beyond[0]);
    say("from beyond the end", write(fd, beyond, 10) < 0 ? errno : 0);
    say("into a bad buffer", pread(fd, page, 10, 0) < 0 ? errno : 0);
    say("at", lines(10));
    say("size", size());
}

static void timer(void) {
    begin(O_RDWR | O_APPEND);
    signal(SIGALRM, on_timer);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 20000; i++) {
        if (write(fd, "x\n", 2) != 2) die("write");
    }
    setitimer(ITIMER_REAL, &never, NULL);
    FILE *back = fopen(path, "r");
    char line[64];
    int own = 0, handled = 0, next;
    while (fgets(line, sizeof line, back)) {
        if (!strcmp(line, "x\n")) own++;
        else if (sscanf(line, "line %d\n", &next) == 1) handled++;
    }
    say("own", own);
    say("handled", handled == number);
    fclose(back);
    say("cut", ftruncate(fd, 0));
}

// Children that know nothing of Adit.
static void bare_children(void) {
    begin(O_RDWR | O_APPEND);
    char command[4200];
    say("at", lines(20));
    sprintf(command, "env -i sh -c 'wc -c; echo child >> \"$0\"' '%s' < '%s'", path, path);
    say("system", system(command));
    say("at", lines(20));
    sprintf(command, "env -i sh -c 'echo inherited >&%d'", fd);
    say("system", system(command));
    say("at", lines(3));
    say("size", size());
}

// The child that a child borrowed its memory to ends first: neither of them ends their parent's business.
static void nested_vfork(void) {
    pid_t child = vfork();
    if (!child) {
        if (!vfork()) _exit(3);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    begin(O_RDWR);
    say("at", lines(20));
    say("size", size());
}

static const struct {
    const char *name;
    void (*run)(void);
    int root;
} cases[] = {
    {"close_all_range", close_all_range}, {"close_all_from", close_all_from},
    {"close_in_a_loop", close_in_a_loop}, {"close_at_exec", close_at_exec},
    {"another_user", another_user, 1}, {"another_user_for_a_while", another_user_for_a_while, 1},
    {"another_root", another_root, 1}, {"unshared", unshared}, {"daemonized", daemonized},
    {"daemon_of_libc", daemon_of_libc}, {"limited_size", limited_size},
    {"limited_descriptors", limited_descriptors}, {"limited_memory", limited_memory},
    {"no_memory", no_memory}, {"long_name", long_name}, {"sparse", sparse},
    {"no_directory", no_directory}, {"hundreds", hundreds},
    {"threads_with_buffers", threads_with_buffers}, {"exit_in_a_thread", exit_in_a_thread},
    {"main_thread_ends", main_thread_ends}, {"own_handlers", own_handlers}, {"timer", timer},
    {"bare_children", bare_children}, {"many", many},
    {"nested_vfork", nested_vfork},
};

int main(int count, char **args) {
    if (count < 2) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (!cases[i].root || geteuid() == 0) puts(cases[i].name);
        }
        return 0;
    }
    path = args[2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(cases[i].name, args[1])) {
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
