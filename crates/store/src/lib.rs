//! The engine: direct files, staging, publishing, the registry and the monitor.

mod clock;
pub mod direct;
pub mod elf;
pub mod monitor;
pub mod pools;
pub mod recovery;
pub mod registry;
pub mod staged;
#[cfg(test)]
mod testing;
