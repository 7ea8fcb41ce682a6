// Executes a program that only tells whether it was preloaded, and then itself to tell the same.
//   stranger HOW PROGRAM [locked]   HOW: the call that executes; "vfork" calls execve in a child of vfork. With a record
//                                   lock on the program, which a process keeps that executes it
//   stranger tell                   whether the library is mapped, whether somebody has such a lock on this program, and
//                                   what LD_PRELOAD says but for separators
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef GO
__attribute__((section(".note.go.buildid"), used, aligned(4))) static const struct {
    int owner, description, kind;
    char name[4], build[4];
} note = {4, 4, 4, "Go", "abc"};
#endif

static int locked;

static int lock(const char *path, int command) {
    struct flock whole = {.l_type = command == F_GETLK ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET};
    return fcntl(open(path, O_RDONLY), command, &whole) ? -1 : whole.l_type;
}

/* The locks of this process are not in its own way. */
static int is_locked(void) {
    int status;
    pid_t child = fork();
    if (!child) _exit(lock("/proc/self/exe", F_GETLK) != F_UNLCK);
    waitpid(child, &status, 0);
    return status;
}

static void tell(void) {
    char line[8192], *list = getenv("LD_PRELOAD");
    int mapped = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) mapped |= strstr(line, "/libadit.so") != NULL;
    printf("%s%s, LD_PRELOAD%s", mapped ? "preloaded" : "alone", is_locked() ? ", locked" : "", list ? "" : " unset");
    for (char *word = list ? strtok(strdup(list), ": ") : NULL; word; word = strtok(NULL, ": "))
        printf(" %s", strstr(word, "libadit.so") ? "ours" : word);
    printf("\n");
}

static void execute(const char *how, char *path) {
    char *arguments[] = {path, "tell", NULL}, *name = strrchr(path, '/') + 1;
    char old[8192] = "";
    if (locked) lock(path, F_SETLK);
    if (!strcmp(how, "execve") || !strcmp(how, "vfork")) execve(path, arguments, environ);
    if (!strcmp(how, "execv")) execv(path, arguments);
    if (!strcmp(how, "fexecve")) fexecve(open(path, O_PATH), arguments, environ);
    if (!strcmp(how, "execveat")) execveat(open(path, O_PATH), "", arguments, environ, AT_EMPTY_PATH);
    if (!strcmp(how, "execl")) execl(path, path, "tell", NULL);
    if (!strcmp(how, "execle")) execle(path, path, "", "", "", "", "", "", "tell", NULL, environ);
    if (!strcmp(how, "SYS_execve")) syscall(SYS_execve, path, arguments, environ);
    if (!strcmp(how, "SYS_execveat"))
        syscall(SYS_execveat, open(path, O_PATH), "", arguments, environ, AT_EMPTY_PATH);
    strncat(old, path, name - 1 - path);
    setenv("PATH", strcat(old, ":/bin:/usr/bin"), 1);
    if (!strcmp(how, "execvp")) execvp(name, arguments);
    if (!strcmp(how, "execlp")) execlp(name, path, "", "", "", "tell", NULL);
    if (!strcmp(how, "execvpe")) execvpe(name, arguments, environ);
    _exit(9);
}

static int start(const char *how, char *path) {
    char *arguments[] = {path, "tell", NULL};
    pid_t child;
    int status = -1;
    if (!strcmp(how, "posix_spawn") || !strcmp(how, "posix_spawnp")) {
        if (locked) lock(path, F_SETLK);
        if ((how[11] ? posix_spawnp : posix_spawn)(&child, path, NULL, NULL, arguments, environ)) return 1;
    } else if (!strcmp(how, "vfork")) {
        child = vfork();
        if (!child) execute(how, path);
    } else {
        child = fork();
        if (!child) execute(how, path);
    }
    waitpid(child, &status, 0);
    return status;
}

int main(int count, char **args) {
    char self[4096] = "";
    if (count > 1 && !strcmp(args[count - 1], "tell")) return tell(), 0;
    if (count < 3 || readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    locked = count > 3;
    // What cannot be executed changes nothing for what comes next.
    char *none[] = {"/", NULL};
    if (execve(args[2][0] == '/' ? "/" : args[2], none, environ) != -1) return 3;
    return start(args[1], args[2]) | start(args[1], self);
}
