// A number that was closed behind libc's back belongs to whatever libc's next call returns: nothing of the old file may
// answer for it.
// link: -lrt
#include "t.h"
#include <mqueue.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>
// The headers declare these for fortified programs alone, or not at all.
int __open_2(const char *, int), __open64_2(const char *, int);
int __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
int __open(const char *, int, ...), __open64(const char *, int, ...), __pipe(int *);
static int number;
static sigset_t none;
static struct sockaddr_un home = {.sun_family = AF_UNIX, .sun_path = "home"};
static int listener, queued, place;
static char temporary[64];
static struct {
  struct file_handle head;
  unsigned char room[MAX_HANDLE_SZ];
} handle = {.head.handle_bytes = MAX_HANDLE_SZ};

static int by_socket(void) { return socket(AF_UNIX, SOCK_STREAM, 0); }
static int by_accept(void) { return accept(listener, NULL, NULL); }
static int by_accept4(void) { return accept4(listener, NULL, NULL, SOCK_CLOEXEC); }
static int by_eventfd(void) { return eventfd(3, EFD_NONBLOCK); }
static int by_epoll(void) { return epoll_create(1); }
static int by_epoll1(void) { return epoll_create1(EPOLL_CLOEXEC); }
static int by_timer(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK); }
static int by_signal(void) { return signalfd(-1, &none, SFD_NONBLOCK); }
static int by_inotify(void) { return inotify_init(); }
static int by_inotify1(void) { return inotify_init1(IN_NONBLOCK); }
static int by_fanotify(void) { return fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY); }
static int by_memory(void) { return memfd_create("memory", 0); }
static int by_terminal(void) { return posix_openpt(O_RDWR | O_NOCTTY); }
static int by_process(void) { return pidfd_open(getpid(), 0); }
static int by_handle(void) { return open_by_handle_at(place, &handle.head, O_RDWR); }
static int by_open(void) { return open("other", O_RDWR); }
static int by_open64(void) { return open64("other", O_RDWR); }
static int by_openat(void) { return openat(place, "other", O_RDWR); }
static int by_openat64(void) { return openat64(place, "other", O_RDWR); }
static int by_older_open(void) { return __open("other", O_RDWR); }
static int by_older_open64(void) { return __open64("other", O_RDWR); }
static int by_open_2(void) { return __open_2("other", O_RDWR); }
static int by_open64_2(void) { return __open64_2("other", O_RDWR); }
static int by_openat_2(void) { return __openat_2(place, "other", O_RDWR); }
static int by_openat64_2(void) { return __openat64_2(place, "other", O_RDWR); }
static int by_creat(void) { return creat("created", 0600); }
static int by_creat64(void) { return creat64("created64", 0600); }
static int made(int fd, char *name) {
  if (fd >= 0) unlink(name);
  return fd;
}
static int by_mkstemp(void) { return made(mkstemp(strcpy(temporary, "tXXXXXX")), temporary); }
static int by_mkstemp64(void) { return made(mkstemp64(strcpy(temporary, "tXXXXXX")), temporary); }
static int by_mkostemp(void) { return made(mkostemp(strcpy(temporary, "tXXXXXX"), O_APPEND), temporary); }
static int by_mkostemp64(void) { return made(mkostemp64(strcpy(temporary, "tXXXXXX"), O_APPEND), temporary); }
static int by_mkstemps(void) { return made(mkstemps(strcpy(temporary, "tXXXXXX.x"), 2), temporary); }
static int by_mkstemps64(void) { return made(mkstemps64(strcpy(temporary, "tXXXXXX.x"), 2), temporary); }
static int by_mkostemps(void) { return made(mkostemps(strcpy(temporary, "tXXXXXX.x"), 2, O_CLOEXEC), temporary); }
static int by_mkostemps64(void) { return made(mkostemps64(strcpy(temporary, "tXXXXXX.x"), 2, O_CLOEXEC), temporary); }
static int by_shared(void) {
  int fd = shm_open(temporary, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (fd >= 0) shm_unlink(temporary);
  return fd;
}
static int by_queue(void) {
  int fd = mq_open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK, 0600, NULL);
  if (fd >= 0) mq_unlink(temporary);
  return fd;
}
static int first_of(int ends[2], int result) {
  if (result < 0) return result;
  queued = ends[1];
  return ends[0];
}
static int by_pipe(void) {
  int ends[2];
  return first_of(ends, pipe(ends));
}
static int by_older_pipe(void) {
  int ends[2];
  return first_of(ends, __pipe(ends));
}
static int by_pipe2(void) {
  int ends[2];
  return first_of(ends, pipe2(ends, O_NONBLOCK));
}
static int by_pair(void) {
  int ends[2];
  return first_of(ends, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
}

// The old file's descriptor goes as the kernel alone sees it.
static void reuse(const char *what, int (*make_one)(void)) {
  number = openat(place, "old", O_RDWR);
  warm(number);
  char b[16];
  R(lseek(number, 4096, SEEK_SET));
  R(read(number, b, 10));
  RAW(close, number, 0, 0, 0);
  queued = -1;
  errno = 0;
  int fd = make_one();
  printf("%s: %s, %s\n", what, fd == number ? "the number" : "another", strerrorname_np(errno));
  if (fd < 0) return;
  // Each of them answers as what it is now, or says that it cannot.
  R(lseek(fd, 0, SEEK_CUR));
  R(pread(fd, b, 10, 0));
  R(pwrite(fd, "new", 3, 0));
  struct stat st;
  R(fstat(fd, &st));
  printf("kind %o, size %lld\n", st.st_mode & S_IFMT, (long long)st.st_size);
  R(lseek(fd, 1, SEEK_SET));
  R(close(fd));
  if (queued >= 0) R(close(queued));
}

static void calls_home(void) {
  listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
  IS(bind(listener, (struct sockaddr *)&home, sizeof home) == 0);
  IS(listen(listener, 8) == 0);
  for (int i = 0; i < 2; i++) {
    int caller = socket(AF_UNIX, SOCK_STREAM, 0);
    IS(connect(caller, (struct sockaddr *)&home, sizeof home) == 0);
  }
  IS(unlink(home.sun_path) == 0);
}

#define REUSE(how) reuse(#how, how)
int main(void) {
  make("old", SIZE);
  make("other", 5000);
  snprintf(temporary, sizeof temporary, "/adit-reused-%d", getpid());
  place = open(".", O_RDONLY | O_DIRECTORY);
  int mount;
  R(name_to_handle_at(AT_FDCWD, "other", &handle.head, &mount, 0));
  calls_home();
  REUSE(by_socket), REUSE(by_accept), REUSE(by_accept4), REUSE(by_eventfd), REUSE(by_epoll), REUSE(by_epoll1);
  REUSE(by_timer), REUSE(by_signal), REUSE(by_inotify), REUSE(by_inotify1), REUSE(by_fanotify), REUSE(by_memory);
  REUSE(by_terminal), REUSE(by_process), REUSE(by_handle), REUSE(by_shared), REUSE(by_queue), REUSE(by_pipe);
  REUSE(by_pipe2), REUSE(by_pair);
  REUSE(by_older_pipe), REUSE(by_open), REUSE(by_open64), REUSE(by_openat), REUSE(by_openat64);
  REUSE(by_older_open), REUSE(by_older_open64), REUSE(by_open_2), REUSE(by_open64_2), REUSE(by_openat_2);
  REUSE(by_openat64_2), REUSE(by_creat), REUSE(by_creat64);
  REUSE(by_mkstemp), REUSE(by_mkstemp64), REUSE(by_mkostemp), REUSE(by_mkostemp64);
  REUSE(by_mkstemps), REUSE(by_mkstemps64), REUSE(by_mkostemps), REUSE(by_mkostemps64);
  outsider("old");
  outsider("other");
  return 0;
}
