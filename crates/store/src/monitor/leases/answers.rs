//! What programs ask for: a lease, to give one back, to publish a file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_pool::FileRef;
use rustix::fd::AsFd as _;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Entry, Leases, MOST, Report, errno_of, peer_of};
use crate::monitor::client::{Refused, mode_of};
use crate::monitor::has_room_for;
use crate::monitor::held::{Held, OpenPool, Terms};
use crate::monitor::lease;
use crate::monitor::workers::Haste;
use crate::registry::sys::Fd;
use crate::registry::wire::{self, Answer, Staged};
use crate::staged::Mode;

/// A lease that a program asks for.
pub(super) struct Wanted {
    fd: Fd,
    /// Device and inode number.
    id: (u64, u64),
    pool: PathBuf,
    file: FileRef,
    slot: u32,
    mode: Mode,
    restore_append: bool,
    declared: bool,
}

impl Leases {
    /// Takes a lease, and answers: at once, or when the pool is open.
    pub(in crate::monitor) fn acquire(
        &mut self,
        connection: Fd,
        staged: &Staged<'_>,
        along: Option<Fd>,
    ) {
        let wanted = match self.wanted(staged, along) {
            Ok(wanted) => wanted,
            Err(refused) => {
                wire::answer(&connection, &refused.answer());
                return;
            }
        };
        match self.open_pool(&wanted.pool) {
            Some(pool) => self.grant(&connection, wanted, pool),
            None => {
                self.open_soon(&wanted.pool);
                self.asking_for_pools.push((connection, wanted));
            }
        }
    }

    /// Goes on with those that have waited for a pool, in the order in which they came.
    pub(super) fn answer_those_asking(
        &mut self,
        path: &Path,
        opened: Result<Arc<OpenPool>, Errno>,
    ) {
        // What is asked for may be in another pool, which has its place by now.
        let is_current =
            |pool: Arc<OpenPool>| pool.is_current().then_some(pool).ok_or(Errno::STALE);
        let opened = opened.and_then(is_current);
        let all = core::mem::take(&mut self.asking_for_pools);
        let (these, others): (Vec<_>, _) =
            all.into_iter().partition(|(_, wanted)| wanted.pool == path);
        self.asking_for_pools = others;
        for (connection, wanted) in these {
            match &opened {
                Ok(pool) => self.grant(&connection, wanted, Arc::clone(pool)),
                Err(errno) => {
                    wire::answer(&connection, &Refused::Pool(*errno).answer());
                }
            }
        }
    }

    fn grant(&mut self, connection: &Fd, wanted: Wanted, pool: Arc<OpenPool>) {
        match self.take(connection, wanted, pool) {
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

    /// Whether no more files are taken.
    fn is_full(&self) -> bool {
        self.held.len() >= MOST || self.ending
    }

    /// What is asked for, where it is something that may be had.
    fn wanted(&self, staged: &Staged<'_>, along: Option<Fd>) -> Result<Wanted, Refused> {
        let fd = along.ok_or(Refused::NotUnderstood)?;
        let mode = mode_of(staged.mode).ok_or(Refused::NotUnderstood)?;
        if self.is_full() || !has_room_for(&fd) {
            return Err(Refused::TooMany);
        }
        let stat = rustix::fs::fstat(fd.as_fd()).map_err(Refused::Lease)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Refused::Lease(Errno::INVAL));
        }
        Ok(Wanted {
            fd,
            id: (stat.st_dev, stat.st_ino),
            pool: Path::new(OsStr::from_bytes(staged.pool)).to_owned(),
            file: FileRef::from_id(staged.file),
            slot: staged.slot,
            mode,
            restore_append: staged.restore_append,
            declared: staged.declared,
        })
    }

    fn take(
        &mut self,
        connection: &Fd,
        wanted: Wanted,
        pool: Arc<OpenPool>,
    ) -> Result<u64, Refused> {
        // While the pool was opened others may have come.
        if self.is_full() {
            return Err(Refused::TooMany);
        }
        let Wanted {
            fd, id, declared, ..
        } = wanted;
        let same = |entry: &&Entry| entry.held.id == id && entry.held.is_staged();
        let others: Vec<&Entry> = self.held.values().filter(same).collect();
        let beside = |other: &&Entry| {
            declared
                && other.held.is_shared()
                && other.held.pool.path == wanted.pool
                && other.held.terms.file == wanted.file
        };
        // The kernel would grant a second lease on the same description, and then take both at once.
        let joins = !others.is_empty();
        if !others.iter().all(beside) {
            return Err(Refused::Lease(Errno::BUSY));
        }
        if pool.has_for_another(wanted.file, fd.as_fd()) {
            return Err(Refused::Pool(Errno::STALE));
        }
        let incarnation = pool.incarnation(wanted.slot);
        let incarnation = incarnation.map_err(|error| Refused::Pool(errno_of(&error)))?;
        let owner = self.owner(connection).map_err(Refused::NoMonitor)?;
        let terms = Terms {
            file: wanted.file,
            slot: wanted.slot,
            incarnation,
            mode: wanted.mode,
            restore_append: wanted.restore_append,
            declared,
            owner: Arc::clone(&owner),
        };
        // From the first lease on there is somebody who would go on with it.
        self.standby.ensure(&self.records);
        let may_join = joins || declared && self.barred.allows(id);
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
        let (number, listed) = self.list(&held, &owner);
        if !listed.is_known() {
            // Where this monitor is killed nobody would let openers in. What the kernel has granted goes with `held`.
            return Err(Refused::TooMany);
        }
        self.insert(number, listed, held, owner);
        Ok(number)
    }

