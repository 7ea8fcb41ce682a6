//! Appending to the log, under the lock of the file.
//!
//! Each attachment writes its own log: a chain of chunks, one 64-byte record per operation, placed by
//! one atomic addition on a counter in ordinary memory. What orders the records of a file, whichever
//! logs they lie in, is their sequence number, taken under the file's lock and held until the record
//! is written.
//!
//! What a dead owner of the lock may leave, and the next owner repairs: a sequence number without a
//! record (a gap, harmless), or a record that the end of the file does not show yet (`pending` says
//! where to look).

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use adit_pmem::Medium;

use crate::alloc::{Extent, Role};
use crate::error::{Error, Result};
use crate::files::{END_UNKNOWN, FileRef};
use crate::layout::{
    ChunkKind, FileEntry, Record, RecordKind, at, checked_value, checked_word, crc_of_record,
};
use crate::lock::{Acquired, Locked, PATIENCE};
use crate::pool::{Attachment, Pool};

/// Log chunks an attachment may hold, unless told otherwise.
const LOG_LIMIT: u32 = 16;

/// Largest sequence number.
pub(crate) const SEQ_MAX: u64 = (1 << 48) - 1;

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
    /// The extent is about to be exchanged with the file's range: a repeat is allowed only while the
    /// extent still has this CRC.
    Exchange {
        /// Where in the file.
        file_offset: u64,
        /// The staged range.
        extent: Extent,
        /// CRC32C of the staged bytes.
        data_crc: u32,
    },
}

impl Op {
    fn extent(&self) -> Option<(Extent, u32)> {
        match *self {
            Self::Write { extent, len, .. } => Some((extent, len)),
            Self::Exchange { extent, .. } => Some((extent, extent.len)),
            _ => None,
        }
    }

    fn has_data_crc(&self) -> bool {
        matches!(
            self,
            Self::Write {
                data_crc: Some(_),
                ..
            } | Self::Exchange { .. }
        ) || self.extent().is_none()
    }

    fn check(&self) -> Result<()> {
        let (start, len) = match *self {
            Self::Write {
                file_offset, len, ..
            }
            | Self::Zero { file_offset, len } => (file_offset, u64::from(len)),
            Self::Exchange {
                file_offset,
                extent,
                ..
            } => (file_offset, u64::from(extent.len)),
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
            Self::Exchange {
                file_offset,
                extent,
                data_crc,
            } => {
                record.kind = RecordKind::Exchange as u8;
                record.file_offset = file_offset;
                record.pool_offset = extent.offset;
                record.len = extent.len;
                record.data_crc = data_crc;
                record.flags |= Record::DATA_CRC;
            }
        }
        record
    }
}

