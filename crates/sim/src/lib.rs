//! Tests only: storage that loses power on purpose, and programs that are killed on purpose.
//!
//! Four tools, each of which must be able to fail:
//!
//! - [`SimMedium`] and [`World`]: a simulated medium that keeps what programs see apart from what a
//!   crash would leave, exactly as `docs/crash-model.md` says.
//! - [`SimFile`]: the files of a base file system on the same machine, volatile until synced.
//! - [`mod@enumerate`]: runs a workload on it, builds the crash images of every crash point, runs
//!   recovery on each (and crashes inside the recovery too), and asks a judge. A failure prints one
//!   string that [`replay`] turns back into the same state.
//! - [`torture`] and the `adit-torture` binary: real processes, real files, real `SIGKILL`.
#![allow(clippy::disallowed_types)] // Tests only: nothing here runs inside a program.

mod cells;
mod choice;
mod disk;
mod enumerate;
mod files;
mod medium;
mod rng;
mod sequences;
pub mod torture;
mod world;

pub use enumerate::{Config, Failure, Report, enumerate, replay};
pub use files::SimFile;
pub use medium::SimMedium;
pub use rng::Rng;
pub use sequences::sequences;
pub use world::{Crash, History, World};
