//! A promoted open file description: the mapping it is served from, and who owns its offset.
//!
//! The offset is either ours or the kernel's. It becomes ours once, when the description is promoted
//! in a process with one thread; it goes back to the kernel for ever (it is *handed over*) before
//! anyone else could use it: fork, vfork, spawn, exec, a duplicate passed over a socket, a call that
//! moves the kernel's offset. From then on sequential calls go to the kernel and positional ones may
//! still be served, because mapping and page cache are one. Only of a [`Writer`] it comes back, when
//! forked children were all who could use it ([`crate::children`]), or a call that copies ([`crate::copies`]); and with
//! forked children it can be in common before any of them uses it ([`Common`]).
//!
//! Modes other than `posix` promote at open what the program may write; such a description is backed by
//! a [`Writer`] in the place of a mapping.
//!
//! Otherwise the kernel has what the design first had in memory shared across `fork`: it already shares an offset between
//! processes, survives the death of any of them, and needs no lock.
//!
//! # Safety
//! The arena is anonymous mappings of `Ofd` cells that are never unmapped and whose cells are
//! initialised (all zero is a valid `Ofd`) before their address leaves [`allocate`].
#![allow(unsafe_code)]

use crate::children::{self, Common};
use crate::lock::Word;
use crate::process::{self, With};
use crate::signal::engine;
use crate::times::{self, ONE_SETTLES, STORED};
use crate::writer::Writer;
use crate::{fds, init, stage, sys};
use adit_store::direct::DirectFile;
use adit_store::registry::FileSlot;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use rustix::io::Errno;

/// The kernel owns the offset.
const HANDED: i64 = -1;
/// The offset is on its way to the kernel.
const HANDING: i64 = -2;
/// It is in [`Common`], or about to be found there.
const MOVED: i64 = -3;

/// User counters are spread over this many cache lines so that threads do not meet.
const SHARDS: usize = 8;

#[repr(align(64))]
struct Shard(AtomicU32);

/// What serves a description.
pub(crate) enum Backing {
    /// A mapping of the file.
    Direct(DirectFile),
    /// The pool, or the kernel with what the mode adds to its promise.
    Writer(Writer),
}

// SAFETY: the backing is written before the cell is published and dropped after its last user left;
// in between only shared references to it, which is itself Sync, exist. The rest is atomic.
unsafe impl Sync for Ofd {}

/// A promoted description.
#[repr(align(64))]
pub(crate) struct Ofd {
    offset: AtomicI64,
    /// What forked children have in common with this process, or null: the offset is there, then.
    common: AtomicPtr<Common>,
    /// Whose turn it is to move the offset: see [`Ofd::turn`].
    turn: Word,
    /// Descriptors of this process that name it.
    names: AtomicU32,
    /// Whether mapped stores have not reached the file's times ([`times::STORED`]), and how many threads are just
    /// settling them.
    stored: AtomicU32,
    /// Set once another process may have the description, and change its flags.
    shared: AtomicU32,
    /// How often the last name has gone, and whoever left last has unmapped then, together: odd in between. Who saw
    /// an earlier life of the cell end unmaps nothing of a later one.
    closing: AtomicU32,
    /// Which cell this is.
    index: AtomicU32,
    next_free: AtomicU32,
    /// Initialised from `allocate` until the last user has left after the last name.
    backing: UnsafeCell<MaybeUninit<Backing>>,
    /// Where the registry records this file; without it nobody would see to its times later.
    slot: UnsafeCell<Option<FileSlot>>,
    users: [Shard; SHARDS],
}

/// Where this thread counts itself as a user.
#[inline]
fn shard_of_this_thread() -> usize {
    let word = sys::thread_word();
    ((word >> 12) ^ (word >> 18)) % SHARDS
}

/// Whether [`Ofd::closing`] says that what serves the cell is on its way out.
fn is_closing(turn: u32) -> bool {
    turn & 1 != 0
}

/// Where the next sequential byte is.
pub(crate) enum Offset {
    /// Ours, at this position.
    At(u64),
    /// The kernel's.
    Handed,
}

/// Keeps a description's mapping in place while a call uses it.
pub(crate) struct Users<'a> {
    ofd: &'a Ofd,
    shard: usize,
}

