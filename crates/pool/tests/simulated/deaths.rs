//! A process dies in the middle of an operation, another one goes on, and then the power fails.
//!
//! What the dead one left is seen by the other, and need not be durable. What the other is told afterwards
//! has to hold all the same: so whatever he builds on, he makes durable first, and whatever he cannot know
//! to be whole, he does not build on.

use adit_pmem::Medium;
use adit_pool::layout::{FileEntry, SHARED, Shared};
use adit_pool::{
    Attachment, FileGuard, FileRef, Intent, LocalLocks, Op, Pool, ReplayOp, Result, When,
};
use adit_sim::{Config, History, SimMedium, World, enumerate};

use crate::common::*;
use crate::pools::*;
use crate::replay::replayed;

/// Bytes of an operation, and where they are in the base file, which all files share.
const LEN: u64 = 100;

/// Chunks of the pool before and after it is made larger.
const CHUNKS: u32 = 12;
const MORE: u32 = 2;

/// Marks the instant of the death.
const DEATH: u64 = 1000;

/// Operations that the dead one had been told of, all before the story begins.
const BEFORE: [u64; 3] = [1, 2, 3];

/// What the dead one was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// A record that counts at once.
    Append,
    /// A record, and a commit of all.
    Commit,
    /// Records that count together.
    Group,
    /// The same, with the first of them at the end of one chunk of the log, the rest in the next.
    GroupAcross,
    /// A commit of two files.
    Together,
    /// The same; who goes on publishes both.
    Published,
    /// Publishing a file, and writing over it.
    Retire,
    /// The same, on a disk that has no room to say that it is published.
    Refused,
    /// Publishing a file, and forgetting it.
    Forget,
    /// The same; who goes on looks without the file's lock, as readers do.
    Look,
    /// The same, in a table that is full otherwise; who goes on enters another file, which gets the place.
    Reused,
    /// The same with one more place. He who forgets it is stopped and does not die, so nobody else gets the place.
    Stopped,
    /// A file that was not known.
    Enter,
    /// Making the pool larger.
    Grow,
    /// Saying what is about to be relinked.
    Intend,
}

/// What the pool is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Memory,
    Disk,
}

type Case = (Act, On);

struct Story {
    alive: Attachment<SimMedium>,
    one: FileRef,
    two: FileRef,
    /// The last record of the first file that is no commit.
    last: u64,
}

fn bytes_of(op: u64) -> [u8; LEN as usize] {
    [op as u8; LEN as usize]
}

fn write(a: &Attachment<SimMedium>, file: FileRef, op: u64, when: When) -> Result<u64> {
    stage(a, file, op * LEN, &bytes_of(op), when)
}

/// A file that was never entered before.
const NEW: u8 = 9;

/// Those who die, and the rest.
fn begin(world: &World, (act, medium): Case) -> ([Attachment<SimMedium>; 2], Story) {
    if medium == On::Disk {
        world.put_behind_page_cache(TINY.header_len());
    }
    world.setup(|| {
        let options = adit_pool::CreateOptions {
            boot: boot(world.boot_id()),
            ..options(TINY)
        };
        Pool::create(&world.medium(), &options).expect("create");
        let locks = LocalLocks::default();
        // A core each: what one has flushed, the other's fences do not make durable.
        let [dead, alive, next] = [0, 1, 2].map(|core| {
            let medium = world.medium_on_core(core);
            let pool = open(medium, &locks, boot(world.boot_id())).expect("open");
            pool.attach().expect("attach")
        });
        let one = dead.enter_file(&name(1)).expect("enter");
        let two = dead.enter_file(&name(2)).expect("enter");
        // What else there is, so that the first place that is free is that of the first file.
        let others = match act {
            Act::Reused => 2,
            Act::Stopped => 1,
            _ => 0,
        };
        for nth in 0..others {
            dead.enter_file(&name(3 + nth)).expect("enter");
        }
        dead.lock_file(one).expect("lock").set_end(0).expect("end");
        for op in BEFORE {
            world.begin(op);
            let file = if op == 3 { two } else { one };
            write(&dead, file, op, When::WithCommit).expect("write");
            world.acknowledge(op);
        }
        dead.lock_file(one).expect("lock").commit().expect("commit");
        dead.lock_file(two).expect("lock").commit().expect("commit");
        if act == Act::GroupAcross {
            let capacity = u64::from(TINY.records_per_chunk());
            // The last places of a chunk are for commits.
            let last = capacity - capacity / 64 - 1;
            while dead.waiting_records() < last {
                dead.lock_file(two).expect("lock").commit().expect("commit");
            }
            assert_eq!((dead.waiting_records(), dead.log_chunks()), (last, 1));
        }
        let last = write(&alive, one, 4, When::WithCommit).expect("write");
        write(&alive, two, 5, When::WithCommit).expect("write");
        world.medium().grow(tiny_size(CHUNKS + MORE));
        let story = Story {
            alive,
            one,
            two,
            last,
        };
        ([dead, next], story)
    })
}

