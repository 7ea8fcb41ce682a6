//! Recovery by walking: what the logs hold, which of it counts, and what may be thrown away.
//!
//! [`Pool::scan`] changes nothing, so it may be repeated and interrupted at will. A publisher takes
//! each file of the result, applies its records in order to the base file, makes that durable, and
//! retires them; [`Attachment::release_orphans`] then frees what no record needs any more.
//!
//! A record counts when it is whole, belongs where it lies, is newer than its file's `retired` mark
//! and, if it is part of a group, the group is complete. In the boot that wrote it that is enough:
//! every acknowledged operation is replayed. After a crash of the system it must also be committed, by
//! itself or by a later commit record from which an unbroken chain leads to it.

use std::collections::{BTreeMap, HashMap, HashSet};

use adit_pmem::Medium;

use crate::error::{Error, Result};
use crate::files::{END_UNKNOWN, FileName, FileRef};
use crate::layout::{
    ChunkKind, ChunkWord, FileEntry, NAMES, ORPHAN, Record, RecordKind, SHARED, Shared, Slot,
    Superblock, at, checked_value,
};
use crate::log::{Place, SEQ_MAX};
use crate::pool::{Attachment, Pool};

/// Rejected records listed one by one; more are only counted.
const LISTED: usize = 1000;
/// Bad lines for which a single flipped bit is looked for.
const BIT_SEARCHES: u64 = 2000;
/// Bytes read at once.
const BLOCK: usize = 64 << 10;

/// Why a log line was not believed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The last line of a log, cut off while it was written.
    Torn,
    /// One bit is wrong.
    BitFlip {
        /// Number of the bit in the line.
        bit: u32,
    },
    /// Neither CRC nor any neighbour of it fits.
    Unreadable,
    /// It claims a later generation than its chunk has.
    Future,
    /// Another record has the same file and sequence number.
    Duplicate,
    /// It is whole and makes no sense.
    Nonsense {
        /// What is impossible about it.
        what: String,
    },
    /// The staged bytes do not have the CRC that the record gives.
    DataMismatch,
    /// A commit record whose chain is broken: a record that it covers is missing.
    BrokenChain {
        /// Sequence number of the missing record.
        missing: u64,
    },
    /// The file's entry is damaged: whether the record was retired is not known.
    Undecided,
}

/// A log line that was not believed, and where.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Rejected {
    /// Offset in the pool.
    pub offset: u64,
    /// Why.
    pub reason: Rejection,
}

/// What the walk saw, line by line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Log chunks walked.
    pub chunks: u64,
    /// Lines looked at.
    pub lines: u64,
    /// Lines never written.
    pub empty: u64,
    /// Leftovers of an earlier use of the chunk.
    pub stale: u64,
    /// Whole records of files that were forgotten, or retired.
    pub retired: u64,
    /// Records of another boot that nobody committed.
    pub uncommitted: u64,
    /// Records of groups that never ended.
    pub unclosed: u64,
    /// Records that count.
    pub live: u64,
    /// Lines that were not believed.
    pub rejected: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Retired,
    Dropped,
    Live,
}

/// One whole record, as the walk remembers it.
#[derive(Debug, Clone, Copy)]
struct Item {
    file_id: u64,
    seq: u64,
    prev: u64,
    place: Place,
    count: u32,
    kind: RecordKind,
    flags: u8,
    boot: u32,
    state: State,
}

impl Item {
    fn is_group_end(&self) -> bool {
        self.kind == RecordKind::Commit && self.flags & Record::GROUP != 0
    }

    fn is_commit(&self) -> bool {
        self.kind == RecordKind::Commit && self.flags & Record::GROUP == 0
    }

    fn is_member(&self) -> bool {
        self.kind != RecordKind::Commit && self.flags & Record::GROUP != 0
    }
}

/// A file with records that count.
#[derive(Debug, Clone, serde::Serialize)]
pub struct RecoveredFile {
    /// Id of its entry.
    pub file_id: u64,
    /// Handle and path; `None` when the name is damaged (the problem is in `name_error`).
    pub name: Option<FileName>,
    /// Why there is no name.
    pub name_error: Option<String>,
    /// Records that count.
    pub records: u64,
    /// How many of them count in this boot only. They must be committed ([`crate::FileGuard::commit`])
    /// before they are published: a base file half-written with bytes that a loss of power then takes
    /// back is neither old nor new.
    pub uncommitted: u64,
    /// First sequence number that counts.
    pub first_seq: u64,
    /// What to retire when all is published: the last sequence number seen, counting or not.
    pub last_seq: u64,
    /// Whether a dead attachment wrote any of the records.
    pub orphaned: bool,
}

