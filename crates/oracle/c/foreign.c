// Descriptors that are no files stay what they are, and numbers move between the kinds.
#include "t.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <pty.h>
#include <utmp.h>
// The standard descriptors become a terminal inside libc, whatever files they were before.
static void logs_in(void) {
  int m, t, status;
  char b[100] = {0};
  R(openpty(&m, &t, NULL, NULL, NULL));
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    close(m);
    for (int i = 0; i < 2; i++) {
      int file = warm_file(i ? "out" : "in", O_RDWR);
      dup2(file, i);
      close(file);
    }
    if (lseek(0, 100, SEEK_SET) != 100 || login_tty(t) != 0) _exit(99);
    int again = open("in", O_RDWR);
    int good = again == t && isatty(0) && isatty(1) && isatty(2) && lseek(0, 0, SEEK_CUR) == -1;
    good = good && write(1, "logged in\n", 10) == 10 && pread(again, b, 4, 100) == 4;
    _exit(good && (unsigned char)b[3] == pattern(103) ? 5 : 98);
  }
  close(t);
  long n = 0, got;
  while (n < 11 && (got = read(m, b + n, sizeof b - (size_t)n)) > 0) n += got;
  printf("%.*s\n", (int)n, b);
  ended(pid);
  R(read(m, b, 1));
  R(close(m));
  outsider("in"), outsider("out");
}
int main(void) {
  char b[100] = {0};
  int a = warm_file("a", O_RDWR);
  int s[2], p[2];
  R(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
  R(pipe(p));
  R(dup2(s[0], a));
  R(write(a, "socket", 6));
  R(read(s[1], b, 100));
  R(lseek(a, 0, SEEK_CUR));
  R(pread(a, b, 5, 0));
  R(close(a));
  a = open("a", O_RDWR);
  warm(a);
  R(dup2(a, p[0]));
  next(p[0], "was a pipe");
  int ev = eventfd(3, EFD_NONBLOCK);
  R(read(ev, b, 8));
  R(read(ev, b, 8));
  R(pwrite(ev, b, 8, 0));
  struct pollfd q = {.fd = a, .events = POLLIN | POLLOUT};
  R(poll(&q, 1, 0));
  R(q.revents);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(a, &set);
  struct timeval now = {0, 0};
  R(select(a + 1, &set, NULL, NULL, &now));
  int m, t;
  R(openpty(&m, &t, NULL, NULL, NULL));
  R(write(m, "tty\n", 4));
  R(read(t, b, 100));
  R(isatty(t));
  R(isatty(a));
  R(close(t));
  R(mkfifo("fifo", 0644));
  int fifo = open("fifo", O_RDWR | O_NONBLOCK);
  R(write(fifo, "fifo", 4));
  R(read(fifo, b, 10));
  R(read(fifo, b, 10));
  int nul = open("/dev/null", O_RDWR);
  R(write(nul, b, 100));
  R(read(nul, b, 100));
  R(pread(nul, b, 100, 5));
  int mem = memfd_create("m", 0);
  R(write(mem, "memory", 6));
  R(pread(mem, b, 10, 0));
  R(fcntl(a, F_GETPIPE_SZ));
  int self = open("/proc/self/maps", O_RDONLY);
  IS(read(self, b, 50) > 0);
  R(close(self));
  logs_in();
  return 0;
}
