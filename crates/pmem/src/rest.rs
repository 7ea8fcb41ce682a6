//! Waiting for a moment, in whatever program.

use core::time::Duration;

use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};

/// Sleeps that long, whatever signals come. Where the kernel refuses to wait, others get the processor instead: the
/// standard library's sleep panics then, and asks a function of libc's that a preloaded library may have replaced.
pub fn rest(time: Duration) {
    let mut left = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    loop {
        match nanosleep(&left) {
            NanosleepRelativeResult::Ok => return,
            NanosleepRelativeResult::Interrupted(remaining) => left = remaining,
            NanosleepRelativeResult::Err(_) => return std::thread::yield_now(),
        }
    }
}
