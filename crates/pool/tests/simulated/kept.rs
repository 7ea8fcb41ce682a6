//! What was acknowledged is kept, whoever died while the pool grew, whatever a loss of power took of an entry, and
//! whichever bit is flipped; and what failed takes no room.

use adit_pool::layout::{
    ChunkKind, FileEntry, NAMES, Name, SHARED, SUPERBLOCK_A, SUPERBLOCK_B, Shared, Superblock,
};
use adit_pool::{
    Attachment, CreateOptions, Error, FileRef, Intent, LocalLocks, Op, Pool, Rejected, Rejection,
    Result, When,
};
use adit_sim::{Config, History, World, enumerate};
use std::sync::Arc;

use crate::common::*;
use crate::memory::Memory;
use crate::pools::*;
use crate::replay::replayed;

fn options_in(world: &World) -> CreateOptions {
    CreateOptions {
        boot: boot(world.boot_id()),
        ..options(TINY)
    }
}

fn told(error: adit_pool::Error) -> String {
    error.to_string()
}

/// A pool with one file of so many acknowledged writes, and where the entry of the file lies.
fn pool_of(medium: &Memory, writes: u64) -> (Arc<Pool<Memory>>, u32) {
    Pool::create(medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let a = pool.attach().unwrap();
    a.limit_log(u32::MAX);
    a.limit_logs_together(u32::MAX);
    let file = a.enter_file(&name(1)).unwrap();
    for nth in 0..writes {
        stage(&a, file, nth * 60, &[nth as u8; 60], When::Now).unwrap();
    }
    (pool, (file.id() & 0xff_ffff) as u32)
}

/// The same pool with other bytes, in another boot.
fn opened_with(medium: &Memory) -> Arc<Pool<Memory>> {
    open(medium.clone(), &LocalLocks::default(), boot(2)).unwrap()
}

fn chunks_of(pool: &Pool<Memory>, kinds: &[ChunkKind]) -> Vec<u32> {
    let is_one = |chunk: &u32| {
        let word = pool.chunk_word(*chunk).unwrap();
        word.is_some_and(|word| kinds.contains(&word.kind))
    };
    (0..pool.chunk_count().unwrap()).filter(is_one).collect()
}

fn with_flipped(bytes: &[u8], at: usize, bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at + bit / 8] ^= 1 << (bit % 8);
    bytes
}

/// Writes until there is no more room, and counts.
fn writes<M: adit_pmem::Medium>(
    program: &Attachment<M>,
    at_most: u64,
    mut each: impl FnMut(u64, bool),
) -> u64 {
    let file = program.enter_file(&name(1)).unwrap();
    for nth in 0..at_most {
        each(nth, false);
        if stage(program, file, nth * 1000, &[nth as u8 + 1; 1000], When::Now).is_err() {
            return nth;
        }
        each(nth, true);
    }
    at_most
}

/// Whoever makes the pool larger dies at any instant. Who attaches then uses the new chunks, and those who were attached
/// find what he was told.
#[test]
fn who_attaches_after_a_death_in_growing_is_seen_by_the_others() {
    for instant in 0.. {
        let world = World::new(tiny_size(6));
        Pool::create(&world.medium(), &options_in(&world)).unwrap();
        let locks = LocalLocks::default();
        let attach = || {
            let pool = open(world.medium(), &locks, boot(world.boot_id())).unwrap();
            pool.attach().unwrap()
        };
        let (monitor, grower) = (attach(), attach());
        world.medium().grow(tiny_size(20));
        let chunks = TINY.header_chunks() + 20;
        let grown = world.kill_after(instant, || grower.grow_to(chunks).unwrap());
        drop(grower);
        monitor.release_orphans().unwrap();
        let program = attach();
        let written = writes(&program, 40, |_, _| ());
        drop(program);
        let found = monitor.scan().unwrap();
        let records: u64 = found.files.iter().map(|file| file.records).sum();
        assert_eq!(records, written, "killed at {instant}");
        if grown.is_some() {
            assert!(instant > 10, "nobody was killed");
            break;
        }
    }
}

