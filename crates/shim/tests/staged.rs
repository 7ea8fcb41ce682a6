//! Unmodified programs in the modes that stage: what they see, what others see, and what is left when
//! they are killed, beside a monitor of their own.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use told::Told;

#[path = "../../../tests/built.rs"]
mod built;
#[path = "staged/children.rs"]
mod children;
#[path = "staged/closed.rs"]
mod closed;
#[path = "../../../tests/compiled.rs"]
mod compiled;
#[path = "staged/corners.rs"]
mod corners;
#[path = "staged/crowd.rs"]
mod crowd;
#[path = "staged/declared.rs"]
mod declared;
#[path = "staged/descriptors.rs"]
mod descriptors;
#[path = "staged/early.rs"]
mod early;
#[path = "staged/elsewhere.rs"]
mod elsewhere;
#[path = "staged/faults.rs"]
mod faults;
#[path = "staged/group.rs"]
mod group;
#[path = "../../../tests/monitors.rs"]
mod monitors;
#[path = "staged/required.rs"]
mod required;
#[path = "../../../tests/scratch.rs"]
mod scratch;
#[path = "staged/settled.rs"]
mod settled;
#[path = "../../../tests/skipped.rs"]
mod skipped;
#[path = "staged/stopped.rs"]
mod stopped;
#[path = "staged/strangers.rs"]
mod strangers;
#[path = "staged/successors.rs"]
mod successors;
#[path = "staged/told.rs"]
mod told;
#[path = "staged/torn.rs"]
mod torn;
#[path = "staged/tunables.rs"]
mod tunables;

/// The modes that stage whatever is written.
const MODES: [&str; 3] = ["sync", "atomic", "strict"];
/// Mode `posix` with appends staged wherever they can be.
const APPENDS: &str = "posix ADIT_APPENDS=staged";
/// All that stage anything.
const ALL: [&str; 4] = [MODES[0], MODES[1], MODES[2], APPENDS];

/// Whether a mode stages anything on the medium under test. Appends to a page cache are the kernel's, which is
/// cheaper there; what programs do must be the same all the same.
fn stages_here(mode: &str) -> bool {
    mode != APPENDS || scratch::is_memory()
}

/// Whether a case of `odd` would wait for a disk thousands of times, which takes most of a minute.
fn waits_too_often(case: &str, mode: &str) -> bool {
    let writes_often = ["timer", "hundreds"].contains(&case);
    writes_often && ["sync", "strict"].contains(&mode) && !scratch::is_memory()
}

/// The library and the command, unless something is missing to run these tests with.
fn built() -> Option<(PathBuf, PathBuf)> {
    let compiler = Command::new("gcc").arg("--version").output().is_ok();
    if !compiler {
        println!("skipped: gcc is not installed");
    }
    compiler.then(|| (built::library(), built::command()))
}

/// A directory with a monitor; both go at the end.
struct Place {
    dir: PathBuf,
    /// Where the file and its pool lie, when that is not in memory.
    disk: Option<PathBuf>,
    library: PathBuf,
    monitor: Child,
    user: Option<u32>,
}

/// A name that no other test has, which would run in the same directory at the same time.
fn alone(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("adit-staged-{name}-{}-{next}", std::process::id())
}

/// Another user.
const NOBODY: u32 = 65534;

impl Place {
    fn new(name: &str) -> Option<Self> {
        Self::of(name, None)
    }

    /// Of another user, who also runs the monitor.
    fn of(name: &str, user: Option<u32>) -> Option<Self> {
        let (library, _) = built()?;
        let dir = scratch::place().join(alone(name));
        fs::create_dir_all(dir.join("run")).expect("scratch directory");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(dir.join("run"), private).expect("chmod");
        for path in [&dir, &dir.join("run")] {
            std::os::unix::fs::chown(path, user, user).expect("chown");
        }
        let place = Self {
            monitor: Self::watch(&dir, "run", user)?,
            dir,
            disk: None,
            library,
            user,
        };
        // Pools of memory lie in the runtime directory anyway. Those of a disk belong to its mount, where the tests
        // would have one together.
        if !scratch::is_tmpfs() {
            Self::make_pool(&place.pool(), user);
        }
        Some(place)
    }

    fn make_pool(path: &Path, user: Option<u32>) {
        let (_, command) = built().expect("what runs already");
        let mut words = Self::become_user(user);
        words.push("env".to_owned());
        let mut create = Command::new(words.remove(0));
        create.args(words).arg(command);
        create.args(["pool", "create", "--size", "32M"]).arg(path);
        let created = create.output().expect("adit pool create");
        assert!(created.status.success(), "{created:?}");
    }

    /// Starts a monitor, with the list of pools in this directory.
    fn watch(dir: &Path, list: &str, user: Option<u32>) -> Option<Child> {
        Self::watch_and_publish(dir, list, user, "0.5")
    }

    /// The same, which leaves what is staged to its programs for so many seconds.
    fn watch_and_publish(dir: &Path, list: &str, user: Option<u32>, after: &str) -> Option<Child> {
        // On a slow machine a test is quiet for longer than a file stays staged that nobody writes.
        let pace = ["--publish-after", after, "--give-back-after", "3600"];
        Self::watch_at(dir, list, user, &pace)
    }

    /// One that does what it does at that pace.
    fn watch_at(dir: &Path, list: &str, user: Option<u32>, pace: &[&str]) -> Option<Child> {
        let (_, command) = built()?;
        let _ = fs::remove_file(dir.join("run/monitor.sock"));
        let monitor = Command::new("timeout")
            .args(["-k", "1", &scratch::seconds(600)])
            .args(Self::become_user(user))
            .arg(command)
            .args(["monitor", "--stay-for", &std::process::id().to_string()])
            .args(pace)
            .env("ADIT_RUNTIME_DIR", dir.join("run"))
            .env("XDG_STATE_HOME", dir.join(list))
            .stdin(Stdio::null())
            .spawn()
            .expect("adit monitor");
        wait_for("the monitor", || dir.join("run/monitor.sock").exists());
        Some(monitor)
    }

    /// With the file and its pool behind a page cache: on the disk that the tests are built on, if that is served.
    fn on_disk(name: &str) -> Option<Self> {
        let disk = scratch::disk(env!("CARGO_TARGET_TMPDIR"))?;
        let disk = disk.join(alone(name));
        fs::create_dir_all(&disk).expect("a directory");
        built()?;
        Self::make_pool(&disk.join("pool"), None);
        let mut place = Self::new(name)?;
        place.disk = Some(disk);
        Some(place)
    }

    fn become_user(user: Option<u32>) -> Vec<String> {
        user.map_or_else(Vec::new, |user| {
            let ids = format!("setpriv --reuid={user} --regid={user} --clear-groups");
            ids.split(' ').map(ToOwned::to_owned).collect()
        })
    }

    /// Nothing in `dir` can be staged: programs do what they do plainly, or may not.
    fn stages_nothing(&self, dir: &Path) {
        let program = self.compile("odd");
        let case = "bare_children";
        let plain = self.leaves(&program, dir, case, None, &[]);
        for mode in MODES {
            let adit = self.leaves(&program, dir, case, Some(mode), &[]);
            assert!(!adit.staged, "mode {mode}");
            assert_eq!(adit, plain, "mode {mode}");
            let required = format!("{mode} ADIT_REQUIRE=1");
            let required = self.leaves(&program, dir, case, Some(&required), &[]);
            if mode == "sync" {
                assert_eq!(required, plain, "the kernel keeps all of it");
            } else {
                assert_eq!(
                    required.complained, "open: No such device or address\n",
                    "mode {mode}"
                );
            }
        }
    }

    fn file(&self) -> PathBuf {
        self.disk.as_ref().unwrap_or(&self.dir).join("file")
    }

    fn content(&self) -> String {
        fs::read_to_string(self.file()).expect("the file")
    }

    fn pool(&self) -> PathBuf {
        self.dir.join("run/pool")
    }

    /// What programs are told to use, where the pool of their medium is not the test's own.
    fn named_pool(&self) -> Option<PathBuf> {
        match &self.disk {
            Some(disk) => Some(disk.join("pool")),
            None => (!scratch::is_tmpfs()).then(|| self.pool()),
        }
    }

    /// Whether somebody stages the file: the kernel lists its leases, with the device of the mount. Files of others,
    /// elsewhere, have the same inode numbers.
    fn is_leased(&self) -> bool {
        let named = listed_as(&self.file());
        // The kernel gives its list in pieces: what others take off it meanwhile moves a line out of sight.
        (0..10).any(|_| {
            let locks = fs::read_to_string("/proc/locks").expect("the kernel's list");
            let mut lines = locks.lines();
            lines.any(|line| line.contains(" LEASE ") && line.contains(&named))
        })
    }

