//! Looking at every structure of a pool: what is wrong, where, and what is in it.
//!
//! Nothing here changes a byte, and nothing needs an attachment. On a pool that others change
//! meanwhile the answers are about no single instant; hold [`Pool::exclusive`] for exact ones.

use std::collections::BTreeMap;
use std::fmt;

use adit_pmem::Medium;

use crate::error::{Error, Result, readable};
use crate::files::{END_UNKNOWN, FileName};
use crate::layout::{
    ABI, ChunkKind, ChunkWord, FileEntry, NAMES, ORPHAN, PAGE, RecordKind, SHARED, SUPERBLOCK_A,
    SUPERBLOCK_B, Slot, Superblock, VERSION, at, checked_value,
};
use crate::lock::{Holder, NOBODY};
use crate::pool::{BootId, Pool, read_raw};
use crate::recover::{Counts, Recovery, Rejected, Rejection};

/// Something wrong, or worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Name of the structure, as in `docs/format.md`.
    pub structure: &'static str,
    /// Offset in the pool.
    pub offset: u64,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.structure, self.offset, self.what)
    }
}

/// What a check found.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct CheckReport {
    /// Damage.
    pub problems: Vec<Problem>,
    /// What a crash or a dead process explains and the next attachment or recovery mends.
    pub notes: Vec<Problem>,
    /// What the logs hold.
    pub log: Counts,
}

impl CheckReport {
    /// Whether nothing is damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, structure: &'static str, offset: u64, what: impl Into<String>) {
        self.problems.push(Problem {
            structure,
            offset,
            what: what.into(),
        });
    }

    fn note(&mut self, structure: &'static str, offset: u64, what: impl Into<String>) {
        self.notes.push(Problem {
            structure,
            offset,
            what: what.into(),
        });
    }

    /// An error that a structure gave becomes a problem, and so does one that cannot be read.
    fn take<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match readable(result) {
            Ok(Ok(value)) => return Ok(Some(value)),
            Ok(Err(lost)) => self.problem("medium", lost.offset, lost.to_string()),
            Err(Error::Damaged {
                structure,
                offset,
                what,
            }) => self.problem(structure, offset, what),
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}

