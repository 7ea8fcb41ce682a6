// Names that change by number.
#include "by_number.h"
#include "names.c"
