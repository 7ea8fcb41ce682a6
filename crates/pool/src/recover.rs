//! Recovery by walking: what the logs hold, which of it counts, and what may be thrown away.
//!
//! [`Pool::scan`] changes nothing, so it may be repeated and interrupted at will. A publisher takes
//! each file of the result, applies its records in order to the base file, makes that durable, and
//! retires them; [`crate::Attachment::release_orphans`] then frees what no record needs any more.
//!
//! A record counts when it is whole, belongs where it lies, is newer than its file's `retired` mark
//! and, if it is part of a group, the group is complete. In the boot that wrote it that is enough:
//! every acknowledged operation is replayed. After a crash of the system it must also be committed, by
//! itself or by a later commit record from which an unbroken chain leads to it. A commit of several files
//! is one only if the others are as sound (`together.rs`): so all files are gone through first, and those
//! with such commits are decided at the end. What is made of the result stands in `recover/rebuild.rs`.

mod rebuild;

use std::collections::{BTreeMap, BTreeSet};

use adit_pmem::Medium;

use crate::error::{Error, Result};
use crate::files::{FileName, FileRef};
use crate::layout::{
    ChunkKind, ChunkWord, FileEntry, ORPHAN, Record, RecordKind, Slot, at, checked_value,
};
use crate::log::{Place, SEQ_MAX};
use crate::parallel;
use crate::pool::Pool;
use crate::relink::{Gone, left_of};
use crate::together::{Link, Rings};

pub use rebuild::{Rebuilt, Released};

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
    /// The staged bytes do not have the CRC that the record gives, and nothing says that they were ever durable: a
    /// power cut came before anybody was told of them.
    TornData,
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
    /// The staged bytes do not have the CRC that the record gives, though they were durable once, or no power was cut.
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
    /// Whether a crash of the system cannot take it back.
    committed: bool,
    /// A commit of several files of which another one is missing: it commits nothing.
    broken: bool,
    /// Sequence number of the end of its group, or its own.
    end_seq: u64,
}

impl Item {
    fn is_group_end(&self) -> bool {
        self.kind == RecordKind::Commit && self.flags & Record::GROUP != 0
    }

    fn is_commit(&self) -> bool {
        self.kind == RecordKind::Commit && self.flags & Record::GROUP == 0
    }

    fn is_together(&self) -> bool {
        self.is_commit() && self.flags & Record::TOGETHER != 0
    }

    fn is_operation(&self) -> bool {
        !matches!(self.kind, RecordKind::Commit | RecordKind::Relink)
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
    /// The file, for [`crate::Attachment::lock_file`].
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
    /// Nothing: an interrupted relink has handed the bytes that were staged for here to the file.
    Relinked {
        /// Where in the file.
        file_offset: u64,
        /// How many.
        len: u32,
    },
}

/// One record to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Replay {
    /// Its place in the file's order. Members of a group, which are retired together, all have the place
    /// of the group's end.
    pub seq: u64,
    /// What it does.
    pub op: ReplayOp,
    /// Offset of the record in the pool.
    pub at: u64,
    /// Whether a crash of the system cannot take it back.
    pub committed: bool,
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
    /// What relinks that were not finished have handed to files: sorted by file, then by place in the pool.
    gone: Vec<Gone>,
    bit_searches: u64,
}

impl Recovery {
    fn nothing() -> Self {
        Self {
            files: Vec::new(),
            counts: Counts::default(),
            rejected: Vec::new(),
            items: Vec::new(),
            gone: Vec::new(),
            bit_searches: 0,
        }
    }

