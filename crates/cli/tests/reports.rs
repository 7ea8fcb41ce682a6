//! What the commands report: as JSON that parses, with statuses that mean what they say.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests run outside the library"
)]

mod common;
#[path = "../../../tests/monitors.rs"]
mod monitors;

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adit_pool::PoolFile;
use adit_store::pools::PoolList;
use common::dead::{expected, new_pool, stage, stage_and_die};
use common::{Scratch, adit, finish, json, library, limit, scratch, staged_of};
use monitors::monitor_of;
use serde_json::Value;

#[test]
fn doctor_judges_memory_and_refuses_what_it_does_not_serve() {
    let done = finish(adit(["doctor", "--json", "/dev/shm"]).env_remove("ADIT_NO_MONITOR"));
    let report = json(&done);
    assert_eq!(
        (done.code(), report["works"].as_bool()),
        (Some(0), Some(true)),
        "{done:?}"
    );
    assert_eq!(report["medium"], "ram");
    let modes = report["promises"].as_array().unwrap();
    assert_eq!(modes.len(), 4);
    assert!(modes.iter().all(|m| m["works"] == true), "{modes:?}");
    // A promise that hangs on staging says what is left without it.
    for mode in modes.iter().filter(|m| m["mode"] != "posix") {
        assert!(mode["why"].as_str().unwrap().contains("else"), "{mode}");
    }

    let done = finish(&mut adit(["doctor", "--json", "/proc"]));
    assert_eq!(
        (done.code(), json(&done)["works"].as_bool()),
        (Some(1), Some(false))
    );
    let done = finish(adit(["doctor", "/dev/shm"]).env("ADIT_LIB", "/no/such/library"));
    assert_eq!(done.code(), Some(1), "{done:?}");
    assert!(done.out.contains("/no/such/library"), "{done:?}");
    let done = finish(&mut adit(["doctor", "/no/such/place"]));
    assert!(
        done.code() == Some(3) && done.err.contains("next:"),
        "{done:?}"
    );
}

#[test]
fn doctor_says_when_nothing_would_be_staged() {
    let judged = |command: &mut Command| {
        let done = finish(command);
        assert_eq!(done.code(), Some(0), "{done:?}");
        json(&done)
    };
    let without_monitor = judged(&mut adit(["doctor", "--json", "/dev/shm"]));
    let script = format!(
        "ulimit -f 100000; {} doctor --json /dev/shm",
        env!("CARGO_BIN_EXE_adit")
    );
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).env("ADIT_LIB", library());
    for (report, advice) in [
        (without_monitor, "unset ADIT_NO_MONITOR"),
        (judged(&mut shell), "ulimit -f unlimited"),
    ] {
        let works = |mode: usize| report["promises"][mode]["works"].as_bool().unwrap();
        assert_eq!(
            [works(0), works(1), works(2), works(3)],
            [true, true, false, false]
        );
        let said = report["advice"].as_array().unwrap();
        assert!(
            said.iter().any(|a| a.as_str().unwrap().contains(advice)),
            "{said:?}"
        );
    }
}

/// Whether a mode works is its exit status, also where that of the others is another.
#[test]
fn doctor_judges_the_mode_that_it_is_asked_for() {
    let status = |dir: &str, mode: &str| finish(&mut adit(["doctor", "--mode", mode, dir])).code();
    // Nothing is staged without a monitor; what the kernel can keep it keeps.
    for (mode, kept) in [("posix", 0), ("sync", 0), ("atomic", 1), ("strict", 1)] {
        assert_eq!(status("/dev/shm", mode), Some(kept), "{mode}");
    }
    for (mode, kept) in [("posix", 1), ("strict", 1)] {
        assert_eq!(status("/proc", mode), Some(kept), "{mode}");
    }
}

#[test]
fn doctor_sees_a_limited_address_space() {
    let script = format!(
        "ulimit -v 8000000; {} doctor /dev/shm",
        env!("CARGO_BIN_EXE_adit")
    );
    let mut shell = Command::new("sh");
    let done = finish(shell.arg("-c").arg(script).env("ADIT_LIB", library()));
    assert_eq!(done.code(), Some(1), "{done:?}");
    assert!(done.out.contains("ulimit -v unlimited"), "{done:?}");
}

/// Ends what a test started, also when the test fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs until it gives something, or too long.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    while begun.elapsed() < limit() {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} did not happen within {:?}", limit());
}

fn has_python() -> bool {
    let found = Command::new("python3")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: python3 is not installed");
    }
    found
}