impl RecoveredFile {
    /// The file, for [`Attachment::lock_file`].
    #[must_use]
    pub fn file(&self) -> FileRef {
        FileRef { id: self.file_id }
    }
}

/// What to do to the base file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayOp {
    /// Write the staged bytes.
    Write {
        /// Where in the file.
        file_offset: u64,
        /// Where the bytes are in the pool.
        pool_offset: u64,
        /// How many.
        len: u32,
    },
    /// Set the size.
    Truncate {
        /// The size.
        size: u64,
    },
    /// Write zeros.
    Zero {
        /// Where in the file.
        file_offset: u64,
        /// How many.
        len: u32,
    },
    /// Exchange, if the staged bytes still have their CRC; they were checked when the walk ran.
    Exchange {
        /// Where in the file.
        file_offset: u64,
        /// Where the bytes are in the pool.
        pool_offset: u64,
        /// How many.
        len: u32,
        /// CRC32C that the staged bytes must have.
        data_crc: u32,
    },
}

/// One record to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Replay {
    /// Its place in the file's order.
    pub seq: u64,
    /// What it does.
    pub op: ReplayOp,
    /// Offset of the record in the pool.
    pub at: u64,
}

/// Result of a walk over all logs.
#[derive(Debug)]
pub struct Recovery {
    /// Files with something to replay.
    pub files: Vec<RecoveredFile>,
    /// What was seen.
    pub counts: Counts,
    /// Lines that were not believed, the first thousand.
    pub rejected: Vec<Rejected>,
    /// Sorted by file and sequence number; at most 3/4 of the logs' size.
    items: Vec<Item>,
    bit_searches: u64,
}

impl Recovery {
    fn reject(&mut self, offset: u64, reason: Rejection) {
        self.counts.rejected += 1;
        if self.rejected.len() < LISTED {
            self.rejected.push(Rejected { offset, reason });
        }
    }

    /// Whether nothing waits to be replayed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn items_of(&self, file_id: u64) -> &[Item] {
        let start = self.items.partition_point(|item| item.file_id < file_id);
        let end = self.items.partition_point(|item| item.file_id <= file_id);
        &self.items[start..end]
    }

    /// Places of all records that count.
    pub(crate) fn live_places(&self) -> Vec<Place> {
        self.live().map(|item| item.place).collect()
    }

    /// The records of a file that count, in order. Each is read, and validated, again.
    pub fn records<'a, M: Medium>(
        &'a self,
        pool: &'a Pool<M>,
        file: FileRef,
    ) -> impl Iterator<Item = Result<Replay>> + 'a {
        self.items_of(file.id)
            .iter()
            .filter(|item| item.state == State::Live && item.kind != RecordKind::Commit)
            .map(move |item| {
                let at = pool
                    .geometry()
                    .record(item.place.chunk, item.place.position);
                match pool.read_record(item.place)? {
                    Some(record) if record.seq == item.seq && record.file_id == item.file_id => {
                        replay_of(&record, at)
                    }
                    _ => Err(Error::damaged(
                        "log record",
                        at,
                        "it changed after it was found",
                    )),
                }
            })
    }

    /// Where the file ends after its records, given the size of its base file.
    pub fn end_after<M: Medium>(&self, pool: &Pool<M>, file: FileRef, base: u64) -> Result<u64> {
        self.records(pool, file).try_fold(base, |end, replay| {
            Ok(match replay?.op {
                ReplayOp::Write {
                    file_offset, len, ..
                }
                | ReplayOp::Exchange {
                    file_offset, len, ..
                } => end.max(file_offset.saturating_add(u64::from(len))),
                ReplayOp::Truncate { size } => size,
                ReplayOp::Zero { .. } => end,
            })
        })
    }

    fn live(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.state == State::Live)
    }
}

fn replay_of(record: &Record, at: u64) -> Result<Replay> {
    let Record {
        file_offset,
        pool_offset,
        len,
        data_crc,
        ..
    } = *record;
    let op = match RecordKind::from_byte(record.kind) {
        Some(RecordKind::Write) => ReplayOp::Write {
            file_offset,
            pool_offset,
            len,
        },
        Some(RecordKind::Truncate) => ReplayOp::Truncate { size: file_offset },
        Some(RecordKind::Zero) => ReplayOp::Zero { file_offset, len },
        Some(RecordKind::Exchange) => ReplayOp::Exchange {
            file_offset,
            pool_offset,
            len,
            data_crc,
        },
        _ => return Err(Error::damaged("log record", at, "nothing to replay")),
    };
    Ok(Replay {
        seq: record.seq,
        op,
        at,
    })
}

