//! Leases that no monitor knows: monitor and standby were killed at once, and the programs live.
//!
//! A lease is its description's, and who opens the file waits for somebody who does not exist. The first
//! monitor of a new line looks for them: in the descriptors of every process that is attached to one of
//! the user's pools, for a lease on a file that is staged there. The kernel hands it a duplicate
//! (`pidfd_getfd`) where it lets processes of a user look into each other; elsewhere the programs
//! themselves have to act.

use core::ffi::CStr;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use adit_pool::layout::Superblock;
use adit_pool::{FileMedium, FileName, FileRef, Pool, PoolFile};
use rustix::fd::AsFd as _;
use rustix::fs::{Dir, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::lease;
use crate::pools::Places;
use crate::registry::sys::{self, Fd};
use crate::registry::text;
use crate::staged::handle_of;

/// Descriptors of one process that are looked at.
const MOST: usize = 1 << 20;

/// A leased file of a living program.
pub(super) struct Stray {
    pub(super) pool: PathBuf,
    pub(super) file: FileRef,
    /// The program's seat in the pool.
    pub(super) slot: u32,
    /// How often the slot was taken by then.
    pub(super) incarnation: u64,
    pub(super) pid: i32,
    /// The program's pidfd.
    pub(super) life: Fd,
    /// A duplicate of its description.
    pub(super) fd: Fd,
}

/// Looks for leases in all pools. Pools that cannot be looked at are passed over.
pub(super) fn find(places: &Places) -> Vec<Stray> {
    let mut found = Vec::new();
    #[cfg(test)]
    if planted::is_blind() {
        return found;
    }
    for pool in places.pools() {
        let _ = find_in(&pool.path, &mut found);
    }
    found
}

fn find_in(path: &Path, found: &mut Vec<Stray>) -> adit_pool::Result<()> {
    let seen = PoolFile::superblock_at(path)?;
    if seen.flags & Superblock::CLEAN != 0 {
        return Ok(());
    }
    let file = PoolFile::open_without_children(path)?;
    let pool = file.pool();
    let named = |file| Some((file, pool.file_name(file).ok()?));
    let staged: Vec<(FileRef, FileName)> = pool.files()?.into_iter().filter_map(named).collect();
    if staged.is_empty() {
        return Ok(());
    }
    for slot in pool.slots()?.into_iter().filter(|slot| slot.alive) {
        let number = i32::try_from(slot.pid).ok().and_then(Pid::from_raw);
        let Some(program) = number.filter(|number| *number != rustix::process::getpid()) else {
            continue;
        };
        let Ok(life) = pidfd_open(program, PidfdFlags::empty()).map(Fd::new) else {
            continue;
        };
        // It has the number still, or again: then the seat is nobody's, or another's.
        if has_seat(pool, slot.slot, slot.incarnation)? {
            leased(program, &life, |fd| {
                // A user may have several monitors, with directories of their own. To open the pool for what one of them
                // holds would keep that, and its file system, from everybody else for as long as it is open.
                if !nobody_watches(&fd) {
                    return None;
                }
                let file = file_of(&fd, &staged)?;
                found.push(Stray {
                    pool: path.to_owned(),
                    file,
                    slot: slot.slot,
                    incarnation: slot.incarnation,
                    pid: program.as_raw_nonzero().get(),
                    life: again(&life)?,
                    fd,
                });
                Some(())
            });
        }
    }
    Ok(())
}

fn has_seat(pool: &Pool<FileMedium>, slot: u32, incarnation: u64) -> adit_pool::Result<bool> {
    let there = pool.slots()?;
    let same = |now: &adit_pool::SlotDump| {
        (now.slot, now.incarnation, now.alive) == (slot, incarnation, true)
    };
    Ok(there.iter().any(same))
}

fn again(fd: &Fd) -> Option<Fd> {
    let fd = rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 0);
    fd.ok().map(Fd::new)
}

