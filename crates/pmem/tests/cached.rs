//! A file behind the page cache: what reaches it when, and what happens without a descriptor.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

#[path = "../../../tests/scratch.rs"]
mod scratch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use adit_pmem::detect::medium_of;
use adit_pmem::{
    CachedMedium, MIRROR_TAIL, MappedMedium, Medium, MediumKind, Persistence, Reopen, fault,
    range_lock,
};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const TABLES: u64 = 8192;
const SIZE: u64 = 64 << 10;

/// A file and its mirror, gone with the value; and how often the file was opened to be written.
struct Place(PathBuf, Arc<AtomicU64>);

impl Place {
    fn new(test: &str) -> Self {
        let dir = scratch::named().unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
        let dir = dir.join(format!("cached-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        std::fs::write(dir.join("file"), vec![0; SIZE as usize]).expect("file");
        let tail = TABLES + MIRROR_TAIL;
        std::fs::write(dir.join("mirror"), vec![0; tail as usize]).expect("mirror");
        Self(dir, Arc::default())
    }

    fn map(&self, name: &str, persistence: Persistence) -> MappedMedium {
        let fd = open(&self.0.join(name), OFlags::RDWR).expect("open");
        MappedMedium::new(&fd, persistence, 64 << 20).expect("map")
    }

    /// One process's view, which has descriptors or not.
    fn medium(&self, descriptors: bool) -> CachedMedium {
        self.medium_by(descriptors, OFlags::RDWR)
    }

    /// One process's view, whose descriptors are opened for this.
    fn medium_with(&self, access: OFlags) -> CachedMedium {
        self.medium_by(true, access)
    }

    fn medium_by(&self, descriptors: bool, access: OFlags) -> CachedMedium {
        let opener = Opener {
            path: self.0.join("file"),
            works: AtomicBool::new(descriptors),
            access,
            times: Arc::clone(&self.1),
        };
        let file = self.map("file", Persistence::Cached);
        let mirror = self.map("mirror", Persistence::Ram);
        CachedMedium::new(file, mirror, TABLES, Box::new(opener)).expect("medium")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.0.join("file")).expect("read")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Opener {
    path: PathBuf,
    works: AtomicBool,
    access: OFlags,
    times: Arc<AtomicU64>,
}

impl Reopen for Opener {
    fn reopen(&self) -> Result<(OwnedFd, u64), Errno> {
        if !self.works.load(Ordering::Relaxed) {
            return Err(Errno::MFILE);
        }
        self.times.fetch_add(1, Ordering::Relaxed);
        let fd = open(&self.path, self.access)?;
        let size = rustix::fs::fstat(&fd)?.st_size as u64;
        Ok((fd, size))
    }
}

fn open(path: &std::path::Path, access: OFlags) -> Result<OwnedFd, Errno> {
    use std::os::unix::ffi::OsStrExt as _;
    rustix::fs::open(path.as_os_str().as_bytes(), access, Mode::empty())
}

#[test]
fn table_words_reach_the_file_when_they_are_flushed() {
    let place = Place::new("tables");
    let (one, two) = (place.medium(true), place.medium(true));
    one.begin_anew().unwrap();
    one.store(64, 7).unwrap();
    one.store(72, 8).unwrap();
    assert_eq!(two.load(64), Ok(7), "others see it at once");
    assert_eq!(two.compare_exchange(72, 8, 9), Ok(Ok(8)));
    assert_eq!(place.bytes()[64], 0, "the file does not have it");
    two.flush(64, 8).unwrap();
    assert_eq!(
        place.bytes()[64..80],
        [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    // When nobody is left, what was not flushed is gone.
    one.begin_anew().unwrap();
    assert_eq!((two.load(64), two.load(72)), (Ok(7), Ok(0)));
}

/// Has a word flushed that another description has locked, which waits until it is unlocked; with the file meanwhile.
fn flushed_after(medium: &CachedMedium, place: &Place, other: &OwnedFd) -> Vec<u8> {
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| medium.flush(64, 8));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        let meanwhile = place.bytes();
        range_lock::unlock_all(other).unwrap();
        waits.join().unwrap().unwrap();
        meanwhile
    })
}

/// Somebody has moved the file away, or removed it: what is flushed is still in it, for who finds it where it is now.
#[test]
fn table_words_reach_a_file_that_has_another_name() {
    fault::install().unwrap();
    let place = Place::new("moved");
    let (one, other) = (place.medium(true), place.medium(true));
    one.store(64, 1).expect("store");
    one.flush(64, 8).expect("flush");
    let (file, moved) = (place.0.join("file"), place.0.join("moved"));
    std::fs::rename(&file, &moved).expect("rename");
    let word = || std::fs::read(&moved).expect("read")[64..72].to_vec();
    for value in 2..200_u64 {
        let medium = if value % 2 == 0 { &one } else { &other };
        medium.store(64, value).expect("store");
        medium.flush(64, 8).expect("flush");
        assert_eq!(word(), value.to_le_bytes());
        medium.fence();
        medium.sound().expect("sound");
    }
    // Several at a time: the newest is the last.
    std::thread::scope(|scope| {
        for medium in [&one, &other, &one] {
            scope.spawn(move || {
                for _ in 0..2000 {
                    let mut seen = medium.load(64).expect("load");
                    while let Err(now) = medium.compare_exchange(64, seen, seen + 1).expect("word")
                    {
                        seen = now;
                    }
                    medium.flush(64, 8).expect("flush");
                }
            });
        }
    });
    assert_eq!(word(), (199 + 6000_u64).to_le_bytes());
    assert!(!file.exists());
}

#[test]
fn words_are_found_in_tables_and_in_chunks() {
    let place = Place::new("found");
    let medium = place.medium(true);
    let table = medium.words::<2>(64).expect("words");
    table.store(1, 5).expect("store");
    assert_eq!(medium.load(72), Ok(5));
    assert_eq!(place.bytes()[72], 0, "it was not flushed");
    let chunk = medium.words::<2>(TABLES + 64).expect("words");
    chunk.store(1, 7).expect("store");
    assert_eq!(chunk.load(1), Ok(7));
    assert_eq!(place.bytes()[TABLES as usize + 72], 7);
    let swapped = chunk.compare_exchange(1, 7, 8);
    assert!(swapped.is_err(), "only tables have words that are swapped");
}

/// Many write words back at once, most of them words that nobody else does.
#[test]
fn only_who_writes_the_same_words_back_is_waited_for() {
    let place = Place::new("words");
    let medium = place.medium(true);
    medium.begin_anew().unwrap();
    let other = open(&place.0.join("file"), OFlags::RDWR).unwrap();
    assert_eq!(range_lock::try_lock(&other, 64, 8), Ok(true));
    medium.store(64, 7).unwrap();
    medium.store(512, 8).unwrap();
    medium.flush(512, 8).unwrap();
    assert_eq!(place.bytes()[512], 8);
    let before = place.bytes();
    let meanwhile = flushed_after(&medium, &place, &other);
    assert_eq!((meanwhile, place.bytes()[64]), (before, 7));
    // Who keeps them is not waited for for ever.
    assert_eq!(range_lock::try_lock(&other, 64, 8), Ok(true));
    medium.store(64, 9).unwrap();
    assert!(medium.flush(64, 8).is_err());
}

/// Bytes that somebody is just writing may be seen in the file before the kernel knows that they are to be synced.
#[test]
fn words_that_somebody_is_writing_are_waited_for() {
    let place = Place::new("writing");
    let medium = place.medium(true);
    medium.begin_anew().unwrap();
    let times = || place.1.load(Ordering::Relaxed);
    medium.store(64, 7).unwrap();
    medium.flush(64, 8).unwrap();
    let written = times();
    medium.flush(64, 8).unwrap();
    assert_eq!(times(), written, "nobody is writing, and they are there");
    let mirror = place.map("mirror", Persistence::Ram);
    let begun = mirror.load(TABLES).unwrap();
    mirror.store(TABLES, begun + 1).unwrap();
    let other = open(&place.0.join("file"), OFlags::RDWR).unwrap();
    assert_eq!(range_lock::try_lock(&other, 64, 8), Ok(true));
    flushed_after(&medium, &place, &other);
}

/// Who has no descriptor cannot ask which: he waits for all.
#[test]
fn without_a_descriptor_whoever_writes_is_waited_for() {
    let place = Place::new("any");
    let (medium, without) = (place.medium(true), place.medium(false));
    medium.begin_anew().unwrap();
    medium.store(64, 7).unwrap();
    medium.flush(64, 8).unwrap();
    without.flush(64, 8).unwrap();
    let mirror = place.map("mirror", Persistence::Ram);
    let begun = mirror.load(TABLES).unwrap();
    mirror.store(TABLES, begun + 1).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            ended.store(true, Ordering::SeqCst);
            mirror.store(TABLES + 64, begun + 1).unwrap();
        });
        without.flush(64, 8).unwrap();
        assert!(ended.load(Ordering::SeqCst), "it was waited for");
    });
    // Who never ends is not waited for for ever, and that is no success.
    mirror.store(TABLES, begun + 2).unwrap();
    assert!(without.flush(64, 8).is_err());
}

