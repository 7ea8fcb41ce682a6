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
//! so a chunk's reads through the kernel are counted and it is mapped when they exceed what
//! [`Adoption`] says. Page tables are then filled by faults, 64 KB at a time: the kernel maps the
//! pages around a fault for a fraction of what populating a range page by page costs.
//!
//! # Safety
//! Addresses inside the window are only touched by guarded copies, which turn a fault into an error.
//! The window is unmapped when the [`DirectFile`] is dropped, which its owner does when no copy can
//! be under way (the shim counts users). Program buffers are only touched by guarded copies too.
#![allow(unsafe_code)]

use crate::registry::Reason;
use adit_pmem::copy::{
    guarded_copy, guarded_copy_streaming, guarded_copy_streaming_volatile, guarded_probe,
};
use adit_pmem::flush::fence;
use adit_pmem::map::{Access, Window};
use adit_pmem::{Fault, MediumKind};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: u64 = 4096;
/// The granule in which files are mapped, unless told otherwise (Chell 2.3).
const GRANULE: u64 = 2 << 20;
/// Address space reserved for a small file, so that it can grow without a new window.
const SMALLEST_WINDOW: u64 = 256 << 20;
/// Files beyond this are left to the kernel.
const LARGEST_WINDOW: u64 = 8 << 40;

/// Files that a process has windows for at a time. Each takes two mappings or more of the 65,530 that the kernel
/// allows it, and a program whose own `mmap` fails is broken: most of them are left to it.
const MOST_WINDOWS: u32 = 8192;
static WINDOWS: AtomicU32 = AtomicU32::new(0);

/// Mappings that the chunks of all files take besides: a chunk between two that are not mapped divides a window into two
/// more, and one that fills a gap makes one of three. Random reads of a large file map every other chunk at first.
const MOST_MORE_MAPPINGS: i32 = 16384;
static MORE_MAPPINGS: AtomicI32 = AtomicI32::new(0);

/// Overwrites of at least this many bytes bypass the cache also where nothing needs to be durable:
/// the program has the bytes in its cache already, and a plain store would first read the old ones.
const STREAMED: usize = 2048;

/// The chunk is mapped.
const MAPPED: u32 = u32::MAX;
/// Some thread is mapping the chunk.
const MAPPING: u32 = u32::MAX - 1;
/// The chunk cannot be mapped.
const NEVER: u32 = u32::MAX - 2;
/// Some thread is mapping the chunk, and may have looked for holes before there was one. Nobody else begins to map it until
/// that thread is done: two at a time could take each other's state for their own.
const STALE: u32 = u32::MAX - 3;
/// Beside a count of bytes: the chunk is mapped still, and is looked at anew once they have paid.
const STILL_MAPPED: u32 = 1 << 31;

/// Whether a chunk takes part in a mapping, or is about to.
fn is_mapped(state: u32) -> bool {
    state != NEVER && state & STILL_MAPPED != 0
}

/// The bytes served, or why the kernel must do it.
pub type Served = Result<usize, Reason>;

/// How eagerly files are mapped.
#[derive(Debug, Clone, Copy)]
pub struct Adoption {
    /// Map a chunk once this many percent of its bytes went through the kernel.
    pub percent: u32,
    /// Bytes of a chunk: a power of two, 2 MB to 512 MB (SplitFS 3.6).
    pub granule: u64,
}

/// Granules that pages of any size fit into, and that a count of bytes does.
const GRANULES: core::ops::RangeInclusive<u64> = GRANULE..=512 << 20;

impl Adoption {
    /// What pays on a medium of this kind (`docs/performance.md`, "Mapping a page").
    ///
    /// A page of tmpfs costs 280 ns to fault in and to unmap and saves 214 ns each time it is read,
    /// so it pays after one and a third passes. A page of the page cache costs 27 ns, so one pass
    /// through the kernel, which also brings it into memory in the kernel's own way, is enough.
    pub fn for_medium(kind: MediumKind) -> Self {
        let percent = match kind {
            MediumKind::Cached => 110,
            MediumKind::Dax | MediumKind::Ram | MediumKind::Other => 150,
        };
        Self {
            percent,
            granule: GRANULE,
        }
    }

