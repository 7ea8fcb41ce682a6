//! Several attachments have one file staged at once, and each follows what the others log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_pmem::OutOfRange;
use adit_pool::SHARED;
use adit_sim::{Crash, History, Rng, enumerate};

use super::crashes::{MODES, boot_of, judge, recovered, survives};
use super::reads::{Middle, SlowMedium};
use super::together::{geometry, kernel_file, name_at, record};
use super::*;
use crate::staged::claim::Claim;
use crate::staged::file::walks;
use crate::staged::shared::planted::{self, Blind};
use crate::testing::Scratch;
use adit_pool::PoolFile;

const PAGE: usize = 4096;

type Simulated = StagedFile<AnyMedium, SimFile>;

/// Programs that share a file.
struct Crowd {
    stages: Vec<Arc<Stage<AnyMedium>>>,
    modes: Vec<Mode>,
    file: SimFile,
}

impl Crowd {
    fn of(world: &World, boot: BootId, modes: &[Mode], bytes: &[u8]) -> Self {
        create_pool(world, boot);
        let file = world.create("dir/file").expect("create");
        file.write_at(0, bytes).expect("write");
        let pool = open_pool(world.medium(), boot).expect("open");
        let stage = |_: &Mode| Stage::new(pool.attach().expect("attach"));
        Self {
            stages: modes.iter().map(stage).collect(),
            modes: modes.to_vec(),
            file,
        }
    }

    fn open(&self) -> Vec<Simulated> {
        let open = |(stage, mode): (&Arc<Stage<AnyMedium>>, &Mode)| {
            let name = name_of(&self.file);
            let staged = StagedFile::open(stage, &name, self.file.clone(), *mode).expect("stage");
            staged.share().expect("share");
            staged
        };
        self.stages.iter().zip(&self.modes).map(open).collect()
    }
}

/// A publisher that has begun to relink finds that the file is shared by then: it is copied, and nobody has to finish
/// anything.
#[test]
fn what_is_shared_meanwhile_is_not_relinked() {
    for can in [Can::Exchange, Can::Clone] {
        let world = World::new(tiny_size(12));
        create_pool(&world, boot(1));
        let file = world.create("dir/file").expect("create");
        file.write_at(0, &first_bytes()).expect("write");
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        let base = || SimBase::File(file.clone(), can);
        let staged =
            StagedFile::open(&stage, &name_of(&file), base(), Mode::Strict).expect("stage");
        let other = Stage::new(pool.attach().expect("attach"));
        let theirs = StagedFile::open_entry(&other, staged.file(), base(), Mode::Strict);
        let theirs = Arc::new(theirs.expect("stage"));
        // The pool's own file is opened when the base file has been made ready, and nothing is relinked yet.
        let (medium, sharer) = (world.medium(), Arc::clone(&theirs));
        let open = move || {
            sharer.share().expect("share");
            Ok(SimBase::Pool(medium.clone()))
        };
        let staged = staged.with_relink(Relink::new(Arc::default(), open).from_length(4096));
        staged.write_at(0, &[7; 2 * PAGE]).expect("write");
        let done = staged.publish(Scope::Everything).expect("publish");
        assert_eq!((done.exchanged, done.cloned), (0, 0), "{can:?}");
        assert_eq!(done.records, 1);
        for bytes in [
            contents(&file).expect("read"),
            read_all(&staged),
            read_all(&theirs),
        ] {
            assert_eq!(bytes[..2 * PAGE], [7; 2 * PAGE], "{can:?}");
        }
    }
}

use Step::{Append, Fsync, Publish, PublishCommitted, Show, TakeAway, Truncate, Write};

/// The steps go round; after each the others see what it did.
fn tell_in_turns(world: &World, steps: &[Step], modes: &[Mode], cached: bool) {
    if cached {
        world.put_behind_page_cache(TINY.header_len());
    }
    let (crowd, mut files) = world.setup(|| {
        let crowd = Crowd::of(world, boot_of(world), modes, &first_bytes());
        let files = crowd.open();
        (crowd, files)
    });
    let states = states(steps);
    for (nth, step) in steps.iter().enumerate() {
        let nth = nth + 1;
        world.begin(nth as u64);
        step.run(nth, &files[nth % modes.len()]).expect("step");
        world.acknowledge(nth as u64);
        if step.takes_away() {
            for file in &files {
                assert!(matches!(file.append(b"late"), Err(Error::Taken)));
            }
            files = Vec::new();
            files.extend(crowd.open());
        }
        for file in &files {
            assert_eq!(read_all(file), states[nth], "after step {nth}");
        }
    }
}

const STORY: [Step; 19] = [
    Append(100),
    Append(5000),
    Fsync,
    Show,
    Write(50, 300),
    Show,
    Write(4000, 300),
    PublishCommitted,
    Append(10),
    Truncate(4100),
    Append(9000),
    Publish,
    Write(10, 5000),
    Truncate(3000),
    Fsync,
    Show,
    Append(30),
    TakeAway,
    Append(7),
];