const EMPTY: Record = Record {
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

/// Where the end of a file is after a record, given where it was before.
pub(crate) fn end_after(end: u64, record: &Record) -> u64 {
    match RecordKind::from_byte(record.kind) {
        Some(RecordKind::Write | RecordKind::Exchange) => {
            end.max(record.file_offset.saturating_add(u64::from(record.len)))
        }
        Some(RecordKind::Truncate) => record.file_offset,
        Some(RecordKind::Commit) if record.file_offset != END_UNKNOWN => record.file_offset,
        _ => end,
    }
}

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) chunk: u32,
    pub(crate) position: u32,
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
        let geometry = self.geometry();
        if place.chunk >= self.chunk_count()? || place.position >= geometry.records_per_chunk() {
            return Ok(None);
        }
        let record = Record::decode(&self.read_line(place)?);
        let current = self
            .chunk_word(place.chunk)?
            .is_none_or(|word| word.kind == ChunkKind::Log && word.generation == record.generation);
        Ok(
            (current && record.is_valid(self.uuid(), place.chunk, place.position))
                .then_some(record),
        )
    }

    pub(crate) fn make_mark_durable(&self, file: FileRef) -> Result<()> {
        if file.index() >= self.geometry().file_count {
            return Ok(());
        }
        let len = FileEntry::SIZE as u64;
        self.make_durable(self.geometry().file_entry(file.index()), len)
    }

    /// Makes a record and what it stages durable, whoever wrote it.
    pub(crate) fn make_record_durable(&self, place: Place, record: &Record) -> Result<()> {
        if RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent) {
            self.medium()
                .flush(record.pool_offset, u64::from(record.len))?;
        }
        self.medium()
            .flush(self.geometry().record(place.chunk, place.position), 64)?;
        self.medium().fence();
        Ok(())
    }

    /// The mark up to which a file's records are in its base file; everything, once it was forgotten.
    /// It is durable when this returns, also when the publisher who raised it died over it: the caller
    /// may overwrite the base file then.
    pub fn retired(&self, file: FileRef) -> Result<u64> {
        self.make_mark_durable(file)?;
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

    /// Log chunks held.
    #[must_use]
    pub fn log_chunks(&self) -> u32 {
        self.leased().filter(|(_, map)| map.is(Role::Log)).count() as u32
    }

    /// Takes the next position of the log. The last positions of the last chunk allowed are kept for
    /// commit records, so that a full log can still be committed.
    fn take_place(&self, for_commit: bool) -> Result<Place> {
        let capacity = self.pool.geometry().records_per_chunk();
        let reserve = if for_commit {
            0
        } else {
            (capacity / 64).max(1)
        };
        for _ in 0..1024 {
            let seen = self.state.log.load(Ordering::Acquire);
            let (chunk, position) = ((seen >> 32) as u32, seen as u32);
            if chunk == 0 || position >= capacity {
                self.next_log_chunk(seen)?;
                continue;
            }
            if position >= capacity - reserve && self.log_chunks() >= self.log_limit() {
                return Err(Error::LogFull {
                    chunks: self.log_chunks(),
                });
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

    fn next_log_chunk(&self, seen: u64) -> Result<()> {
        if self.log_chunks() >= self.log_limit() {
            return Err(Error::LogFull {
                chunks: self.log_chunks(),
            });
        }
        let chunk = self.lease_as(ChunkKind::Log, Role::Log)?;
        let new = u64::from(chunk) << 32;
        if self
            .state
            .log
            .compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
            && let Some(map) = self.map(chunk)
        {
            // Another thread was first; nothing was ever written to ours.
            self.give_back(chunk, map)?;
        }
        Ok(())
    }

    /// Writes a record to its place: one line, streamed.
    fn write_record(&self, place: Place, record: &Record) -> Result<()> {
        let geometry = *self.pool.geometry();
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
        let record = Record {
            generation: (word >> 32) as u32,
            boot: self.pool.boot_tag(),
            ..*record
        };
        let mut line = record.encode();
        let crc = crc_of_record(&line, self.pool.uuid(), place.chunk, place.position);
        line[..4].copy_from_slice(&crc.to_le_bytes());
        // Set before the record exists: a record that is there is never forgotten.
        if let Some(word) = map.bits.get((place.position / 64) as usize) {
            word.fetch_or(1 << (place.position % 64), Ordering::AcqRel);
        }
        let offset = self.pool.geometry().record(place.chunk, place.position);
        Ok(self.pool.medium().write_streaming(offset, &line)?)
    }

    /// Gives up a place whose record does not count. `true` when it was still waiting.
    fn settle(&self, place: Place) -> bool {
        let Some(map) = self.map(place.chunk) else {
            return false;
        };
        let bit = 1 << (place.position % 64);
        let Some(word) = map.bits.get((place.position / 64) as usize) else {
            return false;
        };
        let waiting = word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        if waiting {
            map.settled.fetch_add(1, Ordering::AcqRel);
        }
        waiting
    }

    /// Locks a file: sequence numbers, end and log of the file are the caller's until it is dropped.
    pub fn lock_file(&self, file: FileRef) -> Result<FileGuard<'_, M>> {
        self.ensure_current()?;
        self.pool.ensure_live(file)?;
        let entry = self.pool.geometry().file_entry(file.index());
        let offset = entry + at!(FileEntry.lock);
        let acquired = self
            .pool
            .lock_word("file lock", offset, self.owner, PATIENCE)?;
        let lock = Locked::new(&self.pool, offset, self.owner, self.epoch);
        let guard = FileGuard {
            attachment: self,
            file,
            entry,
            _lock: lock,
        };
        // It may have been forgotten, and its entry reused, while we waited.
        self.pool.ensure_live(file)?;
        if acquired == Acquired::OwnerDied {
            guard.repair()?;
        }
        Ok(guard)
    }

    /// Looks at every record of this attachment that is still waiting; the extents of those that were
    /// retired and that `may_free` allows become free again, chunks without waiting records are given
    /// back. Returns how many records were settled.
    ///
    /// One thread at a time: two that find the same chunk settled would both give it back, the second
    /// one when it may be the log again already. `may_free` must not reclaim.
    pub fn reclaim(&self, may_free: impl Fn(FileRef, Extent) -> bool) -> Result<u64> {
        self.ensure_current()?;
        // The lock guards no data, so a panic in `may_free` has broken nothing.
        let _alone = self
            .state
            .reclaiming
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let capacity = self.pool.geometry().records_per_chunk();
        let current = (self.state.log.load(Ordering::Acquire) >> 32) as u32;
        let mut settled = 0;
        let mut last = None;
        for (chunk, map) in self.leased().filter(|(_, map)| map.is(Role::Log)) {
            for (i, word) in map.bits.iter().enumerate() {
                let mut waiting = word.load(Ordering::Acquire);
                while waiting != 0 {
                    let bit = waiting.trailing_zeros();
                    waiting &= waiting - 1;
                    let place = Place {
                        chunk,
                        position: i as u32 * 64 + bit,
                    };
                    settled += u64::from(self.reclaim_one(place, &mut last, &may_free)?);
                }
            }
            if chunk != current && map.settled.load(Ordering::Acquire) >= capacity {
                self.give_back(chunk, map)?;
            }
        }
        Ok(settled)
    }

    fn reclaim_one(
        &self,
        place: Place,
        last: &mut Option<(FileRef, u64)>,
        may_free: &impl Fn(FileRef, Extent) -> bool,
    ) -> Result<bool> {
        // A record being written just now is not readable yet: it is not retired either.
        let Some(record) = self.pool.read_record(place)? else {
            return Ok(false);
        };
        let file = FileRef { id: record.file_id };
        let retired = match *last {
            Some((same, retired)) if same == file => retired,
            _ => self.pool.retired(file)?,
        };
        *last = Some((file, retired));
        if record.seq > retired {
            return Ok(false);
        }
        let extent = Extent {
            offset: record.pool_offset,
            len: record.len,
        };
        let names = RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent);
        if names && !may_free(file, extent) {
            return Ok(false);
        }
        let mine = self.settle(place);
        if mine && names {
            self.give_extent(extent);
        }
        Ok(mine)
    }
}

/// A locked file.
pub struct FileGuard<'a, M: Medium> {
    attachment: &'a Attachment<M>,
    file: FileRef,
    entry: u64,
    _lock: Locked<'a, M>,
}

