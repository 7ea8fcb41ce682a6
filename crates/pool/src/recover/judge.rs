//! Which of the records that the walk has found count.

mod verdict;

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use adit_pmem::Medium;

use self::verdict::{Behind, Verdict, lacking, standing};
use super::{Item, RecoveredFile, Recovery, Rejection, State, shares};
use crate::error::{Error, Result, readable};
use crate::files::FileRef;
use crate::layout::{FileEntry, Record, RecordKind, checked_value};
use crate::log::Place;
use crate::parallel;
use crate::pool::Pool;
use crate::relink::Gone;
use crate::together::{Link, Rings, parts_with};

impl Recovery {
    /// Some of the records found.
    fn picked(&self, places: &[usize]) -> Vec<Item> {
        places.iter().map(|i| self.items[*i]).collect()
    }
}

impl<M: Medium> Pool<M> {
    /// Decides which of the records found count.
    pub(super) fn judge(&self, found: &mut Recovery, orphans: &BTreeSet<u32>) -> Result<()> {
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
        keep_together(&rings, found);
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
                    // Kept, however many there are.
                    found.items[i].linked = true;
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
        let items = found.picked(&sound);
        let first = Verdict::of(&items, retired, self.boot_tag());
        let mut complete = Vec::with_capacity(sound.len());
        let without = self.without_bytes(&sound, &first.states, sealed, found)?;
        let differs = |(_, reason): &(usize, Rejection)| *reason == Rejection::DataMismatch;
        let handed_over = if without.iter().any(differs) {
            self.handed_over_by_now(file)
        } else {
            0
        };
        let behind = LazyCell::new(|| Behind::of(&items));
        let was_cut_off =
            |nth: usize| items[nth].boot != self.boot_tag() && behind.may_be_cut_off(nth);
        let mut without = without.into_iter().peekable();
        for (nth, i) in sound.iter().enumerate() {
            match without.next_if(|(missing, _)| *missing == nth) {
                None => complete.push(*i),
                Some((_, Rejection::DataMismatch)) if found.items[*i].seq <= handed_over => {
                    complete.push(*i);
                }
                // Who found it without its bytes before, and was cut off himself, may have given their space back.
                Some((_, Rejection::DataMismatch | Rejection::DataGone)) if was_cut_off(nth) => {
                    found.reject(place(&found.items[*i]), Rejection::TornData);
                }
                // Another time they may be readable. So it counts, and nothing is done to the file.
                Some((_, Rejection::Lost)) => {
                    found.list(place(&found.items[*i]), Rejection::Lost);
                    found.unreadable.insert(file.id, place(&found.items[*i]));
                    complete.push(*i);
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

    /// Up to which record a file's may have got other bytes while they were looked at: a relink beside us says so before
    /// it hands any over.
    fn handed_over_by_now(&self, file: FileRef) -> u64 {
        match self.live_entry(file) {
            Ok(entry) => [entry.sealed, entry.retired]
                .map(|mark| checked_value(mark, file.id).unwrap_or(0))
                .into_iter()
                .fold(0, u64::max),
            Err(Error::Forgotten) => u64::MAX,
            Err(_) => 0,
        }
    }

    /// Decides about the sound records of a file.
    fn decide(
        &self,
        records: &SoundRecords,
        found: &mut Recovery,
        orphans: &BTreeSet<u32>,
    ) -> Result<()> {
        let items = found.picked(&records.sound);
        let verdict = Verdict::of(&items, records.retired, self.boot_tag());
        found.counts.unclosed += verdict.unclosed;
        found.counts.uncommitted += verdict.uncommitted;
        if !verdict.chains_broken.is_empty() {
            // What counted until a record between was lost is kept.
            for i in &records.sound {
                found.items[*i].linked = true;
            }
        }
        for (at, missing) in verdict.chains_broken {
            let Place { chunk, position } = items[at].place;
            let offset = self.geometry().record(chunk, position);
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
            found.link_what_counts(&records.sound, records.retired);
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
            let record = self.found_record(item.place)?;
            let at = self
                .geometry()
                .record(item.place.chunk, item.place.position);
            let (start, len) = (record.pool_offset, record.len);
            if let Err(reason) = self.sense_extent(start, u64::from(len))? {
                found.reject(at, reason);
                continue;
            }
            found.items[i].state = State::Live;
            found.counts.live += 1;
            match self.crc_of_data(start, len)? {
                Ok(crc) if crc == record.data_crc => {}
                Ok(_) => found.gone.push(Gone {
                    file_id: item.file_id,
                    seq: item.seq,
                    file_offset: record.file_offset,
                    pool_offset: start,
                    len: u64::from(len),
                }),
                Err(_) => {
                    found.list(at, Rejection::Lost);
                    found.unreadable.insert(item.file_id, at);
                }
            }
        }
        found.gone[first..].sort_unstable_by_key(|gone| gone.pool_offset);
        Ok(())
    }

    /// Whether the power was cut before a file's name in the pool was durable: then no record of it says that it was.
    pub(super) fn was_entry_cut_off(
        &self,
        index: u32,
        entry: &FileEntry,
        items: &[Item],
    ) -> Result<bool> {
        if entry.boot == self.boot_tag() || !entry.is_cached() {
            return Ok(false);
        }
        let retired = checked_value(entry.retired, entry.file_id).unwrap_or(0);
        let told = |item: &Item| item.flags & Record::CHAINED == 0;
        if retired > 0 || items.iter().any(told) {
            return Ok(false);
        }
        match self.name_of(index, entry) {
            // The table of names is durable before any name is, and a power cut flips no bit.
            Err(Error::Damaged { structure, .. }) => {
                Ok(structure != "name table" && !self.is_name_flipped(index, entry)?)
            }
            // What cannot be read another time was there once.
            named => readable(named).map(|_| false),
        }
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
        let record = self.found_record(item.place)?;
        if let Err(reason) = self.sense_extent(record.pool_offset, u64::from(record.len))? {
            return Ok(Err(reason));
        }
        if record.flags & Record::DATA_CRC == 0 || item.seq <= sealed {
            return Ok(Ok(()));
        }
        Ok(match self.crc_of_data(record.pool_offset, record.len)? {
            Ok(crc) if crc == record.data_crc => Ok(()),
            Ok(_) => Err(Rejection::DataMismatch),
            Err(_) => Err(Rejection::Lost),
        })
    }
}

/// Of files that are committed together all are published, or none: where one's bytes cannot be read, they may have been cut
/// off, and then nobody's commit is one.
fn keep_together(rings: &Rings, found: &mut Recovery) {
    loop {
        let Some(at) = found.unreadable.values().next().copied() else {
            return;
        };
        let of_unreadable = |key: &&(u64, u64)| found.unreadable.contains_key(&key.0);
        let parts = parts_with(rings.keys().filter(of_unreadable).copied(), rings);
        let before = found.unreadable.len();
        for (file_id, _) in parts {
            found.unreadable.entry(file_id).or_insert(at);
        }
        if found.unreadable.len() == before {
            return;
        }
    }
}

/// The commits of several files among a file's sound records, and whether all that each commits is there. What an earlier
/// one of them lacks is no matter to one that stands: it was written when that was durable, so it has been lost since.
fn chains(records: &SoundRecords, found: &Recovery) -> Vec<(usize, bool)> {
    let items = found.picked(&records.sound);
    let stands = standing(&items, records.retired);
    let lacks = lacking(&items, records.retired);
    let shared = (0..items.len()).filter(|at| items[*at].is_together());
    shared
        .map(|at| (records.sound[at], lacks[at].is_none() && stands[at]))
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
