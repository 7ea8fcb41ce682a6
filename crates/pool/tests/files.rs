//! Pools as files: private, checked before they are believed, growing, shrinking, refused clearly.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests are not the engine"
)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use adit_pool::layout::Geometry;
use adit_pool::{Error, PoolFile, When};
use common::*;

/// A directory of the test's own in memory, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let place = PathBuf::from(format!("/dev/shm/adit-pool-{test}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        Self(place)
    }

    fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MB: u64 = 1 << 20;

#[test]
fn create_open_use_reopen() {
    let place = Place::new("open");
    let made = PoolFile::create(&place.pool(), 16 * MB, Geometry::default()).unwrap();
    let meta = fs::metadata(place.pool()).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.len()), (0o600, 16 * MB));
    assert_eq!(meta.blocks() * 512, 16 * MB, "blocks are reserved");
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
    pool.sync().unwrap();
    assert!(matches!(
        pool.remove(false),
        Err(Error::Unpublished { files: 1 })
    ));
    PoolFile::open(&place.pool()).unwrap().remove(true).unwrap();
    assert!(!place.pool().exists());
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
    assert!(matches!(one.shrink(&a, 8 * MB), Err(Error::NotFree { .. })));
    b.detach().unwrap();
    assert_eq!(one.shrink(&a, 8 * MB).unwrap(), 4);
    assert_eq!(fs::metadata(place.pool()).unwrap().len(), 8 * MB);
    assert_eq!(one.grow(&a, 12 * MB).unwrap(), 6);
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
    let huge = PoolFile::create(&place.0.join("huge"), 64 << 30, Geometry::default());
    if let Err(error) = huge {
        assert!(
            matches!(
                error,
                Error::Kernel {
                    call: "fallocate",
                    ..
                }
            ),
            "{error}"
        );
    }
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
