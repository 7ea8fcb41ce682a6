// streams: served
// link: -pthread
// Many threads whose first streams are opened at the same moment, one of them shared, while others fork.
#include "t.h"
#include <pthread.h>
#define THREADS 8
static pthread_barrier_t start;
static FILE *shared;
static uint64_t sums[THREADS];
static void *work(void *which) {
  long me = (long)which;
  char name[20], line[300];
  snprintf(name, sizeof name, "own%ld", me);
  pthread_barrier_wait(&start);
  FILE *f = fopen(name, me % 2 ? "w+" : "a+");
  for (int i = 0; i < 3000; i++) fprintf(f, "thread %ld line %d\n", me, i * 7);
  for (int pass = 0; pass < 4; pass++) {
    rewind(f);
    while (fgets(line, sizeof line, f)) sums[me] = hash(sums[me], line, strlen(line));
    fseek(f, 5000 * pass, SEEK_SET);
    fputs("over", f);
    fprintf(shared, "%ld %d %0100d\n", me, pass, pass);
    if (me < 2) {
      pid_t pid = fork();
      if (pid == 0) {
        FILE *own = fopen("child", "a");
        fclose(own);
        _exit(0);
      }
      waitpid(pid, NULL, 0);
    }
    FILE *other = fopen("own0", "r");
    fgets(line, sizeof line, other);
    sums[me] = hash(sums[me], line, strlen(line));
    fclose(other);
  }
  fclose(f);
  return NULL;
}
int main(void) {
  pthread_t threads[THREADS];
  pthread_barrier_init(&start, NULL, THREADS);
  make("own0", 0);
  FILE *f = fopen("own0", "r+");
  fputs("thread 0 line 0\n", f);
  fclose(f);
  for (int round = 0; round < 3; round++) {
    shared = fopen("shared", "w");
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    fclose(shared);
    // The order of its lines differs from run to run.
    shared = fopen("shared", "r");
    char line[300];
    uint64_t all = 0;
    int lines = 0;
    while (fgets(line, sizeof line, shared)) all += hash(1, line, strlen(line)), lines++;
    fclose(shared);
    printf("%d lines %016llx\n", lines, (unsigned long long)all);
    unlink("shared");
    for (int i = 0; i < THREADS; i++) printf("%d %016llx\n", i, (unsigned long long)sums[i]);
  }
  return 0;
}
