//! Attachments and locks against real processes: fork, exec, kill, stop.
//!
//! The test binary plays the other processes itself: run again with `ADIT_POOL_PART` set, its test
//! `part` becomes the part named there.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests are not the engine"
)]

mod common;
mod place;
mod replay;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_pool::{Attachment, Error, FileMedium, FileRef, Op, PoolFile, When};
use adit_sim::Rng;
use common::*;
use place::*;
use replay::replayed;

const MB: u64 = 1 << 20;

/// Another process: killed when the test ends.
struct Part {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Part {
    fn start(part: &str, place: &Place) -> Self {
        Self::behind(&[], part, place)
    }

    /// Started by another command, which becomes the part, or ends with it.
    fn behind(words: &[&str], part: &str, place: &Place) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut command = match words {
            [] => Command::new(own),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(own);
                command
            }
        };
        let mut child = command
            .args(["--exact", "part", "--nocapture", "--test-threads=1"])
            .env("ADIT_POOL_PART", part)
            .env("ADIT_POOL_PLACE", &place.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The value that the part tells under this name.
    fn hear(&mut self, name: &str) -> u32 {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the part ended without {name}"
            );
            // The test harness prints on the same line before.
            if let Some((_, value)) = line.split_once(&format!("{name}=")) {
                return value.trim().parse().unwrap();
            }
        }
    }

    /// Lets a part that waits for it go on.
    fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    fn signal(&self, signal: i32) {
        signal_process(self.child.id() as i32, signal);
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.end();
    }
}

#[allow(
    unsafe_code,
    reason = "the test sends signals to processes that it started"
)]
fn signal_process(pid: i32, signal: i32) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid, signal) };
}

fn tell(name: &str, value: u32) {
    println!("{name}={value}");
    std::io::stdout().flush().unwrap();
}

/// Waits until something is so, no longer than it can take: on a disk others' syncs come first.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    let patience = scratch::limit(if scratch::is_memory() { 10 } else { 60 });
    while !is_so() {
        assert!(started.elapsed() < patience, "{what} does not come to pass");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_alive(pool: &PoolFile, slot: u32) -> bool {
    pool.pool().living_slots().contains(&slot)
}

/// Runs `child` in a forked process; its exit status.
#[allow(unsafe_code, reason = "the test is about fork")]
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs code of this test only and leaves by `_exit`. Other threads of the test
    // harness hold no lock that it needs: it neither prints nor waits for them.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local integer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    libc::WEXITSTATUS(status)
}

/// Forks a child that sleeps; its process id.
#[allow(unsafe_code, reason = "the test is about fork")]
fn sleeping_child() -> i32 {
    // SAFETY: the child only sleeps and leaves by `_exit`.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::sleep(20);
            libc::_exit(0);
        }
        pid
    }
}

/// What the other processes do.
#[test]
fn part() {
    let Ok(part) = std::env::var("ADIT_POOL_PART") else {
        return;
    };
    let place = PathBuf::from(std::env::var_os("ADIT_POOL_PLACE").unwrap());
    let pool = PoolFile::open(&place.join("pool"));
    if part == "kind" {
        println!("kind: {:?}", pool.map(|pool| pool.kind()));
        return;
    }
    let pool = pool.unwrap();
    let a = pool.attach().unwrap();
    match part.split(':').collect::<Vec<_>>()[..] {
        ["hold"] => {
            tell("slot", a.slot());
            std::thread::sleep(scratch::limit(20));
        }
        ["hold-with-child"] => {
            tell("child", sleeping_child() as u32);
            tell("slot", a.slot());
            std::thread::sleep(scratch::limit(20));
        }
        ["exec"] => {
            tell("child", sleeping_child() as u32);
            tell("slot", a.slot());
            let mut go = [0];
            let _ = fs::File::open(place.join("go")).unwrap().read(&mut go);
            panic!("exec: {}", Command::new("/bin/sleep").arg("20").exec());
        }
        ["die-with-lock", how] => die_with_lock(&a, how),
        ["append", id] => append_for_ever(&a, &place, id.parse().unwrap()),
        ["limited", resource] => scan_with_a_limit(&a, resource),
        ["grow", to] => {
            let grown = pool.grow(&a, to.parse::<u64>().unwrap() * MB);
            println!("grown: {grown:?}");
        }
        _ => panic!("no such part: {part}"),
    }
}

