//! Crashes of the system and deaths of all processes at every event: while appending, overwriting,
//! cutting, committing, publishing and relinking, and again inside the recovery.
//!
//! The judge knows what the program was told and what the mode promises. After deaths alone the file
//! is exactly as after the last acknowledged call, or the one in flight, in every mode. After a loss of
//! power it is that in `strict` and `sync`; in `posix` and `atomic` it is exactly as at some commit
//! point that is not older than the last acknowledged one.

use adit_sim::{Crash, Failure, History, Report, enumerate, sequences};

use super::*;

/// Runs the story on a machine whose pool lies on `medium` and whose base file is `base`.
pub(super) fn tell<B: BaseFile>(
    world: &World,
    steps: &[Step],
    mode: Mode,
    boot: BootId,
    medium: impl Medium + 'static,
    base: impl Fn(SimFile) -> B,
    relink: impl Fn() -> Option<Relink<B>>,
) {
    let (stage, other, file) = world.setup(|| {
        create_pool(world, boot);
        let file = world.create("dir/file").expect("create");
        file.write_at(0, &first_bytes()).expect("write");
        let pool = open_pool(medium, boot).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        let other = steps
            .iter()
            .any(|step| step.is_by_other())
            .then(|| Stage::new(pool.attach().expect("attach")));
        (stage, other, file)
    });
    let relinking = |staged: StagedFile<AnyMedium, B>| match relink() {
        Some(relink) => staged.with_relink(relink),
        None => staged,
    };
    let open = || {
        let staged = StagedFile::open(&stage, &name_of(&file), base(file.clone()), mode);
        relinking(staged.expect("stage"))
    };
    let mut staged = open();
    for (nth, step) in steps.iter().enumerate() {
        let nth = nth + 1;
        world.begin(nth as u64);
        match &other {
            Some(other) if step.is_by_other() => {
                let theirs = base(file.clone());
                let theirs = StagedFile::open_entry(other, staged.file(), theirs, mode);
                let theirs = relinking(theirs.expect("stage"));
                step.run(nth, &theirs).expect("step");
            }
            _ => step.run(nth, &staged).expect("step"),
        }
        world.acknowledge(nth as u64);
        if step.takes_away() {
            assert!(matches!(staged.append(b"late"), Err(Error::Taken)));
            drop(staged);
            staged = open();
        }
    }
}

/// Recovery as the first process after the crash does it; what the file is then.
pub(super) fn recovered(world: &World, boot: BootId) -> Result<Vec<u8>, String> {
    let pool = open_pool(world.medium(), boot).map_err(|e| format!("open: {e}"))?;
    let attachment = pool.attach().map_err(|e| format!("attach: {e}"))?;
    nothing_is_damaged(&attachment)?;
    let find = |name: &FileName| {
        let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
        world.open_by_handle(handle).map_err(Error::from)
    };
    let report = recover(&attachment, &find).map_err(|e| format!("recover: {e}"))?;
    world.judging();
    if let Some(kept) = report.kept.first() {
        return Err(format!("kept: {}", kept.reason));
    }
    let problems = pool.check().map_err(|e| e.to_string())?.problems;
    if !problems.is_empty() {
        return Err(format!("check found {problems:?}"));
    }
    let again = recover(&attachment, &find).map_err(|e| format!("again: {e}"))?;
    if again.done != Published::default() {
        return Err(format!("a second recovery still did {:?}", again.done));
    }
    let file = world.open("dir/file").map_err(|e| format!("file: {e}"))?;
    contents(&file).map_err(|e| format!("read: {e}"))
}

/// The states that the promise allows, by number of steps done.
fn allowed(steps: &[Step], mode: Mode, history: &History) -> Vec<usize> {
    let done = history.completed().len();
    let begun = done + history.in_flight().len();
    let acknowledged = done..=begun;
    if !history.lost_power() || matches!(mode, Mode::Strict | Mode::Sync) {
        return acknowledged.collect();
    }
    let is_point = |nth: &usize| *nth == 0 || steps[nth - 1].is_commit();
    let last = (0..=done).rev().find(is_point).unwrap_or(0);
    let mut states: Vec<usize> = (last..=begun).filter(is_point).collect();
    if history.crashes()[0] == Crash::Kill {
        // A recovery after the deaths may have committed what was acknowledged before power failed.
        states.extend(acknowledged);
    }
    states
}

