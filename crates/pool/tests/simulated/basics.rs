//! One process, no crash: what is staged is found, what is retired is gone, what is freed comes back.

use adit_pmem::Medium as _;
use adit_pool::layout::{FileEntry, Geometry, Record, SHARED, Shared, Slot};
use adit_pool::{Error, Extent, FileName, FileRef, LocalLocks, Op, PUBLISHER, Pool, When};
use adit_sim::SimMedium;

use crate::common::*;
use crate::memory::Memory;
use crate::pools::*;
use crate::replay::replayed;

fn tiny(chunks: u32) -> (SimMedium, LocalLocks) {
    let medium = SimMedium::new(tiny_size(chunks));
    Pool::create(&medium, &options(TINY)).expect("create");
    (medium, LocalLocks::default())
}

/// Two that find the same chunk settled would both give it back, the second one perhaps when it is the
/// log again. So the second waits while the first is under way.
#[test]
fn one_thread_at_a_time_reclaims() {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    Pool::create(&medium, &options(TINY)).expect("create");
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let a = Arc::new(pool.attach().unwrap());
    let file = a.enter_file(&name(1)).unwrap();
    for _ in 0..2 {
        stage(&a, file, 0, &[1; 100], When::Now).unwrap();
    }
    let found = pool.scan().unwrap();
    let first = found.records(&pool, file).next().unwrap().unwrap();
    a.lock_file(file).unwrap().retire(2).unwrap();
    let (second_is_out, out) = channel();
    let second = Arc::clone(&a);
    let beside_the_first = move || {
        std::thread::spawn(move || second_is_out.send(second.reclaim()));
        // Long enough for the second to come through, if anything let it.
        let early = out.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "both are in");
    };
    medium.when_read(first.at, beside_the_first);
    assert_eq!(a.reclaim().unwrap(), 2);
    assert!(medium.was_read());
}

/// Where a fence is a sync of the kernel, one for each record would take minutes: files' records lie between each
/// other. One for each file whose mark may not be durable is enough, that is, whose lock somebody has.
#[test]
fn collecting_makes_each_mark_durable_once() {
    let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).expect("create");
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (a, other) = (pool.attach().unwrap(), pool.attach().unwrap());
    let files = [1, 2, 3, 4].map(|n| a.enter_file(&name(n)).unwrap());
    for round in 0..20 {
        for file in files {
            stage(&a, file, round * 100, &[1; 100], When::Now).unwrap();
        }
    }
    let retire = |file| a.lock_file(file).unwrap().retire(20).unwrap();
    // Of the others, nothing is retired.
    files[..2].iter().copied().for_each(retire);
    let fences_of = |collect: &dyn Fn() -> u64, collected: u64| {
        let before = medium.fences();
        assert_eq!(collect(), collected);
        medium.fences() - before
    };
    let held = files.map(|file| other.lock_file(file).unwrap());
    assert_eq!(fences_of(&|| a.reclaim().unwrap(), 40), 2);
    drop(held);
    retire(files[2]);
    assert_eq!(fences_of(&|| a.reclaim().unwrap(), 20), 0);
}

/// A look at a mark, or at whether a file was forgotten, takes a fence only where somebody who changes it may not have
/// made his own yet; also where its entry is another's.
#[test]
fn what_is_durable_is_looked_at_without_a_fence() {
    let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).expect("create");
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (one, other) = (pool.attach().unwrap(), pool.attach().unwrap());
    let file = one.enter_file(&name(1)).unwrap();
    one.lock_file(file).unwrap().set_end(0).unwrap();
    let last = stage(&one, file, 0, b"bytes", When::Now).unwrap();
    let fences_of_looks = |held: bool, retired: u64| {
        let before = medium.fences();
        assert_eq!(pool.retired(file).unwrap(), retired);
        let forgotten = matches!(pool.ensure_not_forgotten(file), Err(Error::Forgotten));
        assert_eq!(forgotten, retired == u64::MAX);
        let known = pool.is_durably_forgotten(file).unwrap();
        assert_eq!(known, forgotten && !held, "takes no fence of its own");
        let fences = 1 + u64::from(forgotten);
        assert_eq!(medium.fences() - before, if held { fences } else { 0 });
    };
    let mut guard = one.lock_file(file).unwrap();
    guard.retire(last).unwrap();
    fences_of_looks(true, last);
    drop(guard);
    fences_of_looks(false, last);
    std::thread::scope(|scope| {
        let (waits, go_on) = medium.hold_next_fence();
        let forget = scope.spawn(|| one.forget_file(file));
        waits.recv().unwrap();
        fences_of_looks(true, u64::MAX);
        go_on.send(()).unwrap();
        forget.join().unwrap().unwrap();
    });
    fences_of_looks(false, u64::MAX);
    let next = other.enter_file(&name(2)).unwrap();
    let _held = other.lock_file(next).unwrap();
    fences_of_looks(false, u64::MAX);
}

