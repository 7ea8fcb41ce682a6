//! The leases of all staged files: taken for programs, given back when asked, broken, or left behind.
//!
//! The main thread takes leases and answers; whatever may wait for a disk or a lock runs in a worker
//! (`workers.rs` says what happens where the kernel gives no thread).
//! There is a worker per broken lease, because somebody waits for each; for each pool one that publishes what has
//! aged, file after file, and one that commits all files of the dead at one instant; then one per
//! file, some at a time so that openers always find a place, and when these are through one that repairs
//! what the dead left in the pool; one that opens a pool, and one that finds out which, for all that ask
//! meanwhile; and one at the start that recovers all listed pools.
//!
//! A file cannot be taken away while its program holds the file's lock in the pool. On memory that is
//! less than a microsecond at a time and no system call, behind a page cache the write of a record: a
//! program is hardly ever stopped right then, and the worker tries again until it goes on. The kernel lets
//! the opener in after `/proc/sys/fs/lease-break-time` seconds (45 unless changed) whatever we do; it then
//! finds the file as it was published last.
//!
//! [`answers`] says what programs are told, [`which`] how the pool of a file is found, [`closed`] what becomes of files
//! that a program has closed, [`dead`] of those whose program has died, and [`inherit`] of what another monitor has left.

mod answers;
mod closed;
mod dead;
mod inherit;
mod which;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd as _;
use rustix::io::Errno;

use super::adopt::Stray;
use super::client::mode_number;
use super::held::{self, Held, OpenPool, Owner};
use super::lease::{self, Said, Signals, State};
use super::open::{self, OpenFiles};
use super::records::{LeaseRecord, Listed, Record, Records};
use super::shared::{Barred, Shared};
use super::standby::Standby;
use super::workers::{Haste, Workers};
use super::{Means, Pace, Ready};
use crate::pools::Places;
use crate::registry::FileId;
use crate::registry::anywhere::{Mark, Marks};
use crate::registry::sys::Fd;

use answers::Wanted;
use closed::{Leaving, Waiting};
use inherit::Left;
use which::{Asking, Question};

/// Files held at a time; the limit on descriptors may be reached before.
const MOST: usize = 1 << 16;

/// Leases being taken back at a time. Each has a thread, most of which wait for a disk.
const MOST_BREAKS: usize = 64;

/// Those of them that nobody waits for. A program may die with thousands of files; whoever opens a file meanwhile finds a
/// place all the same.
const MOST_UNAWAITED: usize = MOST_BREAKS / 2;

/// Files that are published with one walk over the logs. Who wants one of them for himself may have to wait until
/// all of them are published, so where each is synced to a device it is one.
const MANY: usize = 64;

/// How often leases are looked at without a signal, and what has aged is published, unless it is told otherwise.
pub(super) const AGE: Duration = Duration::from_millis(500);

/// How long until a file that could not be taken away is tried again: at first, and at most. Somebody may have made room
/// for it meanwhile, by removing it even.
const AGAIN: Duration = Duration::from_millis(5);
const AGAIN_AT_MOST: Duration = Duration::from_millis(100);

/// How long a dead program's file is tried; then its bytes wait in the pool for a recovery.
const LONGEST_TRY: Duration = Duration::from_secs(60);

/// How long a monitor goes on with a pool that it cannot use any more before its standby opens it anew: a disk that
/// stays full should not see one after the other.
const BEFORE_GIVING_WAY: Duration = Duration::from_secs(5);

/// How long a pool stays open that nobody uses.
const POOL_IDLE: Duration = Duration::from_secs(2);

