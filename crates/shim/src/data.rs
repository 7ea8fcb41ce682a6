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

use crate::ofd::{Ofd, Offset, Users};
use crate::real::call_real;
use crate::signal::engine;
use crate::writer::{Buffers, Writer};
use crate::{closed, descriptors, fds, init, stack, stage, sys, table, times};
use adit_pmem::copy::guarded_copy;
use adit_store::direct::{DirectFile, Served};
use adit_store::registry::{FileSlot, Reason};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

/// Set when overwrites must go through the kernel: a file size limit is in force (the kernel checks
/// it at every write, and signals), or the process is past its destructors.
pub(crate) static KERNEL_WRITES: AtomicBool = AtomicBool::new(false);

/// Longer calls are not worth serving: the copy dominates, and the kernel caps them anyway.
pub(crate) const LONGEST: usize = 1 << 30;

/// Reads through the mapping; `None` after noting why not.
fn served_read(ofd: &Ofd, fd: i32, at: u64, into: *mut c_void, len: usize) -> Option<usize> {
    let served = if len > LONGEST {
        Err(Reason::Limit)
    } else {
        // SAFETY: the buffer is the program's, for the kernel or us to fill.
        unsafe { ofd.file()?.read(fd, at, into.cast(), len) }
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
        unsafe { ofd.file()?.overwrite(fd, at, from.cast(), len) }
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
            Err(reason) => slot.passed(reason, 1),
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
    if bytes > 0
        && let Some(file) = ofd.file()
    {
        moved(file, at, at.saturating_add(bytes as u64));
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
    by_writer: impl FnOnce(&Writer, &Ofd) -> sys::Result,
    served: impl FnOnce(&Ofd, u64) -> Option<usize>,
    kernel: impl FnOnce() -> sys::Result,
    moved: Moved,
) -> isize {
    let result = match (u64::try_from(at), fds::served(fd)) {
        (Ok(start), Ok(Some(ofd))) => match ofd.writer() {
            Some(writer) => by_writer(writer, &ofd),
            None => or_kernel(&ofd, start, served(&ofd, start), kernel, moved),
        },
        (_, Err(errno)) => Err(errno),
        _ => kernel(),
    };
    sys::to_libc(result)
}

/// A sequential read of `len` bytes: `attempt` reads at a position without moving any offset,
/// `kernel` reads at the kernel's offset and moves it.
#[inline]
pub(crate) fn sequential_read(
    ofd: &Ofd,
    attempt: impl Fn(u64) -> sys::Result,
    kernel: impl Fn() -> sys::Result,
) -> sys::Result {
    loop {
        let Offset::At(at) = ofd.offset() else {
            return kernel();
        };
        match attempt(at) {
            Ok(got) if !ofd.advance(at, at + got as u64) => {}
            // The number may lead to another file by now, which has no such place.
            Err(_) if matches!(ofd.offset(), Offset::Handed) => {}
            result => return result,
        }
    }
}

/// A sequential write of `len` bytes, which `served` does by stores and `place` has the kernel do at a position: the range is
/// claimed first; what was not written is given back if nobody has moved on from there.
///
/// What makes the file longer is the kernel's in any case. Where threads may do it at once it has the offset as well, or
/// the later part could be in the file before the earlier one, with zeros between. So it has where a handler may come
/// between the claim and the kernel's write: one that leaves by a jump, or that writes and ends the program, would leave
/// zeros for good where the write had claimed its place.
#[inline]
fn sequential_write(
    ofd: &Ofd,
    fd: i32,
    len: usize,
    served: impl Fn(u64) -> Option<usize>,
    place: impl Fn(u64) -> sys::Result,
    kernel: impl Fn() -> sys::Result,
) -> sys::Result {
    loop {
        let Offset::At(at) = ofd.offset() else {
            return kernel();
        };
        let Some(end) = at
            .checked_add(len as u64)
            .filter(|&end| end <= i64::MAX as u64)
        else {
            return place(at);
        };
        let alone = init::single_threaded() && !engine::may_interrupt();
        if !alone && ofd.file().is_some_and(|file| !file.reaches(end)) {
            ofd.hand_over_offset(fd);
            return kernel();
        }
        if !ofd.advance(at, end) {
            continue;
        }
        let result = match served(at) {
            Some(done) => Ok(done),
            None if !alone && has_no_place(ofd, fd, (at, end)) => return kernel(),
            None => place(at),
        };
        let done = *result.as_ref().unwrap_or(&0) as u64;
        if at + done != end {
            ofd.advance(end, at + done);
        }
        return result;
    }
}

/// A thread has claimed a place that stores could not serve. Another one, or a handler, may have put another file behind the
/// number meanwhile: the kernel goes on with the file that a call has begun with, ours would find the new one. And a handler
/// may leave the call by a jump before it is made. So it is the kernel's to write at its own offset, where that is this
/// place, or the number leads elsewhere by now.
#[cold]
fn has_no_place(ofd: &Ofd, fd: i32, (at, end): (u64, u64)) -> bool {
    if ofd.advance(end, at) {
        ofd.hand_over_offset(fd);
        return true;
    }
    !fds::promoted(fd).is_some_and(|now| core::ptr::eq(&*now, ofd))
}

pub(crate) extern "C" fn read(fd: i32, into: *mut c_void, len: usize) -> isize {
    let kernel = || sys::read(fd as usize, into as usize, len);
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return sys::to_libc(answer.and_then(|_| kernel())),
    };
    if let Some(writer) = ofd.writer() {
        return sys::to_libc(writer.read(&ofd, fd, Buffers::into(into, len), None));
    }
    sys::to_libc(sequential_read(
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
    ))
}

pub(crate) extern "C" fn pread(fd: i32, into: *mut c_void, len: usize, at: i64) -> isize {
    positional(
        fd,
        at,
        |writer, ofd| writer.read(ofd, fd, Buffers::into(into, len), Some(at)),
        |ofd, at| served_read(ofd, fd, at, into, len),
        || sys::pread(fd as usize, into as usize, len, at as usize),
        DirectFile::saw,
    )
}

pub(crate) extern "C" fn write(fd: i32, from: *const c_void, len: usize) -> isize {
    let kernel = || sys::write(fd as usize, from as usize, len);
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return sys::to_libc(answer.and_then(|_| kernel())),
    };
    if let Some(writer) = ofd.writer() {
        return sys::to_libc(writer.write(&ofd, fd, Buffers::from(from, len), None));
    }
    sys::to_libc(sequential_write(
        &ofd,
        fd,
        len,
        |at| served_overwrite(&ofd, fd, at, from, len),
        |at| {
            let place = || sys::pwrite(fd as usize, from as usize, len, at as usize);
            or_kernel(&ofd, at, None, place, DirectFile::wrote)
        },
        kernel,
    ))
}

