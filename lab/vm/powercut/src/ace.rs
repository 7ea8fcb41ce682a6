//! Every short sequence of file operations, with what must be there after a power cut.
//!
//! A sequence is one to three operations on three names, each followed by nothing, by the sync of the file that it
//! changed (in half of the sequences `fdatasync`, where bytes changed) or by the sync of a directory. Both halves derive it from its number: `run` does it, `judge` knows which
//! states the file system may be in.

use crate::promise::Promise;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The names that operations use; only the first exists at the start, with [`BASE`] bytes.
pub(crate) const NAMES: [&str; 3] = ["foo", "bar", "A/baz"];
/// The directories; the second exists at the start, the third is made by an operation.
pub(crate) const DIRS: [&str; 3] = ["", "A", "B"];
const OWN: usize = 1;
pub(crate) const MADE: usize = 2;
/// What the second directory, and the name in it, are called when it has been renamed.
pub(crate) const MOVED: [&str; 2] = ["C", "C/baz"];
/// A symbolic link that operations make, and what it says: nobody goes through it.
pub(crate) const LINK: &str = "S";
pub(crate) const LINKED: &str = "A/elsewhere";
pub(crate) const BASE: usize = 6000;
const APPENDED: usize = 5000;
/// Bytes of a short file, within one block.
const FIRST: usize = 700;
const OVERWRITTEN: std::ops::Range<usize> = 1000..4500;
/// One block and a part of the next.
const PUNCHED: std::ops::Range<usize> = 0..4500;
const SHORT: usize = 2500;
const LONG: usize = 9000;

/// An operation; numbers are indices of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create(usize),
    Mkdir,
    Rmdir,
    /// Renames the directory that the third name is in.
    Move,
    Append(usize),
    /// The first bytes of an empty file, which are few.
    Begin(usize),
    Overwrite(usize),
    /// The same through a mapping, with its sync.
    Store(usize),
    Cut(usize),
    Extend(usize),
    /// Makes it longer, with blocks for it.
    Allocate(usize),
    /// Has blocks behind its end, and stays as long as it is.
    Reserve(usize),
    /// Zeros in its beginning, whose blocks it gives back.
    Punch(usize),
    /// Cuts it by opening it.
    Empty(usize),
    /// Gives it an attribute, another one each time.
    Mark(usize),
    /// Takes the attribute away.
    Unmark(usize),
    /// Makes the symbolic link, or removes it.
    Symlink,
    Unsymlink,
    Rename(usize, usize),
    Link(usize, usize),
    Unlink(usize),
}

/// What happens in a sequence, one after the other: each is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Op(Op),
    SyncFile(usize),
    SyncDir(usize),
}

/// Which file each name belongs to, and which directories exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) names: [Option<usize>; 3],
    made: bool,
    moved: bool,
    linked: bool,
}

impl Tree {
    pub(crate) const START: Self = Self {
        names: [Some(0), None, None],
        made: false,
        moved: false,
        linked: false,
    };

    fn absent(&self, name: usize) -> bool {
        self.names[name].is_none()
    }

    /// What a directory is called now.
    pub(crate) fn dir(&self, dir: usize) -> &'static str {
        if self.moved && dir == OWN {
            MOVED[0]
        } else {
            DIRS[dir]
        }
    }

    /// Where a name is now.
    pub(crate) fn path(&self, name: usize) -> &'static str {
        if self.moved && parent(name) == OWN {
            MOVED[1]
        } else {
            NAMES[name]
        }
    }

    /// The symbolic links that are there.
    fn links(&self) -> BTreeMap<String, String> {
        let there = self.linked.then_some((LINK, LINKED));
        there
            .map(|(name, says)| (name.into(), says.into()))
            .into_iter()
            .collect()
    }

    /// The directories that are there.
    fn dirs(&self) -> BTreeSet<String> {
        let made = self.made.then_some(DIRS[MADE]);
        [self.dir(OWN)]
            .into_iter()
            .chain(made)
            .map(String::from)
            .collect()
    }
}

fn parent(name: usize) -> usize {
    usize::from(NAMES[name].starts_with("A/"))
}

/// What a file went through.
#[derive(Clone, Debug, Default)]
struct Life {
    /// Contents, each with the event that made it.
    versions: Vec<(usize, Rc<Vec<u8>>)>,
    /// Events that changed its names.
    named: Vec<usize>,
    /// Events that gave it the attribute, or took it away.
    marked: Vec<(usize, bool)>,
    /// Events that synced its bytes, and those among them that synced all that it is.
    synced: Vec<usize>,
    synced_whole: Vec<usize>,
}

impl Life {
    fn newest(&self, event: usize) -> usize {
        self.versions
            .iter()
            .rposition(|v| v.0 <= event)
            .unwrap_or(0)
    }

    fn version(&self, event: usize) -> &[u8] {
        self.versions.get(self.newest(event)).map_or(&[], |v| &v.1)
    }

    fn last(&self) -> &[u8] {
        self.versions.last().map_or(&[], |v| &v.1)
    }

    /// The attribute after an event.
    fn mark(&self, event: usize) -> Option<String> {
        let (made, there) = *self.marked.iter().rfind(|m| m.0 <= event)?;
        there.then(|| mark(made))
    }
}

/// The newest of some events that is not later than another.
fn before(events: &[usize], limit: usize) -> usize {
    let found = events.iter().rfind(|&&event| event <= limit);
    found.copied().unwrap_or(0)
}

