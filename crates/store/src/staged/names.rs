//! Files by what the kernel knows them by.
//!
//! A record names its file by a handle, which is never used for another file, and by the last path it
//! was known under. Only the path can be opened without privilege, so it is opened and its handle
//! compared: bytes go into the file that they were written to, or stay in the pool. A file that was
//! renamed by somebody who knew nothing of this is mostly still in its directory, and looked for there.
//!
//! # Safety
//!
//! `name_to_handle_at`, which rustix does not have, gets an open descriptor, a C string, a handle
//! with as much room as it says and a place for a number that nobody needs; all live across the call.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use adit_pmem::syscall;
use adit_pool::FileName;
use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::{Error, Result};
use super::kernel::{KernelFile, forget_cached};

/// The largest handle the kernel has.
const ROOM: usize = 128;

/// `struct file_handle` with room behind it.
#[repr(C, align(8))]
struct Raw {
    len: u32,
    kind: i32,
    bytes: [u8; ROOM],
}

/// Type and bytes of an open file's handle.
pub fn handle_of(file: impl AsFd) -> Result<(u32, Vec<u8>), Errno> {
    handle_at(file, c"", AtFlags::EMPTY_PATH)
}

/// The same of the file of a name in an open directory.
fn handle_at(file: impl AsFd, path: &CStr, flags: AtFlags) -> Result<(u32, Vec<u8>), Errno> {
    let mut raw = Raw {
        len: ROOM as u32,
        kind: 0,
        bytes: [0; ROOM],
    };
    name_to_handle(file, path, flags, &mut raw)?;
    let len = (raw.len as usize).min(ROOM);
    Ok((raw.kind as u32, raw.bytes[..len].to_vec()))
}

fn name_to_handle(
    file: impl AsFd,
    path: &CStr,
    flags: AtFlags,
    raw: &mut Raw,
) -> Result<(), Errno> {
    let fd = file.as_fd().as_raw_fd() as usize;
    let raw: *mut Raw = raw;
    let mut mount = 0_i32;
    let (path, mount, flags) = (
        path.as_ptr() as usize,
        &raw mut mount as usize,
        flags.bits() as usize,
    );
    // SAFETY: see the module.
    let answer = unsafe {
        syscall::call(
            libc::SYS_name_to_handle_at,
            [fd, path, raw as usize, mount, flags, 0],
        )
    };
    answer.map(drop).map_err(Errno::from_raw_os_error)
}

/// Opens the file that records were written for, by its path, or by the name that it has in its directory
/// now: a regular file of this user with the same handle, or an error that says what is there instead.
/// Never waits for anybody.
pub fn open_by_name(name: &FileName) -> Result<KernelFile<OwnedFd>> {
    find(name, None).map(|(file, _)| file)
}

/// The file system that a pool lies on, beside files that it stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Within {
    /// Its device.
    pub device: u64,
    /// Where it is mounted, if that is known.
    pub root: Option<PathBuf>,
    /// The pool may be a copy, and the original's files have the same handles: what is in it goes to files of this file
    /// system alone.
    pub alone: bool,
}

/// As [`open_by_name`], of a file of one file system first, and under which path it was found. Where that is mounted
/// elsewhere than it was, the file is looked for below that.
pub fn find(name: &FileName, within: Option<&Within>) -> Result<(KernelFile<OwnedFd>, Vec<u8>)> {
    if leads_up(&name.path) {
        return Err(Error::OtherFile(
            "its name is no path that the kernel tells",
        ));
    }
    let Some(within) = within else {
        return find_near(name, None);
    };
    let device = Some(within.device);
    let is_it = |found: &Result<_>| !matches!(found, Err(Error::OtherFile(_)));
    let here = find_near(name, device);
    if is_it(&here) {
        return here;
    }
    let mut moved = within.root.iter().flat_map(|root| paths_below(root, name));
    let moved = moved.find_map(|path| {
        let name = FileName {
            path,
            ..name.clone()
        };
        Some(find_near(&name, device)).filter(is_it)
    });
    match moved {
        Some(found) => found,
        None if within.alone => here,
        None => find_near(name, None),
    }
}

/// Whether a path goes up somewhere. Those that programs write down do not; a forged one would have every file system looked
/// at that it leads to, and one directory again and again.
fn leads_up(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b"..")
}

