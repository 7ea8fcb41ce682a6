//! Signals, faults and cancellation: every part of the programs in `signals/` prints the same and
//! ends the same with and without the library.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests run outside the library"
)]

#[path = "../../../tests/built.rs"]
mod built;
#[path = "../../../tests/scratch.rs"]
mod scratch;

use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The longest one run may take, in seconds.
const LIMIT: u32 = 30;

/// A directory of a test's own, on a medium that is served.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-signal-test-{}-{number}", std::process::id());
        let dir = scratch::place().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The compiled program of this name.
fn program(name: &'static str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/signals");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&built)
        .arg(source.join(name).with_extension("c"))
        .status()
        .expect("a C compiler starts");
    assert!(status.success(), "{name}.c does not compile");
    built
}

fn faults() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("faults"))
}

fn masks() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("masks"))
}

fn interrupts() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("interrupts"))
}

fn deferred() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("deferred"))
}

fn looks() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("looks"))
}

/// A monitor of a test's own, without which nothing is staged.
struct Monitor(Child);

impl Monitor {
    fn start(scratch: &Scratch) -> Self {
        let monitor = Command::new(built::command())
            .arg("monitor")
            .arg("--runtime-dir")
            .arg(&scratch.0)
            .args(["--stay-for", &std::process::id().to_string()])
            .spawn()
            .expect("the monitor starts");
        Self(monitor)
    }
}

