//! Pages of the pool that newer writes of the same file cover are used again before they are published.
//!
//! A program that writes the same pages over and over would otherwise fill the pool and wait for its
//! publisher, who writes each page once. A page is taken back from its record when
//!
//! 1. a later record that no crash takes back covers all of it: replaying both in order is right,
//!    whatever the page holds by then. For the same reason it may only be named by records of this file
//!    until all that name it are retired: then none of them can count without those that cover it;
//! 2. nobody publishes the file. A publisher's plan is made from records up to some last one, and none
//!    that begins later names the page;
//! 3. the epoch of the file has moved: readers that may be copying the page notice. Those of other
//!    programs would not, so nothing comes back this way of a file that is shared (`shared.rs`).
//!
//! Only whole pages come back this way, a batch of them at a time, and only where their records carry no
//! CRC of the bytes: it would have to be sealed first, and where records carry it that waits for a device.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use adit_pmem::{BaseFile, Medium};
use adit_pool::{Extent, FileGuard, PUBLISHER, Pool, SHARED};

use super::error::Result;
use super::file::{StagedFile, lock};
use super::overlay::Overlay;

/// Bytes of a page of the pool.
const PAGE: u32 = adit_pool::layout::PAGE as u32;

/// Pages taken back together, as a part of a chunk: readers are disturbed once for all of them.
const BATCHES: u64 = 4;

/// Covered pages that are remembered, at most: those of one commit may be many.
const REMEMBERED: usize = 1 << 16;

/// So many staged pages do not stay in the caches: from about here on, pages that come back in no order
/// are written faster past them.
const MORE_THAN_CACHED: u64 = 4096;

/// What has a cache line of its own, so that threads that use others do not wait for it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Apart<T>(pub(super) T);

/// Lists, so that threads seldom meet at one.
pub(super) const LISTS: usize = 4;

/// The list of this thread.
pub(super) fn list_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % LISTS);
        }
        mine.get()
    })
}

/// A page, and a record behind all that ever named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Covered {
    pub(super) offset: u64,
    pub(super) seq: u64,
}

impl Covered {
    fn extent(self, len: u32) -> Extent {
        Extent {
            offset: self.offset,
            len,
        }
    }
}

/// Pages that the records name which are shown, and that newer ones cover. Guarded by the view's lock.
#[derive(Debug)]
pub(super) struct CoveredPages {
    pages: VecDeque<Covered>,
    batch: usize,
    most: usize,
}

impl CoveredPages {
    /// For files of a pool; none are remembered where records carry CRCs.
    pub(super) fn new<M: Medium>(pool: &Pool<M>) -> Self {
        let batch = pool.geometry().chunk_size() / u64::from(PAGE) / BATCHES;
        let most = if pool.medium().fence_is_slow() {
            0
        } else {
            REMEMBERED
        };
        Self {
            pages: VecDeque::new(),
            batch: batch.max(1) as usize,
            most,
        }
    }

    /// Record `seq` covers the page at `offset`.
    pub(super) fn note(&mut self, offset: u64, seq: u64) {
        if self.pages.len() < self.most && offset.is_multiple_of(u64::from(PAGE)) {
            self.pages.push_back(Covered { offset, seq });
        }
    }

    /// A batch of those that records up to `committed` cover, once there are so many.
    #[inline(always)]
    pub(super) fn batch(&mut self, committed: u64) -> Option<Vec<Covered>> {
        let last = self.pages.get(self.batch - 1)?;
        (last.seq <= committed).then(|| self.pages.drain(..self.batch).collect())
    }

    /// Records that name some of them are retired, and may be reclaimed.
    pub(super) fn clear(&mut self) {
        self.pages.clear();
    }
}

/// Pages to be used again.
#[derive(Debug, Default)]
pub(super) struct Recycled {
    lists: [Apart<Mutex<Vec<Covered>>>; LISTS],
    /// Whether there may be any: a file that only grows never has one, and need not look at every list.
    any: AtomicBool,
    /// Whether they are of so many that none of them is in a cache.
    cold: AtomicBool,
}

