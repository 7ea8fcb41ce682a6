//! The two ways to the kernel: libc's functions, which a preloaded library interposes, and the
//! bare system call instruction, which nothing interposes.
//!
//! # Safety
//!
//! The callers pass wild pointers, lengths and descriptors on purpose: the kernel checks them. What
//! has to hold is only that memory which the kernel may *write* belongs to an arena or a local
//! buffer that nobody holds a reference to meanwhile, and that every path is NUL terminated.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

/// A return value in the kernel's own form: a negative number is `-errno`.
pub(crate) type Ret = i64;

/// Which way a call goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Through libc's functions: the side under test.
    Libc,
    /// Through the system call instruction: the judge.
    Raw,
}

/// Issues a system call with nothing of libc in between.
///
/// # Safety
///
/// As for the system call: memory it writes must be the caller's to lose.
pub(crate) unsafe fn raw(nr: c_long, a: [usize; 6]) -> Ret {
    let ret: i64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's calling convention; rcx and r11 are declared as lost.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") nr => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's calling convention; only x0 changes.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") nr,
            inlateout("x0") a[0] as i64 => ret,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    ret
}

/// Issues a system call with up to six arguments.
pub(crate) fn padded(nr: c_long, given: &[usize]) -> Ret {
    let mut all = [0usize; 6];
    all[..given.len()].copy_from_slice(given);
    // SAFETY: see the module's invariants: written memory belongs to an arena or a local.
    unsafe { raw(nr, all) }
}

/// A system call whose arguments become words.
#[macro_export]
macro_rules! sys {
    ($nr:expr $(, $a:expr)*) => {{
        let given: &[usize] = &[$($a as usize),*];
        $crate::way::padded($nr, given)
    }};
}

/// What `errno` holds before every call through libc: a call that succeeds must leave it alone.
const UNTOUCHED: c_int = 7777;
/// Reported instead of a success that changed `errno`.
pub(crate) const ERRNO_DISTURBED: Ret = -100_000;

fn set_errno(value: c_int) {
    // SAFETY: the address is this thread's own errno.
    unsafe { *libc::__errno_location() = value }
}

fn libc_call(f: impl FnOnce() -> i64) -> Ret {
    set_errno(UNTOUCHED);
    let ret = f();
    // SAFETY: the address is this thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    if ret == -1 {
        -i64::from(errno)
    } else if errno != UNTOUCHED {
        ERRNO_DISTURBED - i64::from(errno)
    } else {
        ret
    }
}

