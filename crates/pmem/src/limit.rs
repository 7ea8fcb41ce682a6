//! The process's limit on the size of its files.
//!
//! A sandbox may forbid to ask for limits, and rustix takes for granted that the kernel answers: it would end
//! the program, or read what nobody wrote. So the call is made here.
//!
//! # Safety
//! The only unsafe operation is the `syscall` instruction, which is given the address of a live local that is as
//! large as what the kernel writes there.
#![allow(unsafe_code)]

/// How large a file of this process may become; `None` where the kernel does not say.
#[cfg(target_arch = "x86_64")]
pub(crate) fn file_size() -> Option<u64> {
    const PRLIMIT64: isize = 302;
    const FSIZE: usize = 1;
    // Soft and hard limit.
    let mut limits = [0_u64; 2];
    let answer: isize;
    // SAFETY: `prlimit64` of this process, which sets nothing and writes 16 bytes to a live local; rcx and r11 are
    // what the instruction clobbers.
    unsafe {
        core::arch::asm!("syscall",
            inlateout("rax") PRLIMIT64 => answer,
            in("rdi") 0_usize, in("rsi") FSIZE, in("rdx") 0_usize, in("r10") limits.as_mut_ptr(),
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    (answer == 0).then_some(limits[0])
}

/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn file_size() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    Some(getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_what_others_are_told() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        assert_eq!(super::file_size(), Some(limit.current.unwrap_or(u64::MAX)));
    }
}
