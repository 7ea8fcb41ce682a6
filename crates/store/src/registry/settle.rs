//! Advancing a file's modification time after stores through a mapping.
//!
//! On tmpfs such stores never advance it, and tools that compare times would miss the change. The mark in
//! the header says that a file is behind. Whoever settles takes the mark **before** he takes the time: stores
//! that come later set the mark again.
//!
//! The process and the monitor both settle, and what the process does next may be to set the times itself
//! (`utimens`). So when it has settled a file, no settlement of earlier stores may come after:
//!
//! - The process takes the mark, moves the slot's count of [`taken`](super::layout::Slot::taken) marks, and
//!   *then* looks whether the monitor is [`settling`](super::layout::Header::settling). If so it waits.
//! - The monitor notes the count, looks at the mark, shows that it is settling, and *then* looks whether the
//!   count has moved. If so it does nothing; else the process, if it comes now, sees it and waits.
//!
//! A monitor that is dead or stopped is waited for for [`PATIENCE`]. Then the process takes over what it left. A monitor
//! that goes on after so long a time sees the clock, and that it was overtaken ([`PROMPT`]).

use core::sync::atomic::Ordering;
use core::time::Duration;

use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::slot::FileSlot;
use super::{FileId, sys};
use crate::clock;

/// How long the process waits for a monitor that has begun to settle. One that is stopped must not stop the program.
const PATIENCE: Duration = Duration::from_secs(2);

/// A monitor that finds itself held up for longer than this has not advanced the time, and does not do it any more: so
/// much shorter than [`PATIENCE`] that nobody who waited has gone on without it.
pub(crate) const PROMPT: Duration = Duration::from_secs(1);

/// Looks at a settlement under way before the process sleeps in between: it takes the monitor a few system calls.
const SPINS: u32 = 200;

/// How long it sleeps.
const PAUSE: Duration = Duration::from_micros(50);

/// Settlements of monitors that are waited for, one after the other, while others go on storing.
const ROUNDS: u32 = 8;

/// Settles through the descriptor the caller has at hand. Returns whether the time was advanced. Settlements of the
/// monitor for what was stored before are over, or never come.
pub(super) fn by_descriptor(handle: &FileSlot, fd: RawFd) -> bool {
    let Some(fd) = sys::borrow(fd) else {
        return false;
    };
    if !take(handle) {
        return false;
    }
    let advanced = advance(fd).is_ok();
    if advanced {
        handle.note_settled();
    } else {
        handle.pending_word().store(1, Ordering::Release);
    }
    advanced
}

/// Settles through the descriptor number in the slot, if it still leads to the slot's file.
pub(super) fn by_recorded_descriptor(handle: &FileSlot) -> bool {
    let fd = handle.slot.fd.load(Ordering::Relaxed);
    let Some(borrowed) = sys::borrow(fd) else {
        return false;
    };
    let same = rustix::fs::fstat(borrowed).is_ok_and(|stat| {
        let id = FileId {
            dev: stat.st_dev,
            ino: stat.st_ino,
        };
        id == FileId::recorded(handle.slot)
    });
    same && by_descriptor(handle, fd)
}

/// Takes the mark from whoever else might, and says whether the caller has to advance the time for it.
fn take(handle: &FileSlot) -> bool {
    let mut owed = false;
    for _ in 0..ROUNDS {
        owed |= take_mark(handle);
        match wait_for_monitor(handle) {
            Monitor::Away => break,
            // What it could not do it has put back.
            Monitor::Done => {}
            Monitor::Stuck => {
                handle.settling_word().store(0, Ordering::SeqCst);
                handle.note_taken();
                owed = true;
            }
        }
    }
    owed
}

fn take_mark(handle: &FileSlot) -> bool {
    let mark = handle.pending_word();
    let taken = mark.load(Ordering::SeqCst) != 0 && mark.swap(0, Ordering::SeqCst) != 0;
    if taken {
        handle.note_taken();
    }
    taken
}

/// What the monitor was found doing.
enum Monitor {
    Away,
    Done,
    Stuck,
}

fn wait_for_monitor(handle: &FileSlot) -> Monitor {
    let is_away = || handle.settling_word().load(Ordering::SeqCst) == 0;
    if is_away() {
        return Monitor::Away;
    }
    #[cfg(test)]
    planted::waits();
    for _ in 0..SPINS {
        core::hint::spin_loop();
        if is_away() {
            return Monitor::Done;
        }
    }
    let begun = clock::steady();
    while clock::steady().saturating_sub(begun) < PATIENCE.as_nanos() as u64 {
        adit_pmem::rest(PAUSE);
        if is_away() {
            return Monitor::Done;
        }
    }
    Monitor::Stuck
}

/// Sets the modification time to now and leaves the access time alone; where only the owner may do
/// that, whoever may write the file may still set both.
pub(crate) fn advance(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    match rustix::fs::futimens(fd, &times(UTIME_OMIT, UTIME_NOW)) {
        Err(Errno::PERM | Errno::ACCESS) => rustix::fs::futimens(fd, &times(UTIME_NOW, UTIME_NOW)),
        other => other,
    }
}

/// A pair of special times.
pub(crate) fn times(access: i64, modification: i64) -> Timestamps {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    Timestamps {
        last_access: special(access),
        last_modification: special(modification),
    }
}

/// What a test is told of a settlement.
#[cfg(test)]
pub(crate) mod planted {
    use std::cell::RefCell;

    type Act = Box<dyn FnMut()>;

    thread_local! {
        static ACT: RefCell<Option<Act>> = const { RefCell::new(None) };
    }

    /// Does something whenever this thread begins to wait for a monitor.
    pub(crate) fn when_it_waits(work: impl FnMut() + 'static) {
        ACT.set(Some(Box::new(work)));
    }

    pub(super) fn waits() {
        ACT.with_borrow_mut(|act| {
            if let Some(act) = act {
                act();
            }
        });
    }
}
