//! A cheap number that differs between the threads of a process.
//!
//! # Safety
//!
//! The one instruction reads the thread pointer: on x86-64 the word at `fs:0`, which the platform's
//! ABI defines to hold the thread control block's own address, on AArch64 the register that holds
//! it. Invariant: the code runs in a thread of a process whose C library has set up thread-local
//! storage, which is true of everything that runs after the dynamic linker.
#![allow(unsafe_code)]

use core::arch::asm;

/// The address of the calling thread's control block.
#[inline]
pub(super) fn pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the word at fs:0 is the thread control block's address once storage is set up.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly, pure));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reading the thread pointer register has no other effect.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem, pure));
    }
    pointer
}
