//! Files that their programs have closed and left to the monitor. The programs live on.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use super::super::client;
use super::leases::{WRITTEN, both, is_leased, kill, len, opener, patiently, seen_by, staging};
use super::*;
use crate::testing::{alone, eventually, open_rw};

/// A program that has staged bytes of a file and left it, and closed it.
fn left(scratch: &Scratch, mode: &str) -> (Helper, PathBuf, Vec<u8>) {
    let path = scratch.path("data");
    let all = [std::fs::read(&path).expect("read"), WRITTEN.to_vec()].concat();
    let mut program = staging(scratch, mode, "data");
    // In mode `atomic` nothing but the monitor commits it.
    program.ask("append", "appended");
    program.ask("leave", "left");
    program.ask("close", "closed");
    (program, path, all)
}

/// Whether a process has the file open, the one that asks but once.
fn is_open(path: &Path) -> bool {
    // Whoever another test is starting would have a copy.
    let _alone = alone();
    let file = open_rw(path);
    // SAFETY: integers only; the lease ends with the description.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) != 0 }
}

#[test]
fn what_a_program_has_closed_is_in_the_file_when_somebody_has_waited_for_it() {
    for mode in ["atomic", "sync"] {
        let scratch = Scratch::new();
        scratch.runtime();
        scratch.old_file("data");
        let _monitor = monitor(&scratch);
        let (mut program, path, all) = left(&scratch, mode);
        program.ask("wait", "waited");
        assert_eq!(len(&path), all.len(), "mode {mode}");
        assert!(!is_open(&path), "mode {mode}");
        assert!(std::fs::read(&path).expect("read") == all, "mode {mode}");
        // There is nothing more to wait for.
        program.ask("wait", "waited");
    }
}

#[test]
fn who_opens_or_waits_for_what_was_closed_sees_all_of_it() {
    let scratch = Scratch::new();
    scratch.runtime();
    scratch.old_file("data");
    let _monitor = monitor_with(&scratch, &[("T_BURIES_SLOWLY", Path::new("1"))]);
    let (mut program, path, all) = left(&scratch, "atomic");
    let begun = || scratch.path("burying").exists();
    eventually("it is begun at once", begun);
    assert!(is_leased(&path) && len(&path) < all.len());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| program.ask("wait", "waited"));
        let opener = opener(&path);
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished() && len(&path) < all.len());
        std::fs::write(scratch.path("bury"), "").expect("write");
        waits.join().expect("waits");
        assert_eq!(len(&path), all.len());
        assert!(seen_by(opener) == all);
    });
}

/// Nobody opens it, and its program lives.
#[test]
fn a_standby_goes_on_with_what_was_closed() {
    let scratch = Scratch::new();
    scratch.runtime();
    scratch.old_file("data");
    let arguments = ["T_BURIES_SLOWLY", "T_STANDBY"].map(|name| (name, Path::new("1")));
    let _monitor = monitor_with(&scratch, &arguments);
    let (mut program, path, all) = left(&scratch, "atomic");
    eventually("it is begun", || scratch.path("burying").exists());
    let (monitor, _) = both(&scratch);
    kill(monitor);
    assert!(len(&path) < all.len());
    std::fs::write(scratch.path("bury"), "").expect("write");
    eventually("it is published", || len(&path) == all.len());
    program.ask("wait", "waited");
    eventually("nobody has it", || !is_open(&path));
    assert!(std::fs::read(&path).expect("read") == all);
}

/// Who has closed nothing waits for nobody's files.
#[test]
fn nobody_waits_for_what_others_have_closed() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    scratch.old_file("data");
    let _monitor = monitor_with(&scratch, &[("T_BURIES_SLOWLY", Path::new("1"))]);
    let (_program, path, all) = left(&scratch, "atomic");
    patiently(|| client::wait_for_closed(&dir)).expect("an answer");
    assert!(len(&path) < all.len());
    std::fs::write(scratch.path("bury"), "").expect("write");
    eventually("it is published", || len(&path) == all.len());
}

/// A program that was killed then has left it all the same.
#[test]
fn what_was_closed_by_a_program_that_dies_is_published() {
    let scratch = Scratch::new();
    scratch.runtime();
    scratch.old_file("data");
    let _monitor = monitor_with(&scratch, &[("T_BURIES_SLOWLY", Path::new("1"))]);
    let (mut program, path, all) = left(&scratch, "atomic");
    program.kill();
    std::fs::write(scratch.path("bury"), "").expect("write");
    eventually("it is published", || len(&path) == all.len());
    assert!(std::fs::read(&path).expect("read") == all);
}
