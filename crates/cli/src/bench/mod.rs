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

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::{BenchArgs, Suite};
use crate::doctor;
use crate::failure::{FAILED, Failure, NO, Outcome, USAGE, said};
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
        .next(format!("adit doctor {} says why", dir.display())));
    }
    let reports = args
        .suites
        .iter()
        .map(|suite| measure(*suite, &dir, args))
        .map(|report| report.map(|report| report.beside(&args.peer)))
        .collect::<Result<Vec<_>, _>>()?;
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    match &args.json {
        Some(_) if to_stdout => output::json(&reports)?,
        Some(file) => {
            let text = serde_json::to_string_pretty(&reports).unwrap_or_default();
            write(file, &text)?;
        }
        None => {}
    }
    if let Some(file) = &args.html {
        write(file, &report::html(&reports))?;
    }
    if !to_stdout {
        reports.iter().for_each(Report::print);
    }
    if reports.iter().any(|report| !report.library_active) {
        return Err(Failure::new(
            "the library does not serve the measured process, so there is nothing to compare",
        )
        .next("check the library with adit doctor"));
    }
    if reports.iter().all(|report| report.rows.is_empty()) {
        return Err(Failure::new("nothing was measured")
            .next("install one of the packages that are named as missing"));
    }
    let failed = reports.iter().any(|report| !report.failed.is_empty());
    let missed = args.goals && !reports.iter().all(Report::all_met);
    Ok(if failed || missed { NO } else { 0 })
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|e| {
        Failure::new(format!(
            "{} cannot be written: {}",
            file.display(),
            said(&e)
        ))
    })
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
    if report.library_active && !status.success() {
        return Err(Failure::new(format!("the measuring process failed ({status})")).code(FAILED));
    }
    Ok(report)
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
