//! Staged files: new bytes beside the old ones, one log record to switch, a publisher to fold them in.
//!
//! A write to a staged file never changes bytes in place. Its bytes are streamed into fresh space of
//! the pool, a 64-byte record under the file's lock says where they belong, and the overlay shows them
//! (`append.rs`). A read takes a consistent list of pieces from the overlay, copies them without any
//! lock, and starts over if the publisher moved meanwhile (`read.rs`). The publisher writes what the
//! committed records amount to into the base file, makes that durable, and retires the records
//! (`publish.rs`). The recovery does the same from the log alone, for owners that are gone
//! (`replay.rs`).
//!
//! What holds this together:
//!
//! - **The log is the truth.** The overlay is private to the process and is made again from the log
//!   whenever the log has moved without it: its sequence number says so.
//! - **Nothing is ever overwritten in place**, so no record is falsified, no data CRC goes stale and
//!   no mark has to be sealed. A small write takes cache lines, not a page.
//! - **Committed before published, durable before retired.** A crash anywhere in a publication is
//!   repaired by publishing again: whatever it wrote is written again by the same records.
//! - **One publisher per file.** It claims the file in the pool; a dead one's claim is taken over.
//!   Two at once would let the slower write old bytes over newer ones that are already retired.
//! - **Space is reused only after every reader that could see it will notice** (the epoch of the
//!   file), and only after this process has taken it out of its overlay.
//!
//! What it leaves to the caller:
//!
//! - **Which files may be staged**, and when they are published: by age, on a broken lease, before a
//!   description is handed over or closed.
//! - **Pools on `cached` media**: there a fence is not durability. After `fsync`, and after each write in
//!   `sync` and `strict` mode, the pool's own file has to be synced as well.
//! - **Names**: a base file that was just created needs a sync of its directory before anything of it
//!   is published.
//!
//! `posix` and `atomic` differ in one thing. When one `fsync` is worth more than the pool holds,
//! `posix` publishes what there is and goes on, as the kernel would; `atomic` refuses with `ENOSPC`.

mod append;
mod claim;
mod error;
mod file;
mod kernel;
mod overlay;
mod publish;
mod read;
mod replay;
#[cfg(test)]
mod tests;

pub use error::{Error, Result};
pub use file::{Mode, Stage, StagedFile};
pub use kernel::KernelFile;
pub use overlay::{Overlay, Piece, Source};
pub use publish::{Published, RELINK_MIN, Relink, Scope};
pub use replay::{Kept, Recovered, recover};
