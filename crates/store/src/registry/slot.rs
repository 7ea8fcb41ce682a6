//! The handle that an open file's I/O reports to.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fd::RawFd;

use super::layout::{Counters, Header, STRIPES, Slot, state};
use super::{Promise, Reason, settle};
use crate::clock;

/// One registered open file.
///
/// A handle is valid memory for as long as the process lives, whatever happens to the attachment.
/// After a fork the child's copies still lead to the **parent's** slot (harmless: the file is the
/// same one) until the child registers the file itself; [`is_stale`](Self::is_stale) tells.
#[derive(Clone, Copy)]
pub struct FileSlot {
    pub(crate) slot: &'static Slot,
    pub(super) header: &'static Header,
    pub(super) index: usize,
    pub(super) attachment: u32,
}

impl FileSlot {
    /// Counts a read of `bytes` served from the mapping.
    #[inline]
    pub fn served_read(&self, bytes: usize) {
        let counters = self.counters();
        bump(&counters.reads, 1);
        bump(&counters.read_bytes, bytes as u64);
    }

    /// Counts an overwrite of `bytes` served through the mapping. Does not mark the time: that is
    /// [`stored_now`](Self::stored_now).
    #[inline]
    pub fn served_write(&self, bytes: usize) {
        let counters = self.counters();
        bump(&counters.writes, 1);
        bump(&counters.write_bytes, bytes as u64);
    }

    /// Counts operations that were left to the kernel.
    #[inline]
    pub fn passed(&self, reason: Reason, count: u64) {
        if let Some(counter) = self.counters().passed.get(reason as usize) {
            bump(counter, count);
        }
    }

    /// Says that bytes of the file are being, or have just been, changed by stores.
    ///
    /// Call it after the stores, so that a settlement which ran meanwhile is not the last word, and
    /// also before them where a death in between matters. It costs one load of a shared line. Returns
    /// whether it set the mark.
    #[inline]
    pub fn stored_now(&self) -> bool {
        // The processor may look at the mark before the stores have left its store buffer. A
        // settler that clears the mark right then still enters the kernel before it takes the
        // time, which is longer than a store buffer lasts; a full fence here would cost every
        // write more than the mark itself.
        let pending = self.pending_word();
        let marks = pending.load(Ordering::Relaxed) == 0;
        if marks {
            pending.store(1, Ordering::Release);
        }
        marks
    }

    /// Whether stores have not yet advanced the kernel's modification time.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> bool {
        self.pending_word().load(Ordering::Relaxed) != 0
    }

    /// Advances the kernel's modification time if stores have not done so yet: for `fsync`,
    /// `fdatasync`, `fstat`, `close`, `exec`, hand-over and exit. `fd` is the program's descriptor.
    ///
    /// When it returns no settlement of what was stored before comes any more, of the monitor's either: the program may
    /// set the times itself.
    #[inline]
    pub fn settle(&self, fd: RawFd) {
        if self.behind() {
            settle::by_descriptor(self, fd);
        }
    }

    /// Whether the kernel's time may be behind: nobody has advanced it yet, or the monitor is just about to.
    #[inline]
    pub(super) fn behind(&self) -> bool {
        // In this order: the monitor shows itself before it takes the mark.
        self.pending_word().load(Ordering::SeqCst) != 0
            || self.settling_word().load(Ordering::SeqCst) != 0
    }

    /// Says that the kernel's time is right without a settlement, for example because the kernel
    /// itself has just written to the file.
    #[inline]
    pub fn settled(&self) {
        self.pending_word().store(0, Ordering::Release);
    }

    /// Says what the program's mode promises for this file.
    #[inline]
    pub fn has_promise(&self, promise: Promise) {
        let word = &self.slot.promise;
        if word.load(Ordering::Relaxed) != promise as u32 {
            word.store(promise as u32, Ordering::Relaxed);
        }
    }

    /// The program is about to close the descriptor: settles and gives the slot back.
    pub fn close(&self, fd: RawFd) {
        self.settle(fd);
        self.end();
    }

    /// Gives the slot back of a file whose times nothing is due for.
    pub fn end(&self) {
        let word = self.slot.state.load(Ordering::Relaxed);
        if word & state::MASK == state::OPEN {
            let closed = (word & !state::MASK) | state::CLOSED;
            // Losing this race means that the slot is no longer ours.
            let _ =
                self.slot
                    .state
                    .compare_exchange(word, closed, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether the process has another attachment by now (it is the child of a fork, or detached),
    /// so that the file should be registered anew.
    #[inline]
    #[must_use]
    pub fn is_stale(&self, registry: &super::Registry) -> bool {
        registry.attachment() != self.attachment
    }

    pub(super) fn pending_word(&self) -> &'static AtomicU32 {
        word(&self.header.pending, self.index)
    }

    pub(super) fn settling_word(&self) -> &'static AtomicU32 {
        word(&self.header.settling, self.index)
    }

    /// Notes that the process has taken the mark.
    pub(super) fn note_taken(&self) {
        self.slot.taken.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the kernel's time has been advanced.
    pub(super) fn note_settled(&self) {
        self.slot.settled_at.store(clock::now(), Ordering::Relaxed);
    }

    #[inline]
    fn counters(&self) -> &'static Counters {
        &self.slot.stripes[stripe()]
    }
}

#[inline]
fn word(words: &'static [AtomicU32; super::layout::SLOTS], index: usize) -> &'static AtomicU32 {
    &words[index % super::layout::SLOTS]
}

/// Adds without a locked instruction. Two threads that fall on one stripe may lose a count to each
/// other: the numbers are for people, and an exact sum would cost five times as much per call.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

/// The stripe of the calling thread.
#[inline]
fn stripe() -> usize {
    // Thread control blocks lie at page-aligned distances from each other, so their low bits say
    // nothing; the multiplication carries the differences into the top bits.
    let hashed = (super::thread::pointer() as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hashed >> 61) as usize % STRIPES
}
