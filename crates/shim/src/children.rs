//! Children that may have this process's descriptions, and when nobody has them any more.
//!
//! A server that forks to save itself shares all its descriptions with the child. What a child uses is the
//! kernel's, and comes back when every child that may have it has ended: the parent asks for its
//! children by number, as it may ask for nobody else's, without waiting for them, and a child that gives
//! descriptions to anybody else says so before it does, in a page that it shares with its parent. A program that it
//! executes or starts gets what it has used, as nobody knows under which numbers, and what is not closed then: these do not
//! come back. By fork, a socket or a ring it gives all of them away, and from then on nothing comes back to that parent. What
//! a child of `vfork` has used does not come back either ([`crate::vfork`]).
//!
//! A description that a child never uses stays staged: the two have its offset in common there ([`Common`]), and a
//! child that does use it asks for the file first, as anybody who opens it does. Only then, or where there is no room,
//! offset and flags are the kernel's until the children have ended; see [`Loan`].
//!
//! # Safety
//! The pages are never unmapped, so pointers to them stay good; all zero is a value of theirs.
#![allow(unsafe_code)]

use crate::{init, process, sys, vfork};
use adit_store::direct::shared;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, Ordering};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

/// What a parent and its children have in common.
#[repr(C)]
struct Page {
    /// Set before a child passes descriptions on to who may have them for ever.
    passed_on: AtomicU32,
    /// Set when a child may have descriptions that were lent to it and are not in the list.
    others: AtomicU32,
    descriptions: [Common; MOST_KEPT],
}

impl Page {
    /// Which of these one is, if it is one.
    fn place_of(&self, common: &Common) -> Option<usize> {
        self.descriptions
            .iter()
            .position(|one| ptr::eq(one, common))
    }
}

/// Descriptions that stay staged while there are children who may have them; with more, the others are lent.
const MOST_KEPT: usize = 100;

/// A description that stays staged although forked children have it, too.
#[repr(C)]
pub(crate) struct Common {
    /// As that of [`crate::ofd::Ofd`], in whose place it is.
    pub(crate) offset: AtomicI64,
    /// What is on its way to the kernel. Written by who holds the lock alone.
    pub(crate) handing: AtomicI64,
    /// The process that takes the offset to the kernel.
    holder: AtomicI32,
    /// Set before a child asks for the file: from then on nothing is staged until the children have ended.
    wanted: AtomicU32,
    /// Set before this one is passed on, to a program that is executed or started: nobody knows who has it then.
    passed_on: AtomicU32,
    /// One of [`FREE`], [`USED`], [`LEFT`].
    use_: AtomicU32,
    /// Whether the program opened the file with `O_APPEND`, which may be missing as long as the offset is not the
    /// kernel's.
    appends: AtomicU32,
}

const FREE: u32 = 0;
const USED: u32 = 1;
/// The parent has closed it; a child may still have it.
const LEFT: u32 = 2;

/// The right to take the offset to the kernel.
pub(crate) struct Handing<'a>(&'a Common);

impl Drop for Handing<'_> {
    fn drop(&mut self) {
        self.0.holder.store(0, Ordering::SeqCst);
    }
}

