//! Building and running programs, and comparing what they leave.
// Each test binary uses a part of this.
#![allow(dead_code, clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "../../../../tests/compiled.rs"]
mod compiled;
#[path = "../../../../tests/skipped.rs"]
mod skipped;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use compiled::compiled;
pub(crate) use skipped::skip;

/// No program may take longer, in seconds; where the lab says of a slow processor how many times as long everything
/// takes, so many times that.
fn limit() -> u32 {
    let patience = std::env::var("ADIT_TEST_PATIENCE").ok();
    20 * patience.map_or(1, |times| times.parse().expect("a number"))
}

/// In the environment of a run: start it by `adit run`.
pub(crate) const RUNNER: &str = "run by adit";

/// In the environment of a run: on a tmpfs of its own with these options.
pub(crate) const MOUNT: &str = "mounted on tmpfs";

/// What a run left behind.
pub(crate) struct Outcome {
    status: String,
    output: String,
    files: BTreeMap<String, String>,
}

impl Outcome {
    /// The first thing in which another run differs.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        if self.output != other.output {
            let mut lines = self.output.lines().zip(other.output.lines()).enumerate();
            let first = lines.find(|(_, (a, b))| a != b);
            return Some(match first {
                Some((n, (a, b))) => format!("output line {n}:\n  plain: {a}\n  adit:  {b}"),
                None => format!(
                    "output ends differently ({}, {}):\n  plain: {:?}\n  adit:  {:?}",
                    self.status,
                    other.status,
                    self.output.lines().last(),
                    other.output.lines().last()
                ),
            });
        }
        if self.status != other.status {
            return Some(format!("plain: {}, adit: {}", self.status, other.status));
        }
        let names: std::collections::BTreeSet<_> =
            self.files.keys().chain(other.files.keys()).collect();
        names.into_iter().find_map(|name| {
            let (a, b) = (self.files.get(name), other.files.get(name));
            (a != b).then(|| format!("file {name}:\n  plain: {a:?}\n  adit:  {b:?}"))
        })
    }

    /// The reason a program gave for not running.
    pub(crate) fn skipped(&self) -> Option<&str> {
        self.output.lines().find_map(|l| l.strip_prefix("SKIP "))
    }

    pub(crate) fn output(&self) -> &str {
        &self.output
    }
}

/// `adit run --`, for the programs that need the monitor; built once.
pub(crate) fn runner() -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        if let Some(path) = std::env::var_os("ADIT_BIN") {
            return path.into();
        }
        build();
        target_dir().join("adit")
    })
    .clone()
}

/// Whether a program asks to be started by `adit run`.
pub(crate) fn wants_monitor(name: &str) -> bool {
    source_of(name).contains("// run: adit\n")
}

/// Whether a program is judged in a mode: it may say that it asks for what the mode does not promise.
pub(crate) fn judges(name: &str, mode: &str) -> bool {
    let text = source_of(name);
    text.lines()
        .find_map(|line| line.strip_prefix("// not in mode: "))
        .is_none_or(|modes| !modes.split(' ').any(|other| other == mode))
}

/// The options of the tmpfs on which a program wants to run.
pub(crate) fn wants_mount(name: &str) -> Option<String> {
    let text = source_of(name);
    text.lines()
        .find_map(|l| l.strip_prefix("// mount: tmpfs "))
        .map(str::to_string)
}

/// Whether this process may mount, in a mount namespace of its own.
pub(crate) fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output();
    tried.is_ok_and(|said| said.status.success())
}

/// Whether a program runs once more with its streams served, which `posix` mode leaves to libc.
pub(crate) fn wants_streams(name: &str) -> bool {
    source_of(name).contains("// streams: served\n")
}

fn source_of(name: &str) -> String {
    std::fs::read_to_string(source_path(name)).expect("the program's source")
}

