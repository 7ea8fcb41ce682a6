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
//! Which files are barred is written down ([`super::records`]), so a standby that takes over knows it; and who
//! ends leaves it in the runtime directory for the next, as programs may be there still that nobody was told
//! to stay for. A monitor that comes after one that was killed with its standby does not know. Then a lease is
//! the only way in for a file that nobody has staged, once: who has got it was alone, and whoever bars the
//! file from then on says so.
//!
//! Nor does such a monitor know what programs have staged: a file that is barred is looked for in the pools,
//! too. They go on without a monitor, but nobody publishes for them. So it looks for files that are shared, and
//! takes them away: their programs ask it for a seat at their next call, and get one, as a file that is shared
//! is not barred.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_pool::{FileName, Pool, PoolFile, ReadOnlyMedium, SHARED};
use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::client::Refused;
use super::held::{self, Held, OpenPool};
use super::leases::{Leases, Report};
use super::records::{Listed, Record, Records};
use super::workers::Haste;
use crate::pools::{Found, Places};
use crate::registry::sys::{self, Fd};
use crate::registry::wire::{self, Answer};
use crate::staged::{self, Error};

/// Files that are remembered as barred. Beyond, all are that nobody has staged.
const MOST: usize = 1 << 15;

/// How long after it has begun to wait for somebody's lock a worker does so once more, which takes it two seconds: whoever
/// bars a file waits for the answer somewhat longer than both.
const PATIENCE: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(10);

/// Where a monitor that ends leaves what is barred.
const LEFT: &core::ffi::CStr = c"barred";

/// What a program leaves there that found no monitor to tell.
const UNTOLD: &core::ffi::CStr = c"untold";

/// For a program that nobody answers: whoever becomes the monitor shall know that it does not know all.
pub(super) fn tell_the_next(dir: &Fd) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    sys::open_at(dir, UNTOLD, flags, Mode::RUSR | Mode::WUSR).map(drop)
}

/// Device and inode number.
type FileId = (u64, u64);

/// No file, in place of all that the monitor could not know of.
const OTHERS: FileId = (0, 0);

/// Files that the kernel may be writing to, for a program that declared them.
#[derive(Debug)]
pub(super) struct Barred {
    files: BTreeMap<FileId, Listed>,
    records: Rc<Records>,
    /// There may be others,
    unsure: bool,
    /// but not these: somebody was alone with them since, or they were shared when we came.
    sure: BTreeSet<FileId>,
    /// Programs may have staged files that nobody has told us of.
    unknown: bool,
}

impl Barred {
    pub(super) fn new(records: Rc<Records>) -> Self {
        Self {
            files: BTreeMap::new(),
            records,
            unsure: false,
            sure: BTreeSet::new(),
            unknown: false,
        }
    }

    /// Somebody before us may have known of some.
    pub(super) fn be_unsure(&mut self) {
        self.unsure = true;
        self.records.be_unsure();
    }

    /// There may be files that a program has staged and of which neither we know nor will who takes over from us.
    pub(super) fn know_not_all(&mut self) {
        self.unknown = true;
        self.records.be_unknown();
    }

    /// Whether all that programs have staged is known.
    pub(super) fn knows_all(&self) -> bool {
        !self.unknown
    }

    /// It was found shared, and whoever bars it asks us.
    fn was_shared(&mut self, id: FileId) {
        if self.unsure && !self.files.contains_key(&id) && self.sure.len() < MOST {
            self.sure.insert(id);
        }
    }

    fn add(&mut self, id: FileId) {
        self.sure.remove(&id);
        if self.files.contains_key(&id) {
            return;
        }
        let listed = self.records.list(&Record::Barred(id.0, id.1));
        if self.files.len() < MOST && listed.is_known() {
            self.files.insert(id, listed);
        } else {
            self.be_unsure();
        }
    }

    /// Finds what programs have left that nobody answered.
    pub(super) fn find_untold(&mut self, dir: &Fd) {
        // It goes when it is known for whoever comes next.
        match sys::open_at(dir, UNTOLD, OFlags::RDONLY, Mode::empty()) {
            Err(Errno::NOENT) => {}
            _ => {
                self.be_unsure();
                let _ = rustix::fs::unlinkat(dir.as_fd(), UNTOLD, AtFlags::empty());
            }
        }
    }

    /// What the monitor before us has written down.
    pub(super) fn inherit(&mut self, listed: Listed, id: FileId) {
        self.files.insert(id, listed);
    }

    /// Nobody else has it open: somebody got the lease.
    pub(super) fn clear(&mut self, id: FileId) {
        self.files.remove(&id);
        if self.unsure && self.sure.len() < MOST {
            self.sure.insert(id);
        }
    }

    /// Whether a file may be staged that others have open.
    pub(super) fn allows(&self, id: FileId) -> bool {
        let unknown = self.unsure && !self.sure.contains(&id);
        !unknown && !self.files.contains_key(&id)
    }

