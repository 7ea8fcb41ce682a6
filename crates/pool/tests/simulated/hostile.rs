//! Images that are not what Adit wrote: flipped, spliced, cut, copied over themselves.
//!
//! Whatever the bytes are, opening, checking, dumping, walking, attaching, publishing and using the
//! pool ends soon in success or in a typed error, and nothing outside the medium is touched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_pmem::Medium as _;
use adit_pool::layout::{
    ChunkKind, ChunkWord, FileEntry, MAGIC, NAMES, Record, SHARED, SUPERBLOCK_A, SUPERBLOCK_B,
    Shared, Superblock, VERSION, checked_word, crc_of_record,
};
use adit_pool::{Error, LocalLocks, Op, Pool, Rejection, ReplayOp, Result, When};
use adit_sim::Rng;

use crate::common::*;
use crate::memory::Memory;
use crate::pools::*;

/// A pool with everything in it: committed and uncommitted records, a group, a retired record, a
/// second file, a dead attachment, a recycled log chunk.
fn image() -> Vec<u8> {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let locks = LocalLocks::default();
    let pool = open(medium.clone(), &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let b = pool.attach().unwrap();
    let one = a.enter_file(&name(1)).unwrap();
    for _ in 0..130 {
        a.lock_file(one)
            .unwrap()
            .append(&Op::Truncate { size: 9 }, When::WithCommit)
            .unwrap();
    }
    a.lock_file(one).unwrap().retire(129).unwrap();
    a.reclaim().unwrap();
    stage(&a, one, 0, &[1; 300], When::Now).unwrap();
    stage(&b, one, 200, &[2; 5000], When::WithCommit).unwrap();
    a.lock_file(one).unwrap().commit().unwrap();
    stage(&a, one, 900, &[3; 64], When::WithCommit).unwrap();
    let two = b.enter_file(&name(2)).unwrap();
    let ops = [
        fill(&b, 0, b"abc").unwrap(),
        fill(&b, 3, &[9; 4096]).unwrap(),
    ];
    b.lock_file(two)
        .unwrap()
        .append_group(&ops, When::Now)
        .unwrap();
    b.lock_file(two)
        .unwrap()
        .append(
            &Op::Zero {
                file_offset: 1,
                len: 5,
            },
            When::Now,
        )
        .unwrap();
    drop((a, b));
    medium.bytes()
}

/// Everything one can do with a pool.
fn use_it(medium: &Memory, boot_number: u64) -> Result<()> {
    let pool = open(medium.clone(), &LocalLocks::default(), boot(boot_number))?;
    let report = pool.check()?;
    for problem in &report.problems {
        assert!(!problem.to_string().is_empty());
        assert!(problem.offset <= medium.bytes().len() as u64, "{problem}");
    }
    let dump = pool.dump()?;
    assert!(!dump.to_string().is_empty());
    pool.info()?;
    let a = pool.attach()?;
    publish(&pool, &a)?;
    let file = a.enter_file(&name(7))?;
    stage(&a, file, 0, b"after all", When::Now)?;
    a.lock_file(file)?.commit()?;
    a.forget_file(file)?;
    a.detach()
}

fn publish(pool: &Arc<Pool<Memory>>, a: &adit_pool::Attachment<Memory>) -> Result<()> {
    let found = pool.scan()?;
    for file in &found.files {
        let mut guard = a.lock_file(file.file())?;
        for replay in found.records(pool, file.file()) {
            if let adit_pool::ReplayOp::Write {
                pool_offset, len, ..
            } = replay?.op
            {
                let mut bytes = vec![0; len as usize];
                adit_pmem::Medium::read(pool.medium(), pool_offset, &mut bytes)?;
            }
        }
        guard.retire(file.last_seq)?;
    }
    a.reclaim()?;
    a.release_orphans()?;
    Ok(())
}

/// Uses the image in both boots; the error, if there was one.
fn survive(what: &str, bytes: &[u8]) -> Vec<Error> {
    let mut errors = Vec::new();
    for boot_number in [1, 2] {
        let medium = Memory::new(bytes);
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| use_it(&medium, boot_number)));
        let outcome = outcome.unwrap_or_else(|_| panic!("{what}: a panic"));
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{what}: took too long"
        );
        assert_eq!(medium.strays(), 0, "{what}: reached outside the medium");
        if let Err(error) = outcome {
            assert!(error.to_string().len() > 10);
            errors.push(error);
        }
    }
    errors
}

