//! Several staged files committed at one instant: those that a program names, or all of them at each
//! `fsync` (`ADIT_COMMIT=together`).
//!
//! The states of the descriptions are held still together, in the order of their addresses, and only then
//! is the engine asked. Whoever changes a state holds that one alone, so nobody waits in a circle.

use crate::ofd::{Ofd, Users};
use crate::signal::engine;
use crate::stage::{self, Staged};
use crate::writer::{Held, Writer};
use crate::{fds, init, sys};
use adit_store::staged::{Error, StagedFile};

/// A description that is open for writing and used, by one of its descriptors.
struct Used<'a> {
    fd: i32,
    ofd: Users<'a>,
    /// By the program, in this very call.
    is_named: bool,
}

impl Used<'_> {
    fn address(&self) -> usize {
        core::ptr::from_ref::<Ofd>(&self.ofd) as usize
    }

    fn writer(&self) -> Option<&Writer> {
        self.ofd.writer()
    }
}

/// All that this process has open for writing.
fn all_used<'a>() -> impl Iterator<Item = Used<'a>> {
    let writers = fds::each_promoted().filter(|(_, ofd)| ofd.writer().is_some());
    writers.map(|(fd, ofd)| Used {
        fd,
        ofd,
        is_named: false,
    })
}

/// Puts descriptions into the order in which they are held, each once.
fn in_order(used: &mut Vec<Used<'_>>) {
    used.sort_unstable_by_key(|used| (used.address(), !used.is_named));
    used.dedup_by_key(|used| used.address());
}

/// Holds the states of descriptions that are in order.
fn hold<'a>(used: &'a [Used<'_>]) -> Vec<Held<'a>> {
    let writers = used.iter().filter_map(Used::writer);
    writers.map(Writer::hold).collect()
}

/// Commits files at one instant.
fn commit(files: &[&Staged]) -> Result<(), i32> {
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
        is_named: true,
    }];
    used.extend(all_used());
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

/// Commits the files of the descriptors that a program names, and does for each of them what else its `fsync` does. See
/// [`capi`](crate::capi) for the errors.
pub(crate) fn commit_named(fds: &[i32]) -> Result<(), i32> {
    let mut used = named(fds)?;
    if init::together() {
        used.extend(all_used());
    }
    // A child that does not know that it is one must not wait for what its parent's threads have locked.
    for (writer, used) in used.iter().filter_map(|used| Some((used.writer()?, used))) {
        writer.be_told(&used.ofd);
    }
    let _inside = engine::enter();
    let named = used.iter().filter(|used| used.is_named);
    for (writer, used) in named.filter_map(|used| Some((used.writer()?, used))) {
        writer.is_about_to_sync(&used.ofd, used.fd);
    }
    in_order(&mut used);
    commit_held(&used)?;
    // The kernel's `fsync` makes times durable, of a file that nobody publishes any more.
    for (writer, used) in used.iter().filter_map(|used| Some((used.writer()?, used))) {
        if used.is_named && writer.settle_times(&used.ofd, used.fd)? {
            sys::fsync(used.fd as usize)?;
        }
    }
    Ok(())
}

fn named<'a>(fds: &[i32]) -> Result<Vec<Used<'a>>, i32> {
    let one = |&fd: &i32| match fds::promoted(fd) {
        Some(ofd) if ofd.writer().is_some() => Ok(Used {
            fd,
            ofd,
            is_named: true,
        }),
        _ => {
            sys::fcntl(fd as usize, libc::F_GETFD as usize, 0)?;
            Err(libc::EINVAL)
        }
    };
    fds.iter().map(one).collect()
}

fn commit_held(used: &[Used<'_>]) -> Result<(), i32> {
    let held = hold(used);
    let (named, beside): (Vec<_>, Vec<_>) =
        used.iter().zip(&held).partition(|(used, _)| used.is_named);
    let cannot_be_part = |(used, held): &(&Used<'_>, &Held<'_>)| {
        let was_bypassed = used.writer().is_some_and(Writer::was_bypassed);
        used.ofd.is_wanted() || held.is_kernels() || was_bypassed
    };
    if named.iter().any(cannot_be_part) {
        return Err(libc::EINVAL);
    }
    // What `open` itself did to a file, and what was published of it before, is the kernel's to keep; so is what others have
    // written to one that was given back, noticed here or not.
    let is_given_back = |held: &Held<'_>| {
        let staged = held.staged();
        staged.is_none_or(|staged| staged.file().is_taken())
    };
    let sync = |used: &Used<'_>| sys::fsync(used.fd as usize).map(drop);
    let (kernels, staged): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|(_, held)| is_given_back(held));
    kernels.iter().try_for_each(|(used, _)| sync(used))?;
    let own = staged.iter().filter_map(|(_, held)| held.staged());
    let others = beside.iter().filter_map(|(_, held)| held.staged());
    // As its `fsync` does, one that is not staged commits those that are staged where it lies.
    let is_near = |file: &&Staged| {
        used.iter()
            .any(|used| used.is_named && file.is_on_device_of(used.fd))
    };
    let first = own.clone().next().or_else(|| others.clone().find(is_near));
    let is_beside = |file: &&Staged| first.is_some_and(|first| file.file().is_beside(first.file()));
    let files: Vec<_> = own.clone().chain(others.filter(is_beside)).collect();
    commit(&files)?;
    for staged in own {
        match staged.show_synced() {
            // Then all of it is in the file.
            Ok(()) | Err(Error::Taken) => {}
            Err(error) => return Err(error.errno().raw_os_error()),
        }
    }
    let mut given_back = staged.iter().filter(|(_, held)| is_given_back(held));
    given_back.try_for_each(|(used, _)| sync(used))
}
