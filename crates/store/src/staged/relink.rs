//! Staged bytes that become the base file's without being copied.
//!
//! Long runs of whole pages can be handed over by the file system: exchanged with the file's own range
//! (XFS), or shared with the file and given up in the pool (a clone: XFS, btrfs). Both spare the second
//! way of the bytes through the page cache and to the device. Either destroys what the log names, so:
//!
//! 1. Everything else of the publication is done and durable. The file has its size, and blocks for what
//!    is exchanged, so that the pool gets blocks for those it gives. What is cloned is cloned, and durable.
//! 2. Under the file's lock the log is told what is about to go, durably ([`Intent`]).
//! 3. The publishing word says that staged bytes are going. From here on no process believes a copy of
//!    them, and whoever wants to read waits for the lock.
//! 4. The ranges are exchanged, or, where they were cloned, given blocks of their own again: a store to a
//!    shared page on a full disk would be a fault.
//! 5. The base file is synced, the records are retired, and with them the intents; the publishing word
//!    says that it is over. Other processes throw away what they knew of the retired records.
//!
//! A publisher who fails between 3 and 5 leaves the word as it is. The next one who takes the file's lock
//! makes its overlay anew from the log, which tells what went, copies the rest, and retires it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_pmem::{BaseFile, Medium, MediumKind};
use adit_pool::{FileGuard, FileMedium, Intent, PoolFile, SHARED};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use super::claim::{Claim, claimed, relinked, unclaimed};
use super::error::{Error, Result, is_pressure};
use super::file::{Stage, StagedFile};
use super::fold::{Fold, end};
use super::kernel::KernelFile;
use super::publish::{Published, Target};

/// Shorter runs are copied.
const RUN: u64 = 128 << 10;

/// From how many appended bytes on, in all runs of a publication, an exchange costs less than a copy, and a clone
/// does: each needs two syncs more. What overwrites is copied: there neither wins (`docs/performance.md`).
const LEAST_EXCHANGED: u64 = 24 << 20;
const LEAST_CLONED: u64 = 16 << 20;

/// Bytes that the file system must have left over when the pool is to get blocks for what was cloned.
const SPARE: u64 = 64 << 20;

/// Bytes whose CRC is taken at once.
const BLOCK: usize = 64 << 10;

/// What a process has learned about one pool: what its file system can do, and what was done.
#[derive(Debug, Default)]
pub struct Relinks {
    no_exchange: AtomicBool,
    no_clone: AtomicBool,
    exchanged: AtomicU64,
    cloned: AtomicU64,
}

impl Relinks {
    /// Bytes exchanged so far.
    #[must_use]
    pub fn exchanged(&self) -> u64 {
        self.exchanged.load(Ordering::Relaxed)
    }

    /// Bytes cloned so far.
    #[must_use]
    pub fn cloned(&self) -> u64 {
        self.cloned.load(Ordering::Relaxed)
    }

    /// From now on nothing is exchanged: to compare the ways.
    pub fn never_exchange(&self) {
        self.no_exchange.store(true, Ordering::Relaxed);
    }

    fn is_refused(&self, way: Way) -> bool {
        match way {
            Way::Exchange => self.no_exchange.load(Ordering::Relaxed),
            Way::Clone => self.no_clone.load(Ordering::Relaxed),
        }
    }

    /// Remembers a refusal, if it is one of the file system and not of the file.
    fn refused(&self, way: Way, errno: Errno) {
        let for_good = [
            Errno::OPNOTSUPP,
            Errno::NOTTY,
            Errno::INVAL,
            Errno::NOSYS,
            Errno::XDEV,
        ];
        if for_good.contains(&errno) {
            match way {
                Way::Exchange => self.no_exchange.store(true, Ordering::Relaxed),
                Way::Clone => self.no_clone.store(true, Ordering::Relaxed),
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Exchange,
    Clone,
}

/// The better one first.
const WAYS: [Way; 2] = [Way::Exchange, Way::Clone];

impl Way {
    fn least(self) -> u64 {
        match self {
            Self::Exchange => LEAST_EXCHANGED,
            Self::Clone => LEAST_CLONED,
        }
    }
}

/// How a publisher gets at the pool's own file, to relink from it.
pub struct Relink<B> {
    open: Box<dyn Fn() -> Result<B, Errno> + Send + Sync>,
    relinks: Arc<Relinks>,
    /// Shorter runs are copied, whatever is worth it.
    run: Option<u64>,
    #[cfg(test)]
    pub(super) plant: Plant,
}

impl<B> fmt::Debug for Relink<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relink")
            .field("relinks", &self.relinks)
            .finish_non_exhaustive()
    }
}

/// Bugs for the tests to find.
#[cfg(test)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Plant {
    #[default]
    Nothing,
    /// The log is not told.
    NoIntent,
    /// Readers are not told.
    NoNotice,
}

