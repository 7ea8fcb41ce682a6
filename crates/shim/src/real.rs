//! libc's own functions behind the interposed names.
//!
//! Each interposed name has one [`Real`]: a pointer that starts at a resolving thunk and is replaced
//! by libc's function on first use. Other libraries' constructors run before ours and already do I/O
//! (libselinux's calls `fopen`), so resolution cannot wait for ours; and a short program uses few of
//! the names, so resolving all of them at start would be most of what it pays. `dlsym` allocates
//! nothing when it finds the name, and libc resets the loader's lock in the child of a fork. It does clear what `dlerror`
//! would tell the program, so a program that looks for libraries itself has them all resolved before it does
//! ([`before_dlerror`]).
//!
//! Some names are not libc's (libaio's, liburing's). Where the program itself has none of these libraries, a plugin that
//! was loaded for itself alone may: what it would have called without us is found by where it calls from, each time.
//!
//! # Safety
//! The thunk is assembly: it saves every argument register of the C calling convention, the vector
//! ones too (`dprintf` passes numbers in them), asks
//! [`resolve`] for the address and jumps there with the arguments as they came.
#![allow(unsafe_code)]

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::handles;
use crate::signal::engine;

/// A slot that holds the address of libc's function of one name. The stubs jump through it.
///
/// One word and nothing else: the dynamic linker relocates every slot of every process that starts,
/// and the pages they are on are copied for it. The thunk knows the name.
#[repr(transparent)]
pub(crate) struct Real {
    target: AtomicPtr<()>,
}

impl Real {
    /// A slot that resolves itself through `thunk` when first called.
    pub(crate) const fn new(thunk: unsafe extern "C" fn()) -> Self {
        Self {
            target: AtomicPtr::new(thunk as *mut ()),
        }
    }

    /// The address to call: libc's function or, before it is resolved, the thunk.
    #[inline]
    pub(crate) fn get(&self) -> *const () {
        self.target.load(Ordering::Relaxed)
    }

    /// Looks the slot's `name` up before it is called.
    pub(crate) fn resolve_ahead(&self, name: &CStr) {
        // SAFETY: the slot and the C string are borrowed, and nobody calls.
        unsafe { resolve(self, name.as_ptr(), ptr::null()) };
    }
}

/// Stands in for a function this libc does not have.
extern "C" fn absent() -> isize {
    crate::sys::set_errno(libc::ENOSYS);
    -1
}

/// Of glibc on this processor, in which `dlsym` is in every release since.
const FIRST_VERSION: &CStr = c"GLIBC_2.2.5";

/// What is found of a name behind this library.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // A handler that calls the next function for the first time would wait for the loader's lock, which a thread may take
    // several times, but not in the middle of giving it back.
    let _inside = engine::enter();
    // SAFETY: our own `dlsym` jumps to libc's, which sees that we ask, and searches the objects loaded after this one.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // SAFETY: forgets that nothing was found: the program has not asked.
        unsafe { libc::dlerror() };
    }
    found
}

/// Before a call that may fail and leave a reason in `dlerror`. The program may make other calls until it asks for that, and
/// a lookup of ours would clear it.
pub(crate) fn before_dlerror() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Relaxed) {
        return;
    }
    crate::table::resolve_all();
    crate::stdio::prepare();
    // rustix finds the kernel's clock by a lookup, too.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    DONE.store(true, Ordering::Relaxed);
}

/// Called by [`resolve_and_jump`] with the slot and the name that the thunk gave: looks the name up
/// behind this library, then in what the `caller` was linked to.
unsafe extern "C" fn resolve(
    slot: *const Real,
    name: *const c_char,
    caller: *const c_void,
) -> *const () {
    let found = if ptr::eq(slot, &crate::table::dlsym::REAL) {
        // SAFETY: two C strings; RTLD_NEXT searches the objects loaded after this one.
        unsafe { libc::dlvsym(libc::RTLD_NEXT, name, FIRST_VERSION.as_ptr()) }
    } else {
        // SAFETY: thunks pass a C string.
        next(unsafe { CStr::from_ptr(name) })
    };
    if found.is_null() {
        // SAFETY: as above.
        let own = handles::of_caller(unsafe { CStr::from_ptr(name) }, caller);
        return if !own.is_null() {
            own.cast_const().cast()
        } else if ptr::eq(slot, &crate::table::openat2::REAL) {
            crate::numbers::openat2 as *const ()
        } else {
            absent as *const ()
        };
    }
    let target = found.cast::<()>();
    // SAFETY: thunks pass the address of their own static slot.
    unsafe { &*slot }.target.store(target, Ordering::Relaxed);
    target
}

/// The bytes of a C string as an array, so that no pointer to them needs relocating.
pub(crate) const fn name<const LEN: usize>(text: &str) -> [u8; LEN] {
    match text.as_bytes().first_chunk() {
        Some(bytes) => *bytes,
        None => [0; LEN],
    }
}

/// Resolves the slot whose address is in r11 by the name whose address is in r10, then jumps to it with all arguments untouched.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn resolve_and_jump() {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 128",
        ".cfi_adjust_cfa_offset 184",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov rdi, r11",
        "mov rsi, r10",
        "mov rdx, [rsp + 184]",
        "call {resolve}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_adjust_cfa_offset -184",
        "jmp r11",
        ".cfi_endproc",
        resolve = sym resolve,
    )
}

/// libc's function behind an interposed name, as a function of type `$kind`.
macro_rules! call_real {
    ($($path:ident)::+, $kind:ty) => {
        core::mem::transmute::<*const (), $kind>($($path)::+::REAL.get())
    };
}
pub(crate) use call_real;