impl<M: Medium> Pool<M> {
    /// Walks all logs, of the living and the dead, and says what counts. Nothing is changed. Records
    /// that living attachments write meanwhile may or may not be seen; hold a file's lock to see all of
    /// its records.
    pub fn scan(&self) -> Result<Recovery> {
        let mut found = Recovery {
            files: Vec::new(),
            counts: Counts::default(),
            rejected: Vec::new(),
            items: Vec::new(),
            bit_searches: 0,
        };
        let mut orphans = HashSet::new();
        for chunk in 0..self.chunk_count()? {
            let word = self.chunk_word(chunk)?;
            match word {
                Some(word) if word.kind == ChunkKind::Log => {
                    if !self.owner_lives(word)? {
                        orphans.insert(chunk);
                    }
                }
                // A damaged word may have been a log's. Lines that are whole in this very place say so.
                None if chunk >= self.geometry().header_chunks() => {
                    orphans.insert(chunk);
                }
                _ => continue,
            }
            self.walk_chunk(chunk, word, &mut found)?;
        }
        found
            .items
            .sort_unstable_by_key(|item| (item.file_id, item.seq, item.place.chunk));
        self.judge(&mut found, &orphans)?;
        Ok(found)
    }

    fn owner_lives(&self, word: ChunkWord) -> Result<bool> {
        let Some(slot) = word.owner.checked_sub(1) else {
            return Ok(false);
        };
        let slot = u32::from(slot);
        if word.owner == ORPHAN || slot >= self.geometry().slot_count {
            return Ok(false);
        }
        let state = self.load(self.geometry().slot(slot) + at!(Slot.state))?;
        Ok(state != Slot::FREE && self.locks().is_alive(slot))
    }

    fn walk_chunk(&self, chunk: u32, word: Option<ChunkWord>, found: &mut Recovery) -> Result<()> {
        let geometry = *self.geometry();
        let mut bad = Vec::new();
        let mut last_whole = None;
        let mut block = vec![0; BLOCK.min(geometry.chunk_size() as usize)];
        let per_block = (block.len() / 64) as u32;
        if word.is_some() {
            found.counts.chunks += 1;
        }
        for first in (0..geometry.records_per_chunk()).step_by(per_block as usize) {
            self.medium()
                .read(geometry.record(chunk, first), &mut block)?;
            for (i, line) in block.chunks_exact(64).enumerate() {
                let place = Place {
                    chunk,
                    position: first + i as u32,
                };
                let mut bytes = [0; 64];
                bytes.copy_from_slice(line);
                match self.classify(place, &bytes, word) {
                    Line::Empty => found.counts.empty += 1,
                    Line::Stale => found.counts.stale += 1,
                    Line::Bad => bad.push((place, bytes)),
                    Line::Future => {
                        found.reject(geometry.record(chunk, place.position), Rejection::Future)
                    }
                    Line::Whole(record) => {
                        last_whole = Some(place.position);
                        self.remember(place, &record, found);
                    }
                }
                found.counts.lines += 1;
            }
        }
        // In a chunk whose word is damaged, lines that are no records are just data.
        if word.is_some() {
            for (place, bytes) in bad {
                let reason = self.diagnose(place, &bytes, last_whole, found);
                found.reject(geometry.record(chunk, place.position), reason);
            }
        }
        Ok(())
    }

    fn classify(&self, place: Place, bytes: &[u8; 64], word: Option<ChunkWord>) -> Line {
        if bytes == &[0; 64] {
            return Line::Empty;
        }
        let record = Record::decode(bytes);
        if !record.is_valid(self.uuid(), place.chunk, place.position) {
            return Line::Bad;
        }
        match word.map(|word| record.generation.cmp(&word.generation)) {
            Some(std::cmp::Ordering::Less) => Line::Stale,
            Some(std::cmp::Ordering::Greater) => Line::Future,
            _ => Line::Whole(record),
        }
    }

