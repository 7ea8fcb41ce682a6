//! Leases of staged files: taken, refused, broken, left behind.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_pmem::{Medium as _, brief};
use adit_pool::layout::Geometry;
use adit_pool::{FileMedium, FileName, FileRef, PoolFile};

use super::super::client::{self, AcquireRequest, Lease, Refused};
use super::super::held::planted::SLOW_POOL;
use super::*;
use crate::pools::AskedPool;
use crate::registry::RuntimeDir;
use crate::staged::{Error, Growth, KernelFile, Mode, Stage, StagedFile, handle_of};
use crate::testing::{
    self, alone, argument, eventually, is_helper, listen, open_rw, runtime_at, say, spawn,
};

/// A program has better things to do than to wait for a monitor that does not get its turn: it leaves its file to the
/// kernel, and asks nothing for some seconds. Here it asks again.
pub(super) fn patiently<T>(mut ask: impl FnMut() -> Result<T, Refused>) -> Result<T, Refused> {
    let begun = Instant::now();
    loop {
        match ask() {
            Err(refused) if is_late(&refused) && begun.elapsed() < testing::scratch::limit(60) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            answer => return answer,
        }
    }
}

fn is_late(refused: &Refused) -> bool {
    matches!(refused, Refused::NoMonitor(Errno::TIMEDOUT))
}

/// A program at a pool, with the steps that staging takes.
pub(super) struct Program {
    pub(super) dir: RuntimeDir,
    pub(super) pool: PathBuf,
    file: PoolFile,
    pub(super) stage: Arc<Stage<FileMedium>>,
}

/// rustix has descriptor types of its own here.
pub(super) fn borrowed(file: &File) -> rustix::fd::BorrowedFd<'static> {
    crate::registry::sys::borrow(file.as_raw_fd()).expect("descriptor")
}

fn name_of(file: &File) -> FileName {
    let (handle_type, handle) = handle_of(borrowed(file)).expect("handle");
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = std::fs::read_link(link).expect("path");
    FileName {
        handle_type,
        handle,
        path: path.as_os_str().as_encoded_bytes().to_vec(),
        device: file.metadata().expect("metadata").dev(),
    }
}

/// The pool that a program names. In memory each runtime directory has one anyway; on other media it lies on the
/// mount, where all tests would have one together, which their dead fill.
fn named_pool(scratch: &Scratch) -> Option<PathBuf> {
    if testing::scratch::medium() == adit_pmem::MediumKind::Ram {
        return None;
    }
    let path = scratch.path("run/pool");
    if !path.exists() {
        PoolFile::create(&path, 24 << 20, Geometry::default()).expect("create the pool");
    }
    Some(path)
}

impl Program {
    /// Asks for the pool of a file and attaches to it.
    pub(super) fn new(scratch: &Scratch, file: &File) -> Self {
        let dir = runtime_at(&scratch.path("run"));
        let named = named_pool(scratch);
        let asked = AskedPool {
            path: named
                .as_ref()
                .map(|path| path.as_os_str().as_encoded_bytes()),
            size: None,
        };
        let pool = patiently(|| client::pool_for(&dir, borrowed(file), asked)).expect("a pool");
        Self::at(scratch, std::str::from_utf8(pool.as_bytes()).expect("path"))
    }

    /// Attaches to a pool.
    pub(super) fn at(scratch: &Scratch, pool: impl Into<PathBuf>) -> Self {
        let pool = pool.into();
        let file = PoolFile::open(&pool).expect("open the pool");
        let stage = Stage::new(file.attach().expect("attach"));
        Self {
            dir: runtime_at(&scratch.path("run")),
            pool,
            file,
            stage,
        }
    }

    pub(super) fn enter(&self, file: &File) -> FileRef {
        let name = name_of(file);
        self.stage.attachment().enter_file(&name).expect("enter")
    }

    pub(super) fn acquire(
        &self,
        file: &File,
        entry: FileRef,
        mode: Mode,
    ) -> Result<Lease, Refused> {
        self.acquire_with(file, entry, mode, false)
    }

    pub(super) fn acquire_declared(
        &self,
        file: &File,
        entry: FileRef,
        mode: Mode,
    ) -> Result<Lease, Refused> {
        let request = AcquireRequest {
            declared: true,
            ..self.request(file, entry, mode, false)
        };
        let _alone = alone();
        patiently(|| client::acquire(&self.dir, &request))
    }

    fn acquire_with(
        &self,
        file: &File,
        entry: FileRef,
        mode: Mode,
        restore_append: bool,
    ) -> Result<Lease, Refused> {
        let request = self.request(file, entry, mode, restore_append);
        let _alone = alone();
        patiently(|| client::acquire(&self.dir, &request))
    }

    pub(super) fn request(
        &self,
        file: &File,
        entry: FileRef,
        mode: Mode,
        restore_append: bool,
    ) -> AcquireRequest<'_> {
        AcquireRequest {
            pool: self.pool.as_os_str().as_encoded_bytes(),
            file: entry,
            slot: self.stage.attachment().slot(),
            mode,
            restore_append,
            declared: false,
            fd: borrowed(file),
        }
    }

    pub(super) fn release(&self, lease: &Lease) -> bool {
        let late = std::cell::Cell::new(false);
        let release = || {
            let released = client::release(&self.dir, lease);
            released.inspect_err(|refused| late.set(late.get() || is_late(refused)))
        };
        // Who was not answered in time, on a busy machine, does not learn any more that it was done then.
        patiently(release).expect("release") || late.get()
    }
}

/// Whether somebody holds a lease on the file: an opener that does not wait is sent away.
pub(super) fn is_leased(path: &Path) -> bool {
    use rustix::fs::OFlags;
    let opened = rustix::fs::open(
        path.to_str().expect("path"),
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    matches!(opened, Err(Errno::AGAIN))
}

#[test]
fn a_lease_is_taken_and_given_back() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let _monitor = monitor(&scratch);
    let file = open_rw(&path);
    let program = Program::new(&scratch, &file);
    assert_eq!(program.pool, scratch.path("run/pool"));
    let entry = program.enter(&file);
    for _ in 0..100 {
        let lease = program.acquire(&file, entry, Mode::Atomic).expect("lease");
        let again = program.acquire(&file, entry, Mode::Atomic);
        assert_eq!(again, Err(Refused::Lease(Errno::BUSY)));
        program.release(&lease);
        // Nothing of the file is held any more: the kernel grants a lease only to the one open
        // description, and to each holder of it.
        let _alone = alone();
        // SAFETY: integers only.
        let ours = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        assert_eq!(ours, 0);
        // SAFETY: integers only.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
    assert!(!is_leased(&path));
    // Giving back what is not there is no error.
    let lease = program.acquire(&file, entry, Mode::Sync).expect("lease");
    program.release(&lease);
    program.release(&lease);
}

#[test]
fn a_lease_is_refused_with_the_reason() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = scratch.old_file("data");
    let file = open_rw(&path);
    let nobody = client::pool_for(&dir, borrowed(&file), AskedPool::default());
    let nobody = nobody.expect_err("no monitor");
    assert!(matches!(nobody, Refused::NoMonitor(_)), "{nobody:?}");
    let _monitor = monitor(&scratch);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let other = open_rw(&path);
    let refused = program.acquire(&file, entry, Mode::Atomic);
    assert_eq!(refused, Err(Refused::Lease(Errno::AGAIN)));
    drop(other);
    let lease = program.acquire(&file, entry, Mode::Atomic).expect("lease");
    program.release(&lease);
    // Not a file, and a file system without pools.
    let null = open_rw(Path::new("/dev/null"));
    let refused = program.acquire(&null, entry, Mode::Atomic);
    assert_eq!(refused, Err(Refused::Lease(Errno::INVAL)));
    let proc = File::open("/proc/self/status").expect("open");
    let refused = patiently(|| client::pool_for(&dir, borrowed(&proc), AskedPool::default()));
    assert_eq!(refused.err(), Some(Refused::Medium));
    // A pool that is none.
    let garbage = scratch.old_file("garbage");
    let asked = AskedPool {
        path: Some(garbage.as_os_str().as_encoded_bytes()),
        size: None,
    };
    let chosen = patiently(|| client::pool_for(&dir, borrowed(&file), asked));
    assert!(matches!(chosen, Err(Refused::Pool(_))), "{chosen:?}");
}

