//! How a file comes to be staged, and how it ceases to be.
//!
//! The first write stages the file if it may be ([`crate::stage`]). Whatever needs the kernel to know
//! the file, or somebody else to have the description, first *unstages* it: all is published, the
//! lease is given back, and the kernel has the description for good. When the monitor takes the file
//! away for somebody who opened it, the engine says so at the next call; the file is fresh again, and
//! may be staged again when the other one has closed it.
//!
//! Of a declared file ([`crate::declared`]) every description has a writer, also one that only reads. As long as it
//! is fresh it looks before each call whether others have the file staged, and then stages it, too, or watches. Before
//! it becomes the kernel's, or is lent, the file is barred.

use super::{State, Writer};
use crate::appends::Trial;
use crate::children::To;
use crate::fresh::Fresh;
use crate::ofd::Ofd;
use crate::process::{Patience, RightOfWay};
use crate::signal::engine;
use crate::stage::{self, Entry, Refusal, Staged};
use crate::{appends, declared, descriptors, init, process, stack, together};
use adit_store::registry::Reason;
use adit_store::staged::{Error, Mode, Scope};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::RwLockWriteGuard;

/// How often all files are committed before one of them is published, while others go on writing.
const GROUPS: usize = 8;

/// How often a file that must be staged is tried again while somebody has it open, every five milliseconds.
/// Children of a crowd of threads that fork have it until they are told to end, or execute something.
const VISIT: usize = 200;

/// How often a file is staged again after it was soon taken away: whoever shares it that often is served
/// better by the kernel.
const MOST_LOSSES: u32 = 16;

/// How long a file has to be staged for that to be no loss.
const PAYS_AFTER: Duration = Duration::from_secs(1);

/// Why a description is the kernel's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The program goes on with it.
    ForGood,
    /// It is about to be closed.
    WithTheDescription,
}

/// Why a file is not staged now.
pub(super) enum Unstaged {
    /// It will be asked again when it comes back. The offset is not ours to use.
    Lent,
    /// As [`stage::take`] says it; from then on the kernel has it for good, unless it must be staged.
    Refused(Refusal),
    /// It cannot be the kernel's either: what others have staged of it could not be published.
    Failed(i32),
}

impl Writer {
    /// Before the kernel may write to a declared file, or read it for others: all of it is published, for everybody.
    pub(super) fn bar(&self, fd: i32) -> Result<(), i32> {
        if self.declared || declared::is_declared(fd) {
            declared::bar(fd)
        } else {
            Ok(())
        }
    }

    /// The same for a description that the kernel has whatever comes of it; an error is told to who writes.
    pub(super) fn try_to_bar(&self, fd: i32) {
        let barred = self.bar_or_wait_for_no_answer(fd);
        self.unbarred.store(barred.is_err(), Ordering::Relaxed);
    }

    fn bar_or_wait_for_no_answer(&self, fd: i32) -> Result<(), i32> {
        if self.declared || declared::is_declared(fd) {
            declared::bar_or_wait_for_no_answer(fd)
        } else {
            Ok(())
        }
    }

    /// Before the kernel changes the file: what others have staged of it would be published over that, so it is taken from
    /// them, where that was not to be done before.
    #[inline]
    pub(crate) fn be_barred(&self, fd: i32) -> Result<(), i32> {
        if self.unbarred.load(Ordering::Relaxed) {
            self.bar_or_wait_for_no_answer(fd)?;
            self.needs_no_bar();
        }
        Ok(())
    }

    /// The file is barred, or staged here, or about to be: the kernel has it behind nobody's back.
    pub(super) fn needs_no_bar(&self) {
        self.unbarred.store(false, Ordering::Relaxed);
    }

