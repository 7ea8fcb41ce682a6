//! Which of the records that the walk has found count.

use std::collections::{BTreeMap, BTreeSet};

use adit_pmem::Medium;

use super::{AT_A_TIME, Item, RecoveredFile, Recovery, Rejection, State, shares};
use crate::error::{Error, Result};
use crate::files::FileRef;
use crate::layout::{FileEntry, Record, RecordKind, checked_value};
use crate::log::Place;
use crate::parallel;
use crate::pool::Pool;
use crate::relink::Gone;
use crate::together::{Link, Rings};

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
        let first = self.verdict(&sound, retired, found);
        let mut complete = Vec::with_capacity(sound.len());
        let without = self.without_bytes(&sound, &first.states, sealed, found)?;
        let differs = |(_, reason): &(usize, Rejection)| *reason == Rejection::DataMismatch;
        let handed_over = if without.iter().any(differs) {
            self.handed_over_by_now(file)
        } else {
            0
        };
        // A transaction may have lost the bytes of all its records: none of them looks at those behind it one by one.
        let tell = |(nth, i): (usize, &usize)| tells_of_a_sync(&found.items[*i]).then_some(nth);
        let telling: Vec<usize> = match without.is_empty() {
            true => Vec::new(),
            false => sound.iter().enumerate().filter_map(tell).collect(),
        };
        let mut without = without.into_iter().peekable();
        for (nth, i) in sound.iter().enumerate() {
            match without.next_if(|(missing, _)| *missing == nth) {
                None => complete.push(*i),
                Some((_, Rejection::DataMismatch)) if found.items[*i].seq <= handed_over => {
                    complete.push(*i);
                }
                // Who found it without its bytes before, and was cut off himself, may have given their space back.
                Some((_, Rejection::DataMismatch | Rejection::DataGone))
                    if self.was_cut_off(&sound, &telling, nth, found) =>
                {
                    found.reject(place(&found.items[*i]), Rejection::TornData);
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
        let verdict = self.verdict(&records.sound, records.retired, found);
        found.counts.unclosed += verdict.unclosed;
        found.counts.uncommitted += verdict.uncommitted;
        if !verdict.chains_broken.is_empty() {
            // What counted until a record between was lost is kept.
            for i in &records.sound {
                found.items[*i].linked = true;
            }
        }
        for (offset, missing) in verdict.chains_broken {
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
            if !self.data_matches(start, len, record.data_crc)? {
                found.gone.push(Gone {
                    file_id: item.file_id,
                    seq: item.seq,
                    file_offset: record.file_offset,
                    pool_offset: start,
                    len: u64::from(len),
                });
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
            named => named.map(|_| false),
        }
    }

    /// Whether the power may have been cut before the record at `nth` was durable. `telling` are the places of those that
    /// tell of a sync.
    fn was_cut_off(
        &self,
        sound: &[usize],
        telling: &[usize],
        nth: usize,
        found: &Recovery,
    ) -> bool {
        let item = &found.items[sound[nth]];
        let cut_off = || {
            if is_paged(item) {
                let behind = telling.partition_point(|place| *place <= nth);
                let rest = telling[behind..].iter();
                may_wait_for_a_sync(item, rest.map(|place| &found.items[sound[*place]]))
            } else {
                let rest = sound[nth + 1..].iter();
                may_wait_for_its_fence(item, rest.map(|i| &found.items[*i]))
            }
        };
        item.boot != self.boot_tag() && cut_off()
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
        if record.flags & Record::DATA_CRC != 0
            && item.seq > sealed
            && !self.data_matches(record.pool_offset, record.len, record.data_crc)?
        {
            return Ok(Err(Rejection::DataMismatch));
        }
        Ok(Ok(()))
    }

    /// The fate of each sound record of one file, given in order.
    fn verdict(&self, sound: &[usize], retired: u64, found: &Recovery) -> Verdict {
        let mut verdict = Verdict::default();
        let items: Vec<Item> = sound.iter().map(|i| found.items[*i]).collect();
        let boot = self.boot_tag();
        // For members and ends of complete groups: the group's end.
        let mut group_end: Vec<Option<usize>> = vec![None; items.len()];
        for (i, end) in items.iter().enumerate() {
            if !end.is_group_end() {
                continue;
            }
            match group_of(i, &items, &group_end) {
                Ok(members) => {
                    group_end[i] = Some(i);
                    members
                        .into_iter()
                        .for_each(|member| group_end[member] = Some(i));
                }
                Err(missing) => {
                    let at = self.geometry().record(end.place.chunk, end.place.position);
                    // After a crash of the system, a group cut short is what was to be expected.
                    if end.boot == boot || missing <= retired {
                        verdict.chains_broken.push((at, missing));
                    }
                }
            }
        }
        let stands = standing(&items, retired);
        let mut committed: Vec<bool> = items
            .iter()
            .zip(&stands)
            .map(|(item, stands)| item.flags & Record::COMMITTED != 0 && *stands)
            .collect();
        let mut walked = vec![false; items.len()];
        let commits = items.iter().enumerate();
        for (at, commit) in commits.filter(|(_, item)| item.is_commit() && !item.broken) {
            match covered(at, &items, retired, &walked) {
                // It is chained to a commit that is missing, or broken.
                Ok(_) if !stands[at] => {}
                Ok(covered) => {
                    for i in covered {
                        walked[i] = true;
                        committed[i] = true;
                    }
                }
                // In this boot a record that was written while we walked may be missing here only.
                Err(_) if commit.boot == boot => {}
                // After a crash of the system the last commit may be there without all that it covers.
                Err(_) if may_be_cut_off(commit, items[at + 1..].iter()) => {}
                Err(missing) => {
                    let Place { chunk, position } = commit.place;
                    verdict
                        .chains_broken
                        .push((self.geometry().record(chunk, position), missing));
                }
            }
        }
        // A group is committed with its end.
        for i in 0..items.len() {
            committed[i] |= group_end[i].is_some_and(|end| committed[end]);
        }
        for (i, item) in items.iter().enumerate() {
            let in_group = item.is_member() || item.is_group_end();
            verdict.states.push(
                if (in_group && group_end[i].is_none()) || (item.broken && !committed[i]) {
                    verdict.unclosed += 1;
                    State::Dropped
                } else if item.boot != boot && !committed[i] && !item.is_commit() {
                    verdict.uncommitted += 1;
                    State::Dropped
                } else {
                    State::Live
                },
            );
            verdict.committed.push(committed[i]);
            let end = group_end[i].map_or(item, |end| &items[end]);
            verdict.end_seqs.push(end.seq);
        }
        verdict
    }
}

/// The place of the record `seq` among those before place `before`. They are in order, without
/// duplicates, and a chain mostly leads to the neighbour.
fn before(items: &[Item], before: usize, seq: u64) -> Option<usize> {
    let last = before.checked_sub(1)?;
    if items[last].seq == seq {
        return Some(last);
    }
    items[..last]
        .binary_search_by_key(&seq, |item| item.seq)
        .ok()
}

/// The members of the group that the record at `end` closes, or the sequence number of one that is
/// missing. A record is a member of one group only, so all groups together take one walk over the
/// records.
fn group_of(end: usize, items: &[Item], group_end: &[Option<usize>]) -> Result<Vec<usize>, u64> {
    let mut members = Vec::new();
    let closing = &items[end];
    let mut next = closing.prev;
    let mut at = end;
    for _ in 0..closing.count {
        at = before(items, at, next).ok_or(next)?;
        if !items[at].is_member() || items[at].boot != closing.boot || group_end[at].is_some() {
            return Err(next);
        }
        members.push(at);
        next = items[at].prev;
    }
    Ok(members)
}

/// Which of the records have all that they are chained to: down the chain everything is there, up to one
/// that was written when all before it was durable.
fn standing(items: &[Item], retired: u64) -> Vec<bool> {
    let mut stands = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let free = item.flags & Record::CHAINED == 0 || item.prev <= retired;
        let prev = |stands: &[bool]| before(items, at, item.prev).is_some_and(|prev| stands[prev]);
        stands.push(free || prev(&stands));
    }
    stands
}

/// Whether a loss of power may have kept a record without what it names. `rest` are the records of its file behind it.
fn may_be_cut_off<'a>(item: &Item, rest: impl Iterator<Item = &'a Item>) -> bool {
    if is_paged(item) {
        may_wait_for_a_sync(item, rest)
    } else {
        may_wait_for_its_fence(item, rest)
    }
}

