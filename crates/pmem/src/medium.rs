//! The one narrow seam between Adit's persistent structures and the memory they live in.
//!
//! Logs, allocators and superblocks never touch memory directly: they go through [`Medium`], so that
//! the same code runs on a mapped file (`dax`, `ram`, `cached`) and on the simulated medium that the
//! crash enumerator drives. The crash model both sides agree on is `docs/crash-model.md`: aligned
//! 8-byte stores are atomic; between two fences any subset of the outstanding cache lines may be
//! durable, in any order; after a fence, everything flushed or streamed before it is durable.
//!
//! Offsets are bytes from the start of the medium. An implementation checks every range and panics
//! never: a range outside the medium is a bug of the caller, reported as [`OutOfRange`].
//!
//! # Safety
//!
//! The unsafe code copies between the medium and memory of a program. The invariant is the caller's
//! promise about that memory; it is reached by guarded copies only, and no reference to it is formed.
#![allow(unsafe_code)]

use rustix::io::Errno;

use crate::copy::{Fault, LINE, guarded_copy};
use crate::in_words;
use crate::words::Words;

/// Bytes that travel at once where a medium has no direct way to a program's memory.
const BOUNCE: usize = 4096;

/// A range that does not lie inside the medium, or no longer does: a real medium can be cut short, fail, or
/// find no space for what is changed, under its mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..{offset}+{len} {}", self.what())]
pub struct OutOfRange {
    /// First byte asked for.
    pub offset: u64,
    /// Number of bytes asked for.
    pub len: u64,
    /// Size of the medium; zero where it was lost.
    pub size: u64,
    /// What the kernel says of a range that was lost.
    pub errno: Option<Errno>,
}

impl OutOfRange {
    /// A range that never lay inside a medium of that size.
    #[must_use]
    pub fn outside(offset: u64, len: u64, size: u64) -> Self {
        Self {
            offset,
            len,
            size,
            errno: None,
        }
    }

    /// A range that the medium could not reach any more, or could not change.
    #[must_use]
    pub fn lost(offset: u64, len: u64, errno: Errno) -> Self {
        Self {
            offset,
            len,
            size: 0,
            errno: Some(errno),
        }
    }

    fn what(&self) -> String {
        match self.errno {
            Some(errno) => format!("of the medium cannot be used: {}", in_words(errno)),
            None => format!("lie outside a medium of {} bytes", self.size),
        }
    }
}

/// Why bytes did not get from a program's memory to a medium, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The medium's range: as everywhere.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The program's memory cannot be accessed.
    #[error("the program's memory could not be accessed")]
    Fault,
}

impl From<Fault> for TransferError {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// Byte-addressable storage that may lose unflushed stores when the system crashes.
///
/// Several processes may share the bytes, so no method hands out references to them: words are
/// accessed atomically, ranges are copied.
pub trait Medium: Send + Sync {
    /// Size in bytes. Grows when the pool file grows; never shrinks while mapped.
    fn size(&self) -> u64;

    /// Loads the aligned 8-byte word at `offset` (acquire ordering).
    fn load(&self, offset: u64) -> Result<u64, OutOfRange>;

    /// Stores the aligned 8-byte word at `offset` (release ordering). Not durable before
    /// [`flush`](Self::flush) of its line and a [`fence`](Self::fence).
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange>;

    /// Compares and swaps the aligned 8-byte word at `offset` (sequentially consistent).
    /// `Ok(Ok(old))` when swapped, `Ok(Err(seen))` when another value was there.
    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange>;

    /// `N` words that follow each other from an aligned offset on, to be used again and again. Where they do not lie in the
    /// medium this fails, or each use of them does.
    fn words<const N: usize>(&self, offset: u64) -> Result<Words<'_, N>, OutOfRange>
    where
        Self: Sized,
    {
        Ok(Words::asking(self, offset))
    }

    /// Copies bytes out of the medium. Concurrent writers may tear it at 8-byte granularity; callers
    /// validate with versions or checksums.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange>;

    /// Copies bytes into the medium, past the cache where that pays. Durable after the next
    /// [`fence`](Self::fence) without a flush, and not to be published to others before it.
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange>;

