//! What an outsider does to the files of a round while its writers work.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::adit::Adit;
use super::{Ended, Job, append, staged};
use crate::rng::Rng;

/// The writer number of the driver itself.
pub(super) const OUTSIDER: u64 = 99;
/// How long a stopped process stays so.
const STOPPED: Duration = Duration::from_millis(60);

/// What happens to a round besides the deaths of writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// Somebody reads: everything acknowledged before must be there.
    Watch,
    /// Somebody appends a record of his own.
    Join,
    /// A writer is stopped, then somebody reads.
    StopWriter,
    /// The monitor is stopped, then somebody reads.
    StopMonitor,
    /// The monitor is killed, then somebody reads: its standby goes on.
    ReplaceMonitor,
    /// The standby is killed, a moment later the monitor, then somebody reads.
    ReplaceBoth,
    /// Monitor and standby are killed at once: nobody goes on.
    KillMonitor,
}

impl Trouble {
    pub(super) fn choose(rng: &mut Rng) -> Self {
        match rng.below(12) {
            0 => Self::Watch,
            1 => Self::Join,
            2 => Self::StopWriter,
            3 => Self::StopMonitor,
            4 | 5 => Self::KillMonitor,
            6..9 => Self::ReplaceMonitor,
            9 => Self::ReplaceBoth,
            _ => Self::None,
        }
    }
}

/// One writer as the outsider knows it.
pub(super) struct Subject<'a> {
    pub(super) job: &'a Job,
    pub(super) pid: Option<Pid>,
    /// Acknowledged so far.
    pub(super) acknowledged: &'a (dyn Fn() -> u64 + Sync),
}

impl Subject<'_> {
    /// Reads the file while `stopped` stands still, if there is such a process.
    pub(super) fn watch(&self, stop: impl Fn(Signal) + Sync, records: u64) -> Result<(), String> {
        stop(Signal::STOP);
        let read = std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                sleep(STOPPED);
                stop(Signal::CONT);
            });
            self.look(records)
        });
        stop(Signal::CONT);
        read
    }

    pub(super) fn look(&self, records: u64) -> Result<(), String> {
        let acknowledged = (self.acknowledged)();
        let bytes = read(&self.job.file).map_err(|error| format!("an outsider: {error}"))?;
        // What the writer does meanwhile counts as not finished: any number of records may follow.
        let [_, own] = append::count(&bytes, self.job, acknowledged)
            .map_err(|what| format!("an outsider reads: {what}"))?;
        (own == records)
            .then_some(())
            .ok_or_else(|| format!("an outsider finds {own} of {records} records of his own"))
    }

    pub(super) fn stop_writer(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, signal);
        }
    }
}

pub(super) fn stop_monitor(adit: &Adit, signal: Signal) {
    adit.signal_monitor(signal);
}

/// Appends the outsider's next record to a writer's file.
pub(super) fn join(job: &Job, nth: u64) -> io::Result<()> {
    let own = Job {
        writer: OUTSIDER,
        ..job.clone()
    };
    let mut file = retry(|| OpenOptions::new().append(true).open(&job.file))?;
    file.write_all(&append::record(&own, nth))
}

/// The outsider at the end of a round.
pub(super) fn outsider(job: &Job, records: u64) -> Ended {
    Ended {
        job: Job {
            writer: OUTSIDER,
            ..job.clone()
        },
        acknowledged: records,
        killed: false,
    }
}

/// A file that its writer may have renamed for a moment.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    retry(|| fs::read(path))
}

fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && started.elapsed() < Duration::from_secs(2) =>
            {
                sleep(Duration::from_micros(50));
            }
            answer => return answer,
        }
    }
}

/// Puts a file back that its writer had renamed when it was killed, and removes its scratch files.
pub(super) fn tidy(file: &Path) {
    if !file.exists() {
        let _ = fs::rename(staged::away(file), file);
    }
    for scratch in staged::scratch(file) {
        let _ = fs::remove_file(scratch);
    }
}
