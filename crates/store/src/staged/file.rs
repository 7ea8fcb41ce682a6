//! A staged file of this process: its overlay, and how that follows the log.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

use adit_pmem::{BaseFile, Medium};
use adit_pool::{Attachment, Extent, FileGuard, FileName, FileRef, ReplayOp, When};

use super::error::{Error, Result};
use super::overlay::Overlay;
use super::publish::{Relink, Scope};

/// Times that room is made for one operation: other threads may be faster to take it.
const ROOMS: usize = 64;

/// Bytes of a page of the pool.
const PAGE: u32 = adit_pool::layout::PAGE as u32;

/// Bytes of a line.
const LINE: u32 = adit_pool::layout::LINE as u32;

/// What a write is worth when it returns, and what a crash of the system may take back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Durable at `fsync`; the writes of one `fsync` are atomic unless the pool was too small for them.
    Posix,
    /// Durable when the call returns.
    Sync,
    /// Durable at `fsync`, and everything since the last one entirely or not at all, always.
    Atomic,
    /// Durable and atomic when the call returns.
    Strict,
}

impl Mode {
    pub(super) fn when(self) -> When {
        match self {
            Self::Posix | Self::Atomic => When::WithCommit,
            Self::Sync | Self::Strict => When::Now,
        }
    }

    /// What may be published when space runs out. In `atomic` mode uncommitted bytes never reach the
    /// base file: then the answer is `ENOSPC`, not a broken promise.
    fn under_pressure(self) -> Scope {
        match self {
            Self::Atomic => Scope::Committed,
            _ => Scope::Everything,
        }
    }
}

/// This process's seat at a pool, with its staged files.
pub struct Stage<M: Medium> {
    attachment: Attachment<M>,
    /// For each open file: up to which record its overlay refers to nothing any more.
    settled: Mutex<HashMap<FileRef, Weak<AtomicU64>>>,
    /// Adjacent pages taken ahead: appends that follow each other lie side by side, are one piece of
    /// the overlay and one run of the publisher, and the chunks are searched once for many.
    ahead: Mutex<Option<Extent>>,
}

impl<M: Medium> Stage<M> {
    /// A stage for the files of one attachment.
    #[must_use]
    pub fn new(attachment: Attachment<M>) -> Arc<Self> {
        Arc::new(Self {
            attachment,
            settled: Mutex::default(),
            ahead: Mutex::default(),
        })
    }

    /// Fresh space for `len` bytes, at most a chunk.
    pub(super) fn space(&self, len: u32) -> Result<Extent> {
        let attachment = &self.attachment;
        // A reservation of some chunks' worth would fill a small pool with nothing.
        let reserved = (attachment.pool().geometry().chunk_size() / 8) as u32;
        let taken = len.next_multiple_of(PAGE);
        // Less than a page takes lines, and only these come back when its record is retired.
        if len <= PAGE - LINE || taken > reserved / 2 {
            return Ok(attachment.alloc(len)?);
        }
        let mut ahead = lock(&self.ahead);
        if ahead.is_none_or(|ahead| ahead.len < taken) {
            if let Some(rest) = ahead.take() {
                attachment.free(rest)?;
            }
            match attachment.alloc(reserved) {
                Ok(extent) => *ahead = Some(extent),
                Err(_) => return Ok(attachment.alloc(len)?),
            }
        }
        let Some(rest) = ahead.take() else {
            return Ok(attachment.alloc(len)?);
        };
        *ahead = (rest.len > taken).then(|| Extent {
            offset: rest.offset + u64::from(taken),
            len: rest.len - taken,
        });
        Ok(Extent {
            offset: rest.offset,
            len,
        })
    }

    /// Gives up what was taken ahead.
    fn give_back_ahead(&self) -> Result<()> {
        if let Some(rest) = lock(&self.ahead).take() {
            self.attachment.free(rest)?;
        }
        Ok(())
    }

    /// The attachment.
    #[must_use]
    pub fn attachment(&self) -> &Attachment<M> {
        &self.attachment
    }