/// What an event writes into the attribute.
pub(crate) fn mark(event: usize) -> String {
    format!("event {event}")
}

/// A sequence played in memory.
pub(crate) struct Story {
    pub(crate) number: usize,
    pub(crate) events: Vec<Event>,
    /// `trees[n]`: after `n` events.
    pub(crate) trees: Vec<Tree>,
    lives: Vec<Life>,
    /// Events that changed a directory, and that synced one.
    changed: [Vec<usize>; 3],
    synced: [Vec<usize>; 3],
}

/// Bytes that tell which event of which sequence wrote them where. None is zero.
pub(crate) fn bytes(number: usize, event: usize, at: usize, len: usize) -> Vec<u8> {
    let salt = (number as u64) << 24 | (event as u64) << 16;
    (at..at + len)
        .map(|i| (crate::kinds::mix(salt ^ (i as u64) << 32) >> 11) as u8 | 1)
        .collect()
}

impl Story {
    pub(crate) fn of(number: usize, events: &[Event]) -> Self {
        let base = Life {
            versions: vec![(0, Rc::new(bytes(number, 0, 0, BASE)))],
            ..Life::default()
        };
        let mut story = Self {
            number,
            events: events.to_vec(),
            trees: vec![Tree::START],
            lives: vec![base],
            changed: Default::default(),
            synced: Default::default(),
        };
        for (i, event) in events.iter().enumerate() {
            story.play(i + 1, *event);
        }
        story
    }

    fn tree(&self) -> &Tree {
        self.trees.last().unwrap_or(&Tree::START)
    }

    fn play(&mut self, at: usize, event: Event) {
        let mut tree = self.tree().clone();
        match event {
            Event::Op(op) => self.operate(at, op, &mut tree),
            Event::SyncFile(name) => {
                let whole = !self.only_bytes(at);
                if let Some(file) = tree.names[name] {
                    self.lives[file].synced.push(at);
                    self.lives[file].synced_whole.extend(whole.then_some(at));
                }
            }
            Event::SyncDir(dir) => self.synced[dir].push(at),
        }
        self.trees.push(tree);
    }

    fn operate(&mut self, at: usize, op: Op, tree: &mut Tree) {
        match op {
            Op::Create(name) => {
                self.lives.push(Life {
                    versions: vec![(at, Rc::default())],
                    ..Life::default()
                });
                self.rename(at, tree, name, Some(self.lives.len() - 1));
            }
            Op::Mkdir | Op::Rmdir => {
                tree.made = op == Op::Mkdir;
                self.changed[0].push(at);
            }
            Op::Move => {
                tree.moved = true;
                self.changed[0].push(at);
            }
            Op::Symlink | Op::Unsymlink => {
                tree.linked = op == Op::Symlink;
                self.changed[0].push(at);
            }
            Op::Mark(name) | Op::Unmark(name) => {
                if let Some(file) = tree.names[name] {
                    self.lives[file].marked.push((at, op == Op::Mark(name)));
                }
            }
            Op::Reserve(_) => {}
            Op::Append(_)
            | Op::Begin(_)
            | Op::Overwrite(_)
            | Op::Store(_)
            | Op::Cut(_)
            | Op::Extend(_)
            | Op::Allocate(_)
            | Op::Punch(_)
            | Op::Empty(_) => {
                let (name, range) = op.written(|name| self.size(tree, name));
                if let Some(file) = tree.names[name] {
                    let mut content = self.lives[file].last().to_vec();
                    match op {
                        Op::Cut(_) | Op::Extend(_) | Op::Allocate(_) | Op::Empty(_) => {
                            content.resize(range.end, 0);
                        }
                        Op::Punch(_) => content[range].fill(0),
                        _ => {
                            content.resize(content.len().max(range.end), 0);
                            let fresh = bytes(self.number, at, range.start, range.len());
                            content[range].copy_from_slice(&fresh);
                        }
                    }
                    self.lives[file].versions.push((at, Rc::new(content)));
                }
            }
            Op::Rename(from, to) => {
                let file = tree.names[from];
                self.rename(at, tree, to, file);
                self.rename(at, tree, from, None);
            }
            Op::Link(from, to) => {
                let file = tree.names[from];
                self.rename(at, tree, to, file);
            }
            Op::Unlink(name) => self.rename(at, tree, name, None),
        }
    }

    /// Lets a name belong to another file, or to none.
    fn rename(&mut self, at: usize, tree: &mut Tree, name: usize, file: Option<usize>) {
        for touched in [tree.names[name], file].into_iter().flatten() {
            self.lives[touched].named.push(at);
        }
        tree.names[name] = file;
        self.changed[parent(name)].push(at);
    }

    fn size(&self, tree: &Tree, name: usize) -> usize {
        tree.names[name].map_or(0, |file| self.lives[file].last().len())
    }

    fn marked(&self, tree: &Tree, name: usize) -> bool {
        let last = tree.names[name].and_then(|file| self.lives[file].marked.last());
        last.is_some_and(|mark| mark.1)
    }