impl Common {
    /// One for a description of this process, with its offset; `None` where there is no room. What a child may still
    /// have is not used again: another thread's fork may be about to make one that is not known yet.
    pub(crate) fn new(offset: i64, appends: bool) -> Option<&'static Self> {
        let page = page(&OWN).filter(|_| OWNER.load(Ordering::SeqCst) == this_process())?;
        let take = |from: u32| {
            let taken = |one: &&Self| one.becomes(from, USED);
            page.descriptions.iter().find(taken)
        };
        let is_nobodys =
            || process::sharers() <= 1 && !vfork::any_runs() && others(None) == Others::None;
        let one = match take(FREE) {
            Some(one) => one,
            None => {
                let one = take(LEFT)?;
                // Asked once it is taken: whoever may have it was there before it was left.
                if !is_nobodys() {
                    one.becomes(USED, LEFT);
                    return None;
                }
                one
            }
        };
        one.wanted.store(0, Ordering::SeqCst);
        one.passed_on.store(0, Ordering::SeqCst);
        one.appends.store(u32::from(appends), Ordering::SeqCst);
        one.offset.store(offset, Ordering::SeqCst);
        Some(one)
    }

    fn becomes(&self, from: u32, to: u32) -> bool {
        let use_ = &self.use_;
        use_.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The parent has closed the description. A child that closes it says nothing: it has its own copy of the page
    /// that knows of it.
    pub(crate) fn leave(&'static self) {
        let ours = page(&OWN).and_then(|page| page.place_of(self));
        if ours.is_some() && OWNER.load(Ordering::SeqCst) == this_process() {
            self.becomes(USED, LEFT);
        }
    }

    /// See the field.
    pub(crate) fn appends(&self) -> bool {
        self.appends.load(Ordering::SeqCst) != 0
    }

    /// A child is about to ask for the file.
    pub(crate) fn want(&self) {
        // Who was not told yet has both in its parent's places.
        let parents = if is_untold() { &OWN } else { &PARENTS };
        // A child of `vfork` would write into its parent's, and has passed it on anyway.
        if let Some(used) = page(parents).and_then(|page| page.place_of(self))
            && !vfork::in_child()
        {
            USERS_OF_THE_PARENTS[used].store(this_process(), Ordering::SeqCst);
        }
        self.wanted.store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != 0
    }

    /// Somebody else is about to have it, for as long as he likes.
    pub(crate) fn pass_on(&self) {
        self.passed_on.store(1, Ordering::SeqCst);
    }

    /// Nobody has it beside the parent.
    pub(crate) fn is_alone(&self) {
        self.wanted.store(0, Ordering::SeqCst);
    }

    /// Waits for the right to take the offset to the kernel. Who died with it has left it.
    pub(crate) fn lock(&self) -> Handing<'_> {
        let this = this_process();
        let mut seen = 0;
        loop {
            match self
                .holder
                .compare_exchange(seen, this, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return Handing(self),
                Err(holder) if holder == 0 || (holder != this && is_dead(holder)) => seen = holder,
                Err(_) => {
                    seen = 0;
                    let _ = sys::sched_yield();
                }
            }
        }
    }

    /// Whether the offset is on its way by a process that has died.
    pub(crate) fn is_stuck(&self) -> bool {
        let holder = self.holder.load(Ordering::SeqCst);
        holder != 0 && holder != this_process() && is_dead(holder)
    }
}

/// Whether a process has ended, waited for or not.
fn is_dead(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else {
        return true;
    };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => {
            let mut one = [PollFd::new(&handle, PollFlags::IN)];
            let now = rustix::event::Timespec::default();
            rustix::event::poll(&mut one, Some(&now)).is_ok_and(|ready| ready > 0)
        }
        Err(errno) => errno == Errno::SRCH,
    }
}

/// Children that are looked after at a time; with more nothing comes back.
const MOST: usize = 64;

/// For this process's children, with the process that it was made for.
static OWN: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The one that this process was forked with.
static PARENTS: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
/// Who has asked for those in it: this process, or one before it.
static USERS_OF_THE_PARENTS: [AtomicI32; MOST_KEPT] = [const { AtomicI32::new(0) }; MOST_KEPT];
/// Numbers of children; zero is free.
static ALIVE: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];
/// Some child is not in the list.
static TOO_MANY: AtomicBool = AtomicBool::new(false);

fn page(pointer: &AtomicPtr<Page>) -> Option<&'static Page> {
    // SAFETY: null, or a page that stays; see the module.
    unsafe { pointer.load(Ordering::SeqCst).as_ref() }
}

/// Before a fork, by one thread or several: whether what the child gets can come back.
pub(crate) fn prepare() -> bool {
    if init::mode().is_none() {
        return false;
    }
    if page(&OWN).is_none() {
        let Some(fresh) = shared(size_of::<Page>()) else {
            return false;
        };
        OWNER.store(this_process(), Ordering::SeqCst);
        // Of two threads one page is enough: either has it before it forks.
        let (none, one) = (ptr::null_mut(), fresh.cast());
        let _ = OWN.compare_exchange(none, one, Ordering::SeqCst, Ordering::SeqCst);
    }
    true
}

