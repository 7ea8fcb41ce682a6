// Leaves an open by a jump out of a handler, while another thread makes a process and takes its time; and says how many
// seconds the second of the forks after that took.
//   forsakes FILE
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile int slow, prepares;

static void prepare(void) {
    if (!slow) return;
    prepares = 1;
    sleep(2);
}

static void leaves(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static int forks(void) {
    time_t begun = time(NULL);
    pid_t child = fork();
    if (!child) _exit(0);
    waitpid(child, NULL, 0);
    return (int)(time(NULL) - begun);
}

static void *makes(void *nothing) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    slow = 1;
    forks();
    slow = 0;
    return nothing;
}

int main(int count, char **args) {
    if (count < 2) return 2;
    pthread_atfork(prepare, NULL, NULL);
    signal(SIGALRM, leaves);
    pthread_t thread;
    pthread_create(&thread, NULL, makes, NULL);
    while (!prepares) usleep(1000);
    if (!sigsetjmp(back, 1)) {
        struct itimerval soon = {.it_value.tv_usec = 150000};
        setitimer(ITIMER_REAL, &soon, NULL);
        printf("opened %d\n", open(args[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    }
    pthread_join(thread, NULL);
    forks();
    int took = forks();
    printf(took > 1 ? "%d seconds\n" : "at once\n", took);
    return 0;
}