/// Writes the records of a file to the base, which keeps them from then on.
fn publish(a: &Attachment<SimMedium>, file: FileRef) -> Result<()> {
    let found = a.scan()?;
    let base = read_base(a.pool().medium())?;
    let base = replayed(a.pool(), &found, file, &base)?;
    write_base(a.pool().medium(), &base)
}

/// The first operation's bytes, to be relinked.
fn intents(a: &Attachment<SimMedium>, file: FileRef) -> Result<Vec<Intent>> {
    let found = a.pool().scan()?;
    let ops = found.records(a.pool(), file);
    let ops = ops.collect::<Result<Vec<_>>>()?.into_iter();
    let first = ops.filter_map(|replay| match replay.op {
        ReplayOp::Write {
            file_offset: LEN,
            pool_offset,
            len,
        } => Some(Intent {
            file_offset: LEN,
            pool_offset,
            len,
            data_crc: crc32c::crc32c(&bytes_of(1)),
        }),
        _ => None,
    });
    Ok(first.collect())
}

/// What the log amounts to.
fn seen(a: &Attachment<SimMedium>, file: FileRef) -> Result<Vec<u8>> {
    replayed(a.pool(), &a.pool().scan()?, file, &[])
}

impl Act {
    fn run(self, dead: &Attachment<SimMedium>, story: &Story, world: &World) -> Result<()> {
        let (one, two) = (story.one, story.two);
        match self {
            Self::Append => {
                world.begin(6);
                write(dead, one, 6, When::Now)?;
                world.acknowledge(6);
            }
            Self::Commit => {
                world.begin(6);
                write(dead, one, 6, When::WithCommit)?;
                dead.lock_file(one)?.commit()?;
                world.acknowledge(4);
                world.acknowledge(6);
            }
            Self::Group | Self::GroupAcross => {
                world.begin(6);
                world.begin(7);
                let ops: Vec<Op> = [6, 7]
                    .iter()
                    .map(|op| fill(dead, op * LEN, &bytes_of(*op)))
                    .collect::<Result<_>>()?;
                dead.lock_file(one)?.append_group(&ops, When::Now)?;
                world.acknowledge(6);
                world.acknowledge(7);
            }
            Self::Together | Self::Published => {
                let mut guards = [dead.lock_file(one)?, dead.lock_file(two)?];
                dead.commit_together(&mut guards)?;
                drop(guards);
                world.acknowledge(4);
                world.acknowledge(5);
            }
            Self::Retire => {
                let mut guard = dead.lock_file(one)?;
                let seq = guard.commit()?;
                publish(dead, one)?;
                guard.retire(seq)?;
            }
            Self::Refused => {
                let mut guard = dead.lock_file(one)?;
                let seq = guard.commit()?;
                publish(dead, one)?;
                let medium = dead.pool().medium();
                medium.refuse_write_backs(true);
                assert!(guard.retire(seq).is_err());
                drop(guard);
                medium.refuse_write_backs(false);
            }
            Self::Forget | Self::Look | Self::Reused | Self::Stopped => {
                let mut guard = dead.lock_file(one)?;
                guard.commit()?;
                publish(dead, one)?;
                guard.forget()?;
            }
            Self::Enter => {
                world.begin(6);
                let three = dead.enter_file(&name(3))?;
                write(dead, three, 6, When::Now)?;
                world.acknowledge(6);
            }
            Self::Grow => {
                dead.grow_to(TINY.header_chunks() + CHUNKS + MORE)?;
            }
            Self::Intend => {
                let mut guard = dead.lock_file(one)?;
                guard.commit()?;
                guard.intend(story.last, &intents(dead, one)?)?;
            }
        }
        Ok(())
    }
}

