//! Several files committed at one instant, crashed at every event, with publications of single files in
//! between and again inside the recovery; on persistent memory and behind the page cache.
//!
//! The judge looks at all files at once. After a loss of power they are what they were at one commit, of
//! one file or of all, not older than the last acknowledged one. After deaths they are as after the last
//! acknowledged call, or the one in flight; if power is lost in the recovery, one of the two.

use std::sync::atomic::{AtomicU64, Ordering};

use adit_pmem::OutOfRange;
use adit_pool::layout::{LINE, Record, RecordKind};
use adit_sim::{Crash, Failure, History, Report, enumerate, replay};

use super::crashes::boot_of;
use super::*;

const FILES: usize = 3;

/// One step, of one file or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    On(usize, Step),
    /// Commits all files at one instant.
    Group,
    /// The planted bug: the last one is forgotten.
    GroupWithoutLast,
    /// The planted bug: one after the other.
    OneByOne,
    /// The program dies, and another one, which looked after it, takes its files away. The last step.
    Death,
    /// The planted bug: without committing all of them first.
    DeathOneByOne,
    /// Another attachment, which looks after them, publishes what is committed of all files.
    Aged,
    /// The planted bug: everything.
    AgedTooFar,
    /// A file loses its name.
    Unlink(usize),
    /// What is staged of it goes with it. The last step.
    Discard(usize),
}

use Act::{Aged, AgedTooFar, Death, DeathOneByOne, Discard, Group, On, Unlink};
use Step::{Append, Fsync, Publish, PublishCommitted, TakeAway, Truncate, Write};

type Contents = Vec<Vec<u8>>;

/// What the files are for a program after each step, and what a crash of the system leaves of them.
fn histories(acts: &[Act]) -> (Vec<Contents>, Vec<Contents>) {
    let mut seen = vec![vec![first_bytes(); FILES]];
    let mut durable = seen.clone();
    for (nth, act) in acts.iter().enumerate() {
        let mut files = seen.last().expect("first").clone();
        let mut kept = durable.last().expect("first").clone();
        match *act {
            On(file, step) => {
                step.change(nth + 1, &mut files[file]);
                if step.is_commit() {
                    kept[file].clone_from(&files[file]);
                }
            }
            // Nothing is there from then on.
            Unlink(file) => {
                files[file].clear();
                kept[file].clear();
            }
            Discard(_) | Aged | AgedTooFar => {}
            _ => kept.clone_from(&files),
        }
        seen.push(files);
        durable.push(kept);
    }
    (seen, durable)
}

fn path(nth: usize) -> String {
    format!("dir/{nth}")
}

fn tell(world: &World, acts: &[Act], medium: impl Medium + 'static) {
    let boot = boot_of(world);
    let (stage, other, files) = world.setup(|| {
        create_pool(world, boot);
        let create = |nth| {
            let file = world.create(&path(nth)).expect("create");
            file.write_at(0, &first_bytes()).expect("write");
            file.sync().expect("sync");
            file
        };
        let files: Vec<SimFile> = (0..FILES).map(create).collect();
        let pool = open_pool(medium, boot).expect("open");
        let stages = [(); 2].map(|()| Stage::new(pool.attach().expect("attach")));
        let [stage, other] = stages;
        (stage, other, files)
    });
    let open_at = |stage, file: &SimFile| {
        StagedFile::open(stage, &name_of(file), file.clone(), Mode::Atomic).expect("stage")
    };
    let open = |file: &SimFile| open_at(&stage, file);
    let mut staged: Vec<_> = files.iter().map(open).collect();
    // What the other one knows of them from one time to the next.
    let mut watched: Vec<Option<StagedFile<AnyMedium, SimFile>>> =
        files.iter().map(|_| None).collect();
    for (nth, act) in acts.iter().enumerate() {
        let nth = nth + 1;
        world.begin(nth as u64);
        let all: Vec<_> = staged.iter().collect();
        match *act {
            On(file, step) => step.run(nth, &staged[file]).expect("step"),
            Act::GroupWithoutLast => StagedFile::commit_group(&all[1..]).expect("group"),
            Act::OneByOne => all.iter().for_each(|file| file.fsync().expect("fsync")),
            Death | DeathOneByOne => {
                drop(all);
                staged.clear();
                watched.clear();
                let left: Vec<_> = files.iter().map(|file| open_at(&other, file)).collect();
                if *act == Death {
                    let all: Vec<_> = left.iter().collect();
                    StagedFile::commit_group(&all).expect("group");
                }
                for file in left {
                    file.close().expect("take away");
                }
            }
            Aged | AgedTooFar => {
                for ((watched, staged), file) in watched.iter_mut().zip(&staged).zip(&files) {
                    watched.get_or_insert_with(|| {
                        let (entry, base) = (staged.file(), file.clone());
                        StagedFile::open_unread(&other, entry, base, Mode::Atomic).expect("look")
                    });
                }
                let scope = [Scope::Committed, Scope::Everything][usize::from(*act == AgedTooFar)];
                let all: Vec<_> = watched.iter().flatten().map(|file| (file, scope)).collect();
                let done = StagedFile::publish_together(&all);
                assert!(done.iter().all(Result::is_ok), "{done:?}");
            }
            Unlink(file) => {
                world.unlink(&path(file)).expect("unlink");
                world.sync_directory("dir");
            }
            Discard(file) => staged[file].discard().expect("discard"),
            // Whatever order they are named in, and how often.
            Group => {
                let named: Vec<_> = all.iter().rev().chain(&all).copied().collect();
                StagedFile::commit_group(&named).expect("group");
            }
        }
        world.acknowledge(nth as u64);
        if let On(file, TakeAway) = *act {
            watched[file] = None;
            drop(staged.remove(file));
            staged.insert(file, open(&files[file]));
        }
    }
}

