//! Commits of several files that a death cuts short, whose files end one by one before the power does.

use std::sync::Arc;

use adit_pmem::Medium;
use adit_pool::layout::{FileEntry, Geometry, Record};
use adit_pool::{
    Attachment, CreateOptions, Error, FileRef, LocalLocks, Op, Pool, Recovery, Replay, When,
};
use adit_sim::{Config, History, SimMedium, World, enumerate};

use crate::common::*;
use crate::memory::Memory;
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

/// How a file goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    /// Nobody stages for it any more.
    Forgotten,
    /// What is staged is published, and it stays in the pool.
    Retired,
    /// A write that is durable at once, and commits what was staged before it.
    Written,
    /// A write that waits for a commit.
    Staged,
}

use How::{Forgotten, Retired, Staged, Written};

/// Two of the files go on, one after the other.
type Goes = [(usize, How); 2];

/// The two files that go on, and what else the survivor does first.
#[derive(Debug, Clone, Copy)]
struct Case {
    goes: Goes,
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
    go(world, alive, files, case.goes);
}

fn go(world: &World, who: &Attachment<SimMedium>, files: &[FileRef], goes: Goes) {
    for (nth, (file, how)) in goes.into_iter().enumerate() {
        world.begin(DEATH + 1 + nth as u64);
        let file = files[file];
        match how {
            Forgotten => who.forget_file(file).expect("forget"),
            Retired => {
                let mut guard = who.lock_file(file).expect("lock");
                let last = guard.next_seq().expect("number") - 1;
                guard.retire(last).expect("retire");
            }
            Written => drop(stage(who, file, 64, &[8; 64], When::Now).expect("write")),
            Staged => drop(stage(who, file, 64, &[8; 64], When::WithCommit).expect("write")),
        }
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Of the files that nobody has ended or committed by himself, all are committed or none.
fn are_together(
    pool: &Pool<SimMedium>,
    found: &Recovery,
    history: &History,
    goes: Goes,
) -> Result<(), String> {
    let alone = |file: usize| {
        let nth = (goes.iter()).position(|(other, how)| *other == file && *how != Staged);
        nth.is_some_and(|nth| history.is_begun(DEATH + 1 + nth as u64))
    };
    let mut there = Vec::new();
    for nth in (0..FILES).filter(|nth| !alone(*nth)) {
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
    are_together(&pool, &found, history, case.goes)?;
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
            // Where a fence is missing few of many states show it: the parts and the entry have to be torn apart.
            samples: 32,
            torn: 1,
            nested_points: 0,
            max_states: 2000,
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
    for goes in [[1, 2], [2, 0], [3, 1], [0, 3]].map(ended) {
        for on_disk in [false, true] {
            survives(Case {
                goes,
                buries: false,
                on_disk,
            });
        }
    }
}

fn ended(ends: [usize; 2]) -> Goes {
    ends.map(|end| (end, Forgotten))
}

/// A ring that a survivor has found whole stays whole for who comes later, and one that he has found broken stays broken,
/// however the files that were settled first go on meanwhile: what they wait with next, or nothing, says no more of it.
#[test]
fn a_ring_is_what_it_was_however_its_files_go_on() {
    let goes = [
        [(0, Staged), (3, Staged)],
        [(2, Retired), (1, Staged)],
        [(3, Written), (0, Forgotten)],
        [(1, Staged), (2, Retired)],
    ];
    for (nth, goes) in goes.into_iter().enumerate() {
        survives(Case {
            goes,
            buries: false,
            on_disk: nth % 2 == 1,
        });
    }
}

/// The same where the dead is buried first, and what is free of his log is another's.
#[test]
fn a_part_of_a_ring_is_erased_when_the_dead_is_buried() {
    for goes in [[1, 2], [3, 1]].map(ended) {
        survives(Case {
            goes,
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
fn parts_of_rings<M: Medium>(pool: &Pool<M>) -> Vec<(u32, u32)> {
    let geometry = *pool.geometry();
    let chunks = geometry.header_chunks()..pool.chunk_count().expect("chunks");
    let lines = |chunk| (0..geometry.records_per_chunk()).map(move |line| (chunk, line));
    let is_part = |(chunk, line): &(u32, u32)| {
        let mut bytes = [0; Record::SIZE];
        let offset = geometry.record(*chunk, *line);
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
    let goes = ended([1, 2]);
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
        are_together(&pool, &found, history, goes)
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
            go(world, &alive, &files, goes);
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

/// A ring that its committer has left, all of it or without its last part.
#[derive(Debug, Clone, Copy)]
struct Left {
    on_disk: bool,
    /// Events of the commit until he died.
    events: u64,
    missing: u32,
    goes: Goes,
}

/// Who comes to mend it dies after so many events, unless he is through before.
fn mend_and_die(world: &World, left: Left, instant: u64) -> (Surrounded, bool) {
    let surrounded = surround(world, left.on_disk, left.events, left.missing);
    let (alive, file) = (&surrounded.alive, surrounded.files[FILES - 1]);
    let mended = world.kill_after(instant, || alive.lock_file(file).map(drop));
    (surrounded, mended.is_some())
}

/// With the next one two of the files go on, and the power goes anywhere. He was there before, or comes when all are dead.
fn mended_by_two(left: Left, instant: u64, all_die: bool) {
    let workload = |world: &World| {
        let (surrounded, _) = mend_and_die(world, left, instant);
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
        go(world, &next, &files, left.goes);
    };
    let judge = |world: &World, history: &History| {
        let locks = LocalLocks::default();
        let pool = open(world.medium(), &locks, boot(world.boot_id())).map_err(text)?;
        let a = pool.attach().map_err(text)?;
        are_together(&pool, &a.scan().map_err(text)?, history, left.goes)
    };
    let name = format!("ring-mended-by-two-{left:?}-{all_die}-{instant}");
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
        mended_however_often(Left {
            on_disk,
            events: events_until_whole(on_disk),
            missing: 0b1000,
            goes: ended([1, 2]),
        });
    }
}

/// All of a ring is there, or one of its files was told already. Who settles that dies over it as well.
#[test]
fn a_whole_ring_stays_whole_when_another_dies_over_it() {
    for (on_disk, told) in [(false, 0), (true, 3)] {
        mended_however_often(Left {
            on_disk,
            events: events_until_whole(on_disk) + told,
            missing: 0,
            goes: [(3, Staged), (1, Forgotten)],
        });
    }
}

/// How many events of a commit it takes until all parts are in the log.
fn events_until_whole(on_disk: bool) -> u64 {
    let at = |events: u64| surround(&World::new(size()), on_disk, events, 0);
    let wrote_all = |events: &u64| at(*events).parts.len() == FILES;
    (0..).find(wrote_all).expect("a ring")
}

fn mended_however_often(left: Left) {
    // Most of it is waiting for who had the lock.
    let is_through = |instant| mend_and_die(&World::new(size()), left, instant).1;
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
            mended_by_two(left, instant, all_die);
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

/// Files of a ring for each of which a walk would be noticed, and the lines that each walk would come by.
const MANY: usize = 16;
const LINES: u64 = 1000;

const WIDE: Geometry = Geometry {
    max_chunks: 128,
    file_count: 24,
    ..TINY
};

/// A ring whose committer died when all of it was written and none of its files had been told, in a log full of another
/// file's records.
struct Untold {
    medium: Memory,
    next: Attachment<Memory>,
    files: Vec<FileRef>,
}

fn word_of(file: FileRef, field: usize) -> u64 {
    WIDE.file_entry((file.id() & 0xff_ffff) as u32) + field as u64
}

fn untold() -> Untold {
    let size = WIDE.chunk(WIDE.header_chunks() + 60) as usize;
    let medium = Memory::new(&vec![0; size]);
    Pool::create(&medium, &options(WIDE)).expect("create");
    let locks = LocalLocks::default();
    let [next, dies] = [(); 2].map(|()| {
        let pool = open(medium.clone(), &locks, boot(1)).expect("open");
        pool.attach().expect("attach")
    });
    let cut = |file: FileRef, size: u64| {
        let mut guard = dies.lock_file(file).expect("lock");
        let op = Op::Truncate { size };
        guard.append(&op, When::WithCommit).expect("write");
    };
    let other = dies.enter_file(&name(99)).expect("enter");
    (1..=LINES).for_each(|size| cut(other, size));
    let enter = |nth: usize| dies.enter_file(&name(nth as u8)).expect("enter");
    let mut files: Vec<FileRef> = (0..MANY).map(enter).collect();
    files.sort_unstable();
    files.iter().for_each(|file| cut(*file, 1));
    let lock = |file: &FileRef| dies.lock_file(*file).expect("lock");
    let mut guards: Vec<_> = files.iter().map(lock).collect();
    // The first cannot be told, so none is.
    let told = word_of(files[0], std::mem::offset_of!(FileEntry, last_seq));
    medium.break_word(Some(told));
    dies.commit_together(&mut guards).expect_err("it was told");
    medium.break_word(None);
    guards.into_iter().for_each(std::mem::forget);
    drop(dies);
    Untold {
        medium,
        next,
        files,
    }
}

/// For each file of a ring that its committer had not told, whoever took its lock walked over all logs: openers waited
/// longer than the kernel lets them.
#[test]
fn a_ring_of_many_files_takes_no_walk() {
    for missing in [None, Some(0), Some(MANY / 2), Some(MANY - 1)] {
        let Untold {
            medium,
            next,
            files,
        } = untold();
        let parts = parts_of_rings(next.pool());
        assert_eq!(parts.len(), MANY);
        if let Some((chunk, line)) = missing.map(|nth: usize| parts[nth]) {
            let at = WIDE.record(chunk, line);
            medium
                .write_streaming(at, &[0; Record::SIZE])
                .expect("erase");
        }
        let before = (medium.reads(), medium.fences());
        for file in &files {
            drop(next.lock_file(*file).expect("lock"));
        }
        let (reads, fences) = (medium.reads() - before.0, medium.fences() - before.1);
        assert!(reads < LINES, "{reads} reads, {missing:?} missing");
        let left = parts_of_rings(next.pool()).len();
        assert_eq!(
            left,
            if missing.is_none() { MANY } else { 0 },
            "{missing:?}"
        );
        if missing.is_none() {
            // One for each file's marks, and one for the ring.
            assert_eq!(fences, MANY as u64 + 1);
        }
    }
}

/// A file goes on when its ring is settled, whatever becomes of it then: the others' parts stay.
#[test]
fn a_ring_stays_whole_when_its_files_go_on() {
    let Untold { next, files, .. } = untold();
    for (nth, file) in files.iter().enumerate() {
        let mut guard = next.lock_file(*file).expect("lock");
        let last = guard.next_seq().expect("number") - 1;
        match nth % 3 {
            0 => drop(guard.append(&Op::Truncate { size: 2 }, When::WithCommit)),
            1 => guard.retire(last).expect("retire"),
            _ => {}
        }
    }
    assert_eq!(parts_of_rings(next.pool()).len(), MANY);
}

/// A later number says it as well: who took the file next may be about to write.
#[test]
fn a_file_that_is_about_to_go_on_has_gone_on() {
    let Untold {
        medium,
        next,
        files,
    } = untold();
    let field = |field: usize| word_of(files[3], field);
    let [number, pending] = [
        field(std::mem::offset_of!(FileEntry, next_seq)),
        field(std::mem::offset_of!(FileEntry, pending)),
    ];
    let noted = medium.load(pending).expect("load");
    drop(next.lock_file(files[3]).expect("lock"));
    // Its next record has a number and a place, and is not there yet.
    let taken = medium.load(number).expect("load");
    medium.store(number, taken + 1).expect("store");
    medium.store(pending, noted + 100).expect("store");
    drop(next.lock_file(files[2]).expect("lock"));
    assert_eq!(parts_of_rings(next.pool()).len(), MANY);
}

/// One of the files goes on, and its place is used again, between the look at where its part is and the look there.
#[test]
fn a_file_that_goes_on_beside_a_repair_is_no_missing_part() {
    let Untold {
        medium,
        next,
        files,
    } = untold();
    let (chunk, line) = parts_of_rings(next.pool())[3];
    let at = WIDE.record(chunk, line);
    let pending = word_of(files[3], std::mem::offset_of!(FileEntry, pending));
    let beside = medium.clone();
    medium.when_read(at, move || {
        beside.store(pending, 0).expect("store");
        beside
            .write_streaming(at, &[0; Record::SIZE])
            .expect("write");
    });
    drop(next.lock_file(files[0]).expect("lock"));
    assert!(medium.was_read());
    assert_eq!(parts_of_rings(next.pool()).len(), MANY - 1);
}

/// What a damaged entry says of where its file's part lies leads nowhere, or to a line that is no such part: no other line
/// is erased for it, and the file can be locked.
#[test]
fn where_a_part_is_said_to_lie_may_be_nonsense() {
    let of = |chunk: u32, line: u32| (u64::from(chunk) << 32 | u64::from(line)) + 1;
    let first = WIDE.header_chunks();
    let lines = WIDE.records_per_chunk();
    let nonsense = |parts: &[(u32, u32)]| {
        let (chunk, line) = parts[4];
        [
            u64::MAX,
            of(0, 1),
            of(first - 1, lines - 1),
            of(WIDE.max_chunks, 0),
            of(u32::MAX, 0),
            of(first, lines),
            of(chunk, u32::MAX),
            // Another's part, and another's record.
            of(chunk, line),
            of(chunk, 0),
        ]
    };
    let mut nth = 0;
    loop {
        let Untold {
            medium,
            next,
            files,
        } = untold();
        let parts = parts_of_rings(next.pool());
        let Some(word) = nonsense(&parts).into_iter().nth(nth) else {
            break;
        };
        nth += 1;
        let pending = word_of(files[3], std::mem::offset_of!(FileEntry, pending));
        medium.store(pending, word).expect("store");
        let others = || next.pool().scan().expect("scan").counts;
        let before = others();
        for file in &files {
            drop(next.lock_file(*file).expect("lock"));
        }
        let after = others();
        assert_eq!(after.rejected, 0, "{word:#x}");
        // The part that nobody finds commits nothing either.
        assert_eq!(before.live - after.live, MANY as u64, "{word:#x}");
        let left = parts_of_rings(next.pool()).len();
        assert!(left <= 1, "{word:#x}: {left} parts");
    }
}