    fn diagnose(
        &self,
        place: Place,
        bytes: &[u8; 64],
        last_whole: Option<u32>,
        found: &mut Recovery,
    ) -> Rejection {
        if found.bit_searches < BIT_SEARCHES {
            found.bit_searches += 1;
            let mut flipped = *bytes;
            for bit in 0..512_u32 {
                let at = (bit / 8) as usize;
                flipped[at] ^= 1 << (bit % 8);
                let record = Record::decode(&flipped);
                if record.is_valid(self.uuid(), place.chunk, place.position) {
                    return Rejection::BitFlip { bit };
                }
                flipped[at] ^= 1 << (bit % 8);
            }
        }
        if last_whole.is_none_or(|last| place.position > last) {
            Rejection::Torn
        } else {
            Rejection::Unreadable
        }
    }

    /// Takes a whole record into the list, if it makes sense.
    fn remember(&self, place: Place, record: &Record, found: &mut Recovery) {
        let offset = self.geometry().record(place.chunk, place.position);
        let kind = match self.sense(record) {
            Ok(kind) => kind,
            Err(what) => {
                found.reject(
                    offset,
                    Rejection::Nonsense {
                        what: what.to_owned(),
                    },
                );
                return;
            }
        };
        found.items.push(Item {
            file_id: record.file_id,
            seq: record.seq,
            prev: record.prev,
            place,
            count: record.len,
            kind,
            flags: record.flags,
            boot: record.boot,
            state: State::Retired,
        });
    }

