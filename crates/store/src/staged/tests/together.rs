//! One attachment writes and reads, another publishes and takes away: in the middle of a read, at random
//! instants from threads, and from a process of its own that is killed.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use adit_pmem::OutOfRange;
use adit_pool::layout::FileEntry;
use adit_pool::{FileMedium, FileRef, PoolFile};
use adit_sim::Rng;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode as FileMode, OFlags};

use super::interplay::leave_relinking;
use super::reads::{Middle, SlowBase, is_whole};
use super::*;
use crate::staged::claim::Claim;
use crate::staged::file::walks;
use crate::testing::{Helper, Scratch, argument, is_helper};

/// What a planted writer or reader does not look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blind {
    /// Nothing: it looks at all.
    No,
    /// Whether a publisher moved: his claim, and what he has retired.
    Publisher,
    /// Whether the file was taken away.
    Life,
}

/// The pool as the writing attachment sees it: words that it is blind for keep their first value.
#[derive(Clone)]
struct Blinkered {
    medium: SimMedium,
    blind: Blind,
    frozen: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Blinkered {
    fn is_frozen(&self, offset: u64) -> bool {
        let table = TINY.file_table();
        let len = u64::from(TINY.file_count) * FileEntry::SIZE as u64;
        let field = (offset.wrapping_sub(table)) % FileEntry::SIZE as u64;
        let fields: &[usize] = match self.blind {
            Blind::No => &[],
            Blind::Publisher => &[
                std::mem::offset_of!(FileEntry, version),
                std::mem::offset_of!(FileEntry, retired),
            ],
            Blind::Life => &[
                std::mem::offset_of!(FileEntry, state),
                std::mem::offset_of!(FileEntry, file_id),
            ],
        };
        (table..table + len).contains(&offset) && fields.contains(&(field as usize))
    }
}

impl Medium for Blinkered {
    medium_of!(medium: size store compare_exchange read write_streaming flush fence);

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        let now = self.medium.load(offset)?;
        if !self.is_frozen(offset) || now == 0 && self.blind == Blind::Life && self.is_new(offset) {
            return Ok(now);
        }
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, first)) = frozen.iter().find(|(at, _)| *at == offset) {
            return Ok(*first);
        }
        frozen.push((offset, now));
        Ok(now)
    }
}

impl Blinkered {
    /// Whether the word was never seen with a value: entries are empty before they are made.
    fn is_new(&self, offset: u64) -> bool {
        let frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        frozen.iter().all(|(at, _)| *at != offset)
    }
}

const PAGE: usize = 4096;

/// One writes through blinkers, the other publishes; they share a base file.
struct Two {
    file: SimFile,
    other: Arc<Stage<AnyMedium>>,
    staged: StagedFile<AnyMedium, SlowBase>,
    middle: Middle,
}

fn two(blind: Blind) -> Two {
    let world = World::new(tiny_size(20));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &[1; PAGE]).expect("write");
    let locks = LocalLocks::default();
    let pool = |blind| {
        let medium = Blinkered {
            medium: world.medium(),
            blind,
            frozen: Arc::default(),
        };
        open_locked(medium, locks.clone(), boot(1)).expect("open")
    };
    let stage = Stage::new(pool(blind).attach().expect("attach"));
    let other = Stage::new(pool(Blind::No).attach().expect("attach"));
    let middle = Middle::default();
    let base = SlowBase(file.clone(), middle.clone());
    let staged = StagedFile::open(&stage, &name_of(&file), base, Mode::Strict).expect("stage");
    Two {
        file,
        other,
        staged,
        middle,
    }
}

impl Two {
    fn other(
        other: &Arc<Stage<AnyMedium>>,
        entry: FileRef,
        file: &SimFile,
    ) -> StagedFile<AnyMedium, SimFile> {
        StagedFile::open_entry(other, entry, file.clone(), Mode::Strict).expect("stage")
    }

    fn read_interrupted(&self, act: impl FnOnce() + Send + 'static) -> Result<Vec<u8>> {
        self.middle.set(act);
        let mut bytes = vec![0; PAGE];
        let read = self.staged.read_at(0, &mut bytes)?;
        assert_eq!(read, PAGE);
        Ok(bytes)
    }
}

/// In the middle of a read of the base, its bytes are staged anew by a thread of the reader's process,
/// and published by another attachment.
fn read_under_a_publication(blind: Blind) -> Vec<u8> {
    let two = Arc::new(two(blind));
    let act = {
        let two = Arc::clone(&two);
        move || {
            two.staged.write_at(0, &[2; PAGE]).expect("write");
            let other = Two::other(&two.other, two.staged.file(), &two.file);
            other.publish(Scope::Everything).expect("publish");
        }
    };
    two.read_interrupted(act).expect("read")
}

