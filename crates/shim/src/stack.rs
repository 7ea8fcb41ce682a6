//! Stacks that are too small for the engine.
//!
//! To stage a file takes 40 KB of stack, a write to a staged one 12. A handler on an alternate stack may have 8, a thread
//! 16, a coroutine whatever its library gave it, and what lies below is other people's. Where there is less than [`NEEDED`]
//! below, the engine works on a stack of its own, inside ([`engine`]), so that no handler runs there or leaves it by a jump.
//!
//! What a thread knows of the stacks that it runs on are ranges: its alternate stack, which it asks for ([`alternate`]); the
//! stack of ours that it is on; where there was room, found out by asking for the pages below, which are there on a stack and
//! end at its guard; and where there was not. The first thread's stack is known from the start. A stack that is a piece of
//! other memory, with no guard, is not told from a large one unless it is the alternate stack; nor is a small one where a
//! large one was unmapped.
//!
//! # Safety
//! The ranges are a small initial-exec thread-local object, which only the thread itself touches, word by word, and a
//! handler that interrupts it: whatever half of a range it finds, it finds too little room at worst, or looks anew. Stacks
//! are fresh mappings with a guard below, each given to one call at a time.
#![allow(unsafe_code)]

use crate::signal::engine;
use crate::thread::thread_object;
use crate::{init, sys, vfork};
use adit_store::direct::anonymous;
use core::arch::{asm, naked_asm};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect, munmap};

const PAGE: usize = 4096;

/// Bytes of stack that the deepest call of the engine takes, and the kernel for a fault in it.
const NEEDED: usize = 14 * PAGE;

/// Bytes of a stack of our own, its guard included.
const STACK: usize = 64 * PAGE;

/// Stacks that are kept for the next who needs one.
const KEPT: usize = 8;

/// A range of addresses; none, when all is zero.
#[repr(C)]
struct Range {
    low: AtomicUsize,
    len: AtomicUsize,
}

impl Range {
    const fn new() -> Self {
        Self {
            low: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }

    fn get(&self) -> (usize, usize) {
        (
            self.low.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
        )
    }

    /// How far `at` is above the lower end of the range, if it is inside.
    #[inline]
    fn above(&self, at: usize) -> Option<usize> {
        let above = at.wrapping_sub(self.low.load(Ordering::Relaxed));
        (above < self.len.load(Ordering::Relaxed)).then_some(above)
    }

    /// Has `low..high` as well, or instead where that lies apart.
    fn extend(&self, low: usize, high: usize) {
        let before = self.low.load(Ordering::Relaxed);
        let end = before + self.len.load(Ordering::Relaxed);
        if low <= end && before <= high {
            let low = low.min(before);
            self.set(low, high.max(end) - low);
        } else {
            self.set(low, high - low);
        }
    }

    fn set(&self, low: usize, len: usize) {
        // In an order in which a handler finds nothing rather than half of both.
        self.len.store(0, Ordering::SeqCst);
        self.low.store(low, Ordering::SeqCst);
        self.len.store(len, Ordering::SeqCst);
    }
}

/// What a thread knows of its stacks.
#[repr(C)]
struct Thread {
    alternate: Range,
    roomy: Range,
    small: Range,
    /// The stack of ours that it is on.
    own: Range,
}

thread_object!("adit_thread_stacks", Thread);

#[inline]
fn stack_pointer() -> usize {
    let at: usize;
    // SAFETY: copies a register.
    unsafe { asm!("mov {at}, rsp", at = out(reg) at, options(nostack, nomem, preserves_flags)) };
    at
}

/// Does the engine's work where there is room for it.
#[inline]
pub(crate) fn with_room<T>(work: impl FnOnce() -> T) -> T {
    if is_enough(thread(), stack_pointer()) {
        work()
    } else {
        elsewhere(work)
    }
}

#[inline]
fn is_enough(thread: &Thread, here: usize) -> bool {
    if thread.alternate.above(here).is_none()
        && let Some(above) = thread.roomy.above(here)
    {
        return above >= NEEDED || look(thread, here);
    }
    look(thread, here)
}

#[cold]
fn look(thread: &Thread, here: usize) -> bool {
    // Where nothing is staged, or in a sandbox that may know none of our calls, the engine does not come so far.
    if !init::staging() || init::credit().is_none() {
        return true;
    }
    let known = [&thread.alternate, &thread.own, &thread.small];
    if let Some(above) = known.into_iter().find_map(|range| range.above(here)) {
        return above >= NEEDED;
    }
    // Set by a system call that nobody saw, or before we were there.
    if let Some(stack) = kernels_alternate()
        && stack.ss_flags & libc::SS_ONSTACK != 0
    {
        alternate_is(thread, &stack);
        return here.saturating_sub(stack.ss_sp as usize) >= NEEDED;
    }
    if let Some(above) = MAIN.above(here) {
        let (low, len) = MAIN.get();
        thread.roomy.set(low, len);
        return above >= NEEDED;
    }
    let page = here & !(PAGE - 1);
    if is_stack(page - NEEDED, NEEDED) {
        thread.roomy.extend(page - NEEDED, page + PAGE);
        return true;
    }
    // Kernels before 5.14 do not tell: there the engine works on whatever stack there is.
    if !is_stack(page, PAGE) {
        return true;
    }
    let is_next = |low: &usize| is_stack(*low, PAGE);
    let pages = (1..=NEEDED / PAGE).map(|pages| page - pages * PAGE);
    let low = pages.take_while(is_next).last().unwrap_or(page);
    thread.small.set(low, page + PAGE - low);
    false
}

/// The first thread's stack, which the kernel makes longer as it is used: what is below is there for it, but not yet.
static MAIN: Range = Range::new();

/// More of it is not taken for granted, however large the limit is.
const MAIN_AT_MOST: usize = 8 << 20;

/// For our constructor, which the first thread runs near the upper end of its stack.
pub(crate) fn begin() {
    let limit = init::limit(libc::RLIMIT_STACK).map_or(MAIN_AT_MOST, |limit| limit as usize);
    let high = (stack_pointer() & !(PAGE - 1)) + PAGE;
    // The program's arguments are above, which may have a quarter of it, and the kernel keeps some free below.
    let len = limit.min(MAIN_AT_MOST).min(high) / 8 * 5;
    MAIN.set(high - len, len);
}

/// Whether all of these pages can be read; that they are there afterwards does no harm, as they are about to be used.
fn is_stack(low: usize, len: usize) -> bool {
    // SAFETY: no byte of the range changes.
    unsafe { madvise(low as *mut c_void, len, Advice::LinuxPopulateRead) }.is_ok()
}

fn kernels_alternate() -> Option<libc::stack_t> {
    let mut stack = NO_STACK;
    sys::sigaltstack(0, &raw mut stack as usize).ok()?;
    Some(stack)
}

const NO_STACK: libc::stack_t = libc::stack_t {
    ss_sp: core::ptr::null_mut(),
    ss_flags: libc::SS_DISABLE,
    ss_size: 0,
};

fn alternate_is(thread: &Thread, stack: &libc::stack_t) {
    let len = match stack.ss_flags & libc::SS_DISABLE {
        0 => stack.ss_size,
        _ => 0,
    };
    thread.alternate.set(stack.ss_sp as usize, len);
}

/// After `sigaltstack`. Who only asked changed nothing; a handler on a stack that the kernel has disarmed for it is told that
/// there is none.
pub(crate) extern "C" fn alternate(new: usize, _old: usize, _none: usize, result: c_int) -> c_int {
    if new != 0
        && let Some(stack) = kernels_alternate()
    {
        alternate_is(thread(), &stack);
    }
    result
}

/// A stack of our own, ready for use.
struct Stack(*mut u8);

static STACKS: [AtomicPtr<u8>; KEPT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; KEPT];

impl Stack {
    fn take() -> Option<Self> {
        let kept = STACKS
            .iter()
            .map(|kept| kept.swap(core::ptr::null_mut(), Ordering::AcqRel));
        if let Some(kept) = kept.into_iter().find(|kept| !kept.is_null()) {
            return Some(Self(kept));
        }
        let fresh = anonymous(STACK)?;
        // SAFETY: the lowest page of a mapping of ours that nobody uses yet.
        if unsafe { mprotect(fresh, PAGE, MprotectFlags::empty()) }.is_err() {
            // SAFETY: as above, all of it.
            let _ = unsafe { munmap(fresh, STACK) };
            return None;
        }
        Some(Self(fresh.cast()))
    }

