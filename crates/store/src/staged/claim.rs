//! One publisher per file: a claim in the file's entry of the pool.
//!
//! A publisher that is overtaken would write old bytes over newer ones whose records are already
//! retired, and nothing could bring those back. So publishers exclude each other for the whole
//! publication, without holding the file's lock, which appenders need. The claim names a slot; a dead
//! slot's claim is taken over. Its counter tells the former holder, should it live after all.

use adit_pmem::Medium;
use adit_pool::{Attachment, FileGuard, FileRef};

use super::error::{Error, Result};

const SLOT: u64 = 0xffff;

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
        let word = ((seen >> 16).wrapping_add(1) << 16) | (u64::from(attachment.slot()) + 1);
        guard.set_version(word)?;
        Ok(Claim {
            attachment,
            file: guard.file(),
            word,
        })
    }

    /// Whether the claim still stands.
    pub(super) fn stands(&self, guard: &FileGuard<'_, M>) -> Result<bool> {
        Ok(guard.version()? == self.word)
    }

    fn release(&self) -> Result<()> {
        let guard = self.attachment.lock_file(self.file)?;
        if self.stands(&guard)? {
            guard.set_version(self.word & !SLOT)?;
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
    let slot = ((word & SLOT) as u32).checked_sub(1)?;
    attachment
        .pool()
        .living_slots()
        .contains(&slot)
        .then_some(slot)
}

/// Gives up the claims of the dead: to be called before their slots are reused.
pub(super) fn bury_claims<M: Medium>(attachment: &Attachment<M>) -> Result<()> {
    for file in attachment.pool().files()? {
        let guard = match attachment.lock_file(file) {
            Err(adit_pool::Error::Forgotten) => continue,
            guard => guard?,
        };
        let word = guard.version()?;
        if word & SLOT != 0 && living_holder(attachment, word).is_none() {
            guard.set_version(word & !SLOT)?;
        }
    }
    Ok(())
}
