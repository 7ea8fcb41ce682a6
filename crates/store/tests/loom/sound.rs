//! The real orderings.

mod atomic {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    pub const SEATS: usize = 1;

    pub fn looks_free(_: &AtomicBool) -> bool {
        true
    }

    pub fn pause(tries: &mut u32) {
        super::super::pause(tries);
    }
}
#[path = "../../src/staged/board.rs"]
mod board;
#[path = "../../src/staged/reuse.rs"]
mod reuse;
include!("models.rs");
