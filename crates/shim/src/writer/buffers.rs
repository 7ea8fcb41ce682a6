//! A program's buffers, for the engine's copies and for the kernel's.
//!
//! # Safety
//! Program buffers are only used by the engine's guarded copies and by the kernel.
#![allow(unsafe_code)]

use super::Doubt;
use crate::data::{self, Vector};
use crate::signal::mask;
use crate::stage::Staged;
use crate::sys;
/// Calls that reach beyond here are the kernel's: file systems have limits, and it knows them.
pub(super) use adit_store::staged::FARTHEST;
use adit_store::staged::Place;
use core::ffi::c_void;

/// A program's buffers.
#[derive(Clone, Copy)]
pub(crate) enum Buffers {
    /// One.
    One(libc::iovec),
    /// A vector of them.
    Many(*const libc::iovec, i32),
}

impl Buffers {
    /// A buffer to fill.
    pub(crate) fn into(at: *mut c_void, len: usize) -> Self {
        Self::One(libc::iovec {
            iov_base: at,
            iov_len: len,
        })
    }

    /// A buffer to take from.
    pub(crate) fn from(at: *const c_void, len: usize) -> Self {
        Self::into(at.cast_mut(), len)
    }

    /// Nothing is to be moved, or the kernel refuses it without a look at the file: no state matters.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        match *self {
            Self::One(one) => one.iov_len == 0 || one.iov_len > isize::MAX as usize,
            Self::Many(parts, listed) => moves_nothing(parts, listed),
        }
    }

    /// The kernel's read; at its own offset where `at` is -1.
    pub(super) fn kernel_read(&self, fd: i32, at: i64) -> sys::Result {
        let (fd, position) = (fd as usize, at as usize);
        match *self {
            Self::One(one) if at < 0 => sys::read(fd, one.iov_base as usize, one.iov_len),
            Self::One(one) => sys::pread(fd, one.iov_base as usize, one.iov_len, position),
            Self::Many(parts, count) => {
                sys::preadv2(fd, parts as usize, count as usize, position, 0, 0)
            }
        }
    }

    /// The kernel's write; at its own offset where `at` is -1.
    pub(super) fn kernel_write(&self, fd: i32, at: i64, durable: bool) -> sys::Result {
        if !durable {
            return self.plain_write(fd, at);
        }
        match self.durable_write(fd, at) {
            // A filter that the program was started under may let through what it calls itself, and nothing else.
            None | Some(Err(libc::ENOSYS | libc::EPERM | libc::EACCES)) => {
                let written = self.plain_write(fd, at)?;
                sys::fdatasync(fd as usize)?;
                Ok(written)
            }
            Some(written) => written,
        }
    }

    /// The write and its sync in one call. Of lengths beyond its limit the kernel thinks differently in a vector.
    fn durable_write(&self, fd: i32, at: i64) -> Option<sys::Result> {
        let (parts, count) = match self {
            Self::One(one) if one.iov_len > data::LONGEST => return None,
            Self::One(one) => (&raw const *one as usize, 1),
            Self::Many(parts, count) => (*parts as usize, *count as usize),
        };
        let flags = libc::RWF_DSYNC as usize;
        Some(sys::pwritev2(
            fd as usize,
            parts,
            count,
            at as usize,
            0,
            flags,
        ))
    }

    /// The call that the program has made.
    fn plain_write(&self, fd: i32, at: i64) -> sys::Result {
        let (fd, position) = (fd as usize, at as usize);
        match *self {
            Self::One(one) if at < 0 => sys::write(fd, one.iov_base as usize, one.iov_len),
            Self::One(one) => sys::pwrite(fd, one.iov_base as usize, one.iov_len, position),
            Self::Many(parts, count) if at < 0 => sys::writev(fd, parts as usize, count as usize),
            Self::Many(parts, count) => {
                sys::pwritev(fd, parts as usize, count as usize, position, 0)
            }
        }
    }
}

/// Whether a vector of so many parts moves nothing, or the kernel refuses it.
fn moves_nothing(parts: *const libc::iovec, listed: i32) -> bool {
    if !(0..=libc::UIO_MAXIOV).contains(&listed) {
        return true;
    }
    // What blocks the signals is the kernel's to look at.
    if listed > 0 && !mask::faults_open() {
        return false;
    }
    (0..listed as usize).all(|nth| {
        let mut part = [data::NO_PART];
        data::copy_parts(parts.wrapping_add(nth), &mut part) == Some(0)
    })
}

/// One call is one write, which happens entirely or not at all.
pub(super) fn write_from(
    staged: &Staged,
    place: Place,
    parts: &[(*const u8, usize)],
    len: usize,
) -> Result<u64, Doubt> {
    if matches!(place, Place::At(at) if at.saturating_add(len as u64) > FARTHEST) {
        return Err(Doubt::Unserved);
    }
    // SAFETY: the buffers are the program's; a fault in them is an error.
    Ok(unsafe { staged.file().writev_from(place, parts) }?)
}

/// And one read, which sees no write in part.
pub(super) fn read_into(
    staged: &Staged,
    at: u64,
    parts: &[(*mut u8, usize)],
) -> Result<usize, Doubt> {
    if at > FARTHEST {
        return Err(Doubt::Unserved);
    }
    // SAFETY: the buffers are the program's to fill; a fault in them is an error.
    Ok(unsafe { staged.file().readv_into(at, parts) }?)
}

/// Gives a program's buffers to the engine as it takes them, addresses and lengths, with the length of all.
/// What is left to the kernel: nothing, too much, or a vector that cannot be read.
pub(super) fn with_parts<A: Copy, T>(
    buffers: &Buffers,
    address: fn(*mut c_void) -> A,
    work: impl FnOnce(&[(A, usize)], usize) -> Result<T, Doubt>,
) -> Result<T, Doubt> {
    let (parts, listed) = match buffers {
        Buffers::One(one) => {
            let len = one.iov_len;
            return if (1..=data::LONGEST).contains(&len) {
                work(&[(address(one.iov_base), len)], len)
            } else {
                Err(Doubt::Unserved)
            };
        }
        Buffers::Many(parts, listed) => (*parts, *listed),
    };
    let filled = |part: &libc::iovec| (address(part.iov_base), part.iov_len);
    if listed > Vector::MOST as i32 {
        // Memory may be taken: handlers of signals wait until this is over.
        let mut copied = vec![data::NO_PART; listed as usize];
        let total = data::copy_parts(parts, &mut copied).ok_or(Doubt::Unserved)?;
        let list = copied.iter().filter(|part| part.iov_len > 0).map(filled);
        return work(&list.collect::<Vec<_>>(), total);
    }
    let vector = Vector::copy(parts, listed).ok_or(Doubt::Unserved)?;
    let mut list = [(address(core::ptr::null_mut()), 0); Vector::MOST];
    let mut count = 0;
    for (to, part) in list.iter_mut().zip(vector.parts()) {
        *to = filled(part);
        count += 1;
    }
    let total = list[..count].iter().map(|(_, len)| *len).sum();
    work(&list[..count], total)
}
