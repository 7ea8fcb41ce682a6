//! Which medium a file lies on, and what the kernel and the processor offer there.
//!
//! [`medium_of`] is the cheap question, asked for a file when it is adopted: a few system calls, no
//! allocation. [`Report`] is the long answer for people, given by `adit doctor`.
//!
//! Everything not known to keep the promises is [`MediumKind::Other`]: a file system earns its name
//! here, it is not guessed.
//!
//! # Safety
//!
//! The unsafe code makes one `ioctl` with the argument structure the kernel documents for it, and
//! borrows a descriptor by its number for a few system calls, any answer of which is harmless.
#![allow(unsafe_code)]

use crate::copy::Routine;
use crate::flush::WriteBack;
use crate::in_words;
use crate::map::{Access, Mapping, PAGE, Synchronous};
use core::fmt;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a store to a mapped file is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediumKind {
    /// Persistent memory: durable after write-back and fence.
    Dax,
    /// `tmpfs`: survives the death of any process, not a power cut.
    Ram,
    /// The page cache of a file system that Adit serves: durable after a kernel sync.
    Cached,
    /// Anything else: left to the kernel.
    Other,
}

impl MediumKind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::Dax => "dax",
            MediumKind::Ram => "ram",
            MediumKind::Cached => "cached",
            MediumKind::Other => "other",
        }
    }
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a file has its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The file is DAX and `MAP_SYNC` works.
    MapSyncWorks,
    /// Memory of the kernel, by design.
    MemoryOnly,
    /// An ordinary file in the page cache.
    PageCache,
    /// The file is DAX, but the kernel refuses `MAP_SYNC` (virtio-pmem, for example).
    DaxWithoutMapSync,
    /// The file is DAX, but this processor has no instruction to write its cache back.
    NoWriteBack,
    /// The file is DAX, but the descriptor does not allow the mapping that would prove it.
    DaxNotProven,
    /// Neither a regular file nor a directory.
    NotAFile,
    /// Copy-up would leave mappings stale.
    Overlay,
    /// Its bytes change behind the page cache.
    Network,
    /// A process decides what its bytes are.
    Fuse,
    /// Huge pages of the kernel: no `write`, no end of file within a page.
    HugePages,
    /// Made by the kernel on the fly.
    Synthetic,
    /// A file system whose behaviour under mappings has not been proven.
    Unproven,
    /// The kernel did not say what it is.
    Unknown(Errno),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Reason::MapSyncWorks => "the file system maps its medium directly (MAP_SYNC works)",
            Reason::MemoryOnly => "memory only: survives processes, not a power cut",
            Reason::PageCache => "an ordinary file in the page cache",
            Reason::DaxWithoutMapSync => {
                "mapped directly, but MAP_SYNC is refused: durable only after a kernel sync"
            }
            Reason::NoWriteBack => {
                "mapped directly, but this processor cannot write its cache back from user space"
            }
            Reason::DaxNotProven => {
                "marked for direct mapping, but this descriptor does not allow to prove it"
            }
            Reason::NotAFile => "neither a regular file nor a directory",
            Reason::Overlay => "an overlay: a mapping goes stale when a file is copied up",
            Reason::Network => "a network file system: its bytes change behind the page cache",
            Reason::Fuse => "a FUSE file system: a process decides what its bytes are",
            Reason::HugePages => "a huge page file system: files there have no byte-exact end",
            Reason::Synthetic => "made by the kernel on the fly, not a place for data",
            Reason::Unproven => "a file system not proven to behave under shared mappings",
            Reason::Unknown(error) => {
                return write!(f, "the kernel did not say what it is: {}", in_words(*error));
            }
        };
        f.write_str(text)
    }
}

/// The kind of medium a file lies on, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detected {
    /// The kind.
    pub kind: MediumKind,
    /// Why.
    pub reason: Reason,
}

impl Detected {
    fn other(reason: Reason) -> Detected {
        Detected {
            kind: MediumKind::Other,
            reason,
        }
    }
}

