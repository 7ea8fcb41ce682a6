//! Writing what a plan says into a base file. The recovery uses it as well.
//!
//! Pieces come by offset, and those that follow each other in the file are written together, wherever
//! they lie in the pool: a call costs as much as copying some kilobytes.

use std::sync::Arc;

use adit_pmem::{BaseFile, Medium};
use adit_pool::Pool;

use super::error::Result;
use super::overlay::{Overlay, Piece, Source};
use super::publish::Published;
use super::relink::{Linking, Relink, Run};

/// Bytes written at once.
const BLOCK: usize = 128 << 10;

const PAGE: u64 = 4096;

/// One pass.
pub(super) struct Fold<'a, M: Medium, B: BaseFile> {
    pub(super) pool: &'a Arc<Pool<M>>,
    pub(super) base: &'a B,
    pub(super) done: Published,
    /// Bytes that wait to be written, and where they belong.
    block: Vec<u8>,
    block_at: u64,
    /// Whether it is to be durable when it is done.
    pub(super) syncs: bool,
    /// Behind the end that the base file has, zeros need not be written.
    end: u64,
}

impl<'a, M: Medium, B: BaseFile> Fold<'a, M, B> {
    pub(super) fn new(pool: &'a Arc<Pool<M>>, base: &'a B, done: Published) -> Self {
        Self {
            pool,
            base,
            done,
            block: Vec::new(),
            block_at: 0,
            syncs: true,
            end: 0,
        }
    }

    /// Makes the base file what the plan says, with the time of the last write (0: now), durably, but for
    /// the long runs that can be relinked: these are the result. The file has its size and its blocks
    /// then.
    pub(super) fn run(
        &mut self,
        plan: &Overlay,
        modified: u64,
        relink: Option<&Relink<B>>,
    ) -> Result<Option<Linking<B>>> {
        let mut found = self.base.size()?;
        // Bytes that no operation cut off are not ours to cut. What an interrupted relink has brought
        // here came after the cut.
        if plan.is_cut() && plan.base_end() < found {
            self.base.set_size(plan.base_end())?;
            found = plan.base_end();
        }
        self.end = found;
        let shortest = relink.and_then(Relink::shortest);
        let mut runs = Vec::new();
        for piece in plan.staged() {
            self.piece(piece, shortest, &mut runs)?;
        }
        for run in relink.map_or_else(Vec::new, |relink| relink.not_worth(&mut runs, found)) {
            self.copy_run(run)?;
        }
        self.write_block()?;
        let now = self.base.size()?;
        if now < plan.size() || (plan.is_cut() && now > plan.size()) {
            self.base.set_size(plan.size())?;
        }
        let linking = match relink {
            Some(relink) if !runs.is_empty() => relink.prepare(self, runs)?,
            _ => None,
        };
        self.write_block()?;
        // Also before an exchange: a crash that kept it, and lost that the file had grown by a write, would
        // have lost what was exchanged behind the end.
        if self.syncs {
            end(self.base, modified)?;
        } else {
            set_time(self.base, modified);
        }
        Ok(linking)
    }

    fn piece(&mut self, piece: Piece, shortest: Option<u64>, runs: &mut Vec<Run>) -> Result<()> {
        let Source::Pool(at) = piece.source else {
            // What is the base file's already is there.
            return match piece.source {
                Source::Base => Ok(()),
                _ => self.copy(piece.part(0, piece.len.min(self.end.saturating_sub(piece.offset)))),
            };
        };
        let head = (piece.offset.next_multiple_of(PAGE) - piece.offset).min(piece.len);
        let middle = (piece.len - head) / PAGE * PAGE;
        if shortest.is_none_or(|shortest| middle < shortest.max(PAGE))
            || !(at + head).is_multiple_of(PAGE)
        {
            return self.copy(piece);
        }
        self.copy(piece.part(0, head))?;
        self.split(piece.part(head, middle), runs);
        self.copy(piece.part(head + middle, piece.len - head - middle))
    }

    /// A run lies in one chunk of the pool.
    fn split(&self, piece: Piece, runs: &mut Vec<Run>) {
        let Source::Pool(pool_offset) = piece.source else {
            return;
        };
        let chunk = self.pool.geometry().chunk_size();
        let mut done = 0;
        while done < piece.len {
            let at = pool_offset + done;
            let len = (chunk - at % chunk).min(piece.len - done);
            runs.push(Run {
                file_offset: piece.offset + done,
                pool_offset: at,
                len,
            });
            done += len;
        }
    }

    /// Copies a run that is not relinked after all.
    pub(super) fn copy_run(&mut self, run: Run) -> Result<()> {
        self.copy(Piece {
            offset: run.file_offset,
            len: run.len,
            source: Source::Pool(run.pool_offset),
        })
    }

    fn copy(&mut self, piece: Piece) -> Result<()> {
        let mut done = 0;
        while done < piece.len {
            let at = piece.offset + done;
            let used = self.block.len();
            if used == BLOCK || self.block_at + used as u64 != at {
                self.write_block()?;
                self.block_at = at;
            }
            let used = self.block.len();
            let len = (piece.len - done).min((BLOCK - used) as u64);
            self.block.resize(used + len as usize, 0);
            if let Source::Pool(offset) = piece.source {
                let read = self
                    .pool
                    .medium()
                    .read(offset + done, &mut self.block[used..]);
                read.map_err(adit_pool::Error::from)?;
            }
            done += len;
        }
        self.done.copied += piece.len;
        Ok(())
    }

    /// Writes what waits.
    pub(super) fn write_block(&mut self) -> Result<()> {
        if !self.block.is_empty() {
            self.base.write_at(self.block_at, &self.block)?;
            self.block.clear();
        }
        Ok(())
    }
}

/// Sets the time of the last write (0: now), and makes the file durable.
pub(super) fn end<B: BaseFile>(base: &B, modified: u64) -> Result<()> {
    set_time(base, modified);
    Ok(base.sync()?)
}

fn set_time<B: BaseFile>(base: &B, modified: u64) {
    if modified != 0 {
        // Programs compare these times, but no byte hangs on them.
        let _ = base.set_modified(modified);
    }
}

impl Piece {
    /// `len` bytes of a piece, `skip` bytes into it.
    fn part(self, skip: u64, len: u64) -> Self {
        Self {
            offset: self.offset + skip,
            len,
            source: self.source.after(skip),
        }
    }
}
