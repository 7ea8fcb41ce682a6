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

/// Whether this process has `fcntl` locks on the file of a descriptor, or may have: they end when it closes any other one
/// of that file, but those that open it for nothing, of which the kernel tells no locks either.
pub(crate) fn are_on(fd: c_int) -> bool {
    let Some(this) = descriptors::stat_of(fd) else {
        return true;
    };
    let _inside = engine::enter();
    !matches!(find_open(&this, have_come_by), Ok(None))
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