/// Numbers of processes mean nothing in another namespace, where this one's may be somebody else's; locks do.
#[test]
fn a_slot_is_seen_across_namespaces_of_processes() {
    let words = ["unshare", "--pid", "--fork", "--kill-child"];
    let may = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: no namespace of processes may be made here");
        return;
    }
    let place = Place::new("namespace");
    let pool = place.create(8 * MB);
    let mut part = Part::behind(&words, "hold", &place);
    let slot = part.hear("slot");
    assert!(is_alive(&pool, slot));
    part.end();
    until("the end of the other one", || !is_alive(&pool, slot));
    assert_eq!(pool.attach().unwrap().slot(), slot);
}

#[test]
fn a_slot_lives_through_a_stop_and_ends_with_a_kill() {
    let place = Place::new("kill");
    let pool = place.create(8 * MB);
    let mut part = Part::start("hold", &place);
    let slot = part.hear("slot");
    assert!(is_alive(&pool, slot));
    part.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(50));
    assert!(is_alive(&pool, slot), "a stopped process is alive");
    part.signal(libc::SIGKILL);
    part.end();
    assert!(!is_alive(&pool, slot));
    // Its slot is not taken by others before it was buried, and then it is.
    let a = pool.attach().unwrap();
    let mut other = Part::start("hold", &place);
    assert_ne!(other.hear("slot"), a.slot());
    other.end();
    assert_eq!(a.release_orphans().unwrap().slots, 1);
}

/// Walks over what others have staged when nothing more may be opened, or mapped.
#[allow(unsafe_code, reason = "the test is about limits")]
fn scan_with_a_limit(a: &Attachment<FileMedium>, resource: &str) {
    let (resource, most) = match resource {
        "files" => (libc::RLIMIT_NOFILE, 0),
        _ => (libc::RLIMIT_AS, 1),
    };
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: `limit` is a local value that the call only reads.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
    tell("slot", a.slot());
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).unwrap();
    match a.pool().scan() {
        Ok(found) => tell("found", found.files.len() as u32),
        Err(Error::NotMapped { chunks, mapped }) => tell("beyond", chunks - mapped),
        Err(error) => panic!("{error}"),
    }
}

/// Others make the pool larger, and log there. Who could not map it walked over less, and took what they had staged
/// for published.
#[test]
fn who_cannot_map_what_was_added_does_not_look_at_less() {
    for (resource, answer) in [("files", "found"), ("memory", "beyond")] {
        let place = Place::new(resource);
        let pool = place.create(8 * MB);
        let mut part = Part::start(&format!("limited:{resource}"), &place);
        part.hear("slot");
        let a = pool.attach().unwrap();
        let held: Vec<_> = std::iter::from_fn(|| a.alloc(2 << 20).ok()).collect();
        assert!(!held.is_empty(), "the pool is full before it grows");
        assert_eq!(pool.grow(&a, 32 * MB).unwrap(), 16);
        let file = a.enter_file(&name(1)).unwrap();
        let op = fill(&a, 0, b"staged").unwrap();
        a.lock_file(file).unwrap().append(&op, When::Now).unwrap();
        part.go();
        let told = part.hear(answer);
        assert_eq!(told, if answer == "found" { 1 } else { 12 });
    }
}

