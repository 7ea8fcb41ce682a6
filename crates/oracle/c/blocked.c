// Signal masks: a blocked SIGBUS while an outsider truncates the file that is being read.
#include "t.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <ucontext.h>
// The names that the headers make others of.
int sigpause_of_bsd(int) __asm__("sigpause");
int __sigpause(int, int), __xpg_sigpause(int), __sigsuspend(const sigset_t *);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
void plain_longjmp(jmp_buf, int) __asm__("longjmp");
void plain__longjmp(jmp_buf, int) __asm__("_longjmp");
void plain_siglongjmp(jmp_buf, int) __asm__("siglongjmp");
static int a;
static char b[20000];
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
static int is_blocked(int s) {
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  return sigismember(&now, s);
}
static sigset_t faults(void) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGBUS), sigaddset(&set, SIGSEGV);
  return set;
}
// A descriptor that Adit has, in a thread whose mask it knows to be open.
static void whole_again(void) {
  make("a", SIZE);
  warm(a);
  R(pread(a, b, 100, 0));
}
// What lies behind the new end, and what ends there: no fault of Adit's may arrive while it is blocked.
static void cut_off(void) {
  shrink(50000);
  R(pread(a, b, sizeof b, 45000));
  R(pread(a, b, sizeof b, 200000));
  printf("blocked: bus %d, segv %d\n", is_blocked(SIGBUS), is_blocked(SIGSEGV));
}
// The interfaces of old, which name one signal or have the mask in a word.
static void old_masks(void) {
  whole_again();
  R(sigsetmask(sigmask(SIGBUS)) == 0);
  cut_off();
  R(sigsetmask(0) == sigmask(SIGBUS));
  whole_again();
  R(sighold(SIGBUS));
  cut_off();
  R(sigrelse(SIGBUS));
  cut_off();
  whole_again();
  R(sigblock(sigmask(SIGBUS) | sigmask(SIGSEGV)) == 0);
  cut_off();
  R(sigsetmask(0) == (sigmask(SIGBUS) | sigmask(SIGSEGV)));
  cut_off();
  R(sighold(9999));
  R(sigrelse(9999));
}
// A handler that reads while its thread waits with everything else blocked.
static volatile int handled;
static void on_alarm(int s) {
  (void)s;
  handled++;
  cut_off();
}
static int by_suspend(const sigset_t *mask) { return __sigsuspend(mask); }
static int by_ppoll(const sigset_t *mask) { return __ppoll_chk(NULL, 0, NULL, mask, 0); }
static int by_epoll(const sigset_t *mask) {
  struct epoll_event event;
  int set = epoll_create1(0);
  int got = epoll_pwait2(set, &event, 1, NULL, mask);
  close(set);
  return got;
}
static int by_pause_of_bsd(const sigset_t *mask) {
  (void)mask;
  return sigpause_of_bsd(sigmask(SIGBUS) | sigmask(SIGSEGV));
}
static int by_pause_of_mask(const sigset_t *mask) {
  (void)mask;
  return __sigpause(sigmask(SIGBUS) | sigmask(SIGSEGV), 0);
}
static int by_pause_of_signal(const sigset_t *mask) {
  (void)mask;
  return __sigpause(SIGALRM, 1);
}
static int by_xpg_pause(const sigset_t *mask) {
  (void)mask;
  return __xpg_sigpause(SIGALRM);
}
static int by_number_of_suspend(const sigset_t *mask) { return (int)syscall(SYS_rt_sigsuspend, mask, 8); }
static int by_number_of_ppoll(const sigset_t *mask) { return (int)syscall(SYS_ppoll, NULL, 0, NULL, mask, 8); }
static int by_number_of_pselect(const sigset_t *mask) {
  struct {
    const sigset_t *mask;
    size_t bytes;
  } both = {mask, 8};
  return (int)syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, &both);
}
static int by_number_of_epoll(const sigset_t *mask) {
  struct epoll_event event;
  int set = epoll_create1(0);
  int got = (int)syscall(SYS_epoll_pwait, set, &event, 1, -1, mask, 8);
  close(set);
  return got;
}
static int by_number_of_epoll2(const sigset_t *mask) {
  struct epoll_event event;
  int set = epoll_create1(0);
  int got = (int)syscall(SYS_epoll_pwait2, set, &event, 1, NULL, mask, 8);
  close(set);
  return got;
}
static void waits(const char *what, int (*wait_for)(const sigset_t *)) {
  struct sigaction sa = {.sa_handler = on_alarm};
  sigset_t alarm, others;
  sigemptyset(&alarm), sigaddset(&alarm, SIGALRM);
  sigfillset(&others), sigdelset(&others, SIGALRM);
  handled = 0;
  printf("%s\n", what);
  R(sigaction(SIGALRM, &sa, NULL));
  R(sigprocmask(SIG_BLOCK, &alarm, NULL));
  raise(SIGALRM);
  whole_again();
  R(wait_for(&others));
  R(handled);
  R(sigprocmask(SIG_UNBLOCK, &alarm, NULL));
  cut_off();
}
// A jump brings back a mask that blocks what a read in between found open.
static sigjmp_buf back;
static void jumps(const char *what, void (*jump)(struct __jmp_buf_tag *, int)) {
  sigset_t set = faults();
  volatile int turn = 0;
  printf("%s\n", what);
  R(sigprocmask(SIG_BLOCK, &set, NULL));
  if (sigsetjmp(back, 1) == 0) turn = 1;
  if (turn++ == 1) {
    R(sigprocmask(SIG_UNBLOCK, &set, NULL));
    whole_again();
    jump(back, 1);
  }
  cut_off();
  R(sigprocmask(SIG_UNBLOCK, &set, NULL));
}
static void switches(void) {
  static ucontext_t here, there;
  sigset_t set = faults();
  volatile int turn = 0;
  R(sigprocmask(SIG_BLOCK, &set, NULL));
  R(getcontext(&there));
  if (turn++ == 0) {
    R(sigprocmask(SIG_UNBLOCK, &set, NULL));
    whole_again();
    swapcontext(&here, &there);
  }
  cut_off();
  R(sigprocmask(SIG_UNBLOCK, &set, NULL));
}
int main(void) {
  sigset_t all, seen, one;
  sigfillset(&all);
  a = warm_file("a", O_RDWR);
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
  old_masks();
  waits("suspend", by_suspend), waits("ppoll", by_ppoll), waits("epoll", by_epoll);
  waits("pause of BSD", by_pause_of_bsd), waits("pause with a mask", by_pause_of_mask);
  waits("suspend by number", by_number_of_suspend), waits("ppoll by number", by_number_of_ppoll);
  waits("pselect by number", by_number_of_pselect), waits("epoll by number", by_number_of_epoll);
  waits("epoll 2 by number", by_number_of_epoll2);
  whole_again();
  sigset_t bus = faults();
  R(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &bus, NULL, 8));
  cut_off();
  R(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &bus, NULL, 8));
  cut_off();
  waits("pause with a signal", by_pause_of_signal), waits("pause of XPG", by_xpg_pause);
  jumps("longjmp", plain_longjmp), jumps("_longjmp", plain__longjmp), jumps("siglongjmp", plain_siglongjmp);
  jumps("a checked one", longjmp);
  switches();
  outsider("a");
  return 0;
}
