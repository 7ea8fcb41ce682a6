//! A walk beside two who write one file in turns finds the later of two records and not the earlier one, and the end of the
//! numbers does not tell: what it has found says so itself.

use adit_pmem::{Medium, OutOfRange};
use adit_pool::{LocalLocks, Pool, When};
use std::sync::{Arc, Mutex};

use crate::common::*;
use crate::memory::Memory;
use crate::pools::*;

type Act = Box<dyn FnOnce() + Send>;
struct Hooked(Memory, u64, Arc<Mutex<Option<Act>>>);
impl Medium for Hooked {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn load(&self, o: u64) -> Result<u64, OutOfRange> {
        self.0.load(o)
    }
    fn store(&self, o: u64, v: u64) -> Result<(), OutOfRange> {
        self.0.store(o, v)
    }
    fn compare_exchange(&self, o: u64, a: u64, b: u64) -> Result<Result<u64, u64>, OutOfRange> {
        self.0.compare_exchange(o, a, b)
    }
    fn write_streaming(&self, o: u64, f: &[u8]) -> Result<(), OutOfRange> {
        self.0.write_streaming(o, f)
    }
    fn flush(&self, o: u64, l: u64) -> Result<(), OutOfRange> {
        self.0.flush(o, l)
    }
    fn fence(&self) {
        self.0.fence()
    }
    fn read(&self, o: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        if o == self.1 && into.len() > 64 {
            let act = self.2.lock().unwrap().take();
            if let Some(act) = act {
                act()
            }
        }
        self.0.read(o, into)
    }
}

#[test]
fn a_walk_beside_two_writers() {
    let medium = Memory::new(&vec![0; tiny_size(20) as usize]);
    Pool::create(&medium, &options(TINY)).unwrap();
    let locks = LocalLocks::default();
    let pool = open(medium.clone(), &locks, boot(1)).unwrap();
    let [one, other, dead] = [(); 3].map(|()| pool.attach().unwrap());
    let file = one.enter_file(&name(1)).unwrap();
    for (nth, a) in [&one, &other, &dead].into_iter().enumerate() {
        stage(a, file, nth as u64 * 60, &[1; 60], When::Now).unwrap();
    }
    drop(dead);
    let word = |c: &u32| pool.chunk_word(*c).unwrap().unwrap();
    let second = (0..pool.chunk_count().unwrap())
        .find(|c| {
            word(c).kind == adit_pool::layout::ChunkKind::Log
                && u32::from(word(c).owner) == other.slot() + 1
        })
        .unwrap();
    let hook: Arc<Mutex<Option<Act>>> = Arc::default();
    let hooked = Hooked(medium.clone(), TINY.chunk(second), Arc::clone(&hook));
    let recoverer = open(hooked, &locks, boot(1)).unwrap().attach().unwrap();
    *hook.lock().unwrap() = Some(Box::new(move || {
        stage(&one, file, 1000, &[2; 60], When::Now).unwrap();
        stage(&other, file, 2000, &[3; 60], When::Now).unwrap();
        std::mem::forget((one, other));
    }));
    let found = recoverer.scan().unwrap();
    let its = &found.files[0];
    let guard = recoverer.lock_file(file).unwrap();
    assert!(its.orphaned);
    assert_eq!(
        (its.records, its.last_seq, guard.next_seq().unwrap()),
        (4, 5, 6)
    );
    assert!(!found.has_all_behind(file, 0));
    drop(guard);
    assert!(recoverer.scan().unwrap().has_all_behind(file, 0));
}