/// On DAX the superblock is durable at once, a file's size only when the file system's journal is: a power cut in
/// between left pools that ended before their last chunk. The sync that comes first is made to fail.
#[test]
fn no_chunk_is_counted_before_the_files_size_is_durable() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed");
        return;
    }
    let place = Place::new("size");
    let chunks = |pool: &PoolFile| pool.pool().chunk_count().unwrap();
    let before = chunks(&place.create(8 * MB));
    let grown = |to: &str, strace: &[&str]| {
        let output = Command::new("timeout")
            .arg(scratch::seconds(60))
            .args(["strace", "-f", "-qq", "-o", "/dev/null"])
            .args(strace)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "part", "--nocapture", "--test-threads=1"])
            .env("ADIT_POOL_PART", format!("grow:{to}"))
            .env("ADIT_POOL_PLACE", &place.0)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let path = place.pool();
    let failing = ["-P", path.to_str().unwrap(), "-e", "inject=fsync:error=EIO"];
    // The second time the file is longer than it has to be, and that is not known to be durable.
    for to in ["128", "64"] {
        let told = grown(to, &failing);
        let error = r#"grown: Err(Kernel { call: "fsync""#;
        assert!(told.contains(error), "{told}");
        assert_eq!(chunks(&PoolFile::open(&path).unwrap()), before);
    }
    let told = grown("64", &[]);
    assert!(told.contains("grown: Ok(32)"), "{told}");
}

/// Each kind of medium keeps its tables elsewhere. A process that was told nothing by the kernel for once, and took one
/// kind for another, wrote where nobody looked: what it was acknowledged was lost.
#[test]
fn the_medium_is_known_or_the_pool_is_not_opened() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed");
        return;
    }
    let place = Place::new("kind");
    let (kind, trace) = (place.create(8 * MB).kind(), place.0.join("trace"));
    let mut refused = 0;
    for call in ["fstatfs", "statx"] {
        for nth in 1.. {
            let inject = format!("inject={call}:error=ENOMEM:when={nth}");
            let output = Command::new("timeout")
                .arg(scratch::seconds(60))
                .args(["strace", "-f", "-qq", "-e", &inject, "-o"])
                .arg(&trace)
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "part", "--nocapture", "--test-threads=1"])
                .env("ADIT_POOL_PART", "kind")
                .env("ADIT_POOL_PLACE", &place.0)
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            if !fs::read_to_string(&trace).unwrap().contains("(INJECTED)") {
                break;
            }
            refused += usize::from(told.contains("kind: Err("));
            let known = format!("kind: Ok({kind:?})");
            let right = told.contains(&known) || told.contains("kind: Err(");
            // What fails before the test begins is none of ours.
            assert!(right || !told.contains("kind:"), "{inject}: {told}");
        }
    }
    assert!(refused > 1, "only {refused} times it was not opened");
}

#[test]
fn a_slot_ends_with_a_kill_while_a_forked_child_lives() {
    let place = Place::new("orphan");
    let pool = place.create(8 * MB);
    let mut part = Part::start("hold-with-child", &place);
    let child = part.hear("child") as i32;
    let slot = part.hear("slot");
    assert!(is_alive(&pool, slot));
    part.end();
    assert!(!is_alive(&pool, slot), "the child does not keep it");
    assert!(
        Path::new(&format!("/proc/{child}")).exists(),
        "and is alive"
    );
    signal_process(child, libc::SIGKILL);
}

