//! Calls that give other processes this one's open file descriptions.
//!
//! Before any of them, every description's offset goes back to the kernel for ever and every
//! candidate is marked as shared. So parent and child, and whatever either executes, share offsets
//! exactly as the kernel shares them, whoever dies when (PROTOCOLS, design section 6).
//!
//! A `vfork` child runs on its parent's memory: until it executes or exits, it must not change the
//! parent's table (F2: Python's child calls `close_range` on everything). The parent thread is
//! suspended meanwhile, so the child is recognised by its thread pointer.
//!
//! # Safety
//! C entry points and hooks called from the stubs. The `vfork` entry keeps its return address in a
//! register across the system call, because the child's return would otherwise overwrite it.
#![allow(unsafe_code)]

use crate::fds::{self, Kind};
use crate::real::call_real;
use crate::{descriptors, init, ofd, signal, sys, table, times};
use adit_pmem::copy::guarded_copy;
use core::arch::naked_asm;
use core::ffi::{c_int, c_long, c_ulong};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How many threads are between marking everything shared and having created the sharer.
static SHARING: AtomicU32 = AtomicU32::new(0);

/// Whether descriptors opened or promoted just now may be shared already.
pub(crate) fn sharing() -> bool {
    SHARING.load(Ordering::SeqCst) != 0
}

/// Gives the offset of `fd` to the kernel because somebody else is about to have the description.
pub(crate) fn share(fd: c_int) {
    let Some(word) = fds::word(fd) else { return };
    loop {
        let seen = word.load(Ordering::SeqCst);
        match fds::kind(seen) {
            Kind::Foreign => return,
            Kind::Promoted(ofd) => return ofd.share(fd),
            Kind::Candidate => {
                let shared = seen | fds::SHARED;
                if word
                    .compare_exchange(seen, shared, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
                {
                    return;
                }
            }
        }
    }
}

/// Shares every description. Before spawn, exec, `system`, `popen` and their kind.
pub(crate) extern "C" fn share_all() {
    if in_vfork_child() {
        return;
    }
    times::settle_all();
    for fd in fds::all() {
        share(fd);
    }
}

pub(crate) extern "C" fn fork() -> c_int {
    // SAFETY: libc's own function.
    fork_by(|| unsafe { call_real!(table::fork, unsafe extern "C" fn() -> c_int)() })
}

/// `_Fork`: as [`fork`], without the handlers that libc runs around it.
pub(crate) extern "C" fn fork_raw() -> c_int {
    // SAFETY: libc's own function.
    fork_by(|| unsafe { call_real!(table::_Fork, unsafe extern "C" fn() -> c_int)() })
}

fn fork_by(create: impl FnOnce() -> c_int) -> c_int {
    if in_vfork_child() {
        return create();
    }
    SHARING.fetch_add(1, Ordering::SeqCst);
    share_all();
    let child = create();
    if child == 0 {
        in_new_process();
    } else {
        SHARING.fetch_sub(1, Ordering::SeqCst);
    }
    child
}

/// In the child of a `fork`: only this thread came along.
fn in_new_process() {
    SHARING.store(0, Ordering::SeqCst);
    for slot in &VFORKING {
        slot.store(0, Ordering::SeqCst);
    }
    VFORKS.store(0, Ordering::SeqCst);
    init::REGISTRY.after_fork_child();
    ofd::each_promoted(|_, ofd| ofd.in_new_process());
}

/// Before `clone(function, stack, flags, …)`. Threads share everything as before; a new process
/// shares descriptions; a new process that shares the descriptor table or memory without suspending
/// this one can change our table behind our back, so nothing stays promoted.
pub(crate) extern "C" fn before_clone(_function: usize, _stack: usize, flags: c_int) {
    if flags & libc::CLONE_THREAD != 0 {
        return;
    }
    if flags & (libc::CLONE_VM | libc::CLONE_FILES) != 0 {
        descriptors::release_all();
    } else {
        share_all();
    }
}

/// Threads whose `vfork` child is running, by thread pointer; zero is free.
static VFORKING: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
static VFORKS: AtomicU32 = AtomicU32::new(0);

/// Whether the caller is a `vfork` child that still runs on its parent's memory.
#[inline]
pub(crate) fn in_vfork_child() -> bool {
    VFORKS.load(Ordering::Relaxed) != 0 && {
        let me = sys::thread_word();
        VFORKING
            .iter()
            .any(|slot| slot.load(Ordering::Relaxed) == me)
    }
}

/// Called by [`vfork`] before the system call. When there is no slot left, nothing stays promoted,
/// so the child finds nothing it could change.
extern "C" fn before_vfork() {
    if in_vfork_child() {
        return;
    }
    share_all();
    let me = sys::thread_word();
    let free = VFORKING.iter().any(|slot| {
        slot.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    });
    if free {
        VFORKS.fetch_add(1, Ordering::SeqCst);
    } else {
        descriptors::release_all();
    }
}

/// Called by [`vfork`] in the parent when the child has executed or exited, with the raw result.
extern "C" fn after_vfork(result: c_long) -> c_int {
    let me = sys::thread_word();
    if let Some(slot) = VFORKING
        .iter()
        .find(|slot| slot.load(Ordering::SeqCst) == me)
    {
        slot.store(0, Ordering::SeqCst);
        VFORKS.fetch_sub(1, Ordering::SeqCst);
    }
    if result < 0 {
        sys::set_errno(-result as i32);
        return -1;
    }
    result as c_int
}

/// `vfork`: returns twice on one stack, so the return address travels in rdi, which the system call
/// preserves.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn vfork() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {before}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "test rax, rax",
        "je 2f",
        "mov rdi, rax",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {after}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "2:",
        "ret",
        ".cfi_endproc",
        before = sym before_vfork,
        after = sym after_vfork,
        number = const libc::SYS_vfork,
    )
}

