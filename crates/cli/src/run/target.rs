//! Finds the program that `adit run` was asked for, and judges whether the library can be
//! preloaded into it.
//!
//! The search follows `execvp`: a name with a slash is taken as it is, any other is looked up in
//! `PATH`. A script is judged by its interpreter, because that is the program that will run.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, open, stat};
use rustix::io::Errno;

use adit_store::elf::{self, Bytes, Linker};

/// What `execvp` searches when `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a program runs without the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// No dynamic linker, so nothing preloads.
    Static,
    /// Another C library than the one the library is linked with.
    OtherLibc,
    /// 32-bit, or for another processor.
    OtherMachine,
    /// It gains rights when it starts; the dynamic linker drops the preload, and rightly so.
    SetId,
    /// It gains capabilities when it starts.
    FileCapabilities,
    /// Go programs call the kernel themselves; half of their calls would be served.
    Go,
    /// The file could not be read, so nothing is known about it.
    Unreadable,
    /// Neither a program of the kernel's own format nor a script.
    UnknownFormat,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "it is statically linked, so no library can be preloaded",
            Self::OtherLibc => "it uses another C library than glibc",
            Self::OtherMachine => "it is for another processor or 32-bit",
            Self::SetId => "it is set-user-id or set-group-id",
            Self::FileCapabilities => "it has file capabilities",
            Self::Go => "it is a Go program, which calls the kernel itself",
            Self::Unreadable => "its file cannot be read, so it cannot be judged",
            Self::UnknownFormat => "its format is unknown",
        })
    }
}

/// A judged program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// The file that decided: the program, or the interpreter of a script.
    pub(crate) decided_by: OsString,
    /// Why not to preload; `None` when nothing speaks against it.
    pub(crate) without: Option<Why>,
}

/// The files `execvp` would try for `name`, in order.
pub(crate) fn candidates(name: &OsStr, path: Option<&OsStr>) -> Vec<OsString> {
    if name.as_bytes().contains(&b'/') {
        return vec![name.to_owned()];
    }
    if name.is_empty() {
        return Vec::new();
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    path.as_bytes()
        .split(|b| *b == b':')
        .map(|dir| {
            let mut file = dir.to_vec();
            if !file.is_empty() {
                file.push(b'/');
            }
            file.extend(name.as_bytes());
            OsString::from_vec(file)
        })
        .collect()
}

/// Whether the kernel would try to execute this file. `Ok` only for a regular file with an
/// execute permission that holds for the effective user.
pub(crate) fn executable(file: &OsStr) -> Result<(), Errno> {
    let status = stat(file.as_bytes())?;
    if status.st_mode & 0o170_000 != 0o100_000 {
        return Err(Errno::ACCESS);
    }
    accessat(
        rustix::fs::CWD,
        file.as_bytes(),
        Access::EXEC_OK,
        AtFlags::EACCESS,
    )
}

/// Judges the program in `file`.
pub(crate) fn judge(file: &OsStr) -> Judgement {
    let mut file = file.to_owned();
    for _ in 0..elf::MAX_SCRIPTS {
        match look(&file) {
            Look::Decided(without) => {
                return Judgement {
                    decided_by: file,
                    without,
                };
            }
            Look::Script(interpreter) => file = interpreter,
        }
    }
    Judgement {
        decided_by: file,
        without: Some(Why::UnknownFormat),
    }
}

enum Look {
    Decided(Option<Why>),
    Script(OsString),
}

struct Opened(rustix::fd::OwnedFd);

impl Bytes for Opened {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.checked_add(done as u64)?;
            match rustix::io::pread(&self.0, &mut into[done..], at) {
                Ok(0) => return None,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(())
    }
}

fn look(file: &OsStr) -> Look {
    // O_NONBLOCK: the open of a FIFO must not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(opened) = open(file.as_bytes(), flags, Mode::empty()).map(Opened) else {
        return Look::Decided(Some(rights(file).unwrap_or(Why::Unreadable)));
    };
    let mut line = [0u8; elf::SCRIPT_LINE];
    let len = rustix::io::pread(&opened.0, &mut line, 0).unwrap_or(0);
    if let Some(interpreter) = elf::interpreter(&line[..len]) {
        return Look::Script(OsStr::from_bytes(interpreter).to_owned());
    }
    if !line[..len].starts_with(b"\x7fELF") {
        // The shell runs what the kernel refuses as a format, which is what execvp does, too.
        return Look::Script(OsString::from("/bin/sh"));
    }
    let Some(elf) = elf::inspect(&opened) else {
        return Look::Decided(Some(Why::UnknownFormat));
    };
    if let Some(why) = rights(file) {
        return Look::Decided(Some(why));
    }
    Look::Decided(against(&elf))
}

/// Whether starting this file changes who the process is.
fn rights(file: &OsStr) -> Option<Why> {
    let status = stat(file.as_bytes()).ok()?;
    let set_group = status.st_mode & 0o2010 == 0o2010;
    if status.st_mode & 0o4000 != 0 || set_group {
        return Some(Why::SetId);
    }
    let name = CString::new("security.capability").ok()?;
    let mut value = [0u8; 64];
    match rustix::fs::getxattr(file.as_bytes(), name.as_c_str(), &mut value) {
        Ok(_) | Err(Errno::RANGE) => Some(Why::FileCapabilities),
        Err(_) => None,
    }
}

fn against(elf: &elf::Elf) -> Option<Why> {
    if !elf.is_64 || elf.machine != elf::OUR_MACHINE {
        return Some(Why::OtherMachine);
    }
    match elf.linker {
        None => Some(Why::Static),
        Some(_) if elf.is_go => Some(Why::Go),
        Some(Linker::Other) => Some(Why::OtherLibc),
        Some(Linker::Glibc) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_like_execvp() {
        let path = Some(OsStr::new("/a::/b/"));
        assert_eq!(candidates(OsStr::new("x"), path), ["/a/x", "x", "/b//x"]);
        assert_eq!(candidates(OsStr::new("./x"), path), ["./x"]);
        assert_eq!(candidates(OsStr::new("x"), None), ["/bin/x", "/usr/bin/x"]);
        assert!(candidates(OsStr::new(""), path).is_empty());
    }

    #[test]
    fn the_shell_is_preloaded() {
        let judged = judge(OsStr::new("/bin/sh"));
        assert_eq!(judged.without, None);
    }
}
