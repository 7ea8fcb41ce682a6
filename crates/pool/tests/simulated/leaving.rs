//! Who leaves the pool with records that count, while somebody buries the dead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use adit_pmem::{Medium, OutOfRange};
use adit_pool::{Attachment, Hold, LocalLocks, Pool, Result, SlotLocks, When};
use adit_sim::{SimMedium, World};

use crate::common::*;
use crate::pools::*;
use crate::replay::replayed;

type Deed = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
struct Steps {
    next: Arc<Mutex<Option<(u32, Deed)>>>,
    busy: Arc<AtomicBool>,
}

impl Steps {
    fn step(&self) {
        if self.busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let front = self.next.lock().unwrap().take();
        match front {
            Some((0, deed)) => deed(),
            Some((left, deed)) => *self.next.lock().unwrap() = Some((left - 1, deed)),
            None => {}
        }
        self.busy.store(false, Ordering::Relaxed);
    }
}

struct Stepped(SimMedium, Steps);

impl Medium for Stepped {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn load(&self, offset: u64) -> std::result::Result<u64, OutOfRange> {
        self.1.step();
        self.0.load(offset)
    }
    fn store(&self, offset: u64, value: u64) -> std::result::Result<(), OutOfRange> {
        self.0.store(offset, value)
    }
    fn compare_exchange(
        &self,
        at: u64,
        old: u64,
        new: u64,
    ) -> std::result::Result<std::result::Result<u64, u64>, OutOfRange> {
        self.0.compare_exchange(at, old, new)
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), OutOfRange> {
        self.1.step();
        self.0.read(offset, into)
    }
    fn write_streaming(&self, offset: u64, from: &[u8]) -> std::result::Result<(), OutOfRange> {
        self.0.write_streaming(offset, from)
    }
    fn flush(&self, offset: u64, len: u64) -> std::result::Result<(), OutOfRange> {
        self.0.flush(offset, len)
    }
    fn fence(&self) {
        self.0.fence();
    }
}

fn leave_meanwhile(step: u32) -> Result<(bool, String)> {
    let world = World::new(tiny_size(12));
    Pool::create(&world.medium(), &options(TINY))?;
    let locks = LocalLocks::default();
    let steps = Steps::default();
    let plain = open(world.medium(), &locks, boot(1))?;
    let stepped = open(Stepped(world.medium(), steps.clone()), &locks, boot(1))?;
    let stays: Attachment<SimMedium> = plain.attach()?;
    let buries = stepped.attach()?;
    let leaves = plain.attach()?;
    let file = stays.enter_file(&name(1))?;
    let deed = move || {
        stage(&leaves, file, 0, &[7; 5000], When::Now).expect("stage");
        leaves.detach().expect("detach");
    };
    *steps.next.lock().unwrap() = Some((step, Box::new(deed)));
    buries.release_orphans()?;
    let in_time = steps.next.lock().unwrap().is_none();
    let found = stays.scan()?;
    let mut what = String::new();
    if in_time {
        match found.files.first() {
            None => what = "the record is gone".to_owned(),
            Some(_) => {
                let bytes = replayed(&plain, &found, file, &[])?;
                if bytes != [7; 5000] {
                    what = format!("{} bytes", bytes.len());
                }
            }
        }
    }
    Ok((in_time, what))
}

#[test]
fn what_is_left_beside_a_burial_is_kept() {
    let mut lost = Vec::new();
    for step in 0.. {
        let (in_time, what) = leave_meanwhile(step).expect("pool");
        if !what.is_empty() {
            lost.push((step, what));
        }
        if !in_time {
            assert!(step > 20);
            break;
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

/// Of which slot, and what happens: he leaves, another one comes.
type Change = (u32, [Deed; 2]);

/// Locks by which somebody is asked for just when he leaves and another one takes his slot.
#[derive(Clone)]
struct Changing(LocalLocks, Arc<Mutex<Option<Change>>>);

impl SlotLocks for Changing {
    fn claim(&self, slot: u32) -> Result<Option<Box<dyn Hold>>> {
        self.0.claim(slot)
    }
    fn is_alive(&self, slot: u32) -> bool {
        let deeds = self.1.lock().unwrap().take_if(|(of, _)| *of == slot);
        let Some((_, [leave, come])) = deeds else {
            return self.0.is_alive(slot);
        };
        leave();
        let alive = self.0.is_alive(slot);
        come();
        alive
    }
    fn gate(&self) -> Result<Box<dyn Hold>> {
        self.0.gate()
    }
}

/// Nobody is buried for who had his slot before him: his chunks would be used for others' bytes.
#[test]
fn who_takes_a_slot_beside_a_burial_is_not_buried() {
    let world = World::new(tiny_size(12));
    Pool::create(&world.medium(), &options(TINY)).expect("create");
    let locks = LocalLocks::default();
    let plain = open(world.medium(), &locks, boot(1)).expect("open");
    let stays = plain.attach().expect("attach");
    let file = stays.enter_file(&name(1)).expect("enter");
    let leaves = plain.attach().expect("attach");
    let slot = leaves.slot();
    let came: Arc<Mutex<Option<Attachment<SimMedium>>>> = Arc::default();
    let leave = move || leaves.detach().expect("detach");
    let come = {
        let (plain, came) = (Arc::clone(&plain), Arc::clone(&came));
        move || {
            let attached = plain.attach().expect("attach");
            assert_eq!(attached.slot(), slot);
            stage(&attached, file, 0, &[7; 5000], When::Now).expect("stage");
            *came.lock().unwrap() = Some(attached);
        }
    };
    let deeds: [Deed; 2] = [Box::new(leave), Box::new(come)];
    let changing = Changing(locks, Arc::default());
    let pool = Pool::open(world.medium(), Box::new(changing.clone()), boot(1)).expect("open");
    let buries = pool.attach().expect("attach");
    *changing.1.lock().unwrap() = Some((slot, deeds));
    let released = buries.release_orphans().expect("release");
    assert_eq!(released.slots, 0);
    let came = came.lock().unwrap().take().expect("somebody came");
    let there = plain.slots().expect("slots");
    assert!(there.iter().any(|seat| seat.slot == slot && seat.alive));
    drop(came);
    // Now he is dead.
    assert_eq!(buries.release_orphans().expect("release").slots, 1);
    let found = stays.scan().expect("scan");
    let bytes = replayed(&plain, &found, file, &[]).expect("replay");
    assert_eq!(bytes, [7; 5000]);
}
