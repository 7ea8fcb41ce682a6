//! The measuring process: it runs under the library and writes one JSON line per case.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::cases::{Case, GROUPS, Goal, Stage};
use super::{sides, staged};
use crate::args::{BenchWorkerArgs, Suite};
use crate::doctor;
use crate::failure::{Failure, NO, Outcome};

/// A line of the worker's output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// The library is not there: nothing it would measure means anything.
    Inactive,
    /// What is going to be measured.
    Medium(String),
    /// One case's numbers, nanoseconds per operation, one entry per round.
    Measured(Measured),
}

/// One case's numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) adit: Vec<f64>,
    pub(crate) kernel: Vec<f64>,
    pub(crate) raw: Vec<Vec<f64>>,
    pub(crate) raw_is: String,
    pub(crate) goal: Option<Goal>,
}

/// Passes before the first one that counts: the library adopts a file once its use pays.
const WARM_UP: u32 = 3;

/// Measures everything.
pub(crate) fn work(args: &BenchWorkerArgs) -> Outcome {
    if !sides::active() {
        say(&Line::Inactive);
        return Ok(NO);
    }
    let medium = doctor::medium_of(&args.dir);
    say(&Line::Medium(medium.name().to_owned()));
    measure(args, medium).map_err(|what| {
        Failure::new(what).next("bench needs a directory with 300 MB free: --dir DIR")
    })?;
    Ok(0)
}

fn measure(args: &BenchWorkerArgs, medium: adit_pmem::MediumKind) -> Result<(), String> {
    let stage = Stage::new(&args.dir, medium)?;
    let measure = |case| alternate(case, args.rounds).map(|it| say(&Line::Measured(it)));
    match args.suite {
        Suite::Posix => GROUPS
            .iter()
            .try_for_each(|group| group(&stage)?.into_iter().try_for_each(measure)),
        Suite::Apps => Err("programs are not measured by this process".into()),
        suite => {
            staged::check(&stage)?;
            staged::groups(suite)
                .iter()
                .try_for_each(|group| group(&stage)?.into_iter().try_for_each(measure))
        }
    }
}

/// Runs the sides in turn, beginning with another one in each round, so that whatever else the
/// machine does meets all of them alike.
fn alternate(mut case: Case<'_>, rounds: u32) -> Result<Measured, String> {
    let mut measured = Measured {
        name: case.name,
        adit: Vec::new(),
        kernel: Vec::new(),
        raw: vec![Vec::new(); case.raw.len()],
        raw_is: case.raw_is.to_owned(),
        goal: case.goal,
    };
    let mut sides = vec![(&mut case.adit, &mut measured.adit)];
    sides.push((&mut case.kernel, &mut measured.kernel));
    sides.extend(case.raw.iter_mut().zip(&mut measured.raw));
    let count = sides.len();
    for round in 0..WARM_UP + rounds {
        for turn in 0..count {
            let (side, times) = &mut sides[(turn + round as usize) % count];
            let time = side()?;
            if round >= WARM_UP {
                times.push(time);
            }
        }
    }
    Ok(measured)
}

fn say(line: &Line) {
    if let Ok(text) = serde_json::to_string(line) {
        println!("{text}");
        let _ = std::io::stdout().flush();
    }
}
