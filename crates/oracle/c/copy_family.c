// The kernel copies between descriptors, by their offsets or by given ones.
#include "t.h"
#include <sys/sendfile.h>
#include <linux/fs.h>
static int p[2];
static void drain(void) {
  static char buf[200000];
  long n, total = 0;
  uint64_t h = 1;
  while ((n = read(p[0], buf, sizeof buf)) > 0) h = hash(h, buf, (size_t)n), total += n;
  printf("   pipe had %ld, %016llx\n", total, (unsigned long long)h);
}
int main(void) {
  int a = warm_file("a", O_RDWR), b = warm_file("b", O_RDWR);
  char buf[100];
  pipe2(p, O_NONBLOCK);
  fcntl(p[0], F_SETPIPE_SZ, 1 << 20);
  R(read(a, buf, 100));
  R(sendfile(p[1], a, NULL, 5000)); drain();
  next(a, "a");
  off_t at = 200001;
  R(sendfile(p[1], a, &at, 5000)); drain();
  R((long)at);
  next(a, "a");
  warm(b);
  R(lseek(b, 1000, SEEK_SET));
  R(sendfile64(b, a, NULL, 10000));
  next(a, "a"), next(b, "b");
  off64_t at64 = 7;
  R(sendfile64(b, a, &at64, 3000));
  next(b, "b");
  R(sendfile(999, a, NULL, 1));
  R(sendfile(p[1], 999, NULL, 1));
  R(sendfile(p[1], p[0], NULL, 1));
  // Fresh descriptors, since the others are the kernel's by now.
  a = open("a", O_RDWR), b = open("b", O_RDWR);
  warm(a), warm(b);
  R(read(a, buf, 77));
  R(splice(a, NULL, p[1], NULL, 4000, 0)); drain();
  next(a, "a");
  loff_t off = 9000;
  R(splice(a, &off, p[1], NULL, 4000, 0)); drain();
  R((long)off);
  R(write(p[1], "into the file", 13));
  R(lseek(b, 12000, SEEK_SET));
  R(splice(p[0], NULL, b, NULL, 13, 0));
  next(b, "b");
  R(write(p[1], "to a place", 10));
  off = 100;
  R(splice(p[0], NULL, b, &off, 10, 0));
  R((long)off);
  int q[2];
  pipe2(q, O_NONBLOCK);
  R(write(p[1], "tee", 3));
  R(tee(p[0], q[1], 3, 0));
  drain();
  struct iovec v = {buf, 50};
  R(vmsplice(p[1], &v, 1, 0)); drain();
  a = open("a", O_RDWR), b = open("b", O_RDWR);
  warm(a), warm(b);
  R(read(a, buf, 33));
  R(lseek(b, 200, SEEK_SET));
  R(copy_file_range(a, NULL, b, NULL, 20000, 0));
  next(a, "a"), next(b, "b");
  off64_t from = 4096, to = 65536;
  R(copy_file_range(a, &from, b, &to, 8192, 0));
  R((long)from), R((long)to);
  R(copy_file_range(a, &from, b, NULL, 100, 0));
  next(b, "b");
  from = SIZE - 10;
  to = SIZE + 100;
  R(copy_file_range(a, &from, b, &to, 100, 0));
  R(copy_file_range(a, NULL, b, NULL, 10, 1));
  R(copy_file_range(a, &from, a, &from, 10, 0));
  int n = 0;
  a = open("a", O_RDWR);
  warm(a);
  R(lseek(a, 1234, SEEK_SET));
  R(ioctl(a, FIONREAD, &n));
  R(n);
  R(ioctl(a, FIGETBSZ, &n));
  IS(ioctl(a, FICLONE, b) <= 0);
  R(ioctl(a, 0x12345678, &n));
  R(ioctl(999, FIONREAD, &n));
  R(ioctl(a, FIONBIO, &n));
  next(a, "a");
  // Overwrites through the mapping are what the kernel copies.
  R(pwrite(a, "fresh", 5, 40000));
  at = 40000;
  R(sendfile(p[1], a, &at, 5)); drain();
  outsider("a"), outsider("b");
  return 0;
}
