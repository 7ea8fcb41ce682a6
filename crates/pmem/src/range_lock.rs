//! Locks on ranges of a file that belong to an open file description (`F_OFD_SETLK`), and end with it.
//!
//! # Safety
//!
//! The unsafe code is the `fcntl` system call, which rustix does not offer for these locks. The invariant: the argument is
//! a [`Flock`] of this module's own, laid out as the kernel's `struct flock` on 64-bit Linux, and the call neither keeps
//! its address nor touches other memory.
#![allow(unsafe_code)]

use crate::syscall;
use rustix::fd::{AsFd, AsRawFd as _};
use rustix::io::Errno;

const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// `struct flock` of 64-bit Linux.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

impl Flock {
    fn range(kind: i16, start: i64, len: i64) -> Self {
        Self {
            kind,
            whence: 0,
            start,
            len,
            pid: 0,
        }
    }
}

fn fcntl(fd: impl AsFd, command: usize, lock: &mut Flock) -> Result<(), Errno> {
    let lock: *mut Flock = lock;
    let args = [
        fd.as_fd().as_raw_fd() as usize,
        command,
        lock as usize,
        0,
        0,
        0,
    ];
    // SAFETY: it reads and writes the one `Flock` (module invariant).
    let answer = unsafe { syscall::call(libc::SYS_fcntl, args) };
    answer.map(drop).map_err(Errno::from_raw_os_error)
}

/// Locks `len` bytes from `start` on, which may lie behind the file's end, for the description alone; `false` when another
/// one has some of them locked. Zero bytes are all from there on.
pub fn try_lock(fd: impl AsFd, start: i64, len: i64) -> Result<bool, Errno> {
    match fcntl(fd, F_OFD_SETLK, &mut Flock::range(F_WRLCK, start, len)) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether another description has some of these bytes locked.
pub fn is_locked(fd: impl AsFd, start: i64, len: i64) -> Result<bool, Errno> {
    let mut lock = Flock::range(F_WRLCK, start, len);
    fcntl(fd, F_OFD_GETLK, &mut lock)?;
    Ok(lock.kind != F_UNLCK)
}

/// Gives up all such locks of a description.
pub fn unlock_all(fd: impl AsFd) -> Result<(), Errno> {
    fcntl(fd, F_OFD_SETLK, &mut Flock::range(F_UNLCK, 0, 0))
}
