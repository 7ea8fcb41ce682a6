//! Retired records, and the space of what they stage, become free again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use adit_pmem::Medium;

use super::{Place, extent_of};
use crate::alloc::{ChunkMap, Role};
use crate::error::{Error, Result, readable};
use crate::files::FileRef;
use crate::layout::RecordKind;
use crate::pool::{Attachment, Pool};

/// What one collection knows of the marks up to which files are retired. Files' records lie between each other, and
/// where a fence is a sync of the kernel, one for each record would take minutes: a mark is looked up once, and made
/// durable once, if a record is below it. Marks only rise, so a known one frees too little at worst.
struct Marks<'a, M: Medium> {
    pool: &'a Pool<M>,
    known: BTreeMap<FileRef, Mark>,
}

#[derive(Clone, Copy)]
struct Mark {
    seq: u64,
    is_durable: bool,
}

impl<M: Medium> Marks<'_, M> {
    /// Whether a file is retired up to `seq`, as far as is seen.
    fn cover(&mut self, file: FileRef, seq: u64) -> Result<bool> {
        let mark = match self.known.entry(file) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => *unknown.insert(Mark {
                seq: self.pool.seen_retired(file)?,
                is_durable: false,
            }),
        };
        Ok(seq <= mark.seq)
    }

    /// What is seen of a file's mark stays so from here on.
    fn make_durable(&mut self, file: FileRef) -> Result<()> {
        if let Some(mark) = self.known.get_mut(&file)
            && !mark.is_durable
        {
            self.pool.make_seen_durable(file)?;
            mark.is_durable = true;
        }
        Ok(())
    }
}

impl<M: Medium> Attachment<M> {
    /// Looks at every record of this attachment that is still waiting; the extents of those that were
    /// retired become free again, chunks without waiting records are given back. Returns how many records
    /// were settled. From then on the bytes may be overwritten: whoever still reads them asks for the
    /// file's mark ([`Pool::retired_word`]) afterwards.
    ///
    /// One thread at a time: two that find the same chunk settled would both give it back, the second
    /// one when it may be the log again already.
    pub fn reclaim(&self) -> Result<u64> {
        self.ensure_current()?;
        // The lock guards no data, so a panic has broken nothing.
        let _alone = self
            .state
            .reclaiming
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let capacity = self.pool.geometry().records_per_chunk();
        let current = (self.state.log.load(Ordering::Acquire) >> 32) as u32;
        let mut settled = 0;
        let mut marks = Marks {
            pool: &self.pool,
            known: BTreeMap::new(),
        };
        for (chunk, map) in self.leased().filter(|(_, map)| map.is(Role::Log)) {
            for (i, word) in map.waiting().iter().enumerate() {
                let mut waiting = word.load(Ordering::Acquire);
                while waiting != 0 {
                    let bit = waiting.trailing_zeros();
                    waiting &= waiting - 1;
                    let place = Place {
                        chunk,
                        position: i as u32 * 64 + bit,
                    };
                    settled += u64::from(self.reclaim_one(place, map, &mut marks)?);
                }
            }
            let settled_all = map.settled.load(Ordering::Acquire) >= capacity;
            if chunk != current && settled_all && map.is_nothing_waiting() {
                self.give_back(chunk, map)?;
            }
        }
        Ok(settled)
    }

    /// Who has erased a record may not have got as far as making that durable: with the place free, nobody would.
    fn reclaim_erased(&self, place: Place) -> Result<bool> {
        self.pool.make_erased_durable(&[place])?;
        Ok(self.settle(place))
    }

    fn reclaim_one(&self, place: Place, map: &ChunkMap, marks: &mut Marks<'_, M>) -> Result<bool> {
        let Ok(record) = readable(self.pool.read_record(place))? else {
            // It stays, and keeps no other one.
            return Ok(false);
        };
        let Some(record) = record else {
            // A record being written just now is not readable yet: it is not retired either.
            return Ok(self.pool.is_erased(place)? && self.reclaim_erased(place)?);
        };
        if record.generation != map.generation() {
            return Ok(false);
        }
        let file = FileRef { id: record.file_id };
        match marks.cover(file, record.seq) {
            // What is retired of a file whose entry is damaged nobody knows: its records stay, and keep no other file's.
            Ok(false) | Err(Error::Damaged { .. }) => return Ok(false),
            covered => covered.map(drop)?,
        }
        let extent = extent_of(&record);
        let names = RecordKind::from_byte(record.kind).is_some_and(RecordKind::has_extent);
        marks.make_durable(file)?;
        let mine = self.settle(place);
        if mine && names && self.unname_extent(extent, place) {
            self.give_extent(extent);
        }
        Ok(mine)
    }
}