pub(crate) extern "C" fn pwrite(fd: i32, from: *const c_void, len: usize, at: i64) -> isize {
    positional(
        fd,
        at,
        |writer, ofd| writer.write(ofd, fd, Buffers::from(from, len), Some(at)),
        |ofd, at| served_overwrite(ofd, fd, at, from, len),
        || sys::pwrite(fd as usize, from as usize, len, at as usize),
        DirectFile::wrote,
    )
}

/// A part of a vector that there is none of.
pub(crate) const NO_PART: libc::iovec = libc::iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// Copies a program's vector of as many parts as there is room for, and says how many bytes they have; `None` when it
/// cannot be read, or moves too much.
pub(crate) fn copy_parts(iov: *const libc::iovec, into: &mut [libc::iovec]) -> Option<usize> {
    // SAFETY: the slice has room for so many bytes; the program's pointer may fault.
    unsafe { guarded_copy(into.as_mut_ptr().cast(), iov.cast(), size_of_val(into)) }.ok()?;
    into.iter()
        .try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))
        .filter(|&total| total <= LONGEST)
}

/// A program's vector, copied so that it cannot change under us. Of longer ones nothing is served from a mapping.
pub(crate) struct Vector {
    parts: [libc::iovec; Self::MOST],
    count: usize,
    total: usize,
}