#[test]
fn a_slot_ends_with_exec_while_a_forked_child_lives() {
    let place = Place::new("exec");
    let pool = place.create(8 * MB);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.0.join("go").into_os_string().into_encoded_bytes(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let mut part = Part::start("exec", &place);
    let child = part.hear("child") as i32;
    let slot = part.hear("slot");
    assert!(is_alive(&pool, slot));
    fs::write(place.0.join("go"), "x").unwrap();
    until("the end of the slot", || !is_alive(&pool, slot));
    let status = format!("/proc/{}/comm", part.child.id());
    until("exec", || {
        fs::read_to_string(&status).unwrap().trim() == "sleep"
    });
    assert!(Path::new(&format!("/proc/{child}")).exists());
    signal_process(child, libc::SIGKILL);
}

#[test]
fn a_forked_child_is_not_attached() {
    let place = Place::new("fork");
    let pool = place.create(16 * MB);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    stage(&a, file, 0, b"parent", When::Now).unwrap();
    let slot = a.slot();
    let guard = a.lock_file(file).unwrap();
    let spare = pool.attach().unwrap();
    let code = in_child(|| {
        let refused = [
            a.ensure_current().is_err(),
            matches!(a.alloc(100), Err(Error::NotAttached)),
            matches!(a.enter_file(&name(2)), Err(Error::NotAttached)),
            matches!(a.lock_file(file).map(|_| ()), Err(Error::NotAttached)),
            matches!(a.reclaim(), Err(Error::NotAttached)),
            matches!(a.release_orphans(), Err(Error::NotAttached)),
        ];
        if refused.contains(&false) {
            return 1;
        }
        let mut guard = guard;
        if guard.append(&Op::Truncate { size: 1 }, When::Now).is_ok() {
            return 2;
        }
        // Dropping copies of the parent's things must leave the parent's alone.
        drop(guard);
        drop(spare);
        let Ok(own) = pool.attach() else { return 3 };
        if own.slot() == slot || own.ensure_current().is_err() {
            return 4;
        }
        let Ok(other) = own.enter_file(&name(3)) else {
            return 5;
        };
        if stage(&own, other, 0, b"child", When::Now).is_err() {
            return 6;
        }
        0
    });
    assert_eq!(code, 0);
}

#[test]
fn the_parent_goes_on_after_a_child() {
    let place = Place::new("parent");
    let pool = place.create(16 * MB);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    let mut guard = a.lock_file(file).unwrap();
    let copies = (&a, &mut guard);
    let code = in_child(move || {
        // What a child that unwinds would do to the copies.
        let (a, guard) = copies;
        let refused = guard.append(&Op::Truncate { size: 1 }, When::Now).is_err();
        let refused = refused && guard.retire(1).is_err();
        i32::from(!refused || a.ensure_current().is_ok())
    });
    assert_eq!(code, 0);
    let other = pool.attach().unwrap();
    let taken = other.try_lock_file(file).unwrap().is_some();
    assert!(!taken, "the parent has it locked");
    assert!(is_alive(&pool, a.slot()));
    guard.append(&Op::Truncate { size: 3 }, When::Now).unwrap();
    drop(guard);
    stage(&a, file, 0, b"abc", When::Now).unwrap();
    assert_eq!(pool.pool().scan().unwrap().counts.live, 2);
}

/// Takes the file's lock and dies, at different places.
fn die_with_lock(a: &Attachment<FileMedium>, how: &str) {
    let file = a.pool().find_file(&name(1)).unwrap().unwrap();
    let bytes = [b'd'; 50];
    match how {
        "before" => std::mem::forget(a.lock_file(file).unwrap()),
        "after" => {
            let op = fill(a, 100, &bytes).unwrap();
            let mut guard = a.lock_file(file).unwrap();
            guard.append(&op, When::Now).unwrap();
            std::mem::forget(guard);
        }
        _ => panic!("no such death: {how}"),
    }
    tell("slot", a.slot());
    signal_process(std::process::id() as i32, libc::SIGKILL);
    std::thread::sleep(scratch::limit(20));
}

#[test]
fn locks_of_the_dead_are_taken_over() {
    let place = Place::new("locks");
    let pool = place.create(16 * MB);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    a.lock_file(file).unwrap().set_end(100).unwrap();
    for (how, end) in [("before", 100), ("after", 150)] {
        let mut part = Part::start(&format!("die-with-lock:{how}"), &place);
        part.hear("slot");
        part.child.wait().unwrap();
        let started = Instant::now();
        let guard = a.lock_file(file).unwrap();
        // Who waits for somebody who lives gives up after two seconds.
        assert!(
            started.elapsed() < Duration::from_millis(1900),
            "{how}: no waiting for the dead"
        );
        assert_eq!(guard.end().unwrap(), Some(end), "{how}");
    }
    // The buried slot may be used again; the old lock word would not mean the new holder.
    a.release_orphans().unwrap();
}

#[test]
fn a_thread_that_jumped_out_comes_back_in() {
    let place = Place::new("jump");
    let pool = place.create(16 * MB);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    a.lock_file(file).unwrap().set_end(0).unwrap();
    // As siglongjmp does: the guard's destructor never runs.
    std::mem::forget(a.lock_file(file).unwrap());
    stage(&a, file, 0, b"again", When::Now).unwrap();
    assert_eq!(a.lock_file(file).unwrap().end().unwrap(), Some(5));
    // Another thread of the process waits, and is told who does not let go.
    std::mem::forget(a.lock_file(file).unwrap());
    let error = std::thread::scope(|scope| {
        scope
            .spawn(|| a.lock_file(file).map(|_| ()).expect_err("held"))
            .join()
            .unwrap()
    });
    assert!(
        matches!(
            error,
            Error::Busy {
                lock: "file lock",
                ..
            }
        ),
        "{error}"
    );
    drop(a.lock_file(file).unwrap());
}

#[test]
fn a_stopped_holder_is_named_and_not_waited_for_for_ever() {
    let place = Place::new("stop");
    let pool = place.create(16 * MB);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    let pool_of_other = PoolFile::open(pool.path()).unwrap();
    let other = pool_of_other.attach().unwrap();
    // A living attachment that holds the lock and does not go on is what a stopped one looks like.
    let guard = other.lock_file(file).unwrap();
    let started = Instant::now();
    let error = a.lock_file(file).map(|_| ()).expect_err("held");
    assert!(
        matches!(error, Error::Busy { slot, .. } if slot == other.slot()),
        "{error}"
    );
    assert!(started.elapsed() < scratch::limit(10));
    drop(guard);
    drop(a.lock_file(file).unwrap());
}

/// A walk over long logs may last longer than anybody waits for a lock, and then it is over.
#[test]
fn a_holder_that_takes_long_is_waited_for() {
    let place = Place::new("long");
    let pool = place.create(16 * MB);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    let pool_of_other = PoolFile::open(pool.path()).unwrap();
    let other = pool_of_other.attach().unwrap();
    let locked = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let guard = other.lock_file(file).unwrap();
            guard.takes_long();
            locked.wait();
            // Longer than the patience with a lock of the living, which is two seconds.
            std::thread::sleep(std::time::Duration::from_millis(2500));
        });
        locked.wait();
        // Who does not wait is told so at once all the same.
        assert!(a.try_lock_file(file).unwrap().is_none());
        drop(a.lock_file(file).unwrap());
    });
    // It is free, and the next holder has said nothing.
    let guard = a.lock_file(file).unwrap();
    let error = other.lock_file(file).map(|_| ()).expect_err("held");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(guard);
    // One that jumped out of it is its own dead predecessor, as without.
    let guard = a.lock_file(file).unwrap();
    guard.takes_long();
    std::mem::forget(guard);
    drop(a.lock_file(file).unwrap());
    assert!(other.try_lock_file(file).unwrap().is_some());
}

