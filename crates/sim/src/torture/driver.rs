//! Starts, kills, waits, compares.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::adit::Adit;
use super::trouble::{self, Subject, Trouble};
use super::writer::ACKNOWLEDGED;
use super::{Defeat, Ended, Job, Options, Pattern, Plant, Summary};
use super::{append, counter, group, mixed, overwrite};
use crate::rng::Rng;

/// A writer that takes longer hangs, most likely on something that a dead one held.
const PATIENCE: Duration = Duration::from_secs(30);
/// Operations of a writer that is to be killed. As many acknowledgements still fit into its pipe.
const ENDLESS: u64 = 60_000;

/// Runs all rounds, or up to the first loss.
pub fn run(options: &Options) -> Result<Summary, Defeat> {
    fs::create_dir_all(&options.dir)
        .map_err(|error| Defeat::Setup(format!("{}: {error}", options.dir.display())))?;
    let adit = options.adit.as_ref().map(|(command, mode)| {
        let declared = options.declared.then(|| options.dir.clone());
        Adit::new(command, mode, declared)
    });
    let adit = adit
        .transpose()
        .map_err(|error| Defeat::Setup(format!("no runtime directory: {error}")))?;
    let mut run = Run {
        options,
        adit,
        abandoned: false,
        recovery: String::new(),
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
    Ok(core::mem::take(&mut run.summary))
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
    adit: Option<Adit>,
    /// The monitor was killed in this round: nobody sees to what a killed writer leaves.
    abandoned: bool,
    /// What the last `adit run` said about recovering.
    recovery: String,
    summary: Summary,
    monitor: Option<Child>,
}

/// A started process of a round.
struct Worker {
    job: Job,
    child: Child,
    killed: bool,
    heard: Heard,
}

impl Run<'_> {
    fn round(&mut self, round: u64) -> Result<(), Defeat> {
        let mut rng = Rng::at(&[self.options.seed, round, 7]);
        let pattern = self
            .options
            .pattern
            .unwrap_or(Pattern::ALL[round as usize % Pattern::ALL.len()]);
        let file = self.options.dir.join(format!("{pattern}-{round}"));
        let lost = |what: String| Defeat::Lost {
            round,
            pattern,
            what,
            file: file.clone(),
        };
        self.start_monitor()?;
        if let Some(adit) = &self.adit {
            self.summary.round_in(adit.begin(round));
        }

        let nonce = rng.next_u64();
        // Either none survives, or some do and go on beside the dead.
        let all_die = rng.chance(6);
        let operations = if all_die {
            ENDLESS
        } else {
            20 + rng.below(400)
        };
        let jobs = jobs(pattern, &file, nonce, operations, self.options, &mut rng);
        for file in files(&jobs, pattern) {
            fs::write(&file, initial(pattern, nonce))
                .map_err(|error| Defeat::Setup(format!("{}: {error}", file.display())))?;
        }
        self.abandoned = false;
        let declared = self.adit.as_ref().is_some_and(Adit::is_declared);
        let mut outside = Outside::new(self.adit.is_some(), declared, pattern, &mut rng);
        let ended = self.writers(pattern, jobs, all_die, &mut outside, &mut rng, &lost)?;
        self.recover(&mut rng)?;
        for ended in ended.iter().filter(|_| pattern == Pattern::Staged) {
            trouble::tidy(&ended.job.file);
        }
        let verdict = || verify(pattern, &ended, &outside.appended);
        // What others see of a declared file may be a second old.
        let until = Instant::now() + Duration::from_secs(2);
        while declared && verdict().is_err() && Instant::now() < until {
            sleep(Duration::from_millis(50));
        }
        verdict().map_err(|what| {
            lost(self.explain(what, &outside, || {
                verify(pattern, &ended, &outside.appended)
            }))
        })?;

        let writers = ended.iter().filter(|ended| !ended.job.reader);
        self.summary.acknowledged += writers.clone().map(|ended| ended.acknowledged).sum::<u64>();
        self.summary.killed += writers.filter(|ended| ended.killed).count() as u64;
        for ended in &ended {
            let _ = fs::remove_file(&ended.job.file);
            let _ = fs::remove_file(group::second(&ended.job.file));
        }
        Ok(())
    }

    /// Starts the jobs, kills some, waits for all.
    fn writers(
        &mut self,
        pattern: Pattern,
        jobs: Vec<Job>,
        all_die: bool,
        outside: &mut Outside,
        rng: &mut Rng,
        lost: &impl Fn(String) -> Defeat,
    ) -> Result<Vec<Ended>, Defeat> {
        let mut workers = Workers(Vec::new());
        for job in jobs {
            workers.0.push(self.start(job)?);
        }
        let mut ended = Vec::new();
        if rng.chance(9) {
            workers.wait_for_work(rng);
        }
        while let Some(victim) = workers.choose(rng) {
            sleep(Duration::from_micros(rng.below(2500)));
            self.trouble(&workers.0[victim], outside).map_err(lost)?;
            if self.options.monitor.is_empty() || rng.chance(7) {
                // `adit run` is the process that becomes the writer.
                let early =
                    self.adit.is_some() && workers.0[victim].is_not_yet(&self.options.program);
                let gone = workers.kill(victim, &mut ended).map_err(lost)?;
                self.summary.runs_killed += u64::from(early && gone.killed);
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

    /// More about a loss: what had happened, and whether another recovery finds what is missing.
    fn explain(
        &self,
        what: String,
        outside: &Outside,
        verify: impl Fn() -> Result<(), String>,
    ) -> String {
        let Some(adit) = &self.adit else { return what };
        // What was planted needs no inspection.
        if self.options.plant == Plant::Nothing {
            adit.keep();
        }
        sleep(Duration::from_secs(2));
        let late = verify();
        let again = adit.recover().map_err(|error| error.to_string());
        let (trouble, said) = (outside.trouble, &self.recovery);
        let recovered = again.and_then(|_| verify());
        format!(
            "{what} ({trouble:?}; the recovery said {said:?}; two seconds later: {late:?}; after another recovery: {recovered:?})"
        )
    }

    /// What outsiders do to one writer's file, and what happens to the monitor.
    fn trouble(&mut self, worker: &Worker, outside: &mut Outside) -> Result<(), String> {
        let job = &worker.job;
        let subject = Subject {
            job,
            pid: i32::try_from(worker.child.id())
                .ok()
                .and_then(Pid::from_raw),
            acknowledged: &|| worker.heard.count(),
        };
        let records = outside.appended.get(job.writer as usize).copied();
        let records = records.unwrap_or_default();
        match (outside.trouble, &self.adit) {
            (Trouble::None, _) => return Ok(()),
            (Trouble::KillMonitor, Some(adit)) => {
                let (monitors, standbys) = adit.kill_both();
                self.summary.monitors_killed += monitors;
                self.summary.standbys_killed += standbys;
                self.abandoned = true;
                // These start programs that open the file, whom nobody would let in: the kernel does, after longer than a
                // writer is waited for. The user's next program has a monitor again.
                if job.pattern == Pattern::Staged && self.options.plant != Plant::Forget {
                    let next = adit.recover();
                    next.map_err(|error| format!("the next program: {error}"))?;
                }
                return Ok(());
            }
            (Trouble::ReplaceMonitor, Some(adit)) => {
                self.summary.monitors_killed += u64::from(adit.replace_monitor());
                if job.pattern != Pattern::Staged {
                    return Ok(());
                }
                subject.look(records)?;
            }
            (Trouble::ReplaceBoth, Some(adit)) => {
                self.summary.standbys_killed += u64::from(adit.replace_standby());
                self.summary.monitors_killed += u64::from(adit.replace_monitor());
                subject.look(records)?;
            }
            (Trouble::Join, _) => {
                trouble::join(job, records).map_err(|error| format!("an outsider: {error}"))?;
                outside.appended[job.writer as usize] += 1;
                subject.look(records + 1)?;
            }
            (Trouble::StopWriter, _) => {
                subject.watch(|signal| subject.stop_writer(signal), records)?;
            }
            (Trouble::StopMonitor, Some(adit)) => {
                subject.watch(|signal| trouble::stop_monitor(adit, signal), records)?;
            }
            _ => subject.look(records)?,
        }
        self.summary.outsiders += 1;
        Ok(())
    }

    fn start(&self, job: Job) -> Result<Worker, Defeat> {
        let mut words: Vec<OsString> = self.options.wrap.clone();
        words.extend(self.adit.iter().flat_map(Adit::wrap));
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
        if let Some(adit) = &self.adit {
            adit.set(&mut command);
            if job.pattern == Pattern::Group && adit.mode() == "atomic" {
                command.env("ADIT_COMMIT", "together");
            }
        }
        if self.adit.is_some() || self.options.preload.is_some() || !self.options.wrap.is_empty() {
            // Short-lived writers would end before their files are worth adopting.
            default(&mut command, "ADIT_ADOPT_BYTES", "4096");
            if job.nonce.is_multiple_of(2) {
                default(&mut command, "ADIT_KERNEL_BLOCKS", "0");
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Defeat::Setup(format!("cannot start a writer: {error}")))?;
        Ok(Worker {
            job,
            heard: Heard::listen(child.stdout.take()),
            child,
            killed: false,
        })
    }

    fn recover(&mut self, rng: &mut Rng) -> Result<(), Defeat> {
        let forget = self.options.plant == Plant::Forget;
        if let Some(adit) = self.adit.as_ref().filter(|_| self.abandoned && !forget) {
            if rng.chance(5) {
                let after = Duration::from_micros(rng.below(6000));
                let killed = adit.kill_recovery(after);
                let killed =
                    killed.map_err(|error| Defeat::Setup(format!("no recovery: {error}")))?;
                self.summary.recoveries_killed += u64::from(killed);
            }
            self.recovery = adit
                .recover()
                .map_err(|error| Defeat::Setup(format!("no recovery: {error}")))?;
        }
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
    fn wait_for_work(&self, rng: &mut Rng) {
        let Some(position) = self.0.iter().position(|worker| !worker.job.reader) else {
            return;
        };
        let heard = &self.0[position].heard;
        let started = Instant::now();
        // One that has nothing to do, or cannot, ends: `finish` says which.
        while heard.count() == 0 && !heard.ended() && started.elapsed() < PATIENCE {
            sleep(Duration::from_micros(50));
        }
        sleep(Duration::from_micros(rng.below(3000)));
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

/// The acknowledgements of a writer, counted while it works.
struct Heard {
    count: Arc<AtomicU64>,
    listener: Option<JoinHandle<io::Result<()>>>,
}

impl Heard {
    fn listen(pipe: Option<ChildStdout>) -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&count);
        let listener = pipe.map(|mut pipe| {
            std::thread::spawn(move || {
                let mut said = [0; 512];
                loop {
                    let len = pipe.read(&mut said)?;
                    if len == 0 {
                        return Ok(());
                    }
                    let more = said[..len].iter().filter(|byte| **byte == ACKNOWLEDGED);
                    heard.fetch_add(more.count() as u64, Ordering::Release);
                }
            })
        });
        Self { count, listener }
    }

    /// So far.
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    fn ended(&self) -> bool {
        self.listener.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// All of a writer that has ended.
    fn all(&mut self) -> Result<u64, String> {
        let end = self.listener.take().map(JoinHandle::join);
        match end {
            None | Some(Ok(Ok(()))) => Ok(self.count()),
            Some(other) => Err(format!("cannot read a writer's pipe: {other:?}")),
        }
    }
}

/// What outsiders do in a round.
struct Outside {
    trouble: Trouble,
    /// Records of the outsider in each writer's file.
    appended: Vec<u64>,
}

impl Outside {
    fn new(adit: bool, declared: bool, pattern: Pattern, rng: &mut Rng) -> Self {
        let trouble = Trouble::choose(rng);
        let fits = match pattern {
            // Nobody looks at such files who is not told of them.
            Pattern::Staged if declared => matches!(trouble, Trouble::KillMonitor),
            _ if declared => matches!(trouble, Trouble::KillMonitor | Trouble::ReplaceMonitor),
            Pattern::Staged => true,
            // Without a monitor others wait for a file until its writer lets go of it.
            Pattern::Mixed | Pattern::Group => {
                adit && matches!(trouble, Trouble::KillMonitor | Trouble::ReplaceMonitor)
            }
            _ => false,
        };
        Self {
            trouble: if fits { trouble } else { Trouble::None },
            appended: vec![0; 3],
        }
    }
}

impl Worker {
    /// Whether the process has not become the program yet.
    fn is_not_yet(&self, program: &Path) -> bool {
        let is = fs::read_link(format!("/proc/{}/exe", self.child.id()));
        is.is_ok_and(|is| fs::canonicalize(program).is_ok_and(|program| program != is))
    }

    /// Waits for the process and reads all it has acknowledged.
    fn end(mut self) -> Result<Ended, String> {
        let status = self.wait()?;
        let mut complaint = String::new();
        let failed = |error: io::Error| format!("cannot read a writer's pipe: {error}");
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut complaint).map_err(failed)?;
        }
        let acknowledged = self.heard.all()?;
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
        file: if matches!(pattern, Pattern::Mixed | Pattern::Staged | Pattern::Group) {
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

fn files(jobs: &[Job], pattern: Pattern) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = jobs.iter().map(|job| job.file.clone()).collect();
    files.dedup();
    if pattern == Pattern::Group {
        let beside: Vec<PathBuf> = files.iter().map(|file| group::second(file)).collect();
        files.extend(beside);
    }
    files
}

fn initial(pattern: Pattern, nonce: u64) -> Vec<u8> {
    match pattern {
        Pattern::Append | Pattern::Mixed | Pattern::Staged | Pattern::Group => Vec::new(),
        Pattern::Overwrite => overwrite::initial(nonce),
        Pattern::Counter => counter::initial(),
    }
}

fn verify(pattern: Pattern, ended: &[Ended], outsiders: &[u64]) -> Result<(), String> {
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
        Pattern::Staged => ended.iter().try_for_each(|ended| {
            let job = &ended.job;
            let outsider = trouble::outsider(job, outsiders[job.writer as usize]);
            append::verify(&read(&job.file)?, &[ended.clone(), outsider])
        }),
        Pattern::Group => ended
            .iter()
            .try_for_each(|ended| group::verify(read, ended)),
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
