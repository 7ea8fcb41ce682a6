//! Appending to the log, under the lock of the file.
//!
//! Each attachment writes its own log: a chain of chunks, one 64-byte record per operation, placed by
//! one atomic addition on a counter in ordinary memory. What orders the records of a file, whichever
//! logs they lie in, is their sequence number, taken under the file's lock and held until the record
//! is written.
//!
//! What each append goes through is one routine, by `inline(always)`: two dozen calls would take as long as what they do.
//! What seldom happens is apart from it, and `cold`.
//!
//! What a dead owner of the lock may leave, and the next owner repairs: a sequence number without a
//! record (a gap, harmless but for a ring of commits, see `together.rs`), or a record that the end of the
//! file does not show yet (`pending` says where to look).

use std::sync::atomic::Ordering;

use adit_pmem::Medium;

use crate::alloc::{Extent, Purpose, Role};
use crate::error::{Error, Result};
use crate::files::{END_UNKNOWN, FileRef};
use crate::layout::{
    ChunkKind, ChunkWord, Record, RecordKind, at, checked_value, checked_word, crc_of_words,
};
use crate::lock::{Acquired, FileLock, LONG, Locked, LockedFile, PATIENCE};
use crate::pool::{Attachment, Pool};
use crate::recover::Rejection;

mod reclaim;

/// Log chunks an attachment may hold, unless told otherwise.
const LOG_LIMIT: u32 = 16;

/// Records that all logs of a pool together have room for, unless told otherwise: a recovery has to
/// walk them all.
const LOGGED_TOGETHER: u64 = 2 << 20;

/// Log chunks that every attachment may have, whatever the others hold: one to fill, and one to empty.
const LOG_SHARE: u32 = 2;

/// What the lock of a file is called.
const FILE: &str = "file lock";

/// Largest sequence number.
pub(crate) const SEQ_MAX: u64 = (1 << 48) - 1;

/// Bits of a file's publishing word that name the publisher's slot, plus one.
pub const PUBLISHER: u64 = 0xffff;

/// Bit of a file's publishing word: several programs may read and write what is staged of it.
pub const SHARED: u64 = 1 << 39;

/// One operation on a file, to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The extent's first `len` bytes become the file's bytes at `file_offset`.
    Write {
        /// Where in the file.
        file_offset: u64,
        /// Where the bytes are staged; allocated by this attachment.
        extent: Extent,
        /// How many bytes.
        len: u32,
        /// Their CRC32C, which lets data and record share a fence.
        data_crc: Option<u32>,
    },
    /// The file gets a new size.
    Truncate {
        /// The new size.
        size: u64,
    },
    /// A range becomes zeros.
    Zero {
        /// Where in the file.
        file_offset: u64,
        /// How many bytes.
        len: u32,
    },
}

impl Op {
    fn extent(&self) -> Option<(Extent, u32)> {
        match *self {
            Self::Write { extent, len, .. } => Some((extent, len)),
            _ => None,
        }
    }

    fn has_data_crc(&self) -> bool {
        matches!(
            self,
            Self::Write {
                data_crc: Some(_),
                ..
            }
        ) || self.extent().is_none()
    }

    fn check(&self) -> Result<()> {
        let (start, len) = match *self {
            Self::Write {
                file_offset, len, ..
            }
            | Self::Zero { file_offset, len } => (file_offset, u64::from(len)),
            Self::Truncate { size } => (size, 1),
        };
        if len == 0 {
            return Err(Error::Invalid("an operation on no bytes"));
        }
        if start
            .checked_add(len)
            .is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Error::Invalid("beyond the largest file"));
        }
        if let Some((extent, len)) = self.extent()
            && len > extent.len
        {
            return Err(Error::Invalid("more bytes than the extent has"));
        }
        Ok(())
    }

    fn record(&self) -> Record {
        let mut record = EMPTY;
        match *self {
            Self::Write {
                file_offset,
                extent,
                len,
                data_crc,
            } => {
                record.kind = RecordKind::Write as u8;
                record.file_offset = file_offset;
                record.pool_offset = extent.offset;
                record.len = len;
                if let Some(crc) = data_crc {
                    record.data_crc = crc;
                    record.flags |= Record::DATA_CRC;
                }
            }
            Self::Truncate { size } => {
                record.kind = RecordKind::Truncate as u8;
                record.file_offset = size;
            }
            Self::Zero { file_offset, len } => {
                record.kind = RecordKind::Zero as u8;
                record.file_offset = file_offset;
                record.len = len;
            }
        }
        record
    }
}

pub(crate) const EMPTY: Record = Record {
    crc: 0,
    kind: 0,
    flags: 0,
    reserved: 0,
    file_id: 0,
    seq: 0,
    file_offset: 0,
    pool_offset: 0,
    len: 0,
    data_crc: 0,
    boot: 0,
    generation: 0,
    prev: 0,
};

