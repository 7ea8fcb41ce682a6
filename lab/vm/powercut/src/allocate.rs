//! `fallocate`, which the standard library does not have, through libc, where Adit's library sees it.
//!
//! # Safety
//!
//! The call takes integers and touches no memory of this process.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd as _;

unsafe extern "C" {
    fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> i32;
}

/// Makes a file at least so long, with blocks for all of it.
pub(crate) fn allocate(file: &File, len: usize) -> std::io::Result<()> {
    // SAFETY: integers only.
    match unsafe { fallocate(file.as_raw_fd(), 0, 0, len as i64) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