/// The file under its path, or in its directory.
fn find_near(name: &FileName, device: Option<u64>) -> Result<(KernelFile<OwnedFd>, Vec<u8>)> {
    let open = |path: Vec<u8>| Ok((open_if_same(name, &path, device)?, path));
    match open(name.path.clone()) {
        Err(Error::OtherFile(what)) => match path_beside(name) {
            Some(path) => open(path),
            None => Err(Error::OtherFile(what)),
        },
        opened => opened,
    }
}

/// Where a file may be whose file system is mounted at `root` now: nobody has written down where it was before.
fn paths_below(root: &Path, name: &FileName) -> impl Iterator<Item = Vec<u8>> {
    let path = Path::new(OsStr::from_bytes(&name.path));
    let rest = path.strip_prefix("/").into_iter();
    let rests = rest.flat_map(|rest| {
        core::iter::successors(Some(rest.components()), |rest| {
            let mut rest = rest.clone();
            rest.next().map(|_| rest)
        })
    });
    let below = rests.map(|rest| root.join(rest.as_path()).into_os_string().into_vec());
    below.collect::<Vec<_>>().into_iter()
}

/// Milliseconds that somebody else who has a directory locked is waited for.
const LOCK_TRIES: u32 = 500;

/// Names of a directory that are looked at for a file that was renamed.
const MOST: usize = 1 << 16;

/// The path of a file that is in the directory of its old path under another name.
fn path_beside(name: &FileName) -> Option<Vec<u8>> {
    let slash = name.path.iter().rposition(|byte| *byte == b'/')?;
    let directory = &name.path[..=slash];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let list = rustix::fs::Dir::read_from(&opened).ok()?;
    let is_it = |entry: &rustix::fs::DirEntry| {
        let regular = [FileType::RegularFile, FileType::Unknown].contains(&entry.file_type());
        let handle = || handle_at(&opened, entry.file_name(), AtFlags::empty());
        let same = |(kind, bytes)| (kind, &bytes) == (name.handle_type, &name.handle);
        regular && handle().is_ok_and(same)
    };
    let found = list.take(MOST).filter_map(Result::ok).find(is_it)?;
    Some([directory, found.file_name().to_bytes()].concat())
}

fn open_if_same(name: &FileName, path: &[u8], device: Option<u64>) -> Result<KernelFile<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let seen = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
            return Err(Error::OtherFile("no file has its name now"));
        }
        seen => seen?,
    };
    // To open another file would take away a lease on it.
    ensure_same(name, &seen, device)?;
    let file = match open_seen(&seen) {
        Err(Errno::ACCESS) => open_unwritable(&seen, path)?,
        // There may be no /proc.
        Err(Errno::NOENT) => {
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())?
        }
        file => file?,
    };
    ensure_same(name, &file, device)?;
    forget_cached(file.as_fd());
    Ok(KernelFile::new(file)?)
}

/// Opens a file that was only looked at.
fn open_seen(seen: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(link_to(seen), flags, Mode::empty())
}

fn link_to(seen: &OwnedFd) -> String {
    format!("/proc/thread-self/fd/{}", seen.as_raw_fd())
}

/// Opens a file whose rights do not let its own user write: a program may write through a descriptor that it had
/// before it took the rights away, or that `open` gave it when it made the file so, as git does. The user may
/// change the rights, and they are what they were when this returns; a crash in between leaves them wider for that
/// user alone. Two at once would take each other's rights for the file's, so its directory is locked meanwhile.
fn open_unwritable(seen: &OwnedFd, path: &[u8]) -> Result<OwnedFd> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let directory = slash.map_or(&b"."[..], |slash| &path[..=slash]);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    lock_patiently(&directory)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(seen)?.st_mode);
    rustix::fs::chmod(link_to(seen), mode | Mode::RUSR | Mode::WUSR)?;
    let opened = open_seen(seen);
    rustix::fs::chmod(link_to(seen), mode)?;
    Ok(opened?)
}

/// Locks what others of ours lock for microseconds, or says that it is not to be had now: by no word of the kernel's, as
/// `EAGAIN` would say that a living program has a lease on the file.
fn lock_patiently(directory: &OwnedFd) -> Result<()> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => adit_pmem::rest(std::time::Duration::from_millis(1)),
            locked => return Ok(locked?),
        }
    }
    Err(Error::DirectoryLocked)
}

