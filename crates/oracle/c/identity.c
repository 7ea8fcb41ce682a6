// A process that becomes someone else, or locks itself in. Needs root for most of it.
#include "t.h"
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
static int a;
static void use(const char *what) {
  char b[10];
  long r = pread(a, b, 10, 9000), w = pwrite(a, "used", 4, 9000), n = read(a, b, 10);
  printf("%s: pread %ld pwrite %ld read %ld at %lld\n", what, r, w, n, (long long)lseek(a, 0, SEEK_CUR));
  int fd = open("other", O_RDWR);
  if (fd >= 0) {
    warm(fd);
    r = pread(fd, b, 10, 100);
    close(fd);
  } else {
    r = -errno;
  }
  printf("   a new one: %ld\n", r);
  fflush(stdout);
}
static void strict(int how) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    a = open("a", O_RDWR);
    warm(a);
    char b[64];
    read(a, b, 10);
    if (how == 0) {
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    } else {
      // Only read, write and exit, whatever the library might want.
      struct sock_filter f[] = {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 4, 0),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 1, 0),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
      struct sock_fprog p = {sizeof f / sizeof *f, f};
      prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      if (how == 1) prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p);
      else syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p);
    }
    long n = 0;
    for (int i = 0; i < 100; i++) n += read(a, b, 64);
    n += write(a, b, 64);
    if (how) n += pread(a, b, 64, 5);
    b[0] = (char)('0' + n % 10);
    b[1] = '\n';
    write(1, b, 2);
    RAW(exit, 6, 0, 0, 0);
  }
  ended(pid);
}
static void child(const char *what, int how) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    a = open("a", O_RDWR);
    warm(a);
    lseek(a, 100, SEEK_SET);
    gid_t g[] = {65534};
    if (how == 0) R(seteuid(65534));
    if (how == 1) R(setegid(65534)), R(seteuid(65534)), R(seteuid(0));
    if (how == 2) R(setgroups(1, g)), R(setgid(65534)), R(setuid(65534));
    if (how == 3) R(setresgid(65534, 65534, 65534)), R(setresuid(65534, 65534, 65534));
    if (how == 4) R(setregid(65534, 65534)), R(setreuid(65534, 65534));
    if (how == 5) R(setfsgid(65534)), R(setfsuid(65534));
    if (how == 6) R(initgroups("nobody", 65534));
    if (how == 7) R(chroot("."));
    if (how == 8) R(unshare(CLONE_NEWNS));
    if (how == 9) R(unshare(CLONE_FILES));
    if (how == 10) R(syscall(SYS_setuid, 65534));
    if (how == 11) R(prctl(PR_SET_DUMPABLE, 0));
    if (how == 12) R(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    use(what);
    _exit(0);
  }
  ended(pid);
}
int main(void) {
  chmod(".", 0777);
  a = warm_file("a", O_RDWR);
  make("other", SIZE);
  for (int i = 0; i < 3; i++) strict(i);
  if (getuid() != 0) SKIP("not root: identities cannot be changed");
  const char *names[] = {"seteuid", "seteuid and back", "setuid", "setres", "setre", "setfs",
                         "initgroups", "chroot", "unshare mounts", "unshare files",
                         "syscall setuid", "not dumpable", "no new privileges"};
  for (int i = 0; i < 13; i++) child(names[i], i);
  // A set-id file loses the bit when someone else writes.
  chown("other", 65534, 65534);
  chmod("other", 06755);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    R(setresgid(65534, 65534, 65534)), R(setresuid(65534, 65534, 65534));
    a = open("other", O_RDWR);
    warm(a);
    R(pwrite(a, "stripped", 8, 5000));
    struct stat st;
    fstat(a, &st);
    printf("mode %o\n", st.st_mode);
    fflush(stdout);
    _exit(0);
  }
  ended(pid);
  outsider("a"), outsider("other");
  return 0;
}
