//! The stories of `crashes.rs` on a medium behind the page cache: there only a fence makes anything
//! durable, an order lets a crash keep the later and lose the earlier, and what was stored to the tables
//! without a flush goes with the last process. And the same with a fence that was forgotten.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

use adit_pmem::OutOfRange;
use adit_pool::layout::Record;
use adit_sim::{Failure, History, Report, enumerate, replay};

use super::crashes::{boot_of, judge, recovered, tell};
use super::reads::Middle;
use super::*;
use crate::staged::claim::Claim;
use crate::staged::shared::planted::{self, Blind};

use Step::{
    Append, Fsync, Publish, PublishCommitted, Show, ShowAll, TakeAway, TakeAwayByOther, Truncate,
    Write,
};

/// A medium at whose fences something else happens, or nothing.
pub(super) struct Watched {
    medium: SimMedium,
    fence: Box<dyn Fn(&SimMedium) + Send + Sync>,
    /// The next write fails, as on a disk that is full for a moment.
    pub(super) refuses: Arc<AtomicBool>,
}

impl Medium for Watched {
    medium_of!(medium: size load store compare_exchange read flush order);

    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        if self.refuses.swap(false, Ordering::Relaxed) {
            let (len, size) = (from.len() as u64, self.size());
            return Err(OutOfRange::outside(offset, len, size));
        }
        self.medium.write_streaming(offset, from)
    }
    fn fence(&self) {
        (self.fence)(&self.medium);
    }
    fn fence_is_slow(&self) -> bool {
        true
    }
}

/// A medium whose fences only order when `left` of them are used up.
pub(super) fn forgetful(medium: SimMedium, left: Arc<AtomicU64>) -> Watched {
    let one_less = |left: u64| left.checked_sub(1);
    let fence = move |medium: &SimMedium| match left.fetch_update(
        Ordering::Relaxed,
        Ordering::Relaxed,
        one_less,
    ) {
        Ok(_) => medium.fence(),
        Err(_) => medium.order(),
    };
    Watched {
        medium,
        fence: Box::new(fence),
        refuses: Arc::default(),
    }
}

fn run(
    name: &str,
    steps: &[Step],
    mode: Mode,
    states: u64,
    fences: u64,
) -> std::result::Result<Report, Box<Failure>> {
    let config = config(name, 12, states);
    let workload = |world: &World| {
        world.put_behind_page_cache(TINY.header_len());
        let medium = forgetful(world.medium(), Arc::new(AtomicU64::new(fences)));
        let boot = boot_of(world);
        tell(world, steps, mode, boot, medium, |file| file, || None);
    };
    let judge = judge(steps, mode, boot_of);
    let result = enumerate(&config, workload, &judge);
    if let Err(failure) = &result {
        let again = replay(&config, &failure.replay, workload, &judge).expect_err("replay");
        assert_eq!(again.message, failure.message);
    }
    result
}

const STORY: [Step; 16] = [
    Append(100),
    Append(700),
    Fsync,
    Show,
    Write(50, 300),
    Append(5000),
    PublishCommitted,
    Truncate(4000),
    Append(9000),
    Fsync,
    Show,
    Publish,
    Write(0, 20),
    ShowAll,
    Write(5, 300),
    Publish,
];

#[test]
fn every_mode_keeps_its_promise_behind_the_page_cache() {
    for mode in [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict] {
        let name = format!("staged-cached-{mode:?}");
        match run(&name, &STORY, mode, 4_000, u64::MAX) {
            Ok(report) => {
                println!("{name}: {report}");
                assert!(report.states > 300, "{report}");
            }
            Err(failure) => panic!("{name}: {failure}"),
        }
    }
}

/// Ended and begun anew, by this attachment and by another one; what is forgotten was not retired before.
const ENDED: [Step; 9] = [
    Append(100),
    Write(10, 500),
    TakeAway,
    Append(4200),
    TakeAwayByOther,
    Append(30),
    Fsync,
    Truncate(40),
    TakeAway,
];

#[test]
fn taking_away_keeps_every_promise_behind_the_page_cache() {
    for mode in [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict] {
        let name = format!("staged-cached-ended-{mode:?}");
        match run(&name, &ENDED, mode, 3_000, u64::MAX) {
            Ok(report) => {
                println!("{name}: {report}");
                assert!(report.states > 300, "{report}");
            }
            Err(failure) => panic!("{name}: {failure}"),
        }
    }
}

