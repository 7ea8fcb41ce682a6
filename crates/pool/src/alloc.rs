//! Leasing chunks and allocating inside them.
//!
//! The chunk table is shared; a chunk is leased by one compare-and-swap and is then this
//! attachment's alone. What is free inside it is known only here, in ordinary memory, one bit per
//! cache line and so one 64-bit word per page. Nothing about free space is stored: after a crash it
//! is what no record that counts refers to.
//!
//! All of it is lock-free: a thread that jumps out of the middle leaves at worst some lines unused
//! until the attachment ends.
//!
//! # Safety
//!
//! The unsafe code passes a program's buffer on to the medium, under the caller's promise.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{MutexGuard, OnceLock, PoisonError};

use adit_pmem::{Medium, OutOfRange};

use crate::error::{Error, Result, readable};
use crate::layout::{ChunkKind, ChunkWord, LINE, ORPHAN, PAGE};
use crate::log::Place;
use crate::pool::{Attachment, Pool};

/// From how many chunks beside its tables on a pool keeps a free one for the log of a commit: its program
/// may be killed, and whoever comes then has to commit what it left before anything becomes free.
const KEEPS_ONE_FROM: u32 = 6;
/// From how many on it keeps one more, for logs of any kind: whoever publishes what is committed may have
/// to log what he relinks.
const KEEPS_TWO_FROM: u32 = 12;

/// What a chunk is leased for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Staged bytes.
    Data,
    /// Names of files.
    Names,
    /// A log.
    Log,
    /// A log that is to begin with a commit.
    Commit,
}

impl Purpose {
    fn kind(self) -> ChunkKind {
        match self {
            Self::Data => ChunkKind::Data,
            Self::Names => ChunkKind::Names,
            Self::Log | Self::Commit => ChunkKind::Log,
        }
    }

    fn role(self) -> Role {
        match self.kind() {
            ChunkKind::Log => Role::Log,
            _ => Role::Data,
        }
    }

    /// Free chunks that it has to leave, where there are so many beside the tables. Bytes are no use without a log:
    /// `logs` says whether there is one.
    fn leaves(self, usable: u32, logs: bool) -> u32 {
        let one = u32::from(usable >= KEEPS_ONE_FROM);
        match self {
            Self::Commit => 0,
            Self::Log => one,
            Self::Data if !logs => 2 * one,
            Self::Data | Self::Names => one + u32::from(usable >= KEEPS_TWO_FROM),
        }
    }
}

/// Bytes zeroed at once in a chunk that becomes a log.
const ZEROED_AT_ONCE: u64 = 64 << 10;

/// Chunks that the medium may refuse before whoever looks for one is told: of a medium that is gone each one fails, late.
const MOST_REFUSED: usize = 4;
/// How often a chunk is looked for by who had to give one back that another has to be left.
const LEASE_TRIES: u32 = 8;

/// A range of the pool, allocated and not yet part of any file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// Offset in the pool, a multiple of a cache line; of a page when it spans whole pages.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u32,
}

/// What an extent of some length really takes: lines of one page, or whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Footprint {
    Lines(u32),
    Pages(u32),
}

impl Footprint {
    fn of(len: u32) -> Self {
        let lines = u64::from(len).div_ceil(LINE) as u32;
        if u64::from(lines) * LINE < PAGE {
            Self::Lines(lines)
        } else {
            Self::Pages(u64::from(len).div_ceil(PAGE) as u32)
        }
    }
}

impl Footprint {
    fn lines(self) -> u32 {
        match self {
            Self::Lines(lines) => lines,
            Self::Pages(pages) => pages * 64,
        }
    }
}

/// What a chunk is to this attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Role {
    None = 0,
    Data = 1,
    Log = 2,
}

/// One leased chunk, one bit per line.
#[derive(Debug)]
pub(crate) struct ChunkMap {
    /// Data: set while free.
    free: Box<[AtomicU64]>,
    /// Log: set while the record waits to be retired. Not the same words: a thread that was about to
    /// allocate here while the chunk was still data must not take lines of a log.
    waiting: OnceLock<Box<[AtomicU64]>>,
    /// Data: for each page, the record that named it last, if that page is its whole extent. Records
    /// before it name bytes that are gone; the page becomes free with the last one.
    named_by: OnceLock<Box<[AtomicU64]>>,
    role: AtomicU32,
    /// Next data chunk of the attachment, plus one.
    next: AtomicU32,
    /// Where the last search ended.
    hint: AtomicU32,
    /// Data: the fewest lines that a search did not find since something was last given back (lower
    /// half), and how often something was (upper half).
    fails_from: AtomicU64,
    /// The chunk's word while it is leased.
    word: AtomicU64,
    /// Log: positions whose records are retired or were never written.
    pub(crate) settled: AtomicU32,
}