/// Who closes a file waits for a sync on a disk. Others did as well, one after the other, as it was waited for under a lock
/// that all have in common; and the last gave up.
#[test]
fn a_file_is_entered_while_another_is_being_forgotten() {
    let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).expect("create");
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (one, other) = (pool.attach().unwrap(), pool.attach().unwrap());
    let files = [1, 2].map(|nth| one.enter_file(&name(nth)).unwrap());
    let place = |file: adit_pool::FileRef| file.id() & 0xff_ffff;
    std::thread::scope(|scope| {
        let (waits, go_on) = medium.hold_next_fence();
        let forget = scope.spawn(|| one.forget_file(files[0]));
        waits.recv().unwrap();
        // Another is forgotten, and two are entered: one in its place, none in that of the first.
        other.forget_file(files[1]).unwrap();
        let entered = [3, 4, 5].map(|nth| place(other.enter_file(&name(nth)).unwrap()));
        assert_eq!(entered, [1, 2, 3]);
        // When there is no other place, that one is waited for.
        let last = scope.spawn(|| other.enter_file(&name(6)));
        adit_pmem::rest(std::time::Duration::from_millis(20));
        assert!(!last.is_finished());
        go_on.send(()).unwrap();
        forget.join().unwrap().unwrap();
        assert_eq!(place(last.join().unwrap().unwrap()), place(files[0]));
        let refused = other.enter_file(&name(7));
        assert!(matches!(refused, Err(Error::TooManyFiles { limit: 4 })));
    });
}

/// A loss of power would bring back what the file had before, beside what it has.
#[test]
fn a_file_is_not_entered_again_before_it_is_forgotten_durably() {
    for slow in [false, true] {
        let new = if slow { Memory::slow } else { Memory::new };
        let medium = new(&vec![0; tiny_size(12) as usize]);
        Pool::create(&medium, &options(TINY)).expect("create");
        let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
        let (one, other) = (pool.attach().unwrap(), pool.attach().unwrap());
        let file = one.enter_file(&name(1)).unwrap();
        let renamed = adit_pool::FileName {
            path: b"/another/path".to_vec(),
            ..name(1)
        };
        std::thread::scope(|scope| {
            let (waits, go_on) = medium.hold_next_fence();
            let forget = scope.spawn(|| one.forget_file(file));
            waits.recv().unwrap();
            let again = scope.spawn(|| other.enter_file(&renamed).unwrap());
            adit_pmem::rest(std::time::Duration::from_millis(20));
            assert!(!again.is_finished(), "slow: {slow}");
            go_on.send(()).unwrap();
            forget.join().unwrap().unwrap();
            assert_ne!(again.join().unwrap(), file);
        });
    }
}

/// Whoever sees the mark of one who failed over it makes it durable, or does not believe it.
/// A pool that its user has asked for stages files of several file systems; an image and its copy have the same handles.
#[test]
fn a_file_of_another_device_is_another_file() {
    let (medium, locks) = tiny(10);
    let pool = open(medium.clone(), &locks, boot(1)).unwrap();
    let attachment = pool.attach().unwrap();
    let file = attachment.enter_file(&name(1)).unwrap();
    let copy = FileName {
        device: name(1).device + 1,
        ..name(1)
    };
    assert_eq!(pool.find_file(&copy).unwrap(), None);
    let entered = attachment.enter_file(&copy);
    assert!(matches!(entered, Err(Error::OtherDevice)), "{entered:?}");
    assert_eq!(pool.find_file(&name(1)).unwrap(), Some(file));
    stage(&attachment, file, 0, &[5; 100], When::Now).unwrap();
    drop(attachment);
    // Now its device may have that number.
    let pool = open(medium, &locks, boot(2)).unwrap();
    let attachment = pool.attach().unwrap();
    assert_eq!(attachment.enter_file(&copy).unwrap(), file);
    attachment.forget_file(file).unwrap();
    let copied = attachment.enter_file(&copy).unwrap();
    assert_eq!(pool.find_file(&copy).unwrap(), Some(copied));
}

#[test]
fn a_file_is_retired_when_that_is_durable() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (one, other) = (pool.attach().unwrap(), pool.attach().unwrap());
    let file = one.enter_file(&name(1)).unwrap();
    one.lock_file(file).unwrap().set_end(0).unwrap();
    let last = stage(&one, file, 0, b"bytes", When::Now).unwrap();
    medium.refuse_write_backs(true);
    assert!(one.lock_file(file).unwrap().retire(last).is_err());
    assert_eq!(pool.seen_retired(file).unwrap(), last);
    assert!(pool.retired(file).is_err());
    assert!(one.lock_file(file).is_err() && other.lock_file(file).is_err());
    assert!(one.reclaim().is_err());
    medium.refuse_write_backs(false);
    let before = medium.fences();
    assert_eq!(pool.retired(file).unwrap(), last);
    assert_eq!(medium.fences() - before, 1);
    other.lock_file(file).unwrap().retire(last).unwrap();
    assert_eq!(one.reclaim().unwrap(), 1);
}

/// Who waits for a file that was forgotten may get the lock of a dead owner, and of the next file that has the entry.
#[test]
fn who_waits_for_a_forgotten_file_leaves_what_a_dead_owner_left_of_the_next() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (dead, alive) = (pool.attach().unwrap(), pool.attach().unwrap());
    let file = dead.enter_file(&name(1)).unwrap();
    dead.forget_file(file).unwrap();
    let next = dead.enter_file(&name(2)).unwrap();
    dead.lock_file(next).unwrap().set_end(0).unwrap();
    let op = fill(&dead, 0, b"next").unwrap();
    let mut guard = dead.lock_file(next).unwrap();
    let end = TINY.file_entry(0) + std::mem::offset_of!(FileEntry, end) as u64;
    medium.break_word(Some(end));
    assert!(guard.append(&op, When::Now).is_err());
    std::mem::forget(guard);
    drop(dead);
    medium.break_word(None);
    let locked = alive.lock_file(file).map(drop);
    assert!(matches!(locked, Err(Error::Forgotten)), "{locked:?}");
    assert_eq!(alive.lock_file(next).unwrap().end().unwrap(), Some(4));
}

