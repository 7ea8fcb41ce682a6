//! A lock of one word that threads sleep on in the kernel. A child of `fork` finds it as it was, with whoever held it not
//! there: it has to be seen to.

use core::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::futex;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody may sleep.
const AWAITED: u32 = 2;

/// See the module. All zero: free.
pub(crate) struct Word(AtomicU32);

impl Word {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    pub(crate) fn try_take(&self) -> bool {
        self.0
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    pub(crate) fn take(&self) {
        if !self.try_take() {
            self.wait();
        }
    }

    #[cold]
    pub(crate) fn wait(&self) {
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    pub(crate) fn give_back(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    /// Free again, whoever held it: in a child of `fork`, which has one thread.
    pub(crate) fn renew(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}
