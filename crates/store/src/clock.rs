//! Times as one number.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970, of the kernel itself: what a user preloads to give a program another time must not become
/// the time of files. Never that of the last tick, as some kernels have it for files: it could be older than a time that
/// the kernel gave a file before.
#[inline]
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    nanoseconds(now.tv_sec, now.tv_nsec)
}

/// Nanoseconds of the clock that never jumps.
pub(crate) fn steady() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    nanoseconds(now.tv_sec, now.tv_nsec)
}

/// One number out of seconds and nanoseconds; zero when it cannot be expressed.
pub(crate) fn nanoseconds(seconds: i64, nanoseconds: i64) -> u64 {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(nanoseconds).unwrap_or(0))
}
