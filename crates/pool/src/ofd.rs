//! Open-file-description locks on single bytes of the pool file, held by a mapping.
//!
//! An attachment lives exactly while its byte is locked. The lock belongs to an open file description
//! that nothing but one page of mapping keeps alive: the descriptor is closed at once, so no program
//! can close it for us, and the mapping stays out of children. So the lock ends with the process, by
//! death or by exec, and with nothing else; a stopped process keeps it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_pmem::map::{Access, Mapping};
use adit_pmem::{Pauses, Reopen, brief, range_lock};
use rustix::fd::{AsFd, OwnedFd};
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
/// How long the gate is waited for, and how long at first. Growing may have to write a gigabyte.
const FOR_THE_GATE: Duration = Duration::from_secs(5);
const FOR_GROWTH: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_micros(250);

/// Gives up all locks of an open file description, of `flock` and of the kind that is its own.
pub fn unlock_description(fd: impl AsFd) {
    let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
    let _ = range_lock::unlock_all(fd);
}

/// Whether anybody who lives is attached to an open pool.
pub(crate) fn is_any_slot_locked(fd: impl AsFd, slots: u32) -> Result<bool> {
    range_lock::is_locked(fd, BASE, i64::from(slots)).map_err(kernel("fcntl"))
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

    /// See [`crate::PoolFile::is_removed`].
    pub(crate) fn is_removed(&self) -> bool {
        match rustix::fs::stat(bytes(&self.path)) {
            Ok(stat) => (stat.st_dev, stat.st_ino) != self.identity,
            Err(errno) => matches!(errno, Errno::NOENT | Errno::NOTDIR),
        }
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
        if !range_lock::try_lock(&fd, at, 1).map_err(kernel("fcntl"))? {
            return Ok(None);
        }
        let mapping = Mapping::new(&fd, 0, 4096, Access::Read, false)
            .map_err(|_| Error::Invalid("the lock's page cannot be mapped"))?;
        mapping
            .keep_from_children()
            .map_err(|_| Error::Invalid("the lock's page cannot be kept from children"))?;
        Ok(Some(Box::new(ByteHold { _mapping: mapping })))
    }

    fn is_locked(&self, at: i64, len: i64) -> Result<bool> {
        let _brief = brief::begin();
        range_lock::is_locked(self.open()?, at, len).map_err(kernel("fcntl"))
    }

    /// Whether anybody who lives is attached.
    pub(crate) fn is_any_slot_locked(&self, slots: u32) -> Result<bool> {
        let _brief = brief::begin();
        is_any_slot_locked(self.open()?, slots)
    }

    pub(crate) fn gate(&self) -> Result<Box<dyn Hold>> {
        self.wait_for("gate", GATE, FOR_THE_GATE)
    }

    /// Held while the pool is made larger: blocks are made ready, and zeroed, before anybody knows that
    /// they are there, so two at once would zero what one of them has begun to use.
    pub(crate) fn growth(&self) -> Result<Box<dyn Hold>> {
        self.wait_for("growth", GROWTH, FOR_GROWTH)
    }

    fn wait_for(&self, lock: &'static str, at: i64, patience: Duration) -> Result<Box<dyn Hold>> {
        let mut pauses = Pauses::new(PAUSE, patience);
        loop {
            if let Some(hold) = self.lock(at)? {
                return Ok(hold);
            }
            if !pauses.rest() {
                return Err(Error::Busy {
                    lock,
                    slot: u32::MAX,
                    thread: 0,
                });
            }
        }
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

/// The locks of a pool file that is only looked at: who has them is seen, and none can be had.
pub(crate) struct SeenLocks(OwnedFd);

impl SeenLocks {
    pub(crate) fn of(fd: &OwnedFd) -> Result<Self> {
        let own = rustix::io::fcntl_dupfd_cloexec(fd, 0);
        own.map(Self).map_err(kernel("fcntl"))
    }
}

impl SlotLocks for SeenLocks {
    fn claim(&self, _slot: u32) -> Result<Option<Box<dyn Hold>>> {
        Err(Error::Invalid("the pool is only looked at"))
    }

    fn is_alive(&self, slot: u32) -> bool {
        range_lock::is_locked(&self.0, BASE + i64::from(slot), 1).unwrap_or(true)
    }

    fn is_any_alive(&self, slots: u32) -> bool {
        is_any_slot_locked(&self.0, slots).unwrap_or(true)
    }

    fn gate(&self) -> Result<Box<dyn Hold>> {
        Err(Error::Invalid("the pool is only looked at"))
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
