//! Calls that change names, in the modes that stage.
//!
//! Recovery finds a staged file by its path and its handle. So before a name of a file changes, the
//! file is published and left to the kernel; what a crash leaves of the change is then the kernel file
//! system's own affair. The owner and the permissions of a file are looked at by recovery, too.
//!
//! In the modes `sync` and `strict` a call is durable when it returns, and a name that is moved or
//! removed is only when its directory was synced. So after the call the directories that it changed are
//! synced, wherever a crash leaves anything. An open creates a name if there was none, or another file of
//! that name: what was there is asked before and after. The name of a new file becomes durable with the
//! file itself, which has to be before anything of it is staged: one sync does both.
//!
//! A program that opens a file which it stages itself gets it published first, in every mode that stages:
//! the kernel would make it wait for its own lease.
//!
//! # Safety
//! C entry points: libc's own functions are called with the program's own arguments. A path is read
//! only after the kernel has read it in the same call. A descriptor that the kernel has just given us is ours.
#![allow(unsafe_code)]

use crate::declared::{Asked, Named};
use crate::numbers::{self, How};
use crate::ofd::Ofd;
use crate::real::{self, call_real};
use crate::signal::engine::{self, Inside};
use crate::sys::{self, ProcPath};
use crate::writer::Writer;
use crate::{
    closed, data, declared, descriptors, fds, init, process, record_locks, stack, stage, table,
    vfork,
};
use adit_pmem::MediumKind;
use adit_pmem::brief::{self, Brief};
use adit_store::staged::Mode;
use core::ffi::{CStr, c_char, c_int, c_uint};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use rustix::io::Errno;

/// Set in the modes that stage: the stubs look at this word and do nothing more while it is zero.
pub(crate) static WATCHED: AtomicU32 = AtomicU32::new(0);
/// Set in the modes in which a name is durable when the call returns.
pub(crate) static DURABLE: AtomicU32 = AtomicU32::new(0);

type Path = *const c_char;

/// For the library's constructor.
pub(crate) fn start(mode: Mode) {
    WATCHED.store(1, Ordering::SeqCst);
    DURABLE.store(
        u32::from(matches!(mode, Mode::Sync | Mode::Strict)),
        Ordering::SeqCst,
    );
}

/// A name that a call is given: the directory that it starts from, and the path.
#[derive(Clone, Copy)]
struct Name(c_int, Path);

impl Name {
    fn here(path: Path) -> Self {
        Self(libc::AT_FDCWD, path)
    }
}

/// Publishes the file of this name and leaves it to the kernel, if this process stages it. Says
/// whether it is a directory.
pub(crate) fn release(dir: c_int, path: Path, flags: c_int) -> bool {
    let mode = each_staged(dir, path, flags, |_, ofd, fd| {
        // What cannot be published now stays staged, and the monitor's to publish under any name.
        let _ = ofd.hand_over(fd);
    });
    declared::bar_name(dir, path, flags);
    mode & libc::S_IFMT == libc::S_IFDIR
}

/// Publishes the file of this name, if this process stages it, before its times or rights change: recovery opens it
/// as it is then. What cannot be published now stays staged, as when it is closed.
pub(crate) fn put_down(dir: c_int, path: Path, flags: c_int) {
    each_staged(dir, path, flags, |writer, ofd, fd| {
        let _ = writer.put_down(ofd, fd);
    });
    declared::put_down_name(dir, path, flags);
}

/// Before this process opens a file that it stages: the open would wait for the monitor, and without
/// one for the process itself, until the kernel loses patience with the lease.
pub(crate) fn lend(dir: c_int, path: Path) {
    each_staged(dir, path, 0, |writer, ofd, fd| writer.lend(ofd, fd));
}

/// Does `work` to the staged descriptions of the file of this name, and waits until it is published where this process has
/// closed it. Returns the file's mode, or 0.
fn each_staged(
    dir: c_int,
    path: Path,
    flags: c_int,
    work: impl Fn(&Writer, &Ofd, c_int),
) -> libc::mode_t {
    let stat = each_open(dir, path, flags, work);
    stat.map_or(0, |stat| {
        closed::wait_for(stat.st_dev, stat.st_ino);
        stat.st_mode
    })
}

/// The same for those that are open.
fn each_open(
    dir: c_int,
    path: Path,
    flags: c_int,
    work: impl Fn(&Writer, &Ofd, c_int),
) -> Option<libc::stat> {
    if stage::STAGED.load(Ordering::SeqCst) == 0 || vfork::in_child() {
        return None;
    }
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    let asked = sys::newfstatat(
        dir as usize,
        path as usize,
        stat.as_mut_ptr() as usize,
        flags as usize,
    );
    if asked.is_err() {
        return None;
    }
    // SAFETY: all zero is a valid stat, and the kernel has filled it.
    let stat = unsafe { stat.assume_init() };
    for (fd, ofd) in fds::each_promoted() {
        if let Some(writer) = ofd.writer()
            && writer.logical(&ofd, fd, stat.st_dev, stat.st_ino).is_some()
        {
            work(writer, &ofd, fd);
        }
    }
    Some(stat)
}

