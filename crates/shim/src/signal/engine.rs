//! Inside the engine, the program's handlers wait.
//!
//! A handler may write to the file whose lock the interrupted call holds, and may leave by
//! `siglongjmp`, never to come back. So in the modes that stage, every handler but those of SIGBUS
//! and SIGSEGV stands behind [`on_signal`]. Outside the engine that jumps straight to the program's
//! handler, which finds registers, stack, information and mask exactly as the kernel made them.
//! Inside, the signal goes back to the kernel, addressed to this thread and with the same
//! information, and the thread goes on with every signal blocked; when it leaves the engine its mask
//! is restored, and the kernel delivers what is pending. So nothing is stored here, the kernel keeps
//! the order, and handlers run outside.
//!
//! The kernel's action keeps the program's mask and flags, but for two: it always asks for the
//! signal's information, which is needed to send it again, and it never resets itself, because the
//! first delivery may be one that is put off. What the program asked for is one [`Wish`] per signal.
//!
//! A fault that is not a guarded copy's reaches the program's handler at once, also inside: there is
//! nothing to go back to. So do the other signals of faulting instructions, and of system calls that
//! a filter turned into a signal.
//!
//! A SIGBUS or SIGSEGV that somebody has only sent waits like others, but cannot be blocked until then: the thread notes
//! it, and sends it to itself when it leaves. Who sent it is lost.
//!
//! Of two signals of one kind that are sent to this very thread, and not to the process, at the
//! instant when the first is put off, the second may come first, or the two be one if their kind is
//! one that the kernel does not queue.
//!
//! # Safety
//! The thread's state is a small initial-exec thread-local object, which only the thread itself and
//! the handlers that interrupt it touch, word by word. The handler edits the mask in the context that
//! the kernel passed to it, in the kernel's fixed layout, and otherwise makes raw system calls on
//! live locals. It allocates nothing, locks nothing and keeps errno.
#![allow(unsafe_code)]

use super::{Wish, die, exchange};
use crate::thread::thread_object;
use crate::{init, sys, vfork};
use core::ffi::c_int;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, compiler_fence};

/// What a thread knows about being inside. All zero: outside.
#[repr(C)]
struct Thread {
    /// How many guards are alive.
    depth: AtomicU32,
    /// Whether a signal was put off, and `mask` is the thread's own.
    deferred: AtomicU32,
    mask: AtomicU64,
    /// The kind of cancellation to go back to.
    cancel: AtomicI32,
    /// Signals of faults that somebody has sent meanwhile.
    sent: AtomicU64,
}

thread_object!("adit_thread_engine", Thread);

/// Keeps the calling thread inside the engine. To be the first thing that a call makes and the last
/// that it drops: handlers that waited run in the drop, and may never return.
#[must_use]
pub(crate) struct Inside {
    /// What it was: a program that succeeds finds it so, whatever libc did for the engine.
    errno: c_int,
    /// It is the thread's that made it.
    _thread: PhantomData<*const ()>,
}

/// Enters the engine: until the guard is dropped no handler runs on this thread (see the module) and
/// nobody cancels it. Guards nest.
#[inline]
pub(crate) fn enter() -> Inside {
    let thread = thread();
    let depth = thread.depth.load(Ordering::Relaxed);
    thread.depth.store(depth + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let errno = sys::errno();
    // Inside already, so that no handler leaves by a jump between this and its undoing.
    if depth == 0 && !init::single_threaded() {
        defer_cancellation(thread);
    }
    Inside {
        errno,
        _thread: PhantomData,
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let thread = thread();
        compiler_fence(Ordering::SeqCst);
        let depth = thread.depth.load(Ordering::Relaxed);
        if depth > 1 {
            return thread.depth.store(depth - 1, Ordering::Relaxed);
        }
        if thread.cancel.load(Ordering::Relaxed) != CANCEL_DEFERRED {
            restore_cancellation(thread);
        }
        sys::set_errno(self.errno);
        thread.depth.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if thread.deferred.load(Ordering::Relaxed) != 0 {
            let_handlers_run(thread);
        }
        // Under the program's own mask, which a handler that jumps would not restore.
        if thread.sent.load(Ordering::Relaxed) != 0 {
            send_those_of_faults(thread);
        }
    }
}

/// Whether a signal of a fault that somebody has sent, where no instruction faulted, waits until the thread leaves the
/// engine. It cannot be blocked until then, as others are, so it is sent anew, by this thread.
pub(super) fn puts_off(signal: c_int) -> bool {
    let thread = thread();
    let inside = thread.depth.load(Ordering::Relaxed) != 0;
    if inside {
        thread.sent.fetch_or(bit(signal), Ordering::Relaxed);
    }
    inside
}

#[cold]
fn send_those_of_faults(thread: &Thread) {
    let sent = thread.sent.swap(0, Ordering::Relaxed);
    let (Ok(process), Ok(this)) = (sys::getpid(), sys::gettid()) else {
        return;
    };
    for signal in (1..=64).filter(|&signal| sent & bit(signal) != 0) {
        let _ = sys::tgkill(process, this, signal as usize);
    }
}

/// The thread is leaving the engine by way of a fault's handler, from where it may jump anywhere.
pub(super) fn abandon() {
    thread().depth.store(0, Ordering::Relaxed);
}

unsafe extern "C" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}
const CANCEL_DEFERRED: c_int = 0;
const CANCEL_ASYNCHRONOUS: c_int = 1;

