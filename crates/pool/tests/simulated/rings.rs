//! Commits of several files that a death cuts short, whose files end one by one before the power does.

use std::sync::Arc;

use adit_pmem::Medium;
use adit_pool::layout::{Geometry, Record};
use adit_pool::{
    Attachment, CreateOptions, Error, FileRef, LocalLocks, Op, Pool, Recovery, Replay, When,
};
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

/// The first of what another file is told to have staged.
const OTHERS: u64 = 100;

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
            world.begin(OTHERS + nth);
            match stage(alive, other, nth * 4096, &[9; 4096], When::Now) {
                Ok(_) => {
                    world.acknowledge(OTHERS + nth);
                    nth += 1;
                }
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

fn text(error: Error) -> String {
    error.to_string()
}

/// Of the files that nobody has ended, all are committed or none.
fn are_together(
    pool: &Pool<SimMedium>,
    found: &Recovery,
    history: &History,
    ends: [usize; 2],
) -> Result<(), String> {
    let ended = |file: usize| {
        let nth = ends.iter().position(|end| *end == file);
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
    Ok(())
}

fn judge(world: &World, history: &History, case: Case) -> Result<(), String> {
    let locks = LocalLocks::default();
    let pool: Arc<Pool<SimMedium>> =
        open(world.medium(), &locks, boot(world.boot_id())).map_err(text)?;
    let a = pool.attach().map_err(text)?;
    let found = a.scan().map_err(text)?;
    are_together(&pool, &found, history, case.ends)?;
    // What another was told to have staged is there, with its name, which lies in what was free.
    let pages = history.completed().len();
    let bytes = match pool.find_file(&name(9)).map_err(text)? {
        Some(other) => replayed(&pool, &found, other, b"").map_err(text)?,
        None => Vec::new(),
    };
    if bytes.len() < pages * 4096 || bytes.iter().any(|byte| *byte != 9) {
        let len = bytes.len();
        return Err(format!(
            "another file has {len} bytes of {pages} pages, or wrong ones"
        ));
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

/// How many lines of another file lie before a ring's parts in their log, and behind them.
const AROUND: usize = 3;

/// A ring of commits that a death has cut short, in a log full of another file's records.
struct Surrounded {
    alive: Attachment<SimMedium>,
    /// One whose log lies in the chunk behind.
    behind: Attachment<SimMedium>,
    files: Vec<FileRef>,
    other: FileRef,
    /// Where the ring's parts lay in the log before some went missing: chunk and line.
    parts: Vec<(u32, u32)>,
}

/// One dies after so many events of a commit of all files. Records of another file lie around the ring's parts, where
/// somebody who erases the wrong line hits them: in the same log before them and behind them, and in the logs in the chunks
/// before and behind that one, at the same lines. Of the parts some are `missing`, as far as there are any: those that the
/// dead had yet to write, or that were not durable. What is left, and all that is the other's, is durable.
fn surround(world: &World, on_disk: bool, events: u64, missing: u32) -> Surrounded {
    if on_disk {
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
        let [alive, dies, behind] = [0, 1, 2].map(|core| {
            let pool = open(world.medium_on_core(core), &locks, boot).expect("open");
            pool.attach().expect("attach")
        });
        let enter = |nth: usize| dies.enter_file(&name(nth as u8)).expect("enter");
        let other = enter(9);
        let mut files: Vec<FileRef> = (0..FILES).map(enter).collect();
        files.sort_unstable();
        // Their bytes first: the chunk in which those lie is none between the logs.
        let bytes = |_: &FileRef| fill(&dies, 0, &[7; 64]).expect("fill");
        let staged: Vec<Op> = files.iter().map(bytes).collect();
        let mut size = 0;
        let mut write = |who: &Attachment<SimMedium>, records: usize| {
            for _ in 0..records {
                size += 1;
                let op = Op::Truncate { size };
                let mut guard = who.lock_file(other).expect("lock");
                guard.append(&op, When::Now).expect("write");
            }
        };
        write(&alive, 2 * (AROUND + FILES));
        for (file, op) in files.iter().zip(&staged) {
            let mut guard = dies.lock_file(*file).expect("lock");
            guard.set_end(0).expect("end");
            guard.append(op, When::WithCommit).expect("write");
        }
        write(&dies, AROUND);
        world.kill_after(events, || commit(&dies, &files));
        // Another of the dead one's threads lives a little longer.
        write(&dies, AROUND);
        write(&behind, 2 * (AROUND + FILES));
        let parts = parts_of_rings(alive.pool());
        for (nth, (chunk, line)) in parts.iter().enumerate() {
            if missing & 1 << nth != 0 {
                let offset = GEOMETRY.record(*chunk, *line);
                let erased = world.medium().write_streaming(offset, &[0; Record::SIZE]);
                erased.expect("erase");
            }
        }
        Surrounded {
            alive,
            behind,
            files,
            other,
            parts,
        }
    })
}

/// Where the log has parts of rings, in order.
fn parts_of_rings(pool: &Pool<SimMedium>) -> Vec<(u32, u32)> {
    let chunks = GEOMETRY.header_chunks()..pool.chunk_count().expect("chunks");
    let lines = |chunk| (0..GEOMETRY.records_per_chunk()).map(move |line| (chunk, line));
    let is_part = |(chunk, line): &(u32, u32)| {
        let mut bytes = [0; Record::SIZE];
        let offset = GEOMETRY.record(*chunk, *line);
        pool.medium().read(offset, &mut bytes).expect("read");
        let record = Record::decode(&bytes);
        record.flags & Record::TOGETHER != 0 && record.is_valid(&UUID, *chunk, *line)
    };
    chunks.flat_map(lines).filter(is_part).collect()
}

/// A file's records as the log says, and where in it they lie.
fn records(pool: &Pool<SimMedium>, found: &Recovery, file: FileRef) -> Result<Vec<Replay>, String> {
    let records = found.records(pool, file);
    records.collect::<Result<_, _>>().map_err(text)
}

/// The parts lie side by side, and every line around them is the other file's.
fn ensure_surrounded(parts: &[(u32, u32)], other: &[Replay]) {
    assert_eq!(parts.len(), FILES);
    for (chunk, line) in parts.iter().copied() {
        let around = [chunk - 1, chunk, chunk + 1]
            .into_iter()
            .flat_map(|chunk| [line - 1, line, line + 1].map(|line| (chunk, line)));
        for place in around.filter(|place| !parts.contains(place)) {
            let at = GEOMETRY.record(place.0, place.1);
            assert!(
                other.iter().any(|record| record.at == at),
                "nothing at {place:?}, beside {parts:?}"
            );
        }
    }
}

/// What the dead has left of a ring is erased by the first who takes one of the locks, or who attaches after a loss of
/// power, and no line beside it.
fn only_the_parts_are_erased(on_disk: bool) {
    let at = |events: u64| surround(&World::new(size()), on_disk, events, 0);
    let wrote_all = |events: &u64| at(*events).parts.len() == FILES;
    let events = (0..).find(wrote_all).expect("a ring");
    let Surrounded {
        alive,
        other,
        parts,
        ..
    } = at(events);
    let found = alive.pool().scan().expect("scan");
    let expected = records(alive.pool(), &found, other).expect("records");
    ensure_surrounded(&parts, &expected);
    let ends = [1, 2];
    let judge = |world: &World, history: &History| {
        // Somebody who was not there before knows no more than what the log says.
        let locks = LocalLocks::default();
        let pool = open(world.medium(), &locks, boot(world.boot_id())).map_err(text)?;
        let a = pool.attach().map_err(text)?;
        let found = a.scan().map_err(text)?;
        let others = records(&pool, &found, other)?;
        if let Some(lost) = expected.iter().find(|record| !others.contains(record)) {
            return Err(format!("another file's {lost:?} is gone"));
        }
        if others.len() != expected.len() {
            return Err(format!("another file has {} records", others.len()));
        }
        // Also where the power went while a part was being erased: nothing was ever told of it, so nothing is lost.
        if let Some(rejected) = found.rejected.first() {
            return Err(format!("{rejected:?}, parts at {parts:?}"));
        }
        are_together(&pool, &found, history, ends)
    };
    for missing in 0..1 << FILES {
        let name = format!("ring-surrounded-{on_disk}-{missing:04b}");
        let config = Config {
            exhaustive: 4,
            samples: 2,
            torn: 1,
            nested_points: 2,
            max_states: 400,
            threads: 2,
            ..Config::new(&name, size())
        };
        let workload = |world: &World| {
            let Surrounded { alive, files, .. } = surround(world, on_disk, events, missing);
            world.begin(DEATH);
            for (nth, end) in ends.into_iter().enumerate() {
                world.begin(DEATH + 1 + nth as u64);
                alive.forget_file(files[end]).expect("forget");
            }
        };
        enumerate(&config, workload, judge).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    }
}

/// Of the parts every choice goes missing in turn, so each line around them is beside one that is erased.
#[test]
fn of_a_ring_only_the_parts_are_erased() {
    for on_disk in [false, true] {
        only_the_parts_are_erased(on_disk);
    }
}

/// A ring without its last part. Who comes to erase the others dies after so many events, unless he is through before.
fn erase_and_die(world: &World, on_disk: bool, events: u64, instant: u64) -> (Surrounded, bool) {
    let surrounded = surround(world, on_disk, events, 0b1000);
    let (alive, file) = (&surrounded.alive, surrounded.files[FILES - 1]);
    let mended = world.kill_after(instant, || alive.lock_file(file).map(drop));
    (surrounded, mended.is_some())
}

/// The next one ends two of the files, and the power goes anywhere. He was there before, or comes when all are dead.
fn erased_by_two(on_disk: bool, events: u64, instant: u64, all_die: bool) {
    let ends = [1, 2];
    let workload = |world: &World| {
        let (surrounded, _) = erase_and_die(world, on_disk, events, instant);
        let Surrounded {
            alive,
            behind,
            files,
            ..
        } = surrounded;
        drop(alive);
        world.begin(DEATH);
        let next = if all_die {
            drop(behind);
            let locks = LocalLocks::default();
            let pool = open(world.medium_on_core(3), &locks, boot(world.boot_id()));
            pool.expect("open").attach().expect("attach")
        } else {
            behind
        };
        for (nth, end) in ends.into_iter().enumerate() {
            world.begin(DEATH + 1 + nth as u64);
            next.forget_file(files[end]).expect("forget");
        }
    };
    let judge = |world: &World, history: &History| {
        let locks = LocalLocks::default();
        let pool = open(world.medium(), &locks, boot(world.boot_id())).map_err(text)?;
        let a = pool.attach().map_err(text)?;
        are_together(&pool, &a.scan().map_err(text)?, history, ends)
    };
    let name = format!("ring-erased-by-two-{on_disk}-{all_die}-{instant}");
    let config = Config {
        exhaustive: 4,
        samples: 2,
        torn: 1,
        nested_points: 0,
        max_states: 200,
        threads: 2,
        ..Config::new(&name, size())
    };
    enumerate(&config, workload, judge).unwrap_or_else(|failure| panic!("{name}: {failure}"));
}

/// What one erases who dies over that is gone to the eye, and comes back with a loss of power: whoever takes the lock next
/// makes it durable before any of the files goes.
#[test]
fn a_part_that_another_dead_has_erased_stays_erased() {
    for on_disk in [false, true] {
        let at = |events: u64| surround(&World::new(size()), on_disk, events, 0);
        let wrote_all = |events: &u64| at(*events).parts.len() == FILES;
        let events = (0..).find(wrote_all).expect("a ring");
        // Most of it is waiting for who had the lock.
        let is_through = |instant| erase_and_die(&World::new(size()), on_disk, events, instant).1;
        let (mut before, mut through) = (0, 1 << 12);
        assert!(is_through(through));
        while through - before > 1 {
            let middle = (before + through) / 2;
            if is_through(middle) {
                through = middle;
            } else {
                before = middle;
            }
        }
        for instant in through.saturating_sub(32)..=through {
            for all_die in [false, true] {
                erased_by_two(on_disk, events, instant, all_die);
            }
        }
    }
}

/// What a loss of power may leave of a part that is being erased is the part or none, whichever words of its line are
/// durable and however far the log goes on behind it. Without the word that says so, such a line is damage: no other tells
/// it from a record that was lost.
#[test]
fn a_part_that_is_erased_is_no_damage_whatever_is_left_of_it() {
    let world = World::new(size());
    let (pool, (chunk, line), was) = one_part(&world);
    let offset = GEOMETRY.record(chunk, line);
    let words = Record::decode(&was).words();
    let with = |first: u64, left: u32| {
        let word = |nth: u32| {
            let is_left = left & 1 << nth != 0;
            if is_left { words[nth as usize] } else { 0 }
        };
        for nth in 0..8 {
            let value = if nth == 0 { first } else { word(nth) };
            let stored = pool.medium().store(offset + u64::from(nth) * 8, value);
            stored.expect("store");
        }
        pool.scan().expect("scan")
    };
    let erased = Record::erased_word(&UUID, chunk, line);
    // One for each choice of the other words.
    for left in (0..256).step_by(2) {
        let found = with(erased, left);
        let counts = (found.counts.erased, found.counts.rejected);
        assert_eq!(counts, (1, 0), "{left:08b}: {:?}", found.rejected);
        let report = pool.check().expect("check");
        assert!(report.is_sound(), "{left:08b}: {:?}", report.problems);
    }
    // A pool in which such a line was overwritten with zeros has a line that was never written.
    assert_eq!(with(0, 0).counts.rejected, 0);
    let (half, flipped) = (
        with(words[0], 0b1010_1010),
        with(erased ^ 1 << 40, 0b1111_1110),
    );
    for damaged in [half, flipped] {
        let lost = (damaged.counts.erased, damaged.counts.rejected);
        assert_eq!(lost, (0, 1), "{:?}", damaged.rejected);
        assert_eq!(damaged.rejected[0].offset, offset);
    }
}

/// A part of a ring, alone, with as much behind it in its log as tells a loss from what was being written: where it lies,
/// and its line.
fn one_part(world: &World) -> (Arc<Pool<SimMedium>>, (u32, u32), [u8; Record::SIZE]) {
    let boot = boot(world.boot_id());
    let options = CreateOptions {
        boot,
        ..options(GEOMETRY)
    };
    Pool::create(&world.medium(), &options).expect("create");
    let pool = open(world.medium(), &LocalLocks::default(), boot).expect("open");
    let a = pool.attach().expect("attach");
    let files: Vec<FileRef> = (0..2)
        .map(|nth| a.enter_file(&name(nth)).expect("enter"))
        .collect();
    let other = a.enter_file(&name(9)).expect("enter");
    let cut = |size| {
        let mut guard = a.lock_file(other).expect("lock");
        guard
            .append(&Op::Truncate { size }, When::Now)
            .expect("write");
    };
    commit(&a, &files);
    (1..=80).for_each(cut);
    let parts = parts_of_rings(&pool);
    let lines = [parts[0], parts[1]].map(|(chunk, line)| GEOMETRY.record(chunk, line));
    let mut was = [0; Record::SIZE];
    pool.medium().read(lines[0], &mut was).expect("read");
    let rest = pool.medium().write_streaming(lines[1], &[0; Record::SIZE]);
    rest.expect("erase");
    drop(a);
    (pool, parts[0], was)
}
