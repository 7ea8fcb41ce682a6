//! What each does right alone, together: pages used again, records that carry CRCs and wait for a
//! device, relinks, publishers that fail in the middle, and others that go on meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_sim::{History, Rng, enumerate};

use super::cached::forgetful;
use super::crashes::{MODES, boot_of, crash_relinking, recovered};
use super::planted::Meddled;
use super::*;

use Step::{
    Append, Fsync, Publish, PublishByOther, PublishCommitted, TakeAway, TakeAwayByOther, Truncate,
    Write, WriteByOther,
};

const PAGE: usize = 4096;

/// Covered pages, groups, cuts and commits; published by relinking, by either attachment.
const STORY: [Step; 23] = [
    Write(0, PAGE),
    Write(PAGE, 100),
    Fsync,
    Write(0, PAGE),
    Fsync,
    Write(2 * PAGE, PAGE),
    Fsync,
    Write(0, PAGE),
    Append(9000),
    Fsync,
    Write(0, PAGE),
    PublishByOther,
    Write(0, PAGE),
    Write(PAGE, PAGE),
    Fsync,
    Write(PAGE, PAGE),
    PublishCommitted,
    Truncate(5000),
    Write(0, PAGE),
    Publish,
    Write(0, PAGE),
    TakeAwayByOther,
    Write(0, PAGE),
];

/// Crashes a story everywhere; how many states that were.
fn crash(name: &str, steps: &[Step], mode: Mode, seed: u64, states: u64) -> u64 {
    let mut tried = 0;
    for can in [Can::Exchange, Can::Clone] {
        for cached in [true, false] {
            let name = format!("staged-interplay-{name}-{mode:?}-{can:?}-{cached}");
            let config = Config {
                seed,
                ..config(&name, 40, states)
            };
            match crash_relinking(&config, steps, mode, can, cached) {
                Ok(report) => {
                    assert!(report.is_of_all_kinds(), "{name}, seed {seed}: {report}");
                    tried += report.states;
                }
                Err(failure) => panic!("{name}, seed {seed}: {steps:?}: {failure}"),
            }
        }
    }
    tried
}

#[test]
fn all_of_it_in_one_story() {
    let states: u64 = MODES
        .iter()
        .map(|mode| crash("story", &STORY, *mode, 1, 600))
        .sum();
    assert!(states > 3_000, "{states}");
}

/// A step that is likely to meet what those before it left.
fn any_step(rng: &mut Rng) -> Step {
    let page = rng.below(3) as usize * PAGE;
    let len = [PAGE, PAGE, PAGE, 2 * PAGE, 100, 3000, 9000][rng.below(7) as usize];
    match rng.below(20) {
        0..7 => Write(page, len),
        7..9 => WriteByOther(page, len),
        9 => Write(page + 500, len),
        10 => Append(len),
        11 => Truncate(page + rng.below(2) as usize * 300),
        12..15 => Fsync,
        15 => Publish,
        16 => PublishCommitted,
        17 => PublishByOther,
        18 => TakeAway,
        _ => TakeAwayByOther,
    }
}

fn any_stories(seeds: std::ops::Range<u64>, states: u64) -> u64 {
    let stories = seeds.map(|seed| {
        let mut rng = Rng::new(seed);
        let steps: Vec<Step> = (0..14).map(|_| any_step(&mut rng)).collect();
        let mode = MODES[seed as usize % MODES.len()];
        crash(&format!("any{seed}"), &steps, mode, seed, states)
    });
    stories.sum()
}

#[test]
fn any_story() {
    let states = any_stories(0..12, 250);
    assert!(states > 3_000, "{states}");
}

/// `ADIT_STORIES=2000 cargo test -p adit-store many_stories -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn many_stories() {
    let stories = std::env::var("ADIT_STORIES").map_or(200, |many| many.parse().expect("a number"));
    println!("{} states", any_stories(100..100 + stories, 600));
}

/// Records carry the CRC of their bytes where fences are slow: none of these may change.
#[test]
fn no_page_is_used_again_whose_record_has_a_crc() {
    let world = World::new(tiny_size(24));
    world.put_behind_page_cache(TINY.header_len());
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Strict).expect("stage");
    let mut seen = Vec::new();
    for round in 0..10_u8 {
        staged.write_at(0, &[round; PAGE]).expect("write");
        let place: Vec<Source> = {
            let view = staged.look();
            view.overlay.staged().map(|piece| piece.source).collect()
        };
        assert!(!seen.contains(&place), "used again: {place:?}");
        seen.push(place);
    }
    assert!(pool.scan().expect("scan").rejected.is_empty());
}

