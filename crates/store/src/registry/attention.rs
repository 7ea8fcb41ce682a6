//! Looking for the other side's next word for a moment before sleeping until it comes.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

/// How long either side looks for what comes next before it sleeps: to be woken takes longer than most
/// answers do.
const ATTENTION: Duration = Duration::from_micros(50);

/// Times that are left out, at most, when looking was in vain: where processors are scarce, who looks keeps
/// the other one from answering.
const MOST_LEFT_OUT: u32 = 256;

/// Looking for what comes next, as long as that pays.
pub(crate) struct Attention {
    /// Times left out from now on, and after the next look that is in vain.
    left_out: AtomicU32,
    next: AtomicU32,
}

impl Default for Attention {
    fn default() -> Self {
        Self::new()
    }
}

impl Attention {
    pub(crate) const fn new() -> Self {
        Self {
            left_out: AtomicU32::new(0),
            next: AtomicU32::new(1),
        }
    }

    /// Looks until `here` has something, or it is time to sleep. Of threads that race some look once more or
    /// less.
    pub(crate) fn look<T>(&self, mut here: impl FnMut() -> Option<T>) -> Option<T> {
        let relaxed = Ordering::Relaxed;
        let left_out = self.left_out.load(relaxed);
        if left_out > 0 {
            self.left_out.store(left_out - 1, relaxed);
            return None;
        }
        let begun = Instant::now();
        loop {
            let found = here();
            if found.is_some() {
                self.next.store(1, relaxed);
                return found;
            }
            if begun.elapsed() >= ATTENTION {
                let next = self.next.load(relaxed);
                self.left_out.store(next, relaxed);
                self.next.store((2 * next).min(MOST_LEFT_OUT), relaxed);
                return None;
            }
            core::hint::spin_loop();
        }
    }
}
