//! What programs that know of Adit call by name: `adit.h`.
//!
//! # Safety
//! Descriptors are numbers until the kernel or the table says more. The caller's array is read once,
//! under the promise of the function that takes it.
#![allow(unsafe_code, unreachable_pub)]

use crate::signal::engine;
use crate::together::{self, Used};
use crate::writer::{Held, Writer};
use crate::{data, fds, init, sys};
use adit_store::staged::Mode;

/// More descriptors than a process can have.
const MOST: usize = fds::LIMIT;

/// Makes everything written so far through these descriptors durable, as `fsync` of each of them does;
/// in mode `atomic` at one instant, so that a crash of the system leaves all of it or nothing. There each
/// has to be a file that is staged, or to which nothing was written yet: else `EINVAL`, with nothing
/// committed. `EXDEV` when the files have different pools.
///
/// # Safety
/// `fds` points to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_commit_group(fds: *const i32, count: usize) -> i32 {
    let done = if count > MOST {
        Err(libc::EINVAL)
    } else {
        // SAFETY: the caller's promise.
        let fds = (0..count)
            .map(|nth| unsafe { fds.add(nth).read() })
            .collect();
        commit_group(fds)
    };
    sys::to_libc(done.map(|()| 0)) as i32
}

fn commit_group(fds: Vec<i32>) -> Result<(), i32> {
    if init::mode() != Some(Mode::Atomic) {
        let each = fds.into_iter().map(sync);
        // Those after one that failed are to be durable all the same.
        return each.fold(Ok(()), Result::and);
    }
    let _inside = engine::enter();
    let mut used = Vec::with_capacity(fds.len());
    for fd in fds {
        match fds::promoted(fd) {
            Some(ofd) if ofd.writer().is_some() => used.push(Used { fd, ofd }),
            _ => {
                sys::fcntl(fd as usize, libc::F_GETFD as usize, 0)?;
                return Err(libc::EINVAL);
            }
        }
    }
    for Used { fd, ofd } in &used {
        if let Some(writer) = ofd.writer() {
            writer.look_for_children(ofd, *fd);
        }
    }
    together::in_order(&mut used);
    let held = together::hold(&used);
    let bypassed = |used: &Used| used.ofd.writer().is_some_and(Writer::was_bypassed);
    let wanted = used.iter().any(|used| used.ofd.is_wanted());
    if wanted || held.iter().any(|held| held.is_kernels()) || used.iter().any(bypassed) {
        return Err(libc::EINVAL);
    }
    // What `open` itself did to a file, and what was published of it before, is the kernel's to keep; so is what others have
    // written to one that was given back, noticed here or not.
    let is_staged = |held: &Held<'_>| {
        held.staged()
            .is_some_and(|staged| !staged.file().is_taken())
    };
    let (staged, others): (Vec<_>, Vec<_>) = used
        .iter()
        .zip(&held)
        .partition(|(_, held)| is_staged(held));
    let sync = |used: &Used<'_>| sys::fsync(used.fd as usize).map(drop);
    others.iter().try_for_each(|(used, _)| sync(used))?;
    let files: Vec<_> = staged
        .iter()
        .filter_map(|(_, held)| held.staged())
        .collect();
    together::commit(&files)?;
    let mut given_back = staged.iter().filter(|(_, held)| !is_staged(held));
    given_back.try_for_each(|(used, _)| sync(used))
}

/// `fsync`, as the program's own call does it.
fn sync(fd: i32) -> Result<(), i32> {
    match data::fsync(fd) {
        data::PASS => sys::fsync(fd as usize).map(|_| ()),
        0 => Ok(()),
        _ => Err(sys::errno()),
    }
}
