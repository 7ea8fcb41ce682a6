//! Replacing a file as programs do: write a new one beside it, sync, rename, sync the directory.

use adit_pmem::BaseFile;
use adit_sim::{Config, History, World, enumerate};

use crate::{assert_found, assert_survives, bounds};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bug {
    None,
    NoSyncOfFile,
    NoSyncOfDirectory,
    InPlace,
    UnlinkFirst,
}

const VERSIONS: u64 = 3;
const LEN: usize = 6000;

fn replace(world: &World, version: u64, bug: Bug) {
    let bytes = vec![version as u8; LEN];
    if bug == Bug::InPlace {
        let file = world.open("d/config").unwrap();
        file.write_at(0, &bytes).unwrap();
        file.sync().unwrap();
        return;
    }
    let file = world.create("d/config.new").unwrap();
    file.write_at(0, &bytes).unwrap();
    if bug != Bug::NoSyncOfFile {
        file.sync().unwrap();
    }
    if bug == Bug::UnlinkFirst {
        world.unlink("d/config").unwrap();
    }
    world.rename("d/config.new", "d/config").unwrap();
    if bug != Bug::NoSyncOfDirectory {
        world.sync_directory("d");
    }
}

fn workload(bug: Bug) -> impl Fn(&World) + Sync {
    move |world| {
        world.setup(|| {
            world
                .create("d/config")
                .unwrap()
                .write_at(0, &[0; LEN])
                .unwrap()
        });
        for version in 1..=VERSIONS {
            world.begin(version);
            replace(world, version, bug);
            world.acknowledge(version);
        }
    }
}

fn judge(world: &World, history: &History) -> Result<(), String> {
    world.judging();
    let file = world
        .open("d/config")
        .map_err(|error| format!("no file: {error}"))?;
    let mut bytes = vec![0; LEN + 1];
    let len = file.read_at(0, &mut bytes).unwrap();
    if len != LEN || bytes[..LEN].iter().any(|byte| *byte != bytes[0]) {
        return Err(format!("{len} mixed bytes"));
    }
    let (acknowledged, newest) = bounds(history);
    let found = u64::from(bytes[0]);
    if found == acknowledged || found == newest {
        return Ok(());
    }
    Err(format!(
        "version {found}: {acknowledged} acknowledged, {newest} begun"
    ))
}

#[test]
fn correct_one_survives() {
    let config = Config::new("names", 64);
    let report = assert_survives(&config, enumerate(&config, workload(Bug::None), judge));
    assert!(report.states > 50, "{report}");
}

#[test]
fn every_bug_is_found() {
    for bug in [
        Bug::NoSyncOfFile,
        Bug::NoSyncOfDirectory,
        Bug::InPlace,
        Bug::UnlinkFirst,
    ] {
        let config = Config::new(&format!("names-{bug:?}"), 64);
        assert_found(&config, workload(bug), judge);
    }
}
