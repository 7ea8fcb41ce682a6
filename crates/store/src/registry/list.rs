//! What `adit stat` shows.

use core::mem::offset_of;
use std::collections::BTreeMap;

use rustix::fs::OFlags;
use serde::Serialize;

use super::dir::{DirError, RuntimeDir};
use super::layout::Slot;
use super::snapshot::{Condition, Name, Numbers, SlotCopy, Snapshot, names};
use super::{Promise, Reason};

/// Everything in a runtime directory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Listing {
    /// The attached processes, and dead ones nobody has looked after yet.
    pub processes: Vec<ProcessStat>,
    /// Files that could not be read as a registry file, with the reason.
    pub skipped: Vec<Skipped>,
}

/// A file in the runtime directory that is not shown.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Name of the file.
    pub file: String,
    /// Why it is not shown.
    pub reason: String,
}

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessStat {
    /// Name of its registry file.
    pub file: String,
    /// Process id as the process sees it.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Name of the program.
    pub comm: String,
    /// Name of its mode, if it said so.
    pub mode: String,
    /// When it attached, nanoseconds since 1970.
    pub attached_at: u64,
    /// Whether it still lives.
    pub alive: bool,
    /// Files that found no slot and are not counted.
    pub refused: u32,
    /// Its files, open ones and those closed last.
    pub files: Vec<FileStat>,
    /// Counters of files that were closed longer ago.
    pub retired: Counts,
}

/// One file of a process.
#[derive(Clone, Debug, Serialize)]
pub struct FileStat {
    /// Path when it was opened, if known. Bytes that are not UTF-8 are replaced.
    pub path: Option<String>,
    /// Descriptor in the process.
    pub fd: i32,
    /// Device.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Whether the descriptor is still open.
    pub open: bool,
    /// Whether stores have not yet advanced the kernel's modification time.
    pub pending: bool,
    /// When it was registered, nanoseconds since 1970.
    pub opened_at: u64,
    /// When Adit last advanced its modification time, nanoseconds since 1970, or zero.
    pub settled_at: u64,
    /// What the program's mode promises for it: `kept` by the kernel, `staged`, or a `weaker` one.
    pub promise: &'static str,
    /// Bytes appended.
    pub appended: u64,
    /// Blocks are reserved up to this position, or zero.
    pub reserved_to: u64,
    /// What was served and what was not.
    pub counts: Counts,
}

/// Operations and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Reads served in user space.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Overwrites served in user space.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
    /// Operations left to the kernel, by reason; reasons that never occurred are left out.
    pub passed: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Operations left to the kernel, whatever the reason.
    #[must_use]
    pub fn passed_total(&self) -> u64 {
        self.passed
            .values()
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

impl From<Numbers> for Counts {
    fn from(numbers: Numbers) -> Self {
        let passed = Reason::ALL.iter().zip(numbers.passed);
        Self {
            reads: numbers.reads,
            read_bytes: numbers.read_bytes,
            writes: numbers.writes,
            write_bytes: numbers.write_bytes,
            passed: passed
                .filter(|(_, count)| *count != 0)
                .map(|(reason, count)| (reason.name(), count))
                .collect(),
        }
    }
}

/// Lists what the processes of the user do. Reads only; safe at any time.
pub fn list(dir: &RuntimeDir) -> Result<Listing, DirError> {
    let fd = dir.open()?;
    let mut listing = Listing::default();
    for name in names(&fd).map_err(DirError::Kernel)? {
        let snapshot = Snapshot::open(&fd, &name, OFlags::RDONLY)
            .and_then(|snapshot| Ok((snapshot.condition()?, snapshot)));
        match snapshot {
            Ok((Condition::Alive, snapshot)) => {
                listing.processes.push(process(&name, &snapshot, true));
            }
            Ok((Condition::Dead, snapshot)) => {
                listing.processes.push(process(&name, &snapshot, false));
            }
            Ok((Condition::Making, _)) => {}
            Ok((Condition::Foreign, _)) => listing.skip(&name, "made by another build of Adit"),
            Ok((Condition::Rubbish, _)) => listing.skip(&name, "not a registry file"),
            // It went between the two looks: its process has ended.
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => listing.skip(&name, &error.to_string()),
        }
    }
    listing.processes.sort_by_key(|process| process.pid);
    Ok(listing)
}

impl Listing {
    fn skip(&mut self, name: &Name, reason: &str) {
        self.skipped.push(Skipped {
            file: text(name.as_bytes()),
            reason: reason.to_owned(),
        });
    }
}

fn process(name: &Name, snapshot: &Snapshot, alive: bool) -> ProcessStat {
    let files = (0..snapshot.used())
        .filter_map(|index| Some(file(&snapshot.slot(index)?, snapshot.unsettled(index))))
        .collect();
    ProcessStat {
        file: text(name.as_bytes()),
        pid: snapshot.pid(),
        start_time: snapshot.start_time(),
        comm: snapshot.comm(),
        mode: snapshot.mode(),
        attached_at: snapshot.attached_at(),
        alive,
        refused: snapshot.refused(),
        files,
        retired: snapshot.retired().into(),
    }
}

fn file(slot: &SlotCopy, pending: bool) -> FileStat {
    let id = slot.id();
    FileStat {
        path: slot.path().map(text),
        fd: slot.fd(),
        dev: id.dev,
        ino: id.ino,
        open: slot.is_open(),
        pending,
        opened_at: slot.long(offset_of!(Slot, opened_at)),
        settled_at: slot.long(offset_of!(Slot, settled_at)),
        promise: Promise::of(slot.word(offset_of!(Slot, promise))).name(),
        appended: slot.long(offset_of!(Slot, appended)),
        reserved_to: slot.long(offset_of!(Slot, reserved_to)),
        counts: slot.numbers().into(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
