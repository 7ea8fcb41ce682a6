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

/// A range that does not lie inside the medium, or no longer does: a real medium can be cut short or
/// fail under its mapping, which is reported here with a size of zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..{offset}+{len} lie outside a medium of {size} bytes")]
pub struct OutOfRange {
    /// First byte asked for.
    pub offset: u64,
    /// Number of bytes asked for.
    pub len: u64,
    /// Size of the medium.
    pub size: u64,
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

    /// Copies bytes out of the medium. Concurrent writers may tear it at 8-byte granularity; callers
    /// validate with versions or checksums.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange>;

    /// Copies bytes into the medium, past the cache where that pays. Durable after the next
    /// [`fence`](Self::fence) without a flush, and not to be published to others before it.
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange>;

    /// Starts the write-back of every cache line that `offset..offset+len` touches.
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange>;

    /// Waits until everything flushed or streamed by this thread before is durable, and orders it
    /// before later stores.
    fn fence(&self);
}
