//! Names of files, and what is staged for them.

use adit_pmem::Medium;
use adit_pool::{Attachment, FileName, FileRef, Op, Result, When};

pub(crate) fn name(n: u8) -> FileName {
    FileName {
        handle_type: 1,
        handle: vec![n; 12],
        path: format!("/some/where/file-{n}").into_bytes(),
        device: 42,
    }
}

/// Stages bytes at an offset.
pub(crate) fn stage<M: Medium>(
    attachment: &Attachment<M>,
    file: FileRef,
    file_offset: u64,
    bytes: &[u8],
    when: When,
) -> Result<u64> {
    let op = fill(attachment, file_offset, bytes)?;
    attachment.lock_file(file)?.append(&op, when)
}

/// Fills an extent and says what to log.
pub(crate) fn fill<M: Medium>(
    attachment: &Attachment<M>,
    file_offset: u64,
    bytes: &[u8],
) -> Result<Op> {
    let extent = attachment.alloc(bytes.len() as u32)?;
    attachment.fill(extent, 0, bytes)?;
    Ok(Op::Write {
        file_offset,
        extent,
        len: bytes.len() as u32,
        data_crc: Some(crc32c::crc32c(bytes)),
    })
}
