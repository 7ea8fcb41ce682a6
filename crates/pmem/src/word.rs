//! Guarded accesses to single words that other processes share.
//!
//! Same contract as the copies: a fault is a result. On x86-64 they are single instructions in
//! assembly; elsewhere they are Rust's atomics and not guarded.
//!
//! # Safety
//!
//! The unsafe code accesses memory that the caller vouches for: addresses of its own mapping, aligned
//! to 8 bytes, or addresses that fault. Atomic instructions make races with other processes defined.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use crate::arch::x86_64 as arch;
use crate::copy::Fault;
#[cfg(target_arch = "x86_64")]
use crate::copy::outcome;

/// Loads a word; later loads come after it.
///
/// # Safety
///
/// `at` is aligned, and memory of the caller or an address that faults.
#[inline]
pub unsafe fn load(at: *const u64) -> Result<u64, Fault> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller vouches for `at`; every load of x86-64 acquires.
        let (value, fault) = unsafe { arch::load(at) };
        outcome(fault).map(|()| value)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: the caller vouches for `at`; the atomic lives only for this access.
        Ok(unsafe { AtomicU64::from_ptr(at.cast_mut()) }.load(Ordering::Acquire))
    }
}

/// Stores a word; earlier stores come before it.
///
/// # Safety
///
/// As for [`load`].
#[inline]
pub unsafe fn store(at: *mut u64, value: u64) -> Result<(), Fault> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller vouches for `at`; every store of x86-64 releases.
        outcome(unsafe { arch::store(at, value) })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: the caller vouches for `at`; the atomic lives only for this access.
        unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Release);
        Ok(())
    }
}

/// Stores `new` if the word is `current`: `Ok(Ok(current))`; otherwise `Ok(Err(seen))`.
///
/// # Safety
///
/// As for [`load`].
#[inline]
pub unsafe fn compare_exchange(
    at: *mut u64,
    current: u64,
    new: u64,
) -> Result<Result<u64, u64>, Fault> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller vouches for `at`; a locked instruction is a full fence.
        let (seen, fault) = unsafe { arch::compare_exchange(at, current, new) };
        outcome(fault)?;
        Ok(if seen == current { Ok(seen) } else { Err(seen) })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        // SAFETY: the caller vouches for `at`; the atomic lives only for this access.
        let word = unsafe { AtomicU64::from_ptr(at) };
        Ok(word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst))
    }
}