    /// The operations that make sense now.
    fn possible(&self) -> Vec<Op> {
        let tree = self.tree();
        let mut found = Vec::new();
        for name in 0..NAMES.len() {
            if tree.absent(name) {
                found.push(Op::Create(name));
                continue;
            }
            let size = self.size(tree, name);
            found.push(Op::Append(name));
            if size == 0 {
                found.push(Op::Begin(name));
            } else {
                found.push(Op::Empty(name));
            }
            if size >= OVERWRITTEN.end {
                found.extend([Op::Overwrite(name), Op::Store(name), Op::Punch(name)]);
            }
            if size > SHORT {
                found.push(Op::Cut(name));
            }
            if size < LONG {
                found.extend([Op::Extend(name), Op::Allocate(name), Op::Reserve(name)]);
            }
            found.push(Op::Mark(name));
            if self.marked(tree, name) {
                found.push(Op::Unmark(name));
            }
            for to in (0..NAMES.len()).filter(|&to| to != name) {
                // Renaming one name of a file over another does nothing.
                if tree.names[to] != tree.names[name] {
                    found.push(Op::Rename(name, to));
                }
                if tree.absent(to) {
                    found.push(Op::Link(name, to));
                }
            }
            found.push(Op::Unlink(name));
        }
        found.push(if tree.made { Op::Rmdir } else { Op::Mkdir });
        found.push(if tree.linked {
            Op::Unsymlink
        } else {
            Op::Symlink
        });
        if !tree.moved {
            found.push(Op::Move);
        }
        found
    }
}

impl Op {
    /// The name whose file an operation writes, and the bytes from where to where; for a change of size the end.
    pub(crate) fn written(self, size: impl Fn(usize) -> usize) -> (usize, std::ops::Range<usize>) {
        match self {
            Self::Append(name) => (name, size(name)..size(name) + APPENDED),
            Self::Begin(name) => (name, 0..FIRST),
            Self::Overwrite(name) | Self::Store(name) => (name, OVERWRITTEN),
            Self::Cut(name) => (name, 0..SHORT),
            Self::Extend(name) | Self::Allocate(name) | Self::Reserve(name) => (name, 0..LONG),
            Self::Punch(name) => (name, PUNCHED),
            Self::Create(name)
            | Self::Empty(name)
            | Self::Mark(name)
            | Self::Unmark(name)
            | Self::Rename(_, name)
            | Self::Link(_, name)
            | Self::Unlink(name) => (name, 0..0),
            Self::Mkdir | Self::Rmdir | Self::Move | Self::Symlink | Self::Unsymlink => (0, 0..0),
        }
    }

    /// Whether it changes bytes of a file, which `fdatasync` makes durable.
    fn changes_bytes(self) -> bool {
        matches!(
            self,
            Self::Append(_)
                | Self::Begin(_)
                | Self::Overwrite(_)
                | Self::Store(_)
                | Self::Cut(_)
                | Self::Extend(_)
                | Self::Allocate(_)
                | Self::Punch(_)
                | Self::Empty(_)
        )
    }

    /// Whether nobody makes it whole: what a mapping stores, and what the kernel zeroes.
    fn comes_in_parts(self) -> bool {
        matches!(self, Self::Store(_) | Self::Punch(_))
    }

    /// What may be synced after it.
    fn saves(self) -> Vec<Event> {
        match self {
            Self::Mkdir => vec![Event::SyncDir(0), Event::SyncDir(MADE)],
            Self::Rmdir | Self::Move | Self::Symlink | Self::Unsymlink => vec![Event::SyncDir(0)],
            Self::Unlink(name) => vec![Event::SyncDir(parent(name))],
            Self::Rename(from, to) if parent(from) != parent(to) => vec![
                Event::SyncFile(to),
                Event::SyncDir(parent(to)),
                Event::SyncDir(parent(from)),
            ],
            Self::Create(name) | Self::Rename(_, name) | Self::Link(_, name) => {
                vec![Event::SyncFile(name), Event::SyncDir(parent(name))]
            }
            Self::Append(name)
            | Self::Begin(name)
            | Self::Overwrite(name)
            | Self::Store(name)
            | Self::Cut(name)
            | Self::Extend(name)
            | Self::Allocate(name)
            | Self::Reserve(name)
            | Self::Punch(name)
            | Self::Empty(name)
            | Self::Mark(name)
            | Self::Unmark(name) => {
                vec![Event::SyncFile(name)]
            }
        }
    }
}

/// All sequences with so many operations. The last ends with a sync, unless calls are durable by themselves. What
/// comes in parts waits for no commit.
fn all(operations: usize, promise: Promise) -> Vec<Vec<Event>> {
    let bare_end = promise.calls_are_durable();
    let promised = |op: &Op| promise != Promise::Atomic || !op.comes_in_parts();
    let mut found = vec![Vec::new()];
    for left in (0..operations).rev() {
        let mut longer = Vec::new();
        for events in &found {
            for op in Story::of(0, events).possible().into_iter().filter(promised) {
                let mut with_op: Vec<Event> = events.clone();
                with_op.push(Event::Op(op));
                for save in op.saves() {
                    longer.push([&with_op[..], &[save]].concat());
                }
                if left > 0 || bare_end {
                    longer.push(with_op);
                }
            }
        }
        found = longer;
    }
    found
}

/// The sequences in the order in which a seed runs them: of each length some in the beginning, all in the end.
pub(crate) struct Order {
    by_length: [Vec<Vec<Event>>; 3],
}