impl ChunkMap {
    fn new(words: usize) -> Self {
        Self {
            free: zeros(words),
            waiting: OnceLock::new(),
            named_by: OnceLock::new(),
            role: AtomicU32::new(Role::None as u32),
            next: AtomicU32::new(0),
            hint: AtomicU32::new(0),
            fails_from: AtomicU64::new(u64::from(u32::MAX)),
            word: AtomicU64::new(0),
            settled: AtomicU32::new(0),
        }
    }

    pub(crate) fn is(&self, role: Role) -> bool {
        self.role.load(Ordering::Acquire) == role as u32
    }

    /// Whether `word` is still the one under which the chunk was leased.
    pub(crate) fn has_word(&self, word: u64) -> bool {
        self.word.load(Ordering::Relaxed) == word
    }

    /// The generation under which the chunk was leased.
    pub(crate) fn generation(&self) -> u32 {
        (self.word.load(Ordering::Relaxed) >> 32) as u32
    }

    fn begin(&self, role: Role, word: u64) {
        self.word.store(word, Ordering::Relaxed);
        self.settled.store(0, Ordering::Relaxed);
        if role == Role::Data {
            self.free
                .iter()
                .for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            let names = self.named_by.get().into_iter().flatten();
            names.for_each(|name| name.store(0, Ordering::Relaxed));
            self.something_was_given();
        } else {
            self.waiting()
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
        }
        self.role.store(role as u32, Ordering::Release);
    }

    fn end(&self) {
        self.role.store(Role::None as u32, Ordering::Release);
        self.free
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Bits of the records that wait.
    pub(crate) fn waiting(&self) -> &[AtomicU64] {
        self.waiting.get_or_init(|| zeros(self.free.len()))
    }

    /// Who named the page of this line last.
    fn named_by(&self, first: u32) -> Option<&AtomicU64> {
        let names = self.named_by.get_or_init(|| zeros(self.free.len()));
        names.get((first / 64) as usize)
    }

    pub(crate) fn is_all_free(&self) -> bool {
        let free = |word: &AtomicU64| word.load(Ordering::Acquire) == u64::MAX;
        self.free.iter().all(free)
    }

    pub(crate) fn is_nothing_waiting(&self) -> bool {
        let none = |word: &AtomicU64| word.load(Ordering::Acquire) == 0;
        self.waiting().iter().all(none)
    }

    fn something_was_given(&self) {
        let given = |seen: u64| Some((seen >> 32).wrapping_add(1) << 32 | u64::from(u32::MAX));
        let _ = self
            .fails_from
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, given);
    }

    /// Takes room for an extent; the index of its first line.
    fn take(&self, footprint: Footprint) -> Option<u32> {
        let seen = self.fails_from.load(Ordering::Acquire);
        if !self.is(Role::Data) || footprint.lines() >= seen as u32 {
            return None;
        }
        let first = match footprint {
            Footprint::Lines(lines) => self.take_lines(lines),
            Footprint::Pages(pages) => self.take_pages(pages),
        };
        if first.is_none() {
            self.found_nothing(seen, footprint);
        }
        first
    }