/// When an operation counts after a crash of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once (sync, strict).
    Now,
    /// With the next commit record (atomic; posix, where publishing comes first).
    WithCommit,
}

/// What a record names of the pool.
fn extent_of(record: &Record) -> Extent {
    Extent {
        offset: record.pool_offset,
        len: record.len,
    }
}

/// Where the end of a file is after a record, given where it was before.
pub(crate) fn end_after(end: u64, record: &Record) -> u64 {
    match RecordKind::from_byte(record.kind) {
        Some(RecordKind::Write) => {
            end.max(record.file_offset.saturating_add(u64::from(record.len)))
        }
        Some(RecordKind::Truncate) => record.file_offset,
        Some(RecordKind::Commit)
            if record.flags & Record::GROUP != 0 && record.file_offset != END_UNKNOWN =>
        {
            record.file_offset
        }
        _ => end,
    }
}

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) chunk: u32,
    pub(crate) position: u32,
}

impl Place {
    /// What a file's `pending` says.
    pub(crate) fn of_pending(word: u64) -> Option<Self> {
        word.checked_sub(1).map(|packed| Self {
            chunk: (packed >> 32) as u32,
            position: packed as u32,
        })
    }

    /// As one number.
    pub(crate) fn packed(self) -> u64 {
        u64::from(self.chunk) << 32 | u64::from(self.position)
    }
}

impl<M: Medium> Pool<M> {
    pub(crate) fn read_line(&self, place: Place) -> Result<[u8; 64]> {
        let mut line = [0; 64];
        self.medium().read(
            self.geometry().record(place.chunk, place.position),
            &mut line,
        )?;
        Ok(line)
    }

    /// The record at a place, if one of the chunk's present generation is whole there.
    pub(crate) fn read_record(&self, place: Place) -> Result<Option<Record>> {
        if !self.has_place(place)? {
            return Ok(None);
        }
        let word = self.chunk_word(place.chunk)?;
        let whole = self.whole_record(place, &self.read_line(place)?, word);
        Ok(whole.map(|(record, _)| record).filter(|record| {
            word.is_none_or(|word| {
                word.kind == ChunkKind::Log && word.generation == record.generation
            })
        }))
    }

    /// Whether the pool has such a place: a word that says where a record is may say anything.
    fn has_place(&self, place: Place) -> Result<bool> {
        let geometry = self.geometry();
        Ok(
            (geometry.header_chunks()..self.chunk_count()?).contains(&place.chunk)
                && place.position < geometry.records_per_chunk(),
        )
    }

    /// The record of a line, if one is whole there, of whatever generation, or but for one bit, and which bit that is. Not
    /// where the chunk's word is damaged: there any line may be data, and of so many some look like it.
    pub(crate) fn whole_record(
        &self,
        place: Place,
        line: &[u8; 64],
        word: Option<ChunkWord>,
    ) -> Option<(Record, Option<u32>)> {
        let whole = Record::decode(line).mended(self.uuid(), place.chunk, place.position);
        whole.filter(|(_, flipped)| flipped.is_none() || word.is_some())
    }

    /// Whether the record that was at a place is erased.
    pub(crate) fn is_erased(&self, place: Place) -> Result<bool> {
        if !self.has_place(place)? {
            return Ok(false);
        }
        let record = Record::decode(&self.read_line(place)?);
        Ok(record.is_erased(self.uuid(), place.chunk, place.position))
    }

    /// The record at a place where one was found whole, or but for one bit.
    pub(crate) fn found_record(&self, place: Place) -> Result<Record> {
        let record = Record::decode(&self.read_line(place)?);
        let mended = record.mended(self.uuid(), place.chunk, place.position);
        Ok(mended.map_or(record, |(record, _)| record))
    }

    /// Makes durable what the caller has seen of a file's marks, or that it was forgotten. Most often that is so already.
    pub(crate) fn make_seen_durable(&self, file: FileRef) -> Result<()> {
        if self.is_seen_durable(file)? {
            return Ok(());
        }
        self.make_mark_durable(file)
    }

    /// Whether what the caller has seen of a file's marks, or that it was forgotten, is known to be durable: whoever
    /// changes a mark or empties an entry has the file's lock until it is durable, and the lock stays taken where he dies
    /// or fails over it. So what was seen before the lock was seen to be free needs no fence; nor does anything of a file
    /// whose entry is another's, as none is used again before its being empty is durable.
    pub(crate) fn is_seen_durable(&self, file: FileRef) -> Result<bool> {
        if file.index() >= self.geometry().file_count {
            return Ok(true);
        }
        let entry = self.geometry().file_entry(file.index());
        Ok(self.load(entry + at!(FileEntry.file_id))? != file.id
            || self.load(entry + at!(FileEntry.lock))? == 0)
    }