/// One appended line: who, which, and enough bytes to see a torn one.
fn line_of(id: u64, count: u64) -> Vec<u8> {
    let mut rng = Rng::at(&[id, count]);
    let len = 24 + 8 * rng.below(40) as usize;
    let mut line = Vec::with_capacity(len);
    line.extend((len as u64).to_le_bytes());
    line.extend(id.to_le_bytes());
    line.extend(count.to_le_bytes());
    while line.len() < len {
        line.extend(rng.next_u64().to_le_bytes());
    }
    line
}

/// Appends a line at the file's end, which all processes share.
fn append_line(a: &Attachment<FileMedium>, file: FileRef, line: &[u8]) -> adit_pool::Result<()> {
    let op = fill(a, 0, line)?;
    let Op::Write {
        extent,
        len,
        data_crc,
        ..
    } = op
    else {
        unreachable!()
    };
    let mut guard = a.lock_file(file)?;
    let file_offset = guard.end()?.expect("the parent said where the file ends");
    let at_end = Op::Write {
        file_offset,
        extent,
        len,
        data_crc,
    };
    match guard.append(&at_end, When::WithCommit) {
        Ok(_) => Ok(()),
        Err(error) => {
            a.free(extent)?;
            Err(error)
        }
    }
}

/// Two threads append and note what was acknowledged, until somebody kills the process.
fn append_for_ever(a: &Attachment<FileMedium>, place: &Path, id: u64) {
    let file = a.pool().find_file(&name(1)).unwrap().unwrap();
    let file = a.enter_file(&a.pool().file_name(file).unwrap()).unwrap();
    a.limit_log(2);
    tell("slot", a.slot());
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let id = id * 2 + thread;
                let mut notes = fs::File::create(place.join(format!("notes-{id}"))).unwrap();
                let mut count = 1_u64;
                loop {
                    match append_line(a, file, &line_of(id, count)) {
                        // One write of 8 bytes: noted whole or not at all.
                        Ok(()) => {
                            notes.write_all(&count.to_le_bytes()).unwrap();
                            count += 1;
                        }
                        Err(Error::LogFull { .. } | Error::Full { .. }) => {
                            a.reclaim().unwrap();
                            std::thread::sleep(Duration::from_micros(300));
                        }
                        Err(error) => panic!("append: {error}"),
                    }
                }
            });
        }
    });
}