    /// Remembers a search that began when `seen` was known. Unless something was given back meanwhile: it may be all that
    /// is ever given.
    fn found_nothing(&self, seen: u64, footprint: Footprint) {
        let lines = u64::from(footprint.lines());
        if !matches!(footprint, Footprint::Pages(2..)) {
            let failed = seen >> 32 << 32 | lines;
            let _ =
                self.fails_from
                    .compare_exchange(seen, failed, Ordering::AcqRel, Ordering::Relaxed);
            return;
        }
        // It had some pages for a moment, and others may have found nothing for want of these.
        let failed = |now: u64| {
            let is_known = now >> 32 == seen >> 32;
            let lines = if is_known { lines } else { u64::from(u32::MAX) };
            Some((now >> 32).wrapping_add(1) << 32 | lines)
        };
        let _ = self
            .fails_from
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, failed);
    }

    /// Takes all of the chunk, if all of it is free.
    fn take_all(&self) -> bool {
        let taken = self.take_run(0, self.free.len());
        if matches!(taken, Err(1..)) {
            self.something_was_given();
        }
        taken.is_ok()
    }

    /// Takes `lines` adjacent lines of one page; the index of the first.
    fn take_lines(&self, lines: u32) -> Option<u32> {
        let words = self.free.len();
        let start = self.hint.load(Ordering::Relaxed) as usize;
        (0..words).map(|i| (start + i) % words).find_map(|at| {
            let word = self.free.get(at)?;
            let mut free = word.load(Ordering::Acquire);
            loop {
                let first = first_run(free, lines)?;
                let mask = run_mask(first, lines);
                match word.compare_exchange(free, free & !mask, Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(_) => {
                        self.hint.store(at as u32, Ordering::Relaxed);
                        return Some(at as u32 * 64 + first);
                    }
                    Err(seen) => free = seen,
                }
            }
        })
    }

    /// Takes `pages` adjacent whole pages; the index of the first line.
    fn take_pages(&self, pages: u32) -> Option<u32> {
        let words = self.free.len();
        let pages = pages as usize;
        if pages > words {
            return None;
        }
        let start = self.hint.load(Ordering::Relaxed) as usize % words;
        let (mut tried, mut gave_up) = (0, false);
        while tried < words {
            let at = (start + tried) % words;
            if at + pages > words {
                tried += words - at;
                continue;
            }
            match self.take_run(at, pages) {
                Ok(()) => {
                    self.hint
                        .store((at + pages) as u32 % words as u32, Ordering::Relaxed);
                    // What it had for a moment before others may have found nothing for want of, as where it finds nothing.
                    if gave_up {
                        self.something_was_given();
                    }
                    return Some(at as u32 * 64);
                }
                Err(taken) => {
                    gave_up |= taken > 0;
                    tried += taken + 1;
                }
            }
        }
        None
    }

    /// Takes the words `at..at + pages`, or none of them and says how many were free.
    fn take_run(&self, at: usize, pages: usize) -> Result<(), usize> {
        for (taken, word) in self.free[at..at + pages].iter().enumerate() {
            if word
                .compare_exchange(u64::MAX, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
            {
                for word in &self.free[at..at + taken] {
                    word.store(u64::MAX, Ordering::Release);
                }
                return Err(taken);
            }
        }
        Ok(())
    }

    fn give(&self, first: u32, footprint: Footprint) {
        let at = (first / 64) as usize;
        match footprint {
            Footprint::Lines(lines) => {
                if let Some(word) = self.free.get(at) {
                    word.fetch_or(run_mask(first % 64, lines), Ordering::AcqRel);
                }
            }
            Footprint::Pages(pages) => {
                for word in self.free.iter().skip(at).take(pages as usize) {
                    word.store(u64::MAX, Ordering::Release);
                }
            }
        }
        self.something_was_given();
    }
}

fn zeros(words: usize) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

fn run_mask(first: u32, lines: u32) -> u64 {
    if lines >= 64 {
        u64::MAX
    } else {
        ((1 << lines) - 1) << first
    }
}

/// First bit of the first run of `lines` set bits.
fn first_run(bits: u64, lines: u32) -> Option<u32> {
    let starts = (1..lines).fold(bits, |starts, by| starts & (bits >> by));
    (starts != 0).then(|| starts.trailing_zeros())
}

fn freed(old: ChunkWord) -> ChunkWord {
    ChunkWord {
        kind: ChunkKind::Free,
        owner: 0,
        generation: old.generation.wrapping_add(1),
    }
}

/// Of a chunk that is no log any more, if it was one, and not free yet. Whoever sees that a chunk is free may put bytes there
/// at once, and where it is a log after a loss of power, they would be found in its lines.
fn emptied(old: ChunkWord) -> ChunkWord {
    ChunkWord {
        kind: ChunkKind::Data,
        generation: old.generation.wrapping_add(1),
        ..old
    }
}

fn orphaned(old: ChunkWord) -> ChunkWord {
    ChunkWord {
        owner: ORPHAN,
        ..old
    }
}

impl<M: Medium> Pool<M> {
    /// The word of a chunk; `None` when it is damaged.
    pub fn chunk_word(&self, chunk: u32) -> Result<Option<ChunkWord>> {
        Ok(ChunkWord::decode(
            self.load(self.geometry().chunk_word(chunk))?,
        ))
    }

    /// Changes a chunk's word if it still is `old`, durably.
    pub(crate) fn change_chunk(&self, chunk: u32, old: ChunkWord, new: ChunkWord) -> Result<bool> {
        let changed = self.swap_chunk(chunk, old, new)?;
        if changed {
            self.fence()?;
        }
        Ok(changed)
    }

    /// [`Pool::change_chunk`], up to the fence.
    fn swap_chunk(&self, chunk: u32, old: ChunkWord, new: ChunkWord) -> Result<bool> {
        let offset = self.geometry().chunk_word(chunk);
        if self.cas(offset, old.encode(), new.encode())?.is_err() {
            return Ok(false);
        }
        self.medium().flush(offset, 8)?;
        Ok(true)
    }

