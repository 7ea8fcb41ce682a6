//! Pools on media in memory, simulated and plain, all in one program: each program compiles the whole engine for its
//! media anew. No test here may depend on what its process is, has or shares: such a one goes into a program of its own,
//! beside this.

mod basics;
#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod deaths;
mod entries;
mod format;
mod hostile;
mod kept;
mod leaving;
mod memory;
mod pools;
#[path = "../replay/mod.rs"]
mod replay;
mod rings;
mod walk;
