//! The pool as a file: made private, checked before it is believed, grown and shrunk.
//!
//! # Safety
//!
//! The unsafe code passes a program's buffer on to the mapped medium, under the caller's promise.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_pmem::ahead::{self, Ahead};
use adit_pmem::detect::{Reason, medium_of};
use adit_pmem::{
    CachedMedium, FOLIO, MappedMedium, Medium, MediumError, MediumKind, OutOfRange, Persistence,
    Reopen, TransferError, Words, brief,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, kernel};
use crate::layout::{Geometry, PAGE, Superblock};
use crate::mirror::{self, Belongs, Mirror, write_all};
use crate::ofd::{FileLocks, LockFile, SeenLocks, identity, is_any_slot_locked};
use crate::pool::{Attachment, BootId, CreateOptions, Pool};

/// Bytes reserved at once where a signal cuts short what is asked for.
const RESERVED_AT_ONCE: u64 = 1 << 20;

/// A mapped pool file; clones share the mapping.
#[derive(Debug, Clone)]
pub struct FileMedium(Arc<Inner>);

#[derive(Debug)]
enum Inner {
    /// Stores reach the medium as they are.
    Direct(MappedMedium),
    /// They go through the page cache.
    Cached(CachedMedium, Mirror),
}

/// Calls the same on either medium.
macro_rules! on {
    ($self:ident, $medium:ident => $call:expr) => {
        match &*$self.0 {
            Inner::Direct($medium) => $call,
            Inner::Cached($medium, _) => $call,
        }
    };
}

impl FileMedium {
    /// The mapping of the file, for guarded copies straight out of its chunks.
    #[must_use]
    pub fn mapped(&self) -> &MappedMedium {
        match &*self.0 {
            Inner::Direct(mapped) => mapped,
            Inner::Cached(cached, _) => cached.mapped(),
        }
    }

    /// Syncs the file by a descriptor that was opened later than what is mapped.
    fn sync_by(&self, fd: &OwnedFd) -> Result<()> {
        let sync = || rustix::fs::fsync(fd).map_err(kernel("fsync"));
        match &*self.0 {
            Inner::Direct(_) => sync(),
            Inner::Cached(cached, _) => cached.synced_by(sync).map_err(Error::from)?,
        }
    }

    /// Fails when what others share with each other is no longer shared with us.
    pub(crate) fn ensure_current(&self) -> Result<()> {
        match &*self.0 {
            Inner::Direct(_) => Ok(()),
            Inner::Cached(_, mirror) => mirror.ensure_current(),
        }
    }
}

impl Medium for FileMedium {
    #[inline]
    fn size(&self) -> u64 {
        self.mapped().size()
    }
    #[inline]
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        on!(self, medium => medium.load(offset))
    }
    #[inline]
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        on!(self, medium => medium.store(offset, value))
    }
    #[inline]
    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        on!(self, medium => medium.compare_exchange(offset, current, new))
    }
    #[inline]
    fn words<const N: usize>(&self, offset: u64) -> Result<Words<'_, N>, OutOfRange> {
        on!(self, medium => medium.words(offset))
    }
    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        on!(self, medium => medium.read(offset, into))
    }
    #[inline]
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        on!(self, medium => medium.write_streaming(offset, from))
    }
    #[inline(always)]
    fn write_line(&self, offset: u64, line: &[u8; 64]) -> Result<(), OutOfRange> {
        on!(self, medium => medium.write_line(offset, line))
    }
    #[inline]
    fn write_both(&self, one: (u64, &[u8]), other: (u64, &[u8])) -> Result<(), OutOfRange> {
        on!(self, medium => medium.write_both(one, other))
    }
    #[inline]
    unsafe fn read_into(
        &self,
        offset: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<(), TransferError> {
        // SAFETY: the caller vouches for the destination.
        on!(self, medium => unsafe { medium.read_into(offset, into, len) })
    }
    #[inline(always)]
    unsafe fn write_streaming_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), TransferError> {
        // SAFETY: the caller vouches for the source.
        on!(self, medium => unsafe { medium.write_streaming_from(offset, from, len) })
    }
    #[inline]
    unsafe fn write_cold_from(
        &self,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), TransferError> {
        // SAFETY: the caller vouches for the source.
        on!(self, medium => unsafe { medium.write_cold_from(offset, from, len) })
    }
    fn expect_writes(&self, offset: u64, len: u64) {
        on!(self, medium => medium.expect_writes(offset, len));
    }
    #[inline]
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        on!(self, medium => medium.flush(offset, len))
    }
    #[inline]
    fn fence(&self) {
        on!(self, medium => medium.fence());
    }
    #[inline]
    fn order(&self) {
        on!(self, medium => medium.order());
    }
    #[inline]
    fn fence_is_slow(&self) -> bool {
        on!(self, medium => medium.fence_is_slow())
    }
    #[inline]
    fn sound(&self) -> Result<(), OutOfRange> {
        on!(self, medium => medium.sound())
    }
    fn reach(&self, size: u64) {
        on!(self, medium => medium.reach(size));
    }
    fn begin_anew(&self) -> Result<(), OutOfRange> {
        on!(self, medium => medium.begin_anew())
    }
}