    /// Leaves a chunk to whoever recovers next, if its word still is `old`, up to the fence.
    pub(crate) fn orphan_chunk(&self, chunk: u32, old: ChunkWord) -> Result<bool> {
        self.swap_chunk(chunk, old, orphaned(old))
    }

    /// Logs and staged bytes of the dead, with their words.
    pub(crate) fn orphans(&self) -> Result<Vec<(u32, ChunkWord)>> {
        let mut orphans = Vec::new();
        for chunk in 0..self.chunk_count()? {
            if let Some(word) = self.chunk_word(chunk)?
                && word.owner == ORPHAN
                && matches!(word.kind, ChunkKind::Data | ChunkKind::Log)
            {
                orphans.push((chunk, word));
            }
        }
        Ok(orphans)
    }

    /// Makes orphans free that no record needs, with two fences for all of them; how many these were.
    ///
    /// All are called data first, which nobody takes, and durably; then they are free. Also what is called that already:
    /// somebody may have died over it before it was durable.
    pub(crate) fn free_orphans(&self, orphans: &[(u32, ChunkWord)]) -> Result<u32> {
        if orphans.is_empty() {
            return Ok(0);
        }
        for (chunk, word) in orphans {
            self.swap_chunk(*chunk, *word, emptied(*word))?;
        }
        self.fence()?;
        let mut free = 0;
        for (chunk, word) in orphans {
            let word = emptied(*word);
            free += u32::from(self.swap_chunk(*chunk, word, freed(word))?);
        }
        self.fence()?;
        Ok(free)
    }

    /// Takes a free chunk. That it holds data has to be durable with the first record that names its
    /// bytes, not sooner: without it that record is refused, and was not acknowledged.
    fn take_chunk(&self, chunk: u32, old: ChunkWord, new: ChunkWord) -> Result<bool> {
        let offset = self.geometry().chunk_word(chunk);
        if self.cas(offset, old.encode(), new.encode())?.is_err() {
            return Ok(false);
        }
        if let Err(error) = self.make_ordered(offset, 8) {
            // Nothing is in it: whoever tries again and again would use up all of them.
            let _ = self.cas(offset, new.encode(), freed(new).encode())?;
            return Err(error);
        }
        Ok(true)
    }

    fn usable(&self, count: u32) -> u32 {
        count.saturating_sub(self.geometry().header_chunks())
    }

    /// Whether more chunks are free than this purpose has to leave.
    fn may_lease(&self, purpose: Purpose, count: u32, logs: bool) -> Result<bool> {
        let usable = self.usable(count);
        self.are_free(count, purpose.leaves(usable, logs) + 1)
    }

    /// Whether so many of the first `count` chunks are free, at least.
    fn are_free(&self, count: u32, wanted: u32) -> Result<bool> {
        let mut free = 0;
        for chunk in 0..count {
            if free >= wanted {
                break;
            }
            let word = self.chunk_word(chunk)?;
            free += u32::from(word.is_some_and(|word| word.kind == ChunkKind::Free));
        }
        Ok(free >= wanted)
    }

    /// Leases a free chunk, searching from `hint`.
    pub(crate) fn lease(
        &self,
        purpose: Purpose,
        owner: u16,
        logs: bool,
        hint: &AtomicU32,
    ) -> Result<u32> {
        for _ in 0..LEASE_TRIES {
            if let Some(chunk) = self.try_lease(purpose, owner, logs, hint)? {
                return Ok(chunk);
            }
        }
        let chunks = self.mapped_chunks()?;
        Err(Error::Full { chunks })
    }

    /// Nothing, when several took the last ones at once, and each gave back what it had.
    fn try_lease(
        &self,
        purpose: Purpose,
        owner: u16,
        logs: bool,
        hint: &AtomicU32,
    ) -> Result<Option<u32>> {
        let count = self.mapped_chunks()?;
        if !self.may_lease(purpose, count, logs)? {
            return Err(Error::Full { chunks: count });
        }
        let usable = self.usable(count);
        let kind = purpose.kind();
        let start = hint.load(Ordering::Relaxed);
        let mut refused = Vec::new();
        for i in 0..count {
            let chunk = start.wrapping_add(i) % count;
            let Some(old) = self.chunk_word(chunk)? else {
                continue;
            };
            if old.kind != ChunkKind::Free {
                continue;
            }
            // A future log chunk holds data until its old bytes are gone: until then no record in it
            // may be believed.
            let first = if kind == ChunkKind::Log {
                ChunkKind::Data
            } else {
                kind
            };
            let new = ChunkWord {
                kind: first,
                owner,
                generation: old.generation.wrapping_add(1),
            };
            if !self.take_chunk(chunk, old, new)? {
                continue;
            }
            let leaves = purpose.leaves(usable, logs);
            let made = self.make_ready(chunk, new, kind, (count, leaves));
            if matches!(made, Ok(Ok(true))) {
                hint.store(chunk + 1, Ordering::Relaxed);
                return Ok(Some(chunk));
            }
            self.untake(chunk, new)?;
            match made?.map_err(Error::from) {
                Err(error) if refused.len() < MOST_REFUSED => refused.push(error),
                made => return made.map(|_| None),
            }
        }
        Err(refused.pop().unwrap_or(Error::Full { chunks: count }))
    }

