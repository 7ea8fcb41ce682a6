//! Pools with what dead programs staged.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use adit_pool::{Attachment, FileMedium, FileName, Op, PoolFile, When};
use adit_store::staged::handle_of;

use super::{Finished, Scratch, adit, finish};

/// `adit` with these arguments and a file.
pub fn on<const N: usize>(arguments: [&str; N], file: &Path) -> Finished {
    finish(adit(arguments).arg(file))
}

/// A pool of 16 MB.
pub fn new_pool(scratch: &Scratch) -> PathBuf {
    let pool = scratch.0.join("pool");
    let done = on(["pool", "create", "--size", "16M"], &pool);
    assert_eq!(done.code(), Some(0), "{done:?}");
    pool
}

/// What the kernel knows the file by.
pub fn name_of(path: &Path) -> FileName {
    let file = rustix::fs::open(
        path.as_os_str().as_bytes(),
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    );
    let (handle_type, handle) = handle_of(file.unwrap()).unwrap();
    FileName {
        handle_type,
        handle,
        path: path.as_os_str().as_bytes().to_vec(),
        device: path.metadata().unwrap().dev(),
    }
}

/// Stages two writes and a truncation for `file` and goes away like a killed program.
pub fn stage_and_die(pool: &Path, file: &Path) {
    // Dropping without detaching is what death does.
    drop(stage(pool, file));
}

/// The same of a program that lives as long as its attachment.
pub fn stage(pool: &Path, file: &Path) -> Attachment<FileMedium> {
    let pool = PoolFile::open(pool).unwrap();
    let attachment = pool.attach().unwrap();
    stage_more(&attachment, file);
    attachment
}

/// Stages the same for another file.
pub fn stage_more(attachment: &Attachment<FileMedium>, file: &Path) {
    let entry = attachment.enter_file(&name_of(file)).unwrap();
    for (file_offset, bytes) in [(4u64, vec![b'S'; 9000]), (9000, vec![b'T'; 100])] {
        let extent = attachment.alloc(bytes.len() as u32).unwrap();
        attachment.fill(extent, 0, &bytes).unwrap();
        let op = Op::Write {
            file_offset,
            extent,
            len: bytes.len() as u32,
            data_crc: None,
        };
        attachment
            .lock_file(entry)
            .unwrap()
            .append(&op, When::Now)
            .unwrap();
    }
    let cut = Op::Truncate { size: 9050 };
    attachment
        .lock_file(entry)
        .unwrap()
        .append(&cut, When::Now)
        .unwrap();
}

/// What is in the file then, if it began with `base`.
pub fn expected() -> Vec<u8> {
    let mut bytes = b"base".to_vec();
    bytes.resize(9000, b'S');
    bytes.resize(9050, b'T');
    bytes
}
