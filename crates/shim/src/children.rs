//! Forked children that may have this process's descriptions, and when nobody has them any more.
//!
//! A server that forks to save itself shares all its descriptions with the child, so what is staged goes
//! to the kernel first. It comes back when every child that may have it has ended: the parent asks for its
//! children by number, as it may ask for nobody else's, without waiting for them, and a child that gives
//! descriptions to anybody else, by fork, exec, spawn, a socket or a ring, says so before it does, in a page
//! that it shares with its parent. From then on nothing comes back to that parent.
//!
//! What a description is worth to its child (offset, flags) is the kernel's meanwhile; see [`Loan`].
//!
//! # Safety
//! The pages are never unmapped, so pointers to them stay good; all zero is a value of theirs.
#![allow(unsafe_code)]

use crate::{init, sys};
use adit_store::direct::shared;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// What a parent and its children have in common.
#[repr(C)]
struct Page {
    /// Set before a child passes descriptions on.
    passed_on: AtomicU32,
}

/// Children that are looked after at a time; with more nothing comes back.
const MOST: usize = 64;

/// For this process's children, with the process that it was made for.
static OWN: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The one that this process was forked with.
static PARENTS: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
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

/// Before this process gives descriptions to anybody.
pub(crate) fn pass_on() {
    if let Some(page) = page(&PARENTS) {
        page.passed_on.store(1, Ordering::SeqCst);
    }
    // A handler in a child that does not know yet that it is one.
    if let Some(page) = page(&OWN)
        && OWNER.load(Ordering::SeqCst) != this_process()
    {
        page.passed_on.store(1, Ordering::SeqCst);
    }
}

/// The number of this process.
pub(crate) fn this_process() -> i32 {
    sys::getpid().map_or(0, |pid| pid as i32)
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

/// Who else there is.
pub(crate) fn others() -> Others {
    forget_the_dead();
    let alive = ALIVE.iter().any(|slot| slot.load(Ordering::SeqCst) != 0);
    // Asked after the children: who has ended says no more.
    let kept = page(&OWN).is_none_or(|page| page.passed_on.load(Ordering::SeqCst) == 0);
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
        // Those of one that is lent already may be a child's doing.
        if !self.is_out() {
            self.flags.store(status_flags(fd), Ordering::Relaxed);
        }
        self.left.store(between, Ordering::SeqCst);
    }

    /// As [`Loan::begin`], to nobody, until the next write.
    pub(crate) fn begin_for_a_call(&self, fd: i32) {
        // From now on it has been lent.
        let (none, first) = (0, FIRST);
        let _ = self
            .between
            .compare_exchange(none, first, Ordering::SeqCst, Ordering::SeqCst);
        self.flags.store(status_flags(fd), Ordering::Relaxed);
        self.left.store(1, Ordering::SeqCst);
    }

    /// Nobody looks before the next write: what keeps the file from being staged would be asked for ever.
    pub(crate) fn lasts_for_a_write(&self) {
        self.left.fetch_max(2, Ordering::SeqCst);
    }

    /// It is not lent, or will never come back.
    pub(crate) fn end(&self) {
        self.to_children.store(false, Ordering::SeqCst);
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

    /// Whether the children have left its flags as they were, and have asked for no signals.
    pub(crate) fn is_unchanged(&self, fd: i32) -> bool {
        const F_GETSIG: i32 = 11;
        let none = |command: i32| sys::fcntl(fd as usize, command as usize, 0) == Ok(0);
        status_flags(fd) == self.flags.load(Ordering::Relaxed)
            && none(libc::F_GETOWN)
            && none(F_GETSIG)
    }
}

/// The status flags of a description, but for that of a lease; one that is not open has none like them.
fn status_flags(fd: i32) -> u32 {
    let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
    flags.map_or(u32::MAX, |flags| flags as u32 & !(libc::O_ASYNC as u32))
}
