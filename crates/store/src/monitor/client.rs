//! What a program that stages files asks of the monitor.
//!
//! Each call is one message and one answer over a connection of its own: nothing stays open, nothing
//! is allocated, every wait has an end. A monitor that did not answer in time, because it is stopped,
//! is left alone for some seconds, so that it costs a program one wait and not one per file.
//!
//! Signals are the caller's business, and so is a fork in another thread during a call.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use adit_pool::FileRef;
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::clock;
use crate::pools::AskedPool;
use crate::registry::sys::Fd;
use crate::registry::text::number;
use crate::registry::wire::{self, Answer, Request};
use crate::registry::{DirError, RuntimeDir};
use crate::staged::Mode;

/// How long finding or making a pool may take: its blocks are reserved, and made durable.
const FOR_A_POOL: Duration = Duration::from_secs(3);

/// How long taking a lease may take: the monitor attaches to the pool for the first one, and on a busy machine has to
/// get its turn.
const FOR_A_LEASE: Duration = Duration::from_secs(3);

/// How long giving one up may take: the monitor may be in the middle of publishing, and on a busy machine has to get its
/// turn. Until it has closed its duplicate nobody can execute the file.
const FOR_A_RELEASE: Duration = Duration::from_secs(3);

/// How long taking a file away from all may take: it is published and synced.
const FOR_A_BAR: Duration = Duration::from_secs(10);

/// How long what is closed may take: many files are synced.
const FOR_THE_CLOSED: Duration = Duration::from_secs(10);

/// How long it is asked for again of a monitor that cannot do it yet, and how often. One that has just taken over says so.
const FOR_A_START: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);

/// How long a look may take: the monitor knows the answer.
const FOR_A_LOOK: Duration = wire::PATIENCE;

/// How long giving a lease up may take of a monitor that was silent lately.
const FOR_A_SILENT_RELEASE: Duration = Duration::from_millis(500);

/// How long a silent monitor is not asked anything but to let go.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// Until when the monitor is left alone, nanoseconds of the clock that never jumps.
static SILENT_UNTIL: AtomicU64 = AtomicU64::new(0);

/// How long it is not asked about files by a program that has waited for such an answer in vain, and until when: it may be
/// in the middle of something for others, and what this program stages must not suffer from that.
const NOT_LOOKED: Duration = Duration::from_secs(1);
static NOT_LOOKED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Nobody answers, or not in time.
    #[error("no monitor answers: {0}")]
    NoMonitor(Errno),
    /// The monitor is of another build, or does not know what it is asked about.
    #[error("the monitor does not understand the request")]
    NotUnderstood,
    /// The file's medium is not served.
    #[error("files on this file system are left to the kernel")]
    Medium,
    /// There is no place for a pool that this user may write to.
    #[error("there is no place for a pool: {0}")]
    NoPlace(Errno),
    /// The pool that is there, or was asked for, cannot be used.
    #[error("the pool cannot be used: {0}")]
    Pool(Errno),
    /// The kernel does not grant the write lease.
    #[error("the kernel grants no write lease: {0}")]
    Lease(Errno),
    /// The monitor holds as many files, or stays for as many processes, as it can.
    #[error("the monitor serves as many as it can")]
    TooMany,
}

impl Refused {
    /// The reason as the answer carries it. Zero is yes.
    pub(super) fn answer(self) -> Answer {
        let (code, errno) = match self {
            Self::NotUnderstood => (1, None),
            Self::Medium => (2, None),
            Self::NoPlace(errno) => (3, Some(errno)),
            Self::Pool(errno) => (4, Some(errno)),
            Self::Lease(errno) => (5, Some(errno)),
            Self::TooMany => (6, None),
            Self::NoMonitor(errno) => (7, Some(errno)),
        };
        let errno = errno.map_or(0, Errno::raw_os_error);
        Answer::no(code, errno.unsigned_abs())
    }

    /// What an answer that is no yes says.
    pub(super) fn of(answer: &Answer) -> Self {
        let errno = i32::try_from(answer.errno).unwrap_or(0);
        // Zero and what lies beyond the kernel's numbers is no error of the kernel's.
        let errno = match errno {
            1..4096 => Errno::from_raw_os_error(errno),
            _ => Errno::IO,
        };
        match answer.code {
            2 => Self::Medium,
            3 => Self::NoPlace(errno),
            4 => Self::Pool(errno),
            5 => Self::Lease(errno),
            6 => Self::TooMany,
            7 => Self::NoMonitor(errno),
            _ => Self::NotUnderstood,
        }
    }
}

