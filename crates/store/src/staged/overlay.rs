//! What a staged file looks like: which bytes lie in the pool, which are zeros, which are the base's.
//!
//! An [`Overlay`] is nothing but its operations, applied in order to a base file of some size. So the
//! same type serves the reader (all operations), the publisher (the committed ones) and the recovery
//! (those the log still holds), and every one of them can be made again from the log alone.
//!
//! It is a table of pages, because most writes are of pages: one that replaces a page costs a search
//! among few branches, each of so many leaves of 64 pages, and one store. What is smaller lies in a sorted
//! list of its page.
//! Runs that were written page by page are put together again when they are looked at.

use std::collections::BTreeMap;
use std::ops::Range;

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

/// Bytes of a page.
const PAGE: u64 = adit_pool::layout::PAGE;

/// Pages of a leaf.
const FAN: usize = 64;

/// Bytes of a leaf.
const LEAF: u64 = PAGE * FAN as u64;

/// Leaves of a branch. Of 64 MB, so that files have few branches, and a branch is not much more than the leaf that it is
/// made for.
const SPREAD: u64 = 256;

/// Bytes of a branch.
const BRANCH: u64 = LEAF * SPREAD;

/// Some bytes of a page from one source.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: u16,
    end: u16,
    source: Source,
}

impl Part {
    fn until(self, end: u16) -> Self {
        Self { end, ..self }
    }

    fn from(self, start: u16) -> Self {
        Self {
            start,
            source: self.source.after(u64::from(start - self.start)),
            ..self
        }
    }

    fn is_continued_by(&self, next: &Self) -> bool {
        let len = u64::from(self.end - self.start);
        self.end == next.start && self.source.is_continued_by(len, next.source)
    }

    fn piece(&self, page: u64) -> Piece {
        Piece {
            offset: page.saturating_add(u64::from(self.start)),
            len: u64::from(self.end - self.start),
            source: self.source,
        }
    }
}

/// What is staged of one page.
#[derive(Debug, Clone)]
enum Page {
    Nothing,
    /// All of it comes from one source.
    Whole(Source),
    /// Disjoint parts, by their start; more than one, or less than all of the page.
    #[expect(
        clippy::box_collection,
        reason = "most pages are whole, and half as large this way"
    )]
    Parts(Box<Vec<Part>>),
}

impl Page {
    fn of(source: Option<Source>) -> Self {
        source.map_or(Self::Nothing, Self::Whole)
    }

    /// Everything, if it is from one source, and the parts otherwise.
    fn content(&self) -> (Option<Source>, &[Part]) {
        match self {
            Self::Nothing => (None, &[]),
            Self::Whole(source) => (Some(*source), &[]),
            Self::Parts(parts) => (None, parts),
        }
    }

    /// Replaces what is staged from `start` to `end`.
    fn put(&mut self, start: u16, end: u16, source: Option<Source>) {
        if (start, u64::from(end)) == (0, PAGE) {
            *self = Self::of(source);
            return;
        }
        let part = source.map(|source| Part { start, end, source });
        if let Self::Parts(parts) = self {
            replace(parts, start, end, part);
        } else {
            let whole = self.content().0.map(|source| Part {
                start: 0,
                end: PAGE as u16,
                source,
            });
            let mut parts = whole.into_iter().collect();
            replace(&mut parts, start, end, part);
            *self = Self::Parts(Box::new(parts));
        }
        self.simplify();
    }

    fn simplify(&mut self) {
        let Self::Parts(parts) = self else { return };
        match parts[..] {
            [] => *self = Self::Nothing,
            [part] if (part.start, u64::from(part.end)) == (0, PAGE) => {
                *self = Self::Whole(part.source);
            }
            _ => {}
        }
    }
}

/// Puts `new` in the place of what lies between `start` and `end`.
fn replace(parts: &mut Vec<Part>, start: u16, end: u16, new: Option<Part>) {
    let first = parts.partition_point(|part| part.end <= start);
    let count = parts[first..].partition_point(|part| part.start < end);
    if let Some(new) = new
        && count == 0
        && let Some(before) = first.checked_sub(1).and_then(|at| parts.get_mut(at))
        && before.is_continued_by(&new)
    {
        before.end = end;
        return;
    }
    let cut = &parts[first..first + count];
    let head = cut.first().filter(|part| part.start < start);
    let tail = cut.last().filter(|part| part.end > end);
    let head = head.map(|part| part.until(start));
    let tail = tail.map(|part| part.from(end));
    parts.splice(
        first..first + count,
        [head, new, tail].into_iter().flatten(),
    );
}

