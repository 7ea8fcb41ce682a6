//! What can go wrong with a staged file.

use rustix::io::Errno;

/// A failure of the staged engine. Nothing is half done after one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither the pool nor its log has room, and nothing that could be published frees any.
    #[error("no space is left in the pool; commit and publish staged files, or grow the pool")]
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
    /// The pool failed.
    #[error(transparent)]
    Pool(#[from] adit_pool::Error),
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
            Self::AlreadyOpen => Errno::BUSY,
            Self::Publishing { .. } | Self::Contended => Errno::AGAIN,
            Self::Base(errno) => *errno,
            Self::Pool(error) if is_pressure(error) => Errno::NOSPC,
            Self::Pool(_) => Errno::IO,
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