#[test]
fn readers_see_that_another_attachment_published() {
    assert_eq!(read_under_a_publication(Blind::No), [2; PAGE]);
    let torn = read_under_a_publication(Blind::Publisher);
    assert!(!is_whole(&torn), "the test shows nothing");
}

/// In the middle of a read the file is taken away, and an outsider writes to it.
fn read_under_a_taking(blind: Blind) -> Result<Vec<u8>> {
    let two = two(blind);
    let other = Two::other(&two.other, two.staged.file(), &two.file);
    let outsider = two.file.clone();
    two.read_interrupted(move || {
        other.take_away(|| {}).expect("take away");
        outsider.write_at(0, &[9; PAGE]).expect("write");
    })
}

#[test]
fn readers_see_that_the_file_was_taken_away() {
    let error = read_under_a_taking(Blind::No).expect_err("taken");
    assert!(matches!(error, Error::Taken), "{error}");
    // A blind reader goes on, with an overlay that says nothing any more about the file.
    let astray = read_under_a_taking(Blind::Life);
    assert!(astray.is_ok(), "the test shows nothing");
}

/// A writer that does not look whether the file is still his loses what it writes.
#[test]
fn writers_see_that_the_file_was_taken_away() {
    for blind in [Blind::No, Blind::Life] {
        let two = two(blind);
        two.staged.append(b"before").expect("append");
        let other = Two::other(&two.other, two.staged.file(), &two.file);
        other.take_away(|| {}).expect("take away");
        let late = two.staged.append(b"late");
        if blind == Blind::No {
            assert!(matches!(late, Err(Error::Taken)));
        } else {
            late.expect("it noticed: the test shows nothing");
        }
        let bytes = contents(&two.file).expect("read");
        assert_eq!(bytes, [&[1; PAGE][..], b"before"].concat());
    }
}

pub(super) fn geometry() -> Geometry {
    Geometry {
        chunk_shift: 16,
        max_chunks: 256,
        slot_count: 16,
        file_count: 16,
    }
}

pub(super) fn kernel_file(path: &std::path::Path) -> KernelFile<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = FileMode::RUSR | FileMode::WUSR;
    let fd = rustix::fs::open(path.as_os_str().as_bytes(), flags, mode).expect("open");
    KernelFile::new(fd).expect("base")
}

/// The path stands for the handle as well: these tests make no other file of that name.
pub(super) fn name_at(path: &std::path::Path) -> FileName {
    FileName {
        handle_type: 1,
        handle: vec![4; 8],
        path: path.as_os_str().as_bytes().to_vec(),
        device: 1,
    }
}

/// Record `nth` of a file: its number, its length, and bytes that follow from these.
pub(super) fn record(nth: u64) -> Vec<u8> {
    let len = 16 + (nth * 7919) % 2500;
    let mut bytes = [nth.to_le_bytes(), len.to_le_bytes()].concat();
    bytes.resize(len as usize, (nth * 31) as u8);
    bytes
}

/// How many whole records the bytes are; nothing else may be in them.
fn count_records(bytes: &[u8]) -> u64 {
    let mut rest = bytes;
    let mut nth = 0;
    while !rest.is_empty() {
        let wanted = record(nth);
        assert!(rest.starts_with(&wanted), "record {nth} is lost or torn");
        rest = &rest[wanted.len()..];
        nth += 1;
    }
    nth
}

/// A program with one file, which it stages again whenever it was taken away.
struct Program<'a> {
    stage: &'a Arc<Stage<FileMedium>>,
    path: &'a std::path::Path,
    mode: Mode,
    staged: Option<StagedFile<FileMedium, KernelFile<OwnedFd>>>,
    /// How often it was staged.
    times: u64,
}

impl Program<'_> {
    fn with<T>(
        &mut self,
        act: impl Fn(&StagedFile<FileMedium, KernelFile<OwnedFd>>) -> Result<T>,
    ) -> T {
        loop {
            let staged = match self.staged.take() {
                Some(staged) => Ok(staged),
                None => {
                    self.times += 1;
                    let base = kernel_file(self.path);
                    StagedFile::open(self.stage, &name_at(self.path), base, self.mode)
                }
            };
            let done = staged.and_then(|staged| {
                let done = act(&staged)?;
                self.staged = Some(staged);
                Ok(done)
            });
            match done {
                Err(Error::Taken) => {}
                done => return done.expect("operation"),
            }
        }
    }
}