    /// Leaves it to the next monitor; an error where that may come to believe that there is nothing.
    pub(super) fn leave(&self, dir: &Fd) -> Result<(), Errno> {
        let others = self.unsure.then_some(&OTHERS);
        let words = self.files.keys().chain(others);
        let words = words.flat_map(|(device, inode)| [device, inode]);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        if bytes.is_empty() {
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let left = sys::open_at(dir, LEFT, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::io::pwrite(left.as_fd(), &bytes, 0)? {
            len if len == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }

    /// Finds what a monitor has left that has ended.
    pub(super) fn find(&mut self, dir: &Fd) {
        let mut bytes = vec![0; (MOST + 1) * size_of::<FileId>()];
        let found = sys::open_at(dir, LEFT, OFlags::RDONLY, Mode::empty());
        let read = match found.and_then(|left| sys::read_full(&left, &mut bytes, 0)) {
            Ok(read) => read,
            Err(Errno::NOENT) => return,
            Err(_) => return self.be_unsure(),
        };
        for id in bytes[..read].chunks_exact(size_of::<FileId>()) {
            let word = |at: usize| id.get(at..at + 8).and_then(|word| word.try_into().ok());
            if let (Some(device), Some(inode)) = (word(0), word(8)) {
                match (u64::from_ne_bytes(device), u64::from_ne_bytes(inode)) {
                    OTHERS => self.be_unsure(),
                    id => self.add(id),
                }
            }
        }
        // From here on it is known here: whoever comes after a kill asks nobody.
        let _ = rustix::fs::unlinkat(dir.as_fd(), LEFT, AtFlags::empty());
    }
}

/// Ends what programs have staged whose monitor was killed with its standby: nobody has told us of them. Only the pool that
/// has it is attached to, which on a disk takes several syncs.
fn end_unknown(places: &Places, fd: &Fd) -> staged::Result<()> {
    let name = held::name_by_handle(fd.as_fd())?;
    for pool in places.pools() {
        if may_have(&pool, &name)
            && let Ok(pool) = OpenPool::open(&pool.path)
        {
            let ended = held::end_unknown(&pool, fd.as_fd());
            pool.close();
            ended?;
        }
    }
    Ok(())
}

/// Whoever has the file's lock may have been stopped, or not have got the processor.
fn take_away_patiently(held: &Held) -> staged::Result<()> {
    let begun = Instant::now();
    loop {
        match held.take_away() {
            Err(Error::Pool(adit_pool::Error::Busy { .. })) if begun.elapsed() < PATIENCE => {
                // Not every lock is waited for before that is said.
                adit_pmem::rest(PAUSE);
            }
            ended => return ended,
        }
    }
}

/// Whether a pool has a file staged, as far as can be seen from outside, or may have. It is looked at as whoever attached
/// next would find it, and not asked how many are staged: of those who are dead a mirror may not know any more.
fn may_have(found: &Found, name: &FileName) -> bool {
    let is_without = |pool: Arc<Pool<ReadOnlyMedium>>| matches!(pool.find_file(name), Ok(None));
    found.may_stage(name) && !PoolFile::open_as_left(&found.path).is_ok_and(is_without)
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
        if found.may_stage(&name)
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
        let declared = |held: &Arc<Held>| held.is_declared() && !held.is_forgotten();
        let held = self.held_of(&connection, number).filter(declared);
        let Some(held) = held else {
            wire::answer(&connection, &Refused::NotUnderstood.answer());
            return;
        };
        self.workers.start(Haste::Awaited, move || {
            let answer = match held.share_out() {
                Ok(true) => Answer::yes(),
                // A child has it by now.
                Ok(false) => Refused::NotUnderstood.answer(),
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
            true => {
                // So a monitor that takes over shares it with nobody either.
                self.list_again(number);
                Answer::yes()
            }
            false => Refused::NotUnderstood.answer(),
        };
        wire::answer(connection, &answer);
    }

    /// Takes a file away from all who have it staged, and lets nobody stage it who is not alone. The answer
    /// comes when everything is in the file.
    pub(super) fn bar(&mut self, connection: Fd, along: Option<Fd>) {
        if let Some(Ok(stat)) = along.as_ref().map(|fd| rustix::fs::fstat(fd.as_fd())) {
            self.barred.add((stat.st_dev, stat.st_ino));
        }
        self.take_from_all(connection, along);
    }

    /// Takes a file away from all who have it staged. The answer comes when everything is in the file.
    pub(super) fn take_from_all(&mut self, connection: Fd, along: Option<Fd>) {
        let file = along.and_then(|fd| Some((rustix::fs::fstat(fd.as_fd()).ok()?, fd)));
        let Some((stat, fd)) = file else {
            wire::answer(&connection, &Refused::NotUnderstood.answer());
            return;
        };
        let id = (stat.st_dev, stat.st_ino);
        if self.is_postponed(id) {
            // What is staged of it nobody can publish yet, or for as long as its pool cannot be opened.
            let errno = if self.has_just_begun() {
                Errno::AGAIN
            } else {
                Errno::IO
            };
            wire::answer(&connection, &Refused::Pool(errno).answer());
            return;
        }
        let (numbers, files) = self.take_all_of(id);
        let unknown = self.barred.unknown.then(|| self.places.clone());
        if files.is_empty() && unknown.is_none() {
            wire::answer(&connection, &Answer::yes());
            return;
        }
        self.workers.start(Haste::Awaited, move || {
            let mut ended = files.iter().try_for_each(|held| take_away_patiently(held));
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
        let mut barred = Barred::new(Records::new().expect("memory"));
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
