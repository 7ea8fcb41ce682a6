// A file system without space: what a mapping could only answer by SIGBUS.
// mount: tmpfs size=3m
// not in mode: atomic
// (There a write is whole or refused, docs/posix.md.)
#include "t.h"
#include <linux/falloc.h>
static char b[200000];
static void fill(void) {
  int f = open("filler", O_CREAT | O_WRONLY | O_APPEND, 0644);
  long n;
  while ((n = write(f, b, 4096)) > 0) {
  }
  printf("filled: %s\n", strerrorname_np(errno));
  close(f);
}
int main(void) {
  memset(b, 'f', sizeof b);
  int a = warm_file("a", O_RDWR);
  R(pwrite(a, "before", 6, 100000));
  fill();
  R(pwrite(a, "in place", 8, 100000));
  R(pwrite(a, b, 50000, SIZE));
  R(lseek(a, 0, SEEK_END));
  R(write(a, b, 50000));
  R(lseek(a, 0, SEEK_END));
  // A hole under the mapping, whose space somebody else takes.
  int h = (int)RAW(openat, AT_FDCWD, "a", O_RDWR, 0);
  RAW(fallocate, h, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 40960, 81920);
  fill();
  R(pwrite(a, "into the hole", 13, 50000));
  R(pwrite(a, b, 20000, 35000));
  R(pread(a, b, 20000, 45000));
  printf("%d %d\n", b[0], b[19999]);
  R(lseek(a, 60000, SEEK_SET));
  R(write(a, b, 100));
  R(read(a, b, 100));
  R(lseek(a, 0, SEEK_CUR));
  struct iovec v[2] = {{b, 1000}, {b, 100000}};
  R(pwritev(a, v, 2, 30000));
  R(ftruncate(a, SIZE * 2));
  R(pwrite(a, "x", 1, SIZE + 100000));
  R(posix_fallocate(a, 0, SIZE));
  R(unlink("filler"));
  R(pwrite(a, "into the hole", 13, 50000));
  R(pread(a, b, 13, 50000));
  printf("%.13s\n", b);
  outsider("a");
  return 0;
}