fn is_files_lock_held(pool: &Pool<SimMedium>) -> Result<bool> {
    let lock = SHARED + std::mem::offset_of!(Shared, files_lock) as u64;
    Ok(pool.medium().load(lock)? != 0)
}

fn is_lock_held(pool: &Pool<SimMedium>, file: FileRef) -> Result<bool> {
    let entry = TINY.file_entry((file.id() & 0xff_ffff) as u32);
    let lock = entry + std::mem::offset_of!(FileEntry, lock) as u64;
    Ok(pool.medium().load(lock)? != 0)
}

/// Who goes on: everything he is told has to hold.
fn go_on(story: &Story, act: Act, world: &World) -> Result<()> {
    let (alive, two) = (&story.alive, story.two);
    let pool = alive.pool();
    let mut file = story.one;
    // He writes over what is in the base file, when that is said to be so.
    let write_over = || -> Result<()> {
        world.begin(11);
        let mut base = read_base(pool.medium())?;
        base[LEN as usize..2 * LEN as usize].fill(11);
        write_base(pool.medium(), &base)?;
        world.acknowledge(11);
        Ok(())
    };
    if act == Act::Published {
        return publish_to_base(alive);
    }
    if act == Act::Stopped && is_files_lock_held(pool)? {
        // He would be waited for, in vain.
        return Ok(());
    }
    let entered = matches!(act, Act::Reused | Act::Stopped)
        .then(|| alive.enter_file(&name(NEW)))
        .transpose();
    let entered = match entered {
        // Nothing is forgotten.
        Err(adit_pool::Error::TooManyFiles { .. }) => None,
        entered => entered?,
    };
    let is_forgotten = || {
        let live = pool.ensure_not_forgotten(file);
        matches!(live, Err(adit_pool::Error::Forgotten))
    };
    let is_told = match act {
        Act::Retire | Act::Refused => pool.retired(file)? > 0,
        Act::Look | Act::Reused | Act::Stopped => is_forgotten(),
        _ => false,
    };
    if is_told {
        write_over()?;
    }
    if let Some(entered) = entered {
        assert!(act == Act::Stopped || is_told, "it has another's place");
        let has_its_place = entered.id() & 0xff_ffff == file.id() & 0xff_ffff;
        // It is durable when nobody has the lock any more.
        let is_over = !is_lock_held(pool, file)?;
        assert_eq!(has_its_place, is_told && is_over, "{entered:?}");
        world.begin(6);
        write(alive, entered, 6, When::Now)?;
        world.acknowledge(6);
        if act == Act::Stopped {
            return Ok(());
        }
    }
    match alive.lock_file(file) {
        Ok(mut guard) => {
            let shown = seen(alive, file)?;
            if !matches!(act, Act::Retire | Act::Refused) {
                assert_eq!(guard.end()?, Some(shown.len() as u64));
            }
            guard.commit()?;
            // What is seen is what a commit commits, whoever wrote it.
            for op in [4, 6, 7] {
                let there = shown.get((op * LEN) as usize..((op + 1) * LEN) as usize);
                if there == Some(&bytes_of(op)) && !world.history().is_completed(op) {
                    world.acknowledge(op);
                }
            }
            if act == Act::Intend {
                relink(story, &mut guard)?;
            }
        }
        Err(adit_pool::Error::Forgotten) => {
            if !is_told {
                write_over()?;
            }
            file = match entered {
                Some(entered) => entered,
                None => alive.enter_file(&name(1))?,
            };
        }
        Err(error) => return Err(error),
    }
    world.begin(20);
    write(alive, file, 20, When::WithCommit)?;
    alive.lock_file(file)?.commit()?;
    world.acknowledge(20);
    world.begin(21);
    write(alive, two, 21, When::WithCommit)?;
    alive.lock_file(two)?.commit()?;
    world.acknowledge(5);
    world.acknowledge(21);
    world.begin(22);
    write(alive, file, 22, When::Now)?;
    world.acknowledge(22);
    if act == Act::Enter {
        world.begin(23);
        let three = alive.enter_file(&name(3))?;
        write(alive, three, 23, When::Now)?;
        world.acknowledge(23);
    }
    if act == Act::Grow {
        alive.grow_to(TINY.header_chunks() + CHUNKS + MORE)?;
        world.begin(DEATH + 1);
        world.acknowledge(DEATH + 1);
    }
    Ok(())
}

