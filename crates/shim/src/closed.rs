//! Files that this process has closed, and left to the monitor.
//!
//! Behind a page cache to publish a file waits for the device: for the name of a new one, for the commit, for the bytes in
//! the file, and for the end of the staging. With `--closed soon` nobody waits for that who closes a file: the monitor has a
//! duplicate of the description, with the lease, and takes the file away as it does of the dead, many of them beside each
//! other. Until then whoever opens it waits, and `stat` under Adit knows it as it will be.
//!
//! What hangs on that waits for it: a process, before it changes the file's name or times, gives it to another user, or
//! opens it again; and before it forks, executes a program or ends, so that then everything is as without Adit, and no
//! descriptor of a file keeps anybody from executing it or from unmounting its file system.
//!
//! # Safety
//! The cell of the list is replaced in a forked child alone, by its only thread.
#![allow(unsafe_code)]

use crate::stage::{self, STAGED};
use crate::{init, signal, vfork};
use adit_pmem::brief;
use adit_pool::{FileMedium, FileRef, Pool};
use adit_store::monitor::client;
use adit_store::staged;
use core::cell::UnsafeCell;
use core::mem;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use rustix::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many at a time, and so many bytes of them: each keeps a description, space in the pool and a thread of the monitor.
const MOST: usize = 64;
const MOST_BYTES: u64 = 4 << 20;

/// A file that was closed.
pub(crate) struct Closed {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) pool: Arc<Pool<FileMedium>>,
    pub(crate) file: FileRef,
    /// Its size.
    pub(crate) bytes: u64,
}

impl Closed {
    /// Whether everything is in the file.
    fn is_over(&self) -> bool {
        // Where that cannot be known it is waited for.
        self.pool.is_durably_forgotten(self.file).unwrap_or(false)
    }

    /// Publishes the file where no monitor has it any more: it was killed with its standby. While somebody has its lease the
    /// open does not wait.
    fn publish(&self) {
        let Ok(name) = self.pool.file_name(self.file) else {
            return;
        };
        let opened = brief::above_standard(|| {
            let file = staged::open_by_name(&name).map_err(|error| error.errno())?;
            Ok(file.into_inner())
        });
        if let Ok(opened) = opened {
            let _ = stage::end_for_all(opened.as_raw_fd());
        }
    }
}

struct List(UnsafeCell<Mutex<Vec<(u64, Closed)>>>);

// SAFETY: the cell is only written while no other thread exists; the lock inside is Sync.
unsafe impl Sync for List {}

/// With a number for each, in order.
static LIST: List = List(UnsafeCell::new(Mutex::new(Vec::new())));

static NEXT: AtomicU64 = AtomicU64::new(0);

/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn list() -> MutexGuard<'static, Vec<(u64, Closed)>> {
    // SAFETY: see the module: the cell is not written while others look.
    let list = unsafe { &*LIST.0.get() };
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: what its parent has closed is its parent's to wait for.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn in_new_process() {
    // SAFETY: the caller's promise; nothing of the parent's is dropped here.
    unsafe { mem::forget(mem::replace(&mut *LIST.0.get(), Mutex::new(Vec::new()))) };
    COUNT.store(0, Ordering::SeqCst);
}

/// Removes what is over, or was there up to a number.
fn forget(list: &mut Vec<(u64, Closed)>, is_over: impl Fn(u64, &Closed) -> bool) {
    let before = list.len();
    list.retain(|(number, closed)| !is_over(*number, closed));
    COUNT.store(list.len(), Ordering::SeqCst);
    STAGED.fetch_sub((before - list.len()) as u32, Ordering::SeqCst);
}

/// Makes room for one more, and waits where there is none.
pub(crate) fn make_room() {
    if !is_full() {
        return;
    }
    forget(&mut list(), |_, closed| closed.is_over());
    if is_full() {
        wait();
    }
}

fn is_full() -> bool {
    let list = list();
    let bytes: u64 = list.iter().map(|(_, closed)| closed.bytes).sum();
    list.len() >= MOST || bytes >= MOST_BYTES
}

/// The monitor has the file.
pub(crate) fn add(closed: Closed) {
    let mut list = list();
    // Others may have removed all of them, and wait for those of before still.
    list.push((NEXT.fetch_add(1, Ordering::SeqCst), closed));
    COUNT.store(list.len(), Ordering::SeqCst);
    STAGED.fetch_add(1, Ordering::SeqCst);
}

/// Whether this process has closed nothing that it would have to wait for. One that was made behind our back has its parent's
/// list, and not what that names.
fn is_none() -> bool {
    COUNT.load(Ordering::SeqCst) == 0 || !(vfork::in_child() || stage::are_ours())
}

/// Waits until everything is in this file, if this process has closed it.
pub(crate) fn wait_for(device: u64, inode: u64) {
    if is_none() || vfork::in_child() {
        return;
    }
    let is_awaited = {
        let _inside = signal::engine::enter();
        let list = list();
        let mut its = list
            .iter()
            .filter(|(_, closed)| (closed.device, closed.inode) == (device, inode));
        its.any(|(_, closed)| !closed.is_over())
    };
    if is_awaited {
        wait();
    }
}

/// Waits until everything is in the files that this process has closed.
pub(crate) fn wait() {
    if is_none() {
        return;
    }
    let _inside = signal::engine::enter();
    // It takes no lock of its parent's.
    let is_child = vfork::in_child();
    let last = (!is_child)
        .then(|| list().last().map(|(last, _)| *last))
        .flatten();
    if let Some(dir) = init::runtime_dir() {
        // What it could not publish stays staged, as when the disk is full for a program that closes it.
        let _ = client::wait_for_closed(dir);
    }
    let Some(last) = last else {
        return;
    };
    let mut list = list();
    for (_, closed) in list.iter().filter(|(number, _)| *number <= last) {
        if !closed.is_over() {
            closed.publish();
        }
    }
    forget(&mut list, |number, _| number <= last);
}