#[test]
fn chunks_are_in_the_file_at_once_with_descriptors_and_without() {
    let place = Place::new("chunks");
    let one = place.medium(true);
    for (descriptors, at) in [(true, TABLES), (false, TABLES + 5000)] {
        let medium = place.medium(descriptors);
        medium.write_streaming(at, &[5; 3000]).unwrap();
        medium.order();
        let mut seen = [0; 3000];
        one.read(at, &mut seen).unwrap();
        assert_eq!(seen, [5; 3000]);
        assert_eq!(place.bytes()[at as usize..][..3000], [5; 3000]);
        medium.fence();
        assert_eq!(medium.sound(), Ok(()));
    }
    // A table word needs a lock, and that a descriptor: refused, not lost in silence.
    let without = place.medium(false);
    without.store(0, 1).unwrap();
    assert!(without.flush(0, 8).is_err());
}

#[test]
fn a_fence_that_has_nothing_to_sync_asks_nobody() {
    let place = Place::new("fence");
    let (one, two) = (place.medium(true), place.medium(true));
    one.begin_anew().unwrap();
    let mirror = place.map("mirror", Persistence::Ram);
    let synced = || mirror.load(TABLES + 128).unwrap();
    assert_eq!(synced(), 0);
    two.fence();
    assert_eq!(
        synced(),
        1,
        "what was there before is not known to be durable"
    );
    one.write_streaming(TABLES, &[1; 64]).unwrap();
    one.write_streaming(TABLES, &[2; 64]).unwrap();
    assert_eq!(synced(), 1);
    two.fence();
    assert_eq!(synced(), 3, "a fence covers what others wrote");
    // A process that died in the middle of a write: from now on no fence is spared, and none claims more
    // than it covered.
    mirror.store(TABLES, 4).unwrap();
    one.fence();
    assert_eq!(synced(), 3);
    // Whoever comes when nobody is left knows of nothing that it is durable, and of no write that never ended.
    one.begin_anew().unwrap();
    assert_eq!(synced(), 0);
    assert_eq!(mirror.load(TABLES), Ok(1));
    one.fence();
    assert_eq!(synced(), 1);
}