/// Path of a pool.
#[derive(Clone, Copy)]
pub struct PoolPath(wire::Path);

impl PoolPath {
    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl core::fmt::Debug for PoolPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl PoolPath {
    /// That of a pool which was found without a monitor; `None` where it is too long.
    #[must_use]
    pub fn of(path: &[u8]) -> Option<Self> {
        let mut text = wire::Path::new();
        text.push(path);
        text.as_c_str().is_some().then_some(Self(text))
    }
}

/// What [`acquire`] needs to know.
#[derive(Clone, Copy, Debug)]
pub struct AcquireRequest<'a> {
    /// Path of the pool, from [`pool_for`].
    pub pool: &'a [u8],
    /// The file's entry there: entered before, so that a break always finds something to take away.
    pub file: FileRef,
    /// Slot of this process's attachment. When nobody holds it any more, by `exec` or death, the
    /// monitor publishes.
    pub slot: u32,
    /// What a write is worth.
    pub mode: Mode,
    /// `O_APPEND` was taken from the description; the monitor restores it when it takes the file away.
    pub restore_append: bool,
    /// The user has declared that nobody outside Adit writes to the file, or reads it between two syncs: then
    /// others may stage it at the same time.
    pub declared: bool,
    /// The program's descriptor.
    pub fd: BorrowedFd<'a>,
}

/// A lease that the monitor holds for this process.
#[derive(Debug, PartialEq, Eq)]
pub struct Lease {
    number: u64,
    ino: u64,
    shared: bool,
}

impl Lease {
    /// Whether it is none, but a seat beside others: the caller says in the pool that the file is shared
    /// ([`crate::staged::StagedFile::share`]) before it writes.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// That of a file of another file system which has the same inode number, for tests.
    #[cfg(test)]
    pub(super) fn of_a_namesake(&self) -> Self {
        Self {
            number: self.number + 1,
            ..*self
        }
    }
}

/// The pool for the files of an open file's device. What the user asked for is taken when it fits, see
/// [`crate::pools`].
pub fn pool_for(
    dir: &RuntimeDir,
    fd: BorrowedFd<'_>,
    asked: AskedPool<'_>,
) -> Result<PoolPath, Refused> {
    let request = Request::Pool {
        asked: asked.path.unwrap_or_default(),
        size: asked.size.unwrap_or(0),
    };
    let answer = ask(dir, &request, Some(fd), FOR_A_POOL)?;
    match answer.path.as_c_str() {
        Some(_) => Ok(PoolPath(answer.path)),
        None => Err(Refused::NotUnderstood),
    }
}

/// Has the monitor take the write lease of a description. From then on it holds a duplicate: call
/// [`release`] before the description gets another user, or loses its last one in this process. After
/// [`Refused::NoMonitor`] it may have been taken by one that was killed over its answer: the lease is the
/// description's, so the caller gives it up.
pub fn acquire(dir: &RuntimeDir, request: &AcquireRequest<'_>) -> Result<Lease, Refused> {
    let staged = wire::Staged {
        pool: request.pool,
        file: request.file.id(),
        slot: request.slot,
        mode: mode_number(request.mode),
        restore_append: request.restore_append,
        declared: request.declared,
    };
    let ino = rustix::fs::fstat(request.fd)
        .map_err(Refused::Lease)?
        .st_ino;
    let acquire = Request::Acquire(staged);
    let answer = ask(dir, &acquire, Some(request.fd), FOR_A_LEASE)?;
    Ok(Lease {
        number: answer.value,
        ino,
        shared: answer.errno != 0,
    })
}

/// Has a declared file shared, because this process opens it again; returns when the kernel would let it.
/// `Ok(false)` when it is not held by this monitor, or not declared any more.
pub fn share(dir: &RuntimeDir, lease: &Lease) -> Result<bool, Refused> {
    let request = Request::Share {
        lease: lease.number,
    };
    known(ask_anyway(dir, &request, None, FOR_A_LEASE))
}

/// Has a declared file shared with nobody from now on: whoever opens it gets it, as of any other file.
/// `Ok(false)` when it is shared already.
pub fn hold_alone(dir: &RuntimeDir, lease: &Lease) -> Result<bool, Refused> {
    let request = Request::HoldAlone {
        lease: lease.number,
    };
    known(ask_anyway(dir, &request, None, FOR_A_LEASE))
}

