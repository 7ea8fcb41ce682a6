//! Which pool stages a file: found, or made on first use; and the list of all pools of a user.
//!
//! A pool lies on the file system of the files that it stages, in a directory that only its user can
//! enter: `MOUNT/.adit-UID/pool`, or, where the user may not write to the root of a file system, in
//! the state directory if that lies on the same one. Files on tmpfs have theirs in the runtime
//! directory. A pool that the user asks for is taken for every file that loses nothing by it.
//!
//! Every pool is entered in a list in the user's state directory, which survives reboots: it says
//! what has to be recovered. The list is text, one pool a line, `UUID PATH`; lines that are not
//! understood are passed over. It is replaced as a whole, under a lock, so no reader sees half of it.
//!
//! Programs of one user may have different state directories, or none that they can write to, and the
//! monitor has that of whoever started it. So `adit run` announces its list in the runtime directory, and
//! a pool is entered in each list there. And whoever recovers looks where pools are made besides: a pool
//! in such a place needs no list. What is in neither stages nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_pmem::MediumKind;
use adit_pmem::detect::{medium_of, mount_of_fd};
use adit_pool::layout::Geometry;
use adit_pool::{Attachment, FileMedium, PoolFile};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{Access, AtFlags, CWD, Dir, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::registry::sys::{self, Fd};

/// Size of a pool made on first use: a sixteenth of the free space, from here up to [`largest`]. Pools
/// grow when they are too small.
const SMALLEST: u64 = 16 << 20;

/// The list is never longer than this; what is longer was not written by us.
const LONGEST_LIST: usize = 1 << 20;

/// How long somebody else who changes the list is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

const TMPFS: u64 = 0x0102_1994;

/// File systems that files are staged on, as the kernel calls them.
const SERVED: [&str; 5] = ["ext2", "ext4", "xfs", "btrfs", "tmpfs"];

/// Lists that are looked at, at most.
const MOST_LISTS: usize = 256;

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
    /// The directory for the pool is not this user's alone.
    #[error(
        "{path}: not a private directory of this user; remove it, or choose a pool with --pool",
        path = path.display()
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
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
    pub fn pool_for(&self, file: BorrowedFd<'_>, asked: Option<&Path>) -> Result<PoolFile, NoPool> {
        let medium = medium_of(file);
        if medium.kind == MediumKind::Other {
            return Err(NoPool::Medium(medium.reason.to_string()));
        }
        if let Some(path) = asked.filter(|path| fits(path, file, medium.kind)) {
            return self.opened(path);
        }
        let mut refused = None;
        for dir in self.directories(file, medium.kind)? {
            let made = self.made(&dir, file, medium.kind);
            match made.and_then(|()| self.opened_or_made(&dir.join(POOL), medium.kind)) {
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
        let on_mount = Path::new(&mount.mount_point).join(format!(".{own}"));
        let beside_lists = self.lists().into_iter().map(|list| list.dir);
        Ok([on_mount].into_iter().chain(beside_lists).collect())
    }

    fn made(&self, dir: &Path, file: BorrowedFd<'_>, kind: MediumKind) -> Result<(), NoPool> {
        if let Some(list) = self.lists().iter().find(|list| list.dir == dir) {
            // A new user has not even the directories above it. What fails is told by the next call.
            let _ = list.make_directory();
        }
        private_directory(dir, file, kind)
    }

    fn opened(&self, path: &Path) -> Result<PoolFile, NoPool> {
        let pool = PoolFile::open(path).map_err(|error| NoPool::Pool {
            path: path.to_owned(),
            error,
        })?;
        self.enter(pool.pool().uuid(), path)?;
        Ok(pool)
    }

    /// Makes sure that whoever recovers finds a pool.
    fn enter(&self, uuid: &[u8; 16], path: &Path) -> Result<(), NoPool> {
        let entered: Vec<_> = self
            .lists()
            .iter()
            .map(|list| list.add(uuid, path))
            .collect();
        match entered.first() {
            Some(Err(errno)) if entered.iter().all(Result::is_err) => {
                let found = usual_places().any(|place| place == path);
                found.then_some(()).ok_or_else(|| NoPool::Unlisted {
                    path: self.list.dir.clone(),
                    errno: *errno,
                })
            }
            _ => Ok(()),
        }
    }

    /// Tells the monitor of this runtime directory, and who recovers what is left under it, where the list
    /// is. Nothing is made where the list will be.
    pub fn announce(&self) -> Result<(), Errno> {
        let names = self.announced();
        let target = self.list.dir.as_os_str().as_bytes();
        // Two lists for whose directories one name comes out are one too many for this.
        let link = names.join(format!("{:08x}", crc32c::crc32c(target)));
        let link = link.as_os_str().as_bytes();
        let is_there = rustix::fs::readlinkat(CWD, link, Vec::new());
        if is_there.is_ok_and(|there| there.to_bytes() == target) {
            return Ok(());
        }
        match rustix::fs::mkdirat(CWD, names.as_os_str().as_bytes(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => rustix::fs::symlinkat(target, CWD, link),
            Err(errno) => Err(errno),
        }
    }

    fn announced(&self) -> PathBuf {
        self.runtime.join("lists")
    }

    /// Its own list, and those that were announced.
    fn lists(&self) -> Vec<PoolList> {
        let mut all = vec![self.list.clone()];
        let names = self.announced();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(names.as_os_str().as_bytes(), flags, Mode::empty());
        let Some(entries) = opened.ok().and_then(|fd| Dir::read_from(fd).ok()) else {
            return all;
        };
        for entry in entries.filter_map(Result::ok).take(MOST_LISTS) {
            let link = names.join(OsStr::from_bytes(entry.file_name().to_bytes()));
            let Ok(dir) = rustix::fs::readlinkat(CWD, link.as_os_str().as_bytes(), Vec::new())
            else {
                continue;
            };
            let dir = Path::new(OsStr::from_bytes(dir.to_bytes())).to_owned();
            if dir.is_absolute() && all.iter().all(|list| list.dir != dir) {
                all.push(PoolList { dir });
            }
        }
        all
    }

    /// The pools of all lists, each path once.
    pub(crate) fn listed(&self) -> Vec<Listed> {
        let mut all: Vec<Listed> = Vec::new();
        for line in self.lists().iter().flat_map(PoolList::read) {
            if all.iter().all(|known| known.path != line.path) {
                all.push(line);
            }
        }
        all
    }

    /// All pools that dead programs may have left something in: those of the lists, and those that lie where
    /// pools are made and are in no list.
    #[must_use]
    pub fn pools(&self) -> Vec<PathBuf> {
        let listed = self.listed();
        let own = [self.runtime.join(POOL), self.list.dir.join(POOL)];
        let mut unlisted: Vec<Unlisted> = Vec::new();
        for path in own.into_iter().chain(usual_places()) {
            if listed.iter().any(|known| known.path == path) {
                continue;
            }
            let Some(found) = Unlisted::at(path) else {
                continue;
            };
            let elsewhere = |known: &Listed| known.uuid == found.uuid && is_there(&known.path);
            let again = |known: &Unlisted| known.identity == found.identity;
            if !listed.iter().any(elsewhere) && !unlisted.iter().any(again) {
                unlisted.push(found);
            }
        }
        // Of a pool and its copy, on a snapshot of its file system for instance, only a list can say which is
        // the copy: what is in that was published long ago, and overwritten.
        let copies = |found: &&Unlisted| {
            let same = |other: &&Unlisted| other.uuid == found.uuid;
            unlisted.iter().filter(same).count() == 1
        };
        let unlisted = unlisted
            .iter()
            .filter(copies)
            .map(|found| found.path.clone());
        let listed = listed.iter().map(|line| line.path.clone());
        listed.chain(unlisted).collect()
    }

    /// Takes the pools that are gone for good out of all lists.
    pub(crate) fn forget_the_gone(&self) {
        for list in self.lists() {
            // A list that cannot be changed only stays longer than it need be.
            let _ = list.forget_the_gone();
        }
    }

    fn opened_or_made(&self, path: &Path, kind: MediumKind) -> Result<PoolFile, NoPool> {
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
        let size = first_size(path, kind);
        match PoolFile::create(path, size, geometry(size)) {
            Ok(_) => {}
            // Somebody else was faster.
            Err(adit_pool::Error::Kernel { errno, .. }) if errno == Errno::EXIST => {}
            Err(error) => return Err(failed(error)),
        }
        self.opened(path)
    }
}

/// A pool where pools are made, and which no list names.
struct Unlisted {
    path: PathBuf,
    uuid: [u8; 16],
    /// Device and inode: mounts may show a file more than once.
    identity: (u64, u64),
}

impl Unlisted {
    /// What is there, if it is a pool of this user.
    fn at(path: PathBuf) -> Option<Self> {
        let stat = rustix::fs::statat(CWD, path.as_os_str().as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.ok()?;
        let pool = PoolFile::open_read_only(&path).ok()?;
        Some(Self {
            uuid: *pool.uuid(),
            identity: (stat.st_dev, stat.st_ino),
            path,
        })
    }
}

/// Where every `adit run` of this user looks for pools, whatever its environment says.
fn usual_places() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let memory = [
        format!("/dev/shm/adit-{user}"),
        format!("/run/user/{user}/adit"),
    ];
    let mounts = adit_pmem::detect::mounts().into_iter();
    // To look at a mount of another kind may mean to wait for another machine.
    let served = mounts.filter(|mount| SERVED.contains(&mount.fs_type.as_str()));
    let on_mounts =
        served.map(move |mount| Path::new(&mount.mount_point).join(format!(".adit-{user}")));
    let all = memory.into_iter().map(PathBuf::from).chain(on_mounts);
    all.map(|dir| dir.join(POOL))
}

fn is_there(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    rustix::fs::accessat(CWD, name, Access::EXISTS, AtFlags::empty()).is_ok()
}

/// Whether a pool may stage a file: it lies on the same device, or its medium keeps at least what the
/// file's medium keeps.
fn fits(pool: &Path, file: BorrowedFd<'_>, kind: MediumKind) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(pool) = rustix::fs::open(pool.as_os_str().as_bytes(), flags, Mode::empty()) else {
        return false;
    };
    let device = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev);
    let there = medium_of(&pool).kind;
    let same = device(file).is_some() && device(file) == device(pool.as_fd());
    there != MediumKind::Other && (same || strength(there) >= strength(kind))
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

/// Makes a pool larger that a program has filled with what cannot be published yet: to twice its size, or
/// by a quarter of what is free when that is less. What is staged needs its place in the base file as
/// well, so a file system that fills up this way holds the largest transaction that it can.
pub fn grow(pool: &PoolFile, attachment: &Attachment<FileMedium>) -> bool {
    let Ok(chunks) = pool.pool().chunk_count() else {
        return false;
    };
    let geometry = pool.pool().geometry();
    let size = geometry.chunk(chunks);
    let more = larger_by(size, free_beside(pool.path()), geometry.chunk_size());
    more > 0 && matches!(pool.grow(attachment, size + more), Ok(now) if now > chunks)
}

/// Bytes that a pool of `size` becomes larger by, in whole chunks.
fn larger_by(size: u64, free: u64, chunk: u64) -> u64 {
    let more = size.min(free / 4);
    more - more % chunk
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

/// The list of a user's pools.
#[derive(Clone, Debug)]
pub struct PoolList {
    dir: PathBuf,
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The pool's identity.
    pub uuid: [u8; 16],
    /// Where it was seen last.
    pub path: PathBuf,
}

impl PoolList {
    /// The list of this user: in `adit` below `XDG_STATE_HOME`, else below `.local/state` in the home
    /// directory. Without either, as for a service, below the runtime directory: it then lasts as
    /// long as that.
    #[must_use]
    pub fn of_user(xdg_state_home: Option<&OsStr>, home: Option<&OsStr>, runtime: &Path) -> Self {
        let absolute = |name: &&OsStr| Path::new(name).is_absolute();
        let state = xdg_state_home.filter(absolute).map(PathBuf::from);
        let state = state.or_else(|| {
            let home = home.filter(absolute)?;
            Some(Path::new(home).join(".local/state"))
        });
        Self::at(&state.map_or_else(|| runtime.to_owned(), |state| state.join("adit")))
    }

    /// The list in a directory, which is made when there is something to list.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Where it is, or will be.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    /// All pools, each once. A list that is not there or cannot be read is empty.
    #[must_use]
    pub fn read(&self) -> Vec<Listed> {
        let Ok(fd) = self.open("pools", OFlags::RDONLY | OFlags::NONBLOCK) else {
            return Vec::new();
        };
        let mut text = vec![0; LONGEST_LIST];
        let len = sys::read_full(&fd, &mut text, 0).unwrap_or(0);
        text.truncate(len);
        let mut all: Vec<Listed> = Vec::new();
        for line in text.split(|byte| *byte == b'\n').filter_map(parse) {
            // Of two lines for one place or one pool the later is right.
            all.retain(|known| known.path != line.path && known.uuid != line.uuid);
            all.push(line);
        }
        all
    }

    /// Enters a pool.
    pub fn add(&self, uuid: &[u8; 16], path: &Path) -> Result<(), Errno> {
        let new = Listed {
            uuid: *uuid,
            path: path.to_owned(),
        };
        let name = path.as_os_str().as_bytes();
        if !path.is_absolute() || name.contains(&b'\n') {
            return Err(Errno::INVAL);
        }
        if self.read().contains(&new) {
            return Ok(());
        }
        self.change(|all| {
            all.retain(|known| known.path != new.path && known.uuid != new.uuid);
            all.push(new);
        })
    }

    /// Takes out the pools that are gone for good: they are not there, and lay in memory. What is
    /// missing elsewhere may be on a file system that is mounted again.
    pub fn forget_the_gone(&self) -> Result<(), Errno> {
        if !self.read().iter().any(|known| is_gone(&known.path)) {
            return Ok(());
        }
        self.change(|all| all.retain(|known| !is_gone(&known.path)))
    }

    /// Replaces the list. The lock is a file of its own, because the list's own is replaced.
    fn change(&self, change: impl FnOnce(&mut Vec<Listed>)) -> Result<(), Errno> {
        self.make_directory()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let lock = self.open("pools.lock", flags)?;
        lock_patiently(&lock)?;
        let mut all = self.read();
        change(&mut all);
        let text: Vec<u8> = all.iter().flat_map(Listed::line).collect();
        if text.len() > LONGEST_LIST {
            return Err(Errno::FBIG);
        }
        let new = self.open("pools.new", flags | OFlags::TRUNC)?;
        let mut rest = &text[..];
        while !rest.is_empty() {
            let written = rustix::io::write(new.as_fd(), rest)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        rustix::fs::fsync(new.as_fd())?;
        let path = |name: &str| self.dir.join(name).into_os_string();
        rustix::fs::renameat(
            CWD,
            path("pools.new").as_bytes(),
            CWD,
            path("pools").as_bytes(),
        )?;
        make_durable(&self.dir)
    }

    fn make_directory(&self) -> Result<(), Errno> {
        let missing: Vec<&Path> = self
            .dir
            .ancestors()
            .take_while(|dir| {
                let name = dir.as_os_str().as_bytes();
                let there = rustix::fs::accessat(CWD, name, Access::EXISTS, AtFlags::empty());
                there == Err(Errno::NOENT)
            })
            .collect();
        for dir in missing.into_iter().rev() {
            match rustix::fs::mkdirat(CWD, dir.as_os_str().as_bytes(), Mode::RWXU) {
                // What may be written to but not be read cannot be synced by us.
                Ok(()) => drop(make_durable(dir.parent().unwrap_or(dir))),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Fd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = self.dir.join(name);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::open(path.as_os_str().as_bytes(), flags, mode).map(Fd::new)
    }
}

/// Locks the list, or fails when somebody who has it does not give it back: he may have been stopped.
fn lock_patiently(lock: &Fd) -> Result<(), Errno> {
    let started = Instant::now();
    while !sys::try_lock(lock, FlockOperation::NonBlockingLockExclusive)? {
        if started.elapsed() > PATIENCE {
            return Err(Errno::AGAIN);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Makes the names in a directory durable: what is staged in a pool is found after a reboot by the list alone.
fn make_durable(dir: &Path) -> Result<(), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir.as_os_str().as_bytes(), flags, Mode::empty()).map(Fd::new)?;
    rustix::fs::fsync(dir.as_fd())
}

/// Whether a pool is not there, and the nearest directory that is lies in memory.
fn is_gone(path: &Path) -> bool {
    let kind = |dir: &Path| rustix::fs::statfs(dir.as_os_str().as_bytes());
    let missing = |error| matches!(error, Errno::NOENT | Errno::NOTDIR);
    let mut above = path.ancestors().map(kind);
    let not_there = above.next().is_some_and(|seen| seen.is_err_and(missing));
    let nearest = above.find(|seen| !seen.as_ref().is_err_and(|error| missing(*error)));
    not_there && matches!(nearest, Some(Ok(fs)) if fs.f_type as u64 == TMPFS)
}

impl Listed {
    fn line(&self) -> Vec<u8> {
        let mut line: Vec<u8> = self
            .uuid
            .iter()
            .flat_map(|byte| format!("{byte:02x}").into_bytes())
            .collect();
        line.push(b' ');
        line.extend_from_slice(self.path.as_os_str().as_bytes());
        line.push(b'\n');
        line
    }
}

fn parse(line: &[u8]) -> Option<Listed> {
    let (digits, path) = line.split_at_checked(32)?;
    let path = path
        .strip_prefix(b" ")
        .filter(|path| path.first() == Some(&b'/'))?;
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |index: usize| char::from(*pair.get(index)?).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(Listed {
        uuid,
        path: Path::new(OsStr::from_bytes(path)).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

    use super::*;
    use crate::testing::Scratch;

    fn paths(list: &PoolList) -> Vec<PathBuf> {
        list.read().into_iter().map(|known| known.path).collect()
    }

    #[test]
    fn the_list_keeps_each_pool_once_and_what_may_come_back() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.path("state/adit"));
        assert_eq!(list.read(), []);
        list.forget_the_gone().expect("nothing to do");
        assert!(
            !scratch.path("state").exists(),
            "nothing is made for nothing"
        );
        let here = scratch.path("here");
        std::fs::write(&here, b"").expect("write");
        let gone = scratch.path("no/such/directory/pool");
        // The root is no memory, or the test sees that only what is there is kept.
        let elsewhere = Path::new("/no such mount/pool");
        let lasting = rustix::fs::statfs("/").expect("statfs").f_type as u64 != TMPFS;
        for (uuid, path) in [(1, &here), (2, &gone), (3, &elsewhere.to_owned())] {
            list.add(&[uuid; 16], path).expect("add");
            list.add(&[uuid; 16], path).expect("add again");
        }
        assert_eq!(paths(&list), [&here, &gone, elsewhere]);
        list.forget_the_gone().expect("forget");
        let mut kept = vec![here.clone()];
        kept.extend(lasting.then(|| elsewhere.to_owned()));
        assert_eq!(paths(&list), kept);
        // The place of a pool that was made anew, and a pool that was moved.
        list.add(&[4; 16], &here).expect("add");
        list.add(&[4; 16], &scratch.path("there")).expect("add");
        assert!(!paths(&list).contains(&here));
        assert!(paths(&list).contains(&scratch.path("there")));
    }

    /// Programs start without it: the list is changed by the next one.
    #[test]
    fn who_was_stopped_over_the_list_stops_nobody_else() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.0);
        let pool = scratch.path("pool");
        let stopped = list.open("pools.lock", OFlags::RDWR | OFlags::CREATE);
        let stopped = stopped.expect("open");
        lock_patiently(&stopped).expect("lock");
        assert_eq!(list.add(&[1; 16], &pool), Err(Errno::AGAIN));
        assert_eq!(list.read(), []);
        drop(stopped);
        list.add(&[1; 16], &pool).expect("add");
        assert_eq!(paths(&list), [pool]);
    }

    #[test]
    fn a_new_user_has_a_place_for_a_pool() {
        let scratch = Scratch::new();
        let places = Places {
            runtime: scratch.path("runtime"),
            list: PoolList::at(&scratch.path("home/.local/state/adit")),
        };
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

    fn pool_at(path: &Path) -> [u8; 16] {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("create");
        let pool = PoolFile::create(path, SMALLEST, geometry(SMALLEST)).expect("a pool");
        *pool.pool().uuid()
    }

    /// A list that cannot be written costs the recovery, in this boot as well: such a pool stages nothing. An
    /// announced list is as good, whoever's monitor it is.
    #[test]
    fn a_pool_that_nobody_would_find_is_none() {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path("run")).expect("create");
        let places = Places {
            runtime: scratch.path("run"),
            // Not even root makes directories there.
            list: PoolList::at(Path::new("/proc/no/such/directory")),
        };
        let path = scratch.path("pool");
        let uuid = pool_at(&path);
        let refused = places.opened(&path).expect_err("in no list");
        assert!(matches!(refused, NoPool::Unlisted { .. }), "{refused}");
        assert_eq!(places.pools(), usual());
        let other = Places {
            list: PoolList::at(&scratch.path("home/.local/state/adit")),
            ..places.clone()
        };
        other.announce().expect("announce");
        other.announce().expect("announce again");
        assert!(
            !scratch.path("home").exists(),
            "nothing is made for nothing"
        );
        places.opened(&path).expect("a list that was announced");
        let line = Listed {
            uuid,
            path: path.clone(),
        };
        assert_eq!(other.list.read(), [line]);
        for places in [&places, &other] {
            assert_eq!(places.pools().first(), Some(&path));
        }
        // Where everybody looks no list is needed.
        let user = rustix::process::geteuid().as_raw();
        let usual = PathBuf::from(format!("/dev/shm/adit-{user}/pool"));
        std::fs::remove_dir_all(scratch.path("run/lists")).expect("remove");
        places.enter(&uuid, &usual).expect("found without a list");
    }

    /// What the machine that runs the tests has itself.
    fn usual() -> Vec<PathBuf> {
        let nowhere = PathBuf::from("/no such directory");
        let places = Places {
            runtime: nowhere.clone(),
            list: PoolList::at(&nowhere),
        };
        places.pools()
    }

    #[test]
    fn pools_are_found_without_a_list_and_their_copies_are_not() {
        let scratch = Scratch::new();
        let places = Places {
            runtime: scratch.path("run"),
            list: PoolList::at(&scratch.path("state")),
        };
        let found = || {
            let all = places.pools().into_iter();
            all.filter(|path| path.starts_with(&scratch.0))
                .collect::<Vec<_>>()
        };
        assert!(found().is_empty());
        let [here, there] = ["run/pool", "state/pool"].map(|name| scratch.path(name));
        let uuid = pool_at(&here);
        assert_eq!(found(), std::slice::from_ref(&here));
        // A second name is no copy.
        std::fs::create_dir(scratch.path("state")).expect("create");
        std::fs::hard_link(&here, &there).expect("link");
        assert_eq!(found(), std::slice::from_ref(&here));
        // Of a pool and its copy none is taken, unless a list knows which is which.
        std::fs::remove_file(&there).expect("remove");
        std::fs::copy(&here, &there).expect("copy");
        assert!(found().is_empty());
        places.list.add(&uuid, &there).expect("add");
        assert_eq!(found(), std::slice::from_ref(&there));
        // What a list says and is not there is no pool that another could be a copy of.
        std::fs::remove_file(&there).expect("remove");
        assert_eq!(found(), [there, here]);
    }

    #[test]
    fn every_mount_is_looked_at() {
        let user = rustix::process::geteuid().as_raw();
        let mount = adit_pmem::detect::mount_of_fd(
            rustix::fs::open("/dev/shm", OFlags::RDONLY, Mode::empty()).expect("open"),
        );
        let mount = mount.expect("its mount");
        let place = Path::new(&mount.mount_point).join(format!(".adit-{user}/pool"));
        assert!(usual_places().any(|usual| usual == place), "{place:?}");
        assert!(usual_places().all(|usual| !usual.starts_with("/proc")));
    }

    #[test]
    fn a_pool_grows_as_long_as_anything_is_free() {
        const CHUNK: u64 = 2 << 20;
        let (mut pool, mut free) = (64 << 20, 1 << 30);
        for _ in 0..100 {
            let more = larger_by(pool, free, CHUNK);
            assert!(more <= pool && more.is_multiple_of(CHUNK));
            pool += more;
            free -= more;
        }
        assert!(free < 4 * CHUNK, "{free} bytes are left");
        assert_eq!(larger_by(64 << 20, u64::MAX, CHUNK), 64 << 20);
        assert_eq!(larger_by(64 << 20, 0, CHUNK), 0);
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

    #[test]
    fn lines_that_make_no_sense_are_passed_over() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.0);
        let good = Listed {
            uuid: *b"0123456789abcdef",
            path: "/a pool".into(),
        };
        let mut text = b"\n\xff\xfe /x\n0123 /short\n".to_vec();
        text.extend([b'z'; 32]);
        text.extend(b" /no digits\n");
        text.extend(good.line());
        text.extend(b"30313233343536373839616263646566 relative");
        std::fs::write(scratch.path("pools"), text).expect("write");
        assert_eq!(list.read(), [good]);
    }
}
