//! What is derived anew from a walk: the volatile half of a pool after a crash, and what the dead left.

use std::collections::BTreeMap;

use adit_pmem::Medium;

use super::{Counts, Item, RecoveredFile, Recovery, Rejected, State, shares};
use crate::error::{Error, Result, readable};
use crate::files::{END_UNKNOWN, FileRef};
use crate::layout::{
    ChunkKind, ChunkWord, FileEntry, NAMES, ORPHAN, Record, RecordKind, SHARED, Shared, Slot,
    Superblock, at, checked_value,
};
use crate::log::{PUBLISHER, Place};
use crate::parallel;
use crate::pool::{Attachment, Pool};

/// What a walk has seen, without the records: those take too much memory to be kept.
#[derive(Debug)]
pub struct Rebuilt {
    /// Files with something to replay.
    pub files: Vec<RecoveredFile>,
    /// What was seen.
    pub counts: Counts,
    /// Lines that were not believed, or not as they are, the first thousand.
    pub rejected: Vec<Rejected>,
    /// What of the dead was given back: all that nothing which counts needs.
    pub released: Released,
}

impl<M: Medium> Pool<M> {
    /// Resets what is volatile and derives it anew from what is durable. The caller holds the gate
    /// and nobody is attached. Interrupted anywhere, it is simply done again.
    pub(crate) fn rebuild(&self, superblock: &Superblock) -> Result<Rebuilt> {
        for lock in [
            at!(Shared.super_lock),
            at!(Shared.files_lock),
            at!(Shared.recovery_lock),
        ] {
            self.store(SHARED + lock, 0)?;
        }
        self.store(
            SHARED + at!(Shared.chunk_count),
            u64::from(superblock.chunk_count),
        )?;
        let mut released = Released::default();
        for slot in 0..self.geometry().slot_count {
            let state = self.geometry().slot(slot) + at!(Slot.state);
            released.slots += u32::from(self.load(state)? != Slot::FREE);
            self.store(state, Slot::FREE)?;
        }
        // What processes of this boot left visible is not all durable, and what we decide from it has
        // to stay true: the tables first, then every record that counts.
        self.make_durable(0, self.geometry().header_len())?;
        let found = self.scan()?;
        self.make_live_durable(&found)?;
        // One that a later commit's chain leads through commits nothing, and stays a link of that chain.
        let dropped = |item: &&Item| item.broken && item.state != State::Live;
        let broken = found.items.iter().filter(dropped).map(|item| item.place);
        self.erase_broken(&broken.collect::<Vec<_>>())?;
        // What somebody dead has erased is gone durably, too, before any of its files is.
        self.make_erased_durable(&found.erased)?;
        released.chunks = self.rebuild_chunks(&found)?;
        self.rebuild_files(&found)?;
        self.recount_files()?;
        self.medium().flush(SHARED, Shared::SIZE as u64)?;
        // An entry that was emptied is used again by the first who looks for a place, and that it was empty is durable then.
        self.fence()?;
        Ok(Rebuilt {
            files: found.files,
            counts: found.counts,
            rejected: found.rejected,
            released,
        })
    }

    /// Writes back every record that counts or is needed for that, with what it stages. A fence drains the core that wrote
    /// back, so each thread makes its own.
    fn make_live_durable(&self, found: &Recovery) -> Result<()> {
        let shares = shares(found.items.iter().map(|item| u64::from(item.count)));
        let done = parallel::each(self.walkers(), shares.len(), |share| {
            let items = &found.items[shares[share].clone()];
            for item in items.iter().filter(|item| item.is_kept()) {
                if let Some(record) = self.read_record(item.place)? {
                    let written = readable(self.write_record_back(item.place, &record))?;
                    if written.is_err() {
                        // Its bytes cannot be reached, and are not lost by this.
                        let Place { chunk, position } = item.place;
                        let line = self.geometry().record(chunk, position);
                        self.medium().flush(line, 64)?;
                    }
                }
            }
            self.fence()
        });
        done.into_iter().collect()
    }

