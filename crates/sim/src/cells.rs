//! The bytes of a simulated medium: what programs see, what is durable for certain, and every store
//! in between.
//!
//! A store is *outstanding* from the moment it is made until a fence covers it. Each word keeps the
//! values it had since the last one that is certainly durable, so a crash can take any of them:
//! the cache may evict a line at any moment, also between two stores to it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use crate::choice::{Pick, Place, Unit};
use crate::rng::{Rng, mix};

/// Bytes of a cache line: what a flush covers.
pub(crate) const LINE: u64 = 64;
const WORDS_PER_LINE: u64 = LINE / 8;
const PAGE_WORDS: usize = 512;

/// Values that one word remembers. Older ones in the middle are forgotten, which costs coverage of
/// words that are stored to for ever without a flush (locks), never soundness: a version that a
/// flush captured stays, because a fence may make exactly that one durable.
const MAX_VERSIONS: usize = 6;

/// Words in copy-on-write pages, so that taking a crash image costs pointers, not bytes.
#[derive(Clone)]
pub(crate) struct Words {
    pages: Vec<Option<Arc<[u64; PAGE_WORDS]>>>,
    fingerprint: u64,
}

impl Words {
    pub(crate) fn new(words: u64) -> Self {
        Self {
            pages: vec![None; (words as usize).div_ceil(PAGE_WORDS)],
            fingerprint: 0,
        }
    }

    pub(crate) fn grow(&mut self, words: u64) {
        let pages = (words as usize).div_ceil(PAGE_WORDS);
        if pages > self.pages.len() {
            self.pages.resize(pages, None);
        }
    }

    pub(crate) fn get(&self, word: u64) -> u64 {
        let (page, slot) = (word as usize / PAGE_WORDS, word as usize % PAGE_WORDS);
        self.pages
            .get(page)
            .and_then(Option::as_ref)
            .map_or(0, |words| words[slot])
    }

    pub(crate) fn set(&mut self, word: u64, value: u64) {
        let old = self.get(word);
        if old == value {
            return;
        }
        self.fingerprint ^= word_print(word, old) ^ word_print(word, value);
        let (page, slot) = (word as usize / PAGE_WORDS, word as usize % PAGE_WORDS);
        let words = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE_WORDS]));
        Arc::make_mut(words)[slot] = value;
    }

    /// Equal for equal contents, however they came about.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

fn word_print(word: u64, value: u64) -> u64 {
    if value == 0 {
        0
    } else {
        mix(mix(word.wrapping_add(1)) ^ value)
    }
}

/// One value a word was given, and when.
#[derive(Clone, Copy)]
struct Version {
    at: u64,
    value: u64,
}

/// Who issues stores: a flush and a streaming store wait for the fence of the same core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Core {
    /// The calling thread.
    Thread(std::thread::ThreadId),
    /// A core named by the test, so that one thread can play several, repeatably.
    Named(u32),
}

/// The versions of each word of a line, oldest first.
type Line = [Vec<Version>; WORDS_PER_LINE as usize];

/// Numbers of words need no protection from each other, and are looked up at every store.
#[derive(Clone, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
}

/// Words, and the time up to which.
type Captured = HashMap<u64, u64, BuildHasherDefault<Mixed>>;

/// See the module.
#[derive(Clone)]
pub(crate) struct Cells {
    size: u64,
    visible: Words,
    durable: Words,
    /// Versions newer than the durable one, by line; there is one at least.
    outstanding: BTreeMap<u64, Line>,
    /// What each core's next fence makes durable.
    pending: HashMap<Core, Captured>,
    /// Behind a page cache: how many words, from the start, are worked on in a mirror.
    mirrored: Option<u64>,
}

/// The line of a word, and which of its words it is.
fn place_of(word: u64) -> (u64, usize) {
    (word / WORDS_PER_LINE, (word % WORDS_PER_LINE) as usize)
}

/// The words of a range that have outstanding versions.
fn versions_of(
    outstanding: &BTreeMap<u64, Line>,
    words: Range<u64>,
) -> impl Iterator<Item = (u64, &[Version])> {
    let lines = words.start / WORDS_PER_LINE..words.end.div_ceil(WORDS_PER_LINE);
    outstanding
        .range(lines)
        .flat_map(|(&line, versions)| (line * WORDS_PER_LINE..).zip(versions))
        .filter(move |(word, versions)| words.contains(word) && !versions.is_empty())
        .map(|(word, versions)| (word, versions.as_slice()))
}

