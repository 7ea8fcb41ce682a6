//! The engine: direct files, staging, publishing, the registry and the monitor; and what a program's file says of
//! whether the library may be preloaded into it, which both who starts programs and the library ask.

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
