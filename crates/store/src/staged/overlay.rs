//! What a staged file looks like: which bytes lie in the pool, which are zeros, which are the base's.
//!
//! An [`Overlay`] is nothing but its operations, applied in order to a base file of some size. So the
//! same type serves the reader (all operations), the publisher (the committed ones) and the recovery
//! (those the log still holds), and every one of them can be made again from the log alone.

use std::collections::BTreeMap;

use adit_pool::ReplayOp;

/// Where some bytes of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the pool, at this offset.
    Pool(u64),
    /// In the base file, at the same offset as in the staged file.
    Base,
    /// Nowhere: they are zeros.
    Zeros,
}

impl Source {
    /// The source `skip` bytes further on.
    pub(super) fn after(self, skip: u64) -> Self {
        match self {
            Self::Pool(offset) => Self::Pool(offset + skip),
            other => other,
        }
    }

    /// Whether `next` goes on where `len` bytes of this source end.
    fn is_continued_by(self, len: u64, next: Self) -> bool {
        self.after(len) == next
    }
}

/// A run of bytes from one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Where they are.
    pub source: Source,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    len: u64,
    source: Source,
}

/// The newest version of every byte of a file.
#[derive(Debug, Clone)]
pub struct Overlay {
    /// Disjoint, by offset; neighbours that continue each other are one.
    segments: BTreeMap<u64, Segment>,
    /// Only below this the base file's bytes count: a truncation has cut the rest.
    base_limit: u64,
    size: u64,
    /// Whether the file was ever made shorter.
    cut: bool,
}

impl Overlay {
    /// A file of which nothing is staged.
    #[must_use]
    pub fn new(base_size: u64) -> Self {
        Self {
            segments: BTreeMap::new(),
            base_limit: base_size,
            size: base_size,
            cut: false,
        }
    }

    /// A file after some operations.
    #[must_use]
    pub fn of(base_size: u64, ops: impl IntoIterator<Item = ReplayOp>) -> Self {
        let mut overlay = Self::new(base_size);
        for op in ops {
            overlay.apply(op);
        }
        overlay
    }

    /// Present size of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes of the base file, from its start, still count where nothing is staged.
    #[must_use]
    pub fn base_limit(&self) -> u64 {
        self.base_limit
    }

    /// Whether the operations ever made the file shorter: only then may bytes of the base file go.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// One more operation happens.
    pub fn apply(&mut self, op: ReplayOp) {
        match op {
            ReplayOp::Write {
                file_offset,
                pool_offset,
                len,
            }
            | ReplayOp::Exchange {
                file_offset,
                pool_offset,
                len,
                ..
            } => self.insert(file_offset, u64::from(len), Source::Pool(pool_offset)),
            ReplayOp::Truncate { size } => self.truncate(size),
            ReplayOp::Zero { file_offset, len } => {
                let end = file_offset.saturating_add(u64::from(len)).min(self.size);
                if file_offset < end {
                    self.insert(file_offset, end - file_offset, Source::Zeros);
                }
            }
        }
    }

    fn insert(&mut self, start: u64, len: u64, source: Source) {
        let end = start.saturating_add(len);
        self.size = self.size.max(end);
        self.carve(start, end);
        let mut whole = Segment {
            len: end - start,
            source,
        };
        let mut at = start;
        if let Some((&before, segment)) = self.segments.range(..start).next_back()
            && before + segment.len == start
            && segment.source.is_continued_by(segment.len, source)
        {
            whole = Segment {
                len: segment.len + whole.len,
                source: segment.source,
            };
            at = before;
        }
        self.segments.insert(at, whole);
    }

    /// Forgets what is staged in `start..end`.
    fn carve(&mut self, start: u64, end: u64) {
        if let Some((&before, segment)) = self.segments.range_mut(..start).next_back() {
            let old = *segment;
            let old_end = before + old.len;
            if old_end > start {
                segment.len = start - before;
            }
            if old_end > end {
                self.keep_tail(before, old, end);
                return;
            }
        }
        while let Some((&at, &segment)) = self.segments.range(start..end).next() {
            self.segments.remove(&at);
            if at + segment.len > end {
                self.keep_tail(at, segment, end);
            }
        }
    }

    fn keep_tail(&mut self, at: u64, old: Segment, from: u64) {
        let skip = from - at;
        let tail = Segment {
            len: old.len - skip,
            source: old.source.after(skip),
        };
        self.segments.insert(from, tail);
    }

    fn truncate(&mut self, size: u64) {
        self.carve(size, u64::MAX);
        self.cut |= size < self.size;
        self.base_limit = self.base_limit.min(size);
        self.size = size;
    }

