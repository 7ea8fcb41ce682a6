//! Runs programs on one side of a comparison: plainly, or under `adit run` in a mode.
//!
//! # Safety
//!
//! The one unsafe call says what a new process does between `fork` and `exec`: one system call through
//! rustix's raw backend, which allocates nothing and takes no lock.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::args::Mode;
use crate::failure::said;
use crate::run::environment::settings;

/// How long a program may take for what should take seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// One side of a comparison.
#[derive(Debug, Clone)]
pub(super) struct Side {
    /// The mode it runs in; none for the kernel alone.
    pub(super) mode: Option<Mode>,
    adit: PathBuf,
}

impl Side {
    /// The side of a mode, or the kernel's.
    pub(super) fn new(mode: Option<Mode>) -> Result<Self, std::io::Error> {
        let adit = std::env::current_exe()?;
        Ok(Self { mode, adit })
    }

    /// The program on this side, in a directory of its own and with its output in `NAME.log` there.
    pub(super) fn command(&self, program: impl AsRef<OsStr>, work: &Path) -> Command {
        let mut command = match self.mode {
            None => Command::new(program),
            Some(mode) => {
                let mut command = Command::new(&self.adit);
                command.args(["run", "--mode", mode.name(), "--"]);
                command.arg(program);
                command
            }
        };
        command.env_remove("LD_PRELOAD");
        for (name, value) in settings() {
            match self.mode {
                Some(_) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
            .current_dir(work)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// A program that was started. It is gone when this value is, or when this process is.
pub(super) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts it, with its messages going to `log`.
    pub(super) fn start(command: &mut Command, log: PathBuf) -> Result<Self, String> {
        let messages =
            File::create(&log).map_err(|e| format!("{}: {}", log.display(), said(&e)))?;
        command.stderr(messages).process_group(0);
        // SAFETY: see the module: the closure makes one system call and touches nothing else.
        unsafe {
            command.pre_exec(|| {
                let end = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                end.map_err(|errno| std::io::Error::from_raw_os_error(errno.raw_os_error()))
            })
        };
        let child = command.spawn().map_err(|e| {
            let program = command.get_program().display();
            format!("{program} does not start: {}", said(&e))
        })?;
        Ok(Self { child, log })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, which must come in time and be a good one.
    pub(super) fn wait(mut self) -> Result<(), String> {
        if !self.ends_in_time() {
            return Err(format!("it took longer than {} s", LIMIT.as_secs()));
        }
        let status = self.child.wait().map_err(|e| said(&e))?;
        if status.success() {
            return Ok(());
        }
        Err(format!(
            "it ended with {status}; it says: {}",
            self.last_words()
        ))
    }

    /// Waits without polling, because the end of the wait is the end of a measurement.
    fn ends_in_time(&self) -> bool {
        let begun = Instant::now();
        let pid = Pid::from_raw(self.child.id() as i32);
        let Some(Ok(end)) = pid.map(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()))
        else {
            return false;
        };
        loop {
            let left = LIMIT.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            let wait = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut waited = [PollFd::new(&end, PollFlags::IN)];
            match poll(&mut waited, Some(&wait)) {
                Ok(1) => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn last_words(&self) -> String {
        let text = read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        last.unwrap_or("nothing").to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Until it is reaped, its group's number cannot have become somebody else's.
        if let Ok(None) = self.child.try_wait()
            && let Some(group) = Pid::from_raw(self.child.id() as i32)
        {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Runs a program of the kernel's side to its end and returns what it printed.
pub(super) fn plainly(
    program: impl AsRef<OsStr>,
    arguments: &[&OsStr],
    work: &Path,
) -> Result<String, String> {
    let side = Side::new(None).map_err(|e| said(&e))?;
    let (out, log) = (work.join("plainly.out"), work.join("plainly.log"));
    let mut command = side.command(program, work);
    command.args(arguments);
    command.stdout(File::create(&out).map_err(|e| format!("{}: {}", out.display(), said(&e)))?);
    Running::start(&mut command, log)?.wait()?;
    let printed = read(&out).map_err(|e| format!("{}: {}", out.display(), said(&e)))?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("adit-side-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn a_bad_end_is_told_with_the_last_words() {
        let dir = room("words");
        let script = ["-c", "echo no such luck >&2; exit 3"].map(OsStr::new);
        let why = plainly("sh", &script, &dir).unwrap_err();
        assert!(why.contains("no such luck") && why.contains('3'), "{why}");
        assert_eq!(plainly("echo", &["here".as_ref()], &dir).unwrap(), "here\n");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_is_dropped_is_gone() {
        let dir = room("gone");
        let mut command = Side::new(None).unwrap().command("sleep", &dir);
        command.arg("600");
        let running = Running::start(&mut command, dir.join("log")).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", running.pid()));
        assert!(proc.exists());
        drop(running);
        assert!(!proc.exists());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
