//! Publishing by exchange: a swap that is repeated is undone, so recovery must know which side has
//! the new bytes.

use adit_pmem::{BaseFile, Medium};
use adit_sim::{Config, History, SimFile, World, enumerate};

use crate::{assert_found, assert_survives, bounds};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    RecoveryExchangesBlindly,
    RetireBeforeSync,
    StagingNotSynced,
    CloneInstead,
}

const PAGE: u64 = 4096;
const LEN: usize = 4 * PAGE as usize;
const OPS: u64 = 3;

/// The record: operation and checksum of its bytes; operation 0 is none.
const OP: u64 = 0;
const SUM: u64 = 8;

fn sum_of(file: &SimFile) -> u64 {
    let mut bytes = vec![0; LEN];
    file.read_at(0, &mut bytes).unwrap();
    u64::from(crc32c::crc32c(&bytes))
}

fn stage(world: &World, staging: &SimFile, op: u64, bug: Bug) {
    staging.write_at(0, &[op as u8; LEN]).unwrap();
    if bug != Bug::StagingNotSynced {
        staging.sync().unwrap();
    }
    let medium = world.medium();
    medium.store(SUM, sum_of(staging)).unwrap();
    medium.flush(SUM, 8).unwrap();
    medium.fence();
    medium.store(OP, op).unwrap();
    medium.flush(OP, 8).unwrap();
    medium.fence();
}

fn retire(world: &World) {
    let medium = world.medium();
    medium.store(OP, 0).unwrap();
    medium.flush(OP, 8).unwrap();
    medium.fence();
}

fn publish(world: &World, base: &SimFile, staging: &SimFile, bug: Bug) {
    if bug == Bug::CloneInstead {
        base.clone_range(0, staging, 0, LEN as u64).unwrap();
    } else {
        base.exchange_range(0, staging, 0, LEN as u64).unwrap();
    }
    if bug == Bug::RetireBeforeSync {
        retire(world);
    }
    base.sync().unwrap();
    if bug != Bug::RetireBeforeSync {
        retire(world);
    }
}

fn workload(bug: Bug) -> impl Fn(&World) + Sync {
    move |world| {
        let (base, staging) = world.setup(|| {
            let base = world.create("base").unwrap();
            base.write_at(0, &[0; LEN]).unwrap();
            base.set_size(LEN as u64).unwrap();
            let staging = world.create("staging").unwrap();
            staging.write_at(0, &[0; LEN]).unwrap();
            (base, staging)
        });
        for op in 1..=OPS {
            world.begin(op);
            stage(world, &staging, op, bug);
            world.acknowledge(op);
            publish(world, &base, &staging, bug);
        }
    }
}

fn recover(world: &World, bug: Bug) {
    let (base, staging) = (world.open("base").unwrap(), world.open("staging").unwrap());
    let medium = world.medium();
    if medium.load(OP).unwrap() == 0 {
        return;
    }
    let here = medium.load(SUM).unwrap() == sum_of(&staging);
    if here || bug == Bug::RecoveryExchangesBlindly {
        base.exchange_range(0, &staging, 0, LEN as u64).unwrap();
    }
    base.sync().unwrap();
    retire(world);
}

/// Without recovery in the case of the clone, which shows that a clone is not atomic.
fn judge(bug: Bug) -> impl Fn(&World, &History) -> Result<(), String> + Sync {
    move |world, history| {
        if bug != Bug::CloneInstead {
            recover(world, bug);
        }
        world.judging();
        let base = world.open("base").unwrap();
        let mut bytes = vec![0; LEN];
        base.read_at(0, &mut bytes).unwrap();
        if bytes.iter().any(|byte| *byte != bytes[0]) {
            return Err(String::from("the file is mixed"));
        }
        let (acknowledged, newest) = bounds(history);
        let found = u64::from(bytes[0]);
        if bug == Bug::CloneInstead || found == acknowledged || found == newest {
            return Ok(());
        }
        Err(format!(
            "found {found}: {acknowledged} acknowledged, {newest} begun"
        ))
    }
}

#[test]
fn correct_one_survives() {
    let config = Config::new("exchange", 4096);
    let report = assert_survives(
        &config,
        enumerate(&config, workload(Bug::None), judge(Bug::None)),
    );
    assert!(report.states > 100 && report.nested_states > 50, "{report}");
}

#[test]
fn every_bug_is_found() {
    for bug in [
        Bug::RecoveryExchangesBlindly,
        Bug::RetireBeforeSync,
        Bug::StagingNotSynced,
        Bug::CloneInstead,
    ] {
        let config = Config::new(&format!("exchange-{bug:?}"), 4096);
        assert_found(&config, workload(bug), judge(bug));
    }
}
