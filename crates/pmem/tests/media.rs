//! Mappings, windows, detection and the mapped medium, on memory and on the disk under the
//! temporary directory.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use adit_pmem::copy::guarded_copy;
use adit_pmem::copy::guarded_probe;
use adit_pmem::detect::{Answer, Probe, Reason, Report, medium_of};
use adit_pmem::map::{Access, HUGE, MapError, Mapping, PAGE, Synchronous, Window};
use adit_pmem::{
    Fault, MappedMedium, Medium, MediumError, MediumKind, OutOfRange, Persistence, TransferError,
    fault, kind_of_fd,
};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
use rustix::io::{Errno, pread, pwrite};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

fn memory_file(pages: usize) -> OwnedFd {
    let file = memfd_create("medium", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&file, (pages * PAGE) as u64).expect("grow");
    file
}

fn nameless(directory: &Path) -> Option<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    open(
        directory.as_os_str().as_bytes(),
        flags,
        Mode::RUSR | Mode::WUSR,
    )
    .ok()
}

/// Loads a byte through a guarded probe, so that what is not mapped is an answer.
fn byte_at(address: *const u8) -> Result<u8, Fault> {
    // SAFETY: an address of a window or mapping of the test, or one that faults.
    unsafe { guarded_probe(address) }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_window_shows_what_is_mapped_and_nothing_else() {
    fault::install().expect("handlers");
    let file = memory_file(4);
    for page in 0..4_u8 {
        pwrite(&file, &[page + 1; PAGE], u64::from(page) * PAGE as u64).expect("fill");
    }
    let window = Window::reserve(3 * HUGE).expect("reserve");
    let base = window.base();
    assert_eq!((base.addr() % HUGE, window.len()), (0, 3 * HUGE));
    for offset in [0, PAGE, HUGE, 3 * HUGE - 1] {
        assert_eq!(byte_at(base.wrapping_add(offset)), Err(Fault));
    }
    let how = window.map(HUGE, &file, PAGE as u64, 2 * PAGE, Access::ReadWrite, true);
    assert_eq!(how, Ok(Synchronous::No));
    window.populate(HUGE, 2 * PAGE).expect("populate");
    let at = base.wrapping_add(HUGE);
    assert_eq!(byte_at(at.wrapping_sub(1)), Err(Fault));
    assert_eq!(byte_at(at), Ok(2));
    assert_eq!(byte_at(at.wrapping_add(2 * PAGE - 1)), Ok(3));
    assert_eq!(byte_at(at.wrapping_add(2 * PAGE)), Err(Fault));

    // A store reaches the file, and a write to the file reaches the mapping.
    // SAFETY: the page is mapped.
    unsafe { guarded_copy(at, [77].as_ptr(), 1).expect("store") };
    let mut seen = [0];
    pread(&file, &mut seen, PAGE as u64).expect("read");
    assert_eq!(seen, [77]);
    pwrite(&file, &[88], PAGE as u64 + 1).expect("write");
    assert_eq!(byte_at(at.wrapping_add(1)), Ok(88));

    // Mapping over it replaces it, taking it back makes it inaccessible, at the same addresses.
    window
        .map(HUGE, &file, 0, PAGE, Access::Read, false)
        .expect("map over");
    assert_eq!(
        (byte_at(at), byte_at(at.wrapping_add(PAGE))),
        (Ok(1), Ok(3))
    );
    window.unmap(HUGE, PAGE).expect("unmap");
    assert_eq!(
        (byte_at(at), byte_at(at.wrapping_add(PAGE))),
        (Err(Fault), Ok(3))
    );
    window.unmap(0, 3 * HUGE).expect("unmap all");
    assert_eq!(byte_at(at.wrapping_add(PAGE)), Err(Fault));
    assert_eq!(window.base(), base);
    window
        .populate(0, PAGE)
        .expect("populating nothing is no error");
    window.release().expect("release");
}

#[test]
fn bad_ranges_are_refused() {
    let file = memory_file(4);
    let window = Window::reserve(1).expect("reserve");
    assert_eq!(window.len(), HUGE);
    let map = |offset, from, len| window.map(offset, &file, from, len, Access::Read, false);
    for (offset, from, len) in [
        (1, 0, PAGE),
        (0, 1, PAGE),
        (0, 0, 1),
        (0, 0, 0),
        (HUGE, 0, PAGE),
        (HUGE - PAGE, 0, 2 * PAGE),
        (usize::MAX - PAGE + 1, 0, 2 * PAGE),
        (0, 0, usize::MAX - PAGE + 1),
    ] {
        assert_eq!(
            map(offset, from, len),
            Err(MapError::BadRange),
            "{offset} {from} {len}"
        );
    }
    assert_eq!(window.unmap(PAGE, HUGE), Err(MapError::BadRange));
    assert_eq!(window.populate(1, PAGE), Err(MapError::BadRange));
    assert!(matches!(Window::reserve(0), Err(MapError::BadRange)));
    assert!(matches!(
        Window::reserve(usize::MAX),
        Err(MapError::BadRange)
    ));
    assert!(matches!(Window::reserve(1 << 62), Err(MapError::Kernel(_))));
    for (from, len) in [(1, PAGE), (0, 1), (0, 0)] {
        let mapping = Mapping::new(&file, from, len, Access::Read, false);
        assert!(matches!(mapping, Err(MapError::BadRange)));
    }
    let write_only = open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let refused = Mapping::new(write_only.expect("open"), 0, PAGE, Access::Read, true);
    assert!(matches!(refused, Err(MapError::Kernel(_))));
}

#[test]
fn a_mapping_lives_until_it_is_unmapped() {
    let file = memory_file(2);
    pwrite(&file, &[9], PAGE as u64).expect("fill");
    let mapping = Mapping::new(&file, PAGE as u64, PAGE, Access::Read, false).expect("map");
    mapping.populate(0, PAGE).expect("populate");
    mapping.keep_from_children().expect("advice");
    mapping.prefer_huge();
    assert_eq!(
        (mapping.len(), mapping.synchronous()),
        (PAGE, Synchronous::No)
    );
    drop(file);
    assert_eq!(byte_at(mapping.base()), Ok(9));
    mapping.unmap().expect("unmap");
}

/// Takes back and maps again under the eyes of readers, who see the page or a fault.
#[cfg(target_arch = "x86_64")]
#[test]
fn readers_survive_a_window_that_changes_under_them() {
    fault::install().expect("handlers");
    let file = memory_file(1);
    pwrite(&file, &[5; PAGE], 0).expect("fill");
    let window = Window::reserve(HUGE).expect("reserve");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let mut seen = [0; 300];
                    // SAFETY: the window's address is mapped or faults.
                    let copied =
                        unsafe { guarded_copy(seen.as_mut_ptr(), window.base(), seen.len()) };
                    assert!(copied == Err(Fault) || seen == [5; 300]);
                }
            });
        }
        for _ in 0..3_000 {
            window
                .map(0, &file, 0, PAGE, Access::Read, false)
                .expect("map");
            window.unmap(0, PAGE).expect("unmap");
        }
    });
}

