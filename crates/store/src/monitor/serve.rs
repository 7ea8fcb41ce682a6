//! Answering requests.

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::reserve::Reservations;
use crate::registry::sys::{self, Fd};
use crate::registry::wire::{self, Request, SOCKET};

/// Processes that can be stayed for at a time.
const MOST_LIVES: usize = 4096;

/// Requests answered before the monitor looks after its other work.
const MOST_AT_ONCE: usize = 64;

/// The listening side of the monitor.
pub(super) struct Server {
    pub(super) listener: Fd,
    /// Processes to stay for; readable when they have ended.
    pub(super) lives: Vec<Fd>,
    pub(super) reservations: Reservations,
    dir: Fd,
}

impl Server {
    pub(super) fn new(dir: &Fd) -> Result<Self, Errno> {
        // The lock is ours, so a socket that is there has no listener any more.
        let _ = rustix::fs::unlinkat(dir.as_fd(), SOCKET, AtFlags::empty());
        let listener = wire::socket()?;
        rustix::net::bind(listener.as_fd(), &wire::address(dir)?)?;
        rustix::net::listen(listener.as_fd(), 128)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let own = sys::open_at(dir, c".", flags, Mode::empty())?;
        Ok(Self {
            listener,
            lives: Vec::new(),
            reservations: Reservations::default(),
            dir: own,
        })
    }

    /// Whether somebody relies on the monitor although no file says so.
    pub(super) fn is_needed(&self) -> bool {
        !self.lives.is_empty() || !self.reservations.is_empty()
    }

    /// Stays until process `pid` has ended. A process that cannot be watched is not waited for.
    pub(super) fn stay_for(&mut self, pid: u32) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        if self.lives.len() < MOST_LIVES
            && let Some(pid) = pid
            && let Ok(life) = pidfd_open(pid, PidfdFlags::empty())
        {
            self.lives.push(Fd::new(life));
        }
    }

    /// Drops processes that have ended.
    pub(super) fn forget_the_dead(&mut self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        self.lives.retain(|life| {
            let mut wait = [PollFd::new(life, PollFlags::IN)];
            poll(&mut wait, Some(&at_once)) == Ok(0)
        });
    }

    /// Answers what has come in.
    pub(super) fn answer(&mut self, dir: &Fd) {
        self.forget_the_dead();
        for _ in 0..MOST_AT_ONCE {
            let flags = SocketFlags::CLOEXEC;
            let Ok(connection) = rustix::net::accept_with(self.listener.as_fd(), flags) else {
                return;
            };
            let connection = Fd::new(connection);
            if !is_own_user(&connection) || !readable(&connection) {
                continue;
            }
            if let Ok(Some((request, along))) = wire::receive(&connection) {
                let agreed = self.handle(dir, request, along);
                let answer = [u8::from(agreed)];
                let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
                let _ = rustix::net::send(connection.as_fd(), &answer, flags);
            }
        }
    }

    fn handle(&mut self, dir: &Fd, request: Request, along: Option<Fd>) -> bool {
        match (request, along) {
            (Request::Join { pid }, _) => {
                self.stay_for(pid);
                true
            }
            (Request::Reserve(target), Some(fd)) => self.reservations.add(dir, target, fd),
            (Request::Reserve(_), None) => false,
            (Request::Release(target), _) => self.reservations.release(target),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // While the lock is still held, so that a new monitor's socket is not removed.
        let _ = rustix::fs::unlinkat(self.dir.as_fd(), SOCKET, AtFlags::empty());
    }
}

/// The directory is private already; this is the second wall.
fn is_own_user(connection: &Fd) -> bool {
    socket_peercred(connection.as_fd()).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Whether the peer's message is there within a moment. A peer that connects and says nothing must
/// not hold up the others.
fn readable(connection: &Fd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let mut wait = [PollFd::new(connection, PollFlags::IN)];
    poll(&mut wait, Some(&moment)).is_ok_and(|ready| ready == 1)
}
