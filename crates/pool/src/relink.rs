//! Staged bytes that become a file's without being copied, and how a recovery finds out whether they did.
//!
//! A publisher may hand pages of the pool to the base file: the file system exchanges them with the
//! file's, or shares them and they are given up here. Either way the records that name them would put
//! something else over the file's bytes if they were replayed. So before the pages change, a record says
//! durably which range of the pool goes to which range of the file, and the CRC of the bytes. A range
//! that does not have this CRC any more went: its bytes are in the file. An exchange that were repeated
//! would be undone; nothing here repeats one.
//!
//! Such a record has the sequence number of the last record that is published with it. It is no operation,
//! no link of the chain, and gone with them when that number is retired: space that is used anew after
//! that belongs to later records, of which it says nothing.

use adit_pmem::Medium;

use crate::error::{Error, Result};
use crate::layout::{Record, RecordKind, at, checked_value, checked_word};
use crate::log::{EMPTY, FileGuard, Place};
use crate::recover::{Replay, ReplayOp};

/// Staged bytes that are about to become the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intent {
    /// Where in the file.
    pub file_offset: u64,
    /// Where in the pool, within one chunk.
    pub pool_offset: u64,
    /// How many.
    pub len: u32,
    /// CRC32C of the bytes.
    pub data_crc: u32,
}

impl<M: Medium> FileGuard<'_, M> {
    /// Says what is about to be relinked, durably: when this returns, the ranges may change. They hold
    /// nothing but what durable records up to `seq` staged, and `seq` is to be retired next.
    ///
    /// Where it fails nothing may change, and no place of the log is lost.
    pub fn intend(&mut self, seq: u64, intents: &[Intent]) -> Result<()> {
        let attachment = self.attachment();
        attachment.ensure_current()?;
        let mut places = Vec::with_capacity(intents.len());
        // All of them first: a log that is full is what fails here, and nothing is written then.
        let taken = intents.iter().try_for_each(|_| {
            places.push(attachment.take_place(false)?);
            Ok(())
        });
        let told = taken.and_then(|()| self.tell(seq, intents, &places));
        told.inspect_err(|_| {
            // What is written says nothing, as the ranges are what they were, and nobody waits for it.
            for place in &places {
                attachment.settle_unwritten(*place);
            }
        })
    }

    /// Writes what was said to places of the log.
    fn tell(&self, seq: u64, intents: &[Intent], places: &[Place]) -> Result<()> {
        let attachment = self.attachment();
        let id = self.file().id;
        let sealed = self.entry() + at!(FileEntry.sealed);
        let old = checked_value(self.pool().load(sealed)?, id)
            .ok_or_else(|| Error::damaged("file entry", sealed, "check bits"))?;
        if old < seq {
            self.pool().store(sealed, checked_word(seq, id))?;
        }
        // Also where it was raised by somebody who failed before it was durable.
        self.pool().medium().flush(sealed, 8)?;
        for (intent, place) in intents.iter().zip(places) {
            let mut record = Record {
                kind: RecordKind::Relink as u8,
                flags: Record::COMMITTED | Record::DATA_CRC,
                file_id: id,
                seq,
                file_offset: intent.file_offset,
                pool_offset: intent.pool_offset,
                len: intent.len,
                data_crc: intent.data_crc,
                ..EMPTY
            };
            attachment.write_record(*place, &mut record)?;
        }
        self.pool().fence()
    }
}

/// A range that went, as the walk over the logs found it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) file_id: u64,
    pub(crate) seq: u64,
    pub(crate) file_offset: u64,
    pub(crate) pool_offset: u64,
    pub(crate) len: u64,
}

impl Gone {
    /// The part of some staged bytes, whose record is `seq`, that went to the place where it belongs.
    fn part(&self, seq: u64, file_offset: u64, start: u64, end: u64) -> Option<(u64, u64)> {
        let from = start.max(self.pool_offset);
        let to = end.min(self.pool_offset.saturating_add(self.len));
        if from >= to || self.seq < seq {
            return None;
        }
        let there = self.file_offset.checked_add(from - self.pool_offset)?;
        let belongs = file_offset.checked_add(from - start)?;
        (there == belongs).then_some((from, to))
    }
}