impl<F: AsFd + From<OwnedFd> + 'static> Relink<KernelFile<F>> {
    /// How files are relinked from a pool, where that can win: behind a page cache it spares a device the
    /// same bytes again. On memory a copy costs less than first stores to the blocks that come back.
    #[must_use]
    pub fn from_pool(pool: &Arc<PoolFile>, stage: &Stage<FileMedium>) -> Option<Self> {
        let pool = (pool.kind() == MediumKind::Cached).then(|| Arc::clone(pool))?;
        let open = move || KernelFile::new(F::from(pool.reopen()?));
        Some(Self::new(Arc::clone(stage.relinks()), open))
    }
}

impl<B> Relink<B> {
    /// `open` opens the pool's file, on the file system of the base file, for reading and writing.
    pub fn new(
        relinks: Arc<Relinks>,
        open: impl Fn() -> Result<B, Errno> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Box::new(open),
            relinks,
            run: None,
            #[cfg(test)]
            plant: Plant::default(),
        }
    }

    /// Relinks runs from this length on, whatever is worth it.
    #[must_use]
    pub fn from_length(mut self, least: u64) -> Self {
        self.run = Some(least);
        self
    }

    /// The shortest run that is worth it; `None` where nothing can be relinked.
    pub(super) fn shortest(&self) -> Option<u64> {
        let possible = WAYS.iter().any(|way| !self.relinks.is_refused(*way));
        possible.then(|| self.run.unwrap_or(RUN))
    }

    /// Takes out those runs that had better be copied, of a file that ends at `end` so far.
    pub(super) fn not_worth(&self, runs: &mut Vec<Run>, end: u64) -> Vec<Run> {
        if self.run.is_some() {
            return Vec::new();
        }
        let overwrites = |run: &mut Run| run.file_offset < end;
        let mut copied: Vec<Run> = runs.extract_if(.., overwrites).collect();
        let appended = length_of(runs);
        if !WAYS.iter().any(|way| self.may_go(*way, appended)) {
            copied.append(runs);
        }
        copied
    }

    /// Whether so many bytes, all together, may go this way.
    fn may_go(&self, way: Way, bytes: u64) -> bool {
        !self.relinks.is_refused(way) && (self.run.is_some() || bytes >= way.least())
    }

    #[cfg(test)]
    fn is_planted(&self, plant: Plant) -> bool {
        self.plant == plant
    }
}

/// Staged bytes to be relinked: whole pages, in one chunk of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) file_offset: u64,
    pub(super) pool_offset: u64,
    pub(super) len: u64,
}

impl Run {
    fn of(intent: &Intent) -> Self {
        Self {
            file_offset: intent.file_offset,
            pool_offset: intent.pool_offset,
            len: u64::from(intent.len),
        }
    }
}

fn length_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.len).sum()
}

/// What is to be relinked when the file's lock is held.
pub(super) struct Linking<B> {
    pool: B,
    way: Way,
    intents: Vec<Intent>,
}

impl<B: BaseFile> Relink<B> {
    /// Makes the base file ready for the runs, and copies those that cannot be relinked.
    pub(super) fn prepare<M: Medium>(
        &self,
        fold: &mut Fold<'_, M, B>,
        runs: Vec<Run>,
    ) -> Result<Option<Linking<B>>> {
        let pool = (self.open)().ok();
        let bytes = length_of(&runs);
        let mut intents = Vec::with_capacity(runs.len());
        let mut way = None;
        for run in runs {
            // Its bytes are read first: trying an exchange throws them out of the page cache.
            let intent = intent_of(fold, run)?;
            let ready = match &pool {
                Some(pool) => self.make_ready(fold, pool, run, bytes, &mut way)?,
                None => false,
            };
            if ready {
                intents.push(intent);
            } else {
                fold.copy_run(run)?;
            }
        }
        Ok(match (pool, way) {
            (Some(pool), Some(way)) if !intents.is_empty() => Some(Linking { pool, way, intents }),
            _ => None,
        })
    }