    /// Says how many chunks are free by that which were not.
    fn rebuild_chunks(&self, found: &Recovery) -> Result<u32> {
        let geometry = *self.geometry();
        let mut freed = 0;
        let needed = self.needed_chunks(found)?;
        for chunk in 0..self.chunk_count()? {
            let offset = geometry.chunk_word(chunk);
            let old = self.chunk_word(chunk)?;
            let generation = old.map_or(0, |word| word.generation);
            let new = if chunk < geometry.header_chunks() {
                ChunkWord {
                    kind: ChunkKind::Header,
                    owner: 0,
                    generation,
                }
            } else {
                match (needed.get(&chunk), old) {
                    (
                        Some(Needed {
                            kind,
                            generation: seen,
                        }),
                        old,
                    ) => ChunkWord {
                        kind: *kind,
                        owner: if *kind == ChunkKind::Names { 0 } else { ORPHAN },
                        generation: old.map_or(seen.unwrap_or(0), |word| word.generation),
                    },
                    (None, Some(word)) if word.kind == ChunkKind::Region => word,
                    (None, Some(word)) if word.kind == ChunkKind::Free && word.owner == 0 => word,
                    (None, _) => ChunkWord {
                        kind: ChunkKind::Free,
                        owner: 0,
                        generation: generation.wrapping_add(1),
                    },
                }
            };
            if old != Some(new) {
                let was_free = old.is_some_and(|old| old.kind == ChunkKind::Free);
                freed += u32::from(new.kind == ChunkKind::Free && !was_free);
                self.store(offset, new.encode())?;
                self.medium().flush(offset, 8)?;
            }
        }
        self.fence()?;
        Ok(freed)
    }

    /// Chunks that these records lie in, or name, as far as they are kept.
    fn chunks_named_by(&self, items: &[Item]) -> Result<BTreeMap<u32, Needed>> {
        let mut needed = BTreeMap::new();
        for item in items.iter().filter(|item| item.is_kept()) {
            let Some(record) = self.read_record(item.place)? else {
                continue;
            };
            let log = Needed {
                kind: ChunkKind::Log,
                generation: Some(record.generation),
            };
            needed.insert(item.place.chunk, log);
            // What is kept without counting may name bytes that went long ago: what lies there now is another's.
            let (offset, len) = (record.pool_offset, u64::from(record.len));
            if item.kind.has_extent() && self.sense_extent(offset, len)?.is_ok() {
                let chunk = (offset >> self.geometry().chunk_shift) as u32;
                needed.entry(chunk).or_insert(Needed {
                    kind: ChunkKind::Data,
                    generation: None,
                });
            }
        }
        Ok(needed)
    }

    /// Chunks that something which counts lies in.
    fn needed_chunks(&self, found: &Recovery) -> Result<BTreeMap<u32, Needed>> {
        let mut needed = BTreeMap::new();
        let shares = shares(found.items.iter().map(|_| 0));
        let named = parallel::each(self.walkers(), shares.len(), |share| {
            self.chunks_named_by(&found.items[shares[share].clone()])
        });
        for named in named {
            for (chunk, named) in named? {
                // What holds a record is a log, whatever other records say.
                if named.kind == ChunkKind::Log {
                    needed.insert(chunk, named);
                } else {
                    needed.entry(chunk).or_insert(named);
                }
            }
        }
        self.need_what_is_lost(found, &mut needed)?;
        for chunk in self.chunks_of_names()? {
            let names = Needed {
                kind: ChunkKind::Names,
                generation: None,
            };
            needed.entry(chunk).or_insert(names);
        }
        Ok(needed)
    }