fn source_path(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let cpp = dir.join(format!("{name}.cc"));
    if cpp.exists() {
        return cpp;
    }
    dir.join(format!("{name}.c"))
}

/// The library under test, built once when no one names another.
pub(crate) fn library() -> PathBuf {
    static LIB: OnceLock<PathBuf> = OnceLock::new();
    LIB.get_or_init(|| {
        if let Some(path) = std::env::var_os("ADIT_LIB") {
            return path.into();
        }
        build();
        target_dir().join("libadit.so")
    })
    .clone()
}

fn build() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        // The whole, as `make test` has built it: parts alone would be built anew, with other features of what they need.
        .args(["build", "-q", "--locked", "--workspace"])
        .arg("--manifest-path");
    cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // The target directory may have come by an option, which a second cargo does not see.
    if let Some(root) = target_dir().parent() {
        cargo.env("CARGO_TARGET_DIR", root);
    }
    assert!(
        cargo.status().expect("cargo").success(),
        "it does not build"
    );
}

fn target_dir() -> PathBuf {
    let mut dir = std::env::current_exe().expect("this test's own path");
    // target/debug/deps/programs-…
    dir.pop();
    dir.pop();
    dir
}

/// The directory that the lab names, on the medium that it wants to have tested.
pub(crate) fn named() -> Option<PathBuf> {
    std::env::var_os("ADIT_TEST_SCRATCH").map(PathBuf::from)
}

/// Where everything is served: in memory, unless the lab names a place.
pub(crate) fn first() -> PathBuf {
    named().unwrap_or_else(|| PathBuf::from("/dev/shm"))
}

/// A disk's file system: where the build lies. With a place that the lab names there is no second one.
pub(crate) fn second() -> Option<PathBuf> {
    let build = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    named().is_none().then_some(build)
}

/// A fresh directory for one test.
pub(crate) fn scratch(medium: &Path, name: &str) -> PathBuf {
    let dir = medium.join(format!("adit-c-{}-{name}", std::process::id()));
    remove(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    // Some programs become somebody else.
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    dir
}

pub(crate) fn remove(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir);
}

pub(crate) fn make_executable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// The environment of a run under Adit.
pub(crate) fn preloaded(lib: &Path, extra: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut env = vec![
        ("LD_PRELOAD".to_string(), lib.display().to_string()),
        ("ADIT_MODE".to_string(), "posix".to_string()),
    ];
    env.extend(
        extra
            .iter()
            .map(|(k, v)| ((*k).to_string(), (*v).to_string())),
    );
    env
}

pub(crate) fn system_library(name: &str) -> Option<PathBuf> {
    [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ]
    .iter()
    .map(|d| Path::new(d).join(name))
    .find(|p| p.exists())
}

/// With what programs of `c/` are compiled: many of libc's names are called by fortified programs alone.
pub(crate) const FLAGS: [&str; 5] = ["-O1", "-g", "-D_GNU_SOURCE", "-D_FORTIFY_SOURCE=2", "-w"];

/// The words behind a key in a program's first lines.
fn wishes<'a>(text: &'a str, key: &'static str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(move |l| l.strip_prefix(key))
        .flat_map(str::split_whitespace)
}

/// A header that a program needs and that is not installed.
pub(crate) fn lacks(text: &str) -> Option<&str> {
    wishes(text, "// needs: ").find(|header| !Path::new("/usr/include").join(header).exists())
}

