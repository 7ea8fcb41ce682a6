//! Crashes at every store, flush, fence and compare-and-swap, in every affordable combination of
//! surviving lines, and again inside the recovery.
//!
//! The judge of each test states the promise: what was acknowledged is there (in the same boot all of
//! it, after a loss of power what was committed), operations are whole or absent, and the pool works
//! afterwards.

use std::sync::Arc;

use adit_pmem::{Medium, OutOfRange};
use adit_pool::{Attachment, BootId, FileRef, LocalLocks, Op, Pool, Result, When};
use adit_sim::{Config, Crash, Failure, History, Report, SimMedium, World, enumerate, replay};

use crate::common::*;
use crate::pools::*;
use crate::replay::replayed;

fn config(name: &str, chunks: u32, states: u64) -> Config {
    Config {
        exhaustive: 32,
        samples: 8,
        torn: 4,
        nested_points: 2,
        nested_images: 2,
        max_states: states,
        threads: 2,
        ..Config::new(name, tiny_size(chunks))
    }
}

fn boot_of(world: &World) -> BootId {
    boot(world.boot_id())
}

fn open_world(world: &World) -> Result<Arc<Pool<SimMedium>>> {
    open(world.medium(), &LocalLocks::default(), boot_of(world))
}

fn create(world: &World) {
    let options = adit_pool::CreateOptions {
        boot: boot_of(world),
        ..options(TINY)
    };
    Pool::create(&world.medium(), &options).expect("create");
}

fn survives(config: &Config, result: std::result::Result<Report, Box<Failure>>) {
    match result {
        Ok(report) => {
            println!("{}: {report}", config.name);
            assert!(report.states > 20, "{report}");
        }
        Err(failure) => panic!("{}: {failure}", config.name),
    }
}

/// Recovery as the first process after a crash does it, then a check and the use of every part.
/// Returns what the base file is then.
fn recover(world: &World) -> std::result::Result<Vec<u8>, String> {
    let pool = open_world(world).map_err(|e| format!("open: {e}"))?;
    let a = pool.attach().map_err(|e| format!("attach: {e}"))?;
    nothing_is_damaged(&a)?;
    publish_to_base(&a).map_err(|e| format!("publish: {e}"))?;
    world.judging();
    let base = read_base(pool.medium()).map_err(|e| e.to_string())?;
    let report = pool.check().map_err(|e| format!("check: {e}"))?;
    if !report.problems.is_empty() {
        return Err(format!("check found {:?}", report.problems));
    }
    if pool
        .scan()
        .map_err(|e| e.to_string())?
        .files
        .iter()
        .any(|file| file.records > 0)
    {
        return Err("something is left after everything was published".to_owned());
    }
    usable(&pool, &a).map_err(|e| format!("the pool does not work afterwards: {e}"))?;
    Ok(base)
}

/// A crash damages nothing: what it left of a line, or of a line's bytes, was cut off. Where nothing orders lines, behind a
/// page cache, whole ones may lie behind one that is torn. One that lacks a bit alone counts.
fn nothing_is_damaged(a: &Attachment<SimMedium>) -> std::result::Result<(), String> {
    use adit_pool::Rejection::{BitFlip, Torn, TornData, Unreadable};
    let is_cut_off = |line: &adit_pool::Rejected| {
        matches!(line.reason, Torn | TornData | Unreadable | BitFlip { .. })
    };
    let rejected = a.recovery().map_or(&[][..], |found| &found.rejected);
    match rejected.iter().find(|line| !is_cut_off(line)) {
        Some(line) => Err(format!("called damaged: {line:?}")),
        None => Ok(()),
    }
}

/// All of the pool can be allocated, and a record written and found.
fn usable(pool: &Pool<SimMedium>, a: &Attachment<SimMedium>) -> Result<()> {
    let file = a.enter_file(&name(200))?;
    stage(a, file, 0, b"still works", When::Now)?;
    let found = pool.scan()?;
    assert_eq!(replayed(pool, &found, file, b"")?, b"still works");
    a.forget_file(file)?;
    a.reclaim()?;
    a.release_empty()?;
    let names = 2; // Chunks that hold names stay.
    let log = a.log_chunks();
    let free = pool.free_chunks()?;
    let all = pool.chunk_count()? - TINY.header_chunks();
    assert!(
        free + log + names >= all,
        "{free} chunks of {all} are free, {log} hold the log"
    );
    Ok(())
}

