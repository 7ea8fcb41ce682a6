//! `adit bench`: Adit beside the kernel and beside the raw copy, in one run.
//!
//! This process only starts the measuring one under the library, collects its lines and writes the
//! reports.

mod cases;
mod report;
mod sides;
mod worker;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::{BenchArgs, Suite};
use crate::failure::{FAILED, Failure, NO, Outcome};
use crate::output::{self, Progress};
use crate::run;
use report::{Report, Row};
use worker::Line;

pub(crate) use sides::active as served;
pub(crate) use worker::work;

/// What the progress bar counts up to.
const CASES: usize = 27;

/// Measures and reports.
pub(crate) fn bench(args: &BenchArgs) -> Outcome {
    let Suite::Posix = args.suite;
    let dir = args.dir.canonicalize().map_err(|_| {
        Failure::new(format!("--dir {}: no such directory", args.dir.display()))
            .next("name a directory on the file system to measure")
    })?;
    let report = measure(&dir, args.rounds)?;
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    match &args.json {
        Some(_) if to_stdout => output::json(&report)?,
        Some(file) => {
            let text = serde_json::to_string_pretty(&report).unwrap_or_default();
            write(file, &text)?;
        }
        None => {}
    }
    if let Some(file) = &args.html {
        write(file, &report.html())?;
    }
    if !to_stdout {
        report.print();
    }
    if !report.library_active {
        return Err(Failure::new(
            "the library does not serve the measured process, so there is nothing to compare",
        )
        .next("check the library with adit doctor"));
    }
    Ok(if args.goals && !report.all_met() {
        NO
    } else {
        0
    })
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text)
        .map_err(|e| Failure::new(format!("{} cannot be written: {e}", file.display())))
}

fn measure(dir: &Path, rounds: u32) -> Result<Report, Failure> {
    let name = rustix::system::uname();
    let mut report = Report {
        suite: "posix",
        dir: dir.display().to_string(),
        kernel: name.release().to_string_lossy().into_owned(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        rounds,
        ..Report::default()
    };
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("bench-worker")
        .arg(dir)
        .arg(rounds.to_string())
        .stdout(Stdio::piped());
    run::under_library(&mut command)?;
    let mut child = command.spawn()?;
    let lines = child.stdout.take().map(BufReader::new);
    collect(lines, &mut report);
    let status = child.wait()?;
    if report.library_active && !status.success() {
        return Err(Failure::new(format!("the measuring process failed ({status})")).code(FAILED));
    }
    Ok(report)
}

fn collect(lines: Option<impl BufRead>, report: &mut Report) {
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
                progress.at(report.rows.len(), CASES, "measured");
            }
            Err(_) => eprintln!("adit: the measuring process says: {line}"),
        }
    }
}
