//! Every interposed name, once: its shape (see [`crate::stubs`]) and what serves it.
//!
//! `docs/posix.md` has a row for each, which a test compares with the symbols of the built library.
//!
//! # Safety
//! Each row expands to assembly stubs; see [`crate::stubs`].
#![allow(unsafe_code, non_upper_case_globals, non_snake_case)]

use crate::stubs::stub;
use crate::{data, descriptors, process, signal as signals, times};

macro_rules! interpose {
    ($($shape:ident $name:ident ($($how:tt)*);)*) => {
        $(
            pub(crate) mod $name {
                #[allow(unused_imports)]
                use super::*;
                stub!($shape $name $($how)*);
            }
        )*
    };
}

interpose! {
    // Data. The literal says where the number of bytes is that a call pays for.
    data read (data::read, "rdx");
    data __read_chk (data::read_chk, "rdx");
    data pread (data::pread, "rdx");
    data pread64 (data::pread, "rdx");
    data __pread_chk (data::pread_chk, "rdx");
    data __pread64_chk (data::pread64_chk, "rdx");
    data readv (data::readv, "4096");
    data preadv (data::preadv, "4096");
    data preadv64 (data::preadv, "4096");
    data preadv2 (data::preadv2, "4096");
    data preadv64v2 (data::preadv2, "4096");
    data write (data::write, "rdx");
    data pwrite (data::pwrite, "rdx");
    data pwrite64 (data::pwrite, "rdx");
    data writev (data::writev, "4096");
    data pwritev (data::pwritev, "4096");
    data pwritev64 (data::pwritev, "4096");
    data pwritev2 (data::pwritev2, "4096");
    data pwritev64v2 (data::pwritev2, "4096");
    served lseek (data::lseek);
    served lseek64 (data::lseek);

    // The kernel uses the description's offset.
    before sendfile (descriptors::hand_over_pair);
    before sendfile64 (descriptors::hand_over_pair);
    before_served lockf (descriptors::hand_over);
    before_served lockf64 (descriptors::hand_over);
    before_served ioctl (descriptors::hand_over);
    before_served dprintf (descriptors::hand_over);
    before_served vdprintf (descriptors::hand_over);
    before_served __dprintf_chk (descriptors::hand_over);
    before_served __vdprintf_chk (descriptors::hand_over);
    before_served backtrace_symbols_fd (descriptors::hand_over);
    before copy_file_range (descriptors::hand_over_first_third);
    before splice (descriptors::hand_over_first_third);

    // Descriptors.
    after open (descriptors::opened);
    after open64 (descriptors::opened);
    after __open_2 (descriptors::opened);
    after __open64_2 (descriptors::opened);
    after openat (descriptors::opened_at);
    after openat64 (descriptors::opened_at);
    after __openat_2 (descriptors::opened_at);
    after __openat64_2 (descriptors::opened_at);
    after mkstemp (descriptors::opened_temporary);
    after mkstemp64 (descriptors::opened_temporary);
    after mkostemp (descriptors::opened_temporary);
    after mkostemp64 (descriptors::opened_temporary);
    after mkstemps (descriptors::opened_temporary);
    after mkstemps64 (descriptors::opened_temporary);
    after mkostemps (descriptors::opened_temporary);
    after mkostemps64 (descriptors::opened_temporary);
    live close (descriptors::close);
    before close_range (descriptors::close_range);
    before closefrom (descriptors::closefrom);
    replace dup (descriptors::dup);
    replace dup2 (descriptors::dup2);
    replace dup3 (descriptors::dup3);
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
    after creat (descriptors::returned);
    after creat64 (descriptors::returned);
    replace pipe (descriptors::pipe);
    replace pipe2 (descriptors::pipe2);
    replace socketpair (descriptors::socketpair);
    around fcntl (descriptors::before_fcntl, descriptors::after_fcntl);
    around fcntl64 (descriptors::before_fcntl, descriptors::after_fcntl);

    // libc keeps the descriptor and will read, write and close it inside itself.
    before_live fdopen (descriptors::release);
    before_live fdopendir (descriptors::release);
    before daemon (descriptors::release_standard);
    before login_tty (descriptors::release_standard_and);

    // Holes may follow.
    before_served ftruncate (descriptors::before_holes);
    before_served ftruncate64 (descriptors::before_holes);
    before_served fallocate (descriptors::before_holes);
    before_served fallocate64 (descriptors::before_holes);
    before truncate (descriptors::before_holes_somewhere);
    before truncate64 (descriptors::before_holes_somewhere);

    // Times.
    before_stores stat (times::settle_all);
    before_stores stat64 (times::settle_all);
    before_stores lstat (times::settle_all);
    before_stores lstat64 (times::settle_all);
    before_stores fstat (times::settle_all);
    before_stores fstat64 (times::settle_all);
    before_stores fstatat (times::settle_all);
    before_stores fstatat64 (times::settle_all);
    before_stores statx (times::settle_all);
    before_stores __xstat (times::settle_all);
    before_stores __xstat64 (times::settle_all);
    before_stores __lxstat (times::settle_all);
    before_stores __lxstat64 (times::settle_all);
    before_stores __fxstat (times::settle_all);
    before_stores __fxstat64 (times::settle_all);
    before_stores __fxstatat (times::settle_all);
    before_stores __fxstatat64 (times::settle_all);
    before_stores utime (times::settle_all);
    before_stores utimes (times::settle_all);
    before_stores lutimes (times::settle_all);
    before_stores futimes (times::settle_all);
    before_stores futimesat (times::settle_all);
    before_stores futimens (times::settle_all);
    before_stores utimensat (times::settle_all);
    before_stores fsync (times::settle_all);
    before_stores fdatasync (times::settle_all);
    before_stores syncfs (times::settle_all);
    before_stores sync (times::settle_all);
    before_stores fts_read (times::settle_all);
    before_stores fts64_read (times::settle_all);
    before_stores ftw (times::settle_all);
    before_stores ftw64 (times::settle_all);
    before_stores nftw (times::settle_all);
    before_stores nftw64 (times::settle_all);

    // Other processes.
    replace fork (process::fork);
    replace _Fork (process::fork_raw);
    alias vfork (process::vfork);
    before clone (process::before_clone);
    before posix_spawn (signals::before_program);
    before posix_spawnp (signals::before_program);
    before system (signals::before_program);
    before popen (signals::before_program);
    before wordexp (signals::before_program);
    before forkpty (process::share_all);
    before execve (signals::before_program);
    before execv (signals::before_program);
    before execvp (signals::before_program);
    before execvpe (signals::before_program);
    before execl (signals::before_program);
    before execlp (signals::before_program);
    before execle (signals::before_program);
    before fexecve (signals::before_program);
    before execveat (signals::before_program);
    before sendmsg (process::before_sendmsg);
    before sendmmsg (process::before_sendmmsg);
    before io_uring_queue_init (process::share_all_for_good);
    before io_uring_queue_init_params (process::share_all_for_good);
    before io_uring_queue_mmap (process::share_all_for_good);
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
    replace sigignore (signals::actions::sigignore);
    replace sigset (signals::actions::sigset);
    after siginterrupt (signals::actions::interrupts);

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
    before setrlimit64 (process::before_setrlimit);
    before prlimit (process::before_prlimit);
    before prlimit64 (process::before_prlimit);
    before syscall (process::before_syscall);
}
