//! The read and write families on promoted descriptors.
//!
//! Every function here has the same shape: try the mapping, and if the engine says `None` do exactly
//! the program's call in the kernel. A sequential read copies first and then moves the offset with a
//! compare-and-swap, so two threads never get the same bytes and a lost race only reads again; a
//! sequential write moves the offset first, so no two writes land on the same place.
//!
//! # Safety
//! These are C entry points: pointers are the program's and are only used by guarded copies and by
//! the kernel.
#![allow(unsafe_code)]

use crate::ofd::{Ofd, Offset};
use crate::real::call_real;
use crate::{fds, sys, table};
use adit_pmem::copy::guarded_copy;
use adit_store::direct::{DirectFile, Served};
use adit_store::registry::{FileSlot, Reason};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

/// Set when overwrites must go through the kernel: a file size limit is in force (the kernel checks
/// it at every write, and signals), or the process is past its destructors.
pub(crate) static KERNEL_WRITES: AtomicBool = AtomicBool::new(false);

/// Longer calls are not worth serving: the copy dominates, and the kernel caps them anyway.
const LONGEST: usize = 1 << 30;

/// Reads through the mapping; `None` after noting why not.
fn served_read(ofd: &Ofd, fd: i32, at: u64, into: *mut c_void, len: usize) -> Option<usize> {
    let served = if len > LONGEST {
        Err(Reason::Limit)
    } else {
        // SAFETY: the buffer is the program's, for the kernel or us to fill.
        unsafe { ofd.file().read(fd, at, into.cast(), len) }
    };
    noted(ofd, served, FileSlot::served_read)
}

/// Overwrites through the mapping; `None` after noting why not. A file that the registry does not
/// know is never stored to, because nobody would advance its times if this process died.
fn served_overwrite(ofd: &Ofd, fd: i32, at: u64, from: *const c_void, len: usize) -> Option<usize> {
    let slot = ofd.slot()?;
    let served = if len > LONGEST || KERNEL_WRITES.load(Ordering::Relaxed) {
        Err(Reason::Limit)
    } else if ofd.appends(fd) {
        Err(Reason::Flags)
    } else {
        // SAFETY: the buffer is the program's, for the kernel or us to read.
        unsafe { ofd.file().overwrite(fd, at, from.cast(), len) }
    };
    let done = noted(ofd, served, FileSlot::served_write)?;
    ofd.note_store(slot);
    Some(done)
}

/// Counts an operation for `adit stat`.
#[inline]
fn noted(ofd: &Ofd, served: Served, count: impl Fn(&FileSlot, usize)) -> Option<usize> {
    if let Some(slot) = ofd.slot() {
        match served {
            Ok(bytes) => count(slot, bytes),
            Err(reason) => slot.passed(reason),
        }
    }
    served.ok()
}

/// The mapping's answer or, without one, the kernel's; what the kernel moved tells how far the file
/// reaches by now.
#[inline]
fn or_kernel(
    ofd: &Ofd,
    at: u64,
    served: Option<usize>,
    kernel: impl FnOnce() -> sys::Result,
    moved: Moved,
) -> sys::Result {
    if let Some(done) = served {
        return Ok(done);
    }
    let bytes = kernel()?;
    if bytes > 0 {
        moved(ofd.file(), at, at.saturating_add(bytes as u64));
    }
    Ok(bytes)
}

/// Tells the file what the kernel moved: [`DirectFile::saw`] or [`DirectFile::wrote`].
type Moved = fn(&DirectFile, u64, u64);

/// A call at a position of its own.
#[inline]
fn positional(
    fd: i32,
    at: i64,
    served: impl FnOnce(&Ofd, u64) -> Option<usize>,
    kernel: impl FnOnce() -> sys::Result,
    moved: Moved,
) -> isize {
    let result = match (u64::try_from(at), fds::promoted(fd)) {
        (Ok(at), Some(ofd)) => or_kernel(&ofd, at, served(&ofd, at), kernel, moved),
        _ => kernel(),
    };
    sys::to_libc(result)
}

