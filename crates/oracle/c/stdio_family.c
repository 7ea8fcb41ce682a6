// streams: served
// stdio on its own and mixed with descriptors.
#include "t.h"
#include <wchar.h>
#include <locale.h>
#include <execinfo.h>
// What is not fortified: the headers would make other calls of these.
int plain_dprintf(int, const char *, ...) __asm__("dprintf");
int plain_vdprintf(int, const char *, va_list) __asm__("vdprintf");
static FILE *left_open;
static long formatted(int fortified, int fd, const char *format, ...) {
  va_list all;
  va_start(all, format);
  long n = fortified ? vdprintf(fd, format, all) : plain_vdprintf(fd, format, all);
  va_end(all);
  return n;
}
// Each is the first to use the offset of a descriptor that was used heavily.
static void at_offset(int which) {
  int fd = open("a", O_RDWR);
  warm(fd);
  char b[8];
  R(lseek(fd, 8000 + 1000 * which, SEEK_SET));
  R(read(fd, b, sizeof b));
  if (which == 0) R(plain_dprintf(fd, "plain %d", which));
  if (which == 1) R(formatted(0, fd, "a list %d", which));
  if (which == 2) R(formatted(1, fd, "a checked list %d", which));
  // No address of the program's own: these differ from run to run.
  if (which == 3) backtrace_symbols_fd((void *[]){(void *)8, (void *)16}, 2, fd);
  if (which == 4) __backtrace_symbols_fd((void *[]){(void *)8, (void *)16}, 2, fd);
  next(fd, "at its offset");
  R(close(fd));
  outsider("a");
}
int main(void) {
  setlocale(LC_ALL, "C.UTF-8");
  make("a", SIZE);
  char buf[20000], *line = NULL;
  size_t room = 0;
  FILE *f = fopen("w", "w");
  for (int i = 0; i < 20000; i++) fprintf(f, "line %d\n", i);
  R(ftell(f));
  R(fputs("puts\n", f));
  R(fputc('c', f));
  R(putc_unlocked('u', f));
  R(fputs_unlocked("unlocked\n", f));
  R(fwrite_unlocked("wu\n", 1, 3, f));
  R(fflush(f));
  outsider("w");
  R(fclose(f));
  f = fopen64("w", "r+");
  for (int pass = 0; pass < 4; pass++) {
    rewind(f);
    long sum = 0;
    while (getline(&line, &room, f) > 0) sum += atoi(line + 5);
    printf("sum %ld\n", sum);
  }
  R(fseek(f, 100, SEEK_SET));
  R(fgetc(f));
  R(ungetc('U', f));
  R(getc_unlocked(f));
  int n = 0;
  R(fseeko64(f, 0, SEEK_SET));
  R(fscanf(f, "line %d", &n));
  R(fseek(f, 0, SEEK_CUR));
  R(fputs("over", f));
  R(fseeko(f, -10, SEEK_END));
  R(fread(buf, 1, 20, f));
  R(feof(f));
  // The descriptor below.
  int fd = fileno(f);
  R(fseek(f, 5000, SEEK_SET));
  R(fflush(f));
  R(lseek(fd, 0, SEEK_CUR));
  R(pread(fd, buf, 50, 5000));
  R(pwrite(fd, "through the descriptor", 22, 6000));
  R(fseek(f, 6000, SEEK_SET));
  R(fgets(buf, 23, f) != NULL);
  printf("%s\n", buf);
  R(fclose(f));
  // A descriptor that was used heavily before stdio got it.
  fd = open("a", O_RDWR);
  warm(fd);
  R(lseek(fd, 4321, SEEK_SET));
  f = fdopen(fd, "r+");
  R(ftell(f));
  R(fread(buf, 1, 100, f));
  printf("%016llx\n", (unsigned long long)hash(1, buf, 100));
  R(fseek(f, 0, SEEK_CUR));
  R(fwrite("written by stdio", 1, 16, f));
  R(fflush(f));
  R(lseek(fd, 0, SEEK_CUR));
  R(read(fd, buf, 10));
  R(fclose(f));
  R(read(fd, buf, 1));
  // freopen over a used one, and over stdin.
  f = fopen("a", "r");
  R(fgetc(f));
  f = freopen("w", "r", f);
  R(fgetc(f));
  f = freopen64("a", "a+", f);
  R(fputs("appended", f));
  R(fclose(f));
  R(freopen("w", "r", stdin) != NULL);
  R(fgets(buf, 100, stdin) != NULL);
  R(scanf("line %d", &n));
  printf("%d\n", n);
  // Read through a mapping of libc's own.
  f = fopen("a", "rm");
  R(fread(buf, 1, 9000, f));
  R(fseek(f, 200000, SEEK_SET));
  R(fgetc(f));
  R(fclose(f));
  fd = open("a", O_RDWR);
  warm(fd);
  f = fdopen(fd, "rm");
  R(fread(buf, 1, 9000, f));
  R(fclose(f));
  // Wide characters.
  f = fopen("wide", "w+");
  R(fputws(L"grüße\n", f));
  R(fputwc(L'ü', f));
  rewind(f);
  wchar_t wide[50];
  R(fgetws(wide, 50, f) != NULL);
  R((long)wcslen(wide));
  R(fclose(f));
  // Temporary files, unbuffered, exclusive.
  f = tmpfile();
  for (int i = 0; i < 30000; i++) fputs("temporary ", f);
  rewind(f);
  for (int pass = 0; pass < 4; pass++) {
    rewind(f);
    R(fread(buf, 1, sizeof buf, f));
  }
  R(fclose(f));
  f = tmpfile64();
  IS(f != NULL);
  fclose(f);
  f = fopen("unbuffered", "wx");
  setvbuf(f, NULL, _IONBF, 0);
  R(fputs("now", f));
  outsider("unbuffered");
  R(fopen("unbuffered", "wx") == NULL);
  R(fclose(f));
  // Through descriptors without a stream.
  fd = open("a", O_RDWR);
  warm(fd);
  R(lseek(fd, 7000, SEEK_SET));
  R(dprintf(fd, "formatted %d %.3f %s", 42, 2.5, "text"));
  R(lseek(fd, 0, SEEK_CUR));
  next(fd, "after dprintf");
  R(close(fd));
  for (int which = 0; which < 5; which++) at_offset(which);
  fd = open("err", O_RDWR | O_CREAT, 0644);
  int keep = dup(2);
  dup2(fd, 2);
  errno = ENOENT;
  perror("perror");
  fprintf(stderr, "to stderr\n");
  psignal(SIGBUS, "psignal");
  dup2(keep, 2);
  // Other programs.
  f = popen("cat; echo done", "w");
  R(fputs("to cat\n", f));
  R(pclose(f));
  f = popen("head -c 8 w", "r");
  R(fgets(buf, 100, f) != NULL);
  printf("%s\n", buf);
  R(pclose(f));
  R(fclose(fdopen(open("a", O_RDONLY), "r")));
  R(fdopen(999, "r") == NULL);
  R(fopen("missing", "r") == NULL);
  char *mem = NULL;
  size_t size = 0;
  f = open_memstream(&mem, &size);
  fprintf(f, "memory");
  fclose(f);
  R((long)size);
  left_open = fopen("flushed-at-exit", "w");
  fprintf(left_open, "this was never flushed by the program\n");
  free(line);
  return 0;
}