#[test]
fn memory_is_ram_and_other_things_are_not() {
    let file = memory_file(1);
    let found = medium_of(&file);
    assert_eq!(
        (found.kind, found.reason),
        (MediumKind::Ram, Reason::MemoryOnly)
    );
    assert_eq!(kind_of_fd(file.as_raw_fd()), MediumKind::Ram);
    let shared_memory = Path::new("/dev/shm");
    if let Some(file) = nameless(shared_memory) {
        assert_eq!(medium_of(&file).kind, MediumKind::Ram);
    }
    let look = |name: &str| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        medium_of(open(name, flags, Mode::empty()).expect("open"))
    };
    assert_eq!(look("/proc/self/status").reason, Reason::Synthetic);
    assert_eq!(look("/dev/null").reason, Reason::NotAFile);
    for kind in [look("/proc/self/status").kind, look("/dev/null").kind] {
        assert_eq!(kind, MediumKind::Other);
    }
    assert_eq!(kind_of_fd(-1), MediumKind::Other);
    assert_eq!(kind_of_fd(1 << 20), MediumKind::Other);
}

#[test]
fn a_report_agrees_with_what_files_there_do() {
    let places: [PathBuf; 2] = [std::env::temp_dir(), "/dev/shm".into()];
    for place in places.iter().filter(|place| place.is_dir()) {
        let report = Report::of(place, Probe::Try).expect("report");
        if let Some(file) = nameless(place) {
            assert_eq!(report.detected, medium_of(&file), "{}", place.display());
            ftruncate(&file, PAGE as u64).expect("grow");
            let sync = Mapping::new(&file, 0, PAGE, Access::Read, true)
                .map(|mapping| mapping.synchronous() == Synchronous::Yes);
            assert_eq!(Ok(report.map_sync == Answer::Yes), sync);
            assert_ne!(report.clone_range, Answer::NotTried);
        }
        assert!(!report.kernel_release.is_empty());
        assert!(report.block_size.is_power_of_two());
        assert!(report.total_bytes >= report.available_bytes);
        let mount = report
            .mount
            .as_ref()
            .expect("the mount of a plain directory");
        assert!(!mount.options.is_empty(), "{mount:?}");
        let names_agree = report.fs_name == mount.fs_type;
        assert!(names_agree || report.fs_name == "unknown" || report.fs_name == "ext4");
    }
}

