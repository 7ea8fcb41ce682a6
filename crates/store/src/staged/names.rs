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

use std::ffi::CStr;

use adit_pool::FileName;
use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::error::{Error, Result};
use super::kernel::KernelFile;

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
    let path = path.as_ptr();
    let raw: *mut Raw = raw;
    let mut mount = 0_i32;
    let mount = &raw mut mount;
    let flags = flags.bits() as usize;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: system call 303 is name_to_handle_at; see the module.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") 303_isize => result,
            in("rdi") fd,
            in("rsi") path,
            in("rdx") raw,
            in("r10") mount,
            in("r8") flags,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: system call 264 is name_to_handle_at; see the module.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") 264_usize,
            inlateout("x0") fd as isize => result,
            in("x1") path,
            in("x2") raw,
            in("x3") mount,
            in("x4") flags,
            options(nostack),
        );
    }
    if result < 0 {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(())
}

/// Opens the file that records were written for, by its path, or by the name that it has in its directory
/// now: a regular file of this user with the same handle, or an error that says what is there instead.
/// Never waits for anybody.
pub fn open_by_name(name: &FileName) -> Result<KernelFile<OwnedFd>> {
    match open_if_same(name, &name.path) {
        Err(Error::OtherFile(what)) => match path_beside(name) {
            Some(path) => open_if_same(name, &path),
            None => Err(Error::OtherFile(what)),
        },
        opened => opened,
    }
}

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

fn open_if_same(name: &FileName, path: &[u8]) -> Result<KernelFile<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ISDIR) => {
            return Err(Error::OtherFile("no file has its name now"));
        }
        file => file?,
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::OtherFile(
            "its name belongs to something that is no file now",
        ));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Error::OtherFile("it belongs to another user now"));
    }
    let (kind, bytes) = handle_of(&file)?;
    if (kind, &bytes) != (name.handle_type, &name.handle) {
        return Err(Error::OtherFile("another file has its name now"));
    }
    Ok(KernelFile::new(file)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

    use super::*;
    use crate::testing::Scratch;
    use adit_pmem::BaseFile as _;
    use std::os::unix::ffi::OsStrExt as _;

    /// What somebody renames within its directory is found, under whatever name; what he moves away or
    /// puts in its place is not taken for it.
    #[test]
    fn a_renamed_file_is_found_in_its_directory() {
        let scratch = Scratch::new();
        let path = scratch.path("old");
        std::fs::write(&path, "it").unwrap();
        let bytes = path.as_os_str().as_bytes();
        let file = rustix::fs::open(bytes, OFlags::RDONLY, Mode::empty()).unwrap();
        let (handle_type, handle) = handle_of(&file).unwrap();
        let name = FileName {
            handle_type,
            handle,
            path: bytes.to_vec(),
            device: 0,
        };
        let found = |name: &FileName| {
            let size = open_by_name(name)?.size()?;
            Ok::<_, Error>(size)
        };
        assert_eq!(found(&name).unwrap(), 2);
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
}
