//! One extended attribute, which the standard library does not have, through libc, where Adit's library sees it.
//!
//! # Safety
//!
//! The calls are given a name that ends with a zero, and buffers with their own lengths.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd as _;

const NAME: &std::ffi::CStr = c"user.adit-lab";
const NO_DATA: i32 = 61;
/// Longer than any value.
const ROOM: usize = 64;

unsafe extern "C" {
    fn fgetxattr(fd: i32, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn fsetxattr(
        fd: i32,
        name: *const c_char,
        value: *const c_void,
        size: usize,
        flags: i32,
    ) -> i32;
    fn fremovexattr(fd: i32, name: *const c_char) -> i32;
}

fn done(status: isize) -> Result<usize> {
    usize::try_from(status).map_err(|_| Error::last_os_error())
}

/// The attribute's value, if the file has it.
pub(crate) fn get(file: &File) -> Result<Option<String>> {
    let mut value = [0_u8; ROOM];
    // SAFETY: the buffer is as long as told.
    let len = unsafe {
        fgetxattr(
            file.as_raw_fd(),
            NAME.as_ptr(),
            value.as_mut_ptr().cast(),
            ROOM,
        )
    };
    match done(len) {
        Ok(len) => Ok(Some(String::from_utf8_lossy(&value[..len]).into_owned())),
        Err(e) if e.raw_os_error() == Some(NO_DATA) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Gives the file the attribute, or another value of it.
pub(crate) fn set(file: &File, value: &str) -> Result<()> {
    let bytes = value.as_bytes().as_ptr().cast();
    // SAFETY: the value is as long as told.
    done(unsafe { fsetxattr(file.as_raw_fd(), NAME.as_ptr(), bytes, value.len(), 0) } as isize)
        .map(drop)
}

/// Takes the attribute away.
pub(crate) fn remove(file: &File) -> Result<()> {
    // SAFETY: the name ends with a zero.
    done(unsafe { fremovexattr(file.as_raw_fd(), NAME.as_ptr()) } as isize).map(drop)
}
