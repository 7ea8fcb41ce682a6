//! What the kernel knows a file by, whatever its name is.
//!
//! # Safety
//!
//! The one call gets a descriptor that its caller holds open, an empty C string, a handle with as
//! much room as it says, and a place for a number it does not need.
#![allow(unsafe_code)]

use std::io::Error;
use std::os::fd::{AsFd, AsRawFd};

/// The largest handle the kernel has.
const ROOM: usize = 128;

/// A file handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handle {
    /// Its type, which belongs to its meaning.
    pub(crate) kind: u32,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// The handle of an open file.
pub(crate) fn of(file: &impl AsFd) -> Result<Handle, Error> {
    #[repr(C, align(8))]
    struct Raw {
        len: u32,
        kind: i32,
        bytes: [u8; ROOM],
    }
    let mut raw = Raw {
        len: ROOM as u32,
        kind: 0,
        bytes: [0; ROOM],
    };
    let mut mount = 0i32;
    // SAFETY: see the module; `raw` and `mount` live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if result < 0 {
        return Err(Error::last_os_error());
    }
    let len = (raw.len as usize).min(ROOM);
    Ok(Handle {
        kind: raw.kind as u32,
        bytes: raw.bytes[..len].to_vec(),
    })
}
