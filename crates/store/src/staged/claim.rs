//! One publisher per file: a claim in the file's entry of the pool.
//!
//! A publisher that is overtaken would write old bytes over newer ones whose records are already
//! retired, and nothing could bring those back. So publishers exclude each other for the whole
//! publication, without holding the file's lock, which appenders need. The claim names a slot; a dead
//! slot's claim is taken over. Its counter tells the former holder, should it live after all, and the
//! readers of all processes, who throw their copies away when it moved.

use adit_pmem::Medium;
use adit_pool::{Attachment, FileGuard, FileRef, PUBLISHER, SHARED};

use super::error::{Error, Result};

/// Bits of the publishing word that count claims.
const CLAIMS: u64 = 0x7f_ffff << 16;
/// Bits that count how often staged bytes were relinked, and the bit that says they are right now.
const RELINKS: u64 = 0x7f_ffff << 40;
const RELINKING: u64 = 1 << 63;

/// Whether staged bytes are going to the base file just now, or were when their publisher failed. The
/// file's lock is held meanwhile: who holds it and sees this knows that the publisher failed.
pub(super) fn is_relinking(word: u64) -> bool {
    word & RELINKING != 0
}

/// Whether staged bytes went to the base file between two looks at the publishing word: what refers to
/// them has to be thrown away, not only what was copied meanwhile.
pub(super) fn relinked_between(word: u64, other: u64) -> bool {
    (word ^ other) & (RELINKS | RELINKING) != 0
}

/// Whether somebody has claimed the file between two looks at the publishing word.
pub(super) fn claimed_between(word: u64, other: u64) -> bool {
    (word ^ other) & CLAIMS != 0
}

/// The word when a relink is over, and nobody publishes.
pub(super) fn relinked(word: u64) -> u64 {
    let count = word.wrapping_add(1 << 40) & RELINKS;
    word & (CLAIMS | SHARED) | count
}

/// The word when who has this seat publishes, whoever did before: the count tells him, should he live after all.
pub(super) fn claimed(word: u64, slot: u32) -> u64 {
    let count = word.wrapping_add(1 << 16) & CLAIMS;
    word & (RELINKS | RELINKING | SHARED) | count | (u64::from(slot) + 1)
}

/// The word when nobody publishes any more, whatever has become of it.
pub(super) fn unclaimed(word: u64) -> u64 {
    word & !PUBLISHER
}

/// The right to publish a file, given up when dropped.
pub(super) struct Claim<'a, M: Medium> {
    attachment: &'a Attachment<M>,
    file: FileRef,
    word: u64,
}

impl<'a, M: Medium> Claim<'a, M> {
    /// Claims the file that `guard` holds.
    pub(super) fn take(
        attachment: &'a Attachment<M>,
        guard: &FileGuard<'_, M>,
    ) -> Result<Claim<'a, M>> {
        let seen = guard.version()?;
        if let Some(slot) = living_holder(attachment, seen) {
            return Err(Error::Publishing { slot });
        }
        let word = claimed(seen, attachment.slot());
        guard.set_version(word)?;
        Ok(Claim {
            attachment,
            file: guard.file(),
            word,
        })
    }

    /// Whether the claim still stands.
    pub(super) fn stands(&self, guard: &FileGuard<'_, M>) -> Result<bool> {
        Ok(self.is_of(guard.version()?))
    }

    /// Whether a publishing word is that of this claim. The file may have come to be shared since.
    fn is_of(&self, word: u64) -> bool {
        (word ^ self.word) & !SHARED == 0
    }

    /// Staged bytes are going to change: from here on nobody reads them.
    pub(super) fn begin_relinking(&mut self, guard: &FileGuard<'_, M>) -> Result<()> {
        self.change(guard, self.word | RELINKING)
    }

    /// They are the base file's, and nothing refers to them any more.
    pub(super) fn end_relinking(&mut self, guard: &FileGuard<'_, M>) -> Result<()> {
        if !is_relinking(self.word) {
            return Ok(());
        }
        self.change(guard, relinked(self.word) | self.word & PUBLISHER)
    }

    fn change(&mut self, guard: &FileGuard<'_, M>, word: u64) -> Result<()> {
        let word = word | guard.version()? & SHARED;
        guard.set_version(word)?;
        self.word = word;
        // What happens next is done by the kernel, or by other cores.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    fn release(&self) -> Result<()> {
        match self.attachment.lock_file(self.file) {
            Ok(guard) if self.stands(&guard)? => {
                guard.set_version(unclaimed(guard.version()?))?;
            }
            Ok(_) => {}
            Err(error @ adit_pool::Error::NotAttached) => return Err(error.into()),
            // Whoever holds the lock was stopped over it, or it waits for a repair that fails here, where a sync
            // has failed. The claim has to go all the same: nobody could publish the file any more while we live.
            Err(_) => {
                let ours = |word| self.is_of(word).then_some(unclaimed(word));
                self.attachment.pool().update_version(self.file, ours)?;
            }
        }
        Ok(())
    }
}

impl<M: Medium> Drop for Claim<'_, M> {
    fn drop(&mut self) {
        // A claim that cannot be given up, because the file was forgotten or the pool fails, ends with
        // our slot.
        let _ = self.release();
    }
}

fn living_holder<M: Medium>(attachment: &Attachment<M>, word: u64) -> Option<u32> {
    let slot = ((word & PUBLISHER) as u32).checked_sub(1)?;
    attachment
        .pool()
        .living_slots()
        .contains(&slot)
        .then_some(slot)
}

/// Gives up the claims of the dead: to be called before their slots are reused, when a claim would be that
/// of somebody who knows nothing of it. Without the files' locks, which a stopped program may hold.
pub(super) fn bury_claims<M: Medium>(attachment: &Attachment<M>) -> Result<()> {
    let pool = attachment.pool();
    for file in pool.files()? {
        let dead = |word: u64| word & PUBLISHER != 0 && living_holder(attachment, word).is_none();
        match pool.update_version(file, |word| dead(word).then_some(unclaimed(word))) {
            Err(adit_pool::Error::Forgotten) => {}
            buried => drop(buried?),
        }
    }
    Ok(())
}
