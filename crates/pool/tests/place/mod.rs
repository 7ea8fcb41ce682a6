//! A place of a test's own for pools, in memory; and the whole test program once more on a disk.

#[path = "../../../../tests/scratch.rs"]
pub(crate) mod scratch;

use std::fs;
use std::path::PathBuf;

use adit_pool::PoolFile;
use adit_pool::layout::Geometry;

/// A directory of the test's own, removed at the end.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(test: &str) -> Self {
        let place = scratch::place().join(format!("adit-pool-{test}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        Self(place)
    }

    pub(crate) fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }

    #[allow(
        dead_code,
        reason = "not every test program makes its pools in one way"
    )]
    pub(crate) fn create(&self, size: u64) -> PoolFile {
        PoolFile::create(&self.pool(), size, Geometry::default()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All of it once more where stores go through the page cache, if the build lies on such a medium.
#[test]
fn on_cached_media_too() {
    if scratch::named().is_some() {
        println!("skipped: the lab says where all others are");
        return;
    }
    let Some(dir) = scratch::disk(env!("CARGO_TARGET_TMPDIR")) else {
        return;
    };
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "on_cached_media_too"])
        .env("ADIT_TEST_SCRATCH", dir)
        .output()
        .unwrap();
    assert!(
        again.status.success(),
        "{}{}",
        String::from_utf8_lossy(&again.stdout),
        String::from_utf8_lossy(&again.stderr)
    );
}
