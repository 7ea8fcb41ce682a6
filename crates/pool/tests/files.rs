//! Pools as files: private, checked before they are believed, growing, shrinking, refused clearly.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests are not the engine"
)]

mod common;
mod place;
mod replay;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use adit_pool::layout::{ChunkKind, Geometry};
use adit_pool::{Error, FileName, PoolFile, When};
use common::*;
use place::*;
use replay::replayed;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};

const MB: u64 = 1 << 20;

/// A program may close, count or pass on every descriptor that it has: none of them is ours.
#[test]
fn an_attached_pool_keeps_no_descriptor() {
    let place = Place::new("descriptors");
    let path = place.0.join("pool");
    drop(PoolFile::create(&path, 8 * MB, Geometry::default()).unwrap());
    let open = || {
        let all = fs::read_dir("/proc/self/fd").unwrap();
        let links = all.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.starts_with(&path)).count()
    };
    let pool = PoolFile::open(&path).unwrap();
    let attachment = pool.attach().unwrap();
    assert_eq!(open(), 0);
    let held = fs::File::open(&path).unwrap();
    assert_eq!(open(), 1, "the test does not see descriptors");
    drop(held);
    attachment.detach().unwrap();
    assert_eq!(open(), 0);
}

/// A snapshot of a disk, mounted beside it, has the memory of no process: what nobody had committed is not in it.
#[test]
fn a_copy_on_another_device_is_of_another_boot() {
    let place = Place::new("copied");
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    let others = ["/dev/shm", "/var/tmp", env!("CARGO_TARGET_TMPDIR")].map(Path::new);
    let Some(other) = others
        .iter()
        .find(|other| device(other) != device(&place.0))
    else {
        println!("skipped: there is one file system only");
        return;
    };
    let pool = place.create(8 * MB);
    let attachment = pool.attach().unwrap();
    let file = attachment.enter_file(&name(1)).unwrap();
    stage(&attachment, file, 0, b"committed", When::WithCommit).unwrap();
    attachment.lock_file(file).unwrap().commit().unwrap();
    stage(&attachment, file, 9, b", and not", When::WithCommit).unwrap();
    let copied = other.join(format!("adit-pool-copied-{}", std::process::id()));
    fs::copy(place.pool(), &copied).unwrap();
    let left = |path: &Path| -> Result<Vec<u8>, Error> {
        let pool = PoolFile::open(path)?;
        let attachment = pool.attach()?;
        let found = pool.pool().scan()?;
        let bytes = replayed(pool.pool(), &found, file, b"")?;
        pool.detach(attachment)?;
        Ok(bytes)
    };
    let (copy, original) = (left(&copied), left(&place.pool()));
    let mut tables = copied.clone().into_os_string();
    tables.push(".tables");
    let _ = (fs::remove_file(&copied), fs::remove_file(tables));
    assert_eq!(original.unwrap(), b"committed, and not");
    if let Err(Error::WrongFileSystem { why, .. }) = copy {
        println!("skipped: no pool can be on {}: {why}", other.display());
        return;
    }
    assert_eq!(copy.unwrap(), b"committed");
}

#[test]
fn names_of_files_that_are_gone_take_no_room() {
    let place = Place::new("names");
    let pool = PoolFile::create(&place.pool(), 8 * MB, Geometry::default()).unwrap();
    let attachment = pool.attach().unwrap();
    // Far more files than the pool has chunks, one after the other: each leaves nothing behind.
    for number in 0..=255 {
        let file = attachment.enter_file(&name(number)).unwrap();
        attachment.forget_file(file).unwrap();
    }
    let file = attachment.enter_file(&name(1)).unwrap();
    stage(&attachment, file, 0, &[5; 10_000], When::Now).unwrap();
}

#[test]
fn create_open_use_reopen() {
    let place = Place::new("open");
    let made = PoolFile::create(&place.pool(), 16 * MB, Geometry::default()).unwrap();
    let meta = fs::metadata(place.pool()).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.len()), (0o600, 16 * MB));
    // And perhaps one for the list of its extents.
    let reserved = meta.blocks() * 512;
    assert!(
        (16 * MB..=16 * MB + (64 << 10)).contains(&reserved),
        "blocks are reserved: {reserved}"
    );
    let again = PoolFile::create(&place.pool(), 16 * MB, Geometry::default());
    assert!(
        matches!(again, Err(Error::Kernel { call: "link", .. })),
        "{again:?}"
    );

    let a = made.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    stage(&a, file, 0, &[5; 10_000], When::Now).unwrap();
    drop((a, made));
    let pool = PoolFile::open(&place.pool()).unwrap();
    let found = pool.pool().scan().unwrap();
    assert_eq!(
        replayed(pool.pool(), &found, file, b"").unwrap(),
        [5; 10_000]
    );
    assert!(pool.pool().check().unwrap().is_sound());
    assert!(matches!(
        pool.remove(false),
        Err(Error::Unpublished { files: 1 })
    ));
    PoolFile::open(&place.pool()).unwrap().remove(true).unwrap();
    assert!(!place.pool().exists());
}

