// Offsets.
#include "t.h"
#include <limits.h>
int main(void) {
  int a = warm_file("a", O_RDWR);
  R(lseek(a, 0, SEEK_CUR));
  R(lseek(a, 5, SEEK_SET));
  R(lseek64(a, 5, SEEK_CUR));
  next(a, "a");
  R(lseek(a, -5, SEEK_END));
  next(a, "a");
  R(lseek(a, -5, SEEK_SET));
  R(lseek(a, -1000000, SEEK_CUR));
  R(lseek(a, 1000000, SEEK_END));
  next(a, "beyond");
  R(lseek64(a, LLONG_MAX, SEEK_SET));
  R(lseek64(a, LLONG_MAX, SEEK_CUR));
  R(lseek64(a, 1, SEEK_CUR));
  R(lseek64(a, LLONG_MIN, SEEK_SET));
  R(lseek(a, 0, 99));
  R(lseek(a, 0, -1));
  R(lseek(999, 0, SEEK_SET));
  R(lseek(a, 100, SEEK_SET));
  R(lseek(a, 100, SEEK_HOLE));
  R(lseek(a, 0, SEEK_CUR));
  R(lseek(a, 100, SEEK_DATA));
  R(lseek(a, SIZE, SEEK_DATA));
  R(lseek(a, 0, SEEK_CUR));
  R(lseek(a, SIZE + 4096, SEEK_HOLE));
  R(lseek(a, -3, SEEK_DATA));
  next(a, "a");
  int s = open("sparse", O_RDWR | O_CREAT, 0644);
  R(pwrite(s, "x", 1, 1 << 20));
  R(pwrite(s, "y", 1, 3 << 20));
  R(lseek(s, 0, SEEK_DATA));
  R(lseek(s, 1 << 20, SEEK_HOLE));
  R(lseek(s, 2 << 20, SEEK_DATA));
  next(s, "s");
  R(lseek(s, 0, SEEK_SET));
  R(write(s, "z", 1));
  R(lseek(s, 0, SEEK_CUR));
  int p[2];
  R(pipe(p));
  R(lseek(p[0], 0, SEEK_CUR));
  // The size asked for by SEEK_END is today's, whoever changed it.
  R(lseek(a, 0, SEEK_END));
  RAW(truncate, "a", 12345, 0, 0);
  R(lseek(a, 0, SEEK_END));
  R(read(a, p, 1));
  R(lseek(a, 12340, SEEK_SET));
  next(a, "shorter");
  RAW(truncate, "a", 20000, 0, 0);
  R(lseek(a, 0, SEEK_END));
  outsider("a");
  return 0;
}