    /// Whether a whole record asks for something possible. Its extent is judged apart: a retired
    /// record's may be anything by now.
    fn sense(&self, record: &Record) -> Result<RecordKind, &'static str> {
        let kind = RecordKind::from_byte(record.kind).ok_or("unknown kind")?;
        if record.flags & !(Record::COMMITTED | Record::GROUP | Record::DATA_CRC) != 0
            || record.reserved != 0
        {
            return Err("unknown flags");
        }
        if record.seq == 0 || record.seq > SEQ_MAX || record.prev >= record.seq {
            return Err("impossible sequence number");
        }
        if (FileRef { id: record.file_id }).index() >= self.geometry().file_count {
            return Err("no such file entry");
        }
        let end = record.file_offset.checked_add(u64::from(record.len));
        if kind != RecordKind::Commit && end.is_none_or(|end| end > i64::MAX as u64) {
            return Err("beyond the largest file");
        }
        Ok(kind)
    }

    fn sense_extent(&self, offset: u64, len: u64) -> Result<Result<(), &'static str>> {
        let geometry = self.geometry();
        let inside = offset & (geometry.chunk_size() - 1);
        if len == 0 || len > geometry.chunk_size() - inside || !offset.is_multiple_of(64) {
            return Ok(Err("no such extent"));
        }
        let chunk = offset >> geometry.chunk_shift;
        if chunk < u64::from(geometry.header_chunks()) || chunk >= u64::from(self.chunk_count()?) {
            return Ok(Err("extent outside the data chunks"));
        }
        match self.chunk_word(chunk as u32)? {
            // A damaged word says nothing against the data.
            None => Ok(Ok(())),
            Some(word) if word.kind == ChunkKind::Data => Ok(Ok(())),
            Some(_) => Ok(Err("extent in a chunk that holds no data")),
        }
    }

    /// Whether the staged bytes have this CRC.
    fn data_matches(&self, offset: u64, len: u32, crc: u32) -> Result<bool> {
        let mut block = vec![0; BLOCK.min(len as usize)];
        let mut seen = 0;
        let mut at = 0;
        while at < u64::from(len) {
            let part = (u64::from(len) - at).min(block.len() as u64) as usize;
            self.medium().read(offset + at, &mut block[..part])?;
            seen = crc32c::crc32c_append(seen, &block[..part]);
            at += part as u64;
        }
        Ok(seen == crc)
    }

    /// Decides which of the records found count.
    fn judge(&self, found: &mut Recovery, orphans: &HashSet<u32>) -> Result<()> {
        let mut start = 0;
        while start < found.items.len() {
            let file_id = found.items[start].file_id;
            let len = found.items[start..].partition_point(|item| item.file_id == file_id);
            self.judge_file(start, start + len, found, orphans)?;
            start += len;
        }
        Ok(())
    }

    fn judge_file(
        &self,
        start: usize,
        end: usize,
        found: &mut Recovery,
        orphans: &HashSet<u32>,
    ) -> Result<()> {
        let file = FileRef {
            id: found.items[start].file_id,
        };
        let place = |item: &Item| {
            self.geometry()
                .record(item.place.chunk, item.place.position)
        };
        let entry = match self.live_entry(file) {
            Ok(entry) => entry,
            Err(Error::Forgotten) => {
                found.counts.retired += (end - start) as u64;
                return Ok(());
            }
            Err(_) => {
                for i in start..end {
                    found.reject(place(&found.items[i]), Rejection::Undecided);
                }
                return Ok(());
            }
        };
        let retired = checked_value(entry.retired, file.id).unwrap_or(0);
        let sealed = checked_value(entry.sealed, file.id).unwrap_or(0);
        let mut sound: Vec<usize> = Vec::new();
        for i in start..end {
            let item = found.items[i];
            if item.seq <= retired {
                found.counts.retired += 1;
                continue;
            }
            if sound
                .last()
                .is_some_and(|last| found.items[*last].seq == item.seq)
            {
                found.reject(place(&item), Rejection::Duplicate);
                continue;
            }
            sound.push(i);
        }
        // What would count must also have its bytes. Taking a record out can only make others not
        // count, so a second verdict is the last.
        let first = self.verdict(&sound, retired, found);
        let mut complete = Vec::with_capacity(sound.len());
        for (i, state) in sound.iter().zip(first.states) {
            let item = found.items[*i];
            match self.bytes_of(&item, state, sealed)? {
                Ok(()) => complete.push(*i),
                Err(reason) => found.reject(place(&item), reason),
            }
        }
        let verdict = self.verdict(&complete, retired, found);
        found.counts.unclosed += verdict.unclosed;
        found.counts.uncommitted += verdict.uncommitted;
        for (offset, missing) in verdict.broken {
            found.reject(offset, Rejection::BrokenChain { missing });
        }
        let mut summary = RecoveredFile {
            file_id: file.id,
            name: None,
            name_error: None,
            records: 0,
            uncommitted: 0,
            first_seq: 0,
            last_seq: found.items[start..end]
                .iter()
                .map(|item| item.seq)
                .max()
                .unwrap_or(0),
            orphaned: false,
        };
        let fates = verdict.states.into_iter().zip(verdict.committed);
        for (i, (state, committed)) in complete.iter().copied().zip(fates) {
            let item = &mut found.items[i];
            item.state = state;
            if state == State::Live {
                found.counts.live += 1;
                if item.kind != RecordKind::Commit {
                    summary.records += 1;
                    summary.uncommitted += u64::from(!committed);
                    if summary.first_seq == 0 {
                        summary.first_seq = item.seq;
                    }
                }
                summary.orphaned |= orphans.contains(&item.place.chunk);
            }
        }
        if summary.records > 0 {
            match self.name_of(file.index(), &entry) {
                Ok(name) => summary.name = Some(name),
                Err(error) => summary.name_error = Some(error.to_string()),
            }
            found.files.push(summary);
        } else {
            // Commits alone have nothing to say any more.
            for i in complete {
                if found.items[i].state == State::Live {
                    found.items[i].state = State::Retired;
                    found.counts.live -= 1;
                    found.counts.retired += 1;
                }
            }
        }
        Ok(())
    }

    /// Whether the staged bytes of a record that would count are there.
    fn bytes_of(&self, item: &Item, state: State, sealed: u64) -> Result<Result<(), Rejection>> {
        if state != State::Live || !item.kind.has_extent() {
            return Ok(Ok(()));
        }
        let record = Record::decode(&self.read_line(item.place)?);
        if let Err(what) = self.sense_extent(record.pool_offset, u64::from(record.len))? {
            return Ok(Err(Rejection::Nonsense {
                what: what.to_owned(),
            }));
        }
        if record.flags & Record::DATA_CRC != 0
            && item.seq > sealed
            && !self.data_matches(record.pool_offset, record.len, record.data_crc)?
        {
            return Ok(Err(Rejection::DataMismatch));
        }
        Ok(Ok(()))
    }

    /// The fate of each sound record of one file, given in order.
    fn verdict(&self, sound: &[usize], retired: u64, found: &Recovery) -> Verdict {
        let mut verdict = Verdict::default();
        let items: Vec<Item> = sound.iter().map(|i| found.items[*i]).collect();
        let by_seq: HashMap<u64, usize> = items
            .iter()
            .enumerate()
            .map(|(i, item)| (item.seq, i))
            .collect();
        let boot = self.boot_tag();
        // For members and ends of complete groups: the group's end.
        let mut group_end: Vec<Option<usize>> = vec![None; items.len()];
        for (i, end) in items.iter().enumerate() {
            if !end.is_group_end() {
                continue;
            }
            match group_of(end, &items, &by_seq, &group_end) {
                Ok(members) => {
                    group_end[i] = Some(i);
                    members
                        .into_iter()
                        .for_each(|member| group_end[member] = Some(i));
                }
                Err(missing) => {
                    let at = self.geometry().record(end.place.chunk, end.place.position);
                    // After a crash of the system, a group cut short is what was to be expected.
                    if end.boot == boot || missing <= retired {
                        verdict.broken.push((at, missing));
                    }
                }
            }
        }
        let mut committed: Vec<bool> = items
            .iter()
            .map(|item| item.flags & Record::COMMITTED != 0)
            .collect();
        let mut walked = vec![false; items.len()];
        for commit in items.iter().filter(|item| item.is_commit()) {
            match covered(commit, &items, &by_seq, retired, &walked) {
                Ok(covered) => {
                    for i in covered {
                        walked[i] = true;
                        committed[i] = true;
                    }
                }
                // In this boot a record that was written while we walked may be missing here only.
                Err(_) if commit.boot == boot => {}
                Err(missing) => {
                    let Place { chunk, position } = commit.place;
                    verdict
                        .broken
                        .push((self.geometry().record(chunk, position), missing));
                }
            }
        }
        // A group is committed with its end.
        for i in 0..items.len() {
            committed[i] |= group_end[i].is_some_and(|end| committed[end]);
        }
        for (i, item) in items.iter().enumerate() {
            let in_group = item.is_member() || item.is_group_end();
            verdict.states.push(if in_group && group_end[i].is_none() {
                verdict.unclosed += 1;
                State::Dropped
            } else if item.boot != boot && !committed[i] && !item.is_commit() {
                verdict.uncommitted += 1;
                State::Dropped
            } else {
                State::Live
            });
            verdict.committed.push(committed[i]);
        }
        verdict
    }
}

