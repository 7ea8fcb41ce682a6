//! The kernel's write lease, and the signals by which the kernel asks for it back.
//!
//! A write lease on a description makes everybody else's open of the file wait until it is given up.
//! The kernel announces the wait by a signal, whose default would be death, to whom the description
//! names: the monitor's main thread, which blocks the signal and reads it from a descriptor. Naming a
//! thread and not a process keeps the signal away from other threads. What the signal says is not
//! believed, and more signals than fit the queue become one: whoever gets one looks at all leases.
//!
//! # Safety
//!
//! The `unsafe` blocks make calls that rustix does not have. Invariants: integers are passed, or
//! pointers to values of the call's own type that live until it returns; the signal mask changed is
//! the calling thread's own.
#![allow(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::io::Errno;

use super::open;
use crate::registry::sys::Fd;

/// `F_SETSIG`, `F_SETOWN_EX` and `F_GETOWN_EX` of the kernel's interface, and what the last two are about.
const SET_SIGNAL: libc::c_int = 10;
const SET_OWNER: libc::c_int = 15;
const GET_OWNER: libc::c_int = 16;

#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// The kind of an owner that is a thread.
const THREAD: libc::c_int = 0;

/// The descriptor by which signals of the main thread are read.
pub(super) struct Signals {
    fd: Fd,
    owner: libc::pid_t,
}

/// What signals said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Somebody may be waiting for a lease.
    pub(super) wanted: bool,
    /// The monitor is told to end.
    pub(super) end: bool,
    /// And not to wait for those that it serves.
    pub(super) at_once: bool,
}

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Held, and nobody waits.
    Held,
    /// Somebody waits, or the kernel lost patience and took it.
    Broken,
}

fn lease_signal() -> libc::c_int {
    libc::SIGRTMIN()
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

fn done(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 {
        Err(last_error())
    } else {
        Ok(result)
    }
}

impl Signals {
    /// Blocks the signals in the calling thread and opens a descriptor for them.
    pub(super) fn open() -> Result<Self, Errno> {
        let asked = [lease_signal(), libc::SIGIO];
        let told = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
        // SAFETY: a signal set is integers, for which zero is a value; the calls fill and read it.
        let fd = unsafe {
            let mut set: libc::sigset_t = core::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in asked.into_iter().chain(told) {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        let fd = done(fd)?;
        // SAFETY: the descriptor was opened just above and belongs to nobody else.
        let fd = Fd::new(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: no arguments.
        let owner = unsafe { libc::gettid() };
        Ok(Self { fd, owner })
    }

    /// For waiting.
    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }

    /// The thread that leases are taken for.
    pub(super) fn owner(&self) -> libc::pid_t {
        self.owner
    }

    /// What came since the last time.
    pub(super) fn read(&self) -> Said {
        const ONE: usize = size_of::<libc::signalfd_siginfo>();
        let mut said = Said::default();
        let mut buffer = [0u8; ONE * 16];
        while let Ok(len) = rustix::io::read(self.fd.as_fd(), &mut buffer) {
            for info in buffer.get(..len).unwrap_or_default().chunks_exact(ONE) {
                let number = info
                    .first_chunk()
                    .map_or(0, |word| i32::from_ne_bytes(*word));
                let told = matches!(number, libc::SIGTERM | libc::SIGINT | libc::SIGHUP);
                said.end |= told;
                said.at_once |= number == libc::SIGINT;
                said.wanted |= !told;
            }
            if len == 0 {
                break;
            }
        }
        said
    }
}

/// Takes the write lease; breaks of it are announced to thread `owner`.
pub(super) fn take(fd: BorrowedFd<'_>, owner: libc::pid_t) -> Result<(), Errno> {
    tell(fd, owner)?;
    let fd = raw(fd);
    // SAFETY: integers only.
    let taken = done(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) });
    if taken.is_err() {
        disown(fd);
    }
    taken.map(drop)
}

/// Whether nobody else has the file open or mapped, in no process. Who opens it from now on waits until the description is
/// closed, and the signal that tells of him is one that does nothing.
pub(super) fn is_alone(fd: BorrowedFd<'_>) -> bool {
    let fd = raw(fd);
    // SAFETY: integers only.
    unsafe {
        done(libc::fcntl(fd, SET_SIGNAL, libc::SIGURG)).is_ok()
            && done(libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK)).is_ok()
    }
}

/// Has breaks announced to thread `owner` from now on. One that was announced before is seen by [`state`].
pub(super) fn tell(fd: BorrowedFd<'_>, owner: libc::pid_t) -> Result<(), Errno> {
    let fd = raw(fd);
    let thread = Owner {
        kind: THREAD,
        id: owner,
    };
    // SAFETY: `thread` is what the first call reads; the other passes integers.
    unsafe {
        done(libc::fcntl(fd, SET_OWNER, &raw const thread))?;
        done(libc::fcntl(fd, SET_SIGNAL, lease_signal()))?;
    }
    Ok(())
}

/// Whether breaks are announced to somebody who lives.
pub(super) fn is_watched(fd: BorrowedFd<'_>) -> bool {
    let mut owner = Owner {
        kind: THREAD,
        id: 0,
    };
    // SAFETY: `owner` is what the call writes.
    let asked = unsafe { libc::fcntl(raw(fd), GET_OWNER, &raw mut owner) };
    if asked < 0 || owner.id == 0 {
        // Of the dead newer kernels say zero.
        return false;
    }
    // SAFETY: no signal is sent.
    match done(unsafe { libc::kill(owner.id.abs(), 0) }) {
        // The dead have their number until somebody has waited for them, which in a container may be nobody.
        Ok(_) => !open::has_ended(&format!("/proc/{}", owner.id.abs())),
        Err(errno) => errno != Errno::SRCH,
    }
}

