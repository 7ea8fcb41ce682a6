//! Every interposed name, once: its shape (see [`crate::stubs`]) and what serves it.
//!
//! `docs/posix.md` has a row for each, which a test compares with the symbols of the built library.
//!
//! # Safety
//! Each row expands to assembly stubs; see [`crate::stubs`].
#![allow(unsafe_code, non_upper_case_globals, non_snake_case)]

use crate::stubs::stub;
use crate::{
    actions, copies, data, descriptors, handles, names, numbers, process, signal as signals, stack,
    stat as looking, stdio,
};
use core::ffi::CStr;

macro_rules! interpose {
    ($($shape:ident $name:ident ($($how:tt)*);)*) => {
        $(
            pub(crate) mod $name {
                #[allow(unused_imports)]
                use super::*;
                stub!($shape $name $($how)*);
            }
        )*

        /// Looks up all of libc's functions that were not called yet.
        pub(crate) fn resolve_all() {
            $($name::resolve_ahead();)*
        }

        const ALL: &str = concat!($(stringify!($name), "\0"),*);
        /// Every name, one after the other: pointers to them would have to be relocated.
        static NAMES: [u8; ALL.len()] = crate::real::name(ALL);
    };
}

/// Whether a name is in this table.
pub(crate) fn has(name: &CStr) -> bool {
    let mut names = NAMES.split(|&byte| byte == 0);
    names.any(|known| known == name.to_bytes())
}