/// Has a declared file taken away from all who have it staged, this process too. Until somebody is alone with it,
/// nobody stages it again. Returns when everything is in the file. Where nobody answers, the next monitor is told that
/// there are such files.
pub fn bar(dir: &RuntimeDir, fd: BorrowedFd<'_>) -> Result<(), Refused> {
    let barred = ask_to_take(dir, &Request::Bar, fd);
    if let Err(Refused::NoMonitor(_)) = barred
        && let Ok(dir) = dir.open()
    {
        super::shared::tell_the_next(&dir).map_err(Refused::Pool)?;
    }
    barred
}

/// While there is no monitor: which one was the last, by a number that is never zero. As long as it is the same,
/// nobody begins to stage anything. `None` where one may be there.
#[must_use]
pub fn last_monitor(dir: &RuntimeDir) -> Option<u64> {
    let fd = match open(dir) {
        Ok(fd) => fd,
        Err(Errno::MFILE | Errno::NFILE) => return None,
        Err(_) => return Some(1),
    };
    // Looked at first: one that begins in between is seen to listen.
    let socket = rustix::fs::statat(fd.as_fd(), wire::SOCKET, AtFlags::SYMLINK_NOFOLLOW);
    let number = socket.map_or(0, |stat| {
        let made = clock::nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64);
        stat.st_ino.rotate_left(32) ^ made
    });
    wire::nobody_listens(&fd).then_some(number | 1)
}

/// Has a declared file taken away from all who have it staged, this process too. They may stage it again. Returns when
/// everything is in the file.
pub fn take_away(dir: &RuntimeDir, fd: BorrowedFd<'_>) -> Result<(), Refused> {
    ask_to_take(dir, &Request::TakeAway, fd)
}

/// A monitor that has just taken over may not be able yet to open the pool that the file is staged in.
fn ask_to_take(dir: &RuntimeDir, request: &Request<'_>, fd: BorrowedFd<'_>) -> Result<(), Refused> {
    let until = clock::steady() + FOR_A_START.as_nanos() as u64;
    loop {
        let taken = ask_anyway(dir, request, Some(fd), FOR_A_BAR).map(drop);
        if taken != Err(Refused::Pool(Errno::AGAIN)) || clock::steady() >= until {
            return taken;
        }
        adit_pmem::rest(PAUSE);
    }
}

fn known(answer: Result<Answer, Refused>) -> Result<bool, Refused> {
    match answer {
        Ok(_) => Ok(true),
        Err(Refused::NotUnderstood) => Ok(false),
        Err(refused) => Err(refused),
    }
}

/// Has the monitor give the lease up and close its duplicate; returns when it has. `Ok(false)` from one that
/// does not know the lease, because it was started since: it holds nothing, but the lease is the
/// description's, and may still be there for the caller to give up.
pub fn release(dir: &RuntimeDir, lease: &Lease) -> Result<bool, Refused> {
    let request = Request::Drop {
        lease: lease.number,
        ino: lease.ino,
    };
    let patience = if is_silent() {
        FOR_A_SILENT_RELEASE
    } else {
        FOR_A_RELEASE
    };
    match ask_anyway(dir, &request, None, patience) {
        Ok(_) => Ok(true),
        Err(Refused::NotUnderstood) => Ok(false),
        Err(refused) => Err(refused),
    }
}

/// Leaves a file to the monitor whose description is about to lose its last descriptor, with what is staged of it: the
/// monitor publishes that, commits it before, and gives the lease up. Nothing else is done with it here afterwards.
/// `Ok(false)` when it does not hold the lease, or others may have the file staged.
pub fn close(dir: &RuntimeDir, lease: &Lease) -> Result<bool, Refused> {
    let request = Request::Close {
        lease: lease.number,
        ino: lease.ino,
    };
    known(ask(dir, &request, None, FOR_A_LEASE))
}

/// Returns when all that this process has closed so is in the files, or cannot get there now. That takes as long as a disk
/// does: a monitor that has not answered in time is asked other things all the same.
pub fn wait_for_closed(dir: &RuntimeDir) -> Result<(), Refused> {
    let until = clock::steady() + FOR_THE_CLOSED.as_nanos() as u64;
    loop {
        let answer = say(dir, &Request::WaitForClosed, None, FOR_THE_CLOSED);
        let answer = answer.map_err(Refused::NoMonitor)?;
        match Refused::of(&answer) {
            _ if answer.agreed() => return Ok(()),
            // It has just taken over.
            Refused::Pool(Errno::AGAIN) if clock::steady() < until => adit_pmem::rest(PAUSE),
            refused => return Err(refused),
        }
    }
}

