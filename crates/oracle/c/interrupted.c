// A timer's handler reads and writes the same descriptors that the main program is using, or forks.
#include "t.h"
#include <sys/file.h>
#include <sys/time.h>
static int a, h, log_fd;
static volatile sig_atomic_t ticks, bad;
static void on_tick(int s) {
  (void)s;
  int keep = errno;
  char b[64];
  ticks++;
  if (pread(a, b, 64, 4000) != 64) bad++;
  for (int i = 0; i < 64; i++)
    if ((unsigned char)b[i] != pattern(4000 + i)) bad++;
  if (pwrite(h, &b, 64, 4000) != 64) bad++;
  if (write(log_fd, "t", 1) != 1) bad++;
  if (lseek(a, 0, SEEK_CUR) < 0) bad++;
  struct stat st;
  if (fstat(a, &st) != 0 || st.st_size != SIZE) bad++;
  errno = keep;
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}
static volatile sig_atomic_t is_forked;
static pid_t child;
static int fd, is_closed_there;
static void forks(int s) {
  (void)s;
  if (is_forked) return;
  child = fork();
  is_forked = 1;
  if (child == 0 && is_closed_there) close(fd);
}
// The handler returns in the child, too, to whatever it has interrupted, perhaps when it has closed the file. When both have
// closed it nobody has it.
static void closed_by_both(void) {
  struct sigaction sa = {.sa_handler = forks, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &sa, NULL);
  long kept = 0, died = 0;
  for (int round = 0; round < 40; round++) {
    static char b[SIZE];
    int closed[2], go[2], status;
    if (pipe(closed) || pipe(go)) return;
    is_closed_there = round % 2;
    fd = open("a", O_RDWR);
    warm(fd);
    flock(fd, LOCK_EX);
    is_forked = 0;
    struct itimerval v = {{0, 0}, {0, 500 + 37 * round}};
    setitimer(ITIMER_REAL, &v, NULL);
    while (!is_forked) pread(fd, b, sizeof b, 0);
    if (child != 0 || !is_closed_there) close(fd);
    if (child == 0) {
      write(closed[1], "x", 1);
      close(go[1]);
      read(go[0], b, 1);
      _exit(0);
    }
    read(closed[0], b, 1);
    fd = open("a", O_RDWR);
    kept += flock(fd, LOCK_EX | LOCK_NB) != 0;
    for (int end = 0; end < 2; end++) close(closed[end]), close(go[end]);
    close(fd);
    waitpid(child, &status, 0);
    died += status != 0;
  }
  printf("kept %ld, died %ld\n", kept, died);
}
int main(void) {
  a = warm_file("a", O_RDWR);
  h = open("a", O_RDWR);
  warm(h);
  log_fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644);
  struct sigaction sa = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &sa, NULL);
  struct itimerval v = {{0, 300}, {0, 300}};
  setitimer(ITIMER_REAL, &v, NULL);
  static unsigned char b[30000];
  long failures = 0, calls = 0;
  // As long as it takes on an emulated processor, where the handler leaves little time for anything else.
  double begun = now();
  while (now() < begun + 0.8 || (calls <= 100 && now() < begun + 60)) {
    for (int i = 0; i < 50; i++, calls++) {
      long at = (calls * 7919) % (SIZE - 30000);
      if (pread(a, b, sizeof b, at) != (long)sizeof b) failures++;
      if (pwrite(h, b, sizeof b, at) != (long)sizeof b) failures++;
      if (lseek(a, at, SEEK_SET) != at) failures++;
      if (read(a, b, 5000) != 5000) failures++;
      if (lseek(a, 0, SEEK_CUR) != at + 5000) failures++;
      if (b[100] != pattern(at + 100)) failures++;
    }
    int fd = open("a", O_RDWR);
    warm(fd);
    close(fd);
  }
  v = (struct itimerval){{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &v, NULL);
  IS(calls > 100);
  IS(ticks > 20);
  printf("failures %ld, in the handler %d\n", failures, (int)bad);
  struct stat st;
  stat("log", &st);
  IS(st.st_size == ticks);
  unlink("log");
  closed_by_both();
  outsider("a");
  return 0;
}
