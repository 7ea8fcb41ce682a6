// Threads cancelled in a read: of a pipe, where it waits, and of a file.
// link: -lpthread
#include "t.h"
#include <pthread.h>
static int a, p[2];
static volatile int cleaned, started, asked;
static void cleanup(void *x) { cleaned += (int)(long)x; }
static void *waits(void *x) {
  char b[10];
  pthread_cleanup_push(cleanup, x);
  started = 1;
  read(p[0], b, 10);
  pthread_cleanup_pop(0);
  return "returned";
}
static void *reads(void *x) {
  static char b[50000];
  pthread_cleanup_push(cleanup, x);
  started = 1;
  for (long i = 0;; i++) {
    pread(a, b, sizeof b, i % 1000);
    pwrite(a, b, 1000, i % 1000);
    read(a, b, 10);
    lseek(a, 0, SEEK_SET);
  }
  pthread_cleanup_pop(0);
  return NULL;
}
static void *off(void *x) {
  (void)x;
  char b[100];
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  started = 1;
  while (!asked) usleep(100);
  long n = pread(a, b, 100, 5000);
  return (void *)n;
}
static void *opens(void *x) {
  pthread_cleanup_push(cleanup, x);
  started = 1;
  for (;;) {
    int fd = open("a", O_RDWR);
    close(fd);
  }
  pthread_cleanup_pop(0);
  return NULL;
}
static void *tested(void *x) {
  (void)x;
  started = 1;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  while (!asked) usleep(100);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  char b[10];
  // Pending already: the read is a cancellation point even when it need not wait.
  read(a, b, 10);
  return "returned";
}
static void *closes(void *x) {
  int fd = open("a", O_RDWR);
  (void)x;
  started = 1;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  while (!asked) usleep(100);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  close(fd);
  return "returned";
}
static void *many(void *x) {
  char b[1000];
  for (int i = 0; i < 2000; i++) pread(a, b, 1000, 1000 * (i % 200));
  return x;
}
static void one(const char *what, void *(*f)(void *), long x) {
  pthread_t t;
  void *r;
  started = asked = 0;
  pthread_create(&t, NULL, f, (void *)x);
  while (!started) usleep(100);
  usleep(5000);
  pthread_cancel(t);
  asked = 1;
  pthread_join(t, &r);
  printf("%s: %s, cleaned %d\n", what, r == PTHREAD_CANCELED ? "cancelled" : "returned", cleaned);
  fflush(stdout);
}
int main(void) {
  a = warm_file("a", O_RDWR);
  pipe(p);
  one("waiting in a pipe", waits, 1);
  one("reading a file", reads, 10);
  one("cancellation off", off, 100);
  one("pending at a read", tested, 0);
  one("pending at a close", closes, 0);
  // open and close: descriptors may leak, memory and locks must not.
  for (int i = 0; i < 5; i++) one("opening", opens, 1000);
  pthread_t t[8];
  for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, many, NULL);
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
  char b[10];
  R(pread(a, b, 10, 100000));
  int c = open("a", O_RDWR);
  warm(c);
  R(pwrite(c, "x", 1, 7));
  return 0;
}
