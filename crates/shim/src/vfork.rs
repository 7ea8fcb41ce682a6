//! Children of `vfork`, which run on their parent's memory until they execute a program or exit.
//!
//! Such a child must not change its parent's table of descriptors (F2: Python's child calls `close_range` on
//! everything). The parent's thread is suspended meanwhile, so the child is recognised by its thread pointer.
//!
//! What is staged stays so beside it, as beside a forked child: the two have the offset in common ([`crate::children`]), and
//! a child that uses a description in any way but to close it, or to execute a program that does not get it, asks for
//! the file first. A forked child finds what it has in its copy of the table; this one's was listed before it was made, as
//! other threads of its parent go on to change theirs. What it has asked for it may hand on, to the program that it
//! executes or to anybody else, so the kernel has that for good.
//!
//! A child may die at any instruction, and its parent goes on with the memory that it leaves. So it takes no lock of
//! its parent's and no memory: what it does to have a file is system calls, and a few words that are followed when
//! it has died between two of them ([`Common`]).
//!
//! # Safety
//! The entry keeps its return address in a register across the system call, because the child's return would otherwise
//! overwrite it. A list of what a child has is a box whose address is in its slot from before the child is made until its
//! parent goes on, and nobody else looks there.
#![allow(unsafe_code)]

use crate::children::{self, Common};
use crate::descriptors::{self, ends_with_us};
use crate::ofd::{self, Users};
use crate::process::{self, With};
use crate::{fds, signal, strangers, sys};
use core::arch::naked_asm;
use core::ffi::{c_int, c_long};
use core::ptr;
use core::sync::atomic::Ordering;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// With more at a time nothing stays promoted, see [`before`].
pub(crate) const AT_A_TIME: usize = 64;

/// A child that runs, of one thread.
struct Slot {
    /// The thread, by its thread pointer; zero is free.
    thread: AtomicUsize,
    /// The process that has taken it.
    taker: AtomicI32,
    /// Children of the child that run on the same memory, and theirs.
    nested: AtomicU32,
    /// Set until the child runs.
    begins: AtomicBool,
    /// Set while the child forks.
    forks: AtomicBool,
    /// Signals that the thread had blocked before.
    mask: AtomicU64,
    /// What the child has, or null.
    has: AtomicPtr<List>,
}

static SLOTS: [Slot; AT_A_TIME] = [const {
    Slot {
        thread: AtomicUsize::new(0),
        taker: AtomicI32::new(0),
        nested: AtomicU32::new(0),
        begins: AtomicBool::new(false),
        forks: AtomicBool::new(false),
        mask: AtomicU64::new(0),
        has: AtomicPtr::new(ptr::null_mut()),
    }
}; AT_A_TIME];

/// How many there are; at least as many as slots that are taken.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// What a child has in common with its parent.
type List = Vec<Had>;

/// A description that the child has, and has not used.
struct Had {
    /// The child's number of it; -1 once it is none any more, or the kernel has the description.
    fd: AtomicI32,
    common: &'static Common,
    /// Device and inode of the file.
    identity: (u64, u64),
}

impl Had {
    /// Asks for the file. A number that was closed where nobody saw it leads to something else by now.
    fn ask(&self) -> Result<(), c_int> {
        let fd = self.fd.load(Ordering::SeqCst);
        let stat = descriptors::regular_file(fd);
        if stat.is_some_and(|stat| (stat.st_dev, stat.st_ino) == self.identity) {
            // Before the parent finds that it is wanted, and looks who may have it.
            self.common.pass_on();
            ofd::ask_for(self.common, fd)?;
        }
        self.fd.store(-1, Ordering::SeqCst);
        Ok(())
    }
}

/// Whether any child runs on this process's memory.
#[inline]
pub(crate) fn any_runs() -> bool {
    RUNNING.load(Ordering::SeqCst) != 0
}

/// Whether the caller is a `vfork` child that still runs on its parent's memory.
#[inline]
pub(crate) fn in_child() -> bool {
    RUNNING.load(Ordering::Relaxed) != 0 && has_slot()
}