    /// Adds what was seen after it.
    fn add(&mut self, mut seen: Self) {
        let Counts {
            chunks,
            lines,
            empty,
            stale,
            retired,
            uncommitted,
            unclosed,
            live,
            rejected,
        } = seen.counts;
        self.counts.chunks += chunks;
        self.counts.lines += lines;
        self.counts.empty += empty;
        self.counts.stale += stale;
        self.counts.retired += retired;
        self.counts.uncommitted += uncommitted;
        self.counts.unclosed += unclosed;
        self.counts.live += live;
        self.counts.rejected += rejected;
        let room = LISTED - self.rejected.len().min(LISTED);
        seen.rejected.truncate(room);
        self.rejected.append(&mut seen.rejected);
        self.items.append(&mut seen.items);
    }

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
            .filter(|item| item.state == State::Live && item.is_operation())
            .map(move |item| {
                let at = pool
                    .geometry()
                    .record(item.place.chunk, item.place.position);
                match pool.read_record(item.place)? {
                    Some(record) if record.seq == item.seq && record.file_id == item.file_id => {
                        let replay = replay_of(&record, at, item)?;
                        let gone = self.gone_of(file.id, pool, record.pool_offset);
                        Ok(left_of(replay, item.seq, gone))
                    }
                    _ => Err(Error::damaged(
                        "log record",
                        at,
                        "it changed after it was found",
                    )),
                }
            })
            .flat_map(|parts| {
                let (first, rest) = match parts {
                    Ok((first, rest)) => (Ok(first), rest),
                    Err(error) => (Err(error), Vec::new()),
                };
                std::iter::once(first).chain(rest.into_iter().map(Ok))
            })
    }

    /// What may have gone of a record's bytes: as these, each range lies within one chunk.
    fn gone_of<M: Medium>(&self, file_id: u64, pool: &Pool<M>, pool_offset: u64) -> &[Gone] {
        let shift = pool.geometry().chunk_shift;
        let place = |gone: &Gone| (gone.file_id, gone.pool_offset >> shift);
        let wanted = (file_id, pool_offset >> shift);
        let start = self.gone.partition_point(|gone| place(gone) < wanted);
        let end = self.gone.partition_point(|gone| place(gone) <= wanted);
        &self.gone[start..end]
    }

    /// Where the file ends after its records, given the size of its base file.
    pub fn end_after<M: Medium>(&self, pool: &Pool<M>, file: FileRef, base: u64) -> Result<u64> {
        self.records(pool, file).try_fold(base, |end, replay| {
            Ok(match replay?.op {
                ReplayOp::Write {
                    file_offset, len, ..
                }
                | ReplayOp::Relinked { file_offset, len } => {
                    end.max(file_offset.saturating_add(u64::from(len)))
                }
                ReplayOp::Truncate { size } => size,
                ReplayOp::Zero { .. } => end,
            })
        })
    }

    fn live(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.state == State::Live)
    }
}

fn replay_of(record: &Record, at: u64, item: &Item) -> Result<Replay> {
    let op = op_of(record).ok_or_else(|| Error::damaged("log record", at, "nothing to replay"))?;
    Ok(Replay {
        seq: item.end_seq,
        op,
        at,
        committed: item.committed,
    })
}

/// What a record does to the file, if anything.
pub(crate) fn op_of(record: &Record) -> Option<ReplayOp> {
    let Record {
        file_offset,
        pool_offset,
        len,
        ..
    } = *record;
    match RecordKind::from_byte(record.kind)? {
        RecordKind::Write => Some(ReplayOp::Write {
            file_offset,
            pool_offset,
            len,
        }),
        RecordKind::Truncate => Some(ReplayOp::Truncate { size: file_offset }),
        RecordKind::Zero => Some(ReplayOp::Zero { file_offset, len }),
        RecordKind::Relink | RecordKind::Commit => None,
    }
}

impl<M: Medium> Pool<M> {
    /// Walks all logs, of the living and the dead, and says what counts. Nothing is changed. Records
    /// that living attachments write meanwhile may or may not be seen; hold a file's lock to see all of
    /// its records.
    pub fn scan(&self) -> Result<Recovery> {
        let mut found = Recovery::nothing();
        let mut orphans = BTreeSet::new();
        let walkers = self.walkers();
        let chunks = self.chunks_to_walk()?;
        // Some at a time: what a walk has seen of a chunk is held beside what is kept of it.
        for chunks in chunks.chunks(walkers * 4) {
            let walks = parallel::each(walkers, chunks.len(), |nth| self.walk(chunks[nth]));
            for walk in walks {
                if let Some(walk) = walk? {
                    self.take(walk, &mut found, &mut orphans);
                }
            }
        }
        found
            .items
            .sort_unstable_by_key(|item| (item.file_id, item.seq, item.place.chunk));
        self.judge(&mut found, &orphans)?;
        Ok(found)
    }