impl Vector {
    pub(crate) const MOST: usize = 16;

    pub(crate) fn copy(iov: *const libc::iovec, count: i32) -> Option<Self> {
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= Self::MOST)?;
        let mut parts = [NO_PART; Self::MOST];
        // An empty vector moves nothing, but the kernel still checks the access mode.
        let total = copy_parts(iov, &mut parts[..count]).filter(|&total| total > 0)?;
        Some(Self {
            parts,
            count,
            total,
        })
    }

    /// The parts that are not empty.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &libc::iovec> {
        self.parts[..self.count]
            .iter()
            .filter(|part| part.iov_len > 0)
    }

    /// Serves the whole vector piece by piece, or nothing.
    fn serve(&self, at: u64, one: impl Fn(u64, &libc::iovec) -> Option<usize>) -> Option<usize> {
        let mut done = 0;
        for part in self.parts() {
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
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return sys::to_libc(answer.and_then(|_| kernel())),
    };
    if let Some(writer) = ofd.writer() {
        return sys::to_libc(writer.read(&ofd, fd, Buffers::Many(iov, count), None));
    }
    let vector = Vector::copy(iov, count);
    sys::to_libc(sequential_read(
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
    ))
}

pub(crate) extern "C" fn writev(fd: i32, iov: *const libc::iovec, count: i32) -> isize {
    let kernel = || sys::writev(fd as usize, iov as usize, count as usize);
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return sys::to_libc(answer.and_then(|_| kernel())),
    };
    if let Some(writer) = ofd.writer() {
        return sys::to_libc(writer.write(&ofd, fd, Buffers::Many(iov, count), None));
    }
    let Some(vector) = Vector::copy(iov, count) else {
        ofd.hand_over_offset(fd);
        return sys::to_libc(kernel());
    };
    sys::to_libc(sequential_write(
        &ofd,
        fd,
        vector.total,
        |at| vector.overwrite(&ofd, fd, at),
        |at| {
            let place = || kernel_pwritev(fd, iov, count, at as i64, 0);
            or_kernel(&ofd, at, None, place, DirectFile::wrote)
        },
        kernel,
    ))
}

pub(crate) extern "C" fn preadv(fd: i32, iov: *const libc::iovec, count: i32, at: i64) -> isize {
    if at < 0 {
        // To the kernel's newer call, which stands in for the old one here, -1 is a position.
        return sys::to_libc(Err(libc::EINVAL));
    }
    positional(
        fd,
        at,
        |writer, ofd| writer.read(ofd, fd, Buffers::Many(iov, count), Some(at)),
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
        |writer, ofd| writer.write(ofd, fd, Buffers::Many(iov, count), Some(at)),
        |ofd, at| Vector::copy(iov, count)?.overwrite(ofd, fd, at),
        || kernel_pwritev(fd, iov, count, at, 0),
        DirectFile::wrote,
    )
}

/// Before a call with flags, which are promises only the kernel can make: returns the flags that it
/// needs besides. Position -1 means the description's own offset.
fn hand_over_for_v2(fd: i32, at: i64) -> Result<i32, i32> {
    let Some(ofd) = fds::served(fd)? else {
        return Ok(0);
    };
    if at == -1 || ofd.writer().is_some() {
        ofd.hand_over(fd)?;
    }
    Ok(ofd.writer().map_or(0, Writer::kernel_flags))
}