/// A child was forked, while nothing is taken back.
pub(crate) fn born(pid: i32) {
    let enter = |slot: &AtomicI32| {
        slot.compare_exchange(0, pid, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    };
    forget_the_dead();
    if !ALIVE.iter().any(enter) {
        TOO_MANY.store(true, Ordering::SeqCst);
    }
}

/// Before a program is executed or started, which gets what is not closed then. Of what this process was forked with and
/// has not used it is known which number leads there; what it has used may have others by now, of which nobody knows.
pub(crate) fn pass_on_what_was_used() {
    let Some(page) = page(&PARENTS).filter(|page| page.others.load(Ordering::SeqCst) == 0) else {
        return pass_on();
    };
    if is_untold() {
        return pass_on();
    }
    let this = this_process();
    for (common, user) in page.descriptions.iter().zip(&USERS_OF_THE_PARENTS) {
        if user.load(Ordering::SeqCst) == this {
            common.pass_on();
        }
    }
}

/// A description without a place in the list is lent to children.
pub(crate) fn lent_without_a_place() {
    if let Some(page) = page(&OWN) {
        page.others.store(1, Ordering::SeqCst);
    }
}

/// Before this process gives descriptions to anybody.
pub(crate) fn pass_on() {
    if let Some(page) = page(&PARENTS) {
        page.passed_on.store(1, Ordering::SeqCst);
    }
    if let Some(page) = page(&OWN).filter(|_| is_untold()) {
        page.passed_on.store(1, Ordering::SeqCst);
    }
}

/// Before a child is made that is not looked after.
pub(crate) fn another() {
    TOO_MANY.store(true, Ordering::SeqCst);
}

/// The number of this process.
pub(crate) fn this_process() -> i32 {
    sys::getpid().map_or(0, |pid| pid as i32)
}

/// Whether what this process knows of its children is its parent's.
pub(crate) fn is_untold() -> bool {
    page(&OWN).is_some() && OWNER.load(Ordering::SeqCst) != this_process()
}

/// In the child of a fork.
pub(crate) fn in_new_process() {
    // In this order: whoever passes something on in between finds one of them.
    PARENTS.store(OWN.load(Ordering::SeqCst), Ordering::SeqCst);
    OWN.store(ptr::null_mut(), Ordering::SeqCst);
    for slot in &ALIVE {
        slot.store(0, Ordering::SeqCst);
    }
    TOO_MANY.store(false, Ordering::SeqCst);
}

/// Who else has descriptions that children were forked with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// Nobody.
    None,
    /// Children that have not ended.
    Children,
    /// That will never be known.
    Unknown,
}

/// Who else there is, of all descriptions or of one.
pub(crate) fn others(of: Option<&Common>) -> Others {
    forget_the_dead();
    let alive = ALIVE.iter().any(|slot| slot.load(Ordering::SeqCst) != 0);
    // Asked after the children: who has ended says no more.
    let is_kept = |passed_on: &AtomicU32| passed_on.load(Ordering::SeqCst) == 0;
    let kept = page(&OWN).is_none_or(|page| is_kept(&page.passed_on))
        && of.is_none_or(|common| is_kept(&common.passed_on));
    if !kept || TOO_MANY.load(Ordering::SeqCst) {
        Others::Unknown
    } else if alive {
        Others::Children
    } else {
        Others::None
    }
}

