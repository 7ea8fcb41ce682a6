//! The process's limit on the size of its files.
//!
//! A sandbox may forbid to ask for limits, and rustix takes for granted that the kernel answers: it would end
//! the program, or read what nobody wrote. So the call is made here.
//!
//! # Safety
//! The call is given the address of a live local that is as large as what the kernel writes there.
#![allow(unsafe_code)]

use crate::syscall;

/// How large a file of this process may become; `None` where the kernel does not say.
pub(crate) fn file_size() -> Option<u64> {
    // Soft and hard limit.
    let mut limits = [0_u64; 2];
    let (this, resource, into) = (0, libc::RLIMIT_FSIZE as usize, limits.as_mut_ptr());
    let args = [this, resource, 0, into as usize, 0, 0];
    // SAFETY: it sets nothing, and writes 16 bytes to a live local.
    let answer = unsafe { syscall::call(libc::SYS_prlimit64, args) };
    answer.ok().map(|_| limits[0])
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_what_others_are_told() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        assert_eq!(super::file_size(), Some(limit.current.unwrap_or(u64::MAX)));
    }
}
