// A program that is linked against the library: it runs with and without `adit run`, and the function does what it
// says either way. Prints what each call answers.
#include <adit.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void say(const char *what, int result) {
    printf("%s: %d %s\n", what, result, result < 0 ? strerror(errno) : "-");
}

int main(int count, char **args) {
    if (count < 3) return 2;
    int fds[3];
    for (int i = 0; i < 2; i++) {
        fds[i] = open(args[1 + i], O_CREAT | O_RDWR | O_TRUNC, 0600);
        if (fds[i] < 0 || write(fds[i], "some bytes\n", 11) != 11) return 1;
    }
    fds[2] = fds[0];
    say("both", adit_commit_group(fds, 2));
    say("one of them twice", adit_commit_group(fds, 3));
    say("none", adit_commit_group(fds, 0));
    fds[1] = 12345;
    say("no descriptor", adit_commit_group(fds, 2));
    fprintf(stderr, "active %d\n", adit_active());
    return 0;
}
