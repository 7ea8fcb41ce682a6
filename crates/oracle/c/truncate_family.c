// Sizes and blocks.
#include "t.h"
#include <limits.h>
#ifndef FALLOC_FL_ZERO_RANGE
#include <linux/falloc.h>
#endif
static int a;
static void look(const char *what) {
  static char buf[SIZE * 2];
  struct stat st;
  fstat(a, &st);
  long n = pread(a, buf, sizeof buf, 0);
  printf("%s: size %lld, pread %ld, %016llx\n", what, (long long)st.st_size, n,
         (unsigned long long)(n > 0 ? hash(1, buf, (size_t)n) : 0));
  outsider("a");
}
int main(void) {
  a = warm_file("a", O_RDWR);
  int r = open("a", O_RDONLY);
  warm(r);
  R(lseek(a, 200000, SEEK_SET));
  R(ftruncate(a, 123456));
  look("ftruncate");
  char b[4096] = {0};
  R(read(a, b, 10));
  R(pread(r, b, 4096, 122880));
  R(pread(r, b, 4096, 131072));
  R(ftruncate64(a, 131072));
  look("page boundary");
  R(ftruncate(a, SIZE + 5000));
  look("longer");
  warm(a);
  R(truncate("a", 5000));
  look("truncate");
  R(truncate64("a", SIZE));
  look("truncate64");
  R(ftruncate(r, 5));
  R(ftruncate(a, -1));
  R(ftruncate(999, 1));
  R(truncate("missing", 1));
  R(truncate(".", 1));
  R(truncate(NULL, 1));
  R(ftruncate(a, 0));
  look("empty");
  R(pwrite(a, "abc", 3, 100));
  look("again");
  for (long i = 0; i < 60; i++) pwrite(a, b, 4096, i * 4096);
  warm(a);
  R(fallocate(a, 0, 0, SIZE));
  look("fallocate");
  R(fallocate64(a, FALLOC_FL_KEEP_SIZE, SIZE, 100000));
  look("keep size");
  memset(b, 7, sizeof b);
  for (long i = 0; i < 60; i++) pwrite(a, b, 4096, i * 4096);
  R(fallocate(a, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 5000, 10000));
  look("punch");
  R(fallocate(a, FALLOC_FL_ZERO_RANGE, 50000, 10000) >= -1);
  if (fallocate(a, FALLOC_FL_COLLAPSE_RANGE, 4096, 8192) == 0) look("collapse");
  if (fallocate(a, FALLOC_FL_INSERT_RANGE, 8192, 8192) == 0) look("insert");
  look("shapes");
  R(fallocate(a, FALLOC_FL_PUNCH_HOLE, 0, 1));
  R(fallocate(a, 0, -1, 5));
  R(fallocate(a, 0, 0, 0));
  R(fallocate(r, 0, 0, 100));
  R(fallocate(a, 0, LLONG_MAX - 5, 100));
  printf("posix_fallocate %d\n", posix_fallocate(a, 0, SIZE + 100));
  look("posix_fallocate");
  printf("posix_fallocate64 %d\n", posix_fallocate64(a, SIZE, 1000));
  printf("posix_fallocate %d %d %d\n", posix_fallocate(r, 0, 10), posix_fallocate(a, -1, 10),
         posix_fallocate(999, 0, 10));
  printf("posix_fadvise %d %d\n", posix_fadvise(a, 0, 0, POSIX_FADV_DONTNEED),
         posix_fadvise(999, 0, 0, POSIX_FADV_NORMAL));
  printf("posix_fadvise64 %d %d\n", posix_fadvise64(a, 0, 0, POSIX_FADV_DONTNEED),
         posix_fadvise64(999, 0, 0, POSIX_FADV_NORMAL));
  look("posix_fadvise");
  R(readahead(r, 0, 10000));
  // By outsiders, while the program reads and overwrites.
  warm(a);
  RAW(truncate, "a", 40000, 0, 0);
  look("outsider shortened");
  R(pwrite(a, b, 4096, 38000));
  R(pwrite(a, b, 4096, 80000));
  look("written behind");
  RAW(truncate, "a", 0, 0, 0);
  R(read(a, b, 5));
  R(pread(a, b, 5, 0));
  R(pwrite(a, b, 5, 0));
  look("outsider emptied");
  return 0;
}
