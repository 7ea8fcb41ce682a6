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
// A jump leaves a write that makes the file longer done or not done: no place is left empty between two others.
#define RECORD 512
static void appends_whole(void) {
  static unsigned char b[RECORD];
  int a = warm_file("b", O_RDWR);
  lseek(a, SIZE / RECORD * RECORD, SEEK_SET);
  struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
  static volatile long wrong;
  jumps = 0;
  // The first tick must not find the place of main's jumps.
  if (sigsetjmp(back, 1) == 0) setitimer(ITIMER_REAL, &often, NULL);
  while (jumps < 500) {
    memset(b, 'r', sizeof b);
    if (sigsetjmp(back, 1) == 0)
      for (int i = 0; i < 1000; i++)
        if (write(a, b, sizeof b) != sizeof b) wrong++;
  }
  signal(SIGALRM, SIG_IGN);
  setitimer(ITIMER_REAL, &never, NULL);
  long holes = 0, end = lseek(a, 0, SEEK_CUR);
  for (long at = SIZE / RECORD * RECORD; at < end; at += RECORD)
    if (pread(a, b, sizeof b, at) != sizeof b || b[0] != 'r' || b[RECORD - 1] != 'r') holes++;
  R((long)wrong);
  R(holes);
  R(lseek(a, 0, SEEK_END) == end);
  R(ftruncate(a, 0));
  R(close(a));
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
  appends_whole();
  return 0;
}
