//! One simulated machine: its medium, its files, what its programs were told, and its crash points.

use std::collections::{HashMap, HashSet};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::cells::{Cells, Core};
use crate::choice::{Choice, Pick, Unit};
use crate::disk::{Content, Disk, PAGE, Page};
use crate::medium::SimMedium;
use crate::rng::mix;

/// Crash points that a recovery may pass before it counts as one that never ends.
const ENDLESS: u64 = 5_000_000;

/// Why the machine's programs are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Crash {
    /// The system: what was not durable may be lost.
    Power,
    /// Every process, by `SIGKILL`: nothing stored is lost, nothing is newly durable.
    Kill,
}

/// What the outside world knows at a crash: the judge measures what recovery left against it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct History {
    begun: Vec<u64>,
    completed: Vec<u64>,
    crashes: Vec<Crash>,
}

impl History {
    /// Operations whose success the client was told, in that order.
    pub fn completed(&self) -> &[u64] {
        &self.completed
    }

    /// Operations begun but not acknowledged, in the order they began.
    pub fn in_flight(&self) -> Vec<u64> {
        let completed: HashSet<u64> = self.completed.iter().copied().collect();
        let begun = self.begun.iter().copied();
        begun.filter(|op| !completed.contains(op)).collect()
    }

    /// Whether the client was told that `op` succeeded.
    pub fn is_completed(&self, op: u64) -> bool {
        self.completed.contains(&op)
    }

    /// Whether `op` was begun at all.
    pub fn is_begun(&self, op: u64) -> bool {
        self.begun.contains(&op)
    }

    /// What happened, oldest first: the first crash hit the workload, later ones the recovery.
    pub fn crashes(&self) -> &[Crash] {
        &self.crashes
    }

    /// Whether the power failed at least once. If not, only processes died, and every acknowledged
    /// byte must be there, durable or not.
    pub fn lost_power(&self) -> bool {
        self.crashes.contains(&Crash::Power)
    }
}

/// Receives the machine's state at crash points.
pub(crate) type Sink = Box<dyn FnMut(Snapshot) + Send>;

/// The machine's state just before one of its events.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) point: u64,
    cells: Cells,
    disk: Disk,
    history: History,
    clock: u64,
    boot: u64,
}

/// Everything that can differ between two crash images of one crash point.
pub(crate) struct Units {
    all: Vec<Unit>,
}

impl Units {
    pub(crate) fn all(&self) -> &[Unit] {
        &self.all
    }
}

impl Snapshot {
    pub(crate) fn units(&self) -> Units {
        let mut all = self.cells.units();
        all.extend(self.disk.units());
        Units { all }
    }

    /// The machine as the next boot, or the next process, finds it.
    pub(crate) fn crash(&self, choice: Choice, units: &Units, seed: u64) -> World {
        let mut history = self.history.clone();
        if choice == Choice::Kill {
            history.crashes.push(Crash::Kill);
            let (cells, disk) = (self.cells.killed(), self.disk.clone());
            return World::from_parts(cells, disk, history, self.clock, self.boot);
        }
        history.crashes.push(Crash::Power);
        let picks: Vec<Pick> = choice.picks(&units.all, seed);
        let mut cells = self.cells.crashed(&units.all, &picks);
        for (first, words) in self.disk.brought_back(&units.all, &picks) {
            cells.replace(first, &words);
        }
        let disk = self.disk.crashed(&units.all, &picks);
        World::from_parts(cells, disk, history, self.clock, self.boot + 1)
    }
}

pub(crate) struct State {
    pub(crate) cells: Cells,
    pub(crate) disk: Disk,
    history: History,
    /// Counts every change, so that versions have a time.
    clock: u64,
    boot: u64,
    points: u64,
    /// Depth of [`World::setup`] and [`World::judging`]: no crash points while above zero.
    quiet: u32,
    sink: Option<Sink>,
    doomed: HashMap<ThreadId, Doom>,
}

/// A thread that plays a process about to be killed.
#[derive(Clone, Copy)]
struct Doom {
    events_left: u64,
    dead: bool,
}

