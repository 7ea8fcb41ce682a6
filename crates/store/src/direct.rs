//! Direct files: reads and in-place overwrites as copies from and to a shared mapping.
//!
//! This is SplitFS's "collection of memory-maps" (section 3.3) and Chell-Direct's 2 MB chunks
//! (section 2.3), with two differences that make it safe beside everybody else.
//!
//! **The mapping is made through the program's own description** and is the same memory as the page
//! cache (or the DAX extents), so kernel calls and mapped copies always agree about bytes.
//!
//! **The end of the file is never remembered, it is asked.** A mapped copy of `offset..end` counts
//! only if the page *behind* the range is still there after the copy: one load says so. If an
//! outsider shortened the file, that load faults, and the call is done again by the kernel, which
//! gives its own answer. Ranges that reach into the last page always go to the kernel. So no lease,
//! lock or notification is needed to serve files that others may truncate at any time.
//!
//! A chunk is mapped only once its use has paid for it: mapping costs more than reading once
//! (FACTS: 321 + 187 ns against 401), so a chunk's reads through the kernel are counted and it is
//! mapped when they exceed one and a half times what mapping would populate.
//!
//! # Safety
//! Addresses inside the window are only touched by guarded copies, which turn a fault into an error.
//! The window is unmapped by [`DirectFile::unmap`], which the owner calls when no copy can be under
//! way (the shim counts users). Program buffers are only touched by guarded copies too.
#![allow(unsafe_code)]

use adit_pmem::{Fault, MediumKind, fence, guarded_copy, guarded_copy_streaming, guarded_probe};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE: u64 = 4096;
/// The granule in which files are mapped (Chell 2.3; SplitFS 3.6 tunes it from 2 MB to 512 MB).
const CHUNK: u64 = 2 << 20;
/// Address space reserved for a small file, so that it can grow without a new window.
const SMALLEST_WINDOW: u64 = 256 << 20;
/// Files beyond this are left to the kernel.
const LARGEST_WINDOW: u64 = 8 << 40;

/// The chunk is mapped.
const MAPPED: u32 = u32::MAX;
/// Some thread is mapping the chunk.
const MAPPING: u32 = u32::MAX - 1;
/// The chunk cannot be mapped.
const NEVER: u32 = u32::MAX - 2;

/// How eagerly files are mapped.
#[derive(Debug, Clone, Copy)]
pub struct Adoption {
    /// Map a chunk once this many percent of its bytes went through the kernel.
    pub percent: u32,
}

impl Default for Adoption {
    fn default() -> Self {
        Self { percent: 150 }
    }
}

/// What the kernel said about a file when it was looked at.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Size in bytes.
    pub size: u64,
    /// Allocated 512-byte blocks.
    pub blocks: u64,
}

/// A file served through a window of mappings.
#[derive(Debug)]
pub struct DirectFile {
    base: u64,
    len: u64,
    /// One word per chunk: bytes (in units of 64) the kernel moved there, or a state.
    chunks: *const AtomicU32,
    /// The size last seen. A hint: the probe behind each range is the truth.
    size: AtomicU64,
    kind: MediumKind,
    writable: bool,
    adoption: Adoption,
}

// SAFETY: the raw pointer names a mapping of atomics that lives until unmap, which the owner calls
// when no user is left; everything else is plain data or atomics.
unsafe impl Send for DirectFile {}
// SAFETY: as above; all shared state is atomic.
unsafe impl Sync for DirectFile {}

/// A private anonymous mapping of zero pages; `None` when the kernel has none to give.
pub fn anonymous(len: usize) -> Option<*mut c_void> {
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }
    .ok()
}