#[test]
fn looking_at_a_file_makes_nothing_and_tells_its_medium() {
    let directory = std::env::temp_dir();
    let name = directory.join(format!("adit-report-{}", std::process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = open(name.as_os_str().as_bytes(), flags, mode).expect("create");
    let looked = Report::of(&name, Probe::Look);
    let tried = Report::of(&name, Probe::Try);
    rustix::fs::unlink(name.as_os_str().as_bytes()).expect("unlink");
    let (looked, tried) = (looked.expect("report"), tried.expect("report"));
    assert_eq!(looked.detected, medium_of(&file));
    assert_eq!(looked.clone_range, Answer::NotTried);
    assert_ne!(looked.map_sync, Answer::NotTried);
    assert_eq!(looked.detected, tried.detected);
    assert!(Report::of(&name, Probe::Look).is_err());
    assert!(Report::of(Path::new("a\0b"), Probe::Look).is_err());
    let device = Report::of(Path::new("/dev/null"), Probe::Try).expect("report");
    assert_eq!(device.detected.reason, Reason::NotAFile);
}

fn medium(pages: usize, persistence: Persistence) -> (OwnedFd, MappedMedium) {
    fault::install().expect("handlers");
    let file = memory_file(pages);
    let medium = MappedMedium::new(&file, persistence, 64 * HUGE).expect("medium");
    (file, medium)
}

/// One medium of every persistence; `dax` by its instructions only, which is all that a test without
/// the hardware can see of it.
fn media() -> Vec<(OwnedFd, MappedMedium)> {
    let file = memory_file(3);
    let dax = MappedMedium::emulating_dax(&file, HUGE).expect("medium");
    assert_eq!(dax.persistence(), Persistence::Dax);
    vec![
        (file, dax),
        medium(3, Persistence::Ram),
        medium(3, Persistence::Cached),
    ]
}

#[test]
fn a_medium_is_the_bytes_of_its_file() {
    for (file, medium) in media() {
        assert_eq!(medium.size(), 3 * PAGE as u64);
        let mut state = 1_u64;
        let mut model = vec![0_u8; 3 * PAGE];
        for round in 0..3_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(round);
            let offset = (state >> 33) as usize % model.len();
            let len = (state >> 20) as usize % 300 % (model.len() - offset);
            let bytes: Vec<u8> = (0..len).map(|at| (state >> 8) as u8 ^ at as u8).collect();
            medium
                .write_streaming(offset as u64, &bytes)
                .expect("write");
            model[offset..offset + len].copy_from_slice(&bytes);
            let word = offset / 8 * 8;
            if word + 8 <= model.len() {
                let old = u64::from_ne_bytes(model[word..word + 8].try_into().expect("8 bytes"));
                assert_eq!(medium.load(word as u64), Ok(old));
                assert_eq!(medium.compare_exchange(word as u64, !old, 0), Ok(Err(old)));
                assert_eq!(
                    medium.compare_exchange(word as u64, old, state),
                    Ok(Ok(old))
                );
                assert_eq!(medium.load(word as u64), Ok(state));
                medium.store(word as u64, state ^ 1).expect("store");
                model[word..word + 8].copy_from_slice(&(state ^ 1).to_ne_bytes());
            }
            let line = offset / 64 * 64;
            let bytes: [u8; 64] = std::array::from_fn(|at| (state >> 40) as u8 ^ at as u8);
            medium.write_streaming(line as u64, &bytes).expect("a line");
            model[line..line + 64].copy_from_slice(&bytes);
            medium.flush(offset as u64, len as u64).expect("flush");
            medium.fence();
        }
        let (mut through, mut kernel) = (vec![0; model.len()], vec![0; model.len()]);
        medium.read(0, &mut through).expect("read");
        pread(&file, kernel.as_mut_slice(), 0).expect("read");
        assert!(through == model && kernel == model);
        assert_eq!(medium.damage(), None);
    }
}

#[test]
fn long_streamed_writes_arrive() {
    let (file, medium) = medium(200, Persistence::Ram);
    let bytes: Vec<u8> = (0..199 * PAGE).map(|at| ((at * 31) >> 3) as u8).collect();
    medium.write_streaming(17, &bytes).expect("write");
    medium.fence();
    let mut seen = vec![0; bytes.len()];
    pread(&file, seen.as_mut_slice(), 17).expect("read");
    assert!(seen == bytes);
}

#[test]
fn what_is_written_to_cold_places_arrives() {
    for (file, medium) in media() {
        let mut model = vec![0; 3 * PAGE];
        for (offset, len) in [(0, 100), (PAGE, PAGE), (64, 2048), (PAGE + 7, 2 * PAGE - 7)] {
            let bytes: Vec<u8> = (0..len).map(|at| (offset + at * 31) as u8).collect();
            // SAFETY: the source is a vector of that length.
            unsafe { medium.write_cold_from(offset as u64, bytes.as_ptr(), len) }.expect("write");
            medium.fence();
            model[offset..offset + len].copy_from_slice(&bytes);
            let mut seen = vec![0; model.len()];
            pread(&file, seen.as_mut_slice(), 0).expect("read");
            assert!(seen == model, "{len} bytes at {offset}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn lines_and_pages_behind_the_end_of_a_file_are_errors() {
    for (file, medium) in media() {
        ftruncate(&file, PAGE as u64).expect("cut");
        let gone = PAGE as u64;
        assert!(medium.write_streaming(gone - 64, &[1; 64]).is_ok());
        assert!(medium.write_streaming(gone, &[1; 64]).is_err());
        assert!(medium.write_line(gone - 64, &[1; 64]).is_ok());
        assert!(medium.write_line(gone, &[1; 64]).is_err());
        assert_eq!(medium.damage().map(|damage| damage.offset), Some(gone));
        let page = [1; PAGE];
        // SAFETY: the source is an array of that length.
        let written = unsafe { medium.write_cold_from(gone, page.as_ptr(), PAGE) };
        assert!(matches!(written, Err(TransferError::OutOfRange(_))));
    }
}

#[test]
fn a_line_may_lie_anywhere() {
    for (file, medium) in media() {
        for at in [0, 64, 100] {
            let line = std::array::from_fn(|nth| (at + nth) as u8);
            medium.write_line(at as u64, &line).expect("write");
            let mut seen = [0; 64];
            pread(&file, &mut seen, at as u64).expect("read");
            assert_eq!(seen, line);
        }
        assert!(medium.write_line(medium.size() - 63, &[1; 64]).is_err());
        assert!(medium.write_line(u64::MAX - 63, &[1; 64]).is_err());
    }
}

/// A medium that is asked for each word, as one is that has no addresses.
struct Asked(MappedMedium);

impl Medium for Asked {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.0.load(offset)
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.0.store(offset, value)
    }
    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        self.0.compare_exchange(offset, current, new)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.0.read(offset, into)
    }
    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write_streaming(offset, from)
    }
    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.0.flush(offset, len)
    }
    fn fence(&self) {
        self.0.fence();
    }
}

