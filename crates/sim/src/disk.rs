//! The files of a simulated machine: what programs see, what is durable, and every change between.
//!
//! Three kinds of change differ in what a crash does with them:
//!
//! - **Loose** ones (bytes written, the growth of a file by writing): each page and each size on its
//!   own, in any order, until the file is synced.
//! - **Journaled** ones of files (truncate, reserve, punch, clone, exchange): a crash keeps a prefix of
//!   them, in order, over all files.
//! - **Names** (create, rename, unlink): a prefix of them, independent of the files' own journal. This
//!   promises less than ext4 and XFS do, so that code which forgets to sync a directory is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::choice::{Pick, Place, Unit};
use crate::rng::{Rng, mix};

/// Bytes of a page, the block of the simulated file system.
pub(crate) const PAGE: u64 = 4096;
const SECTOR: usize = 512;

/// One page's bytes, with their fingerprint.
pub(crate) struct Page {
    pub(crate) bytes: [u8; PAGE as usize],
    print: u64,
}

impl Page {
    pub(crate) fn new(bytes: [u8; PAGE as usize]) -> Option<Arc<Self>> {
        if bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        let print = bytes.chunks_exact(8).fold(0, |sum, word| {
            mix(sum
                ^ word
                    .iter()
                    .fold(0, |value, &byte| value << 8 | u64::from(byte)))
        });
        Some(Arc::new(Self { bytes, print }))
    }
}

/// A page's contents; `None` reads as zeros.
pub(crate) type Content = Option<Arc<Page>>;

/// The bytes of `content`.
pub(crate) fn bytes_of(content: &Content) -> [u8; PAGE as usize] {
    content
        .as_ref()
        .map_or([0; PAGE as usize], |page| page.bytes)
}

/// One step in the life of a page or of a size.
#[derive(Clone)]
struct Change<T> {
    at: u64,
    journaled: bool,
    to: T,
}

/// The durable value and the changes since, oldest first.
#[derive(Clone)]
struct Tracked<T> {
    durable: T,
    changes: Vec<Change<T>>,
}

impl<T: Clone> Tracked<T> {
    fn new(durable: T) -> Self {
        Self {
            durable,
            changes: Vec::new(),
        }
    }

    fn visible(&self) -> &T {
        self.changes
            .last()
            .map_or(&self.durable, |change| &change.to)
    }

    fn change(&mut self, at: u64, journaled: bool, to: T) {
        self.changes.push(Change { at, journaled, to });
    }

    /// The value when the journal is durable up to `journal` and loose changes up to `loose`.
    fn crashed(&self, journal: u64, loose: u64, merge: impl Fn(&T, &Change<T>) -> T) -> T {
        self.changes
            .iter()
            .filter(|change| change.at <= if change.journaled { journal } else { loose })
            .fold(self.durable.clone(), |value, change| merge(&value, change))
    }

    fn loose_times(&self) -> Vec<u64> {
        self.changes
            .iter()
            .filter(|change| !change.journaled)
            .map(|change| change.at)
            .collect()
    }

    /// The journal is durable up to `journal`.
    fn commit(&mut self, journal: u64) {
        let last = self
            .changes
            .iter()
            .rposition(|change| change.journaled && change.at <= journal);
        if let Some(last) = last {
            self.durable = self.changes[last].to.clone();
            self.changes.drain(..=last);
        }
    }

    /// Everything is durable.
    fn settle(&mut self) {
        if let Some(last) = self.changes.pop() {
            self.durable = last.to;
            self.changes.clear();
        }
    }
}

/// Writing past the end never shrinks a file, whatever else of its history is lost.
fn merge_size(size: &u64, change: &Change<u64>) -> u64 {
    if change.journaled {
        change.to
    } else {
        change.to.max(*size)
    }
}

fn merge_page(_: &Content, change: &Change<Content>) -> Content {
    change.to.clone()
}

