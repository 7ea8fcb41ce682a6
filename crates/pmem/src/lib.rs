//! Direct access to memory that persists: medium detection, mapping, streaming copies, write-back
//! and fences, and the seam ([`Medium`]) under which the simulated medium sits.

mod medium;

pub use medium::{Medium, OutOfRange};
mod tmp;
pub use tmp::*;
