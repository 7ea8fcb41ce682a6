//! `adit bench`: Adit beside the kernel and beside the raw copy, in one run.
//!
//! Calls are measured in a process under the library, which this one starts and whose lines it collects;
//! whole programs it runs itself.

mod apps;
mod cases;
mod peers;
mod report;
mod sides;
mod staged;
mod worker;

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::{BenchArgs, Mode, Suite};
use crate::doctor;
use crate::failure::{Failure, NO, Outcome, USAGE, said, words};
use crate::output::{self, Progress};
use crate::run;
use report::{Report, Row};
use worker::Line;

pub(crate) use worker::work;

/// Whether the library serves this process, and, if a directory is named, stages what it writes there.
pub(crate) fn served(dir: Option<&Path>) -> bool {
    // A disk that others use may be slower than the monitor, which publishes within a second.
    const TRIES: usize = 5;
    let name = format!("adit-probe-{}", std::process::id());
    let stages = |dir: &Path| (0..TRIES).any(|_| staged::stages(&dir.join(&name)) == Ok(true));
    sides::active() && dir.is_none_or(stages)
}

/// Whether the library serves a program that is started in this mode, and, if a directory is named, stages what it writes
/// there. Where it does not, the kernel would be compared with itself.
pub(crate) fn serves(mode: Mode, dir: Option<&Path>) -> Result<bool, Failure> {
    let mut probe = Command::new(std::env::current_exe()?);
    run::under_library(probe.arg("served").args(dir), mode)?;
    Ok(probe.status()?.success())
}

/// Measures and reports.
pub(crate) fn bench(args: &BenchArgs) -> Outcome {
    if !args.only.is_empty() && args.suites.iter().any(|suite| suite.mode().is_some()) {
        return Err(
            Failure::new("--only names programs, which are measured by suite apps alone")
                .next("leave --only out, or name no other suite")
                .code(USAGE),
        );
    }
    let dir = args.dir.canonicalize().map_err(|_| {
        Failure::new(format!("--dir {}: no such directory", args.dir.display()))
            .next("name a directory on the file system to measure")
    })?;
    let medium = doctor::medium_of(&dir);
    if medium == adit_pmem::MediumKind::Other {
        return Err(Failure::new(format!(
            "--dir {}: Adit serves no files there",
            dir.display()
        ))
        .next(format!("adit doctor {} says why", output::quoted(&dir))));
    }
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let json = args.json.as_deref().filter(|_| !to_stdout);
    let mut json = json.map(Destination::open).transpose()?;
    let mut html = args.html.as_deref().map(Destination::open).transpose()?;
    let reports = args
        .suites
        .iter()
        .map(|suite| measure(*suite, &dir, args))
        .map(|report| report.map(|report| report.beside(&args.peer)))
        .collect::<Result<Vec<_>, _>>()?;
    // Whoever reads standard output may have gone, which is the end; a disk that has become full is not.
    let text = serde_json::to_string_pretty(&reports).unwrap_or_default();
    let json = json.as_mut().map_or(Ok(()), |to| to.write(&text));
    let html = html
        .as_mut()
        .map_or(Ok(()), |to| to.write(&report::html(&reports)));
    if to_stdout {
        output::json(&reports)?;
    } else {
        reports.iter().for_each(Report::print);
    }
    json.and(html)?;
    if reports.iter().any(|report| !report.library_active) {
        return Err(Failure::new(
            "the library does not serve the measured process, so there is nothing to compare",
        )
        .next("check the library with adit doctor"));
    }
    let is_empty = |report: &Report| report.rows.is_empty() && report.failed.is_empty();
    if reports.iter().all(is_empty) {
        return Err(Failure::new("nothing was measured")
            .next("install one of the packages that are named as missing"));
    }
    let failed = reports.iter().any(|report| !report.failed.is_empty());
    let missed = args.goals && !reports.iter().all(Report::all_met);
    Ok(if failed || missed { NO } else { 0 })
}

/// A file that a report goes to. It is opened before anything is measured, which takes minutes that nobody should spend on
/// a report that cannot be written; until then it keeps what is in it.
struct Destination<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Destination<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(false).open(path);
        match opened {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(unwritable(path, &error)
                .next("name a file in a directory that exists, and that you may write")),
        }
    }

    /// Puts the report into the file. A pipe or a terminal has no length.
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let is_file = self.file.metadata().is_ok_and(|found| found.is_file());
        let cut = if is_file {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        let written = cut.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| unwritable(self.path, &error))
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!(
        "{} cannot be written: {}",
        path.display(),
        said(error)
    ))
}

fn measure(suite: Suite, dir: &Path, args: &BenchArgs) -> Result<Report, Failure> {
    let rounds = args.rounds;
    let name = rustix::system::uname();
    let mut report = Report {
        suite: suite.name(),
        dir: dir.display().to_string(),
        kernel: name.release().to_string_lossy().into_owned(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        rounds,
        ..Report::default()
    };
    let Some(mode) = suite.mode() else {
        apps::measure(dir, args, &mut report)?;
        return Ok(report);
    };
    check_room(dir)?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("bench-worker")
        .arg(mode.name())
        .arg(dir)
        .arg(rounds.to_string())
        .stdout(Stdio::piped());
    run::under_library(&mut command, mode)?;
    let mut child = command.spawn()?;
    let lines = child.stdout.take().map(BufReader::new);
    collect(lines, suite, &mut report);
    let status = child.wait()?;
    if report.library_active && !status.success() && report.failed.is_empty() {
        report
            .failed
            .push(format!("the measuring process failed ({status})"));
    }
    Ok(report)
}

/// Where there is no room nothing but that would be found out, after minutes.
fn check_room(dir: &Path) -> Result<(), Failure> {
    const NEEDED: u64 = 512 << 20;
    let found = rustix::fs::statvfs(dir.as_os_str().as_encoded_bytes());
    let found = found.map_err(|errno| Failure::new(words(errno)))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free >= NEEDED {
        return Ok(());
    }
    let (needed, free) = (output::bytes(NEEDED), output::bytes(free));
    let what = format!(
        "{} has {free} free, and bench needs {needed}",
        dir.display()
    );
    Err(Failure::new(what).next("name another directory: --dir DIR"))
}

fn collect(lines: Option<impl BufRead>, suite: Suite, report: &mut Report) {
    let progress = Progress::new();
    for line in lines
        .into_iter()
        .flat_map(BufRead::lines)
        .map_while(Result::ok)
    {
        match serde_json::from_str(&line) {
            Ok(Line::Inactive) => report.library_active = false,
            Ok(Line::Medium(medium)) => {
                report.library_active = true;
                report.medium = medium;
            }
            Ok(Line::Failed(why)) => report.failed.push(why),
            Ok(Line::Measured(measured)) => {
                report.rows.extend(Row::new(measured));
                progress.at(report.rows.len(), cases(suite), "measured");
            }
            Err(_) => eprintln!("adit: the measuring process says: {line}"),
        }
    }
}

/// What the progress bar counts up to.
fn cases(suite: Suite) -> usize {
    match suite {
        Suite::Posix => 27,
        _ => staged::CASES,
    }
}
