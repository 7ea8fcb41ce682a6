//! What the tests of the command share: the built command and library, a scratch directory, and
//! a way to run something that cannot hang the test run.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses its own part"
)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests run outside the library"
)]

#[path = "../../../../tests/built.rs"]
mod built;
pub mod dead;
#[path = "../../../../tests/scratch.rs"]
pub(crate) mod scratch;

pub(crate) use built::library;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest any command in these tests may take.
pub fn limit() -> Duration {
    scratch::limit(30)
}

/// A directory of a test's own, removed when the test ends.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let base = scratch::named().or_else(|| std::env::var_os("TMPDIR").map(PathBuf::from));
        Self::beside(&base.unwrap_or_else(scratch::place))
    }

    /// In a directory of the test's choice.
    pub fn beside(base: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("adit-cli-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    /// A file with these bytes and this mode.
    pub fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `adit` with these arguments in a clean environment with the built library, no monitor and no pools.
pub fn adit<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ADIT_") {
            command.env_remove(name);
        }
    }
    command
        .env("ADIT_LIB", library())
        .env("ADIT_NO_MONITOR", "1")
        // No list of the user's pools: what is in these is none of the tests' business.
        .env(
            "XDG_STATE_HOME",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/no-state"),
        )
        .args(arguments);
    command
}

/// What a finished command left.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Finished {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// What a command reported with `--json`.
pub fn json(done: &Finished) -> serde_json::Value {
    serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {done:?}"))
}

/// What `adit stat --json` says is staged of `file`, and of no other: it lists every pool it finds,
/// and other tests stage in theirs meanwhile.
pub fn staged_of(stat: &Finished, file: &Path) -> serde_json::Value {
    let mut staged = json(stat)["staged"].take();
    let all = staged.as_array_mut().expect("a list");
    all.retain(|of| of["path"] == file.to_str().unwrap());
    staged
}

/// Runs to the end of the command and of its output, at most for [`limit`].
pub fn finish(command: &mut Command) -> Finished {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let read = |mut from: Box<dyn Read + Send>| {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = from.read_to_end(&mut text);
            let _ = send.send(String::from_utf8_lossy(&text).into_owned());
        });
        receive
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > limit() {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} took longer than {:?}", limit());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let rest = limit().saturating_sub(begun.elapsed());
    let text = |from: std::sync::mpsc::Receiver<String>| {
        from.recv_timeout(rest)
            .expect("nobody keeps the output open behind the program")
    };
    Finished {
        status,
        out: text(out),
        err: text(err),
    }
}
