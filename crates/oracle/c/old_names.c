// libc exports some calls by an older name, too. Whoever uses both must find one descriptor behind them.
#include "t.h"
#include <sched.h>
ssize_t __read(int, void *, size_t), __write(int, const void *, size_t);
ssize_t __pread64(int, void *, size_t, off64_t), __pwrite64(int, const void *, size_t, off64_t);
off_t __lseek(int, off_t, int);
int __open(const char *, int, ...), __open64(const char *, int, ...), __close(int), __dup2(int, int);
int __fcntl(int, int, ...), __pipe(int *);
off64_t old_llseek(int, off64_t, int);
__asm__(".symver old_llseek, llseek@GLIBC_2.2.5");
int __xmknod(int, const char *, mode_t, dev_t *), __xmknodat(int, int, const char *, mode_t, dev_t *);
pid_t __fork(void), __vfork(void);
int __clone(int (*)(void *), void *, int, void *, ...);

static int a;

static int in_clone(void *what) {
  R(__write(a, what, 6));
  _exit(3);
}

int main(void) {
  int status, ends[2];
  char buf[64] = {0};
  R(a = __open("f", O_RDWR | O_CREAT | O_TRUNC, 0600));
  for (int i = 0; i < 3000; i++) __write(a, "0123456789abcdef", 16);
  R(__lseek(a, 0, SEEK_SET));
  for (int i = 0; i < 2000; i++) read(a, buf, 16);
  R(__lseek(a, 0, SEEK_CUR));
  R(__read(a, buf, 5));
  R(lseek(a, 0, SEEK_CUR));
  R(old_llseek(a, -2, SEEK_CUR));
  R(old_llseek(a, 2, SEEK_CUR));
  R(write(a, "-one-", 5));
  R(__read(a, buf, 3));
  R(__pwrite64(a, "-two-", 5, 100));
  R(pread(a, buf, 5, 100));
  IS(!memcmp(buf, "-two-", 5));
  R(__pread64(a, buf, 10, 31996));
  puts(buf);
  R(__fcntl(a, F_GETFL) & (O_ACCMODE | O_APPEND));
  R(__fcntl(a, F_SETFL, O_APPEND));
  R(pwrite(a, "-end-", 5, 0));
  R(lseek(a, 0, SEEK_END));
  R(__fcntl(a, F_SETFL, 0));
  R(lseek(a, 1000, SEEK_SET));
  R(__dup2(a, 20));
  R(write(20, "dup", 3));
  R(read(a, buf, 3));
  R(__close(20));
  R(write(20, "x", 1));
  int b = R(__open64("f", O_RDONLY));
  R(read(b, buf, 7));
  R(__dup2(b, a));
  R(lseek(a, 0, SEEK_CUR));
  R(__close(b));
  R(__close(a));
  // The number is another file's now.
  R(a = open("g", O_RDWR | O_CREAT | O_TRUNC, 0600));
  R(write(a, "before ", 7));
  pid_t child = __fork();
  if (child == 0) {
    write(a, "fork ", 5);
    _exit(1);
  }
  waitpid(child, &status, 0);
  R(write(a, "then ", 5));
  child = __vfork();
  if (child == 0) _exit(2);
  waitpid(child, &status, 0);
  static char stack[1 << 16] __attribute__((aligned(16)));
  fflush(stdout);
  // A file whose offset nobody else has had.
  R(close(a));
  a = warm_file("h", O_RDWR);
  R(lseek(a, 100, SEEK_SET));
  R(read(a, buf, 10));
  child = __clone(in_clone, stack + sizeof stack, SIGCHLD, "clone ");
  waitpid(child, &status, 0);
  R(WEXITSTATUS(status));
  R(lseek(a, 0, SEEK_CUR));
  R(write(a, "end", 3));
  R(lseek(a, 0, SEEK_CUR));
  R(close(a));
  // Nothing of a closed file answers for a number that somebody else has taken.
  a = warm_file("i", O_RDWR);
  R(__close(a));
  IS(RAW(openat, AT_FDCWD, "g", O_RDWR, 0) == a);
  R(pread(a, buf, 20, 0));
  printf("%.7s\n", buf);
  R(close(a));
  dev_t none = 0;
  R(__xmknod(0, "made", S_IFREG | 0600, &none));
  R(__xmknod(0, "made", S_IFREG | 0600, &none));
  R(__xmknodat(0, AT_FDCWD, "made at", S_IFREG | 0600, &none));
  R(a = open("made", O_RDWR));
  R(write(a, "made", 4));
  R(__xmknodat(0, AT_FDCWD, "made", S_IFIFO | 0600, &none));
  R(close(a));
  R(__pipe(ends));
  R(__write(ends[1], "pipe", 4));
  R(__read(ends[0], buf, 4));
  R(__close(ends[0]));
  return 0;
}