    /// Where it begins, and grows down from.
    fn top(&self) -> *mut u8 {
        self.0.wrapping_add(STACK)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let is_free = |kept: &AtomicPtr<u8>| {
            let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
            kept.compare_exchange(core::ptr::null_mut(), self.0, set, fetch)
                .is_ok()
        };
        if !STACKS.iter().any(is_free) {
            // SAFETY: a mapping of ours that nobody uses any more.
            let _ = unsafe { munmap(self.0.cast(), STACK) };
        }
    }
}

/// Does the work on a stack of our own. Without one it is done here: too little room is no worse than none.
#[cold]
fn elsewhere<T, F: FnOnce() -> T>(work: F) -> T {
    // A child of `vfork` would leave with the stack.
    if vfork::in_child() {
        return work();
    }
    let inside = engine::enter();
    let Some(stack) = Stack::take() else {
        drop(inside);
        return work();
    };
    let thread = thread();
    let from_alternate = thread.alternate.above(stack_pointer()).is_some();
    let mask = from_alternate.then(sys::block_signals);
    let mut call = Call {
        work: MaybeUninit::new(work),
        result: MaybeUninit::uninit(),
        from_alternate,
    };
    thread.own.set(stack.0 as usize, STACK);
    // SAFETY: the stack is this call's, and the function gets what it is made for, and leaves a result.
    let result = unsafe {
        on_stack(stack.top(), run::<T, F>, (&raw mut call).cast());
        call.result.assume_init()
    };
    // What the work says is the program's to see, and not what was there before.
    let errno = sys::errno();
    thread.own.set(0, 0);
    if let Some(mask) = mask {
        sys::set_signals(mask);
    }
    drop(stack);
    drop(inside);
    sys::set_errno(errno);
    result
}

struct Call<T, F> {
    work: MaybeUninit<F>,
    result: MaybeUninit<T>,
    /// Whoever comes from his alternate stack has no other signals meanwhile than those of faults, and these come here: the
    /// kernel would not know that the alternate stack is in use, and begin again at its end.
    from_alternate: bool,
}

/// The first function on a stack of our own.
unsafe extern "C" fn run<T, F: FnOnce() -> T>(call: *mut c_void) {
    // SAFETY: see `elsewhere`, which lends the call to this function alone.
    let call = unsafe { &mut *call.cast::<Call<T, F>>() };
    let (off, mut before) = (NO_STACK, NO_STACK);
    let is_off = call.from_alternate
        && sys::sigaltstack(&raw const off as usize, &raw mut before as usize).is_ok();
    // SAFETY: it is taken out once, here.
    let work = unsafe { call.work.assume_init_read() };
    call.result.write(work());
    if is_off {
        let _ = sys::sigaltstack(&raw const before as usize, 0);
    }
}

/// Calls a function on another stack, which begins at `top`.
#[unsafe(naked)]
unsafe extern "C" fn on_stack(
    top: *mut u8,
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}
