// Has many files open at once and uses all of them; says how many there are, how many answers and bytes were wrong,
// how many kilobytes the process takes and how many mappings it has. Ends when it has read a line.
//   crowd DIR COUNT SHARE OWN   COUNT: descriptors, as far as the limit on them can be raised; SHARE of them for each
//                               file; OWN: mappings that the program makes for itself
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int share, length;

// Neighbours with other rights are mappings of their own.
static int map(int count) {
    int failed = 0;
    for (int i = 0; i < count; i++)
        failed += mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
    return failed;
}

static char *name_of(const char *dir, int number) {
    static char name[4200];
    snprintf(name, sizeof name, "%s/%d/%d", dir, number / 1000, number - number % share);
    return name;
}

static int bytes_of(int number, char *into) {
    number -= number % share;
    int len = sprintf(into, "file %d ", number), more = length + number % 700;
    memset(into + len, 'a' + number % 26, (size_t)more);
    return len + more;
}

int main(int count, char **args) {
    if (count < 5) return 2;
    share = atoi(args[3]);
    // Large enough to be mapped, if several use it.
    length = share > 1 ? 70000 : 300;
    int files = atoi(args[2]), bad = map(atoi(args[4]));
    struct rlimit limit = {(rlim_t)files + 200, (rlim_t)files + 200};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        if (limit.rlim_cur < (rlim_t)files + 200) files = (int)limit.rlim_cur - 200;
    }
    int *fds = calloc((size_t)files, sizeof *fds);
    static char is[80000], found[80000];
    for (int i = 0; i < files; i++) {
        if (i % 1000 == 0) {
            char dir[4200];
            snprintf(dir, sizeof dir, "%s/%d", args[1], i / 1000);
            mkdir(dir, 0700);
        }
        fds[i] = open(name_of(args[1], i), O_RDWR | O_CREAT, 0600);
        int len = bytes_of(i, is);
        bad += write(fds[i], is, (size_t)len) != len;
    }
    for (int round = 0; round < 4; round++)
        for (int i = 0; i < files; i++) {
            int len = bytes_of(i, is), part = round == 0 || len < 16384 ? len : 16384;
            int most = part == len ? (int)sizeof found : part;
            bad += pread(fds[i], found, (size_t)most, 0) != part || memcmp(is, found, (size_t)part) != 0;
        }
    for (int i = 0; i < files; i++) {
        bad += pwrite(fds[i], "file", 4, 0) != 4 || pread(fds[i], found, 6, 2) != 6 || memcmp(found, "le ", 3) != 0;
        bad += lseek(fds[i], 0, SEEK_CUR) != bytes_of(i, is);
    }
    // Whatever Adit has mapped, the program finds room for some more.
    bad += map(1000);
    long own = 0;
    FILE *memory = fopen("/proc/self/status", "r");
    while (memory && fgets(found, sizeof found, memory)) sscanf(found, "RssAnon: %ld", &own);
    FILE *maps = fopen("/proc/self/maps", "r");
    int mappings = 0;
    for (int c; maps && (c = getc(maps)) != EOF;) mappings += c == '\n';
    printf("%d %d %ld %d\n", files, bad, own, mappings);
    fflush(stdout);
    if (!fgets(found, sizeof found, stdin)) return 1;
    for (int i = 0; i < files; i++) bad += close(fds[i]) != 0;
    for (int i = 0; i < files; i++) {
        int fd = open(name_of(args[1], i), O_RDONLY), len = bytes_of(i, is);
        bad += read(fd, found, sizeof found) != len || memcmp(is, found, (size_t)len) != 0;
        close(fd);
    }
    printf("%d\n", bad);
    return 0;
}