    /// Makes of a chunk that was taken what it is to be; not where fewer of the first chunks are free than have to be left, nor
    /// where the medium cannot write all of it.
    fn make_ready(
        &self,
        chunk: u32,
        taken: ChunkWord,
        kind: ChunkKind,
        (count, leaves): (u32, u32),
    ) -> Result<Result<bool, OutOfRange>> {
        // Several may have counted before any of them took one.
        if !self.are_free(count, leaves)? {
            return Ok(Ok(false));
        }
        if kind == ChunkKind::Log {
            if let Err(lost) = readable(self.zero_chunk(chunk))? {
                return Ok(Err(lost));
            }
            self.fence()?;
            return Ok(Ok(self.change_chunk(
                chunk,
                taken,
                ChunkWord { kind, ..taken },
            )?));
        }
        Ok(Ok(true))
    }

    /// Gives up a chunk that was taken, and in which nothing is. Whoever recovers frees one that may be a log durably.
    fn untake(&self, chunk: u32, taken: ChunkWord) -> Result<()> {
        let log = ChunkWord {
            kind: ChunkKind::Log,
            ..taken
        };
        for (word, after) in [(taken, freed(taken)), (log, orphaned(log))] {
            let offset = self.geometry().chunk_word(chunk);
            if self.cas(offset, word.encode(), after.encode())?.is_ok() {
                // Also where that is not durable: who attaches first after a crash derives all of it anew.
                let _ = self.medium().flush(offset, 8);
                break;
            }
        }
        Ok(())
    }

    /// Gives up a chunk for names that the table of names does not name.
    pub(crate) fn untake_names(&self, chunk: u32) -> Result<()> {
        match self.chunk_word(chunk)? {
            Some(word) if word.kind == ChunkKind::Names => self.untake(chunk, word),
            _ => Ok(()),
        }
    }

    fn zero_chunk(&self, chunk: u32) -> Result<()> {
        let size = self.geometry().chunk_size();
        let zeros = vec![0; size.min(ZEROED_AT_ONCE) as usize];
        let start = self.geometry().chunk(chunk);
        let mut at = 0;
        while at < size {
            self.medium().write_streaming(start + at, &zeros)?;
            at += zeros.len() as u64;
        }
        Ok(())
    }

    /// Whether no chunk holds data or a log.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        for chunk in 0..self.chunk_count()? {
            match self.chunk_word(chunk)? {
                Some(word) if !matches!(word.kind, ChunkKind::Data | ChunkKind::Log) => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Free chunks now.
    pub fn free_chunks(&self) -> Result<u32> {
        self.chunks_of(ChunkKind::Free)
    }

    /// Chunks that hold logs now, of the living and the dead.
    pub fn log_chunks(&self) -> Result<u32> {
        self.chunks_of(ChunkKind::Log)
    }

    fn chunks_of(&self, kind: ChunkKind) -> Result<u32> {
        let mut chunks = 0;
        for chunk in 0..self.chunk_count()? {
            let word = self.chunk_word(chunk)?;
            chunks += u32::from(word.is_some_and(|word| word.kind == kind));
        }
        Ok(chunks)
    }
}

impl<M: Medium> Attachment<M> {
    pub(crate) fn owner_field(&self) -> u16 {
        (self.owner.slot + 1) as u16
    }

    pub(crate) fn map(&self, chunk: u32) -> Option<&ChunkMap> {
        self.maps.get(chunk as usize)?.get().map(Box::as_ref)
    }

