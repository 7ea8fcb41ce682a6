//! The monitor: one transient process per user and runtime directory that does what processes under
//! Adit cannot do for themselves.
//!
//! It advances the times of files that were changed by stores, within a second for processes that
//! live and at once for those that died; it removes what dead processes left in the runtime
//! directory; it keeps blocks reserved ahead of programs that append in bursts. It holds the leases of
//! staged files, publishes them, and takes them away when somebody else opens them (`leases.rs`). It
//! ends when nobody has needed it for some seconds. Nothing durable depends on it: all it works from is in the
//! processes' registry files and in pools, so one that is killed loses nothing and the next one goes on:
//! its standby, at once (`standby.rs`), or whom `adit run` starts.
//!
//! # Safety
//!
//! The unsafe code takes descriptors over that a monitor which is gone has left open. The invariant: the
//! caller passes [`Options::inherited`] as [`STATE`] says, in a process that has just begun.
#![allow(unsafe_code)]

mod adopt;
pub mod client;
mod held;
mod lease;
mod leases;
mod open;
mod records;
mod reserve;
mod serve;
mod shared;
mod standby;
#[cfg(test)]
mod tests;
mod times;
mod workers;

use core::time::Duration;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd as _, AsRawFd as _};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, inotify};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::pools::{Places, PoolList};
use crate::registry::anywhere::Marks;
use crate::registry::snapshot::{Condition, Name, Snapshot, names};
use crate::registry::sys::{self, Fd};
use crate::registry::wire::{self, Request, ask};
use crate::registry::{DirError, RuntimeDir};
use client::Refused;
use lease::Signals;
use leases::{Leases, Report};
use records::{Base, Listed, Record, Records};
use serve::Server;
use standby::Standby;
use times::Settled;
use workers::Workers;

pub use standby::{STATE, Successor};

/// Pause after a wait that the kernel had no memory for.
const WITHOUT_MEMORY: Duration = Duration::from_millis(10);

/// Name of the file whose lock the running monitor holds.
const LOCK: &core::ffi::CStr = c"monitor.lock";

/// How the monitor runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often it looks while files are being changed. Never more than half a second apart.
    pub poll: Duration,
    /// How long it stays when nobody needs it.
    pub idle: Duration,
    /// How long it stays when it is told to end and somebody needs it: its programs may have been told the same, as where
    /// a service is stopped, and would lose to the kernel the files that they have to end. After SIGINT it does not.
    pub grace: Duration,
    /// What becomes of staged files while their programs go on.
    pub pace: Pace,
    /// A process to stay for from the start; see [`join`].
    pub stay_for: Option<u32>,
    /// The list of the user's pools; without one it is kept in the runtime directory.
    pub pools: Option<PoolList>,
    /// How a standby becomes the next monitor when this one is killed; without it there is none.
    pub successor: Option<Successor>,
    /// What a standby finds in [`STATE`] when it has become the monitor. To be given at once: the
    /// descriptors that it stands for are open.
    pub inherited: Option<i32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(250),
            idle: Duration::from_secs(5),
            grace: Duration::from_secs(10),
            pace: Pace::default(),
            stay_for: None,
            pools: None,
            successor: None,
            inherited: None,
        }
    }
}

/// When a monitor does something to files that programs have staged, while they go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How often what is staged is published.
    pub publish_after: Duration,
    /// How long nothing may be staged of a file until it is given back: it is a file as any other then, until its program
    /// writes to it and stages it again.
    pub give_back_after: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            publish_after: leases::AGE,
            give_back_after: Duration::from_secs(10),
        }
    }
}

/// How a monitor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Another one serves the directory; it knows about the process to stay for, unless it has no room for one more.
    AlreadyRunning,
    /// Nobody needed it any more, or it was told to end.
    Idle(Work),
}

/// What a monitor has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Times advanced.
    pub settled: u64,
    /// Files of dead processes cleared away.
    pub cleared: u64,
}

/// Why a monitor could not run.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The runtime directory is unusable.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The kernel refused something the monitor needs.
    #[error("the monitor cannot {what}: {error}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        error: Errno,
    },
}

