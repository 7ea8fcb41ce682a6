//! The two halves of a power cut.
//!
//! `powercut write` runs inside the machine, under Adit. It does operation after operation, each
//! derived from a seed and its number, and sends one line over the serial line after each: the
//! operation is acknowledged. When the runner kills the machine, the lines it has received are what
//! was promised. `powercut check` runs after the next boot and derives the same operations again:
//! all that were acknowledged must be there, of the one that was in flight any part may be.
// What is tested is how Adit serves a program that goes through libc.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod check;
mod kinds;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: powercut write KIND DIR SEED PORT TAG [early|no-fsync]
       powercut check KIND DIR SEED ACKNOWLEDGED
KIND: overwrite, unwritten, append, replace";

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
    let place = kinds::Place {
        kind: kinds::Kind::parse(kind).ok_or(USAGE)?,
        dir: PathBuf::from(dir),
        seed: number(seed)?,
    };
    match (what.as_str(), rest) {
        ("write", [port, tag]) => write::run(&place, port, tag, None),
        ("write", [port, tag, plant]) => {
            let plant = write::Plant::parse(plant).ok_or(USAGE)?;
            write::run(&place, port, tag, Some(plant))
        }
        ("check", [acknowledged]) => check::run(&place, number(acknowledged)?),
        _ => Err(USAGE.into()),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|e| format!("{text}: {e}\n{USAGE}"))
}
