/* Does to files what it is told, line by line, and says what came of it: an errno, and what was read.
 * The first character is the call, the second the place of a descriptor. After a `K` it is done on a small stack. */
#define _GNU_SOURCE
#define ADIT_WEAK
#include <adit.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int fds[10];
static FILE *kept;

static void say(long result, const char *text)
{
	printf("%d %s\n", result < 0 ? errno : 0, text);
	fflush(stdout);
}

static void say_number(long result)
{
	char text[32];
	snprintf(text, sizeof text, "%ld", result);
	say(result, result < 0 ? "-" : text);
}

/* What is after the first word of a line. */
static char *after(char *line)
{
	char *space = strchr(line, ' ');
	return space ? space + 1 : line + strlen(line);
}

/* Of the letters up to the first space. */
static int flags_of(const char *letters)
{
	int reads = 0, writes = 0, flags = 0;
	for (; *letters && *letters != ' '; letters++) {
		reads |= *letters == 'r';
		writes |= *letters == 'w';
		flags |= *letters == 'a' ? O_APPEND : *letters == 't' ? O_TRUNC : *letters == 'c' ? O_CREAT :
			 *letters == 's' ? O_DSYNC : 0;
	}
	return flags | (writes ? reads ? O_RDWR : O_WRONLY : O_RDONLY);
}

/* Starts a program and waits for its end. */
static long spawn(posix_spawn_file_actions_t *actions, char *const arguments[])
{
	pid_t child;
	int error = posix_spawnp(&child, arguments[0], actions, NULL, arguments, environ), status = 1;
	posix_spawn_file_actions_destroy(actions);
	if (error == 0)
		waitpid(child, &status, 0);
	return status == 0 ? 0 : -1;
}