/// Whether a call with flags may not write: only the kernel can do it, and what it writes is not what the mode promises.
fn is_refused(fd: i32, at: i64) -> bool {
    let ofd = fds::promoted(fd);
    let writer = ofd.as_ref().and_then(|ofd| ofd.writer());
    // Of other positions, and of what was not opened for it, the kernel says what is wrong.
    at >= -1 && writer.is_some_and(|writer| writer.is_writable() && writer.refuses_copies(fd))
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
            let ready = hand_over_for_v2(fd, at);
            sys::to_libc(ready.and_then(|_| kernel_preadv(fd, iov, count, at, flags)))
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
        _ if is_refused(fd, at) => sys::to_libc(Err(libc::EOPNOTSUPP)),
        _ => {
            let ready = hand_over_for_v2(fd, at);
            sys::to_libc(ready.and_then(|own| kernel_pwritev(fd, iov, count, at, flags | own)))
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
pub(crate) const CERTAIN: i64 = adit_store::staged::FARTHEST as i64;

pub(crate) extern "C" fn lseek(fd: i32, offset: i64, whence: i32) -> i64 {
    let kernel = |offset: i64, whence: i32| {
        sys::lseek(fd as usize, offset as usize, whence as usize).map(|at| at as i64)
    };
    let result = match fds::served(fd) {
        Err(errno) => Err(errno),
        Ok(None) => kernel(offset, whence),
        Ok(Some(ofd)) => sought(&ofd, fd, offset, whence, kernel),
    };
    sys::to_libc(result.map(|at| at as usize)) as i64
}

/// Moves the offset of a served description. Where it may be written to, in turn with what other threads do at it.
fn sought(
    ofd: &Ofd,
    fd: i32,
    offset: i64,
    whence: i32,
    kernel: impl Fn(i64, i32) -> Result<i64, i32>,
) -> Result<i64, i32> {
    let _turn = ofd.writer().map(|_| ofd.turn());
    loop {
        let Offset::At(at) = ofd.offset() else {
            let seek = || kernel(offset, whence);
            let sought = match ofd.writer() {
                Some(writer) => writer.with_kernels_offset(ofd, seek),
                None => Some(seek()),
            };
            match sought {
                Some(result) => break result,
                None => continue,
            }
        };
        let size = || {
            let size = match ofd.writer() {
                Some(writer) => writer.size(ofd, fd)?,
                None => None,
            };
            Ok(size.or_else(|| {
                // Of a file that children have, too, the kernel is not asked in a way that moves its offset.
                ofd.common()?;
                descriptors::regular_file(fd).map(|stat| stat.st_size as u64)
            }))
        };
        let target = match whence {
            libc::SEEK_SET => Some(offset),
            libc::SEEK_CUR => (at as i64).checked_add(offset),
            libc::SEEK_END => match size() {
                Ok(size) => size.and_then(|size| offset.checked_add_unsigned(size)),
                Err(errno) => break Err(errno),
            },
            // Where data is and where holes are, only the kernel knows; others it refuses.
            libc::SEEK_DATA | libc::SEEK_HOLE if ofd.writer().is_some() => {
                break ofd.hand_over(fd).and_then(|()| kernel(offset, whence));
            }
            _ => None,
        };
        // The kernel's own offset is idle while ours counts, so it can be used to ask; but not while a child may be
        // about to take ours there.
        let certain = target.is_some_and(|target| (0..=CERTAIN).contains(&target));
        if target.is_some_and(|target| target < 0) && ofd.common().is_some() {
            break Err(libc::EINVAL);
        }
        if !certain && ofd.common().is_some() {
            break ofd.hand_over(fd).and_then(|()| kernel(offset, whence));
        }
        let moved = match target {
            Some(target) if (0..=CERTAIN).contains(&target) => Ok(target),
            _ if whence == libc::SEEK_CUR => {
                kernel(at as i64, libc::SEEK_SET).and_then(|_| kernel(offset, whence))
            }
            Some(target) => kernel(target, libc::SEEK_SET),
            _ => kernel(offset, whence),
        };
        match moved {
            Ok(to) if !ofd.advance(at, to as u64) => {}
            result => break result,
        }
    }
}

/// What an offered call answers with to be passed on.
pub(crate) const PASS: i64 = i64::MIN;

/// What is answered where nothing is served.
fn passed(answer: Result<Option<Users<'static>>, i32>) -> i64 {
    answer.map_or_else(|errno| descriptors::minus_one(errno), |_| PASS)
}

/// `ftruncate`.
pub(crate) extern "C" fn ftruncate(fd: i32, size: i64) -> i64 {
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return passed(answer),
    };
    if let Some(writer) = ofd.writer() {
        return sys::to_libc(writer.truncate(&ofd, fd, size)) as i64;
    }
    descriptors::before_holes(fd);
    PASS
}

/// `fallocate`.
pub(crate) extern "C" fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> i64 {
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return passed(answer),
    };
    if let Some(writer) = ofd.writer() {
        return sys::to_libc(writer.allocate(&ofd, fd, mode, offset, len)) as i64;
    }
    descriptors::before_holes(fd);
    PASS
}

