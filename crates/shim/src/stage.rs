//! Where this process stages: its seat at the pool of each device, and how a file gets there.
//!
//! A file is staged in this order, so that whoever breaks the lease always finds something to take
//! away: its entry in the pool, then `O_APPEND` off the description (positional writes would append),
//! then the lease, which the monitor takes on a duplicate of the description, then the overlay. Each
//! step that fails takes back those before it, and the file is the kernel's.
//!
//! # Safety
//! The cell of the seats is replaced in a forked child alone, by its only thread. Descriptors are the
//! program's, borrowed for the calls that it makes on them.
#![allow(unsafe_code)]

use crate::closed::{self, Closed};
use crate::ofd::Ofd;
use crate::stat::Logical;
use crate::sys::ProcPath;
use crate::{alloc, data, declared, init, process, record_locks, signal, sys};
use adit_pmem::{Medium as _, MediumKind, brief};
use adit_pool::{FileMedium, FileName, FileRef, PoolFile};
use adit_store::monitor::client::{self, AcquireRequest, Lease, PoolPath, Refused};
use adit_store::pools::{self, Places, PoolList};
use adit_store::registry::Reason;
use adit_store::staged::{
    self, AppendsOnly, Error, KernelFile, Mode, Relink, Scope, Stage, StagedFile,
};
use core::cell::UnsafeCell;
use core::mem;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd as _, OwnedFd};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How often a file is tried whose entry somebody takes away before it is opened.
const ATTEMPTS: usize = 3;

/// How long somebody else who has the same file in hand is waited for, and how often is looked: he syncs it, perhaps, or has
/// not got the processor for seconds, where hundreds want it. As long as the kernel waits for who has a lease.
const PATIENCE: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(1);

/// How many files are staged: while there are none, nothing has to be asked about sizes and times. One more where
/// directories are declared, in which others may have staged some.
pub(crate) static STAGED: AtomicU32 = AtomicU32::new(0);
/// How many files were staged and are not any more.
pub(crate) static GONE: AtomicU64 = AtomicU64::new(0);

/// A descriptor of the program, which closes it itself; or, while staged bytes are relinked, one of the
/// pool's own file.
pub(crate) enum ProgramFd {
    Program(i32),
    Pool(OwnedFd),
}

impl AsFd for ProgramFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Program(fd) => borrow(*fd),
            Self::Pool(fd) => fd.as_fd(),
        }
    }
}

impl From<OwnedFd> for ProgramFd {
    fn from(fd: OwnedFd) -> Self {
        Self::Pool(fd)
    }
}

fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: a number of the program's, never -1; where it is closed, calls say so.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A file that this process stages.
pub(crate) struct Staged {
    file: StagedFile<FileMedium, KernelFile<ProgramFd>>,
    /// In mode `posix`.
    only: Option<AppendsOnly>,
    /// None of who only reads what others have staged.
    lease: Option<Lease>,
    /// Others may have it staged, too.
    declared: bool,
    stage: Arc<Stage<FileMedium>>,
    device: u64,
    inode: u64,
    appends: bool,
    /// Tells it from what was staged through the same description before.
    pub(crate) serial: u64,
    since: Instant,
}

impl Drop for Staged {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::SeqCst);
        STAGED.fetch_sub(1, Ordering::SeqCst);
    }
}

/// This process's attachment to the pool of a device, or why there was none to be had.
struct Seat {
    device: u64,
    pool: Result<Pool, Refusal>,
    /// When the monitor named it, or its path was looked at last.
    asked: Instant,
}

/// How long the path of a pool is trusted to lead to it still by who only looks for what others have staged: less than it
/// takes to open another one that has come there, to be given a file by the monitor and to write to it.
const TRUSTED: Duration = Duration::from_micros(100);

/// How long a refusal is remembered. What forbids a pool mostly lasts, and to ask costs the monitor a thread.
const REMEMBERED: Duration = Duration::from_secs(5);

impl Seat {
    /// A pool whose sync has failed is opened anew; what is staged by this seat goes on by it. So is one that somebody has
    /// removed: the monitor would look for what is staged next in that which has its path.
    fn is_current(&mut self, trusted: Duration) -> bool {
        let pool = match &self.pool {
            Ok(pool) => pool,
            Err(_) => return self.asked.elapsed() < REMEMBERED,
        };
        let now = Instant::now();
        if now - self.asked >= trusted {
            if pool.file.is_removed() {
                return false;
            }
            self.asked = now;
        }
        is_sound(&pool.stage)
    }
}

fn is_sound(stage: &Stage<FileMedium>) -> bool {
    stage.attachment().pool().medium().sound().is_ok()
}

#[derive(Clone)]
struct Pool {
    file: Arc<PoolFile>,
    stage: Arc<Stage<FileMedium>>,
    path: PoolPath,
}

struct Seats(UnsafeCell<Mutex<Vec<Seat>>>);

// SAFETY: the cell is only written while no other thread exists; the lock inside is Sync.
unsafe impl Sync for Seats {}

static SEATS: Seats = Seats(UnsafeCell::new(Mutex::new(Vec::new())));