impl core::ops::Deref for Users<'_> {
    type Target = Ofd;
    #[inline]
    fn deref(&self) -> &Ofd {
        self.ofd
    }
}

impl Users<'static> {
    /// Stays in use until the same thread takes it back with [`Users::again`].
    pub(crate) fn stay(self) -> *const Ofd {
        let ofd = self.ofd;
        core::mem::forget(self);
        ofd
    }

    /// Takes back what stayed.
    ///
    /// # Safety
    /// [`Users::stay`] gave the address to this thread, which has not taken it back yet.
    pub(crate) unsafe fn again(ofd: *const Ofd) -> Self {
        // SAFETY: cells are never unmapped, and this one is in use.
        let ofd = unsafe { &*ofd };
        let shard = shard_of_this_thread();
        Self { ofd, shard }
    }
}

/// See [`Ofd::turn`].
pub(crate) struct Turn<'a> {
    ofd: &'a Ofd,
    /// Handlers that waited run when the turn is given back.
    _inside: engine::Inside,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.ofd.turn.give_back();
    }
}

impl Users<'_> {
    /// In a forked child: other threads that used the mapping in the parent do not exist here, and the
    /// parent's record of the file is not this process's, so overwrites go to the kernel. This use is
    /// counted no more either. A copy that this thread is in the middle of, where a handler of signals forks, it goes
    /// on with here, too; a thread that counts in the same place stays counted for ever. (No handler forks in the engine.)
    pub(crate) fn in_new_process(self) {
        self.ofd.renew();
        let own = self.file().map(|_| self.shard);
        for (nth, shard) in self.ofd.users.iter().enumerate() {
            let counted = match own {
                Some(own) if own == nth => shard.0.load(Ordering::SeqCst).saturating_sub(1),
                _ => 0,
            };
            shard.0.store(counted, Ordering::SeqCst);
        }
        core::mem::forget(self);
    }

    /// Uncounts a descriptor; after the last one the mapping goes as soon as nobody uses it, so that
    /// nothing of ours outlives the program's own close (PROTOCOLS F1).
    ///
    /// Who is in a call just then may have begun it with this number, and map, seek or settle by it when it leads to another
    /// file already. With the last name that does no harm, as all of it goes; so the other names of what is mapped go, too.
    pub(crate) fn drop_name(self, fd: i32) {
        if self.drop_one(fd) || self.file().is_none() || !self.has_others() {
            return;
        }
        let leads_here = |word: &AtomicU64| word.load(Ordering::SeqCst) == self.word();
        for name in fds::all().filter(|name| fds::word(*name).is_some_and(leads_here)) {
            self.hand_over_offset(name);
            if fds::change(name, self.word(), 0) {
                self.drop_one(name);
            }
        }
    }

    /// Whether it was the last one.
    fn drop_one(&self, fd: i32) -> bool {
        let last = self.names.fetch_sub(1, Ordering::SeqCst) == 1;
        if last {
            self.leave_number();
            self.settle(fd);
            if let Some(slot) = self.slot() {
                slot.close(fd);
            }
            self.end();
        }
        last
    }

    /// Whether anybody is counted beside this one.
    fn has_others(&self) -> bool {
        let counted = |shard: &Shard| shard.0.load(Ordering::SeqCst);
        self.users.iter().map(counted).sum::<u32>() > 1
    }

    /// Ends the mapping. Who left a copy by `siglongjmp` out of a signal handler, or was cancelled in
    /// it, stays counted as a user for ever; so the file is not waited for: where anybody else is still
    /// counted, only the addresses stay, and a copy under way faults and is redone by the kernel.
    fn end(&self) {
        self.ofd.closing.fetch_add(1, Ordering::SeqCst);
        if self.has_others()
            && let Some(file) = self.file()
        {
            file.revoke();
        }
    }
}

impl Drop for Users<'_> {
    #[inline]
    fn drop(&mut self) {
        self.ofd.users[self.shard].0.fetch_sub(1, Ordering::SeqCst);
        let turn = self.ofd.closing.load(Ordering::SeqCst);
        if is_closing(turn) && self.ofd.is_idle() {
            self.ofd.retire(turn);
        }
    }
}

