//! All orderings relaxed, and no fences.

mod atomic {
    pub use loom::sync::atomic::Ordering;
    use loom::sync::atomic::Ordering::Relaxed;

    pub const SEATS: usize = 1;

    pub fn looks_free(_: &AtomicBool) -> bool {
        true
    }

    pub fn pause(tries: &mut u32) {
        super::super::pause(tries);
    }

    pub fn fence(_: Ordering) {}

    macro_rules! forgetful {
        ($($name:ident: $value:ty),*) => {$(
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }
                pub fn load(&self, _: Ordering) -> $value {
                    self.0.load(Relaxed)
                }
                pub fn store(&self, value: $value, _: Ordering) {
                    self.0.store(value, Relaxed);
                }
                pub fn swap(&self, value: $value, _: Ordering) -> $value {
                    self.0.swap(value, Relaxed)
                }
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    _: Ordering,
                    _: Ordering,
                ) -> Result<$value, $value> {
                    self.0.compare_exchange(old, new, Relaxed, Relaxed)
                }
            }
        )*};
    }
    forgetful!(AtomicBool: bool, AtomicU32: u32, AtomicU64: u64);

    macro_rules! counters {
        ($($name:ident: $value:ty),*) => {$(
            impl $name {
                pub fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                    self.0.fetch_add(value, Relaxed)
                }
                pub fn fetch_sub(&self, value: $value, _: Ordering) -> $value {
                    self.0.fetch_sub(value, Relaxed)
                }
            }
        )*};
    }
    counters!(AtomicU32: u32, AtomicU64: u64);
}
#[path = "../../src/staged/board.rs"]
mod board;
#[path = "../../src/staged/reuse.rs"]
mod reuse;
include!("models.rs");