/// Says which medium an open file lies on. For a directory: which one new files in it would lie on,
/// as far as that can be told without making one (a DAX file system shows in its files only).
///
/// A few system calls, no allocation, no lock.
pub fn medium_of(fd: impl AsFd) -> Detected {
    let fd = fd.as_fd();
    match (rustix::fs::fstatfs(fd), attributes(fd)) {
        (Ok(fs), Ok(file)) => judge(magic_of(&fs), &file, fd),
        (Err(error), _) | (_, Err(error)) => Detected::other(Reason::Unknown(error)),
    }
}

/// As [`medium_of`] for a bare descriptor number, whoever owns it; [`MediumKind::Other`] if it is not
/// open.
pub fn kind_of_fd(fd: i32) -> MediumKind {
    if fd < 0 {
        return MediumKind::Other;
    }
    // SAFETY: the number is used for system calls in this function only. If it is not open, or
    // closed and reused meanwhile, they fail or speak of the file that is there then.
    medium_of(unsafe { BorrowedFd::borrow_raw(fd) }).kind
}

/// Whether a file lies on a file system of disks whose files may be staged, whatever its medium. Also of descriptors that
/// are open as a path alone.
#[must_use]
pub fn is_disk_fd(fd: i32) -> bool {
    // SAFETY: as in `kind_of_fd`; a negative number is none that is open.
    let asked = (fd >= 0).then(|| rustix::fs::fstatfs(unsafe { BorrowedFd::borrow_raw(fd) }));
    let known = asked.and_then(|fs| known(magic_of(&fs.ok()?)));
    known.is_some_and(|known| matches!(known.class, Class::Disk))
}

/// Whether the file behind a descriptor number is of those that the kernel makes on the fly: no place for data.
pub fn is_synthetic_fd(fd: i32) -> bool {
    // SAFETY: as in `kind_of_fd`; a negative number is none that is open.
    fd >= 0 && medium_of(unsafe { BorrowedFd::borrow_raw(fd) }).reason == Reason::Synthetic
}

/// Whether the files in a directory lie in memory only, as far as its path alone can tell: one system call.
pub fn is_directory_in_memory(path: &core::ffi::CStr) -> bool {
    rustix::fs::statfs(path).is_ok_and(|fs| {
        known(magic_of(&fs)).is_some_and(|known| matches!(known.class, Class::Memory))
    })
}

/// Whether the file behind a descriptor number is marked for direct mapping. Less than
/// [`MediumKind::Dax`], and all that a descriptor tells which may not be read.
pub fn is_marked_dax(fd: i32) -> bool {
    // SAFETY: as in `kind_of_fd`; a negative number is none that is open.
    let asked = (fd >= 0).then(|| attributes(unsafe { BorrowedFd::borrow_raw(fd) }));
    asked.is_some_and(|file| file.is_ok_and(|file| is_dax(&file)))
}

fn judge(magic: u32, file: &Statx, fd: BorrowedFd<'_>) -> Detected {
    let file_type = FileType::from_raw_mode(file.stx_mode.into());
    if !matches!(file_type, FileType::RegularFile | FileType::Directory) {
        return Detected::other(Reason::NotAFile);
    }
    let class = known(magic).map_or(Class::Unproven, |known| known.class);
    match class {
        Class::Memory => Detected {
            kind: MediumKind::Ram,
            reason: Reason::MemoryOnly,
        },
        Class::Disk if file_type == FileType::RegularFile && is_dax(file) => dax_kind(fd),
        Class::Disk => Detected {
            kind: MediumKind::Cached,
            reason: Reason::PageCache,
        },
        Class::Overlay => Detected::other(Reason::Overlay),
        Class::Network => Detected::other(Reason::Network),
        Class::Fuse => Detected::other(Reason::Fuse),
        Class::HugePages => Detected::other(Reason::HugePages),
        Class::Synthetic => Detected::other(Reason::Synthetic),
        Class::Unproven => Detected::other(Reason::Unproven),
    }
}

