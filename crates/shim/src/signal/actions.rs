//! The calls by which a program sets and reads dispositions.
//!
//! For SIGBUS and SIGSEGV they act on the program's wish once our handler is in front. For every
//! other signal they are libc's, except that where files are staged a handler stands behind
//! [`engine`]'s, and that a handler's mask keeps SIGBUS and SIGSEGV open once files are served, so
//! that a handler may be served too; the program still reads back what it set.
//!
//! # Safety
//! C entry points: pointers are the program's and are read and written as libc would, which follows
//! them without asking.
#![allow(unsafe_code)]

use super::{Handler, READY, Wish, engine, exchange, libc_sigaction, put_in_front, wish_of};
use crate::real::call_real;
use crate::{init, table, vfork};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

/// For SIGBUS and SIGSEGV: the signals (bit `n - 1`) whose handler's mask, as the program set it,
/// contains it. From [`READY`] on the kernel's mask does not.
static MASKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
const FAULTS: [c_int; 2] = super::SIGNALS;

/// Signals whose dispositions the program set up with the interrupting kind of `signal`.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

fn bit(signal: c_int) -> u64 {
    if (1..=64).contains(&signal) {
        1 << (signal - 1)
    } else {
        0
    }
}

fn holds(action: &libc::sigaction, signal: c_int) -> bool {
    // SAFETY: a live set and a valid signal.
    unsafe { libc::sigismember(&raw const action.sa_mask, signal) == 1 }
}

fn hold(action: &mut libc::sigaction, signal: c_int) {
    // SAFETY: as above.
    unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
}

fn let_go(action: &mut libc::sigaction, signal: c_int) {
    // SAFETY: as above.
    unsafe { libc::sigdelset(&raw mut action.sa_mask, signal) };
}

/// Notes which fault signals the mask of a new action for `signal` holds; `None` holds none.
fn note_mask(signal: c_int, action: Option<&libc::sigaction>) {
    for (known, fault) in MASKED.iter().zip(FAULTS) {
        if action.is_some_and(|action| holds(action, fault)) {
            known.fetch_or(bit(signal), Ordering::SeqCst);
        } else if known.load(Ordering::Relaxed) & bit(signal) != 0 {
            known.fetch_and(!bit(signal), Ordering::SeqCst);
        }
    }
}

/// Opens the fault signals in the handlers' masks that were set before anything was served.
pub(super) fn strip_known_masks() {
    let known = MASKED
        .iter()
        .fold(0, |all, known| all | known.load(Ordering::SeqCst));
    for signal in (1..=64).filter(|&signal| known & bit(signal) != 0) {
        if let Some(mut action) = exchange(signal, None) {
            FAULTS
                .into_iter()
                .for_each(|fault| let_go(&mut action, fault));
            exchange(signal, Some(&action));
        }
    }
}

pub(crate) extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: null or the program's action, which libc would read as well.
    let new = unsafe { new.as_ref() }.copied();
    let mut before = super::no_action();
    let result = set(signal, new.as_ref(), &mut before);
    if result == 0 && !old.is_null() {
        // SAFETY: where libc would write.
        unsafe { old.write(before) };
    }
    result
}

/// Sets or only reads the disposition of a signal, as the program sees it.
fn set(signal: c_int, new: Option<&libc::sigaction>, old: &mut libc::sigaction) -> c_int {
    if wish_of(signal).is_some() {
        fault_action(signal, new, old)
    } else {
        other_action(signal, new, old)
    }
}

fn native(signal: c_int, new: Option<&libc::sigaction>, old: &mut libc::sigaction) -> c_int {
    let new = new.map_or(core::ptr::null(), |action| &raw const *action);
    libc_sigaction(signal, new, old)
}

/// The disposition of SIGBUS or SIGSEGV.
fn fault_action(signal: c_int, new: Option<&libc::sigaction>, old: &mut libc::sigaction) -> c_int {
    let Some(word) = wish_of(signal) else {
        return -1;
    };
    let serving = READY.load(Ordering::SeqCst);
    // A vfork child has its own dispositions, and must not change its parent's memory.
    if !serving || vfork::in_child() {
        let result = native(signal, new, old);
        *old = Wish(word.load(Ordering::SeqCst)).seen_in(old);
        if !serving && READY.load(Ordering::SeqCst) {
            put_in_front(signal);
        }
        return result;
    }
    let Some(new) = new else {
        let result = native(signal, None, old);
        *old = Wish(word.load(Ordering::SeqCst)).seen_in(old);
        return result;
    };
    let wish = word.swap(Wish::asked(new).0, Ordering::SeqCst);
    let result = native(signal, Some(&Wish::guarded(new)), old);
    if result != 0 {
        word.store(wish, Ordering::SeqCst);
    }
    *old = Wish(wish).seen_in(old);
    result
}

