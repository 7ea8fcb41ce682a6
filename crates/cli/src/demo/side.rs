//! Runs one case's script on one side, within its time.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::table::Case;
use crate::janitor::Janitor;
use crate::run::environment::settings;

/// What a side left.
pub(crate) struct Ran {
    /// How long it took.
    pub(crate) took: Duration,
    /// What it printed.
    pub(crate) out: Vec<u8>,
    /// Why it did not come to its end.
    pub(crate) failed: Option<String>,
    /// What it left.
    pub(crate) tree: PathBuf,
}

/// Runs `case` in `room`. Both sides work in a directory of the same name, because programs print
/// and store the names of their files; afterwards it gets the name of the side.
pub(crate) fn run(
    case: &Case,
    (room, janitor): (&Path, &Janitor),
    side: &str,
    prefix: &[&std::ffi::OsStr],
    limit: Duration,
) -> Result<Ran, std::io::Error> {
    let work = room.join("work");
    let tree = room.join(side);
    let _ = fs::remove_dir_all(&tree);
    fs::create_dir(&work)?;
    let script = room.join("script.sh");
    fs::write(&script, case.script)?;
    let (out, err) = (
        room.join(format!("{side}.out")),
        room.join(format!("{side}.err")),
    );

    let words = prefix
        .iter()
        .copied()
        .chain(["bash".as_ref(), "-eu".as_ref(), script.as_os_str()]);
    let words: Vec<_> = words.collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .arg(case.argument)
        .current_dir(&work);
    // The list of the user's pools is nothing that a case leaves.
    let state = room.join(format!("{side}.state"));
    fs::create_dir_all(&state)?;
    environment(&mut command, &work, &state);
    command
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?);
    let begun = Instant::now();
    let failed = wait(command.process_group(0), limit, janitor)?;
    let took = begun.elapsed();
    fs::rename(&work, &tree)?;
    let failed = failed.map(|why| format!("{why}; it says: {}", last_line(&err, &out)));
    Ok(Ran {
        took,
        out: fs::read(&out)?,
        failed,
        tree,
    })
}

/// The same for everybody who runs the demo, whatever their settings.
fn environment(command: &mut Command, home: &Path, state: &Path) {
    let kept: Vec<_> = ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "XDG_RUNTIME_DIR"]
        .into_iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)))
        .collect();
    command.env_clear().envs(kept).envs(settings());
    command
        .env("HOME", home)
        .env("XDG_STATE_HOME", state)
        .env("LC_ALL", "C")
        .env("TZ", "UTC");
}

/// Waits, and ends the whole group when the time is over; `Some` says why it did not succeed.
fn wait(
    command: &mut Command,
    limit: Duration,
    janitor: &Janitor,
) -> Result<Option<String>, std::io::Error> {
    let begun = Instant::now();
    let mut child = command.spawn()?;
    janitor.ends(Some(child.id()));
    let ended = loop {
        if has_ended(&child) {
            break true;
        }
        if begun.elapsed() > limit {
            break false;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    // What the script left running must not disturb the next side. As the script is not reaped yet,
    // its group's number cannot have become somebody else's.
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    janitor.ends(None);
    let status = child.wait()?;
    if !ended {
        return Ok(Some(format!("it took longer than {} s", limit.as_secs())));
    }
    Ok((!status.success()).then(|| format!("it ended with {status}")))
}

/// Looks without reaping.
fn has_ended(child: &std::process::Child) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(pid) = Pid::from_raw(child.id() as i32) else {
        return true;
    };
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}

fn last_line(err: &Path, out: &Path) -> String {
    for file in [err, out] {
        let text = fs::read(file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            return line.to_owned();
        }
    }
    "nothing".to_owned()
}
