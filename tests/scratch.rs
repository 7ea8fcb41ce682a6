//! Where tests put their files, and what that place is. The tests of each crate include this file.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use adit_pmem::MediumKind;

/// The directory that the lab names, on the medium that it wants to have tested.
pub(crate) fn named() -> Option<PathBuf> {
    std::env::var_os("ADIT_TEST_SCRATCH").map(PathBuf::from)
}

/// Where files lie: in memory, unless the lab names another place.
pub(crate) fn place() -> PathBuf {
    named().unwrap_or_else(|| "/dev/shm".into())
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