/// libc's entries under all their names; the crate `libc` reaches only one name of each.
mod ffi {
    use super::{c_char, c_int, c_uint, c_void};
    unsafe extern "C" {
        pub(super) fn open(path: *const c_char, flags: c_int, ...) -> c_int;
        pub(super) fn open64(path: *const c_char, flags: c_int, ...) -> c_int;
        pub(super) fn openat(dir: c_int, path: *const c_char, flags: c_int, ...) -> c_int;
        pub(super) fn openat64(dir: c_int, path: *const c_char, flags: c_int, ...) -> c_int;
        pub(super) fn creat(path: *const c_char, mode: c_uint) -> c_int;
        pub(super) fn close(fd: c_int) -> c_int;
        pub(super) fn dup(fd: c_int) -> c_int;
        pub(super) fn dup2(fd: c_int, to: c_int) -> c_int;
        pub(super) fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
        pub(super) fn fcntl(fd: c_int, cmd: c_int, ...) -> c_int;
        pub(super) fn fcntl64(fd: c_int, cmd: c_int, ...) -> c_int;
        pub(super) fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize;
        pub(super) fn pread(fd: c_int, buf: *mut c_void, len: usize, off: i64) -> isize;
        pub(super) fn pread64(fd: c_int, buf: *mut c_void, len: usize, off: i64) -> isize;
        pub(super) fn readv(fd: c_int, iov: *const libc::iovec, n: c_int) -> isize;
        pub(super) fn preadv(fd: c_int, iov: *const libc::iovec, n: c_int, off: i64) -> isize;
        pub(super) fn preadv64(fd: c_int, iov: *const libc::iovec, n: c_int, off: i64) -> isize;
        pub(super) fn preadv2(
            fd: c_int,
            iov: *const libc::iovec,
            n: c_int,
            off: i64,
            flags: c_int,
        ) -> isize;
        pub(super) fn write(fd: c_int, buf: *const c_void, len: usize) -> isize;
        pub(super) fn pwrite(fd: c_int, buf: *const c_void, len: usize, off: i64) -> isize;
        pub(super) fn pwrite64(fd: c_int, buf: *const c_void, len: usize, off: i64) -> isize;
        pub(super) fn writev(fd: c_int, iov: *const libc::iovec, n: c_int) -> isize;
        pub(super) fn pwritev(fd: c_int, iov: *const libc::iovec, n: c_int, off: i64) -> isize;
        pub(super) fn pwritev64(fd: c_int, iov: *const libc::iovec, n: c_int, off: i64) -> isize;
        pub(super) fn pwritev2(
            fd: c_int,
            iov: *const libc::iovec,
            n: c_int,
            off: i64,
            flags: c_int,
        ) -> isize;
        pub(super) fn lseek(fd: c_int, off: i64, whence: c_int) -> i64;
        pub(super) fn lseek64(fd: c_int, off: i64, whence: c_int) -> i64;
        pub(super) fn ftruncate(fd: c_int, len: i64) -> c_int;
        pub(super) fn ftruncate64(fd: c_int, len: i64) -> c_int;
        pub(super) fn truncate(path: *const c_char, len: i64) -> c_int;
        pub(super) fn truncate64(path: *const c_char, len: i64) -> c_int;
        pub(super) fn fallocate(fd: c_int, mode: c_int, off: i64, len: i64) -> c_int;
        pub(super) fn fallocate64(fd: c_int, mode: c_int, off: i64, len: i64) -> c_int;
        pub(super) fn posix_fallocate(fd: c_int, off: i64, len: i64) -> c_int;
        pub(super) fn fsync(fd: c_int) -> c_int;
        pub(super) fn fdatasync(fd: c_int) -> c_int;
        pub(super) fn stat(path: *const c_char, st: *mut libc::stat) -> c_int;
        pub(super) fn stat64(path: *const c_char, st: *mut libc::stat) -> c_int;
        pub(super) fn lstat(path: *const c_char, st: *mut libc::stat) -> c_int;
        pub(super) fn fstat(fd: c_int, st: *mut libc::stat) -> c_int;
        pub(super) fn fstat64(fd: c_int, st: *mut libc::stat) -> c_int;
        pub(super) fn fstatat(
            dir: c_int,
            path: *const c_char,
            st: *mut libc::stat,
            flags: c_int,
        ) -> c_int;
        pub(super) fn statx(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
            mask: c_uint,
            st: *mut libc::statx,
        ) -> c_int;
        pub(super) fn sendfile(out: c_int, inp: c_int, off: *mut i64, len: usize) -> isize;
        pub(super) fn sendfile64(out: c_int, inp: c_int, off: *mut i64, len: usize) -> isize;
        pub(super) fn copy_file_range(
            inp: c_int,
            off_in: *mut i64,
            out: c_int,
            off_out: *mut i64,
            len: usize,
            flags: c_uint,
        ) -> isize;
        pub(super) fn splice(
            inp: c_int,
            off_in: *mut i64,
            out: c_int,
            off_out: *mut i64,
            len: usize,
            flags: c_uint,
        ) -> isize;
        pub(super) fn mmap(
            addr: *mut c_void,
            len: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            off: i64,
        ) -> *mut c_void;
        pub(super) fn mmap64(
            addr: *mut c_void,
            len: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            off: i64,
        ) -> *mut c_void;
        pub(super) fn munmap(addr: *mut c_void, len: usize) -> c_int;
        pub(super) fn msync(addr: *mut c_void, len: usize, flags: c_int) -> c_int;
        pub(super) fn rename(old: *const c_char, new: *const c_char) -> c_int;
        pub(super) fn renameat2(
            od: c_int,
            old: *const c_char,
            nd: c_int,
            new: *const c_char,
            flags: c_uint,
        ) -> c_int;
        pub(super) fn link(old: *const c_char, new: *const c_char) -> c_int;
        pub(super) fn unlink(path: *const c_char) -> c_int;
        pub(super) fn flock(fd: c_int, op: c_int) -> c_int;
        pub(super) fn futimens(fd: c_int, t: *const libc::timespec) -> c_int;
        pub(super) fn utimensat(
            dir: c_int,
            path: *const c_char,
            t: *const libc::timespec,
            flags: c_int,
        ) -> c_int;
        pub(super) fn ioctl(fd: c_int, req: std::ffi::c_ulong, ...) -> c_int;
    }
}

