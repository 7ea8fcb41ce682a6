//! The leases of all staged files: taken for programs, given back when asked, broken, or left behind.
//!
//! The main thread takes leases and answers; whatever may wait for a disk or a lock runs in a worker
//! (`workers.rs` says what happens where the kernel gives no thread).
//! There is a worker per broken lease, because somebody waits for each; one that publishes what has
//! aged, file after file; for a dead program one that commits all its files at one instant, then one per
//! file, and when these are through one that repairs what the dead left in the pool; and one at the start
//! that recovers all listed pools.
//!
//! A file cannot be taken away while its program holds the file's lock in the pool. On memory that is
//! less than a microsecond at a time and no system call, behind a page cache the write of a record: a
//! program is hardly ever stopped right then, and the worker tries again until it goes on. The kernel lets
//! the opener in after `/proc/sys/fs/lease-break-time` seconds (45 unless changed) whatever we do; it then
//! finds the file as it was published last.
//!
//! # Safety
//!
//! Descriptors are taken over from a monitor that is gone. The invariant: what it wrote down names
//! each of them, and they are taken once, before this process opens others in their place.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adit_pool::FileRef;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd as _;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use super::adopt::{self, Stray};
use super::client::{Refused, mode_number, mode_of};
use super::held::{self, Held, OpenPool, Owner, Terms};
use super::lease::{self, Said, Signals, State};
use super::open::{self, OpenFiles};
use super::records::{LeaseRecord, Listed, Record, Records};
use super::shared::{self, Barred, Shared};
use super::standby::Standby;
use super::workers::{Haste, Workers};
use super::{Means, Ready, has_room_for};
use crate::pools::{AskedPool, NoPool, Places};
use crate::registry::FileId;
use crate::registry::anywhere::{Mark, Marks};
use crate::registry::sys::{Fd, insist};
use crate::registry::wire::{self, Answer, Staged};
use crate::staged::Mode;
use crate::{recovery, staged};

/// Files held at a time; the limit on descriptors may be reached before.
const MOST: usize = 1 << 16;

/// Leases being taken back at a time. Each has a thread, most of which wait for a disk.
const MOST_BREAKS: usize = 64;

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
    held: BTreeMap<u64, Entry>,
    owners: Vec<Arc<Owner>>,
    next: u64,
    since: Instant,
    looked_at: Instant,
    published_at: Instant,
    /// See [`Options::publish_after`](super::Options).
    publish_after: Duration,
    /// A worker publishes what has aged.
    aging: bool,
    /// A worker commits what the dead left.
    committing: bool,
    /// A worker looks for leases that nobody knows.
    adopting: bool,
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
    /// A worker looks whether they can.
    asking: bool,
    breaks: usize,
    /// Declared files that nobody stages who is not alone.
    pub(super) barred: Barred,
    /// For all programs: which files are held.
    marks: Marks,
    ending: bool,
}

/// A lease that a dead monitor has left.
struct Left {
    /// In front of what it names, which is closed later.
    _listed: Listed,
    record: LeaseRecord,
    fd: Fd,
    owner: Arc<Owner>,
}

impl Left {
    fn id(&self) -> Option<(u64, u64)> {
        let stat = insist(|| rustix::fs::fstat(self.fd.as_fd())).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }
}

struct Entry {
    /// In front of what it names, which is closed later.
    listed: Listed,
    held: Arc<Held>,
    /// Behind it: it goes when everything is in the file.
    _mark: Mark,
    owner: Arc<Owner>,
    /// A worker takes it away, or will again at this time.
    breaking: bool,
    again_at: Option<Instant>,
    again_after: Duration,
    /// What is tried again is to share it: who only opened it takes it from nobody.
    again_shares: bool,
    dead_since: Option<Instant>,
    /// A dead program's, that could not be taken away since then.
    failing_since: Option<Instant>,
}

/// What workers report.
pub(super) enum Report {
    /// A file was taken away, or could not be.
    Taken { number: u64, done: bool },
    /// The same of several, all of one file.
    AllTaken { numbers: Vec<u64>, done: bool },
    /// A declared file is shared, or could not be.
    Shared { number: u64, done: bool },
    /// What has aged is published.
    Aged(Aged),
    /// What these files of the dead lacked is committed.
    Committed(Vec<u64>),
    /// Leases that nobody knew, and shared files.
    Found(Vec<Stray>, Vec<Shared>),
    /// Pools are recovered.
    Recovered,
    /// Whether a pool that this process lost can be opened anew.
    Tried(bool),
    /// Pools that can be opened, of leases that wait for that.
    Openable(Vec<PathBuf>),
    /// Nothing to be done.
    Nothing,
}