pub(super) fn judge(
    steps: &[Step],
    mode: Mode,
    boot_of: impl Fn(&World) -> BootId + Sync,
) -> impl Fn(&World, &History) -> Result<(), String> + Sync {
    let states = states(steps);
    move |world, history| {
        let found = recovered(world, boot_of(world))?;
        let allowed = allowed(steps, mode, history);
        if allowed.iter().any(|nth| states[*nth] == found) {
            return Ok(());
        }
        let is = states.iter().position(|state| *state == found);
        let sizes: Vec<usize> = allowed.iter().map(|nth| states[*nth].len()).collect();
        Err(format!(
            "the file has {} bytes and is state {is:?}; allowed: {allowed:?} of sizes {sizes:?}",
            found.len()
        ))
    }
}

pub(super) fn boot_of(world: &World) -> BootId {
    boot(world.boot_id())
}

pub(super) fn survives(name: &str, result: std::result::Result<Report, Box<Failure>>) -> u64 {
    match result {
        Ok(report) => {
            println!("{name}: {report}");
            assert!(report.is_of_all_kinds(), "{name}: {report}");
            report.states
        }
        Err(failure) => panic!("{name}: {failure}"),
    }
}

pub(super) fn crash_everywhere(name: &str, steps: &[Step], mode: Mode, states: u64) -> u64 {
    let name = format!("staged-{name}-{mode:?}");
    let config = config(&name, 12, states);
    let workload = |world: &World| {
        tell(
            world,
            steps,
            mode,
            boot_of(world),
            world.medium(),
            |file| file,
            || None,
        );
    };
    survives(
        &name,
        enumerate(&config, workload, judge(steps, mode, boot_of)),
    )
}

use Step::{
    Append, Extend, Fsync, GiveBackByOther, Publish, PublishByOther, PublishCommitted, TakeAway,
    TakeAwayByOther, Truncate, Write,
};

pub(super) const MODES: [Mode; 4] = [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict];

#[test]
fn appends_and_overwrites() {
    let steps = [
        Append(100),
        Append(700),
        Fsync,
        Write(50, 300),
        Append(5000),
        Write(900, 40),
        Fsync,
        Append(10),
    ];
    for mode in MODES {
        assert!(crash_everywhere("writes", &steps, mode, 2_500) > 300);
    }
}

#[test]
fn more_bytes_than_a_chunk_are_one_write() {
    let steps = [Append(9000), Fsync, Write(100, 17_000), Append(1)];
    for mode in [Mode::Atomic, Mode::Strict] {
        assert!(crash_everywhere("groups", &steps, mode, 1_500) > 100);
    }
}

#[test]
fn publishing() {
    let steps = [
        Append(100),
        Write(10, 500),
        Fsync,
        Append(30),
        PublishCommitted,
        Append(4200),
        Publish,
        Write(0, 20),
        Publish,
        Append(9),
    ];
    for mode in MODES {
        assert!(crash_everywhere("publish", &steps, mode, 3_000) > 300);
    }
}

#[test]
fn truncating() {
    let steps = [
        Append(400),
        Truncate(250),
        Append(600),
        Fsync,
        Truncate(120),
        PublishCommitted,
        Truncate(5000),
        Publish,
        Write(4990, 30),
        Truncate(0),
        Append(70),
        Extend(60),
        Extend(900),
        Append(20),
        Publish,
    ];
    for mode in MODES {
        assert!(crash_everywhere("truncate", &steps, mode, 3_000) > 300);
    }
}

