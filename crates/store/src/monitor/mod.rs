//! The monitor: one transient process per user and runtime directory that does what processes under
//! Adit cannot do for themselves.
//!
//! It advances the times of files that were changed by stores, within a second for processes that
//! live and at once for those that died; it removes what dead processes left in the runtime
//! directory; it keeps blocks reserved ahead of programs that append in bursts. It ends when nobody
//! has needed it for some seconds. Nothing durable depends on it: all it works from is in the
//! processes' registry files, so one that is killed loses nothing and the next one goes on.

mod reserve;
mod serve;
#[cfg(test)]
mod tests;
mod times;

use core::time::Duration;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, inotify};
use rustix::io::Errno;

use crate::registry::snapshot::{Condition, Name, Snapshot, names};
use crate::registry::sys::{self, Fd};
use crate::registry::wire::{Request, ask};
use crate::registry::{DirError, RuntimeDir};
use serve::Server;
use times::Settled;

/// Name of the file whose lock the running monitor holds.
const LOCK: &core::ffi::CStr = c"monitor.lock";

/// How the monitor runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often it looks while files are being changed. Never more than half a second apart.
    pub poll: Duration,
    /// How long it stays when nobody needs it.
    pub idle: Duration,
    /// A process to stay for from the start; see [`join`].
    pub stay_for: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(250),
            idle: Duration::from_secs(5),
            stay_for: None,
        }
    }
}

/// How a monitor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Another one serves the directory; it knows about the process to stay for.
    AlreadyRunning,
    /// Nobody needed it any more.
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

/// Asks a running monitor to stay for as long as process `pid` lives. `false` when none runs, or
/// none that answers: then start one with [`Options::stay_for`]. Costs some 20 microseconds.
pub fn join(dir: &RuntimeDir, pid: u32) -> bool {
    dir.open()
        .is_ok_and(|fd| ask(&fd, Request::Join { pid }, None) == Ok(true))
}

/// Runs the monitor of a runtime directory until nobody needs it. Returns at once when another one
/// runs. Call it in a process of its own that was started without the preload.
pub fn run(dir: &RuntimeDir, options: &Options) -> Result<Outcome, MonitorError> {
    let fd = dir.open_or_create()?;
    let Some(lock) = take_lock(dir, &fd, options)? else {
        return Ok(Outcome::AlreadyRunning);
    };
    let mut monitor = Monitor::new(fd, options.clone())?;
    let work = monitor.serve()?;
    drop(monitor);
    drop(lock);
    Ok(Outcome::Idle(work))
}

/// Takes the lock of the one monitor, or makes sure that its holder knows whom to stay for. The
/// holder may be about to end, hence the rounds.
fn take_lock(dir: &RuntimeDir, fd: &Fd, options: &Options) -> Result<Option<Fd>, MonitorError> {
    let flags = OFlags::RDWR | OFlags::CREATE;
    let mode = Mode::RUSR | Mode::WUSR;
    let lock = sys::open_at(fd, LOCK, flags, mode).map_err(failed("open its lock file"))?;
    for _ in 0..100 {
        let operation = FlockOperation::NonBlockingLockExclusive;
        if sys::try_lock(&lock, operation).map_err(failed("lock its file"))? {
            return Ok(Some(lock));
        }
        if options.stay_for.is_none_or(|pid| join(dir, pid)) {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

struct Monitor {
    dir: Fd,
    options: Options,
    news: Fd,
    server: Server,
    work: Work,
    needed_at: Instant,
    busy_at: Option<Instant>,
}

/// What one look at the directory found.
#[derive(Default)]
struct Look {
    attached: usize,
    unsettled: bool,
}

impl Monitor {
    fn new(dir: Fd, options: Options) -> Result<Self, MonitorError> {
        raise_descriptor_limit();
        reserve::ignore_lease_signals();
        let news = watch(&dir).map_err(failed("watch the runtime directory"))?;
        let mut server = Server::new(&dir).map_err(failed("listen on its socket"))?;
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
        })
    }

    fn serve(&mut self) -> Result<Work, MonitorError> {
        let mut next_look = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_look || self.news_came() {
                let look = self.look().map_err(failed("read the runtime directory"))?;
                if look.unsettled {
                    self.busy_at = Some(now);
                }
                if look.attached > 0 || self.server.is_needed() {
                    self.needed_at = now;
                } else if now.duration_since(self.needed_at) >= self.options.idle {
                    return Ok(self.work);
                }
                next_look = now + self.interval(&look);
            }
            self.server.reservations.tick(Instant::now());
            let pause = next_look.saturating_duration_since(Instant::now());
            self.wait(pause.min(self.server.reservations.interval()))?;
            self.server.answer(&self.dir);
        }
    }

    /// How long until the next look. A process that changes files by stores is looked at often, so
    /// that times are close to the truth; one that does not, just often enough for the promise.
    fn interval(&self, look: &Look) -> Duration {
        let slow = Duration::from_millis(800);
        let recently = |at: Instant| at.elapsed() < Duration::from_secs(5);
        if look.attached == 0 {
            // News from the directory ends this wait.
            self.options.idle
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
        self.server.forget_the_dead();
        Ok(look)
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
                self.clear(name, snapshot);
            }
            Ok(Condition::Rubbish) => self.remove(name, snapshot),
            Ok(Condition::Foreign) | Err(_) => {}
        }
    }

    /// Repairs what a dead process left behind.
    fn clear(&mut self, name: &Name, snapshot: &Snapshot) {
        for index in (0..snapshot.used()).filter(|index| snapshot.unsettled(*index)) {
            let settled = times::of_dead(snapshot, index);
            self.work.settled += u64::from(settled == Settled::Advanced);
        }
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
        let mut buffer = [0u8; 4096];
        let mut came = false;
        while rustix::io::read(self.news.as_fd(), &mut buffer).is_ok_and(|read| read > 0) {
            came = true;
        }
        came
    }

    fn wait(&self, pause: Duration) -> Result<(), MonitorError> {
        let mut wait = vec![
            PollFd::new(&self.news, PollFlags::IN),
            PollFd::new(&self.server.listener, PollFlags::IN),
        ];
        let lives = self.server.lives.iter();
        wait.extend(lives.map(|life| PollFd::new(life, PollFlags::IN)));
        let pause = Timespec {
            tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(pause.subsec_nanos()),
        };
        match poll(&mut wait, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(failed("wait")(error)),
        }
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