/// A pool file that is only looked at, by reading it. Every store is refused.
#[derive(Debug)]
pub struct ReadOnlyMedium {
    fd: OwnedFd,
    size: AtomicU64,
    /// Where the tables are worked on, and how long they are, when that is not in the pool itself.
    mirror: Option<(OwnedFd, u64)>,
    /// What [`Medium::fence_is_slow`] says of the medium that the pool lies on.
    slow: bool,
    ahead: Ahead,
}

impl ReadOnlyMedium {
    fn refuse<T>(&self, offset: u64, len: u64) -> Result<T, OutOfRange> {
        Err(OutOfRange::lost(offset, len, Errno::ROFS))
    }
}

impl Medium for ReadOnlyMedium {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }
    fn reach(&self, size: u64) {
        if whole_pages(&self.fd).is_ok_and(|there| there >= size) {
            self.size.fetch_max(size, Ordering::Relaxed);
        }
    }
    fn fence_is_slow(&self) -> bool {
        self.slow
    }
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        let mut bytes = [0; 8];
        if !offset.is_multiple_of(8) {
            return self.refuse(offset, 8);
        }
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
    fn store(&self, offset: u64, _: u64) -> Result<(), OutOfRange> {
        self.refuse(offset, 8)
    }
    fn compare_exchange(
        &self,
        offset: u64,
        _: u64,
        _: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        self.refuse(offset, 8)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let outside = OutOfRange::outside(offset, into.len() as u64, self.size());
        let fd = match &self.mirror {
            Some((mirror, tables)) if offset < *tables => mirror,
            _ => {
                for at in self.ahead.blocks(offset, into.len() as u64) {
                    let block = NonZeroU64::new(ahead::BLOCK);
                    let _ = rustix::fs::fadvise(&self.fd, at, block, Advice::WillNeed);
                }
                &self.fd
            }
        };
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(fd, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(outside),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(OutOfRange::lost(offset, into.len() as u64, errno)),
            }
        }
        Ok(())
    }
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.refuse(offset, from.len() as u64)
    }
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.refuse(offset, len)
    }
    fn fence(&self) {}
}

/// What children get of an open pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Children {
    Inherit,
    Without,
}

impl Children {
    /// What `map` maps: where children are to be without it, no child is made before that is said.
    pub(crate) fn kept_from(
        self,
        map: impl FnOnce() -> Result<MappedMedium>,
    ) -> Result<MappedMedium> {
        if self == Self::Inherit {
            return map();
        }
        let _brief = brief::begin();
        let mapped = map()?;
        mapped
            .keep_from_children()
            .map_err(|error| medium_error(error.into()))?;
        Ok(mapped)
    }
}

/// An open pool file.
#[derive(Debug)]
pub struct PoolFile {
    pool: Arc<Pool<FileMedium>>,
    path: PathBuf,
    kind: MediumKind,
    locks: LockFile,
}

