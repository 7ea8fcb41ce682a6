//! A staged file of this process: its overlay, and how that follows the log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::Duration;

use adit_pmem::{BaseFile, Medium};
use adit_pool::{
    Attachment, Extent, FileGuard, FileName, FileRef, Pool, Recovery, ReplayOp, SHARED, Tail, When,
};
use rustix::fs::Timespec;

use super::board::Board;
use super::claim::{claimed_between, is_relinking};
use super::error::{Error, Result};
use super::overlay::Overlay;
use super::publish::Scope;
use super::recycle::{Apart, CoveredPages, LISTS, Recycled, list_of_thread};
use super::relink::{Relink, Relinks};
use super::reuse::Reuse;
use super::room::Room;
use crate::clock;

/// Times that room is made for one operation: other threads may be faster to take it.
const ROOMS: usize = 64;

/// After so many of them the pool is made larger, if it can be.
const SHARED_ROOMS: usize = 16;

/// How long, and how often, another publisher is waited for when nothing else makes room.
const WAIT: Duration = Duration::from_micros(500);
const WAITS: usize = 4000;

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
    /// The files that are open, each of which has one view here unless it is shared.
    open: Mutex<BTreeMap<FileRef, Weak<()>>>,
    /// Adjacent pages taken ahead: appends that follow each other lie side by side, are one piece of
    /// the overlay and one run of the publisher, and the chunks are searched once for many. Threads have
    /// their own, as far as there are enough.
    ahead: [Apart<Mutex<Option<Extent>>>; LISTS],
    /// Held while everything free is collected. Two that take the lines of one empty chunk, to give it
    /// back, would each find some of them taken.
    making_room: Mutex<()>,
    grow: Grow<M>,
    relinks: Arc<Relinks>,
    /// Whether another process has published something of ours since space was last collected.
    pub(super) left_out: AtomicBool,
    /// Records retired since then, and how many make it worth to look at all that wait.
    retired: AtomicU64,
    worth: AtomicU64,
}

/// Collecting looks at every record that waits: it is worth it when one in so many was retired. With many
/// files open, each of which is published by itself, all of them would be looked at each time.
const WORTH: u64 = 8;

/// Why a full pool is to be made larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// So that nobody has to wait until something is published, as far as that is worth the space.
    Ahead,
    /// Nothing that can be published makes room.
    Needed,
    /// Nothing can be published before there is room to say so.
    ToPublish,
}

/// How a full pool is made larger; whether it was.
pub type Grow<M> = Box<dyn Fn(&Attachment<M>, Growth) -> bool + Send + Sync>;

impl<M: Medium> Stage<M> {
    /// A stage for the files of one attachment, whose pool keeps its size.
    #[must_use]
    pub fn new(attachment: Attachment<M>) -> Arc<Self> {
        Self::growing(attachment, Box::new(|_, _| false))
    }

    /// A stage whose pool may become larger, before something is published or when that makes no room.
    #[must_use]
    pub fn growing(attachment: Attachment<M>, grow: Grow<M>) -> Arc<Self> {
        Arc::new(Self {
            attachment,
            open: Mutex::default(),
            ahead: Default::default(),
            making_room: Mutex::default(),
            grow,
            relinks: Arc::default(),
            left_out: AtomicBool::new(false),
            retired: AtomicU64::new(0),
            worth: AtomicU64::new(0),
        })
    }

    /// Notes that so many records are retired.
    pub(super) fn retired(&self, records: usize) {
        self.retired.fetch_add(records as u64, Ordering::AcqRel);
    }

    /// Whether so much was retired that it is worth to collect the space.
    fn is_worth_it(&self) -> bool {
        let worth = self.worth.load(Ordering::Relaxed);
        self.retired.load(Ordering::Relaxed) >= worth.max(1)
    }

    /// Makes the space of retired records free again, if there is enough of it.
    pub(super) fn tidy(&self) -> Result<()> {
        if self.is_worth_it() {
            self.reclaim()?;
        }
        Ok(())
    }