/// A sequential read of `len` bytes: `attempt` reads at a position without moving any offset,
/// `kernel` reads at the kernel's offset and moves it.
#[inline]
fn sequential_read(
    ofd: &Ofd,
    attempt: impl Fn(u64) -> sys::Result,
    kernel: impl Fn() -> sys::Result,
) -> isize {
    loop {
        let Offset::At(at) = ofd.offset() else {
            return sys::to_libc(kernel());
        };
        match attempt(at) {
            Ok(got) if !ofd.advance(at, at + got as u64) => {}
            result => return sys::to_libc(result),
        }
    }
}

/// A sequential write of `len` bytes: the range is claimed first; what was not written is given back
/// if nobody has moved on from there.
#[inline]
fn sequential_write(
    ofd: &Ofd,
    len: usize,
    attempt: impl Fn(u64) -> sys::Result,
    kernel: impl Fn() -> sys::Result,
) -> isize {
    loop {
        let Offset::At(at) = ofd.offset() else {
            return sys::to_libc(kernel());
        };
        let Some(end) = at
            .checked_add(len as u64)
            .filter(|&end| end <= i64::MAX as u64)
        else {
            return sys::to_libc(attempt(at));
        };
        if !ofd.advance(at, end) {
            continue;
        }
        let result = attempt(at);
        let done = *result.as_ref().unwrap_or(&0) as u64;
        if at + done != end {
            ofd.advance(end, at + done);
        }
        return sys::to_libc(result);
    }
}

pub(crate) extern "C" fn read(fd: i32, into: *mut c_void, len: usize) -> isize {
    let kernel = || sys::read(fd as usize, into as usize, len);
    let Some(ofd) = fds::promoted(fd) else {
        return sys::to_libc(kernel());
    };
    sequential_read(
        &ofd,
        |at| {
            or_kernel(
                &ofd,
                at,
                served_read(&ofd, fd, at, into, len),
                || sys::pread(fd as usize, into as usize, len, at as usize),
                DirectFile::saw,
            )
        },
        kernel,
    )
}

pub(crate) extern "C" fn pread(fd: i32, into: *mut c_void, len: usize, at: i64) -> isize {
    positional(
        fd,
        at,
        |ofd, at| served_read(ofd, fd, at, into, len),
        || sys::pread(fd as usize, into as usize, len, at as usize),
        DirectFile::saw,
    )
}

pub(crate) extern "C" fn write(fd: i32, from: *const c_void, len: usize) -> isize {
    let kernel = || sys::write(fd as usize, from as usize, len);
    let Some(ofd) = fds::promoted(fd) else {
        return sys::to_libc(kernel());
    };
    sequential_write(
        &ofd,
        len,
        |at| {
            or_kernel(
                &ofd,
                at,
                served_overwrite(&ofd, fd, at, from, len),
                || sys::pwrite(fd as usize, from as usize, len, at as usize),
                DirectFile::wrote,
            )
        },
        kernel,
    )
}

pub(crate) extern "C" fn pwrite(fd: i32, from: *const c_void, len: usize, at: i64) -> isize {
    positional(
        fd,
        at,
        |ofd, at| served_overwrite(ofd, fd, at, from, len),
        || sys::pwrite(fd as usize, from as usize, len, at as usize),
        DirectFile::wrote,
    )
}

/// A program's vector, copied so that it cannot change under us. Longer ones go to the kernel.
struct Vector {
    parts: [libc::iovec; Self::MOST],
    count: usize,
    total: usize,
}

impl Vector {
    const MOST: usize = 16;

