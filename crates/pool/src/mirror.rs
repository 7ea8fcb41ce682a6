//! The mirror: where the tables of a pool on `cached` media are worked on.
//!
//! It is a file beside the pool's, `NAME.tables`, that all processes map; [`adit_pmem::CachedMedium`]
//! says what for. It holds nothing that has to last: what matters is written to the pool at once, and
//! the first process that attaches fills the mirror from there. So it may be lost at any time when
//! nobody is attached, and one of another boot, or of another file of this name, is replaced.
//!
//! A store to it must not fault. Where a file system writes elsewhere what changes (btrfs), a store to a page that was
//! written back needs space, and a lock could not be released on a full disk. There the file of that name is a
//! symbolic link to one in memory ([`MEMORY`]).
//!
//! What must never be is two mirrors of one pool at work. They are made and found under the gate; while
//! anybody is attached none is made; and whoever comes to the gate with a mirror that is no longer the
//! one of that name is sent away.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_pmem::{MIRROR_TAIL, MappedMedium, Persistence, brief};
use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result, kernel};
use crate::file::{Children, bytes};
use crate::layout::PAGE;
use crate::ofd::{LockFile, identity};
use crate::pool::BootId;

/// Where the head lies in the tail, behind the words of the medium.
const HEAD: u64 = MIRROR_TAIL / 2;
const MAGIC: &[u8; 8] = b"ADITTABL";

/// Where mirrors in memory are, and how their names begin.
const MEMORY_DIR: &[u8] = b"/dev/shm/";
const MEMORY: &[u8] = b"/dev/shm/adit-tables-";
/// How often a mirror is tried while somebody looks whether anybody has it open ([`tables_in_memory`]), and how long
/// between.
const LOOKS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(1);
const BTRFS: i64 = 0x9123_683e;
const TMPFS: i64 = 0x0102_1994;

/// What a mirror belongs to; it is compared byte by byte, as it is encoded.
#[derive(Clone, Copy)]
pub(crate) struct Belongs {
    pub(crate) uuid: [u8; 16],
    pub(crate) boot: BootId,
    /// Bytes of tables.
    pub(crate) tables: u64,
    /// Device and inode of the pool: a copy of a pool has a mirror of its own.
    pub(crate) pool: (u64, u64),
    /// The file system: of another one, mounted later, the numbers may be the same.
    pub(crate) system: u64,
    /// Whether there was a mirror in this boot already, as the pool says, and the last one did not leave it clean. It is not
    /// compared.
    pub(crate) doubt: bool,
}

const HEAD_LEN: usize = 72;

impl Belongs {
    fn encode(&self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        head[..8].copy_from_slice(MAGIC);
        head[8..24].copy_from_slice(&self.uuid);
        head[24..40].copy_from_slice(&self.boot.0);
        head[40..48].copy_from_slice(&self.tables.to_le_bytes());
        head[48..56].copy_from_slice(&self.pool.0.to_le_bytes());
        head[56..64].copy_from_slice(&self.pool.1.to_le_bytes());
        head[64..72].copy_from_slice(&self.system.to_le_bytes());
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

fn open(path: &Path) -> core::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    brief::above_standard(|| rustix::fs::open(bytes(path), flags, Mode::empty()))
}

/// Whatever somebody else may have put there, where all may make files, is no mirror of ours.
fn open_in_memory(path: &Path) -> core::result::Result<OwnedFd, Errno> {
    for _ in 0..LOOKS {
        match open(path) {
            Err(Errno::AGAIN) => adit_pmem::rest(PAUSE),
            opened => return opened.map_err(|_| Errno::NOENT),
        }
    }
    Err(Errno::AGAIN)
}

/// The mirrors of this user that lie in memory, open: those of pools at work among them, and those of pools that are
/// gone or lie on file systems that are not mounted. One that nobody has open but the caller may be removed: the next
/// that attaches makes another.
pub fn tables_in_memory() -> Vec<(PathBuf, OwnedFd)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(MEMORY_DIR, flags, Mode::empty()).and_then(Dir::new);
    let ours = |name: &[u8]| {
        let path = Some([MEMORY_DIR, name].concat()).filter(|path| path.starts_with(MEMORY))?;
        let path = PathBuf::from(OsString::from_vec(path));
        let fd = open(&path).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let mut magic = [0; MAGIC.len()];
        let at = (stat.st_size as u64).checked_sub(MIRROR_TAIL)? + HEAD;
        let read = rustix::io::pread(&fd, &mut magic, at).ok()?;
        let is_ours = is_private(&stat) && read == magic.len() && &magic == MAGIC;
        is_ours.then_some((path, fd))
    };
    let entries = dir
        .into_iter()
        .flatten()
        .filter_map(core::result::Result::ok);
    entries
        .filter_map(|entry| ours(entry.file_name().to_bytes()))
        .collect()
}

/// A file that this user alone may open.
pub(crate) fn is_private(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & 0o077 == 0
}

