//! `syscall(2)`: a program may ask for any call by its number, and gets what the entry of that name does.
//!
//! What only has to come before the kernel's work is done, and libc goes on. Where the answer depends on what is
//! staged, or something is to be done after the call, the call is made here: none of these has anything that a
//! cancelled thread would have to undo. Node.js asks for the size of its files in this way.
//!
//! # Safety
//! System calls are made with the program's own arguments, as it would have made them itself, and its buffers
//! are read through guarded copies or filled by the kernel.
#![allow(unsafe_code)]

use crate::declared::Asked;
use crate::{
    appends, copies, data, descriptors, elsewhere, fds, init, names, pointers, process, signal,
    stage, stat, sys, times,
};
use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong};
use core::sync::atomic::Ordering;

/// What is to become of a call: made by libc, or made already, with this answer; or its error.
type Fate = Result<Option<c_int>, c_int>;

/// Before `syscall(number, …)`: 0 if libc is to make the call, an error, or what [`answer`] makes the answer.
pub(crate) extern "C" fn before(
    number: c_long,
    first: c_ulong,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
    sixth: c_ulong,
) -> c_int {
    let arguments = [first, second, third, fourth, fifth].map(|word| word as usize);
    match fate(number, arguments, sixth as usize) {
        Ok(None) => 0,
        Ok(Some(answer)) => -answer - 1,
        Err(errno) => errno,
    }
}

/// What the program is told of a call that libc does not make.
pub(crate) extern "C" fn answer(code: c_int) -> i64 {
    match code {
        ..0 => i64::from(-(code + 1)),
        errno => descriptors::minus_one(errno),
    }
}

/// In the place of libc's `openat2` where it has none, before 2.43.
pub(crate) extern "C" fn openat2(
    dir: c_int,
    path: *const c_char,
    how: *const libc::open_how,
    len: usize,
) -> c_int {
    let arguments = [dir as usize, path as usize, how as usize, len, 0];
    sys::to_libc(make(libc::SYS_openat2, arguments)) as c_int
}

fn fate(number: c_long, arguments: [usize; 5], sixth: usize) -> Fate {
    look(number, arguments)
        .or_else(|| serve(number, arguments, sixth))
        .or_else(|| alias(number, arguments))
        .or_else(|| change_name(number, arguments))
        .or_else(|| open(number, arguments))
        .or_else(|| copies::by_number(number, arguments, sixth))
        .unwrap_or_else(|| prepare(number, arguments).map(|()| None))
}

/// What a function of libc's kind has answered.
fn told(result: c_int) -> Fate {
    if result < 0 {
        return Err(sys::errno());
    }
    Ok(Some(result))
}

/// Makes the call.
fn make(number: c_long, [a, b, c, d, e]: [usize; 5]) -> sys::Result {
    // SAFETY: the program's own call.
    unsafe { sys::call(number, [a, b, c, d, e, 0]) }
}

/// The `stat` family.
fn look(number: c_long, arguments: [usize; 5]) -> Option<Fate> {
    let unpublished =
        stage::STAGED.load(Ordering::Relaxed) | times::PENDING.load(Ordering::Relaxed);
    if unpublished == 0 && !elsewhere::is_anything() {
        return None;
    }
    let [first, second, third, fourth, fifth] = arguments;
    let asked = |flags| Asked::Path(libc::AT_FDCWD, first as *const c_char, flags);
    let asked_at = |flags| Asked::Path(first as c_int, second as *const c_char, flags);
    let make = || sys::to_libc(make(number, arguments)) as c_int;
    let looked = match number {
        libc::SYS_stat | libc::SYS_lstat | libc::SYS_fstat => {
            let asked = match number {
                libc::SYS_stat => asked(0),
                libc::SYS_lstat => asked(libc::AT_SYMLINK_NOFOLLOW),
                _ => Asked::Fd(first as c_int),
            };
            stat::look(second as *mut libc::stat, asked, make)
        }
        libc::SYS_newfstatat => {
            stat::look(third as *mut libc::stat, asked_at(fourth as c_int), make)
        }
        libc::SYS_statx => stat::look(fifth as *mut libc::statx, asked_at(third as c_int), make),
        _ => return None,
    };
    Some(told(looked))
}