/// A program that reads and overwrites a file and stays until its input ends. It is written in
/// Python, the only interpreter here that makes positional calls; without it there is nothing to
/// look at.
fn reader(scratch: &Scratch) -> Option<(Ended, Value)> {
    if !has_python() {
        return None;
    }
    let file = scratch.file("data", &vec![7; 4 << 20], 0o600);
    let runtime = scratch.0.join("runtime");
    let program = "import os,sys\n\
                   fd = os.open(sys.argv[1], os.O_RDWR)\n\
                   for _ in range(4):\n    for at in range(0, 4 << 20, 65536): os.pread(fd, 65536, at)\n\
                   for at in range(0, 1 << 20, 4096): os.pwrite(fd, b'x' * 4096, at)\n\
                   sys.stdin.read()\n";
    let mut command = adit(["run", "--", "python3", "-c", program]);
    command
        .arg(&file)
        .env_remove("ADIT_NO_MONITOR")
        .env("ADIT_RUNTIME_DIR", &runtime);
    let child = Ended(command.stdin(Stdio::piped()).spawn().unwrap());
    let shown = eventually("an attached program with served reads", || {
        let done = finish(adit(["stat", "--json"]).env("ADIT_RUNTIME_DIR", &runtime));
        let listing = json(&done);
        let process = listing["processes"].as_array()?.first()?.clone();
        let counts = &process["files"].as_array()?.first()?["counts"];
        (counts["reads"].as_u64()? > 0).then_some(process)
    });
    Some((child, shown))
}

#[test]
fn stat_shows_an_attached_program_and_flush_waits_for_its_times() {
    let scratch = Scratch::new();
    let runtime = scratch.0.join("runtime");
    let Some((child, process)) = reader(&scratch) else {
        return;
    };
    assert_eq!(process["pid"].as_u64(), Some(u64::from(child.0.id())));
    assert!(
        process["files"][0]["path"]
            .as_str()
            .unwrap()
            .ends_with("data"),
        "{process}"
    );

    let file = scratch.0.join("data");
    let mut command = adit(["flush", "--json"]);
    let done = finish(command.arg(&file).env("ADIT_RUNTIME_DIR", &runtime));
    let flushed = &json(&done)[0];
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert_eq!(
        (&flushed["durable"], &flushed["times_current"]),
        (&true.into(), &true.into())
    );
    assert_eq!(flushed["users"][0].as_u64(), Some(u64::from(child.0.id())));

    let done = finish(adit(["stat"]).env("ADIT_RUNTIME_DIR", &runtime));
    assert!(
        done.out.contains("python3") && done.out.contains("data"),
        "{done:?}"
    );
    drop(child);
    eventually("the end of the attachment", || {
        let done = finish(adit(["stat", "--json"]).env("ADIT_RUNTIME_DIR", &runtime));
        json(&done)["processes"]
            .as_array()?
            .is_empty()
            .then_some(())
    });
}

/// With a monitor and a list of pools of its own, and files staged from the first write on.
fn with_places_of(scratch: &Scratch, mut command: Command) -> Command {
    command
        .env_remove("ADIT_NO_MONITOR")
        .env("ADIT_KERNEL_BLOCKS", "0")
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"));
    command
}

#[test]
fn flush_publishes_what_is_committed_and_leaves_the_program_the_rest() {
    if !has_python() {
        return;
    }
    let scratch = Scratch::new();
    let (file, done) = (scratch.0.join("data"), scratch.0.join("done"));
    let with_places = |command| with_places_of(&scratch, command);
    let program = "import os, sys\n\
                   fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n\
                   os.write(fd, b'c' * 5000); os.fsync(fd); os.write(fd, b'u' * 300)\n\
                   os.mkdir(sys.argv[2])\n\
                   sys.stdin.read()\n";
    let run = ["run", "--mode", "atomic", "--", "python3", "-c", program];
    let mut command = with_places(adit(run));
    command.arg(&file).arg(&done).stdin(Stdio::piped());
    let child = Ended(command.spawn().unwrap());
    eventually("all is written", || done.exists().then_some(()));

    let flushed = finish(with_places(adit(["flush", "--json"])).arg(&file));
    assert_eq!(flushed.code(), Some(0), "{flushed:?}");
    assert_eq!(json(&flushed)[0]["durable"], true, "{flushed:?}");
    // What is committed, and no more; the rest is still staged, so the program kept its lease.
    assert_eq!(file.metadata().unwrap().len(), 5000);
    let staged = staged_of(&finish(&mut with_places(adit(["stat", "--json"]))), &file);
    assert_eq!(staged.as_array().unwrap().len(), 1, "{staged}");
    assert_eq!(
        (&staged[0]["bytes"], &staged[0]["uncommitted"]),
        (&300.into(), &1.into())
    );
    // Either this has published it, or its age before.
    assert_eq!(staged[0]["publishes"], 1, "{staged}");

    // Killed, it loses nothing: that is the monitor's, or the next reader's, work.
    drop(child);
    eventually("everything is there", || {
        (file.metadata().unwrap().len() == 5300).then_some(())
    });
}

