//! The library's own heap.
//!
//! What the engine allocates never comes from the program's `malloc`: that may be a library which
//! allocates by writing a log, which counts what it hands out, or which is just being held by the
//! thread that our call interrupted. The heap is `dlmalloc` over anonymous mappings of the kernel,
//! behind one lock. A process in which nothing is staged never enters it.
//!
//! A child of `fork` gets a copy of the heap in which nobody is inside: the lock is held while the
//! process is copied. libc's fork does this through handlers that are the first to be registered, so
//! that in the parent they run after all of the program's, which may write and so allocate, and wait
//! for threads that do; in parent and child they run before all others. `_Fork` runs no handlers, so
//! [`around_fork`] does it.
//!
//! Allocation cannot fail in Rust, and ends the process where it does. So before anything is staged some
//! address space is put by, which is used when the kernel gives no more; a process without any of it left
//! stages nothing more.
//!
//! # Safety
//! The heap, and with it what is put by, is only touched by the holder of the lock, or by the thread that holds it across a fork
//! and runs handlers of the program meanwhile: nobody else is inside then, and neither is the thread
//! itself, because it did not take the lock in order to allocate. Signals cannot come in between:
//! whoever takes the lock is inside the engine.
#![allow(unsafe_code)]

use crate::lock::Word;
use crate::signal::engine;
use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use dlmalloc::{Allocator, Dlmalloc};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

#[global_allocator]
static HEAP: Heap = Heap {
    lock: Lock::new(),
    blocks: UnsafeCell::new(Dlmalloc::new_with_allocator(Mappings)),
};

struct Heap {
    lock: Lock,
    blocks: UnsafeCell<Dlmalloc<Mappings>>,
}

// SAFETY: the blocks are reached through `with` only, under the lock.
unsafe impl Sync for Heap {}

impl Heap {
    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc<Mappings>) -> T) -> T {
        let _inside = engine::enter();
        let _held = self.lock.hold();
        // SAFETY: this thread has the lock, and `work` does not come back here.
        work(unsafe { &mut *self.blocks.get() })
    }
}

// SAFETY: dlmalloc keeps the contract of each call; `with` makes it one caller at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.with(|blocks| unsafe { blocks.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.with(|blocks| unsafe { blocks.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        self.with(|blocks| unsafe { blocks.free(block, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.with(|blocks| unsafe { blocks.realloc(block, layout.size(), layout.align(), size) })
    }
}

/// Address space for bad times: where it starts, and how much of it is left.
static SPARE: AtomicUsize = AtomicUsize::new(0);
static LEFT: AtomicUsize = AtomicUsize::new(0);
/// How much there is at first. It becomes memory when it is used.
const MOST: usize = 8 << 20;

/// Whether something is put by, as before anything is staged there must be.
pub(crate) fn puts_by() -> bool {
    HEAP.with(|_| {
        if LEFT.load(Ordering::Relaxed) < MOST / 2
            && let Some(at) = fresh(MOST)
        {
            // What was left of the old is forgotten: this happens once in a bad time.
            SPARE.store(at as usize, Ordering::Relaxed);
            LEFT.store(MOST, Ordering::Relaxed);
        }
        LEFT.load(Ordering::Relaxed) >= MOST / 2
    })
}

/// A fresh mapping.
fn fresh(size: usize) -> Option<*mut u8> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    unsafe {
        rustix::mm::mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags)
    }
    .ok()
    .map(<*mut _>::cast)
}

/// Where the heap's memory comes from: the kernel, asked without libc.
struct Mappings;

impl Mappings {
    /// The end of what is put by.
    fn spare(size: usize) -> Option<*mut u8> {
        let left = LEFT.load(Ordering::Relaxed).checked_sub(size)?;
        LEFT.store(left, Ordering::Relaxed);
        Some((SPARE.load(Ordering::Relaxed) + left) as *mut u8)
    }
}

// SAFETY: each range that is given out is a private mapping, or a part of one, that was never given out before, and is unmapped or moved only when
// the heap says that nothing in it is used.
unsafe impl Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let mapped = fresh(size).or_else(|| Self::spare(size));
        mapped.map_or((null_mut(), 0, 0), |at| (at, size, 0))
    }

    fn remap(&self, at: *mut u8, size: usize, new_size: usize, may_move: bool) -> *mut u8 {
        let flags = if may_move {
            MremapFlags::MAYMOVE
        } else {
            MremapFlags::empty()
        };
        // SAFETY: the heap owns the range and follows it to where it goes.
        unsafe { rustix::mm::mremap(at.cast(), size, new_size, flags) }
            .map_or(null_mut(), <*mut _>::cast)
    }

    fn free_part(&self, at: *mut u8, size: usize, new_size: usize) -> bool {
        // SAFETY: the heap owns the range and has given up its end.
        unsafe { rustix::mm::munmap(at.add(new_size).cast(), size - new_size) }.is_ok()
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: the heap owns the range and has given it up.
        unsafe { rustix::mm::munmap(at.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// The heap's lock.
struct Lock {
    word: Word,
    /// The thread (its thread pointer) that holds the lock while it forks.
    forking: AtomicUsize,
    /// Forks of handlers that run in that thread meanwhile. Its own business.
    within: AtomicUsize,
}

/// The right to be in the heap; gives the lock back unless it is the forking thread's.
struct Held<'a>(Option<&'a Lock>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            lock.word.give_back();
        }
    }
}