/// Has the monitor publish what is staged of a file, durably, and keep its lease: in `atomic` mode what
/// is committed. `Ok(false)` when it holds
/// no such file.
pub fn publish(dir: &RuntimeDir, dev: u64, ino: u64, patience: Duration) -> Result<bool, Refused> {
    let answer = ask_anyway(dir, &Request::Publish { dev, ino }, None, patience)?;
    Ok(answer.value != 0)
}

/// Has the monitor give a file back of which everything is in the file: others open it at once then, also without waiting,
/// until its program writes to it and stages it again. `Ok(false)` of one of which something is only staged, of one that
/// is declared, and when it holds no such file.
pub fn give_back(
    dir: &RuntimeDir,
    dev: u64,
    ino: u64,
    patience: Duration,
) -> Result<bool, Refused> {
    let answer = ask_anyway(dir, &Request::GiveBack { dev, ino }, None, patience)?;
    Ok(answer.value != 0)
}

/// How long a file is that somebody may have staged, and when it was written: nanoseconds since 1970, zero when
/// nobody said. `None` when the monitor holds no such file, or does not answer.
#[must_use]
pub fn look(dir: &RuntimeDir, dev: u64, ino: u64) -> Option<(u64, u64)> {
    if is_silent() || clock::steady() < NOT_LOOKED_UNTIL.load(Ordering::Relaxed) {
        return None;
    }
    match say(dir, &Request::Look { dev, ino }, None, FOR_A_LOOK) {
        Ok(answer) if answer.agreed() => Some((answer.value, number(answer.path.as_bytes())?)),
        Err(Errno::TIMEDOUT) => {
            NOT_LOOKED_UNTIL.store(after(NOT_LOOKED), Ordering::Relaxed);
            None
        }
        _ => None,
    }
}

fn ask(
    dir: &RuntimeDir,
    request: &Request<'_>,
    along: Option<BorrowedFd<'_>>,
    patience: Duration,
) -> Result<Answer, Refused> {
    if is_silent() {
        return Err(Refused::NoMonitor(Errno::TIMEDOUT));
    }
    ask_anyway(dir, request, along, patience)
}

fn ask_anyway(
    dir: &RuntimeDir,
    request: &Request<'_>,
    along: Option<BorrowedFd<'_>>,
    patience: Duration,
) -> Result<Answer, Refused> {
    match say(dir, request, along, patience) {
        Ok(answer) if answer.agreed() => Ok(answer),
        Ok(answer) => Err(Refused::of(&answer)),
        Err(error) => {
            if error == Errno::TIMEDOUT {
                SILENT_UNTIL.store(after(LEFT_ALONE), Ordering::Relaxed);
            }
            Err(Refused::NoMonitor(error))
        }
    }
}

fn say(
    dir: &RuntimeDir,
    request: &Request<'_>,
    along: Option<BorrowedFd<'_>>,
    patience: Duration,
) -> Result<Answer, Errno> {
    let dir = open(dir)?;
    match wire::ask(&dir, request, along, patience) {
        // It was killed in the middle. Its standby listens at the same socket.
        Err(Errno::CONNRESET | Errno::PIPE) => wire::ask(&dir, request, along, patience),
        answer => answer,
    }
}

/// Opens the runtime directory. One that is not ours has no monitor; that there is no descriptor for it says nothing of it.
fn open(dir: &RuntimeDir) -> Result<Fd, Errno> {
    dir.open().map_err(|error| match error {
        DirError::Kernel(errno @ (Errno::MFILE | Errno::NFILE)) => errno,
        _ => Errno::NOENT,
    })
}

fn after(pause: Duration) -> u64 {
    clock::steady().saturating_add(pause.as_nanos() as u64)
}

/// Whether the monitor did not answer in time lately.
fn is_silent() -> bool {
    clock::steady() < SILENT_UNTIL.load(Ordering::Relaxed)
}

/// The number of a mode in a message.
pub(super) fn mode_number(mode: Mode) -> u32 {
    match mode {
        Mode::Posix => 0,
        Mode::Sync => 1,
        Mode::Atomic => 2,
        Mode::Strict => 3,
    }
}

/// The mode of a number in a message.
pub(super) fn mode_of(number: u32) -> Option<Mode> {
    [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict]
        .into_iter()
        .find(|mode| mode_number(*mode) == number)
}