pub(super) struct Leases {
    pub(super) places: Places,
    records: Rc<Records>,
    pub(super) standby: Standby,
    pub(super) signals: Signals,
    pub(super) workers: Workers<Report>,
    pools: Vec<(Arc<OpenPool>, Instant)>,
    /// Pools that workers are opening,
    opening: BTreeSet<PathBuf>,
    /// and programs that are answered when one of them is open.
    asking_for_pools: Vec<(Fd, Wanted)>,
    /// Those who ask which pool there is, beside the one for whom a worker finds out.
    finding: BTreeMap<Question, Vec<Asking>>,
    /// Those who wait for what was closed.
    waiting: Vec<Waiting>,
    /// Closed files that were taken away while somebody else was at them, who has their descriptors for a moment.
    leaving: Vec<Leaving>,
    held: BTreeMap<u64, Entry>,
    owners: Vec<Arc<Owner>>,
    next: u64,
    since: Instant,
    looked_at: Instant,
    pace: Pace,
    /// Pools of which a worker publishes what has aged, or did.
    ages: Vec<Age>,
    /// Pools of which one commits what the dead left.
    committing: Vec<Arc<OpenPool>>,
    /// A worker looks for leases that nobody knows.
    adopting: bool,
    /// When one looks once more.
    adopts_again: Option<Instant>,
    /// Pools that the dead left something in.
    bereft: Vec<Arc<OpenPool>>,
    /// Somebody may have died, now or before our time, whose files nobody held.
    recovery_due: bool,
    /// A worker recovers.
    recovering: bool,
    /// A worker looks whether a pool can be opened anew.
    trying: bool,
    /// To be taken over and to be adopted, when their pools can be opened.
    postponed: Vec<Left>,
    strays: Vec<Stray>,
    asked_for_pools_at: Instant,
    /// Declared files that nobody stages who is not alone.
    pub(super) barred: Barred,
    /// For all programs: which files are held.
    marks: Marks,
    told_at: Option<Instant>,
    ending: bool,
}

struct Entry {
    /// In front of what it names, which is closed later.
    listed: Listed,
    held: Arc<Held>,
    /// Behind it: it goes when everything is in the file.
    _mark: Mark,
    owner: Arc<Owner>,
    /// Somebody waits for it, as an opener does.
    awaited: bool,
    /// A worker takes it away, that was started so hastily, or will again at this time.
    breaking: Option<Haste>,
    again_at: Option<Instant>,
    again_after: Duration,
    /// What is tried again is to share it: who only opened it takes it from nobody.
    again_shares: bool,
    dead_since: Option<Instant>,
    /// Nobody's any more, and could not be taken away since then.
    failing_since: Option<Instant>,
}

impl Entry {
    /// Whether it is to be taken away now.
    fn is_due(&self, now: Instant, ending: bool) -> bool {
        if self.again_at.is_some_and(|at| now < at) {
            return false;
        }
        match self.dead_since {
            Some(_) => self.held.is_orphaned(),
            None => self.awaited || self.again_at.is_some() || self.held.is_closed() || ending,
        }
    }

    /// What was only left as it is until somebody asks for it.
    fn is_asked_for(&mut self) {
        if self.held.is_closed() && self.failing_since.is_none() {
            self.again_at = None;
        }
    }

    /// Whether it was tried for long enough. What a living program has closed is left to nobody else.
    fn is_given_up(&self, now: Instant) -> bool {
        let failing = self.failing_since.filter(|_| self.dead_since.is_some());
        failing.is_some_and(|since| now.duration_since(since) > LONGEST_TRY)
    }
}

/// What workers report.
pub(super) enum Report {
    /// A file was taken away, or could not be.
    Taken { number: u64, done: bool },
    /// The same of several, all of one file.
    AllTaken { numbers: Vec<u64>, done: bool },
    /// A declared file is shared, or could not be.
    Shared { number: u64, done: bool },
    /// There is such a pool, or none for the first who has asked.
    PoolOf(Question, Option<PathBuf>),
    /// A pool is opened, or could not be.
    Opened(PathBuf, Result<Box<OpenPool>, Errno>),
    /// What has aged of a pool is published.
    Aged(Weak<OpenPool>, Aged),
    /// What these files of the dead lacked, of a pool, is committed.
    Committed(Arc<OpenPool>, Vec<u64>),
    /// Leases that nobody knew, and shared files.
    Found(Vec<Stray>, Vec<Shared>),
    /// Pools are recovered.
    Recovered,
    /// Whether a pool that this process lost can be opened anew.
    Tried(bool),
    /// Nothing to be done.
    Nothing,
}