/// Does a call that changes `names`: files that are staged are published first, and after success the
/// directories are synced if the mode says so.
fn change<const N: usize>(names: [Name; N], call: impl FnOnce() -> c_int) -> c_int {
    if vfork::in_child() {
        return call();
    }
    stack::with_room(|| change_here(names, call))
}

fn change_here<const N: usize>(names: [Name; N], call: impl FnOnce() -> c_int) -> c_int {
    for Name(dir, path) in names {
        release(dir, path, libc::AT_SYMLINK_NOFOLLOW);
    }
    let result = call();
    if result != 0 || DURABLE.load(Ordering::Relaxed) == 0 {
        return result;
    }
    let mut last = None;
    let synced = names
        .into_iter()
        .try_for_each(|name| parent(name).sync(&mut last));
    match synced {
        Ok(()) => result,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

/// As [`change`], for calls that may move a directory, and with it any file that is staged.
fn moving(names: [Name; 2], call: impl FnOnce() -> c_int) -> c_int {
    stack::with_room(|| moving_here(names, call))
}

fn moving_here(names: [Name; 2], call: impl FnOnce() -> c_int) -> c_int {
    let directory = |&Name(dir, path): &Name| release(dir, path, libc::AT_SYMLINK_NOFOLLOW);
    if names.iter().any(directory) {
        let _ = process::unstage_all();
        for Name(dir, path) in names {
            declared::bar_below(dir, path);
        }
    }
    let were_declared =
        declared::which(names.map(|Name(dir, path)| (dir, path, libc::AT_SYMLINK_NOFOLLOW)));
    let result = change(names, call);
    if result == 0 {
        let [from, to] = were_declared;
        for (Name(dir, path), other_was) in names.into_iter().zip([to, from]) {
            if other_was {
                // Somebody may have staged the file meanwhile, by the name that it had.
                declared::bar_name(dir, path, libc::AT_SYMLINK_NOFOLLOW);
            } else {
                declared::has_come(dir, path);
            }
        }
    }
    result
}

/// A directory that may have to be synced. Who has one sets errno when it is gone.
enum Directory {
    /// Open for as long as that takes: a child that is forked meanwhile would keep it. So no handler leaves by a jump until
    /// it is closed, and nobody cancels the thread: forks would wait for that from then on. Dropped in this order.
    Open {
        fd: OwnedFd,
        _brief: Brief,
        _inside: Inside,
    },
    /// Its file system is in memory, where no crash leaves anything.
    InMemory,
    /// It cannot be opened.
    Closed,
}

/// The longest path that the kernel takes, with its end.
const LONGEST: usize = 4096;

/// The directory in which the last component of a name is.
fn parent(Name(dir, path): Name) -> Directory {
    let mut bytes = [0u8; LONGEST + 1];
    let mut len = 0;
    while len < LONGEST {
        // SAFETY: the kernel has just read the path up to its end.
        let byte = unsafe { path.add(len).cast::<u8>().read_volatile() };
        if byte == 0 {
            break;
        }
        bytes[len] = byte;
        len += 1;
    }
    Directory::open(dir, cut(&mut bytes, len))
}

/// Shortens a path to its directory, in place.
fn cut(bytes: &mut [u8], len: usize) -> &CStr {
    let name = bytes[..len]
        .iter()
        .rposition(|&byte| byte != b'/')
        .map_or(0, |last| last + 1);
    match bytes[..name].iter().rposition(|&byte| byte == b'/') {
        Some(slash) => bytes[slash + 1] = 0,
        None if name == 0 && len > 0 => bytes[1] = 0,
        None => bytes[..2].copy_from_slice(b".\0"),
    }
    CStr::from_bytes_until_nul(bytes).unwrap_or(c".")
}

impl Directory {
    fn open(dir: c_int, path: &CStr) -> Self {
        let by_path = dir == libc::AT_FDCWD || path.to_bytes().starts_with(b"/");
        if by_path && adit_pmem::is_directory_in_memory(path) {
            return Self::InMemory;
        }
        Self::opened(dir, path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY)
    }

    fn opened(dir: c_int, path: Path, flags: c_int) -> Self {
        let inside = engine::enter();
        let brief = brief::begin();
        let flags = (flags | libc::O_CLOEXEC) as usize;
        let opened = brief::above_standard(|| {
            let opened = sys::openat(dir as usize, path as usize, flags, 0);
            // SAFETY: the kernel has just opened it for us.
            opened.map_or_else(
                |errno| Err(Errno::from_raw_os_error(errno)),
                |fd| Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) }),
            )
        });
        match opened {
            Ok(fd) if adit_pmem::kind_of_fd(fd.as_raw_fd()) == MediumKind::Ram => Self::InMemory,
            Ok(fd) => Self::Open {
                fd,
                _brief: brief,
                _inside: inside,
            },
            Err(_) => Self::Closed,
        }
    }

    /// Makes the names in it durable, unless it is the one that was `synced` before. One that may not
    /// be read, or for which there is no descriptor left, is synced together with everything else.
    fn sync(&self, synced: &mut Option<(u64, u64)>) -> Result<(), c_int> {
        let Self::Open { fd, .. } = self else {
            return self.sync_all();
        };
        let fd = fd.as_raw_fd();
        let this = identity_of(fd);
        if this.is_some() && *synced == this {
            return Ok(());
        }
        *synced = this;
        lost(sys::fsync(fd as usize))
    }

    /// Makes everything on its file system durable.
    fn sync_all(&self) -> Result<(), c_int> {
        match self {
            Self::Open { fd, .. } => lost(sys::syncfs(fd.as_raw_fd() as usize)),
            Self::InMemory => Ok(()),
            Self::Closed => {
                let _ = sys::sync();
                Ok(())
            }
        }
    }
}