/// Hands staged bytes to the base file, as an exchange does that is durable at once.
fn relink(story: &Story, guard: &mut FileGuard<'_, SimMedium>) -> Result<()> {
    let alive = &story.alive;
    let intents = intents(alive, story.one)?;
    guard.intend(story.last, &intents)?;
    let medium = alive.pool().medium();
    let mut base = vec![0; 2 * LEN as usize];
    base[LEN as usize..].fill(1);
    write_base(medium, &base)?;
    for intent in intents {
        medium.write_streaming(intent.pool_offset, &[0; LEN as usize])?;
        medium.fence();
    }
    Ok(())
}

fn judge(world: &World, history: &History) -> std::result::Result<(), String> {
    if !history.is_begun(DEATH) {
        return Ok(());
    }
    let text = |error: adit_pool::Error| error.to_string();
    let locks = LocalLocks::default();
    let pool = open(world.medium(), &locks, boot(world.boot_id())).map_err(text)?;
    let a = pool.attach().map_err(text)?;
    publish_to_base(&a).map_err(text)?;
    world.judging();
    let report = pool.check().map_err(text)?;
    if !report.problems.is_empty() {
        return Err(format!("check found {:?}", report.problems));
    }
    if history.is_completed(DEATH + 1) {
        let chunks = pool.superblock().map_err(text)?.chunk_count;
        if chunks != TINY.header_chunks() + CHUNKS + MORE {
            return Err(format!("{chunks} chunks"));
        }
    }
    let base = read_base(pool.medium()).map_err(text)?;
    for op in history.completed().iter().copied().filter(|op| *op < DEATH) {
        let at = if op == 11 { 1 } else { op };
        let found = base.get((at * LEN) as usize..((at + 1) * LEN) as usize);
        let over = op == 1 && history.is_begun(11);
        if found != Some(&bytes_of(op)) && !over {
            return Err(format!(
                "operation {op} is lost: {:?}",
                found.map(|found| found[0])
            ));
        }
    }
    for op in [4, 5] {
        let bytes = base.get((op * LEN) as usize..((op + 1) * LEN) as usize);
        let whole = |bytes: &[u8]| bytes.iter().all(|byte| *byte == bytes[0]);
        if !bytes.is_none_or(whole) {
            return Err(format!("operation {op} is neither there nor not"));
        }
    }
    // The bytes that the group put there: all of them, or none.
    let part = |op: u64| base.get((op * LEN) as usize) == Some(&(op as u8));
    if history.is_begun(7) && part(6) != part(7) {
        return Err("half a group".to_owned());
    }
    Ok(())
}

/// How many events the act is made of.
fn events_of(case: Case) -> u64 {
    let mut events = 0;
    loop {
        let world = World::new(tiny_size(CHUNKS));
        let ([dead, _], story) = begin(&world, case);
        let ended = world.kill_after(events, || case.0.run(&dead, &story, &world).expect("act"));
        if ended.is_some() {
            return events;
        }
        events += 1;
    }
}

/// How many events it is to mend what the act left that was ended at an instant.
fn events_of_mending(case: Case, instant: u64) -> u64 {
    let mut events = 0;
    loop {
        let world = World::new(tiny_size(CHUNKS));
        let ([dead, next], story) = begin(&world, case);
        world.kill_after(instant, || case.0.run(&dead, &story, &world).expect("act"));
        drop(dead);
        if mend(&next, story.one, &world, events) {
            return events;
        }
        events += 1;
    }
}

