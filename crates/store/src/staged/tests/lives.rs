//! Life after life of one pool: each ends with a crash at any event, of the system or of all processes, and the next one
//! goes on with what it finds, recovered or not, or recovered in part. Two processes share two files; one may die and
//! the other one go on. Between two stagings of a file others write to it in place.

use std::sync::Mutex;

use adit_sim::{Crash, Rng};

use super::*;

const FILES: usize = 2;
const PAGE: usize = 4096;

const GEOMETRY: Geometry = Geometry {
    chunk_shift: 13,
    max_chunks: 64,
    slot_count: 12,
    file_count: 4,
};

type Contents = [Vec<u8>; FILES];

/// What the files are, and what a loss of power may make of them.
#[derive(Clone)]
struct Model {
    now: Contents,
    durable: Vec<Contents>,
    /// What is being done, and which states it leads to if it happens.
    doing: Option<Doing>,
    log: Vec<String>,
}

#[derive(Clone)]
enum Doing {
    /// One call that changes a file.
    Change(usize, Vec<u8>),
    /// Makes one file durable.
    Commit(usize),
    /// Makes all of them durable at once.
    CommitAll,
    /// The kernel writes.
    InPlace(usize, Vec<u8>),
}

impl Model {
    fn note(&mut self, state: Contents) {
        if !self.durable.contains(&state) {
            self.durable.push(state);
        }
    }

    fn with(state: &Contents, file: usize, bytes: &[u8]) -> Contents {
        let mut state = state.clone();
        state[file] = bytes.to_vec();
        state
    }

    fn commits(&self, file: usize) -> Vec<Contents> {
        let with = |state: &Contents| Self::with(state, file, &self.now[file]);
        self.durable.iter().map(with).collect()
    }

    /// It has happened.
    fn done(&mut self, at_once: bool) {
        match self.doing.take() {
            None => {}
            Some(Doing::Change(file, bytes)) => {
                self.now[file] = bytes;
                if at_once {
                    self.durable = vec![self.now.clone()];
                }
            }
            Some(Doing::Commit(file)) => self.durable = self.commits(file),
            Some(Doing::CommitAll) => self.durable = vec![self.now.clone()],
            Some(Doing::InPlace(file, bytes)) => {
                self.now[file] = bytes;
                self.durable = self.commits(file);
            }
        }
    }

    /// Whether that may be found after a crash in what is being done.
    fn allows(&self, crash: Crash, at_once: bool, found: &Contents) -> bool {
        let mut states = match crash {
            Crash::Kill => vec![self.now.clone()],
            Crash::Power => self.durable.clone(),
        };
        match &self.doing {
            None => {}
            Some(Doing::Change(file, bytes)) if crash == Crash::Kill || at_once => {
                states.push(Self::with(&self.now, *file, bytes));
            }
            Some(Doing::Change(..)) => {}
            Some(Doing::Commit(file)) => states.extend(self.commits(*file)),
            Some(Doing::CommitAll) => states.push(self.now.clone()),
            Some(Doing::InPlace(file, bytes)) => {
                return states.iter().any(|state| {
                    let mixed = |(at, byte): (usize, &u8)| {
                        let was = |from: &Vec<u8>| from.get(at).copied().unwrap_or(0) == *byte;
                        was(&state[*file]) || was(bytes) || *byte == 0 && at >= state[*file].len()
                    };
                    (0..FILES).all(|nth| nth == *file || found[nth] == state[nth])
                        && found[*file].iter().enumerate().all(mixed)
                        && (found[*file].len() >= state[*file].len().min(bytes.len()))
                });
            }
        }
        states.contains(found)
    }
}

struct Process {
    stage: Arc<Stage<AnyMedium>>,
    files: Vec<Option<StagedFile<AnyMedium, SimBase>>>,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    mode: Mode,
    can: Can,
    cached: bool,
}

fn path(nth: usize) -> String {
    format!("dir/{nth}")
}

struct Life<'a> {
    world: &'a World,
    case: Case,
    locks: LocalLocks,
    shared: bool,
    model: &'a Mutex<Model>,
}