fn find(world: &World, name: &FileName) -> super::Result<SimFile> {
    let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
    world.open_by_handle(handle).map_err(Error::from)
}

fn recovered(world: &World, medium: impl Medium + 'static) -> Result<Contents, String> {
    let pool = open_pool(medium, boot_of(world)).map_err(|e| format!("open: {e}"))?;
    let attachment = pool.attach().map_err(|e| format!("attach: {e}"))?;
    nothing_is_damaged(&attachment)?;
    let find = |name: &FileName| find(world, name);
    let report = recover(&attachment, &find).map_err(|e| format!("recover: {e}"))?;
    world.judging();
    // What was staged of a file that is not there any more is somebody's to decide on.
    let there = |kept: &&Kept| kept.name.as_ref().is_none_or(|name| find(name).is_ok());
    if let Some(kept) = report.kept.iter().find(there) {
        return Err(format!("kept: {}", kept.reason));
    }
    let problems = pool.check().map_err(|e| e.to_string())?.problems;
    if !problems.is_empty() {
        return Err(format!("check found {problems:?}"));
    }
    let read = |nth| match world.open(&path(nth)) {
        Err(Errno::NOENT) => Ok(Vec::new()),
        file => {
            contents(&file.map_err(|e| format!("file: {e}"))?).map_err(|e| format!("read: {e}"))
        }
    };
    (0..FILES).map(read).collect()
}

fn judge<M: Medium + 'static>(
    acts: &[Act],
    medium: impl Fn(&World) -> M + Sync,
) -> impl Fn(&World, &History) -> Result<(), String> + Sync {
    let (seen, durable) = histories(acts);
    move |world, history| {
        let found = recovered(world, medium(world))?;
        let done = history.completed().len();
        let begun = done + history.in_flight().len();
        let mut allowed: Vec<&Contents> = Vec::new();
        if !history.lost_power() || history.crashes()[0] == Crash::Kill {
            allowed.extend(&seen[done..=begun]);
        }
        if history.lost_power() {
            allowed.extend(&durable[done..=begun]);
        }
        if allowed.contains(&&found) {
            return Ok(());
        }
        let was = |nth: usize| {
            let same = |state: &&Contents| state[nth] == found[nth];
            seen.iter().rposition(|state| same(&state))
        };
        let each: Vec<_> = (0..FILES).map(was).collect();
        Err(format!(
            "after {done} steps of {begun} the files are as after steps {each:?}"
        ))
    }
}

fn run<M: Medium + 'static, R: Medium + 'static>(
    name: &str,
    acts: &[Act],
    cached: bool,
    config: impl Fn(&str) -> Config,
    medium: impl Fn(&World) -> M + Sync,
    recovering: impl Fn(&World) -> R + Sync,
) -> std::result::Result<Report, Box<Failure>> {
    let name = format!("staged-group-{name}-{cached}");
    let config = config(&name);
    let workload = |world: &World| {
        if cached {
            world.put_behind_page_cache(TINY.header_len());
        }
        tell(world, acts, medium(world));
    };
    let judge = judge(acts, recovering);
    let result = enumerate(&config, workload, &judge);
    match &result {
        Ok(report) => println!("{name}: {report}"),
        Err(failure) => {
            println!("{name}: {failure}");
            let again = replay(&config, &failure.replay, workload, &judge).expect_err("replay");
            assert_eq!(again.message, failure.message);
        }
    }
    result
}

