//! What fails once a file is published, or its staging has ended, is no failure of that.

use std::sync::atomic::{AtomicBool, Ordering};

use adit_pmem::OutOfRange;
use adit_pool::layout::Record;

use super::*;

/// Of a medium that has failed no record is read any more.
struct FailedMedium(SimMedium, Arc<AtomicBool>);

impl Medium for FailedMedium {
    medium_of!(0: size load store compare_exchange write_streaming flush fence);

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        if into.len() == Record::SIZE && self.1.load(Ordering::Relaxed) {
            return self.0.read(u64::MAX, into);
        }
        self.0.read(offset, into)
    }
}

/// Has a file published, or its staging ended, by a program that cannot collect the space then.
fn without_space<T>(
    end: impl FnOnce(&StagedFile<AnyMedium, SimFile>, &AtomicBool) -> crate::staged::Result<T>,
) {
    let world = World::new(tiny_size(6));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let failed = Arc::new(AtomicBool::new(false));
    let medium = FailedMedium(world.medium(), Arc::clone(&failed));
    let pool = open_pool(medium, boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged =
        StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Strict).expect("stage");
    staged.append(&[7; 5000]).expect("append");
    let ended = end(&staged, &failed);
    assert!(ended.is_ok(), "{:?}", ended.err());
    assert_eq!(file.size().expect("size"), 5000);
    assert!(
        stage.reclaim().is_err(),
        "nothing failed: the test shows nothing"
    );
}

/// The base file is complete and the entry gone, so whoever closed the file has to know nothing of the
/// space that could not be freed: it is freed some other time.
#[test]
fn space_that_cannot_be_freed_fails_no_close() {
    without_space(|staged, failed| staged.take_away(|| failed.store(true, Ordering::Relaxed)));
}

/// Nor does whoever has only published it.
#[test]
fn space_that_cannot_be_freed_fails_no_publication() {
    without_space(|staged, failed| {
        failed.store(true, Ordering::Relaxed);
        staged.publish(Scope::Everything)
    });
}