/// A file that is held, and its program.
type Aging = (u64, Weak<Held>, Option<i32>);

/// When what has aged of a pool was published last. A worker is at it, which takes as long as its disk does.
struct Age {
    pool: Weak<OpenPool>,
    published_at: Instant,
    under_way: bool,
}

/// What was seen while publishing what has aged.
#[derive(Default)]
pub(super) struct Aged {
    /// These files' programs are gone from the pool.
    left: Vec<u64>,
    /// These are not staged any more.
    ended: Vec<u64>,
    /// These nobody can see any more, or their pool was removed: with it goes what is staged in it.
    lost: Vec<u64>,
}

impl Leases {
    pub(super) fn new(
        places: Places,
        records: Rc<Records>,
        standby: Standby,
        pace: Pace,
        means: Means,
        marks: Marks,
    ) -> Self {
        let barred = Barred::new(Rc::clone(&records));
        Self {
            places,
            records,
            standby,
            signals: means.signals,
            workers: means.workers,
            pools: Vec::new(),
            opening: BTreeSet::new(),
            asking_for_pools: Vec::new(),
            finding: BTreeMap::new(),
            waiting: Vec::new(),
            leaving: Vec::new(),
            held: BTreeMap::new(),
            owners: Vec::new(),
            next: means.first,
            since: Instant::now(),
            looked_at: Instant::now(),
            pace,
            ages: Vec::new(),
            committing: Vec::new(),
            adopting: false,
            adopts_again: None,
            bereft: Vec::new(),
            recovery_due: true,
            recovering: false,
            trying: false,
            postponed: Vec::new(),
            strays: Vec::new(),
            asked_for_pools_at: Instant::now(),
            barred,
            marks,
            told_at: None,
            ending: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let recovered = self.bereft.is_empty() && !self.recovery_due && !self.recovering;
        let asked = !self.asking_for_pools.is_empty() || !self.finding.is_empty();
        let adopted = !self.adopting && self.adopts_again.is_none();
        self.held.is_empty() && !self.waits_for_pools() && recovered && adopted && !asked
    }

    /// A process died that may have staged files under another monitor.
    pub(super) fn somebody_died(&mut self) {
        self.recovery_due = true;
    }

    /// Ends, and takes everything away first.
    pub(super) fn end(&mut self) {
        self.ending = true;
        self.adopts_again = None;
    }

    /// Since when it is told to end.
    pub(super) fn told_at(&self) -> Option<Instant> {
        self.told_at
    }

    /// Whether everything is just being taken away, to end then.
    pub(super) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Whether there are leases whose pools cannot be opened yet.
    fn waits_for_pools(&self) -> bool {
        !self.postponed.is_empty() || !self.strays.is_empty()
    }

    fn look_after(&self) -> Duration {
        AGE.min(self.pace.publish_after)
    }

    /// How long until the next [`tick`](Self::tick), unless something becomes readable.
    pub(super) fn interval(&self) -> Duration {
        // A death is noticed after a tick, too.
        if self.may_recover() {
            return Duration::ZERO;
        }
        let nothing = self.held.is_empty() && !self.waits_for_pools();
        let idle = nothing && self.adopts_again.is_none();
        let again = self.held.values().filter_map(|entry| entry.again_at).min();
        match (idle, self.pools.is_empty()) {
            (false, _) if let Some(at) = again => {
                // Also when it has to wait for a worker.
                AGAIN.max(at.saturating_duration_since(Instant::now()))
            }
            (false, _) => self.look_after().saturating_sub(self.looked_at.elapsed()),
            (true, false) => POOL_IDLE,
            (true, true) => Duration::from_secs(3600),
        }
    }

    /// What to wait for.
    pub(super) fn wait_for<'a>(&'a self, wait: &mut Vec<PollFd<'a>>) {
        wait.push(PollFd::new(self.signals.fd(), PollFlags::IN));
        wait.push(PollFd::new(self.workers.wake(), PollFlags::IN));
        self.standby.wait_for(wait);
        let lives = self.owners.iter().map(|owner| &owner.life);
        wait.extend(lives.map(|life| PollFd::new(life, PollFlags::IN)));
        let asking = self.asking_for_pools.iter();
        wait.extend(asking.map(|(asking, _)| PollFd::new(asking, PollFlags::empty())));
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Instant, ready: &Ready) {
        // Who has hung up goes on without us, and may have told us since that its file is the kernel's; and we keep no
        // description for it. Its connection's number stays taken until all is done that goes by what is ready.
        let hung_up = |(asking, _): &mut (Fd, Wanted)| ready.has(asking);
        let _gone: Vec<_> = self.asking_for_pools.extract_if(.., hung_up).collect();
        if ready.has(self.workers.wake()) {
            for report in self.workers.reports() {
                self.heed(report);
            }
        }
        self.standby.replace(&self.records, ready);
        let said = if ready.has(self.signals.fd()) {
            self.signals.read()
        } else {
            Said::default()
        };
        if said.end {
            self.ending |= said.at_once;
            self.told_at.get_or_insert(now);
        }
        let due = now.duration_since(self.looked_at) >= self.look_after();
        self.bury(ready);
        self.commit_dead();
        self.take_back(now, said, due);
        self.answer_those_waiting();
        self.clear_seats();
        if self.is_empty() && self.barred.knows_all() {
            self.marks.clear();
        }
        if due {
            self.looked_at = now;
            if !self.held.is_empty() || self.waits_for_pools() {
                self.standby.ensure(&self.records);
            }
            self.give_way(now);
            self.adopt_once_more(now);
            self.ask_for_pools(now);
            self.publish_aged(now);
            self.close_idle_pools(now);
        }
    }

