//! Whose an entry of the file table is, for those who hold a file: that it has ended is told from damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use adit_pmem::Medium;
use adit_pool::layout::{ChunkKind, FileEntry, NAME_PAGES, Name, PAGE, SHARED, Shared};
use adit_pool::{Error, FileRef, LocalLocks, Pool, When};

use crate::common::*;
use crate::memory::Memory;
use crate::pools::*;
use crate::replay::replayed;

fn new_pool(slow: bool) -> (Memory, Arc<Pool<Memory>>) {
    let medium = of(&vec![0; tiny_size(8) as usize], slow);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    (medium, pool)
}

/// A bit that changes in what says that an entry is a file's is no end of its staging: whoever believed that went on with
/// the base file, which lacks what is staged.
#[test]
fn a_flipped_bit_ends_no_staging() {
    for slow in [false, true] {
        let (medium, pool) = new_pool(slow);
        let a = pool.attach().unwrap();
        let file = a.enter_file(&name(1)).unwrap();
        stage(&a, file, 0, b"staged", When::Now).unwrap();
        let entry = entry_of(&pool, file);
        for bit in 0..128 {
            let word = entry + bit / 64 * 8;
            let sound = medium.load(word).unwrap();
            medium.store(word, sound ^ 1 << (bit % 64)).unwrap();
            let what = format!("slow: {slow}, bit {bit}");
            for live in [pool.ensure_live(file), pool.ensure_not_forgotten(file)] {
                assert!(
                    matches!(live, Ok(()) | Err(Error::Damaged { .. })),
                    "{what}: {live:?}"
                );
            }
            let over = pool.is_durably_forgotten(file);
            assert!(
                matches!(over, Ok(false) | Err(Error::Damaged { .. })),
                "{what}: {over:?}"
            );
            for retired in [pool.retired(file), pool.seen_retired(file)] {
                assert!(
                    matches!(retired, Err(Error::Damaged { .. })),
                    "{what}: {retired:?}"
                );
            }
            let locked = a.lock_file(file).map(drop);
            assert!(
                matches!(locked, Ok(()) | Err(Error::Damaged { .. })),
                "{what}: {locked:?}"
            );
            medium.store(word, sound).unwrap();
            pool.ensure_live(file).unwrap();
        }
        // The end is none the less told from that, also of a file whose entry is another's by now.
        a.forget_file(file).unwrap();
        assert!(matches!(pool.ensure_live(file), Err(Error::Forgotten)));
        let next = (2..7).map(|nth| a.enter_file(&name(nth))).find(|next| {
            next.as_ref()
                .is_ok_and(|next| entry_of(&pool, *next) == entry)
        });
        next.unwrap().unwrap();
        assert!(matches!(pool.ensure_live(file), Err(Error::Forgotten)));
        assert!(matches!(pool.retired(file), Ok(u64::MAX)));
    }
}

fn entry_of<M: Medium>(pool: &Pool<M>, file: FileRef) -> u64 {
    let index = file.id() & ((1 << FileEntry::INDEX_BITS) - 1);
    pool.geometry().file_entry(index as u32)
}

/// What is seen in part of an entry that is just being given up, or made, is no damage.
#[test]
fn an_entry_that_changes_hands_is_not_damaged() {
    for slow in [false, true] {
        let (_medium, pool) = new_pool(slow);
        let a = pool.attach().unwrap();
        let first = a.enter_file(&name(1)).unwrap();
        let seen = AtomicU64::new(first.id());
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watchers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        while !ends.load(Ordering::Relaxed) {
                            let file = FileRef::from_id(seen.load(Ordering::Relaxed));
                            let live = pool.ensure_live(file);
                            assert!(matches!(live, Ok(()) | Err(Error::Forgotten)), "{live:?}");
                            let retired = pool.seen_retired(file);
                            assert!(matches!(retired, Ok(0 | u64::MAX)), "{retired:?}");
                        }
                    })
                })
                .collect();
            let handed_on = (0..2000).try_fold(first, |file, _| {
                a.forget_file(file)?;
                let next = a.enter_file(&name(1))?;
                seen.store(next.id(), Ordering::Relaxed);
                Ok::<_, Error>(next)
            });
            ends.store(true, Ordering::Relaxed);
            handed_on.unwrap();
            watchers
                .into_iter()
                .for_each(|watcher| watcher.join().unwrap());
        });
    }
}

/// A pool whose last user has died, with one acknowledged record of a file, and where that lies.
fn with_one_record(slow: bool) -> (Vec<u8>, FileRef, u64) {
    let (medium, pool) = new_pool(slow);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    stage(&a, file, 0, b"older", When::Now).unwrap();
    let found = pool.scan().unwrap();
    let at = found.records(&pool, file).next().unwrap().unwrap().at;
    drop(a);
    (medium.bytes(), file, at)
}

fn of(bytes: &[u8], slow: bool) -> Memory {
    if slow {
        Memory::slow(bytes)
    } else {
        Memory::new(bytes)
    }
}

