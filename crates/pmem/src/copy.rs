//! Copies that survive page faults.
//!
//! A mapping of a file can stop being accessible at any moment: an outsider truncates the file, a
//! hole cannot get a block because the file system is full, the medium fails. A system call would
//! return an error or a short count; a load or store gets SIGBUS. And a program may hand a bad
//! pointer to `read`, which the kernel answers with EFAULT and not with a signal. So every access to
//! bytes of that kind goes through the routines here. When one of their instructions faults, a
//! handler that asks [`crate::fault::handle`] continues them at their exit and they return
//! [`Fault`]. A fault says nothing about how many bytes arrived: the caller gives the whole call to
//! the kernel, so that the program gets the kernel's own answer.
//!
//! All of them are async-signal-safe: no allocation, no lock, no thread-local storage.
//!
//! # Safety
//!
//! The unsafe code calls the assembly routines. Their contract is each function's `# Safety`
//! section; what they do with an inaccessible page is defined only while a handler that uses
//! [`crate::fault::handle`] is installed.
#![allow(unsafe_code)]

use crate::cpu::features;
#[cfg(target_arch = "x86_64")]
use crate::{arch::x86_64 as arch, flush};
#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{AtomicPtr, Ordering};

/// Whether faults inside the copies are caught on this architecture. Where this is `false` the
/// copies are plain ones, a fault is fatal, and callers must leave the files to the kernel.
pub const GUARDED: bool = cfg!(target_arch = "x86_64");

/// Bytes that travel to and from the medium together.
pub const LINE: usize = 64;

/// An access met a page that cannot be accessed. Some bytes may have been copied before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory could not be accessed")]
pub struct Fault;

/// A way to copy, for choosing one by name in tests, benchmarks and reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routine {
    /// Word by word in Rust; not guarded.
    Portable,
    /// 16-byte vectors, which every x86-64 processor has.
    Sse2,
    /// 32-byte vectors.
    Avx2,
    /// 32-byte vectors in the upper registers of AVX-512, which cost no transition.
    Evex256,
    /// 64-byte vectors.
    Avx512,
    /// The processor's own string copy.
    RepMovsb,
}

impl Routine {
    /// All routines.
    pub const ALL: [Routine; 6] = [
        Routine::Portable,
        Routine::Sse2,
        Routine::Avx2,
        Routine::Evex256,
        Routine::Avx512,
        Routine::RepMovsb,
    ];

    /// Whether the running processor can execute it.
    pub fn is_available(self) -> bool {
        match self {
            Routine::Portable => true,
            Routine::Sse2 | Routine::RepMovsb => cfg!(target_arch = "x86_64"),
            Routine::Avx2 => features().avx2(),
            Routine::Evex256 | Routine::Avx512 => features().avx512(),
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Routine::Portable => "portable",
            Routine::Sse2 => "sse2",
            Routine::Avx2 => "avx2",
            Routine::Evex256 => "evex256",
            Routine::Avx512 => "avx512",
            Routine::RepMovsb => "rep-movsb",
        }
    }

    /// The one that [`guarded_copy`] uses on this processor.
    pub fn chosen() -> Routine {
        let can = features();
        if cfg!(not(target_arch = "x86_64")) {
            Routine::Portable
        } else if can.avx512() {
            Routine::Avx512
        } else if can.avx2() {
            Routine::Avx2
        } else {
            Routine::Sse2
        }
    }

    /// The one that the streaming copies use on this processor.
    pub fn chosen_streaming() -> Routine {
        Routine::chosen()
    }
}

/// Whether both ranges lie inside the address space, so that no end address wraps around.
fn in_address_space(dst: *mut u8, src: *const u8, len: usize) -> bool {
    dst.addr().checked_add(len).is_some() && src.addr().checked_add(len).is_some()
}

/// Copies `len` bytes by plain stores, the fastest way this processor has.
///
/// The ranges should not overlap; if they do, the destination's bytes are some mixture.
///
/// # Safety
///
/// `dst..dst+len` must be memory that the caller may overwrite, or addresses that fault; likewise
/// `src..src+len` for reading. Either may be changed by others meanwhile (the copy may then be torn).
/// A handler that uses [`crate::fault::handle`] must be installed if either may fault; where
/// [`GUARDED`] is `false`, neither may.
#[inline]
pub unsafe fn guarded_copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if !in_address_space(dst, src, len) {
        return Err(Fault);
    }
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: `COPY` only ever holds routines of the type `CopyFn`.
        let routine: arch::CopyFn = unsafe { core::mem::transmute(COPY.load(Ordering::Relaxed)) };
        // SAFETY: the caller vouches for the ranges.
        outcome(unsafe { routine(dst, src, len) })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller vouches for the ranges and that they do not fault.
        unsafe { crate::arch::portable::copy(dst, src, len) };
        Ok(())
    }
}