impl DirectFile {
    /// Reserves a window for a file of the given kind and size. Nothing is mapped yet.
    ///
    /// `writable` says that the description was opened for reading and writing; overwrites are
    /// served only then, and only where a store is not dearer than a system call (not through the
    /// page cache of a disk, whose first store to a clean page costs a fault: FACTS).
    pub fn new(kind: MediumKind, seen: Seen, writable: bool, adoption: Adoption) -> Option<Self> {
        if kind == MediumKind::Other {
            return None;
        }
        let len = seen.size.checked_mul(4)?.max(SMALLEST_WINDOW).next_multiple_of(CHUNK);
        if len > LARGEST_WINDOW {
            return None;
        }
        let chunks = anonymous((len / CHUNK) as usize * size_of::<AtomicU32>())?;
        let Some(base) = reserve(len) else {
            discard(chunks as u64, len / CHUNK * size_of::<AtomicU32>() as u64);
            return None;
        };
        Some(Self {
            base,
            len,
            chunks: chunks.cast(),
            size: AtomicU64::new(seen.size),
            kind,
            writable: writable && kind != MediumKind::Cached,
            adoption,
        })
    }

    /// Whether overwrites are served.
    #[inline]
    pub fn overwrites(&self) -> bool {
        self.writable
    }

    /// Reads `len` bytes at `offset` into a program's buffer. `None`: ask the kernel.
    ///
    /// `fd` names the description that this file was made for.
    #[inline]
    pub fn read(&self, fd: i32, offset: u64, into: *mut u8, len: usize) -> Option<usize> {
        let behind = self.covered(fd, offset, len)?;
        let from = (self.base + offset) as *const u8;
        self.checked(fd, || {
            guarded_copy(into, from, len)?;
            guarded_probe((self.base + behind) as *const u8)
        })?;
        Some(len)
    }

    /// Overwrites `len` bytes at `offset` from a program's buffer, inside the file. `None`: ask the
    /// kernel; a part of the bytes may have been stored already, which doing it again makes whole.
    #[inline]
    pub fn overwrite(&self, fd: i32, offset: u64, from: *const u8, len: usize) -> Option<usize> {
        if !self.writable {
            return None;
        }
        let behind = self.covered(fd, offset, len)?;
        let into = (self.base + offset) as *mut u8;
        self.checked(fd, || {
            if self.kind == MediumKind::Dax {
                guarded_copy_streaming(into, from, len)?;
                fence();
            } else {
                guarded_copy(into, from, len)?;
            }
            guarded_probe((self.base + behind) as *const u8)
        })?;
        Some(len)
    }

    /// Runs a guarded copy; after a fault the size is looked up again, so that a file that shrank
    /// does not fault at every call.
    #[inline]
    fn checked(&self, fd: i32, copy: impl FnOnce() -> Result<u8, Fault>) -> Option<()> {
        match copy() {
            Ok(_) => Some(()),
            Err(_) => {
                self.look_again(fd);
                None
            }
        }
    }

    /// The offset of the page behind `offset..offset + len`, if that page and the range are mapped
    /// and inside the file as last seen.
    #[inline]
    fn covered(&self, fd: i32, offset: u64, len: usize) -> Option<u64> {
        if len == 0 {
            return None;
        }
        let end = offset.checked_add(len as u64)?;
        let behind = end.checked_next_multiple_of(PAGE)?;
        if behind >= self.size.load(Ordering::Relaxed) {
            self.near_the_end(fd, behind);
            return None;
        }
        if behind >= self.len {
            return None;
        }
        let (first, last) = (offset / CHUNK, behind / CHUNK);
        for chunk in first..=last {
            if self.chunk(chunk).load(Ordering::Acquire) != MAPPED {
                self.pay(fd, chunk, len);
                return None;
            }
        }
        Some(behind)
    }

    /// The state word of a chunk inside the window.
    #[inline]
    fn chunk(&self, index: u64) -> &AtomicU32 {
        debug_assert!(index < self.len / CHUNK);
        // SAFETY: callers stay below len / CHUNK; the words live until unmap.
        unsafe { &*self.chunks.add(index as usize) }
    }

