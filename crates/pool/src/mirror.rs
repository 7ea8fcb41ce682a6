//! The mirror: where the tables of a pool on `cached` media are worked on.
//!
//! It is a file beside the pool's, `NAME.tables`, that all processes map; [`adit_pmem::CachedMedium`]
//! says what for. It holds nothing that has to last: what matters is written to the pool at once, and
//! the first process that attaches fills the mirror from there. So it may be lost at any time when
//! nobody is attached, and one of another boot, or of another file of this name, is replaced.
//!
//! What must never be is two mirrors of one pool at work. They are made and found under the gate; while
//! anybody is attached none is made; and whoever comes to the gate with a mirror that is no longer the
//! one of that name is sent away.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use adit_pmem::{MIRROR_TAIL, MappedMedium, Persistence};
use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, kernel};
use crate::file::bytes;
use crate::layout::PAGE;
use crate::ofd::{LockFile, identity};
use crate::pool::BootId;

/// Where the head lies in the tail, behind the words of the medium.
const HEAD: u64 = MIRROR_TAIL / 2;
const MAGIC: &[u8; 8] = b"ADITTABL";

/// What a mirror belongs to; it is compared byte by byte.
#[derive(Clone, Copy)]
pub(crate) struct Belongs {
    pub(crate) uuid: [u8; 16],
    pub(crate) boot: BootId,
    /// Bytes of tables.
    pub(crate) tables: u64,
    /// Device and inode of the pool: a copy of a pool has a mirror of its own.
    pub(crate) pool: (u64, u64),
}

const HEAD_LEN: usize = 64;

impl Belongs {
    fn encode(&self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        head[..8].copy_from_slice(MAGIC);
        head[8..24].copy_from_slice(&self.uuid);
        head[24..40].copy_from_slice(&self.boot.0);
        head[40..48].copy_from_slice(&self.tables.to_le_bytes());
        head[48..56].copy_from_slice(&self.pool.0.to_le_bytes());
        head[56..64].copy_from_slice(&self.pool.1.to_le_bytes());
        head
    }

    fn len(&self) -> u64 {
        self.tables + MIRROR_TAIL
    }
}

/// The name of the mirror of an open pool file, whatever path that was opened by.
pub(crate) fn path_of(pool: impl AsFd) -> Result<PathBuf> {
    let link = format!("/proc/thread-self/fd/{}", pool.as_fd().as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new()).map_err(kernel("readlink"))?;
    let mut path = path.into_bytes();
    path.extend(b".tables");
    Ok(OsString::from_vec(path).into())
}

/// The mirror at `path`, if it belongs to this.
pub(crate) fn find(path: &PathBuf, belongs: &Belongs) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match rustix::fs::open(bytes(path), flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
        Err(errno) => return Err(kernel("open the pool's tables")(errno)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(kernel("fstat"))?;
    let ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & 0o077 == 0
        && stat.st_size as u64 == belongs.len();
    let mut head = [0; HEAD_LEN];
    let read = rustix::io::pread(&fd, &mut head, belongs.tables + HEAD);
    Ok((ours && read == Ok(HEAD_LEN) && head == belongs.encode()).then_some(fd))
}

/// Makes the mirror anew. The caller holds the gate, and nobody is attached.
fn make(path: &PathBuf, pool: &OwnedFd, belongs: &Belongs) -> Result<OwnedFd> {
    let mut draft = path.clone().into_os_string();
    draft.push(".new");
    match rustix::fs::unlink(draft.as_bytes()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(kernel("unlink")(errno)),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    let fd = rustix::fs::open(draft.as_bytes(), flags, mode)
        .map_err(kernel("make the pool's tables"))?;
    let made = fill(&fd, pool, belongs)
        .and_then(|()| rustix::fs::rename(draft.as_bytes(), bytes(path)).map_err(kernel("rename")));
    if let Err(error) = made {
        let _ = rustix::fs::unlink(draft.as_bytes());
        return Err(error);
    }
    Ok(fd)
}

fn fill(fd: &OwnedFd, pool: &OwnedFd, belongs: &Belongs) -> Result<()> {
    let mut block = [0; PAGE as usize];
    let mut at = 0;
    while at < belongs.tables {
        let read = rustix::io::pread(pool, &mut block, at).map_err(kernel("pread"))?;
        if read != block.len() {
            return Err(Error::Truncated {
                expected: belongs.tables,
                found: at,
            });
        }
        write_all(fd, at, &block)?;
        at += PAGE;
    }
    let mut tail = [0; MIRROR_TAIL as usize];
    tail[HEAD as usize..][..HEAD_LEN].copy_from_slice(&belongs.encode());
    // Writes begun and ended, none of them covered by a sync: see the medium.
    tail[0] = 1;
    tail[64] = 1;
    write_all(fd, belongs.tables, &tail)
}

pub(crate) fn write_all(fd: &OwnedFd, offset: u64, from: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < from.len() {
        match rustix::io::pwrite(fd, &from[done..], offset + done as u64) {
            Ok(0) => return Err(kernel("pwrite")(Errno::IO)),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(kernel("pwrite")(errno)),
        }
    }
    Ok(())
}

/// A mirror at work.
#[derive(Debug)]
pub(crate) struct Mirror {
    path: PathBuf,
    identity: (u64, u64),
}

impl Mirror {
    /// Finds the mirror of a pool, or makes it when nobody is attached.
    pub(crate) fn open(
        pool: &OwnedFd,
        locks: &LockFile,
        slots: u32,
        belongs: &Belongs,
    ) -> Result<(MappedMedium, Self)> {
        let _gate = locks.gate()?;
        let path = path_of(pool)?;
        let fd = match find(&path, belongs)? {
            Some(fd) => fd,
            None if locks.is_any_slot_locked(slots)? => return Err(Error::TablesLost),
            None => make(&path, pool, belongs)?,
        };
        let mapped = MappedMedium::new(&fd, Persistence::Ram, belongs.len() as usize)
            .map_err(Error::Mapping)?;
        let identity = identity(&fd)?;
        Ok((mapped, Self { path, identity }))
    }

    /// Fails when the mirror of this name is another one by now.
    pub(crate) fn ensure_current(&self) -> Result<()> {
        let stat = rustix::fs::stat(bytes(&self.path));
        if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity) {
            return Ok(());
        }
        Err(Error::TablesLost)
    }
}
