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
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

/// Much more than a descriptor's entry takes, and what the kernel tells of a description with some locks. It lies on the
/// program's stack, which may be small.
const ROOM: usize = 1024;

/// By so much the places in a list of descriptors lie behind their numbers.
const DOTS: u64 = 2;

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
///
/// Numbers are tried one after the other, which takes a third of what it takes to have them listed; where one leads nowhere
/// the next ones that do are listed. The kernel's list of all locks (`/proc/locks`) is short, but who looks at it waits
/// for all processors first, some ten milliseconds; and it is not told at one instant.
pub(crate) fn find_open(
    file: &libc::stat,
    mut is_one: impl FnMut(c_int) -> bool,
) -> Result<Option<c_int>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let all = rustix::fs::open("/proc/thread-self/fd", flags, Mode::empty())?;
    let mut is_it = |fd: c_int, stat: libc::stat| {
        (stat.st_dev, stat.st_ino) == (file.st_dev, file.st_ino) && is_one(fd)
    };
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut next: c_int = 0;
    loop {
        while let Some(stat) = descriptors::stat_of(next) {
            if is_it(next, stat) {
                return Ok(Some(next));
            }
            next = next.saturating_add(1);
        }
        rustix::fs::seek(&all, SeekFrom::Start(next as u64 + DOTS))?;
        let first = next;
        let mut entries = RawDir::new(&all, &mut room);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            let Some(fd) = name.and_then(|name| name.parse::<c_int>().ok()) else {
                continue;
            };
            if descriptors::stat_of(fd).is_some_and(|stat| is_it(fd, stat)) {
                return Ok(Some(fd));
            }
            next = next.max(fd.saturating_add(1));
            if next > first && entries.is_buffer_empty() {
                break;
            }
        }
        if next == first {
            return Ok(None);
        }
    }
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
    use rustix::fd::{AsRawFd as _, OwnedFd};
    use rustix::fs::{FlockOperation, MemfdFlags};
    use rustix::thread::CpuSet;

    fn file() -> OwnedFd {
        rustix::fs::memfd_create("locked", MemfdFlags::CLOEXEC).expect("a file")
    }

    fn stat_of(file: &OwnedFd) -> libc::stat {
        descriptors::stat_of(file.as_raw_fd()).expect("a file")
    }

    /// Every number that leads to a file is shown, in their order, whatever lies between.
    #[test]
    fn descriptors_are_found_behind_gaps() {
        let file = file();
        let mut numbers = vec![file.as_raw_fd()];
        let mut names = Vec::new();
        for least in (300..500).chain((500..700).step_by(2)).chain([900]) {
            let name = rustix::io::fcntl_dupfd_cloexec(&file, least).expect("a number");
            numbers.push(name.as_raw_fd());
            names.push(name);
        }
        let mut shown = Vec::new();
        let found = find_open(&stat_of(&file), |fd| {
            shown.push(fd);
            false
        });
        assert_eq!(found, Ok(None));
        assert_eq!(shown, numbers);
        let last = numbers.last().copied();
        assert_eq!(find_open(&stat_of(&file), |fd| Some(fd) == last), Ok(last));
    }

    /// More than the kernel tells of in a page.
    const WAITING: usize = 120;

    fn lock(file: &OwnedFd) {
        rustix::fs::flock(file, FlockOperation::LockExclusive).expect("lock");
    }

    /// How many wait for a lock on a file.
    fn waiting_for(file: &OwnedFd) -> usize {
        let inode = format!(":{} ", stat_of(file).st_ino);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let locks = rustix::fs::open(c"/proc/locks", flags, Mode::empty()).expect("locks");
        let (mut told, mut part) = (String::new(), [0; 4096]);
        while let Ok(len @ 1..) = rustix::io::read(&locks, &mut part) {
            told.push_str(str::from_utf8(&part[..len]).expect("text"));
        }
        told.matches(&inode).count().saturating_sub(1)
    }

    /// The kernel's list of locks has those of one processor after the other, and of each the newest first. It tells of a lock
    /// and of all who wait for it at once: where these are many a read that has begun with another lock ends before it,
    /// however much room is left.
    #[test]
    fn locks_are_found_beside_one_that_many_wait_for() {
        let mut one = CpuSet::new();
        let all = rustix::thread::sched_getaffinity(None).expect("processors");
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
        one.set(first.expect("a processor"));
        rustix::thread::sched_setaffinity(None, &one).expect("one processor");
        let [locked, crowded, newest] = [(); 3].map(|()| file());
        rustix::fs::fcntl_lock(&locked, FlockOperation::LockShared).expect("lock");
        lock(&crowded);
        let are_found = std::thread::scope(|scope| {
            for _ in 0..WAITING {
                let path = ProcPath::of_file(crowded.as_raw_fd());
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                let other = rustix::fs::open(path.as_c_str(), flags, Mode::empty());
                let other = other.expect("another description");
                scope.spawn(move || lock(&other));
            }
            while waiting_for(&crowded) < WAITING {
                adit_pmem::rest(core::time::Duration::from_millis(1));
            }
            lock(&newest);
            let are_found = are_on(locked.as_raw_fd());
            drop(crowded);
            are_found
        });
        assert!(are_found);
    }

    #[test]
    fn a_lock_is_found() {
        let file = file();
        assert!(!are_on(file.as_raw_fd()));
        rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).expect("lock");
        assert!(are_on(file.as_raw_fd()));
    }
}
