//! Files that several programs have staged at once.
//!
//! Each of them has an overlay of its own, which is a function of the log as everywhere; what is added
//! here is that an overlay notices by itself that the log has gone on without it. The bit [`SHARED`] of
//! the publishing word says that this may happen, and from then on
//!
//! - **a reader asks for the number of the file's last record first**, as every reader asks for the mark up
//!   to which records are retired. If it is not the one that its overlay knows, it takes the lock and
//!   follows. So it sees every write that was acknowledged before it began. It asks at each attempt anew,
//!   and after it has looked at the publishing word: whoever has claimed the file by then has logged
//!   before what he writes to the base file, and an overlay without that would tell old bytes beside
//!   new ones;
//! - **nobody uses pages again before they are retired** ([`super::recycle`]), which the mark would not tell;
//! - **nothing is relinked**: a program that may only read the file could not finish what another has
//!   died over.
//!
//! What is new is mostly found at the ends of the logs ([`adit_pool::Tail`]), and by a walk where that does not do.

use std::sync::atomic::Ordering;

use adit_pmem::{BaseFile, Medium};
use adit_pool::{FileGuard, SHARED};

use super::claim::relinked_between;
use super::error::Result;
use super::file::{StagedFile, View, lock};

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// From now on other programs, and other descriptions of this one, may have the file staged, too.
    pub fn share(&self) -> Result<()> {
        let _guard = self.lock()?;
        let pool = self.stage.attachment().pool();
        // Somebody may just be giving up the claim of a dead publisher, which takes no lock: it stays given up.
        let shares = |word| {
            #[cfg(test)]
            planted::happens();
            (word & SHARED == 0).then_some(word | SHARED)
        };
        if pool.update_version(self.file, shares)? {
            // Covered pages are not used again from here on.
            self.change().covered.clear();
        }
        Ok(())
    }

    /// Whether others may have the file staged, too.
    pub fn is_shared(&self) -> Result<bool> {
        Ok(self.stage.attachment().pool().version(self.file)? & SHARED != 0)
    }

    /// Whether somebody has ended the staging: everything is in the base file, which others may have written since.
    pub fn is_taken(&self) -> bool {
        let live = self.stage.attachment().pool().ensure_live(self.file);
        matches!(live, Err(adit_pool::Error::Forgotten))
    }

    /// The same, and that it is durable is known without a sync, which may be one too many for a process whose last one
    /// has failed.
    pub fn is_durably_taken(&self) -> bool {
        let pool = self.stage.attachment().pool();
        pool.is_durably_forgotten(self.file).unwrap_or(false)
    }

    /// Whether others may have written or published what the overlay does not show, up to when the publishing word was
    /// `word`.
    fn is_behind(&self, word: u64) -> Result<bool> {
        let mark = self.mark()?;
        let moved = mark != self.followed_mark.load(Ordering::Relaxed);
        if word & SHARED == 0 {
            if !moved {
                return Ok(false);
            }
            // Of a file that was shared meanwhile the mark may be of records that the overlay never had.
            if self.is_shared()? {
                return Ok(true);
            }
            self.leave_out_unlocked(mark)?;
            return Ok(false);
        }
        if moved {
            return Ok(true);
        }
        let last = self.stage.attachment().pool().last_seq(self.file)?;
        #[cfg(test)]
        let last = planted::unless(planted::Blind::Last, last, 0);
        Ok(last >= self.known_seq.load(Ordering::Relaxed))
    }

    /// Takes records out of the overlay that are retired since it followed. Whoever retires them holds the file's lock until
    /// that is durable, and readers wait for no disk of his: what is retired is in the base file, and of a file that is not
    /// shared nobody else writes what the overlay lacks.
    fn leave_out_unlocked(&self, mark: u64) -> Result<()> {
        self.leave_out(self.stage.attachment().pool().seen_retired(self.file)?)?;
        // At most what was left out: who has seen a later mark does so again.
        self.followed_mark.store(mark, Ordering::Release);
        Ok(())
    }

    /// Takes the lock and follows, if others have gone on.
    pub(super) fn catch_up(&self) -> Result<()> {
        // In a child the overlay is the parent's.
        self.stage.attachment().ensure_current()?;
        if self.is_behind(self.version()?)? {
            drop(self.lock()?);
        }
        Ok(())
    }

    /// Follows what others have logged, before any byte is written. Behind a page cache that waits until all which they have
    /// written is durable, and mostly it is; what is on its way to the pool by then would have to be, too.
    pub(super) fn follow_before_writing(&self) -> Result<()> {
        self.stage.attachment().ensure_current()?;
        let is_slow = self.stage.attachment().pool().medium().fence_is_slow();
        if is_slow && self.is_shared()? {
            self.catch_up()?;
        }
        Ok(())
    }

    /// The publishing word, with an overlay that lacks nothing which whoever published up to then may have done; but for
    /// what this process waits with ([`View::claimed_waiting`]). Where it was behind, with the lock, to be held until the
    /// overlay was looked at: where others write without a pause, it would be behind again.
    pub(super) fn current(&self) -> Result<(u64, Option<FileGuard<'_, M>>)> {
        let word = self.version()?;
        // Bytes that the overlay may name went to the base file, or go there right now.
        let relinked = relinked_between(word, self.followed.load(Ordering::Relaxed));
        if !relinked && !self.is_behind(word)? {
            return Ok((word, None));
        }
        let guard = self.lock()?;
        Ok((guard.version()?, Some(guard)))
    }

    /// Brings the overlay up to record `next_seq` by what is new at the ends of the logs, under the file's lock; false
    /// where that does not tell, and somebody has to walk.
    pub(super) fn follow_news(&self, next_seq: u64) -> Result<bool> {
        let known = self.known_seq.load(Ordering::Relaxed);
        let pool = self.stage.attachment().pool();
        let news = lock(&self.tail).news(pool, self.file, known, next_seq)?;
        let Some(news) = news else {
            return Ok(false);
        };
        // Nobody acts on bytes that a crash would take back: whoever logged them may still wait for the device.
        let counts = news.iter().any(|news| news.committed) || !self.look().waiting.is_empty();
        let durable = counts && pool.medium().fence_is_slow();
        if durable {
            pool.settle()?;
        }
        let mut view = self.change();
        // What this process waits with comes before all of it.
        if let Some(last) = view.last_waiting().filter(|_| durable) {
            view.reveal(last);
        }
        for news in news {
            view.learn(news);
        }
        if durable {
            view.durable = view.durable.max(next_seq.saturating_sub(1));
        }
        self.known_seq.store(next_seq, Ordering::Release);
        Ok(true)
    }
}

