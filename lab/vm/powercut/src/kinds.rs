//! What the operations are: all of it follows from a seed and the operation's number.

use std::path::PathBuf;

/// Bytes of the files that are overwritten in place.
pub(crate) const FILE: u64 = 1 << 20;
/// Bytes of a word. Aligned words are what the medium writes atomically.
pub(crate) const WORD: u64 = 8;

/// What a writer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Overwrites of a file that was written and synced. No fsync: done when the call returns.
    Overwrite,
    /// The same in a file whose blocks are reserved and were never written.
    Unwritten,
    /// Appends in several pieces, then fsync or fdatasync.
    Append,
    /// A new file, fsync, renamed over the old one, directory synced.
    Replace,
    /// A new file with few bytes, which one call writes. No fsync: done when the call returns.
    Short,
}

/// Short files, which are made anew in turn.
pub(crate) const SHORTS: u64 = 256;

impl Kind {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "overwrite" => Self::Overwrite,
            "unwritten" => Self::Unwritten,
            "append" => Self::Append,
            "replace" => Self::Replace,
            "short" => Self::Short,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Overwrite => "overwrite",
            Self::Unwritten => "unwritten",
            Self::Append => "append",
            Self::Replace => "replace",
            Self::Short => "short",
        }
    }
}

/// What is written where.
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) dir: PathBuf,
    pub(crate) seed: u64,
}

impl Place {
    /// The file that the operations change.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(self.kind.name())
    }

    /// A new version before it gets its name.
    pub(crate) fn fresh(&self) -> PathBuf {
        self.dir.join("fresh")
    }

    /// The short file of an operation, in a directory of their own.
    pub(crate) fn short(&self, operation: u64) -> PathBuf {
        self.file().join((operation % SHORTS).to_string())
    }

    /// Whether an appender leaves the offset to the kernel: half of them do, in every mode (`Writer` in `cuts.py` makes
    /// the seeds).
    pub(crate) fn leaves_the_offset(&self) -> bool {
        (self.seed / 4 + self.seed / 16).is_multiple_of(2)
    }

    /// A random number of this operation.
    pub(crate) fn draw(&self, operation: u64, what: u64) -> u64 {
        mix(mix(self.seed ^ mix(operation)) ^ what)
    }

    /// The range that an overwrite covers: sizes from one word to three pages, at any word.
    pub(crate) fn range(&self, operation: u64) -> (u64, u64) {
        let len = [8, 64, 64, 64, 4096, 4096, 4096, 12288][self.draw(operation, 1) as usize % 8];
        // Most programs write whole units at their multiples; some do not.
        let grain = if self.draw(operation, 2).is_multiple_of(4) {
            WORD
        } else {
            len.min(4096)
        };
        // The last page is the kernel's, which needs its journal for what was never written.
        let end = match self.kind {
            Kind::Unwritten => FILE - 4096,
            _ => FILE,
        };
        let places = (end - len) / grain + 1;
        (self.draw(operation, 3) % places * grain, len)
    }

    /// The word at a place in the file as this operation leaves it: it names the operation.
    pub(crate) fn word(&self, operation: u64, index: u64) -> u64 {
        if operation == 0 && self.kind == Kind::Unwritten {
            return 0;
        }
        (operation << 32) | (self.draw(operation, index + 100) >> 32)
    }

    /// The bytes of an overwrite.
    pub(crate) fn bytes(&self, operation: u64, offset: u64, len: u64) -> Vec<u8> {
        let words = offset / WORD..(offset + len) / WORD;
        words
            .flat_map(|w| self.word(operation, w).to_le_bytes())
            .collect()
    }

    /// A record to append, or the content of a new version: its number, its length, its bytes.
    pub(crate) fn record(&self, operation: u64) -> Vec<u8> {
        let limit = match self.kind {
            Kind::Append => 6000,
            Kind::Short => 4000,
            _ => 20_000,
        };
        let len = 16 + (self.draw(operation, 4) % limit) as usize;
        let mut record = Vec::with_capacity(len + 8);
        record.extend(operation.to_le_bytes());
        record.extend((len as u64).to_le_bytes());
        let mut state = self.draw(operation, 5);
        while record.len() < len {
            state = mix(state);
            // No zero among them: what was never written cannot be taken for them.
            record.extend(state.to_le_bytes().map(|b| b | 1));
        }
        record.truncate(len);
        record
    }
}

impl Place {
    /// Where each of the up to three writes of a record ends in it.
    pub(crate) fn pieces(&self, operation: u64) -> impl Iterator<Item = usize> {
        let len = self.record(operation).len();
        let parts = 1 + self.draw(operation, 6) as usize % 3;
        let step = len.div_ceil(parts);
        (1..=parts).map(move |n| (n * step).min(len))
    }
}

/// Scatters the bits of a number (the finalizer of splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