/// A file marked DAX is `dax` if a synchronous mapping works and the processor can do its part.
fn dax_kind(fd: BorrowedFd<'_>) -> Detected {
    let reason = match (map_sync_works(fd), WriteBack::chosen()) {
        (Ok(true), WriteBack::None) => Reason::NoWriteBack,
        (Ok(true), _) => {
            return Detected {
                kind: MediumKind::Dax,
                reason: Reason::MapSyncWorks,
            };
        }
        (Ok(false), _) => Reason::DaxWithoutMapSync,
        (Err(_), _) => Reason::DaxNotProven,
    };
    Detected {
        kind: MediumKind::Cached,
        reason,
    }
}

/// Tries a synchronous mapping of one page, which touches no byte.
fn map_sync_works(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    match Mapping::new(fd, 0, PAGE, Access::Read, true) {
        Ok(mapping) => Ok(mapping.synchronous() == Synchronous::Yes),
        Err(crate::map::MapError::Kernel(error)) => Err(error),
        Err(crate::map::MapError::BadRange) => Err(Errno::INVAL),
    }
}

fn attributes(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted)
}

fn is_dax(file: &Statx) -> bool {
    file.stx_attributes.contains(StatxAttributes::DAX)
}

/// The magic number, which is a 32-bit one whatever width the kernel reports it in.
fn magic_of(fs: &rustix::fs::StatFs) -> u32 {
    fs.f_type as u32
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Memory,
    Disk,
    Overlay,
    Network,
    Fuse,
    HugePages,
    Synthetic,
    Unproven,
}

struct Known {
    magic: u32,
    name: &'static str,
    class: Class,
}

const fn known_as(magic: u32, name: &'static str, class: Class) -> Known {
    Known { magic, name, class }
}

/// File systems we have a word for, by the magic numbers of `statfs(2)`.
static KNOWN: [Known; 32] = [
    known_as(0x0102_1994, "tmpfs", Class::Memory),
    known_as(0xef53, "ext4", Class::Disk),
    known_as(0x5846_5342, "xfs", Class::Disk),
    known_as(0x9123_683e, "btrfs", Class::Disk),
    known_as(0x794c_7630, "overlay", Class::Overlay),
    known_as(0x6969, "nfs", Class::Network),
    known_as(0xff53_4d42, "cifs", Class::Network),
    known_as(0xfe53_4d42, "smb2", Class::Network),
    known_as(0x517b, "smb", Class::Network),
    known_as(0x0102_1997, "9p", Class::Network),
    known_as(0x00c3_6400, "ceph", Class::Network),
    known_as(0x5346_414f, "afs", Class::Network),
    known_as(0x7375_7245, "coda", Class::Network),
    known_as(0x0bd0_0bd0, "lustre", Class::Network),
    known_as(0x0116_1970, "gfs2", Class::Network),
    known_as(0x7461_636f, "ocfs2", Class::Network),
    known_as(0x6573_5546, "fuse", Class::Fuse),
    known_as(0x9584_58f6, "hugetlbfs", Class::HugePages),
    known_as(0x9fa0, "proc", Class::Synthetic),
    known_as(0x6265_6572, "sysfs", Class::Synthetic),
    known_as(0x1cd1, "devpts", Class::Synthetic),
    known_as(0x6462_6720, "debugfs", Class::Synthetic),
    known_as(0x7472_6163, "tracefs", Class::Synthetic),
    known_as(0x0027_e0eb, "cgroup", Class::Synthetic),
    known_as(0x6367_7270, "cgroup2", Class::Synthetic),
    known_as(0x8584_58f6, "ramfs", Class::Unproven),
    known_as(0xf2f5_2010, "f2fs", Class::Unproven),
    known_as(0xca45_1a4e, "bcachefs", Class::Unproven),
    known_as(0x2fc1_2fc1, "zfs", Class::Unproven),
    known_as(0x7371_7368, "squashfs", Class::Unproven),
    known_as(0x4d44, "vfat", Class::Unproven),
    known_as(0x2011_bab0, "exfat", Class::Unproven),
];