/// What a sync says of a medium that lost something. A file system that cannot sync this promises
/// nothing by it.
fn lost(synced: sys::Result) -> Result<(), c_int> {
    match synced {
        Err(errno @ (libc::EIO | libc::ENOSPC | libc::EDQUOT)) => Err(errno),
        _ => Ok(()),
    }
}

fn identity_of(fd: c_int) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    sys::fstat(fd as usize, stat.as_mut_ptr() as usize).ok()?;
    // SAFETY: all zero is a valid stat, and the kernel has filled it.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

/// The call changes nothing but descriptors.
pub(crate) const NOTHING: u64 = 0;
/// What the call opens is new.
const NEW: u64 = 1;
/// Of a token that says which file there was: the call cuts it.
const CUTS: u64 = 4;
/// The call would have cut a file, and does not: it is cut when it is open, as the program's first change of it. No
/// token that says which file there was.
const TO_CUT: u64 = 8;
/// The same where there was no file: somebody may make one before the kernel does, and stage it.
const NEW_TO_CUT: u64 = NEW | TO_CUT;

/// What a stub of an open keeps: the registers of its first four arguments, with a token for [`opened`].
#[repr(C)]
pub(crate) struct Arguments {
    token: u64,
    fourth: u64,
    third: u64,
    second: u64,
    first: u64,
}

/// Before `open(path, flags, …)`: a token for [`opened`].
pub(crate) extern "C" fn before_open(arguments: &mut Arguments) -> u64 {
    let mut flags = arguments.second as c_int;
    let path = arguments.first as Path;
    let token = stack::with_room(|| before(libc::AT_FDCWD, path, &mut flags));
    arguments.second = flags as u64;
    token
}

/// Before `openat(directory, path, flags, …)`.
pub(crate) extern "C" fn before_open_at(arguments: &mut Arguments) -> u64 {
    let mut flags = arguments.third as c_int;
    let (dir, path) = (arguments.first as c_int, arguments.second as Path);
    let token = stack::with_room(|| before(dir, path, &mut flags));
    arguments.third = flags as u64;
    token
}

/// What the stub of `openat2` keeps: as [`Arguments`], and behind that room for what is asked for.
#[repr(C)]
pub(crate) struct WithHow {
    arguments: Arguments,
    how: [u64; How::MOST],
}

/// Before `openat2(directory, path, how, length)`. The program's own `how` stays as it is: it may be constant.
pub(crate) extern "C" fn before_open_how(asked: &mut WithHow) -> u64 {
    let Arguments {
        first,
        second,
        third,
        fourth,
        ..
    } = asked.arguments;
    let (dir, path, how) = (first as c_int, second as Path, third as usize);
    // What cannot be read the kernel refuses.
    let Some(flags) = numbers::flags_of(how) else {
        return NOTHING;
    };
    let mut left = flags;
    let token = stack::with_room(|| before(dir, path, &mut left));
    if left == flags {
        return token;
    }
    match How::read(how, fourth as usize) {
        Some(how) => {
            asked.how = how.without(libc::O_TRUNC);
            asked.arguments.third = asked.how.as_ptr() as u64;
            token
        }
        // What it asks for only the kernel knows, which cuts it.
        None => NOTHING,
    }
}

