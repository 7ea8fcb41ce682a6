//! The standby: a second process that takes over when the monitor is killed.
//!
//! A lease lasts as long as any descriptor of its description, and the signal of an opener goes to
//! whom the description names. So the standby is made by `clone` with the *table of descriptors shared*:
//! whatever the monitor holds, the standby holds as well, at no cost for each file. It waits for the
//! monitor's end, keeps what is written down ([`super::records`]) through `exec`, and becomes the next
//! monitor, which makes a standby of its own before it does anything else, names itself to the
//! descriptions and goes on. The lock and the listening socket are among what is kept: nobody else starts,
//! and who asks meanwhile waits for an answer as if the monitor were slow. A standby that dies is made
//! anew by the monitor. Killing both at once leaves the leases to the kernel's patience.
//!
//! What the mappings of a monitor hold (its seats in pools, and the pools) is its own: these are not inherited by the
//! standby, and end with the monitor. A file system would be in use by the standby for as long as the monitor lives.
//!
//! # Safety
//!
//! This module clones while other threads may run. Until `exec` the child makes system calls only,
//! on memory prepared before, which is a copy: it allocates nothing, takes no lock, and never returns into
//! the code that called it.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::time::{Duration, Instant};

use adit_pmem::{brief, rest};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use rustix::io::Errno;
use rustix::process::{
    PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
    waitid,
};

use super::Ready;
use super::lease;
use super::records::{Records, keep_through_exec};
use crate::registry::sys::Fd;

/// Tells the next monitor the descriptor of what is written down.
pub const STATE: &str = "ADIT_MONITOR_STATE";

/// Name of the process while it waits.
const NAME: &CStr = c"adit-standby";

/// One that lives shorter is not replaced at once.
const SHORT: Duration = Duration::from_millis(50);

/// A monitor that lives shorter may die of what it finds, as the next one will: that one takes its time, so that no
/// chain of them fills a processor.
const BRIEF: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_millis(300);

/// How often a standby tries to become the monitor, and the monitor to begin, where the kernel lacks something for it: for longer the kernel lets
/// nobody wait for a lease either.
const TRIES: u32 = 150;

/// How a standby becomes a monitor: a program that calls [`super::run`] with what [`STATE`] says.
#[derive(Clone, Debug)]
pub struct Successor {
    /// The program.
    pub program: CString,
    /// Its arguments, the first being its name.
    pub arguments: Vec<CString>,
    /// Its environment; [`STATE`] is added.
    pub variables: Vec<CString>,
}

/// The monitor's side of it.
pub(super) struct Standby {
    successor: Option<Successor>,
    process: Option<Process>,
}

struct Process {
    /// Readable when it has ended.
    life: Fd,
    /// Readable for it when we have: the table is shared, so it is ours to keep open.
    _own: Fd,
    since: Instant,
}

impl Standby {
    pub(super) fn new(successor: Option<Successor>) -> Self {
        Self {
            successor,
            process: None,
        }
    }

    /// What to wait for.
    pub(super) fn wait_for<'a>(&'a self, wait: &mut Vec<PollFd<'a>>) {
        let life = self.process.iter().map(|process| &process.life);
        wait.extend(life.map(|life| PollFd::new(life, PollFlags::IN)));
    }

    /// Replaces a standby that has died. Until the first [`ensure`](Self::ensure) there is none.
    pub(super) fn replace(&mut self, records: &Records, ready: &Ready) {
        let dead = |process: &mut Process| ready.has(&process.life);
        if let Some(process) = self.process.take_if(dead) {
            reap(&process.life);
            if process.since.elapsed() >= SHORT {
                self.ensure(records);
            }
        }
    }

    /// Makes sure that there is one. Where there can be none, the monitor goes on without.
    pub(super) fn ensure(&mut self, records: &Records) {
        if self.process.is_none()
            && let Some(successor) = &self.successor
        {
            self.process = start(successor, records).ok();
        }
    }

    /// Ends this process, and nothing else: the standby goes on with what it holds. Does nothing where there is none, or one
    /// whose end nobody has noticed yet.
    pub(super) fn give_way(&self) {
        let lives = |process: &Process| !lease::has_ended(&process.life);
        if self.process.as_ref().is_some_and(lives) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }

    /// Ends it, because the monitor ends.
    pub(super) fn dismiss(&mut self) {
        if let Some(process) = self.process.take() {
            let _ = pidfd_send_signal(process.life.as_fd(), Signal::KILL);
            reap(&process.life);
        }
        self.successor = None;
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.dismiss();
    }
}

fn reap(life: &Fd) {
    let id = WaitId::PidFd(life.as_fd());
    while matches!(waitid(id.clone(), WaitIdOptions::EXITED), Err(Errno::INTR)) {}
}

/// Starts one.
fn start(successor: &Successor, records: &Records) -> Result<Process, Errno> {
    let own = Fd::new(pidfd_open(getpid(), PidfdFlags::empty())?);
    let state =
        CString::new(format!("{STATE}={}", records.fd().raw())).map_err(|_| Errno::INVAL)?;
    let pointers = |list: &[CString], more: Option<&CString>| -> Vec<*const c_char> {
        let all = list.iter().chain(more).map(|text| text.as_ptr());
        all.chain([core::ptr::null()]).collect()
    };
    let arguments = pointers(&successor.arguments, None);
    let variables = pointers(&successor.variables, Some(&state));
    let flags = libc::CLONE_FILES | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut life: libc::c_int = -1;
    // A thread that has just locked a pool's gate, and not yet kept that from children, would never be rid of it: the
    // standby would have it as long as it lives.
    brief::before_fork();
    // With its descriptor or not at all: one that we knew nothing of would wait at a number that we close.
    // SAFETY: no stack is given, so the child goes on here, on a copy of this one; see the module. `life` is
    // what the call writes to.
    let child = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::c_long::from(flags),
            0_usize,
            &raw mut life,
            0_usize,
            0_usize,
        )
    };
    if child == 0 {
        let program = &successor.program;
        stand_by(&own, records.fd(), program, &arguments, &variables);
    }
    brief::after_fork();
    match child {
        child if child > 0 => Ok(Process {
            // SAFETY: the kernel has just opened this descriptor for us.
            life: Fd::new(unsafe { OwnedFd::from_raw_fd(life) }),
            _own: own,
            since: Instant::now(),
        }),
        _ => Err(Errno::AGAIN),
    }
}

/// Tries until it is done, or nobody waits any more.
pub(super) fn patiently<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..TRIES {
        if let Ok(done) = call() {
            return Ok(done);
        }
        rest(REST);
    }
    call()
}

/// The standby: waits for the monitor's end and becomes it.
fn stand_by(
    monitor: &Fd,
    records: &Fd,
    program: &CStr,
    arguments: &[*const c_char],
    variables: &[*const c_char],
) -> ! {
    let _ = rustix::thread::set_name(NAME);
    let since = Instant::now();
    loop {
        let mut wait = [PollFd::new(monitor, PollFlags::IN)];
        match poll(&mut wait, None) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(_) => rest(REST),
        }
    }
    if since.elapsed() < BRIEF {
        rest(REST);
    }
    for _ in 0..TRIES {
        if keep_through_exec(records).is_ok() {
            // SAFETY: the path and both arrays end with a zero and live until the call replaces us.
            unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
        }
        rest(REST);
    }
    exit()
}

fn exit() -> ! {
    // SAFETY: ends this process without running handlers, which are the monitor's.
    unsafe { libc::_exit(127) }
}
