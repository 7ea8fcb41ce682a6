//! The copy for processors without assembly of ours; also a second opinion in the tests.
//!
//! # Safety
//!
//! The unsafe code copies through raw pointers with volatile accesses, so that the compiler neither
//! assumes the bytes stable nor turns the loop into a builtin. It is **not** guarded: a page that
//! cannot be accessed raises the signal in the caller.
#![allow(unsafe_code)]

/// Copies `len` bytes, a word at a time where both sides allow it.
///
/// # Safety
///
/// `src..src+len` must be readable and `dst..dst+len` writable for the whole call; a fault is not
/// caught.
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let mut at = 0;
    if dst.addr() % WORD == src.addr() % WORD {
        let head = dst.align_offset(WORD).min(len);
        // SAFETY: `head <= len`, inside the range the caller vouches for.
        unsafe { copy_bytes(dst, src, head) };
        at = head;
        while len - at >= WORD {
            // SAFETY: `at + 8 <= len`, and both addresses are aligned to 8 since `head`.
            unsafe {
                let word = src.add(at).cast::<u64>().read_volatile();
                dst.add(at).cast::<u64>().write_volatile(word);
            }
            at += WORD;
        }
    }
    // SAFETY: `at <= len`, the rest lies inside the range the caller vouches for.
    unsafe { copy_bytes(dst.add(at), src.add(at), len - at) };
}

/// Copies byte by byte.
///
/// # Safety
///
/// As for [`copy`].
unsafe fn copy_bytes(dst: *mut u8, src: *const u8, len: usize) {
    for at in 0..len {
        // SAFETY: `at < len`, inside the range the caller vouches for.
        unsafe { dst.add(at).write_volatile(src.add(at).read_volatile()) };
    }
}