impl Ofd {
    /// The word that names this description in the table.
    pub(crate) fn word(&self) -> u64 {
        &raw const *self as u64
    }

    #[inline]
    fn backing(&self) -> &Backing {
        // SAFETY: nobody gets at an `Ofd` but through `Users`, or while he retires it, so the backing has not been dropped.
        unsafe { (*self.backing.get()).assume_init_ref() }
    }

    /// The mapped file, if a mapping is what serves the description.
    #[inline]
    pub(crate) fn file(&self) -> Option<&DirectFile> {
        match self.backing() {
            Backing::Direct(file) => Some(file),
            Backing::Writer(_) => None,
        }
    }

    /// What serves the description in its place.
    #[inline]
    pub(crate) fn writer(&self) -> Option<&Writer> {
        match self.backing() {
            Backing::Direct(_) => None,
            Backing::Writer(writer) => Some(writer),
        }
    }

    /// Announces a user of the mapping.
    #[inline]
    pub(crate) fn enter(&self) -> Users<'_> {
        let shard = shard_of_this_thread();
        self.users[shard].0.fetch_add(1, Ordering::SeqCst);
        Users { ofd: self, shard }
    }

    /// What forked children have in common with this process.
    #[inline]
    pub(crate) fn common(&self) -> Option<&'static Common> {
        // SAFETY: null, or one of a page that stays; see `children`.
        unsafe { self.common.load(Ordering::Acquire).as_ref() }
    }

    /// Where the offset is.
    #[inline]
    fn place(&self) -> &AtomicI64 {
        self.common().map_or(&self.offset, |common| &common.offset)
    }

    /// The current offset, waiting out a hand-over on another thread, or in another process.
    #[inline]
    pub(crate) fn offset(&self) -> Offset {
        loop {
            match self.place().load(Ordering::Acquire) {
                HANDED => return Offset::Handed,
                HANDING | MOVED => self.wait_for_the_offset(),
                at => return Offset::At(at as u64),
            }
        }
    }

    #[cold]
    fn wait_for_the_offset(&self) {
        let _ = sys::sched_yield();
        if self.common().is_some_and(Common::is_stuck) {
            for (fd, other) in fds::each_promoted() {
                if core::ptr::eq(&*other, self) {
                    self.hand_over_offset(fd);
                }
            }
        }
    }

    /// Has the offset to itself among the threads of this process until the turn is dropped: sequential calls are one
    /// after the other, as in the kernel. `None` where there is nobody else, or the kernel sees to it. Only inside the
    /// engine, so that no handler waits for the call that it interrupts, or leaves it by a jump.
    #[inline]
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        // Whoever has the turn in a parent, or is just handing over, never ends that here.
        if init::single_threaded() || process::is_untold_child() {
            return None;
        }
        self.turn_among_threads()
    }

    fn turn_among_threads(&self) -> Option<Turn<'_>> {
        // While children have the file, or on its way to the pool, it may come back within a call.
        let comes_back = || self.writer().is_some_and(|writer| !writer.is_kernels());
        if matches!(self.offset(), Offset::Handed) && !comes_back() {
            return None;
        }
        Some(self.take_turn())
    }

    /// The same to take a number away: also where the kernel has the offset by now, as who had the turn before that may
    /// have a place of his own in the file.
    pub(crate) fn turn_to_leave(&self) -> Option<Turn<'_>> {
        let alone = init::single_threaded() || process::is_untold_child();
        (!alone).then(|| self.take_turn())
    }

    fn take_turn(&self) -> Turn<'_> {
        let inside = engine::enter();
        self.turn.take();
        Turn {
            ofd: self,
            _inside: inside,
        }
    }

    /// Moves the offset from `from` to `to` unless someone moved it meanwhile.
    #[inline]
    pub(crate) fn advance(&self, from: u64, to: u64) -> bool {
        self.place()
            .compare_exchange(from as i64, to as i64, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Has the offset in common with children that are about to be forked; false where there is no room. The caller
    /// holds the writer's state.
    pub(crate) fn have_in_common(&self, appends: bool) -> bool {
        if self.common().is_some() {
            return true;
        }
        let Some(common) = Common::new(HANDED, appends) else {
            return false;
        };
        sys::with_signals_blocked(|| {
            loop {
                match self.offset.load(Ordering::Acquire) {
                    HANDING | MOVED => {
                        let _ = sys::sched_yield();
                    }
                    at => {
                        common.offset.store(at, Ordering::SeqCst);
                        if self.advance(at as u64, MOVED as u64) {
                            break;
                        }
                    }
                }
            }
            let common = core::ptr::from_ref(common).cast_mut();
            self.common.store(common, Ordering::SeqCst);
        });
        true
    }

    /// Whether a forked child has asked for the file.
    pub(crate) fn is_wanted(&self) -> bool {
        self.common().is_some_and(Common::is_wanted)
    }

    /// Moves the kernel's offset from `from` back to `to`, unless someone moved it meanwhile.
    pub(crate) fn give_back_in_kernel(&self, fd: i32, from: u64, to: u64) {
        let seek = |to: u64, whence: i32| sys::lseek(fd as usize, to as usize, whence as usize);
        if seek(0, libc::SEEK_CUR) == Ok(from as usize) {
            let _ = seek(to, libc::SEEK_SET);
        }
    }

    /// Gives the offset back to the kernel, for ever, and what is staged with it. `fd` must name this
    /// description. A failure leaves all as it was, because bytes in the pool are safer than half of
    /// them outside; whoever then went on in the kernel would find an old file.
    pub(crate) fn hand_over(&self, fd: i32) -> Result<(), i32> {
        match self.writer() {
            Some(writer) => writer.unstage(self, fd),
            None => {
                self.hand_over_offset(fd);
                Ok(())
            }
        }
    }

    /// The number is about to be closed, and may be another file's soon. Who holds this description for a walk over all
    /// of them publishes nothing through it any more, and moves no offset.
    fn leave_number(&self) {
        if let Some(writer) = self.writer() {
            writer.ends(self);
        }
        let own = |at: i64| (at >= 0).then_some(HANDED);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        while self.offset.fetch_update(set, fetch, own) == Err(HANDING) {
            let _ = sys::sched_yield();
        }
    }

    /// Gives the offset alone back to the kernel.
    pub(crate) fn hand_over_offset(&self, fd: i32) {
        while self.place().load(Ordering::Acquire) != HANDED {
            sys::with_signals_blocked(|| match self.common() {
                Some(common) => hand_over_common(common, fd),
                None => self.hand_over_own(fd),
            });
        }
    }

    fn hand_over_own(&self, fd: i32) {
        loop {
            match self.offset.load(Ordering::Acquire) {
                HANDED | MOVED => return,
                HANDING => {
                    let _ = sys::sched_yield();
                }
                at => {
                    let taken = self.offset.compare_exchange(
                        at,
                        HANDING,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    if taken.is_ok() {
                        let _ = sys::lseek(fd as usize, at as usize, libc::SEEK_SET as usize);
                        self.offset.store(HANDED, Ordering::Release);
                        return;
                    }
                }
            }
        }
    }

    /// Takes the offset from the kernel. The caller vouches that nobody else can be using it, but a child that asks for
    /// the file first.
    pub(crate) fn take_offset(&self, fd: i32) -> bool {
        let take = || {
            let at = sys::lseek(fd as usize, 0, libc::SEEK_CUR as usize);
            at.is_ok_and(|at| self.advance(HANDED as u64, at as u64))
        };
        self.unless_wanted(take).unwrap_or(false)
    }

    /// Takes `O_APPEND` off, with which positional writes would append, before the file is staged. `ECHILD` where a child
    /// asks for the file: it finds the description as the program made it.
    pub(crate) fn take_append_off(&self, fd: i32, appends: bool) -> rustix::io::Result<()> {
        self.unless_wanted(|| stage::set_append(fd, appends, false))
            .unwrap_or(Err(Errno::CHILD))
    }

    /// Gives `O_APPEND` back, if the program had asked for it. A child that asks for the file does so itself, and may
    /// have changed it since.
    pub(crate) fn give_append_back(&self, fd: i32, appends: bool) {
        let _ = self.unless_wanted(|| stage::set_append(fd, appends, true));
    }

    /// Does what a child that asks for the file waits for. One that has asked is not waited for.
    fn unless_wanted<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        match self.common() {
            None => Some(work()),
            Some(common) if common.is_wanted() => None,
            Some(common) => sys::with_signals_blocked(|| {
                let _right = common.lock();
                (!common.is_wanted()).then(work)
            }),
        }
    }

    /// In a child, which has used nothing of it: asks for the file. Afterwards the kernel has all of it, for both.
    pub(crate) fn ask_the_parent(&self, fd: i32) -> Result<(), i32> {
        self.common()
            .map_or_else(|| stage::visit(fd), |common| ask_for(common, fd))
    }

    /// Notes that another process is about to have the description.
    pub(crate) fn share(&self, fd: i32, with: With) -> Result<(), i32> {
        // A command does not get it, but may look at the file, and this process goes on with it.
        if let Some(writer) = self.writer()
            && with != With::Program
            && with.ends(fd)
        {
            return writer.show(self, fd);
        }
        self.shared.store(1, Ordering::SeqCst);
        match self.writer() {
            Some(writer) if with == With::Child => writer.share_with_child(self, fd),
            Some(writer) if with == With::Vfork => writer.share_with_vfork_child(self, fd),
            // What this process was forked with, and the program does not get, is nobody's business.
            Some(writer) if writer.is_the_parents() && with.ends(fd) => Ok(()),
            _ => {
                if let Some(common) = self.common() {
                    common.pass_on();
                }
                self.hand_over(fd)
            }
        }
    }

    /// Whether another process has made positional writes append, too. Our own `fcntl` releases the
    /// description; theirs is seen by nobody, so it is asked.
    #[inline]
    pub(crate) fn appends(&self, fd: i32) -> bool {
        self.shared.load(Ordering::Relaxed) != 0
            && sys::fcntl(fd as usize, libc::F_GETFL as usize, 0)
                .is_ok_and(|flags| flags & libc::O_APPEND as usize != 0)
    }

    /// Where the registry records this file, if it does.
    #[inline]
    pub(crate) fn slot(&self) -> Option<&FileSlot> {
        // SAFETY: written before the cell is published and while nobody else runs (after a fork).
        unsafe { (*self.slot.get()).as_ref() }
    }

    /// Notes that the file was changed by stores, which no kernel has seen.
    #[inline]
    pub(crate) fn note_store(&self, slot: &FileSlot) {
        if self.stored.load(Ordering::Relaxed) & STORED == 0 {
            self.note_first_store();
        }
        if slot.stored_now() {
            self.note_mark();
        }
    }

    #[cold]
    fn note_first_store(&self) {
        if self.stored.fetch_or(STORED, Ordering::SeqCst) & STORED == 0 {
            times::one_more_pending();
        }
    }

    /// The mark was just set: a settlement that saw no mark may have taken what was noted here before, and nobody would
    /// settle this store.
    #[cold]
    fn note_mark(&self) {
        fence(Ordering::SeqCst);
        if self.stored.load(Ordering::SeqCst) & STORED == 0 {
            self.note_first_store();
        }
    }

    /// Brings the file's times up to its stores, unless the monitor has done so. What other threads have begun of that
    /// is over when it returns: the program may be about to set the times itself.
    pub(crate) fn settle(&self, fd: i32) {
        if self.stored.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.stored.fetch_add(ONE_SETTLES, Ordering::SeqCst);
        if self.stored.fetch_and(!STORED, Ordering::SeqCst) & STORED != 0 {
            if let Some(slot) = self.slot() {
                slot.settle(fd);
            }
            times::one_less_pending();
        }
        let less = |stored: u32| stored.checked_sub(ONE_SETTLES);
        let _ = self
            .stored
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        times::wait_for_others(&self.stored);
    }

    /// Counts one more descriptor that names this description; false where another thread has uncounted the last one.
    pub(crate) fn add_name(&self) -> bool {
        let more = |names: u32| (names > 0).then_some(names + 1);
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        self.names.fetch_update(set, fetch, more).is_ok()
    }

    fn is_idle(&self) -> bool {
        fence(Ordering::SeqCst);
        let is_left = |shard: &Shard| shard.0.load(Ordering::SeqCst) == 0;
        self.users.iter().all(is_left)
    }

    /// Drops what serves the description, which was idle after it was seen to be closing at this turn.
    fn retire(&self, turn: u32) {
        let next = turn.wrapping_add(1);
        if self
            .closing
            .compare_exchange(turn, next, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            let _inside = engine::enter();
            if let Some(common) = self.common() {
                common.leave();
            }
            if let Some(writer) = self.writer() {
                writer.is_not_the_parents();
            }
            // SAFETY: the last name and the last user are gone, and this thread won the right to
            // drop; a late reader of a stale word finds the word changed and does not look.
            unsafe { (*self.backing.get()).assume_init_drop() };
            release(self);
        }
    }

    /// See [`Users::in_new_process`].
    fn renew(&self) {
        self.turn.renew();
        self.stored.fetch_and(STORED, Ordering::SeqCst);
        // SAFETY: this is the only thread of the process.
        unsafe { *self.slot.get() = None };
        if let Some(writer) = self.writer() {
            // SAFETY: as above.
            unsafe { writer.in_new_process(self.common().is_some()) };
            self.offset.store(HANDED, Ordering::SeqCst);
        }
    }

    /// Moves the offset from `from` behind an append that ended at `end`; where others have moved it
    /// meanwhile, not back.
    pub(crate) fn follow(&self, from: u64, end: u64) {
        if !self.advance(from, end) {
            let further = |at| (0..end as i64).contains(&at).then_some(end as i64);
            let _ = self
                .place()
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, further);
        }
    }
}

