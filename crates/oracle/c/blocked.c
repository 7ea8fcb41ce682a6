// Signal masks: a blocked SIGBUS while an outsider truncates the file that is being read.
#include "t.h"
#include <pthread.h>
static void shrink(long to) {
  fflush(stdout);
  pid_t pid = (pid_t)RAW(fork, 0, 0, 0, 0);
  if (pid == 0) {
    RAW(truncate, "a", to, 0, 0);
    RAW(exit_group, 0, 0, 0, 0);
  }
  int st;
  raw6(SYS_wait4, pid, (long)&st, 0, 0, 0, 0);
}
int main(void) {
  sigset_t all, seen, one;
  sigfillset(&all);
  int a = warm_file("a", O_RDWR);
  static char b[20000];
  R(sigprocmask(SIG_BLOCK, &all, NULL));
  R(sigprocmask(SIG_BLOCK, NULL, &seen));
  R(sigismember(&seen, SIGBUS));
  R(sigismember(&seen, SIGSEGV));
  R(sigismember(&seen, SIGTERM));
  R(sigismember(&seen, SIGKILL));
  shrink(100000);
  R(pread(a, b, 20000, 90000));
  R(pread(a, b, 20000, 200000));
  R(lseek(a, 95000, SEEK_SET));
  R(read(a, b, 20000));
  shrink(50000);
  R(pwrite(a, b, 20000, 60000));
  R(pread(a, (void *)8, 100, 1000));
  make("a", SIZE);
  warm(a);
  R(pthread_sigmask(SIG_SETMASK, &all, &seen));
  R(sigismember(&seen, SIGBUS));
  shrink(4096);
  R(pread(a, b, 20000, 4000));
  R(pread(a, b, 20000, 8192));
  sigemptyset(&one);
  sigaddset(&one, SIGBUS);
  R(kill(getpid(), SIGBUS));
  R(sigpending(&seen));
  R(sigismember(&seen, SIGBUS));
  R(sigismember(&seen, SIGSEGV));
  struct timespec now = {0, 0};
  R(sigtimedwait(&one, NULL, &now));
  R(sigpending(&seen));
  R(sigismember(&seen, SIGBUS));
  // A handler that blocks everything while it reads.
  make("a", SIZE);
  warm(a);
  struct sigaction sa = {.sa_handler = (void (*)(int))(void *)SIG_IGN};
  sigfillset(&sa.sa_mask);
  R(sigaction(SIGUSR1, &sa, NULL));
  // A thread that inherits the blocked mask.
  shrink(10000);
  R(pread(a, b, 20000, 9000));
  R(sigprocmask(SIG_UNBLOCK, &all, &seen));
  R(sigismember(&seen, SIGBUS));
  R(sigprocmask(99, &all, NULL));
  outsider("a");
  return 0;
}