    /// Whether others have a declared file staged, or may.
    pub(super) fn is_staged_by_others(&self, fd: i32) -> bool {
        if self.entry.get().is_none() {
            // Not while the cell is being filled: a child that is forked meanwhile would wait for its parent's thread.
            let entry = Entry::of(fd).map(Box::new);
            let _ = self.entry.set(entry);
        }
        let entry = self.entry.get().and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.is_staged(fd))
    }

    /// Of a declared file that is fresh here: if others have it staged, it is staged here as well, or watched.
    #[inline]
    pub(super) fn join(&self, ofd: &Ofd, fd: i32) {
        if self.declared {
            self.join_others(ofd, fd);
        }
    }

    #[inline(never)]
    fn join_others(&self, ofd: &Ofd, fd: i32) {
        let is_fresh = |state: &State| matches!(state, State::Fresh(_)) && !self.loan.is_out();
        if !is_fresh(&self.look()) || !self.is_staged_by_others(fd) {
            return;
        }
        if self.writable && self.mode != Mode::Posix {
            // What cannot be staged can be read all the same.
            let _ = self.stage_now(ofd, fd);
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
                self.needs_no_bar();
                *state = State::Staged(Box::new(staged));
            }
            // It is tried again at the next call.
            Err(_) if self.must_stage() => {}
            // Then all of it is in the file, for the kernel to read.
            Err(refusal) => {
                self.try_to_bar(fd);
                if !self.unbarred.load(Ordering::Relaxed) {
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
    pub(super) fn must_stay(&self) -> bool {
        let clean = match &*self.look() {
            State::Staged(staged) => staged.file().is_clean(),
            State::Fresh(_) | State::Kernel | State::Parents => true,
        };
        self.must_stage() || (self.mode == Mode::Atomic && !clean && !init::has_ended())
    }

    /// Commits, where there is no room for more, what is only appended to a file that the program has never synced: a
    /// log, whose lines one by one are as good as all of them. Another thread may just have done so; but where that made no
    /// room either, as on a file system that is full, it is not to be hoped for again.
    pub(super) fn commit_a_log(&self, first: bool) -> bool {
        let is_log = !self.transacts.load(Ordering::Relaxed);
        let alone = !self.declared && !init::together() && !init::required();
        let commits =
            |staged: &Staged| (first || staged.file().has_uncommitted()) && staged.fsync().is_ok();
        is_log && alone && matches!(&*self.look(), State::Staged(staged) if commits(staged))
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

    /// The file was taken away, by somebody who has published everything.
    pub(super) fn lose(&self, ofd: &Ofd, fd: i32, serial: u64) {
        let mut state = self.change();
        let has_paid = match &*state {
            State::Staged(staged) if staged.serial == serial => {
                staged.was_taken(ofd, fd);
                // Maybe long ago.
                staged.had_lasted(PAYS_AFTER)
            }
            _ => return,
        };
        self.forget(&mut state, ofd, fd, has_paid);
    }

    /// The file is not staged any more.
    pub(super) fn begin_anew(&self, state: &mut State, ofd: &Ofd, fd: i32) {
        *state = State::Fresh(Fresh::new());
        // Others may write to it now, and an `fsync` is about their bytes as well.
        self.named.store(stage::UNNAMED, Ordering::Relaxed);
        if ofd.is_wanted() {
            // By a forked child: the kernel has it until the children have ended.
            self.lend_out(ofd, fd, To::Children, Reason::SharedOffset);
        } else if let Some(trial) = &self.trial {
            ofd.hand_over_offset(fd);
            trial.begin_anew(fd);
        }
    }

    /// What is only watched, as it could not be staged, may be staged by now; false where it is not that.
    pub(super) fn stops_watching(&self, ofd: &Ofd, fd: i32) -> bool {
        if !self.writable || self.mode == Mode::Posix {
            return false;
        }
        let mut state = self.change();
        let watches = matches!(&*state, State::Staged(staged) if staged.watches());
        if watches {
            self.begin_anew(&mut state, ofd, fd);
        }
        watches
    }

    /// Publishes everything and gives the lease back, for something that only the kernel does.
    pub(super) fn set_down(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
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
        stack::with_room(|| {
            self.ask_the_parent(ofd, fd)?;
            let _inside = engine::enter();
            self.set_down(ofd, fd)
        })
    }

    /// The file is not staged any more, and may be again.
    fn forget(&self, state: &mut State, ofd: &Ofd, fd: i32, has_paid: bool) {
        self.begin_anew(state, ofd, fd);
        if has_paid {
            self.losses.store(0, Ordering::Relaxed);
            return;
        }
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
    pub(super) fn stage_now(&self, ofd: &Ofd, fd: i32) -> Result<(), Unstaged> {
        let mut patience = Patience::of(RightOfWay::LASTS);
        let mut way = None;
        loop {
            match self.stage_at_once(ofd, fd) {
                Err(Unstaged::Refused(stage::FORKING)) if patience.waits() => {
                    way.get_or_insert_with(RightOfWay::ask);
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
                        self.needs_no_bar();
                        *state = State::Staged(Box::new(staged));
                    }
                }
                Err(stage::NAMELESS) => {
                    self.look_for_a_name(fd);
                    self.bar(fd).map_err(Unstaged::Failed)?;
                    ofd.hand_over_offset(fd);
                    *state = State::Kernel;
                }
                Err(stage::UNREADABLE) => return Err(Unstaged::Failed(libc::EIO)),
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
                Err(libc::EMFILE | libc::ENFILE) if !self.declared => {
                    self.put_off(&mut state, ofd, fd);
                }
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
        // In mode `posix` what is declared is read with what others have staged of it, and written by the kernel: it would
        // be staged alone where it has several names, and again and again for a write that only the kernel does.
        if self.declared && self.mode == Mode::Posix {
            return Err(libc::EOPNOTSUPP);
        }
        let is_shareable = declared::is_shareable(fd);
        if !self.declared && is_shareable {
            // It got there by another name than it was opened by, and this description follows nobody.
            return Err(libc::EOPNOTSUPP);
        }
        let named = self.named.load(Ordering::Relaxed);
        // A child that has the description, too, asks for the file as an opener does, who must not find it shared.
        let declared = self.declared && is_shareable && ofd.common().is_none();
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
        stack::with_room(|| self.unstage_as(ofd, fd, Ends::ForGood))
    }

    fn unstage_as(&self, ofd: &Ofd, fd: i32, ends: Ends) -> Result<(), i32> {
        self.ask_the_parent(ofd, fd)?;
        let _inside = engine::enter();
        if matches!(*self.look(), State::Kernel) {
            return self.be_barred(fd);
        }
        let mut state = self.change_committed(ofd);
        if let State::Staged(staged) = &*state {
            staged.give_up(ofd, fd)?;
        }
        match ends {
            Ends::ForGood => self.bar(fd)?,
            // Nobody waits for it who does not write any more.
            Ends::WithTheDescription => self.unbarred.store(true, Ordering::Relaxed),
        }
        ofd.hand_over_offset(fd);
        self.mapped.store(false, Ordering::Relaxed);
        self.account().because(Reason::SharedOffset);
        *state = State::Kernel;
        self.loan.end(true);
        Ok(())
    }

    /// Before a command starts that does not get the description, but may look at the file: all is published, and stays
    /// staged. What cannot be published this way is published and given back, or an error, as if the command got it.
    /// Where files are committed together, that is what was committed with the others.
    pub(crate) fn show(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        stack::with_room(|| self.show_here(ofd, fd))
    }

    fn show_here(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
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

    /// Publishes everything and gives the lease back, because this process opens the file again. As
    /// when the file is taken away, it may be staged again later. After an error the opener waits
    /// for the monitor, as any other does.
    pub(crate) fn lend(&self, ofd: &Ofd, fd: i32) {
        stack::with_room(|| self.lend_here(ofd, fd));
    }

    fn lend_here(&self, ofd: &Ofd, fd: i32) {
        self.be_told(ofd);
        let _inside = engine::enter();
        together::before_publishing(ofd);
        let mut state = self.change();
        if let State::Staged(staged) = &*state
            && !staged.share()
            && staged.give_up(ofd, fd).is_ok()
        {
            let has_paid = staged.lasted(PAYS_AFTER);
            self.forget(&mut state, ofd, fd, has_paid);
        }
    }

    /// Before the last name goes: publishes, or leaves that to the monitor. An error is for the program, the bytes stay in
    /// the pool.
    pub(crate) fn finish(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        if stack::with_room(|| self.leave_to_monitor(ofd, fd)) {
            return Ok(());
        }
        self.finish_in_use(ofd, fd)
    }

    /// The same at the end of the process, when libc may still flush to the description, and other threads write.
    pub(crate) fn finish_in_use(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        let staged = {
            let _inside = engine::enter();
            matches!(*self.look(), State::Staged(_))
        };
        // A child of `vfork` goes on with the description, and does not find it in our table.
        if staged || process::has_vfork_children() {
            stack::with_room(|| self.unstage_as(ofd, fd, Ends::WithTheDescription))
        } else {
            Ok(())
        }
    }

    /// Leaves what is staged to the monitor, where nobody else has the description, and nothing else is to be committed with
    /// it.
    fn leave_to_monitor(&self, ofd: &Ofd, fd: i32) -> bool {
        if !init::closed_soon()
            || init::together()
            || ofd.common().is_some()
            || process::has_vfork_children()
        {
            return false;
        }
        let _inside = engine::enter();
        let mut state = self.change();
        let left = matches!(&*state, State::Staged(staged) if staged.leave_to_monitor(fd));
        if left {
            *state = State::Kernel;
            self.loan.end(true);
        }
        left
    }

    /// Takes the state to publish the file, which commits it. Where files are committed together the others are before,
    /// and nothing is written in between.
    pub(super) fn change_committed(&self, ofd: &Ofd) -> RwLockWriteGuard<'_, State> {
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

    /// After a write of the kernel's on trial: stages the file if that will pay, and lets go of it if not.
    pub(super) fn judge(&self, ofd: &Ofd, fd: i32, trial: &Trial, written: u64) {
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
}
