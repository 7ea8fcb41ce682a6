//! Folding staged bytes into the base file.
//!
//! What is published is what the committed records amount to, computed once: bytes that a later
//! record overwrites are not written at all. The order is: claim, commit if everything is wanted,
//! write, sync the base, and only then, under the file's lock and with the claim still ours, retire
//! the records. Until they are retired a crash leads to the same records being published again, over
//! whatever this attempt left.

use std::sync::atomic::Ordering;

use adit_pmem::{BaseFile, Medium};
use adit_pool::{FileGuard, ReplayOp};
use rustix::io::Errno;

use super::claim::Claim;
use super::error::{Error, Result};
use super::file::{StagedFile, lock};
use super::overlay::{Overlay, Piece, Source};

/// From this length on a clone costs less than a copy (measured: 53-64 us against 50 us per 256 KB).
pub const RELINK_MIN: u64 = 512 << 10;

const PAGE: u64 = 4096;
/// Bytes copied at once.
const BLOCK: usize = 64 << 10;
/// Times a publication is begun anew because others took the file over.
const ATTEMPTS: usize = 3;

/// How much is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What is committed.
    Committed,
    /// Everything: it is committed first. For close, hand-over, a broken lease, and age.
    Everything,
}

/// Relinking: the pool's own file, as the base file system knows it, and the shortest run that is
/// worth it.
#[derive(Debug, Clone)]
pub struct Relink<B> {
    /// The pool's file.
    pub pool: B,
    /// Shorter runs are copied.
    pub min: u64,
}

/// What a publication did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// Records retired.
    pub records: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes relinked.
    pub relinked: u64,
    /// The base file was longer than anything of ours explains: somebody outside wrote to it.
    pub base_grew: bool,
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Publishes. Appends, overwrites and reads go on meanwhile.
    pub fn publish(&self, scope: Scope) -> Result<Published> {
        let _one = lock(&self.publishing);
        let mut done = Published::default();
        for _ in 0..ATTEMPTS {
            if self.publish_once(scope, &mut done)? {
                self.stage.reclaim()?;
                return Ok(done);
            }
        }
        Err(Error::Contended)
    }

    /// Publishes everything and leaves the pool: afterwards the base file is the file. The caller
    /// makes sure that nobody writes any more.
    pub fn close(self) -> Result<Published> {
        let done = self.publish(Scope::Everything)?;
        let (stage, file) = (self.stage.clone(), self.file);
        drop(self);
        stage.attachment().forget_file(file)?;
        stage.reclaim()?;
        Ok(done)
    }

    fn publish_once(&self, scope: Scope, done: &mut Published) -> Result<bool> {
        let attachment = self.stage.attachment();
        let mut guard = self.lock()?;
        if self.look().ops.is_empty() {
            return Ok(true);
        }
        let claim = Claim::take(attachment, &guard)?;
        let prepared = self.prepare(&mut guard, scope);
        // Before the claim may be given up, which takes the lock again.
        drop(guard);
        prepared?;
        let base_size = self.base.size()?;
        let (plan, last) = self.plan(base_size);
        if last == 0 {
            return Ok(true);
        }
        done.base_grew |= base_size > self.look().base_size;
        // A reader may have looked before the bytes that we are about to cover were staged.
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let mut relinked = Vec::new();
        let mut fold = Fold {
            medium: attachment.pool().medium(),
            base: &self.base,
            relink: self.relink.as_ref(),
            relinked: &mut relinked,
            block: Fold::<M, B>::block(),
            done: *done,
        };
        let folded = fold.run(&plan);
        *done = fold.done;
        self.change().base_size = self.base.size()?;
        folded?;
        let mut guard = self.lock()?;
        if !claim.stands(&guard)? {
            return Ok(false);
        }
        guard.retire(last)?;
        done.records += self.drop_up_to(last, self.base.size()?);
        drop(guard);
        self.unshare(&relinked)?;
        self.settle(last);
        Ok(true)
    }

    fn prepare(&self, guard: &mut FileGuard<'_, M>, scope: Scope) -> Result<()> {
        // The claim is ours, so nobody else retires any more.
        self.leave_out(self.stage.attachment().pool().retired(self.file)?)?;
        if scope == Scope::Everything {
            self.commit(guard)?;
        }
        Ok(())
    }

    /// Records that another publisher, say the monitor, has retired.
    fn leave_out(&self, retired: u64) -> Result<()> {
        if self
            .look()
            .ops
            .front()
            .is_some_and(|(seq, _)| *seq <= retired)
        {
            self.drop_up_to(retired, self.base.size()?);
            self.settle(retired);
        }
        Ok(())
    }

    /// What the committed records amount to, and the last of them (0: there is none).
    fn plan(&self, base_size: u64) -> (Overlay, u64) {
        let view = self.look();
        let committed = |(seq, _): &&(u64, ReplayOp)| *seq <= view.committed;
        let last = view.ops.iter().take_while(committed).last();
        let last = last.map_or(0, |(seq, _)| *seq);
        let ops = view.ops.iter().take_while(committed).map(|(_, op)| *op);
        (Overlay::of(base_size, ops), last)
    }

    /// Takes published records out of the overlay, over a base file that holds them.
    fn drop_up_to(&self, last: u64, base_size: u64) -> u64 {
        let mut view = self.change();
        let gone = view.ops.partition_point(|(seq, _)| *seq <= last);
        view.ops.drain(..gone);
        view.base_size = base_size;
        view.overlay = Overlay::of(base_size, view.ops.iter().map(|(_, op)| *op));
        gone as u64
    }

    /// Pool pages that were relinked are the base file's as well. They get blocks of their own before
    /// they are used again: a store to a shared page on a full disk is a fault.
    fn unshare(&self, relinked: &[(u64, u64)]) -> Result<()> {
        if let Some(relink) = &self.relink {
            for &(offset, len) in relinked {
                relink.pool.punch(offset, len)?;
                relink.pool.reserve(offset, len)?;
            }
        }
        Ok(())
    }
}