/// Before a file is opened, by the kernel with the flags that are left.
///
/// A file that this process stages itself is published here: the kernel would have the open wait for
/// the monitor, and without one for three quarters of a minute, only to find an old file.
pub(crate) fn before(dir: c_int, path: Path, flags: &mut c_int) -> u64 {
    if *flags & libc::O_PATH == 0 {
        lend(dir, path);
    }
    let named = *flags & libc::O_TMPFILE != libc::O_TMPFILE && *flags & libc::O_PATH == 0;
    let creates = named && *flags & libc::O_CREAT != 0;
    let cuts = named && *flags & libc::O_TRUNC != 0;
    if !(creates || cuts) || vfork::in_child() {
        return NOTHING;
    }
    let writes = matches!(*flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    if cuts && *flags & libc::O_EXCL == 0 {
        // Others may have it staged, and be writing to it; or will before the kernel opens it.
        let token = match declared::named(dir, path) {
            Named::Declared => TO_CUT,
            Named::Nothing if creates => NEW_TO_CUT,
            Named::Nothing | Named::Other => NOTHING,
        };
        if token != NOTHING {
            *flags &= !libc::O_TRUNC;
            return token;
        }
    }
    if DURABLE.load(Ordering::Relaxed) == 0 {
        if !(cuts && writes && is_transaction() && is_on_disk(dir, path)) {
            return NOTHING;
        }
        *flags &= !libc::O_TRUNC;
        return TO_CUT;
    }
    if creates && *flags & libc::O_EXCL != 0 {
        return NEW;
    }
    match file_of(dir, path, 0) {
        NEW => NEW,
        there if cuts => there | CUTS,
        there => there,
    }
}

/// Whether what a program does to a file until its `fsync` is there as a whole or not at all.
fn is_transaction() -> bool {
    init::mode() == Some(Mode::Atomic)
        && init::credit().is_some()
        && !data::KERNEL_WRITES.load(Ordering::Relaxed)
}

/// Whether there is a file of this name that may be staged. What is in it somebody else may stage, and opening it
/// publishes that; of memory no crash leaves anything; and other file systems may look at the flag themselves.
fn is_on_disk(dir: c_int, path: Path) -> bool {
    // It takes no lease away, and closing it drops no locks.
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    let Ok(fd) = sys::openat(dir as usize, path as usize, flags, 0) else {
        return false;
    };
    let is = adit_pmem::is_disk_fd(fd as c_int) && descriptors::regular_file(fd as c_int).is_some();
    let _ = sys::close(fd);
    is
}

/// Cuts a file that was opened to be cut. Pipes and devices, which may have taken its place meanwhile, nobody cuts; an
/// empty file gets another time, and loses blocks behind its end, unless others may have staged what is in it. `made`
/// says that there was no file before: if this one is empty, it is as the kernel leaves one that it makes.
pub(crate) fn cut_open(fd: c_int, made: bool) -> Result<(), c_int> {
    stack::with_room(|| cut_open_here(fd, made))
}

fn cut_open_here(fd: c_int, made: bool) -> Result<(), c_int> {
    let declared = declared::is_declared(fd);
    // Asked before the size: the kernel knows the size of what nobody has staged.
    let may_be_staged = declared && (!made || declared::is_staged(fd));
    let stat = descriptors::stat_of(fd);
    if stat.is_some_and(|stat| stat.st_mode & libc::S_IFMT != libc::S_IFREG) {
        return Ok(());
    }
    let is_empty = stat.is_some_and(|stat| stat.st_size == 0) && !may_be_staged;
    if is_empty && made {
        return Ok(());
    }
    if !is_empty
        && let Some(ofd) = fds::promoted(fd)
        && let Some(writer) = ofd.writer()
        && writer.is_writable()
    {
        return writer.truncate(&ofd, fd, 0).map(drop);
    }
    cut_in_kernel(fd, declared)
}

/// The same, of what no engine cuts: descriptions that only read, and those that are the kernel's.
fn cut_in_kernel(fd: c_int, declared: bool) -> Result<(), c_int> {
    if declared {
        // As long as this description is open, nobody stages the file alone, and so nobody at all.
        declared::bar(fd)?;
    }
    let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0)?;
    if matches!(
        flags as c_int & libc::O_ACCMODE,
        libc::O_WRONLY | libc::O_RDWR
    ) {
        sys::ftruncate(fd as usize, 0)?;
    } else {
        descriptors::before_holes_somewhere();
        sys::truncate(ProcPath::of_file(fd).as_ptr(), 0)?;
    }
    if declared && DURABLE.load(Ordering::Relaxed) != 0 {
        lost(sys::fsync(fd as usize))?;
    }
    Ok(())
}

/// For a stream that is to write to a file from its first byte on, which is to be cut in a transaction: the flags to
/// open it with until it is, and whether there is no file yet. `None` where libc's own open does as well.
fn flags_for_stream(path: Path, flags: c_int) -> Option<(c_int, bool)> {
    if !is_transaction() && init::declared().is_empty() || vfork::in_child() {
        return None;
    }
    let mut left = flags;
    match stack::with_room(|| before(libc::AT_FDCWD, path, &mut left)) {
        TO_CUT => Some((left, false)),
        NEW_TO_CUT => Some((left, true)),
        _ => None,
    }
}

/// Whether libc's own open of such a stream would cut what only a transaction may; and if so, whether there is no file
/// yet.
pub(crate) fn cuts_for_stream(path: Path, flags: c_int) -> Option<bool> {
    flags_for_stream(path, flags).map(|(_, made)| made)
}

/// Opens the file of such a stream as `fopen` does, but for the cut; with whether there was no file before.
pub(crate) fn open_for_stream(path: Path, flags: c_int) -> Option<Result<(c_int, bool), c_int>> {
    let (left, made) = flags_for_stream(path, flags)?;
    let dir = libc::AT_FDCWD as usize;
    let opened = sys::openat(dir, path as usize, left as usize, 0o666);
    Some(opened.map(|fd| (fd as c_int, made)))
}

/// Before the `mkstemp` family.
pub(crate) extern "C" fn before_temporary(_arguments: &mut Arguments) -> u64 {
    if DURABLE.load(Ordering::Relaxed) == 0 || vfork::in_child() {
        NOTHING
    } else {
        NEW
    }
}

