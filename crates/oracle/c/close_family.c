// Closing, in all the ways, and reusing the numbers.
#include "t.h"
#include <linux/close_range.h>
#include <pthread.h>

// From the first call on the thread has a table of its own.
static void *unshares(void *fd) {
  R(close_range(*(int *)fd + 1, ~0u, CLOSE_RANGE_UNSHARE));
  R(close(*(int *)fd));
  return NULL;
}
static void in_a_thread(void) {
  char buf[100];
  pthread_t thread;
  int fd = warm_file("c", O_RDWR);
  R(lseek(fd, 0, SEEK_SET));
  R(read(fd, buf, 100));
  pthread_create(&thread, NULL, unshares, &fd);
  pthread_join(thread, NULL);
  R(lseek(fd, 0, SEEK_CUR));
  R(read(fd, buf, 10));
  R(write(fd, "after", 5));
  R(close(fd));
  outsider("c");
}
int main(void) {
  int a = warm_file("a", O_RDWR);
  make("b", SIZE);
  char buf[100];
  R(read(a, buf, 100));
  R(close(a));
  R(close(a));
  R(read(a, buf, 1));
  R(pread(a, buf, 1, 0));
  R(write(a, buf, 1));
  R(lseek(a, 0, SEEK_CUR));
  R(fsync(a));
  int b = open("b", O_RDONLY);
  IS(a == b);
  R(lseek(b, 0, SEEK_CUR));
  R(write(b, "x", 1));
  warm(b);
  R(write(b, "x", 1));
  // The number closed behind libc's back and reused by it.
  RAW(close, b, 0, 0, 0);
  int p[2];
  R(pipe(p));
  R(write(p[1], "pipe", 4));
  R(read(p[0], buf, 100));
  R(close(p[0]));
  R(close(p[1]));
  int c = open("a", O_RDWR);
  warm(c);
  RAW(close, c, 0, 0, 0);
  int d = open("b", O_RDWR);
  IS(c == d);
  R(pread(d, buf, 3, 70000));
  printf("%d %d %d\n", (unsigned char)buf[0], (unsigned char)buf[1], (unsigned char)buf[2]);
  // Neither may what was stored through the old descriptor change the new file's times.
  int o = open("a", O_RDWR);
  warm(o);
  R(pwrite(o, "stored", 6, 9000));
  struct stat before, after;
  stat("b", &before);
  usleep(12000);
  pwrite(o, "stored", 6, 9000);
  RAW(close, o, 0, 0, 0);
  int n = open("b", O_RDONLY);
  IS(n == o);
  fstat(n, &after);
  IS(before.st_mtim.tv_sec == after.st_mtim.tv_sec && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
  R(close(n));
  int e[6];
  for (int i = 0; i < 6; i++) {
    e[i] = open("a", O_RDWR);
    warm(e[i]);
    lseek(e[i], i * 1000, SEEK_SET);
  }
  R(close_range(e[0], e[1], 0));
  R(read(e[0], buf, 1));
  R(read(e[2], buf, 1));
  R(close_range(e[2], e[3], CLOSE_RANGE_CLOEXEC));
  R(read(e[2], buf, 1));
  R(fcntl(e[3], F_GETFD));
  R(close_range(9, 3, 0));
  R(lseek(e[4], 0, SEEK_CUR));
  R(close_range(e[5], e[5], CLOSE_RANGE_UNSHARE));
  R(lseek(e[5], 0, SEEK_CUR));
  closefrom(e[2]);
  R(read(e[4], buf, 1));
  R(close(e[3]));
  R(close(-1));
  R(close(1 << 20));
  R(close(2000000000));
  in_a_thread();
  outsider("a");
  outsider("b");
  return 0;
}
