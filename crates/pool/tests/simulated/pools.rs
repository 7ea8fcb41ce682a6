//! Small pools on simulated media, and files that live in a dictionary.

use std::collections::BTreeMap;
use std::sync::Arc;

use adit_pmem::Medium;
use adit_pool::layout::Geometry;
use adit_pool::{Attachment, BootId, CreateOptions, LocalLocks, Pool, Result};

use crate::replay::replayed;

/// 8 KB chunks, 4 slots, 4 files: everything is small enough to be filled and enumerated.
pub(crate) const TINY: Geometry = Geometry {
    chunk_shift: 13,
    max_chunks: 64,
    slot_count: 4,
    file_count: 4,
};

pub(crate) const UUID: [u8; 16] = *b"a pool for tests";

pub(crate) fn boot(n: u64) -> BootId {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    BootId(id)
}

pub(crate) fn options(geometry: Geometry) -> CreateOptions {
    CreateOptions {
        geometry,
        uuid: UUID,
        boot: boot(1),
    }
}

/// Bytes of a tiny pool with `chunks` chunks beside the tables.
pub(crate) fn tiny_size(chunks: u32) -> u64 {
    TINY.chunk(TINY.header_chunks() + chunks)
}

pub(crate) fn open<M: Medium>(medium: M, locks: &LocalLocks, boot: BootId) -> Result<Arc<Pool<M>>> {
    Pool::open(medium, Box::new(locks.clone()), boot)
}

/// Base files as a dictionary: what a publisher would write to.
pub(crate) type Bases = BTreeMap<Vec<u8>, Vec<u8>>;

/// Where tests on a simulated medium keep a durable base file: between the tables and the first chunk.
/// A word with the length, then the bytes.
pub(crate) fn base_place() -> (u64, u64) {
    let start = TINY.header_len();
    (start, TINY.chunk(TINY.header_chunks()) - start)
}

pub(crate) fn read_base(medium: &impl Medium) -> Result<Vec<u8>> {
    let (start, room) = base_place();
    let mut bytes = vec![0; medium.load(start)?.min(room - 8) as usize];
    medium.read(start + 8, &mut bytes)?;
    Ok(bytes)
}

/// Writes the base file as a file system would: not atomically, but durable on return.
pub(crate) fn write_base(medium: &impl Medium, bytes: &[u8]) -> Result<()> {
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
pub(crate) fn publish_to_base<M: Medium>(attachment: &Attachment<M>) -> Result<()> {
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
pub(crate) fn publish_all<M: Medium>(attachment: &Attachment<M>, bases: &mut Bases) -> Result<()> {
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
