// A library that is started before any other: its handlers are the first that run in a forked child.
#include <pthread.h>
#include <stddef.h>

void (*in_first)(void);

static void in_child(void) {
    if (in_first) in_first();
}

static void __attribute__((constructor)) start(void) { pthread_atfork(NULL, NULL, in_child); }