/// What is done to a file of ours through a descriptor; but for `lseek`, whose answer has more bits than this shape has room
/// for. Of a position that is told in two words the first has all of it here.
fn serve(number: c_long, [fd, second, third, fourth, _]: [usize; 5], sixth: usize) -> Option<Fate> {
    use core::ffi::c_void;
    let fd = fd as c_int;
    let answer = match number {
        libc::SYS_fsync | libc::SYS_fdatasync => data::fsync(fd),
        libc::SYS_ftruncate => data::ftruncate(fd, second as i64),
        libc::SYS_fallocate => data::fallocate(fd, second as i32, third as i64, fourth as i64),
        // No other: of most calls the first word is no descriptor.
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2 => {
            fds::promoted(fd)?.writer()?;
            if !signal::mask::may_be_served(fd) {
                return None;
            }
            let (into, from) = (second as *mut c_void, second as *const c_void);
            let (vector, count) = (second as *const libc::iovec, third as i32);
            let moved = match number {
                libc::SYS_read => data::read(fd, into, third),
                libc::SYS_pread64 => data::pread(fd, into, third, fourth as i64),
                libc::SYS_write => data::write(fd, from, third),
                libc::SYS_pwrite64 => data::pwrite(fd, from, third, fourth as i64),
                libc::SYS_readv => data::readv(fd, vector, count),
                libc::SYS_writev => data::writev(fd, vector, count),
                libc::SYS_preadv => data::preadv(fd, vector, count, fourth as i64),
                libc::SYS_pwritev => data::pwritev(fd, vector, count, fourth as i64),
                libc::SYS_preadv2 => data::preadv2(fd, vector, count, fourth as i64, sixth as i32),
                _ => data::pwritev2(fd, vector, count, fourth as i64, sixth as i32),
            };
            moved as i64
        }
        _ => return None,
    };
    (answer != data::PASS).then(|| told(answer as c_int))
}

/// What concerns descriptors themselves, as under its name.
fn alias(number: c_long, arguments: [usize; 5]) -> Option<Fate> {
    let [fd, second, third, ..] = arguments;
    let (fd, new) = (fd as c_int, second as c_int);
    let fate = match number {
        libc::SYS_fcntl => descriptors::ready_for_fcntl(fd, new, third).and_then(|()| {
            // What the others return may be less than zero, a group of processes say, and is the kernel's to return.
            if !matches!(new, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_GETFL) {
                return Ok(None);
            }
            let done = make(number, arguments)?;
            Ok(Some(descriptors::after_fcntl(
                fd,
                new,
                third,
                done as c_int,
            )))
        }),
        libc::SYS_close => told(descriptors::close(fd)),
        libc::SYS_dup => told(descriptors::dup(fd)),
        libc::SYS_dup2 => told(descriptors::dup2(fd, new)),
        libc::SYS_dup3 => told(descriptors::dup3(fd, new, third as c_int)),
        _ => return None,
    };
    Some(fate)
}

/// What names a file, or takes a name away, in the modes that stage.
fn change_name(number: c_long, [first, second, third, fourth, fifth]: [usize; 5]) -> Option<Fate> {
    use core::ffi::c_char;
    if names::WATCHED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let path = |word: usize| word as *const c_char;
    let (dir, mode) = (first as c_int, second as libc::mode_t);
    let done = match number {
        libc::SYS_rename => names::rename(path(first), path(second)),
        libc::SYS_renameat => names::renameat(dir, path(second), third as c_int, path(fourth)),
        libc::SYS_renameat2 => {
            let (to, flags) = (third as c_int, fifth as c_uint);
            names::renameat2(dir, path(second), to, path(fourth), flags)
        }
        libc::SYS_link => names::link(path(first), path(second)),
        libc::SYS_linkat => {
            let (to, flags) = (third as c_int, fifth as c_int);
            names::linkat(dir, path(second), to, path(fourth), flags)
        }
        libc::SYS_unlink => names::unlink(path(first)),
        libc::SYS_unlinkat => names::unlinkat(dir, path(second), third as c_int),
        libc::SYS_rmdir => names::rmdir(path(first)),
        libc::SYS_mkdir => names::mkdir(path(first), mode),
        libc::SYS_mkdirat => names::mkdirat(dir, path(second), third as libc::mode_t),
        libc::SYS_mknod => names::mknod(path(first), mode, third as libc::dev_t),
        libc::SYS_mknodat => {
            let (mode, device) = (third as libc::mode_t, fourth as libc::dev_t);
            names::mknodat(dir, path(second), mode, device)
        }
        libc::SYS_symlink => names::symlink(path(first), path(second)),
        libc::SYS_symlinkat => names::symlinkat(path(first), second as c_int, path(third)),
        libc::SYS_truncate => names::truncate(path(first), second as libc::off_t),
        _ => return None,
    };
    Some(told(done))
}

/// What opens a file, in the modes that stage.
fn open(number: c_long, arguments: [usize; 5]) -> Option<Fate> {
    if names::WATCHED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let [first, second, third, fourth, _] = arguments;
    let (dir, path, mut flags, mode) = match number {
        libc::SYS_open => (libc::AT_FDCWD, first, second as c_int, third),
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            (libc::AT_FDCWD, first, flags, second)
        }
        libc::SYS_openat => (first as c_int, second, third as c_int, fourth),
        libc::SYS_openat2 => (first as c_int, second, flags_of(third)?, 0),
        _ => return None,
    };
    let asked = flags;
    let token = names::before(dir, path as *const _, &mut flags);
    let (token, opened) = match number {
        _ if flags == asked => (token, make(number, arguments)),
        libc::SYS_openat2 => match How::read(third, fourth) {
            Some(how) => {
                let changed = how.without(libc::O_TRUNC);
                let at = changed.as_ptr() as usize;
                (token, make(number, [first, path, at, fourth, 0]))
            }
            // What it asks for only the kernel knows, which cuts it.
            None => (names::NOTHING, make(number, arguments)),
        },
        _ => {
            let changed = [dir as usize, path, flags as usize, mode, 0];
            (token, make(libc::SYS_openat, changed))
        }
    };
    Some(opened.and_then(|fd| {
        let fd = descriptors::note_open(fd as c_int, flags);
        if fd < 0 {
            return told(fd);
        }
        told(names::opened(token, fd))
    }))
}

