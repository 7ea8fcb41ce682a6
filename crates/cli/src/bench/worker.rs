//! The measuring process: it runs under the library and writes one JSON line per case.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::cases::{Case, GROUPS, Goal, Maker, Stage};
use super::{sides, staged};
use crate::args::{BenchWorkerArgs, Suite};
use crate::doctor;
use crate::failure::{NO, Outcome};

/// A line of the worker's output.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// The library is not there: nothing it would measure means anything.
    Inactive,
    /// What is going to be measured.
    Medium(String),
    /// Why nothing more is measured.
    Failed(String),
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
    match measure(args, medium) {
        Ok(()) => Ok(0),
        Err(why) => fail(why),
    }
}

/// A measurement of calls that fail is worth nothing. Which thread ever finds that out, what is measured stays said.
#[cold]
pub(super) fn fail(why: String) -> ! {
    say(&Line::Failed(why));
    std::process::exit(NO.into())
}

fn measure(args: &BenchWorkerArgs, medium: adit_pmem::MediumKind) -> Result<(), String> {
    let stage = Stage::new(&args.dir, medium, args.suite == Suite::Posix)?;
    let measure = |case| alternate(case, args.rounds).map(|it| say(&Line::Measured(it)));
    let groups: &[Maker] = match args.suite {
        Suite::Posix => &GROUPS,
        Suite::Apps => return Err("programs are not measured by this process".into()),
        suite => {
            staged::check(&stage)?;
            staged::groups(suite)
        }
    };
    for group in groups {
        group(&stage)?.into_iter().try_for_each(measure)?;
        stage.clear()?;
    }
    Ok(())
}

/// Runs the sides in turn, beginning with another one in each round and going the other way round in every second one: what
/// else the machine does meets all of them alike, and so does what the one before leaves to be done.
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
            let (side, times) = &mut sides[whose(turn, round, count)];
            let time = side()?;
            if round >= WARM_UP {
                times.push(time);
            }
        }
    }
    Ok(measured)
}

/// Which of so many sides runs in a turn of a round.
pub(super) fn whose(turn: usize, round: u32, count: usize) -> usize {
    let step = if round.is_multiple_of(2) {
        turn
    } else {
        count - turn
    };
    (round as usize + step) % count
}

fn say(line: &Line) {
    if let Ok(text) = serde_json::to_string(line) {
        println!("{text}");
        let _ = std::io::stdout().flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_has_each_turn_and_each_neighbour_equally_often() {
        const SIDES: usize = 5;
        let order = |round| (0..SIDES).map(move |turn| whose(turn, round, SIDES));
        let mut turns = [[0; SIDES]; SIDES];
        let mut behind = std::collections::BTreeMap::<_, u32>::new();
        for round in 0..2 * SIDES as u32 {
            order(round)
                .enumerate()
                .for_each(|(turn, side)| turns[turn][side] += 1);
            for (before, side) in order(round).zip(order(round).skip(1)) {
                *behind.entry((side, before)).or_default() += 1;
            }
        }
        assert_eq!(turns, [[2; SIDES]; SIDES]);
        for side in 0..SIDES {
            let (next, last) = ((side + 1) % SIDES, (side + SIDES - 1) % SIDES);
            assert_eq!(behind[&(side, next)], 4);
            assert_eq!(behind[&(side, last)], 4);
        }
    }
}