/// Who has mapped the file before it grew does not sync what lies behind that, and does not say so.
#[test]
fn a_fence_covers_what_is_mapped_alone() {
    let place = Place::new("grown");
    let narrow = place.medium(true);
    narrow.begin_anew().unwrap();
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).open(place.0.join("file")).unwrap();
    file.set_len(2 * SIZE).unwrap();
    let wide = place.medium(true);
    let mirror = place.map("mirror", Persistence::Ram);
    let counts = || [0, 64, 128].map(|at| mirror.load(TABLES + at).unwrap());
    narrow.write_streaming(TABLES, &[1; 64]).unwrap();
    narrow.fence();
    assert_eq!(counts(), [2, 2, 2]);
    wide.write_streaming(SIZE + 4096, &[2; 64]).unwrap();
    narrow.fence();
    assert_eq!(counts(), [3, 3, 2], "it has not seen the last one");
    wide.fence();
    assert_eq!(counts(), [3, 3, 3]);
}

/// A write that failed may have changed the file, so it never counts as ended: a fence that others make is not
/// taken to have covered it.
#[test]
fn a_write_that_failed_has_not_ended() {
    let place = Place::new("failed");
    let medium = place.medium_with(OFlags::RDONLY);
    medium.begin_anew().unwrap();
    medium.fence();
    assert!(medium.write_streaming(TABLES, &[1; 64]).is_err());
    // Without the right to write it gets no lock, so this one does not even begin.
    medium.store(64, 7).unwrap();
    assert!(medium.flush(64, 8).is_err());
    medium.fence();
    let mirror = place.map("mirror", Persistence::Ram);
    let counts = [0, 64, 128].map(|at| mirror.load(TABLES + at).unwrap());
    assert_eq!(counts, [2, 1, 1], "begun, ended, covered");
}