/// Whoever copies it next may not wait, as tar does: what is published whole is a file as any other until it is written.
#[test]
fn flush_gives_back_what_is_published_whole() {
    use std::os::unix::fs::OpenOptionsExt as _;
    if !has_python() {
        return;
    }
    let scratch = Scratch::new();
    let (file, done) = (scratch.0.join("data"), scratch.0.join("done"));
    let with_places = |command| with_places_of(&scratch, command);
    let program = "import os, sys\n\
                   fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n\
                   os.write(fd, b'c' * 5000); os.mkdir(sys.argv[2])\n\
                   sys.stdin.read(1)\n\
                   os.write(fd, b'm' * 300); os.mkdir(sys.argv[2] + '-more')\n\
                   sys.stdin.read()\n";
    let run = ["run", "--mode", "strict", "--", "python3", "-c", program];
    let mut command = with_places(adit(run));
    command.arg(&file).arg(&done).stdin(Stdio::piped());
    let mut child = Ended(command.spawn().unwrap());
    let without_waiting = || {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        options
            .open(&file)
            .map(|open| open.metadata().unwrap().len())
    };
    let staged = || staged_of(&finish(&mut with_places(adit(["stat", "--json"]))), &file);
    eventually("all is written", || done.exists().then_some(()));
    assert_eq!(staged().as_array().unwrap().len(), 1);
    let flushed = finish(with_places(adit(["flush"])).arg(&file));
    assert_eq!(flushed.code(), Some(0), "{flushed:?}");
    assert_eq!(without_waiting().unwrap(), 5000);
    assert_eq!(staged(), serde_json::json!([]));

    let input = child.0.stdin.as_mut().unwrap();
    std::io::Write::write_all(input, b"x").unwrap();
    let more = scratch.0.join("done-more");
    eventually("more is written", || more.exists().then_some(()));
    assert_eq!(staged().as_array().unwrap().len(), 1);
    assert!(without_waiting().is_err(), "it is staged again");
}

/// Nobody else does it then: neither what dead programs have left is in the file, nor what one writes that lives.
#[test]
fn flush_without_a_monitor_says_durable_of_nothing_that_is_in_a_pool() {
    flush_says_durable_of_nothing_that_is_in_a_pool(&Scratch::new());
}

/// Kills the monitor of a runtime directory and whoever would take over from it.
fn end_the_watch(runtime: &std::path::Path) {
    let monitor = monitor_of(runtime).expect("a monitor");
    let kill = |signal: &str, process: &str| {
        let killed = Command::new("kill").args([signal, process]).status();
        assert!(killed.unwrap().success(), "{signal} {process}");
    };
    kill("-STOP", &monitor.to_string());
    let tasks = std::fs::read_dir(format!("/proc/{monitor}/task")).unwrap();
    for task in tasks {
        let children = std::fs::read_to_string(task.unwrap().path().join("children"));
        for standby in children.unwrap_or_default().split_whitespace() {
            kill("-KILL", standby);
        }
    }
    kill("-KILL", &monitor.to_string());
    eventually("the end of the watch", || {
        monitor_of(runtime).is_none().then_some(())
    });
}

/// Nobody publishes for who opens the file then, and the kernel takes the lease from the program for who waits long enough.
/// What waits for its program's commit is nothing that could be durable.
#[test]
fn flush_without_a_monitor_leaves_a_living_program_its_lease() {
    use std::os::unix::fs::OpenOptionsExt as _;
    if !has_python() {
        return;
    }
    let program = "import os, sys\n\
                   fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n\
                   os.write(fd, b's' * 5000); os.mkdir(sys.argv[2])\n\
                   sys.stdin.read()\n";
    for (mode, status) in [("strict", 3), ("atomic", 0)] {
        let scratch = Scratch::new();
        let (file, done) = (scratch.0.join("data"), scratch.0.join("done"));
        let with_places = |command| with_places_of(&scratch, command);
        // One of its own: the next monitor that anybody starts for the usual one would go on with what is staged there.
        let pool = scratch.0.join("pool");
        let made = finish(with_places(adit(["pool", "create", "--size", "16M"])).arg(&pool));
        assert_eq!(made.code(), Some(0), "{made:?}");
        let run = ["run", "--mode", mode, "--", "python3", "-c", program];
        let mut command = with_places(adit(run));
        command.env("ADIT_PUBLISH_AFTER", "3600");
        command.env("ADIT_POOL", &pool);
        command.arg(&file).arg(&done).stdin(Stdio::piped());
        let mut child = Ended(command.spawn().unwrap());
        eventually("all is written", || done.exists().then_some(()));
        end_the_watch(&scratch.0.join("runtime"));
        let flushed = finish(with_places(adit(["flush"])).arg(&file));
        assert_eq!(flushed.code(), Some(status), "{mode}: {flushed:?}");
        let complained = flushed.err.contains("no monitor answers");
        assert_eq!(complained, status == 3, "{mode}: {flushed:?}");
        let mut options = std::fs::OpenOptions::new();
        let opened = options
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&file);
        assert!(opened.is_err(), "{mode}: the lease is the program's");
        drop(child.0.stdin.take());
        assert!(child.0.wait().unwrap().success());
        assert_eq!(file.metadata().unwrap().len(), 5000, "{mode}");
    }
}