#[test]
fn taking_away() {
    let steps = [
        Append(100),
        Write(10, 500),
        Fsync,
        Append(30),
        TakeAway,
        Append(4200),
        Truncate(4000),
        TakeAway,
        Write(0, 20),
    ];
    for mode in MODES {
        assert!(crash_everywhere("take-away", &steps, mode, 3_000) > 300);
    }
}

#[test]
fn another_attachment_publishes_and_takes_away() {
    let steps = [
        Append(100),
        Fsync,
        Write(10, 500),
        PublishByOther,
        Append(30),
        Write(40, 20),
        TakeAwayByOther,
        Append(300),
        Write(0, 20),
        PublishByOther,
        GiveBackByOther,
        Append(5),
        TakeAway,
    ];
    for mode in MODES {
        assert!(crash_everywhere("other", &steps, mode, 3_000) > 300);
    }
}

/// What is relinked, at the end of the file and inside it, by its own attachment and by another one, while
/// more is staged.
const RELINKED: [Step; 11] = [
    Append(3796),
    Append(4096),
    Append(4096),
    Fsync,
    PublishCommitted,
    Write(4096, 8192),
    Append(10),
    PublishByOther,
    Write(0, 4096),
    Truncate(5000),
    Publish,
];

fn relink_everywhere(name: &str, steps: &[Step], mode: Mode, can: Can, cached: bool) -> u64 {
    let name = format!("staged-{name}-{mode:?}-{can:?}-{cached}");
    let config = config(&name, 12, 2_500);
    survives(&name, crash_relinking(&config, steps, mode, can, cached))
}

pub(super) fn crash_relinking(
    config: &Config,
    steps: &[Step],
    mode: Mode,
    can: Can,
    cached: bool,
) -> std::result::Result<Report, Box<Failure>> {
    let workload = |world: &World| tell_relinking(world, steps, mode, can, cached);
    enumerate(config, workload, judge(steps, mode, boot_of))
}

pub(super) fn tell_relinking(world: &World, steps: &[Step], mode: Mode, can: Can, cached: bool) {
    if cached {
        world.put_behind_page_cache(TINY.header_len());
    }
    let base = |file| SimBase::File(file, can);
    let relink = || Some(relink_from(world));
    let medium = world.medium();
    tell(world, steps, mode, boot_of(world), medium, base, relink);
}

#[test]
fn relinking_by_exchange() {
    for mode in MODES {
        for cached in [false, true] {
            let states = relink_everywhere("exchange", &RELINKED, mode, Can::Exchange, cached);
            assert!(states > 300);
        }
    }
}

#[test]
fn relinking_by_clone() {
    for mode in MODES {
        for cached in [false, true] {
            let states = relink_everywhere("clone", &RELINKED, mode, Can::Clone, cached);
            assert!(states > 300);
        }
    }
}

#[test]
fn relinking_where_the_file_system_only_promises() {
    for can in [Can::Promise, Can::Copy] {
        let states = relink_everywhere("promise", &RELINKED, Mode::Strict, can, true);
        assert!(states > 300);
    }
}

/// Whatever is cut before, between and after.
#[test]
fn relinking_beside_cuts() {
    let steps = [
        Write(4096, 4096),
        Fsync,
        Publish,
        Truncate(100),
        Write(4096, 8192),
        Fsync,
        PublishByOther,
        Truncate(8192),
        Write(8192 + 4096, 4096),
        Publish,
        Append(4096),
        TakeAway,
        Append(5),
    ];
    for mode in [Mode::Atomic, Mode::Strict] {
        for can in [Can::Exchange, Can::Clone] {
            assert!(relink_everywhere("cuts", &steps, mode, can, true) > 300);
        }
    }
}

/// Most crash bugs of file systems needed no more than three operations.
#[test]
fn every_short_sequence() {
    let steps = [Append(333), Write(200, 150), Truncate(260), Fsync, Publish];
    let mut states = 0;
    for mode in [Mode::Atomic, Mode::Strict] {
        for steps in sequences(&steps, 3) {
            if steps.last().is_some_and(|step| *step == Append(333)) {
                states += crash_everywhere("short", &steps, mode, 120);
            }
        }
    }
    assert!(states > 2_000, "{states}");
}

