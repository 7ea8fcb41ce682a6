// What makes things durable, by number.
#include "by_number.h"
#include "sync_family.c"
