// streams: served
// Random operations on streams, narrow and wide, alone and mixed with their descriptors.
#include "t.h"
#include <locale.h>
#include <stdio_ext.h>
#include <wchar.h>
#define STREAMS 5
#define FILES 3
static uint64_t state;
static unsigned rnd(unsigned n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)(state >> 33) % n;
}
static FILE *s[STREAMS];
static enum { NOTHING, READ, WROTE } last[STREAMS];
// Between reading and writing, C demands a move or a flush.
static void about_to(int i, int what) {
  if (last[i] == WROTE && what == READ) fflush(s[i]);
  if (last[i] == READ && what == WROTE) fseek(s[i], 0, SEEK_CUR);
  last[i] = what;
}
static char buf[70000], own[STREAMS][9000];
static uint64_t sum = 1;
static void note(const char *what, long long result) {
  int e = errno;
  printf("%s %lld %s %016llx\n", what, result, result < 0 ? strerrorname_np(e) : "",
         (unsigned long long)sum);
}
static const char *name(void) {
  static const char *names[FILES] = {"a", "b", "c"};
  return names[rnd(FILES)];
}
static const char *mode(void) {
  static const char *modes[] = {"r", "r+", "w+", "a", "a+", "r+", "rb", "w", "r+e", "wx", "r+", "rc"};
  return modes[rnd(sizeof modes / sizeof *modes)];
}
static size_t some(void) {
  switch (rnd(4)) {
    case 0: return rnd(8);
    case 1: return rnd(300);
    case 2: return rnd(6000);
    default: return rnd(sizeof buf);
  }
}
static void start(int i) {
  errno = 0;
  switch (rnd(6)) {
    case 0: {
      int fd = open(name(), rnd(2) ? O_RDWR : O_RDWR | O_APPEND);
      if (rnd(2)) warm(fd);
      lseek(fd, rnd(SIZE), SEEK_SET);
      static const char *modes[] = {"r", "r+", "a", "w", "a+", "rc"};
      s[i] = fdopen(fd, modes[rnd(6)]);
      if (!s[i]) close(fd);
      break;
    }
    case 1:
      s[i] = rnd(2) ? tmpfile() : tmpfile64();
      for (unsigned n = rnd(60000); s[i] && n; n--) putc((int)n, s[i]);
      break;
    case 2: s[i] = fopen64(name(), mode()); break;
    default: s[i] = fopen(name(), mode());
  }
  last[i] = WROTE;
  note("open", s[i] ? 0 : -1);
  if (s[i] && rnd(3) == 0) {
    static const int kinds[] = {_IONBF, _IOFBF, _IOLBF};
    note("setvbuf", setvbuf(s[i], own[i], kinds[rnd(3)], 1 + rnd(sizeof own[i])));
  }
  if (s[i] && rnd(6) == 0) note("fwide", fwide(s[i], 1) > 0);
}
static void fill(size_t n) {
  unsigned from = rnd(10000);
  for (size_t i = 0; i < n; i++) buf[i] = (i % 61) ? (char)('a' + (i + from) % 26) : '\n';
}
static void wide(int i) {
  FILE *f = s[i];
  wchar_t w[200];
  unsigned what = rnd(6);
  if (what < 4) about_to(i, what < 2 ? READ : WROTE);
  switch (what) {
    case 0: note("fgetws", fgetws(w, 200, f) ? (long long)wcslen(w) : -1); break;
    case 1: note("fgetwc", fgetwc(f)); break;
    case 2: note("fputws", fputws(L"wide grüße\n", f)); break;
    case 3: note("fwprintf", fwprintf(f, L"%d %ls\n", rnd(1000), L"ü")); break;
    case 4: rewind(f), last[i] = NOTHING; break;
    default: note("fclose", fclose(f)), s[i] = NULL;
  }
}
static void with_descriptor(FILE *f) {
  int fd = fileno(f);
  struct stat st;
  size_t n = some();
  switch (rnd(9)) {
    case 0: {
      long long got = pread(fd, buf, n, rnd(SIZE));
      if (got > 0) sum = hash(sum, buf, got);
      note("pread", got);
      break;
    }
    case 1:
      fill(n);
      note("pwrite", pwrite(fd, buf, n, rnd(SIZE)));
      break;
    case 2: note("fsync", fsync(fd)); break;
    case 3:
      if (fstat(fd, &st) == 0) note("fstat", st.st_size);
      break;
    case 4: note("lseek", lseek(fd, 0, SEEK_CUR)); break;
    case 5:
      fflush(f);
      note("ftruncate", ftruncate(fd, SIZE / 2 + rnd(SIZE)));
      break;
    case 6: note("dprintf", dprintf(fd, "said %d\n", rnd(100))); break;
    case 7: {
      long long got = read(fd, buf, n);
      if (got > 0) sum = hash(sum, buf, got);
      note("read", got);
      break;
    }
    default: {
      int copy = dup(fd);
      note("dup", copy < 0 ? -1 : lseek(copy, 0, SEEK_CUR));
      close(copy);
    }
  }
}
static void forked(int i) {
  FILE *f = s[i];
  fflush(stdout);
  about_to(i, WROTE);
  pid_t pid = fork();
  if (pid == 0) {
    unsigned how = rnd(3);
    if (how == 0) fputs("from the child\n", f);
    if (how == 1) fflush(f);
    fclose(stdout);
    if (how == 2) _exit(3);
    fclose(f);
    _exit(4);
  }
  ended(pid);
}
static void step(void) {
  int i = (int)rnd(STREAMS);
  if (!s[i]) {
    start(i);
    return;
  }
  FILE *f = s[i];
  errno = 0;
  if (fwide(f, 0) > 0) {
    wide(i);
    return;
  }
  size_t n = some();
  unsigned what = rnd(26);
  if (what <= 2 || what == 14 || what == 15 || what == 17 || what == 18) about_to(i, READ);
  if ((what >= 3 && what <= 5) || what == 16 || what == 19) about_to(i, WROTE);
  switch (what) {
    case 0: case 1: case 2: {
      size_t got = fread(buf, 1, n, f);
      sum = hash(sum, buf, got);
      note("fread", (long long)got);
      break;
    }
    case 3: case 4: case 5:
      fill(n);
      note("fwrite", (long long)fwrite(buf, 1, n, f));
      break;
    case 6: case 7: case 8: note("fseek", fseek(f, rnd(SIZE), SEEK_SET)); break;
    case 9: note("fseek cur", fseek(f, (long)rnd(9000) - 4500, SEEK_CUR)); break;
    case 10: note("fseek end", fseeko64(f, -(long)rnd(9000), SEEK_END)); break;
    case 11: note("ftell", ftell(f)); break;
    case 12: rewind(f); break;
    case 13: note("fflush", fflush(rnd(5) ? f : NULL)); break;
    case 14: {
      int c = getc(f);
      note("ungetc", c == EOF ? -1 : ungetc(c, f));
      break;
    }
    case 15: note("getc", getc(f)); break;
    case 16: note("putc", putc('A' + (int)rnd(26), f)); break;
    case 17: {
      char *line = NULL;
      size_t room = 0;
      long long got = getline(&line, &room, f);
      if (got > 0) sum = hash(sum, line, got);
      note("getline", got);
      free(line);
      break;
    }
    case 18: note("fgets", fgets(buf, 1 + (int)rnd(5000), f) ? (long long)strlen(buf) : -1); break;
    case 19: note("fprintf", fprintf(f, "%d %.3f %s\n", rnd(1000), 1.5, "text")); break;
    case 20: {
      fpos_t at;
      note("fgetpos", fgetpos(f, &at));
      note("fsetpos", fsetpos(f, &at));
      break;
    }
    case 21:
      note("state", feof(f) * 2 + ferror(f));
      clearerr(f);
      break;
    case 22: with_descriptor(f); with_descriptor(f); break;
    case 23:
      if (rnd(3) == 0) {
        s[i] = freopen(rnd(4) ? name() : NULL, rnd(2) ? "r+" : mode(), f);
        if (!s[i]) fclose(f);
        last[i] = WROTE;
        note("freopen", s[i] ? fileno(s[i]) >= 0 : -1);
      } else if (rnd(2)) {
        forked(i);
      }
      break;
    case 24:
      if (rnd(2)) {
        note("fclose", fclose(f));
        s[i] = NULL;
      }
      break;
    default:
      if (rnd(8) == 0) {
        // Another file under the same stream.
        int fd = open(name(), O_RDWR);
        fflush(f);
        note("dup2", dup2(fd, fileno(f)) >= 0);
        close(fd);
      }
  }
}
int main(void) {
  setlocale(LC_ALL, "C.UTF-8");
  for (unsigned seed = 1; seed <= 20; seed++) {
    state = seed * 0x9e3779b97f4a7c15ull;
    printf("seed %u\n", seed);
    make("a", SIZE);
    make("b", SIZE / 2);
    make("c", 100);
    for (int step_ = 0; step_ < 400; step_++) {
      printf("%d.", step_);
      step();
    }
    // The last seed's streams are left to be flushed at the end.
    for (int i = 0; i < STREAMS && seed < 20; i++)
      if (s[i]) {
        note("fclose", fclose(s[i]));
        s[i] = NULL;
      }
    fflush(stdout);
    outsider("a"), outsider("b"), outsider("c");
  }
  return 0;
}
