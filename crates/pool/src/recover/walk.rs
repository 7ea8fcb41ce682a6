//! The walk over the logs: which lines are whole records, and what is wrong with the others.

use std::collections::BTreeSet;

use adit_pmem::{Medium, OutOfRange};

use super::{AT_A_TIME, Item, Recovery, Rejection, State};
use crate::error::{Error, Result, readable};
use crate::files::FileRef;
use crate::layout::{ChunkKind, ChunkWord, ORPHAN, PAGE, Record, RecordKind, Slot, at};
use crate::log::{Place, SEQ_MAX};
use crate::pool::Pool;

/// Bytes read at once.
const BLOCK: usize = 64 << 10;

impl<M: Medium> Pool<M> {
    /// Starts the write-back of some records of all logs, and of what they stage, whoever wrote them: a
    /// fence makes them durable.
    pub(crate) fn write_back(&self, wanted: impl Fn(&Record) -> bool) -> Result<()> {
        self.for_each_record(|place, record| {
            if wanted(record) {
                self.write_record_back(place, record)?;
            }
            Ok(())
        })
    }

    /// Shows every whole record of all logs.
    pub(crate) fn for_each_record(
        &self,
        mut shown: impl FnMut(Place, &Record) -> Result<()>,
    ) -> Result<()> {
        self.for_each_place(|place| match self.read_record(place)? {
            Some(record) => shown(place, &record),
            None => Ok(()),
        })
    }