impl<M: Medium> Pool<M> {
    /// Verifies every structure.
    pub fn check(&self) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        self.check_superblocks(&mut report)?;
        self.check_shared(&mut report)?;
        self.check_slots(&mut report)?;
        self.check_chunks(&mut report)?;
        self.check_names(&mut report)?;
        self.check_files(&mut report)?;
        let found = self.scan_around_lost()?;
        report.log = found.counts;
        check_rejected(&found, &mut report);
        self.check_bytes(&found, &mut report)?;
        self.check_overlaps(&found, &mut report)?;
        Ok(report)
    }

    fn check_superblocks(&self, report: &mut CheckReport) -> Result<()> {
        let copies = [
            read_raw(self.medium(), SUPERBLOCK_A)?,
            read_raw(self.medium(), SUPERBLOCK_B)?,
        ];
        for (copy, offset) in copies.iter().zip([SUPERBLOCK_A, SUPERBLOCK_B]) {
            if !copy.is_valid() {
                report.problem("superblock", offset, "its CRC, magic or sizes are wrong");
            } else if copy.version != VERSION || copy.abi != ABI {
                report.problem(
                    "superblock",
                    offset,
                    "its version or ABI signature is another",
                );
            }
        }
        if copies.iter().all(Superblock::is_valid) && copies[0].update != copies[1].update {
            let older = if copies[0].update < copies[1].update {
                SUPERBLOCK_A
            } else {
                SUPERBLOCK_B
            };
            report.note(
                "superblock",
                older,
                "older than the other copy: its writer was cut off",
            );
        }
        Ok(())
    }

    fn check_shared(&self, report: &mut CheckReport) -> Result<()> {
        let superblock = self.superblock()?;
        let said = self.load(SHARED + at!(Shared.chunk_count))?;
        if said != u64::from(superblock.chunk_count) {
            let what = format!(
                "{said} chunks, the superblock says {}",
                superblock.chunk_count
            );
            // The word is volatile: behind the superblock after a growth, and before it after a cut, until somebody attaches.
            report.note("shared", SHARED + at!(Shared.chunk_count), what);
        }
        for field in [
            at!(Shared.super_lock),
            at!(Shared.files_lock),
            at!(Shared.recovery_lock),
        ] {
            self.check_lock(SHARED + field, report)?;
        }
        let files = self.used_entries()?;
        let said = self.load(SHARED + at!(Shared.staged_files))?;
        if said != files {
            let what = format!("counts {said} files, the table has {files}");
            report.note("shared", SHARED + at!(Shared.staged_files), what);
        }
        Ok(())
    }

    fn check_lock(&self, offset: u64, report: &mut CheckReport) -> Result<()> {
        let word = self.load(offset)?;
        if word == 0 {
            return Ok(());
        }
        if word == NOBODY {
            report.note("lock", offset, "its holder is gone, and its repair failed");
            return Ok(());
        }
        let Holder { slot, thread, .. } = Holder::of(word);
        if slot >= self.geometry().slot_count || thread == 0 {
            report.problem("lock", offset, format!("{word:#x} names no holder"));
        } else if !self.holder_lives(word)? {
            report.note(
                "lock",
                offset,
                format!("its holder, attachment {slot}, is gone"),
            );
        }
        Ok(())
    }

    fn check_slots(&self, report: &mut CheckReport) -> Result<()> {
        for slot in 0..self.geometry().slot_count {
            let offset = self.geometry().slot(slot);
            let found = self.read_slot(slot)?;
            if !found.is_valid() {
                report.problem("slot", offset, format!("unknown state {}", found.state));
            } else if found.state == Slot::ATTACHED && !self.locks().is_alive(slot) {
                report.note(
                    "slot",
                    offset,
                    format!("process {} died attached", found.pid),
                );
            }
        }
        Ok(())
    }

    fn check_chunks(&self, report: &mut CheckReport) -> Result<()> {
        let header = self.geometry().header_chunks();
        let superblock = self.superblock()?;
        let is_clean = superblock.flags & Superblock::CLEAN != 0;
        for chunk in 0..self.chunk_count()?.min(superblock.chunk_count) {
            let offset = self.geometry().chunk_word(chunk);
            let Some(word) = self.chunk_word(chunk)? else {
                report.problem(
                    "chunk word",
                    offset,
                    format!("of chunk {chunk}: its check is wrong"),
                );
                continue;
            };
            let Some(what) = self.chunk_word_fault(chunk, word, header) else {
                continue;
            };
            let what = format!("of chunk {chunk}: {what}");
            // Whoever cuts the pool marks what goes first, and the next who attaches takes back what did not go.
            if word.kind == ChunkKind::Absent && word.owner == 0 && !is_clean {
                report.note("chunk word", offset, what);
            } else {
                report.problem("chunk word", offset, what);
            }
        }
        Ok(())
    }

    fn chunk_word_fault(&self, chunk: u32, word: ChunkWord, header: u32) -> Option<&'static str> {
        let owned = matches!(word.kind, ChunkKind::Data | ChunkKind::Log);
        let owner_exists =
            word.owner == ORPHAN || u32::from(word.owner) <= self.geometry().slot_count;
        if (word.kind == ChunkKind::Header) != (chunk < header) {
            Some("in the wrong part of the pool")
        } else if owned && word.owner == 0 {
            Some("in use and nobody's")
        } else if !owned && word.owner != 0 {
            Some("owned without being data or log")
        } else if !owner_exists {
            Some("its owner does not exist")
        } else if word.kind == ChunkKind::Absent {
            Some("cut off, but inside the pool")
        } else {
            None
        }
    }

    fn check_names(&self, report: &mut CheckReport) -> Result<()> {
        let mut groups: BTreeMap<u64, u64> = BTreeMap::new();
        for group in 0..self.geometry().name_groups() {
            let offset = NAMES + group * 8;
            let word = self.load(offset)?;
            if word == 0 {
                continue;
            }
            let Some(chunk) = checked_value(word, group) else {
                report.problem("name table", offset, "its check bits are wrong");
                continue;
            };
            let named = u32::try_from(chunk)
                .ok()
                .filter(|chunk| self.chunk_count().is_ok_and(|count| *chunk < count));
            match named
                .map(|chunk| self.chunk_word(chunk))
                .transpose()?
                .flatten()
            {
                Some(word) if word.kind == ChunkKind::Names => {}
                _ => report.problem(
                    "name table",
                    offset,
                    format!("chunk {chunk} holds no names"),
                ),
            }
            if let Some(other) = groups.insert(chunk, group) {
                report.problem(
                    "name table",
                    offset,
                    format!("shares a chunk with group {other}"),
                );
            }
        }
        for chunk in 0..self.chunk_count()? {
            if let Some(word) = self.chunk_word(chunk)?
                && word.kind == ChunkKind::Names
                && !groups.contains_key(&u64::from(chunk))
            {
                let offset = self.geometry().chunk_word(chunk);
                report.note(
                    "chunk word",
                    offset,
                    format!("chunk {chunk} holds names of no group"),
                );
            }
        }
        Ok(())
    }

    fn check_files(&self, report: &mut CheckReport) -> Result<()> {
        let mut handles: BTreeMap<(u32, Vec<u8>), u32> = BTreeMap::new();
        for index in 0..self.geometry().file_count {
            let offset = self.geometry().file_entry(index);
            let entry = self.read_entry(index)?;
            if !entry.is_valid(index) {
                if self.is_unfinished(index, &entry) {
                    report.note(
                        "file entry",
                        offset,
                        format!("entry {index} was cut off while it was made or removed"),
                    );
                    continue;
                }
                report.problem(
                    "file entry",
                    offset,
                    format!("entry {index}: its checks are wrong"),
                );
                continue;
            }
            if entry.kind() != FileEntry::LIVE {
                continue;
            }
            self.check_lock(offset + at!(FileEntry.lock), report)?;
            let named = self.name_of(index, &entry);
            if let Some(name) = report.take(named)?
                && let Some(other) = handles.insert((name.handle_type, name.handle), index)
            {
                report.problem(
                    "file entry",
                    offset,
                    format!("the same file as entry {other}"),
                );
            }
        }
        Ok(())
    }

    /// The medium must be able to read what records that count stage. The walk takes no CRC of some of it.
    fn check_bytes(&self, found: &Recovery, report: &mut CheckReport) -> Result<()> {
        for (place, _) in found.live_places() {
            let Some(record) = report.take(self.read_record(place))?.flatten() else {
                continue;
            };
            let has_extent = RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent);
            let (start, len) = (record.pool_offset, record.len);
            if has_extent
                && self.sense_extent(start, u64::from(len))?.is_ok()
                && self.crc_of_data(start, len)?.is_err()
            {
                let at = self.geometry().record(place.chunk, place.position);
                let listed =
                    |line: &Rejected| (line.offset, &line.reason) == (at, &Rejection::Lost);
                if !found.rejected.iter().any(listed) {
                    report.problem("log record", at, Rejection::Lost.to_string());
                }
            }
        }
        Ok(())
    }

    /// Two records that count may not stage their bytes in the same place, but for a page that was used
    /// again for the same file, after later records covered what it held.
    fn check_overlaps(&self, found: &Recovery, report: &mut CheckReport) -> Result<()> {
        let mut extents = Vec::new();
        for (place, _) in found.live_places() {
            if let Some(record) = self.read_record(place)?
                && RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent)
            {
                let at = self.geometry().record(place.chunk, place.position);
                let file = record.file_id;
                extents.push((record.pool_offset, u64::from(record.len), at, file));
            }
        }
        extents.sort_unstable();
        for pair in extents.windows(2) {
            let ((start, len, first, file), (next, other, at, same)) = (pair[0], pair[1]);
            let again = (next, same) == (start, file) && len.max(other) <= PAGE;
            if start + len > next && !again {
                let what = format!("stages its bytes where the record at {first} has its own");
                report.problem("log record", at, what);
            }
        }
        Ok(())
    }
}

