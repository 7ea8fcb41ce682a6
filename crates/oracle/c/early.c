// A library whose constructor does I/O before any other has run, and whose destructor does it last.
// kind: library
#include "t.h"
static int fd = -1;
static void __attribute__((constructor(101))) first(void) {
  FILE *f = fopen("early-stdio", "w");
  if (f) fputs("early\n", f), fclose(f);
  fd = open("early-file", O_RDWR | O_CREAT, 0644);
  char b[4096];
  memset(b, 'e', sizeof b);
  for (int i = 0; i < 80; i++) write(fd, b, sizeof b);
  warm(fd);
  pwrite(fd, "constructor", 11, 5000);
  int d = dup(fd);
  close(fd);
  fd = d;
  struct stat st;
  if (fstat(fd, &st) != 0 || st.st_size != 80 * 4096) abort();
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, NULL, 0);
}
static void __attribute__((destructor(101))) last(void) {
  pwrite(fd, "destructor", 10, 6000);
  char b[100];
  pread(fd, b, 100, 7000);
  close(fd);
}
