/* How long a file is for who only looks at it.
 *   sizes FILE          for each line of input: its size as each call says it that says one, the seconds since it was
 *                       written, and 1 if its blocks hold it
 *   sizes FILE w COUNT  opens it, appends, closes it, again and again, and counts in COUNT the bytes that are in it
 *   sizes FILE l COUNT  looks at it as often, and says how often it was shorter than COUNT said before */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void show(const char *path)
{
	struct stat by[6];
	struct statx extended;
	int fd = open(path, O_PATH);
	if (stat(path, &by[0]) || lstat(path, &by[1]) || fstatat(AT_FDCWD, path, &by[2], 0) || fstat(fd, &by[3]) ||
	    fstatat(fd, "", &by[4], AT_EMPTY_PATH) || syscall(SYS_newfstatat, AT_FDCWD, path, &by[5], 0) ||
	    statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &extended))
		exit(3);
	close(fd);
	for (int i = 0; i < 6; i++)
		printf("%ld ", (long)by[i].st_size);
	long age = time(NULL) - by[0].st_mtim.tv_sec;
	printf("%ld %ld %d\n", (long)extended.stx_size, age, by[0].st_blocks * 512 >= by[0].st_size);
	fflush(stdout);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **args)
{
	char line[16];
	if (count == 2) {
		while (fgets(line, sizeof line, stdin))
			show(args[1]);
		return 0;
	}
	int shared = open(args[3], O_RDWR);
	_Atomic long *there = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
	if (there == MAP_FAILED)
		return 2;
	int looks = 0, behind = 0;
	for (double end = now() + 3; now() < end; looks++) {
		if (args[2][0] == 'w') {
			int fd = open(args[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
			for (int i = 0; i < 1 + looks % 7; i++) {
				if (write(fd, "0123456789abcdef", 16) != 16)
					return 4;
				*there += 16;
			}
			if (close(fd))
				return 4;
			continue;
		}
		struct stat stat_;
		long least = *there;
		if (least && (stat(args[1], &stat_) || stat_.st_size < least))
			behind++;
	}
	printf("%d behind, %s\n", behind, looks > 5 ? "often" : "seldom");
	return 0;
}