fn failed(what: &'static str) -> impl Fn(Errno) -> MonitorError {
    move |error| MonitorError::Kernel { what, error }
}

/// Asks a running monitor to stay for as long as process `pid` lives. After [`Refused::TooMany`] one runs that stays
/// for as many as it can: it serves this process like all others, and may end before that has attached. Where nobody
/// answers, or one that is about to end, start one with [`Options::stay_for`]. Costs some 20 microseconds.
///
/// The monitor may live in another namespace of processes, where the number is somebody else's. It sees for
/// itself who asks; another process is therefore shown to it by a descriptor.
pub fn join(dir: &RuntimeDir, pid: u32) -> Result<(), Refused> {
    let named = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let other = named.filter(|pid| *pid != getpid());
    let life = other.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let life = life.map(Fd::new);
    // Who is gone is not stayed for.
    let pid = if other.is_some() && life.is_none() {
        0
    } else {
        pid
    };
    let fd = dir.open().map_err(|_| Refused::NoMonitor(Errno::NOENT))?;
    let along = life.as_ref().map(Fd::as_fd);
    match ask(&fd, &Request::Join { pid }, along, wire::PATIENCE) {
        Ok(answer) if answer.agreed() => Ok(()),
        Ok(answer) => Err(Refused::of(&answer)),
        Err(errno) => Err(Refused::NoMonitor(errno)),
    }
}

/// Runs the monitor of a runtime directory until nobody needs it. Returns at once when another one
/// runs. Call it in a process of its own that was started without the preload.
pub fn run(dir: &RuntimeDir, options: &Options) -> Result<Outcome, MonitorError> {
    let fd = dir.open_or_create()?;
    let begin = match options.inherited {
        Some(number) => inherit(number)?,
        None => match take_lock(dir, &fd, options)? {
            Some(lock) => begin(&fd, lock)?,
            None => return Ok(Outcome::AlreadyRunning),
        },
    };
    let runtime = Path::new(OsStr::from_bytes(dir.as_bytes()));
    let places = Places {
        runtime: runtime.to_owned(),
        list: options
            .pools
            .clone()
            .unwrap_or_else(|| PoolList::at(runtime)),
    };
    let mut monitor = Monitor::new(fd, options.clone(), places, begin)?;
    let report = monitor.serve();
    drop(monitor);
    remove_unused_tables();
    Ok(Outcome::Idle(report))
}

/// Removes tables of pools in memory that nobody works on. Nobody else knows when a pool has gone with its directory, or
/// its file system was unmounted.
/// Their file systems may be mounted for others alone, so it is the kernel that says whether somebody works on them.
fn remove_unused_tables() {
    for (path, fd) in adit_pool::tables_in_memory() {
        if lease::is_alone(fd.as_fd()) {
            let _ = rustix::fs::unlink(path.as_os_str().as_bytes());
        }
    }
}

/// What a monitor begins with.
struct Beginning {
    lock: Fd,
    listener: Fd,
    records: Rc<Records>,
    found: Option<Vec<(Listed, Record)>>,
    /// Another one was here, and was killed, and what it held is not in its records.
    after_another: bool,
    /// There may be barred files that nobody has told us of.
    unsure: bool,
}

fn begin(dir: &Fd, lock: Fd) -> Result<Beginning, MonitorError> {
    let (listener, after_another) = serve::listen(dir).map_err(failed("listen on its socket"))?;
    let base = Base {
        lock: lock.raw(),
        listener: listener.raw(),
    };
    let begun = Records::new().and_then(|records| records.begin(base).map(|()| records));
    Ok(Beginning {
        lock,
        listener,
        records: begun.map_err(failed("make memory for a successor"))?,
        found: None,
        after_another,
        unsure: after_another,
    })
}

