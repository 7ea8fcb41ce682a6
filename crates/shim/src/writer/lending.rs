//! Descriptions that others have, too: children that were forked or made by `vfork`, and calls of the kernel's.
//!
//! A fork leaves everything as it is, but for the offset, which parent and child have in common then
//! ([`crate::children`]). A child that uses a description first says that it wants the file, and tries to open it: so whoever
//! stages it publishes, as for any opener. From then on the parent's is *lent*: fresh, but the kernel writes and has the
//! offset, until the children have ended. One that a call of the kernel's copies into is lent until that call has
//! returned ([`crate::copies`]).
//!
//! # Safety
//! State and account of a description are replaced in a forked child, by its only thread.
#![allow(unsafe_code)]

use super::{State, Writer};
use crate::account::Account;
use crate::children::{self, Others, To};
use crate::fresh::Fresh;
use crate::ofd::Ofd;
use crate::signal::engine;
use crate::{descriptors, process, stack, stage};
use adit_store::registry::Reason;
use adit_store::staged::{Mode, Scope};
use core::mem;
use core::sync::atomic::Ordering;
use std::sync::RwLock;

impl Writer {
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
    #[inline]
    pub(crate) fn be_told(&self, ofd: &Ofd) {
        if process::is_untold_child() {
            // SAFETY: a child has one thread until its handlers have run, and this one holds nothing of the state.
            unsafe { self.in_new_process(ofd.common().is_some()) };
        }
    }

    /// Asks for the file of a description that this process was forked with, before it uses it for the first time:
    /// afterwards the kernel has all of it, for both.
    #[inline]
    pub(crate) fn ask_the_parent(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        self.be_told(ofd);
        if self.parents.load(Ordering::Relaxed) {
            self.take_from_the_parent(ofd, fd)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn take_from_the_parent(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
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
    /// cannot be. So much is shown, as far as it can be: a child that never opens the file looks at its size.
    fn keep(&self, ofd: &Ofd, fd: i32, shows: Option<Scope>) -> bool {
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
            State::Staged(staged) => {
                if let Some(scope) = shows {
                    drop(staged.show(fd, scope));
                }
            }
            // A child's copy of a mapping would keep the file in use.
            _ => *state = State::Fresh(Fresh::new()),
        }
        self.mapped.store(false, Ordering::Relaxed);
        true
    }

    /// Before a call of the kernel's that copies into the file, or uses the offset: publishes everything and lends the
    /// description to the kernel until the next write behind [`Self::call_has_returned`]. After an error the file is
    /// staged as before.
    pub(crate) fn lend_for_a_call(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
        stack::with_room(|| self.lend_for_a_call_here(ofd, fd))
    }

    fn lend_for_a_call_here(&self, ofd: &Ofd, fd: i32) -> Result<(), i32> {
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
    pub(super) fn lend_out(&self, ofd: &Ofd, fd: i32, to: To, why: Reason) {
        if to == To::Children && ofd.common().is_none() {
            children::lent_without_a_place();
        }
        self.loan.begin(fd, to);
        self.become_the_kernels(ofd, fd, why);
    }

    fn become_the_kernels(&self, ofd: &Ofd, fd: i32, why: Reason) {
        self.try_to_bar(fd);
        self.named.store(stage::UNNAMED, Ordering::Relaxed);
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
        if ours {
            self.needs_no_bar();
        } else {
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
    pub(super) fn while_lent<T>(
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
}
