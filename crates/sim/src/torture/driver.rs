//! Starts, kills, waits, compares.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::writer::ACKNOWLEDGED;
use super::{Defeat, Ended, Job, Options, Pattern, Summary};
use super::{append, counter, mixed, overwrite};
use crate::rng::Rng;

/// A writer that takes longer hangs, most likely on something that a dead one held.
const PATIENCE: Duration = Duration::from_secs(30);
/// Operations of a writer that is to be killed. As many acknowledgements still fit into its pipe.
const ENDLESS: u64 = 60_000;

/// Runs all rounds, or up to the first loss.
pub fn run(options: &Options) -> Result<Summary, Defeat> {
    fs::create_dir_all(&options.dir)
        .map_err(|error| Defeat::Setup(format!("{}: {error}", options.dir.display())))?;
    let mut run = Run {
        options,
        summary: Summary::default(),
        monitor: None,
    };
    let started = Instant::now();
    let doomed_monitor = Rng::at(&[options.seed, 8]).below(options.rounds.min(100));
    for round in 0..options.rounds {
        if round == doomed_monitor {
            run.kill_monitor_pid();
        }
        run.round(round)?;
        run.summary.rounds += 1;
        progress(&run.summary, options.rounds, started);
    }
    run.end_monitor()?;
    Ok(run.summary)
}

/// On a terminal only.
fn progress(summary: &Summary, rounds: u64, started: Instant) {
    if summary.rounds.is_multiple_of(50) && io::stderr().is_terminal() {
        let rate = summary.rounds as f64 / started.elapsed().as_secs_f64();
        let end = if summary.rounds == rounds { '\n' } else { '\r' };
        eprint!(
            "{} of {rounds} rounds, {rate:.0} per second {end}",
            summary.rounds
        );
    }
}

struct Run<'a> {
    options: &'a Options,
    summary: Summary,
    monitor: Option<Child>,
}

/// A started process of a round.
struct Worker {
    job: Job,
    child: Child,
    killed: bool,
    /// Acknowledgements read before the end.
    heard: u64,
}

