//! What users may set of the engine: how large a pool is made, how much log a program has.

use super::*;

/// Writes that are logged, each for itself, in more chunks of the log than a program with little has.
const WRITES: usize = 150_000;
/// Bytes of each.
const LEN: usize = 64;

/// The chunks of the pool's logs now.
fn chunks_of_log(place: &Place) -> u64 {
    let (_, adit) = built().expect("what runs already");
    let mut info = Command::new(&adit);
    let info = info.args(["pool", "info", "--json"]).arg(place.pool());
    let info = info.output().expect("adit pool info").stdout;
    let info = String::from_utf8_lossy(&info);
    let (_, log) = info.split_once("\"Log\": ").unwrap_or_default();
    let digits = log.split(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap_or_default().parse().unwrap_or(0)
}

/// The most chunks that the pool's logs ever have while a program writes.
fn most_of_log(place: &Place, program: &Path, words: &str) -> u64 {
    let mut command = place.command(program, Some(words));
    let counts = [WRITES, LEN].map(|count| count.to_string());
    let program = command.arg(place.file()).args(counts);
    let mut program = program.spawn().expect("timeout(1)");
    let mut most = 0;
    let ended = loop {
        if let Some(ended) = program.try_wait().expect("wait") {
            break ended;
        }
        most = most.max(chunks_of_log(place));
    };
    assert!(ended.success(), "{words}: {ended}");
    let written = fs::metadata(place.file()).expect("the file").len();
    assert_eq!(written, (WRITES * LEN) as u64, "{words}");
    most
}

#[test]
fn a_program_logs_as_much_as_it_may() {
    if !scratch::is_memory() {
        println!("skipped: it concerns memory, where so many writes wait for no disk");
        return;
    }
    let Some(mut place) = Place::new("log-size") else {
        return;
    };
    // What is published meanwhile takes no log.
    place.end_monitor();
    place.monitor = Place::watch_and_publish(&place.dir, "run", None, "3600").expect("a monitor");
    let program = place.compile("writes");
    let plenty = most_of_log(&place, &program, "strict");
    assert!(plenty > 3, "{plenty} chunks");
    let little = most_of_log(&place, &program, "strict ADIT_LOG_SIZE=4194304");
    assert!((1..=3).contains(&little), "{little} chunks");
}

/// In mode `atomic` a log that is never synced is committed when there is no room for more of it, as no transaction is,
/// whether it is opened with `O_APPEND` or only written at its end. Where the user wants an error it is one.
#[test]
fn a_log_that_nobody_syncs_is_no_transaction() {
    if !scratch::is_memory() {
        println!("skipped: it concerns memory, where so many writes wait for no disk");
        return;
    }
    let Some(place) = Place::new("endless-log") else {
        return;
    };
    let program = place.compile("writes");
    for (words, kind, ended, written) in [
        ("atomic", "log", 0, WRITES),
        ("atomic", "synced", 28, 0),
        ("atomic", "grouped", 28, 0),
        ("atomic", "grown", 0, WRITES),
        ("atomic", "changed", 28, 0),
        ("atomic ADIT_REQUIRE=1", "log", 28, 0),
        ("strict", "synced", 0, WRITES),
    ] {
        let words = format!("{words} ADIT_LOG_SIZE=4194304");
        let mut command = place.command(&program, Some(&words));
        let counts = [WRITES, LEN].map(|count| count.to_string());
        let status = command.arg(place.file()).args(counts).arg(kind).status();
        let status = status.expect("timeout(1)").code();
        assert_eq!(status, Some(ended), "{words} {kind}");
        let len = || fs::metadata(place.file()).expect("the file").len();
        if written > 0 {
            assert_eq!(len(), (written * LEN) as u64, "{words} {kind}");
        } else {
            // What was acknowledged is there, though nothing was committed.
            wait_for("what was written", || len() > (WRITES * LEN / 10) as u64);
        }
    }
}

/// Nor does a commit make room on a file system that is full: the program is told so, as by the kernel. It was committed
/// again and again, and the call came back when the monitor had published it.
#[test]
fn a_log_on_a_full_file_system_ends_with_an_error() {
    if !scratch::is_memory() {
        println!(
            "skipped: it concerns memory, where the blocks are reserved ahead by a call that can be told to fail"
        );
        return;
    }
    if !has_strace() {
        return;
    }
    let Some(mut place) = Place::new("full-log") else {
        return;
    };
    place.end_monitor();
    place.monitor = Place::watch_and_publish(&place.dir, "run", None, "3600").expect("a monitor");
    let program = place.compile("writes");
    let full = "fstatfs,fallocate:error=ENOSPC:when=8+";
    let mut command = place.for_the_file_alone(&place.traced(&program, "atomic", Some(full)));
    let counts = [200, 128 << 10].map(|count: usize| count.to_string());
    let status = command.arg(place.file()).args(counts).arg("log").status();
    assert_eq!(status.expect("timeout(1)").code(), Some(28));
    assert!(place.trace().contains("(INJECTED)"));
}

#[test]
fn a_pool_is_made_as_large_as_it_was_asked_for() {
    if !scratch::is_tmpfs() {
        println!("skipped: it concerns pools that are made where nobody else has one");
        return;
    }
    let Some(place) = Place::new("pool-size") else {
        return;
    };
    let program = place.compile("writes");
    let mut command = place.command(&program, Some("strict ADIT_POOL_SIZE=25165824"));
    let written = command.arg(place.file()).args(["4", "4096"]).status();
    assert!(written.expect("timeout(1)").success());
    let pool = fs::metadata(place.pool()).expect("the pool");
    assert_eq!(pool.len(), 24 << 20);
}