/// Compiles a program of `c/`; `None`, with the reason printed, when something it needs is missing.
pub(crate) fn compile(name: &str) -> Option<PathBuf> {
    let (source, text) = (source_path(name), source_of(name));
    if let Some(header) = lacks(&text) {
        skip(&format!("{header} is not installed, for {name}"));
        return None;
    }
    let library = wishes(&text, "// kind: ").any(|k| k == "library");
    let kind: &[&str] = if library { &["-shared", "-fPIC"] } else { &[] };
    let out = format!("{name}{}", if library { ".so" } else { "" });
    let source_kind = source.extension().unwrap_or_default();
    let (variable, usual) = if source_kind == "cc" {
        ("CXX", "g++")
    } else {
        ("CC", "gcc")
    };
    let compiler = std::env::var(variable).unwrap_or_else(|_| usual.into());
    let arguments: Vec<&str> = (FLAGS.iter().chain(kind).copied())
        .chain(wishes(&text, "// link: "))
        .collect();
    let program = compiled(&compiler, &source, &out, &arguments);
    if program.is_err() {
        skip(&format!("there is no {compiler}, for {name}"));
    }
    program.ok()
}

/// Runs a program in a new directory under `dir`, with a time limit.
pub(crate) fn run(program: &Path, dir: &Path, side: &str, env: &[(String, String)]) -> Outcome {
    let place = dir.join(side);
    std::fs::create_dir_all(&place).expect("a directory for the run");
    let runtime = dir.join(format!("{side}.runtime"));
    std::fs::create_dir_all(&runtime).expect("a runtime directory");
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).expect("its mode");
    let mut command = Command::new("timeout");
    command.args(["-k", "2", &limit().to_string()]);
    if let Some((_, size)) = env.iter().find(|(k, _)| k == MOUNT) {
        let script = format!("mount -t tmpfs -o {size} none . && cd \"$PWD\" && exec \"$@\"");
        command.args(["unshare", "-m", "sh", "-c", &script, "sh"]);
    }
    // What is preloaded into the program is not preloaded into its supervisor.
    command.arg("env");
    if env.iter().any(|(k, _)| k == RUNNER) {
        command.args(["-u", "LD_PRELOAD"]);
    }
    for (k, v) in env.iter().filter(|(k, _)| k != RUNNER && k != MOUNT) {
        command.arg(format!("{k}={v}"));
    }
    // `adit run` preloads for itself.
    if env.iter().any(|(k, _)| k == RUNNER) {
        command.arg(runner()).args(["run", "--"]);
    }
    command.arg(program).current_dir(&place);
    for key in [
        "LD_PRELOAD",
        "ADIT_MODE",
        "ADIT_ADOPT_BYTES",
        "ADIT_ADOPT_PERCENT",
        "ADIT_STDIO",
    ] {
        command.env_remove(key);
    }
    command
        .env("ADIT_RUNTIME_DIR", &runtime)
        .stdin(Stdio::null());
    let said = command.output().expect("timeout(1)");
    let mut output = String::from_utf8_lossy(&said.stdout).into_owned();
    let errors = String::from_utf8_lossy(&said.stderr);
    if !errors.is_empty() {
        output.push_str("\nstandard error:\n");
        output.push_str(&errors);
    }
    let status = match (said.status.code(), said.status.signal()) {
        (Some(124 | 137), _) => format!("took longer than {} s", limit()),
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("signal {signal:?}"),
    };
    let mut files = BTreeMap::new();
    collect(&place, &place, &mut files);
    remove(&runtime);
    Outcome {
        status,
        output,
        files,
    }
}

/// Everything about the files that must not differ. Times do.
fn collect(root: &Path, dir: &Path, into: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        let meta = std::fs::symlink_metadata(&path).expect("a file's data");
        let name = path
            .strip_prefix(root)
            .expect("below")
            .to_string_lossy()
            .into_owned();
        let mut about = format!("mode {:o} links {}", meta.mode(), meta.nlink());
        if meta.is_dir() {
            collect(root, &path, into);
        } else if meta.is_symlink() {
            about += &format!(" to {:?}", std::fs::read_link(&path));
        } else if meta.is_file() && meta.len() < 64 << 20 {
            let bytes = std::fs::read(&path).expect("a file");
            let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
                (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
            });
            about += &format!(" size {} sum {sum:016x}", meta.len());
        } else {
            about += &format!(" size {}", meta.len());
        }
        into.insert(name, about);
    }
}
