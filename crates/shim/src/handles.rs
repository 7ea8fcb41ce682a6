//! What a program finds of libc by a handle.
//!
//! `dlsym` of what `dlopen` of `libc.so.6` returned passes every interposed name by. Whoever looks names up so (Python's
//! `ctypes`, Ruby's Fiddle, JNA) means what libc does with a file, and that is done here when the file is staged.
//!
//! # Safety
//! Handles and names are the program's, and go to libc as they came; only what libc has found is looked at.
#![allow(unsafe_code)]

use crate::signal::engine;
use crate::{real, table};
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Something at an address of this library.
static INSIDE: u8 = 0;

type LookUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// `dlsym` of anything but `RTLD_DEFAULT` and `RTLD_NEXT`, which find by who asks, and us before libc. `caller` is where it
/// returns to.
pub(crate) unsafe extern "C" fn dlsym(
    handle: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
) -> *mut c_void {
    real::before_dlerror();
    // SAFETY: libc's function of this name, which takes what the program gave.
    let look_up = unsafe { real::call_real!(table::dlsym, LookUp) };
    // SAFETY: as the program's call.
    let found = unsafe { look_up(handle, name) };
    if found.is_null() {
        return found;
    }
    // SAFETY: libc has found something of this name, so it is a C string.
    let known = unsafe { CStr::from_ptr(name) };
    if !table::has(known) {
        return found;
    }
    let next = real::next(known);
    if next.is_null() {
        return found;
    }
    // Another one's function of that name, or a library between us and libc that asks for what its own is to call: with
    // ours it would come back to itself for ever.
    if next != found && (!is_in_libc(found) || loaded_with(next) == loaded_with(caller)) {
        return found;
    }
    // SAFETY: a handle of this library, which is never closed, or null; and the program's name.
    unsafe { look_up(own_handle(), name) }
}

/// What the object that `caller` is in, or one that it was linked to, has of a name; null where they have nothing but ours.
pub(crate) fn of_caller(name: &CStr, caller: *const c_void) -> *mut c_void {
    let _inside = engine::enter();
    let Some(object) = object_of(caller) else {
        return ptr::null_mut();
    };
    // SAFETY: the name under which it is loaded, and is until the call of it that we are in returns; libc's function of this
    // name, which takes a handle, and null, which finds what comes first of all.
    let found = unsafe {
        let handle = libc::dlopen(object.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        let found = real::call_real!(table::dlsym, LookUp)(handle, name.as_ptr());
        if !handle.is_null() {
            libc::dlclose(handle);
        }
        if found.is_null() {
            libc::dlerror();
        }
        found
    };
    if loaded_with(found) == loaded_with((&raw const INSIDE).cast()) {
        return ptr::null_mut();
    }
    found
}

/// The object that an address is in.
fn object_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: all zeros are a `Dl_info`.
    let mut object: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address, and room for what is said of it.
    let found = unsafe { libc::dladdr(address, &mut object) } != 0;
    found.then_some(object)
}

/// Where it is loaded.
fn loaded_with(address: *const c_void) -> Option<*mut c_void> {
    object_of(address).map(|object| object.dli_fbase)
}

fn is_in_libc(address: *const c_void) -> bool {
    loaded_with(address) == loaded_with(real::next(c"gnu_get_libc_version"))
}

/// A handle of this library, by which its own functions are found, and libc's behind them; null, which finds what comes
/// first of all, when there is none.
fn own_handle() -> *mut c_void {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let known = KNOWN.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let Some(ours) = object_of((&raw const INSIDE).cast()) else {
        return ptr::null_mut();
    };
    // SAFETY: the name under which it is loaded, which the dynamic linker knows without looking for a file.
    let handle = unsafe { libc::dlopen(ours.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    KNOWN.store(handle, Ordering::Relaxed);
    handle
}
