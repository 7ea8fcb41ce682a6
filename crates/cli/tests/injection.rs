//! Every system call of a recovery may fail, in `adit pool recover` and in `adit run`: `strace` makes it. What fails is
//! told, nothing hangs, and what the dead had staged is in their files when one has gone through.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests run outside the library"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::dead::{expected, new_pool, on, stage_and_die};
use common::{Finished, Scratch, adit, finish, scratch};

/// What a call may fail with, whatever it does.
const ERRORS: [&str; 5] = ["EINTR", "ENOSPC", "EIO", "EMFILE", "ENOMEM"];

/// Calls whose failure is nobody's to handle: they cannot fail, tell their failure in another way, or have ended what
/// they were to end.
const SPARED: [&str; 8] = [
    "brk",
    "exit",
    "exit_group",
    "execve",
    "futex",
    "close",
    "rt_sigprocmask",
    "clock_gettime",
];

/// A call: its name, and how many of that name the same thread had made when it was made, with itself.
type Call = (String, usize);

/// A pool in which two programs have died, which can be had again and again.
struct Dead {
    scratch: Scratch,
    pool: PathBuf,
    kept: PathBuf,
    files: [PathBuf; 2],
}

impl Dead {
    fn new(scratch: Scratch) -> Self {
        let pool = new_pool(&scratch);
        let files = ["first", "second"].map(|name| scratch.file(name, b"base", 0o600));
        for file in &files {
            stage_and_die(&pool, file);
        }
        let list = adit_store::pools::PoolList::at(&scratch.0.join("state/adit"));
        let uuid = *adit_pool::PoolFile::open(&pool).unwrap().pool().uuid();
        list.add(&uuid, &pool).unwrap();
        let kept = scratch.0.join("kept");
        fs::copy(&pool, &kept).unwrap();
        Self {
            scratch,
            pool,
            kept,
            files,
        }
    }

    /// Lets the programs have died once more.
    fn again(&self) {
        let tables = self.scratch.0.join("pool.tables");
        let _ = fs::remove_file(tables);
        fs::copy(&self.kept, &self.pool).unwrap();
        for file in &self.files {
            fs::write(file, b"base").unwrap();
        }
    }

    fn is_in_memory(&self) -> bool {
        scratch::medium_of(&self.scratch.0) != adit_pmem::MediumKind::Cached
    }

    fn is_recovered(&self) -> bool {
        let expected = expected();
        let whole = |file: &PathBuf| fs::read(file).unwrap() == expected;
        self.files.iter().all(whole)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = adit([]);
        command.args(words);
        command.env("XDG_STATE_HOME", self.scratch.0.join("state"));
        command.env("ADIT_RUNTIME_DIR", self.scratch.0.join("run"));
        command
    }

    /// The same command, traced, with calls that fail.
    fn traced(&self, command: &Command, inject: Option<&str>) -> Finished {
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-o"]).arg(self.trace_file());
        if let Some(inject) = inject {
            traced.args(["-e", &format!("inject={inject}")]);
        }
        traced.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => traced.env(name, value),
                None => traced.env_remove(name),
            };
        }
        finish(&mut traced)
    }

    fn trace_file(&self) -> PathBuf {
        self.scratch.0.join("trace")
    }

    fn trace(&self) -> String {
        fs::read_to_string(self.trace_file()).unwrap()
    }

    /// What the command calls from where it first names `begin`; all before is libc's and the loader's.
    fn calls(&self, command: &Command, begin: &Path) -> Vec<Call> {
        self.again();
        let done = self.traced(command, None);
        assert_eq!(done.code(), Some(0), "{done:?}");
        let begin = begin.to_str().unwrap();
        let mut before: Vec<(String, String)> = Vec::new();
        let (mut calls, mut starts, mut has_begun) = (Vec::new(), Vec::new(), false);
        for line in self.trace().lines() {
            let (thread, call) = line.split_once(' ').unwrap();
            let Some((name, _)) = call.trim_start().split_once('(') else {
                continue;
            };
            if has_begun && name == "execve" {
                break;
            }
            has_begun |= line.contains(begin) && name != "execve";
            let this = (thread.to_owned(), name.to_owned());
            let nth = before.iter().filter(|each| **each == this).count() + 1;
            let call = (name.to_owned(), nth);
            before.push(this);
            if !has_begun {
                starts.push(call);
            } else if ![&calls, &starts].iter().any(|known| known.contains(&call)) {
                calls.push(call);
            }
        }
        calls.retain(|(name, _)| !SPARED.contains(&name.as_str()));
        calls
    }
}

