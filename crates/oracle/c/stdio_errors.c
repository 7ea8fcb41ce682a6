// streams: served
// not in mode: sync atomic strict
// mount: tmpfs size=2m
// What streams say when the descriptor below fails.
#include "t.h"
#include <sys/time.h>
static void nothing(int signal) { (void)signal; }
static void ended_early(void) {
  FILE *f = fopen("late", "a");
  fputs("by a handler of exit\n", f);
}
int main(void) {
  static char data[100000], room[4096];
  memset(data, 'd', sizeof data);
  atexit(ended_early);
  // No space, buffered and not, while writing, flushing and closing.
  make("full", SIZE);
  FILE *f = fopen("full", "r+");
  R(fread(data, 1, 5000, f));
  R(fseek(f, 0, SEEK_END));
  for (int i = 0; i < 30; i++) R(fwrite(data, 1, sizeof data, f));
  R(ferror(f));
  R(ftell(f));
  R(fclose(f));
  f = fopen("more", "w+");
  setvbuf(f, room, _IOFBF, sizeof room);
  R(fwrite(data, 1, 3000, f));
  R(fflush(f));
  R(fwrite(data, 1, 3000, f));
  R(fclose(f));
  R(unlink("full"));
  // A bad buffer that reaches the kernel.
  make("a", SIZE);
  f = fopen("a", "r+");
  setvbuf(f, NULL, _IONBF, 0);
  R(fread(data, 1, 10000, f));
  R(fseek(f, 100, SEEK_SET));
  R(fwrite((void *)16, 1, 5000, f));
  R(ferror(f));
  clearerr(f);
  char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(two + 4096, 4096);
  R(fwrite(two, 1, 8192, f));
  R(ftell(f));
  R(fread(two, 1, 8192, f));
  R(ftell(f));
  R(fclose(f));
  // Streams that may not.
  f = fopen("a", "r");
  R(fputc('x', f));
  R(fclose(f));
  f = fopen("a", "a");
  R(fgetc(f));
  R(ftell(f));
  R(fseek(f, -1, SEEK_SET));
  R(fclose(f));
  // Closed below.
  f = fopen("a", "r+");
  R(fgetc(f));
  R(close(fileno(f)));
  R(fseek(f, 20000, SEEK_SET));
  R(fgetc(f));
  R(fclose(f));
  // Limited.
  struct rlimit limit = {SIZE + 10, RLIM_INFINITY};
  signal(SIGXFSZ, nothing);
  R(setrlimit(RLIMIT_FSIZE, &limit));
  f = fopen("a", "r+");
  R(fseek(f, -5, SEEK_END));
  R(fwrite(data, 1, 9000, f));
  R(fclose(f));
  limit.rlim_cur = RLIM_INFINITY;
  R(setrlimit(RLIMIT_FSIZE, &limit));
  // Interrupted.
  R(mkfifo("fifo", 0600));
  int both = open("fifo", O_RDWR);
  struct sigaction act = {.sa_handler = nothing};
  sigaction(SIGALRM, &act, NULL);
  f = fopen("fifo", "r");
  struct itimerval soon = {{0, 20000}, {0, 20000}};
  setitimer(ITIMER_REAL, &soon, NULL);
  R(fgetc(f));
  R(ferror(f));
  memset(&soon, 0, sizeof soon);
  setitimer(ITIMER_REAL, &soon, NULL);
  R(fclose(f));
  close(both);
  outsider("a");
  return 0;
}