fn survives(name: &str, acts: &[Act], states: u64) {
    for cached in [false, true] {
        let config = |name: &str| config(name, 16, states);
        match run(name, acts, cached, config, World::medium, World::medium) {
            Ok(report) => assert!(report.states > 300, "{report}"),
            Err(failure) => panic!("{name}: {failure}"),
        }
    }
}

fn is_found<M: Medium + 'static, R: Medium + 'static>(
    name: &str,
    acts: &[Act],
    medium: impl Fn(&World) -> M + Sync + Copy,
    recovering: impl Fn(&World) -> R + Sync + Copy,
) {
    run(name, acts, false, deep, medium, recovering).expect_err(name);
}

/// Many crashes inside the recovery: what a ring in parts leads to shows only there.
fn deep(name: &str) -> Config {
    Config {
        nested_points: 200,
        nested_images: 3,
        ..config(name, 16, 40_000)
    }
}

#[test]
fn a_recovery_that_is_crashed_everywhere_keeps_files_together() {
    let acts = [On(0, Append(9)), On(1, Append(9)), Group];
    for cached in [false, true] {
        let run = run("deep", &acts, cached, deep, World::medium, World::medium);
        if let Err(failure) = run {
            panic!("{failure}");
        }
    }
}

#[test]
fn files_change_together() {
    let acts = [
        On(0, Append(100)),
        On(1, Append(700)),
        On(2, Write(10, 40)),
        Group,
        On(1, Write(50, 300)),
        On(0, Append(5000)),
        Group,
        On(2, Truncate(80)),
        On(0, Append(9)),
        On(1, Append(9)),
        Group,
        On(0, Append(20)),
    ];
    survives("writes", &acts, 4_000);
}

#[test]
fn files_are_published_one_by_one_and_stay_together() {
    let acts = [
        On(0, Append(100)),
        On(1, Append(700)),
        On(2, Append(30)),
        Group,
        On(1, PublishCommitted),
        On(1, Append(60)),
        On(0, Append(400)),
        Group,
        On(0, PublishCommitted),
        On(2, Write(0, 20)),
        On(0, Write(0, 20)),
        Group,
        On(0, TakeAway),
        On(2, PublishCommitted),
        On(0, Append(5)),
    ];
    survives("publish", &acts, 6_000);
}

/// The monitor publishes what has aged, of all files with one walk, while their program goes on.
#[test]
fn files_are_published_by_another_and_stay_together() {
    let acts = [
        On(0, Append(100)),
        On(1, Append(700)),
        Aged,
        On(2, Append(30)),
        Group,
        On(1, Append(60)),
        Aged,
        On(0, Append(400)),
        On(2, Write(0, 20)),
        Group,
        On(0, Write(0, 20)),
        On(0, TakeAway),
        On(1, Truncate(80)),
        Aged,
        Group,
        Aged,
        On(0, Append(5)),
    ];
    survives("aged", &acts, 8_000);
}

#[test]
fn publishing_what_is_not_committed_is_found() {
    let acts = [On(0, Append(100)), On(2, Append(70)), AgedTooFar];
    is_found("aged-too-far", &acts, World::medium, World::medium);
}

/// A commit of one file lies between commits of all, and a group meets files with nothing to commit.
#[test]
fn groups_and_single_files_take_turns() {
    let acts = [
        On(0, Append(100)),
        On(1, Append(700)),
        Group,
        On(0, Append(33)),
        On(1, Append(44)),
        On(0, Fsync),
        On(0, Append(55)),
        Group,
        On(1, Publish),
        On(2, Append(9000)),
        On(1, Append(66)),
        Group,
        Group,
    ];
    survives("turns", &acts, 4_000);
}

/// What the monitor does with the files of a program that was killed: a loss of power finds all of what that
/// had written to them, or nothing of it.
#[test]
fn the_dead_keep_their_files_together() {
    let acts = [
        On(0, Append(100)),
        On(1, Append(700)),
        Group,
        On(0, Write(50, 300)),
        On(1, Append(60)),
        On(1, Fsync),
        On(2, Append(5000)),
        On(1, Truncate(30)),
        Death,
    ];
    survives("death", &acts, 6_000);
    let unknown = [On(0, Append(9)), On(2, Append(9)), Death];
    survives("death-short", &unknown, 6_000);
}

