//! The two halves of a power cut.
//!
//! `powercut write` runs inside the machine, under Adit. It does operation after operation, each
//! derived from a seed and its number, and sends one line over the serial line after each: the
//! operation is acknowledged. When the runner kills the machine, the lines it has received are what
//! was promised. `powercut check` runs after the next boot and derives the same operations again:
//! all that were acknowledged must be there, of the one that was in flight any part may be.
// What is tested is how Adit serves a program that goes through libc.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod ace;
mod allocate;
mod attribute;
mod check;
mod kinds;
mod mapped;
mod promise;
mod sequences;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str =
    "usage: powercut write KIND DIR SEED PORT TAG [early] [no-fsync] [reopen] [rest]
       powercut check KIND DIR SEED PROMISE ACKNOWLEDGED
       powercut sequences PROMISE DIR SEED NUMBERS PORT TAG [early] [no-fsync] [wait]
       powercut check-sequences PROMISE DIR SEED [unordered] NUMBER EVENTS BACK [NUMBER EVENTS BACK]...
       powercut count PROMISE DIR SEED
KIND: overwrite, unwritten, append, replace, short
PROMISE: posix, sync, atomic, strict; killed, killed-strict when only processes died
NUMBERS: COUNT, or FIRST-LAST";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            println!("FAILED {}: {e}", args.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String, String> {
    let [what, kind, dir, seed, rest @ ..] = args else {
        return Err(USAGE.into());
    };
    if let Some(promise) = promise::Promise::parse(kind) {
        let series = sequences::Series {
            dir: PathBuf::from(dir),
            seed: number(seed)?,
            promise,
        };
        return run_sequences(what, &series, rest);
    }
    let place = kinds::Place {
        kind: kinds::Kind::parse(kind).ok_or(USAGE)?,
        dir: PathBuf::from(dir),
        seed: number(seed)?,
    };
    match (what.as_str(), rest) {
        ("write", [port, tag, how @ ..]) => {
            let how: Option<Vec<_>> = how.iter().map(|word| write::How::parse(word)).collect();
            write::run(&place, port, tag, &how.ok_or(USAGE)?)
        }
        ("check", [promise, acknowledged]) => {
            let promise = promise::Promise::parse(promise).ok_or(USAGE)?;
            check::run(&place, number(acknowledged)?, promise)
        }
        _ => Err(USAGE.into()),
    }
}

fn run_sequences(
    what: &str,
    series: &sequences::Series,
    rest: &[String],
) -> Result<String, String> {
    let size = |text: &str| usize::try_from(number(text)?).map_err(|e| e.to_string());
    match (what, rest) {
        ("count", []) => Ok(ace::Order::new(series.seed, series.promise)
            .count()
            .to_string()),
        ("sequences", [numbers, port, tag, how @ ..]) => {
            let how: Option<Vec<_>> = how.iter().map(|word| write::How::parse(word)).collect();
            let (first, last) = numbers.split_once('-').unwrap_or(("1", numbers));
            series.run(size(first)?..=size(last)?, port, tag, &how.ok_or(USAGE)?)
        }
        ("check-sequences", looks) if !looks.is_empty() => {
            let (ordered, looks) = match looks {
                [first, rest @ ..] if first == "unordered" => (false, rest),
                all => (true, all),
            };
            let looks: Result<Vec<_>, String> = looks
                .chunks(3)
                .map(|look| match look {
                    [number, events, back] => Ok([size(number)?, size(events)?, size(back)?]),
                    _ => Err(USAGE.into()),
                })
                .collect();
            series.check(&looks?, ordered)
        }
        _ => Err(USAGE.into()),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|e| format!("{text}: {e}\n{USAGE}"))
}