/// A thread of the asynchronous kind, or one whose handler has interrupted a call that libc has made it so for, could be
/// cancelled with the engine's locks held. One of the usual kind cannot: nothing inside is a cancellation point.
#[cold]
fn defer_cancellation(thread: &Thread) {
    let mut kind = CANCEL_DEFERRED;
    // SAFETY: the pointer is to a live local.
    unsafe { pthread_setcanceltype(CANCEL_DEFERRED, &raw mut kind) };
    thread.cancel.store(kind, Ordering::Relaxed);
}

/// A thread that was cancelled meanwhile, and wants to be at any time, ends here.
#[cold]
fn restore_cancellation(thread: &Thread) {
    thread.cancel.store(CANCEL_DEFERRED, Ordering::Relaxed);
    // SAFETY: the null pointer says that nobody wants to know.
    unsafe { pthread_setcanceltype(CANCEL_ASYNCHRONOUS, core::ptr::null_mut()) };
}

/// Signals that are never put off, nor blocked meanwhile: those of faults, because blocked ones kill,
/// and the two that libc sends itself.
const OPEN: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS)
    | bit(32)
    | bit(33);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

fn set_mask(mask: u64) {
    let _ = sys::rt_sigprocmask(
        libc::SIG_SETMASK as usize,
        &raw const mask as usize,
        0,
        size_of::<u64>(),
    );
}

/// Gives the thread its mask back: the kernel delivers what was put off, here.
#[cold]
fn let_handlers_run(thread: &Thread) {
    let mask = thread.mask.load(Ordering::Relaxed);
    thread.deferred.store(0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    set_mask(mask);
}

/// What the program asked for, by signal.
static WISHES: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Signals whose actions the program set before the library was started.
static EARLY: AtomicU64 = AtomicU64::new(0);

/// The two flags that the kernel's action does not show.
const HIDDEN: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND;

/// Set once the program has asked for a handler, but for those of SIGBUS and SIGSEGV.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Whether a handler of the program's may interrupt its calls: where nothing is staged it runs at once, also inside.
#[inline]
pub(crate) fn may_interrupt() -> bool {
    HANDLED.load(Ordering::Relaxed)
}

/// Notes that the program asks for this handler, address or [`libc::SIG_IGN`] and its kind.
pub(super) fn note_handler(handler: usize) {
    if ![libc::SIG_DFL, libc::SIG_IGN, libc::SIG_ERR].contains(&handler) {
        HANDLED.store(true, Ordering::Relaxed);
    }
}

fn wish_of(signal: c_int) -> Option<&'static AtomicU64> {
    WISHES.get(usize::try_from(signal).ok()?.checked_sub(1)?)
}

fn is_handler(action: &libc::sigaction) -> bool {
    ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_signal as *const () as usize
}

/// A disposition of a signal on its way to the kernel.
pub(super) struct Change {
    /// The word of the wish, if it was changed.
    changed: Option<&'static AtomicU64>,
    /// The wish before.
    before: Wish,
}

/// Notes what the program asks for and makes `action` what the kernel is to have instead.
pub(super) fn change(signal: c_int, action: Option<&mut libc::sigaction>) -> Change {
    let mut change = Change {
        changed: None,
        before: Wish(0),
    };
    let Some(word) = wish_of(signal) else {
        return change;
    };
    change.before = Wish(word.load(Ordering::SeqCst));
    if let Some(action) = action {
        note_handler(action.sa_sigaction);
        if !init::staging() {
            EARLY.fetch_or(bit(signal), Ordering::SeqCst);
        } else if is_handler(action) {
            change.before = Wish(word.swap(Wish::asked(action).0, Ordering::SeqCst));
            change.changed = Some(word);
            put_in_front(action);
        }
    }
    change
}

fn put_in_front(action: &mut libc::sigaction) {
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = (action.sa_flags & !HIDDEN) | libc::SA_SIGINFO;
}

