//! From a fault to the copy's exit.
//!
//! [`handle`] is the whole mechanism: a pure look-up from the faulting instruction's address to the
//! address to continue at. The preloaded library calls it from the handlers that it puts in front of
//! the program's own; the command and the tests use [`install`].
//!
//! # Safety
//!
//! The unsafe code of [`install`] talks to the kernel about signal actions by raw system calls (the
//! library that we preload interposes libc's `sigaction`), and its handler edits the interrupted
//! context. It changes the context only when the interrupted instruction lies in a guarded range,
//! where continuing at the fixup is an early return (see `arch::x86_64`). A function is kept as an address, and called as
//! what it was.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// What says whether the calling thread survives a fault of a guarded routine, or null.
static ASKED: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// The address to continue at if the instruction at `ip` faulted inside a guarded routine; `None` if
/// the fault is not ours. Pure and async-signal-safe.
#[inline]
pub fn handle(ip: usize) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    {
        crate::arch::x86_64::fixup_for(ip)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = ip;
        None
    }
}

/// The kernel refused a signal handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot install the fault handler: error {0} from rt_sigaction")]
pub struct InstallError(pub i32);

/// Installs handlers for SIGBUS and SIGSEGV that continue guarded routines and hand every other
/// fault to whatever was installed before. Further calls do nothing.
///
/// For programs of our own (the command, the tests). The preloaded library has handlers of its own.
pub fn install() -> Result<(), InstallError> {
    #[cfg(target_arch = "x86_64")]
    {
        handlers::install().inspect(|()| is_survived_if(|| true))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        Ok(())
    }
}

/// For who has handlers of its own that ask [`handle`]: how it is found out whether they are there, and the signals open in
/// the calling thread. May be called in a handler of a signal, and so may `ask`.
pub fn is_survived_if(ask: fn() -> bool) {
    ASKED.store(ask as *mut (), Ordering::Release);
}

/// Whether the calling thread survives a fault of a guarded routine, as far as is known. One that does not would be the end
/// of its process when it stores to a page for which a file system finds no space.
#[must_use]
pub fn is_survived() -> bool {
    let asked = ASKED.load(Ordering::Acquire);
    if asked.is_null() {
        return false;
    }
    // SAFETY: nothing but `is_survived_if` stores there, and that such a function.
    let ask: fn() -> bool = unsafe { core::mem::transmute(asked) };
    ask()
}

/// Before `exec`, which gives every handler up: what was ignored when ours were installed is ignored again, for the
/// program that this process becomes.
pub fn ignore_again() {
    #[cfg(target_arch = "x86_64")]
    handlers::ignore_again();
}

#[cfg(target_arch = "x86_64")]
mod handlers {
    use super::{InstallError, handle};
    use crate::syscall;
    use core::arch::global_asm;
    use core::ffi::c_void;
    use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

    const SIGBUS: i32 = 7;
    const SIGSEGV: i32 = 11;
    const SA_SIGINFO: u64 = 4;
    const SA_RESTORER: u64 = 0x0400_0000;
    const SA_ONSTACK: u64 = 0x0800_0000;
    const SA_NODEFER: u64 = 0x4000_0000;
    const SIG_DFL: usize = 0;
    const SIG_IGN: usize = 1;

    /// The kernel's `struct sigaction` of x86-64.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct KernelAction {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }

    impl KernelAction {
        /// `SIG_DFL` or `SIG_IGN`.
        const fn without_function(handler: usize) -> Self {
            Self {
                handler,
                flags: 0,
                restorer: 0,
                mask: 0,
            }
        }
    }

    /// What was installed before us, for one signal.
    struct Previous {
        handler: AtomicUsize,
        flags: AtomicU64,
    }

    impl Previous {
        const fn none() -> Self {
            Previous {
                handler: AtomicUsize::new(SIG_DFL),
                flags: AtomicU64::new(0),
            }
        }
    }

    static BUS: Previous = Previous::none();
    static SEGV: Previous = Previous::none();

    unsafe extern "C" {
        fn adit_pmem_sigreturn();
    }

    global_asm!(
        ".pushsection .text.adit_pmem_sigreturn,\"ax\",@progbits",
        ".globl adit_pmem_sigreturn",
        ".hidden adit_pmem_sigreturn",
        "adit_pmem_sigreturn:",
        "mov eax, 15",
        "syscall",
        "ud2",
        ".popsection",
    );

    pub(super) fn install() -> Result<(), InstallError> {
        const NEVER: u8 = 0;
        const DONE: u8 = 1;
        static STATE: AtomicU8 = AtomicU8::new(NEVER);
        if STATE.swap(DONE, Ordering::AcqRel) == DONE {
            return Ok(());
        }
        let result = install_one(SIGBUS, &BUS).and_then(|()| install_one(SIGSEGV, &SEGV));
        if result.is_err() {
            STATE.store(NEVER, Ordering::Release);
        }
        result
    }

