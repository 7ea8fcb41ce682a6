//! The one source of chance: small, seeded, the same on every machine.

/// A seeded generator (the splitmix64 sequence).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator for one place in a larger run: the same parts give the same sequence.
    pub fn at(parts: &[u64]) -> Self {
        Self(
            parts
                .iter()
                .fold(0x243f_6a88_85a3_08d3, |state, &part| mix(state ^ mix(part))),
        )
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound` (0 when `bound` is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.next_u64() % bound
        }
    }

    /// True `tenths` times out of ten.
    pub fn chance(&mut self, tenths: u64) -> bool {
        self.below(10) < tenths
    }
}

/// Spreads the bits of `value`; also the building block of the image fingerprints.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