#[test]
fn crashes_everywhere_while_several_write_in_turns() {
    for cached in [false, true] {
        for mode in MODES {
            let name = format!("shared-{mode:?}-{cached}");
            let config = config(&name, 16, 2_500);
            let modes = [mode; 2];
            let workload = |world: &World| tell_in_turns(world, &STORY, &modes, cached);
            let found = enumerate(&config, workload, judge(&STORY, mode, boot_of));
            assert!(survives(&name, found) > 300);
        }
    }
}

#[test]
fn three_see_each_other() {
    let world = World::new(tiny_size(24));
    tell_in_turns(
        &world,
        &STORY,
        &[Mode::Strict, Mode::Posix, Mode::Sync],
        false,
    );
}

/// One writes pages in mode `strict`, the other pages of its own in mode `atomic`: the stronger promise of
/// each holds for what it wrote.
#[test]
fn modes_side_by_side() {
    for cached in [false, true] {
        enumerate_modes_side_by_side(cached);
    }
}

fn enumerate_modes_side_by_side(cached: bool) {
    const OWN: usize = 2 * PAGE;
    let rounds: u8 = 4;
    let name = &format!("shared-modes-{cached}");
    let config = config(name, 16, 4_000);
    let workload = |world: &World| {
        if cached {
            world.put_behind_page_cache(TINY.header_len());
        }
        let (_crowd, files) = world.setup(|| {
            let modes = [Mode::Strict, Mode::Atomic];
            let crowd = Crowd::of(world, boot_of(world), &modes, &[0; 2 * OWN]);
            let files = crowd.open();
            (crowd, files)
        });
        for round in 1..=rounds {
            let step = |nth: u8, act: &dyn Fn() -> Result<()>| {
                let number = u64::from(round) * 4 + u64::from(nth);
                world.begin(number);
                act().expect("step");
                world.acknowledge(number);
            };
            let at = OWN as u64;
            step(0, &|| files[1].write_at(at, &[round; PAGE]));
            step(1, &|| files[0].write_at(100, &[round; PAGE + 500]));
            step(2, &|| files[1].write_at(at + 4000, &[round; 200]));
            step(3, &|| files[1].fsync());
        }
    };
    let judge = |world: &World, history: &History| {
        let found = recovered(world, boot_of(world))?;
        let begun = history.completed().len() + history.in_flight().len();
        // By number of steps: which round each part may be of.
        let done = history.completed().len();
        let strict = |steps: usize| (steps / 4 + usize::from(steps % 4 >= 2)) as u8;
        let own = &found[100..100 + PAGE + 500];
        if !own.iter().all(|byte| *byte == own[0]) {
            return Err("a strict write is torn".to_owned());
        }
        if own[0] != strict(done) && own[0] != strict(begun) {
            return Err(format!("strict: round {} after {done} steps", own[0]));
        }
        let atomic = (found[OWN], found[OWN + 4050], found[OWN + 4190]);
        let committed = |steps: usize| (steps / 4) as u8;
        let after = |steps: usize| {
            let round = (steps / 4) as u8;
            match steps % 4 {
                0 => (round, round, round),
                1 | 2 => (round + 1, round + 1, round),
                _ => (round + 1, round + 1, round + 1),
            }
        };
        let whole = |round: u8| (round, round, round);
        let kept = (done..=begun).any(|steps| after(steps) == atomic);
        let cut = (done..=begun).any(|steps| whole(committed(steps)) == atomic);
        let fits = if !history.lost_power() {
            kept
        } else {
            // A recovery after a death commits what it sees.
            cut || history.crashes()[0] == Crash::Kill && kept
        };
        if fits {
            Ok(())
        } else {
            Err(format!("atomic: {atomic:?} after {done} to {begun} steps"))
        }
    };
    assert!(survives(name, enumerate(&config, workload, judge)) > 300);
}

/// What a program has written in mode `strict` is shown to who does not look at the pool, also behind what another one has
/// not committed.
#[test]
fn what_counts_is_shown_behind_what_does_not() {
    for cached in [false, true] {
        let world = World::new(tiny_size(24));
        if cached {
            world.put_behind_page_cache(TINY.header_len());
        }
        let modes = [Mode::Atomic, Mode::Strict];
        let crowd = Crowd::of(&world, boot(1), &modes, &[0; 2 * PAGE]);
        let files = crowd.open();
        files[0].write_at(0, &[1; PAGE]).expect("write");
        files[1].write_at(PAGE as u64, &[2; PAGE]).expect("write");
        files[1].show_outside(Scope::Everything).expect("show");
        let seen = contents(&crowd.file).expect("read");
        assert_eq!(seen[PAGE..], [2; PAGE], "behind a page cache: {cached}");
    }
}

/// A base file whose disk is full for a while.
struct Refusing(SimFile, Arc<AtomicBool>);

impl BaseFile for Refusing {
    base_of!(0: size read_at sync);

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(Errno::NOSPC),
            false => self.0.write_at(offset, from),
        }
    }
}

