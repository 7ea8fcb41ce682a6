//! What another monitor has left: leases that it wrote down for its successor, and strays that nobody knows. Those whose
//! pools cannot be opened yet wait for that.
//!
//! # Safety
//!
//! Descriptors are taken over from a monitor that is gone. The invariant: what it wrote down names
//! each of them, and they are taken once, before this process opens others in their place.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_pool::FileRef;
use rustix::fd::AsFd as _;
use rustix::io::Errno;

use super::{Entry, LONGEST_TRY, Leases, Report};
use crate::monitor::adopt::{self, Stray};
use crate::monitor::client::mode_of;
use crate::monitor::held::{Held, OpenPool, Owner, Terms};
use crate::monitor::lease;
use crate::monitor::records::{LeaseRecord, Listed};
use crate::monitor::shared;
use crate::monitor::workers::Haste;
use crate::registry::sys::{Fd, insist};
use crate::staged::Mode;

/// How long after the first look for leases that nobody knows the second one is.
const ONCE_MORE: Duration = Duration::from_secs(2);

/// How long requests wait at most while the pools of leases that are taken over are opened.
const TAKING_OVER: Duration = Duration::from_secs(2);

/// How often it is tried to open a pool that could not be opened for long.
const SELDOM: Duration = Duration::from_secs(2);

/// A lease that a dead monitor has left.
pub(super) struct Left {
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

    /// Whether it is no use to wait for its pool any longer. A seat of a shared file has no lease.
    fn waits_in_vain(&self) -> bool {
        let is_seat = self.record.declared;
        self.owner.has_ended() || !is_seat && !adopt::nobody_watches(&self.fd)
    }
}

