//! Direct access to memory that persists: medium detection, mapping, guarded and streaming copies,
//! write-back and fences, and the seam ([`Medium`]) under which the simulated medium sits.
//!
//! Nothing in this crate calls libc for I/O, and everything that the preloaded library needs on its
//! fast path or in a signal handler ([`copy`], [`word`], [`fault`], [`flush`], [`map::Window`],
//! [`detect::medium_of`]) neither
//! allocates nor locks nor uses thread-local storage.

pub mod ahead;
mod arch;
mod base;
pub mod brief;
mod cached;
pub mod copy;
pub mod cpu;
pub mod detect;
pub mod fault;
pub mod flush;
mod limit;
pub mod map;
mod mapped;
mod medium;
pub mod range_lock;
mod rest;
pub mod syscall;
pub mod word;
mod words;

pub use base::BaseFile;
pub use cached::{CachedMedium, FOLIO, MIRROR_TAIL, Reopen, mirror_tail};
pub use copy::{Fault, GUARDED};
pub use detect::{
    MediumKind, is_directory_in_memory, is_disk_fd, is_marked_dax, is_synthetic_fd, kind_of_fd,
};
pub use mapped::{Damage, MappedMedium, MediumError, Persistence};
pub use medium::{Medium, OutOfRange, TransferError};
pub use rest::{Pauses, rest};
pub use words::Words;

/// The kernel's error as people know it; rustix without `std` shows a number.
fn in_words(error: rustix::io::Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.raw_os_error())
}
