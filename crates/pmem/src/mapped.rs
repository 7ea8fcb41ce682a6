//! The real medium: a file in memory.
//!
//! A [`MappedMedium`] reserves far more addresses than the file has bytes, so that the file can grow
//! without moving; what is not mapped yet is outside its size and refused.
//!
//! What makes a store durable depends on the medium, and the type knows: on `dax` the write-back and
//! the fence do; on `ram` nothing has to; on `cached` a kernel sync does, which
//! [`CachedMedium`](crate::CachedMedium) asks for and this type does not. On the latter two,
//! [`Medium::flush`] and [`Medium::fence`] therefore only order.
//!
//! Another process, or an outsider, can cut the file short under the mapping, or its device can fail.
//! Every access is guarded, so this is no signal but an error: the access reports the range with a
//! medium of size zero, and [`MappedMedium::damage`] remembers the first such place.
//!
//! # Safety
//!
//! The unsafe code accesses the window. The invariant: an access is made only after its range was
//! checked against `size`, and `size` grows only after the window was mapped up to it, so addresses
//! are the window's own, which lives as long as the medium. Other processes change the bytes at any
//! time, so they are reached by single instructions and copies in assembly only, never by reference.
#![allow(unsafe_code)]

use crate::copy::{
    Fault, LINE, guarded_copy, guarded_copy_line, guarded_copy_streaming,
    guarded_copy_streaming_volatile, guarded_probe,
};
use crate::detect::MediumKind;
use crate::flush;
use crate::in_words;
use crate::map::{Access, MapError, PAGE, Synchronous, Window};
use crate::medium::{Medium, OutOfRange, TransferError};
use crate::word;
use crate::words::Words;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

/// What makes a store to a mapped medium durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Write-back and fence.
    Dax,
    /// Nothing: it is as durable as it gets once stored.
    Ram,
    /// A kernel sync: [`CachedMedium`](crate::CachedMedium).
    Cached,
}

impl Persistence {
    /// The persistence of a kind of medium; none for a medium that Adit leaves alone.
    pub fn of(kind: MediumKind) -> Option<Persistence> {
        match kind {
            MediumKind::Dax => Some(Persistence::Dax),
            MediumKind::Ram => Some(Persistence::Ram),
            MediumKind::Cached => Some(Persistence::Cached),
            MediumKind::Other => None,
        }
    }
}

/// Why a file could not become a medium, or could not grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MediumError {
    /// The file holds less than was to be mapped.
    #[error("the file holds {actual} bytes, {wanted} were to be mapped")]
    TooShort {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes there.
        actual: u64,
    },
    /// The size is beyond the addresses reserved for the medium.
    #[error("{wanted} bytes do not fit the {reserved} bytes of addresses reserved")]
    BeyondReserve {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes reserved.
        reserved: u64,
    },
    /// The medium should be persistent memory, but the kernel refuses a synchronous mapping.
    #[error("the kernel refuses to map the file synchronously (MAP_SYNC)")]
    NotSynchronous,
    /// The mapping failed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The kernel refused to say how long the file is.
    #[error("cannot examine the file: {}", in_words(*.0))]
    Examine(Errno),
}

/// A range that the medium lost while it was mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// First byte of the access that failed.
    pub offset: u64,
}

/// A file, mapped and growing, as a [`Medium`].
#[derive(Debug)]
pub struct MappedMedium {
    window: Window,
    persistence: Persistence,
    /// Whether every mapping must be made with `MAP_SYNC`.
    synchronous: bool,
    size: AtomicU64,
    /// Set when forked children do not get it.
    kept: AtomicBool,
    /// Offset of the first failed access plus one; zero if none failed.
    damage: AtomicU64,
}

/// From this length on, streaming wins over plain stores on media without durability, too: the
/// destination is hardly in the cache any more, and the copy does not wash the cache out. Below, a
/// destination that was recently used makes plain stores several times faster.
const STREAM_VOLATILE_FROM: usize = 64 << 10;

/// The same, where the caller knows that the destination is not in the cache.
const STREAM_COLD_FROM: usize = 2 << 10;

/// Around a page that is looked at, the kernel maps what the page cache has of so many bytes; a store gets
/// its own page alone, at nearly the same price.
const AROUND: u64 = 64 << 10;

impl MappedMedium {
    /// Maps the whole pages of `fd` (opened read-write) and reserves addresses for `reserve` bytes.
    pub fn new(
        fd: impl AsFd,
        persistence: Persistence,
        reserve: usize,
    ) -> Result<MappedMedium, MediumError> {
        Self::with(
            fd.as_fd(),
            persistence,
            persistence == Persistence::Dax,
            reserve,
        )
    }

