//! Declared files: leased like others, shared when somebody opens them, and barred.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use adit_pool::PoolFile;
use rustix::process::Signal;

use super::super::client::{self, Lease, Refused};
use super::leases::{Program, borrowed, is_leased, patiently, slow_pool};
use super::*;
use crate::staged::{Error, KernelFile, Mode, StagedFile};
use crate::testing::{self, eventually, open_rw};

fn empty(scratch: &Scratch, name: &str) -> std::path::PathBuf {
    let path = scratch.path(name);
    std::fs::write(&path, b"").expect("write");
    path
}

type Staged = StagedFile<adit_pool::FileMedium, KernelFile<rustix::fd::BorrowedFd<'static>>>;

/// A program with one description of a file, staged under a declaration.
struct Sharer {
    staged: Option<Staged>,
    lease: Lease,
    program: Program,
    file: File,
}

impl Sharer {
    fn new(scratch: &Scratch, file: File, mode: Mode) -> Result<Self, Refused> {
        let program = Program::new(scratch, &file);
        let entry = program.enter(&file);
        let lease = program.acquire_declared(&file, entry, mode)?;
        let base = KernelFile::new(borrowed(&file)).expect("base");
        let staged = StagedFile::open_entry(&program.stage, entry, base, mode).expect("staged");
        if lease.is_shared() {
            staged.share().expect("share");
        }
        Ok(Self {
            staged: Some(staged),
            lease,
            program,
            file,
        })
    }

    fn staged(&self) -> &Staged {
        self.staged.as_ref().expect("it is open")
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.staged().size().expect("size") as usize];
        let read = self.staged().read_at(0, &mut bytes).expect("read");
        bytes.truncate(read);
        bytes
    }

    /// As the library closes a description.
    fn close(mut self) {
        match self.staged().take_away_alone(|| {}) {
            Ok(_) | Err(Error::Shared) => {}
            Err(error) => panic!("{error}"),
        }
        self.staged = None;
        assert!(self.program.release(&self.lease));
    }
}

#[test]
fn who_opens_a_declared_file_joins() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let before = std::fs::read(&path).expect("read");
    let _monitor = monitor(&scratch);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    assert!(!first.lease.is_shared());
    first.staged().append(b"one").expect("append");
    // An outsider finds all of it, as of any leased file; and the program goes on.
    let seen = std::fs::read(&path).expect("read");
    assert_eq!(seen, [&before[..], b"one"].concat());
    assert!(!is_leased(&path));
    first.staged().append(b"two").expect("it is staged still");
    assert!(first.staged().is_shared().expect("shared"));
    let second = Sharer::new(&scratch, open_rw(&path), Mode::Atomic).expect("a seat");
    assert!(second.lease.is_shared());
    second.staged().append(b"three").expect("append");
    let all = [&before[..], b"onetwothree"].concat();
    assert_eq!((first.read(), second.read()), (all.clone(), all.clone()));
    first.close();
    second.staged().append(b"four").expect("append");
    second.close();
    let all = [&all[..], b"four"].concat();
    assert_eq!(std::fs::read(&path).expect("read"), all);
    let again = Sharer::new(&scratch, open_rw(&path), Mode::Atomic).expect("a lease");
    assert!(!again.lease.is_shared(), "nobody else has it any more");
    again.close();
}

#[test]
fn a_shared_file_is_published_by_age() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    let second = Sharer::new(&scratch, open_rw(&path), Mode::Atomic).expect("a seat");
    first.staged().append(b"one").expect("append");
    eventually("published", || {
        std::fs::read(&path).expect("read") == b"one"
    });
    second.staged().append(b"two").expect("append");
    second.staged().fsync().expect("fsync");
    eventually("published", || {
        std::fs::read(&path).expect("read") == b"onetwo"
    });
    first.close();
    second.close();
}