impl Leases {
    /// Takes over what a dead monitor held: of the leases of one file the last one, the others were given
    /// up and not yet crossed out.
    pub(in crate::monitor) fn take_over(&mut self, mut found: Vec<(Listed, LeaseRecord)>) {
        found.sort_by_key(|(_, lease)| core::cmp::Reverse(lease.number));
        if let Some((_, last)) = found.first() {
            // Far from what its programs may still remember of leases that it had given later.
            self.next = last.number.wrapping_add(1 << 32);
        }
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
                    self.open_soon(&left.record.pool);
                    self.postponed.push(left);
                }
                (fd, _) => {
                    drop(listed);
                    drop(fd);
                    self.barred.know_not_all();
                }
            }
        }
    }

    /// Whether requests have to wait: what they are about may be among the leases that are just being taken over. They do
    /// not wait for ever.
    pub(in crate::monitor) fn is_taking_over(&self) -> bool {
        let opens = |left: &Left| self.opening.contains(&left.record.pool);
        self.has_just_begun() && self.postponed.iter().any(opens)
    }

    /// Whether what it takes over may still be on its way.
    pub(in crate::monitor) fn has_just_begun(&self) -> bool {
        self.since.elapsed() < TAKING_OVER
    }

    /// Has the pools opened that leases wait for and that could not be opened before: there was no room to attach to them,
    /// say. After a while seldom, and for living programs alone.
    pub(super) fn ask_for_pools(&mut self, now: Instant) {
        if self.has_tried_for_long(now) {
            if now.duration_since(self.asked_for_pools_at) < SELDOM {
                return;
            }
            self.leave_to_recovery();
        }
        self.asked_for_pools_at = now;
        let of_left = self.postponed.iter().map(|left| &left.record.pool);
        let all = of_left.chain(self.strays.iter().map(|stray| &stray.pool));
        let paths: BTreeSet<PathBuf> = all.cloned().collect();
        for path in paths {
            self.open_soon(&path);
        }
    }

    fn has_tried_for_long(&self, now: Instant) -> bool {
        #[cfg(test)]
        if super::planted::has_tried() {
            return true;
        }
        now.duration_since(self.since) >= LONGEST_TRY
    }

    /// Leaves to a recovery what dead programs had leased, which it could not open for as long as a child of theirs has the
    /// lease; and what nobody waits for here, as the lease is not there any more, or another monitor's. Those of the living
    /// stay. They write on, and publish it some time, over what others have written by then: so nobody is let in before the
    /// kernel loses patience, and the pool may be opened until then.
    fn leave_to_recovery(&mut self) {
        self.give_up_in_vain(|_| true);
    }

    /// Gives up what it is no use to wait for of what waits for these pools.
    fn give_up_in_vain(&mut self, is_its: impl Fn(&Path) -> bool) {
        let left_in_vain = |left: &mut Left| is_its(&left.record.pool) && left.waits_in_vain();
        let postponed = self.postponed.extract_if(.., left_in_vain);
        let postponed = postponed.map(|left| left.fd);
        let waits_in_vain =
            |stray: &Stray| lease::has_ended(&stray.life) || !adopt::nobody_watches(&stray.fd);
        let stray_in_vain = |stray: &mut Stray| is_its(&stray.pool) && waits_in_vain(stray);
        let strays = self.strays.extract_if(.., stray_in_vain);
        for fd in postponed.chain(strays.map(|stray| stray.fd)) {
            if adopt::nobody_watches(&fd) {
                lease::give_up(fd.as_fd());
            }
            self.recovery_due = true;
            // Where the recovery cannot open the pool either, it has the file still.
            self.barred.know_not_all();
        }
        if self.ending {
            // Whoever comes next finds them as strays.
            self.postponed.retain(|left| !is_its(&left.record.pool));
            self.strays.retain(|stray| !is_its(&stray.pool));
        }
    }

    /// Goes on with what waited for a pool. Where there is none any more, nothing is left to be published of the dead, and
    /// whoever opens a file of theirs must not wait for a child that has the description. The living have it mapped still,
    /// and publish it themselves.
    pub(super) fn go_on_with(&mut self, path: &Path, opened: &Result<Arc<OpenPool>, Errno>) {
        let pool = match opened {
            Ok(pool) => pool,
            Err(Errno::NOENT) => return self.give_up_in_vain(|pool| pool == path),
            Err(_) => return,
        };
        let its_left = |left: &mut Left| left.record.pool == path;
        let postponed: Vec<Left> = self.postponed.extract_if(.., its_left).collect();
        let its_stray = |stray: &mut Stray| stray.pool == path;
        let strays: Vec<Stray> = self.strays.extract_if(.., its_stray).collect();
        for left in postponed {
            self.take_one_over(left, Arc::clone(pool));
        }
        for stray in strays {
            self.adopt_one(stray, Arc::clone(pool));
        }
        self.look_at_all();
    }

    /// Who opened one of the files that were taken over was announced to the dead: all are looked at.
    pub(super) fn look_at_all(&mut self) {
        let due = Instant::now().checked_sub(self.look_after());
        self.looked_at = due.unwrap_or(self.looked_at);
    }

    /// Takes over what a monitor held that was killed with its standby.
    pub(in crate::monitor) fn adopt(&mut self, after_another: bool) {
        let places = self.places.clone();
        let find = move || {
            let shared = after_another.then(|| shared::find(&places));
            Report::Found(adopt::find(&places), shared.unwrap_or_default())
        };
        self.adopting = true;
        self.adopts_again = after_another.then(|| Instant::now() + ONCE_MORE);
        self.workers.start(Haste::Whenever, find);
    }

    /// At the first look a pool may have been in somebody's hand, or the dead not dead in every respect. Who opens a file of
    /// which nobody knows waits as long as the kernel lets him.
    pub(super) fn adopt_once_more(&mut self, now: Instant) {
        let is_due = |at: &mut Instant| now >= *at && !self.adopting;
        if self.adopts_again.take_if(is_due).is_some() {
            let places = self.places.clone();
            let find = move || Report::Found(adopt::find(&places), Vec::new());
            self.adopting = true;
            self.workers.start(Haste::Whenever, find);
        }
    }

    /// Adopts what was found, when its pool is open.
    pub(super) fn adopt_all(&mut self, found: Vec<Stray>) {
        for stray in found {
            match self.open_pool(&stray.pool) {
                Some(pool) => self.adopt_one(stray, pool),
                None => {
                    self.open_soon(&stray.pool);
                    self.strays.push(stray);
                    // There is no record of it.
                    self.barred.know_not_all();
                }
            }
        }
    }

    fn adopt_one(&mut self, stray: Stray, pool: Arc<OpenPool>) {
        // Another monitor may have it by now, or nobody.
        if !adopt::nobody_watches(&stray.fd) {
            return;
        }
        let Ok(stat) = rustix::fs::fstat(stray.fd.as_fd()) else {
            return;
        };
        let id = (stat.st_dev, stat.st_ino);
        if self.ending || self.held.values().any(|entry| entry.held.id == id) {
            return;
        }
        let owner = self.owner_with(Some(stray.pid), || Ok(stray.life));
        // What the program said is forgotten. This publishes too little of a living one, never too much;
        // and a program asks for `O_APPEND` itself when it finds its file taken away.
        let Ok(owner) = owner else {
            return;
        };
        let terms = Terms {
            file: stray.file,
            slot: stray.slot,
            incarnation: stray.incarnation,
            mode: Mode::Atomic,
            restore_append: false,
            declared: false,
            owner: Arc::clone(&owner),
        };
        let thread = self.signals.owner();
        if let Ok(held) = Held::take_over(stray.fd, pool, terms, id, thread) {
            self.standby.ensure(&self.records);
            // Its program stages it already, whether or not it can be written down.
            let (number, listed) = self.list(&held, &owner);
            if !listed.is_known() {
                self.barred.know_not_all();
            }
            self.insert(number, listed, held, owner);
            self.bury_one(number);
        }
    }

    /// Goes on with a lease.
    fn take_one_over(&mut self, left: Left, pool: Arc<OpenPool>) {
        let (Some(id), Some(mode)) = (left.id(), mode_of(left.record.mode)) else {
            return self.barred.know_not_all();
        };
        // A declared file may have several.
        let is_known = |entry: &Entry| entry.held.id == id && !entry.held.is_declared();
        if self.held.values().any(is_known) {
            return;
        }
        if pool.has_for_another(FileRef::from_id(left.record.file), left.fd.as_fd()) {
            // Its own pool was removed.
            self.postponed.push(left);
            return self.give_up_in_vain(|removed| removed == pool.path);
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
            incarnation: record.incarnation,
            mode,
            restore_append: record.restore_append,
            declared: record.declared,
            owner: Arc::clone(&owner),
        };
        let held = Held::take_over(fd, pool, terms, id, self.signals.owner());
        if held.is_err() {
            self.barred.know_not_all();
        }
        if let Ok(held) = held {
            if record.closed {
                held.close();
            }
            // While it waited its program may have died, and been forgotten.
            if !self.owners.iter().any(|known| Arc::ptr_eq(known, &owner)) {
                self.owners.push(Arc::clone(&owner));
            }
            self.insert(record.number, listed, held, owner);
            self.bury_one(record.number);
        }
    }

    /// Who has died before his lease was taken over is known to be dead before his file is touched: what he wrote to several
    /// is committed together.
    fn bury_one(&mut self, number: u64) {
        if let Some(entry) = self.held.get_mut(&number)
            && entry.owner.has_ended()
        {
            entry.dead_since.get_or_insert_with(Instant::now);
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

    /// Whether somebody stages a file whose pool cannot be opened yet.
    pub(in crate::monitor) fn is_postponed(&self, id: (u64, u64)) -> bool {
        self.postponed.iter().any(|left| left.id() == Some(id))
    }

    /// Whether one of those was closed by this program.
    pub(super) fn is_closed_and_postponed(&self, owner: Option<i32>) -> bool {
        let its = |left: &Left| left.record.closed && left.owner.pid == owner;
        self.postponed.iter().any(its)
    }

    /// Gives up a lease whose pool cannot be opened yet, if there is one. Its program has published the file itself, so
    /// nothing waits for the pool any more. It goes by the number that the dead monitor gave, which its successor keeps: two
    /// files of one program may have the same inode number, on two file systems.
    pub(super) fn give_up_postponed(
        &mut self,
        owner: Option<i32>,
        (number, ino): (u64, u64),
    ) -> bool {
        let its = |left: &Left| {
            left.record.number == number
                && left.owner.pid == owner
                && left.id().is_some_and(|id| id.1 == ino)
        };
        let Some(nth) = self.postponed.iter().position(its) else {
            return false;
        };
        lease::give_up(self.postponed.swap_remove(nth).fd.as_fd());
        true
    }
}