#[test]
fn creating() {
    let config = config("pool-create", 4, 6_000);
    let workload = |world: &World| {
        world.begin(1);
        create(world);
        world.acknowledge(1);
    };
    let judge = |world: &World, history: &History| match open_world(world) {
        Ok(_) => recover(world).map(|_| ()),
        Err(adit_pool::Error::Unfinished | adit_pool::Error::Superblock)
            if !history.is_completed(1) =>
        {
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    };
    survives(&config, enumerate(&config, workload, judge));
}

/// Bytes of operation `op`: as long as they need to be to tell a torn one.
fn bytes_of(op: u64) -> Vec<u8> {
    vec![op as u8; 100 + op as usize]
}

/// Appends to one file, each operation self-committed.
fn strict_appends(world: &World, ops: u64, plant: Plant) {
    let pool = world.setup(|| {
        create(world);
        open_world(world).expect("open")
    });
    let a = pool.attach().expect("attach");
    let file = a.enter_file(&name(1)).expect("enter");
    let mut end = 0;
    for op in 1..=ops {
        world.begin(op);
        append(&pool, &a, file, end, op, plant).expect("append");
        end += bytes_of(op).len() as u64;
        world.acknowledge(op);
    }
}

/// Bugs planted to show that the enumeration sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    None,
    /// The record says nothing about its data and no fence keeps the data before it.
    NoDataFence,
    /// A record that claims to be committed by a later commit that never comes.
    NotCommitted,
    /// The record is retired before its bytes were published.
    RetiredEarly,
}

fn append(
    pool: &Pool<SimMedium>,
    a: &Attachment<SimMedium>,
    file: FileRef,
    at: u64,
    op: u64,
    plant: Plant,
) -> Result<()> {
    let bytes = bytes_of(op);
    let extent = a.alloc(bytes.len() as u32)?;
    let crc = Some(crc32c::crc32c(&bytes));
    let len = bytes.len() as u32;
    let mut logged = Op::Write {
        file_offset: at,
        extent,
        len,
        data_crc: crc,
    };
    let mut when = When::Now;
    match plant {
        Plant::NoDataFence => {
            // As if the append did not fence the data first: it comes after the record.
            logged = Op::Write {
                file_offset: at,
                extent,
                len,
                data_crc: None,
            };
            a.lock_file(file)?.append(&logged, when)?;
            a.fill(extent, 0, &bytes)?;
            adit_pmem::Medium::fence(pool.medium());
            return Ok(());
        }
        Plant::NotCommitted => when = When::WithCommit,
        Plant::RetiredEarly | Plant::None => {}
    }
    a.fill(extent, 0, &bytes)?;
    let seq = a.lock_file(file)?.append(&logged, when)?;
    if plant == Plant::RetiredEarly {
        a.lock_file(file)?.retire(seq)?;
    }
    Ok(())
}

/// Every acknowledged operation is there, one in flight may be, nothing else.
fn judge_appends(world: &World, history: &History) -> std::result::Result<(), String> {
    let found = recover(world)?;
    let acknowledged = history.completed().len() as u64;
    let with = |ops: u64| (1..=ops).flat_map(bytes_of).collect::<Vec<u8>>();
    if found == with(acknowledged)
        || (!history.in_flight().is_empty() && found == with(acknowledged + 1))
    {
        return Ok(());
    }
    Err(format!(
        "{} bytes found after {acknowledged} acknowledged operations",
        found.len()
    ))
}

#[test]
fn attaching_entering_and_strict_appends() {
    let config = config("pool-strict", 8, 12_000);
    let workload = |world: &World| strict_appends(world, 3, Plant::None);
    survives(&config, enumerate(&config, workload, judge_appends));
}

#[test]
fn planted_bugs_are_found() {
    for plant in [Plant::NoDataFence, Plant::NotCommitted, Plant::RetiredEarly] {
        let config = config(&format!("pool-planted-{plant:?}"), 8, 12_000);
        let workload = |world: &World| strict_appends(world, 3, plant);
        let failure = enumerate(&config, workload, judge_appends).expect_err(&config.name);
        println!("{plant:?}: {failure}");
        let again = replay(&config, &failure.replay, workload, judge_appends);
        assert_eq!(again.expect_err("replay").message, failure.message);
    }
}