/// What a sync that failed did not write is clean for the kernel, which tells each opener once. If others believed their
/// bytes covered because somebody synced later, they would acknowledge what is lost.
#[test]
fn after_a_sync_that_failed_nobody_is_spared_one() {
    let place = Place::new("unsynced");
    let (one, other) = (place.medium(true), place.medium(true));
    one.begin_anew().unwrap();
    one.fence();
    one.write_streaming(TABLES, &[1; 64]).unwrap();
    // A range that is not mapped as a whole cannot be synced.
    let page = other.mapped().address(TABLES, 4096).unwrap();
    // SAFETY: the page is the medium's own, which is not used or dropped any more.
    #[allow(unsafe_code, reason = "a sync has to fail")]
    unsafe { rustix::mm::munmap(page.cast(), 4096) }.unwrap();
    other.fence();
    assert!(other.sound().is_err());
    assert!(other.write_streaming(TABLES, &[2; 64]).is_err());
    std::mem::forget(other);
    let third = place.medium(true);
    third.fence();
    assert_eq!((one.sound(), third.sound()), (Ok(()), Ok(())));
    let mirror = place.map("mirror", Persistence::Ram);
    let counts = [0, 64, 128].map(|at| mirror.load(TABLES + at).unwrap());
    assert_eq!(counts, [3, 2, 2], "begun, ended, covered: never even again");
}

#[test]
fn a_file_that_was_cut_short_is_an_error_and_stays_short() {
    let place = Place::new("cut");
    let medium = place.medium(true);
    let file = std::fs::File::options()
        .write(true)
        .open(place.0.join("file"));
    file.unwrap().set_len(TABLES + 4096).unwrap();
    assert!(medium.write_streaming(TABLES + 8192, &[1; 100]).is_err());
    assert_eq!(place.bytes().len() as u64, TABLES + 4096);
    assert!(medium.mapped().damage().is_some());
    medium.write_streaming(TABLES, &[1; 100]).unwrap();
}

#[test]
fn two_writes_at_once_share_a_descriptor() {
    let place = Place::new("both");
    for descriptors in [true, false] {
        let medium = place.medium(descriptors);
        let (one, other) = (TABLES + 4096, TABLES + 300);
        let bytes = [9 + u8::from(descriptors); 5000];
        medium
            .write_both((one, &bytes), (other, &bytes[..64]))
            .expect("write");
        let found = place.bytes();
        assert!(found[one as usize..][..5000] == bytes);
        assert!(found[other as usize..][..64] == bytes[..64]);
        assert_eq!(place.1.load(Ordering::Relaxed), 1);
        assert!(
            medium
                .write_both((one, &bytes), (SIZE - 8, &bytes))
                .is_err()
        );
    }
}

/// How often the file was opened for what `work` does.
fn opens(place: &Place, work: impl FnOnce()) -> u64 {
    let before = place.1.load(Ordering::Relaxed);
    work();
    place.1.load(Ordering::Relaxed) - before
}

#[test]
fn writes_that_nobody_syncs_are_stored_where_they_are_mapped() {
    fault::install().expect("handlers");
    let place = Place::new("many");
    let medium = place.medium(true);
    let other = place.medium(true);
    medium.begin_anew().unwrap();
    medium.fence();
    let write = |at: u64, bytes: &[u8]| {
        let times = opens(&place, || {
            let (record, bytes) = ((TABLES + at, &bytes[..64]), (TABLES + at + 4000, bytes));
            medium.write_both(record, bytes).unwrap();
        });
        let found = place.bytes();
        let at = (TABLES + at) as usize;
        assert!(found[at..][..64] == bytes[..64]);
        assert!(found[at + 4000..][..bytes.len()] == *bytes);
        times
    };
    let counts = || {
        let mirror = place.map("mirror", Persistence::Ram);
        [0, 64, 128].map(|at| mirror.load(TABLES + at).unwrap())
    };
    assert_eq!(
        [1, 2, 3, 4].map(|nth| write(64 * nth, &[nth as u8; 200])),
        [1, 1, 0, 0]
    );
    assert_eq!(counts(), [5, 5, 1], "begun, ended, covered");
    other.fence();
    assert_eq!(counts(), [5, 5, 5]);
    // What each was synced for takes no fault besides.
    for nth in 5..9 {
        assert_eq!(write(64 * nth, &[nth as u8; 200]), 1);
        medium.fence();
    }
    assert_eq!(
        [9, 10, 11].map(|nth| write(64 * nth, &[nth as u8; 200])),
        [1, 1, 0]
    );
    // Long ones repay their descriptor, and pages of two stretches may be remembered.
    assert_eq!(write(0, &[12; 17 << 10]), 1);
    assert_eq!(write(0, &[13; 15 << 10]), 0);
    assert_eq!(write(TABLES, &[14; 15 << 10]), 0);
    assert_eq!(medium.sound(), Ok(()));
}

