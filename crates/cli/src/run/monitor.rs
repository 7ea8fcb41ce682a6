//! Starts the monitor so that it outlives the program without belonging to it.
//!
//! # Safety
//!
//! This module forks. Between `fork` and `exec` the child makes system calls only, through rustix's
//! raw backend and on data prepared before the fork: it allocates nothing and takes no lock. The
//! process has one thread, so nothing else can hold a lock across the fork either.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Resource, getpriority_process, getrlimit, setpriority_process};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use adit_store::monitor::client::Refused;
use adit_store::monitor::{ENDING, UNTIL_ANOTHER_ENDS, join};
use adit_store::registry::{RuntimeDir, prepare_filter};

use super::environment::{Environment, PRELOAD};
use crate::args::PaceArgs;
use crate::failure::Failure;
use crate::{limits, runtime};

/// Set to keep `adit run` from starting the monitor.
pub(crate) const OFF: &str = "ADIT_NO_MONITOR";

/// Everything the new process needs, made before the fork.
struct Prepared {
    program: CString,
    arguments: Vec<CString>,
    variables: Vec<CString>,
}

/// How long a new monitor may take until it answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often one is started: it may be killed before it has a standby.
const ATTEMPTS: u32 = 3;
/// `ioprio_set`: of a process.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;

/// Makes sure that a monitor serves the directory for as long as this process lives, whatever it
/// becomes, unless the user forbade it. Returns why there is none. Where it is `awaited`, because files are
/// staged at once, it answers when this returns: a program that opens a file before that would have it refused.
pub(crate) fn start(
    runtime_dir: Option<&Path>,
    pace: &PaceArgs,
    awaited: bool,
) -> Result<(), Failure> {
    if std::env::var_os(OFF).is_some_and(|value| !value.is_empty()) {
        let forbidden = || Failure::new(format!("{OFF} is set")).next(format!("unset {OFF}"));
        return if awaited { Err(forbidden()) } else { Ok(()) };
    }
    let dir = runtime::directory(runtime_dir)?;
    // A monitor would refuse it as well, and nobody hears what it says.
    dir.create().map_err(|error| {
        let mut why = runtime::unusable(error);
        let path = OsStr::from_bytes(dir.as_bytes()).display();
        why.what = format!("{path}: {}", why.what);
        why
    })?;
    // Without it programs see of what others stage what was published last, as everybody does.
    // Under a limit on file sizes to make it could end this one.
    if getrlimit(Resource::Fsize).current.is_none() {
        let _ = prepare_filter(&dir);
    }
    let pid = std::process::id();
    if is_served(join(&dir, pid), awaited) {
        return Ok(());
    }
    // The monitor serves all programs of the user: it must not be held to the limits of the first.
    if let Some(limit) = limits::too_low() {
        let what = format!("one started here would be under this program's {limit}");
        let why = Failure::new(what)
            .next("lift the limit, or have another program under Adit run without it meanwhile");
        return if awaited { Err(why) } else { Ok(()) };
    }
    let prepared = prepare(&dir, pid, pace)
        .ok_or_else(|| Failure::new("its command line cannot be formed"))?;
    if !awaited {
        return launch(&prepared).map_err(Failure::new);
    }
    for _ in 0..ATTEMPTS {
        launch(&prepared).map_err(Failure::new)?;
        match answers(&dir, pid) {
            Ok(()) => return Ok(()),
            // Another one would wait as well.
            Err(ENDING) => break,
            Err(_) => {}
        }
    }
    Err(Failure::new("it was started and does not answer"))
}

fn launch(prepared: &Prepared) -> Result<(), String> {
    // SAFETY: one thread (see the module), and the child only runs `middle`, which never returns.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(std::io::Error::last_os_error().to_string()),
        0 => middle(prepared),
        child => {
            reap(child);
            Ok(())
        }
    }
}

/// Who opens a file that any program has staged would wait as the one that came first may: as idle, say, or for the one
/// processor on which it is held. What takes a right to undo stays.
fn be_scheduled_as_usual() {
    // Not simply all processors: some may be kept free.
    if let Ok(usual) = sched_getaffinity(Some(Pid::INIT)) {
        let _ = sched_setaffinity(None, &usual);
    }
    let priority: libc::c_int = 0;
    let (own, class): (libc::c_int, libc::c_int) = (0, 0);
    // SAFETY: the priority is a valid `sched_param`; the other call takes integers only.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            own,
            libc::SCHED_OTHER,
            &raw const priority,
        );
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, own, class);
    }
    if getpriority_process(None).is_ok_and(|nice| nice > 0) {
        let _ = setpriority_process(None, 0);
    }
}