/// In a child, which has used nothing of it: asks for the file of what it has in common with its parent.
pub(crate) fn ask_for(common: &Common, fd: i32) -> Result<(), i32> {
    common.want();
    // A command that another thread starts just now may get it, and was not seen to.
    if process::passes_on() && !children::is_untold() {
        common.pass_on();
    }
    stage::visit(fd)?;
    // Who finds the offset handed over has waited for whoever just takes it back, and did not see that it is wanted.
    sys::with_signals_blocked(|| hand_over_common(common, fd));
    Ok(())
}

/// Gives an offset that several processes have in common to the kernel, and `O_APPEND` with it. Who died with that half
/// done is followed.
fn hand_over_common(common: &Common, fd: i32) {
    let _right = common.lock();
    loop {
        let at = common.offset.load(Ordering::Acquire);
        match at {
            HANDED => return,
            HANDING => {}
            at => {
                common.handing.store(at, Ordering::SeqCst);
                if common
                    .offset
                    .compare_exchange(at, HANDING, Ordering::AcqRel, Ordering::Acquire)
                    .is_err()
                {
                    continue;
                }
            }
        }
        let _ = stage::set_append(fd, common.appends(), true);
        let at = common.handing.load(Ordering::SeqCst);
        let _ = sys::lseek(fd as usize, at as usize, libc::SEEK_SET as usize);
        common.offset.store(HANDED, Ordering::Release);
        return;
    }
}

