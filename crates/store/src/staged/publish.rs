//! Folding staged bytes into the base file.
//!
//! What is published is what the committed records amount to, computed once: bytes that a later
//! record overwrites are not written at all. The order is: claim, commit if everything is wanted,
//! write, sync the base, and only then, under the file's lock and with the claim still ours, retire
//! the records. Until they are retired a crash leads to the same records being published again, over
//! whatever this attempt left.
//!
//! Taking a file away is the same, with the end of the staging behind it. Writers are let through until
//! little is left; that is published under the file's lock, and before the lock is given up the entry
//! is gone. So nobody writes between the last look at the log and the end, and whoever waited for the
//! lock is told that the file is [`Error::Taken`].

use std::sync::TryLockError;
use std::time::Duration;

use adit_pmem::{BaseFile, Medium};
use adit_pool::{FileGuard, SHARED};

use super::claim::{Claim, is_relinking};
use super::error::{Error, Result, is_pressure};
use super::file::{Growth, StagedFile, Walk, lock};
use super::fold::Fold;
use super::overlay::Overlay;
use super::relink::{Linking, Relink};

/// Times a publication is begun anew because others took the file over.
const ATTEMPTS: usize = 3;
/// Records that are left for the last round, under the lock.
const FEW: usize = 16;
/// Rounds before the last one, at most: a writer may be faster than the base file.
const ROUNDS: usize = 4;
/// Pause between two looks whether another publisher has ended.
const PAUSE: Duration = Duration::from_micros(200);

/// How much is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What is committed.
    Committed,
    /// Everything: it is committed first. For close, hand-over, a broken lease and a dead program; by age only of a
    /// file that is neither in mode `atomic` nor declared: the former and what is shared are [`Scope::Committed`] then.
    Everything,
    /// Everything, unless others have the file staged, too: [`Error::Shared`], with nothing committed that
    /// they may have written. By age of a declared file, which may be shared at any time.
    Alone,
    /// Nothing: of what is staged there is nothing that the base file lacks, or [`Error::Unpublished`]. [`Error::Shared`]
    /// where others have the file staged, too.
    Nothing,
}

/// What a publication did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// Records retired.
    pub records: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes that the file system exchanged with the base file's.
    pub exchanged: u64,
    /// Bytes that the file system shared with the base file, and that were given up in the pool.
    pub cloned: u64,
}

/// What a publication is about: set under the file's lock, right after the claim.
pub(super) struct Target {
    /// The last record.
    pub(super) last: u64,
    /// The time of the last write, or 0.
    pub(super) modified: u64,
}

/// A publication that does not come to its end, on a full disk, may have cut what was shown before, or lost it.
const NOTHING_SHOWN: u64 = 0;

/// A publication that has begun. Not to be dropped under the file's lock, which the claim takes to go.
struct Begun<'a, M: Medium> {
    claim: Claim<'a, M>,
    target: Result<Option<Target>>,
}

