//! One word per file descriptor.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | foreign: not ours, every call goes straight to libc |
//! | odd | candidate: opened by the program through an entry we saw; the upper bits are the credit, in bytes, that its calls use up before it is worth a closer look |
//! | even | promoted: the address of its [`Ofd`] |
//!
//! Descriptors that were there when the program started, that came over a socket, or that libc
//! opened inside itself (stdio) have word 0 and stay with the kernel, which is always right.
//!
//! # Safety
//! An even word is the address of an [`Ofd`] in the arena, whose memory is never returned, so a
//! stale word still points to an `Ofd`; [`promoted`] re-reads the word after announcing itself.
#![allow(unsafe_code)]

use crate::ofd::{Ofd, Users};
use crate::process;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Descriptors at or above this are always foreign.
pub(crate) const LIMIT: usize = 1 << 20;
/// Descriptors up to here belong to stdio, whose buffers are filled by calls inside libc that we do
/// not see and that use the kernel's offset. They are always foreign.
pub(crate) const LAST_STANDARD: i32 = 2;
/// Bit of a candidate.
pub(crate) const CANDIDATE: u64 = 1;
/// Bit of a candidate whose offset someone else may move: another process, or a duplicate.
pub(crate) const SHARED: u64 = 2;
/// Bit of a candidate that was looked at once and found worth a second look.
pub(crate) const WAITED: u64 = 4;
/// The credit of a candidate starts at this bit.
pub(crate) const CREDIT_SHIFT: u32 = 8;

/// What a call costs besides its bytes, in bytes: entering the kernel takes about as long as it takes
/// the kernel to move a page.
pub(crate) const CALL: u64 = 4096;

/// The table. Zero pages until a descriptor is used. The section's name is known to `layout.ld`.
#[unsafe(link_section = ".bss.adit_descriptors")]
pub(crate) static TABLE: [AtomicU64; LIMIT] = [const { AtomicU64::new(0) }; LIMIT];

/// One more than the highest descriptor that ever had a word.
static HIGH: AtomicU32 = AtomicU32::new(0);

/// The word of `fd`.
#[inline]
pub(crate) fn word(fd: i32) -> Option<&'static AtomicU64> {
    TABLE.get(fd as u32 as usize)
}

/// Every descriptor that may have a word.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    0..HIGH.load(Ordering::SeqCst) as i32
}

/// Makes `fd` a candidate that will be looked at after `credit` bytes.
pub(crate) fn set_candidate(fd: i32, credit: u64, shared: bool) {
    let Some(word) = word(fd) else { return };
    HIGH.fetch_max(fd as u32 + 1, Ordering::SeqCst);
    let shared = if shared { SHARED } else { 0 };
    word.store(
        CANDIDATE | shared | (credit << CREDIT_SHIFT),
        Ordering::SeqCst,
    );
}

/// Makes `fd` a name of `ofd`, which must have been counted for it.
pub(crate) fn set_promoted(fd: i32, ofd: &'static Ofd) {
    if let Some(word) = word(fd) {
        HIGH.fetch_max(fd as u32 + 1, Ordering::SeqCst);
        word.store(ofd.word(), Ordering::SeqCst);
    }
}

/// What a word says.
pub(crate) enum Kind {
    Foreign,
    Candidate,
    Promoted(&'static Ofd),
}

/// Reads a word's meaning.
#[inline]
pub(crate) fn kind(word: u64) -> Kind {
    if word == 0 {
        Kind::Foreign
    } else if word & CANDIDATE != 0 {
        Kind::Candidate
    } else {
        // SAFETY: even words are written only by set_promoted, and the arena never frees.
        Kind::Promoted(unsafe { &*(word as *const Ofd) })
    }
}

/// The promoted description behind `fd`, held in use until the guard is dropped.
///
/// A `vfork` child has descriptors of its own but its parent's table, so it is given none.
#[inline]
pub(crate) fn promoted(fd: i32) -> Option<Users<'static>> {
    let word = word(fd)?;
    let seen = word.load(Ordering::Acquire);
    let Kind::Promoted(ofd) = kind(seen) else {
        return None;
    };
    if process::in_vfork_child() {
        return None;
    }
    let users = ofd.enter();
    (word.load(Ordering::SeqCst) == seen).then_some(users)
}