/// A record whose write failed is tried again with its bytes, not without.
#[test]
fn a_write_that_is_tried_again_still_has_its_bytes() {
    let world = World::new(tiny_size(24));
    world.put_behind_page_cache(TINY.header_len());
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let medium = forgetful(world.medium(), Arc::new(AtomicU64::new(u64::MAX)));
    let refuses = Arc::clone(&medium.refuses);
    let pool = open_pool(medium, boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Strict);
    let staged = staged.expect("stage");
    staged.append(&[1; 500]).expect("append");
    refuses.store(true, Ordering::Relaxed);
    staged.append(&[2; 500]).expect("the second try");
    let expected = [[1; 500], [2; 500]].concat();
    assert_eq!(read_all(&staged), expected);
    assert!(pool.scan().expect("scan").rejected.is_empty());
    staged.close().expect("close");
    assert_eq!(contents(&file).expect("read"), expected);
}

type Meddling = Meddled<Box<dyn Fn() + Send + Sync>>;

fn meddled(file: &SimFile, meddle: impl Fn() + Send + Sync + 'static) -> Meddling {
    Meddled {
        file: file.clone(),
        writes: AtomicU64::new(0),
        meddle: Box::new(meddle),
    }
}

/// A publisher failed right after he had said that staged bytes are about to go.
pub(super) fn leave_relinking<M: Medium, B: BaseFile>(staged: &StagedFile<M, B>) {
    let guard = staged.stage.attachment().lock_file(staged.file());
    let guard = guard.expect("lock");
    let version = guard.version().expect("version");
    guard.set_version(version | 1 << 63).expect("version");
}

/// Who finds that a publisher failed while he relinked is the only publisher all the same.
#[test]
fn a_failed_relink_lets_in_one_publisher() {
    let world = World::new(tiny_size(24));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let one = Stage::new(pool.attach().expect("attach"));
    let two = Stage::new(pool.attach().expect("attach"));
    let other: Arc<Mutex<Option<StagedFile<AnyMedium, SimFile>>>> = Arc::default();
    let base = meddled(&file, {
        let other = Arc::clone(&other);
        move || {
            let other = other.lock().expect("lock");
            let other = other.as_ref().expect("set");
            other.write_at(0, &[9; 100]).expect("write");
            let published = other.publish(Scope::Everything);
            assert!(
                matches!(published, Err(Error::Publishing { slot: 0 })),
                "a second publisher beside us: {published:?}"
            );
        }
    });
    let staged = StagedFile::open(&one, &name_of(&file), base, Mode::Atomic).expect("stage");
    let theirs = StagedFile::open_entry(&two, staged.file(), file.clone(), Mode::Atomic);
    *other.lock().expect("lock") = Some(theirs.expect("stage"));
    staged.write_at(0, &[1; 100]).expect("write");
    leave_relinking(&staged);
    staged.publish(Scope::Everything).expect("publish");
    staged.publish(Scope::Everything).expect("publish");
    assert_eq!(contents(&file).expect("read"), [9; 100]);
}

/// Who finishes a failed relink says that he publishes for as long as that takes, so that whoever wants the file waits for
/// him; and no longer, when he fails as well.
#[test]
fn who_finishes_a_failed_relink_is_its_publisher_meanwhile() {
    const RELINKING: u64 = 1 << 63;
    let world = World::new(tiny_size(24));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stages = [(); 3].map(|()| Stage::new(pool.attach().expect("attach")));
    let left = StagedFile::open(&stages[0], &name_of(&file), file.clone(), Mode::Strict);
    let left = left.expect("stage");
    let entry = left.file();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let base = |refuses: bool| {
        let (pool, seen) = (Arc::clone(&pool), Arc::clone(&seen));
        let look = move || {
            let word = pool.version(entry).expect("word");
            seen.lock().expect("lock").push(word);
        };
        Refusing {
            file: meddled(&file, look),
            refuses,
        }
    };
    let open = |nth: usize, refuses| {
        StagedFile::open_unread(&stages[nth], entry, base(refuses), Mode::Strict).expect("stage")
    };
    let (fails, finishes) = (open(1, true), open(2, false));
    left.write_at(0, &[1; 100]).expect("write");
    leave_relinking(&left);

    let mut into = [0; 100];
    let failed = fails.read_at(0, &mut into);
    assert!(matches!(failed, Err(Error::Base(Errno::IO))), "{failed:?}");
    let word = pool.version(entry).expect("word");
    assert_eq!(word & (adit_pool::PUBLISHER | RELINKING), RELINKING);

    assert_eq!(finishes.read_at(0, &mut into).expect("read"), 100);
    assert_eq!(into, [1; 100]);
    let word = pool.version(entry).expect("word");
    assert_eq!(word & (adit_pool::PUBLISHER | RELINKING), 0);

    let seen = seen.lock().expect("lock");
    let publishers: Vec<u64> = seen
        .iter()
        .map(|word| word & adit_pool::PUBLISHER)
        .collect();
    let seats = [1, 2].map(|nth: usize| u64::from(stages[nth].attachment().slot()) + 1);
    assert_eq!(publishers, seats);
    assert_eq!(contents(&file).expect("read"), [1; 100]);
}

