//! What it costs a program to start with the library preloaded.
//!
//! `cargo run --release -p adit-shim --example startbench -- [-n TIMES] [-r ROUNDS] LIBRARY… -- COMMAND…`
//!
//! Each round runs the command TIMES times without a library, then TIMES times with each of them, so
//! that load from elsewhere meets all alike; builds are compared by naming several. The environment is
//! as `adit run` makes it. Prints medians over the rounds, per run of the command: the time that
//! passed, the processor's time and the page faults of the command and all it waited for, and the
//! ratios to no library.
//!
//! # Safety
//! Calls libc's `getrusage` with a local that it fills.
#![allow(unsafe_code)]

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: startbench [-n TIMES] [-r ROUNDS] LIBRARY... -- COMMAND...";

struct Plan {
    times: u32,
    rounds: usize,
    libraries: Vec<String>,
    command: Vec<String>,
}

fn plan() -> Option<Plan> {
    let mut plan = Plan {
        times: 200,
        rounds: 21,
        libraries: Vec::new(),
        command: Vec::new(),
    };
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-n" => plan.times = words.next()?.parse().ok().filter(|times| *times > 0)?,
            "-r" => plan.rounds = words.next()?.parse().ok().filter(|rounds| *rounds > 0)?,
            "--" => plan.command = words.by_ref().collect(),
            _ => plan.libraries.push(word),
        }
    }
    (!plan.command.is_empty()).then_some(plan)
}

/// What one round cost, per run of the command.
#[derive(Clone, Copy)]
struct Cost {
    elapsed: f64,
    processor: f64,
    faults: f64,
}

/// Processor time in microseconds and page faults of all children so far.
fn children() -> (f64, f64) {
    // SAFETY: all zero is a valid `rusage`, and the pointer is to it.
    let usage = unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    (
        micros(usage.ru_utime) + micros(usage.ru_stime),
        usage.ru_minflt as f64,
    )
}

fn round(plan: &Plan, library: Option<&str>) -> std::io::Result<Cost> {
    let mut command = Command::new(&plan.command[0]);
    command.args(&plan.command[1..]).stdout(Stdio::null());
    if let Some(library) = library {
        command
            .env("LD_PRELOAD", library)
            .env("ADIT_MODE", "posix")
            .env("ADIT_RUNTIME_DIR", env::temp_dir());
    }
    let (processor, faults) = children();
    let start = Instant::now();
    for _ in 0..plan.times {
        command.status()?;
    }
    let elapsed: Duration = start.elapsed();
    let (processor_after, faults_after) = children();
    let times = f64::from(plan.times);
    Ok(Cost {
        elapsed: elapsed.as_secs_f64() * 1e6 / times,
        processor: (processor_after - processor) / times,
        faults: (faults_after - faults) / times,
    })
}

fn median(rounds: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    let Some(plan) = plan() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let libraries: Vec<Option<&str>> = std::iter::once(None)
        .chain(plan.libraries.iter().map(|name| Some(name.as_str())))
        .collect();
    let mut costs = vec![Vec::new(); libraries.len()];
    // The first round warms up and is not counted.
    for index in 0..=plan.rounds {
        for (library, costs) in libraries.iter().zip(&mut costs) {
            match round(&plan, *library) {
                Ok(cost) if index > 0 => costs.push(cost),
                Ok(_) => {}
                Err(error) => {
                    eprintln!("{}: {error}", plan.command[0]);
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    println!(
        "{:>9} {:>6} {:>9} {:>6} {:>8}  library",
        "us", "ratio", "cpu us", "ratio", "faults"
    );
    let plain = costs[0].clone();
    for (library, costs) in libraries.iter().zip(&costs) {
        let elapsed = median(costs, |cost| cost.elapsed);
        let processor = median(costs, |cost| cost.processor);
        println!(
            "{elapsed:9.1} {:6.3} {processor:9.1} {:6.3} {:8.1}  {}",
            elapsed / median(&plain, |cost| cost.elapsed),
            processor / median(&plain, |cost| cost.processor),
            median(costs, |cost| cost.faults),
            library.unwrap_or("none"),
        );
    }
    ExitCode::SUCCESS
}