    fn compile(&self, name: &str) -> PathBuf {
        let source = format!("{}/tests/staged/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let include = format!("-I{}/../../include", env!("CARGO_MANIFEST_DIR"));
        let arguments = ["-O1", "-w", &include];
        let program = compiled::compiled("gcc", Path::new(&source), name, &arguments);
        // Were it written here, a child that another thread forks meanwhile would keep it from being run.
        let copied = Command::new("cp")
            .args([&program.expect("gcc"), &self.dir])
            .status();
        assert!(copied.expect("cp").success(), "{source}");
        self.dir.join(name)
    }

    /// Ends the monitor, which `timeout` runs and ends with.
    fn end_monitor(&mut self) {
        if self.monitor.try_wait().expect("wait").is_none() {
            let _ = Command::new("kill")
                .args(["-INT", &self.monitors_pid()])
                .status();
            let _ = self.monitor.wait();
        }
    }

    fn monitors_pid(&self) -> String {
        started_by(self.monitor.id())
    }

    /// Kills the monitor, which `timeout` runs.
    fn kill_monitor(&mut self) {
        signal("-KILL", &self.monitors_pid());
        let _ = self.monitor.wait();
    }

    /// A program in a mode under `strace`, which traces it alone and may have its calls fail.
    fn traced(&self, program: &Path, mode: &str, inject: Option<&str>) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", &scratch::seconds(60)]);
        command.args(["strace", "-f", "-qq", "-o"]);
        command.arg(self.dir.join("trace"));
        if let Some(inject) = inject {
            command.args(["-e", &format!("inject={inject}")]);
        }
        let inner = self.command(program, Some(mode));
        // What comes before the program is `timeout -k 1 60 env`, which is not to be traced.
        for argument in inner.get_args().skip(4) {
            match argument.to_str().filter(|text| text.contains('=')) {
                Some(variable) => command.args(["-E", variable]),
                None => command.arg(argument),
            };
        }
        command
    }

    /// A program in a mode under `strace`, which traces these calls alone, with the paths of descriptors.
    fn tracing(&self, program: &Path, mode: &str, calls: &str) -> Command {
        let inner = self.traced(program, mode, None);
        let mut arguments = inner.get_args();
        let mut command = Command::new(inner.get_program());
        command.args(arguments.by_ref().take(4));
        command.args(["-y", "-e", &format!("trace={calls}")]);
        command.args(arguments);
        command
    }

    /// The same, with no other calls traced and failing than those on the file.
    fn for_the_file_alone(&self, traced: &Command) -> Command {
        let mut arguments = traced.get_args();
        let mut command = Command::new(traced.get_program());
        command.args(arguments.by_ref().take(4));
        command.arg("-P").arg(self.file()).args(arguments);
        command
    }

    /// What a program says and leaves in an empty directory of its own.
    fn leaves(
        &self,
        program: &Path,
        dir: &Path,
        case: &str,
        mode: Option<&str>,
        preload: &[&String],
    ) -> Left {
        let dir = dir.join("work");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a directory");
        std::os::unix::fs::chown(&dir, self.user, self.user).expect("chown");
        let mut command = self.command(program, mode);
        if !preload.is_empty() {
            let list: Vec<&str> = preload.iter().map(|path| path.as_str()).collect();
            let inner: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            let mut again = Command::new("timeout");
            let (program, before) = inner.split_last().expect("a program");
            again
                .args(before)
                .arg(format!("LD_PRELOAD={}", list.join(":")));
            again.arg(program);
            command = again;
        }
        command.arg(case).arg(dir.join("file")).current_dir(&dir);
        let output = command.stdin(Stdio::null()).output().expect("timeout(1)");
        let list = fs::read_dir(&dir).expect("the directory");
        let mut files: Vec<(String, String)> = list
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let content = fs::read(&path).unwrap_or_default();
                let name = path.file_name().expect("a name").to_string_lossy();
                (
                    name.into_owned(),
                    String::from_utf8_lossy(&content).into_owned(),
                )
            })
            .collect();
        files.sort();
        let _ = fs::remove_dir_all(&dir);
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        Left {
            status: output.status.to_string(),
            said: String::from_utf8_lossy(&output.stdout).into_owned(),
            staged: complained.contains("staged\n"),
            complained: complained.replace("staged\n", ""),
            files,
        }
    }

    fn trace(&self) -> String {
        fs::read_to_string(self.dir.join("trace")).expect("the trace")
    }

    /// A program, in a mode or plainly.
    fn command(&self, program: &Path, mode: Option<&str>) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", &scratch::seconds(60)]);
        command.args(Self::become_user(self.user)).arg("env");
        if let Some(mode) = mode {
            let mut words = mode.split(' ');
            let mode = words.next().expect("a mode");
            if let Some(pool) = self.named_pool() {
                command.arg(format!("ADIT_POOL={}", pool.display()));
            }
            command
                .arg(format!("LD_PRELOAD={}", self.library.display()))
                .arg(format!("ADIT_MODE={mode}"))
                // From the first byte on, unless a test says otherwise.
                .arg("ADIT_KERNEL_BLOCKS=0")
                .args(words)
                .arg(format!(
                    "ADIT_RUNTIME_DIR={}",
                    self.dir.join("run").display()
                ));
        }
        command.arg(program);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end_monitor();
        let _ = fs::remove_dir_all(&self.dir);
        if let Some(disk) = &self.disk {
            let _ = fs::remove_dir_all(disk);
        }
    }
}

fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").output().is_ok();
    if !has {
        println!("skipped: strace is not installed");
    }
    has
}

/// What a program leaves.
#[derive(Debug)]
struct Left {
    status: String,
    said: String,
    complained: String,
    files: Vec<(String, String)>,
    /// What only Adit does.
    staged: bool,
}

impl PartialEq for Left {
    fn eq(&self, other: &Self) -> bool {
        (&self.status, &self.said, &self.complained, &self.files)
            == (&other.status, &other.said, &other.complained, &other.files)
    }
}

/// How the kernel's list of locks names a file: by the device of its mount, which on btrfs is not the file's own.
fn listed_as(path: &Path) -> String {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let name = path.as_os_str().as_encoded_bytes();
    let file = rustix::fs::statx(CWD, name, AtFlags::empty(), wanted).expect("the file");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let mount = file.stx_mnt_id.to_string();
    let mut mounts = mounts.lines().map(|line| line.split(' '));
    let device = mounts.find_map(|mut words| (words.next()? == mount).then(|| words.nth(1))?);
    let numbers = device.expect("its mount").split_once(':').expect("numbers");
    let [major, minor] = [numbers.0, numbers.1].map(|number| number.parse::<u32>().expect("one"));
    format!(" {major:02x}:{minor:02x}:{} ", file.stx_ino)
}

