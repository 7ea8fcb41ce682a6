//! The pool as a file: made private, checked before it is believed, grown and shrunk.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_pmem::detect::medium_of;
use adit_pmem::{MappedMedium, Medium, MediumError, MediumKind, OutOfRange, Persistence};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, kernel};
use crate::layout::Geometry;
use crate::ofd::FileLocks;
use crate::pool::{Attachment, BootId, CreateOptions, Pool};
use crate::slots::LocalLocks;

/// A mapped pool file; clones share the mapping.
#[derive(Debug, Clone)]
pub struct FileMedium(Arc<MappedMedium>);

impl FileMedium {
    /// The mapping, for guarded copies straight out of it.
    #[must_use]
    pub fn mapped(&self) -> &MappedMedium {
        &self.0
    }
}

impl Medium for FileMedium {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.0.load(offset)
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.0.store(offset, value)
    }
    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        self.0.compare_exchange(offset, current, new)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.0.read(offset, into)
    }
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write_streaming(offset, from)
    }
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.0.flush(offset, len)
    }
    fn fence(&self) {
        self.0.fence();
    }
}

/// A pool file that is only looked at, by reading it. Every store is refused.
#[derive(Debug)]
pub struct ReadOnlyMedium {
    fd: OwnedFd,
    size: u64,
}

impl ReadOnlyMedium {
    fn refuse<T>(&self, offset: u64, len: u64) -> Result<T, OutOfRange> {
        Err(OutOfRange {
            offset,
            len,
            size: 0,
        })
    }
}

impl Medium for ReadOnlyMedium {
    fn size(&self) -> u64 {
        self.size
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
        let outside = OutOfRange {
            offset,
            len: into.len() as u64,
            size: self.size,
        };
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(outside),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(_) => return Err(outside),
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

/// An open pool file.
#[derive(Debug)]
pub struct PoolFile {
    pool: Arc<Pool<FileMedium>>,
    path: PathBuf,
    kind: MediumKind,
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
        check_file_system(&parent_fd)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent_fd, ".", flags, mode).map_err(kernel("open"))?;
        // The umask may have taken bits away.
        rustix::fs::fchmod(&fd, mode).map_err(kernel("fchmod"))?;
        let size = size - size % geometry.chunk_size().max(1);
        reserve(&fd, size)?;
        let medium = map(&fd, geometry)?;
        let mut uuid = [0; 16];
        rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())
            .map_err(kernel("getrandom"))?;
        Pool::create(
            &medium,
            &CreateOptions {
                geometry,
                uuid,
                boot: boot_id()?,
            },
        )?;
        drop(medium);
        rustix::fs::fsync(&fd).map_err(kernel("fsync"))?;
        let name = path
            .file_name()
            .ok_or(Error::Invalid("a pool needs a file name"))?;
        let link = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&fd));
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
        let fd = open_checked(path, OFlags::RDWR)?;
        let geometry = Pool::open(read_only(&fd)?, Box::new(LocalLocks::default()), boot_id()?)?;
        let geometry = *geometry.geometry();
        let kind = medium_of(&fd).kind;
        let medium = map(&fd, geometry)?;
        let locks = FileLocks::new(path, &fd, Arc::clone(&medium.0))?;
        let pool = Pool::open(medium, Box::new(locks), boot_id()?)?;
        Ok(Self {
            pool,
            path: path.to_owned(),
            kind,
        })
    }

    /// Opens a pool only to look: nothing is mapped, locked or changed, and the file may be read-only
    /// or in use.
    pub fn open_read_only(path: &Path) -> Result<Arc<Pool<ReadOnlyMedium>>> {
        let fd = open_checked(path, OFlags::RDONLY)?;
        Pool::open(read_only(&fd)?, Box::new(LocalLocks::default()), boot_id()?)
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

    /// What a store to it is worth.
    #[must_use]
    pub fn kind(&self) -> MediumKind {
        self.kind
    }

    /// Attaches this process.
    pub fn attach(&self) -> Result<Attachment<FileMedium>> {
        self.pool.attach()
    }

    /// On `cached` media durability is the kernel's: this asks for it. Elsewhere a fence is enough.
    pub fn sync(&self) -> Result<()> {
        if self.kind == MediumKind::Cached {
            let fd = open_checked(&self.path, OFlags::RDWR)?;
            return rustix::fs::fdatasync(&fd).map_err(kernel("fdatasync"));
        }
        Ok(())
    }

    /// Makes the pool at least `size` bytes large, rounded down to chunks. Blocks are reserved first.
    pub fn grow(&self, attachment: &Attachment<FileMedium>, size: u64) -> Result<u32> {
        let geometry = self.pool.geometry();
        let chunks = (size >> geometry.chunk_shift).min(u64::from(geometry.max_chunks)) as u32;
        let fd = open_checked(&self.path, OFlags::RDWR)?;
        let len = geometry.chunk(chunks);
        if rustix::fs::fstat(&fd).map_err(kernel("fstat"))?.st_size as u64 <= len {
            reserve(&fd, len)?;
        }
        self.pool.medium().0.grow(&fd, len).map_err(medium_error)?;
        attachment.grow_to(chunks)
    }

    /// Cuts the pool to `size` bytes, rounded up to chunks, if the chunks beyond are free.
    pub fn shrink(&self, attachment: &Attachment<FileMedium>, size: u64) -> Result<u32> {
        let geometry = self.pool.geometry();
        let chunks = attachment.shrink_to(size.div_ceil(geometry.chunk_size()) as u32)?;
        let fd = open_checked(&self.path, OFlags::RDWR)?;
        rustix::fs::ftruncate(&fd, geometry.chunk(chunks)).map_err(kernel("ftruncate"))?;
        Ok(chunks)
    }

    /// Removes the pool's file, if nobody is attached. With `force`, even when data in it was never
    /// published.
    pub fn remove(self, force: bool) -> Result<()> {
        let exclusive = self.pool.exclusive()?;
        let waiting = self.pool.scan()?.files.len() as u32;
        if waiting > 0 && !force {
            return Err(Error::Unpublished { files: waiting });
        }
        rustix::fs::unlink(bytes(&self.path)).map_err(kernel("unlink"))?;
        drop(exclusive);
        Ok(())
    }
}