/// The disposition of any other signal.
fn other_action(signal: c_int, new: Option<&libc::sigaction>, old: &mut libc::sigaction) -> c_int {
    let masked = [0, 1].map(|at: usize| MASKED[at].load(Ordering::SeqCst) & bit(signal) != 0);
    let serving = READY.load(Ordering::SeqCst);
    let mut kernel = new.copied();
    if let Some(action) = kernel.as_mut().filter(|_| serving) {
        FAULTS.into_iter().for_each(|fault| let_go(action, fault));
    }
    let result = in_front(signal, kernel, old);
    if result == 0 {
        for (fault, _) in FAULTS.into_iter().zip(masked).filter(|&(_, masked)| masked) {
            hold(old, fault);
        }
        if new.is_some() && !vfork::in_child() {
            note_mask(signal, new);
            if !serving && READY.load(Ordering::SeqCst) {
                strip_known_masks();
            }
        }
    }
    result
}

/// As [`native`], with [`engine`]'s handler in front of the program's where that is wanted. A vfork
/// child has dispositions of its own, but what we know of them is its parent's.
fn in_front(signal: c_int, mut new: Option<libc::sigaction>, old: &mut libc::sigaction) -> c_int {
    let wrapped = new.as_mut().filter(|_| !vfork::in_child());
    let change = engine::change(signal, wrapped);
    let result = native(signal, new.as_ref(), old);
    if result == 0 {
        change.show_before(old);
    } else {
        change.undo();
    }
    result
}

/// Whether libc's own ways of setting this signal's disposition would go past us.
fn is_ours(signal: c_int) -> bool {
    wish_of(signal).is_some() || init::staging()
}

/// Sets a plain handler for a signal that is ours in the ways of `signal` and its relatives.
fn plain(signal: c_int, handler: Handler, flags: c_int, hold_itself: bool) -> Handler {
    if handler == libc::SIG_ERR as Handler {
        crate::sys::set_errno(libc::EINVAL);
        return handler;
    }
    let mut new = super::no_action();
    new.sa_sigaction = handler as usize;
    new.sa_flags = flags;
    if hold_itself {
        hold(&mut new, signal);
    }
    let mut old = super::no_action();
    match set(signal, Some(&new), &mut old) {
        0 => old.sa_sigaction as Handler,
        _ => libc::SIG_ERR as Handler,
    }
}

/// `signal`: restarting, one signal at a time.
pub(crate) extern "C" fn signal(signal: c_int, handler: Handler) -> Handler {
    if is_ours(signal) {
        let interrupts = INTERRUPTING.load(Ordering::Relaxed) & bit(signal) != 0;
        let flags = if interrupts { 0 } else { libc::SA_RESTART };
        return plain(signal, handler, flags, true);
    }
    note_mask_of_plain(signal);
    engine::note_handler(handler as usize);
    type Function = unsafe extern "C" fn(c_int, Handler) -> Handler;
    // SAFETY: libc's own function with the program's own arguments.
    unsafe { call_real!(table::signal, Function)(signal, handler) }
}

/// `sysv_signal`: once, and open to itself.
pub(crate) extern "C" fn sysv_signal(signal: c_int, handler: Handler) -> Handler {
    if is_ours(signal) {
        // glibc also sets a flag that the kernel of this architecture gives no meaning to.
        const SA_INTERRUPT: c_int = 0x2000_0000;
        let flags = libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT;
        return plain(signal, handler, flags, false);
    }
    note_mask_of_plain(signal);
    engine::note_handler(handler as usize);
    type Function = unsafe extern "C" fn(c_int, Handler) -> Handler;
    // SAFETY: libc's own function with the program's own arguments.
    unsafe { call_real!(table::sysv_signal, Function)(signal, handler) }
}

/// What `sigvec` sets and tells.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Vector {
    handler: usize,
    mask: c_int,
    flags: c_int,
}

impl Vector {
    const ON_STACK: c_int = 1;
    const INTERRUPT: c_int = 2;
    const RESET: c_int = 4;
    /// Signals that its mask has room for.
    const SIGNALS: core::ops::RangeInclusive<c_int> = 1..=32;
    /// Its flags, and those of an action. What interrupts is what does not restart.
    const FLAGS: [(c_int, c_int); 3] = [
        (Self::ON_STACK, libc::SA_ONSTACK),
        (Self::RESET, libc::SA_RESETHAND),
        (Self::INTERRUPT, libc::SA_RESTART),
    ];

