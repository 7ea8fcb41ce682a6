// Limits that are set by number.
#include "by_number.h"
#include "limits.c"