    /// A range reached the size last seen. The file may have grown; look now and then.
    #[cold]
    fn near_the_end(&self, fd: i32, behind: u64) {
        // Only ranges wholly behind the remembered size say that it is out of date; the last page
        // itself is read through the kernel as a matter of course.
        if behind >= self.size.load(Ordering::Relaxed) + PAGE {
            self.look_again(fd);
        }
    }

    #[cold]
    fn look_again(&self, fd: i32) {
        // SAFETY: the program called with this descriptor; if it is closed meanwhile, fstat says so.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        if let Ok(stat) = rustix::fs::fstat(fd) {
            self.size.store(stat.st_size.max(0) as u64, Ordering::Relaxed);
        }
    }

    /// Counts a kernel call's bytes against the price of mapping a chunk, and maps it once they have
    /// paid.
    #[cold]
    fn pay(&self, fd: i32, chunk: u64, len: usize) {
        let word = self.chunk(chunk);
        let paid = word.load(Ordering::Relaxed);
        if paid >= NEVER {
            return;
        }
        let start = chunk * CHUNK;
        let bytes = self.size.load(Ordering::Relaxed).saturating_sub(start).min(CHUNK);
        let price = (bytes / 64) * u64::from(self.adoption.percent) / 100;
        let paying = u64::from(paid) + (len as u64).min(CHUNK) / 64 + 1;
        if paying < price {
            // A lost race undercounts; the chunk is mapped a call later.
            word.store(paying as u32, Ordering::Relaxed);
            return;
        }
        if word.compare_exchange(paid, MAPPING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let mapped = self.map_chunk(fd, start, bytes);
        word.store(if mapped { MAPPED } else { NEVER }, Ordering::Release);
    }

    /// Maps one chunk and fills the page table for the part that lies inside the file.
    fn map_chunk(&self, fd: i32, start: u64, bytes: u64) -> bool {
        // SAFETY: the program called with this descriptor; mmap fails if it is closed meanwhile.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let Ok(stat) = rustix::fs::fstat(fd) else { return false };
        let sparse = (stat.st_blocks.max(0) as u64) < (stat.st_size.max(0) as u64).div_ceil(512);
        if sparse && self.kind == MediumKind::Ram {
            // Reading a hole of tmpfs through a mapping allocates it (PROTOCOLS F8).
            return false;
        }
        let protection = if self.writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let at = (self.base + start) as *mut c_void;
        let map = |flags| {
            // SAFETY: MAP_FIXED replaces only pages of our own reservation.
            unsafe { rustix::mm::mmap(at, CHUNK as usize, protection, flags, fd, start) }
        };
        let mapped = if self.kind == MediumKind::Dax {
            map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC | MapFlags::FIXED)
        } else {
            map(MapFlags::SHARED | MapFlags::FIXED)
        };
        if mapped.is_err() {
            return false;
        }
        let populate = bytes.next_multiple_of(PAGE) as usize;
        // SAFETY: advice on our own mapping; it changes no contents. Failures only cost faults.
        unsafe {
            let _ = rustix::mm::madvise(at, CHUNK as usize, Advice::LinuxDontDump);
            let _ = rustix::mm::madvise(at, populate, Advice::LinuxPopulateRead);
        }
        true
    }

    /// Unmaps everything. The owner guarantees that no copy is under way.
    pub fn unmap(&self) {
        discard(self.base, self.len);
        discard(self.chunks as u64, self.len / CHUNK * size_of::<AtomicU32>() as u64);
    }
}

/// Reserves address space without memory behind it.
fn reserve(len: u64) -> Option<u64> {
    // SAFETY: a fresh reservation at an address of the kernel's choice touches nothing that exists.
    unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            usize::try_from(len).ok()?,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }
    .ok()
    .map(|at| at as u64)
}

fn discard(at: u64, len: u64) {
    // SAFETY: both callers pass a whole mapping of their own that nobody uses any more.
    unsafe {
        let _ = rustix::mm::munmap(at as *mut c_void, len as usize);
    }
}
