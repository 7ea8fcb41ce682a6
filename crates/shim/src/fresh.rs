//! Reads of a description that may write, before its first write.
//!
//! Nothing is staged yet, so the kernel's page cache is the file, as in mode `posix`, and a mapping of
//! it serves reads once they have paid for one. The first write ends that: from then on the pool has
//! the newest bytes. Whoever reads holds the state's lock, so nothing is read while that changes.
//!
//! # Safety
//! Program buffers are only used by the guarded copies of the mapped file.
#![allow(unsafe_code)]

use crate::{descriptors, fds, init, signal};
use adit_store::direct::DirectFile;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

/// See the module.
pub(crate) struct Fresh {
    /// What calls have to move through the kernel until the file is looked at.
    credit: AtomicU64,
    /// Whether it was found worth a second look.
    waited: AtomicBool,
    /// Unset as long as it may still be mapped.
    file: OnceLock<Option<Box<DirectFile>>>,
}

impl Fresh {
    pub(crate) fn new() -> Self {
        Self {
            credit: AtomicU64::new(init::credit().unwrap_or(u64::MAX)),
            waited: AtomicBool::new(false),
            file: OnceLock::new(),
        }
    }

    /// The mapped file.
    pub(crate) fn file(&self) -> Option<&DirectFile> {
        self.file.get()?.as_deref()
    }

    /// Reads through the mapping; `None` where that is the kernel's to do.
    pub(crate) fn read(&self, fd: i32, at: u64, into: libc::iovec) -> Option<usize> {
        // SAFETY: the buffer is the program's, for the kernel or us to fill.
        unsafe {
            self.file()?
                .read(fd, at, into.iov_base.cast(), into.iov_len)
        }
        .ok()
    }

    /// Notes what the kernel has read at `at`.
    pub(crate) fn pay(&self, fd: i32, at: u64, bytes: u64) {
        if let Some(file) = self.file.get() {
            if let Some(file) = file {
                file.saw(at, at.saturating_add(bytes));
            }
            return;
        }
        let price = bytes + fds::CALL;
        let left = self.credit.load(Ordering::Relaxed).saturating_sub(price);
        // A race lets a call go free.
        self.credit.store(left, Ordering::Relaxed);
        if left == 0 {
            self.consider(fd);
        }
    }

    #[cold]
    fn consider(&self, fd: i32) {
        let kind = adit_pmem::kind_of_fd(fd);
        let stat = descriptors::regular_file(fd);
        let Some(stat) = stat.filter(|stat| descriptors::is_mappable(kind, stat)) else {
            let _ = self.file.set(None);
            return;
        };
        let size = stat.st_size as u64;
        let wait = |credit| self.credit.store(credit, Ordering::Relaxed);
        if size < descriptors::SMALLEST {
            return wait(descriptors::LATER);
        }
        let adoption = init::adoption(kind);
        if adoption.percent > 0 && !self.waited.swap(true, Ordering::Relaxed) {
            return wait(descriptors::price_of_a_look(size));
        }
        let file = signal::ready()
            .then(|| DirectFile::new(kind, size, false, adoption))
            .flatten();
        let _ = self.file.set(file.map(Box::new));
    }
}
