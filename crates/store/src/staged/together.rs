//! Committing several files at one instant.
//!
//! All of them are locked, in the order that everybody keeps who locks several, so the commit is one cut
//! through what all threads write. What has to be published afterwards is published file by file: the
//! ring of commits (`adit_pool`) counts until the last of them is retired.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_pmem::{BaseFile, Medium};
use adit_pool::{Attachment, FileGuard, RecoveredFile};

use super::error::{Error, Result, is_pressure};
use super::file::{StagedFile, Walk};

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Whether a crash of the system would take back anything of the file, as far as this process knows.
    #[must_use]
    pub fn has_uncommitted(&self) -> bool {
        self.look().has_uncommitted()
    }

    /// Whether the two can be committed together: they lie in one pool.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.stage, &other.stage)
    }

    /// Looks at what others have logged of several files of one pool, with one walk over its logs. Whoever publishes
    /// or commits them one by one afterwards makes none for a file that nobody has written meanwhile. Files that
    /// somebody else has locked are left out.
    pub fn follow_together(files: &[&Self]) -> Result<()> {
        let mut locked = Vec::with_capacity(files.len());
        for file in in_order(files) {
            if let Ok(Some(guard)) = file.stage.attachment().try_lock_file(file.file) {
                locked.push((file, guard));
            }
        }
        follow_locked(&mut locked)
    }

    /// Makes everything so far of several files durable, at one instant: after a crash of the system
    /// either all of it has happened or nothing that was not committed before. A file that somebody has
    /// published and taken away meanwhile is durable already. [`Error::Apart`] when they lie in
    /// different pools, with nothing committed.
    pub fn commit_group(files: &[&Self]) -> Result<()> {
        let Some(first) = files.first() else {
            return Ok(());
        };
        if files.iter().any(|file| !file.is_beside(first)) {
            return Err(Error::Apart);
        }
        let files = in_order(files);
        files[0].with_room(|| {
            let committed = commit_locked(&files);
            if matches!(&committed, Err(Error::Pool(error)) if is_pressure(error)) {
                for other in &files[1..] {
                    other.relieve()?;
                }
            }
            committed
        })
    }
}

/// The order in which everybody locks them.
fn in_order<'a, M: Medium, B: BaseFile>(
    files: &[&'a StagedFile<M, B>],
) -> Vec<&'a StagedFile<M, B>> {
    let mut files = files.to_vec();
    files.sort_unstable_by_key(|file| file.file);
    files.dedup_by_key(|file| file.file);
    files
}

/// Files that are locked, with their overlays up to date.
type Locked<'a, M, B> = Vec<(&'a StagedFile<M, B>, FileGuard<'a, M>)>;

/// Locks the files that nobody has taken away.
fn lock_together<'a, M: Medium, B: BaseFile>(
    files: &[&'a StagedFile<M, B>],
) -> Result<Locked<'a, M, B>> {
    let mut locked = Vec::with_capacity(files.len());
    for &file in files {
        match file.stage.attachment().lock_file(file.file) {
            Err(adit_pool::Error::Forgotten) => {}
            guard => {
                let guard = guard?;
                // Who waits for this one waits for the next ones, which their dead may have left to be repaired.
                guard.takes_long();
                locked.push((file, guard));
            }
        }
    }
    follow_locked(&mut locked)?;
    Ok(locked)
}

fn follow_locked<M: Medium, B: BaseFile>(locked: &mut Locked<'_, M, B>) -> Result<()> {
    // Who waits for one of them waits for what any of them needs.
    for (_, guard) in &*locked {
        guard.takes_long();
    }
    let mut walk = Walk::of(locked.len());
    let mut files = locked.iter_mut();
    files.try_for_each(|(file, guard)| file.follow_by(guard, &mut walk))
}

fn commit_locked<M: Medium, B: BaseFile>(files: &[&StagedFile<M, B>]) -> Result<()> {
    let mut guards = Vec::with_capacity(files.len());
    // Held as well where there is nothing to commit: otherwise a write to one of these and then to
    // another file could be committed by half.
    let mut idle = Vec::new();
    let mut waiting = Vec::with_capacity(files.len());
    for (file, guard) in lock_together(files)? {
        // A commit of this file alone may be on its way, for another thread. Then there is nothing left
        // for one of ours to cover.
        let on_its_way = {
            let view = file.look();
            (view.last() <= view.commit).then_some(view.commit)
        };
        if let Some(commit) = on_its_way {
            file.settle_commit(commit)?;
        }
        if file.look().has_uncommitted() {
            guards.push(guard);
            waiting.push(file);
        } else {
            idle.push(guard);
        }
    }
    let Some(first) = waiting.first() else {
        return Ok(());
    };
    waiting
        .iter()
        .try_for_each(|file| file.make_base_durable())?;
    // The entry of a file of which nothing is durable may not be either, and one that is lost says of its part of the ring
    // that it was retired.
    if waiting.iter().any(|file| file.look().durable == 0) {
        first.stage.attachment().pool().settle()?;
    }
    let commits = first.stage.attachment().commit_together(&mut guards)?;
    for (file, seq) in waiting.iter().zip(commits) {
        let mut view = file.change();
        view.commit = seq;
        view.commit_is_durable(seq);
        file.known_seq.store(seq + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// Commits what the dead left uncommitted in this boot, at one instant: a loss of power in the middle of
/// the recovery must not leave one file of theirs new and another one old. Best effort: what is locked
/// by others, or was written since the walk, is left to be committed by itself. The records of `found`
/// say afterwards what is committed.
pub(super) fn commit_orphans<M: Medium>(
    attachment: &Attachment<M>,
    found: &mut [RecoveredFile],
) -> Result<()> {
    let mut orphans: Vec<&mut RecoveredFile> = found
        .iter_mut()
        .filter(|file| file.orphaned && file.uncommitted > 0)
        .collect();
    if orphans.len() < 2 {
        return Ok(());
    }
    orphans.sort_unstable_by_key(|file| file.file());
    let mut locked = Vec::with_capacity(orphans.len());
    for file in orphans {
        if let Ok(guard) = attachment.lock_file(file.file()) {
            guard.takes_long();
            locked.push((file, guard));
        }
    }
    // Numbers of records that were never written leave gaps; only another walk can tell.
    let unclear =
        |(file, guard): &(&mut RecoveredFile, FileGuard<'_, M>)| -> adit_pool::Result<bool> {
            Ok(guard.next_seq()? != file.last_seq + 1)
        };
    let mut again = false;
    for one in &locked {
        again |= unclear(one)?;
    }
    if again {
        let now = attachment.pool().scan()?;
        locked.retain(|(file, _)| {
            now.files.iter().any(|now| {
                (now.file_id, now.last_seq, now.records)
                    == (file.file_id, file.last_seq, file.records)
            })
        });
    }
    let (files, mut guards): (Vec<_>, Vec<_>) = locked.into_iter().unzip();
    if guards.len() < 2 {
        return Ok(());
    }
    let commits = attachment.commit_together(&mut guards)?;
    for (file, commit) in files.into_iter().zip(commits) {
        file.uncommitted = 0;
        file.last_seq = commit;
    }
    Ok(())
}