impl Cells {
    pub(crate) fn new(size: u64) -> Self {
        let words = size.div_ceil(8);
        Self {
            size,
            visible: Words::new(words),
            durable: Words::new(words),
            outstanding: BTreeMap::new(),
            pending: HashMap::new(),
            mirrored: None,
        }
    }

    /// From now on as a file behind the page cache, whose first bytes are worked on in a mirror.
    pub(crate) fn put_behind_page_cache(&mut self, mirrored: u64) {
        self.mirrored = Some(mirrored / 8);
    }

    pub(crate) fn is_behind_page_cache(&self) -> bool {
        self.mirrored.is_some()
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
        self.visible.grow(self.size.div_ceil(8));
        self.durable.grow(self.size.div_ceil(8));
    }

    pub(crate) fn load(&self, word: u64) -> u64 {
        self.visible.get(word)
    }

    pub(crate) fn store(&mut self, word: u64, value: u64, at: u64) {
        self.visible.set(word, value);
        let (line, slot) = place_of(word);
        let versions = &mut self.outstanding.entry(line).or_default()[slot];
        versions.push(Version { at, value });
        if versions.len() > MAX_VERSIONS {
            let captured = |at: u64| self.pending.values().any(|p| p.get(&word) == Some(&at));
            let forgettable = (1..versions.len() - 1).find(|&i| !captured(versions[i].at));
            if let Some(i) = forgettable {
                versions.remove(i);
            }
        }
    }

    pub(crate) fn store_streaming(&mut self, word: u64, value: u64, at: u64, core: Core) {
        self.store(word, value, at);
        self.pending.entry(core).or_default().insert(word, at);
    }

    /// Captures the present contents of the lines that `offset..offset+len` touches.
    pub(crate) fn flush(&mut self, offset: u64, len: u64, core: Core) {
        if len == 0 {
            return;
        }
        let first = offset / LINE * WORDS_PER_LINE;
        let last = (offset + len - 1) / LINE * WORDS_PER_LINE + WORDS_PER_LINE;
        let pending = self.pending.entry(core).or_default();
        for (word, versions) in versions_of(&self.outstanding, first..last) {
            if let Some(newest) = versions.last() {
                pending.insert(word, newest.at);
            }
        }
    }

    /// Makes what this core flushed and streamed durable; behind a page cache, what all did.
    pub(crate) fn fence(&mut self, core: Core) {
        if self.mirrored.is_some() {
            for (word, upto) in self
                .pending
                .drain()
                .flat_map(|(_, words)| words)
                .collect::<Vec<_>>()
            {
                self.make_durable(word, upto);
            }
            return;
        }
        for (word, upto) in self.pending.remove(&core).unwrap_or_default() {
            self.make_durable(word, upto);
        }
    }

    fn make_durable(&mut self, word: u64, upto: u64) {
        let (line, slot) = place_of(word);
        let Some(words) = self.outstanding.get_mut(&line) else {
            return;
        };
        let versions = &mut words[slot];
        let covered = versions.partition_point(|version| version.at <= upto);
        if covered == 0 {
            return;
        }
        self.durable.set(word, versions[covered - 1].value);
        versions.drain(..covered);
        self.tidy(line);
    }

    /// Forgets a line of which nothing is outstanding.
    fn tidy(&mut self, line: u64) {
        let is_left = |words: &Line| words.iter().any(|versions| !versions.is_empty());
        if !self.outstanding.get(&line).is_some_and(is_left) {
            self.outstanding.remove(&line);
        }
    }

    /// The state after a clean shutdown: everything visible is durable.
    pub(crate) fn settle(&mut self) {
        self.durable = self.visible.clone();
        self.outstanding.clear();
        self.pending.clear();
    }

    /// The system calls that flush a range in the kernel (clone, exchange, fsync of a mapped file).
    pub(crate) fn settle_range(&mut self, offset: u64, len: u64) {
        let words = offset / 8..(offset + len).div_ceil(8);
        let words: Vec<u64> = versions_of(&self.outstanding, words)
            .map(|(word, _)| word)
            .collect();
        for word in words {
            self.make_durable(word, u64::MAX);
        }
    }