/// A plain write of `atomic` and `posix` waits for no device.
#[test]
fn only_a_commit_fences() {
    for (mode, step, fences) in [
        (Mode::Atomic, Append(5000), 0),
        (Mode::Posix, Append(100), 0),
        (Mode::Atomic, Truncate(10), 0),
        (Mode::Strict, Append(5000), 1),
        (Mode::Strict, Append(9000), 1),
        (Mode::Atomic, Fsync, 1),
        // What counts is durable in the pool, and who only looks at the file need not wait until it is so there.
        (Mode::Strict, ShowAll, 0),
        // Its records end with the entry, and what is durable by then needs none before their space is used again.
        (Mode::Strict, TakeAway, 1),
    ] {
        assert_eq!(fences_of(mode, step), fences, "{mode:?} {step:?}");
    }
}

/// A file and a stage for it behind a page cache, and a number that each fence makes smaller by one.
fn counted() -> (SimFile, Arc<Stage<AnyMedium>>, Arc<AtomicU64>) {
    let world = World::new(tiny_size(24));
    world.put_behind_page_cache(TINY.header_len());
    create_pool(&world, boot(1));
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let medium = forgetful(world.medium(), Arc::clone(&left));
    let pool = open_pool(medium, boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    (world.create("dir/file").expect("create"), stage, left)
}

/// Fences of a step, after one that has made log and chunks ready.
fn fences_of(mode: Mode, step: Step) -> u64 {
    let (file, stage, left) = counted();
    let staged = StagedFile::open(&stage, &name_of(&file), file, mode).expect("stage");
    Append(1).run(1, &staged).expect("step");
    let before = left.load(Ordering::Relaxed);
    step.run(2, &staged).expect("step");
    before - left.load(Ordering::Relaxed)
}

/// The entry of a file becomes durable together with its first record that does: to stage a file waits for nothing.
#[test]
fn to_stage_a_file_fences_nothing() {
    for (mode, step, fences) in [
        (Mode::Strict, Append(5000), 1),
        (Mode::Strict, Append(9000), 1),
        (Mode::Atomic, Append(5000), 0),
    ] {
        let (file, stage, left) = counted();
        let open = || StagedFile::open(&stage, &name_of(&file), file.clone(), mode);
        // Names, log and data have their chunks.
        let before = open().expect("stage");
        Append(9000).run(1, &before).expect("step");
        before.close().expect("close");
        let before = left.load(Ordering::Relaxed);
        let staged = open().expect("stage");
        step.run(2, &staged).expect("step");
        if mode == Mode::Atomic {
            assert_eq!(before - left.load(Ordering::Relaxed), fences, "{mode:?}");
            staged.fsync().expect("fsync");
            assert_eq!(before - left.load(Ordering::Relaxed), 1, "a commit");
        } else {
            let waited = before - left.load(Ordering::Relaxed);
            assert_eq!(waited, fences, "{mode:?} {step:?}");
        }
    }
}

/// A medium on which no record says that the entry of its file may be lost.
struct Trusting(SimMedium);

impl Medium for Trusting {
    medium_of!(0: size load store compare_exchange read flush order);

    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let (uuid, chunk) = (b"a pool for tests", (offset >> TINY.chunk_shift) as u32);
        let position = (offset % TINY.chunk_size() / 64) as u32;
        let record = from.try_into().ok().map(Record::decode);
        let first =
            record.filter(|record| record.is_valid(uuid, chunk, position) && record.prev == 0);
        let Some(mut record) = first else {
            return self.0.write_streaming(offset, from);
        };
        record.flags &= !Record::CHAINED;
        record.crc = record.expected_crc(uuid, chunk, position);
        self.0.write_streaming(offset, &record.encode())
    }
    fn fence(&self) {
        self.0.fence();
    }
    fn fence_is_slow(&self) -> bool {
        true
    }
}

