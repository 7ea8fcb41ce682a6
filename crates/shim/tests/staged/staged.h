// Whether a file is staged: only Adit takes a lease. It is asked by an instruction of our own, as Adit sees fcntl() and
// syscall(), and ends the staging for them.
#include <fcntl.h>
#include <sys/syscall.h>

static int is_staged(int fd) {
    long result;
    register long call __asm__("rax") = SYS_fcntl;
    register long a __asm__("rdi") = fd, b __asm__("rsi") = F_GETLEASE, c __asm__("rdx") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "r"(call), "r"(a), "r"(b), "r"(c) : "rcx", "r11", "memory");
    return result == F_WRLCK;
}
