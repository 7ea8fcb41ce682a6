//! Mappings of files.
//!
//! Two shapes. A [`Mapping`] is one range of one file. A [`Window`] is a reserved address range with
//! a stable base into which chunks of a file are mapped and from which they are taken again; what is
//! not mapped is inaccessible, so a guarded copy that comes too late faults instead of meeting
//! somebody else's memory.
//!
//! Both give out raw pointers only: the bytes belong to every process that maps the file.
//!
//! Window operations make at most a few system calls and neither allocate nor lock, so they may run
//! in a signal handler.
//!
//! # Safety
//!
//! The unsafe code maps and unmaps memory. The invariants: an address range is unmapped or replaced
//! only by the value that reserved it, and only inside the range that value owns; fixed mappings go
//! only into a range reserved before.
#![allow(unsafe_code)]

use crate::in_words;
use crate::syscall;
use core::ffi::c_void;
use core::ptr::null_mut;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap,
    mremap_fixed, msync, munmap,
};
use rustix::thread::{SecureComputingMode, secure_computing_mode};

/// Size of a page of memory. The only one of x86-64; elsewhere the kernel refuses finer ranges.
pub const PAGE: usize = 4096;
/// Size and alignment of a huge page, and of the chunks that files are mapped in.
pub const HUGE: usize = 2 << 20;

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads.
    Read,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    fn protection(self) -> ProtFlags {
        match self {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// Why a mapping failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The range is empty, not aligned to pages, or outside the window.
    #[error("the range to map is empty, not aligned to pages, or outside its window")]
    BadRange,
    /// The kernel refused.
    #[error("the kernel refused the mapping: {}", in_words(*.0))]
    Kernel(Errno),
}

// By hand: without its `std` feature (whose descriptors close through libc) rustix's errors are no
// `std::error::Error`, which thiserror's conversion would ask for.
impl From<Errno> for MapError {
    fn from(error: Errno) -> Self {
        MapError::Kernel(error)
    }
}

/// How the kernel made a mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// `MAP_SYNC`: a store is durable once written back and fenced; no metadata is outstanding.
    Yes,
    /// An ordinary shared mapping.
    No,
}

fn aligned(value: u64) -> bool {
    value.is_multiple_of(PAGE as u64)
}

/// Maps a file range where the kernel likes, with MAP_SYNC where asked for and possible.
fn map_file(
    len: usize,
    fd: BorrowedFd<'_>,
    offset: u64,
    access: Access,
    want_sync: bool,
) -> Result<(*mut c_void, Synchronous), Errno> {
    let protection = access.protection();
    if want_sync {
        let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        // SAFETY: the kernel picks a free range.
        match unsafe { mmap(null_mut(), len, protection, flags, fd, offset) } {
            Ok(base) => return Ok((base, Synchronous::Yes)),
            // Not a DAX file: the mapping is possible, only not synchronous.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: as above.
    let base = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, fd, offset)? };
    Ok((base, Synchronous::No))
}

/// One shared mapping of one range of a file.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
    synchronous: Synchronous,
}