    /// Leases a chunk and sets up its map.
    pub(crate) fn lease_as(&self, purpose: Purpose) -> Result<u32> {
        let hint = &self.state.hint;
        let chunk = self
            .pool
            .lease(purpose, self.owner_field(), self.log_chunks() > 0, hint)?;
        let words = (self.pool.geometry().chunk_size() / PAGE) as usize;
        let fresh = self.map(chunk).is_none();
        let Some(slot) = self.maps.get(chunk as usize) else {
            return Err(Error::Invalid("chunk beyond the table"));
        };
        let word = self.pool.load(self.pool.geometry().chunk_word(chunk))?;
        slot.get_or_init(|| Box::new(ChunkMap::new(words)))
            .begin(purpose.role(), word);
        if fresh {
            self.chain(chunk);
        }
        Ok(chunk)
    }

    /// Puts a chunk in front of the chain of chunks that were ever leased; it stays there for ever,
    /// its role tells whether it counts.
    fn chain(&self, chunk: u32) {
        let Some(map) = self.map(chunk) else { return };
        let mut head = self.state.data.load(Ordering::Acquire);
        loop {
            map.next.store(head, Ordering::Relaxed);
            let swap = self.state.data.compare_exchange(
                head,
                chunk + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match swap {
                Ok(_) => return,
                Err(seen) => head = seen,
            }
        }
    }

    /// Chunks ever leased by this attachment, newest first.
    pub(crate) fn leased(&self) -> impl Iterator<Item = (u32, &ChunkMap)> {
        let mut next = self.state.data.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let chunk = next.checked_sub(1)?;
            let map = self.map(chunk)?;
            next = map.next.load(Ordering::Acquire);
            Some((chunk, map))
        })
    }

    /// Gives an extent of `len` bytes: adjacent, in one chunk, line-aligned, page-aligned from a page
    /// on. Its bytes hold anything.
    pub fn alloc(&self, len: u32) -> Result<Extent> {
        self.ensure_current()?;
        if len == 0 || u64::from(len) > self.pool.geometry().chunk_size() {
            return Err(Error::Invalid("an extent has between one byte and a chunk"));
        }
        let footprint = Footprint::of(len);
        // A chunk leased below may be emptied by other threads at once; give up after some rounds.
        for _ in 0..64 {
            // Where room was found last, then everywhere.
            let last = self.state.current.load(Ordering::Relaxed);
            let last = self.map(last).map(|map| (last, map));
            for (chunk, map) in last.into_iter().chain(self.leased()) {
                if let Some(first) = map.take(footprint) {
                    self.state.current.store(chunk, Ordering::Relaxed);
                    let offset = self.pool.geometry().record(chunk, first);
                    return Ok(Extent { offset, len });
                }
            }
            self.lease_as(Purpose::Data)?;
        }
        Err(Error::Full {
            chunks: self.pool.mapped_chunks()?,
        })
    }

    /// Gives back an extent that no record names, or only one that is retired. Extents that a record
    /// names come back through [`Attachment::reclaim`], never through here.
    pub fn free(&self, extent: Extent) -> Result<()> {
        self.ensure_current()?;
        if let Some(name) = self.name_of_page(extent) {
            name.store(0, Ordering::Release);
        }
        self.take_unwritten(extent.offset);
        self.give_extent(extent);
        Ok(())
    }

    pub(crate) fn give_extent(&self, extent: Extent) {
        if let Some((map, first)) = self.data_of(extent) {
            map.give(first, Footprint::of(extent.len));
        }
    }

    /// The chunk of an extent, and the extent's first line in it.
    fn data_of(&self, extent: Extent) -> Option<(&ChunkMap, u32)> {
        let geometry = self.pool.geometry();
        let map = self.map((extent.offset >> geometry.chunk_shift) as u32)?;
        let first = ((extent.offset & (geometry.chunk_size() - 1)) / LINE) as u32;
        map.is(Role::Data).then_some((map, first))
    }

    /// Where it is kept who named an extent last, which is for extents of one page only.
    #[inline(always)]
    fn name_of_page(&self, extent: Extent) -> Option<&AtomicU64> {
        if Footprint::of(extent.len) != Footprint::Pages(1) {
            return None;
        }
        let (map, first) = self.data_of(extent)?;
        map.named_by(first)
    }

    /// A record at `place` names the extent.
    #[inline(always)]
    pub(crate) fn name_extent(&self, extent: Extent, place: Place) {
        if let Some(name) = self.name_of_page(extent) {
            name.store(place.packed() + 1, Ordering::Release);
        }
    }

