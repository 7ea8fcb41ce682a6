//! Which pool stages a file: found, or made on first use; and the list of all pools of a user.
//!
//! A pool lies on the file system of the files that it stages, in a directory that only its user can
//! enter: `MOUNT/.adit-UID/pool`, or, where the user may not write to the root of a file system, in
//! the state directory if that lies on the same one. Files on tmpfs have theirs in the runtime
//! directory. A pool that the user asks for is taken for every file that loses nothing by it.
//!
//! Every pool is entered in a list ([`PoolList`]), and found again by that or by where it lies ([`Found`]).

mod found;
mod list;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use adit_pmem::detect::{Mount, medium_of, mount_of_fd, whole_mounts_of};
use adit_pmem::{Medium as _, MediumKind};
use adit_pool::layout::Geometry;
use adit_pool::{Attachment, FileMedium, PoolFile};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::staged::Growth;

pub use found::Found;
use found::usual_places;
pub use list::{Listed, PoolList};

/// Size of a pool made on first use: a sixteenth of the free space, from here up to [`largest`]. Pools
/// grow when they are too small.
const SMALLEST: u64 = 16 << 20;

const TMPFS: u64 = 0x0102_1994;

/// Name of a pool that is made on first use.
const POOL: &str = "pool";

/// Why there is no pool for a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoPool {
    /// The file's medium is not served.
    #[error("files on this file system are left to the kernel: {0}")]
    Medium(String),
    /// The kernel does not say where the file's file system is mounted.
    #[error("the file's mount is not visible here")]
    NoMount,
    /// The directory for the pool cannot be made or used.
    #[error("{path}: no place for a pool: {errno}", path = path.display())]
    Place {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// There is none, and it cannot be made: its file system is full.
    #[error("{path}: no room for a pool: {errno}", path = path.display())]
    NoRoom {
        /// Where it would be.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// The directory for the pool is not this user's alone.
    #[error(
        "{path}: not a private directory of this user; remove it, or choose a pool with --pool",
        path = path.display()
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
    },
    /// What is staged in it would be taken for the original's.
    #[error(
        "{path}: a copy of the pool {original}; remove it (adit pool rm)",
        path = path.display(), original = original.display()
    )]
    Copy {
        /// The pool.
        path: PathBuf,
        /// What it is a copy of.
        original: PathBuf,
    },
    /// Nobody would find the pool after a crash.
    #[error("{path}: the list of pools cannot be written: {errno}", path = path.display())]
    Unlisted {
        /// Where the list is, or would be.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// The pool itself.
    #[error("{path}: {error}", path = path.display())]
    Pool {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        error: adit_pool::Error,
    },
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedPool<'a> {
    /// A pool of his own.
    pub path: Option<&'a [u8]>,
    /// Bytes of one that has to be made.
    pub size: Option<u64>,
}

/// Where pools may be made.
#[derive(Clone, Debug)]
pub struct Places {
    /// The runtime directory.
    pub runtime: PathBuf,
    /// The list of pools.
    pub list: PoolList,
}

impl Places {
    /// The pool for an open file: the one asked for if it fits, else the one that lies, or is made,
    /// where pools of the file's medium belong. It is opened, so it is one, and entered in the list.
    pub fn pool_for(&self, file: BorrowedFd<'_>, asked: AskedPool<'_>) -> Result<PoolFile, NoPool> {
        let medium = medium_of(file);
        if medium.kind == MediumKind::Other {
            return Err(NoPool::Medium(medium.reason.to_string()));
        }
        let path = asked.path.map(|path| Path::new(OsStr::from_bytes(path)));
        if let Some(path) = path
            && fits(path, file, medium.kind).map_err(|errno| NoPool::Place {
                path: path.to_owned(),
                errno,
            })?
        {
            return self.opened(path);
        }
        let mut refused = None;
        for dir in self.directories(file, medium.kind)? {
            let made = self.made(&dir, file, medium.kind);
            match made.and_then(|()| self.opened_or_made(&dir.join(POOL), medium.kind, asked.size))
            {
                // Room may come to be there again: of several reasons it is the one to be told.
                Err(reason @ NoPool::NoRoom { .. }) => refused = Some(reason),
                // A pool that is wrong has to be seen to.
                Err(reason) if !matches!(reason, NoPool::Pool { .. }) => {
                    refused = refused.or(Some(reason));
                }
                pool => return pool,
            }
        }
        Err(refused.unwrap_or(NoPool::NoMount))
    }