impl Order {
    pub(crate) fn new(seed: u64, promise: Promise) -> Self {
        Self {
            by_length: [1, 2, 3].map(|n| {
                let mut found = all(n, promise);
                // A shuffle that depends on the seed only.
                for i in (1..found.len()).rev() {
                    let draw = crate::kinds::mix(seed ^ crate::kinds::mix((n << 32 | i) as u64));
                    found.swap(i, (draw % (i as u64 + 1)) as usize);
                }
                found
            }),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.by_length.iter().map(Vec::len).sum()
    }

    /// The sequence of a number, from 1 on.
    pub(crate) fn story(&self, number: usize) -> Option<Story> {
        let mut used = [0; 3];
        for i in 1.. {
            let wanted = [0, 1, 2, 1, 2, 2, 1, 2][i % 8];
            let left = |n: &usize| used[*n] < self.by_length[*n].len();
            let length = (wanted..3).find(left).or_else(|| (0..wanted).find(left))?;
            if i == number {
                return Some(Story::of(number, &self.by_length[length][used[length]]));
            }
            used[length] += 1;
        }
        None
    }
}

/// Every way to take one event of each list.
fn picks<const N: usize>(lists: &[Vec<usize>; N]) -> impl Iterator<Item = [usize; N]> {
    (0..lists.iter().map(Vec::len).product()).map(move |mut nth: usize| {
        lists.each_ref().map(|list| {
            let event = list[nth % list.len()];
            nth /= list.len();
            event
        })
    })
}

/// What a directory holds after the cut.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Name: inode number and content.
    pub(crate) files: BTreeMap<String, (u64, Vec<u8>)>,
    pub(crate) dirs: BTreeSet<String>,
    /// Name of a symbolic link: what it says.
    pub(crate) links: BTreeMap<String, String>,
    /// Name of a file that has the attribute: its value.
    pub(crate) marks: BTreeMap<String, String>,
}

impl Story {
    /// Whether what is there can be what was promised when `done` events were acknowledged.
    pub(crate) fn judge(&self, done: usize, promise: Promise, found: &Found) -> Result<(), String> {
        let floor = if promise.names_are_durable() {
            done
        } else {
            self.names_floor(done)
        };
        // Who dies does one event at a time: at most the one after the last acknowledgement has begun.
        let end = match promise.power_stayed() {
            true => (done + 2).min(self.trees.len()),
            false => self.trees.len(),
        };
        let mut why = String::new();
        // Journals keep changes of names in their order: after the cut there are the first so many.
        for kept in floor..end {
            match self.matches(&self.trees[kept], kept, done, promise, found) {
                Ok(()) => return Ok(()),
                Err(e) if why.is_empty() => why = format!("as after {kept} events: {e}"),
                Err(_) => {}
            }
        }
        Err(self.not_there(done, &why, found))
    }

    /// The same where no journal keeps changes of names in their order: btrfs makes durable what a sync asks for, and
    /// what happened before to other names may come later. Each name is as after some event that is not older than
    /// what is certain of it, and no file is lost that always had a name.
    pub(crate) fn judge_unordered(
        &self,
        done: usize,
        promise: Promise,
        found: &Found,
    ) -> Result<(), String> {
        let since = |dir: usize, changed: &dyn Fn(&Tree, &Tree) -> bool| -> Vec<usize> {
            let floor = self.certain(done, promise, dir, changed);
            let later = floor + 1..self.trees.len();
            let changes =
                later.filter(|&event| changed(&self.trees[event - 1], &self.trees[event]));
            [floor].into_iter().chain(changes).collect()
        };
        let name = |name: usize| since(parent(name), &|a, b| a.names[name] != b.names[name]);
        let made = since(0, &|a, b| a.made != b.made);
        let moved = since(0, &|a, b| a.moved != b.moved);
        let linked = since(0, &|a, b| a.linked != b.linked);
        let ways = [name(0), name(1), name(2), made, moved, linked];
        let oldest = ways[..NAMES.len()]
            .iter()
            .map(|events| events[0])
            .min()
            .unwrap_or(0);
        let has = |tree: &Tree, file: usize| tree.names.contains(&Some(file));
        let kept = |file: &usize| self.trees[oldest..].iter().all(|tree| has(tree, *file));
        let kept: Vec<usize> = (0..self.lives.len()).filter(kept).collect();
        let mut why = String::new();
        for [a, b, c, made, moved, linked] in picks(&ways) {
            let tree = Tree {
                names: [
                    self.trees[a].names[0],
                    self.trees[b].names[1],
                    self.trees[c].names[2],
                ],
                made: self.trees[made].made,
                moved: self.trees[moved].moved,
                linked: self.trees[linked].linked,
            };
            if !kept.iter().all(|file| has(&tree, *file)) {
                continue;
            }
            match self.matches(&tree, done, done, promise, found) {
                Ok(()) => return Ok(()),
                Err(e) if why.is_empty() => why = format!("with names {:?}: {e}", tree.names),
                Err(_) => {}
            }
        }
        Err(self.not_there(done, &why, found))
    }

