//! Committing several files at one instant.
//!
//! Each file gets a commit record of its own, in its own chain, and each record names the one of the next
//! file; the last names the first. A ring counts when all of it is there, so one fence makes all of these
//! commits, and a crash before its end none.
//!
//! Members go at different times: a file is published, retired and forgotten by itself. A record whose
//! neighbour has been retired so far, or is not known any more, takes that for its presence: nobody
//! retires what is not committed. This is sound because a ring that a crash of the system left in parts
//! is erased by the first who attaches, before anything can be retired ([`Pool::erase_broken`]).
//!
//! A process that dies between two of the records leaves parts of a ring as well. They commit nothing
//! and no chain leads through them; in the boot of the dead everything acknowledged counts anyway. But
//! any of the files may be retired by itself then, and after a loss of power the part before it would
//! look whole. So whoever takes the lock of one of the files from the dead erases all the parts, before
//! anything of the file can be retired ([`FileGuard::mend_ring`]).

use std::collections::{BTreeMap, BTreeSet};

use adit_pmem::Medium;

use crate::error::{Error, Result};
use crate::files::FileRef;
use crate::layout::{Record, RecordKind, at, checked_value};
use crate::log::{EMPTY, FileGuard, Place};
use crate::pool::{Attachment, Pool};

/// Records of a ring that lie in the log: by file and sequence number.
pub(crate) type Rings = BTreeMap<(u64, u64), Link>;

/// One record of a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// Boot in which it was written.
    pub(crate) boot: u32,
    /// File and sequence number of the next one.
    pub(crate) next: (u64, u64),
    /// The last record that the next one commits.
    pub(crate) next_covers: u64,
    /// Whether everything that it commits is there.
    pub(crate) sound: bool,
}

impl Link {
    /// What a commit of several files says about the next.
    pub(crate) fn of(record: &Record, sound: bool) -> Self {
        Self {
            boot: record.boot,
            next: (record.file_offset, record.pool_offset),
            next_covers: record.pool_offset.saturating_sub(u64::from(record.len)),
            sound,
        }
    }
}