fn known(magic: u32) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.magic == magic)
}

/// Whether something works, where finding out may not have been asked for or possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It works.
    Yes,
    /// The kernel refused it.
    No(Errno),
    /// Not tried.
    NotTried,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Yes => f.write_str("yes"),
            Answer::No(error) => write!(f, "no ({})", in_words(*error)),
            Answer::NotTried => f.write_str("not tried"),
        }
    }
}

/// Whether a report may make nameless temporary files to find things out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Look only.
    Look,
    /// Make `O_TMPFILE` files in the directory and try on them.
    Try,
}

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot examine {path}: {error}", path = path.display(), error = in_words(*error))]
pub struct ReportError {
    /// The path asked about.
    pub path: PathBuf,
    /// What the kernel said.
    pub error: Errno,
}

/// Where the path's file system is mounted, from `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The file system's type as the kernel calls it (tells ext2 from ext4, which share a magic).
    pub fs_type: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// What of the file system is seen there: `/` is all of it.
    pub root: String,
    /// The file system's number, as the table has it: not that of files on btrfs.
    pub device: String,
    /// What is mounted there: a device, usually.
    pub source: String,
    /// Options of the mount, then those of the file system.
    pub options: Vec<String>,
}

/// Everything `adit doctor PATH` says about a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The path asked about.
    pub path: PathBuf,
    /// The medium new files there lie on (for a file: it itself).
    pub detected: Detected,
    /// The file system's name by its magic number; "unknown" if there is no word for it.
    pub fs_name: &'static str,
    /// The magic number.
    pub magic: u32,
    /// Bytes per block.
    pub block_size: u64,
    /// Bytes in the file system.
    pub total_bytes: u64,
    /// Bytes this user may still allocate.
    pub available_bytes: u64,
    /// The mount, if the kernel shows it.
    pub mount: Option<Mount>,
    /// Release of the running kernel.
    pub kernel_release: String,
    /// Whether files are mapped without a page cache, by `statx`.
    pub dax: bool,
    /// Whether a mapping with `MAP_SYNC` works.
    pub map_sync: Answer,
    /// Whether ranges can be cloned (`FICLONERANGE`).
    pub clone_range: Answer,
    /// When the kernel uses huge pages for ordinary memory, and for tmpfs.
    pub huge_pages: HugePages,
    /// The processor's write-back instruction in use.
    pub write_back: WriteBack,
    /// The copy routine in use.
    pub copy: Routine,
    /// The streaming copy routine in use.
    pub streaming: Routine,
    /// Whether faults inside copies are caught on this architecture.
    pub guarded: bool,
}

/// The chosen word of the kernel's huge page settings; empty where it does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugePages {
    /// For ordinary memory.
    pub ordinary: String,
    /// For tmpfs.
    pub tmpfs: String,
}

impl Report {
    /// Examines a path. With [`Probe::Try`] it makes two nameless files beside it (or in it), which
    /// vanish by themselves, and tells by them what new files there can do.
    pub fn of(path: &Path, probe: Probe) -> Result<Report, ReportError> {
        examine(path, probe).map_err(|error| ReportError {
            path: path.to_owned(),
            error,
        })
    }

    /// Whether files here can share blocks and are mapped without a page cache, on a kernel that confuses
    /// such pages: before Linux 6.2 it warns (`dax_insert_entry`) and loses track of whose page it is.
    pub fn shared_blocks_confuse_kernel(&self) -> bool {
        self.dax && self.clone_range == Answer::Yes && is_older(&self.kernel_release, (6, 2))
    }
}

/// Whether a kernel's release is before a version. What is no number counts as 0.
fn is_older(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    (next(), next()) < version
}