/// A base file that may refuse to be synced.
struct Refusing {
    file: Meddling,
    refuses: bool,
}

impl BaseFile for Refusing {
    base_of!(file: size read_at write_at);

    fn sync(&self) -> Result<(), Errno> {
        if self.refuses {
            return Err(Errno::IO);
        }
        self.file.sync()
    }
}

/// The recovery publishes for a dead one who relinked, while somebody alive has the file as well. What
/// he writes meanwhile is not overtaken.
#[test]
fn a_recovery_after_a_failed_relink_is_alone_with_the_file() {
    let world = World::new(tiny_size(24));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let dead = Stage::new(pool.attach().expect("attach"));
    let alive = Stage::new(pool.attach().expect("attach"));
    let recoverer = pool.attach().expect("attach");
    let left = StagedFile::open(&dead, &name_of(&file), file.clone(), Mode::Strict);
    let left = left.expect("stage");
    let staged = StagedFile::open_entry(&alive, left.file(), file.clone(), Mode::Strict);
    let staged = Arc::new(staged.expect("stage"));
    left.write_at(0, &[1; 100]).expect("write");
    leave_relinking(&left);
    drop(left);
    let dead = dead.into_attachment().expect("the last");
    dead.detach().expect("detach");
    let writer = Arc::new(Mutex::new(None));
    let write = {
        let file = file.clone();
        move || match staged.write_at(0, &[9; 100]) {
            // The recovery is the file's publisher until its records are retired, with those of others.
            Ok(()) => {
                while let Err(error) = staged.publish(Scope::Everything) {
                    assert!(matches!(error, Error::Publishing { .. }), "{error}");
                    adit_pmem::rest(Duration::from_millis(1));
                }
            }
            Err(Error::Taken) => file.write_at(0, &[9; 100]).expect("write"),
            Err(error) => panic!("{error}"),
        }
    };
    let meddle = {
        let (writer, write) = (Arc::clone(&writer), write);
        move || {
            let (done, waits) = std::sync::mpsc::channel();
            let write = write.clone();
            let thread = std::thread::spawn(move || {
                write();
                let _ = done.send(());
            });
            *writer.lock().expect("lock") = Some(thread);
            // He may have to wait for us.
            let _ = waits.recv_timeout(Duration::from_millis(300));
        }
    };
    let report = recover(&recoverer, &|_| Ok(meddled(&file, meddle.clone()))).expect("recover");
    assert_eq!(report.published.len(), 1, "{report:?}");
    let writer = writer.lock().expect("lock").take().expect("it ran");
    writer.join().expect("writer");
    assert_eq!(contents(&file).expect("read"), [9; 100]);
}

type Plain = StagedFile<AnyMedium, SimFile>;

/// A dead process has left a record of a file that somebody alive has as well: the file, what the living one
/// knows of it, and an attachment for the recovery.
fn left_behind() -> (SimFile, Arc<Plain>, adit_pool::Attachment<AnyMedium>) {
    left_behind_by(Mode::Strict, &[Write(0, 100)])
}

/// The same when he has done these steps.
fn left_behind_by(
    mode: Mode,
    steps: &[Step],
) -> (SimFile, Arc<Plain>, adit_pool::Attachment<AnyMedium>) {
    let world = World::new(tiny_size(24));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let dead = Stage::new(pool.attach().expect("attach"));
    let alive = Stage::new(pool.attach().expect("attach"));
    let recoverer = pool.attach().expect("attach");
    let left = StagedFile::open(&dead, &name_of(&file), file.clone(), mode);
    let left = left.expect("stage");
    let staged = StagedFile::open_entry(&alive, left.file(), file.clone(), mode);
    for (nth, step) in steps.iter().enumerate() {
        step.run(nth, &left).expect("step");
    }
    drop(left);
    let dead = dead.into_attachment().expect("the last");
    dead.detach().expect("detach");
    (file, Arc::new(staged.expect("stage")), recoverer)
}

