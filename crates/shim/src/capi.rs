//! What programs that know of Adit call by name: `adit.h`.
//!
//! # Safety
//! Descriptors are numbers until the kernel or the table says more. The caller's array is read once,
//! under the promise of the function that takes it.
#![allow(unsafe_code, unreachable_pub)]

use crate::{data, fds, init, stack, sys, together};
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
    let done = match count {
        1.. if fds.is_null() => Err(libc::EFAULT),
        count if count > MOST => Err(libc::EINVAL),
        count => {
            // SAFETY: the caller's promise.
            let fds = (0..count).map(|nth| unsafe { fds.add(nth).read() });
            commit_group(fds.collect())
        }
    };
    sys::to_libc(done.map(|()| 0)) as i32
}

fn commit_group(fds: Vec<i32>) -> Result<(), i32> {
    if init::mode() == Some(Mode::Atomic) {
        return stack::with_room(|| together::commit_named(&fds));
    }
    // Those after one that failed are to be durable all the same.
    fds.into_iter().map(sync).fold(Ok(()), Result::and)
}

/// `fsync`, as the program's own call does it.
fn sync(fd: i32) -> Result<(), i32> {
    match data::fsync(fd) {
        data::PASS => sys::fsync(fd as usize).map(|_| ()),
        0 => Ok(()),
        _ => Err(sys::errno()),
    }
}
