// Every way to get a descriptor for a path.
#include "t.h"
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);

static void use(const char *what, int fd) {
  printf("%s: ", what);
  if (fd < 0) {
    printf("%s\n", strerrorname_np(errno));
    return;
  }
  struct stat st;
  fstat(fd, &st);
  char b[8] = {0};
  warm(fd);
  long n = pread(fd, b, 4, 8);
  long w = pwrite(fd, "abcd", 4, 16);
  printf("fd %d mode %o size %lld flags %#x fdflags %d pread %ld pwrite %ld\n", fd, st.st_mode,
         (long long)st.st_size, fcntl(fd, F_GETFL), fcntl(fd, F_GETFD), n, w);
  close(fd);
}

int main(void) {
  umask(027);
  make("f", SIZE);
  use("open r", open("f", O_RDONLY));
  use("open rw", open("f", O_RDWR));
  use("open w", open("f", O_WRONLY));
  use("open64", open64("f", O_RDWR));
  use("openat", openat(AT_FDCWD, "f", O_RDWR));
  use("openat64", openat64(AT_FDCWD, "f", O_RDWR | O_CLOEXEC));
  use("__open_2", __open_2("f", O_RDWR));
  use("__open64_2", __open64_2("f", O_RDWR));
  use("__openat_2", __openat_2(AT_FDCWD, "f", O_RDWR));
  use("__openat64_2", __openat64_2(AT_FDCWD, "f", O_RDWR));
  use("create mode", open("n1", O_RDWR | O_CREAT, 0666));
  use("openat create", openat(AT_FDCWD, "n2", O_RDWR | O_CREAT | O_EXCL, 0640));
  use("excl", open("n1", O_RDWR | O_CREAT | O_EXCL, 0666));
  use("creat", creat("n3", 0604));
  use("creat64", creat64("n4", 0777));
  use("append", open("f", O_RDWR | O_APPEND));
  use("sync", open("f", O_RDWR | O_SYNC));
  use("dsync", open("f", O_RDWR | O_DSYNC));
  use("noatime", open("f", O_RDWR | O_NOATIME));
  use("path", open("f", O_PATH));
  use("directory", open("f", O_DIRECTORY));
  use("a directory", open(".", O_RDONLY | O_DIRECTORY));
  use("a directory rw", open(".", O_RDWR));
  use("missing", open("missing", O_RDWR));
  use("empty", open("", O_RDWR));
  use("null", open(NULL, O_RDWR));
  use("bad", open((char *)8, O_RDWR));
  use("mode 3", open("f", O_ACCMODE));
  use("trunc", open("n1", O_RDWR | O_TRUNC));
  symlink("f", "link");
  use("link", open("link", O_RDWR));
  use("nofollow", open("link", O_RDWR | O_NOFOLLOW));
  mkdir("d", 0755);
  int d = open("d", O_DIRECTORY | O_RDONLY);
  use("in a directory", openat(d, "n", O_RDWR | O_CREAT, 0600));
  use("not a directory", openat(987, "n", O_RDWR));
  int t = openat(d, ".", O_TMPFILE | O_RDWR, 0600);
  R(write(t, "temporary", 9));
  char p[64];
  snprintf(p, sizeof p, "/proc/self/fd/%d", t);
  R(linkat(AT_FDCWD, p, AT_FDCWD, "from-tmpfile", AT_SYMLINK_FOLLOW));
  close(t);
  close(d);
  int (*makers[])(char *) = {mkstemp, mkstemp64};
  for (int i = 0; i < 2; i++) {
    char name[] = "tXXXXXX";
    int fd = makers[i](name);
    printf("mkstemp %d: fd %d\n", i, fd);
    char big[5000];
    memset(big, 'm', sizeof big);
    for (int k = 0; k < 20; k++) write(fd, big, sizeof big);
    warm(fd);
    pwrite(fd, "over", 4, 9000);
    close(fd);
    rename(name, i ? "made64" : "made");
  }
  char n1[] = "tXXXXXX.x", n2[] = "tXXXXXX", n3[] = "tXXXXXX.yy";
  int f1 = mkstemps(n1, 2), f2 = mkostemp(n2, O_APPEND), f3 = mkostemps(n3, 3, O_CLOEXEC);
  printf("%d %d %d flags %#x %d\n", f1, f2, f3, fcntl(f2, F_GETFL), fcntl(f3, F_GETFD));
  write(f1, "1", 1), write(f2, "22", 2), write(f3, "333", 3);
  // What was opened to append appends, wherever its offset is.
  lseek(f1, 0, SEEK_SET), lseek(f2, 0, SEEK_SET), lseek(f3, 0, SEEK_SET);
  write(f1, "a", 1), write(f2, "b", 1), write(f3, "c", 1);
  rename(n1, "ms"), rename(n2, "mo"), rename(n3, "mos");
  close(f1), close(f2), close(f3);
  char n4[] = "tXXXXXX.x", n5[] = "tXXXXXX", n6[] = "tXXXXXX.yy";
  int f4 = mkstemps64(n4, 2), f5 = mkostemp64(n5, O_APPEND), f6 = mkostemps64(n6, 3, O_CLOEXEC);
  printf("%d %d %d flags %#x %d\n", f4, f5, f6, fcntl(f5, F_GETFL), fcntl(f6, F_GETFD));
  int wide[] = {f4, f5, f6};
  for (int i = 0; i < 3; i++) {
    char big[5000];
    memset(big, 'a' + i, sizeof big);
    for (int k = 0; k < 20; k++) write(wide[i], big, sizeof big);
    warm(wide[i]);
    R(lseek(wide[i], 9000, SEEK_SET));
    R(write(wide[i], "wide", 4));
    next(wide[i], "wide");
  }
  R(rename(n4, "ms64")), R(rename(n5, "mo64")), R(rename(n6, "mos64"));
  for (int i = 0; i < 3; i++) close(wide[i]);
  outsider("ms64"), outsider("mo64"), outsider("mos64");
  char bad[] = "noX";
  R(mkstemp(bad));
  outsider("f");
  return 0;
}