/// A file is entered, written, published and forgotten, and entered again in the same place, again and again.
/// Behind a page cache nothing of an entry is durable before the first record is.
fn entries_made_and_forgotten(world: &World) {
    let pool = world.setup(|| {
        create(world);
        let pool = open_world(world).expect("open");
        let a = pool.attach().expect("attach");
        // The place and its names have been used before.
        let file = a.enter_file(&name(1)).expect("enter");
        stage(&a, file, 0, b"before", When::Now).expect("append");
        write_base(pool.medium(), b"").expect("base");
        a.forget_file(file).expect("forget");
        drop(a);
        pool
    });
    let a = pool.attach().expect("attach");
    let mut at = 0;
    let mut append = |file, op| {
        world.begin(op);
        stage(&a, file, at, &bytes_of(op), When::Now).expect("append");
        world.acknowledge(op);
        at += bytes_of(op).len() as u64;
    };
    let file = a.enter_file(&name(1)).expect("enter");
    append(file, 1);
    append(file, 2);
    publish_to_base(&a).expect("publish");
    a.forget_file(file).expect("forget");
    let again = a.enter_file(&name(1)).expect("enter");
    append(again, 3);
    publish_to_base(&a).expect("publish");
    a.forget_file(again).expect("forget");
    // Nothing is logged for the last one.
    a.enter_file(&name(1)).expect("enter");
}

#[test]
fn entries_are_durable_with_their_first_record() {
    for cached in [false, true] {
        let config = config(&format!("pool-entries-{cached}"), 8, 12_000);
        let workload = |world: &World| {
            if cached {
                world.put_behind_page_cache(TINY.header_len());
            }
            entries_made_and_forgotten(world);
        };
        survives(&config, enumerate(&config, workload, judge_appends));
    }
}

/// A file is entered where another boot has left one of which nothing counts: that its place is empty is durable by then, or
/// a crash would find a mixture of both.
#[test]
fn files_in_the_place_of_stale_ones() {
    for cached in [false, true] {
        // Only a few of the ways in which the line of an entry tears are neither of the two, nor a part of one.
        let config = Config {
            torn: 100,
            nested_images: 1,
            ..config(&format!("pool-stale-{cached}"), 8, 20_000)
        };
        let workload = |world: &World| {
            if cached {
                world.put_behind_page_cache(TINY.header_len());
            }
            world.setup(|| {
                create(world);
                let before = open(world.medium(), &LocalLocks::default(), boot(1)).expect("open");
                let a = before.attach().expect("attach");
                for nth in [1, 2] {
                    let file = a.enter_file(&name(nth)).expect("enter");
                    stage(&a, file, 0, b"nobody commits it", When::WithCommit).expect("stage");
                }
            });
            let pool = open_world(world).expect("open");
            let a = pool.attach().expect("attach");
            let file = a.enter_file(&name(3)).expect("enter");
            world.begin(1);
            stage(&a, file, 0, &bytes_of(1), When::Now).expect("append");
            world.acknowledge(1);
        };
        survives(&config, enumerate(&config, workload, judge_appends));
    }
}

#[test]
fn appends_until_a_commit() {
    // Atomic mode: operations 1 and 2, a commit (3), operation 4 without one.
    let config = config("pool-atomic", 8, 8_000);
    let workload = |world: &World| {
        let pool = world.setup(|| {
            create(world);
            open_world(world).expect("open")
        });
        let a = pool.attach().expect("attach");
        let file = a.enter_file(&name(1)).expect("enter");
        let mut end = 0;
        for op in [1, 2, 3, 4] {
            world.begin(op);
            if op == 3 {
                a.lock_file(file).expect("lock").commit().expect("commit");
            } else {
                stage(&a, file, end, &bytes_of(op), When::WithCommit).expect("append");
                end += bytes_of(op).len() as u64;
            }
            world.acknowledge(op);
        }
    };
    let judge = |world: &World, history: &History| {
        let found = recover(world)?;
        let with = |ops: &[u64]| ops.iter().flat_map(|op| bytes_of(*op)).collect::<Vec<u8>>();
        let mut allowed: Vec<Vec<u8>> = Vec::new();
        if history.crashes()[0] == Crash::Kill {
            // Everything acknowledged, and what was in flight or not.
            let written = |ops: &[u64]| {
                with(
                    &ops.iter()
                        .copied()
                        .filter(|op| *op != 3)
                        .collect::<Vec<_>>(),
                )
            };
            let done = history.completed().to_vec();
            allowed.push(written(&done));
            allowed.push(written(&[done, history.in_flight()].concat()));
        }
        if history.lost_power() {
            // What was committed. A recovery between a kill and the loss of power may have published
            // the rest.
            if history.is_begun(3) {
                allowed.push(with(&[1, 2]));
            }
            if !history.is_completed(3) {
                allowed.push(with(&[]));
            }
        }
        if allowed.contains(&found) {
            Ok(())
        } else {
            Err(format!(
                "{} bytes found, allowed {:?}",
                found.len(),
                allowed.iter().map(Vec::len).collect::<Vec<_>>()
            ))
        }
    };
    survives(&config, enumerate(&config, workload, judge));
}