fn forget_the_dead() {
    for slot in &ALIVE {
        let pid = slot.load(Ordering::SeqCst);
        if pid != 0 && has_ended(pid) {
            let _ = slot.compare_exchange(pid, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// Whether a child has ended: it has no descriptors any more then, waited for or not. A number that another
/// child has by now speaks of that one, which has a slot of its own.
fn has_ended(pid: i32) -> bool {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let asked = sys::waitid(
        libc::P_PID as usize,
        pid as usize,
        info.as_mut_ptr() as usize,
        options as usize,
        0,
    );
    // SAFETY: all zero is a value of it, and the kernel has filled it or left it; of an ended child it tells
    // the number.
    let about = unsafe { info.assume_init().si_pid() };
    match asked {
        Ok(_) => about == pid,
        Err(errno) => errno == libc::ECHILD,
    }
}

/// Writes through the kernel between two looks for the children: the first time, and at most. To stage a
/// file and to take it away again costs as much as a hundred writes.
const FIRST: u32 = 16;
const LONGEST: u32 = 4096;

/// A description that forked children have as well.
pub(crate) struct Loan {
    /// Writes until the next look; zero when it is not lent.
    left: AtomicU32,
    /// Writes between two looks.
    between: AtomicU32,
    /// Its status flags when it was lent.
    flags: AtomicU32,
    to_children: AtomicBool,
    /// Children have it: the flags are those that it had when the first of them was forked.
    kept: AtomicBool,
}

/// Who has a lent description beside this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// Nobody: it only cannot be staged now.
    Nobody,
    /// Children, or one that another thread is about to have.
    Children,
}

impl Loan {
    pub(crate) const fn new() -> Self {
        Self {
            left: AtomicU32::new(0),
            between: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            to_children: AtomicBool::new(false),
            kept: AtomicBool::new(false),
        }
    }

    /// Begins. Before the offset goes to the kernel: who finds it there must see that it may come back.
    pub(crate) fn begin(&self, fd: i32, to: To) {
        if to == To::Children {
            self.to_children.store(true, Ordering::SeqCst);
        }
        let between = match (init::credit(), self.between.load(Ordering::Relaxed)) {
            (Some(0), _) => 1,
            (_, 0) => FIRST,
            (_, between) => (2 * between).min(LONGEST),
        };
        self.between.store(between, Ordering::SeqCst);
        // Those of one that is lent already, or that children have, may be a child's doing.
        if !self.is_out() && !self.kept.load(Ordering::SeqCst) {
            self.flags.store(status_flags(fd), Ordering::Relaxed);
        }
        self.left.store(between, Ordering::SeqCst);
    }

    /// Children are about to have the description, which is not lent to them. `added` are the flags that the program
    /// knows it by and the kernel does not.
    pub(crate) fn keep(&self, fd: i32, added: i32) {
        if !self.kept.swap(true, Ordering::SeqCst) {
            let flags = status_flags(fd) | added as u32;
            self.flags.store(flags, Ordering::Relaxed);
        }
    }

    /// As [`Loan::begin`], to nobody, until the next write.
    pub(crate) fn begin_for_a_call(&self, fd: i32) {
        // From now on it has been lent.
        let (none, first) = (0, FIRST);
        let _ = self
            .between
            .compare_exchange(none, first, Ordering::SeqCst, Ordering::SeqCst);
        if !self.kept.load(Ordering::SeqCst) {
            self.flags.store(status_flags(fd), Ordering::Relaxed);
        }
        self.left.store(1, Ordering::SeqCst);
    }

    /// Nobody looks before the next write: what keeps the file from being staged would be asked for ever.
    pub(crate) fn lasts_for_a_write(&self) {
        self.left.fetch_max(2, Ordering::SeqCst);
    }

    /// It is not lent any more. `alone`: children do not have it either, or it is the kernel's for good.
    pub(crate) fn end(&self, alone: bool) {
        self.to_children.store(false, Ordering::SeqCst);
        if alone {
            self.kept.store(false, Ordering::SeqCst);
        }
        self.left.store(0, Ordering::SeqCst);
    }

    pub(crate) fn is_out(&self) -> bool {
        self.left.load(Ordering::SeqCst) != 0
    }

    /// Whether children may have it.
    pub(crate) fn is_to_children(&self) -> bool {
        self.to_children.load(Ordering::SeqCst)
    }

    /// Whether it was lent at any time.
    pub(crate) fn has_ever_been(&self) -> bool {
        self.between.load(Ordering::SeqCst) != 0
    }

    /// Counts a write; whether it is time to look. Of threads that race some go free.
    pub(crate) fn is_due(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 1 {
            let _ =
                self.left
                    .compare_exchange(left, left - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        left == 1
    }

    /// The next look comes later.
    pub(crate) fn goes_on(&self) {
        let between = self.between.load(Ordering::Relaxed);
        self.left.store(between, Ordering::SeqCst);
    }

    /// Whether the children have left its flags as they were.
    pub(crate) fn is_unchanged(&self, fd: i32) -> bool {
        status_flags(fd) == self.flags.load(Ordering::Relaxed)
    }
}

/// The status flags of a description, but for that of a lease; one that is not open has none like them.
fn status_flags(fd: i32) -> u32 {
    let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
    flags.map_or(u32::MAX, |flags| flags as u32 & !(libc::O_ASYNC as u32))
}

/// Whether a description tells somebody by a signal: a child has asked for that, or the monitor has not left it yet.
pub(crate) fn has_signals(fd: i32) -> bool {
    const F_GETSIG: i32 = 11;
    let set = |command: i32| sys::fcntl(fd as usize, command as usize, 0) != Ok(0);
    set(libc::F_GETOWN) || set(F_GETSIG)
}
