//! Who has a file open, and who only leads to it.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::super::open::{is_open_elsewhere, started};
use super::*;
use crate::testing::{argument, eventually, is_helper, listen, say};

/// What this one has open itself does not count.
#[test]
#[ignore = "a helper process of the tests"]
fn helper_looks() {
    if !is_helper() {
        return;
    }
    let path = argument("T_FILE");
    let id = std::fs::metadata(&path).expect("metadata");
    let id = (id.dev(), id.ino());
    let _own = File::open(&path).expect("open");
    let since = argument("T_SINCE")
        .to_str()
        .and_then(|since| since.parse().ok());
    let looks = || is_open_elsewhere(id, since.expect("a time"));
    loop {
        let expected = listen() == "open";
        eventually("expected", || looks() == expected);
        say("seen");
    }
}

/// Has the file open in one way at a time.
#[test]
#[ignore = "a helper process of the tests"]
fn helper_opens() {
    if !is_helper() {
        return;
    }
    let path = argument("T_FILE");
    loop {
        let how = listen();
        let opened = (how == "opens").then(|| File::open(&path).expect("open"));
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let name = path.as_os_str().as_encoded_bytes();
        let leads = (how == "leads there")
            .then(|| rustix::fs::open(name, flags, rustix::fs::Mode::empty()).expect("open"));
        std::thread::scope(|scope| {
            let ((opened, is_open), (end, ended)) = (channel(), channel());
            if how == "has its own table" {
                let path = &path;
                scope.spawn(move || with_its_own_table(path, &opened, &ended));
                is_open.recv().expect("it opens");
            }
            say("done");
            listen();
            drop(end);
        });
        drop((opened, leads));
        say("closed");
    }
}

/// A thread that has a file open in a table of descriptors of its own, until it is told to end.
fn with_its_own_table(path: &Path, opened: &Sender<()>, end: &Receiver<()>) {
    // SAFETY: this thread uses no descriptor of the others from here on.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
    let file = File::open(path).expect("open");
    opened.send(()).expect("the test waits");
    let _ = end.recv();
    drop(file);
}

#[test]
fn a_file_is_open_in_whatever_table_of_descriptors() {
    let scratch = Scratch::new();
    let path = scratch.old_file("data");
    // What was started before is not looked into where that is forbidden.
    let since = started(std::process::id() as i32).expect("known");
    assert!(started(1).is_some_and(|first| first < since));
    let since = since.to_string();
    let arguments = [("T_FILE", path.as_path()), ("T_SINCE", Path::new(&since))];
    let helper = |name: &str| Helper::start(&format!("monitor::tests::open::{name}"), &arguments);
    let (mut looker, mut opener) = (helper("helper_looks"), helper("helper_opens"));
    for (how, seen) in [
        ("does nothing", "closed"),
        ("opens", "open"),
        ("leads there", "closed"),
        ("has its own table", "open"),
    ] {
        opener.ask(how, "done");
        looker.ask(seen, "seen");
        opener.ask("close", "closed");
        looker.ask("closed", "seen");
    }
    opener.ask("opens", "done");
    looker.ask("open", "seen");
    // It is not waited for yet: there is nothing left of it that anybody may see.
    opener.signal(rustix::process::Signal::KILL);
    looker.ask("closed", "seen");
}