/// What [`World::kill_after`] unwinds with.
struct SimulatedDeath;

impl State {
    /// The time of a change that is happening now.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The visible contents of page `page` of the medium.
    pub(crate) fn medium_page(&self, page: u64) -> Content {
        let mut bytes = [0; PAGE as usize];
        for (word, into) in (page * PAGE / 8..).zip(bytes.chunks_exact_mut(8)) {
            into.copy_from_slice(&self.cells.load(word).to_le_bytes());
        }
        Page::new(bytes)
    }

    fn pass_crash_point(&mut self) {
        if self.quiet > 0 {
            return;
        }
        let point = self.points;
        self.points += 1;
        assert!(
            point < ENDLESS,
            "passed {ENDLESS} crash points: it does not end"
        );
        if let Some(mut sink) = self.sink.take() {
            sink(Snapshot {
                point,
                cells: self.cells.clone(),
                disk: self.disk.clone(),
                history: self.history.clone(),
                clock: self.clock,
                boot: self.boot,
            });
            self.sink = Some(sink);
        }
    }
}

/// One simulated machine. Clones share it.
///
/// A workload does its operations on [`medium`](Self::medium) and says what a client would know:
/// [`begin`](Self::begin) before an operation, [`acknowledge`](Self::acknowledge) after.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl World {
    /// A machine whose medium has `size` zero bytes.
    pub fn new(size: u64) -> Self {
        Self::from_parts(Cells::new(size), Disk::new(), History::default(), 0, 1)
    }

    fn from_parts(cells: Cells, disk: Disk, history: History, clock: u64, boot: u64) -> Self {
        let state = State {
            cells,
            disk,
            history,
            clock,
            boot,
            points: 0,
            quiet: 0,
            sink: None,
            doomed: HashMap::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The machine's medium, operated by the core of the calling thread.
    pub fn medium(&self) -> SimMedium {
        SimMedium::of(self.clone(), None)
    }

    /// The machine's medium as core `core` operates it: its flushes wait for its own fences only.
    /// One thread may play several cores or processes, which keeps a run repeatable.
    pub fn medium_on_core(&self, core: u32) -> SimMedium {
        SimMedium::of(self.clone(), Some(core))
    }

    /// Makes the medium a file behind the page cache (`cached`), whose first `mirrored` bytes processes
    /// work on in a mirror: only a fence makes anything durable, an order does not; a fence makes durable
    /// what any process has flushed or streamed; and when all processes die, what was stored to the
    /// mirrored bytes without being flushed is gone.
    pub fn put_behind_page_cache(&self, mirrored: u64) {
        self.adjust(|state| state.cells.put_behind_page_cache(mirrored));
    }

    /// Names the current boot: changes with every loss of power, not with the death of processes.
    pub fn boot_id(&self) -> u64 {
        mix(self.lock().boot)
    }

    /// Runs `work` without crash points and with everything durable at its end: formatting, files
    /// that exist before the story begins.
    pub fn setup<T>(&self, work: impl FnOnce() -> T) -> T {
        self.lock().quiet += 1;
        let result = work();
        self.settle();
        result
    }

    fn settle(&self) {
        let mut state = self.lock();
        state.quiet -= 1;
        state.cells.settle();
        state.disk.settle();
    }

    /// From here on nothing is a crash point: the judge may use the recovered structure.
    pub fn judging(&self) {
        self.lock().quiet += 1;
    }

    /// The client asks for operation `op`. Numbers are the test's own.
    pub fn begin(&self, op: u64) {
        self.mark(|history| history.begun.push(op));
    }

    /// The client is told that `op` succeeded. The instant after it is a crash point of its own.
    pub fn acknowledge(&self, op: u64) {
        self.mark(|history| history.completed.push(op));
        if !self.is_dead() {
            self.lock().pass_crash_point();
        }
    }

    /// The machine as the next boot, or the next process, finds it after a crash at this instant; `chance` says what of the
    /// outstanding stores a loss of power keeps.
    #[must_use]
    pub fn after(&self, crash: Crash, chance: u64) -> World {
        let snapshot = {
            let state = self.lock();
            Snapshot {
                point: state.points,
                cells: state.cells.clone(),
                disk: state.disk.clone(),
                history: state.history.clone(),
                clock: state.clock,
                boot: state.boot,
            }
        };
        let units = snapshot.units();
        let nth = mix(chance) % (units.all().len() as u64).max(1);
        let choice = match (crash, chance % 8) {
            (Crash::Kill, _) => Choice::Kill,
            (Crash::Power, 0) => Choice::Nothing,
            (Crash::Power, 1) => Choice::Everything,
            (Crash::Power, 2) => Choice::Missing(nth),
            (Crash::Power, 3) => Choice::Only(nth),
            (Crash::Power, 4 | 5) => Choice::Sample(nth),
            (Crash::Power, 6) => Choice::GroupMissing(nth),
            (Crash::Power, _) => Choice::Torn(nth),
        };
        snapshot.crash(choice, &units, chance)
    }

    /// What a judge at this instant would be told.
    pub fn history(&self) -> History {
        self.lock().history.clone()
    }

    /// Crash points passed so far.
    pub fn crash_points(&self) -> u64 {
        self.lock().points
    }

    /// A number that is equal for equal contents (medium and files).
    pub fn fingerprint(&self) -> u64 {
        let state = self.lock();
        mix(state.cells.fingerprint()) ^ state.disk.fingerprint()
    }

    /// A number that differs when the contents are equal but the outstanding stores are not.
    pub(crate) fn outstanding_fingerprint(&self) -> u64 {
        let state = self.lock();
        mix(state.cells.outstanding_fingerprint()) ^ state.disk.outstanding_fingerprint()
    }

    /// Plays a process that is killed in the middle of `work`: its stores after the first `events`
    /// events never happen, and `None` comes back unless it ended before. The machine goes on.
    ///
    /// `work` is unwound; what its destructors do to the medium is dropped, as the dead do nothing.
    pub fn kill_after<T>(&self, events: u64, work: impl FnOnce() -> T) -> Option<T> {
        let thread = thread::current().id();
        self.lock().doomed.insert(
            thread,
            Doom {
                events_left: events,
                dead: false,
            },
        );
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        self.lock().doomed.remove(&thread);
        match outcome {
            Ok(result) => Some(result),
            Err(payload) if payload.is::<SimulatedDeath>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }

    /// An event: a crash point, then the change. `None` when the calling thread plays a dead process.
    pub(crate) fn event<T>(&self, change: impl FnOnce(&mut State) -> T) -> Option<T> {
        let mut state = self.lock();
        if let Some(doom) = state.doomed.get_mut(&thread::current().id()) {
            if doom.dead {
                return None;
            }
            if doom.events_left == 0 {
                doom.dead = true;
                drop(state);
                resume_unwind(Box::new(SimulatedDeath));
            }
            doom.events_left -= 1;
        }
        state.pass_crash_point();
        Some(change(&mut state))
    }

    /// Looks at the state; not an event.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Sends the state at each crash point to `sink` from now on.
    pub(crate) fn watch(&self, sink: Sink) {
        self.lock().sink = Some(sink);
    }

    /// Stops watching, after a last crash point for the state at the end.
    pub(crate) fn end_watch(&self) -> u64 {
        let mut state = self.lock();
        state.pass_crash_point();
        state.sink = None;
        state.points
    }

    /// Changes something that is neither an event nor subject to death (growing the medium).
    pub(crate) fn adjust<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.lock())
    }

    fn is_dead(&self) -> bool {
        self.lock()
            .doomed
            .get(&thread::current().id())
            .is_some_and(|doom| doom.dead)
    }

    fn mark(&self, change: impl FnOnce(&mut History)) {
        if !self.is_dead() {
            change(&mut self.lock().history);
        }
    }

    /// A panic in one test thread must not hide the state from the others.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The core that issues an operation.
pub(crate) fn core_of(named: Option<u32>) -> Core {
    named.map_or_else(|| Core::Thread(thread::current().id()), Core::Named)
}
