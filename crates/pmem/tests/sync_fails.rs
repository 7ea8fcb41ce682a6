//! A kernel sync of a file behind the page cache that fails. Alone in its process: the failure is an address
//! of the file's mapping at which nothing is mapped any more, and no other thread may put something there.
//!
//! # Safety
//!
//! The unsafe code unmaps a page of a mapping that is forgotten afterwards, and never reads it.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

#[path = "../../../tests/scratch.rs"]
mod scratch;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use adit_pmem::{CachedMedium, MIRROR_TAIL, MappedMedium, Medium, Persistence, Reopen};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const TABLES: u64 = 4096;
const PAGE: usize = 4096;

struct Opener(PathBuf);

impl Reopen for Opener {
    fn reopen(&self) -> Result<(OwnedFd, u64), Errno> {
        let fd = open(&self.0);
        let size = rustix::fs::fstat(&fd)?.st_size as u64;
        Ok((fd, size))
    }
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDWR, Mode::empty()).expect("open")
}

/// A file of this many pages, mapped.
fn file(dir: &Path, name: &str, pages: u64) -> MappedMedium {
    let path = dir.join(name);
    if !path.exists() {
        std::fs::write(&path, vec![0; pages as usize * PAGE]).expect("file");
    }
    MappedMedium::new(open(&path), Persistence::Cached, 1 << 20).expect("map")
}

fn medium(dir: &Path) -> CachedMedium {
    let mirror = file(dir, "mirror", (TABLES + MIRROR_TAIL) / PAGE as u64);
    let opener = Opener(dir.join("file"));
    CachedMedium::new(file(dir, "file", 8), mirror, TABLES, Box::new(opener)).expect("medium")
}

/// Where the mappings of a file begin.
fn addresses(path: &Path) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let name = path.to_str().expect("name");
    let mine = maps.lines().filter(|line| line.ends_with(name));
    mine.map(|line| usize::from_str_radix(line.split_once('-').expect("range").0, 16))
        .collect::<Result<_, _>>()
        .expect("address")
}

#[test]
fn a_sync_that_fails_is_neither_forgotten_nor_believed_by_others() {
    let dir = scratch::named().unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let dir = dir.join(format!("sync-fails-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("directory");
    let path = dir.join("file");
    let one = medium(&dir);
    let [address] = addresses(&path)[..] else {
        panic!("one mapping");
    };
    let mirror = file(&dir, "mirror", 0);
    let covered = || mirror.load(TABLES + 128).expect("count");
    one.begin_anew().expect("begin");
    one.fence();
    assert_eq!((one.sound(), covered()), (Ok(()), 1));
    // Somebody died in the middle of a write: every fence asks the kernel from now on.
    mirror.store(TABLES, 2).expect("count");
    let died = medium(&dir);
    let mut theirs = addresses(&path);
    theirs.retain(|at| *at != address);
    unmap(theirs[0]);
    died.fence();
    assert!(died.sound().is_err(), "the fence was spared");
    // Nobody died; the write is one that the fence has to cover.
    mirror.store(TABLES, 1).expect("count");
    one.store(8, 7).expect("store");
    one.write_streaming(TABLES, &[1; 64]).expect("write");
    unmap(address);
    one.fence();
    assert!(one.sound().is_err());
    assert_eq!(covered(), 1, "another process would spare its own fence");
    assert!(one.write_streaming(TABLES, &[2; 64]).is_err());
    assert!(one.flush(8, 8).is_err());
    let found = std::fs::read(&path).expect("read");
    assert_eq!((found[8], found[TABLES as usize]), (0, 1));
    std::mem::forget((one, died));
    std::fs::remove_dir_all(&dir).expect("remove");
}

/// Takes the second page of a mapping away.
fn unmap(address: usize) {
    let page = std::ptr::without_provenance_mut(address + PAGE);
    // SAFETY: see the module; the test reads and writes nothing there but by descriptors.
    unsafe { rustix::mm::munmap(page, PAGE) }.expect("unmap");
}
