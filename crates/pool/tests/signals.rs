//! A program that gets signals all the time.
//!
//! # Safety
//!
//! The unsafe code has the kernel call a function that does nothing, on a thread that lives.
#![allow(unsafe_code, reason = "the kernel is asked for what no crate asks for")]
#![allow(clippy::disallowed_methods, reason = "tests are not the engine")]

#[path = "../../../tests/scratch.rs"]
mod scratch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adit_pool::PoolFile;
use adit_pool::layout::Geometry;

extern "C" fn nothing(_: libc::c_int) {}

/// Does something on this thread while it gets a signal every other millisecond.
fn beside_signals<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: a `sigaction` of zeros is one, and the handler does nothing.
    let this = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::pthread_self()
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let result = what();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Memory for a pool takes longer than it is to the next signal, and a tmpfs takes back what it has done when one waits.
#[test]
fn a_pool_is_made_and_grown_beside_signals() {
    let path = scratch::place().join(format!("adit-pool-signals-{}", std::process::id()));
    let make = || PoolFile::create(&path, 64 << 20, Geometry::default());
    let pool = beside_signals(make).expect("create");
    let attachment = pool.attach().expect("attach");
    let grown = beside_signals(|| pool.grow(&attachment, 128 << 20));
    assert_eq!(grown.expect("grow"), 64);
    attachment.detach().expect("detach");
    pool.remove(true).expect("remove");
}
