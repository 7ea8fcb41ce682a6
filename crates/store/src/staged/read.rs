//! Reading without a lock that the copy would hold.
//!
//! The pieces of the whole range are taken from the overlay at one instant. No write changes bytes in
//! place, so they stay what they were, but for two acts of the publisher: it writes to ranges of the
//! base file that were not staged when we looked, and it frees space in the pool. Before either, the
//! file's epoch moves. A reader that finds the epoch moved after its copy throws the copy away.

use std::sync::atomic::{Ordering, fence};

use adit_pmem::{BaseFile, Medium};

use super::error::Result;
use super::file::StagedFile;
use super::overlay::{Piece, Source};

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Reads up to `into.len()` bytes; fewer at the end of the file only. What is read is the file at
    /// one instant: no write is seen in part.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        loop {
            if let Some(read) = self.read_once(offset, into)? {
                return Ok(read);
            }
        }
    }

    /// One attempt; `None` when the publisher moved, and the copy may be torn.
    pub(super) fn read_once(&self, offset: u64, into: &mut [u8]) -> Result<Option<usize>> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut pieces = Vec::with_capacity(4);
        self.look()
            .overlay
            .resolve(offset, into.len() as u64, |piece| pieces.push(piece));
        let mut done = 0;
        for piece in &pieces {
            let len = piece.len as usize;
            self.copy(piece, &mut into[done..done + len])?;
            done += len;
        }
        fence(Ordering::Acquire);
        Ok((self.epoch.load(Ordering::Relaxed) == epoch).then_some(done))
    }

    fn copy(&self, piece: &Piece, into: &mut [u8]) -> Result<()> {
        match piece.source {
            Source::Pool(offset) => {
                let medium = self.stage.attachment().pool().medium();
                medium.read(offset, into).map_err(adit_pool::Error::from)?;
            }
            Source::Zeros => into.fill(0),
            Source::Base => {
                let read = self.base.read_at(piece.offset, into)?;
                // Shorter than it was: somebody outside cut it. What is gone reads as zeros, as a
                // hole would.
                into[read..].fill(0);
            }
        }
        Ok(())
    }
}