impl PoolFile {
    /// Makes a pool of `size` bytes, for this user alone. It appears under its name when it is
    /// complete, or not at all.
    pub fn create(path: &Path, size: u64, geometry: Geometry) -> Result<Self> {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let directory = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let parent_fd =
            rustix::fs::open(bytes(parent), directory, Mode::empty()).map_err(kernel("open"))?;
        kind_of(&parent_fd)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent_fd, ".", flags, mode).map_err(kernel("open"))?;
        // The umask may have taken bits away.
        rustix::fs::fchmod(&fd, mode).map_err(kernel("fchmod"))?;
        let size = size - size % geometry.chunk_size().max(1);
        let kind = kind_of(&fd)?;
        prepare(&fd, kind, 0, size)?;
        rustix::fs::fsync(&fd).map_err(kernel("fsync"))?;
        let medium = map(&fd, kind, geometry)?;
        let mut uuid = [0; 16];
        rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())
            .map_err(kernel("getrandom"))?;
        Pool::create(
            &medium,
            &CreateOptions {
                geometry,
                uuid,
                boot: BootId::NONE,
            },
        )?;
        drop(medium);
        rustix::fs::fsync(&fd).map_err(kernel("fsync"))?;
        let name = path
            .file_name()
            .ok_or(Error::Invalid("a pool needs a file name"))?;
        let link = format!(
            "/proc/thread-self/fd/{}",
            rustix::fd::AsRawFd::as_raw_fd(&fd)
        );
        rustix::fs::linkat(
            rustix::fs::CWD,
            link,
            &parent_fd,
            bytes(name),
            AtFlags::SYMLINK_FOLLOW,
        )
        .map_err(kernel("link"))?;
        // Not every file system syncs directories; the pool is complete either way.
        let _ = rustix::fs::fsync(&parent_fd);
        drop(fd);
        Self::open(path)
    }

    /// Opens a pool of this user.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, Children::Inherit)
    }

    /// Opens a pool of this user, and keeps it out of children that are forked from now on: one that gives up its user's
    /// rights must not keep what it could forge records in, and one that lives for long would keep the file system
    /// busy. A child must neither use nor drop what it has inherited of this, and opens the pool anew.
    pub fn open_without_children(path: &Path) -> Result<Self> {
        Self::open_as(path, Children::Without)
    }

    fn open_as(path: &Path, children: Children) -> Result<Self> {
        let (fd, kind) = open_checked(path, OFlags::RDWR)?;
        let boot = boot_of(&fd)?;
        let looked = look(&fd, boot)?;
        let locks = LockFile::new(path, &fd)?;
        // At once: the mirror, which lies in memory, may have to be waited for.
        let mapped = children.kept_from(|| map(&fd, kind, *looked.geometry()))?;
        let inner = if kind == MediumKind::Cached {
            let (cached, mirror) = cached(&fd, mapped, &locks, &looked, children)?;
            Inner::Cached(cached, mirror)
        } else {
            Inner::Direct(mapped)
        };
        let medium = FileMedium(Arc::new(inner));
        let open = || {
            let locks = FileLocks::new(locks.clone(), medium.clone());
            Pool::open(medium.clone(), Box::new(locks), boot)
        };
        let pool = loop {
            let opened = open();
            let now = whole_pages(&fd)?;
            if !is_growing(&opened, now) {
                break opened?;
            }
            let _brief = brief::begin();
            medium.mapped().grow(&fd, now).map_err(medium_error)?;
        };
        Ok(Self {
            pool,
            path: path.to_owned(),
            kind,
            locks,
        })
    }

    /// The pool's own file, for reading and writing: to relink from it. `ESTALE` when another file has
    /// its name by now.
    pub fn reopen(&self) -> Result<OwnedFd, Errno> {
        self.locks.reopen().map(|(fd, _)| fd)
    }

    /// Opens a pool only to look: nothing is mapped, locked or changed, and the file may be read-only
    /// or in use.
    pub fn open_read_only(path: &Path) -> Result<Arc<Pool<ReadOnlyMedium>>> {
        let (fd, kind) = open_checked(path, OFlags::RDONLY)?;
        let own = look(&fd, boot_of(&fd)?)?;
        if kind != MediumKind::Cached {
            return Ok(own);
        }
        let is_clean = |pool: &Pool<ReadOnlyMedium>| {
            let superblock = pool.superblock();
            superblock.is_ok_and(|superblock| superblock.flags & Superblock::CLEAN != 0)
        };
        match look_by(&fd, &own, true) {
            // It is of a time when nothing was left, as in `superblock_at`.
            Ok(old) if is_clean(&old) && !is_clean(&own) => look_by(&fd, &own, false),
            opened => opened,
        }
    }

    /// The same, to judge what a recovery would find. Where nobody lives the next who attaches goes by the pool's own
    /// tables: a mirror may be an older one, of before the file system went down under programs, and by that one would
    /// miss what was staged since, or take it for damaged.
    pub fn open_as_left(path: &Path) -> Result<Arc<Pool<ReadOnlyMedium>>> {
        let (fd, kind) = open_checked(path, OFlags::RDONLY)?;
        let own = look(&fd, boot_of(&fd)?)?;
        let is_in_use = is_any_slot_locked(&fd, own.geometry().slot_count)?;
        look_by(&fd, &own, is_in_use && kind == MediumKind::Cached)
    }

    /// The superblock of a pool as the pool's own file has it: the mirror of its tables may be an older one, of before a
    /// file system went down under programs, and say of that time that nothing was left.
    pub fn superblock_at(path: &Path) -> Result<Superblock> {
        let (fd, _) = open_checked(path, OFlags::RDONLY)?;
        look(&fd, boot_of(&fd)?)?.superblock()
    }

    /// Whether anybody who lives is attached to the pool at this path; nothing is mapped for that.
    pub fn is_in_use_at(path: &Path) -> Result<bool> {
        let (fd, _) = open_checked(path, OFlags::RDONLY)?;
        let slots = look(&fd, boot_of(&fd)?)?.geometry().slot_count;
        is_any_slot_locked(&fd, slots)
    }

    /// The identity of a pool of this user, by its superblock alone: neither its medium nor its tables are looked at.
    pub fn uuid_at(path: &Path) -> Result<[u8; 16]> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = brief::above_standard(|| rustix::fs::open(bytes(path), flags, Mode::empty()));
        let fd = fd.map_err(kernel("open"))?;
        let stat = rustix::fs::fstat(&fd).map_err(kernel("fstat"))?;
        if !mirror::is_private(&stat) {
            return Err(Error::NotAFile);
        }
        Ok(*look(&fd, boot_of(&fd)?)?.uuid())
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<FileMedium>> {
        &self.pool
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its path leads to nothing, or to another file by now: who opens that finds none of what is written to this
    /// one. Where the kernel does not say, it is still there.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.locks.is_removed()
    }

    /// What a store to it is worth.
    #[must_use]
    pub fn kind(&self) -> MediumKind {
        self.kind
    }

    /// Attaches this process.
    pub fn attach(&self) -> Result<Attachment<FileMedium>> {
        self.pool.attach()
    }

    /// Makes the pool at least `size` bytes large, rounded down to chunks. Blocks are reserved first.
    pub fn grow(&self, attachment: &Attachment<FileMedium>, size: u64) -> Result<u32> {
        let geometry = self.pool.geometry();
        let chunks = (size >> geometry.chunk_shift).min(u64::from(geometry.max_chunks)) as u32;
        let _alone = self.locks.growth()?;
        let brief = brief::begin();
        // This very file: another one may have its name by now, and is not ours to make longer, or shorter.
        let (fd, size) = self.locks.reopen().map_err(kernel("open"))?;
        let len = geometry.chunk(chunks);
        if let Ok(superblock) = self.pool.superblock() {
            // Somebody has cut it: made longer again, it would have zeros there, and nobody would know.
            let expected = geometry.chunk(superblock.chunk_count);
            if size < expected {
                return Err(Error::Truncated {
                    expected,
                    found: size,
                });
            }
        }
        let medium = self.pool.medium();
        let prepared = prepare(&fd, self.kind, size, len)
            // Also where the file is long enough: whoever made it so may have died before its sync. A superblock that counts
            // chunks may reach a DAX medium at once, the journal's entry of the size seconds later, and a pool that ends
            // before its last chunk is refused.
            .and_then(|()| medium.sync_by(&fd));
        let mapped = || medium.mapped().grow(&fd, len).map_err(medium_error);
        let grown = prepared.and_then(|()| mapped());
        grown.inspect_err(|_| {
            // What a quota or the disk had left, publishing needs as well. Nobody knows of these blocks yet.
            if let Ok(superblock) = self.pool.superblock() {
                let _ = rustix::fs::ftruncate(&fd, geometry.chunk(superblock.chunk_count));
            }
        })?;
        drop(fd);
        drop(brief);
        attachment.grow_to(chunks)
    }

    /// Detaches this process. The last one to leave an empty pool gives back what it has grown by.
    pub fn detach(&self, attachment: Attachment<FileMedium>) -> Result<()> {
        attachment.detach_and_cut(|chunks| {
            let len = self.pool.geometry().chunk(chunks);
            // The pool at the path may be another one by now. A file that stays too long is grown
            // into, or cut the next time.
            let _brief = brief::begin();
            if let Ok((fd, size)) = self.locks.reopen()
                && size > len
            {
                let _ = rustix::fs::ftruncate(&fd, len);
            }
        })
    }

    /// Removes the pool's file, if nobody is attached. With `force`, even when data in it was never
    /// published.
    pub fn remove(self, force: bool) -> Result<()> {
        let exclusive = self.pool.exclusive()?;
        if !force {
            // As whoever attached next would find it: its mirror may be an older one.
            let waiting = Self::open_as_left(&self.path)?.scan()?.files.len() as u32;
            if waiting > 0 {
                return Err(Error::Unpublished { files: waiting });
            }
        }
        let fd = open_checked(&self.path, OFlags::RDONLY)?.0;
        let (tables, belongs) = (mirror::path_of(&fd)?, belongs(&fd, &self.pool)?);
        rustix::fs::unlink(bytes(&self.path)).map_err(kernel("unlink"))?;
        // Only pools on `cached` media have one, and a pool that is gone needs none.
        let _ = mirror::remove(&tables, &belongs);
        drop(exclusive);
        Ok(())
    }
}