impl View {
    fn learn(&mut self, news: adit_pool::News) {
        let Some(op) = news.op else {
            self.commit = self.commit.max(news.seq);
            self.commit_is_durable(news.seq);
            return;
        };
        let nothing_before = !self.has_uncommitted();
        self.record(news.seq, &op);
        if news.committed {
            self.is_committed(news.seq, nothing_before);
        }
    }
}

/// Bugs for the tests to find: a reader that does not look. And what happens at the worst instant.
#[cfg(test)]
pub(super) mod planted {
    use std::cell::{Cell, RefCell};

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in crate::staged) enum Blind {
        /// It looks at all.
        No,
        /// At the number of the last record.
        Last,
        /// At the mark up to which records are retired.
        Mark,
        /// At what waits for the device.
        Waiting,
    }

    thread_local!(static BLIND: Cell<Blind> = const { Cell::new(Blind::No) });

    /// What this thread does not look at.
    pub(in crate::staged) fn be(blind: Blind) {
        BLIND.set(blind);
    }

    type Event = Box<dyn FnOnce()>;

    thread_local!(static MEANWHILE: RefCell<Option<Event>> = const { RefCell::new(None) });

    /// What somebody else does when this thread has looked at the word of a file that it shares.
    pub(in crate::staged) fn meanwhile(event: impl FnOnce() + 'static) {
        MEANWHILE.set(Some(Box::new(event)));
    }

    pub(super) fn happens() {
        if let Some(event) = MEANWHILE.take() {
            event();
        }
    }

    pub(in crate::staged) fn is(blind: Blind) -> bool {
        BLIND.get() == blind
    }

    pub(in crate::staged) fn unless(blind: Blind, word: u64, otherwise: u64) -> u64 {
        if is(blind) { otherwise } else { word }
    }
}
