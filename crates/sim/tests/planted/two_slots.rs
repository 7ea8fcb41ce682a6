//! A record in two slots and a version word that says which is current.

use adit_pmem::Medium;
use adit_sim::{Config, History, World, enumerate};

use crate::{assert_found, assert_survives, bounds};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    NoFlushOfData,
    NoFlushOfVersion,
    NoFenceBetween,
    VersionBeforeData,
    InPlace,
}

const VERSION: u64 = 0;
const SLOTS: u64 = 64;
const SLOT_BYTES: u64 = 128;
const WRITES: u64 = 4;

fn slot(version: u64) -> u64 {
    SLOTS + version % 2 * SLOT_BYTES
}

fn write_slot(medium: &impl Medium, at: u64, value: u64, bug: Bug) {
    for word in 0..SLOT_BYTES / 8 {
        medium.store(at + word * 8, value).unwrap();
    }
    if bug != Bug::NoFlushOfData {
        medium.flush(at, SLOT_BYTES).unwrap();
    }
}

fn write(medium: &impl Medium, value: u64, bug: Bug) {
    let version = medium.load(VERSION).unwrap();
    let target = if bug == Bug::InPlace {
        slot(version)
    } else {
        slot(version + 1)
    };
    if bug != Bug::VersionBeforeData {
        write_slot(medium, target, value, bug);
    }
    if bug != Bug::NoFenceBetween && bug != Bug::VersionBeforeData {
        medium.fence();
    }
    if bug != Bug::InPlace {
        medium.store(VERSION, version + 1).unwrap();
    }
    if bug != Bug::NoFlushOfVersion {
        medium.flush(VERSION, 8).unwrap();
    }
    medium.fence();
    if bug == Bug::VersionBeforeData {
        write_slot(medium, target, value, bug);
        medium.fence();
    }
}

fn workload(bug: Bug) -> impl Fn(&World) + Sync {
    move |world| {
        let medium = world.medium();
        for value in 1..=WRITES {
            world.begin(value);
            write(&medium, value, bug);
            world.acknowledge(value);
        }
    }
}

fn judge(world: &World, history: &History) -> Result<(), String> {
    let medium = world.medium();
    let at = slot(medium.load(VERSION).unwrap());
    let words: Vec<u64> = (0..SLOT_BYTES / 8)
        .map(|word| medium.load(at + word * 8).unwrap())
        .collect();
    if words.iter().any(|word| *word != words[0]) {
        return Err(format!("torn record {words:?}"));
    }
    let (acknowledged, in_flight) = bounds(history);
    if words[0] == acknowledged || words[0] == in_flight {
        return Ok(());
    }
    Err(format!(
        "found {}, acknowledged {acknowledged}, in flight {in_flight}",
        words[0]
    ))
}

#[test]
fn correct_one_survives() {
    let config = Config::new("two-slots", 4096);
    let report = assert_survives(&config, enumerate(&config, workload(Bug::None), judge));
    assert!(report.states > 500, "{report}");
    assert_eq!(report.points_skipped, 0);
}

#[test]
fn every_bug_is_found() {
    for bug in [
        Bug::NoFlushOfData,
        Bug::NoFlushOfVersion,
        Bug::NoFenceBetween,
        Bug::VersionBeforeData,
        Bug::InPlace,
    ] {
        let config = Config::new(&format!("two-slots-{bug:?}"), 4096);
        assert_found(&config, workload(bug), judge);
    }
}