impl Lock {
    const fn new() -> Self {
        Self {
            word: Word::new(),
            forking: AtomicUsize::new(0),
            within: AtomicUsize::new(0),
        }
    }

    fn hold(&self) -> Held<'_> {
        if self.word.try_take() {
            return Held(Some(self));
        }
        if self.forking.load(Ordering::Relaxed) == sys::thread_word() {
            return Held(None);
        }
        self.word.wait();
        Held(Some(self))
    }

    fn before_fork(&self) {
        // A handler that allocates in between would wait for its own thread.
        let _inside = engine::enter();
        if self.forking.load(Ordering::Relaxed) == sys::thread_word() {
            self.within.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.word.take();
        self.forking.store(sys::thread_word(), Ordering::Relaxed);
    }

    fn after_fork(&self) {
        let _inside = engine::enter();
        let less = |within: usize| within.checked_sub(1);
        let outer = self
            .within
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_err();
        if outer {
            self.forking.store(0, Ordering::Relaxed);
            self.word.give_back();
        }
    }
}

/// Runs `create`, which makes a child without libc's handlers, with nobody inside the heap.
pub(crate) fn around_fork<T>(create: impl FnOnce() -> T) -> T {
    HEAP.lock.before_fork();
    let child = create();
    HEAP.lock.after_fork();
    child
}

/// Has libc's forks hold the heap. Handlers registered later than these run before them in the parent.
pub(crate) fn register_fork_handlers() {
    extern "C" fn before() {
        HEAP.lock.before_fork();
    }
    extern "C" fn after() {
        HEAP.lock.after_fork();
    }
    // SAFETY: the handlers live as long as the library.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::sync::{Arc, Once};
    use std::time::Duration;

    /// Runs `create` while another thread is inside the heap. Whether the child could allocate.
    fn child_allocates(create: impl FnOnce() -> libc::pid_t) -> bool {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(register_fork_handlers);
        let inside = Arc::new(AtomicBool::new(false));
        let other = {
            let inside = Arc::clone(&inside);
            std::thread::spawn(move || {
                HEAP.with(|_| {
                    inside.store(true, Ordering::SeqCst);
                    adit_pmem::rest(Duration::from_millis(100));
                });
            })
        };
        while !inside.load(Ordering::SeqCst) {
            core::hint::spin_loop();
        }
        let child = create();
        if child == 0 {
            // SAFETY: no pointers; the alarm ends a child that waits for ever.
            unsafe { libc::alarm(2) };
            let block = std::hint::black_box(Box::new([1u8; 5000]));
            // SAFETY: ends the child without running what is the parent's.
            unsafe { libc::_exit(i32::from(block[17])) };
        }
        let mut status = 0;
        // SAFETY: the pointer is to a live local.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        other.join().unwrap();
        assert_eq!(waited, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
    }

    /// A handler may fork in the middle of a fork. When both are done the heap is everybody's.
    #[test]
    fn a_fork_within_a_fork_holds_the_heap_once() {
        let around = || around_fork(|| around_fork(|| std::hint::black_box(Box::new(7))));
        assert_eq!(*around(), 7);
        let other = std::thread::spawn(|| HEAP.with(|_| 7));
        assert_eq!(other.join().unwrap(), 7);
    }

    /// A fork that nobody sees.
    fn fork_unseen() -> libc::pid_t {
        // SAFETY: no pointers; the child only allocates and exits.
        unsafe { sys::call(libc::SYS_fork, [0; 6]) }.unwrap_or(0) as libc::pid_t
    }

    #[test]
    fn children_can_allocate() {
        // SAFETY: as above.
        assert!(child_allocates(|| unsafe { libc::fork() }));
        assert!(child_allocates(|| around_fork(fork_unseen)));
        // The check can fail.
        assert!(!child_allocates(fork_unseen));
    }

    #[test]
    fn threads_and_sizes() {
        let work = |seed: usize| {
            let mut kept: Vec<Vec<u8>> = Vec::new();
            for i in 0..3000usize {
                let size = (i * 7919 + seed * 104_729) % 70_000;
                kept.push(vec![seed as u8; size]);
                if i % 3 != 0 {
                    let at = (i * 31) % kept.len();
                    let gone = kept.swap_remove(at);
                    assert!(gone.iter().all(|&byte| byte == seed as u8));
                }
                if i % 100 == 0 {
                    kept.truncate(20);
                    kept.iter_mut()
                        .for_each(|one| one.resize(one.len() * 2, seed as u8));
                }
            }
            assert!(kept.iter().flatten().all(|&byte| byte == seed as u8));
        };
        let threads = (1..5).map(|seed| std::thread::spawn(move || work(seed)));
        threads
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let large = vec![3u8; 40 << 20];
        assert!(large.iter().all(|&byte| byte == 3));
        // SAFETY: the layout is valid and the block is given back with it.
        unsafe {
            let layout = Layout::from_size_align(100, 1 << 16).unwrap();
            let block = HEAP.alloc_zeroed(layout);
            assert!(!block.is_null() && (block as usize).is_multiple_of(1 << 16));
            HEAP.dealloc(block, layout);
        }
    }
}
