//! Blocks of the base file for what is staged.
//!
//! A write that was accepted must be publishable, or whoever opens the file waits for a lease that
//! nobody can give back. So a full file system is noticed at the write. Reserving its blocks takes a
//! call, which is as long as the write on tmpfs; it is made only where the file system has not much more
//! room than all that its pool can hold. Otherwise a megabyte at a time is taken on trust, until
//! something is published.

use std::sync::atomic::{AtomicU64, Ordering};

use adit_pmem::{BaseFile, Medium};
use rustix::io::Errno;

use super::error::{Error, Result};
use super::file::StagedFile;

/// Bytes staged between two looks at the file system.
const TRUST: u64 = 1 << 20;

/// What must be there beyond all that the pool can hold: others write meanwhile.
const SPARE: u64 = 64 << 20;

/// Bytes that may be staged before the file system is looked at again.
#[derive(Debug, Default)]
pub(super) struct Room(AtomicU64);

impl Room {
    /// Time has passed: others may have filled the file system.
    pub(super) fn is_old(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Takes some of it. The caller holds the file's lock, so nobody else does; that time has passed may be missed once.
    fn take(&self, len: u64) -> bool {
        let left = self.0.load(Ordering::Relaxed).checked_sub(len);
        left.inspect(|left| self.0.store(*left, Ordering::Relaxed))
            .is_some()
    }
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Makes sure that the file system has room for these bytes of the base file when they are
    /// published. [`Error::NoSpace`] when it has not, with nothing done.
    #[inline]
    pub(super) fn make_publishable(&self, offset: u64, len: u64) -> Result<()> {
        if self.room.take(len) {
            return Ok(());
        }
        self.look_for_room(offset, len)
    }

    #[cold]
    #[inline(never)]
    fn look_for_room(&self, offset: u64, len: u64) -> Result<()> {
        let pool = self.stage.attachment().pool();
        // A pool of which not all can be mapped may hold anything.
        let most = pool.chunk_count().map(|count| pool.geometry().chunk(count));
        let enough = most
            .unwrap_or(u64::MAX)
            .saturating_add(SPARE)
            .saturating_add(len);
        if self.base.available().is_ok_and(|there| there >= enough) {
            self.room.0.store(TRUST, Ordering::Relaxed);
            return Ok(());
        }
        match self.base.reserve(offset, len) {
            Err(Errno::NOSPC | Errno::DQUOT) => Err(Error::NoSpace),
            // Where nothing can be reserved nothing is promised, and publishing tells.
            _ => Ok(()),
        }
    }
}