/// Planted: a loss of power takes the name of a file whose first record stays, and the record says that this cannot be.
#[test]
fn a_first_record_that_forgets_its_entry_is_found() {
    for mode in [Mode::Sync, Mode::Strict] {
        let config = config(&format!("staged-cached-trusting-{mode:?}"), 12, 6_000);
        let workload = |world: &World| {
            world.put_behind_page_cache(TINY.header_len());
            let boot = boot_of(world);
            let medium = Trusting(world.medium());
            tell(world, &ENDED, mode, boot, medium, |file| file, || None);
        };
        let found = enumerate(&config, workload, judge(&ENDED, mode, boot_of));
        println!("{mode:?}: {}", found.expect_err("a record without a file"));
    }
}

/// Somebody outside writes to a file whose staging has ended; the next `fences` fences of the pool are
/// the last.
fn written_by_an_outsider(name: &str, fences: u64) -> std::result::Result<Report, Box<Failure>> {
    let story = [Append(500), TakeAway, Write(100, 600)];
    let config = config(&format!("staged-cached-outsider-{name}"), 12, 4_000);
    let workload = |world: &World| {
        world.put_behind_page_cache(TINY.header_len());
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let (stage, file) = world.setup(|| {
            create_pool(world, boot_of(world));
            let file = world.create("dir/file").expect("create");
            file.write_at(0, &first_bytes()).expect("write");
            let medium = forgetful(world.medium(), Arc::clone(&left));
            let pool = open_pool(medium, boot_of(world)).expect("open");
            (Stage::new(pool.attach().expect("attach")), file)
        });
        let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Strict);
        let staged = staged.expect("stage");
        for (nth, step) in (1..).zip(&story[..2]) {
            if *step == TakeAway {
                left.store(fences, Ordering::Relaxed);
            }
            world.begin(nth);
            step.run(nth as usize, &staged).expect("step");
            world.acknowledge(nth);
        }
        world.begin(3);
        file.write_at(100, &bytes_of(3, 600)).expect("write");
        file.sync().expect("sync");
        world.acknowledge(3);
    };
    let states = states(&story);
    enumerate(&config, workload, |world: &World, history: &History| {
        let found = recovered(world, boot_of(world))?;
        let done = history.completed().len();
        // Of his own write a crash may keep a part.
        let his = !history.in_flight().is_empty() && done == 2;
        let allowed = &states[done..=(done + history.in_flight().len())];
        if his || allowed.contains(&found) {
            return Ok(());
        }
        Err(format!("{} bytes, not as after {done}", found.len()))
    })
}

/// What is forgotten is not retired before. So it has to be gone durably before anybody else writes to the
/// file: planted is a publisher who does not see to that.
#[test]
fn a_file_that_was_taken_away_is_an_outsiders() {
    match written_by_an_outsider("fenced", u64::MAX) {
        Ok(report) => println!("outsider: {report}"),
        Err(failure) => panic!("outsider: {failure}"),
    }
    let found = written_by_an_outsider("unfenced", 0);
    println!("unfenced: {}", found.expect_err("records that come back"));
}

/// Every fence is needed: forgetting it and those after it is noticed, in each mode.
#[test]
fn a_forgotten_fence_is_found() {
    for mode in [Mode::Posix, Mode::Atomic, Mode::Strict] {
        // The whole story fences some number of times; a commit, a publication or both come last.
        let steps = [Append(500), Fsync, Write(10, 40), Fsync, Append(30)];
        for fences in [0, 10] {
            let name = format!("staged-cached-forgetful-{mode:?}-{fences}");
            let found = run(&name, &steps, mode, 4_000, fences);
            println!("{name}: {}", found.expect_err("a forgotten fence"));
        }
    }
}

const PAGE: usize = 4096;

type Staged = StagedFile<AnyMedium, SimFile>;

/// What a test knows of a file whose first write waits for the device.
struct Scene {
    staged: Arc<Staged>,
    /// Another attachment: of the monitor, say.
    other: Arc<Stage<AnyMedium>>,
    /// That attachment's view of the file, where the file is shared.
    watcher: Option<Staged>,
    file: SimFile,
    flight: Flight,
}

/// The first write waits for the device; the second may be made meanwhile.
type Flight = [Step; 2];

const FLIGHT: Flight = [Append(700), Write(900, 400)];

