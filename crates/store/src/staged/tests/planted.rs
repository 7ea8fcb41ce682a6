//! Planted bugs: the enumeration of `crashes.rs` must find each of them, and the string it prints must
//! lead back to the same crash.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_pmem::OutOfRange;
use adit_pool::SlotLocks;
use adit_sim::{Failure, History, enumerate, replay};

use super::super::relink::Plant;
use super::crashes::{boot_of, judge, recovered, tell, tell_relinking};
use super::*;

pub(super) fn found<W, J>(name: &str, workload: W, judge: J) -> Box<Failure>
where
    W: Fn(&World) + Sync,
    J: Fn(&World, &History) -> Result<(), String> + Sync,
{
    let config = config(&format!("staged-planted-{name}"), 12, 4_000);
    let failure = enumerate(&config, &workload, &judge).expect_err(name);
    println!("{name}: {failure}");
    let again = replay(&config, &failure.replay, &workload, &judge).expect_err("replay");
    // Not the fingerprint: a lock word in the image names the thread that ran the recovery.
    assert_eq!(again.message, failure.message);
    assert_eq!(again.history, failure.history);
    failure
}

use Step::{Append, Fsync, Publish, TakeAway, Write};

/// A medium that forgets the fence between staged bytes and their record.
struct NoDataFence {
    medium: SimMedium,
    data: AtomicBool,
}

impl Medium for NoDataFence {
    medium_of!(medium: size load store compare_exchange read);

    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        // 500 bytes are staged bytes: names and zeroed pages have other lengths.
        if from.len() == 500 {
            self.data.store(true, Ordering::Relaxed);
        }
        // Played by another core than the record's: the record's fence drains its own core only.
        let core = if from.len() == 500 { 1 } else { 0 };
        self.medium
            .world()
            .medium_on_core(core)
            .write_streaming(offset, from)
    }
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.medium.world().medium_on_core(0).flush(offset, len)
    }
    fn fence(&self) {
        if !self.data.swap(false, Ordering::Relaxed) {
            self.medium.world().medium_on_core(0).fence();
        }
    }
}

#[test]
fn a_record_before_its_bytes_are_fenced() {
    let steps = [Append(500), Append(500)];
    let workload = |world: &World| {
        let medium = NoDataFence {
            medium: world.medium(),
            data: AtomicBool::new(false),
        };
        tell(
            world,
            &steps,
            Mode::Strict,
            boot_of(world),
            medium,
            |file| file,
            || None,
        );
    };
    found(
        "no-data-fence",
        workload,
        judge(&steps, Mode::Strict, boot_of),
    );
}

/// A base file whose sync is forgotten: records are retired before it is durable.
struct NeverSynced(SimFile);

impl BaseFile for NeverSynced {
    base_of!(0: size read_at write_at);

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
}

#[test]
fn records_retired_before_the_base_is_durable() {
    for mode in [Mode::Posix, Mode::Strict] {
        let steps = [Append(100), Write(10, 40), Fsync, Publish];
        let workload = |world: &World| {
            let medium = world.medium();
            tell(
                world,
                &steps,
                mode,
                boot_of(world),
                medium,
                NeverSynced,
                || None,
            );
        };
        found("retire-early", workload, judge(&steps, mode, boot_of));
    }
}

/// Nothing is staged any more, and power fails before the base file is durable.
#[test]
fn a_file_forgotten_before_the_base_is_durable() {
    let steps = [Append(100), Write(10, 40), TakeAway];
    let workload = |world: &World| {
        let medium = world.medium();
        let (boot, mode) = (boot_of(world), Mode::Strict);
        tell(world, &steps, mode, boot, medium, NeverSynced, || None);
    };
    found(
        "forget-early",
        workload,
        judge(&steps, Mode::Strict, boot_of),
    );
}

#[test]
fn a_replay_that_ignores_the_boot() {
    let one_boot = |_: &World| boot(1);
    let steps = [Append(100), Fsync, Append(50), Write(0, 20), Fsync];
    let workload = |world: &World| {
        let medium = world.medium();
        tell(
            world,
            &steps,
            Mode::Atomic,
            boot(1),
            medium,
            |file| file,
            || None,
        );
    };
    found("one-boot", workload, judge(&steps, Mode::Atomic, one_boot));
}

/// Locks by which everybody looks dead once `blind` is set: claims are then taken over from the
/// living, as if publishers did not exclude each other.
#[derive(Clone, Default)]
struct BlindLocks {
    locks: LocalLocks,
    blind: Arc<AtomicBool>,
}

impl SlotLocks for BlindLocks {
    fn claim(&self, slot: u32) -> adit_pool::Result<Option<Box<dyn adit_pool::Hold>>> {
        self.locks.claim(slot)
    }
    fn is_alive(&self, slot: u32) -> bool {
        !self.blind.load(Ordering::Relaxed) && self.locks.is_alive(slot)
    }
    fn gate(&self) -> adit_pool::Result<Box<dyn adit_pool::Hold>> {
        self.locks.gate()
    }
}

/// A base file at whose first write something else happens first.
pub(super) struct Meddled<F> {
    pub(super) file: SimFile,
    pub(super) writes: AtomicU64,
    pub(super) meddle: F,
}

