//! What another monitor has left: leases that it wrote down for its successor, and strays that nobody knows. Those whose
//! pools cannot be opened yet wait for that.
//!
//! # Safety
//!
//! Descriptors are taken over from a monitor that is gone. The invariant: what it wrote down names
//! each of them, and they are taken once, before this process opens others in their place.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use adit_pool::FileRef;
use rustix::fd::AsFd as _;
use rustix::io::Errno;

use super::{Entry, LONGEST_TRY, Leases, Report, can_be_opened};
use crate::monitor::adopt::{self, Stray};
use crate::monitor::client::{Refused, mode_of};
use crate::monitor::held::{Held, Owner, Terms};
use crate::monitor::lease;
use crate::monitor::records::{LeaseRecord, Listed};
use crate::monitor::shared;
use crate::monitor::workers::Haste;
use crate::registry::sys::{Fd, insist};
use crate::staged::Mode;

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
    pub(super) fn ask_for_pools(&mut self, now: Instant) {
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
    pub(super) fn go_on_with(&mut self, pools: &[PathBuf]) {
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
        self.workers.start(Haste::Whenever, find);
    }

    pub(super) fn adopt_one(&mut self, stray: Stray) {
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

    /// Whether somebody stages a file whose pool cannot be opened yet.
    pub(in crate::monitor) fn is_postponed(&self, id: (u64, u64)) -> bool {
        self.postponed.iter().any(|left| left.id() == Some(id))
    }

    /// Gives up a lease whose pool cannot be opened yet, if there is one. Its program has published the file itself, so
    /// nothing waits for the pool any more.
    pub(super) fn give_up_postponed(&mut self, owner: Option<i32>, ino: u64) -> bool {
        let its = |left: &Left| left.owner.pid == owner && left.id().is_some_and(|id| id.1 == ino);
        let Some(nth) = self.postponed.iter().position(its) else {
            return false;
        };
        lease::give_up(self.postponed.swap_remove(nth).fd.as_fd());
        true
    }
}