impl Scene {
    /// A durable write, in every mode.
    fn write(&self, nth: usize) {
        self.flight[nth - 1].run(nth, &self.staged).expect("step");
        if self.staged.mode == Mode::Atomic {
            self.staged.fsync().expect("fsync");
        }
    }

    fn second_write(&self, world: &World) {
        world.begin(2);
        self.write(2);
        world.acknowledge(2);
    }

    /// Somebody has seen a state of the file, and may have acted on it.
    fn see(&self, world: &World, found: &[u8]) -> usize {
        let states = states(&self.flight);
        let nth = states.iter().position(|state| state == found);
        let nth = nth.expect("no state that the file ever had");
        world.begin(SEEN + nth as u64);
        world.acknowledge(SEEN + nth as u64);
        nth
    }

    /// What the monitor does for an opener who waits; what he then finds.
    fn open(&self, world: &World) -> usize {
        let (entry, base) = (self.staged.file(), self.file.clone());
        let theirs = StagedFile::open_entry(&self.other, entry, base, Mode::Strict);
        theirs.expect("stage").take_away(|| {}).expect("take away");
        self.see(world, &contents(&self.file).expect("read"))
    }
}

/// From here on an acknowledgement tells which state was seen.
const SEEN: u64 = 10;

/// Makes the first write, with `meanwhile` at the instant at which it waits for the device; the next
/// `forgotten` fences after that are none.
fn fly(
    name: &str,
    mode: Mode,
    forgotten: u64,
    meanwhile: impl Fn(&World, &Scene) + Clone + Send + Sync + 'static,
) -> std::result::Result<Report, Box<Failure>> {
    fly_with(FLIGHT, name, (mode, false), forgotten, meanwhile)
}

fn fly_with(
    flight: Flight,
    name: &str,
    (mode, shared): (Mode, bool),
    forgotten: u64,
    meanwhile: impl Fn(&World, &Scene) + Clone + Send + Sync + 'static,
) -> std::result::Result<Report, Box<Failure>> {
    let config = config(&format!("staged-flight-{name}"), 12, 4_000);
    let workload = |world: &World| {
        world.put_behind_page_cache(TINY.header_len());
        let scene: Arc<OnceLock<Weak<Scene>>> = Arc::default();
        let watched = || {
            let (scene, meanwhile) = (Arc::clone(&scene), meanwhile.clone());
            let (once, forget) = (OnceLock::new(), AtomicU64::new(0));
            let fence = move |medium: &SimMedium| {
                let scene = scene.get().and_then(Weak::upgrade);
                if let Some(scene) = scene.filter(|_| once.set(()).is_ok()) {
                    forget.store(forgotten, Ordering::Relaxed);
                    meanwhile(medium.world(), &scene);
                }
                let one_less = |left: u64| left.checked_sub(1);
                let (store, load) = (Ordering::Relaxed, Ordering::Relaxed);
                match forget.fetch_update(store, load, one_less) {
                    Ok(_) => medium.order(),
                    Err(_) => medium.fence(),
                }
            };
            Watched {
                medium: world.medium(),
                fence: Box::new(fence),
                refuses: Arc::default(),
            }
        };
        let all = world.setup(|| {
            create_pool(world, boot_of(world));
            let file = world.create("dir/file").expect("create");
            file.write_at(0, &first_bytes()).expect("write");
            let pool = open_pool(watched(), boot_of(world)).expect("open");
            let stage = Stage::new(pool.attach().expect("attach"));
            let other = Stage::new(pool.attach().expect("attach"));
            let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), mode);
            let staged = Arc::new(staged.expect("stage"));
            // The chunks of log and data are leased from here on.
            staged.append(b"x").expect("append");
            staged.truncate(first_bytes().len() as u64).expect("cut");
            staged.publish(Scope::Everything).expect("publish");
            let watcher = shared.then(|| {
                let entry = staged.file();
                let theirs = StagedFile::open_entry(&other, entry, file.clone(), mode);
                let theirs = theirs.expect("stage");
                theirs.share().expect("share");
                assert_eq!(read_all(&theirs), first_bytes());
                theirs
            });
            Arc::new(Scene {
                staged,
                other,
                watcher,
                file,
                flight,
            })
        });
        scene.set(Arc::downgrade(&all)).expect("once");
        world.begin(1);
        all.write(1);
        world.acknowledge(1);
    };
    let judge = move |world: &World, history: &History| flight_judge(&flight, world, history);
    let result = enumerate(&config, workload, judge);
    if let Err(failure) = &result {
        println!("{name}: {failure}");
        let again = replay(&config, &failure.replay, workload, judge).expect_err("replay");
        assert_eq!(again.message, failure.message);
    }
    result
}

