//! `fallocate`, which the standard library does not have, through libc, where Adit's library sees it.
//!
//! # Safety
//!
//! The call takes integers and touches no memory of this process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::fd::AsRawFd as _;

const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;

unsafe extern "C" {
    fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> i32;
}

fn call(file: &File, mode: i32, range: Range<usize>) -> std::io::Result<()> {
    // SAFETY: integers only.
    match unsafe {
        fallocate(
            file.as_raw_fd(),
            mode,
            range.start as i64,
            range.len() as i64,
        )
    } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Makes a file at least so long, with blocks for all of the range.
pub(crate) fn longer(file: &File, range: Range<usize>) -> std::io::Result<()> {
    call(file, 0, range)
}

/// Has blocks for the range, and leaves the file as long as it is.
pub(crate) fn reserve(file: &File, range: Range<usize>) -> std::io::Result<()> {
    call(file, KEEP_SIZE, range)
}

/// Zeroes the range, and gives back its whole blocks.
pub(crate) fn punch(file: &File, range: Range<usize>) -> std::io::Result<()> {
    call(file, KEEP_SIZE | PUNCH_HOLE, range)
}