/// What the monitor does, at random: publish, take away, wait.
fn meddle(stage: &Arc<Stage<FileMedium>>, path: &std::path::Path, mode: Mode, rng: &mut Rng) {
    for file in stage.attachment().pool().files().expect("files") {
        let staged = match StagedFile::open_entry(stage, file, kernel_file(path), mode) {
            Err(Error::Taken) => continue,
            staged => staged.expect("stage"),
        };
        for _ in 0..rng.below(4) {
            let scope = match mode {
                Mode::Atomic => Scope::Committed,
                _ => Scope::Everything,
            };
            match staged.publish(scope) {
                Ok(_) | Err(Error::Publishing { .. } | Error::Taken) => {}
                Err(error) => panic!("{error}"),
            }
        }
        if rng.chance(2) {
            match staged.take_away(|| {}) {
                Ok(_) | Err(Error::Taken) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Who ends a staging gives the description `O_APPEND` back before the entry goes. If he dies in between,
/// the next publisher, who knew the description without, does the same again: at the same places.
#[test]
fn what_is_published_again_does_not_land_at_the_end() {
    let scratch = Scratch::new();
    let path = scratch.path("file");
    let pool = PoolFile::create(&scratch.path("pool"), 4 << 20, geometry()).expect("pool");
    let stage = Stage::new(pool.attach().expect("attach"));
    let theirs = PoolFile::open(&scratch.path("pool")).expect("open");
    let other = Stage::new(theirs.attach().expect("attach"));
    let file = kernel_file(&path);
    file.write_at(0, b"before").expect("write");
    let description = file.into_inner();
    let again = || {
        let fd = rustix::io::fcntl_dupfd_cloexec(&description, 0).expect("dup");
        KernelFile::new(fd).expect("base")
    };
    let program = StagedFile::open(&stage, &name_at(&path), again(), Mode::Posix).expect("stage");
    let monitor =
        StagedFile::open_entry(&other, program.file(), again(), Mode::Posix).expect("stage");
    program.append(b" and after").expect("append");
    let death = || {
        let ended = program.take_away(|| {
            rustix::fs::fcntl_setfl(&description, OFlags::APPEND).expect("flags");
            std::panic::panic_any("dies here");
        });
        drop(ended);
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(death)).expect_err("no death");
    monitor.take_away(|| {}).expect("take away");
    let found = std::fs::read(&path).expect("read");
    assert_eq!(String::from_utf8_lossy(&found), "before and after");
}

/// A program appends, reads and commits; another attachment publishes and takes away at any instant.
/// Every record is in the file, whole and in order, for the program at all times and in the end.
#[test]
fn nothing_is_lost_or_torn_when_files_are_taken_away() {
    let mut taken = 0;
    for seed in 0..24 {
        let mode = [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict][seed as usize % 4];
        let scratch = Scratch::new();
        let path = scratch.path("file");
        let pool = PoolFile::create(&scratch.path("pool"), 4 << 20, geometry()).expect("pool");
        let stage = Stage::new(pool.attach().expect("attach"));
        let theirs = PoolFile::open(&scratch.path("pool")).expect("open");
        let other = Stage::new(theirs.attach().expect("attach"));
        let going = AtomicBool::new(true);
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = Rng::new(seed);
                while going.load(Ordering::Relaxed) {
                    meddle(&other, &path, mode, &mut rng);
                }
            });
            let program = scope.spawn(|| {
                let mut rng = Rng::new(seed + 1000);
                let mut program = Program {
                    stage: &stage,
                    path: &path,
                    mode,
                    staged: None,
                    times: 0,
                };
                for nth in 0..400 {
                    program.with(|staged| staged.append(&record(nth)));
                    written.store(nth + 1, Ordering::Relaxed);
                    if rng.chance(5) {
                        program.with(|staged| staged.fsync());
                    }
                    if rng.chance(5) {
                        let bytes = program.with(|staged| {
                            let mut bytes = vec![0; staged.size()? as usize];
                            let read = staged.read_at(0, &mut bytes)?;
                            bytes.truncate(read);
                            Ok(bytes)
                        });
                        assert_eq!(count_records(&bytes), nth + 1, "seed {seed}");
                    }
                }
                program.with(|staged| staged.take_away(|| {}));
                taken += program.times - 1;
            });
            let ended = program.join();
            going.store(false, Ordering::Relaxed);
            ended.expect("program");
        });
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(count_records(&bytes), 400, "seed {seed}");
    }
    assert!(taken > 0, "no file was taken away: the test shows nothing");
    println!("taken away {taken} times");
}