#[track_caller]
fn wait_for(what: &str, mut came: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !came() {
        assert!(begun.elapsed() < scratch::limit(20), "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program that writes batches of lines when it is told to.
struct Lines(Told);

impl Lines {
    fn start(place: &Place, mode: &str, flags: &str, who: &str, batches: &[&str]) -> Self {
        let mut command = place.command(&place.dir.join("lines"), Some(mode));
        command.arg(place.file()).args([flags, who]).args(batches);
        Self(Told::of(&mut command))
    }

    /// Waits for the end of a batch; how many lines were acknowledged so far.
    fn batch(&mut self) -> usize {
        self.0.hear().parse().expect("a number of lines")
    }

    fn go_on(&mut self) {
        self.0.say("");
    }

    /// Though there are more batches.
    fn close(mut self) {
        self.0.say("e");
        self.0.end();
    }

    fn end(self) {
        self.0.end();
    }

    fn kill(self) {
        self.0.kill();
    }
}

fn lines(who: &str, count: usize) -> String {
    (0..count)
        .map(|number| format!("{who} {number}\n"))
        .collect()
}

/// The children of a process, which `timeout` has one of.
fn started_by(id: impl std::fmt::Display) -> String {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    children.expect("children").trim().to_owned()
}

#[track_caller]
fn signal(signal: &str, process: &str) {
    let status = Command::new("kill").args([signal, process]).status();
    assert!(status.expect("kill").success(), "{signal} {process}");
}

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("timeout(1)");
    assert!(output.status.success(), "{output:?}");
    output
}

/// One program that does everything, plainly and in each mode: every answer and every byte agree, and
/// the file was staged where nothing speaks against it.
#[test]
fn every_call_answers_as_the_kernel_does() {
    let Some(place) = Place::new("calls") else {
        return;
    };
    let program = place.compile("calls");
    let plain = run(place.command(&program, None).arg(place.file()));
    let plainly_left = place.content();
    assert!(!String::from_utf8_lossy(&plain.stderr).contains("staged"));
    for mode in ALL {
        let adit = run(place.command(&program, Some(mode)).arg(place.file()));
        let (plain, said) = (&plain.stdout, &adit.stdout);
        let difference = plain
            .split(|byte| *byte == b'\n')
            .zip(said.split(|byte| *byte == b'\n'))
            .enumerate()
            .find(|(_, (a, b))| a != b)
            .map(|(n, (a, b))| {
                let [a, b] = [a, b].map(|line| String::from_utf8_lossy(line).into_owned());
                format!("line {n}: {a:?} plainly, {b:?}")
            });
        assert_eq!(difference, None, "mode {mode}");
        assert_eq!(plain, said, "mode {mode}");
        assert_eq!(place.content(), plainly_left, "mode {mode}");
        let stages = String::from_utf8_lossy(&adit.stderr).into_owned();
        for when in [
            "after a write",
            "after many parts",
            "after all that",
            "owned",
            "cut",
            "appending",
            "locked",
            "refused",
            "before sharing",
        ] {
            // A cut is the kernel's, and what follows is on trial anew.
            if ["cut", "after all that"].contains(&when) && mode == APPENDS {
                continue;
            }
            assert_eq!(
                stages.contains(&format!("{when}: staged")),
                stages_here(mode),
                "mode {mode}: {stages}"
            );
        }
    }
}

/// `syscall(2)` does what the entry of the name does, as Node.js expects of `statx`.
#[test]
fn calls_by_number_answer_as_the_kernel_does() {
    let Some(place) = Place::new("numbers") else {
        return;
    };
    let program = place.compile("numbers");
    let said = |mode| {
        let output = run(place.command(&program, mode).arg(place.file()));
        let [said, told] = [&output.stdout, &output.stderr];
        [said, told].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let [plain, _] = said(None);
    assert!(
        plain.contains("sizes 25 25 25 25 25 25") && plain.contains("sizes 24 24"),
        "{plain}"
    );
    for mode in ALL {
        let [adit, told] = said(Some(mode));
        assert_eq!(adit, plain, "mode {mode}");
        for when in ["records", "synced", "more", "named", "created"] {
            assert_eq!(
                told.contains(&format!("{when}: staged")),
                stages_here(mode),
                "mode {mode}: {told}"
            );
        }
    }
}

/// Whoever opens the file finds everything that was written, while the program goes on.
#[test]
fn an_outsider_finds_everything() {
    let Some(place) = Place::new("outsider") else {
        return;
    };
    place.compile("lines");
    for mode in ALL {
        for flags in ["a", "aw", "-", "w"] {
            let _ = fs::remove_file(place.file());
            let mut program = Lines::start(&place, mode, flags, "line", &["100", "50", "7"]);
            for expected in [100, 150, 157] {
                assert_eq!(program.batch(), expected);
                let read = place.content();
                assert!(
                    read == lines("line", expected),
                    "{mode} {flags} {expected}: {read}"
                );
                program.go_on();
            }
            program.end();
            assert!(place.content() == lines("line", 157), "{mode} {flags}");
        }
    }
}

/// Killed at the worst moment, with everything staged and nothing published.
#[test]
fn what_was_acknowledged_survives_kill_9() {
    let Some(place) = Place::new("kill") else {
        return;
    };
    place.compile("lines");
    for mode in ALL {
        for flags in ["aw", "-"] {
            let _ = fs::remove_file(place.file());
            let mut program = Lines::start(&place, mode, flags, "line", &["300"]);
            let count = program.batch();
            program.kill();
            let expected = lines("line", count);
            wait_for("what was written", || place.content() == expected);
        }
    }
}

/// Without a monitor nothing is staged, nothing is lost, and nobody waits.
#[test]
fn without_a_monitor_the_kernel_does_it() {
    let Some(mut place) = Place::new("alone") else {
        return;
    };
    place.compile("lines");
    place.end_monitor();
    let mut program = Lines::start(&place, "strict", "aw", "line", &["20"]);
    assert_eq!(program.batch(), 20);
    // No lease: an outsider's look changes nothing.
    assert_eq!(place.content(), lines("line", 20));
    program.go_on();
    program.end();
    assert_eq!(place.content(), lines("line", 20));
}

/// A monitor that a program has to do without for a while is found again: a restarted one, or one that `adit run`
/// has only begun to start.
#[test]
fn a_monitor_that_comes_later_is_found() {
    let Some(mut place) = Place::new("late") else {
        return;
    };
    place.compile("lines");
    for (mode, flags) in ALL
        .into_iter()
        .flat_map(|mode| ["aw", "aws"].map(|flags| (mode, flags)))
    {
        let _ = fs::remove_file(place.file());
        place.end_monitor();
        // A monitor that does not answer in time, as on a busy machine, is left alone for some seconds.
        let more = if stages_here(mode) { 100 } else { 1 };
        let batches = vec!["30"; 1 + more];
        let mut program = Lines::start(&place, mode, flags, "line", &batches);
        assert_eq!(program.batch(), 30, "mode {mode}");
        assert!(!place.is_leased(), "mode {mode}");
        place.monitor = Place::watch(&place.dir, "run", None).expect("a monitor");
        let mut written = 30;
        let found = (0..more).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            program.go_on();
            written = program.batch();
            place.is_leased()
        });
        assert_eq!(
            found,
            stages_here(mode),
            "mode {mode}, after {written} lines"
        );
        program.close();
        assert_eq!(place.content(), lines("line", written), "mode {mode}");
    }
}

/// The monitor dies: the program publishes at its close.
#[test]
fn the_monitor_may_die() {
    let Some(mut place) = Place::new("widow") else {
        return;
    };
    place.compile("lines");
    let mut program = Lines::start(&place, "strict", "aw", "line", &["20", "20"]);
    assert_eq!(program.batch(), 20);
    place.end_monitor();
    program.go_on();
    assert_eq!(program.batch(), 40);
    program.go_on();
    program.end();
    assert_eq!(place.content(), lines("line", 40));
}

/// Processes that append to one file lose no line of each other's, and keep each one's order.
#[test]
fn appenders_lose_nothing() {
    let Some(place) = Place::new("appenders") else {
        return;
    };
    place.compile("lines");
    for mode in ALL {
        let _ = fs::remove_file(place.file());
        let who = ["one", "two", "three"];
        let start = |who: &&str| Lines::start(&place, mode, "aw", who, &["200", "200"]);
        let mut programs: Vec<Lines> = who.iter().map(start).collect();
        for _ in 0..2 {
            for program in &mut programs {
                program.batch();
                program.go_on();
            }
        }
        programs.into_iter().for_each(Lines::end);
        let content = place.content();
        assert_eq!(content.lines().count(), 1200, "mode {mode}");
        for who in who {
            let own = content
                .lines()
                .filter(|line| line.starts_with(&format!("{who} ")));
            let own: String = own.map(|line| format!("{line}\n")).collect();
            assert!(own == lines(who, 400), "mode {mode}, {who}");
        }
    }
}

/// Threads that write to one description, while others look: between two records there is never a hole.
#[test]
fn threads_leave_no_hole() {
    let Some(place) = Place::new("threads") else {
        return;
    };
    let program = place.compile("threads");
    for mode in ALL {
        let _ = fs::remove_file(place.file());
        let mut command = place.command(&program, Some(mode));
        command.arg(place.file()).arg("5000").stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).spawn().expect("timeout(1)");
        // Each look takes the file away in the middle of somebody's write.
        let output = std::thread::scope(|scope| {
            let ended = scope.spawn(|| child.wait_with_output().expect("wait"));
            while !ended.is_finished() {
                let _ = fs::read(place.file());
                std::thread::sleep(Duration::from_millis(2));
            }
            ended.join().expect("a thread")
        });
        assert_eq!(output.stdout, b"320000\n", "mode {mode}: {output:?}");
        let content = place.content();
        for letter in ["a", "b", "c", "d"] {
            let record = letter.repeat(15);
            let found = content.lines().filter(|line| *line == record).count();
            assert_eq!(found, 5000, "mode {mode}, {letter}");
        }
        assert_eq!(content.len(), 320_000, "mode {mode}");
    }
}

/// Of threads that write to one description, none is in the file before the one whose turn it was.
#[test]
fn threads_write_in_turns() {
    const ROUNDS: usize = 40;
    let Some(place) = Place::new("turns") else {
        return;
    };
    let program = place.compile("turns");
    let said = format!(
        "{} bytes, 0 times a hole\n",
        (ROUNDS + 4) * (1 << 19) + ROUNDS * 20 * 16
    );
    let plain = [None, Some("posix")];
    for mode in plain.into_iter().chain(ALL.map(Some)) {
        let _ = fs::remove_file(place.file());
        let mut command = place.command(&program, mode);
        let output = run(command.arg(place.file()).arg(ROUNDS.to_string()));
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output, said, "mode {mode:?}");
    }
}

