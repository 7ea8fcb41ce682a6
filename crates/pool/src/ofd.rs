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
use std::time::Duration;

use adit_pmem::map::{Access, Mapping};
use adit_pmem::{Reopen, brief};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, kernel};
use crate::file::{FileMedium, bytes};
use crate::slots::{Hold, SlotLocks};

/// Bytes that are locked lie far behind the end of any pool.
const BASE: i64 = 1 << 60;
/// The gate's byte, one before the first slot's.
const GATE: i64 = BASE - 1;
/// The byte of who makes the pool larger.
const GROWTH: i64 = BASE - 2;
/// Times the gate is tried, and the pause between. Growing may have to write a gigabyte.
const GATE_TRIES: u32 = 20_000;
const GROWTH_TRIES: u32 = 8 * GATE_TRIES;
const PAUSE: Duration = Duration::from_micros(250);

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
    fn bytes(at: i64, len: i64) -> Self {
        Self {
            kind: F_WRLCK,
            whence: 0,
            start: at,
            len,
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

/// Gives up all locks of an open file description, of `flock` and of the kind that is its own.
pub fn unlock_description(fd: impl AsFd) {
    let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
    let mut whole = Flock {
        kind: F_UNLCK,
        ..Flock::bytes(0, 0)
    };
    let _ = fcntl(&fd, F_OFD_SETLK, &mut whole);
}

/// A pool file as something to lock, opened anew each time.
#[derive(Debug, Clone)]
pub(crate) struct LockFile {
    path: PathBuf,
    /// Device and inode: the path may name another file by now.
    identity: (u64, u64),
}

/// The locks of a pool file.
pub(crate) struct FileLocks {
    file: LockFile,
    medium: FileMedium,
}

/// One locked byte.
struct ByteHold {
    _mapping: Mapping,
}

impl Hold for ByteHold {}

impl LockFile {
    pub(crate) fn new(path: &Path, fd: impl AsFd) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: identity(fd)?,
        })
    }

    pub(crate) fn open(&self) -> Result<OwnedFd> {
        self.reopen().map(|(fd, _)| fd).map_err(|errno| {
            if errno == Errno::STALE {
                Error::Invalid("the pool was replaced by another file")
            } else {
                kernel("open")(errno)
            }
        })
    }

    fn lock(&self, at: i64) -> Result<Option<Box<dyn Hold>>> {
        let _brief = brief::begin();
        let fd = self.open()?;
        match fcntl(&fd, F_OFD_SETLK, &mut Flock::bytes(at, 1)) {
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

    fn is_locked(&self, at: i64, len: i64) -> Result<bool> {
        let mut lock = Flock::bytes(at, len);
        let _brief = brief::begin();
        fcntl(self.open()?, F_OFD_GETLK, &mut lock).map_err(kernel("fcntl"))?;
        Ok(lock.kind != F_UNLCK)
    }

    /// Whether anybody who lives is attached.
    pub(crate) fn is_any_slot_locked(&self, slots: u32) -> Result<bool> {
        self.is_locked(BASE, i64::from(slots))
    }

    pub(crate) fn gate(&self) -> Result<Box<dyn Hold>> {
        self.wait_for("gate", GATE, GATE_TRIES)
    }

    /// Held while the pool is made larger: blocks are made ready, and zeroed, before anybody knows that
    /// they are there, so two at once would zero what one of them has begun to use.
    pub(crate) fn growth(&self) -> Result<Box<dyn Hold>> {
        self.wait_for("growth", GROWTH, GROWTH_TRIES)
    }

    fn wait_for(&self, lock: &'static str, at: i64, tries: u32) -> Result<Box<dyn Hold>> {
        for _ in 0..tries {
            if let Some(hold) = self.lock(at)? {
                return Ok(hold);
            }
            adit_pmem::rest(PAUSE);
        }
        Err(Error::Busy {
            lock,
            slot: u32::MAX,
            thread: 0,
        })
    }
}

impl Reopen for LockFile {
    fn reopen(&self) -> Result<(OwnedFd, u64), Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd =
            brief::above_standard(|| rustix::fs::open(bytes(&self.path), flags, Mode::empty()))?;
        // Without asking for times: after an answer that had them, the kernel gives the next write a time
        // of its own, however soon it comes, and each sync has to write the inode for it.
        let asked = StatxFlags::INO | StatxFlags::SIZE;
        let stat = rustix::fs::statx(&fd, "", AtFlags::EMPTY_PATH, asked)?;
        let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        if (device, stat.stx_ino) != self.identity {
            return Err(Errno::STALE);
        }
        Ok((fd, stat.stx_size))
    }
}

impl FileLocks {
    pub(crate) fn new(file: LockFile, medium: FileMedium) -> Self {
        Self { file, medium }
    }
}

pub(crate) fn identity(fd: impl AsFd) -> Result<(u64, u64)> {
    let stat = rustix::fs::fstat(fd).map_err(kernel("fstat"))?;
    Ok((stat.st_dev, stat.st_ino))
}

impl SlotLocks for FileLocks {
    fn claim(&self, slot: u32) -> Result<Option<Box<dyn Hold>>> {
        self.file.lock(BASE + i64::from(slot))
    }

    fn is_alive(&self, slot: u32) -> bool {
        self.file
            .is_locked(BASE + i64::from(slot), 1)
            .unwrap_or(true)
    }

    fn is_any_alive(&self, slots: u32) -> bool {
        self.file.is_any_slot_locked(slots).unwrap_or(true)
    }

    fn gate(&self) -> Result<Box<dyn Hold>> {
        let gate = self.file.gate()?;
        self.medium.ensure_current()?;
        Ok(gate)
    }
}