/// Publishes what all logs hold into `base`.
fn publish(a: &Attachment<FileMedium>, file: FileRef, base: &mut Vec<u8>) -> u64 {
    let mut guard = a.lock_file(file).unwrap();
    let found = a.scan().unwrap();
    let rejected: Vec<_> = found
        .rejected
        .iter()
        // Lines that others are writing at this moment, for other files, are cut off.
        .filter(|rejected| rejected.reason != adit_pool::Rejection::Torn)
        .collect();
    assert!(rejected.is_empty(), "{rejected:?}");
    let Some(of_file) = found.files.iter().find(|f| f.file_id == file.id()) else {
        return 0;
    };
    let committed = if of_file.uncommitted > 0 {
        guard.commit().unwrap()
    } else {
        0
    };
    *base = replayed(a.pool(), &found, file, base).unwrap();
    guard.retire(of_file.last_seq.max(committed)).unwrap();
    of_file.records
}

/// The last line that an appender was told is appended.
fn noted(place: &Place, id: u64) -> u64 {
    let notes = fs::read(place.0.join(format!("notes-{id}"))).unwrap_or_default();
    let last = notes.chunks_exact(8).last();
    last.map_or(0, |count| u64::from_le_bytes(count.try_into().unwrap()))
}

#[test]
fn appenders_killed_at_random_lose_nothing_acknowledged() {
    let place = Place::new("storm");
    let pool = place.create(48 * MB);
    let a = pool.attach().unwrap();
    let file = a.enter_file(&name(1)).unwrap();
    a.lock_file(file).unwrap().set_end(0).unwrap();
    let mut rng = Rng::new(77);
    let mut base = Vec::new();
    let mut parts = Vec::new();
    let (mut next_id, mut kills, mut published) = (0, 0, 0);
    let started = Instant::now();
    let seconds = std::env::var("ADIT_POOL_STORM")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(5);
    // Where all of them die before they have done anything, it takes longer.
    let acknowledged = |next_id| (0..next_id).map(|id| noted(&place, id)).sum::<u64>();
    while started.elapsed() < Duration::from_secs(seconds)
        || kills < 5
        || acknowledged(next_id) < 600
    {
        let most = Duration::from_secs(seconds) + scratch::limit(60);
        assert!(started.elapsed() < most, "{kills} kills");
        while parts.len() < 3 {
            parts.push(Part::start(&format!("append:{next_id}"), &place));
            next_id += 1;
        }
        let pause = Duration::from_micros(500 + rng.below(20_000));
        std::thread::sleep(pause * scratch::patience());
        published += publish(&a, file, &mut base);
        if rng.below(3) != 0 {
            let nth = rng.below(3) as usize;
            let mut part = parts.swap_remove(nth);
            if rng.below(2) == 0 {
                // Stopped for a while first, perhaps inside a lock.
                part.signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_millis(rng.below(5)));
            }
            part.end();
            kills += 1;
            a.release_orphans().unwrap();
        }
    }
    parts.iter_mut().for_each(Part::end);
    published += publish(&a, file, &mut base);
    let released = a.release_orphans().unwrap();
    assert_eq!(released.kept, 0, "everything was published");
    assert_eq!(
        a.lock_file(file).unwrap().end().unwrap(),
        Some(base.len() as u64)
    );

    let mut seen: std::collections::BTreeMap<u64, Vec<u64>> = Default::default();
    let mut at = 0;
    while at < base.len() {
        let word = |i: usize| u64::from_le_bytes(base[at + i..at + i + 8].try_into().unwrap());
        let (len, id, count) = (word(0) as usize, word(8), word(16));
        assert_eq!(base[at..at + len], line_of(id, count), "line at {at}");
        seen.entry(id).or_default().push(count);
        at += len;
    }
    let mut acknowledged = 0;
    for id in 0..next_id * 2 {
        let last = noted(&place, id);
        let found = seen.remove(&id).unwrap_or_default();
        // In order, without holes or repetitions; at most one more than was noted.
        let wrong = found
            .iter()
            .zip(1..)
            .position(|(found, expected)| *found != expected);
        if let Some(at) = wrong {
            let around = &found[at.saturating_sub(3)..(at + 5).min(found.len())];
            panic!(
                "appender {id}: line {at} of {} (noted {last}): {around:?}",
                found.len()
            );
        }
        let extra = found.len() as u64 - last.min(found.len() as u64);
        assert!(
            found.len() as u64 >= last && extra <= 1,
            "appender {id}: {last}, {}",
            found.len()
        );
        acknowledged += last;
    }
    assert!(seen.is_empty());
    assert!(
        kills >= 5 && acknowledged > 500,
        "{kills} kills, {acknowledged} lines"
    );
    println!("{kills} kills, {acknowledged} acknowledged lines, {published} records published");
    assert!(pool.pool().check().unwrap().is_sound());
}

