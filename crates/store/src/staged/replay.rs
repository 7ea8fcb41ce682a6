//! Publishing for the dead.
//!
//! The log alone says what belongs to which file. In the boot that wrote it, everything acknowledged
//! counts: it is committed first, so that a loss of power in the middle of this recovery does not leave
//! a part of it, and then published. In another boot only what was committed is left to be found.
//! Nothing is thrown away: what cannot be published, for lack of its file or by the file's own error,
//! stays in the pool and is reported. An interrupted recovery is begun again.

use adit_pmem::{BaseFile, Medium};
use adit_pool::{Attachment, FileGuard, FileName, RecoveredFile, Recovery, Rejection, Released};

use super::claim::{Claim, bury_claims, is_relinking};
use super::error::{Error, Result, is_pressure};
use super::fold::Fold;
use super::overlay::Overlay;
use super::publish::Published;
use super::together::commit_orphans;

/// Passes over the log: files whose commit found no room are tried again after others made some.
const PASSES: usize = 3;

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
    /// Log lines that were not believed, now, but for those that were cut off.
    pub rejected: u64,
    /// Last lines of a log that were cut off while they were written, before anybody was told of them.
    pub torn: u64,
    /// What of the dead was given back.
    pub released: Released,
}

/// Publishes what dead attachments left, ends the staging of these files, and gives back what the dead
/// held. `open` finds a file by its handle (the path is a hint, never enough): [`super::open_by_name`],
/// or whatever description of it the caller has.
///
/// Files of living attachments are theirs and left alone. Memory: what the log itself needs to be
/// walked, and the operations of one file at a time.
pub fn recover<M: Medium, B: BaseFile>(
    attachment: &Attachment<M>,
    open: impl Fn(&FileName) -> Result<B>,
) -> Result<Recovered> {
    let mut report = Recovered::default();
    bury_claims(attachment)?;
    for _ in 0..PASSES {
        report.kept.clear();
        let mut found = attachment.scan()?;
        match commit_orphans(attachment, &mut found.files) {
            // No room: then each by itself, which makes some.
            Err(Error::Pool(error)) if is_pressure(&error) => {}
            result => result?,
        }
        let torn = found
            .rejected
            .iter()
            .filter(|line| matches!(line.reason, Rejection::Torn | Rejection::TornData));
        report.torn = torn.count() as u64;
        report.rejected = found.counts.rejected - report.torn;
        let living = found.files.iter().filter(|file| !file.orphaned);
        report.living = living
            .map(|file| (file.name.clone(), file.records))
            .collect();
        for file in found.files.iter().filter(|file| file.orphaned) {
            match publish_orphan(attachment, &found, file, &open, &mut report.done) {
                Ok(restored) => report.published.extend(restored),
                Err(reason) => report.kept.push(Kept {
                    file_id: file.file_id,
                    name: file.name.clone(),
                    records: file.records,
                    reason,
                }),
            }
        }
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

/// Publishes one file; `None` when somebody else has done so since it was found.
fn publish_orphan<M: Medium, B: BaseFile>(
    attachment: &Attachment<M>,
    found: &Recovery,
    file: &RecoveredFile,
    open: &impl Fn(&FileName) -> Result<B>,
    done: &mut Published,
) -> Result<Option<Restored>> {
    let pool = attachment.pool();
    let name = match &file.name {
        Some(name) => name,
        None => &pool.file_name(file.file())?,
    };
    let base = open(name)?;
    let mut guard = attachment.lock_file(file.file())?;
    let mut claim = Claim::take(attachment, &guard)?;
    // What went to the file may have gone since it was found.
    let relinking = is_relinking(guard.version()?);
    let again = relinking.then(|| attachment.scan());
    let last = prepare(attachment, file, &mut guard);
    // Whoever gets the lock of a file whose relink failed publishes it at once, whoever has claimed it.
    // Otherwise it goes, and before the claim, which takes it again when it is given up.
    let guard = (relinking && matches!(last, Ok(Some(_)))).then_some(guard);
    let Some(last) = last? else {
        return Ok(None);
    };
    let again = again.transpose()?;
    let found = again.as_ref().unwrap_or(found);
    let ops = found
        .records(pool, file.file())
        .map(|replay| replay.map(|replay| replay.op))
        .collect::<adit_pool::Result<Vec<_>>>()?;
    let plan = Overlay::of(base.size()?, ops);
    let before = *done;
    let mut fold = Fold::new(pool, &base, *done);
    fold.run(&plan, pool.modified(file.file())?, None)?;
    *done = fold.done;
    let mut guard = match guard {
        Some(guard) => guard,
        None => attachment.lock_file(file.file())?,
    };
    if !claim.stands(&guard)? {
        return Err(Error::Contended);
    }
    guard.retire(last)?;
    claim.end_relinking(&guard)?;
    // A living process that has the file staged, too, may have gone on.
    if guard.next_seq()? == last + 1 {
        guard.forget()?;
    } else {
        drop(guard);
    }
    done.records += file.records;
    Ok(Some(Restored {
        name: name.clone(),
        records: file.records,
        bytes: done.copied - before.copied,
    }))
}

/// Commits what the dead left uncommitted in this boot. Returns up to which record to retire, or
/// nothing when somebody else has published the file since it was found.
fn prepare<M: Medium>(
    attachment: &Attachment<M>,
    file: &RecoveredFile,
    guard: &mut FileGuard<'_, M>,
) -> Result<Option<u64>> {
    let pool = attachment.pool();
    if pool.retired(file.file())? >= file.first_seq {
        return Ok(None);
    }
    // What was written since the walk is not in it, and must not be retired with it. Numbers of records
    // that were never written leave a gap in front of the next one; only another walk, with the file
    // locked, can tell that nothing lies there.
    let next = guard.next_seq()?;
    if next > file.last_seq + 1 {
        let now = pool.scan()?;
        let same = now.files.iter().find(|now| now.file_id == file.file_id);
        if same.is_none_or(|now| (now.last_seq, now.records) != (file.last_seq, file.records)) {
            return Err(Error::Contended);
        }
    }
    if file.uncommitted > 0 {
        guard.commit()?;
    } else {
        // They were killed when they waited for this.
        pool.settle()?;
    }
    Ok(Some(guard.next_seq()?.saturating_sub(1)))
}