    /// The record at `place` names the extent no more; whether the extent goes with it.
    pub(crate) fn unname_extent(&self, extent: Extent, place: Place) -> bool {
        let name = self.name_of_page(extent);
        name.is_none_or(|name| {
            let mine = place.packed() + 1;
            name.compare_exchange(mine, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Takes a page back from the record that named it last, while that record may still count. The
    /// caller knows that later records of the same file, which no crash takes back, cover all of it, and
    /// that nobody publishes the file without them.
    ///
    /// It may then be filled and named by another record of the same file, and by no other: what still
    /// names it has to be retired before it is anybody else's. `false` when it was not to be had.
    #[must_use]
    pub fn take_over(&self, page: Extent) -> bool {
        let name = self.name_of_page(page);
        name.is_some_and(|name| name.swap(0, Ordering::AcqRel) != 0)
    }

    /// Gives back the end of an extent of which only `used` bytes were used.
    pub(crate) fn trim(&self, extent: Extent, used: u32) -> Extent {
        let kept = Extent {
            offset: extent.offset,
            len: used,
        };
        let geometry = self.pool.geometry();
        let Some(map) = self.map((extent.offset >> geometry.chunk_shift) as u32) else {
            return kept;
        };
        let first = ((extent.offset & (geometry.chunk_size() - 1)) / LINE) as u32;
        let (keep, had) = (
            Footprint::of(used).lines(),
            Footprint::of(extent.len).lines(),
        );
        let mut at = first + keep;
        while at < first + had {
            let lines = (64 - at % 64).min(first + had - at);
            map.give(at, Footprint::Lines(lines));
            at += lines;
        }
        kept
    }

    /// Copies bytes into an extent with streaming stores. Durable after the fence that the append of
    /// its record does.
    pub fn fill(&self, extent: Extent, at: u32, bytes: &[u8]) -> Result<()> {
        self.ensure_current()?;
        let end = u64::from(at) + bytes.len() as u64;
        if end > u64::from(extent.len) {
            return Err(Error::Invalid("more bytes than the extent has"));
        }
        Ok(self
            .pool
            .medium()
            .write_streaming(extent.offset + u64::from(at), bytes)?)
    }

    /// Fills a whole extent together with the record that names it, which has to carry the CRC of the
    /// bytes that this returns. For media where a write costs mostly for being one more; until the record
    /// is written nobody can have looked at the extent.
    pub fn fill_with_record(&self, extent: Extent, bytes: Vec<u8>) -> Result<u32> {
        self.ensure_current()?;
        if bytes.len() as u64 != u64::from(extent.len) {
            return Err(Error::Invalid("not the bytes of the whole extent"));
        }
        let crc = crc32c::crc32c(&bytes);
        self.put_unwritten(extent.offset, bytes);
        Ok(crc)
    }

    pub(crate) fn put_unwritten(&self, offset: u64, bytes: Vec<u8>) {
        self.unwritten().push((offset, bytes));
        self.state.waits_unwritten.fetch_add(1, Ordering::Release);
    }

    fn unwritten(&self) -> MutexGuard<'_, Vec<(u64, Vec<u8>)>> {
        let unwritten = self.state.unwritten.lock();
        unwritten.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether bytes of any extent wait for their record.
    #[inline]
    pub(crate) fn has_unwritten(&self) -> bool {
        self.state.waits_unwritten.load(Ordering::Acquire) != 0
    }

    /// What waits to be written to the extent at `offset`.
    pub(crate) fn take_unwritten(&self, offset: u64) -> Option<Vec<u8>> {
        if !self.has_unwritten() {
            return None;
        }
        let mut unwritten = self.unwritten();
        let nth = unwritten.iter().position(|(at, _)| *at == offset)?;
        self.state.waits_unwritten.fetch_sub(1, Ordering::Relaxed);
        Some(unwritten.swap_remove(nth).1)
    }

    /// As [`Attachment::fill`], from memory of a program; [`Error::Fault`] when that cannot be read.
    /// `cold` says that the extent is in no cache any more.
    ///
    /// # Safety
    ///
    /// As for the source of [`Medium::write_streaming_from`].
    pub unsafe fn fill_from(
        &self,
        extent: Extent,
        at: u32,
        from: *const u8,
        len: usize,
        cold: bool,
    ) -> Result<()> {
        self.ensure_current()?;
        if u64::from(at) + len as u64 > u64::from(extent.len) {
            return Err(Error::Invalid("more bytes than the extent has"));
        }
        let medium = self.pool.medium();
        let to = extent.offset + u64::from(at);
        if cold {
            // SAFETY: the caller vouches for the source.
            unsafe { medium.write_cold_from(to, from, len)? };
        } else {
            // SAFETY: as above.
            unsafe { medium.write_streaming_from(to, from, len)? };
        }
        Ok(())
    }

    /// Gives back data chunks that are wholly free.
    pub fn release_empty(&self) -> Result<u32> {
        self.ensure_current()?;
        let mut released = 0;
        for (chunk, map) in self.leased().filter(|(_, map)| map.is(Role::Data)) {
            // Taking every line makes sure that no other thread allocates from it meanwhile.
            if map.take_all() && self.give_back(chunk, map)? {
                released += 1;
            }
        }
        if released > 0 {
            self.pool.fence()?;
        }
        Ok(released)
    }

    /// Makes a chunk free. Of a log it is durable that it is none before anybody can have the chunk ([`emptied`]). With one
    /// that held data nothing is found but through records, and those of whoever has it next make it durable that he has;
    /// the caller fences, once for all of them.
    pub(crate) fn give_back(&self, chunk: u32, map: &ChunkMap) -> Result<bool> {
        map.end();
        match self.pool.chunk_word(chunk)? {
            Some(word) if word.owner != self.owner_field() => Ok(false),
            Some(word) if word.kind == ChunkKind::Data => {
                self.pool.swap_chunk(chunk, word, freed(word))
            }
            Some(word) => {
                let data = emptied(word);
                let is_none = self.pool.change_chunk(chunk, word, data);
                if is_none.is_err() {
                    // Nobody looks for it here any more. Whoever recovers makes it durable first.
                    let _ = self.pool.orphan_chunk(chunk, data);
                }
                Ok(is_none? && self.pool.swap_chunk(chunk, data, freed(data))?)
            }
            None => Ok(false),
        }
    }

    /// At the end: chunks that hold records which still count become orphans, the others free.
    pub(crate) fn give_back_chunks(&self) -> Result<()> {
        let waiting = self
            .leased()
            .any(|(_, map)| map.is(Role::Log) && !map.is_nothing_waiting());
        let mut changed = false;
        for (chunk, map) in self.leased() {
            let keep = if map.is(Role::Log) {
                !map.is_nothing_waiting()
            } else if map.is(Role::Data) {
                waiting && !map.is_all_free()
            } else {
                continue;
            };
            if !keep {
                changed |= self.give_back(chunk, map)?;
            } else if let Some(word) = self.pool.chunk_word(chunk)?
                && word.owner == self.owner_field()
            {
                changed |= self.pool.swap_chunk(chunk, word, orphaned(word))?;
            }
        }
        // Everybody who comes or goes waits for us: one fence for all that were no logs.
        if changed { self.pool.fence() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who looks for more than there is takes what there is for a moment. Who finds nothing meanwhile does not take the
    /// chunk for full.
    #[test]
    fn what_is_given_up_again_is_found() {
        let map = ChunkMap::new(8);
        map.begin(Role::Data, 1);
        map.free[7].store(0, Ordering::Relaxed);
        // As in a search for eight pages that has come to the last of them.
        let seen = map.fails_from.load(Ordering::Acquire);
        assert_eq!(map.take_run(0, 7), Ok(()));
        assert_eq!(map.take(Footprint::Lines(3)), None);
        map.free[..7]
            .iter()
            .for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        map.found_nothing(seen, Footprint::Pages(8));
        assert_eq!(map.take(Footprint::Lines(3)), Some(0));
        assert_eq!(map.take(Footprint::Pages(8)), None);
    }

    /// The same of who finds it further on.
    #[test]
    fn what_a_search_has_given_up_on_its_way_is_found() {
        let map = ChunkMap::new(8);
        map.begin(Role::Data, 1);
        map.free[2].store(0, Ordering::Relaxed);
        map.free[6..]
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        // Somebody looks while the others are in two searches.
        let seen = map.fails_from.load(Ordering::Acquire);
        map.found_nothing(seen, Footprint::Lines(3));
        assert_eq!(map.take(Footprint::Lines(3)), None);
        assert_eq!(
            map.take_pages(3),
            Some(3 * 64),
            "by way of the first two pages"
        );
        assert_eq!(map.take(Footprint::Lines(3)), Some(0));
    }

    /// What was looked for in vain is not looked for again before something comes back.
    #[test]
    fn a_full_chunk_is_not_searched_again() {
        let map = ChunkMap::new(8);
        map.begin(Role::Data, 1);
        map.free[4].store(0, Ordering::Relaxed);
        assert_eq!(map.take(Footprint::Pages(5)), None);
        assert_eq!(map.fails_from.load(Ordering::Relaxed) as u32, 5 * 64);
        assert_eq!(map.take(Footprint::Pages(4)), Some(0));
        assert_eq!(map.take(Footprint::Pages(4)), None);
        assert_eq!(map.fails_from.load(Ordering::Relaxed) as u32, 4 * 64);
        map.give(0, Footprint::Pages(4));
        assert_eq!(map.take(Footprint::Pages(4)), Some(0));
    }
}