fn file_of(fd: &Fd, staged: &[(FileRef, FileName)]) -> Option<FileRef> {
    let handle = handle_of(fd.as_fd()).ok()?;
    // A file of another file system, a copy of this one say, may have the same handle.
    let device = rustix::fs::fstat(fd.as_fd()).ok()?.st_dev;
    let same = |(_, name): &&(FileRef, FileName)| {
        (name.device, name.handle_type, &name.handle) == (device, handle.0, &handle.1)
    };
    staged.iter().find(same).map(|(file, _)| *file)
}

/// Visits duplicates of the descriptors of a process that have a lease which somebody else took. What this monitor has
/// leased meanwhile it knows, and a duplicate would keep the file open after its program's last close.
fn leased(process: Pid, life: &Fd, mut visit: impl FnMut(Fd) -> Option<()>) {
    let directory = format!("/proc/{}/fdinfo", process.as_raw_nonzero());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(directory.as_str(), flags, Mode::empty()) else {
        return;
    };
    let Ok(list) = Dir::read_from(&opened) else {
        return;
    };
    for entry in list.take(MOST).filter_map(Result::ok) {
        let number = text::number(entry.file_name().to_bytes());
        let Some(number) = number.and_then(|number| i32::try_from(number).ok()) else {
            continue;
        };
        if is_leased(&opened, entry.file_name())
            && let Ok(fd) = pidfd_getfd(life.as_fd(), number, PidfdGetfdFlags::empty())
        {
            visit(Fd::new(fd));
        }
    }
}

/// Whether a duplicate has a lease of which nobody is told who lives: neither another monitor, nor one that has given the
/// lease up since it was seen.
pub(super) fn nobody_watches(fd: &Fd) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = rustix::fs::open(c"/proc/thread-self/fdinfo", flags, Mode::empty());
    let name = CString::new(fd.raw().to_string());
    let is_leased = || Some(is_leased(own.ok()?, &name.ok()?));
    !lease::is_watched(fd.as_fd()) && is_leased().unwrap_or(false)
}

/// Whether what the kernel tells of a descriptor names a lease, held or being broken, that is not of this process.
fn is_leased(directory: impl rustix::fd::AsFd, name: &CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(info) = rustix::fs::openat(directory, name, flags, Mode::empty()) else {
        return false;
    };
    // Behind all locks of ranges, which may be many.
    let all = said_by(&Fd::new(info));
    let mut lines = all.split(|byte| *byte == b'\n');
    lines.any(|line| {
        let words = line.split(|byte| byte.is_ascii_whitespace());
        let mut words = words.filter(|word| !word.is_empty());
        // `lock: 1: LEASE ACTIVE WRITE PID …`
        let leased = words.next() == Some(b"lock:") && words.nth(1) == Some(b"LEASE");
        leased && words.nth(2).and_then(text::number) != Some(this_process())
    })
}

/// What the kernel tells in a file of its own, as far as it can be read, and a megabyte at most.
fn said_by(file: &Fd) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = [0; 4096];
    while let len @ 1.. = sys::read_full(file, &mut part, all.len() as u64).unwrap_or(0) {
        all.extend_from_slice(part.get(..len).unwrap_or_default());
        if len < part.len() || all.len() >= 1 << 20 {
            break;
        }
    }
    all
}

fn this_process() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get() as u64
}

/// A monitor that may not look into other processes.
#[cfg(test)]
pub(super) mod planted {
    use core::sync::atomic::{AtomicU32, Ordering};

    static BLIND: AtomicU32 = AtomicU32::new(0);

    /// So many looks find nothing.
    pub(in crate::monitor) fn blind(looks: u32) {
        BLIND.store(looks, Ordering::Relaxed);
    }

    pub(super) fn is_blind() -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        BLIND
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // Tests run without the preload.
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn all_is_read_that_the_kernel_tells() {
        let place = Scratch::new();
        for len in [0, 100, 4096, 8192, 10_000] {
            let path = place.path("told");
            let told: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            std::fs::write(&path, &told).expect("a file");
            let opened = rustix::fs::open(
                path.to_str().expect("a path"),
                OFlags::RDONLY,
                Mode::empty(),
            );
            assert!(
                said_by(&Fd::new(opened.expect("the file"))) == told,
                "{len}"
            );
        }
    }
}