/// The mirror at `path`, if it belongs to this.
pub(crate) fn find(path: &Path, belongs: &Belongs) -> Result<Option<OwnedFd>> {
    let opened = match open(path) {
        Err(Errno::LOOP) => in_memory(path)
            .ok_or(Errno::NOENT)
            .and_then(|there| open_in_memory(OsString::from_vec(there).as_ref())),
        opened => opened,
    };
    let fd = match opened {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(kernel("open the pool's tables")(errno)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(kernel("fstat"))?;
    let ours = is_private(&stat) && stat.st_size as u64 == belongs.len();
    let mut head = [0; HEAD_LEN];
    let read = rustix::io::pread(&fd, &mut head, belongs.tables + HEAD);
    Ok((ours && read == Ok(HEAD_LEN) && head == belongs.encode()).then_some(fd))
}

/// Makes the mirror anew. The caller holds the gate, and nobody is attached.
fn make(path: &Path, pool: &OwnedFd, belongs: &Belongs) -> Result<OwnedFd> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = Path::new(&draft);
    unlink(draft)?;
    let before = own_in_memory(path, belongs);
    let made = make_in_memory(draft, pool, belongs).map_or_else(|| new(draft, pool, belongs), Ok);
    let made = made.and_then(|fd| {
        rustix::fs::rename(bytes(draft), bytes(path)).map_err(kernel("rename"))?;
        Ok(fd)
    });
    if made.is_err() {
        let _ = unlink(draft);
    } else if let Some(before) = before {
        let _ = rustix::fs::unlink(before);
    }
    made
}

/// Removes a mirror, wherever it is.
pub(crate) fn remove(path: &Path, belongs: &Belongs) -> Result<()> {
    if let Some(there) = own_in_memory(path, belongs) {
        let _ = rustix::fs::unlink(there);
    }
    unlink(path)
}

fn unlink(path: &Path) -> Result<()> {
    match rustix::fs::unlink(bytes(path)) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(kernel("unlink")(errno)),
    }
}

/// Where the mirror at this name is, when that is in memory.
fn in_memory(path: &Path) -> Option<Vec<u8>> {
    let there = rustix::fs::readlink(bytes(path), Vec::new()).ok()?;
    let there = there.into_bytes();
    let name = there.strip_prefix(MEMORY)?;
    (!name.contains(&b'/')).then_some(there)
}

/// The same, if it is this pool's, of this boot or another. A link that was copied with its pool leads to the
/// mirror of the pool that it was copied from.
fn own_in_memory(path: &Path, belongs: &Belongs) -> Option<Vec<u8>> {
    let there = in_memory(path)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = rustix::fs::open(there.as_slice(), flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    let (mut head, own) = ([0; HEAD_LEN], belongs.encode());
    let at = (stat.st_size as u64).checked_sub(MIRROR_TAIL)? + HEAD;
    let read = rustix::io::pread(&fd, &mut head, at).ok()?;
    let same = head[..24] == own[..24] && head[48..] == own[48..];
    let user = stat.st_uid == rustix::process::geteuid().as_raw();
    (read == HEAD_LEN && same && user).then_some(there)
}

/// Makes it in memory, and the link to it, on a file system that needs it there. `None` where it is better beside the
/// pool, or cannot be elsewhere.
fn make_in_memory(draft: &Path, pool: &OwnedFd, belongs: &Belongs) -> Option<OwnedFd> {
    let system = |fd: &OwnedFd| rustix::fs::fstatfs(fd).map_or(0, |found| found.f_type);
    if system(pool) != BTRFS {
        return None;
    }
    let mut name = MEMORY.to_vec();
    let random = rustix::fs::open(
        "/proc/sys/kernel/random/uuid",
        OFlags::CLOEXEC,
        Mode::empty(),
    );
    let mut uuid = [0; 36];
    rustix::io::read(random.ok()?, &mut uuid).ok()?;
    name.extend(uuid);
    let there = PathBuf::from(OsString::from_vec(name));
    let fd = new(&there, pool, belongs).ok()?;
    if system(&fd) == TMPFS && rustix::fs::symlink(bytes(&there), bytes(draft)).is_ok() {
        return Some(fd);
    }
    let _ = rustix::fs::unlink(bytes(&there));
    None
}

/// A new file that is a mirror.
fn new(path: &Path, pool: &OwnedFd, belongs: &Belongs) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    let made = brief::above_standard(|| rustix::fs::open(bytes(path), flags, mode));
    let fd = made.map_err(kernel("make the pool's tables"))?;
    if let Err(error) = fill(&fd, pool, belongs) {
        let _ = rustix::fs::unlink(bytes(path));
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
    let mut tail = adit_pmem::mirror_tail(belongs.doubt);
    tail[HEAD as usize..][..HEAD_LEN].copy_from_slice(&belongs.encode());
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
        children: Children,
    ) -> Result<(MappedMedium, Self)> {
        let _gate = locks.gate()?;
        let path = path_of(pool)?;
        let fd = match find(&path, belongs)? {
            Some(fd) => fd,
            None if locks.is_any_slot_locked(slots)? => return Err(Error::TablesLost),
            None => make(&path, pool, belongs)?,
        };
        let map = || MappedMedium::new(&fd, Persistence::Ram, belongs.len() as usize);
        let mapped = children.kept_from(|| map().map_err(Error::Mapping))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that leads anywhere else is no mirror, and nothing is opened or removed there.
    #[test]
    fn only_links_of_our_own_are_followed() {
        let name = format!("adit-mirror-link-{}", std::process::id());
        let link = std::env::temp_dir().join(name);
        let target = |there: &str| {
            let _ = rustix::fs::unlink(bytes(&link));
            rustix::fs::symlink(there, bytes(&link)).expect("link");
            in_memory(&link)
        };
        let ours = "/dev/shm/adit-tables-1";
        assert_eq!(target(ours).as_deref(), Some(ours.as_bytes()));
        for other in [
            "/dev/shm/adit-tables-1/2",
            "/dev/shm/adit-tables-/../../etc",
            "/dev/shm/other",
            "/etc/hostname",
            "adit-tables-1",
        ] {
            assert_eq!(target(other), None, "{other}");
        }
        assert!(matches!(unlink(&link), Ok(())));
        assert_eq!(
            rustix::fs::readlink(bytes(&link), Vec::new()),
            Err(Errno::NOENT)
        );
    }
}