/// Copies `len` bytes with a routine chosen by the caller; `Err` also if this processor lacks it.
///
/// # Safety
///
/// As for [`guarded_copy`]; [`Routine::Portable`] does not catch faults.
pub unsafe fn guarded_copy_with(
    routine: Routine,
    dst: *mut u8,
    src: *const u8,
    len: usize,
) -> Result<(), Fault> {
    if !in_address_space(dst, src, len) || !routine.is_available() {
        return Err(Fault);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(copy) = copy_routine(routine) {
        // SAFETY: the caller vouches for the ranges, the processor has the routine.
        return outcome(unsafe { copy(dst, src, len) });
    }
    // SAFETY: the caller vouches for the ranges and that they do not fault.
    unsafe { crate::arch::portable::copy(dst, src, len) };
    Ok(())
}

/// Copies `len` bytes past the cache: durable on a `dax` medium after the caller's next
/// [`crate::flush::fence`], and not to be published to other threads before it.
///
/// Whole lines of the destination are streamed; the head and tail, which share their line with
/// bytes that are not ours, are stored plainly and written back.
///
/// # Safety
///
/// As for [`guarded_copy`].
#[inline]
pub unsafe fn guarded_copy_streaming(
    dst: *mut u8,
    src: *const u8,
    len: usize,
) -> Result<(), Fault> {
    // SAFETY: the caller vouches for the ranges.
    unsafe { stream(Routine::chosen_streaming(), dst, src, len, true) }
}

/// As [`guarded_copy_streaming`] for memory that needs no write-back, because it survives the death
/// of processes anyway and nothing makes it survive a power cut (`ram`, `cached`): the head and tail
/// are only stored. The fence before publishing is needed all the same.
///
/// # Safety
///
/// As for [`guarded_copy`].
#[inline]
pub unsafe fn guarded_copy_streaming_volatile(
    dst: *mut u8,
    src: *const u8,
    len: usize,
) -> Result<(), Fault> {
    // SAFETY: the caller vouches for the ranges.
    unsafe { stream(Routine::chosen_streaming(), dst, src, len, false) }
}

/// Copies one line of words that were just put together, by plain stores or, if `streaming`, past the cache
/// as [`guarded_copy_streaming`] does.
///
/// # Safety
///
/// As for [`guarded_copy`], of [`LINE`] bytes; `dst` is aligned to that.
#[inline]
pub unsafe fn guarded_copy_line(
    dst: *mut u8,
    src: *const u8,
    streaming: bool,
) -> Result<(), Fault> {
    #[cfg(target_arch = "x86_64")]
    {
        let copy = if streaming {
            arch::adit_pmem_stream_line
        } else {
            arch::adit_pmem_copy_line
        };
        // SAFETY: the caller vouches for the ranges.
        outcome(unsafe { copy(dst, src) })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = streaming;
        // SAFETY: the caller vouches for the ranges.
        unsafe { guarded_copy(dst, src, LINE) }
    }
}

/// Streams with a routine chosen by the caller; `Err` also if this processor lacks it.
/// [`Routine::Portable`] and [`Routine::RepMovsb`] have no streaming form and copy plainly, followed
/// by a write-back where `durable` asks for it.
///
/// # Safety
///
/// As for [`guarded_copy_with`].
pub unsafe fn guarded_copy_streaming_with(
    routine: Routine,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    durable: bool,
) -> Result<(), Fault> {
    if !routine.is_available() {
        return Err(Fault);
    }
    // SAFETY: the caller vouches for the ranges.
    unsafe { stream(routine, dst, src, len, durable) }
}

/// Loads one byte, to learn whether its page is accessible.
///
/// # Safety
///
/// As for the source of [`guarded_copy`].
#[inline]
pub unsafe fn guarded_probe(at: *const u8) -> Result<u8, Fault> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the caller vouches for the byte or that it faults.
        u8::try_from(unsafe { arch::adit_pmem_probe(at) }).map_err(|_| Fault)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: the caller vouches for the byte.
        Ok(unsafe { at.read_volatile() })
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn outcome(code: u32) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault) }
}

