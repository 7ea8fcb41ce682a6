// kind: library
// Replaces libc's slot that writes for streams by one that loses the last byte of long writes.
#include "t.h"
extern void *_IO_file_jumps[];
static long (*write_slot)(FILE *, const void *, long);
static long loses(FILE *f, const void *from, long n) {
  return n > 1000 ? write_slot(f, from, n - 1) + 1 : write_slot(f, from, n);
}
__attribute__((constructor)) static void replace(void) {
  void **slot = &_IO_file_jumps[15];
  char *page = (char *)((uintptr_t)slot & ~4095ul);
  if (mprotect(page, 8192, PROT_READ | PROT_WRITE) != 0) abort();
  memcpy(&write_slot, slot, sizeof *slot);
  *slot = (void *)loses;
}
