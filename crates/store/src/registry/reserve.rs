//! Asking the monitor to keep blocks reserved ahead of an appending descriptor.

use core::sync::atomic::Ordering;

use rustix::fd::RawFd;
use rustix::io::Errno;

use super::attach::Registry;
use super::dir::RuntimeDir;
use super::layout::reserving::{ASKED, HELD, NEVER};
use super::slot::FileSlot;
use super::sys;
use super::text::number;
use super::wire::{PATIENCE, Request, Target, ask};
use crate::clock;

/// Appends between two looks at the clock: a window.
const WINDOW: u64 = 16;

/// Windows that are judged together. Asking and releasing cost as much as some hundred appends
/// gain, so a file must have shown a thousand that it is worth it.
const WINDOWS: u32 = 64;

/// A window this short is part of a burst, in which reserved blocks save time.
const FAST: u64 = WINDOW * 5_000;

/// A window this long contains a pause, in which blocks can be reserved. Measured: with pauses of
/// 200 microseconds the monitor meets the next append too often and nothing is gained.
const SLOW: u64 = 500_000;

/// Of the judged windows so many must be fast, and so many slow. Programs that append without a
/// pause have slow windows too when the machine is busy, but few.
const FAST_WINDOWS: u32 = 16;
const SLOW_WINDOWS: u32 = 3;

impl FileSlot {
    /// Records an append of `bytes` that ended at `position`. `true` now and then, when the program
    /// appends in bursts with pauses between, so that [`Registry::reserve_ahead`] would pay.
    #[inline]
    pub fn appended(&self, bytes: usize, position: u64) -> bool {
        let slot = self.slot;
        let total = slot.appended.load(Ordering::Relaxed);
        slot.appended
            .store(total.wrapping_add(bytes as u64), Ordering::Relaxed);
        slot.append_position.store(position, Ordering::Relaxed);
        let count = slot.appends.load(Ordering::Relaxed).wrapping_add(1);
        slot.appends.store(count, Ordering::Relaxed);
        count.is_multiple_of(WINDOW) && self.in_bursts()
    }

    #[cold]
    fn in_bursts(&self) -> bool {
        let slot = self.slot;
        let now = clock::now();
        let took = now.wrapping_sub(slot.window_at.swap(now, Ordering::Relaxed));
        let [judged, fast, slow, _] = slot.windows.load(Ordering::Relaxed).to_le_bytes();
        let judged = judged.wrapping_add(1);
        let fast = fast.saturating_add(u8::from(took <= FAST));
        let slow = slow.saturating_add(u8::from(took >= SLOW));
        let full = u32::from(judged) >= WINDOWS;
        let next = if full {
            [0; 4]
        } else {
            [judged, fast, slow, 0]
        };
        slot.windows
            .store(u32::from_le_bytes(next), Ordering::Relaxed);
        full && u32::from(fast) >= FAST_WINDOWS
            && u32::from(slow) >= SLOW_WINDOWS
            && slot.reserving.load(Ordering::Relaxed) == NEVER
    }
}

impl Registry {
    /// Asks the monitor to keep blocks reserved ahead of an appending descriptor; whether it does.
    ///
    /// From now on the monitor holds a duplicate of the description, so [`release`](Self::release)
    /// must come before the description gets another user or loses its last one in this process:
    /// before close, dup, fork, exec, and passing it to somebody. Asked once per slot.
    pub fn reserve_ahead(&self, slot: &FileSlot, fd: RawFd) -> bool {
        let reserving = &slot.slot.reserving;
        // Held from before the request, so that the monitor's word that it has let go comes last.
        let first = reserving.compare_exchange(NEVER, HELD, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_err() {
            return false;
        }
        let answer = self.ask_monitor(slot, Some(fd), Request::Reserve);
        // No answer may mean that the monitor is stopped and will find the request later.
        let held = matches!(answer, Ok(true) | Err(Errno::TIMEDOUT | Errno::INTR));
        if !held {
            reserving.store(ASKED, Ordering::Release);
        }
        answer == Ok(true)
    }

    /// Makes the monitor free what it reserved and let go of the description; returns when it has
    /// (or is not there any more). Costs one load when nothing is reserved. No other thread may be
    /// writing through the description meanwhile.
    #[inline]
    pub fn release(&self, slot: &FileSlot) {
        if slot.slot.reserving.load(Ordering::Acquire) == HELD {
            self.release_now(slot);
        }
    }

    #[cold]
    fn release_now(&self, slot: &FileSlot) {
        slot.slot.reserving.store(ASKED, Ordering::Release);
        let _ = self.ask_monitor(slot, None, Request::Release);
    }

    fn ask_monitor(
        &self,
        slot: &FileSlot,
        fd: Option<RawFd>,
        request: fn(Target) -> Request<'static>,
    ) -> Result<bool, Errno> {
        let path = self.file_path().ok_or(Errno::NOENT)?.to_bytes();
        if slot.is_stale(self) {
            return Err(Errno::STALE);
        }
        let split = path.iter().rposition(|byte| *byte == b'/');
        let (dir, name) = path.split_at(split.ok_or(Errno::INVAL)?);
        let target = target(name, slot.index).ok_or(Errno::INVAL)?;
        let dir = RuntimeDir::at(dir).and_then(|dir| dir.open());
        let dir = dir.map_err(|_| Errno::NOENT)?;
        let along = match fd {
            Some(fd) => Some(sys::borrow(fd).ok_or(Errno::BADF)?),
            None => None,
        };
        ask(&dir, &request(target), along, PATIENCE).map(|answer| answer.agreed())
    }
}

fn target(name: &[u8], index: usize) -> Option<Target> {
    let mut parts = name.strip_prefix(b"/proc.")?.split(|byte| *byte == b'.');
    Some(Target {
        pid: u32::try_from(number(parts.next()?)?).ok()?,
        nonce: number(parts.next()?)?,
        index: u32::try_from(index).ok()?,
    })
}
