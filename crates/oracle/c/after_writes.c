// Every entry by itself, on a file of its own that has just been written and that nobody else has open: what it finds
// there, what the program sees afterwards, and what others do.
#include "t.h"
#include <linux/falloc.h>
ssize_t __write(int, const void *, size_t), __pwrite64(int, const void *, size_t, off64_t);
ssize_t __pread64(int, void *, size_t, off64_t), __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);
static int a;
static char buf[SIZE * 2];
static char old[3000];
// Over the end of what was written, so that old and new bytes lie beside each other.
static const struct iovec parts[2] = {{"first part, ", 12}, {"second part", 11}};
static struct iovec into[2] = {{buf, 100}, {buf + 100, 200}};

static void begin(const char *what) {
  printf("%s\n", what);
  a = warm_file("f", O_RDWR);
  memset(old, 'o', sizeof old);
  R(lseek(a, 5000, SEEK_SET));
  R(write(a, old, sizeof old));
  memset(buf, 0, sizeof buf);
}
static void found(void) { printf("   %016llx\n", (unsigned long long)hash(1, buf, sizeof buf)); }
static void end(void) {
  struct stat st;
  found();
  R(fstat(a, &st));
  R(st.st_size);
  R(lseek(a, 0, SEEK_CUR));
  R(pread(a, buf, sizeof buf, 0));
  found();
  outsider("f");
  R(close(a));
}
#define TRY(call) (begin(#call), R(call), end())

static void reads(void) {
  TRY(pread(a, buf, 5000, 4500));
  TRY(pread64(a, buf, 5000, 4500));
  TRY(__pread64(a, buf, 5000, 4500));
  TRY(__pread_chk(a, buf, 5000, 4500, sizeof buf));
  TRY(__pread64_chk(a, buf, 5000, 4500, sizeof buf));
  TRY(preadv(a, into, 2, 4900));
  TRY(preadv64(a, into, 2, 4900));
  TRY(preadv2(a, into, 2, 4900, 0));
  TRY(preadv64v2(a, into, 2, 4900, 0));
}
static void writes(void) {
  TRY(__write(a, "by another name", 15));
  TRY(writev(a, parts, 2));
  TRY(pwrite(a, "at a place", 10, 7995));
  TRY(pwrite64(a, "at a place", 10, 7995));
  TRY(__pwrite64(a, "at a place", 10, 7995));
  TRY(pwritev(a, parts, 2, 7990));
  TRY(pwritev64(a, parts, 2, 7990));
  TRY(pwritev2(a, parts, 2, 7990, 0));
  TRY(pwritev64v2(a, parts, 2, 7990, 0));
}
static void sizes(void) {
  TRY(truncate("f", 6000));
  TRY(truncate64("f", 6000));
  TRY(ftruncate(a, 6000));
  TRY(ftruncate64(a, 6000));
  TRY(fallocate(a, 0, SIZE - 1000, 5000));
  TRY(fallocate64(a, 0, SIZE - 1000, 5000));
  TRY(fallocate(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5500, 1000));
  TRY(fallocate64(a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5500, 1000));
  TRY(posix_fallocate(a, SIZE - 1000, 5000));
  TRY(posix_fallocate64(a, SIZE - 1000, 5000));
}
// A mapping shows what was written, and what is stored there is found.
static long maps(void *(*map)(void *, size_t, int, int, int, off_t)) {
  char *m = map(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0);
  if (m == MAP_FAILED) return -1;
  memcpy(buf, m, SIZE);
  memcpy(m + 7995, "by a mapping", 12);
  return munmap(m, SIZE);
}
// The twin of a descriptor goes on where that was.
static long twins(void) {
  int b = fcntl64(a, F_DUPFD, 50);
  long n = b < 0 ? -1 : read(b, buf, 100);
  close(b);
  return n;
}
// A lock from the offset on, as somebody else finds it.
static long locks(void) {
  if (lockf64(a, F_LOCK, 100) != 0) return -1;
  fflush(stdout);
  pid_t pid = (pid_t)RAW(fork, 0, 0, 0, 0);
  if (pid == 0) {
    struct flock64 lock = {.l_type = F_WRLCK};
    long fd = RAW(openat, AT_FDCWD, "f", O_RDWR, 0);
    RAW(fcntl, fd, F_GETLK, &lock, 0);
    RAW(exit_group, lock.l_type == F_WRLCK && lock.l_start == 8000 && lock.l_len == 100 ? 3 : 4, 0, 0, 0);
  }
  return ended(pid);
}
int main(void) {
  reads();
  writes();
  sizes();
  TRY(maps(mmap));
  TRY(maps(mmap64));
  TRY(twins());
  TRY(locks());
  return 0;
}
