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

/// `fsync` where each commits all files that are staged beside the synced one, whether that one is or not: it may have been
/// given back since. `None` where it does not, or nothing is staged there.
pub(crate) fn sync(synced: &Ofd, fd: i32) -> Option<sys::Result> {
    commit_all(synced, fd, |_| true)
}

/// Before a file with uncommitted bytes is published for somebody else, or for good: that commits it, and
/// so the others. What cannot be committed now, for lack of room, is published by itself.
pub(crate) fn before_publishing(left: &Ofd) {
    // One that is being closed has no descriptor any more.
    let _ = commit_all(left, -1, |own| {
        own.is_some_and(|own| own.file().has_uncommitted())
    });
}

/// Commits what is staged beside the file of a description, if it is so with what is staged of that itself.
fn commit_all(one: &Ofd, fd: i32, if_so: impl Fn(Option<&Staged>) -> bool) -> Option<sys::Result> {
    if !init::together() {
        return None;
    }
    let _inside = engine::enter();
    let mut used = vec![Used {
        fd,
        ofd: one.enter(),
    }];
    let writers = fds::each_promoted().filter(|(_, ofd)| ofd.writer().is_some());
    used.extend(writers.map(|(fd, ofd)| Used { fd, ofd }));
    in_order(&mut used);
    let held = hold(&used);
    let own = used
        .iter()
        .position(|used| core::ptr::eq(&*used.ofd, one))?;
    let own = held.get(own)?.staged();
    if !if_so(own) {
        return None;
    }
    let staged = || held.iter().filter_map(Held::staged);
    let first = own.or_else(|| staged().find(|staged| staged.is_on_device_of(fd)))?;
    let all: Vec<&Staged> = staged()
        .filter(|staged| staged.file().is_beside(first.file()))
        .collect();
    Some(commit(&all).map(|()| 0))
}
