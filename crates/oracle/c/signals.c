// The program's own handlers for the signals that Adit uses, and its own faults.
#include "t.h"
#include <setjmp.h>
static volatile sig_atomic_t bus, segv;
static sigjmp_buf back;
static char *m;
static int a;
static void on_bus(int s, siginfo_t *i, void *c) {
  (void)c;
  bus++;
  if (s != SIGBUS || (char *)i->si_addr < m || (char *)i->si_addr >= m + SIZE || i->si_code != BUS_ADRERR)
    _exit(50);
  siglongjmp(back, 1);
}
static void on_segv(int s, siginfo_t *i, void *c) {
  (void)c;
  segv++;
  if (s != SIGSEGV || i->si_addr != (void *)8) _exit(51);
  siglongjmp(back, 1);
}
static void fault_bus(void) {
  if (sigsetjmp(back, 1) == 0) {
    (void)*(volatile char *)(m + 200000);
    printf("no fault\n");
  }
}
static void fault_segv(void) {
  if (sigsetjmp(back, 1) == 0) *(volatile int *)8 = 1;
}
// What programs have that were linked long ago.
struct sigvec_of_old { void *handler; int mask, flags; };
int sigvec_of_old(int, const struct sigvec_of_old *, struct sigvec_of_old *);
__asm__(".symver sigvec_of_old, sigvec@GLIBC_2.2.5");
static void on_bus_of_old(int s) {
  bus++;
  siglongjmp(back, s);
}
static void by_sigvec(void) {
  enum { ON_STACK = 1, INTERRUPT = 2 };
  struct sigvec_of_old was, is = {on_bus_of_old, 1 << (SIGUSR1 - 1), INTERRUPT};
  R(sigvec_of_old(SIGBUS, &is, NULL));
  fault_bus();
  make("a", SIZE);
  warm(a);
  char b[16];
  R(pread(a, b, sizeof b, 200000));
  make("a", 4096);
  int before = bus;
  if (sigsetjmp(back, 1) == 0) R(pread(a, b, sizeof b, 200000));
  printf("%d of them the program's\n", bus - before);
  fault_bus();
  is.flags = ON_STACK, is.handler = SIG_DFL, is.mask = 0;
  R(sigvec_of_old(SIGBUS, &is, &was));
  printf("%d %#x %d\n", was.handler == (void *)on_bus_of_old, was.mask, was.flags);
  R(sigvec_of_old(SIGBUS, NULL, &was));
  printf("%d %#x %d\n", was.handler == SIG_DFL, was.mask, was.flags);
  R(sigvec_of_old(SIGKILL, &is, NULL));
}
// By which other names a handler comes into place.
int __sigaction(int, const struct sigaction *, struct sigaction *);
__sighandler_t bsd_signal(int, __sighandler_t);
static void on_any(int s) {
  bus += s == SIGBUS;
  segv += s == SIGSEGV;
  siglongjmp(back, 1);
}
static __sighandler_t by_action(int s, __sighandler_t handler) {
  struct sigaction old, action = {.sa_handler = handler, .sa_flags = SA_NODEFER};
  return __sigaction(s, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}
// The file is cut behind a warm descriptor: that fault is Adit's, those of the program's mapping are the handler's.
static void installs(__sighandler_t (*install)(int, __sighandler_t), long cut) {
  char b[5000];
  make("a", SIZE);
  warm(a);
  bus = segv = 0;
  R(install(SIGBUS, on_any) == SIG_DFL);
  R(install(SIGSEGV, on_any) == SIG_DFL);
  RAW(truncate, "a", cut, 0, 0);
  R(pread(a, b, 5000, cut - 1000));
  R(pread(a, b, 5000, cut + 8192));
  R(pread(a, (void *)8, 5000, 1000));
  printf("bus %d segv %d\n", (int)bus, (int)segv);
  fault_bus(), fault_segv(), fault_bus(), fault_segv();
  printf("bus %d segv %d\n", (int)bus, (int)segv);
  R(pread(a, b, 5000, cut - 2000));
  IS(install(SIGBUS, SIG_DFL) == on_any);
  IS(install(SIGSEGV, SIG_DFL) == on_any);
  IS(install(SIGKILL, on_any) == SIG_ERR);
}
static void dies(int which, int ignore) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    signal(SIGBUS, ignore ? SIG_IGN : SIG_DFL);
    signal(SIGSEGV, ignore ? SIG_IGN : SIG_DFL);
    if (which == 0) (void)*(volatile char *)(m + 200000);
    if (which == 1) *(volatile int *)8 = 1;
    if (which == 2) raise(SIGBUS);
    if (which == 3) raise(SIGSEGV);
    if (which == 4) kill(getpid(), SIGBUS);
    char b[10];
    R(pread(a, b, 10, 9000));
    _exit(0);
  }
  ended(pid);
}
int main(void) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  struct sigaction old, sa = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
  R(sigaction(SIGBUS, NULL, &old));
  IS(old.sa_handler == SIG_DFL);
  R(sigaction(SIGSEGV, NULL, &old));
  IS(old.sa_handler == SIG_DFL);
  a = warm_file("a", O_RDWR);
  R(sigaction(SIGBUS, NULL, &old));
  IS(old.sa_handler == SIG_DFL);
  m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, a, 0);
  R(sigaction(SIGBUS, &sa, &old));
  IS(old.sa_handler == SIG_DFL);
  sa.sa_sigaction = on_segv;
  R(sigaction(SIGSEGV, &sa, NULL));
  R(sigaction(SIGSEGV, NULL, &old));
  IS(old.sa_sigaction == on_segv && (old.sa_flags & SA_SIGINFO));
  RAW(truncate, "a", 100000, 0, 0);
  char b[5000];
  // The read faults inside Adit; the program must not notice.
  R(pread(a, b, 5000, 150000));
  R(pread(a, b, 5000, 98000));
  R(pwrite(a, b, 100, 99000));
  R((long)bus);
  fault_bus();
  fault_segv();
  printf("bus %d segv %d\n", (int)bus, (int)segv);
  R(pread(a, b, 5000, 50000));
  R(pread(a, (void *)8, 5000, 50000));
  R(pwrite(a, (void *)8, 5000, 50000));
  printf("bus %d segv %d\n", (int)bus, (int)segv);
  for (int i = 0; i < 20; i++) {
    fault_bus(), fault_segv();
    RAW(truncate, "a", 100000 - i * 4000, 0, 0);
    pread(a, b, 5000, 99000 - i * 4000);
  }
  printf("bus %d segv %d\n", (int)bus, (int)segv);
  // On an alternate stack, with the old interface, reset after one, ignored.
  stack_t alt = {.ss_sp = malloc(65536), .ss_size = 65536};
  R(sigaltstack(&alt, NULL));
  sa.sa_sigaction = on_bus;
  sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  R(sigaction(SIGBUS, &sa, NULL));
  fault_bus();
  IS(signal(SIGBUS, SIG_IGN) == (void *)on_bus);
  IS(signal(SIGBUS, SIG_DFL) == SIG_IGN);
  sa.sa_flags = SA_SIGINFO | SA_RESETHAND;
  R(sigaction(SIGBUS, &sa, NULL));
  fault_bus();
  R(sigaction(SIGBUS, NULL, &old));
  IS(old.sa_handler == SIG_DFL);
  for (int i = 0; i < 5; i++) dies(i, 0);
  for (int i = 0; i < 5; i++) dies(i, 1);
  IS(sigaction(SIGKILL, &sa, NULL) == -1);
  // libc itself reads there, and the handler ends the child.
  fflush(stdout);
  pid_t reader = fork();
  if (reader == 0) _exit(sigaction(SIGBUS, (void *)8, NULL) == -1 ? 0 : 1);
  ended(reader);
  installs(by_action, 60000);
  installs(ssignal, 50000);
  installs(bsd_signal, 40000);
  by_sigvec();
  // Served again after all that.
  make("a", SIZE);
  warm(a);
  R(pread(a, b, 5000, 150000));
  outsider("a");
  return 0;
}
