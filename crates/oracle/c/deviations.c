// What is served differs from the kernel as docs/posix.md states, and keeps what is promised besides. What stands behind
// DEVIATES holds in a plain run and must not under Adit; what stands behind IS holds in both.
#include "t.h"
#include <linux/magic.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#define DEVIATES(what)                                                                             \
  do {                                                                                             \
    printf("deviates: %d: %s: %s\n", __LINE__, #what, (what) ? "yes" : "NO");                      \
    fflush(stdout);                                                                                \
  } while (0)
static char buf[1 << 16];
static struct statx seen(const char *name) {
  struct statx x;
  raw6(SYS_statx, AT_FDCWD, (long)name, 0, STATX_ALL, (long)&x, 0);
  return x;
}
// A file in use, which nobody has read or written for longer than any file system waits until it notes that again.
static int old_file(const char *name) {
  int fd = warm_file(name, O_RDWR);
  pwrite(fd, "store", 5, 5000);
  struct timespec old[2] = {{1000, 0}, {1000, 0}};
  futimens(fd, old);
  return fd;
}
static void access_times(void) {
  int a = old_file("a");
  pread(a, buf, 100, 5000);
  DEVIATES(seen("a").stx_atime.tv_sec != 1000);
  IS(seen("a").stx_mtime.tv_sec == 1000);
  RAW(pread64, a, buf, 100, 5000);
  IS(seen("a").stx_atime.tv_sec != 1000);
  close(a);
}
static void modification_times(void) {
  struct stat st;
  int b = old_file("b");
  pwrite(b, "store", 5, 5000);
  DEVIATES(seen("b").stx_mtime.tv_sec != 1000);
  IS(fstat(b, &st) == 0 && st.st_mtim.tv_sec != 1000);
  IS(seen("b").stx_mtime.tv_sec != 1000);
  close(b);
  b = old_file("b");
  pwrite(b, "store", 5, 5000);
  fsync(b);
  IS(seen("b").stx_mtime.tv_sec != 1000);
  close(b);
  b = old_file("b");
  pwrite(b, "store", 5, 5000);
  close(b);
  IS(seen("b").stx_mtime.tv_sec != 1000);
}
static unsigned events(int watch) {
  unsigned mask = 0;
  for (long len; (len = RAW(read, watch, buf, sizeof buf, 0)) > 0;)
    for (long at = 0; at < len;) {
      struct inotify_event *event = (void *)(buf + at);
      mask |= event->mask;
      at += (long)sizeof *event + event->len;
    }
  return mask;
}
static void notification(void) {
  make("c", SIZE);
  int watch = inotify_init1(IN_NONBLOCK);
  inotify_add_watch(watch, "c", IN_ALL_EVENTS);
  int c = open("c", O_RDWR);
  IS(events(watch) & IN_OPEN);
  warm(c);
  pwrite(c, "store", 5, 5000);
  fsync(c);
  events(watch);
  pread(c, buf, 100, 5000);
  DEVIATES(events(watch) == IN_ACCESS);
  pwrite(c, "store", 5, 5000);
  DEVIATES(events(watch) == IN_MODIFY);
  fsync(c);
  // Watchers are told when its time is settled, and of nothing else.
  unsigned settled = events(watch);
  DEVIATES(settled == 0);
  IS((settled & ~IN_MODIFY) == 0);
  close(c);
  IS(events(watch) & IN_CLOSE_WRITE);
}
static long pos(int fd) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
  int info = (int)RAW(openat, AT_FDCWD, name, O_RDONLY, 0);
  buf[RAW(read, info, buf, 1000, 0)] = 0;
  RAW(close, info, 0, 0, 0);
  return atol(strstr(buf, "pos:") + 4);
}
static void offsets(void) {
  int d = warm_file("d", O_RDWR);
  IS(lseek(d, 100, SEEK_SET) == 100 && read(d, buf, 50) == 50);
  DEVIATES(pos(d) == 150);
  unsigned char byte = 0;
  RAW(read, d, &byte, 1, 0);
  DEVIATES(byte == pattern(150));
  DEVIATES(lseek(d, 0, SEEK_CUR) == 151);
  IS(lseek(d, 200, SEEK_SET) == 200 && read(d, &byte, 1) == 1 && byte == pattern(200));
  // Who has it in common with another process has the kernel's.
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) _exit(pos(d) != 201);
  ended(pid);
  IS(pos(d) == 201);
  close(d);
}
static void closed_inline(void) {
  int e = warm_file("e", O_RDWR);
  RAW(close, e, 0, 0, 0);
  DEVIATES(pread(e, buf, 1, 0) == -1 && errno == EBADF);
  make("f", 10);
  IS(open("f", O_RDWR) == e && pread(e, buf, 100, 0) == 10);
  close(e);
}
static void holes(void) {
  int g = warm_file("g", O_RDWR);
  // Nobody sees it, as if another process had made the hole.
  raw6(SYS_fallocate, g, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 65536, 65536, 0, 0);
  unsigned long long blocks = seen("g").stx_blocks;
  IS(lseek(g, 65536, SEEK_DATA) == 131072);
  IS(pread(g, buf, 65536, 65536) == 65536);
  int bytes = 0;
  for (int i = 0; i < 65536; i++) bytes |= buf[i];
  IS(bytes == 0);
  DEVIATES(seen("g").stx_blocks == blocks);
  DEVIATES(lseek(g, 65536, SEEK_DATA) == 131072);
  close(g);
}
static void ignored(void) {
  close(warm_file("h", O_RDWR));
  signal(SIGBUS, SIG_IGN);
  fflush(stdout);
  // Again and again: whoever waits may begin with it late.
  pid_t pid = fork();
  for (int i = 0; pid == 0 && i < 200; i++) usleep(10000), kill(getppid(), SIGBUS);
  if (pid == 0) _exit(0);
  DEVIATES(poll(NULL, 0, 500) == 0);
  kill(pid, SIGKILL);
  ended(pid);
  // A program is started with the signal ignored, as it asks for, and its parent served no more.
  IS(system("grep -q '^SigIgn:.*[4-7c-f].$' /proc/self/status") == 0);
  int h = warm_file("h", O_RDWR);
  IS(read(h, buf, 50) == 50 && pos(h) == 50);
  close(h);
}
int main(void) {
  struct statfs fs;
  struct statvfs flags;
  if (statfs(".", &fs) || fs.f_type != TMPFS_MAGIC) SKIP("it concerns a tmpfs");
  if (statvfs(".", &flags) || flags.f_flag & ST_NOATIME) SKIP("it concerns a file system with access times");
  access_times();
  modification_times();
  notification();
  offsets();
  closed_inline();
  holes();
  ignored();
  return 0;
}