/// One pass of writing a plan to a base file. The recovery uses it as well.
pub(super) struct Fold<'a, M: Medium, B: BaseFile> {
    pub(super) medium: &'a M,
    pub(super) base: &'a B,
    pub(super) relink: Option<&'a Relink<B>>,
    /// Ranges of the pool that are shared with the base file now.
    pub(super) relinked: &'a mut Vec<(u64, u64)>,
    pub(super) block: Vec<u8>,
    pub(super) done: Published,
}

impl<M: Medium, B: BaseFile> Fold<'_, M, B> {
    pub(super) fn block() -> Vec<u8> {
        vec![0; BLOCK]
    }

    /// Makes the base file what the plan says, durably.
    pub(super) fn run(&mut self, plan: &Overlay) -> Result<()> {
        let found = self.base.size()?;
        // Bytes that no operation cut off are not ours to cut.
        if plan.is_cut() && plan.base_limit() < found {
            self.base.set_size(plan.base_limit())?;
        }
        for piece in plan.staged() {
            self.piece(piece)?;
        }
        let now = self.base.size()?;
        if now < plan.size() || (plan.is_cut() && now > plan.size()) {
            self.base.set_size(plan.size())?;
        }
        Ok(self.base.sync()?)
    }

    fn piece(&mut self, piece: Piece) -> Result<()> {
        let head = piece.offset.next_multiple_of(PAGE) - piece.offset;
        let middle = piece.len.saturating_sub(head) / PAGE * PAGE;
        if let (Some(relink), Source::Pool(at)) = (self.relink, piece.source)
            && middle >= relink.min.max(PAGE)
            && (at + head).is_multiple_of(PAGE)
        {
            let (offset, at) = (piece.offset + head, at + head);
            match self.base.clone_range(offset, &relink.pool, at, middle) {
                Ok(()) => {
                    self.done.relinked += middle;
                    self.relinked.push((at, middle));
                    self.copy(part(piece, 0, head))?;
                    return self.copy(part(piece, head + middle, piece.len - head - middle));
                }
                Err(Errno::NOSPC) => return Err(Errno::NOSPC.into()),
                // The file system cannot, or not here.
                Err(_) => {}
            }
        }
        self.copy(piece)
    }

    fn copy(&mut self, piece: Piece) -> Result<()> {
        let mut at = 0;
        while at < piece.len {
            let len = (piece.len - at).min(self.block.len() as u64) as usize;
            let block = &mut self.block[..len];
            match piece.source {
                Source::Pool(offset) => {
                    let read = self.medium.read(offset + at, block);
                    read.map_err(adit_pool::Error::from)?;
                }
                Source::Zeros | Source::Base => block.fill(0),
            }
            self.base.write_at(piece.offset + at, block)?;
            at += len as u64;
        }
        self.done.copied += piece.len;
        Ok(())
    }
}

/// `len` bytes of a piece of the pool, `skip` bytes into it.
fn part(piece: Piece, skip: u64, len: u64) -> Piece {
    Piece {
        offset: piece.offset + skip,
        len,
        source: piece.source.after(skip),
    }
}