/// A database that syncs each transaction would have all of its log written with each of them, up to the next publication.
#[test]
fn what_was_shown_is_not_written_again() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Strict; 2], &[0; 4 * PAGE]);
    let is_full = Arc::new(AtomicBool::new(false));
    let open = |stage| {
        let base = Refusing(crowd.file.clone(), Arc::clone(&is_full));
        let staged = StagedFile::open(stage, &name_of(&crowd.file), base, Mode::Strict);
        let staged = staged.expect("stage");
        staged.share().expect("share");
        staged
    };
    let files: Vec<_> = crowd.stages.iter().map(open).collect();
    let write = |nth: usize, page: usize, byte: u8| {
        let written = files[nth].write_at((page * PAGE) as u64, &[byte; PAGE]);
        written.expect("write");
    };
    // Whoever writes a page again is found out.
    let mark = |page: usize| {
        let marked = crowd.file.write_at((page * PAGE) as u64, &[9; PAGE]);
        marked.expect("mark");
    };
    let pages = || {
        let seen = contents(&crowd.file).expect("read");
        let whole = |page: &[u8]| page.iter().all(|byte| *byte == page[0]).then_some(page[0]);
        seen.chunks(PAGE).map(whole).collect::<Option<Vec<u8>>>()
    };
    write(0, 0, 1);
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![1, 0, 0, 0]));
    mark(0);
    write(0, 1, 2);
    write(1, 2, 3);
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![9, 2, 3, 0]));
    files[0].show_committed().expect("nothing is new");
    files[1].show_committed().expect("the first time");
    assert_eq!(pages(), Some(vec![1, 2, 3, 0]));
    // What was refused has not been shown.
    write(0, 3, 4);
    is_full.store(true, Ordering::Relaxed);
    files[0].show_committed().expect_err("no space");
    is_full.store(false, Ordering::Relaxed);
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![1, 2, 3, 4]));
    // A cut that was shown is not made again over what came behind it.
    files[0].truncate(PAGE as u64).expect("truncate");
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![1]));
    write(0, 2, 5);
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![1, 0, 5]));
    mark(0);
    files[1].publish(Scope::Everything).expect("publish");
    assert_eq!(pages(), Some(vec![1, 0, 5]));
    write(0, 1, 6);
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![1, 6, 5]));
    // Nor is what a publication has cut that found no room in the end.
    files[0].truncate(0).expect("truncate");
    write(0, 0, 7);
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![7]));
    is_full.store(true, Ordering::Relaxed);
    files[0].publish(Scope::Everything).expect_err("no space");
    is_full.store(false, Ordering::Relaxed);
    write(0, 1, 8);
    files[0].show_committed().expect("show");
    assert_eq!(pages(), Some(vec![7, 8]));
}

/// What others log is found at the ends of the logs: nobody walks over all of them.
#[test]
fn following_takes_no_walk() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Strict, Mode::Atomic], &[]);
    let files = crowd.open();
    let mut model = Vec::new();
    read_all(&files[0]);
    let before = walks::so_far();
    for nth in 0..60 {
        let bytes = bytes_of(nth, 20 + nth * 7);
        files[nth % 2].append(&bytes).expect("append");
        model.extend(&bytes);
        if nth % 5 == 0 {
            files[1].fsync().expect("fsync");
        }
        assert_eq!(read_all(&files[(nth + 1) % 2]), model);
        if nth % 20 == 19 {
            files[0].publish(Scope::Everything).expect("publish");
        }
    }
    files[0].append(&[7; 9000]).expect("a group");
    model.extend([7; 9000]);
    assert_eq!(read_all(&files[1]), model);
    assert_eq!(walks::so_far(), before);
}

/// Two descriptions of one process follow each other as two processes do.
#[test]
fn one_process_may_have_several_views_of_a_shared_file() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Strict], &[]);
    let open = || {
        let name = name_of(&crowd.file);
        StagedFile::open(&crowd.stages[0], &name, crowd.file.clone(), Mode::Strict)
    };
    let first = open().expect("stage");
    assert!(matches!(open().err(), Some(Error::AlreadyOpen)));
    first.share().expect("share");
    let second = open().expect("stage");
    let mut model = Vec::new();
    for nth in 0..200 {
        let (writes, reads) = if nth % 2 == 0 {
            (&first, &second)
        } else {
            (&second, &first)
        };
        writes.append(&[nth as u8; PAGE]).expect("append");
        writes.write_at(0, &[nth as u8; PAGE]).expect("write");
        model.extend([nth as u8; PAGE]);
        model[..PAGE].fill(nth as u8);
        assert_eq!(read_all(reads), model);
    }
    drop(first);
    second.take_away(|| {}).expect("take away");
    assert_eq!(contents(&crowd.file).expect("read"), model);
}

