//! Appends alone are staged, overwrites stay in place: crashes everywhere, and a file that agrees with a
//! plain vector.
//!
//! After deaths of processes the file is as after the last call that was acknowledged, or the one in
//! flight. After a loss of power what was appended is as at one commit, and each byte below is of a
//! version that is not older than that of the last `fsync`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

use adit_sim::{Crash, History, Rng, enumerate};

use super::super::{AppendsOnly, Where};
use super::crashes::{boot_of, recovered};
use super::planted::found;
use super::*;

/// Wrong ways to do it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    /// `fsync` leaves out what was written in place.
    NoSync,
    /// What is staged is overwritten in place.
    AboveTheFloor,
}

/// What a program with one description does. A write that is divided is published first and then done in
/// the base file, as the library has the kernel do it; the file is staged anew.
fn run_step(
    nth: usize,
    step: Step,
    staged: StagedFile<AnyMedium, SimFile>,
    only: AppendsOnly,
    open: &impl Fn() -> (StagedFile<AnyMedium, SimFile>, AppendsOnly),
    plant: Plant,
) -> Result<(StagedFile<AnyMedium, SimFile>, AppendsOnly)> {
    match step {
        Step::Write(at, len) => {
            let (at, bytes) = (at as u64, bytes_of(nth, len));
            let place = match (only.place(at, len as u64), plant) {
                (Where::Staged, Plant::AboveTheFloor) if at + len as u64 <= staged.size()? => {
                    Where::InPlace
                }
                (place, _) => place,
            };
            match place {
                Where::Staged => staged.write_at(at, &bytes)?,
                Where::InPlace => {
                    staged.base().write_at(at, &bytes)?;
                    only.wrote_in_place(&staged);
                }
                Where::Divided => {
                    staged.take_away(|| {})?;
                    staged.base().write_at(at, &bytes)?;
                    drop(staged);
                    let anew = open();
                    // As the library does before it stages a file.
                    anew.0.base().sync()?;
                    return Ok(anew);
                }
            }
        }
        Step::Fsync if plant != Plant::NoSync => only.fsync(&staged)?,
        Step::TakeAway => {
            staged.take_away(|| {})?;
            drop(staged);
            return Ok(open());
        }
        step => step.run(nth, &staged)?,
    }
    Ok((staged, only))
}

/// A pool, and a file that is durable.
fn begin(world: &World) -> (Arc<Stage<AnyMedium>>, SimFile) {
    let boot = boot_of(world);
    create_pool(world, boot);
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &first_bytes()).expect("write");
    file.sync().expect("sync");
    let pool = open_pool(world.medium(), boot).expect("open");
    (Stage::new(pool.attach().expect("attach")), file)
}

fn tell(world: &World, steps: &[Step], plant: Plant) {
    let (stage, file) = world.setup(|| begin(world));
    let open = || {
        let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Posix);
        let staged = staged.expect("stage");
        // The library has synced it: the first commit does not hide that a write below the floor was not.
        staged.base_is_durable();
        let only = AppendsOnly::of(&staged).expect("floor");
        (staged, only)
    };
    let (mut staged, mut only) = open();
    for (nth, step) in steps.iter().enumerate() {
        let nth = nth + 1;
        world.begin(nth as u64);
        (staged, only) = run_step(nth, *step, staged, only, &open, plant).expect("step");
        world.acknowledge(nth as u64);
    }
}

/// Whether the file may be what was found; `floor` is where it was first staged, and no step moves it.
fn judge(steps: &[Step]) -> impl Fn(&World, &History) -> Result<(), String> + Sync {
    let states = states(steps);
    let floor = first_bytes().len();
    let commits: Vec<bool> = steps.iter().map(|step| step.is_commit()).collect();
    move |world, history| {
        let found = recovered(world, boot_of(world))?;
        let done = history.completed().len();
        let begun = done + history.in_flight().len();
        let is_point = |nth: &usize| *nth == 0 || commits[nth - 1];
        let last = (0..=done).rev().find(is_point).unwrap_or(0);
        let lost = history.lost_power();
        let (head, tail) = found.split_at(floor.min(found.len()));
        let tails: Vec<usize> = if !lost {
            (done..=begun).collect()
        } else if history.crashes()[0] == Crash::Kill {
            (last..=begun).collect()
        } else {
            (last..=begun).filter(is_point).collect()
        };
        if !tails.iter().any(|nth| states[*nth][floor..] == *tail) {
            return Err(format!(
                "{} bytes at the end, allowed are {tails:?}",
                tail.len()
            ));
        }
        let heads = if lost { last..=begun } else { done..=begun };
        let stray = (0..floor).find(|&at| {
            !heads
                .clone()
                .any(|nth| Some(&states[nth][at]) == head.get(at))
        });
        match stray {
            Some(at) => Err(format!("byte {at} is of none of the versions {heads:?}")),
            None => Ok(()),
        }
    }
}

use Step::{Append, Fsync, Publish, TakeAway, Write};

const STORY: [Step; 12] = [
    Append(100),
    Write(10, 200),
    Fsync,
    Append(700),
    Write(40, 60),
    Write(350, 100),
    Publish,
    Write(420, 30),
    Write(0, 300),
    Fsync,
    Append(50),
    TakeAway,
];

