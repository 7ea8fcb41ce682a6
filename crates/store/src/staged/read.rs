//! Reading without a lock that the copy would hold, but where it would never be left in peace.
//!
//! The pieces of the whole range are taken from the overlay at one instant. No write changes bytes in
//! place, so they stay what they were, but for two acts of a publisher, he writes to ranges of the base
//! file that were not staged when we looked, and the space of what he has retired is used again; and for
//! one of this process, which uses pages again that newer writes cover. Each shows in a number that moves
//! before: the file's publishing word and its mark up to which records are retired, in the pool, which
//! publishers of all processes move; and the epoch of this process. A reader that finds any of them moved
//! after its copy throws the copy away. Where staged bytes themselves went to the base file, the
//! publishing word says that too, and the reader throws away what it knew.
//!
//! All that holds of an overlay that has whatever a publisher may have written before, and names nothing
//! that is retired. So a reader looks at the publishing word first, and then whether its overlay lacks
//! anything that was logged by then, or the mark has moved: what other programs have done to a file that
//! is shared (`shared.rs`), and what this process has logged and waits with for the device, when somebody
//! has claimed the file since. One that finds the file taken away (everything is in the base file, and
//! others may be writing there by now) says so instead.
//!
//! # Safety
//!
//! The unsafe code copies to a program's buffers, with guards or by the kernel, under the caller's
//! promise about them.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use adit_pmem::copy::guarded_copy;
use adit_pmem::{BaseFile, Medium};
use adit_pool::FileGuard;
use rustix::io::Errno;

use super::error::{Error, Result};
use super::file::StagedFile;
use super::memory::{Cursor, total};
use super::overlay::{Piece, Source};
#[cfg(test)]
use super::shared::planted;

/// Zeros to copy from.
static ZEROS: [u8; 4096] = [0; 4096];

/// Copies that may be in vain before pages are not used again for a while.
const PATIENCE: u64 = 3;

/// Copies that may be in vain before nobody may publish until one is done.
const LAST_PATIENCE: u64 = 32;

/// Pieces that a read keeps without asking for memory.
const INLINE: usize = 8;

const NO_PIECE: Piece = Piece {
    offset: 0,
    len: 0,
    source: Source::Zeros,
};

/// A program's buffers, which a read fills.
type Into<'a> = Cursor<'a, *mut u8>;

/// What a copy is held against: where any of it has moved, the copy is thrown away.
struct Held {
    epoch: u64,
    /// The publishing word.
    word: u64,
    /// The mark that the overlay has followed. Pages that it names may be anybody's once that moves.
    mark: u64,
}

/// The pieces of a range.
struct Pieces {
    few: [Piece; INLINE],
    count: usize,
    more: Vec<Piece>,
}

impl Pieces {
    fn new() -> Self {
        Self {
            few: [NO_PIECE; INLINE],
            count: 0,
            more: Vec::new(),
        }
    }

