//! Knowing that this process is not the one that attached.
//!
//! A child made by `fork`, `vfork`, `clone` or anything else inherits the memory of its parent, and
//! with it every cached slot and chunk lease. One private page marked `MADV_WIPEONFORK` holds the
//! process's epoch; in a child it reads zero, whoever created the child, so that whatever the parent
//! cached is seen not to be the child's.
//!
//! # Safety
//!
//! Unsafe code maps one private anonymous page, once, never unmaps it, and reads and writes it only
//! as an `AtomicU64` at its start. The invariant of every block below is: `page` is the address of
//! that page, aligned, valid for the life of the process and of its children.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Result, kernel};

/// The page, as an address (`0` is never one).
static PAGE: OnceLock<usize> = OnceLock::new();
/// Last epoch given in this process or the ones it was forked from. Copied by fork, so that epochs
/// grow along every line of descent and a child's never equals one that it inherited.
static LAST: AtomicU64 = AtomicU64::new(0);

fn page() -> Option<&'static AtomicU64> {
    // SAFETY: the page is mapped for ever and only ever used as this atomic (module invariant).
    PAGE.get().map(|at| unsafe { &*(*at as *const AtomicU64) })
}

fn map_page() -> Result<usize> {
    // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice overlaps nothing.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .map_err(kernel("mmap"))?;
    // SAFETY: the range is the page mapped just above, which nothing else uses yet.
    unsafe { rustix::mm::madvise(at, 4096, Advice::LinuxWipeOnFork) }.map_err(kernel("madvise"))?;
    Ok(at as usize)
}

/// The epoch in which something was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch {
    value: u64,
    page: &'static AtomicU64,
}

impl Epoch {
    /// Whether it was begun by this very process.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.page.load(Ordering::Acquire) == self.value
    }
}

/// The epoch of this process; a new one is begun in a process that has none.
pub(crate) fn enter() -> Result<Epoch> {
    if PAGE.get().is_none() {
        // Two threads may map a page each; the loser's page stays unused, 4 KB once.
        let at = map_page()?;
        let _ = PAGE.set(at);
    }
    let Some(page) = page() else {
        return Err(crate::Error::NotAttached);
    };
    let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let begun = page.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire);
    let value = begun.map_or_else(|present| present, |_| fresh);
    Ok(Epoch { value, page })
}
