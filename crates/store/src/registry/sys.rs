//! The few kernel calls of the registry, in a form a signal handler may use: raw system calls, no
//! allocation, and a descriptor type whose drop never reaches an interposed `close`.
//!
//! # Safety
//!
//! An `unsafe` block closes a descriptor number. The invariant: a [`Fd`] is only made from an
//! owned descriptor that rustix has just opened, or under the promise of [`Fd::inherited`], so the number
//! is ours until the drop.
#![allow(unsafe_code)]

use adit_pmem::brief;
use core::ffi::CStr;

use rustix::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// An owned descriptor that closes itself with a raw system call.
///
/// The standard library's own type would call libc's `close`, which under the preloaded library is
/// our interposed one (cargo may unify rustix's `std` feature into this build at any time).
#[derive(Debug)]
pub(crate) struct Fd(RawFd);

impl Fd {
    /// Takes over an open descriptor.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd.into_raw_fd())
    }

    /// Takes over a descriptor that was left open for this process, which closes on `exec` again.
    ///
    /// # Safety
    ///
    /// Nobody else in the process has it, or will.
    pub(crate) unsafe fn inherited(number: RawFd) -> Option<Self> {
        let fd = borrow(number)?;
        match insist(|| rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)) {
            Err(Errno::BADF) => None,
            // It is there, whatever the kernel says: at worst it stays open for longer than it is needed.
            _ => Some(Self(number)),
        }
    }

    /// The descriptor's number.
    pub(crate) fn raw(&self) -> RawFd {
        self.0
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is an open descriptor of ours until `self` is dropped, and the borrow
        // cannot outlive `self`.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the number came from an owned descriptor and nobody else closes it.
        unsafe { rustix::io::close(self.0) }
    }
}

/// Opens relative to `dir` without following a symbolic link in the last component.
pub(crate) fn open_at(dir: &Fd, name: &CStr, flags: OFlags, mode: Mode) -> Result<Fd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(dir.as_fd(), name, flags, mode).map(Fd::new)
}

/// Opens a path without following a symbolic link in the last component, under a number that is none of the standard
/// descriptors'.
pub(crate) fn open(path: &CStr, flags: OFlags) -> Result<Fd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    brief::above_standard(|| rustix::fs::openat(CWD, path, flags, Mode::empty())).map(Fd::new)
}

/// Pins what a path leads to, magic links included, without opening it: no lease breaks, no event
/// is raised, no lock is lost when the pin goes.
pub(crate) fn pin(path: &CStr, flags: OFlags) -> Result<Fd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map(Fd::new)
}

/// `statx` of an open descriptor with the birth time, which tells a reused inode number apart.
pub(crate) fn statx(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, want)
}

/// Tries to take the whole-file lock; `Ok(false)` when somebody else holds it.
///
/// This is `flock`, whose lock belongs to the open description just as an OFD lock does: it goes
/// when the last descriptor **and the last mapping** made through the description are gone.
pub(crate) fn try_lock(fd: &Fd, operation: FlockOperation) -> Result<bool, Errno> {
    match rustix::fs::flock(fd.as_fd(), operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes a call that the kernel may refuse for want of something a few times. For calls without which somebody who
/// relies on this process would wait in vain.
pub(crate) fn insist<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..3 {
        match call() {
            Err(Errno::BADF) => return Err(Errno::BADF),
            Err(_) => {}
            done => return done,
        }
    }
    call()
}

/// Reads until `into` is full or the file ends; the number of bytes read.
pub(crate) fn read_full(fd: &Fd, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd.as_fd(), rest, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A borrowed view of a descriptor number of the program.
///
/// The number may be stale: every caller treats the answer of the kernel as a hint and checks what
/// the descriptor leads to.
pub(crate) fn borrow(fd: RawFd) -> Option<BorrowedFd<'static>> {
    // SAFETY: borrowing demands a number other than -1; a number that is not open only makes the
    // system call fail, because nothing is closed or mapped through this view.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}