    /// Directories for a pool of the file's medium, the best first.
    fn directories(&self, file: BorrowedFd<'_>, kind: MediumKind) -> Result<Vec<PathBuf>, NoPool> {
        let own = format!("adit-{}", rustix::process::geteuid().as_raw());
        if kind == MediumKind::Ram {
            return Ok(vec![self.runtime.clone(), Path::new("/dev/shm").join(own)]);
        }
        let mount = mount_of_fd(file).ok_or(NoPool::NoMount)?;
        let device = rustix::fs::fstat(file).map(|stat| stat.st_dev);
        // Who sees all of the file system would not find a pool in the part that a bind mount shows. Another mount may
        // hide that of all.
        let is_seen = |mount: &Mount| {
            let there = rustix::fs::stat(mount.mount_point.as_bytes());
            there.map(|stat| stat.st_dev) == device
        };
        let wholes = whole_mounts_of(&mount).into_iter().filter(is_seen);
        let on = |mount: Mount| Path::new(&mount.mount_point).join(format!(".{own}"));
        let on_mounts: Vec<PathBuf> = wholes.chain([mount]).map(on).collect();
        let beside_lists = self.lists().into_iter().map(|list| list.dir);
        Ok(on_mounts.into_iter().chain(beside_lists).collect())
    }

    fn made(&self, dir: &Path, file: BorrowedFd<'_>, kind: MediumKind) -> Result<(), NoPool> {
        if let Some(list) = self.lists().iter().find(|list| list.dir == dir) {
            // A new user has not even the directories above it. What fails is told by the next call.
            let _ = list.make_directory();
        }
        private_directory(dir, file, kind)
    }

    fn opened(&self, path: &Path) -> Result<PoolFile, NoPool> {
        let pool = PoolFile::open_without_children(path).map_err(|error| NoPool::Pool {
            path: path.to_owned(),
            error,
        })?;
        self.enter(pool.pool().uuid(), path)?;
        Ok(pool)
    }

    /// Makes sure that whoever recovers finds a pool.
    fn enter(&self, uuid: &[u8; 16], path: &Path) -> Result<(), NoPool> {
        if let Some(original) = self.original_of(uuid, path) {
            return Err(NoPool::Copy {
                path: path.to_owned(),
                original,
            });
        }
        let lists = self.lists();
        let mut refused = lists.is_empty().then(|| NoPool::Unlisted {
            path: self.list.dir.clone(),
            errno: Errno::NOENT,
        });
        for list in lists {
            if let Err(errno) = list.add(uuid, path) {
                // Whose program this is only that knows, and who recovers may have no other list.
                refused = refused.or(Some(NoPool::Unlisted {
                    path: list.dir,
                    errno,
                }));
            }
        }
        let is_found = || {
            let is_usual = usual_places().any(|place| place == path);
            is_usual && self.pools().iter().any(|found| found.path == path)
        };
        match refused {
            Some(reason) if !is_found() => Err(reason),
            _ => Ok(()),
        }
    }

    fn opened_or_made(
        &self,
        path: &Path,
        kind: MediumKind,
        asked: Option<u64>,
    ) -> Result<PoolFile, NoPool> {
        let missing = |error: &NoPool| {
            matches!(error, NoPool::Pool { error: adit_pool::Error::Kernel { errno, .. }, .. }
                if *errno == Errno::NOENT)
        };
        match self.opened(path) {
            Err(error) if missing(&error) => {}
            other => return other,
        }
        let failed = |error| NoPool::Pool {
            path: path.to_owned(),
            error,
        };
        let size = asked.map_or_else(|| first_size(path, kind), |size| size.max(SMALLEST));
        if asked.is_none() && !leaves_room(size, free_beside(path)) {
            let (path, errno) = (path.to_owned(), Errno::NOSPC);
            return Err(NoPool::NoRoom { path, errno });
        }
        match PoolFile::create(path, size, geometry(size)) {
            Ok(_) => {}
            // Somebody else was faster.
            Err(adit_pool::Error::Kernel { errno, .. }) if errno == Errno::EXIST => {}
            // A runtime directory may be small, and there is memory in another place.
            Err(adit_pool::Error::Kernel { errno, .. })
                if [Errno::NOSPC, Errno::DQUOT].contains(&errno) =>
            {
                let path = path.to_owned();
                return Err(NoPool::NoRoom { path, errno });
            }
            Err(error) => return Err(failed(error)),
        }
        self.opened(path)
    }
}

