//! Direct access to memory that persists: medium detection, mapping, guarded and streaming copies,
//! write-back and fences, and the seam ([`Medium`]) under which the simulated medium sits.
//!
//! Nothing in this crate calls libc for I/O, and everything that the preloaded library needs on its
//! fast path or in a signal handler ([`copy`], [`fault`], [`flush`], [`map::Window`]) neither
//! allocates nor locks nor uses thread-local storage.

mod arch;
pub mod copy;
pub mod cpu;
pub mod fault;
pub mod flush;
pub mod map;
mod medium;

pub use copy::{Fault, GUARDED};
pub use medium::{Medium, OutOfRange};
mod tmp;
pub use tmp::*;
