//! A process in which nobody handles faults, or not in each thread: alone, as handlers are all of a process's.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

#[path = "../../../tests/scratch.rs"]
mod scratch;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use adit_pmem::{CachedMedium, MIRROR_TAIL, MappedMedium, Medium, Persistence, Reopen, fault};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const TABLES: u64 = 4096;
const SIZE: u64 = 64 << 10;

/// The thread that survives no fault.
static THREAD: OnceLock<ThreadId> = OnceLock::new();

/// Opens the file, and counts.
struct Opener(PathBuf, Arc<AtomicU64>);

impl Reopen for Opener {
    fn reopen(&self) -> Result<(OwnedFd, u64), Errno> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok((open(&self.0)?, SIZE))
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDWR, Mode::empty())
}

fn map(path: &Path, size: u64, persistence: Persistence) -> MappedMedium {
    std::fs::write(path, vec![0; size as usize]).expect("file");
    MappedMedium::new(open(path).expect("open"), persistence, 1 << 20).expect("map")
}

/// A store to a mapped page for which a file system finds no space ends a process that does not handle it; a write says so.
#[test]
fn where_no_fault_is_survived_all_is_written() {
    let dir = scratch::named().unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let dir = dir.join(format!("unhandled-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("directory");
    let opened = Arc::new(AtomicU64::new(0));
    let opener = Opener(dir.join("file"), Arc::clone(&opened));
    let file = map(&dir.join("file"), SIZE, Persistence::Cached);
    let mirror = map(&dir.join("mirror"), TABLES + MIRROR_TAIL, Persistence::Ram);
    let medium = CachedMedium::new(file, mirror, TABLES, Box::new(opener)).expect("medium");
    let written = || {
        let before = opened.load(Ordering::Relaxed);
        for _ in 0..5 {
            medium.write_streaming(TABLES, &[1; 64]).expect("write");
        }
        opened.load(Ordering::Relaxed) - before
    };
    assert!(!fault::is_survived());
    assert_eq!(written(), 5);
    fault::install().expect("handlers");
    assert_eq!(written(), 0, "so many are waiting for a sync by now");
    // As of a thread that has the signals blocked.
    let me = std::thread::current().id();
    THREAD.set(me).expect("once");
    fault::is_survived_if(|| THREAD.get() != Some(&std::thread::current().id()));
    assert_eq!(written(), 5);
    let other = std::thread::scope(|scope| scope.spawn(written).join());
    assert_eq!(other.expect("thread"), 0);
    std::fs::remove_dir_all(&dir).expect("gone");
}
