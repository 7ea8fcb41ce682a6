// A short program for other allocators and other preloaded libraries: a bit of everything.
#include "t.h"
int main(void) {
  int a = warm_file("a", O_RDWR);
  char b[100];
  for (int i = 0; i < 200; i++) {
    void *p = malloc((size_t)i * 1000);
    FILE *f = fopen("a", "r");
    fseek(f, i * 100, SEEK_SET);
    fgetc(f);
    fclose(f);
    free(p);
  }
  R(read(a, b, 100));
  R(pwrite(a, "plain", 5, 5000));
  next(a, "a");
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    next(a, "child");
    exit(0);
  }
  ended(pid);
  next(a, "a");
  R(system("cat a | wc -c"));
  outsider("a");
  return 0;
}
