//! Advancing a file's modification time after stores through a mapping.
//!
//! On tmpfs such stores never advance it, and tools that compare times would miss the change. The
//! mark in the header says that a file is behind. A settler takes the mark **before** it takes the
//! time: stores that come later set the mark again. Between the two, the monitor shows itself by
//! the `settling` word, because a program that sets the times itself must be able to wait for a
//! settlement that is under way; a settlement that finds out too late puts the program's time back.

use core::sync::atomic::Ordering;

use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::slot::FileSlot;
use super::{FileId, sys};

/// How long a program that sets times waits for the monitor, in steps of [`PAUSE`]. A monitor that
/// is stopped must not stop the program.
const PAUSES: u32 = 100;

/// One step of that wait: long against the settlement of one file.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000,
};

/// Settles through the descriptor the caller has at hand. Returns whether the time was advanced.
pub(super) fn by_descriptor(handle: &FileSlot, fd: RawFd) -> bool {
    let Some(fd) = sys::borrow(fd) else {
        return false;
    };
    let was_pending = handle.pending_word().swap(0, Ordering::SeqCst) != 0;
    // A settlement of the monitor that has taken the mark may not have reached the kernel yet, and
    // the caller is about to promise that the time is right.
    let under_way = handle.settling_word().load(Ordering::SeqCst) != 0;
    if !was_pending && !under_way {
        return false;
    }
    let advanced = advance(fd).is_ok();
    if advanced {
        handle.note_settled();
    } else if was_pending {
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

/// Makes way for times that the program is about to set.
pub(super) fn give_way(handle: &FileSlot, modified: Option<(i64, i64)>) {
    // First: a settlement that has found the mark has looked at the count of these times before that, and finds it
    // changed in the end.
    handle.pending_word().swap(0, Ordering::SeqCst);
    if let Some((seconds, nanoseconds)) = modified {
        handle.note_explicit(seconds, nanoseconds);
    }
    for _ in 0..PAUSES {
        if handle.settling_word().load(Ordering::SeqCst) == 0 {
            return;
        }
        let _ = rustix::thread::nanosleep(&PAUSE);
    }
    // It may be dead: the next one must not settle once more what it has begun. If it lives, it finds the count changed.
    handle.settling_word().store(0, Ordering::SeqCst);
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
