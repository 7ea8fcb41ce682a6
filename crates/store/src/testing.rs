//! Helpers of the tests: scratch directories, and helper processes that are this test binary again.
//!
//! # Safety
//! What runs between `fork` and `exec` makes system calls with integers, and with a structure of its own.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::registry::{Env, FileId, Registry, RuntimeDir};

#[path = "../../../tests/scratch.rs"]
pub(crate) mod scratch;

/// A directory that goes with the value, on the medium under test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self::in_place(&scratch::place())
    }

    fn in_place(place: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("adit-test-{}-{next}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch directory");
        Self(path)
    }

    /// One behind a page cache, if there is such a place.
    pub(crate) fn on_a_disk() -> Option<Self> {
        let program = std::env::current_exe().expect("the path of the tests");
        let disk = scratch::disk(program.parent()?.to_str()?)?;
        Some(Self::in_place(&disk))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The runtime directory of the test, made as the program would make it.
    pub(crate) fn runtime(&self) -> RuntimeDir {
        let dir = runtime_at(&self.path("run"));
        dir.create().expect("runtime directory");
        dir
    }

    /// A file with some bytes whose modification time lies in 2001.
    pub(crate) fn old_file(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let mut file = std::fs::File::create(&path).expect("create");
        file.write_all(&[b'x'; 8192]).expect("write");
        file.set_modified(old()).expect("set time");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn old() -> std::time::SystemTime {
    std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)
}

pub(crate) fn modified(path: &Path) -> std::time::SystemTime {
    let meta = std::fs::metadata(path).expect("metadata");
    meta.modified().expect("modified")
}

pub(crate) fn runtime_at(path: &Path) -> RuntimeDir {
    RuntimeDir::at(path.as_os_str().as_bytes()).expect("runtime path")
}

/// A registry of its own, as a process would have one.
pub(crate) fn registry(run: &Path) -> &'static Registry {
    let registry = Box::leak(Box::new(Registry::new()));
    registry.configure(&Env {
        adit_runtime_dir: Some(run.as_os_str().as_bytes()),
        xdg_runtime_dir: None,
    });
    registry
}

pub(crate) fn id_of(file: &std::fs::File) -> FileId {
    use std::os::unix::fs::MetadataExt as _;
    let meta = file.metadata().expect("metadata");
    FileId {
        dev: meta.dev(),
        ino: meta.ino(),
    }
}

pub(crate) fn open_rw(path: &Path) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).open(path).expect("open")
}

/// Waits until something holds, or panics after a minute, which is long on the busiest machine that is a real one.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < scratch::limit(60),
            "never happened: {what}"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// While this is held, no process is just being made that has copies of our descriptors.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static STARTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    STARTING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Starts a process, which closes its copies of our files before it executes anything. The kernel would close them then,
/// one after another and some of them behind the rest, a moment after everything that can be seen from here.
pub(crate) fn spawn(command: &mut Command) -> Child {
    use std::os::unix::process::CommandExt as _;
    let _alone = alone();
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let beyond = numbers.max().unwrap_or(0) + OPENED_MEANWHILE;
    let close = move || {
        close_copies_of_files(beyond);
        Ok(())
    };
    // SAFETY: the closure makes system calls, and nothing else.
    let started = unsafe { command.pre_exec(close) }.spawn();
    started.expect("a process")
}

/// Descriptors that other tests may open while a process is being made.
const OPENED_MEANWHILE: i32 = 256;

/// Of the descriptors below a number, those that lead to files and would not survive the next program.
fn close_copies_of_files(beyond: i32) {
    for fd in 3..beyond {
        let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the structure is written whole where that succeeds, and read only then; a number that is no descriptor
        // is refused, and this process has one thread, whose descriptors nobody will use any more.
        unsafe {
            let goes = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
            if libc::fstat(fd, stat.as_mut_ptr()) == 0
                && goes
                && stat.assume_init().st_mode & libc::S_IFMT == libc::S_IFREG
            {
                libc::close(fd);
            }
        }
    }
}

/// A helper process: this test binary, told to run one ignored test, which is its `main`.
pub(crate) struct Helper {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts the ignored test `role` with arguments in the environment.
    pub(crate) fn start(role: &str, arguments: &[(&str, &Path)]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args([role, "--exact", "--ignored", "--nocapture"])
            .args(["--test-threads", "1"])
            .env("ADIT_TEST_HELPER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        for (name, value) in arguments {
            command.env(name, value);
        }
        let mut child = spawn(&mut command);
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        Self {
            child,
            stdin,
            stdout,
        }
    }

    /// Waits for a line that the helper prints with [`say`].
    pub(crate) fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.stdout.read_line(&mut line).expect("read");
            assert!(read != 0, "the helper ended before it said {word}");
            if line.trim_end().ends_with(&format!("@{word}")) {
                return;
            }
        }
    }

    /// Sends the helper a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).expect("pid");
        let pid = rustix::process::Pid::from_raw(pid).expect("pid");
        rustix::process::kill_process(pid, signal).expect("kill");
    }

    /// Lets the helper go on past its [`listen`].
    pub(crate) fn go_on(&mut self) {
        self.tell("go");
    }

    /// Gives the helper a word for its [`listen`].
    pub(crate) fn tell(&mut self, word: &str) {
        let stdin = self.stdin.as_mut().expect("stdin");
        stdin.write_all(word.as_bytes()).expect("write");
        stdin.write_all(b"\n").expect("write");
        stdin.flush().expect("flush");
    }

    /// Gives a word, and waits for the answer.
    pub(crate) fn ask(&mut self, word: &str, answer: &str) {
        self.tell(word);
        self.wait_for(answer);
    }

    /// Kills the helper with SIGKILL and reaps it.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stdin = None;
        self.kill();
    }
}

/// Whether this is a helper process; a helper's test does nothing otherwise.
pub(crate) fn is_helper() -> bool {
    std::env::var_os("ADIT_TEST_HELPER").is_some()
}

/// A path handed to the helper.
pub(crate) fn argument(name: &str) -> PathBuf {
    std::env::var_os(name).expect("argument").into()
}

/// Tells the test that a point is reached.
pub(crate) fn say(word: &str) {
    println!("@{word}");
    std::io::stdout().flush().expect("flush");
}

/// Waits for a word of the test; ends the helper when the test is gone.
pub(crate) fn listen() -> String {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).expect("read");
    if read == 0 {
        std::process::exit(0);
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    /// Else a lease that another test takes would be refused now and then.
    #[test]
    fn who_is_being_started_has_no_copies_of_our_files() {
        let scratch = Scratch::new();
        let path = scratch.old_file("data");
        let lease_of = |file: &std::fs::File, lease: i32| {
            // SAFETY: integers only.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) }
        };
        let done = std::sync::atomic::AtomicBool::new(false);
        let (mut taken, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..300 {
                    let mut process = spawn(&mut Command::new("true"));
                    assert!(process.wait().expect("its status").success());
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let (other, file) = (open_rw(&path), open_rw(&path));
                std::thread::yield_now();
                let _alone = alone();
                drop(other);
                match lease_of(&file, libc::F_WRLCK) {
                    0 => taken += 1,
                    _ => refused += 1,
                }
                let _ = lease_of(&file, libc::F_UNLCK);
            }
        });
        assert_eq!(refused, 0, "beside {taken} that were taken");
    }
}