/// Whether it was written where a fence is a kernel sync.
fn is_paged(item: &Item) -> bool {
    item.flags & Record::PAGED != 0
}

/// Whether it says that what was logged before it is durable.
fn tells_of_a_sync(item: &Item) -> bool {
    item.flags & Record::COMMITTED != 0 || item.kind == RecordKind::Commit
}

/// Whether a record written where a fence is a kernel sync, which it says itself, as the pool may lie on another medium by
/// now, is followed by none that says that it was durable. What commits says so of all before it, unless it is chained to
/// the record before; but a record's own commit became durable with it.
fn may_wait_for_a_sync<'a>(item: &Item, rest: impl Iterator<Item = &'a Item>) -> bool {
    let own = usize::from(!tells_of_a_sync(item));
    let mut later = rest.filter(|later| tells_of_a_sync(later)).skip(own);
    let mut seen = 0;
    later.all(|later| {
        seen += 1;
        seen <= AT_A_TIME && later.flags & Record::CHAINED != 0
    })
}

/// Whether a record that shares one fence with its bytes, as short ones do in memory, was written just before the loss.
fn may_wait_for_its_fence<'a>(item: &Item, rest: impl Iterator<Item = &'a Item>) -> bool {
    item.flags & Record::DATA_CRC != 0 && is_last_of_its_boot(item, rest)
}

