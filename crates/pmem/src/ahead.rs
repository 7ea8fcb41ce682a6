//! What of a file behind the page cache is brought into memory before it is read, in the place of what the kernel would.
//!
//! The kernel reads ahead into larger and larger folios, and each later store to a page of such a one through a mapping has
//! all of it written ([`crate::CachedMedium`]). What it is asked for lies in small ones. So whoever reads a pool has the
//! kernel read nothing ahead, and asks for blocks.

use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a block: as many as the kernel takes for one such question on any device.
pub const BLOCK: u64 = 128 << 10;

/// Blocks that are remembered.
const KNOWN: usize = 64;

/// Which blocks were asked for lately. The kernel may have taken them away since; then they are read page by page.
#[derive(Debug)]
pub struct Ahead(Box<[AtomicU64; KNOWN]>);

impl Default for Ahead {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(u64::MAX) }; KNOWN]))
    }
}

impl Ahead {
    /// Where the blocks begin that a read of `len` bytes touches and that were not asked for lately.
    pub fn blocks(&self, offset: u64, len: u64) -> impl Iterator<Item = u64> {
        let blocks = offset / BLOCK..offset.saturating_add(len).div_ceil(BLOCK);
        let is_new = |block: &u64| {
            let known = &self.0[place(*block)];
            known.load(Ordering::Relaxed) != *block && {
                known.store(*block, Ordering::Relaxed);
                true
            }
        };
        blocks.filter(is_new).map(|block| block * BLOCK)
    }
}

/// Where a block is remembered. Those that are read again and again are the first ones of their chunks, a power of two from
/// each other: by their numbers alone they would drive each other out.
fn place(block: u64) -> usize {
    const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;
    (block.wrapping_mul(SPREAD) >> (u64::BITS - KNOWN.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ahead: &Ahead, offset: u64, len: u64) -> Vec<u64> {
        ahead.blocks(offset, len).collect()
    }

    #[test]
    fn a_block_is_asked_for_once_as_long_as_it_is_remembered() {
        let ahead = Ahead::default();
        assert_eq!(asked(&ahead, 0, 8), [0]);
        assert_eq!(asked(&ahead, 100, BLOCK), [BLOCK]);
        assert_eq!(asked(&ahead, 0, 2 * BLOCK), []);
        assert_eq!(asked(&ahead, BLOCK, 0), []);
        let other = (1..).find(|block| place(*block) == place(0)).unwrap() * BLOCK;
        assert_eq!(asked(&ahead, other, 1), [other]);
        assert_eq!(asked(&ahead, 0, BLOCK + 1), [0]);
        // The logs of sixteen programs.
        let logs = |ahead: &Ahead| {
            (1..=16)
                .flat_map(|chunk| asked(ahead, chunk << 21, 64))
                .count()
        };
        assert!(logs(&ahead) > 8);
        assert!(logs(&ahead) < 8, "they are not remembered side by side");
        // Whoever is told of such a place is refused elsewhere.
        assert_eq!(asked(&ahead, u64::MAX - 1, 8).len(), 1);
    }
}