fn read_only(fd: &OwnedFd) -> Result<ReadOnlyMedium> {
    let size = rustix::fs::fstat(fd).map_err(kernel("fstat"))?.st_size as u64;
    let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(kernel("fcntl"))?;
    Ok(ReadOnlyMedium {
        fd,
        size: size - size % 4096,
    })
}

/// Opens the file and refuses what cannot be this user's own pool.
fn open_checked(path: &Path, access: OFlags) -> Result<OwnedFd> {
    let fd = match rustix::fs::open(
        bytes(path),
        access | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    ) {
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
    check_file_system(&fd)?;
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
    Ok(fd)
}

fn why_not_writable(path: &Path) -> Error {
    let user = rustix::process::geteuid().as_raw();
    match rustix::fs::stat(bytes(path)) {
        Ok(stat) if stat.st_uid != user => Error::NotYours {
            owner: stat.st_uid,
            user,
        },
        _ => Error::ReadOnly,
    }
}

fn check_file_system(fd: impl AsFd) -> Result<()> {
    let detected = medium_of(&fd);
    if detected.kind == MediumKind::Other {
        let magic = rustix::fs::fstatfs(&fd).map_err(kernel("fstatfs"))?.f_type as u64;
        return Err(Error::WrongFileSystem {
            magic,
            why: detected.reason.to_string(),
        });
    }
    Ok(())
}

/// Reserves blocks, so that a store can never find the disk full.
fn reserve(fd: &OwnedFd, len: u64) -> Result<()> {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len).map_err(kernel("fallocate"))
}

fn map(fd: &OwnedFd, geometry: Geometry) -> Result<FileMedium> {
    if !geometry.is_valid() {
        return Err(Error::Invalid("sizes that the format cannot express"));
    }
    let kind = medium_of(fd).kind;
    let persistence = Persistence::of(kind).ok_or(Error::WrongFileSystem {
        magic: 0,
        why: "not a medium for pools".to_owned(),
    })?;
    let reserve = geometry.chunk_size() * u64::from(geometry.max_chunks);
    let medium = MappedMedium::new(fd, persistence, reserve as usize).map_err(medium_error)?;
    Ok(FileMedium(Arc::new(medium)))
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

/// A path as the kernel takes it. rustix takes paths themselves only with its feature `std`, which
/// would make its descriptors close through libc: under the preloaded library, through ourselves.
pub(crate) fn bytes<P: AsRef<OsStr> + ?Sized>(path: &P) -> &[u8] {
    path.as_ref().as_bytes()
}
