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
//! with such commits are decided at the end.
//!
//! [`walk`] reads the logs, [`judge`] says which records count, [`rebuild`] makes a pool of the result.

mod judge;
mod rebuild;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use adit_pmem::Medium;

use crate::error::{Error, Result};
use crate::files::{FileName, FileRef};
use crate::layout::{Record, RecordKind};
use crate::log::Place;
use crate::parallel;
use crate::pool::Pool;
use crate::relink::{Gone, left_of};

pub use rebuild::{Rebuilt, Released};

/// Rejected records listed one by one; more are only counted.
const LISTED: usize = 1000;

/// Threads whose commits are under way at a time: a chain that is longer was durable at its beginning, and a line so far
/// before the end of its log was whole once.
const AT_A_TIME: usize = 64;

/// Why a log line was not believed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The last line of a log, cut off while it was written.
    Torn,
    /// The staged bytes are not those of the record, and nothing says that they were ever durable: a
    /// power cut came before anybody was told of them.
    TornData,
    /// One bit is wrong, and which one is known: the record counts as it was.
    BitFlip {
        /// Number of the bit in the line.
        bit: u32,
    },
    /// More than one bit is wrong.
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
    /// The chunk of its staged bytes holds no data, though they were durable once, or no power was cut.
    DataGone,
    /// A commit record whose chain is broken: a record that it covers is missing.
    BrokenChain {
        /// Sequence number of the missing record.
        missing: u64,
    },
    /// The file's entry is damaged: whether the record was retired is not known.
    Undecided,
    /// The medium cannot read the page of lines that begins there; or the staged bytes of this record, whose file waits.
    Lost,
}

/// A log line that was not believed, or not as it is, and where.
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
    /// Records erased: parts of commits of several files that were not whole.
    pub erased: u64,
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
    /// Records with one flipped bit, believed as they were before.
    pub mended: u64,
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
    /// Whether a record that counts, or the next one, is chained to it: it stays in the log, count or not.
    linked: bool,
    /// Sequence number of the end of its group, or its own.
    end_seq: u64,
}

impl Item {
    /// Whether the log has to keep it.
    fn is_kept(&self) -> bool {
        self.state == State::Live || self.linked
    }

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
    /// Lines that were not believed, or not as they are, the first thousand.
    pub rejected: Vec<Rejected>,
    /// Sorted by file and sequence number; at most 3/4 of the logs' size.
    items: Vec<Item>,
    /// What relinks that were not finished have handed to files: sorted by file, then by place in the pool.
    gone: Vec<Gone>,
    /// Damaged lines that no crash explains: they lie too far before the end of their log to have been written just then.
    lost: Vec<Place>,
    /// Where records are erased, durably or not.
    erased: Vec<Place>,
    /// Files with staged bytes that the medium cannot read, and where a record of these is.
    unreadable: BTreeMap<u64, u64>,
}

impl Recovery {
    fn nothing() -> Self {
        Self {
            files: Vec::new(),
            counts: Counts::default(),
            rejected: Vec::new(),
            items: Vec::new(),
            gone: Vec::new(),
            lost: Vec::new(),
            erased: Vec::new(),
            unreadable: BTreeMap::new(),
        }
    }

    /// Adds what was seen after it.
    fn add(&mut self, mut seen: Self) {
        let Counts {
            chunks,
            lines,
            empty,
            erased,
            stale,
            retired,
            uncommitted,
            unclosed,
            live,
            mended,
            rejected,
        } = seen.counts;
        self.counts.chunks += chunks;
        self.counts.lines += lines;
        self.counts.empty += empty;
        self.counts.erased += erased;
        self.counts.stale += stale;
        self.counts.retired += retired;
        self.counts.uncommitted += uncommitted;
        self.counts.unclosed += unclosed;
        self.counts.live += live;
        self.counts.mended += mended;
        self.counts.rejected += rejected;
        let room = LISTED - self.rejected.len().min(LISTED);
        seen.rejected.truncate(room);
        self.rejected.append(&mut seen.rejected);
        self.items.append(&mut seen.items);
        self.erased.append(&mut seen.erased);
    }

    fn note_mended(&mut self, offset: u64, bit: u32) {
        self.counts.mended += 1;
        self.list(offset, Rejection::BitFlip { bit });
    }