/// A number for the file of this name that no other file ever had, as good as surely: inodes are used
/// again, but not with the same time of birth. [`NEW`] if there is none.
fn file_of(dir: c_int, path: Path, flags: c_int) -> u64 {
    let mut statx = MaybeUninit::<libc::statx>::zeroed();
    let asked = sys::statx(
        dir as usize,
        path as usize,
        flags as usize,
        (libc::STATX_INO | libc::STATX_BTIME) as usize,
        statx.as_mut_ptr() as usize,
    );
    if asked.is_err() {
        return NEW;
    }
    // SAFETY: all zero is a valid statx, and the kernel has filled it.
    let statx = unsafe { statx.assume_init() };
    let device = u64::from(statx.stx_dev_major) << 32 | u64::from(statx.stx_dev_minor);
    let birth = statx.stx_btime;
    [
        device,
        statx.stx_ino,
        birth.tv_sec as u64,
        u64::from(birth.tv_nsec),
    ]
    .iter()
    .fold(0u64, |all, part| {
        (all ^ part)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    }) & !(NEW | CUTS)
        | 2
}

/// After an open that returned `fd`, with the token from before it: makes the name of a new file
/// durable, and that an old one was cut. Returns the descriptor, or -1 with errno set.
pub(crate) extern "C" fn opened(token: u64, fd: c_int) -> c_int {
    if token == NOTHING {
        return fd;
    }
    stack::with_room(|| make_durable(token, fd))
}

fn make_durable(token: u64, fd: c_int) -> c_int {
    let synced = match token {
        TO_CUT => cut_open(fd, false),
        NEW_TO_CUT => cut_open(fd, true).and_then(|()| {
            if DURABLE.load(Ordering::Relaxed) == 0 || adit_pmem::kind_of_fd(fd) == MediumKind::Ram
            {
                return Ok(());
            }
            make_new_durable(fd)
        }),
        _ if adit_pmem::kind_of_fd(fd) == MediumKind::Ram => return fd,
        NEW => make_new_durable(fd),
        before if file_of(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) != before & !CUTS => {
            make_new_durable(fd)
        }
        before if before & CUTS != 0 => lost(sys::fsync(fd as usize)),
        _ => Ok(()),
    };
    match synced {
        Ok(()) => fd,
        Err(errno) => {
            descriptors::close(fd);
            sys::set_errno(errno);
            -1
        }
    }
}

/// After libc has opened a stream that may write: libc tells nobody whether it made or cut the file, so
/// an empty one counts as both.
pub(crate) fn stream_opened(fd: c_int) -> Result<(), c_int> {
    let empty =
        || descriptors::regular_file(fd).is_some_and(|stat| stat.st_size == 0 && stat.st_nlink > 0);
    let durable = DURABLE.load(Ordering::Relaxed) != 0;
    if !durable || !empty() || adit_pmem::kind_of_fd(fd) == MediumKind::Ram {
        return Ok(());
    }
    stack::with_room(|| make_new_durable(fd))
}

/// What goes through a new stream libc writes itself, by calls that nobody else sees.
pub(crate) fn stream_is_libcs(fd: c_int, flags: c_int) {
    let durable = DURABLE.load(Ordering::Relaxed) != 0;
    if durable && adit_pmem::kind_of_fd(fd) != MediumKind::Ram {
        descriptors::write_through(fd, flags);
    }
}

/// Makes a file durable that was just made, or found empty, and its name with it. The file systems that
/// are served write the entry of a directory with the file that it leads to as long as it is new, ext4
/// without a journal, too, where the directory alone would lead to nothing; of others nothing is known.
fn make_new_durable(fd: c_int) -> Result<(), c_int> {
    // What others change from here on is not known to be durable.
    let stat = descriptors::stat_of(fd);
    lost(sys::fsync(fd as usize))?;
    if adit_pmem::kind_of_fd(fd) == MediumKind::Other {
        return parent_of(fd).sync(&mut None);
    }
    if let Some(ofd) = fds::promoted(fd)
        && let Some(writer) = ofd.writer()
        && let Some(stat) = stat
    {
        writer.has_durable_name(&stat);
    }
    Ok(())
}

/// `truncate`. What this process stages is published first: the kernel would have us wait for the
/// monitor.
pub(crate) extern "C" fn truncate(path: Path, size: libc::off_t) -> c_int {
    if vfork::in_child() {
        return truncate_in_kernel(path, size);
    }
    stack::with_room(|| truncate_here(path, size))
}

fn truncate_here(path: Path, size: libc::off_t) -> c_int {
    if size >= 0 && declared::is_declared_name(libc::AT_FDCWD, path) && !has_size(path, size) {
        return sys::to_libc(truncate_declared(path, size)) as c_int;
    }
    let result = truncate_in_kernel(path, size);
    if result != 0 || DURABLE.load(Ordering::Relaxed) == 0 {
        return result;
    }
    match sync_file(path) {
        Ok(()) => result,
        Err(errno) => {
            sys::set_errno(errno);
            -1
        }
    }
}

fn truncate_in_kernel(path: Path, size: libc::off_t) -> c_int {
    type Function = unsafe extern "C" fn(Path, libc::off_t) -> c_int;
    descriptors::before_holes_somewhere();
    lend(libc::AT_FDCWD, path);
    // SAFETY: libc's own function with the program's own arguments.
    unsafe { call_real!(table::truncate, Function)(path, size) }
}