/// Raises a flag at its end, also when that is a panic: those who look at it end, too.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn threads_of_one_attachment_share_a_log() {
    let place = Place::new("threads");
    let pool = place.create(32 * MB);
    let a = Arc::new(pool.attach().unwrap());
    let files: Vec<_> = (0..4).map(|n| a.enter_file(&name(n)).unwrap()).collect();
    let stop = AtomicBool::new(false);
    let appended: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let (a, stop) = (&a, &stop);
        for (n, file) in files.iter().enumerate() {
            let appended = &appended[n];
            scope.spawn(move || {
                for count in 0..6000_u64 {
                    let bytes = [n as u8 + 1; 100];
                    loop {
                        match stage(a, *file, count * 100, &bytes, When::Now) {
                            Ok(_) => break,
                            Err(Error::LogFull { .. } | Error::Full { .. }) => {
                                std::thread::yield_now();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    appended.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(move || {
            // Reclaims what the four have retired meanwhile.
            while !stop.load(Ordering::Relaxed) {
                a.reclaim().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            let _then = Raised(stop);
            until("the appends", || {
                appended.iter().all(|n| n.load(Ordering::Relaxed) == 6000)
            });
        });
    });
    let found = pool.pool().scan().unwrap();
    assert_eq!(found.counts.live, 24_000);
    for (n, file) in files.iter().enumerate() {
        let bytes = replayed(pool.pool(), &found, *file, b"").unwrap();
        assert_eq!(bytes, vec![n as u8 + 1; 600_000]);
    }
    assert!(pool.pool().check().unwrap().is_sound());
}