/// A store to a page that the kernel would have to read first waits for that, where a write of the whole page does not.
#[test]
fn what_is_not_in_memory_is_not_stored_where_it_is_mapped() {
    fault::install().expect("handlers");
    let place = Place::new("not-there");
    // Nothing was ever written there, so no page holds it.
    let file = std::fs::File::create(place.0.join("new")).unwrap();
    file.set_len(SIZE).unwrap();
    std::fs::rename(place.0.join("new"), place.0.join("file")).unwrap();
    // Nothing is read through this one, or the kernel would have read around that.
    let medium = place.medium(true);
    let write = |at: u64| {
        opens(&place, || {
            medium.write_streaming(TABLES + at, &[7; 4096]).unwrap();
        })
    };
    assert_eq!([write(0), write(4096)], [1, 1]);
    assert_eq!([write(8192), write(4096), write(6000)], [1, 0, 0]);
    assert_eq!([write(10_000), write(10_000)], [1, 0], "one of two pages");
    let last = SIZE - TABLES - 4096;
    assert_eq!([write(last), write(last)], [1, 0]);
}

/// Where a store finds no page any more a descriptor tells why, and makes the file no longer.
#[test]
fn what_cannot_be_stored_is_written_and_refused() {
    fault::install().expect("handlers");
    let place = Place::new("cut-in-a-row");
    let medium = place.medium(true);
    medium.begin_anew().unwrap();
    for _ in 0..3 {
        medium.write_streaming(TABLES + 8192, &[1; 100]).unwrap();
    }
    let file = std::fs::File::options()
        .write(true)
        .open(place.0.join("file"));
    let file = file.unwrap();
    file.set_len(TABLES + 4096).unwrap();
    let refused = medium.write_streaming(TABLES + 8192, &[2; 100]);
    assert_eq!(refused.unwrap_err().errno, Some(Errno::IO));
    assert_eq!(place.bytes().len() as u64, TABLES + 4096);
    file.set_len(SIZE).unwrap();
    let again = || medium.write_streaming(TABLES + 8192, &[3; 100]);
    assert_eq!(opens(&place, || again().unwrap()), 0, "it is there again");
    medium.fence();
    assert_eq!(medium.sound(), Ok(()));
}

/// The kernel takes the pages of a sync that failed for written, and tells those who had the file mapped. So each of them
/// asks it, once, whoever has written all of the file again before that.
#[test]
fn after_a_sync_that_failed_all_is_written_again_and_each_asks() {
    let place = Place::new("unwritten");
    let (one, other) = (place.medium(true), place.medium(true));
    one.begin_anew().unwrap();
    one.write_streaming(TABLES, &[1; 64]).unwrap();
    let mirror = place.map("mirror", Persistence::Ram);
    let word = |at: u64| mirror.load(TABLES + at).unwrap();
    let words = || (word(128), word(256), word(264));
    one.fence();
    assert_eq!(words(), (2, 0, 0));
    // Somebody's sync fails.
    mirror.store(TABLES + 256, 1).unwrap();
    let next = place.medium(true);
    next.begin_anew().unwrap();
    assert_eq!(words(), (0, 1, 0), "nobody has written anything again");
    next.fence();
    assert_eq!((next.sound(), words()), (Ok(()), (1, 1, 1)));
    assert_eq!(place.bytes()[TABLES as usize..][..64], [1; 64]);
    let unmap = |medium: &CachedMedium| {
        let page = medium.mapped().address(TABLES, 4096).unwrap();
        // SAFETY: the page is the medium's own, which is not used or dropped any more.
        #[allow(unsafe_code, reason = "a sync has to fail")]
        unsafe { rustix::mm::munmap(page.cast(), 4096) }.unwrap();
    };
    // One who has asked is spared the next sync, one who has not is not.
    one.fence();
    for (medium, spared) in [(one, true), (next, true), (other, false)] {
        unmap(&medium);
        medium.fence();
        assert_eq!(medium.sound().is_ok(), spared);
        std::mem::forget(medium);
    }
    // That its mapping is gone is nobody else's affair.
    assert_eq!(words(), (1, 1, 1));
}