/// What the other attachment publishes is this one's space; it comes back without any pressure.
#[test]
fn space_that_others_published_comes_back() {
    let two = two(Blind::No);
    let pool = two.staged.stage.attachment().pool();
    let other = Two::other(&two.other, two.staged.file(), &two.file);
    let mut fewest = u32::MAX;
    for _ in 0..20 {
        for _ in 0..20 {
            two.staged.append(&[3; 3000]).expect("append");
        }
        fewest = fewest.min(pool.free_chunks().expect("free"));
        other.publish(Scope::Everything).expect("publish");
        two.staged.append(b"notices").expect("append");
        let free = pool.free_chunks().expect("free");
        assert!(free > fewest, "{free} chunks are free, {fewest} were");
    }
}

/// A program is stopped while it holds the lock that a publisher needs to give up his claim.
#[test]
fn a_claim_goes_also_when_the_lock_cannot_be_had() {
    let two = two(Blind::No);
    let (ours, theirs) = (two.staged.stage.attachment(), two.other.attachment());
    let file = two.staged.file();
    let guard = theirs.lock_file(file).expect("lock");
    let claim = super::super::claim::Claim::take(theirs, &guard).expect("claim");
    drop(guard);
    let stopped = ours.lock_file(file).expect("lock");
    drop(claim);
    drop(stopped);
    two.staged.append(b"bytes").expect("append");
    let other = Two::other(&two.other, file, &two.file);
    assert_eq!(
        other.publish(Scope::Everything).expect("publish").records,
        1
    );
}

/// Taking away may last longer than anybody waits for a lock: here the end of it alone does.
#[test]
fn a_writer_waits_for_whoever_takes_the_file_away() {
    let scratch = Scratch::new();
    let path = scratch.path("file");
    let pool = PoolFile::create(&scratch.path("pool"), 4 << 20, geometry()).expect("pool");
    let stage = Stage::new(pool.attach().expect("attach"));
    let other = Stage::new(pool.attach().expect("attach"));
    let open = |stage| StagedFile::open(stage, &name_at(&path), kernel_file(&path), Mode::Strict);
    let (ours, theirs) = (open(&stage).expect("stage"), open(&other).expect("stage"));
    ours.append(&record(0)).expect("append");
    let locked = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = || {
                locked.wait();
                // Longer than the patience with a lock of the living, which is two seconds.
                std::thread::sleep(std::time::Duration::from_millis(2500));
            };
            theirs.take_away(end).expect("take away");
        });
        locked.wait();
        let late = ours.append(&record(1));
        assert!(matches!(late, Err(Error::Taken)), "{late:?}");
    });
    assert_eq!(count_records(&std::fs::read(&path).expect("read")), 1);
}

/// The `main` of a process that appends for ever and notes how many records are written.
#[test]
#[ignore = "the other process of `a_killed_program_loses_nothing`"]
fn appending_program() {
    if !is_helper() {
        return;
    }
    let path = argument("ADIT_TEST_FILE");
    let pool = PoolFile::open(&argument("ADIT_TEST_POOL")).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let note = kernel_file(&argument("ADIT_TEST_NOTE"));
    let mut program = Program {
        stage: &stage,
        path: &path,
        mode: Mode::Strict,
        staged: None,
        times: 0,
    };
    let mut nth = 0;
    loop {
        program.with(|staged| staged.append(&record(nth)));
        nth += 1;
        note.write_at(0, &u64::to_le_bytes(nth)).expect("note");
    }
}