/// One worker finds out for all who ask the same; where it finds none, each is told why of his own.
#[test]
fn all_who_ask_for_a_pool_at_once_are_answered() {
    const PROGRAMS: usize = 40;
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let file = open_rw(&scratch.old_file("data"));
    let garbage = scratch.old_file("garbage");
    let _monitor = monitor(&scratch);
    let pool = Program::new(&scratch, &file).pool;
    let elsewhere = named_pool(&scratch);
    let ask = |path: Option<&Path>| {
        let asked = AskedPool {
            path: path.map(|path| path.as_os_str().as_encoded_bytes()),
            size: None,
        };
        let answers = std::thread::scope(|scope| {
            let ask = || patiently(|| client::pool_for(&dir, borrowed(&file), asked));
            let programs: Vec<_> = (0..PROGRAMS).map(|_| scope.spawn(ask)).collect();
            programs
                .into_iter()
                .map(|program| program.join().expect("a program"))
                .collect::<Vec<_>>()
        });
        assert_eq!(answers.len(), PROGRAMS);
        answers
    };
    for found in ask(elsewhere.as_deref()) {
        let found = found.expect("a pool");
        assert_eq!(found.as_bytes(), pool.as_os_str().as_encoded_bytes());
    }
    for refused in ask(Some(&garbage)) {
        assert!(matches!(refused, Err(Refused::Pool(_))), "{refused:?}");
    }
}

/// Who has no room for more can still be asked, and told to give some back.
#[test]
fn a_monitor_at_its_limit_of_descriptors_answers() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let _monitor = monitor_with(&scratch, &[("T_DESCRIPTORS", Path::new("200"))]);
    let open = |nth: usize| open_rw(&scratch.old_file(&format!("data{nth}")));
    let program = Program::new(&scratch, &open(0));
    let mut held = Vec::new();
    let refused = loop {
        let file = open(held.len());
        let entry = program.enter(&file);
        match program.acquire(&file, entry, Mode::Strict) {
            Ok(lease) => held.push((file, entry, lease)),
            // A process that another test starts has it open for a moment, too.
            Err(Refused::Lease(Errno::AGAIN)) => {}
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, Refused::TooMany);
    assert!((100..150).contains(&held.len()), "{}", held.len());
    eventually("it answers", || join(&dir, 0).is_ok());
    let (file, entry, lease) = held.remove(50);
    assert!(program.release(&lease));
    let mut again = None;
    // The conversation that has just ended may still have its descriptor.
    eventually("there is room again", || {
        again = program.acquire(&file, entry, Mode::Strict).ok();
        again.is_some()
    });
    held.push((file, entry, again.expect("a lease")));
    let refused = program.acquire(&open(1000), entry, Mode::Strict);
    assert_eq!(refused, Err(Refused::TooMany));
    for (_, _, lease) in &held {
        assert!(program.release(lease));
    }
}

/// Its successor would know nothing of it, and whoever opens the file would wait for as long as the kernel likes.
#[test]
fn a_lease_that_cannot_be_written_down_is_refused() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let file = open_rw(&path);
    let _monitor = monitor_with(&scratch, &[("T_WITHOUT_ROOM", Path::new("1"))]);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let refused = program.acquire(&file, entry, Mode::Sync);
    assert_eq!(refused, Err(Refused::TooMany));
    assert!(!is_leased(&path));
    let lease = program.acquire(&file, entry, Mode::Sync).expect("lease");
    assert!(program.release(&lease));
}

pub(super) const WRITTEN: &[u8] = b"what the program staged ";

