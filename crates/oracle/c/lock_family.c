// Whole-file locks and lockf stay what they are while files are served.
// (Record locks and OFD locks: fcntl_family.)
#include "t.h"
#include <sys/file.h>
static void child_tries(void) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    int fd = open("a", O_RDWR);
    R(flock(fd, LOCK_EX | LOCK_NB));
    R(flock(fd, LOCK_SH | LOCK_NB));
    R(lockf(fd, F_TEST, 0));
    _exit(0);
  }
  ended(pid);
}
int main(void) {
  int a = warm_file("a", O_RDWR);
  R(flock(a, LOCK_SH));
  child_tries();
  int b = open("a", O_RDWR);
  warm(b);
  R(flock(b, LOCK_EX | LOCK_NB));
  close(b);
  R(flock(a, LOCK_EX));
  warm(a);
  child_tries();
  // The lock belongs to the description: a duplicate keeps it.
  b = dup(a);
  close(a);
  child_tries();
  // With the last descriptor it goes at once, whatever else was mapped.
  close(b);
  child_tries();
  a = open("a", O_RDWR);
  warm(a);
  R(lseek(a, 5000, SEEK_SET));
  R(lockf(a, F_LOCK, 100));
  child_tries();
  R(lseek(a, 4000, SEEK_SET));
  R(lockf(a, F_TEST, 2000));
  R(lockf64(a, F_TLOCK, 50));
  R(lockf(a, F_ULOCK, 0));
  child_tries();
  R(lockf(a, 99, 0));
  R(flock(a, 99));
  R(flock(999, LOCK_SH));
  R(lseek(a, 0, SEEK_CUR));
  return 0;
}