#[test]
fn groups() {
    let config = config("pool-groups", 8, 8_000);
    let workload = |world: &World| {
        let pool = world.setup(|| {
            create(world);
            open_world(world).expect("open")
        });
        let a = pool.attach().expect("attach");
        let file = a.enter_file(&name(1)).expect("enter");
        for op in 1..=2_u64 {
            world.begin(op);
            let at = (op - 1) * 300;
            let ops: Vec<Op> = (0..3)
                .map(|part| fill(&a, at + part * 100, &[op as u8; 100]).expect("fill"))
                .collect();
            let mut guard = a.lock_file(file).expect("lock");
            guard.append_group(&ops, When::Now).expect("group");
            drop(guard);
            world.acknowledge(op);
        }
    };
    let judge = |world: &World, history: &History| {
        let found = recover(world)?;
        let acknowledged = history.completed().len();
        let with = |ops: usize| {
            (1..=ops)
                .flat_map(|op| vec![op as u8; 300])
                .collect::<Vec<u8>>()
        };
        let in_flight = !history.in_flight().is_empty();
        if found == with(acknowledged) || (in_flight && found == with(acknowledged + 1)) {
            return Ok(());
        }
        Err(format!(
            "{} bytes found after {acknowledged} groups",
            found.len()
        ))
    };
    survives(&config, enumerate(&config, workload, judge));
}

#[test]
fn publishing_retiring_and_recycling_the_log() {
    // One log chunk of 128 records is filled and published, again and again, with a base that is
    // durable at once. Overlapping writes: a record replayed after a newer one was retired would show.
    let config = config("pool-recycle", 6, 6_000);
    let rounds = 5_u64;
    let workload = |world: &World| {
        let pool = world.setup(|| {
            create(world);
            open_world(world).expect("open")
        });
        let a = pool.attach().expect("attach");
        a.limit_log(1);
        let file = a.enter_file(&name(1)).expect("enter");
        world.setup(|| {
            // Nearly fill the chunk, so that the story passes its end.
            for _ in 0..110 {
                a.lock_file(file)
                    .expect("lock")
                    .append(&Op::Truncate { size: 0 }, When::Now)
                    .expect("append");
            }
            let seq = a.lock_file(file).expect("lock").next_seq().expect("seq") - 1;
            a.lock_file(file)
                .expect("lock")
                .retire(seq)
                .expect("retire");
            a.reclaim().expect("reclaim");
        });
        for op in 1..=rounds {
            world.begin(op);
            for part in 0..4 {
                let bytes = [(op * 10 + part) as u8; 64];
                while let Err(error) = stage(&a, file, 0, &bytes, When::Now) {
                    assert!(matches!(error, adit_pool::Error::LogFull { .. }), "{error}");
                    a.reclaim().expect("reclaim");
                    a.limit_log(2);
                }
            }
            world.acknowledge(op);
            // The publisher: base first, durably, then the mark.
            let mut guard = a.lock_file(file).expect("lock");
            let seq = guard.next_seq().expect("seq") - 1;
            write_base(pool.medium(), &[(op * 10 + 3) as u8; 64]).expect("base");
            guard.retire(seq).expect("retire");
            drop(guard);
            a.reclaim().expect("reclaim");
        }
    };
    let judge = |world: &World, history: &History| {
        let found = recover(world)?;
        if found.iter().any(|byte| *byte != found[0]) {
            return Err(format!("torn: {found:?}"));
        }
        let found = found.first().map_or(0, |byte| u64::from(*byte));
        let acknowledged = history.completed().iter().max().map_or(0, |op| op * 10 + 3);
        if found >= acknowledged {
            return Ok(());
        }
        Err(format!("found {found}, acknowledged {acknowledged}"))
    };
    survives(&config, enumerate(&config, workload, judge));
}

fn first_log(pool: &Pool<SimMedium>) -> u32 {
    let is_log = |chunk: &u32| {
        let word = pool.chunk_word(*chunk).expect("a word");
        word.is_some_and(|word| word.kind == adit_pool::layout::ChunkKind::Log)
    };
    (0..TINY.max_chunks).find(is_log).expect("a log")
}

/// A log that was given back is durably none before somebody puts bytes there, also where an order is no fence: a walk would
/// find these in the lines of a log after a loss of power, and call them damage.
#[test]
fn bytes_where_a_log_was() {
    let config = config("pool-log-to-data", 6, 2_000);
    let workload = |world: &World| {
        world.put_behind_page_cache(TINY.header_len());
        let (a, next) = world.setup(|| {
            create(world);
            let pool = open_world(world).expect("open");
            let (a, next) = (
                pool.attach().expect("attach"),
                pool.attach().expect("attach"),
            );
            let file = a.enter_file(&name(1)).expect("enter");
            stage(&a, file, 0, &bytes_of(1), When::WithCommit).expect("stage");
            let mut guard = a.lock_file(file).expect("lock");
            let mut last = 0;
            while a.log_chunks() < 2 {
                last = guard.commit().expect("commit");
            }
            guard.retire(last).expect("retire");
            drop(guard);
            (a, next)
        });
        let log = first_log(a.pool());
        a.reclaim().expect("reclaim");
        let extent = next.alloc(8192).expect("a chunk");
        assert_eq!(extent.offset, TINY.chunk(log), "the first that is free");
        next.fill(extent, 0, &[0x55; 8192]).expect("fill");
    };
    survives(&config, enumerate(&config, workload, no_line_is_damaged));
}