/// Whether such a record is the last that was written with
/// that fence: who writes the next one of the file holds its lock, which is not given up before the fence. The members of
/// a group have theirs in common with its end.
fn is_last_of_its_boot<'a>(item: &Item, rest: impl Iterator<Item = &'a Item>) -> bool {
    let mut later = rest.filter(|later| later.boot == item.boot);
    if item.is_member() {
        later.find(|later| !later.is_member());
    }
    later.next().is_none()
}

/// The records that the commit at `commit` covers: down the chain to the commit before it, or to where
/// another commit's walk came by. The chain falls with every step, so it ends.
fn covered(
    commit: usize,
    items: &[Item],
    retired: u64,
    walked: &[bool],
) -> Result<Vec<usize>, u64> {
    let mut members = Vec::new();
    let mut next = items[commit].prev;
    let mut at = commit;
    while next > retired {
        at = before(items, at, next).ok_or(next)?;
        let commits = items[at].is_commit() && !items[at].broken;
        if commits || items[at].boot != items[commit].boot || walked[at] {
            break;
        }
        members.push(at);
        next = items[at].prev;
    }
    Ok(members)
}

/// The commits of several files among a file's sound records, and whether all that each commits is there. What an earlier
/// one of them lacks is no matter to one that stands: it was written when that was durable, so it has been lost since.
fn chains(records: &SoundRecords, found: &Recovery) -> Vec<(usize, bool)> {
    let items: Vec<Item> = records.sound.iter().map(|i| found.items[*i]).collect();
    let stands = standing(&items, records.retired);
    let mut whole = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        // As `covered`, in one step from the record before.
        let prev = before(&items, at, item.prev);
        let is_whole = item.prev <= records.retired
            || prev.is_some_and(|prev| {
                items[prev].is_commit() || items[prev].boot != item.boot || whole[prev]
            });
        whole.push(is_whole);
    }
    let shared = (0..items.len()).filter(|at| items[*at].is_together());
    shared
        .map(|at| (records.sound[at], whole[at] && stands[at]))
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

/// What became of the records of one file.
#[derive(Default)]
struct Verdict {
    states: Vec<State>,
    committed: Vec<bool>,
    end_seqs: Vec<u64>,
    unclosed: u64,
    uncommitted: u64,
    /// Commit records whose chain is broken: offset, and the missing sequence number.
    chains_broken: Vec<(u64, u64)>,
}
