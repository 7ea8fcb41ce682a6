// As many descriptors as the limit allows, each of them used.
#include "t.h"
#define MOST 60000
static int fds[MOST];
int main(void) {
  struct rlimit l;
  getrlimit(RLIMIT_NOFILE, &l);
  if (l.rlim_max < MOST + 100) {
    struct rlimit more = {MOST + 100, MOST + 100};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) l = more;
  }
  l.rlim_cur = l.rlim_max;
  setrlimit(RLIMIT_NOFILE, &l);
  int most = l.rlim_max < MOST + 100 ? (int)l.rlim_max - 100 : MOST;
  for (int i = 0; i < 50; i++) {
    char name[16];
    snprintf(name, sizeof name, "m%d", i);
    make(name, 70000);
  }
  long bad = 0;
  for (int i = 0; i < most; i++) {
    char name[16];
    snprintf(name, sizeof name, "m%d", i % 50);
    fds[i] = open(name, O_RDWR);
    if (fds[i] < 0) bad++;
  }
  R(bad);
  char b[16384];
  for (int i = 0; i < most; i++) {
    if (pread(fds[i], b, sizeof b, i % 50000) != sizeof b) bad++;
    if ((unsigned char)b[5] != pattern(i % 50000 + 5)) bad++;
    if (i % 7 == 0 && pwrite(fds[i], b, 100, i % 50000) != 100) bad++;
    if (i % 100 == 0)
      for (int k = 0; k < 20; k++) pread(fds[i], b, sizeof b, k * 2048);
    if (lseek(fds[i], i % 60000, SEEK_SET) != i % 60000) bad++;
    if (read(fds[i], b, 10) != 10 || (unsigned char)b[0] != pattern(i % 60000)) bad++;
  }
  R(bad);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    for (int i = 0; i < most; i += 997)
      if (read(fds[i], b, 10) != 10 || (unsigned char)b[0] != pattern(i % 60000 + 10)) _exit(1);
    _exit(0);
  }
  ended(pid);
  for (int i = 0; i < most; i += 997)
    if (read(fds[i], b, 10) != 10 || (unsigned char)b[0] != pattern(i % 60000 + 20)) bad++;
  for (int i = 0; i < most; i++)
    if (close(fds[i]) != 0) bad++;
  R(bad);
  IS(open("m1", O_RDONLY) == fds[0]);
  outsider("m7");
  return 0;
}