    /// The last event for certain among those that changed something in a directory. The sync of another directory makes
    /// nothing certain in this one: what was renamed from here to there may be in both.
    fn certain(
        &self,
        done: usize,
        promise: Promise,
        dir: usize,
        changed: &dyn Fn(&Tree, &Tree) -> bool,
    ) -> usize {
        let synced =
            |event: usize, syncs: &[usize]| syncs.iter().any(|s| (event..=done).contains(s));
        let covered = |event: usize| {
            promise.names_are_durable() && event <= done
                || self
                    .lives
                    .iter()
                    .any(|l| l.named.contains(&event) && synced(event, &l.synced_whole))
                || self.changed[dir].contains(&event) && synced(event, &self.synced[dir])
        };
        (1..self.trees.len())
            .rev()
            .find(|&event| changed(&self.trees[event - 1], &self.trees[event]) && covered(event))
            .unwrap_or(0)
    }

    fn not_there(&self, done: usize, why: &str, found: &Found) -> String {
        format!(
            "sequence {} {:?}, {done} events acknowledged, is not there; {why}; found {}",
            self.number,
            self.events,
            found.show()
        )
    }

    /// One bit of three that are drawn for each sequence.
    fn drawn(&self, bit: u32) -> bool {
        crate::kinds::mix(self.number as u64) >> bit & 1 == 0
    }

    /// Whether files stay open until the sequence ends; in half of the sequences they are closed after each use.
    pub(crate) fn keeps_open(&self) -> bool {
        self.drawn(0)
    }

    /// Whether files are opened for reading, too: for mappings, and in half of the other sequences. What its writer
    /// cannot read, mode posix stages, too.
    pub(crate) fn reads(&self) -> bool {
        let stores = |event: &Event| matches!(event, Event::Op(Op::Store(_)));
        self.drawn(2) || self.events.iter().any(stores)
    }

    /// Whether an event is `fdatasync`: in half of the sequences, where the operation before it changed bytes.
    pub(crate) fn only_bytes(&self, event: usize) -> bool {
        let after_bytes = match event.checked_sub(2).map(|last| self.events[last]) {
            Some(Event::Op(op)) => op.changes_bytes(),
            _ => false,
        };
        after_bytes && self.drawn(1)
    }

    /// How many events' names are durable for certain: a synced file is there with its names, a synced
    /// directory with its entries, and everything that was journaled before.
    fn names_floor(&self, done: usize) -> usize {
        let files = self
            .lives
            .iter()
            .map(|l| before(&l.named, before(&l.synced_whole, done)));
        let dirs = (0..DIRS.len()).map(|d| before(&self.changed[d], before(&self.synced[d], done)));
        files.chain(dirs).max().unwrap_or(0)
    }

    fn matches(
        &self,
        tree: &Tree,
        kept: usize,
        done: usize,
        promise: Promise,
        found: &Found,
    ) -> Result<(), String> {
        let paths = [0, 1, 2].map(|name| tree.path(name));
        if let Some(name) = found.files.keys().find(|n| !paths.contains(&n.as_str())) {
            return Err(format!("nobody made {name}"));
        }
        if found.dirs != tree.dirs() {
            return Err(format!(
                "directories {:?}, not {:?}",
                found.dirs,
                tree.dirs()
            ));
        }
        if found.links != tree.links() {
            return Err(format!("links {:?}, not {:?}", found.links, tree.links()));
        }
        let mut inodes = BTreeMap::new();
        for (name, file) in paths.into_iter().zip(tree.names) {
            match (file, found.files.get(name)) {
                (None, None) => {}
                (Some(file), Some((inode, content))) => {
                    if inodes
                        .insert(file, *inode)
                        .is_some_and(|other| other != *inode)
                    {
                        return Err(format!("{name} is another file"));
                    }
                    self.content(file, done, kept, promise, content)
                        .map_err(|e| format!("{name}: {e}"))?;
                    let mark = found.marks.get(name).cloned();
                    if !self.marks(file, done, kept, promise).contains(&mark) {
                        return Err(format!("{name} has the attribute {mark:?}"));
                    }
                }
                (wanted, _) => return Err(format!("{name} exists: {}", wanted.is_none())),
            }
        }
        let distinct: BTreeSet<u64> = inodes.values().copied().collect();
        if distinct.len() != inodes.len() {
            return Err("two files are one".into());
        }
        Ok(())
    }

    /// The attributes that a file may have. No mode makes them durable before a sync.
    fn marks(
        &self,
        file: usize,
        done: usize,
        kept: usize,
        promise: Promise,
    ) -> BTreeSet<Option<String>> {
        let life = &self.lives[file];
        if promise.power_stayed() {
            return [done, kept].map(|event| life.mark(event)).into();
        }
        let synced = before(&life.synced_whole, done);
        (synced..=self.events.len())
            .map(|event| life.mark(event))
            .collect()
    }

