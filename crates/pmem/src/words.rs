//! Words of a medium that are looked at and changed again and again.
//!
//! [`Medium::load`] and its like find out each time where an offset lies, and whether it does. Whoever has a lock uses
//! the same few words a dozen times: [`Words`] finds them once, and each use is then the instruction alone. A medium that
//! has no addresses, or wants to see each access, is asked each time.
//!
//! # Safety
//!
//! The unsafe code accesses words of a mapping. The invariant: `at` is null, or [`Words::at`] was given it by a medium,
//! which vouches for `N` aligned words from there for as long as it lives, and `'a` ends before that. Other processes
//! change the words at any time, so they are reached by single guarded instructions, never by reference.
#![allow(unsafe_code)]

use core::ptr;

use crate::medium::{Medium, OutOfRange};
use crate::word;

/// `N` words that follow each other in a medium.
pub struct Words<'a, const N: usize> {
    /// Where they are mapped; null where the medium is to be asked.
    at: *mut u64,
    medium: &'a dyn Medium,
    offset: u64,
}

impl<'a, const N: usize> Words<'a, N> {
    /// Words of a medium that is asked each time.
    pub fn asking(medium: &'a dyn Medium, offset: u64) -> Self {
        let at = ptr::null_mut();
        Self { at, medium, offset }
    }

    /// Words that are mapped.
    ///
    /// # Safety
    ///
    /// `at` is the aligned address of the `N` words of `medium` at `offset`, or of addresses that fault, for as long as the
    /// medium lives.
    pub(crate) unsafe fn at(at: *mut u64, medium: &'a dyn Medium, offset: u64) -> Self {
        Self { at, medium, offset }
    }

    /// The address of a word, if it has one.
    #[inline(always)]
    fn word(&self, nth: usize) -> Option<*mut u64> {
        (nth < N && !self.at.is_null()).then(|| self.at.wrapping_add(nth))
    }

    /// The offset of a word in the medium.
    fn offset_of(&self, nth: usize) -> Result<u64, OutOfRange> {
        let offset = self.offset + nth as u64 * 8;
        if nth < N {
            Ok(offset)
        } else {
            Err(OutOfRange::outside(offset, 8, self.offset + N as u64 * 8))
        }
    }

    /// [`Medium::load`] of the `nth` word.
    #[inline(always)]
    pub fn load(&self, nth: usize) -> Result<u64, OutOfRange> {
        if let Some(at) = self.word(nth)
            // SAFETY: `word` gives aligned words of the mapping, see the module.
            && let Ok(value) = unsafe { word::load(at) }
        {
            return Ok(value);
        }
        self.ask(nth)
    }

    /// [`Medium::store`] to the `nth` word.
    #[inline(always)]
    pub fn store(&self, nth: usize, value: u64) -> Result<(), OutOfRange> {
        if let Some(at) = self.word(nth)
            // SAFETY: `word` gives aligned words of the mapping, see the module.
            && unsafe { word::store(at, value) }.is_ok()
        {
            return Ok(());
        }
        self.tell(nth, value)
    }

    /// [`Medium::compare_exchange`] of the `nth` word.
    #[inline(always)]
    pub fn compare_exchange(
        &self,
        nth: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        if let Some(at) = self.word(nth)
            // SAFETY: `word` gives aligned words of the mapping, see the module.
            && let Ok(swapped) = unsafe { word::compare_exchange(at, current, new) }
        {
            return Ok(swapped);
        }
        self.exchange(nth, current, new)
    }

    // The medium says what is wrong with a word that has an address and faults.

    #[cold]
    #[inline(never)]
    fn ask(&self, nth: usize) -> Result<u64, OutOfRange> {
        self.medium.load(self.offset_of(nth)?)
    }

    #[cold]
    #[inline(never)]
    fn tell(&self, nth: usize, value: u64) -> Result<(), OutOfRange> {
        self.medium.store(self.offset_of(nth)?, value)
    }

    #[cold]
    #[inline(never)]
    fn exchange(&self, nth: usize, current: u64, new: u64) -> Result<Result<u64, u64>, OutOfRange> {
        self.medium
            .compare_exchange(self.offset_of(nth)?, current, new)
    }
}
