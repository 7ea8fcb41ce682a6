// The program calls the kernel through syscall(2), on descriptors that libc's functions also use.
#include "t.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <linux/sched.h>
int main(void) {
  int a = warm_file("a", O_RDWR);
  static char b[70000];
  struct stat st;
  R(read(a, b, 100));
  R(syscall(SYS_read, a, b, 100));
  next(a, "a");
  R(syscall(SYS_write, a, "written", 7));
  next(a, "a");
  R(syscall(SYS_lseek, a, 5000, SEEK_SET));
  next(a, "a");
  R(syscall(SYS_pread64, a, b, 100, 9000));
  R(syscall(SYS_pwrite64, a, "placed", 6, 9000));
  R(pread(a, b, 6, 9000));
  printf("%.6s\n", b);
  R(pwrite(a, "PLACED", 6, 9000));
  R(syscall(SYS_pread64, a, b, 6, 9000));
  printf("%.6s\n", b);
  struct iovec v[2] = {{b, 100}, {b + 100, 50}};
  a = open("a", O_RDWR), warm(a), read(a, b, 10);
  R(syscall(SYS_readv, a, v, 2));
  next(a, "a");
  a = open("a", O_RDWR), warm(a), read(a, b, 20);
  R(syscall(SYS_writev, a, v, 2));
  next(a, "a");
  a = open("a", O_RDWR), warm(a), read(a, b, 30);
  R(syscall(SYS_preadv2, a, v, 2, -1, 0, 0));
  next(a, "a");
  a = open("a", O_RDWR), warm(a), read(a, b, 40);
  R(syscall(SYS_pwritev2, a, v, 2, -1, 0, 0));
  next(a, "a");
  a = open("a", O_RDWR), warm(a), read(a, b, 50);
  int d = (int)R(syscall(SYS_dup, a));
  next(a, "a"), next(d, "d"), next(a, "a");
  a = open("a", O_RDWR), warm(a), read(a, b, 60);
  R(syscall(SYS_dup2, a, 90));
  next(90, "90"), next(a, "a");
  R(syscall(SYS_dup3, a, 91, O_CLOEXEC));
  next(91, "91");
  a = open("a", O_RDWR), warm(a), read(a, b, 70);
  d = (int)R(syscall(SYS_fcntl, a, F_DUPFD, 92));
  next(d, "d"), next(a, "a");
  a = open("a", O_RDWR), warm(a);
  R(syscall(SYS_fcntl, a, F_SETFL, O_APPEND));
  R(write(a, "appended", 8));
  R(lseek(a, 0, SEEK_CUR));
  R(syscall(SYS_fstat, a, &st));
  R((long)st.st_size);
  R(syscall(SYS_ftruncate, a, SIZE / 2));
  R(pread(a, b, 100, SIZE / 2 - 50));
  R(pread(a, b, 100, SIZE - 50));
  R(syscall(SYS_fallocate, a, 0, 0, SIZE));
  R(pread(a, b, 100, SIZE - 50));
  R(syscall(SYS_fsync, a));
  int p[2];
  R(pipe(p));
  a = open("a", O_RDWR), warm(a), read(a, b, 80);
  R(syscall(SYS_sendfile, p[1], a, NULL, 500));
  next(a, "a");
  a = open("a", O_RDWR), warm(a), read(a, b, 90);
  int c = warm_file("c", O_RDWR);
  R(syscall(SYS_copy_file_range, a, NULL, c, NULL, 1000, 0));
  next(a, "a"), next(c, "c");
  // A number closed and reused without libc.
  a = open("a", O_RDWR), warm(a), read(a, b, 95);
  R(syscall(SYS_close, a));
  R(read(a, b, 1));
  int e = (int)syscall(SYS_openat, AT_FDCWD, "c", O_RDWR);
  IS(e == a);
  R(pwrite(e, "by syscall", 10, 4000));
  warm(e);
  R(pread(e, b, 10, 4000));
  printf("%.10s\n", b);
  struct open_how how = {.flags = O_RDWR};
  int f = (int)syscall(SYS_openat2, AT_FDCWD, "c", &how, sizeof how);
  if (f < 0 && errno == ENOSYS) SKIP("no openat2");
  warm(f);
  R(pwrite(f, "by openat2", 10, 6000));
  next(f, "f");
  R(syscall(SYS_close_range, f, f, 0));
  R(read(f, b, 1));
  f = open("a", O_RDONLY);
  R(pread(f, b, 10, 9000));
  a = open("a", O_RDWR), warm(a), read(a, b, 55);
  R(syscall(SYS_preadv, a, v, 2, 4000, 0));
  R(syscall(SYS_pwritev, a, v, 2, 100, 0));
  next(a, "a");
  int g = warm_file("mapped", O_RDWR);
  R(pwrite(g, "before", 6, SIZE));
  char *m = (char *)syscall(SYS_mmap, NULL, SIZE + 4096L, PROT_READ | PROT_WRITE, MAP_SHARED, g, 0L);
  IS(m[SIZE] == 'b');
  m[3] = 'm';
  R(pread(g, b, 4, 0));
  IS(b[3] == 'm');
  R(pwrite(g, "w", 1, 4));
  IS(m[4] == 'w');
  outsider("mapped");
  aio_context_t aio = 0;
  a = warm_file("asked", O_RDWR);
  if (syscall(SYS_io_setup, 1, &aio) == 0) {
    struct iocb read_it = {.aio_fildes = (unsigned)a, .aio_lio_opcode = IOCB_CMD_PREAD, .aio_buf = (uintptr_t)b,
                           .aio_nbytes = 100, .aio_offset = 5000};
    struct iocb *list[] = {&read_it};
    struct io_event event;
    R(pwrite(a, "aio", 3, 5000));
    R(syscall(SYS_io_submit, aio, 1, list));
    R(syscall(SYS_io_getevents, aio, 1, 1, &event, NULL));
    printf("%lld %.3s\n", (long long)event.res, b);
    syscall(SYS_io_destroy, aio);
  }
  // What makes a twin of any descriptor.
  a = open("a", O_RDWR), warm(a), read(a, b, 66);
  R(pwrite(a, "twin", 4, 67));
  int itself = (int)syscall(SYS_pidfd_open, getpid(), 0);
  int twin = (int)syscall(SYS_pidfd_getfd, itself, a, 0);
  if (twin >= 0) next(twin, "twin"), next(a, "a"), next(twin, "twin");
  struct io_uring_params asked = {0};
  int ring = (int)syscall(SYS_io_uring_setup, 1, &asked);
  if (ring >= 0) close(ring);
  next(a, "a"), next(twin, "twin");
  // A child that libc does not know of.
  a = open("a", O_RDWR), warm(a), read(a, b, 33);
  fflush(stdout);
  pid_t pid = (pid_t)syscall(SYS_fork);
  if (pid == 0) {
    read(a, b, 10);
    syscall(SYS_exit_group, 0);
  }
  ended(pid);
  next(a, "a");
  a = open("a", O_RDWR), warm(a), read(a, b, 44);
  fflush(stdout);
  struct clone_args as_fork = {.exit_signal = SIGCHLD};
  for (int way = 0; way < 2; way++) {
    pid = (pid_t)(way ? syscall(SYS_clone3, &as_fork, sizeof as_fork) : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
      read(a, b, 10);
      syscall(SYS_exit_group, 0);
    }
    ended(pid);
    next(a, "a");
  }
  R(syscall(SYS_read, 999, b, 1));
  R(syscall(99999));
  outsider("a"), outsider("c");
  return 0;
}