/// A program of its own that has opened `data` for appending and stages it: `append`, `fsync` and
/// `flags` are words it understands.
pub(super) fn staging(scratch: &Scratch, mode: &str, name: &str) -> Helper {
    let arguments = [
        ("T_DIR", scratch.0.as_path()),
        ("T_MODE", Path::new(mode)),
        ("T_NAME", Path::new(name)),
    ];
    let mut helper = Helper::start("monitor::tests::leases::helper_stages", &arguments);
    helper.wait_for("leased");
    helper
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_stages() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let mode = match argument("T_MODE").to_str() {
        Some("atomic") => Mode::Atomic,
        _ => Mode::Sync,
    };
    let path = dir.join(argument("T_NAME"));
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).append(true).open(path).expect("open");
    let scratch = Scratch(dir);
    let program = Program::new(&scratch, &file);
    std::mem::forget(scratch);
    let entry = program.enter(&file);
    let flags = rustix::fs::fcntl_getfl(borrowed(&file)).expect("flags");
    let positional = flags - rustix::fs::OFlags::APPEND;
    rustix::fs::fcntl_setfl(borrowed(&file), positional).expect("set flags");
    let lease = program.acquire_with(&file, entry, mode, true);
    let lease = lease.expect("lease");
    let base = KernelFile::new(borrowed(&file)).expect("base");
    let staged = StagedFile::open_entry(&program.stage, entry, base, mode).expect("staged");
    say("leased");
    loop {
        let done = match listen().as_str() {
            "append" => staged.append(WRITTEN).map(|_| "appended"),
            "fsync" => staged.fsync().map(|()| "synced"),
            "child" => {
                // It has the description for as long as the test has this helper's standard input.
                rustix::io::fcntl_setfd(borrowed(&file), rustix::io::FdFlags::empty())
                    .expect("set flags");
                let mut child = std::process::Command::new("cat");
                let child = spawn(child.stdout(std::process::Stdio::null()));
                std::fs::write(argument("T_DIR").join("child"), child.id().to_string())
                    .expect("write");
                // It outlives this helper.
                std::mem::forget(child);
                Ok("has a child")
            }
            "leave" => {
                let left = patiently(|| client::close(&program.dir, &lease)).expect("leave");
                Ok(if left { "left" } else { "kept" })
            }
            "wait" => {
                patiently(|| client::wait_for_closed(&program.dir)).expect("an answer");
                Ok("waited")
            }
            "close" => {
                let other = std::fs::File::open("/dev/null").expect("open");
                // SAFETY: integers only; the number leads to something else from now on.
                unsafe { libc::dup2(other.as_raw_fd(), file.as_raw_fd()) };
                Ok("closed")
            }
            "exec" => {
                use std::os::unix::process::CommandExt as _;
                // The descriptor lives on in the new program, as the program wished.
                rustix::io::fcntl_setfd(borrowed(&file), rustix::io::FdFlags::empty())
                    .expect("set flags");
                panic!("exec: {}", std::process::Command::new("cat").exec());
            }
            _ => {
                let flags = rustix::fs::fcntl_getfl(borrowed(&file)).expect("flags");
                let appends = flags.contains(rustix::fs::OFlags::APPEND);
                Ok(if appends { "appends" } else { "positional" })
            }
        };
        match done {
            Ok(word) => say(word),
            Err(Error::Taken) => say("taken"),
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) fn len(path: &Path) -> usize {
    // Asking for the size breaks no lease.
    std::fs::metadata(path).expect("metadata").len() as usize
}

/// What a reader outside Adit sees of a file with staged bytes whose program is stopped: all of it?
fn outsider_sees_everything(monitor_arguments: &[(&str, &Path)]) -> bool {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = std::fs::read(&path).expect("read");
    let _monitor = monitor_with(&scratch, monitor_arguments);
    let mut program = staging(&scratch, "atomic", "data");
    // Not committed, so nothing but a break publishes it.
    program.ask("append", "appended");
    program.ask("flags", "positional");
    assert_eq!(len(&path), before.len());
    program.signal(rustix::process::Signal::STOP);
    let start = Instant::now();
    let seen = std::fs::read(&path).expect("read");
    std::fs::write(scratch.path("read"), "").expect("write");
    println!("let in after {:?}", start.elapsed());
    let complete = seen == [&before, WRITTEN].concat();
    program.signal(rustix::process::Signal::CONT);
    if complete {
        program.ask("append", "taken");
        program.ask("flags", "appends");
        assert!(!is_leased(&path));
    }
    complete
}

#[test]
fn an_opener_sees_what_a_stopped_program_staged() {
    assert!(outsider_sees_everything(&[]));
}

/// As many as the kernel gives a monitor at first: none, one, and those that stay.
const THREADS: [&str; 3] = ["0", "1", "2"];

/// A user's limit of processes is reached by whatever else runs, also under a monitor that was there before.
#[test]
fn an_opener_is_let_in_where_no_thread_can_be_made() {
    for threads in THREADS {
        assert!(outsider_sees_everything(&[(
            "T_THREADS",
            Path::new(threads)
        )]));
    }
}

#[test]
fn what_is_asked_for_and_what_the_dead_left_is_done_where_no_thread_can_be_made() {
    for threads in THREADS {
        let scratch = Scratch::new();
        let dir = scratch.runtime();
        let path = scratch.old_file("data");
        let before = len(&path);
        let at_the_limit = [("T_THREADS", Path::new(threads))];
        let mut first = monitor_with(&scratch, &at_the_limit);
        let mut program = staging(&scratch, "atomic", "data");
        for round in 1..=3 {
            program.ask("append", "appended");
            program.ask("fsync", "synced");
            eventually("published by age", || {
                len(&path) == before + round * WRITTEN.len()
            });
        }
        let id = std::fs::metadata(&path).expect("metadata");
        program.ask("append", "appended");
        program.ask("fsync", "synced");
        let published = client::publish(&dir, id.dev(), id.ino(), Duration::from_secs(60));
        assert_eq!(published, Ok(true));
        assert_eq!(len(&path), before + 4 * WRITTEN.len());
        program.ask("append", "appended");
        first.kill();
        program.kill();
        // Nobody holds the file for the next one, so only a recovery finds what is in the pool.
        let _second = monitor_with(&scratch, &at_the_limit);
        eventually("recovered", || len(&path) == before + 5 * WRITTEN.len());
    }
}

#[test]
fn a_lease_given_up_too_early_is_noticed() {
    assert!(!outsider_sees_everything(&[(
        "T_LEASE_FIRST",
        Path::new("1")
    )]));
}

#[test]
fn age_publishes_what_the_mode_allows() {
    let scratch = Scratch::new();
    scratch.runtime();
    let (careful, quick) = (scratch.old_file("careful"), scratch.old_file("quick"));
    let before = len(&careful);
    let _monitor = monitor(&scratch);
    let mut atomic = staging(&scratch, "atomic", "careful");
    atomic.ask("append", "appended");
    let mut sync = staging(&scratch, "sync", "quick");
    for round in 1..=3 {
        sync.ask("append", "appended");
        eventually("published by age", || {
            len(&quick) == before + round * WRITTEN.len()
        });
    }
    // The worker has gone over all files more than once.
    assert_eq!(len(&careful), before, "not committed, not published");
    atomic.ask("fsync", "synced");
    atomic.ask("append", "appended");
    eventually("published by age", || {
        len(&careful) == before + WRITTEN.len()
    });
    sync.ask("append", "appended");
    eventually("published by age", || {
        len(&quick) == before + 4 * WRITTEN.len()
    });
    assert_eq!(len(&careful), before + WRITTEN.len());
    // Both are still theirs.
    assert!(is_leased(&careful) && is_leased(&quick));
}

/// A file to look at without opening it, which would end its staging.
struct Watched {
    dir: RuntimeDir,
    path: PathBuf,
}

impl Watched {
    fn new(scratch: &Scratch, name: &str) -> Self {
        Self {
            dir: scratch.runtime(),
            path: scratch.old_file(name),
        }
    }

    fn id(&self) -> (u64, u64) {
        let data = std::fs::metadata(&self.path).expect("metadata");
        (data.dev(), data.ino())
    }

    /// Whether the monitor holds it.
    fn is_held(&self) -> bool {
        let (dev, ino) = self.id();
        let mut answer = None;
        // Who has the file locked is not waited for, and then there is no answer; nor from one that is being replaced.
        for _ in 0..20 {
            answer = client::look(&self.dir, dev, ino);
            if answer.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        answer.is_some()
    }
}

/// Whoever opens without waiting is sent away from a leased file. One that nobody writes to is none: a monitor gives it
/// back, and its program stages it anew.
#[test]
fn what_is_quiet_is_given_back_and_what_is_written_is_kept() {
    let scratch = Scratch::new();
    let names = ["atomic", "strict", "written", "uncommitted"];
    let files = names.map(|name| Watched::new(&scratch, name));
    let (given, kept) = files.split_at(2);
    let before = len(&given[0].path);
    let _monitor = monitor_with(&scratch, &[("T_GIVES_BACK", Path::new("1"))]);
    let mut quiet = ["atomic", "strict"].map(|mode| staging(&scratch, mode, mode));
    let mut written = staging(&scratch, "strict", "written");
    let mut uncommitted = staging(&scratch, "atomic", "uncommitted");
    for program in &mut quiet {
        program.ask("append", "appended");
        program.ask("fsync", "synced");
    }
    uncommitted.ask("append", "appended");
    let begun = Instant::now();
    let mut batches = 0;
    while begun.elapsed() < 2 * quiet_for() || given.iter().any(Watched::is_held) {
        assert!(kept[0].is_held(), "after {batches} batches");
        written.ask("append", "appended");
        batches += 1;
        std::thread::sleep(quiet_for() / 20);
        assert!(begun.elapsed() < crate::testing::scratch::limit(60));
    }
    for file in given {
        assert!(!is_leased(&file.path));
        assert_eq!(len(&file.path), before + WRITTEN.len());
    }
    assert!(kept.iter().all(Watched::is_held));
    // Not a byte of what is not committed.
    assert_eq!(len(&kept[1].path), before);
    eventually("published by age", || {
        len(&kept[0].path) == before + batches * WRITTEN.len()
    });
    for mut program in quiet {
        program.ask("append", "taken");
    }
    uncommitted.ask("fsync", "synced");
    uncommitted.ask("append", "appended");
    written.ask("append", "appended");
}

#[test]
fn what_is_to_be_given_back_is_if_all_of_it_is_published() {
    let scratch = Scratch::new();
    let file = Watched::new(&scratch, "data");
    let before = len(&file.path);
    let _monitor = monitor(&scratch);
    let (dev, ino) = file.id();
    let give_back = || client::give_back(&file.dir, dev, ino, Duration::from_secs(60));
    assert_eq!(give_back(), Ok(false), "nothing is staged");
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    assert_eq!(give_back(), Ok(false));
    program.ask("fsync", "synced");
    program.ask("append", "appended");
    let published = client::publish(&file.dir, dev, ino, Duration::from_secs(60));
    assert_eq!(published, Ok(true));
    // What is committed is in the file, and that is not all.
    assert_eq!(give_back(), Ok(false));
    assert!(file.is_held());
    assert_eq!(len(&file.path), before + WRITTEN.len());
    program.ask("fsync", "synced");
    eventually("given back", || give_back() == Ok(true));
    assert!(!is_leased(&file.path));
    assert_eq!(len(&file.path), before + 2 * WRITTEN.len());
    program.ask("append", "taken");
    eventually("nobody holds it", || !file.is_held());
}

#[test]
fn what_a_killed_program_staged_is_published_and_its_seat_cleared() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let _monitor = monitor(&scratch);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    assert!(is_kept(&scratch));
    program.kill();
    eventually("published", || len(&path) == before + WRITTEN.len());
    eventually("the pool is as if nobody had been there", || {
        !is_kept(&scratch)
    });
    assert!(!is_leased(&path));
    assert!(std::fs::read(&path).expect("read").ends_with(WRITTEN));
}

fn nth_of_several(nth: usize) -> String {
    format!("several{nth}")
}

/// A program of its own that has appended to so many files, and their paths.
fn staging_several(scratch: &Scratch, count: usize) -> (Helper, Vec<PathBuf>) {
    staging_several_in(scratch, count, Path::new(""))
}

/// The same in a pool of its own.
fn staging_several_in(scratch: &Scratch, count: usize, pool: &Path) -> (Helper, Vec<PathBuf>) {
    let path = |nth| scratch.old_file(&nth_of_several(nth));
    let paths = (0..count).map(path).collect();
    let role = "monitor::tests::leases::helper_stages_several";
    let arguments = [("T_DIR", scratch.0.as_path()), ("T_OWN_POOL", pool)];
    let mut program = Helper::start(role, &arguments);
    program.wait_for("appended");
    (program, paths)
}

/// A program of its own that has appended to several files, and committed nothing.
#[test]
#[ignore = "a helper process of the tests"]
fn helper_stages_several() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let paths = (0..).map(|nth| dir.join(nth_of_several(nth)));
    let paths = paths.take_while(|path| path.exists());
    let files: Vec<File> = paths.map(|path| open_rw(&path)).collect();
    let scratch = Scratch(dir);
    let program = match argument("T_OWN_POOL") {
        none if none.as_os_str().is_empty() => Program::new(&scratch, &files[0]),
        pool => Program::at(&scratch, pool),
    };
    std::mem::forget(scratch);
    let stage = |file| {
        let entry = program.enter(file);
        let _lease = program.acquire(file, entry, Mode::Atomic).expect("lease");
        let base = KernelFile::new(borrowed(file)).expect("base");
        StagedFile::open_entry(&program.stage, entry, base, Mode::Atomic).expect("staged")
    };
    let staged: Vec<_> = files.iter().map(stage).collect();
    for file in &staged {
        file.append(WRITTEN).expect("append");
    }
    say("appended");
    listen();
}

/// Which files of a program that was killed have what it wrote, after a loss of power when the monitor has
/// published so many of them.
fn has_what_was_written(published: u32, monitor_arguments: &[(&str, &Path)]) -> Vec<bool> {
    let scratch = Scratch::new();
    scratch.runtime();
    let before = len(&scratch.old_file("as long as these"));
    let number = published.to_string();
    let ends = [("T_ENDS_AFTER", Path::new(&number))];
    let mut monitor = monitor_with(&scratch, &[&ends, monitor_arguments].concat());
    let (mut program, paths) = staging_several(&scratch, 3);
    program.kill();
    let is_longer = |path: &&PathBuf| len(path) == before + WRITTEN.len();
    let longer = || paths.iter().filter(is_longer).count();
    eventually("so many are published", || longer() >= published as usize);
    monitor.kill();
    assert_eq!(longer(), published as usize, "published before the loss");
    let file = PoolFile::open(&scratch.path("run/pool")).expect("the pool");
    let medium = file.pool().medium().clone();
    let locks = Box::new(adit_pool::LocalLocks::default());
    let next = adit_pool::Pool::open(medium, locks, adit_pool::BootId([9; 16])).expect("open");
    let attachment = next.attach().expect("attach");
    let report = crate::staged::recover(&attachment, &crate::staged::open_by_name);
    assert!(report.expect("recover").kept.is_empty());
    paths.iter().map(|path| is_longer(&path)).collect()
}