/// What was committed together with a file that is discarded stays, whenever that is.
#[test]
fn a_file_that_nobody_can_see_goes_and_leaves_the_others() {
    let acts = [
        On(0, Append(100)),
        On(1, Append(700)),
        On(2, Append(5000)),
        Group,
        On(0, Append(60)),
        On(2, Write(10, 40)),
        Group,
        Unlink(2),
        Discard(2),
    ];
    survives("discard", &acts, 6_000);
}

#[test]
fn files_of_the_dead_that_are_published_one_by_one_are_found() {
    let acts = [On(0, Append(100)), On(2, Append(70)), DeathOneByOne];
    is_found("death-one-by-one", &acts, World::medium, World::medium);
}

#[test]
fn a_forgotten_file_is_found() {
    let acts = [On(0, Append(100)), On(2, Append(70)), Act::GroupWithoutLast];
    is_found("forgotten", &acts, World::medium, World::medium);
}

#[test]
fn commits_one_after_the_other_are_found() {
    let acts = [On(0, Append(100)), On(2, Append(70)), Act::OneByOne];
    is_found("one-by-one", &acts, World::medium, World::medium);
}

/// A medium that changes what happens to records.
struct Meddling<F> {
    medium: SimMedium,
    meddle: F,
    fences: Arc<AtomicU64>,
}

impl<F> Meddling<F> {
    fn new(medium: SimMedium, meddle: F) -> Self {
        Self {
            medium,
            meddle,
            fences: Arc::default(),
        }
    }
}

impl<F: Fn(&SimMedium, u64, &[u8]) -> bool + Send + Sync> Medium for Meddling<F> {
    medium_of!(medium: size load compare_exchange read fence_is_slow);

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        if (self.meddle)(&self.medium, offset, &value.to_le_bytes()) {
            return Ok(());
        }
        self.medium.store(offset, value)
    }
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        if (self.meddle)(&self.medium, offset, from) {
            return Ok(());
        }
        let world = self.medium.world();
        world.medium_on_core(0).write_streaming(offset, from)
    }
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.medium.world().medium_on_core(0).flush(offset, len)
    }
    fn fence(&self) {
        self.fences.fetch_add(1, Ordering::Relaxed);
        self.medium.world().medium_on_core(0).fence();
    }
    fn order(&self) {
        self.medium.world().medium_on_core(0).order();
    }
}

fn record(bytes: &[u8]) -> Option<Record> {
    Some(Record::decode(bytes.try_into().ok()?))
}

/// Records that are durable only after the group that commits them: streamed by a core that nobody
/// fences.
#[test]
fn a_group_before_its_records_is_found() {
    let late = |medium: &SimMedium, offset, bytes: &[u8]| {
        let is_late = record(bytes).is_some_and(|record| record.kind == RecordKind::Write as u8);
        let other = medium.world().medium_on_core(1);
        is_late && other.write_streaming(offset, bytes).is_ok()
    };
    let medium = |world: &World| Meddling::new(world.medium(), late);
    let acts = [On(0, Append(100)), On(2, Append(70)), Group];
    is_found("late-records", &acts, medium, World::medium);
}

/// One of the ring's records is never written.
#[test]
fn a_ring_with_a_gap_is_found() {
    let in_ring = |record: Record| {
        record.kind == RecordKind::Commit as u8 && record.flags & Record::TOGETHER != 0
    };
    let medium = |world: &World| {
        let seen = AtomicU64::new(0);
        Meddling::new(world.medium(), move |_: &SimMedium, _, bytes: &[u8]| {
            record(bytes).is_some_and(in_ring) && seen.fetch_add(1, Ordering::Relaxed) == 1
        })
    };
    let acts = [On(0, Append(100)), On(2, Append(70)), Group];
    is_found("gap", &acts, medium, World::medium);
}