/// What is left to be done of a record: of a write, the parts that did not go.
pub(crate) fn left_of(replay: Replay, seq: u64, gone: &[Gone]) -> (Replay, Vec<Replay>) {
    let ReplayOp::Write {
        file_offset,
        pool_offset: start,
        len,
    } = replay.op
    else {
        return (replay, Vec::new());
    };
    let end = start + u64::from(len);
    let write = |from: u64, to: u64| ReplayOp::Write {
        file_offset: file_offset + (from - start),
        pool_offset: from,
        len: (to - from) as u32,
    };
    let mut ops = Vec::new();
    let mut at = start;
    for (from, to) in gone
        .iter()
        .filter_map(|gone| gone.part(seq, file_offset, start, end))
    {
        let from = from.max(at);
        if from >= to {
            continue;
        }
        if at < from {
            ops.push(write(at, from));
        }
        ops.push(ReplayOp::Relinked {
            file_offset: file_offset + (from - start),
            len: (to - from) as u32,
        });
        at = to;
    }
    if ops.is_empty() {
        return (replay, Vec::new());
    }
    if at < end {
        ops.push(write(at, end));
    }
    let mut parts = ops.into_iter().map(|op| Replay { op, ..replay });
    let first = parts.next().unwrap_or(replay);
    (first, parts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(seq: u64, file_offset: u64, pool_offset: u64, len: u64) -> Gone {
        Gone {
            file_id: 1,
            seq,
            file_offset,
            pool_offset,
            len,
        }
    }

    fn left(gone: &[Gone]) -> Vec<ReplayOp> {
        let write = Replay {
            seq: 5,
            op: write(1000, 8000, 300),
            at: 0,
            committed: true,
        };
        let (first, rest) = left_of(write, 5, gone);
        std::iter::once(first)
            .chain(rest)
            .map(|replay| replay.op)
            .collect()
    }

    fn write(file_offset: u64, pool_offset: u64, len: u32) -> ReplayOp {
        ReplayOp::Write {
            file_offset,
            pool_offset,
            len,
        }
    }

    fn relinked(file_offset: u64, len: u32) -> ReplayOp {
        ReplayOp::Relinked { file_offset, len }
    }

    #[test]
    fn what_went_is_not_written_again() {
        assert_eq!(left(&[]), [write(1000, 8000, 300)]);
        assert_eq!(left(&[gone(5, 1000, 8000, 300)]), [relinked(1000, 300)]);
        assert_eq!(left(&[gone(9, 0, 7000, 9000)]), [relinked(1000, 300)]);
        let middle = [
            write(1000, 8000, 100),
            relinked(1100, 50),
            write(1150, 8150, 150),
        ];
        assert_eq!(left(&[gone(5, 1100, 8100, 50)]), middle);
        // Said twice, as after an attempt that ended before anything changed.
        assert_eq!(
            left(&[gone(5, 1100, 8100, 50), gone(5, 1100, 8100, 50)]),
            middle
        );
        let ends = [gone(5, 900, 7900, 150), gone(6, 1250, 8250, 4096)];
        let expected = [
            relinked(1000, 50),
            write(1050, 8050, 200),
            relinked(1250, 50),
        ];
        assert_eq!(left(&ends), expected);
    }

    #[test]
    fn what_does_not_concern_a_record_changes_nothing() {
        let whole = [write(1000, 8000, 300)];
        // Published before the record was written; another place; other bytes; nonsense.
        assert_eq!(left(&[gone(4, 1000, 8000, 300)]), whole);
        assert_eq!(left(&[gone(5, 2000, 8000, 300)]), whole);
        assert_eq!(left(&[gone(5, 1000, 9000, 300)]), whole);
        assert_eq!(left(&[gone(5, u64::MAX, 7999, u64::MAX)]), whole);
    }
}
