//! The steps of a settlement, one by one, and what the process does between them.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use super::*;
use crate::monitor::times::planted::{Point, act};
use crate::monitor::times::{Settled, of_living};
use crate::registry::settle::planted::when_it_waits;

/// A process that has stored to a file, and its registry file as a monitor has it.
struct Stored {
    path: std::path::PathBuf,
    file: Arc<File>,
    registry: &'static Registry,
    slot: FileSlot,
    snapshot: Snapshot,
    _scratch: Scratch,
}

impl Stored {
    fn new() -> Self {
        let scratch = Scratch::new();
        let dir = scratch.runtime().open().expect("open");
        let path = scratch.old_file("data");
        let file = open_rw(&path);
        let registry = registry(&scratch.path("run"));
        let slot = attach(registry, &file);
        slot.stored_now();
        let name = names(&dir).expect("names")[0];
        Self {
            path,
            file: Arc::new(file),
            registry,
            slot,
            snapshot: Snapshot::open(&dir, &name, OFlags::RDWR).expect("snapshot"),
            _scratch: scratch,
        }
    }

    /// What a program does that sets the times: it settles the file before.
    fn sets_times(&self) -> impl Fn() + Send + use<> {
        let (slot, file) = (self.slot, Arc::clone(&self.file));
        move || {
            slot.settle(file.as_raw_fd());
            file.set_modified(old()).expect("set time");
        }
    }

    fn settle(&self) -> Settled {
        of_living(&self.snapshot, 0)
    }

    #[track_caller]
    fn has_the_programs_time(&self) {
        assert_eq!(modified(&self.path), old());
        assert_eq!(self.settle(), Settled::Nothing);
        self.registry.settle_all();
        assert_eq!(modified(&self.path), old(), "at its exit");
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        act(|_| {});
        self.registry.detach();
    }
}

/// Does something once, when a settlement of this thread comes to a point.
fn once_at(point: Point, work: impl FnOnce() + 'static) {
    let mut work = Some(work);
    act(move |now| {
        if now == point
            && let Some(work) = work.take()
        {
            work();
        }
    });
}

/// Begins something in another thread when a settlement comes to a point, which goes on once that thread waits, as it has
/// to. The thread, for its end.
fn meanwhile(
    point: Point,
    work: impl FnOnce() + Send + 'static,
) -> std::sync::mpsc::Receiver<JoinHandle<()>> {
    let (tell, threads) = std::sync::mpsc::channel();
    once_at(point, move || {
        tell.send(begun(work)).expect("somebody listens");
    });
    threads
}

/// A thread that has begun something: it waits for the monitor, which has shown that it settles, or is through with it.
fn begun(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let waits = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&waits);
    let thread = std::thread::spawn(move || {
        when_it_waits(move || begins.store(true, Ordering::SeqCst));
        work();
    });
    eventually("the other thread waits, or ends", || {
        waits.load(Ordering::SeqCst) || thread.is_finished()
    });
    if waits.load(Ordering::SeqCst) {
        // Who does not wait for long enough is through by now.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!thread.is_finished(), "it went on beside the monitor");
    }
    thread
}

/// The program has set the times when the monitor, which has seen the mark of an earlier store, goes on.
#[test]
fn a_settlement_that_was_overtaken_is_not_made() {
    let stored = Stored::new();
    let program = stored.sets_times();
    once_at(Point::Looked, program);
    assert_eq!(stored.settle(), Settled::Later);
    stored.has_the_programs_time();
}

/// The program comes while the monitor settles: it waits, and sets its times afterwards.
#[test]
fn the_program_waits_for_a_settlement_under_way() {
    for point in [Point::Shown, Point::Taken] {
        let stored = Stored::new();
        let threads = meanwhile(point, stored.sets_times());
        let settled = stored.settle();
        let expected = match point {
            Point::Taken => Settled::Advanced,
            // Its taking of the mark was seen.
            _ => Settled::Later,
        };
        assert_eq!(settled, expected, "{point:?}");
        threads.recv().expect("a thread").join().expect("it ends");
        stored.has_the_programs_time();
    }
}

/// Somebody settles, for a `stat` or at the exit, while the monitor finds that the mark it has seen is gone: nothing is due.
#[test]
fn what_is_settled_is_not_settled_once_more() {
    let stored = Stored::new();
    let program = stored.sets_times();
    let (slot, file, registry) = (stored.slot, Arc::clone(&stored.file), stored.registry);
    let (tell, told) = std::sync::mpsc::channel();
    act(move |point| match point {
        Point::Looked => program(),
        Point::Shown => {
            let file = Arc::clone(&file);
            let thread = begun(move || {
                slot.settle(file.as_raw_fd());
                registry.settle_all();
            });
            tell.send(thread).expect("somebody listens");
        }
        Point::Ours | Point::Taken => panic!("there was nothing to take"),
    });
    assert_eq!(stored.settle(), Settled::Later);
    told.recv().expect("a thread").join().expect("it ends");
    stored.has_the_programs_time();
}