interpose! {
    // Data. The literal says where the number of bytes is that a call pays for.
    data read (data::read, "rdx");
    data __read (data::read, "rdx");
    data __read_chk (data::read_chk, "rdx");
    data pread (data::pread, "rdx");
    data pread64 (data::pread, "rdx");
    data __pread64 (data::pread, "rdx");
    data __pread_chk (data::pread_chk, "rdx");
    data __pread64_chk (data::pread64_chk, "rdx");
    data readv (data::readv, "4096");
    data preadv (data::preadv, "4096");
    data preadv64 (data::preadv, "4096");
    data preadv2 (data::preadv2, "4096");
    data preadv64v2 (data::preadv2, "4096");
    data write (data::write, "rdx");
    data __write (data::write, "rdx");
    data pwrite (data::pwrite, "rdx");
    data pwrite64 (data::pwrite, "rdx");
    data __pwrite64 (data::pwrite, "rdx");
    data writev (data::writev, "4096");
    data pwritev (data::pwritev, "4096");
    data pwritev64 (data::pwritev, "4096");
    data pwritev2 (data::pwritev2, "4096");
    data pwritev64v2 (data::pwritev2, "4096");
    served lseek (data::lseek);
    served lseek64 (data::lseek);
    served __lseek (data::lseek);
    alias llseek (lseek64::lseek64);

    // The kernel uses the description's offset.
    asks_served lockf (descriptors::before_offset, descriptors::minus_one);
    asks_served lockf64 (descriptors::before_offset, descriptors::minus_one);
    formats dprintf (super::vdprintf::REAL, "rdx", "2", descriptors::before_offset, descriptors::formatted);
    around vdprintf (descriptors::before_offset, descriptors::formatted);
    formats __dprintf_chk (super::__vdprintf_chk::REAL, "rcx", "3", descriptors::before_offset, descriptors::formatted);
    around __vdprintf_chk (descriptors::before_offset, descriptors::formatted);
    before backtrace_symbols_fd (descriptors::before_third);
    before __backtrace_symbols_fd (descriptors::before_third);

    // The kernel copies from one descriptor to another.
    copies sendfile (copies::before_send);
    copies sendfile64 (copies::before_send);
    copies copy_file_range (copies::before_range);
    copies splice (copies::before_splice);
    copies_served ioctl (copies::before_ioctl);

    // Descriptors.
    opens open (names::before_open, descriptors::refused, descriptors::opened);
    opens open64 (names::before_open, descriptors::refused, descriptors::opened);
    opens __open (names::before_open, descriptors::refused, descriptors::opened);
    opens __open64 (names::before_open, descriptors::refused, descriptors::opened);
    opens __open_2 (names::before_open, descriptors::refused, descriptors::opened);
    opens __open64_2 (names::before_open, descriptors::refused, descriptors::opened);
    opens openat (names::before_open_at, descriptors::refused_at, descriptors::opened_at);
    opens openat64 (names::before_open_at, descriptors::refused_at, descriptors::opened_at);
    opens __openat_2 (names::before_open_at, descriptors::refused_at, descriptors::opened_at);
    opens __openat64_2 (names::before_open_at, descriptors::refused_at, descriptors::opened_at);
    opens_how openat2 (names::before_open_how, descriptors::still_refused, descriptors::opened_how);
    creates creat (open::open);
    creates creat64 (open::open);
    opens mkstemp (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    opens mkstemp64 (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    opens mkostemp (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    opens mkostemp64 (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    opens mkstemps (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    opens mkstemps64 (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    opens mkostemps (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    opens mkostemps64 (names::before_temporary, descriptors::still_refused, descriptors::opened_temporary);
    closes close (descriptors::close);
    closes __close (descriptors::close);
    before close_range (descriptors::close_range);
    before closefrom (descriptors::closefrom);
    replace dup (descriptors::dup);
    replace dup2 (descriptors::dup2);
    replace dup3 (descriptors::dup3);
    alias __dup2 (descriptors::dup2);
    // Descriptors that are no files, or that are only written: an old word must not stick to them.
    after socket (descriptors::returned);
    after accept (descriptors::returned);
    after accept4 (descriptors::returned);
    after eventfd (descriptors::returned);
    after epoll_create (descriptors::returned);
    after epoll_create1 (descriptors::returned);
    after timerfd_create (descriptors::returned);
    after signalfd (descriptors::returned);
    after inotify_init (descriptors::returned);
    after inotify_init1 (descriptors::returned);
    after fanotify_init (descriptors::returned);
    after memfd_create (descriptors::returned);
    after shm_open (descriptors::returned);
    after mq_open (descriptors::returned);
    after open_by_handle_at (descriptors::returned);
    after posix_openpt (descriptors::returned);
    after pidfd_open (descriptors::returned);
    asks pidfd_getfd (process::before_sharing_for_good, descriptors::minus_one);
    replace pipe (descriptors::pipe);
    replace pipe2 (descriptors::pipe2);
    alias __pipe (descriptors::pipe);
    replace socketpair (descriptors::socketpair);
    around fcntl (descriptors::before_fcntl, descriptors::after_fcntl);
    around fcntl64 (descriptors::before_fcntl, descriptors::after_fcntl);
    around __fcntl (descriptors::before_fcntl, descriptors::after_fcntl);

    // Streams: libc opens, reads, writes and closes inside itself.
    stream fopen (stdio::before_open, stdio::opened);
    stream fopen64 (stdio::before_open, stdio::opened);
    streams freopen (stdio::reopen);
    streams freopen64 (stdio::reopen);
    stream tmpfile (stdio::before_temporary, stdio::opened_temporary);
    stream tmpfile64 (stdio::before_temporary, stdio::opened_temporary);
    asks_live fdopen (stdio::before_fdopen, stdio::null);

    // libc keeps the descriptor and will read and close it inside itself.
    asks_live fdopendir (descriptors::before_keeping, stdio::null);
    asks daemon (descriptors::before_daemon, descriptors::minus_one);
    before login_tty (descriptors::before_login);

    // Holes may follow.
    answered ftruncate (data::ftruncate);
    answered ftruncate64 (data::ftruncate);
    offered fallocate (data::fallocate);
    offered fallocate64 (data::fallocate);
    answered posix_fallocate (data::posix_fallocate);
    answered posix_fallocate64 (data::posix_fallocate);
    replace truncate (names::truncate);
    alias truncate64 (names::truncate);

    // Times.
    looks stat (looking::stat);
    looks stat64 (looking::stat64);
    looks lstat (looking::lstat);
    looks lstat64 (looking::lstat64);
    looks fstat (looking::fstat);
    looks fstat64 (looking::fstat64);
    looks fstatat (looking::fstatat);
    looks fstatat64 (looking::fstatat64);
    looks statx (looking::statx);
    looks __xstat (looking::__xstat);
    looks __xstat64 (looking::__xstat64);
    looks __lxstat (looking::__lxstat);
    looks __lxstat64 (looking::__lxstat64);
    looks __fxstat (looking::__fxstat);
    looks __fxstat64 (looking::__fxstat64);
    looks __fxstatat (looking::__fxstatat);
    looks __fxstatat64 (looking::__fxstatat64);
    before_watched utime (looking::before_times);
    before_watched utimes (looking::before_times);
    before_watched lutimes (looking::before_times);
    before_watched futimes (looking::before_times_of);
    before_watched futimesat (looking::before_times_at);
    before_watched futimens (looking::before_futimens);
    before_watched utimensat (looking::before_utimensat);
    before_watched fts_open (looking::before_walk);
    before_watched fts64_open (looking::before_walk);
    before_watched fts_children (looking::before_walk);
    before_watched fts64_children (looking::before_walk);
    before_watched fts_read (looking::before_walk);
    before_watched fts64_read (looking::before_walk);
    before_watched ftw (looking::before_walk);
    before_watched ftw64 (looking::before_walk);
    before_watched nftw (looking::before_walk);
    before_watched nftw64 (looking::before_walk);

    // Names, and what recovery looks at.
    watched rename (names::rename);
    watched renameat (names::renameat);
    watched renameat2 (names::renameat2);
    watched link (names::link);
    watched linkat (names::linkat);
    watched unlink (names::unlink);
    watched unlinkat (names::unlinkat);
    watched remove (names::remove);
    watched rmdir (names::rmdir);
    watched mkdir (names::mkdir);
    watched mkdirat (names::mkdirat);
    watched mkdtemp (names::mkdtemp);
    watched mknod (names::mknod);
    watched mknodat (names::mknodat);
    watched __xmknod (names::__xmknod);
    watched __xmknodat (names::__xmknodat);
    watched mkfifo (names::mkfifo);
    watched mkfifoat (names::mkfifoat);
    watched symlink (names::symlink);
    watched symlinkat (names::symlinkat);
    before chmod (names::before_chmod);
    before_watched lchmod (names::before_lchmod);
    before fchmod (names::before_fchmod);
    before fchmodat (names::before_fchmodat);
    before setxattr (names::before_attribute);
    before lsetxattr (names::before_attribute_of_link);
    before fsetxattr (names::before_attribute_of);
    before_watched chown (names::before_chown);
    before_watched lchown (names::before_lchown);
    before_watched fchown (names::before_fchown);
    before_watched fchownat (names::before_fchownat);

    // Durability.
    offered fsync (data::fsync);
    offered fdatasync (data::fsync);
    before_served sync_file_range (data::before_sync_range);
    asks syncfs (data::before_syncfs, descriptors::minus_one);
    before sync (data::before_sync);

    // The kernel uses the file without a call of its own for each time.
    asks_mapped mmap (descriptors::before_mapping, descriptors::minus_one);
    asks_mapped mmap64 (descriptors::before_mapping, descriptors::minus_one);
    before madvise (descriptors::before_advice);
    asks aio_read (descriptors::before_aio, descriptors::minus_one);
    asks aio_read64 (descriptors::before_aio, descriptors::minus_one);
    asks aio_write (descriptors::before_aio, descriptors::minus_one);
    asks aio_write64 (descriptors::before_aio, descriptors::minus_one);
    asks aio_fsync (descriptors::before_aio_fsync, descriptors::minus_one);
    asks aio_fsync64 (descriptors::before_aio_fsync, descriptors::minus_one);
    after aio_error (descriptors::aio_was_asked);
    after aio_error64 (descriptors::aio_was_asked);
    after aio_return (descriptors::aio_has_returned);
    after aio_return64 (descriptors::aio_has_returned);
    asks lio_listio (process::before_listio, descriptors::minus_one);
    asks lio_listio64 (process::before_listio, descriptors::minus_one);
    asks io_setup (process::before_aio_setup, process::minus_errno);
    asks io_queue_init (process::before_aio_setup, process::minus_errno);

    // Other processes.
    replace fork (process::fork);
    replace _Fork (process::fork_raw);
    alias __fork (process::fork);
    alias vfork (crate::vfork::vfork);
    alias __vfork (crate::vfork::vfork);
    asks clone (process::before_clone, descriptors::minus_one);
    asks __clone (process::before_clone, descriptors::minus_one);
    replace posix_spawn (process::posix_spawn);
    replace posix_spawnp (process::posix_spawnp);
    replace pidfd_spawn (process::pidfd_spawn);
    replace pidfd_spawnp (process::pidfd_spawnp);
    before posix_spawn_file_actions_init (actions::before_init);
    before posix_spawn_file_actions_destroy (actions::before_destroy);
    before posix_spawn_file_actions_adddup2 (actions::before_dup);
    before posix_spawn_file_actions_addopen (actions::before_open);
    asks system (process::before_command, descriptors::minus_one);
    replace popen (process::popen);
    alias _IO_popen (process::popen);
    asks wordexp (process::before_command, process::no_space);
    asks forkpty (process::before_forkpty, descriptors::minus_one);
    asks execve (process::before_execve, descriptors::minus_one);
    asks execv (process::before_execv, descriptors::minus_one);
    asks execvp (process::before_execvp, descriptors::minus_one);
    asks execvpe (process::before_execvpe, descriptors::minus_one);
    listed execl (process::execl);
    listed execlp (process::execlp);
    listed execle (process::execle);
    asks fexecve (process::before_fexecve, descriptors::minus_one);
    asks execveat (process::before_execveat, descriptors::minus_one);
    asks sendmsg (process::before_sendmsg, descriptors::minus_one);
    asks sendmmsg (process::before_sendmmsg, descriptors::minus_one);
    asks io_uring_queue_init (process::before_sharing_for_good, process::minus_errno);
    asks io_uring_queue_init_params (process::before_sharing_for_good, process::minus_errno);
    asks io_uring_queue_init_mem (process::before_sharing_for_good, process::minus_errno);
    asks io_uring_queue_mmap (process::before_sharing_for_good, process::minus_errno);
    asks io_uring_setup (process::before_sharing_for_good, process::minus_errno);
    before _exit (process::before_exit);
    before _Exit (process::before_exit);
    before quick_exit (process::before_exit);

    // Dispositions of signals.
    replace sigaction (signals::actions::sigaction);
    alias __sigaction (signals::actions::sigaction);
    replace signal (signals::actions::signal);
    alias bsd_signal (signals::actions::signal);
    alias ssignal (signals::actions::signal);
    replace sysv_signal (signals::actions::sysv_signal);
    alias __sysv_signal (signals::actions::sysv_signal);
    alias sigvec (signals::actions::sigvec);
    replace sigignore (signals::actions::sigignore);
    replace sigset (signals::actions::sigset);
    after siginterrupt (signals::actions::interrupts);
    after sigaltstack (stack::alternate);
    before __register_atfork (process::before_registering);
    shallow dlopen (names::before_library);
    by_handle dlsym (handles::dlsym);

    // The calling thread's signal mask: the register of the new mask, where null leaves it alone, and
    // the word of a `jmp_buf` that says whether it holds one.
    masks pthread_sigmask ("rsi");
    masks sigprocmask ("rsi");
    masks sigblock ("rsp");
    masks sigsetmask ("rsp");
    masks sighold ("rsp");
    masks sigrelse ("rsp");
    masks sigsuspend ("rsp");
    masks __sigsuspend ("rsp");
    masks sigpause ("rsp");
    masks __sigpause ("rsp");
    masks __xpg_sigpause ("rsp");
    masks pselect ("r9");
    masks ppoll ("rcx");
    masks __ppoll_chk ("rcx");
    masks epoll_pwait ("r8");
    masks epoll_pwait2 ("r8");
    forgets setcontext ("test rsp, rsp");
    forgets swapcontext ("test rsp, rsp");
    forgets longjmp ("cmp dword ptr [rdi + 64], 0");
    forgets _longjmp ("cmp dword ptr [rdi + 64], 0");
    forgets siglongjmp ("cmp dword ptr [rdi + 64], 0");
    forgets __longjmp_chk ("cmp dword ptr [rdi + 64], 0");

    // Identity, limits, sandboxes.
    before setuid (descriptors::release_all);
    before setgid (descriptors::release_all);
    before seteuid (descriptors::release_all);
    before setegid (descriptors::release_all);
    before setreuid (descriptors::release_all);
    before setregid (descriptors::release_all);
    before setresuid (descriptors::release_all);
    before setresgid (descriptors::release_all);
    before setfsuid (descriptors::release_all);
    before setfsgid (descriptors::release_all);
    before setgroups (descriptors::release_all);
    before initgroups (descriptors::release_all);
    before chroot (descriptors::release_all);
    before pivot_root (descriptors::release_all);
    before unshare (descriptors::release_all);
    before setns (descriptors::release_all);
    before capset (descriptors::release_all);
    before mlockall (descriptors::release_all);
    before prctl (process::before_prctl);
    before setrlimit (process::before_setrlimit);
    before ulimit (process::before_ulimit);
    before vlimit (process::before_vlimit);
    before setrlimit64 (process::before_setrlimit);
    before prlimit (process::before_prlimit);
    before prlimit64 (process::before_prlimit);
    asks_seven syscall (numbers::before, numbers::answer);
}
