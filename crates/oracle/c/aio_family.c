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
// What the program wrote just before is what they find, and it stays.
static void wide_list(void) {
  static char buf[50];
  int b = warm_file("b", O_RDWR);
  struct aiocb64 e[2] = {
      {.aio_fildes = b, .aio_buf = buf, .aio_nbytes = 10, .aio_offset = 70000, .aio_lio_opcode = LIO_READ},
      {.aio_fildes = b, .aio_buf = "lio64", .aio_nbytes = 5, .aio_offset = SIZE + 60, .aio_lio_opcode = LIO_WRITE}};
  struct aiocb64 *list[] = {&e[0], &e[1]};
  R(pwrite(b, "before the list", 15, 70000));
  R(lio_listio64(LIO_WAIT, list, 2, NULL));
  R(done((struct aiocb *)&e[0])), R(done((struct aiocb *)&e[1]));
  printf("%.10s\n", buf);
  R(pread(b, buf, 5, SIZE + 60));
  printf("%.5s\n", buf);
  R(close(b));
  outsider("b");
}
// Others see the end at once of what was synced.
static void wide_sync(void) {
  int c = warm_file("c", O_RDWR);
  struct aiocb64 s = {.aio_fildes = c};
  struct statx x;
  R(pwrite(c, "before the sync", 15, SIZE + 80000));
  R(aio_fsync64(O_DSYNC, &s));
  R(done((struct aiocb *)&s));
  raw6(SYS_statx, AT_FDCWD, (long)"c", 0, STATX_ALL, (long)&x, 0);
  printf("%lld bytes\n", (long long)x.stx_size);
  R(close(c));
  s.aio_fildes = 999;
  R(aio_fsync64(O_SYNC, &s));
}
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
  R(done((struct aiocb *)&d));
  R(aio_write64(&d));
  R(done((struct aiocb *)&d));
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
  wide_list();
  wide_sync();
  int w = open("a", O_WRONLY);
  c.aio_fildes = w;
  R(aio_read(&c));
  R(done(&c));
  R(lseek(a, 0, SEEK_CUR));
  next(a, "a");
  outsider("a");
  return 0;
}