#[derive(Clone)]
struct Inode {
    size: Tracked<u64>,
    pages: BTreeMap<u64, Tracked<Content>>,
    /// Blocks that belong to the file, whether written or only reserved.
    blocks: BTreeSet<u64>,
    /// The last journaled change that touched this file.
    journaled: u64,
}

impl Inode {
    fn new() -> Self {
        Self {
            size: Tracked::new(0),
            pages: BTreeMap::new(),
            blocks: BTreeSet::new(),
            journaled: 0,
        }
    }

    fn page(&self, page: u64) -> Content {
        self.pages
            .get(&page)
            .and_then(|tracked| tracked.visible().clone())
    }

    fn set_page(&mut self, page: u64, at: u64, journaled: bool, to: Content) {
        self.pages
            .entry(page)
            .or_insert_with(|| Tracked::new(None))
            .change(at, journaled, to);
        if journaled {
            self.journaled = at;
        }
    }

    fn set_size(&mut self, at: u64, journaled: bool, to: u64) {
        self.size.change(at, journaled, to);
        if journaled {
            self.journaled = at;
        }
    }
}

#[derive(Clone)]
enum NameChange {
    Link(String, u64),
    Unlink(String),
    Rename(String, String),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Link(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }

    fn touches(&self, directory: &str) -> bool {
        match self {
            Self::Link(name, _) | Self::Unlink(name) => parent(name) == directory,
            Self::Rename(from, to) => parent(from) == directory || parent(to) == directory,
        }
    }
}

/// The part of a name before its last slash; empty at the top.
fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Disk {
    files: BTreeMap<u64, Inode>,
    next_file: u64,
    /// Times of journaled changes that are not certainly durable.
    journal: Vec<u64>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<(u64, NameChange)>,
    /// Blocks nobody has, when the disk is finite.
    free: Option<u64>,
    /// What ranges of the medium held before exchanges that are not certainly durable, oldest first.
    exchanged: Vec<Exchanged>,
}

