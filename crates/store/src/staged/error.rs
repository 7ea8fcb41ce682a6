//! What can go wrong with a staged file.

use rustix::io::Errno;

/// A failure of the staged engine. Nothing is half done after one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither the pool nor its log has room, and nothing that could be published frees any.
    #[error(
        "no space is left in the pool; commit and publish staged files, or make room on its file system: it grows by itself"
    )]
    NoSpace,
    /// The file would become larger than a file can be.
    #[error("the write ends beyond the largest file")]
    TooLarge,
    /// This process has the file open already: two overlays would not know what the other still needs.
    #[error("the file is staged by this process already")]
    AlreadyOpen,
    /// Another publisher, alive, works on the file.
    #[error("the file is being published by attachment {slot}")]
    Publishing {
        /// Slot of the other one.
        slot: u32,
    },
    /// The base file was taken over by other publishers again and again.
    #[error("other publishers took the file over repeatedly")]
    Contended,
    /// The file is not staged any more: somebody has published everything and taken it away. The base
    /// file is the file.
    #[error("the file is not staged any more")]
    Taken,
    /// Others have the file staged, too: what only one of them did may not end it.
    #[error("other programs have the file staged, too")]
    Shared,
    /// The base file lacks some of what is staged, where it is to lack nothing.
    #[error("some of the file is staged only")]
    Unpublished,
    /// Files of different pools: no record of one can name the other.
    #[error("the files lie in different pools and cannot be committed together")]
    Apart,
    /// A program's buffer cannot be accessed.
    #[error("the program's memory could not be accessed")]
    Fault,
    /// The file that the bytes belong to is not where it was; they stay in the pool.
    #[error("{0}")]
    OtherFile(&'static str),
    /// The file is not where it was, and whoever recovers wants no bytes kept for it.
    #[error("the file is given up")]
    GivenUp,
    /// Somebody has the directory of the file locked, whose rights have to be changed to open it.
    #[error("the file cannot be opened as it is, and its directory is locked by somebody")]
    DirectoryLocked,
    /// The pool failed.
    #[error(transparent)]
    Pool(adit_pool::Error),
    /// The base file failed; what was to be published stays in the pool.
    #[error("the base file failed: {0}")]
    Base(Errno),
}

impl Error {
    /// The kernel's number for it, for a caller that answers a program.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoSpace => Errno::NOSPC,
            Self::TooLarge => Errno::FBIG,
            Self::AlreadyOpen | Self::Shared | Self::Unpublished => Errno::BUSY,
            Self::Publishing { .. } | Self::Contended | Self::DirectoryLocked => Errno::AGAIN,
            Self::Taken | Self::OtherFile(_) | Self::GivenUp => Errno::STALE,
            Self::Fault => Errno::FAULT,
            Self::Apart => Errno::XDEV,
            Self::Base(errno) => *errno,
            Self::Pool(error) if is_pressure(error) => Errno::NOSPC,
            Self::Pool(adit_pool::Error::NotMapped { .. }) => Errno::NOMEM,
            Self::Pool(adit_pool::Error::OutOfRange(lost)) => lost.errno.unwrap_or(Errno::IO),
            Self::Pool(_) => Errno::IO,
        }
    }
}

impl From<adit_pool::Error> for Error {
    fn from(error: adit_pool::Error) -> Self {
        match error {
            adit_pool::Error::Forgotten => Self::Taken,
            adit_pool::Error::Fault => Self::Fault,
            adit_pool::Error::OtherDevice => {
                Self::OtherFile("a file of another file system that has its handle is staged")
            }
            error => Self::Pool(error),
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Base(errno)
    }
}

/// Whether publishing may help.
pub(super) fn is_pressure(error: &adit_pool::Error) -> bool {
    use adit_pool::Error as Pool;
    matches!(
        error,
        Pool::Full { .. } | Pool::LogFull { .. } | Pool::TooManyFiles { .. }
    )
}

/// Result of the staged engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;