impl Drop for Monitor {
    /// Told to end it ends its standby, too, which would go on with what it finds.
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-INT", &self.0.id().to_string()])
            .status();
        for _ in 0..500 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Puts a command under the library, which promotes and maps at first use.
fn preloaded(command: &mut Command, scratch: &Scratch) {
    command
        .env("LD_PRELOAD", built::library())
        .env("ADIT_MODE", "posix")
        .env("ADIT_ADOPT_BYTES", "0")
        .env("ADIT_ADOPT_PERCENT", "0")
        .env("ADIT_RUNTIME_DIR", &scratch.0);
}

/// `arguments` with a time limit, which no handler outlives, and no core dumps.
fn limited(arguments: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args([
            "-c",
            "ulimit -c 0; exec timeout -s KILL \"$@\"",
            "sh",
            &scratch::seconds(LIMIT),
        ])
        .args(arguments)
        .env_remove("LD_PRELOAD");
    command
}

fn run(arguments: &[&str], scratch: Option<&Scratch>) -> Output {
    let mut command = limited(arguments);
    if let Some(scratch) = scratch {
        preloaded(&mut command, scratch);
    }
    command.output().expect("a shell starts")
}

/// Runs `arguments` under the library in a mode that stages.
fn run_in(mode: &str, arguments: &[&str], scratch: &Scratch) -> Output {
    let mut command = limited(arguments);
    preloaded(&mut command, scratch);
    // The files are short: none of their first writes is to be the kernel's.
    command
        .env("ADIT_MODE", mode)
        .env("ADIT_KERNEL_BLOCKS", "0");
    command.output().expect("a shell starts")
}

/// How a run ended: what a shell would show.
fn shown(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The two runs of one part.
struct Both {
    plain: Output,
    under: Output,
}

fn both(program: &Path, part: &str) -> Both {
    let scratch = Scratch::new();
    let file = scratch.0.join("file");
    let arguments = [program.to_str().unwrap(), part, file.to_str().unwrap()];
    Both {
        plain: run(&arguments, None),
        under: run(&arguments, Some(&scratch)),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a part both ways, compares, and checks the shell's status and that the output contains
/// `expected`, so that two programs which fail alike are not taken for success.
fn same(program: &Path, part: &str, status: i32, expected: &str) {
    let Both { plain, under } = both(program, part);
    let served = text(&under.stderr).contains("served");
    assert!(served, "{part} was not served: {}", text(&under.stderr));
    same_output(part, &plain, &under, status, expected);
}

fn same_output(part: &str, plain: &Output, under: &Output, status: i32, expected: &str) {
    assert_eq!(text(&plain.stdout), text(&under.stdout), "{part}");
    assert_eq!(shown(plain.status), status, "{part}, plainly: {plain:?}");
    assert_eq!(shown(under.status), status, "{part}, preloaded: {under:?}");
    assert!(
        text(&under.stdout).contains(expected),
        "{part}: {expected:?} is missing: {under:?}"
    );
}

const SEGV: i32 = 128 + 11;
const BUS: i32 = 128 + 7;

macro_rules! parts {
    ($program:ident: $($part:ident $status:expr, $expected:expr;)*) => {$(
        #[test]
        fn $part() {
            same($program(), stringify!($part), $status, $expected);
        }
    )*};
}

parts! { faults:
    shortened 0, "cut 1000\nbehind 0\n";
    shortened_write 0, "write 1000\n";
    own_segv_before 0, "calls 1000\nwhole 65536\ncut 1000\n";
    own_segv_after 0, "calls 1000\nwhole 65536\ncut 1000\n";
    own_bus 0, "bus at 528384, code 2\ncalls 1\n";
    bad_buffers 0, "pread(fd, null, 100, 0) = -1, errno 14\n";
    alternate_stack 0, "calls 2, ";
    stack_used 0, "on alternate stack: 0\non alternate stack: 1\n";
    overflow 0, "survived, calls 1\n";
    reset_hand SEGV, "handler 11\ndefault 1, flags 84000000\n";
    killed_default SEGV, "";
    killed_default_bus BUS, "";
    killed_ignored SEGV, "alive\n";
    killed_handled 0, "calls 200\n";
    null_store SEGV, "";
    null_call SEGV, "";
    fault_in_handler SEGV, "handler 11\n";
    views 0, "after: signal 7 default flags 0 mask 0 restorer 0\n";
    inherit_exec 0, "SigBlk 40\nSigIgn 400\n";
    inherit_spawn 0, "alive\n";
}

parts! { masks:
    blocked 0, "cut 1000\nblocked: bus 1, segv 1\n";
    blocked_beside_a_child 0, "child 0\ncut 1000\nblocked: bus 1, segv 1\n";
    blocked_sequential 0, "read 1000\nwrite 100\nat 524388\n";
    blocked_thread 0, "thread: bus 1, segv 1\ncut 1000\n";
    inherited_by_thread 0, "thread: bus 1, segv 1\ncut 1000\n";
    handler_before 0, "cut 1000\n";
    handler_after 0, "cut 1000\n";
    handler_of_segv 0, "cut 1000\nafter: bus 0, segv 0\n";
    waits_sigsuspend 0, "result -1, errno 4\nafter: bus 0, segv 0\n";
    waits_ppoll 0, "result -1, errno 4\nafter: bus 0, segv 0\n";
    waits_pselect 0, "result -1, errno 4\nafter: bus 0, segv 0\n";
    waits_epoll 0, "result -1, errno 4\nafter: bus 0, segv 0\n";
    jumped 0, "jumped: bus 1, segv 1\ncut 1000\n";
    switched 0, "switched: bus 1, segv 1\ncut 1000\n";
    pending 0, "pending 1 1, calls 0\nwaited for 7, calls 1\n";
    fault_while_blocked SEGV, "";
}

parts! { interrupts:
    write_in_handler 0, "all accounted for\n";
    jump_out_of_reads 0, "alive\n";
    cancelled 0, "cancelled 1, cleaned 1\n";
    cancel_disabled 0, "whole\n";
}

/// As [`same`] for a part whose files are staged, in each of these modes.
fn same_staged(program: &Path, part: &str, modes: &[&str], expected: &str) {
    let scratch = Scratch::new();
    let _monitor = Monitor::start(&scratch);
    let file = scratch.0.join("file");
    let arguments = [program.to_str().unwrap(), part, file.to_str().unwrap()];
    let plain = run(&arguments, None);
    for mode in modes {
        let under = staged(mode, &arguments, &scratch);
        same_output(part, &plain, &under, 0, expected);
    }
}

/// Runs a part where its files are staged. The monitor may be a moment late.
fn staged(mode: &str, arguments: &[&str], scratch: &Scratch) -> Output {
    let mut under = run_in(mode, arguments, scratch);
    for _ in 0..50 {
        if text(&under.stderr).contains("served") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        under = run_in(mode, arguments, scratch);
    }
    let served = text(&under.stderr).contains("served");
    assert!(served, "nothing was staged: {under:?}");
    under
}

macro_rules! staged_parts {
    ($program:ident $modes:expr; $($part:ident $expected:expr;)*) => {$(
        #[test]
        fn $part() {
            same_staged($program(), stringify!($part), &$modes, $expected);
        }
    )*};
}

/// The parts of `deferred.c`.
mod deferral {
    use super::{deferred, same_staged};

    staged_parts! { deferred ["strict"];
        append_in_handler "20000 records\n";
        jump_out "alive\n";
        many_kinds "all kinds\n";
        values_in_order "wrong 0, code -1\n";
        views "done\n";
        reset_hand "twice 138\ntwice while writing 140\n";
        reset_hand_of_a_child "each once 2\n";
        no_defer "4 deep with it\n1 deep without, handled 4\n";
        alternate_stack "on the alternate stack: 0\non the alternate stack: 1\n";
        masks_in_handler "wrong in the handler 0, in the context 0\n";
        information "interval timer: code 128\ntimer: code -2, value 7\n";
        cancelled_at_calls "200 records\n";
    }
}

/// The parts of `looks.c`.
mod looks {
    use super::{looks, same_staged};

    staged_parts! { looks ["strict", "sync", "atomic"];
        sizes "grows: size 151000, blocks, now\n";
        times "2000 6\n";
        walks "8000\n";
        names "moved over: size 2000, blocks, now\n";
        made "made\n";
    }
}

/// A thread that ends wherever it is, is unwound: only a library that never unwinds itself lets it pass.
#[test]
fn cancelled_anywhere() {
    if cfg!(not(debug_assertions)) {
        same_staged(
            deferred(),
            "cancelled_anywhere",
            &["strict"],
            "200 records\n",
        );
    }
}

/// The checker can fail: a handler that nobody keeps out of the engine waits there for ever.
#[test]
fn append_unseen() {
    let scratch = Scratch::new();
    let _monitor = Monitor::start(&scratch);
    let file = scratch.0.join("log");
    let program = deferred().to_str().unwrap();
    let arguments = [program, "append_unseen", file.to_str().unwrap()];
    let plain = run(&arguments, None);
    assert_eq!(shown(plain.status), 0, "{plain:?}");
    let under = staged("strict", &arguments, &scratch);
    assert_ne!(shown(under.status), 0, "{under:?}");
}

/// A thread that blocks before anything is promoted is never served, and never dies.
#[test]
fn blocked_before() {
    let Both { plain, under } = both(masks(), "blocked_before");
    same_output("blocked_before", &plain, &under, 0, "cut 1000\n");
}

/// The checker can fail: without our handler the same reads are fatal.
#[test]
fn sabotaged() {
    let Both { plain, under } = both(faults(), "sabotaged");
    assert_eq!(shown(plain.status), 0, "{plain:?}");
    assert_eq!(shown(under.status), BUS, "{under:?}");
}

/// Runs a command that brings fault handlers of its own on a file, if it is installed, and compares.
fn foreign(arguments: &[&str], status: i32, on_stdout: &str, on_stderr: &str) {
    let scratch = Scratch::new();
    let version = [arguments[0], "--version"];
    if !run(&version, None).status.success() {
        eprintln!("{} is not installed", arguments[0]);
        return;
    }
    let data = scratch.0.join("data");
    let mut arguments = arguments.to_vec();
    arguments.push(data.to_str().unwrap());
    let [plain, under] = [None, Some(&scratch)].map(|scratch| {
        std::fs::write(&data, vec![7; 1 << 20]).unwrap();
        run(&arguments, scratch)
    });
    same_output(arguments[0], &plain, &under, status, on_stdout);
    assert!(text(&under.stderr).contains(on_stderr), "{under:?}");
}

/// Reads the file at `sys.argv[1]` until it is served, then follows a null pointer.
const CRASH: &str = "import os, sys, ctypes
f = os.open(sys.argv[1], os.O_RDONLY)
for i in range(100): assert os.pread(f, 4096, i * 4096) == bytes([7]) * 4096
print(sys.argv[1] in open('/proc/self/maps').read(), file=sys.stderr, flush=True)
ctypes.string_at(0)";

#[test]
fn python_crash() {
    foreign(&["python3", "-c", CRASH], SEGV, "", "True\n");
}

#[test]
fn python_fault_handler() {
    let arguments = ["python3", "-X", "faulthandler", "-c", CRASH];
    let message = "True\nFatal Python error: Segmentation fault";
    foreign(&arguments, SEGV, "", message);
}

/// Null checks and stack overflows of Java are faults, and its threads take them all the time.
#[test]
fn java_faults() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/signals/Faults.java");
    foreign(&["java", source], 0, "5000 null, 3 overflows, served ", "");
}
