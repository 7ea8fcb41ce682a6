// A file of a terabyte that has a few pages.
#include "t.h"
#define TB (1ll << 40)
int main(void) {
  int a = warm_file("a", O_RDWR);
  char b[100] = {0};
  R(ftruncate(a, TB));
  R(pwrite(a, "end", 3, TB - 3));
  R(pread(a, b, 10, TB - 5));
  printf("%d %d %c%c%c\n", b[0], b[1], b[2], b[3], b[4]);
  for (long long at = 4096; at < TB; at *= 4) {
    if (pwrite(a, "mark", 4, at) != 4) R(at);
    if (pread(a, b, 8, at - 2) != 8 || memcmp(b + 2, "mark", 4) != 0) R(at);
  }
  warm(a);
  R(pread(a, b, 8, (TB / 4) - 2));
  R(lseek(a, -10, SEEK_END));
  R(read(a, b, 100));
  R(lseek(a, 0, SEEK_CUR));
  R(write(a, "more", 4));
  struct stat st;
  R(fstat(a, &st));
  R((long)st.st_size);
  // Warming reads at most a few megabytes, whatever maps them: nothing near a terabyte is filled.
  IS(st.st_blocks < 50000);
  int c = open("a", O_RDWR);
  warm(c);
  R(pread(c, b, 4, TB));
  printf("%.4s\n", b);
  R(pread(c, b, 4, 1ll << 30));
  R(ftruncate(a, SIZE));
  R(pread(c, b, 4, 1ll << 30));
  outsider("a");
  return 0;
}
