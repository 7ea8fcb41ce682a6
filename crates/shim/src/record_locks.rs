//! Record locks of this process (`fcntl`). They are on files, and not on descriptions: all that a process has on a file
//! end when it closes any descriptor of it, whichever they were taken through (PROTOCOLS F1). So who opens a file of the
//! program's for a moment looks first whether the program has it open; who has not has no locks on it.
//!
//! No memory is taken: a child of `vfork` looks, too.

use crate::descriptors;
use crate::signal::engine;
use crate::sys::{self, ProcPath};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Much more than a descriptor's entry takes, and what the kernel tells of a description with some locks. It lies on the
/// program's stack, which may be small.
const ROOM: usize = 1024;

/// Room for some forty locks, as the kernel tells them: where there are more, who asks looks through its descriptors. Less
/// than a page, of which the kernel tells at most at once.
const TOLD: usize = 2048;

/// Whether this process has `fcntl` locks on the file of a descriptor, or may have: they end when it closes any other one
/// of that file, but those that open it for nothing, of which the kernel tells no locks either.
pub(crate) fn are_on(fd: c_int) -> bool {
    let Some(this) = descriptors::stat_of(fd) else {
        return true;
    };
    let _inside = engine::enter();
    may_be_on(&this) && !matches!(find_open(&this, have_come_by), Ok(None))
}

/// Whether this process may have locks on a file: the kernel tells of some on it, or of some that are this process's, or not
/// of all. Most often there are none, and to learn that so takes as long as to look at some ten descriptors.
///
/// Of a file both are asked: in a layered file system the number of the file that is locked may be another, and the process
/// that locked it may be one that shares this one's descriptors.
pub(crate) fn may_be_on(file: &libc::stat) -> bool {
    told_of(file).unwrap_or(true)
}

fn told_of(file: &libc::stat) -> Result<bool, Errno> {
    let mut own = [MaybeUninit::uninit(); 16];
    let (own, _) = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self", &mut own)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let locks = rustix::fs::open(c"/proc/locks", flags, Mode::empty())?;
    let mut told = [0; TOLD];
    let len = rustix::io::read(&locks, &mut told)?;
    // What is cut off may be one.
    Ok(len == told.len() || is_told_of(&told[..len], own, file.st_ino))
}

/// Whether a list of locks has record locks of a process, or on a file of this number.
fn is_told_of(locks: &[u8], pid: &[u8], file: u64) -> bool {
    let record = |line: &[u8]| {
        let mut words = line
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        // Behind the number, and an arrow where it is waited for.
        let kind = words.by_ref().find(|word| word[0].is_ascii_alphabetic());
        if kind != Some(b"POSIX") {
            return false;
        }
        // Advisory or not, for reading or for writing.
        let mut words = words.skip(2);
        let (owner, place) = (words.next(), words.next());
        let inode = place.and_then(|place| place.rsplit(|byte| *byte == b':').next());
        let inode = inode.and_then(|inode| str::from_utf8(inode).ok()?.parse().ok());
        owner == Some(pid) || inode.is_none_or(|inode: u64| inode == file)
    };
    locks.split(|byte| *byte == b'\n').any(record)
}

/// Looks for a descriptor of this process that leads to a file, and is one.
pub(crate) fn find_open(
    file: &libc::stat,
    mut is_one: impl FnMut(c_int) -> bool,
) -> Result<Option<c_int>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let all = rustix::fs::open("/proc/thread-self/fd", flags, Mode::empty())?;
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut entries = RawDir::new(&all, &mut room);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_str().ok();
        let Some(fd) = name.and_then(|name| name.parse().ok()) else {
            continue;
        };
        let is_it = |stat: libc::stat| (stat.st_dev, stat.st_ino) == (file.st_dev, file.st_ino);
        if descriptors::stat_of(fd).is_some_and(is_it) && is_one(fd) {
            return Ok(Some(fd));
        }
    }
    Ok(None)
}

/// Whether the kernel tells of locks of this process that were taken through a descriptor.
pub(crate) fn have_come_by(fd: c_int) -> bool {
    let path = ProcPath::of_description(fd);
    let mut text = [0u8; ROOM];
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let dir = libc::AT_FDCWD as usize;
    let Ok(info) = sys::openat(dir, path.as_ptr(), flags, 0) else {
        return true;
    };
    let read = sys::read(info, text.as_mut_ptr() as usize, text.len());
    let _ = sys::close(info);
    // What is cut off may be one.
    read.map_or(&text[..], |len| &text[..len])
        .windows(5)
        .any(|word| word == b"POSIX")
        || read == Ok(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &[u8] = b"1: POSIX  ADVISORY  WRITE 310 08:02:77 0 EOF\n\
        1: -> POSIX  ADVISORY  READ  41 08:02:77 0 100\n\
        2: FLOCK  ADVISORY  WRITE 42 08:02:78 0 EOF\n\
        3: OFDLCK ADVISORY  WRITE -1 08:02:79 0 EOF\n\
        4: LEASE  ACTIVE    WRITE 43 08:02:80 0 EOF\n\
        5: POSIX  MANDATORY READ  44 00:1f:810 5 9\n";

    #[test]
    fn record_locks_are_told_from_others() {
        for (pid, file, is) in [
            ("310", 1, true),
            ("41", 1, true),
            ("31", 1, false),
            ("3100", 1, false),
            ("42", 78, false),
            ("43", 80, false),
            ("-1", 79, false),
            ("44", 1, true),
            ("1", 77, true),
            ("1", 810, true),
            ("1", 81, false),
            ("1", 8, false),
        ] {
            let told = is_told_of(LOCKS, pid.as_bytes(), file);
            assert_eq!(told, is, "process {pid}, file {file}");
        }
        assert!(!is_told_of(b"", b"1", 1));
        assert!(is_told_of(b"1: POSIX nobody knows what\n", b"1", 1));
    }

    /// A lock of this process is told of, and with it that there may be one on any file.
    #[test]
    fn the_kernel_tells_of_a_lock() {
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.expect("a file");
        let fd = rustix::fd::AsRawFd::as_raw_fd(&file);
        let stat = descriptors::stat_of(fd).expect("a file");
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).expect("lock");
        assert!(may_be_on(&stat));
        assert!(are_on(fd));
    }
}
