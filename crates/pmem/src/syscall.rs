//! System calls that rustix does not offer, or whose pointers are a program's own: it is the kernel's business to find
//! out that one is bad. libc would let the preloaded library intercept them.
//!
//! # Safety
//!
//! The only unsafe operation is the instruction that enters the kernel.
#![allow(unsafe_code)]

/// Makes system call `number` with up to six arguments, the others zero: its value, or the number of its error. Takes no
/// memory, and may be called in a signal handler.
///
/// # Safety
///
/// What the call writes to, maps or unmaps is the caller's to lose. The kernel checks every pointer that it is given, so a
/// bad one is an error of the call.
#[inline]
pub unsafe fn call(number: i64, args: [usize; 6]) -> Result<usize, i32> {
    let value: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the registers of the x86-64 Linux call convention; the instruction clobbers rcx and r11. Memory may change,
    // as the caller allows.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => value,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the registers of the AArch64 Linux call convention, of which only x0 changes; memory as above.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] as isize => value,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack),
        );
    }
    if (-4095..0).contains(&value) {
        Err(-value as i32)
    } else {
        Ok(value as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_answers_with_its_value_or_its_error() {
        // SAFETY: neither call touches memory.
        let [mine, none] = unsafe {
            [
                call(libc::SYS_getpid, [0; 6]),
                call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]),
            ]
        };
        assert_eq!(mine, Ok(std::process::id() as usize));
        assert_eq!(none, Err(libc::EBADF));
    }

    #[test]
    fn all_six_arguments_arrive() {
        let page = 4096;
        let (protection, flags) = (
            libc::PROT_READ as usize,
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize,
        );
        let nowhere = usize::MAX;
        // SAFETY: a mapping at an address of the kernel's choice, which nobody refers to.
        let mapped = unsafe { call(libc::SYS_mmap, [0, page, protection, flags, nowhere, 0]) };
        let mapped = mapped.expect("a page");
        // An offset that is no multiple of a page is refused, so the sixth is seen.
        // SAFETY: nothing is mapped.
        let odd = unsafe { call(libc::SYS_mmap, [0, page, protection, flags, nowhere, 1]) };
        assert_eq!(odd, Err(libc::EINVAL));
        // SAFETY: the page above.
        let gone = unsafe { call(libc::SYS_munmap, [mapped, page, 0, 0, 0, 0]) };
        assert_eq!(gone, Ok(0));
    }
}