#[test]
fn a_pool_that_grows_while_it_is_opened_is_not_truncated() {
    let place = Place::new("growing");
    let one = PoolFile::create(&place.pool(), 8 * MB, Geometry::default()).unwrap();
    let a = one.attach().unwrap();
    std::thread::scope(|scope| {
        let growing = scope.spawn(|| {
            for chunks in 5..=24 {
                assert_eq!(one.grow(&a, chunks * 2 * MB).unwrap(), chunks as u32);
            }
        });
        while !growing.is_finished() {
            let opened = PoolFile::open(&place.pool()).unwrap();
            opened.pool().chunk_count().unwrap();
            let looked = PoolFile::open_read_only(&place.pool()).unwrap();
            looked.chunk_count().unwrap();
        }
    });
}

#[test]
fn two_handles_see_each_other_and_the_growth() {
    let place = Place::new("grow");
    let one = PoolFile::create(&place.pool(), 8 * MB, Geometry::default()).unwrap();
    let two = PoolFile::open(&place.pool()).unwrap();
    let a = one.attach().unwrap();
    let b = two.attach().unwrap();
    assert_ne!(a.slot(), b.slot());
    assert!(matches!(
        two.pool().exclusive(),
        Err(Error::InUse { attached: 2 })
    ));
    let error = loop {
        match b.alloc(2 << 20) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { chunks: 4 }), "{error}");
    assert_eq!(one.grow(&a, 32 * MB).unwrap(), 16);
    // The other handle maps what was added when it first needs it.
    let extent = b.alloc(2 << 20).unwrap();
    b.fill(extent, 0, &[7; 4096]).unwrap();
    // The last one to leave gives it back, and nobody else.
    let len = || fs::metadata(place.pool()).unwrap().len();
    two.detach(b).unwrap();
    assert_eq!(len(), 32 * MB);
    one.detach(a).unwrap();
    assert_eq!(len(), 8 * MB);
    // Who had it open all the time takes no chunk that is gone, and may make it larger again.
    let a = two.attach().unwrap();
    let held = std::iter::from_fn(|| a.alloc(2 << 20).ok()).collect::<Vec<_>>();
    assert_eq!(two.pool().chunk_count().unwrap(), 4);
    assert!(held.len() < 4);
    for extent in held {
        a.fill(extent, 0, &[7; 4096]).unwrap();
        a.free(extent).unwrap();
    }
    assert_eq!(two.grow(&a, 12 * MB).unwrap(), 6);
    a.alloc(2 << 20).unwrap();
    let absurd = one.grow(&a, 100 << 40);
    assert!(
        matches!(
            absurd,
            Err(Error::Kernel {
                call: "fallocate",
                ..
            })
        ),
        "{absurd:?}"
    );
    assert!(one.pool().check().unwrap().is_sound());
}

/// Where the kernel cannot reserve what a pool grows by, some file systems take back all that was asked for and is not
/// written yet: what others have below must not be among it.
#[test]
fn a_growth_asks_for_nothing_that_is_there() {
    let place = Place::new("grow-above");
    let pool = PoolFile::create(&place.pool(), 8 * MB, Geometry::default()).unwrap();
    let a = pool.attach().unwrap();
    let path = place.pool();
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_os_str().as_bytes(), flags, Mode::empty()).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 6 * MB, 2 * MB).unwrap();
    let reserved = || fs::metadata(&path).unwrap().blocks() * 512;
    let before = reserved();
    assert_eq!(pool.grow(&a, 12 * MB).unwrap(), 6);
    let more = reserved() - before;
    assert!((4 * MB..5 * MB).contains(&more), "{more}");
}

fn refused(path: &Path) -> Error {
    PoolFile::open(path).expect_err("refused")
}

