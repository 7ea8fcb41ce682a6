//! Changing the number of chunks. The file is grown before and cut after.

use adit_pmem::Medium;

use crate::error::{Error, Result};
use crate::layout::{ChunkKind, ChunkWord, SHARED, at};
use crate::lock::Acquired;
use crate::pool::{Attachment, write_superblock};

impl<M: Medium> Attachment<M> {
    /// Takes chunks up to `chunks` into use; the medium holds them already. Returns the number in
    /// force, which is never smaller than before.
    pub fn grow_to(&self, chunks: u32) -> Result<u32> {
        let (_lock, acquired) = self.lock_shared("super lock", SHARED + at!(Shared.super_lock))?;
        let pool = &self.pool;
        let mut superblock = pool.superblock()?;
        if chunks > superblock.max_chunks {
            return Err(Error::Invalid(
                "more chunks than the pool's table has room for",
            ));
        }
        if pool.geometry().chunk(chunks) > pool.medium().size() {
            return Err(Error::Invalid("the medium was not grown"));
        }
        let before = superblock.chunk_count;
        if chunks > before {
            for chunk in before..chunks {
                let old = pool.load(pool.geometry().chunk_word(chunk))?;
                let generation = ChunkWord::decode(old).map_or(0, |word| word.generation);
                let free = ChunkWord {
                    kind: ChunkKind::Free,
                    owner: 0,
                    generation,
                };
                pool.store(pool.geometry().chunk_word(chunk), free.encode())?;
            }
            let words = u64::from(chunks - before) * 8;
            pool.make_durable(pool.geometry().chunk_word(before), words)?;
            superblock.chunk_count = chunks;
            write_superblock(pool.medium(), &mut superblock)?;
        }
        if acquired == Acquired::OwnerDied {
            // What the dead one wrote is visible; now it is durable, too.
            write_superblock(pool.medium(), &mut superblock)?;
        }
        // The superblock is the truth, this its mirror.
        pool.store(
            SHARED + at!(Shared.chunk_count),
            u64::from(superblock.chunk_count),
        )?;
        Ok(superblock.chunk_count)
    }

    /// Takes the chunks from `chunks` on out of use, if all of them are free.
    pub fn shrink_to(&self, chunks: u32) -> Result<u32> {
        let (_lock, _) = self.lock_shared("super lock", SHARED + at!(Shared.super_lock))?;
        let pool = &self.pool;
        let mut superblock = pool.superblock()?;
        if chunks <= pool.geometry().header_chunks() {
            return Err(Error::Invalid("no chunk would be left beside the tables"));
        }
        for chunk in chunks..superblock.chunk_count {
            if let Err(error) = self.take_out(chunk) {
                for taken in chunks..chunk {
                    self.put_back(taken)?;
                }
                return Err(error);
            }
        }
        if chunks < superblock.chunk_count {
            superblock.chunk_count = chunks;
            // Nobody leases beyond the count any more before the superblock says so.
            pool.store(SHARED + at!(Shared.chunk_count), u64::from(chunks))?;
            write_superblock(pool.medium(), &mut superblock)?;
        }
        Ok(superblock.chunk_count)
    }

    fn take_out(&self, chunk: u32) -> Result<()> {
        let offset = self.pool.geometry().chunk_word(chunk);
        match self.pool.chunk_word(chunk)? {
            Some(word) if word.kind == ChunkKind::Absent => Ok(()),
            Some(word) if word.kind == ChunkKind::Free => {
                let absent = ChunkWord {
                    kind: ChunkKind::Absent,
                    ..word
                };
                if self.pool.change_chunk(chunk, word, absent)? {
                    Ok(())
                } else {
                    Err(Error::NotFree { chunk })
                }
            }
            Some(_) => Err(Error::NotFree { chunk }),
            None => Err(Error::damaged("chunk word", offset, "its check disagrees")),
        }
    }

    fn put_back(&self, chunk: u32) -> Result<()> {
        if let Some(word) = self.pool.chunk_word(chunk)?
            && word.kind == ChunkKind::Absent
        {
            self.pool.change_chunk(
                chunk,
                word,
                ChunkWord {
                    kind: ChunkKind::Free,
                    ..word
                },
            )?;
        }
        Ok(())
    }
}