    fn content(
        &self,
        file: usize,
        done: usize,
        kept: usize,
        promise: Promise,
        content: &[u8],
    ) -> Result<(), String> {
        let life = &self.lives[file];
        if promise.power_stayed() {
            return self.survived(life, done, kept, promise, content);
        }
        let synced = before(&life.synced, done);
        let floor = life.newest(if promise.calls_are_durable() {
            done
        } else {
            synced
        });
        let allowed = &life.versions[floor..];
        let whole = || allowed.iter().any(|v| *v.1 == content);
        let in_parts = |(event, _): &(usize, Rc<Vec<u8>>)| matches!(self.events[*event - 1], Event::Op(op) if op.comes_in_parts());
        let whole_calls = promise.calls_are_atomic() && !allowed[1..].iter().any(in_parts);
        if allowed.len() == 1 || whole_calls {
            return if whole() {
                Ok(())
            } else {
                Err(self.difference(&allowed[0].1, content))
            };
        }
        if promise == Promise::Atomic {
            // All since the last fsync or close or nothing; a later one may have happened unseen.
            let committed = |event: usize| {
                event == allowed[0].0
                    || !self.keeps_open()
                    || self.is_committed_by_opening(life, event)
                    || life
                        .synced
                        .iter()
                        .any(|&s| life.newest(s) == life.newest(event))
            };
            let newest = life.versions.len() - 1;
            let found = (floor..=newest).any(|v| {
                let (event, bytes) = &life.versions[v];
                **bytes == content && (committed(*event) || v == newest)
            });
            return if found {
                Ok(())
            } else {
                Err(self.difference(&allowed[0].1, content))
            };
        }
        let least = allowed.iter().map(|v| v.1.len()).min().unwrap_or(0);
        let most = allowed.iter().map(|v| v.1.len()).max().unwrap_or(0);
        if !(least..=most).contains(&content.len()) {
            return Err(format!("{} bytes, not {least} to {most}", content.len()));
        }
        for (i, byte) in content.iter().enumerate() {
            let known = allowed.iter().any(|v| v.1.get(i) == Some(byte));
            let hole = *byte == 0 && i >= least;
            if !known && !hole {
                return Err(format!("a wrong byte at {i}"));
            }
        }
        Ok(())
    }

    /// Whether what an event left is committed by an open that cuts: that is a description of its own, and closed at once. If
    /// the file is open already, what is staged of it is published before it is cut.
    fn is_committed_by_opening(&self, life: &Life, event: usize) -> bool {
        let empties = |at: usize| matches!(self.events[at - 1], Event::Op(Op::Empty(_)));
        let next = life.versions.iter().find(|v| v.0 > event);
        event > 0 && empties(event) || next.is_some_and(|v| empties(v.0))
    }

    /// A file whose processes died is as after the last acknowledged event, or as the next one leaves it, or is leaving
    /// it when it writes.
    fn survived(
        &self,
        life: &Life,
        done: usize,
        kept: usize,
        promise: Promise,
        content: &[u8],
    ) -> Result<(), String> {
        let [before, after] = [done, kept].map(|event| life.version(event));
        if content == before || content == after {
            return Ok(());
        }
        let tears = |event: &Event| match event {
            Event::Op(Op::Append(_) | Op::Begin(_) | Op::Overwrite(_)) => {
                !promise.calls_are_atomic()
            }
            Event::Op(op) => op.comes_in_parts(),
            _ => false,
        };
        let torn = self.events[done..kept].iter().any(tears);
        let mixed =
            |(i, byte): (usize, &u8)| before.get(i) == Some(byte) || after.get(i) == Some(byte);
        if torn && content.len() >= before.len() && content.iter().enumerate().all(mixed) {
            return Ok(());
        }
        Err(self.difference(before, content))
    }

    fn difference(&self, wanted: &[u8], content: &[u8]) -> String {
        let at = wanted.iter().zip(content).position(|(a, b)| a != b);
        format!(
            "{} bytes, wanted {}; the first difference at {:?}",
            content.len(),
            wanted.len(),
            at
        )
    }
}

