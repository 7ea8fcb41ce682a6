//! What a program's pointers lead to, which may be nothing.
//!
//! # Safety
//! The program's memory is copied by guarded copies, or by the kernel, into what the caller lends.
#![allow(unsafe_code)]

use crate::{init, signal, strangers};
use adit_pmem::copy::guarded_copy;

/// Copies what is at an address; `None` where part of it cannot be read, as the kernel will say. Where a fault could not be
/// handled, because the thread blocks its signal, the kernel is asked; but not in a sandbox, which could end the program for
/// it, and where nothing is served.
pub(crate) fn read(at: usize, into: &mut [u8]) -> Option<()> {
    if signal::guards() {
        // SAFETY: the buffer is the caller's; the program's pointer may fault.
        return unsafe { guarded_copy(into.as_mut_ptr(), at as *const u8, into.len()) }.ok();
    }
    init::credit()?;
    strangers::read(at, into)
}

/// So many words.
pub(crate) fn words<const N: usize>(at: usize) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (nth, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; size_of::<u64>()];
        read(at.wrapping_add(nth * bytes.len()), &mut bytes)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Some(words)
}
