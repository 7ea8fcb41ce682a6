//! Files whose program has died: committed for all, published one by one, and then the seats of the dead are cleared.

use std::sync::Arc;
use std::time::Instant;

use super::{Entry, Leases, Report};
use crate::monitor::Ready;
use crate::monitor::held::{self, Held, OpenPool};
use crate::monitor::workers::Haste;
use crate::recovery;

impl Leases {
    pub(super) fn is_bereft(&mut self, pool: &Arc<OpenPool>) {
        if !self.bereft.iter().any(|known| Arc::ptr_eq(known, pool)) {
            self.bereft.push(Arc::clone(pool));
        }
    }

    /// Clears the seats of the dead, pool by pool, when none of their files is held any more.
    pub(super) fn clear_seats(&mut self) {
        if self.recovering {
            return;
        }
        // What stays, for whatever reason, is tried again at the next death, or start;
        // `adit pool recover` says why.
        let is_clear = |pool| !self.holds_of_the_dead(Some(pool));
        if let Some(at) = self.bereft.iter().position(is_clear) {
            let pool = self.bereft.swap_remove(at);
            self.recovering = true;
            let places = self.places.clone();
            self.workers.start(Haste::Whenever, move || {
                // To look for it may take as long as the slowest disk that a list of pools is on.
                let within = places.file_system_of(&pool.path);
                let _ = recovery::recover_once_with(pool.stage().attachment(), within.as_ref());
                Report::Recovered
            });
        } else if self.may_recover() {
            self.recovery_due = false;
            let places = self.places.clone();
            self.recovering = true;
            self.workers.start(Haste::Whenever, move || {
                drop(recovery::recover_all(&places));
                Report::Recovered
            });
        }
    }

    /// Whether the recovery that is due can begin.
    pub(super) fn may_recover(&self) -> bool {
        self.recovery_due && !self.recovering && !self.holds_of_the_dead(None)
    }

    /// Whether files of dead programs are held, in this pool or in any.
    fn holds_of_the_dead(&self, pool: Option<&Arc<OpenPool>>) -> bool {
        let here = |entry: &Entry| pool.is_none_or(|pool| Arc::ptr_eq(&entry.held.pool, pool));
        let mut held = self.held.values();
        held.any(|entry| entry.dead_since.is_some() && here(entry))
    }

    /// Notices programs that have ended.
    pub(super) fn bury(&mut self, ready: &Ready) {
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
    /// is with its publication. Those of one pool at a time, which may take as long as its disk does: who opens a file of
    /// another pool does not wait for that.
    pub(super) fn commit_dead(&mut self) {
        let mut left: Vec<(u64, Arc<Held>)> = self
            .held
            .iter()
            .filter(|(_, entry)| {
                entry.dead_since.is_some() && !entry.held.is_orphaned() && entry.breaking.is_none()
            })
            .map(|(number, entry)| (*number, Arc::clone(&entry.held)))
            .collect();
        while let Some(pool) = left.first().map(|(_, held)| Arc::clone(&held.pool)) {
            let here = left.extract_if(.., |(_, held)| Arc::ptr_eq(&held.pool, &pool));
            let (numbers, files): (Vec<u64>, Vec<Arc<Held>>) = here.unzip();
            if self.committing.iter().any(|its| Arc::ptr_eq(its, &pool)) {
                continue;
            }
            if let [one] = &files[..] {
                one.orphan();
                continue;
            }
            self.committing.push(Arc::clone(&pool));
            self.workers.start(Haste::Awaited, move || {
                held::commit_together(&files);
                held::look_together(&files);
                Report::Committed(pool, numbers)
            });
        }
    }
}