    /// When a sync of a pool has failed, this process never knows again what that holds. Another one does, from
    /// its logs, as soon as it can open it.
    fn give_way(&mut self, now: Instant) {
        if self.trying || now.duration_since(self.since) < BEFORE_GIVING_WAY {
            return;
        }
        let mut used = self.held.values().map(|entry| &entry.held.pool);
        if let Some(lost) = used.find(|pool| !pool.is_sound()) {
            let path = lost.path.clone();
            self.trying = true;
            self.workers
                .start(Haste::Whenever, move || Report::Tried(can_be_opened(&path)));
        }
    }

    fn heed(&mut self, report: Report) {
        match report {
            Report::Taken { number, done } => self.was_taken(number, done),
            Report::AllTaken { numbers, done } => {
                for number in numbers {
                    self.was_taken(number, done);
                }
            }
            Report::Shared { number, done: true } => {
                if let Some(entry) = self.held.get_mut(&number) {
                    entry.breaking = None;
                    entry.awaited = false;
                    // Its program did not wait for that.
                    if entry.held.is_given_back() {
                        self.give_seat_back(number);
                    }
                }
            }
            Report::Shared { number, .. } => {
                self.was_taken(number, false);
                if let Some(entry) = self.held.get_mut(&number) {
                    entry.again_shares = !entry.held.is_given_back();
                }
            }
            Report::PoolOf(question, path) => self.pool_was_found(&question, path.as_deref()),
            Report::Opened(path, opened) => {
                self.opening.remove(&path);
                let opened = opened.map(|pool| self.keep_open(*pool));
                self.go_on_with(&path, &opened);
                self.answer_those_asking(&path, opened);
            }
            Report::Aged(pool, Aged { left, ended, lost }) => {
                let mut ages = self.ages.iter_mut();
                if let Some(age) = ages.find(|age| age.pool.ptr_eq(&pool)) {
                    age.under_way = false;
                }
                for number in lost {
                    if let Some(entry) = self.held.get_mut(&number) {
                        entry.again_at.get_or_insert_with(Instant::now);
                        entry.again_shares = false;
                    }
                }
                for number in left {
                    if let Some(entry) = self.held.get_mut(&number) {
                        entry.dead_since.get_or_insert_with(Instant::now);
                    }
                }
                for number in ended {
                    // Its program is about to ask for the lease, or never learned that it had one.
                    if self
                        .held
                        .get(&number)
                        .is_some_and(|entry| entry.breaking.is_none())
                    {
                        self.held.remove(&number);
                    }
                }
            }
            Report::Committed(pool, files) => {
                self.committing.retain(|its| !Arc::ptr_eq(its, &pool));
                for entry in files.iter().filter_map(|number| self.held.get(number)) {
                    entry.held.orphan();
                }
            }
            Report::Found(strays, shared) => {
                self.adopting = false;
                if !self.ending {
                    self.end_shared(shared);
                }
                self.adopt_all(strays);
                self.look_at_all();
            }
            Report::Recovered => self.recovering = false,
            Report::Tried(opens) => {
                self.trying = false;
                if opens && !self.ending {
                    self.standby.give_way();
                }
            }
            Report::Nothing => {}
        }
    }

