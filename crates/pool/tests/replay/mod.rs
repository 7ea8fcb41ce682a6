//! What was found in a pool, as the bytes of a file.

use adit_pmem::Medium;
use adit_pool::{FileRef, Pool, Recovery, Replay, ReplayOp, Result};

fn apply<M: Medium>(pool: &Pool<M>, replay: &Replay, base: &mut Vec<u8>) -> Result<()> {
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
pub(crate) fn replayed<M: Medium>(
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
