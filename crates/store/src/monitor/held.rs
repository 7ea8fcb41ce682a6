//! One leased file: publishing what its program stages, and taking it away.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use adit_pmem::Medium as _;
use adit_pool::{FileMedium, FileName, FileRef, PoolFile, SHARED as IS_SHARED};
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{self, OFlags};
use rustix::io::Errno;

use super::lease;
use super::open::{self, OpenFiles, has_locks, is_open_elsewhere};
use crate::pools;
use crate::recovery::walkers;
use crate::registry::sys::{Fd, insist};
use crate::registry::wire::{self, Answer};
use crate::staged::{
    Error, KernelFile, Mode, Relink, Result, Scope, Stage, StagedFile, forget_cached, handle_of,
};

/// A pool that the monitor publishes from.
pub(super) struct OpenPool {
    pub(super) path: PathBuf,
    /// Device and inode number of the path when it was opened.
    id: Option<(u64, u64)>,
    file: Arc<PoolFile>,
    stage: Arc<Stage<FileMedium>>,
}

impl OpenPool {
    /// Opens and attaches.
    pub(super) fn open(path: &Path) -> adit_pool::Result<Self> {
        #[cfg(test)]
        planted::wait_in_opening(path);
        let file = PoolFile::open_without_children(path)?;
        file.pool().walk_with(walkers());
        let attachment = file.attach()?;
        let file = Arc::new(file);
        let grown = Arc::downgrade(&file);
        let grow = move |attachment: &_, growth| {
            let file = grown.upgrade();
            file.is_some_and(|file| pools::grow(&file, attachment, growth))
        };
        let stage = Stage::growing(attachment, Box::new(grow));
        Ok(Self {
            path: path.to_owned(),
            id: id_of(path),
            file,
            stage,
        })
    }

    /// Detaches. The last one to leave gives back what the pool has grown by. One that still has a user, or
    /// cannot, ends as that of a dead process does.
    pub(super) fn close(self) {
        let Self { file, stage, .. } = self;
        if let Some(attachment) = stage.into_attachment() {
            let _ = file.detach(attachment);
        }
    }

    /// Whether the file at the path is still this pool: it may have been removed and made anew.
    pub(super) fn is_current(&self) -> bool {
        // Our mapping keeps the inode, so its number is not given to another.
        self.id.is_some() && id_of(&self.path) == self.id
    }

    /// Whether nobody who opens its path finds it any more: who recovers would not find what is staged in it.
    pub(super) fn is_removed(&self) -> bool {
        self.file.is_removed()
    }

    /// Whether an entry is that of another file. A program goes by the pool that it has, which may have been removed, and
    /// another one made in its place: there the entry's number is that of any file, or of none.
    pub(super) fn has_for_another(&self, file: FileRef, fd: BorrowedFd<'_>) -> bool {
        let known = self.file.pool().file_name(file);
        known.is_ok_and(|name| {
            handle_of(fd).is_ok_and(|handle| handle != (name.handle_type, name.handle))
        })
    }

    /// Whether what is written to it can still be known to be durable.
    pub(super) fn is_sound(&self) -> bool {
        self.file.pool().medium().sound().is_ok()
    }

    /// Slots whose processes live.
    pub(super) fn living_slots(&self) -> Vec<u32> {
        self.file.pool().living_slots()
    }

    /// How often a slot was taken.
    pub(super) fn incarnation(&self, slot: u32) -> adit_pool::Result<u64> {
        self.file.pool().incarnation(slot)
    }

    /// Whether publishing syncs a device.
    pub(super) fn is_slow(&self) -> bool {
        self.file.pool().medium().fence_is_slow()
    }

    pub(super) fn stage(&self) -> &Arc<Stage<FileMedium>> {
        &self.stage
    }
}