/// Who could not write it back that the pool is larger leaves that to whoever is next to take the new chunks into use.
#[test]
fn growing_that_failed_is_made_up_for() {
    for instant in 0.. {
        let small = Memory::new(&vec![0; tiny_size(6) as usize]);
        Pool::create(&small, &options(TINY)).unwrap();
        let mut bytes = small.bytes();
        bytes.resize(tiny_size(20) as usize, 0);
        let (medium, all) = (Memory::slow(&bytes), TINY.header_chunks() + 20);
        let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
        let (grower, next) = (pool.attach().unwrap(), pool.attach().unwrap());
        medium.refuse_after(instant);
        let done = grower.grow_to(all).is_ok();
        medium.refuse_after(u64::MAX);
        let fences = medium.fences();
        assert_eq!(next.grow_to(all).unwrap(), all);
        let written = medium.bytes();
        let copy = |at: u64| &written[at as usize..][..Superblock::SIZE];
        assert_eq!(
            copy(SUPERBLOCK_A),
            copy(SUPERBLOCK_B),
            "failed at {instant}"
        );
        if done {
            assert!(instant > 4);
            break;
        }
        assert!(medium.fences() > fences, "failed at {instant}");
    }
}

/// The same, and then the power goes: the pool was as large durably before anybody used that.
#[test]
fn what_is_told_after_a_death_in_growing_outlives_a_power_cut() {
    for instant in 0..40 {
        let config = Config {
            exhaustive: 8,
            samples: 4,
            torn: 1,
            nested_points: 0,
            max_states: 1_500,
            threads: 1,
            ..Config::new(&format!("grown-{instant}"), tiny_size(4))
        };
        let workload = |world: &World| {
            let locks = LocalLocks::default();
            let opened =
                |core| open(world.medium_on_core(core), &locks, boot(world.boot_id())).unwrap();
            let grower = world.setup(|| {
                Pool::create(&world.medium(), &options_in(world)).unwrap();
                let grower = opened(0).attach().unwrap();
                world.medium().grow(tiny_size(10));
                grower
            });
            let chunks = TINY.header_chunks() + 10;
            world.kill_after(instant, || grower.grow_to(chunks).unwrap());
            let program = opened(1).attach().unwrap();
            drop(grower);
            writes(&program, 30, |nth, done| {
                if done {
                    world.acknowledge(nth + 1);
                } else {
                    world.begin(nth + 1);
                }
            });
        };
        let judge = |world: &World, history: &History| {
            let pool = open(
                world.medium(),
                &LocalLocks::default(),
                boot(world.boot_id()),
            )
            .map_err(told)?;
            let a = pool.attach().map_err(told)?;
            let found = a.scan().map_err(told)?;
            world.judging();
            let records: u64 = found.files.iter().map(|file| file.records).sum();
            let acknowledged = history.completed().len() as u64;
            if records < acknowledged {
                return Err(format!(
                    "{acknowledged} told, {records} found, {:?}",
                    found.rejected
                ));
            }
            Ok(())
        };
        if let Err(failure) = enumerate(&config, workload, judge) {
            panic!("killed at {instant}: {failure}");
        }
    }
}

/// Behind a page cache a loss of power may keep a record of a new file and take its entry. The next file of the entry has
/// another number, or that record was its own.
#[test]
fn a_number_is_never_used_twice() {
    let config = Config {
        exhaustive: 64,
        samples: 16,
        torn: 8,
        nested_points: 0,
        max_states: 6_000,
        threads: 1,
        kills: false,
        ..Config::new("number", tiny_size(12))
    };
    let opened = |world: &World| {
        open(
            world.medium(),
            &LocalLocks::default(),
            boot(world.boot_id()),
        )
    };
    let workload = |world: &World| {
        world.put_behind_page_cache(TINY.header_len());
        let a = world.setup(|| {
            Pool::create(&world.medium(), &options_in(world)).unwrap();
            let a = opened(world).unwrap().attach().unwrap();
            let one = a.enter_file(&name(1)).unwrap();
            stage(&a, one, 0, &[1; 100], When::Now).unwrap();
            a
        });
        let two = a.enter_file(&name(2)).unwrap();
        stage(&a, two, 0, &[2; 100], When::Now).unwrap();
    };
    let judge = |world: &World, history: &History| {
        if !history.lost_power() {
            return Ok(());
        }
        let pool = opened(world).map_err(told)?;
        let b = pool.attach().map_err(told)?;
        world.judging();
        if b.scan().map_err(told)?.files.len() > 1 {
            // It survived, which it may.
            return Ok(());
        }
        let again = b.enter_file(&name(2)).map_err(told)?;
        stage(&b, again, 0, &[9; 50], When::Now).map_err(told)?;
        let found = pool.scan().map_err(told)?;
        let seen = replayed(&pool, &found, again, &[]).map_err(told)?;
        if seen != [9; 50] {
            return Err(format!(
                "{:?} bytes, {:?}",
                (seen.len(), seen.first()),
                found.rejected
            ));
        }
        Ok(())
    };
    if let Err(failure) = enumerate(&config, workload, judge) {
        panic!("{failure}");
    }
}