/// Cells come in blocks, because a program may have little address space to spare.
const BLOCK: usize = 4096;
/// With so many blocks cells do not run out before the kernel's limit on mappings (65,530), for descriptions
/// that are mapped. Writers need no mapping, and without a cell they would be without their mode's promise.
const BLOCKS: usize = 32;

static ARENA: [AtomicPtr<Ofd>; BLOCKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCKS];
/// Head of the free list: index + 1 in the low half, a tag against reuse in the high half.
static FREE: AtomicU64 = AtomicU64::new(0);
/// Cells that were ever handed out.
static USED: AtomicU32 = AtomicU32::new(0);

/// The cell with this index, of which there may be no block yet.
fn cell(index: u32) -> Option<*mut Ofd> {
    let block = ARENA.get(index as usize / BLOCK)?;
    let mut start = block.load(Ordering::Acquire);
    if start.is_null() {
        let fresh = adit_store::direct::anonymous(BLOCK * size_of::<Ofd>())?.cast::<Ofd>();
        start = match block.compare_exchange(start, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => other,
        };
    }
    // SAFETY: a block has so many cells.
    Some(unsafe { start.add(index as usize % BLOCK) })
}

/// A fresh description with no mapping yet, named once. `offset` is `None` when the kernel keeps it. It is in use: as
/// soon as a descriptor is its name, another thread may close that.
pub(crate) fn allocate(
    backing: Backing,
    slot: Option<FileSlot>,
    offset: Option<u64>,
) -> Option<Users<'static>> {
    let index = match pop_free() {
        Some(index) => index,
        None => first_use()?,
    };
    let cell = cell(index)?;
    // SAFETY: the cell is free, so only late readers of a stale word look at it, through its atomics.
    unsafe {
        (*(*cell).backing.get()).write(backing);
        (*cell).slot.get().write(slot);
        (*cell)
            .offset
            .store(offset.map_or(HANDED, |at| at as i64), Ordering::SeqCst);
        (*cell)
            .common
            .store(core::ptr::null_mut(), Ordering::SeqCst);
        (*cell).turn.renew();
        (*cell).index.store(index, Ordering::Relaxed);
        (*cell).names.store(1, Ordering::SeqCst);
        (*cell).stored.store(0, Ordering::SeqCst);
        (*cell).shared.store(0, Ordering::SeqCst);
        Some((*cell).enter())
    }
}