/// Who joins may have begun to write before the monitor knows that all of it is done.
#[test]
fn what_is_not_committed_is_not_published_of_a_file_that_is_just_being_shared() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    assert!(!first.lease.is_shared());
    let program = Program::at(&scratch, first.program.pool.clone());
    let base = KernelFile::new(borrowed(&first.file)).expect("base");
    let entry = first.staged().file();
    let second = StagedFile::open_entry(&program.stage, entry, base, Mode::Atomic).expect("join");
    second.share().expect("share");
    first.staged().append(b"one").expect("append");
    second.append(b"two").expect("append");
    let id = testing::id_of(&first.file);
    let patience = testing::scratch::limit(10);
    assert_eq!(
        client::publish(&program.dir, id.dev, id.ino, patience),
        Ok(true)
    );
    let mut found = [0; 8];
    let len = first.file.read_at(&mut found, 0).expect("read");
    assert_eq!(found[..len], *b"one");
    drop(second);
    first.close();
}

/// Who has a file open already is nobody's business, once it is declared.
#[test]
fn an_outsider_that_was_there_before_is_no_obstacle() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let outsider = File::open(&path).expect("open");
    let file = open_rw(&path);
    let program = Program::new(&scratch, &file);
    let entry = program.enter(&file);
    let refused = program.acquire(&file, entry, Mode::Strict);
    assert_eq!(refused, Err(Refused::Lease(Errno::AGAIN)));
    let sharer = Sharer::new(&scratch, file, Mode::Strict).expect("a seat");
    assert!(sharer.lease.is_shared());
    sharer.staged().append(b"one").expect("append");
    sharer.close();
    assert_eq!(std::fs::read(&path).expect("read"), b"one");
    drop(outsider);
}

#[test]
fn a_barred_file_is_taken_away_until_somebody_is_alone_with_it() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    let second = Sharer::new(&scratch, open_rw(&path), Mode::Atomic).expect("a seat");
    first.staged().append(b"one").expect("append");
    second.staged().append(b"two").expect("append");
    let other = open_rw(&path);
    patiently(|| client::bar(&dir, borrowed(&other))).expect("bar");
    assert_eq!(std::fs::read(&path).expect("read"), b"onetwo");
    for sharer in [first, second] {
        let late = sharer.staged().append(b"late");
        assert!(matches!(late, Err(Error::Taken)), "{late:?}");
        sharer.program.release(&sharer.lease);
        let again = Sharer::new(&scratch, sharer.file, Mode::Strict);
        assert_eq!(again.err(), Some(Refused::Lease(Errno::AGAIN)));
    }
    // Nobody has it any more but who barred it.
    let alone = Sharer::new(&scratch, other, Mode::Strict).expect("a lease");
    assert!(!alone.lease.is_shared());
    let second = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a seat");
    assert!(second.lease.is_shared());
    second.close();
    alone.close();
}

#[test]
fn a_file_is_shared_before_its_program_opens_it_again() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    first.staged().append(b"one").expect("append");
    assert_eq!(patiently(|| client::share(&dir, &first.lease)), Ok(true));
    assert!(!is_leased(&path));
    assert!(first.staged().is_shared().expect("shared"));
    assert_eq!(
        patiently(|| client::hold_alone(&dir, &first.lease)),
        Ok(false)
    );
    first.close();
    let second = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    second.staged().append(b"two").expect("append");
    assert_eq!(
        patiently(|| client::hold_alone(&dir, &second.lease)),
        Ok(true)
    );
    assert_eq!(patiently(|| client::share(&dir, &second.lease)), Ok(false));
    // Whoever opens it now takes it away, as of a file that was not declared.
    assert_eq!(std::fs::read(&path).expect("read"), b"onetwo");
    let late = second.staged().append(b"late");
    assert!(matches!(late, Err(Error::Taken)), "{late:?}");
    second.program.release(&second.lease);
}

/// What has begun to be shared is not held alone any more.
#[test]
fn who_is_about_to_share_a_file_is_not_alone_with_it() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor_with(&scratch, &[("T_SHARES_SLOWLY", Path::new("1"))]);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    first.staged().append(b"one").expect("append");
    let opener = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::read(path).expect("read"))
    };
    eventually("sharing", || scratch.path("sharing").exists());
    let alone = patiently(|| client::hold_alone(&dir, &first.lease));
    std::fs::write(scratch.path("share"), "").expect("write");
    assert_eq!(alone, Ok(false));
    assert_eq!(opener.join().expect("an opener"), b"one");
    assert!(first.staged().is_shared().expect("shared"));
    first.close();
}