    /// The same with chunks of another size; `None` when files are not mapped in chunks like that.
    #[must_use]
    pub fn in_granules_of(self, granule: u64) -> Option<Self> {
        let is_one = granule.is_power_of_two() && GRANULES.contains(&granule);
        is_one.then_some(Self { granule, ..self })
    }
}

/// A file served through a window of mappings. Dropping it unmaps everything.
#[derive(Debug)]
pub struct DirectFile {
    window: Window,
    chunks: Chunks,
    /// The size last seen. A hint: the probe behind each range is the truth.
    size: AtomicU64,
    kind: MediumKind,
    writable: bool,
    adoption: Adoption,
    granule_shift: u32,
    /// Nothing is mapped any more: a call under way may have begun with a number that leads elsewhere by now.
    revoked: AtomicBool,
    more: MoreMappings,
    _one: OneWindow,
}

/// How many of [`MOST_MORE_MAPPINGS`] a file takes.
#[derive(Debug)]
struct MoreMappings(AtomicI32);

impl MoreMappings {
    /// Takes so many more, which are fewer where it is a negative number; false where there are no more.
    fn take(&self, more: i32) -> bool {
        let before = MORE_MAPPINGS.fetch_add(more, Ordering::Relaxed);
        self.0.fetch_add(more, Ordering::Relaxed);
        let there_are = more <= 0 || before + more <= MOST_MORE_MAPPINGS;
        if !there_are {
            self.put_back(more);
        }
        there_are
    }

    /// What was taken for nothing.
    fn put_back(&self, more: i32) {
        MORE_MAPPINGS.fetch_sub(more, Ordering::Relaxed);
        self.0.fetch_sub(more, Ordering::Relaxed);
    }