/// A program of another process is killed while its file is published and taken away by this one; what
/// it had written is then recovered through a description that this one has.
#[test]
fn a_killed_program_loses_nothing() {
    for seed in 0..6 {
        let scratch = Scratch::new();
        let (path, note) = (scratch.path("file"), scratch.path("note"));
        let at = scratch.path("pool");
        let pool = PoolFile::create(&at, 8 << 20, geometry()).expect("pool");
        let stage = Stage::new(pool.attach().expect("attach"));
        drop((kernel_file(&path), kernel_file(&note)));
        let role = "staged::tests::together::appending_program";
        let places = [
            ("ADIT_TEST_FILE", &path),
            ("ADIT_TEST_POOL", &at),
            ("ADIT_TEST_NOTE", &note),
        ];
        let places = places.map(|(name, path)| (name, path.as_path()));
        let mut program = Helper::start(role, &places);
        let mut rng = Rng::new(seed);
        let noted = || {
            let note = std::fs::read(&note).expect("note");
            note.first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word))
        };
        let enough = 200 + rng.below(600);
        crate::testing::eventually("records are written", || {
            meddle(&stage, &path, Mode::Strict, &mut rng);
            noted() >= enough
        });
        program.kill();
        let acknowledged = noted();
        if rng.chance(2) {
            // The monitor sees the death at once, and takes away what it knows of.
            for file in pool.pool().files().expect("files") {
                let base = kernel_file(&path);
                let staged = StagedFile::open_entry(&stage, file, base, Mode::Strict);
                staged.expect("stage").take_away(|| {}).expect("take away");
            }
        }
        let open = |_: &FileName| Ok(kernel_file(&path));
        let report = recover(stage.attachment(), &open).expect("recover");
        assert!(report.kept.is_empty(), "{:?}", report.kept);
        let found = count_records(&std::fs::read(&path).expect("read"));
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "seed {seed}: {acknowledged} acknowledged, {found} found"
        );
        let scan = pool.pool().scan().expect("scan");
        assert!(
            scan.is_empty() && scan.counts.rejected == 0,
            "{:?}",
            scan.rejected
        );
    }
}

/// Another process relinks, and dies at any instant. The program reads on, writes on and publishes what is
/// left; nothing is lost, and nothing comes back.
#[test]
fn a_relink_ends_anywhere_and_its_program_goes_on() {
    for can in [Can::Exchange, Can::Clone] {
        let mut instants = 0;
        while relink_ends_after(instants, can) {
            instants += 1;
        }
        assert!(instants > 30, "{instants}");
    }
}

/// Whether the other process died at that instant: it had not come to its end.
fn relink_ends_after(events: u64, can: Can) -> bool {
    let world = World::new(tiny_size(20));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &[1; PAGE]).expect("write");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let base = || SimBase::File(file.clone(), can);
    let staged = StagedFile::open(&stage, &name_of(&file), base(), Mode::Strict).expect("stage");
    let mut model = vec![1; PAGE];
    for nth in 2..5 {
        staged.append(&[nth; 2 * PAGE]).expect("append");
        model.extend([nth; 2 * PAGE]);
    }
    assert_eq!(read_all(&staged), model);
    let [third, other] = [(), ()].map(|()| Stage::new(pool.attach().expect("attach")));
    let bystander = StagedFile::open_entry(&third, staged.file(), base(), Mode::Strict);
    let bystander = bystander.expect("stage");
    let theirs = StagedFile::open_entry(&other, staged.file(), base(), Mode::Strict);
    let theirs = theirs.expect("stage").with_relink(relink_from(&world));
    let ended = world.kill_after(events, || {
        theirs.publish(Scope::Everything).expect("publish")
    });
    drop((theirs, other));
    if let Some(done) = ended {
        assert!(done.exchanged + done.cloned >= 4 * PAGE as u64, "{done:?}");
    }
    assert_eq!(read_all(&staged), model, "{can:?}, dead after {events}");
    // Somebody else who knew the records learns that they are over, whoever has ended the relink.
    let seen = read_all(&bystander);
    assert_eq!(seen, model, "{can:?}, dead after {events}, by a third");
    let word = pool.version(staged.file()).expect("word");
    assert_eq!(word >> 63, 0, "{can:?}, dead after {events}: not over");
    let written = staged.write_at(PAGE as u64, &[8; 3 * PAGE]);
    assert!(
        written.is_ok(),
        "{can:?}, dead after {events} of {ended:?}: {written:?}"
    );
    model[PAGE..4 * PAGE].fill(8);
    assert_eq!(read_all(&staged), model, "{can:?}, dead after {events}");
    staged.publish(Scope::Everything).expect("publish");
    staged.append(&[9; PAGE]).expect("append");
    model.extend([9; PAGE]);
    assert_eq!(read_all(&staged), model, "{can:?}, dead after {events}");
    drop(bystander);
    staged.close().expect("close");
    assert_eq!(
        contents(&file).expect("read"),
        model,
        "{can:?}, dead after {events}"
    );
    ended.is_none()
}

/// A program with some files, and somebody who looks after them.
struct Watched {
    own: Vec<StagedFile<AnyMedium, SimFile>>,
    other: Vec<StagedFile<AnyMedium, SimFile>>,
    bases: Vec<SimFile>,
    stage: Arc<Stage<AnyMedium>>,
    world: World,
}

impl Watched {
    fn of(files: usize) -> Self {
        Self::in_mode(Mode::Strict, files)
    }

