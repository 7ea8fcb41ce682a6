//! File times.
//!
//! A store through a mapping does not advance a tmpfs file's times, and `rsync` then skips the file
//! (PROTOCOLS F7). So a promoted description remembers that it stored, and its times are brought up
//! to date before anything could look: `stat` and its family, `fsync`, close, exec, exit; for
//! everybody else within a second, by the monitor.

use crate::{ofd, sys};
use core::sync::atomic::{AtomicU32, Ordering};

/// How many promoted descriptions have stores that their times do not show. The stubs of the `stat`
/// family look at this word and do nothing more while it is zero.
pub(crate) static PENDING: AtomicU32 = AtomicU32::new(0);

pub(crate) fn one_more_pending() {
    PENDING.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn one_less_pending() {
    PENDING.fetch_sub(1, Ordering::SeqCst);
}

/// Sets the modification time of `fd` to now and leaves the access time alone.
pub(crate) fn touch(fd: i32) {
    let times = [
        libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_OMIT,
        },
        libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_NOW,
        },
    ];
    let _ = sys::utimensat(fd as usize, 0, times.as_ptr() as usize, 0);
}

/// Before a call that reads, sets or makes durable any file's times.
pub(crate) extern "C" fn settle_all() {
    if PENDING.load(Ordering::SeqCst) != 0 {
        ofd::each_promoted(|fd, ofd| ofd.settle(fd));
    }
}
