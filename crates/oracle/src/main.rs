//! The oracle: every random sequence of file operations runs through libc on one twin and through
//! raw system calls on the other. With `libadit.so` preloaded the two must still agree.
// This program is what the shim is tested with: going through libc is its purpose.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod arena;
mod model;
mod ops;
mod outside;
mod process;
mod procs;
mod records;
mod rng;
mod threads;
mod twin;
mod way;

use clap::Parser;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use twin::{Options, Plant, Twins};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Twin files, one thread.
    Single,
    /// Threads of one process on shared descriptors.
    Threads,
    /// Processes that share descriptors.
    Procs,
    /// One file against a model of it in memory: nobody looks from outside but now and then.
    Model,
}

/// Compares file operations through libc with the kernel's own answers.
#[derive(Parser, Debug)]
struct Args {
    /// Replays the same run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 2000)]
    ops: usize,
    /// Where the twins live; emptied afterwards.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    #[arg(long, value_enum, default_value_t = Mode::Single)]
    mode: Mode,
    /// Prints every operation with its result.
    #[arg(long)]
    replay: bool,
    /// Leaves out operations while the mismatch stays, and prints those that are needed.
    #[arg(long)]
    shrink: bool,
    /// Runs only these operations of the sequence, such as 0-20,35.
    #[arg(long)]
    only: Option<String>,
    /// Damages twin A on purpose half way through.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
    /// Compares all contents after every operation: slow, but names the one that went wrong.
    #[arg(long)]
    compare_always: bool,
    /// Holes and block counts must agree, too.
    #[arg(long)]
    exact_holes: bool,
    /// Fails when no file was ever found mapped, or staged in the modes that stage, so that Adit cannot pass by being inert.
    #[arg(long)]
    expect_served: bool,
    #[arg(long, hide = true)]
    helper: bool,
    #[arg(long, hide = true)]
    child: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.helper {
        return if outside::serve().is_ok() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    if let Some(order) = &args.child {
        return match procs::child_program(order) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        };
    }
    let dir = args.dir.join(format!("adit-oracle-{}", std::process::id()));
    let result = match args.mode {
        Mode::Single | Mode::Model if args.shrink => shrink(&args),
        Mode::Single => single(&args, &dir),
        Mode::Threads => scenarios(&args, &dir, threads::ALL),
        Mode::Procs => scenarios(&args, &dir, procs::ALL),
        Mode::Model => model(&args, &dir),
    };
    // Whatever happened, the directory was ours alone.
    let _ = std::fs::remove_dir_all(&dir);
    match result {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            println!(
                "MISMATCH seed {} mode {:?} ops {}\n{e}",
                args.seed, args.mode, args.ops
            );
            ExitCode::FAILURE
        }
    }
}

fn single(args: &Args, dir: &Path) -> Result<String, String> {
    let steps = ops::generate(args.seed, args.ops);
    let only = args.only.as_deref().map(parse_ranges).transpose()?;
    let options = Options {
        plant: args.plant,
        exact_holes: args.exact_holes,
    };
    let mut twins = Twins::new(dir, options).map_err(|e| e.to_string())?;
    let mut last: VecDeque<String> = VecDeque::new();
    let mut ran = 0;
    for (i, step) in steps.iter().enumerate() {
        if only.as_ref().is_some_and(|o| !o.contains(&i)) {
            continue;
        }
        ran += 1;
        let mut result = twins.step(step, args.plant.is_some() && i >= steps.len() / 2);
        if args.compare_always {
            result = result.and_then(|said| twins.compare_all().map(|()| said));
        }
        let line = format!("{i}: {:?} alt {} look {}", step.op, step.alt, step.look);
        match result {
            Ok(said) => {
                let line = format!("{line} -> {said}");
                if args.replay {
                    println!("{line}");
                }
                last.push_back(line);
                if last.len() > 12 {
                    last.pop_front();
                }
            }
            Err(e) => {
                let before = last.make_contiguous().join("\n  ");
                return Err(format!("op {line}\n{e}\nbefore it:\n  {before}"));
            }
        }
    }
    let served = twins.finish().map_err(|e| format!("at the end: {e}"))?;
    let idle = if twin::staging() {
        "staged at 0 looks"
    } else {
        "after 0 of"
    };
    if args.expect_served && served.contains(idle) {
        return Err(format!("nothing was served: {served}"));
    }
    Ok(format!(
        "seed {}: {ran} operations agree, {served}",
        args.seed
    ))
}