    /// Starts the write-back of some records of all logs, and of what they stage, whoever wrote them: a
    /// fence makes them durable.
    pub(crate) fn write_back(&self, wanted: impl Fn(&Record) -> bool) -> Result<()> {
        for chunk in self.chunks_to_walk()? {
            for position in 0..self.geometry().records_per_chunk() {
                let place = Place { chunk, position };
                if wanted(&Record::decode(&self.read_line(place)?))
                    && let Some(record) = self.read_record(place)?
                {
                    self.write_record_back(place, &record)?;
                }
            }
        }
        Ok(())
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

    /// Chunks that hold a log, or may have.
    fn chunks_to_walk(&self) -> Result<Vec<u32>> {
        let mut chunks = Vec::new();
        for chunk in 0..self.chunk_count()? {
            if self.may_be_log(chunk, self.chunk_word(chunk)?) {
                chunks.push(chunk);
            }
        }
        Ok(chunks)
    }

    /// A damaged word may have been a log's. Lines that are whole in this very place say so.
    fn may_be_log(&self, chunk: u32, word: Option<ChunkWord>) -> bool {
        match word {
            Some(word) => word.kind == ChunkKind::Log,
            None => chunk >= self.geometry().header_chunks(),
        }
    }

    /// Looks at every line of a chunk; `None` when it is no log any more.
    fn walk(&self, chunk: u32) -> Result<Option<Walk>> {
        let word = self.chunk_word(chunk)?;
        if !self.may_be_log(chunk, word) {
            return Ok(None);
        }
        let orphaned = match word {
            Some(word) => !self.owner_lives(word)?,
            None => true,
        };
        let mut walk = Walk {
            chunk,
            orphaned,
            seen: Recovery::nothing(),
            bad: Vec::new(),
            last_whole: None,
        };
        let geometry = *self.geometry();
        let mut block = vec![0; BLOCK.min(geometry.chunk_size() as usize)];
        let per_block = (block.len() / 64) as u32;
        walk.seen.counts.chunks = u64::from(word.is_some());
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
                self.look_at(place, &bytes, word, &mut walk);
            }
        }
        Ok(Some(walk))
    }

    fn look_at(&self, place: Place, bytes: &[u8; 64], word: Option<ChunkWord>, walk: &mut Walk) {
        let seen = &mut walk.seen;
        seen.counts.lines += 1;
        match self.classify(place, bytes, word) {
            Line::Empty => seen.counts.empty += 1,
            Line::Stale => seen.counts.stale += 1,
            // In a chunk whose word is damaged, lines that are no records are just data.
            Line::Bad if word.is_some() => walk.bad.push((place, *bytes)),
            Line::Bad => {}
            Line::Future => seen.reject(
                self.geometry().record(place.chunk, place.position),
                Rejection::Future,
            ),
            Line::Whole(record) => {
                walk.last_whole = Some(place.position);
                self.remember(place, &record, seen);
            }
        }
    }

    /// Adds what was seen of a chunk. Chunks come in their order, whoever has walked them.
    fn take(&self, walk: Walk, found: &mut Recovery, orphans: &mut BTreeSet<u32>) {
        if walk.orphaned {
            orphans.insert(walk.chunk);
        }
        found.add(walk.seen);
        for (place, bytes) in walk.bad {
            let reason = self.diagnose(place, &bytes, walk.last_whole, found);
            found.reject(self.geometry().record(place.chunk, place.position), reason);
        }
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
            committed: false,
            broken: false,
            end_seq: record.seq,
        });
    }

    /// Whether a whole record asks for something possible. Its extent is judged apart: a retired
    /// record's may be anything by now.
    pub(crate) fn sense(&self, record: &Record) -> Result<RecordKind, &'static str> {
        let kind = RecordKind::from_byte(record.kind).ok_or("unknown kind")?;
        let known = Record::COMMITTED
            | Record::GROUP
            | Record::DATA_CRC
            | Record::CHAINED
            | Record::TOGETHER;
        if record.flags & !known != 0 || record.reserved != 0 {
            return Err("unknown flags");
        }
        if record.flags & Record::TOGETHER != 0
            && (kind != RecordKind::Commit || record.flags & Record::GROUP != 0)
        {
            return Err("flags that exclude each other");
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

    pub(crate) fn sense_extent(&self, offset: u64, len: u64) -> Result<Result<(), &'static str>> {
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
    fn judge(&self, found: &mut Recovery, orphans: &BTreeSet<u32>) -> Result<()> {
        let mut together = Vec::new();
        let mut start = 0;
        while start < found.items.len() {
            let file_id = found.items[start].file_id;
            let len = found.items[start..].partition_point(|item| item.file_id == file_id);
            if let Some(records) = self.sound_records(start..start + len, found)? {
                let shares = |i: &usize| found.items[*i].is_together();
                if records.sound.iter().any(shares) {
                    together.push(records);
                } else {
                    self.decide(&records, found, orphans)?;
                }
            }
            start += len;
        }
        if !together.is_empty() {
            self.judge_rings(&together, found)?;
            for records in &together {
                self.decide(records, found, orphans)?;
            }
            found.files.sort_unstable_by_key(|file| file.file_id);
            found
                .gone
                .sort_unstable_by_key(|gone| (gone.file_id, gone.pool_offset));
        }
        Ok(())
    }

    /// Finds the commits of several files that are not whole.
    fn judge_rings(&self, files: &[SoundRecords], found: &mut Recovery) -> Result<()> {
        let mut rings = Rings::new();
        let mut places = BTreeMap::new();
        for records in files {
            for (i, sound) in chains(records, found) {
                let item = found.items[i];
                if let Some(record) = self.read_record(item.place)? {
                    let key = (item.file_id, item.seq);
                    rings.insert(key, Link::of(&record, sound));
                    places.insert(key, i);
                }
            }
        }
        for key in self.broken(&rings)? {
            if let Some(i) = places.get(&key) {
                found.items[*i].broken = true;
            }
        }
        Ok(())
    }

    /// The records of a file that are not retired and, if they may count, have their bytes; `None` when
    /// there is nothing to decide.
    fn sound_records(
        &self,
        range: std::ops::Range<usize>,
        found: &mut Recovery,
    ) -> Result<Option<SoundRecords>> {
        let file = FileRef {
            id: found.items[range.start].file_id,
        };
        let place = |item: &Item| {
            self.geometry()
                .record(item.place.chunk, item.place.position)
        };
        let entry = match self.live_entry(file) {
            Ok(entry) => entry,
            Err(Error::Forgotten) => {
                found.counts.retired += range.len() as u64;
                return Ok(None);
            }
            Err(_) => {
                for i in range {
                    found.reject(place(&found.items[i]), Rejection::Undecided);
                }
                return Ok(None);
            }
        };
        if self.was_entry_cut_off(file.index(), &entry, &found.items[range.clone()])? {
            found.counts.uncommitted += range.len() as u64;
            return Ok(None);
        }
        let retired = checked_value(entry.retired, file.id).unwrap_or(0);
        let sealed = checked_value(entry.sealed, file.id).unwrap_or(0);
        let mut sound: Vec<usize> = Vec::new();
        let mut relinks: Vec<usize> = Vec::new();
        for i in range.clone() {
            let item = found.items[i];
            if item.seq <= retired {
                found.counts.retired += 1;
                continue;
            }
            if item.kind == RecordKind::Relink {
                relinks.push(i);
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
        let without = self.without_bytes(&sound, &first.states, sealed, found)?;
        let mut without = without.into_iter().peekable();
        for (nth, i) in sound.iter().enumerate() {
            match without.next_if(|(missing, _)| *missing == nth) {
                None => complete.push(*i),
                Some((_, Rejection::DataMismatch)) if self.was_cut_off(&sound, nth, found) => {
                    found.reject(place(&found.items[*i]), Rejection::TornData);
                }
                Some((_, reason)) => found.reject(place(&found.items[*i]), reason),
            }
        }
        Ok(Some(SoundRecords {
            file,
            entry,
            retired,
            last_seq: found.items[range]
                .iter()
                .map(|item| item.seq)
                .max()
                .unwrap_or(0),
            sound: complete,
            relinks,
        }))
    }

    /// Decides about the sound records of a file.
    fn decide(
        &self,
        records: &SoundRecords,
        found: &mut Recovery,
        orphans: &BTreeSet<u32>,
    ) -> Result<()> {
        let verdict = self.verdict(&records.sound, records.retired, found);
        found.counts.unclosed += verdict.unclosed;
        found.counts.uncommitted += verdict.uncommitted;
        for (offset, missing) in verdict.chains_broken {
            found.reject(offset, Rejection::BrokenChain { missing });
        }
        let mut summary = RecoveredFile {
            file_id: records.file.id,
            name: None,
            name_error: None,
            records: 0,
            uncommitted: 0,
            first_seq: 0,
            last_seq: records.last_seq,
            orphaned: false,
        };
        let fates = verdict
            .states
            .into_iter()
            .zip(verdict.committed)
            .zip(verdict.end_seqs);
        for (i, ((state, committed), end_seq)) in records.sound.iter().copied().zip(fates) {
            let item = &mut found.items[i];
            item.state = state;
            item.committed = committed;
            item.end_seq = end_seq;
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
            match self.name_of(records.file.index(), &records.entry) {
                Ok(name) => summary.name = Some(name),
                Err(error) => summary.name_error = Some(error.to_string()),
            }
            found.files.push(summary);
            self.judge_relinks(&records.relinks, found)?;
        } else {
            // Commits alone have nothing to say any more.
            for i in &records.sound {
                if found.items[*i].state == State::Live {
                    found.items[*i].state = State::Retired;
                    found.counts.live -= 1;
                    found.counts.retired += 1;
                }
            }
        }
        Ok(())
    }

    /// Which of a file's relinks happened. They all count, until the records beside them are retired.
    fn judge_relinks(&self, relinks: &[usize], found: &mut Recovery) -> Result<()> {
        let first = found.gone.len();
        for &i in relinks {
            let item = found.items[i];
            let record = Record::decode(&self.read_line(item.place)?);
            let at = self
                .geometry()
                .record(item.place.chunk, item.place.position);
            let (start, len) = (record.pool_offset, record.len);
            if let Err(what) = self.sense_extent(start, u64::from(len))? {
                let what = what.to_owned();
                found.reject(at, Rejection::Nonsense { what });
                continue;
            }
            found.items[i].state = State::Live;
            found.counts.live += 1;
            if !self.data_matches(start, len, record.data_crc)? {
                found.gone.push(Gone {
                    file_id: item.file_id,
                    seq: item.seq,
                    file_offset: record.file_offset,
                    pool_offset: start,
                    len: u64::from(len),
                });
            }
        }
        found.gone[first..].sort_unstable_by_key(|gone| gone.pool_offset);
        Ok(())
    }

    /// Whether the power was cut before a file's name in the pool was durable: then no record of it says that it was.
    fn was_entry_cut_off(&self, index: u32, entry: &FileEntry, items: &[Item]) -> Result<bool> {
        if !self.medium().fence_is_slow() || entry.boot == self.boot_tag() {
            return Ok(false);
        }
        let retired = checked_value(entry.retired, entry.file_id).unwrap_or(0);
        let told = |item: &Item| item.flags & Record::CHAINED == 0;
        if retired > 0 || items.iter().any(told) {
            return Ok(false);
        }
        match self.name_of(index, entry) {
            Err(Error::Damaged { .. }) => Ok(true),
            named => named.map(|_| false),
        }
    }

    /// Whether the power may have been cut before the record at `nth` was durable.
    fn was_cut_off(&self, sound: &[usize], nth: usize, found: &Recovery) -> bool {
        let item = &found.items[sound[nth]];
        let rest = sound[nth + 1..].iter().map(|i| &found.items[*i]);
        let slow = self.medium().fence_is_slow();
        slow && item.boot != self.boot_tag() && may_be_cut_off(item, rest)
    }

    /// Which of the sound records that would count lack their staged bytes, by their place among them,
    /// and why.
    fn without_bytes(
        &self,
        sound: &[usize],
        states: &[State],
        sealed: u64,
        found: &Recovery,
    ) -> Result<Vec<(usize, Rejection)>> {
        let shares = shares(sound.iter().map(|i| u64::from(found.items[*i].count)));
        let missing = parallel::each(self.walkers(), shares.len(), |share| {
            let mut missing = Vec::new();
            for nth in shares[share].clone() {
                let item = &found.items[sound[nth]];
                if let Err(reason) = self.bytes_of(item, states[nth], sealed)? {
                    missing.push((nth, reason));
                }
            }
            Ok(missing)
        });
        let missing: Result<Vec<_>> = missing.into_iter().collect();
        Ok(missing?.into_iter().flatten().collect())
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
        let boot = self.boot_tag();
        let slow = self.medium().fence_is_slow();
        // For members and ends of complete groups: the group's end.
        let mut group_end: Vec<Option<usize>> = vec![None; items.len()];
        for (i, end) in items.iter().enumerate() {
            if !end.is_group_end() {
                continue;
            }
            match group_of(i, &items, &group_end) {
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
                        verdict.chains_broken.push((at, missing));
                    }
                }
            }
        }
        let stands = standing(&items, retired);
        let mut committed: Vec<bool> = items
            .iter()
            .zip(&stands)
            .map(|(item, stands)| item.flags & Record::COMMITTED != 0 && *stands)
            .collect();
        let mut walked = vec![false; items.len()];
        let commits = items.iter().enumerate();
        for (at, commit) in commits.filter(|(_, item)| item.is_commit() && !item.broken) {
            match covered(at, &items, retired, &walked) {
                // It is chained to a commit that is missing, or broken.
                Ok(_) if !stands[at] => {}
                Ok(covered) => {
                    for i in covered {
                        walked[i] = true;
                        committed[i] = true;
                    }
                }
                // In this boot a record that was written while we walked may be missing here only.
                Err(_) if commit.boot == boot => {}
                // After a crash of the system the last commit may be there without all that it covers.
                Err(_) if slow && may_be_cut_off(commit, items[at + 1..].iter()) => {}
                Err(missing) => {
                    let Place { chunk, position } = commit.place;
                    verdict
                        .chains_broken
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
            verdict.states.push(
                if (in_group && group_end[i].is_none()) || (item.broken && !committed[i]) {
                    verdict.unclosed += 1;
                    State::Dropped
                } else if item.boot != boot && !committed[i] && !item.is_commit() {
                    verdict.uncommitted += 1;
                    State::Dropped
                } else {
                    State::Live
                },
            );
            verdict.committed.push(committed[i]);
            let end = group_end[i].map_or(item, |end| &items[end]);
            verdict.end_seqs.push(end.seq);
        }
        verdict
    }
}

/// Divides records, given by how many bytes each has, among threads: runs of many short ones, or a few
/// long ones.
fn shares(lengths: impl Iterator<Item = u64>) -> Vec<std::ops::Range<usize>> {
    const ENOUGH: u64 = 1 << 20;
    /// What a record costs however short it is, as bytes.
    const EACH: u64 = 1 << 11;
    let mut shares = Vec::new();
    let (mut start, mut end, mut weight) = (0, 0, 0);
    for len in lengths {
        end += 1;
        weight += EACH + len;
        if weight >= ENOUGH {
            shares.push(start..end);
            (start, weight) = (end, 0);
        }
    }
    if start < end {
        shares.push(start..end);
    }
    shares
}

/// The place of the record `seq` among those before place `before`. They are in order, without
/// duplicates, and a chain mostly leads to the neighbour.
fn before(items: &[Item], before: usize, seq: u64) -> Option<usize> {
    let last = before.checked_sub(1)?;
    if items[last].seq == seq {
        return Some(last);
    }
    items[..last]
        .binary_search_by_key(&seq, |item| item.seq)
        .ok()
}

/// The members of the group that the record at `end` closes, or the sequence number of one that is
/// missing. A record is a member of one group only, so all groups together take one walk over the
/// records.
fn group_of(end: usize, items: &[Item], group_end: &[Option<usize>]) -> Result<Vec<usize>, u64> {
    let mut members = Vec::new();
    let closing = &items[end];
    let mut next = closing.prev;
    let mut at = end;
    for _ in 0..closing.count {
        at = before(items, at, next).ok_or(next)?;
        if !items[at].is_member() || items[at].boot != closing.boot || group_end[at].is_some() {
            return Err(next);
        }
        members.push(at);
        next = items[at].prev;
    }
    Ok(members)
}

/// Which of the records have all that they are chained to: down the chain everything is there, up to one
/// that was written when all before it was durable.
fn standing(items: &[Item], retired: u64) -> Vec<bool> {
    let mut stands = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let free = item.flags & Record::CHAINED == 0 || item.prev <= retired;
        let prev = |stands: &[bool]| before(items, at, item.prev).is_some_and(|prev| stands[prev]);
        stands.push(free || prev(&stands));
    }
    stands
}

/// Threads whose commits are under way at a time: a chain that is longer was durable at its beginning.
const AT_A_TIME: usize = 64;

/// Whether none of the records of the file behind this one says that it was durable. What commits says so of all before
/// it, unless it is chained to the record before; but a record's own commit became durable with it.
fn may_be_cut_off<'a>(item: &Item, rest: impl Iterator<Item = &'a Item>) -> bool {
    let by_itself =
        |item: &Item| item.flags & Record::COMMITTED != 0 || item.kind == RecordKind::Commit;
    let own = usize::from(!by_itself(item));
    let mut later = rest.filter(|later| by_itself(later)).skip(own);
    let mut seen = 0;
    later.all(|later| {
        seen += 1;
        seen <= AT_A_TIME && later.flags & Record::CHAINED != 0
    })
}

