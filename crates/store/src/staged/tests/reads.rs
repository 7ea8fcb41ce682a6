//! A read in whose middle everything else happens: the bytes it is copying are overwritten, published,
//! and their space is used again. Each test first shows that an unchecked copy is torn then.

use std::sync::{Mutex, PoisonError};

use adit_pmem::OutOfRange;

use super::super::relink::Plant;
use super::super::shared::planted::{self, Blind};
use super::*;

type Act = Box<dyn FnOnce() + Send>;

/// What is to happen, once, in the middle of something.
#[derive(Clone, Default)]
pub(super) struct Middle(Arc<Mutex<Option<Act>>>);

impl Middle {
    pub(super) fn set(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    pub(super) fn happens(&self) {
        let act = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            act();
        }
    }
}

/// A copy of a page comes in two halves, with a middle.
pub(super) struct SlowMedium(pub(super) SimMedium, pub(super) Middle);

impl Medium for SlowMedium {
    medium_of!(0: size load store compare_exchange write_streaming flush fence);

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        if into.len() != PAGE {
            return self.0.read(offset, into);
        }
        let (first, second) = into.split_at_mut(PAGE / 2);
        self.0.read(offset, first)?;
        self.1.happens();
        self.0.read(offset + first.len() as u64, second)
    }
}

/// A base file in the middle of whose next read something happens.
pub(super) struct SlowBase(pub(super) SimFile, pub(super) Middle);

impl BaseFile for SlowBase {
    base_of!(0: size write_at sync);

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let (first, second) = into.split_at_mut(into.len() / 2);
        let read = self.0.read_at(offset, first)?;
        self.1.happens();
        Ok(read + self.0.read_at(offset + first.len() as u64, second)?)
    }
}

const PAGE: usize = 4096;

type Slow = StagedFile<AnyMedium, SlowBase>;

fn slow_file() -> (Arc<Slow>, Middle, Middle) {
    let world = World::new(tiny_size(6));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &[1; PAGE]).expect("write");
    let (medium, base) = (Middle::default(), Middle::default());
    let pool = open_pool(SlowMedium(world.medium(), medium.clone()), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let slow = SlowBase(file.clone(), base.clone());
    let staged = StagedFile::open(&stage, &name_of(&file), slow, Mode::Strict).expect("stage");
    (Arc::new(staged), medium, base)
}

/// Overwrites and publishes until every page of the small pool was used again.
fn churn(staged: &Slow, rounds: std::ops::Range<u8>) {
    for round in rounds {
        staged.write_at(0, &[round; PAGE]).expect("write");
        staged.publish(Scope::Everything).expect("publish");
    }
}

/// A copy and what is thought of it.
#[allow(unsafe_code, reason = "one attempt is internal, and takes addresses")]
fn read_once(staged: &Slow, bytes: &mut [u8]) -> Option<usize> {
    let into = [(bytes.as_mut_ptr(), bytes.len())];
    // SAFETY: the buffer is a slice.
    unsafe { staged.read_once(0, &into) }.expect("read")
}

pub(super) fn is_whole(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == bytes[0])
}

#[test]
fn a_pool_page_that_was_used_again_is_never_returned() {
    let (staged, middle, _) = slow_file();
    let mut bytes = vec![0; PAGE];
    staged.write_at(0, &[2; PAGE]).expect("write");
    middle.set({
        let staged = Arc::clone(&staged);
        move || churn(&staged, 3..40)
    });
    let unchecked = read_once(&staged, &mut bytes);
    assert!(
        !is_whole(&bytes),
        "the page was not used again: the test shows nothing"
    );
    assert_eq!(unchecked, None);
    staged.write_at(0, &[50; PAGE]).expect("write");
    middle.set({
        let staged = Arc::clone(&staged);
        move || churn(&staged, 51..90)
    });
    assert_eq!(staged.read_at(0, &mut bytes).expect("read"), PAGE);
    assert_eq!(bytes, [89; PAGE]);
}

/// Nothing is published: a page comes back because a newer one covers it.
#[test]
fn a_page_that_was_covered_and_used_again_is_never_returned() {
    let (staged, middle, _) = slow_file();
    let mut bytes = vec![0; PAGE];
    let overwrite = |staged: &Slow, rounds: std::ops::Range<u8>| {
        for round in rounds {
            staged.write_at(0, &[round; PAGE]).expect("write");
        }
    };
    staged.write_at(0, &[2; PAGE]).expect("write");
    middle.set({
        let staged = Arc::clone(&staged);
        move || overwrite(&staged, 3..6)
    });
    let unchecked = read_once(&staged, &mut bytes);
    assert!(
        !is_whole(&bytes),
        "the page was not used again: the test shows nothing"
    );
    assert_eq!(unchecked, None);
    middle.set({
        let staged = Arc::clone(&staged);
        move || overwrite(&staged, 6..9)
    });
    assert_eq!(staged.read_at(0, &mut bytes).expect("read"), PAGE);
    assert_eq!(bytes, [8; PAGE]);
}

