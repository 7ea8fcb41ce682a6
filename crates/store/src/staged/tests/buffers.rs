//! A program's own buffers: bad ones change nothing, several are one write, and what comes back is what
//! went in; and the ends of a staging, in one process.
#![allow(unsafe_code, reason = "the functions under test take addresses")]

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;

use adit_pmem::fault;
use adit_pmem::map::{PAGE, Window};
use adit_pool::{FileMedium, PoolFile};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode as FileMode, OFlags};

use super::*;
use crate::testing::Scratch;

struct Setup {
    scratch: Scratch,
    pool: PoolFile,
    stage: Arc<Stage<FileMedium>>,
}

type Staged = StagedFile<FileMedium, KernelFile<OwnedFd>>;

fn set_up() -> Setup {
    fault::install().expect("handlers");
    let scratch = Scratch::new();
    let geometry = Geometry {
        chunk_shift: 16,
        max_chunks: 64,
        slot_count: 4,
        file_count: 16,
    };
    let pool = PoolFile::create(&scratch.path("pool"), 2 << 20, geometry).expect("pool");
    let stage = Stage::new(pool.attach().expect("attach"));
    Setup {
        scratch,
        pool,
        stage,
    }
}

impl Setup {
    fn base(&self) -> KernelFile<OwnedFd> {
        let path = self.scratch.path("file");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = FileMode::RUSR | FileMode::WUSR;
        let fd = rustix::fs::open(path.as_os_str().as_bytes(), flags, mode).expect("open");
        KernelFile::new(fd).expect("base")
    }

    fn name() -> FileName {
        FileName {
            handle_type: 1,
            handle: vec![3; 8],
            path: b"file".to_vec(),
            device: 1,
        }
    }

    fn open(&self, mode: Mode) -> Staged {
        StagedFile::open(&self.stage, &Self::name(), self.base(), mode).expect("stage")
    }
}

/// Bytes that may not be touched.
fn wall() -> Window {
    Window::reserve(PAGE).expect("reserve")
}

#[test]
fn a_bad_buffer_writes_nothing_and_costs_no_space() {
    let setup = set_up();
    let file = setup.open(Mode::Strict);
    file.append(b"before").expect("append");
    let wall = wall();
    let good = [7_u8; 9000];
    // Short bytes travel with a CRC, long ones do not, and more than a chunk are a group.
    for (good_len, bad_len) in [(0, 10), (100, 10), (9000, 1), (9000, 200_000), (0, 4096)] {
        for _ in 0..300 {
            let parts = [
                (good.as_ptr(), good_len),
                (wall.base().cast_const(), bad_len),
            ];
            for place in [Place::End, Place::At(0)] {
                // SAFETY: one buffer is an array, the other inaccessible; the handler is installed.
                let error = unsafe { file.writev_from(place, &parts) }.expect_err("a fault");
                assert!(matches!(error, Error::Fault), "{error}");
                assert_eq!(error.errno(), Errno::FAULT);
            }
        }
    }
    assert_eq!(read_all(&file), b"before");
    assert_eq!(setup.pool.pool().scan().expect("scan").counts.live, 1);
    // 300 times 200 KB did not stay taken in a pool of 2 MB.
    file.append(&[1; 1 << 20]).expect("room");
}

#[test]
fn a_bad_buffer_reads_nothing_it_may_not() {
    let setup = set_up();
    let base = setup.base();
    base.write_at(0, &[5; 6000]).expect("base");
    let file = StagedFile::open(&setup.stage, &Setup::name(), base, Mode::Strict).expect("stage");
    file.write_at(5000, &[6; 500]).expect("write");
    file.truncate(9000).expect("truncate");
    let wall = wall();
    let mut good = [0_u8; 100];
    // From the base, from the pool, from a hole.
    for at in [0, 5100, 8000] {
        let parts = [(good.as_mut_ptr(), 100), (wall.base(), 10)];
        // SAFETY: one buffer is an array, the other inaccessible; the handler is installed.
        let error = unsafe { file.readv_into(at, &parts) }.expect_err("a fault");
        assert!(matches!(error, Error::Fault), "{error}");
    }
    // A buffer behind the end of the file is not touched.
    let parts = [(good.as_mut_ptr(), 100), (wall.base(), 10)];
    // SAFETY: as above.
    let read = unsafe { file.readv_into(8900, &parts) }.expect("all bytes fit the first");
    assert_eq!((read, good), (100, [0; 100]));
}