/// Everybody who comes or goes waits for who gives back what he had.
#[test]
fn chunks_are_given_back_with_one_fence() {
    let medium = Memory::slow(&vec![0; tiny_size(16) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (a, _other) = (pool.attach().unwrap(), pool.attach().unwrap());
    for _ in 0..2 {
        let extents: Vec<_> = (0..6).map(|_| a.alloc(8192).unwrap()).collect();
        extents
            .into_iter()
            .for_each(|extent| a.free(extent).unwrap());
        let before = medium.fences();
        assert_eq!(a.release_empty().unwrap(), 6);
        assert_eq!(a.release_empty().unwrap(), 0);
        assert_eq!(medium.fences() - before, 1);
    }
    for _ in 0..6 {
        a.alloc(8192).unwrap();
    }
    let fences_of_detaching = |attachment: adit_pool::Attachment<Memory>| {
        let before = medium.fences();
        attachment.detach().unwrap();
        medium.fences() - before
    };
    let without = fences_of_detaching(pool.attach().unwrap());
    assert_eq!(fences_of_detaching(a), without + 1);
    assert_eq!(pool.free_chunks().unwrap(), 16);
}

#[test]
fn staged_bytes_are_found_and_retired() {
    let (medium, locks) = tiny(8);
    let pool = open(medium.clone(), &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    assert!(!pool.anything_staged());
    let file = a.enter_file(&name(1)).unwrap();
    assert!(pool.anything_staged());
    assert_eq!(a.enter_file(&name(1)).unwrap(), file, "entered once");
    assert_eq!(pool.find_file(&name(1)).unwrap(), Some(file));
    assert_eq!(pool.find_file(&name(2)).unwrap(), None);
    assert_eq!(pool.file_name(file).unwrap(), name(1));

    assert_eq!(stage(&a, file, 0, b"hello ", When::WithCommit).unwrap(), 1);
    assert_eq!(
        stage(&a, file, 6, &[b'x'; 5000], When::WithCommit).unwrap(),
        2
    );
    let mut guard = a.lock_file(file).unwrap();
    guard.append(&Op::Truncate { size: 8 }, When::Now).unwrap();
    drop(guard);

    let found = pool.scan().unwrap();
    assert_eq!(found.counts.live, 3, "{:?}", found.counts);
    assert_eq!(found.rejected, []);
    assert_eq!(replayed(&pool, &found, file, b"").unwrap(), b"hello xx");
    assert_eq!(found.end_after(&pool, file, 0).unwrap(), 8);

    let mut bases = Bases::new();
    publish_all(&a, &mut bases).unwrap();
    assert_eq!(bases[&name(1).path], b"hello xx");
    assert!(pool.scan().unwrap().is_empty());
    a.forget_file(file).unwrap();
    assert!(!pool.anything_staged());
    assert!(matches!(a.lock_file(file), Err(Error::Forgotten)));
    a.detach().unwrap();
    assert_eq!(
        pool.superblock().unwrap().flags,
        1,
        "clean after the last one left"
    );
}

#[test]
fn the_dead_leave_what_they_acknowledged() {
    let (medium, locks) = tiny(8);
    let file = {
        let pool = open(medium.clone(), &locks, boot(1)).unwrap();
        let a = pool.attach().unwrap();
        let file = a.enter_file(&name(1)).unwrap();
        stage(&a, file, 0, b"one", When::WithCommit).unwrap();
        a.lock_file(file).unwrap().commit().unwrap();
        stage(&a, file, 3, b"two", When::WithCommit).unwrap();
        file
    };
    // Same boot: everything.
    let pool = open(medium.clone(), &locks, boot(1)).unwrap();
    let found = pool.scan().unwrap();
    assert_eq!(replayed(&pool, &found, file, b"").unwrap(), b"onetwo");
    assert!(found.files[0].orphaned);
    // Another boot: what was committed.
    let pool = open(medium, &locks, boot(2)).unwrap();
    let found = pool.scan().unwrap();
    assert_eq!(found.counts.uncommitted, 1);
    assert_eq!(replayed(&pool, &found, file, b"").unwrap(), b"one");
    // The first to attach keeps what counts, and new records come behind it.
    let a = pool.attach().unwrap();
    assert_eq!(a.recovery().unwrap().counts.live, 2);
    assert!(stage(&a, file, 3, b"TWO", When::Now).unwrap() > 3);
    let found = pool.scan().unwrap();
    assert_eq!(replayed(&pool, &found, file, b"").unwrap(), b"oneTWO");
    let mut bases = Bases::new();
    publish_all(&a, &mut bases).unwrap();
    a.forget_file(file).unwrap();
    let free = pool.free_chunks().unwrap();
    a.detach().unwrap();
    assert!(pool.free_chunks().unwrap() > free);
    assert_eq!(pool.superblock().unwrap().flags, 1);
}

/// A lock that was taken from a dead owner stays a dead one's until what he left is repaired.
#[test]
fn who_cannot_repair_leaves_that_to_the_next() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (dead, alive) = (pool.attach().unwrap(), pool.attach().unwrap());
    let file = dead.enter_file(&name(1)).unwrap();
    dead.lock_file(file).unwrap().set_end(0).unwrap();
    stage(&dead, file, 0, b"one", When::Now).unwrap();
    let op = fill(&dead, 3, b"two").unwrap();
    let mut guard = dead.lock_file(file).unwrap();
    // It dies when its record is there and before the end of the file shows it: the lock is never released.
    let end = TINY.file_entry(0) + std::mem::offset_of!(FileEntry, end) as u64;
    medium.break_word(Some(end));
    assert!(guard.append(&op, When::Now).is_err());
    std::mem::forget(guard);
    drop(dead);
    for _ in 0..2 {
        assert!(alive.lock_file(file).is_err());
        let report = pool.check().unwrap();
        assert_eq!(report.problems, []);
        let left = |note: &&adit_pool::Problem| note.structure == "lock";
        assert_eq!(report.notes.iter().filter(left).count(), 1);
    }
    medium.break_word(None);
    assert_eq!(alive.lock_file(file).unwrap().end().unwrap(), Some(6));
    let found = pool.scan().unwrap();
    assert_eq!(replayed(&pool, &found, file, b"").unwrap(), b"onetwo");
}

/// It was believed by the one who had failed: he gave his lease up, and the old records came back over what somebody
/// wrote to the file afterwards.
#[test]
fn a_file_is_forgotten_when_that_is_durable() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (one, other) = (pool.attach().unwrap(), pool.attach().unwrap());
    let file = one.enter_file(&name(1)).unwrap();
    medium.refuse_write_backs(true);
    assert!(one.forget_file(file).is_err());
    for attachment in [&one, &other] {
        let locked = attachment.lock_file(file).map(drop);
        assert!(
            !matches!(locked, Ok(()) | Err(Error::Forgotten)),
            "{locked:?}"
        );
    }
    medium.refuse_write_backs(false);
    let locked = other.lock_file(file).map(drop);
    assert!(matches!(locked, Err(Error::Forgotten)), "{locked:?}");
    assert_eq!(pool.check().unwrap().problems, []);
    // Its place is another file's.
    let next = other.enter_file(&name(2)).unwrap();
    other.lock_file(next).unwrap().set_end(0).unwrap();
    stage(&other, next, 0, b"next", When::Now).unwrap();
}

/// What is committed by two files at once is void when a bit of one is rotten. What the other has committed by itself
/// afterwards is not, nor is what lies before it.
#[test]
fn a_file_outlives_another_that_it_was_committed_with() {
    let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let one = pool.attach().unwrap();
    let files = [1, 2].map(|nth| one.enter_file(&name(nth)).unwrap());
    for (file, bytes) in files.into_iter().zip([&b"will rot"[..], b"goes on"]) {
        one.lock_file(file).unwrap().set_end(0).unwrap();
        stage(&one, file, 0, bytes, When::WithCommit).unwrap();
    }
    let mut guards = files.map(|file| one.lock_file(file).unwrap());
    one.commit_together(&mut guards).unwrap();
    drop(guards);
    stage(&one, files[1], 7, b", and on", When::WithCommit).unwrap();
    one.lock_file(files[1]).unwrap().commit().unwrap();
    drop((one, pool));

    let mut bytes = medium.bytes();
    let rotten = bytes.windows(8).position(|bytes| bytes == b"will rot");
    bytes[rotten.unwrap()] ^= 1;
    let medium = Memory::slow(&bytes);
    // Twice, as what is found must not depend on what was cleaned up.
    for nth in [2, 3] {
        let pool = open(medium.clone(), &LocalLocks::default(), boot(nth)).unwrap();
        let next = pool.attach().unwrap();
        let found = next.scan().unwrap();
        assert_eq!(
            replayed(&pool, &found, files[1], b"").unwrap(),
            b"goes on, and on"
        );
        drop(next);
    }
}

/// Where a commit is written when all before it is durable, what rots of that is lost alone: the next common commit counts
/// for both files, or it would for one of them alone.
#[test]
fn a_common_commit_outlives_the_one_before() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let one = pool.attach().unwrap();
    let files = [1, 2].map(|nth| one.enter_file(&name(nth)).unwrap());
    for file in files {
        one.lock_file(file).unwrap().set_end(0).unwrap();
    }
    for (at, written) in [(0, ["will rot", "goes on "]), (8, ["stays", "and on"])] {
        for (file, bytes) in files.into_iter().zip(written) {
            stage(&one, file, at, bytes.as_bytes(), When::WithCommit).unwrap();
        }
        let mut guards = files.map(|file| one.lock_file(file).unwrap());
        one.commit_together(&mut guards).unwrap();
    }
    drop((one, pool));

    let mut bytes = medium.bytes();
    let rotten = bytes.windows(8).position(|bytes| bytes == b"will rot");
    bytes[rotten.unwrap()] ^= 1;
    let medium = Memory::new(&bytes);
    for nth in [2, 3] {
        let pool = open(medium.clone(), &LocalLocks::default(), boot(nth)).unwrap();
        let next = pool.attach().unwrap();
        let found = next.scan().unwrap();
        let left = files.map(|file| replayed(&pool, &found, file, b"").unwrap());
        assert_eq!(left, [&b"\0\0\0\0\0\0\0\0stays"[..], b"goes on and on"]);
        drop(next);
    }
}