    /// The pieces that make up `offset..offset + len`, in order, without gaps, up to the end of the
    /// file.
    pub fn resolve(&self, offset: u64, len: u64, mut give: impl FnMut(Piece)) {
        let end = offset.saturating_add(len).min(self.size);
        let mut at = offset;
        let first = self
            .segments
            .range(..=offset)
            .next_back()
            .map_or(offset, |(start, _)| *start);
        for (&start, &segment) in self.segments.range(first..end.max(first)) {
            if start + segment.len <= at {
                continue;
            }
            self.unstaged(at, start.min(end), &mut give);
            at = at.max(start);
            let piece_end = (start + segment.len).min(end);
            give(Piece {
                offset: at,
                len: piece_end - at,
                source: segment.source.after(at - start),
            });
            at = piece_end;
        }
        self.unstaged(at, end, &mut give);
    }

    /// A gap between staged pieces: the base's bytes while they count, then zeros.
    fn unstaged(&self, start: u64, end: u64, give: &mut impl FnMut(Piece)) {
        let middle = self.base_limit.clamp(start, end.max(start));
        for (from, to, source) in [(start, middle, Source::Base), (middle, end, Source::Zeros)] {
            if from < to {
                give(Piece {
                    offset: from,
                    len: to - from,
                    source,
                });
            }
        }
    }

    /// Everything staged, by offset.
    pub fn staged(&self) -> impl Iterator<Item = Piece> + '_ {
        self.segments.iter().map(|(&offset, segment)| Piece {
            offset,
            len: segment.len,
            source: segment.source,
        })
    }

    /// Whether any byte of `offset..offset + len` is not simply the base file's.
    #[must_use]
    pub fn is_staged(&self, offset: u64, len: u64) -> bool {
        let mut staged = false;
        self.resolve(offset, len, |piece| {
            staged |= piece.source != Source::Base;
        });
        staged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_sim::Rng;

    const POOL: usize = 4096;

    fn read(overlay: &Overlay, base: &[u8], pool: &[u8], offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        overlay.resolve(offset, len, |piece| {
            assert_eq!(piece.offset, offset + bytes.len() as u64, "no gaps");
            let from = |all: &[u8], at: u64| all[at as usize..(at + piece.len) as usize].to_vec();
            bytes.extend(match piece.source {
                Source::Pool(at) => from(pool, at),
                Source::Base => from(base, piece.offset),
                Source::Zeros => vec![0; piece.len as usize],
            });
        });
        bytes
    }

    #[test]
    fn random_operations_agree_with_a_plain_vector() {
        let pool: Vec<u8> = (0..POOL).map(|at| (at * 7 + at / 256 + 1) as u8).collect();
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let base: Vec<u8> = (0..rng.below(200)).map(|at| at as u8 | 0x80).collect();
            let mut overlay = Overlay::new(base.len() as u64);
            let mut model = base.clone();
            for _ in 0..40 {
                let (at, len) = (rng.below(300), 1 + rng.below(60));
                let end = (at + len) as usize;
                match rng.below(6) {
                    0 => {
                        overlay.apply(ReplayOp::Truncate { size: at });
                        model.resize(at as usize, 0);
                    }
                    1 => {
                        overlay.apply(ReplayOp::Zero {
                            file_offset: at,
                            len: len as u32,
                        });
                        let range = (at as usize).min(model.len())..end.min(model.len());
                        model[range].fill(0);
                    }
                    _ => {
                        let from = rng.below((POOL - 64) as u64);
                        overlay.apply(ReplayOp::Write {
                            file_offset: at,
                            pool_offset: from,
                            len: len as u32,
                        });
                        if model.len() < end {
                            model.resize(end, 0);
                        }
                        model[at as usize..end]
                            .copy_from_slice(&pool[from as usize..(from + len) as usize]);
                    }
                }
                assert_eq!(overlay.size(), model.len() as u64, "seed {seed}");
                assert_eq!(read(&overlay, &base, &pool, 0, 1000), model, "seed {seed}");
                let (at, len) = (rng.below(300), rng.below(100));
                let range = (at as usize).min(model.len())..((at + len) as usize).min(model.len());
                assert_eq!(
                    read(&overlay, &base, &pool, at, len),
                    model[range],
                    "seed {seed}"
                );
            }
        }
    }

    #[test]
    fn appends_to_adjacent_pages_are_one_piece() {
        let ops = (0..100_u64).map(|nth| ReplayOp::Write {
            file_offset: nth * 4096,
            pool_offset: 8192 + nth * 4096,
            len: 4096,
        });
        assert_eq!(Overlay::of(0, ops).staged().count(), 1);
    }
}
