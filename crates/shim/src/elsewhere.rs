//! What other programs stage, for one that looks at a file without opening it.
//!
//! A program that stages nothing has no pool. A filter in shared memory ([`Filter`]) tells it whether anybody may
//! have a file staged, and the monitor how long that is. The stubs of the `stat` family look at one word, which is
//! zero while nothing is staged anywhere; where the filter lies is found out at a program's first look.

use crate::stat::Logical;
use crate::{init, signal, sys};
use adit_pmem::brief;
use adit_store::monitor::client;
use adit_store::registry::{Anywhere, DirError, FileId, Filter};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use rustix::io::Errno;

static FILTER: Anywhere = Anywhere::new();

/// Of a program without Adit, or that could not learn of others.
static NOTHING: AtomicU32 = AtomicU32::new(0);
/// Of one that has not looked yet.
static UNKNOWN: AtomicU32 = AtomicU32::new(1);

/// Where the word is that is not zero while anybody may stage anything.
pub(crate) static ANY: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NOTHING).cast_mut());

fn is_at(word: &AtomicU32) {
    ANY.store(core::ptr::from_ref(word).cast_mut(), Ordering::SeqCst);
}

/// Adit was asked for.
pub(crate) fn start() {
    is_at(&UNKNOWN);
}

/// This process asks nobody any more: it may not be allowed to.
pub(crate) fn stop() {
    is_at(&NOTHING);
}

/// Whether anybody may stage anything, as far as this process knows.
pub(crate) fn is_anything() -> bool {
    let any = |filter: Filter| filter.any().load(Ordering::SeqCst) != 0;
    looks() && FILTER.get().is_none_or(any)
}

/// Whether this process asks others at all.
fn looks() -> bool {
    let nothing = (&raw const NOTHING).cast_mut();
    init::credit().is_some() && ANY.load(Ordering::SeqCst) != nothing
}

/// What others may have staged, if this process can learn of it.
pub(crate) fn filter() -> Option<Filter> {
    if !looks() {
        return None;
    }
    FILTER.get().or_else(|| ask(open))
}

fn open() -> Option<Filter> {
    let dir = init::REGISTRY.runtime_dir()?;
    match dir.and_then(|dir| FILTER.open(&dir)) {
        Ok(filter) => {
            is_at(filter.any());
            Some(filter)
        }
        // That passes.
        Err(DirError::Kernel(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => None,
        Err(_) => {
            stop();
            None
        }
    }
}

/// Asks others: no handler of a signal leaves that in the middle, as none leaves a `stat` of the kernel's, and no process
/// that is forked meanwhile has what is open.
fn ask<T>(question: impl FnOnce() -> T) -> T {
    let _inside = signal::engine::enter();
    sys::with_signals_blocked(|| {
        let _brief = brief::begin();
        question()
    })
}

/// Size and time of a file that another program has staged.
pub(crate) fn logical(file: FileId) -> Option<Logical> {
    let dir = init::REGISTRY.runtime_dir()?.ok()?;
    let (size, modified) = ask(|| client::look(&dir, file.dev, file.ino))?;
    Some(Logical::written_at(size, modified))
}