/// A pool that many can attach to and that has many files, on a medium whose fences are syncs of the kernel.
fn crowded() -> (Memory, LocalLocks) {
    let geometry = Geometry {
        max_chunks: 256,
        slot_count: 40,
        file_count: 40,
        ..TINY
    };
    let medium = Memory::slow(&vec![0; geometry.chunk(200) as usize]);
    Pool::create(&medium, &options(geometry)).unwrap();
    (medium, LocalLocks::default())
}

/// After a power cut the pool opens in as many syncs, however many files have nothing left that counts.
#[test]
fn entries_that_are_stale_are_emptied_with_one_fence() {
    let fences = [1, 40].map(|files: u8| {
        let (medium, locks) = crowded();
        let pool = open(medium.clone(), &locks, boot(1)).unwrap();
        let a = pool.attach().unwrap();
        for nth in 0..files {
            let file = a.enter_file(&name(nth)).unwrap();
            stage(&a, file, 0, b"nobody commits it", When::WithCommit).unwrap();
        }
        drop((a, pool));
        let pool = open(medium.clone(), &locks, boot(2)).unwrap();
        let before = medium.fences();
        let _next = pool.attach().unwrap();
        assert_eq!(pool.files().unwrap(), []);
        medium.fences() - before
    });
    assert_eq!(fences, [8; 2]);
}