/// Apart, because every served call stands around it.
#[cold]
#[inline(never)]
fn has_slot() -> bool {
    slot().is_some()
}

/// The number of the caller's child among those that run, in the child and in its parent.
pub(crate) fn slot() -> Option<usize> {
    let me = sys::thread_word();
    SLOTS
        .iter()
        .position(|slot| slot.thread.load(Ordering::SeqCst) == me)
}

/// What the caller, a child, has and has not used.
fn each_had() -> impl Iterator<Item = &'static Had> {
    let has = slot().map(|nth| SLOTS[nth].has.load(Ordering::SeqCst));
    // SAFETY: see the module: the list is there as long as its child runs, and the caller is that.
    let list = has.and_then(|has| unsafe { has.as_ref() });
    let all = list.into_iter().flatten();
    all.filter(|had| had.fd.load(Ordering::SeqCst) >= 0)
}

/// In a child, before it uses `fd`: afterwards the kernel has all of that.
#[cold]
#[inline(never)]
pub(crate) fn before_use(fd: c_int) -> Result<(), c_int> {
    each_had()
        .filter(|had| had.fd.load(Ordering::SeqCst) == fd)
        .try_for_each(Had::ask)
}

/// In a child, which has closed `fd`, or has got that number for something else.
pub(crate) fn has_left(fd: c_int) {
    for had in each_had() {
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let _ = had.fd.compare_exchange(fd, -1, set, fetch);
    }
}

/// The same of a range of numbers.
pub(crate) fn has_left_all(numbers: core::ops::RangeInclusive<u32>) {
    for had in each_had() {
        if numbers.contains(&(had.fd.load(Ordering::SeqCst) as u32)) {
            had.fd.store(-1, Ordering::SeqCst);
        }
    }
}

/// In a child, before somebody else gets what it has: a program that it executes what is not closed then.
pub(crate) fn before_sharing(with: With) -> Result<(), c_int> {
    let stays = |had: &&Had| !ends_with_us(had.fd.load(Ordering::SeqCst));
    each_had()
        .filter(|had| with != With::Program || stays(had))
        .try_for_each(Had::ask)
}

/// Around a fork by a child.
pub(crate) fn around_fork<T>(create: impl FnOnce() -> T) -> T {
    let set = |forks| {
        if let Some(nth) = slot() {
            SLOTS[nth].forks.store(forks, Ordering::SeqCst);
        }
    };
    set(true);
    let created = create();
    set(false);
    created
}