    /// Gives the attachment back, for detaching; `None` while files are open.
    #[must_use]
    pub fn into_attachment(self: Arc<Self>) -> Option<Attachment<M>> {
        // An attachment that cannot free is one that is not ours any more.
        let _ = self.give_back_ahead();
        Arc::into_inner(self).map(|stage| stage.attachment)
    }

    /// Makes the space of retired records free again, as far as no overlay of this process refers to
    /// it.
    pub fn reclaim(&self) -> Result<u64> {
        let pool = self.attachment.pool();
        let open: HashMap<FileRef, Arc<AtomicU64>> = {
            let mut settled = lock(&self.settled);
            settled.retain(|_, open| open.strong_count() > 0);
            let alive = settled.iter();
            alive
                .filter_map(|(file, open)| Some((*file, open.upgrade()?)))
                .collect()
        };
        Ok(self.attachment.reclaim(|file, _| match open.get(&file) {
            Some(settled) => pool
                .retired(file)
                .is_ok_and(|retired| settled.load(Ordering::Acquire) >= retired),
            None => true,
        })?)
    }
}

/// A file whose new bytes lie in the pool.
pub struct StagedFile<M: Medium, B: BaseFile> {
    pub(super) stage: Arc<Stage<M>>,
    pub(super) file: FileRef,
    pub(super) base: B,
    pub(super) mode: Mode,
    pub(super) relink: Option<Relink<B>>,
    /// Held to look and to change, never while bytes are copied, fenced or written to the base.
    view: RwLock<View>,
    /// Moves before bytes change that a reader may be copying: see [`StagedFile::read_at`].
    pub(super) epoch: AtomicU64,
    pub(super) settled: Arc<AtomicU64>,
    pub(super) publishing: Mutex<()>,
}

/// The log of the file as this process knows it.
pub(super) struct View {
    /// Operations that are not retired, oldest first.
    pub(super) ops: VecDeque<(u64, ReplayOp)>,
    /// What they amount to.
    pub(super) overlay: Overlay,
    /// The sequence number that the next record gets if nobody else writes one.
    pub(super) next_seq: u64,
    /// Size of the base file as we left it.
    pub(super) base_size: u64,
    /// The last record that a crash of the system cannot take back.
    pub(super) committed: u64,
}

impl View {
    pub(super) fn record(&mut self, seq: u64, op: ReplayOp) {
        self.overlay.apply(op);
        self.ops.push_back((seq, op));
    }

    pub(super) fn has_uncommitted(&self) -> bool {
        self.ops
            .back()
            .is_some_and(|(seq, _)| *seq > self.committed)
    }
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Stages a file, or goes on with what is already staged of it. `base` is the file itself, opened
    /// by whoever may. A process has one `StagedFile` of a file at a time.
    pub fn open(stage: &Arc<Stage<M>>, name: &FileName, base: B, mode: Mode) -> Result<Self> {
        let attachment = &stage.attachment;
        // The entry may be forgotten by somebody who finished with it while we found it.
        for _ in 0..8 {
            let file = attachment.enter_file(name)?;
            let guard = match attachment.lock_file(file) {
                Err(adit_pool::Error::Forgotten) => continue,
                guard => guard?,
            };
            let settled = Arc::new(AtomicU64::new(0));
            {
                let mut open = lock(&stage.settled);
                if open.get(&file).is_some_and(|open| open.strong_count() > 0) {
                    return Err(Error::AlreadyOpen);
                }
                open.insert(file, Arc::downgrade(&settled));
            }
            let base_size = base.size()?;
            let staged = Self {
                stage: Arc::clone(stage),
                file,
                mode,
                relink: None,
                view: RwLock::new(View {
                    ops: VecDeque::new(),
                    overlay: Overlay::new(base_size),
                    base_size,
                    next_seq: 1,
                    committed: 0,
                }),
                base,
                epoch: AtomicU64::new(0),
                settled,
                publishing: Mutex::new(()),
            };
            staged.follow(&guard)?;
            drop(guard);
            return Ok(staged);
        }
        Err(adit_pool::Error::Forgotten.into())
    }