/// What both ways report about a file, in one form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) ino: u64,
    pub(crate) mode: u32,
    pub(crate) nlink: u64,
    pub(crate) size: i64,
    pub(crate) blocks: i64,
    pub(crate) mtime: (i64, i64),
}

/// Which of libc's many stat functions to ask; the raw way always asks `statx`.
pub(crate) const STAT_WAYS: u8 = 8;

const AT_FDCWD: c_int = libc::AT_FDCWD;

fn empty_statx() -> libc::statx {
    // SAFETY: plain numbers; all zeroes is a value.
    unsafe { std::mem::zeroed() }
}

fn meta_of_statx(s: &libc::statx) -> Meta {
    Meta {
        ino: s.stx_ino,
        mode: u32::from(s.stx_mode),
        nlink: u64::from(s.stx_nlink),
        size: s.stx_size as i64,
        blocks: s.stx_blocks as i64,
        mtime: (s.stx_mtime.tv_sec, i64::from(s.stx_mtime.tv_nsec)),
    }
}

fn meta_of_stat(s: &libc::stat) -> Meta {
    Meta {
        ino: s.st_ino,
        mode: s.st_mode,
        nlink: s.st_nlink,
        size: s.st_size,
        blocks: s.st_blocks,
        mtime: (s.st_mtime, s.st_mtime_nsec),
    }
}

/// The size of an open file, asked so that the kernel does not count its times as looked at.
pub(crate) fn raw_size(fd: c_int) -> Option<i64> {
    let mut s = empty_statx();
    let r = sys!(
        libc::SYS_statx,
        fd,
        c"".as_ptr(),
        libc::AT_EMPTY_PATH,
        libc::STATX_SIZE,
        &raw mut s
    );
    (r == 0).then_some(s.stx_size as i64)
}

/// Whether a write lease is on the description: then Adit stages the file.
pub(crate) fn leased(fd: c_int) -> bool {
    let r = sys!(libc::SYS_fcntl, fd, libc::F_GETLEASE, 0);
    r == Ret::from(libc::F_WRLCK)
}

fn pointer_result(p: *mut c_void) -> i64 {
    p as i64
}

// Each method is one entry of libc beside its system call; `alt` picks the entry's second name.
impl Way {
    pub(crate) fn open(self, path: &CStr, flags: c_int, mode: c_uint, alt: u8) -> Ret {
        let p = path.as_ptr();
        match self {
            // SAFETY: the path is NUL terminated.
            Way::Libc => libc_call(|| unsafe {
                i64::from(match alt % 4 {
                    0 => ffi::open(p, flags, mode),
                    1 => ffi::open64(p, flags, mode),
                    2 => ffi::openat(AT_FDCWD, p, flags, mode),
                    _ => ffi::openat64(AT_FDCWD, p, flags, mode),
                })
            }),
            Way::Raw => sys!(libc::SYS_openat, AT_FDCWD, p, flags, mode),
        }
    }

    pub(crate) fn creat(self, path: &CStr, mode: c_uint) -> Ret {
        match self {
            // SAFETY: the path is NUL terminated.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::creat(path.as_ptr(), mode)) }),
            Way::Raw => sys!(
                libc::SYS_openat,
                AT_FDCWD,
                path.as_ptr(),
                libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
                mode
            ),
        }
    }

    pub(crate) fn close(self, fd: c_int) -> Ret {
        match self {
            // SAFETY: no memory is involved.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::close(fd)) }),
            Way::Raw => sys!(libc::SYS_close, fd),
        }
    }

    pub(crate) fn dup(self, fd: c_int) -> Ret {
        match self {
            // SAFETY: no memory is involved.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::dup(fd)) }),
            Way::Raw => sys!(libc::SYS_dup, fd),
        }
    }

    /// `dup2`, or `dup3` with the flags given.
    pub(crate) fn dup_to(self, fd: c_int, to: c_int, three: Option<c_int>) -> Ret {
        match (self, three) {
            // SAFETY: no memory is involved.
            (Way::Libc, None) => libc_call(|| unsafe { i64::from(ffi::dup2(fd, to)) }),
            // SAFETY: no memory is involved.
            (Way::Libc, Some(f)) => libc_call(|| unsafe { i64::from(ffi::dup3(fd, to, f)) }),
            // dup2 to itself only checks the descriptor; dup3 refuses it.
            (Way::Raw, None) if fd == to => {
                let r = sys!(libc::SYS_fcntl, fd, libc::F_GETFD);
                if r < 0 { r } else { i64::from(fd) }
            }
            (Way::Raw, f) => sys!(libc::SYS_dup3, fd, to, f.unwrap_or(0)),
        }
    }