/// Whoever is alone may end the staging for all; whoever is not may not.
#[test]
fn who_is_not_alone_does_not_end_the_staging() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Atomic, Mode::Atomic], &[]);
    let open = |nth: usize| {
        let name = name_of(&crowd.file);
        StagedFile::open(&crowd.stages[nth], &name, crowd.file.clone(), Mode::Atomic)
    };
    let first = open(0).expect("stage");
    first.append(b"one").expect("append");
    first.take_away_alone(|| {}).expect("alone");
    let (first, second) = (open(0).expect("stage"), open(1).expect("stage"));
    second.share().expect("share");
    second.append(b"two").expect("append");
    let refused = first.take_away_alone(|| panic!("it is not over"));
    assert!(matches!(refused, Err(Error::Shared)), "{refused:?}");
    assert!(second.has_uncommitted(), "it was not committed either");
    assert_eq!(read_all(&first), b"onetwo");
}

/// What is only staged stays, committed or not, and nothing is committed or published by asking; nor what others share.
#[test]
fn what_is_published_may_be_taken_away_and_nothing_else() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Atomic, Mode::Atomic], &[]);
    let open = |nth: usize| {
        let name = name_of(&crowd.file);
        StagedFile::open(&crowd.stages[nth], &name, crowd.file.clone(), Mode::Atomic)
    };
    let (first, second) = (open(0).expect("stage"), open(1).expect("stage"));
    let refused = |file: &Simulated| file.take_away_published(|| panic!("it is not over"));
    let before = contents(&crowd.file).expect("read");
    first.append(b"one").expect("append");
    assert!(matches!(refused(&second), Err(Error::Unpublished)));
    assert!(first.has_uncommitted(), "it was not committed either");
    first.fsync().expect("fsync");
    assert!(matches!(refused(&second), Err(Error::Unpublished)));
    assert_eq!(contents(&crowd.file).expect("read"), before);
    second.publish(Scope::Committed).expect("publish");
    first.share().expect("share");
    assert!(matches!(refused(&second), Err(Error::Shared)));
    first.append(b"two").expect("append");
    first.take_away(|| {}).expect("take away");
    let (first, second) = (open(0).expect("stage"), open(1).expect("stage"));
    first.append(b"three").expect("append");
    second.publish(Scope::Everything).expect("publish");
    second.take_away_published(|| {}).expect("all is there");
    let late = first.append(b"late");
    assert!(matches!(late, Err(Error::Taken)), "{late:?}");
    let model = [&before, &b"onetwothree"[..]].concat();
    assert_eq!(contents(&crowd.file).expect("read"), model);
}

/// Who publishes may have been stopped, and the monitor has only so many threads: it comes back to the file later.
#[test]
fn nobody_waits_for_a_publisher_to_give_a_file_back() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Strict, Mode::Strict], &[]);
    let name = name_of(&crowd.file);
    let file = StagedFile::open(&crowd.stages[0], &name, crowd.file.clone(), Mode::Strict);
    let file = file.expect("stage");
    let other = crowd.stages[1].attachment();
    let guard = other.lock_file(file.file()).expect("lock");
    let claim = Claim::take(other, &guard).expect("claim");
    drop(guard);
    let (done, said) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(file.take_away_published(|| {})));
        let refused = said.recv_timeout(crate::testing::scratch::limit(10));
        drop(claim);
        assert!(
            matches!(refused, Ok(Err(Error::Publishing { slot })) if slot == other.slot()),
            "{refused:?}"
        );
    });
    file.take_away_published(|| {}).expect("nobody publishes");
}

/// A claim stands, and is given up, when somebody shares the file meanwhile.
#[test]
fn a_file_is_shared_in_the_middle_of_a_publication() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Strict, Mode::Strict], &[]);
    let name = name_of(&crowd.file);
    let open = |nth: usize| {
        StagedFile::open(&crowd.stages[nth], &name, crowd.file.clone(), Mode::Strict)
            .expect("stage")
    };
    let (first, second) = (open(0), open(1));
    first.append(b"one").expect("append");
    let attachment = crowd.stages[0].attachment();
    let guard = attachment.lock_file(first.file()).expect("lock");
    let claim = Claim::take(attachment, &guard).expect("claim");
    drop(guard);
    second.share().expect("share");
    let guard = attachment.lock_file(first.file()).expect("lock");
    assert!(claim.stands(&guard).expect("stands"));
    drop(guard);
    drop(claim);
    let word = attachment.pool().version(first.file()).expect("word");
    assert_eq!(word & adit_pool::PUBLISHER, 0, "nobody publishes any more");
    assert_ne!(word & SHARED, 0, "it is still shared");
    assert_eq!(
        second.publish(Scope::Everything).expect("publish").records,
        1
    );
}

