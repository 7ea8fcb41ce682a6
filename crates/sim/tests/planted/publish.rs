//! Staged pages, a record for each, and a publisher that copies them into a file and retires the
//! records: the shape of Adit's own loop, in small.

use adit_pmem::{BaseFile, Medium};
use adit_sim::{Config, History, SimFile, World, enumerate, sequences};

use crate::{assert_found, assert_survives};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    RecordBeforeData,
    DataNotFenced,
    RetireBeforeSync,
    NoSync,
    RetireOutOfOrder,
    StagedPageReusedEarly,
    NameNotSynced,
    RecoveryRetiresBeforeSync,
    RecoveryTrustsWhatItSees,
}

const PAGE: u64 = 4096;
const RECORDS: u64 = 0;
const RECORD: u64 = 64;
const STAGED: u64 = 4096;
const STAGED_PAGES: u64 = OPS + 1;
const SIZE: u64 = STAGED + STAGED_PAGES * PAGE;
const OPS: u64 = 4;

/// A record is one word, so that it cannot be torn: place in the file, times two, plus one when live.
const LIVE: u64 = 1;

/// All operations write to the same two places of the file, so that order matters.
fn place(op: u64) -> u64 {
    op % 2 * PAGE
}

fn staged(op: u64, bug: Bug) -> u64 {
    let pages = if bug == Bug::StagedPageReusedEarly {
        1
    } else {
        STAGED_PAGES
    };
    STAGED + op % pages * PAGE
}

fn stage(world: &World, op: u64, bug: Bug) {
    let medium = world.medium();
    let data = || {
        medium
            .write_streaming(staged(op, bug), &[op as u8; PAGE as usize])
            .unwrap();
        if bug != Bug::DataNotFenced {
            medium.fence();
        }
    };
    if bug != Bug::RecordBeforeData {
        data();
    }
    let record = RECORDS + op * RECORD;
    medium.store(record, place(op) << 1 | LIVE).unwrap();
    medium.flush(record, RECORD).unwrap();
    medium.fence();
    if bug == Bug::RecordBeforeData {
        data();
    }
}

fn publish(world: &World, file: &SimFile, op: u64, bug: Bug) {
    let medium = world.medium();
    let mut bytes = vec![0; PAGE as usize];
    medium.read(staged(op, bug), &mut bytes).unwrap();
    let place = medium.load(RECORDS + op * RECORD).unwrap() >> 1;
    file.write_at(place, &bytes).unwrap();
    if bug == Bug::RetireBeforeSync {
        retire(world, op);
    }
    if bug != Bug::NoSync {
        file.sync().unwrap();
    }
    if bug != Bug::RetireBeforeSync {
        retire(world, op);
    }
}

fn retire(world: &World, op: u64) {
    let medium = world.medium();
    medium.store(RECORDS + op * RECORD, 0).unwrap();
    medium.flush(RECORDS + op * RECORD, RECORD).unwrap();
    medium.fence();
}

fn workload(bug: Bug) -> impl Fn(&World) + Sync {
    move |world| {
        let file = world.create("dir/file").unwrap();
        if bug != Bug::NameNotSynced {
            world.sync_directory("dir");
        }
        // Two operations on one place are staged before either is published.
        for pair in [[1, 3], [2, 4]] {
            for op in pair {
                world.begin(op);
                stage(world, op, bug);
                world.acknowledge(op);
            }
            if bug == Bug::RetireOutOfOrder {
                publish_newest_first(world, &file, pair);
            } else {
                publish(world, &file, pair[0], bug);
                publish(world, &file, pair[1], bug);
            }
        }
    }
}

/// Only the newest needs to reach the file, one may think, and retires it; then the older one.
fn publish_newest_first(world: &World, file: &SimFile, [older, newer]: [u64; 2]) {
    publish(world, file, newer, Bug::None);
    retire(world, older);
}