#[test]
fn a_publication_under_a_read_of_the_base_is_never_seen_in_part() {
    let (staged, _, middle) = slow_file();
    let mut bytes = vec![0; PAGE];
    middle.set({
        let staged = Arc::clone(&staged);
        move || churn(&staged, 3..4)
    });
    let unchecked = read_once(&staged, &mut bytes);
    assert!(
        !is_whole(&bytes),
        "nothing was published: the test shows nothing"
    );
    assert_eq!(unchecked, None);
    middle.set({
        let staged = Arc::clone(&staged);
        move || churn(&staged, 4..5)
    });
    assert_eq!(staged.read_at(0, &mut bytes).expect("read"), PAGE);
    assert_eq!(bytes, [4; PAGE]);
}

type Deed = Box<dyn FnMut() + Send>;

/// A base file in the middle of each of whose reads something happens.
struct CrowdedBase(SimFile, Arc<Mutex<Option<Deed>>>);

impl BaseFile for CrowdedBase {
    base_of!(0: size write_at sync);

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        if let Some(deed) = &mut *self.1.lock().expect("nobody has failed") {
            deed();
        }
        self.0.read_at(offset, into)
    }
}

/// Each `fsync` of a file that is shared publishes, or shows, what is committed: a read that takes longer than one ended
/// when nobody synced any more.
#[test]
fn a_read_ends_where_others_publish_all_the_time() {
    const MOST: usize = 500;
    let world = World::new(tiny_size(12));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &[1; PAGE]).expect("write");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = || Stage::new(pool.attach().expect("attach"));
    let (reader, writer) = (stage(), stage());
    let deeds: Arc<Mutex<Option<Deed>>> = Arc::default();
    let base = CrowdedBase(file.clone(), Arc::clone(&deeds));
    let ours = StagedFile::open(&reader, &name_of(&file), base, Mode::Strict).expect("stage");
    ours.share().expect("share");
    let theirs =
        StagedFile::open_entry(&writer, ours.file(), file.clone(), Mode::Strict).expect("stage");
    let times = Arc::new(Mutex::new(0));
    *deeds.lock().expect("nobody has failed") = Some(Box::new({
        let times = Arc::clone(&times);
        move || {
            let lock = writer.attachment().try_lock_file(theirs.file());
            // Nobody waits here for a lock that the reader holds.
            let is_free = lock.expect("it lives").is_some();
            let mut times = times.lock().expect("nobody has failed");
            if is_free && *times < MOST {
                *times += 1;
                theirs.append(&[2; 64]).expect("append");
                theirs.show_committed().expect("show");
            }
        }
    }));
    let mut bytes = vec![0; PAGE];
    assert_eq!(ours.read_at(0, &mut bytes).expect("read"), PAGE);
    assert_eq!(bytes, [1; PAGE]);
    let times = *times.lock().expect("nobody has failed");
    assert!((10..MOST).contains(&times), "{times}");
}

/// A process reads a page that it staged, after another one has relinked it: one attempt, and the bytes.
fn read_what_was_relinked(can: Can, plant: Plant) -> (Option<usize>, Vec<u8>) {
    let world = World::new(tiny_size(12));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &[1; PAGE]).expect("write");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let base = || SimBase::File(file.clone(), can);
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), base(), Mode::Strict).expect("stage");
    staged.write_at(0, &[2; PAGE]).expect("write");
    let other = Stage::new(pool.attach().expect("attach"));
    let theirs = StagedFile::open_entry(&other, staged.file(), base(), Mode::Strict);
    let mut relink = relink_from(&world);
    relink.plant = plant;
    let theirs = theirs.expect("stage").with_relink(relink);
    theirs.publish(Scope::Everything).expect("publish");
    let word = pool.version(staged.file()).expect("word");
    assert_eq!(word >> 63, 0, "the relink is not over");
    let mut bytes = vec![0; PAGE];
    // The mark would tell as well, but moves after the bytes do.
    planted::be(Blind::Mark);
    #[allow(unsafe_code, reason = "one attempt is internal, and takes addresses")]
    // SAFETY: the buffer is a slice.
    let read = unsafe { staged.read_once(0, &[(bytes.as_mut_ptr(), PAGE)]) }.expect("read");
    planted::be(Blind::No);
    (read, bytes)
}

#[test]
fn a_page_that_went_to_the_file_is_never_read_from_the_pool() {
    for can in [Can::Exchange, Can::Clone] {
        let (read, bytes) = read_what_was_relinked(can, Plant::Nothing);
        assert_eq!((read, bytes), (Some(PAGE), vec![2; PAGE]), "{can:?}");
        let (read, bytes) = read_what_was_relinked(can, Plant::NoNotice);
        assert_eq!(read, Some(PAGE));
        assert_ne!(bytes, vec![2; PAGE], "{can:?}: the test shows nothing");
    }
}