/// A loss of power while the monitor publishes them finds what a dead program has written to all its files.
#[test]
fn what_a_killed_program_wrote_to_several_files_is_committed_at_one_instant() {
    for published in 1..3 {
        assert_eq!(has_what_was_written(published, &[]), [true; 3]);
    }
}

#[test]
fn files_of_a_dead_program_that_are_committed_one_by_one_are_noticed() {
    let left = has_what_was_written(1, &[("T_ONE_BY_ONE", Path::new("1"))]);
    assert_eq!(left.iter().filter(|has| **has).count(), 1, "{left:?}");
}

/// A reader in a process of its own.
pub(super) fn opener(path: &Path) -> std::process::Child {
    let mut opener = std::process::Command::new("cat");
    spawn(opener.arg(path).stdout(std::process::Stdio::piped()))
}

/// What it has read.
pub(super) fn seen_by(opener: std::process::Child) -> Vec<u8> {
    opener.wait_with_output().expect("output").stdout
}

/// A program may die with thousands of files, each of which takes a sync. Nobody waits for one of these who has opened
/// another file, and for the others nobody who has opened one of these.
#[test]
fn an_opener_waits_for_no_files_of_the_dead() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let all = [std::fs::read(&path).expect("read"), WRITTEN.to_vec()].concat();
    let _monitor = monitor_with(&scratch, &[("T_BURIES_SLOWLY", Path::new("1"))]);
    let (mut dead, paths) = staging_several(&scratch, 100);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    dead.kill();
    let begun = || std::fs::read(scratch.path("burying")).map_or(0, |begun| begun.len());
    eventually("as many are begun as may be", || begun() == 32);
    assert!(seen_by(opener(&path)) == all, "let in by the kernel");
    assert_eq!(begun(), 32);
    let waits = opener(&paths[99]);
    eventually("the one that somebody waits for is next", || begun() == 33);
    std::fs::write(scratch.path("bury"), "").expect("write");
    assert!(seen_by(waits) == all, "not everything");
    eventually("all are published", || {
        paths.iter().all(|path| len(path) == all.len())
    });
}

/// Also where no thread can be made for it, and it waits behind all that nobody waits for.
#[test]
fn an_opener_overtakes_what_is_queued() {
    let scratch = Scratch::new();
    scratch.runtime();
    let arguments = ["T_BURIES_SLOWLY", "T_THREADS"].map(|name| (name, Path::new("1")));
    let _monitor = monitor_with(&scratch, &arguments);
    let (mut dead, paths) = staging_several(&scratch, 32);
    dead.kill();
    let begun = || std::fs::read(scratch.path("burying")).map_or(0, |begun| begun.len());
    let go_on = || std::fs::write(scratch.path("bury one"), "").expect("write");
    eventually("one is begun, the others wait", || begun() == 1);
    let before = len(&paths[31]);
    assert!(is_leased(&paths[31]));
    // The monitor is told of that opener at once, and looks each half second besides.
    std::thread::sleep(Duration::from_secs(1));
    go_on();
    eventually("the next one is begun", || begun() == 2);
    go_on();
    eventually("the last one is published", || len(&paths[31]) > before);
    std::fs::write(scratch.path("bury"), "").expect("write");
    eventually("all are published", || {
        paths.iter().all(|path| len(path) > before)
    });
}

/// A pool that is opened when the test says so.
pub(super) fn slow_pool(scratch: &Scratch) -> PathBuf {
    let pool = scratch.path(SLOW_POOL);
    PoolFile::create(&pool, 24 << 20, Geometry::default()).expect("create the pool");
    pool
}

/// One that lies on a slow disk, or that somebody is just recovering.
#[test]
fn nobody_waits_for_a_pool_but_who_asks_for_it() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let all = [std::fs::read(&path).expect("read"), WRITTEN.to_vec()].concat();
    let _monitor = monitor(&scratch);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    let pool = slow_pool(&scratch);
    let others = Program::at(&scratch, pool);
    let files = ["one", "two"].map(|name| open_rw(&scratch.old_file(name)));
    let acquire = |file| {
        let request = others.request(file, others.enter(file), Mode::Sync, false);
        patiently(|| client::acquire(&others.dir, &request))
    };
    let _alone = alone();
    std::thread::scope(|scope| {
        let asked = files
            .each_ref()
            .map(|file| scope.spawn(move || acquire(file)));
        eventually("it is being opened", || scratch.path("opening").exists());
        let seen = std::fs::read(&path).expect("read");
        assert!(seen == all, "let in by the kernel");
        assert!(asked.iter().all(|asked| !asked.is_finished()));
        std::fs::write(scratch.path("open"), "").expect("write");
        for asked in asked {
            assert!(asked.join().expect("ask").is_ok());
        }
    });
    assert_eq!(len(&scratch.path("opening")), 1, "opened once");
}

/// What files of the dead lack is committed pool by pool: of one on a disk that does not answer nobody waits for that who
/// has opened a file of another pool, whose program is dead, too.
#[test]
fn an_opener_waits_for_no_commit_in_another_pool() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let all = [std::fs::read(&path).expect("read"), WRITTEN.to_vec()].concat();
    let _monitor = monitor(&scratch);
    std::fs::write(scratch.path("open"), "").expect("write");
    let (mut slow, paths) = staging_several_in(&scratch, 2, &slow_pool(&scratch));
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    slow.kill();
    eventually("they are being committed", || {
        scratch.path("committing").exists()
    });
    program.kill();
    assert!(seen_by(opener(&path)) == all, "let in by the kernel");
    assert!(paths.iter().all(|path| len(path) < all.len()));
    std::fs::write(scratch.path("commit"), "").expect("write");
    eventually("all are published", || {
        paths.iter().all(|path| len(path) == all.len())
    });
}

/// So is what has aged published.
#[test]
fn what_has_aged_waits_for_no_other_pool() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let _monitor = monitor_with(&scratch, &[("T_AGES_SLOWLY", Path::new("1"))]);
    std::fs::write(scratch.path("open"), "").expect("write");
    let _slow = staging_several_in(&scratch, 2, &slow_pool(&scratch));
    eventually("it publishes", || scratch.path("aging").exists());
    let mut program = staging(&scratch, "sync", "data");
    program.ask("append", "appended");
    eventually("it is published", || len(&path) == before + WRITTEN.len());
    std::fs::write(scratch.path("age"), "").expect("write");
}

/// What cannot be opened is refused, and asked for anew by whoever asks next.
#[test]
fn who_waits_for_a_pool_that_cannot_be_opened_is_told() {
    let scratch = Scratch::new();
    scratch.runtime();
    let file = open_rw(&scratch.old_file("data"));
    let _monitor = monitor(&scratch);
    let mut program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let pool = core::mem::replace(&mut program.pool, scratch.old_file("garbage"));
    for _ in 0..2 {
        let refused = program.acquire(&file, entry, Mode::Sync);
        assert!(matches!(refused, Err(Refused::Pool(_))), "{refused:?}");
    }
    program.pool = pool;
    assert!(program.acquire(&file, entry, Mode::Sync).is_ok());
}

const LARGE: usize = 1 << 20;

/// A large file that is removed when its program has appended to it. What leads to it without having it open.
fn removed(scratch: &Scratch) -> (Helper, rustix::fd::OwnedFd) {
    let path = scratch.old_file("data");
    std::fs::write(&path, vec![7; LARGE]).expect("write");
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let name = path.as_os_str().as_encoded_bytes();
    let file = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).expect("open");
    let mut program = staging(scratch, "sync", "data");
    program.ask("append", "appended");
    std::fs::remove_file(&path).expect("remove");
    assert!(bytes_of(&file) >= LARGE);
    (program, file)
}

fn bytes_of(file: &rustix::fd::OwnedFd) -> usize {
    rustix::fs::fstat(file).expect("stat").st_blocks as usize * 512
}

/// Nobody can see it any more, and its space may be what is missing to publish the rest.
#[test]
fn a_file_that_was_removed_keeps_no_space_for_a_dead_program() {
    let scratch = Scratch::new();
    scratch.runtime();
    let _monitor = monitor(&scratch);
    let (mut program, file) = removed(&scratch);
    program.kill();
    eventually("let go", || !is_kept(&scratch));
    assert!(bytes_of(&file) < LARGE / 2, "{}", bytes_of(&file));
}

/// A program that could not publish when it closed the file has closed it all the same.
#[test]
fn a_file_that_was_removed_keeps_no_space_when_its_program_has_closed_it() {
    let scratch = Scratch::new();
    scratch.runtime();
    let _monitor = monitor(&scratch);
    let (mut program, file) = removed(&scratch);
    program.ask("close", "closed");
    eventually("let go", || files_in_pool(&scratch) == 0);
    assert!(bytes_of(&file) < LARGE / 2, "{}", bytes_of(&file));
}

