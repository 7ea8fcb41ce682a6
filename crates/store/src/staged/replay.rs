//! Publishing for the dead.
//!
//! The log alone says what belongs to which file. In the boot that wrote it, everything acknowledged
//! counts: it is committed first, so that a loss of power in the middle of this recovery does not leave
//! a part of it, and then published. In another boot only what was committed is left to be found.
//! Nothing is thrown away: what cannot be published, for lack of its file or by the file's own error,
//! stays in the pool and is reported. An interrupted recovery is begun again.

use std::collections::BTreeSet;
use std::sync::Arc;

use adit_pmem::{BaseFile, Medium};
use adit_pool::{
    Attachment, Counts, FileGuard, FileName, Pool, RecoveredFile, Recovery, Rejected, Rejection,
    Released, SHARED,
};

use super::claim::{Claim, bury_claims, is_relinking};
use super::error::{Error, Result, is_pressure};
use super::fold::Fold;
use super::overlay::{Overlay, Source};
use super::publish::Published;
use super::together::commit_orphans;

/// Passes over the log: files whose commit found no room are tried again after others made some.
const PASSES: usize = 3;

/// Files whose records are retired with one fence at most, and bytes copied to them from which on no other one is added. So
/// long whoever wants one of them waits, and so much is done again after a recovery that was killed.
const TOGETHER: usize = 64;
const BYTES_TOGETHER: u64 = 16 << 20;

/// A file whose staged bytes stay in the pool.
#[derive(Debug)]
pub struct Kept {
    /// Id of its entry.
    pub file_id: u64,
    /// What it is known by, unless that is damaged.
    pub name: Option<FileName>,
    /// Records that wait.
    pub records: u64,
    /// Why.
    pub reason: Error,
}

/// A file whose staged bytes are where they belong.
#[derive(Debug)]
pub struct Restored {
    /// What it is known by.
    pub name: FileName,
    /// Records published.
    pub records: u64,
    /// Bytes written to it.
    pub bytes: u64,
    /// It was not there, and was given up with all that was staged of it.
    pub given_up: bool,
}

/// What a recovery did.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Files published.
    pub published: Vec<Restored>,
    /// Files that could not be published.
    pub kept: Vec<Kept>,
    /// Files that the living have staged, with their records: these are left alone.
    pub living: Vec<(Option<FileName>, u64)>,
    /// What publishing amounted to.
    pub done: Published,
    /// Log lines that were not believed, but for those that were cut off.
    pub rejected: u64,
    /// The first of them. They may be gone by now with what had to be freed.
    pub lines: Vec<Rejected>,
    /// Last lines of a log that were cut off while they were written, before anybody was told of them.
    pub torn: u64,
    /// What of the dead was given back.
    pub released: Released,
}

impl Recovered {
    /// A walk over the logs has seen these lines. One that comes later sees no more of them: some may be gone by then.
    pub(crate) fn has_seen(&mut self, counts: &Counts, rejected: &[Rejected]) {
        use Rejection::{BitFlip, Torn, TornData};
        let is_cut_off = |line: &&Rejected| matches!(line.reason, Torn | TornData);
        let torn = rejected.iter().filter(is_cut_off).count() as u64;
        self.torn = self.torn.max(torn);
        let damaged = counts.rejected - torn;
        if damaged > self.rejected {
            let is_lost =
                |line: &&Rejected| !matches!(line.reason, Torn | TornData | BitFlip { .. });
            self.rejected = damaged;
            self.lines = rejected.iter().filter(is_lost).cloned().collect();
        }
    }

    /// All that another recovery before this one has told.
    pub(crate) fn follows(&mut self, before: Self) {
        let published = std::mem::replace(&mut self.published, before.published);
        self.published.extend(published);
        self.torn = self.torn.max(before.torn);
        if before.rejected > self.rejected {
            (self.rejected, self.lines) = (before.rejected, before.lines);
        }
        self.released.slots += before.released.slots;
        self.released.chunks += before.released.chunks;
    }

    /// Notes why a file could not be published, unless somebody else has brought all of it there meanwhile.
    fn keep(&mut self, file: &RecoveredFile, reason: Error) {
        if matches!(reason, Error::Taken) {
            return;
        }
        self.kept.push(Kept {
            file_id: file.file_id,
            name: file.name.clone(),
            records: file.records,
            reason,
        });
    }
}

