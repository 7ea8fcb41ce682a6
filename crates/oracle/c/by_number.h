// Calls that go to the kernel by their numbers, through syscall(2), where a program names libc's functions. A program is
// compiled a second time behind this: what the library does before and after such a call must not depend on its door.
#ifndef BY_NUMBER_H
#define BY_NUMBER_H
#include "t.h"
// Before they become macros.
#include <grp.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>
#define BY_NUMBER
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

#define utime(path, times) syscall(SYS_utime, path, times)
#define utimes(path, times) syscall(SYS_utimes, path, times)
#define futimesat(dir, path, times) syscall(SYS_futimesat, dir, path, times)
#define utimensat(dir, path, times, flags) syscall(SYS_utimensat, dir, path, times, flags)
#define futimens(fd, times) syscall(SYS_utimensat, fd, NULL, times, 0)

#define sync() syscall(SYS_sync)
#define syncfs(fd) syscall(SYS_syncfs, fd)
#define fsync(fd) syscall(SYS_fsync, fd)
#define fdatasync(fd) syscall(SYS_fdatasync, fd)
#define sync_file_range(fd, at, len, flags) syscall(SYS_sync_file_range, fd, (long)(at), (long)(len), flags)

#define chmod(path, mode) syscall(SYS_chmod, path, mode)
#define fchmod(fd, mode) syscall(SYS_fchmod, fd, mode)
#define fchmodat(dir, path, mode, flags) syscall(SYS_fchmodat, dir, path, mode)
#define lchmod(path, mode) syscall(SYS_fchmodat2, AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW)
#define chown(path, user, group) syscall(SYS_chown, path, user, group)
#define lchown(path, user, group) syscall(SYS_lchown, path, user, group)
#define fchown(fd, user, group) syscall(SYS_fchown, fd, user, group)
#define fchownat(dir, path, user, group, flags) syscall(SYS_fchownat, dir, path, user, group, flags)

#define setxattr(...) syscall(SYS_setxattr, __VA_ARGS__)
#define lsetxattr(...) syscall(SYS_lsetxattr, __VA_ARGS__)

#define rename(from, to) syscall(SYS_rename, from, to)
#define renameat(from, name, to, other) syscall(SYS_renameat, from, name, to, other)
#define renameat2(from, name, to, other, flags) syscall(SYS_renameat2, from, name, to, other, flags)
#define link(from, to) syscall(SYS_link, from, to)
#define linkat(from, name, to, other, flags) syscall(SYS_linkat, from, name, to, other, flags)
#define symlink(text, path) syscall(SYS_symlink, text, path)
#define symlinkat(text, dir, path) syscall(SYS_symlinkat, text, dir, path)
#define unlink(path) syscall(SYS_unlink, path)
#define unlinkat(dir, path, flags) syscall(SYS_unlinkat, dir, path, flags)
#define mkdir(path, mode) syscall(SYS_mkdir, path, mode)
#define mkdirat(dir, path, mode) syscall(SYS_mkdirat, dir, path, mode)
#define rmdir(path) syscall(SYS_rmdir, path)
#define mknod(path, mode, device) syscall(SYS_mknod, path, mode, device)
#define mknodat(dir, path, mode, device) syscall(SYS_mknodat, dir, path, mode, device)

#define setrlimit(which, ...) syscall(SYS_setrlimit, which, __VA_ARGS__)
#define setrlimit64 setrlimit
#define prlimit(...) syscall(SYS_prlimit64, __VA_ARGS__)
#define prlimit64 prlimit
#define mlockall(flags) syscall(SYS_mlockall, flags)

#define tee(from, to, len, flags) syscall(SYS_tee, from, to, len, flags)
#define vmsplice(fd, parts, count, flags) syscall(SYS_vmsplice, fd, parts, count, flags)
#define preadv(fd, parts, count, at) syscall(SYS_preadv, fd, parts, count, (long)(at), 0)
#define pwritev(fd, parts, count, at) syscall(SYS_pwritev, fd, parts, count, (long)(at), 0)

// libc has the threads of a process do these together; here there is one.
#define setuid(user) syscall(SYS_setuid, user)
#define setgid(group) syscall(SYS_setgid, group)
#define seteuid(user) syscall(SYS_setresuid, -1, user, -1)
#define setegid(group) syscall(SYS_setresgid, -1, group, -1)
#define setreuid(real, user) syscall(SYS_setreuid, real, user)
#define setregid(real, group) syscall(SYS_setregid, real, group)
#define setresuid(real, user, saved) syscall(SYS_setresuid, real, user, saved)
#define setresgid(real, group, saved) syscall(SYS_setresgid, real, group, saved)
#define setfsuid(user) syscall(SYS_setfsuid, user)
#define setfsgid(group) syscall(SYS_setfsgid, group)
#define setgroups(count, groups) syscall(SYS_setgroups, count, groups)
#define capset(head, data) syscall(SYS_capset, head, data)
#define chroot(path) syscall(SYS_chroot, path)
#define pivot_root(root, old) syscall(SYS_pivot_root, root, old)
#define setns(fd, kind) syscall(SYS_setns, fd, kind)
#define unshare(flags) syscall(SYS_unshare, flags)
#define prctl(...) syscall(SYS_prctl, __VA_ARGS__)
#endif
