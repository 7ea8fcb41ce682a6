//! Small pools on simulated media, and files that live in a dictionary, for the tests.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses a part")]

pub mod memory;

use std::collections::BTreeMap;
use std::sync::Arc;

use adit_pmem::Medium;
use adit_pool::layout::Geometry;
use adit_pool::{
    Attachment, BootId, CreateOptions, FileName, FileRef, LocalLocks, Op, Pool, Recovery, Replay,
    ReplayOp, Result, When,
};

/// 8 KB chunks, 4 slots, 4 files: everything is small enough to be filled and enumerated.
pub const TINY: Geometry = Geometry {
    chunk_shift: 13,
    max_chunks: 64,
    slot_count: 4,
    file_count: 4,
};

pub const UUID: [u8; 16] = *b"a pool for tests";

pub fn boot(n: u64) -> BootId {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    BootId(id)
}

pub fn options(geometry: Geometry) -> CreateOptions {
    CreateOptions {
        geometry,
        uuid: UUID,
        boot: boot(1),
    }
}

/// Bytes of a tiny pool with `chunks` chunks beside the tables.
pub fn tiny_size(chunks: u32) -> u64 {
    TINY.chunk(TINY.header_chunks() + chunks)
}

pub fn open<M: Medium>(medium: M, locks: &LocalLocks, boot: BootId) -> Result<Arc<Pool<M>>> {
    Pool::open(medium, Box::new(locks.clone()), boot)
}

pub fn name(n: u8) -> FileName {
    FileName {
        handle_type: 1,
        handle: vec![n; 12],
        path: format!("/some/where/file-{n}").into_bytes(),
        device: 42,
    }
}

/// Stages bytes at an offset.
pub fn stage<M: Medium>(
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
pub fn fill<M: Medium>(attachment: &Attachment<M>, file_offset: u64, bytes: &[u8]) -> Result<Op> {
    let extent = attachment.alloc(bytes.len() as u32)?;
    attachment.fill(extent, 0, bytes)?;
    Ok(Op::Write {
        file_offset,
        extent,
        len: bytes.len() as u32,
        data_crc: Some(crc32c::crc32c(bytes)),
    })
}

/// Base files as a dictionary: what a publisher would write to.
pub type Bases = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn apply<M: Medium>(pool: &Pool<M>, replay: &Replay, base: &mut Vec<u8>) -> Result<()> {
    match replay.op {
        ReplayOp::Write {
            file_offset,
            pool_offset,
            len,
        } => {
            let end = file_offset as usize + len as usize;
            assert!(end < 1 << 30, "tests write small files");
            if base.len() < end {
                base.resize(end, 0);
            }
            pool.medium()
                .read(pool_offset, &mut base[file_offset as usize..end])?;
        }
        ReplayOp::Relinked { file_offset, len } => {
            assert!(base.len() as u64 >= file_offset + u64::from(len));
        }
        ReplayOp::Truncate { size } => base.resize(size as usize, 0),
        ReplayOp::Zero { file_offset, len } => {
            let len_now = base.len();
            let start = (file_offset as usize).min(len_now);
            let end = (file_offset as usize + len as usize).min(len_now);
            base[start..end].fill(0);
        }
    }
    Ok(())
}

/// What the file would be if everything found were published.
pub fn replayed<M: Medium>(
    pool: &Pool<M>,
    recovery: &Recovery,
    file: FileRef,
    base: &[u8],
) -> Result<Vec<u8>> {
    let mut bytes = base.to_vec();
    for replay in recovery.records(pool, file) {
        apply(pool, &replay?, &mut bytes)?;
    }
    Ok(bytes)
}

/// Where tests on a simulated medium keep a durable base file: between the tables and the first chunk.
/// A word with the length, then the bytes.
pub fn base_place() -> (u64, u64) {
    let start = TINY.header_len();
    (start, TINY.chunk(TINY.header_chunks()) - start)
}

pub fn read_base(medium: &impl Medium) -> Result<Vec<u8>> {
    let (start, room) = base_place();
    let mut bytes = vec![0; medium.load(start)?.min(room - 8) as usize];
    medium.read(start + 8, &mut bytes)?;
    Ok(bytes)
}

/// Writes the base file as a file system would: not atomically, but durable on return.
pub fn write_base(medium: &impl Medium, bytes: &[u8]) -> Result<()> {
    let (start, room) = base_place();
    assert!(
        bytes.len() as u64 <= room - 8,
        "the base file is too long for the test"
    );
    medium.write_streaming(start + 8, bytes)?;
    medium.store(start, bytes.len() as u64)?;
    medium.flush(start, 8)?;
    medium.fence();
    Ok(())
}

/// Publishes everything that was found into the base file on the medium (all files are one) and
/// retires it.
pub fn publish_to_base<M: Medium>(attachment: &Attachment<M>) -> Result<()> {
    let pool = attachment.pool();
    let recovery = attachment.scan()?;
    for file in &recovery.files {
        let mut guard = attachment.lock_file(file.file())?;
        let committed = if file.uncommitted > 0 {
            guard.commit()?
        } else {
            0
        };
        let base = read_base(pool.medium())?;
        write_base(
            pool.medium(),
            &replayed(pool, &recovery, file.file(), &base)?,
        )?;
        guard.retire(file.last_seq.max(committed))?;
    }
    attachment.reclaim()?;
    attachment.release_orphans()?;
    Ok(())
}

/// Publishes everything that was found into the dictionary and retires it.
pub fn publish_all<M: Medium>(attachment: &Attachment<M>, bases: &mut Bases) -> Result<()> {
    let pool = attachment.pool();
    let recovery = attachment.scan()?;
    for file in &recovery.files {
        let mut guard = attachment.lock_file(file.file())?;
        let committed = if file.uncommitted > 0 {
            guard.commit()?
        } else {
            0
        };
        let base = bases
            .entry(file.name.as_ref().expect("a name").path.clone())
            .or_default();
        *base = replayed(pool, &recovery, file.file(), base)?;
        guard.retire(file.last_seq.max(committed))?;
    }
    attachment.reclaim()?;
    attachment.release_orphans()?;
    Ok(())
}