/// A file that is held, and its program.
type Aging = (u64, Weak<Held>, Option<i32>);

/// What was seen while publishing what has aged.
#[derive(Default)]
pub(super) struct Aged {
    /// These files' programs are gone from the pool.
    left: Vec<u64>,
    /// These are not staged any more.
    ended: Vec<u64>,
    /// These nobody can see any more.
    lost: Vec<u64>,
}

impl Leases {
    pub(super) fn new(
        places: Places,
        records: Rc<Records>,
        standby: Standby,
        publish_after: Duration,
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
            held: BTreeMap::new(),
            owners: Vec::new(),
            next: means.first,
            since: Instant::now(),
            looked_at: Instant::now(),
            published_at: Instant::now(),
            publish_after,
            aging: false,
            committing: false,
            adopting: false,
            bereft: Vec::new(),
            recovery_due: true,
            recovering: false,
            trying: false,
            postponed: Vec::new(),
            strays: Vec::new(),
            asking: false,
            breaks: 0,
            barred,
            marks,
            ending: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let recovered = self.bereft.is_empty() && !self.recovery_due && !self.recovering;
        self.held.is_empty() && !self.waits_for_pools() && recovered && !self.adopting
    }

    /// A process died that may have staged files under another monitor.
    pub(super) fn somebody_died(&mut self) {
        self.recovery_due = true;
    }

    /// Ends, and takes everything away first.
    pub(super) fn end(&mut self) {
        self.ending = true;
    }

    /// Told to end: everything is taken away first.
    pub(super) fn is_ending(&self) -> bool {
        self.ending
    }

    /// Whether there are leases whose pools cannot be opened yet.
    fn waits_for_pools(&self) -> bool {
        !self.postponed.is_empty() || !self.strays.is_empty()
    }

    fn look_after(&self) -> Duration {
        AGE.min(self.publish_after)
    }