    pub(crate) fn fcntl(self, fd: c_int, cmd: c_int, arg: c_long, alt: u8) -> Ret {
        match self {
            // SAFETY: only commands without memory are used here.
            Way::Libc => libc_call(|| unsafe {
                i64::from(if alt.is_multiple_of(2) {
                    ffi::fcntl(fd, cmd, arg)
                } else {
                    ffi::fcntl64(fd, cmd, arg)
                })
            }),
            Way::Raw => sys!(libc::SYS_fcntl, fd, cmd, arg),
        }
    }

    pub(crate) fn read(self, fd: c_int, buf: *mut u8, len: usize) -> Ret {
        match self {
            // SAFETY: the buffer is an arena's, or wild on purpose.
            Way::Libc => libc_call(|| unsafe { ffi::read(fd, buf.cast(), len) as i64 }),
            Way::Raw => sys!(libc::SYS_read, fd, buf, len),
        }
    }

    pub(crate) fn pread(self, fd: c_int, buf: *mut u8, len: usize, off: i64, alt: u8) -> Ret {
        match self {
            // SAFETY: the buffer is an arena's, or wild on purpose.
            Way::Libc => libc_call(|| unsafe {
                (if alt.is_multiple_of(2) {
                    ffi::pread(fd, buf.cast(), len, off)
                } else {
                    ffi::pread64(fd, buf.cast(), len, off)
                }) as i64
            }),
            Way::Raw => sys!(libc::SYS_pread64, fd, buf, len, off),
        }
    }

    pub(crate) fn write(self, fd: c_int, buf: *const u8, len: usize) -> Ret {
        match self {
            // SAFETY: the buffer is an arena's, or wild on purpose.
            Way::Libc => libc_call(|| unsafe { ffi::write(fd, buf.cast(), len) as i64 }),
            Way::Raw => sys!(libc::SYS_write, fd, buf, len),
        }
    }

    pub(crate) fn pwrite(self, fd: c_int, buf: *const u8, len: usize, off: i64, alt: u8) -> Ret {
        match self {
            // SAFETY: the buffer is an arena's, or wild on purpose.
            Way::Libc => libc_call(|| unsafe {
                (if alt.is_multiple_of(2) {
                    ffi::pwrite(fd, buf.cast(), len, off)
                } else {
                    ffi::pwrite64(fd, buf.cast(), len, off)
                }) as i64
            }),
            Way::Raw => sys!(libc::SYS_pwrite64, fd, buf, len, off),
        }
    }

    /// `readv`/`writev` without an offset, `preadv`/`pwritev` with one, the `2` forms with flags.
    pub(crate) fn vectored(
        self,
        fd: c_int,
        iov: &[libc::iovec],
        write: bool,
        off: Option<i64>,
        flags: Option<c_int>,
        alt: u8,
    ) -> Ret {
        let (p, n) = (iov.as_ptr(), iov.len() as c_int);
        let even = alt.is_multiple_of(2);
        match self {
            // SAFETY: the vector is alive; its buffers are an arena's, or wild on purpose.
            Way::Libc => libc_call(|| unsafe {
                (match (write, off, flags) {
                    (false, o, Some(f)) => ffi::preadv2(fd, p, n, o.unwrap_or(-1), f),
                    (true, o, Some(f)) => ffi::pwritev2(fd, p, n, o.unwrap_or(-1), f),
                    (false, None, _) => ffi::readv(fd, p, n),
                    (true, None, _) => ffi::writev(fd, p, n),
                    (false, Some(o), _) if even => ffi::preadv(fd, p, n, o),
                    (false, Some(o), _) => ffi::preadv64(fd, p, n, o),
                    (true, Some(o), _) if even => ffi::pwritev(fd, p, n, o),
                    (true, Some(o), _) => ffi::pwritev64(fd, p, n, o),
                }) as i64
            }),
            Way::Raw => match (write, off, flags) {
                // On 64-bit machines the offset's upper half is a word that the kernel ignores.
                (false, o, Some(f)) => {
                    sys!(libc::SYS_preadv2, fd, p, n, o.unwrap_or(-1), 0, f)
                }
                (true, o, Some(f)) => {
                    sys!(libc::SYS_pwritev2, fd, p, n, o.unwrap_or(-1), 0, f)
                }
                (false, None, _) => sys!(libc::SYS_readv, fd, p, n),
                (true, None, _) => sys!(libc::SYS_writev, fd, p, n),
                (false, Some(o), _) => sys!(libc::SYS_preadv, fd, p, n, o),
                (true, Some(o), _) => sys!(libc::SYS_pwritev, fd, p, n, o),
            },
        }
    }