fn check_rejected(found: &Recovery, report: &mut CheckReport) {
    for Rejected { offset, reason } in &found.rejected {
        match reason {
            Rejection::Torn | Rejection::TornData => {
                report.note("log record", *offset, format!("{reason}"));
            }
            other => report.problem("log record", *offset, format!("{other}")),
        }
    }
    let listed = found.rejected.len() as u64;
    let all = found.counts.rejected + found.counts.mended;
    if all > listed {
        let more = all - listed;
        report.problem("log record", 0, format!("{more} more that are not listed"));
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn => write!(f, "cut off while it was written"),
            Self::TornData => write!(f, "its bytes were cut off while they were written"),
            Self::BitFlip { bit } => write!(f, "bit {bit} is flipped; it counts as it was"),
            Self::Unreadable => write!(f, "its CRC is wrong"),
            Self::Future => write!(f, "of a later generation than its chunk"),
            Self::Duplicate => write!(f, "another record has its file and sequence number"),
            Self::Nonsense { what } => write!(f, "impossible: {what}"),
            Self::DataMismatch => write!(f, "the staged bytes have another CRC"),
            Self::DataGone => write!(f, "the chunk of its staged bytes holds no data"),
            Self::BrokenChain { missing } => {
                write!(f, "commits a record that is missing, number {missing}")
            }
            Self::Undecided => write!(f, "its file entry is damaged, so it is kept, not replayed"),
            Self::Lost => write!(f, "the medium cannot read it, or its staged bytes"),
        }
    }
}