    fn copy(iov: *const libc::iovec, count: i32) -> Option<Self> {
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= Self::MOST)?;
        let empty = libc::iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        };
        let mut parts = [empty; Self::MOST];
        let bytes = count * size_of::<libc::iovec>();
        // SAFETY: the array has room for `count` parts; the program's pointer may fault.
        unsafe { guarded_copy(parts.as_mut_ptr().cast(), iov.cast(), bytes) }.ok()?;
        let total = parts[..count]
            .iter()
            .try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))
            // An empty vector moves nothing, but the kernel still checks the access mode.
            .filter(|&total| total > 0 && total <= LONGEST)?;
        Some(Self {
            parts,
            count,
            total,
        })
    }

    /// Serves the whole vector piece by piece, or nothing.
    fn serve(&self, at: u64, one: impl Fn(u64, &libc::iovec) -> Option<usize>) -> Option<usize> {
        let mut done = 0;
        for part in self.parts[..self.count]
            .iter()
            .filter(|part| part.iov_len > 0)
        {
            done += one(at + done as u64, part)?;
        }
        Some(done)
    }

    fn read(&self, ofd: &Ofd, fd: i32, at: u64) -> Option<usize> {
        self.serve(at, |at, part| {
            served_read(ofd, fd, at, part.iov_base, part.iov_len)
        })
    }

    fn overwrite(&self, ofd: &Ofd, fd: i32, at: u64) -> Option<usize> {
        self.serve(at, |at, part| {
            served_overwrite(ofd, fd, at, part.iov_base, part.iov_len)
        })
    }
}

fn kernel_preadv(fd: i32, iov: *const libc::iovec, count: i32, at: i64, flags: i32) -> sys::Result {
    sys::preadv2(
        fd as usize,
        iov as usize,
        count as usize,
        at as usize,
        0,
        flags as usize,
    )
}

fn kernel_pwritev(
    fd: i32,
    iov: *const libc::iovec,
    count: i32,
    at: i64,
    flags: i32,
) -> sys::Result {
    sys::pwritev2(
        fd as usize,
        iov as usize,
        count as usize,
        at as usize,
        0,
        flags as usize,
    )
}

pub(crate) extern "C" fn readv(fd: i32, iov: *const libc::iovec, count: i32) -> isize {
    let kernel = || sys::readv(fd as usize, iov as usize, count as usize);
    let Some(ofd) = fds::promoted(fd) else {
        return sys::to_libc(kernel());
    };
    let vector = Vector::copy(iov, count);
    sequential_read(
        &ofd,
        |at| {
            let served = vector.as_ref().and_then(|vector| vector.read(&ofd, fd, at));
            or_kernel(
                &ofd,
                at,
                served,
                || kernel_preadv(fd, iov, count, at as i64, 0),
                DirectFile::saw,
            )
        },
        kernel,
    )
}

pub(crate) extern "C" fn writev(fd: i32, iov: *const libc::iovec, count: i32) -> isize {
    let kernel = || sys::writev(fd as usize, iov as usize, count as usize);
    let Some(ofd) = fds::promoted(fd) else {
        return sys::to_libc(kernel());
    };
    let Some(vector) = Vector::copy(iov, count) else {
        ofd.hand_over(fd);
        return sys::to_libc(kernel());
    };
    sequential_write(
        &ofd,
        vector.total,
        |at| {
            let served = vector.overwrite(&ofd, fd, at);
            or_kernel(
                &ofd,
                at,
                served,
                || kernel_pwritev(fd, iov, count, at as i64, 0),
                DirectFile::wrote,
            )
        },
        kernel,
    )
}

pub(crate) extern "C" fn preadv(fd: i32, iov: *const libc::iovec, count: i32, at: i64) -> isize {
    if at < 0 {
        // To the kernel's newer call, which stands in for the old one here, -1 is a position.
        return sys::to_libc(Err(libc::EINVAL));
    }
    positional(
        fd,
        at,
        |ofd, at| Vector::copy(iov, count)?.read(ofd, fd, at),
        || kernel_preadv(fd, iov, count, at, 0),
        DirectFile::saw,
    )
}

pub(crate) extern "C" fn pwritev(fd: i32, iov: *const libc::iovec, count: i32, at: i64) -> isize {
    if at < 0 {
        // To the kernel's newer call, which stands in for the old one here, -1 is a position.
        return sys::to_libc(Err(libc::EINVAL));
    }
    positional(
        fd,
        at,
        |ofd, at| Vector::copy(iov, count)?.overwrite(ofd, fd, at),
        || kernel_pwritev(fd, iov, count, at, 0),
        DirectFile::wrote,
    )
}