    /// A medium that executes what [`Persistence::Dax`] does (streaming stores, write-back, fences)
    /// on a file that need not be one: to test and to time that path without the hardware. It
    /// survives what its file survives, no more.
    pub fn emulating_dax(fd: impl AsFd, reserve: usize) -> Result<MappedMedium, MediumError> {
        Self::with(fd.as_fd(), Persistence::Dax, false, reserve)
    }

    fn with(
        fd: BorrowedFd<'_>,
        persistence: Persistence,
        synchronous: bool,
        reserve: usize,
    ) -> Result<MappedMedium, MediumError> {
        let size = whole_pages(fd)?;
        let window = Window::reserve(reserve)?;
        let medium = MappedMedium {
            window,
            persistence,
            synchronous,
            size: AtomicU64::new(0),
            kept: AtomicBool::new(false),
            damage: AtomicU64::new(0),
        };
        if size != 0 {
            medium.grow(fd, size)?;
        }
        Ok(medium)
    }

    /// Maps more of the same file, which must already be that long; returns the size in force. Any
    /// number of threads may do it at once. Smaller sizes than the present one change nothing.
    pub fn grow(&self, fd: impl AsFd, size: u64) -> Result<u64, MediumError> {
        let fd = fd.as_fd();
        let present = self.size.load(Ordering::Acquire);
        if size <= present {
            return Ok(present);
        }
        let reserved = self.window.len() as u64;
        if size > reserved {
            return Err(MediumError::BeyondReserve {
                wanted: size,
                reserved,
            });
        }
        let actual = whole_pages(fd)?;
        if size > actual || !size.is_multiple_of(PAGE as u64) {
            return Err(MediumError::TooShort {
                wanted: size,
                actual,
            });
        }
        // As the rest is mapped: for the kernel it is one mapping then, which it syncs once, and tells once of a sync that failed.
        if present != 0 {
            self.extend(size)?;
            return Ok(self.size());
        }
        let synchronous = self.synchronous;
        let how = self
            .window
            .map(0, fd, 0, size as usize, Access::ReadWrite, synchronous)?;
        if synchronous && how == Synchronous::No {
            return Err(MediumError::NotSynchronous);
        }
        self.keep(0, size as usize)?;
        Ok(self.size.fetch_max(size, Ordering::AcqRel).max(size))
    }

    /// Keeps the mapping, and all that it grows by, out of children that are forked from now on. They must not touch
    /// the medium, nor drop it: its addresses may be something else of theirs.
    pub fn keep_from_children(&self) -> Result<(), MapError> {
        self.kept.store(true, Ordering::SeqCst);
        match self.size.load(Ordering::Acquire) {
            0 => Ok(()),
            size => self.window.keep_from_children(0, size as usize),
        }
    }

    fn keep(&self, at: usize, len: usize) -> Result<(), MapError> {
        if self.kept.load(Ordering::SeqCst) {
            self.window.keep_from_children(at, len)?;
        }
        Ok(())
    }

    /// Maps more of the file without having it open: for who was told that it is `size` bytes long. What
    /// is not there is refused when it is accessed.
    fn extend(&self, size: u64) -> Result<(), MapError> {
        let present = self.size.load(Ordering::Acquire);
        if size <= present {
            return Ok(());
        }
        // Two threads at once map the same pages at the same place: harmless.
        let (at, len) = (present as usize, (size - present) as usize);
        self.window.extend(at, len)?;
        self.keep(at, len)?;
        self.size.fetch_max(size, Ordering::AcqRel);
        Ok(())
    }

    /// What makes stores durable.
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    /// The first place that could not be accessed although it was mapped, if any ever was.
    pub fn damage(&self) -> Option<Damage> {
        let mark = self.damage.load(Ordering::Acquire);
        mark.checked_sub(1).map(|offset| Damage { offset })
    }