/// So it is when the dead are buried, however many they are and however many chunks they had.
#[test]
fn the_dead_are_buried_with_few_fences() {
    let fences = [1, 30].map(|dead| {
        let (medium, locks) = crowded();
        let pool = open(medium.clone(), &locks, boot(1)).unwrap();
        let alive = pool.attach().unwrap();
        let file = alive.enter_file(&name(1)).unwrap();
        let seats: Vec<_> = (0..dead).map(|_| pool.attach().unwrap()).collect();
        for seat in &seats {
            stage(seat, file, 0, b"published by somebody", When::Now).unwrap();
        }
        let mut guard = alive.lock_file(file).unwrap();
        guard.retire(u64::from(dead)).unwrap();
        drop((guard, seats));
        let before = medium.fences();
        let released = alive.release_orphans().unwrap();
        let of_all = (released.slots, released.chunks, released.kept);
        assert_eq!(of_all, (dead, 2 * dead, 0), "each had a log and bytes");
        medium.fences() - before
    });
    assert_eq!(fences, [4; 2]);
}

/// What the next record of a file is chained to stays in the log, although it says nothing any more: a commit of which
/// everything is published, by somebody who has left. Without it nobody could tell what the next commit covers.
#[test]
fn what_the_next_record_is_chained_to_stays() {
    for (nth, forget) in [(0, false), (1, true)] {
        let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
        Pool::create(&medium, &options(TINY)).unwrap();
        let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
        let [one, other, third] = [0; 3].map(|_| pool.attach().unwrap());
        let file = one.enter_file(&name(1)).unwrap();
        one.lock_file(file).unwrap().set_end(0).unwrap();
        let last = stage(&one, file, 0, b"published", When::WithCommit).unwrap();
        let mut guard = one.lock_file(file).unwrap();
        for _ in 0..=nth {
            guard.commit().unwrap();
        }
        guard.retire(last).unwrap();
        drop(guard);
        one.detach().unwrap();
        assert_eq!(third.release_orphans().unwrap().kept, 1);

        stage(&other, file, 9, b", and on", When::WithCommit).unwrap();
        other.lock_file(file).unwrap().commit().unwrap();
        if forget {
            // When it is said to nobody any more, it goes.
            other.forget_file(file).unwrap();
            assert_eq!(third.release_orphans().unwrap().chunks, 1);
            continue;
        }
        drop((other, third, pool));
        for again in [2, 3] {
            let pool = open(medium.clone(), &LocalLocks::default(), boot(again)).unwrap();
            let next = pool.attach().unwrap();
            let found = next.scan().unwrap();
            let left = replayed(&pool, &found, file, b"published").unwrap();
            assert_eq!(left, b"published, and on", "boot {again}");
        }
    }
}

/// Who looks at the logs has no lock: bytes that a relink exchanges just then are no damage, and what they lie in is not
/// free.
#[test]
fn a_relink_beside_a_look_is_no_damage() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let locks = LocalLocks::default();
    let pool = open(medium.clone(), &locks, boot(1)).unwrap();
    let (one, publisher) = (pool.attach().unwrap(), pool.attach().unwrap());
    let file = one.enter_file(&name(1)).unwrap();
    one.lock_file(file).unwrap().set_end(0).unwrap();
    // Where a chunk begins a walk may look anyway.
    one.alloc(64).unwrap();
    let op = fill(&one, 0, &[7; 4096]).unwrap();
    let Op::Write { extent, .. } = op else {
        panic!("{op:?}");
    };
    let last = one.lock_file(file).unwrap().append(&op, When::Now).unwrap();
    // What the next record will be chained to stays anyway: another one, whose bytes are in another chunk.
    stage(&one, file, 4096, &[8; 8192], When::Now).unwrap();
    one.detach().unwrap();

    let relinks = {
        let medium = medium.clone();
        move || {
            let intent = adit_pool::Intent {
                file_offset: 0,
                pool_offset: extent.offset,
                len: extent.len,
                data_crc: crc32c::crc32c(&[7; 4096]),
            };
            let mut guard = publisher.lock_file(file).unwrap();
            guard.intend(last, &[intent]).unwrap();
            medium.write_streaming(extent.offset, &[0; 4096]).unwrap();
            drop(guard);
            std::mem::forget(publisher);
        }
    };
    medium.when_read(extent.offset, relinks);
    let looks = pool.attach().unwrap();
    let released = looks.release_orphans().unwrap();
    assert!(medium.was_read());
    assert_eq!((released.kept, released.chunks), (3, 0));
}