    /// A file was taken away, or could not be: then it is tried again.
    fn was_taken(&mut self, number: u64, done: bool) {
        if done {
            let taken = self.held.remove(&number);
            self.leaving.extend(taken.as_ref().and_then(Leaving::of));
            if let Some(dead) = taken.filter(|entry| entry.dead_since.is_some()) {
                self.is_bereft(&dead.held.pool);
            }
        } else if let Some(entry) = self.held.get_mut(&number) {
            let now = Instant::now();
            entry.breaking = None;
            entry.again_at = Some(now + entry.again_after);
            entry.again_after = AGAIN_AT_MOST.min(2 * entry.again_after);
            entry.again_shares = false;
            if entry.dead_since.is_some() || entry.held.is_closed() {
                entry.failing_since.get_or_insert(now);
            }
        }
    }

    /// A file that the asking program has.
    pub(super) fn held_of(&self, connection: &Fd, number: u64) -> Option<Arc<Held>> {
        let owner = peer_of(connection).unwrap_or(None);
        let entry = self.held.get(&number)?;
        (entry.owner.pid == owner).then(|| Arc::clone(&entry.held))
    }

    /// Everything that is staged of a file, to be taken away by a worker, and the numbers of what that is to report. Of
    /// what another worker is just sharing, or taking away, that one will.
    pub(super) fn take_all_of(&mut self, id: (u64, u64)) -> (Vec<u64>, Vec<Arc<Held>>) {
        let (mut numbers, mut all) = (Vec::new(), Vec::new());
        let its = |(_, entry): &(&u64, &mut Entry)| entry.held.id == id && entry.held.is_staged();
        for (number, entry) in self.held.iter_mut().filter(its) {
            all.push(Arc::clone(&entry.held));
            if entry.breaking.is_none() {
                entry.again_at = None;
                entry.breaking = Some(Haste::Awaited);
                numbers.push(*number);
            }
        }
        (numbers, all)
    }

