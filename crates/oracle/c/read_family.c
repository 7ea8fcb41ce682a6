// Every entry that reads.
#include "t.h"
#include <limits.h>
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);
static char buf[400000];
static void show(long n) {
  printf("   %016llx at %ld\n", n > 0 ? (unsigned long long)hash(1, buf, (size_t)n) : 0ull, n);
}
static void overflow(int which, int fd) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    close(2);
    if (which == 0) __read_chk(fd, buf, 100, 50);
    if (which == 1) __pread_chk(fd, buf, 100, 0, 50);
    if (which == 2) __pread64_chk(fd, buf, 100, 0, 50);
    _exit(0);
  }
  ended(pid);
}
int main(int argc, char **argv) {
  (void)argv;
  int a = warm_file("a", O_RDWR), w = open("a", O_WRONLY);
  volatile int big = argc > 50 ? 1 : 100;
  char small[100];
  for (int round = 0; round < 3; round++) {
    R(lseek(a, round * 100003, SEEK_SET));
    show(R(read(a, buf, 10000)));
    show(R(read(a, small, (size_t)big)));  // fortified
    show(R(__read_chk(a, buf, 5000, sizeof buf)));
    show(R(pread(a, buf, 10000, 4095)));
    show(R(pread64(a, buf, 10000, 12345)));
    show(R(__pread_chk(a, buf, 10, 99, sizeof buf)));
    show(R(__pread64_chk(a, buf, 100000, 199, sizeof buf)));
    show(R(pread(a, small, (size_t)big, 50000)));
    struct iovec v[3] = {{buf, 1000}, {buf + 1000, 0}, {buf + 1000, 7777}};
    show(R(readv(a, v, 3)));
    show(R(preadv(a, v, 3, 333)));
    show(R(preadv64(a, v, 3, 3333)));
    show(R(preadv2(a, v, 3, 33333, 0)));
    show(R(preadv64v2(a, v, 3, 44444, RWF_HIPRI)));
    show(R(preadv2(a, v, 3, -1, 0)));
    show(R(preadv2(a, v, 3, 0, RWF_NOWAIT) >= -1));
    next(a, "a");
  }
  // Around the end.
  for (int d = -4097; d < 4200; d += 1023) {
    show(R(pread(a, buf, 5000, SIZE + d)));
    R(lseek(a, SIZE + d, SEEK_SET));
    show(R(read(a, buf, 5000)));
  }
  R(lseek(a, 0, SEEK_SET));
  show(R(read(a, buf, sizeof buf)));
  R(read(a, buf, 1));
  R(lseek(a, 0, SEEK_SET));
  // Errors.
  R(read(a, buf, 0));
  R(read(a, (void *)8, 0));
  R(read(a, (void *)8, 10));
  R(lseek(a, 0, SEEK_CUR));
  R(pread(a, buf, 10, -1));
  R(pread(a, buf, 10, LLONG_MAX));
  R(pread(a, buf, 0, SIZE));
  R(read(w, buf, 10));
  R(pread(w, buf, 10, 0));
  R(read(-1, buf, 10));
  R(read(12345, buf, 10));
  struct iovec bad[2] = {{buf, (size_t)-1}, {buf, 10}};
  R(readv(a, bad, 2));
  struct iovec half[2] = {{buf, 100}, {(void *)8, 100}};
  R(readv(a, half, 2));
  R(lseek(a, 0, SEEK_CUR));
  R(readv(a, half, -1));
  R(readv(a, half, 0));
  static struct iovec many[1025];
  for (int i = 0; i < 1025; i++) many[i] = (struct iovec){buf + i * 10, 10};
  R(readv(a, many, 1025));
  show(R(readv(a, many, 1024)));
  show(R(preadv(a, many, 17, 1)));
  R(readv(a, (void *)8, 2));
  R(preadv(a, many, 2, -5));
  R(preadv2(a, many, 2, -5, 0));
  R(preadv2(a, many, 2, 5, 0x40000000));
  // A buffer that ends in the middle.
  char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(page + 4096, 4096, PROT_NONE);
  R(lseek(a, 70000, SEEK_SET));
  R(read(a, page + 4000, 500));
  R(lseek(a, 0, SEEK_CUR));
  R(pread(a, page, 8192, 0));
  mprotect(page, 4096, PROT_READ);
  R(pread(a, page, 10, 0));
  for (int i = 0; i < 3; i++) overflow(i, a);
  int dir = open(".", O_RDONLY);
  R(read(dir, buf, 10));
  R(pread(dir, buf, 10, 0));
  // Not files.
  int p[2];
  R(pipe(p));
  R(write(p[1], "abc", 3));
  R(read(p[0], buf, 10));
  R(pread(p[0], buf, 10, 0));
  int z = open("/dev/zero", O_RDWR);
  for (int i = 0; i < 100; i++) read(z, buf, sizeof buf);
  show(R(pread(z, buf, 100, 5)));
  int proc = open("/proc/self/stat", O_RDONLY);
  IS(read(proc, buf, 10) == 10);
  return 0;
}