    /// Makes the pool larger, one thread at a time.
    pub(super) fn grow(&self, growth: Growth) -> bool {
        let _one = lock(&self.making_room);
        (self.grow)(&self.attachment, growth)
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
        let mut ahead = lock(&self.ahead[list_of_thread()].0);
        if ahead.is_none_or(|ahead| ahead.len < taken) {
            if let Some(rest) = ahead.take() {
                attachment.free(rest)?;
            }
            match attachment.alloc(reserved) {
                Ok(extent) => {
                    let medium = attachment.pool().medium();
                    medium.expect_writes(extent.offset, u64::from(extent.len));
                    *ahead = Some(extent);
                }
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
        for ahead in &self.ahead {
            if let Some(rest) = lock(&ahead.0).take() {
                self.attachment.free(rest)?;
            }
        }
        Ok(())
    }

    /// The attachment.
    #[must_use]
    pub fn attachment(&self) -> &Attachment<M> {
        &self.attachment
    }

    /// What is known of relinking from this pool.
    #[must_use]
    pub fn relinks(&self) -> &Arc<Relinks> {
        &self.relinks
    }

    /// Gives the attachment back, for detaching; `None` while files are open.
    #[must_use]
    pub fn into_attachment(self: Arc<Self>) -> Option<Attachment<M>> {
        // An attachment that cannot free is one that is not ours any more.
        let _ = self.give_back_ahead();
        Arc::into_inner(self).map(|stage| stage.attachment)
    }

    /// Frees all that can be: what was taken ahead, retired records and their space, and chunks that are
    /// empty then. These go back to the pool: the log may need a chunk more than the data does, or
    /// another process. The result is how much that was.
    pub(super) fn make_room(&self) -> Result<u64> {
        let _one = lock(&self.making_room);
        self.give_back_ahead()?;
        let reclaimed = self.reclaim()?;
        Ok(reclaimed + u64::from(self.attachment.release_empty()?))
    }

    /// Whether enough comes back of what others have published meanwhile: of files that nobody has touched since, this
    /// process has not noticed that.
    fn others_made_room(&self) -> Result<bool> {
        let _one = lock(&self.making_room);
        let made = self.reclaim()?;
        Ok(made > 0 && made >= self.attachment.waiting_records() / WORTH)
    }

    /// Makes the space of retired records free again. Overlays may name it still, of files that nobody has touched
    /// since: who looks at them asks for the mark first.
    pub fn reclaim(&self) -> Result<u64> {
        lock(&self.open).retain(|_, open| open.strong_count() > 0);
        let retired = self.retired.swap(0, Ordering::AcqRel);
        let reclaimed = self.attachment.reclaim();
        if reclaimed.is_err() {
            self.retired.fetch_add(retired, Ordering::AcqRel);
        }
        let reclaimed = reclaimed?;
        let waiting = self.attachment.waiting_records();
        self.worth.store(waiting / WORTH, Ordering::Relaxed);
        Ok(reclaimed)
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
    /// Moves before space of the pool is used again that a reader may be copying from: `read.rs`.
    pub(super) reuse: Reuse,
    pub(super) recycled: Recycled,
    pub(super) board: Board,
    /// The sequence number that the next record gets if nobody else writes one. Guarded by the file's lock.
    pub(super) known_seq: AtomicU64,
    /// When something was done to it here last, as [`clock::now`] says it; zero when nothing was.
    pub(super) written: AtomicU64,
    /// The publishing word up to which the overlay follows the retired mark. Guarded by the file's lock.
    pub(super) followed: AtomicU64,
    /// The mark itself. Guarded by the file's lock.
    pub(super) followed_mark: AtomicU64,
    /// How far the logs of others were seen. Used under the file's lock.
    pub(super) tail: Mutex<Tail>,
    /// Says in [`Stage::open`] that the file is.
    _open: Arc<()>,
    /// Held by who publishes here: the last record that the base file shows those who do not look at the pool, as far as this
    /// process knows.
    pub(super) publishing: Mutex<u64>,
    pub(super) room: Room,
    /// Set when the base file is durable as it was before anything was staged, and its name with it.
    base_is_durable: AtomicBool,
}

/// An operation that is logged and not shown.
pub(super) struct Waiting {
    pub(super) seq: u64,
    pub(super) op: ReplayOp,
    /// The publishing word when it was logged: no claim that it counts covers the operation.
    pub(super) word: u64,
}

/// The log of the file as this process knows it.
pub(super) struct View {
    /// Operations that are not retired, oldest first.
    pub(super) ops: VecDeque<(u64, ReplayOp)>,
    /// What they amount to.
    pub(super) overlay: Overlay,
    /// Operations behind those that are logged and not shown: their threads wait for a device.
    pub(super) waiting: VecDeque<Waiting>,
    /// The last record that a crash of the system cannot take back.
    pub(super) committed: u64,
    /// The last record that is durable, with all before it, whether it counts or waits for its commit.
    pub(super) durable: u64,
    /// The last commit that was written, durable or not.
    pub(super) commit: u64,
    /// Pages of the pool that the overlay named, and that newer writes cover.
    pub(super) covered: CoveredPages,
}

impl View {
    #[inline]
    pub(super) fn record(&mut self, seq: u64, op: &ReplayOp) {
        let covered = &mut self.covered;
        self.overlay
            .apply_telling(op, |offset| covered.note(offset, seq));
        self.ops.push_back((seq, *op));
    }

    /// How many operations there are up to record `seq`.
    pub(super) fn ops_up_to(&self, seq: u64) -> usize {
        self.ops.partition_point(|(known, _)| *known <= seq)
    }

    /// Whether the first operation, shown or not, is none behind record `seq`.
    pub(super) fn begins_up_to(&self, seq: u64) -> bool {
        let shown = self.ops.front().map(|(first, _)| *first);
        let first = shown.or(self.waiting.front().map(|first| first.seq));
        first.is_some_and(|first| first <= seq)
    }

    /// The last operation.
    pub(super) fn last(&self) -> u64 {
        self.ops.back().map_or(0, |(seq, _)| *seq)
    }

    /// Whether a crash of the system can take an operation back: a commit may be on its way, and not
    /// durable yet.
    pub(super) fn has_uncommitted(&self) -> bool {
        self.last() > self.committed
    }

    /// The last operation that is logged and not shown.
    pub(super) fn last_waiting(&self) -> Option<u64> {
        self.waiting.back().map(|last| last.seq)
    }

    /// The last operation that waits, when somebody has claimed the file since the first one was logged. If that was
    /// another process, it has found them in the log and may have written them to the base file.
    pub(super) fn claimed_waiting(&self, word: u64) -> Option<u64> {
        let first = self.waiting.front()?;
        claimed_between(first.word, word)
            .then(|| self.last_waiting())
            .flatten()
    }

    /// Shows operations up to `seq`, which are durable and count at once.
    pub(super) fn reveal(&mut self, seq: u64) {
        let nothing_before = !self.has_uncommitted();
        while let Some(next) = self.waiting.pop_front_if(|next| next.seq <= seq) {
            self.record(next.seq, &next.op);
        }
        self.durable = self.durable.max(seq);
        self.is_committed(seq, nothing_before);
    }

    /// A commit is durable, and with it all before it counts.
    pub(super) fn commit_is_durable(&mut self, commit: u64) {
        self.committed = self.committed.max(commit);
        self.durable = self.durable.max(commit);
    }

    /// Record `seq` counts at once. Those before it may be of a process whose mode is another: these
    /// count with a commit, and are not published sooner.
    pub(super) fn is_committed(&mut self, seq: u64, nothing_before: bool) {
        if nothing_before {
            self.committed = self.committed.max(seq);
        }
    }
}

impl<M: Medium, B: BaseFile> StagedFile<M, B> {
    /// Stages a file, or goes on with what is already staged of it. `base` is the file itself, opened
    /// by whoever may. A process has one `StagedFile` of a file at a time, unless that is shared
    /// ([`StagedFile::share`]).
    pub fn open(stage: &Arc<Stage<M>>, name: &FileName, base: B, mode: Mode) -> Result<Self> {
        let attachment = &stage.attachment;
        // The entry may be forgotten by somebody who finished with it while we found it.
        for _ in 0..8 {
            let file = attachment.enter_file(name)?;
            match attachment.lock_file(file) {
                Err(adit_pool::Error::Forgotten) => {}
                guard => return Self::locked(stage, guard?, base, mode),
            }
        }
        Err(Error::Contended)
    }

    /// Goes on with a file that has an entry already; [`Error::Taken`] when it has none any more.
    pub fn open_entry(stage: &Arc<Stage<M>>, file: FileRef, base: B, mode: Mode) -> Result<Self> {
        Self::locked(stage, stage.attachment.lock_file(file)?, base, mode)
    }

    /// The same for who only commits and publishes, which look at the log before anything else: a reader would
    /// find nothing of what is staged.
    pub fn open_unread(stage: &Arc<Stage<M>>, file: FileRef, base: B, mode: Mode) -> Result<Self> {
        Self::unread(stage, &stage.attachment.lock_file(file)?, base, mode)
    }

    fn locked(
        stage: &Arc<Stage<M>>,
        mut guard: FileGuard<'_, M>,
        base: B,
        mode: Mode,
    ) -> Result<Self> {
        let staged = Self::unread(stage, &guard, base, mode)?;
        staged.follow(&mut guard)?;
        if guard.version()? & SHARED == 0 {
            // The dead may have left an entry of which all is published, and anybody may have written to the file since.
            guard.set_end(staged.look().overlay.size())?;
        }
        Ok(staged)
    }

    fn unread(
        stage: &Arc<Stage<M>>,
        guard: &FileGuard<'_, M>,
        base: B,
        mode: Mode,
    ) -> Result<Self> {
        let file = guard.file();
        let base_size = base.size()?;
        let this = Arc::new(());
        {
            let mut open = lock(&stage.open);
            let is_open = open.get(&file).is_some_and(|open| open.strong_count() > 0);
            if is_open && guard.version()? & SHARED == 0 {
                return Err(Error::AlreadyOpen);
            }
            if !is_open {
                open.insert(file, Arc::downgrade(&this));
            }
        }
        Ok(Self {
            stage: Arc::clone(stage),
            file,
            mode,
            relink: None,
            view: RwLock::new(View {
                ops: VecDeque::new(),
                overlay: Overlay::new(base_size),
                waiting: VecDeque::new(),
                committed: 0,
                durable: 0,
                commit: 0,
                covered: CoveredPages::new(stage.attachment.pool()),
            }),
            base,
            reuse: Reuse::new(),
            recycled: Recycled::default(),
            board: Board::new(),
            known_seq: AtomicU64::new(1),
            written: AtomicU64::new(0),
            followed: AtomicU64::new(guard.version()?),
            followed_mark: AtomicU64::new(0),
            tail: Mutex::default(),
            _open: this,
            publishing: Mutex::new(0),
            room: Room::default(),
            base_is_durable: AtomicBool::new(false),
        })
    }

    /// Lets the publisher relink long runs instead of copying them, where the file system can.
    #[must_use]
    pub fn with_relink(mut self, relink: impl Into<Option<Relink<B>>>) -> Self {
        self.relink = relink.into();
        self
    }

    /// Says that the base file is durable as it is, with its name: no commit has to see to that.
    pub fn base_is_durable(&self) {
        self.base_is_durable.store(true, Ordering::Relaxed);
    }

    /// Whether that has to be seen to before the first commit: a crash of the system may give the file another size than
    /// it was staged over, or take it away. What it was when it was staged whoever commits for its program does not know.
    pub(super) fn needs_durable_base(&self) -> bool {
        !self.base_is_durable.load(Ordering::Relaxed)
    }

    /// Before a commit: makes the base file durable as it was before anything was staged, unless it is known to be.
    pub fn make_base_durable(&self) -> Result<()> {
        if self.needs_durable_base() {
            self.base.sync()?;
            self.base_is_durable();
        }
        Ok(())
    }

    /// The file's entry in the pool.
    #[must_use]
    pub fn file(&self) -> FileRef {
        self.file
    }

    /// The file itself.
    #[must_use]
    pub fn base(&self) -> &B {
        &self.base
    }

    /// Present size, staged bytes included.
    pub fn size(&self) -> Result<u64> {
        self.catch_up()?;
        let size = self.look().overlay.size();
        self.stage
            .attachment
            .pool()
            .ensure_not_forgotten(self.file)?;
        Ok(size)
    }

    /// When the file was last written or cut while it was staged, whoever did it, as its times will say
    /// once it is published; `None` when it was not.
    pub fn last_write(&self) -> Result<Option<Timespec>> {
        let modified = self.stage.attachment.pool().modified(self.file)?;
        Ok((modified != 0).then_some(Timespec {
            tv_sec: (modified / 1_000_000_000) as i64,
            tv_nsec: (modified % 1_000_000_000) as i64,
        }))
    }

    /// How long ago it was last written or cut here, also where somebody has taken it away since; `None` when it never was.
    #[must_use]
    pub fn quiet_for(&self) -> Option<Duration> {
        let written = self.written.load(Ordering::Relaxed);
        (written != 0).then(|| Duration::from_nanos(clock::now().saturating_sub(written)))
    }

    /// Says that the base file's times were set, after everything was published: from now on they are
    /// the file's, until it is written again.
    pub fn times_were_set(&self) -> Result<()> {
        Ok(self.lock()?.set_modified(0)?)
    }

    /// Whether any byte of the range is staged: then an overwrite has to be staged, in every mode.
    #[must_use]
    pub fn is_staged(&self, offset: u64, len: u64) -> bool {
        self.look().overlay.is_staged(offset, len)
    }

    /// Whether anything waits to be published.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let view = self.look();
        view.ops.is_empty() && view.waiting.is_empty()
    }

    pub(super) fn look(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the file's lock in the pool, with the overlay up to date.
    #[inline]
    pub(super) fn lock(&self) -> Result<FileGuard<'_, M>> {
        let mut guard = self.stage.attachment.lock_file(self.file)?;
        if !self.is_up_to_date(&guard)? {
            self.follow(&mut guard)?;
        }
        Ok(guard)
    }

    /// Whether nobody has written, published or relinked anything that the overlay does not show.
    #[inline]
    fn is_up_to_date(&self, guard: &FileGuard<'_, M>) -> Result<bool> {
        let version = guard.version()?;
        let mark = self.mark_of(guard.retired_word()?);
        Ok(self.followed.load(Ordering::Relaxed) == version
            && !is_relinking(version)
            && self.known_seq.load(Ordering::Relaxed) == guard.next_seq()?
            && self.followed_mark.load(Ordering::Relaxed) == mark
            && guard.end()?.is_some())
    }

    /// Brings the overlay up to the log and to what others have published. Mostly it is there: only
    /// records of another process, or an operation of ours that failed halfway, make the sequence
    /// numbers differ; and only publishing moves the publishing word.
    #[cold]
    #[inline(never)]
    pub(super) fn follow(&self, guard: &mut FileGuard<'_, M>) -> Result<()> {
        self.follow_by(guard, &mut Walk::default())
    }

    /// The same, with a walk over the logs that was made, or will be made, for other files as well, all of which
    /// are locked.
    pub(super) fn follow_by(&self, guard: &mut FileGuard<'_, M>, walk: &mut Walk) -> Result<()> {
        let mut version = guard.version()?;
        if is_relinking(version) {
            self.finish_relink(guard)?;
            version = guard.version()?;
        }
        let next_seq = guard.next_seq()?;
        let shared = version & SHARED != 0;
        let followed_mark = self.followed_mark.load(Ordering::Relaxed);
        let mark = self.mark_of(guard.retired_word()?);
        let is_new = self.known_seq.load(Ordering::Relaxed) != next_seq;
        let is_published =
            self.followed.load(Ordering::Relaxed) != version || followed_mark != mark;
        let finds_news = || {
            // What somebody has died over handing to the base file only a walk tells.
            let whole = !self.stage.attachment().pool().may_be_relinked(self.file)?;
            Ok::<_, Error>((shared || walk.is_for_one()) && whole && self.follow_news(next_seq)?)
        };
        if is_new && !finds_news()? {
            self.rebuild_by(guard, next_seq, walk)?;
        } else if is_published {
            // What is new may be retired already.
            self.leave_out(self.stage.attachment.pool().seen_retired(self.file)?)?;
        }
        if guard.end()?.is_none() {
            guard.set_end(self.look().overlay.size())?;
        }
        self.followed.store(version, Ordering::Relaxed);
        if followed_mark != mark {
            self.followed_mark.store(mark, Ordering::Release);
        }
        Ok(())
    }

    /// Makes the overlay anew, from the log alone.
    pub(super) fn rebuild(&self, guard: &FileGuard<'_, M>, next_seq: u64) -> Result<()> {
        self.rebuild_by(guard, next_seq, &mut Walk::default())
    }

    fn rebuild_by(&self, guard: &FileGuard<'_, M>, next_seq: u64, walk: &mut Walk) -> Result<()> {
        let pool = self.stage.attachment.pool();
        let retired = pool.seen_retired(self.file)?;
        guard.takes_long();
        let found = walk.over(pool)?;
        let mut ops = VecDeque::new();
        let mut committed = 0;
        for replay in found.records(pool, self.file) {
            let replay = replay?;
            // Only what has nothing uncommitted before it can be published.
            if replay.committed && ops.back().is_none_or(|(seq, _)| *seq == committed) {
                committed = replay.seq;
            }
            ops.push_back((replay.seq, replay.op));
        }
        let base_size = self.base.size()?;
        let overlay = Overlay::of(base_size, ops.iter().map(|(_, op)| *op));
        guard.set_end(overlay.size())?;
        let mut view = self.change();
        self.known_seq.store(next_seq, Ordering::Relaxed);
        let committed = view.committed.max(committed);
        let gone = view.ops_up_to(retired);
        *view = View {
            ops,
            overlay,
            waiting: VecDeque::new(),
            committed,
            durable: view.durable.max(next_seq.saturating_sub(1)),
            commit: view.commit.max(committed),
            covered: CoveredPages::new(pool),
        };
        drop(view);
        if gone > 0 {
            self.stage.retired(gone);
            self.stage.left_out.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Runs an operation; when space runs out, publishes and tries again. Fails with `ENOSPC` when that
    /// did not help, with nothing of the operation done.
    pub(super) fn with_room<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        // A child must not even wait for locks that some thread of its parent held at the fork.
        self.stage.attachment.ensure_current()?;
        match operation() {
            Err(Error::Pool(full)) if super::error::is_pressure(&full) => {
                self.after_making_room(full, &operation)
            }
            result => {
                self.collect();
                result
            }
        }
    }

    /// [`StagedFile::with_room`] of an operation that found none. Apart from it, as what this keeps in mind would be prepared
    /// by each operation otherwise.
    #[cold]
    #[inline(never)]
    fn after_making_room<T>(
        &self,
        found: adit_pool::Error,
        operation: &dyn Fn() -> Result<T>,
    ) -> Result<T> {
        let mut found = Some(Error::Pool(found));
        let mut in_vain = 0;
        let mut waited = 0;
        let mut rooms = 0;
        let mut others = true;
        while rooms < ROOMS {
            let full = match found.take().map_or_else(operation, Err) {
                Err(Error::Pool(error)) if super::error::is_pressure(&error) => error,
                result => {
                    self.collect();
                    return result;
                }
            };
            // The logs have a limit of their own.
            let growing_helps = matches!(full, adit_pool::Error::Full { .. });
            // Once is enough: where others take what comes back, the pool is full.
            if growing_helps && core::mem::take(&mut others) && self.stage.others_made_room()? {
                continue;
            }
            if growing_helps && self.stage.grow(Growth::Ahead) {
                continue;
            }
            let relief = self.relieve()?;
            rooms += usize::from(relief != Relief::Busy);
            // Nothing found may mean that another thread has just made the room.
            in_vain = if relief == Relief::Room {
                0
            } else {
                in_vain + 1
            };
            // Threads that take each other's room get there by having more of it.
            if in_vain < 3 && rooms % SHARED_ROOMS != SHARED_ROOMS - 1 {
                continue;
            }
            if growing_helps && self.stage.grow(Growth::Needed) {
                in_vain = 0;
            } else if relief == Relief::Busy && waited < WAITS {
                // What the other one publishes may be all the room that can be had.
                waited += 1;
                adit_pmem::rest(WAIT);
            } else if in_vain >= 3 {
                break;
            }
        }
        // Where a sync has failed meanwhile, no room would have helped.
        let sound = self.stage.attachment.pool().medium().sound();
        sound.map_err(adit_pool::Error::from)?;
        Err(Error::NoSpace)
    }

    /// Gives back what another process has published for us: nobody else can, and others may need it.
    /// The operation before is done, so a failure has to wait for the next one to be told.
    fn collect(&self) {
        if self.stage.left_out.load(Ordering::Relaxed)
            && self.stage.is_worth_it()
            && self.stage.left_out.swap(false, Ordering::Relaxed)
        {
            let _ = self.stage.make_room();
        }
    }

    /// Publishes and frees what can be.
    pub(super) fn relieve(&self) -> Result<Relief> {
        let published = match self.publish(self.mode.under_pressure()) {
            // No room for the commit; what is committed already may make some.
            Err(Error::Pool(error)) if super::error::is_pressure(&error) => {
                self.publish(Scope::Committed)
            }
            published => published,
        };
        let (records, publishing) = match published {
            Ok(published) => (published.records, false),
            Err(Error::Publishing { .. }) => (0, true),
            // Somebody has published all of it: what it took in the pool is to be had.
            Err(Error::Taken) => (0, false),
            Err(error) => return Err(error),
        };
        let freed = records + self.release_recycled()? + self.stage.make_room()?;
        Ok(match freed {
            0 if publishing || self.is_settling() => Relief::Busy,
            0 => Relief::Nothing,
            _ => Relief::Room,
        })
    }

    /// Whether another thread waits for a device, and what it has logged can be published when that is over.
    fn is_settling(&self) -> bool {
        let view = self.look();
        let commits = view.commit > view.committed && view.begins_up_to(view.commit);
        commits || !view.waiting.is_empty()
    }
}

/// A walk over the logs of a pool, made when the first file needs it. Of a file that was locked before, and is
/// still, it has seen every record. Who has several files locked says of all of them that he takes long.
#[derive(Default)]
pub(super) struct Walk {
    found: Option<Recovery>,
    of_many: bool,
}

impl Walk {
    /// For so many files.
    pub(super) fn of(files: usize) -> Self {
        Self {
            found: None,
            of_many: files > 1,
        }
    }

    /// Whether the ends of the logs are looked at first. One after the other, several files would each look at what was
    /// written to all of them.
    fn is_for_one(&self) -> bool {
        !self.of_many
    }

    fn over<M: Medium>(&mut self, pool: &Pool<M>) -> Result<&Recovery> {
        let found = match self.found.take() {
            Some(found) => found,
            None => {
                #[cfg(test)]
                walks::begins();
                let found = pool.scan()?;
                // Others may have logged what they still wait for: from here on all of it is durable.
                pool.settle()?;
                found
            }
        };
        Ok(self.found.insert(found))
    }
}

/// How many walks a test has made, and what happens in the next one.
#[cfg(test)]
pub(super) mod walks {
    use std::cell::{Cell, RefCell};

    type Event = Box<dyn FnOnce()>;

    thread_local!(static WALKS: Cell<u32> = const { Cell::new(0) });
    thread_local!(static MEANWHILE: RefCell<Option<Event>> = const { RefCell::new(None) });

    pub(super) fn begins() {
        WALKS.set(WALKS.get() + 1);
        if let Some(event) = MEANWHILE.take() {
            event();
        }
    }

    /// What happens when this thread begins its next walk.
    pub(in crate::staged) fn meanwhile(event: impl FnOnce() + 'static) {
        MEANWHILE.set(Some(Box::new(event)));
    }

    pub(in crate::staged) fn so_far() -> u32 {
        WALKS.get()
    }
}

/// What was found under pressure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Relief {
    /// Room, by now.
    Room,
    /// None, but somebody else publishes, or makes durable what can be published then.
    Busy,
    /// None.
    Nothing,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
