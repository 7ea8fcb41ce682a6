//! The memory that reads fill and writes come from, ending at a page nobody may touch.
//!
//! # Safety
//!
//! The arena is mapped once, never unmapped, and used by one thread. References into it are made
//! only between system calls, so the kernel never writes under a live reference.
#![allow(unsafe_code)]

use crate::ops::Mem;
use crate::sys;

const SIZE: usize = 8 << 20;
const PAGE: usize = 4096;

pub(crate) struct Arena {
    base: usize,
}

impl Arena {
    pub(crate) fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let base = sys!(libc::SYS_mmap, 0, SIZE + PAGE, prot, flags, -1i32, 0);
        assert!(base > 0, "no memory for an arena: {base}");
        let base = base as usize;
        let r = sys!(libc::SYS_mprotect, base + SIZE, PAGE, libc::PROT_NONE);
        assert!(r == 0, "no guard page: {r}");
        Self { base }
    }

    /// The address of a buffer; `part` keeps the buffers of one vector apart.
    pub(crate) fn address(&self, mem: Mem, part: usize) -> usize {
        match mem {
            Mem::Good(skew) => self.base + part * (1 << 18) + skew,
            Mem::Guard(left) => self.base + SIZE - left,
            Mem::Wild => 8,
        }
    }

    /// How many bytes of a buffer of `len` exist.
    pub(crate) fn usable(&self, address: usize, len: usize) -> usize {
        if address < self.base || address >= self.base + SIZE {
            return 0;
        }
        len.min(self.base + SIZE - address)
    }

    pub(crate) fn copy_out(&self, address: usize, len: usize) -> Vec<u8> {
        let len = self.usable(address, len);
        if len == 0 {
            return Vec::new();
        }
        // SAFETY: `usable` keeps it inside the arena; no call is under way.
        unsafe { std::slice::from_raw_parts(address as *const u8, len) }.to_vec()
    }

    /// Puts bytes into a buffer that is all there.
    pub(crate) fn set(&self, address: usize, bytes: &[u8]) {
        assert!(
            self.usable(address, bytes.len()) == bytes.len(),
            "outside the arena"
        );
        if !bytes.is_empty() {
            // SAFETY: checked to lie inside the arena; no call is under way.
            let to = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes.len()) };
            to.copy_from_slice(bytes);
        }
    }

    pub(crate) fn fill(&self, address: usize, len: usize, seed: u64) {
        let len = self.usable(address, len);
        if len > 0 {
            // SAFETY: `usable` keeps it inside the arena; no call is under way.
            let to = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
            crate::rng::Rng::new(seed).fill(to);
        }
    }
}

/// Stores to a program's own mapping as a program does. The caller has probed the range.
pub(crate) fn store(address: usize, bytes: &[u8]) {
    for (i, b) in bytes.iter().enumerate() {
        // SAFETY: the caller probed the range; volatile, since the file's pages are shared.
        unsafe { ((address + i) as *mut u8).write_volatile(*b) }
    }
}

/// Loads from a program's own mapping. The caller has probed the range.
pub(crate) fn load(address: usize, len: usize) -> Vec<u8> {
    // SAFETY: the caller probed the range; volatile, since the file's pages are shared.
    (0..len)
        .map(|i| unsafe { ((address + i) as *const u8).read_volatile() })
        .collect()
}

/// Whether a range can be read without a signal; asks the kernel to copy it.
pub(crate) fn readable(address: usize, len: usize) -> bool {
    let mut sink = vec![0u8; len];
    let mine = libc::iovec {
        iov_base: sink.as_mut_ptr().cast(),
        iov_len: len,
    };
    let theirs = libc::iovec {
        iov_base: address as *mut _,
        iov_len: len,
    };
    let pid = sys!(libc::SYS_getpid);
    let r = sys!(
        libc::SYS_process_vm_readv,
        pid,
        &raw const mine,
        1,
        &raw const theirs,
        1,
        0
    );
    r == len as i64
}
