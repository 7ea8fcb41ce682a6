// POSIX asynchronous I/O: libc's own threads use the descriptor.
// link: -lrt
#include "t.h"
#include <aio.h>
static long done(struct aiocb *c) {
  const struct aiocb *l[] = {c};
  while (aio_error(c) == EINPROGRESS) aio_suspend(l, 1, NULL);
  errno = aio_error(c) > 0 ? aio_error(c) : 0;
  return aio_return(c);
}
static long done64(struct aiocb64 *c) {
  const struct aiocb64 *l[] = {c};
  while (aio_error64(c) == EINPROGRESS) aio_suspend64(l, 1, NULL);
  return aio_return64(c);
}
// Each by itself, on a file that nobody else has open: what the program wrote just before is what it finds, it stays,
// and others see at once where the file ends.
static void alone(int how) {
  char buf[50] = {0}, name[16];
  snprintf(name, sizeof name, "alone%d", how);
  int b = warm_file(name, O_RDWR);
  struct aiocb c = {.aio_fildes = b, .aio_buf = buf, .aio_nbytes = 10, .aio_offset = 70000, .aio_lio_opcode = LIO_READ};
  struct aiocb64 d;
  memcpy(&d, &c, sizeof d);
  struct aiocb *list[] = {&c};
  struct aiocb64 *list64[] = {&d};
  R(pwrite(b, "written before", 14, 70000));
  R(pwrite(b, "and behind", 10, SIZE + 80000));
  if (how == 2) c.aio_buf = "overwritten";
  if (how == 3) d.aio_buf = "overwritten";
  if (how == 0) R(aio_read(&c));
  if (how == 1) R(aio_read64(&d));
  if (how == 2) R(aio_write(&c));
  if (how == 3) R(aio_write64(&d));
  if (how == 4) R(aio_fsync(O_DSYNC, &c));
  if (how == 5) R(aio_fsync64(O_DSYNC, &d));
  if (how == 6) R(lio_listio(LIO_WAIT, list, 1, NULL));
  if (how == 7) R(lio_listio64(LIO_WAIT, list64, 1, NULL));
  R(how % 2 ? done64(&d) : done(&c));
  printf("%.10s\n", buf);
  struct statx x;
  raw6(SYS_statx, AT_FDCWD, (long)name, 0, STATX_ALL, (long)&x, 0);
  printf("%lld bytes\n", (long long)x.stx_size);
  R(pread(b, buf, 14, 70000));
  printf("%.14s\n", buf);
  R(close(b));
  outsider(name);
}
_Static_assert(sizeof(struct aiocb) == sizeof(struct aiocb64), "one is copied to the other");
int main(void) {
  int a = warm_file("a", O_RDWR);
  static char buf[50000];
  struct aiocb c = {.aio_fildes = a, .aio_buf = buf, .aio_nbytes = sizeof buf, .aio_offset = 1234};
  R(aio_read(&c));
  R(done(&c));
  printf("%016llx\n", (unsigned long long)hash(1, buf, sizeof buf));
  memset(buf, 'w', sizeof buf);
  c.aio_offset = 70000;
  R(aio_write(&c));
  R(done(&c));
  R(pread(a, buf, 5, 70000));
  printf("%.5s\n", buf);
  struct aiocb64 d = {.aio_fildes = a, .aio_buf = buf, .aio_nbytes = 100, .aio_offset = SIZE - 50};
  R(aio_read64(&d));
  R(done64(&d));
  R(aio_write64(&d));
  R(done64(&d));
  struct aiocb e[3] = {
      {.aio_fildes = a, .aio_buf = buf, .aio_nbytes = 10, .aio_offset = 0, .aio_lio_opcode = LIO_READ},
      {.aio_fildes = a, .aio_buf = "lio", .aio_nbytes = 3, .aio_offset = 9, .aio_lio_opcode = LIO_WRITE},
      {.aio_fildes = a, .aio_lio_opcode = LIO_NOP}};
  struct aiocb *list[] = {&e[0], &e[1], &e[2]};
  R(lio_listio(LIO_WAIT, list, 3, NULL));
  R(done(&e[0])), R(done(&e[1]));
  struct aiocb s = {.aio_fildes = a};
  R(aio_fsync(O_SYNC, &s));
  R(done(&s));
  for (int how = 0; how < 8; how++) alone(how);
  struct aiocb64 none = {.aio_fildes = 999};
  R(aio_fsync64(O_SYNC, &none));
  int w = open("a", O_WRONLY);
  c.aio_fildes = w;
  R(aio_read(&c));
  R(done(&c));
  R(lseek(a, 0, SEEK_CUR));
  next(a, "a");
  outsider("a");
  return 0;
}