/// What is staged of so many pages side by side.
#[derive(Debug, Clone)]
struct Leaf {
    /// `None` when all of it is zeros.
    pages: Option<Box<[Page; FAN]>>,
}

impl Leaf {
    const ZEROS: Self = Self { pages: None };

    fn new() -> Self {
        let pages = Box::new([const { Page::Nothing }; FAN]);
        Self { pages: Some(pages) }
    }

    /// Replaces what is staged from `start` to `end`.
    fn put(&mut self, start: u64, end: u64, source: Option<Source>, covers: &mut impl FnMut(u64)) {
        let zeros = || Box::new([const { Page::Whole(Source::Zeros) }; FAN]);
        let pages = self.pages.get_or_insert_with(zeros);
        let mut at = start;
        while at < end {
            let nth = at / PAGE;
            let stop = end.min((nth + 1) * PAGE);
            let source = source.map(|source| source.after(at - start));
            let (from, to) = (at - nth * PAGE, stop - nth * PAGE);
            let page = &mut pages[nth as usize];
            if let (Page::Whole(Source::Pool(old)), PAGE) = (&*page, to - from) {
                covers(*old);
            }
            page.put(from as u16, to as u16, source);
            at = stop;
        }
    }

    /// The pieces between two offsets, which may reach beyond these by parts of a page; `base` is where
    /// in the file the leaf begins.
    fn pieces(&self, base: u64, start: u64, end: u64) -> impl Iterator<Item = Piece> + '_ {
        let zeros = Piece {
            offset: base,
            len: LEAF,
            source: Source::Zeros,
        };
        let (pages, zeros): (&[Page], _) = match &self.pages {
            None => (&[], Some(zeros)),
            Some(pages) => (&pages[..], None),
        };
        let first = start.saturating_sub(base) / PAGE;
        let last = end.saturating_sub(base).div_ceil(PAGE).min(FAN as u64);
        let pages = pages.get(first as usize..last as usize).unwrap_or(&[]);
        let pages = pages.iter().enumerate().flat_map(move |(nth, page)| {
            let at = base.saturating_add((first + nth as u64) * PAGE);
            let (whole, parts) = page.content();
            let whole = whole.map(|source| Piece {
                offset: at,
                len: PAGE,
                source,
            });
            whole
                .into_iter()
                .chain(parts.iter().map(move |part| part.piece(at)))
        });
        zeros.into_iter().chain(pages)
    }
}

/// Places of leaves that follow each other.
type Branch = Box<[Option<Leaf>; SPREAD as usize]>;

/// The leaves of a file, by their number. A map of the leaves themselves would be searched through hundreds of numbers at
/// each write.
///
/// `None` stands for a branch of zeros: a record of 64 bytes makes four gigabytes of them, and whoever can write the pool may
/// have forged any number of these.
#[derive(Debug, Clone, Default)]
struct Leaves(BTreeMap<u64, Option<Branch>>);

impl Leaves {
    /// The place of a leaf.
    fn place(&mut self, number: u64) -> &mut Option<Leaf> {
        let empty = || Some(Box::new([const { None }; SPREAD as usize]));
        let branch = self.0.entry(number / SPREAD).or_insert_with(empty);
        &mut branch.get_or_insert_with(zeros)[(number % SPREAD) as usize]
    }

    /// The branch that a leaf belongs to, if there is one.
    fn branch_of(&mut self, number: u64) -> Option<&mut Branch> {
        let branch = self.0.get_mut(&(number / SPREAD))?;
        Some(branch.get_or_insert_with(zeros))
    }

    /// A leaf, if there is one.
    fn get_mut(&mut self, number: u64) -> Option<&mut Leaf> {
        self.branch_of(number)?[(number % SPREAD) as usize].as_mut()
    }

    /// From this number on there is none any more.
    fn cut(&mut self, number: u64) {
        self.0.split_off(&number.div_ceil(SPREAD));
        if let Some(last) = self.branch_of(number) {
            last[(number % SPREAD) as usize..].fill(None);
        }
    }

    /// All these branches are zeros.
    fn zero(&mut self, branches: Range<u64>) {
        self.0.extend(branches.map(|number| (number, None)));
    }