/// Fails unless the open file is this user's, and the one that the records are of.
fn ensure_same(name: &FileName, file: &OwnedFd, device: Option<u64>) -> Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if device.is_some_and(|device| stat.st_dev != device) {
        return Err(Error::OtherFile(
            "it is on another file system than the pool",
        ));
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::OtherFile(
            "its name belongs to something that is no file now",
        ));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Error::OtherFile("it belongs to another user now"));
    }
    let (kind, bytes) = handle_of(file)?;
    if (kind, &bytes) != (name.handle_type, &name.handle) {
        return Err(Error::OtherFile("another file has its name now"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

    use super::*;
    use crate::testing::Scratch;
    use adit_pmem::BaseFile as _;
    use std::ffi::OsString;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    fn name_of(path: &Path) -> FileName {
        let bytes = path.as_os_str().as_bytes();
        let file = rustix::fs::open(bytes, OFlags::RDONLY, Mode::empty()).unwrap();
        let (handle_type, handle) = handle_of(&file).unwrap();
        FileName {
            handle_type,
            handle,
            path: bytes.to_vec(),
            device: 0,
        }
    }

    /// A disk that is mounted elsewhere, or a snapshot of one: its pool names files below where it was mounted.
    #[test]
    fn a_file_is_found_below_where_its_file_system_is_mounted_now() {
        let scratch = Scratch::new();
        let root = scratch.path("now");
        std::fs::create_dir_all(root.join("some/directory")).unwrap();
        let path = root.join("some/directory/file");
        std::fs::write(&path, "it").unwrap();
        let device = std::fs::metadata(&path).unwrap().dev();
        let it = name_of(&path);
        let named = |path: &str| FileName {
            path: path.as_bytes().to_vec(),
            ..it.clone()
        };
        let below = |device, root: &Path| Within {
            device,
            root: Some(root.to_owned()),
            alone: true,
        };
        let here = Some(below(device, &root));
        let at = |name: &str, within: &Option<Within>| {
            let (_, path) = find(&named(name), within.as_ref())?;
            Ok::<_, Error>(PathBuf::from(OsString::from_vec(path)))
        };
        for name in ["/was/at/some/directory/file", "/some/directory/file"] {
            assert_eq!(at(name, &here).unwrap(), path);
        }
        // Renamed since, and under its own path.
        assert_eq!(at("/was/some/directory/other", &here).unwrap(), path);
        assert_eq!(at(path.to_str().unwrap(), &here).unwrap(), path);
        let nowhere = [
            None,
            Some(below(device + 1, &root)),
            Some(below(device, &scratch.path("no"))),
        ];
        for within in nowhere {
            let found = at("/was/at/some/directory/file", &within);
            assert!(matches!(found, Err(Error::OtherFile(_))), "{found:?}");
        }
        let up = root.join("some/../some/directory/file");
        for name in ["/was/at/file", "/", "", "file", up.to_str().unwrap()] {
            let found = at(name, &here);
            assert!(
                matches!(found, Err(Error::OtherFile(_))),
                "{name}: {found:?}"
            );
        }
        std::fs::rename(&path, root.join("file")).unwrap();
        std::fs::write(&path, "another").unwrap();
        let moved = at("/was/at/some/directory/file", &here).unwrap();
        assert_eq!(moved, root.join("file"));
    }

    /// What somebody renames within its directory is found, under whatever name; what he moves away or
    /// puts in its place is not taken for it.
    #[test]
    fn a_renamed_file_is_found_in_its_directory() {
        let scratch = Scratch::new();
        let path = scratch.path("old");
        std::fs::write(&path, "it").unwrap();
        let name = name_of(&path);
        let found = |name: &FileName| {
            let size = open_by_name(name)?.size()?;
            Ok::<_, Error>(size)
        };
        assert_eq!(found(&name).unwrap(), 2);
        let device = std::fs::metadata(&path).unwrap().dev();
        let on = |device, alone| Within {
            device,
            root: None,
            alone,
        };
        assert!(find(&name, Some(&on(device, true))).is_ok());
        // A pool may stage files of another file system, if it is no copy.
        assert!(find(&name, Some(&on(device + 1, false))).is_ok());
        let elsewhere = find(&name, Some(&on(device + 1, true)));
        assert!(matches!(elsewhere, Err(Error::OtherFile(_))));
        let new = scratch.path("new");
        std::fs::rename(&path, &new).unwrap();
        assert_eq!(found(&name).unwrap(), 2);
        std::fs::write(&path, "another").unwrap();
        assert_eq!(found(&name).unwrap(), 2);
        std::fs::create_dir(scratch.path("away")).unwrap();
        std::fs::rename(&new, scratch.path("away/new")).unwrap();
        assert!(matches!(found(&name), Err(Error::OtherFile(_))));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(found(&name), Err(Error::OtherFile(_))));
    }

    /// Whoever may write everything would not be refused: on this thread root becomes somebody else.
    fn as_an_ordinary_user<T: Send>(own: &[&Path], run: impl FnOnce() -> T + Send) -> T {
        const NOBODY: u32 = 65534;
        let is_root = rustix::process::geteuid().is_root();
        for path in own.iter().filter(|_| is_root) {
            std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
        }
        let become_and_run = || {
            if is_root {
                let uid = rustix::process::Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            run()
        };
        std::thread::scope(|scope| scope.spawn(become_and_run).join().unwrap())
    }

    /// A file is read-only from the beginning for whoever does not have it open, as git makes its objects.
    #[test]
    fn a_file_without_the_right_to_write_is_opened_and_keeps_its_rights() {
        let scratch = Scratch::new();
        let path = scratch.path("object");
        std::fs::write(&path, "it").unwrap();
        let name = name_of(&path);
        let directory = path.parent().unwrap();
        as_an_ordinary_user(&[directory, &path], || {
            for mode in [0o444, 0o400, 0o200, 0o111, 0] {
                let rights = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(&path, rights).unwrap();
                let found = open_by_name(&name).unwrap();
                let mut read = [0; 2];
                found.write_at(1, b"s").unwrap();
                found.read_at(0, &mut read).unwrap();
                assert_eq!(&read, b"is");
                let kept = std::fs::metadata(&path).unwrap().permissions();
                assert_eq!(kept.mode() & 0o7777, mode);
            }
            // Another file's rights are not touched.
            let other = scratch.path("other");
            std::fs::rename(&path, &other).unwrap();
            std::fs::write(&path, "another").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
            let changed = || {
                rustix::fs::stat(path.as_os_str().as_bytes())
                    .map(|stat| (stat.st_ctime, stat.st_ctime_nsec))
            };
            let before = changed().unwrap();
            assert!(open_by_name(&name).is_ok(), "it is beside");
            std::fs::remove_file(&other).unwrap();
            assert!(matches!(open_by_name(&name), Err(Error::OtherFile(_))));
            assert_eq!(changed().unwrap(), before);
        });
    }

    /// Who has the directory locked is no living program that would publish the file: its user has to know.
    #[test]
    fn a_file_in_a_directory_that_somebody_has_locked_waits_for_its_user() {
        let scratch = Scratch::new();
        let path = scratch.path("object");
        std::fs::write(&path, "it").unwrap();
        let name = name_of(&path);
        let directory = path.parent().unwrap();
        let bytes = directory.as_os_str().as_bytes();
        let locked = rustix::fs::open(bytes, OFlags::RDONLY, Mode::empty()).unwrap();
        rustix::fs::flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        as_an_ordinary_user(&[directory, &path], || {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
            let Err(reason) = open_by_name(&name) else {
                panic!("it is locked");
            };
            let kept = crate::recovery::Kept {
                file_id: 1,
                name: None,
                records: 1,
                reason,
            };
            assert!(!kept.needs_nobody(), "{:?}", kept.reason);
            drop(locked);
            open_by_name(&name).unwrap();
        });
    }

    /// The monitor and `adit run` recover after the same death: neither takes the other's rights for the file's.
    #[test]
    fn rights_are_kept_when_two_open_at_once() {
        let scratch = Scratch::new();
        let path = scratch.path("object");
        std::fs::write(&path, "it").unwrap();
        let name = name_of(&path);
        let rights = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        as_an_ordinary_user(&[path.parent().unwrap(), &path], || {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
            for round in 0..200 {
                let start = std::sync::Barrier::new(4);
                std::thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(|| {
                            start.wait();
                            open_by_name(&name).unwrap();
                        });
                    }
                });
                assert_eq!(rights(), 0o444, "round {round}");
            }
        });
    }
}