    /// The address of a range, for guarded copies to and from other memory. Valid while the medium
    /// lives; accessing it may fault.
    #[inline]
    pub fn address(&self, offset: u64, len: u64) -> Result<*mut u8, OutOfRange> {
        let size = self.size.load(Ordering::Acquire);
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(self.window.base().wrapping_add(offset as usize)),
            _ => Err(OutOfRange::outside(offset, len, size)),
        }
    }

    /// Fills page tables for a range, so that first accesses do not fault. Best effort.
    pub fn populate(&self, offset: u64, len: u64) -> Result<(), MediumError> {
        let size = self.size.load(Ordering::Acquire);
        let start = offset.min(size) / PAGE as u64 * PAGE as u64;
        let end = offset
            .saturating_add(len)
            .min(size)
            .next_multiple_of(PAGE as u64);
        if start < end {
            self.window
                .populate(start as usize, (end - start) as usize)?;
        }
        Ok(())
    }

    /// Asks the kernel to make the file durable, however it was changed. Needs no descriptor.
    pub fn sync(&self) -> Result<(), MediumError> {
        self.sync_part(0, self.size.load(Ordering::Acquire))
    }

    /// The same of a part, that begins with a page.
    pub(crate) fn sync_part(&self, offset: u64, len: u64) -> Result<(), MediumError> {
        Ok(self.window.sync(offset as usize, len as usize)?)
    }

    /// Has what is not in memory read page by page where it is accessed, also of what this grows by.
    pub(crate) fn read_singly(&self) {
        let _ = self.window.read_singly(0, self.size() as usize);
    }

    /// Has the pages of a range read into memory, all at once, and waits for nothing.
    pub(crate) fn read_soon(&self, offset: u64, len: u64) {
        let at = offset / PAGE as u64 * PAGE as u64;
        let end = (offset + len)
            .next_multiple_of(PAGE as u64)
            .min(self.size());
        let _ = self
            .window
            .read_soon(at as usize, end.saturating_sub(at) as usize);
    }

    /// Asks the kernel which pages it has in memory, from `first` on: how many it answers for. It may take them away at any
    /// time.
    pub(crate) fn in_memory(&self, first: u64, answers: &mut [u8]) -> usize {
        let mapped = (self.size() / PAGE as u64).saturating_sub(first);
        let count = answers.len().min(mapped as usize);
        let asked = self
            .window
            .in_memory(first as usize * PAGE, &mut answers[..count]);
        if asked.is_ok() { count } else { 0 }
    }

    /// Whether everything is still mapped that was.
    pub(crate) fn is_whole(&self) -> bool {
        let size = self.size.load(Ordering::Acquire) as usize;
        self.window.is_mapped(0, size)
    }

    /// Asks for huge pages. Best effort.
    pub fn prefer_huge(&self) {
        let _ = self
            .window
            .prefer_huge(0, self.size.load(Ordering::Acquire) as usize);
    }

    /// The address of an aligned word.
    #[inline]
    fn word(&self, offset: u64) -> Result<*mut u64, OutOfRange> {
        let at = self.address(offset, 8)?;
        if offset.is_multiple_of(8) {
            Ok(at.cast())
        } else {
            Err(OutOfRange::outside(offset, 8, self.size()))
        }
    }

    /// Copies out of the medium, guarded on both sides.
    ///
    /// # Safety
    ///
    /// As for the destination of [`guarded_copy`].
    #[inline]
    unsafe fn copy_out(
        &self,
        offset: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<Result<(), Fault>, OutOfRange> {
        let from = self.address(offset, len as u64)?;
        // SAFETY: `address` checked the source; the caller vouches for the destination.
        let copied = unsafe { guarded_copy(into, from, len) };
        // What was read must not be overtaken by what is read next (versions, checksums).
        fence(Ordering::Acquire);
        Ok(copied)
    }

    /// Copies into the medium past the cache where that pays, guarded on both sides. Where stores are not
    /// durable that is from `stream_from` bytes on.
    ///
    /// # Safety
    ///
    /// As for the source of [`guarded_copy`].
    #[inline(always)]
    unsafe fn stream_in(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
        stream_from: usize,
    ) -> Result<Result<(), Fault>, OutOfRange> {
        let to = self.address(offset, len as u64)?;
        Ok(if self.persistence == Persistence::Dax {
            // SAFETY: `address` checked the destination; the caller vouches for the source.
            unsafe { guarded_copy_streaming(to, from, len) }
        } else if len >= stream_from {
            // SAFETY: as above.
            let copied = unsafe { guarded_copy_streaming_volatile(to, from, len) };
            // Here and not in `fence`, so that fences after plain stores stay free.
            flush::fence();
            copied
        } else {
            // SAFETY: as above.
            unsafe { guarded_copy(to, from, len) }
        })
    }

    /// After a fault of a copy between the medium and a program's memory: if every page of the medium's
    /// range can still be read, it was the program's.
    #[cold]
    fn whose_fault(&self, offset: u64, len: usize) -> TransferError {
        let last = offset + (len as u64).saturating_sub(1);
        let pages = (offset / PAGE as u64..=last / PAGE as u64).map(|page| page * PAGE as u64);
        for at in pages {
            let Ok(at) = self.address(at, 1) else {
                continue;
            };
            // SAFETY: `address` checked the byte.
            if unsafe { guarded_probe(at) }.is_err() {
                return self.lost(offset, len as u64).into();
            }
        }
        TransferError::Fault
    }

    /// Turns a fault into the error of the interface and remembers it.
    #[cold]
    fn lost(&self, offset: u64, len: u64) -> OutOfRange {
        self.refused(offset, len, Errno::IO)
    }

    /// The same of a word that was to be changed. What can be read and not be stored to found no space: a file
    /// system may have to move a page before it is changed.
    #[cold]
    fn unchanged(&self, offset: u64) -> OutOfRange {
        match self.load(offset) {
            Ok(_) => self.refused(offset, 8, Errno::NOSPC),
            Err(lost) => lost,
        }
    }

    /// The same for what the kernel has answered.
    #[cold]
    pub(crate) fn refused(&self, offset: u64, len: u64, errno: Errno) -> OutOfRange {
        let mark = offset.saturating_add(1);
        let _ = self
            .damage
            .compare_exchange(0, mark, Ordering::AcqRel, Ordering::Relaxed);
        OutOfRange::lost(offset, len, errno)
    }
}