    fn in_mode(mode: Mode, files: usize) -> Self {
        let geometry = Geometry {
            file_count: 64,
            ..TINY
        };
        let world = World::new(geometry.chunk(60));
        let options = CreateOptions {
            geometry,
            uuid: [9; 16],
            boot: boot(1),
        };
        Pool::create(&world.medium(), &options).expect("create");
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let [stage, other] = [(); 2].map(|()| Stage::new(pool.attach().expect("attach")));
        let create = |nth| world.create(&format!("dir/{nth}")).expect("create");
        let bases: Vec<SimFile> = (0..files).map(create).collect();
        let open = |base: &SimFile| {
            StagedFile::open(&stage, &name_of(base), base.clone(), mode).expect("stage")
        };
        let own: Vec<_> = bases.iter().map(open).collect();
        let look = |(own, base): (&StagedFile<_, _>, &SimFile)| {
            StagedFile::open_unread(&other, own.file(), base.clone(), mode).expect("look")
        };
        let other = own.iter().zip(&bases).map(look).collect();
        Self {
            own,
            other,
            bases,
            stage,
            world,
        }
    }

    /// Publishes all, the last file first; how many walks that took.
    fn publish(&self) -> (Vec<Result<Published>>, u32) {
        let before = walks::so_far();
        let all: Vec<_> = self
            .other
            .iter()
            .rev()
            .map(|f| (f, Scope::Everything))
            .collect();
        let mut done = StagedFile::publish_together(&all);
        done.reverse();
        (done, walks::so_far() - before)
    }
}

/// Which of these files somebody has locked who has said that he takes long.
fn take_long(stage: &Stage<AnyMedium>, files: &[FileRef]) -> Vec<bool> {
    let pool = stage.attachment().pool();
    let takes_long = |file: &FileRef| {
        let entry = pool.geometry().file_entry((file.id() & 0xff_ffff) as u32);
        let lock = entry + std::mem::offset_of!(FileEntry, lock) as u64;
        pool.medium().load(lock).expect("load") >> 63 == 1
    };
    files.iter().map(takes_long).collect()
}

/// A walk may last longer than anybody waits for a lock: who makes one says so of each file that he has locked.
#[test]
fn who_walks_over_the_logs_says_that_he_takes_long() {
    let watched = Watched::of(3);
    let entries: Vec<FileRef> = watched.own.iter().map(StagedFile::file).collect();
    let seen: Arc<Mutex<Vec<Vec<bool>>>> = Arc::default();
    let look = || {
        let (stage, entries) = (Arc::clone(&watched.stage), entries.clone());
        let seen = Arc::clone(&seen);
        walks::meanwhile(move || {
            seen.lock().expect("lock").push(take_long(&stage, &entries));
        });
    };
    let write = || {
        for file in &watched.own {
            file.append(b"one").expect("append");
        }
    };
    let others: Vec<_> = watched.other.iter().collect();
    write();
    look();
    StagedFile::follow_together(&others).expect("follow");
    write();
    look();
    watched.publish();
    write();
    // The ends of the logs do not tell what went to the file.
    leave_relinking(&watched.own[1]);
    look();
    let third = Stage::new(watched.stage.attachment().pool().attach().expect("attach"));
    let base = watched.bases[1].clone();
    StagedFile::open_entry(&third, entries[1], base, Mode::Strict).expect("open");
    let seen = seen.lock().expect("lock");
    assert_eq!(*seen, [[true; 3], [true; 3], [false, true, false]]);
    assert_eq!(take_long(&watched.stage, &entries), [false; 3]);
}

#[test]
fn many_files_are_published_with_one_walk() {
    let watched = Watched::of(5);
    for file in &watched.own {
        file.append(b"one").expect("append");
    }
    let (done, walks) = watched.publish();
    assert!(
        done.iter()
            .all(|done| done.as_ref().is_ok_and(|done| done.records == 1))
    );
    assert_eq!(walks, 1);
    assert_eq!(watched.publish().1, 0, "nothing was written since");
    watched.own[3].append(b"two").expect("append");
    let (done, walks) = watched.publish();
    let records: Vec<u64> = done.iter().flatten().map(|done| done.records).collect();
    assert_eq!((records, walks), (vec![0, 0, 0, 1, 0], 1));
    for (nth, base) in watched.bases.iter().enumerate() {
        let expected: &[u8] = if nth == 3 { b"onetwo" } else { b"one" };
        assert_eq!(contents(base).expect("read"), expected);
    }
}

