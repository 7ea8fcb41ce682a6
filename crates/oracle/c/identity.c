// A process that becomes someone else, or locks itself in. Needs root for most of it.
#include "t.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#ifndef BY_NUMBER
int capset(void *, const void *);
int pivot_root(const char *, const char *);
#endif
static int a;
// Whoever gives up rights has what it wrote published: others see where a file ends.
static void shows(int fd) {
  struct statx x;
  raw6(SYS_statx, fd, (long)"", AT_EMPTY_PATH, STATX_ALL, (long)&x, 0);
  printf("   %lld bytes\n", (long long)x.stx_size);
}
// A root of its own, in the directory where the program runs already. The namespace comes behind the back of libc,
// whose call for it has everything published, too.
static void new_root(void) {
  if (RAW(unshare, CLONE_NEWNS, 0, 0, 0) < 0) return;
  R(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
  R(mount(".", ".", NULL, MS_BIND, NULL));
  char here[4096];
  if (getcwd(here, sizeof here)) R(chdir(here));
  R(pivot_root(".", "."));
  R(umount2(".", MNT_DETACH));
}
static void own_namespace(void) {
  int space = open("/proc/self/ns/uts", O_RDONLY);
  R(setns(space, CLONE_NEWUTS));
  R(setns(space, CLONE_NEWNET));
  close(space);
}
static void no_capabilities(void) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0}};
  R(capset(&head, none));
  R(chown("other", 1, 1));
}
// Nothing below the directory where the program runs may be written any more.
static void landlocked(void) {
  struct landlock_ruleset_attr none = {.handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE};
  int rules = (int)syscall(SYS_landlock_create_ruleset, &none, sizeof none, 0);
  if (rules < 0) return;
  R(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  R(syscall(SYS_landlock_restrict_self, rules, 0));
  close(rules);
}
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
    char name[16];
    snprintf(name, sizeof name, "grown%d", how);
    int grown = warm_file(name, O_RDWR);
    R(pwrite(grown, "grown", 5, SIZE + 5000));
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
    if (how == 16) R(setuid(65534));
    if (how == 17) R(setgid(65534));
    if (how == 18) R(setegid(65534));
    if (how == 19) R(setreuid(65534, 65534));
    if (how == 20) R(setregid(65534, 65534));
    if (how == 21) R(setresuid(65534, 65534, 65534));
    if (how == 22) R(setresgid(65534, 65534, 65534));
    if (how == 23) R(setfsuid(65534));
    if (how == 24) R(setfsgid(65534));
    if (how == 25) R(setgroups(1, g));
    if (how == 13) new_root();
    if (how == 14) own_namespace();
    if (how == 15) no_capabilities();
    if (how == 26) landlocked();
    if (how != 11 && how != 12) shows(grown);
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
                         "syscall setuid", "not dumpable", "no new privileges",
                         "a root of its own", "a namespace", "no capabilities",
                         "setuid alone", "setgid alone", "setegid alone", "setreuid alone", "setregid alone",
                         "setresuid alone", "setresgid alone", "setfsuid alone", "setfsgid alone", "setgroups alone",
                         "landlock"};
  for (int i = 0; i < 27; i++) child(names[i], i);
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