/// Whether a pool may stage a file: it lies on the same device, or its medium keeps at least what the
/// file's medium keeps. An error says nothing of it, and passes.
fn fits(pool: &Path, file: BorrowedFd<'_>, kind: MediumKind) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let pool = match rustix::fs::open(pool.as_os_str().as_bytes(), flags, Mode::empty()) {
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno),
        Err(_) => return Ok(false),
        Ok(pool) => pool,
    };
    let device = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev);
    let there = medium_of(&pool).kind;
    let same = device(file).is_some() && device(file) == device(pool.as_fd());
    Ok(there != MediumKind::Other && (same || strength(there) >= strength(kind)))
}

/// What survives on a medium, as a number.
fn strength(kind: MediumKind) -> u32 {
    match kind {
        MediumKind::Other => 0,
        MediumKind::Ram => 1,
        MediumKind::Cached => 2,
        MediumKind::Dax => 3,
    }
}

/// Makes the directory, and makes sure that it is this user's alone and on the right medium.
fn private_directory(path: &Path, file: BorrowedFd<'_>, kind: MediumKind) -> Result<(), NoPool> {
    let place = |errno| NoPool::Place {
        path: path.to_owned(),
        errno,
    };
    let name = path.as_os_str().as_bytes();
    match rustix::fs::mkdirat(CWD, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(place(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(name, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            return Err(NoPool::NotPrivate {
                path: path.to_owned(),
            });
        }
        Err(errno) => return Err(place(errno)),
    };
    let stat = rustix::fs::fstat(&dir).map_err(place)?;
    let own = stat.st_uid == rustix::process::geteuid().as_raw();
    if !own || stat.st_mode & 0o077 != 0 {
        return Err(NoPool::NotPrivate {
            path: path.to_owned(),
        });
    }
    let there = rustix::fs::fstat(file).map_err(place)?.st_dev;
    // Memory is memory; on other media a pool belongs beside its files.
    let right = match kind {
        MediumKind::Ram => medium_of(&dir).kind == MediumKind::Ram,
        _ => stat.st_dev == there,
    };
    right.then_some(()).ok_or_else(|| place(Errno::XDEV))
}

/// What a pool has at first, at most. On tmpfs its blocks are reserved, so they are taken from memory.
/// Behind a page cache they are written, while the first write of a program waits for it: 256 MB took
/// 3 seconds of a disk.
fn largest(kind: MediumKind) -> u64 {
    match kind {
        MediumKind::Dax => 256 << 20,
        MediumKind::Ram => 64 << 20,
        MediumKind::Cached | MediumKind::Other => 32 << 20,
    }
}

/// Whether a pool lies in a directory, which may be still to be made, or the least that one takes has room there.
#[must_use]
pub fn has_room(directory: &Path) -> bool {
    let there = directory.ancestors().find(|above| above.is_dir());
    let room = there.map_or(0, |there| free_beside(&there.join(POOL)));
    directory.join(POOL).exists() || leaves_room(SMALLEST, room)
}

/// Whether so much free space is not mostly taken by a pool: what it holds has its place in the files, too.
fn leaves_room(size: u64, free: u64) -> bool {
    free / 3 >= size
}

fn first_size(path: &Path, kind: MediumKind) -> u64 {
    (free_beside(path) / 16).clamp(SMALLEST, largest(kind))
}

/// As many files as the names of need an eighth of the pool: a group of them takes a chunk when its
/// first file is entered, and keeps it.
fn geometry(size: u64) -> Geometry {
    let default = Geometry::default();
    let groups = (size >> default.chunk_shift) / 8;
    let files = groups.max(1) * default.names_per_chunk();
    Geometry {
        file_count: default
            .file_count
            .min(u32::try_from(files).unwrap_or(u32::MAX)),
        ..default
    }
}

/// A pool grows to so many times what it was made with before anybody has to publish for want of space: pages that are
/// written over and over are then never published for that, and what is written in a burst is published when it is over.
const AHEAD: u64 = 4;

/// Makes a full pool larger; whether it did.
///
/// When that is needed, because what fills it cannot be published yet, to twice its size, or by less where little is free.
///
/// Ahead of that only where new space costs nothing until it is used, and not where little is free: on a disk its blocks
/// would be written first, which takes longer than to publish.
pub fn grow(pool: &PoolFile, attachment: &Attachment<FileMedium>, growth: Growth) -> bool {
    let (Ok(chunks), Ok(superblock)) = (pool.pool().chunk_count(), pool.pool().superblock()) else {
        return false;
    };
    let geometry = pool.pool().geometry();
    let size = geometry.chunk(chunks);
    let free = free_beside(pool.path());
    let bearable = bearable(size, free);
    let more = match growth {
        Growth::Needed => size.min(bearable),
        Growth::Ahead if pool.pool().medium().fence_is_slow() => 0,
        Growth::Ahead => {
            let most = geometry
                .chunk(superblock.first_chunks)
                .saturating_mul(AHEAD);
            let more = size.min(most.saturating_sub(size));
            more.min(free / 16).min(bearable)
        }
        // Where there is no block left it is refused.
        Growth::ToPublish => geometry.chunk_size(),
    };
    let more = more - more % geometry.chunk_size();
    more > 0 && matches!(pool.grow(attachment, size + more), Ok(now) if now > chunks)
}

/// By how much a pool may grow beside so much free space. All that it can hold then has its place in the files, too: it was
/// accepted while there was room for it (`room.rs`), and would never get there if the pool took that.
fn bearable(size: u64, free: u64) -> u64 {
    free.saturating_sub(size) / 2
}

/// Bytes that are free where a pool lies.
fn free_beside(pool: &Path) -> u64 {
    let dir = pool.parent().unwrap_or(pool);
    match rustix::fs::statfs(dir.as_os_str().as_bytes()) {
        // A tmpfs without a limit reports no blocks at all.
        Ok(fs) if fs.f_blocks == 0 => u64::MAX,
        Ok(fs) => fs.f_bavail.saturating_mul(fs.f_bsize as u64),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_new_user_has_a_place_for_a_pool() {
        let scratch = Scratch::new();
        let places = Places {
            runtime: scratch.path("runtime"),
            list: PoolList::at(&scratch.path("home/.local/state/adit")),
        };
        std::fs::create_dir(scratch.path("home")).expect("create");
        let name = scratch.path("file");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(name.as_os_str().as_bytes(), flags, Mode::RUSR);
        let file = file.expect("create");
        let kind = medium_of(&file).kind;
        let dir = places.list.directory();
        places.made(dir, file.as_fd(), kind).expect("a place");
        assert!(dir.is_dir());
        // Others are not made from nothing: they belong to a mount, or to the session.
        let nowhere = scratch.path("no/such/mount");
        assert!(places.made(&nowhere, file.as_fd(), kind).is_err());
    }

    #[test]
    fn a_pool_grows_to_half_of_what_is_free() {
        const CHUNK: u64 = 2 << 20;
        for start in [40 << 20, 300 << 20, 1 << 30, 1_u64 << 40] {
            let (mut pool, mut free) = (16 << 20, start);
            loop {
                let more = pool.min(bearable(pool, free)) / CHUNK * CHUNK;
                if more == 0 {
                    break;
                }
                pool += more;
                free -= more;
                assert!(free >= pool, "{pool} bytes may have no place in {free}");
            }
            assert!(
                free < pool + 2 * CHUNK,
                "{free} bytes are left beside {pool}"
            );
        }
        assert_eq!(bearable(64 << 20, 60 << 20), 0);
        assert!(!leaves_room(SMALLEST, 40 << 20) && leaves_room(SMALLEST, 48 << 20));
    }

    #[test]
    fn a_program_never_waits_for_a_large_pool_to_be_written() {
        let here = Path::new("/dev/shm/pool");
        assert!((SMALLEST..=32 << 20).contains(&first_size(here, MediumKind::Cached)));
        assert!((SMALLEST..=64 << 20).contains(&first_size(here, MediumKind::Ram)));
        let nowhere = Path::new("/no such directory/pool");
        assert_eq!(first_size(nowhere, MediumKind::Cached), SMALLEST);
        for kind in [MediumKind::Ram, MediumKind::Cached, MediumKind::Dax] {
            assert!(geometry(SMALLEST).file_count >= 256 && largest(kind) >= SMALLEST);
            assert!(geometry(largest(kind)).file_count >= 512);
        }
    }
}
