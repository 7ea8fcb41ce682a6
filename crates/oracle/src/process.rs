//! Processes and descriptor passing, through libc as programs do it.
//!
//! # Safety
//!
//! `fork` is called only while this process has one thread, or its child goes straight to raw calls
//! and [`exit_now`]. Messages point to locals that outlive the call.
#![allow(unsafe_code)]

use crate::sys;
use crate::way::Ret;
use libc::c_int;

/// Forks through libc; 0 in the child.
pub(crate) fn fork() -> i32 {
    // SAFETY: see the module's invariant about threads.
    unsafe { libc::fork() }
}

/// Ends the process through libc's `_exit`.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: ends the process, no memory is involved.
    unsafe { libc::_exit(code) }
}

/// Waits for a child; its exit code, or 128 plus the signal.
pub(crate) fn wait_for(pid: i32) -> c_int {
    let mut status = 0;
    // SAFETY: the status is a local.
    let r = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if r != pid {
        return -1;
    }
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    }
}

/// Runs `work` in a forked child, whose exit code says whether it succeeded.
pub(crate) fn in_child(work: impl FnOnce() -> Result<(), String>) -> i32 {
    let pid = fork();
    if pid != 0 {
        return pid;
    }
    match work() {
        Ok(()) => exit_now(0),
        Err(e) => {
            let said = format!("child: {e}\n");
            sys!(libc::SYS_write, 2, said.as_ptr(), said.len());
            exit_now(1)
        }
    }
}

/// A child that must end well.
pub(crate) fn joined(pid: i32) -> Result<(), String> {
    match wait_for(pid) {
        0 => Ok(()),
        code => Err(format!("a child ended with {code}")),
    }
}

pub(crate) fn kill(pid: i32) {
    sys!(libc::SYS_kill, pid, libc::SIGKILL);
}

/// A pipe for reports between processes, by raw calls, so that no interposed call orders anything.
pub(crate) fn pipe() -> [c_int; 2] {
    let mut p = [0; 2];
    let r = sys!(libc::SYS_pipe2, p.as_mut_ptr(), libc::O_CLOEXEC);
    assert!(r == 0, "no pipe: {r}");
    p
}

pub(crate) fn socket_pair() -> [c_int; 2] {
    let mut p = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let r = sys!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, p.as_mut_ptr());
    assert!(r == 0, "no sockets: {r}");
    p
}

pub(crate) fn raw_write(fd: c_int, buf: &[u8]) -> Ret {
    sys!(libc::SYS_write, fd, buf.as_ptr(), buf.len())
}

pub(crate) fn raw_read(fd: c_int, buf: &mut [u8]) -> Ret {
    sys!(libc::SYS_read, fd, buf.as_mut_ptr(), buf.len())
}

pub(crate) fn raw_close(fd: c_int) {
    sys!(libc::SYS_close, fd);
}

#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    fd: c_int,
    pad: c_int,
}

fn with_message<R>(fd: c_int, f: impl FnOnce(*mut libc::msghdr, *mut Control) -> R) -> R {
    let mut byte = 0u8;
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let header = libc::cmsghdr {
        cmsg_len: size_of::<libc::cmsghdr>() + size_of::<c_int>(),
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    let mut control = Control { header, fd, pad: 0 };
    // SAFETY: plain numbers and null pointers; all zeroes is a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = size_of::<Control>();
    f(&raw mut msg, &raw mut control)
}

/// Passes a descriptor over a socket, through libc.
pub(crate) fn send_fd(socket: c_int, fd: c_int) -> Result<(), String> {
    // SAFETY: the message and what it points to are alive.
    let r = with_message(fd, |msg, _| unsafe { libc::sendmsg(socket, msg, 0) });
    if r == 1 {
        Ok(())
    } else {
        Err(format!("sendmsg: {r}"))
    }
}

/// Takes a descriptor from a socket, through libc.
pub(crate) fn receive_fd(socket: c_int) -> Result<c_int, String> {
    let (r, fd) = with_message(-1, |msg, control| {
        // SAFETY: the message and what it points to are alive; the control block is read after.
        unsafe { (libc::recvmsg(socket, msg, 0), (*control).fd) }
    });
    if r == 1 && fd >= 0 {
        Ok(fd)
    } else {
        Err(format!("recvmsg: {r}, descriptor {fd}"))
    }
}