    fn push(&mut self, piece: Piece) {
        match self.few.get_mut(self.count) {
            Some(place) => *place = piece,
            None => self.more.push(piece),
        }
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.few.iter().take(self.count).chain(&self.more)
    }
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Reads up to `into.len()` bytes; fewer at the end of the file only. What is read is the file at
    /// one instant: no write is seen in part.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        // SAFETY: the buffer is a slice.
        unsafe { self.read_into(offset, into.as_mut_ptr(), into.len()) }
    }

    /// Reads into a program's buffer; [`Error::Fault`] when that cannot be written.
    ///
    /// # Safety
    ///
    /// `into..into + len` is memory that the caller may overwrite, or addresses that fault; where they
    /// may fault, a handler that uses [`adit_pmem::fault::handle`] is installed.
    pub unsafe fn read_into(&self, offset: u64, into: *mut u8, len: usize) -> Result<usize> {
        // SAFETY: the caller vouches for the buffer.
        unsafe { self.readv_into(offset, &[(into, len)]) }
    }

    /// [`StagedFile::read_into`] several buffers, in order, as one read.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::read_into`], of each buffer.
    pub unsafe fn readv_into(&self, offset: u64, into: &[(*mut u8, usize)]) -> Result<usize> {
        let mut in_vain = 0_u64;
        let mut pin = None;
        let mut guard = None;
        loop {
            // SAFETY: the caller vouches for the buffers.
            if let Some(read) = unsafe { self.read_once(offset, into) }? {
                drop((guard, pin));
                return Ok(read);
            }
            in_vain += 1;
            // Where pages are used again all the time, a long copy would never be left in peace.
            if in_vain == PATIENCE {
                pin = Some(self.reuse.pin());
            }
            // The former one goes first.
            drop(guard.take());
            // Nor where others publish all the time, as each `fsync` of a file that is shared does. Without the lock nobody
            // begins to, or is done with it.
            if in_vain >= LAST_PATIENCE {
                guard = self.lock().ok().inspect(FileGuard::takes_long);
            }
        }
    }

    /// One attempt; `None` when a publisher moved, and the copy may be torn, or when something had to become
    /// durable before it could be shown.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::read_into`], of each buffer.
    pub(super) unsafe fn read_once(
        &self,
        offset: u64,
        into: &[(*mut u8, usize)],
    ) -> Result<Option<usize>> {
        // A child would read on from what it inherited, past whatever its parent does.
        self.stage.attachment().ensure_current()?;
        let len = total(into).unwrap_or(isize::MAX as usize);
        let mut pieces = Pieces::new();
        let Some(held) = self.resolve(offset, len as u64, &mut pieces)? else {
            return Ok(None);
        };
        let mut into = Cursor::new(into);
        let mut done = 0;
        let mut copied = Ok(());
        for piece in pieces.iter() {
            // SAFETY: the caller vouches for the buffers.
            copied = unsafe { self.copy(piece, &mut into) };
            if copied.is_err() {
                break;
            }
            done += piece.len as usize;
        }
        let unmoved = self.reuse.is_still(held.epoch)
            && self.version()? == held.word
            && self.mark()? == held.mark;
        // Behind the words, which may be another file's by now; and before any error is believed: the base file may have
        // gone the way of others.
        self.stage
            .attachment()
            .pool()
            .ensure_not_forgotten(self.file)?;
        copied?;
        Ok(unmoved.then_some(done))
    }

    /// The pieces of a range, and what a copy of them is held against. The word is looked at first, so that the overlay
    /// has everything that publishers up to then may have written to the base file. `None` where some of it is what
    /// this process waits with: it waits for the device as well then, and not under the file's lock.
    fn resolve(&self, offset: u64, len: u64, pieces: &mut Pieces) -> Result<Option<Held>> {
        let (word, guard) = self.current()?;
        let held = Held {
            epoch: self.reuse.epoch(),
            word,
            mark: self.followed_mark.load(Ordering::Acquire),
        };
        let view = self.look();
        let waiting = view.claimed_waiting(word);
        #[cfg(test)]
        let waiting = waiting.filter(|_| !planted::is(planted::Blind::Waiting));
        let Some(last) = waiting else {
            view.overlay
                .resolve(offset, len, |piece| pieces.push(piece));
            return Ok(Some(held));
        };
        drop((view, guard));
        self.settle_up_to(last)?;
        Ok(None)
    }

    /// What moves before bytes of the base file change that a reader may be copying.
    pub(super) fn version(&self) -> Result<u64> {
        Ok(self.stage.attachment().pool().version(self.file)?)
    }

    /// What moves before pages of the pool that an overlay may name are anybody's: the word up to which records are retired,
    /// as it is seen.
    pub(super) fn mark(&self) -> Result<u64> {
        let word = self.stage.attachment().pool().retired_word(self.file)?;
        Ok(self.mark_of(word))
    }

    /// The same of who has seen the word.
    #[inline]
    pub(super) fn mark_of(&self, mark: u64) -> u64 {
        #[cfg(test)]
        let followed = self.followed_mark.load(Ordering::Relaxed);
        #[cfg(test)]
        let mark = planted::unless(planted::Blind::Mark, mark, followed);
        mark
    }

    /// Copies a piece to where the buffers go on.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::read_into`].
    unsafe fn copy(&self, piece: &Piece, into: &mut Into<'_>) -> Result<()> {
        into.each(piece.len as usize, |done, at, part| {
            // SAFETY: the caller vouches for the buffers.
            unsafe { self.copy_part(piece, done as u64, at, part) }
        })
    }

    /// Copies `len` bytes of a piece, `skip` bytes into it.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::read_into`].
    unsafe fn copy_part(&self, piece: &Piece, skip: u64, into: *mut u8, len: usize) -> Result<()> {
        match piece.source {
            Source::Pool(offset) => {
                let medium = self.stage.attachment().pool().medium();
                // SAFETY: the caller vouches for the destination.
                unsafe { medium.read_into(offset + skip, into, len) }
                    .map_err(adit_pool::Error::from)?;
            }
            // SAFETY: the caller vouches for the destination.
            Source::Zeros => unsafe { zero(into, len) }?,
            Source::Base => {
                // SAFETY: the caller vouches for the destination.
                let read = match unsafe { self.base.read_into(piece.offset + skip, into, len) } {
                    Err(Errno::FAULT) => return Err(Error::Fault),
                    read => read?,
                };
                // Shorter than it was: somebody outside cut it. What is gone reads as zeros, as a
                // hole would.
                // SAFETY: the caller vouches for the destination.
                unsafe { zero(into.wrapping_add(read), len - read) }?;
            }
        }
        Ok(())
    }
}

/// Fills a part of a buffer with zeros.
///
/// # Safety
///
/// As for the destination of [`guarded_copy`].
unsafe fn zero(into: *mut u8, len: usize) -> Result<()> {
    for at in (0..len).step_by(ZEROS.len()) {
        let part = ZEROS.len().min(len - at);
        // SAFETY: the caller vouches for the destination; the source is a static array.
        unsafe { guarded_copy(into.wrapping_add(at), ZEROS.as_ptr(), part) }
            .map_err(|_| Error::Fault)?;
    }
    Ok(())
}