/// The file is as after some of the writes, in their order, and has all that was acknowledged or seen.
fn flight_judge(flight: &Flight, world: &World, history: &History) -> Result<(), String> {
    let found = recovered(world, boot_of(world))?;
    let state = states(flight).iter().position(|state| *state == found);
    let nth = |id: &u64| (id % SEEN) as usize;
    let least = history.completed().iter().map(nth).max().unwrap_or(0);
    match state {
        Some(state) if state >= least => Ok(()),
        state => Err(format!(
            "the file has {} bytes and is state {state:?}; told or seen: {least}",
            found.len()
        )),
    }
}

fn flies(
    name: &str,
    mode: Mode,
    meanwhile: impl Fn(&World, &Scene) + Clone + Send + Sync + 'static,
) {
    let report =
        fly(name, mode, 0, meanwhile).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    println!("{name}: {report}");
    assert!(report.states > 50, "{report}");
}

/// While a write waits for the device nobody else has to: not another write, not whoever opens the file,
/// not a read, which does not see what a crash would take back. And every crash leaves a state that the
/// file had, with everything that anybody was told or has seen.
#[test]
fn a_write_that_waits_for_the_device_holds_nobody_up() {
    flies("write", Mode::Strict, |world, scene| {
        scene.second_write(world)
    });
    flies("read", Mode::Strict, |world, scene| {
        assert_eq!(scene.see(world, &read_all(&scene.staged)), 0);
    });
    flies("write-read", Mode::Strict, |world, scene| {
        scene.second_write(world);
        assert_eq!(scene.see(world, &read_all(&scene.staged)), 2);
    });
    flies("open", Mode::Strict, |world, scene| {
        // A stopped program's bytes are there for whoever opens the file.
        assert_eq!(scene.open(world), 1);
    });
    flies("write-open", Mode::Strict, |world, scene| {
        scene.second_write(world);
        assert_eq!(scene.open(world), 2);
    });
    flies("publish", Mode::Strict, |_, scene| {
        scene.staged.publish(Scope::Everything).expect("publish");
    });
    flies("take-away", Mode::Strict, |world, scene| {
        scene.staged.take_away(|| {}).expect("take away");
        assert_eq!(scene.see(world, &contents(&scene.file).expect("read")), 1);
    });
}

/// The second write is one that cuts the file, or one of several records.
const OTHER_FLIGHTS: [(&str, Flight); 2] = [
    ("cut", [Append(700), Truncate(500)]),
    ("long", [Append(700), Write(900, LONG)]),
];
/// More than an extent has.
const LONG: usize = 40_000;

#[test]
fn whatever_follows_a_write_that_waits_for_the_device_is_chained_to_it() {
    for (name, flight) in OTHER_FLIGHTS {
        let second = |world: &World, scene: &Scene| scene.second_write(world);
        match fly_with(
            flight,
            &format!("chained-{name}"),
            (Mode::Strict, false),
            0,
            second,
        ) {
            Ok(report) => println!("{name}: {report}"),
            Err(failure) => panic!("{name}: {failure}"),
        }
    }
}

/// Whoever shares the file sees at once what a write has logged that waits for the device, and may act on it: the bytes
/// are there for good before he does.
#[test]
fn what_another_program_sees_of_a_shared_file_stays() {
    for (name, mode) in [("sync", Mode::Sync), ("strict", Mode::Strict)] {
        let name = format!("shared-{name}");
        let seen = |world: &World, scene: &Scene| {
            let watcher = scene.watcher.as_ref().expect("shared");
            assert_eq!(scene.see(world, &read_all(watcher)), 1);
        };
        let found = fly_with(FLIGHT, &name, (mode, true), 0, seen);
        let report = found.unwrap_or_else(|failure| panic!("{name}: {failure}"));
        assert!(report.states > 50, "{report}");
        // Planted: the sync of the one who follows is none.
        fly_with(FLIGHT, &format!("{name}-early"), (mode, true), 1, seen).expect_err("not synced");
    }
}

