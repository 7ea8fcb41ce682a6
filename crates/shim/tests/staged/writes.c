// Makes a file of so many writes of so many bytes; exits with 28 when there is no space.
//   writes FILE COUNT LEN [log | synced | grouped | grown | changed]
// log: appends; synced: and has synced it before; grouped: as one of a group; grown: at its end, though not with O_APPEND; changed: the same, after the
// first one at its beginning once more
#define ADIT_WEAK
#include <adit.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
    const char *kind = count > 4 ? words[4] : "";
    int appends = !strcmp(kind, "log") || !strcmp(kind, "synced") || !strcmp(kind, "grouped");
    int fd = open(words[1], O_RDWR | O_CREAT | O_TRUNC | (appends ? O_APPEND : 0), 0644);
    long writes = atol(words[2]);
    size_t len = atol(words[3]);
    char *bytes = malloc(len);
    memset(bytes, 'w', len);
    if (!strcmp(kind, "synced") && fsync(fd))
        return 1;
    if (!strcmp(kind, "grouped") && (!adit_commit_group || adit_commit_group(&fd, 1)))
        return 1;
    for (long i = 0; i < writes; i++) {
        if (i == 1 && !strcmp(kind, "changed") && lseek(fd, 0, SEEK_SET))
            return 1;
        if (write(fd, bytes, len) != (ssize_t)len)
            return errno == ENOSPC ? 28 : 1;
    }
    return close(fd) != 0;
}