/// A write is one of the file that its number led to when it began, or of the one that another thread puts there meanwhile;
/// never of that one at the offset of the first.
#[test]
fn a_write_stays_with_the_file_that_it_began_with() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::new("replaced") else {
        return;
    };
    let program = place.compile("replaced");
    let other = place.file().with_file_name("other");
    let eager = "posix ADIT_ADOPT_BYTES=0 ADIT_ADOPT_PERCENT=0";
    for (mode, child) in [(eager, false), ("strict", false), ("strict", true)] {
        fs::write(place.file(), [0; 64 * 4096]).expect("the file");
        // What the kernel is told the place of begins late.
        let late = "pwrite64,pwritev2:delay_enter=250000";
        let mut command = place.traced(&program, mode, Some(late));
        command.arg(place.file()).arg(&other);
        let output = run(command.args(child.then_some("child")));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let right = ["the file", "the other"].map(|file| format!("1, wrote 4096, {file}\n"));
        assert!(right.contains(&said), "{mode}, child: {child}: {said}");
    }
}

/// Nor is one behind a gap, where a part could not be written as a whole and the kernel has the file from then on; and the
/// offset is not ahead of what is written.
#[test]
fn a_part_that_is_cut_short_leaves_no_gap() {
    let Some(place) = Place::new("cut") else {
        return;
    };
    let program = place.compile("turns");
    let plain = [None, Some("posix")];
    for mode in plain.into_iter().chain(ALL.map(Some)) {
        let _ = fs::remove_file(place.file());
        let mut command = place.command(&program, mode);
        let output = run(command.arg(place.file()).args(["6", "cut"]));
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output, "0 times a hole, 0 times ahead\n", "mode {mode:?}");
    }
}

/// A handler of SIGSEGV that somebody sends finds no write half done: it may use the file, and leave by a jump.
#[test]
fn a_fault_that_was_sent_waits_for_the_engine() {
    let Some(place) = Place::new("left") else {
        return;
    };
    let program = place.compile("turns");
    let often = ALL.map(|mode| (mode, "60"));
    // The first write of all, before anything is staged.
    let first = [APPENDS; 30].map(|mode| (mode, "3"));
    for (mode, rounds) in often.into_iter().chain(first) {
        let _ = fs::remove_file(place.file());
        let mut command = place.command(&program, Some(mode));
        let output = run(command.arg(place.file()).args([rounds, "left"]));
        assert_eq!(output.stdout, b"went on\n", "mode {mode}: {output:?}");
    }
}

/// A program that opens its own staged file needs nobody for it: without a monitor the kernel would
/// have it wait, and then find what was published last.
#[test]
fn an_own_file_is_opened_without_a_monitor() {
    for how in ["o", "f"] {
        for mode in ALL {
            // No spaces: the linker divides what is preloaded at them.
            let name = mode.split(' ').next().expect("a mode");
            let Some(mut place) = Place::new(&format!("own-{how}-{name}")) else {
                return;
            };
            let program = place.compile("reopens");
            let mut command = place.command(&program, Some(mode));
            command.arg(place.file()).arg(how);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("timeout(1)");
            let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            assert_eq!(said.next().expect("a line").expect("text"), "written");
            // With no time to let go of anything.
            place.kill_monitor();
            let mut told = child.stdin.take().expect("a pipe");
            told.write_all(b"\n").expect("its input");
            let rest: Vec<String> = said.map(|line| line.expect("text")).collect();
            assert_eq!(rest, ["first", "second"], "mode {mode}, {how}");
            assert!(child.wait().expect("wait").success());
        }
    }
}

/// What cannot be published, because the file system is full, keeps the one name by which the engine
/// knows it, and is given to nobody: its number may be another file's tomorrow, and the kernel knows an
/// old offset and no `O_APPEND`. Every call that would do so says why it does not. The bytes are the
/// monitor's to publish. (A forked child asks for the file before it uses it.)
#[test]
fn what_cannot_be_published_is_given_to_nobody() {
    let Some(mut place) = Place::new("aliases") else {
        return;
    };
    if !has_strace() {
        return;
    }
    // What the monitor has published, nobody has to.
    place.end_monitor();
    place.monitor = Place::watch_and_publish(&place.dir, "run", None, "3600").expect("a monitor");
    let program = place.compile("aliases");
    for (inject, expected) in [(None, "done"), (Some("pwrite64:error=ENOSPC"), "ENOSPC")] {
        let said = given(&place, &program, inject);
        // A fork has nothing to publish: parent and child have what is staged in common. Blocks are reserved beside
        // what is staged.
        let publishes = |line: &str| {
            !["fork ", "fallocate ", "posix_fallocate "]
                .iter()
                .any(|call| line.starts_with(call))
        };
        let right = |line: &str| match line.rsplit_once(' ') {
            Some((_, answer)) if !publishes(line) => answer == "done",
            _ => line.ends_with(&format!(" {expected}")),
        };
        let other: Vec<&str> = said.lines().filter(|line| !right(line)).collect();
        assert!(other.is_empty(), "{other:?}");
        assert!(said.lines().count() > 25, "{said}");
        wait_for("the line", || place.content() == "line\n");
    }
}

/// A thread that blocks signals is not served, so the kernel gets its file. Where that cannot be, because what is staged
/// cannot be published, the kernel must not get its bytes either: it does not know where they go.
#[test]
fn what_cannot_be_published_is_not_written_below() {
    let Some(place) = Place::new("blocked") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("blocked");
    for mode in MODES {
        let _ = fs::remove_file(place.file());
        let traced = place.traced(&program, mode, Some("pwrite64:error=ENOSPC"));
        let said = run(place.for_the_file_alone(&traced).arg(place.file())).stdout;
        assert_eq!(String::from_utf8_lossy(&said), "done\n", "mode {mode}");
        wait_for("both lines", || place.content() == "one\ntwo\n");
    }
}

/// What the calls say that give a file away, of which a line is staged.
fn given(place: &Place, program: &Path, inject: Option<&str>) -> String {
    let _ = fs::remove_file(place.file());
    let mut command = place.traced(program, "strict", inject);
    if !scratch::is_memory() {
        // The pool is written by such calls, too.
        command = place.for_the_file_alone(&command);
    }
    command.arg(place.file());
    if inject.is_some() {
        command.arg("exec");
    }
    String::from_utf8_lossy(&run(&mut command).stdout).into_owned()
}

/// A process that one thread starts while another opens a file has that file as well: nothing may be
/// staged in between.
#[test]
fn a_process_started_beside_a_writer_shares_its_offset() {
    let Some(place) = Place::new("beside") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("beside");
    for how in ["fork", "vfork", "posix_spawn", "popen"] {
        let _ = fs::remove_file(place.file());
        let delay = "clone,clone3,vfork,fork:delay_enter=1500000";
        let mut command = place.traced(&program, "strict", Some(delay));
        run(command.arg(place.file()).arg(how));
        assert_eq!(place.content(), "parent\nchild\n", "{how}");
    }
}

/// Each system call that staging a short file makes, failing once or from there on, in every way that
/// means something: the program gets its answers and its bytes, or where the kernel cannot take them
/// just that error from its close, and then the monitor has the bytes. Nothing that was acknowledged is
/// lost. `ADIT_TEST_ALL=1` tries every error at every call.
#[test]
fn any_call_of_staging_may_fail() {
    if !scratch::is_memory() {
        println!("skipped: it concerns memory; the next one is the same on a disk");
        return;
    }
    if let Some(place) = Place::new("steps") {
        every_call_fails(&place);
    }
}

/// The same with file and pool on a disk, where the engine's calls are others: it writes and syncs.
#[test]
fn any_call_of_staging_on_a_disk_may_fail() {
    if let Some(place) = Place::on_disk("steps-disk") {
        every_call_fails(&place);
    }
}

/// What was in the file before it is staged is made durable first. Where that fails the kernel keeps the file,
/// and the program's next `fsync` is the kernel's to answer.
#[test]
fn a_file_that_cannot_be_synced_is_not_staged() {
    let Some(place) = Place::on_disk("unsynced") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("steps");
    for (inject, staged) in [(None, true), (Some("fsync:error=EIO:when=1"), false)] {
        fs::write(place.file(), "old\n").expect("what was in it");
        run(place.traced(&program, "atomic", inject).arg(place.file()));
        let trace = place.trace();
        let injected = trace.contains("(INJECTED)");
        assert_eq!(injected, inject.is_some(), "{trace}");
        let asked = trace.split("\"page done").nth(1);
        let asked = asked.and_then(|rest| rest.split("\"fsync done").next());
        let kernels = asked.expect("its fsync").contains(" fsync(");
        assert_eq!(kernels, !staged, "{trace}");
    }
}