/// So it is with a monitor that knows nothing of the file: a user may have several.
#[test]
fn flush_beside_a_monitor_says_durable_of_nothing_that_is_in_a_pool() {
    let scratch = Scratch::new();
    let begun = scratch.0.join("begun");
    let mut command = adit(["run", "--", "sh", "-c", "mkdir \"$0\"; exec sleep 60"]);
    command
        .env_remove("ADIT_NO_MONITOR")
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"));
    let _program = Ended(command.arg(&begun).spawn().unwrap());
    eventually("a program, and its monitor", || {
        begun.exists().then_some(())
    });
    flush_says_durable_of_nothing_that_is_in_a_pool(&scratch);
}

fn flush_says_durable_of_nothing_that_is_in_a_pool(scratch: &Scratch) {
    let pool = new_pool(scratch);
    let list = PoolList::at(&scratch.0.join("state/adit"));
    let uuid = *PoolFile::open(&pool).unwrap().pool().uuid();
    list.add(&uuid, &pool).unwrap();
    let [left, in_use] = ["left", "in use"].map(|name| scratch.file(name, b"base file", 0o600));
    let flush = |file| {
        let mut command = adit(["flush"]);
        command.env("XDG_STATE_HOME", scratch.0.join("state"));
        command.env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"));
        finish(command.arg(file))
    };
    stage_and_die(&pool, &left);
    let done = flush(&left);
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert!(std::fs::read(&left).unwrap() == expected(), "{done:?}");

    let living = stage(&pool, &in_use);
    let done = flush(&in_use);
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(done.err.contains("adit pool recover"), "{done:?}");
    assert_eq!(flush(&left).code(), Some(0), "another file's");
    drop(living);
    assert_eq!(flush(&in_use).code(), Some(0));
    assert!(std::fs::read(&in_use).unwrap() == expected());
}

/// Of two files in one program, one has a second user and cannot be staged: only that one has less than
/// its mode promises, and loses the mark when it is closed.
#[test]
fn stat_shows_which_files_have_a_weaker_promise() {
    if !has_python() {
        return;
    }
    let scratch = Scratch::new();
    let name = |name: &str| scratch.0.join(name);
    let with_places = |mut command: Command| {
        command
            .env_remove("ADIT_NO_MONITOR")
            // Staged from the first write on.
            .env("ADIT_KERNEL_BLOCKS", "0")
            .env("XDG_STATE_HOME", name("state"))
            .env("ADIT_RUNTIME_DIR", name("runtime"));
        command
    };
    std::fs::write(name("shared"), [b'-'; 1000]).unwrap();
    let second_user = std::fs::File::open(name("shared")).unwrap();
    let program = "import os, sys\n\
                   own, shared = (os.open(p, os.O_WRONLY | os.O_CREAT) for p in sys.argv[1:3])\n\
                   for i in range(400): os.write(own, b'o' * 500)\n\
                   os.write(shared, b's' * 500); os.write(shared, b's' * 500)\n\
                   os.mkdir(sys.argv[3]); sys.stdin.readline()\n\
                   os.close(shared)\n\
                   os.mkdir(sys.argv[4]); sys.stdin.read()\n";
    for (mode, shown) in [("atomic", true), ("strict", true), ("sync", false)] {
        let (first, second) = (name(&format!("{mode}1")), name(&format!("{mode}2")));
        let own = name(&format!("{mode}-own"));
        let run = ["run", "--mode", mode, "--", "python3", "-c", program];
        let mut command = with_places(adit(run));
        command.args([&own, &name("shared"), &first, &second]);
        let mut child = Ended(command.stdin(Stdio::piped()).spawn().unwrap());
        eventually("all is written", || first.exists().then_some(()));
        let seen = json(&finish(&mut with_places(adit(["stat", "--json"]))));
        let weaker = seen["weaker"].as_array().unwrap();
        assert_eq!(weaker.len(), usize::from(shown), "{mode}: {seen}");
        if let [file] = &weaker[..] {
            assert_eq!(file["path"], name("shared").to_str().unwrap());
            assert_eq!(file["mode"], mode);
            assert_eq!(file["passed"]["program"], 2, "{seen}");
            let table = finish(&mut with_places(adit(["stat"])));
            assert!(
                table.out.contains("file with a weaker promise"),
                "{table:?}"
            );
        }
        // What is served from the pool is counted, once it is worth it.
        // One that has just died is listed until the monitor has seen that.
        let mut all = seen["processes"].as_array().unwrap().iter();
        let its = all.find(|process| process["pid"] == child.0.id());
        let staged = its.expect("its line")["files"].as_array().unwrap();
        let staged = staged.iter().find(|file| file["promise"] == "staged");
        let staged = staged.expect("the file of its own");
        assert_eq!(staged["path"], own.to_str().unwrap());
        assert!(staged["counts"]["writes"].as_u64().unwrap() > 10, "{seen}");

        let stdin = child.0.stdin.as_mut().unwrap();
        std::io::Write::write_all(stdin, b"\n").unwrap();
        eventually("it is closed", || second.exists().then_some(()));
        let seen = json(&finish(&mut with_places(adit(["stat", "--json"]))));
        assert_eq!(seen["weaker"], serde_json::json!([]), "{seen}");
    }
    drop(second_user);
}