/// Opens what lies in the file, to look at it.
fn look(fd: &OwnedFd, boot: BootId) -> Result<Arc<Pool<ReadOnlyMedium>>> {
    loop {
        let opened = Pool::open(read_only(fd)?, Box::new(SeenLocks::of(fd)?), boot);
        if !is_growing(&opened, whole_pages(fd)?) {
            return opened;
        }
    }
}

/// Looks at a pool which was opened before, by its mirror if it has one and that is wanted.
fn look_by(
    fd: &OwnedFd,
    own: &Pool<ReadOnlyMedium>,
    mirrored: bool,
) -> Result<Arc<Pool<ReadOnlyMedium>>> {
    let belongs = belongs(fd, own)?;
    loop {
        let mut medium = read_only(fd)?;
        medium.slow = kind_of(fd)? == MediumKind::Cached;
        if mirrored {
            let found = mirror::find(&mirror::path_of(fd)?, &belongs).unwrap_or(None);
            medium.mirror = found.map(|mirror| (mirror, belongs.tables));
        }
        let opened = Pool::open(medium, Box::new(SeenLocks::of(fd)?), own.boot());
        if !is_growing(&opened, whole_pages(fd)?) {
            return opened;
        }
    }
}

/// Whether a pool seemed to be truncated only because somebody has made it larger between the look at its size and that
/// at its superblock.
fn is_growing<M: Medium>(opened: &Result<Arc<Pool<M>>>, now: u64) -> bool {
    matches!(opened, Err(Error::Truncated { found, .. }) if *found < now)
}