/// The program finds it shared, and leaves the end of it to the monitor, which is just about to know that.
#[test]
fn who_closes_a_file_that_is_just_being_shared_leaves_nothing_of_it() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor_with(&scratch, &[("T_SHARES_SLOWLY", Path::new("1"))]);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    first.staged().append(b"one").expect("append");
    let pool = PoolFile::open_read_only(&first.program.pool).expect("pool");
    let opener = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::read(path).expect("read"))
    };
    eventually("sharing", || scratch.path("sharing").exists());
    first.staged().share().expect("share");
    let closer = std::thread::spawn(move || first.close());
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(scratch.path("share"), "").expect("write");
    closer.join().expect("it is closed");
    assert_eq!(opener.join().expect("an opener"), b"one");
    assert_eq!(pool.files().expect("files"), []);
}

/// Who could not share a file tries again, and takes it from nobody.
#[test]
fn what_could_not_be_shared_is_shared_a_little_later() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor_with(&scratch, &[("T_SHARES_AFTER", Path::new("3"))]);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    first.staged().append(b"one").expect("append");
    assert_eq!(std::fs::read(&path).expect("read"), b"one");
    first.staged().append(b"two").expect("it is staged still");
    assert!(first.staged().is_shared().expect("shared"));
    first.close();
    assert_eq!(std::fs::read(&path).expect("read"), b"onetwo");
}

/// A monitor that takes over is told who holds a file alone.
#[test]
fn a_standby_shares_no_file_that_is_held_alone() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = empty(&scratch, "data");
    let monitor = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    first.staged().append(b"one").expect("append");
    let alone = patiently(|| client::hold_alone(&dir, &first.lease));
    assert_eq!(alone, Ok(true));
    monitor.signal(Signal::KILL);
    drop(eventually_open(&path));
    let late = first.staged().append(b"late");
    assert!(matches!(late, Err(Error::Taken)), "{late:?}");
    first.program.release(&first.lease);
}

/// Until a monitor that took over has had its first look, nothing is known of a lease: who has a shared file has a seat
/// all the same, who opens it gets one, and the last to leave ends the staging.
#[test]
fn a_standby_knows_seats_from_the_start() {
    for leaves in [false, true] {
        let scratch = Scratch::new();
        scratch.runtime();
        let path = empty(&scratch, "data");
        let monitor = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
        let outsider = File::open(&path).expect("open");
        let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a seat");
        assert!(first.lease.is_shared());
        first.staged().append(b"one").expect("append");
        let next = open_rw(&path);
        let program = Program::new(&scratch, &next);
        let entry = program.enter(&next);
        // Nobody gets to share it out while its lock is held.
        let attachment = program.stage.attachment();
        let guard = attachment.lock_file(entry).expect("the lock");
        monitor.signal(Signal::KILL);
        if leaves {
            std::thread::scope(|scope| {
                let left = scope.spawn(|| first.program.release(&first.lease));
                std::thread::sleep(std::time::Duration::from_millis(300));
                drop(guard);
                assert!(left.join().expect("a thread"));
            });
            let over = first.staged().append(b"late");
            assert!(matches!(over, Err(Error::Taken)), "{over:?}");
        } else {
            let lease = program.acquire_declared(&next, entry, Mode::Strict);
            drop(guard);
            assert!(lease.expect("a seat").is_shared());
            first.close();
        }
        drop(outsider);
    }
}

/// Has a monitor end by itself.
fn end(scratch: &Scratch) {
    tell_to_end(scratch);
    eventually("it ends", || !scratch.path("run/monitor.sock").exists());
}