fn id_of(path: &Path) -> Option<(u64, u64)> {
    let stat = fs::stat(path.as_os_str().as_bytes()).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// The duplicate of the program's description, as the base file of our view has it; or the pool's own
/// file.
struct Duplicate(Arc<Fd>);

impl From<OwnedFd> for Duplicate {
    fn from(fd: OwnedFd) -> Self {
        Self(Arc::new(Fd::new(fd)))
    }
}

impl AsFd for Duplicate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How long, and how often, another publisher is waited for before a file is shared.
const PAUSE: Duration = Duration::from_millis(1);
const PATIENCE: u32 = 5000;

/// Who else may stage a file: nobody, and whoever opens it takes it away; or whoever opens it under the same
/// declaration, once it is shared. What has begun to be shared is shared with nobody's child.
const ALONE: u8 = 0;
const DECLARED: u8 = 1;
const BEGUN: u8 = 2;
const SHARED: u8 = 3;

/// Looks that have to find no descriptor of a file.
const TWICE: u32 = 2;

type Staged = StagedFile<FileMedium, KernelFile<Duplicate>>;

/// A process that has leases.
pub(super) struct Owner {
    /// Readable when it has ended.
    pub(super) life: Fd,
    pub(super) pid: Option<i32>,
    /// When it was started, if that can be known: not of one that has no number here, as its children have none.
    since: Option<u64>,
}

impl Owner {
    pub(super) fn new(life: Fd, pid: Option<i32>) -> Arc<Self> {
        let since = pid.and_then(open::started);
        Arc::new(Self { life, pid, since })
    }

    pub(super) fn has_ended(&self) -> bool {
        lease::has_ended(&self.life)
    }
}

/// What a program said about a file when it was leased.
pub(super) struct Terms {
    pub(super) file: FileRef,
    pub(super) slot: u32,
    /// How often the slot was taken when it was the program's.
    pub(super) incarnation: u64,
    pub(super) mode: Mode,
    pub(super) restore_append: bool,
    /// Its user has declared the file: see [`super::shared`].
    pub(super) declared: bool,
    pub(super) owner: Arc<Owner>,
}

/// A file with the lease on it. When the last reference goes, so do lease and duplicate, and then
/// those who wait for that are answered.
pub(super) struct Held {
    /// Before the descriptor, of which it holds a reference.
    staged: Mutex<Option<Arc<Staged>>>,
    fd: Option<Arc<Fd>>,
    pub(super) pool: Arc<OpenPool>,
    pub(super) terms: Terms,
    /// Device and inode number.
    pub(super) id: (u64, u64),
    leased: Mutex<bool>,
    /// One of [`ALONE`], [`DECLARED`], [`BEGUN`], [`SHARED`].
    sharing: AtomicU8,
    /// Looks in a row that found no descriptor of the program.
    missing: AtomicU32,
    /// The last record of those that this monitor knows to be in the file.
    published: AtomicU64,
    /// That record, and since when there is no other one, while everything is in the file.
    quiet: Mutex<Option<(u64, Instant)>>,
    /// The program is gone, and what it left is committed, with its other files: everything counts.
    orphaned: AtomicBool,
    /// Its program has closed it, with the last descriptor of the description.
    closed: AtomicBool,
    release: OnceLock<Fd>,
}

impl Held {
    /// A seat beside others, or where others have the file open who are nobody's business: without a lease.
    pub(super) fn beside(fd: Fd, pool: Arc<OpenPool>, terms: Terms, id: (u64, u64)) -> Self {
        let held = Self::of(fd, pool, terms, id);
        *held.leased.lock().unwrap_or_else(PoisonError::into_inner) = false;
        held.sharing.store(SHARED, Ordering::Release);
        held
    }

    /// Takes a lease over from a monitor that is gone. It may have been broken, or given up, meanwhile; and what is
    /// shared may be a seat that never had one, which the first look finds out.
    pub(super) fn take_over(
        fd: Fd,
        pool: Arc<OpenPool>,
        terms: Terms,
        id: (u64, u64),
        owner: i32,
    ) -> core::result::Result<Self, Errno> {
        // Nobody else would be told of whoever opens the file.
        insist(|| lease::tell(fd.as_fd(), owner))?;
        let held = Self::of(fd, pool, terms, id);
        let word = held.pool.file.pool().version(held.terms.file);
        if held.is_declared() && word.is_ok_and(|word| word & IS_SHARED != 0) {
            held.sharing.store(SHARED, Ordering::Release);
        }
        Ok(held)
    }

    /// A file whose lease was taken.
    pub(super) fn of(fd: Fd, pool: Arc<OpenPool>, terms: Terms, id: (u64, u64)) -> Self {
        Self {
            sharing: AtomicU8::new(if terms.declared { DECLARED } else { ALONE }),
            staged: Mutex::new(None),
            fd: Some(Arc::new(fd)),
            pool,
            terms,
            id,
            leased: Mutex::new(true),
            missing: AtomicU32::new(0),
            published: AtomicU64::new(0),
            quiet: Mutex::new(None),
            orphaned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            release: OnceLock::new(),
        }
    }

    /// The number of the duplicate.
    pub(super) fn raw(&self) -> i32 {
        self.fd.as_ref().map_or(-1, |fd| fd.raw())
    }

    /// Whether the program's seat in the pool is somebody else's by now.
    pub(super) fn is_unseated(&self) -> bool {
        let taken = self.pool.incarnation(self.terms.slot);
        taken.is_ok_and(|taken| taken != self.terms.incarnation)
    }

    /// Whether somebody has ended the staging, durably or not yet.
    pub(super) fn is_forgotten(&self) -> bool {
        let live = self.pool.file.pool().ensure_live(self.terms.file);
        matches!(live, Err(adit_pool::Error::Forgotten))
    }

    /// Whether the file is not staged any more, durably, and everybody who asks can see that: whoever is let in then may
    /// write to it.
    pub(super) fn is_over(&self) -> bool {
        use adit_pool::Error::Forgotten;
        let (pool, file) = (self.pool.file.pool(), self.terms.file);
        if !matches!(pool.ensure_not_forgotten(file), Err(Forgotten)) {
            return false;
        }
        if !self.is_known_to_be_over() {
            // Its program is still at it, or has failed to sync that and can make nothing durable any more. From here on the
            // lock says that it is.
            let _ = self.pool.stage().attachment().try_lock_file(file);
        }
        self.is_known_to_be_over()
    }

    /// The same for the main thread: false also where to know it takes a sync of the pool.
    pub(super) fn is_known_to_be_over(&self) -> bool {
        let pool = self.pool.file.pool();
        pool.is_durably_forgotten(self.terms.file).unwrap_or(false)
    }

    /// Whether it is shared when somebody opens it.
    pub(super) fn is_declared(&self) -> bool {
        self.sharing.load(Ordering::Acquire) != ALONE
    }

    /// Whether others may have it staged, too.
    pub(super) fn is_shared(&self) -> bool {
        self.sharing.load(Ordering::Acquire) == SHARED
    }

    /// The same also where that is just about to be: its program may know before we do.
    pub(super) fn is_being_shared(&self) -> bool {
        matches!(self.sharing.load(Ordering::Acquire), BEGUN | SHARED)
    }

    /// From now on it is taken away when somebody opens it; false where it is shared already, or about to be.
    pub(super) fn undeclare(&self) -> bool {
        self.sharing_becomes(DECLARED, ALONE) == ALONE
    }

    /// Changes who may stage the file, if that is what it was; says what it is then.
    fn sharing_becomes(&self, from: u8, to: u8) -> u8 {
        let sharing = &self.sharing;
        match sharing.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => to,
            Err(other) => other,
        }
    }

    /// Whether the file is staged by this program, as far as anybody has said.
    pub(super) fn is_staged(&self) -> bool {
        let live = || {
            let pool = self.pool.file.pool();
            pool.ensure_live(self.terms.file).is_ok()
        };
        self.is_leased() || self.is_shared() && live()
    }

    /// How long the file is with what is staged of it, and when it was written last, zero when nobody said: of what is
    /// published the file has the time, and somebody may have set another one since. The main thread asks, so no lock is
    /// waited for: whoever makes our view holds its cell for as long as a program has the file locked.
    pub(super) fn seen(&self) -> Option<(u64, u64)> {
        let table = self.pool.file.pool();
        // In this order: what is written in between counts as not published.
        let retired = table.seen_retired(self.terms.file).ok()?;
        let size = table.end(self.terms.file).ok()??;
        let modified = table.modified(self.terms.file).ok()?;
        let last = table.last_seq(self.terms.file).ok()?;
        // A commit behind the last operation is not retired with it: that all is published then this monitor knows if it
        // has done so.
        let published = retired.max(self.published.load(Ordering::Acquire));
        Some((size, if last <= published { 0 } else { modified }))
    }

    /// Whether its program has given it back, and waits for the end of it.
    pub(super) fn is_given_back(&self) -> bool {
        self.release.get().is_some()
    }

    /// Lets others in who may stage the file as well, with everything published that may be; false where that may not be
    /// any more.
    pub(super) fn share_out(&self) -> Result<bool> {
        if self.sharing_becomes(DECLARED, BEGUN) == ALONE {
            return Ok(false);
        }
        #[cfg(test)]
        planted::wait_in_sharing();
        #[cfg(test)]
        if planted::fails_to_share() {
            return Err(Error::Contended);
        }
        self.staged()?.share()?;
        self.sharing.store(SHARED, Ordering::Release);
        // Who publishes just now may have begun before the last sync.
        for _ in 0..PATIENCE {
            match self.publish() {
                Err(Error::Publishing { .. } | Error::Contended) => adit_pmem::rest(PAUSE),
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {
                    self.give_up();
                    return Ok(true);
                }
            }
        }
        // What is not published nobody may miss who has not declared the file.
        Err(Error::Contended)
    }

    /// Whether the lease is held and nobody waits for it.
    pub(super) fn state(&self) -> lease::State {
        if self.is_shared() && !self.is_leased() {
            return lease::State::Held;
        }
        match &self.fd {
            Some(fd) => lease::state(fd.as_fd()),
            None => lease::State::Broken,
        }
    }

    /// The program is gone, and nobody waits for its other files.
    pub(super) fn orphan(&self) {
        self.orphaned.store(true, Ordering::Release);
    }

    /// See [`Held::orphan`].
    pub(super) fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }

    /// Its program has nothing to do with it any more, and needs not be waited for.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// See [`Held::close`].
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Answers a connection when lease and duplicate are gone.
    pub(super) fn answer_when_released(&self, connection: Fd) {
        let _ = self.release.set(connection);
    }

    /// What may be published while the program goes on: in `atomic` mode what is committed, else everything. Of a shared
    /// file others may be in that mode; what a program in another one writes is committed when its call returns. A declared
    /// one may be shared before it is locked.
    fn scope(&self) -> Scope {
        let waits = self.terms.mode == Mode::Atomic || self.is_shared();
        match (waits, self.is_declared()) {
            _ if self.is_orphaned() => Scope::Everything,
            (true, _) => Scope::Committed,
            (false, true) => Scope::Alone,
            (false, false) => Scope::Everything,
        }
    }

    /// Publishes what may be published.
    fn publish(&self) -> Result<()> {
        let staged = self.staged()?;
        let published = match staged.publish(self.scope()) {
            Err(Error::Shared) => staged.publish(Scope::Committed),
            published => published,
        };
        self.was_published(&staged);
        published.map(drop)
    }

    /// Keeps in mind what is in the file.
    fn was_published(&self, staged: &Staged) {
        let last = staged.all_published();
        if let Some(last) = last {
            self.published.fetch_max(last, Ordering::AcqRel);
        }
        let mut quiet = self.quiet();
        if quiet.map(|(last, _)| last) != last {
            *quiet = last.map(|last| (last, Instant::now()));
        }
    }

    /// Publishes what may be published, and makes everything that is in the file durable.
    pub(super) fn flush(&self) -> Result<()> {
        self.begin_with_what_is_there();
        match self.publish() {
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        Ok(fs::fsync(fd.as_fd())?)
    }

    /// Publishes everything and takes the file away from its program, which goes to the kernel from
    /// its next call on; then gives the lease up, so that whoever waits gets in.
    pub(super) fn take_away(&self) -> Result<()> {
        #[cfg(test)]
        if planted::is_lease_first() {
            self.give_up();
            planted::wait_for_reader();
        }
        #[cfg(test)]
        while planted::ends_here() {
            std::thread::park();
        }
        #[cfg(test)]
        if self.is_orphaned() || self.is_closed() {
            planted::wait_in_burying();
        }
        self.begin_with_what_is_there();
        match self.end_staging() {
            // Who has ended it may not have made that durable.
            Err(error) if is_gone(&error) && self.is_over() => {}
            ended => {
                #[cfg(test)]
                planted::is_tried_again(ended.is_err());
                ended?;
            }
        }
        self.let_go();
        Ok(())
    }

    /// Before anything of a dead program is written: the kernel may have told a failed write-back to it alone. Not in the main
    /// thread, as that waits for the disk which is to write what is dirty.
    fn begin_with_what_is_there(&self) {
        if let Some(fd) = self.fd.as_ref().filter(|_| self.is_orphaned()) {
            forget_cached(fd.as_fd());
        }
    }

    /// The staging has ended.
    fn let_go(&self) {
        *self.cell() = None;
        self.unlock();
        // Right before the last descriptor goes: who executes the file may not find it open for writing.
        if !self.is_closed() {
            self.give_up();
        }
    }

    /// Takes the file away from its program if that costs nobody anything: everything is in the file, and the program
    /// stages it again when it next writes. Until then it is a file as any other, also for who does not wait for a lease.
    pub(super) fn give_back(&self) -> Result<()> {
        if !self.may_be_given_back() {
            return Err(Error::Shared);
        }
        self.staged()?
            .take_away_published(|| self.restore_append())?;
        self.let_go();
        Ok(())
    }

    fn may_be_given_back(&self) -> bool {
        !self.terms.declared && self.is_leased()
    }

    fn quiet(&self) -> std::sync::MutexGuard<'_, Option<(u64, Instant)>> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything has been in the file for so long, and nothing was staged.
    fn is_quiet_for(&self, time: Duration) -> bool {
        self.quiet()
            .is_some_and(|(_, since)| since.elapsed() >= time)
    }

    /// Gives the file back if it has been quiet for so long; whether that was tried.
    fn give_back_if_quiet(&self, time: Duration) -> bool {
        let tries = self.may_be_given_back() && self.is_quiet_for(time);
        if tries && self.give_back().is_err() {
            // Somebody has just begun to write, or it cannot be now: others have their turn before.
            *self.quiet() = None;
        }
        tries
    }

    fn end_staging(&self) -> Result<()> {
        if !self.is_lost() {
            let staged = self.staged()?;
            return staged.take_away(|| self.restore_append()).map(drop);
        }
        // Nobody sees the file any more, so it need not be durable that the pool has forgotten it: on a disk that is full
        // of it that cannot be.
        if self.is_forgotten() {
            return Ok(());
        }
        self.empty()?;
        let ended = self.staged().and_then(|staged| staged.discard());
        if self.is_forgotten() { Ok(()) } else { ended }
    }

    /// Locks end with the last descriptor of their description. Of a dead program that is ours, and whoever is let in when
    /// the lease is given up finds them before we have closed it.
    fn unlock(&self) {
        if let Some(fd) = &self.fd
            // Before that was noticed, perhaps.
            && self.terms.owner.has_ended()
            && has_locks(fd.raw())
            && self
                .terms
                .owner
                .since
                .is_some_and(|since| !is_open_elsewhere(self.id, since))
        {
            adit_pool::unlock_description(fd.as_fd());
        }
    }

    /// Whether the file's last name is gone.
    fn is_nameless(&self) -> bool {
        let fd = self.fd.as_ref();
        fd.is_some_and(|fd| fs::fstat(fd.as_fd()).is_ok_and(|stat| stat.st_nlink == 0))
    }

    /// Whether nobody can see the file any more: its program is gone, or has no descriptor of it, it has no name, by
    /// the lease nobody else has opened it, and no child has it that was forked with the description. On a full file
    /// system it would otherwise be tried for long to publish the rest into what somebody removed to make room.
    fn is_lost(&self) -> bool {
        let left = self.is_orphaned() || self.missing.load(Ordering::Acquire) >= TWICE;
        left && self.is_leased()
            && self.is_nameless()
            && self.state() == lease::State::Held
            && self
                .terms
                .owner
                .since
                .is_some_and(|since| !is_open_elsewhere(self.id, since))
    }

    /// Gives the space of a lost file back. That it has no name is durable first: nothing of it may be missing
    /// where it comes back.
    fn empty(&self) -> Result<()> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        fs::fsync(fd.as_fd())?;
        Ok(fs::ftruncate(fd.as_fd(), 0)?)
    }

    /// Looks whether a nameless file is left by its program, which lives: a close that failed has closed all
    /// the same. `open` says which files its descriptors lead to, if that can be known. One look may miss a
    /// descriptor that is just duplicated to a lower number.
    pub(super) fn is_left(&self, open: impl FnOnce() -> Option<OpenFiles>) -> bool {
        if !self.is_nameless() {
            return false;
        }
        if open().is_none_or(|open| open.contains(&self.id)) {
            self.missing.store(0, Ordering::Release);
            return false;
        }
        let before = self.missing.fetch_add(1, Ordering::AcqRel);
        before + 1 >= TWICE
    }

    /// Whether the lease was not given up yet. Afterwards the program may have another one on the same
    /// description, so it is given up once. Who finds it just being given up waits: the kernel lets openers in before
    /// this is known here, and a program that noticed that would be refused the next lease.
    pub(super) fn is_leased(&self) -> bool {
        *self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_up(&self) {
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        if *leased && let Some(fd) = &self.fd {
            lease::give_up(fd.as_fd());
            *leased = false;
        }
    }

    fn cell(&self) -> std::sync::MutexGuard<'_, Option<Arc<Staged>>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Our own view of the staged file, made at the first need.
    fn staged(&self) -> Result<Arc<Staged>> {
        let mut cell = self.cell();
        if let Some(staged) = &*cell {
            return Ok(Arc::clone(staged));
        }
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        let base = KernelFile::new(Duplicate(Arc::clone(fd)))?;
        let terms = &self.terms;
        let stage = self.pool.stage();
        let staged = StagedFile::open_unread(stage, terms.file, base, terms.mode)?
            .with_relink(Relink::from_pool(&self.pool.file, stage));
        Ok(Arc::clone(cell.insert(Arc::new(staged))))
    }

    /// Before the program notices that the file is taken away, and appends through the kernel.
    fn restore_append(&self) {
        if self.terms.restore_append
            && let Some(fd) = &self.fd
            && let Ok(flags) = fs::fcntl_getfl(fd.as_fd())
        {
            let _ = fs::fcntl_setfl(fd.as_fd(), flags | OFlags::APPEND);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.cell() = None;
        self.give_up();
        self.fd = None;
        if let Some(connection) = self.release.get() {
            wire::answer(connection, &Answer::yes());
        }
    }
}

/// What a pool finds a file by.
pub(super) fn name_by_handle(fd: BorrowedFd<'_>) -> Result<FileName> {
    let (handle_type, handle) = handle_of(fd)?;
    Ok(FileName {
        handle_type,
        handle,
        path: Vec::new(),
        device: fs::fstat(fd)?.st_dev,
    })
}

/// Ends the staging of a file of which this monitor knows nothing: another one did, and was killed.
pub(super) fn end_unknown(pool: &OpenPool, fd: BorrowedFd<'_>) -> Result<()> {
    let name = name_by_handle(fd)?;
    let table = pool.file.pool();
    // Another file system's files may have the same handles.
    let is_it = |file: &FileRef| {
        let known = table.file_name(*file);
        known.is_ok_and(|known| known.device == name.device)
    };
    let Some(file) = table.find_file(&name)?.filter(is_it) else {
        return Ok(());
    };
    // Its description may be one that only reads.
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let base = fs::open(path.as_str(), flags, fs::Mode::empty())?;
    forget_cached(base.as_fd());
    let base = KernelFile::new(Duplicate::from(base))?;
    let ended = StagedFile::open_unread(&pool.stage, file, base, Mode::Sync)
        .and_then(|staged| staged.take_away(|| {}));
    match ended {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Commits what files of dead programs lack: for those of one pool all of it at one instant. Where that
/// cannot be, nothing.
pub(super) fn commit_together(files: &[Arc<Held>]) {
    #[cfg(test)]
    if planted::is_one_by_one() {
        return;
    }
    // In the other modes nothing waits for a commit.
    let waiting = |held: &&Arc<Held>| matches!(held.terms.mode, Mode::Posix | Mode::Atomic);
    by_pool(files.iter().filter(waiting), |files| {
        #[cfg(test)]
        planted::wait_in_committing(&files[0].0.pool.path);
        let mut files: Vec<&Staged> = files.iter().map(|(_, staged)| &**staged).collect();
        if StagedFile::commit_group(&files).is_err() {
            // One that cannot be synced keeps the others from nothing.
            files.retain(|staged| staged.make_base_durable().is_ok());
            let _ = StagedFile::commit_group(&files);
        }
    });
}

/// Looks at what the dead have logged, with one walk over the logs of each pool: to take their files away one by
/// one takes none afterwards.
pub(super) fn look_together(files: &[Arc<Held>]) {
    by_pool(files.iter(), |files| {
        let files: Vec<&Staged> = files.iter().map(|(_, staged)| &**staged).collect();
        // Whoever takes one of them away looks at it again.
        let _ = StagedFile::follow_together(&files);
    });
}

/// Publishes what may be published while the programs go on, with one walk over the logs of each pool. Entries
/// and leases stay. What cannot be published now is tried again at the next look, and at the break.
pub(super) fn publish_together(files: &[Arc<Held>]) {
    by_pool(files.iter(), |files| {
        let scopes = files.iter().map(|(held, staged)| (&**staged, held.scope()));
        drop(StagedFile::publish_together(&scopes.collect::<Vec<_>>()));
        for (held, staged) in files {
            held.was_published(staged);
        }
    });
}

/// Gives back what has been quiet for so long, and tries it with no more than so many files; says with how many.
pub(super) fn give_back_quiet(files: &[Arc<Held>], time: Duration, most: usize) -> usize {
    let mut tried = 0;
    for held in files {
        if tried == most {
            break;
        }
        tried += usize::from(held.give_back_if_quiet(time));
    }
    tried
}

/// Does something to our views of files, pool by pool. A file that cannot be opened is gone, or will not be
/// published either.
fn by_pool<'a>(
    files: impl Iterator<Item = &'a Arc<Held>>,
    mut work: impl FnMut(&[(&'a Arc<Held>, Arc<Staged>)]),
) {
    let open = |held: &'a Arc<Held>| Some((held, held.staged().ok()?));
    let mut rest: Vec<_> = files.filter_map(open).collect();
    while let Some(pool) = rest.first().map(|(held, _)| Arc::as_ptr(&held.pool)) {
        let here = rest.extract_if(.., |(held, _)| Arc::as_ptr(&held.pool) == pool);
        work(&here.collect::<Vec<_>>());
    }
}

/// Whether somebody else has published and forgotten the file: its program, mostly.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Taken)
}

/// Bugs for the tests to find: the lease is given up before everything is published, what several files of
/// the dead lack is not committed for all of them. And a place to kill the monitor: when it has taken away
/// so many files.
#[cfg(test)]
pub(super) mod planted {
    use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use rustix::fs::{self, OFlags};

    static LEASE_FIRST: AtomicBool = AtomicBool::new(false);
    static ONE_BY_ONE: AtomicBool = AtomicBool::new(false);
    static LEFT: AtomicU32 = AtomicU32::new(u32::MAX);
    static SLOWLY: AtomicBool = AtomicBool::new(false);
    static BURIES_SLOWLY: AtomicBool = AtomicBool::new(false);
    static AGES_SLOWLY: AtomicBool = AtomicBool::new(false);
    static UNSHARED: AtomicU32 = AtomicU32::new(0);

    /// So many times a file cannot be shared.
    pub(in crate::monitor) fn share_after(times: u32) {
        UNSHARED.store(times, Ordering::Relaxed);
    }

    pub(super) fn fails_to_share() -> bool {
        let left = UNSHARED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        left.is_ok()
    }

    /// Files are shared when the test says so.
    pub(in crate::monitor) fn share_slowly() {
        SLOWLY.store(true, Ordering::Relaxed);
    }

    pub(super) fn wait_in_sharing() {
        if SLOWLY.load(Ordering::Relaxed) {
            wait_for_word("sharing", "share");
        }
    }

    /// Files of the dead, and closed ones, are taken away when the test says so.
    pub(in crate::monitor) fn bury_slowly() {
        BURIES_SLOWLY.store(true, Ordering::Relaxed);
    }

    pub(super) fn wait_in_burying() {
        if BURIES_SLOWLY.load(Ordering::Relaxed) {
            wait_for_word("burying", "bury");
        }
    }

    /// Pools of this name are opened when the test says so.
    pub(in crate::monitor) const SLOW_POOL: &str = "slow pool";

    pub(super) fn wait_in_opening(path: &Path) {
        if path.ends_with(SLOW_POOL) {
            wait_for_word("opening", "open");
        }
    }

    /// What the dead have left in such a pool is committed when the test says so.
    pub(super) fn wait_in_committing(path: &Path) {
        if path.ends_with(SLOW_POOL) {
            wait_for_word("committing", "commit");
        }
    }

    /// What has aged in such a pool is published when the test says so.
    pub(in crate::monitor) fn age_slowly() {
        AGES_SLOWLY.store(true, Ordering::Relaxed);
    }

    pub(in crate::monitor) fn wait_in_aging(path: &Path) {
        if AGES_SLOWLY.load(Ordering::Relaxed) && path.ends_with(SLOW_POOL) {
            wait_for_word("aging", "age");
        }
    }

    /// Waits until the test says so, to one by a file that is gone then. Leaves a byte for each that waits or has waited.
    fn wait_for_word(begun: &str, word: &str) {
        let dir = crate::testing::argument("T_DIR");
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
        let begun = dir.join(begun);
        let begun = fs::open(begun.as_os_str().as_bytes(), flags, fs::Mode::RUSR);
        let told = begun.and_then(|begun| rustix::io::write(begun, b"."));
        assert!(told.is_ok(), "{told:?}");
        let one = dir.join(format!("{word} one"));
        let is_said = || dir.join(word).exists() || fs::unlink(one.as_os_str().as_bytes()).is_ok();
        crate::testing::eventually(word, is_said);
    }

    pub(in crate::monitor) fn one_by_one() {
        ONE_BY_ONE.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_one_by_one() -> bool {
        ONE_BY_ONE.load(Ordering::Relaxed)
    }

    pub(in crate::monitor) fn end_after(files: u32) {
        LEFT.store(files, Ordering::Relaxed);
    }

    pub(super) fn ends_here() -> bool {
        let take = |left: u32| match left {
            u32::MAX => None,
            left => left.checked_sub(1),
        };
        let taken = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken == Err(0)
    }

    /// A file that could not be taken away is none of those that were.
    pub(super) fn is_tried_again(failed: bool) {
        let more = |left: u32| (failed && left < u32::MAX).then(|| left + 1);
        let _ = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    pub(in crate::monitor) fn lease_first() {
        LEASE_FIRST.store(true, Ordering::Relaxed);
    }

    /// Until the test says that whoever was let in has read.
    pub(super) fn wait_for_reader() {
        let dir = crate::testing::argument("T_DIR");
        crate::testing::eventually("read", || dir.join("read").exists());
    }

    pub(super) fn is_lease_first() -> bool {
        LEASE_FIRST.load(Ordering::Relaxed)
    }
}