    /// Starts workers for the files that somebody waits for, and for those of the dead as far as there are places for
    /// them. What finds none is started when one of the others is through.
    fn take_back(&mut self, now: Instant, said: Said, due: bool) {
        if said.wanted || due {
            self.look_for_openers();
        }
        let (mut running, mut running_unawaited) = (0, 0);
        let (mut awaited, mut unawaited, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
        for (number, entry) in &self.held {
            if let Some(haste) = entry.breaking {
                running += 1;
                running_unawaited += usize::from(haste != Haste::Awaited);
                continue;
            }
            if !entry.is_due(now, self.ending) {
                continue;
            }
            if entry.is_given_up(now) {
                given_up.push(*number);
            } else if entry.awaited {
                awaited.push(*number);
            } else if unawaited.len() < MOST_UNAWAITED {
                unawaited.push(*number);
            }
        }
        unawaited.truncate(MOST_UNAWAITED.saturating_sub(running_unawaited));
        let places = MOST_BREAKS.saturating_sub(running);
        for number in awaited.into_iter().chain(unawaited).take(places) {
            self.start_taking(number);
        }
        for number in given_up {
            // The lease goes, and a recovery finds the records.
            if let Some(entry) = self.held.remove(&number) {
                self.is_bereft(&entry.held.pool);
                self.barred.know_not_all();
            }
        }
    }

    /// Looks which leases are being broken. It stays known of those that find no place now: nobody is told twice.
    fn look_for_openers(&mut self) {
        let quiet = |(_, entry): &(&u64, &mut Entry)| {
            !entry.awaited && entry.breaking != Some(Haste::Awaited)
        };
        for (number, entry) in self.held.iter_mut().filter(quiet) {
            entry.awaited = entry.held.state() == State::Broken;
            if entry.awaited {
                entry.is_asked_for();
            }
            if entry.awaited && entry.breaking.is_some() {
                entry.breaking = Some(Haste::Awaited);
                self.workers.hurry(*number);
            }
        }
    }

    /// Starts a worker that takes a file away, or shares it.
    fn start_taking(&mut self, number: u64) {
        let Some(entry) = self.held.get_mut(&number) else {
            return;
        };
        let held = Arc::clone(&entry.held);
        let again = entry.again_at.take().is_some();
        let opened = if again {
            entry.again_shares
        } else {
            entry.awaited
        };
        let living = entry.dead_since.is_none() && !self.ending;
        let shares = opened && living && held.is_declared();
        let haste = if entry.awaited {
            Haste::Awaited
        } else {
            Haste::Yet(number)
        };
        entry.breaking = Some(haste);
        self.workers.start(haste, move || {
            if shares {
                let done = matches!(held.share_out(), Ok(true));
                return Report::Shared { number, done };
            }
            let done = held.take_away().is_ok();
            Report::Taken { number, done }
        });
    }

    /// Publishes what has aged, file after file, in one worker for each pool, which also looks whose programs are gone.
    fn publish_aged(&mut self, now: Instant) {
        self.ages.retain(|age| age.pool.strong_count() > 0);
        let mut pools: Vec<(&Arc<OpenPool>, Vec<Aging>)> = Vec::new();
        for (number, entry) in &self.held {
            let is_programs = entry.dead_since.is_none() && !entry.held.is_closed();
            if entry.breaking.is_some() || !is_programs {
                continue;
            }
            let held = &entry.held;
            let aging = (*number, Arc::downgrade(held), entry.owner.pid);
            match pools
                .iter_mut()
                .find(|(pool, _)| Arc::ptr_eq(pool, &held.pool))
            {
                Some((_, files)) => files.push(aging),
                None => pools.push((&held.pool, vec![aging])),
            }
        }
        for (pool, files) in pools {
            let weak = Arc::downgrade(pool);
            let known = self.ages.iter().position(|age| age.pool.ptr_eq(&weak));
            let at = known.unwrap_or_else(|| {
                // In step with the others: not later than after the time that the user has said.
                let last = self.ages.iter().map(|age| age.published_at).max();
                self.ages.push(Age {
                    pool: Weak::clone(&weak),
                    published_at: last.unwrap_or(self.since),
                    under_way: false,
                });
                self.ages.len() - 1
            });
            // Where no threads can be made those that are there must not all wait for a disk each.
            let others_are = self.workers.are_few() && self.ages.iter().any(|age| age.under_way);
            let age = &mut self.ages[at];
            if age.under_way || others_are {
                continue;
            }
            age.under_way = true;
            let due = now.duration_since(age.published_at) >= self.pace.publish_after;
            if due {
                age.published_at = now;
            }
            let quiet_for = due.then_some(self.pace.give_back_after);
            self.workers.start(Haste::Whenever, move || {
                let aged = publish_aging(&files, quiet_for);
                Report::Aged(weak, aged)
            });
        }
    }

    fn close_idle_pools(&mut self, now: Instant) {
        for (pool, used_at) in &mut self.pools {
            // One reference is the list's own.
            if Arc::strong_count(pool) > 1 {
                *used_at = now;
            }
        }
        let idle =
            |(_, used_at): &mut (Arc<OpenPool>, Instant)| now.duration_since(*used_at) >= POOL_IDLE;
        for (pool, _) in self.pools.extract_if(.., idle) {
            if let Some(pool) = Arc::into_inner(pool) {
                self.workers.start(Haste::Whenever, move || {
                    pool.close();
                    Report::Nothing
                });
            }
        }
    }

    /// Writes a lease down for the next monitor, under a number of its own.
    fn list(&mut self, held: &Held, owner: &Owner) -> (u64, Listed) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let listed = self.records.list(&record_of(number, held, owner));
        (number, listed)
    }