/// A recovery that leaves parts of a ring: when another member is forgotten, they look complete to the
/// recovery after a crash of this one.
#[test]
fn a_recovery_that_leaves_parts_of_a_ring_is_found() {
    let erases = |_: &SimMedium, offset: u64, bytes: &[u8]| {
        let (uuid, chunk) = (b"a pool for tests", (offset >> TINY.chunk_shift) as u32);
        let position = ((offset - TINY.chunk(chunk)) / LINE) as u32;
        bytes == Record::erased_word(uuid, chunk, position).to_le_bytes()
    };
    let recovering = |world: &World| Meddling::new(world.medium(), erases);
    let acts = [On(0, Append(9)), On(1, Append(9)), Group];
    is_found("parts", &acts, World::medium, recovering);
}

/// The entry of a file that is staged anew may be lost when the power goes: it must not be taken for one of a file that was
/// retired, and the others' parts of the ring for a whole one.
#[test]
fn files_that_were_just_staged_change_with_the_others() {
    let acts = [
        On(0, Append(100)),
        On(2, Append(70)),
        Group,
        On(2, TakeAway),
        On(0, Append(50)),
        On(2, Append(30)),
        Group,
        On(1, TakeAway),
        On(1, Append(20)),
        On(0, Append(40)),
        Group,
    ];
    survives("anew", &acts, 6_000);
}

/// However many files there are, one device flush commits them; but where an entry may not be durable yet, it is first.
#[test]
fn a_group_is_one_fence() {
    for cached in [false, true] {
        let world = World::new(tiny_size(24));
        if cached {
            world.put_behind_page_cache(TINY.header_len());
        }
        create_pool(&world, boot(1));
        let medium = Meddling::new(world.medium(), |_: &SimMedium, _, _: &[u8]| false);
        let fences = Arc::clone(&medium.fences);
        let pool = open_pool(medium, boot(1)).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        let open = |nth| {
            let file = world.create(&path(nth)).expect("create");
            StagedFile::open(&stage, &name_of(&file), file, Mode::Atomic).expect("stage")
        };
        let files: Vec<_> = (0..FILES).map(open).collect();
        let fences = || fences.load(Ordering::Relaxed);
        let all: Vec<_> = files.iter().collect();
        for flushes in [1 + u64::from(cached), 1] {
            for file in &files {
                file.append(b"some bytes").expect("append");
            }
            let before = fences();
            StagedFile::commit_group(&all).expect("group");
            assert_eq!(fences() - before, flushes, "cached: {cached}");
            StagedFile::commit_group(&all).expect("group");
            assert_eq!(fences() - before, flushes, "nothing to commit");
        }
    }
}

/// However many files a power cut left, the pool takes as many fences, and each file one sync of its own.
#[test]
fn files_are_recovered_with_few_fences() {
    let fences = [1, 2, TINY.file_count as usize].map(|files| {
        let world = World::new(tiny_size(24));
        world.put_behind_page_cache(TINY.header_len());
        create_pool(&world, boot(1));
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        for nth in 0..files {
            let file = world.create(&path(nth)).expect("create");
            let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Strict);
            staged
                .expect("stage")
                .append(b"some bytes")
                .expect("append");
        }
        let medium = Meddling::new(world.medium(), |_: &SimMedium, _, _: &[u8]| false);
        let fences = Arc::clone(&medium.fences);
        let pool = open_pool(medium, boot(2)).expect("open");
        let attachment = pool.attach().expect("attach");
        let fences = || fences.load(Ordering::Relaxed);
        let before = fences();
        let report = recover(&attachment, &|name| find(&world, name)).expect("recover");
        assert_eq!(report.published.len(), files);
        assert_eq!(pool.files().expect("files"), []);
        fences() - before
    });
    assert_eq!(fences, [8; 3]);
}

/// A recovery ends the staging of two files and is killed over it. Who sees that one has no staging any more writes to it as
/// the kernel does.
fn recover_and_overwrite(
    world: &World,
    instant: u64,
    medium: impl Fn(&World) -> SimMedium,
) -> bool {
    let boot = boot_of(world);
    let (recovers, other, files) = world.setup(|| {
        create_pool(world, boot);
        let locks = LocalLocks::default();
        let attach = |medium| {
            let pool = open_locked(medium, locks.clone(), boot).expect("open");
            pool.attach().expect("attach")
        };
        let recovers = attach(medium(world));
        let other = attach(world.medium_on_core(1));
        let dead = Stage::new(attach(world.medium_on_core(2)));
        let files = [0, 1].map(|nth| {
            let file = world.create(&path(nth)).expect("create");
            let staged = StagedFile::open(&dead, &name_of(&file), file.clone(), Mode::Strict);
            let staged = staged.expect("stage");
            staged.append(b"old").expect("append");
            (staged.file(), file)
        });
        (recovers, other, files)
    });
    let recovered = world.kill_after(instant, || {
        recover(&recovers, &|name| find(world, name)).expect("recover")
    });
    drop(recovers);
    for (nth, (file, base)) in files.into_iter().enumerate() {
        let live = other.pool().ensure_not_forgotten(file);
        if matches!(live, Err(adit_pool::Error::Forgotten)) {
            base.write_at(0, b"new").expect("write");
            base.sync().expect("sync");
            world.acknowledge(nth as u64);
        }
    }
    recovered.is_some()
}

