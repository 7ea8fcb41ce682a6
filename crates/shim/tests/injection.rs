//! Every system call that the engine makes on its own account may fail, and the program must not
//! notice: `strace` makes it fail, always or now and then, and a program that checks every byte and
//! every answer must see what it sees without Adit.
//!
//! Calls that carry the program's own data are another matter: there the program must get exactly
//! the error that the kernel gave.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

#[path = "../../../tests/built.rs"]
mod built;
#[path = "../../../tests/compiled.rs"]
mod compiled;
#[path = "../../../tests/scratch.rs"]
mod scratch;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn installed(program: &str) -> bool {
    Command::new(program).arg("-V").output().is_ok()
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = scratch::place().join(format!("adit-inject-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("scratch directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn compile() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/rounds.c");
    compiled::compiled("gcc", &source, "rounds", &["-O1", "-Wall"]).expect("gcc")
}

/// Runs the program under strace with the library preloaded into the program only.
fn run(scratch: &Scratch, program: &Path, injection: Option<&str>) -> Output {
    let mut command = Command::new("timeout");
    command
        .arg(scratch::seconds(60))
        .args(["strace", "-f", "-qq", "-o"])
        .arg(scratch.0.join("trace"));
    command.args(["-e", "trace=all"]);
    if let Some(injection) = injection {
        command.args(["-e", &format!("inject={injection}")]);
    }
    command
        .arg("-E")
        .arg(format!("LD_PRELOAD={}", built::library().display()));
    command.args(["-E", "ADIT_MODE=posix", "-E", "ADIT_ADOPT_BYTES=0"]);
    command.args(["-E", "ADIT_ADOPT_PERCENT=0"]);
    command.arg("-E").arg(format!(
        "ADIT_RUNTIME_DIR={}",
        scratch.0.join("run").display()
    ));
    command.arg(program).arg(scratch.0.join("file"));
    command.output().expect("strace")
}

fn trace(scratch: &Scratch) -> String {
    fs::read_to_string(scratch.0.join("trace")).expect("trace")
}

fn skip() -> bool {
    let skip = !installed("strace") || !installed("gcc");
    if skip {
        println!("skipped: strace or gcc is not installed");
    }
    skip
}

/// The number of calls of `name` that ran before the program opened its file: those are libc's and
/// the loader's, whose failure would be another test.
fn before_the_program(trace: &str, name: &str) -> usize {
    trace
        .lines()
        .take_while(|line| !line.contains("O_RDWR|O_CREAT|O_TRUNC"))
        .filter(|line| line.contains(&format!(" {name}(")))
        .count()
}

#[test]
fn the_engines_own_calls_may_fail() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("own");
    let program = compile();
    let quiet = run(&scratch, &program, None);
    assert!(quiet.status.success(), "{quiet:?}");
    let baseline = trace(&scratch);
    assert!(
        baseline.matches("pread64(").count() < 64 * 3,
        "the program was not served, so this test would show nothing"
    );

    let calls = [
        ("mmap", "ENOMEM"),
        ("mmap", "EAGAIN"),
        ("munmap", "ENOMEM"),
        ("madvise", "EINVAL"),
        ("madvise", "ENOMEM"),
        ("fstat", "EIO"),
        ("newfstatat", "EIO"),
        ("statx", "ENOSYS"),
        ("fstatfs", "EIO"),
        ("fcntl", "EINVAL"),
        ("fgetxattr", "EIO"),
        ("fgetxattr", "ENODATA"),
        ("prlimit64", "EPERM"),
        ("rt_sigaction", "EINVAL"),
        ("rt_sigprocmask", "EINVAL"),
        ("utimensat", "EPERM"),
        ("utimensat", "EINTR"),
        ("fallocate", "ENOSPC"),
        ("fallocate", "EINTR"),
        ("ftruncate", "ENOSPC"),
        ("openat", "EMFILE"),
        ("openat", "ENOSPC"),
        ("mkdirat", "ENOSPC"),
        ("mkdir", "EROFS"),
        ("readlinkat", "EIO"),
        ("readlink", "EIO"),
        ("unlinkat", "EIO"),
        ("unlink", "EIO"),
        ("flock", "EINTR"),
    ];
    let mut reached = 0;
    for (name, errno) in calls {
        // The program's own open comes first after the start; its reopening at the end is spared by
        // the pattern, which fails a bounded number of calls.
        let skip = before_the_program(&baseline, name) + usize::from(name == "openat");
        for when in ["+", "+2", "+3"].map(|step| format!("{}{step}", skip + 1)) {
            // The program's own reopening must not fail; it is its last openat.
            let when = if name == "openat" {
                format!("{}..{}", skip + 1, skip + 2)
            } else {
                when
            };
            let output = run(
                &scratch,
                &program,
                Some(&format!("{name}:error={errno}:when={when}")),
            );
            reached += trace(&scratch).matches("(INJECTED)").count();
            assert!(
                output.status.success() && output.stdout == b"0 differences\n",
                "{name} failing with {errno} at {when}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    assert!(reached > 50, "only {reached} calls were made to fail");
}

#[test]
fn the_programs_calls_fail_as_the_kernel_says() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("data");
    let program = compile();
    // Extending writes are the kernel's, promoted or not: the first 64 calls of the program.
    for errno in ["ENOSPC", "EIO", "EINTR", "EDQUOT", "EFBIG"] {
        let output = run(
            &scratch,
            &program,
            Some(&format!("pwrite64:error={errno}:when=5")),
        );
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("pwrite of page 4: "), "{errno}: {said}");
        assert!(!output.status.success(), "{errno} went unnoticed");
    }
    // fsync is the kernel's word.
    let output = run(&scratch, &program, Some("fsync:error=EIO:when=2"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "fsync of page 2: Input/output error\n1 differences\n");
}
