//! Rounds under `adit run --mode`: a runtime directory of their own, and a monitor to be killed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::Pattern;

/// The modes of `adit run`.
const MODES: [&str; 4] = ["posix", "sync", "atomic", "strict"];

/// One of the two processes that serve a runtime directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Monitor,
    Standby,
}

/// The command, the mode, and the directory where nobody else's programs register.
pub(super) struct Adit {
    command: PathBuf,
    /// As it was asked for.
    modes: Vec<&'static str>,
    /// A directory that is declared.
    declared: Option<PathBuf>,
    /// Which of them this round is in.
    current: AtomicUsize,
    runtime: PathBuf,
    /// Something was lost: the pool is evidence.
    kept: AtomicBool,
}

impl Adit {
    pub(super) fn new(command: &Path, mode: &str, declared: Option<PathBuf>) -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let runtime = parent.join(format!("adit-torture-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&runtime)?;
        Ok(Self {
            command: command.to_owned(),
            modes: match MODES.iter().find(|known| **known == mode) {
                Some(mode) => vec![mode],
                None => MODES.to_vec(),
            },
            declared,
            current: AtomicUsize::new(0),
            runtime,
            kept: AtomicBool::new(false),
        })
    }

    /// The mode of a round.
    pub(super) fn begin(&self, round: u64) -> &'static str {
        // The patterns change with each round, too: all of them meet all modes.
        let turn = round as usize / Pattern::ALL.len() % self.modes.len();
        self.current.store(turn, Ordering::Relaxed);
        self.mode()
    }

    /// Whether the writers' files are theirs alone.
    pub(super) fn is_declared(&self) -> bool {
        self.declared.is_some()
    }

    pub(super) fn mode(&self) -> &'static str {
        self.modes[self.current.load(Ordering::Relaxed)]
    }

    /// The words in front of a program.
    pub(super) fn wrap(&self) -> Vec<OsString> {
        let words = ["run".as_ref(), "--mode".as_ref(), OsStr::new(self.mode())];
        let mut all = vec![self.command.clone().into()];
        all.extend(words.map(OsString::from));
        if let Some(dir) = &self.declared {
            all.extend(["--path".into(), dir.clone().into()]);
        }
        all.push("--".into());
        all
    }

    pub(super) fn set(&self, command: &mut Command) {
        command
            .env("ADIT_RUNTIME_DIR", &self.runtime)
            .env("XDG_STATE_HOME", self.runtime.join("state"));
    }

    /// The user's next program: `adit run` recovers before it starts one.
    fn next_program(&self) -> Command {
        let words = self.wrap();
        let mut command = Command::new(&self.command);
        command
            .args(["run", "--verbose"])
            .args(&words[2..])
            .arg("true")
            .stdin(Stdio::null());
        self.set(&mut command);
        command
    }

    /// Kills one that recovers, after so long; whether it was alive.
    pub(super) fn kill_recovery(&self, after: Duration) -> io::Result<bool> {
        let mut command = self.next_program();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        sleep(after);
        child.kill()?;
        Ok(std::os::unix::process::ExitStatusExt::signal(&child.wait()?) == Some(9))
    }

    /// What the user's next program does for those that died.
    pub(super) fn recover(&self) -> io::Result<String> {
        let output = self.next_program().output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stderr).into_owned()),
            false => Err(io::Error::other(format!(
                "adit run true: {}, {}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    }

    /// The processes that serve the runtime directory: the monitor, or its standby.
    fn serving(&self, role: Role) -> Option<Pid> {
        let ours = |words: &[u8]| {
            let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
            words.contains(&&b"monitor"[..]) && words.contains(&self.runtime.as_os_str().as_bytes())
        };
        fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let name = fs::read(entry.path().join("comm")).ok()?;
            let standby = name == b"adit-standby\n";
            let found = ours(&words) && standby == (role == Role::Standby);
            found.then(|| Pid::from_raw(pid)).flatten()
        })
    }

    /// Kills one of them and waits for its end; `false` when there is none.
    fn kill(&self, role: Role) -> bool {
        self.serving(role).is_some_and(kill)
    }

    /// Kills the monitor as soon as it has a standby.
    pub(super) fn replace_monitor(&self) -> bool {
        self.both().is_some_and(|(monitor, _)| kill(monitor))
    }

    /// Kills the standby of a monitor that lives: one whose monitor is dead is about to become the next.
    pub(super) fn replace_standby(&self) -> bool {
        self.both().is_some_and(|(_, standby)| kill(standby))
    }

    /// A monitor and its standby, which it makes with the first lease, and anew when the last one has died or become the
    /// monitor.
    fn both(&self) -> Option<(Pid, Pid)> {
        let stages = self.mode() != "posix"
            || std::env::var_os("ADIT_APPENDS").is_some_and(|who| who == "staged");
        let looks = if stages { 1500 } else { 1 };
        for _ in 0..looks {
            let serving = (self.serving(Role::Monitor), self.serving(Role::Standby));
            if let (Some(monitor), Some(standby)) = serving
                && monitor != standby
            {
                return Some((monitor, standby));
            }
            sleep(Duration::from_millis(1));
        }
        None
    }

    /// Kills both, so that nobody goes on for them: how many monitors, and how many standbys.
    pub(super) fn kill_both(&self) -> (u64, u64) {
        let mut killed = (0, 0);
        // Either may be replaced while the other one is killed.
        for _ in 0..100 {
            let standby = self.kill(Role::Standby);
            let monitor = self.kill(Role::Monitor);
            killed.0 += u64::from(monitor);
            killed.1 += u64::from(standby);
            if !(standby || monitor) {
                break;
            }
        }
        killed
    }

    /// Leaves the runtime directory for inspection.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Sends the monitor a signal; `false` when none runs.
    pub(super) fn signal_monitor(&self, signal: Signal) -> bool {
        self.serving(Role::Monitor)
            .is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

fn kill(pid: Pid) -> bool {
    let killed = kill_process(pid, Signal::KILL).is_ok();
    // What it held may be held until it has ended; a zombie holds nothing.
    let lives = || {
        let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        words.is_ok_and(|words| !words.is_empty())
    };
    for _ in 0..10_000 {
        if !lives() {
            break;
        }
        sleep(Duration::from_millis(1));
    }
    killed
}

impl Drop for Adit {
    fn drop(&mut self) {
        self.kill_both();
        if !self.kept.load(Ordering::Relaxed) {
            let _ = fs::remove_dir_all(&self.runtime);
        }
    }
}