fn words_are_the_mediums(medium: &impl Medium) {
    let words = medium.words::<3>(64).expect("words");
    medium.store(64 + 8, 5).expect("store");
    assert_eq!(words.load(1), Ok(5));
    words.store(2, 7).expect("store");
    assert_eq!(medium.load(64 + 16), Ok(7));
    assert_eq!(words.compare_exchange(0, 1, 2), Ok(Err(0)));
    assert_eq!(words.compare_exchange(0, 0, 2), Ok(Ok(0)));
    assert_eq!(medium.load(64), Ok(2));
    let outside = OutOfRange::outside(64 + 24, 8, 64 + 24);
    assert_eq!(words.load(3), Err(outside));
    assert_eq!(words.store(3, 1), Err(outside));
    assert_eq!(words.compare_exchange(3, 0, 1), Err(outside));
    assert_eq!(medium.load(64 + 24), Ok(0));
}

#[test]
fn words_are_found_once() {
    for (_file, medium) in media() {
        words_are_the_mediums(&medium);
        let size = medium.size();
        assert!(medium.words::<1>(size - 8).is_ok());
        assert!(medium.words::<2>(size - 8).is_err());
        assert!(medium.words::<2>(u64::MAX - 7).is_err());
        assert!(medium.words::<2>(4).is_err(), "a word must be aligned");
    }
    words_are_the_mediums(&Asked(medium(1, Persistence::Ram).1));
}

