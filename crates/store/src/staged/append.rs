//! Where an append becomes durable.
//!
//! 1. Fresh space is taken from a chunk that is this process's alone, and the bytes are streamed into
//!    it. Nobody refers to them yet, so no lock is needed and several threads copy at once.
//! 2. Under the file's lock the end of the file becomes the offset, the sequence number is taken, and
//!    one 64-byte record is written. A fence between bytes and record keeps the record from being
//!    believed before its bytes; short bytes, and all bytes where a fence waits for a device, travel with
//!    their CRC in the record instead, which saves that fence.
//! 3. In `sync` and `strict` mode a fence makes the record durable, in the others it is ordered before
//!    the commit; then the overlay shows the bytes. The lock is held until then, so the overlay's order is
//!    the log's. Where a fence waits for a device, the lock is given up before: operations are then shown
//!    in the log's order as well, each with all before it, which its fence has covered.
//!
//! What each write goes through is one routine, as in the log (`adit_pool`).
//!
//! # Safety
//!
//! The unsafe code copies from a program's buffers, with guards, under the caller's promise about them.
//! The bytes whose CRC goes into a record are copied to memory of our own first: another thread of the
//! program could change them between the two looks at them.
#![allow(unsafe_code)]

use adit_pmem::copy::guarded_copy;
use adit_pmem::{BaseFile, Medium};
use adit_pool::{Extent, FileGuard, Op, ReplayOp, When};
use std::sync::atomic::Ordering;

use super::board::Words;
use super::error::{Error, Result, is_pressure};
use super::file::{StagedFile, Waiting};
use super::memory::{Cursor, total};
use super::recycle::Covered;
use crate::clock;

/// Up to this many bytes a CRC costs less than a fence that drains a processor. A fence that waits for a
/// device costs more than any CRC.
const CRC_LIMIT: usize = 256;

/// Up to this many bytes are written with their record, under the file's lock. Longer ones are written
/// before: then the lock would be held for longer than a second call takes.
const WITH_RECORD: usize = 16 << 10;

/// Bytes whose CRC is taken at once.
const CRC_BLOCK: usize = 256 << 10;

/// Bytes of a file to which it may be appended here. File systems have limits, which nobody tells: what is accepted beyond one
/// could not be published. These are below all but old formats' of small blocks.
pub const FARTHEST: u64 = 1 << 40;

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At this offset, inside the file or beyond its end.
    At(u64),
    /// At the end of the file, wherever that is when the write happens; [`Error::TooLarge`] beyond [`FARTHEST`].
    End,
}

/// A program's buffers, from which a write takes its bytes.
type From<'a> = Cursor<'a, *const u8>;

/// The CRC of bytes, if it travels with their record. It is one word: the halves of an `Option` are stored one by one
/// and loaded together, which waits until both have left the processor, behind the bytes of the write.
#[derive(Debug, Clone, Copy)]
struct DataCrc(u64);

impl DataCrc {
    const NONE: Self = Self(0);
    const SOME: u64 = 1 << 32;

    fn of(crc: u32) -> Self {
        Self(Self::SOME | u64::from(crc))
    }

    fn get(self) -> Option<u32> {
        (self.0 & Self::SOME != 0).then_some(self.0 as u32)
    }
}

/// Bytes that lie in the pool and belong to no file yet.
#[derive(Debug, Clone, Copy)]
struct Filled {
    extent: Extent,
    data_crc: DataCrc,
    /// The page that the extent is, when records of the file named it before.
    again: Option<Covered>,
}

impl Filled {
    fn op(&self, file_offset: u64) -> Op {
        Op::Write {
            file_offset,
            extent: self.extent,
            len: self.extent.len,
            data_crc: self.data_crc.get(),
        }
    }