    pub(crate) fn lseek(self, fd: c_int, off: i64, whence: c_int, alt: u8) -> Ret {
        match self {
            // SAFETY: no memory is involved.
            Way::Libc => libc_call(|| unsafe {
                if alt.is_multiple_of(2) {
                    ffi::lseek(fd, off, whence)
                } else {
                    ffi::lseek64(fd, off, whence)
                }
            }),
            Way::Raw => sys!(libc::SYS_lseek, fd, off, whence),
        }
    }

    pub(crate) fn ftruncate(self, fd: c_int, len: i64, alt: u8) -> Ret {
        match self {
            // SAFETY: no memory is involved.
            Way::Libc => libc_call(|| unsafe {
                i64::from(if alt.is_multiple_of(2) {
                    ffi::ftruncate(fd, len)
                } else {
                    ffi::ftruncate64(fd, len)
                })
            }),
            Way::Raw => sys!(libc::SYS_ftruncate, fd, len),
        }
    }

    pub(crate) fn truncate(self, path: &CStr, len: i64, alt: u8) -> Ret {
        match self {
            // SAFETY: the path is NUL terminated.
            Way::Libc => libc_call(|| unsafe {
                i64::from(if alt.is_multiple_of(2) {
                    ffi::truncate(path.as_ptr(), len)
                } else {
                    ffi::truncate64(path.as_ptr(), len)
                })
            }),
            Way::Raw => sys!(libc::SYS_truncate, path.as_ptr(), len),
        }
    }

    pub(crate) fn fallocate(self, fd: c_int, mode: c_int, off: i64, len: i64, alt: u8) -> Ret {
        match self {
            // SAFETY: no memory is involved.
            Way::Libc if alt == 2 && mode == 0 => {
                // SAFETY: no memory is involved. This entry returns the error, errno is not its way.
                -i64::from(unsafe { ffi::posix_fallocate(fd, off, len) })
            }
            // SAFETY: no memory is involved.
            Way::Libc => libc_call(|| unsafe {
                i64::from(if alt.is_multiple_of(2) {
                    ffi::fallocate(fd, mode, off, len)
                } else {
                    ffi::fallocate64(fd, mode, off, len)
                })
            }),
            Way::Raw => sys!(libc::SYS_fallocate, fd, mode, off, len),
        }
    }

    pub(crate) fn fsync(self, fd: c_int, data: bool) -> Ret {
        match self {
            // SAFETY: no memory is involved.
            Way::Libc => libc_call(|| unsafe {
                i64::from(if data {
                    ffi::fdatasync(fd)
                } else {
                    ffi::fsync(fd)
                })
            }),
            Way::Raw if data => sys!(libc::SYS_fdatasync, fd),
            Way::Raw => sys!(libc::SYS_fsync, fd),
        }
    }

    /// Asks about a descriptor (`how` even) or a path (`how` odd).
    pub(crate) fn stat(self, fd: c_int, path: &CStr, how: u8) -> (Ret, Meta) {
        let p = path.as_ptr();
        let by_path = how % 2 == 1;
        if self == Way::Raw {
            let mut s = empty_statx();
            let (dir, name, flags) = if by_path {
                (AT_FDCWD, p, 0)
            } else {
                (fd, c"".as_ptr(), libc::AT_EMPTY_PATH)
            };
            let mask = libc::STATX_BASIC_STATS;
            let r = sys!(libc::SYS_statx, dir, name, flags, mask, &raw mut s);
            return (r, meta_of_statx(&s));
        }
        let mut s = empty_statx();
        // SAFETY: plain numbers; all zeroes is a value.
        let mut st: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the path is NUL terminated, the results are locals.
        let r = libc_call(|| unsafe {
            i64::from(match how % STAT_WAYS {
                0 => ffi::fstat(fd, &raw mut st),
                1 => ffi::stat(p, &raw mut st),
                2 => ffi::fstat64(fd, &raw mut st),
                3 => ffi::lstat(p, &raw mut st),
                4 => ffi::fstatat(fd, c"".as_ptr(), &raw mut st, libc::AT_EMPTY_PATH),
                5 => ffi::stat64(p, &raw mut st),
                6 => ffi::statx(
                    fd,
                    c"".as_ptr(),
                    libc::AT_EMPTY_PATH,
                    libc::STATX_BASIC_STATS,
                    &raw mut s,
                ),
                _ => ffi::fstatat(AT_FDCWD, p, &raw mut st, 0),
            })
        });
        let meta = if how % STAT_WAYS == 6 {
            meta_of_statx(&s)
        } else {
            meta_of_stat(&st)
        };
        (r, meta)
    }