/// While it has it, it has its bytes, though nobody else can have them.
#[test]
fn a_file_that_was_removed_is_kept_for_a_program_that_has_it() {
    let scratch = Scratch::new();
    scratch.runtime();
    let _monitor = monitor(&scratch);
    let (mut program, file) = removed(&scratch);
    let len = || rustix::fs::fstat(&file).expect("stat").st_size as usize;
    for round in 2..6 {
        program.ask("append", "appended");
        eventually("published by age", || {
            len() == LARGE + round * WRITTEN.len()
        });
    }
    assert!(bytes_of(&file) >= LARGE);
}

fn files_in_pool(scratch: &Scratch) -> usize {
    let pool = PoolFile::open_read_only(&scratch.path("run/pool")).expect("pool");
    pool.files().expect("files").len()
}

/// Whether the pool in the runtime directory has a file, or space of an attachment but the monitor's.
fn is_kept(scratch: &Scratch) -> bool {
    let pool = PoolFile::open_read_only(&scratch.path("run/pool")).expect("pool");
    pool.info().expect("info").attached > 1 || !pool.files().expect("files").is_empty()
}

#[test]
fn a_program_that_becomes_another_loses_its_files_to_the_kernel() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let _monitor = monitor(&scratch);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    program.tell("exec");
    eventually("published", || len(&path) == before + WRITTEN.len());
    // The process lives, and so does its description, which the new program may use as it likes.
    assert!(program.child.try_wait().expect("wait").is_none());
    eventually("given up", || !is_leased(&path));
}

/// Its seat in the pool may be somebody else's before anybody has looked.
#[test]
fn who_gets_the_seat_of_a_program_that_becomes_another_does_not_get_its_files() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let _monitor = monitor(&scratch);
    let mut program = staging(&scratch, "atomic", "data");
    let here = Program::new(&scratch, &open_rw(&scratch.old_file("other")));
    program.ask("append", "appended");
    let pool = here.file.pool();
    let mut slots = pool.slots().expect("slots").into_iter();
    let its = slots.find(|slot| slot.pid == u64::from(program.child.id()));
    let seat = its.expect("its seat").slot;
    let is_taken = || pool.living_slots().contains(&seat);
    program.tell("exec");
    eventually("its seat is left", || !is_taken());
    let attachment = here.stage.attachment();
    attachment.release_orphans().expect("bury");
    let mut others = Vec::new();
    while !is_taken() {
        others.push(Program::at(&scratch, here.pool.clone()));
    }
    eventually("published", || len(&path) == before + WRITTEN.len());
    eventually("given up", || !is_leased(&path));
}

#[test]
fn a_monitor_that_is_told_to_end_takes_everything_away_first() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let mut monitor = monitor(&scratch);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    tell_to_end(&scratch);
    assert!(monitor.child.wait().expect("wait").success());
    assert_eq!(len(&path), before + WRITTEN.len());
    program.ask("append", "taken");
    program.ask("flags", "appends");
}

/// Its program may have been told the same, and has to end what it was at.
#[test]
fn a_monitor_that_is_told_to_end_stays_for_those_it_serves() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let grace = [("T_GRACE", Path::new("1"))];
    let mut first = monitor_with(&scratch, &grace);
    let mut program = staging(&scratch, "atomic", "data");
    tell_to_end(&scratch);
    std::thread::sleep(Duration::from_secs(1));
    program.ask("append", "appended");
    assert!(first.child.try_wait().expect("wait").is_none());
    // Now it is the monitor's to bring what was written to the file.
    program.kill();
    assert!(first.child.wait().expect("wait").success());
    assert_eq!(len(&path), before + WRITTEN.len());
    // Or it takes everything away at once.
    let mut second = monitor_with(&scratch, &grace);
    let mut program = staging(&scratch, "atomic", "data");
    tell_to_end(&scratch);
    tell(&scratch, libc::SIGINT);
    assert!(second.child.wait().expect("wait").success());
    program.ask("append", "taken");
}

/// Who believed that it stays for him would soon have none, and has nothing staged until then.
#[test]
fn a_monitor_that_is_told_to_end_stays_for_nobody() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    scratch.old_file("data");
    let mut monitor = monitor_with(&scratch, &[("T_BURIES_SLOWLY", Path::new("1"))]);
    let mut program = staging(&scratch, "sync", "data");
    program.ask("append", "appended");
    program.kill();
    eventually("burying", || scratch.path("burying").exists());
    tell_to_end(&scratch);
    eventually("it says so", || join(&dir, std::process::id()).is_err());
    std::fs::write(scratch.path("bury"), "").expect("write");
    assert!(monitor.child.wait().expect("wait").success());
}

/// Also while it stays for those it serves. One that is started then has the lock when these have ended.
#[test]
fn who_comes_while_a_monitor_is_told_to_end_gets_another() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    scratch.old_file("data");
    let mut monitor = monitor_with(&scratch, &[("T_GRACE", Path::new("1"))]);
    let mut program = staging(&scratch, "sync", "data");
    tell_to_end(&scratch);
    eventually("it says so", || {
        join(&dir, std::process::id()) == Err(ENDING)
    });
    assert_eq!(join(&dir, 0), Ok(()));
    let options = Options {
        stay_for: Some(std::process::id()),
        ..quick()
    };
    let fd = dir.open().expect("open");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| take_lock(&dir, &fd, &options).expect("lock"));
        // Longer than one that does not answer is waited for.
        std::thread::sleep(Duration::from_secs(1));
        assert!(!next.is_finished());
        program.kill();
        assert!(monitor.child.wait().expect("wait").success());
        assert!(next.join().expect("no panic").is_some());
    });
}

/// The processes that serve a runtime directory: the monitor, and its standby.
fn pair(scratch: &Scratch) -> (Option<i32>, Option<i32>) {
    let mut found = (None, None);
    let here = format!("T_DIR={}", scratch.0.display());
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let path = entry.path();
        let read = |name: &str| std::fs::read(path.join(name)).unwrap_or_default();
        let ours = |name: &str, word: &[u8]| read(name).split(|byte| *byte == 0).any(|w| w == word);
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if !ours("cmdline", b"monitor::tests::helper_monitor") || !ours("environ", here.as_bytes())
        {
            continue;
        }
        // A zombie has no command line.
        match read("comm").as_slice() {
            b"adit-standby\n" => found.1 = Some(pid),
            _ => found.0 = Some(pid),
        }
    }
    found
}

pub(super) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("pid");
    // It may have ended by itself since it was seen.
    match rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("kill: {error}"),
    }
}

pub(super) fn both(scratch: &Scratch) -> (i32, i32) {
    eventually("there are two", || {
        matches!(pair(scratch), (Some(_), Some(_)))
    });
    let (monitor, standby) = pair(scratch);
    (monitor.expect("monitor"), standby.expect("standby"))
}

/// Whether an outsider who opens a file with staged bytes sees all of them, when its program is stopped
/// and `deaths` have happened to the monitor and its standby.
fn outsider_sees_everything_after(deaths: impl Fn(&Scratch)) -> bool {
    outsider_sees_everything_when(deaths, |_, _| {}, "appends")
}

/// The same when something happens while the outsider waits. What the program finds `O_APPEND` to be in the
/// end.
fn outsider_sees_everything_when(
    deaths: impl Fn(&Scratch),
    meanwhile: impl FnOnce(&Scratch, &Helper),
    flags: &str,
) -> bool {
    outsider_sees_everything_within(SOON, deaths, meanwhile, flags)
}

/// Before the kernel lets an opener in by itself.
const SOON: Duration = Duration::from_secs(40);