/// What is barred stays so whoever is the monitor: a standby, or one that comes after another has ended. One that comes
/// after a kill does not know, until somebody was alone with the file.
#[test]
fn the_next_monitor_knows_what_is_barred() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let (barred, free) = (empty(&scratch, "barred"), empty(&scratch, "free"));
    let outsiders = [&barred, &free].map(|path| open_rw(path));
    let is_free = |path: &Path| match Sharer::new(&scratch, open_rw(path), Mode::Strict) {
        Ok(sharer) => {
            assert!(sharer.lease.is_shared());
            sharer.close();
            true
        }
        Err(refused) => {
            assert_eq!(refused, Refused::Lease(Errno::AGAIN));
            false
        }
    };
    let knows = || !is_free(&barred) && is_free(&free);
    let first = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    patiently(|| client::bar(&dir, borrowed(&outsiders[0]))).expect("bar");
    assert!(knows());
    first.signal(Signal::KILL);
    assert!(knows(), "a standby");
    end(&scratch);
    let last = monitor(&scratch);
    assert!(knows(), "the next one");
    last.signal(Signal::KILL);
    drop(last);
    let last = monitor(&scratch);
    assert!(!is_free(&barred) && !is_free(&free), "it cannot know");
    end(&scratch);
    drop(last);
    let _last = monitor(&scratch);
    assert!(!is_free(&barred) && !is_free(&free), "nor can the next");
    let [barred_by, outsider] = outsiders;
    drop(outsider);
    let alone = Sharer::new(&scratch, open_rw(&free), Mode::Strict).expect("a lease");
    assert!(!alone.lease.is_shared());
    alone.close();
    let outsider = open_rw(&free);
    assert!(knows(), "somebody was alone with it");
    drop((barred_by, outsider));
}

/// Who finds no monitor to tell leaves word for the next one.
#[test]
fn what_nobody_was_told_the_next_monitor_does_not_know() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = empty(&scratch, "data");
    let outsider = open_rw(&path);
    let nobody = client::bar(&dir, borrowed(&outsider));
    assert!(matches!(nobody, Err(Refused::NoMonitor(_))), "{nobody:?}");
    let _monitor = monitor(&scratch);
    let refused = Sharer::new(&scratch, open_rw(&path), Mode::Strict);
    assert_eq!(refused.err(), Some(Refused::Lease(Errno::AGAIN)));
    drop(outsider);
    let alone = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    assert!(!alone.lease.is_shared());
    alone.close();
}

/// A monitor goes on with shared files as with leased ones.
#[test]
fn a_standby_goes_on_with_shared_files() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = empty(&scratch, "data");
    let monitor = monitor_with(&scratch, &[("T_STANDBY", Path::new("1"))]);
    let first = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    let second = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a seat");
    let other_path = empty(&scratch, "other");
    let other = Sharer::new(&scratch, open_rw(&other_path), Mode::Strict).expect("a lease");
    first.staged().append(b"one").expect("append");
    monitor.signal(Signal::KILL);
    let outsider = eventually_open(&other_path);
    other.staged().append(b"staged").expect("append");
    second.staged().append(b"two").expect("append");
    eventually("published", || {
        std::fs::read(&path).expect("read") == b"onetwo"
    });
    let third = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a seat");
    drop(outsider);
    for sharer in [first, second, third, other] {
        sharer.close();
    }
    assert_eq!(std::fs::read(&other_path).expect("read"), b"staged");
}

/// A program may be stopped with the file's lock in its hand, and go on some seconds later. Who bars the file waits, as the
/// library does everywhere: its call would fail otherwise.
#[test]
fn who_bars_a_file_waits_for_who_has_its_lock() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let sharer = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
    sharer.staged().append(b"one").expect("append");
    let stopped = Program::new(&scratch, &sharer.file);
    let entry = stopped.enter(&sharer.file);
    let guard = stopped.stage.attachment().lock_file(entry);
    let guard = guard.expect("the lock");
    std::thread::scope(|scope| {
        let bar = scope.spawn(|| client::bar(&dir, borrowed(&sharer.file)));
        std::thread::sleep(std::time::Duration::from_secs(3));
        drop(guard);
        bar.join().expect("a thread").expect("bar");
    });
    assert_eq!(std::fs::read(&path).expect("read"), b"one");
    sharer.program.release(&sharer.lease);
}