    fn replay(&self, file_offset: u64) -> ReplayOp {
        ReplayOp::Write {
            file_offset,
            pool_offset: self.extent.offset,
            len: self.extent.len,
        }
    }
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Appends, and says at which offset. Entirely or not at all, whatever the length.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        // SAFETY: the buffer is a slice.
        unsafe { self.write_from(Place::End, bytes.as_ptr(), bytes.len()) }
    }

    /// Writes at an offset, inside the file or beyond its end. Entirely or not at all.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the buffer is a slice.
        unsafe { self.write_from(Place::At(offset), bytes.as_ptr(), bytes.len()) }.map(|_| ())
    }

    /// Writes a program's buffer, and says at which offset. Entirely or not at all, whatever the length:
    /// [`Error::Fault`] when the buffer cannot be read.
    ///
    /// # Safety
    ///
    /// `from..from + len` is memory that may be read, which others may change meanwhile, or addresses
    /// that fault; where they may fault, a handler that uses [`adit_pmem::fault::handle`] is installed.
    pub unsafe fn write_from(&self, place: Place, from: *const u8, len: usize) -> Result<u64> {
        // SAFETY: the caller vouches for the buffer.
        unsafe { self.writev_from(place, &[(from, len)]) }
    }

    /// [`StagedFile::write_from`] of several buffers, in order, as one write.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::write_from`], of each buffer.
    pub unsafe fn writev_from(&self, place: Place, from: &[(*const u8, usize)]) -> Result<u64> {
        let len = total(from).ok_or(Error::TooLarge)?;
        if len == 0 {
            return match place {
                Place::At(offset) => Ok(offset),
                Place::End => self.size(),
            };
        }
        let chunk = self.stage.attachment().pool().geometry().chunk_size() as usize;
        self.follow_before_writing()?;
        self.with_room(|| {
            let mut from = Cursor::new(from);
            if len <= chunk {
                // SAFETY: the caller vouches for the buffers.
                let filled = unsafe { self.fill(&mut from, len) }?;
                return self.logged(&[filled], || self.log_one(place, filled));
            }
            let mut all = Vec::with_capacity(len.div_ceil(chunk));
            for start in (0..len).step_by(chunk) {
                // SAFETY: the caller vouches for the buffers.
                match unsafe { self.fill(&mut from, chunk.min(len - start)) } {
                    Ok(filled) => all.push(filled),
                    Err(error) => {
                        self.give_back(&all)?;
                        return Err(error);
                    }
                }
            }
            self.logged(&all, || self.log_group(place, &all))
        })
    }

    /// Cuts or extends the file.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.resize(size, false)
    }

    /// Extends the file with zeros, unless it is that long.
    pub fn extend(&self, size: u64) -> Result<()> {
        self.resize(size, true)
    }

    fn resize(&self, size: u64, never_cut: bool) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Error::TooLarge);
        }
        self.with_room(|| {
            let mut guard = self.lock()?;
            let end = guard.end()?.unwrap_or_else(|| self.look().overlay.size());
            if never_cut && end >= size {
                // What made it so long may still wait for the device.
                let view = self.look();
                let last = view.last_waiting().unwrap_or(view.last());
                drop(view);
                drop(guard);
                self.was_written()?;
                return self.settle_up_to(last);
            }
            let (when, durable) = (self.mode.when(), self.known_durable());
            let seq = guard.log(&Op::Truncate { size }, when, durable)?;
            self.show(&guard, seq, &[ReplayOp::Truncate { size }])?;
            drop(guard);
            self.settle_up_to(seq)
        })
    }

    /// Says that the base file was written beside us: when the file is published, its time is not set
    /// back to an older one.
    pub fn was_written(&self) -> Result<()> {
        if self.last_write()?.is_some() {
            let now = clock::now();
            self.lock()?.set_modified(now)?;
            self.written.store(now, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes everything so far durable: in `posix` and `atomic` mode this is the instant at which all
    /// of it happens.
    pub fn fsync(&self) -> Result<()> {
        self.with_room(|| {
            // Before anybody else has to wait for it.
            if self.look().has_uncommitted() {
                self.make_base_durable()?;
            }
            let mut guard = self.lock()?;
            let commit = self.log_commit(&mut guard)?;
            drop(guard);
            self.settle_commit(commit)
        })
    }

    /// Writes what commits everything so far, if nothing does yet, and says which record that is.
    pub(super) fn log_commit(&self, guard: &mut FileGuard<'_, M>) -> Result<u64> {
        let durable = {
            let view = self.look();
            if !view.has_uncommitted() || view.last() <= view.commit {
                return Ok(view.commit);
            }
            view.durable
        };
        if self.needs_durable_base() {
            guard.takes_long();
            self.make_base_durable()?;
        }
        let seq = guard.log_commit(durable)?;
        let mut view = self.change();
        view.commit = seq;
        self.known_seq.store(seq + 1, Ordering::Relaxed);
        Ok(seq)
    }

    /// Makes a commit durable. The caller may have given the file's lock up.
    pub(super) fn settle_commit(&self, commit: u64) -> Result<()> {
        if self.look().committed < commit {
            self.stage.attachment().pool().settle()?;
            self.change().commit_is_durable(commit);
        }
        Ok(())
    }

    /// Makes operations up to `seq` durable and shows them, where [`StagedFile::show`] has left that
    /// open. The caller has given the file's lock up: a program that is stopped in here keeps nobody
    /// from the file.
    #[inline(always)]
    pub(super) fn settle_up_to(&self, seq: u64) -> Result<()> {
        if self.waits_after_lock() {
            self.stage.attachment().pool().settle()?;
            self.change().reveal(seq);
        }
        Ok(())
    }

    /// Up to which record all are known to be durable; said only where records have to be told.
    fn known_durable(&self) -> u64 {
        if self.stage.attachment().pool().medium().fence_is_slow() {
            self.look().durable
        } else {
            0
        }
    }

    /// Whether operations wait for a device after the file's lock was given up.
    fn waits_after_lock(&self) -> bool {
        let medium = self.stage.attachment().pool().medium();
        self.mode.when() == When::Now && medium.fence_is_slow()
    }

    /// Streams the next `len` bytes into fresh space, which is given back when they cannot be read.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::write_from`].
    // What it returns would go through memory otherwise, and wait there behind the bytes.
    #[inline(always)]
    unsafe fn fill(&self, from: &mut From<'_>, len: usize) -> Result<Filled> {
        let (extent, again) = self.space(len as u32)?;
        let filled = |data_crc| Filled {
            extent,
            data_crc,
            again,
        };
        // SAFETY: the caller vouches for the buffers.
        match unsafe { self.stream(extent, from, again.is_some()) } {
            Ok(data_crc) => Ok(filled(data_crc)),
            Err(error) => {
                self.give_back(&[filled(DataCrc::NONE)])?;
                Err(error)
            }
        }
    }

    /// Copies the next bytes into an extent; the result is their CRC if that is to travel along. `again`
    /// says that the extent was used before.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::write_from`].
    #[inline(always)]
    unsafe fn stream(&self, extent: Extent, from: &mut From<'_>, again: bool) -> Result<DataCrc> {
        let attachment = self.stage.attachment();
        let len = extent.len as usize;
        if attachment.pool().medium().fence_is_slow() {
            // SAFETY: the caller vouches for the buffers.
            return unsafe { self.stream_checked(extent, from) }.map(DataCrc::of);
        }
        if len <= CRC_LIMIT {
            // SAFETY: the caller vouches for the buffers.
            return unsafe { self.stream_few(extent, from) }.map(DataCrc::of);
        }
        let cold = again && self.recycled.are_cold();
        from.each(len, |done, at, part| {
            // SAFETY: the caller vouches for the buffers.
            unsafe { attachment.fill_from(extent, done as u32, at, part, cold) }
        })?;
        Ok(DataCrc::NONE)
    }

    /// Copies the next few bytes into an extent and returns their CRC.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::write_from`].
    unsafe fn stream_few(&self, extent: Extent, from: &mut From<'_>) -> Result<u32> {
        let mut own = [0; CRC_LIMIT];
        let own = &mut own[..extent.len as usize];
        // SAFETY: the caller vouches for the buffers.
        unsafe { take(from, own) }?;
        self.stage.attachment().fill(extent, 0, own)?;
        Ok(crc32c::crc32c(own))
    }

    /// Copies the next bytes into an extent, block by block, and returns their CRC. Few bytes wait for the
    /// record, which is to have the CRC.
    ///
    /// # Safety
    ///
    /// As for [`StagedFile::write_from`].
    unsafe fn stream_checked(&self, extent: Extent, from: &mut From<'_>) -> Result<u32> {
        let attachment = self.stage.attachment();
        let len = extent.len as usize;
        let mut own = vec![0; len.min(CRC_BLOCK)];
        if len <= WITH_RECORD {
            // SAFETY: the caller vouches for the buffers.
            unsafe { take(from, &mut own) }?;
            return Ok(attachment.fill_with_record(extent, own)?);
        }
        let mut crc = 0;
        for at in (0..len).step_by(CRC_BLOCK) {
            let own = &mut own[..CRC_BLOCK.min(len - at)];
            // SAFETY: the caller vouches for the buffers.
            unsafe { take(from, own) }?;
            attachment.fill(extent, at as u32, own)?;
            crc = crc32c::crc32c_append(crc, own);
        }
        Ok(crc)
    }

    /// Gives the space back when no record was written. After any other failure one may name it: then
    /// it stays taken until the attachment ends.
    fn logged<T>(&self, filled: &[Filled], log: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = log();
        let unwritten = match &result {
            Err(Error::TooLarge | Error::Taken | Error::NoSpace) => true,
            Err(Error::Pool(error)) => {
                is_pressure(error) || matches!(error, adit_pool::Error::Busy { .. })
            }
            _ => false,
        };
        if unwritten {
            self.give_back(filled)?;
        }
        result
    }

    fn give_back(&self, filled: &[Filled]) -> Result<()> {
        for filled in filled {
            match filled.again {
                Some(page) => self.put_back(page),
                None => self.stage.attachment().free(filled.extent)?,
            }
        }
        Ok(())
    }

    /// Logs a write, or has another thread do it that logs just now.
    fn log_one<'a>(&'a self, place: Place, filled: Filled) -> Result<u64> {
        let request = Request { place, filled };
        let fence_own = || {
            // The fence of whoever serves us does not cover what this core has streamed.
            self.stage.attachment().pool().medium().order();
        };
        let serve =
            |round: &mut Round<'a, M>, words: &Words| self.serve(round, &Request::of(words));
        let answer = self
            .board
            .ask(request.words(), fence_own, Round::default, serve);
        let (offset, seq) = match answer {
            [DONE, offset, seq, ..] => (offset, seq),
            // Its own error for everybody.
            _ => self.log(&mut self.lock()?, &request)?,
        };
        self.settle_up_to(seq)?;
        Ok(offset)
    }

    /// Does a request under the lock that is kept for all of a round. After an error nothing was done
    /// that doing it again would not do.
    fn serve<'a>(&'a self, round: &mut Round<'a, M>, request: &Request) -> Words {
        let mut done = || {
            let guard = match &mut round.guard {
                Some(guard) => guard,
                none => none.insert(self.lock()?),
            };
            self.log(guard, request)
        };
        done().map_or([0; _], |(offset, seq)| [DONE, offset, seq, 0])
    }

    /// Logs a write and shows it: its offset, and the number of its record.
    #[inline(always)]
    fn log(&self, guard: &mut FileGuard<'_, M>, request: &Request) -> Result<(u64, u64)> {
        let filled = &request.filled;
        let len = u64::from(filled.extent.len);
        let offset = self.resolve_place(guard, request.place, len)?;
        self.make_publishable(offset, len)?;
        let (when, durable) = (self.mode.when(), self.known_durable());
        let seq = guard.log(&filled.op(offset), when, durable)?;
        self.show(guard, seq, &[filled.replay(offset)])?;
        Ok((offset, seq))
    }

    /// Bytes that no single extent holds: several records, which count only together.
    fn log_group(&self, place: Place, filled: &[Filled]) -> Result<u64> {
        let mut guard = self.lock()?;
        let len = filled.iter().map(|part| u64::from(part.extent.len)).sum();
        let offset = self.resolve_place(&guard, place, len)?;
        self.make_publishable(offset, len)?;
        let offsets = filled.iter().scan(offset, |next, part| {
            let at = *next;
            *next += u64::from(part.extent.len);
            Some(at)
        });
        let (ops, shown): (Vec<Op>, Vec<ReplayOp>) = offsets
            .zip(filled)
            .map(|(at, part)| (part.op(at), part.replay(at)))
            .unzip();
        let (when, durable) = (self.mode.when(), self.known_durable());
        let seq = guard.log_group(&ops, when, durable)?;
        self.show(&guard, seq, &shown)?;
        drop(guard);
        self.settle_up_to(seq)?;
        Ok(offset)
    }

    #[inline]
    fn resolve_place(&self, guard: &FileGuard<'_, M>, place: Place, len: u64) -> Result<u64> {
        let (offset, most) = match place {
            Place::At(offset) => (offset, i64::MAX as u64),
            Place::End => match guard.end()? {
                Some(end) => (end, FARTHEST),
                None => (self.look().overlay.size(), FARTHEST),
            },
        };
        match offset.checked_add(len) {
            Some(end) if end <= most => Ok(offset),
            _ => Err(Error::TooLarge),
        }
    }

    /// The overlay learns what record `seq` did, at once or, where that is a promise that waits for a
    /// device, in [`StagedFile::settle_up_to`]: nobody acts on bytes that a crash would take back. The
    /// caller holds the file's lock. Operations of one group share the number of its end: they are
    /// published and retired together.
    #[inline(always)]
    fn show(&self, guard: &FileGuard<'_, M>, seq: u64, ops: &[ReplayOp]) -> Result<()> {
        // Not the time when it began to wait for the lock: what others have written since is older.
        let now = clock::now();
        guard.set_modified(now)?;
        self.written.store(now, Ordering::Relaxed);
        let waits = self.waits_after_lock();
        let word = self.followed.load(Ordering::Relaxed);
        let mut view = self.change();
        let nothing_before = !view.has_uncommitted();
        for op in ops {
            if waits {
                let op = *op;
                view.waiting.push_back(Waiting { seq, op, word });
            } else {
                view.record(seq, op);
            }
        }
        self.known_seq.store(seq + 1, Ordering::Relaxed);
        if self.mode.when() == When::Now && !waits {
            view.is_committed(seq, nothing_before);
        }
        let committed = view.committed;
        let Some(covered) = view.covered.batch(committed) else {
            return Ok(());
        };
        self.recycled.are_of(&view.overlay);
        drop(view);
        // It is logged and shown: who is told that it failed would log it again. The pages come back with their records.
        let _ = self.recycle(guard, covered);
        Ok(())
    }
}