    /// Writes down anew what a successor shall know of a lease.
    pub(super) fn list_again(&self, number: u64) {
        if let Some(entry) = self.held.get(&number) {
            let record = record_of(number, &entry.held, &entry.owner);
            entry.listed.becomes(&record);
        }
    }

    fn insert(&mut self, number: u64, listed: Listed, held: Held, owner: Arc<Owner>) {
        let (dev, ino) = held.id;
        let entry = Entry {
            listed,
            held: Arc::new(held),
            _mark: self.marks.add(FileId { dev, ino }),
            owner,
            awaited: false,
            breaking: None,
            again_at: None,
            again_after: AGAIN,
            again_shares: false,
            dead_since: None,
            failing_since: None,
        };
        self.held.insert(number, entry);
    }

    /// The pool of a path, if it is open.
    fn open_pool(&mut self, path: &Path) -> Option<Arc<OpenPool>> {
        let known = self.pools.iter_mut().find(|(pool, _)| pool.path == path);
        let (pool, used_at) = known?;
        if !pool.is_current() || !pool.is_sound() {
            return None;
        }
        *used_at = Instant::now();
        Some(Arc::clone(pool))
    }

    /// Has a worker open a pool, which may have to wait for a disk, or for somebody who recovers it. Whoever needs the same
    /// one meanwhile waits for the same worker.
    fn open_soon(&mut self, path: &Path) {
        if self.opening.insert(path.to_owned()) {
            let path = path.to_owned();
            self.workers.start(Haste::Awaited, move || {
                let opened = OpenPool::open(&path).map(Box::new);
                Report::Opened(path, opened.map_err(|error| errno_of(&error)))
            });
        }
    }

    /// In place of one that was there before.
    fn keep_open(&mut self, pool: OpenPool) -> Arc<OpenPool> {
        self.pools.retain(|(known, _)| known.path != pool.path);
        let pool = Arc::new(pool);
        self.pools.push((Arc::clone(&pool), Instant::now()));
        pool
    }

    fn owner(&mut self, connection: &Fd) -> Result<Arc<Owner>, Errno> {
        let pid = peer_of(connection)?;
        self.owner_with(pid, || lease::peer(connection.as_fd()))
    }

    fn owner_with(
        &mut self,
        pid: Option<i32>,
        life: impl FnOnce() -> Result<Fd, Errno>,
    ) -> Result<Arc<Owner>, Errno> {
        // One that has ended may have left its number to this one.
        let known = |owner: &&Arc<Owner>| pid.is_some() && owner.pid == pid && !owner.has_ended();
        if let Some(owner) = self.owners.iter().find(known) {
            return Ok(Arc::clone(owner));
        }
        let owner = Owner::new(life()?, pid);
        self.owners.push(Arc::clone(&owner));
        Ok(owner)
    }
}