/// A write happens when it has the file's lock: it is not older than what it has waited for.
#[test]
fn a_write_that_waits_is_no_older_than_what_it_waits_for() {
    let world = World::new(tiny_size(12));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Strict; 2], &[]);
    let files = crowd.open();
    let entry = files[0].file();
    let attachment = crowd.stages[0].attachment();
    std::thread::scope(|scope| {
        let guard = attachment.lock_file(entry).expect("lock");
        let waits = scope.spawn(|| files[1].append(b"waits"));
        std::thread::sleep(std::time::Duration::from_millis(100));
        let meanwhile = crate::clock::now();
        guard.set_modified(meanwhile).expect("time");
        drop(guard);
        waits.join().expect("thread").expect("append");
        let modified = attachment.pool().modified(entry).expect("time");
        assert!(modified >= meanwhile, "{modified}, {meanwhile} before");
    });
}

/// One reads a staged page; what it names is published by another, given back by whoever wrote it, and filled for another
/// file: before the read, or in its middle. Of a file that is not shared, who reads has written.
fn read_while_pages_go(shared: bool, blind: Blind, in_the_middle: bool) -> Vec<u8> {
    let world = World::new(tiny_size(10));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let other_file = world.create("dir/other").expect("create");
    let locks = LocalLocks::default();
    let middle = Middle::default();
    let stage = |middle: &Middle| {
        let medium = SlowMedium(world.medium(), middle.clone());
        let pool = open_locked(medium, locks.clone(), boot(1)).expect("open");
        Stage::new(pool.attach().expect("attach"))
    };
    let open = |stage: &Arc<Stage<AnyMedium>>, file: &SimFile| {
        StagedFile::open(stage, &name_of(file), file.clone(), Mode::Strict).expect("stage")
    };
    let reader = stage(&middle);
    let publisher = stage(&Middle::default());
    let writer = if shared {
        stage(&Middle::default())
    } else {
        Arc::clone(&reader)
    };
    let theirs = shared.then(|| open(&writer, &file));
    if let Some(theirs) = &theirs {
        theirs.share().expect("share");
    }
    let ours = open(&reader, &file);
    let writes = theirs.as_ref().unwrap_or(&ours);
    writes.append(&[1; PAGE]).expect("append");
    assert_eq!(read_all(&ours), [1; PAGE]);
    let other = open(&writer, &other_file);
    let entry = ours.file();
    let act = move || {
        planted::be(Blind::No);
        // As a publisher does whose claim stood before and stands afterwards.
        file.write_at(0, &[1; PAGE]).expect("write");
        let attachment = publisher.attachment();
        let mut guard = attachment.lock_file(entry).expect("lock");
        let last = guard.next_seq().expect("seq") - 1;
        guard.retire(last).expect("retire");
        drop(guard);
        // Whoever wrote them need not notice, and uses all pages of the small pool for another file.
        for round in 0..40 {
            other.write_at(0, &[100 + round; PAGE]).expect("write");
            other.publish(Scope::Everything).expect("publish");
        }
        planted::be(blind);
    };
    planted::be(blind);
    if in_the_middle {
        middle.set(act);
    } else {
        act();
    }
    let mut bytes = vec![0; PAGE];
    let read = ours.read_at(0, &mut bytes).expect("read");
    planted::be(Blind::No);
    assert_eq!(read, PAGE);
    bytes
}

#[test]
fn pages_that_another_gives_back_are_never_read() {
    for (shared, in_the_middle) in [(false, false), (false, true), (true, false), (true, true)] {
        let read = read_while_pages_go(shared, Blind::No, in_the_middle);
        assert_eq!(read, [1; PAGE]);
        let read = read_while_pages_go(shared, Blind::Mark, in_the_middle);
        assert_ne!(
            read, [1; PAGE],
            "a reader that does not ask is not found out"
        );
    }
}

#[test]
fn a_reader_that_does_not_ask_sees_nothing_new() {
    let world = World::new(tiny_size(24));
    let crowd = Crowd::of(&world, boot(1), &[Mode::Strict, Mode::Strict], &[]);
    let files = crowd.open();
    files[0].append(b"one").expect("append");
    planted::be(Blind::Last);
    assert_eq!(read_all(&files[1]), b"");
    planted::be(Blind::No);
    assert_eq!(read_all(&files[1]), b"one");
}

/// What others do in the middle of a read, in turn, each so many steps of it after the one before. A step is a look at a
/// word, or a copy.
#[derive(Clone, Default)]
struct Instants(Arc<Mutex<VecDeque<(u32, Deed)>>>);

/// Whether it could be done: nobody waits here for a lock that the reader holds.
type Deed = Box<dyn FnMut() -> bool + Send>;

impl Instants {
    fn next(&self) -> MutexGuard<'_, VecDeque<(u32, Deed)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps(&self) {
        // Not held over the deed.
        let Some((steps, mut deed)) = self.next().pop_front() else {
            return;
        };
        let left = match steps.checked_sub(1) {
            Some(left) => Some(left),
            None if deed() => None,
            None => Some(0),
        };
        if let Some(left) = left {
            self.next().push_front((left, deed));
        }
    }
}

/// A medium whose user does one step after the other.
struct Stepping(SimMedium, Instants);