fn recover(world: &World, bug: Bug) -> Result<(), String> {
    let medium = world.medium();
    // After a process death, what is seen may not be durable: a retirement that the dead process stored
    // but did not fence could be undone by a later power cut, behind a newer record's.
    if bug != Bug::RecoveryTrustsWhatItSees {
        medium.flush(RECORDS, (OPS + 1) * RECORD).unwrap();
        medium.fence();
    }
    let live: Vec<u64> = (1..=OPS)
        .filter(|op| medium.load(RECORDS + op * RECORD).unwrap() & LIVE != 0)
        .collect();
    if live.is_empty() {
        return Ok(());
    }
    let file = world
        .open("dir/file")
        .map_err(|error| format!("the file is gone: {error}"))?;
    // After a mere process death the file may be named but not durably so.
    world.sync_directory("dir");
    for op in live {
        let how = if bug == Bug::RecoveryRetiresBeforeSync {
            Bug::RetireBeforeSync
        } else {
            bug
        };
        publish(world, &file, op, how);
    }
    Ok(())
}

fn judge(bug: Bug) -> impl Fn(&World, &History) -> Result<(), String> + Sync {
    move |world, history| {
        recover(world, bug)?;
        world.judging();
        for at in [0, PAGE] {
            let mut bytes = vec![0; PAGE as usize];
            if let Ok(file) = world.open("dir/file") {
                file.read_at(at, &mut bytes).unwrap();
            }
            if bytes.iter().any(|byte| *byte != bytes[0]) {
                return Err(format!("the page at {at} is torn"));
            }
            let here = |ops: &[u64]| ops.iter().copied().filter(|op| place(*op) == at).max();
            let must = here(history.completed()).unwrap_or(0);
            let may = here(&history.in_flight()).unwrap_or(must);
            let found = u64::from(bytes[0]);
            if found != must && found != may {
                return Err(format!("the page at {at} has {found}: {must} acknowledged"));
            }
        }
        Ok(())
    }
}

#[test]
fn correct_one_survives() {
    let mut config = Config::new("publish", SIZE);
    config.threads = 2;
    let report = assert_survives(
        &config,
        enumerate(&config, workload(Bug::None), judge(Bug::None)),
    );
    assert!(
        report.states > 500 && report.nested_states > 100,
        "{report}"
    );
}

#[test]
fn every_bug_is_found() {
    for bug in [
        Bug::RecordBeforeData,
        Bug::DataNotFenced,
        Bug::RetireBeforeSync,
        Bug::NoSync,
        Bug::RetireOutOfOrder,
        Bug::StagedPageReusedEarly,
        Bug::NameNotSynced,
        Bug::RecoveryRetiresBeforeSync,
        Bug::RecoveryTrustsWhatItSees,
    ] {
        let config = Config::new(&format!("publish-{bug:?}"), SIZE);
        assert_found(&config, workload(bug), judge(bug));
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    Stage,
    Publish,
}

#[test]
fn every_short_sequence_survives() {
    let mut states = 0;
    for steps in sequences(&[Step::Stage, Step::Publish], OPS as u32) {
        let workload = |world: &World| {
            let file = world.create("dir/file").unwrap();
            world.sync_directory("dir");
            let (mut staged, mut published) = (0, 0);
            for step in &steps {
                if *step == Step::Stage {
                    staged += 1;
                    world.begin(staged);
                    stage(world, staged, Bug::None);
                    world.acknowledge(staged);
                } else {
                    (published + 1..=staged).for_each(|op| publish(world, &file, op, Bug::None));
                    published = staged;
                }
            }
        };
        let mut config = Config::new(&format!("publish-{steps:?}"), SIZE);
        config.max_states = 2000;
        let report = enumerate(&config, workload, judge(Bug::None));
        states += report.unwrap_or_else(|failure| panic!("{failure}")).states;
    }
    assert!(states > 1000, "{states}");
}
