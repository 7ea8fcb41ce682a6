// A timer's handler reads and writes the same descriptors that the main program is using.
#include "t.h"
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
  outsider("a");
  return 0;
}
