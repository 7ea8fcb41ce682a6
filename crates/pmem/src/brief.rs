//! Descriptors of our own files that are open for a moment: programs close, count and pass on descriptors as they like,
//! so none is kept.
//!
//! Other threads of the program go on meanwhile, and two things must not happen. A child that one of them forks would keep
//! what is open just then, or mapped and not yet kept out of children, and with it locks and the right to write; so a
//! fork waits until nothing is ([`before_fork`]), and nothing is opened while it lasts. And where the program has closed a
//! standard descriptor, ours would get its number, and what another thread says there would go into our file
//! ([`above_standard`]).
//!
//! # Safety
//!
//! The one unsafe block names descriptors by their numbers, to ask whether they are open.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::gettid;

/// Descriptors that are open, and those that are about to be.
static OPEN: AtomicU32 = AtomicU32::new(0);
/// The thread that forks, or zero, and how often it does: handlers that run in it may.
static FORKING: AtomicI32 = AtomicI32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often each waits for the other, and how long between: a tenth of a second or two. A fork may need what a thread
/// has that waits for its end; a child that keeps a descriptor is better than a program that stands still.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(50);

/// While it lives no process is forked. Who has one opens no second.
#[derive(Debug)]
pub struct Brief(());

/// To be had before a descriptor is opened, and until it is closed; and from before a mapping is made until it is kept out
/// of children.
#[must_use]
pub fn begin() -> Brief {
    for _ in 0..TRIES {
        OPEN.fetch_add(1, Ordering::SeqCst);
        let forking = FORKING.load(Ordering::SeqCst);
        if forking == 0 || forking == gettid().as_raw_nonzero().get() {
            return Brief(());
        }
        one_less();
        crate::rest(PAUSE);
    }
    OPEN.fetch_add(1, Ordering::SeqCst);
    Brief(())
}

impl Drop for Brief {
    fn drop(&mut self) {
        one_less();
    }
}

/// In a child that nobody told of its fork what was counted may be the parent's.
fn one_less() {
    let less = |open: u32| open.checked_sub(1);
    let _ = OPEN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

/// Before this process is copied: afterwards nothing is open until [`after_fork`].
pub fn before_fork() {
    let me = gettid().as_raw_nonzero().get();
    for _ in 0..TRIES {
        match FORKING.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst) {
            Err(other) if other != me => crate::rest(PAUSE),
            _ => break,
        }
    }
    FORKS.fetch_add(1, Ordering::SeqCst);
    for _ in 0..TRIES {
        if OPEN.load(Ordering::SeqCst) == 0 {
            break;
        }
        crate::rest(PAUSE);
    }
}

/// Whether this process is about to be copied.
#[must_use]
pub fn is_forking() -> bool {
    FORKING.load(Ordering::SeqCst) != 0
}

/// Afterwards, in the parent.
pub fn after_fork() {
    // A child that a handler has made in the middle of its parent's fork begins at nothing.
    let less = |forks: u32| forks.checked_sub(1);
    let before = FORKS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    if before.is_err() || before == Ok(1) {
        FORKING.store(0, Ordering::SeqCst);
    }
}

/// In the child, whose only thread has nothing open.
pub fn in_child() {
    OPEN.store(0, Ordering::SeqCst);
    FORKS.store(0, Ordering::SeqCst);
    FORKING.store(0, Ordering::SeqCst);
}

/// What `open` opens, under a number that is none of the standard descriptors'. Where one of these is free, what can be
/// neither read nor written has it meanwhile.
pub fn above_standard(open: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    let mut places: [Option<OwnedFd>; 3] = [None, None, None];
    if some_is_free() {
        for place in &mut places {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let taken = rustix::fs::open(c"/", flags, Mode::empty())?;
            if taken.as_raw_fd() > 2 {
                break;
            }
            *place = Some(taken);
        }
    }
    let fd = open()?;
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    // Closed just now.
    rustix::io::fcntl_dupfd_cloexec(&fd, 3)
}

/// Whether a standard descriptor is closed: one call for all three, as every write to a pool asks.
fn some_is_free() -> bool {
    // SAFETY: the numbers are only asked about; whoever closes one meanwhile changes the answer, and nothing else.
    let standard = [0, 1, 2].map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    let mut asked = standard.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::empty()));
    let at_once = Timespec::default();
    poll(&mut asked, Some(&at_once)).is_err()
        || asked
            .iter()
            .any(|fd| fd.revents().contains(PollFlags::NVAL))
}