    /// How long until the next [`tick`](Self::tick), unless something becomes readable.
    pub(super) fn interval(&self) -> Duration {
        let idle = self.held.is_empty() && !self.waits_for_pools();
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
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Instant, ready: &Ready) {
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
        self.ending |= said.end;
        let due = now.duration_since(self.looked_at) >= self.look_after();
        self.bury(ready);
        self.commit_dead();
        self.take_back(now, said, due);
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
                self.breaks -= 1;
                if let Some(entry) = self.held.get_mut(&number) {
                    entry.breaking = false;
                    // Its program did not wait for that.
                    if entry.held.is_given_back() {
                        self.give_seat_back(number);
                    }
                }
            }
            Report::Shared { number, .. } => {
                self.was_taken(number, false);
                if let Some(entry) = self.held.get_mut(&number) {
                    entry.again_shares = true;
                }
            }
            Report::Aged(Aged { left, ended, lost }) => {
                self.aging = false;
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
                    if self.held.get(&number).is_some_and(|entry| !entry.breaking) {
                        self.held.remove(&number);
                    }
                }
            }
            Report::Committed(files) => {
                self.committing = false;
                for entry in files.iter().filter_map(|number| self.held.get(number)) {
                    entry.held.orphan();
                }
            }
            Report::Found(strays, shared) => {
                self.adopting = false;
                if !self.ending {
                    self.end_shared(shared);
                }
                for stray in strays {
                    self.adopt_one(stray);
                }
                self.look_at_all();
            }
            Report::Recovered => self.recovering = false,
            Report::Openable(pools) => self.go_on_with(&pools),
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
        self.breaks -= 1;
        if done {
            let taken = self.held.remove(&number);
            if let Some(dead) = taken.filter(|entry| entry.dead_since.is_some()) {
                self.is_bereft(&dead.held.pool);
            }
        } else if let Some(entry) = self.held.get_mut(&number) {
            let now = Instant::now();
            entry.breaking = false;
            entry.again_at = Some(now + entry.again_after);
            entry.again_after = AGAIN_AT_MOST.min(2 * entry.again_after);
            entry.again_shares = false;
            if entry.dead_since.is_some() {
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
            if !entry.breaking {
                entry.again_at = None;
                entry.breaking = true;
                self.breaks += 1;
                numbers.push(*number);
            }
        }
        (numbers, all)
    }

    fn is_bereft(&mut self, pool: &Arc<OpenPool>) {
        if !self.bereft.iter().any(|known| Arc::ptr_eq(known, pool)) {
            self.bereft.push(Arc::clone(pool));
        }
    }

    /// Clears the seats of the dead, pool by pool, when none of their files is held any more.
    fn clear_seats(&mut self) {
        if self.recovering {
            return;
        }
        let dead_in = |pool: Option<&Arc<OpenPool>>| {
            let here = |entry: &Entry| pool.is_none_or(|pool| Arc::ptr_eq(&entry.held.pool, pool));
            let mut held = self.held.values();
            held.any(|entry| entry.dead_since.is_some() && here(entry))
        };
        // What stays, for whatever reason, is tried again at the next death, or start;
        // `adit pool recover` says why.
        if let Some(at) = self.bereft.iter().position(|pool| !dead_in(Some(pool))) {
            let pool = self.bereft.swap_remove(at);
            self.recovering = true;
            let only = self.places.own_device(&pool.path);
            self.workers.start(Haste::Whenever, move || {
                let open = |name: &_| staged::open_on(name, only);
                let _ = staged::recover(pool.stage().attachment(), open);
                Report::Recovered
            });
        } else if self.recovery_due && !dead_in(None) {
            self.recovery_due = false;
            let places = self.places.clone();
            self.recovering = true;
            self.workers.start(Haste::Whenever, move || {
                drop(recovery::recover_all(&places));
                Report::Recovered
            });
        }
    }

    /// Notices programs that have ended.
    fn bury(&mut self, ready: &Ready) {
        self.owners.retain(|owner| {
            let alive = !ready.has(&owner.life);
            if !alive {
                let theirs = self
                    .held
                    .values_mut()
                    .filter(|entry| Arc::ptr_eq(&entry.owner, owner));
                for entry in theirs {
                    entry.dead_since.get_or_insert_with(Instant::now);
                }
            }
            // One reference is the list's own.
            alive && Arc::strong_count(owner) > 1
        });
    }

    /// Has what the files of the dead lack committed, before the first of them is published: a loss of
    /// power in between must not find some of them only. Where it cannot be committed for all, each file's
    /// is with its publication.
    fn commit_dead(&mut self) {
        if self.committing {
            return;
        }
        let left = self.held.iter().filter(|(_, entry)| {
            entry.dead_since.is_some() && !entry.held.is_orphaned() && !entry.breaking
        });
        let (numbers, files): (Vec<u64>, Vec<Arc<Held>>) = left
            .map(|(number, entry)| (*number, Arc::clone(&entry.held)))
            .unzip();
        match &files[..] {
            [] => {}
            [one] => one.orphan(),
            _ => {
                self.committing = true;
                self.workers.start(Haste::Whenever, move || {
                    held::commit_together(&files);
                    held::look_together(&files);
                    Report::Committed(numbers)
                });
            }
        }
    }

    /// Starts workers for the files that somebody waits for, and for those of the dead.
    fn take_back(&mut self, now: Instant, said: Said, due: bool) {
        let look = said.wanted || due;
        let mut given_up = Vec::new();
        for (number, entry) in &mut self.held {
            let waiting = entry.again_at.is_some_and(|at| now < at);
            if entry.breaking || waiting || self.breaks >= MOST_BREAKS {
                continue;
            }
            let dead = entry.dead_since.is_some();
            if dead && !entry.held.is_orphaned() {
                continue;
            }
            let again = entry.again_at.is_some();
            let broken = look && entry.held.state() == State::Broken;
            if !(dead || again || broken || self.ending) {
                continue;
            }
            if entry
                .failing_since
                .is_some_and(|since| now.duration_since(since) > LONGEST_TRY)
            {
                given_up.push(*number);
                continue;
            }
            let (held, number) = (Arc::clone(&entry.held), *number);
            entry.again_at = None;
            entry.breaking = true;
            self.breaks += 1;
            let opened = if again { entry.again_shares } else { broken };
            let shares = opened && !dead && !self.ending && held.is_declared();
            self.workers.start(Haste::Awaited, move || {
                if shares {
                    let done = matches!(held.share_out(), Ok(true));
                    return Report::Shared { number, done };
                }
                let done = held.take_away().is_ok();
                Report::Taken { number, done }
            });
        }
        for number in given_up {
            // The lease goes, and a recovery finds the records.
            if let Some(entry) = self.held.remove(&number) {
                self.is_bereft(&entry.held.pool);
            }
        }
    }

    /// Publishes what has aged, file after file, in one worker, which also looks whose programs are gone.
    fn publish_aged(&mut self, now: Instant) {
        if self.aging || self.held.is_empty() {
            return;
        }
        let all: Vec<Aging> = self
            .held
            .iter()
            .filter(|(_, entry)| !entry.breaking && entry.dead_since.is_none())
            .map(|(number, entry)| (*number, Arc::downgrade(&entry.held), entry.owner.pid))
            .collect();
        self.aging = true;
        let due = now.duration_since(self.published_at) >= self.publish_after;
        if due {
            self.published_at = now;
        }
        let publish = move || Report::Aged(age(&all, due));
        self.workers.start(Haste::Whenever, publish);
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

    /// Says which pool stages a file; the answer comes from a worker, since a pool may have to be made.
    pub(super) fn pool_for(&self, connection: Fd, asked: (&[u8], u64), along: Option<Fd>) {
        let Some(file) = along else {
            wire::answer(&connection, &Refused::NotUnderstood.answer());
            return;
        };
        let places = self.places.clone();
        let (path, size) = (asked.0.to_vec(), asked.1);
        self.workers.start(Haste::Awaited, move || {
            let asked = AskedPool {
                path: (!path.is_empty()).then_some(&path[..]),
                size: (size != 0).then_some(size),
            };
            let found = places.pool_for(file.as_fd(), asked);
            drop(file);
            wire::answer(
                &connection,
                &answer_of(found.map(|pool| pool.path().to_owned())),
            );
            Report::Nothing
        });
    }

    /// Takes a lease, and answers.
    pub(super) fn acquire(&mut self, connection: &Fd, staged: &Staged<'_>, along: Option<Fd>) {
        match self.take(connection, staged, along) {
            Ok(number) => {
                let shared = |entry: &Entry| entry.held.is_shared();
                let yes = Answer {
                    value: number,
                    errno: u32::from(self.held.get(&number).is_some_and(shared)),
                    ..Answer::yes()
                };
                // A program that no longer waits believes that it was refused.
                if !wire::answer(connection, &yes) {
                    self.held.remove(&number);
                }
            }
            Err(refused) => {
                wire::answer(connection, &refused.answer());
            }
        }
    }

    fn take(
        &mut self,
        connection: &Fd,
        staged: &Staged<'_>,
        along: Option<Fd>,
    ) -> Result<u64, Refused> {
        let fd = along.ok_or(Refused::NotUnderstood)?;
        let mode = mode_of(staged.mode).ok_or(Refused::NotUnderstood)?;
        if self.held.len() >= MOST || self.ending || !has_room_for(&fd) {
            return Err(Refused::TooMany);
        }
        let stat = rustix::fs::fstat(fd.as_fd()).map_err(Refused::Lease)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Refused::Lease(Errno::INVAL));
        }
        let id = (stat.st_dev, stat.st_ino);
        let same = |entry: &&Entry| entry.held.id == id && entry.held.is_staged();
        let others: Vec<&Entry> = self.held.values().filter(same).collect();
        let beside = |other: &&Entry| {
            staged.declared
                && other.held.is_shared()
                && other.held.pool.path.as_os_str().as_bytes() == staged.pool
                && other.held.terms.file == FileRef::from_id(staged.file)
        };
        // The kernel would grant a second lease on the same description, and then take both at once.
        let joins = !others.is_empty();
        if !others.iter().all(beside) {
            return Err(Refused::Lease(Errno::BUSY));
        }
        let pool = self.pool(Path::new(OsStr::from_bytes(staged.pool)))?;
        let owner = self.owner(connection).map_err(Refused::NoMonitor)?;
        let terms = Terms {
            file: FileRef::from_id(staged.file),
            slot: staged.slot,
            mode,
            restore_append: staged.restore_append,
            declared: staged.declared,
            owner: Arc::clone(&owner),
        };
        // From the first lease on there is somebody who would go on with it.
        self.standby.ensure(&self.records);
        let may_join = joins || staged.declared && self.barred.allows(id);
        let thread = self.signals.owner();
        let taken = if joins {
            // What the kernel says of a file that others have open.
            Err(Errno::AGAIN)
        } else {
            lease::take(fd.as_fd(), thread)
        };
        let held = match taken {
            Ok(()) => {
                self.barred.clear(id);
                Held::of(fd, pool, terms, id)
            }
            Err(Errno::AGAIN) if may_join => Held::beside(fd, pool, terms, id),
            Err(errno) => return Err(Refused::Lease(errno)),
        };
        Ok(self.keep(held, owner))
    }

    /// Holds a lease that the next monitor shall know, under a number.
    fn keep(&mut self, held: Held, owner: Arc<Owner>) -> u64 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let listed = self.records.list(&record_of(number, &held, &owner));
        self.insert(number, listed, held, owner);
        number
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
            breaking: false,
            again_at: None,
            again_after: AGAIN,
            again_shares: false,
            dead_since: None,
            failing_since: None,
        };
        self.held.insert(number, entry);
    }

    /// Takes over what a dead monitor held: of the leases of one file the last one, the others were given
    /// up and not yet crossed out.
    pub(super) fn take_over(&mut self, mut found: Vec<(Listed, LeaseRecord)>) {
        found.sort_by_key(|(_, lease)| core::cmp::Reverse(lease.number));
        if let Some((_, last)) = found.first() {
            // Far from what its programs may still remember of leases that it had given later.
            self.next = last.number.wrapping_add(1 << 32);
        }
        let mut closed = Vec::new();
        for (listed, record) in found {
            // SAFETY: a record names a descriptor of its own, which was left open for us.
            let fd = unsafe { Fd::inherited(record.fd) };
            // It is other records', too, so it is kept whatever becomes of the lease.
            match (fd, self.owner_of(&record)) {
                (Some(fd), Some(owner)) => {
                    let left = Left {
                        _listed: listed,
                        record,
                        fd,
                        owner,
                    };
                    self.take_one_over(left, &mut closed);
                }
                (fd, _) => {
                    drop(listed);
                    drop(fd);
                }
            }
        }
        self.look_at_all();
    }

    /// Looks which pools can be opened by now, of leases that wait for that: there was no room to attach to them, say.
    fn ask_for_pools(&mut self, now: Instant) {
        if !self.waits_for_pools() || self.asking {
            return;
        }
        if now.duration_since(self.since) >= LONGEST_TRY {
            // Who opens their files would be kept waiting for ever.
            self.postponed.clear();
            self.strays.clear();
            self.recovery_due = true;
            return;
        }
        let of_left = self.postponed.iter().map(|left| &left.record.pool);
        let all = of_left.chain(self.strays.iter().map(|stray| &stray.pool));
        let mut paths: Vec<PathBuf> = all.cloned().collect();
        paths.sort_unstable();
        paths.dedup();
        self.asking = true;
        self.workers.start(Haste::Whenever, move || {
            paths.retain(|path| can_be_opened(path));
            Report::Openable(paths)
        });
    }

    /// Goes on with what waited for these pools.
    fn go_on_with(&mut self, pools: &[PathBuf]) {
        self.asking = false;
        let mut closed = Vec::new();
        let here = |path: &PathBuf| pools.contains(path);
        let postponed: Vec<Left> = self
            .postponed
            .extract_if(.., |left| here(&left.record.pool))
            .collect();
        for left in postponed {
            self.take_one_over(left, &mut closed);
        }
        let strays: Vec<Stray> = self
            .strays
            .extract_if(.., |stray| here(&stray.pool))
            .collect();
        for stray in strays {
            self.adopt_one(stray);
        }
    }

    /// Who opened one of the files that were taken over was announced to the dead: all are looked at.
    fn look_at_all(&mut self) {
        let due = Instant::now().checked_sub(self.look_after());
        self.looked_at = due.unwrap_or(self.looked_at);
    }

    /// Takes over what a monitor held that was killed with its standby.
    pub(super) fn adopt(&mut self, after_another: bool) {
        let places = self.places.clone();
        let find = move || {
            let shared = after_another.then(|| shared::find(&places));
            Report::Found(adopt::find(&places), shared.unwrap_or_default())
        };
        self.adopting = true;
        self.workers.start(Haste::Whenever, find);
    }

    fn adopt_one(&mut self, stray: Stray) {
        // A user may have several monitors, with directories of their own: what one of them knows is its own.
        if lease::is_watched(stray.fd.as_fd()) {
            return;
        }
        let Ok(stat) = rustix::fs::fstat(stray.fd.as_fd()) else {
            return;
        };
        let id = (stat.st_dev, stat.st_ino);
        if self.ending || self.held.values().any(|entry| entry.held.id == id) {
            return;
        }
        let pool = match self.pool(&stray.pool) {
            Err(Refused::Pool(errno)) if errno != Errno::NOENT => {
                self.strays.push(stray);
                return;
            }
            Err(_) => return,
            Ok(pool) => pool,
        };
        let owner = self.owner_with(Some(stray.pid), || Ok(stray.life));
        // What the program said is forgotten. This publishes too little of a living one, never too much;
        // and a program asks for `O_APPEND` itself when it finds its file taken away.
        let Ok(owner) = owner else {
            return;
        };
        let terms = Terms {
            file: stray.file,
            slot: stray.slot,
            mode: Mode::Atomic,
            restore_append: false,
            declared: false,
            owner: Arc::clone(&owner),
        };
        let thread = self.signals.owner();
        if let Ok(held) = Held::take_over(stray.fd, pool, terms, id, thread) {
            self.standby.ensure(&self.records);
            self.keep(held, owner);
        }
    }

    /// Goes on with a lease, or keeps it until its pool can be opened. Nobody asks twice for those that are `closed`.
    fn take_one_over(&mut self, left: Left, closed: &mut Vec<PathBuf>) {
        let path = &left.record.pool;
        let opened = if closed.contains(path) {
            Err(Refused::Pool(Errno::AGAIN))
        } else {
            self.pool(path)
        };
        let pool = match opened {
            Err(Refused::Pool(errno)) if errno != Errno::NOENT => {
                closed.push(path.clone());
                self.postponed.push(left);
                return;
            }
            pool => pool.ok(),
        };
        let (Some(id), Some(pool), Some(mode)) = (left.id(), pool, mode_of(left.record.mode))
        else {
            return;
        };
        // A declared file may have several.
        let is_known = |entry: &Entry| entry.held.id == id && !entry.held.is_declared();
        if self.held.values().any(is_known) {
            return;
        }
        let Left {
            _listed: listed,
            record,
            fd,
            owner,
        } = left;
        let terms = Terms {
            file: FileRef::from_id(record.file),
            slot: record.slot,
            mode,
            restore_append: record.restore_append,
            declared: record.declared,
            owner: Arc::clone(&owner),
        };
        if let Ok(held) = Held::take_over(fd, pool, terms, id, self.signals.owner()) {
            // While it waited its program may have died, and been forgotten.
            if !self.owners.iter().any(|known| Arc::ptr_eq(known, &owner)) {
                self.owners.push(Arc::clone(&owner));
            }
            self.insert(record.number, listed, held, owner);
        }
    }

    fn owner_of(&mut self, lease: &LeaseRecord) -> Option<Arc<Owner>> {
        let known = |owner: &&Arc<Owner>| owner.life.raw() == lease.life;
        if let Some(owner) = self.owners.iter().find(known) {
            return Some(Arc::clone(owner));
        }
        // SAFETY: it is named by all leases of one process, and taken over with the first.
        let life = unsafe { Fd::inherited(lease.life) }?;
        let pid = (lease.pid > 0).then_some(lease.pid);
        let owner = Owner::new(life, pid);
        self.owners.push(Arc::clone(&owner));
        Some(owner)
    }

    /// Gives a lease of the asking program up; the answer comes when its duplicate is closed.
    pub(super) fn release(&mut self, connection: Fd, number: u64, ino: u64) {
        let owner = peer_of(&connection).unwrap_or(None);
        let its = |entry: &&Entry| entry.owner.pid == owner && entry.held.id.1 == ino;
        let known = self.held.get(&number).filter(its).map(|_| number);
        let number = known.or_else(|| self.over(owner, ino));
        if let Some(number) = number
            && self.is_last_of_shared(number)
        {
            return self.end_sharing(connection, number);
        }
        match number.and_then(|number| self.held.remove(&number)) {
            Some(entry) => {
                // Whoever looks at it just now has a reference. The description may have a new lease before that
                // goes, which is not to be given up with it. Who takes the file away does so himself, in his order.
                if entry.held.is_over() && !entry.breaking {
                    entry.held.give_up();
                }
                entry.held.answer_when_released(connection);
            }
            None => {
                let answer = match self.postponed_of(owner, ino) {
                    // It has published the file itself, so nothing waits for the pool any more.
                    Some(nth) => {
                        let left = self.postponed.swap_remove(nth);
                        lease::give_up(left.fd.as_fd());
                        Answer::yes()
                    }
                    None => Refused::NotUnderstood.answer(),
                };
                wire::answer(&connection, &answer);
            }
        }
    }

    /// Whether nobody else has a shared file staged, which is not over yet.
    fn is_last_of_shared(&self, number: u64) -> bool {
        let Some(entry) = self.held.get(&number) else {
            return false;
        };
        let beside = |(other, theirs): (&u64, &Entry)| {
            *other != number && theirs.held.id == entry.held.id && theirs.held.is_staged()
        };
        entry.held.is_shared() && !entry.held.is_over() && !self.held.iter().any(beside)
    }

    /// The last program gives a shared file back: publishes the rest, and answers when the duplicate is closed.
    fn end_sharing(&mut self, connection: Fd, number: u64) {
        let Some(entry) = self.held.get_mut(&number) else {
            return;
        };
        entry.held.answer_when_released(connection);
        // A worker that has to do with it reports first.
        if !entry.breaking {
            self.give_seat_back(number);
        }
    }

    /// The last seat ends the staging, any other one just goes.
    fn give_seat_back(&mut self, number: u64) {
        if !self.is_last_of_shared(number) {
            self.held.remove(&number);
            return;
        }
        let Some(entry) = self.held.get_mut(&number) else {
            return;
        };
        let held = Arc::clone(&entry.held);
        entry.again_at = None;
        entry.breaking = true;
        self.breaks += 1;
        self.workers.start(Haste::Awaited, move || {
            let done = held.take_away().is_ok();
            Report::Taken { number, done }
        });
    }

    /// Whether somebody stages a file whose pool cannot be opened yet.
    pub(super) fn is_postponed(&self, id: (u64, u64)) -> bool {
        self.postponed.iter().any(|left| left.id() == Some(id))
    }

    fn postponed_of(&self, owner: Option<i32>, ino: u64) -> Option<usize> {
        let its = |left: &Left| left.owner.pid == owner && left.id().is_some_and(|id| id.1 == ino);
        self.postponed.iter().position(its)
    }

    /// A lease of a program on a file whose staging is over. It has given us no number for one that was
    /// adopted.
    fn over(&self, owner: Option<i32>, ino: u64) -> Option<u64> {
        let its =
            |entry: &Entry| owner.is_some() && entry.owner.pid == owner && entry.held.id.1 == ino;
        let over = |entry: &Entry| its(entry) && entry.held.is_over();
        let mut all = self.held.iter();
        all.find(|(_, entry)| over(entry))
            .map(|(number, _)| *number)
    }

    /// Publishes a file now, durably. The answer comes when it is done; it says whether there was one.
    pub(super) fn publish(&self, connection: Fd, id: (u64, u64)) {
        let same = |entry: &&Entry| entry.held.id == id && entry.held.is_staged();
        let found = self.held.values().find(same);
        let Some(held) = found.map(|entry| Arc::clone(&entry.held)) else {
            let answer = if self.is_postponed(id) {
                Refused::Pool(Errno::AGAIN).answer()
            } else {
                Answer::yes()
            };
            wire::answer(&connection, &answer);
            return;
        };
        self.workers.start(Haste::Awaited, move || {
            let answer = match held.flush() {
                Ok(()) => Answer {
                    value: 1,
                    ..Answer::yes()
                },
                Err(error) => Refused::Pool(error.errno()).answer(),
            };
            drop(held);
            wire::answer(&connection, &answer);
            Report::Nothing
        });
    }

    /// Says how long a file is with what is staged of it, and when it was written. Of one that is not staged, the kernel
    /// knows.
    pub(super) fn look(&self, connection: &Fd, id: (u64, u64)) {
        let its = self.held.values().filter(|entry| entry.held.id == id);
        let seen = its.map(|entry| &entry.held).find_map(|held| held.seen());
        let answer = match seen {
            Some((size, modified)) => {
                let mut answer = Answer {
                    value: size,
                    ..Answer::yes()
                };
                answer.path.push_number(modified);
                answer
            }
            None => Refused::NotUnderstood.answer(),
        };
        wire::answer(connection, &answer);
    }

    /// The open pool of a path.
    fn pool(&mut self, path: &Path) -> Result<Arc<OpenPool>, Refused> {
        let known = self.pools.iter_mut().find(|(pool, _)| pool.path == path);
        if let Some((pool, used_at)) = known
            && pool.is_current()
            && pool.is_sound()
        {
            *used_at = Instant::now();
            return Ok(Arc::clone(pool));
        }
        self.pools.retain(|(pool, _)| pool.path != path);
        let pool = OpenPool::open(path).map_err(|error| Refused::Pool(errno_of(&error)))?;
        let pool = Arc::new(pool);
        self.pools.push((Arc::clone(&pool), Instant::now()));
        Ok(pool)
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
        let known = |owner: &&Arc<Owner>| pid.is_some() && owner.pid == pid;
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
        mode: mode_number(terms.mode),
        restore_append: terms.restore_append,
        declared: held.is_declared(),
        pool: held.pool.path.clone(),
    })
}