/// A cell that was never handed out. Its block is there before it is taken: where there is no memory for one,
/// no index is lost.
fn first_use() -> Option<u32> {
    let mut index = USED.load(Ordering::SeqCst);
    loop {
        cell(index)?;
        match USED.compare_exchange(index, index + 1, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Some(index),
            Err(seen) => index = seen,
        }
    }
}

fn pop_free() -> Option<u32> {
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        let index = (head as u32).checked_sub(1)?;
        // SAFETY: cells in the free list were handed out before, so they are there.
        let next = unsafe { (*cell(index)?).next_free.load(Ordering::Acquire) };
        let new = ((head >> 32).wrapping_add(1) << 32) | u64::from(next);
        match FREE.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(index),
            Err(seen) => head = seen,
        }
    }
}

fn release(ofd: &Ofd) {
    let index = ofd.index.load(Ordering::Relaxed);
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        ofd.next_free.store(head as u32, Ordering::Release);
        let new = ((head >> 32).wrapping_add(1) << 32) | (u64::from(index) + 1);
        match FREE.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(seen) => head = seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors;
    use adit_pmem::MediumKind;
    use adit_store::direct::Adoption;
    use adit_store::staged::Mode;
    use std::sync::{Mutex, PoisonError};

    /// One test at a time has descriptions, as another would take the cells that it looks for.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A description that is mapped, in use.
    fn mapped(offset: Option<u64>) -> Users<'static> {
        let kind = MediumKind::Ram;
        let file = DirectFile::new(kind, 1 << 20, false, Adoption::for_medium(kind));
        allocate(Backing::Direct(file.expect("a window")), None, offset).expect("a cell")
    }

    fn fresh() -> Users<'static> {
        let writer = Writer::new(Mode::Sync, libc::O_WRONLY, false);
        allocate(Backing::Writer(writer), None, None).expect("a cell")
    }

    /// A description that one descriptor names, and nobody uses.
    fn named(fd: i32) {
        fds::set_promoted(fd, &fresh());
    }

    /// Whether the next description would get the cell of this one, whose file is gone, then.
    fn is_gone(ofd: *const Ofd) -> bool {
        let next = fresh();
        let is_it = core::ptr::eq(&*next, ofd);
        next.drop_name(-1);
        is_it
    }

    /// Another thread may close a descriptor at any time; here the close comes as soon as the description is reached, in
    /// each of the ways in which one is. What serves it has to stay until it is let go of, and no longer.
    #[test]
    fn what_is_closed_meanwhile_stays_until_it_is_let_go_of() {
        const FD: i32 = 1000;
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let by_number = || fds::promoted(FD).expect("promoted");
        let by_kind = || match fds::kind(FD) {
            fds::Kind::Promoted(ofd) => ofd,
            fds::Kind::Foreign | fds::Kind::Candidate(_) => panic!("promoted"),
        };
        let among_all = || {
            let this = fds::each_promoted().find(|(fd, _)| *fd == FD);
            this.expect("promoted").1
        };
        let ways: [&dyn Fn() -> Users<'static>; 3] = [&by_number, &by_kind, &among_all];
        for (nth, reach) in ways.into_iter().enumerate() {
            named(FD);
            let held = reach();
            let address = core::ptr::from_ref::<Ofd>(&held);
            descriptors::forget(FD);
            assert!(!is_gone(address), "way {nth} holds nothing");
            assert!(held.writer().is_some());
            assert!(!held.add_name(), "it has no name to be copied");
            drop(held);
            assert!(is_gone(address), "way {nth} holds for ever");
        }

        // Who was about to name it is not overtaken by a close either.
        let made = fresh();
        let address = core::ptr::from_ref::<Ofd>(&made);
        fds::set_promoted(FD, &made);
        descriptors::forget(FD);
        assert!(!is_gone(address));
        drop(made);
        assert!(is_gone(address));

        // Two may see that it is idle. The one that comes late must not end the cell's next life.
        named(FD);
        let turn = by_number().closing.load(Ordering::SeqCst) + 1;
        descriptors::forget(FD);
        let next = fresh();
        assert!(core::ptr::eq(&*next, address));
        fds::set_promoted(FD, &next);
        descriptors::forget(FD);
        next.retire(turn);
        assert!(!is_gone(address), "it is in use");
        drop(next);
        assert!(is_gone(address));

        // A child of fork counts from the start, also those that count themselves while it does.
        named(FD);
        let of_the_parents = by_number();
        by_number().in_new_process();
        assert!(of_the_parents.is_idle());
        core::mem::forget(of_the_parents);
        descriptors::forget(FD);
        assert!(is_gone(address));
    }

    /// Who is in a call by a number that goes could map by it what is another file's by then, and readers by the other
    /// number would find that.
    #[test]
    fn a_number_that_goes_under_a_call_takes_the_others_with_it() {
        const NUMBERS: [i32; 2] = [1001, 1002];
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let [one, other] = NUMBERS;
        let made = mapped(None);
        fds::set_promoted(one, &made);
        assert!(made.add_name());
        fds::set_promoted(other, &made);
        drop(made);
        descriptors::forget(one);
        let in_a_call = fds::promoted(other).expect("nobody was in a call");
        assert!(in_a_call.add_name());
        fds::set_promoted(one, &in_a_call);
        descriptors::forget(one);
        assert!(fds::promoted(other).is_none());
        assert!(!in_a_call.add_name());
    }

    /// A thread that uses the number goes by the kernel's offset from the call on until the table says otherwise.
    #[test]
    fn a_number_that_another_thread_may_use_begins_with_the_kernels_offset() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::spawn(|| {}).join().expect("a second thread");
        let file = sys::memfd_create(c"file".as_ptr() as usize, 0).expect("a file") as i32;
        fds::set_promoted(file, &mapped(Some(5000)));
        let ready = descriptors::ready_for_fcntl(file, libc::F_DUPFD, 0);
        assert_eq!(ready, Ok(()));
        let at = sys::lseek(file as usize, 0, libc::SEEK_CUR as usize);
        assert_eq!(at, Ok(5000));
        assert_eq!(descriptors::close(file), 0);
    }

    /// A number beyond the table is the kernel's, and so is the offset that it has in common with one in the table.
    #[test]
    fn a_number_beyond_the_table_is_no_name() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let file = sys::memfd_create(c"file".as_ptr() as usize, 0).expect("a file") as i32;
        let made = mapped(Some(5000));
        let address = core::ptr::from_ref::<Ofd>(&made);
        fds::set_promoted(file, &made);
        drop(made);
        descriptors::after_fcntl(file, libc::F_DUPFD, fds::LIMIT, fds::LIMIT as i32);
        let at = sys::lseek(file as usize, 0, libc::SEEK_CUR as usize);
        assert_eq!(at, Ok(5000));
        assert_eq!(descriptors::close(file), 0);
        assert!(is_gone(address));
    }
}
