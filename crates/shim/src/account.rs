//! What `adit stat` shows of a description that is open for writing: what was served, and whether the
//! file has only a weaker promise than its mode's.
//!
//! A file enters the registry when its use has paid for that, by calls that were served or that the kernel did, or with the
//! first write that the mode would have staged and the kernel got: so a file with a weaker promise is always shown.

use crate::signal::engine;
use crate::{data, descriptors, init, stack};
use adit_store::registry::{FileId, FileSlot, Promise, Reason};
use adit_store::staged::Mode;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// Calls after which a file is shown.
const PAID: u32 = 64;

/// See the module.
pub(crate) struct Account {
    slot: OnceLock<FileSlot>,
    served: AtomicU32,
    /// Calls that the kernel did before the file was shown.
    early: AtomicU32,
    /// Why the kernel has the description, as an index of [`Reason::ALL`].
    why: AtomicU32,
}

impl Account {
    /// Of a description that the kernel has from the start, if it has it.
    pub(crate) fn new() -> Self {
        Self {
            slot: OnceLock::new(),
            served: AtomicU32::new(0),
            early: AtomicU32::new(0),
            why: AtomicU32::new(Reason::Flags as u32),
        }
    }

    /// From now on calls go to the kernel, because of this.
    pub(crate) fn because(&self, why: Reason) {
        self.why.store(why as u32, Ordering::Relaxed);
    }

    /// The engine has served a call.
    #[inline]
    pub(crate) fn served(&self, fd: i32, count: impl FnOnce(&FileSlot)) {
        match self.slot.get() {
            Some(slot) => {
                slot.has_promise(Promise::Staged);
                count(slot);
            }
            None => {
                if let Some(slot) = self.pay(fd) {
                    slot.has_promise(Promise::Staged);
                }
            }
        }
    }

    /// A read of what is not staged was served from a mapping.
    #[inline]
    pub(crate) fn mapped(&self, fd: i32, read: usize) {
        match self.slot.get() {
            Some(slot) => slot.served_read(read),
            None => drop(self.pay(fd)),
        }
    }

    fn pay(&self, fd: i32) -> Option<&FileSlot> {
        // Counts that two threads take from each other only delay it.
        let paid = self.served.load(Ordering::Relaxed).wrapping_add(1);
        self.served.store(paid, Ordering::Relaxed);
        (paid == PAID).then(|| self.enter(fd))?
    }

    /// The kernel has done a call as well as the mode promises, as the use of the file has not paid for more yet.
    pub(crate) fn not_yet(&self, fd: i32) {
        if let Some(slot) = self.slot.get() {
            return slot.passed(Reason::Unmapped, 1);
        }
        // As in `pay`.
        let early = self.early.load(Ordering::Relaxed).wrapping_add(1);
        self.early.store(early, Ordering::Relaxed);
        if early == PAID {
            self.enter(fd);
        }
    }

    /// The kernel has written for the description.
    pub(crate) fn passed(&self, fd: i32, mode: Mode) {
        let Some(slot) = self.slot.get().or_else(|| self.enter(fd)) else {
            return;
        };
        // In mode `sync` the kernel's durable write is all that was promised.
        slot.has_promise(match mode {
            Mode::Posix | Mode::Sync => Promise::Kept,
            Mode::Atomic | Mode::Strict => Promise::Weaker,
        });
        let why = self.why.load(Ordering::Relaxed) as usize;
        slot.passed(Reason::ALL.get(why).copied().unwrap_or(Reason::Other), 1);
    }

    #[cold]
    fn enter(&self, fd: i32) -> Option<&FileSlot> {
        stack::with_room(|| self.enter_here(fd))
    }

    fn enter_here(&self, fd: i32) -> Option<&FileSlot> {
        let _inside = engine::enter();
        // Where file sizes are limited, the registry's own file could exceed the limit.
        if data::KERNEL_WRITES.load(Ordering::Relaxed) {
            return None;
        }
        let stat = descriptors::regular_file(fd)?;
        let id = FileId {
            dev: stat.st_dev,
            ino: stat.st_ino,
        };
        let slot = init::REGISTRY.file(id, fd)?;
        match self.slot.set(slot) {
            Ok(()) => {
                let early = self.early.load(Ordering::Relaxed);
                self.slot.get()?.passed(Reason::Unmapped, early.into());
            }
            Err(second) => second.end(),
        }
        self.slot.get()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.get() {
            slot.end();
        }
    }
}
