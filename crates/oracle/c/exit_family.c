// Every way to end, with overwrites and output pending.
#include "t.h"
static int fd;
static void at_exit(void) { pwrite(fd, "atexit", 6, 70000); }
static void __attribute__((destructor)) at_end(void) { pwrite(fd, "destructor", 10, 80000); }
static void child(int how) {
  char name[16];
  snprintf(name, sizeof name, "e%d", how);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    fd = warm_file(name, O_RDWR);
    atexit(at_exit);
    at_quick_exit(at_exit);
    FILE *f = fdopen(dup(fd), "r+");
    fseek(f, 50000, SEEK_SET);
    fputs("stdio", f);
    lseek(fd, 40000, SEEK_SET);
    write(fd, "written", 7);
    pwrite(fd, "placed", 6, 60000);
    if (how == 0) exit(0);
    if (how == 1) _exit(1);
    if (how == 2) _Exit(2);
    if (how == 3) quick_exit(3);
    if (how == 4) abort();
    if (how == 5) raise(SIGKILL);
    if (how == 6) raise(SIGTERM);
    if (how == 7) *(volatile int *)0 = 0;
    if (how == 8) syscall(SYS_exit_group, 8);
    if (how == 9) RAW(exit_group, 9, 0, 0, 0);
    if (how == 10) execl("/bin/true", "true", (char *)NULL);
  }
  ended(pid);
  outsider(name);
  struct statx x, now;
  raw6(SYS_statx, AT_FDCWD, (long)name, 0, STATX_ALL, (long)&x, 0);
  (void)now;
  IS(x.stx_mtime.tv_sec > 100000);
}
int main(void) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  for (int i = 0; i < 11; i++) child(i);
  fd = warm_file("main", O_RDWR);
  pwrite(fd, "main", 4, 9);
  printf("not flushed");
  return 5;
}
