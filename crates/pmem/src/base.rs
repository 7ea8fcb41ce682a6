//! The seam under which a file of the base file system sits, when staged bytes are folded into it.
//!
//! The publisher and the recovery reach base files only through [`BaseFile`], so that the same code
//! runs on descriptors and on the simulated file system of the crash enumerator. What may be lost is
//! the same on both (`docs/crash-model.md`): everything since the last [`sync`](BaseFile::sync), page
//! by page and in any order; metadata of files in order; a clone extent by extent; an exchange
//! entirely or not at all.
//!
//! # Safety
//!
//! The unsafe code copies to memory of a program, guarded, under its caller's promise about it.
#![allow(unsafe_code)]

use crate::copy::guarded_copy;
use rustix::io::Errno;

/// One open file of the base file system. All offsets and lengths are in bytes.
pub trait BaseFile: Send + Sync {
    /// Present size.
    fn size(&self) -> Result<u64, Errno>;

    /// Reads up to `into.len()` bytes; fewer at the end of the file only.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno>;

    /// [`read_at`](Self::read_at) into memory of a program, which may be inaccessible (`EFAULT`) and
    /// which others may change meanwhile.
    ///
    /// # Safety
    ///
    /// `into..into + len` is memory that the caller may overwrite, or addresses that fault; where they
    /// may fault, a handler that uses [`crate::fault::handle`] is installed.
    unsafe fn read_into(&self, offset: u64, into: *mut u8, len: usize) -> Result<usize, Errno> {
        let mut block = [0; 4096];
        let mut done = 0;
        while done < len {
            let block_len = block.len().min(len - done);
            let read = self.read_at(offset + done as u64, &mut block[..block_len])?;
            // SAFETY: the caller vouches for the destination; the source is a local array.
            unsafe { guarded_copy(into.wrapping_add(done), block.as_ptr(), read) }
                .map_err(|_| Errno::FAULT)?;
            done += read;
            if read < block_len {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `from`, growing the file as needed. After an error, or the death of the process,
    /// a leading part may have been written.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno>;

    /// Cuts or extends the file (`ftruncate`).
    fn set_size(&self, size: u64) -> Result<(), Errno>;

    /// Reserves blocks without changing the size (`fallocate` with `KEEP_SIZE`), or `ENOSPC`.
    fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno>;

    /// Bytes that may still be taken from the file system; `u64::MAX` where nobody counts them.
    fn available(&self) -> Result<u64, Errno> {
        Ok(u64::MAX)
    }

    /// Makes a range read as zeros and frees its blocks (`fallocate` with `PUNCH_HOLE`).
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno>;

    /// Shares blocks of `from` into this file (`FICLONERANGE`): block-aligned, not atomic against a
    /// crash, may be repeated.
    fn clone_range(
        &self,
        offset: u64,
        from: &Self,
        from_offset: u64,
        len: u64,
    ) -> Result<(), Errno>;

    /// Swaps blocks with `other` (`XFS_IOC_EXCHANGE_RANGE`): block-aligned, inside both files, atomic
    /// against a crash but not durable before a sync. Repeating it undoes it.
    fn exchange_range(
        &self,
        offset: u64,
        other: &Self,
        other_offset: u64,
        len: u64,
    ) -> Result<(), Errno>;

    /// Whether [`exchange_range`](Self::exchange_range) of these ranges is possible, as far as that can
    /// be known without doing it.
    fn may_exchange(
        &self,
        _offset: u64,
        _other: &Self,
        _other_offset: u64,
        _len: u64,
    ) -> Result<(), Errno> {
        Ok(())
    }

    /// Sets the time of the last change (`futimens`), nanoseconds since 1970. Where there are no times
    /// nothing happens.
    fn set_modified(&self, _nanoseconds: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes bytes, size and block mapping durable (`fsync`). Not the name: that needs a sync of the
    /// directory.
    fn sync(&self) -> Result<(), Errno>;
}