/// A write whose bytes are in the pool, to be logged.
struct Request {
    place: Place,
    filled: Filled,
}

impl Request {
    /// Where a write goes that goes to the end.
    const END: u64 = u64::MAX;

    /// What somebody else has to know of it.
    fn words(&self) -> Words {
        let Filled {
            extent, data_crc, ..
        } = self.filled;
        let place = match self.place {
            // No file is so long.
            Place::At(offset) => offset.min(Self::END - 1),
            Place::End => Self::END,
        };
        let len = u64::from(extent.len);
        [place, extent.offset, len, data_crc.0]
    }

    fn of(&[place, offset, len, crc]: &Words) -> Self {
        let extent = Extent {
            offset,
            len: len as u32,
        };
        let place = match place {
            Self::END => Place::End,
            offset => Place::At(offset),
        };
        Self {
            place,
            filled: Filled {
                extent,
                data_crc: DataCrc(crc),
                again: None,
            },
        }
    }
}

/// First word of the answer to a request that was done; offset and record follow.
const DONE: u64 = 1;

/// Requests that are served under one lock, taken with the first.
struct Round<'a, M: Medium> {
    guard: Option<FileGuard<'a, M>>,
}

impl<M: Medium> Default for Round<'_, M> {
    fn default() -> Self {
        Self { guard: None }
    }
}

/// Copies the next bytes to memory of our own.
///
/// # Safety
///
/// As for [`StagedFile::write_from`].
unsafe fn take(from: &mut From<'_>, own: &mut [u8]) -> Result<()> {
    let start = own.as_mut_ptr();
    from.each(own.len(), |done, at, part| {
        // SAFETY: `done + part` is within `own`; the caller vouches for the buffers.
        unsafe { guarded_copy(start.wrapping_add(done), at, part) }.map_err(|_| Error::Fault)
    })
}
