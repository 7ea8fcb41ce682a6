//! A read in whose middle everything else happens: the bytes it is copying are overwritten, published,
//! and their space is used again. Each test first shows that an unchecked copy is torn then.

use std::sync::{Mutex, PoisonError};

use adit_pmem::OutOfRange;

use super::*;

type Act = Box<dyn FnOnce() + Send>;

/// What is to happen in the middle of the next long copy.
#[derive(Clone, Default)]
struct Middle(Arc<Mutex<Option<Act>>>);

impl Middle {
    fn set(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    fn happens(&self) {
        let act = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            act();
        }
    }
}

/// A copy of a page comes in two halves, with a middle.
struct SlowMedium(SimMedium, Middle);

impl Medium for SlowMedium {
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
        at: u64,
        old: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        self.0.compare_exchange(at, old, new)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        if into.len() != PAGE {
            return self.0.read(offset, into);
        }
        let (first, second) = into.split_at_mut(PAGE / 2);
        self.0.read(offset, first)?;
        self.1.happens();
        self.0.read(offset + first.len() as u64, second)
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

struct SlowBase(SimFile, Middle);

impl BaseFile for SlowBase {
    fn size(&self) -> Result<u64, Errno> {
        self.0.size()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let (first, second) = into.split_at_mut(into.len() / 2);
        let read = self.0.read_at(offset, first)?;
        self.1.happens();
        Ok(read + self.0.read_at(offset + first.len() as u64, second)?)
    }
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.0.write_at(offset, from)
    }
    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.0.set_size(size)
    }
    fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.0.reserve(offset, len)
    }
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.0.punch(offset, len)
    }
    fn clone_range(&self, at: u64, from: &Self, from_at: u64, len: u64) -> Result<(), Errno> {
        self.0.clone_range(at, &from.0, from_at, len)
    }
    fn exchange_range(&self, _: u64, _: &Self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
    fn sync(&self) -> Result<(), Errno> {
        self.0.sync()
    }
}

const PAGE: usize = 4096;

type Slow = StagedFile<SlowMedium, SlowBase>;

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

fn is_whole(bytes: &[u8]) -> bool {
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
    let unchecked = staged.read_once(0, &mut bytes).expect("read");
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

#[test]
fn a_publication_under_a_read_of_the_base_is_never_seen_in_part() {
    let (staged, _, middle) = slow_file();
    let mut bytes = vec![0; PAGE];
    middle.set({
        let staged = Arc::clone(&staged);
        move || churn(&staged, 3..4)
    });
    let unchecked = staged.read_once(0, &mut bytes).expect("read");
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