    /// [`write_streaming`](Self::write_streaming) of one line to a multiple of its length.
    fn write_line(&self, offset: u64, line: &[u8; LINE]) -> Result<(), OutOfRange> {
        self.write_streaming(offset, line)
    }

    /// Two [`write_streaming`](Self::write_streaming) at once, in no order.
    fn write_both(&self, one: (u64, &[u8]), other: (u64, &[u8])) -> Result<(), OutOfRange> {
        self.write_streaming(one.0, one.1)?;
        self.write_streaming(other.0, other.1)
    }

    /// [`read`](Self::read) into memory of a program, which may be inaccessible and which others may
    /// change meanwhile. After an error some bytes may have arrived.
    ///
    /// # Safety
    ///
    /// `into..into + len` is memory that the caller may overwrite, or addresses that fault; where they
    /// may fault, a handler that uses [`crate::fault::handle`] is installed.
    unsafe fn read_into(
        &self,
        offset: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<(), TransferError> {
        let mut block = [0; BOUNCE];
        for at in (0..len).step_by(BOUNCE) {
            let block = &mut block[..BOUNCE.min(len - at)];
            self.read(offset + at as u64, block)?;
            // SAFETY: the caller vouches for the destination; the source is a local array.
            unsafe { guarded_copy(into.wrapping_add(at), block.as_ptr(), block.len())? };
        }
        Ok(())
    }

    /// [`write_streaming`](Self::write_streaming) from memory of a program, which may be inaccessible
    /// and which others may change meanwhile. After an error some bytes may have arrived.
    ///
    /// # Safety
    ///
    /// `from..from + len` is memory that may be read, or addresses that fault; where they may fault, a
    /// handler that uses [`crate::fault::handle`] is installed.
    unsafe fn write_streaming_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), TransferError> {
        let mut block = [0; BOUNCE];
        for at in (0..len).step_by(BOUNCE) {
            let block = &mut block[..BOUNCE.min(len - at)];
            // SAFETY: the caller vouches for the source; the destination is a local array.
            unsafe { guarded_copy(block.as_mut_ptr(), from.wrapping_add(at), block.len())? };
            self.write_streaming(offset + at as u64, block)?;
        }
        Ok(())
    }

    /// [`write_streaming_from`](Self::write_streaming_from), to where nothing was used for so long that it
    /// is in no cache: that may be worth another kind of store.
    ///
    /// # Safety
    ///
    /// As for [`write_streaming_from`](Self::write_streaming_from).
    unsafe fn write_cold_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), TransferError> {
        // SAFETY: the caller vouches for the source.
        unsafe { self.write_streaming_from(offset, from, len) }
    }

    /// All of `offset..offset + len` is about to be written, perhaps for the first time by this process:
    /// what can be prepared for all of it at once, is.
    fn expect_writes(&self, _offset: u64, _len: u64) {}

    /// Starts the write-back of every cache line that `offset..offset+len` touches.
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange>;

    /// Waits until everything flushed or streamed by this thread before is durable, and orders it
    /// before later stores. Where the medium can fail at that, [`sound`](Self::sound) tells.
    fn fence(&self);

    /// Orders what was flushed or streamed by this thread before what is published to others next.
    /// Durable it is only after a [`fence`](Self::fence), also one of another thread; until then a
    /// crash of the system may keep what comes later and lose what came before. So it is enough where
    /// a checksum tells, and nothing is promised yet. Cheap, where a fence is not.
    fn order(&self) {
        self.fence();
    }

    /// Whether a fence waits for a device. Then it is worth a checksum of any length to spare one.
    fn fence_is_slow(&self) -> bool {
        false
    }

    /// Fails when a fence of this process failed: what it should have made durable may be lost. A
    /// promise is given only after asking.
    fn sound(&self) -> Result<(), OutOfRange> {
        Ok(())
    }

    /// Somebody has made the medium larger, as the caller knows: makes its first `size` bytes accessible,
    /// where that can be. [`size`](Self::size) tells whether it could.
    fn reach(&self, _size: u64) {}

    /// Nobody else uses the medium, and nothing that was stored without being flushed is wanted any
    /// more. A medium may need this to agree with what it holds.
    fn begin_anew(&self) -> Result<(), OutOfRange> {
        Ok(())
    }
}
