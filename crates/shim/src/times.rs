//! File times.
//!
//! A store through a mapping does not advance a tmpfs file's times, and `rsync` then skips the file
//! (PROTOCOLS F7). So a promoted description remembers that it stored, and its times are brought up
//! to date before anything could look: `stat` and its family, `fsync`, close, exec, exit; for
//! everybody else within a second, by the monitor.

use crate::{fds, init};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// How many promoted descriptions have stores that their times do not show. The stubs of the `stat`
/// family look at this word and do nothing more while it is zero.
pub(crate) static PENDING: AtomicU32 = AtomicU32::new(0);

/// In a description's word: it was stored to, and nobody has begun to settle that.
pub(crate) const STORED: u32 = 1;
/// In the same word, above: one thread settles.
pub(crate) const ONE_SETTLES: u32 = 2;

/// Looks at other threads' settlements before the thread sleeps in between, and how often it sleeps then: for a second or
/// two in all, as a thread that left its settlement by a jump out of a signal handler never ends it.
const SPINS: u32 = 200;
const PAUSES: u32 = 10_000;
const PAUSE: Duration = Duration::from_micros(50);

/// Waits until no other thread is settling the description with this word: its call may reach the kernel after whatever the
/// program does next.
pub(crate) fn wait_for_others(word: &AtomicU32) {
    // A thread that is alone interrupted itself.
    if word.load(Ordering::SeqCst) < ONE_SETTLES || init::single_threaded() {
        return;
    }
    for attempt in 0..SPINS + PAUSES {
        if word.load(Ordering::SeqCst) < ONE_SETTLES {
            return;
        }
        if attempt < SPINS {
            core::hint::spin_loop();
        } else {
            adit_pmem::rest(PAUSE);
        }
    }
    word.fetch_and(STORED, Ordering::SeqCst);
}

pub(crate) fn one_more_pending() {
    PENDING.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn one_less_pending() {
    PENDING.fetch_sub(1, Ordering::SeqCst);
}

/// Before a call that reads, sets or makes durable any file's times.
pub(crate) extern "C" fn settle_all() {
    if PENDING.load(Ordering::SeqCst) != 0 {
        fds::each_promoted().for_each(|(fd, ofd)| ofd.settle(fd));
    }
}
