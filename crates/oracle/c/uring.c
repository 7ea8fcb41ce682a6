// io_uring through liburing: the kernel uses descriptors and offsets without a call.
// link: -luring
// needs: liburing.h
#include "t.h"
#include <liburing.h>
static struct io_uring ring;
static long go(void) {
  struct io_uring_cqe *cqe;
  io_uring_submit(&ring);
  if (io_uring_wait_cqe(&ring, &cqe) < 0) return -9999;
  long r = cqe->res;
  io_uring_cqe_seen(&ring, cqe);
  return r;
}
static int by_params(void) {
  struct io_uring_params params = {0};
  return io_uring_queue_init_params(8, &ring, &params);
}
// The ring's own descriptor comes without a call of libc's.
static int by_mapping(void) {
  struct io_uring_params params = {0};
  int fd = (int)RAW(io_uring_setup, 8, &params, 0, 0);
  int e = fd < 0 ? fd : io_uring_queue_mmap(fd, &params, &ring);
  for (unsigned i = 0; e == 0 && i < params.sq_entries; i++) ring.sq.array[i] = i;
  return e;
}
// As libraries with rings of their own begin; liburing has it since 2.3.
static int by_setup(void) {
  int (*set_up)(unsigned, struct io_uring_params *) = dlsym(RTLD_DEFAULT, "io_uring_setup");
  struct io_uring_params params = {0};
  int fd = set_up ? set_up(8, &params) : (int)RAW(io_uring_setup, 8, &params, 0, 0);
  int e = fd < 0 ? fd : io_uring_queue_mmap(fd, &params, &ring);
  for (unsigned i = 0; e == 0 && i < params.sq_entries; i++) ring.sq.array[i] = i;
  return e;
}
// liburing has it since 2.5; with one that has it not, Adit's stands there all the same.
static int by_mem(void) {
  _Bool (*too_old)(int, int) = dlsym(RTLD_DEFAULT, "io_uring_check_version");
  if (!too_old || too_old(2, 5)) return by_params();
  int (*set_up)(unsigned, struct io_uring *, struct io_uring_params *, void *, size_t) =
      dlsym(RTLD_DEFAULT, "io_uring_queue_init_mem");
  struct io_uring_params params = {0};
  void *memory = mmap(NULL, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return set_up(8, &ring, &params, memory, 1 << 21);
}
// The first ring of a process.
static void first(const char *what, int (*set_up)(void)) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    static char buf[100];
    int fd = warm_file(what, O_RDWR);
    R(read(fd, buf, sizeof buf));
    if (R(set_up()) < 0) _exit(1);
    struct io_uring_sqe *s = io_uring_get_sqe(&ring);
    io_uring_prep_read(s, fd, buf, 50, -1);
    R(go());
    printf("%016llx\n", (unsigned long long)hash(1, buf, 50));
    next(fd, what);
    s = io_uring_get_sqe(&ring);
    io_uring_prep_write(s, fd, "first ring", 10, -1);
    R(go());
    next(fd, what);
    io_uring_queue_exit(&ring);
    _exit(0);
  }
  ended(pid);
  outsider(what);
}
// A ring that a child has from its parent: the descriptors are the child's.
static void inherited(void) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    static char buf[100];
    int fd = open("inherited", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 40; i++) write(fd, "0123456789", 10);
    struct io_uring_sqe *s = io_uring_get_sqe(&ring);
    io_uring_prep_read(s, fd, buf, 100, 250);
    R(go());
    printf("%.20s\n", buf);
    s = io_uring_get_sqe(&ring);
    io_uring_prep_write(s, fd, "by the ring", 11, 200);
    R(go());
    R(pwrite(fd, "by hand", 7, 220));
    R(close(fd));
    _exit(0);
  }
  ended(pid);
  outsider("inherited");
}
int main(void) {
  first("params", by_params);
  first("mapping", by_mapping);
  first("setup", by_setup);
  first("mem", by_mem);
  int a = warm_file("a", O_RDWR);
  static char buf[20000];
  R(read(a, buf, 1000));
  int e = io_uring_queue_init(8, &ring, 0);
  if (e < 0) SKIP("io_uring is not available");
  struct io_uring_sqe *s = io_uring_get_sqe(&ring);
  io_uring_prep_read(s, a, buf, 5000, 100);
  R(go());
  printf("%016llx\n", (unsigned long long)hash(1, buf, 5000));
  s = io_uring_get_sqe(&ring);
  io_uring_prep_read(s, a, buf, 100, -1);
  R(go());
  next(a, "a");
  s = io_uring_get_sqe(&ring);
  io_uring_prep_write(s, a, "uring", 5, -1);
  R(go());
  next(a, "a");
  s = io_uring_get_sqe(&ring);
  io_uring_prep_write(s, a, "place", 5, 50000);
  R(go());
  R(pread(a, buf, 5, 50000));
  printf("%.5s\n", buf);
  R(pwrite(a, "later", 5, 60000));
  s = io_uring_get_sqe(&ring);
  io_uring_prep_read(s, a, buf, 5, 60000);
  R(go());
  printf("%.5s\n", buf);
  // Opened after the ring was set up.
  int b = warm_file("b", O_RDWR);
  R(read(b, buf, 700));
  s = io_uring_get_sqe(&ring);
  io_uring_prep_read(s, b, buf, 100, -1);
  R(go());
  next(b, "b");
  s = io_uring_get_sqe(&ring);
  io_uring_prep_openat(s, AT_FDCWD, "b", O_RDWR, 0);
  int c = (int)go();
  warm(c);
  R(pwrite(c, "opened", 6, 5));
  s = io_uring_get_sqe(&ring);
  io_uring_prep_close(s, c);
  R(go());
  int d = open("a", O_RDONLY);
  IS(d == c);
  R(pread(d, buf, 5, 50000));
  printf("%.5s\n", buf);
  inherited();
  io_uring_queue_exit(&ring);
  outsider("a"), outsider("b");
  return 0;
}
