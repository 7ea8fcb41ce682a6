//! A description that this process opened for writing, in the modes that stage; in mode `posix` one whose
//! appends may be worth it.
//!
//! | state | offset | reads | writes |
//! |---|---|---|---|
//! | fresh: nothing was written yet | ours | a mapping ([`crate::fresh`]), or the kernel, at our offset | first become one of the others |
//! | staged: the pool has the newest bytes | ours | the engine | the engine |
//! | the kernel's, until the last close | the kernel's | the kernel | the kernel, with `RWF_DSYNC` where the mode says so |
//! | watching: others have staged a declared file | ours | the engine | first become the kernel's |
//! | a parent's: inherited, and not used since | in common | first ask for the file, which makes it the kernel's | likewise |
//!
//! In mode `posix` a fresh description is on trial ([`crate::appends`]): the kernel writes and has the
//! offset, under the state's lock, until enough was appended; a staged one goes back to that, and one that
//! is the kernel's becomes foreign.
//!
//! A fork leaves everything as it is, but for the offset, which parent and child have in common then
//! ([`crate::children`]). A child that uses a description first says that it wants the file, and tries to open it: so whoever
//! stages it publishes, as for any opener. From then on the parent's is *lent*: fresh, but the kernel writes and has the
//! offset, until the children have ended. One that a call of the kernel's copies into is lent until that call has
//! returned ([`crate::copies`]).
//!
//! Of a declared file ([`crate::declared`]) every description has one of these, also one that only reads. As long as it
//! is fresh it looks before each call whether others have the file staged, and then stages it, too, or watches. Before
//! it becomes the kernel's, or is lent, the file is barred.
//!
//! The first write stages the file if it may be ([`crate::stage`]). Whatever needs the kernel to know
//! the file, or somebody else to have the description, first *unstages* it: all is published, the
//! lease is given back, and the kernel has the description for good. When the monitor takes the file
//! away for somebody who opened it, the engine says so at the next call; the file is fresh again, and
//! may be staged again when the other one has closed it.
//!
//! **Operations share the state's lock, changes of state exclude them.** So no call is half in the pool
//! and half in the kernel, and none is done twice: a call that finds the file taken away has done
//! nothing. Whatever the engine does not answer exactly as the kernel would, a bad buffer among them,
//! is answered by unstaging and doing it in the kernel.
//!
//! # Safety
//! Program buffers are only used by the engine's guarded copies and by the kernel. The cells around the
//! state and the account are replaced in a forked child alone, by its only thread.
#![allow(unsafe_code)]

use crate::account::Account;
use crate::appends::Trial;
use crate::blocks::Blocks;
use crate::children::{Loan, Others, To};
use crate::data::{self, Vector};
use crate::fresh::Fresh;
use crate::ofd::{Ofd, Offset};
use crate::signal::engine;
use crate::stage::{self, Entry, Refusal, Staged};
use crate::stat::Logical;
use crate::{appends, children, copies, declared, descriptors, init, process, sys, together};
use adit_pmem::MediumKind;
use adit_store::registry::Reason;
use adit_store::staged::{AppendsOnly, Error, Mode, Place, Scope, Where};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

/// Calls that reach beyond here are the kernel's: file systems have limits, and it knows them.
const FARTHEST: u64 = data::CERTAIN as u64;

/// How often all files are committed before one of them is published, while others go on writing.
const GROUPS: usize = 8;

/// How often a file that must be staged is tried again while somebody has it open, every five milliseconds.
const VISIT: usize = 40;

/// How often a file is staged again after it was taken away: whoever shares it that often is served
/// better by the kernel.
const MOST_LOSSES: u32 = 16;

/// See the module.
pub(crate) struct Writer {
    state: UnsafeCell<RwLock<State>>,
    mode: Mode,
    /// Whether the program opened it for reading, and for writing.
    readable: bool,
    writable: bool,
    /// Whether others may stage the file at the same time, and where they would have it.
    declared: bool,
    entry: OnceLock<Option<Box<Entry>>>,
    /// Whether the program opened it with `O_APPEND`.
    appends: bool,
    /// Set once the program has synced or cut the file through it: what it writes between two syncs may belong together.
    transacts: AtomicBool,
    /// Whether the file can get a name when it has none.
    linkable: bool,
    /// Set when it was found to have no name, and cannot get one any more.
    nameless: AtomicBool,
    /// Set while the file, as the kernel has it, and its name are known to be durable.
    named: AtomicBool,
    losses: AtomicU32,
    /// In mode `posix`.
    trial: Option<Trial>,
    /// What the kernel writes before the file is staged.
    blocks: Blocks,
    /// Only a fresh description is lent.
    loan: Loan,
    /// Device and inode of the file, once forked children have the description.
    identity: [AtomicU64; 2],
    /// Set in a child as long as its state is the parent's: asked before the lock is taken.
    parents: AtomicBool,
    /// Calls of the kernel's under way that copy into the file, or use the offset: until they have returned, the
    /// description stays lent. A call that a signal handler or a cancellation ends stays counted, and the file the
    /// kernel's.
    calls: AtomicU32,
    /// Set while the kernel may hold bytes of a lent description that no `fsync` was about.
    bypassed: AtomicBool,
    /// Set while a mapping serves reads: asked before the lock is taken.
    mapped: AtomicBool,
    account: UnsafeCell<Account>,
}

// SAFETY: the cells are only written while no other thread exists; the lock inside is Sync.
unsafe impl Sync for Writer {}

enum State {
    Fresh(Fresh),
    Staged(Box<Staged>),
    Kernel,
    /// Of the process that forked this one, which may have staged it.
    Parents,
}

/// A program's buffers.
#[derive(Clone, Copy)]
pub(crate) enum Buffers {
    /// One.
    One(libc::iovec),
    /// A vector of them.
    Many(*const libc::iovec, i32),
}

impl Buffers {
    /// A buffer to fill.
    pub(crate) fn into(at: *mut c_void, len: usize) -> Self {
        Self::One(libc::iovec {
            iov_base: at,
            iov_len: len,
        })
    }

    /// A buffer to take from.
    pub(crate) fn from(at: *const c_void, len: usize) -> Self {
        Self::into(at.cast_mut(), len)
    }

    /// Nothing is to be moved, so no state matters.
    fn is_empty(&self) -> bool {
        matches!(self, Self::One(one) if one.iov_len == 0)
    }

    /// The kernel's read; at its own offset where `at` is -1.
    fn kernel_read(&self, fd: i32, at: i64) -> sys::Result {
        let (fd, position) = (fd as usize, at as usize);
        match *self {
            Self::One(one) if at < 0 => sys::read(fd, one.iov_base as usize, one.iov_len),
            Self::One(one) => sys::pread(fd, one.iov_base as usize, one.iov_len, position),
            Self::Many(parts, count) => {
                sys::preadv2(fd, parts as usize, count as usize, position, 0, 0)
            }
        }
    }

    /// The kernel's write; at its own offset where `at` is -1.
    fn kernel_write(&self, fd: i32, at: i64, durable: bool) -> sys::Result {
        let flags = if durable { libc::RWF_DSYNC as usize } else { 0 };
        let (fd, position) = (fd as usize, at as usize);
        let one = match self {
            Self::One(one) => one,
            Self::Many(parts, count) => {
                return sys::pwritev2(fd, *parts as usize, *count as usize, position, 0, flags);
            }
        };
        // Of lengths beyond its limit the kernel thinks differently in a vector.
        if durable && one.iov_len <= data::LONGEST {
            return sys::pwritev2(fd, &raw const *one as usize, 1, position, 0, flags);
        }
        let written = if at < 0 {
            sys::write(fd, one.iov_base as usize, one.iov_len)?
        } else {
            sys::pwrite(fd, one.iov_base as usize, one.iov_len, position)?
        };
        if durable {
            sys::fdatasync(fd)?;
        }
        Ok(written)
    }
}