fn seats() -> MutexGuard<'static, Vec<Seat>> {
    // SAFETY: see the module: the cell is not written while others look.
    let seats = unsafe { &*SEATS.0.get() };
    seats.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: the parent's attachments are not this process's, and its locks mean nothing here.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn in_new_process() {
    // SAFETY: the caller's promise; nothing of the parent's is dropped here.
    unsafe { mem::forget(mem::replace(&mut *SEATS.0.get(), Mutex::new(Vec::new()))) };
    SEATED.store(0, Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe { closed::in_new_process() };
    count_none();
}

/// This process has staged nothing yet.
pub(crate) fn count_none() {
    let declared = !init::declared().is_empty();
    STAGED.store(u32::from(declared), Ordering::SeqCst);
}

/// The process that has the seats; zero while there are none.
static SEATED: AtomicU32 = AtomicU32::new(0);

/// Whether the seats are this process's. One that was made behind our back (by `clone`, or in a handler of another
/// library before ours) has its parent's, without what they map: at these addresses there may be anything of its own.
pub(crate) fn are_ours() -> bool {
    sys::getpid() == Ok(SEATED.load(Ordering::SeqCst) as usize)
}

fn are_ours_or_none() -> bool {
    SEATED.load(Ordering::SeqCst) == 0 || are_ours()
}

/// Gives the attachments up, and the pools' mappings with them: before exec, at the end, and when the process gives up
/// its rights. Those of files that could not be published
/// stay, and are found by whoever recovers.
pub(crate) fn leave() {
    if !init::staging() || !are_ours() {
        return;
    }
    let _inside = signal::engine::enter();
    for seat in mem::take(&mut *seats()) {
        if let Some(attachment) = seat.pool.ok().and_then(|pool| pool.stage.into_attachment()) {
            let _ = attachment.detach();
        }
    }
}

/// The pool of a device.
fn pool_of(fd: BorrowedFd<'_>, device: u64) -> Result<Pool, Refusal> {
    pool_trusted_for(Duration::ZERO, fd, device)
}

/// The pool of a device. What was its path's a moment ago is taken for it still.
fn pool_trusted_for(trusted: Duration, fd: BorrowedFd<'_>, device: u64) -> Result<Pool, Refusal> {
    if !are_ours_or_none() {
        return Err(libc::EOPNOTSUPP);
    }
    let mut seats = seats();
    seats.retain_mut(|seat| seat.is_current(trusted));
    if let Some(seat) = seats.iter().find(|seat| seat.device == device) {
        return seat.pool.clone();
    }
    let dir = init::runtime_dir().ok_or(NO_MONITOR)?;
    let pool = client::pool_for(dir, fd, init::asked_pool())
        .map_err(refusal_of)
        .and_then(|path| {
            let known = seats.iter().filter_map(|seat| seat.pool.as_ref().ok());
            let same = |pool: &&Pool| pool.path.as_bytes() == path.as_bytes();
            let open = known.into_iter().find(same).cloned();
            open.map_or_else(|| attach(path), Ok)
        });
    SEATED.store(sys::getpid().unwrap_or(0) as u32, Ordering::SeqCst);
    // A monitor may be about to start, and a descriptor about to be closed: that is found out at each file.
    if !matches!(pool, Err(NO_MONITOR | libc::EMFILE | libc::ENFILE)) {
        seats.push(Seat {
            device,
            pool: pool.clone(),
            asked: Instant::now(),
        });
    }
    pool
}

/// What the monitor does not do, as [`take`] says it.
fn refusal_of(refused: Refused) -> Refusal {
    match refused {
        Refused::NoMonitor(errno @ (Errno::MFILE | Errno::NFILE)) => errno.raw_os_error(),
        Refused::NoMonitor(_) | Refused::NotUnderstood => NO_MONITOR,
        Refused::Pool(Errno::NOSPC | Errno::DQUOT) | Refused::TooMany => libc::ENOSPC,
        // No place for one, or one that cannot be used: `adit run` and `adit pool check` say more.
        Refused::Pool(_) | Refused::NoPlace(_) => libc::ENXIO,
        Refused::Lease(errno) => errno.raw_os_error(),
        _ => libc::EOPNOTSUPP,
    }
}

fn attach(path: PoolPath) -> Result<Pool, Refusal> {
    // A child forgets its parent's seats, and takes its own.
    let there = Path::new(OsStr::from_bytes(path.as_bytes()));
    let refused = |error| want_of(&error).unwrap_or(libc::ENXIO);
    let file = PoolFile::open_without_children(there).map_err(refused)?;
    let attachment = file.attach().map_err(refused)?;
    if let Some(bytes) = init::log_size() {
        let chunks = bytes / file.pool().geometry().chunk_size();
        attachment.limit_log(u32::try_from(chunks).unwrap_or(u32::MAX));
    }
    let file = Arc::new(file);
    let grown = Arc::clone(&file);
    let grow = move |attachment: &_, growth| pools::grow(&grown, attachment, growth);
    Ok(Pool {
        file,
        stage: Stage::growing(attachment, Box::new(grow)),
        path,
    })
}

/// What this process is short of, if that is why it cannot use a pool: others may use it.
fn want_of(error: &adit_pool::Error) -> Option<Refusal> {
    match error {
        adit_pool::Error::Kernel { errno, .. } => {
            Some(errno.raw_os_error()).filter(|&errno| leaves_doubt(errno))
        }
        adit_pool::Error::NotMapped { .. } => Some(libc::ENOMEM),
        _ => None,
    }
}

/// A file of so many bytes at most is published when its program goes on already.
const SHORT: u64 = 1 << 20;

/// How long a program that cannot publish waits until the monitor has.
const OTHERS_PATIENCE: Duration = Duration::from_secs(10);

/// Why a file is not staged, as the number by which `open` says it under `ADIT_REQUIRE`.
pub(crate) type Refusal = i32;

/// No monitor answers: one that is about to start, or that a killed one leaves its work to, will.
pub(crate) const NO_MONITOR: Refusal = libc::ECONNREFUSED;

/// Another thread is creating a process: a moment later the file may be staged. No error of the kernel's.
pub(crate) const FORKING: Refusal = -1;

/// The file has no name by which a recovery would find it. No error of the kernel's.
pub(crate) const NAMELESS: Refusal = -2;

/// What is staged of the file from before cannot be read now: what the kernel wrote would be undone by it later. No error of
/// the kernel's.
pub(crate) const UNREADABLE: Refusal = -3;

/// No time at which a file was changed.
pub(crate) const UNNAMED: u64 = 0;

/// When a file was changed last, be it its bytes or its name: as a number that is not [`UNNAMED`].
pub(crate) fn changed(seconds: i64, nanoseconds: i64) -> u64 {
    let whole = seconds.saturating_mul(1_000_000_000);
    whole.saturating_add(nanoseconds).unsigned_abs().max(1)
}

/// Stages the file of `fd`, if it may be. `named` says since which change of it, or [`UNNAMED`], it is durable when it is
/// empty, with its name, `declared` that others may stage it at the same time.
pub(crate) fn take(
    ofd: &Ofd,
    fd: i32,
    mode: Mode,
    appends: bool,
    (named, declared): (u64, bool),
) -> Result<Staged, Refusal> {
    may_stage(fd)?;
    let stat = eligible(fd)?;
    let pool = pool_of(borrow(fd), stat.st_dev)?;
    // Where a fence is a kernel sync, a commit costs what the kernel's `fsync` does.
    if mode == Mode::Posix && pool.stage.attachment().pool().medium().fence_is_slow() {
        return Err(libc::EOPNOTSUPP);
    }
    let name = name_of(fd, &stat).ok_or(libc::EOPNOTSUPP)?;
    let staged = (0..ATTEMPTS)
        .map(|_| pool.take((ofd, fd), &stat, &name, mode, (appends, declared)))
        .find(|taken| !matches!(taken, Err(Error::Taken)))
        .unwrap_or(Err(Error::Contended))
        .map_err(|error| match error {
            // The kernel's word for a file that somebody else has open, and for one that it can lease to nobody.
            Error::Base(Errno::AGAIN) => libc::EBUSY,
            Error::Base(Errno::INVAL) | Error::OtherFile(_) => libc::EOPNOTSUPP,
            Error::Pool(adit_pool::Error::LostData { .. }) => UNREADABLE,
            error => error.errno().raw_os_error(),
        })?;
    // Its name becomes durable before the bytes that come through the pool, and so does what the kernel
    // has written: no `fsync` asks for that any more. Where it cannot be, they are the kernel's to lose.
    // In mode `atomic` that of an empty file may wait for the first commit, which sees to it.
    let may_wait = mode == Mode::Atomic && is_empty_and(fd, |_| true);
    // Others may have written to it until now, when they cannot any more, and cut it again, or given it another name.
    let is_as_then = |stat: &Stat| changed(stat.st_ctime, stat.st_ctime_nsec as i64) == named;
    let is_named = || named != UNNAMED && is_empty_and(fd, is_as_then);
    let durable = adit_pmem::kind_of_fd(fd) == MediumKind::Ram || is_named();
    if durable || !may_wait {
        staged.file.base_is_durable();
    }
    if !durable
        && !may_wait
        && let Err(errno) = rustix::fs::fsync(borrow(fd))
    {
        let _ = staged.give_up(ofd, fd);
        return Err(errno.raw_os_error());
    }
    Ok(staged)
}

/// Whether the file of a descriptor is empty, and `otherwise` as it should be.
fn is_empty_and(fd: i32, otherwise: impl Fn(&Stat) -> bool) -> bool {
    rustix::fs::fstat(borrow(fd)).is_ok_and(|stat| stat.st_size == 0 && otherwise(&stat))
}

/// Whether this process may stage the file of a descriptor now.
fn may_stage(fd: i32) -> Result<(), Refusal> {
    if data::KERNEL_WRITES.load(Ordering::Relaxed) || init::memory_limited() {
        return Err(libc::ENOMEM);
    }
    if process::shares(fd) {
        return Err(if process::shares_for_good() {
            libc::EOPNOTSUPP
        } else {
            FORKING
        });
    }
    if init::credit().is_none() || !signal::ready() || !alloc::puts_by() {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(())
}

/// Whether a refusal of the pool says nothing of what others have staged there.
fn leaves_doubt(refusal: Refusal) -> bool {
    matches!(refusal, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
}

/// Attaches to the pool of a file's device as long as there are descriptors for it: whoever looks later for what others have
/// staged there needs none.
pub(crate) fn take_seat(fd: i32, device: u64) {
    let _inside = signal::engine::enter();
    drop(pool_trusted_for(TRUSTED, borrow(fd), device));
}

/// A declared file: its device, and what its entry in the pool is found by.
pub(crate) struct Entry {
    device: u64,
    name: FileName,
    /// The last monitor after which nobody had it staged, as [`client::last_monitor`] says it.
    unstaged_after: AtomicU64,
}

impl Entry {
    /// Where others would have the file of `fd` staged.
    pub(crate) fn of(fd: i32) -> Option<Self> {
        let stat = rustix::fs::fstat(borrow(fd)).ok()?;
        let name = name_of(fd, &stat)?;
        Some(Self {
            device: stat.st_dev,
            name,
            unstaged_after: AtomicU64::new(0),
        })
    }

    /// The entry of the file, if anybody has it staged. An error is that of looking: somebody may.
    fn found(&self, fd: i32) -> Result<Option<(Pool, FileRef)>, Refusal> {
        let pool = match pool_trusted_for(TRUSTED, borrow(fd), self.device) {
            Err(NO_MONITOR) => self.pool_without_monitor()?,
            Err(refusal) if leaves_doubt(refusal) => return Err(refusal),
            pool => pool.ok(),
        };
        let Some(pool) = pool else {
            return Ok(None);
        };
        let table = pool.file.pool();
        if !table.anything_staged() {
            return Ok(None);
        }
        let entry = table.find_file(&self.name);
        let entry = entry.map_err(|error| Error::from(error).errno().raw_os_error())?;
        Ok(entry.map(|entry| (pool, entry)))
    }

    /// The pool in which others have had the file staged since monitor and standby were killed: they need neither to
    /// go on, and this process must see what they write.
    #[cold]
    fn pool_without_monitor(&self) -> Result<Option<Pool>, Refusal> {
        let Some(dir) = init::runtime_dir() else {
            return Ok(None);
        };
        let last = client::last_monitor(dir);
        let known = |last: &u64| self.unstaged_after.load(Ordering::Relaxed) == *last;
        if last.as_ref().is_some_and(known) {
            return Ok(None);
        }
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        let runtime = path(dir.as_bytes());
        let places = Places {
            runtime: runtime.to_owned(),
            list: PoolList::at(runtime),
        };
        let asked = init::asked_pool().path.map(path);
        let found = match places.pool_with(&self.name, asked) {
            // Of one that cannot be looked at it is asked again.
            Err(error) => return want_of(&error).map_or(Ok(None), Err),
            Ok(Some(found)) => found,
            Ok(None) => {
                self.unstaged_after
                    .store(last.unwrap_or(0), Ordering::Relaxed);
                return Ok(None);
            }
        };
        let path = PoolPath::of(found.as_os_str().as_bytes());
        let pool = path.ok_or(libc::ENXIO).and_then(attach)?;
        let mut seats = seats();
        // Another thread may have been here.
        if let Some(seat) = seats.iter().find(|seat| seat.device == self.device) {
            return seat.pool.clone().map(Some);
        }
        SEATED.store(sys::getpid().unwrap_or(0) as u32, Ordering::SeqCst);
        seats.push(Seat {
            device: self.device,
            pool: Ok(pool.clone()),
            asked: Instant::now(),
        });
        Ok(Some(pool))
    }

    /// Whether anybody has the file staged, as far as can be told: where it cannot, somebody may.
    pub(crate) fn is_staged(&self, fd: i32) -> bool {
        self.found(fd).map_or(true, |entry| entry.is_some())
    }

    /// Reads with what others have staged of the file; `None` when nobody has.
    pub(crate) fn watch(&self, fd: i32, mode: Mode) -> Result<Option<Staged>, Refusal> {
        may_stage(fd)?;
        let Some((pool, entry)) = self.found(fd)? else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(borrow(fd)).map_err(Errno::raw_os_error)?;
        let opened = KernelFile::new(ProgramFd::Program(fd))
            .map_err(Error::from)
            .and_then(|base| {
                let file = StagedFile::open_entry(&pool.stage, entry, base, mode)?;
                // Whoever has it staged has declared it as well.
                file.share()?;
                Ok(file)
            });
        match opened {
            Ok(file) => Ok(Some(Staged::new(file, None, &pool, &stat, (false, true)))),
            Err(Error::Taken | Error::AlreadyOpen) => Ok(None),
            Err(error) => Err(error.errno().raw_os_error()),
        }
    }
}

/// Takes a declared file away from all who have it staged, where no monitor does that: the kernel is about to have it.
/// They find it taken, and nobody gives them a lease.
pub(crate) fn end_for_all(fd: i32) -> Result<(), i32> {
    if !are_ours_or_none() {
        return Ok(());
    }
    let _inside = signal::engine::enter();
    let Some(entry) = Entry::of(fd) else {
        return Ok(());
    };
    let ended = patiently(|| {
        let found = entry.found(fd);
        let found = found.map_err(|errno| Error::Base(Errno::from_raw_os_error(errno)))?;
        let Some((pool, file)) = found else {
            return Ok(());
        };
        with_base(fd, |base| {
            // What others may have staged in any mode is published whatever it waits for.
            let staged = StagedFile::open_unread(&pool.stage, file, base, Mode::Sync)?;
            staged.take_away(|| {}).map(drop)
        })
    });
    match ended {
        Ok(()) | Err(Error::Taken) => Ok(()),
        // Its program has it alone, by a lease: the kernel has whoever opens it wait.
        Err(Error::Base(Errno::AGAIN)) => Ok(()),
        Err(error) => Err(failure(&error)),
    }
}

/// Does `work` with a description by which the file can be written where one says: the program's own, or one of our own
/// for a moment. Closing that would end the record locks that the process has on the file, so it stays where there are any.
fn with_base<T>(
    fd: i32,
    work: impl FnOnce(KernelFile<ProgramFd>) -> Result<T, Error>,
) -> Result<T, Error> {
    let flags = rustix::fs::fcntl_getfl(borrow(fd)).map_err(Error::Base)?;
    let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    if writes && !flags.intersects(OFlags::APPEND | OFlags::PATH) {
        return work(KernelFile::new(ProgramFd::Program(fd)).map_err(Error::Base)?);
    }
    // A child that is forked just then keeps it until it executes something, and the file from being staged.
    let path = ProcPath::of_file(fd);
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = brief::above_standard(|| {
        rustix::fs::open(path.as_c_str(), flags, rustix::fs::Mode::empty())
    });
    let opened = opened.map_err(Error::Base)?;
    let base = if record_locks::are_on(fd) {
        ProgramFd::Program(opened.into_raw_fd())
    } else {
        ProgramFd::Pool(opened)
    };
    work(KernelFile::new(base).map_err(Error::Base)?)
}

/// The paths of files below a directory of this device that anybody has staged.
pub(crate) fn staged_below(fd: i32, device: u64, dir: &[u8]) -> Vec<CString> {
    let _inside = signal::engine::enter();
    let Ok(pool) = pool_of(borrow(fd), device) else {
        return Vec::new();
    };
    let table = pool.file.pool();
    let path_of = |file| {
        let name = table.file_name(file).ok()?;
        declared::lies_in(&name.path, dir).then(|| CString::new(name.path).ok())?
    };
    let files = table.files().unwrap_or_default();
    files.into_iter().filter_map(path_of).collect()
}

/// Size and time of a file that anybody has staged, on a device of which this process knows the pool.
pub(crate) fn staged_anywhere(fd: i32, device: u64) -> Option<Logical> {
    let known = |seats: &[Seat]| {
        let seat = seats.iter().find(|seat| seat.device == device);
        seat.map(|seat| seat.pool.clone())
    };
    let pool = match are_ours().then(|| known(&seats())).flatten() {
        Some(pool) => pool.ok()?,
        // Others may have it staged before this process has anything to do there.
        None if declared::is_declared(fd) => pool_of(borrow(fd), device).ok()?,
        None => return None,
    };
    let table = pool.file.pool();
    if !table.anything_staged() {
        return None;
    }
    let (handle_type, handle) = staged::handle_of(borrow(fd)).ok()?;
    let name = FileName {
        handle_type,
        handle,
        path: Vec::new(),
        device,
    };
    let entry = table.find_file(&name).ok()??;
    let size = table.end(entry).ok()??;
    let modified = table.modified(entry).ok()?;
    Some(Logical::written_at(size, modified))
}

/// Whether its owner may open the file, as [`visit`] does.
pub(crate) fn is_open_to_its_owner(stat: &libc::stat) -> bool {
    stat.st_mode & (libc::S_IRUSR | libc::S_IWUSR) != 0
}

/// Has whoever stages the file of a description publish everything and let go of it, as somebody does who opens it; but
/// the open does not wait, so it fails, and nobody who watches the file is told of it. Where there is no lease nothing is
/// opened: closing it would end this process's locks on the file; where there is one nobody has any. While the lease is
/// being broken nothing is opened either: it might just have been given back, and that open would succeed. No memory is
/// taken, see [`crate::vfork`].
pub(crate) fn visit(fd: i32) -> Result<(), i32> {
    let path = ProcPath::of_file(fd);
    let open = |access: OFlags| {
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        rustix::fs::open(path.as_c_str(), flags, rustix::fs::Mode::empty()).map(drop)
    };
    let (mut pause, mut asked) = (SHORTEST, Instant::now());
    loop {
        match held_lease(fd) {
            Held::Nothing => return Ok(()),
            Held::Breaking if asked.elapsed() < UNTIL_ASKED_AGAIN => {}
            Held::Breaking | Held::Lease => {
                asked = Instant::now();
                let answer = match open(OFlags::RDONLY) {
                    Err(Errno::ACCESS) => open(OFlags::WRONLY),
                    answer => answer,
                };
                match answer {
                    Ok(()) => return Ok(()),
                    Err(Errno::AGAIN) => {}
                    Err(errno) => return Err(errno.raw_os_error()),
                }
            }
        }
        adit_pmem::rest(pause);
        pause = (2 * pause).min(LONGEST);
    }
}

/// Pauses between two looks whether the lease is gone.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(2);
/// The kernel ends a lease that its owner keeps for too long when somebody asks for the file, not by itself.
const UNTIL_ASKED_AGAIN: Duration = Duration::from_secs(1);

/// What a description has.
enum Held {
    Nothing,
    Lease,
    /// A lease that its owner was told to give back.
    Breaking,
}

/// The lease of a description. Without a descriptor to look through one that is just being broken is not seen.
fn held_lease(fd: i32) -> Held {
    let mut text = [0; 4096];
    let Ok(len) = describe(fd, &mut text) else {
        let asked = sys::fcntl(fd as usize, libc::F_GETLEASE as usize, 0);
        return if asked == Ok(libc::F_UNLCK as usize) {
            Held::Nothing
        } else {
            Held::Lease
        };
    };
    let says = |word: &[u8]| text[..len].windows(word.len()).any(|part| part == word);
    if says(b"LEASE  BREAKING") {
        Held::Breaking
    } else if len == text.len() || says(b"LEASE") {
        Held::Lease
    } else {
        Held::Nothing
    }
}

/// What the kernel tells of a description, as far as there is room.
fn describe(fd: i32, text: &mut [u8]) -> Result<usize, Errno> {
    let path = ProcPath::of_description(fd);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let info = rustix::fs::open(path.as_c_str(), flags, rustix::fs::Mode::empty())?;
    rustix::io::read(&info, text)
}

/// Whether a description has locks that end with it, as far as is known.
fn has_locks(fd: i32) -> bool {
    let mut text = [0; 4096];
    let Ok(len) = describe(fd, &mut text) else {
        return true;
    };
    let says = |word: &[u8]| text[..len].windows(word.len()).any(|part| part == word);
    len == text.len() || says(b"FLOCK") || says(b"OFDLCK")
}

/// A refusal as `adit stat` counts it.
pub(crate) fn reason(refusal: Refusal) -> Reason {
    match refusal {
        libc::ENOMEM | libc::ENOSPC | libc::EMFILE | libc::ENFILE => Reason::Limit,
        libc::EBUSY => Reason::Program,
        _ => Reason::Other,
    }
}

/// What may be staged, as far as the file itself says so: it is this user's, it has a name by which
/// recovery finds it, and a write to it changes nothing but its bytes.
fn eligible(fd: i32) -> Result<Stat, Refusal> {
    let fd = borrow(fd);
    let stat = rustix::fs::fstat(fd).map_err(Errno::raw_os_error)?;
    if stat.st_nlink == 0 {
        return Err(NAMELESS);
    }
    let owner = rustix::process::geteuid().as_raw();
    let privileged = stat.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let fits = regular && stat.st_uid == owner && !privileged;
    let capable = || {
        let mut value = [0u8; 64];
        // No such attribute, and no attributes at all, are the answers that let it be staged.
        !matches!(
            rustix::fs::fgetxattr(fd, c"security.capability", &mut value),
            Err(Errno::NODATA | Errno::OPNOTSUPP)
        )
    };
    (fits && !capable()).then_some(stat).ok_or(libc::EPERM)
}

impl Pool {
    fn take(
        &self,
        (ofd, fd): (&Ofd, i32),
        stat: &Stat,
        name: &FileName,
        mode: Mode,
        (appends, declared): (bool, bool),
    ) -> Result<Staged, Error> {
        let attachment = self.stage.attachment();
        let file = attachment.enter_file(name)?;
        let base = ofd
            .take_append_off(fd, appends)
            .and_then(|()| KernelFile::new(ProgramFd::Program(fd)));
        let lease = base.as_ref().map_err(|errno| *errno).and_then(|_| {
            let request = AcquireRequest {
                pool: self.path.as_bytes(),
                file,
                slot: attachment.slot(),
                mode,
                restore_append: appends,
                declared,
                fd: borrow(fd),
            };
            let dir = init::runtime_dir().ok_or(Errno::CONNREFUSED)?;
            client::acquire(dir, &request).map_err(|refused| {
                if matches!(refused, Refused::NoMonitor(_)) {
                    give_lease_up(fd);
                }
                Errno::from_raw_os_error(refusal_of(refused))
            })
        });
        let (base, lease) = match (base, lease) {
            (Ok(base), Ok(lease)) => (base, lease),
            (Err(errno), _) | (_, Err(errno)) => {
                self.forget(file);
                ofd.give_append_back(fd, appends);
                return Err(Error::Base(errno));
            }
        };
        let opened = StagedFile::open_entry(&self.stage, file, base, mode).and_then(|file| {
            if lease.is_shared() {
                file.share()?;
            }
            let only = (mode == Mode::Posix).then(|| AppendsOnly::of(&file));
            Ok((file, only.transpose()?))
        });
        match opened {
            Ok((file, only)) => {
                let file = file.with_relink(Relink::from_pool(&self.file, &self.stage));
                let mut staged = Staged::new(file, Some(lease), self, stat, (appends, declared));
                staged.only = only;
                Ok(staged)
            }
            Err(Error::Taken) => Err(Error::Taken),
            Err(error) => {
                self.forget(file);
                ofd.give_append_back(fd, appends);
                release(fd, &lease);
                Err(error)
            }
        }
    }

    /// Takes an entry back that was made in vain. One under which something is staged stays.
    fn forget(&self, file: FileRef) {
        let attachment = self.stage.attachment();
        if let Ok(guard) = attachment.lock_file(file)
            && let Ok(next) = guard.next_seq()
            && attachment
                .pool()
                .retired(file)
                .is_ok_and(|retired| retired + 1 == next)
        {
            let _ = guard.forget();
        }
    }
}

/// Sets or clears `O_APPEND`, where the program had asked for it.
pub(crate) fn set_append(fd: i32, appends: bool, on: bool) -> rustix::io::Result<()> {
    if !appends {
        return Ok(());
    }
    let mut flags = rustix::fs::fcntl_getfl(borrow(fd))?;
    flags.set(OFlags::APPEND, on);
    rustix::fs::fcntl_setfl(borrow(fd), flags)
}

/// Gives a lease back. A monitor that is gone cannot, nor one that was started since, or went on for one that
/// was killed over this; the lease is the description's, so we can.
fn release(fd: i32, lease: &Lease) {
    let released = init::runtime_dir().map(|dir| client::release(dir, lease));
    if !matches!(released, Some(Ok(true))) {
        give_lease_up(fd);
    }
}

fn give_lease_up(fd: i32) {
    let (what, unlock) = (libc::F_SETLEASE as usize, libc::F_UNLCK as usize);
    let _ = sys::fcntl(fd as usize, what, unlock);
}

impl Staged {
    fn new(
        file: StagedFile<FileMedium, KernelFile<ProgramFd>>,
        lease: Option<Lease>,
        pool: &Pool,
        stat: &Stat,
        (appends, declared): (bool, bool),
    ) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        STAGED.fetch_add(1, Ordering::SeqCst);
        Self {
            file,
            only: None,
            lease,
            declared,
            stage: Arc::clone(&pool.stage),
            device: stat.st_dev,
            inode: stat.st_ino,
            appends,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            since: Instant::now(),
        }
    }

    /// Whether this description only reads what others have staged.
    pub(crate) fn watches(&self) -> bool {
        self.lease.is_none()
    }

    /// Before this process opens the file again: the lease goes, the file stays staged. False where that cannot be.
    pub(crate) fn share(&self) -> bool {
        let Some(lease) = self.lease.as_ref().filter(|_| self.declared) else {
            return self.declared;
        };
        let shared = || matches!(self.file.is_shared(), Ok(true));
        let share = |dir| matches!(client::share(dir, lease), Ok(true));
        shared() || init::runtime_dir().is_some_and(share)
    }

    /// Before a child gets the description, too: whoever opens the file takes it away, as one that was not declared.
    /// False where others have it staged already.
    pub(crate) fn hold_alone(&self) -> bool {
        if !self.declared {
            return true;
        }
        let Some(lease) = &self.lease else {
            return false;
        };
        let alone = |dir| matches!(client::hold_alone(dir, lease), Ok(true));
        init::runtime_dir().is_some_and(alone)
    }

    /// Gives the description's part in a shared file back, with everything published. The last one ends the staging;
    /// its monitor does that.
    fn leave(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        let Some(lease) = &self.lease else {
            return Ok(());
        };
        match self.publish(Scope::Everything) {
            Ok(()) => {
                // From here on its times are the file's own, also for those who have it staged still.
                if self.file.is_clean() {
                    let _ = self.file.times_were_set();
                }
                let released = init::runtime_dir().map(|dir| client::release(dir, lease));
                if matches!(released, Some(Ok(true))) {
                    ofd.give_append_back(fd, self.appends);
                    return Ok(());
                }
                // Of a monitor that was killed with its standby the next one has not learned who else has a seat, and
                // nobody would end the staging when all have left: this one does, and the others begin anew.
                let restore = || ofd.give_append_back(fd, self.appends);
                match patiently(|| self.file.take_away(restore)) {
                    Ok(_) | Err(Error::Taken) => {
                        ofd.give_append_back(fd, self.appends);
                        give_lease_up(fd);
                        Ok(())
                    }
                    Err(error) => Err(failure(&error)),
                }
            }
            Err(Error::Taken) => {
                self.was_taken(ofd, fd);
                Ok(())
            }
            Err(Error::Pool(adit_pool::Error::NotAttached)) => ofd.ask_the_parent(fd),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Publishes. Who else does so just now is waited for: he may have begun before the last write.
    fn publish(&self, scope: Scope) -> Result<(), Error> {
        patiently(|| self.file.publish(scope).map(drop))
    }

    /// Shows what is staged to who looks at the file without Adit. What only others have staged is theirs to show, and what
    /// was closed without our seeing it the monitor's.
    pub(crate) fn show(&self, fd: i32, scope: Scope) -> Result<(), Error> {
        if self.watches() || !self.is_behind(fd) {
            return Ok(());
        }
        patiently(|| self.file.show_outside(scope))
    }

    /// The engine's view of it.
    pub(crate) fn file(&self) -> &StagedFile<FileMedium, KernelFile<ProgramFd>> {
        &self.file
    }

    /// Where a write goes that is not staged whatever it is.
    pub(crate) fn only(&self) -> Option<&AppendsOnly> {
        self.only.as_ref()
    }

    /// Whether this process still knows what is durable in the pool.
    pub(crate) fn is_sound(&self) -> bool {
        is_sound(&self.stage)
    }

    /// Sets the times of the file by `set`, which the kernel does, while it stays staged.
    pub(crate) fn set_times(
        &self,
        fd: i32,
        set: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Error> {
        if self.declared || !self.waits_for_a_device() || !self.is_behind(fd) {
            return Err(Error::Shared);
        }
        self.file.set_times(|| {
            set()?;
            let stat = rustix::fs::fstat(borrow(fd))?;
            let seconds = u64::try_from(stat.st_mtime).map_err(|_| Error::TooLarge)?;
            let whole = seconds.checked_mul(1_000_000_000).ok_or(Error::TooLarge)?;
            // Zero would be no time.
            match whole + stat.st_mtime_nsec as u64 {
                0 => Err(Error::TooLarge),
                modified => Ok(modified),
            }
        })
    }

    /// `fsync`.
    pub(crate) fn fsync(&self) -> Result<(), Error> {
        match &self.only {
            Some(only) => return only.fsync(&self.file),
            None => self.file.fsync()?,
        }
        self.show_synced()
    }

    /// After a commit: others find it in the file where they do not wait for it.
    pub(crate) fn show_synced(&self) -> Result<(), Error> {
        // Without a lease nobody who opens the file waits, and after a sync it is there for everybody.
        if !self.declared || !self.file.is_shared()? {
            return Ok(());
        }
        if self.watches() {
            self.publishes_elsewhere();
            return Ok(());
        }
        // It is durable in the pool, and nobody who does not look there writes to the file.
        patiently(|| self.file.show_committed())
    }

    /// Publishes everything and gives the file back to the kernel. An error is the kernel's, for the
    /// program; what could not be published stays in the pool, and the lease with the monitor.
    pub(crate) fn give_up(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        let Some(lease) = &self.lease else {
            return Ok(());
        };
        if !self.is_behind(fd) {
            // The number was closed, and maybe reused, by a call that we did not see. The monitor
            // has a descriptor of its own and publishes through that.
            return Ok(());
        }
        let restore = || ofd.give_append_back(fd, self.appends);
        let taken = patiently(|| {
            if self.declared {
                self.file.take_away_alone(restore)
            } else {
                self.file.take_away(restore)
            }
        });
        match taken {
            Ok(_) => {
                release(fd, lease);
                Ok(())
            }
            Err(Error::Shared) => self.leave(ofd, fd),
            Err(Error::Taken) => {
                self.was_taken(ofd, fd);
                Ok(())
            }
            // It is the parent's.
            Err(Error::Pool(adit_pool::Error::NotAttached)) => ofd.ask_the_parent(fd),
            Err(error) if !self.is_sound() && self.ends_elsewhere() => {
                visit(fd).map_err(|_| failure(&error))?;
                self.was_taken(ofd, fd);
                Ok(())
            }
            Err(error) => Err(failure(&error)),
        }
    }

    /// Whether to publish it waits for a device.
    pub(crate) fn waits_for_a_device(&self) -> bool {
        self.stage.attachment().pool().medium().fence_is_slow()
    }

    /// Leaves the file to the monitor with what is staged of it, as the description is about to lose its last descriptor
    /// ([`closed`]). False where the program has to publish it: another open could not wait for it, somebody would notice
    /// that the description lives on, or it is so much that to wait for the device is the least of it.
    pub(crate) fn leave_to_monitor(&self, fd: i32) -> bool {
        let Some(lease) = self.lease.as_ref().filter(|_| !self.declared) else {
            return false;
        };
        let Ok(bytes) = self.file.size() else {
            return false;
        };
        let is_it = |stat: Stat| self.is(stat.st_dev, stat.st_ino) && stat.st_nlink == 1;
        let is_alone = || rustix::fs::fstat(borrow(fd)).is_ok_and(is_it) && !has_locks(fd);
        if !(self.waits_for_a_device() && self.is_sound() && bytes <= SHORT && is_alone()) {
            return false;
        }
        closed::make_room();
        let close = |dir| matches!(client::close(dir, lease), Ok(true));
        let left = init::runtime_dir().is_some_and(close);
        if left {
            closed::add(Closed {
                device: self.device,
                inode: self.inode,
                pool: Arc::clone(self.stage.attachment().pool()),
                file: self.file.file(),
                bytes,
            });
        }
        left
    }

    /// A sync of the pool has failed, and this process publishes nothing any more. The monitor may have opened it anew:
    /// where it can publish now, it takes the file away as soon as somebody asks. Or it has found meanwhile that all is
    /// published, and made that durable.
    fn ends_elsewhere(&self) -> bool {
        self.publishes_elsewhere() || self.file.is_durably_taken()
    }

    /// Has the monitor publish.
    fn publishes_elsewhere(&self) -> bool {
        let published = init::runtime_dir()
            .map(|dir| client::publish(dir, self.device, self.inode, OTHERS_PATIENCE));
        matches!(published, Some(Ok(true)))
    }

    /// Somebody else has ended the staging. A monitor that came later does not know of `O_APPEND`. The monitor lets
    /// openers in before it closes its duplicate, which would outlive the program's last close: watchers would hear of
    /// that too late, and a file without a name would still take its space.
    pub(crate) fn was_taken(&self, ofd: &Ofd, fd: i32) {
        let Some(lease) = &self.lease else {
            return;
        };
        ofd.give_append_back(fd, self.appends);
        release(fd, lease);
    }

    /// Whether the file was staged for so long.
    pub(crate) fn lasted(&self, time: Duration) -> bool {
        self.since.elapsed() >= time
    }

    /// The same of a file that was taken away at a time that nobody has told: it was staged at its last write. One that was
    /// quiet for long enough may have been given back for that.
    pub(crate) fn had_lasted(&self, time: Duration) -> bool {
        let lasted = self.since.elapsed();
        // Of who only reads nothing else is known.
        let quiet = self.file.quiet_for().unwrap_or_default();
        lasted.saturating_sub(quiet) >= time || quiet >= init::give_back_after()
    }

    /// Whether it is the file with this identity.
    pub(crate) fn is(&self, device: u64, inode: u64) -> bool {
        (self.device, self.inode) == (device, inode)
    }

    /// Whether `fd` leads to a file of the same file system.
    pub(crate) fn is_on_device_of(&self, fd: i32) -> bool {
        rustix::fs::fstat(borrow(fd)).is_ok_and(|stat| stat.st_dev == self.device)
    }

    /// Whether `fd` still leads to the file.
    pub(crate) fn is_behind(&self, fd: i32) -> bool {
        rustix::fs::fstat(borrow(fd))
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }
}

/// Publishes, commits or takes away, with whoever else has the file in hand waited for.
pub(crate) fn patiently<T>(work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    patiently_for(PATIENCE, work)
}

fn patiently_for<T>(patience: Duration, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match work() {
            Err(error) if is_in_hand(&error) && begun.elapsed() < patience => {
                adit_pmem::rest(PAUSE);
            }
            done => return done,
        }
    }
}

/// Whether somebody else publishes the file, or has it locked, and nothing was done.
fn is_in_hand(error: &Error) -> bool {
    let busy = matches!(error, Error::Pool(adit_pool::Error::Busy { .. }));
    busy || matches!(error, Error::Publishing { .. } | Error::Contended)
}

/// What a program is told that closes a file or goes on without staging. Of somebody else who has it in hand it knows
/// nothing, and of `EAGAIN` in such a call neither.
fn failure(error: &Error) -> i32 {
    if is_in_hand(error) {
        return libc::EIO;
    }
    error.errno().raw_os_error()
}

/// What recovery finds the file by.
fn name_of(fd: i32, stat: &Stat) -> Option<FileName> {
    let (handle_type, handle) = staged::handle_of(borrow(fd)).ok()?;
    // Of this thread: the first one may have ended, and `/proc/self` with it.
    let link = ProcPath::of_file(fd);
    let path = rustix::fs::readlink(link.as_c_str(), Vec::new()).ok()?;
    Some(FileName {
        handle_type,
        handle,
        path: path.into_bytes(),
        device: stat.st_dev,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    fn busy() -> Error {
        Error::Pool(adit_pool::Error::Busy {
            lock: "file lock",
            slot: 1,
            thread: 1,
        })
    }

    /// Who has a file locked for longer than the pool waits may still be done with it soon.
    #[test]
    fn who_has_a_file_in_hand_is_waited_for() {
        let tries = Cell::new(0);
        let work = |error: fn() -> Error| {
            let nth = tries.replace(tries.get() + 1);
            if nth % 3 == 2 { Ok(nth) } else { Err(error()) }
        };
        assert!(matches!(patiently(|| work(busy)), Ok(2)));
        assert!(matches!(patiently(|| work(|| Error::Contended)), Ok(5)));
        let full = patiently(|| work(|| Error::NoSpace));
        assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        assert_eq!(tries.get(), 7);
    }

    #[test]
    fn who_has_a_file_in_hand_for_ever_is_told_as_an_error_of_the_disk() {
        let locked = patiently_for(Duration::ZERO, || Err::<(), _>(busy()));
        assert_eq!(locked.map_err(|error| failure(&error)), Err(libc::EIO));
        let published = patiently_for(Duration::ZERO, || {
            Err::<(), _>(Error::Publishing { slot: 1 })
        });
        assert_eq!(published.map_err(|error| failure(&error)), Err(libc::EIO));
    }
}
