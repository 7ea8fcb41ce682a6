//! CRC32C of a record, which is written and checked too often for a routine made for long buffers; and by how much a CRC is
//! off when one bit is flipped.
//!
//! # Safety
//!
//! The unsafe code calls a function that needs the processor's CRC instruction, after asking for it.
#![allow(unsafe_code)]

/// What the CRC of a record is taken of, in this order: 16 bytes and a word that say where it lies, its
/// first word without the CRC, its other words.
pub(crate) struct Covered<'a> {
    pub(crate) place: [u64; 3],
    pub(crate) head: u32,
    pub(crate) rest: &'a [u64; 7],
}

impl Covered<'_> {
    /// The inverse of the CRC32C: so a line of zeros has no valid one.
    pub(crate) fn inverse_crc(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("sse4.2") {
            // SAFETY: the processor has the instruction.
            return unsafe { self.by_instruction() };
        }
        self.by_bytes()
    }

    fn by_bytes(&self) -> u32 {
        let words = |crc, words: &[u64]| {
            let append = |crc, word: &u64| crc32c::crc32c_append(crc, &word.to_le_bytes());
            words.iter().fold(crc, append)
        };
        let head = crc32c::crc32c_append(words(0, &self.place), &self.head.to_le_bytes());
        !words(head, self.rest)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse4.2")]
    fn by_instruction(&self) -> u32 {
        use std::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};
        let words = |state: u32, words: &[u64]| {
            let state = u64::from(state);
            let end = words
                .iter()
                .fold(state, |state, word| _mm_crc32_u64(state, *word));
            end as u32
        };
        let head = _mm_crc32_u32(words(u32::MAX, &self.place), self.head);
        words(head, self.rest)
    }
}

/// Bits of a record, and how much of it is its CRC, which comes first.
const BITS: usize = 512;
const OWN_BITS: usize = 32;

/// By how much a CRC32C is off when the last bit is flipped. As a CRC is linear, that depends on nothing but how many bits
/// come behind.
const LAST: u32 = 0x82f6_3b78;

/// The same of the bit in front of one.
const fn in_front_of(off: u32) -> u32 {
    (off >> 1) ^ if off & 1 == 0 { 0 } else { LAST }
}

/// Whether a CRC that is off by so much is right when one of so many bits is flipped.
pub(crate) fn is_flipped(off: u32, bits: usize) -> bool {
    let flips = core::iter::successors(Some(LAST), |off| Some(in_front_of(*off)));
    flips.take(bits).any(|flip| flip == off)
}

/// By how much the CRC of a record is off when one bit of it is flipped, for each bit.
static FLIPS: [u32; BITS] = {
    let mut flips = [0; BITS];
    let mut off = LAST;
    let mut bit = BITS;
    while bit > OWN_BITS {
        bit -= 1;
        flips[bit] = off;
        off = in_front_of(off);
    }
    while bit > 0 {
        bit -= 1;
        flips[bit] = 1 << bit;
    }
    flips
};

/// The one bit of a record that is flipped, when its CRC is off by so much. There is no other: at this length two records
/// with their CRCs differ in six bits at least.
pub(crate) fn flipped_bit(off: u32) -> Option<u32> {
    let bit = FLIPS.iter().position(|flip| *flip == off);
    bit.map(|bit| bit as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_is_told_from_two() {
        for len in [1, 2, 9, 300] {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at * 37) as u8).collect();
            let right = crc32c::crc32c(&bytes);
            assert!(!is_flipped(0, len * 8));
            for bit in 0..len * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                let off = crc32c::crc32c(&bytes) ^ right;
                assert!(is_flipped(off, len * 8), "{bit} of {len}");
                // One that lies in front of all of them.
                assert!(!is_flipped(off, len * 8 - bit - 1), "{bit} of {len}");
                let other = (bit * 7 + 3) % (len * 8);
                bytes[other / 8] ^= 1 << (other % 8);
                let off = crc32c::crc32c(&bytes) ^ right;
                assert!(!is_flipped(off, len * 8), "{bit} and {other} of {len}");
                bytes[other / 8] ^= 1 << (other % 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn the_instruction_says_what_the_bytes_say() {
        for seed in 0..200_u64 {
            let word = |nth: u64| (seed * 31 + nth).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let covered = Covered {
                place: [word(1), word(2), word(3)],
                head: word(4) as u32,
                rest: &std::array::from_fn(|nth| word(5 + nth as u64)),
            };
            assert_eq!(covered.inverse_crc(), covered.by_bytes());
        }
    }
}