    /// Whether a file that lives may lack this damaged record. The file that it names has gone on without it, or has gone,
    /// most often; where none ever had that number, it may be any that lives, if there is one.
    fn may_be_missed(&self, record: &Record, any_lives: bool) -> Result<bool> {
        let file = FileRef { id: record.file_id };
        match self.seen_retired(file) {
            Ok(u64::MAX) if file.index() < self.geometry().file_count => {
                let entry = self.geometry().file_entry(file.index());
                let had = record.file_id <= self.load(entry + at!(FileEntry.file_id))?;
                Ok(!had && any_lives)
            }
            Ok(u64::MAX) => Ok(any_lives),
            Ok(retired) => Ok(record.seq > retired),
            Err(_) => Ok(true),
        }
    }

    /// Damaged lines are kept for a repair by hand, with the chunks that they name as they are.
    fn need_what_is_lost(
        &self,
        found: &Recovery,
        needed: &mut BTreeMap<u32, Needed>,
    ) -> Result<()> {
        let any_lives = !found.lost.is_empty() && !self.files()?.is_empty();
        for place in &found.lost {
            let record = Record::decode(&self.read_line(*place)?);
            if !self.may_be_missed(&record, any_lives)? {
                continue;
            }
            let log = Needed {
                kind: ChunkKind::Log,
                generation: None,
            };
            needed.entry(place.chunk).or_insert(log);
            let chunk = record.pool_offset >> self.geometry().chunk_shift;
            if chunk < u64::from(self.chunk_count()?)
                && let Some(word) = self.chunk_word(chunk as u32)?
                && word.kind == ChunkKind::Data
            {
                let data = Needed {
                    kind: ChunkKind::Data,
                    generation: None,
                };
                needed.entry(chunk as u32).or_insert(data);
            }
        }
        Ok(())
    }

    /// The chunks that the table of names names, and all that hold names where a word of it is damaged: which of them it
    /// named nobody can tell, and nowhere else do the names of its files stand.
    fn chunks_of_names(&self) -> Result<Vec<u32>> {
        let geometry = *self.geometry();
        let all = geometry.header_chunks()..geometry.max_chunks;
        let (mut chunks, mut is_damaged) = (Vec::new(), false);
        for group in 0..geometry.name_groups() {
            let word = self.load(NAMES + group * 8)?;
            let chunk = checked_value(word, group);
            is_damaged |= word != 0 && chunk.is_none();
            chunks.extend(
                chunk
                    .and_then(|chunk| u32::try_from(chunk).ok())
                    .filter(|chunk| all.contains(chunk)),
            );
        }
        if is_damaged {
            for chunk in geometry.header_chunks()..self.chunk_count()? {
                let word = self.chunk_word(chunk)?;
                if word.is_some_and(|word| word.kind == ChunkKind::Names) {
                    chunks.push(chunk);
                }
            }
        }
        Ok(chunks)
    }

    /// What the next record of each file will be chained to: perhaps a commit of which everything is retired, so that it
    /// says nothing itself.
    fn ends_of_chains(&self) -> Result<Vec<(FileRef, u64)>> {
        let last = |file: FileRef| {
            let entry = self.geometry().file_entry(file.index());
            Ok((file, self.load(entry + at!(FileEntry.last_seq))?))
        };
        self.files()?.into_iter().map(last).collect()
    }

    /// Empties an entry of which nothing counts. The caller fences, once for all of them: what is found of one after a crash
    /// says the same whichever of the others are empty by then, and nobody uses its place before all are.
    fn empty_stale(&self, index: u32) -> Result<()> {
        let (entry, len) = self.empty_entry(index)?;
        // Nobody is attached: who had it locked is gone, and nobody waits for what he was about to write.
        self.store(entry + at!(FileEntry.lock), 0)?;
        self.store(entry + at!(FileEntry.pending), 0)?;
        Ok(self.medium().flush(entry, len)?)
    }

    /// Empties the entries of which nothing counts and resets what is volatile of the others. The caller fences.
    ///
    /// Behind a page cache a loss of power may take an entry and leave records that name it: the next file of the entry
    /// must not have their number, or they were its own.
    fn rebuild_files(&self, found: &Recovery) -> Result<()> {
        let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
        for of_file in found.items.chunk_by(|a, b| a.file_id == b.file_id) {
            let file_id = of_file[0].file_id;
            let of_index = newest.entry(FileRef::from_id(file_id).index()).or_default();
            *of_index = (*of_index).max(file_id);
        }
        for index in 0..self.geometry().file_count {
            self.rebuild_file(index, found)?;
            if let Some(file_id) = newest.get(&index) {
                self.skip_number(index, *file_id)?;
            }
        }
        Ok(())
    }

