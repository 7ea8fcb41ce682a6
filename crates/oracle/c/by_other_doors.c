// Entries by which hardly anybody changes limits, walks trees, starts programs or gets descriptors.
#include "t.h"
#include <fts.h>
#include <ulimit.h>
static int a;
static char buf[SIZE];

static void begin(const char *what) {
  printf("%s\n", what);
  a = warm_file("f", O_RDWR);
  R(lseek(a, 1000, SEEK_SET));
  R(read(a, buf, 10));
  R(write(a, "written", 7));
}

// The kernel refuses what is beyond a limit, whoever set it.
static void beyond(void) {
  signal(SIGXFSZ, SIG_IGN);
  R(pwrite(a, buf, 5000, 310000));
  R(pwrite(a, buf, 5000, 305000));
  R(pwrite(a, buf, 5000, 300000));
  outsider("f");
}
static void by_ulimit(void) {
  R(ulimit(UL_SETFSIZE, 600));
  beyond();
}
static void by_vlimit(void) {
  enum { LIM_FSIZE = 2 };
  int (*vlimit)(int, int) = (int (*)(int, int))dlsym(RTLD_DEFAULT, "vlimit");
  if (vlimit) R(vlimit(LIM_FSIZE, 307200));
  beyond();
}

// What a walk says of a file that grows.
static void grow(int fd) {
  R(lseek(fd, 0, SEEK_END));
  R(write(fd, "grown", 5));
}
static long long size_of(FTSENT *entry) { return entry ? (long long)entry->fts_statp->st_size : -1; }
static void walk(FTS *(*start)(char *const *, int, int (*)(const FTSENT **, const FTSENT **)), FTSENT *(*read)(FTS *)) {
  char *roots[] = {"f", NULL};
  grow(a);
  FTS *tree = start(roots, FTS_PHYSICAL, NULL);
  R(size_of(read(tree)));
  R(fts_close(tree));
}
static void children(FTS *(*start)(char *const *, int, int (*)(const FTSENT **, const FTSENT **)), FTSENT *(*read)(FTS *),
                     FTSENT *(*list)(FTS *, int)) {
  char *roots[] = {"dir", NULL};
  mkdir("dir", 0700);
  FTS *tree = start(roots, FTS_PHYSICAL, NULL);
  IS(read(tree) != NULL);
  int fd = warm_file("dir/f", O_RDWR);
  grow(fd);
  R(size_of(list(tree, 0)));
  R(close(fd));
  R(fts_close(tree));
}
FTS *fts64_open_(char *const *, int, int (*)(const FTSENT **, const FTSENT **)) __asm__("fts64_open");
FTSENT *fts64_read_(FTS *) __asm__("fts64_read");
FTSENT *fts64_children_(FTS *, int) __asm__("fts64_children");
static void by_walks(void) {
  walk(fts_open, fts_read);
  walk(fts64_open_, fts64_read_);
  children(fts_open, fts_read, fts_children);
  children(fts64_open_, fts64_read_, fts64_children_);
}

// A child goes on at the offset, and so does the parent behind it.
static void by_popen(void) {
  FILE *(*start)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_DEFAULT, "_IO_popen");
  char command[100], line[100] = "";
  snprintf(command, sizeof command, "head -c 5 <&%d | od -An -tx1; printf from >&%d", a, a);
  FILE *stream = start ? start(command, "r") : NULL;
  IS(stream != NULL);
  if (stream) IS(fgets(line, sizeof line, stream) != NULL);
  printf("child read %s", line);
  if (stream) R(pclose(stream));
  next(a, "parent");
}

// The twin has the offset, too.
static void by_pidfd(void) {
  int (*open)(pid_t, unsigned) = (int (*)(pid_t, unsigned))dlsym(RTLD_DEFAULT, "pidfd_open");
  int (*get)(int, int, unsigned) = (int (*)(int, int, unsigned))dlsym(RTLD_DEFAULT, "pidfd_getfd");
  int self = open ? open(getpid(), 0) : -1, twin = get && self >= 0 ? get(self, a, 0) : -1;
  if (twin < 0) return;
  next(twin, "twin");
  R(write(twin, "by the twin", 11));
  next(a, "first");
  R(close(twin) | close(self));
}

static void alone(void (*what)(void), const char *name) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    begin(name);
    what();
    R(close(a));
    outsider("f");
    exit(0);
  }
  ended(pid);
}
int main(void) {
  alone(by_ulimit, "ulimit");
  alone(by_vlimit, "vlimit");
  alone(by_walks, "walks");
  alone(by_popen, "popen");
  alone(by_pidfd, "pidfd");
  return 0;
}