/// The members of the group that `end` closes, or the sequence number of one that is missing. A record
/// is a member of one group only, so all groups together take one walk over the records.
fn group_of(
    end: &Item,
    items: &[Item],
    by_seq: &HashMap<u64, usize>,
    group_end: &[Option<usize>],
) -> Result<Vec<usize>, u64> {
    let mut members = Vec::new();
    let mut next = end.prev;
    for _ in 0..end.count {
        let Some(i) = by_seq.get(&next).copied() else {
            return Err(next);
        };
        if !items[i].is_member() || items[i].boot != end.boot || group_end[i].is_some() {
            return Err(next);
        }
        members.push(i);
        next = items[i].prev;
    }
    Ok(members)
}

/// The records that a commit covers: down the chain to the commit before it, or to where another
/// commit's walk came by. The chain falls with every step, so it ends.
fn covered(
    commit: &Item,
    items: &[Item],
    by_seq: &HashMap<u64, usize>,
    retired: u64,
    walked: &[bool],
) -> Result<Vec<usize>, u64> {
    let mut members = Vec::new();
    let mut next = commit.prev;
    while next > retired {
        let Some(i) = by_seq.get(&next).copied() else {
            return Err(next);
        };
        if items[i].is_commit() || items[i].boot != commit.boot || walked[i] {
            break;
        }
        members.push(i);
        next = items[i].prev;
    }
    Ok(members)
}

/// What became of the records of one file.
#[derive(Default)]
struct Verdict {
    states: Vec<State>,
    committed: Vec<bool>,
    unclosed: u64,
    uncommitted: u64,
    /// Commit records whose chain is broken: offset, and the missing sequence number.
    broken: Vec<(u64, u64)>,
}

enum Line {
    Empty,
    Stale,
    Bad,
    Future,
    Whole(Record),
}

impl<M: Medium> Pool<M> {
    /// Resets what is volatile and derives it anew from what is durable. The caller holds the gate
    /// and nobody is attached. Interrupted anywhere, it is simply done again.
    pub(crate) fn rebuild(&self, superblock: &Superblock) -> Result<Recovery> {
        for lock in [
            at!(Shared.super_lock),
            at!(Shared.files_lock),
            at!(Shared.recovery_lock),
        ] {
            self.store(SHARED + lock, 0)?;
        }
        self.store(
            SHARED + at!(Shared.chunk_count),
            u64::from(superblock.chunk_count),
        )?;
        for slot in 0..self.geometry().slot_count {
            self.store(self.geometry().slot(slot) + at!(Slot.state), Slot::FREE)?;
        }
        // What processes of this boot left visible is not all durable, and what we decide from it has
        // to stay true: the tables first, then every record that counts.
        self.make_durable(0, self.geometry().header_len())?;
        let found = self.scan()?;
        for item in found.live() {
            if let Some(record) = self.read_record(item.place)? {
                self.make_record_durable(item.place, &record)?;
            }
        }
        self.rebuild_chunks(&found)?;
        self.rebuild_files(&found)?;
        self.recount_files()?;
        self.medium().flush(SHARED, Shared::SIZE as u64)?;
        self.medium().fence();
        Ok(found)
    }