/// A pool in a few numbers.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Info {
    /// Identity, in hexadecimal.
    pub uuid: String,
    /// Format version.
    pub version: u32,
    /// Whether the last user detached cleanly.
    pub clean: bool,
    /// Whether the last user ran in this boot, or there was none.
    pub same_boot: bool,
    /// Bytes of the pool.
    pub size: u64,
    /// Bytes of a chunk.
    pub chunk_size: u64,
    /// Chunks by use.
    pub chunks: BTreeMap<ChunkKind, u32>,
    /// Chunks of dead attachments.
    pub orphans: u32,
    /// Attachments that live.
    pub attached: u32,
    /// Files in the file table.
    pub files: u64,
}

/// One attachment slot that is not free.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SlotDump {
    /// Its number.
    pub slot: u32,
    /// Times it was taken.
    pub incarnation: u64,
    /// Process id, as that process's namespace numbers it.
    pub pid: u64,
    /// Whether its lock is held.
    pub alive: bool,
}

/// Chunks in a row that are used alike.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ChunkRun {
    /// First chunk.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// What for; `None` when the word is damaged.
    pub kind: Option<ChunkKind>,
    /// Slot + 1, 0 for nobody, 65535 for an orphan.
    pub owner: u16,
}

/// One file of the table.
#[derive(Debug, Clone, serde::Serialize)]
pub struct FileDump {
    /// Index in the table.
    pub index: u32,
    /// Its id.
    pub file_id: u64,
    /// Handle and path.
    pub name: Option<FileName>,
    /// Records up to this one are in the base file.
    pub retired: Option<u64>,
    /// Data CRCs up to this record do not count.
    pub sealed: Option<u64>,
    /// Next sequence number.
    pub next_seq: u64,
    /// End of the file with everything staged, if known.
    pub end: Option<u64>,
}

/// One record that counts.
#[derive(Debug, Clone, serde::Serialize)]
pub struct RecordDump {
    /// Offset in the pool.
    pub at: u64,
    /// The file.
    pub file_id: u64,
    /// Sequence number.
    pub seq: u64,
    /// What it does.
    pub kind: RecordKind,
    /// Offset in the file, or its new size.
    pub file_offset: u64,
    /// Where its bytes are staged.
    pub pool_offset: u64,
    /// How many.
    pub len: u32,
    /// Whether it counts after a crash of the system.
    pub committed: bool,
}

/// Everything of a pool but the staged bytes.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Dump {
    /// The pool in a few numbers.
    pub info: Info,
    /// Slots that are not free.
    pub slots: Vec<SlotDump>,
    /// Chunk table, in runs.
    pub chunks: Vec<ChunkRun>,
    /// File table.
    pub files: Vec<FileDump>,
    /// Records that count, by file and sequence number.
    pub records: Vec<RecordDump>,
    /// What the walk over the logs saw.
    pub log: Counts,
    /// Lines that were not believed.
    pub rejected: Vec<Rejected>,
}

impl<M: Medium> Pool<M> {
    /// The pool in a few numbers.
    pub fn info(&self) -> Result<Info> {
        let superblock = self.superblock()?;
        let mut chunks = BTreeMap::new();
        let mut orphans = 0;
        for chunk in 0..self.chunk_count()? {
            if let Some(word) = self.chunk_word(chunk)? {
                *chunks.entry(word.kind).or_insert(0) += 1;
                orphans += u32::from(word.owner == ORPHAN);
            }
        }
        Ok(Info {
            uuid: self
                .uuid()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            version: superblock.version,
            clean: superblock.flags & Superblock::CLEAN != 0,
            same_boot: [self.boot(), BootId::NONE].contains(&BootId(superblock.boot_id)),
            size: self.geometry().chunk(superblock.chunk_count),
            chunk_size: self.geometry().chunk_size(),
            chunks,
            orphans,
            attached: self.slots()?.iter().filter(|slot| slot.alive).count() as u32,
            files: self.files()?.len() as u64,
        })
    }

    /// The attachment slots that are not free.
    pub fn slots(&self) -> Result<Vec<SlotDump>> {
        let mut slots = Vec::new();
        for slot in 0..self.geometry().slot_count {
            let found = self.read_slot(slot)?;
            if found.state != Slot::FREE {
                let alive = self.locks().is_alive(slot);
                let Slot {
                    incarnation, pid, ..
                } = found;
                slots.push(SlotDump {
                    slot,
                    incarnation,
                    pid,
                    alive,
                });
            }
        }
        Ok(slots)
    }