impl<M: Medium> FileGuard<'_, M> {
    fn pool(&self) -> &Pool<M> {
        &self.attachment.pool
    }

    fn get(&self, field: u64) -> Result<u64> {
        self.pool().load(self.entry + field)
    }

    fn set(&self, field: u64, value: u64) -> Result<()> {
        self.pool().store(self.entry + field, value)
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> FileRef {
        self.file
    }

    /// End of the file with everything staged; `None` until [`FileGuard::set_end`] after the entry
    /// was made or the pool rebuilt.
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

    /// The store's own word of the file.
    pub fn version(&self) -> Result<u64> {
        self.get(at!(FileEntry.version))
    }

    /// Sets the store's own word of the file.
    pub fn set_version(&self, version: u64) -> Result<()> {
        self.set(at!(FileEntry.version), version)
    }

    /// What a dead owner may have left: see the module's head.
    fn repair(&self) -> Result<()> {
        self.pool().make_mark_durable(self.file)?;
        let pending = self.get(at!(FileEntry.pending))?;
        if let Some(place) = pending.checked_sub(1) {
            let place = Place {
                chunk: (place >> 32) as u32,
                position: place as u32,
            };
            if let Some(record) = self.pool().read_record(place)?
                && record.file_id == self.file.id
                && record.seq.wrapping_add(1) == self.next_seq()?
                && (record.flags & Record::GROUP == 0 || record.kind == RecordKind::Commit as u8)
            {
                // Members of a group change nothing; its end knows where the file ends.
                // It was visible, not necessarily durable; a later commit will rely on it.
                self.make_group_durable(place, &record)?;
                self.finish(&record)?;
            }
        }
        self.set(at!(FileEntry.pending), 0)
    }

    /// Makes durable what a dead writer completed: its record, and the members when it ends a group.
    /// Those lie before it in the same attachment's log, mostly in the same chunk; where they are not
    /// found, the group was not complete, and the walk will say so.
    fn make_group_durable(&self, place: Place, record: &Record) -> Result<()> {
        let mut members = if record.flags & Record::GROUP != 0 {
            record.len
        } else {
            0
        };
        let mut position = place.position;
        while members > 0 && position > 0 {
            position -= 1;
            let before = Place {
                chunk: place.chunk,
                position,
            };
            if let Some(member) = self.pool().read_record(before)?
                && member.file_id == self.file.id
                && member.flags & Record::GROUP != 0
            {
                self.pool().make_record_durable(before, &member)?;
                members -= 1;
            }
        }
        self.pool().make_record_durable(place, record)
    }

    /// Shows a written record in the progress words. Doing it twice changes nothing.
    fn finish(&self, record: &Record) -> Result<()> {
        if let Some(end) = self.end()? {
            self.set_end(end_after(end, record))?;
        }
        self.set(at!(FileEntry.last_seq), record.seq)?;
        self.set(at!(FileEntry.pending), 0)
    }

    /// Writes one record: sequence number, place, line. `prev` is the record before it in the chain.
    fn write(&self, mut record: Record, prev: u64) -> Result<(Place, Record)> {
        let for_commit = record.kind == RecordKind::Commit as u8;
        let place = self.attachment.take_place(for_commit)?;
        let seq = self.next_seq()?;
        if seq == 0 || seq > SEQ_MAX {
            self.attachment.settle_unwritten(place);
            return Err(Error::damaged(
                "file entry",
                self.entry,
                "impossible sequence number",
            ));
        }
        self.set(at!(FileEntry.next_seq), seq + 1)?;
        let packed = u64::from(place.chunk) << 32 | u64::from(place.position);
        self.set(at!(FileEntry.pending), packed + 1)?;
        record.file_id = self.file.id;
        record.seq = seq;
        record.prev = prev.min(seq - 1);
        if let Err(error) = self.attachment.write_record(place, &record) {
            self.attachment.settle_unwritten(place);
            return Err(error);
        }
        Ok((place, record))
    }

    /// Logs one operation and returns its sequence number once it is durable. Data that was streamed
    /// into its extent before is durable with it: in the same fence when the record carries the
    /// data's CRC, in a fence of its own otherwise.
    pub fn append(&mut self, op: &Op, counts: When) -> Result<u64> {
        self.attachment.ensure_current()?;
        op.check()?;
        let mut record = op.record();
        if counts == When::Now {
            record.flags |= Record::COMMITTED;
        }
        if !op.has_data_crc() {
            self.pool().medium().fence();
        }
        let (_, record) = self.write(record, self.get(at!(FileEntry.last_seq))?)?;
        self.pool().medium().fence();
        self.finish(&record)?;
        self.trim(op);
        Ok(record.seq)
    }

    fn trim(&self, op: &Op) {
        if let Some((extent, len)) = op.extent()
            && len < extent.len
        {
            self.attachment.trim(extent, len);
        }
    }

    /// Logs several operations that happen entirely or not at all, with one fence for all of them (two
    /// when a record lacks its data's CRC). Returns the sequence number of the group's end.
    pub fn append_group(&mut self, ops: &[Op], counts: When) -> Result<u64> {
        self.attachment.ensure_current()?;
        ops.iter().try_for_each(Op::check)?;
        if ops.is_empty() {
            return Err(Error::Invalid("a group of no operations"));
        }
        if ops.iter().any(|op| !op.has_data_crc()) {
            self.pool().medium().fence();
        }
        let mut written = Vec::with_capacity(ops.len() + 1);
        match self.write_group(ops, counts, &mut written) {
            Ok(seq) => {
                ops.iter().for_each(|op| self.trim(op));
                Ok(seq)
            }
            Err(error) => {
                // Without its end the group never counts; the extents stay the caller's.
                for place in written {
                    self.attachment.settle(place);
                }
                self.set(at!(FileEntry.pending), 0)?;
                Err(error)
            }
        }
    }

    fn write_group(&self, ops: &[Op], counts: When, written: &mut Vec<Place>) -> Result<u64> {
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
            let (place, record) = self.write(record, prev)?;
            written.push(place);
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
        let (place, commit) = self.write(commit, prev)?;
        written.push(place);
        self.pool().medium().fence();
        self.finish(&commit)?;
        Ok(commit.seq)
    }

    /// Commits every record of the file so far, whichever process wrote it: after a crash of the
    /// system they all count. Durable on return.
    pub fn commit(&mut self) -> Result<u64> {
        self.attachment.ensure_current()?;
        let commit = Record {
            kind: RecordKind::Commit as u8,
            file_offset: END_UNKNOWN,
            ..EMPTY
        };
        let (_, commit) = self.write(commit, self.get(at!(FileEntry.last_seq))?)?;
        self.pool().medium().fence();
        self.finish(&commit)?;
        Ok(commit.seq)
    }

    fn raise(&self, field: u64, to: u64) -> Result<()> {
        self.attachment.ensure_current()?;
        let id = self.file.id;
        let old = checked_value(self.get(field)?, id)
            .ok_or_else(|| Error::damaged("file entry", self.entry + field, "check bits"))?;
        if to <= old {
            // Perhaps raised by somebody who died before it was durable.
            return self.pool().make_durable(self.entry + field, 8);
        }
        if to > SEQ_MAX {
            return Err(Error::Invalid("no such sequence number"));
        }
        self.pool()
            .persist(self.entry + field, checked_word(to, id))
    }

    /// Retires the file's records up to `seq`, durably, all at once. The base file (and, for names,
    /// its directory) is durable already: that is the caller's part.
    pub fn retire(&mut self, seq: u64) -> Result<()> {
        self.raise(at!(FileEntry.retired), seq)
    }

    /// Says that staged bytes of records up to `seq` may be overwritten in place from now on: their
    /// data CRCs no longer count. The bytes are durable already.
    pub fn seal(&mut self, seq: u64) -> Result<()> {
        self.raise(at!(FileEntry.sealed), seq)
    }
}

impl<M: Medium> Attachment<M> {
    /// Counts a place that never got its record, or whose record failed halfway.
    fn settle_unwritten(&self, place: Place) {
        if !self.settle(place)
            && let Some(map) = self.map(place.chunk)
        {
            map.settled.fetch_add(1, Ordering::AcqRel);
        }
    }
}
