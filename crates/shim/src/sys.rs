//! Raw system calls with the program's own pointers.
//!
//! `rustix` wants Rust buffers; the pointers that programs pass may be bad, and it is the kernel's
//! business to say so (`EFAULT`). So the handful of calls that carry program pointers are made here.
//!
//! # Safety
//! The kernel checks every pointer it is given, so a bad one yields an error, not undefined behaviour in this process, as
//! long as no caller asks for a call that changes memory Rust believes it owns. Callers pass only pointers that
//! came from the program, or pointers to live locals.
#![allow(unsafe_code)]

pub(crate) use adit_pmem::syscall::call;
use core::arch::asm;
use core::ffi::CStr;
use std::io::Write as _;

/// The result of a raw call: the value, or an errno.
pub(crate) type Result = core::result::Result<usize, i32>;

/// What this thread's process has of a descriptor under `/proc`, as a path that takes no memory.
pub(crate) struct ProcPath([u8; 40]);

impl ProcPath {
    /// The name by which the kernel knows the file.
    pub(crate) fn of_file(fd: i32) -> Self {
        Self::of("fd", fd)
    }

    /// What the kernel tells of the description, its locks and leases among it.
    pub(crate) fn of_description(fd: i32) -> Self {
        Self::of("fdinfo", fd)
    }

    fn of(kind: &str, fd: i32) -> Self {
        let mut path = [0; 40];
        // It is shorter than that.
        let _ = write!(&mut path[..39], "/proc/thread-self/{kind}/{fd}");
        Self(path)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }

    pub(crate) fn as_ptr(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $number:ident ( $($arg:ident),* );)*) => {$(
        $(#[$doc])*
        #[inline]
        pub(crate) fn $name($($arg: usize),*) -> Result {
            let mut args = [0usize; 6];
            let given = [$($arg),*];
            args[..given.len()].copy_from_slice(&given);
            // SAFETY: pointers among these arguments come from the program or name live locals.
            unsafe { call(libc::$number, args) }
        }
    )*};
}

calls! {
    read = SYS_read(fd, buffer, len);
    write = SYS_write(fd, buffer, len);
    pread = SYS_pread64(fd, buffer, len, offset);
    pwrite = SYS_pwrite64(fd, buffer, len, offset);
    readv = SYS_readv(fd, iov, count);
    writev = SYS_writev(fd, iov, count);
    pwritev = SYS_pwritev(fd, iov, count, low, high);
    preadv2 = SYS_preadv2(fd, iov, count, low, high, flags);
    pwritev2 = SYS_pwritev2(fd, iov, count, low, high, flags);
    lseek = SYS_lseek(fd, offset, whence);
    close = SYS_close(fd);
    dup3 = SYS_dup3(old, new, flags);
    fstat = SYS_fstat(fd, stat);
    fstatfs = SYS_fstatfs(fd, statfs);
    newfstatat = SYS_newfstatat(dir, path, stat, flags);
    statx = SYS_statx(dir, path, flags, mask, statx);
    openat = SYS_openat(dir, path, flags, mode);
    readlink = SYS_readlink(path, into, len);
    sync = SYS_sync();
    syncfs = SYS_syncfs(fd);
    fcntl = SYS_fcntl(fd, command, arg);
    fdatasync = SYS_fdatasync(fd);
    fsync = SYS_fsync(fd);
    ftruncate = SYS_ftruncate(fd, size);
    truncate = SYS_truncate(path, size);
    utimensat = SYS_utimensat(dir, path, times, flags);
    fallocate = SYS_fallocate(fd, mode, offset, len);
    fgetxattr = SYS_fgetxattr(fd, name, value, size);
    prlimit = SYS_prlimit64(pid, resource, new, old);
    rt_sigprocmask = SYS_rt_sigprocmask(how, set, old, size);
    rt_tgsigqueueinfo = SYS_rt_tgsigqueueinfo(process, thread, signal, info);
    sigaltstack = SYS_sigaltstack(new, old);
    waitid = SYS_waitid(kind, id, info, options, usage);
    tgkill = SYS_tgkill(process, thread, signal);
    getpid = SYS_getpid();
    gettid = SYS_gettid();
    sched_yield = SYS_sched_yield();
    mprotect = SYS_mprotect(start, len, protection);
    mmap = SYS_mmap(start, len, protection, flags, fd, offset);
    munmap = SYS_munmap(start, len);
    sendfile = SYS_sendfile(to, from, from_at, len);
    copy_file_range = SYS_copy_file_range(from, from_at, to, to_at, len, flags);
    memfd_create = SYS_memfd_create(name, flags);
}

/// Turns a result into libc's convention: the value, or -1 with errno set.
#[inline]
pub(crate) fn to_libc(result: Result) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// The calling thread's errno.
pub(crate) fn errno() -> i32 {
    // SAFETY: as for `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: __errno_location returns the calling thread's own, always mapped, errno word.
    unsafe { *libc::__errno_location() = errno };
}

/// A word that differs between threads: the thread pointer. Costs one load, needs no thread state.
#[inline]
pub(crate) fn thread_word() -> usize {
    let word: usize;
    // SAFETY: on x86-64 the thread control block begins with a pointer to itself.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) word, options(nostack, preserves_flags, readonly, pure))
    };
    word
}

/// Blocks every signal but those of a fault for the calling thread while `work` runs.
///
/// Hand-over must not be interrupted by a handler on the same thread that waits for it to finish.
pub(crate) fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = block_signals();
    let result = work();
    set_signals(before);
    result
}

/// Blocks every signal but those of a fault for the calling thread, and tells which were blocked. If the program
/// blocked those of a fault as well they stay so: one may be pending.
pub(crate) fn block_signals() -> u64 {
    const FAULTS: u64 = (1 << (libc::SIGSEGV - 1)) | (1 << (libc::SIGBUS - 1));
    let mask: u64 = !FAULTS;
    let mut before: u64 = 0;
    let _ = rt_sigprocmask(
        libc::SIG_BLOCK as usize,
        &raw const mask as usize,
        &raw mut before as usize,
        size_of::<u64>(),
    );
    before
}

/// Blocks these signals, and no others.
pub(crate) fn set_signals(mask: u64) {
    let _ = rt_sigprocmask(
        libc::SIG_SETMASK as usize,
        &raw const mask as usize,
        0,
        size_of::<u64>(),
    );
}