    fn dump_chunks(&self) -> Result<Vec<ChunkRun>> {
        let mut runs: Vec<ChunkRun> = Vec::new();
        for chunk in 0..self.chunk_count()? {
            let word = self.chunk_word(chunk)?;
            let (kind, owner) = (
                word.map(|word| word.kind),
                word.map_or(0, |word| word.owner),
            );
            match runs.last_mut() {
                Some(run) if (run.kind, run.owner) == (kind, owner) => run.count += 1,
                _ => runs.push(ChunkRun {
                    first: chunk,
                    count: 1,
                    kind,
                    owner,
                }),
            }
        }
        Ok(runs)
    }

    fn dump_files(&self) -> Result<Vec<FileDump>> {
        let mut files = Vec::new();
        for index in 0..self.geometry().file_count {
            let entry = self.read_entry(index)?;
            if entry.kind() != FileEntry::LIVE {
                continue;
            }
            files.push(FileDump {
                index,
                file_id: entry.file_id,
                name: self.name_of(index, &entry).ok(),
                retired: checked_value(entry.retired, entry.file_id),
                sealed: checked_value(entry.sealed, entry.file_id),
                next_seq: entry.next_seq,
                end: (entry.end != END_UNKNOWN).then_some(entry.end),
            });
        }
        Ok(files)
    }

    /// Everything but the staged bytes. [`Dump`] prints itself for people and serialises for programs.
    pub fn dump(&self) -> Result<Dump> {
        let found = self.scan_around_lost()?;
        let mut records = Vec::new();
        for (place, committed) in found.live_places() {
            if let Some(record) = self.read_record(place)?
                && let Some(kind) = RecordKind::from_byte(record.kind)
            {
                records.push(RecordDump {
                    at: self.geometry().record(place.chunk, place.position),
                    file_id: record.file_id,
                    seq: record.seq,
                    kind,
                    file_offset: record.file_offset,
                    pool_offset: record.pool_offset,
                    len: record.len,
                    committed,
                });
            }
        }
        Ok(Dump {
            info: self.info()?,
            slots: self.slots()?,
            chunks: self.dump_chunks()?,
            files: self.dump_files()?,
            records,
            log: found.counts,
            rejected: found.rejected,
        })
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pool      {}", self.uuid)?;
        writeln!(f, "format    {}", self.version)?;
        writeln!(
            f,
            "state     {}",
            if self.clean {
                "clean"
            } else {
                "in use, or not detached"
            }
        )?;
        writeln!(
            f,
            "size      {} bytes in chunks of {}",
            self.size, self.chunk_size
        )?;
        for (kind, count) in &self.chunks {
            writeln!(f, "  {:<8}{count}", format!("{kind:?}").to_lowercase())?;
        }
        writeln!(f, "orphans   {} chunks", self.orphans)?;
        writeln!(f, "attached  {}", self.attached)?;
        write!(f, "files     {}", self.files)
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.info)?;
        for slot in &self.slots {
            let life = if slot.alive { "alive" } else { "dead" };
            writeln!(
                f,
                "slot {} (taken {} times): process {}, {life}",
                slot.slot, slot.incarnation, slot.pid
            )?;
        }
        for run in &self.chunks {
            let kind = run.kind.map_or("damaged".to_owned(), |kind| {
                format!("{kind:?}").to_lowercase()
            });
            let last = run.first + run.count - 1;
            writeln!(
                f,
                "chunks {}..={last}: {kind}, owner {}",
                run.first, run.owner
            )?;
        }
        for file in &self.files {
            let path = file.name.as_ref().map_or("(name damaged)".into(), |name| {
                String::from_utf8_lossy(&name.path).into_owned()
            });
            writeln!(
                f,
                "file {} [{:#x}] {}: retired {:?}, next {}, end {:?}",
                file.index,
                file.file_id,
                path.escape_debug(),
                file.retired,
                file.next_seq,
                file.end
            )?;
        }
        for record in &self.records {
            writeln!(
                f,
                "record at {}: file {:#x} #{} {:?} at {} <- {} + {}{}",
                record.at,
                record.file_id,
                record.seq,
                record.kind,
                record.file_offset,
                record.pool_offset,
                record.len,
                if record.committed { ", committed" } else { "" }
            )?;
        }
        for rejected in &self.rejected {
            writeln!(
                f,
                "not believed at {}: {}",
                rejected.offset, rejected.reason
            )?;
        }
        write!(f, "log: {:?}", self.log)
    }
}
