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
//! [`staging`] changes between these, [`lending`] gives a description to children and to calls of the kernel's and takes it
//! back, [`calls`] does what the program asks for.
//!
//! **Operations share the state's lock, changes of state exclude them.** So no call is half in the pool
//! and half in the kernel, and none is done twice: a call that finds the file taken away has done
//! nothing. Whatever the engine does not answer exactly as the kernel would, a bad buffer among them,
//! is answered by unstaging and doing it in the kernel.
//!
//! # Safety
//! The cells around the state and the account are replaced in a forked child alone, by its only thread
//! ([`lending`]).
#![allow(unsafe_code)]

mod buffers;
mod calls;
mod lending;
mod staging;

pub(crate) use buffers::Buffers;

use crate::account::Account;
use crate::appends::Trial;
use crate::blocks::Blocks;
use crate::children::Loan;
use crate::fresh::Fresh;
use crate::ofd::{Ofd, Offset};
use crate::signal::engine;
use crate::stage::{Entry, Staged};
use crate::{descriptors, init, stage, sys};
use adit_pmem::MediumKind;
use adit_store::staged::{Error, Mode};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// No place to which a file has grown.
const UNWRITTEN: u64 = u64::MAX;

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
    /// Set once the program has synced or cut the file through it, or written elsewhere than at its end: what it writes
    /// between two syncs may belong together.
    transacts: AtomicBool,
    /// Where the last write through it ended, in mode `atomic` and without `O_APPEND`; or [`UNWRITTEN`].
    grown: AtomicU64,
    /// Whether the file can get a name when it has none.
    linkable: bool,
    /// Set when it was found to have no name, and cannot get one any more.
    nameless: AtomicBool,
    /// Set while the file and its name are known to be durable, if it still is as it was then: empty, and changed last at this
    /// time.
    named: AtomicU64,
    losses: AtomicU32,
    /// Set when the program has set the file's times while it was staged, until it syncs it: in the pool they are not durable.
    timed: AtomicBool,
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
    /// Set while the kernel has the description of a declared file and others may have the file staged all the same.
    unbarred: AtomicBool,
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
            grown: AtomicU64::new(UNWRITTEN),
            linkable: is_linkable(flags),
            nameless: AtomicBool::new(false),
            named: AtomicU64::new(stage::UNNAMED),
            losses: AtomicU32::new(0),
            timed: AtomicBool::new(false),
            trial: None,
            blocks: Blocks::none(),
            loan: Loan::new(),
            identity: [const { AtomicU64::new(0) }; 2],
            parents: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            bypassed: AtomicBool::new(false),
            unbarred: AtomicBool::new(false),
            mapped: AtomicBool::new(false),
            account: UnsafeCell::new(Account::new()),
        }
    }

    /// The file, which was so, and its name were made durable: if it is empty, it need not be done before bytes are staged.
    pub(crate) fn has_durable_name(&self, stat: &libc::stat) {
        let changed = stage::changed(stat.st_ctime, stat.st_ctime_nsec);
        self.named.store(changed, Ordering::Relaxed);
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

    /// The number of the description is about to lead to something else. What could not be published is the monitor's,
    /// which has a descriptor of its own; who walks over all descriptions just now leaves this one alone.
    pub(crate) fn ends(&self, ofd: &Ofd) {
        self.be_told(ofd);
        let _inside = engine::enter();
        if !matches!(*self.look(), State::Kernel) {
            *self.change() = State::Kernel;
        }
    }

    /// Whether writes are durable when they return, by the mode's promise.
    fn durable(&self) -> bool {
        self.is_durable_mode() && !self.nameless.load(Ordering::Relaxed)
    }

    fn is_durable_mode(&self) -> bool {
        matches!(self.mode, Mode::Sync | Mode::Strict)
    }

    /// Looks whether the file has a name, before something is done that only matters if it has: no crash leaves
    /// anything of one that has none.
    fn look_for_a_name(&self, fd: i32) {
        let matters = self.is_durable_mode() || init::required();
        if matters
            && !self.linkable
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
    /// staged: `O_APPEND` is off, and `O_ASYNC` is the lease's. A child that cannot ask for the file finds them so until
    /// somebody else has, who may have changed them.
    pub(crate) fn status_flags(&self, ofd: &Ofd, fd: i32, kernel: i32) -> i32 {
        if self.is_the_parents() {
            let asked = self.ask_the_parent(ofd, fd);
            if asked.is_ok() || matches!(ofd.offset(), Offset::Handed) {
                let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
                return flags.map_or(kernel, |flags| flags as i32);
            }
        }
        let _inside = engine::enter();
        let state = self.look();
        if !matches!(*state, State::Staged(_) | State::Parents) {
            // It may have been staged when the kernel was asked, and given back since.
            let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
            return flags.map_or(kernel, |flags| flags as i32);
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
        let mut first = true;
        loop {
            self.join(ofd, fd);
            if ofd.is_wanted() && matches!(*self.look(), State::Staged(_)) {
                // A child goes on with the file. What could not be published when it asked, and cannot be now, is the
                // program's all the same.
                let _ = self.set_down(ofd, fd);
            }
            let (doubt, serial, unsynced) = match &*self.look() {
                State::Staged(staged) => match work(staged) {
                    Ok(done) => return Answer::Done(done),
                    Err(doubt) => (doubt, staged.serial, !staged.is_sound()),
                },
                State::Fresh(_) | State::Kernel | State::Parents => return Answer::NotStaged,
            };
            if let Some(answer) = self.answer_to(ofd, fd, doubt, (serial, unsynced), first) {
                return answer;
            }
            first = false;
        }
    }

    /// What is answered where the engine has not done it: its work on the staging of this serial number, after a sync had
    /// failed or not, and for the first time or not; `None` when it is to be asked again.
    #[cold]
    fn answer_to<T>(
        &self,
        ofd: &Ofd,
        fd: i32,
        doubt: Doubt,
        (serial, unsynced): (u64, bool),
        first: bool,
    ) -> Option<Answer<T>> {
        Some(match doubt {
            Doubt::Engine(Error::Taken) => {
                self.lose(ofd, fd, serial);
                // Another program may have staged it anew since, and written more than the kernel knows.
                if self.declared {
                    return None;
                }
                Answer::NotStaged
            }
            Doubt::Whole => self.set_down(ofd, fd).into(),
            Doubt::Unserved if ofd.is_wanted() => self.set_down(ofd, fd).into(),
            Doubt::Unserved if self.stops_watching(ofd, fd) => Answer::NotStaged,
            // A sync has failed, maybe that of this call: what it did may be found by whoever publishes now, so it is
            // not done again.
            Doubt::Engine(error) if unsynced => {
                let _ = self.unstage(ofd, fd);
                Answer::Failed(error.errno().raw_os_error())
            }
            Doubt::Engine(Error::NoSpace) if self.must_stay() => {
                if self.commit_a_log(first) {
                    return None;
                }
                Answer::Failed(libc::ENOSPC)
            }
            Doubt::Engine(Error::Base(errno)) => Answer::Failed(errno.raw_os_error()),
            Doubt::Engine(_) | Doubt::Unserved => self.unstage(ofd, fd).into(),
        })
    }

    /// Whether the program opened it for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the program opened it with `O_APPEND`, which the kernel does not know while the file is staged.
    pub(crate) fn appends(&self) -> bool {
        self.appends
    }

    /// Does a call in the kernel while it has the offset and everything of the file; `None` while the file
    /// is staged.
    pub(crate) fn with_kernels_offset<T>(&self, ofd: &Ofd, call: impl FnOnce() -> T) -> Option<T> {
        let _inside = engine::enter();
        let _still = self.look();
        matches!(ofd.offset(), Offset::Handed).then(call)
    }
}

/// Whether a file that is opened with these flags and has no name can get one: the kernel links nothing that has
/// lost its last.
pub(crate) fn is_linkable(flags: i32) -> bool {
    flags & libc::O_TMPFILE == libc::O_TMPFILE && flags & libc::O_EXCL == 0
}