/// Several threads find what one finds, and a rebuild with several leaves the bytes that one leaves.
fn threads_agree(bytes: &[u8]) {
    for boot_number in [1, 2] {
        let found = [1, 4].map(|threads| {
            let medium = Memory::new(bytes);
            let pool = match open(medium.clone(), &LocalLocks::default(), boot(boot_number)) {
                Ok(pool) => pool,
                Err(error) => return (format!("{error:?}"), Vec::new()),
            };
            pool.walk_with(threads);
            let walked = walked(&pool);
            let attached = pool.attach().map(|attached| format!("{attached:?}"));
            (format!("{walked}\n{attached:?}"), medium.bytes())
        });
        assert_eq!(found[0].0, found[1].0);
        assert!(found[0].1 == found[1].1, "a rebuild left other bytes");
    }
}

/// Everything that a walk says.
fn walked(pool: &Arc<Pool<Memory>>) -> String {
    let found = match pool.scan() {
        Ok(found) => found,
        Err(error) => return format!("{error:?}"),
    };
    let files = &found.files;
    let records: Vec<Vec<_>> = files
        .iter()
        .map(|file| found.records(pool, file.file()).collect())
        .collect();
    format!(
        "{:?} {:?} {files:?} {records:?}",
        found.counts, found.rejected
    )
}

