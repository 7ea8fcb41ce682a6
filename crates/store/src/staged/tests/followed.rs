//! What others have done is followed: by whom only looks, as by a walk over all logs; in the middle of a read, of a
//! recovery, and after the death of a publisher who had handed pages to the base file.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_pmem::OutOfRange;
use adit_pool::FileRef;
use adit_sim::Rng;

use super::*;

const PAGE: usize = 4096;

type Deed = Box<dyn FnMut() -> bool + Send>;

/// Deeds at steps of one reader: nothing is counted while a deed is done.
#[derive(Clone, Default)]
struct Steps {
    next: Arc<Mutex<VecDeque<(u32, Deed)>>>,
    busy: Arc<AtomicBool>,
    on: Arc<AtomicBool>,
}

impl Steps {
    fn step(&self) {
        if !self.on.load(Ordering::Relaxed) || self.busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let front = self.next.lock().unwrap().pop_front();
        match front {
            // Nobody waits here for a lock that the reader holds.
            Some((0, mut deed)) => {
                let again = (!deed()).then_some((0, deed));
                let mut next = self.next.lock().unwrap();
                again.into_iter().for_each(|again| next.push_front(again));
            }
            Some((left, deed)) => self.next.lock().unwrap().push_front((left - 1, deed)),
            None => {}
        }
        self.busy.store(false, Ordering::Relaxed);
    }
}

struct Stepped(SimMedium, Steps);

impl Medium for Stepped {
    medium_of!(0: size store compare_exchange write_streaming flush order fence_is_slow);

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.1.step();
        self.0.load(offset)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.1.step();
        self.0.read(offset, into)
    }
    fn fence(&self) {
        self.1.step();
        self.0.fence();
    }
}

