//! Open-file-description locks on single bytes of the pool file, held by a mapping.
//!
//! An attachment lives exactly while its byte is locked. The lock belongs to an open file description
//! that nothing but one page of mapping keeps alive: the descriptor is closed at once, so no program
//! can close it for us, and the mapping stays out of children. So the lock ends with the process, by
//! death or by exec, and with nothing else; a stopped process keeps it.
//!
//! # Safety
//!
//! The unsafe code is the `fcntl` system call, which rustix does not offer for these locks and which
//! libc would let the preloaded library intercept. The invariant: the argument is a [`Flock`] of this
//! function's own, laid out as the kernel's `struct flock` on 64-bit Linux, and the call neither keeps
//! its address nor touches other memory.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_pmem::MappedMedium;
use adit_pmem::map::{Access, Mapping};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, kernel};
use crate::file::bytes;
use crate::slots::{Hold, SlotLocks};

/// Bytes that are locked lie far behind the end of any pool.
const BASE: i64 = 1 << 60;
/// The gate's byte, one before the first slot's.
const GATE: i64 = BASE - 1;
/// Times the gate is tried, and the pause between.
const GATE_TRIES: u32 = 20_000;
const GATE_PAUSE: Duration = Duration::from_micros(250);

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
    fn byte(at: i64) -> Self {
        Self {
            kind: F_WRLCK,
            whence: 0,
            start: at,
            len: 1,
            pid: 0,
        }
    }
}

fn fcntl(fd: impl AsFd, command: usize, lock: &mut Flock) -> Result<(), Errno> {
    let fd = fd.as_fd().as_raw_fd() as usize;
    let argument: *mut Flock = lock;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: system call 72 is fcntl; it reads and writes the one `Flock` (module invariant).
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") 72_isize => result,
            in("rdi") fd,
            in("rsi") command,
            in("rdx") argument,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: system call 25 is fcntl; it reads and writes the one `Flock` (module invariant).
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") 25_usize,
            inlateout("x0") fd as isize => result,
            in("x1") command,
            in("x2") argument,
            options(nostack),
        );
    }
    if result < 0 {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(())
    }
}

/// The locks of a pool file.
pub(crate) struct FileLocks {
    path: PathBuf,
    /// Device and inode: the path may name another file by now.
    identity: (u64, u64),
    medium: Arc<MappedMedium>,
}

/// One locked byte.
struct ByteHold {
    _mapping: Mapping,
}

impl Hold for ByteHold {}

impl FileLocks {
    pub(crate) fn new(path: &Path, fd: impl AsFd, medium: Arc<MappedMedium>) -> Result<Self> {
        let identity = identity(fd)?;
        Ok(Self {
            path: path.to_owned(),
            identity,
            medium,
        })
    }

    pub(crate) fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(bytes(&self.path), flags, Mode::empty()).map_err(kernel("open"))?;
        if identity(&fd)? != self.identity {
            return Err(Error::Invalid("the pool was replaced by another file"));
        }
        Ok(fd)
    }

    fn lock(&self, at: i64) -> Result<Option<Box<dyn Hold>>> {
        let fd = self.open()?;
        match fcntl(&fd, F_OFD_SETLK, &mut Flock::byte(at)) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(kernel("fcntl")(errno)),
        }
        let mapping = Mapping::new(&fd, 0, 4096, Access::Read, false)
            .map_err(|_| Error::Invalid("the lock's page cannot be mapped"))?;
        mapping
            .keep_from_children()
            .map_err(|_| Error::Invalid("the lock's page cannot be kept from children"))?;
        Ok(Some(Box::new(ByteHold { _mapping: mapping })))
    }

    fn is_locked(&self, at: i64) -> Result<bool> {
        let mut lock = Flock::byte(at);
        fcntl(self.open()?, F_OFD_GETLK, &mut lock).map_err(kernel("fcntl"))?;
        Ok(lock.kind != F_UNLCK)
    }
}

fn identity(fd: impl AsFd) -> Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd).map_err(kernel("fstat"))?;
    Ok((stat.st_dev, stat.st_ino))
}

impl SlotLocks for FileLocks {
    fn claim(&self, slot: u32) -> Result<Option<Box<dyn Hold>>> {
        self.lock(BASE + i64::from(slot))
    }

    fn is_alive(&self, slot: u32) -> bool {
        self.is_locked(BASE + i64::from(slot)).unwrap_or(true)
    }

    fn gate(&self) -> Result<Box<dyn Hold>> {
        for _ in 0..GATE_TRIES {
            if let Some(hold) = self.lock(GATE)? {
                return Ok(hold);
            }
            std::thread::sleep(GATE_PAUSE);
        }
        Err(Error::Busy {
            lock: "gate",
            slot: u32::MAX,
            thread: 0,
        })
    }

    fn refresh(&self) -> bool {
        let grown = || -> Option<u64> {
            let fd = self.open().ok()?;
            let size = rustix::fs::fstat(&fd).ok()?.st_size as u64;
            self.medium.grow(&fd, size - size % 4096).ok()
        };
        grown().is_some()
    }
}