    pub(super) fn ignore_again() {
        for (signal, previous) in [(SIGBUS, &BUS), (SIGSEGV, &SEGV)] {
            if previous.handler.load(Ordering::Acquire) == SIG_IGN {
                let _ = exchange(signal, Some(&KernelAction::without_function(SIG_IGN)));
            }
        }
    }

    fn install_one(signal: i32, previous: &Previous) -> Result<(), InstallError> {
        // Reading first, so that a fault between the two calls already finds whom to pass on to.
        let before = exchange(signal, None)?;
        previous.handler.store(before.handler, Ordering::Relaxed);
        previous.flags.store(before.flags, Ordering::Release);
        let ours = KernelAction {
            handler: on_fault as *const () as usize,
            // Not deferred: a guarded copy inside a handler that a fault of ours led to must work.
            flags: SA_SIGINFO | SA_RESTORER | SA_ONSTACK | SA_NODEFER,
            restorer: adit_pmem_sigreturn as *const () as usize,
            mask: 0,
        };
        exchange(signal, Some(&ours)).map(|_| ())
    }

    /// `rt_sigaction`: sets an action, if given, and returns the one before.
    fn exchange(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, InstallError> {
        let mut old = KernelAction::without_function(SIG_DFL);
        let new = new.map_or(core::ptr::null(), |action| action as *const KernelAction);
        let (new, old_at) = (new as usize, &raw mut old as usize);
        let args = [signal as usize, new, old_at, size_of::<u64>(), 0, 0];
        // SAFETY: the call reads `new` (null or a live action) and writes `old`; a handler it installs is `on_fault`, with
        // the restorer the kernel asks for.
        let answer = unsafe { syscall::call(libc::SYS_rt_sigaction, args) };
        answer.map(|_| old).map_err(InstallError)
    }

    /// Sends a signal to this thread.
    fn raise(signal: i32) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: the call touches no memory.
        let _ = unsafe {
            syscall::call(
                libc::SYS_tkill,
                [thread as usize, signal as usize, 0, 0, 0, 0],
            )
        };
    }

    /// Where the instruction pointer lies in the context that the kernel passes to a handler: after
    /// flags, link and stack (40 bytes), the seventeenth general register.
    const CONTEXT_IP: usize = 40 + 16 * 8;
    /// Where `si_code` lies in the signal information.
    const INFO_CODE: usize = 8;

    unsafe extern "C" fn on_fault(signal: i32, info: *mut c_void, context: *mut c_void) {
        // SAFETY: the kernel passes a context of its fixed layout to a handler with SA_SIGINFO, and
        // nobody else accesses it while the handler runs.
        let ip = unsafe { context.byte_add(CONTEXT_IP).cast::<usize>() };
        // SAFETY: as above, for the signal information.
        let code = unsafe { info.byte_add(INFO_CODE).cast::<i32>().read() };
        // A code of zero or less says that a process sent the signal: no instruction faulted.
        let sent = code <= 0;
        if !sent {
            // SAFETY: as for `ip`.
            if let Some(fixup) = handle(unsafe { ip.read() }) {
                // SAFETY: as for `ip`.
                unsafe { ip.write(fixup) };
                return;
            }
        }
        // SAFETY: the arguments are the kernel's.
        unsafe { pass_on(signal, sent, info, context) };
    }

    /// Gives the signal to the action that was there before ours.
    ///
    /// # Safety
    ///
    /// The arguments must be those of a running signal handler.
    unsafe fn pass_on(signal: i32, sent: bool, info: *mut c_void, context: *mut c_void) {
        let previous = if signal == SIGBUS { &BUS } else { &SEGV };
        let flags = previous.flags.load(Ordering::Acquire);
        match previous.handler.load(Ordering::Relaxed) {
            SIG_IGN if sent => {}
            SIG_DFL | SIG_IGN => {
                // A faulting instruction faults again when we return and then has the default
                // effect, with the program's own registers in the core dump. A signal that somebody
                // sent does not come again by itself.
                let _ = exchange(signal, Some(&KernelAction::without_function(SIG_DFL)));
                if sent {
                    raise(signal);
                }
            }
            handler if flags & SA_SIGINFO != 0 => {
                // SAFETY: an action with SA_SIGINFO holds a function of this type.
                let handler: unsafe extern "C" fn(i32, *mut c_void, *mut c_void) =
                    unsafe { core::mem::transmute(handler) };
                // SAFETY: called as the kernel would.
                unsafe { handler(signal, info, context) };
            }
            handler => {
                // SAFETY: an action without SA_SIGINFO holds a function of this type.
                let handler: unsafe extern "C" fn(i32) = unsafe { core::mem::transmute(handler) };
                // SAFETY: called as the kernel would.
                unsafe { handler(signal) };
            }
        }
    }
}
