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
//! stale word still points to an `Ofd`. What serves it is another matter: it goes when another thread
//! closes the descriptor, and the cell is used for the next file. So nothing but [`Users`] leaves this
//! module, who keep it in place: [`kind`] re-reads the word after announcing itself, and [`take`] has a
//! name of its own.
#![allow(unsafe_code)]

use crate::ofd::{Ofd, Users};
use crate::vfork;
use core::ops::Range;
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
pub(crate) fn all() -> Range<i32> {
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
pub(crate) fn set_promoted(fd: i32, ofd: &Users<'static>) {
    if let Some(word) = word(fd) {
        HIGH.fetch_max(fd as u32 + 1, Ordering::SeqCst);
        word.store(ofd.word(), Ordering::SeqCst);
    }
}

/// What a descriptor is.
pub(crate) enum Kind {
    Foreign,
    /// With this word.
    Candidate(u64),
    /// A name of this description, which stays what it is as long as it is held here.
    Promoted(Users<'static>),
}

/// What `fd` is. A `vfork` child has descriptors of its own but its parent's table, of which nothing is about them.
#[inline]
fn look(fd: i32) -> Kind {
    let Some(word) = word(fd) else {
        return Kind::Foreign;
    };
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen == 0 || vfork::in_child() {
            return Kind::Foreign;
        }
        let Some(ofd) = named_by(seen) else {
            return Kind::Candidate(seen);
        };
        let users = ofd.enter();
        if word.load(Ordering::SeqCst) == seen {
            return Kind::Promoted(users);
        }
    }
}

/// Before a `vfork` child uses `fd`: what its parent may have staged of it is the kernel's from here on.
#[cold]
#[inline(never)]
fn ask(fd: i32) -> Result<(), i32> {
    let is_named = word(fd).is_some_and(|word| word.load(Ordering::Acquire) != 0);
    if is_named && vfork::in_child() {
        vfork::before_use(fd)
    } else {
        Ok(())
    }
}

/// What `fd` is, for callers that do nothing else to it in a `vfork` child.
#[inline]
pub(crate) fn kind(fd: i32) -> Kind {
    let kind = look(fd);
    if matches!(kind, Kind::Foreign) && vfork::any_runs() {
        let _ = ask(fd);
    }
    kind
}

/// The promoted description behind `fd`, held in use until the guard is dropped; `None` where the kernel is to do the
/// call, and an error where that would be wrong.
// What it returns would go through memory otherwise.
#[inline(always)]
pub(crate) fn served(fd: i32) -> Result<Option<Users<'static>>, i32> {
    match look(fd) {
        Kind::Promoted(users) => Ok(Some(users)),
        Kind::Foreign if vfork::any_runs() => ask(fd).map(|()| None),
        Kind::Foreign | Kind::Candidate(_) => Ok(None),
    }
}

/// The same for callers that do nothing else to it in a `vfork` child.
#[inline]
pub(crate) fn promoted(fd: i32) -> Option<Users<'static>> {
    served(fd).ok().flatten()
}

/// Every promoted descriptor, with its description held in use. None is a `vfork` child's.
pub(crate) fn each_promoted() -> impl Iterator<Item = (i32, Users<'static>)> {
    let ours = if vfork::in_child() { 0..0 } else { all() };
    ours.filter_map(|fd| Some((fd, promoted(fd)?)))
}

/// Gives a descriptor another word than the one that was seen, unless it is something else by now.
pub(crate) fn change(fd: i32, seen: u64, new: u64) -> bool {
    let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
    // Looked at first: after a fork an exchange would copy the page, also one that fails.
    word(fd).is_some_and(|word| {
        word.load(fetch) == seen && word.compare_exchange(seen, new, set, fetch).is_ok()
    })
}

/// Makes `fd` foreign; the caller has the name that it was.
pub(crate) fn take(fd: i32) -> Option<Users<'static>> {
    let word = word(fd)?;
    // After a fork a store would copy the page.
    if word.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // No other thread uncounts the name, so there is at least one when this enters.
    named_by(word.swap(0, Ordering::SeqCst)).map(Ofd::enter)
}

/// Makes all descriptors foreign, whatever their descriptions are: this process has others by these numbers.
pub(crate) fn forget_all() {
    for word in all().filter_map(word) {
        word.store(0, Ordering::SeqCst);
    }
}

/// The description whose address a word is.
#[inline]
fn named_by(word: u64) -> Option<&'static Ofd> {
    let is_address = word != 0 && word & CANDIDATE == 0;
    // SAFETY: even words are written only by set_promoted and change, and the arena never frees.
    is_address.then(|| unsafe { &*(word as *const Ofd) })
}