/// Goes on from what a dead monitor has written down.
fn inherit(number: i32) -> Result<Beginning, MonitorError> {
    let refused = failed("take over from another");
    let nothing = || refused(Errno::INVAL);
    // SAFETY: the caller has just become this process, and only this descriptor and those that it names
    // were left open; each is named once.
    let inherited = |number| unsafe { Fd::inherited(number) }.ok_or_else(nothing);
    let heritage = Records::inherit(inherited(number)?);
    let heritage = heritage.map_err(&refused)?.ok_or_else(nothing)?;
    Ok(Beginning {
        lock: inherited(heritage.base.lock)?,
        listener: inherited(heritage.base.listener)?,
        records: heritage.records,
        found: Some(heritage.found),
        after_another: heritage.unknown,
        unsure: heritage.unsure,
    })
}

/// What a monitor that is told to end says to who wants it to stay: another one can serve when everything is in the files,
/// and those have ended whom it stays for a while.
pub const ENDING: Refused = Refused::NoMonitor(Errno::SHUTDOWN);

/// How long it is worth waiting for the end of one that says so.
pub const UNTIL_ANOTHER_ENDS: Duration = Duration::from_secs(30);

/// Takes the lock of the one monitor, or makes sure that its holder knows whom to stay for, if it has room for that. The
/// holder may be about to end, hence the rounds.
fn take_lock(dir: &RuntimeDir, fd: &Fd, options: &Options) -> Result<Option<Fd>, MonitorError> {
    let flags = OFlags::RDWR | OFlags::CREATE;
    let mode = Mode::RUSR | Mode::WUSR;
    let lock = sys::open_at(fd, LOCK, flags, mode).map_err(failed("open its lock file"))?;
    let begun = Instant::now();
    let mut rounds = 0;
    while rounds < 100 {
        let operation = FlockOperation::NonBlockingLockExclusive;
        if sys::try_lock(&lock, operation).map_err(failed("lock its file"))? {
            return Ok(Some(lock));
        }
        match options.stay_for.map(|pid| join(dir, pid)) {
            None | Some(Ok(()) | Err(Refused::TooMany)) => return Ok(None),
            Some(Err(ENDING)) if begun.elapsed() < UNTIL_ANOTHER_ENDS => {}
            Some(Err(_)) => rounds += 1,
        }
        adit_pmem::rest(Duration::from_millis(5));
    }
    Ok(None)
}

struct Monitor {
    dir: Fd,
    options: Options,
    /// Tells of new registry files. Where the user has as many watches as he may, they are looked for.
    news: Option<Fd>,
    server: Server,
    work: Work,
    needed_at: Instant,
    busy_at: Option<Instant>,
    ready: Ready,
    /// Goes last.
    _lock: Fd,
}

/// What the last wait found readable. Nothing else is asked about: what becomes readable later ends the
/// next wait.
#[derive(Default)]
struct Ready(Vec<i32>);

impl Ready {
    fn has(&self, fd: &Fd) -> bool {
        self.0.contains(&fd.raw())
    }
}

/// What one look at the directory found.
#[derive(Default)]
struct Look {
    attached: usize,
    unsettled: bool,
}

/// What a monitor needs of the kernel before it can serve.
struct Means {
    signals: Signals,
    workers: Workers<Report>,
    /// The first number of a lease.
    first: u64,
}

impl Means {
    fn get() -> Result<Self, Errno> {
        let mut first = [0; 8];
        rustix::rand::getrandom(&mut first, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self {
            signals: Signals::open()?,
            workers: Workers::new()?,
            // Numbers of an earlier monitor mean nothing here.
            first: u64::from_ne_bytes(first),
        })
    }
}