/// Position -1 means the description's own offset; flags are promises only the kernel can make.
fn hand_over_for_v2(fd: i32, at: i64) {
    if at == -1
        && let Some(ofd) = fds::promoted(fd)
    {
        ofd.hand_over(fd);
    }
}

pub(crate) extern "C" fn preadv2(
    fd: i32,
    iov: *const libc::iovec,
    count: i32,
    at: i64,
    flags: i32,
) -> isize {
    match (at, flags) {
        (-1, 0) => readv(fd, iov, count),
        (0.., 0) => preadv(fd, iov, count, at),
        _ => {
            hand_over_for_v2(fd, at);
            sys::to_libc(kernel_preadv(fd, iov, count, at, flags))
        }
    }
}

pub(crate) extern "C" fn pwritev2(
    fd: i32,
    iov: *const libc::iovec,
    count: i32,
    at: i64,
    flags: i32,
) -> isize {
    match (at, flags) {
        (-1, 0) => writev(fd, iov, count),
        (0.., 0) => pwritev(fd, iov, count, at),
        _ => {
            hand_over_for_v2(fd, at);
            sys::to_libc(kernel_pwritev(fd, iov, count, at, flags))
        }
    }
}

/// `__read_chk`: an overflowing request is for libc to report.
pub(crate) extern "C" fn read_chk(fd: i32, into: *mut c_void, len: usize, room: usize) -> isize {
    if len > room {
        type Function = unsafe extern "C" fn(i32, *mut c_void, usize, usize) -> isize;
        // SAFETY: libc's own function with the program's own arguments.
        return unsafe { call_real!(table::__read_chk, Function)(fd, into, len, room) };
    }
    read(fd, into, len)
}

macro_rules! pread_chk {
    ($name:ident, $real:ident) => {
        #[doc = concat!("`", stringify!($real), "`: an overflowing request is for libc to report.")]
        pub(crate) extern "C" fn $name(
            fd: i32,
            into: *mut c_void,
            len: usize,
            at: i64,
            room: usize,
        ) -> isize {
            if len > room {
                type Function = unsafe extern "C" fn(i32, *mut c_void, usize, i64, usize) -> isize;
                // SAFETY: libc's own function with the program's own arguments.
                return unsafe { call_real!(table::$real, Function)(fd, into, len, at, room) };
            }
            pread(fd, into, len, at)
        }
    };
}
pread_chk!(pread_chk, __pread_chk);
pread_chk!(pread64_chk, __pread64_chk);

/// Positions up to here are below every file system's limit, so moving there cannot fail.
const CERTAIN: i64 = 1 << 40;

pub(crate) extern "C" fn lseek(fd: i32, offset: i64, whence: i32) -> i64 {
    let kernel = |offset: i64, whence: i32| {
        sys::lseek(fd as usize, offset as usize, whence as usize).map(|at| at as i64)
    };
    let result = match fds::promoted(fd) {
        None => kernel(offset, whence),
        Some(ofd) => loop {
            let Offset::At(at) = ofd.offset() else {
                break kernel(offset, whence);
            };
            let target = match whence {
                libc::SEEK_SET => Some(offset),
                libc::SEEK_CUR => (at as i64).checked_add(offset),
                _ => None,
            };
            // The kernel's own offset is idle while ours counts, so it can be used to ask.
            let moved = match target {
                Some(target) if (0..=CERTAIN).contains(&target) => Ok(target),
                _ if whence == libc::SEEK_CUR => {
                    kernel(at as i64, libc::SEEK_SET).and_then(|_| kernel(offset, whence))
                }
                _ => kernel(offset, whence),
            };
            match moved {
                Ok(to) if !ofd.advance(at, to as u64) => {}
                result => break result,
            }
        },
    };
    sys::to_libc(result.map(|at| at as usize)) as i64
}
