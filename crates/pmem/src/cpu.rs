//! What this processor can do, asked once with `cpuid` and remembered.
//!
//! Nothing here allocates, locks or touches thread-local storage, so it may be called from a signal
//! handler and before the program's constructors have run.
//!
//! # Safety
//!
//! The unsafe code of this module is the `xgetbv` instruction, executed only after `cpuid` said that
//! the operating system enabled it.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

/// The processor features that the copy and write-back routines choose by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(u32);

const KNOWN: u32 = 1 << 31;
const AVX2: u32 = 1 << 0;
const AVX512: u32 = 1 << 1;
const CLFLUSH: u32 = 1 << 4;
const CLFLUSHOPT: u32 = 1 << 5;
const CLWB: u32 = 1 << 6;

impl Features {
    /// 32-byte vectors, enabled by the operating system.
    pub fn avx2(self) -> bool {
        self.0 & AVX2 != 0
    }

    /// 64-byte vectors with the upper sixteen registers (F, VL, BW), enabled by the operating system.
    pub fn avx512(self) -> bool {
        self.0 & AVX512 != 0
    }

    /// `clflush`: writes a line back and evicts it, ordered with other `clflush`.
    pub fn clflush(self) -> bool {
        self.0 & CLFLUSH != 0
    }

    /// `clflushopt`: writes a line back and evicts it, unordered.
    pub fn clflushopt(self) -> bool {
        self.0 & CLFLUSHOPT != 0
    }

    /// `clwb`: writes a line back and may keep it cached.
    pub fn clwb(self) -> bool {
        self.0 & CLWB != 0
    }
}

/// The features of the running processor.
pub fn features() -> Features {
    // Relaxed is enough: the value is the same whoever computes it, and it stands for itself.
    static CACHE: AtomicU32 = AtomicU32::new(0);
    let seen = CACHE.load(Ordering::Relaxed);
    if seen & KNOWN != 0 {
        return Features(seen);
    }
    let found = ask() | KNOWN;
    CACHE.store(found, Ordering::Relaxed);
    Features(found)
}

#[cfg(target_arch = "x86_64")]
fn ask() -> u32 {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    #[target_feature(enable = "xsave")]
    fn enabled_state() -> u64 {
        // SAFETY: the caller saw OSXSAVE in cpuid, so `xgetbv` with index 0 is defined.
        unsafe { _xgetbv(0) }
    }

    let highest = __cpuid(0).eax;
    let one = __cpuid(1);
    let seven = if highest >= 7 {
        __cpuid_count(7, 0)
    } else {
        return bit(one.edx, 19, CLFLUSH);
    };
    let mut found =
        bit(one.edx, 19, CLFLUSH) | bit(seven.ebx, 23, CLFLUSHOPT) | bit(seven.ebx, 24, CLWB);
    let os_saves_state = one.ecx & (1 << 27) != 0;
    if os_saves_state {
        // SAFETY: OSXSAVE implies that the processor has the XSAVE family and the system enabled it.
        let state = unsafe { enabled_state() };
        let avx = state & 0x6 == 0x6 && one.ecx & (1 << 28) != 0;
        let avx512_state = state & 0xe6 == 0xe6;
        let f_bw_vl = (1 << 16) | (1 << 30) | (1 << 31);
        if avx {
            found |= bit(seven.ebx, 5, AVX2);
        }
        if avx && avx512_state && seven.ebx & f_bw_vl == f_bw_vl {
            found |= AVX512;
        }
    }
    found
}

#[cfg(target_arch = "x86_64")]
fn bit(word: u32, position: u32, flag: u32) -> u32 {
    if word >> position & 1 != 0 { flag } else { 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn ask() -> u32 {
    0
}