impl Found {
    fn show(&self) -> String {
        let files = self.files.iter();
        let files: Vec<String> = files
            .map(|(n, (i, c))| format!("{n} inode {i} {} bytes", c.len()))
            .collect();
        let rest = (&self.dirs, &self.links, &self.marks);
        format!(
            "{}; directories, links, attributes {rest:?}",
            files.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file system holds that lost nothing of the first events.
    fn left(story: &Story, events: usize) -> Found {
        let mut found = Found::default();
        let tree = &story.trees[events];
        found.dirs = tree.dirs();
        found.links = tree.links();
        for (name, file) in tree.names.into_iter().enumerate() {
            if let Some(file) = file {
                let life = &story.lives[file];
                let content = life.versions[life.newest(events)].1.to_vec();
                found
                    .files
                    .insert(tree.path(name).into(), (file as u64 + 100, content));
                if let Some(mark) = life.mark(events) {
                    found.marks.insert(tree.path(name).into(), mark);
                }
            }
        }
        found
    }

    fn stories() -> Vec<Story> {
        let found = (1..=2).flat_map(|n| all(n, Promise::Posix));
        found
            .enumerate()
            .map(|(i, e)| Story::of(i + 1, &e))
            .collect()
    }

    #[test]
    fn what_was_done_passes_in_every_mode() {
        for story in stories() {
            for promise in Promise::ALL {
                let end = story.events.len();
                story
                    .judge(end, promise, &left(&story, end))
                    .expect("all there");
            }
        }
    }

    #[test]
    fn what_was_not_promised_may_be_missing() {
        for story in stories() {
            story
                .judge(0, Promise::Posix, &left(&story, 0))
                .expect("nothing acknowledged");
            for events in 0..=story.events.len() {
                story
                    .judge(0, Promise::Posix, &left(&story, events))
                    .expect("unseen progress");
            }
        }
    }

    #[test]
    fn lost_work_is_noticed() {
        let mut noticed = 0;
        for story in stories() {
            let end = story.events.len();
            // Without the last operation and its sync.
            let last = story
                .events
                .iter()
                .rposition(|e| matches!(e, Event::Op(_)))
                .expect("an operation");
            let lost = left(&story, last);
            // The sync of one directory promises nothing about the other, nor one of a new directory its name.
            let judged = story.judge(end, Promise::Posix, &lost);
            let elsewhere = matches!(story.events[end - 1], Event::SyncDir(MADE));
            if !elsewhere && lost != left(&story, end) {
                judged.expect_err("the last operation was synced");
                noticed += 1;
            }
            let bare = Story::of(story.number, &story.events[..=last]);
            // No mode promises attributes before a sync.
            let named =
                |found: &Found| (found.files.clone(), found.dirs.clone(), found.links.clone());
            if named(&lost) != named(&left(&story, last + 1)) {
                bare.judge(last + 1, Promise::Strict, &lost)
                    .expect_err("every call is durable");
            }
        }
        assert!(noticed > 500, "{noticed}");
    }

    /// In mode atomic a file is as after a sync, but for one that is opened again to be cut.
    #[test]
    fn what_is_not_committed_is_noticed() {
        let (ops, file) = (|op| Event::Op(op), Event::SyncFile(0));
        let number = (1..).find(|number| Story::of(*number, &[]).keeps_open());
        let story = |events: &[Event]| Story::of(number.expect("one"), events);
        let judged = |events: &[Event]| {
            let story = story(events);
            story.judge(1, Promise::Atomic, &left(&story, 1))
        };
        for second in [Op::Overwrite(0), Op::Cut(0), Op::Append(0)] {
            judged(&[ops(Op::Allocate(0)), ops(second), file]).expect_err("it is not committed");
            judged(&[ops(Op::Empty(0)), ops(Op::Append(0)), file]).expect("its close commits");
        }
        judged(&[ops(Op::Allocate(0)), ops(Op::Empty(0)), file]).expect("it is opened again");
        judged(&[ops(Op::Allocate(0)), file, ops(Op::Empty(0))]).expect("it is synced");
    }

    #[test]
    fn who_dies_loses_nothing_and_has_begun_one_event_at_most() {
        let killed = [Promise::Killed, Promise::KilledStrict];
        let (mut lost, mut ahead, mut torn) = (0, 0, 0);
        for story in stories() {
            let end = story.events.len();
            for (done, kept) in (0..=end).flat_map(|d| (0..=end).map(move |k| (d, k))) {
                let found = left(&story, kept);
                let same = |event: usize| found == left(&story, event);
                let begun = same(done) || done < end && same(done + 1);
                for promise in killed {
                    let judged = story.judge(done, promise, &found);
                    assert_eq!(judged.is_ok(), begun, "{done} {kept} {judged:?}");
                }
                lost += usize::from(kept < done && !begun);
                ahead += usize::from(kept > done && !begun);
            }
            for (done, event) in story.events.iter().enumerate() {
                let Event::Op(Op::Append(name)) = event else {
                    continue;
                };
                let mut found = left(&story, done + 1);
                let path = story.trees[done].path(*name);
                let (_, content) = found.files.get_mut(path).expect("it is there");
                content.truncate(content.len() - 9);
                story
                    .judge(done, killed[0], &found)
                    .expect("a part of the write");
                story
                    .judge(done, killed[1], &found)
                    .expect_err("calls are whole");
                story
                    .judge(done + 1, killed[0], &found)
                    .expect_err("it was acknowledged");
                torn += 1;
            }
        }
        assert!(
            lost > 500 && ahead > 500 && torn > 20,
            "{lost} {ahead} {torn}"
        );
    }

    #[test]
    fn a_store_is_durable_and_not_whole() {
        let ops = [
            (Op::Overwrite(0), true),
            (Op::Store(0), false),
            (Op::Punch(0), false),
        ];
        for (op, is_whole) in ops {
            let story = Story::of(1, &[Event::Op(op)]);
            let mut found = left(&story, 1);
            let old = left(&story, 0).files["foo"].1[2000..].to_vec();
            found.files.get_mut("foo").expect("it is there").1[2000..].copy_from_slice(&old);
            for promise in [Promise::Strict, Promise::KilledStrict] {
                let judged = story.judge(0, promise, &found);
                assert_eq!(judged.is_err(), is_whole, "{op:?} {promise:?} {judged:?}");
                story
                    .judge(1, promise, &found)
                    .expect_err("it was acknowledged");
            }
        }
    }

    #[test]
    fn fdatasync_promises_bytes_and_no_names_or_attributes() {
        let number = |whole: bool| {
            let sync = |n: usize| Story::of(n, &[Event::Op(Op::Append(0)), Event::SyncFile(0)]);
            (1..)
                .find(|&n| sync(n).only_bytes(2) != whole)
                .expect("half of them")
        };
        let [bytes, whole] = [number(false), number(true)];
        let events = [Op::Mark(0), Op::Rename(0, 1), Op::Append(1)].map(Event::Op);
        let events = [&events[..], &[Event::SyncFile(1)]].concat();
        for (number, kept) in [(bytes, true), (whole, false)] {
            let story = Story::of(number, &events);
            let done = left(&story, 4);
            let mut renamed_back = left(&story, 4);
            let file = renamed_back.files.remove("bar").expect("it is there");
            renamed_back.files.insert("foo".into(), file);
            renamed_back.marks.clear();
            let mut unmarked = left(&story, 4);
            unmarked.marks.clear();
            let mut cut = left(&story, 4);
            cut.files
                .get_mut("bar")
                .expect("it is there")
                .1
                .truncate(BASE);
            let judged = [&done, &renamed_back, &unmarked, &cut];
            let judged = judged.map(|found| story.judge(4, Promise::Posix, found).is_ok());
            assert_eq!(judged, [true, kept, kept, false], "{number}");
            let mut foreign = left(&story, 4);
            foreign.marks.insert("bar".into(), mark(2));
            story
                .judge(4, Promise::Posix, &foreign)
                .expect_err("nobody gave it that");
        }
    }

    #[test]
    fn a_renamed_directory_has_one_name_and_its_files() {
        let [create, rename] = [Event::Op(Op::Create(2)), Event::Op(Op::Move)];
        let story = Story::of(1, &[create, rename, Event::SyncDir(0)]);
        let whole = left(&story, 2);
        assert!(whole.files.contains_key("C/baz") && !whole.dirs.contains("A"));
        for judge in [Story::judge, Story::judge_unordered] {
            judge(&story, 2, Promise::Posix, &left(&story, 1)).expect("not synced");
            judge(&story, 3, Promise::Posix, &left(&story, 1)).expect_err("synced");
            judge(&story, 3, Promise::Posix, &whole).expect("synced");
            let mut both = left(&story, 2);
            both.dirs.insert("A".into());
            judge(&story, 2, Promise::Posix, &both).expect_err("one directory has one name");
        }
        let story = Story::of(1, &[Event::Op(Op::Mkdir), Event::Op(Op::Rmdir)]);
        let judged = |done| story.judge(done, Promise::Strict, &left(&story, 1)).is_ok();
        assert_eq!([judged(1), judged(2)], [true, false]);
    }

    #[test]
    fn without_an_order_each_name_is_judged_for_itself() {
        let [create, mkdir] = [Event::Op(Op::Create(1)), Event::Op(Op::Mkdir)];
        let story = Story::of(1, &[mkdir, create, Event::SyncFile(1)]);
        let mut found = left(&story, 3);
        found.dirs.remove("B");
        story
            .judge(3, Promise::Posix, &found)
            .expect_err("a journal keeps the order");
        let unordered = |story: &Story, done, promise, found: &Found| {
            story.judge_unordered(done, promise, found)
        };
        unordered(&story, 3, Promise::Posix, &found).expect("nobody synced B's name");
        unordered(&story, 3, Promise::Strict, &found).expect_err("every call is durable");
        found.files.remove("bar");
        unordered(&story, 3, Promise::Posix, &found).expect_err("bar was synced");
        // A file that is renamed has one of its names, or both for a moment.
        let story = Story::of(1, &[Event::Op(Op::Rename(0, 2))]);
        let mut found = left(&story, 0);
        unordered(&story, 1, Promise::Posix, &found).expect("not synced");
        let file = found.files["foo"].clone();
        found.files.insert("A/baz".into(), file);
        unordered(&story, 1, Promise::Posix, &found).expect("both");
        let synced = [Event::SyncDir(0), Event::SyncDir(1), Event::SyncFile(2)].map(|sync| {
            let story = Story::of(1, &[Event::Op(Op::Rename(0, 2)), sync]);
            unordered(&story, 2, Promise::Posix, &found).is_ok()
        });
        assert_eq!(synced, [false, true, false], "both, and one is synced");
        found.files.clear();
        unordered(&story, 1, Promise::Posix, &found).expect_err("it is lost");
    }

    #[test]
    fn what_a_journal_allows_is_allowed_without_one() {
        for story in stories() {
            let end = story.events.len();
            for (done, kept) in (0..=end).flat_map(|d| (0..=end).map(move |k| (d, k))) {
                let found = left(&story, kept);
                for promise in [Promise::Posix, Promise::Atomic, Promise::Strict] {
                    if story.judge(done, promise, &found).is_ok() {
                        story
                            .judge_unordered(done, promise, &found)
                            .expect("it is weaker");
                    }
                }
            }
        }
    }

    #[test]
    fn a_name_that_nobody_made_is_noticed() {
        let story = &stories()[0];
        let mut found = left(story, 0);
        found.files.insert("other".into(), (7, Vec::new()));
        for promise in Promise::ALL {
            story
                .judge(0, promise, &found)
                .expect_err("nobody made this");
        }
    }

    #[test]
    fn foreign_bytes_are_noticed() {
        for story in stories() {
            let end = story.events.len();
            let mut found = left(&story, end);
            let Some((name, (_, content))) = found.files.iter_mut().find(|f| !f.1.1.is_empty())
            else {
                continue;
            };
            let (name, middle) = (name.clone(), content.len() / 2);
            content[middle] ^= 2;
            for promise in Promise::ALL {
                let judged = story.judge(0, promise, &found);
                judged.expect_err(&format!("nobody wrote this into {name}"));
            }
        }
    }

    #[test]
    fn sequences_are_many_and_all_are_reached() {
        let order = Order::new(3, Promise::Posix);
        let count = order.count();
        println!("{count} sequences");
        assert!(count > 10_000, "{count}");
        assert!(order.story(count).is_some());
        assert!(order.story(count + 1).is_none());
        let again = Order::new(3, Promise::Posix);
        assert_eq!(
            order.story(77).map(|s| s.events),
            again.story(77).map(|s| s.events)
        );
    }
}