/// An empty file is made durable with its first commit, which fails where that cannot be.
#[test]
fn a_new_file_that_cannot_be_synced_is_not_committed() {
    let Some(place) = Place::on_disk("uncommitted") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("steps");
    for (inject, told) in [(None, "done"), (Some("fsync:error=EIO:when=1"), "EIO")] {
        let _ = fs::remove_file(place.file());
        let said = run(place.traced(&program, "atomic", inject).arg(place.file())).stdout;
        let said = String::from_utf8(said).expect("text");
        let trace = place.trace();
        assert_eq!(trace.contains("(INJECTED)"), inject.is_some(), "{trace}");
        let (before, after) = trace.split_once("\"page done").expect("what is staged");
        assert!(!before.contains(" fsync("), "{trace}");
        assert!(after.contains(" fsync("), "{trace}");
        assert!(said.contains(&format!("fsync {told}\n")), "{said}");
        let bytes = fs::read(place.file()).expect("the file");
        assert_eq!(bytes.len(), 4 + 5000 + 4 + 6, "{said}");
    }
}

/// After a sync of its pool has failed a process writes nothing there any more. The monitor publishes what it had
/// staged, and it goes on by the kernel; without a monitor that can, its errors would be for good.
#[test]
fn a_program_goes_on_when_a_sync_of_its_pool_has_failed() {
    let Some(place) = Place::on_disk("sync-failed") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("steps");
    run(place.traced(&program, "strict", None).arg(place.file()));
    let trace = place.trace();
    let (before, after) = trace.split_once("begin done").expect("its first word");
    let syncs = |text: &str| text.matches(" msync(").count();
    let first = syncs(before) + 1;
    assert!(syncs(after) > 2, "{trace}");
    // Right away, or when the monitor has looked at the file in between.
    let pauses = ["", ":delay_exit=1200000"];
    let all = first..first + syncs(after);
    for (nth, pause) in all.flat_map(|nth| pauses.map(|pause| (nth, pause))) {
        let _ = fs::remove_file(place.file());
        let inject = format!("msync:error=EIO:when={nth}{pause}");
        let mut command = place.traced(&program, "strict", Some(&inject));
        let said = run(command.arg(place.file())).stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        // At its end a program may sync once more or not.
        if !place.trace().contains("(INJECTED)") {
            assert!(nth > first + 2, "{inject} was not reached");
            break;
        }
        // The one call whose sync failed, at most.
        assert!(said.ends_with("close done\n"), "{inject}: {said}");
        assert!(said.matches("EIO").count() <= 1, "{inject}: {said}");
        let contents = contents(&said, "EIO", true);
        assert!(contents.contains(&place.content()), "{inject}: {said}");
    }
}

/// What `syncfs` could not commit it says, as the kernel's own does of what it could not write.
#[test]
fn a_commit_that_fails_is_told_by_syncfs() {
    let Some(place) = Place::on_disk("syncfs") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("steps");
    let steps = |inject: Option<&str>| {
        let _ = fs::remove_file(place.file());
        let mut command = place.traced(&program, "atomic", inject);
        let said = run(command.arg(place.file()).arg("syncfs")).stdout;
        String::from_utf8_lossy(&said).into_owned()
    };
    assert!(steps(None).contains("fsync done\n"));
    // How many syncs come before depends on how the pool was left.
    let said = (1..20).find_map(|nth| {
        let said = steps(Some(&format!("msync:error=EIO:when={nth}")));
        let trace = place.trace();
        let (_, asked) = trace.split_once("\"page done")?;
        let (asked, _) = asked.split_once("\"fsync ")?;
        asked.contains("(INJECTED)").then_some(said)
    });
    let said = said.expect("the sync of its commit is reached");
    assert!(said.contains("fsync EIO\n"), "{said}");
}

/// Calls that fail where a device does: then the program is told which of its calls failed, in the end with `EIO`
/// whatever the device had said.
const DEVICE: [&str; 4] = ["msync", "fsync", "pwrite64", "fcntl"];

/// What may be in the file after `steps` said this, one of its calls failing with `error`: all that was
/// acknowledged, and what failed as a whole or not at all. Nothing, when it must not have said this.
fn contents(said: &str, error: &str, device: bool) -> Vec<String> {
    let page = "p".repeat(4999);
    let steps = [
        ("begin", String::new()),
        ("open", String::new()),
        ("one", "one\n".into()),
        ("page", format!("{page}\n")),
        ("fsync", String::new()),
        ("two", "two\n".into()),
        ("read", String::new()),
        ("three", "three\n".into()),
        ("close", String::new()),
    ];
    if said.lines().count() != steps.len() {
        return Vec::new();
    }
    let mut all = vec![String::new()];
    for ((name, text), line) in steps.iter().zip(said.lines()) {
        let written: Vec<String> = all.iter().map(|is| format!("{is}{text}")).collect();
        // There is nothing to read where nothing could be written.
        if line == format!("{name} done") || line == "read short" && device {
            all = written;
        } else if line == format!("{name} {error}") && (device || *name == "close")
            || line == format!("{name} EIO") && device
        {
            all.extend(written);
        } else {
            return Vec::new();
        }
    }
    all
}