fn outsider_sees_everything_within(
    patience: Duration,
    deaths: impl Fn(&Scratch),
    meanwhile: impl FnOnce(&Scratch, &Helper),
    flags: &str,
) -> bool {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = std::fs::read(&path).expect("read");
    let needed = Needed::new(&scratch);
    let _monitor = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    let mut program = staging(&scratch, "atomic", "data");
    drop(needed);
    program.ask("append", "appended");
    program.signal(rustix::process::Signal::STOP);
    deaths(&scratch);
    // In a process of its own: without a monitor it waits for as long as the kernel likes.
    let mut opener = std::process::Command::new("cat");
    let mut opener = spawn(opener.arg(&path).stdout(std::process::Stdio::piped()));
    let mut seen = Vec::new();
    meanwhile(&scratch, &program);
    let begun = Instant::now();
    while opener.try_wait().expect("wait").is_none() {
        if begun.elapsed() > patience {
            let _ = opener.kill();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut said = opener.stdout.take().expect("stdout");
    std::io::Read::read_to_end(&mut said, &mut seen).expect("read");
    let complete = seen == [&before, WRITTEN].concat();
    program.signal(rustix::process::Signal::CONT);
    if complete {
        program.ask("append", "taken");
        program.ask("flags", flags);
        eventually("given up", || !is_leased(&path));
    }
    program.kill();
    eventually("nobody needs them", || {
        let (monitor, standby) = pair(&scratch);
        monitor.is_none() && standby.is_none()
    });
    complete
}

#[test]
fn a_killed_monitor_is_replaced_by_its_standby() {
    assert!(outsider_sees_everything_after(|scratch| {
        let (monitor, _) = both(scratch);
        kill(monitor);
    }));
}

#[test]
fn monitors_are_replaced_again_and_again_and_so_are_standbys() {
    assert!(outsider_sees_everything_after(|scratch| {
        for round in 0..6 {
            let (monitor, standby) = both(scratch);
            let (doomed, other) = match round % 3 {
                0 | 1 => (monitor, standby),
                _ => (standby, monitor),
            };
            kill(doomed);
            eventually("replaced", || {
                let now = pair(scratch);
                let all = [now.0, now.1];
                !all.contains(&None) && !all.contains(&Some(doomed)) && all.contains(&Some(other))
            });
        }
    }));
}

fn kill_both(scratch: &Scratch) {
    let (monitor, standby) = both(scratch);
    kill(standby);
    kill(monitor);
    // The monitor may have made another meanwhile.
    eventually("both are dead", || match pair(scratch) {
        // Their memory goes before their descriptors.
        (None, None) => {
            let lock = open_rw(&scratch.path("run/monitor.lock"));
            let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(borrowed(&lock), exclusive).is_ok()
        }
        (monitor, standby) => {
            for pid in [monitor, standby].into_iter().flatten() {
                kill(pid);
            }
            false
        }
    });
}

/// The tests above and below notice when nobody takes over.
#[test]
fn without_monitor_and_standby_an_outsider_waits() {
    let patience = Duration::from_secs(15);
    assert!(!outsider_sees_everything_within(
        patience,
        kill_both,
        |_, _| {},
        "appends"
    ));
}

/// Whether the kernel lets one process have the descriptors of another, as a monitor that comes later
/// needs.
fn may_look_into_others() -> bool {
    let mut other = std::process::Command::new("cat");
    let mut other = spawn(other.stdin(std::process::Stdio::piped()));
    let pid = rustix::process::Pid::from_raw(other.id() as i32).expect("pid");
    let life = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    let flags = rustix::process::PidfdGetfdFlags::empty();
    let fd = life.and_then(|life| rustix::process::pidfd_getfd(life, 0, flags));
    let _ = (other.kill(), other.wait());
    if let Err(error) = &fd {
        println!("skipped: processes may not look into each other: {error}");
    }
    fd.is_ok()
}

/// Whether a process has a lease of which the kernel says so.
fn has_lease(pid: u32, what: &str) -> bool {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let mut infos = infos.expect("descriptors").flatten();
    infos.any(|info| {
        let told = std::fs::read_to_string(info.path()).unwrap_or_default();
        let mut lines = told.lines();
        lines.any(|line| line.contains("LEASE") && line.contains(what))
    })
}

/// A monitor that has a standby, whenever it comes.
fn start_another(scratch: &Scratch) -> Helper {
    monitor_with(scratch, &[("T_STANDBY", Path::new("1"))])
}

#[test]
fn a_monitor_that_comes_later_lets_in_who_opens_then() {
    if may_look_into_others() {
        let later = std::cell::OnceCell::new();
        let deaths = |scratch: &Scratch| {
            kill_both(scratch);
            later.get_or_init(|| start_another(scratch));
        };
        assert!(outsider_sees_everything_when(
            deaths,
            |_, _| {},
            "positional"
        ));
    }
}

#[test]
fn a_monitor_that_comes_later_lets_in_who_waits() {
    if may_look_into_others() {
        let mut later = None;
        let meanwhile = |scratch: &Scratch, program: &Helper| {
            // Until then nobody waits, and the lease is held.
            eventually("somebody waits", || {
                has_lease(program.child.id(), "BREAKING")
            });
            later = Some(start_another(scratch));
        };
        assert!(outsider_sees_everything_when(
            kill_both,
            meanwhile,
            "positional"
        ));
    }
}

/// What is taken over from nobody is the next monitor's like everything else: its standby goes on with it,
/// age publishes, deaths are noticed, and programs give back what they know under another number.
#[test]
fn a_monitor_that_comes_later_goes_on_with_everything() {
    if !may_look_into_others() {
        return;
    }
    let scratch = Scratch::new();
    scratch.runtime();
    let (path, other) = (scratch.old_file("data"), scratch.old_file("other"));
    let before = len(&path);
    let needed = Needed::new(&scratch);
    let first = start_another(&scratch);
    let file = open_rw(&other);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let lease = program.acquire(&file, entry, Mode::Sync).expect("lease");
    drop(needed);
    let mut writer = staging(&scratch, "sync", "data");
    kill_both(&scratch);
    let _second = start_another(&scratch);
    let (monitor, _) = both(&scratch);
    writer.ask("append", "appended");
    eventually("published by age", || len(&path) == before + WRITTEN.len());
    kill(monitor);
    writer.ask("append", "appended");
    eventually("published by the standby", || {
        len(&path) == before + 2 * WRITTEN.len()
    });
    program
        .stage
        .attachment()
        .forget_file(entry)
        .expect("forget");
    // A monitor that has seen the end of it by then has given it back by itself.
    program.release(&lease);
    assert!(!is_leased(&other));
    // Nothing of it is held any more: a lease can be had by whoever opens it. Who gave it back closes the file next.
    drop(file);
    let again = open_rw(&other);
    let entry = program.enter(&again);
    eventually("leased again", || {
        let lease = program.acquire(&again, entry, Mode::Sync);
        lease.is_ok_and(|lease| {
            program.release(&lease);
            true
        })
    });
    writer.ask("append", "appended");
    writer.kill();
    eventually("published at its death", || {
        len(&path) == before + 3 * WRITTEN.len()
    });
    drop((again, program, first));
}

/// A user may have several monitors, with directories of their own. What one of them holds the others leave alone, the pool
/// as well: while they have that open, its file system is in use.
#[test]
fn what_another_monitor_watches_is_left_alone() {
    if !may_look_into_others() {
        return;
    }
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    scratch.runtime();
    elsewhere.runtime();
    let needed = Needed::new(&scratch);
    let first = start_another(&scratch);
    scratch.old_file("data");
    let writer = staging(&scratch, "sync", "data");
    drop(needed);
    both(&scratch);
    let places = Places {
        runtime: elsewhere.path("run"),
        list: PoolList::at(&scratch.path("run")),
    };
    places.announce().expect("announce");
    let pool = PoolFile::open(&scratch.path("run/pool")).expect("the pool");
    let seats = || pool.pool().living_slots().len();
    let before = seats();
    let mut second = monitor(&elsewhere);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(seats(), before);
        std::thread::sleep(Duration::from_millis(1));
    }
    second.kill();
    // What nobody watches any more it does find.
    kill_both(&scratch);
    eventually("the program's seat is left", || seats() == before - 1);
    let _third = monitor(&elsewhere);
    eventually("it has a seat", || seats() == before);
    drop((writer, first));
}

/// It lives as long as the monitor, which opens many pools in that time.
#[test]
fn a_standby_keeps_no_pool_mapped() {
    let scratch = Scratch::new();
    scratch.runtime();
    let needed = Needed::new(&scratch);
    let monitor = start_another(&scratch);
    scratch.old_file("data");
    let writer = staging(&scratch, "sync", "data");
    drop(needed);
    let (first, standby) = both(&scratch);
    let has_pool = |pid: i32| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        maps.contains(&format!("{}/pool", scratch.path("run").display()))
    };
    assert!(has_pool(first), "the monitor publishes from it");
    assert!(!has_pool(standby));
    kill(first);
    eventually(
        "the next one has opened it",
        || matches!(pair(&scratch), (Some(now), Some(_)) if now == standby && has_pool(now)),
    );
    let (_, next) = both(&scratch);
    assert!(!has_pool(next));
    drop((writer, monitor));
}

/// What the first monitor knew, the next one goes on with: leases are given back, deaths noticed, age
/// publishes.
#[test]
fn a_standby_goes_on_with_everything() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let (path, other) = (scratch.old_file("data"), scratch.old_file("other"));
    let before = len(&path);
    let needed = Needed::new(&scratch);
    let mut first = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    let file = open_rw(&other);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let lease = program.acquire(&file, entry, Mode::Sync).expect("lease");
    drop(needed);
    let mut writer = staging(&scratch, "sync", "data");
    let _ = both(&scratch);
    first.kill();
    writer.ask("append", "appended");
    eventually("published by age", || len(&path) == before + WRITTEN.len());
    // It answers to the number that the first one gave, and lets go of the file.
    assert!(is_leased(&other));
    program.release(&lease);
    assert!(!is_leased(&other));
    drop(file);
    let elsewhere = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&other);
    let elsewhere = elsewhere.expect("open");
    let entry = program.enter(&elsewhere);
    let lease = program
        .acquire(&elsewhere, entry, Mode::Sync)
        .expect("again");
    program.release(&lease);
    program
        .stage
        .attachment()
        .forget_file(entry)
        .expect("forget");
    drop((elsewhere, program));
    writer.ask("append", "appended");
    writer.kill();
    eventually("published at its death", || {
        len(&path) == before + 2 * WRITTEN.len()
    });
    eventually("let go", || !is_kept(&scratch));
    eventually("it ends when nobody needs it", || join(&dir, 0).is_err());
}

