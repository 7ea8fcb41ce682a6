//! 64-byte records with a checksum, appended with streaming stores. Recovery applies them to a table
//! and empties the log, so that it has crash points of its own.

use adit_pmem::Medium;
use adit_sim::{Config, History, World, enumerate};

use crate::{assert_found, assert_survives, bounds};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    NoFence,
    AcknowledgedBeforeFence,
    FenceOfAnotherCore,
    NoChecksum,
    ChecksumOfHeaderOnly,
    RecoveryEmptiesLogBeforeTable,
    RecoveryDoesNotFlushTable,
}

const KEYS: u64 = 3;
const TABLE: u64 = 0;
const LOG: u64 = 4096;
const SLOTS: u64 = 16;
const RECORDS: u64 = 6;

/// sequence, key, value four times (so that a torn record can be told by its meaning), checksum.
fn encode(sequence: u64, key: u64, value: u64, bug: Bug) -> [u8; 64] {
    let mut record = [0; 64];
    for (word, into) in [sequence, key, value, value, value, value, 0]
        .iter()
        .zip(record.chunks_exact_mut(8))
    {
        into.copy_from_slice(&word.to_le_bytes());
    }
    let sum = u64::from(checksum(&record, bug));
    record[56..].copy_from_slice(&sum.to_le_bytes());
    record
}

fn checksum(record: &[u8; 64], bug: Bug) -> u32 {
    crc32c::crc32c(
        &record[..if bug == Bug::ChecksumOfHeaderOnly {
            16
        } else {
            56
        }],
    )
}

fn append(world: &World, nth: u64, value: u64, bug: Bug) {
    let medium = world.medium_on_core(1);
    let record = encode(nth + 1, nth % KEYS, value, bug);
    medium.write_streaming(LOG + nth * 64, &record).unwrap();
    match bug {
        Bug::NoFence => {}
        Bug::FenceOfAnotherCore => world.medium_on_core(2).fence(),
        _ => medium.fence(),
    }
}

fn workload(bug: Bug) -> impl Fn(&World) + Sync {
    move |world| {
        for nth in 0..RECORDS {
            let value = nth + 1;
            world.begin(value);
            if bug == Bug::AcknowledgedBeforeFence {
                world.acknowledge(value);
            }
            append(world, nth, value, bug);
            if bug != Bug::AcknowledgedBeforeFence {
                world.acknowledge(value);
            }
        }
    }
}

/// The table after recovery, or what is wrong with the log.
fn recover(world: &World, bug: Bug) -> Result<(), String> {
    let medium = world.medium();
    let mut valid = 0;
    for nth in 0..SLOTS {
        let mut record = [0; 64];
        medium.read(LOG + nth * 64, &mut record).unwrap();
        let word = |at: usize| u64::from_le_bytes(record[at * 8..at * 8 + 8].try_into().unwrap());
        let sound = bug == Bug::NoChecksum || word(7) == u64::from(checksum(&record, bug));
        if word(0) != nth + 1 || !sound {
            break;
        }
        if (2..6).any(|at| word(at) != word(2)) {
            return Err(format!("record {nth} is torn and was believed: {record:?}"));
        }
        // A crash while the log is emptied leaves older records, which are applied again.
        let newest = medium.load(TABLE + word(1) * 8).unwrap().max(word(2));
        medium.store(TABLE + word(1) * 8, newest).unwrap();
        valid = nth + 1;
    }
    if bug != Bug::RecoveryDoesNotFlushTable {
        medium.flush(TABLE, KEYS * 8).unwrap();
    }
    if bug != Bug::RecoveryEmptiesLogBeforeTable {
        medium.fence();
    }
    // From the last to the first, so that what a crash here leaves is still a log.
    for nth in (0..valid).rev() {
        medium.write_streaming(LOG + nth * 64, &[0; 64]).unwrap();
        medium.fence();
    }
    Ok(())
}

fn judge(bug: Bug) -> impl Fn(&World, &History) -> Result<(), String> + Sync {
    move |world, history| {
        recover(world, bug)?;
        world.judging();
        let medium = world.medium();
        let found = (0..KEYS)
            .map(|key| medium.load(TABLE + key * 8).unwrap())
            .max()
            .unwrap_or(0);
        let (acknowledged, newest) = bounds(history);
        for key in 0..KEYS {
            let value = medium.load(TABLE + key * 8).unwrap();
            let expected = (1..=found)
                .rev()
                .find(|value| (value - 1) % KEYS == key)
                .unwrap_or(0);
            if value != expected {
                return Err(format!(
                    "key {key} is {value}, not {expected}, with {found} newest"
                ));
            }
        }
        if found < acknowledged || found > newest {
            return Err(format!(
                "newest is {found}: {acknowledged} acknowledged, {newest} begun"
            ));
        }
        Ok(())
    }
}

#[test]
fn correct_one_survives() {
    let config = Config::new("record-log", 8192);
    let result = enumerate(&config, workload(Bug::None), judge(Bug::None));
    let report = assert_survives(&config, result);
    assert!(report.states > 50 && report.nested_states > 200, "{report}");
}

#[test]
fn every_bug_is_found() {
    for bug in [
        Bug::NoFence,
        Bug::AcknowledgedBeforeFence,
        Bug::FenceOfAnotherCore,
        Bug::NoChecksum,
        Bug::ChecksumOfHeaderOnly,
    ] {
        let config = Config::new(&format!("record-log-{bug:?}"), 8192);
        assert_found(&config, workload(bug), judge(bug));
    }
}

/// Bugs that only a crash inside the recovery shows.
#[test]
fn bugs_of_the_recovery_need_a_second_crash() {
    for bug in [
        Bug::RecoveryEmptiesLogBeforeTable,
        Bug::RecoveryDoesNotFlushTable,
    ] {
        let mut config = Config::new(&format!("record-log-{bug:?}"), 8192);
        let failure = assert_found(&config, workload(bug), judge(bug));
        assert_eq!(failure.history.crashes().len(), 2);
        config.nested_points = 0;
        assert_survives(&config, enumerate(&config, workload(bug), judge(bug)));
    }
}