/// Bytes in the whole pages of a file.
fn whole_pages(fd: BorrowedFd<'_>) -> Result<u64, MediumError> {
    let stat = rustix::fs::fstat(fd).map_err(MediumError::Examine)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    Ok(size - size % PAGE as u64)
}

impl Medium for MappedMedium {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn reach(&self, size: u64) {
        let _ = self.extend(size);
    }

    #[inline]
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        let at = self.word(offset)?;
        // SAFETY: `word` checked range and alignment.
        unsafe { word::load(at) }.map_err(|Fault| self.lost(offset, 8))
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        let at = self.word(offset)?;
        // SAFETY: `word` checked range and alignment.
        unsafe { word::store(at, value) }.map_err(|Fault| self.unchanged(offset))
    }

    #[inline]
    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        let at = self.word(offset)?;
        // SAFETY: `word` checked range and alignment.
        unsafe { word::compare_exchange(at, current, new) }.map_err(|Fault| self.unchanged(offset))
    }

    #[inline]
    fn words<const N: usize>(&self, offset: u64) -> Result<Words<'_, N>, OutOfRange> {
        self.address(offset, N as u64 * 8)?;
        let at = self.word(offset)?;
        // SAFETY: `address` checked the range and `word` the alignment; the window is mapped for as long as `self` lives.
        Ok(unsafe { Words::at(at, self, offset) })
    }

    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let len = into.len();
        // SAFETY: the destination is a slice.
        unsafe { self.copy_out(offset, into.as_mut_ptr(), len)? }
            .map_err(|Fault| self.lost(offset, len as u64))
    }

    #[inline(always)]
    fn write_line(&self, offset: u64, line: &[u8; LINE]) -> Result<(), OutOfRange> {
        if !offset.is_multiple_of(LINE as u64) {
            return self.write_streaming(offset, line);
        }
        let to = self.address(offset, LINE as u64)?;
        let streaming = self.persistence == Persistence::Dax;
        // SAFETY: `address` checked the destination, whose window begins on a page; the source is a line.
        unsafe { guarded_copy_line(to, line.as_ptr(), streaming) }
            .map_err(|Fault| self.lost(offset, LINE as u64))
    }

    #[inline]
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let len = from.len();
        // SAFETY: the source is a slice.
        unsafe { self.stream_in(offset, from.as_ptr(), len, STREAM_VOLATILE_FROM)? }
            .map_err(|Fault| self.lost(offset, len as u64))
    }

    #[inline]
    unsafe fn read_into(
        &self,
        offset: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<(), TransferError> {
        // SAFETY: the caller vouches for the destination.
        unsafe { self.copy_out(offset, into, len)? }.map_err(|Fault| self.whose_fault(offset, len))
    }

    #[inline(always)]
    unsafe fn write_streaming_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), TransferError> {
        // SAFETY: the caller vouches for the source.
        unsafe { self.stream_in(offset, from, len, STREAM_VOLATILE_FROM)? }
            .map_err(|Fault| self.whose_fault(offset, len))
    }

    #[inline]
    unsafe fn write_cold_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), TransferError> {
        // SAFETY: the caller vouches for the source.
        unsafe { self.stream_in(offset, from, len, STREAM_COLD_FROM)? }
            .map_err(|Fault| self.whose_fault(offset, len))
    }

    fn expect_writes(&self, offset: u64, len: u64) {
        if self.persistence != Persistence::Ram || len == 0 {
            return;
        }
        for block in offset / AROUND..=offset.saturating_add(len - 1) / AROUND {
            let Ok(at) = self.address(offset.max(block * AROUND), 1) else {
                return;
            };
            // SAFETY: `address` checked the byte. Who writes there is told what is wrong with it.
            let _ = unsafe { guarded_probe(at) };
        }
    }

    #[inline]
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let at = self.address(offset, len)?;
        if self.persistence != Persistence::Dax {
            return Ok(());
        }
        // SAFETY: `address` checked the range.
        unsafe { flush::write_back(at, len as usize) }.map_err(|Fault| self.lost(offset, len))
    }

    #[inline]
    fn fence(&self) {
        match self.persistence {
            Persistence::Dax => flush::fence(),
            Persistence::Ram | Persistence::Cached => fence(Ordering::Release),
        }
    }
}