/// What goes to the kernel while the use of a file has not paid for more is no less the kernel's.
#[test]
fn stat_counts_what_the_kernel_does_before_a_file_is_staged() {
    if !has_python() {
        return;
    }
    if !scratch::is_tmpfs() {
        println!("skipped: it concerns tmpfs, where the first blocks of a file are the kernel's");
        return;
    }
    let scratch = Scratch::new();
    let (file, done) = (scratch.0.join("file"), scratch.0.join("done"));
    let program = "import os, sys\n\
                   fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n\
                   os.write(fd, bytes(1 << 20))\n\
                   for at in range(5000): os.pread(fd, 4096, at)\n\
                   os.mkdir(sys.argv[2]); sys.stdin.read()\n";
    let run = ["run", "--mode", "atomic", "--", "python3", "-c", program];
    let mut command = with_places_of(&scratch, adit(run));
    command.env_remove("ADIT_KERNEL_BLOCKS");
    command.args([&file, &done]).stdin(Stdio::piped());
    let child = Ended(command.spawn().unwrap());
    eventually("all is read", || done.exists().then_some(()));
    let seen = json(&finish(&mut with_places_of(
        &scratch,
        adit(["stat", "--json"]),
    )));
    let mut all = seen["processes"].as_array().unwrap().iter();
    let its = all.find(|process| process["pid"] == child.0.id());
    let counts = &its.expect("its line")["files"][0]["counts"];
    let of = |what: &Value| what.as_u64().unwrap_or(0);
    let (served, passed) = (&counts["reads"], &counts["passed"]["unmapped"]);
    // Up to so many are served before it is worth it to count them.
    let served = of(served) + 64;
    assert!(
        of(passed) > 100 && served > 1000 && served + of(passed) >= 5000,
        "{seen}"
    );
}

#[test]
fn stat_of_nothing_and_of_somebody_elses_directory() {
    let scratch = Scratch::new();
    let nowhere = scratch.0.join("nowhere");
    let done = finish(adit(["stat", "--json"]).env("ADIT_RUNTIME_DIR", &nowhere));
    assert_eq!(
        (
            done.code(),
            json(&done)["processes"].as_array().unwrap().len()
        ),
        (Some(0), 0)
    );
    // Open to other users: what it says cannot be trusted.
    let done = finish(adit(["stat", "--runtime-dir"]).arg("/tmp"));
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(done.err.contains("next:"), "{done:?}");
}