/// Words of an entry that say whose it is, or how much of it counts.
const CHECKED: [(usize, usize); 2] = [
    (0, std::mem::offset_of!(FileEntry, modified)),
    (
        std::mem::offset_of!(FileEntry, retired),
        std::mem::offset_of!(FileEntry, lock),
    ),
];

/// A damaged entry is neither passed over by who looks for the file nor made anew beside: all say which it is, its record is
/// reported and kept, and the file, once the bit is repaired, has the one entry that it had. Others are staged beside it.
#[test]
fn a_file_with_a_damaged_entry_gets_no_second_one() {
    let (bytes, file, record) = with_one_record(false);
    let entry = TINY.file_entry(file.id() as u32 & 0xff_ffff);
    for bit in CHECKED.iter().flat_map(|(from, to)| from * 8..to * 8) {
        let medium = of(&bytes, false);
        let flip = || {
            let at = entry + bit as u64 / 64 * 8;
            let word = medium.load(at).unwrap();
            medium.store(at, word ^ 1 << (bit % 64)).unwrap();
        };
        flip();
        let pool = open(medium.clone(), &LocalLocks::default(), boot(2)).unwrap();
        let is_named = |error: Error| match error {
            Error::Damaged { offset, .. } => offset == entry,
            _ => false,
        };
        assert!(pool.find_file(&name(1)).is_err_and(is_named), "bit {bit}");
        let a = pool.attach().unwrap();
        // Whoever asks first whether anything is staged at all asks for the file, too.
        assert!(pool.anything_staged(), "bit {bit}");
        assert!(pool.find_file(&name(1)).is_err_and(is_named), "bit {bit}");
        assert!(a.enter_file(&name(1)).is_err_and(is_named), "bit {bit}");
        let other = a.enter_file(&name(2)).unwrap();
        stage(&a, other, 0, b"other", When::Now).unwrap();
        let problems = pool.check().unwrap().problems;
        let at: Vec<u64> = problems.iter().map(|problem| problem.offset).collect();
        assert_eq!(at, [entry, record], "bit {bit}: {problems:?}");
        assert_eq!(pool.dump().unwrap().rejected[0].offset, record, "bit {bit}");
        flip();
        assert_eq!(pool.find_file(&name(1)).unwrap(), Some(file), "bit {bit}");
        let found = pool.scan().unwrap();
        let seen = replayed(&pool, &found, file, b"").unwrap();
        assert!(seen == b"older", "bit {bit}");
    }
}

/// The same of a name: an entry that is found and belongs to nobody by name is the file's that it is found by.
#[test]
fn a_file_with_a_damaged_name_gets_no_second_entry() {
    for slow in [false, true] {
        let (bytes, file, _) = with_one_record(slow);
        let looked = open(of(&bytes, slow), &LocalLocks::default(), boot(1)).unwrap();
        let chunks = 0..looked.chunk_count().unwrap();
        let is_names = |chunk: &u32| {
            let word = looked.chunk_word(*chunk).unwrap();
            word.is_some_and(|word| word.kind == ChunkKind::Names)
        };
        let chunk = chunks.clone().find(is_names).unwrap();
        let index = u64::from(file.id() as u32 & 0xff_ffff);
        let place = TINY.chunk(chunk) + index % TINY.names_per_chunk() * NAME_PAGES * PAGE;
        for bit in 0..(Name::SIZE + 12) * 8 {
            let medium = of(&bytes, slow);
            let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
            let a = pool.attach().unwrap();
            let at = place + bit as u64 / 64 * 8;
            let word = medium.load(at).unwrap();
            medium.store(at, word ^ 1 << (bit % 64)).unwrap();
            let is_named =
                |error: Error| matches!(error, Error::Damaged { offset, .. } if offset == place);
            let what = format!("slow: {slow}, bit {bit}");
            assert!(pool.find_file(&name(1)).is_err_and(is_named), "{what}");
            assert!(a.enter_file(&name(1)).is_err_and(is_named), "{what}");
            a.enter_file(&name(2)).unwrap();
        }
    }
}

/// Who makes an entry has the files lock over syncs of the device, which may take longer than anybody is waited for: he says so,
/// and who wants the lock waits for him.
#[test]
fn who_makes_an_entry_is_waited_for() {
    let (medium, pool) = new_pool(true);
    let (one, other) = (pool.attach().unwrap(), pool.attach().unwrap());
    let lock = SHARED + std::mem::offset_of!(Shared, files_lock) as u64;
    let (waits, go_on) = medium.hold_next_fence();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| one.enter_file(&name(1)));
        waits.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(medium.load(lock).unwrap() >> 63, 1);
        let second = scope.spawn(|| other.enter_file(&name(2)));
        adit_pmem::rest(Duration::from_millis(2500));
        assert!(!second.is_finished());
        go_on.send(()).unwrap();
        for entered in [first, second] {
            entered.join().unwrap().unwrap();
        }
    });
    assert_eq!(medium.load(lock).unwrap(), 0);
}