/// Makes each call of the command fail, judges the command, and recovers again.
fn any_call_fails(
    dead: &Dead,
    words: &[&str],
    begin: &Path,
    is_right: fn(&Finished, bool) -> bool,
) {
    let command = dead.command(words);
    let calls = dead.calls(&command, begin);
    assert!(dead.is_recovered() && calls.len() > 30, "{calls:?}");
    let all = std::env::var_os("ADIT_TEST_ALL").is_some();
    let (mut reached, mut wrong) = (0, Vec::new());
    // On a disk each takes its time, and what comes later of a name is like what came first.
    let most = if all || dead.is_in_memory() {
        usize::MAX
    } else {
        3
    };
    let few = calls.iter().filter(|(_, nth)| *nth <= most);
    for (at, (name, nth)) in few.enumerate() {
        let errors = ERRORS.iter().enumerate();
        for (_, error) in errors.filter(|(number, _)| all || at % ERRORS.len() == *number) {
            let inject = format!("{name}:error={error}:when={nth}");
            dead.again();
            let done = dead.traced(&command, Some(&inject));
            reached += usize::from(dead.trace().contains("(INJECTED)"));
            if !is_right(&done, dead.is_recovered()) && !is_loaders(&dead.trace()) {
                wrong.push(format!("{inject}: {done:?}"));
            }
            let again = on(["pool", "recover"], &dead.pool);
            let check = on(["pool", "check"], &dead.pool);
            if (again.code(), check.code()) != (Some(0), Some(0)) || !dead.is_recovered() {
                wrong.push(format!("after {inject}: {done:?} {again:?} {check:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(reached > 20, "only {reached} calls were made to fail");
}

/// Whether all who were ended by SIGSEGV, and there are some, had just failed to get the first memory that libc's loader
/// asks for, before it opens any library: it does not bear that, of any program.
fn is_loaders(trace: &str) -> bool {
    let calls = |thread: &str| -> Vec<&str> {
        let line = |line: &str| line.split(' ').next() == Some(thread);
        trace.lines().filter(|each| line(each)).collect()
    };
    let in_loader = |thread: &str| {
        let calls = calls(thread);
        let executed = calls.iter().rposition(|line| line.contains("execve"));
        let since = executed.map_or(&[][..], |at| &calls[at..]);
        let failed = since.iter().position(|line| line.contains("(INJECTED)"));
        failed.is_some_and(|at| {
            let opened = since[..at].iter().any(|line| line.contains("open"));
            since[at].contains(" mmap(NULL, ") && !opened
        })
    };
    let ended = trace
        .lines()
        .filter(|line| line.contains("+++ killed by SIGSEGV"));
    let mut ended = ended.filter_map(|line| line.split(' ').next()).peekable();
    ended.peek().is_some() && ended.all(in_loader)
}

#[test]
fn only_the_loaders_own_memory_is_spared() {
    let start = "7 execve(\"/bin/true\") = 0\n7 brk(NULL) = 0x1\n";
    let fails = "7 mmap(NULL, 8192) = -1 ENOMEM (INJECTED)\n7 +++ killed by SIGSEGV +++\n";
    let opens = "7 openat(AT_FDCWD, \"libadit.so\") = 3\n";
    let other = "8 execve(\"adit\") = 0\n8 +++ killed by SIGSEGV +++\n";
    assert!(is_loaders(&format!("{start}{fails}")));
    assert!(!is_loaders(&format!("{start}{opens}{fails}")));
    assert!(!is_loaders(&format!("{start}{fails}{other}")));
    assert!(!is_loaders(&fails.replace("SIGSEGV", "SIGABRT")));
}

fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").output().is_ok();
    if !has {
        println!("skipped: strace is not installed");
    }
    has
}

#[test]
fn any_call_of_a_recovery_may_fail() {
    if !has_strace() {
        return;
    }
    any_call_of_it_fails(&Dead::new(Scratch::new()));
}

fn any_call_of_it_fails(dead: &Dead) {
    let words = ["pool", "recover", dead.pool.to_str().unwrap()];
    any_call_fails(dead, &words, &dead.pool, |done, recovered| {
        let told = !done.err.is_empty() || done.out.contains("STILL IN THE POOL");
        if done.code() == Some(0) {
            recovered
        } else {
            told
        }
    });
}

/// What could not be written may look as if it were. Who recovers begins with what is on the medium, and so does whoever
/// comes after a sync that has failed.
#[test]
fn a_failed_sync_leaves_nothing_in_the_cache() {
    if !has_strace() {
        return;
    }
    let dead = Dead::new(Scratch::new());
    let command = dead.command(&["pool", "recover", dead.pool.to_str().unwrap()]);
    let done = dead.traced(&command, Some("fsync:error=EIO"));
    assert_ne!(done.code(), Some(0), "{done:?}");
    let trace = dead.trace();
    let lines: Vec<&str> = trace.lines().collect();
    let is_forgotten = |line: &&str| line.contains(", 0, 0, POSIX_FADV_DONTNEED) = 0");
    let forgotten = lines.iter().filter(|line| is_forgotten(line)).count();
    // Of the same thread, the next call.
    let failed = lines
        .windows(2)
        .filter(|two| two[0].contains(" fsync(") && two[0].contains("(INJECTED)"))
        .filter(|two| is_forgotten(&two[1]))
        .count();
    assert!(failed > 0 && forgotten > failed, "{trace}");
    let again = on(["pool", "recover"], &dead.pool);
    assert_eq!(again.code(), Some(0), "{again:?}");
    assert!(dead.is_recovered());
}

/// A program runs all the same, unless it is its own start that fails.
#[test]
fn any_call_of_a_recovery_before_a_program_may_fail() {
    if !has_strace() {
        return;
    }
    let dead = Dead::new(Scratch::new());
    let state = dead.scratch.0.join("run");
    any_call_fails(&dead, &["run", "true"], &state, |done, _| {
        done.code() == Some(0) || !done.err.is_empty()
    });
}

/// On a disk other calls are made: what is in the pool is written and synced.
#[test]
fn any_call_of_a_recovery_on_a_disk_may_fail() {
    if scratch::named().is_some() {
        println!("skipped: it concerns a second medium beside the one in memory");
        return;
    }
    let disk = scratch::disk(env!("CARGO_TARGET_TMPDIR"));
    if let Some(disk) = disk.filter(|_| has_strace()) {
        any_call_of_it_fails(&Dead::new(Scratch::beside(&disk)));
    }
}

/// What is durable in the pool alone is not given up for what a file system does not say to be durable.
#[test]
fn a_recovery_whose_sync_fails_keeps_what_is_in_the_pool() {
    let disk = scratch::disk(env!("CARGO_TARGET_TMPDIR"));
    let Some(disk) = disk.filter(|_| has_strace()) else {
        return;
    };
    let dead = Dead::new(Scratch::beside(&disk));
    let command = dead.command(&["pool", "recover", dead.pool.to_str().unwrap()]);
    let mut reached = 0;
    for sync in ["fsync", "fdatasync", "msync", "sync_file_range"] {
        dead.again();
        let done = dead.traced(&command, Some(&format!("{sync}:error=EIO")));
        if !dead.trace().contains("(INJECTED)") {
            continue;
        }
        reached += 1;
        assert_ne!(done.code(), Some(0), "{sync}: {done:?}");
        for file in &dead.files {
            fs::write(file, b"base").unwrap();
        }
        let again = on(["pool", "recover"], &dead.pool);
        assert_eq!(again.code(), Some(0), "after {sync}: {again:?}");
        assert!(dead.is_recovered(), "after {sync}: {again:?}");
    }
    assert!(reached > 1, "it did not sync");
}