impl Run<'_> {
    fn round(&mut self, round: u64) -> Result<(), Defeat> {
        let mut rng = Rng::at(&[self.options.seed, round, 7]);
        let pattern = self
            .options
            .pattern
            .unwrap_or(Pattern::ALL[round as usize % 4]);
        let file = self.options.dir.join(format!("{pattern}-{round}"));
        let lost = |what: String| Defeat::Lost {
            round,
            pattern,
            what,
            file: file.clone(),
        };
        self.start_monitor()?;

        let nonce = rng.next_u64();
        // Either none survives, or some do and go on beside the dead.
        let all_die = rng.chance(6);
        let operations = if all_die {
            ENDLESS
        } else {
            20 + rng.below(400)
        };
        let jobs = jobs(pattern, &file, nonce, operations, self.options, &mut rng);
        for file in files(&jobs) {
            fs::write(&file, initial(pattern, nonce))
                .map_err(|error| Defeat::Setup(format!("{}: {error}", file.display())))?;
        }
        let ended = self.writers(pattern, jobs, all_die, &mut rng, &lost)?;
        self.recover()?;
        verify(pattern, &ended).map_err(&lost)?;

        let writers = ended.iter().filter(|ended| !ended.job.reader);
        self.summary.acknowledged += writers.clone().map(|ended| ended.acknowledged).sum::<u64>();
        self.summary.killed += writers.filter(|ended| ended.killed).count() as u64;
        for ended in &ended {
            let _ = fs::remove_file(&ended.job.file);
        }
        Ok(())
    }

    /// Starts the jobs, kills some, waits for all.
    fn writers(
        &mut self,
        pattern: Pattern,
        jobs: Vec<Job>,
        all_die: bool,
        rng: &mut Rng,
        lost: &impl Fn(String) -> Defeat,
    ) -> Result<Vec<Ended>, Defeat> {
        let mut workers = Workers(Vec::new());
        for job in jobs {
            workers.0.push(self.start(job)?);
        }
        let mut ended = Vec::new();
        if rng.chance(9) {
            workers.wait_for_work(rng).map_err(lost)?;
        }
        while let Some(victim) = workers.choose(rng) {
            sleep(Duration::from_micros(rng.below(2500)));
            if self.options.monitor.is_empty() || rng.chance(7) {
                let gone = workers.kill(victim, &mut ended).map_err(lost)?;
                if pattern == Pattern::Counter && !gone.job.reader && rng.chance(7) {
                    let writer = gone.job.writer + 1;
                    workers.0.push(self.start(Job { writer, ..gone.job })?);
                }
            } else {
                self.end_monitor()?;
                self.start_monitor()?;
            }
            if !all_die && rng.chance(4) {
                break;
            }
        }
        workers.finish(&mut ended).map_err(lost)?;
        ended.sort_by_key(|ended| ended.job.writer);
        Ok(ended)
    }

    fn start(&self, job: Job) -> Result<Worker, Defeat> {
        let mut words: Vec<OsString> = self.options.wrap.clone();
        words.push(self.options.program.clone().into());
        words.push("--writer".into());
        words.extend(job.arguments().into_iter().map(OsString::from));
        let mut command = command(&words);
        // Now and then one of the writers is an outsider, which Adit's must get on with.
        let outsider = job.nonce % 4 == job.writer;
        if let Some(library) = self.options.preload.as_ref().filter(|_| !outsider) {
            command.env("LD_PRELOAD", library);
            default(&mut command, "ADIT_MODE", "posix");
        }
        if self.options.preload.is_some() || !self.options.wrap.is_empty() {
            // Short-lived writers would end before their files are worth adopting.
            default(&mut command, "ADIT_ADOPT_BYTES", "4096");
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|error| Defeat::Setup(format!("cannot start a writer: {error}")))?;
        Ok(Worker {
            job,
            child,
            killed: false,
            heard: 0,
        })
    }

    fn recover(&self) -> Result<(), Defeat> {
        if self.options.recover.is_empty() {
            return Ok(());
        }
        let status = command(&self.options.recover).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            other => Err(Defeat::Setup(format!(
                "the recovery command failed: {other:?}"
            ))),
        }
    }

    fn start_monitor(&mut self) -> Result<(), Defeat> {
        if self.options.monitor.is_empty() || self.monitor.is_some() {
            return Ok(());
        }
        let child = command(&self.options.monitor)
            .spawn()
            .map_err(|error| Defeat::Setup(format!("cannot start the monitor: {error}")))?;
        self.monitor = Some(child);
        Ok(())
    }

    /// Kills the monitor. One that has failed by itself ends the run; one that has left because it
    /// was not needed is simply started again.
    fn end_monitor(&mut self) -> Result<(), Defeat> {
        let Some(mut monitor) = self.monitor.take() else {
            return Ok(());
        };
        if let Ok(Some(status)) = monitor.try_wait() {
            return match status.success() {
                true => Ok(()),
                false => Err(Defeat::Setup(format!("the monitor ended with {status}"))),
            };
        }
        let killed = monitor.kill().and_then(|()| monitor.wait());
        killed.map_err(|error| Defeat::Setup(format!("cannot kill the monitor: {error}")))?;
        self.summary.monitors_killed += 1;
        Ok(())
    }

    fn kill_monitor_pid(&mut self) {
        if let Some(pid) = self
            .options
            .monitor_pid
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            self.summary.monitors_killed += 1;
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let _ = self.end_monitor();
    }
}

/// The processes at work; none outlives this.
struct Workers(Vec<Worker>);

impl Workers {
    /// Waits until one of the writers has finished an operation, and a little more.
    fn wait_for_work(&mut self, rng: &mut Rng) -> Result<(), String> {
        let Some(position) = self.0.iter().position(|worker| !worker.job.reader) else {
            return Ok(());
        };
        let mut byte = [0];
        let worker = &mut self.0[position];
        let pipe = worker.child.stdout.as_mut().ok_or("no pipe")?;
        if pipe.read(&mut byte).map_err(|error| error.to_string())? == 0 {
            // It had nothing to do, or could not: `finish` says which.
            return Ok(());
        }
        worker.heard = 1;
        sleep(Duration::from_micros(rng.below(3000)));
        Ok(())
    }

    fn choose(&self, rng: &mut Rng) -> Option<usize> {
        (!self.0.is_empty()).then(|| rng.below(self.0.len() as u64) as usize)
    }

    fn kill(&mut self, victim: usize, ended: &mut Vec<Ended>) -> Result<Ended, String> {
        let mut worker = self.0.swap_remove(victim);
        worker.killed = true;
        worker
            .child
            .kill()
            .map_err(|error| format!("cannot kill: {error}"))?;
        let gone = worker.end()?;
        ended.push(gone.clone());
        Ok(gone)
    }

