// Handlers that leave a read or write by siglongjmp, and go on using the descriptor.
#include "t.h"
#include <setjmp.h>
#include <sys/time.h>
static sigjmp_buf back;
static volatile sig_atomic_t jumps;
static void on_tick(int s) {
  (void)s;
  jumps++;
  siglongjmp(back, 1);
}
int main(void) {
  int a = warm_file("a", O_RDWR);
  static unsigned char b[100000];
  struct sigaction sa = {.sa_handler = on_tick};
  sigaction(SIGALRM, &sa, NULL);
  static volatile long wrong;
  static volatile int round;
  for (; round < 300; round++) {
    if (sigsetjmp(back, 1) == 0) {
      struct itimerval v = {{0, 0}, {0, 200 + round * 3}};
      setitimer(ITIMER_REAL, &v, NULL);
      for (;;) {
        for (long at = 0; at < 200000; at += 10007) {
          if (pread(a, b, sizeof b, at) != (long)sizeof b || b[9] != pattern(at + 9)) wrong++;
          pwrite(a, b, 50000, at);
          lseek(a, at, SEEK_SET);
          if (read(a, b, 50000) == 50000 && b[9] != pattern(at + 9)) wrong++;
        }
      }
    }
    if (lseek(a, 777, SEEK_SET) != 777 || read(a, b, 10) != 10 || b[3] != pattern(780)) wrong++;
  }
  IS(jumps == 300);
  R((long)wrong);
  R(close(a));
  // Whatever the jumps left behind, nothing of the file may stay mapped: its locks would be held.
  FILE *maps = fopen("/proc/self/maps", "r");
  static char line[5000];
  int mapped = 0;
  while (fgets(line, sizeof line, maps)) mapped += strstr(line, "/a\n") != NULL;
  fclose(maps);
  R(mapped);
  int c = open("a", O_RDWR);
  IS(a == c);
  warm(c);
  outsider("a");
  return 0;
}
