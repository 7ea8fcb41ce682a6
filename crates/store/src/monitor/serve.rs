//! Answering requests.
//!
//! # Safety
//!
//! Descriptors are taken over from a monitor that is gone. The invariant: what it wrote down names
//! each of them, and they are taken once, before this process opens others in their place.
#![allow(unsafe_code)]

use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::client::Refused;
use super::lease;
use super::leases::Leases;
use super::records::{Listed, Record, Records};
use super::reserve::Reservations;
use super::{ENDING, Ready, has_room_for};
use crate::registry::attention::Attention;
use crate::registry::sys::{self, Fd};
use crate::registry::wire::{self, Answer, Request, SOCKET};

/// Processes that can be stayed for at a time.
const MOST_LIVES: usize = 4096;

/// Requests answered before the monitor looks after its other work.
const MOST_AT_ONCE: usize = 64;

/// Requests that come this soon after each other are the first of many: the next one is looked for without
/// sleeping, for so long in all.
const RUSH: Duration = Duration::from_micros(300);
const LONGEST_RUSH: Duration = Duration::from_millis(2);

/// How long a peer that has connected may take to say something, which on a busy machine has to get its turn, and how many
/// such peers there may be: more mean that the oldest are hung up on.
const SILENCE: Duration = Duration::from_secs(1);
const MOST_SILENT: usize = 256;

/// The listening side of the monitor.
pub(super) struct Server {
    pub(super) listener: Fd,
    records: Rc<Records>,
    /// Processes to stay for; readable when they have ended.
    lives: Vec<(Listed, Fd)>,
    /// Connected, and silent so far.
    silent: Vec<(Fd, Instant)>,
    /// When the last request was answered.
    answered_at: Instant,
    attentive: Attention,
    pub(super) reservations: Reservations,
    pub(super) leases: Leases,
    /// To take the socket away at the end.
    dir: Option<Fd>,
}