    /// Gives a lease of the asking program up; the answer comes when its duplicate is closed.
    pub(in crate::monitor) fn release(&mut self, connection: Fd, asked: u64, ino: u64) {
        let owner = peer_of(&connection).unwrap_or(None);
        let its = |entry: &&Entry| entry.owner.pid == owner && entry.held.id.1 == ino;
        let known = self.held.get(&asked).filter(its).map(|_| asked);
        let number = known.or_else(|| self.over(owner, ino));
        if let Some(number) = number
            && self.is_last_of_shared(number)
        {
            return self.end_sharing(connection, number);
        }
        match number.and_then(|number| self.held.remove(&number)) {
            Some(entry) => {
                entry.held.answer_when_released(connection);
                // Who takes the file away gives the lease up himself, in his order.
                if entry.breaking.is_none() {
                    self.give_up(&entry.held);
                }
            }
            None => {
                let answer = if self.give_up_postponed(owner, (asked, ino)) {
                    Answer::yes()
                } else {
                    Refused::NotUnderstood.answer()
                };
                wire::answer(&connection, &answer);
            }
        }
    }

    /// Gives a lease up if its file is not staged any more. Whoever looks at it just now has a reference. The description
    /// may have a new lease before that goes, which is not to be given up with it.
    fn give_up(&self, held: &Arc<Held>) {
        if held.is_known_to_be_over() {
            held.give_up();
        } else if held.is_forgotten() {
            let held = Arc::clone(held);
            self.workers.start(Haste::Awaited, move || {
                if held.is_over() {
                    held.give_up();
                }
                Report::Nothing
            });
        }
    }

    /// Whether nobody else has a file staged that is shared, or just being, and not over yet.
    fn is_last_of_shared(&self, number: u64) -> bool {
        let Some(entry) = self.held.get(&number) else {
            return false;
        };
        let beside = |(other, theirs): (&u64, &Entry)| {
            *other != number && theirs.held.id == entry.held.id && theirs.held.is_staged()
        };
        let over = entry.held.is_known_to_be_over();
        entry.held.is_being_shared() && !over && !self.held.iter().any(beside)
    }

    /// The last program gives a shared file back: publishes the rest, and answers when the duplicate is closed.
    fn end_sharing(&mut self, connection: Fd, number: u64) {
        let Some(entry) = self.held.get_mut(&number) else {
            return;
        };
        entry.held.answer_when_released(connection);
        // A worker that has to do with it reports first.
        if entry.breaking.is_none() {
            self.give_seat_back(number);
        }
    }

    /// The last seat ends the staging, any other one just goes.
    pub(super) fn give_seat_back(&mut self, number: u64) {
        if !self.is_last_of_shared(number) {
            self.held.remove(&number);
            return;
        }
        let Some(entry) = self.held.get_mut(&number) else {
            return;
        };
        let held = Arc::clone(&entry.held);
        entry.again_at = None;
        entry.breaking = Some(Haste::Awaited);
        self.workers.start(Haste::Awaited, move || {
            let done = held.take_away().is_ok();
            Report::Taken { number, done }
        });
    }

    /// A lease of a program on a file whose staging is over. It has given us no number for one that was
    /// adopted.
    fn over(&self, owner: Option<i32>, ino: u64) -> Option<u64> {
        let its =
            |entry: &Entry| owner.is_some() && entry.owner.pid == owner && entry.held.id.1 == ino;
        let over = |entry: &Entry| its(entry) && entry.held.is_forgotten();
        let mut all = self.held.iter();
        all.find(|(_, entry)| over(entry))
            .map(|(number, _)| *number)
    }

    /// Publishes a file now, durably. The answer comes when it is done; it says whether there was one.
    pub(in crate::monitor) fn publish(&self, connection: Fd, id: (u64, u64)) {
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

    /// Gives a file back if everything is in it. The answer, when that is done, says whether it was.
    pub(in crate::monitor) fn give_back(&self, connection: Fd, id: (u64, u64)) {
        let same = |entry: &&Entry| entry.held.id == id && entry.held.is_staged();
        let Some(held) = self
            .held
            .values()
            .find(same)
            .map(|entry| Arc::clone(&entry.held))
        else {
            wire::answer(&connection, &Answer::yes());
            return;
        };
        self.workers.start(Haste::Awaited, move || {
            let given = held.give_back().is_ok();
            drop(held);
            let answer = Answer {
                value: given.into(),
                ..Answer::yes()
            };
            wire::answer(&connection, &answer);
            Report::Nothing
        });
    }

    /// Says how long a file is with what is staged of it, and when it was written. Of one that is not staged, the kernel
    /// knows.
    pub(in crate::monitor) fn look(&self, connection: &Fd, id: (u64, u64)) {
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
}