/// Cuts a file that others may have staged: through a description of this process, as closing another one would drop
/// its locks on it, or else through one that is made for that.
fn truncate_declared(path: Path, size: libc::off_t) -> sys::Result {
    let this = declared::with_path(libc::AT_FDCWD, path, 0, identity_of).flatten();
    for (fd, ofd) in fds::each_promoted() {
        if ofd.writer().is_some_and(Writer::is_writable)
            && this.is_some()
            && identity_of(fd) == this
        {
            return cut_through(fd, size);
        }
    }
    if declared::with_path(libc::AT_FDCWD, path, 0, record_locks::are_on) == Some(true) {
        return truncate_locked(path, size);
    }
    let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOCTTY;
    let fd = sys::openat(libc::AT_FDCWD as usize, path as usize, flags as usize, 0)? as c_int;
    if descriptors::note_open(fd, flags) < 0 {
        return Err(sys::errno());
    }
    let cut = cut_through(fd, size);
    match descriptors::close(fd) {
        0 => cut,
        _ => cut.and(Err(sys::errno())),
    }
}

/// The same of a file that this process has locked through descriptions that only read. No other one may be opened and
/// closed; so the kernel cuts it by its name, when it has all of it. Nobody stages it in between: who has locked it has it
/// open.
fn truncate_locked(path: Path, size: libc::off_t) -> sys::Result {
    if init::required() && init::mode().is_some_and(|mode| mode != Mode::Sync) {
        return Err(libc::EOPNOTSUPP);
    }
    if let Some(barred) = declared::with_path(libc::AT_FDCWD, path, 0, declared::bar) {
        barred?;
    }
    descriptors::before_holes_somewhere();
    let cut = sys::truncate(path as usize, size as usize)?;
    if DURABLE.load(Ordering::Relaxed) != 0 {
        sync_file(path)?;
    }
    Ok(cut)
}

fn cut_through(fd: c_int, size: libc::off_t) -> sys::Result {
    let ofd = fds::promoted(fd);
    match ofd.as_ref().and_then(|ofd| Some((ofd, ofd.writer()?))) {
        Some((ofd, writer)) => writer.truncate(ofd, fd, size),
        None => sys::ftruncate(fd as usize, size as usize),
    }
}

/// Whether a file has this size for everybody. Then the kernel is left to say what that does to its times.
fn has_size(path: Path, size: libc::off_t) -> bool {
    // Asked first: what is not staged then is in the file.
    let is_staged = declared::logical(Asked::Path(libc::AT_FDCWD, path, 0)).is_some();
    let stat = declared::with_path(libc::AT_FDCWD, path, 0, descriptors::stat_of).flatten();
    stat.is_some_and(|stat| stat.st_size == size && !is_staged)
}

/// Makes the file of a path durable. It is not opened for that: closing it again would drop the
/// locks that the program has on it (PROTOCOLS F1).
fn sync_file(path: Path) -> Result<(), c_int> {
    let there = Directory::opened(libc::AT_FDCWD, path, libc::O_PATH);
    let Directory::Open { fd, .. } = &there else {
        return there.sync_all();
    };
    let fd = fd.as_raw_fd();
    let this = identity_of(fd);
    let known = |fd: &c_int| fds::word(*fd).is_some_and(|word| word.load(Ordering::SeqCst) != 0);
    let mut ours = fds::all().filter(known);
    let open = ours.find(|&fd| this.is_some() && identity_of(fd) == this);
    let name = FullName::of(fd);
    // Closed before another one is opened: a fork that waits for this one would be waited for by that one.
    drop(there);
    match (open, name) {
        (Some(open), _) => lost(sys::fsync(open as usize)),
        (None, Some(name)) => name.directory().sync_all(),
        (None, None) => Directory::Closed.sync_all(),
    }
}

/// Where an open file has its name; the path that it was opened by may have led there through links.
struct FullName([u8; LONGEST + 1], usize);

impl FullName {
    fn of(fd: c_int) -> Option<Self> {
        let link = ProcPath::of_file(fd);
        let mut path = [0; LONGEST + 1];
        let len = sys::readlink(link.as_ptr(), path.as_mut_ptr() as usize, LONGEST).ok()?;
        Some(Self(path, len))
    }

    fn directory(mut self) -> Directory {
        Directory::open(libc::AT_FDCWD, cut(&mut self.0, self.1))
    }
}

/// The directory that an open file has its name in.
fn parent_of(fd: c_int) -> Directory {
    FullName::of(fd).map_or(Directory::Closed, FullName::directory)
}

/// Defines entries that change names: their arguments, and the names among these.
macro_rules! changes {
    ($($how:ident: $name:ident ($($argument:ident: $kind:ty),*) [$($changed:expr),*];)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub(crate) extern "C" fn $name($($argument: $kind),*) -> c_int {
            type Function = unsafe extern "C" fn($($kind),*) -> c_int;
            $how([$($changed),*], || {
                // SAFETY: libc's own function with the program's own arguments.
                unsafe { call_real!(table::$name, Function)($($argument),*) }
            })
        }
    )*};
}

