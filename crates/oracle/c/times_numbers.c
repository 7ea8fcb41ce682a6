// Times that are set by number.
// run: adit
// not in mode: atomic
#include "by_number.h"
#include "times_family.c"
