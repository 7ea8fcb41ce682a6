//! The first bytes of short files, in the modes in which a write is durable when it returns.
//!
//! To stage a file takes two conversations with the monitor, a lease, an entry, and publishing, which a file of one
//! page never repays. But what such a file is mostly made of the kernel does as the mode promises: bytes that are
//! appended within one block are in a file whole or not at all, for whoever reads and after a power cut. The size moves
//! when they are in the block, and a journal has the size only when they are on the medium; `RWF_DSYNC` waits for both.
//! Behind a page cache they have to begin on the edge of a block, as one that has a place on the medium already may be
//! written later than the size; and ext4 is left out there: it counts the size when it has handed a new block to the device,
//! not when the device has written it.
//!
//! So a file's first blocks are the kernel's, and it is staged when a write is none, or when there are more of them
//! than staging costs. In mode `sync` nothing has to be whole, and any write will do. In mode `atomic` it would be a
//! promise broken, as what is not committed must not be in the file after a crash; but in memory, of which a crash leaves
//! nothing, any write will do there, too: only commits are whole in that mode.

use crate::{descriptors, init};
use adit_pmem::MediumKind;
use adit_store::staged::Mode;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Writes of a description that go to the kernel before its file is staged: what staging costs there, roughly. In memory
/// that is as much as some hundred writes take, besides the copy that publishes them.
const IN_MEMORY: u32 = 256;
const ON_DAX: u32 = 2;
/// Each waits for the device, here as there.
const ON_DISK: u32 = 16;

/// File systems that set the size when the device has written the block: XFS, btrfs.
const LATE: [u64; 2] = [0x5846_5342, 0x9123_683e];

/// Of a file system that sets the size before.
const TOO_EARLY: u32 = u32::MAX;

/// The largest block.
const LARGEST: u64 = 4096;

/// How many more writes are the kernel's. See the module.
pub(crate) struct Blocks {
    left: AtomicU32,
    /// Zero while it is not known; or [`TOO_EARLY`].
    size: AtomicU32,
    which: Which,
    /// Set while one of them is under way: of two that begin at the same end the second would be an overwrite.
    busy: AtomicBool,
}

/// One such write, while it is under way.
pub(crate) struct Alone<'a>(&'a AtomicBool);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Which writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All: none has to be whole.
    All,
    /// Appends within a block.
    Within,
    /// Appends that begin a block.
    First,
}

impl Blocks {
    /// Of a file on this medium; none where nothing is to be left to the kernel.
    pub(crate) fn new(mode: Mode, kind: MediumKind) -> Self {
        let most = match (mode, kind) {
            (Mode::Posix, _) | (_, MediumKind::Other) => 0,
            (_, MediumKind::Ram) => IN_MEMORY,
            (Mode::Atomic, _) => 0,
            (_, MediumKind::Dax) => ON_DAX,
            (_, MediumKind::Cached) => ON_DISK,
        };
        let size = if kind == MediumKind::Ram { LARGEST } else { 0 };
        let which = match (mode, kind) {
            (Mode::Sync, _) | (Mode::Atomic, MediumKind::Ram) => Which::All,
            (_, MediumKind::Ram | MediumKind::Dax) => Which::Within,
            _ => Which::First,
        };
        Self {
            left: AtomicU32::new(init::kernel_blocks().map_or(most, |asked| asked.min(most))),
            size: AtomicU32::new(size as u32),
            which,
            busy: AtomicBool::new(false),
        }
    }

    pub(crate) fn none() -> Self {
        Self::new(Mode::Atomic, MediumKind::Other)
    }

    /// Whether there is any to ask about.
    #[inline]
    pub(crate) fn are_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }

    /// Whether `len` bytes at `start` are such a write, which keeps others out until it is done.
    pub(crate) fn take(&self, fd: i32, start: u64, len: u64) -> Option<Alone<'_>> {
        self.take_if(|| self.is_block(fd, start, len))
    }

    /// The same of a write of which only the kernel knows where it begins.
    pub(crate) fn take_anywhere(&self) -> Option<Alone<'_>> {
        self.take_if(|| false)
    }

    fn take_if(&self, is_block: impl FnOnce() -> bool) -> Option<Alone<'_>> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        let alone = Alone(&self.busy);
        let left = self.left.load(Ordering::Relaxed);
        let taken = left > 0 && (self.which == Which::All || is_block());
        // One that is none ends it: what follows would be none either, or leave the first ones behind.
        self.left
            .store(if taken { left - 1 } else { 0 }, Ordering::Relaxed);
        taken.then_some(alone)
    }

    fn is_block(&self, fd: i32, start: u64, len: u64) -> bool {
        let Some(size) = self.block(fd) else {
            return false;
        };
        let before = start % size;
        let fits = len <= size - before && (self.which == Which::Within || before == 0);
        let end = || descriptors::regular_file(fd).map(|stat| stat.st_size as u64);
        fits && end() == Some(start)
    }

    /// Bytes of a block of the file system, or less; none of one that sets sizes too early.
    fn block(&self, fd: i32) -> Option<u64> {
        let known = self.size.load(Ordering::Relaxed);
        if known != 0 {
            return (known != TOO_EARLY).then_some(u64::from(known));
        }
        let late = |fs: &libc::statfs| LATE.contains(&(fs.f_type as u64 & 0xffff_ffff));
        let size = match descriptors::file_system(fd) {
            Some(fs) if self.which == Which::Within || late(&fs) => {
                Some((fs.f_bsize as u64).clamp(1, LARGEST))
            }
            _ => None,
        };
        let known = size.map_or(TOO_EARLY, |size| size as u32);
        self.size.store(known, Ordering::Relaxed);
        size
    }
}