impl Recycled {
    fn put(&self, pages: Vec<Covered>) {
        let mut list = list_of_thread();
        for part in pages.chunks(pages.len().div_ceil(LISTS).max(1)) {
            lock(&self.lists[list].0).extend_from_slice(part);
            list = (list + 1) % LISTS;
        }
        self.any.store(true, Ordering::Release);
    }

    fn take(&self) -> Option<Covered> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mine = list_of_thread();
        let own = &self.lists[mine].0;
        let taken = lock(own).pop();
        taken.or_else(|| {
            // All of another list, so that the next ones are found at once.
            let others = (1..LISTS).map(|nth| &self.lists[(mine + nth) % LISTS].0);
            let mut found = others.map(|other| core::mem::take(&mut *lock(other)));
            let Some(mut found) = found.find(|found| !found.is_empty()) else {
                // What somebody puts there just now waits for the next who does.
                self.any.store(false, Ordering::Release);
                return None;
            };
            let taken = found.pop();
            lock(own).append(&mut found);
            // Who looked meanwhile has found none.
            self.any.store(true, Ordering::Release);
            taken
        })
    }

    /// The pages are of a file that looks like this.
    pub(super) fn are_of(&self, overlay: &Overlay) {
        let cold = overlay.pages() >= MORE_THAN_CACHED;
        if self.cold.load(Ordering::Relaxed) != cold {
            self.cold.store(cold, Ordering::Relaxed);
        }
    }

    /// Whether a page that is used again is in no cache, as far as that can be known.
    pub(super) fn are_cold(&self) -> bool {
        self.cold.load(Ordering::Relaxed)
    }
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Fresh space for `len` bytes, and the page it is when it was used before.
    pub(super) fn space(&self, len: u32) -> Result<(Extent, Option<Covered>)> {
        let a_page = len.next_multiple_of(adit_pool::layout::LINE as u32) == PAGE;
        match a_page.then(|| self.recycled.take()).flatten() {
            Some(page) => Ok((page.extent(len), Some(page))),
            None => Ok((self.stage.space(len)?, None)),
        }
    }

    /// A page that was taken and is named by nothing new.
    pub(super) fn put_back(&self, page: Covered) {
        self.recycled.put(vec![page]);
    }

    /// Takes pages back from their records. The caller holds the file's lock.
    #[cold]
    #[inline(never)]
    pub(super) fn recycle(&self, guard: &FileGuard<'_, M>, pages: Vec<Covered>) -> Result<()> {
        let attachment = self.stage.attachment();
        // Where a fence is slow, records carry the CRC of their bytes.
        if attachment.pool().medium().fence_is_slow()
            || guard.version()? & (PUBLISHER | SHARED) != 0
            || attachment.pool().may_be_relinked(self.file)?
            || !self.reuse.move_on_gently()
        {
            // They come back when their records are retired.
            return Ok(());
        }
        let mut taken = pages;
        taken.retain(|page| attachment.take_over(page.extent(PAGE)));
        self.recycled.put(taken);
        Ok(())
    }

    /// Gives pages back of which nothing counts any more that ever named them; the result is how many.
    pub(super) fn release_recycled(&self) -> Result<u64> {
        let mut lists = self.recycled.lists.iter();
        if lists.all(|list| lock(&list.0).is_empty()) {
            return Ok(0);
        }
        let attachment = self.stage.attachment();
        let retired = attachment.pool().retired(self.file)?;
        let mut released = 0;
        for list in &self.recycled.lists {
            let mut list = lock(&list.0);
            let mut kept = Vec::new();
            for page in list.drain(..) {
                if page.seq > retired {
                    kept.push(page);
                } else {
                    attachment.free(page.extent(PAGE))?;
                    released += 1;
                }
            }
            *list = kept;
        }
        Ok(released)
    }
}

impl<M: Medium, B: BaseFile> Drop for StagedFile<M, B> {
    fn drop(&mut self) {
        // In a child some thread of its parent may have held the lists at the fork.
        if self.stage.attachment().ensure_current().is_ok() {
            // What cannot be given back now stays taken until the attachment ends.
            let _ = self.release_recycled();
            // Somebody else has published what is left in the overlay, or will.
            self.stage.retired(self.look().ops.len());
        }
    }
}