/// What was stored and is settled by the process is settled when it says so, also beside the monitor.
#[test]
fn a_settlement_that_the_process_waited_for_is_made() {
    for point in [Point::Looked, Point::Shown, Point::Taken] {
        let stored = Stored::new();
        let (slot, file) = (stored.slot, Arc::clone(&stored.file));
        let threads = meanwhile(point, move || {
            slot.settle(file.as_raw_fd());
            let modified = file.metadata().and_then(|stat| stat.modified());
            assert!(modified.expect("a time") != old(), "{point:?}");
        });
        stored.settle();
        threads.recv().expect("a thread").join().expect("it ends");
        assert!(is_recent(&stored.path) && !stored.slot.pending());
    }
}

/// A monitor that is stopped in the middle is not waited for for ever, and does nothing when it goes on.
#[test]
fn who_lost_patience_has_the_last_word() {
    let stored = Stored::new();
    let program = stored.sets_times();
    once_at(Point::Taken, move || {
        let thread = std::thread::spawn(program);
        thread.join().expect("it does not wait for ever");
    });
    assert_eq!(stored.settle(), Settled::Later);
    stored.has_the_programs_time();
}

/// What is stored after somebody has lost patience is marked anew, and that mark is not the monitor's that goes on.
#[test]
fn a_monitor_that_was_stopped_takes_no_newer_mark() {
    let stored = Stored::new();
    let (program, slot) = (stored.sets_times(), stored.slot);
    once_at(Point::Ours, move || {
        let thread = std::thread::spawn(move || {
            program();
            slot.stored_now();
        });
        thread.join().expect("it does not wait for ever");
    });
    assert_eq!(stored.settle(), Settled::Later);
    assert_eq!(modified(&stored.path), old());
    assert_eq!(stored.settle(), Settled::Advanced);
    assert!(is_recent(&stored.path));
}

/// What a monitor has left that died over it is not forgotten by its successor that is held up.
#[test]
fn what_the_dead_have_left_is_not_forgotten_by_who_is_late() {
    let stored = Stored::new();
    act(|now| assert!(now != Point::Taken, "and dies"));
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stored.settle()));
    assert!(died.is_err() && !stored.slot.pending());
    once_at(Point::Ours, || {
        std::thread::sleep(crate::registry::settle::PROMPT + Duration::from_millis(100));
    });
    assert_eq!(stored.settle(), Settled::Later);
    assert_eq!(stored.settle(), Settled::Advanced);
    assert!(is_recent(&stored.path));
}

/// One that was held up, and nobody came, puts back what it took.
#[test]
fn a_settlement_that_is_late_is_made_by_the_next() {
    let stored = Stored::new();
    once_at(Point::Taken, || {
        std::thread::sleep(crate::registry::settle::PROMPT + Duration::from_millis(100));
    });
    assert_eq!(stored.settle(), Settled::Later);
    assert_eq!(modified(&stored.path), old());
    assert_eq!(stored.settle(), Settled::Advanced);
    assert!(is_recent(&stored.path));
}

/// A monitor died in the middle. The next one makes up for it, unless the process has: it waits for the next as for the first.
#[test]
fn what_a_dead_monitor_left_is_settled_once() {
    let interrupted = || {
        let stored = Stored::new();
        once_at(Point::Taken, || panic!("it dies"));
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stored.settle()));
        assert!(died.is_err());
        act(|_| {});
        stored
    };
    let left = interrupted();
    assert_eq!(left.settle(), Settled::Advanced);
    assert!(is_recent(&left.path));

    let waiting = interrupted();
    let threads = meanwhile(Point::Looked, waiting.sets_times());
    assert_eq!(waiting.settle(), Settled::Advanced);
    threads.recv().expect("a thread").join().expect("it ends");
    waiting.has_the_programs_time();

    let overtaken = interrupted();
    overtaken.sets_times()();
    overtaken.has_the_programs_time();

    let just_overtaken = interrupted();
    let program = just_overtaken.sets_times();
    once_at(Point::Looked, program);
    assert_eq!(just_overtaken.settle(), Settled::Later);
    just_overtaken.has_the_programs_time();
}
