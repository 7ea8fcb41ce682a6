// Times that the program sets must stay, whatever was stored before.
// run: adit
// not in mode: atomic
// (Others learn of uncommitted writes when they are committed.)
#include "t.h"
#include <sys/time.h>
#include <utime.h>
static int a;
static void show(const char *what) {
  struct stat st;
  fstat(a, &st);
  printf("%s: atime %lld.%09ld mtime %lld.%09ld\n", what, (long long)st.st_atim.tv_sec,
         st.st_atim.tv_nsec, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
  struct statx x;
  raw6(SYS_statx, AT_FDCWD, (long)"a", 0, STATX_ALL, (long)&x, 0);
  printf("   outsider: mtime %lld.%09u\n", (long long)x.stx_mtime.tv_sec, x.stx_mtime.tv_nsec);
}
static void store(void) { pwrite(a, "store", 5, 5000); }
int main(void) {
  a = warm_file("a", O_RDWR);
  struct timespec t[2] = {{1000, 1}, {2000, 2}};
  struct timeval v[2] = {{3000, 3}, {4000, 4}};
  struct utimbuf u = {5000, 6000};
  store(); R(futimens(a, t)); show("futimens");
  store(); R(utimensat(AT_FDCWD, "a", t, 0)); show("utimensat");
  store(); R(futimes(a, v)); show("futimes");
  store(); R(utimes("a", v)); show("utimes");
  store(); R(lutimes("a", v)); show("lutimes");
  store(); R(utime("a", &u)); show("utime");
  store(); R(futimesat(AT_FDCWD, "a", v)); show("futimesat");
  t[1].tv_nsec = UTIME_OMIT;
  store(); R(futimens(a, t));
  R(utimes("missing", v));
  R(futimens(999, t));
  t[1] = (struct timespec){7000, 7};
  store();
  R(futimens(a, t));
  store();
  R(utimensat(a, "", t, AT_EMPTY_PATH));
  show("by an empty path");
  // A late correction must not overtake it.
  usleep(1300000);
  show("a second later");
  store();
  R(close(a));
  a = open("a", O_RDWR);
  R(futimens(a, t));
  usleep(1200000);
  show("closed in between");
  // And a store that nobody follows up advances the time for everybody: within a second, where nothing stands still.
  warm(a);
  store();
  struct statx x;
  for (int tries = 0; tries < 100; tries++) {
    usleep(100000);
    raw6(SYS_statx, AT_FDCWD, (long)"a", 0, STATX_ALL, (long)&x, 0);
    if (x.stx_mtime.tv_sec > 100000) break;
  }
  IS(x.stx_mtime.tv_sec > 100000);
  return 0;
}
