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
 */
#ifndef ADIT_H
#define ADIT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
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
 * Returns 0, or -1 with errno:
 *   EBADF   one is no open descriptor; nothing was committed
 *   EINVAL  in mode atomic, the writes to one are not staged, so they cannot be part of it: a descriptor that is no
 *           regular file or was not opened for writing, that was duplicated or inherited, or whose file somebody else
 *           has open; nothing was committed
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
