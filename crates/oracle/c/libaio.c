// The kernel's own asynchronous I/O through libaio, which asks for everything but the first call inline.
// link: -laio
// needs: libaio.h
#include "t.h"
#include <libaio.h>
static io_context_t queue;
static int by_setup(void) { return io_setup(4, &queue); }
static int by_init(void) { return io_queue_init(4, &queue); }
static long go(struct iocb *one) {
  struct io_event event;
  if (io_submit(queue, 1, &one) != 1 || io_getevents(queue, 1, 1, &event, NULL) != 1) return -9999;
  return (long)event.res;
}
// The first queue of a process: what was written before it, and what is written later, is what it finds.
static void first(const char *what, int (*set_up)(void)) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    static char buf[5000];
    struct iocb one;
    int fd = warm_file(what, O_RDWR);
    R(pwrite(fd, "written before", 14, 9000));
    if (R(set_up()) < 0) _exit(1);
    io_prep_pread(&one, fd, buf, sizeof buf, 8000);
    R(go(&one));
    printf("%.14s\n", buf + 1000);
    R(pwrite(fd, "written later", 13, SIZE + 5000));
    io_prep_pread(&one, fd, buf, 13, SIZE + 5000);
    R(go(&one));
    printf("%.13s\n", buf);
    io_prep_pwrite(&one, fd, "by the queue", 12, SIZE + 9000);
    R(go(&one));
    R(pread(fd, buf, 12, SIZE + 9000));
    printf("%.12s\n", buf);
    io_prep_fsync(&one, fd);
    R(go(&one));
    next(fd, what);
    R(lseek(fd, 0, SEEK_END));
    // A file of after the queue.
    int other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0644);
    R(write(other, "another file", 12));
    io_prep_pread(&one, other, buf, 12, 0);
    R(go(&one));
    printf("%.12s\n", buf);
    R(io_queue_release(queue));
    _exit(0);
  }
  ended(pid);
  outsider(what);
}
int main(void) {
  first("setup", by_setup);
  first("init", by_init);
  return 0;
}