fn no_line_is_damaged(world: &World, _: &History) -> Result<(), String> {
    let pool = open_world(world).map_err(|e| e.to_string())?;
    let found = pool.scan().map_err(|e| e.to_string())?;
    if found.counts.rejected > 0 {
        return Err(format!("{:?}", found.rejected.first()));
    }
    recover(world).map(drop)
}

/// Somebody takes all chunks that he sees to be free, and puts bytes there.
fn take_all(takes: &Attachment<SimMedium>) {
    while let Ok(extent) = takes.alloc(8192) {
        takes.fill(extent, 0, &[0x55; 8192]).expect("fill");
    }
}

/// The other way round: what lay where a log is to be is gone, durably, before it is one.
#[test]
fn a_log_where_bytes_were() {
    for (name, is_cached) in [
        ("pool-data-to-log", false),
        ("pool-data-to-log-cached", true),
    ] {
        let config = config(name, 6, 2_000);
        let workload = |world: &World| {
            if is_cached {
                world.put_behind_page_cache(TINY.header_len());
            }
            let begins = world.setup(|| {
                create(world);
                let pool = open_world(world).expect("open");
                let begins = pool.attach().expect("attach");
                let leaves = pool.attach().expect("attach");
                take_all(&leaves);
                leaves.detach().expect("detach");
                begins
            });
            let file = begins.enter_file(&crate::common::name(1)).expect("enter");
            stage(&begins, file, 0, &bytes_of(1), When::Now).expect("stage");
        };
        // The record itself may be cut off.
        let judge = |world: &World, history: &History| {
            let pool = open_world(world).map_err(|e| e.to_string())?;
            let found = pool.scan().map_err(|e| e.to_string())?;
            match &found.rejected[..] {
                [one] if one.reason == adit_pool::Rejection::Torn => recover(world).map(drop),
                _ => no_line_is_damaged(world, history),
            }
        };
        survives(&config, enumerate(&config, workload, judge));
    }
}

/// Few states of each of many stories.
fn few_states(name: &str) -> Config {
    Config {
        exhaustive: 4,
        samples: 2,
        torn: 0,
        nested_points: 0,
        ..config(name, 5, 24)
    }
}

/// Whoever gives a log back dies over it at an instant, and then somebody takes all. Whether he was through before.
fn give_back_and_take(world: &World, instant: u64) -> bool {
    world.put_behind_page_cache(TINY.header_len());
    let (gives, takes) = world.setup(|| {
        create(world);
        let pool = open_world(world).expect("open");
        let [gives, takes] = [0; 2].map(|_| pool.attach().expect("attach"));
        let file = gives.enter_file(&name(1)).expect("enter");
        let mut guard = gives.lock_file(file).expect("lock");
        let mut last = 0;
        while gives.log_chunks() < 2 {
            last = guard.commit().expect("commit");
        }
        guard.retire(last).expect("retire");
        drop(guard);
        (gives, takes)
    });
    let given = world.kill_after(instant, || gives.reclaim());
    take_all(&takes);
    given.map(|given| given.expect("reclaim")).is_some()
}

/// As [`bytes_where_a_log_was`], where whoever gave it back was killed before that was durable.
#[test]
fn bytes_where_a_log_was_about_to_be_given_back() {
    let is_through = |instant: &u64| give_back_and_take(&World::new(tiny_size(5)), *instant);
    let events = (0..1000).find(is_through).expect("an end");
    for instant in 0..=events {
        let config = few_states(&format!("pool-give-back-{instant}"));
        let workload = |world: &World| {
            give_back_and_take(world, instant);
        };
        if let Err(failure) = enumerate(&config, workload, no_line_is_damaged) {
            panic!("{}: {failure}", config.name);
        }
    }
    println!("{events} events");
}

