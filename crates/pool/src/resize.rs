//! Changing the number of chunks. The file is grown before and cut after: grown by whoever is attached, cut
//! by the last one to leave.

use adit_pmem::Medium;

use crate::error::{Error, Result};
use crate::layout::{ChunkKind, ChunkWord, SHARED, Superblock, at};
use crate::lock::Acquired;
use crate::pool::{Attachment, Pool, write_superblock};

impl<M: Medium> Attachment<M> {
    /// Takes chunks up to `chunks` into use; the medium holds them already. Returns the number in
    /// force, which is never smaller than before.
    pub fn grow_to(&self, chunks: u32) -> Result<u32> {
        let pool = &self.pool;
        if chunks > pool.geometry().max_chunks {
            return Err(Error::Invalid(
                "more chunks than the pool's table has room for",
            ));
        }
        if pool.geometry().chunk(chunks) > pool.medium().size() {
            return Err(Error::Invalid("the medium was not grown"));
        }
        let (lock, acquired) = self.lock_shared("super lock", SHARED + at!(Shared.super_lock))?;
        let grown = pool.use_chunks(chunks, acquired);
        // What was written is seen by then. Where it is not durable, whoever takes the lock next has to make it so.
        grown.inspect_err(|_| lock.leave_unrepaired())
    }
}

impl<M: Medium> Pool<M> {
    /// [`Attachment::grow_to`], with the lock held.
    fn use_chunks(&self, chunks: u32, acquired: Acquired) -> Result<u32> {
        let mut superblock = self.superblock()?;
        let before = superblock.chunk_count;
        if chunks > before {
            for chunk in before..chunks {
                let old = self.load(self.geometry().chunk_word(chunk))?;
                let generation = ChunkWord::decode(old).map_or(0, |word| word.generation);
                let free = ChunkWord {
                    kind: ChunkKind::Free,
                    owner: 0,
                    generation,
                };
                self.store(self.geometry().chunk_word(chunk), free.encode())?;
            }
            let words = u64::from(chunks - before) * 8;
            self.make_durable(self.geometry().chunk_word(before), words)?;
            superblock.chunk_count = chunks;
            write_superblock(self.medium(), &mut superblock)?;
        }
        if acquired == Acquired::OwnerDied {
            // What the one before wrote is visible; now it is durable, too.
            write_superblock(self.medium(), &mut superblock)?;
        }
        // The superblock is the truth, this its mirror.
        self.store(
            SHARED + at!(Shared.chunk_count),
            u64::from(superblock.chunk_count),
        )?;
        Ok(superblock.chunk_count)
    }

    /// Takes the free chunks at the end out of use, down to the size that the pool was made with. The
    /// caller holds the gate, and nobody is attached. Returns how many chunks are left, for the superblock.
    ///
    /// That they are absent is durable before the superblock says so: whoever opened the pool before, and
    /// attaches later, must not find them free. A crash in between leaves the pool unclean, and the next
    /// attachment makes them free again.
    pub(crate) fn take_out_the_end(&self, superblock: &Superblock) -> Result<u32> {
        let geometry = *self.geometry();
        let least = superblock.first_chunks.max(geometry.header_chunks() + 1);
        let mut keep = superblock.chunk_count;
        while keep > least {
            let Some(word) = self.chunk_word(keep - 1)? else {
                break;
            };
            if !matches!(word.kind, ChunkKind::Free | ChunkKind::Absent) {
                break;
            }
            let absent = ChunkWord {
                kind: ChunkKind::Absent,
                ..word
            };
            self.store(geometry.chunk_word(keep - 1), absent.encode())?;
            keep -= 1;
        }
        let words = u64::from(superblock.chunk_count - keep) * 8;
        if words > 0 {
            self.make_durable(geometry.chunk_word(keep), words)?;
        }
        Ok(keep)
    }
}