// SAFETY: the value owns an address range, which is the same in every thread; it hands out raw
// pointers only and changes nothing through `&self` but the kernel's state.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` on (both multiples of the page size).
    ///
    /// The mapping may reach beyond the end of the file; loads there fault until it grows.
    pub fn new(
        fd: impl AsFd,
        offset: u64,
        len: usize,
        access: Access,
        want_sync: bool,
    ) -> Result<Mapping, MapError> {
        if len == 0 || !aligned(offset) || !aligned(len as u64) {
            return Err(MapError::BadRange);
        }
        let (base, synchronous) = map_file(len, fd.as_fd(), offset, access, want_sync)?;
        Ok(Mapping {
            base: base.cast(),
            len,
            synchronous,
        })
    }

    /// First byte. Valid until this value is dropped; pages may fault at any time.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the kernel made it with `MAP_SYNC`.
    pub fn synchronous(&self) -> Synchronous {
        self.synchronous
    }

    /// Fills the page table for a part by reading, so that later loads do not fault. Best effort:
    /// pages beyond the end of the file and kernels before 5.14 are left alone.
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        populate(at, len).map_err(MapError::Kernel)
    }

    /// Asks for huge pages. Best effort.
    pub fn prefer_huge(&self) {
        prefer_huge(self.base, self.len);
    }

    /// Keeps the mapping out of children made by `fork`.
    pub fn keep_from_children(&self) -> Result<(), MapError> {
        // SAFETY: the range is ours; the advice changes no byte of it.
        unsafe { madvise(self.base.cast(), self.len, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// Unmaps now and says whether the kernel did.
    pub fn unmap(self) -> Result<(), MapError> {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: the range is ours and `this` is never used again.
        Ok(unsafe { give_back(this.base, this.len) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and nobody uses it any more.
        let _ = unsafe { give_back(self.base, self.len) };
    }
}

/// Gives a range back. A mapping keeps its file open, and with it locks that others wait for; so where the kernel does not
/// take the addresses (under exhaustion of mappings), they stay, and the file goes.
///
/// # Safety
/// The range is the caller's, who does not use it any more.
unsafe fn give_back(base: *mut u8, len: usize) -> Result<(), Errno> {
    #[cfg(test)]
    let unmap = |base, len| match tests::is_refused() {
        true => Err(Errno::NOMEM),
        // SAFETY: as below.
        false => unsafe { munmap(base, len) },
    };
    #[cfg(not(test))]
    let unmap = |base, len| {
        // SAFETY: the caller's promise.
        unsafe { munmap(base, len) }
    };
    if unmap(base.cast(), len).is_ok() {
        return Ok(());
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the fixed range is the caller's.
    unsafe { mmap_anonymous(base.cast(), len, ProtFlags::empty(), flags) }.map(drop)
}

/// The address of a non-empty, page-aligned part of an owned range.
fn part(base: *mut u8, whole: usize, offset: usize, len: usize) -> Result<*mut u8, MapError> {
    let end = offset.checked_add(len).ok_or(MapError::BadRange)?;
    if len == 0 || end > whole || !aligned(offset as u64) || !aligned(len as u64) {
        return Err(MapError::BadRange);
    }
    Ok(base.wrapping_add(offset))
}

/// Puts a mapping in the place of what is at other addresses, all at once. Where the kernel has failed so late that there is
/// nothing any more, these are reserved again.
///
/// # Safety
/// Both ranges are the caller's, and nobody uses the one that moves.
unsafe fn move_over(from: *mut c_void, len: usize, at: *mut u8) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let moved = unsafe { mremap_fixed(from, len, len, MremapFlags::MAYMOVE, at.cast()) };
    if moved.is_err() {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the range is the caller's, and what is there stays.
        let _ = unsafe { mmap_anonymous(at.cast(), len, ProtFlags::empty(), flags) };
    }
    moved.map(drop)
}

fn populate(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the range is ours; the advice makes pages present and changes no byte.
    match unsafe { madvise(at.cast(), len, Advice::LinuxPopulateRead) } {
        // INVAL: an older kernel. FAULT: a page beyond the end of the file. What could be made
        // present is; whoever touches the rest meets a guarded fault.
        Ok(()) | Err(Errno::INVAL | Errno::FAULT) => Ok(()),
        Err(error) => Err(error),
    }
}

fn prefer_huge(at: *mut u8, len: usize) {
    // SAFETY: the range is ours; the advice changes no byte.
    let _ = unsafe { madvise(at.cast(), len, Advice::LinuxHugepage) };
}

/// A reserved address range, aligned for huge pages, into which chunks of files are mapped.
#[derive(Debug)]
pub struct Window {
    base: *mut u8,
    len: usize,
}

// SAFETY: the value owns an address range, which is the same in every thread; it hands out raw
// pointers only and changes nothing through `&self` but the kernel's state, which serialises itself.
unsafe impl Send for Window {}
// SAFETY: as for `Send`.
unsafe impl Sync for Window {}

impl Window {
    /// Reserves addresses: inaccessible, without memory behind them. The length is rounded up to
    /// whole huge pages.
    pub fn reserve(len: usize) -> Result<Window, MapError> {
        let len = len
            .checked_next_multiple_of(HUGE)
            .ok_or(MapError::BadRange)?;
        let with_slack = len.checked_add(HUGE).ok_or(MapError::BadRange)?;
        if len == 0 {
            return Err(MapError::BadRange);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no fixed address: the kernel picks a free range.
        let start = unsafe { mmap_anonymous(null_mut(), with_slack, ProtFlags::empty(), flags)? };
        let start: *mut u8 = start.cast();
        let before = start.addr().wrapping_neg() % HUGE;
        let after = HUGE - before;
        let base = start.wrapping_add(before);
        if before != 0 {
            // SAFETY: the slack before the aligned part is ours and unused.
            let _ = unsafe { munmap(start.cast(), before) };
        }
        // SAFETY: the slack after the aligned part is ours and unused.
        let _ = unsafe { munmap(base.wrapping_add(len).cast(), after) };
        Ok(Window { base, len })
    }

    /// First byte of the range; stable for the window's life.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Number of bytes reserved.
    #[expect(clippy::len_without_is_empty, reason = "a window is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Maps `len` bytes of `fd` from `file_offset` on at `offset` in the window, replacing what was
    /// mapped there. All three are multiples of the page size.
    pub fn map(
        &self,
        offset: usize,
        fd: impl AsFd,
        file_offset: u64,
        len: usize,
        access: Access,
        want_sync: bool,
    ) -> Result<Synchronous, MapError> {
        let at = part(self.base, self.len, offset, len)?;
        if !aligned(file_offset) {
            return Err(MapError::BadRange);
        }
        // Not at once where it belongs: a mapping at a fixed address that fails late has taken away what was there, and
        // another thread gets the addresses.
        let (apart, synchronous) = map_file(len, fd.as_fd(), file_offset, access, want_sync)?;
        // SAFETY: the range that moves is one that was just mapped; the one that it replaces lies inside the window.
        let moved = unsafe { move_over(apart, len, at) };
        if moved.is_err() {
            // SAFETY: it is ours still, and nobody knows of it.
            let _ = unsafe { munmap(apart, len) };
        }
        moved?;
        Ok(synchronous)
    }

    /// Maps `len` more bytes of the file that is mapped up to `offset`, as it is mapped there, without
    /// the file being open: its descriptor may be closed, and the program at its limit of them. Whether
    /// the file is that long is not asked; what is not there faults.
    pub fn extend(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        if offset < PAGE {
            return Err(MapError::BadRange);
        }
        let last = at.wrapping_sub(PAGE).cast();
        // The kernel copies a shared mapping that is said to have no length, and makes the copy longer.
        // It cannot be made in place: the addresses are taken, and must not be free for a moment.
        // SAFETY: nothing is taken away, and the kernel picks a free range.
        let copy = unsafe { mremap(last, 0, PAGE + len, MremapFlags::MAYMOVE)? };
        let more = copy.wrapping_byte_add(PAGE);
        // SAFETY: the range that moves is the copy's; the one that it replaces lies inside the window.
        let moved = unsafe { move_over(more, len, at) };
        let left = if moved.is_ok() { PAGE } else { PAGE + len };
        // SAFETY: what is left of the copy is ours, and nobody knows of it.
        let _ = unsafe { munmap(copy, left) };
        moved?;
        Ok(())
    }

    /// Takes `len` bytes at `offset` back: inaccessible again, the addresses still ours.
    pub fn unmap(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the fixed range lies inside the window, which is ours; the file's bytes stay.
        unsafe { mmap_anonymous(at.cast(), len, ProtFlags::empty(), flags)? };
        Ok(())
    }

    /// Fills the page table for a mapped part by reading. Best effort, as [`Mapping::populate`].
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        match populate(at, len) {
            // An unmapped or inaccessible part: nothing to fill.
            Err(Errno::NOMEM) => Ok(()),
            other => other.map_err(MapError::Kernel),
        }
    }

    /// Asks for huge pages in a mapped part. Best effort.
    pub fn prefer_huge(&self, offset: usize, len: usize) -> Result<(), MapError> {
        prefer_huge(part(self.base, self.len, offset, len)?, len);
        Ok(())
    }

    /// Asks for small pages in a mapped part. Best effort.
    pub fn avoid_huge(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        // SAFETY: advice on our own range; it changes no contents.
        let _ = unsafe { madvise(at.cast(), len, Advice::LinuxNoHugepage) };
        Ok(())
    }

    /// Has what is not in memory read page by page where a mapped part is accessed, and nothing around it. Best effort.
    pub fn read_singly(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        // SAFETY: advice on our own range; it changes no contents.
        let _ = unsafe { madvise(at.cast(), len, Advice::Random) };
        Ok(())
    }

    /// Has a mapped part read into memory, all at once, and waits for nothing. Best effort.
    pub fn read_soon(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        // SAFETY: advice on our own range; it changes no contents.
        let _ = unsafe { madvise(at.cast(), len, Advice::WillNeed) };
        Ok(())
    }

    /// Keeps a mapped part out of forked children, where its addresses then belong to nobody.
    pub fn keep_from_children(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        // SAFETY: the range is ours; the advice changes no byte of it.
        unsafe { madvise(at.cast(), len, Advice::LinuxDontFork)? };
        Ok(())
    }

    /// Makes the file behind a mapped part durable, as `fdatasync` of that range does.
    pub fn sync(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let at = part(self.base, self.len, offset, len)?;
        // SAFETY: the range is ours; syncing changes no byte of it.
        unsafe { msync(at.cast(), len, MsyncFlags::SYNC)? };
        Ok(())
    }

    /// Whether there is something at all addresses of a part.
    pub fn is_mapped(&self, offset: usize, len: usize) -> bool {
        let looked = part(self.base, self.len, offset, len).is_ok_and(|at| {
            // SAFETY: the range is ours; nothing is written, as the kernel writes what is asked for so when it likes.
            unsafe { msync(at.cast(), len, MsyncFlags::ASYNC) }.is_ok()
        });
        len == 0 || looked
    }

    /// Asks which pages are in memory, mapped or not, from the one at `offset` on, all of which are mapped: the lowest bit of
    /// each answer. Whoever may not write the file is told of each page that it is. Under a filter of calls nothing is asked:
    /// services are usually given one by which who makes this call is ended (systemd's `@system-service`).
    pub fn in_memory(&self, offset: usize, answers: &mut [u8]) -> Result<(), MapError> {
        let len = answers.len() * PAGE;
        let at = part(self.base, self.len, offset, len)?;
        // Kernels without filters do not know what is asked.
        if !matches!(
            secure_computing_mode(),
            Ok(SecureComputingMode::Disabled) | Err(Errno::INVAL)
        ) {
            return Err(Errno::PERM.into());
        }
        let args = [at as usize, len, answers.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel writes one byte for each page, and there are as many.
        let asked = unsafe { syscall::call(libc::SYS_mincore, args) };
        asked
            .map(drop)
            .map_err(|code| Errno::from_raw_os_error(code).into())
    }

    /// Gives the addresses back and says whether the kernel took them. Nobody may be copying to or
    /// from the window any more: the addresses may soon mean something else.
    pub fn release(self) -> Result<(), MapError> {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: the range is ours and `this` is never used again.
        Ok(unsafe { give_back(this.base, this.len) }?)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and nobody uses it any more.
        let _ = unsafe { give_back(self.base, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
    use std::cell::Cell;

    std::thread_local! {
        static REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether the kernel refuses to unmap.
    pub(super) fn is_refused() -> bool {
        REFUSED.get()
    }

    /// The kernel takes away what is at a fixed address before it asks the file whether it may be mapped there, and a socket
    /// refuses as late as a file system does that is shut down.
    #[test]
    fn a_refused_mapping_leaves_its_addresses_reserved() {
        // SAFETY: no address is given.
        let file = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) };
        assert!(file >= 0, "a socket");
        // SAFETY: it was just made, and is nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let window = Window::reserve(HUGE).expect("window");
        let mapped = window.map(PAGE, &file, 0, PAGE, Access::ReadWrite, false);
        assert_eq!(mapped, Err(MapError::Kernel(Errno::NODEV)));
        assert!(window.is_mapped(0, HUGE), "nobody else gets any of it");
    }

    /// A lock that a mapping alone keeps ends with it, also where the kernel does not take the addresses back: as long
    /// as its process lived, others would wait for it.
    #[test]
    fn what_cannot_be_unmapped_keeps_no_file() {
        let file = rustix::fs::memfd_create(c"locked", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&file, PAGE as u64).expect("truncate");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        for unmaps in [false, true] {
            let own =
                rustix::fs::open(path.as_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            let own = own.expect("a description of its own");
            let lock = |fd: BorrowedFd<'_>| {
                rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)
            };
            lock(own.as_fd()).expect("lock");
            let mapping = Mapping::new(&own, 0, PAGE, Access::Read, false).expect("map");
            drop(own);
            assert_eq!(lock(file.as_fd()), Err(Errno::WOULDBLOCK));
            REFUSED.set(true);
            if unmaps {
                mapping.unmap().expect("the file is gone from there");
            } else {
                drop(mapping);
            }
            REFUSED.set(false);
            lock(file.as_fd()).expect("nobody has it");
            rustix::fs::flock(&file, FlockOperation::Unlock).expect("unlock");
        }
    }
}