#[test]
fn what_is_written_after_a_recovery_stays() {
    for cached in [false, true] {
        let workload = |world: &World, instant| {
            if cached {
                world.put_behind_page_cache(TINY.header_len());
            }
            recover_and_overwrite(world, instant, |world| world.medium_on_core(0))
        };
        let is_through = |instant: &u64| workload(&World::new(tiny_size(16)), *instant);
        let events = (0..1000).find(is_through).expect("an end");
        for instant in 0..=events {
            let name = format!("staged-recover-{cached}-{instant}");
            let config = Config {
                nested_points: 0,
                exhaustive: 4,
                samples: 2,
                torn: 1,
                ..config(&name, 16, 300)
            };
            let judge = |world: &World, history: &History| {
                let files = recovered(world, world.medium())?;
                let lost = history
                    .completed()
                    .iter()
                    .find(|nth| files[**nth as usize] != b"new");
                lost.map_or(Ok(()), |nth| Err(format!("file {nth} is as it was")))
            };
            let told = |world: &World| {
                workload(world, instant);
            };
            if let Err(failure) = enumerate(&config, told, judge) {
                panic!("{name}: {failure}");
            }
        }
        println!("{events} events");
    }
}

#[test]
fn files_of_two_pools_are_not_committed_together() {
    let pools = [(); 2].map(|()| {
        let world = World::new(tiny_size(8));
        create_pool(&world, boot(1));
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let file = world.create(&path(0)).expect("create");
        (Stage::new(pool.attach().expect("attach")), file)
    });
    let open = |(stage, file): &(Arc<Stage<AnyMedium>>, SimFile)| {
        StagedFile::open(stage, &name_of(file), file.clone(), Mode::Atomic).expect("stage")
    };
    let files = pools.each_ref().map(open);
    files
        .iter()
        .for_each(|file| assert_eq!(file.append(b"some bytes").expect("append"), 0));
    let group = StagedFile::commit_group(&[&files[0], &files[1]]);
    assert!(matches!(group, Err(Error::Apart)), "{group:?}");
    assert!(files.iter().all(StagedFile::has_uncommitted));
}

/// A file that somebody has taken away is durable already, and keeps nobody from making room for the commit of the others.
#[test]
fn a_group_makes_room_beside_a_file_that_was_taken_away() {
    for gone in [0, FILES] {
        let world = World::new(tiny_size(40));
        create_pool(&world, boot(1));
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let [stage, other] = [(); 2].map(|()| Stage::new(pool.attach().expect("attach")));
        let file = |nth| world.create(&path(nth)).expect("create");
        let files: Vec<SimFile> = (0..=FILES).map(file).collect();
        let open = |file: &SimFile| {
            StagedFile::open(&stage, &name_of(file), file.clone(), Mode::Atomic).expect("stage")
        };
        let staged: Vec<_> = files.iter().map(open).collect();
        stage.attachment().limit_log(2);
        // One part of the log is of the file that goes, the other one of those that stay, and has fewer places left than
        // there are files.
        let per_part = u64::from(TINY.records_per_chunk()) - 2;
        let stays = |nth: &usize| *nth != gone;
        let staying: Vec<usize> = (0..=FILES).filter(stays).collect();
        for nth in 0..2 * per_part as usize {
            let one = match nth < per_part as usize {
                true => gone,
                false => staying[nth % staying.len()],
            };
            staged[one].append(b"bytes").expect("append");
        }
        let entry = staged[gone].file();
        let theirs = StagedFile::open_entry(&other, entry, files[gone].clone(), Mode::Atomic);
        theirs.expect("look").close().expect("take away");
        let all: Vec<_> = staged.iter().collect();
        StagedFile::commit_group(&all).expect("there is room");
        assert!(
            all.iter()
                .all(|file| file.is_taken() || !file.has_uncommitted())
        );
    }
}
