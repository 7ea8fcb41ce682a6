//! The engine: direct files, staging, publishing, monitor.

pub mod registry;
#[cfg(test)]
mod testing;