    /// Waits for the writers and stops the readers.
    fn finish(&mut self, ended: &mut Vec<Ended>) -> Result<(), String> {
        self.0.sort_by_key(|worker| worker.job.reader);
        while !self.0.is_empty() {
            let mut worker = self.0.remove(0);
            if worker.job.reader {
                worker.killed = true;
                worker
                    .child
                    .kill()
                    .map_err(|error| format!("cannot kill: {error}"))?;
            }
            ended.push(worker.end()?);
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}

impl Worker {
    /// Waits for the process and reads all it has acknowledged.
    fn end(mut self) -> Result<Ended, String> {
        let status = self.wait()?;
        let (mut said, mut complaint) = (Vec::new(), String::new());
        let failed = |error: io::Error| format!("cannot read a writer's pipe: {error}");
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_end(&mut said).map_err(failed)?;
        }
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut complaint).map_err(failed)?;
        }
        let acknowledged =
            self.heard + said.iter().filter(|byte| **byte == ACKNOWLEDGED).count() as u64;
        // The kill may come too late, or a complaint before it.
        let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        if !complaint.is_empty() || !(status.success() || self.killed && killed) {
            return Err(format!(
                "writer {} ended with {status} after {acknowledged} operations: {}",
                self.job.writer,
                complaint.trim()
            ));
        }
        if status.success() && !self.job.reader && acknowledged != self.job.operations {
            return Err(format!("writer {} stopped early", self.job.writer));
        }
        Ok(Ended {
            job: self.job,
            acknowledged,
            killed,
        })
    }

    fn wait(&mut self) -> Result<std::process::ExitStatus, String> {
        let started = Instant::now();
        loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => return Ok(status),
                None if started.elapsed() > PATIENCE => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Err(format!("writer {} hangs", self.job.writer));
                }
                None => sleep(Duration::from_micros(200)),
            }
        }
    }
}

fn command(words: &[OsString]) -> Command {
    let mut command = Command::new(words.first().map_or("true".as_ref(), OsString::as_os_str));
    command.args(words.iter().skip(1));
    command
}

fn default(command: &mut Command, name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
}

/// The processes that a round starts with.
fn jobs(
    pattern: Pattern,
    file: &Path,
    nonce: u64,
    operations: u64,
    options: &Options,
    rng: &mut Rng,
) -> Vec<Job> {
    let writers = if pattern == Pattern::Counter {
        1
    } else {
        2 + rng.below(2)
    };
    let job = |writer: u64, reader: bool| Job {
        pattern,
        file: if pattern == Pattern::Mixed {
            numbered(file, writer)
        } else {
            file.to_owned()
        },
        nonce,
        writer,
        writers,
        operations,
        plant: options.plant,
        reader,
    };
    let mut jobs: Vec<Job> = (0..writers).map(|writer| job(writer, false)).collect();
    if pattern == Pattern::Counter {
        jobs.extend((0..2).map(|reader| job(1000 + reader, true)));
    }
    jobs
}

fn numbered(file: &Path, writer: u64) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!("-{writer}"));
    name.into()
}

fn files(jobs: &[Job]) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = jobs.iter().map(|job| job.file.clone()).collect();
    files.dedup();
    files
}

fn initial(pattern: Pattern, nonce: u64) -> Vec<u8> {
    match pattern {
        Pattern::Append | Pattern::Mixed => Vec::new(),
        Pattern::Overwrite => overwrite::initial(nonce),
        Pattern::Counter => counter::initial(),
    }
}

fn verify(pattern: Pattern, ended: &[Ended]) -> Result<(), String> {
    let Some(first) = ended.first() else {
        return Ok(());
    };
    let read = |file: &Path| fs::read(file).map_err(|error| format!("the file: {error}"));
    let bytes = read(&first.job.file)?;
    match pattern {
        Pattern::Append => append::verify(&bytes, ended),
        Pattern::Overwrite => overwrite::verify(&bytes, ended),
        Pattern::Mixed => ended
            .iter()
            .try_for_each(|ended| mixed::verify(&read(&ended.job.file)?, ended)),
        Pattern::Counter => {
            let writers: Vec<Ended> = ended
                .iter()
                .filter(|ended| !ended.job.reader)
                .cloned()
                .collect();
            counter::verify(&bytes, &writers)
        }
    }
}
