//! The runtime directory of a user: where it is, and whether it may be trusted.

use core::ffi::CStr;

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::sys::{self, Fd};
use super::text::Text;

/// Longest path of a runtime directory, file names in it included.
pub(crate) const LONGEST: usize = 768;

/// The environment that says where the runtime directory is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Env<'a> {
    /// `ADIT_RUNTIME_DIR`: the directory itself.
    pub adit_runtime_dir: Option<&'a [u8]>,
    /// `XDG_RUNTIME_DIR`: the directory `adit` in it is used.
    pub xdg_runtime_dir: Option<&'a [u8]>,
}

/// Why a runtime directory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DirError {
    /// The path is empty, relative, contains a zero byte or is too long.
    #[error("the runtime directory's path is unusable (it must be absolute and short)")]
    BadPath,
    /// Something that is not a directory, for example a symbolic link, has the name.
    #[error("the runtime directory's path leads to something that is not a directory")]
    NotADirectory,
    /// Another user owns it.
    #[error("the runtime directory belongs to user {owner}")]
    OwnedBy {
        /// The owner's user id.
        owner: u32,
    },
    /// Its mode lets other users in.
    #[error("the runtime directory is open to other users (mode {mode:o}); make it 0700")]
    Accessible {
        /// The permission bits found.
        mode: u32,
    },
    /// The kernel refused a call.
    #[error("the runtime directory cannot be used: {0}")]
    Kernel(Errno),
}

/// Path of a runtime directory.
#[derive(Clone, Copy)]
pub struct RuntimeDir {
    path: Text<LONGEST>,
}

impl RuntimeDir {
    /// Finds the directory: `ADIT_RUNTIME_DIR`, else `adit` in an `XDG_RUNTIME_DIR` that belongs to
    /// the user (after `su` it may still name another user's), else `/dev/shm/adit-UID`. Creates
    /// nothing.
    pub fn resolve(env: &Env<'_>) -> Result<Self, DirError> {
        if let Some(path) = env.adit_runtime_dir.filter(|path| !path.is_empty()) {
            return Self::at(path);
        }
        if let Some(xdg) = env.xdg_runtime_dir.filter(|path| !path.is_empty())
            && belongs_to_us(xdg)
        {
            let mut path = Text::new();
            path.push(xdg).push(b"/adit");
            return Self::checked(path);
        }
        let mut path = Text::new();
        path.push(b"/dev/shm/adit-");
        path.push_number(u64::from(rustix::process::geteuid().as_raw()));
        Self::checked(path)
    }

    /// The directory at a path given by the user.
    pub fn at(path: &[u8]) -> Result<Self, DirError> {
        let mut text = Text::new();
        text.push(path);
        Self::checked(text)
    }

    fn checked(path: Text<LONGEST>) -> Result<Self, DirError> {
        let absolute = path.as_bytes().first() == Some(&b'/');
        if absolute && path.as_c_str().is_some() {
            Ok(Self { path })
        } else {
            Err(DirError::BadPath)
        }
    }

    /// The path's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn as_c_str(&self) -> Result<&CStr, DirError> {
        self.path.as_c_str().ok_or(DirError::BadPath)
    }

    /// Creates the directory unless it exists. The result is trusted only after a check, which
    /// every use of the directory makes by itself.
    pub fn create(&self) -> Result<(), DirError> {
        match rustix::fs::mkdirat(CWD, self.as_c_str()?, Mode::RWXU) {
            Ok(()) => self.open_to_its_owner()?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(DirError::Kernel(error)),
        }
        self.open().map(drop)
    }

    /// Gives the owner the rights to a new directory that the program's mask took, which is the program's own
    /// and must not be changed, not even for a moment.
    fn open_to_its_owner(&self) -> Result<(), DirError> {
        // Without rights it can be pinned, and not opened. What follows is about what was pinned.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let pinned = sys::pin(self.as_c_str()?, flags).map_err(DirError::Kernel)?;
        let stat = rustix::fs::fstat(pinned.as_fd()).map_err(DirError::Kernel)?;
        // What others have put in its place is refused when it is opened.
        let ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if !ours || stat.st_mode & Mode::RWXU.as_raw_mode() == Mode::RWXU.as_raw_mode() {
            return Ok(());
        }
        let mut link = Text::<64>::new();
        link.push(b"/proc/thread-self/fd/");
        link.push_number(u64::try_from(pinned.raw()).unwrap_or(u64::MAX));
        let link = link.as_c_str().ok_or(DirError::BadPath)?;
        rustix::fs::chmodat(CWD, link, Mode::RWXU, AtFlags::empty()).map_err(DirError::Kernel)
    }

    /// Opens the directory, refusing one that another user owns or can look into.
    pub(crate) fn open(&self) -> Result<Fd, DirError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = sys::open(self.as_c_str()?, flags).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => DirError::NotADirectory,
            error => DirError::Kernel(error),
        })?;
        let stat = rustix::fs::fstat(fd.as_fd()).map_err(DirError::Kernel)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(DirError::OwnedBy { owner: stat.st_uid });
        }
        let mode = stat.st_mode & 0o7777;
        if mode & 0o077 != 0 {
            return Err(DirError::Accessible { mode });
        }
        Ok(fd)
    }

    /// Opens the directory, creating it first when it does not exist.
    pub(crate) fn open_or_create(&self) -> Result<Fd, DirError> {
        match self.open() {
            Err(DirError::Kernel(Errno::NOENT)) => {
                self.create()?;
                self.open()
            }
            other => other,
        }
    }

    /// Path of a file in the directory.
    pub(crate) fn file(&self, name: &[u8]) -> Text<LONGEST> {
        let mut path = self.path;
        path.push(b"/").push(name);
        path
    }
}

impl core::fmt::Debug for RuntimeDir {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let path = core::str::from_utf8(self.as_bytes()).unwrap_or("(not UTF-8)");
        f.debug_tuple("RuntimeDir").field(&path).finish()
    }
}

fn belongs_to_us(path: &[u8]) -> bool {
    let mut text = Text::<LONGEST>::new();
    text.push(path);
    let Some(path) = text.as_c_str() else {
        return false;
    };
    rustix::fs::stat(path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && stat.st_uid == rustix::process::geteuid().as_raw()
    })
}
