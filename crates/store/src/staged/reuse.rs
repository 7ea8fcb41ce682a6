//! When bytes of the pool are used again that a reader may be copying, before their records are retired.
//!
//! Readers take no lock: they note the epoch, look at the overlay, copy, and look at the epoch again. It
//! moves after the overlay has stopped naming the bytes and before they are overwritten; so a reader that
//! has copied any of the new bytes sees that it moved. Nothing here knows what the bytes are, and the
//! atomics come from the parent module, so that a checker can put its own in their place.

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// See the module.
pub(super) struct Reuse {
    epoch: AtomicU64,
    /// Readers that were disturbed too often.
    pins: AtomicU32,
}

impl Reuse {
    pub(super) fn new() -> Self {
        Self {
            epoch: AtomicU64::new(0),
            pins: AtomicU32::new(0),
        }
    }

    /// To be noted before the overlay is looked at.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether nothing was used again since: to be asked when everything is copied.
    pub(super) fn is_still(&self, epoch: u64) -> bool {
        // What was copied is not overtaken by the look at the epoch.
        fence(Ordering::Acquire);
        self.epoch.load(Ordering::Relaxed) == epoch
    }

    /// From here on bytes may be overwritten that the overlay does not name any more.
    pub(super) fn move_on(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        // Nor does any of these stores overtake the epoch.
        fence(Ordering::Release);
    }

    /// [`Reuse::move_on`], unless a reader would be disturbed that has had enough of it. It need not see
    /// a pin that is just being set: that reader is disturbed once more.
    pub(super) fn move_on_gently(&self) -> bool {
        let alone = self.pins.load(Ordering::Relaxed) == 0;
        if alone {
            self.move_on();
        }
        alone
    }

    /// While it lives nothing is used again gently.
    pub(super) fn pin(&self) -> Pin<'_> {
        self.pins.fetch_add(1, Ordering::Relaxed);
        Pin(self)
    }
}

/// A reader that is not to be disturbed.
pub(super) struct Pin<'a>(&'a Reuse);

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Relaxed);
    }
}
