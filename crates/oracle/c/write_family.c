// Every entry that writes: in place, across the end, behind it.
#include "t.h"
#include <limits.h>
static char buf[400000];
int main(void) {
  for (size_t i = 0; i < sizeof buf; i++) buf[i] = (char)(i * 7 + i / 256);
  int a = warm_file("a", O_RDWR), r = open("a", O_RDONLY);
  R(lseek(a, 1000, SEEK_SET));
  R(write(a, buf, 5000));
  R(write(a, buf, 3));
  R(pwrite(a, buf, 9999, 20001));
  R(pwrite64(a, buf, 1, 31000));
  struct iovec v[3] = {{buf, 1000}, {buf + 5, 0}, {buf + 1, 7777}};
  R(writev(a, v, 3));
  R(pwritev(a, v, 3, 50000));
  R(pwritev64(a, v, 2, 70000));
  R(pwritev2(a, v, 3, 90000, 0));
  R(pwritev64v2(a, v, 3, 100001, RWF_DSYNC));
  R(pwritev2(a, v, 3, -1, 0));
  R(pwritev2(a, v, 1, 10, RWF_SYNC));
  next(a, "a");
  outsider("a");
  // Across the end: in place and beyond in one call.
  R(pwrite(a, buf, 5000, SIZE - 2500));
  R(lseek(a, 0, SEEK_END));
  R(write(a, buf, 100));
  R(lseek(a, -50, SEEK_END));
  R(write(a, buf, 100));
  R(lseek(a, 0, SEEK_CUR));
  warm(a);
  R(pwrite(a, buf, 6000, SIZE - 100));
  R(pwritev2(a, v, 3, 5, RWF_APPEND));
  R(lseek(a, 10000, SEEK_END));
  R(write(a, "after a hole", 12));
  R(pread(a, buf + 300000, 12, SIZE + 20000) >= 0);
  outsider("a");
  // Appending.
  int e = open("a", O_RDWR | O_APPEND);
  warm(e);
  R(lseek(e, 0, SEEK_CUR));
  R(write(e, "one", 3));
  R(lseek(e, 0, SEEK_CUR));
  R(pwrite(e, "two", 3, 7));
  R(lseek(e, 100, SEEK_SET));
  next(e, "e");
  R(write(e, "three", 5));
  R(writev(e, v, 3));
  R(pwritev2(e, v, 1, 200, 0x20));
  R(lseek(a, 0, SEEK_END));
  outsider("a");
  // Errors.
  R(write(a, buf, 0));
  R(write(r, buf, 0));
  R(write(r, buf, 10));
  R(pwrite(r, buf, 10, 0));
  R(writev(r, v, 0));
  R(writev(r, v, 2));
  R(write(-1, buf, 1));
  R(lseek(a, 100, SEEK_SET));
  R(write(a, (void *)8, 10));
  R(write(a, (void *)8, 0));
  R(pwrite(a, buf, 10, -1));
  R(pwrite(a, buf, 10, LLONG_MAX));
  R(pwrite(a, buf, 10, LLONG_MAX - 20) > 0);
  R(ftruncate(a, SIZE));
  struct iovec bad[2] = {{buf, (size_t)-1}, {buf, 10}}, half[2] = {{buf, 9}, {(void *)8, 10}};
  R(writev(a, bad, 2));
  R(writev(a, half, 2));
  R(lseek(a, 0, SEEK_CUR));
  R(writev(a, v, -1));
  R(writev(a, (void *)8, 1));
  R(pwritev(a, v, 2, -1));
  R(pwritev2(a, v, 2, 9, 0x40000000));
  char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(page + 4096, 4096, PROT_NONE);
  R(write(a, page + 4000, 500));
  R(lseek(a, 0, SEEK_CUR));
  R(pwrite(a, page + 4090, 12, 8190));
  // A buffer that is the file itself.
  char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0);
  R(pwrite(a, m + 40000, 4096, 120000));
  R(pread(a, m + 8192, 4096, 200000));
  munmap(m, SIZE);
  outsider("a");
  return 0;
}
