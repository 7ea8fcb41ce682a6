//! Where an append becomes durable.
//!
//! 1. Fresh space is taken from a chunk that is this process's alone, and the bytes are streamed into
//!    it. Nobody refers to them yet, so no lock is needed and several threads copy at once.
//! 2. Under the file's lock the end of the file becomes the offset, the sequence number is taken, and
//!    one 64-byte record is written. A fence between bytes and record keeps the record from being
//!    believed before its bytes; short bytes travel with their CRC in the record instead, which saves
//!    that fence.
//! 3. A fence makes the record durable, then the overlay shows the bytes. The lock is held until then,
//!    so the overlay's order is the log's.

use adit_pmem::{BaseFile, Medium};
use adit_pool::{Extent, FileGuard, Op, ReplayOp};

use super::error::{Error, Result, is_pressure};
use super::file::StagedFile;

/// Up to this many bytes a CRC costs less than a fence.
const CRC_LIMIT: usize = 256;

/// Where a write goes.
#[derive(Debug, Clone, Copy)]
enum Place {
    At(u64),
    End,
}

/// Bytes that lie in the pool and belong to no file yet.
#[derive(Debug, Clone, Copy)]
struct Filled {
    extent: Extent,
    data_crc: Option<u32>,
}

impl Filled {
    fn op(&self, file_offset: u64) -> Op {
        Op::Write {
            file_offset,
            extent: self.extent,
            len: self.extent.len,
            data_crc: self.data_crc,
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
        self.write(Place::End, bytes)
    }

    /// Writes at an offset, inside the file or beyond its end. Entirely or not at all.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(Place::At(offset), bytes).map(|_| ())
    }

    /// Cuts or extends the file.
    pub fn truncate(&self, size: u64) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Error::TooLarge);
        }
        self.with_room(|| {
            let mut guard = self.lock()?;
            let seq = guard.append(&Op::Truncate { size }, self.mode.when())?;
            self.show(seq, [ReplayOp::Truncate { size }]);
            Ok(())
        })
    }

    /// Makes everything so far durable: in `posix` and `atomic` mode this is the instant at which all
    /// of it happens.
    pub fn fsync(&self) -> Result<()> {
        self.with_room(|| {
            let mut guard = self.lock()?;
            self.commit(&mut guard)
        })
    }

    /// Commits what is not yet committed.
    pub(super) fn commit(&self, guard: &mut FileGuard<'_, M>) -> Result<()> {
        if self.look().has_uncommitted() {
            let seq = guard.commit()?;
            let mut view = self.change();
            view.committed = seq;
            view.next_seq = seq + 1;
        }
        Ok(())
    }

    fn write(&self, place: Place, bytes: &[u8]) -> Result<u64> {
        if bytes.is_empty() {
            return Ok(match place {
                Place::At(offset) => offset,
                Place::End => self.size(),
            });
        }
        let chunk = self.stage.attachment().pool().geometry().chunk_size() as usize;
        self.with_room(|| {
            if bytes.len() <= chunk {
                let filled = self.fill(bytes)?;
                self.logged(&[filled], || self.log_one(place, filled))
            } else {
                let mut all = Vec::with_capacity(bytes.len().div_ceil(chunk));
                for part in bytes.chunks(chunk) {
                    match self.fill(part) {
                        Ok(filled) => all.push(filled),
                        Err(error) => return self.logged(&all, || Err(error)),
                    }
                }
                self.logged(&all, || self.log_group(place, &all))
            }
        })
    }

    /// Streams bytes into fresh space.
    fn fill(&self, bytes: &[u8]) -> Result<Filled> {
        let attachment = self.stage.attachment();
        let extent = self.stage.space(bytes.len() as u32)?;
        attachment.fill(extent, 0, bytes)?;
        let data_crc = (bytes.len() <= CRC_LIMIT).then(|| crc32c::crc32c(bytes));
        Ok(Filled { extent, data_crc })
    }

    /// Gives the space back when there was no room for the record. After any other failure a record may
    /// name it: then it stays taken until the attachment ends.
    fn logged<T>(&self, filled: &[Filled], log: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = log();
        if let Err(Error::TooLarge) = &result {
            self.give_back(filled)?;
        }
        if let Err(Error::Pool(error)) = &result
            && is_pressure(error)
        {
            self.give_back(filled)?;
        }
        result
    }

    fn give_back(&self, filled: &[Filled]) -> Result<()> {
        for filled in filled {
            self.stage.attachment().free(filled.extent)?;
        }
        Ok(())
    }

    fn log_one(&self, place: Place, filled: Filled) -> Result<u64> {
        let mut guard = self.lock()?;
        let offset = self.resolve_place(&guard, place, u64::from(filled.extent.len))?;
        let seq = guard.append(&filled.op(offset), self.mode.when())?;
        self.show(seq, [filled.replay(offset)]);
        Ok(offset)
    }

    /// Bytes that no single extent holds: several records, which count only together.
    fn log_group(&self, place: Place, filled: &[Filled]) -> Result<u64> {
        let mut guard = self.lock()?;
        let len = filled.iter().map(|part| u64::from(part.extent.len)).sum();
        let offset = self.resolve_place(&guard, place, len)?;
        let offsets = filled.iter().scan(offset, |next, part| {
            let at = *next;
            *next += u64::from(part.extent.len);
            Some(at)
        });
        let (ops, shown): (Vec<Op>, Vec<ReplayOp>) = offsets
            .zip(filled)
            .map(|(at, part)| (part.op(at), part.replay(at)))
            .unzip();
        let seq = guard.append_group(&ops, self.mode.when())?;
        self.show(seq, shown);
        Ok(offset)
    }

    fn resolve_place(&self, guard: &FileGuard<'_, M>, place: Place, len: u64) -> Result<u64> {
        let offset = match place {
            Place::At(offset) => offset,
            Place::End => guard.end()?.unwrap_or_else(|| self.size()),
        };
        match offset.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => Ok(offset),
            _ => Err(Error::TooLarge),
        }
    }

    /// The overlay learns what record `seq` did. The caller holds the file's lock. Operations of one
    /// group share the number of its end: they are published and retired together.
    fn show(&self, seq: u64, ops: impl IntoIterator<Item = ReplayOp>) {
        let mut view = self.change();
        for op in ops {
            view.record(seq, op);
        }
        view.next_seq = seq + 1;
        if self.mode.when() == adit_pool::When::Now {
            view.committed = seq;
        }
    }
}