    /// Shows every place of all logs.
    pub(crate) fn for_each_place(&self, mut shown: impl FnMut(Place) -> Result<()>) -> Result<()> {
        for chunk in self.chunks_to_walk()? {
            for position in 0..self.geometry().records_per_chunk() {
                shown(Place { chunk, position })?;
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
    pub(super) fn chunks_to_walk(&self) -> Result<Vec<u32>> {
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
    pub(super) fn walk(&self, chunk: u32, around_lost: bool) -> Result<Option<Walk>> {
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
            around_lost,
            seen: Recovery::nothing(),
            bad: Vec::new(),
            last_whole: None,
        };
        let geometry = *self.geometry();
        let mut block = vec![0; BLOCK.min(geometry.chunk_size() as usize)];
        let per_block = (block.len() / 64) as u32;
        walk.seen.counts.chunks = u64::from(word.is_some());
        for position in (0..geometry.records_per_chunk()).step_by(per_block as usize) {
            self.look_from(Place { chunk, position }, &mut block, word, &mut walk)?;
        }
        Ok(Some(walk))
    }

    /// Reads a block of lines and looks at each, page by page where the medium cannot read all of it.
    fn look_from(
        &self,
        first: Place,
        block: &mut [u8],
        word: Option<ChunkWord>,
        walk: &mut Walk,
    ) -> Result<()> {
        let place = |line: usize| Place {
            chunk: first.chunk,
            position: first.position + line as u32,
        };
        let at = self.geometry().record(first.chunk, first.position);
        if readable(self.medium().read(at, block))?.is_ok() {
            for (i, line) in block.as_chunks().0.iter().enumerate() {
                self.look_at(place(i), line, word, walk);
            }
        } else if block.len() > PAGE as usize {
            for (i, page) in block.chunks_mut(PAGE as usize).enumerate() {
                self.look_from(place(i * PAGE as usize / 64), page, word, walk)?;
            }
        } else {
            if !walk.around_lost {
                return Err(Error::LostLog { offset: at });
            }
            walk.seen.reject(at, Rejection::Lost);
        }
        Ok(())
    }

    fn look_at(&self, place: Place, bytes: &[u8; 64], word: Option<ChunkWord>, walk: &mut Walk) {
        let seen = &mut walk.seen;
        seen.counts.lines += 1;
        match self.classify(place, bytes, word) {
            Line::Empty => seen.counts.empty += 1,
            Line::Erased => {
                // The log went on to here once: what is damaged before it was no last line.
                walk.last_whole = Some(place.position);
                seen.counts.erased += 1;
                seen.erased.push(place);
            }
            Line::Stale => seen.counts.stale += 1,
            // In a chunk whose word is damaged, lines that are no records are just data.
            Line::Bad if word.is_some() => walk.bad.push(place),
            Line::Bad => {}
            Line::Future => seen.reject(
                self.geometry().record(place.chunk, place.position),
                Rejection::Future,
            ),
            Line::Whole(record, flipped) => {
                walk.last_whole = Some(place.position);
                if let Some(bit) = flipped {
                    let offset = self.geometry().record(place.chunk, place.position);
                    seen.note_mended(offset, bit);
                }
                self.remember(place, &record, seen);
            }
        }
    }

    /// Adds what was seen of a chunk. Chunks come in their order, whoever has walked them.
    pub(super) fn take(&self, walk: Walk, found: &mut Recovery, orphans: &mut BTreeSet<u32>) {
        if walk.orphaned {
            orphans.insert(walk.chunk);
        }
        found.add(walk.seen);
        for place in walk.bad {
            let behind = walk
                .last_whole
                .and_then(|last| last.checked_sub(place.position));
            let reason = match behind {
                None => Rejection::Torn,
                Some(behind) => {
                    if behind as usize >= AT_A_TIME {
                        found.lost.push(place);
                    }
                    Rejection::Unreadable
                }
            };
            found.reject(self.geometry().record(place.chunk, place.position), reason);
        }
    }

    fn classify(&self, place: Place, bytes: &[u8; 64], word: Option<ChunkWord>) -> Line {
        if bytes == &[0; 64] {
            return Line::Empty;
        }
        if Record::decode(bytes).is_erased(self.uuid(), place.chunk, place.position) {
            return Line::Erased;
        }
        let Some((record, flipped)) = self.whole_record(place, bytes, word) else {
            return Line::Bad;
        };
        match word.map(|word| record.generation.cmp(&word.generation)) {
            Some(std::cmp::Ordering::Less) => Line::Stale,
            Some(std::cmp::Ordering::Greater) => Line::Future,
            _ => Line::Whole(record, flipped),
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
            linked: false,
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
            | Record::TOGETHER
            | Record::PAGED;
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

    pub(crate) fn sense_extent(&self, offset: u64, len: u64) -> Result<Result<(), Rejection>> {
        let impossible = |what: &str| {
            let what = what.to_owned();
            Ok(Err(Rejection::Nonsense { what }))
        };
        let geometry = self.geometry();
        let inside = offset & (geometry.chunk_size() - 1);
        if len == 0 || len > geometry.chunk_size() - inside || !offset.is_multiple_of(64) {
            return impossible("no such extent");
        }
        let chunk = offset >> geometry.chunk_shift;
        if chunk < u64::from(geometry.header_chunks()) || chunk >= u64::from(self.chunk_count()?) {
            return impossible("extent outside the data chunks");
        }
        match self.chunk_word(chunk as u32)? {
            // A damaged word says nothing against the data.
            None => Ok(Ok(())),
            Some(word) if word.kind == ChunkKind::Data => Ok(Ok(())),
            Some(_) => Ok(Err(Rejection::DataGone)),
        }
    }

    /// The CRC of staged bytes, or which of them the medium cannot read.
    pub(crate) fn crc_of_data(&self, offset: u64, len: u32) -> Result<Result<u32, OutOfRange>> {
        let mut block = vec![0; BLOCK.min(len as usize)];
        let mut seen = 0;
        let mut at = 0;
        while at < u64::from(len) {
            let part = (u64::from(len) - at).min(block.len() as u64) as usize;
            if let Err(lost) = readable(self.medium().read(offset + at, &mut block[..part]))? {
                return Ok(Err(lost));
            }
            seen = crc32c::crc32c_append(seen, &block[..part]);
            at += part as u64;
        }
        Ok(Ok(seen))
    }
}

/// What a walk has seen of one chunk.
pub(super) struct Walk {
    chunk: u32,
    /// Nobody alive writes it.
    orphaned: bool,
    /// It goes on without pages that the medium cannot read.
    around_lost: bool,
    seen: Recovery,
    /// Lines that are neither empty nor whole.
    bad: Vec<Place>,
    last_whole: Option<u32>,
}

enum Line {
    Empty,
    Erased,
    Stale,
    Bad,
    Future,
    /// And the bit that has to be flipped for it.
    Whole(Record, Option<u32>),
}
