// Rights that a write takes, or that are given by number.
#include "by_number.h"
#include "privileges.c"