fn can_be_opened(pool: &Path) -> bool {
    OpenPool::open(pool).map(OpenPool::close).is_ok()
}

/// A process of another namespace has no number here and gets an owner per file.
fn peer_of(connection: &Fd) -> Result<Option<i32>, Errno> {
    let peer = socket_peercred(connection.as_fd())?;
    let pid = peer.pid.as_raw_nonzero().get();
    Ok((pid > 0).then_some(pid))
}

/// Publishes files that are still held, if that is due. Tells those whose programs have left the pool without a word: their
/// slot is free, though the process may live, as after an `exec` that nobody saw.
fn age(all: &[Aging], publish: bool) -> Aged {
    let mut living: Vec<(*const OpenPool, Vec<u32>)> = Vec::new();
    let mut known: BTreeMap<i32, Option<OpenFiles>> = BTreeMap::new();
    let mut aged = Aged::default();
    let mut due = Vec::new();
    for (number, held, pid) in all {
        let Some(held) = held.upgrade() else {
            continue;
        };
        let pool = Arc::as_ptr(&held.pool);
        if !living.iter().any(|(known, _)| *known == pool) {
            living.push((pool, held.pool.living_slots()));
        }
        let lives = living
            .iter()
            .any(|(known, slots)| *known == pool && slots.contains(&held.terms.slot));
        let mut open_files = || {
            let of_program = known.entry((*pid)?);
            of_program
                .or_insert_with_key(|pid| open::open_files(*pid))
                .clone()
        };
        // What could not be published now is tried again at the next look, and at the break.
        if !lives {
            aged.left.push(*number);
        } else if held.is_left(&mut open_files) {
            aged.lost.push(*number);
        } else {
            due.push((held.pool.is_slow(), *number, Arc::downgrade(&held)));
        }
    }
    due.sort_by_key(|(slow, ..)| *slow);
    // Those on slow media one by one.
    let groups = due.chunk_by(|one, next| !one.0 && !next.0);
    for here in groups.flat_map(|files| files.chunks(MANY)) {
        let here = here.iter();
        let here = here.filter_map(|(_, number, held)| Some((*number, held.upgrade()?)));
        let (numbers, files): (Vec<u64>, Vec<Arc<Held>>) = here.unzip();
        if publish {
            held::publish_together(&files);
        }
        let ended = numbers
            .iter()
            .zip(&files)
            .filter(|(_, held)| held.is_over());
        aged.ended.extend(ended.map(|(number, _)| number));
    }
    aged
}

fn answer_of(found: Result<PathBuf, NoPool>) -> Answer {
    let refused = match found {
        Ok(path) => {
            let mut answer = Answer::yes();
            answer.path.push(path.as_os_str().as_bytes());
            if answer.path.as_c_str().is_some() {
                return answer;
            }
            Refused::NoPlace(Errno::NAMETOOLONG)
        }
        Err(NoPool::Medium(_)) => Refused::Medium,
        Err(NoPool::NoMount) => Refused::NoPlace(Errno::NODEV),
        Err(NoPool::Place { errno, .. } | NoPool::Unlisted { errno, .. }) => {
            Refused::NoPlace(errno)
        }
        Err(NoPool::NotPrivate { .. }) => Refused::NoPlace(Errno::PERM),
        Err(NoPool::Copy { .. }) => Refused::NoPlace(Errno::NOTUNIQ),
        Err(NoPool::Pool { error, .. }) => Refused::Pool(errno_of(&error)),
    };
    refused.answer()
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
