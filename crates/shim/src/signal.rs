//! SIGBUS and SIGSEGV, shared between the guarded copies and the program.
//!
//! A guarded copy that faults is continued at its exit by a signal handler (PROTOCOLS F5). The
//! program has a disposition of its own for the same signals, and believes that it is in force.
//!
//! **Dispositions.** From the first promotion on ([`ready`]) the kernel's action for both signals is
//! [`on_fault`], installed with the program's own mask, restart and alternate-stack flags. A fault
//! that is not a guarded copy's jumps from there to the program's handler with the registers, the
//! stack and the return address that the kernel made, so the handler sees exactly what it would see
//! without us and may leave as it likes (`siglongjmp`, an exception, `pthread_exit`). What the
//! program asked for is one word per signal; mask and remaining flags stay in the kernel's action.
//! [`actions`] holds the interposed calls that read and write it, [`engine`] does the like for all
//! other signals where files are staged.
//!
//! **Masks.** The kernel kills a process that faults on a blocked signal, whatever its handler. We do
//! not unblock behind the program's back: a thread that has SIGBUS or SIGSEGV blocked is not served,
//! its calls go to the kernel. [`mask`] holds what a thread knows about itself.
//!
//! What cannot be seen: dispositions and masks set by raw system calls after the first promotion, and
//! a mask that a handler opened for itself, kept for a served call, and lost again by returning.
//!
//! # Safety
//! The handler reads the signal information and edits the context that the kernel passed to it, in
//! the kernel's fixed layout. It runs nothing that allocates, locks or faults.
#![allow(unsafe_code)]

/// Defines a kernel's action for signals: what `decide` returns is the address of the program's handler, which is
/// entered as the kernel entered us, or 0, to go back where the signal came from.
macro_rules! enters_where_told {
    ($name:ident, $decide:ident) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "call {decide}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "je 2f",
                "jmp rax",
                "2:",
                "ret",
                ".cfi_endproc",
                decide = sym $decide,
            )
        }
    };
}
use enters_where_told;

pub(crate) mod actions;
pub(crate) mod engine;
pub(crate) mod mask;

use crate::real::call_real;
use crate::{descriptors, sys, table, vfork};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The two signals of a faulting copy.
const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// Set once [`on_fault`] is the kernel's action for both.
static READY: AtomicBool = AtomicBool::new(false);

/// What the program asked for; see [`Wish`].
static WISHES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The kernel's flag for "has a restorer", which shows in an action that libc ever set.
const SA_RESTORER: c_int = 0x0400_0000;

fn wish_of(signal: c_int) -> Option<&'static AtomicU64> {
    match signal {
        libc::SIGBUS => Some(&WISHES[0]),
        libc::SIGSEGV => Some(&WISHES[1]),
        _ => None,
    }
}

/// The part of a disposition that the kernel's action cannot hold beside ours: the handler, and the
/// flags that say how it is entered. One word, so that the handler reads it whole: an address has at
/// most 57 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wish(u64);

impl Wish {
    const ADDRESS: u64 = (1 << 57) - 1;
    const RESET: u64 = 1 << 57;
    /// Each flag and its bit.
    const FLAGS: [(c_int, u64); 6] = [
        (SA_RESTORER, 1 << 62),
        (libc::SA_RESETHAND, Self::RESET),
        (libc::SA_SIGINFO, 1 << 58),
        (libc::SA_ONSTACK, 1 << 59),
        (libc::SA_RESTART, 1 << 60),
        (libc::SA_NODEFER, 1 << 61),
    ];
    const ALL_FLAGS: c_int = SA_RESTORER
        | libc::SA_RESETHAND
        | libc::SA_SIGINFO
        | libc::SA_ONSTACK
        | libc::SA_RESTART
        | libc::SA_NODEFER;

    fn of(action: &libc::sigaction) -> Self {
        let flags = Self::FLAGS
            .iter()
            .filter(|(flag, _)| action.sa_flags & flag != 0)
            .fold(0, |all, (_, bit)| all | bit);
        Self((action.sa_sigaction as u64 & Self::ADDRESS) | flags)
    }