    fn rebuild_chunks(&self, found: &Recovery) -> Result<()> {
        let geometry = *self.geometry();
        let needed = self.needed_chunks(found)?;
        for chunk in 0..self.chunk_count()? {
            let offset = geometry.chunk_word(chunk);
            let old = self.chunk_word(chunk)?;
            let generation = old.map_or(0, |word| word.generation);
            let new = if chunk < geometry.header_chunks() {
                ChunkWord {
                    kind: ChunkKind::Header,
                    owner: 0,
                    generation,
                }
            } else {
                match (needed.get(&chunk), old) {
                    (
                        Some(Needed {
                            kind,
                            generation: seen,
                        }),
                        old,
                    ) => ChunkWord {
                        kind: *kind,
                        owner: if *kind == ChunkKind::Names { 0 } else { ORPHAN },
                        generation: old.map_or(seen.unwrap_or(0), |word| word.generation),
                    },
                    (None, Some(word)) if word.kind == ChunkKind::Region => word,
                    (None, Some(word)) if word.kind == ChunkKind::Free && word.owner == 0 => word,
                    (None, _) => ChunkWord {
                        kind: ChunkKind::Free,
                        owner: 0,
                        generation: generation.wrapping_add(1),
                    },
                }
            };
            if old != Some(new) {
                self.store(offset, new.encode())?;
                self.medium().flush(offset, 8)?;
            }
        }
        self.medium().fence();
        Ok(())
    }

    /// Chunks that something which counts lies in.
    fn needed_chunks(&self, found: &Recovery) -> Result<BTreeMap<u32, Needed>> {
        let geometry = *self.geometry();
        let mut needed = BTreeMap::new();
        for item in found.live() {
            let Some(record) = self.read_record(item.place)? else {
                continue;
            };
            let generation = Some(record.generation);
            needed.insert(
                item.place.chunk,
                Needed {
                    kind: ChunkKind::Log,
                    generation,
                },
            );
            if item.kind.has_extent() {
                let chunk = (record.pool_offset >> geometry.chunk_shift) as u32;
                needed.entry(chunk).or_insert(Needed {
                    kind: ChunkKind::Data,
                    generation: None,
                });
            }
        }
        // Records whose file entry is damaged are kept for a repair by hand.
        for rejected in found
            .rejected
            .iter()
            .filter(|r| r.reason == Rejection::Undecided)
        {
            let chunk = (rejected.offset >> geometry.chunk_shift) as u32;
            let generation = self.chunk_word(chunk)?.map(|word| word.generation);
            needed.insert(
                chunk,
                Needed {
                    kind: ChunkKind::Log,
                    generation,
                },
            );
            let position = ((rejected.offset - geometry.chunk(chunk)) / 64) as u32;
            if let Some(record) = self.read_record(Place { chunk, position })?
                && RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent)
            {
                let chunk = (record.pool_offset >> geometry.chunk_shift) as u32;
                needed.entry(chunk).or_insert(Needed {
                    kind: ChunkKind::Data,
                    generation: None,
                });
            }
        }
        for group in 0..geometry.name_groups() {
            if let Some(chunk) = checked_value(self.load(NAMES + group * 8)?, group)
                && chunk >= u64::from(geometry.header_chunks())
                && chunk < u64::from(geometry.max_chunks)
            {
                needed.entry(chunk as u32).or_insert(Needed {
                    kind: ChunkKind::Names,
                    generation: None,
                });
            }
        }
        Ok(needed)
    }

    fn rebuild_files(&self, found: &Recovery) -> Result<()> {
        for index in 0..self.geometry().file_count {
            let offset = self.geometry().file_entry(index);
            if self.load(offset)? == 0 {
                // A waiter of the past may have left its lock in an entry that is empty by now.
                if self.load(offset + at!(FileEntry.lock))? != 0 {
                    self.store(offset + at!(FileEntry.lock), 0)?;
                }
                continue;
            }
            let entry = self.read_entry(index)?;
            if !entry.is_valid(index) {
                continue;
            }
            let items = found.items_of(entry.file_id);
            if found.counts.rejected == 0 && !items.iter().any(|item| item.state == State::Live) {
                // Nothing of it counts: whatever a past boot left uncommitted is gone for good.
                self.persist(offset + at!(FileEntry.state), 0)?;
                continue;
            }
            let marks = [entry.retired, entry.sealed]
                .map(|mark| checked_value(mark, entry.file_id).unwrap_or(0));
            let last = items
                .last()
                .map_or(0, |item| item.seq)
                .max(marks[0])
                .max(marks[1]);
            let boot = self.boot_tag();
            let chain = items
                .iter()
                .rev()
                .find(|item| item.state == State::Live && item.boot == boot)
                .map_or(0, |item| item.seq);
            for (field, value) in [
                (at!(FileEntry.lock), 0),
                (at!(FileEntry.next_seq), last.saturating_add(1)),
                (at!(FileEntry.end), END_UNKNOWN),
                (at!(FileEntry.last_seq), chain),
                (at!(FileEntry.pending), 0),
                (at!(FileEntry.version), 0),
            ] {
                self.store(offset + field, value)?;
            }
            self.medium().flush(offset + 64, 64)?;
        }
        self.medium().fence();
        Ok(())
    }
}

