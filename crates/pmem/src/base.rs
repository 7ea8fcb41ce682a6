//! The seam under which a file of the base file system sits, when staged bytes are folded into it.
//!
//! The publisher and the recovery reach base files only through [`BaseFile`], so that the same code
//! runs on descriptors and on the simulated file system of the crash enumerator. What may be lost is
//! the same on both (`docs/crash-model.md`): everything since the last [`sync`](BaseFile::sync), page
//! by page and in any order; metadata of files in order; a clone extent by extent; an exchange
//! entirely or not at all.

use rustix::io::Errno;

/// One open file of the base file system. All offsets and lengths are in bytes.
pub trait BaseFile: Send + Sync {
    /// Present size.
    fn size(&self) -> Result<u64, Errno>;

    /// Reads up to `into.len()` bytes; fewer at the end of the file only.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno>;

    /// Writes all of `from`, growing the file as needed. After an error, or the death of the process,
    /// a leading part may have been written.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno>;

    /// Cuts or extends the file (`ftruncate`).
    fn set_size(&self, size: u64) -> Result<(), Errno>;

    /// Reserves blocks without changing the size (`fallocate` with `KEEP_SIZE`), or `ENOSPC`.
    fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno>;

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

    /// Makes bytes, size and block mapping durable (`fsync`). Not the name: that needs a sync of the
    /// directory.
    fn sync(&self) -> Result<(), Errno>;
}
