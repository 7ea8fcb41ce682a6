//! Threads for what takes long, so that the main thread always answers and never lets an opener wait
//! for another file.
//!
//! Each piece of work has a thread of its own. The kernel may refuse one: the user's processes have reached their
//! limit, which a monitor that runs is held to like all of them. Then the work waits for one of the threads that
//! were made before the monitor served, and where there is none of these either, the main thread does it:
//! nothing that was asked for is ever dropped.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd as _;
use rustix::io::Errno;

use crate::registry::sys::Fd;

/// Threads that are there from the start: one may be in the middle of something long, a recovery say.
const STANDING: usize = 2;

/// Whether somebody is kept waiting by a piece of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// An opener, or a program that waits for its answer.
    Awaited,
    /// Nobody.
    Whenever,
    /// Nobody so far: [`Workers::hurry`] says by this number when somebody is.
    Yet(u64),
}

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// Threads, and what they report when they are done.
pub(super) struct Workers<T> {
    shared: Arc<Shared<T>>,
    receiver: Receiver<T>,
    /// How many threads are there from the start.
    standing: usize,
    /// The kernel has given none for what was started last.
    few: Cell<bool>,
}

struct Shared<T> {
    wake: Fd,
    sender: Sender<T>,
    waiting: Mutex<Waiting<T>>,
    more: Condvar,
}

/// Work that got no thread of its own.
struct Waiting<T> {
    awaited: VecDeque<Job<T>>,
    whenever: VecDeque<(Option<u64>, Job<T>)>,
    /// Nothing will be added.
    over: bool,
}

impl<T> Waiting<T> {
    fn next(&mut self) -> Option<Job<T>> {
        let first = self.awaited.pop_front();
        first.or_else(|| self.whenever.pop_front().map(|(_, job)| job))
    }

    fn hurry(&mut self, number: u64) {
        let known = |(other, _): &(Option<u64>, Job<T>)| *other == Some(number);
        let place = self.whenever.iter().position(known);
        let job = place.and_then(|place| self.whenever.remove(place));
        self.awaited.extend(job.map(|(_, job)| job));
    }
}

impl<T: Send + 'static> Workers<T> {
    /// Makes those that stay. They inherit the signals that the calling thread blocks, which must not reach them.
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (sender, receiver) = channel();
        let waiting = Waiting {
            awaited: VecDeque::new(),
            whenever: VecDeque::new(),
            over: false,
        };
        let shared = Arc::new(Shared {
            wake: Fd::new(eventfd(0, flags)?),
            sender,
            waiting: Mutex::new(waiting),
            more: Condvar::new(),
        });
        let stay = |_: &usize| {
            let shared = Arc::clone(&shared);
            spawn(move || shared.stay())
        };
        let standing = (0..STANDING).take_while(stay).count();
        Ok(Self {
            shared,
            receiver,
            standing,
            few: Cell::new(false),
        })
    }

    /// Whether there were no other threads than these when one was wanted last.
    pub(super) fn are_few(&self) -> bool {
        self.few.get()
    }

    /// Readable when something is reported.
    pub(super) fn wake(&self) -> &Fd {
        &self.shared.wake
    }

    /// Has `work` done, in a thread of its own if the kernel gives one. It is done in any case.
    pub(super) fn start(&self, haste: Haste, work: impl FnOnce() -> T + Send + 'static) {
        // A thread that cannot be made takes what it was given with it, so the work is not given but left here.
        let left: Arc<Mutex<Option<Job<T>>>> = Arc::new(Mutex::new(Some(Box::new(work))));
        let (shared, found) = (Arc::clone(&self.shared), Arc::clone(&left));
        let started = spawn(move || {
            let own = lock(&found).take();
            if let Some(job) = own {
                shared.run(job);
            }
            // There are threads again: what waits need not wait for those that stay.
            shared.help();
        });
        self.few.set(!started);
        if started {
            return;
        }
        let Some(job) = lock(&left).take() else {
            return;
        };
        if self.standing == 0 {
            self.shared.run(job);
            return;
        }
        let mut waiting = lock(&self.shared.waiting);
        match haste {
            Haste::Awaited => waiting.awaited.push_back(job),
            Haste::Whenever => waiting.whenever.push_back((None, job)),
            Haste::Yet(number) => waiting.whenever.push_back((Some(number), job)),
        }
        drop(waiting);
        self.shared.more.notify_one();
    }

    /// By now somebody is kept waiting by this work, which may have begun.
    pub(super) fn hurry(&self, number: u64) {
        lock(&self.shared.waiting).hurry(number);
    }

    /// What was reported since the last time.
    pub(super) fn reports(&self) -> Vec<T> {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.shared.wake.as_fd(), &mut count);
        self.receiver.try_iter().collect()
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        lock(&self.shared.waiting).over = true;
        self.shared.more.notify_all();
    }
}

/// How often a report is announced when the kernel does not take the word.
const WAKES: usize = 8;

impl<T> Shared<T> {
    fn run(&self, job: Job<T>) {
        // The main thread is there as long as the process is.
        let _ = self.sender.send(job());
        // Nothing else would tell the main thread, which may sleep for an hour.
        let told = || rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes()).is_ok();
        let _ = (0..WAKES).any(|_| told());
    }

    /// Does what waits.
    fn help(&self) {
        loop {
            let next = lock(&self.waiting).next();
            match next {
                Some(job) => self.run(job),
                None => return,
            }
        }
    }

    /// Does what waits, for as long as something may come.
    fn stay(&self) {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(job) = waiting.next() {
                drop(waiting);
                self.run(job);
                waiting = lock(&self.waiting);
            } else if waiting.over {
                return;
            } else {
                let woken = self.more.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// No work is done under these locks, so none is left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the kernel gave a thread.
fn spawn(run: impl FnOnce() + Send + 'static) -> bool {
    #[cfg(test)]
    if planted::is_at_the_limit() {
        return false;
    }
    std::thread::Builder::new().spawn(run).is_ok()
}

/// The kernel at its limit of processes, to which root is not held.
#[cfg(test)]
pub(super) mod planted {
    use core::sync::atomic::{AtomicU32, Ordering};

    static LEFT: AtomicU32 = AtomicU32::new(u32::MAX);

    /// From now on so many threads can be made.
    pub(in crate::monitor) fn threads_left(threads: u32) {
        LEFT.store(threads, Ordering::Relaxed);
    }

    pub(super) fn is_at_the_limit() -> bool {
        let take = |left: u32| match left {
            u32::MAX => None,
            left => left.checked_sub(1),
        };
        let taken = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken == Err(0)
    }
}