/// The records that the commit at `commit` covers: down the chain to the commit before it, or to where
/// another commit's walk came by. The chain falls with every step, so it ends.
fn covered(
    commit: usize,
    items: &[Item],
    retired: u64,
    walked: &[bool],
) -> Result<Vec<usize>, u64> {
    let mut members = Vec::new();
    let mut next = items[commit].prev;
    let mut at = commit;
    while next > retired {
        at = before(items, at, next).ok_or(next)?;
        let commits = items[at].is_commit() && !items[at].broken;
        if commits || items[at].boot != items[commit].boot || walked[at] {
            break;
        }
        members.push(at);
        next = items[at].prev;
    }
    Ok(members)
}

/// The commits of several files among a file's sound records, and whether all that each commits is there. What an earlier
/// one of them lacks is no matter to one that stands: it was written when that was durable, so it has been lost since.
fn chains(records: &SoundRecords, found: &Recovery) -> Vec<(usize, bool)> {
    let items: Vec<Item> = records.sound.iter().map(|i| found.items[*i]).collect();
    let stands = standing(&items, records.retired);
    let mut whole = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        // As `covered`, in one step from the record before.
        let prev = before(&items, at, item.prev);
        let is_whole = item.prev <= records.retired
            || prev.is_some_and(|prev| {
                items[prev].is_commit() || items[prev].boot != item.boot || whole[prev]
            });
        whole.push(is_whole);
    }
    let shared = (0..items.len()).filter(|at| items[*at].is_together());
    shared
        .map(|at| (records.sound[at], whole[at] && stands[at]))
        .collect()
}

/// The records of one file that are not retired and have their bytes, in order.
struct SoundRecords {
    file: FileRef,
    entry: FileEntry,
    retired: u64,
    /// The last sequence number seen, of whatever record.
    last_seq: u64,
    sound: Vec<usize>,
    /// What was to be relinked of them.
    relinks: Vec<usize>,
}

/// What became of the records of one file.
#[derive(Default)]
struct Verdict {
    states: Vec<State>,
    committed: Vec<bool>,
    end_seqs: Vec<u64>,
    unclosed: u64,
    uncommitted: u64,
    /// Commit records whose chain is broken: offset, and the missing sequence number.
    chains_broken: Vec<(u64, u64)>,
}

/// What a walk has seen of one chunk.
struct Walk {
    chunk: u32,
    /// Nobody alive writes it.
    orphaned: bool,
    seen: Recovery,
    /// Lines that are neither empty nor whole.
    bad: Vec<(Place, [u8; 64])>,
    last_whole: Option<u32>,
}

enum Line {
    Empty,
    Stale,
    Bad,
    Future,
    Whole(Record),
}
