//! The atomics of what a checker of concurrency runs with its own.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Threads that may sit at a board. The others wait until they can go inside.
pub(super) const SEATS: usize = 8;

/// Whether it is worth trying to set the flag: to look disturbs nobody. May be wrong either way.
pub(super) fn looks_free(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed)
}

/// Waits a little, for another thread that is about to do something.
pub(super) fn pause(tries: &mut u32) {
    /// As long as what is waited for takes.
    const SPINS: u32 = 500;
    /// It may wait for the processor that we are using.
    const YIELDS: u32 = SPINS + 200;
    *tries = tries.saturating_add(1);
    if *tries < SPINS {
        std::hint::spin_loop();
    } else if *tries < YIELDS {
        std::thread::yield_now();
    } else {
        // Or for a publisher who has the file's lock, and a device.
        adit_pmem::rest(std::time::Duration::from_micros(50));
    }
}