/// Before `sendmsg(socket, message, flags)`: descriptors in it get a second owner.
pub(crate) extern "C" fn before_sendmsg(_socket: c_int, message: *const libc::msghdr) {
    if !signal::guards() {
        return share_all();
    }
    let mut header = core::mem::MaybeUninit::<libc::msghdr>::zeroed();
    // SAFETY: the local has room for a header; the program's pointer may fault.
    let copied = unsafe {
        guarded_copy(
            header.as_mut_ptr().cast(),
            message.cast(),
            size_of::<libc::msghdr>(),
        )
    };
    // SAFETY: all zero is a valid msghdr.
    let header = unsafe { header.assume_init() };
    if copied.is_ok() && !header.msg_control.is_null() && header.msg_controllen > 0 {
        share_all();
    }
}

/// Before `sendmmsg`: rare enough to share everything without looking.
pub(crate) extern "C" fn before_sendmmsg() {
    share_all();
}

/// Before `prctl(option, …)`: a sandbox is being closed.
pub(crate) extern "C" fn before_prctl(option: c_int) {
    if option == libc::PR_SET_SECCOMP {
        descriptors::release_all();
    }
}

/// Before `setrlimit(resource, …)` and `prlimit(pid, resource, …)`: the kernel must see every write
/// and every mapping that a new limit could refuse.
pub(crate) extern "C" fn before_setrlimit(resource: c_int) {
    if resource == libc::RLIMIT_FSIZE as c_int || resource == libc::RLIMIT_AS as c_int {
        descriptors::release_all();
    }
}

/// Before `prlimit(pid, resource, new, old)`.
pub(crate) extern "C" fn before_prlimit(_pid: c_int, resource: c_int, new: usize) {
    if new != 0 {
        before_setrlimit(resource);
    }
}

/// Before `syscall(number, …)`: whatever the kernel is about to do without us.
pub(crate) extern "C" fn before_syscall(
    number: c_long,
    first: c_ulong,
    second: c_ulong,
    third: c_ulong,
) {
    let fd = first as c_int;
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_lseek
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_ioctl => descriptors::hand_over(fd),
        libc::SYS_fcntl => descriptors::release(fd),
        libc::SYS_sendfile => descriptors::hand_over_pair(fd, second as c_int),
        libc::SYS_splice | libc::SYS_copy_file_range => {
            descriptors::hand_over_pair(fd, third as c_int);
        }
        libc::SYS_close => descriptors::release(fd),
        libc::SYS_dup => descriptors::release(fd),
        libc::SYS_dup2 | libc::SYS_dup3 => {
            descriptors::release(fd);
            descriptors::release(second as c_int);
        }
        libc::SYS_close_range => {
            descriptors::close_range(first as u32, second as u32, third as c_int);
        }
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => {
            descriptors::release_all();
        }
        libc::SYS_execve
        | libc::SYS_execveat
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_io_uring_setup
        | libc::SYS_pidfd_getfd => share_all_for_good(),
        libc::SYS_seccomp
        | libc::SYS_landlock_restrict_self
        | libc::SYS_setns
        | libc::SYS_unshare
        | libc::SYS_chroot
        | libc::SYS_capset
        | libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid => {
            descriptors::release_all();
        }
        libc::SYS_rt_sigprocmask
        | libc::SYS_rt_sigsuspend
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2 => signal::mask::mistrust(),
        // The fault handlers may be about to be replaced.
        libc::SYS_rt_sigaction => descriptors::release_all(),
        libc::SYS_prctl => before_prctl(fd),
        libc::SYS_fstat
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_utimensat
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_syncfs
        | libc::SYS_sync => times::settle_all(),
        _ => {}
    }
}

/// Before an io_uring is set up: the kernel will use descriptors, and their offsets, without a call
/// that we see. Offsets stay the kernel's from now on; positional reads are coherent anyway.
pub(crate) extern "C" fn share_all_for_good() {
    if !in_vfork_child() {
        SHARING.fetch_add(1, Ordering::SeqCst);
        share_all();
    }
}

/// `_exit` and `_Exit` run no destructors.
pub(crate) extern "C" fn before_exit() {
    if !in_vfork_child() {
        init::end();
    }
}
