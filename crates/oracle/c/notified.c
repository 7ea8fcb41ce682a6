// What inotify tells watchers: opens and closes exactly as without Adit.
// (IN_MODIFY and IN_ACCESS of served I/O deviate: deviations.c.)
#include "t.h"
#include <sys/inotify.h>
int main(void) {
  make("a", SIZE);
  int n = inotify_init1(IN_NONBLOCK);
  R(inotify_add_watch(n, "a", IN_OPEN | IN_CLOSE_WRITE | IN_CLOSE_NOWRITE | IN_ATTRIB | IN_DELETE_SELF));
  int a = open("a", O_RDWR), r = open("a", O_RDONLY);
  warm(a), warm(r);
  pwrite(a, "x", 1, 5000);
  close(r);
  close(a);
  int e = open("a", O_RDWR | O_APPEND);
  warm(e);
  write(e, "y", 1);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    warm(e);
    _exit(0);
  }
  ended(pid);
  close(e);
  unlink("a");
  char buf[4096];
  long len = read(n, buf, sizeof buf);
  for (long at = 0; at < len;) {
    struct inotify_event *v = (void *)(buf + at);
    // Adit may bring times up to date, which is an attribute change that nobody asked for.
    if (v->mask != IN_ATTRIB) printf("event %#x\n", v->mask);
    at += (long)sizeof *v + v->len;
  }
  return 0;
}