impl Server {
    pub(super) fn new(dir: &Fd, listener: Fd, records: Rc<Records>, leases: Leases) -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Self {
            listener,
            records,
            lives: Vec::new(),
            silent: Vec::new(),
            answered_at: Instant::now(),
            attentive: Attention::new(),
            reservations: Reservations::new(leases.signals.owner()),
            leases,
            dir: sys::open_at(dir, c".", flags, Mode::empty()).ok(),
        }
    }

    /// Goes on with what a dead monitor held.
    pub(super) fn take_over(&mut self, found: Vec<(Listed, Record)>) {
        let mut leases = Vec::new();
        for (listed, record) in found {
            match record {
                // SAFETY: a record names a descriptor of its own, which was left open for us.
                Record::Life(life) => match unsafe { Fd::inherited(life) } {
                    Some(life) => self.lives.push((listed, life)),
                    None => drop(listed),
                },
                Record::Lease(lease) => leases.push((listed, lease)),
                Record::Barred(device, inode) => {
                    self.leases.barred.inherit(listed, (device, inode));
                }
            }
        }
        self.leases.take_over(leases);
    }

    /// Whether somebody relies on the monitor although no file says so.
    pub(super) fn is_needed(&self) -> bool {
        !self.lives.is_empty() || !self.reservations.is_empty() || !self.leases.is_empty()
    }

    /// What to wait for.
    pub(super) fn wait_for<'a>(&'a self, wait: &mut Vec<PollFd<'a>>) {
        let lives = self.lives.iter().map(|(_, life)| life);
        wait.extend(lives.map(|fd| PollFd::new(fd, PollFlags::IN)));
        if !self.leases.is_taking_over() {
            let silent = self.silent.iter().map(|(connection, _)| connection);
            let all = silent.chain([&self.listener]);
            wait.extend(all.map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        self.leases.wait_for(wait);
    }

    /// How long until something is due, unless something becomes readable.
    pub(super) fn interval(&self) -> Duration {
        let silent = if self.silent.is_empty() {
            Duration::MAX
        } else {
            SILENCE
        };
        silent
            .min(self.reservations.interval())
            .min(self.leases.interval())
    }

    /// Stays until process `pid` has ended. A process that cannot be watched is not waited for.
    pub(super) fn stay_for(&mut self, pid: u32) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid
            && let Ok(life) = pidfd_open(pid, PidfdFlags::empty())
        {
            let _ = self.stay_while(Fd::new(life));
        }
    }

    /// Stays until a process has ended, and has its successor stay, too.
    fn stay_while(&mut self, life: Fd) -> Result<(), Refused> {
        if self.lives.len() >= MOST_LIVES || !has_room_for(&life) {
            return Err(Refused::TooMany);
        }
        let listed = self.records.list(&Record::Life(life.raw()));
        if !listed.is_known() {
            return Err(Refused::TooMany);
        }
        self.lives.push((listed, life));
        Ok(())
    }

    /// Stays for the process whose descriptor came along, else for the one that asks. Its number is not looked
    /// up: in another namespace of processes it is somebody else's, init's for example, who never ends.
    fn join(&mut self, connection: &Fd, pid: u32, along: Option<Fd>) -> Result<(), Refused> {
        let life = match along {
            // Nobody: it is asked only whether it answers.
            None if pid == 0 && !self.leases.is_ending() => return Ok(()),
            // It would soon have nobody.
            _ if self.leases.told_at().is_some() => return Err(ENDING),
            Some(fd) if is_process(&fd) => fd,
            Some(_) => return Err(Refused::NotUnderstood),
            None => lease::peer(connection.as_fd()).map_err(Refused::NoMonitor)?,
        };
        self.stay_while(life)
    }

    /// Answers what has come in, and in a rush what comes next.
    pub(super) fn answer(&mut self, dir: &Fd, ready: &Ready) {
        self.lives.retain(|(_, life)| !ready.has(life));
        if self.leases.is_taking_over() {
            return;
        }
        let begun = Instant::now();
        let mut before = self.answered_at;
        self.answer_those_here(dir, ready.has(&self.listener));
        while self.answered_at > before
            && self.answered_at - before < RUSH
            && begun.elapsed() < LONGEST_RUSH
        {
            before = self.answered_at;
            self.look_for_more(dir);
        }
    }

    fn look_for_more(&mut self, dir: &Fd) {
        let before = self.answered_at;
        let attentive = core::mem::take(&mut self.attentive);
        attentive.look(|| {
            self.answer_those_here(dir, true);
            (self.answered_at > before).then_some(())
        });
        self.attentive = attentive;
    }

    fn answer_those_here(&mut self, dir: &Fd, coming: bool) {
        let coming = if coming { MOST_AT_ONCE } else { 0 };
        for _ in 0..coming {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(connection) = rustix::net::accept_with(self.listener.as_fd(), flags) else {
                break;
            };
            let connection = Fd::new(connection);
            if is_own_user(&connection) {
                self.silent.push((connection, Instant::now()));
            }
        }
        if self.silent.is_empty() {
            return;
        }
        let mut buffer = Box::new(wire::Buffer::new());
        for (connection, since) in core::mem::take(&mut self.silent) {
            match buffer.receive(&connection) {
                Ok(Some((request, along))) => {
                    self.handle(dir, connection, &request, along);
                    self.answered_at = Instant::now();
                }
                Err(Errno::AGAIN | Errno::INTR) if since.elapsed() < SILENCE => {
                    self.silent.push((connection, since));
                }
                Ok(None) | Err(_) => {}
            }
        }
        let too_many = self.silent.len().saturating_sub(MOST_SILENT);
        self.silent.drain(..too_many);
    }

    fn handle(&mut self, dir: &Fd, connection: Fd, request: &Request<'_>, along: Option<Fd>) {
        let agreed = match (*request, along) {
            (Request::Join { pid }, along) => {
                let joined = self.join(&connection, pid, along);
                let answer = joined.map_or_else(Refused::answer, |()| Answer::yes());
                wire::answer(&connection, &answer);
                return;
            }
            (Request::Reserve(target), Some(fd)) if has_room_for(&fd) => {
                self.reservations.add(dir, target, fd)
            }
            (Request::Reserve(_), _) => false,
            (Request::Release(target), _) => self.reservations.release(target),
            (Request::Pool { asked, size }, along) => {
                return self.leases.pool_for(connection, (asked, size), along);
            }
            (Request::Acquire(staged), along) => {
                return self.leases.acquire(connection, &staged, along);
            }
            (Request::Drop { lease, ino }, _) => {
                return self.leases.release(connection, lease, ino);
            }
            (Request::Close { lease, ino }, _) => {
                return self.leases.close(&connection, lease, ino);
            }
            (Request::WaitForClosed, _) => return self.leases.wait_for_closed(connection),
            (Request::Publish { dev, ino }, _) => {
                return self.leases.publish(connection, (dev, ino));
            }
            (Request::GiveBack { dev, ino }, _) => {
                return self.leases.give_back(connection, (dev, ino));
            }
            (Request::Look { dev, ino }, _) => {
                return self.leases.look(&connection, (dev, ino));
            }
            (Request::Share { lease }, _) => return self.leases.share(connection, lease),
            (Request::HoldAlone { lease }, _) => {
                return self.leases.hold_alone(&connection, lease);
            }
            (Request::Bar, along) => return self.leases.bar(connection, along),
            (Request::TakeAway, along) => return self.leases.take_from_all(connection, along),
        };
        let answer = if agreed {
            Answer::yes()
        } else {
            Answer::no(1, 0)
        };
        wire::answer(&connection, &answer);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It would take over what is meant to end.
        self.leases.standby.dismiss();
        // While the lock is still held, so that a new monitor's socket is not removed. It stays where the next one
        // could not be told what is barred.
        if let Some(dir) = &self.dir
            && self.leases.barred.leave(dir).is_ok()
        {
            let _ = rustix::fs::unlinkat(dir.as_fd(), SOCKET, AtFlags::empty());
        }
    }
}

/// A new socket that listens in the directory. The lock is ours, so one that is there has no listener any
/// more; whether there was one: its monitor has ended without a word.
pub(super) fn listen(dir: &Fd) -> Result<(Fd, bool), Errno> {
    let left = rustix::fs::unlinkat(dir.as_fd(), SOCKET, AtFlags::empty()).is_ok();
    let listener = wire::socket()?;
    rustix::net::bind(listener.as_fd(), &wire::address(dir)?)?;
    rustix::net::listen(listener.as_fd(), 128)?;
    Ok((listener, left))
}

/// Whether a descriptor is that of a process. Others would be waited for in vain, or without rest.
fn is_process(fd: &Fd) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // Of a process that is no child of ours the kernel says so.
    !matches!(waitid(WaitId::PidFd(fd.as_fd()), look), Err(Errno::BADF))
}

/// The directory is private already; this is the second wall.
fn is_own_user(connection: &Fd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    lease::who(connection.as_fd()).is_ok_and(|peer| peer.uid == own)
}