/// The flags of an `open_how`, its first word; `None` where it cannot be read, as the kernel will say.
pub(crate) fn flags_of(how: usize) -> Option<c_int> {
    let [flags] = pointers::words::<1>(how)?;
    Some(flags as c_int)
}

/// What a hook says that may refuse.
fn ready(errno: c_int) -> Result<(), c_int> {
    if errno == 0 { Ok(()) } else { Err(errno) }
}

/// What `openat2` is asked for: flags, mode, ways to resolve the name, and what later kernels may know.
pub(crate) struct How([u64; Self::MOST]);

impl How {
    /// Words that there is room for.
    pub(crate) const MOST: usize = 8;

    /// What is at an address, in so many bytes; `None` where that cannot be read, or is more.
    pub(crate) fn read(at: usize, len: usize) -> Option<Self> {
        let mut bytes = [0; Self::MOST * size_of::<u64>()];
        pointers::read(at, bytes.get_mut(..len)?)?;
        let mut words = [0; Self::MOST];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Some(Self(words))
    }

    /// The same in words, without these flags.
    pub(crate) fn without(self, flags: c_int) -> [u64; Self::MOST] {
        let mut words = self.0;
        words[0] &= !(flags as u64);
        words
    }
}

/// What has to be done before the kernel does the rest.
fn prepare(number: c_long, [first, second, third, fourth, fifth]: [usize; 5]) -> Result<(), c_int> {
    let fd = first as c_int;
    match number {
        // Through a mapping these need nothing.
        libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_vmsplice
        | libc::SYS_tee => return descriptors::unstage(fd),
        libc::SYS_madvise => descriptors::before_advice(first, second, third as c_int),
        libc::SYS_mmap => return descriptors::unstage(fifth as c_int),
        libc::SYS_io_setup if init::appends().is_some() => return appends::stop(),
        libc::SYS_io_setup if init::staging() => return process::share_all_for_good(),
        libc::SYS_sync_file_range => {
            times::settle_all();
            data::before_sync_range(fd);
        }
        libc::SYS_sync => data::before_sync(),
        libc::SYS_syncfs => return data::sync_file_system(fd),
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_lseek
        | libc::SYS_preadv2
        | libc::SYS_pwritev2 => return descriptors::hand_over(fd),
        libc::SYS_close_range => {
            descriptors::close_range(first as u32, second as u32, third as c_int);
        }
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => {
            process::share_all()?;
            descriptors::release_all();
        }
        libc::SYS_execve => return ready(process::before_execve(first, second, third)),
        libc::SYS_execveat => {
            let errno = process::before_execveat(fd, second, third, fourth, fifth as c_int);
            return ready(errno);
        }
        libc::SYS_sendmsg => return ready(process::before_sendmsg(fd, second)),
        libc::SYS_sendmmsg => return ready(process::before_sendmmsg(fd, second, third as c_uint)),
        libc::SYS_io_uring_setup | libc::SYS_pidfd_getfd => return process::share_all_for_good(),
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
        | libc::SYS_setfsgid
        | libc::SYS_setgroups
        | libc::SYS_pivot_root
        | libc::SYS_mlockall => {
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
        libc::SYS_prctl => process::before_prctl(fd),
        libc::SYS_setrlimit => process::before_setrlimit(fd),
        libc::SYS_prlimit64 => process::before_prlimit(fd, second as c_int, third),
        libc::SYS_utime | libc::SYS_utimes => stat::before_times(first as *const _),
        libc::SYS_utimensat => {
            stat::before_utimensat(fd, second as *const _, third, fourth as i32);
        }
        libc::SYS_futimesat => stat::before_times_at(fd, second as *const _),
        libc::SYS_chmod => names::before_chmod(first as *const _, second as libc::mode_t),
        libc::SYS_fchmod => names::before_fchmod(fd, second as libc::mode_t),
        libc::SYS_fchmodat | libc::SYS_fchmodat2 => {
            names::before_fchmodat(fd, second as *const _, third as libc::mode_t);
        }
        libc::SYS_chown => names::before_chown(first as *const _, second as libc::uid_t),
        libc::SYS_lchown => names::before_lchown(first as *const _, second as libc::uid_t),
        libc::SYS_fchown => names::before_fchown(fd, second as libc::uid_t),
        libc::SYS_fchownat => names::before_fchownat(fd, second as *const _, third as libc::uid_t),
        libc::SYS_setxattr => names::before_attribute(first as *const _),
        libc::SYS_lsetxattr => names::before_attribute_of_link(first as *const _),
        libc::SYS_fsetxattr => names::before_attribute_of(fd),
        _ => {}
    }
    Ok(())
}
