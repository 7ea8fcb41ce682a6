//! The simulated medium as the engine sees it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use adit_pmem::{Medium, OutOfRange};

use crate::world::{State, World, core_of};

/// A [`Medium`] in memory that knows what a crash would leave.
///
/// Stores are visible to every thread at once and durable only as the crash model says. Every store,
/// streaming store, successful or failed compare-and-swap, flush and fence is a crash point.
/// [`SimMedium::new`] is also a plain memory medium for tests that are not about crashes.
#[derive(Clone)]
pub struct SimMedium {
    world: World,
    core: Option<u32>,
    full: Arc<AtomicBool>,
    lost: Arc<Lost>,
}

/// Bytes that the medium cannot reach.
#[derive(Default)]
struct Lost {
    any: AtomicBool,
    ranges: Mutex<Vec<Range<u64>>>,
}

impl SimMedium {
    /// A medium of `size` zero bytes in a machine of its own.
    pub fn new(size: u64) -> Self {
        World::new(size).medium()
    }

    pub(crate) fn of(world: World, core: Option<u32>) -> Self {
        Self {
            world,
            core,
            full: Arc::default(),
            lost: Arc::default(),
        }
    }

    /// Whether nothing can be written back through this medium and its clones, as on a disk that is full for one process.
    pub fn refuse_write_backs(&self, refuse: bool) {
        self.full.store(refuse, Ordering::SeqCst);
    }

    /// What of this medium and its clones cannot be read, written or written back from now on, as a bad sector's page.
    pub fn lose(&self, ranges: &[Range<u64>]) {
        self.lost.any.store(!ranges.is_empty(), Ordering::SeqCst);
        *self.lost.ranges.lock().expect("no test panics with it") = ranges.to_vec();
    }

    /// The machine this medium belongs to.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Makes the medium at least `size` bytes large, as growing the pool file does. The growth
    /// itself is taken to be durable.
    pub fn grow(&self, size: u64) {
        self.world.adjust(|state| state.cells.grow(size));
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => self.check_reach(offset..end),
            _ => Err(OutOfRange::outside(offset, len, size)),
        }
    }

    fn check_reach(&self, asked: Range<u64>) -> Result<(), OutOfRange> {
        if !self.lost.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ranges = self.lost.ranges.lock().expect("no test panics with it");
        let meets = |lost: &Range<u64>| lost.start < asked.end && asked.start < lost.end;
        if ranges.iter().any(meets) {
            let len = asked.end - asked.start;
            return Err(OutOfRange::lost(asked.start, len, rustix::io::Errno::IO));
        }
        Ok(())
    }

    fn word(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.check(offset, 8)?;
        if offset.is_multiple_of(8) {
            Ok(offset / 8)
        } else {
            Err(OutOfRange::outside(offset, 8, self.size()))
        }
    }
}

impl Medium for SimMedium {
    fn size(&self) -> u64 {
        self.world.look(|state| state.cells.size())
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        let word = self.word(offset)?;
        Ok(self.world.look(|state| state.cells.load(word)))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        let word = self.word(offset)?;
        self.world.event(|state| {
            let at = state.tick();
            state.cells.store(word, value, at);
        });
        Ok(())
    }

    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        let word = self.word(offset)?;
        let swap = |state: &mut State| {
            let seen = state.cells.load(word);
            if seen != current {
                return Err(seen);
            }
            let at = state.tick();
            state.cells.store(word, new, at);
            Ok(seen)
        };
        // A dead process must not spin on a lock that it will never get.
        Ok(self.world.event(swap).unwrap_or(Ok(current)))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(offset, into.len() as u64)?;
        self.world.look(|state| {
            for piece in pieces(offset, into.len()) {
                let word = state.cells.load(piece.word).to_le_bytes();
                into[piece.at..piece.at + piece.len]
                    .copy_from_slice(&word[piece.skip..piece.skip + piece.len]);
            }
        });
        Ok(())
    }

    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.check(offset, from.len() as u64)?;
        let core = core_of(self.core);
        self.world.event(|state| {
            let at = state.tick();
            for piece in pieces(offset, from.len()) {
                let mut word = state.cells.load(piece.word).to_le_bytes();
                word[piece.skip..piece.skip + piece.len]
                    .copy_from_slice(&from[piece.at..piece.at + piece.len]);
                state
                    .cells
                    .store_streaming(piece.word, u64::from_le_bytes(word), at, core);
            }
        });
        Ok(())
    }

    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.check(offset, len)?;
        if self.full.load(Ordering::SeqCst) {
            return Err(OutOfRange::outside(offset, len, self.size()));
        }
        let core = core_of(self.core);
        self.world
            .event(|state| state.cells.flush(offset, len, core));
        Ok(())
    }

    fn fence(&self) {
        let core = core_of(self.core);
        self.world.event(|state| state.cells.fence(core));
    }

    fn order(&self) {
        if self.fence_is_slow() {
            self.world.event(|_| ());
        } else {
            self.fence();
        }
    }

    fn fence_is_slow(&self) -> bool {
        self.world.look(|state| state.cells.is_behind_page_cache())
    }
}

/// The part of one word that a byte range covers.
struct Piece {
    word: u64,
    /// First byte within the word.
    skip: usize,
    /// First byte within the range.
    at: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let byte = offset + at as u64;
        let skip = (byte % 8) as usize;
        let piece = Piece {
            word: byte / 8,
            skip,
            at,
            len: (8 - skip).min(len - at),
        };
        at += piece.len;
        Some(piece)
    })
}