impl Medium for Stepping {
    medium_of!(0: size store compare_exchange write_streaming flush fence);

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.1.steps();
        self.0.load(offset)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.1.steps();
        self.0.read(offset, into)
    }
}

/// And a base file.
struct SteppingBase(SimFile, Instants);

impl BaseFile for SteppingBase {
    base_of!(0: size write_at sync);

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        self.1.steps();
        self.0.read_at(offset, into)
    }
}

/// What another program does that has a file staged, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Writes two pages, and shows them to those who do not look at the pool.
    Show(u8),
    /// Cuts the file, and shows that.
    Cut,
    /// Writes two pages, and has written the second one to the base file: it is still publishing.
    Fold(u8),
}

impl Act {
    fn run(self, theirs: &StagedFile<AnyMedium, SteppingBase>) {
        match self {
            Self::Show(byte) | Self::Fold(byte) => theirs.write_at(0, &[byte; 2 * PAGE]),
            Self::Cut => theirs.truncate(0),
        }
        .expect("write");
        theirs.fsync().expect("fsync");
        match self {
            Self::Fold(byte) => {
                let attachment = theirs.stage.attachment();
                let guard = attachment.lock_file(theirs.file()).expect("lock");
                std::mem::forget(Claim::take(attachment, &guard).expect("claim"));
                let base = theirs.base();
                base.write_at(PAGE as u64, &[byte; PAGE]).expect("write");
            }
            _ => theirs.show_committed().expect("show"),
        }
    }

    fn leaves(self) -> Vec<u8> {
        match self {
            Self::Show(byte) | Self::Fold(byte) => vec![byte; 2 * PAGE],
            Self::Cut => Vec::new(),
        }
    }
}

/// One reads two pages, of which the first is staged, and another acts after so many steps: what was read is nothing that
/// the file ever was, perhaps; and whether the read was so long.
fn read_while_another_acts(mode: Mode, acts: &[(u32, Act)], blind: Blind) -> (bool, bool) {
    let world = World::new(tiny_size(24));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &[1; 2 * PAGE]).expect("write");
    let locks = LocalLocks::default();
    let instants = Instants::default();
    let open = |instants: &Instants| {
        let medium = Stepping(world.medium(), instants.clone());
        let pool = open_locked(medium, locks.clone(), boot(1)).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        let base = SteppingBase(file.clone(), instants.clone());
        let staged = StagedFile::open(&stage, &name_of(&file), base, mode).expect("stage");
        staged.share().expect("share");
        staged
    };
    let (ours, theirs) = (open(&instants), Arc::new(open(&Instants::default())));
    theirs.write_at(0, &[2; PAGE]).expect("write");
    let mut states = vec![read_all(&ours)];
    for &(steps, act) in acts {
        let theirs = Arc::clone(&theirs);
        let deed = move || {
            let attachment = theirs.stage.attachment();
            let free = attachment
                .try_lock_file(theirs.file())
                .expect("lock")
                .is_some();
            if free {
                planted::be(Blind::No);
                act.run(&theirs);
                planted::be(blind);
            }
            free
        };
        instants.next().push_back((steps, Box::new(deed)));
        states.push(act.leaves());
    }
    planted::be(blind);
    let mut bytes = vec![0; 2 * PAGE];
    let read = ours.read_at(0, &mut bytes).expect("read");
    planted::be(Blind::No);
    bytes.truncate(read);
    let in_time = instants.next().is_empty();
    (!states.contains(&bytes), in_time)
}

/// After how many steps of a read others act, the first such that it sees what the file never was.
fn torn_read(mode: Mode, first: Act, second: Option<Act>, blind: Blind) -> Option<(u32, u32)> {
    for before in 0.. {
        for between in 0.. {
            let mut acts = vec![(before, first)];
            acts.extend(second.map(|second| (between, second)));
            let (is_torn, in_time) = read_while_another_acts(mode, &acts, blind);
            if is_torn {
                return Some((before, between));
            }
            if !in_time && between == 0 {
                assert!(before > 5, "the test shows nothing");
                return None;
            }
            if !in_time || second.is_none() {
                break;
            }
        }
    }
    None
}

/// An overlay that lacks what somebody has written to the base file meanwhile tells what the file never was: some bytes
/// from the pool as they were before, and others from the file as they are now.
#[test]
fn a_read_is_one_instant_whatever_another_writes_at_any_step() {
    let stories = [
        (Act::Show(3), Some(Act::Show(4))),
        (Act::Show(3), Some(Act::Cut)),
        (Act::Cut, Some(Act::Show(3))),
        (Act::Show(3), Some(Act::Fold(4))),
        (Act::Fold(3), None),
    ];
    for mode in [Mode::Posix, Mode::Strict] {
        for (first, second) in stories {
            let torn = torn_read(mode, first, second, Blind::No);
            assert_eq!(torn, None, "{mode:?}: {first:?}, then {second:?}");
            let torn = torn_read(mode, first, second, Blind::Last);
            assert_ne!(torn, None, "a reader that does not ask is not found out");
        }
    }
}

