// Other processes get the descriptors: by fork, vfork, spawn and every exec.
#include "t.h"
#include <gnu/libc-version.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>
#include <wordexp.h>
extern char **environ;
pid_t _Fork(void);
static int a;
static char number[16];
static char *self;
static void fresh(void) {
  static int count = 0;
  char name[32];
  snprintf(name, sizeof name, "f%d", count++);
  a = warm_file(name, O_RDWR);
  char buf[1000];
  read(a, buf, 1000);
  snprintf(number, sizeof number, "%d", a);
}
static void after(const char *what) {
  next(a, what);
  close(a);
}
static int in_clone(void *x) {
  (void)x;
  next(a, "clone child");
  _exit(3);
}
int main(int argc, char **argv) {
  self = "/proc/self/exe";
  if (argc > 2 && strcmp(argv[1], "next") == 0) {
    next(atoi(argv[2]), argv[0]);
    pwrite(atoi(argv[2]), "from the child", 14, 20000);
    return 7;
  }
  if (argc > 2 && strcmp(argv[1], "gone") == 0) {
    R(read(atoi(argv[2]), self, 0));
    return 0;
  }
  pid_t pid;
  fresh();
  pid = fork();
  if (pid == 0) {
    next(a, "child");
    _exit(1);
  }
  ended(pid);
  after("fork");

  fresh();
  pid = _Fork();
  if (pid == 0) {
    next(a, "child");
    _exit(1);
  }
  ended(pid);
  after("_Fork");

  fresh();
  static char stack[65536];
  pid = clone(in_clone, stack + sizeof stack, SIGCHLD, NULL);
  ended(pid);
  after("clone");

  // The child's words go to its terminal, so it says by the file what it found.
  fresh();
  fflush(stdout);
  int terminal;
  pid = forkpty(&terminal, NULL, NULL, NULL);
  if (pid == 0) {
    char five[5];
    long at = lseek(a, 0, SEEK_CUR), n = read(a, five, 5);
    pwrite(a, five, 5, 20000);
    _exit(at == 1000 && n == 5 && isatty(0) && isatty(1) && isatty(2) ? 4 : 99);
  }
  ended(pid);
  R(close(terminal));
  char there[5] = {0};
  R(pread(a, there, 5, 20000));
  printf("%d %d %d %d %d\n", there[0], there[1], there[2], there[3], there[4]);
  after("forkpty");

  char *args[] = {"exec", "next", number, NULL};
  for (int way = 0; way < 9; way++) {
    fresh();
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
      int exe = open(self, O_RDONLY | O_PATH);
      if (way == 0) execv(self, args);
      if (way == 1) execve(self, args, environ);
      if (way == 2) execvp(self, args);
      if (way == 3) execvpe(self, args, environ);
      if (way == 4) execl(self, "execl", "next", number, (char *)NULL);
      if (way == 5) execlp(self, "execlp", "next", number, (char *)NULL);
      if (way == 6) execle(self, "execle", "next", number, (char *)NULL, environ);
      if (way == 7) fexecve(exe, args, environ);
      if (way == 8) execveat(exe, "", args, environ, AT_EMPTY_PATH);
      _exit(99);
    }
    ended(pid);
    char b[15] = {0};
    R(pread(a, b, 14, 20000));
    printf("%s\n", b);
    after("fork and exec");
  }

  fresh();
  fcntl(a, F_SETFD, FD_CLOEXEC);
  fflush(stdout);
  pid = fork();
  if (pid == 0) {
    execl(self, "gone", "gone", number, (char *)NULL);
    _exit(99);
  }
  ended(pid);
  after("close on exec");

  fresh();
  fflush(stdout);
  pid = vfork();
  if (pid == 0) {
    execl(self, "vfork", "next", number, (char *)NULL);
    _exit(99);
  }
  ended(pid);
  after("vfork");

  fresh();
  fflush(stdout);
  int other = warm_file("vfork-other", O_RDWR);
  char c[4];
  read(other, c, 4);
  pid = vfork();
  if (pid == 0) {
    // The child's table is its own, the memory is not.
    close(other);
    dup2(a, 99);
    close_range(100, ~0u, 0);
    _exit(5);
  }
  ended(pid);
  next(other, "other after vfork");
  R(read(99, c, 1));
  close(other);
  after("vfork and exit");

  // A child of the child, on the same memory; afterwards the first goes on.
  fresh();
  fflush(stdout);
  other = warm_file("vfork-twice", O_RDWR);
  read(other, c, 4);
  pid = vfork();
  if (pid == 0) {
    if (vfork() == 0) _exit(3);
    dup2(a, other);
    _exit(6);
  }
  ended(pid);
  R(write(other, "its own", 7));
  R(lseek(other, 0, SEEK_CUR));
  next(other, "other after two");
  close(other);
  outsider("vfork-twice");
  after("vfork twice");

  fresh();
  fflush(stdout);
  R(execl("/missing", "missing", (char *)NULL));
  after("failed exec");

  for (int p = 0; p < 2; p++) {
    fresh();
    posix_spawn_file_actions_t act;
    posix_spawn_file_actions_init(&act);
    posix_spawn_file_actions_adddup2(&act, a, 0);
    posix_spawn_file_actions_addopen(&act, 30, "spawned", O_CREAT | O_RDWR, 0644);
    posix_spawn_file_actions_addclose(&act, a);
    char *spawned[] = {"spawn", "next", "0", NULL};
    fflush(stdout);
    int e = p ? posix_spawnp(&pid, self, &act, NULL, spawned, environ)
              : posix_spawn(&pid, self, &act, NULL, spawned, environ);
    printf("spawn %d\n", e);
    ended(pid);
    after("spawn");
  }
  // Libraries before 2.39 do not have them, and under Adit they are there all the same.
  int new_enough = strverscmp(gnu_get_libc_version(), "2.39") >= 0;
  for (int p = 0; p < 2 && new_enough; p++) {
    int (*spawn)(int *, const char *, const void *, const void *, char *const *, char *const *) =
        p ? dlsym(RTLD_DEFAULT, "pidfd_spawnp") : dlsym(RTLD_DEFAULT, "pidfd_spawn");
    fresh();
    posix_spawn_file_actions_t act;
    posix_spawn_file_actions_init(&act);
    posix_spawn_file_actions_adddup2(&act, a, 0);
    char *spawned[] = {"spawn", "next", "0", NULL};
    fflush(stdout);
    int handle = -1, e = spawn(&handle, self, &act, NULL, spawned, environ);
    printf("spawn %d\n", e);
    siginfo_t info;
    if (e == 0) R(waitid(P_PIDFD, (id_t)handle, &info, WEXITED));
    close(handle);
    after("spawn for a handle");
  }
  printf("spawn missing %d\n", posix_spawn(&pid, "/missing", NULL, NULL, args, environ));

  fresh();
  char command[100];
  snprintf(command, sizeof command, "head -c 10 <&%d >out; echo shell >&%d", a, a);
  fflush(stdout);
  R(system(command));
  R(lseek(a, 0, SEEK_CUR));
  outsider("out");
  after("system");

  fresh();
  snprintf(command, sizeof command, "dd bs=7 count=1 status=none <&%d", a);
  fflush(stdout);
  FILE *f = popen(command, "r");
  char line[64];
  R((long)fread(line, 1, 64, f));
  R(pclose(f));
  after("popen");

  fresh();
  snprintf(command, sizeof command, "$(dd bs=5 count=1 status=none <&%d | wc -c)", a);
  wordexp_t w;
  R(wordexp(command, &w, 0));
  printf("%s\n", w.we_wordc ? w.we_wordv[0] : "nothing");
  after("wordexp");

  // A child that goes on without exec, while the parent does, too.
  fresh();
  pid = fork();
  if (pid == 0) {
    for (int i = 0; i < 5; i++) pwrite(a, "child!", 6, 3000 + i * 10000);
    char buf[50];
    for (int i = 0; i < 5; i++) read(a, buf, 50);
    int n = open("child-file", O_CREAT | O_RDWR, 0644);
    for (int i = 0; i < 100; i++) write(n, buf, 50);
    exit(0);
  }
  ended(pid);
  char b[7] = {0};
  R(pread(a, b, 6, 43000));
  printf("%s\n", b);
  outsider("child-file");
  after("a child without exec");
  for (int i = 0; i < 26; i++) {
    char name[32];
    snprintf(name, sizeof name, "f%d", i);
    outsider(name);
  }
  return 0;
}
