// Copies of the kernel's, by number.
#include "by_number.h"
#include "copy_family.c"
