// The program's own mappings of a file that it also reads and writes.
#include "t.h"
int main(void) {
  int a = warm_file("a", O_RDWR);
  char b[64] = {0};
  char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0);
  char *p = mmap64(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, a, 4096);
  IS(m != MAP_FAILED && p != MAP_FAILED);
  memcpy(m + 5000, "stored", 6);
  R(pread(a, b, 6, 5000));
  printf("%s\n", b);
  R(pwrite(a, "written", 7, 5000));
  printf("%.7s %.7s\n", m + 5000, p + 904);
  memcpy(p + 904, "private", 7);
  R(pread(a, b, 7, 5000));
  printf("%s %.7s\n", b, m + 5000);
  R(pwrite(a, "WRITTEN", 7, 5000));
  printf("%.7s %.7s\n", p + 904, m + 5000);
  R(lseek(a, 6000, SEEK_SET));
  R(write(a, "sequential", 10));
  printf("%.10s\n", m + 6000);
  memcpy(m + 6010, "next", 4);
  R(read(a, b, 4));
  printf("%.4s\n", b);
  R(msync(m, SIZE, MS_SYNC));
  R(msync(m, SIZE, MS_ASYNC | MS_INVALIDATE));
  // Growing both.
  R(ftruncate(a, SIZE * 2));
  m = mremap(m, SIZE, SIZE * 2, MREMAP_MAYMOVE);
  IS(m != MAP_FAILED);
  memcpy(m + SIZE + 10000, "grown", 5);
  R(pread(a, b, 5, SIZE + 10000));
  printf("%.5s\n", b);
  R(mprotect(m, 4096, PROT_READ));
  R(madvise(m, SIZE, MADV_DONTNEED));
  printf("%.7s\n", m + 5000);
  // The mapping outlives the descriptor.
  R(close(a));
  memcpy(m + 7000, "after close", 11);
  a = open("a", O_RDWR);
  warm(a);
  R(pread(a, b, 11, 7000));
  printf("%.11s\n", b);
  R(pwrite(a, "A", 1, 7000));
  printf("%.11s\n", m + 7000);
  // A fixed mapping over an old one.
  char *over = mmap(m, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a, 8192);
  IS(over == m);
  over[0] = 'F';
  R(pread(a, b, 1, 8192));
  printf("%c\n", b[0]);
  R(munmap(m, SIZE * 2));
  R(munmap(p, 8192));
  // Errors.
  int r = open("a", O_RDONLY), w = open("a", O_WRONLY);
  warm(r);
  R(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r, 0));
  R(mmap(NULL, 4096, PROT_READ, MAP_SHARED, w, 0));
  R(mmap(NULL, 0, PROT_READ, MAP_SHARED, r, 0));
  R(mmap(NULL, 4096, PROT_READ, MAP_SHARED, r, 1));
  R(mmap(NULL, 4096, PROT_READ, MAP_SHARED, 999, 0));
  R(mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_PRIVATE, r, 0) != MAP_FAILED);
  // Holes that are made through a mapping, and that reading must not fill.
  int h = warm_file("h", O_RDWR);
  char *hole = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, h, 0);
  IS(hole != MAP_FAILED);
  R(madvise(hole + 8192, 8192, MADV_REMOVE));
  R(pread(h, b, 8, 13000));
  printf("%d%d %d\n", b[0], b[7], hole[8192]);
  R(pwrite(h, "filled", 6, 9000));
  printf("%.6s\n", hole + 9000);
  R(lseek(h, 0, SEEK_HOLE));
  R(syscall(SYS_madvise, hole + 20480, 4096, MADV_REMOVE));
  R(pread(h, b, 8, 21000));
  printf("%d%d\n", b[0], b[7]);
  R(lseek(h, 16384, SEEK_HOLE));
  R(munmap(hole, SIZE));
  // Seals need that nobody has a writable mapping.
  int fd = memfd_create("sealed", MFD_ALLOW_SEALING);
  for (int i = 0; i < 100; i++) write(fd, b, sizeof b);
  R(ftruncate(fd, SIZE));
  warm(fd);
  R(pwrite(fd, "x", 1, 100));
  R(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
  R(pwrite(fd, "x", 1, 100));
  R(ftruncate(fd, 5));
  outsider("a");
  return 0;
}