/// What a read returned: `None` when the file was taken; and whether both deeds were done in it.
fn read_while_the_entry_goes(before: u32, between: u32) -> (Option<Vec<u8>>, usize) {
    let world = World::new(tiny_size(10));
    create_pool(&world, boot(1));
    let locks = LocalLocks::default();
    let names = ["dir/file", "dir/g", "dir/h", "dir/i", "dir/j"];
    let files: Vec<SimFile> = names.map(|name| world.create(name).expect("create")).into();
    let steps = Steps::default();
    let stage = |steps: &Steps| {
        let medium = Stepped(world.medium(), steps.clone());
        let pool = open_locked(medium, locks.clone(), boot(1)).expect("open");
        Stage::new(pool.attach().expect("attach"))
    };
    let reader = stage(&steps);
    let monitor = stage(&Steps::default());
    let open = |stage: &Arc<Stage<AnyMedium>>, file: &SimFile| {
        StagedFile::open(stage, &name_of(file), file.clone(), Mode::Strict).expect("stage")
    };
    let ours = open(&reader, &files[0]);
    let entry = ours.file();
    // The only free entry is that of the file when it has gone.
    let other = open(&reader, &files[1]);
    for file in &files[2..4] {
        monitor
            .attachment()
            .enter_file(&name_of(file))
            .expect("enter");
    }
    ours.append(&[1; PAGE]).expect("append");
    assert_eq!(
        ours.stage.attachment().pool().version(entry).expect("word"),
        0
    );
    let theirs =
        StagedFile::open_unread(&monitor, entry, files[0].clone(), Mode::Strict).expect("view");
    let theirs = Arc::new(theirs);
    let (publisher, taker) = (Arc::clone(&theirs), theirs);
    let last = files[4].clone();
    let is_free = |view: &StagedFile<AnyMedium, SimFile>| {
        let lock = view.stage.attachment().try_lock_file(view.file());
        lock.is_ok_and(|lock| lock.is_some())
    };
    let publish = move || {
        if !is_free(&publisher) {
            return false;
        }
        publisher.publish(Scope::Everything).expect("publish");
        for round in 0..40 {
            other.write_at(0, &[100 + round; PAGE]).expect("write");
            other.publish(Scope::Everything).expect("publish");
        }
        true
    };
    let take = move || {
        if !is_free(&taker) {
            return false;
        }
        taker.take_away(|| {}).expect("take away");
        let new = monitor
            .attachment()
            .enter_file(&name_of(&last))
            .expect("enter");
        assert_eq!(new.id() & 0xff_ffff, entry.id() & 0xff_ffff);
        true
    };
    steps
        .next
        .lock()
        .unwrap()
        .push_back((before, Box::new(publish)));
    steps
        .next
        .lock()
        .unwrap()
        .push_back((between, Box::new(take)));
    steps.on.store(true, Ordering::Relaxed);
    let mut bytes = vec![0; PAGE];
    let read = ours.read_at(0, &mut bytes);
    steps.on.store(false, Ordering::Relaxed);
    let left = steps.next.lock().unwrap().len();
    match read {
        Ok(read) => {
            bytes.truncate(read);
            (Some(bytes), left)
        }
        Err(Error::Taken) => (None, left),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_reader_does_not_take_another_files_words_for_its_own() {
    for before in 0.. {
        for between in 0.. {
            let (read, left) = read_while_the_entry_goes(before, between);
            if let Some(read) = read {
                assert!(
                    read == [1; PAGE],
                    "step {before}, then {between}: {} bytes, the first is {}",
                    read.len(),
                    read[0]
                );
            }
            if left > 0 {
                if between == 0 {
                    assert!(before > 3);
                    return;
                }
                break;
            }
        }
    }
}

type Plain = StagedFile<AnyMedium, SimFile>;

/// A file as a walk over all logs has it.
fn walked(stage: &Arc<Stage<AnyMedium>>, entry: FileRef, file: &SimFile, mode: Mode) -> Plain {
    let walked = StagedFile::open_unread(stage, entry, file.clone(), mode).expect("view");
    let guard = stage.attachment().lock_file(entry).expect("lock");
    let walk = walked.rebuild(&guard, guard.next_seq().expect("seq"));
    walk.expect("walk");
    drop(guard);
    walked
}

fn is_as_by_walk(followed: &Plain, walked: &Plain, what: &str) {
    let (view, by_walk) = (followed.look(), walked.look());
    assert_eq!(view.ops, by_walk.ops, "{what}");
    assert_eq!(view.overlay.size(), by_walk.overlay.size(), "{what}");
    assert_eq!(
        view.ops_up_to(view.committed),
        by_walk.ops_up_to(by_walk.committed),
        "{what}: committed {} {}",
        view.committed,
        by_walk.committed
    );
}

/// A view that follows for long, and what a walk finds.
fn differential(seed: u64, cached: bool) -> u32 {
    let mut rng = Rng::new(seed);
    let mode = [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict][seed as usize % 4];
    let world = World::new(tiny_size(40));
    if cached {
        world.put_behind_page_cache(TINY.header_len());
    }
    create_pool(&world, boot(1));
    let locks = LocalLocks::default();
    let file = world.create("dir/file").expect("create");
    let g = world.create("dir/g").expect("create");
    file.write_at(0, &first_bytes()).expect("write");
    let pool = open_locked(world.medium(), locks.clone(), boot(1)).expect("open");
    let stage = || Stage::new(pool.attach().expect("attach"));
    let (program, monitor, fresh) = (stage(), stage(), stage());
    let mut model = first_bytes();
    let mut ours = StagedFile::open(&program, &name_of(&file), file.clone(), mode).expect("stage");
    let mut theirs =
        StagedFile::open_unread(&monitor, ours.file(), file.clone(), mode).expect("view");
    let other = StagedFile::open(&program, &name_of(&g), g.clone(), Mode::Strict).expect("stage");
    let mut looks = 0;
    for nth in 0..120usize {
        let at = rng.below(5) as usize * 3000;
        let len = [100, PAGE, PAGE, 3000, 9000, 20000][rng.below(6) as usize];
        let step = rng.below(24);
        let mut reopen = false;
        match step {
            0..4 => {
                Step::Write(at, len).change(nth, &mut model);
                Step::Write(at, len).run(nth, &ours).expect("write");
            }
            4..6 => {
                Step::Append(len).change(nth, &mut model);
                Step::Append(len).run(nth, &ours).expect("append");
            }
            6 => {
                Step::Truncate(at).change(nth, &mut model);
                ours.truncate(at as u64).expect("cut");
            }
            7..10 => ours.fsync().expect("fsync"),
            10 => drop(ours.publish(Scope::Everything).expect("publish")),
            11 => drop(ours.publish(Scope::Committed).expect("publish")),
            12 => ours.show_committed().expect("show"),
            13 => drop(theirs.publish(Scope::Everything).expect("publish")),
            14 => drop(theirs.publish(Scope::Committed).expect("publish")),
            15 => {
                let done = StagedFile::publish_together(&[(&theirs, Scope::Committed)]);
                done.into_iter().for_each(|done| {
                    done.expect("publish");
                });
            }
            16 => theirs.show_committed().expect("show"),
            17 => {
                program.reclaim().expect("reclaim");
                monitor.reclaim().expect("reclaim");
            }
            18 | 19 => {
                for round in 0..6u8 {
                    other.write_at(0, &vec![round; len]).expect("write");
                    if rng.chance(2) {
                        other.publish(Scope::Everything).expect("publish");
                    }
                }
            }
            20 => {
                program.make_room().expect("room");
            }
            21 if rng.chance(3) => {
                ours.take_away(|| {}).expect("take away");
                reopen = true;
            }
            22 if rng.chance(3) => {
                theirs.take_away(|| {}).expect("take away");
                reopen = true;
            }
            23 if rng.chance(3) => {
                drop(ours);
                ours =
                    StagedFile::open(&program, &name_of(&file), file.clone(), mode).expect("stage");
            }
            _ => {}
        }
        if reopen {
            assert_eq!(
                contents(&file).expect("read"),
                model,
                "seed {seed}, step {nth}"
            );
            drop((ours, theirs));
            ours = StagedFile::open(&program, &name_of(&file), file.clone(), mode).expect("stage");
            theirs =
                StagedFile::open_unread(&monitor, ours.file(), file.clone(), mode).expect("view");
        }
        assert_eq!(read_all(&ours), model, "seed {seed}, step {nth}: {step}");
        if rng.chance(2) {
            looks += 1;
            drop(theirs.lock().expect("follow"));
            let walked = walked(&fresh, ours.file(), &file, mode);
            for (who, view) in [("theirs", &theirs), ("ours", &ours)] {
                let what = format!("seed {seed}, step {nth}: {step}, {mode:?}, {cached}, {who}");
                is_as_by_walk(view, &walked, &what);
            }
            assert_eq!(read_all(&theirs), model, "seed {seed}, step {nth}: {step}");
        }
    }
    looks
}

#[test]
fn what_is_followed_is_what_a_walk_finds() {
    let mut looks = 0;
    for seed in 0..20 {
        for cached in [false, true] {
            looks += differential(seed, cached);
        }
    }
    assert!(looks > 300, "{looks}");
}

/// A publisher that relinks is killed at any event; the program goes on and uses pages again, and is killed as well.
#[test]
fn a_dead_relink_and_pages_used_again() {
    let mut lost = Vec::new();
    for can in [Can::Exchange, Can::Clone] {
        for buried in [false, true] {
            for events in 0.. {
                let world = World::new(tiny_size(24));
                create_pool(&world, boot(1));
                let file = world.create("dir/file").expect("create");
                file.write_at(0, &[1; 2 * PAGE]).expect("write");
                let pool = open_pool(world.medium(), boot(1)).expect("open");
                let base = || SimBase::File(file.clone(), can);
                let stage = Stage::new(pool.attach().expect("attach"));
                let staged =
                    StagedFile::open(&stage, &name_of(&file), base(), Mode::Strict).expect("stage");
                staged.write_at(0, &[2; PAGE]).expect("write");
                staged.write_at(PAGE as u64, &[3; PAGE]).expect("write");
                let dead = Stage::new(pool.attach().expect("attach"));
                let theirs = StagedFile::open_entry(&dead, staged.file(), base(), Mode::Strict)
                    .expect("stage")
                    .with_relink(relink_from(&world));
                let ended = world.kill_after(events, || drop(theirs.publish(Scope::Everything)));
                drop(theirs);
                drop(dead);
                if buried {
                    let next = pool.attach().expect("attach");
                    let find = |_: &FileName| -> Result<SimBase> { panic!("it lives") };
                    recover(&next, &find).expect("recover");
                }
                for round in 10..20 {
                    staged.write_at(0, &[round; PAGE]).expect("write");
                }
                let mut wanted = vec![19; PAGE];
                wanted.extend([3; PAGE]);
                let what = format!("{can:?}, {buried}, after {events}");
                assert_eq!(read_all(&staged), wanted, "{what}");
                // Everybody dies.
                let found = crate::staged::tests::crashes::recovered(&world, boot(1));
                let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
                if found != wanted {
                    lost.push(format!("{what}: {} {}", found[0], found[PAGE]));
                }
                std::mem::forget(staged);
                if ended.is_some() {
                    break;
                }
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

/// A publisher that relinks is killed at any event, as is everybody else. Who comes next opens the file before anybody has
/// recovered it.
fn opened_after_a_dead_relink(can: Can, cached: bool, other: bool) -> Vec<String> {
    let mut lost = Vec::new();
    for events in 0.. {
        let world = World::new(tiny_size(24));
        if cached {
            world.put_behind_page_cache(TINY.header_len());
        }
        create_pool(&world, boot(1));
        let file = world.create("dir/file").expect("create");
        file.write_at(0, &[1; 2 * PAGE]).expect("write");
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let base = || SimBase::File(file.clone(), can);
        let stage = Stage::new(pool.attach().expect("attach"));
        let staged = StagedFile::open(&stage, &name_of(&file), base(), Mode::Strict)
            .expect("stage")
            .with_relink(relink_from(&world));
        staged.write_at(0, &[2; PAGE]).expect("write");
        staged.write_at(PAGE as u64, &[3; PAGE]).expect("write");
        let monitor = Stage::new(pool.attach().expect("attach"));
        let theirs = StagedFile::open_entry(&monitor, staged.file(), base(), Mode::Strict)
            .expect("stage")
            .with_relink(relink_from(&world));
        let ended = world.kill_after(events, || {
            let publisher = if other { &theirs } else { &staged };
            drop(publisher.publish(Scope::Everything))
        });
        std::mem::forget((staged, theirs));
        let mut wanted = vec![2; PAGE];
        wanted.extend([3; PAGE]);
        let what = format!("{can:?}, cached {cached}, by another {other}, after {events}");
        // Everybody is dead: nobody has a slot.
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let next = Stage::new(pool.attach().expect("attach"));
        let staged = StagedFile::open(&next, &name_of(&file), base(), Mode::Strict).expect("stage");
        let read = read_all(&staged);
        if read != wanted {
            lost.push(format!("{what}: read {} {}", read[0], read[PAGE]));
        }
        // Another one joins.
        staged.share().expect("share");
        let joins = Stage::new(pool.attach().expect("attach"));
        let second =
            StagedFile::open(&joins, &name_of(&file), base(), Mode::Strict).expect("stage");
        let read = read_all(&second);
        if read != wanted {
            lost.push(format!(
                "{what}: the second reads {} {}",
                read[0], read[PAGE]
            ));
        }
        drop(staged);
        second.close().expect("close");
        let found = contents(&file).expect("read");
        if found != wanted {
            lost.push(format!("{what}: published {} {}", found[0], found[PAGE]));
        }
        if ended.is_some() {
            return lost;
        }
    }
    lost
}

#[test]
fn who_opens_a_file_after_a_dead_relink_sees_all_of_it() {
    let mut lost = Vec::new();
    for can in [Can::Exchange, Can::Clone] {
        for cached in [false, true] {
            for other in [false, true] {
                lost.extend(opened_after_a_dead_relink(can, cached, other));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

/// One who is dead and one who lives have two files staged together. Somebody recovers, in as many steps as he is let; the
/// one who lives does something in the middle, or afterwards.
fn recover_beside_the_living(
    cached: bool,
    mode: Mode,
    kill: Option<u64>,
    deed_at: Option<u32>,
    act: u32,
) -> (Vec<String>, bool) {
    let mut wrong = Vec::new();
    let world = World::new(tiny_size(40));
    if cached {
        world.put_behind_page_cache(TINY.header_len());
    }
    create_pool(&world, boot(1));
    let locks = LocalLocks::default();
    let names = ["dir/file", "dir/g"];
    let files: Vec<SimFile> = names.map(|name| world.create(name).expect("create")).into();
    files
        .iter()
        .for_each(|file| file.write_at(0, &first_bytes()).expect("write"));
    let steps = Steps::default();
    let stage = |steps: &Steps| {
        let medium = Stepped(world.medium(), steps.clone());
        let pool = open_locked(medium, locks.clone(), boot(1)).expect("open");
        Stage::new(pool.attach().expect("attach"))
    };
    let quiet = Steps::default();
    let (dead, living, recoverer) = (stage(&quiet), stage(&quiet), stage(&steps));
    let open = |stage: &Arc<Stage<AnyMedium>>, file: &SimFile| {
        let staged = StagedFile::open(stage, &name_of(file), file.clone(), mode).expect("stage");
        staged.share().expect("share");
        staged
    };
    let theirs: Vec<_> = files.iter().map(|file| open(&dead, file)).collect();
    let ours: Vec<_> = files.iter().map(|file| open(&living, file)).collect();
    let mut models = vec![first_bytes(), first_bytes()];
    for nth in 0..2 {
        for (round, step) in [
            Step::Write(100, 3000),
            Step::Append(9000),
            Step::Write(50, 100),
        ]
        .into_iter()
        .enumerate()
        {
            step.change(round + nth, &mut models[nth]);
            step.run(round + nth, &theirs[nth]).expect("write");
        }
        if act & 1 != 0 {
            Step::Append(20).change(9, &mut models[nth]);
            Step::Append(20).run(9, &ours[nth]).expect("write");
        }
    }
    drop(theirs);
    drop(dead);
    let ours = Arc::new(ours);
    let model = Arc::new(Mutex::new(models));
    if let Some(at) = deed_at {
        let (ours, model) = (Arc::clone(&ours), Arc::clone(&model));
        let deed = move || {
            for nth in 0..2 {
                let view: &StagedFile<AnyMedium, SimFile> = &ours[nth];
                if let Ok(None) = view.stage.attachment().try_lock_file(view.file()) {
                    return false;
                }
            }
            for nth in 0..2 {
                let step = if act & 2 != 0 {
                    Step::Append(500)
                } else {
                    Step::Write(0, 5000)
                };
                match step.run(7, &ours[nth]) {
                    Ok(()) => step.change(7, &mut model.lock().unwrap()[nth]),
                    Err(Error::Taken) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            true
        };
        steps.next.lock().unwrap().push_back((at, Box::new(deed)));
    }
    let find = |name: &FileName| {
        let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
        world.open_by_handle(handle).map_err(Error::from)
    };
    steps.on.store(true, Ordering::Relaxed);
    let ended = match kill {
        Some(events) => world
            .kill_after(events, || drop(recover(recoverer.attachment(), &find)))
            .is_some(),
        None => {
            let report = recover(recoverer.attachment(), &find).expect("recover");
            if !report.kept.is_empty() {
                wrong.push(format!("kept: {:?}", report.kept));
            }
            true
        }
    };
    steps.on.store(false, Ordering::Relaxed);
    let in_time = steps.next.lock().unwrap().is_empty();
    steps.next.lock().unwrap().clear();
    drop(recoverer);
    let what = format!("{cached} {mode:?} killed {kill:?}, deed {deed_at:?}, act {act}");
    let next = stage(&quiet);
    let mut models = model.lock().unwrap().clone();
    for nth in 0..2 {
        // Who lives goes on.
        let step = Step::Write(200, 4500);
        let run = step.run(11, &ours[nth]);
        match run {
            Ok(()) => {
                step.change(11, &mut models[nth]);
                let seen = read_all(&ours[nth]);
                if seen != models[nth] {
                    wrong.push(format!(
                        "{what}: {nth} reads {} of {}",
                        seen.len(),
                        models[nth].len()
                    ));
                }
            }
            Err(Error::Taken) => {
                let seen = contents(&files[nth]).expect("read");
                if seen != models[nth] {
                    wrong.push(format!(
                        "{what}: {nth} taken with {} of {}",
                        seen.len(),
                        models[nth].len()
                    ));
                }
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    recover(next.attachment(), &find).expect("recover");
    for nth in 0..2 {
        match ours[nth].publish(Scope::Everything) {
            Ok(_) | Err(Error::Taken) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        match ours[nth].take_away(|| {}) {
            Ok(_) | Err(Error::Taken) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        let seen = contents(&files[nth]).expect("read");
        if seen != models[nth] {
            wrong.push(format!(
                "{what}: {nth} is {} of {}",
                seen.len(),
                models[nth].len()
            ));
        }
    }
    let all_done = match (kill, deed_at) {
        (Some(_), _) => ended,
        (None, Some(_)) => !in_time,
        _ => true,
    };
    (wrong, all_done)
}

#[test]
fn a_recovery_beside_the_living() {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for cached in [false, true] {
        for mode in [Mode::Posix, Mode::Strict] {
            for act in 0..4 {
                for events in 0.. {
                    let (found, done) =
                        recover_beside_the_living(cached, mode, Some(events), None, act);
                    wrong.extend(found);
                    tried += 1;
                    if done {
                        break;
                    }
                }
                for at in 0.. {
                    let (found, done) =
                        recover_beside_the_living(cached, mode, None, Some(at * 3), act);
                    wrong.extend(found);
                    tried += 1;
                    if done {
                        break;
                    }
                }
            }
        }
    }
    assert!(tried > 1000, "{tried}");
    assert!(
        wrong.is_empty(),
        "{} {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(30)]
    );
}

/// A program dies at any event; a view that has followed it so far follows the rest, and finds what a walk finds.
fn follow_the_dead(mode: Mode, cached: bool, events: u64, seen_before: bool) -> bool {
    let world = World::new(tiny_size(40));
    if cached {
        world.put_behind_page_cache(TINY.header_len());
    }
    create_pool(&world, boot(1));
    let files: Vec<SimFile> = ["dir/file", "dir/g"]
        .map(|name| world.create(name).expect("create"))
        .into();
    files
        .iter()
        .for_each(|file| file.write_at(0, &first_bytes()).expect("write"));
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = || Stage::new(pool.attach().expect("attach"));
    let (program, monitor, fresh) = (stage(), stage(), stage());
    let open = |file: &SimFile| {
        StagedFile::open(&program, &name_of(file), file.clone(), mode).expect("stage")
    };
    let (ours, other) = (open(&files[0]), open(&files[1]));
    ours.append(&[7; 100]).expect("append");
    let entry = ours.file();
    let theirs = StagedFile::open_unread(&monitor, entry, files[0].clone(), mode).expect("view");
    if seen_before {
        drop(theirs.lock().expect("follow"));
    }
    let steps = [
        Step::Append(300),
        Step::Write(10, PAGE),
        Step::Append(20000),
        Step::Fsync,
        Step::Write(0, 9000),
        Step::Truncate(5000),
        Step::Write(0, PAGE),
        Step::Show,
        Step::PublishCommitted,
        Step::Append(30),
        Step::Append(9000),
        Step::Publish,
        Step::Append(30),
    ];
    let ended = world.kill_after(events, || {
        for (nth, step) in steps.iter().enumerate() {
            step.run(nth + 1, &ours).expect("step");
            step.run(nth + 1, &other).expect("step");
            if nth % 4 == 1 {
                StagedFile::commit_group(&[&ours, &other]).expect("commit");
            }
        }
    });
    drop((ours, other));
    drop(program);
    drop(theirs.lock().expect("follow"));
    let walked = walked(&fresh, entry, &files[0], mode);
    let what = format!("{mode:?}, {cached}, {seen_before}, after {events}");
    is_as_by_walk(&theirs, &walked, &what);
    assert_eq!(read_all(&theirs), read_all(&walked), "{what}");
    ended.is_some()
}

#[test]
fn the_dead_are_followed_as_by_a_walk() {
    let mut tried = 0;
    for mode in [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict] {
        for cached in [false, true] {
            for seen_before in [false, true] {
                // Others at each run over modes and media.
                let mut events = tried % 7;
                while !follow_the_dead(mode, cached, events, seen_before) {
                    events += 7;
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

/// A program dies with its monitor, all of what it staged is published, and others are at the pool still: the entry stays,
/// and an outsider makes the file longer. The next program appends behind that.
#[test]
fn where_a_file_ends_is_not_what_the_dead_knew() {
    for mode in [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict] {
        let world = World::new(tiny_size(12));
        create_pool(&world, boot(1));
        let file = world.create("dir/file").expect("create");
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let stage = || Stage::new(pool.attach().expect("attach"));
        let (program, next) = (stage(), stage());
        let open = |stage: &Arc<Stage<AnyMedium>>| {
            StagedFile::open(stage, &name_of(&file), file.clone(), mode).expect("stage")
        };
        let ours = open(&program);
        ours.append(&[1; 100]).expect("append");
        ours.publish(Scope::Everything).expect("publish");
        drop(ours);
        drop(program);
        file.write_at(100, &[2; 50]).expect("write");
        let theirs = open(&next);
        assert_eq!(theirs.append(&[3; 10]).expect("append"), 150, "{mode:?}");
        theirs.close().expect("close");
        let wanted = [&[1; 100][..], &[2; 50], &[3; 10]].concat();
        assert_eq!(contents(&file).expect("read"), wanted, "{mode:?}");
    }
}

/// A fence in whose middle something happens.
struct Fencing(SimMedium, super::reads::Middle);

impl Medium for Fencing {
    medium_of!(0: size load store compare_exchange read write_streaming flush order fence_is_slow);

    fn fence(&self) {
        self.1.happens();
        self.0.fence();
    }
}

/// A monitor publishes, and its disk is slow, or it is stopped: the program reads what it has written meanwhile.
#[test]
fn a_reader_waits_for_no_publishers_disk() {
    let world = World::new(tiny_size(24));
    world.put_behind_page_cache(TINY.header_len());
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let locks = LocalLocks::default();
    let middle = super::reads::Middle::default();
    let stage = |middle: &super::reads::Middle| {
        let medium = Fencing(world.medium(), middle.clone());
        let pool = open_locked(medium, locks.clone(), boot(1)).expect("open");
        Stage::new(pool.attach().expect("attach"))
    };
    let (program, monitor) = (stage(&super::reads::Middle::default()), stage(&middle));
    let ours = StagedFile::open(&program, &name_of(&file), file.clone(), Mode::Strict);
    let ours = Arc::new(ours.expect("stage"));
    ours.append(&[1; PAGE]).expect("append");
    let theirs =
        StagedFile::open_unread(&monitor, ours.file(), file.clone(), Mode::Strict).expect("view");
    // As the end of a publication, with nothing before.
    file.write_at(0, &[1; PAGE]).expect("write");
    let mut guard = theirs.lock().expect("lock");
    let claim = crate::staged::claim::Claim::take(monitor.attachment(), &guard).expect("claim");
    let (told, read) = std::sync::mpsc::channel();
    let in_time = Arc::new(AtomicBool::new(false));
    middle.set({
        let (ours, in_time) = (Arc::clone(&ours), Arc::clone(&in_time));
        move || {
            let told = told.clone();
            std::thread::spawn(move || {
                let mut bytes = vec![0; PAGE];
                let read = ours.read_at(0, &mut bytes);
                let _ = told.send(read.is_ok() && bytes == [1; PAGE]);
            });
            let read = read.recv_timeout(std::time::Duration::from_secs(5));
            in_time.store(read == Ok(true), Ordering::Relaxed);
        }
    });
    let last = guard.next_seq().expect("seq") - 1;
    guard.retire(last).expect("retire");
    drop(guard);
    drop(claim);
    assert!(
        in_time.load(Ordering::Relaxed),
        "the reader waits for the publisher's sync"
    );
}

/// A base file after whose size is asked something happens.
struct Asked(SimFile, super::reads::Middle);

impl BaseFile for Asked {
    base_of!(0: read_at write_at sync);

    fn size(&self) -> Result<u64, Errno> {
        let size = self.0.size();
        self.1.happens();
        size
    }
}

/// While one reader leaves out what was published, the program goes on, somebody publishes that, and another reader leaves
/// it out: the file is as long as the last one has seen it.
#[test]
fn a_reader_puts_no_older_size_behind_a_newer_one() {
    let world = World::new(tiny_size(24));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let [program, monitor] = [(); 2].map(|()| Stage::new(pool.attach().expect("attach")));
    let middle = super::reads::Middle::default();
    let base = Asked(file.clone(), middle.clone());
    let ours = StagedFile::open(&program, &name_of(&file), base, Mode::Strict).expect("stage");
    let theirs = StagedFile::open_unread(&monitor, ours.file(), file, Mode::Strict).expect("view");
    ours.append(&[1; PAGE]).expect("append");
    theirs.publish(Scope::Everything).expect("publish");
    let (ours, theirs) = (Arc::new(ours), Arc::new(theirs));
    let other = Arc::new(Mutex::new(None));
    middle.set({
        let (ours, other) = (Arc::clone(&ours), Arc::clone(&other));
        move || {
            let (done, waits) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                ours.append(&[2; PAGE]).expect("append");
                theirs.publish(Scope::Everything).expect("publish");
                let read = read_all(&ours).len();
                let _ = done.send(());
                read
            });
            *other.lock().expect("lock") = Some(thread);
            // He may have to wait for us.
            let _ = waits.recv_timeout(std::time::Duration::from_millis(300));
        }
    });
    let mut bytes = vec![0; PAGE];
    assert_eq!(ours.read_at(0, &mut bytes).expect("read"), PAGE);
    let other = other.lock().expect("lock").take().expect("it began");
    assert_eq!(other.join().expect("it ends"), 2 * PAGE);
    assert_eq!(ours.size().expect("size"), 2 * PAGE as u64);
    assert_eq!(read_all(&ours), [[1; PAGE], [2; PAGE]].concat());
}

/// A base file on a slow disk.
struct Sleepy(SimFile);

impl BaseFile for Sleepy {
    base_of!(0: size read_at write_at);

    fn sync(&self) -> Result<(), Errno> {
        std::thread::sleep(std::time::Duration::from_millis(100));
        self.0.sync()
    }
}

/// A program was killed that had many files staged. Another one has one of these staged, too, and syncs it: as the library
/// does, with so much patience.
#[test]
fn a_sync_does_not_wait_for_the_recovery_of_other_files() {
    const FILES: usize = 64;
    let geometry = Geometry {
        chunk_shift: 13,
        max_chunks: 512,
        slot_count: 4,
        file_count: 128,
    };
    let size = geometry.chunk(geometry.header_chunks() + 400);
    let world = World::new(size);
    let options = CreateOptions {
        geometry,
        uuid: *b"a pool for tests",
        boot: boot(1),
    };
    Pool::create(&world.medium(), &options).expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = || Stage::new(pool.attach().expect("attach"));
    let (dead, living, recoverer) = (stage(), stage(), stage());
    let files: Vec<SimFile> = (0..FILES)
        .map(|nth| world.create(&format!("dir/{nth}")).expect("create"))
        .collect();
    let open = |stage: &Arc<Stage<AnyMedium>>, nth: usize| {
        let base = Sleepy(files[nth].clone());
        StagedFile::open(stage, &name_of(&files[nth]), base, Mode::Strict).expect("stage")
    };
    let theirs: Vec<_> = (0..FILES).map(|nth| open(&dead, nth)).collect();
    let first = (0..FILES)
        .min_by_key(|nth| theirs[*nth].file().id())
        .expect("one");
    theirs[first].share().expect("share");
    let ours = open(&living, first);
    for file in &theirs {
        file.append(&[7; 100]).expect("append");
    }
    drop(theirs);
    drop(dead);
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || {
            let find = |name: &FileName| {
                let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
                world
                    .open_by_handle(handle)
                    .map(Sleepy)
                    .map_err(Error::from)
            };
            let report = recover(recoverer.attachment(), &find).expect("recover");
            assert!(report.kept.is_empty(), "{:?}", report.kept);
        });
        let claimed = || ours.version().expect("word") & adit_pool::PUBLISHER != 0;
        while !claimed() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        ours.append(&[8; 100]).expect("append");
        let begun = std::time::Instant::now();
        // `patiently` in crates/shim/src/stage.rs.
        let mut shown = Err(Error::Contended);
        for _ in 0..5000 {
            shown = ours.show_committed();
            match &shown {
                Err(Error::Publishing { .. } | Error::Contended) => {
                    adit_pmem::rest(std::time::Duration::from_millis(1));
                }
                _ => break,
            }
        }
        let took = begun.elapsed();
        assert!(shown.is_ok(), "{shown:?} after {took:?}");
        assert!(took < std::time::Duration::from_secs(2), "{took:?}");
    });
}