/// What the next monitor has to know of a lease.
fn record_of(number: u64, held: &Held, owner: &Owner) -> Record {
    let terms = &held.terms;
    Record::Lease(LeaseRecord {
        fd: held.raw(),
        life: owner.life.raw(),
        pid: owner.pid.unwrap_or(0),
        number,
        file: terms.file.id(),
        slot: terms.slot,
        incarnation: terms.incarnation,
        mode: mode_number(terms.mode),
        restore_append: terms.restore_append,
        declared: held.is_declared(),
        closed: held.is_closed(),
        pool: held.pool.path.clone(),
    })
}

fn can_be_opened(pool: &Path) -> bool {
    OpenPool::open(pool).map(OpenPool::close).is_ok()
}

/// A process of another namespace has no number here and gets an owner per file.
fn peer_of(connection: &Fd) -> Result<Option<i32>, Errno> {
    Ok(lease::who(connection.as_fd())?.pid)
}

/// Publishes files of one pool that are still held, if that is due, and gives those back that have been quiet for so long.
/// Tells those whose programs have left the pool without a word: their slot is free, though the process may live, as after
/// an `exec` that nobody saw.
fn publish_aging(all: &[Aging], due: Option<Duration>) -> Aged {
    let mut pool: Option<(Vec<u32>, bool)> = None;
    let mut known: BTreeMap<i32, Option<OpenFiles>> = BTreeMap::new();
    let mut aged = Aged::default();
    let mut here = Vec::new();
    let mut at_once = MANY;
    for (number, held, pid) in all {
        let Some(held) = held.upgrade() else {
            continue;
        };
        #[cfg(test)]
        held::planted::wait_in_aging(&held.pool.path);
        let (living, is_removed) =
            pool.get_or_insert_with(|| (held.pool.living_slots(), held.pool.is_removed()));
        let lives = living.contains(&held.terms.slot) && !held.is_unseated();
        let mut open_files = || {
            let of_program = known.entry((*pid)?);
            of_program
                .or_insert_with_key(|pid| open::open_files(*pid))
                .clone()
        };
        // What could not be published now is tried again at the next look, and at the break.
        if !lives {
            aged.left.push(*number);
        } else if *is_removed || held.is_left(&mut open_files) {
            aged.lost.push(*number);
        } else {
            // Those on slow media one by one.
            at_once = if held.pool.is_slow() { 1 } else { MANY };
            here.push((*number, Arc::downgrade(&held)));
        }
    }
    let mut places = MANY;
    for here in here.chunks(at_once) {
        let here = here.iter();
        let here = here.filter_map(|(number, held)| Some((*number, held.upgrade()?)));
        let (numbers, files): (Vec<u64>, Vec<Arc<Held>>) = here.unzip();
        if let Some(quiet_for) = due {
            held::publish_together(&files);
            places -= held::give_back_quiet(&files, quiet_for, places);
        }
        let ended = numbers
            .iter()
            .zip(&files)
            .filter(|(_, held)| held.is_over());
        aged.ended.extend(ended.map(|(number, _)| number));
    }
    aged
}

fn errno_of(error: &adit_pool::Error) -> Errno {
    use adit_pool::Error;
    match error {
        Error::Kernel { errno, .. } => *errno,
        Error::ReadOnly => Errno::ROFS,
        Error::NotYours { .. } | Error::OpenToOthers { .. } => Errno::PERM,
        Error::Full { .. } | Error::LogFull { .. } => Errno::NOSPC,
        Error::OutOfRange(lost) => lost.errno.unwrap_or(Errno::INVAL),
        Error::NoSlot { .. } => Errno::USERS,
        Error::WrongFileSystem { .. } => Errno::OPNOTSUPP,
        Error::Busy { .. } | Error::InUse { .. } => Errno::BUSY,
        _ => Errno::INVAL,
    }
}

/// A monitor that has tried for long to open the pools of what it has taken over.
#[cfg(test)]
pub(super) mod planted {
    use core::sync::atomic::{AtomicBool, Ordering};

    static TRIED: AtomicBool = AtomicBool::new(false);

    pub(in crate::monitor) fn try_shortly() {
        TRIED.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_tried() -> bool {
        TRIED.load(Ordering::Relaxed)
    }
}