/// A full disk, or a reader that has gone, is told and is no crash; and it keeps no program from running.
#[test]
fn an_output_that_takes_nothing_is_an_error() {
    let scratch = Scratch::new();
    let full = || std::fs::File::options().write(true).open("/dev/full");
    let plain = scratch.file("plain", b"bytes", 0o600);
    let pool = new_pool(&scratch);
    let [plain, pool] = [&plain, &pool].map(|path| path.to_str().unwrap());
    for arguments in [
        vec!["pool", "dump", pool],
        vec!["pool", "check", "--json", pool],
        vec!["flush", plain],
        vec!["completions", "bash"],
        vec!["--help"],
        vec!["--version"],
    ] {
        let mut command = adit([]);
        command.args(&arguments).stdout(full().unwrap());
        let done = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(3), "{arguments:?}: {said}");
        assert_eq!(said, "adit: standard output: No space left on device\n");
        // Neither is what cannot be said.
        command.stderr(full().unwrap());
        assert_eq!(command.status().unwrap().code(), Some(3), "{arguments:?}");
    }
    let mut command = adit(["run", "--verbose", "sh", "-c", "exit 7"]);
    assert_eq!(
        command.stderr(full().unwrap()).status().unwrap().code(),
        Some(7)
    );
}

/// A file that got the number of a closed standard output would be written into. What is run has it closed.
#[test]
fn a_closed_standard_descriptor_becomes_no_files() {
    let scratch = Scratch::new();
    let closed = |command: Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"exec "$@" <&- >&- 2>&-"#, "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        let set = |(name, value): (_, Option<_>)| Some((name, value?));
        shell.envs(command.get_envs().filter_map(set));
        shell
    };
    let mut watch = adit(["stat", "--watch", "--runtime-dir"]);
    watch.arg(&scratch.0);
    std::fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o700)).unwrap();
    let child = Ended(closed(watch).spawn().unwrap());
    eventually("nothing is behind the three numbers", || {
        let fds = format!("/proc/{}/fd", child.0.id());
        let behind = |fd: &str| std::fs::read_link(format!("{fds}/{fd}"));
        let null = |fd: &str| behind(fd).is_ok_and(|is| is.as_os_str() == "/dev/null");
        ["0", "1", "2"].into_iter().all(null).then_some(())
    });
    let is_closed = "for fd in 0 1 2; do test ! -e /proc/$$/fd/$fd || exit 7; done";
    let run = adit(["run", "sh", "-c", is_closed]);
    assert_eq!(closed(run).status().unwrap().code(), Some(0));
}

#[test]
fn flush_of_what_cannot_be_flushed() {
    let scratch = Scratch::new();
    let done = finish(adit(["flush", "--json"]).arg(scratch.0.join("missing")));
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert_eq!(json(&done)[0]["durable"], false);
    assert_eq!(finish(&mut adit(["flush"])).code(), Some(2));
    let plain = scratch.file("plain", b"bytes", 0o600);
    assert_eq!(finish(adit(["flush"]).arg(plain)).code(), Some(0));
    // Of what is in it nothing would be published.
    let done = finish(adit(["flush"]).arg(&scratch.0));
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(done.err.contains("a directory"), "{done:?}");
    // JSON has no word for such a name, and the other files were flushed as well.
    let name = std::ffi::OsStr::from_bytes(b"l\xe4nger");
    std::fs::write(scratch.0.join(name), "bytes").unwrap();
    let done = finish(adit(["flush", "--json"]).arg(scratch.0.join(name)));
    assert_eq!(json(&done)[0]["durable"], true, "{done:?}");
}

/// Backups are made by others, who have another monitor or none: what a file's own publishes for them they wait for.
#[test]
fn flush_by_somebody_else_waits_for_the_monitor() {
    if !has_python() {
        return;
    }
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let (file, done) = (scratch.0.join("data"), scratch.0.join("done"));
    let program = "import os, sys\n\
                   fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n\
                   os.write(fd, b's' * 5000); os.mkdir(sys.argv[2])\n\
                   sys.stdin.read()\n";
    let run = ["run", "--mode", "strict", "--", "python3", "-c", program];
    let mut command = with_places_of(&scratch, adit(run));
    // Nothing is published by its age before.
    command.env("ADIT_PUBLISH_AFTER", "3600");
    command.arg(&file).arg(&done).stdin(Stdio::piped());
    let child = Ended(command.spawn().unwrap());
    eventually("all is written", || done.exists().then_some(()));
    assert_eq!(file.metadata().unwrap().len(), 0, "it is staged");
    let mut flush = adit(["flush"]);
    flush
        .env("XDG_STATE_HOME", elsewhere.0.join("state"))
        .env("ADIT_RUNTIME_DIR", elsewhere.0.join("runtime"));
    let flushed = finish(flush.arg(&file));
    assert_eq!(flushed.code(), Some(0), "{flushed:?}");
    assert_eq!(file.metadata().unwrap().len(), 5000);
    drop(child);
}

