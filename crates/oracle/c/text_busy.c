// A program file written by us must be executable the moment the last writer closes.
#include "t.h"
static void run(const char *what) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    execl("./program", "program", (char *)NULL);
    printf("%s: %s\n", what, strerrorname_np(errno));
    fflush(stdout);
    _exit(9);
  }
  ended(pid);
}
int main(void) {
  int in = open("/bin/true", O_RDONLY), out = open("program", O_RDWR | O_CREAT, 0755);
  static char buf[65536];
  long n;
  warm(in);
  while ((n = read(in, buf, sizeof buf)) > 0) write(out, buf, (size_t)n);
  // Make it big enough to be served; what follows the ELF image does no harm.
  memset(buf, 0, sizeof buf);
  for (int i = 0; i < 5; i++) write(out, buf, sizeof buf);
  warm(out);
  pwrite(out, "tail", 4, 200000);
  fcntl(out, F_SETFD, FD_CLOEXEC);
  run("still open");
  int d = dup(out);
  close(out);
  fcntl(d, F_SETFD, FD_CLOEXEC);
  run("a duplicate open");
  close(d);
  run("closed");
  fflush(stdout);
  pid_t pid = vfork();
  if (pid == 0) {
    execl("./program", "program", (char *)NULL);
    _exit(9);
  }
  ended(pid);
  out = open("program", O_RDWR);
  warm(out);
  close(out);
  R(system("./program"));
  // Executing forbids writers.
  R(open("/proc/self/exe", O_RDWR));
  unlink("program");
  return 0;
}