/// Words of the medium from before an exchange.
#[derive(Clone)]
struct Exchanged {
    at: u64,
    first_word: u64,
    words: Arc<[u64]>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self {
            files: BTreeMap::new(),
            next_file: 1,
            journal: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            free: None,
            exchanged: Vec::new(),
        }
    }

    pub(crate) fn limit(&mut self, free: Option<u64>) {
        self.free = free;
    }

    // Names.

    pub(crate) fn find(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub(crate) fn is_linked(&self, file: u64) -> bool {
        self.names.values().any(|&linked| linked == file)
    }

    pub(crate) fn create(&mut self, name: &str, at: u64) -> u64 {
        let file = self.next_file;
        self.next_file += 1;
        self.files.insert(file, Inode::new());
        self.rename_change(at, NameChange::Link(name.to_owned(), file));
        file
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str, at: u64) {
        self.rename_change(at, NameChange::Rename(from.to_owned(), to.to_owned()));
    }

    pub(crate) fn unlink(&mut self, name: &str, at: u64) {
        self.rename_change(at, NameChange::Unlink(name.to_owned()));
    }

    fn rename_change(&mut self, at: u64, change: NameChange) {
        change.apply(&mut self.names);
        self.name_changes.push((at, change));
    }

    pub(crate) fn sync_directory(&mut self, directory: &str) {
        let last = self
            .name_changes
            .iter()
            .rposition(|(_, change)| change.touches(directory));
        let Some(last) = last else { return };
        for (_, change) in self.name_changes.drain(..=last) {
            change.apply(&mut self.durable_names);
        }
    }

    // Files. A file that does not exist is a bug of this crate: handles are made by it only.

    pub(crate) fn size(&self, file: u64) -> u64 {
        *self.files[&file].size.visible()
    }

    pub(crate) fn page(&self, file: u64, page: u64) -> Content {
        self.files[&file].page(page)
    }

    fn file(&mut self, file: u64) -> &mut Inode {
        self.files.get_mut(&file).expect("a handle names a file")
    }

    /// Takes blocks for `pages`; false, and nothing taken, when there are too few.
    pub(crate) fn allocate(&mut self, file: u64, pages: std::ops::Range<u64>) -> bool {
        let blocks = &self.files[&file].blocks;
        let wanted: Vec<u64> = pages.filter(|page| !blocks.contains(page)).collect();
        if let Some(free) = &mut self.free {
            let Some(left) = free.checked_sub(wanted.len() as u64) else {
                return false;
            };
            *free = left;
        }
        self.file(file).blocks.extend(wanted);
        true
    }

    /// Reserving is journaled and changes no byte.
    pub(crate) fn reserved(&mut self, file: u64, at: u64) {
        self.journal.push(at);
        self.file(file).journaled = at;
    }

    /// Gives blocks back.
    fn release(&mut self, file: u64, pages: std::ops::Range<u64>) {
        let inode = self.files.get_mut(&file).expect("a handle names a file");
        let before = inode.blocks.len();
        inode.blocks.retain(|page| !pages.contains(page));
        let released = (before - inode.blocks.len()) as u64;
        if let Some(free) = &mut self.free {
            *free += released;
        }
    }

    /// Writes within one page, whose block is allocated.
    pub(crate) fn write(&mut self, file: u64, offset: u64, from: &[u8], at: u64) {
        let inode = self.file(file);
        let mut bytes = bytes_of(&inode.page(offset / PAGE));
        let start = (offset % PAGE) as usize;
        bytes[start..start + from.len()].copy_from_slice(from);
        inode.set_page(offset / PAGE, at, false, Page::new(bytes));
        let end = offset + from.len() as u64;
        if end > *inode.size.visible() {
            inode.set_size(at, false, end);
        }
    }

    /// One journaled change: zeros in a range, block by block.
    fn zero(&mut self, file: u64, offset: u64, end: u64, at: u64) {
        let inode = self.file(file);
        let pages: Vec<u64> = inode
            .pages
            .range(offset / PAGE..end.div_ceil(PAGE))
            .map(|(&page, _)| page)
            .collect();
        for page in pages {
            let mut bytes = bytes_of(&inode.page(page));
            let from = offset.saturating_sub(page * PAGE).min(PAGE) as usize;
            let upto = (end - page * PAGE).min(PAGE) as usize;
            bytes[from..upto].fill(0);
            inode.set_page(page, at, true, Page::new(bytes));
        }
        inode.journaled = at;
    }

    pub(crate) fn punch(&mut self, file: u64, offset: u64, len: u64, at: u64) {
        self.journal.push(at);
        let end = (offset + len).min(self.size(file).next_multiple_of(PAGE));
        if offset < end {
            self.zero(file, offset, end, at);
        }
        self.release(file, offset.div_ceil(PAGE)..(offset + len) / PAGE);
    }

    pub(crate) fn set_size(&mut self, file: u64, size: u64, at: u64) {
        self.journal.push(at);
        let old = self.size(file);
        if size < old {
            self.zero(file, size, old.next_multiple_of(PAGE), at);
            self.release(file, size.div_ceil(PAGE)..u64::MAX);
        }
        self.file(file).set_size(at, true, size);
    }

    /// One extent of a clone: `contents` become pages from `page` on, and the file at least `size`
    /// bytes large, in one journaled step.
    pub(crate) fn clone_extent(
        &mut self,
        file: u64,
        page: u64,
        contents: Vec<Content>,
        size: u64,
        at: u64,
    ) {
        self.journal.push(at);
        let inode = self.file(file);
        for (page, content) in (page..).zip(contents) {
            inode.set_page(page, at, true, content);
            inode.blocks.insert(page);
        }
        if size > *inode.size.visible() {
            inode.set_size(at, true, size);
        }
        inode.journaled = at;
    }

    pub(crate) fn exchange(&mut self, one: (u64, u64), other: (u64, u64), pages: u64, at: u64) {
        self.journal.push(at);
        for nth in 0..pages {
            let first = self.page(one.0, one.1 + nth);
            let second = self.page(other.0, other.1 + nth);
            self.file(one.0).set_page(one.1 + nth, at, true, second);
            self.file(other.0).set_page(other.1 + nth, at, true, first);
        }
    }

    /// Pages of a file become `contents`, and what the medium had in return is remembered, in one
    /// journaled step.
    pub(crate) fn exchange_with_medium(
        &mut self,
        file: u64,
        page: u64,
        contents: Vec<Content>,
        first_word: u64,
        words: Vec<u64>,
        at: u64,
    ) {
        self.journal.push(at);
        for (page, content) in (page..).zip(contents) {
            self.file(file).set_page(page, at, true, content);
        }
        self.exchanged.push(Exchanged {
            at,
            first_word,
            words: words.into(),
        });
    }

    /// Words of the medium that a power cut brings back, those of the oldest exchange last.
    pub(crate) fn brought_back(&self, units: &[Unit], picks: &[Pick]) -> Vec<(u64, Arc<[u64]>)> {
        let journal = units
            .iter()
            .zip(picks)
            .find(|(unit, _)| unit.place == Place::Journal)
            .map_or(Taken::NONE, |(unit, pick)| Taken::of(unit, *pick));
        let undone = |exchanged: &&Exchanged| exchanged.at > journal.upto;
        let newest_first = self.exchanged.iter().rev().filter(undone);
        newest_first
            .map(|exchanged| (exchanged.first_word, Arc::clone(&exchanged.words)))
            .collect()
    }

    /// The kernel writes a file's dirty pages out before it clones or exchanges them.
    pub(crate) fn write_out(&mut self, file: u64, pages: std::ops::Range<u64>) {
        for (_, page) in self.file(file).pages.range_mut(pages) {
            // What a journaled change would overwrite is not decided by writing out: keep it.
            if page.changes.iter().all(|change| !change.journaled) {
                page.settle();
            }
        }
    }

    pub(crate) fn sync(&mut self, file: u64) {
        let upto = self.files[&file].journaled;
        self.commit(upto);
        let inode = self.file(file);
        inode.size.settle();
        for page in inode.pages.values_mut() {
            page.settle();
        }
    }

    fn commit(&mut self, upto: u64) {
        self.journal.retain(|&at| at > upto);
        self.exchanged.retain(|exchanged| exchanged.at > upto);
        for inode in self.files.values_mut() {
            inode.size.commit(upto);
            for page in inode.pages.values_mut() {
                page.commit(upto);
            }
        }
    }

    /// A clean shutdown.
    pub(crate) fn settle(&mut self) {
        let files: Vec<u64> = self.files.keys().copied().collect();
        self.commit(u64::MAX);
        for file in files {
            self.sync(file);
        }
        self.durable_names = self.names.clone();
        self.name_changes.clear();
    }

    // Crashes.

    /// Everything that is not certainly durable.
    pub(crate) fn units(&self) -> Vec<Unit> {
        let mut units = Vec::new();
        let mut add = |place: Place, times: Vec<u64>| {
            if let Some(&group) = times.last() {
                units.push(Unit {
                    place,
                    group,
                    times,
                });
            }
        };
        add(Place::Journal, self.journal.clone());
        add(
            Place::Names,
            self.name_changes.iter().map(|(at, _)| *at).collect(),
        );
        for (&file, inode) in &self.files {
            add(Place::Size(file), inode.size.loose_times());
            for (&page, tracked) in &inode.pages {
                add(Place::Page(file, page), tracked.loose_times());
            }
        }
        units
    }

    /// What a power cut leaves. `units` may hold units of others.
    pub(crate) fn crashed(&self, units: &[Unit], picks: &[Pick]) -> Self {
        let taken: BTreeMap<Place, Taken> = units
            .iter()
            .zip(picks)
            .filter(|(unit, _)| !matches!(unit.place, Place::Line(_)))
            .map(|(unit, pick)| (unit.place, Taken::of(unit, *pick)))
            .collect();
        let upto = |place: Place| taken.get(&place).copied().unwrap_or(Taken::NONE);
        let journal = upto(Place::Journal).upto;
        let mut names = self.durable_names.clone();
        for (at, change) in &self.name_changes {
            if *at <= upto(Place::Names).upto {
                change.apply(&mut names);
            }
        }
        let mut crashed = Self {
            files: BTreeMap::new(),
            next_file: self.next_file,
            journal: Vec::new(),
            durable_names: names.clone(),
            names,
            name_changes: Vec::new(),
            free: self.free,
            exchanged: Vec::new(),
        };
        for (&file, inode) in &self.files {
            let size = inode
                .size
                .crashed(journal, upto(Place::Size(file)).upto, merge_size);
            let mut left = Inode::new();
            left.size = Tracked::new(size);
            left.blocks.clone_from(&inode.blocks);
            for (&page, tracked) in &inode.pages {
                let content = tracked.left(journal, upto(Place::Page(file, page)));
                let content = cut(content, page, size);
                if content.is_some() {
                    left.pages.insert(page, Tracked::new(content));
                }
            }
            crashed.files.insert(file, left);
        }
        crashed
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        let mut print = 0;
        for (name, &file) in &self.names {
            for byte in name.bytes() {
                print = mix(print ^ u64::from(byte));
            }
            print = mix(print ^ file);
        }
        for (&file, inode) in &self.files {
            print = mix(print ^ mix(file) ^ *inode.size.visible());
            for (&page, tracked) in &inode.pages {
                if let Some(content) = tracked.visible() {
                    print = mix(print ^ mix(page) ^ content.print);
                }
            }
        }
        print
    }

    pub(crate) fn outstanding_fingerprint(&self) -> u64 {
        let mut print = mix(self.journal.len() as u64) ^ self.name_changes.len() as u64;
        for inode in self.files.values() {
            for tracked in inode.pages.values() {
                let durable = tracked.durable.as_ref().map_or(0, |page| page.print);
                print = mix(print ^ durable ^ tracked.changes.len() as u64);
            }
            print = mix(print ^ inode.size.durable ^ inode.size.changes.len() as u64);
        }
        print
    }
}