fn every_call_fails(place: &Place) {
    if !has_strace() {
        return;
    }
    let program = place.compile("steps");
    run(place.traced(&program, "strict", None).arg(place.file()));
    let trace = place.trace();
    let (before, after) = trace.split_once("begin done").expect("its first word");
    let name = |line: &str| {
        let (_, call) = line.split_once(' ')?;
        Some(call.trim_start().split_once('(')?.0.to_owned())
    };
    let mut counts: Vec<(String, usize)> = Vec::new();
    let mut count = |name: String| match counts.iter_mut().find(|(known, _)| *known == name) {
        Some((_, count)) => {
            *count += 1;
            *count
        }
        None => {
            counts.push((name, 1));
            1
        }
    };
    for line in before.lines() {
        name(line).map(&mut count);
    }
    // These cannot fail, or are the program's own; a close that fails has closed. Asking for the time is a call where
    // the kernel's clock cannot be read without one.
    let spared = [
        "clock_gettime",
        "geteuid",
        "getpid",
        "close",
        "write",
        "exit_group",
        "rt_sigprocmask",
    ];
    // Nor can it fail to tell where that clock is, which is read there.
    let mut of_the_clock = false;
    let calls: Vec<(String, usize)> = after
        .lines()
        .skip(1)
        .filter_map(|line| Some((line, name(line)?)))
        .map(|(line, name)| (line, name.clone(), count(name)))
        .filter(|(line, name, _)| {
            of_the_clock |= line.contains("/proc/self/auxv");
            of_the_clock &= name != "close";
            let own = line.contains("O_RDWR|O_CREAT|O_APPEND");
            let spared = spared.contains(&name.as_str()) || of_the_clock && name == "read";
            !own && !spared
        })
        .map(|(_, name, nth)| (name, nth))
        .collect();
    assert!(calls.len() > 80, "nothing was staged: {calls:?}");
    let names_wait = place.disk.is_some() || !scratch::is_tmpfs();
    let errors = ["EINTR", "ENOSPC", "EIO", "EMFILE", "ENOMEM"];
    let all = env::var_os("ADIT_TEST_ALL").is_some();
    let (mut reached, mut unopened) = (0, 0);
    let mut wrong = Vec::new();
    for (at, (name, nth)) in calls.iter().enumerate() {
        // There every record takes the same calls once more.
        if !all && place.disk.is_some() && *nth > 10 {
            continue;
        }
        for (number, error) in errors.iter().enumerate() {
            // Only memory runs out for good; a call that is interrupted for ever is tried for ever.
            let memory = name == "mmap" && *error == "ENOMEM";
            if !all && at % errors.len() != number && !memory {
                continue;
            }
            for ever in ["", "+"].iter().filter(|ever| ever.is_empty() || memory) {
                let inject = format!("{name}:error={error}:when={nth}{ever}");
                let _ = fs::remove_file(place.file());
                let mut command = place.traced(&program, "strict", Some(&inject));
                let output = command.arg(place.file()).stdin(Stdio::null()).output();
                let output = output.expect("timeout(1)");
                reached += place.trace().matches("(INJECTED)").count();
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                // Where the name cannot be made durable there is a file, and nothing in it.
                if said == format!("begin done\nopen {error}\n") && names_wait {
                    unopened += 1;
                    continue;
                }
                let device = place.disk.is_some() && DEVICE.contains(&name.as_str());
                let contents = contents(&said, error, device);
                if !output.status.success() || contents.is_empty() {
                    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
                    wrong.push(format!("{inject}: {}: {said}{complaint}", output.status));
                    continue;
                }
                wait_for(&inject, || {
                    fs::read_to_string(place.file()).is_ok_and(|is| contents.contains(&is))
                });
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(all || unopened <= 4, "{unopened} times it was not opened");
    assert!(
        reached >= calls.len().min(if all { usize::MAX } else { 100 }),
        "only {reached} calls were made to fail"
    );
}

/// With `ADIT_REQUIRE` a file that cannot be staged is not opened for writing.
#[test]
fn what_must_be_staged_is_or_does_not_open() {
    let Some(place) = Place::new("require") else {
        return;
    };
    place.compile("lines");
    let open = |place: &Place| {
        let mut command = Command::new("env");
        command.arg("ADIT_REQUIRE=1");
        let inner = place.command(&place.dir.join("lines"), Some("strict"));
        command.arg(inner.get_program()).args(inner.get_args());
        command.arg(place.file()).args(["aw", "line", "5"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("env(1)");
        let _ = child.stdin.take().expect("a pipe").write_all(b"\n");
        child.wait_with_output().expect("wait")
    };
    let output = open(&place);
    assert!(output.status.success(), "{output:?}");
    let reader = fs::File::open(place.file()).expect("the file");
    let output = open(&place);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(output.stderr, b"open: Device or resource busy\n");
    drop(reader);
    let output = open(&place);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.content(), lines("line", 5).repeat(2));
}

/// Programs that do what few do, while their files are staged: each leaves the same files, says the same
/// and ends the same way as plainly.
#[test]
fn odd_programs_are_none_the_wiser() {
    let Some(place) = Place::new("odd") else {
        return;
    };
    let program = place.compile("odd");
    let cases = run(&mut Command::new(&program)).stdout;
    let wanted = env::var("ADIT_TEST_CASE").ok();
    let mut wrong = Vec::new();
    for case in String::from_utf8(cases).expect("text").lines() {
        if wanted.as_deref().is_some_and(|wanted| wanted != case) {
            continue;
        }
        let plain = place.leaves(&program, &place.dir, case, None, &[]);
        for mode in ALL.into_iter().filter(|mode| !waits_too_often(case, mode)) {
            let adit = place.leaves(&program, &place.dir, case, Some(mode), &[]);
            // These leave no room for the engine, or write in ways that are not looked at.
            let may_not = ["limited_descriptors", "no_memory", "threads_with_buffers"];
            if !adit.staged && !may_not.contains(&case) && stages_here(mode) {
                wrong.push(format!("{case}, mode {mode}: nothing was staged"));
            }
            if adit != plain {
                wrong.push(format!(
                    "{case}, mode {mode}: {adit:#?}\nplainly: {plain:#?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where no pool can be had, because what is there is none, programs have the kernel's promise, or under
/// `ADIT_REQUIRE` no file to write to.
#[test]
fn without_a_pool_the_kernel_does_it() {
    for directory in [false, true] {
        let Some(place) = Place::new(&format!("no-pool-{directory}")) else {
            return;
        };
        let pool = place.pool();
        let _ = fs::remove_file(&pool);
        if directory {
            fs::create_dir(&pool).expect("a directory");
        } else {
            fs::write(&pool, vec![b'x'; 1 << 20]).expect("a file");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&pool, private).expect("chmod");
        }
        place.stages_nothing(&place.dir);
    }
}

/// The same where a user may not make a pool on the file system, and has no other.
#[test]
fn without_rights_on_the_mount_the_kernel_does_it() {
    let root = Command::new("id").arg("-u").output().expect("id").stdout == b"0\n";
    if !root || Command::new("setpriv").arg("--version").output().is_err() {
        println!("skipped: not root, or no setpriv");
        return;
    }
    if scratch::named().is_some() {
        println!(
            "skipped: it concerns a disk beside memory, and everything lies on one medium here"
        );
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rights-{}", std::process::id()));
    let _ = fs::create_dir_all(&dir);
    let kind = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(&dir)
        .output();
    let Some(place) = Place::of("rights", Some(NOBODY)) else {
        return;
    };
    if kind.expect("stat").stdout.starts_with(b"tmpfs") {
        println!("skipped: nothing but memory to write to");
    } else {
        std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).expect("chown");
        place.stages_nothing(&dir);
    }
    let _ = fs::remove_dir_all(&dir);
}

/// Until the first write reads are served from a mapping, whatever others do to the file.
#[test]
fn reads_before_the_first_write_are_served() {
    let Some(place) = Place::new("looks") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("looks");
    for mode in MODES {
        let _ = fs::remove_file(place.file());
        let eager = format!("{mode} ADIT_ADOPT_BYTES=0 ADIT_ADOPT_PERCENT=0");
        let output = run(place.traced(&program, &eager, None).arg(place.file()));
        assert_eq!(output.stdout, b"0 wrong\n", "mode {mode}");
        // From each open without a cut to where staging begins, if it does.
        let trace = place.trace();
        let mut served = 0;
        for part in trace.split("file\", O_RDWR) = ").skip(1) {
            let part = part.split("fgetxattr(").next().unwrap_or_default();
            let reads = part.matches("pread64(").count();
            assert!(reads < 20, "mode {mode}: {reads} reads by the kernel");
            served += 1;
        }
        assert_eq!(served, 2, "mode {mode}: {trace}");
    }
}

/// Programs with an allocator of their own, before and behind the library.
#[test]
fn other_allocators_make_no_difference() {
    let Some(place) = Place::new("allocators") else {
        return;
    };
    let program = place.compile("odd");
    let library = |name: &str| {
        let list = Command::new("ldconfig").arg("-p").output().ok()?.stdout;
        let list = String::from_utf8_lossy(&list).into_owned();
        let line = list.lines().find(|line| line.contains(name))?;
        Some(line.rsplit("=> ").next()?.to_owned())
    };
    let ours = place.library.display().to_string();
    for name in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let Some(other) = library(name) else {
            println!("skipped: {name} is not installed");
            continue;
        };
        for case in [
            "hundreds",
            "timer",
            "threads_with_buffers",
            "daemonized",
            "bare_children",
        ] {
            let plain = place.leaves(&program, &place.dir, case, None, &[&other]);
            for preload in [[&ours, &other], [&other, &ours]] {
                let modes = ["atomic", "strict"].into_iter();
                for mode in modes.filter(|mode| !waits_too_often(case, mode)) {
                    let adit = place.leaves(&program, &place.dir, case, Some(mode), &preload);
                    assert_eq!(adit, plain, "{case} with {preload:?}, mode {mode}");
                }
            }
        }
    }
}

/// In the modes in which a name is durable when its call returns, every call syncs the files that it made,
/// or the directories that it changed, and what it cut, and nothing else; in the others none does.
#[test]
fn names_are_durable_when_the_call_returns() {
    let Some(mut place) = Place::new("durable") else {
        return;
    };
    // Nothing is to be staged here.
    place.end_monitor();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("names-{}", std::process::id()));
    let _ = fs::create_dir_all(&dir);
    let kind = scratch::medium_of(&dir);
    if kind != adit_pmem::MediumKind::Cached {
        println!("skipped: it concerns a page cache, and the build lies on {kind}");
        return;
    }
    if !has_strace() {
        return;
    }
    let programs = ["durable", "durable_numbers"];
    for (name, mode) in programs.iter().flat_map(|name| {
        let modes = ["sync", "strict", "atomic", "posix"];
        modes.map(|mode| (*name, mode))
    }) {
        let program = place.compile(name);
        let work = dir.join(format!("{name}-{mode}"));
        fs::create_dir(&work).expect("a directory");
        run(place
            .tracing(&program, mode, "write,fsync,fdatasync,syncfs,sync")
            .arg(&work));
        let synced = synced(&place.trace(), &work);
        let expected: &[(&str, &str)] = match mode {
            "sync" | "strict" => &[
                ("mkdir", "."),
                ("mkdir again", "."),
                ("create", "one/a"),
                ("none", ""),
                ("open", ""),
                ("cut", "one/a"),
                ("cut again", "one/a"),
                ("exclusive", "one/b"),
                ("no such file", ""),
                ("mkstemp", "one/temporary"),
                ("mkdtemp", "one"),
                ("symlink", "."),
                ("create through a link", "one/c"),
                ("link", "two"),
                ("rename", "one two"),
                ("rename within", "two"),
                ("renameat", "two ."),
                ("unlinkat", "two"),
                ("truncate what is open", "one/a"),
                ("reserve", "one/a"),
                ("allocate", "one/a"),
                ("allocate portably", "one/a"),
                ("punch", "one/a"),
                ("cut by descriptor", "one/a"),
                ("begin", ""),
                ("error", "one/a"),
                ("return", "one/a"),
                ("begin", ""),
                ("error", ""),
                ("return", ""),
                ("close", ""),
                ("truncate", "all of one"),
                ("fopen", "one/stream"),
                ("fopen to cut", "one/a"),
                // Made, and found empty.
                ("libc's", "one/libcs one/libcs"),
                ("waits", ""),
                ("waits", ""),
                ("waits", ""),
                ("mkfifo", "two"),
                ("unlink", "one"),
                ("remove", "."),
                ("rmdir", "one"),
                ("end", ""),
            ],
            _ => &[],
        };
        let said: Vec<(&str, &str)> = synced
            .iter()
            .filter(|(_, paths)| !expected.is_empty() || !paths.is_empty())
            .map(|(call, paths)| (call.as_str(), paths.as_str()))
            .collect();
        assert_eq!(said, expected, "{name}, mode {mode}");
    }
    let _ = fs::remove_dir_all(&dir);
}

/// A root server's worker that becomes somebody else must not keep what it could forge records in, which root would
/// publish; nor does a child that uses no file get it in the first place.
#[test]
fn who_gives_up_rights_loses_the_pool() {
    let Some(place) = Place::new("gives-up") else {
        return;
    };
    let program = place.compile("rights");
    for mode in ["sync", "atomic", "strict"] {
        for how in ["setgid", "seteuid", "by-number", "unshare", "chroot"] {
            if how == "chroot" && rustix::process::geteuid().as_raw() != 0 {
                println!("skipped: not root, so no chroot");
                continue;
            }
            let mut command = place.command(&program, Some(mode));
            let said = run(command.arg(how).arg(place.file()).arg("/pool")).stdout;
            let said = String::from_utf8_lossy(&said).into_owned();
            let said: Vec<_> = said
                .lines()
                .filter_map(|line| line.rsplit_once(' '))
                .collect();
            let [("here", here), ("in the child", child), ("after", after)] = said[..] else {
                panic!("{how}: {said:?}");
            };
            assert_ne!(here, "0", "{mode}, {how}: nothing was staged");
            assert_eq!((child, after), ("0", "0"), "{mode}, {how}");
            assert_eq!(place.content(), "before\nbetween\nafter\n", "{mode}, {how}");
        }
    }
}

/// What a trace says was synced after each announcement, relative to `dir`.
fn synced(trace: &str, dir: &Path) -> Vec<(String, String)> {
    let dir = dir.to_str().expect("text");
    let mut all: Vec<(String, String)> = Vec::new();
    for line in trace.lines() {
        if let Some((_, said)) = line.split_once("\"== ") {
            let call = said.split("\\n").next().expect("a word");
            all.push((call.to_owned(), String::new()));
        } else if let Some((call, path)) = ["sync(", "syncfs("]
            .into_iter()
            .find_map(|call| line.split_once(call))
            && let Some((path, _)) = path.split_once('>')
            && let Some((_, last)) = all.last_mut()
        {
            let (_, path) = path.split_once('<').expect("a descriptor with its path");
            let path = path.strip_prefix(dir).expect("a path in the directory");
            let path = path.strip_prefix('/').unwrap_or(".");
            // What is behind it is made up by libc.
            let path = path.split_once('-').map_or(path, |(name, _)| name);
            let whole = if line.contains("syncfs") {
                "all of "
            } else {
                ""
            };
            let separator = if last.is_empty() { "" } else { " " };
            assert!(!call.contains("resumed"), "{line}");
            *last = format!("{last}{separator}{whole}{path}");
        }
    }
    all
}

/// A program that Adit reaches opens a staged file with `O_NONBLOCK` as it would without Adit: at once, and all of it.
#[test]
fn an_impatient_program_opens_what_another_one_stages() {
    let Some(place) = Place::new("patient") else {
        return;
    };
    place.compile("lines");
    let program = place.compile("impatient");
    for reader in ["posix", "strict"] {
        let mut writer = Lines::start(&place, "strict", "aw", "line", &["30"]);
        assert_eq!(writer.batch(), 30);
        let mut impatient = place.command(&program, Some(reader));
        let output = impatient.arg(place.file()).output().expect("timeout(1)");
        writer.go_on();
        writer.end();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{reader}");
        assert_eq!(output.stdout, lines("line", 30).as_bytes(), "{reader}");
        fs::remove_file(place.file()).expect("the file");
    }
}

/// A command that does not get a file leaves it staged, and finds all of it; one that gets it shares its offset with the
/// program for good.
#[test]
fn a_command_that_does_not_get_a_file_leaves_it_staged() {
    let Some(place) = Place::new("commands") else {
        return;
    };
    let program = place.compile("commands");
    let size = place.file().with_extension("size");
    let ways = [
        (
            "system popen wordexp posix_spawn others vfork closes fails",
            "before\nafter\nend\n",
            "staged\n",
        ),
        (
            "actions inherited cleared told vdup vdup2 vcleared vinherited vspawn vfork2",
            "before\nnow\nbetween\nlater\nafter\nend\n",
            "plain\n",
        ),
        ("reopens", "now\nre\nafter\nend\n", "staged\n"),
    ];
    for (ways, left, said) in ways {
        for how in ways.split(' ') {
            let modes = ALL.into_iter().filter(|mode| stages_here(mode));
            for (mode, append) in modes.flat_map(|mode| [(mode, None), (mode, Some("append"))]) {
                let mut command = place.command(&program, Some(mode));
                let output = run(command.arg(place.file()).arg(how).args(append));
                assert_eq!(place.content(), left, "{how} {mode} {append:?}");
                let stderr = String::from_utf8_lossy(&output.stderr);
                // In mode `posix` all that a child has is the kernel's.
                let expected = match how {
                    "vfork" | "closes" | "fails" if mode == APPENDS => "not staged since\nplain\n",
                    "reopens" if mode == APPENDS => "plain\n",
                    _ => said,
                };
                assert_eq!(stderr, expected, "{how} {mode} {append:?}");
                if left.starts_with("before\nafter") {
                    let seen = fs::read_to_string(&size).expect("a size");
                    assert_eq!(seen, "7\n", "{how} {mode}");
                    fs::remove_file(&size).expect("a size");
                }
            }
        }
    }
}

/// A child of `vfork` runs on its parent's memory, which stays as it is when the child is killed: its parent goes on with
/// what the child was just asking for, and nothing that either wrote is lost.
#[test]
fn a_child_of_vfork_may_be_killed_at_any_time() {
    let Some(place) = Place::new("killed-child") else {
        return;
    };
    let program = place.compile("killed");
    let mut wrote = 0;
    // To have a file takes longer on a disk.
    let (rounds, at_most) = match scratch::is_memory() {
        true => (100, 1500),
        false => (40, 10_000),
    };
    for (seed, mode) in MODES.into_iter().enumerate() {
        let mut command = place.command(&program, Some(mode));
        let numbers = [rounds, seed, at_most].map(|number| number.to_string());
        let output = run(command.arg(place.file()).args(numbers));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{mode}");
        let count = String::from_utf8_lossy(&output.stdout);
        wrote += count.trim().parse::<usize>().expect("a number");
    }
    // Some died before they had the file, and some had written to it.
    let all = MODES.len() * rounds;
    let some = all / 30;
    assert!((some..all - some).contains(&wrote), "{wrote} of {all}");
}

/// Whoever closes a description beside a child of `vfork` that goes on with it leaves all of it to the kernel, where the
/// child finds it.
#[test]
fn what_is_closed_beside_a_child_of_vfork_is_whole() {
    let Some(place) = Place::new("closes") else {
        return;
    };
    let program = place.compile("closes");
    for mode in ALL.into_iter().filter(|mode| stages_here(mode)) {
        for state in ["staged", "fresh", "inherited"] {
            for how in ["close", "dup2", "close_range"] {
                let mut command = place.command(&program, Some(mode));
                let output = run(command.arg(place.file()).args([state, how]));
                let said = String::from_utf8_lossy(&output.stderr);
                assert_eq!(said, "", "{mode} {state} {how}");
                let after = if state == "inherited" { "after\n" } else { "" };
                let left = format!("before\nchild\n{after}");
                assert_eq!(place.content(), left, "{mode} {state} {how}");
            }
        }
    }
}

/// Whatever has become of a child of `vfork`, or of its parent beside it, since it was made, the file is what it is plainly.
#[test]
fn a_child_of_vfork_goes_on_whatever_it_has_become() {
    let Some(place) = Place::new("vforks") else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it gives up root's rights");
        return;
    }
    let program = place.compile("vforks");
    let other = place.file().with_extension("other");
    let run_as = |mode: Option<&str>, how: &str, append: Option<&str>| {
        for path in [&place.file(), &other] {
            let _ = fs::remove_file(path);
        }
        let mut command = place.command(&program, mode);
        let output = run(command.arg(place.file()).arg(how).args(append));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (said, place.content(), fs::read_to_string(&other).ok())
    };
    let ways = "chroot setuid limit executes full forks forks_and_executes rotates beside";
    // On a disk nothing can be published without a number.
    let here = |how: &&str| *how != "full" || scratch::is_memory();
    for how in ways.split(' ').filter(here) {
        for append in [None, Some("append")] {
            let mut plain = run_as(None, how, append);
            assert!(plain.0.contains("close 0\n"), "{plain:?}");
            if how == "full" {
                // To ask for the file takes a number.
                plain.0 = plain.0.replace("write 6", "write -24");
                plain.1 = plain.1.replace("child\n", "");
            }
            for mode in MODES {
                assert_eq!(
                    run_as(Some(mode), how, append),
                    plain,
                    "{mode} {how} {append:?}"
                );
            }
        }
    }
}

/// A child of `vfork` that is made while another thread is about to learn of a descriptor has that as well: nothing is
/// staged through the description that the child has.
#[test]
fn a_file_opened_beside_a_child_of_vfork_is_whole() {
    let Some(place) = Place::new("opening") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("opening");
    for mode in ["strict", APPENDS]
        .into_iter()
        .filter(|mode| stages_here(mode))
    {
        for append in [None, Some("append")] {
            let _ = fs::remove_file(place.file());
            let delay = "fstat:delay_exit=300000";
            let mut command = place.traced(&program, mode, Some(delay));
            run(command.arg(place.file()).args(append));
            assert!(place.trace().contains("(DELAYED)"), "nothing was slow");
            let left = "before\nchild\nafter\n";
            assert_eq!(place.content(), left, "{mode} {append:?}");
        }
    }
}

/// Programs that a program starts, and that get nothing of its files, leave it the room to keep the next ones staged
/// beside others.
#[test]
fn programs_that_get_no_file_take_no_room() {
    if !scratch::is_memory() {
        println!("skipped: it concerns memory, where so many files take no time");
        return;
    }
    let Some(place) = Place::new("room") else {
        return;
    };
    let program = place.compile("room");
    for mode in MODES {
        for how in ["fork", "vfork"] {
            let mut command = place.command(&program, Some(mode));
            let output = run(command.arg(place.file()).args([how, "120"]));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{mode} {how}");
        }
    }
}

/// What a program has closed where nobody saw it is the monitor's to publish: nothing goes to the file that has its number.
#[test]
fn the_next_file_of_a_number_gets_nothing() {
    let Some(place) = Place::new("hidden") else {
        return;
    };
    let program = place.compile("hidden");
    let other = place.file().with_extension("other");
    for mode in ALL.into_iter().filter(|mode| stages_here(mode)) {
        for how in ["popen", "fork"] {
            let mut command = place.command(&program, Some(mode));
            let output = run(command.arg(place.file()).arg(&other).arg(how));
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "0\n",
                "{how} {mode}"
            );
            assert_eq!(fs::read(&other).expect("the other"), b"", "{how} {mode}");
            wait_for("it is published", || place.content() == "staged\n");
            fs::remove_file(place.file()).expect("the file");
            fs::remove_file(&other).expect("the other");
        }
    }
}

/// Threads that start commands disturb none that write: no byte is lost, and where files must be staged, no write is
/// refused.
#[test]
fn threads_write_while_others_start_commands() {
    let Some(place) = Place::new("busy") else {
        return;
    };
    let program = place.compile("busy");
    for mode in ALL.into_iter().filter(|mode| stages_here(mode)) {
        let required = format!("{mode} ADIT_REQUIRE=1");
        let mut command = place.command(&program, Some(&required));
        // In mode `posix` all that a child of `vfork` has is the kernel's.
        let ways = &"vspa"[usize::from(mode == APPENDS)..];
        let output = run(command.arg(place.file()).args(["30", ways]));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{mode}");

        let mut command = place.command(&program, Some(mode));
        let output = run(command.arg(place.file()).args(["30", "spav", "keeps"]));
        let said = String::from_utf8_lossy(&output.stderr);
        // What a command gets is the kernel's.
        let others: Vec<_> = said
            .lines()
            .filter(|line| !line.ends_with(": plain"))
            .collect();
        assert_eq!(others, [""; 0], "{mode}");
    }
}

/// Where files must be staged, opens and writes wait for a fork of another thread, which is over soon; threads that fork
/// by turns, so that there is always one, let them pass.
#[test]
fn what_must_be_staged_waits_for_forks() {
    let Some(place) = Place::new("waits") else {
        return;
    };
    let program = place.compile("waits");
    for mode in ["atomic", "strict"] {
        for (rounds, threads) in [("10", "1"), ("1", "8")] {
            let required = format!("{mode} ADIT_REQUIRE=1");
            let mut command = place.command(&program, Some(&required));
            let output = run(command.arg(place.file()).args([rounds, threads]));
            assert_eq!(
                String::from_utf8_lossy(&output.stderr),
                "",
                "{mode} {threads}"
            );
        }
    }
}

/// Who left an open that waited for a fork holds up no fork for good.
#[test]
fn an_open_that_was_left_by_a_jump_is_over() {
    let Some(place) = Place::new("forsakes") else {
        return;
    };
    let program = place.compile("forsakes");
    let mut command = place.command(&program, Some("strict ADIT_REQUIRE=1"));
    let output = run(command.arg(place.file()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "at once\n");
}

#[test]
fn an_impatient_outsider_is_told_to_come_again() {
    let Some(place) = Place::new("impatient") else {
        return;
    };
    place.compile("lines");
    let mut program = Lines::start(&place, "strict", "aw", "line", &["30"]);
    assert_eq!(program.batch(), 30);
    let open = || {
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), 0o4000);
        options.open(place.file())
    };
    let refused = open().err().map(|error| error.kind());
    assert_eq!(refused, Some(std::io::ErrorKind::WouldBlock));
    wait_for("the lease's end", || open().is_ok());
    assert_eq!(place.content(), lines("line", 30));
    program.go_on();
    program.end();
}

/// Whoever comes again and again is let in some time, and a file that stays staged for long begins anew: what is taken away
/// because it was quiet is no such loss.
#[test]
fn a_file_that_was_quiet_is_given_back_and_staged_anew() {
    let Some(mut place) = Place::new("quiet") else {
        return;
    };
    place.end_monitor();
    let pace = ["--publish-after", "0.1", "--give-back-after", "3"];
    place.monitor = Place::watch_at(&place.dir, "run", None, &pace).expect("a monitor");
    place.compile("lines");
    // As `adit run` tells both.
    let mode = "strict ADIT_GIVE_BACK_AFTER=3";
    let mut program = Lines::start(&place, mode, "aw", "line", &["3"; 31]);
    let come = |program: &mut Lines| {
        assert!(program.batch() > 0);
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), libc::O_NONBLOCK);
        let refused = options.open(place.file()).err().map(|error| error.kind());
        wait_for("the lease's end", || !place.is_leased());
        program.go_on();
        refused
    };
    let refused = Some(std::io::ErrorKind::WouldBlock);
    for _ in 0..15 {
        assert_eq!(come(&mut program), refused);
    }
    assert_eq!(program.batch(), 48);
    assert!(place.is_leased());
    wait_for("it is given back", || !place.is_leased());
    program.go_on();
    for _ in 0..14 {
        assert_eq!(come(&mut program), refused);
    }
    assert_eq!(program.batch(), 93);
    assert!(place.is_leased());
    program.close();
    assert_eq!(place.content(), lines("line", 93));
}

/// Every system call that staging makes on its own account may fail, always or from some time on: the
/// program gets its bytes into the file all the same.
#[test]
fn the_engines_own_calls_may_fail() {
    let Some(place) = Place::new("inject") else {
        return;
    };
    if !has_strace() {
        return;
    }
    let program = place.compile("lines");
    let mut reached = 0;
    for (name, errno) in [
        ("socket", "EMFILE"),
        ("connect", "ECONNREFUSED"),
        ("connect", "EAGAIN"),
        ("sendmsg", "ENOBUFS"),
        ("ppoll", "EINTR"),
        ("recvfrom", "ECONNRESET"),
        ("name_to_handle_at", "EOPNOTSUPP"),
        ("readlinkat", "EACCES"),
        ("fgetxattr", "EIO"),
        ("fstatfs", "EIO"),
        ("statx", "ENOSYS"),
        ("madvise", "EINVAL"),
        ("rt_sigaction", "EINVAL"),
        ("utimensat", "EPERM"),
    ] {
        // An interruption is no failure, and none goes on for ever.
        let ever = !["EINTR", "EAGAIN"].contains(&errno);
        let whens = ["1", "2", "4", "1+", "2+", "3+"];
        for when in whens.iter().filter(|when| ever || !when.ends_with('+')) {
            let _ = fs::remove_file(place.file());
            let inject = format!("{name}:error={errno}:when={when}");
            let mut command = place.traced(&program, "strict", Some(&inject));
            command.arg(place.file()).args(["aw", "line", "9"]);
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            let mut child = command.spawn().expect("timeout(1)");
            let _ = child.stdin.take().expect("a pipe").write_all(b"\n");
            let status = child.wait().expect("wait");
            let case = format!("{name} failing with {errno} at {when}");
            assert!(status.success(), "{case}: {status}");
            let expected = lines("line", 9);
            wait_for(&case, || place.content() == expected);
            reached += place.trace().matches("(INJECTED)").count();
        }
    }
    assert!(reached > 50, "only {reached} calls were made to fail");
}