fn model(args: &Args, dir: &Path) -> Result<String, String> {
    model::run(&model::Plan {
        seed: args.seed,
        ops: args.ops,
        only: args.only.as_deref().map(parse_ranges).transpose()?,
        plant: args.plant,
        replay: args.replay,
        compare_always: args.compare_always,
        dir,
    })
}

type Scenario = (&'static str, fn(&records::Stage) -> Result<(), String>);

/// Runs each scenario in a directory of its own; `--only` picks them by number.
fn scenarios(args: &Args, dir: &Path, all: &[Scenario]) -> Result<String, String> {
    let only = args.only.as_deref().map(parse_ranges).transpose()?;
    let mut ran = 0;
    for (i, (name, scenario)) in all.iter().enumerate() {
        if only.as_ref().is_some_and(|o| !o.contains(&i)) {
            continue;
        }
        let dir = dir.join(format!("s{i}"));
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        let stage = records::Stage {
            dir: dir.clone(),
            seed: args.seed,
            plant: args.plant,
            rounds: args.ops,
        };
        if args.replay {
            println!("{i}: {name}");
        }
        scenario(&stage).map_err(|e| format!("scenario {i} ({name}): {e}"))?;
        // Only to save space; the run's directory goes at the end anyway.
        let _ = std::fs::remove_dir_all(&dir);
        ran += 1;
    }
    Ok(format!("seed {}: {ran} scenarios agree", args.seed))
}

fn parse_ranges(text: &str) -> Result<std::collections::BTreeSet<usize>, String> {
    let mut all = std::collections::BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        let number = |s: &str| s.parse::<usize>().map_err(|e| format!("{part}: {e}"));
        all.extend(number(a)?..=number(b)?);
    }
    Ok(all)
}

fn show_ranges(of: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &i in of {
        match parts.last_mut() {
            Some(p) if p.1 + 1 == i => p.1 = i,
            _ => parts.push((i, i)),
        }
    }
    let show = |(a, b): &(usize, usize)| {
        if a == b {
            format!("{a}")
        } else {
            format!("{a}-{b}")
        }
    };
    parts.iter().map(show).collect::<Vec<_>>().join(",")
}

/// Runs a subset in a process of its own: a mismatch may be a crash.
fn fails(args: &Args, only: &[usize]) -> bool {
    let Ok(exe) = std::env::current_exe() else {
        return false;
    };
    let mut c = std::process::Command::new("timeout");
    c.arg("20").arg(exe);
    if args.mode == Mode::Model {
        c.args(["--mode", "model"]);
    }
    c.args([
        "--seed",
        &args.seed.to_string(),
        "--ops",
        &args.ops.to_string(),
    ]);
    c.arg("--dir")
        .arg(&args.dir)
        .args(["--only", &show_ranges(only)]);
    c.stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    c.status().is_ok_and(|s| !s.success())
}

fn shrink(args: &Args) -> Result<String, String> {
    let mut keep: Vec<usize> = (0..args.ops).collect();
    if !fails(args, &keep) {
        return Ok("nothing to shrink: the run agrees".into());
    }
    let mut part = keep.len() / 2;
    while part > 0 {
        // From the back: what comes after the mismatch is cut off at once.
        let mut end = keep.len();
        while end > 0 {
            let start = end.saturating_sub(part);
            let mut fewer = keep.clone();
            fewer.drain(start..end);
            if fails(args, &fewer) {
                keep = fewer;
            }
            end = start;
        }
        part /= 2;
    }
    let only = format!("--only {}", show_ranges(&keep));
    // Its steps get their sizes when they run: --replay shows them.
    if args.mode == Mode::Model {
        return Err(only);
    }
    let steps = ops::generate(args.seed, args.ops);
    let lines: Vec<String> = keep
        .iter()
        .map(|&i| format!("{i}: {:?}", steps[i]))
        .collect();
    Err(format!("{only}\n{}", lines.join("\n")))
}