/// A flipped bit in the entry of a file loses nothing silently. (Behind a page cache some look like an entry that a loss of
/// power left in part, of which nobody was told.)
#[test]
fn a_flipped_bit_in_an_entry_is_reported() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    let (_, index) = pool_of(&medium, 1);
    let at = TINY.file_entry(index) as usize;
    let clean = medium.bytes();
    for bit in 0..FileEntry::SIZE * 8 {
        let pool = opened_with(&Memory::new(&with_flipped(&clean, at, bit)));
        let found = pool.scan().unwrap();
        let live: u64 = found.files.iter().map(|file| file.records).sum();
        assert!(live > 0 || found.counts.rejected > 0, "bit {bit}");
    }
}

/// What cannot be decided is kept, however much it is.
#[test]
fn all_records_of_a_damaged_entry_are_kept() {
    let medium = Memory::new(&vec![0; tiny_size(60) as usize]);
    let (pool, index) = pool_of(&medium, 2000);
    let kinds = [ChunkKind::Data, ChunkKind::Log];
    let before = chunks_of(&pool, &kinds);
    let at = TINY.file_entry(index) as usize + std::mem::offset_of!(FileEntry, key);
    let pool = opened_with(&Memory::new(&with_flipped(&medium.bytes(), at, 0)));
    let _attached = pool.attach().unwrap();
    assert_eq!(chunks_of(&pool, &kinds), before);
}

/// What is kept of a damaged entry may be retired, and its bytes gone for long: the names that lie where they were are
/// the names of others.
#[test]
fn records_of_a_damaged_entry_take_nobody_s_names() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let one = a.enter_file(&name(1)).unwrap();
    let last = stage(&a, one, 0, &[1; 8192], When::Now).unwrap();
    stage(&a, one, 0, &[2; 60], When::Now).unwrap();
    a.lock_file(one).unwrap().retire(last).unwrap();
    a.reclaim().unwrap();
    assert_eq!(a.release_empty().unwrap(), 1);
    // Another file's name comes to lie where the first record's bytes were.
    let two = a.enter_file(&name(2)).unwrap();
    let three = a.enter_file(&name(3)).unwrap();
    let names = chunks_of(&pool, &[ChunkKind::Names]);
    for file in [two, three] {
        stage(&a, file, 0, &[3; 60], When::Now).unwrap();
    }
    let at = TINY.file_entry((one.id() & 0xff_ffff) as u32) as usize;
    let at = at + std::mem::offset_of!(FileEntry, key);
    let pool = opened_with(&Memory::new(&with_flipped(&medium.bytes(), at, 0)));
    let b = pool.attach().unwrap();
    assert_eq!(chunks_of(&pool, &[ChunkKind::Names]), names);
    let files = &b.recovery().unwrap().files;
    let named = files.iter().filter(|file| file.name.is_some()).count();
    assert_eq!((files.len(), named), (2, 2));
    assert_eq!(b.scan().unwrap().files.len(), 2);
    for file in [two, three] {
        pool.file_name(file).unwrap();
    }
}