/// Whoever buries a dead one dies over it at an instant, the next one at another, and then somebody takes all chunks that he
/// sees to be free. Whether both were through before.
fn bury_and_take(world: &World, instants: [u64; 2]) -> bool {
    world.put_behind_page_cache(TINY.header_len());
    let (buriers, takes) = world.setup(|| {
        create(world);
        let pool = open_world(world).expect("open");
        let [dead, one, two, takes] = [0; 4].map(|_| pool.attach().expect("attach"));
        let file = dead.enter_file(&name(1)).expect("enter");
        let last = stage(&dead, file, 0, &bytes_of(1), When::Now).expect("stage");
        let mut guard = dead.lock_file(file).expect("lock");
        guard.retire(last).expect("retire");
        drop(guard);
        ([one, two], takes)
    });
    let through = buriers.into_iter().zip(instants).map(|(burier, instant)| {
        let released = world.kill_after(instant, || burier.release_orphans());
        released
            .map(|released| released.expect("release"))
            .is_some()
    });
    let through: Vec<bool> = through.collect();
    take_all(&takes);
    through.into_iter().all(|one| one)
}

/// As [`bytes_where_a_log_was`], where the log was that of a dead one.
#[test]
fn bytes_where_the_log_of_a_dead_one_was() {
    let is_through = |instant: &u64| {
        let world = World::new(tiny_size(5));
        bury_and_take(&world, [*instant, 1000])
    };
    // The second has to bury the first as well.
    let events = (0..1000).find(is_through).expect("an end") + 4;
    for first in 0..=events {
        for second in 0..=events {
            let config = few_states(&format!("pool-bury-{first}-{second}"));
            let workload = |world: &World| {
                bury_and_take(world, [first, second]);
            };
            if let Err(failure) = enumerate(&config, workload, no_line_is_damaged) {
                panic!("{}: {failure}", config.name);
            }
        }
    }
    println!("{events} events");
}

/// Chunks of the dead that were freed are so durably: the last who leaves says that there is nothing, from another core.
#[test]
fn a_pool_that_says_it_is_clean_is_empty() {
    let config = Config {
        nested_points: 0,
        ..config("pool-clean", 6, 2_000)
    };
    let workload = |world: &World| {
        let (buries, last) = world.setup(|| {
            create(world);
            let locks = LocalLocks::default();
            let attach = |core| {
                let pool = open(world.medium_on_core(core), &locks, boot_of(world)).expect("open");
                pool.attach().expect("attach")
            };
            let [dead, buries, last] = [0, 1, 2].map(attach);
            let file = dead.enter_file(&name(1)).expect("enter");
            stage(&dead, file, 0, &bytes_of(1), When::Now).expect("stage");
            dead.forget_file(file).expect("forget");
            (buries, last)
        });
        buries.release_orphans().expect("release");
        drop(buries);
        last.detach().expect("detach");
        world.acknowledge(1);
    };
    let judge = |world: &World, history: &History| {
        let pool = open_world(world).map_err(|e| e.to_string())?;
        let superblock = pool.superblock().map_err(|e| e.to_string())?;
        let is_clean = superblock.flags & adit_pool::layout::Superblock::CLEAN != 0;
        let free = pool.free_chunks().map_err(|e| e.to_string())?;
        // One holds names.
        if is_clean && free != 5 || history.is_completed(1) && !is_clean {
            return Err(format!("clean: {is_clean}, {free} chunks are free"));
        }
        recover(world).map(drop)
    };
    survives(&config, enumerate(&config, workload, judge));
}

#[test]
fn growing() {
    let config = config("pool-grow", 2, 6_000);
    let workload = |world: &World| {
        let pool = world.setup(|| {
            create(world);
            open_world(world).expect("open")
        });
        let a = pool.attach().expect("attach");
        let chunks = pool.chunk_count().expect("chunks");
        world.medium().grow(tiny_size(8));
        world.begin(1);
        a.grow_to(chunks + 6).expect("grow");
        world.acknowledge(1);
        let file = a.enter_file(&name(1)).expect("enter");
        world.begin(2);
        stage(&a, file, 0, &bytes_of(2), When::Now).expect("stage");
        world.acknowledge(2);
    };
    let judge = |world: &World, history: &History| {
        let pool = open_world(world).map_err(|e| e.to_string())?;
        let chunks = pool.chunk_count().map_err(|e| e.to_string())?;
        let small = TINY.header_chunks() + 2;
        if chunks != small && chunks != small + 6 || history.is_completed(1) && chunks == small {
            return Err(format!("{chunks} chunks"));
        }
        if chunks == small {
            // Too small for the use that `recover` makes of it; attaching must work.
            return pool.attach().map(|_| ()).map_err(|e| e.to_string());
        }
        let found = recover(world)?;
        if found == bytes_of(2) || found.is_empty() && !history.is_completed(2) {
            return Ok(());
        }
        Err(format!("{} bytes found", found.len()))
    };
    survives(&config, enumerate(&config, workload, judge));
}