fn examine(path: &Path, probe: Probe) -> Result<Report, Errno> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    // O_PATH first: opening a fifo or a device for real may block or do something.
    let look = rustix::fs::open(&*name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let fs = rustix::fs::fstatfs(&look)?;
    let file = attributes(look.as_fd())?;
    let magic = magic_of(&fs);
    let file_type = FileType::from_raw_mode(file.stx_mode.into());
    let open = open_to_try(&name, file_type);
    let mut detected = match &open {
        Some(open) => judge(magic, &file, open.as_fd()),
        None => judge(magic, &file, look.as_fd()),
    };
    let mut dax = is_dax(&file);
    let mut map_sync = match &open {
        Some(open) if file_type == FileType::RegularFile => sync_answer(open.as_fd()),
        _ => Answer::NotTried,
    };
    let mut clone_range = Answer::NotTried;
    if let Some(made) = nameless_files(&name, file_type, probe) {
        clone_range = clone_answer(&made, fs.f_bsize as usize);
        if file_type == FileType::Directory {
            // A directory does not show what its files will be; a file made in it does.
            detected = medium_of(&made.0);
            dax = attributes(made.0.as_fd()).is_ok_and(|file| is_dax(&file));
            map_sync = sync_answer(made.0.as_fd());
        }
    }
    Ok(Report {
        path: path.to_owned(),
        detected,
        fs_name: known(magic).map_or("unknown", |known| known.name),
        magic,
        block_size: fs.f_bsize as u64,
        total_bytes: fs.f_blocks.saturating_mul(fs.f_bsize as u64),
        available_bytes: fs.f_bavail.saturating_mul(fs.f_bsize as u64),
        mount: mount_of(&file),
        kernel_release: first_line(c"/proc/sys/kernel/osrelease"),
        dax,
        map_sync,
        clone_range,
        huge_pages: HugePages {
            ordinary: chosen_word(&first_line(c"/sys/kernel/mm/transparent_hugepage/enabled")),
            tmpfs: chosen_word(&first_line(
                c"/sys/kernel/mm/transparent_hugepage/shmem_enabled",
            )),
        },
        write_back: WriteBack::chosen(),
        copy: Routine::chosen(),
        streaming: Routine::chosen_streaming(),
        guarded: crate::copy::GUARDED,
    })
}

/// Opens a regular file for a trial mapping; anything else is not opened.
fn open_to_try(name: &CString, file_type: FileType) -> Option<OwnedFd> {
    if file_type != FileType::RegularFile {
        return None;
    }
    // Non-blocking, in case the name is a fifo by now or the file is under a lease.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(&**name, flags, Mode::empty()).ok()
}

fn sync_answer(fd: BorrowedFd<'_>) -> Answer {
    match map_sync_works(fd) {
        Ok(true) => Answer::Yes,
        Ok(false) => Answer::No(Errno::OPNOTSUPP),
        Err(error) => Answer::No(error),
    }
}

/// Two nameless files in the directory (the file's own, or the given one).
fn nameless_files(name: &CString, file_type: FileType, probe: Probe) -> Option<(OwnedFd, OwnedFd)> {
    if probe == Probe::Look {
        return None;
    }
    let directory = match file_type {
        FileType::Directory => name.clone(),
        FileType::RegularFile => parent_of(name),
        _ => return None,
    };
    let make = || {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(&*directory, flags, Mode::RUSR | Mode::WUSR).ok()
    };
    Some((make()?, make()?))
}

/// The directory part of a path, "." if there is none.
fn parent_of(name: &CString) -> CString {
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let parent = path
        .parent()
        .map(|parent| parent.as_os_str().as_bytes())
        .unwrap_or(b"/");
    let parent = if parent.is_empty() { b"." } else { parent };
    // A part of a C string holds no NUL, so this cannot fail.
    CString::new(parent).unwrap_or_default()
}

/// The kernel's `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    source_length: u64,
    target_offset: u64,
}

