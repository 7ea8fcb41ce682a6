//! What a thread knows about its own signal mask.
//!
//! One word of initial-exec thread-local storage: whether SIGBUS and SIGSEGV are known to be open.
//! Zero, as in every new thread, means unknown; the next call on a promoted descriptor asks the
//! kernel, once. Everything that can change the mask sets it back to zero (the `masks` and `forgets`
//! shapes in [`crate::stubs`]) and is otherwise libc's own, so masks, pending signals, `sigwait`,
//! `signalfd` and what threads and programs inherit are exactly the kernel's.
//!
//! # Safety
//! The word is the calling thread's own and only accessed by the moves below. It lives in assembly
//! because Rust has no initial-exec thread-locals, and any other kind may allocate.
#![allow(unsafe_code)]

use crate::ofd::Offset;
use crate::writer::Writer;
use crate::{descriptors, fds, init, sys};
use core::arch::{asm, global_asm, naked_asm};
use core::ffi::c_int;

/// Faults are open: guarded copies may run.
pub(crate) const OPEN: u32 = 1;
/// Blocked; the distance from here is the number of calls until the kernel is asked again, because
/// the thread may have learned this in a handler that has returned since.
const BLOCKED: u32 = 2;
const ASK_AGAIN: u32 = 64;

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".globl adit_thread_faults",
    ".hidden adit_thread_faults",
    ".type adit_thread_faults,@tls_object",
    ".size adit_thread_faults,4",
    ".p2align 2",
    "adit_thread_faults:",
    ".zero 4",
    ".popsection",
);

fn state() -> u32 {
    let state;
    // SAFETY: reads the calling thread's own word.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + adit_thread_faults@GOTTPOFF]",
            "mov {state:e}, dword ptr fs:[{at}]",
            at = out(reg) _, state = out(reg) state, options(nostack, preserves_flags, readonly),
        );
    }
    state
}

fn set(state: u32) {
    // SAFETY: writes the calling thread's own word.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + adit_thread_faults@GOTTPOFF]",
            "mov dword ptr fs:[{at}], {state:e}",
            at = out(reg) _, state = in(reg) state, options(nostack, preserves_flags),
        );
    }
}

/// The mask may change or have changed.
pub(crate) fn forget() {
    set(0);
}

/// The mask is about to change in a way that ends unseen: a thread that did this is not served until
/// it asks the kernel again, some calls later.
pub(crate) fn mistrust() {
    set(BLOCKED + ASK_AGAIN);
}

/// Whether the calling thread has both fault signals open. Asks the kernel if it does not know.
pub(crate) fn faults_open() -> bool {
    match state() {
        OPEN => true,
        0 | BLOCKED => ask(),
        blocked => {
            set(blocked - 1);
            false
        }
    }
}

fn ask() -> bool {
    const FAULTS: u64 = (1 << (libc::SIGSEGV - 1)) | (1 << (libc::SIGBUS - 1));
    let mut mask = 0u64;
    let asked = sys::rt_sigprocmask(0, 0, &raw mut mask as usize, size_of::<u64>());
    let open = asked.is_ok() && mask & FAULTS == 0;
    set(if open { OPEN } else { BLOCKED + ASK_AGAIN });
    open
}

/// Whether a call on promoted `fd` may be served: 1, or 0 for the kernel. If the kernel is to do it,
/// the offset becomes the kernel's for ever, because the call may use it; that is worth making sure.
extern "C" fn admit(fd: c_int) -> usize {
    if faults_open() {
        return 1;
    }
    let ours = fds::promoted(fd).is_some_and(|ofd| matches!(ofd.offset(), Offset::At(_)));
    if ours && ask() {
        return 1;
    }
    // What cannot be published stays ours. The kernel knows neither its offset nor its `O_APPEND`, and would write below
    // what is staged: for this call a bad address is the lesser evil.
    if descriptors::hand_over(fd).is_err() {
        return 1;
    }
    // A writer that the kernel has runs no guarded copies, and still adds to the kernel's promise.
    usize::from(fds::promoted(fd).is_some_and(|ofd| ofd.writer().is_some_and(Writer::is_kernels)))
}

/// The same for a call that is made by its number, and no cancellation point.
pub(crate) fn may_be_served(fd: c_int) -> bool {
    admit(fd) != 0
}

unsafe extern "C" {
    fn pthread_testcancel();
}

/// What a call on a promoted descriptor does first unless the thread is known to be open and alone:
/// asks about the mask, and is a cancellation point as libc's function would be (PROTOCOLS F4). The
/// unwinder meets only this frame and the stub's, which describe themselves.
///
/// Called by the `data` stubs with the call's arguments, which it preserves; rax is 1 if the call is
/// to be served, 0 if libc's function is to do it, which is a cancellation point itself.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn checkpoint() {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        ".cfi_adjust_cfa_offset 48",
        "mov r11, qword ptr [rip + adit_thread_faults@GOTTPOFF]",
        "cmp dword ptr fs:[r11], {open}",
        "jne 3f",
        "2:",
        "call {testcancel}",
        "mov eax, 1",
        "4:",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_remember_state",
        ".cfi_adjust_cfa_offset -48",
        "ret",
        ".cfi_restore_state",
        "3:",
        "call {admit}",
        "test rax, rax",
        "je 4b",
        "jmp 2b",
        ".cfi_endproc",
        open = const OPEN,
        admit = sym admit,
        testcancel = sym testcancel,
    )
}

/// Stands for `testcancel` in the stub of what libc makes no cancellation point.
pub(crate) extern "C" fn no_point() {}

/// libc's `pthread_testcancel`, unless there is no other thread that could have cancelled this one.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn testcancel() {
    naked_asm!(
        "mov rax, qword ptr [rip + {single}@GOTPCREL]",
        "cmp byte ptr [rax], 0",
        "jne 2f",
        "jmp qword ptr [rip + {libc}@GOTPCREL]",
        "2:",
        "ret",
        single = sym init::__libc_single_threaded,
        libc = sym pthread_testcancel,
    )
}
