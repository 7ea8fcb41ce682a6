//! The runtime registry: what every process under Adit does with its files, in shared memory.
//!
//! Each attached process has one file in the user's runtime directory ([`RuntimeDir`]). It serves
//! three readers: `adit stat` shows the counters, the monitor advances the times of files that were
//! changed by stores, and whoever looks after a process's death finds there what it left behind.
//! Nothing durable depends on it.
//!
//! A process attaches when it registers its first file ([`Registry::file`]), so one that never
//! promotes a file pays nothing. Nothing on the I/O path makes a system call, allocates or waits.

pub(crate) mod anywhere;
mod attach;
pub(crate) mod attention;
mod dir;
pub mod layout;
mod list;
mod reserve;
pub(crate) mod settle;
mod slot;
pub(crate) mod snapshot;
pub(crate) mod sys;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod thread;
pub(crate) mod wire;

use core::sync::atomic::Ordering;

use crate::clock;
use rustix::fs::Statx;

pub use anywhere::{Anywhere, Filter, prepare as prepare_filter};
pub use attach::Registry;
pub use dir::{DirError, Env, RuntimeDir};
pub use list::{Counts, FileStat, Listing, ProcessStat, Skipped, list};
pub use slot::FileSlot;

/// What tells a file from all others of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device, as `st_dev` has it.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

impl FileId {
    pub(crate) fn of(stat: &Statx) -> Self {
        Self {
            dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
        }
    }

    fn recorded(slot: &layout::Slot) -> Self {
        Self {
            dev: slot.dev.load(Ordering::Relaxed),
            ino: slot.ino.load(Ordering::Relaxed),
        }
    }
}

/// Why an operation was left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// It extends the file.
    Extend,
    /// It reaches the end of the file, where only the kernel knows the truth.
    Eof,
    /// The range is not mapped, for example while use has not paid for a mapping yet.
    Unmapped,
    /// The file offset is shared with another process.
    SharedOffset,
    /// The descriptor's flags ask for something only the kernel does.
    Flags,
    /// The mapping faulted.
    Fault,
    /// So small that the call costs less.
    Small,
    /// The range is a hole, which a mapping would fill.
    Hole,
    /// The first store to a clean page costs more than the call on this medium.
    Clean,
    /// A limit of the process or memory pressure.
    Limit,
    /// The program uses the file in a way that excludes us (its own mapping, locks, io_uring), or somebody else has it
    /// open.
    Program,
    /// Anything else.
    Other,
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = 12;

    /// All of them, in the order of the counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Extend,
        Self::Eof,
        Self::Unmapped,
        Self::SharedOffset,
        Self::Flags,
        Self::Fault,
        Self::Small,
        Self::Hole,
        Self::Clean,
        Self::Limit,
        Self::Program,
        Self::Other,
    ];

    /// Short name for tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Extend => "extend",
            Self::Eof => "eof",
            Self::Unmapped => "unmapped",
            Self::SharedOffset => "shared-offset",
            Self::Flags => "flags",
            Self::Fault => "fault",
            Self::Small => "small",
            Self::Hole => "hole",
            Self::Clean => "clean",
            Self::Limit => "limit",
            Self::Program => "program",
            Self::Other => "other",
        }
    }
}

/// What a program's mode promises for one of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Promise {
    /// The mode's promise, kept by the kernel.
    Kept,
    /// The mode's promise: the file is staged.
    Staged,
    /// A weaker one than the mode's: the file may not be staged.
    Weaker,
}

impl Promise {
    /// That of a number in a registry file.
    pub(crate) fn of(number: u32) -> Self {
        [Self::Staged, Self::Weaker]
            .into_iter()
            .find(|promise| *promise as u32 == number)
            .unwrap_or(Self::Kept)
    }

    /// Short name for tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Staged => "staged",
            Self::Weaker => "weaker",
        }
    }
}

/// Birth time of an inode in one word, zero where the file system has none.
pub(crate) fn birth(stat: &Statx) -> u64 {
    clock::nanoseconds(stat.stx_btime.tv_sec, i64::from(stat.stx_btime.tv_nsec))
}
