// Threads that start, read, write and end while descriptors change.
// link: -lpthread
#include "t.h"
#include <pthread.h>
#include <threads.h>
static int a;
static void *work(void *x) {
  unsigned char b[5000];
  long bad = 0;
  for (int i = 0; i < 300; i++) {
    long at = ((long)x * 7919 + i * 101) % (SIZE - 5000);
    if (pread(a, b, 5000, at) != 5000 || b[4999] != pattern(at + 4999)) bad++;
    if (pwrite(a, b, 5000, at) != 5000) bad++;
    int fd = open("a", O_RDWR);
    if (fd < 0 || pread(fd, b, 100, at) != 100 || b[0] != pattern(at)) bad++;
    int d = dup(fd);
    close(fd);
    if (read(d, b, 100) != 100 || b[1] != pattern(1)) bad++;
    close(d);
  }
  return (void *)bad;
}
static int work11(void *x) { return (int)(long)work(x); }
int main(void) {
  a = warm_file("a", O_RDWR);
  for (int round = 0; round < 3; round++) {
    pthread_t t[6];
    long bad = 0;
    void *r;
    for (long i = 0; i < 6; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < 6; i++) pthread_join(t[i], &r), bad += (long)r;
    R(bad);
  }
  thrd_t c;
  int code;
  thrd_create(&c, work11, (void *)77);
  thrd_join(c, &code);
  R(code);
  IS(open("a", O_RDONLY) == a + 1);
  outsider("a");
  return 0;
}