/// A record that is durable by itself counts only if the one before it is there, which may not count. So that stays in the
/// log, or the next look at the pool would find that neither does.
#[test]
fn what_a_record_that_counts_is_chained_to_stays() {
    let medium = Memory::slow(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let [one, other] = [0; 2].map(|_| pool.attach().unwrap());
    let file = one.enter_file(&name(1)).unwrap();
    one.lock_file(file).unwrap().set_end(0).unwrap();
    stage(&one, file, 0, b"nobody commits it", When::WithCommit).unwrap();
    stage(&other, file, 0, b"acknowledged", When::Now).unwrap();
    drop((one, other, pool));
    for again in [2, 3, 4] {
        let pool = open(medium.clone(), &LocalLocks::default(), boot(again)).unwrap();
        let next = pool.attach().unwrap();
        assert!(next.release_orphans().unwrap().kept >= 2, "boot {again}");
        let found = next.scan().unwrap();
        let left = replayed(&pool, &found, file, b"").unwrap();
        assert_eq!(left, b"acknowledged", "boot {again}");
    }
}

/// The next holder of a dead publisher's slot would be taken for him, and nobody else could publish.
#[test]
fn a_slot_is_given_on_without_what_it_claims() {
    let (medium, locks) = tiny(8);
    let pool = open(medium, &locks, boot(1)).unwrap();
    let (one, other) = (pool.attach().unwrap(), pool.attach().unwrap());
    let files = [1, 2].map(|nth| one.enter_file(&name(nth)).unwrap());
    let claims = [&other, &one].map(|by| u64::from(by.slot()) + 1);
    for (file, claim) in files.into_iter().zip(claims) {
        let claimed = |word| (word == 0).then_some(claim);
        assert!(pool.update_version(file, claimed).unwrap());
    }
    drop(other);
    assert_eq!(one.release_orphans().unwrap().slots, 1);
    let left = files.map(|file| pool.version(file).unwrap() & PUBLISHER);
    assert_eq!(left, [0, claims[1]]);
}

/// Or the pool would be made anew under whom it has.
#[test]
fn a_slot_that_says_it_is_free_is_not_believed() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let one = pool.attach().unwrap();
    let file = one.enter_file(&name(1)).unwrap();
    one.lock_file(file).unwrap().set_end(0).unwrap();
    stage(&one, file, 0, b"staged", When::Now).unwrap();
    let state = TINY.slot(one.slot()) + std::mem::offset_of!(Slot, state) as u64;
    medium.store(state, Slot::FREE).unwrap();
    assert!(matches!(
        pool.exclusive(),
        Err(Error::InUse { attached: 1 })
    ));
    let other = pool.attach().unwrap();
    assert_ne!(other.slot(), one.slot());
    stage(&one, file, 6, b" on", When::Now).unwrap();
    let found = other.scan().unwrap();
    assert_eq!(replayed(&pool, &found, file, b"").unwrap(), b"staged on");
}