/// The same of a commit that waits for the device.
#[test]
fn a_commit_that_waits_for_the_device_holds_nobody_up() {
    flies("commit-write", Mode::Atomic, |world, scene| {
        scene.second_write(world);
    });
    flies("commit-open", Mode::Atomic, |world, scene| {
        assert_eq!(scene.open(world), 1);
    });
    flies("commit-write-open", Mode::Atomic, |world, scene| {
        scene.second_write(world);
        assert_eq!(scene.open(world), 2);
    });
    flies("commit-publish", Mode::Atomic, |_, scene| {
        scene.staged.publish(Scope::Committed).expect("publish");
    });
    flies("commit-take-away", Mode::Atomic, |world, scene| {
        scene.staged.take_away(|| {}).expect("take away");
        assert_eq!(scene.see(world, &contents(&scene.file).expect("read")), 1);
    });
}

/// Planted: a publisher who takes a commit for durable when it is written.
#[test]
fn a_commit_that_is_believed_early_is_found() {
    let early = |_: &World, scene: &Scene| {
        let commit = scene.staged.look().commit;
        scene.staged.change().committed = commit;
        scene.staged.publish(Scope::Committed).expect("publish");
    };
    fly("commit-early", Mode::Atomic, 0, early).expect_err("a base file with half a commit");
}

/// The same of who only shows it to those who do not look at the pool.
#[test]
fn a_commit_that_is_shown_early_is_found() {
    let early = |_: &World, scene: &Scene| {
        let commit = scene.staged.look().commit;
        scene.staged.change().committed = commit;
        scene.staged.show_committed().expect("show");
    };
    fly("shown-early", Mode::Atomic, 0, early).expect_err("a base file with half a commit");
    flies("shown", Mode::Atomic, |_, scene| {
        scene.staged.show_committed().expect("show");
    });
}

/// Planted: a read that sees what is not durable yet.
#[test]
fn a_reader_that_sees_too_much_is_found() {
    let early = |world: &World, scene: &Scene| {
        let waiting = scene.staged.look().last_waiting().expect("a write waits");
        scene.staged.change().reveal(waiting);
        assert_eq!(scene.see(world, &read_all(&scene.staged)), 1);
    };
    fly("read-early", Mode::Strict, 0, early).expect_err("a read of bytes that a crash takes back");
}

/// Planted: a publisher who does not make durable what he folds into the base file.
#[test]
fn a_publisher_that_does_not_fence_is_found() {
    let open = |world: &World, scene: &Scene| {
        scene.open(world);
    };
    fly("publish-early", Mode::Strict, 1, open).expect_err("a base file with half a write");
}

/// Planted: a write that does not say that the one before it is not durable yet.
#[test]
fn a_write_that_forgets_the_one_before_is_found() {
    let alone = |world: &World, scene: &Scene| {
        scene.staged.change().durable = u64::from(u32::MAX);
        scene.second_write(world);
    };
    fly("unchained", Mode::Strict, 0, alone).expect_err("the second write without the first");
    for (name, flight) in OTHER_FLIGHTS {
        let name = format!("unchained-{name}");
        fly_with(flight, &name, (Mode::Strict, false), 0, alone)
            .expect_err("the second without the first");
    }
}

/// Records carry the CRC of their bytes here, so nothing that newer writes cover is used again before it
/// is published.
#[test]
fn covered_pages_keep_their_bytes_behind_the_page_cache() {
    let steps = [
        Write(0, PAGE),
        Write(0, PAGE),
        Fsync,
        Write(0, PAGE),
        Write(PAGE, PAGE),
        Fsync,
        Write(0, PAGE),
    ];
    for mode in [Mode::Atomic, Mode::Strict] {
        let name = format!("staged-cached-covered-{mode:?}");
        match run(&name, &steps, mode, 2_000, u64::MAX) {
            Ok(report) => println!("{name}: {report}"),
            Err(failure) => panic!("{name}: {failure}"),
        }
    }
}