#[test]
fn bench_measures_nothing_without_the_library() {
    let done = finish(&mut adit(["bench-worker", "posix", "/dev/shm", "5"]));
    assert_eq!(
        (done.code(), done.out.trim()),
        (Some(1), "\"Inactive\""),
        "{done:?}"
    );
    let done = finish(&mut adit(["bench", "--rounds", "4"]));
    assert_eq!(done.code(), Some(2), "{done:?}");
    let done = finish(&mut adit(["bench", "--dir", "/no/such/place"]));
    assert_eq!(done.code(), Some(3), "{done:?}");
    let done = finish(&mut adit(["bench", "apps", "--only", "no such"]));
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(done.err.contains("choose from: sqlite"), "{done:?}");
    let done = finish(&mut adit(["bench", "posix", "--only", "redis"]));
    assert_eq!(done.code(), Some(2), "{done:?}");
    let done = finish(&mut adit(["bench", "--dir", "/proc"]));
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(done.err.contains("adit doctor /proc"), "{done:?}");
    for report in ["--json", "--html"] {
        let mut bench = adit(["bench", report, "/no/such/place/report"]);
        // Without the library it would end as well, but only after it had looked for what to measure.
        let done = finish(bench.env("ADIT_LIB", "/no/such/library"));
        assert!(
            done.code() == Some(3) && done.err.contains("/no/such/place/report cannot be written"),
            "{done:?}"
        );
    }
    let done = finish(adit(["bench"]).env("ADIT_LIB", "/no/such/library"));
    assert_eq!((done.code(), done.out.as_str()), (Some(3), ""), "{done:?}");
}

#[test]
fn bench_of_programs_names_what_is_missing_and_leaves_nothing() {
    let (scratch, places) = (Scratch::new(), Scratch::new());
    let bench = |runtime: &str| {
        let mut command = adit(["bench", "apps", "--rounds", "5", "--dir"]);
        command
            .arg(&scratch.0)
            .env("PATH", "/no/such/place")
            .env("XDG_STATE_HOME", places.0.join("state"))
            .env("ADIT_RUNTIME_DIR", places.0.join(runtime));
        command
    };
    // Without a monitor nothing is staged, so the kernel would be compared with itself.
    let done = finish(&mut bench("none"));
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(done.err.contains("stages no file"), "{done:?}");
    let done = finish(bench("runtime").env_remove("ADIT_NO_MONITOR"));
    assert_eq!(done.code(), Some(3), "{done:?}");
    for package in ["sqlite3", "g++", "redis-server"] {
        assert!(
            done.out.contains(&format!("package {package} is missing")),
            "{done:?}"
        );
    }
    assert!(done.err.contains("nothing was measured"), "{done:?}");
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
}

/// A server or a directory that outlives a measurement is somebody else's trouble, and so is what a demo has started.
#[test]
fn a_killed_bench_or_demo_leaves_nothing() {
    for (command, file) in [
        (&["bench", "apps"][..], None),
        (&["bench", "posix"], None),
        (&["demo", "--only", "bash", "--rounds", "99"], Some("work")),
    ] {
        let (scratch, places) = (Scratch::new(), Scratch::new());
        let mut killed = adit([]);
        killed
            .args(command)
            .arg("--dir")
            .arg(&scratch.0)
            .env_remove("ADIT_NO_MONITOR")
            .env("XDG_STATE_HOME", places.0.join("state"))
            .env("ADIT_RUNTIME_DIR", places.0.join("runtime"))
            .stdout(Stdio::null())
            .process_group(0);
        let mut child = Ended(killed.spawn().unwrap());
        let entries = || std::fs::read_dir(&scratch.0).unwrap();
        let is_at_it = || match file {
            None => entries().count() > 0,
            Some(name) => entries()
                .flatten()
                .any(|room| room.path().join(name).exists()),
        };
        eventually("a directory", || is_at_it().then_some(()));
        // As a terminal does it: all that it has started for itself alone.
        let group = rustix::process::Pid::from_raw(child.0.id() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        child.0.wait().unwrap();
        eventually("nothing left", || (entries().count() == 0).then_some(()));
        let ours = scratch.0.to_str().unwrap().to_owned();
        eventually("nobody left", || nobody_works_in(&ours).then_some(()));
    }
}

fn nobody_works_in(dir: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let works = |process: std::fs::DirEntry| {
        let at = std::fs::read_link(process.path().join("cwd"));
        at.is_ok_and(|at| at.to_string_lossy().starts_with(dir))
    };
    !all.into_iter().any(works)
}

#[test]
fn bench_and_demo_refuse_a_library_that_does_not_serve() {
    // Any other library can be preloaded, too, but does nothing for the program.
    let other = "/lib/x86_64-linux-gnu/libdl.so.2";
    if !std::path::Path::new(other).exists() {
        return;
    }
    for command in ["bench", "demo"] {
        let done = finish(adit([command]).env("ADIT_LIB", other));
        assert_eq!(done.code(), Some(3), "{done:?}");
        assert!(done.err.contains("nothing to compare"), "{done:?}");
    }
}

/// Where nothing is staged, as without a monitor, the kernel would be compared with itself; and settings are the user's,
/// wherever the cases run.
#[test]
fn demo_compares_what_is_staged_whatever_the_settings_are_relative_to() {
    let scratch = Scratch::new();
    let demo = |runtime: &str| {
        let mut command = adit([
            "demo", "--mode", "strict", "--only", "bash", "--rounds", "1", "--dir", ".",
        ]);
        command.current_dir(&scratch.0);
        command.env("ADIT_RUNTIME_DIR", runtime);
        command.env("XDG_STATE_HOME", scratch.0.join("state"));
        command
    };
    let done = finish(demo("none").env("ADIT_NO_MONITOR", "1"));
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(done.err.contains("stages no file"), "{done:?}");
    let done = finish(demo("runtime").env_remove("ADIT_NO_MONITOR"));
    assert_eq!(done.code(), Some(0), "{done:?}");
}

/// Minutes of measuring are not lost where nobody reads what is printed.
#[test]
fn a_report_is_written_before_it_is_printed() {
    let scratch = Scratch::new();
    let file = scratch.0.join("report.json");
    let mut command = adit(["bench", "apps", "--only", "redis", "--rounds", "5", "--dir"]);
    command.arg(&scratch.0).arg("--json").arg(&file);
    // No program is found, which is quick, and in the report.
    let full = std::fs::File::create("/dev/full").unwrap();
    command
        .env("PATH", "/nowhere")
        .stdout(full)
        .env_remove("ADIT_NO_MONITOR");
    command.env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"));
    command.env("XDG_STATE_HOME", scratch.0.join("state"));
    let status = command.stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(3));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(report[0]["skipped"].is_array(), "{report}");
}