/// A description's state, held still while the engine is asked about several files at once.
pub(crate) struct Held<'a> {
    state: RwLockReadGuard<'a, State>,
    lent: bool,
}

impl Held<'_> {
    /// The file, if it is staged.
    pub(crate) fn staged(&self) -> Option<&Staged> {
        match &*self.state {
            State::Staged(staged) => Some(staged),
            State::Fresh(_) | State::Kernel | State::Parents => None,
        }
    }

    /// Whether the kernel has the description, for good or until forked children have ended; or another process.
    pub(crate) fn is_kernels(&self) -> bool {
        self.lent || matches!(*self.state, State::Kernel | State::Parents)
    }
}

/// Why a description is the kernel's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The program goes on with it.
    ForGood,
    /// It is about to be closed.
    WithTheDescription,
}

/// Why the engine did not do a call.
enum Doubt {
    Engine(Error),
    /// It was not asked.
    Unserved,
    /// The base file has to be whole for it; afterwards the file may be staged again.
    Whole,
}

impl From<Error> for Doubt {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// Why a file is not staged now.
enum Unstaged {
    /// It will be asked again when it comes back. The offset is not ours to use.
    Lent,
    /// As [`stage::take`] says it; from then on the kernel has it for good, unless it must be staged.
    Refused(Refusal),
    /// It cannot be the kernel's either: what others have staged of it could not be published.
    Failed(i32),
}

/// What became of a call.
enum Answer<T> {
    Done(T),
    Failed(i32),
    /// Nothing was done, and the file is not staged any more, or was not.
    NotStaged,
}

impl<T> From<Result<(), i32>> for Answer<T> {
    /// What became of a call that had to give the file back first.
    fn from(given_back: Result<(), i32>) -> Self {
        match given_back {
            Ok(()) => Self::NotStaged,
            Err(errno) => Self::Failed(errno),
        }
    }
}

impl Writer {
    /// For a description that the program has just opened for writing with `flags`. Only what may be
    /// staged begins `fresh`.
    pub(crate) fn new(mode: Mode, flags: i32, fresh: bool) -> Self {
        let state = if fresh {
            State::Fresh(Fresh::new())
        } else {
            State::Kernel
        };
        Self {
            state: UnsafeCell::new(RwLock::new(state)),
            mode,
            readable: flags & libc::O_ACCMODE != libc::O_WRONLY,
            writable: flags & libc::O_ACCMODE != libc::O_RDONLY,
            declared: false,
            entry: OnceLock::new(),
            appends: flags & libc::O_APPEND != 0,
            transacts: AtomicBool::new(false),
            linkable: is_linkable(flags),
            nameless: AtomicBool::new(false),
            named: AtomicBool::new(false),
            losses: AtomicU32::new(0),
            trial: None,
            blocks: Blocks::none(),
            loan: Loan::new(),
            identity: [const { AtomicU64::new(0) }; 2],
            parents: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            bypassed: AtomicBool::new(false),
            mapped: AtomicBool::new(false),
            account: UnsafeCell::new(Account::new()),
        }
    }

    /// The file and its name were made durable: it need not be done before bytes are staged.
    pub(crate) fn has_durable_name(&self) {
        self.named.store(true, Ordering::Relaxed);
    }

    /// Of a file on this medium.
    pub(crate) fn on(self, kind: MediumKind) -> Self {
        Self {
            blocks: Blocks::new(self.mode, kind),
            ..self
        }
    }

    /// Of a declared file. What the kernel writes before a file is staged others would not know of, so it writes nothing.
    pub(crate) fn declared(self) -> Self {
        Self {
            declared: true,
            blocks: Blocks::none(),
            ..self
        }
    }

    /// Of mode `posix`: nothing is staged before the trial is over.
    pub(crate) fn on_trial(self, trial: Trial) -> Self {
        Self {
            trial: Some(trial),
            ..self
        }
    }

    fn account(&self) -> &Account {
        // SAFETY: see the module: the cell is not written while others look.
        unsafe { &*self.account.get() }
    }

    fn lock(&self) -> &RwLock<State> {
        // SAFETY: see the module: the cell is not written while others look.
        unsafe { &*self.state.get() }
    }

    fn look(&self) -> RwLockReadGuard<'_, State> {
        self.lock().read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the state still. Who holds several takes them in the order of the descriptions' addresses,
    /// and nothing else of a writer's meanwhile.
    pub(crate) fn hold(&self) -> Held<'_> {
        let state = self.look();
        Held {
            state,
            lent: self.loan.is_out(),
        }
    }

    fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.lock().write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the state to publish the file, which commits it. Where files are committed together the others are before,
    /// and nothing is written in between.
    fn change_committed(&self, ofd: &Ofd) -> RwLockWriteGuard<'_, State> {
        for _ in 0..GROUPS {
            together::before_publishing(ofd);
            let state = self.change();
            let waits = |staged: &Staged| init::together() && staged.file().has_uncommitted();
            if !matches!(&*state, State::Staged(staged) if waits(staged)) {
                return state;
            }
        }
        // What cannot be committed with the others is published by itself.
        self.change()
    }

    /// The number of the description is about to lead to something else. What could not be published is the monitor's,
    /// which has a descriptor of its own; who walks over all descriptions just now leaves this one alone.
    pub(crate) fn ends(&self, ofd: &Ofd) {
        self.be_told(ofd);
        let _inside = engine::enter();
        if !matches!(*self.look(), State::Kernel) {
            *self.change() = State::Kernel;
        }
    }

    /// In a forked child: what is staged is the parent's, and neither its memory nor its locks mean
    /// anything here. `in_common`: the two have the offset in common.
    ///
    /// # Safety
    /// The caller is the only thread of the process.
    pub(crate) unsafe fn in_new_process(&self, in_common: bool) {
        let state = if in_common {
            State::Parents
        } else {
            State::Kernel
        };
        // SAFETY: the caller's promise; the old value is forgotten, so that nothing of the parent's
        // attachment is dropped here.
        unsafe {
            mem::forget(mem::replace(&mut *self.state.get(), RwLock::new(state)));
            mem::forget(mem::replace(&mut *self.account.get(), Account::new()));
        }
        // Of two names of one description the second says nothing new.
        if in_common && !self.parents.swap(true, Ordering::SeqCst) {
            stage::STAGED.fetch_add(1, Ordering::SeqCst);
        }
        self.mapped.store(false, Ordering::SeqCst);
        self.loan.end(true);
        self.calls.store(0, Ordering::SeqCst);
        self.account().because(Reason::SharedOffset);
    }

    /// In a forked child, before [`Self::in_new_process`]: what it was to the parent counts no more.
    pub(crate) fn forget_the_parent(&self) {
        self.parents.store(false, Ordering::SeqCst);
    }

    /// The description is not the parent's any more, or this process has none of it any more.
    pub(crate) fn is_not_the_parents(&self) {
        if self.parents.swap(false, Ordering::SeqCst) {
            stage::STAGED.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// In a child that does not know yet that it is one: what another thread of its parent had locked would stay so for
    /// ever.
    fn be_told(&self, ofd: &Ofd) {
        if process::is_untold_child() {
            // SAFETY: a child has one thread until its handlers have run, and this one holds nothing of the state.
            unsafe { self.in_new_process(ofd.common().is_some()) };
        }
    }

    /// Asks for the file of a description that this process was forked with, before it uses it for the first time:
    /// afterwards the kernel has all of it, for both.
    pub(crate) fn ask_the_parent(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.be_told(ofd);
        if !self.parents.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _inside = engine::enter();
        let mut state = self.change();
        if let State::Parents = *state {
            ofd.ask_the_parent(fd)?;
            self.bar(fd)?;
            self.account().because(Reason::SharedOffset);
            *state = State::Kernel;
            self.is_not_the_parents();
            // Whoever has just asked the kernel about the file asks again.
            stage::GONE.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Device and inode of the file, once children have the description.
    pub(crate) fn identity(&self) -> (u64, u64) {
        let [device, inode] = &self.identity;
        (device.load(Ordering::SeqCst), inode.load(Ordering::SeqCst))
    }

    /// Whether this process was forked with the description, and has not used it.
    pub(crate) fn is_the_parents(&self) -> bool {
        self.parents.load(Ordering::SeqCst)
    }

    /// Whether writes are durable when they return, by the mode's promise.
    fn durable(&self) -> bool {
        matches!(self.mode, Mode::Sync | Mode::Strict) && !self.nameless.load(Ordering::Relaxed)
    }

    /// Looks whether the file has a name, before something is done that only matters if it has: no crash leaves
    /// anything of one that has none.
    fn look_for_a_name(&self, fd: i32) {
        if !self.linkable
            && !self.nameless.load(Ordering::Relaxed)
            && descriptors::regular_file(fd).is_some_and(|stat| stat.st_nlink == 0)
        {
            self.nameless.store(true, Ordering::Relaxed);
        }
    }

    /// The flags with which the kernel writes.
    pub(crate) fn kernel_flags(&self) -> i32 {
        if self.durable() { libc::RWF_DSYNC } else { 0 }
    }

    /// Whether the kernel has the description for good.
    pub(crate) fn is_kernels(&self) -> bool {
        let _inside = engine::enter();
        matches!(*self.look(), State::Kernel)
    }

    /// The status flags as the program set them, which differ from the kernel's while the file is
    /// staged: `O_APPEND` is off, and `O_ASYNC` is the lease's.
    pub(crate) fn status_flags(&self, ofd: &Ofd, fd: i32, kernel: i32) -> i32 {
        if self.is_the_parents() && self.ask_the_parent(ofd, fd).is_ok() {
            let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
            return flags.map_or(kernel, |flags| flags as i32);
        }
        let _inside = engine::enter();
        if !matches!(*self.look(), State::Staged(_)) {
            return kernel;
        }
        let append = if self.appends { libc::O_APPEND } else { 0 };
        (kernel & !libc::O_ASYNC) | append
    }

    /// Lets the engine do something to the file, if it is staged.
    fn ask<T>(
        &self,
        ofd: &Ofd,
        fd: i32,
        mut work: impl FnMut(&Staged) -> Result<T, Doubt>,
    ) -> Answer<T> {
        if let Err(errno) = self.ask_the_parent(ofd, fd) {
            return Answer::Failed(errno);
        }
        let _inside = engine::enter();
        loop {
            self.join(ofd, fd);
            if ofd.is_wanted() && matches!(*self.look(), State::Staged(_)) {
                // A child goes on with the file. What could not be published when it asked, and cannot be now, is the
                // program's all the same.
                let _ = self.set_down(ofd, fd);
            }
            let (answer, serial, unsynced) = match &*self.look() {
                State::Staged(staged) => {
                    let answer = work(staged);
                    let unsynced = answer.is_err() && !staged.is_sound();
                    (answer, staged.serial, unsynced)
                }
                State::Fresh(_) | State::Kernel | State::Parents => return Answer::NotStaged,
            };
            return match answer {
                Ok(done) => Answer::Done(done),
                Err(Doubt::Engine(Error::Taken)) => {
                    self.lose(ofd, fd, serial);
                    // Another program may have staged it anew since, and written more than the kernel knows.
                    if self.declared {
                        continue;
                    }
                    Answer::NotStaged
                }
                Err(Doubt::Whole) => self.set_down(ofd, fd).into(),
                Err(Doubt::Unserved) if ofd.is_wanted() => self.set_down(ofd, fd).into(),
                // A sync has failed, maybe that of this call: what it did may be found by whoever publishes now, so it is
                // not done again.
                Err(Doubt::Engine(error)) if unsynced => {
                    let _ = self.unstage(ofd, fd);
                    Answer::Failed(error.errno().raw_os_error())
                }
                Err(Doubt::Engine(Error::NoSpace)) if self.must_stay() => {
                    if self.commit_a_log() {
                        continue;
                    }
                    Answer::Failed(libc::ENOSPC)
                }
                Err(Doubt::Engine(Error::Base(errno))) => Answer::Failed(errno.raw_os_error()),
                Err(_) => self.unstage(ofd, fd).into(),
            };
        }
    }

    /// Before the kernel may write to a declared file, or read it for others: all of it is published, for everybody.
    fn bar(&self, fd: i32) -> Result<(), i32> {
        if self.declared {
            declared::bar(fd)
        } else {
            Ok(())
        }
    }

    /// Whether others have a declared file staged.
    fn is_staged_by_others(&self, fd: i32) -> bool {
        let entry = self.entry.get_or_init(|| Entry::of(fd).map(Box::new));
        entry.as_ref().is_some_and(|entry| entry.is_staged(fd))
    }

    /// Of a declared file that is fresh here: if others have it staged, it is staged here as well, or watched.
    fn join(&self, ofd: &Ofd, fd: i32) {
        let is_fresh = |state: &State| matches!(state, State::Fresh(_)) && !self.loan.is_out();
        if !self.declared || !is_fresh(&self.look()) || !self.is_staged_by_others(fd) {
            return;
        }
        if self.writable && self.mode != Mode::Posix {
            let _ = self.stage_now(ofd, fd);
            return;
        }
        let mut state = self.change();
        let Some(entry) = self.entry.get().and_then(Option::as_ref) else {
            return;
        };
        if !is_fresh(&state) {
            return;
        }
        match entry.watch(fd, self.mode) {
            Ok(None) => {}
            Ok(Some(staged)) => {
                self.mapped.store(false, Ordering::Relaxed);
                *state = State::Staged(Box::new(staged));
            }
            // Then all of it is in the file, for the kernel to read.
            Err(refusal) => {
                if self.bar(fd).is_ok() {
                    ofd.hand_over_offset(fd);
                    self.mapped.store(false, Ordering::Relaxed);
                    self.account().because(stage::reason(refusal));
                    *state = State::Kernel;
                }
            }
        }
    }

    /// Whether a full pool is the program's to know of: where the kernel's path would break a promise.
    /// Bytes that wait for their commit must not become visible without it.
    fn must_stay(&self) -> bool {
        let clean = match &*self.look() {
            State::Staged(staged) => staged.file().is_clean(),
            State::Fresh(_) | State::Kernel | State::Parents => true,
        };
        self.must_stage() || (self.mode == Mode::Atomic && !clean)
    }

    /// Commits, where there is no room for more, what is only appended to a file that the program has never synced: a
    /// log, whose lines one by one are as good as all of them.
    fn commit_a_log(&self) -> bool {
        let is_log = self.appends && !self.transacts.load(Ordering::Relaxed);
        let alone = !self.declared && !init::together() && !init::required();
        is_log && alone && matches!(&*self.look(), State::Staged(staged) if staged.fsync().is_ok())
    }

    /// Whether the user wants an error where a file cannot be staged. In mode `sync` the kernel keeps the whole
    /// promise.
    pub(crate) fn must_stage(&self) -> bool {
        init::required() && self.mode != Mode::Sync && !self.nameless.load(Ordering::Relaxed)
    }

    /// Whether the kernel may not copy into the file, as these bytes would not be what the mode promises.
    pub(crate) fn refuses_copies(&self, fd: i32) -> bool {
        if self.must_stage() {
            self.look_for_a_name(fd);
        }
        self.must_stage()
    }

    /// Whether the program opened it for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the program opened it with `O_APPEND`, which the kernel does not know while the file is staged.
    pub(crate) fn appends(&self) -> bool {
        self.appends
    }

    /// The file was taken away, by somebody who has published everything.
    fn lose(&self, ofd: &Ofd, fd: i32, serial: u64) {
        let mut state = self.change();
        match &*state {
            State::Staged(staged) if staged.serial == serial => {
                staged.was_taken(ofd, fd);
            }
            _ => return,
        }
        self.forget(&mut state, ofd, fd);
    }

    /// The file is not staged any more.
    fn begin_anew(&self, state: &mut State, ofd: &Ofd, fd: i32) {
        *state = State::Fresh(Fresh::new());
        // Others may write to it now, and an `fsync` is about their bytes as well.
        self.named.store(false, Ordering::Relaxed);
        if ofd.is_wanted() {
            // By a forked child: the kernel has it until the children have ended.
            self.lend_out(ofd, fd, To::Children, Reason::SharedOffset);
        } else if let Some(trial) = &self.trial {
            ofd.hand_over_offset(fd);
            trial.begin_anew(fd);
        }
    }

    /// Publishes everything and gives the lease back, for something that only the kernel does.
    fn set_down(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        let mut state = self.change_committed(ofd);
        if let State::Staged(staged) = &*state {
            staged.give_up(ofd, fd)?;
            self.begin_anew(&mut state, ofd, fd);
        }
        Ok(())
    }

    /// The same for a caller from outside, before the file's times or rights change. It may be staged again, if it
    /// then may be.
    pub(crate) fn put_down(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.ask_the_parent(ofd, fd)?;
        let _inside = engine::enter();
        self.set_down(ofd, fd)
    }

    /// The file is not staged any more, and may be again.
    fn forget(&self, state: &mut State, ofd: &Ofd, fd: i32) {
        self.begin_anew(state, ofd, fd);
        let losses = self.losses.fetch_add(1, Ordering::Relaxed);
        if losses < MOST_LOSSES || self.must_stage() || ofd.is_wanted() {
            return;
        }
        match &self.trial {
            None => self.lend_out(ofd, fd, To::Nobody, Reason::SharedOffset),
            Some(_) => *state = State::Kernel,
        }
    }

    /// Stages the file if nothing was written yet; says why it is not staged. Where it must be, it is tried again at
    /// the next write.
    pub(crate) fn stage(&self, ofd: &Ofd, fd: i32) -> Result<(), Refusal> {
        self.stage_now(ofd, fd).map_err(|why| match why {
            Unstaged::Lent => libc::EOPNOTSUPP,
            Unstaged::Refused(refusal) | Unstaged::Failed(refusal) => refusal,
        })
    }

    /// Where the file must be staged, a process that is just being made is waited for.
    fn stage_now(&self, ofd: &Ofd, fd: i32) -> Result<(), Unstaged> {
        let begun = Instant::now();
        loop {
            match self.stage_at_once(ofd, fd) {
                Err(Unstaged::Refused(stage::FORKING)) if begun.elapsed() < process::MAKING => {
                    adit_pmem::rest(process::MAKING / 10_000);
                }
                Err(Unstaged::Refused(stage::FORKING)) => {
                    return Err(Unstaged::Refused(libc::EOPNOTSUPP));
                }
                done => return done,
            }
        }
    }

    fn stage_at_once(&self, ofd: &Ofd, fd: i32) -> Result<(), Unstaged> {
        let refused = Err(Unstaged::Refused(libc::EOPNOTSUPP));
        let _inside = engine::enter();
        if matches!(*self.look(), State::Kernel) {
            self.look_for_a_name(fd);
            return refused;
        }
        let mut state = self.change();
        let called = self.trial.is_some() && self.calls.load(Ordering::SeqCst) != 0;
        if self.loan.is_out() || called {
            return Err(Unstaged::Lent);
        }
        if matches!(*state, State::Fresh(_)) && ofd.is_wanted() {
            self.lend_out(ofd, fd, To::Children, Reason::SharedOffset);
        } else if matches!(*state, State::Fresh(_)) {
            self.mapped.store(false, Ordering::Relaxed);
            match self.take(ofd, fd) {
                Ok(staged) => {
                    // A child that asks later finds the lease.
                    if ofd.is_wanted() && staged.give_up(ofd, fd).is_ok() {
                        self.lend_out(ofd, fd, To::Children, Reason::SharedOffset);
                    } else {
                        *state = State::Staged(Box::new(staged));
                    }
                }
                Err(stage::NAMELESS) => {
                    self.look_for_a_name(fd);
                    self.bar(fd).map_err(Unstaged::Failed)?;
                    ofd.hand_over_offset(fd);
                    *state = State::Kernel;
                }
                Err(refusal)
                    if ofd.is_wanted()
                        || (refusal == stage::FORKING
                            && self.trial.is_none()
                            && !self.must_stage()) =>
                {
                    self.lend_out(ofd, fd, To::Children, Reason::SharedOffset);
                }
                Err(refusal) if self.must_stage() => return Err(Unstaged::Refused(refusal)),
                Err(stage::NO_MONITOR) => self.put_off(&mut state, ofd, fd),
                Err(refusal) => {
                    self.bar(fd).map_err(Unstaged::Failed)?;
                    ofd.hand_over_offset(fd);
                    self.account().because(stage::reason(refusal));
                    *state = State::Kernel;
                }
            }
        }
        match *state {
            State::Staged(_) => Ok(()),
            State::Fresh(_) => Err(Unstaged::Lent),
            State::Kernel | State::Parents => refused,
        }
    }

    /// Of a description that may be staged later: until then the kernel has it.
    fn put_off(&self, state: &mut State, ofd: &Ofd, fd: i32) {
        if self.trial.is_some() {
            self.begin_anew(state, ofd, fd);
            self.account().because(Reason::Other);
        } else {
            self.lend_out(ofd, fd, To::Nobody, Reason::Other);
            self.loan.lasts_for_a_write();
        }
    }

    fn take(&self, ofd: &Ofd, fd: i32) -> Result<Staged, Refusal> {
        if self.trial.is_some() && !(appends::asked().is_some() && ofd.take_offset(fd)) {
            return Err(libc::EOPNOTSUPP);
        }
        let named = self.named.load(Ordering::Relaxed);
        // A child that has the description, too, asks for the file as an opener does, who must not find it shared.
        let declared = self.declared && ofd.common().is_none();
        let take = || stage::take(ofd, fd, self.mode, self.appends, (named, declared));
        let mut taken = take();
        // Who has just let go of the file, or only looks at it, is waited for before the program gets an error.
        for _ in 0..VISIT {
            if !self.must_stage() || !matches!(taken, Err(libc::EBUSY)) {
                break;
            }
            adit_pmem::rest(Duration::from_millis(5));
            taken = take();
        }
        taken
    }

    /// Publishes everything and leaves the description to the kernel for good. After an error the file
    /// is staged as before.
    pub(crate) fn unstage(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.unstage_as(ofd, fd, Ends::ForGood)
    }

    fn unstage_as(&self, ofd: &Ofd, fd: i32, ends: Ends) -> Result<(), i32> {
        self.ask_the_parent(ofd, fd)?;
        let _inside = engine::enter();
        if matches!(*self.look(), State::Kernel) {
            return Ok(());
        }
        let mut state = self.change_committed(ofd);
        if let State::Staged(staged) = &*state {
            staged.give_up(ofd, fd)?;
        }
        if ends == Ends::ForGood {
            self.bar(fd)?;
        }
        ofd.hand_over_offset(fd);
        self.mapped.store(false, Ordering::Relaxed);
        self.account().because(Reason::SharedOffset);
        *state = State::Kernel;
        self.loan.end(true);
        Ok(())
    }

    /// Before a child is forked: the description stays what it is, as far as that can be, or is lent. After an error
    /// the file is staged as before.
    pub(crate) fn share_with_child(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.be_told(ofd);
        let _inside = engine::enter();
        if self.trial.is_some() {
            return self.unstage(ofd, fd);
        }
        let scope = match self.mode {
            Mode::Atomic => Scope::Committed,
            Mode::Posix | Mode::Sync | Mode::Strict => Scope::Everything,
        };
        let is_kept = || self.keep(ofd, fd, Some(scope));
        if matches!(*self.look(), State::Kernel | State::Parents) || is_kept() {
            return Ok(());
        }
        let mut state = self.change_committed(ofd);
        match &*state {
            State::Kernel | State::Parents => return Ok(()),
            State::Staged(staged) => staged.give_up(ofd, fd)?,
            State::Fresh(_) => {}
        }
        *state = State::Fresh(Fresh::new());
        self.lend_out(ofd, fd, To::Children, Reason::SharedOffset);
        Ok(())
    }

    /// Before a child of `vfork` is made, when its file was shown to whoever the child executes: the description stays what
    /// it is, or is the kernel's. After an error the file is staged as before.
    pub(crate) fn share_with_vfork_child(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.be_told(ofd);
        let _inside = engine::enter();
        // A child that asks for a declared file would have to tell the monitor, which takes memory.
        let is_kept = || !self.declared && self.trial.is_none() && self.keep(ofd, fd, None);
        if self.is_the_parents() || is_kept() {
            Ok(())
        } else {
            self.unstage(ofd, fd)
        }
    }

    /// Has the offset in common with a child that is about to be made, and changes nothing else; false where that
    /// cannot be. So much is published, as far as it can be: a child that never opens the file looks at its size.
    fn keep(&self, ofd: &Ofd, fd: i32, publish: Option<Scope>) -> bool {
        let mut state = self.change();
        let added = match &*state {
            State::Staged(_) if self.appends => libc::O_APPEND,
            State::Staged(_) => 0,
            State::Fresh(_) if !self.loan.is_out() => 0,
            State::Fresh(_) | State::Kernel | State::Parents => return false,
        };
        if ofd.is_wanted() || self.calls.load(Ordering::SeqCst) != 0 {
            return false;
        }
        if matches!(&*state, State::Staged(staged) if !staged.hold_alone()) {
            return false;
        }
        let Some(stat) = descriptors::regular_file(fd).filter(stage::is_open_to_its_owner) else {
            return false;
        };
        if !ofd.have_in_common(self.appends) {
            return false;
        }
        self.loan.keep(fd, added);
        self.identity[0].store(stat.st_dev, Ordering::SeqCst);
        self.identity[1].store(stat.st_ino, Ordering::SeqCst);
        match &*state {
            // What others have taken away is found at the next call, and what cannot be published stays in the pool.
            State::Staged(staged) if staged.is_behind(fd) => {
                if let Some(scope) = publish {
                    drop(staged.file().publish(scope));
                }
            }
            State::Staged(_) => {}
            // A child's copy of a mapping would keep the file in use.
            _ => *state = State::Fresh(Fresh::new()),
        }
        self.mapped.store(false, Ordering::Relaxed);
        true
    }

    /// Before a command starts that does not get the description, but may look at the file: all is published, and stays
    /// staged. What cannot be published this way is published and given back, or an error, as if the command got it.
    /// Where files are committed together, that is what was committed with the others.
    pub(crate) fn show(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.be_told(ofd);
        let _inside = engine::enter();
        together::before_publishing(ofd);
        let shown = match &*self.look() {
            State::Staged(staged) if init::together() => staged.show(fd, Scope::Committed),
            State::Staged(staged) => staged.show(fd, Scope::Everything),
            State::Fresh(_) | State::Kernel | State::Parents => Ok(()),
        };
        match shown {
            Ok(()) | Err(Error::Taken) => Ok(()),
            Err(_) => self.set_down(ofd, fd),
        }
    }

    /// Before a call of the kernel's that copies into the file, or uses the offset: publishes everything and lends the
    /// description to the kernel until the next write behind [`Self::call_has_returned`]. After an error the file is
    /// staged as before.
    pub(crate) fn lend_for_a_call(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.ask_the_parent(ofd, fd)?;
        let _inside = engine::enter();
        let mut state = self.change_committed(ofd);
        if let State::Staged(staged) = &*state {
            staged.give_up(ofd, fd)?;
            self.begin_anew(&mut state, ofd, fd);
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        if matches!(*state, State::Fresh(_)) && self.trial.is_none() && !self.loan.is_out() {
            *state = State::Fresh(Fresh::new());
            self.loan.begin_for_a_call(fd);
            self.become_the_kernels(ofd, fd, Reason::SharedOffset);
        }
        Ok(())
    }

    /// After the call. Until then, nothing can be committed with others.
    pub(crate) fn call_has_returned(&self, wrote: bool) {
        if wrote {
            self.bypassed.store(true, Ordering::Relaxed);
        }
        self.calls.fetch_sub(1, Ordering::SeqCst);
    }

    /// Leaves a fresh description, whose state is held, to the kernel for a while.
    fn lend_out(&self, ofd: &Ofd, fd: i32, to: To, why: Reason) {
        if to == To::Children && ofd.common().is_none() {
            children::lent_without_a_place();
        }
        self.loan.begin(fd, to);
        self.become_the_kernels(ofd, fd, why);
    }

    fn become_the_kernels(&self, ofd: &Ofd, fd: i32, why: Reason) {
        // What others could not publish stays theirs.
        let _ = self.bar(fd);
        self.named.store(false, Ordering::Relaxed);
        ofd.hand_over_offset(fd);
        self.mapped.store(false, Ordering::Relaxed);
        self.account().because(why);
    }

    /// Whether the children that a description was lent to have ended; from then on it is fresh.
    fn is_back(&self, ofd: &Ofd, fd: i32) -> bool {
        let _inside = engine::enter();
        let mut state = self.change();
        if !self.loan.is_out() {
            return true;
        }
        if self.calls.load(Ordering::SeqCst) != 0 {
            return false;
        }
        // Asked first: who forks later lends it once more, and waits for the state. And nothing else is asked
        // meanwhile, when this may be a child already, whose children are others.
        let to_children = self.loan.is_to_children() || ofd.is_wanted();
        let made = || to_children && process::passes_on();
        let others = if process::shares(fd) || made() {
            Others::Children
        } else if to_children {
            children::others(ofd.common())
        } else {
            Others::None
        };
        let signals = || to_children && others == Others::None && children::has_signals(fd);
        if others == Others::Children || signals() {
            self.loan.goes_on();
            return false;
        }
        if let Some(common) = ofd
            .common()
            .filter(|_| to_children && others == Others::None)
        {
            common.is_alone();
        }
        // What nobody else had nobody can have changed, but the monitor, which may be late to leave it.
        let unchanged = !to_children || self.loan.is_unchanged(fd);
        let ours = others == Others::None && unchanged && ofd.take_offset(fd);
        if !ours && !to_children && ofd.is_wanted() {
            // By a child that has it in common, at this moment.
            self.loan.goes_on();
            return false;
        }
        if !ours {
            *state = State::Kernel;
        }
        // Children were not looked for where it was not theirs.
        self.loan.end(to_children || !ours);
        true
    }

    /// Takes a lent description back, if it may be.
    pub(crate) fn look_for_children(&self, ofd: &Ofd, fd: i32) {
        if ofd.is_wanted() {
            // What cannot be published now is not the kernel's yet.
            let _ = self.set_down(ofd, fd);
        }
        if self.loan.is_out() {
            self.is_back(ofd, fd);
        }
    }

    /// Does a call in the kernel while the description is lent; `None` when it is not any more.
    fn while_lent<T>(
        &self,
        ofd: &Ofd,
        fd: i32,
        call: impl FnOnce() -> Result<T, i32>,
    ) -> Option<Result<T, i32>> {
        if (self.must_stage() || self.loan.is_due()) && self.is_back(ofd, fd) {
            return None;
        }
        if self.must_stage() {
            return Some(Err(libc::EOPNOTSUPP));
        }
        self.with_kernels_offset(ofd, || {
            self.bypassed.store(true, Ordering::Relaxed);
            call()
        })
    }

    /// Whether the kernel got bytes since the last `fsync` that can be committed with no others.
    pub(crate) fn was_bypassed(&self) -> bool {
        self.bypassed.load(Ordering::Relaxed)
    }

    /// Publishes everything and gives the lease back, because this process opens the file again. As
    /// when the file is taken away, it may be staged again later. After an error the opener waits
    /// for the monitor, as any other does.
    pub(crate) fn lend(&self, ofd: &Ofd, fd: i32) {
        self.be_told(ofd);
        let _inside = engine::enter();
        together::before_publishing(ofd);
        let mut state = self.change();
        if let State::Staged(staged) = &*state
            && !staged.share()
            && staged.give_up(ofd, fd).is_ok()
        {
            self.forget(&mut state, ofd, fd);
        }
    }

    /// Before the last name goes: publishes. An error is for the program, the bytes stay in the pool.
    pub(crate) fn finish(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        let staged = {
            let _inside = engine::enter();
            matches!(*self.look(), State::Staged(_))
        };
        // A child of `vfork` goes on with the description, and does not find it in our table.
        if staged || process::has_vfork_children() {
            self.unstage_as(ofd, fd, Ends::WithTheDescription)
        } else {
            Ok(())
        }
    }

    /// Does a call in the kernel while it has the offset and everything of the file; `None` while the file
    /// is staged.
    pub(crate) fn with_kernels_offset<T>(&self, ofd: &Ofd, call: impl FnOnce() -> T) -> Option<T> {
        let _inside = engine::enter();
        let _still = self.look();
        matches!(ofd.offset(), Offset::Handed).then(call)
    }

    /// After a write of the kernel's on trial: stages the file if that will pay, and lets go of it if not.
    fn judge(&self, ofd: &Ofd, fd: i32, trial: &Trial, written: u64) {
        if !self.is_kernels() {
            if !trial.wrote(written) {
                return;
            }
            if trial.is_appender(fd) && (self.stage(ofd, fd).is_ok() || !self.is_kernels()) {
                return;
            }
        }
        let _ = descriptors::release(fd);
    }

    /// A read, at a position of its own or at the description's.
    pub(crate) fn read(&self, ofd: &Ofd, fd: i32, into: Buffers, at: Option<i64>) -> sys::Result {
        if self.declared {
            self.be_told(ofd);
            let _inside = engine::enter();
            self.join(ofd, fd);
        }
        if self.mapped.load(Ordering::Relaxed)
            && let Some(read) = self.mapped_read(ofd, fd, into, at)
        {
            return Ok(read);
        }
        if self.readable && !into.is_empty() {
            match self.ask(ofd, fd, |staged| self.staged_read(ofd, staged, into, at)) {
                Answer::Done(read) => {
                    self.account().served(fd, |slot| slot.served_read(read));
                    return Ok(read);
                }
                Answer::Failed(errno) => return Err(errno),
                Answer::NotStaged => {}
            }
        }
        if self.trial.is_some() || self.loan.is_out() {
            let read = || into.kernel_read(fd, at.unwrap_or(-1));
            return match self.with_kernels_offset(ofd, read) {
                Some(read) => read,
                None if self.readable && !into.is_empty() => self.read(ofd, fd, into, at),
                // It moves neither bytes nor the offset.
                None => read(),
            };
        }
        match at {
            Some(at) => self.paid_read(ofd, fd, into, at as u64),
            None => data::sequential_read(
                ofd,
                |at| self.paid_read(ofd, fd, into, at),
                || self.read_at_kernels_offset(ofd, fd, into),
            ),
        }
    }

    /// A read by somebody who has found the offset to be the kernel's. One that was lent may be back.
    fn read_at_kernels_offset(&self, ofd: &Ofd, fd: i32, into: Buffers) -> sys::Result {
        let read = || into.kernel_read(fd, -1);
        if !self.loan.has_ever_been() {
            return read();
        }
        let read = self.with_kernels_offset(ofd, read);
        read.unwrap_or_else(|| self.read(ofd, fd, into, None))
    }

    /// A read of a file of which nothing is staged, from its mapping; `None` where the kernel is asked.
    fn mapped_read(&self, ofd: &Ofd, fd: i32, into: Buffers, at: Option<i64>) -> Option<usize> {
        let Buffers::One(into) = into else {
            return None;
        };
        if into.iov_len == 0 || into.iov_len > data::LONGEST {
            return None;
        }
        let _inside = engine::enter();
        let state = self.look();
        let State::Fresh(fresh) = &*state else {
            return None;
        };
        if let Some(at) = at {
            return fresh.read(fd, at as u64, into);
        }
        loop {
            let Offset::At(at) = ofd.offset() else {
                return None;
            };
            let read = fresh.read(fd, at, into)?;
            if ofd.advance(at, at + read as u64) {
                return Some(read);
            }
        }
    }

    /// The kernel's read, which counts towards a mapping as long as nothing is written.
    fn paid_read(&self, ofd: &Ofd, fd: i32, into: Buffers, at: u64) -> sys::Result {
        let read = into.kernel_read(fd, at as i64)?;
        let _inside = engine::enter();
        if self.declared && self.is_staged_by_others(fd) {
            // Since the call began, maybe, and a part of it is in the file.
            let again = |staged: &Staged| self.staged_read(ofd, staged, into, Some(at as i64));
            match self.ask(ofd, fd, again) {
                Answer::Done(read) => return Ok(read),
                Answer::Failed(errno) => return Err(errno),
                Answer::NotStaged => {}
            }
        }
        if self.readable
            && let State::Fresh(fresh) = &*self.look()
        {
            fresh.pay(fd, at, read as u64);
            self.mapped.store(fresh.file().is_some(), Ordering::Relaxed);
        }
        Ok(read)
    }

    /// Before some file may get holes: a mapping must not fill them.
    pub(crate) fn holes_somewhere(&self) {
        let _inside = engine::enter();
        if let State::Fresh(fresh) = &*self.look()
            && let Some(file) = fresh.file()
        {
            file.holes_from(0);
        }
    }

    fn staged_read(
        &self,
        ofd: &Ofd,
        staged: &Staged,
        into: Buffers,
        at: Option<i64>,
    ) -> Result<usize, Doubt> {
        with_parts(&into, <*mut c_void>::cast, |parts, _| {
            if let Some(at) = at {
                return read_into(staged, at as u64, parts);
            }
            loop {
                let Offset::At(at) = ofd.offset() else {
                    return Err(Doubt::Unserved);
                };
                let read = read_into(staged, at, parts)?;
                if ofd.advance(at, at + read as u64) {
                    return Ok(read);
                }
            }
        })
    }

    /// A write, at a position of its own or at the description's.
    ///
    /// What a sequential write has claimed stays its own, whoever does it in the end: others may have
    /// claimed what follows, and between them would be left a hole.
    pub(crate) fn write(&self, ofd: &Ofd, fd: i32, from: Buffers, at: Option<i64>) -> sys::Result {
        let mut claimed = None;
        let result = self.write_somehow(ofd, fd, from, at, &mut claimed);
        if let Some((start, end)) = claimed {
            let reached = start + *result.as_ref().unwrap_or(&0) as u64;
            if reached < end {
                self.give_back(ofd, fd, end, reached);
            }
        }
        result
    }

    /// Moves the offset back from where a write had moved it to how far it came, unless someone moved it
    /// meanwhile. Who forks takes it to the kernel with all that is not done.
    fn give_back(&self, ofd: &Ofd, fd: i32, from: u64, to: u64) {
        let seek = || ofd.give_back_in_kernel(fd, from, to);
        while !ofd.advance(from, to) && self.with_kernels_offset(ofd, seek).is_none() {
            if !matches!(ofd.offset(), Offset::At(at) if at == from) {
                return;
            }
        }
    }

    fn write_somehow(
        &self,
        ofd: &Ofd,
        fd: i32,
        from: Buffers,
        at: Option<i64>,
        claimed: &mut Option<(u64, u64)>,
    ) -> sys::Result {
        if !from.is_empty() && self.writable {
            loop {
                let write = |staged: &Staged| self.staged_write(ofd, fd, staged, from, at, claimed);
                match self.ask(ofd, fd, write) {
                    Answer::Done(written) => {
                        self.account().served(fd, |slot| slot.served_write(written));
                        return Ok(written);
                    }
                    Answer::Failed(errno) => return Err(errno),
                    Answer::NotStaged => {}
                }
                if let Some(trial) = &self.trial {
                    let at = at.or(claimed.map(|(start, _)| start as i64)).unwrap_or(-1);
                    let write = || from.kernel_write(fd, at, false);
                    match self.with_kernels_offset(ofd, write) {
                        Some(written) => {
                            self.judge(ofd, fd, trial, *written.as_ref().unwrap_or(&0) as u64);
                            return written;
                        }
                        None => continue,
                    }
                }
                if self.loan.is_out() {
                    let at = at.or(claimed.map(|(start, _)| start as i64)).unwrap_or(-1);
                    match self.while_lent(ofd, fd, || self.write_in_kernel(fd, from, at)) {
                        Some(written) => return written,
                        None => continue,
                    }
                }
                if self.blocks.are_left()
                    && let Some(written) = self.write_block(ofd, fd, from, at, claimed)
                {
                    return written;
                }
                match self.stage_now(ofd, fd) {
                    Ok(()) | Err(Unstaged::Lent) => {}
                    Err(Unstaged::Failed(errno)) => return Err(errno),
                    Err(Unstaged::Refused(refusal)) if self.must_stage() => return Err(refusal),
                    Err(Unstaged::Refused(_)) => break,
                }
            }
        }
        let at = at.or(claimed.map(|(start, _)| start as i64)).unwrap_or(-1);
        self.write_in_kernel(fd, from, at)
    }

    /// A write that the kernel does as well as the mode promises, before the file is staged; `None` when it is another.
    fn write_block(
        &self,
        ofd: &Ofd,
        fd: i32,
        from: Buffers,
        at: Option<i64>,
        claimed: &mut Option<(u64, u64)>,
    ) -> Option<sys::Result> {
        let Buffers::One(one) = from else {
            return None;
        };
        let _inside = engine::enter();
        let state = self.look();
        let State::Fresh(fresh) = &*state else {
            return None;
        };
        let is_shared = self.loan.is_out() || ofd.is_wanted() || fresh.file().is_some();
        if self.appends || is_shared || self.must_stage() {
            return None;
        }
        let len = one.iov_len as u64;
        let start = match (at, *claimed) {
            (Some(at), _) => u64::try_from(at).ok()?,
            (None, Some((start, _))) => start,
            (None, None) => claimed.insert(claim(ofd, len).ok()?).0,
        };
        let _alone = self.blocks.take(fd, start, len)?;
        // Others may write to it, too, and an `fsync` is about their bytes as well.
        self.named.store(false, Ordering::Relaxed);
        match from.kernel_write(fd, start as i64, self.durable()) {
            Err(libc::EOPNOTSUPP) => None,
            written => Some(written),
        }
    }

    /// The kernel's write, with what the mode adds to its promise; at its own offset where `at` is -1.
    fn write_in_kernel(&self, fd: i32, from: Buffers, at: i64) -> sys::Result {
        self.look_for_a_name(fd);
        self.account().passed(fd, self.mode);
        match from.kernel_write(fd, at, self.durable()) {
            // Files of the kernel's own (`/proc`) know no such promise.
            Err(libc::EOPNOTSUPP) => from.kernel_write(fd, at, false),
            result => result,
        }
    }

    fn staged_write(
        &self,
        ofd: &Ofd,
        fd: i32,
        staged: &Staged,
        from: Buffers,
        at: Option<i64>,
        claimed: &mut Option<(u64, u64)>,
    ) -> Result<usize, Doubt> {
        if staged.watches() {
            return Err(Doubt::Unserved);
        }
        let constant = |at: *mut c_void| at.cast_const().cast();
        with_parts(&from, constant, |parts, len| {
            let Offset::At(here) = ofd.offset() else {
                return Err(Doubt::Unserved);
            };
            if self.appends {
                let start = write_from(staged, Place::End, parts, len)?;
                if at.is_none() {
                    ofd.follow(here, start + len as u64);
                }
                return Ok(len);
            }
            let start = match (at, *claimed) {
                (Some(at), _) => at as u64,
                // The range is claimed first, so that no two writes land on the same place.
                (None, Some((start, _))) => start,
                (None, None) => claimed.insert(claim(ofd, len as u64)?).0,
            };
            if let Some(only) = staged.only() {
                match only.place(start, len as u64) {
                    Where::Staged => {}
                    Where::InPlace => return in_place(staged, only, fd, from, start),
                    Where::Divided => return Err(Doubt::Whole),
                }
            }
            write_from(staged, Place::At(start), parts, len)?;
            Ok(len)
        })
    }

    /// The size, if the kernel does not know it.
    pub(crate) fn size(&self, ofd: &Ofd, fd: i32) -> Option<u64> {
        match self.ask(ofd, fd, |staged| Ok(staged.file().size()?)) {
            Answer::Done(size) => Some(size),
            Answer::Failed(_) | Answer::NotStaged => None,
        }
    }

    /// `ftruncate`. It stages the file as a write does: in the kernel the bytes beyond the new end are
    /// zeros on the medium before the journal has the size, and neither waits for the next `fsync`.
    pub(crate) fn truncate(&self, ofd: &Ofd, fd: i32, size: i64) -> sys::Result {
        self.transacts.store(true, Ordering::Relaxed);
        let in_kernel = || sys::ftruncate(fd as usize, size as usize);
        self.resize(
            ofd,
            fd,
            size,
            |staged, size| staged.file().truncate(size),
            in_kernel,
        )
    }

    /// `fallocate`. Blocks are nothing that anybody reads: the kernel reserves them, and the file is made longer as
    /// `ftruncate` does. What changes bytes is the kernel's alone.
    pub(crate) fn allocate(
        &self,
        ofd: &Ofd,
        fd: i32,
        mode: i32,
        offset: i64,
        len: i64,
    ) -> sys::Result {
        let allocate = |mode: i32| {
            let [offset, len] = [offset, len].map(|word| word as usize);
            sys::fallocate(fd as usize, mode as usize, offset, len)
        };
        if !self.writable {
            return allocate(mode);
        }
        if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            return self.change_in_kernel(ofd, fd, || allocate(mode));
        }
        if self.trial.is_some() {
            return self.resize_whole(ofd, fd, || allocate(mode));
        }
        let done = allocate(libc::FALLOC_FL_KEEP_SIZE)?;
        if mode != 0 {
            self.look_for_a_name(fd);
            return if self.durable() {
                sys::fsync(fd as usize)
            } else {
                Ok(done)
            };
        }
        // The kernel has seen that they are a range.
        let extend = |staged: &Staged, size| staged.file().extend(size);
        self.resize(ofd, fd, offset.saturating_add(len), extend, || allocate(0))
    }

    /// Lets the kernel change bytes of the file. Afterwards it may be staged again.
    fn change_in_kernel(&self, ofd: &Ofd, fd: i32, call: impl Fn() -> sys::Result) -> sys::Result {
        if self.refuses_copies(fd) {
            return Err(libc::EOPNOTSUPP);
        }
        self.lend_for_a_call(ofd, fd)?;
        let done = call();
        self.call_has_returned(copies::may_have_written(done.map(drop)));
        if self.durable() {
            sys::fsync(fd as usize)?;
        }
        done
    }

    /// Gives the file another size, in the pool or by `in_kernel`.
    fn resize(
        &self,
        ofd: &Ofd,
        fd: i32,
        size: i64,
        in_pool: impl Fn(&Staged, u64) -> Result<(), Error>,
        in_kernel: impl Fn() -> sys::Result,
    ) -> sys::Result {
        if !self.writable {
            return in_kernel();
        }
        if self.trial.is_some() {
            return self.resize_whole(ofd, fd, in_kernel);
        }
        let served = u64::try_from(size).ok().filter(|&size| size <= FARTHEST);
        let resize = || {
            let done = in_kernel()?;
            self.look_for_a_name(fd);
            if self.durable() {
                sys::fsync(fd as usize)?;
            }
            Ok(done)
        };
        loop {
            let staged = self.ask(ofd, fd, |staged| {
                let served = served.filter(|_| !staged.watches());
                Ok(in_pool(staged, served.ok_or(Doubt::Unserved)?)?)
            });
            match staged {
                Answer::Done(()) => return Ok(0),
                Answer::Failed(errno) => return Err(errno),
                Answer::NotStaged if served.is_none() => break,
                Answer::NotStaged if self.loan.is_out() => {
                    if let Some(done) = self.while_lent(ofd, fd, resize) {
                        return done;
                    }
                }
                Answer::NotStaged => match self.stage_now(ofd, fd) {
                    Ok(()) | Err(Unstaged::Lent) => {}
                    Err(Unstaged::Failed(errno)) => return Err(errno),
                    Err(Unstaged::Refused(refusal)) if self.must_stage() => return Err(refusal),
                    Err(Unstaged::Refused(_)) => break,
                },
            }
        }
        resize()
    }

    /// The same where that is not staged.
    fn resize_whole(&self, ofd: &Ofd, fd: i32, in_kernel: impl Fn() -> sys::Result) -> sys::Result {
        loop {
            if let Answer::Failed(errno) = self.ask(ofd, fd, |_| Err::<(), _>(Doubt::Whole)) {
                return Err(errno);
            }
            if let Some(done) = self.with_kernels_offset(ofd, &in_kernel) {
                return done;
            }
        }
    }

    /// Size and time of last change, if the staged file is the one with this identity.
    pub(crate) fn logical(&self, ofd: &Ofd, fd: i32, device: u64, inode: u64) -> Option<Logical> {
        if self.is_the_parents() && self.identity() != (device, inode) {
            return None;
        }
        let answer = self.ask(ofd, fd, |staged| {
            if !staged.is(device, inode) {
                return Ok(None);
            }
            let modified = staged.file().last_write()?;
            Ok(Some(Logical {
                size: staged.file().size()?,
                modified: modified.map(|at| (at.tv_sec, at.tv_nsec)),
            }))
        });
        match answer {
            Answer::Done(logical) => logical,
            Answer::Failed(_) | Answer::NotStaged => None,
        }
    }

    /// Whether somebody else has ended the staging, and this process has not noticed yet.
    fn is_taken(&self) -> bool {
        let _inside = engine::enter();
        matches!(&*self.look(), State::Staged(staged) if staged.file().is_taken())
    }

    /// `fsync`; `None` when it is the kernel's.
    pub(crate) fn sync(&self, ofd: &Ofd, fd: i32) -> Option<sys::Result> {
        self.bypassed.store(false, Ordering::Relaxed);
        self.transacts.store(true, Ordering::Relaxed);
        match together::sync(ofd) {
            // Others see it from here on; and what they have staged anew was not among it. Nor was what is in the kernel
            // of a file that was taken away, and that somebody else may have written.
            Some(Ok(_)) if self.declared || self.is_taken() => {}
            Some(done) => return Some(done),
            None => {}
        }
        match self.ask(ofd, fd, |staged| Ok(staged.fsync()?)) {
            Answer::Done(()) => Some(Ok(0)),
            Answer::Failed(errno) => Some(Err(errno)),
            Answer::NotStaged => {
                self.trial.as_ref().map(Trial::synced);
                None
            }
        }
    }
}

/// Whether a file that is opened with these flags and has no name can get one: the kernel links nothing that has
/// lost its last.
pub(crate) fn is_linkable(flags: i32) -> bool {
    flags & libc::O_TMPFILE == libc::O_TMPFILE && flags & libc::O_EXCL == 0
}

/// Writes to the file itself what is not staged of it.
fn in_place(
    staged: &Staged,
    only: &AppendsOnly,
    fd: i32,
    from: Buffers,
    start: u64,
) -> Result<usize, Doubt> {
    let errno = |errno| Error::Base(rustix::io::Errno::from_raw_os_error(errno));
    let written = from.kernel_write(fd, start as i64, false).map_err(errno)?;
    only.wrote_in_place(staged.file());
    Ok(written)
}

/// Moves the offset behind the next `len` bytes: from where, and to where.
fn claim(ofd: &Ofd, len: u64) -> Result<(u64, u64), Doubt> {
    loop {
        let Offset::At(at) = ofd.offset() else {
            return Err(Doubt::Unserved);
        };
        let end = at.checked_add(len).filter(|&end| end <= FARTHEST);
        let end = end.ok_or(Doubt::Unserved)?;
        if ofd.advance(at, end) {
            return Ok((at, end));
        }
    }
}

/// One call is one write, which happens entirely or not at all.
fn write_from(
    staged: &Staged,
    place: Place,
    parts: &[(*const u8, usize)],
    len: usize,
) -> Result<u64, Doubt> {
    if matches!(place, Place::At(at) if at.saturating_add(len as u64) > FARTHEST) {
        return Err(Doubt::Unserved);
    }
    // SAFETY: the buffers are the program's; a fault in them is an error.
    Ok(unsafe { staged.file().writev_from(place, parts) }?)
}

/// And one read, which sees no write in part.
fn read_into(staged: &Staged, at: u64, parts: &[(*mut u8, usize)]) -> Result<usize, Doubt> {
    if at > FARTHEST {
        return Err(Doubt::Unserved);
    }
    // SAFETY: the buffers are the program's to fill; a fault in them is an error.
    Ok(unsafe { staged.file().readv_into(at, parts) }?)
}

/// Gives a program's buffers to the engine as it takes them, addresses and lengths, with the length of all.
/// What is left to the kernel: nothing, too much, or a vector that cannot be read.
fn with_parts<A: Copy, T>(
    buffers: &Buffers,
    address: fn(*mut c_void) -> A,
    work: impl FnOnce(&[(A, usize)], usize) -> Result<T, Doubt>,
) -> Result<T, Doubt> {
    let (parts, listed) = match buffers {
        Buffers::One(one) => {
            let len = one.iov_len;
            return if (1..=data::LONGEST).contains(&len) {
                work(&[(address(one.iov_base), len)], len)
            } else {
                Err(Doubt::Unserved)
            };
        }
        Buffers::Many(parts, listed) => (*parts, *listed),
    };
    let filled = |part: &libc::iovec| (address(part.iov_base), part.iov_len);
    if listed > Vector::MOST as i32 && listed <= libc::UIO_MAXIOV {
        // Memory may be taken: handlers of signals wait until this is over.
        let mut copied = vec![data::NO_PART; listed as usize];
        let total = data::copy_parts(parts, &mut copied).ok_or(Doubt::Unserved)?;
        let list = copied.iter().filter(|part| part.iov_len > 0).map(filled);
        return work(&list.collect::<Vec<_>>(), total);
    }
    let vector = Vector::copy(parts, listed).ok_or(Doubt::Unserved)?;
    let mut list = [(address(core::ptr::null_mut()), 0); Vector::MOST];
    let mut count = 0;
    for (to, part) in list.iter_mut().zip(vector.parts()) {
        *to = filled(part);
        count += 1;
    }
    let total = list[..count].iter().map(|(_, len)| *len).sum();
    work(&list[..count], total)
}
