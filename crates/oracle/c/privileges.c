// What the kernel takes away when somebody writes: rights that a file gives, whoever gave them, and when.
#include "t.h"
#include <sys/xattr.h>
static const char capability[20] = {1, 0, 0, 2, 0, 4};

static void shown(const char *name) {
  char back[64];
  struct stat stat_;
  R(getxattr(name, "security.capability", back, sizeof back));
  stat(name, &stat_);
  R(stat_.st_mode & 07777);
}

static void capabilities(const char *name, int how) {
  int fd = warm_file(name, O_RDWR);
  R(write(fd, "before", 6));
  if (how == 0) R(fsetxattr(fd, "security.capability", capability, sizeof capability, 0));
  if (how == 1) R(setxattr(name, "security.capability", capability, sizeof capability, 0));
  if (how == 2) R(lsetxattr(name, "security.capability", capability, sizeof capability, 0));
  if (how == 3) R(syscall(SYS_fsetxattr, fd, "security.capability", capability, sizeof capability, 0));
  if (how > 3) R(fsetxattr(fd, "security.capability", capability, sizeof capability, 0));
  if (how == 4) R(pwrite(fd, "after", 5, 8192));
  R(close(fd));
  shown(name);
}

// Those of another user's own file: root keeps what it sets.
static void set_id(const char *name, int how) {
  int fd = warm_file(name, O_RDWR);
  R(pwrite(fd, "before", 6, 4096));
  if (how == 0) R(fchmod(fd, 04755));
  if (how == 1) R(chmod(name, 06711));
  if (how == 2) R(fchmodat(AT_FDCWD, name, 04711, 0));
  if (how == 3) R(syscall(SYS_fchmod, fd, 04755));
  if (how == 4) R(fchmod(fd, 0600));
  shown(name);
  R(pwrite(fd, "after", 5, 8192));
  R(close(fd));
  shown(name);
}

int main(void) {
  static const char *names[] = {"by descriptor", "by name", "by link", "by number", "and written", "last"};
  for (int how = 0; how < 6; how++) capabilities(names[how], how);
  mkdir("dir", 0700);
  R(chmod("dir", 01777));
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534)) _exit(1);
    if (chdir("dir")) _exit(2);
    for (int how = 0; how < 5; how++) set_id(names[how], how);
    _exit(0);
  }
  ended(child);
  return 0;
}
