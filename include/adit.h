/*
 * What a program that knows of Adit can ask of it. docs/posix.md has the whole text.
 *
 * Linked against, the library must be found by the dynamic linker (pkg-config --libs adit says where), and serves the
 * program when it runs under `adit run`. Otherwise its functions do what they say by the kernel's means.
 *
 * A program that should run without Adit, too, defines ADIT_WEAK before it includes this file, links nothing, and asks
 * whether a function is there. It is under `adit run`:
 *
 *     #define ADIT_WEAK
 *     #include <adit.h>
 *
 *     int fds[] = {journal, database};
 *     if (adit_commit_group ? adit_commit_group(fds, 2) : fsync(journal) || fsync(database)) ...
 *
 * That takes code that is independent of its position (-fPIE, -fPIC), which most compilers make unless they are told not to.
 */
#ifndef ADIT_H
#define ADIT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(ADIT_WEAK) && !defined(__PIC__) && !defined(__pic__)
#error "ADIT_WEAK needs -fPIE or -fPIC: in other code the linker takes functions for absent that the program does not link"
#endif

#ifdef ADIT_WEAK
#define ADIT_FUNCTION __attribute__((weak))
#else
#define ADIT_FUNCTION
#endif

/*
 * Makes everything written so far through these descriptors durable, as fsync of each of them does. In mode atomic it
 * happens at one instant: after a crash of the system either all of it is there, or nothing that was not committed
 * before. A descriptor may be named more than once.
 *
 * What commits a file for itself commits what was written to it until then, and is to come before the first write of a group
 * or after the last: fsync and close of it, sync, sync_file_range, a change of its attributes, starting a program (fork alone
 * does not), and whoever else opens it. Nothing says so afterwards.
 *
 * Returns 0, or -1 with errno:
 *   EBADF   one is no open descriptor; in mode atomic, nothing was committed
 *   EFAULT  there is no array; nothing was committed
 *   EINVAL  in mode atomic, the writes to one are not staged, so they cannot be part of it: a descriptor that is no
 *           regular file or was not opened for writing, that was duplicated or inherited, or whose file somebody else
 *           has open; nothing was committed. What the kernel has written so is part of no group before that file's next
 *           fsync.
 *           In every mode, more descriptors than 1048576
 *   EXDEV   in mode atomic, they lie on file systems of their own; nothing was committed
 *   ENOSPC  no room for the commit, even after what was committed before was published; nothing was committed
 *   EIO and what else fsync may say
 *
 * In the other modes, and without Adit, it is fsync of each, all of them also after one has failed, and the error is
 * the first one's.
 */
int adit_commit_group(const int *fds, size_t count) ADIT_FUNCTION;

/* Whether Adit serves this process: 1 under `adit run` until the program has done something that ended it, else 0. */
int adit_active(void) ADIT_FUNCTION;

#ifdef __cplusplus
}
#endif

#endif