/// Whoever opens a file is let in while a pool is opened that other leases need, which are taken over as well.
#[test]
fn a_standby_lets_in_openers_while_it_opens_another_pool() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let all = [std::fs::read(&path).expect("read"), WRITTEN.to_vec()].concat();
    let mut first = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    let pool = slow_pool(&scratch);
    let [begun, word] = ["opening", "open"].map(|name| scratch.path(name));
    std::fs::write(&word, "").expect("write");
    let slow = Program::at(&scratch, pool);
    let other = scratch.old_file("other");
    let file = open_rw(&other);
    let lease = slow.acquire(&file, slow.enter(&file), Mode::Sync);
    let lease = lease.expect("lease");
    let _ = both(&scratch);
    for said in [&begun, &word] {
        std::fs::remove_file(said).expect("remove");
    }
    first.kill();
    eventually("it is being opened", || begun.exists());
    assert!(seen_by(opener(&path)) == all, "let in by the kernel");
    assert!(is_leased(&other));
    std::fs::write(&word, "").expect("write");
    eventually("the other one is let in, too", || !is_leased(&other));
    slow.release(&lease);
}

/// Two files of a program may have the same inode number, on two file systems. What it gives back of one, while the pool of
/// the other one cannot be opened, is not the other's.
#[test]
fn a_lease_that_waits_for_its_pool_is_not_given_up_for_a_namesake() {
    let scratch = Scratch::new();
    scratch.runtime();
    let mut first = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    let pool = scratch.path("another pool");
    PoolFile::create(&pool, 24 << 20, Geometry::default()).expect("create the pool");
    let program = Program::at(&scratch, &pool);
    let path = scratch.old_file("data");
    let file = open_rw(&path);
    let lease = program.acquire(&file, program.enter(&file), Mode::Sync);
    let lease = lease.expect("lease");
    let _ = both(&scratch);
    // Whoever takes over cannot open it.
    std::fs::rename(&pool, scratch.path("elsewhere")).expect("rename");
    std::fs::write(&pool, "garbage").expect("write");
    first.kill();
    assert!(!program.release(&lease.of_a_namesake()));
    assert!(is_leased(&path));
    assert!(program.release(&lease), "its own");
    assert!(!is_leased(&path));
}

/// A monitor and its standby, which soon has tried for long to open the pools of what it takes over.
fn soon_at_the_end_of_its_tries(scratch: &Scratch) -> Helper {
    let arguments = [
        ("T_STANDBY", Path::new("1")),
        ("T_TRIES_SHORTLY", Path::new("1")),
    ];
    monitor_with(scratch, &arguments)
}

/// Puts something else in the place of the pool, for as long as the value lives.
struct Aside<'a>(&'a Scratch);

impl<'a> Aside<'a> {
    fn put(scratch: &'a Scratch) -> Self {
        let pool = scratch.path("run/pool");
        std::fs::rename(&pool, scratch.path("aside")).expect("rename");
        std::fs::write(pool, "garbage").expect("write");
        Self(scratch)
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        let _ = std::fs::rename(self.0.path("aside"), self.0.path("run/pool"));
    }
}

/// Its program writes on, and publishes it some time: who was let in before would lose to that what he has written.
#[test]
fn a_lease_of_a_living_program_waits_for_its_pool_as_long_as_it_takes() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = scratch.old_file("data");
    let all = [std::fs::read(&path).expect("read"), WRITTEN.to_vec()].concat();
    let mut first = soon_at_the_end_of_its_tries(&scratch);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    let (_, next) = both(&scratch);
    let id = std::fs::metadata(&path).expect("metadata");
    let published = || client::publish(&dir, id.dev(), id.ino(), Duration::from_secs(60));
    let postponed = Err(Refused::Pool(Errno::AGAIN));
    let aside = Aside::put(&scratch);
    first.kill();
    eventually("it has taken over", || published() == postponed);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(published(), postponed);
    assert_eq!(both(&scratch).0, next);
    drop(aside);
    assert!(seen_by(opener(&path)) == all, "let in by the kernel");
}

/// A child may have the description, and the lease with it. A recovery could not open the file, and whoever else does would
/// wait for as long as the kernel likes.
#[test]
fn a_lease_of_a_dead_program_whose_pool_cannot_be_opened_is_given_up() {
    let scratch = Scratch::new();
    scratch.runtime();
    scratch.old_file("data");
    let mut first = soon_at_the_end_of_its_tries(&scratch);
    let mut program = staging(&scratch, "sync", "data");
    program.ask("append", "appended");
    program.ask("child", "has a child");
    let child = std::fs::read_to_string(scratch.path("child")).expect("read");
    let child = child.parse().expect("a number");
    let _ = both(&scratch);
    let _aside = Aside::put(&scratch);
    first.kill();
    program.kill();
    assert!(has_lease(child, "ACTIVE"));
    eventually("it is given up", || !has_lease(child, ""));
}

/// The same where it was removed: nobody will ever open it.
#[test]
fn a_lease_of_a_dead_program_whose_pool_was_removed_is_given_up() {
    let scratch = Scratch::new();
    scratch.runtime();
    scratch.old_file("data");
    let mut first = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    let mut program = staging(&scratch, "sync", "data");
    program.ask("child", "has a child");
    let child = std::fs::read_to_string(scratch.path("child")).expect("read");
    let child = child.parse().expect("a number");
    let (first_id, _) = both(&scratch);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(first_id).expect("a number"),
        rustix::process::Signal::STOP,
    )
    .expect("stop");
    // Before it can notice.
    std::fs::remove_file(scratch.path("run/pool")).expect("remove");
    program.kill();
    first.kill();
    eventually("it is given up", || !has_lease(child, ""));
}

/// Whoever recovers would not find what is staged in a pool that has no name, so nothing stays there.
#[test]
fn a_pool_that_is_removed_gives_its_files_back() {
    for mode in ["sync", "atomic"] {
        let scratch = Scratch::new();
        scratch.runtime();
        let path = scratch.old_file("data");
        let before = len(&path);
        let _monitor = monitor_with(&scratch, &[]);
        let mut program = staging(&scratch, mode, "data");
        program.ask("append", "appended");
        let holder = program.child.id();
        assert!(has_lease(holder, "ACTIVE"));
        std::fs::remove_file(scratch.path("run/pool")).expect("remove");
        // An open would take it away by itself.
        eventually("it is taken away", || !has_lease(holder, ""));
        assert_eq!(len(&path), before + WRITTEN.len());
        program.ask("append", "taken");
    }
}

/// A program goes by the pool that it has open. Where that was removed and made anew, its entries are those of any files.
#[test]
fn a_lease_is_refused_where_the_entry_is_another_files() {
    let scratch = Scratch::new();
    scratch.runtime();
    let (path, other) = (scratch.old_file("data"), scratch.old_file("other"));
    let _monitor = monitor_with(&scratch, &[]);
    let (file, other) = (open_rw(&path), open_rw(&other));
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let refused = program.acquire(&other, entry, Mode::Sync);
    assert_eq!(refused, Err(Refused::Pool(Errno::STALE)));
    let lease = program.acquire(&file, entry, Mode::Sync).expect("its own");
    program.release(&lease);
}

/// Waits until a helper of this file has come to a word.
fn comes_to_say(role: &str, word: &str) {
    let scratch = Scratch::new();
    let role = format!("monitor::tests::leases::{role}");
    let mut helper = Helper::start(&role, &[("T_DIR", scratch.0.as_path())]);
    helper.wait_for(word);
}

/// A standby whose end nobody learns of would take over beside the living.
#[test]
fn a_standby_that_cannot_be_watched_is_none() {
    comes_to_say("helper_few_descriptors", "no child");
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_few_descriptors() {
    use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};
    if !is_helper() {
        return;
    }
    let records = Records::new().expect("memory");
    let mut standby = Standby::new(Some(same_again()));
    let before = getrlimit(Resource::Nofile);
    let next = rustix::io::dup(records.fd()).expect("dup").as_raw_fd();
    // Room for one more.
    let few = Rlimit {
        current: Some(next as u64 + 1),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, few).expect("limit");
    standby.ensure(&records);
    setrlimit(Resource::Nofile, before).expect("limit");
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    match waitid(WaitId::All, options) {
        Err(Errno::CHILD) => say("no child"),
        there => panic!("{there:?}"),
    }
}