/// How much of a unit survives.
#[derive(Clone, Copy)]
struct Taken {
    upto: u64,
    torn: Option<u64>,
}

impl Taken {
    const NONE: Self = Self {
        upto: 0,
        torn: None,
    };

    fn of(unit: &Unit, pick: Pick) -> Self {
        let version = |nth: usize| if nth == 0 { 0 } else { unit.times[nth - 1] };
        match pick {
            Pick::Version(nth) => Self {
                upto: version(nth),
                torn: None,
            },
            Pick::Torn(seed) => {
                let nth = Rng::new(seed).below(unit.times.len() as u64 + 1) as usize;
                Self {
                    upto: version(nth),
                    torn: Some(seed),
                }
            }
        }
    }
}

impl Tracked<Content> {
    /// The page after a crash; a torn one takes each sector from before or after.
    fn left(&self, journal: u64, taken: Taken) -> Content {
        let after = self.crashed(journal, taken.upto, merge_page);
        let Some(seed) = taken.torn else { return after };
        let before = bytes_of(&self.crashed(journal, 0, merge_page));
        let mut bytes = bytes_of(&self.crashed(journal, u64::MAX, merge_page));
        let mut rng = Rng::new(seed);
        for (new, old) in bytes
            .chunks_exact_mut(SECTOR)
            .zip(before.chunks_exact(SECTOR))
        {
            if rng.chance(5) {
                new.copy_from_slice(old);
            }
        }
        Page::new(bytes)
    }
}

/// Nothing beyond the end of a file survives.
fn cut(content: Content, page: u64, size: u64) -> Content {
    let kept = size.saturating_sub(page * PAGE);
    if kept >= PAGE {
        return content;
    }
    let mut bytes = bytes_of(&content);
    bytes[kept as usize..].fill(0);
    Page::new(bytes)
}