/// Who bars a file has no pool attached to that has nothing of it, whoever was killed before: on a disk that takes syncs. A
/// monitor that takes over knows all, and one that comes after a kill of both looks before it attaches.
#[test]
fn who_bars_a_file_attaches_to_no_pool_without_it() {
    for both in [false, true] {
        let scratch = Scratch::new();
        let dir = scratch.runtime();
        let path = empty(&scratch, "data");
        let other = open_rw(&empty(&scratch, "other"));
        let standby = [("T_STANDBY", Path::new("1"))];
        let first = monitor_with(&scratch, if both { &[] } else { &standby });
        let sharer = Sharer::new(&scratch, open_rw(&path), Mode::Strict).expect("a lease");
        sharer.staged().append(b"one").expect("append");
        // So there is something to look through.
        let kept = empty(&scratch, "kept");
        let kept = Sharer::new(&scratch, open_rw(&kept), Mode::Strict).expect("a lease");
        kept.staged().append(b"staged").expect("append");
        first.signal(Signal::KILL);
        let _next = if both {
            drop(first);
            monitor(&scratch)
        } else {
            first
        };
        // Whoever goes on opens the pool first: who asks meanwhile is not refused.
        patiently(|| client::bar(&dir, borrowed(&sharer.file))).expect("bar");
        assert_eq!(std::fs::read(&path).expect("read"), b"one");
        let attached = || {
            let pool = sharer.program.stage.attachment().pool();
            let slots = 0..pool.geometry().slot_count;
            let times = slots.map(|slot| pool.incarnation(slot).expect("a slot"));
            times.sum::<u64>()
        };
        std::thread::sleep(std::time::Duration::from_millis(300));
        let before = attached();
        for _ in 0..5 {
            client::bar(&dir, borrowed(&other)).expect("bar");
        }
        assert_eq!(attached(), before, "{both}");
        let over = sharer.staged().append(b"late");
        assert!(matches!(over, Err(Error::Taken)), "{over:?}");
        sharer.program.release(&sharer.lease);
        kept.staged().append(b"on").expect("append");
    }
}

/// Opens a file that is leased, which waits until somebody shares it.
fn eventually_open(path: &Path) -> File {
    let begun = std::time::Instant::now();
    let file = File::open(path).expect("open");
    assert!(begun.elapsed() < crate::testing::scratch::limit(20));
    file
}

/// A program that does not wait any longer for its lease leaves the file to the kernel, and says so. What it had asked for
/// comes up when the pool is open.
#[test]
fn a_request_that_nobody_waits_for_does_not_let_others_in() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let pool = slow_pool(&scratch);
    let program = Program::at(&scratch, pool.clone());
    let file = open_rw(&path);
    let entry = program.enter(&file);
    let request = client::AcquireRequest {
        declared: true,
        ..program.request(&file, entry, Mode::Strict, false)
    };
    let refused = client::acquire(&program.dir, &request);
    assert_eq!(refused.err(), Some(Refused::NoMonitor(Errno::TIMEDOUT)));
    // As the library does when the description becomes the kernel's.
    drop(program.stage.attachment().forget_file(entry));
    patiently(|| client::bar(&dir, borrowed(&file))).expect("bar");
    std::fs::write(scratch.path("open"), "").expect("write");
    std::thread::sleep(Duration::from_secs(2));
    let other = open_rw(&path);
    let second = Program::at(&scratch, pool);
    let entry = second.enter(&other);
    let seat = second.acquire_declared(&other, entry, Mode::Strict);
    assert_eq!(seat, Err(Refused::Lease(Errno::AGAIN)));
}

/// What a program has locked is free when it has closed the file, also where it has asked for a lease in vain before.
#[test]
fn a_request_that_nobody_waits_for_keeps_no_description() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = empty(&scratch, "data");
    let _monitor = monitor(&scratch);
    let program = Program::at(&scratch, slow_pool(&scratch));
    let file = open_rw(&path);
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(borrowed(&file), lock).expect("lock");
    let entry = program.enter(&file);
    let refused = client::acquire(
        &program.dir,
        &program.request(&file, entry, Mode::Strict, false),
    );
    assert_eq!(refused.err(), Some(Refused::NoMonitor(Errno::TIMEDOUT)));
    drop(file);
    let other = open_rw(&path);
    std::thread::sleep(Duration::from_secs(1));
    let locked = rustix::fs::flock(borrowed(&other), lock);
    std::fs::write(scratch.path("open"), "").expect("write");
    assert_eq!(locked, Ok(()));
}