/// It would have what another thread of the monitor has mapped and not yet kept from children: the lock of a pool's gate,
/// say, for as long as it lives. Nobody could attach to that pool any more.
#[test]
fn a_standby_is_made_when_nothing_is_on_its_way() {
    comes_to_say("helper_half_way", "waited");
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_half_way() {
    if !is_helper() {
        return;
    }
    let records = Records::new().expect("memory");
    let mut standby = Standby::new(Some(same_again()));
    let main = rustix::thread::gettid().as_raw_nonzero();
    let has_child = move || {
        let children = std::fs::read_to_string(format!("/proc/self/task/{main}/children"));
        !children.expect("children").trim().is_empty()
    };
    let on_its_way = brief::begin();
    let other = std::thread::spawn(move || {
        while !brief::is_forking() && !has_child() {
            std::thread::yield_now();
        }
        let made = has_child();
        drop(on_its_way);
        made
    });
    standby.ensure(&records);
    assert!(!other.join().expect("a thread"));
    assert!(has_child());
    say("waited");
}

/// Nobody would go on with what the monitor holds.
#[test]
fn a_monitor_gives_way_to_no_standby_that_is_dead() {
    comes_to_say("helper_gives_way", "goes on");
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_gives_way() {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    if !is_helper() {
        return;
    }
    let records = Records::new().expect("memory");
    let mut standby = Standby::new(Some(same_again()));
    standby.ensure(&records);
    let children = std::fs::read_to_string("/proc/thread-self/children").expect("children");
    kill(children.trim().parse().expect("one child"));
    // It stays to be waited for.
    let ended = waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    assert!(ended.expect("its end").is_some());
    standby.give_way();
    say("goes on");
}

/// Where the next monitor may not look into a program, nobody but that can end its lease, and is told so.
#[test]
fn a_lease_that_the_monitor_does_not_know_is_left_to_the_program() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let mut first = monitor(&scratch);
    let file = open_rw(&path);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let lease = program.acquire(&file, entry, Mode::Strict).expect("lease");
    first.kill();
    let _second = monitor_with(&scratch, &[("T_BLIND", Path::new("9"))]);
    assert!(!program.release(&lease));
    assert!(is_leased(&path), "it is the description's");
    // SAFETY: integers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    assert!(!is_leased(&path));
    let lease = program.acquire(&file, entry, Mode::Strict).expect("lease");
    assert!(program.release(&lease));
}

/// One look may find a pool in somebody's hand. Who opens the file would wait for 45 seconds, and each file's openers anew.
#[test]
fn a_lease_that_nobody_knows_is_looked_for_once_more() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let mut first = monitor(&scratch);
    let mut program = staging(&scratch, "strict", "data");
    program.ask("append", "appended");
    first.kill();
    let _second = monitor_with(&scratch, &[("T_BLIND", Path::new("1"))]);
    // An open that does not wait asks the lease's owner nevertheless.
    eventually("let in", || {
        let mut options = File::options();
        options.write(true).custom_flags(libc::O_NONBLOCK);
        options.open(&path).is_ok()
    });
    assert_eq!(len(&path), before + WRITTEN.len());
}

#[test]
fn what_was_staged_under_a_killed_monitor_is_recovered_by_the_next() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let mut first = monitor(&scratch);
    let mut program = staging(&scratch, "atomic", "data");
    program.ask("append", "appended");
    first.kill();
    program.kill();
    assert_eq!(len(&path), before);
    let _second = monitor(&scratch);
    eventually("recovered", || len(&path) == before + WRITTEN.len());
    eventually("the pool is as if nobody had been there", || {
        let pool = PoolFile::open_read_only(&scratch.path("run/pool")).expect("pool");
        pool.info().expect("info").attached == 0
    });
    assert!(std::fs::read(&path).expect("read").ends_with(WRITTEN));
}

#[test]
fn a_pool_that_has_grown_is_small_again_when_nobody_uses_it() {
    let scratch = Scratch::new();
    scratch.runtime();
    let file = open_rw(&scratch.old_file("data"));
    let _monitor = monitor(&scratch);
    let program = Program::new(&scratch, &file);
    let pool_size = || len(&scratch.path("run/pool"));
    let made = pool_size();
    let growing = |growth| crate::pools::grow(&program.file, program.stage.attachment(), growth);
    // Ahead of need it grows to a few times its size, and no further; on other media the blocks are the other tests'.
    if testing::scratch::medium() == adit_pmem::MediumKind::Ram {
        while growing(Growth::Ahead) {}
        assert_eq!(pool_size(), made * 4);
    }
    let ahead = pool_size();
    assert!(growing(Growth::Needed));
    assert!(pool_size() > ahead);
    // The monitor attaches, and stays when the program leaves.
    let entry = program.enter(&file);
    let lease = program.acquire(&file, entry, Mode::Sync).expect("lease");
    program.release(&lease);
    program
        .stage
        .attachment()
        .forget_file(entry)
        .expect("forget");
    let attachment = program.stage.into_attachment().expect("no file is open");
    // Whoever leaves last cuts it.
    program.file.detach(attachment).expect("detach");
    eventually("cut", || pool_size() == made);
    let pool = PoolFile::open(&scratch.path("run/pool")).expect("open");
    assert!(pool.pool().check().expect("check").is_sound());
    // It may grow again.
    let attachment = pool.attach().expect("attach");
    assert!(crate::pools::grow(&pool, &attachment, Growth::Needed));
    assert!(pool_size() > made);
    pool.detach(attachment).expect("detach");
    assert_eq!(pool_size(), made);
}

/// The main thread has others to answer, and to let in.
#[test]
fn a_look_waits_for_nobody_who_has_the_file_locked() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let _monitor = monitor(&scratch);
    let file = open_rw(&path);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let base = KernelFile::new(borrowed(&file)).expect("base");
    let staged = StagedFile::open_entry(&program.stage, entry, base, Mode::Sync).expect("staged");
    staged.append(WRITTEN).expect("append");
    // Who publishes is waited for as long as he lives.
    let attachment = program.stage.attachment();
    let guard = attachment.lock_file(entry).expect("lock");
    let word = guard.version().expect("version");
    let claimed = word | (u64::from(attachment.slot()) + 1);
    guard.set_version(claimed).expect("claim");
    let _lease = program.acquire(&file, entry, Mode::Sync).expect("lease");
    let id = std::fs::metadata(&path).expect("metadata");
    let patience = Duration::from_secs(120);
    std::thread::scope(|scope| {
        let ask = || client::publish(&dir, id.dev(), id.ino(), patience);
        let publish = scope.spawn(ask);
        // Until a worker waits for the lock.
        std::thread::sleep(Duration::from_secs(1));
        eventually("it is looked at", || {
            let seen = client::look(&dir, id.dev(), id.ino());
            seen.is_some_and(|(size, _)| size as usize == before + WRITTEN.len())
        });
        assert!(!publish.is_finished());
        guard.set_version(word).expect("give the claim up");
        drop(guard);
        assert_eq!(publish.join().expect("publish"), Ok(true));
    });
    assert_eq!(len(&path), before + WRITTEN.len());
}

/// Whoever forgets a file has it locked until that is durable. Where his sync fails then, he asks the monitor, which has to
/// know of the file, or to have said by the lock that it is over.
#[test]
fn a_file_is_over_when_nobody_has_it_locked() {
    let scratch = Scratch::new();
    let path = scratch.old_file("data");
    let _monitor = monitor(&scratch);
    let file = open_rw(&path);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let _lease = program.acquire(&file, entry, Mode::Sync).expect("lease");
    let id = std::fs::metadata(&path).expect("metadata");
    let patience = Duration::from_secs(60);
    let is_known = || client::publish(&program.dir, id.dev(), id.ino(), patience) != Ok(false);
    let attachment = program.stage.attachment();
    let guard = attachment.lock_file(entry).expect("lock");
    // As in the middle of it.
    let pool = attachment.pool();
    let state = pool.geometry().file_entry((entry.id() & 0xff_ffff) as u32);
    pool.medium().store(state, 0).expect("empty");
    // Some of the monitor's rounds.
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_known());
    drop(guard);
    eventually("it is over", || !is_known());
}

#[test]
fn what_is_asked_for_is_published_before_the_answer() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = scratch.old_file("data");
    let before = len(&path);
    let _monitor = monitor(&scratch);
    let id = std::fs::metadata(&path).expect("metadata");
    let publish = || client::publish(&dir, id.dev(), id.ino(), Duration::from_secs(60));
    assert_eq!(publish(), Ok(false), "nothing is staged");
    let mut program = staging(&scratch, "atomic", "data");
    for round in 1..=20 {
        program.ask("append", "appended");
        program.ask("fsync", "synced");
        assert_eq!(publish(), Ok(true));
        assert_eq!(len(&path), before + round * WRITTEN.len());
        // So the file has the time, though the commit is not retired.
        let mut seen = None;
        eventually("it is looked at", || {
            seen = client::look(&dir, id.dev(), id.ino());
            seen.is_some()
        });
        assert_eq!(seen, Some((len(&path) as u64, 0)));
    }
    // Still the program's: not committed, not published.
    program.ask("append", "appended");
    assert_eq!(publish(), Ok(true));
    assert_eq!(len(&path), before + 20 * WRITTEN.len());
}
