// Resource limits.
#include "t.h"
static volatile sig_atomic_t xfsz;
static void on_xfsz(int s) { (void)s; xfsz++; }
static int a;
// Before the limit, across it, and behind it.
static void beyond(const char *b) {
  R(pwrite(a, b, 5000, 100000));
  R(pwrite(a, b, 5000, 148000));
  R(pwrite(a, b, 5000, 200000));
  R(lseek(a, 149000, SEEK_SET));
  R(write(a, b, 5000));
  R(lseek(a, 0, SEEK_CUR));
}
static void child(int how) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    char b[5000] = "limit";
    signal(SIGXFSZ, on_xfsz);
    if (how == 0) {
      struct rlimit l = {150000, 150000};
      R(setrlimit(RLIMIT_FSIZE, &l));
      beyond(b);
      R(ftruncate(a, 200000));
      R((long)xfsz);
    }
    if (how == 1) {
      struct rlimit l = {20, 20};
      R(setrlimit(RLIMIT_NOFILE, &l));
      int n = 0, fd;
      while ((fd = open("a", O_RDWR)) >= 0) warm(fd), n++;
      printf("opened %d, %s\n", n, strerrorname_np(errno));
      R(pread(a, b, 100, 5000));
      R(dup(a));
      R(pwrite(a, b, 100, 5000));
      R(fopen("a", "r") == NULL);
    }
    if (how == 2) {
      struct rlimit l = {200 << 20, 200 << 20};
      R(prlimit(0, RLIMIT_AS, &l, NULL));
      int fd = open("a", O_RDWR);
      warm(fd);
      void *big = malloc(100 << 20);
      IS(big != NULL);
      R(pread(fd, b, 100, 5000));
      R(pwrite(fd, b, 100, 5000));
    }
    if (how == 3) {
      // What was written is published before: others see where it ends.
      struct statx x;
      int grown = warm_file("grown", O_RDWR);
      R(pwrite(grown, b, 5000, SIZE + 5000));
      R(mlockall(MCL_CURRENT | MCL_FUTURE) >= -1);
      raw6(SYS_statx, grown, (long)"", AT_EMPTY_PATH, STATX_ALL, (long)&x, 0);
      printf("%lld bytes\n", (long long)x.stx_size);
      int fd = open("a", O_RDWR);
      warm(fd);
      R(pread(fd, b, 100, 5000));
      R(munlockall());
    }
    if (how == 4) {
      struct rlimit l = {0, 0};
      R(setrlimit(RLIMIT_MEMLOCK, &l));
      R(setrlimit(RLIMIT_DATA, &(struct rlimit){1 << 20, 1 << 20}));
      int fd = open("a", O_RDWR);
      warm(fd);
      R(pread(fd, b, 100, 5000));
      R(pwrite(fd, b, 100, 5000));
    }
    if (how == 7 || how == 8) {
      struct rlimit64 l = {150000, 150000};
      a = open("a", O_RDWR);
      warm(a);
      if (how == 7) R(setrlimit64(RLIMIT_FSIZE, &l));
      else R(prlimit64(0, RLIMIT_FSIZE, &l, NULL));
      beyond(b);
      R((long)xfsz);
    }
    if (how == 5) {
      // The limit is there before the library starts.
      struct rlimit l = {150000, 150000};
      setrlimit(RLIMIT_FSIZE, &l);
      execl("/proc/self/exe", "limits", "limited", (char *)NULL);
    }
    if (how == 6) {
      struct rlimit l = {256 << 20, 256 << 20};
      setrlimit(RLIMIT_AS, &l);
      execl("/proc/self/exe", "limits", "plain", (char *)NULL);
    }
    exit(0);
  }
  ended(pid);
}
int main(int argc, char **argv) {
  char b[5000] = "limit";
  if (argc > 1) {
    signal(SIGXFSZ, on_xfsz);
    a = open("a", O_RDWR);
    warm(a);
    R(pwrite(a, b, 5000, 100000));
    if (strcmp(argv[1], "limited") == 0) {
      R(pwrite(a, b, 5000, 148000));
      R(pwrite(a, b, 5000, 200000));
      R((long)xfsz);
    }
    return 0;
  }
  a = warm_file("a", O_RDWR);
  for (int i = 0; i < 9; i++) child(i);
  outsider("a");
  return 0;
}