impl Change {
    /// The kernel refused.
    pub(super) fn undo(self) {
        if let Some(word) = self.changed {
            word.store(self.before.0, Ordering::SeqCst);
        }
    }

    /// Makes of the kernel's action before what the program had asked for.
    pub(super) fn show_before(&self, kernel: &mut libc::sigaction) {
        show(self.before, kernel);
    }
}

fn show(wish: Wish, kernel: &mut libc::sigaction) {
    if is_ours(kernel) {
        kernel.sa_sigaction = wish.handler();
        kernel.sa_flags = (kernel.sa_flags & !HIDDEN) | (wish.flags() & HIDDEN);
    }
}

/// Puts [`on_signal`] in front of the handlers that other libraries' constructors have set. For our
/// own constructor, when it has found that files are to be staged.
pub(crate) fn start() {
    let early = EARLY.load(Ordering::SeqCst);
    for signal in (1..=64).filter(|&signal| early & bit(signal) != 0) {
        let Some(mut action) = exchange(signal, None).filter(is_handler) else {
            continue;
        };
        let change = change(signal, Some(&mut action));
        if exchange(signal, Some(&action)).is_none() {
            change.undo();
        }
    }
}

// The kernel's action for every handler.
super::enters_where_told!(on_signal, decide);

/// Returns the address of the handler to jump to, or 0 to return from the signal.
unsafe extern "C" fn decide(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> usize {
    let thread = thread();
    if thread.depth.load(Ordering::Relaxed) != 0 {
        // SAFETY: the kernel passes its own siginfo_t.
        let caused = unsafe { (*info).si_code } > 0 && OPEN & bit(signal) != 0;
        if caused {
            abandon();
        } else {
            // SAFETY: the information and the context are the kernel's.
            unsafe { put_off(thread, signal, info, context) };
            return 0;
        }
    }
    // SAFETY: the information is the kernel's.
    unsafe { handler_of(signal, info) }
}

/// Sends the signal again, to be delivered when the thread has its mask back. Of several that the
/// kernel delivered at once, the last to return is the one that came first: its context has the mask
/// of the interrupted code, and stays.
unsafe fn put_off(
    thread: &Thread,
    signal: c_int,
    info: *const libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    let held = !OPEN | bit(signal);
    set_mask(held);
    // SAFETY: the caller's.
    unsafe { send_again(signal, info) };
    // SAFETY: the kernel's ucontext_t, whose mask is one word at the start of libc's larger type.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        thread.mask.store(mask.read(), Ordering::Relaxed);
        mask.write(mask.read() | held);
    }
    thread.deferred.store(1, Ordering::Relaxed);
}

/// The handler that the program asked for. A disposition that is good for once is used up by the one
/// thread that wins it; for the others it is the default already.
unsafe fn handler_of(signal: c_int, info: *const libc::siginfo_t) -> usize {
    let Some(word) = wish_of(signal) else {
        return 0;
    };
    let mut wish = Wish(word.load(Ordering::SeqCst));
    if wish.0 & Wish::RESET != 0 && wish.handler() != libc::SIG_DFL {
        let used = wish.0 & !Wish::ADDRESS;
        // A child of `vfork` uses up its own disposition, and the word is about its parent's.
        let take = || match vfork::in_child() {
            true => Ok(wish.0),
            false => word.compare_exchange(wish.0, used, Ordering::SeqCst, Ordering::SeqCst),
        };
        match take() {
            Ok(_) => reset(signal, Wish(used)),
            Err(other) => wish = Wish(other),
        }
    }
    if wish.handler() == libc::SIG_DFL {
        // SAFETY: the caller's.
        unsafe { die(signal, info) };
    }
    wish.handler()
}

/// Does what the kernel does to an action that is good for once: the default, all else as it was.
fn reset(signal: c_int, used: Wish) {
    if let Some(mut action) = exchange(signal, None).filter(is_ours) {
        show(used, &mut action);
        exchange(signal, Some(&action));
    }
}

/// Sends this thread a signal that was delivered to it once more. All signals are blocked.
unsafe fn send_again(signal: c_int, info: *const libc::siginfo_t) {
    let (Ok(process), Ok(thread)) = (sys::getpid(), sys::gettid()) else {
        return;
    };
    let send = |info: usize| sys::rt_tgsigqueueinfo(process, thread, signal as usize, info).is_ok();
    if !send(info as usize) {
        // Too many signals are queued for one with its information; one without is never refused.
        // SAFETY: all zero is a valid siginfo_t: one that a process sent.
        let bare: libc::siginfo_t = unsafe { core::mem::zeroed() };
        send(&raw const bare as usize);
    }
}