static int act(char *line)
{
	static char text[1 << 16];
	char call = line[0];
	int *fd = &fds[line[1] - '0'];
	char *rest = after(line);
	struct stat stat_;
	memset(text, 0, sizeof text);
	switch (call) {
	case 'o': /* open: letters, path */
		*fd = open(after(rest), flags_of(rest), 0644);
		say(*fd, "-");
		break;
	case 'z': /* the same, on the number of the standard error */
		close(STDERR_FILENO);
		*fd = open(after(rest), flags_of(rest), 0644);
		say(*fd == STDERR_FILENO ? 0 : -1, "-");
		break;
	case 'W': { /* open a stream that begins anew, and leave it: path */
		FILE *stream = fopen(rest, "w");
		say(stream ? 0 : -1, "-");
		break;
	}
	case 'Z': /* open a stream to be kept, on the number of the standard error: its mode, path */
		close(STDERR_FILENO);
		/* fall through */
	case 'O': /* the same on any: its mode, path */
		rest[strcspn(rest, " ")] = 0;
		kept = fopen(rest + strlen(rest) + 1, rest);
		say(kept && (call == 'O' || fileno(kept) == STDERR_FILENO) ? 0 : -1, "-");
		break;
	case 'P': /* write through it */
		say(fputs(rest, kept) < 0 ? -1 : fflush(kept), "-");
		break;
	case 'E': /* where it is */
		say_number(ftell(kept));
		break;
	case 'G': /* what it reads from the start */
		rewind(kept);
		fflush(kept);
		fread(text, 1, sizeof text - 1, kept);
		say(0, text);
		break;
	case 'w': /* write */
		say(write(*fd, rest, strlen(rest)), "-");
		break;
	case 'p': /* pwrite: offset, text */
		say(pwrite(*fd, after(rest), strlen(after(rest)), atol(rest)), "-");
		break;
	case 'r': /* pread from the start */
		say(pread(*fd, text, sizeof text - 1, 0), text);
		break;
	case 'n': /* read what is next */
		say(read(*fd, text, sizeof text - 1), text);
		break;
	case 's': /* fstat */
		say_number(fstat(*fd, &stat_) ? -1 : stat_.st_size);
		break;
	case 'S': /* stat: path */
		say_number(stat(rest, &stat_) ? -1 : stat_.st_size);
		break;
	case 'e': /* seek to the end */
		say_number(lseek(*fd, 0, SEEK_END));
		break;
	case 'f': /* fsync */
		say(fsync(*fd), "-");
		break;
	case 'C': /* adit_commit_group */
		say(adit_commit_group ? adit_commit_group(fd, 1) : 77, "-");
		break;
	case 't': /* ftruncate: size */
		say(ftruncate(*fd, atol(rest)), "-");
		break;
	case 'T': /* truncate: size, path */
		say(truncate(after(rest), atol(rest)), "-");
		break;
	case 'M': /* time of the last change: path */
		snprintf(text, sizeof text, "-");
		int looked = stat(rest, &stat_);
		if (looked == 0)
			snprintf(text, sizeof text, "%ld.%09ld", (long)stat_.st_mtim.tv_sec, stat_.st_mtim.tv_nsec);
		say(looked, text);
		break;
	case 'u': { /* set it: seconds, path */
		struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = atol(rest)}};
		say(utimensat(AT_FDCWD, after(rest), times, 0), "-");
		break;
	}
	case 'h': /* chmod: path */
		say(chmod(rest, 0400), "-");
		break;
	case 'R': { /* rename: path, path */
		char *to = after(rest);
		to[-1] = 0;
		say(rename(rest, to), "-");
		break;
	}
	case 'l': { /* lock all of it: r or w */
		struct flock lock = {.l_type = *rest == 'w' ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET};
		say(fcntl(*fd, F_SETLK, &lock), "-");
		break;
	}
	case 'X': /* what the kernel copies into it, from where it is: the place of the source */
		say(sendfile(*fd, fds[*rest - '0'], NULL, sizeof text), "-");
		break;
	case 'L': { /* from here on so many descriptors are left, or with `-` as many as there may be */
		struct rlimit limit;
		int next = dup(STDIN_FILENO);
		close(next);
		getrlimit(RLIMIT_NOFILE, &limit);
		limit.rlim_cur = *rest == '-' ? limit.rlim_max : (rlim_t)next + atoi(rest);
		say(setrlimit(RLIMIT_NOFILE, &limit), "-");
		break;
	}
	case 'c': /* close */
		say(close(*fd), "-");
		break;
	case 'm': { /* what a mapping shows */
		char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, *fd, 0);
		if (map != MAP_FAILED) {
			strncpy(text, map, 4000);
			munmap(map, 4096);
		}
		say(map == MAP_FAILED ? -1 : 0, text);
		break;
	}
	case 'x': { /* what the kernel copies from the start, which is said */
		off_t at = 0;
		int ends[2];
		long sent = pipe(ends);
		if (sent == 0)
			sent = sendfile(ends[1], *fd, &at, sizeof text - 1);
		if (sent > 0 && read(ends[0], text, sizeof text - 1) != sent)
			sent = -1;
		close(ends[0]);
		close(ends[1]);
		say(sent, text);
		break;
	}
	case 'i': { /* what a program reads for whom libc opens the file in the child: path */
		char *const cat[] = {"cat", NULL};
		int ends[2];
		posix_spawn_file_actions_t actions;
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, rest, O_RDONLY, 0);
		if (pipe(ends) == 0)
			posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
		long spawned = spawn(&actions, cat);
		close(ends[1]);
		if (spawned == 0)
			spawned = read(ends[0], text, sizeof text - 1);
		close(ends[0]);
		say(spawned, text);
		break;
	}
	case 'I': { /* the same for one that writes, from the start: text, path */
		char *path = after(rest);
		path[-1] = 0;
		char *const echo[] = {"printf", "%s", rest, NULL};
		posix_spawn_file_actions_t actions;
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, path, O_WRONLY | O_TRUNC, 0);
		say(spawn(&actions, echo), "-");
		break;
	}
	case 'D': /* load what is no library: path */
		say(dlopen(rest, RTLD_NOW) ? -1 : 0, "-");
		break;
	case 'H': { /* link: path, path */
		char *to = after(rest);
		to[-1] = 0;
		say(link(rest, to), "-");
		break;
	}
	case 'k': { /* what a child reads and appends: text */
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			say(pread(*fd, text, sizeof text - 1, 0), text);
			if (*rest && write(*fd, rest, strlen(rest)) < 0)
				_exit(1);
			_exit(0);
		}
		int status = 1;
		waitpid(child, &status, 0);
		say(status == 0 ? 0 : -1, "-");
		break;
	}
	case 'F': { /* what a stream reads: path */
		FILE *stream = fopen(rest, "r");
		if (stream) {
			fread(text, 1, sizeof text - 1, stream);
			fclose(stream);
		}
		say(stream ? 0 : -1, text);
		break;
	}
	default:
		return 2;
	}
	return 0;
}

/* A stack that is no larger than a handler needs that calls libc, and what is below. */
static struct {
	char below[1 << 16], stack[1 << 14];
} small;
static char *told;

static void on_small_stack(int signal)
{
	(void)signal;
	if (act(told) != 0)
		say(-1, "unknown");
}

/* Does as it is told in a handler there. Whether what is below was touched is said to standard error. */
static int act_on_small_stack(char *line)
{
	stack_t stack = {.ss_sp = small.stack, .ss_size = getauxval(AT_MINSIGSTKSZ) + 6144};
	struct sigaction action = {.sa_handler = on_small_stack, .sa_flags = SA_ONSTACK};
	size_t whole = 0;
	memset(small.below, 'A', sizeof small.below);
	sigaltstack(&stack, NULL);
	sigaction(SIGUSR1, &action, NULL);
	told = line;
	raise(SIGUSR1);
	while (whole < sizeof small.below && small.below[whole] == 'A')
		whole++;
	if (whole < sizeof small.below)
		fprintf(stderr, "%zu bytes below the stack\n", sizeof small.below - whole);
	return whole < sizeof small.below;
}

int main(void)
{
	static char line[1 << 16];
	int ended = 0;
	while (ended == 0 && fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		ended = line[0] == 'K' ? act_on_small_stack(line + 1) : act(line);
	}
	return ended;
}