/// What happens at the first call alone.
fn once(event: impl FnOnce()) -> impl FnMut() {
    let mut event = Some(event);
    move || event.take().map_or((), |event| event())
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Publishes several files of one pool, with one walk over its logs for what others have logged of them.
    /// The results are in the order of the files. One that somebody has locked, or that this process publishes
    /// already, is left out: nobody waits for one of them with others locked.
    pub fn publish_together(files: &[(&Self, Scope)]) -> Vec<Result<Published>> {
        // In the order in which everybody locks several.
        let mut order: Vec<usize> = (0..files.len()).collect();
        order.sort_unstable_by_key(|&nth| files[nth].0.file);
        // Of one that several programs have staged somebody may hold several views.
        order.dedup_by_key(|nth| files[*nth].0.file);
        let mut done: Vec<Result<Published>> = Vec::new();
        done.resize_with(files.len(), || Ok(Published::default()));
        let mut begun = Vec::with_capacity(files.len());
        let mut guards = Vec::with_capacity(files.len());
        let mut walk = Walk::of(files.len());
        for nth in order {
            let (file, _) = files[nth];
            let mut one = match file.publishing.try_lock() {
                Ok(one) => one,
                Err(TryLockError::Poisoned(one)) => one.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            *one = NOTHING_SHOWN;
            match file.stage.attachment().try_lock_file(file.file) {
                Ok(guard) => guards.extend(guard.map(|guard| (nth, one, guard))),
                Err(error) => done[nth] = Err(error.into()),
            }
        }
        for (.., guard) in &guards {
            guard.takes_long();
        }
        for (nth, one, mut guard) in guards {
            let (file, scope) = files[nth];
            let begin = file.follow_by(&mut guard, &mut walk);
            match begin.and_then(|()| file.begin(&mut guard, scope)) {
                Ok(begin) => begun.extend(begin.map(|begin| (nth, one, begin))),
                Err(error) => done[nth] = Err(error),
            }
        }
        // Where a commit is not durable yet nothing is published: the claim goes first.
        begun.retain(|(_, _, begin)| !matches!(begin.target, Ok(None)));
        for (nth, _one, begin) in begun {
            let mut published = Published::default();
            done[nth] = match files[nth].0.end(begin, &mut published) {
                Ok(true) => Ok(published),
                Ok(false) => Err(Error::Contended),
                Err(error) => Err(error),
            };
        }
        if let Some((file, _)) = files.first() {
            // They are published all the same.
            let _ = file.stage.tidy();
        }
        done
    }

    /// Publishes. Appends, overwrites and reads go on meanwhile.
    pub fn publish(&self, scope: Scope) -> Result<Published> {
        self.stage.attachment().ensure_current()?;
        let mut shown = lock(&self.publishing);
        *shown = NOTHING_SHOWN;
        let mut done = Published::default();
        for _ in 0..ATTEMPTS {
            if self.publish_once(scope, &mut done)? {
                // It is published, whatever becomes of the space.
                let _ = self.stage.tidy();
                return Ok(done);
            }
        }
        Err(Error::Contended)
    }

    /// Brings what is staged to where it is seen by who does not look at the pool: publishes it or, where that waits for a
    /// device and all that counts is committed, only writes it.
    pub fn show_outside(&self, scope: Scope) -> Result<()> {
        // Where programs of several modes share the file, what counts may lie behind what does not.
        let is_committed = scope == Scope::Committed || !self.look().has_uncommitted();
        if is_committed && self.stage.attachment().pool().medium().fence_is_slow() {
            self.show_committed()
        } else {
            self.publish(scope).map(drop)
        }
    }

    /// Writes what is committed to the base file, where who does not look at the pool sees it, and waits for no device:
    /// it is durable where it is staged, and stays so until it is published.
    ///
    /// What was written so before is left out. It is there still: nobody else writes to the file while it is staged, and who
    /// publishes meanwhile writes what came later as well, unless he fails: then it is there when the next one has published.
    pub fn show_committed(&self) -> Result<()> {
        self.stage.attachment().ensure_current()?;
        let mut shown = lock(&self.publishing);
        let mut guard = self.stage.attachment().lock_file(self.file)?;
        let begun = self.begin(&mut guard, Scope::Committed);
        // Before the claim may be given up, which takes the lock again.
        drop(guard);
        let Some(begun) = begun? else {
            return Ok(());
        };
        let Some(target) = begun.target? else {
            return Ok(());
        };
        // The claim goes when all is written: nobody may write what was there before over it.
        self.bring_out(&target, *shown)?;
        *shown = target.last;
        Ok(())
    }

    /// Writes what the records behind `shown` amount to, up to the target's last.
    fn bring_out(&self, target: &Target, shown: u64) -> Result<()> {
        let plan = self.plan(shown, target.last)?;
        let pool = self.stage.attachment().pool();
        let mut fold = Fold::new(pool, &self.base, Published::default());
        fold.syncs = false;
        fold.run(&plan, target.modified, None).map(drop)
    }

    /// What the records behind `first` amount to, up to `last`, over the base file as it is.
    fn plan(&self, first: u64, last: u64) -> Result<Overlay> {
        let base_size = self.base.size()?;
        let view = self.look();
        let ops = view.ops.iter().take(view.ops_up_to(last));
        let ops = ops.skip(view.ops_up_to(first));
        Ok(Overlay::of(base_size, ops.map(|(_, op)| *op)))
    }

    /// Publishes everything and ends the staging: afterwards the base file is the file, in all
    /// processes. Writers wait for the end and are then told [`Error::Taken`], as everybody is;
    /// `before_forgetting` runs while they wait, when the base file is complete and durable and before
    /// anybody can know. Fails with nothing lost: the file stays staged. Waits for another publisher as
    /// long as he lives.
    pub fn take_away(&self, before_forgetting: impl FnOnce()) -> Result<Published> {
        self.take_away_as(Scope::Everything, &mut once(before_forgetting))
    }

    /// The same, unless others have the file staged, too: [`Error::Shared`].
    pub fn take_away_alone(&self, before_forgetting: impl FnOnce()) -> Result<Published> {
        self.take_away_as(Scope::Alone, &mut once(before_forgetting))
    }

    /// The same of a file that needs no publishing: [`Error::Unpublished`], and nothing else happens, where it does. Waits
    /// for no other publisher: [`Error::Publishing`].
    pub fn take_away_published(&self, before_forgetting: impl FnOnce()) -> Result<()> {
        self.take_away_as(Scope::Nothing, &mut once(before_forgetting))
            .map(drop)
    }

    fn take_away_as(&self, scope: Scope, before_forgetting: &mut dyn FnMut()) -> Result<Published> {
        self.stage.attachment().ensure_current()?;
        let mut shown = lock(&self.publishing);
        *shown = NOTHING_SHOWN;
        let mut done = Published::default();
        for _ in 0..ROUNDS {
            let left = self.left_to_publish()?;
            // Without a claim, at which all readers throw their copies away.
            if left != 0 && scope == Scope::Nothing {
                return Err(Error::Unpublished);
            }
            if left <= FEW {
                break;
            }
            match self.publish_once(scope, &mut done) {
                Err(Error::Publishing { .. }) => adit_pmem::rest(PAUSE),
                result => {
                    result?;
                }
            }
        }
        let mut end = || {
            let (guard, mut claim) = match scope {
                // There is always a later time for that, and who publishes may have been stopped.
                Scope::Nothing => self.claim_at_once()?,
                _ => self.claim_patiently()?,
            };
            // The guard goes before the claim, which takes the lock again.
            self.publish_rest(guard, &mut claim, (scope, before_forgetting), &mut done)
        };
        let finds_no_room =
            |ended: &Result<()>| matches!(ended, Err(Error::Pool(error)) if is_pressure(error));
        let mut ended = end();
        // The commit finds no place in the log. What is retired has not been given back, perhaps.
        if finds_no_room(&ended) {
            self.stage.make_room()?;
            ended = end();
        }
        // Nobody else can commit what its program has not, and whoever opens the file waits.
        if finds_no_room(&ended) && self.stage.grow(Growth::ToPublish) {
            ended = end();
        }
        ended?;
        // The file is whole and its staging has ended, whatever becomes of the space.
        let _ = self.stage.tidy();
        Ok(done)
    }

    /// The last record, of whatever kind, that this process knows of, if everything up to it is in the base file.
    pub(crate) fn all_published(&self) -> Option<u64> {
        let view = self.look();
        let known = self.known_seq.load(std::sync::atomic::Ordering::Relaxed);
        (view.ops.is_empty() && view.waiting.is_empty()).then(|| known.saturating_sub(1))
    }

    /// Ends the staging of a file that nobody can see any more, in no process and after no crash: what is
    /// staged goes with it. Its last name is gone, durably.
    pub fn discard(&self) -> Result<()> {
        self.stage.attachment().ensure_current()?;
        let _one = lock(&self.publishing);
        let (guard, claim) = self.claim_patiently()?;
        let ended = self.forget(guard);
        drop(claim);
        ended?;
        let _ = self.stage.tidy();
        Ok(())
    }

    /// Sets the base file's times by `set`, which says when the file was changed last by these, in nanoseconds since 1970:
    /// what is staged is published with that time. Nobody publishes meanwhile, with another one: [`Error::Publishing`] or
    /// [`Error::Contended`] where somebody does; [`Error::Unpublished`] where nothing is staged.
    pub fn set_times(&self, set: impl FnOnce() -> Result<u64>) -> Result<()> {
        let (guard, claim) = self.claim_at_once()?;
        let set = self.set_times_under(&guard, set);
        // Before the claim, which takes the lock again.
        drop(guard);
        drop(claim);
        set
    }

    fn set_times_under(
        &self,
        guard: &FileGuard<'_, M>,
        set: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        if self.is_clean() {
            return Err(Error::Unpublished);
        }
        let modified = self.stage.attachment().pool().modified(self.file)?;
        if modified != 0 {
            // It may be one that these times leave as it is.
            self.base.set_modified(modified)?;
        }
        Ok(guard.set_modified(set()?)?)
    }

    /// [`StagedFile::take_away`] of a file that nobody else uses any more.
    pub fn close(self) -> Result<Published> {
        self.take_away(|| {})
    }

    /// Records that are not retired, whoever wrote them.
    fn left_to_publish(&self) -> Result<usize> {
        let mut guard = self.stage.attachment().lock_file(self.file)?;
        self.follow(&mut guard)?;
        let view = self.look();
        Ok(view.ops.len() + view.waiting.len())
    }

    fn claim_patiently(&self) -> Result<(FileGuard<'_, M>, Claim<'_, M>)> {
        let attachment = self.stage.attachment();
        loop {
            let mut guard = attachment.lock_file(self.file)?;
            match self.claim(&mut guard) {
                Err(Error::Publishing { .. }) => drop(guard),
                claim => return Ok((guard, claim?)),
            }
            adit_pmem::rest(PAUSE);
        }
    }

    /// The same, unless somebody has the file in hand: [`Error::Contended`], or [`Error::Publishing`].
    fn claim_at_once(&self) -> Result<(FileGuard<'_, M>, Claim<'_, M>)> {
        let attachment = self.stage.attachment();
        let mut guard = attachment
            .try_lock_file(self.file)?
            .ok_or(Error::Contended)?;
        let claim = self.claim(&mut guard)?;
        Ok((guard, claim))
    }

    /// Claims the file. A relink that failed is over before: whoever ends it says that nobody publishes.
    fn claim(&self, guard: &mut FileGuard<'_, M>) -> Result<Claim<'_, M>> {
        if is_relinking(guard.version()?) {
            self.follow(guard)?;
        }
        Claim::take(self.stage.attachment(), guard)
    }

    /// The last round: publishes under the lock and forgets the file. That retires its records, durably
    /// and all at once, so they are not retired before. The guard goes before the claim, which takes the
    /// lock again.
    fn publish_rest(
        &self,
        mut guard: FileGuard<'_, M>,
        claim: &mut Claim<'_, M>,
        (scope, before_forgetting): (Scope, &mut dyn FnMut()),
        done: &mut Published,
    ) -> Result<()> {
        // Those who wait for the device with what they logged are told that it happened.
        let waiting = self.look().last_waiting();
        if let Some(last) = waiting {
            self.settle_up_to(last)?;
        }
        if let Some(target) = self.aim(&mut guard, scope)? {
            match self.fold(&target, self.relink()?, done)? {
                None => done.records += self.look().ops_up_to(target.last) as u64,
                linking => self.complete(&mut guard, claim, &target, linking, done)?,
            }
        }
        before_forgetting();
        self.forget(guard)
    }

    /// Ends the staging: the entry goes, and all records with it.
    fn forget(&self, guard: FileGuard<'_, M>) -> Result<()> {
        guard.forget()?;
        self.stage.retired(self.look().ops.len());
        Ok(())
    }

    fn publish_once(&self, scope: Scope, done: &mut Published) -> Result<bool> {
        let mut guard = self.stage.attachment().lock_file(self.file)?;
        let begun = self.begin(&mut guard, scope);
        // Before the claim may be given up, which takes the lock again.
        drop(guard);
        match begun? {
            None => Ok(true),
            Some(begun) => self.end(begun, done),
        }
    }

    /// Claims the file, if there is anything to publish.
    fn begin(&self, guard: &mut FileGuard<'_, M>, scope: Scope) -> Result<Option<Begun<'_, M>>> {
        if !self.has_to_publish(scope)? {
            self.follow(guard)?;
            if !self.has_to_publish(scope)? {
                return Ok(None);
            }
        }
        let claim = self.claim(guard)?;
        let target = self.aim(guard, scope);
        Ok(Some(Begun { claim, target }))
    }

    /// Whether there is anything to publish, as far as this process knows. A claim makes all readers throw their copies
    /// away: none is taken for what is not committed, at every look at its age.
    fn has_to_publish(&self, scope: Scope) -> Result<bool> {
        match scope {
            // A commit that somebody is just making durable counts: who waits for room waits for it.
            Scope::Committed => {
                let view = self.look();
                // In other modes a record commits itself.
                let last = view.commit.max(view.committed);
                Ok(view.ops.front().is_some_and(|(seq, _)| *seq <= last))
            }
            Scope::Everything | Scope::Alone | Scope::Nothing => Ok(!self.look().ops.is_empty()),
        }
    }

    /// Publishes what was begun, with the file's lock given up; `false` when somebody else has claimed the file
    /// meanwhile.
    fn end(&self, begun: Begun<'_, M>, done: &mut Published) -> Result<bool> {
        let Begun { mut claim, target } = begun;
        let Some(target) = target? else {
            return Ok(true);
        };
        let linking = self.fold(&target, self.relink()?, done)?;
        let mut guard = self.stage.attachment().lock_file(self.file)?;
        if !claim.stands(&guard)? {
            return Ok(false);
        }
        let completed = self.complete(&mut guard, &mut claim, &target, linking, done);
        // Before the claim, which takes the lock again.
        drop(guard);
        completed.map(|()| true)
    }

    /// The end of a publication, under the file's lock: what is relinked, and then the records.
    fn complete(
        &self,
        guard: &mut FileGuard<'_, M>,
        claim: &mut Claim<'_, M>,
        target: &Target,
        linking: Option<Linking<B>>,
        done: &mut Published,
    ) -> Result<()> {
        if let Some(linking) = linking {
            self.link(guard, claim, target, &linking, done)?;
        }
        // Readers leave them out as soon as they are retired.
        let records = self.look().ops_up_to(target.last) as u64;
        guard.retire(target.last)?;
        done.records += records;
        self.drop_up_to(target.last)?;
        claim.end_relinking(guard)
    }

    /// What is to be published, now that the claim is ours and nobody else retires any more.
    ///
    /// The claim has moved the publishing word under the same lock, and all of these records were logged
    /// before. So a reader that does not see the move when it begins sees it after its copy; and one that
    /// does sees as well that its overlay lacks some of them, and brings it up to date before it looks
    /// ([`StagedFile::current`]).
    fn aim(&self, guard: &mut FileGuard<'_, M>, scope: Scope) -> Result<Option<Target>> {
        self.follow(guard)?;
        let alone = matches!(scope, Scope::Alone | Scope::Nothing);
        if alone && guard.version()? & SHARED != 0 {
            return Err(Error::Shared);
        }
        if scope == Scope::Nothing && !self.is_clean() {
            return Err(Error::Unpublished);
        }
        if scope != Scope::Committed {
            let commit = self.log_commit(guard)?;
            self.settle_commit(commit)?;
        }
        self.target()
    }

    /// How long runs get into the base file, other than by a copy.
    fn relink(&self) -> Result<Option<&Relink<B>>> {
        let shared = self.is_shared()?;
        Ok(self.relink.as_ref().filter(|_| !shared))
    }

    /// What is committed now.
    pub(super) fn target(&self) -> Result<Option<Target>> {
        let modified = self.stage.attachment().pool().modified(self.file)?;
        let view = self.look();
        let committed = view.ops_up_to(view.committed);
        let last = committed.checked_sub(1).and_then(|nth| view.ops.get(nth));
        Ok(last.map(|&(last, _)| Target { last, modified }))
    }

    /// Makes the base file what the records up to the target's last amount to, durably, but for what is
    /// to be relinked.
    pub(super) fn fold(
        &self,
        target: &Target,
        relink: Option<&Relink<B>>,
        done: &mut Published,
    ) -> Result<Option<Linking<B>>> {
        let plan = self.plan(0, target.last)?;
        let mut fold = Fold::new(self.stage.attachment().pool(), &self.base, *done);
        let folded = fold.run(&plan, target.modified, relink);
        *done = fold.done;
        folded
    }

    /// Records that another publisher, say the monitor, has retired.
    pub(super) fn leave_out(&self, retired: u64) -> Result<()> {
        if self.drop_up_to(retired)? {
            self.stage
                .left_out
                .store(true, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes published records out of the overlay, over a base file that holds them; whether there were any. Whoever holds
    /// the file's lock does so before he logs anything: their space is anybody's from then on, and no page of it may come
    /// back as one that newer writes cover ([`super::recycle`]).
    pub(super) fn drop_up_to(&self, last: u64) -> Result<bool> {
        if !self.look().begins_up_to(last) {
            return Ok(false);
        }
        let mut view = self.change();
        if !view.begins_up_to(last) {
            return Ok(false);
        }
        // With the view held: readers hold no other lock, and none of them may put an older size behind a newer one.
        let base_size = self.base.size()?;
        view.reveal(last);
        view.committed = view.committed.max(last);
        let gone = view.ops_up_to(last);
        view.covered.clear();
        self.room.is_old();
        view.ops.drain(..gone);
        view.overlay = Overlay::of(base_size, view.ops.iter().map(|(_, op)| *op));
        drop(view);
        self.stage.retired(gone);
        Ok(true)
    }
}