    /// Durable words, seen by all: what exchanging blocks leaves.
    pub(crate) fn replace(&mut self, first: u64, words: &[u64]) {
        for (word, &value) in (first..).zip(words) {
            let (line, slot) = place_of(word);
            if let Some(words) = self.outstanding.get_mut(&line) {
                words[slot].clear();
                self.tidy(line);
            }
            self.visible.set(word, value);
            self.durable.set(word, value);
        }
    }

    /// The state another process finds after all that used the medium were killed: every store is
    /// there, and still outstanding; the write-backs that nobody fenced count for nothing.
    ///
    /// Behind a page cache the next one fills the mirror from the file: what was not flushed is gone.
    /// What was, is in the file, and any later sync covers it.
    pub(crate) fn killed(&self) -> Self {
        let mut killed = self.clone();
        if self.mirrored.is_none() {
            killed.pending.clear();
        }
        let mirrored = self.mirrored.unwrap_or(0);
        for (word, _) in versions_of(&self.outstanding, 0..mirrored) {
            killed.forget_after(word, self.captured(word));
        }
        killed
    }

    /// When the newest version of a word that a flush captured was stored; 0 for none.
    fn captured(&self, word: u64) -> u64 {
        let captured = self.pending.values().filter_map(|words| words.get(&word));
        captured.copied().max().unwrap_or(0)
    }

    fn forget_after(&mut self, word: u64, upto: u64) {
        let (line, slot) = place_of(word);
        let Some(words) = self.outstanding.get_mut(&line) else {
            return;
        };
        let versions = &mut words[slot];
        versions.retain(|version| version.at <= upto);
        let value = versions.last().map(|version| version.value);
        self.tidy(line);
        self.visible
            .set(word, value.unwrap_or_else(|| self.durable.get(word)));
    }

    /// The outstanding lines. Version `n` of a line is its contents after its `n`th store.
    pub(crate) fn units(&self) -> Vec<Unit> {
        let unit = |(&line, words): (&u64, &Line)| {
            let versions = words.iter().flatten();
            let mut times: Vec<u64> = versions.map(|version| version.at).collect();
            times.sort_unstable();
            times.dedup();
            Unit {
                place: Place::Line(line),
                group: times.last().copied().unwrap_or(0),
                times,
            }
        };
        self.outstanding.iter().map(unit).collect()
    }

    /// What a power cut leaves when each of `units` is taken as picked; some may be others'.
    pub(crate) fn crashed(&self, units: &[Unit], picks: &[Pick]) -> Self {
        let mut durable = self.durable.clone();
        for (unit, pick) in units.iter().zip(picks) {
            let Place::Line(line) = unit.place else {
                continue;
            };
            let words = line * WORDS_PER_LINE..(line + 1) * WORDS_PER_LINE;
            let mut torn = Rng::new(if let Pick::Torn(seed) = pick {
                *seed
            } else {
                0
            });
            for (word, versions) in versions_of(&self.outstanding, words) {
                let taken = match pick {
                    Pick::Version(0) => 0,
                    Pick::Version(nth) => {
                        let upto = unit.times[nth - 1];
                        versions.partition_point(|version| version.at <= upto)
                    }
                    Pick::Torn(_) => torn.below(versions.len() as u64 + 1) as usize,
                };
                if taken > 0 {
                    durable.set(word, versions[taken - 1].value);
                }
            }
        }
        Self {
            size: self.size,
            visible: durable.clone(),
            durable,
            outstanding: BTreeMap::new(),
            pending: HashMap::new(),
            mirrored: self.mirrored,
        }
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.visible.fingerprint()
    }

    pub(crate) fn outstanding_fingerprint(&self) -> u64 {
        let versions = versions_of(&self.outstanding, 0..u64::MAX).flat_map(|(word, versions)| {
            versions
                .iter()
                .map(move |version| mix(mix(word) ^ version.value))
        });
        mix(self.durable.fingerprint()) ^ versions.fold(0, |sum, print| mix(sum ^ print))
    }
}
