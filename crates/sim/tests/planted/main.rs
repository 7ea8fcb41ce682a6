//! Small structures on the simulated medium, each correct and with planted bugs: the enumerator must
//! pass the one and find every one of the others, and its replay string must lead back.

mod exchange;
mod names;
mod publish;
mod record_log;
mod two_slots;

use adit_sim::{Config, Failure, History, Report, World, enumerate, replay};

type Judged = Result<Report, Box<Failure>>;

/// The bug must be found, and the string that is printed must lead to the same state and verdict.
fn assert_found<W, J>(config: &Config, workload: W, judge: J) -> Box<Failure>
where
    W: Fn(&World) + Sync,
    J: Fn(&World, &History) -> Result<(), String> + Sync,
{
    let failure = enumerate(config, &workload, &judge).expect_err(&config.name);
    println!("{}: {failure}", config.name);
    for _ in 0..2 {
        let again = replay(config, &failure.replay, &workload, &judge).expect_err("replay");
        assert_eq!(again, failure);
    }
    failure
}

fn assert_survives(config: &Config, result: Judged) -> Report {
    let report = result.unwrap_or_else(|failure| panic!("{}: {failure}", config.name));
    println!("{}: {report}", config.name);
    report
}

/// The newest value that must have survived, and the newest that may have.
///
/// Operations are numbered upwards and done one after the other.
fn bounds(history: &History) -> (u64, u64) {
    let acknowledged = history.completed().last().copied().unwrap_or(0);
    let newest = history.in_flight().last().copied().unwrap_or(acknowledged);
    (acknowledged, newest)
}
