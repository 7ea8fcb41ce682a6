//! Files in directories that the user has declared (`adit run --path`): no program outside Adit writes
//! there, or reads there between two syncs (PROTOCOLS A1).
//!
//! Several programs may have such a file staged at once. So every description of one is a
//! [`crate::writer::Writer`], also one that only reads: before it asks the kernel for bytes or a size, it
//! looks whether anybody has the file staged, and joins. Where a description goes to the kernel instead, for
//! good or for a while, the file is *barred* first: everything staged of it is published, and nobody stages
//! it again who is not alone with it. `store/src/monitor/shared.rs` has the other side.
//!
//! # Safety
//! Paths are the program's, and are passed to the kernel alone.
#![allow(unsafe_code)]

use crate::signal::engine;
use crate::stat::Logical;
use crate::sys::{self, ProcPath};
use crate::{descriptors, fds, init, stack, stage, vfork};
use adit_store::monitor::client::{self, Refused};
use core::ffi::{c_char, c_int};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// The longest path that the kernel takes, with its end.
const LONGEST: usize = 4096;

/// How often a monitor is asked that was not there, and has begun since.
const ATTEMPTS: usize = 3;

/// Does what a process with declared directories has to do, with room for it. A child of `vfork` has no state of its own.
fn with_declared<T>(work: impl FnOnce() -> T) -> Option<T> {
    (!init::declared().is_empty() && !vfork::in_child()).then(|| stack::with_room(work))
}

/// Whether the file of a descriptor lies in a declared directory.
pub(crate) fn is_declared(fd: c_int) -> bool {
    let dirs = init::declared();
    if dirs.is_empty() {
        return false;
    }
    let mut path = [0u8; LONGEST];
    let path = path_of(fd, &mut path);
    dirs.iter().any(|dir| lies_in(path, dir))
}

/// Whether several programs may have such a file staged at once. By another of its names, which may lead anywhere, it would
/// be opened by somebody who follows nobody: so one with several is staged as any other, by who is alone with it.
pub(crate) fn is_shareable(fd: c_int) -> bool {
    is_declared(fd) && !has_names(fd)
}

fn has_names(fd: c_int) -> bool {
    descriptors::regular_file(fd).is_some_and(|stat| stat.st_nlink > 1)
}

/// A description was just opened that does not follow what others stage. Of a file that got a second name behind
/// everybody's back they may have done so: then it is the kernel's from here on.
pub(crate) fn follows_nobody(fd: c_int) {
    with_declared(|| {
        if has_names(fd) && is_staged(fd) {
            let _ = bar(fd);
        }
    });
}

/// The path by which the kernel knows the file of a descriptor; empty where it does not say.
fn path_of(fd: c_int, into: &mut [u8; LONGEST]) -> &[u8] {
    let link = ProcPath::of_file(fd);
    let read = sys::readlink(link.as_ptr(), into.as_mut_ptr() as usize, into.len());
    read.map_or(&[], |len| &into[..len])
}

/// Whether a path leads below a directory; both are absolute, without links.
pub(crate) fn lies_in(path: &[u8], dir: &[u8]) -> bool {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// What is there under a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// A regular file in a declared directory.
    Declared,
    /// Anything else, or nobody may know; whatever it is where nothing is declared.
    Other,
    Nothing,
}

/// What is there under this name.
pub(crate) fn named(dir: c_int, path: *const c_char) -> Named {
    let is_it = |fd| is_declared(fd) && descriptors::regular_file(fd).is_some();
    match with_declared(|| look_at(dir, path, 0, is_it)) {
        Some(Ok(true)) => Named::Declared,
        Some(Err(libc::ENOENT)) => Named::Nothing,
        Some(Ok(false) | Err(_)) | None => Named::Other,
    }
}

/// Whether what may be there under this name is a regular file in a declared directory.
pub(crate) fn is_declared_name(dir: c_int, path: *const c_char) -> bool {
    named(dir, path) == Named::Declared
}

/// Whether anybody has the file of a descriptor staged.
pub(crate) fn is_staged(fd: c_int) -> bool {
    let _inside = engine::enter();
    stage::Entry::of(fd).is_some_and(|entry| entry.is_staged(fd))
}

/// Does `work` with a descriptor that names the file and opens it for nothing: it takes no lease away, and
/// closing it drops no locks.
pub(crate) fn with_path<T>(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    work: impl FnOnce(c_int) -> T,
) -> Option<T> {
    look_at(dir, path, flags, work).ok()
}

