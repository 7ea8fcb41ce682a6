//! Publishing for the dead.
//!
//! The log alone says what belongs to which file. In the boot that wrote it, everything acknowledged
//! counts: it is committed first, so that a loss of power in the middle of this recovery does not leave
//! a part of it, and then published. In another boot only what was committed is left to be found.
//! Nothing is thrown away: what cannot be published, for lack of its file or by the file's own error,
//! stays in the pool and is reported. An interrupted recovery is begun again.

use adit_pmem::{BaseFile, Medium};
use adit_pool::layout::Record;
use adit_pool::{Attachment, FileGuard, FileName, RecoveredFile, Recovery, Released};
use rustix::io::Errno;

use super::claim::{Claim, bury_claims};
use super::error::{Error, Result, is_pressure};
use super::overlay::Overlay;
use super::publish::{Fold, Published};

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

/// What a recovery did.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Files published.
    pub published: Vec<FileName>,
    /// Files that could not be published.
    pub kept: Vec<Kept>,
    /// What publishing amounted to.
    pub done: Published,
    /// Log lines that were not believed, now.
    pub rejected: u64,
    /// What of the dead was given back.
    pub released: Released,
}

/// Publishes what dead attachments left, and gives back what they held. `open` finds a file by its
/// handle (the path is a hint, never enough): `Ok(None)` when there is no such file any more.
///
/// Files of living attachments are theirs and left alone. Memory: what the log itself needs to be
/// walked, and the operations of one file at a time.
pub fn recover<M: Medium, B: BaseFile>(
    attachment: &Attachment<M>,
    open: impl Fn(&FileName) -> Result<Option<B>, Errno>,
) -> Result<Recovered> {
    let mut report = Recovered::default();
    bury_claims(attachment)?;
    for _ in 0..PASSES {
        report.kept.clear();
        let found = attachment.pool().scan()?;
        report.rejected = found.counts.rejected;
        for file in found.files.iter().filter(|file| file.orphaned) {
            match publish_orphan(attachment, &found, file, &open, &mut report.done) {
                Ok(()) => report.published.extend(file.name.clone()),
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
        let pressed = |kept: &Kept| matches!(&kept.reason, Error::Pool(e) if is_pressure(e));
        if !report.kept.iter().any(pressed) {
            break;
        }
    }
    Ok(report)
}

fn publish_orphan<M: Medium, B: BaseFile>(
    attachment: &Attachment<M>,
    found: &Recovery,
    file: &RecoveredFile,
    open: &impl Fn(&FileName) -> Result<Option<B>, Errno>,
    done: &mut Published,
) -> Result<()> {
    let pool = attachment.pool();
    let name = match &file.name {
        Some(name) => name,
        None => &pool.file_name(file.file())?,
    };
    let base = open(name)?.ok_or(Errno::STALE)?;
    let mut guard = attachment.lock_file(file.file())?;
    let claim = Claim::take(attachment, &guard)?;
    let last = prepare(attachment, found, file, &mut guard);
    // Before the claim may be given up, which takes the lock again.
    drop(guard);
    let last = last?;
    if last == 0 {
        return Ok(());
    }
    let ops = found
        .records(pool, file.file())
        .map(|replay| replay.map(|replay| replay.op))
        .collect::<adit_pool::Result<Vec<_>>>()?;
    let plan = Overlay::of(base.size()?, ops);
    let mut fold = Fold {
        medium: pool.medium(),
        base: &base,
        relink: None,
        relinked: &mut Vec::new(),
        block: Fold::<M, B>::block(),
        done: *done,
    };
    fold.run(&plan)?;
    *done = fold.done;
    let mut guard = attachment.lock_file(file.file())?;
    if !claim.stands(&guard)? {
        return Err(Error::Contended);
    }
    guard.retire(last)?;
    done.records += file.records;
    Ok(())
}

/// Commits what the dead left uncommitted in this boot. Returns up to which record to retire, or 0 when
/// somebody else has published the file since it was found.
fn prepare<M: Medium>(
    attachment: &Attachment<M>,
    found: &Recovery,
    file: &RecoveredFile,
    guard: &mut FileGuard<'_, M>,
) -> Result<u64> {
    let pool = attachment.pool();
    if pool.retired(file.file())? >= file.first_seq {
        return Ok(0);
    }
    for replay in found.records(pool, file.file()) {
        let mut line = [0; Record::SIZE];
        let read = pool.medium().read(replay?.at, &mut line);
        read.map_err(adit_pool::Error::from)?;
        let record = Record::decode(&line);
        if record.boot == pool.boot().tag() && record.flags & Record::COMMITTED == 0 {
            return Ok(guard.commit()?.max(file.last_seq));
        }
    }
    Ok(file.last_seq)
}