    fn action(self) -> libc::sigaction {
        let mut action = super::no_action();
        action.sa_sigaction = self.handler;
        for (own, flag) in Self::FLAGS {
            if (self.flags ^ Self::INTERRUPT) & own != 0 {
                action.sa_flags |= flag;
            }
        }
        let held = |signal: &c_int| self.mask & 1 << (signal - 1) != 0;
        Self::SIGNALS
            .filter(held)
            .for_each(|signal| hold(&mut action, signal));
        action
    }

    fn of(action: &libc::sigaction) -> Self {
        let (mut mask, mut flags) = (0, Self::INTERRUPT);
        for signal in Self::SIGNALS.filter(|signal| holds(action, *signal)) {
            mask |= 1 << (signal - 1);
        }
        for (own, _) in Self::FLAGS
            .iter()
            .filter(|(_, flag)| action.sa_flags & flag != 0)
        {
            flags ^= own;
        }
        let handler = action.sa_sigaction;
        Self {
            handler,
            mask,
            flags,
        }
    }
}

/// `sigvec`, which libc has for programs that were linked before it was taken out of its headers.
pub(crate) extern "C" fn sigvec(signal: c_int, new: *const Vector, old: *mut Vector) -> c_int {
    // SAFETY: null or the program's own, which libc would read as well.
    let new = unsafe { new.as_ref() }.map(|new| new.action());
    let mut before = super::no_action();
    let result = set(signal, new.as_ref(), &mut before);
    if result == 0 && !old.is_null() {
        // SAFETY: where libc would write.
        unsafe { old.write(Vector::of(&before)) };
    }
    result
}

/// `sigignore`.
pub(crate) extern "C" fn sigignore(signal: c_int) -> c_int {
    if is_ours(signal) {
        let before = plain(signal, libc::SIG_IGN as Handler, 0, false);
        return if before == libc::SIG_ERR as Handler {
            -1
        } else {
            0
        };
    }
    note_mask_of_plain(signal);
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    unsafe { call_real!(table::sigignore, Function)(signal) }
}

/// `sigset`: a disposition and the thread's mask in one.
pub(crate) extern "C" fn sigset(signal: c_int, handler: Handler) -> Handler {
    const SIG_HOLD: Handler = 2 as Handler;
    super::mask::forget();
    if !is_ours(signal) {
        if handler != SIG_HOLD {
            note_mask_of_plain(signal);
            engine::note_handler(handler as usize);
        }
        type Function = unsafe extern "C" fn(c_int, Handler) -> Handler;
        // SAFETY: libc's own function with the program's own arguments.
        return unsafe { call_real!(table::sigset, Function)(signal, handler) };
    }
    let (how, before) = if handler == SIG_HOLD {
        let mut old = super::no_action();
        if set(signal, None, &mut old) != 0 {
            return libc::SIG_ERR as Handler;
        }
        (libc::SIG_BLOCK, old.sa_sigaction as Handler)
    } else {
        (libc::SIG_UNBLOCK, plain(signal, handler, 0, false))
    };
    if before == libc::SIG_ERR as Handler {
        return before;
    }
    let itself = bit(signal);
    let mut mask = 0u64;
    let _ = crate::sys::rt_sigprocmask(
        how as usize,
        &raw const itself as usize,
        &raw mut mask as usize,
        size_of::<u64>(),
    );
    super::mask::forget();
    if mask & bit(signal) != 0 {
        SIG_HOLD
    } else {
        before
    }
}

/// After `siginterrupt(signal, flag)`, which set the flag in the kernel's action and remembers it.
pub(crate) extern "C" fn interrupts(
    signal: c_int,
    interrupt: c_int,
    _c: usize,
    result: c_int,
) -> c_int {
    if interrupt != 0 {
        INTERRUPTING.fetch_or(bit(signal), Ordering::Relaxed);
    } else {
        INTERRUPTING.fetch_and(!bit(signal), Ordering::Relaxed);
    }
    if let Some(word) = wish_of(signal) {
        let restart = Wish::of(&libc::sigaction {
            sa_flags: libc::SA_RESTART,
            ..super::no_action()
        });
        if interrupt != 0 {
            word.fetch_and(!restart.0, Ordering::SeqCst);
        } else {
            word.fetch_or(restart.0, Ordering::SeqCst);
        }
    }
    result
}

/// Plain handlers of other signals have masks without the fault signals.
fn note_mask_of_plain(signal: c_int) {
    if !vfork::in_child() {
        note_mask(signal, None);
    }
}