/// Who has mapped the file before it grew, and is the first to use it again, syncs what the dead have written behind that,
/// too, before anybody is spared a sync.
#[test]
fn who_begins_anew_begins_with_all_of_the_file() {
    let place = Place::new("grown-before");
    let narrow = place.medium(true);
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).open(place.0.join("file")).unwrap();
    file.set_len(2 * SIZE).unwrap();
    let dead = place.medium(true);
    dead.begin_anew().unwrap();
    dead.write_streaming(SIZE + 4096, &[1; 64]).unwrap();
    drop(dead);
    narrow.begin_anew().unwrap();
    narrow.fence();
    let mirror = place.map("mirror", Persistence::Ram);
    assert_eq!(mirror.load(TABLES + 128), Ok(1));
    assert_eq!(narrow.size(), 2 * SIZE, "it has synced a part");
}

/// Who has mapped the file before somebody cut it, and is the first to use it again, knows how long it is now: there is
/// nothing behind that to be written again, or to be waited for.
#[test]
fn what_was_cut_off_is_not_written_again() {
    let place = Place::new("cut-before");
    let wide = place.medium(true);
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).open(place.0.join("file")).unwrap();
    file.set_len(SIZE / 2).unwrap();
    let mirror = place.map("mirror", Persistence::Ram);
    let word = |at: u64| mirror.load(TABLES + at).unwrap();
    mirror.store(TABLES + 256, 1).unwrap();
    wide.begin_anew().unwrap();
    let narrow = place.medium(true);
    wide.fence();
    assert_eq!((wide.sound(), word(264)), (Ok(()), 1));
    narrow.write_streaming(TABLES, &[1; 64]).unwrap();
    narrow.fence();
    assert_eq!((narrow.sound(), word(128)), (Ok(()), 2));
    // It was made larger since, and the last write there ended within a page.
    file.set_len(SIZE).unwrap();
    wide.write_streaming(SIZE / 2 + 4096, &[2; 100]).unwrap();
    mirror.store(TABLES + 256, 2).unwrap();
    wide.fence();
    assert_eq!((wide.sound(), word(264), word(128)), (Ok(()), 2, 3));
}

/// Where nobody knows what was done with the file before, it is written again, too.
#[test]
fn a_new_mirror_may_be_in_doubt() {
    for doubt in [false, true] {
        let tail = adit_pmem::mirror_tail(doubt);
        let word = |at: usize| u64::from_le_bytes(tail[at..][..8].try_into().unwrap());
        let words = [0, 64, 128, 192, 256, 264].map(word);
        assert_eq!(words, [1, 1, 0, 0, u64::from(doubt), 0]);
    }
}

/// Services are usually started under a filter that ends who asks which pages are in memory. It is each thread's own.
#[test]
fn under_a_filter_of_calls_nothing_is_asked_that_it_may_not_know() {
    fault::install().expect("handlers");
    let place = Place::new("filtered");
    let medium = place.medium(true);
    let written = |at: u64| {
        opens(&place, || {
            for _ in 0..5 {
                medium.write_streaming(TABLES + at, &[1; 64]).unwrap();
            }
        })
    };
    // Of others than the first sixteen pages from there on nothing is known then.
    assert_eq!(written(SIZE - TABLES - 4096), 2, "the third is stored");
    std::thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            end_who_calls(libc::SYS_mincore as u32);
            (written(SIZE - TABLES - 4096), written(0))
        });
        assert_eq!(filtered.join().expect("thread"), (0, 5));
    });
    assert_eq!(written(0), 0);
}

