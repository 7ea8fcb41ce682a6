//! Who is alive: the seam between the pool and the locks that tell.
//!
//! On a real pool these are OFD locks on the pool file ([`crate::ofd::FileLocks`]); on a simulated or
//! private medium they are [`LocalLocks`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// Something held until dropped.
pub trait Hold: Send + Sync {}

/// Locks that end with their holder, one per slot, and a gate.
pub trait SlotLocks: Send + Sync {
    /// Takes the slot's lock; `None` when somebody alive has it.
    fn claim(&self, slot: u32) -> Result<Option<Box<dyn Hold>>>;

    /// Whether somebody alive holds the slot's lock. In doubt: yes.
    fn is_alive(&self, slot: u32) -> bool;

    /// Whether somebody alive holds one of the first so many. In doubt: yes.
    fn is_any_alive(&self, slots: u32) -> bool {
        (0..slots).any(|slot| self.is_alive(slot))
    }

    /// Waits for the gate: attaching, detaching and whatever needs the pool to itself exclude each
    /// other while they hold it.
    fn gate(&self) -> Result<Box<dyn Hold>>;
}

/// Slot locks inside one process, for simulated and private media.
#[derive(Debug, Clone, Default)]
pub struct LocalLocks {
    held: Arc<Mutex<BTreeSet<u32>>>,
}

/// The gate shares the set of held slots under a number that no slot has.
const GATE: u32 = u32::MAX;

impl LocalLocks {
    fn take(&self, slot: u32) -> Option<Box<dyn Hold>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(slot).then(|| {
            Box::new(LocalHold {
                locks: self.clone(),
                slot,
            }) as Box<dyn Hold>
        })
    }
}

impl SlotLocks for LocalLocks {
    fn claim(&self, slot: u32) -> Result<Option<Box<dyn Hold>>> {
        Ok(self.take(slot))
    }

    fn is_alive(&self, slot: u32) -> bool {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&slot)
    }

    fn gate(&self) -> Result<Box<dyn Hold>> {
        for _ in 0..10_000 {
            if let Some(hold) = self.take(GATE) {
                return Ok(hold);
            }
            adit_pmem::rest(std::time::Duration::from_micros(200));
        }
        Err(Error::Busy {
            lock: "gate",
            slot: GATE,
            thread: 0,
        })
    }
}

struct LocalHold {
    locks: LocalLocks,
    slot: u32,
}

impl Hold for LocalHold {}

impl Drop for LocalHold {
    fn drop(&mut self) {
        self.locks
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.slot);
    }
}