/// Publishes what dead attachments left, ends the staging of these files, and gives back what the dead
/// held. `open` finds a file by its handle (the path is a hint, never enough): [`super::open_by_name`],
/// or whatever description of it the caller has. Where it says [`Error::GivenUp`], the file's records are dropped.
///
/// Files of living attachments are theirs and left alone. Memory: what the log itself needs to be
/// walked, and the operations of one file at a time. Files are made durable one by one, and their records retired for many
/// at once: where a fence is a sync of the kernel, each file takes that of its own, one more before its first commit, and no
/// other.
pub fn recover<M: Medium, B: BaseFile>(
    attachment: &Attachment<M>,
    open: &dyn Fn(&FileName) -> Result<B>,
) -> Result<Recovered> {
    let mut report = Recovered::default();
    bury_claims(attachment)?;
    for _ in 0..PASSES {
        report.kept.clear();
        let mut found = attachment.scan()?;
        let unsynced = make_bases_durable(&found, open);
        match commit_orphans(attachment, &mut found.files) {
            // No room: then each by itself, which makes some.
            Err(Error::Pool(error)) if is_pressure(&error) => {}
            result => result?,
        }
        report.has_seen(&found.counts, &found.rejected);
        let living = found.files.iter().filter(|file| !file.orphaned);
        report.living = living
            .map(|file| (file.name.clone(), file.records))
            .collect();
        publish_orphans(attachment, &found, &unsynced, open, &mut report)?;
        let released = attachment.release_orphans()?;
        report.released.slots += released.slots;
        report.released.chunks += released.chunks;
        report.released.kept = released.kept;
        let again = |kept: &Kept| match &kept.reason {
            Error::Contended => true,
            Error::Pool(error) => is_pressure(error),
            _ => false,
        };
        if !report.kept.iter().any(again) {
            break;
        }
    }
    Ok(report)
}

/// Before the first commit of a file: nobody may have made durable before what it was staged over, and its name
/// ([`super::StagedFile::base_is_durable`]). The files of which that cannot be done now: they are committed with the others
/// all the same, as all of these happen at one instant, but not by themselves.
fn make_bases_durable<B: BaseFile>(
    found: &Recovery,
    open: &dyn Fn(&FileName) -> Result<B>,
) -> BTreeSet<u64> {
    let nothing_is_committed =
        |file: &&RecoveredFile| file.uncommitted > 0 && file.uncommitted == file.records;
    let orphans = found.files.iter().filter(|file| file.orphaned);
    let is_durable = |file: &RecoveredFile| {
        let base = file.name.as_ref().map(open);
        matches!(base, Some(Ok(base)) if base.sync().is_ok())
    };
    let first = orphans.filter(nothing_is_committed);
    let failed = first.filter(|file| !is_durable(file));
    failed.map(|file| file.file_id).collect()
}

fn publish_orphans<M: Medium, B: BaseFile>(
    attachment: &Attachment<M>,
    found: &Recovery,
    unsynced: &BTreeSet<u64>,
    open: &dyn Fn(&FileName) -> Result<B>,
    report: &mut Recovered,
) -> Result<()> {
    // They were killed when they waited for this.
    attachment.pool().settle()?;
    let mut replayed = Vec::new();
    for file in found.files.iter().filter(|file| file.orphaned) {
        let open = |name: &FileName| {
            let base = open(name)?;
            if unsynced.contains(&file.file_id) {
                base.sync()?;
            }
            Ok(base)
        };
        match replay(attachment, found, file, &open, &mut report.done) {
            Ok(one) => replayed.push(one),
            Err(reason) => report.keep(file, reason),
        }
        if is_enough(&replayed) {
            end(attachment, std::mem::take(&mut replayed), report);
        }
    }
    end(attachment, replayed, report);
    Ok(())
}

/// A file that has what was staged of it, durably; its records still count.
struct Replayed<'a, M: Medium> {
    file: &'a RecoveredFile,
    claim: Claim<'a, M>,
    /// The last record that it has.
    last: u64,
    /// Somebody alive may have it staged, too, and publishes nothing of it until it is given up.
    shared: bool,
    restored: Restored,
}

fn is_enough<M: Medium>(replayed: &[Replayed<'_, M>]) -> bool {
    let bytes: u64 = replayed.iter().map(|one| one.restored.bytes).sum();
    let awaited = replayed.iter().any(|one| one.shared);
    replayed.len() >= TOGETHER || bytes >= BYTES_TOGETHER || awaited
}

/// Ends the staging of these files, but for what a living process that has one of them staged, too, may have logged since.
fn end<M: Medium>(
    attachment: &Attachment<M>,
    replayed: Vec<Replayed<'_, M>>,
    report: &mut Recovered,
) {
    let mut ending = Vec::with_capacity(replayed.len());
    let mut guards = Vec::with_capacity(replayed.len());
    // In the order that everybody keeps who locks several.
    for one in replayed {
        match lock_claimed(attachment, &one) {
            Ok(guard) => {
                guards.push((guard, one.last));
                ending.push(one);
            }
            Err(reason) => report.keep(one.file, reason),
        }
    }
    // The guards go before the claims, which take the locks again.
    let ended = attachment.end_together(guards);
    for (one, ended) in ending.into_iter().zip(ended) {
        match ended {
            Ok(()) => {
                report.done.records += one.file.records;
                report.published.push(one.restored);
            }
            Err(reason) => report.keep(one.file, reason.into()),
        }
    }
}

fn lock_claimed<'a, M: Medium>(
    attachment: &'a Attachment<M>,
    replayed: &Replayed<'_, M>,
) -> Result<FileGuard<'a, M>> {
    let guard = attachment.lock_file(replayed.file.file())?;
    if replayed.claim.stands(&guard)? {
        Ok(guard)
    } else {
        Err(Error::Contended)
    }
}

