//! Which descriptors file actions of spawns hand on.
//!
//! What a spawned program gets is what is not closed when it starts, and what `posix_spawn_file_actions_adddup2` names:
//! libc makes those copies inside itself, where nobody sees them. The calls that prepare them are seen. A number that an
//! action has named counts as named until no actions are left that could hand it on, whichever they were: programs copy
//! what libc gives them, and use it as often as they like.
//!
//! What actions open libc opens in the child as well.

use crate::{children, declared, fds, sys, vfork};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Numbers, a bit each. Zero pages as long as none is named.
static NAMED: [AtomicU64; fds::LIMIT / 64] = [const { AtomicU64::new(0) }; fds::LIMIT / 64];
/// One more than the highest word that is not zero.
static HIGH: AtomicU32 = AtomicU32::new(0);
/// Actions that were made and not destroyed.
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// The process of the thread that changes these, or zero.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// Does `work` while no other thread changes anything. What a thread of the parent's held in a forked child nobody
/// holds. A child of `vfork`, which would change its parent's, asks for everything before it spawns.
fn alone(work: impl FnOnce()) {
    if vfork::in_child() {
        return;
    }
    sys::with_signals_blocked(|| {
        let this = children::this_process();
        let mut seen = 0;
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        while let Err(holder) = HOLDER.compare_exchange(seen, this, set, fetch) {
            seen = if holder == this { 0 } else { holder };
            let _ = sys::sched_yield();
        }
        work();
        HOLDER.store(0, Ordering::SeqCst);
    });
}

/// Before `posix_spawn_file_actions_init(actions)`.
pub(crate) extern "C" fn before_init() {
    alone(|| {
        ALIVE.fetch_add(1, Ordering::SeqCst);
    });
}

/// Before `posix_spawn_file_actions_destroy(actions)`.
pub(crate) extern "C" fn before_destroy() {
    alone(|| {
        let alive = ALIVE.load(Ordering::SeqCst).saturating_sub(1);
        ALIVE.store(alive, Ordering::SeqCst);
        if alive == 0 {
            let high = HIGH.swap(0, Ordering::SeqCst) as usize;
            for word in &NAMED[..high] {
                word.store(0, Ordering::SeqCst);
            }
        }
    });
}

/// Before `posix_spawn_file_actions_adddup2(actions, fd, new)`.
pub(crate) extern "C" fn before_dup(_actions: usize, fd: c_int, _new: c_int) {
    if let Some((word, bit)) = place(fd) {
        alone(|| {
            HIGH.fetch_max(word as u32 + 1, Ordering::SeqCst);
            NAMED[word].fetch_or(bit, Ordering::SeqCst);
        });
    }
}

/// Before `posix_spawn_file_actions_addopen(actions, fd, path, flags, mode)`. libc opens the file in the child, where nobody
/// sees it. What that cuts nobody may publish afterwards; the rest is for the program to find, which is started with the
/// descriptor.
pub(crate) extern "C" fn before_open(
    _actions: usize,
    _fd: c_int,
    path: *const c_char,
    flags: c_int,
) {
    if flags & libc::O_TRUNC != 0 {
        declared::bar_name(libc::AT_FDCWD, path, 0);
    }
}

/// Whether some action hands `fd` on.
pub(crate) fn name(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| NAMED[word].load(Ordering::SeqCst) & bit != 0)
}

/// Of descriptors that are never ours there is none.
fn place(fd: c_int) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|&fd| fd < fds::LIMIT)?;
    Some((fd / 64, 1 << (fd % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_named_until_no_actions_are_left() {
        before_init();
        before_init();
        before_dup(0, 700, 1);
        before_dup(0, -1, 1);
        before_dup(0, fds::LIMIT as c_int, 1);
        assert!(name(700));
        assert!(!name(701) && !name(-1) && !name(fds::LIMIT as c_int));
        before_destroy();
        assert!(name(700), "the other ones may name it");
        before_destroy();
        assert!(!name(700));
        // What was never made, to us.
        before_destroy();
        before_init();
        before_dup(0, 0, 1);
        assert!(name(0));
        before_destroy();
        assert!(!name(0));
    }
}