/// There were none left when the disk had room again.
#[test]
fn who_cannot_attach_leaves_his_slot() {
    let medium = Memory::new(&vec![0; tiny_size(8) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let _one = pool.attach().unwrap();
    medium.refuse_write_backs(true);
    for _ in 0..2 * TINY.slot_count {
        let attached = pool.attach().map(drop);
        assert!(
            !matches!(attached, Ok(()) | Err(Error::NoSlot { .. })),
            "{attached:?}"
        );
    }
    medium.refuse_write_backs(false);
    let _other = pool.attach().unwrap();
}

#[test]
fn groups_count_whole_or_not_at_all() {
    let (medium, locks) = tiny(8);
    let pool = open(medium, &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    a.lock_file(file).unwrap().set_end(0).unwrap();
    let ops = [fill(&a, 0, b"abc").unwrap(), fill(&a, 3, b"def").unwrap()];
    let mut guard = a.lock_file(file).unwrap();
    guard.append_group(&ops, When::Now).unwrap();
    assert_eq!(guard.end().unwrap(), Some(6));
    drop(guard);
    let found = pool.scan().unwrap();
    assert_eq!(replayed(&pool, &found, file, b"").unwrap(), b"abcdef");
    assert_eq!(found.rejected, []);
}

#[test]
fn a_full_log_says_so_and_can_still_be_committed_and_emptied() {
    let (medium, locks) = tiny(12);
    let pool = open(medium, &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    a.limit_log(2);
    let file = a.enter_file(&name(1)).unwrap();
    let mut staged = 0;
    let mut bases = Bases::new();
    for round in 0..5 {
        let error = loop {
            let op = Op::Truncate { size: staged };
            match a.lock_file(file).unwrap().append(&op, When::WithCommit) {
                Ok(_) => staged += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::LogFull { chunks: 2 }), "{error}");
        a.lock_file(file).unwrap().commit().unwrap();
        publish_all(&a, &mut bases).unwrap();
        assert!(
            staged > 120 * (round + 1),
            "{staged} records in round {round}"
        );
    }
}

#[test]
fn a_full_pool_says_so_and_loses_nothing() {
    let (medium, locks) = tiny(6);
    let pool = open(medium, &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    let mut expected = Vec::new();
    for round in 0..3 {
        let error = loop {
            let page = vec![expected.len() as u8 ^ round; 4096];
            match stage(&a, file, expected.len() as u64, &page, When::Now) {
                Ok(_) => expected.extend(page),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert!(error.to_string().contains("publish"));
        let found = pool.scan().unwrap();
        let mut bases = Bases::new();
        bases.insert(
            name(1).path,
            expected[..expected.len() - found.counts.live as usize * 4096].to_vec(),
        );
        publish_all(&a, &mut bases).unwrap();
        assert_eq!(bases[&name(1).path], expected);
    }
}

#[test]
fn extents_never_overlap_and_all_come_back() {
    let (medium, locks) = tiny(8);
    let pool = open(medium, &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let mut held = Vec::new();
    let mut seed = 1_u64;
    for _ in 0..5000 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let len = match seed >> 33 & 3 {
            0 => 1 + (seed >> 40) as u32 % 64,
            1 => 1 + (seed >> 40) as u32 % 4096,
            _ => 1 + (seed >> 40) as u32 % 8192,
        };
        match a.alloc(len) {
            Ok(extent) => {
                assert_eq!(extent.offset % 64, 0);
                assert!(len < 4096 || extent.offset % 4096 == 0);
                held.push(extent);
            }
            Err(Error::Full { .. }) => {
                let nth = (seed >> 20) as usize % held.len();
                a.free(held.swap_remove(nth)).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        let mut sorted = held.clone();
        sorted.sort();
        for pair in sorted.windows(2) {
            assert!(
                pair[0].offset + u64::from(pair[0].len) <= pair[1].offset,
                "{pair:?}"
            );
        }
    }
    for extent in held {
        a.free(extent).unwrap();
    }
    let before = pool.free_chunks().unwrap();
    let released = a.release_empty().unwrap();
    assert_eq!(pool.free_chunks().unwrap(), before + released);
    assert!(released >= 6);
}

#[test]
fn many_files_then_too_many_then_again() {
    let (medium, locks) = tiny(8);
    let pool = open(medium, &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let files: Vec<_> = (0..4).map(|n| a.enter_file(&name(n)).unwrap()).collect();
    assert!(matches!(
        a.enter_file(&name(9)),
        Err(Error::TooManyFiles { limit: 4 })
    ));
    a.forget_file(files[2]).unwrap();
    let ninth = a.enter_file(&name(9)).unwrap();
    assert_ne!(ninth, files[2], "ids are never used twice");
    assert_eq!(pool.find_file(&name(2)).unwrap(), None);
    assert_eq!(pool.find_file(&name(9)).unwrap(), Some(ninth));
}

#[test]
fn growing_and_shrinking() {
    let (medium, locks) = tiny(4);
    let pool = open(medium.clone(), &locks, boot(1)).unwrap();
    let a = pool.attach().unwrap();
    let chunks = pool.chunk_count().unwrap();
    medium.grow(tiny_size(10));
    assert_eq!(a.grow_to(chunks + 6).unwrap(), chunks + 6);
    assert_eq!(pool.free_chunks().unwrap(), 10);
    // All but those that are kept for its log, which it does not have yet, and for a commit.
    let held: Vec<_> = std::iter::from_fn(|| a.alloc(8192).ok()).collect();
    assert_eq!((held.len(), pool.free_chunks().unwrap()), (8, 2));
    held.into_iter().for_each(|extent| a.free(extent).unwrap());
    let (b, mut cut) = (pool.attach().unwrap(), None);
    a.detach_and_cut(|to| cut = Some(to)).unwrap();
    assert_eq!(cut, None, "somebody is attached");
    let last = b.alloc(100).unwrap();
    b.free(last).unwrap();
    b.detach_and_cut(|to| cut = Some(to)).unwrap();
    assert_eq!(cut, Some(chunks));
    let a = pool.attach().unwrap();
    assert_eq!(pool.free_chunks().unwrap(), 4);
    assert_eq!(a.grow_to(chunks + 1).unwrap(), chunks + 1);
    assert_eq!(pool.free_chunks().unwrap(), 5);
    // Without a way to cut it, it keeps its size.
    a.detach().unwrap();
    let a = pool.attach().unwrap();
    assert_eq!(pool.free_chunks().unwrap(), 5);
    a.detach_and_cut(|_| {}).unwrap();
    assert_eq!(
        open(medium, &locks, boot(1))
            .unwrap()
            .chunk_count()
            .unwrap(),
        chunks
    );
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let medium = SimMedium::new(tiny_size(0));
    assert!(matches!(
        Pool::create(&medium, &options(TINY)),
        Err(Error::Invalid(_))
    ));
    let absurd = Geometry {
        chunk_shift: 60,
        ..TINY
    };
    assert!(matches!(
        Pool::create(&medium, &options(absurd)),
        Err(Error::Invalid(_))
    ));
    assert!(Geometry::default().is_valid());
    assert_eq!(Geometry::default().header_chunks(), 1);
}

/// Threads allocate, mark, look and give back at once: no two ever hold the same line.
#[test]
fn threads_never_share_an_extent() {
    let memory = Memory::new(&vec![0; tiny_size(10) as usize]);
    Pool::create(&memory, &options(TINY)).unwrap();
    let pool = open(memory.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let a = pool.attach().unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let (a, memory) = (&a, &memory);
            scope.spawn(move || {
                let mut rng = adit_sim::Rng::new(thread);
                let mut held = Vec::new();
                let marks = |extent: adit_pool::Extent| {
                    (0..u64::from(extent.len) / 64).map(move |line| extent.offset + line * 64)
                };
                for round in 0..20_000_u64 {
                    let lines = [1, 1, 2, 7, 63, 64, 100, 128][rng.below(8) as usize];
                    if held.len() < 6
                        && let Ok(extent) = a.alloc(lines * 64)
                    {
                        let mark = thread << 32 | round;
                        for at in marks(extent) {
                            // Swapped from zero: who finds another's mark shares its line.
                            let swapped = adit_pmem::Medium::compare_exchange(memory, at, 0, mark);
                            assert_eq!(swapped.unwrap(), Ok(0), "line {at} is held twice");
                        }
                        held.push((extent, mark));
                    } else if !held.is_empty() {
                        let (extent, mark) =
                            held.swap_remove(rng.below(held.len() as u64) as usize);
                        for at in marks(extent) {
                            let swapped = adit_pmem::Medium::compare_exchange(memory, at, mark, 0);
                            assert_eq!(swapped.unwrap(), Ok(mark), "line {at} was taken from us");
                        }
                        a.free(extent).unwrap();
                    }
                }
                for (extent, mark) in held {
                    for at in marks(extent) {
                        let swapped = adit_pmem::Medium::compare_exchange(memory, at, mark, 0);
                        assert_eq!(swapped.unwrap(), Ok(mark));
                    }
                    a.free(extent).unwrap();
                }
            });
        }
    });
    // How many chunks were leased depends on how much the threads were at it at once.
    a.release_empty().unwrap();
    assert_eq!(pool.free_chunks().unwrap(), 10, "all lines came back");
}

/// Bytes that wait for their record are there when the record is, and nowhere when they were given up.
#[test]
fn bytes_that_wait_for_their_record() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let attachment = pool.attach().unwrap();
    let file = attachment.enter_file(&name(1)).unwrap();
    let there = |extent: Extent| {
        let at = extent.offset as usize;
        medium.bytes()[at..at + extent.len as usize].to_vec()
    };
    let given_up = attachment.alloc(300).unwrap();
    attachment.fill_with_record(given_up, vec![7; 300]).unwrap();
    attachment.free(given_up).unwrap();
    let extent = attachment.alloc(300).unwrap();
    assert!(attachment.fill_with_record(extent, vec![8; 299]).is_err());
    let crc = attachment.fill_with_record(extent, vec![8; 300]).unwrap();
    assert_eq!(there(extent), [0; 300]);
    let op = Op::Write {
        file_offset: 0,
        extent,
        len: 300,
        data_crc: Some(crc),
    };
    let mut guard = attachment.lock_file(file).unwrap();
    guard.append(&op, When::Now).unwrap();
    drop(guard);
    assert_eq!(there(extent), [8; 300]);
    assert!(!medium.bytes().windows(64).any(|bytes| bytes == [7; 64]));
    assert_eq!(pool.scan().unwrap().rejected, []);
}

/// Of a dead owner's lock, and of the recovery lock: which of them say, at a look over the logs, that it takes long.
fn say_that_it_takes_long(medium: &Memory, file: FileRef) -> [bool; 2] {
    let entry = TINY.file_entry((file.id() & 0xff_ffff) as u32);
    let locks = [
        entry + std::mem::offset_of!(FileEntry, lock) as u64,
        SHARED + std::mem::offset_of!(Shared, recovery_lock) as u64,
    ];
    locks.map(|lock| medium.load(lock).unwrap() >> 63 == 1)
}

/// A walk over the logs may take longer than anybody is waited for, so who makes one for a dead owner says so, and no
/// longer than it takes.
#[test]
fn who_repairs_what_the_dead_left_says_that_it_takes_long() {
    let medium = Memory::new(&vec![0; tiny_size(12) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let pool = open(medium.clone(), &LocalLocks::default(), boot(1)).unwrap();
    let (dies, lives) = (pool.attach().unwrap(), pool.attach().unwrap());
    let file = dies.enter_file(&name(1)).unwrap();
    let cut = |size| {
        let mut guard = dies.lock_file(file).unwrap();
        guard.append(&Op::Truncate { size }, When::Now).unwrap();
    };
    (1..3).for_each(cut);
    let found = pool.scan().unwrap();
    let first = found.records(&pool, file).next().unwrap().unwrap();
    // It was given a number, and nothing was written.
    let entry = TINY.file_entry((file.id() & 0xff_ffff) as u32);
    let guard = dies.lock_file(file).unwrap();
    let next = entry + std::mem::offset_of!(FileEntry, next_seq) as u64;
    medium.store(next, guard.next_seq().unwrap() + 1).unwrap();
    let pending = entry + std::mem::offset_of!(FileEntry, pending) as u64;
    let line = first.at + 10 * Record::SIZE as u64;
    let inside = (line & (TINY.chunk_size() - 1)) / Record::SIZE as u64;
    let place = (line >> TINY.chunk_shift) << 32 | inside;
    medium.store(pending, place + 1).unwrap();
    std::mem::forget(guard);
    drop(dies);
    let seen = medium.clone();
    let looks = move || assert_eq!(say_that_it_takes_long(&seen, file), [true; 2]);
    // First by itself, and then among what others may have left of a ring.
    let again = medium.clone();
    medium.when_read(line, move || again.when_read(line, looks));
    let guard = lives.lock_file(file).unwrap();
    assert!(medium.was_read());
    assert_eq!(say_that_it_takes_long(&medium, file), [false; 2]);
    drop(guard);
    let seen = medium.clone();
    let looks = move || assert_eq!(say_that_it_takes_long(&seen, file), [false, true]);
    medium.when_read(first.at, looks);
    lives.release_orphans().unwrap();
    assert!(medium.was_read());
    assert_eq!(say_that_it_takes_long(&medium, file), [false; 2]);
}