/// `posix_fallocate`, whose error is its answer. libc fills files in where the file system has no such call.
pub(crate) extern "C" fn posix_fallocate(fd: i32, offset: i64, len: i64) -> i64 {
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return answer.map_or_else(i64::from, |_| PASS),
    };
    let Some(writer) = ofd.writer() else {
        descriptors::before_holes(fd);
        return PASS;
    };
    let errno = sys::errno();
    let done = writer.allocate(&ofd, fd, 0, offset, len);
    sys::set_errno(errno);
    match done {
        Ok(_) => 0,
        Err(libc::EOPNOTSUPP) if !writer.must_stage() => match ofd.hand_over(fd) {
            Ok(()) => PASS,
            Err(errno) => i64::from(errno),
        },
        Err(errno) => i64::from(errno),
    }
}

/// `fsync` and `fdatasync`.
pub(crate) extern "C" fn fsync(fd: i32) -> i64 {
    times::settle_all();
    let ofd = match fds::served(fd) {
        Ok(Some(ofd)) => ofd,
        answer => return passed(answer),
    };
    let answer = ofd.writer().and_then(|writer| writer.sync(&ofd, fd));
    answer.map_or(PASS, |result| sys::to_libc(result) as i64)
}

/// Before `sync_file_range`, which promises nothing: the answer is the kernel's.
pub(crate) extern "C" fn before_sync_range(fd: i32) {
    if let Some(ofd) = fds::promoted(fd)
        && let Some(writer) = ofd.writer()
    {
        writer.sync_if_staged(&ofd, fd);
    }
}

/// Before `sync`, which has no way to say that something could not be committed.
pub(crate) extern "C" fn before_sync() {
    let _ = sync_all(None);
}

/// Before `syncfs`, which says so of files on the file system of `fd`.
pub(crate) extern "C" fn before_syncfs(fd: i32) -> i32 {
    descriptors::refusal(sync_file_system(fd))
}

pub(crate) fn sync_file_system(fd: i32) -> Result<(), i32> {
    let device = descriptors::stat_of(fd).map(|stat| stat.st_dev);
    let synced = sync_all(device);
    if synced.is_err() {
        // What is not staged is made durable all the same.
        let _ = sys::syncfs(fd as usize);
    }
    synced
}

/// Commits all that is staged, and says what became of that on this device.
fn sync_all(device: Option<u64>) -> Result<(), i32> {
    times::settle_all();
    if stage::STAGED.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let mut all = Ok(());
    for (fd, ofd) in fds::each_promoted() {
        let synced = ofd.writer().and_then(|writer| writer.sync(&ofd, fd));
        if let Some(Err(errno)) = synced
            && device.is_some()
            && descriptors::stat_of(fd).map(|stat| stat.st_dev) == device
        {
            all = all.and(Err(errno));
        }
    }
    stack::with_room(closed::wait);
    all
}