    fn reject(&mut self, offset: u64, reason: Rejection) {
        self.counts.rejected += 1;
        self.list(offset, reason);
    }

    fn list(&mut self, offset: u64, reason: Rejection) {
        if self.rejected.len() < LISTED {
            self.rejected.push(Rejected { offset, reason });
        }
    }

    /// Whether nothing waits to be replayed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether no number is missing among the records found of a file, behind `seq`. Where one is, its record was never
    /// written, or was written beside the walk: of two who write the file in turns, one may do so where the walk has been, and
    /// the next one where it has yet to come. Only another walk, with the file locked, tells.
    #[must_use]
    pub fn has_all_behind(&self, file: FileRef, seq: u64) -> bool {
        let behind = |item: &&Item| item.seq > seq && item.kind != RecordKind::Relink;
        let mut numbers = self.items_of(file.id).iter().filter(behind);
        let follows = |last: u64, item: &Item| (item.seq <= last + 1).then_some(item.seq);
        numbers.try_fold(seq, follows).is_some()
    }

    fn items_of(&self, file_id: u64) -> &[Item] {
        &self.items[self.range_of(file_id)]
    }

    fn range_of(&self, file_id: u64) -> std::ops::Range<usize> {
        let start = self.items.partition_point(|item| item.file_id < file_id);
        let end = self.items.partition_point(|item| item.file_id <= file_id);
        start..end
    }

    /// Links what those of these records that count are chained to.
    fn link_what_counts(&mut self, records: &[usize], retired: u64) {
        for i in records {
            let item = self.items[*i];
            if item.state == State::Live && item.flags & Record::CHAINED != 0 {
                self.link(item.file_id, item.prev, retired);
            }
        }
    }

    /// Says that a record is chained to that with number `seq`, which is chained to others in turn: who looks for one of
    /// them must find it, although it may not count itself. Up to `retired` nobody looks.
    fn link(&mut self, file_id: u64, mut seq: u64, retired: u64) {
        let range = self.range_of(file_id);
        let items = &mut self.items[range];
        while seq > retired {
            let at = items.partition_point(|item| item.seq < seq);
            let same = items[at..].iter_mut().take_while(|item| item.seq == seq);
            let mut sought = same.filter(|item| item.kind != RecordKind::Relink);
            let Some(item) = sought.next().filter(|item| !item.linked) else {
                return;
            };
            item.linked = true;
            if item.flags & Record::CHAINED == 0 {
                return;
            }
            seq = item.prev.min(seq - 1);
        }
    }

    /// Places of all records that count, and whether a crash of the system leaves them.
    pub(crate) fn live_places(&self) -> Vec<(Place, bool)> {
        self.live()
            .map(|item| (item.place, item.committed))
            .collect()
    }

    /// The records of a file that count, in order. Each is read, and validated, again. Of a file with staged bytes that were
    /// found to be unreadable an error is the first.
    pub fn records<'a, M: Medium>(
        &'a self,
        pool: &'a Pool<M>,
        file: FileRef,
    ) -> impl Iterator<Item = Result<Replay>> + 'a {
        let lost = |at: &u64| Err(Error::LostData { offset: *at });
        let unreadable = self.unreadable.get(&file.id).map(lost);
        let items = self.items_of(file.id).iter();
        let parts = items
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
            });
        unreadable.into_iter().chain(parts)
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
        self.scan_as(false)
    }

    /// The same without what the medium cannot read of the logs, for who only reports.
    pub(crate) fn scan_around_lost(&self) -> Result<Recovery> {
        self.scan_as(true)
    }

    fn scan_as(&self, around_lost: bool) -> Result<Recovery> {
        let mut found = Recovery::nothing();
        let mut orphans = BTreeSet::new();
        let walkers = self.walkers();
        let chunks = self.chunks_to_walk()?;
        // Some at a time: what a walk has seen of a chunk is held beside what is kept of it.
        for chunks in chunks.chunks(walkers * 4) {
            let walks = parallel::each(walkers, chunks.len(), |nth| {
                self.walk(chunks[nth], around_lost)
            });
            for walk in walks {
                if let Some(walk) = walk? {
                    self.take(walk, &mut found, &mut orphans);
                }
            }
        }
        found
            .items
            .sort_unstable_by_key(|item| (item.file_id, item.seq, item.place.packed()));
        self.judge(&mut found, &orphans)?;
        Ok(found)
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