/// Gives the lease up, and leaves the description as it was before.
pub(super) fn give_up(fd: BorrowedFd<'_>) {
    // SAFETY: integers only.
    let _ = unsafe { libc::fcntl(raw(fd), libc::F_SETLEASE, libc::F_UNLCK) };
    disown(raw(fd));
}

fn disown(fd: libc::c_int) {
    // SAFETY: integers only.
    unsafe {
        libc::fcntl(fd, SET_SIGNAL, 0);
        libc::fcntl(fd, libc::F_SETOWN, 0);
    }
}

/// Whether the lease is held and nobody waits for it.
pub(super) fn state(fd: BorrowedFd<'_>) -> State {
    // SAFETY: integers only.
    let kind = unsafe { libc::fcntl(raw(fd), libc::F_GETLEASE) };
    if kind == libc::F_WRLCK {
        State::Held
    } else {
        State::Broken
    }
}

fn raw(fd: BorrowedFd<'_>) -> libc::c_int {
    use rustix::fd::AsRawFd as _;
    fd.as_raw_fd()
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// The number of the process here; a process of a namespace that is not seen from here has none.
    pub(super) pid: Option<libc::pid_t>,
    /// Its user.
    pub(super) uid: libc::uid_t,
}

/// Asks the kernel itself: where it says that the process has no number here, rustix has no value for that, and what it
/// gives is taken for an error.
pub(super) fn who(connection: BorrowedFd<'_>) -> Result<Peer, Errno> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: libc::uid_t::MAX,
        gid: libc::gid_t::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `len` are the places the call writes to, of the sizes it is told.
    let result = unsafe {
        libc::getsockopt(
            raw(connection),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    done(result)?;
    Ok(Peer {
        pid: (peer.pid > 0).then_some(peer.pid),
        uid: peer.uid,
    })
}

/// A descriptor of the process at the other end of a connection: readable when it has ended.
pub(super) fn peer(connection: BorrowedFd<'_>) -> Result<Fd, Errno> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` and `len` are the places the call writes to, of the sizes it is told.
    let result = unsafe {
        libc::getsockopt(
            raw(connection),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if done(result).is_ok() && fd >= 0 {
        // SAFETY: the kernel has just opened this descriptor for us.
        return Ok(Fd::new(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    // Before Linux 6.5 by number, which may be another process's by now: then we stay for that one.
    let pid = who(connection)?
        .pid
        .and_then(rustix::process::Pid::from_raw);
    let flags = rustix::process::PidfdFlags::empty();
    rustix::process::pidfd_open(pid.ok_or(Errno::SRCH)?, flags).map(Fd::new)
}

/// Whether the process of such a descriptor has ended.
pub(super) fn has_ended(life: &Fd) -> bool {
    let mut life = [PollFd::new(life, PollFlags::IN)];
    poll(&mut life, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
#[allow(clippy::disallowed_types)] // Tests run without the preload.
mod tests {
    use super::*;
    use crate::testing::{self, Scratch};
    use rustix::fs::{Mode, OFlags};
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Command;

    /// A monitor in a namespace of processes is asked by programs outside, which have no number there.
    #[test]
    fn who_has_no_number_is_known_by_his_user() {
        let words = ["--user", "--map-root-user", "--pid", "--fork"];
        let mut trial = Command::new("unshare");
        trial.args(words).arg("true");
        let may = testing::spawn(trial.stderr(std::process::Stdio::null())).wait();
        if !may.is_ok_and(|status| status.success()) {
            println!("skipped: no namespace of processes may be made here");
            return;
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let own = std::env::current_exe().expect("own path");
        let role = "monitor::lease::tests::helper_is_asked_from_outside";
        let mut command = Command::new("unshare");
        command.args(words).arg(own);
        command.args([role, "--exact", "--ignored", "--nocapture"]);
        command.env("ADIT_TEST_HELPER", "1");
        command.stdin(std::os::fd::OwnedFd::from(theirs));
        // It says that it is one test, and that all is well.
        command.stdout(std::process::Stdio::null());
        let status = testing::spawn(&mut command).wait().expect("its status");
        assert!(status.success());
        let ours = crate::registry::sys::borrow(std::os::fd::AsRawFd::as_raw_fd(&ours));
        let peer = who(ours.expect("a descriptor")).expect("SO_PEERCRED");
        assert_eq!(peer.pid, Some(std::process::id() as libc::pid_t));
    }

    #[test]
    #[ignore = "a helper process of the tests"]
    fn helper_is_asked_from_outside() {
        if !testing::is_helper() {
            return;
        }
        let connection = crate::registry::sys::borrow(0).expect("standard input");
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(who(connection), Ok(Peer { pid: None, uid }));
    }

    /// Whoever is dead watches nothing, also before anybody has waited for him.
    #[test]
    fn the_dead_watch_nothing() {
        let place = Scratch::new();
        let path = place.old_file("file");
        let file = rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDONLY, Mode::empty())
            .expect("a file");
        let mut command = Command::new("sleep");
        let mut watcher = testing::spawn(command.arg("600"));
        let id = watcher.id() as libc::pid_t;
        tell(file.as_fd(), id).expect("F_SETOWN_EX");
        assert!(is_watched(file.as_fd()));
        watcher.kill().expect("kill");
        // SAFETY: an integer, and no status is asked for: it stays to be waited for.
        unsafe {
            libc::waitid(
                libc::P_PID,
                id as u32,
                core::ptr::null_mut(),
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        assert!(!is_watched(file.as_fd()));
        watcher.wait().expect("its status");
        assert!(!is_watched(file.as_fd()));
    }
}