/// Who looks after one file finds what its program has logged at the ends of the logs, whoever publishes it.
#[test]
fn one_file_is_published_without_a_walk() {
    for (mode, cached) in [Mode::Posix, Mode::Strict, Mode::Atomic]
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)])
    {
        let watched = Watched::in_mode(mode, 2);
        if cached {
            watched.world.put_behind_page_cache(TINY.header_len());
        }
        let (own, other) = (&watched.own[0], &watched.other[0]);
        let mut model = Vec::new();
        let before = walks::so_far();
        for nth in 0..90 {
            let bytes = bytes_of(nth, 100 + nth * 11);
            own.append(&bytes).expect("append");
            model.extend(&bytes);
            own.write_at(0, &bytes).expect("write");
            model[..bytes.len()].copy_from_slice(&bytes);
            watched.own[1].append(&bytes).expect("to another file");
            if nth % 7 == 6 {
                own.truncate(model.len() as u64 / 2).expect("cut");
                model.truncate(model.len() / 2);
            }
            match nth % 9 {
                5 => drop(watched.own[1].publish(Scope::Everything).expect("publish")),
                8 => {
                    own.fsync().expect("fsync");
                    let done = StagedFile::publish_together(&[(other, Scope::Committed)]);
                    let published = done[0].as_ref().is_ok_and(|done| done.records > 0);
                    assert!(published, "{mode:?}, round {nth}: {done:?}");
                    assert_eq!(contents(&watched.bases[0]).expect("read"), model);
                }
                _ => {}
            }
        }
        assert_eq!(walks::so_far(), before, "{mode:?}, page cache: {cached}");
        other.take_away(|| {}).expect("take away");
        assert_eq!(contents(&watched.bases[0]).expect("read"), model);
    }
}

/// Readers throw their copies away when somebody claims the file: nobody does for what may not be published.
#[test]
fn what_is_not_committed_is_not_claimed() {
    let watched = Watched::in_mode(Mode::Atomic, 1);
    let (own, other) = (&watched.own[0], &watched.other[0]);
    let word = || {
        let pool = watched.stage.attachment().pool();
        pool.version(own.file()).expect("word")
    };
    let publish = || {
        let done = StagedFile::publish_together(&[(other, Scope::Committed)]);
        let again = other.publish(Scope::Committed).expect("publish");
        assert_eq!(again, Published::default());
        done[0].as_ref().expect("publish").records
    };
    let free = word();
    own.append(b"one").expect("append");
    assert_eq!((publish(), word()), (0, free));
    own.fsync().expect("fsync");
    own.append(b"two").expect("append");
    assert!(publish() > 0);
    let once = word();
    assert_ne!(once, free);
    assert_eq!((publish(), word()), (0, once));
    assert_eq!(contents(&watched.bases[0]).expect("read"), b"one");
}

/// A file that cannot be published now keeps nobody from the others.
#[test]
fn files_that_others_have_are_left_out() {
    let watched = Watched::of(4);
    for file in &watched.own {
        file.append(b"one").expect("append");
    }
    watched.own[0].take_away(|| {}).expect("take away");
    let attachment = watched.stage.attachment();
    let guard = attachment.lock_file(watched.own[1].file()).expect("lock");
    let claim = Claim::take(attachment, &guard).expect("claim");
    drop(guard);
    let publishing = watched.other[2].publishing.lock().expect("lock");
    let (done, _) = watched.publish();
    assert!(matches!(done[0], Err(Error::Taken)), "{done:?}");
    assert!(matches!(done[1], Err(Error::Publishing { .. })), "{done:?}");
    let records = |nth: usize| done[nth].as_ref().map_or(u64::MAX, |done| done.records);
    assert_eq!([records(2), records(3)], [0, 1]);
    drop(claim);
    drop(publishing);
    let (done, _) = watched.publish();
    let records: Vec<u64> = done.iter().flatten().map(|done| done.records).collect();
    assert_eq!(records, [1, 1, 0], "the first has no entry any more");
    for base in &watched.bases {
        assert_eq!(contents(base).expect("read"), b"one");
    }
}

/// Space is collected when that is worth a look at all records that wait, and all of it in the end.
#[test]
fn closing_many_files_collects_everything_in_few_turns() {
    let Watched {
        own, other, stage, ..
    } = Watched::of(40);
    drop(other);
    for file in &own {
        for _ in 0..8 {
            file.append(b"one").expect("append");
        }
    }
    let files = own.len();
    let mut looked_at = 0;
    for (nth, file) in own.into_iter().enumerate() {
        let waiting = stage.attachment().waiting_records();
        assert_eq!(file.close().expect("close").records, 8);
        let collected = stage.attachment().waiting_records() < waiting;
        looked_at += if collected { waiting } else { 0 };
        assert!(
            collected || nth + 1 < files,
            "the last one collects what is left"
        );
    }
    assert_eq!(stage.attachment().waiting_records(), 0);
    let each = 8 * files as u64;
    assert!(
        looked_at <= 12 * each,
        "{looked_at} looks for {each} records"
    );
}