#[test]
fn what_is_not_this_users_pool_is_refused() {
    let place = Place::new("refuse");
    let path = place.pool();
    drop(PoolFile::create(&path, 8 * MB, Geometry::default()).unwrap());

    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(
        refused(&path),
        Error::OpenToOthers { mode: 0o644 }
    ));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(matches!(refused(&path), Error::ReadOnly));
    let looked = PoolFile::open_read_only(&path).unwrap();
    assert!(looked.check().unwrap().is_sound());
    assert!(looked.info().unwrap().clean);
    assert!(looked.attach().is_err(), "looking is not attaching");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();

    if rustix::process::geteuid().is_root() {
        chown(&path, Some(12345), None).unwrap();
        assert!(matches!(
            refused(&path),
            Error::NotYours {
                owner: 12345,
                user: 0
            }
        ));
        chown(&path, Some(0), None).unwrap();
    }

    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(5 * MB).unwrap();
    assert!(matches!(
        refused(&path),
        Error::Truncated {
            expected: 8388608,
            found: 5242880
        }
    ));
    file.set_len(100).unwrap();
    assert!(matches!(refused(&path), Error::Truncated { .. }));
    fs::write(&path, [b'x'; 9000]).unwrap();
    assert!(matches!(refused(&path), Error::ForeignMagic { .. }));
    fs::write(&path, [0; 9000]).unwrap();
    assert!(matches!(refused(&path), Error::Unfinished));

    assert!(matches!(refused(Path::new("/dev/null")), Error::NotAFile));
    assert!(matches!(refused(&place.0), Error::Kernel { .. }));
    assert!(matches!(
        refused(&place.0.join("none")),
        Error::Kernel { call: "open", .. }
    ));
    let on_proc = PoolFile::create(Path::new("/proc/self/pool"), 8 * MB, Geometry::default());
    assert!(
        matches!(on_proc, Err(Error::WrongFileSystem { .. })),
        "{on_proc:?}"
    );
    let small = PoolFile::create(&place.0.join("small"), 2 * MB, Geometry::default());
    assert!(matches!(small, Err(Error::Invalid(_))));
    // Refused before anything is taken: other tests use the same disk.
    let fs = rustix::fs::statfs(place.0.as_os_str().as_bytes()).unwrap();
    let beyond = (fs.f_bavail * fs.f_bsize as u64 + (1 << 30)).next_multiple_of(2 * MB);
    let geometry = Geometry {
        max_chunks: (beyond / (2 * MB)) as u32 + 2,
        ..Geometry::default()
    };
    let huge = PoolFile::create(&place.0.join("huge"), beyond, geometry);
    assert!(
        matches!(
            huge,
            Err(Error::Kernel {
                call: "fallocate",
                ..
            })
        ),
        "{huge:?}"
    );
    let left: Vec<_> = fs::read_dir(&place.0)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(
        !left.contains(&place.0.join("small")),
        "nothing half-made is left: {left:?}"
    );
}

#[test]
fn a_pool_that_is_cut_short_while_mapped_is_an_error_not_a_signal() {
    let place = Place::new("cut");
    let pool = PoolFile::create(&place.pool(), 8 * MB, Geometry::default()).unwrap();
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    stage(&a, file, 0, &[5; 100], When::Now).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(place.pool())
        .unwrap()
        .set_len(4096)
        .unwrap();
    assert!(adit_pmem::fault::install().is_ok());
    let error = stage(&a, file, 0, &[5; 100], When::Now).expect_err("the medium is gone");
    assert!(
        matches!(error, Error::OutOfRange(_) | Error::Forgotten),
        "{error}"
    );
    assert!(pool.pool().medium().mapped().damage().is_some());
}

/// Nearly all entries can be used, and chunks for names are taken one after the other as they are needed.
#[test]
fn the_table_of_files_can_be_filled() {
    let place = Place::new("entries");
    let geometry = Geometry {
        file_count: 1024,
        ..Geometry::default()
    };
    let file = PoolFile::create(&place.pool(), 32 * MB, geometry).unwrap();
    let attachment = file.attach().unwrap();
    let name = |n: u64| FileName {
        handle_type: 1,
        handle: crc32c::crc32c(&n.to_le_bytes()).to_le_bytes().to_vec(),
        path: format!("/some/where/file-{n}").into_bytes(),
        device: 42,
    };
    let names = || {
        let chunks = file.pool().chunk_count().unwrap();
        let words = (0..chunks).filter_map(|chunk| file.pool().chunk_word(chunk).unwrap());
        words.filter(|word| word.kind == ChunkKind::Names).count()
    };
    let mut entered = Vec::new();
    for n in 0..1200 {
        match attachment.enter_file(&name(n)) {
            Ok(file) => entered.push((n, file)),
            Err(Error::TooManyFiles { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        if n == 150 {
            assert_eq!(names(), 1, "a second chunk of names for so few files");
        }
    }
    assert_eq!(names(), 4);
    assert!(entered.len() > 1000, "only {} files", entered.len());
    assert!(
        entered.iter().take(850).map(|(n, _)| *n).eq(0..850),
        "one of the first was refused"
    );
    for (n, file) in &entered {
        let found = attachment.pool().find_file(&name(*n)).unwrap();
        assert_eq!(found, Some(*file), "file {n}");
    }
    for (_, file) in entered {
        attachment.forget_file(file).unwrap();
    }
    assert_eq!(attachment.pool().find_file(&name(3)).unwrap(), None);
}
