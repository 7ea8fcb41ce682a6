//! The pool: format, allocation, log, locks, recovery and check.
//!
//! A pool is one file that every Adit process of a user maps. New versions of pages are staged in it,
//! a log of 64-byte records says to which files they belong, and recovery finds both again by walking.
//! `docs/format.md` describes the bytes, `docs/processes.md` how processes share them.
//!
//! Everything but [`PoolFile`] runs on any [`adit_pmem::Medium`].

mod alloc;
mod check;
mod crc;
mod error;
mod file;
mod files;
mod fork;
pub mod layout;
mod lock;
mod log;
mod mirror;
mod ofd;
mod parallel;
mod pool;
mod recover;
mod relink;
mod resize;
#[cfg(test)]
#[path = "../../../tests/scratch.rs"]
mod scratch;
mod slots;
mod tail;
mod together;

pub use alloc::Extent;
pub use check::{CheckReport, ChunkRun, Dump, FileDump, Info, Problem, RecordDump, SlotDump};
pub use error::{Error, Result};
pub use file::{FileMedium, PoolFile, ReadOnlyMedium, boot_id};
pub use files::{FileName, FileRef};
pub use lock::Owner;
pub use log::{FileGuard, Op, PUBLISHER, SHARED, When};
pub use mirror::tables_in_memory;
pub use ofd::unlock_description;
pub use pool::{Attachment, BootId, CreateOptions, Exclusive, Pool};
pub use recover::{
    Counts, Rebuilt, RecoveredFile, Recovery, Rejected, Rejection, Released, Replay, ReplayOp,
};
pub use relink::Intent;
pub use slots::{Hold, LocalLocks, SlotLocks};
pub use tail::{News, Tail};