    /// Writes a file's entry and marks back, whoever changed them, and fences.
    pub(crate) fn make_mark_durable(&self, file: FileRef) -> Result<()> {
        if file.index() >= self.geometry().file_count {
            return Ok(());
        }
        let entry = self.geometry().file_entry(file.index());
        // Not the words beside the marks: they are volatile, and change all the time.
        self.medium().flush(entry, at!(FileEntry.modified))?;
        let marks = at!(FileEntry.lock) - at!(FileEntry.retired);
        self.make_durable(entry + at!(FileEntry.retired), marks)
    }

    /// Makes a record and what it stages durable, whoever wrote it.
    pub(crate) fn make_record_durable(&self, place: Place, record: &Record) -> Result<()> {
        self.write_record_back(place, record)?;
        self.fence()
    }

    /// [`Pool::make_record_durable`], up to the fence. A record that is kept although its extent is nonsense, as others are
    /// chained to it, has no bytes to write back.
    pub(crate) fn write_record_back(&self, place: Place, record: &Record) -> Result<()> {
        let (start, len) = (record.pool_offset, u64::from(record.len));
        let has_extent = RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent);
        let is_nonsense = || {
            let sense = self.sense_extent(start, len)?;
            Ok::<_, Error>(matches!(sense, Err(Rejection::Nonsense { .. })))
        };
        if has_extent && !is_nonsense()? {
            self.medium().flush(start, len)?;
        }
        let offset = self.geometry().record(place.chunk, place.position);
        Ok(self.medium().flush(offset, 64)?)
    }

    /// Makes durable what anybody has logged before: [`FileGuard::log`] leaves that open where it takes a
    /// kernel sync, and nowhere else.
    pub fn settle(&self) -> Result<()> {
        if self.medium().fence_is_slow() {
            self.fence()?;
        }
        Ok(())
    }

    /// The mark up to which a file's records are in its base file; everything, once it was forgotten.
    /// It is durable when this returns, also when the publisher who raised it died over it: the caller
    /// may overwrite the base file then.
    pub fn retired(&self, file: FileRef) -> Result<u64> {
        // In this order: of a mark that is stored in between nothing is known.
        let seen = self.seen_retired(file)?;
        self.make_seen_durable(file)?;
        Ok(seen)
    }

    /// Whether some of what is staged of a file may have been relinked by somebody who did not come to retire it: only a
    /// walk can tell what is left.
    pub fn may_be_relinked(&self, file: FileRef) -> Result<bool> {
        let entry = self.live_entry(file)?;
        let mark = |word| checked_value(word, file.id).unwrap_or(u64::MAX);
        Ok(mark(entry.sealed) > mark(entry.retired))
    }

    /// [`Pool::retired`] as it is seen, durable or not: enough for those who only stop looking at the
    /// records, and let the bytes of the base file and of the records be.
    pub fn seen_retired(&self, file: FileRef) -> Result<u64> {
        match self.live_entry(file) {
            Ok(entry) => checked_value(entry.retired, file.id)
                .ok_or_else(|| Error::damaged("file entry", 0, "retired mark")),
            Err(Error::Forgotten) => Ok(u64::MAX),
            Err(error) => Err(error),
        }
    }
}

impl<M: Medium> Attachment<M> {
    /// Limits the log chunks this attachment may hold.
    pub fn limit_log(&self, chunks: u32) {
        self.state.log_limit.store(chunks.max(1), Ordering::Relaxed);
    }

    fn log_limit(&self) -> u32 {
        match self.state.log_limit.load(Ordering::Relaxed) {
            0 => LOG_LIMIT,
            limit => limit,
        }
    }

    /// Limits the log chunks of all attachments together, for this one: beyond, it takes no more than its
    /// share of two.
    pub fn limit_logs_together(&self, chunks: u32) {
        let limit = &self.state.logs_together;
        limit.store(chunks.max(1), Ordering::Relaxed);
    }

    fn may_grow_log(&self, for_commit: bool) -> Result<bool> {
        let held = self.log_chunks();
        if held >= self.log_limit() {
            return Ok(false);
        }
        // A commit makes room, by what it lets be published.
        if held < LOG_SHARE || for_commit {
            return Ok(true);
        }
        let limit = match self.state.logs_together.load(Ordering::Relaxed) {
            0 => LOGGED_TOGETHER / u64::from(self.pool.geometry().records_per_chunk()),
            limit => u64::from(limit),
        };
        Ok(u64::from(self.pool.log_chunks()?) < limit)
    }

    /// Log chunks held.
    #[must_use]
    pub fn log_chunks(&self) -> u32 {
        self.leased().filter(|(_, map)| map.is(Role::Log)).count() as u32
    }