/// What another program does with what it finds in the log while its writer waits for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finds {
    /// Writes it to the base file.
    Shows,
    /// Publishes it.
    Publishes,
    /// Has written a half of it to the base file.
    Folds,
    /// The same, and a thread of the writer's has had the file's lock since.
    FoldsFollowed,
}

impl Finds {
    fn does(self, theirs: &Staged, ours: &Staged) {
        let attachment = theirs.stage.attachment();
        match self {
            Self::Shows => theirs.show_committed().expect("show"),
            Self::Publishes => drop(theirs.publish(Scope::Everything).expect("publish")),
            Self::Folds | Self::FoldsFollowed => {
                let guard = theirs.lock().expect("lock");
                std::mem::forget(Claim::take(attachment, &guard).expect("claim"));
                let base = theirs.base();
                base.write_at(PAGE as u64, &[3; PAGE]).expect("write");
            }
        }
        if self == Self::FoldsFollowed {
            drop(ours.lock().expect("lock"));
        }
    }
}

/// What a read finds of a file whose first page is staged, while a write of two pages waits for the device, and another
/// program has found that in the log.
fn read_what_was_found(mode: Mode, shared: bool, finds: Finds, blind: Blind) -> Vec<u8> {
    let world = World::new(tiny_size(24));
    world.put_behind_page_cache(TINY.header_len());
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &[1; 2 * PAGE]).expect("write");
    let middle = Middle::default();
    let fence = {
        let middle = middle.clone();
        move |medium: &SimMedium| {
            middle.happens();
            medium.fence();
        }
    };
    let medium = Watched {
        medium: world.medium(),
        fence: Box::new(fence),
        refuses: Arc::default(),
    };
    let pool = open_pool(medium, boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let other = Stage::new(pool.attach().expect("attach"));
    let ours =
        Arc::new(StagedFile::open(&stage, &name_of(&file), file.clone(), mode).expect("stage"));
    // The chunks of log and data are leased from here on.
    ours.write_at(0, &[7; 2 * PAGE]).expect("write");
    ours.write_at(0, &[[2; PAGE], [1; PAGE]].concat())
        .expect("write");
    ours.publish(Scope::Everything).expect("publish");
    ours.write_at(0, &[2; PAGE]).expect("write");
    let entry = ours.file();
    let open = {
        let (other, file) = (Arc::clone(&other), file.clone());
        move || StagedFile::open_entry(&other, entry, file, mode).expect("stage")
    };
    let watcher = shared.then(|| {
        let theirs = open.clone()();
        theirs.share().expect("share");
        theirs
    });
    let found = Arc::new(OnceLock::new());
    middle.set({
        let (ours, found) = (Arc::clone(&ours), Arc::clone(&found));
        move || {
            assert!(ours.look().last_waiting().is_some(), "nothing waits");
            let theirs = watcher.unwrap_or_else(open);
            drop(theirs.lock().expect("lock"));
            finds.does(&theirs, &ours);
            planted::be(blind);
            found.set(read_all(&ours)).expect("once");
            planted::be(Blind::No);
        }
    });
    ours.write_at(0, &[3; 2 * PAGE]).expect("write");
    assert_eq!(read_all(&ours), [3; 2 * PAGE]);
    found.get().expect("nothing waited").clone()
}

/// A write that waits for the device is not in the overlay of its process, and may be in the base file: another program
/// has found it in the log. A read sees all of it, or nothing.
#[test]
fn what_waits_for_the_device_and_was_published_is_seen_whole() {
    let before = [[2; PAGE], [1; PAGE]].concat();
    let after = vec![3; 2 * PAGE];
    let all = [
        Finds::Shows,
        Finds::Publishes,
        Finds::Folds,
        Finds::FoldsFollowed,
    ];
    for mode in [Mode::Sync, Mode::Strict] {
        for shared in [false, true] {
            for finds in all {
                let name = format!("{mode:?}, shared {shared}: {finds:?}");
                let read = read_what_was_found(mode, shared, finds, Blind::No);
                assert!(read == before || read == after, "{name}");
                // Who sees the mark move shows what waits and is retired.
                if finds == Finds::Publishes {
                    continue;
                }
                let read = read_what_was_found(mode, shared, finds, Blind::Waiting);
                assert!(
                    read != before && read != after,
                    "{name}: the test shows nothing"
                );
            }
        }
    }
}
