// Making things durable.
#include "t.h"
int main(void) {
  int a = warm_file("a", O_RDWR), r = open("a", O_RDONLY);
  R(pwrite(a, "durable", 7, 5000));
  R(fsync(a));
  R(fdatasync(a));
  R(fsync(r));
  R(fdatasync(r));
  R(sync_file_range(a, 0, 100000, SYNC_FILE_RANGE_WRITE));
  R(syncfs(a));
  sync();
  R(fsync(999));
  R(fdatasync(999));
  int p[2];
  R(pipe(p));
  R(fsync(p[0]));
  R(fdatasync(p[1]));
  R(close(a));
  R(fsync(a));
  int d = open(".", O_RDONLY | O_DIRECTORY);
  R(fsync(d));
  char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, open("a", O_RDWR), 0);
  m[9] = 'm';
  R(msync(m, SIZE, MS_SYNC));
  R(msync(m + 1, SIZE, MS_SYNC));
  outsider("a");
  return 0;
}