impl Monitor {
    fn new(
        dir: Fd,
        options: Options,
        places: Places,
        begin: Beginning,
    ) -> Result<Self, MonitorError> {
        raise_descriptor_limit();
        let mut standby = Standby::new(options.successor.clone());
        if begin.found.is_some() {
            // Before anything else: until then nobody would go on for us.
            standby.ensure(&begin.records);
        }
        // Who has taken leases over and cannot begin leaves them to his own standby, which tries again.
        let means = Means::get().inspect_err(|_| standby.give_way());
        let means = means.map_err(failed("receive signals"))?;
        let news = watch(&dir).ok();
        let records = Rc::clone(&begin.records);
        let marks = Marks::new(&dir);
        let leases = Leases::new(places, records, standby, options.pace, means, marks);
        let mut server = Server::new(&dir, begin.listener, begin.records, leases);
        let barred = &mut server.leases.barred;
        if begin.after_another {
            barred.know_not_all();
        }
        if begin.unsure {
            barred.be_unsure();
        }
        barred.find_untold(&dir);
        match begin.found {
            Some(found) => server.take_over(found),
            None => {
                barred.find(&dir);
                server.leases.adopt(begin.after_another);
            }
        }
        if let Some(pid) = options.stay_for {
            server.stay_for(pid);
        }
        Ok(Self {
            dir,
            options,
            news,
            server,
            work: Work::default(),
            needed_at: Instant::now(),
            busy_at: None,
            ready: Ready::default(),
            _lock: begin.lock,
        })
    }

    fn serve(&mut self) -> Work {
        // Who died before our time is known to be dead before any of his files is touched.
        self.wait(Duration::ZERO);
        self.server.leases.tick(Instant::now(), &self.ready);
        let mut next_look = Instant::now();
        loop {
            let now = Instant::now();
            let told = self.server.leases.told_at().is_some();
            if now >= next_look || self.news_came() || told {
                let look = self.look().unwrap_or_else(|error| self.cannot_look(error));
                if look.unsettled {
                    self.busy_at = Some(now);
                }
                if look.attached > 0 || self.server.is_needed() {
                    self.needed_at = now;
                } else if told || now.duration_since(self.needed_at) >= self.options.idle {
                    return self.work;
                }
                next_look = now + self.interval(&look);
            }
            self.server.reservations.tick(Instant::now());
            if self.grace_left() == Some(Duration::ZERO) {
                self.server.leases.end();
            }
            if self.server.leases.is_ending() && self.server.leases.is_empty() {
                return self.work;
            }
            let pause = next_look.saturating_duration_since(Instant::now());
            let grace = self.grace_left().unwrap_or(Duration::MAX);
            self.wait(pause.min(self.server.interval()).min(grace));
            // Up to now, whatever has come to an end meanwhile.
            if self.server.is_needed() {
                self.needed_at = Instant::now();
            }
            // Before anything is opened under the number of a descriptor that was found readable and is closed.
            self.server.leases.tick(Instant::now(), &self.ready);
            self.server.answer(&self.dir, &self.ready);
        }
    }

    /// How long it still stays for those who need it, where it is told to end.
    fn grace_left(&self) -> Option<Duration> {
        let leases = &self.server.leases;
        let told_at = leases.told_at().filter(|_| !leases.is_ending())?;
        Some(self.options.grace.saturating_sub(told_at.elapsed()))
    }

    /// How long until the next look. A process that changes files by stores is looked at often, so
    /// that times are close to the truth; one that does not, just often enough for the promise.
    fn interval(&self, look: &Look) -> Duration {
        let slow = Duration::from_millis(800);
        let recently = |at: Instant| at.elapsed() < Duration::from_secs(5);
        if look.attached == 0 && self.news.is_some() {
            // News from the directory ends this wait.
            let ends_at = self.needed_at + self.options.idle;
            ends_at.saturating_duration_since(Instant::now())
        } else if self.busy_at.is_some_and(recently) {
            self.options.poll.min(Duration::from_millis(500))
        } else {
            slow.min(self.options.poll * 4)
        }
    }

    fn look(&mut self) -> Result<Look, Errno> {
        let mut look = Look::default();
        for name in names(&self.dir)? {
            // A file that cannot be read now is looked at again next time.
            if let Ok(snapshot) = Snapshot::open(&self.dir, &name, OFlags::RDWR) {
                self.look_at(&name, &snapshot, &mut look);
            }
        }
        Ok(look)
    }