    /// Whether a run can be relinked, and is ready to be: it has blocks, or it is cloned. All runs of a
    /// publication, of so many bytes, go the same way.
    fn make_ready<M: Medium>(
        &self,
        fold: &Fold<'_, M, B>,
        pool: &B,
        run: Run,
        bytes: u64,
        way: &mut Option<Way>,
    ) -> Result<bool> {
        let decided = *way;
        for wanted in WAYS {
            let possible = match decided {
                Some(decided) => decided == wanted,
                None => self.may_go(wanted, bytes),
            };
            if !possible {
                continue;
            }
            let tried = match wanted {
                Way::Exchange => reserve(fold.base, pool, run, decided.is_none()),
                Way::Clone => clone(fold.base, pool, run),
            };
            match tried {
                Ok(()) => {
                    *way = Some(wanted);
                    return Ok(true);
                }
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(Errno::NOSPC.into()),
                Err(errno) => self.relinks.refused(wanted, errno),
            }
        }
        Ok(false)
    }
}

/// Gives the file the blocks that the pool is to get, and sees whether they can be exchanged at all. A
/// description that may not be read, say, cannot.
fn reserve<B: BaseFile>(base: &B, pool: &B, run: Run, first: bool) -> Result<(), Errno> {
    base.reserve(run.file_offset, run.len)?;
    if first {
        base.may_exchange(run.file_offset, pool, run.pool_offset, run.len)?;
    }
    Ok(())
}

/// Clones, unless the pool might get no blocks for what it gives away.
fn clone<B: BaseFile>(base: &B, pool: &B, run: Run) -> Result<(), Errno> {
    if base.available()? < run.len.saturating_add(SPARE) {
        return Err(Errno::AGAIN);
    }
    base.clone_range(run.file_offset, pool, run.pool_offset, run.len)
}