/// Tries to clone one block from one file to the other.
fn clone_answer(files: &(OwnedFd, OwnedFd), block: usize) -> Answer {
    use rustix::fd::AsRawFd;
    use rustix::ioctl::{Setter, ioctl, opcode};
    const FICLONERANGE: rustix::ioctl::Opcode = opcode::write::<CloneRange>(0x94, 13);

    let filler = vec![0xad_u8; block.clamp(512, 1 << 20)];
    if let Err(error) = rustix::io::pwrite(&files.0, &filler, 0) {
        return Answer::No(error);
    }
    let argument = CloneRange {
        source: files.0.as_raw_fd().into(),
        source_offset: 0,
        source_length: filler.len() as u64,
        target_offset: 0,
    };
    // SAFETY: this opcode takes a pointer to `CloneRange`, whose descriptor is open.
    match unsafe { ioctl(&files.1, Setter::<FICLONERANGE, CloneRange>::new(argument)) } {
        Ok(()) => Answer::Yes,
        Err(error) => Answer::No(error),
    }
}

/// Reads a small text file of the kernel; empty if it cannot be read.
fn read_text(name: &core::ffi::CStr, limit: usize) -> String {
    let Ok(fd) = rustix::fs::openat(CWD, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return String::new();
    };
    let mut text = Vec::new();
    let mut part = [0_u8; 4096];
    while text.len() < limit {
        match rustix::io::read(&fd, &mut part) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&part[..count.min(part.len())]),
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn first_line(name: &core::ffi::CStr) -> String {
    read_text(name, 4096)
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The word in brackets, by which the kernel marks a setting in force.
fn chosen_word(line: &str) -> String {
    let chosen = line
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or_else(String::new, |(word, _)| word.to_owned())
}

/// The mount that an open file was opened through, if the kernel shows it.
pub fn mount_of_fd(fd: impl AsFd) -> Option<Mount> {
    mount_of(&attributes(fd.as_fd()).ok()?)
}

/// Other mounts that show all of the file system of which this one shows a part, as a bind mount does.
#[must_use]
pub fn whole_mounts_of(mount: &Mount) -> Vec<Mount> {
    wholes(mount, mounts())
}

fn wholes(mount: &Mount, all: Vec<Mount>) -> Vec<Mount> {
    let is_its =
        |other: &Mount| mount.root != "/" && other.root == "/" && other.device == mount.device;
    all.into_iter().filter(is_its).collect()
}

/// All mounts that the kernel shows, in the order in which they were made.
#[must_use]
pub fn mounts() -> Vec<Mount> {
    mount_table().lines().filter_map(parse_mount).collect()
}

fn mount_table() -> String {
    const LIMIT: usize = 16 << 20;
    read_text(c"/proc/self/mountinfo", LIMIT)
}

fn mount_of(file: &Statx) -> Option<Mount> {
    let table = mount_table();
    let by_id = StatxFlags::from_bits_retain(file.stx_mask).contains(StatxFlags::MNT_ID);
    let device = format!("{}:{}", file.stx_dev_major, file.stx_dev_minor);
    find_mount(&table, by_id.then_some(file.stx_mnt_id), &device)
}

/// Finds a mount by its number, or before Linux 5.8 the last one of its device.
fn find_mount(table: &str, id: Option<u64>, device: &str) -> Option<Mount> {
    let mut found = None;
    for line in table.lines() {
        let mut words = line.split(' ');
        let (number, _parent, line_device) = (words.next()?, words.next(), words.next());
        let matches = match id {
            Some(id) => number.parse() == Ok(id),
            None => line_device == Some(device),
        };
        if matches {
            found = parse_mount(line).or(found);
        }
    }
    found
}

/// Takes one line of the table apart: fixed words, optional ones up to "-", and three more.
fn parse_mount(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(2);
    let (device, root) = (front.next()?, front.next()?);
    let (mount_point, mount_options) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let (fs_type, source) = (back.next()?, back.next()?);
    let fs_options = back.next().unwrap_or_default();
    let mut options: Vec<String> = Vec::new();
    for option in mount_options.split(',').chain(fs_options.split(',')) {
        if !option.is_empty() && !options.iter().any(|seen| seen == option) {
            options.push(unescaped(option));
        }
    }
    Some(Mount {
        fs_type: unescaped(fs_type),
        mount_point: unescaped(mount_point),
        root: unescaped(root),
        device: unescaped(device),
        source: unescaped(source),
        options,
    })
}

/// Undoes the table's octal escapes (`\040` for a space).
fn unescaped(word: &str) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:25 / /dev/shm rw,nosuid - tmpfs shm rw,size=64k
41 27 0:40 /sub /mnt/two\\040words rw shared:7 master:2 - btrfs /dev/a\\134b rw,ssd
42 27 0:25 / /again ro - tmpfs again rw
broken line
43 27 0:41 / /half rw -";

    #[test]
    fn mounts_are_found_by_number_and_by_device() {
        let by_number = find_mount(TABLE, Some(41), "9:9").expect("mount 41");
        assert_eq!(by_number.mount_point, "/mnt/two words");
        assert_eq!(by_number.source, "/dev/a\\b");
        assert_eq!(by_number.fs_type, "btrfs");
        assert_eq!(by_number.options, ["rw", "ssd"]);
        let by_device = find_mount(TABLE, None, "0:25").expect("the last of its device");
        assert_eq!(by_device.mount_point, "/again");
        assert_eq!(find_mount(TABLE, Some(1), "0:25"), None);
        assert_eq!(find_mount(TABLE, None, "9:9"), None);
        assert_eq!(find_mount(TABLE, Some(43), ""), None);
        assert_eq!(find_mount("", Some(41), ""), None);
    }

    /// A bind mount shows a part of a file system, which another mount may show all of.
    #[test]
    fn who_shows_all_of_a_part_is_found() {
        let table = "30 1 8:1 / /data rw - ext4 /dev/sda1 rw
31 1 8:1 /one /bind rw - ext4 /dev/sda1 rw
32 1 8:1 / /again rw - ext4 /dev/sda1 rw
33 1 8:2 / /other rw - ext4 /dev/sdb1 rw";
        let all = || table.lines().filter_map(parse_mount).collect::<Vec<_>>();
        let seen_from = |index: usize| {
            let found = wholes(&all()[index], all());
            found
                .into_iter()
                .map(|mount| mount.mount_point)
                .collect::<Vec<_>>()
        };
        assert_eq!(seen_from(1), ["/data", "/again"]);
        assert!(seen_from(0).is_empty(), "it shows all itself");
    }

    #[test]
    fn escapes_are_undone_and_half_ones_left() {
        assert_eq!(unescaped("a\\040b\\011"), "a b\t");
        assert_eq!(unescaped("\\04"), "\\04");
        assert_eq!(unescaped("\\999\\"), "\\999\\");
        assert_eq!(unescaped("\\377"), "\u{fffd}");
    }

    #[test]
    fn the_chosen_word_is_the_bracketed_one() {
        assert_eq!(chosen_word("always [madvise] never"), "madvise");
        assert_eq!(chosen_word("always"), "");
        assert_eq!(chosen_word("]always["), "");
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        for older in ["6.1.0-50-cloud-amd64", "5.19", "6", "4.20-rc1", ""] {
            assert!(is_older(older, (6, 2)), "{older}");
        }
        for newer in ["6.2.0", "6.12.95+deb12-cloud-amd64", "7.0-rc1", "10.1"] {
            assert!(!is_older(newer, (6, 2)), "{newer}");
        }
    }

    #[test]
    fn parents_of_paths() {
        for (path, parent) in [(c"/a/b", c"/a"), (c"a", c"."), (c"/a", c"/"), (c"/", c"/")] {
            assert_eq!(parent_of(&path.to_owned()).as_c_str(), parent);
        }
    }

    #[test]
    fn no_file_system_is_listed_twice() {
        for (at, one) in KNOWN.iter().enumerate() {
            assert!(
                !KNOWN[..at].iter().any(|other| other.magic == one.magic),
                "{}",
                one.name
            );
        }
    }
}