/// Threads with attachments of their own append to one file and read it; somebody publishes and takes it away
/// meanwhile. Each record is there once, whole, and in its writer's order, at all times.
#[test]
fn nothing_is_lost_torn_or_seen_late() {
    const WRITERS: u64 = 3;
    const RECORDS: u64 = 250;
    for seed in 0..12 {
        let mode = MODES[seed as usize % 4];
        let scratch = Scratch::new();
        let path = scratch.path("file");
        let pool = PoolFile::create(&scratch.path("pool"), 8 << 20, geometry()).expect("pool");
        let open = |stage: &Arc<_>| loop {
            let staged = StagedFile::open(stage, &name_at(&path), kernel_file(&path), mode);
            match staged.and_then(|staged| staged.share().map(|()| staged)) {
                Err(Error::Taken) => {}
                staged => break staged.expect("stage"),
            }
        };
        let going = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let stage = Stage::new(pool.attach().expect("attach"));
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed * 10 + writer);
                        let mut staged = open(&stage);
                        let mut nth = 0;
                        while nth < RECORDS {
                            match staged.append(&marked(writer, nth)) {
                                Err(Error::Taken) => {
                                    drop(staged);
                                    staged = open(&stage);
                                    continue;
                                }
                                written => written.expect("append"),
                            };
                            nth += 1;
                            if rng.chance(8) {
                                match staged.fsync() {
                                    Err(Error::Taken) => {}
                                    synced => synced.expect("fsync"),
                                }
                            }
                            if rng.chance(4) {
                                let mut bytes = vec![0; 4 << 20];
                                match staged.read_at(0, &mut bytes) {
                                    Err(Error::Taken) => continue,
                                    read => bytes.truncate(read.expect("read")),
                                }
                                let seen = count_marked(&bytes, WRITERS);
                                assert_eq!(seen[writer as usize], nth, "seed {seed}");
                            }
                        }
                    })
                })
                .collect();
            let meddler = scope.spawn(|| {
                let stage = Stage::new(pool.attach().expect("attach"));
                let mut rng = Rng::new(seed + 77);
                while going.load(Ordering::Relaxed) {
                    let staged = open(&stage);
                    let done = match rng.below(6) {
                        0 => staged.take_away(|| {}).map(|_| ()),
                        1 | 2 => staged.publish(Scope::Everything).map(|_| ()),
                        _ => staged.publish(Scope::Committed).map(|_| ()),
                    };
                    match done {
                        Ok(())
                        | Err(Error::Taken | Error::Publishing { .. } | Error::Contended) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                open(&stage).take_away(|| {}).expect("take away");
            });
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            going.store(false, Ordering::Relaxed);
            ended.into_iter().for_each(|ended| ended.expect("writer"));
            meddler.join().expect("meddler");
        });
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(
            count_marked(&bytes, WRITERS),
            [RECORDS; WRITERS as usize],
            "seed {seed}"
        );
    }
}

/// A record that says whose it is.
fn marked(writer: u64, nth: u64) -> Vec<u8> {
    let record = record(nth);
    [&writer.to_le_bytes()[..], &record].concat()
}

/// How many records of each writer the bytes are, in each one's order; nothing else may be in them.
fn count_marked(bytes: &[u8], writers: u64) -> Vec<u64> {
    let mut counts = vec![0; writers as usize];
    let mut rest = bytes;
    while let Some((writer, after)) = rest.split_first_chunk::<8>() {
        let writer = u64::from_le_bytes(*writer) as usize;
        let wanted = record(counts[writer]);
        assert!(
            after.starts_with(&wanted),
            "record {} of {writer} is lost or torn",
            counts[writer]
        );
        counts[writer] += 1;
        rest = &after[wanted.len()..];
    }
    assert!(rest.is_empty());
    counts
}

/// One dies at any instant of what it does; the other sees all that was acknowledged, each operation whole or not
/// at all, goes on, and ends the staging.
#[test]
fn one_dies_at_any_instant_and_the_other_goes_on() {
    for mode in MODES {
        let mut instants = 0;
        while dies_after(instants, mode) {
            instants += 1;
        }
        assert!(instants > 40, "{mode:?}: {instants}");
    }
}