#[test]
fn expected_writes_change_nothing() {
    for (file, medium) in media() {
        medium.write_streaming(100, &[5; 5000]).expect("write");
        medium.expect_writes(0, 3 * PAGE as u64);
        medium.expect_writes(PAGE as u64, 0);
        medium.expect_writes(2 * PAGE as u64, u64::MAX);
        let mut seen = vec![0; 3 * PAGE];
        pread(&file, seen.as_mut_slice(), 0).expect("read");
        assert!(seen[100..5100].iter().all(|byte| *byte == 5));
        assert!(
            seen[..100]
                .iter()
                .chain(&seen[5100..])
                .all(|byte| *byte == 0)
        );
        if cfg!(target_arch = "x86_64") {
            ftruncate(&file, PAGE as u64).expect("cut");
            medium.expect_writes(0, 3 * PAGE as u64);
        }
        assert_eq!(medium.damage(), None, "nothing was lost by looking");
    }
}

#[test]
fn ranges_outside_a_medium_are_errors() {
    let (_file, medium) = medium(1, Persistence::Ram);
    let size = PAGE as u64;
    let outside = |offset, len| OutOfRange::outside(offset, len, size);
    assert_eq!(medium.load(size), Err(outside(size, 8)));
    assert_eq!(medium.load(size - 4), Err(outside(size - 4, 8)));
    assert_eq!(medium.load(4), Err(outside(4, 8)), "a word must be aligned");
    assert_eq!(medium.store(u64::MAX - 7, 1), Err(outside(u64::MAX - 7, 8)));
    assert_eq!(medium.compare_exchange(size, 0, 1), Err(outside(size, 8)));
    assert_eq!(
        medium.read(size - 1, &mut [0; 2]),
        Err(outside(size - 1, 2))
    );
    assert_eq!(
        medium.write_streaming(u64::MAX, &[0; 2]),
        Err(outside(u64::MAX, 2))
    );
    assert_eq!(medium.flush(1, u64::MAX), Err(outside(1, u64::MAX)));
    assert_eq!(medium.read(size, &mut []), Ok(()));
    assert_eq!(medium.damage(), None, "a caller's mistake is no damage");
}

#[test]
fn a_medium_grows_in_place() {
    let (file, medium) = medium(1, Persistence::Ram);
    medium.write_streaming(0, b"before").expect("write");
    let base = medium.address(0, 6).expect("address");
    let too_long = 5 * PAGE as u64;
    let refused = medium.grow(&file, too_long);
    assert_eq!(
        refused,
        Err(MediumError::TooShort {
            wanted: too_long,
            actual: PAGE as u64
        })
    );
    ftruncate(&file, 600 * PAGE as u64).expect("grow the file");
    let odd = medium.grow(&file, too_long + 1);
    assert!(matches!(odd, Err(MediumError::TooShort { .. })));
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let (medium, file) = (&medium, file.as_fd());
            scope.spawn(move || {
                for pages in 1..=150 {
                    let size = pages * thread * PAGE as u64;
                    let got = medium.grow(file, size).expect("grow");
                    assert!(got >= size && medium.size() >= size);
                    medium
                        .store(size - 8 * thread, thread)
                        .expect("store at the new end");
                }
            });
        }
    });
    assert_eq!(medium.size(), 600 * PAGE as u64);
    assert_eq!(
        medium.grow(&file, PAGE as u64),
        Ok(600 * PAGE as u64),
        "never shrinks"
    );
    assert_eq!(medium.address(0, 6), Ok(base));
    let mut seen = [0; 6];
    medium.read(0, &mut seen).expect("read");
    assert_eq!(&seen, b"before");
    assert_eq!(medium.load(600 * PAGE as u64 - 32), Ok(4));
    let beyond = 65 * HUGE as u64;
    let refused = medium.grow(&file, beyond);
    assert_eq!(
        refused,
        Err(MediumError::BeyondReserve {
            wanted: beyond,
            reserved: 64 * HUGE as u64
        })
    );
}