    /// The pieces between two offsets, in order, which may reach beyond these.
    fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> + '_ {
        let (first, last) = (start / LEAF, end.saturating_sub(1).max(start) / LEAF);
        let branches = self.0.range(first / SPREAD..=last / SPREAD);
        branches.flat_map(move |(nth, branch)| {
            let base = nth * SPREAD;
            let zeros = branch.is_none().then_some(Piece {
                offset: nth * BRANCH,
                len: BRANCH,
                source: Source::Zeros,
            });
            let from = first.saturating_sub(base);
            let to = (last - base + 1).min(SPREAD);
            let places = branch.iter();
            let places = places.flat_map(move |places| &places[from as usize..to as usize]);
            let leaves = (base + from..).zip(places);
            let leaves = leaves.filter_map(|(number, place)| Some((number, place.as_ref()?)));
            let pieces =
                leaves.flat_map(move |(number, leaf)| leaf.pieces(number * LEAF, start, end));
            zeros.into_iter().chain(pieces)
        })
    }
}

/// A branch whose leaves are zeros.
#[cold]
fn zeros() -> Branch {
    Box::new([const { Some(Leaf::ZEROS) }; SPREAD as usize])
}

/// Pieces, those that continue each other put together.
struct Joined<I> {
    pieces: I,
    next: Option<Piece>,
}

impl<I: Iterator<Item = Piece>> Iterator for Joined<I> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let mut run = self.next.take().or_else(|| self.pieces.next())?;
        for piece in self.pieces.by_ref() {
            let adjacent = run.offset + run.len == piece.offset;
            if !adjacent || !run.source.is_continued_by(run.len, piece.source) {
                self.next = Some(piece);
                break;
            }
            run.len += piece.len;
        }
        Some(run)
    }
}

/// The newest version of every byte of a file.
#[derive(Debug, Clone)]
pub struct Overlay {
    leaves: Leaves,
    /// Only below this the base file's bytes count: a truncation has cut the rest.
    base_limit: u64,
    size: u64,
    /// Whether the file was ever made shorter.
    cut: bool,
    /// Whole pages that were staged where none was: at least as many as there are.
    pages: u64,
}

