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
//! whose monitor was killed with its standby: a file that is barred is looked for in the pools, too. They go on
//! without a monitor, but nobody publishes for them. So a monitor that comes after one that was killed looks for
//! files that are shared, and takes them away: their programs ask it for a seat at their next call, and get one,
//! as a file that is shared is not barred.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use adit_pool::{FileName, PoolFile, SHARED};
use rustix::fd::AsFd as _;
use rustix::fs::{Mode, OFlags};

use super::client::Refused;
use super::held::{self, Held, OpenPool};
use super::leases::{Leases, Report};
use super::workers::Haste;
use crate::pools::{Found, Places};
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
    /// But not these: they were shared when we came.
    free: BTreeSet<FileId>,
}

impl Barred {
    /// Somebody before us may have known of some.
    pub(super) fn be_unsure(&mut self) {
        self.unsure = true;
    }

    /// It was found shared, and whoever bars it asks us.
    fn was_shared(&mut self, id: FileId) {
        if !self.files.contains(&id) && self.free.len() < MOST {
            self.free.insert(id);
        }
    }

    fn add(&mut self, id: FileId) {
        self.free.remove(&id);
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
        !self.files.contains(&id) && (!self.unsure || self.free.contains(&id))
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

/// A file that programs share which no monitor knows, by a descriptor that opens it for nothing.
pub(super) struct Shared {
    pool: PathBuf,
    fd: Fd,
    id: FileId,
}

/// Looks for them in all pools. What cannot be looked at is passed over.
pub(super) fn find(places: &Places) -> Vec<Shared> {
    let mut found = Vec::new();
    for pool in places.pools() {
        let _ = find_in(&pool, &mut found);
    }
    found
}

fn find_in(found: &Found, all: &mut Vec<Shared>) -> adit_pool::Result<()> {
    let pool = PoolFile::open_read_only(&found.path)?;
    if !pool.anything_staged() {
        return Ok(());
    }
    for file in pool.files()? {
        if pool.version(file)? & SHARED == 0 {
            continue;
        }
        let Ok(name) = pool.file_name(file) else {
            continue;
        };
        if found.only.is_none_or(|device| device == name.device)
            && let Some((fd, id)) = pinned(&name)
        {
            let pool = found.path.clone();
            all.push(Shared { pool, fd, id });
        }
    }
    Ok(())
}

/// The file of this name, if it still is the one that was staged.
fn pinned(name: &FileName) -> Option<(Fd, FileId)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(name.path.as_slice(), flags, Mode::empty()).ok()?;
    let fd = Fd::new(fd);
    let stat = rustix::fs::fstat(fd.as_fd()).ok()?;
    let (handle_type, handle) = staged::handle_of(fd.as_fd()).ok()?;
    let same = (handle_type, &handle) == (name.handle_type, &name.handle);
    (same && stat.st_dev == name.device).then_some((fd, (stat.st_dev, stat.st_ino)))
}

impl Leases {
    /// Takes files away that programs share whose monitor was killed with its standby.
    pub(super) fn end_shared(&mut self, found: Vec<Shared>) {
        for shared in &found {
            self.barred.was_shared(shared.id);
        }
        if found.is_empty() {
            return;
        }
        self.workers.start(Haste::Whenever, move || {
            for Shared { pool, fd, .. } in found {
                if let Ok(pool) = OpenPool::open(&pool) {
                    // What cannot be published now its programs publish themselves, as before.
                    let _ = held::end_unknown(&pool, fd.as_fd());
                    pool.close();
                }
            }
            Report::Nothing
        });
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_shared_is_not_barred_until_somebody_bars_it() {
        let mut barred = Barred::default();
        assert!(barred.allows((1, 1)));
        barred.add((1, 1));
        barred.be_unsure();
        for (id, is_free) in [((1, 1), false), ((1, 2), true)] {
            assert!(!barred.allows(id));
            barred.was_shared(id);
            assert_eq!(barred.allows(id), is_free, "{id:?}");
        }
        barred.add((1, 2));
        assert!(!barred.allows((1, 2)));
        barred.was_shared((1, 2));
        assert!(!barred.allows((1, 2)), "told before it was found");
    }
}