/// A flipped bit in the table of names frees no names, and drops no file.
#[test]
fn names_are_kept_though_their_table_is_damaged() {
    for slow in [false, true] {
        let blank = vec![0; tiny_size(12) as usize];
        let of = |bytes: &[u8]| {
            if slow {
                Memory::slow(bytes)
            } else {
                Memory::new(bytes)
            }
        };
        let medium = of(&blank);
        let (pool, index) = pool_of(&medium, 1);
        let before = chunks_of(&pool, &[ChunkKind::Names]);
        let at = (NAMES + u64::from(index) / TINY.names_per_chunk() * 8) as usize;
        for bit in 0..64 {
            let pool = opened_with(&of(&with_flipped(&medium.bytes(), at, bit)));
            let _attached = pool.attach().unwrap();
            assert_eq!(
                chunks_of(&pool, &[ChunkKind::Names]),
                before,
                "bit {bit}, slow: {slow}"
            );
            assert_eq!(pool.files().unwrap().len(), 1, "bit {bit}, slow: {slow}");
        }
    }
}

/// A flipped bit in a name, behind a page cache and after a loss of power, is none that the power cut took.
#[test]
fn a_flipped_bit_in_a_name_drops_no_file() {
    let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
    let (pool, index) = pool_of(&medium, 1);
    let chunk = chunks_of(&pool, &[ChunkKind::Names])[0];
    let at = TINY.chunk(chunk) + u64::from(index) % TINY.names_per_chunk() * 8192;
    // But for those of the file's number, by which a name is told from that of the file before.
    let number = std::mem::offset_of!(Name, file_id) * 8;
    for bit in (0..64 * 8).filter(|bit| !(number..number + 64).contains(bit)) {
        let bytes = with_flipped(&medium.bytes(), at as usize, bit);
        let pool = opened_with(&Memory::slow(&bytes));
        let _attached = pool.attach().unwrap();
        // What lies behind the name's end is nobody's.
        assert_eq!(pool.files().unwrap().len(), 1, "bit {bit}");
    }
}

/// While nothing can be written back (a program has no descriptor left) leases fail, and take no chunk.
#[test]
fn leases_that_fail_take_no_chunk() {
    let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let _other = pool.attach().unwrap();
    let a = pool.attach().unwrap();
    let before = pool.free_chunks().unwrap();
    medium.refuse_write_backs(true);
    for _ in 0..20 {
        a.alloc(4096).unwrap_err();
    }
    medium.refuse_write_backs(false);
    assert_eq!(pool.free_chunks().unwrap(), before);
}

/// The lines of the first log.
fn first_log(pool: &Pool<Memory>) -> usize {
    TINY.chunk(chunks_of(pool, &[ChunkKind::Log])[0]) as usize
}

/// A flipped bit in the only record of a file takes nothing: the record is what it was, for all who look.
#[test]
fn a_flipped_bit_in_a_record_loses_nothing() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    let (pool, _) = pool_of(&medium, 1);
    let before = chunks_of(&pool, &[ChunkKind::Data, ChunkKind::Log]);
    let at = first_log(&pool);
    for bit in 0..64 * 8 {
        let pool = opened_with(&Memory::new(&with_flipped(&medium.bytes(), at, bit)));
        let told = pool.check().unwrap().problems;
        assert_eq!(told.len(), 1, "bit {bit}");
        assert_eq!(told[0].offset, at as u64, "bit {bit}");
        let a = pool.attach().unwrap();
        let kept = chunks_of(&pool, &[ChunkKind::Data, ChunkKind::Log]);
        assert_eq!(kept, before, "bit {bit}");
        a.release_orphans().unwrap();
        let found = a.scan().unwrap();
        let seen = replayed(&pool, &found, found.files[0].file(), &[]).unwrap();
        assert!(seen == [0; 60], "bit {bit}");
        let last = found.files[0].last_seq;
        let mut guard = a.lock_file(found.files[0].file()).unwrap();
        guard.retire(last).unwrap();
        drop(guard);
        assert_eq!(a.release_orphans().unwrap().chunks, 2, "bit {bit}");
    }
}

/// The same in the log of somebody alive: it is collected as others are.
#[test]
fn a_record_with_a_flipped_bit_is_reclaimed() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    let last = stage(&a, file, 0, &[1; 60], When::Now).unwrap();
    let at = first_log(&pool) as u64 + 16;
    let word = adit_pmem::Medium::load(&medium, at).unwrap();
    adit_pmem::Medium::store(&medium, at, word ^ 1 << 40).unwrap();
    assert_eq!(pool.scan().unwrap().counts.mended, 1);
    a.lock_file(file).unwrap().retire(last).unwrap();
    assert_eq!(a.reclaim().unwrap(), 1);
}