impl Overlay {
    /// A file of which nothing is staged.
    #[must_use]
    pub fn new(base_size: u64) -> Self {
        Self {
            leaves: Leaves::default(),
            base_limit: base_size,
            size: base_size,
            cut: false,
            pages: 0,
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

    /// How many whole pages are staged, or more, where the file was cut or zeroed since.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// One more operation happens.
    pub fn apply(&mut self, op: ReplayOp) {
        self.apply_telling(&op, |_| ());
    }

    /// One more operation happens; `covers` is told where in the pool whole pages lie of the file that
    /// another page takes the place of.
    #[inline(always)]
    pub(super) fn apply_telling(&mut self, op: &ReplayOp, covers: impl FnMut(u64)) {
        match *op {
            ReplayOp::Write {
                file_offset,
                pool_offset,
                len,
            } => self.insert(
                file_offset,
                u64::from(len),
                Source::Pool(pool_offset),
                covers,
            ),
            // What lies in the pool is not what the records say any more.
            ReplayOp::Relinked { file_offset, len } => {
                self.insert(file_offset, u64::from(len), Source::Base, |_| ());
            }
            ReplayOp::Truncate { size } => self.truncate(size),
            ReplayOp::Zero { file_offset, len } => {
                let end = file_offset.saturating_add(u64::from(len)).min(self.size);
                if file_offset < end {
                    self.zero(file_offset, end, covers);
                }
            }
        }
    }

    #[inline]
    fn insert(&mut self, start: u64, len: u64, source: Source, mut covers: impl FnMut(u64)) {
        let end = start.saturating_add(len);
        self.size = self.size.max(end);
        self.pages += (end / PAGE).saturating_sub(start.div_ceil(PAGE));
        let pages = &mut self.pages;
        let mut covers = |offset| {
            *pages = pages.saturating_sub(1);
            covers(offset);
        };
        let mut at = start;
        while at < end {
            let number = at / LEAF;
            let base = number * LEAF;
            let stop = end.min(base.saturating_add(LEAF));
            let place = self.leaves.place(number);
            if source == Source::Zeros && stop - at == LEAF {
                *place = Some(Leaf::ZEROS);
            } else {
                let leaf = place.get_or_insert_with(Leaf::new);
                let source = source.after(at - start);
                leaf.put(at - base, stop - base, Some(source), &mut covers);
            }
            at = stop;
        }
    }

    /// From `start` to `end` there are zeros, below the end of the file.
    fn zero(&mut self, start: u64, end: u64, mut covers: impl FnMut(u64)) {
        let (first, last) = (start.div_ceil(BRANCH), end / BRANCH);
        if first < last {
            let (head, tail) = (first * BRANCH, last * BRANCH);
            self.insert(start, head - start, Source::Zeros, &mut covers);
            self.insert(tail, end - tail, Source::Zeros, &mut covers);
            self.pages += (tail - head) / PAGE;
            self.leaves.zero(first..last);
        } else {
            self.insert(start, end - start, Source::Zeros, covers);
        }
    }

    fn truncate(&mut self, size: u64) {
        self.leaves.cut(size.div_ceil(LEAF));
        if let Some(last) = self.leaves.get_mut(size / LEAF) {
            last.put(size % LEAF, LEAF, None, &mut |_| ());
        }
        self.cut |= size < self.size;
        self.base_limit = self.base_limit.min(size);
        self.size = size;
    }

    /// What is staged between two offsets, and nothing else, in order.
    fn staged_in(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> + '_ {
        let pieces = self.leaves.pieces(start, end).filter_map(move |piece| {
            let from = piece.offset.max(start);
            let to = piece.offset.saturating_add(piece.len).min(end);
            (from < to).then(|| Piece {
                offset: from,
                len: to - from,
                source: piece.source.after(from - piece.offset),
            })
        });
        Joined { pieces, next: None }
    }

    /// The pieces that make up `offset..offset + len`, in order, without gaps, up to the end of the
    /// file.
    pub fn resolve(&self, offset: u64, len: u64, mut give: impl FnMut(Piece)) {
        let end = offset.saturating_add(len).min(self.size);
        let mut at = offset;
        for piece in self.staged_in(offset, end) {
            self.unstaged(at, piece.offset, &mut give);
            at = piece.offset + piece.len;
            give(piece);
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

    /// Up to where the base file's bytes may be wanted: beyond, what it has is cut off.
    pub(super) fn base_end(&self) -> u64 {
        let relinked = self.staged().filter(|piece| piece.source == Source::Base);
        let end = relinked.last().map_or(0, |piece| piece.offset + piece.len);
        end.max(self.base_limit)
    }

    /// Everything staged, by offset.
    pub fn staged(&self) -> impl Iterator<Item = Piece> + '_ {
        self.staged_in(0, u64::MAX)
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

    /// What lies in the pool at an offset.
    fn pool(at: u64) -> u8 {
        (at * 7 + at / 256 + at / 4096 + 1) as u8
    }

    fn read(overlay: &Overlay, base: &[u8], offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        overlay.resolve(offset, len, |piece| {
            assert_eq!(piece.offset, offset + bytes.len() as u64, "no gaps");
            match piece.source {
                Source::Pool(at) => bytes.extend((at..at + piece.len).map(pool)),
                Source::Base => bytes.extend(&base[piece.offset as usize..][..piece.len as usize]),
                Source::Zeros => bytes.resize(bytes.len() + piece.len as usize, 0),
            }
        });
        bytes
    }

    /// Operations in multiples of `unit`, give or take a few bytes.
    fn random_operations_agree_with_a_plain_vector(unit: u64, blur: u64, seeds: u64) {
        for seed in 0..seeds {
            let mut rng = Rng::new(seed);
            let any = |rng: &mut Rng, most: u64| rng.below(most) * unit + rng.below(blur);
            let base: Vec<u8> = (0..any(&mut rng, 200)).map(|at| at as u8 | 0x80).collect();
            let mut overlay = Overlay::new(base.len() as u64);
            let mut model = base.clone();
            for _ in 0..40 {
                let (at, len) = (any(&mut rng, 300), 1 + any(&mut rng, 60));
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
                        let from = any(&mut rng, 100) & !63;
                        overlay.apply(ReplayOp::Write {
                            file_offset: at,
                            pool_offset: from,
                            len: len as u32,
                        });
                        if model.len() < end {
                            model.resize(end, 0);
                        }
                        for (byte, at) in model[at as usize..end].iter_mut().zip(from..) {
                            *byte = pool(at);
                        }
                    }
                }
                assert_eq!(overlay.size(), model.len() as u64, "seed {seed}");
                let (at, len) = (any(&mut rng, 300), any(&mut rng, 100));
                let range = (at as usize).min(model.len())..((at + len) as usize).min(model.len());
                let found = read(&overlay, &base, at, len);
                assert!(found == model[range], "seed {seed}");
            }
            let found = read(&overlay, &base, 0, u64::MAX);
            assert!(found == model, "seed {seed}");
            let joined: Vec<Piece> = overlay.staged().collect();
            let goes_on = |two: &[Piece]| {
                two[0].offset + two[0].len == two[1].offset
                    && two[0].source.is_continued_by(two[0].len, two[1].source)
            };
            assert!(!joined.windows(2).any(goes_on), "seed {seed}");
        }
    }

    #[test]
    fn parts_of_pages() {
        random_operations_agree_with_a_plain_vector(1, 1, 400);
        random_operations_agree_with_a_plain_vector(64, 2, 200);
    }

    #[test]
    fn pages() {
        random_operations_agree_with_a_plain_vector(PAGE, 1, 60);
        random_operations_agree_with_a_plain_vector(PAGE / 2, 3, 60);
    }

    #[test]
    fn leaves() {
        random_operations_agree_with_a_plain_vector(LEAF / 16, 1, 12);
    }

    /// The same of operations on so many bytes that only one of each unit is looked at.
    #[test]
    fn branches() {
        const UNIT: u64 = BRANCH / 4;
        const AT: u64 = 5;
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut overlay = Overlay::new(8 * UNIT);
            let mut model = vec![Source::Base; 8];
            for _ in 0..20 {
                let (first, count) = (rng.below(40), 1 + rng.below(24));
                let (file_offset, len) = (first * UNIT, (count * UNIT) as u32);
                let range = |size| (first as usize).min(size)..((first + count) as usize).min(size);
                match rng.below(5) {
                    0 => {
                        overlay.apply(ReplayOp::Truncate { size: file_offset });
                        model.resize(first as usize, Source::Zeros);
                    }
                    1 => {
                        let len = UNIT as u32;
                        overlay.apply(ReplayOp::Write {
                            file_offset,
                            pool_offset: 0,
                            len,
                        });
                        let size = model.len().max(first as usize + 1);
                        model.resize(size, Source::Zeros);
                        model[first as usize] = Source::Pool(AT);
                    }
                    _ => {
                        overlay.apply(ReplayOp::Zero { file_offset, len });
                        let range = range(model.len());
                        model[range].fill(Source::Zeros);
                    }
                }
                let mut found = Vec::new();
                for nth in 0..overlay.size() / UNIT {
                    overlay.resolve(nth * UNIT + AT, 1, |piece| found.push(piece.source));
                }
                assert_eq!(found, model, "seed {seed}");
                let whole: u64 = {
                    let mut bytes = 0;
                    overlay.resolve(0, u64::MAX, |piece| bytes += piece.len);
                    bytes
                };
                assert_eq!(whole, overlay.size(), "seed {seed}");
            }
        }
    }

    /// However long they are that somebody has forged, each takes about as much as a short one.
    #[test]
    fn zeros_take_no_more_than_their_ends() {
        let mut overlay = Overlay::new(u64::MAX);
        for nth in 0..1000 {
            overlay.apply(ReplayOp::Zero {
                file_offset: (nth << 33) + 100,
                len: u32::MAX,
            });
        }
        let branches = overlay.leaves.0.values().flatten();
        assert_eq!(branches.clone().count(), 2 * 1000);
        let leaves = branches.flat_map(|places| places.iter().flatten());
        let pages = leaves.filter(|leaf| leaf.pages.is_some());
        assert_eq!(pages.count(), 2 * 1000);
        let zeros = |piece: &Piece| piece.source == Source::Zeros;
        let lengths: Vec<u64> = overlay
            .staged()
            .filter(zeros)
            .map(|piece| piece.len)
            .collect();
        assert_eq!(lengths, [u64::from(u32::MAX); 1000]);
        // The end of all offsets is the end of a branch, too.
        overlay.apply(ReplayOp::Zero {
            file_offset: u64::MAX - u64::from(u32::MAX) / 2,
            len: u32::MAX,
        });
        assert!(overlay.staged().all(|piece| zeros(&piece)));
    }

    #[test]
    fn pages_are_counted_once() {
        let mut overlay = Overlay::new(0);
        let mut write = |offset, len| {
            overlay.apply(ReplayOp::Write {
                file_offset: offset,
                pool_offset: 1 << 20,
                len,
            });
            overlay.pages()
        };
        assert_eq!(write(0, 3 * 4096), 3);
        assert_eq!(write(4096, 4096), 3, "it takes the place of another");
        assert_eq!(write(LEAF - 4096, 2 * 4096), 5, "of two leaves");
        assert_eq!(write(20 * 4096 + 64, 4096), 5, "two parts are no page");
        assert_eq!(write(2 * 4096, 2 * 4096), 6);
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