/// Brings one file up to date.
fn replay<'a, M: Medium, B: BaseFile>(
    attachment: &'a Attachment<M>,
    found: &Recovery,
    file: &'a RecoveredFile,
    open: &dyn Fn(&FileName) -> Result<B>,
    done: &mut Published,
) -> Result<Replayed<'a, M>> {
    let pool = attachment.pool();
    let name = match &file.name {
        Some(name) => name,
        None => &pool.file_name(file.file())?,
    };
    let base = match open(name) {
        Err(Error::GivenUp) => None,
        opened => Some(opened?),
    };
    let mut guard = attachment.lock_file(file.file())?;
    let mut claim = Claim::take(attachment, &guard)?;
    // What went to the file may have gone since it was found.
    let relinking = is_relinking(guard.version()?);
    let again = relinking.then(|| attachment.scan());
    let latest = again.as_ref().and_then(|again| again.as_ref().ok());
    let last = prepare(attachment, latest.unwrap_or(found), file, &mut guard);
    // Whoever gets the lock of a file whose relink failed publishes it at once, whoever has claimed it.
    // Otherwise it goes, and before the claim, which takes it again when it is given up.
    let guard = (relinking && last.is_ok()).then_some(guard);
    let last = last?;
    let again = again.transpose()?;
    let found = again.as_ref().unwrap_or(found);
    let before = *done;
    if let Some(base) = &base {
        *done = bring_up_to_date(pool, found, file, base, before)?;
    }
    if let Some(mut guard) = guard {
        guard.retire(last)?;
        claim.end_relinking(&guard)?;
    }
    let restored = Restored {
        name: name.clone(),
        records: file.records,
        bytes: done.copied - before.copied,
        given_up: base.is_none(),
    };
    Ok(Replayed {
        file,
        claim,
        last,
        shared: pool.version(file.file())? & SHARED != 0,
        restored,
    })
}

/// Writes to a file what was staged of it, durably.
fn bring_up_to_date<M: Medium, B: BaseFile>(
    pool: &Arc<Pool<M>>,
    found: &Recovery,
    file: &RecoveredFile,
    base: &B,
    done: Published,
) -> Result<Published> {
    let ops = found
        .records(pool, file.file())
        .map(|replay| replay.map(|replay| replay.op))
        .collect::<adit_pool::Result<Vec<_>>>()?;
    let plan = Overlay::of(base.size()?, ops);
    // The walk has read what has a CRC, but for what may be relinked. Of the rest it is known here whether the medium can read
    // it, before the file changes: it would be neither old nor new.
    if !pool.medium().fence_is_slow() || pool.may_be_relinked(file.file())? {
        ensure_readable(pool, &plan)?;
    }
    let mut fold = Fold::new(pool, base, done);
    fold.run(&plan, pool.modified(file.file())?, None)?;
    Ok(fold.done)
}

fn ensure_readable<M: Medium>(pool: &Pool<M>, plan: &Overlay) -> Result<()> {
    let mut block = vec![0; 64 << 10];
    for piece in plan.staged() {
        let Source::Pool(at) = piece.source else {
            continue;
        };
        let mut done = 0;
        while done < piece.len {
            let len = (piece.len - done).min(block.len() as u64);
            let read = pool.medium().read(at + done, &mut block[..len as usize]);
            read.map_err(adit_pool::Error::from)?;
            done += len;
        }
    }
    Ok(())
}

/// Commits what the dead left uncommitted in this boot. Returns up to which record to retire; [`Error::Contended`] when
/// somebody else has written or published any of it since it was found.
fn prepare<M: Medium>(
    attachment: &Attachment<M>,
    found: &Recovery,
    file: &RecoveredFile,
    guard: &mut FileGuard<'_, M>,
) -> Result<u64> {
    let pool = attachment.pool();
    // Only another walk can tell whether anything is left: he may have published what was committed, and no more.
    let retired = pool.seen_retired(file.file())?;
    if retired >= file.first_seq {
        return Err(Error::Contended);
    }
    // What was written since the walk is not in it, and must not be retired with it; nor what was written
    // beside it, where others wrote behind that what it came by later. Numbers of records that were never
    // written leave gaps, between others or in front of the next one; only another walk, with the file
    // locked, can tell that nothing lies there.
    let next = guard.next_seq()?;
    if next > file.last_seq + 1 || !found.has_all_behind(file.file(), retired) {
        let now = pool.scan()?;
        let same = now.files.iter().find(|now| now.file_id == file.file_id);
        if same.is_none_or(|now| (now.last_seq, now.records) != (file.last_seq, file.records)) {
            return Err(Error::Contended);
        }
    }
    if file.uncommitted > 0 {
        guard.commit()?;
    }
    Ok(guard.next_seq()?.saturating_sub(1))
}
