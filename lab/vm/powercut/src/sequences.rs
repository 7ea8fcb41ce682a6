//! Runs the short sequences of `ace.rs`, and looks at what a cut left of them.

use crate::ace::{
    self, DIRS, Event, Found, LINK, LINKED, MADE, MOVED, NAMES, Op, Order, Story, Tree,
};
use crate::promise::Promise;
use crate::write::{How, send};
use crate::{allocate, attribute, mapped};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// After its last acknowledgement a sequence keeps its files open and waits for the cut.
const PAUSE: Duration = Duration::from_millis(50);
/// Directories of older sequences are removed.
const KEPT: usize = 24;
/// Between an acknowledgement that comes too early on purpose and what it acknowledges.
const TOO_EARLY: Duration = Duration::from_millis(20);

/// One series of sequences in a directory.
pub(crate) struct Series {
    pub(crate) dir: PathBuf,
    pub(crate) seed: u64,
    pub(crate) promise: Promise,
}

impl Series {
    fn home(&self, number: usize) -> PathBuf {
        self.dir.join(format!("s{number}"))
    }

    /// Runs sequences, as many of these as there are.
    pub(crate) fn run(
        &self,
        numbers: RangeInclusive<usize>,
        port: &str,
        tag: &str,
        how: &[How],
    ) -> Result<String, String> {
        let port = OpenOptions::new()
            .write(true)
            .open(port)
            .map_err(|e| format!("{port}: {e}"))?;
        let order = Order::new(self.seed, self.promise);
        let (first, last) = (*numbers.start(), *numbers.end().min(&order.count()));
        for number in first..=last {
            let story = order.story(number).ok_or("no such sequence")?;
            let failed = |what: &str| {
                let what = format!("{tag}: sequence {number} {:?}: {what}", story.events);
                move |e: std::io::Error| format!("{what}: {e}")
            };
            self.prepare(number).map_err(failed("preparing"))?;
            let end = story.events.len();
            // The runner wants to know where a sequence ends: that is where it cuts.
            let say = |events: usize| {
                let last = if events == end { " last" } else { "" };
                send(&port, &format!("{tag} {number} {events}{last}"))
            };
            say(0).map_err(failed("acknowledging"))?;
            let home = self.home(number);
            let mut hands = Hands::new(&home, &story, how.contains(&How::NoFsync));
            for event in 1..=end {
                if how.contains(&How::Early) {
                    say(event).map_err(failed("acknowledging"))?;
                    std::thread::sleep(TOO_EARLY);
                }
                hands
                    .event(event)
                    .map_err(failed(&format!("event {event}")))?;
                if !how.contains(&How::Early) {
                    say(event).map_err(failed("acknowledging"))?;
                }
            }
            if how.contains(&How::Wait) {
                wait().map_err(failed("waiting"))?;
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        send(&port, &format!("{tag} {} 0 end", last + 1)).map_err(|e| e.to_string())?;
        Ok(format!("sequences {first} to {last}"))
    }

    /// What every sequence starts from, durable.
    fn prepare(&self, number: usize) -> std::io::Result<()> {
        if number > KEPT {
            match std::fs::remove_dir_all(self.home(number - KEPT)) {
                // Whoever was killed before it was made left the next program to go on with the next one.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        let home = self.home(number);
        std::fs::create_dir_all(home.join(DIRS[1]))?;
        let mut file = File::create(home.join(NAMES[0]))?;
        file.write_all(&ace::bytes(number, 0, 0, ace::BASE))?;
        file.sync_all()?;
        for dir in [&home.join(DIRS[1]), &home, &self.dir] {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    }

    /// Judges sequences, each with how many of its events were acknowledged, and so many before it that were done.
    pub(crate) fn check(&self, looks: &[[usize; 3]], ordered: bool) -> Result<String, String> {
        let order = Order::new(self.seed, self.promise);
        let mut said = Vec::new();
        for &[number, events, back] in looks {
            let first = number.saturating_sub(back.min(KEPT - 2)).max(1);
            for n in first..=number {
                let story = order.story(n).ok_or("no such sequence")?;
                let done = if n == number {
                    events
                } else {
                    story.events.len()
                };
                let found = look(&self.home(n)).map_err(|e| format!("sequence {n}: {e}"))?;
                if ordered {
                    story.judge(done, self.promise, &found)?;
                } else {
                    story.judge_unordered(done, self.promise, &found)?;
                }
            }
            said.push(format!(
                "sequences {first} to {number}, of the last {events} events"
            ));
        }
        Ok(said.join("; "))
    }
}

/// Until the runner has done what it wants to do while the files are open, which it says with one byte.
fn wait() -> std::io::Result<()> {
    std::io::stdin().read_exact(&mut [0])
}

/// Reads a directory as it is.
fn look(home: &Path) -> std::io::Result<Found> {
    let mut found = Found::default();
    for dir in DIRS.into_iter().chain([MOVED[0]]) {
        let entries = match std::fs::read_dir(home.join(dir)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !dir.is_empty() => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = Path::new(dir)
                .join(entry.file_name())
                .to_string_lossy()
                .into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                found.dirs.insert(name);
            } else if kind.is_symlink() {
                let says = std::fs::read_link(entry.path())?;
                found
                    .links
                    .insert(name, says.to_string_lossy().into_owned());
            } else {
                let content = std::fs::read(entry.path())?;
                if let Some(mark) = attribute::get(&File::open(entry.path())?)? {
                    found.marks.insert(name.clone(), mark);
                }
                found.files.insert(name, (entry.metadata()?.ino(), content));
            }
        }
    }
    Ok(found)
}

/// Does what a story says, through at most one description for each file.
struct Hands<'a> {
    home: &'a Path,
    story: &'a Story,
    open: BTreeMap<usize, File>,
    /// Half of the sequences close a file after each use.
    keep: bool,
    /// A bug on purpose.
    no_fsync: bool,
}

impl<'a> Hands<'a> {
    fn new(home: &'a Path, story: &'a Story, no_fsync: bool) -> Self {
        Self {
            home,
            story,
            open: BTreeMap::new(),
            keep: story.keeps_open(),
            no_fsync,
        }
    }

    fn path(&self, tree: &Tree, name: usize) -> PathBuf {
        self.home.join(tree.path(name))
    }

    /// The file of a name, open.
    fn file(&mut self, tree: &Tree, name: usize) -> std::io::Result<&mut File> {
        let id = tree.names[name].unwrap_or(usize::MAX);
        if !self.open.contains_key(&id) {
            let file = OpenOptions::new()
                .read(self.story.reads())
                .write(true)
                .open(self.path(tree, name))?;
            self.open.insert(id, file);
        }
        self.open
            .get_mut(&id)
            .ok_or(std::io::ErrorKind::NotFound.into())
    }

    fn event(&mut self, number: usize) -> std::io::Result<()> {
        let story = self.story;
        let before = &story.trees[number - 1];
        match story.events[number - 1] {
            Event::Op(op) => self.operate(number, op, before)?,
            Event::SyncFile(_) | Event::SyncDir(_) if self.no_fsync => {}
            Event::SyncFile(name) if story.only_bytes(number) => {
                self.file(before, name)?.sync_data()?;
            }
            Event::SyncFile(name) => self.file(before, name)?.sync_all()?,
            Event::SyncDir(dir) => File::open(self.home.join(before.dir(dir)))?.sync_all()?,
        }
        if !self.keep {
            self.open.clear();
        }
        Ok(())
    }

    fn operate(&mut self, number: usize, op: Op, before: &Tree) -> std::io::Result<()> {
        let sequence = self.story.number;
        match op {
            Op::Create(name) => {
                let path = self.path(before, name);
                let file = OpenOptions::new()
                    .read(self.story.reads())
                    .write(true)
                    .create_new(true)
                    .open(path)?;
                if let Some(id) = self.story.trees[number].names[name] {
                    self.open.insert(id, file);
                }
                Ok(())
            }
            Op::Mkdir => std::fs::create_dir(self.home.join(DIRS[MADE])),
            Op::Rmdir => std::fs::remove_dir(self.home.join(DIRS[MADE])),
            Op::Move => std::fs::rename(self.home.join(before.dir(1)), self.home.join(MOVED[0])),
            Op::Append(name) | Op::Begin(name) => {
                let file = self.file(before, name)?;
                let end = file.seek(SeekFrom::End(0))? as usize;
                let (_, range) = op.written(|_| end);
                file.write_all(&ace::bytes(sequence, number, range.start, range.len()))
            }
            Op::Overwrite(name) => {
                let (_, range) = op.written(|_| 0);
                let content = ace::bytes(sequence, number, range.start, range.len());
                self.file(before, name)?
                    .write_all_at(&content, range.start as u64)
            }
            Op::Store(name) => {
                let (_, range) = op.written(|_| 0);
                let content = ace::bytes(sequence, number, range.start, range.len());
                mapped::store(self.file(before, name)?, range.start, &content)
            }
            Op::Cut(name) | Op::Extend(name) => {
                let (_, range) = op.written(|_| 0);
                self.file(before, name)?.set_len(range.end as u64)
            }
            Op::Allocate(name) => allocate::longer(self.file(before, name)?, op.written(|_| 0).1),
            Op::Reserve(name) => allocate::reserve(self.file(before, name)?, op.written(|_| 0).1),
            Op::Punch(name) => allocate::punch(self.file(before, name)?, op.written(|_| 0).1),
            Op::Mark(name) => attribute::set(self.file(before, name)?, &ace::mark(number)),
            Op::Unmark(name) => attribute::remove(self.file(before, name)?),
            Op::Symlink => std::os::unix::fs::symlink(LINKED, self.home.join(LINK)),
            Op::Unsymlink => std::fs::remove_file(self.home.join(LINK)),
            Op::Empty(name) => OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(self.path(before, name))
                .map(drop),
            Op::Rename(from, to) => std::fs::rename(self.path(before, from), self.path(before, to)),
            Op::Link(from, to) => {
                std::fs::hard_link(self.path(before, from), self.path(before, to))
            }
            Op::Unlink(name) => std::fs::remove_file(self.path(before, name)),
        }
    }
}