struct Needed {
    kind: ChunkKind,
    generation: Option<u32>,
}

/// What [`Attachment::release_orphans`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Released {
    /// Slots of dead attachments made free.
    pub slots: u32,
    /// Chunks made free.
    pub chunks: u32,
    /// Orphaned chunks that records which count still need.
    pub kept: u32,
}

impl<M: Medium> Attachment<M> {
    /// [`Pool::scan`] for those who act on what they find: publishers and recovery. What a dead
    /// publisher left visible (a mark, a removed entry) is durable before it is believed; otherwise a
    /// loss of power could bring back records behind facts that we made durable meanwhile.
    pub fn scan(&self) -> Result<Recovery> {
        self.ensure_current()?;
        let geometry = *self.pool.geometry();
        let table = u64::from(geometry.file_count) * FileEntry::SIZE as u64;
        self.pool.make_durable(geometry.file_table(), table)?;
        self.pool.scan()
    }

    /// Buries dead attachments: their slots become free, their chunks orphans; then frees every orphan
    /// that no record which counts needs. Publish and retire the orphaned files first to free all.
    pub fn release_orphans(&self) -> Result<Released> {
        let offset = SHARED + at!(Shared.recovery_lock);
        let (_lock, _) = self.lock_shared("recovery lock", offset)?;
        let mut released = Released::default();
        let dead = self.dead_slots()?;
        for chunk in 0..self.pool.chunk_count()? {
            if let Some(word) = self.pool.chunk_word(chunk)?
                && dead.contains(&u32::from(word.owner).wrapping_sub(1))
            {
                self.pool.change_chunk(
                    chunk,
                    word,
                    ChunkWord {
                        owner: ORPHAN,
                        ..word
                    },
                )?;
            }
        }
        for slot in dead {
            let state = self.pool.geometry().slot(slot) + at!(Slot.state);
            self.pool.persist(state, Slot::FREE)?;
            released.slots += 1;
        }
        let needed = self.pool.needed_chunks(&self.scan()?)?;
        for chunk in 0..self.pool.chunk_count()? {
            let Some(word) = self.pool.chunk_word(chunk)? else {
                continue;
            };
            if word.owner != ORPHAN || !matches!(word.kind, ChunkKind::Data | ChunkKind::Log) {
                continue;
            }
            if needed.contains_key(&chunk) {
                released.kept += 1;
            } else if self.pool.free_chunk(chunk, word)? {
                released.chunks += 1;
            }
        }
        Ok(released)
    }

    /// Slots that are taken by nobody alive.
    fn dead_slots(&self) -> Result<Vec<u32>> {
        let mut dead = Vec::new();
        for slot in 0..self.pool.geometry().slot_count {
            let state = self
                .pool
                .load(self.pool.geometry().slot(slot) + at!(Slot.state))?;
            if state != Slot::FREE && slot != self.owner.slot && !self.pool.locks().is_alive(slot) {
                dead.push(slot);
            }
        }
        Ok(dead)
    }
}