    /// Positions of the log that may hold a record [`Attachment::reclaim`] has not settled yet.
    #[must_use]
    pub fn waiting_records(&self) -> u64 {
        let capacity = self.pool.geometry().records_per_chunk();
        let tail = self.state.log.load(Ordering::Acquire);
        let logs = self.leased().filter(|(_, map)| map.is(Role::Log));
        let waiting = logs.map(|(chunk, map)| {
            let is_current = chunk == (tail >> 32) as u32;
            let taken = if is_current { tail as u32 } else { capacity };
            u64::from(taken.saturating_sub(map.settled.load(Ordering::Acquire)))
        });
        waiting.sum()
    }

    /// Takes the next position of the log. The last positions of each chunk are kept for commit records:
    /// when no chunk is left, for whatever reason, all that is logged can still be committed, and so
    /// published, and so make room.
    #[inline]
    pub(crate) fn take_place(&self, for_commit: bool) -> Result<Place> {
        let capacity = self.pool.geometry().records_per_chunk();
        let end = if for_commit {
            capacity
        } else {
            capacity - (capacity / 64).max(1)
        };
        for _ in 0..1024 {
            let seen = self.state.log.load(Ordering::Acquire);
            let (chunk, position) = ((seen >> 32) as u32, seen as u32);
            if chunk == 0 || position >= end {
                self.next_log_chunk(seen, for_commit)?;
                continue;
            }
            let swap = self.state.log.compare_exchange(
                seen,
                seen + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if swap.is_ok() {
                return Ok(Place { chunk, position });
            }
        }
        Err(Error::Busy {
            lock: "log tail",
            slot: self.owner.slot,
            thread: 0,
        })
    }

    #[cold]
    #[inline(never)]
    fn next_log_chunk(&self, seen: u64, for_commit: bool) -> Result<()> {
        if !self.may_grow_log(for_commit)? {
            return Err(Error::LogFull {
                chunks: self.log_chunks(),
            });
        }
        let purpose = if for_commit {
            Purpose::Commit
        } else {
            Purpose::Log
        };
        let chunk = self.lease_as(purpose)?;
        let new = u64::from(chunk) << 32;
        let swap = self
            .state
            .log
            .compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire);
        if swap.is_ok() {
            self.settle_rest(seen);
        } else if let Some(map) = self.map(chunk) {
            // Another thread was first; nothing was ever written to ours.
            self.give_back(chunk, map)?;
        }
        Ok(())
    }

    /// Positions of a former current chunk that nobody will ever take.
    fn settle_rest(&self, tail: u64) {
        let (chunk, position) = ((tail >> 32) as u32, tail as u32);
        if chunk != 0
            && let Some(map) = self.map(chunk)
        {
            let rest = self.pool.geometry().records_per_chunk() - position;
            map.settled.fetch_add(rest, Ordering::AcqRel);
        }
    }

