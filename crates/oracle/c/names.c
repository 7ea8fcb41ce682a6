// Names change, files stay.
#include "t.h"
// Others see the end of a file, whose rights or owner change, at once.
static void rights(void) {
  int fd = warm_file("rights", O_RDWR);
  uid_t u = getuid();
  gid_t g = getgid();
  for (int which = 0; which < 6; which++) {
    R(pwrite(fd, "longer", 6, SIZE + which * 1000));
    if (which == 0) R(chmod("rights", 0600));
    if (which == 1) R(fchmodat(AT_FDCWD, "rights", 0640, 0));
    if (which == 2) R(lchmod("rights", 0604));
    if (which == 3) R(chown("rights", u, g));
    if (which == 4) R(lchown("rights", u, g));
    if (which == 5) R(fchownat(AT_FDCWD, "rights", u, g, AT_SYMLINK_NOFOLLOW));
    struct statx x;
    raw6(SYS_statx, AT_FDCWD, (long)"rights", 0, STATX_ALL, (long)&x, 0);
    printf("%d: %lld bytes, mode %o\n", which, (long long)x.stx_size, x.stx_mode);
  }
  R(symlink("rights", "to-rights"));
  R(lchmod("to-rights", 0600));
  R(lchown("to-rights", u, g));
  R(fchownat(AT_FDCWD, "missing", u, g, 0));
  R(fchmodat(AT_FDCWD, "missing", 0600, 0));
  outsider("rights");
  R(close(fd));
}
// Names that are made in other ways than by opening them, and what is then in them.
static void made(void) {
  struct stat st;
  int d = open(".", O_RDONLY | O_DIRECTORY);
  R(mkdirat(d, "in-dir", 0750));
  R(stat("in-dir", &st));
  printf("mode %o\n", st.st_mode);
  R(mkdirat(d, "in-dir", 0750));
  R(mkfifoat(d, "in-dir/fifo", 0640));
  int fifo = open("in-dir/fifo", O_RDWR | O_NONBLOCK);
  char b[16] = {0};
  R(write(fifo, "fifo", 4));
  R(read(fifo, b, sizeof b));
  R(lseek(fifo, 0, SEEK_CUR));
  R(close(fifo));
  R(mknod("node", S_IFREG | 0640, 0));
  R(mknod("node", S_IFREG | 0640, 0));
  R(mknodat(d, "in-dir/node", S_IFREG | 0604, 0));
  R(mknodat(d, "in-dir/fifo2", S_IFIFO | 0600, 0));
  for (int i = 0; i < 2; i++) {
    const char *name = i ? "in-dir/node" : "node";
    int fd = open(name, O_RDWR);
    R(write(fd, "made by its node", 16));
    R(pread(fd, b, 7, 8));
    printf("%.7s\n", b);
    R(close(fd));
    outsider(name);
  }
  R(close(d));
}
int main(void) {
  int a = warm_file("a", O_RDWR), b = warm_file("b", O_RDWR);
  struct stat st;
  R(pwrite(a, "in a", 4, 0));
  R(pwrite(b, "in b", 4, 0));
  R(rename("a", "c"));
  R(pwrite(a, "now c", 5, 10));
  R(rename("b", "c"));
  R(pwrite(a, "nameless", 8, 20));
  next(a, "nameless");
  R(fstat(a, &st));
  R((long)st.st_nlink);
  outsider("c");
  R(renameat(AT_FDCWD, "c", AT_FDCWD, "d"));
  make("e", 5000);
  R(renameat2(AT_FDCWD, "d", AT_FDCWD, "e", RENAME_NOREPLACE));
  R(renameat2(AT_FDCWD, "d", AT_FDCWD, "e", RENAME_EXCHANGE));
  R(pwrite(b, "exchanged", 9, 30));
  outsider("d");
  outsider("e");
  R(link("e", "l1"));
  R(linkat(AT_FDCWD, "e", AT_FDCWD, "l2", 0));
  R(symlink("e", "s"));
  R(symlinkat("e", AT_FDCWD, "s2"));
  char p[64];
  R(readlink("s", p, 64));
  R(unlink("e"));
  R(pwrite(b, "links", 5, 40));
  outsider("l1");
  outsider("s");
  R(unlinkat(AT_FDCWD, "l1", 0));
  R(remove("l2"));
  R(fstat(b, &st));
  R((long)st.st_nlink);
  R(pwrite(b, "still there", 11, SIZE));
  R(pread(b, p, 11, SIZE));
  snprintf(p, sizeof p, "/proc/self/fd/%d", b);
  int again = open(p, O_RDWR);
  warm(again);
  R(pwrite(again, "reopened", 8, 50));
  char w[9] = {0};
  R(pread(b, w, 8, 50));
  printf("%s\n", w);
  R(close(b));
  R(unlink("e"));
  R(rename("missing", "x"));
  R(unlink("."));
  R(mkdir("dir", 0755));
  R(rmdir("dir"));
  // Long, strange and missing names.
  char name[300];
  memset(name, 'n', 299);
  name[255] = 0;
  int n = warm_file(name, O_RDWR);
  R(n >= 0);
  R(pwrite(n, "long name", 9, 100));
  name[255] = 'n';
  name[256] = 0;
  R(open(name, O_RDWR | O_CREAT, 0644));
  n = warm_file("with space\nand newline \xff (deleted)", O_RDWR);
  R(pwrite(n, "odd", 3, 100));
  char deep[5000] = "./";
  while (strlen(deep) < 4080) strcat(deep, "././././");
  strcat(deep, "d");
  R(open(deep, O_RDONLY) >= 0);
  strcat(deep, "/////////////////////////////////////////");
  R(open(deep, O_RDONLY));
  // A working directory that is gone.
  int up = open(".", O_RDONLY | O_DIRECTORY);
  R(mkdir("gone", 0755));
  R(chdir("gone"));
  int g = warm_file("inside", O_RDWR);
  R(unlink("inside"));
  R(rmdir("../gone"));
  R(getcwd(name, 300) == NULL);
  R(open("new", O_CREAT | O_RDWR, 0644));
  R(pwrite(g, "no directory", 12, 5));
  R(pread(g, w, 8, 5));
  printf("%.8s\n", w);
  R(fchdir(up));
  R(chmod("d", 0400));
  R(fchmod(a, 0600));
  R(fchown(a, getuid(), getgid()));
  R(pwrite(a, "last", 4, 60));
  rights();
  made();
  outsider("d");
  return 0;
}