/// Takes the lock of the dead; whether he lives to hold it.
fn mend(next: &Attachment<SimMedium>, file: FileRef, world: &World, instant: u64) -> bool {
    let mended = world.kill_after(instant, || next.lock_file(file).map(drop));
    mended.is_some()
}

fn survives(act: Act) {
    survives_on((act, On::Memory));
}

fn survives_on(case: Case) {
    let events = events_of(case);
    assert!(events > 3, "{case:?} makes {events} events");
    for instant in 0..=events {
        survives_at(case, instant, None);
    }
}

fn survives_at(case: Case, instant: u64, second: Option<u64>) {
    let (act, on) = case;
    let mut name = format!("death-{act:?}-{instant}");
    if let Some(second) = second {
        name += &format!("-{second}");
    }
    if on == On::Disk {
        name += "-on-disk";
    }
    let config = Config {
        exhaustive: 4,
        samples: 2,
        torn: 1,
        nested_points: 0,
        max_states: 2_500,
        threads: 2,
        ..Config::new(&name, tiny_size(CHUNKS))
    };
    let workload = |world: &World| {
        let ([dead, next], story) = begin(world, case);
        world.kill_after(instant, || act.run(&dead, &story, world).expect("act"));
        // Who is stopped keeps his seat.
        let _stopped = (act == Act::Stopped).then_some(dead);
        if let Some(instant) = second {
            mend(&next, story.one, world, instant);
        }
        drop(next);
        world.begin(DEATH);
        go_on(&story, act, world).expect("go on");
    };
    let report = enumerate(&config, workload, judge);
    let report = report.unwrap_or_else(|failure| panic!("{name}: {failure}"));
    println!("{name}: {report}");
}

#[test]
fn in_an_append() {
    survives(Act::Append);
}

#[test]
fn in_a_commit() {
    survives(Act::Commit);
}

#[test]
fn in_a_group() {
    survives(Act::Group);
}

#[test]
fn in_a_group_across_two_chunks_of_the_log() {
    survives(Act::GroupAcross);
}

#[test]
fn in_a_commit_of_several_files_that_is_published() {
    survives(Act::Published);
}

#[test]
fn in_a_commit_of_several_files() {
    survives(Act::Together);
}

#[test]
fn in_a_publication() {
    survives(Act::Retire);
}

#[test]
fn in_the_end_of_a_staging() {
    survives(Act::Forget);
}

#[test]
fn in_a_publication_that_the_disk_refuses() {
    survives(Act::Refused);
    survives_on((Act::Refused, On::Disk));
}

#[test]
fn in_the_end_of_a_staging_whose_place_is_used_again() {
    survives(Act::Reused);
    survives_on((Act::Reused, On::Disk));
}

#[test]
fn in_the_end_of_a_staging_that_is_stopped() {
    survives(Act::Stopped);
    survives_on((Act::Stopped, On::Disk));
}

#[test]
fn in_the_end_of_a_staging_that_a_reader_sees() {
    survives(Act::Look);
    survives_on((Act::Look, On::Disk));
}

#[test]
fn in_the_first_use_of_a_file() {
    survives(Act::Enter);
    survives_on((Act::Enter, On::Disk));
}

#[test]
fn in_making_the_pool_larger() {
    survives(Act::Grow);
}

#[test]
fn in_saying_what_is_relinked() {
    survives(Act::Intend);
}

/// Whoever mends what a dead one left dies over it as well.
#[test]
fn in_the_repair_of_an_append() {
    let case = (Act::Append, On::Memory);
    let mut mended = 0;
    for instant in 0..=events_of(case) {
        // Before that he only waits for the lock.
        let events = events_of_mending(case, instant);
        for second in events.saturating_sub(12)..events {
            survives_at(case, instant, Some(second));
            mended += 1;
        }
    }
    assert!(mended > 30, "{mended}");
}