/// Names that are not text are in a report as far as they can be, and in what is to be typed as a shell takes them.
#[test]
fn odd_names_are_told() {
    let scratch = Scratch::new();
    let odd = scratch.0.join(std::ffi::OsStr::from_bytes(b"l\xe4nger"));
    std::fs::create_dir(&odd).unwrap();
    let library = odd.join("libadit.so");
    std::fs::write(&library, b"").unwrap();
    let mut command = adit(["doctor", "--json"]);
    let done = finish(command.arg(&scratch.0).env("ADIT_LIB", &library));
    let named = json(&done)["library"].as_str().unwrap().to_owned();
    assert!(named.ends_with("nger/libadit.so"), "{done:?}");
    let mut command = adit(["run", "--pool"]);
    let done = finish(command.arg(&odd).arg("true"));
    assert!(done.err.contains(r"adit pool create $'"), "{done:?}");
    assert!(done.err.contains(r"/l\xe4nger/pool'"), "{done:?}");
}

#[test]
fn demo_runs_a_case_and_says_what_is_the_same() {
    for mode in ["posix", "strict"] {
        // On a disk, as a rule, where a pool is entered in its user's list.
        let scratch = Scratch::beside(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
        let mut command = adit(["demo", "--json", "--only", "bash", "--limit", "25"]);
        command.args(["--mode", mode, "--dir"]).arg(&scratch.0);
        command.env_remove("ADIT_NO_MONITOR");
        command.env("ADIT_KERNEL_BLOCKS", "0");
        command.env("ADIT_RUNTIME_DIR", scratch.0.join("runtime"));
        let done = finish(&mut command);
        let rows = json(&done);
        assert_eq!(
            (done.code(), &rows[0]["verdict"]),
            (Some(0), &"same".into()),
            "{mode}: {done:?}"
        );
    }
    let done = finish(&mut adit(["demo", "--only", "no such case"]));
    assert!(
        done.code() == Some(3) && done.err.contains("choose from"),
        "{done:?}"
    );
}

#[test]
fn pages_and_completions_are_generated() {
    let scratch = Scratch::new();
    let done = finish(adit(["man"]).arg(&scratch.0));
    assert_eq!(done.code(), Some(0), "{done:?}");
    let page = std::fs::read_to_string(scratch.0.join("adit-run.1")).unwrap();
    assert!(
        page.contains("ADIT\\_MODE") || page.contains("ADIT_MODE"),
        "{page}"
    );
    assert!(scratch.0.join("adit.1").is_file());
    for shell in ["bash", "zsh", "fish"] {
        let done = finish(&mut adit(["completions", shell]));
        assert!(
            done.code() == Some(0) && done.out.contains("doctor"),
            "{shell}"
        );
    }
}
