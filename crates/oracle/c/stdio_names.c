// streams: served
// Streams by the rest of the names that libc has for reading, writing and moving. What went through one is looked at
// through a descriptor, and what a descriptor wrote is read through the next.
#include "t.h"
#include <locale.h>
#include <stdio_ext.h>
#include <wchar.h>
// The headers make macros and other calls of these.
size_t plain_fread_unlocked(void *, size_t, size_t, FILE *) __asm__("fread_unlocked");
size_t plain_fwrite_unlocked(const void *, size_t, size_t, FILE *) __asm__("fwrite_unlocked");
int plain_getc_unlocked(FILE *) __asm__("getc_unlocked");
int plain_putc_unlocked(int, FILE *) __asm__("putc_unlocked");
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);
size_t __fread_unlocked_chk(void *, size_t, size_t, size_t, FILE *);
char *__fgets_chk(char *, size_t, int, FILE *), *__fgets_unlocked_chk(char *, size_t, int, FILE *);
wchar_t *__fgetws_chk(wchar_t *, size_t, int, FILE *), *__fgetws_unlocked_chk(wchar_t *, size_t, int, FILE *);
int __fprintf_chk(FILE *, int, const char *, ...), __vfprintf_chk(FILE *, int, const char *, va_list);
int __fwprintf_chk(FILE *, int, const wchar_t *, ...), __vfwprintf_chk(FILE *, int, const wchar_t *, va_list);
static int fd;
static char buf[4000];
static wchar_t wide[200];

// A stream over lines that can be told apart, and a descriptor beside it.
static FILE *lines(const char *mode) {
  make("f", 0);
  fd = open("f", O_RDWR);
  for (int i = 0; i < 2000; i++) {
    int n = snprintf(buf, sizeof buf, "line %08d\n", i);
    write(fd, buf, (size_t)n);
  }
  warm(fd);
  return fopen("f", mode);
}
// What lies in the file where the stream has written.
static void there(FILE *f, long at, size_t n) {
  R(fflush_unlocked(f));
  R(pread(fd, buf, n, at));
  printf("%.*s\n", (int)n, buf);
}
static void done(FILE *f) {
  R(fclose(f));
  R(close(fd));
  outsider("f");
}

static void reads(void) {
  FILE *f = lines("r");
  R(pwrite(fd, "LINE", 4, 14 * 500));
  R(fseek(f, 14 * 500, SEEK_SET));
  R(getc(f));
  R(fgetc_unlocked(f));
  R(plain_getc_unlocked(f));
  R(getw(f));
  R(plain_fread_unlocked(buf, 1, 20, f));
  printf("%.20s\n", buf);
  R(__fread_chk(buf, sizeof buf, 1, 20, f));
  printf("%.20s\n", buf);
  R(__fread_unlocked_chk(buf, sizeof buf, 1, 2000, f));
  printf("%016llx\n", (unsigned long long)hash(1, buf, 2000));
  R(fgets_unlocked(buf, sizeof buf, f) != NULL);
  printf("%s", buf);
  R(__fgets_chk(buf, sizeof buf, 100, f) != NULL);
  printf("%s", buf);
  R(__fgets_unlocked_chk(buf, sizeof buf, 100, f) != NULL);
  printf("%s", buf);
  char *line = NULL;
  size_t room = 0;
  R(getdelim(&line, &room, '7', f));
  printf("%s\n", line);
  R(__getdelim(&line, &room, '8', f));
  printf("%s\n", line);
  free(line);
  R(feof_unlocked(f));
  R(ferror_unlocked(f));
  R(fileno_unlocked(f) == fileno(f));
  done(f);
}

static void writes(void) {
  FILE *f = lines("r+");
  R(fseek(f, 14 * 600, SEEK_SET));
  R(putc('p', f));
  R(fputc_unlocked('q', f));
  R(plain_putc_unlocked('r', f));
  R(putw(0x64636261, f));
  R(fputs_unlocked("unlocked", f));
  R(plain_fwrite_unlocked("written", 1, 7, f));
  R(__fprintf_chk(f, 1, "%s %d", "checked", 42));
  R((long)__fpending(f));
  there(f, 14 * 600, 40);
  // What is thrown away is never written.
  R(fputs("thrown away", f));
  __fpurge(f);
  R(fputs("kept", f));
  _flushlbf();
  there(f, 14 * 600, 50);
  done(f);
}