    fn give_all_back(&self) {
        MORE_MAPPINGS.fetch_sub(self.0.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for MoreMappings {
    fn drop(&mut self) {
        self.give_all_back();
    }
}

/// One of [`MOST_WINDOWS`].
#[derive(Debug)]
struct OneWindow;

impl OneWindow {
    fn take() -> Option<Self> {
        let one = Self;
        (WINDOWS.fetch_add(1, Ordering::Relaxed) < MOST_WINDOWS).then_some(one)
    }
}

impl Drop for OneWindow {
    fn drop(&mut self) {
        WINDOWS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One word per chunk of the window: bytes (in units of 64) that the kernel moved there, or a state.
#[derive(Debug)]
struct Chunks {
    words: *const AtomicU32,
    count: u64,
}

// SAFETY: the words are atomics in a mapping that the value owns until it is dropped.
unsafe impl Send for Chunks {}
// SAFETY: as above.
unsafe impl Sync for Chunks {}

impl Chunks {
    fn new(count: u64) -> Option<Self> {
        let words = anonymous(usize::try_from(count).ok()? * size_of::<AtomicU32>())?;
        Some(Self {
            words: words.cast(),
            count,
        })
    }

    #[inline]
    fn get(&self, index: u64) -> Option<&AtomicU32> {
        // SAFETY: the index is below the number of words, which live as long as the value.
        (index < self.count).then(|| unsafe { &*self.words.add(index as usize) })
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: the whole mapping is ours and nobody uses the value any more.
        let _ = unsafe {
            rustix::mm::munmap(
                self.words as *mut c_void,
                self.count as usize * size_of::<AtomicU32>(),
            )
        };
    }
}

/// A private anonymous mapping of zero pages; `None` when the kernel has none to give.
pub fn anonymous(len: usize) -> Option<*mut c_void> {
    mapped(len, MapFlags::PRIVATE | MapFlags::NORESERVE)
}

/// As [`anonymous`], and forked children have it in common with this process.
pub fn shared(len: usize) -> Option<*mut c_void> {
    mapped(len, MapFlags::SHARED)
}

fn mapped(len: usize, flags: MapFlags) -> Option<*mut c_void> {
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    }
    .ok()
}

impl DirectFile {
    /// Reserves a window for a file of the given kind and size in bytes. Nothing is mapped yet.
    ///
    /// `writable` says that the description was opened for reading and writing; overwrites are
    /// served only then, and only where a store is not dearer than a system call (not through the
    /// page cache of a disk, whose first store to a clean page costs a fault: FACTS).
    pub fn new(kind: MediumKind, size: u64, writable: bool, adoption: Adoption) -> Option<Self> {
        if kind == MediumKind::Other {
            return None;
        }
        let len = size
            .checked_mul(4)?
            .max(SMALLEST_WINDOW)
            .checked_next_multiple_of(adoption.granule)?;
        if len > LARGEST_WINDOW {
            return None;
        }
        let one = OneWindow::take()?;
        Some(Self {
            _one: one,
            more: MoreMappings(AtomicI32::new(0)),
            chunks: Chunks::new(len / adoption.granule)?,
            window: Window::reserve(usize::try_from(len).ok()?).ok()?,
            size: AtomicU64::new(size),
            kind,
            writable: writable && kind != MediumKind::Cached,
            granule_shift: adoption.granule.trailing_zeros(),
            revoked: AtomicBool::new(false),
            adoption,
        })
    }

    /// Lets go of the file at once, while copies may still be under way: they fault, and their calls
    /// are done by the kernel. The addresses stay reserved until the value is dropped.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::SeqCst);
        // A refusal leaves the mapping until then, as if this had not been tried.
        if self.window.unmap(0, self.window.len()).is_ok() {
            self.more.give_all_back();
        }
    }

    /// Whether overwrites are served.
    #[inline]
    pub fn overwrites(&self) -> bool {
        self.writable
    }

    /// Reads `len` bytes at `offset` into a program's buffer. An error says why the kernel must be
    /// asked instead.
    ///
    /// `fd` names the description that this file was made for.
    ///
    /// # Safety
    /// `into..into + len` is memory that the caller may overwrite, or addresses that fault; the
    /// process has a handler that asks [`adit_pmem::fault::handle`].
    #[inline]
    pub unsafe fn read(&self, fd: i32, offset: u64, into: *mut u8, len: usize) -> Served {
        let behind = self.covered(fd, offset, len)?;
        // SAFETY: the addresses lie in the window, whose chunks are mapped and stay so while a user
        // is counted; the program's buffer is its own business; both sides may fault.
        self.checked(fd, || unsafe {
            guarded_copy(into, self.at(offset), len)?;
            guarded_probe(self.at(behind))
        })?;
        Ok(len)
    }

    /// Overwrites `len` bytes at `offset` from a program's buffer, inside the file. After an error a
    /// part of the bytes may have been stored already; the kernel's call makes them whole.
    ///
    /// # Safety
    /// `from..from + len` is readable memory, or addresses that fault; else as [`Self::read`].
    #[inline]
    pub unsafe fn overwrite(&self, fd: i32, offset: u64, from: *const u8, len: usize) -> Served {
        if !self.writable {
            return Err(Reason::Clean);
        }
        let behind = self.covered(fd, offset, len)?;
        // SAFETY: as in `read`, the other way round.
        self.checked(fd, || unsafe {
            if self.kind == MediumKind::Dax {
                guarded_copy_streaming(self.at(offset), from, len)?;
                fence();
            } else if len >= STREAMED {
                guarded_copy_streaming_volatile(self.at(offset), from, len)?;
                fence();
            } else {
                guarded_copy(self.at(offset), from, len)?;
            }
            guarded_probe(self.at(behind))
        })?;
        Ok(len)
    }

    /// Whether the file reached as far as `end` when its size was last seen.
    #[must_use]
    pub fn reaches(&self, end: u64) -> bool {
        end <= self.size.load(Ordering::Relaxed)
    }

    /// The chunk that a byte of the file lies in.
    #[inline]
    fn chunk_of(&self, offset: u64) -> u64 {
        offset >> self.granule_shift
    }

    /// The address of a byte of the file.
    #[inline]
    fn at(&self, offset: u64) -> *mut u8 {
        self.window.base().wrapping_add(offset as usize)
    }

    /// Runs a guarded copy; after a fault the size is looked up again, so that a file that shrank
    /// does not fault at every call.
    #[inline]
    fn checked(&self, fd: i32, copy: impl FnOnce() -> Result<u8, Fault>) -> Result<(), Reason> {
        match copy() {
            Ok(_) => Ok(()),
            Err(_) => {
                self.look_again(fd);
                Err(Reason::Fault)
            }
        }
    }

    /// The offset of the page behind `offset..offset + len`, if that page and the range are mapped
    /// and inside the file as last seen.
    #[inline]
    fn covered(&self, fd: i32, offset: u64, len: usize) -> Result<u64, Reason> {
        let end = offset.checked_add(len as u64).ok_or(Reason::Limit)?;
        let behind = end.checked_next_multiple_of(PAGE).ok_or(Reason::Limit)?;
        if len == 0 {
            return Err(Reason::Small);
        }
        if behind >= self.size.load(Ordering::Relaxed) {
            return Err(Reason::Eof);
        }
        for index in self.chunk_of(offset)..=self.chunk_of(behind) {
            let chunk = self.chunks.get(index).ok_or(Reason::Unmapped)?;
            if chunk.load(Ordering::Acquire) != MAPPED {
                self.pay(fd, index, chunk, len);
                return Err(Reason::Unmapped);
            }
        }
        Ok(behind)
    }

    /// The kernel wrote `at..end`, so the file reaches at least there. A write behind the end leaves a
    /// hole before it.
    #[inline]
    pub fn wrote(&self, at: u64, end: u64) {
        let known = self.size.load(Ordering::Relaxed);
        if known < end {
            if known < at {
                self.holes_between(known, end);
            }
            self.size.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// The kernel read up to `end`, so the file reaches at least there: somebody else made it grow,
    /// and we cannot know how.
    #[inline]
    pub fn saw(&self, _at: u64, end: u64) {
        let known = self.size.load(Ordering::Relaxed);
        if known < end {
            self.holes_between(known, end);
            self.size.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// There may be holes from `offset` on. On tmpfs a hole that is read through a mapping is filled
    /// (PROTOCOLS F8), so what is mapped there is looked at anew once its use has paid again.
    #[cold]
    pub fn holes_from(&self, offset: u64) {
        self.holes_between(offset, self.size.load(Ordering::Relaxed).max(offset));
    }

    /// The same up to `end`, which may lie behind the size last seen: chunks there are still mapped where the file was
    /// longer once.
    #[cold]
    fn holes_between(&self, offset: u64, end: u64) {
        if self.kind != MediumKind::Ram {
            return;
        }
        // A file may be far longer than its window.
        for index in self.chunk_of(offset)..(self.chunk_of(end) + 1).min(self.chunks.count) {
            if let Some(chunk) = self.chunks.get(index) {
                let looks_anew = |state| match state {
                    MAPPED => Some(STILL_MAPPED),
                    MAPPING => Some(STALE),
                    _ => None,
                };
                let _ = chunk.fetch_update(Ordering::AcqRel, Ordering::Relaxed, looks_anew);
            }
        }
    }

    #[cold]
    fn look_again(&self, fd: i32) {
        // SAFETY: the program called with this descriptor; if it is closed meanwhile, fstat says so.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        if let Ok(stat) = rustix::fs::fstat(fd) {
            self.size
                .store(stat.st_size.max(0) as u64, Ordering::Relaxed);
        }
    }

    /// Counts a kernel call's bytes against the price of mapping a chunk, and maps it once they have
    /// paid.
    #[cold]
    fn pay(&self, fd: i32, index: u64, word: &AtomicU32, len: usize) {
        let state = word.load(Ordering::Relaxed);
        if state >= STALE {
            return;
        }
        let (still_mapped, paid) = (state & STILL_MAPPED, state & !STILL_MAPPED);
        let granule = self.adoption.granule;
        let start = index * granule;
        let bytes = self
            .size
            .load(Ordering::Relaxed)
            .saturating_sub(start)
            .min(granule);
        let price = (bytes / 64) * u64::from(self.adoption.percent) / 100;
        // A call of a few bytes costs the kernel about as much as one of a page.
        let paying = u64::from(paid) + (len as u64).clamp(PAGE, granule) / 64;
        if paying < price {
            // A lost race undercounts; the chunk is mapped a call later. Whatever state it has by now, it keeps.
            let _ = become_if(word, state, still_mapped | paying as u32);
            return;
        }
        if !become_if(word, state, MAPPING) {
            return;
        }
        let more = match still_mapped {
            0 => self.more_mappings_with(index),
            _ => 0,
        };
        let state = still_mapped | self.map_within_bounds(fd, (start, bytes), more);
        if !become_if(word, MAPPING, state) {
            // There may be a hole by now: it is looked at anew once its use has paid again.
            let mapped = still_mapped != 0 || state == MAPPED;
            let state = if mapped { STILL_MAPPED } else { 0 };
            word.store(state, Ordering::Release);
        }
    }

    /// Maps a chunk that takes so many more mappings, if there are some left; says what it is now.
    fn map_within_bounds(&self, fd: i32, (start, bytes): (u64, u64), more: i32) -> u32 {
        if !self.more.take(more) {
            // Nothing paid: there may be some left by the next time, or a gap that it fills.
            return 0;
        }
        let state = self.map_chunk(fd, start, bytes);
        if state != MAPPED {
            self.more.put_back(more);
        }
        state
    }

    /// How many more mappings the window takes when a chunk becomes one: it is one with each neighbour that is mapped.
    fn more_mappings_with(&self, index: u64) -> i32 {
        let mapped_at = |index: u64| {
            let word = self.chunks.get(index);
            word.is_some_and(|word| is_mapped(word.load(Ordering::Relaxed)))
        };
        let neighbours = [index.checked_sub(1), index.checked_add(1)];
        let mapped = neighbours.into_iter().flatten().filter(|&at| mapped_at(at));
        2 - 2 * mapped.count() as i32
    }

    /// Maps one chunk if it can be; says what it is now.
    fn map_chunk(&self, fd: i32, start: u64, bytes: u64) -> u32 {
        // SAFETY: the program called with this descriptor; mmap fails if it is closed meanwhile.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let Ok(stat) = rustix::fs::fstat(fd) else {
            return NEVER;
        };
        let sparse = (stat.st_blocks.max(0) as u64) < (stat.st_size.max(0) as u64).div_ceil(512);
        if sparse && self.kind == MediumKind::Ram {
            // Nothing paid: the hole may be gone by the next time.
            return 0;
        }
        #[cfg(test)]
        planted::happens();
        let access = if self.writable {
            Access::ReadWrite
        } else {
            Access::Read
        };
        let sync = self.kind == MediumKind::Dax;
        let (offset, granule) = (start as usize, self.adoption.granule as usize);
        if self
            .window
            .map(offset, fd, start, granule, access, sync)
            .is_err()
        {
            return NEVER;
        }
        if self.kind == MediumKind::Ram {
            // Huge pages of tmpfs reach beyond the end of the file, where the probe must fault.
            let _ = self.window.avoid_huge(offset, granule);
        }
        if sync {
            // DAX has no faults around. Advice: a refusal costs faults, nothing else.
            let _ = self
                .window
                .populate(offset, bytes.next_multiple_of(PAGE) as usize);
        }
        // Looked at behind the mapping: who revokes says so before he unmaps.
        if self.revoked.load(Ordering::SeqCst) {
            let _ = self.window.unmap(offset, granule);
            return NEVER;
        }
        MAPPED
    }
}

/// Gives a chunk another state, if it has the one that it had.
fn become_if(word: &AtomicU32, from: u32, to: u32) -> bool {
    word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// What others do at the worst instant.
#[cfg(test)]
mod planted {
    use std::cell::RefCell;

    type Event = Box<dyn FnOnce()>;

    thread_local!(static MEANWHILE: RefCell<Option<Event>> = const { RefCell::new(None) });

    /// What happens when this thread, which maps a chunk, has looked for holes and found none.
    pub(super) fn meanwhile(event: impl FnOnce() + 'static) {
        MEANWHILE.set(Some(Box::new(event)));
    }

    pub(super) fn happens() {
        if let Some(event) = MEANWHILE.take() {
            event();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsRawFd, OwnedFd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::sync::Arc;

    const SIZE: u64 = 3 << 20;
    const EAGER: Adoption = Adoption {
        percent: 0,
        granule: GRANULE,
    };

    /// A tmpfs file in which every 8-byte word says where it is.
    fn file() -> OwnedFd {
        let fd = memfd_create(c"direct", MemfdFlags::CLOEXEC).expect("memfd");
        let bytes: Vec<u8> = (0..SIZE / 8)
            .flat_map(|word| (word * 8).to_le_bytes())
            .collect();
        assert_eq!(rustix::io::pwrite(&fd, &bytes, 0), Ok(bytes.len()));
        adit_pmem::fault::install().expect("fault handler");
        fd
    }

    fn direct(adoption: Adoption) -> DirectFile {
        DirectFile::new(MediumKind::Ram, SIZE, true, adoption).expect("window")
    }

    fn read(file: &DirectFile, fd: &OwnedFd, offset: u64, len: usize) -> Result<Vec<u8>, Reason> {
        let mut bytes = vec![0xAA; len];
        // SAFETY: the buffer has `len` bytes.
        unsafe { file.read(fd.as_raw_fd(), offset, bytes.as_mut_ptr(), len) }?;
        Ok(bytes)
    }

    fn overwrite(file: &DirectFile, fd: &OwnedFd, offset: u64, bytes: &[u8]) -> Served {
        // SAFETY: the slice has that many bytes.
        unsafe { file.overwrite(fd.as_raw_fd(), offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Mappings of this process at addresses of a window.
    fn mappings_of(file: &DirectFile) -> usize {
        let range = file.window.base().addr()..file.window.base().addr() + file.window.len();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
        let begins = |line: &str| usize::from_str_radix(line.split('-').next()?, 16).ok();
        maps.lines()
            .filter(|line| begins(line).is_some_and(|at| range.contains(&at)))
            .count()
    }

    /// A program whose own mappings fail is broken, however it reads a large file.
    #[test]
    fn most_mappings_are_left_to_the_program() {
        const CHUNKS: u64 = 40_000;
        let (fd, size) = (file(), CHUNKS * GRANULE);
        ftruncate(&fd, size).expect("ftruncate");
        let file = DirectFile::new(MediumKind::Cached, size, false, EAGER).expect("window");
        let use_chunks = |begin: usize| {
            for chunk in (begin as u64..CHUNKS - 1).step_by(2) {
                // Whether it is mapped or not: it pays.
                let _ = file.covered(fd.as_raw_fd(), chunk * GRANULE, 8);
            }
        };
        use_chunks(1);
        let most = MOST_MORE_MAPPINGS as usize;
        let mappings = mappings_of(&file);
        assert!(mappings > most / 2 && mappings <= most + 1, "{mappings}");
        // What fills a gap is mapped, and makes room for others.
        for begin in [0, 1, 0, 1] {
            use_chunks(begin);
        }
        let mappings = mappings_of(&file);
        assert!(mappings < 10, "all of it is one: {mappings}");
        assert_eq!(read(&file, &fd, 8, 8), Ok(8u64.to_le_bytes().to_vec()));
        file.holes_from(0);
        assert!(read(&file, &fd, GRANULE, 8).is_ok());
        file.revoke();
        assert_eq!(file.more.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_chunk_is_mapped_once_its_use_has_paid() {
        let (fd, file) = (
            file(),
            direct(Adoption {
                percent: 150,
                ..EAGER
            }),
        );
        let calls = (GRANULE * 3 / 2 / 4096) as usize;
        let refused = (0..calls * 2)
            .take_while(|_| read(&file, &fd, 8192, 4096) == Err(Reason::Unmapped))
            .count();
        assert!(
            (calls - 40..=calls + 40).contains(&refused),
            "{refused} of {calls}"
        );
        let words = read(&file, &fd, 8192, 16).expect("mapped");
        assert_eq!(words[..8], 8192u64.to_le_bytes());
        assert_eq!(
            read(&file, &fd, GRANULE + 64, 8),
            Err(Reason::Unmapped),
            "its own account"
        );
    }

    /// The descriptor of a call under way may lead to another file when this one has been let go of.
    #[test]
    fn nothing_is_mapped_that_was_let_go_of() {
        let (fd, file) = (file(), direct(EAGER));
        file.revoke();
        for _ in 0..3 {
            assert_eq!(read(&file, &fd, 0, 100), Err(Reason::Unmapped));
        }
    }

    #[test]
    fn a_larger_granule_is_mapped_as_a_whole() {
        let larger = EAGER.in_granules_of(2 * GRANULE).expect("a granule");
        for wrong in [0, GRANULE / 2, 3 * GRANULE, 1 << 30] {
            assert!(EAGER.in_granules_of(wrong).is_none(), "{wrong}");
        }
        for (adoption, together) in [(EAGER, false), (larger, true)] {
            let (fd, file) = (file(), direct(adoption));
            assert_eq!(read(&file, &fd, 0, 8), Err(Reason::Unmapped));
            assert!(read(&file, &fd, 0, 8).is_ok());
            // No use of the second 2 MB has paid for them.
            assert_eq!(read(&file, &fd, GRANULE + 64, 8).is_ok(), together);
        }
        let dear = Adoption {
            percent: 100,
            ..larger
        };
        let (fd, file) = (file(), direct(dear));
        let calls = (0..).find(|_| read(&file, &fd, 4096, 4096).is_ok());
        // The whole file is one chunk, and has its price.
        assert_eq!(calls, Some(SIZE as usize / 4096));
    }

    #[test]
    fn the_last_page_is_the_kernels() {
        let (fd, file) = (file(), direct(EAGER));
        let _ = read(&file, &fd, GRANULE, 4096);
        assert!(read(&file, &fd, SIZE - 8192, 4096).is_ok());
        for (offset, len) in [(SIZE - 4096, 1), (SIZE - 4097, 2), (SIZE, 1), (u64::MAX, 9)] {
            assert!(read(&file, &fd, offset, len).is_err(), "{offset}+{len}");
        }
    }

    #[test]
    fn a_truncation_by_others_is_noticed_at_every_size() {
        for left in [
            0,
            1,
            4095,
            4096,
            4097,
            100_000,
            GRANULE - 1,
            GRANULE,
            GRANULE + 1,
        ] {
            let (fd, file) = (file(), direct(EAGER));
            let _ = (read(&file, &fd, 0, 8), read(&file, &fd, GRANULE, 8));
            assert!(read(&file, &fd, left, 4096).is_ok(), "before, {left}");
            ftruncate(&fd, left).expect("truncate");
            for (offset, len) in [(left.saturating_sub(1), 2), (left, 1), (left + 5000, 4096)] {
                assert!(
                    read(&file, &fd, offset, len).is_err(),
                    "{left}: {offset}+{len}"
                );
                assert!(
                    overwrite(&file, &fd, offset, &vec![1; len]).is_err(),
                    "{left}: {offset}"
                );
            }
        }
    }

    #[test]
    fn kernel_and_mapping_see_each_other_at_once() {
        let (fd, file) = (file(), direct(EAGER));
        let _ = read(&file, &fd, 0, 8);
        for (at, len) in [(0, 1), (63, 130), (4090, 12), (8192, 4096), (70_001, 9_999)] {
            let bytes = vec![at as u8 | 1; len];
            assert_eq!(overwrite(&file, &fd, at, &bytes), Ok(len));
            let mut seen = vec![0; len];
            assert_eq!(rustix::io::pread(&fd, seen.as_mut_slice(), at), Ok(len));
            assert_eq!(seen, bytes);
            assert_eq!(rustix::io::pwrite(&fd, &vec![7; len], at), Ok(len));
            assert_eq!(read(&file, &fd, at, len), Ok(vec![7; len]));
        }
    }

    #[test]
    fn holes_of_tmpfs_are_never_mapped() {
        let fd = file();
        rustix::fs::fallocate(
            &fd,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            1 << 20,
            4096,
        )
        .expect("punch");
        let file = direct(EAGER);
        for _ in 0..4 {
            assert_eq!(read(&file, &fd, 0, 4096), Err(Reason::Unmapped));
        }
    }

    fn blocks_of(fd: &OwnedFd) -> i64 {
        rustix::fs::fstat(fd).expect("stat").st_blocks
    }

    #[test]
    fn holes_that_appear_later_are_not_filled() {
        let (fd, file) = (file(), direct(EAGER));
        let blocks = || blocks_of(&fd);
        let _ = read(&file, &fd, 0, 8);
        assert!(read(&file, &fd, 0, 8).is_ok(), "mapped");

        ftruncate(&fd, 0).expect("truncate");
        file.holes_from(0);
        ftruncate(&fd, SIZE).expect("extend");
        for page in 0..64 {
            assert_eq!(read(&file, &fd, page * 4096, 8), Err(Reason::Unmapped));
        }
        assert_eq!(blocks(), 0);

        // A write far behind the end leaves a hole in a chunk that is mapped.
        ftruncate(&fd, 0).expect("truncate");
        assert_eq!(rustix::io::pwrite(&fd, &[1; 65536], 0), Ok(65536));
        let file = DirectFile::new(MediumKind::Ram, 65536, true, EAGER).expect("window");
        let _ = read(&file, &fd, 0, 8);
        assert!(read(&file, &fd, 0, 8).is_ok(), "mapped");
        assert_eq!(rustix::io::pwrite(&fd, &[1; 4096], 1 << 20), Ok(4096));
        file.wrote(1 << 20, (1 << 20) + 4096);
        let before = blocks();
        assert_eq!(read(&file, &fd, 500_000, 8), Err(Reason::Unmapped));
        assert_eq!(blocks(), before);

        // So it does in chunks that were mapped when the file was longer.
        let (fd, file) = (self::file(), direct(EAGER));
        for at in [0, GRANULE] {
            let _ = read(&file, &fd, at, 8);
            assert!(read(&file, &fd, at, 8).is_ok(), "mapped");
        }
        ftruncate(&fd, 0).expect("truncate");
        assert_eq!(read(&file, &fd, 0, 8), Err(Reason::Fault));
        let far = SIZE - 65536;
        assert_eq!(rustix::io::pwrite(&fd, &[1; 65536], far), Ok(65536));
        file.wrote(far, SIZE);
        let before = blocks_of(&fd);
        assert_eq!(read(&file, &fd, GRANULE, 8), Err(Reason::Unmapped));
        assert_eq!(blocks_of(&fd), before);

        // The longest file there can be is looked at in no time.
        file.wrote(i64::MAX as u64 - 9, i64::MAX as u64);
    }

    #[test]
    fn holes_that_appear_while_a_chunk_is_mapped_are_not_filled() {
        let (fd, file) = (Arc::new(file()), Arc::new(direct(EAGER)));
        let blocks = || rustix::fs::fstat(&*fd).expect("stat").st_blocks;
        planted::meanwhile({
            let (fd, file) = (Arc::clone(&fd), Arc::clone(&file));
            move || {
                ftruncate(&*fd, 0).expect("truncate");
                ftruncate(&*fd, SIZE).expect("extend");
                file.holes_from(0);
                // Others use the chunk meanwhile, and do not map it beside this thread.
                assert_eq!(read(&file, &fd, 0, 8), Err(Reason::Unmapped));
            }
        });
        for page in 0..64 {
            assert_eq!(read(&file, &fd, page * 4096, 8), Err(Reason::Unmapped));
        }
        assert_eq!(blocks(), 0);
        // When the hole is gone it is mapped.
        assert_eq!(
            rustix::io::pwrite(&*fd, &[1; SIZE as usize], 0),
            Ok(SIZE as usize)
        );
        let _ = read(&file, &fd, 0, 8);
        assert_eq!(read(&file, &fd, 0, 8), Ok(vec![1; 8]));
    }

    #[test]
    fn a_file_as_long_as_may_be_has_no_window() {
        for size in [u64::MAX, i64::MAX as u64, u64::MAX / 4] {
            assert!(DirectFile::new(MediumKind::Ram, size, true, EAGER).is_none());
        }
    }

    #[test]
    fn a_growing_file_is_followed() {
        let fd = file();
        let file = DirectFile::new(MediumKind::Ram, 4096 * 4, true, EAGER).expect("window");
        assert_eq!(read(&file, &fd, 1 << 20, 8), Err(Reason::Eof));
        file.saw(0, 2 << 20);
        assert_eq!(read(&file, &fd, 1 << 20, 8), Err(Reason::Unmapped));
        let words = read(&file, &fd, 1 << 20, 8).expect("beyond the first size");
        assert_eq!(words, (1u64 << 20).to_le_bytes());
    }
}