fn intent_of<M: Medium, B: BaseFile>(fold: &Fold<'_, M, B>, run: Run) -> Result<Intent> {
    let mut block = vec![0; BLOCK.min(run.len as usize)];
    let mut data_crc = 0;
    let mut at = 0;
    while at < run.len {
        let part = (run.len - at).min(block.len() as u64) as usize;
        let read = fold
            .pool
            .medium()
            .read(run.pool_offset + at, &mut block[..part]);
        read.map_err(adit_pool::Error::from)?;
        data_crc = crc32c::crc32c_append(data_crc, &block[..part]);
        at += part as u64;
    }
    Ok(Intent {
        file_offset: run.file_offset,
        pool_offset: run.pool_offset,
        len: run.len as u32,
        data_crc,
    })
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Relinks what was made ready, under the file's lock and with the claim ours. The records are to be
    /// retired next.
    pub(super) fn link(
        &self,
        guard: &mut FileGuard<'_, M>,
        claim: &mut Claim<'_, M>,
        target: &Target,
        linking: &Linking<B>,
        done: &mut Published,
    ) -> Result<()> {
        let is_told = match self.intend(guard, target, linking) {
            // No room in the log.
            Err(Error::Pool(error)) if is_pressure(&error) => false,
            intended => intended?,
        };
        if !is_told {
            return match linking.way {
                Way::Exchange => self.copy_after_all(target, &linking.intents, done),
                // It is in the base file, and the pool gets blocks of its own as it writes.
                Way::Clone => Ok(()),
            };
        }
        self.give_notice(guard, claim)?;
        match linking.way {
            Way::Exchange => self.exchange(target, linking, done),
            Way::Clone => {
                self.unshare(linking, done);
                Ok(())
            }
        }
    }

    /// Tells the log; false where the file has come to be shared since its publication began: who may only read it could
    /// not finish what this process dies over.
    fn intend(
        &self,
        guard: &mut FileGuard<'_, M>,
        target: &Target,
        linking: &Linking<B>,
    ) -> Result<bool> {
        if guard.version()? & SHARED != 0 {
            return Ok(false);
        }
        #[cfg(test)]
        if self.is_planted(Plant::NoIntent) {
            return Ok(true);
        }
        guard.intend(target.last, &linking.intents)?;
        Ok(true)
    }

    fn give_notice(&self, guard: &FileGuard<'_, M>, claim: &mut Claim<'_, M>) -> Result<()> {
        #[cfg(test)]
        if self.is_planted(Plant::NoNotice) {
            return Ok(());
        }
        claim.begin_relinking(guard)
    }

    #[cfg(test)]
    fn is_planted(&self, plant: Plant) -> bool {
        self.relink
            .as_ref()
            .is_some_and(|relink| relink.is_planted(plant))
    }

    fn exchange(&self, target: &Target, linking: &Linking<B>, done: &mut Published) -> Result<()> {
        let mut left = Vec::new();
        for intent in &linking.intents {
            let (at, from, len) = (intent.file_offset, intent.pool_offset, intent.len);
            match self
                .base
                .exchange_range(at, &linking.pool, from, len.into())
            {
                Ok(()) => self.count(|relinks| &relinks.exchanged, len, &mut done.exchanged),
                Err(errno) => {
                    if let Some(relink) = &self.relink {
                        relink.relinks.refused(Way::Exchange, errno);
                    }
                    left.push(*intent);
                }
            }
        }
        self.copy_after_all(target, &left, done)
    }

    /// Copies what could not be relinked, and makes everything durable.
    fn copy_after_all(&self, target: &Target, left: &[Intent], done: &mut Published) -> Result<()> {
        let mut fold = Fold::new(self.stage.attachment().pool(), &self.base, *done);
        for intent in left {
            fold.copy_run(Run::of(intent))?;
        }
        fold.write_block()?;
        *done = fold.done;
        end(&self.base, target.modified)
    }

    /// The pool's pages get blocks of their own again. Where that fails they get them as they are
    /// written.
    fn unshare(&self, linking: &Linking<B>, done: &mut Published) {
        for intent in &linking.intents {
            let (at, len) = (intent.pool_offset, u64::from(intent.len));
            let punched = linking.pool.punch(at, len);
            let _ = punched.and_then(|()| linking.pool.reserve(at, len));
            self.count(|relinks| &relinks.cloned, intent.len, &mut done.cloned);
        }
    }

    fn count(&self, which: impl Fn(&Relinks) -> &AtomicU64, len: u32, done: &mut u64) {
        *done += u64::from(len);
        if let Some(relink) = &self.relink {
            which(&relink.relinks).fetch_add(u64::from(len), Ordering::Relaxed);
        }
    }

    /// What a publisher began who died, or failed, while he relinked. The caller holds the file's lock, and this may copy
    /// for long: whoever wants the file waits for him as for any other publisher, and not for two seconds only.
    pub(super) fn finish_relink(&self, guard: &mut FileGuard<'_, M>) -> Result<()> {
        let seat = self.stage.attachment().slot();
        guard.set_version(claimed(guard.version()?, seat))?;
        let published = self.publish_what_is_left(guard);
        let word = guard.version()?;
        guard.set_version(match published {
            Ok(()) => relinked(word),
            // The next one finishes it. This one lives, and nobody could publish the file until he ends.
            Err(_) => unclaimed(word),
        })?;
        published
    }

    /// Publishes all that counts by what the log tells alone.
    fn publish_what_is_left(&self, guard: &mut FileGuard<'_, M>) -> Result<()> {
        self.rebuild(guard, guard.next_seq()?)?;
        if let Some(target) = self.target()? {
            let mut done = Published::default();
            self.fold(&target, None, &mut done)?;
            guard.retire(target.last)?;
            self.drop_up_to(target.last)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    /// Which megabytes of a publication are relinked, of a file that had so many before.
    fn relinked(relink: &Relink<()>, before: u64, published: core::ops::Range<u64>) -> Vec<u64> {
        let run = |mb| Run {
            file_offset: mb * MB,
            pool_offset: mb * MB,
            len: MB,
        };
        let mut runs: Vec<Run> = published.clone().map(run).collect();
        let copied = relink.not_worth(&mut runs, before * MB);
        assert_eq!(runs.len() + copied.len(), published.count());
        runs.iter().map(|run| run.file_offset / MB).collect()
    }

    fn relink() -> Relink<()> {
        Relink::new(Arc::default(), || Err(Errno::NOSYS))
    }

    #[test]
    fn each_way_begins_where_it_wins_over_a_copy() {
        let relink = relink();
        let ways = |mb| WAYS.map(|way| relink.may_go(way, mb * MB));
        assert_eq!(
            [15, 16, 23, 24].map(ways),
            [[false; 2], [false, true], [false, true], [true; 2]]
        );
        assert!(relinked(&relink, 1, 1..16).is_empty());
        assert_eq!(relinked(&relink, 1, 1..17).len(), 16);
        relink.relinks.refused(Way::Clone, Errno::OPNOTSUPP);
        assert!(relinked(&relink, 1, 1..24).is_empty());
        assert_eq!(relinked(&relink, 1, 1..25).len(), 24);
        relink.relinks.never_exchange();
        assert!(relinked(&relink, 1, 1..100).is_empty());
    }

    #[test]
    fn what_overwrites_is_copied() {
        let relink = relink();
        assert!(relinked(&relink, 100, 0..100).is_empty());
        assert!(relinked(&relink, 8, 0..23).is_empty());
        assert_eq!(relinked(&relink, 8, 0..24), Vec::from_iter(8..24));
        let all = relink.from_length(4096);
        assert_eq!(relinked(&all, 100, 0..2), [0, 1]);
    }
}
