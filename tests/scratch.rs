//! Where tests put their files, and what that place is. The tests of each crate include this file.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_pmem::MediumKind;

/// The directory that the lab names, on the medium that it wants to have tested.
pub(crate) fn named() -> Option<PathBuf> {
    std::env::var_os("ADIT_TEST_SCRATCH").map(PathBuf::from)
}

/// Where files lie: in memory, unless the lab names another place.
pub(crate) fn place() -> PathBuf {
    named().unwrap_or_else(|| "/dev/shm".into())
}

/// How many times as long everything takes here, as the lab says of a slow processor.
pub(crate) fn patience() -> u32 {
    let patience = std::env::var("ADIT_TEST_PATIENCE").ok();
    patience.map_or(1, |times| times.parse().expect("a number"))
}

/// A time limit, usually of so many seconds, that only keeps a test from hanging.
pub(crate) fn limit(usual: u32) -> Duration {
    Duration::from_secs(1) * usual * patience()
}

/// The same for `timeout(1)`.
pub(crate) fn seconds(usual: u32) -> String {
    limit(usual).as_secs().to_string()
}

/// The medium of the place.
pub(crate) fn medium() -> MediumKind {
    medium_of(&place())
}

/// Whether nothing at the place waits for a disk, and whatever can be is staged there: a tmpfs, or DAX.
pub(crate) fn is_memory() -> bool {
    medium() != MediumKind::Cached
}

/// A directory behind a page cache: what the lab names, or where the build lies, if that is one.
pub(crate) fn disk(build: &str) -> Option<PathBuf> {
    let dir = named().unwrap_or_else(|| build.into());
    let kind = medium_of(&dir);
    if kind != MediumKind::Cached {
        println!("skipped: it concerns a page cache, and this medium is {kind}");
    }
    (kind == MediumKind::Cached).then_some(dir)
}

/// Whether files at the place lie in a tmpfs, and their pools elsewhere.
pub(crate) fn is_tmpfs() -> bool {
    medium() == MediumKind::Ram
}

/// The medium of a directory, as a file in it has it: a directory is never mapped.
pub(crate) fn medium_of(dir: &Path) -> MediumKind {
    use rustix::fs::{Mode, OFlags};
    let dir = dir.as_os_str().as_bytes();
    let file = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR);
    let opened = file.or_else(|_| rustix::fs::open(dir, OFlags::RDONLY, Mode::empty()));
    adit_pmem::detect::medium_of(opened.expect("the directory for tests")).kind
}
