//! A small seeded generator, so that one number replays a whole run.

/// `SplitMix64`: every seed is good, the state is one word.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5bd1_e995_9d1b_54a5)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; zero when `n` is zero.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// True in `percent` of the cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Fills `buf` with bytes that tell their place: a misplaced copy never compares equal.
    pub(crate) fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
    }
}