#[test]
fn several_buffers_are_one_write_and_one_read() {
    let setup = set_up();
    for mode in [Mode::Posix, Mode::Strict] {
        let file = setup.open(mode);
        for lens in [vec![3, 0, 5], vec![4000, 1, 3000], vec![70_000, 80_000, 11]] {
            let size = file.size().expect("size");
            let all: Vec<u8> = bytes_of(lens.len() + lens[0], lens.iter().sum());
            let mut parts = Vec::new();
            let mut at = 0;
            for len in &lens {
                parts.push((all[at..].as_ptr(), *len));
                at += len;
            }
            // SAFETY: the buffers are parts of a slice.
            let offset = unsafe { file.writev_from(Place::End, &parts) }.expect("write");
            assert_eq!(offset, size);
            let mut back = vec![0; all.len()];
            let (one, two) = back.split_at_mut(lens[0] / 2 + 1);
            let parts = [(one.as_mut_ptr(), one.len()), (two.as_mut_ptr(), two.len())];
            // SAFETY: the buffers are parts of a slice.
            let read = unsafe { file.readv_into(offset, &parts) }.expect("read");
            assert_eq!((read, back), (all.len(), all));
        }
        file.close().expect("close");
    }
}

#[test]
fn a_file_that_was_taken_away_says_so() {
    let setup = set_up();
    let file = setup.open(Mode::Atomic);
    let entry = file.file();
    file.append(b"every byte").expect("append");
    file.fsync().expect("fsync");
    file.append(b", also this one").expect("append");
    let path = setup.scratch.path("file");
    let mut complete = Vec::new();
    let done = file.take_away(|| complete = std::fs::read(&path).expect("read"));
    assert_eq!(done.expect("take away").records, 2);
    assert_eq!(complete, b"every byte, also this one");
    let mut bytes = [0; 10];
    let taken = [
        file.append(b"x").err(),
        file.read_at(0, &mut bytes).err(),
        file.truncate(1).err(),
        file.fsync().err(),
        file.size().err(),
        file.last_write().err(),
        file.publish(Scope::Everything).err(),
        file.take_away(|| panic!("nothing to take")).err(),
    ];
    for error in taken {
        assert!(matches!(error, Some(Error::Taken)), "{error:?}");
    }
    drop(file);
    let again = StagedFile::open_entry(&setup.stage, entry, setup.base(), Mode::Atomic);
    assert!(matches!(again.err(), Some(Error::Taken)));
    assert!(setup.pool.pool().files().expect("files").is_empty());
    assert_eq!(setup.pool.pool().scan().expect("scan").counts.live, 0);
}

/// An entry is made first, then the file is opened by it; a second opening is refused.
#[test]
fn a_file_is_opened_by_its_entry() {
    let setup = set_up();
    let entry = setup.stage.attachment().enter_file(&Setup::name());
    let entry = entry.expect("enter");
    let open = || StagedFile::open_entry(&setup.stage, entry, setup.base(), Mode::Posix);
    let file = open().expect("stage");
    assert!(matches!(open().err(), Some(Error::AlreadyOpen)));
    file.append(b"bytes").expect("append");
    drop(file);
    assert_eq!(read_all(&open().expect("stage")), b"bytes");
}

/// The base file's time is that of the last write, not that of publishing.
#[test]
fn publishing_leaves_the_time_of_the_last_write() {
    let setup = set_up();
    let file = setup.open(Mode::Posix);
    assert_eq!(file.last_write().expect("time"), None);
    file.append(b"now").expect("append");
    let written = file.last_write().expect("time").expect("written");
    std::thread::sleep(std::time::Duration::from_millis(30));
    file.publish(Scope::Everything).expect("publish");
    let meta = std::fs::metadata(setup.scratch.path("file")).expect("metadata");
    assert_eq!(
        (meta.mtime(), meta.mtime_nsec()),
        (written.tv_sec, written.tv_nsec)
    );
    file.times_were_set().expect("set");
    assert_eq!(file.last_write().expect("time"), None);
}