    /// Has an empty entry go on behind this number. The caller fences.
    fn skip_number(&self, index: u32, file_id: u64) -> Result<()> {
        let offset = self.geometry().file_entry(index);
        let number = offset + at!(FileEntry.file_id);
        if self.load(offset)? == 0 && self.load(number)? < file_id {
            self.store(number, file_id)?;
            self.medium().flush(number, 8)?;
        }
        Ok(())
    }

    fn rebuild_file(&self, index: u32, found: &Recovery) -> Result<()> {
        let offset = self.geometry().file_entry(index);
        if self.load(offset)? == 0 {
            // A waiter of the past may have left its lock in an entry that is empty by now.
            if self.load(offset + at!(FileEntry.lock))? != 0 {
                self.store(offset + at!(FileEntry.lock), 0)?;
            }
            return Ok(());
        }
        let entry = self.read_entry(index)?;
        if self.is_unfinished(index, &entry) {
            return self.empty_stale(index);
        }
        if !entry.is_valid(index) {
            return Ok(());
        }
        let items = found.items_of(entry.file_id);
        let nothing_counts = || !items.iter().any(|item| item.state == State::Live);
        if found.counts.rejected == 0 && nothing_counts()
            || self.was_entry_cut_off(index, &entry, items)?
        {
            // Nothing of it counts: whatever a past boot left uncommitted is gone for good.
            return self.empty_stale(index);
        }
        self.reset_volatile(offset, &entry, items)
    }

    /// What the next record of a file goes on from, of those that are there.
    fn reset_volatile(&self, offset: u64, entry: &FileEntry, items: &[Item]) -> Result<()> {
        let marks = [entry.retired, entry.sealed]
            .map(|mark| checked_value(mark, entry.file_id).unwrap_or(0));
        let last = items
            .last()
            .map_or(0, |item| item.seq)
            .max(marks[0])
            .max(marks[1]);
        let boot = self.boot_tag();
        let chain = items
            .iter()
            .rev()
            .find(|item| {
                item.state == State::Live && item.boot == boot && item.kind != RecordKind::Relink
            })
            .map_or(0, |item| item.seq);
        // A time that another boot left may be older than the bytes.
        let modified = if entry.boot == boot {
            entry.modified
        } else {
            0
        };
        for (field, value) in [
            (at!(FileEntry.modified), modified),
            (at!(FileEntry.lock), 0),
            (at!(FileEntry.next_seq), last.saturating_add(1)),
            (at!(FileEntry.end), END_UNKNOWN),
            (at!(FileEntry.last_seq), chain),
            (at!(FileEntry.pending), 0),
            (at!(FileEntry.version), 0),
        ] {
            self.store(offset + field, value)?;
        }
        Ok(self.medium().flush(offset + 64, 64)?)
    }
}

struct Needed {
    kind: ChunkKind,
    generation: Option<u32>,
}

/// What [`Attachment::release_orphans`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Released {
    /// Slots of dead attachments made free.
    pub slots: u32,
    /// Chunks made free.
    pub chunks: u32,
    /// Orphaned chunks that records which count still need.
    pub kept: u32,
}

impl<M: Medium> Attachment<M> {
    /// [`Pool::scan`] for those who act on what they find: publishers and recovery. What a dead
    /// publisher left visible (a mark, a removed entry) is durable before it is believed; otherwise a
    /// loss of power could bring back records behind facts that we made durable meanwhile.
    pub fn scan(&self) -> Result<Recovery> {
        self.ensure_current()?;
        let geometry = *self.pool.geometry();
        let table = u64::from(geometry.file_count) * FileEntry::SIZE as u64;
        self.pool.make_durable(geometry.file_table(), table)?;
        let found = self.pool.scan()?;
        // What a living publisher has stored meanwhile was seen, too.
        self.pool.make_durable(geometry.file_table(), table)?;
        Ok(found)
    }

