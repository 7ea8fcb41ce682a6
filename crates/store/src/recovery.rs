//! Recovering pools: what dead programs staged goes into their files before anybody reads these.
//!
//! `adit run` does it before it becomes a program, the monitor when it starts and when a program dies.
//! Both go through the lists of the user's pools and the places where pools are made, so a reboot changes
//! nothing. Two at once do no harm: each file has one publisher at a time, and the second finds nothing left.

use std::cell::RefCell;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use adit_pmem::Medium;
use adit_pool::layout::Superblock;
use adit_pool::{Attachment, PoolFile};
use rustix::io::Errno;

use crate::pools::{Found, Places};
use crate::staged::{self, Error, Recovered, Within};

pub use crate::staged::Kept;

/// What became of one pool.
#[derive(Debug)]
pub struct PoolRecovery {
    /// The pool.
    pub path: PathBuf,
    /// What was done, or why nothing could be done.
    pub result: staged::Result<Recovered>,
}

/// Recovers every pool of the user that needs it. Pools that are not there are passed over: their file
/// system may be mounted again.
#[must_use]
pub fn recover_all(places: &Places) -> Vec<PoolRecovery> {
    places.forget_the_gone();
    let recover = |found: Found| {
        let result = recover_if_needed(&found).transpose()?;
        let path = found.path;
        Some(PoolRecovery { path, result })
    };
    places.pools().into_iter().filter_map(recover).collect()
}

/// How long is waited for somebody who publishes what has to be recovered: the monitor, at the same death.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long is waited for a lease on such a file. A monitor that was killed may still be about to end; one
/// of a living program stays.
const LEASED: Duration = Duration::from_secs(1);

/// Recovers a pool. What somebody else is just recovering is waited for: the caller's program is about to
/// read it.
fn recover_if_needed(found: &Found) -> staged::Result<Option<Recovered>> {
    patiently(|| recover_once(found))
}

/// Recovers with an attachment that the caller has, whatever is left, and waits in the same way: a program that was
/// killed, or its monitor, may still be about to end, and has its leases until then. `within` is the file system to which
/// the pool's files belong ([`Places::for_chosen`]). Of files that are not found, those with the paths `given_up` lose what
/// is staged of them.
pub fn recover_with<M: Medium>(
    attachment: &Attachment<M>,
    within: Option<&Within>,
    given_up: &[PathBuf],
) -> staged::Result<Recovered> {
    let once = || recover_giving_up(attachment, within, given_up).map(Some);
    let mut done = patiently(once)?.unwrap_or_default();
    with_rebuilt(attachment, &mut done);
    Ok(done)
}

/// Who attaches first frees what nothing counts in, and clears the dead: what was not believed there nobody finds later.
fn with_rebuilt<M: Medium>(attachment: &Attachment<M>, done: &mut Recovered) {
    if let Some(rebuilt) = attachment.recovery() {
        done.has_seen(&rebuilt.counts, &rebuilt.rejected);
        done.released.slots += rebuilt.released.slots;
        done.released.chunks += rebuilt.released.chunks;
    }
}

/// The same without waiting. Files are told by the paths under which they were found.
pub(crate) fn recover_once_with<M: Medium>(
    attachment: &Attachment<M>,
    within: Option<&Within>,
) -> staged::Result<Recovered> {
    recover_giving_up(attachment, within, &[])
}

fn recover_giving_up<M: Medium>(
    attachment: &Attachment<M>,
    within: Option<&Within>,
    given_up: &[PathBuf],
) -> staged::Result<Recovered> {
    let elsewhere = RefCell::new(Vec::new());
    let is_given_up = |path: &[u8]| given_up.iter().any(|it| it.as_os_str().as_bytes() == path);
    let mut done = staged::recover(attachment, &|name| {
        let found = staged::find(name, within).map_err(|error| match error {
            Error::OtherFile(_) if is_given_up(&name.path) => Error::GivenUp,
            error => error,
        });
        let (file, path) = found?;
        if path != name.path {
            elsewhere.borrow_mut().push((name.clone(), path));
        }
        Ok(file)
    })?;
    for (name, path) in elsewhere.into_inner() {
        let its = done.published.iter_mut().filter(|file| file.name == name);
        its.for_each(|file| file.name.path.clone_from(&path));
    }
    Ok(done)
}

/// Recovers again and again while somebody has in hand what is left, for as long as that is worth waiting for. What
/// is told is of all these times.
fn patiently(
    mut recover: impl FnMut() -> staged::Result<Option<Recovered>>,
) -> staged::Result<Option<Recovered>> {
    let started = Instant::now();
    let mut before = Recovered::default();
    loop {
        let Some(mut done) = recover()? else {
            before.kept.clear();
            let has_told = !before.published.is_empty() || before.rejected > 0;
            return Ok(has_told.then_some(before));
        };
        done.follows(before);
        let worth = done.kept.iter().filter_map(Kept::patience).max();
        if worth.is_none_or(|patience| started.elapsed() > patience) {
            return Ok(Some(done));
        }
        before = done;
        adit_pmem::rest(Duration::from_millis(2));
    }
}

/// Threads for the walk over the logs of a pool: one for each processor, and not more than help.
#[must_use]
pub fn walkers() -> usize {
    let processors = rustix::thread::sched_getaffinity(None);
    processors.map_or(1, |set| (set.count() as usize).clamp(1, 8))
}

/// Recovers a pool, unless a look at it shows that no dead program left anything.
fn recover_once(found: &Found) -> staged::Result<Option<Recovered>> {
    let path = &*found.path;
    let seen = match PoolFile::superblock_at(path) {
        Err(adit_pool::Error::Kernel { errno, .. }) if errno == Errno::NOENT => return Ok(None),
        seen => seen?,
    };
    if seen.flags & Superblock::CLEAN != 0 {
        return Ok(None);
    }
    let file = PoolFile::open_without_children(path)?;
    // Nobody alive: the pool was left unclean. Somebody alive: others may have died beside him. Each is looked at for himself,
    // as somebody may come or go meanwhile.
    let slots = file.pool().slots()?;
    let nobody_died = !slots.is_empty() && slots.iter().all(|slot| slot.alive);
    if nobody_died && file.pool().info()?.orphans == 0 {
        return Ok(None);
    }
    file.pool().walk_with(walkers());
    let attachment = file.attach()?;
    let mut recovered = recover_once_with(&attachment, found.within.as_ref());
    if let Ok(done) = &mut recovered {
        with_rebuilt(&attachment, done);
    }
    file.detach(attachment)?;
    recovered.map(Some)
}

impl Kept {
    /// How long it is worth waiting for whoever has these bytes, or their file, in hand now.
    fn patience(&self) -> Option<Duration> {
        match self.reason {
            Error::Base(Errno::AGAIN) | Error::DirectoryLocked => Some(LEASED),
            Error::Contended
            | Error::Publishing { .. }
            | Error::Pool(adit_pool::Error::Busy { .. }) => Some(PATIENCE),
            _ => None,
        }
    }

    /// Whether the bytes wait because their file is somebody's who lives: then nothing needs to be done.
    /// A file that is not found may have been moved to another directory, and its user has to know.
    #[must_use]
    pub fn needs_nobody(&self) -> bool {
        matches!(self.reason, Error::Base(Errno::AGAIN))
    }
}