impl Life<'_> {
    fn boot(&self) -> BootId {
        boot(self.world.boot_id())
    }

    fn pool(&self, core: u32) -> Arc<Pool<AnyMedium>> {
        let medium = self.world.medium_on_core(core);
        open_locked(medium, self.locks.clone(), self.boot()).expect("open")
    }

    fn base(&self, nth: usize) -> SimBase {
        SimBase::File(self.world.open(&path(nth)).expect("file"), self.case.can)
    }

    fn open(&self, stage: &Arc<Stage<AnyMedium>>, nth: usize) -> StagedFile<AnyMedium, SimBase> {
        let base = self.base(nth);
        let name = name_of(base.file());
        let staged = StagedFile::open(stage, &name, base, self.case.mode).expect("stage");
        if self.shared {
            staged.share().expect("share");
        }
        staged.with_relink((self.case.can != Can::Copy).then(|| relink_from(self.world)))
    }

    fn process(&self, core: u32) -> Process {
        let stage = Stage::new(self.pool(core).attach().expect("attach"));
        Process {
            stage,
            files: (0..FILES).map(|_| None).collect(),
        }
    }

    fn at_once(&self) -> bool {
        matches!(self.case.mode, Mode::Strict | Mode::Sync)
    }

    fn recover(&self, attachment: &adit_pool::Attachment<AnyMedium>, lost: Option<usize>) -> usize {
        let find = |name: &FileName| {
            let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
            let file = self.world.open_by_handle(handle)?;
            if lost.is_some_and(|lost| {
                self.world.open(&path(lost)).expect("file").handle() == file.handle()
            }) {
                return Err(Error::OtherFile("it is not there now"));
            }
            Ok(SimBase::File(file, self.case.can))
        };
        let report = recover(attachment, &find).expect("recover");
        report.kept.len()
    }

    fn log(&self, what: String) {
        self.model
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .log
            .push(what);
    }

    fn model(&self) -> std::sync::MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Recovers, if that is what happens.
    fn first(&self, rng: &mut Rng) {
        let way = rng.below(5);
        if way == 0 {
            return;
        }
        let lost = (way == 1).then(|| rng.below(FILES as u64) as usize);
        let attachment = self.pool(3).attach().expect("attach");
        // Whatever becomes of it, all that the dead have left may be committed from here on.
        let now = self.model().now.clone();
        self.model().note(now);
        if way == 2 {
            let events = rng.below(120);
            let killed = std::thread::scope(|scope| {
                let work = || {
                    self.world
                        .kill_after(events, || self.recover(&attachment, lost))
                };
                scope.spawn(work).join().expect("recovery")
            });
            self.log(format!(
                "recovery killed after {events}: {}",
                killed.is_none()
            ));
            drop(attachment);
            return;
        }
        let kept = self.recover(&attachment, lost);
        self.log(format!("recovered without {lost:?}, kept {kept}"));
        if kept == 0 {
            let mut model = self.model();
            model.durable = vec![model.now.clone()];
        }
        if rng.below(2) == 0 {
            attachment.detach().expect("detach");
        }
    }

    fn read(&self, process: &Process) -> Contents {
        std::array::from_fn(|nth| match &process.files[nth] {
            Some(file) => read_all(file),
            None => contents(&self.base(nth)).expect("read"),
        })
    }

    fn step(&self, nth: usize, rng: &mut Rng, all: &mut Vec<Process>) {
        let who = if self.shared {
            rng.below(all.len() as u64) as usize
        } else {
            0
        };
        let file = rng.below(FILES as u64) as usize;
        drop_taken(all);
        let mine = if self.shared { 0..all.len() } else { 0..1 };
        for process in &mut all[mine] {
            if process.files[file].is_none() {
                process.files[file] = Some(self.open(&process.stage, file));
            }
        }
        let old = self.model().now[file].clone();
        let page = rng.below(4) as usize * PAGE;
        let len = [PAGE, PAGE, 2 * PAGE, 100, 3000, 9000, 40][rng.below(7) as usize];
        let at = page + [0, 0, 500, 4000][rng.below(4) as usize];
        let what = rng.below(22);
        let mut new = old.clone();
        let step = match what {
            0..8 => Step::Write(at, len),
            8..10 => Step::Append(len),
            10 => Step::Truncate(at),
            11 => Step::Extend(at),
            12..15 => Step::Fsync,
            15 => Step::PublishCommitted,
            16 => Step::Publish,
            17 => Step::Show,
            18 | 19 => Step::TakeAway,
            _ => Step::ShowAll,
        };
        step.change(nth, &mut new);
        if new.len() > 6 * PAGE {
            return;
        }
        let group = what == 14;
        self.log(format!(
            "{nth}: {who} {file} {step:?} {}",
            if group { "together" } else { "" }
        ));
        self.model().doing = Some(if group {
            Doing::CommitAll
        } else if step.is_commit() {
            Doing::Commit(file)
        } else {
            Doing::Change(file, new)
        });
        if matches!(step, Step::PublishCommitted | Step::Show) {
            self.model().doing = None;
        }
        // Sometimes another process does it, which need not have it open.
        let by_other = !self.shared
            && all.len() > 1
            && matches!(
                step,
                Step::Publish | Step::PublishCommitted | Step::TakeAway
            );
        let dies = all.len() > 1 && rng.below(6) == 0 && (who == 1 || by_other);
        let events = if dies { rng.below(60) } else { u64::MAX };
        let (doer, entry) = if by_other {
            (1, Some(all[0].files[file].as_ref().expect("staged").file()))
        } else {
            (who, None)
        };
        let run = |process: &Process| -> bool {
            if group {
                let open: Vec<_> = process.files.iter().flatten().collect();
                if open.len() < FILES {
                    // Nothing was logged of what is not open here.
                    for nth in 0..FILES {
                        if process.files[nth].is_none() && self.shared {
                            let staged = self.open(&process.stage, nth);
                            staged.fsync().expect("fsync");
                        }
                    }
                }
                StagedFile::commit_group(&open).expect("group");
                return true;
            }
            let ran = match entry {
                Some(entry) => {
                    let base = self.base(file);
                    let theirs =
                        StagedFile::open_entry(&process.stage, entry, base, self.case.mode);
                    let theirs = theirs
                        .expect("stage")
                        .with_relink((self.case.can != Can::Copy).then(|| relink_from(self.world)));
                    step.run(nth, &theirs)
                }
                None => step.run(nth, process.files[file].as_ref().expect("staged")),
            };
            match ran {
                Ok(()) => true,
                Err(Error::NoSpace) => false,
                Err(error) => panic!("{step:?}: {error}"),
            }
        };
        if dies {
            let process = &all[doer];
            let ended = std::thread::scope(|scope| {
                let work = || self.world.kill_after(events, || run(process));
                scope.spawn(work).join().expect("process")
            });
            self.log(format!("  {doer} dies after {events}, done: {ended:?}"));
            drop(all.remove(doer));
            drop_taken(all);
            match ended {
                Some(true) => self.model().done(self.at_once()),
                Some(false) => self.model().doing = None,
                None => {
                    // Who lives looks.
                    // What the dead one had logged and not shown happens when somebody takes the lock.
                    for file in all[0].files.iter().flatten() {
                        drop(file.lock().expect("lock"));
                    }
                    let found = self.read(&all[0]);
                    let mut model = self.model();
                    assert!(
                        model.allows(Crash::Kill, self.at_once(), &found),
                        "after the death of one: {:?}",
                        model.log
                    );
                    let was = model.doing.take();
                    if let Some(Doing::Commit(file)) = was {
                        let more = model.commits(file);
                        more.into_iter().for_each(|state| model.note(state));
                    } else if let Some(Doing::CommitAll) = was {
                        let now = model.now.clone();
                        model.note(now);
                    }
                    model.now = found;
                    if self.at_once() {
                        model.durable = vec![model.now.clone()];
                    }
                }
            }
            return;
        }
        if run(&all[doer]) {
            self.model().done(self.at_once());
        } else {
            self.log("  no space".to_owned());
            self.model().doing = None;
        }
        if step == Step::TakeAway && !group {
            for process in all.iter_mut() {
                process.files[file] = None;
            }
            if rng.below(2) == 0 {
                let mut bytes = self.model().now[file].clone();
                let at = rng.below(bytes.len() as u64 + 1) as usize;
                let len = 300;
                Step::Write(at, len).change(nth + 1000, &mut bytes);
                self.log(format!("  in place {at}"));
                self.model().doing = Some(Doing::InPlace(file, bytes));
                let base = self.base(file);
                base.write_at(at as u64, &bytes_of(nth + 1000, len))
                    .expect("write");
                base.sync().expect("sync");
                self.model().done(true);
            }
        }
        for process in all.iter().take(if self.shared { 2 } else { 1 }) {
            let found = self.read(process);
            let model = self.model();
            assert!(found == model.now, "it reads other bytes: {:?}", model.log);
        }
    }

    fn live(&self, rng: &mut Rng, steps: usize) {
        self.first(rng);
        let mut all = vec![self.process(1), self.process(2)];
        {
            for nth in 0..FILES {
                for process in all.iter_mut().take(if self.shared { 2 } else { 1 }) {
                    process.files[nth] = Some(self.open(&process.stage, nth));
                }
            }
            let found = self.read(&all[0]);
            let mut model = self.model();
            if self.at_once() {
                model.durable = vec![model.now.clone()];
            }
            assert!(
                found == model.now,
                "who comes reads other bytes: {:?}",
                model.log
            );
        }
        for nth in 0..steps {
            self.step(nth + 1, rng, &mut all);
        }
    }
}