changes! {
    moving: rename(old: Path, new: Path) [Name::here(old), Name::here(new)];
    moving: renameat(od: c_int, old: Path, nd: c_int, new: Path) [Name(od, old), Name(nd, new)];
    moving: renameat2(od: c_int, old: Path, nd: c_int, new: Path, flags: c_uint) [Name(od, old), Name(nd, new)];
    change: unlink(path: Path) [Name::here(path)];
    change: unlinkat(dir: c_int, path: Path, flags: c_int) [Name(dir, path)];
    change: remove(path: Path) [Name::here(path)];
    change: rmdir(path: Path) [Name::here(path)];
    change: mkdir(path: Path, mode: libc::mode_t) [Name::here(path)];
    change: mkdirat(dir: c_int, path: Path, mode: libc::mode_t) [Name(dir, path)];
    change: mknod(path: Path, mode: libc::mode_t, device: libc::dev_t) [Name::here(path)];
    change: mknodat(dir: c_int, path: Path, mode: libc::mode_t, device: libc::dev_t) [Name(dir, path)];
    change: __xmknod(version: c_int, path: Path, mode: libc::mode_t, device: *const libc::dev_t) [Name::here(path)];
    change: __xmknodat(version: c_int, dir: c_int, path: Path, mode: libc::mode_t, device: *const libc::dev_t) [Name(dir, path)];
    change: mkfifo(path: Path, mode: libc::mode_t) [Name::here(path)];
    change: mkfifoat(dir: c_int, path: Path, mode: libc::mode_t) [Name(dir, path)];
    change: symlink(target: Path, path: Path) [Name::here(path)];
    change: symlinkat(target: Path, dir: c_int, path: Path) [Name(dir, path)];
}

/// `link`.
pub(crate) extern "C" fn link(old: Path, new: Path) -> c_int {
    type Function = unsafe extern "C" fn(Path, Path) -> c_int;
    let old_name = (Name::here(old), libc::AT_SYMLINK_NOFOLLOW);
    linking(old_name, Name::here(new), || {
        // SAFETY: libc's own function with the program's own arguments.
        unsafe { call_real!(table::link, Function)(old, new) }
    })
}

/// `linkat`.
pub(crate) extern "C" fn linkat(od: c_int, old: Path, nd: c_int, new: Path, flags: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, Path, c_int, Path, c_int) -> c_int;
    let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 {
        0
    } else {
        libc::AT_SYMLINK_NOFOLLOW
    };
    let old_name = (Name(od, old), follow | flags & libc::AT_EMPTY_PATH);
    linking(old_name, Name(nd, new), || {
        // SAFETY: libc's own function with the program's own arguments.
        unsafe { call_real!(table::linkat, Function)(od, old, nd, new, flags) }
    })
}

/// Does a call that gives the file of the `old` name, which is looked for with these flags, a `new` one as well.
fn linking((old, flags): (Name, c_int), new: Name, call: impl FnOnce() -> c_int) -> c_int {
    let Name(dir, path) = old;
    release(dir, path, flags);
    let [was_declared] = declared::which([(dir, path, flags)]);
    let result = change([new], call);
    if result == 0 && was_declared {
        // Somebody may have staged it meanwhile, who would share it.
        declared::bar_name(dir, path, flags);
    } else if result == 0 {
        declared::has_come(new.0, new.1);
    }
    result
}

/// Before `dlopen(path, flags)`, which opens and maps the file inside itself. What is found without a path is not looked for.
pub(crate) extern "C" fn before_library(path: Path) {
    real::before_dlerror();
    if init::declared().is_empty() || path.is_null() {
        return;
    }
    // SAFETY: libc reads the same string next.
    let path = unsafe { CStr::from_ptr(path) };
    if path.to_bytes().contains(&b'/') {
        declared::bar_name(libc::AT_FDCWD, path.as_ptr(), 0);
    }
}

/// `mkdtemp`: the name is in the template once there is a directory.
pub(crate) extern "C" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    type Function = unsafe extern "C" fn(*mut c_char) -> *mut c_char;
    let mut made = core::ptr::null_mut();
    let name = Name::here(template);
    let result = change([name], || {
        // SAFETY: libc's own function with the program's own arguments.
        made = unsafe { call_real!(table::mkdtemp, Function)(template) };
        if made.is_null() { -1 } else { 0 }
    });
    if result == 0 {
        made
    } else {
        core::ptr::null_mut()
    }
}

/// Before the owner or the mode of a file of this name changes, by which recovery opens it: what stays this user's it opens
/// whatever the mode is, another user's it does not. Others see the file whole then, unless that waits for a device.
fn put_down_unless(stays: bool, dir: c_int, path: Path, flags: c_int) {
    if !stays {
        put_down(dir, path, flags);
        return;
    }
    each_open(dir, path, flags, |writer, ofd, fd| {
        if !writer.waits_for_a_device() {
            let _ = writer.put_down(ofd, fd);
        }
    });
    declared::put_down_name(dir, path, flags);
}

fn put_down_unless_of(stays: bool, fd: c_int) {
    let ofd = fds::promoted(fd);
    let writer = ofd.as_ref().and_then(|ofd| ofd.writer());
    if stays && writer.is_some_and(Writer::waits_for_a_device) {
        declared::put_down(fd);
    } else {
        descriptors::put_down(fd);
    }
}