    /// Lets the publisher relink long runs instead of copying them.
    #[must_use]
    pub fn with_relink(mut self, relink: Relink<B>) -> Self {
        self.relink = Some(relink);
        self
    }

    /// The file's entry in the pool.
    #[must_use]
    pub fn file(&self) -> FileRef {
        self.file
    }

    /// Present size, staged bytes included.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.look().overlay.size()
    }

    /// Whether any byte of the range is staged: then an overwrite has to be staged, in every mode.
    #[must_use]
    pub fn is_staged(&self, offset: u64, len: u64) -> bool {
        self.look().overlay.is_staged(offset, len)
    }

    /// Whether anything waits to be published.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.look().ops.is_empty()
    }

    pub(super) fn look(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the file's lock in the pool, with the overlay up to date.
    pub(super) fn lock(&self) -> Result<FileGuard<'_, M>> {
        let guard = self.stage.attachment.lock_file(self.file)?;
        self.follow(&guard)?;
        Ok(guard)
    }

    /// Brings the overlay up to the log. Mostly it is there: only records of another process, or an
    /// operation of ours that failed halfway, make the sequence numbers differ.
    fn follow(&self, guard: &FileGuard<'_, M>) -> Result<()> {
        let next_seq = guard.next_seq()?;
        let (known, size) = {
            let view = self.look();
            (view.next_seq, view.overlay.size())
        };
        if known != next_seq {
            return self.rebuild(guard, next_seq);
        }
        if guard.end()?.is_none() {
            guard.set_end(size)?;
        }
        Ok(())
    }

    /// Makes the overlay anew, from the log alone.
    fn rebuild(&self, guard: &FileGuard<'_, M>, next_seq: u64) -> Result<()> {
        let pool = self.stage.attachment.pool();
        let retired = pool.retired(self.file)?;
        let found = pool.scan()?;
        let ops = found
            .records(pool, self.file)
            .map(|replay| replay.map(|replay| (replay.seq, replay.op)))
            .collect::<adit_pool::Result<VecDeque<_>>>()?;
        let base_size = self.base.size()?;
        let overlay = Overlay::of(base_size, ops.iter().map(|(_, op)| *op));
        guard.set_end(overlay.size())?;
        let mut view = self.change();
        // Of the records that others wrote it is not known in which mode: the next commit covers them.
        let committed = view.committed;
        *view = View {
            ops,
            overlay,
            base_size,
            next_seq,
            committed,
        };
        drop(view);
        self.settle(retired);
        Ok(())
    }

    /// The overlay refers to nothing up to `retired` any more; readers that looked before start over.
    pub(super) fn settle(&self, retired: u64) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.settled.fetch_max(retired, Ordering::AcqRel);
    }

    /// Runs an operation; when space runs out, publishes and tries again. Fails with `ENOSPC` when that
    /// did not help, with nothing of the operation done.
    pub(super) fn with_room<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        let mut in_vain = 0;
        for _ in 0..ROOMS {
            match operation() {
                Err(Error::Pool(error)) if super::error::is_pressure(&error) => {
                    // Nothing found may mean that another thread has just made the room.
                    in_vain = if self.relieve()? == 0 { in_vain + 1 } else { 0 };
                    if in_vain == 3 {
                        break;
                    }
                }
                result => return result,
            }
        }
        Err(Error::NoSpace)
    }

    fn relieve(&self) -> Result<u64> {
        self.stage.give_back_ahead()?;
        let reclaimed = self.stage.reclaim()?;
        let published = match self.publish(self.mode.under_pressure()) {
            Ok(published) => published.records,
            // No room for the commit; what is committed already may make some.
            Err(Error::Pool(error)) if super::error::is_pressure(&error) => {
                self.publish(Scope::Committed)?.records
            }
            // Another publisher is about to make room.
            Err(Error::Publishing { .. }) => {
                std::thread::yield_now();
                1
            }
            Err(error) => return Err(error),
        };
        Ok(reclaimed + published + self.stage.reclaim()?)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