/// Enough records of three files to be divided, in a log of more chunks than are walked at once.
fn long_image() -> Vec<u8> {
    let medium = Memory::new(&vec![0; tiny_size(60) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let attachment = pool.attach().unwrap();
    attachment.limit_log(u32::MAX);
    attachment.limit_logs_together(u32::MAX);
    let files = [1, 2, 3].map(|n| attachment.enter_file(&name(n)).unwrap());
    for nth in 0..3000_u64 {
        let file = files[(nth % 3) as usize];
        let bytes = [nth as u8; 60];
        let when = if nth % 5 == 0 {
            When::Now
        } else {
            When::WithCommit
        };
        stage(&attachment, file, nth * 60, &bytes, when).unwrap();
        if nth % 97 == 0 {
            attachment.lock_file(file).unwrap().commit().unwrap();
        }
    }
    drop(attachment);
    medium.bytes()
}

#[test]
fn several_threads_find_what_one_finds() {
    let clean = long_image();
    threads_agree(&clean);
    let pool = open(Memory::new(&clean), &LocalLocks::default(), boot(1)).unwrap();
    let found = pool.scan().unwrap();
    assert!(found.counts.chunks > 16, "{:?}", found.counts);
    assert!(found.counts.live > 3000, "{:?}", found.counts);
    let everywhere = [(0, clean.len())];
    let mut rng = Rng::new(0x7e4d);
    for _ in 0..60 {
        let mut bytes = clean.clone();
        for _ in 0..1 + rng.below(40) {
            damage(&mut bytes, &everywhere, &mut rng);
        }
        threads_agree(&bytes);
    }
}

/// Areas of the image, so that small structures are hit as often as large ones.
fn areas(len: usize) -> Vec<(usize, usize)> {
    let chunk = |n: u32| TINY.chunk(TINY.header_chunks() + n) as usize;
    let mut areas = vec![
        (0, 128),
        (4096, 128),
        (SHARED as usize, Shared::SIZE),
        (NAMES as usize, 64),
        (TINY.slot(0) as usize, 256),
        (TINY.chunk_table() as usize, 8 * TINY.max_chunks as usize),
        (TINY.file_table() as usize, 4 * FileEntry::SIZE),
    ];
    areas.extend((0..12).map(|n| (chunk(n), 8192)));
    areas.retain(|(start, size)| start + size <= len);
    areas
}

fn pick(rng: &mut Rng, areas: &[(usize, usize)]) -> (usize, usize) {
    let (start, size) = areas[rng.below(areas.len() as u64) as usize];
    let at = start + rng.below(size as u64) as usize;
    (at, start + size - at)
}

#[test]
fn the_image_is_sound_as_written() {
    let bytes = image();
    let pool = open(Memory::new(&bytes), &LocalLocks::default(), boot(1)).unwrap();
    let report = pool.check().unwrap();
    assert_eq!(report.problems, []);
    let found = pool.scan().unwrap();
    assert_eq!(found.files.len(), 2);
    assert!(found.counts.live >= 8, "{:?}", found.counts);
    assert!(survive("as written", &bytes).is_empty());
}

#[test]
fn every_bit_of_the_small_structures() {
    let bytes = image();
    let mut noticed = 0_u32;
    for (start, size) in areas(bytes.len()).into_iter().take(7) {
        // Every bit of the first 65 bytes of each, then every 29th.
        for bit in (0..size * 8).filter(|bit| *bit < 520 || bit % 29 == 0) {
            let mut bytes = bytes.clone();
            bytes[start + bit / 8] ^= 1 << (bit % 8);
            noticed += survive(&format!("bit {bit} of {start}"), &bytes).len() as u32;
        }
    }
    println!("{noticed} errors");
}

/// Damages some bytes in some way.
fn damage(bytes: &mut [u8], areas: &[(usize, usize)], rng: &mut Rng) {
    let (at, room) = pick(rng, areas);
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => {
            let len = (1 + rng.below(64) as usize).min(room);
            bytes[at..at + len]
                .iter_mut()
                .for_each(|byte| *byte = rng.below(256) as u8);
        }
        2 => {
            // Words that tempt arithmetic.
            let at = at / 8 * 8;
            let tempting = [0, 1, u64::MAX, 1 << 63, u64::MAX >> 1, 1 << 48, 0xffff_ffff];
            let word = tempting[rng.below(7) as usize];
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        3 => {
            // One part over another: records duplicated, entries moved.
            let (from, from_room) = pick(rng, areas);
            let (at, from) = (at / 64 * 64, from / 64 * 64);
            let len = 64.min(room).min(from_room);
            bytes.copy_within(from..from + len, at);
        }
        4 => {
            let len = (rng.below(4096) as usize).min(room);
            bytes[at..at + len].fill(0);
        }
        _ => {
            let len = (rng.below(4096) as usize).min(room);
            bytes[at..at + len].fill(0xff);
        }
    }
}

#[test]
fn random_damage() {
    let clean = image();
    let areas = areas(clean.len());
    let mut rng = Rng::new(0x5eed);
    let mut failed = 0;
    for round in 0..2500 {
        let mut bytes = clean.clone();
        for _ in 0..1 + rng.below(4) {
            damage(&mut bytes, &areas, &mut rng);
        }
        if round % 8 == 0 {
            threads_agree(&bytes);
        }
        failed += survive(&format!("round {round}"), &bytes).len();
    }
    println!("{failed} errors");
}

/// Damage with all checksums put right again: what a program of the same user could forge.
#[test]
fn forged_structures() {
    let clean = image();
    let mut rng = Rng::new(0xf0);
    for round in 0..1000 {
        let mut bytes = clean.clone();
        for _ in 0..1 + rng.below(3) {
            match rng.below(5) {
                4 => {
                    let word = checked_word(tempting(&mut rng), 0).to_le_bytes();
                    bytes[NAMES as usize..NAMES as usize + 8].copy_from_slice(&word);
                }
                0 => forge_record(&mut bytes, &mut rng),
                1 => forge_entry(&mut bytes, &mut rng),
                2 => forge_chunk_word(&mut bytes, &mut rng),
                _ => forge_superblock(&mut bytes, &mut rng),
            }
        }
        if round % 8 == 0 {
            threads_agree(&bytes);
        }
        survive(&format!("forged, round {round}"), &bytes);
    }
}

fn tempting(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.below(256),
        3 => 1 << rng.below(64),
        4 => (1 << 48) - 1,
        _ => tiny_size(rng.below(14) as u32) - rng.below(200),
    }
}

fn forge_record(bytes: &mut [u8], rng: &mut Rng) {
    // Some log chunk, some line of its beginning.
    let logs: Vec<u32> = (0..TINY.header_chunks() + 12)
        .filter(|chunk| {
            let at = TINY.chunk_word(*chunk) as usize;
            let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            ChunkWord::decode(word).is_some_and(|word| word.kind == ChunkKind::Log)
        })
        .collect();
    if logs.is_empty() {
        return;
    }
    let chunk = logs[rng.below(logs.len() as u64) as usize];
    let position = rng.below(20) as u32;
    let at = TINY.record(chunk, position) as usize;
    let mut line: [u8; 64] = bytes[at..at + 64].try_into().unwrap();
    let field = Record::FIELDS[1 + rng.below(Record::FIELDS.len() as u64 - 1) as usize];
    let value = tempting(rng).to_le_bytes();
    line[field.offset..field.offset + field.size].copy_from_slice(&value[..field.size]);
    let crc = crc_of_record(&line, &UUID, chunk, position);
    line[..4].copy_from_slice(&crc.to_le_bytes());
    bytes[at..at + 64].copy_from_slice(&line);
}

fn forge_entry(bytes: &mut [u8], rng: &mut Rng) {
    let index = rng.below(4) as u32;
    let at = TINY.file_entry(index) as usize;
    let field = FileEntry::FIELDS[rng.below(FileEntry::FIELDS.len() as u64) as usize];
    let value = tempting(rng).to_le_bytes();
    let len = field.size.min(8);
    bytes[at + field.offset..at + field.offset + len].copy_from_slice(&value[..len]);
    let entry = FileEntry::decode(&bytes[at..at + 128].try_into().unwrap());
    bytes[at..at + 8].copy_from_slice(&entry.live_state().to_le_bytes());
}

fn forge_chunk_word(bytes: &mut [u8], rng: &mut Rng) {
    let at = TINY.chunk_word(rng.below(u64::from(TINY.max_chunks)) as u32) as usize;
    let word = ChunkWord {
        kind: ChunkKind::from_byte(rng.below(7) as u8).unwrap(),
        owner: tempting(rng) as u16,
        generation: tempting(rng) as u32,
    };
    bytes[at..at + 8].copy_from_slice(&word.encode().to_le_bytes());
}

fn forge_superblock(bytes: &mut [u8], rng: &mut Rng) {
    let mut superblock = Superblock::decode(&bytes[..128].try_into().unwrap());
    superblock.update += 5;
    match rng.below(7) {
        0 => superblock.chunk_count = tempting(rng) as u32,
        1 => superblock.max_chunks = tempting(rng) as u32,
        2 => superblock.slot_count = tempting(rng) as u32,
        3 => superblock.file_count = tempting(rng) as u32,
        4 => superblock.update = tempting(rng),
        5 => superblock.first_chunks = tempting(rng) as u32,
        _ => superblock.chunk_shift = rng.below(70) as u32,
    }
    superblock.crc = superblock.expected_crc();
    bytes[..128].copy_from_slice(&superblock.encode());
}

#[test]
fn truncated_images() {
    let clean = image();
    for len in (0..clean.len()).step_by(4096).chain([8, 64, 8184]) {
        let errors = survive(&format!("cut to {len}"), &clean[..len]);
        assert_eq!(errors.len(), 2, "cut to {len}");
        assert!(
            errors
                .iter()
                .all(|error| matches!(error, Error::Truncated { .. })),
            "{errors:?}"
        );
    }
}

fn open_error(change: impl Fn(&mut Superblock), both: bool) -> Option<Error> {
    let mut bytes = image();
    for at in [SUPERBLOCK_A as usize, SUPERBLOCK_B as usize] {
        if both || at == 0 {
            let mut superblock = Superblock::decode(&bytes[at..at + 128].try_into().unwrap());
            let crc = superblock.crc;
            change(&mut superblock);
            if superblock.crc == crc {
                superblock.crc = superblock.expected_crc();
            }
            bytes[at..at + 128].copy_from_slice(&superblock.encode());
        }
    }
    open(Memory::new(&bytes), &LocalLocks::default(), boot(1)).err()
}

fn forge_both(medium: &Memory, change: impl Fn(&mut Superblock)) {
    for at in [SUPERBLOCK_A, SUPERBLOCK_B] {
        let mut bytes = [0; Superblock::SIZE];
        medium.read(at, &mut bytes).unwrap();
        let mut superblock = Superblock::decode(&bytes);
        let crc = superblock.crc;
        change(&mut superblock);
        if superblock.crc == crc {
            superblock.crc = superblock.expected_crc();
        }
        medium.write_streaming(at, &superblock.encode()).unwrap();
    }
}

/// Whoever reads the first copy while that is written, and then the second one while that is, has found no damage.
#[test]
fn copies_that_were_being_written_are_read_again() {
    let medium = Memory::new(&image());
    let mut sound = [0; Superblock::SIZE];
    medium.read(SUPERBLOCK_A, &mut sound).unwrap();
    forge_both(&medium, |superblock| superblock.crc ^= 1);
    let writes = medium.clone();
    medium.when_read(SUPERBLOCK_B, move || {
        writes.write_streaming(SUPERBLOCK_A, &sound).unwrap();
    });
    open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    assert!(medium.was_read());
}

/// Where the tables lie is known from when the pool was opened.
#[test]
fn a_superblock_of_another_pool_is_noticed_by_who_has_opened_this_one() {
    let changes: [fn(&mut Superblock); 2] = [
        |superblock| superblock.max_chunks += 1,
        |superblock| superblock.uuid[0] ^= 1,
    ];
    for change in changes {
        let medium = Memory::new(&image());
        let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
        forge_both(&medium, change);
        let attached = pool.attach();
        assert!(matches!(attached, Err(Error::Damaged { .. })));
    }
}

/// Who wrote it once more would leave a pool that nobody can open.
#[test]
fn a_superblock_that_was_written_too_often_is_left_as_it_is() {
    let medium = Memory::new(&image());
    forge_both(&medium, |superblock| superblock.update = (1 << 63) - 1);
    for _ in 0..2 {
        let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
        assert!(matches!(pool.attach(), Err(Error::Damaged { .. })));
    }
}

#[test]
fn foreign_newer_other_and_damaged_pools_are_told_apart() {
    let foreign = open_error(|s| s.magic = 0x1234, true);
    assert!(matches!(
        foreign,
        Some(Error::ForeignMagic { found: 0x1234 })
    ));
    let newer = open_error(|s| s.version = VERSION + 1, true);
    assert!(
        matches!(newer, Some(Error::NewerVersion { .. })),
        "{newer:?}"
    );
    let other = open_error(|s| s.abi ^= 1, true);
    assert!(matches!(other, Some(Error::OtherAbi { .. })));
    let damaged = open_error(|s| s.crc ^= 1, true);
    assert!(matches!(damaged, Some(Error::Superblock)));
    // One sound copy is enough, and the check names the other.
    assert!(open_error(|s| s.crc ^= 1, false).is_none());
    assert!(open_error(|s| s.magic ^= 1, false).is_none());
    let unfinished = open(Memory::new(&[0; 65536]), &LocalLocks::default(), boot(1)).err();
    assert!(matches!(unfinished, Some(Error::Unfinished)));
    assert_eq!(MAGIC.to_le_bytes(), *b"ADITPOOL");
}

#[test]
fn a_damaged_superblock_is_named_and_mended() {
    let mut bytes = image();
    bytes[40] ^= 4;
    let pool = open(Memory::new(&bytes), &LocalLocks::default(), boot(1)).unwrap();
    let report = pool.check().unwrap();
    assert_eq!(report.problems.len(), 1);
    assert_eq!(
        (report.problems[0].structure, report.problems[0].offset),
        ("superblock", 0)
    );
    drop(pool.attach().unwrap());
    assert!(pool.check().unwrap().is_sound());
}

/// A new pool with six writes to a file, of boot 1, by somebody who has died.
fn six_records(medium: &Memory, locks: &LocalLocks) -> Arc<Pool<Memory>> {
    Pool::create(medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    for op in 0..6 {
        stage(&a, file, op * 10, &[op as u8; 10], When::Now).unwrap();
    }
    drop(a);
    pool
}

/// Whether a loss of power may have taken the bytes of a record is a question of the medium that it was written on, and of
/// what was written to its file after it, not of the one that the pool lies on now: a file system may be mounted with DAX
/// or without, or the pool be copied into memory.
#[test]
fn a_pool_is_judged_by_the_medium_that_it_was_written_on() {
    type New = fn(&[u8]) -> Memory;
    let (fast, slow): (New, New) = (Memory::new, Memory::slow);
    // Where a fence takes no sync it is over before the next record is written.
    let (lost, cut) = (Rejection::DataMismatch, Rejection::TornData);
    for (written_on, nth, told, live) in [
        (fast, 4, lost, 5),
        (fast, 5, cut.clone(), 5),
        (slow, 4, cut.clone(), 4),
        (slow, 5, cut.clone(), 5),
    ] {
        let locks = LocalLocks::default();
        let medium = written_on(&vec![0; tiny_size(8) as usize]);
        let pool = six_records(&medium, &locks);
        let found = pool.scan().unwrap();
        let replayed = found.records(&pool, found.files[0].file());
        let places: Vec<u64> = replayed
            .map(|replay| match replay.unwrap().op {
                ReplayOp::Write { pool_offset, .. } => pool_offset,
                other => panic!("{other:?}"),
            })
            .collect();
        let mut scribbled = medium.bytes();
        scribbled[places[nth] as usize] ^= 1;
        let reason = |pool: &Pool<Memory>| pool.scan().unwrap().rejected[0].reason.clone();
        for found_on in [fast, slow] {
            let pool = open(found_on(&scribbled), &locks, boot(2)).unwrap();
            assert_eq!(reason(&pool), told);
            assert_eq!(pool.check().unwrap().is_sound(), told == cut);
            assert_eq!(pool.scan().unwrap().counts.live, live);
        }
        // Nor does it become one of the medium of today for being used there, before all of it is recovered.
        for used_on in [fast, slow] {
            let medium = used_on(&scribbled);
            for nth in [2, 3] {
                let pool = open(medium.clone(), &locks, boot(nth)).unwrap();
                drop(pool.attach().unwrap());
                assert_eq!(reason(&pool), told);
                assert_eq!(pool.scan().unwrap().counts.live, live);
            }
        }
    }
}

/// Only behind a page cache a loss of power leaves a part of a file's entry. What looks like one and was made elsewhere is
/// damaged, and its records are kept, also by who recovers the pool where it would be a part.
#[test]
fn an_entry_is_judged_by_the_medium_that_it_was_made_on() {
    type New = fn(&[u8]) -> Memory;
    let (fast, slow): (New, New) = (Memory::new, Memory::slow);
    for (made_on, is_kept) in [(fast, true), (slow, false)] {
        let locks = LocalLocks::default();
        let medium = made_on(&vec![0; tiny_size(8) as usize]);
        let pool = six_records(&medium, &locks);
        let file = pool.files().unwrap()[0];
        let index = file.id() & ((1 << FileEntry::INDEX_BITS) - 1);
        let entry = TINY.file_entry(index as u32) as usize;
        let mut damaged = medium.bytes();
        // The number of the file before, as where the new one was not written yet.
        damaged[entry + std::mem::offset_of!(FileEntry, file_id) + 3] ^= 1;
        for found_on in [fast, slow] {
            let medium = found_on(&damaged);
            for nth in [2, 3] {
                let pool = open(medium.clone(), &locks, boot(nth)).unwrap();
                drop(pool.attach().unwrap());
                assert_eq!(medium.bytes()[entry] != 0, is_kept);
                let found = pool.scan().unwrap();
                let undecided = (found.rejected.iter())
                    .filter(|rejected| rejected.reason == Rejection::Undecided);
                assert_eq!(undecided.count(), if is_kept { 6 } else { 0 });
                assert_eq!(pool.check().unwrap().is_sound(), !is_kept);
            }
        }
    }
}

fn log_of(pool: &Pool<Memory>) -> u32 {
    let is_log = |chunk: &u32| {
        let word = pool.chunk_word(*chunk).unwrap();
        word.is_some_and(|word| word.kind == ChunkKind::Log)
    };
    (0..TINY.header_chunks() + 8).find(is_log).unwrap()
}

/// What is kept only because its file's entry cannot be read is not looked at: it may name bytes that no pool has.
#[test]
fn a_record_that_cannot_be_judged_is_no_obstacle() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    let locks = LocalLocks::default();
    let pool = six_records(&medium, &locks);
    let log = log_of(&pool);
    let id = pool.scan().unwrap().files[0].file_id;
    let index = (id & ((1 << FileEntry::INDEX_BITS) - 1)) as u32;
    let mut bytes = medium.bytes();
    let at = TINY.record(log, 4) as usize;
    let mut line: [u8; 64] = bytes[at..at + 64].try_into().unwrap();
    let far = Record::FIELDS
        .iter()
        .find(|field| field.name == "pool_offset")
        .unwrap();
    line[far.offset..far.offset + 8].copy_from_slice(&(1_u64 << 50).to_le_bytes());
    let crc = crc_of_record(&line, &UUID, log, 4);
    line[..4].copy_from_slice(&crc.to_le_bytes());
    bytes[at..at + 64].copy_from_slice(&line);
    bytes[TINY.file_entry(index) as usize] ^= 0x10;
    let pool = open(Memory::new(&bytes), &locks, boot(2)).unwrap();
    let a = pool.attach().expect("the others can be had");
    assert_eq!(pool.scan().unwrap().rejected.len(), 6, "and none was lost");
    let file = a.enter_file(&name(7)).unwrap();
    stage(&a, file, 0, b"after all", When::Now).unwrap();
}

/// Torn, stale, duplicated and flipped lines are told from each other and from sound ones.
#[test]
fn bad_records_are_told_apart() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    let locks = LocalLocks::default();
    let pool = six_records(&medium, &locks);
    let clean = medium.bytes();
    let log = log_of(&pool);
    let place = |position| TINY.record(log, position) as usize;
    let reasons_at = |bytes: &[u8], by: u64| -> Vec<(u64, Rejection)> {
        let pool = open(Memory::new(bytes), &locks, boot(by)).unwrap();
        let found = pool.scan().unwrap();
        found
            .rejected
            .into_iter()
            .map(|rejected| (rejected.offset, rejected.reason))
            .collect()
    };
    let reasons = |bytes: &[u8]| reasons_at(bytes, 1);
    assert_eq!(reasons(&clean), []);

    let mut flipped = clean.clone();
    flipped[place(2) + 30] ^= 0x10;
    assert_eq!(
        reasons(&flipped),
        [(place(2) as u64, Rejection::BitFlip { bit: 244 })]
    );

    let mut torn = clean.clone();
    torn[place(5) + 24..place(5) + 64].fill(0);
    assert_eq!(reasons(&torn), [(place(5) as u64, Rejection::Torn)]);

    let mut unreadable = clean.clone();
    unreadable[place(3) + 24..place(3) + 64].fill(0);
    assert_eq!(
        reasons(&unreadable),
        [(place(3) as u64, Rejection::Unreadable)]
    );

    // A copy at another place is not believed, because the place is in its CRC.
    let mut copied = clean.clone();
    copied.copy_within(place(1)..place(1) + 64, place(9));
    assert_eq!(reasons(&copied), [(place(9) as u64, Rejection::Torn)]);

    // The same sequence number, sealed for its place: a duplicate.
    let mut duplicate = clean.clone();
    let mut line: [u8; 64] = clean[place(1)..place(1) + 64].try_into().unwrap();
    let crc = crc_of_record(&line, &UUID, log, 9);
    line[..4].copy_from_slice(&crc.to_le_bytes());
    duplicate[place(9)..place(9) + 64].copy_from_slice(&line);
    assert_eq!(
        reasons(&duplicate),
        [(place(9) as u64, Rejection::Duplicate)]
    );

    // Staged bytes that are not the logged ones.
    let mut scribbled = clean.clone();
    let record = Record::decode(&clean[place(4)..place(4) + 64].try_into().unwrap());
    scribbled[record.pool_offset as usize] ^= 1;
    assert_eq!(
        reasons(&scribbled),
        [(place(4) as u64, Rejection::DataMismatch)]
    );
    // What came later says that they were durable once, in whatever boot; of the last ones nothing does, but without a
    // power cut nothing is missing.
    let mismatch = |nth, reason| vec![(place(nth) as u64, reason)];
    assert_eq!(
        reasons_at(&scribbled, 2),
        mismatch(4, Rejection::DataMismatch)
    );
    let mut last = clean.clone();
    let record = Record::decode(&clean[place(5)..place(5) + 64].try_into().unwrap());
    last[record.pool_offset as usize] ^= 1;
    assert_eq!(reasons(&last), mismatch(5, Rejection::DataMismatch));
    assert_eq!(reasons_at(&last, 2), mismatch(5, Rejection::TornData));

    // An older generation is a leftover, no fault; a later one is.
    for (by, reason) in [(1_u32, None), (u32::MAX, Some(Rejection::Future))] {
        let mut bytes = clean.clone();
        let at = TINY.chunk_word(log) as usize;
        let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let word = ChunkWord::decode(word).unwrap();
        let word = ChunkWord {
            generation: word.generation.wrapping_add(by),
            ..word
        };
        bytes[at..at + 8].copy_from_slice(&word.encode().to_le_bytes());
        let pool = open(Memory::new(&bytes), &locks, boot(1)).unwrap();
        let found = pool.scan().unwrap();
        assert!(found.is_empty());
        match reason {
            None => assert_eq!((found.counts.stale, found.rejected.len()), (6, 0)),
            Some(reason) => assert!(found.rejected.iter().all(|r| r.reason == reason)),
        }
    }

    // A damaged chunk word hides nothing: the lines of its chunk are believed by themselves.
    let mut hidden = clean.clone();
    hidden[TINY.chunk_word(log) as usize] ^= 1;
    let pool = open(Memory::new(&hidden), &locks, boot(1)).unwrap();
    assert_eq!(pool.scan().unwrap().counts.live, 6);
    assert_eq!(pool.check().unwrap().problems.len(), 1);
    let a = pool.attach().unwrap();
    assert_eq!(
        pool.scan().unwrap().counts.live,
        6,
        "and the first to attach mends it"
    );
    assert!(pool.check().unwrap().is_sound());
    drop(a);
}