/// Recovers, and does something else when the file is opened for the first time, which is after the walk.
fn recover_beside(
    recoverer: &adit_pool::Attachment<AnyMedium>,
    file: &SimFile,
    meanwhile: impl Fn() + Sync,
) -> Recovered {
    let looked = AtomicU64::new(0);
    let open = |_: &FileName| {
        if looked.fetch_add(1, Ordering::Relaxed) == 0 {
            meanwhile();
        }
        Ok(file.clone())
    };
    recover(recoverer, &open).expect("recover")
}

/// Between the walk and the lock of the file somebody publishes a part of what was found: the rest is not taken for
/// published.
#[test]
fn a_recovery_publishes_the_rest_of_what_was_published_meanwhile() {
    let steps = [Write(0, 100), Fsync, Write(100, 100)];
    let (file, alive, recoverer) = left_behind_by(Mode::Atomic, &steps);
    let report = recover_beside(&recoverer, &file, || {
        let published = alive.publish(Scope::Committed).expect("publish");
        assert_eq!(published.records, 1);
    });
    assert!(report.kept.is_empty(), "{report:?}");
    let published: Vec<u64> = report.published.iter().map(|one| one.records).collect();
    assert_eq!(published, [1]);
    let wanted = [bytes_of(0, 100), bytes_of(2, 100)].concat();
    assert!(contents(&file).expect("read") == wanted);
}

/// Between the walk and the lock of the file somebody publishes what was found, and writes over it.
#[test]
fn a_recovery_does_not_repeat_what_was_published_meanwhile() {
    let (file, alive, recoverer) = left_behind();
    recover_beside(&recoverer, &file, || {
        alive.publish(Scope::Everything).expect("publish");
        file.write_at(0, &[7; 100]).expect("write");
    });
    assert_eq!(contents(&file).expect("read"), [7; 100]);
}

/// Or takes it away: then nothing of it is left in the pool.
#[test]
fn a_recovery_keeps_nothing_that_was_taken_away_meanwhile() {
    let (file, alive, recoverer) = left_behind();
    let report = recover_beside(&recoverer, &file, || {
        alive.take_away(|| ()).expect("take away");
    });
    assert!(report.kept.is_empty(), "{report:?}");
    assert!(report.published.is_empty(), "{report:?}");
    assert!(contents(&file).expect("read") == bytes_of(0, 100));
}

/// Between the walk and the lock of the file somebody writes: that is not retired with what was found.
#[test]
fn a_recovery_does_not_retire_what_it_has_not_found() {
    let (file, alive, recoverer) = left_behind();
    recover_beside(&recoverer, &file, || {
        alive.write_at(0, &[9; 100]).expect("write");
    });
    assert_eq!(contents(&file).expect("read"), [9; 100]);
}

/// While the recovery writes the base file somebody goes on: he keeps his staging.
#[test]
fn a_recovery_forgets_no_file_that_somebody_writes() {
    let (file, alive, recoverer) = left_behind();
    let write = {
        let alive = Arc::clone(&alive);
        move || alive.write_at(0, &[9; 100]).expect("write")
    };
    let report = recover(&recoverer, &|_| Ok(meddled(&file, write.clone()))).expect("recover");
    assert_eq!(report.published.len(), 1, "{report:?}");
    assert_eq!(read_all(&alive), [9; 100]);
    alive.publish(Scope::Everything).expect("publish");
    assert_eq!(contents(&file).expect("read"), [9; 100]);
}

/// Takes the claim on a file over, as somebody does who thinks that its publisher is dead.
fn take_over(staged: &Plain) {
    let attachment = staged.stage.attachment();
    let guard = attachment.lock_file(staged.file()).expect("lock");
    let word = guard.version().expect("version");
    let mine = u64::from(attachment.slot()) + 1;
    let word = (word & !adit_pool::PUBLISHER).wrapping_add(1 << 16) | mine;
    guard.set_version(word).expect("version");
}

/// Whoever was overtaken retires nothing: neither a recovery nor a publisher.
#[test]
fn whose_claim_is_gone_retires_nothing() {
    let (file, alive, recoverer) = left_behind();
    let retired = |alive: &Plain| {
        let pool = alive.stage.attachment().pool();
        pool.seen_retired(alive.file()).expect("mark")
    };
    let overtake = {
        let alive = Arc::clone(&alive);
        move || take_over(&alive)
    };
    let report = recover(&recoverer, &|_| Ok(meddled(&file, overtake.clone()))).expect("recover");
    assert!(report.published.is_empty(), "{report:?}");
    assert_eq!((report.kept.len(), retired(&alive)), (1, 0), "{report:?}");

    let (file, alive, other) = left_behind();
    let overtake = {
        let alive = Arc::clone(&alive);
        move || take_over(&alive)
    };
    let other = Stage::new(other);
    let base = meddled(&file, overtake);
    let slow = StagedFile::open_entry(&other, alive.file(), base, Mode::Strict).expect("stage");
    let published = slow.publish(Scope::Everything);
    let slot = alive.stage.attachment().slot();
    assert!(
        matches!(published, Err(Error::Publishing { slot: by }) if by == slot),
        "{published:?}"
    );
    assert_eq!(retired(&alive), 0);
}