    /// Leases are held all the same, and what could not be read now may be next time. In a directory that is gone
    /// nobody looks for a monitor.
    fn cannot_look(&mut self, error: Errno) -> Look {
        if error == Errno::NOENT {
            self.server.leases.end();
        }
        Look {
            attached: 1,
            unsettled: false,
        }
    }

    fn look_at(&mut self, name: &Name, snapshot: &Snapshot, look: &mut Look) {
        match snapshot.condition() {
            Ok(Condition::Alive) => {
                look.attached += 1;
                for index in (0..snapshot.used()).filter(|index| snapshot.unsettled(*index)) {
                    let settled = times::of_living(snapshot, index);
                    look.unsettled = true;
                    self.work.settled += u64::from(settled == Settled::Advanced);
                }
            }
            Ok(Condition::Making) => look.attached += 1,
            Ok(Condition::Dead) => {
                self.server.reservations.process_died(name);
                self.server.leases.somebody_died();
                self.clear(name, snapshot);
            }
            Ok(Condition::Rubbish) => self.remove(name, snapshot),
            Ok(Condition::Foreign) | Err(_) => {}
        }
    }

    /// Repairs what a dead process left behind.
    fn clear(&mut self, name: &Name, snapshot: &Snapshot) {
        self.work.settled += times::of_dead(snapshot);
        self.remove(name, snapshot);
    }

    /// Removes a file nobody holds. The exclusive lock makes sure of that; a reader that tests it
    /// at this moment delays the removal until the next look.
    fn remove(&mut self, name: &Name, snapshot: &Snapshot) {
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        if sys::try_lock(snapshot.fd(), exclusive) == Ok(true)
            && let Some(path) = name.as_c_str()
            && rustix::fs::unlinkat(self.dir.as_fd(), path, AtFlags::empty()).is_ok()
        {
            self.work.cleared += 1;
        }
    }

    /// Whether a file has come or gone since the last time.
    fn news_came(&self) -> bool {
        let Some(news) = self.news.as_ref().filter(|news| self.ready.has(news)) else {
            return false;
        };
        let mut buffer = [0u8; 4096];
        let mut came = false;
        while rustix::io::read(news.as_fd(), &mut buffer).is_ok_and(|read| read > 0) {
            came = true;
        }
        came
    }

    /// Waits until something is readable. A kernel that has no memory for that just now is asked again soon.
    fn wait(&mut self, pause: Duration) {
        let news = self
            .news
            .iter()
            .map(|news| PollFd::new(news, PollFlags::IN));
        let mut wait: Vec<_> = news.collect();
        self.server.wait_for(&mut wait);
        let timeout = wire::timespec(pause);
        if poll(&mut wait, Some(&timeout)).is_err_and(|error| error != Errno::INTR) {
            adit_pmem::rest(pause.min(WITHOUT_MEMORY));
        }
        let ready = wait.iter().filter(|each| !each.revents().is_empty());
        self.ready = Ready(ready.map(|each| each.as_fd().as_raw_fd()).collect());
    }
}

/// Watches for new registry files, so that an idle monitor need not wake up to look.
fn watch(dir: &Fd) -> Result<Fd, Errno> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let news = Fd::new(inotify::init(flags)?);
    let mut path = crate::registry::text::Text::<64>::new();
    path.push(b"/proc/self/fd/");
    path.push_number(u64::try_from(dir.raw()).map_err(|_| Errno::BADF)?);
    let path = path.as_c_str().ok_or(Errno::BADF)?;
    inotify::add_watch(news.as_fd(), path, inotify::WatchFlags::CREATE)?;
    Ok(news)
}

/// Descriptors that are left for connections, of which many may come at once, for pools, and for the next standby.
const SPARE: u64 = 160;

/// Whether a descriptor that has come may be kept: the kernel gives the lowest number that is free. A monitor that
/// keeps them all can answer nobody, not even those who want to give some back.
fn has_room_for(fd: &Fd) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.unwrap_or(u64::MAX);
    u64::try_from(fd.raw()).is_ok_and(|number| number < limit - SPARE.min(limit / 4))
}

/// The monitor holds a descriptor per process it stays for and per file it reserves for.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
}
