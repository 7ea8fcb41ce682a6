//! Whose an entry of the file table is, for those who hold a file: that it has ended is told from damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_pmem::Medium;
use adit_pool::layout::FileEntry;
use adit_pool::{Error, FileRef, LocalLocks, Pool, When};

use crate::common::*;
use crate::memory::Memory;
use crate::pools::*;

fn new_pool(slow: bool) -> (Memory, Arc<Pool<Memory>>) {
    let bytes = vec![0; tiny_size(8) as usize];
    let medium = if slow {
        Memory::slow(&bytes)
    } else {
        Memory::new(&bytes)
    };
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
