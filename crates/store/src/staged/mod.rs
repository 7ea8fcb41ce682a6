//! Staged files: new bytes beside the old ones, one log record to switch, a publisher to fold them in.
//!
//! A write to a staged file never changes bytes in place. Its bytes are streamed into fresh space of
//! the pool, a 64-byte record under the file's lock says where they belong, and the overlay shows them
//! (`append.rs`). A read takes a consistent list of pieces from the overlay, copies them without any
//! lock, and starts over if the publisher moved meanwhile (`read.rs`). The publisher writes what the
//! committed records amount to into the base file, makes that durable, and retires the records
//! (`publish.rs`, `fold.rs`). The recovery does the same from the log alone, for owners that are gone
//! (`replay.rs`).
//!
//! What holds this together:
//!
//! - **The log is the truth.** The overlay is private to the process and is made again from the log
//!   whenever the log has moved without it: its sequence number says so.
//! - **Nothing is ever overwritten in place**, so no record is falsified and no data CRC goes stale. A
//!   small write takes cache lines, not a page. The one exception are bytes that are relinked, which the
//!   log, the readers and whoever comes after a failure are told of (`relink.rs`).
//! - **Committed before published, durable before retired.** A crash anywhere in a publication is
//!   repaired by publishing again: whatever it wrote is written again by the same records.
//! - **One publisher per file.** It claims the file in the pool; a dead one's claim is taken over.
//!   Two at once would let the slower write old bytes over newer ones that are already retired.
//! - **Space is reused only after every reader that could see it will notice** (the epoch of the
//!   file, `reuse.rs`), and only after this process has taken it out of its overlay. Pages that newer
//!   writes cover are reused before they are published (`recycle.rs`).
//! - **Threads do not hand the lock around**: one of those that want it logs for all (`board.rs`).
//! - **Overwrites may stay in place** where the mode promises nothing for them, on that side of a line
//!   which is fixed as long as the file is staged (`appends.rs`).
//! - **Several programs may have one file staged**, and follow each other's records (`shared.rs`).
//! - **Several files, one instant.** A ring of commit records commits them all or none (`together.rs`).
//!
//! What it leaves to the caller:
//!
//! - **Which files may be staged**, and when they are published: by age, on a broken lease, before a
//!   description is handed over or closed.
//! - **Names**: a base file that was just created needs a sync of its directory before anything of it
//!   is published.
//!
//! `posix` and `atomic` differ in one thing. When one `fsync` is worth more than the pool holds,
//! `posix` publishes what there is and goes on, as the kernel would; `atomic` refuses with `ENOSPC`.

mod append;
mod appends;
mod atomic;
mod board;
mod claim;
mod error;
mod file;
mod fold;
mod kernel;
mod memory;
mod names;
mod overlay;
mod publish;
mod read;
mod recycle;
mod relink;
mod replay;
mod reuse;
mod room;
mod shared;
#[cfg(test)]
mod tests;
mod together;

pub use append::{FARTHEST, Place};
pub use appends::{AppendsOnly, Where};
pub use error::{Error, Result};
pub use file::{Grow, Growth, Mode, Stage, StagedFile};
pub use kernel::KernelFile;
pub(crate) use kernel::forget_cached;
pub use names::{Within, find, handle_of, open_by_name};
pub use overlay::{Overlay, Piece, Source};
pub use publish::{Published, Scope};
pub use relink::{Relink, Relinks};
pub use replay::{Kept, Recovered, Restored, recover};