    /// What a program wants that calls libc with `action`: libc always adds a restorer.
    fn asked(action: &libc::sigaction) -> Self {
        Self::of(&libc::sigaction {
            sa_flags: action.sa_flags | SA_RESTORER,
            ..*action
        })
    }

    fn handler(self) -> usize {
        (self.0 & Self::ADDRESS) as usize
    }

    fn flags(self) -> c_int {
        Self::FLAGS
            .iter()
            .filter(|(_, bit)| self.0 & bit != 0)
            .fold(0, |all, (flag, _)| all | flag)
    }

    /// The flags of the kernel's action while this is what the program wants.
    fn kernel_flags(self) -> c_int {
        const MIRRORED: c_int = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
        libc::SA_SIGINFO
            | match self.handler() {
                libc::SIG_DFL => libc::SA_ONSTACK,
                // An ignored signal interrupts nothing; restarting is as near as we get.
                libc::SIG_IGN => libc::SA_ONSTACK | libc::SA_RESTART,
                _ => self.flags() & MIRRORED,
            }
    }

    /// The kernel's action for a program that wants `action`.
    fn guarded(action: &libc::sigaction) -> libc::sigaction {
        let mut kernel = *action;
        kernel.sa_sigaction = on_fault as *const () as usize;
        kernel.sa_flags = (action.sa_flags & !Self::ALL_FLAGS) | Self::of(action).kernel_flags();
        kernel
    }

    /// What the program would find in the place of the kernel's action.
    fn seen_in(self, kernel: &libc::sigaction) -> libc::sigaction {
        let mut action = *kernel;
        if is_ours(kernel) {
            action.sa_sigaction = self.handler();
            action.sa_flags = (kernel.sa_flags & !Self::ALL_FLAGS) | self.flags();
            if self.flags() & SA_RESTORER == 0 {
                action.sa_restorer = None;
            }
        }
        action
    }
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// An action to be filled in.
fn no_action() -> libc::sigaction {
    // SAFETY: all zero is the valid action SIG_DFL with no flags and an empty mask.
    unsafe { core::mem::zeroed() }
}

/// libc's `sigaction`, which supplies the restorer that unwinders and debuggers know.
fn libc_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    type Function =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: libc's own function; pointers are null, the program's, or to live locals.
    unsafe { call_real!(table::sigaction, Function)(signal, new, old) }
}

/// Sets the kernel's action and returns the one before; `None` if the kernel refuses.
fn exchange(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let mut old = no_action();
    let new = new.map_or(core::ptr::null(), |action| &raw const *action);
    (libc_sigaction(signal, new, &raw mut old) == 0).then_some(old)
}

/// Makes faults in guarded copies survivable: installs our handler in front of the program's, and
/// says whether that worked. To be called before anything is promoted; idempotent,
/// async-signal-safe, and free after the first time.
pub(crate) fn ready() -> bool {
    if READY.load(Ordering::Acquire) {
        return true;
    }
    // A vfork child has dispositions of its own, but this would be noted in its parent's memory.
    if vfork::in_child() || !SIGNALS.into_iter().all(put_in_front) {
        return false;
    }
    READY.store(true, Ordering::SeqCst);
    adit_pmem::fault::is_survived_if(|| READY.load(Ordering::SeqCst) && mask::faults_open());
    // Whoever changed an action without seeing READY checks it again afterwards and comes here.
    actions::strip_known_masks();
    true
}

/// Whether the calling thread may run a guarded copy now.
pub(crate) fn guards() -> bool {
    ready() && mask::faults_open()
}

/// Puts [`on_fault`] in front of what the kernel has for `signal`. The word is written first, so
/// that a fault at any instant finds whom to pass on to; if the action changed in between, again.
fn put_in_front(signal: c_int) -> bool {
    let Some(word) = wish_of(signal) else {
        return false;
    };
    let Some(mut action) = exchange(signal, None) else {
        return false;
    };
    // Each turn means that another thread changed the action just then.
    for _ in 0..100 {
        if is_ours(&action) {
            return true;
        }
        word.store(Wish::of(&action).0, Ordering::SeqCst);
        match exchange(signal, Some(&Wish::guarded(&action))) {
            Some(before) if before.sa_sigaction == action.sa_sigaction => return true,
            Some(before) => action = before,
            None => return false,
        }
    }
    false
}