/// Chunks that were cut off are taken back into use before the pool says that it has them: whoever looks at
/// it in between, before anybody attaches and mends it, finds it sound.
#[test]
fn growing_again_after_a_cut() {
    let config = config("pool-grow-again", 2, 2_000);
    let small = TINY.header_chunks() + 2;
    let workload = |world: &World| {
        let pool = world.setup(|| {
            create(world);
            let pool = open_world(world).expect("open");
            world.medium().grow(tiny_size(8));
            let a = pool.attach().expect("attach");
            a.grow_to(small + 6).expect("grow");
            let cut = |to| assert_eq!(to, small);
            a.detach_and_cut(cut).expect("detach");
            pool
        });
        let a = pool.attach().expect("attach");
        world.begin(1);
        a.grow_to(small + 6).expect("grow");
        world.acknowledge(1);
    };
    let judge = |world: &World, history: &History| {
        let pool = open_world(world).map_err(|e| e.to_string())?;
        let chunks = pool.superblock().map_err(|e| e.to_string())?.chunk_count;
        if history.is_completed(1) && chunks == small {
            return Err(format!("{chunks} chunks"));
        }
        // One of the superblocks may be half written, and what mirrors them is behind.
        let mut problems = pool.check().map_err(|e| e.to_string())?.problems;
        problems.retain(|problem| problem.structure == "chunk word");
        if problems.is_empty() {
            return Ok(());
        }
        Err(format!("check found {problems:?}"))
    };
    survives(&config, enumerate(&config, workload, judge));
}

/// Who opens the pool afterwards finds it large or small, sound, and all of it usable: no chunk is lost on
/// the way, and none that is gone is used. In the middle of it the pool is written to by somebody who
/// had it open before.
#[test]
fn cutting_off_what_is_free() {
    let config = config("pool-cut", 4, 6_000);
    let small = TINY.header_chunks() + 4;
    let workload = |world: &World| {
        let pool = world.setup(|| {
            create(world);
            let pool = open_world(world).expect("open");
            world.medium().grow(tiny_size(10));
            let a = pool.attach().expect("attach");
            a.grow_to(small + 6).expect("grow");
            a.detach().expect("detach");
            pool
        });
        let a = pool.attach().expect("attach");
        let file = a.enter_file(&name(1)).expect("enter");
        stage(&a, file, 0, &bytes_of(1), When::Now).expect("stage");
        a.forget_file(file).expect("forget");
        world.begin(1);
        a.detach_and_cut(|to| assert_eq!(to, small))
            .expect("detach");
        world.acknowledge(1);
        let a = pool.attach().expect("attach again");
        let file = a.enter_file(&name(1)).expect("enter");
        world.begin(2);
        stage(&a, file, 0, &bytes_of(2), When::Now).expect("stage");
        world.acknowledge(2);
    };
    let judge = |world: &World, history: &History| {
        let pool = open_world(world).map_err(|e| e.to_string())?;
        let superblock = pool.superblock().map_err(|e| e.to_string())?;
        let chunks = superblock.chunk_count;
        let uncut = chunks == small + 6 && !history.is_completed(1);
        if chunks != small && !uncut {
            return Err(format!("{chunks} chunks"));
        }
        let found = recover(world)?;
        let begun = history.is_completed(2) || history.in_flight().contains(&2);
        let whole = found == bytes_of(2) && begun;
        // What was forgotten may be there while it was not: the first file is this one.
        let before = !history.is_completed(2) && (found.is_empty() || found == bytes_of(1));
        (whole || before)
            .then_some(())
            .ok_or_else(|| format!("{} bytes found", found.len()))
    };
    survives(&config, enumerate(&config, workload, judge));
}

#[test]
fn two_attachments_one_dies_and_the_other_recovers_it() {
    let config = config("pool-two", 10, 8_000);
    let workload = |world: &World| {
        let locks = LocalLocks::default();
        let pool = world.setup(|| {
            create(world);
            open(world.medium(), &locks, boot_of(world)).expect("open")
        });
        let a = pool.attach().expect("attach");
        let b = pool.attach().expect("attach");
        let file = a.enter_file(&name(1)).expect("enter");
        let mut end = 0;
        for op in 1..=4_u64 {
            world.begin(op);
            let by = if op % 2 == 1 { &a } else { &b };
            append(&pool, by, file, end, op, Plant::None).expect("append");
            end += bytes_of(op).len() as u64;
            world.acknowledge(op);
        }
        drop(a); // Without detaching: it died.
        b.release_orphans().expect("release");
        world.begin(5);
        append(&pool, &b, file, end, 5, Plant::None).expect("append");
        world.acknowledge(5);
    };
    survives(&config, enumerate(&config, workload, judge_appends));
}