    pub(crate) fn sendfile(
        self,
        out: c_int,
        inp: c_int,
        off: *mut i64,
        len: usize,
        alt: u8,
    ) -> Ret {
        match self {
            // SAFETY: the offset is null or a local's address.
            Way::Libc => libc_call(|| unsafe {
                (if alt.is_multiple_of(2) {
                    ffi::sendfile(out, inp, off, len)
                } else {
                    ffi::sendfile64(out, inp, off, len)
                }) as i64
            }),
            Way::Raw => sys!(libc::SYS_sendfile, out, inp, off, len),
        }
    }

    pub(crate) fn copy_range(
        self,
        inp: c_int,
        off_in: *mut i64,
        out: c_int,
        off_out: *mut i64,
        len: usize,
    ) -> Ret {
        match self {
            // SAFETY: the offsets are null or locals' addresses.
            Way::Libc => libc_call(|| unsafe {
                ffi::copy_file_range(inp, off_in, out, off_out, len, 0) as i64
            }),
            Way::Raw => sys!(libc::SYS_copy_file_range, inp, off_in, out, off_out, len, 0),
        }
    }

    pub(crate) fn splice(
        self,
        inp: c_int,
        off_in: *mut i64,
        out: c_int,
        off_out: *mut i64,
        len: usize,
    ) -> Ret {
        let flags = libc::SPLICE_F_NONBLOCK;
        match self {
            // SAFETY: the offsets are null or locals' addresses.
            Way::Libc => {
                libc_call(|| {
                    // SAFETY: as above.
                    unsafe { ffi::splice(inp, off_in, out, off_out, len, flags) as i64 }
                })
            }
            Way::Raw => sys!(libc::SYS_splice, inp, off_in, out, off_out, len, flags),
        }
    }

    pub(crate) fn mmap(self, fd: c_int, off: i64, len: usize, prot: c_int, alt: u8) -> Ret {
        let null = std::ptr::null_mut();
        let shared = libc::MAP_SHARED;
        match self {
            // SAFETY: the kernel picks the address, nothing existing is touched.
            Way::Libc => libc_call(|| unsafe {
                pointer_result(if alt.is_multiple_of(2) {
                    ffi::mmap(null, len, prot, shared, fd, off)
                } else {
                    ffi::mmap64(null, len, prot, shared, fd, off)
                })
            }),
            Way::Raw => sys!(libc::SYS_mmap, 0, len, prot, shared, fd, off),
        }
    }

    pub(crate) fn munmap(self, at: usize, len: usize) -> Ret {
        match self {
            // SAFETY: the caller owns the mapping and forgets it.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::munmap(at as *mut c_void, len)) }),
            Way::Raw => sys!(libc::SYS_munmap, at, len),
        }
    }

    pub(crate) fn msync(self, at: usize, len: usize, flags: c_int) -> Ret {
        match self {
            // SAFETY: the caller owns the mapping.
            Way::Libc => {
                libc_call(|| {
                    // SAFETY: as above.
                    unsafe { i64::from(ffi::msync(at as *mut c_void, len, flags)) }
                })
            }
            Way::Raw => sys!(libc::SYS_msync, at, len, flags),
        }
    }

    /// `rename`, or `renameat2` with the flags given.
    pub(crate) fn rename(self, old: &CStr, new: &CStr, flags: Option<c_uint>) -> Ret {
        let (o, n) = (old.as_ptr(), new.as_ptr());
        match self {
            // SAFETY: the paths are NUL terminated.
            Way::Libc => libc_call(|| unsafe {
                i64::from(match flags {
                    None => ffi::rename(o, n),
                    Some(f) => ffi::renameat2(AT_FDCWD, o, AT_FDCWD, n, f),
                })
            }),
            Way::Raw => {
                let flags = flags.unwrap_or(0);
                sys!(libc::SYS_renameat2, AT_FDCWD, o, AT_FDCWD, n, flags)
            }
        }
    }

