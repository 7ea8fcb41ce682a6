//! Stores through a shared mapping, which the standard library does not have, through libc, where Adit's library sees it.
//!
//! # Safety
//!
//! The mapping lives inside of one call, and the caller says that the file reaches behind the range.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd as _;

const READ_AND_WRITE: i32 = 1 | 2;
const SHARED: i32 = 1;
const SYNC: i32 = 4;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        len: usize,
        protection: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> *mut c_void;
    fn msync(at: *mut c_void, len: usize, flags: i32) -> i32;
    fn munmap(at: *mut c_void, len: usize) -> i32;
}

/// Stores bytes inside of a file, and waits until they are durable.
pub(crate) fn store(file: &File, start: usize, bytes: &[u8]) -> std::io::Result<()> {
    let len = start + bytes.len();
    if file.metadata()?.len() < len as u64 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: a new mapping, anywhere; the file reaches behind its bytes, and nobody cuts it meanwhile.
    unsafe {
        let at = mmap(
            std::ptr::null_mut(),
            len,
            READ_AND_WRITE,
            SHARED,
            file.as_raw_fd(),
            0,
        );
        if at as isize == -1 {
            return Err(Error::last_os_error());
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast::<u8>().add(start), bytes.len());
        let synced = if msync(at, len, SYNC) == 0 {
            Ok(())
        } else {
            Err(Error::last_os_error())
        };
        munmap(at, len);
        synced
    }
}
