// Shared by the interposition tests: every program prints what it saw, nothing that may differ
// between two runs, and leaves files whose contents the harness compares.
#ifndef T_H
#define T_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Prints a call with its result, and its errno if it failed.
#define R(call)                                                                                    \
  ({                                                                                               \
    errno = 0;                                                                                     \
    long long r_ = (long long)(call);                                                              \
    int e_ = errno;                                                                                \
    printf("%d: %s = %lld%s%s\n", __LINE__, #call, r_, r_ == -1 ? " " : "",                        \
           r_ == -1 ? strerrorname_np(e_) : "");                                                   \
    fflush(stdout);                                                                                \
    r_;                                                                                            \
  })

// Prints whether something holds; the harness compares, so both runs must say the same.
#define IS(what)                                                                                   \
  do {                                                                                             \
    printf("%d: %s: %s\n", __LINE__, #what, (what) ? "yes" : "NO");                                \
    fflush(stdout);                                                                                \
  } while (0)

// A system call that no library sees: the outsider's view.
static inline long raw6(long n, long a, long b, long c, long d, long e, long f) {
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long ret;
  __asm__ volatile("syscall"
                   : "=a"(ret)
                   : "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return ret;
}
#define RAW(n, a, b, c, d) raw6(SYS_##n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

#define SIZE 300000

static inline unsigned char pattern(long long at) {
  return (unsigned char)((unsigned long long)(at + 1) * 0x9e3779b97f4a7c15ull >> 40);
}

static inline uint64_t hash(uint64_t h, const void *p, size_t n) {
  for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3ull;
  return h;
}

// Makes a file with a known pattern, by raw calls.
static inline void make(const char *name, long size) {
  int fd = (int)RAW(openat, AT_FDCWD, name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  char buf[4096];
  for (long at = 0; at < size;) {
    long n = size - at < 4096 ? size - at : 4096;
    for (long i = 0; i < n; i++) buf[i] = (char)pattern(at + i);
    at += RAW(write, fd, buf, n, 0);
  }
  RAW(close, fd, 0, 0, 0);
}

// Reads all of it several times, so that its use pays and Adit takes the descriptor over.
// Positional: the offset stays where it is.
static inline void warm(int fd) {
  static __thread char buf[65536];
  for (int pass = 0; pass < 5; pass++)
    for (long at = 0, n; (n = pread(fd, buf, sizeof buf, at)) > 0 && at < 4 << 20;) at += n;
}

// Opens a patterned file and warms it.
static inline int warm_file(const char *name, int flags) {
  make(name, SIZE);
  int fd = open(name, flags, 0644);
  warm(fd);
  return fd;
}

// Prints size and hash as an outsider sees them.
static inline void outsider(const char *name) {
  int fd = (int)RAW(openat, AT_FDCWD, name, O_RDONLY, 0);
  uint64_t h = 0xcbf29ce484222325ull;
  static __thread char buf[65536];
  long total = 0, n;
  while (fd >= 0 && (n = RAW(read, fd, buf, sizeof buf, 0)) > 0) {
    h = hash(h, buf, (size_t)n);
    total += n;
  }
  if (fd >= 0) RAW(close, fd, 0, 0, 0);
  printf("outsider sees %s: %s %ld bytes, %016llx\n", name, fd < 0 ? "none" : "", total,
         (unsigned long long)h);
  fflush(stdout);
}

// Prints where a descriptor stands and what comes next there.
static inline void next(int fd, const char *who) {
  unsigned char b[5] = {0};
  long long at = lseek(fd, 0, SEEK_CUR);
  long n = read(fd, b, 5);
  printf("%s: at %lld, read %ld: %d %d %d %d %d\n", who, at, n, b[0], b[1], b[2], b[3], b[4]);
  fflush(stdout);
}

// Waits for a child and prints how it ended.
static inline int ended(pid_t pid) {
  int st = 0;
  if (waitpid(pid, &st, 0) != pid) {
    printf("no child\n");
    return -1;
  }
  if (WIFSIGNALED(st)) printf("child killed by %s\n", sigabbrev_np(WTERMSIG(st)));
  else printf("child exited with %d\n", WEXITSTATUS(st));
  fflush(stdout);
  return st;
}

// What the harness cannot provide here: it prints the reason.
#define SKIP(reason)                                                                               \
  do {                                                                                             \
    printf("SKIP %s\n", reason);                                                                   \
    return 0;                                                                                      \
  } while (0)
#endif