impl<M: Medium> Attachment<M> {
    /// Commits every record so far of several files, entirely or not at all: after a crash of the system
    /// all of them count, or none that was not committed before. Durable on return. The guards are of
    /// this attachment and of different files; locked in the order of [`FileRef`], as everybody does who
    /// locks several. Each has something that nobody has committed: of a file that has nothing, what another commits would
    /// not be looked for. After an error they are to be dropped: whoever locks the files next finds out what is to become
    /// of the parts. Returns the sequence numbers of the commits, in the order of the guards.
    pub fn commit_together(&self, guards: &mut [FileGuard<'_, M>]) -> Result<Vec<u64>> {
        self.ensure_current()?;
        if let [guard] = guards {
            return Ok(vec![guard.commit()?]);
        }
        let mut places = Vec::with_capacity(guards.len());
        for _ in 0..guards.len() {
            match self.take_place(true) {
                Ok(place) => places.push(place),
                Err(error) => {
                    self.give_up(guards, &places)?;
                    return Err(error);
                }
            }
        }
        let mut ring = match ring_of(guards, &places) {
            Ok(ring) => ring,
            Err(error) => {
                self.give_up(guards, &places)?;
                return Err(error);
            }
        };
        for (nth, (guard, record)) in guards.iter().zip(&mut ring).enumerate() {
            if let Err(error) = guard.put(places[nth], record) {
                let (written, rest) = places.split_at(nth + 1);
                if self.erase(written).is_err() {
                    // Whoever takes the locks next has to, before one of the files goes by itself.
                    rest.iter().for_each(|place| self.settle_unwritten(*place));
                    leave_unrepaired(guards);
                } else {
                    self.give_up(guards, rest)?;
                }
                return Err(error);
            }
        }
        // Of what was not synced any part may be durable: whoever takes the locks next makes all of it so.
        let durable = self.pool.fence();
        durable.inspect_err(|_| leave_unrepaired(guards))?;
        for (guard, record) in guards.iter().zip(&ring) {
            guard.finish(record)?;
        }
        Ok(ring.iter().map(|record| record.seq).collect())
    }

    /// Erases parts of a ring that never became whole, durably. They lie in the log still: nothing of their files was
    /// retired since.
    fn erase(&self, places: &[Place]) -> Result<()> {
        self.pool.erase_broken(places)?;
        for place in places {
            // Of another's log its owner keeps the place until he leaves.
            self.settle(*place);
        }
        Ok(())
    }

    fn give_up(&self, guards: &[FileGuard<'_, M>], places: &[Place]) -> Result<()> {
        for place in places {
            self.settle_unwritten(*place);
        }
        guards.iter().try_for_each(FileGuard::nothing_pending)
    }
}

fn leave_unrepaired<M: Medium>(guards: &[FileGuard<'_, M>]) {
    guards
        .iter()
        .for_each(|guard| guard.lock.leave_unrepaired());
}

/// What is found of rings of which some files have not gone on yet.
#[derive(Default)]
struct Unsettled {
    rings: Rings,
    places: BTreeMap<(u64, u64), Place>,
    /// Where somebody has erased a part, durably or not.
    erased: Vec<Place>,
}

impl<M: Medium> FileGuard<'_, M> {
    /// What somebody who died with this file's lock has left of the ring that was to have its part in record `seq` of the
    /// file, if that was to be one of a ring: all of it is durable from here on, or nothing is left of it.
    ///
    /// He had the locks of all its files, and each had noted where its part would be before the first was written. So until
    /// somebody comes here for a file, its `pending` says where its part lies, if it has one, also in the log of a process
    /// that lives, one of whose threads has jumped out; nobody looks for it in the logs, which for each file of a large ring
    /// would take longer than openers are let wait. From the log of a dead one chunks are freed under the recovery lock; as
    /// it is held here, the others come here one after the other, and find all of the ring or nothing. Who frees chunks
    /// takes no file's lock.
    pub(crate) fn mend_ring(&self, seq: u64) -> Result<()> {
        let (attachment, pool) = (self.attachment(), self.pool());
        let _lock = attachment.lock_recovery()?;
        let Unsettled {
            mut rings,
            places,
            erased,
        } = pool.unsettled()?;
        // Another who came here may have died, and a loss of power would bring back what is erased only to the eye.
        pool.make_erased_durable(&erased)?;
        let parts = parts_with([(self.file().id, seq)], &rings);
        rings.retain(|key, _| parts.contains(key));
        if pool.leads_to_one_settled(&rings)? {
            return Ok(());
        }
        let places: Vec<Place> = rings.keys().map(|key| places[key]).collect();
        if !pool.broken(&rings)?.is_empty() {
            return attachment.erase(&places);
        }
        for place in &places {
            if let Some(record) = pool.read_record(*place)? {
                pool.write_record_back(*place, &record)?;
            }
        }
        if places.is_empty() {
            Ok(())
        } else {
            pool.fence()
        }
    }
}

impl<M: Medium> Pool<M> {
    /// The parts of rings that files wait with, where their `pending` says. Also of rings that somebody is just writing: no
    /// part of those leads to one of the dead, nor the other way round.
    fn unsettled(&self) -> Result<Unsettled> {
        let mut found = Unsettled::default();
        for index in 0..self.geometry().file_count {
            let entry = self.geometry().file_entry(index);
            let pending = self.load(entry + at!(FileEntry.pending))?;
            let Some(place) = Place::of_pending(pending) else {
                continue;
            };
            match self.read_record(place)? {
                Some(record) if self.is_part_of(index, &record)? => {
                    let key = (record.file_id, record.seq);
                    found.rings.insert(key, Link::of(&record, true));
                    found.places.insert(key, place);
                }
                None if self.is_erased(place)? => found.erased.push(place),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Whether a record is the one of a ring that the file of this entry waits with: a place may be another's by now, and a
    /// `pending` be left from a record that could not be written, or from another boot.
    fn is_part_of(&self, index: u32, record: &Record) -> Result<bool> {
        let entry = self.geometry().file_entry(index);
        let next_seq = self.load(entry + at!(FileEntry.next_seq))?;
        let file = FileRef { id: record.file_id };
        Ok(record.flags & Record::TOGETHER != 0
            && record.boot == self.boot_tag()
            && file.index() == index
            && next_seq.checked_sub(1) == Some(record.seq))
    }

    /// Whether one of these parts leads to a file that has gone on. It goes on when its ring is settled: all of it was
    /// durable by then, or whatever led to its part was erased. As this part is there, all of it was.
    fn leads_to_one_settled(&self, rings: &Rings) -> Result<bool> {
        for link in rings.values() {
            if !rings.contains_key(&link.next) && self.has_gone_on(link.next)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a file waits no longer with the record that was to have this number. To be asked when that was not found,
    /// and not before: who settles a file that lives goes on at once, and its part may be gone with its chunk.
    fn has_gone_on(&self, (file_id, seq): (u64, u64)) -> Result<bool> {
        let file = FileRef { id: file_id };
        match self.ensure_live(file) {
            Err(Error::Forgotten) => return Ok(true),
            // Whose number that is nobody knows; what is missing of it is judged as any other part.
            Err(Error::Damaged { .. }) => return Ok(false),
            live => live?,
        }
        let entry = self.geometry().file_entry(file.index());
        // In this order, and behind the look for its part, whose loads are done by now: a number is taken before its place is
        // noted, so with a later place a later number is seen.
        let pending = self.load(entry + at!(FileEntry.pending))?;
        let next_seq = self.load(entry + at!(FileEntry.next_seq))?;
        Ok(pending == 0 || next_seq.saturating_sub(1) > seq)
    }
}

/// What hangs together with some parts of rings, which may themselves be missing: what leads to them and what they lead to.
pub(crate) fn parts_with(
    some: impl IntoIterator<Item = (u64, u64)>,
    rings: &Rings,
) -> BTreeSet<(u64, u64)> {
    // Of what Adit writes one part leads to another; what is damaged may have more.
    let mut before = BTreeMap::<_, Vec<_>>::new();
    for (key, link) in rings {
        before.entry(link.next).or_default().push(*key);
    }
    let mut parts = BTreeSet::new();
    let mut open: Vec<_> = some.into_iter().collect();
    while let Some(part) = open.pop() {
        if parts.insert(part) {
            open.extend(before.get(&part).into_iter().flatten());
            open.extend(rings.get(&part).map(|link| link.next));
        }
    }
    parts
}

/// The records, numbered: all numbers are taken before the first record is written, so no other record
/// ever has the number that a link names.
fn ring_of<M: Medium>(guards: &[FileGuard<'_, M>], places: &[Place]) -> Result<Vec<Record>> {
    let mut ring = Vec::with_capacity(guards.len());
    for (guard, place) in guards.iter().zip(places) {
        let seq = guard.number(*place)?;
        let prev = guard.last_seq()?.min(seq - 1);
        ring.push(Record {
            kind: RecordKind::Commit as u8,
            // What the caller knows to be durable makes no difference: one fence is for all.
            flags: Record::TOGETHER | guard.chained(prev, 0),
            file_id: guard.file().id,
            seq,
            prev,
            ..EMPTY
        });
    }
    for nth in 0..ring.len() {
        let next = ring[(nth + 1) % ring.len()];
        ring[nth].file_offset = next.file_id;
        ring[nth].pool_offset = next.seq;
        // Dead writers leave gaps, not four billion of them.
        ring[nth].len = u32::try_from(next.seq - next.prev)
            .map_err(|_| Error::Invalid("a gap in the sequence that no record can name"))?;
    }
    Ok(ring)
}

/// What becomes of a part of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It lies on a ring of which nothing is missing.
    Whole,
    /// It leads to one that was retired, so nothing was missing.
    Retired,
    /// It leads to one that is missing, or into a ring on which it does not lie itself.
    Broken,
}

/// What becomes of each part, where `is_retired` says it of one that is not there. Those that lack what they commit stay
/// whatever becomes of the others: the chain of a later commit ends there.
fn fates(
    rings: &Rings,
    is_retired: impl Fn(&Link) -> Result<bool>,
) -> Result<BTreeMap<(u64, u64), Fate>> {
    let mut fates = BTreeMap::new();
    for start in rings.keys() {
        let mut walked = Vec::new();
        let mut places = BTreeMap::new();
        let mut at = *start;
        // What becomes of those from which one does not come back.
        let fate = loop {
            match fates.get(&at) {
                Some(Fate::Whole) => break Fate::Broken,
                Some(fate) => break *fate,
                None => {}
            }
            if let Some(place) = places.get(&at) {
                fates.extend(walked.drain(place..).map(|key| (key, Fate::Whole)));
                break Fate::Broken;
            }
            let Some(link) = rings.get(&at).filter(|link| link.sound) else {
                break Fate::Broken;
            };
            places.insert(at, walked.len());
            walked.push(at);
            match rings.get(&link.next) {
                Some(next) if next.boot == link.boot => at = link.next,
                None if is_retired(link)? => break Fate::Retired,
                _ => break Fate::Broken,
            }
        };
        fates.extend(walked.into_iter().map(|key| (key, fate)));
    }
    Ok(fates)
}

impl<M: Medium> Pool<M> {
    /// Which records of which rings commit nothing, because another one is missing.
    pub(crate) fn broken(&self, rings: &Rings) -> Result<Vec<(u64, u64)>> {
        let fates = fates(rings, |link| self.is_retired(link.next.0, link.next_covers))?;
        let broken = fates.into_iter().filter(|(_, fate)| *fate == Fate::Broken);
        Ok(broken.map(|(key, _)| key).collect())
    }

    fn is_retired(&self, file_id: u64, seq: u64) -> Result<bool> {
        match self.live_entry(FileRef { id: file_id }) {
            Ok(entry) => {
                Ok(checked_value(entry.retired, file_id).is_some_and(|retired| retired >= seq))
            }
            // What cannot be known any more must not take the other files' bytes with it.
            Err(Error::Forgotten | Error::Damaged { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Erases what is left of rings that a crash cut short, durably: once a member is retired, for
    /// whatever else it was committed by, its missing record would be taken for one that was there.
    /// The caller is alone, and has retired nothing yet.
    ///
    /// Of each record one word changes: a line of zeros, cut off while it is written, would be neither a record nor
    /// none, and where the log goes on behind it the next recovery would call it lost.
    pub(crate) fn erase_broken(&self, places: &[Place]) -> Result<()> {
        for place in places {
            let offset = self.geometry().record(place.chunk, place.position);
            let erased = Record::erased_word(self.uuid(), place.chunk, place.position);
            self.store(offset, erased)?;
        }
        self.make_erased_durable(places)
    }

    /// The same of what somebody has erased who may have died before that was durable. Nothing is written: the chunk may
    /// be another's by now, where all records of that log were settled.
    pub(crate) fn make_erased_durable(&self, places: &[Place]) -> Result<()> {
        for place in places {
            let offset = self.geometry().record(place.chunk, place.position);
            self.medium().flush(offset, 8)?;
        }
        if places.is_empty() {
            Ok(())
        } else {
            self.fence()
        }
    }
}

#[cfg(test)]
mod tests;