/// Somebody is stopped while he takes a file away: who publishes others meanwhile keeps nobody from these.
#[test]
fn a_stopped_closer_keeps_nobody_from_other_files() {
    let watched = Watched::of(2);
    for file in &watched.own {
        file.append(b"one").expect("append");
    }
    let attachment = watched.stage.attachment();
    let lock = || attachment.lock_file(watched.own[1].file()).expect("lock");
    std::thread::scope(|scope| {
        let (locked, is_locked) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let guard = lock();
            let claim = Claim::take(attachment, &guard).expect("claim");
            locked.send(()).expect("the other thread");
            let _ = goes_on.recv_timeout(Duration::from_secs(10));
            drop(guard);
            drop(claim);
        });
        is_locked.recv().expect("the other thread");
        let (done, _) = watched.publish();
        let records: Vec<u64> = done.iter().flatten().map(|done| done.records).collect();
        assert_eq!(records, [1, 0]);
        let looked: Vec<_> = watched.other.iter().collect();
        StagedFile::follow_together(&looked).expect("follow");
        watched.own[0].append(b"two").expect("append");
        watched.own[0].take_away(|| {}).expect("take away");
        let _ = go_on.send(());
    });
    assert_eq!(contents(&watched.bases[0]).expect("read"), b"onetwo");
}

/// What another attachment has committed and published is given back at the close.
#[test]
fn what_another_has_published_is_collected_at_the_close() {
    let Watched {
        own, other, stage, ..
    } = Watched::in_mode(Mode::Posix, 1);
    for _ in 0..50 {
        own[0].append(&[1; 300]).expect("append");
    }
    let done = StagedFile::publish_together(&[(&other[0], Scope::Everything)]);
    assert_eq!(done[0].as_ref().expect("publish").records, 50);
    for file in own {
        file.close().expect("close");
    }
    assert_eq!(stage.attachment().waiting_records(), 0);
}

/// A commit at the close finds no place in the log, of which a chunk is retired and was not worth a look.
#[test]
fn a_close_makes_room_in_the_log() {
    let Watched { stage, world, .. } = Watched::of(0);
    stage.attachment().limit_log(2);
    let open = |nth: usize, mode| {
        let base = world.create(&format!("dir/{nth}")).expect("create");
        StagedFile::open(&stage, &name_of(&base), base, mode).expect("stage")
    };
    let strict: Vec<_> = (0..3).map(|nth| open(nth, Mode::Strict)).collect();
    let mut posix: Vec<_> = (3..7).map(|nth| open(nth, Mode::Posix)).collect();
    for (file, times) in strict.iter().chain(&posix).zip([122, 1, 3, 123, 1, 1, 1]) {
        for _ in 0..times {
            file.append(b"x").expect("append");
        }
    }
    for file in strict {
        file.close().expect("close");
    }
    for file in posix.drain(1..) {
        file.close().expect("close");
    }
}

/// Files of an image and of its copy have the same handles, and may have one pool. Whoever opened the one with what is
/// staged of the other read that, published it there, and took it away from whom it belonged to.
#[test]
fn what_is_staged_of_a_file_is_not_of_its_copy() {
    let world = World::new(tiny_size(10));
    create_pool(&world, boot(1));
    let [image, copy] = ["image/file", "copy/file"].map(|name| world.create(name).expect("create"));
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = || Stage::new(pool.attach().expect("attach"));
    let (program, other) = (stage(), stage());
    let name = name_of(&image);
    let staged = StagedFile::open(&program, &name, image.clone(), Mode::Strict).expect("stage");
    staged.append(&[7; 100]).expect("append");
    let elsewhere = FileName {
        device: name.device + 1,
        ..name
    };
    let opened = StagedFile::open(&other, &elsewhere, copy.clone(), Mode::Strict);
    let read = opened.as_ref().map(read_all).unwrap_or_default();
    let closed = opened.map(|opened| opened.close());
    assert_eq!(
        (read, contents(&copy).expect("read")),
        (Vec::new(), Vec::new())
    );
    assert!(matches!(closed, Err(Error::OtherFile(_))));
    staged.append(&[8; 100]).expect("append");
    staged.close().expect("close");
    assert_eq!(
        contents(&image).expect("read"),
        [[7; 100], [8; 100]].concat()
    );
}
