//! Declared files: those that several programs may have staged at once.
//!
//! Of a file in a directory that its user has declared the first program has the lease, as of any other.
//! When somebody opens the file, it is not taken away, but *shared*: whatever may be published is, every
//! program that opens the file for writing under the same declaration gets a seat beside the first, and
//! nobody has a lease. What ends that is the last close, a death, or a program that *bars* the file.
//!
//! **Who bars it** is a program of ours whose description goes to the kernel: it maps the file, hands it to
//! a child, has no room for it. From then on the kernel may write to the file, so nobody stages it. How long
//! such a description lives nobody can see; but nobody gets the lease while it does. So a file is barred
//! until somebody gets the lease.
//!
//! A monitor that took over, or comes after one that was killed, does not know which files are barred. Then
//! a lease is the only way in for those that nobody has staged. Nor does it know what programs have staged
//! whose monitor was killed with its standby: a file that is barred is looked for in the pools, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::fd::AsFd as _;

use super::client::Refused;
use super::held::{self, Held, OpenPool};
use super::leases::{Leases, Report};
use super::workers::Haste;
use crate::pools::Places;
use crate::registry::sys::Fd;
use crate::registry::wire::{self, Answer};
use crate::staged;

/// Files that are remembered as barred. Beyond, all are that nobody has staged.
const MOST: usize = 1 << 16;

/// Device and inode number.
type FileId = (u64, u64);

/// Files that the kernel may be writing to, for a program that declared them.
#[derive(Debug, Default)]
pub(super) struct Barred {
    files: BTreeSet<FileId>,
    /// There may be others.
    unsure: bool,
}

impl Barred {
    /// Somebody before us may have known of some.
    pub(super) fn be_unsure(&mut self) {
        self.unsure = true;
    }

    fn add(&mut self, id: FileId) {
        if self.files.len() < MOST {
            self.files.insert(id);
        } else {
            self.unsure = true;
        }
    }

    /// Nobody else has it open: somebody got the lease.
    pub(super) fn clear(&mut self, id: FileId) {
        self.files.remove(&id);
    }

    /// Whether a file may be staged that others have open.
    pub(super) fn allows(&self, id: FileId) -> bool {
        !self.unsure && !self.files.contains(&id)
    }
}

/// Ends what programs have staged whose monitor was killed with its standby: nobody has told us of them.
fn end_unknown(places: &Places, fd: &Fd) -> staged::Result<()> {
    for pool in places.pools() {
        if let Ok(pool) = OpenPool::open(&pool.path) {
            let ended = held::end_unknown(&pool, fd.as_fd());
            pool.close();
            ended?;
        }
    }
    Ok(())
}

impl Leases {
    /// Shares a leased file, because its own program opens it again. The answer comes when that is done.
    pub(super) fn share(&mut self, connection: Fd, number: u64) {
        let declared = |held: &Arc<Held>| held.is_declared() && !held.is_over();
        let held = self.held_of(&connection, number).filter(declared);
        let Some(held) = held else {
            wire::answer(&connection, &Refused::NotUnderstood.answer());
            return;
        };
        self.workers.start(Haste::Awaited, move || {
            let answer = match held.share_out() {
                Ok(()) => Answer::yes(),
                Err(error) => Refused::Pool(error.errno()).answer(),
            };
            drop(held);
            wire::answer(&connection, &answer);
            Report::Nothing
        });
    }

    /// From now on a leased file is taken away from its program when somebody opens it: a child has the
    /// description, too.
    pub(super) fn hold_alone(&mut self, connection: &Fd, number: u64) {
        let held = self.held_of(connection, number);
        let answer = match held.is_some_and(|held| held.undeclare()) {
            true => Answer::yes(),
            false => Refused::NotUnderstood.answer(),
        };
        wire::answer(connection, &answer);
    }

    /// Takes a file away from all who have it staged, and lets nobody stage it who is not alone. The answer
    /// comes when everything is in the file.
    pub(super) fn bar(&mut self, connection: Fd, along: Option<Fd>) {
        let file = along.and_then(|fd| Some((rustix::fs::fstat(fd.as_fd()).ok()?, fd)));
        let Some((stat, fd)) = file else {
            wire::answer(&connection, &Refused::NotUnderstood.answer());
            return;
        };
        let id = (stat.st_dev, stat.st_ino);
        self.barred.add(id);
        let (numbers, files) = self.take_all_of(id);
        let unknown = self.barred.unsure.then(|| self.places.clone());
        if files.is_empty() && unknown.is_none() {
            wire::answer(&connection, &Answer::yes());
            return;
        }
        self.workers.start(Haste::Awaited, move || {
            let mut ended = files.iter().try_for_each(|held| held.take_away());
            drop(files);
            if let Some(places) = unknown.filter(|_| ended.is_ok()) {
                ended = end_unknown(&places, &fd);
            }
            drop(fd);
            let answer = match &ended {
                Ok(()) => Answer::yes(),
                Err(error) => Refused::Pool(error.errno()).answer(),
            };
            wire::answer(&connection, &answer);
            Report::AllTaken {
                numbers,
                done: ended.is_ok(),
            }
        });
    }
}
