//! What can go wrong with a pool, in words that say what to do next.

use adit_pmem::{OutOfRange, TransferError};
use rustix::io::Errno;

/// Any failure of the pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither superblock copy starts with the magic.
    #[error("this is not an Adit pool (it starts with {found:#018x}); choose another file")]
    ForeignMagic {
        /// First word of the file.
        found: u64,
    },
    /// Zeros where the superblocks belong: creation was cut short.
    #[error(
        "the pool was never finished (its superblocks are empty); remove it and create it anew"
    )]
    Unfinished,
    /// Written by a newer Adit.
    #[error("the pool has format version {found}, this Adit knows {known}; use a newer Adit")]
    NewerVersion {
        /// Version on the medium.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// Written by a build with another layout.
    #[error(
        "the pool was made by a build with another memory layout (signature {found:#x}, here \
         {known:#x}); recover it with that build, then create a new one"
    )]
    OtherAbi {
        /// Signature on the medium.
        found: u64,
        /// Signature of this build.
        known: u64,
    },
    /// The file ends before the pool does.
    #[error(
        "the pool is truncated: {found} bytes, {expected} expected; restore the file or remove it"
    )]
    Truncated {
        /// Bytes the pool should have.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Both superblock copies are damaged.
    #[error("both superblocks are damaged (at 0 and 4096); restore the pool from a copy")]
    Superblock,
    /// A structure does not hold what it must.
    #[error("damaged {structure} at offset {offset}: {what}; run `adit pool check`")]
    Damaged {
        /// Name of the structure.
        structure: &'static str,
        /// Where it lies.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// No chunk is left.
    #[error(
        "the pool is full ({chunks} chunks); publish staged files, or make room on its file system: it grows by itself"
    )]
    Full {
        /// Chunks of the pool.
        chunks: u32,
    },
    /// This attachment's log has no room.
    #[error("the log is full ({chunks} chunks); publish, retire, reclaim, then try again")]
    LogFull {
        /// Log chunks the attachment holds.
        chunks: u32,
    },
    /// The medium cannot read a page of a log.
    #[error(
        "the page of a log at offset {offset} of the pool cannot be read: which files it tells of nobody knows, so all that \
         is staged stays in the pool; try again when the medium can read it"
    )]
    LostLog {
        /// Where the page begins.
        offset: u64,
    },
    /// The medium cannot read staged bytes.
    #[error(
        "bytes that the record at offset {offset} of the pool stages cannot be read; try again when the medium can read them"
    )]
    LostData {
        /// Where the record is.
        offset: u64,
    },
    /// The file table has no room.
    #[error("too many files are staged ({limit} entries); publish and forget some, then try again")]
    TooManyFiles {
        /// Entries of the table.
        limit: u32,
    },
    /// All slots are taken.
    #[error("too many processes are attached ({slots}); wait for one to end")]
    NoSlot {
        /// Slots of the pool.
        slots: u32,
    },
    /// The operation needs the pool to itself.
    #[error("the pool is in use by {attached} attachments; end them and try again")]
    InUse {
        /// Living attachments.
        attached: u32,
    },
    /// The pool belongs to another user.
    #[error("the pool belongs to user {owner}, not to {user}; choose a pool of your own")]
    NotYours {
        /// Owner of the file.
        owner: u32,
        /// Effective user.
        user: u32,
    },
    /// Others could open the pool.
    #[error("the pool may be opened by others (mode {mode:o}); chmod it to 600")]
    OpenToOthers {
        /// Permission bits.
        mode: u32,
    },
    /// The file cannot be written.
    #[error("the pool is read-only; it can be checked and dumped, not attached")]
    ReadOnly,
    /// The file system cannot hold a pool.
    #[error(
        "a pool cannot lie on this file system (type {magic:#x}: {why}); use tmpfs, ext4, XFS or btrfs"
    )]
    WrongFileSystem {
        /// Magic number of the file system.
        magic: u64,
        /// Why not.
        why: String,
    },
    /// Data would be lost.
    #[error("{files} files have data in the pool that was never published; `adit pool recover` it")]
    Unpublished {
        /// Files with such data.
        files: u32,
    },
    /// A chunk that was to be cut off is in use.
    #[error("chunk {chunk} at the end of the pool is in use; publish staged files and try again")]
    NotFree {
        /// The chunk.
        chunk: u32,
    },
    /// The pool file cannot be mapped.
    #[error("the pool cannot be mapped: {0}")]
    Mapping(#[source] adit_pmem::MediumError),
    /// Others have made the pool larger, and this process cannot map the new part.
    #[error(
        "the pool has {chunks} chunks, of which this process can map only {mapped}; raise its limit of \
         memory (ulimit -v) or start it anew"
    )]
    NotMapped {
        /// Chunks of the pool.
        chunks: u32,
        /// Chunks that are mapped here.
        mapped: u32,
    },
    /// On `cached` media: the file beside the pool in which attached processes share its tables is gone,
    /// or another one.
    #[error(
        "the pool's shared tables (the file `.tables` beside it) were replaced or removed while it is \
         in use; end the processes that use it, then open it again"
    )]
    TablesLost,
    /// Not a regular file.
    #[error("a pool must be a regular file")]
    NotAFile,
    /// The caller was attached before a fork, or never was.
    #[error("this process is not attached to the pool (it forked); attach anew")]
    NotAttached,
    /// A file of another file system has the handle.
    #[error(
        "a file of another file system with the same handle is staged in the pool; choose another pool"
    )]
    OtherDevice,
    /// A file entry is gone.
    #[error("the file has no entry in the pool any more; enter it again")]
    Forgotten,
    /// A program's buffer cannot be accessed.
    #[error("the program's memory could not be accessed")]
    Fault,
    /// Somebody alive holds a lock for too long.
    #[error("{lock} is held by thread {thread} of attachment {slot}, which does not go on")]
    Busy {
        /// Name of the lock.
        lock: &'static str,
        /// Slot of the holder.
        slot: u32,
        /// Thread of the holder.
        thread: u32,
    },
    /// An argument that the pool cannot accept.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The store asked for bytes outside the medium.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The kernel refused.
    #[error("{call} failed: {errno}")]
    Kernel {
        /// The call.
        call: &'static str,
        /// Its error.
        errno: rustix::io::Errno,
    },
}

impl Error {
    pub(crate) fn damaged(structure: &'static str, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged {
            structure,
            offset,
            what: what.into(),
        }
    }
}

impl From<TransferError> for Error {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::OutOfRange(error) => error.into(),
            TransferError::Fault => Self::Fault,
        }
    }
}

/// What was read (or written), or which bytes the medium cannot: whoever looks through much of it goes on with the rest.
pub(crate) fn readable<T>(read: Result<T, impl Into<Error>>) -> Result<Result<T, OutOfRange>> {
    match read.map_err(Into::into) {
        Ok(read) => Ok(Ok(read)),
        Err(Error::OutOfRange(lost)) if lost.errno == Some(Errno::IO) => Ok(Err(lost)),
        Err(error) => Err(error),
    }
}

/// For `map_err` on a kernel call.
pub(crate) fn kernel(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::Kernel { call, errno }
}

/// Result of the pool's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