/// Whether the one died at that instant: it had not come to its end.
fn dies_after(events: u64, mode: Mode) -> bool {
    let steps = [
        Append(100),
        Write(50, 5000),
        Fsync,
        Truncate(4000),
        Append(9000),
        Publish,
    ];
    let states = states(&steps);
    let world = World::new(tiny_size(24));
    let Crowd {
        mut stages,
        modes,
        file,
    } = Crowd::of(&world, boot(1), &[mode; 2], &first_bytes());
    let open = |stage: &Arc<Stage<AnyMedium>>| {
        let staged = StagedFile::open(stage, &name_of(&file), file.clone(), modes[0]);
        let staged = staged.expect("stage");
        staged.share().expect("share");
        staged
    };
    let (victim, survivor) = (open(&stages[0]), open(&stages[1]));
    assert_eq!(read_all(&survivor), states[0]);
    let done = std::cell::Cell::new(0);
    let ended = world.kill_after(events, || {
        for (nth, step) in steps.iter().enumerate() {
            step.run(nth + 1, &victim).expect("step");
            done.set(nth + 1);
        }
    });
    drop(victim);
    drop(stages.remove(0));
    // Who takes the lock of the dead ends what they had begun: until then it may be seen or not.
    survivor.fsync().expect("fsync");
    let seen = read_all(&survivor);
    let allowed = &states[done.get()..=(done.get() + 1).min(steps.len())];
    assert!(
        allowed.contains(&seen),
        "{mode:?}, dead after {events}: {} bytes after {} steps",
        seen.len(),
        done.get()
    );
    let mut model = seen;
    survivor.append(b"goes on").expect("append");
    model.extend(b"goes on");
    assert_eq!(read_all(&survivor), model, "{mode:?}, dead after {events}");
    survivor.close().expect("close");
    let found = contents(&file).expect("read");
    assert_eq!(found, model, "{mode:?}, dead after {events}");
    ended.is_none()
}

/// Who learns of a commit and of a write behind it at once knows which of them is committed.
#[test]
fn what_is_written_behind_a_commit_is_not_committed() {
    for cached in [false, true] {
        let world = World::new(tiny_size(24));
        if cached {
            world.put_behind_page_cache(TINY.header_len());
        }
        let crowd = Crowd::of(&world, boot(1), &[Mode::Strict, Mode::Atomic], &[]);
        let files = crowd.open();
        for round in 0..3 {
            files[1].append(b"committed").expect("append");
            files[1].fsync().expect("fsync");
            files[1].append(b"not yet").expect("append");
            let before = contents(&crowd.file).expect("read").len();
            files[0].publish(Scope::Committed).expect("publish");
            let found = contents(&crowd.file).expect("read");
            assert!(found.ends_with(b"committed"), "round {round}, {cached}");
            assert!(found.len() > before, "round {round}, {cached}");
            assert!(files[0].has_uncommitted(), "round {round}, {cached}");
            files[1].fsync().expect("fsync");
        }
    }
}

/// Whoever shares a file while the claim of a dead publisher is given up does not bring that back: the next holder of
/// the slot would be taken for the publisher for as long as he lives.
#[test]
fn a_buried_claim_stays_buried_when_the_file_is_shared() {
    use crate::staged::claim::bury_claims;
    use adit_pool::PUBLISHER;

    let world = World::new(tiny_size(12));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let [stage, other, dead] = [(); 3].map(|()| Stage::new(pool.attach().expect("attach")));
    let claim = u64::from(dead.attachment().slot()) + 1;
    drop(dead);
    let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Strict).expect("stage");
    let claimed = |word| (word == 0).then_some(claim);
    let claimed = pool.update_version(staged.file(), claimed);
    assert!(claimed.expect("the file is there"));
    planted::meanwhile(move || bury_claims(other.attachment()).expect("bury"));
    staged.share().expect("share");
    let word = pool.version(staged.file()).expect("word");
    assert_eq!(word & (PUBLISHER | SHARED), SHARED);
}

/// Programs that write to one log in turns, as those of a database do, wait for the disk once for each sync of theirs: not
/// for what the others have logged, once more, with bytes of their own on the way.
#[test]
fn what_is_written_in_turns_waits_for_the_disk_once() {
    let Some(scratch) = Scratch::on_a_disk() else {
        return;
    };
    let path = scratch.path("file");
    kernel_file(&path).write_at(0, &[1; PAGE]).expect("write");
    let ours = PoolFile::create(&scratch.path("pool"), 4 << 20, geometry()).expect("pool");
    let theirs = PoolFile::open(&scratch.path("pool")).expect("open");
    let files = [&ours, &theirs].map(|pool| {
        let stage = Stage::new(pool.attach().expect("attach"));
        let base = kernel_file(&path);
        let staged = StagedFile::open(&stage, &name_at(&path), base, Mode::Atomic);
        let staged = staged.expect("stage");
        staged.share().expect("share");
        staged
    });
    // The word of the mirror that counts the syncs which the kernel was asked for.
    let asked = || {
        let tables = std::fs::read(scratch.path("pool.tables")).expect("tables");
        let at = tables.len() - adit_pmem::MIRROR_TAIL as usize + 4 * 64 + 16;
        u64::from_le_bytes(tables[at..][..8].try_into().expect("a word"))
    };
    let turn = |turn: usize| {
        let before = asked();
        let file = &files[turn % 2];
        file.write_at((turn * PAGE) as u64, &vec![turn as u8; 6 * PAGE])
            .expect("write");
        file.fsync().expect("fsync");
        asked() - before
    };
    turn(0);
    turn(1);
    let turns: Vec<u64> = (2..8).map(turn).collect();
    assert_eq!(turns, [1; 6]);
}