/// A medium that leaves out what code forgot in other programs: write-backs of some area, or fences.
#[derive(Clone)]
struct Careless {
    medium: SimMedium,
    forgets: Forgets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgets {
    Nothing,
    /// Write-backs of the file table.
    FlushOfFiles,
    /// Write-backs of the chunk table.
    FlushOfChunks,
    /// Write-backs of the name table.
    FlushOfNames,
    /// All fences.
    Fences,
}

impl Careless {
    fn forgets_flush(&self, offset: u64) -> bool {
        let area = match self.forgets {
            Forgets::FlushOfFiles => TINY.file_table()..TINY.header_len(),
            Forgets::FlushOfChunks => TINY.chunk_table()..TINY.file_table(),
            Forgets::FlushOfNames => adit_pool::layout::NAMES..adit_pool::layout::SLOTS,
            Forgets::Fences | Forgets::Nothing => 0..0,
        };
        area.contains(&offset)
    }
}

impl Medium for Careless {
    fn size(&self) -> u64 {
        self.medium.size()
    }
    fn load(&self, offset: u64) -> std::result::Result<u64, OutOfRange> {
        self.medium.load(offset)
    }
    fn store(&self, offset: u64, value: u64) -> std::result::Result<(), OutOfRange> {
        self.medium.store(offset, value)
    }
    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> std::result::Result<std::result::Result<u64, u64>, OutOfRange> {
        self.medium.compare_exchange(offset, current, new)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), OutOfRange> {
        self.medium.read(offset, into)
    }
    fn write_streaming(&self, offset: u64, from: &[u8]) -> std::result::Result<(), OutOfRange> {
        self.medium.write_streaming(offset, from)
    }
    fn flush(&self, offset: u64, len: u64) -> std::result::Result<(), OutOfRange> {
        if self.forgets_flush(offset) {
            Ok(())
        } else {
            self.medium.flush(offset, len)
        }
    }
    fn fence(&self) {
        if self.forgets != Forgets::Fences {
            self.medium.fence();
        }
    }
}

/// Writes, publishes, writes over it in the base, writes again: every kind of durable fact matters.
fn careless_story(world: &World, forgets: Forgets) {
    world.setup(|| create(world));
    let medium = Careless {
        medium: world.medium(),
        forgets,
    };
    let pool = open(medium, &LocalLocks::default(), boot_of(world)).expect("open");
    let a = pool.attach().expect("attach");
    let file = a.enter_file(&name(1)).expect("enter");
    for op in 1..=3_u64 {
        world.begin(op);
        stage(&a, file, 0, &[op as u8; 200], When::Now).expect("stage");
        world.acknowledge(op);
        if op == 2 {
            // The base file's own durability is not what is tested: it writes through.
            let mut guard = a.lock_file(file).expect("lock");
            let seq = guard.next_seq().expect("seq") - 1;
            write_base(&world.medium(), &[op as u8; 200]).expect("base");
            guard.retire(seq).expect("retire");
            drop(guard);
            a.reclaim().expect("reclaim");
            // Nothing is staged any more: an overwrite in place, durable at once.
            world.begin(100);
            write_base(&world.medium(), &[100; 200]).expect("base");
            world.acknowledge(100);
        }
    }
}

fn judge_careless(world: &World, history: &History) -> std::result::Result<(), String> {
    let found = recover(world)?;
    let value = found.first().copied().unwrap_or(0);
    if found.iter().any(|byte| *byte != value) && !history.in_flight().contains(&100) {
        return Err("torn".to_owned());
    }
    let last = history.completed().last().copied().unwrap_or(0);
    let allowed: Vec<u64> = std::iter::once(last).chain(history.in_flight()).collect();
    if allowed.contains(&u64::from(value)) || history.in_flight().contains(&100) {
        return Ok(());
    }
    Err(format!("found {value}, allowed {allowed:?}"))
}

#[test]
fn every_forgotten_write_back_and_fence_is_found() {
    let sound = config("pool-careful", 8, 6_000);
    let story = |world: &World| careless_story(world, Forgets::Nothing);
    survives(&sound, enumerate(&sound, story, judge_careless));
    for forgets in [
        Forgets::FlushOfFiles,
        Forgets::FlushOfChunks,
        Forgets::FlushOfNames,
        Forgets::Fences,
    ] {
        let config = config(&format!("pool-{forgets:?}"), 8, 6_000);
        let story = |world: &World| careless_story(world, forgets);
        let failure = enumerate(&config, story, judge_careless).expect_err(&config.name);
        println!("{forgets:?}: {failure}");
    }
}
