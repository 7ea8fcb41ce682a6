//! Commits of several files that a death cuts short, whose files end one by one before the power does.

use std::sync::Arc;

use adit_pool::layout::Geometry;
use adit_pool::{Attachment, CreateOptions, Error, FileRef, LocalLocks, Pool, When};
use adit_sim::{Config, History, SimMedium, World, enumerate};

use crate::common::*;
use crate::pools::*;
use crate::replay::replayed;

/// Files that are committed together: so many that some are left when two have ended.
const FILES: usize = 4;

const GEOMETRY: Geometry = Geometry {
    file_count: 6,
    ..TINY
};

/// The death, and then the end of each file.
const DEATH: u64 = 1;

fn size() -> u64 {
    GEOMETRY.chunk(GEOMETRY.header_chunks() + 12)
}

/// One who will die, and one who lives on. Of each file something is staged, and committed by nobody.
fn begin(world: &World, case: Case) -> ([Attachment<SimMedium>; 2], Vec<FileRef>) {
    if case.on_disk {
        world.put_behind_page_cache(GEOMETRY.header_len());
    }
    world.setup(|| {
        let boot = boot(world.boot_id());
        let options = CreateOptions {
            boot,
            ..options(GEOMETRY)
        };
        Pool::create(&world.medium(), &options).expect("create");
        let locks = LocalLocks::default();
        // A core each: what one has flushed, the other's fences do not make durable.
        let attached = [0, 1].map(|core| {
            let pool = open(world.medium_on_core(core), &locks, boot).expect("open");
            pool.attach().expect("attach")
        });
        let enter = |nth: usize| attached[0].enter_file(&name(nth as u8)).expect("enter");
        let mut files: Vec<FileRef> = (0..FILES).map(enter).collect();
        files.sort_unstable();
        for file in &files {
            attached[0]
                .lock_file(*file)
                .expect("lock")
                .set_end(0)
                .expect("end");
            stage(&attached[0], *file, 0, &[7; 64], When::WithCommit).expect("write");
        }
        if case.buries {
            // All but the first part of the ring lie in a chunk of their own, which nothing else keeps.
            let eighth = attached[0].enter_file(&name(8)).expect("enter");
            while attached[0].waiting_records() < u64::from(GEOMETRY.records_per_chunk()) - 1 {
                attached[0]
                    .lock_file(eighth)
                    .expect("lock")
                    .commit()
                    .expect("commit");
            }
            assert_eq!(attached[0].log_chunks(), 1);
        }
        attached[0].pool().settle().expect("settle");
        (attached, files)
    })
}

fn commit(dies: &Attachment<SimMedium>, files: &[FileRef]) {
    let lock = |file: &FileRef| dies.lock_file(*file).expect("lock");
    let mut guards: Vec<_> = files.iter().map(lock).collect();
    dies.commit_together(&mut guards).expect("commit");
}

fn events(case: Case) -> u64 {
    let ends = |events: &u64| {
        let world = World::new(size());
        let ([dies, _], files) = begin(&world, case);
        world
            .kill_after(*events, || commit(&dies, &files))
            .is_some()
    };
    (0..).find(ends).expect("an end")
}

/// The two files that end, and what else the survivor does first.
#[derive(Debug, Clone, Copy)]
struct Case {
    ends: [usize; 2],
    buries: bool,
    on_disk: bool,
}

/// Ends the staging of some files, whose base files are durable, as far as this test is concerned.
fn go_on(world: &World, case: Case, alive: &Attachment<SimMedium>, files: &[FileRef]) {
    if case.buries {
        alive.release_orphans().expect("release");
        // What is free by now is another's.
        let other = alive.enter_file(&name(9)).expect("enter");
        alive
            .lock_file(other)
            .expect("lock")
            .set_end(0)
            .expect("end");
        let mut nth = 0;
        let full = loop {
            match stage(alive, other, nth * 4096, &[9; 4096], When::Now) {
                Ok(_) => nth += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::Full { .. }), "{full}");
    }
    for (nth, end) in case.ends.into_iter().enumerate() {
        world.begin(DEATH + 1 + nth as u64);
        alive.forget_file(files[end]).expect("forget");
    }
}

/// Of the files that nobody has ended, all are committed or none.
fn judge(world: &World, history: &History, case: Case) -> Result<(), String> {
    let text = |error: adit_pool::Error| error.to_string();
    let locks = LocalLocks::default();
    let pool: Arc<Pool<SimMedium>> =
        open(world.medium(), &locks, boot(world.boot_id())).map_err(text)?;
    let a = pool.attach().map_err(text)?;
    let found = a.scan().map_err(text)?;
    let ended = |file: usize| {
        let nth = case.ends.iter().position(|end| *end == file);
        nth.is_some_and(|nth| history.is_begun(DEATH + 1 + nth as u64))
    };
    let mut there = Vec::new();
    for nth in (0..FILES).filter(|nth| !ended(*nth)) {
        let file = pool.find_file(&name(nth as u8)).map_err(text)?;
        let is_its = |file: FileRef| found.files.iter().any(|found| found.file() == file);
        there.push(file.is_some_and(is_its));
    }
    if there.iter().any(|is_there| *is_there != there[0]) {
        return Err(format!("{there:?} are committed"));
    }
    // What another has staged in what was free is as it was.
    let other = pool.find_file(&name(9)).map_err(text)?;
    if let Some(other) = other {
        let bytes = replayed(&pool, &found, other, b"").map_err(text)?;
        if bytes.iter().any(|byte| *byte != 9) {
            return Err("another file has other bytes".to_owned());
        }
    }
    if case.buries {
        // Bytes and their record share a fence: what was in flight is found without the other.
        return Ok(());
    }
    world.judging();
    let report = pool.check().map_err(text)?;
    if !report.problems.is_empty() {
        return Err(format!("check found {:?}", report.problems));
    }
    Ok(())
}

fn survives(case: Case) {
    for instant in 0..=events(case) {
        let name = format!("ring-{case:?}-{instant}");
        let config = Config {
            exhaustive: 4,
            samples: 2,
            torn: 1,
            nested_points: 0,
            max_states: 400,
            threads: 2,
            ..Config::new(&name, size())
        };
        let workload = |world: &World| {
            let ([dies, alive], files) = begin(world, case);
            world.kill_after(instant, || commit(&dies, &files));
            drop(dies);
            world.begin(DEATH);
            go_on(world, case, &alive, &files);
        };
        let judge = |world: &World, history: &History| judge(world, history, case);
        enumerate(&config, workload, judge).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    }
}

/// A ring of which the dead has written a part looked whole when the file behind that part had ended: it committed one of
/// the others, and not the rest.
#[test]
fn a_part_of_a_ring_commits_nothing_whichever_files_end() {
    for ends in [[1, 2], [2, 0], [3, 1], [0, 3]] {
        for on_disk in [false, true] {
            survives(Case {
                ends,
                buries: false,
                on_disk,
            });
        }
    }
}

/// The same where the dead is buried first, and what is free of his log is another's.
#[test]
fn a_part_of_a_ring_is_erased_when_the_dead_is_buried() {
    for ends in [[1, 2], [3, 1]] {
        survives(Case {
            ends,
            buries: true,
            on_disk: false,
        });
    }
}