fn look_at<T>(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    work: impl FnOnce(c_int) -> T,
) -> Result<T, c_int> {
    let flags = libc::O_PATH | libc::O_CLOEXEC | flags;
    let fd = sys::openat(dir as usize, path as usize, flags as usize, 0)?;
    let done = work(fd as c_int);
    let _ = sys::close(fd);
    Ok(done)
}

/// The file of a descriptor is about to be the kernel's, for this process or somebody that it shares the
/// description with. An error is that of publishing: what is staged of the file stays so. Without a monitor
/// nobody joins, but others may have it staged since there was one: this process takes it away from them itself, and
/// leaves word for the next monitor.
pub(crate) fn bar(fd: c_int) -> Result<(), c_int> {
    ask_to_bar(fd).map_err(|errno| match errno {
        SILENT => libc::EIO,
        errno => errno,
    })
}

/// The same for a description that the kernel has in any case. What others have staged up to now is in the file also where the
/// monitor is silent, and before it answers nobody gets to stage more.
pub(crate) fn bar_or_wait_for_no_answer(fd: c_int) -> Result<(), c_int> {
    match ask_to_bar(fd) {
        Err(SILENT) => Ok(()),
        barred => barred,
    }
}

/// The monitor is there, and does not answer. No error that a program is told.
const SILENT: c_int = libc::ETIMEDOUT;

fn ask_to_bar(fd: c_int) -> Result<(), c_int> {
    let Some(dir) = init::runtime_dir() else {
        return Ok(());
    };
    // SAFETY: a number of the program's, borrowed for the call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    for _ in 0..ATTEMPTS {
        match client::bar(dir, file) {
            Err(Refused::Pool(errno)) => return Err(errno.raw_os_error()),
            // It may be about to do so, and let others stage the file until then; what they have staged by now is in it.
            Err(Refused::NoMonitor(Errno::TIMEDOUT)) => {
                stage::end_for_all(fd)?;
                return Err(SILENT);
            }
            Err(Refused::NoMonitor(errno @ (Errno::MFILE | Errno::NFILE))) => {
                return Err(errno.raw_os_error());
            }
            Err(Refused::NoMonitor(_)) => stage::end_for_all(fd)?,
            _ => return Ok(()),
        }
        // One that has begun meanwhile may have found the file shared just before, and let others stage it again.
        if client::last_monitor(dir).is_some() {
            return Ok(());
        }
    }
    Err(libc::EIO)
}

/// A description that was just opened is the kernel's from the start: if it is one of a declared file, the kernel may
/// read there, or write. What cannot be published now cannot be told either.
pub(crate) fn is_the_kernels(fd: c_int) {
    with_declared(|| {
        if is_declared(fd) && descriptors::regular_file(fd).is_some() {
            let _ = bar(fd);
        }
    });
}

/// Before a name of a file changes: what others have staged of it goes to the file, and nobody stages it by the old name.
pub(crate) fn bar_name(dir: c_int, path: *const c_char, flags: c_int) {
    let bar_it = |fd| {
        if is_declared(fd) && is_staged(fd) {
            let _ = bar(fd);
        }
    };
    with_declared(|| with_named(dir, path, flags, bar_it));
}

/// Before the name of a directory changes, and with it those of all files in it.
pub(crate) fn bar_below(dir: c_int, path: *const c_char) {
    let bar_all = |fd| {
        let Some(stat) = descriptors::stat_of(fd) else {
            return;
        };
        let mut name = [0u8; LONGEST];
        let name = path_of(fd, &mut name);
        for file in stage::staged_below(fd, stat.st_dev, name) {
            bar_name(libc::AT_FDCWD, file.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        }
    };
    with_declared(|| with_path(dir, path, libc::O_NOFOLLOW, bar_all));
}

/// Before times or rights of a file change: what others have staged of it goes to the file, or it would be published later
/// with an older time, and recovery might not get in. What cannot be published stays staged. They may stage it again.
pub(crate) fn put_down(fd: c_int) {
    let _ = take_away(fd);
}

/// What others have staged of a declared file goes to the file; they may stage it again. After an error some of it is
/// staged as before.
pub(crate) fn take_away(fd: c_int) -> Result<(), c_int> {
    with_declared(|| take_away_here(fd)).unwrap_or(Ok(()))
}

fn take_away_here(fd: c_int) -> Result<(), c_int> {
    if !is_declared(fd) || !is_staged(fd) {
        return Ok(());
    }
    let Some(dir) = init::runtime_dir() else {
        return Ok(());
    };
    // SAFETY: a number of the program's, borrowed for the call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    match client::take_away(dir, file) {
        Err(Refused::NoMonitor(_)) => stage::end_for_all(fd),
        Err(Refused::Pool(errno)) => Err(errno.raw_os_error()),
        _ => Ok(()),
    }
}