/// In the child of a fork: none of these is its.
pub(crate) fn in_new_process() {
    if !any_runs() {
        return;
    }
    if slot().is_some_and(|nth| SLOTS[nth].forks.load(Ordering::SeqCst)) {
        // The table is about other numbers than those of this process's parent, which has left all to the kernel.
        fds::forget_all();
    }
    RUNNING.store(0, Ordering::SeqCst);
    for slot in &SLOTS {
        slot.thread.store(0, Ordering::SeqCst);
        slot.nested.store(0, Ordering::SeqCst);
        slot.begins.store(false, Ordering::SeqCst);
        slot.forks.store(false, Ordering::SeqCst);
        // The parent's list, of which this is a copy, is not given back here: a thread that this process has not may
        // have been about to.
        slot.has.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

/// Lists what a child that is made now has in common with this process.
fn list() -> *mut List {
    let had = |(fd, ofd): (c_int, Users<'static>)| {
        let writer = ofd.writer().filter(|writer| !writer.is_kernels())?;
        let common = ofd.common()?;
        Some(Had {
            fd: AtomicI32::new(fd),
            common,
            identity: writer.identity(),
        })
    };
    let all: List = fds::each_promoted().filter_map(had).collect();
    if all.is_empty() {
        return ptr::null_mut();
    }
    Box::into_raw(Box::new(all))
}

/// Called by [`vfork`] before the system call; zero, or why there must not be a child. When there is no
/// slot left, nothing stays promoted, so the child finds nothing it could change.
extern "C" fn before() -> c_int {
    if let Some(nth) = slot() {
        // What a child of this child does with it nobody sees.
        if let Err(errno) = before_sharing(With::Anybody) {
            return errno;
        }
        SLOTS[nth].nested.fetch_add(1, Ordering::SeqCst);
        return 0;
    }
    let with = if children::prepare() {
        With::Vfork
    } else {
        With::Anybody
    };
    // Before anybody has to wait for the child: that takes as long as a disk does.
    if let Err(errno) = process::show_all() {
        return errno;
    }
    // A handler that ran here after the slot is taken, or before it is free again, would be taken for the child.
    let mask = sys::block_signals();
    let begun = process::while_sharing(with, || begin(mask));
    if !matches!(begun, Ok(true)) {
        sys::set_signals(mask);
    }
    descriptors::refusal(begun.map(drop))
}

/// From here on this thread counts as its child, if there is a slot.
fn begin(mask: u64) -> bool {
    // Counted before a slot is taken: a child forked in between clears the slots by the count. And before the list is made:
    // who closes what is in it sees that.
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let (me, has) = (sys::thread_word(), list());
    let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
    let free = |slot: &&Slot| slot.thread.compare_exchange(0, me, set, fetch).is_ok();
    if let Some(slot) = SLOTS.iter().find(free) {
        slot.taker.store(children::this_process(), Ordering::SeqCst);
        slot.has.store(has, Ordering::SeqCst);
        slot.mask.store(mask, Ordering::SeqCst);
        slot.begins.store(true, Ordering::SeqCst);
        return true;
    }
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    descriptors::release_all();
    // SAFETY: made by `list` just now, and given to nobody.
    unsafe { give_back(has) };
    false
}

/// Frees a list.
///
/// # Safety
/// [`list`] made it, and nobody else has it.
unsafe fn give_back(list: *mut List) {
    if !list.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(list) });
    }
}

/// Called by [`vfork`] in the child, with zero, and in the parent when the child has executed or exited, with the raw
/// result; what the program is to see.
extern "C" fn after(result: c_long) -> c_int {
    match slot().map(|nth| (nth, &SLOTS[nth])) {
        // A child of a child has blocked nothing.
        Some((_, slot)) if result == 0 && !slot.begins.load(Ordering::SeqCst) => {}
        Some((_, slot)) if result == 0 => {
            slot.begins.store(false, Ordering::SeqCst);
            sys::set_signals(slot.mask.load(Ordering::SeqCst));
        }
        Some((nth, slot)) => end(nth, slot),
        None => {}
    }
    if result < 0 {
        sys::set_errno(-result as i32);
        return -1;
    }
    result as c_int
}

/// A child of this thread has executed or exited; if it was one of a child, the child goes on.
fn end(nth: usize, slot: &Slot) {
    strangers::child_is_gone(nth);
    let less = |nested: u32| nested.checked_sub(1);
    // A child that was killed while its own child ran has left its count.
    let own = children::this_process() == slot.taker.load(Ordering::SeqCst);
    let inner = slot
        .nested
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    if !own && inner.is_ok() {
        return;
    }
    let has = slot.has.swap(ptr::null_mut(), Ordering::SeqCst);
    let mask = slot.mask.load(Ordering::SeqCst);
    slot.forks.store(false, Ordering::SeqCst);
    slot.nested.store(0, Ordering::SeqCst);
    slot.begins.store(false, Ordering::SeqCst);
    slot.thread.store(0, Ordering::SeqCst);
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: `begin` put it there, and the child that had it is gone.
    unsafe { give_back(has) };
    sys::set_signals(mask);
    // What the thread knows of its mask may be what the child has found out about its own.
    signal::mask::forget();
}

/// `vfork`: returns twice on one stack, so the return address travels in rdi, which the system call
/// preserves.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn vfork() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {before}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "test eax, eax",
        "jne 3f",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rax",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {after}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_restore rip",
        "3:",
        "mov edi, eax",
        "jmp {refused}",
        ".cfi_endproc",
        before = sym before,
        after = sym after,
        refused = sym descriptors::minus_one,
        number = const libc::SYS_vfork,
    )
}