/// Has the kernel end the process when this thread makes a call, as `SystemCallFilter=` does.
#[allow(unsafe_code, reason = "a filter of calls")]
fn end_who_calls(number: u32) {
    let op = |code: u32, jumps: (u8, u8), k: u32| libc::sock_filter {
        code: code as u16,
        jt: jumps.0,
        jf: jumps.1,
        k,
    };
    let (load, is, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let mut filter = [
        op(load, (0, 0), 0),
        op(is, (0, 1), number),
        op(answer, (0, 0), libc::SECCOMP_RET_KILL_PROCESS),
        op(answer, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its length belong together, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let filtered = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program);
        assert_eq!(filtered, 0, "{}", std::io::Error::last_os_error());
    }
}

/// What is read ahead the kernel keeps in large folios, and one store through the mapping has all of such a one written.
#[test]
fn what_is_read_is_not_written_when_a_byte_of_it_is_stored() {
    fault::install().expect("handlers");
    let place = Place::new("read-before");
    let kind = medium_of(open(&place.0.join("file"), OFlags::RDONLY).unwrap()).kind;
    if kind != MediumKind::Cached {
        println!(
            "skipped: it concerns a disk, and {} is {kind:?}",
            place.0.display()
        );
        return;
    }
    // The longer somebody reads on, the larger they get.
    let (half, all) = (12 << 20, 24 << 20);
    std::fs::write(place.0.join("file"), vec![1; all as usize]).unwrap();
    let file = open(&place.0.join("file"), OFlags::RDWR).unwrap();
    rustix::fs::fsync(&file).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let medium = place.medium(true);
    let read = |from: u64, end: u64, len: usize| {
        let mut into = vec![0; len];
        for at in (from..end).step_by(len) {
            medium.read(at, &mut into).unwrap();
            assert!(into.iter().all(|byte| *byte == 1));
        }
    };
    read(TABLES, half, 16 << 10);
    // Of a page from which one word is taken nothing else is brought in.
    for page in (half..all - 4096).step_by(4096) {
        assert_eq!(medium.load(page), Ok(0x0101_0101_0101_0101));
    }
    assert!(!is_in_memory(&medium, all - 4096));
    let dirtied = |at: u64| {
        let before = written_by_this_thread();
        medium.write_streaming(at, &[2; 100]).unwrap();
        written_by_this_thread() - before
    };
    for _ in 0..3 {
        dirtied(TABLES);
    }
    let pages = [TABLES + 40_960, 9 << 20, 18 << 20, all - 8192];
    let opened = opens(&place, || {
        for page in pages {
            let bytes = dirtied(page);
            assert!(bytes <= 16 << 10, "{bytes} bytes");
        }
    });
    assert_eq!(opened, 0, "they were in memory");
    // Of one that is read what lies behind it comes soon.
    rustix::fs::fsync(&file).unwrap();
    drop(medium);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let medium = place.medium(true);
    let mut word = [0; 8];
    medium.read(half, &mut word).unwrap();
    let mut pages = (0..32).map(|page| half + page * 4096);
    let begun = std::time::Instant::now();
    let all_there = pages.all(|page| {
        while !is_in_memory(&medium, page) {
            if begun.elapsed() > Duration::from_secs(20) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    });
    assert!(all_there && !is_in_memory(&medium, half + (1 << 20)));
}

/// Whether a page of the file is in memory.
#[allow(unsafe_code, reason = "a question of its own")]
fn is_in_memory(medium: &CachedMedium, offset: u64) -> bool {
    let at = medium.mapped().address(offset, 4096).unwrap();
    let mut answer = 0;
    // SAFETY: the page is mapped, and there is a byte for it.
    let asked = unsafe { libc::mincore(at.cast(), 4096, &raw mut answer) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    answer & 1 == 1
}

/// Bytes of pages that this thread has made dirty, as the kernel accounts for them.
fn written_by_this_thread() -> u64 {
    let said = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = |line: &str| line.strip_prefix("write_bytes: ")?.parse().ok();
    said.lines().find_map(line).unwrap()
}

/// A sync syncs each mapping, and waits for the device each time.
#[test]
fn a_file_that_grows_is_one_mapping() {
    let place = Place::new("grows");
    let medium = place.map("file", Persistence::Cached);
    medium.keep_from_children().unwrap();
    let file = open(&place.0.join("file"), OFlags::RDWR).unwrap();
    for size in [2, 3, 7].map(|times| times * SIZE) {
        rustix::fs::ftruncate(&file, size).unwrap();
        assert_eq!(medium.grow(&file, size).unwrap(), size);
    }
    medium.store(7 * SIZE - 8, 7).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = place.0.join("file");
    let mappings = maps
        .lines()
        .filter(|line| line.ends_with(name.to_str().unwrap()));
    assert_eq!(mappings.count(), 1, "{maps}");
    assert_eq!(place.bytes()[7 * SIZE as usize - 8], 7);
}