/// Whether a file that is staged, and so this user's, stays that.
fn stays_ours(owner: libc::uid_t) -> bool {
    owner == libc::uid_t::MAX || owner == rustix::process::geteuid().as_raw()
}

/// Before `chown(path, owner, group)`.
pub(crate) extern "C" fn before_chown(path: Path, owner: libc::uid_t) {
    put_down_unless(stays_ours(owner), libc::AT_FDCWD, path, 0);
}

/// Before `lchown`.
pub(crate) extern "C" fn before_lchown(path: Path, owner: libc::uid_t) {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    put_down_unless(stays_ours(owner), libc::AT_FDCWD, path, flags);
}

/// Before `fchownat(directory, path, owner, group, flags)`.
pub(crate) extern "C" fn before_fchownat(dir: c_int, path: Path, owner: libc::uid_t) {
    put_down_unless(stays_ours(owner), dir, path, libc::AT_EMPTY_PATH);
}

/// Before `fchown(fd, owner, group)`.
pub(crate) extern "C" fn before_fchown(fd: c_int, owner: libc::uid_t) {
    put_down_unless_of(stays_ours(owner), fd);
}

/// What of a file's mode the kernel takes away when somebody writes to it.
const GIVES_RIGHTS: libc::mode_t = libc::S_ISUID | libc::S_ISGID;

/// Leaves the file of this name to the kernel where stores serve it: no store takes rights away that it gives.
fn leave_to_the_kernel(dir: c_int, path: Path, flags: c_int) {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    let at = stat.as_mut_ptr() as usize;
    let asked = sys::newfstatat(dir as usize, path as usize, at, flags as usize);
    if vfork::in_child() || asked.is_err() {
        return;
    }
    // SAFETY: all zero is a valid stat, and the kernel has filled it.
    let stat = unsafe { stat.assume_init() };
    for (fd, ofd) in fds::each_promoted() {
        let is_it = |other: libc::stat| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino);
        if ofd.writer().is_none() && descriptors::regular_file(fd).is_some_and(is_it) {
            let _ = descriptors::release(fd);
        }
    }
}

/// Before `chmod`.
pub(crate) extern "C" fn before_chmod(path: Path, mode: libc::mode_t) {
    put_down_unless(mode & GIVES_RIGHTS == 0, libc::AT_FDCWD, path, 0);
    if mode & GIVES_RIGHTS != 0 {
        leave_to_the_kernel(libc::AT_FDCWD, path, 0);
    }
}

/// Before `fchmodat`.
pub(crate) extern "C" fn before_fchmodat(dir: c_int, path: Path, mode: libc::mode_t) {
    put_down_unless(mode & GIVES_RIGHTS == 0, dir, path, libc::AT_EMPTY_PATH);
    if mode & GIVES_RIGHTS != 0 {
        leave_to_the_kernel(dir, path, libc::AT_EMPTY_PATH);
    }
}

/// Before `fchmod`.
pub(crate) extern "C" fn before_fchmod(fd: c_int, mode: libc::mode_t) {
    put_down_unless_of(mode & GIVES_RIGHTS == 0, fd);
    if mode & GIVES_RIGHTS != 0 {
        leave_to_the_kernel(fd, c"".as_ptr(), libc::AT_EMPTY_PATH);
    }
}

/// Before `setxattr`: capabilities and access lists are attributes.
pub(crate) extern "C" fn before_attribute(path: Path) {
    put_down(libc::AT_FDCWD, path, 0);
    leave_to_the_kernel(libc::AT_FDCWD, path, 0);
}

/// Before `lsetxattr`.
pub(crate) extern "C" fn before_attribute_of_link(path: Path) {
    put_down(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
    leave_to_the_kernel(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
}

/// Before `fsetxattr`.
pub(crate) extern "C" fn before_attribute_of(fd: c_int) {
    descriptors::put_down(fd);
    leave_to_the_kernel(fd, c"".as_ptr(), libc::AT_EMPTY_PATH);
}

/// Before `lchmod`.
pub(crate) extern "C" fn before_lchmod(path: Path, mode: libc::mode_t) {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    put_down_unless(mode & GIVES_RIGHTS == 0, libc::AT_FDCWD, path, flags);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(path: &str) -> String {
        let mut bytes = [0u8; LONGEST + 1];
        bytes[..path.len()].copy_from_slice(path.as_bytes());
        cut(&mut bytes, path.len()).to_str().unwrap().to_owned()
    }

    #[test]
    fn directories_of_paths() {
        for (path, expected) in [
            ("a", "."),
            ("a/", "."),
            ("a//", "."),
            ("a/b", "a/"),
            ("a/b/", "a/"),
            ("a//b//", "a//"),
            ("/a", "/"),
            ("/a/", "/"),
            ("/", "/"),
            ("//", "/"),
            ("../x", "../"),
            ("/a/b/c", "/a/b/"),
        ] {
            assert_eq!(directory(path), expected, "{path}");
        }
        let long = "x/".repeat(2047) + "y";
        assert_eq!(directory(&long), "x/".repeat(2047));
    }
}