/// The routine behind [`guarded_copy`]; at first one that finds out which.
#[cfg(target_arch = "x86_64")]
static COPY: AtomicPtr<()> = AtomicPtr::new(first_copy as *mut ());

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn first_copy(dst: *mut u8, src: *const u8, len: usize) -> u32 {
    let routine = copy_routine(Routine::chosen()).unwrap_or(arch::adit_pmem_copy_sse2);
    // Relaxed: whoever still sees the old value only chooses once more.
    COPY.store(routine as *mut (), Ordering::Relaxed);
    // SAFETY: the contract of `guarded_copy`, from which alone this is called.
    unsafe { routine(dst, src, len) }
}

#[cfg(target_arch = "x86_64")]
fn copy_routine(routine: Routine) -> Option<arch::CopyFn> {
    match routine {
        Routine::Portable => None,
        Routine::Sse2 => Some(arch::adit_pmem_copy_sse2),
        Routine::Avx2 => Some(arch::adit_pmem_copy_avx2),
        Routine::Evex256 => Some(arch::adit_pmem_copy_evex256),
        Routine::Avx512 => Some(arch::adit_pmem_copy_avx512),
        Routine::RepMovsb => Some(arch::adit_pmem_copy_rep),
    }
}

#[cfg(target_arch = "x86_64")]
fn stream_routine(routine: Routine) -> Option<arch::StreamFn> {
    match routine {
        Routine::Portable | Routine::RepMovsb => None,
        Routine::Sse2 => Some(arch::adit_pmem_stream_sse2),
        Routine::Avx2 => Some(arch::adit_pmem_stream_avx2),
        Routine::Evex256 | Routine::Avx512 => Some(arch::adit_pmem_stream_avx512),
    }
}

/// The streaming copy: head, whole lines, tail.
///
/// # Safety
///
/// As for [`guarded_copy_with`], and the processor has `routine`.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream(
    routine: Routine,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    durable: bool,
) -> Result<(), Fault> {
    if !in_address_space(dst, src, len) {
        return Err(Fault);
    }
    let Some(lines_routine) = stream_routine(routine) else {
        // SAFETY: the caller vouches for the ranges.
        unsafe { guarded_copy_with(routine, dst, src, len)? };
        // SAFETY: as above.
        return unsafe { settle(dst, len, durable) };
    };
    let head = dst.addr().wrapping_neg() % LINE;
    if head >= len && head != 0 {
        // The range lies inside one line.
        // SAFETY: the caller vouches for the ranges.
        return unsafe { edge(dst, src, len, durable) };
    }
    if head != 0 {
        // SAFETY: `head < len`.
        unsafe { edge(dst, src, head, durable)? };
    }
    let lines = (len - head) / LINE;
    let tail = (len - head) % LINE;
    // SAFETY: `head + lines * LINE <= len`, and `dst + head` is aligned to a line.
    outcome(unsafe { lines_routine(dst.wrapping_add(head), src.wrapping_add(head), lines) })?;
    if tail != 0 {
        let at = len - tail;
        // SAFETY: `at + tail == len`.
        unsafe { edge(dst.wrapping_add(at), src.wrapping_add(at), tail, durable)? };
    }
    Ok(())
}

/// Copies part of one line plainly and, if asked, starts its write-back.
///
/// # Safety
///
/// As for [`guarded_copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn edge(dst: *mut u8, src: *const u8, len: usize, durable: bool) -> Result<(), Fault> {
    // SAFETY: the caller vouches for the ranges.
    unsafe { guarded_copy(dst, src, len)? };
    // SAFETY: as above.
    unsafe { settle(dst, len, durable) }
}

/// Starts the write-back of what was just stored plainly, if asked.
///
/// # Safety
///
/// As for the destination of [`guarded_copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn settle(dst: *const u8, len: usize, durable: bool) -> Result<(), Fault> {
    if !durable {
        return Ok(());
    }
    // SAFETY: the caller vouches for the range; a fault of the write-back is caught.
    unsafe { flush::write_back(dst, len) }
}

/// Without streaming stores: a plain copy. There is no write-back either, so no medium is called
/// `dax` on such an architecture.
///
/// # Safety
///
/// As for [`guarded_copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(
    _routine: Routine,
    dst: *mut u8,
    src: *const u8,
    len: usize,
    _durable: bool,
) -> Result<(), Fault> {
    // SAFETY: the caller vouches for the ranges.
    unsafe { guarded_copy(dst, src, len) }
}