/// The same by a name.
pub(crate) fn put_down_name(dir: c_int, path: *const c_char, flags: c_int) {
    with_declared(|| with_named(dir, path, flags, put_down));
}

/// Does `work` with a descriptor of what a call is about that has a name, or with `AT_EMPTY_PATH` perhaps none.
fn with_named<T>(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    work: impl FnOnce(c_int) -> T,
) -> Option<T> {
    if path.is_null() {
        return Some(work(dir));
    }
    let nofollow = match flags & libc::AT_SYMLINK_NOFOLLOW {
        0 => 0,
        _ => libc::O_NOFOLLOW,
    };
    let mut work = Some(work);
    let mut once = |fd| work.take().map(|work| work(fd));
    match look_at(dir, path, nofollow, &mut once) {
        Ok(done) => done,
        // SAFETY: the kernel has just read the path, or it would have said that it cannot.
        Err(libc::ENOENT) if unsafe { path.read_volatile() } == 0 => once(dir),
        Err(_) => None,
    }
}

/// For the library's constructor: descriptions that this program was started with may write to declared files behind
/// everybody's back, and read past what others stage. Who opened them may have been nobody of ours, or libc in a child
/// that is being spawned. (Of more descriptors than these nobody is started with as a rule.)
pub(crate) fn bar_inherited() {
    const MOST: c_int = 64;
    for fd in (0..MOST).filter(|_| !init::declared().is_empty()) {
        let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
        if flags.is_ok_and(|flags| flags as c_int & libc::O_PATH == 0) {
            is_the_kernels(fd);
        }
    }
}

/// Whether each of some names leads to a declared file, before a call changes them.
pub(crate) fn which<const N: usize>(names: [(c_int, *const c_char, c_int); N]) -> [bool; N] {
    let is_one = |fd| is_declared(fd) && descriptors::regular_file(fd).is_some();
    let is_one_named = |(dir, path, flags)| with_named(dir, path, flags, is_one) == Some(true);
    with_declared(|| names.map(is_one_named)).unwrap_or([false; N])
}

/// After a file has got a name, by which it may be a declared one that it was not before. Who has it open does not follow
/// what others stage from now on: so it is the kernel's for all. Descriptions of this process stay the kernel's; those of
/// others ask for their path before they stage the file ([`crate::writer`]).
pub(crate) fn has_come(dir: c_int, path: *const c_char) {
    let bar_it = |file| {
        if !is_declared(file) {
            return;
        }
        let Some(this) = descriptors::regular_file(file) else {
            return;
        };
        let is_it = |fd| {
            let stat = descriptors::regular_file(fd);
            stat.is_some_and(|stat| (stat.st_dev, stat.st_ino) == (this.st_dev, this.st_ino))
        };
        for (fd, _) in fds::each_promoted().filter(|&(fd, _)| is_it(fd)) {
            // What cannot be published now stays staged, and nobody else stages the file beside it.
            let _ = descriptors::unstage(fd);
        }
        let _ = bar(file);
    };
    with_declared(|| with_named(dir, path, libc::AT_SYMLINK_NOFOLLOW, bar_it));
}

/// What anybody has staged of a file that `stat` and its kind are about to ask the kernel about, and which file that is.
/// The kernel knows the rest, and all of what is not staged: it has to be asked afterwards.
pub(crate) fn logical(asked: Asked) -> Option<((u64, u64), Logical)> {
    if init::declared().is_empty() {
        return None;
    }
    let _inside = engine::enter();
    let of = |fd| {
        let stat = descriptors::regular_file(fd)?;
        let logical = stage::staged_anywhere(fd, stat.st_dev)?;
        Some(((stat.st_dev, stat.st_ino), logical))
    };
    match asked {
        Asked::Fd(fd) => of(fd),
        Asked::Path(dir, path, flags) => with_named(dir, path, flags, of)?,
    }
}

/// What a call was asked about.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    Fd(c_int),
    Path(c_int, *const c_char, c_int),
}

#[cfg(test)]
mod tests {
    use super::lies_in;

    #[test]
    fn below_a_directory() {
        for (path, dir, is) in [
            ("/a/b", "/a", true),
            ("/a/b/c", "/a", true),
            ("/a/b", "/a/", true),
            ("/a", "/a", false),
            ("/ab/c", "/a", false),
            ("/x", "/", true),
            ("pipe:[1]", "/", false),
            ("", "/a", false),
        ] {
            assert_eq!(lies_in(path.as_bytes(), dir.as_bytes()), is, "{path} {dir}");
        }
    }
}