    /// Writes a record to its place: one line, streamed.
    #[inline(always)]
    pub(crate) fn write_record(&self, place: Place, record: &mut Record) -> Result<()> {
        let geometry = self.pool.geometry();
        let word = self.pool.load(geometry.chunk_word(place.chunk))?;
        let map = self
            .map(place.chunk)
            .filter(|map| map.is(Role::Log) && map.has_word(word));
        let Some(map) = map else {
            let offset = geometry.chunk_word(place.chunk);
            return Err(Error::damaged(
                "chunk word",
                offset,
                "not the log of this attachment",
            ));
        };
        record.crc = 0;
        record.generation = map.generation();
        record.boot = self.pool.boot_tag();
        if self.pool.medium().fence_is_slow() {
            record.flags |= Record::PAGED;
        }
        let mut words = record.words();
        words[0] |= u64::from(crc_of_words(
            &words,
            self.pool.uuid(),
            place.chunk,
            place.position,
        ));
        let mut line = [0; Record::SIZE];
        for (bytes, word) in line.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        // Set before the record exists: a record that is there is never forgotten.
        if let Some(word) = map.waiting().get((place.position / 64) as usize) {
            word.fetch_or(1 << (place.position % 64), Ordering::AcqRel);
        }
        let has_extent = RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent);
        if has_extent {
            self.name_extent(extent_of(record), place);
        }
        let offset = self.pool.geometry().record(place.chunk, place.position);
        if has_extent && self.has_unwritten() {
            return self.write_with_bytes(record, offset, &line);
        }
        Ok(self.pool.medium().write_line(offset, &line)?)
    }

    /// The line of a record, and the bytes of its extent with it if these wait for it.
    #[cold]
    #[inline(never)]
    fn write_with_bytes(&self, record: &Record, offset: u64, line: &[u8; 64]) -> Result<()> {
        let medium = self.pool.medium();
        let Some(bytes) = self.take_unwritten(record.pool_offset) else {
            return Ok(medium.write_line(offset, line)?);
        };
        let written = medium.write_both((record.pool_offset, &bytes), (offset, line));
        if written.is_err() {
            // Whoever tries again writes another record, of the same bytes.
            self.put_unwritten(record.pool_offset, bytes);
        }
        Ok(written?)
    }

    /// Gives up a place whose record does not count. `true` when it was still waiting.
    pub(crate) fn settle(&self, place: Place) -> bool {
        let Some(map) = self.map(place.chunk) else {
            return false;
        };
        let bit = 1 << (place.position % 64);
        let Some(word) = map.waiting().get((place.position / 64) as usize) else {
            return false;
        };
        let waiting = word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        if waiting {
            map.settled.fetch_add(1, Ordering::AcqRel);
        }
        waiting
    }

    /// Locks a file: sequence numbers, end and log of the file are the caller's until it is dropped.
    #[inline(always)]
    pub fn lock_file(&self, file: FileRef) -> Result<FileGuard<'_, M>> {
        let lock = self.lock_of(file)?;
        let acquired = self.wait_for_file(file, &lock)?;
        self.locked(file, lock, acquired)
    }

    /// Locks a file unless somebody who lives has it locked; for who has others locked, and must not make
    /// those who want them wait for this one.
    pub fn try_lock_file(&self, file: FileRef) -> Result<Option<FileGuard<'_, M>>> {
        let lock = self.lock_of(file)?;
        let at_once = core::time::Duration::ZERO;
        match self.pool.take_lock(FILE, &lock, self.owner, at_once) {
            Err(Error::Busy { .. }) => Ok(None),
            acquired => self.locked(file, lock, acquired?).map(Some),
        }
    }

    #[inline(always)]
    fn lock_of(&self, file: FileRef) -> Result<FileLock<'_>> {
        self.ensure_current()?;
        let geometry = self.pool.geometry();
        if file.index() >= geometry.file_count {
            return Err(Error::Forgotten);
        }
        FileLock::of_entry(&self.pool, geometry.file_entry(file.index()))
    }

    #[inline(always)]
    fn locked<'a>(
        &'a self,
        file: FileRef,
        lock: FileLock<'a>,
        acquired: Acquired,
    ) -> Result<FileGuard<'a, M>> {
        let attachment = self;
        let lock = Locked {
            attachment,
            word: lock,
        };
        let guard = FileGuard { file, lock };
        // It may have been forgotten, and its entry reused, before or while we waited.
        match acquired {
            // Who forgets a file has its lock until that is durable.
            Acquired::Clean => guard.ensure_live()?,
            Acquired::OwnerDied => guard.inherit()?,
        }
        Ok(guard)
    }

    /// Takes the lock of a file. Who holds it while he publishes the file may take as long as the base
    /// file system does, and who looks through the logs as long as they are: he is waited for while he lives.
    #[inline(always)]
    fn wait_for_file(&self, file: FileRef, lock: &FileLock<'_>) -> Result<Acquired> {
        loop {
            match self.pool.take_lock(FILE, lock, self.owner, PATIENCE) {
                Ok(acquired) => return Ok(acquired),
                Err(busy) => self.ensure_worth_waiting(file, busy)?,
            }
        }
    }

    /// Fails, with what was found, unless it is that who holds the lock has said that it takes long.
    #[cold]
    #[inline(never)]
    fn ensure_worth_waiting(&self, file: FileRef, found: Error) -> Result<()> {
        let Error::Busy { slot, .. } = found else {
            return Err(found);
        };
        let entry = self.pool.geometry().file_entry(file.index());
        let publisher = self.pool.load(entry + at!(FileEntry.version))? & PUBLISHER;
        let lock = self.pool.load(entry + at!(FileEntry.lock))?;
        let takes_long = publisher == u64::from(slot) + 1 || lock & LONG != 0;
        takes_long.then_some(()).ok_or(found)
    }
}

/// A locked file.
pub struct FileGuard<'a, M: Medium> {
    file: FileRef,
    pub(crate) lock: LockedFile<'a, M>,
}