    pub(crate) fn link(self, old: &CStr, new: &CStr) -> Ret {
        let (o, n) = (old.as_ptr(), new.as_ptr());
        match self {
            // SAFETY: the paths are NUL terminated.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::link(o, n)) }),
            Way::Raw => sys!(libc::SYS_linkat, AT_FDCWD, o, AT_FDCWD, n, 0),
        }
    }

    pub(crate) fn unlink(self, path: &CStr) -> Ret {
        match self {
            // SAFETY: the path is NUL terminated.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::unlink(path.as_ptr())) }),
            Way::Raw => sys!(libc::SYS_unlinkat, AT_FDCWD, path.as_ptr(), 0),
        }
    }

    pub(crate) fn flock(self, fd: c_int, op: c_int) -> Ret {
        match self {
            // SAFETY: no memory is involved.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::flock(fd, op)) }),
            Way::Raw => sys!(libc::SYS_flock, fd, op),
        }
    }

    /// Sets the times of a descriptor, or of a path when one is given.
    pub(crate) fn utimens(self, fd: c_int, path: Option<&CStr>, t: &[libc::timespec; 2]) -> Ret {
        let t = t.as_ptr();
        match (self, path) {
            // SAFETY: two times, alive during the call.
            (Way::Libc, None) => libc_call(|| unsafe { i64::from(ffi::futimens(fd, t)) }),
            // SAFETY: two times, alive during the call; the path is NUL terminated.
            (Way::Libc, Some(p)) => {
                libc_call(|| {
                    // SAFETY: as above.
                    unsafe { i64::from(ffi::utimensat(AT_FDCWD, p.as_ptr(), t, 0)) }
                })
            }
            (Way::Raw, None) => sys!(libc::SYS_utimensat, fd, std::ptr::null::<c_char>(), t, 0),
            (Way::Raw, Some(p)) => sys!(libc::SYS_utimensat, AT_FDCWD, p.as_ptr(), t, 0),
        }
    }

    pub(crate) fn fionread(self, fd: c_int) -> (Ret, c_int) {
        let mut n: c_int = -1;
        let p = &raw mut n;
        let r = match self {
            // SAFETY: the answer goes to a local.
            Way::Libc => libc_call(|| unsafe { i64::from(ffi::ioctl(fd, libc::FIONREAD, p)) }),
            Way::Raw => sys!(libc::SYS_ioctl, fd, libc::FIONREAD, p),
        };
        (r, n)
    }
}

fn file_system(dir: &CStr) -> Option<i64> {
    // SAFETY: plain numbers; all zeroes is a value.
    let mut s: libc::statfs = unsafe { std::mem::zeroed() };
    (sys!(libc::SYS_statfs, dir.as_ptr(), &raw mut s) == 0).then_some(s.f_type)
}

/// Whether a directory lies on tmpfs, where block counts are exact.
pub(crate) fn is_tmpfs(dir: &CStr) -> bool {
    file_system(dir) == Some(libc::TMPFS_MAGIC)
}

/// Whether a write from a bad buffer leaves the same bytes each time.
pub(crate) fn shows_bad_sources_exactly(dir: &CStr) -> bool {
    let exact = [libc::TMPFS_MAGIC, libc::EXT4_SUPER_MAGIC];
    file_system(dir).is_some_and(|f| exact.contains(&f))
}

/// What a path names, with its time of birth.
pub(crate) fn raw_stat_birth(path: &CStr) -> Option<(Meta, (i64, u32))> {
    let mut s = empty_statx();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    let r = sys!(
        libc::SYS_statx,
        AT_FDCWD,
        path.as_ptr(),
        0,
        mask,
        &raw mut s
    );
    (r == 0).then(|| (meta_of_statx(&s), (s.stx_btime.tv_sec, s.stx_btime.tv_nsec)))
}

/// A pipe that never blocks.
pub(crate) fn raw_pipe() -> [c_int; 2] {
    let mut pipe = [0; 2];
    let r = sys!(
        libc::SYS_pipe2,
        pipe.as_mut_ptr(),
        libc::O_CLOEXEC | libc::O_NONBLOCK
    );
    assert!(r == 0, "no pipe: {r}");
    pipe
}
