//! A file of which only appends are staged.
//!
//! Mode `posix` promises an overwrite nothing that the file system does not give, and gives it faster in
//! place. So what lies below the end that the file had when it was staged, its *floor*, stays the base
//! file's alone as long as the file is staged: it is never staged, and the publisher never writes there.
//! What lies above is the pool's alone, whether it is published by now or not: an overwrite in place
//! would be undone by the replay of a record that is not retired yet. The floor does not move, so nobody
//! has to agree with anybody about where it is, and a write that has to be divided is not done at all.

use std::sync::atomic::{AtomicU64, Ordering};

use adit_pmem::{BaseFile, Medium};

use super::error::Result;
use super::file::StagedFile;

/// Where bytes of such a file are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// To the pool.
    Staged,
    /// To the base file.
    InPlace,
    /// Some here, some there: the file has to be published first, and staged anew.
    Divided,
}

/// See the module. Only writes that are [`Where::Staged`] may be given to the [`StagedFile`], and no
/// cuts.
#[derive(Debug)]
pub struct AppendsOnly {
    floor: u64,
    /// How often the base file was written, and how many of these writes are durable: a sync that is still
    /// under way must not make another one believe that there is nothing left to do.
    written: AtomicU64,
    synced: AtomicU64,
}

impl AppendsOnly {
    /// Of a file that nobody has written to since it was staged.
    pub fn of<M: Medium, B: BaseFile>(file: &StagedFile<M, B>) -> Result<Self> {
        // Where a dead process has left something, it may lie anywhere.
        let floor = if file.is_clean() { file.size()? } else { 0 };
        Ok(Self {
            floor,
            written: AtomicU64::new(0),
            synced: AtomicU64::new(0),
        })
    }

    /// Where `len` bytes at `offset` go.
    #[must_use]
    pub fn place(&self, offset: u64, len: u64) -> Where {
        if offset >= self.floor {
            Where::Staged
        } else if offset.saturating_add(len) <= self.floor {
            Where::InPlace
        } else {
            Where::Divided
        }
    }

    /// Says that the base file was written, below the floor. The time of that is the file's, although
    /// older appends may be published later.
    pub fn wrote_in_place<M: Medium, B: BaseFile>(&self, file: &StagedFile<M, B>) {
        self.written.fetch_add(1, Ordering::AcqRel);
        // The write is done, also where the file was taken away meanwhile.
        let _ = file.was_written();
    }

    /// Makes everything so far durable: all appends at one instant, after what was written in place.
    pub fn fsync<M: Medium, B: BaseFile>(&self, file: &StagedFile<M, B>) -> Result<()> {
        let written = self.written.load(Ordering::Acquire);
        if self.synced.load(Ordering::Acquire) < written {
            file.base().sync()?;
            self.synced.fetch_max(written, Ordering::AcqRel);
        }
        file.fsync()
    }
}