/// Before a new program is started: by exec, or by a spawn that copies our dispositions.
///
/// A handler becomes the default there, but an ignored signal stays ignored, so the kernel must have
/// `SIG_IGN` where the program believes it has. Ignoring a fault kills, so nothing may be served any
/// more. Programs that ignore these two signals are rare; this one goes on as if without us.
pub(crate) fn before_program() {
    let ignored = |word: &AtomicU64| Wish(word.load(Ordering::SeqCst)).handler() == libc::SIG_IGN;
    if !READY.load(Ordering::SeqCst) || !WISHES.iter().any(ignored) {
        return;
    }
    // A vfork child has dispositions of its own but our memory: only the former are changed.
    if !vfork::in_child() {
        descriptors::release_all();
        READY.store(false, Ordering::SeqCst);
    }
    for signal in SIGNALS {
        if let (Some(word), Some(kernel)) = (wish_of(signal), exchange(signal, None)) {
            let wish = Wish(word.load(Ordering::SeqCst));
            exchange(signal, Some(&wish.seen_in(&kernel)));
        }
    }
}

// The kernel's action for both signals.
enters_where_told!(on_fault, decide);

/// Returns the address of the handler to jump to, or 0 to return from the signal.
unsafe extern "C" fn decide(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> usize {
    // SAFETY: the kernel passes its own siginfo_t.
    let code = unsafe { (*info).si_code };
    // Without this, a memory error found in passing would look like a fault of the copy.
    let in_passing = signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO;
    // Codes of zero and less say that a process sent the signal: no instruction faulted.
    let fault = code > 0;
    if fault && !in_passing {
        // SAFETY: the kernel passes its own ucontext_t, which nobody else uses meanwhile.
        let ip = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        if let Some(exit) = adit_pmem::fault::handle(*ip as usize) {
            *ip = exit as i64;
            return 0;
        }
    }
    let Some(word) = wish_of(signal) else {
        return 0;
    };
    let wish = Wish(word.load(Ordering::SeqCst));
    match wish.handler() {
        libc::SIG_IGN if !fault => 0,
        // The first process of a pid namespace is not killed by signals that it does not handle.
        // SAFETY: getpid has no preconditions.
        libc::SIG_DFL if !fault && unsafe { libc::getpid() } == 1 => 0,
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the information is the kernel's.
            unsafe { die(signal, info) };
            0
        }
        _ if !fault && engine::puts_off(signal) => 0,
        handler => {
            if wish.0 & Wish::RESET != 0 {
                let reset = wish.0 & !Wish::ADDRESS;
                if !vfork::in_child() {
                    let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
                    let _ = word.compare_exchange(wish.0, reset, set, fetch);
                } else if let Some(kernel) = exchange(signal, None) {
                    // It uses up its own disposition, and the word is about its parent's.
                    exchange(signal, Some(&Wish(reset).seen_in(&kernel)));
                }
            }
            // The handler runs under the mask that the program asked for.
            mask::forget();
            engine::abandon();
            handler
        }
    }
}

/// Lets the signal have its default effect when the handler returns: the same signal, with the same
/// information, is queued again, so status and core dump are those of the original. Returning alone
/// would not do: the fault may not recur.
unsafe fn die(signal: c_int, info: *const libc::siginfo_t) {
    exchange(signal, Some(&no_action()));
    let (process, thread) = (sys::getpid().unwrap_or(0), sys::gettid().unwrap_or(0));
    if sys::rt_tgsigqueueinfo(process, thread, signal as usize, info as usize).is_err() {
        let _ = sys::tgkill(process, thread, signal as usize);
    }
}

/// A handler in the signatures of `signal` and its relatives.
type Handler = *const c_void;