/// Who finds that somebody has taken a file away has it no more.
fn drop_taken(all: &mut [Process]) {
    for file in all.iter_mut().flat_map(|process| &mut process.files) {
        if file.as_ref().is_some_and(StagedFile::is_taken) {
            *file = None;
        }
    }
}

/// What is found after a crash, by who recovers all of it.
fn found(world: &World, case: Case) -> Result<Contents, String> {
    let pool =
        open_pool(world.medium(), boot(world.boot_id())).map_err(|e| format!("open: {e}"))?;
    let attachment = pool.attach().map_err(|e| format!("attach: {e}"))?;
    let find = |name: &FileName| {
        let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
        let file = world.open_by_handle(handle)?;
        Ok(SimBase::File(file, case.can))
    };
    nothing_is_damaged(&attachment)?;
    let report = recover(&attachment, &find).map_err(|e| format!("recover: {e}"))?;
    if let Some(kept) = report.kept.first() {
        return Err(format!("kept: {}", kept.reason));
    }
    let problems = pool.check().map_err(|e| e.to_string())?.problems;
    if !problems.is_empty() {
        return Err(format!("check found {problems:?}"));
    }
    Ok(std::array::from_fn(|nth| {
        contents(&world.open(&path(nth)).expect("file")).expect("read")
    }))
}

