//! Which medium a path lies on, and how this processor moves bytes to it.

use std::path::Path;

use serde::Serialize;

use super::probes::Probe;

/// The media, as people see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Medium {
    /// Mounted with DAX; a store is durable after write-back and fence.
    Dax,
    /// Memory: survives processes, not a power cut.
    Ram,
    /// Through the page cache; durable after a kernel sync.
    Cached,
    /// Not served: every call goes to the kernel.
    Passed,
}

impl Medium {
    /// What is written about it.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Dax => (
                "dax",
                "direct access; stores are durable after write-back and fence",
            ),
            Self::Ram => (
                "ram",
                "memory; survives the death of processes, not a power cut",
            ),
            Self::Cached => (
                "cached",
                "through the page cache; durable after a kernel sync",
            ),
            Self::Passed => ("passed through", "not a file system that Adit serves"),
        }
    }
}

const TMPFS: u64 = 0x0102_1994;
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;

/// The medium of `dir`, given what the probes there found.
pub(crate) fn detect(dir: &Path, probes: &[Probe]) -> Medium {
    use std::os::unix::ffi::OsStrExt;
    let Ok(status) = rustix::fs::statfs(dir.as_os_str().as_bytes()) else {
        return Medium::Passed;
    };
    let synchronous = probes.iter().any(|p| p.name == "MAP_SYNC" && p.works);
    match status.f_type as u64 {
        TMPFS => Medium::Ram,
        EXT4 | XFS | BTRFS if synchronous => Medium::Dax,
        EXT4 | XFS | BTRFS => Medium::Cached,
        _ => Medium::Passed,
    }
}

/// The routine for plain copies.
pub(crate) fn copy_routine() -> String {
    "unknown".to_owned()
}

/// The routine for copies past the cache.
pub(crate) fn streaming_routine() -> String {
    "unknown".to_owned()
}

/// The write-back instruction.
pub(crate) fn write_back() -> String {
    "unknown".to_owned()
}