/// What hangs on a damaged entry is kept, and nothing else: other files' space comes back, and who leaves can leave.
#[test]
fn a_damaged_entry_keeps_no_other_file_s_space() {
    for field in [
        std::mem::offset_of!(FileEntry, key),
        std::mem::offset_of!(FileEntry, retired),
    ] {
        let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
        let (_, damaged, a) = one_of_two(&medium);
        let at = TINY.file_entry((damaged.id() & 0xff_ffff) as u32) + field as u64;
        let word = adit_pmem::Medium::load(&medium, at).unwrap();
        adit_pmem::Medium::store(&medium, at, word ^ 1).unwrap();
        assert_eq!(a.reclaim().unwrap(), 1, "field at {field}");
        a.detach().unwrap();
        let next = opened_with(&medium).attach().unwrap();
        let rejected = &next.recovery().unwrap().rejected;
        let undecided = |line: &&Rejected| line.reason == Rejection::Undecided;
        assert_eq!(
            rejected.iter().filter(undecided).count(),
            1,
            "field at {field}"
        );
    }
}

/// A pool with a record each of two files, of which that of the second is retired.
fn one_of_two(medium: &Memory) -> (Arc<Pool<Memory>>, FileRef, Attachment<Memory>) {
    Pool::create(medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let [waits, goes] = [1, 2].map(|nth| a.enter_file(&name(nth)).unwrap());
    stage(&a, waits, 0, &[1; 60], When::Now).unwrap();
    let last = stage(&a, goes, 0, &[2; 60], When::Now).unwrap();
    a.lock_file(goes).unwrap().retire(last).unwrap();
    (pool, waits, a)
}

/// A pool of somebody who has gone: a file with a hundred records and a commit, of which nobody can read the first, which
/// alone names its chunk.
fn with_an_unreadable_record() -> (Memory, FileRef) {
    let medium = Memory::new(&vec![0; tiny_size(60) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    for nth in 0..100 {
        let len = if nth == 0 { 8192 } else { 60 };
        stage(&a, file, nth * 60, &vec![7; len], When::WithCommit).unwrap();
    }
    a.lock_file(file).unwrap().commit().unwrap();
    drop(a);
    let mut bytes = medium.bytes();
    bytes[first_log(&pool) + 16] ^= 3;
    (Memory::new(&bytes), file)
}

/// Of a record that nobody can read, the chunks that it names are kept, and so is what was committed by a chain through it.
#[test]
fn what_hangs_on_an_unreadable_record_is_kept() {
    let (damaged, _) = with_an_unreadable_record();
    let pool = opened_with(&damaged);
    let kinds = [ChunkKind::Data, ChunkKind::Log];
    let before = chunks_of(&pool, &kinds);
    let a = pool.attach().unwrap();
    assert_eq!(a.release_orphans().unwrap().chunks, 0);
    assert_eq!(chunks_of(&pool, &kinds), before);
    assert!(!pool.check().unwrap().is_sound());
}

/// A pool with two attachments.
fn two_of(medium: &Memory) -> (Arc<Pool<Memory>>, Attachment<Memory>, Attachment<Memory>) {
    Pool::create(medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (a, b) = (pool.attach().unwrap(), pool.attach().unwrap());
    (pool, a, b)
}

/// Does something with a medium that fails at any instant, over and over; afterwards everything comes back without that
/// anybody has to leave, but for what `undo` has to do about it.
fn what_fails_takes_no_room<T>(
    prepare: impl Fn(&Attachment<Memory>) -> T,
    attempt: impl Fn(&Attachment<Memory>, &T) -> Result<()>,
    undo: impl Fn(&Attachment<Memory>, &T),
) {
    for slow in [false, true] {
        for instant in 0.. {
            let blank = vec![0; tiny_size(30) as usize];
            let medium = if slow {
                Memory::slow(&blank)
            } else {
                Memory::new(&blank)
            };
            let (pool, a, other) = two_of(&medium);
            let before = pool.free_chunks().unwrap();
            let prepared = prepare(&a);
            medium.refuse_after(instant);
            let done = attempt(&a, &prepared).is_ok();
            if !done {
                let _ = attempt(&a, &prepared);
            }
            medium.refuse_after(u64::MAX);
            undo(&a, &prepared);
            a.detach().unwrap();
            other.release_orphans().unwrap();
            let names = chunks_of(&pool, &[ChunkKind::Names]).len() as u32;
            let what = format!("slow: {slow}, at {instant}");
            assert_eq!(pool.free_chunks().unwrap(), before - names, "{what}");
            let problems = pool.check().unwrap().problems;
            assert!(problems.is_empty(), "{what}: {problems:?}");
            if done {
                assert!(instant > 0);
                break;
            }
        }
    }
}

#[test]
fn a_log_that_cannot_be_begun_takes_no_room() {
    what_fails_takes_no_room(
        |a| a.enter_file(&name(1)).unwrap(),
        |a, file| {
            let op = Op::Truncate { size: 9 };
            a.lock_file(*file)?.append(&op, When::Now).map(drop)
        },
        |a, file| a.forget_file(*file).unwrap(),
    );
}

#[test]
fn a_log_that_cannot_be_given_back_takes_no_room() {
    what_fails_takes_no_room(
        |a| {
            a.limit_log(u32::MAX);
            let file = a.enter_file(&name(1)).unwrap();
            let mut guard = a.lock_file(file).unwrap();
            let mut last = 0;
            for size in 0..300 {
                last = guard.append(&Op::Truncate { size }, When::Now).unwrap();
            }
            guard.retire(last).unwrap();
            drop(guard);
            file
        },
        |a, _| a.reclaim().map(drop),
        |a, file| a.forget_file(*file).unwrap(),
    );
}

/// A file that could not be entered is none, and what was taken for its name comes back.
#[test]
fn a_file_that_cannot_be_entered_leaves_no_entry() {
    what_fails_takes_no_room(
        |_| (),
        |a, ()| {
            let entered = a.enter_file(&name(1)).map(drop);
            let files = a.pool().files().unwrap().len();
            assert_eq!(files, usize::from(entered.is_ok()));
            assert_eq!(a.pool().anything_staged(), entered.is_ok());
            entered
        },
        |_, ()| (),
    );
}

#[test]
fn a_chunk_for_names_that_cannot_be_named_is_given_back() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    let (pool, a, _other) = two_of(&medium);
    let before = pool.free_chunks().unwrap();
    medium.break_word(Some(NAMES));
    for _ in 0..3 {
        a.enter_file(&name(1)).unwrap_err();
    }
    medium.break_word(None);
    assert_eq!(pool.free_chunks().unwrap(), before);
}

/// What is to be relinked and finds no room in the log, or cannot be written there, leaves nothing there.
#[test]
fn an_intention_that_fails_is_none() {
    let medium = Memory::new(&vec![0; tiny_size(30) as usize]);
    let (pool, a, _other) = two_of(&medium);
    let file = a.enter_file(&name(1)).unwrap();
    let last = stage(&a, file, 0, &[1; 8192], When::Now).unwrap();
    let Some(Op::Write { extent, .. }) = fill(&a, 0, &[1; 4096]).ok() else {
        panic!("no extent");
    };
    let intent = Intent {
        file_offset: 0,
        pool_offset: extent.offset,
        len: 4096,
        data_crc: 0,
    };
    a.limit_log(1);
    let counted = || {
        let counts = pool.scan().unwrap().counts;
        (counts.live, counts.retired, counts.rejected)
    };
    let before = counted();
    let told = a.lock_file(file).unwrap().intend(last, &[intent; 200]);
    assert!(matches!(told, Err(Error::LogFull { .. })), "{told:?}");
    assert_eq!((counted(), a.waiting_records()), (before, 1));
    a.limit_log(8);
    for room in 0..4 {
        medium.refuse_after(room);
        let told = a.lock_file(file).unwrap().intend(last, &[intent; 3]);
        medium.refuse_after(u64::MAX);
        told.unwrap_err();
        assert_eq!(a.waiting_records(), 1, "with room for {room}");
    }
}

/// A commit of several files that fails takes no place of the log for good.
#[test]
fn a_common_commit_that_fails_leaves_no_place_waiting() {
    for room in 0..3 {
        let medium = Memory::new(&vec![0; tiny_size(30) as usize]);
        let (_pool, a, _other) = two_of(&medium);
        let files = [1, 2, 3].map(|n| a.enter_file(&name(n)).unwrap());
        for file in files {
            stage(&a, file, 0, &[1; 60], When::WithCommit).unwrap();
        }
        let mut guards = files.map(|file| a.lock_file(file).unwrap());
        medium.refuse_after(room);
        a.commit_together(&mut guards).unwrap_err();
        medium.refuse_after(u64::MAX);
        for guard in &mut guards {
            let last = guard.next_seq().unwrap() - 1;
            guard.retire(last).unwrap();
        }
        drop(guards);
        a.reclaim().unwrap();
        assert_eq!(a.waiting_records(), 0, "with room for {room}");
    }
}

/// What was written of a commit of several files that failed commits none of them, also when another one of them has ended
/// before the power was cut.
#[test]
fn a_common_commit_that_fails_commits_nothing_later() {
    for room in 0..3 {
        let medium = Memory::new(&vec![0; tiny_size(30) as usize]);
        let (pool, a, _other) = two_of(&medium);
        let mut files = [1, 2, 3].map(|n| a.enter_file(&name(n)).unwrap());
        files.sort_unstable();
        for file in files {
            a.lock_file(file).unwrap().set_end(0).unwrap();
            stage(&a, file, 0, &[1; 60], When::WithCommit).unwrap();
        }
        let mut guards = files.map(|file| a.lock_file(file).unwrap());
        medium.refuse_after(room);
        a.commit_together(&mut guards).unwrap_err();
        drop(guards);
        medium.refuse_after(u64::MAX);
        a.forget_file(files[1]).unwrap();
        drop((a, pool));
        let pool = open(
            Memory::new(&medium.bytes()),
            &LocalLocks::default(),
            boot(2),
        )
        .unwrap();
        assert_eq!(pool.scan().unwrap().counts.live, 0, "with room for {room}");
    }
}

/// Who could not count the files after the death of another leaves that to the next one.
#[test]
fn a_count_that_fails_is_made_up_for() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    let (pool, a, other) = two_of(&medium);
    let count = SHARED + std::mem::offset_of!(Shared, staged_files) as u64;
    let lock = SHARED + std::mem::offset_of!(Shared, files_lock) as u64;
    a.enter_file(&name(1)).unwrap();
    adit_pmem::Medium::store(&medium, count, 7).unwrap();
    // Of a slot that nobody has.
    adit_pmem::Medium::store(&medium, lock, 3 | 1 << 32).unwrap();
    medium.break_word(Some(count));
    other.enter_file(&name(2)).unwrap_err();
    medium.break_word(None);
    let file = other.enter_file(&name(2)).unwrap();
    assert_eq!(adit_pmem::Medium::load(&medium, count).unwrap(), 2);
    for file in [file, a.enter_file(&name(1)).unwrap()] {
        other.forget_file(file).unwrap();
    }
    assert!(!pool.anything_staged());
}

/// What is kept of an unreadable record goes when nobody can miss it any more, and holds up nothing else meanwhile.
#[test]
fn an_unreadable_record_is_not_kept_for_ever() {
    let (medium, file) = with_an_unreadable_record();
    for nth in 2..9 {
        let pool = open(medium.clone(), &LocalLocks::default(), boot(nth)).unwrap();
        let a = pool.attach().unwrap();
        if nth == 2 {
            // Published, as far as that can be.
            a.forget_file(file).unwrap();
        }
        let other = a.enter_file(&name(nth as u8)).unwrap();
        stage(&a, other, 0, &[1; 60], When::WithCommit).unwrap();
    }
    let pool = open(medium.clone(), &LocalLocks::default(), boot(9)).unwrap();
    let a = pool.attach().unwrap();
    a.release_orphans().unwrap();
    let kept = chunks_of(&pool, &[ChunkKind::Data, ChunkKind::Log]);
    assert_eq!((kept.len(), pool.files().unwrap().len()), (0, 0));
}
