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
            let within = self.places.file_system_of(&pool.path);
            self.workers.start(Haste::Whenever, move || {
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
    /// is with its publication.
    pub(super) fn commit_dead(&mut self) {
        if self.committing {
            return;
        }
        let left = self.held.iter().filter(|(_, entry)| {
            entry.dead_since.is_some() && !entry.held.is_orphaned() && entry.breaking.is_none()
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
}
