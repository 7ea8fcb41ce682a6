// Directories and streams of them next to served files.
#include "t.h"
#include <glob.h>
int main(void) {
  mkdir("d", 0755);
  for (int i = 0; i < 5; i++) {
    char n[16];
    snprintf(n, sizeof n, "d/%d", i);
    int fd = warm_file(n, O_RDWR);
    pwrite(fd, "x", 1, i);
    if (i % 2) close(fd);
  }
  int d = open("d", O_RDONLY | O_DIRECTORY);
  DIR *s = fdopendir(d);
  struct dirent *e;
  int count = 0;
  while ((e = readdir(s))) count++;
  R(count);
  rewinddir(s);
  count = 0;
  while ((e = readdir64(s) ? (void *)1 : NULL)) count++;
  R(count);
  IS(dirfd(s) == d);
  R(closedir(s));
  R(close(d));
  s = opendir("d");
  count = 0;
  while ((e = readdir(s))) count++;
  R(count);
  R(closedir(s));
  IS(opendir("d/0") == NULL);
  struct dirent **list;
  int n = scandir("d", &list, NULL, alphasort);
  for (int i = 0; i < n; i++) printf("%s\n", list[i]->d_name);
  glob_t g;
  R(glob("d/*", 0, NULL, &g));
  R((long)g.gl_pathc);
  R(open("d", O_RDWR));
  R(fdopendir(999) == NULL);
  int f = open("d/0", O_RDONLY);
  warm(f);
  R(fdopendir(f) == NULL);
  next(f, "f");
  return 0;
}
