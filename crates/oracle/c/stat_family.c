// Looking at files, also by the names that programs linked long ago still use.
// link: -ldl
#include "t.h"
#include <ftw.h>
#include <fts.h>
static int a;
static struct timespec last;
static void show(const char *what, int r, const struct stat *st) {
  if (r < 0) {
    printf("%s: %s\n", what, strerrorname_np(errno));
    return;
  }
  int moved = st->st_mtim.tv_sec != last.tv_sec || st->st_mtim.tv_nsec != last.tv_nsec;
  last = st->st_mtim;
  printf("%s: mode %o links %lu size %lld mtime moved %d\n", what, st->st_mode,
         (unsigned long)st->st_nlink, (long long)st->st_size, moved);
}
// An overwrite in place, far enough from the last that even a coarse clock has moved.
static void touch(void) {
  usleep(12000);
  pwrite(a, "touch", 5, 5000);
}
// What a walk tells of a file that has grown just before it.
static int grown = -1;
static void grow(void) {
  if (grown >= 0) R(close(grown));
  grown = open("d/x", O_RDWR);
  long end = lseek(grown, 0, SEEK_END);
  printf("from %ld by %zd\n", end, pwrite(grown, "more", 4, end + 5000));
}
static int visit(const char *p, const struct stat *st, int kind) {
  printf("ftw %s %d %lld\n", p, kind, kind == FTW_D ? 0ll : (long long)st->st_size);
  return 0;
}
static int nvisit(const char *p, const struct stat *st, int kind, struct FTW *f) {
  printf("nftw %s %d %d %lld\n", p, kind, f->level, kind == FTW_F ? (long long)st->st_size : 0);
  return 0;
}
int main(void) {
  a = warm_file("a", O_RDWR);
  symlink("a", "l");
  struct stat st;
  touch(); show("fstat", fstat(a, &st), &st);
  show("fstat again", fstat(a, &st), &st);
  touch(); show("stat", stat("a", &st), &st);
  touch(); show("stat through a link", stat("l", &st), &st);
  touch(); show("lstat", lstat("a", &st), &st);
  touch(); show("fstatat", fstatat(AT_FDCWD, "a", &st, 0), &st);
  touch(); show("fstatat empty", fstatat(a, "", &st, AT_EMPTY_PATH), &st);
  touch(); show("stat64", stat64("a", (struct stat64 *)&st), &st);
  touch(); show("fstat64", fstat64(a, (struct stat64 *)&st), &st);
  touch(); show("lstat64", lstat64("a", (struct stat64 *)&st), &st);
  touch(); show("fstatat64", fstatat64(AT_FDCWD, "a", (struct stat64 *)&st, 0), &st);
  struct statx x;
  touch();
  int r = statx(AT_FDCWD, "a", 0, STATX_ALL, &x);
  st.st_mtim = (struct timespec){x.stx_mtime.tv_sec, x.stx_mtime.tv_nsec};
  show("statx", r, &st);
  int (*by_path[])(int, const char *, struct stat *) = {
      dlsym(RTLD_DEFAULT, "__xstat"), dlsym(RTLD_DEFAULT, "__xstat64"),
      dlsym(RTLD_DEFAULT, "__lxstat"), dlsym(RTLD_DEFAULT, "__lxstat64")};
  for (int i = 0; i < 4; i++) {
    touch();
    if (by_path[i]) show("old by path", by_path[i](1, "a", &st), &st);
  }
  int (*by_fd[])(int, int, struct stat *) = {dlsym(RTLD_DEFAULT, "__fxstat"),
                                             dlsym(RTLD_DEFAULT, "__fxstat64")};
  for (int i = 0; i < 2; i++) {
    touch();
    if (by_fd[i]) show("old by descriptor", by_fd[i](1, a, &st), &st);
  }
  int (*at[])(int, int, const char *, struct stat *, int) = {
      dlsym(RTLD_DEFAULT, "__fxstatat"), dlsym(RTLD_DEFAULT, "__fxstatat64")};
  for (int i = 0; i < 2; i++) {
    touch();
    if (at[i]) show("old at", at[i](1, AT_FDCWD, "a", &st, 0), &st);
  }
  // What needs no stat call of the program's own.
  touch();
  R(fsync(a));
  struct statx y;
  RAW(statx, AT_FDCWD, "a", 0, STATX_ALL);
  raw6(SYS_statx, AT_FDCWD, (long)"a", 0, STATX_ALL, (long)&y, 0);
  st.st_mtim = (struct timespec){y.stx_mtime.tv_sec, y.stx_mtime.tv_nsec};
  show("outsider after fsync", 0, &st);
  touch();
  R(close(a));
  raw6(SYS_statx, AT_FDCWD, (long)"a", 0, STATX_ALL, (long)&y, 0);
  st.st_mtim = (struct timespec){y.stx_mtime.tv_sec, y.stx_mtime.tv_nsec};
  show("outsider after close", 0, &st);
  a = open("a", O_RDWR);
  warm(a);
  show("fstat bad", fstat(999, &st), &st);
  show("stat missing", stat("missing", &st), &st);
  show("stat null", stat(NULL, &st), &st);
  R(access("a", R_OK | W_OK));
  R(faccessat(AT_FDCWD, "missing", R_OK, 0));
  mkdir("d", 0755);
  make("d/x", 100);
  grow(), R(ftw("d", visit, 5));
  grow(), R(ftw64("d", (void *)visit, 5));
  grow(), R(nftw("d", nvisit, 5, 0));
  grow(), R(nftw64("d", (void *)nvisit, 5, 0));
  char *roots[] = {"d", NULL};
  grow();
  FTS *t = fts_open(roots, FTS_PHYSICAL, NULL);
  FTSENT *e;
  while (t && (e = fts_read(t)))
    printf("fts %s %d %lld\n", e->fts_path, e->fts_info, e->fts_info == FTS_F ? (long long)e->fts_statp->st_size : 0);
  if (t) fts_close(t);
  grow();
  FTS64 *t64 = fts64_open(roots, FTS_PHYSICAL, NULL);
  FTSENT64 *e64;
  while (t64 && (e64 = fts64_read(t64)))
    printf("fts64 %s %d %lld\n", e64->fts_path, e64->fts_info,
           e64->fts_info == FTS_F ? (long long)e64->fts_statp->st_size : 0);
  if (t64) fts64_close(t64);
  R(close(grown));
  return 0;
}