impl<M: Medium> FileGuard<'_, M> {
    pub(crate) fn attachment(&self) -> &Attachment<M> {
        self.lock.attachment
    }

    pub(crate) fn pool(&self) -> &Pool<M> {
        &self.attachment().pool
    }

    /// Where the file's entry begins.
    pub(crate) fn entry(&self) -> u64 {
        self.pool().geometry().file_entry(self.file.index())
    }

    #[inline]
    fn get(&self, field: u64) -> Result<u64> {
        Ok(self.lock.word.words.load(field as usize / 8)?)
    }

    #[inline]
    fn set(&self, field: u64, value: u64) -> Result<()> {
        Ok(self.lock.word.words.store(field as usize / 8, value)?)
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> FileRef {
        self.file
    }

    /// Says that the lock will be held for longer than anybody waits otherwise. Who wants it is not told [`Error::Busy`]
    /// any more, for as long as this process lives.
    pub fn takes_long(&self) {
        self.lock.takes_long();
    }

    /// End of the file with everything staged; `None` until [`FileGuard::set_end`] after the entry
    /// was made or the pool rebuilt.
    #[inline]
    pub fn end(&self) -> Result<Option<u64>> {
        let end = self.get(at!(FileEntry.end))?;
        Ok((end != END_UNKNOWN).then_some(end))
    }

    /// Says where the file ends, everything staged included.
    pub fn set_end(&self, end: u64) -> Result<()> {
        self.set(at!(FileEntry.end), end)
    }

    /// Sequence number the next record will get.
    pub fn next_seq(&self) -> Result<u64> {
        self.get(at!(FileEntry.next_seq))
    }

    /// [`Pool::retired_word`] of this file.
    pub fn retired_word(&self) -> Result<u64> {
        self.get(at!(FileEntry.retired))
    }

    /// The publishing word of the file: who publishes it (slot + 1 in bits 0-15, 0 for nobody), how often it was
    /// claimed for that (bits 16-38), whether several programs may have it staged ([`SHARED`], bit 39), how often
    /// staged bytes were relinked (bits 40-62), and whether they are just now (bit 63). It changes before the base file
    /// does, and after records were retired.
    pub fn version(&self) -> Result<u64> {
        self.get(at!(FileEntry.version))
    }

    /// Sets the publishing word of the file.
    pub fn set_version(&self, version: u64) -> Result<()> {
        self.set(at!(FileEntry.version), version)
    }

    /// Says when the file was last written, in nanoseconds since 1970; 0 when that does not matter any
    /// more.
    pub fn set_modified(&self, nanoseconds: u64) -> Result<()> {
        self.set(at!(FileEntry.modified), nanoseconds)
    }

    /// Repairs what a dead owner left. Where that fails, the next one has to.
    #[cold]
    #[inline(never)]
    fn inherit(&self) -> Result<()> {
        // It may take a walk over all logs, the recovery lock and a sync of the device.
        self.takes_long();
        let live = self.pool().ensure_not_forgotten(self.file);
        let Err(error) = live.and_then(|()| self.repair()) else {
            self.lock.takes_no_longer();
            return Ok(());
        };
        // The dead one may have had the lock of the next file that has the entry.
        let is_reused = self.get(at!(FileEntry.file_id))? != self.file.id;
        if is_reused || !matches!(error, Error::Forgotten) {
            self.lock.leave_unrepaired();
        }
        Err(error)
    }

    /// Fails when the file is no longer in the table.
    #[inline]
    fn ensure_live(&self) -> Result<()> {
        let state = self.get(at!(FileEntry.state))?;
        let id = self.get(at!(FileEntry.file_id))?;
        self.pool().ensure_says(state, id, self.file)
    }

    /// What a dead owner may have left: see the module's head.
    fn repair(&self) -> Result<()> {
        self.pool().make_mark_durable(self.file)?;
        if let Some(place) = Place::of_pending(self.get(at!(FileEntry.pending))?) {
            let seq = self.next_seq()?.wrapping_sub(1);
            let record = self.pool().read_record(place)?;
            match record.filter(|record| record.file_id == self.file.id && record.seq == seq) {
                Some(record) => self.take_over(place, &record)?,
                // It was numbered and never written. Where it was to be one of a ring, others of that may be.
                None => self.mend_ring(seq)?,
            }
        }
        self.set(at!(FileEntry.pending), 0)
    }

    /// The last record of a dead writer. It was visible, not necessarily durable; what comes later relies
    /// on it.
    fn take_over(&self, place: Place, record: &Record) -> Result<()> {
        let is_commit = record.kind == RecordKind::Commit as u8;
        if record.flags & Record::TOGETHER != 0 {
            // A commit with other files counts or does not whether the chain leads through it or past it,
            // and must not be in the chain when it does not.
            return self.mend_ring(record.seq);
        }
        if record.flags & Record::GROUP == 0 {
            self.pool().make_record_durable(place, record)?;
            return self.finish(record);
        }
        if !is_commit {
            // Members of a group change nothing; its end knows where the file ends.
            return Ok(());
        }
        let first = record.seq.saturating_sub(u64::from(record.len));
        let group = first..=record.seq;
        // Where some are missing the group was not complete, and the walk will say so.
        self.pool()
            .write_back(|record| record.file_id == self.file.id && group.contains(&record.seq))?;
        self.pool().fence()?;
        self.finish(record)
    }

    /// Shows a written record in the progress words. Doing it twice changes nothing.
    #[inline(always)]
    pub(crate) fn finish(&self, record: &Record) -> Result<()> {
        if let Some(end) = self.end()? {
            let after = end_after(end, record);
            if after != end {
                self.set_end(after)?;
            }
        }
        self.set(at!(FileEntry.last_seq), record.seq)?;
        self.nothing_pending()
    }

    /// Writes one record: place, sequence number, line. `prev` is the record before it in the chain; it
    /// and all before it are durable if it is no later than `durable`.
    #[inline(always)]
    fn write(&self, record: &mut Record, prev: u64, durable: u64) -> Result<Place> {
        let for_commit = record.kind == RecordKind::Commit as u8;
        let place = self.attachment().take_place(for_commit)?;
        let numbered = self.number(place);
        record.seq = numbered.inspect_err(|_| self.attachment().settle_unwritten(place))?;
        record.prev = prev.min(record.seq - 1);
        record.file_id = self.file.id;
        record.flags |= self.chained(record.prev, durable);
        self.put(place, record)?;
        Ok(place)
    }

    /// The next sequence number, for the record at a place, which the caller gives up when there is none.
    #[inline(always)]
    pub(crate) fn number(&self, place: Place) -> Result<u64> {
        let seq = self.next_seq()?;
        if seq == 0 || seq > SEQ_MAX {
            return Err(Error::damaged(
                "file entry",
                self.entry(),
                "impossible sequence number",
            ));
        }
        self.set(at!(FileEntry.next_seq), seq + 1)?;
        self.set(at!(FileEntry.pending), place.packed() + 1)?;
        Ok(seq)
    }

    /// The flag of a record whose `prev` is not known to be durable, as far as `durable` says; of one without any, that
    /// of a file whose entry may not be.
    pub(crate) fn chained(&self, prev: u64, durable: u64) -> u8 {
        if (prev > durable || prev == 0) && self.pool().medium().fence_is_slow() {
            Record::CHAINED
        } else {
            0
        }
    }

    /// The last record of the chain.
    pub(crate) fn last_seq(&self) -> Result<u64> {
        self.get(at!(FileEntry.last_seq))
    }

    /// Writes a record to its place, which is given up when that fails.
    #[inline(always)]
    pub(crate) fn put(&self, place: Place, record: &mut Record) -> Result<()> {
        self.attachment()
            .write_record(place, record)
            .inspect_err(|_| self.attachment().settle_unwritten(place))
    }

    /// Says that no record is being written.
    pub(crate) fn nothing_pending(&self) -> Result<()> {
        self.set(at!(FileEntry.pending), 0)
    }

    /// Logs one operation and returns its sequence number: once it is durable if it counts now, else
    /// once it is ordered before what comes later, which the commit makes durable with itself. Data that
    /// was streamed into its extent before goes with it: by the same fence when the record carries the
    /// data's CRC, by a fence of its own otherwise.
    pub fn append(&mut self, op: &Op, counts: When) -> Result<u64> {
        let seq = self.log(op, counts, 0)?;
        if counts == When::Now {
            self.pool().settle()?;
        }
        Ok(seq)
    }

    /// [`FileGuard::append`] that never waits for a device: where a fence does, the caller gives the lock
    /// up first, then waits for [`Pool::settle`], and tells nobody of the operation before. `durable` is
    /// the last record of the file of which the caller knows that it is durable, with all before it.
    #[inline(always)]
    pub fn log(&mut self, op: &Op, counts: When, durable: u64) -> Result<u64> {
        self.attachment().ensure_current()?;
        op.check()?;
        let mut record = op.record();
        if counts == When::Now {
            record.flags |= Record::COMMITTED;
        }
        if !op.has_data_crc() {
            self.pool().fence()?;
        }
        self.write(&mut record, self.get(at!(FileEntry.last_seq))?, durable)?;
        self.order_record(counts)?;
        self.finish(&record)?;
        self.trim(op);
        Ok(record.seq)
    }

    /// What a record needs before it is shown. One that waits for a commit needs to come before it,
    /// whoever writes that: on persistent memory a fence of this core; where a fence is a kernel sync,
    /// the commit's own covers all writes of all processes. In the boot of its writer it counts anyway,
    /// because it is seen; in another one the commit's unbroken chain and the CRCs tell what is missing.
    ///
    /// The same holds there for one that counts at once: its writer waits for the sync when others may
    /// have the lock, and what they log meanwhile is chained to it.
    fn order_record(&self, counts: When) -> Result<()> {
        if counts == When::Now && !self.pool().medium().fence_is_slow() {
            return self.pool().fence();
        }
        self.pool().medium().order();
        Ok(())
    }

    #[inline]
    fn trim(&self, op: &Op) {
        if let Some((extent, len)) = op.extent()
            && len < extent.len
        {
            self.attachment().trim(extent, len);
        }
    }

    /// Logs several operations that happen entirely or not at all, with one fence for all of them (two
    /// when a record lacks its data's CRC). Returns the sequence number of the group's end.
    pub fn append_group(&mut self, ops: &[Op], counts: When) -> Result<u64> {
        let seq = self.log_group(ops, counts, 0)?;
        if counts == When::Now {
            self.pool().settle()?;
        }
        Ok(seq)
    }

    /// [`FileGuard::append_group`] as [`FileGuard::log`] is [`FileGuard::append`].
    pub fn log_group(&mut self, ops: &[Op], counts: When, durable: u64) -> Result<u64> {
        self.attachment().ensure_current()?;
        ops.iter().try_for_each(Op::check)?;
        if ops.is_empty() {
            return Err(Error::Invalid("a group of no operations"));
        }
        if ops.iter().any(|op| !op.has_data_crc()) {
            self.pool().fence()?;
        }
        let mut written = Vec::with_capacity(ops.len() + 1);
        match self.write_group(ops, counts, durable, &mut written) {
            Ok(seq) => {
                ops.iter().for_each(|op| self.trim(op));
                Ok(seq)
            }
            Err(error) => {
                // Without its end the group never counts; the extents stay the caller's.
                for place in written {
                    self.attachment().settle(place);
                }
                self.nothing_pending()?;
                Err(error)
            }
        }
    }

    fn write_group(
        &self,
        ops: &[Op],
        counts: When,
        durable: u64,
        written: &mut Vec<Place>,
    ) -> Result<u64> {
        let now = if counts == When::Now {
            Record::COMMITTED
        } else {
            0
        };
        let mut prev = self.get(at!(FileEntry.last_seq))?;
        let mut end = self.end()?;
        for op in ops {
            let mut record = op.record();
            record.flags |= Record::GROUP;
            written.push(self.write(&mut record, prev, durable)?);
            prev = record.seq;
            end = end.map(|end| end_after(end, &record));
        }
        let mut commit = Record {
            kind: RecordKind::Commit as u8,
            len: ops.len() as u32,
            ..EMPTY
        };
        commit.flags = Record::GROUP | now;
        // The end of the file travels with the commit record, so that whoever repairs after us knows
        // it without reading the group.
        commit.file_offset = end.unwrap_or(END_UNKNOWN);
        written.push(self.write(&mut commit, prev, durable)?);
        self.order_record(counts)?;
        self.finish(&commit)?;
        Ok(commit.seq)
    }

    /// Commits every record of the file so far, whichever process wrote it: after a crash of the
    /// system they all count. Durable on return.
    pub fn commit(&mut self) -> Result<u64> {
        let seq = self.log_commit(0)?;
        self.pool().settle()?;
        Ok(seq)
    }

    /// [`FileGuard::commit`] as [`FileGuard::log`] is [`FileGuard::append`].
    pub fn log_commit(&mut self, durable: u64) -> Result<u64> {
        self.attachment().ensure_current()?;
        let mut commit = Record {
            kind: RecordKind::Commit as u8,
            file_offset: END_UNKNOWN,
            ..EMPTY
        };
        self.write(&mut commit, self.get(at!(FileEntry.last_seq))?, durable)?;
        self.order_record(When::Now)?;
        self.finish(&commit)?;
        Ok(commit.seq)
    }

    /// Retires the file's records up to `seq`, durably, all at once. The base file (and, for names,
    /// its directory) is durable already: that is the caller's part. When this fails the lock is lost: everybody sees
    /// the mark by then, and whoever takes the lock next has to make it durable.
    pub fn retire(&mut self, seq: u64) -> Result<()> {
        let durable = match self.raise_retired(seq) {
            Ok(true) => self.pool().fence(),
            raised => raised.map(drop),
        };
        durable.inspect_err(|_| self.lock.leave_unrepaired())
    }

    /// [`FileGuard::retire`], up to the fence; whether there is anything to be made durable.
    pub(crate) fn raise_retired(&self, seq: u64) -> Result<bool> {
        self.attachment().ensure_current()?;
        let (id, field) = (self.file.id, at!(FileEntry.retired));
        let old = checked_value(self.get(field)?, id)
            .ok_or_else(|| Error::damaged("file entry", self.entry() + field, "check bits"))?;
        if seq <= old {
            // Who had the lock before has made it durable, or this repaired what he left.
            return Ok(false);
        }
        if seq > SEQ_MAX {
            return Err(Error::Invalid("no such sequence number"));
        }
        self.set(field, checked_word(seq, id))?;
        self.pool().medium().flush(self.entry() + field, 8)?;
        Ok(true)
    }
}

impl<M: Medium> Attachment<M> {
    /// Counts a place that never got its record, or whose record failed halfway.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle_unwritten(&self, place: Place) {
        if !self.settle(place)
            && let Some(map) = self.map(place.chunk)
        {
            map.settled.fetch_add(1, Ordering::AcqRel);
        }
    }
}
