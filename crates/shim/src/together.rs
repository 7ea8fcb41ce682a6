//! Several staged files committed at one instant: those that a program names, or all of them at each
//! `fsync` (`ADIT_COMMIT=together`).
//!
//! The states of the descriptions are held still together, in the order of their addresses, and only then
//! is the engine asked. Whoever changes a state holds that one alone, so nobody waits in a circle.

use crate::ofd::{Ofd, Users};
use crate::signal::engine;
use crate::stage::{self, Staged};
use crate::writer::Held;
use crate::{fds, init, sys};
use adit_store::staged::{Error, StagedFile};

/// A description that is used, by one of its descriptors.
pub(crate) struct Used<'a> {
    pub(crate) fd: i32,
    pub(crate) ofd: Users<'a>,
}

impl Used<'_> {
    fn address(&self) -> usize {
        core::ptr::from_ref::<Ofd>(&self.ofd) as usize
    }
}

/// Puts descriptions into the order in which they are held, each once.
pub(crate) fn in_order(used: &mut Vec<Used<'_>>) {
    used.sort_unstable_by_key(Used::address);
    used.dedup_by_key(|used| used.address());
}

/// Holds the states of descriptions that are in order.
pub(crate) fn hold<'a>(used: &'a [Used<'_>]) -> Vec<Held<'a>> {
    let writers = used.iter().filter_map(|used| used.ofd.writer());
    writers.map(|writer| writer.hold()).collect()
}

/// Commits files at one instant.
pub(crate) fn commit(files: &[&Staged]) -> Result<(), i32> {
    let files: Vec<_> = files.iter().map(|staged| staged.file()).collect();
    let committed = stage::patiently(|| StagedFile::commit_group(&files));
    committed.map_err(|error| match error {
        // Whatever the pool met, the program cannot do anything about it but go by what was committed.
        Error::Pool(_) => libc::EIO,
        error => error.errno().raw_os_error(),
    })
}

/// `fsync` of a staged file where each commits them all; `None` where it does not, or is not staged.
pub(crate) fn sync(synced: &Ofd) -> Option<sys::Result> {
    commit_all(synced, |_| true)
}

/// Before a file with uncommitted bytes is published for somebody else, or for good: that commits it, and
/// so the others. What cannot be committed now, for lack of room, is published by itself.
pub(crate) fn before_publishing(left: &Ofd) {
    let _ = commit_all(left, |staged| staged.file().has_uncommitted());
}

fn commit_all(one: &Ofd, if_so: impl Fn(&Staged) -> bool) -> Option<sys::Result> {
    if !init::together() {
        return None;
    }
    let _inside = engine::enter();
    // One that is being closed has no descriptor any more.
    let mut used = vec![Used {
        fd: -1,
        ofd: one.enter(),
    }];
    let writers = fds::each_promoted().filter(|(_, ofd)| ofd.writer().is_some());
    used.extend(writers.map(|(fd, ofd)| Used { fd, ofd }));
    in_order(&mut used);
    let held = hold(&used);
    let own = used
        .iter()
        .position(|used| core::ptr::eq(&*used.ofd, one))?;
    let own = held.get(own)?.staged().filter(|staged| if_so(staged))?;
    let beside = |staged: &&Staged| staged.file().is_beside(own.file());
    let all: Vec<&Staged> = held
        .iter()
        .filter_map(Held::staged)
        .filter(beside)
        .collect();
    Some(commit(&all).map(|()| 0))
}