    /// Buries dead attachments: their slots become free, their chunks orphans; then frees every orphan
    /// that no record which counts needs. Publish and retire the orphaned files first to free all.
    pub fn release_orphans(&self) -> Result<Released> {
        let _lock = self.lock_recovery()?;
        let mut released = Released::default();
        let dead = self.dead_slots()?;
        self.orphan_chunks_of(&dead)?;
        self.end_claims(&dead)?;
        // In this order for those who live. After a crash of the system all of it is derived anew, whatever is left of it, so
        // it waits for the fence of the scan.
        for slot in dead {
            let state = self.pool.geometry().slot(slot) + at!(Slot.state);
            self.pool.store(state, Slot::FREE)?;
            self.pool.medium().flush(state, 8)?;
            released.slots += 1;
        }
        // Before the scan: what others write meanwhile is chained to what it finds, and lies in chunks of theirs.
        // So are orphans: who leaves from here on leaves what the scan has not seen.
        let orphans = self.pool.orphans()?;
        let ends = self.pool.ends_of_chains()?;
        let mut found = self.scan()?;
        for (file, last) in ends {
            // With a damaged mark all may be looked for.
            found.link(file.id, last, self.pool.seen_retired(file).unwrap_or(0));
        }
        let needed = self.pool.needed_chunks(&found)?;
        let (kept, unneeded): (Vec<_>, Vec<_>) = orphans
            .into_iter()
            .partition(|(chunk, _)| needed.contains_key(chunk));
        released.kept = kept.len() as u32;
        released.chunks = self.pool.free_orphans(&unneeded)?;
        Ok(released)
    }

    /// Leaves what these slots have leased to whoever recovers, up to the fence.
    fn orphan_chunks_of(&self, slots: &[u32]) -> Result<()> {
        for chunk in 0..self.pool.chunk_count()? {
            if let Some(word) = self.pool.chunk_word(chunk)?
                && slots.contains(&u32::from(word.owner).wrapping_sub(1))
            {
                self.pool.orphan_chunk(chunk, word)?;
            }
        }
        Ok(())
    }

    /// Gives up what these slots claim to publish: the next holder of one of them would be taken for the publisher. Without
    /// the files' locks, which a stopped program may hold.
    fn end_claims(&self, slots: &[u32]) -> Result<()> {
        for file in self.pool.files()? {
            let ended = self.pool.update_version(file, |word| {
                let claims = |slot: &u32| u64::from(*slot) + 1 == word & PUBLISHER;
                slots.iter().any(claims).then_some(word & !PUBLISHER)
            });
            match ended {
                Err(Error::Forgotten) => {}
                ended => drop(ended?),
            }
        }
        Ok(())
    }

    /// Slots that are taken by nobody alive.
    fn dead_slots(&self) -> Result<Vec<u32>> {
        let mut dead = Vec::new();
        for slot in 0..self.pool.geometry().slot_count {
            if slot != self.owner.slot && self.is_dead(slot)? {
                dead.push(slot);
            }
        }
        Ok(dead)
    }

    /// Whoever leaves frees his slot before he gives its lock up, and who takes it has the lock before he counts, and counts
    /// before he says that it is taken. So in this order one who has just left is not taken for dead, nor one who has just
    /// come for who left.
    fn is_dead(&self, slot: u32) -> Result<bool> {
        let state = self.pool.geometry().slot(slot) + at!(Slot.state);
        let taken = || Ok::<_, Error>(self.pool.load(state)? != Slot::FREE);
        let before = self.pool.incarnation(slot)?;
        let unlocked = taken()? && !self.pool.locks().is_alive(slot);
        Ok(unlocked && taken()? && self.pool.incarnation(slot)? == before)
    }
}
