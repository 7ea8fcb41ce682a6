// Who becomes someone else by number. Needs root for most of it.
#include "by_number.h"
#include "identity.c"