/// Whether a monitor serves the directory that stays for this process, or has no room for one more: that does not end
/// soon, as so many others need it, and another one could not begin beside it. It is said where files are staged at once.
fn is_served(joined: Result<(), Refused>, staged: bool) -> bool {
    match joined {
        Err(Refused::TooMany) if staged => {
            eprintln!(
                "adit: the monitor stays for as many programs as it can\n  \
                 what happens: where these end before this one stages a file, the monitor may be gone by then"
            );
            true
        }
        joined => matches!(joined, Ok(()) | Err(Refused::TooMany)),
    }
}

/// Waits until it answers; what it said last where it does not in time.
fn answers(dir: &RuntimeDir, pid: u32) -> Result<(), Refused> {
    let begun = Instant::now();
    loop {
        let joined = join(dir, pid);
        if is_served(joined, true) {
            return Ok(());
        }
        // The one that was started waits for the end of another.
        let patience = match joined {
            Err(ENDING) => UNTIL_ANOTHER_ENDS,
            _ => PATIENCE,
        };
        if begun.elapsed() > patience {
            return joined;
        }
        adit_pmem::rest(Duration::from_millis(1));
    }
}

fn prepare(dir: &RuntimeDir, pid: u32, pace: &PaceArgs) -> Option<Prepared> {
    let words: [&OsStr; 6] = [
        "adit".as_ref(),
        "monitor".as_ref(),
        "--runtime-dir".as_ref(),
        OsStr::from_bytes(dir.as_bytes()),
        "--stay-for".as_ref(),
        &OsString::from(pid.to_string()),
    ];
    let mut environment = Environment::inherited();
    environment.remove(PRELOAD);
    environment.remove("ADIT_MODE");
    environment.pace(pace);
    let c = |text: &OsStr| CString::new(text.as_bytes()).ok();
    Some(Prepared {
        program: c(std::env::current_exe().ok()?.as_os_str())?,
        arguments: words.iter().filter_map(|word| c(word)).collect(),
        variables: environment.entries().filter_map(|v| c(&v)).collect(),
    })
}

/// The child between the program and the monitor. It leaves the program's session, so that no
/// signal of the terminal reaches the monitor, and ends at once, so that the monitor is nobody's
/// child: the program must not find a stranger in `wait`.
fn middle(prepared: &Prepared) -> ! {
    let _ = rustix::process::setsid();
    // SAFETY: one thread; the grandchild only runs `become_monitor`, which never returns.
    let grandchild = unsafe { libc::fork() };
    if grandchild == 0 {
        become_monitor(prepared);
    }
    // SAFETY: ends this process without running handlers that belong to the parent.
    unsafe { libc::_exit(0) }
}

fn become_monitor(prepared: &Prepared) -> ! {
    let pointers = |list: &[CString], into: &mut [*const libc::c_char]| {
        for (slot, text) in into.iter_mut().zip(list) {
            *slot = text.as_ptr();
        }
    };
    const MOST: usize = 8;
    let mut arguments = [std::ptr::null(); MOST];
    pointers(
        &prepared.arguments[..prepared.arguments.len().min(MOST - 1)],
        &mut arguments,
    );
    const MOST_VARIABLES: usize = 4096;
    let mut variables = [std::ptr::null(); MOST_VARIABLES];
    let count = prepared.variables.len().min(MOST_VARIABLES - 1);
    pointers(&prepared.variables[..count], &mut variables);

    leave_the_program_behind();
    // SAFETY: the path and both arrays are zero-terminated and outlive the call.
    unsafe {
        libc::execve(
            prepared.program.as_ptr(),
            arguments.as_ptr(),
            variables.as_ptr(),
        );
        libc::_exit(127)
    }
}

/// Gives up everything the monitor inherited from the program: its descriptors (a pipe held open
/// would keep a reader waiting), its directory, its limits, its turn, its mask and its
/// signal dispositions.
fn leave_the_program_behind() {
    if let Ok(null) = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
        // It may itself be one of the three when the program was started with one closed.
        std::mem::forget(null);
    }
    // SAFETY: nothing of ours is used after this but the three standard descriptors, and the
    // calls below change only this process's signal state.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
    limits::lift();
    be_scheduled_as_usual();
    let _ = rustix::process::chdir(c"/");
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// Waits for the short-lived child, so that it is not left as a zombie of the program.
fn reap(child: libc::pid_t) {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for the result.
        let done = unsafe { libc::waitpid(child, &mut status, 0) };
        if done == child
            || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted
        {
            return;
        }
    }
}