fn read_only(fd: &OwnedFd) -> Result<ReadOnlyMedium> {
    // See `Ahead`.
    let _ = rustix::fs::fadvise(fd, 0, None, Advice::Random);
    Ok(ReadOnlyMedium {
        fd: rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(kernel("fcntl"))?,
        size: AtomicU64::new(whole_pages(fd)?),
        mirror: None,
        slow: false,
        ahead: Ahead::default(),
    })
}

/// Bytes in the whole pages of a file.
fn whole_pages(fd: &OwnedFd) -> Result<u64> {
    let size = rustix::fs::fstat(fd).map_err(kernel("fstat"))?.st_size as u64;
    Ok(size - size % PAGE)
}

/// Opens the file and refuses what cannot be this user's own pool. Also says what it lies on.
fn open_checked(path: &Path, access: OFlags) -> Result<(OwnedFd, MediumKind)> {
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = match brief::above_standard(|| rustix::fs::open(bytes(path), flags, Mode::empty())) {
        Ok(fd) => fd,
        Err(Errno::ROFS) => return Err(Error::ReadOnly),
        Err(Errno::ACCESS | Errno::PERM) if access == OFlags::RDWR => {
            return Err(why_not_writable(path));
        }
        Err(errno) => return Err(kernel("open")(errno)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(kernel("fstat"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::NotAFile);
    }
    let kind = kind_of(&fd)?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(Error::NotYours {
            owner: stat.st_uid,
            user,
        });
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(Error::OpenToOthers {
            mode: stat.st_mode & 0o7777,
        });
    }
    // Root opens what is marked read-only, too; a pool marked so is meant so.
    if access == OFlags::RDWR && stat.st_mode & 0o200 == 0 {
        return Err(Error::ReadOnly);
    }
    Ok((fd, kind))
}

fn why_not_writable(path: &Path) -> Error {
    let user = rustix::process::geteuid().as_raw();
    match rustix::fs::stat(bytes(path)) {
        Ok(stat) if stat.st_uid != user => Error::NotYours {
            owner: stat.st_uid,
            user,
        },
        Ok(_) => Error::ReadOnly,
        // Not even its rights can be read: its directory is somebody else's, say.
        Err(errno) => kernel("open")(errno),
    }
}

/// The medium of a pool, or why it cannot be on this one. It is asked for once: all processes have to find the same,
/// because each kind keeps its tables elsewhere. One that was told nothing, for lack of memory say, must not guess, or
/// nobody would see what it writes.
fn kind_of(fd: impl AsFd) -> Result<MediumKind> {
    let detected = medium_of(&fd);
    match (detected.kind, detected.reason) {
        (_, Reason::Unknown(errno)) => Err(kernel("fstatfs")(errno)),
        (MediumKind::Other, _) | (_, Reason::DaxNotProven) => Err(Error::WrongFileSystem {
            magic: rustix::fs::fstatfs(&fd).map_err(kernel("fstatfs"))?.f_type as u64,
            why: detected.reason.to_string(),
        }),
        (kind, _) => Ok(kind),
    }
}

/// Makes the bytes from `from` to `to` ready: their blocks are reserved, so that a store can never find
/// the disk full, and on `cached` media written, too. A sync of bytes in reserved blocks that were never
/// written has to note in the journal that they are, which doubles its time.
///
/// What cannot be had is not begun: some file systems take all that is left before they say so, and
/// others would find the disk full meanwhile.
fn prepare(fd: &OwnedFd, kind: MediumKind, from: u64, to: u64) -> Result<()> {
    let fs = rustix::fs::fstatfs(fd).map_err(kernel("fstatfs"))?;
    let free = fs.f_bavail.saturating_mul(fs.f_bsize as u64);
    // A tmpfs without a limit reports no blocks at all.
    if fs.f_blocks != 0 && to.saturating_sub(from) > free {
        return Err(kernel("fallocate")(Errno::NOSPC));
    }
    reserve(fd, from, to).map_err(kernel("fallocate"))?;
    if kind == MediumKind::Cached {
        let zeros = vec![0; FOLIO];
        let mut at = from;
        while at < to {
            let part = (to - at).min(zeros.len() as u64) as usize;
            write_all(fd, at, &zeros[..part])?;
            at += part as u64;
        }
    }
    Ok(())
}

/// Reserves the blocks from `from` on. On older kernels a tmpfs takes back what it has done when a signal waits: then less
/// is asked for at once. It takes back as well what was reserved before in that range, and nobody has written to yet: so
/// what others have is not asked for again.
fn reserve(fd: &OwnedFd, from: u64, to: u64) -> Result<(), Errno> {
    let (mut at, mut part) = (from, to.saturating_sub(from));
    while at < to {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), at, part.min(to - at)) {
            Ok(()) => at += part,
            Err(Errno::INTR) => part = (part / 2).max(RESERVED_AT_ONCE),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn map(fd: &OwnedFd, kind: MediumKind, geometry: Geometry) -> Result<MappedMedium> {
    if !geometry.is_valid() {
        return Err(Error::Invalid("sizes that the format cannot express"));
    }
    let persistence = Persistence::of(kind).ok_or(Error::WrongFileSystem {
        magic: 0,
        why: "not a medium for pools".to_owned(),
    })?;
    let reserve = geometry.chunk_size() * u64::from(geometry.max_chunks);
    MappedMedium::new(fd, persistence, reserve as usize).map_err(medium_error)
}

/// The medium of a pool behind the page cache.
fn cached(
    fd: &OwnedFd,
    mapped: MappedMedium,
    locks: &LockFile,
    looked: &Pool<ReadOnlyMedium>,
    children: Children,
) -> Result<(CachedMedium, Mirror)> {
    let belongs = belongs(fd, looked)?;
    let slots = looked.geometry().slot_count;
    let (tables, mirror) = Mirror::open(fd, locks, slots, &belongs, children)?;
    let opener = Box::new(locks.clone());
    let medium = CachedMedium::new(mapped, tables, belongs.tables, opener)?;
    Ok((medium, mirror))
}

fn belongs<M: Medium>(fd: &OwnedFd, pool: &Pool<M>) -> Result<Belongs> {
    Ok(Belongs {
        uuid: *pool.uuid(),
        boot: pool.boot(),
        tables: pool.geometry().header_len(),
        pool: identity(fd)?,
        system: rustix::fs::fstatvfs(fd).map_err(kernel("fstatfs"))?.f_fsid,
        doubt: pool.superblock()?.boot_id == pool.boot().0 && !pool.is_surely_clean()?,
    })
}

fn medium_error(error: MediumError) -> Error {
    Error::Mapping(error)
}

/// The boot of this system.
pub fn boot_id() -> Result<BootId> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/proc/sys/kernel/random/boot_id", flags, Mode::empty())
        .map_err(kernel("open boot_id"))?;
    let mut text = [0; 64];
    let len = rustix::io::read(&fd, &mut text).map_err(kernel("read boot_id"))?;
    let mut id = [0; 16];
    let mut digits = text[..len]
        .iter()
        .filter_map(|c| char::from(*c).to_digit(16));
    for byte in &mut id {
        let (Some(high), Some(low)) = (digits.next(), digits.next()) else {
            return Err(Error::Invalid("the kernel's boot id is no uuid"));
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(BootId(id))
}

/// The boot, for a pool: this system's, on this device. A copy of a disk that is mounted beside the original holds what
/// a loss of power would have left, and processes that used the original have left nothing in memory for it: for the
/// copy they were those of another boot.
fn boot_of(pool: impl AsFd) -> Result<BootId> {
    let BootId(mut id) = boot_id()?;
    let device = rustix::fs::fstat(pool).map_err(kernel("fstat"))?.st_dev;
    for (byte, with) in id.iter_mut().zip(device.to_le_bytes()) {
        *byte ^= with;
    }
    Ok(BootId(id))
}

/// A path as the kernel takes it. rustix takes paths themselves only with its feature `std`, which
/// would make its descriptors close through libc: under the preloaded library, through ourselves.
pub(crate) fn bytes<P: AsRef<OsStr> + ?Sized>(path: &P) -> &[u8] {
    path.as_ref().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::scratch;

    /// A pool in a directory that one may not enter was called read-only, and to be good for a check.
    #[test]
    fn a_pool_that_cannot_be_looked_at_is_not_called_read_only() {
        let path = scratch::place().join("no such directory/pool");
        let why = why_not_writable(&path);
        assert!(matches!(why, Error::Kernel { .. }), "{why:?}");
    }

    /// A check goes round what a disk cannot read, where it is told that this is why.
    #[test]
    fn what_cannot_be_read_is_told_from_what_lies_outside() {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let medium = ReadOnlyMedium {
            // The kernel reads no bytes of a directory.
            fd: rustix::fs::open(c"/", flags, rustix::fs::Mode::empty()).expect("open"),
            size: AtomicU64::new(1 << 20),
            mirror: None,
            slow: false,
            ahead: Ahead::default(),
        };
        let read = medium.read(0, &mut [0; 8]).expect_err("no bytes");
        assert_eq!(read.errno, Some(Errno::ISDIR));
    }

    /// What one has begun to use of the new blocks would be zeroed by another who makes them ready, too.
    #[test]
    fn a_pool_is_grown_by_one_at_a_time() {
        let path = scratch::place().join(format!("adit-pool-growers-{}", std::process::id()));
        let pool = PoolFile::create(&path, 8 << 20, Geometry::default());
        let pool = pool.expect("create");
        let attachment = pool.attach().expect("attach");
        let other = pool.locks.growth().expect("nobody else");
        let (grown, waits) = channel();
        let early = std::thread::scope(|scope| {
            scope.spawn(|| grown.send(pool.grow(&attachment, 12 << 20)));
            let early = waits.recv_timeout(Duration::from_millis(100));
            drop(other);
            early
        });
        assert!(early.is_err(), "{early:?} beside another");
        assert!(waits.recv().is_ok_and(|grown| grown.is_ok()));
        attachment.detach().expect("detach");
        pool.remove(true).expect("remove");
    }

    /// What somebody has cut off would be zeros then, which are no damage.
    #[test]
    fn a_pool_that_was_cut_is_not_made_long_again() {
        let path = scratch::place().join(format!("adit-pool-cut-{}", std::process::id()));
        let pool = PoolFile::create(&path, 8 << 20, Geometry::default()).expect("create");
        let attachment = pool.attach().expect("attach");
        let fd = pool.reopen().expect("open");
        let len = || rustix::fs::fstat(&fd).expect("fstat").st_size;
        rustix::fs::ftruncate(&fd, 6 << 20).expect("cut");
        let grown = pool.grow(&attachment, 12 << 20);
        assert!(matches!(grown, Err(Error::Truncated { .. })), "{grown:?}");
        assert_eq!(len(), 6 << 20);
        rustix::fs::ftruncate(&fd, 8 << 20).expect("as it was");
        pool.grow(&attachment, 12 << 20).expect("grow");
        assert_eq!(len(), 12 << 20);
        pool.detach(attachment).expect("detach");
        pool.remove(true).expect("remove");
    }

    /// Who grows a pool has its blocks before he says so, and may be killed in between.
    #[test]
    fn what_was_reserved_in_vain_is_given_back() {
        let path = scratch::place().join(format!("adit-pool-in-vain-{}", std::process::id()));
        let pool = PoolFile::create(&path, 8 << 20, Geometry::default());
        let pool = pool.expect("create");
        let attachment = pool.attach().expect("attach");
        let fd = pool.reopen().expect("open");
        prepare(&fd, pool.kind(), 8 << 20, 12 << 20).expect("reserve");
        let len = || rustix::fs::fstat(&fd).expect("fstat").st_size;
        let other = pool.attach().expect("attach");
        pool.detach(attachment).expect("detach");
        assert_eq!(len(), 12 << 20, "somebody may be growing it");
        pool.detach(other).expect("detach");
        assert_eq!(len(), 8 << 20);
        pool.remove(true).expect("remove");
    }
}