/// After any crash at all the file can be staged again and used.
#[test]
fn going_on_after_a_crash() {
    let steps = [Append(500), Fsync, Append(300), Truncate(400)];
    let config = config("staged-go-on", 12, 1_500);
    let workload = |world: &World| {
        let medium = world.medium();
        tell(
            world,
            &steps,
            Mode::Posix,
            boot_of(world),
            medium,
            |file| file,
            || None,
        );
    };
    let judge = |world: &World, _: &History| {
        // Without any recovery: the file's next owner takes the log over as it is.
        let pool = open_pool(world.medium(), boot_of(world)).map_err(|e| e.to_string())?;
        let stage = Stage::new(pool.attach().map_err(|e| e.to_string())?);
        world.judging();
        let file = world.open("dir/file").map_err(|e| e.to_string())?;
        let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Atomic)
            .map_err(|e| e.to_string())?;
        let mut model = read_all(&staged);
        staged.append(b"goes on").map_err(|e| e.to_string())?;
        model.extend(b"goes on");
        if read_all(&staged) != model {
            return Err("the append is not there".to_owned());
        }
        staged.close().map_err(|e| e.to_string())?;
        if contents(&file).map_err(|e| e.to_string())? != model {
            return Err("what was read is not what was published".to_owned());
        }
        Ok(())
    };
    survives("go on", enumerate(&config, workload, judge));
}

/// How a file is committed for the first time, in mode `atomic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Fsync,
    Together,
    Closed,
    ByOther,
    /// By somebody who does not know the mode.
    ByStranger,
}

/// A file that was cut before it is staged, which no crash may find as long as it was with what was staged of it: nobody has
/// synced that it was cut, nor its name where it is new.
#[test]
fn the_first_commit_comes_behind_what_the_file_was_staged_over() {
    const BYTES: &[u8] = b"what the file is from then on";
    use First::{ByOther, ByStranger, Closed, Fsync, Together};
    for first in [Fsync, Together, Closed, ByOther, ByStranger] {
        let name = format!("staged-first-{first:?}");
        let workload = |world: &World| {
            let boot = boot_of(world);
            let (stage, other, file) = world.setup(|| {
                create_pool(world, boot);
                let file = world.create("dir/file").expect("create");
                file.write_at(0, &first_bytes()).expect("write");
                let pool = open_pool(world.medium(), boot).expect("open");
                let seat = || Stage::new(pool.attach().expect("attach"));
                (seat(), seat(), file)
            });
            file.set_size(0).expect("cut");
            let open = |stage| StagedFile::open(stage, &name_of(&file), file.clone(), Mode::Atomic);
            let staged = open(&stage).expect("stage");
            world.begin(1);
            staged.append(BYTES).expect("append");
            world.acknowledge(1);
            world.begin(2);
            let committed = match first {
                Fsync => staged.fsync(),
                Together => StagedFile::commit_group(&[&staged]),
                Closed => staged.take_away(|| {}).map(drop),
                ByOther | ByStranger => {
                    let theirs = file.clone();
                    let mode = if first == ByOther {
                        Mode::Atomic
                    } else {
                        Mode::Sync
                    };
                    StagedFile::open_unread(&other, staged.file(), theirs, mode)
                        .and_then(|theirs| theirs.take_away(|| {}))
                        .map(drop)
                }
            };
            committed.expect("commit");
            world.acknowledge(2);
        };
        let judge = |world: &World, history: &History| {
            let found = recovered(world, boot_of(world))?;
            let (done, lost) = (history.completed().len(), history.lost_power());
            let is_new = found == BYTES;
            let is_old = found.is_empty() || (lost || done == 0) && found == first_bytes();
            let must_be_new = done == 2 || done == 1 && !lost;
            if is_new || is_old && !must_be_new {
                return Ok(());
            }
            Err(format!("{} bytes after {done} steps", found.len()))
        };
        survives(&name, enumerate(&config(&name, 12, 3_000), workload, judge));
    }
}
