//! Who has a file open, as far as `/proc` tells. To look opens no file, so it breaks no lease, and asks no server
//! elsewhere, which might not answer.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::Arc;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::registry::text;

/// Device and inode number of a file.
type FileId = (u64, u64);

/// Each file that a process has open.
pub(super) type OpenFiles = Arc<BTreeSet<FileId>>;

/// The files that a process has open, if that can be known.
pub(super) fn open_files(pid: i32) -> Option<OpenFiles> {
    let mut open = BTreeSet::new();
    let looked = each(&format!("/proc/{pid}/fd"), |_, file| {
        open.insert(file);
    });
    looked.is_ok().then(|| Arc::new(open))
}

/// When a process was started, in ticks since the machine was.
pub(super) fn started(pid: i32) -> Option<u64> {
    stat_of(&format!("/proc/{pid}"), 21)?.parse().ok()
}

/// Whether a process but ours has a file open, or may have got it from a program that was started `since` then. Ours are
/// the monitor and its standby, which have the same descriptors.
pub(super) fn is_open_elsewhere(file: FileId, since: u64) -> bool {
    let ours = rustix::process::getpid().as_raw_nonzero().get();
    let is_ours = |pid: i32| pid == ours || parent_of(pid) == Some(ours);
    // Where the first process is hidden, others may be.
    let all_seen = fs::stat("/proc/1").is_ok();
    match numbers_in("/proc") {
        Ok(all) if all_seen => all
            .into_iter()
            .any(|pid| !is_ours(pid) && process_may_have(pid, file, since)),
        _ => true,
    }
}

/// A thread may have descriptors of its own, and the first may have ended before the others.
fn process_may_have(pid: i32, file: FileId, since: u64) -> bool {
    let tasks = format!("/proc/{pid}/task");
    let has = |thread: &i32| table_has(&format!("{tasks}/{thread}"), file);
    let seen: Result<Vec<bool>, Errno> =
        numbers_in(&tasks).and_then(|threads| threads.iter().map(has).collect());
    match seen {
        Ok(tables) => tables.contains(&true),
        // Who became another user has given up all before. Ours may have forbidden everybody to look.
        Err(_) if is_of_another_user(pid) => false,
        // No child is older than its parent.
        Err(_) => started(pid).is_some_and(|started| started >= since),
    }
}

fn table_has(thread: &str, file: FileId) -> Result<bool, Errno> {
    let mut found = false;
    let looked = each(&format!("{thread}/fd"), |number, open| {
        found |= open == file && !only_leads_there(thread, number);
    });
    match looked {
        Ok(()) => Ok(found),
        Err(_) if found => Ok(true),
        // Of who has ended and was not waited for nobody may see that nothing is left.
        Err(_) if has_ended(thread) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Looks at descriptors, by number and file.
fn each(directory: &str, mut look: impl FnMut(&CStr, FileId)) -> Result<(), Errno> {
    let directory = listed(directory)?;
    for entry in fs::Dir::read_from(&directory)? {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        match file_behind(&directory, entry.file_name()) {
            Ok(file) => look(entry.file_name(), file),
            // Closed meanwhile.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn file_behind(directory: impl AsFd, name: &CStr) -> Result<FileId, Errno> {
    let seen = fs::statx(directory, name, AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    let device = fs::makedev(seen.stx_dev_major, seen.stx_dev_minor);
    Ok((device, seen.stx_ino))
}

/// Whether a descriptor is one of `O_PATH`, through which nothing is read.
fn only_leads_there(thread: &str, number: &CStr) -> bool {
    let number = number.to_string_lossy();
    let info = start_of(&format!("{thread}/fdinfo/{number}"));
    let flags = info.and_then(|info| {
        let flags = info.split_once("flags:")?.1.split_whitespace().next()?;
        u32::from_str_radix(flags, 8).ok()
    });
    flags.is_some_and(|flags| flags & OFlags::PATH.bits() != 0)
}

/// Whether a description of this process has locks that end with it: the kernel tells of a descriptor.
pub(super) fn has_locks(fd: i32) -> bool {
    let info = start_of(&format!("/proc/self/fdinfo/{fd}"));
    info.is_none_or(|info| info.contains("FLOCK") || info.contains("OFDLCK"))
}

/// Whether a process is of another user for certain. Of a directory of `/proc` that cannot be read, the owner can be.
fn is_of_another_user(pid: i32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::stat(format!("/proc/{pid}")).is_ok_and(|stat| stat.st_uid != own)
}

/// Whether a process or a thread, by its directory in `/proc`, has ended, waited for or not.
pub(super) fn has_ended(thread: &str) -> bool {
    match stat_of(thread, 2) {
        Some(state) => matches!(state.as_str(), "Z" | "X"),
        None => fs::stat(thread).is_err(),
    }
}

fn parent_of(pid: i32) -> Option<i32> {
    stat_of(&format!("/proc/{pid}"), 3)?.parse().ok()
}

/// One of the words in which the kernel describes a process or thread, counted from zero.
fn stat_of(process: &str, word: usize) -> Option<String> {
    let all = start_of(&format!("{process}/stat"))?;
    // The second is a name, which may have spaces and parentheses.
    let (_, behind_name) = all.rsplit_once(") ")?;
    Some(behind_name.split(' ').nth(word - 2)?.to_owned())
}

/// What a short file of the kernel's says, or the start of a longer one.
fn start_of(path: &str) -> Option<String> {
    let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, fs::Mode::empty()).ok()?;
    let mut text = [0; 512];
    let len = rustix::io::read(&file, &mut text).ok()?;
    Some(String::from_utf8_lossy(text.get(..len)?).into_owned())
}

fn listed(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open(path, flags, fs::Mode::empty())
}

/// Entries of a directory whose names are numbers.
fn numbers_in(path: &str) -> Result<Vec<i32>, Errno> {
    let mut numbers = Vec::new();
    for entry in fs::Dir::read_from(listed(path)?)? {
        let number = text::number(entry?.file_name().to_bytes());
        numbers.extend(number.and_then(|number| i32::try_from(number).ok()));
    }
    Ok(numbers)
}