/// One process writes in mode `atomic`, another one beside it in mode `strict`, and publishes: not what
/// the first has not committed, or it commits that.
fn two_modes(world: &World) {
    let (one, two, file) = world.setup(|| {
        create_pool(world, boot_of(world));
        let file = world.create("dir/file").expect("create");
        file.write_at(0, &[1; 3 * PAGE]).expect("write");
        file.sync().expect("sync");
        let pool = open_pool(world.medium(), boot_of(world)).expect("open");
        let stage = || Stage::new(pool.attach().expect("attach"));
        (stage(), stage(), file)
    });
    let atomic = StagedFile::open(&one, &name_of(&file), file.clone(), Mode::Atomic);
    let atomic = atomic.expect("stage");
    let strict = StagedFile::open_entry(&two, atomic.file(), file.clone(), Mode::Strict);
    let strict = strict.expect("stage");
    atomic.write_at(0, &[2; 2 * PAGE]).expect("write");
    world.begin(1);
    strict.write_at(2 * PAGE as u64, &[3; 100]).expect("write");
    world.acknowledge(1);
    strict.publish(Scope::Everything).expect("publish");
}

#[test]
fn what_another_mode_has_not_committed_is_not_published() {
    let judge = |world: &World, history: &History| {
        let found = recovered(world, boot_of(world))?;
        let whole = [1, 2].contains(&found[0]) && found[..2 * PAGE] == [found[0]; 2 * PAGE];
        let told = !history.is_completed(1) || found[2 * PAGE..2 * PAGE + 100] == [3; 100];
        (whole && told)
            .then_some(())
            .ok_or_else(|| format!("whole: {whole}, what was told: {told}"))
    };
    for cached in [false, true] {
        let config = config(&format!("staged-two-modes-{cached}"), 24, 1_000);
        let workload = |world: &World| {
            if cached {
                world.put_behind_page_cache(TINY.header_len());
            }
            two_modes(world);
        };
        let report = enumerate(&config, workload, judge);
        let report = report.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.states > 100, "{report}");
    }
}

/// The slot of a dead publisher will be another's: his claim goes also where a stopped program holds the
/// file's lock.
#[test]
fn a_dead_claim_goes_whoever_holds_the_lock() {
    let world = World::new(tiny_size(24));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stopped = pool.attach().expect("attach");
    let recoverer = pool.attach().expect("attach");
    let entry = stopped.enter_file(&name_of(&file)).expect("enter");
    let guard = stopped.lock_file(entry).expect("lock");
    let nobody = u64::from(TINY.slot_count);
    guard.set_version(7 << 16 | nobody).expect("version");
    recover(&recoverer, &|_| Ok(file.clone())).expect("recover");
    assert_eq!(guard.version().expect("version"), 7 << 16);
}

/// Nobody else could publish the file while it lives, and it never can.
#[test]
fn a_publisher_whose_disk_refuses_the_mark_gives_up_his_claim() {
    let world = World::new(tiny_size(8));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let [medium, others] = [0, 1].map(|core| world.medium_on_core(core));
    let locks = LocalLocks::default();
    let attach = |medium| {
        let pool = open_locked(medium, locks.clone(), boot(1)).expect("open");
        Stage::new(pool.attach().expect("attach"))
    };
    let [stage, other] = [medium.clone(), others].map(attach);
    let name = name_of(&file);
    let staged = StagedFile::open(&stage, &name, file.clone(), Mode::Strict).expect("stage");
    staged.append(&[7; 5000]).expect("append");
    medium.refuse_write_backs(true);
    let published = staged.publish(Scope::Everything);
    assert!(published.is_err(), "{published:?}");
    let pool = other.attachment().pool();
    let word = pool.version(staged.file()).expect("version");
    assert_eq!(word & adit_pool::PUBLISHER, 0);
    let next = StagedFile::open_entry(&other, staged.file(), file.clone(), Mode::Strict);
    let next = next.expect("open");
    next.publish(Scope::Everything).expect("publish");
    next.take_away(|| {}).expect("take away");
    assert_eq!(file.size().expect("size"), 5000);
}