static void moves(void) {
  FILE *f = lines("r+");
  fpos_t at;
  fpos64_t at64;
  R(fseeko64(f, 14 * 700, SEEK_SET));
  R(fgetpos(f, &at));
  R(fgetc(f));
  R(fseeko(f, -14 * 100, SEEK_END));
  R(fgetpos64(f, &at64));
  R(ftello64(f));
  R(fsetpos(f, &at));
  R(ftello(f));
  R(fputs("here", f));
  there(f, 14 * 700, 10);
  R(fsetpos64(f, &at64));
  R(fputs("there", f));
  there(f, 14 * 1900, 10);
  rewind(f);
  R(fputs("first", f));
  there(f, 0, 10);
  setbuf(f, NULL);
  R(fputs("unbuffered", f));
  R(pread(fd, buf, 15, 0));
  printf("%.15s\n", buf);
  setbuffer(f, NULL, 0);
  setlinebuf(f);
  R(fputs("by line\n", f));
  R(pread(fd, buf, 23, 0));
  printf("%.22s\n", buf);
  done(f);
}

static long formats(FILE *f, int how, const char *format, ...) {
  va_list all;
  va_start(all, format);
  long n = how == 0 ? vfprintf(f, format, all) : how == 1 ? __vfprintf_chk(f, 1, format, all) : vfscanf(f, format, all);
  va_end(all);
  return n;
}
static long formats_wide(FILE *f, int how, const wchar_t *format, ...) {
  va_list all;
  va_start(all, format);
  long n = how == 0   ? vfwprintf(f, format, all)
           : how == 1 ? __vfwprintf_chk(f, 1, format, all)
                      : vfwscanf(f, format, all);
  va_end(all);
  return n;
}
static void lists(void) {
  FILE *f = lines("r+");
  int n = 0;
  R(fseek(f, 14 * 800, SEEK_SET));
  R(formats(f, 2, "line %d", &n));
  R(n);
  R(fseek(f, 14 * 900, SEEK_SET));
  R(formats(f, 0, "list %d|", 1));
  R(formats(f, 1, "list %d|", 2));
  there(f, 14 * 900, 20);
  done(f);
}

static void wides(void) {
  FILE *f = lines("r+");
  int n = 0;
  R(fgetwc(f));
  R(getwc(f));
  R(fgetwc_unlocked(f));
  R(getwc_unlocked(f));
  R(ungetwc(L'Z', f));
  R(fgetws(wide, 10, f) != NULL);
  R((long)wcslen(wide));
  R(fgetws_unlocked(wide, 10, f) != NULL);
  R((long)wcslen(wide));
  R(__fgetws_chk(wide, 200, 10, f) != NULL);
  R((long)wcslen(wide));
  R(__fgetws_unlocked_chk(wide, 200, 10, f) != NULL);
  R((long)wcslen(wide));
  R(fseek(f, 14 * 1001 + 5, SEEK_SET));
  R(fwscanf(f, L"%d", &n));
  R(n);
  R(fseek(f, 14 * 1000 + 5, SEEK_SET));
  R(formats_wide(f, 2, L"%d", &n));
  R(n);
  R(fseek(f, 14 * 1100, SEEK_SET));
  R(fputwc(L'ü', f));
  R(putwc(L'v', f));
  R(fputwc_unlocked(L'w', f));
  R(putwc_unlocked(L'x', f));
  R(fputws(L"grüße", f));
  R(fputws_unlocked(L" unlocked ", f));
  R(fwprintf(f, L"%d,", 1));
  R(__fwprintf_chk(f, 1, L"%d,", 2));
  R(formats_wide(f, 0, L"%d,", 3));
  R(formats_wide(f, 1, L"%d,", 4));
  there(f, 14 * 1100, 40);
  R(fwide(f, 0) > 0);
  done(f);
}

int main(void) {
  setlocale(LC_ALL, "C.UTF-8");
  reads();
  writes();
  moves();
  lists();
  wides();
  FILE *f = lines("r+");
  R(fputs("left to the end", f));
  R(fcloseall());
  outsider("f");
  return 0;
}
