// fcntl beyond duplicates: flags, locks, leases, sizes.
#include "t.h"
int fcntl64(int, int, ...);
static void child_looks(const char *name, long start, long len) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int fd = open(name, O_RDWR);
    R(fcntl(fd, F_GETLK, &l));
    printf("type %d start %ld len %ld\n", l.l_type, (long)l.l_start, (long)l.l_len);
    fflush(stdout);
    _exit(0);
  }
  ended(pid);
}
// A program seals memory that it has opened like a file: nobody may have it mapped to be written.
static void sealed(void) {
  static char page[4096], again[40];
  int memory = memfd_create("sealed", MFD_ALLOW_SEALING);
  sprintf(again, "/proc/self/fd/%d", memory);
  for (int i = 0; i < 100; i++) write(memory, page, sizeof page);
  int opened = open(again, O_RDWR);
  warm(opened);
  R(pwrite(opened, "y", 1, 200));
  warm(opened);
  R(fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE));
  R(pwrite(opened, "x", 1, 100));
  R(pread(opened, page, 4096, 0));
  close(opened), close(memory);
}
int main(void) {
  int a = warm_file("a", O_RDWR);
  R(fcntl(a, F_GETFL));
  R(fcntl64(a, F_GETFL));
  R(fcntl(a, F_GETFD));
  R(fcntl(a, F_SETFD, FD_CLOEXEC));
  R(fcntl64(a, F_GETFD));
  R(lseek(a, 300, SEEK_SET));
  R(fcntl(a, F_SETFL, O_APPEND | O_NONBLOCK));
  R(fcntl(a, F_GETFL));
  R(write(a, "end", 3));
  R(fcntl(a, F_SETFL, O_DIRECT));
  R(fcntl64(a, F_SETFL, 0));
  R(lseek(a, 0, SEEK_CUR));
  warm(a);
  // Relative ranges use the offset.
  R(lseek(a, 5000, SEEK_SET));
  struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 10, .l_len = 20};
  R(fcntl(a, F_SETLK, &l));
  child_looks("a", 0, 0);
  child_looks("a", 0, 5000);
  // Other files come and go; the lock stays.
  int b = warm_file("b", O_RDWR);
  close(b);
  child_looks("a", 5010, 1);
  // Closing any descriptor of this file drops it.
  b = open("a", O_RDONLY);
  warm(b);
  close(b);
  child_looks("a", 5010, 1);
  R(fcntl(a, F_SETLKW, &l));
  l.l_type = F_UNLCK;
  R(fcntl(a, F_SETLK, &l));
  child_looks("a", 5010, 1);
  struct flock o = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
  R(fcntl(a, F_OFD_SETLK, &o));
  b = open("a", O_RDONLY);
  warm(b);
  close(b);
  child_looks("a", 0, 100);
  o.l_type = F_UNLCK;
  R(fcntl64(a, F_OFD_SETLKW, &o));
  child_looks("a", 0, 100);
  R(fcntl(a, F_GETLEASE));
  R(fcntl(a, F_SETLEASE, F_WRLCK));
  R(fcntl(a, F_GETLEASE));
  R(fcntl(a, F_SETLEASE, F_UNLCK));
  R(fcntl(a, F_SETOWN, getpid()));
  IS(fcntl(a, F_GETOWN) == getpid());
  R(fcntl(a, F_GETSIG));
  R(fcntl(a, F_ADD_SEALS, F_SEAL_GROW));
  uint64_t hint = 2;
  R(fcntl(a, F_SET_RW_HINT, &hint));
  R(fcntl(a, F_GET_RW_HINT, &hint));
  R(fcntl(a, 9999));
  R(fcntl(999, F_GETFL));
  R(fcntl(a, F_GETLK, (void *)8));
  R(lseek(a, 0, SEEK_CUR));
  R(write(a, "still in place", 14));
  outsider("a");
  // Another process that shares the description changes its flags: even pwrite appends then.
  for (int how = 0; how < 2; how++) {
    int c = warm_file("c", O_RDWR);
    fflush(stdout);
    pid_t pid = how ? vfork() : fork();
    if (pid == 0) {
      fcntl(c, F_SETFL, O_APPEND);
      _exit(0);
    }
    ended(pid);
    R(pwrite(c, "appended", 8, 100));
    R(lseek(c, 0, SEEK_END));
    R(fcntl(c, F_SETFL, 0));
    warm(c);
    R(pwrite(c, "in place", 8, 100));
    outsider("c");
    close(c);
  }
  sealed();
  return 0;
}