fn lives(seed: u64, case: Case) {
    let mut rng = Rng::new(seed * 16 + case.mode as u64 * 4 + case.cached as u64);
    let chunks = 14 + rng.below(30) as u32;
    let mut world = World::new(GEOMETRY.chunk(GEOMETRY.header_chunks() + chunks));
    if case.cached {
        world.put_behind_page_cache(GEOMETRY.header_len());
    }
    let first: Contents = std::array::from_fn(|_| first_bytes());
    world.setup(|| {
        let options = CreateOptions {
            geometry: GEOMETRY,
            uuid: *b"a pool for tests",
            boot: BootId::NONE,
        };
        Pool::create(&world.medium(), &options).expect("create");
        for (nth, bytes) in first.iter().enumerate() {
            let file = world.create(&path(nth)).expect("create");
            file.write_at(0, bytes).expect("write");
        }
    });
    let model = Mutex::new(Model {
        now: first.clone(),
        durable: vec![first],
        doing: None,
        log: Vec::new(),
    });
    for _ in 0..6 {
        let life = Life {
            world: &world,
            case,
            locks: LocalLocks::default(),
            shared: rng.below(2) == 0,
            model: &model,
        };
        let (events, steps) = (rng.below(900), 1 + rng.below(25) as usize);
        let shared = life.shared;
        life.log(format!(
            "-- a life, shared {shared}, {events} events, {chunks} chunks"
        ));
        let mut its = Rng::new(rng.below(u64::MAX));
        let _ = world.kill_after(events, || life.live(&mut its, steps));
        let crash = [Crash::Kill, Crash::Power][rng.below(2) as usize];
        let chance = rng.below(1 << 40);
        let next = world.after(crash, chance);
        let seen = found(&world.after(crash, chance), case);
        let mut model = model.lock().unwrap_or_else(|e| e.into_inner());
        let seen = seen
            .unwrap_or_else(|error| panic!("{seed} {case:?} {crash:?}: {error}: {:#?}", model.log));
        let at_once = life.at_once();
        assert!(
            model.allows(crash, at_once, &seen),
            "{seed} {case:?} {crash:?}: {:?} now {:?} of {:#?}",
            seen.each_ref().map(Vec::len),
            model.now.each_ref().map(Vec::len),
            model.log
        );
        model.log.push(format!("-- {crash:?}"));
        // A commit that was under way may have come or not.
        let mut durable = match crash {
            Crash::Power => vec![seen.clone()],
            Crash::Kill => {
                let mut all = model.durable.clone();
                match model.doing.clone() {
                    Some(Doing::Commit(file)) => all.extend(model.commits(file)),
                    Some(Doing::CommitAll) => all.push(model.now.clone()),
                    Some(Doing::InPlace(file, _)) => {
                        all.extend(
                            model
                                .durable
                                .iter()
                                .map(|state| Model::with(state, file, &seen[file])),
                        );
                    }
                    _ => {}
                }
                all
            }
        };
        if at_once {
            durable = vec![seen.clone(), model.now.clone()];
        }
        durable.dedup();
        model.durable = durable;
        model.now = seen;
        model.doing = None;
        drop(model);
        world = next;
    }
}

#[test]
fn life_after_life() {
    let from: u64 = std::env::var("ADIT_FROM").map_or(0, |n| n.parse().expect("n"));
    let many: u64 = std::env::var("ADIT_LIVES").map_or(10, |n| n.parse().expect("n"));
    let mut failed = Vec::new();
    for seed in from..from + many {
        for mode in [Mode::Atomic, Mode::Strict, Mode::Sync] {
            for cached in [false, true] {
                let can = [Can::Copy, Can::Exchange, Can::Clone][(seed % 3) as usize];
                let case = Case { mode, can, cached };
                let ran = std::panic::catch_unwind(|| lives(seed, case));
                if let Err(panic) = ran {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    failed.push(format!("{seed} {case:?}: {text}"));
                }
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed; first: {}",
        failed.len(),
        failed[0]
    );
}
