// As durable.c, by numbers.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define mkdir(...) syscall(SYS_mkdir, __VA_ARGS__)
#define open(...) (int)syscall(SYS_open, __VA_ARGS__)
#define creat(...) (int)syscall(SYS_creat, __VA_ARGS__)
#define symlink(...) syscall(SYS_symlink, __VA_ARGS__)
#define link(...) syscall(SYS_link, __VA_ARGS__)
#define rename(...) syscall(SYS_rename, __VA_ARGS__)
#define renameat(...) syscall(SYS_renameat, __VA_ARGS__)
#define unlinkat(...) syscall(SYS_unlinkat, __VA_ARGS__)
#define truncate(...) syscall(SYS_truncate, __VA_ARGS__)
#define mkfifo(path, mode) syscall(SYS_mknod, path, S_IFIFO | (mode), 0)
#define unlink(...) syscall(SYS_unlink, __VA_ARGS__)
#define rmdir(...) syscall(SYS_rmdir, __VA_ARGS__)
#define fallocate(...) syscall(SYS_fallocate, __VA_ARGS__)
#define posix_fallocate(fd, at, len) syscall(SYS_fallocate, fd, 0, at, len)
#define ftruncate(...) syscall(SYS_ftruncate, __VA_ARGS__)
#include "durable.c"