#[test]
fn overwrites_in_place_beside_staged_appends() {
    let config = config("staged-appends", 12, 6_000);
    let told = enumerate(
        &config,
        |world| tell(world, &STORY, Plant::Nothing),
        judge(&STORY),
    );
    match told {
        Ok(report) => {
            println!("staged-appends: {report}");
            assert!(report.states > 500);
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn what_was_written_in_place_is_synced() {
    let steps = [Append(100), Write(10, 200), Fsync, Append(5)];
    found(
        "in-place-unsynced",
        |world| tell(world, &steps, Plant::NoSync),
        judge(&steps),
    );
}

#[test]
fn what_is_published_is_not_overwritten_in_place() {
    // The record of the append is durable and not retired: the replay is older than the overwrite.
    let steps = [
        Append(100),
        Fsync,
        Publish,
        Append(700),
        Publish,
        Write(320, 60),
        Fsync,
    ];
    let workload = |world: &World| {
        let (staged, file) = world.setup(|| {
            let (stage, file) = begin(world);
            let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Posix);
            (staged.expect("stage"), file)
        });
        for (nth, step) in steps.iter().enumerate() {
            let nth = nth + 1;
            world.begin(nth as u64);
            match step {
                Publish => {
                    // The publisher has written, and not retired yet.
                    let bytes = read_all(&staged);
                    file.write_at(0, &bytes).expect("write");
                    file.sync().expect("sync");
                }
                Write(at, len) => {
                    let done = file.write_at(*at as u64, &bytes_of(nth, *len));
                    done.and_then(|()| file.sync()).expect("write");
                }
                step => step.run(nth, &staged).expect("step"),
            }
            world.acknowledge(nth as u64);
        }
    };
    found("above-the-floor", workload, judge(&steps));
}

/// A base file in the middle of whose first sync something else happens.
struct Interrupted {
    file: SimFile,
    begun: AtomicU64,
    ended: Arc<AtomicU64>,
    meanwhile: Box<dyn Fn() + Send + Sync>,
}

impl BaseFile for Interrupted {
    base_of!(file: size read_at write_at);

    fn sync(&self) -> std::result::Result<(), Errno> {
        if self.begun.fetch_add(1, Ordering::SeqCst) == 0 {
            (self.meanwhile)();
        }
        self.file.sync()?;
        self.ended.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

type Watched = (StagedFile<AnyMedium, Interrupted>, AppendsOnly);

/// What was written before an `fsync` is durable when that returns, also if another one that began
/// before has not returned yet.
#[test]
fn an_fsync_does_not_rely_on_one_that_is_under_way() {
    let world = World::new(tiny_size(6));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &first_bytes()).expect("write");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let both: Arc<OnceLock<Weak<Watched>>> = Arc::default();
    let (ended, seen) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(u64::MAX)),
    );
    let base = Interrupted {
        begun: AtomicU64::new(0),
        ended: Arc::clone(&ended),
        meanwhile: Box::new({
            let (both, seen) = (Arc::clone(&both), Arc::clone(&seen));
            move || {
                let both = both.get().and_then(Weak::upgrade).expect("the file");
                both.1.fsync(&both.0).expect("fsync");
                seen.store(ended.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }),
        file: file.clone(),
    };
    let staged = StagedFile::open(&stage, &name_of(&file), base, Mode::Posix).expect("stage");
    let only = AppendsOnly::of(&staged).expect("floor");
    let watched = Arc::new((staged, only));
    let _ = both.set(Arc::downgrade(&watched));
    let (staged, only) = &*watched;
    staged.base().write_at(3, b"in place").expect("write");
    only.wrote_in_place(staged);
    only.fsync(staged).expect("fsync");
    assert_eq!(
        seen.load(Ordering::SeqCst),
        1,
        "syncs when the second fsync returned"
    );
    // And nothing is synced for nothing.
    only.fsync(staged).expect("fsync");
    assert_eq!(staged.base().begun.load(Ordering::SeqCst), 2);
}

/// The file agrees with a plain vector whatever is done to it.
#[test]
fn random_operations_agree_with_a_plain_vector() {
    for seed in 0..16 {
        assert!(agrees(seed, Plant::Nothing), "seed {seed}");
    }
    assert!(!agrees(1, Plant::AboveTheFloor));
}

fn agrees(seed: u64, plant: Plant) -> bool {
    let mut rng = Rng::new(seed);
    let world = World::new(tiny_size(40));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &first_bytes()).expect("write");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let open = || {
        let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Posix);
        let staged = staged.expect("stage");
        let only = AppendsOnly::of(&staged).expect("floor");
        (staged, only)
    };
    let (mut staged, mut only) = open();
    let mut model = first_bytes();
    for nth in 1..=120 {
        let step = match rng.below(16) {
            0..5 => Append(1 + rng.below(900) as usize),
            5..12 => {
                let at = rng.below(model.len() as u64 + 200) as usize;
                Write(at, 1 + rng.below(400) as usize)
            }
            12 => Fsync,
            13 | 14 => Publish,
            _ => TakeAway,
        };
        (staged, only) = run_step(nth, step, staged, only, &open, plant).expect("step");
        step.change(nth, &mut model);
        if read_all(&staged) != model {
            return false;
        }
    }
    staged.close().expect("close");
    contents(&file).expect("read") == model
}
