// Descriptors by mail.
#include "t.h"
static void send_fd(int s, int fd, int many) {
  char c = 'x', ctl[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  struct mmsghdr mm = {.msg_hdr = m};
  // Silent: the other side goes on, and prints, at once.
  if ((many ? sendmmsg(s, &mm, 1, 0) : sendmsg(s, &m, 0)) != 1) abort();
}
static int take_fd(int s, int many) {
  char c, ctl[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
  struct mmsghdr mm = {.msg_hdr = m};
  if (many) recvmmsg(s, &mm, 1, 0, NULL);
  else recvmsg(s, &m, 0);
  int fd = -1;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(many ? &mm.msg_hdr : &m)), sizeof fd);
  return fd;
}
int main(void) {
  for (int many = 0; many < 2; many++) {
    int s[2];
    R(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      close(s[0]);
      int fd = take_fd(s[1], many);
      next(fd, "child");
      R(lseek(fd, 9000, SEEK_SET));
      R(write(fd, "child", 5));
      int own = warm_file("child-made", O_RDWR);
      char b[10];
      read(own, b, 10);
      send_fd(s[1], own, many);
      read(s[1], b, 1);
      next(own, "child afterwards");
      _exit(0);
    }
    close(s[1]);
    int a = warm_file("a", O_RDWR);
    char b[10];
    R(read(a, b, 10));
    R(write(s[0], "plain", 0));
    send_fd(s[0], a, many);
    int got = take_fd(s[0], many);
    next(a, "parent");
    next(got, "parent, the child's file");
    warm(got);
    R(pwrite(got, "parent", 6, 4000));
    write(s[0], "g", 1);
    ended(pid);
    // To itself: two numbers, one description.
    socketpair(AF_UNIX, SOCK_DGRAM, 0, s);
    a = open("a", O_RDWR);
    warm(a);
    R(lseek(a, 100, SEEK_SET));
    send_fd(s[0], a, many);
    int twin = take_fd(s[1], many);
    next(a, "a"), next(twin, "twin"), next(a, "a");
    outsider("a"), outsider("child-made");
  }
  return 0;
}