/// Who hears that the file has grown needs no descriptor of it.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_medium_reaches_what_others_have_added() {
    fault::install().expect("handlers");
    let (file, medium) = medium(2, Persistence::Ram);
    let copy = rustix::io::dup(&file).expect("dup");
    drop(file);
    ftruncate(&copy, 300 * PAGE as u64).expect("grow the file");
    pwrite(&copy, b"added", 299 * PAGE as u64).expect("fill");
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let medium = &medium;
            scope.spawn(move || {
                for pages in 1..=75 {
                    let size = pages * thread * PAGE as u64;
                    medium.reach(size);
                    assert!(medium.size() >= size);
                    medium.store(size - 8 * thread, thread).expect("store");
                }
            });
        }
    });
    assert_eq!(medium.size(), 300 * PAGE as u64);
    let mut seen = [0; 5];
    medium.read(299 * PAGE as u64, &mut seen).expect("read");
    assert_eq!(&seen, b"added");
    pread(&copy, &mut seen, 300 * PAGE as u64 - 32).expect("read");
    assert_eq!(seen, [4, 0, 0, 0, 0], "it is the file's own page");
    medium.reach(PAGE as u64);
    medium.reach(65 * HUGE as u64);
    assert_eq!(medium.size(), 300 * PAGE as u64, "less, and too much");
    // What the file does not have is no part of it, whoever said so.
    medium.reach(301 * PAGE as u64);
    assert!(medium.load(300 * PAGE as u64).is_err());
    assert_eq!(medium.load(300 * PAGE as u64 - 32), Ok(4));
}

#[test]
fn a_file_that_is_not_dax_is_not_taken_for_it() {
    let file = memory_file(1);
    let refused = MappedMedium::new(&file, Persistence::Dax, HUGE);
    assert_eq!(refused.map(|_| ()), Err(MediumError::NotSynchronous));
    let empty = memory_file(0);
    let medium = MappedMedium::new(&empty, Persistence::Ram, HUGE).expect("an empty medium");
    assert_eq!(medium.size(), 0);
    assert!(medium.load(0).is_err());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_medium_cut_short_gives_errors_and_remembers() {
    let (file, medium) = medium(3, Persistence::Ram);
    ftruncate(&file, PAGE as u64).expect("cut");
    let lost = |offset, len| OutOfRange::lost(offset, len, Errno::IO);
    let gone = PAGE as u64;
    assert_eq!(medium.load(0), Ok(0));
    assert_eq!(medium.load(gone), Err(lost(gone, 8)));
    assert_eq!(medium.store(gone + 8, 1), Err(lost(gone + 8, 8)));
    assert_eq!(
        medium.compare_exchange(gone + 16, 0, 1),
        Err(lost(gone + 16, 8))
    );
    let words = medium.words::<4>(gone).expect("words");
    assert_eq!(words.load(0), Err(lost(gone, 8)));
    assert_eq!(words.store(1, 1), Err(lost(gone + 8, 8)));
    assert_eq!(
        words.compare_exchange(3, 0, 1),
        Err(lost(gone + 24, 8)),
        "they were found before it was cut"
    );
    assert_eq!(medium.read(gone - 8, &mut [0; 16]), Err(lost(gone - 8, 16)));
    assert_eq!(
        medium.write_streaming(gone, &[1; 100]),
        Err(lost(gone, 100))
    );
    assert_eq!(medium.damage().map(|damage| damage.offset), Some(gone));
    ftruncate(&file, 3 * PAGE as u64).expect("restore");
    assert_eq!(
        medium.load(gone),
        Ok(0),
        "it works again, but the damage stays known"
    );
    assert!(medium.damage().is_some());
}

#[test]
fn words_are_exchanged_atomically_between_threads() {
    let (_file, medium) = medium(1, Persistence::Ram);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let mut seen = medium.load(64).expect("load");
                    while let Err(other) = medium
                        .compare_exchange(64, seen, seen + 1)
                        .expect("exchange")
                    {
                        seen = other;
                    }
                }
            });
        }
    });
    assert_eq!(medium.load(64), Ok(80_000));
}