impl<F: Fn() + Send + Sync> BaseFile for Meddled<F> {
    base_of!(file: size read_at sync);

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        if self.writes.fetch_add(1, Ordering::Relaxed) == 0 {
            (self.meddle)();
        }
        self.file.write_at(offset, from)
    }
}

/// Two attachments on one file. While the first publishes, the second overwrites the same bytes,
/// strictly, and wants to publish as well.
fn two_publishers(world: &World, blind: bool) {
    let locks = BlindLocks::default();
    let (pool, file) = world.setup(|| {
        create_pool(world, boot_of(world));
        let file = world.create("dir/file").expect("create");
        file.write_at(0, &first_bytes()).expect("write");
        let pool = open_locked(world.medium(), locks.clone(), boot_of(world));
        (pool.expect("open"), file)
    });
    let one = Stage::new(pool.attach().expect("attach"));
    let two = Stage::new(pool.attach().expect("attach"));
    locks.blind.store(blind, Ordering::Relaxed);
    let meddle = || {
        let other = StagedFile::open(&two, &name_of(&file), file.clone(), Mode::Strict);
        let other = other.expect("stage");
        world.begin(2);
        other.write_at(0, &bytes_of(2, 100)).expect("write");
        world.acknowledge(2);
        match other.publish(Scope::Everything) {
            Err(Error::Publishing { slot }) => assert_eq!(slot, one.attachment().slot()),
            result => {
                assert!(blind, "it must wait for the first publisher");
                result.expect("publish");
            }
        }
    };
    let base = Meddled {
        file: file.clone(),
        writes: AtomicU64::new(0),
        meddle,
    };
    let staged = StagedFile::open(&one, &name_of(&file), base, Mode::Strict).expect("stage");
    world.begin(1);
    staged.write_at(0, &bytes_of(1, 100)).expect("write");
    world.acknowledge(1);
    // Overtaken, it is told to try again, and does.
    staged.publish(Scope::Everything).expect("publish");
}

fn two_publishers_judge(world: &World, history: &History) -> Result<(), String> {
    let found = recovered(world, boot_of(world))?;
    let state = |nth: usize| {
        let mut state = first_bytes();
        Step::Write(0, 100).change(nth, &mut state);
        state
    };
    let done = history.completed().len();
    let begun = done + history.in_flight().len();
    let fits = |nth: usize| match nth {
        0 => found == first_bytes(),
        nth => found == state(nth),
    };
    if (done..=begun).any(fits) {
        return Ok(());
    }
    Err(format!(
        "{done} writes acknowledged, and the file is another"
    ))
}

#[test]
fn two_publishers_exclude_each_other() {
    let config = config("staged-two-publishers", 12, 4_000);
    let report = enumerate(
        &config,
        |world: &World| two_publishers(world, false),
        two_publishers_judge,
    );
    println!("{}", report.unwrap_or_else(|failure| panic!("{failure}")));
}

#[test]
fn two_publishers_that_do_not() {
    found(
        "no-claim",
        |world: &World| two_publishers(world, true),
        two_publishers_judge,
    );
}

/// Pages that follow each other in the file are written with one call, in whatever order they came.
#[test]
fn neighbours_are_published_together() {
    let world = World::new(tiny_size(12));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let base = Meddled {
        file: file.clone(),
        writes: AtomicU64::new(0),
        meddle: || {},
    };
    let staged = StagedFile::open(&stage, &name_of(&file), base, Mode::Strict).expect("stage");
    let mut model = vec![0; 8 * 4096];
    for page in [3, 7, 1, 2, 0] {
        let bytes = bytes_of(page, 4096);
        staged.write_at(page as u64 * 4096, &bytes).expect("write");
        model[page * 4096..][..4096].copy_from_slice(&bytes);
    }
    staged.publish(Scope::Everything).expect("publish");
    assert_eq!(staged.base().writes.load(Ordering::Relaxed), 2);
    assert_eq!(contents(&file).expect("read"), model);
}

/// Relinks that go wrong: each is found.
#[test]
fn relinks_that_are_not_careful() {
    let steps = [Append(3796), Append(8192), Write(4096, 4096), Publish];
    let planted = [
        Can::ExchangeTwice,
        Can::ExchangeUnsynced,
        Can::CloneUnsynced,
    ];
    for can in planted {
        for cached in [false, true] {
            let judge = judge(&steps, Mode::Strict, boot_of);
            found(
                &format!("relink-{can:?}-{cached}"),
                |world: &World| tell_relinking(world, &steps, Mode::Strict, can, cached),
                judge,
            );
        }
    }
}

/// Staged bytes go to the base file, and the log does not know.
#[test]
fn relinks_without_intent() {
    let steps = [Append(3796), Append(8192), Write(4096, 4096), Publish];
    for can in [Can::Exchange, Can::Clone] {
        let workload = |world: &World| {
            let relink = || {
                let mut relink = relink_from(world);
                relink.plant = Plant::NoIntent;
                Some(relink)
            };
            let base = |file| SimBase::File(file, can);
            let (boot, medium) = (boot_of(world), world.medium());
            tell(world, &steps, Mode::Strict, boot, medium, base, relink);
        };
        let judge = judge(&steps, Mode::Strict, boot_of);
        found(&format!("no-intent-{can:?}"), workload, judge);
    }
}
