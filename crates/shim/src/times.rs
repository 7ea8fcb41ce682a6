//! File times.
//!
//! A store through a mapping does not advance a tmpfs file's times, and `rsync` then skips the file
//! (PROTOCOLS F7). So a promoted description remembers that it stored, and its times are brought up
//! to date before anything could look: `stat` and its family, `fsync`, close, exec, exit; for
//! everybody else within a second, by the monitor.

use crate::ofd;
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

/// Before a call that reads, sets or makes durable any file's times.
pub(crate) extern "C" fn settle_all() {
    if PENDING.load(Ordering::SeqCst) != 0 {
        ofd::each_promoted(|fd, ofd| ofd.settle(fd));
    }
}
