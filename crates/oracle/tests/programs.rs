//! Every program in `c/` runs plainly and with `libadit.so` preloaded, in twin directories on tmpfs
//! and on a disk. Output, exit status and all files must be the same.
//!
//! `ADIT_LIB` names the library; without it the one of this workspace is built. Programs use only
//! relative names and print nothing that may differ between two plain runs.
// Tests start programs and compare files: that is what the standard library is for.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use common::{Outcome, compile, library, run, scratch};
use std::path::Path;
use std::process::Command;

/// Runs a program in all its settings and compares each with the plain run on the same medium.
fn twin(name: &str) {
    let preload = library();
    let Some(program) = compile(name) else { return };
    let mount: Vec<(String, String)> = common::wants_mount(name)
        .map(|o| (common::MOUNT.to_string(), o))
        .into_iter()
        .collect();
    if !mount.is_empty() && !common::may_mount() {
        common::skip("nothing may be mounted");
        return;
    }
    let all = &[
        &[("ADIT_ADOPT_BYTES", "0")][..],
        &[][..],
        &[("ADIT_MODE", "strict")][..],
        &[("ADIT_MODE", "atomic")][..],
    ][..];
    let second = common::second().map(|disk| (disk, &all[..1]));
    for (medium, settings) in [Some((common::first(), all)), second].into_iter().flatten() {
        let dir = scratch(&medium, name);
        let plain = run(&program, &dir, "plain", &mount);
        if let Some(reason) = plain.skipped() {
            common::skip(reason);
        }
        let streams = common::wants_streams(name);
        let settings = settings
            .iter()
            .flat_map(|extra| {
                let always = &[("ADIT_STDIO", "1"), ("ADIT_ADOPT_PERCENT", "0")][..];
                let served = [extra, always].concat();
                [extra.to_vec(), served]
            })
            .enumerate()
            .filter(|(i, _)| streams || i % 2 == 0);
        for (i, extra) in settings {
            let mode = extra.iter().find(|(key, _)| *key == "ADIT_MODE");
            if mode.is_some_and(|(_, mode)| !common::judges(name, mode)) {
                continue;
            }
            let mut env = common::preloaded(&preload, &extra);
            env.extend(mount.iter().cloned());
            // What is staged needs the monitor.
            if common::wants_monitor(name) || mode.is_some() {
                env.retain(|(k, _)| k != "LD_PRELOAD");
                env.push((common::RUNNER.into(), String::new()));
            }
            let adit = run(&program, &dir, &format!("adit{i}"), &env);
            same(
                &plain,
                &adit,
                &format!("{name} on {} with {extra:?}", medium.display()),
            );
        }
        common::remove(&dir);
    }
}

#[track_caller]
fn same(plain: &Outcome, adit: &Outcome, what: &str) {
    if let Some(difference) = plain.difference(adit) {
        panic!("{what}: {difference}");
    }
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test] fn $name() { twin(stringify!($name)); })*
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

programs! {
    open_family close_family dup_family fcntl_family read_family write_family seek_family
    truncate_family sync_family stat_family stdio_family stdio_names stdio_random stdio_errors stdio_threads iostreams mmap_family copy_family fork_exec names
    lock_family aio_family uring passing times_family exit_family signals blocked interrupted jumps
    cancel identity limits many_files sparse syscall2 notified text_busy directories foreign threads
    plain full old_names privileges reused_numbers after_writes libaio by_other_doors
    times_numbers sync_numbers names_numbers limits_numbers copy_numbers identity_numbers
    privileges_numbers
}

#[test]
fn every_program_is_run() {
    let special = ["bad_slots", "early", "deviations"];
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the programs").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "c" || e == "cc") {
            found.push(
                path.file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }
    found.sort();
    let mut known: Vec<String> = NAMES
        .iter()
        .chain(&special)
        .map(|n| (*n).to_string())
        .collect();
    known.sort();
    assert_eq!(found, known);
}

/// Other libraries are preloaded too: before ours, and after.
#[test]
fn preloaded_with_others() {
    let (lib, early, plain) = (library(), compile("early"), compile("plain"));
    let (Some(early), Some(plain)) = (early, plain) else {
        return;
    };
    let mut others = vec![early];
    for name in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        match common::system_library(name) {
            Some(path) => others.push(path),
            None => common::skip(&format!("{name} is not installed")),
        }
    }
    for (i, other) in others.iter().enumerate() {
        let dir = scratch(&common::first(), &format!("others{i}"));
        let alone = [("LD_PRELOAD".to_string(), other.display().to_string())];
        let expected = run(&plain, &dir, "plain", &alone);
        for (side, list) in [
            ("first", format!("{} {}", lib.display(), other.display())),
            ("last", format!("{}:{}", other.display(), lib.display())),
        ] {
            let mut env = common::preloaded(&lib, &[("ADIT_ADOPT_BYTES", "0")]);
            env.retain(|(k, _)| k != "LD_PRELOAD");
            env.push(("LD_PRELOAD".into(), list));
            let got = run(&plain, &dir, side, &env);
            same(&expected, &got, &format!("{} {side}", other.display()));
        }
        common::remove(&dir);
    }
}

/// A stream that loses a byte must not go unnoticed; and slots that are not libc's are not touched, so
/// under Adit the same byte is lost.
#[test]
fn lost_bytes_of_streams_are_found() {
    let (Some(bad), Some(random)) = (compile("bad_slots"), compile("stdio_random")) else {
        return;
    };
    let dir = scratch(&common::first(), "bad_slots");
    let alone = [("LD_PRELOAD".to_string(), bad.display().to_string())];
    let good = run(&random, &dir, "good", &[]);
    let lost = run(&random, &dir, "lost", &alone);
    assert!(good.difference(&lost).is_some(), "it went unnoticed");
    let lib = library();
    let mut env = common::preloaded(&lib, &[("ADIT_ADOPT_BYTES", "0"), ("ADIT_STDIO", "1")]);
    env.retain(|(k, _)| k != "LD_PRELOAD");
    let both = format!("{} {}", lib.display(), bad.display());
    env.push(("LD_PRELOAD".into(), both));
    same(&lost, &run(&random, &dir, "both", &env), "bad slots");
    common::remove(&dir);
}

/// What a run of `deviations` says: of each line whether it is a deviation, and whether it holds.
fn statements(run: &Outcome) -> Vec<(bool, bool)> {
    let lines = run.output().lines();
    let said = lines.filter(|line| line.ends_with(": yes") || line.ends_with(": NO"));
    said.map(|line| (line.starts_with("deviates: "), line.ends_with(": yes")))
        .collect()
}

/// What the two runs of `deviations` must not say: the kernel does what deviates, Adit does not, and both keep the rest.
fn wrong(plain: &Outcome, adit: &Outcome) -> bool {
    let (plain, adit) = (statements(plain), statements(adit));
    let as_stated = |&(deviates, holds): &(bool, bool)| holds != deviates;
    let deviate = plain.iter().filter(|(deviates, _)| *deviates).count();
    deviate < 10
        || plain.len() != adit.len()
        || !plain.iter().all(|(_, holds)| *holds)
        || !adit.iter().all(as_stated)
}

/// What `docs/posix.md` states as a deviation of served files is what happens, and what it promises besides is kept. Where
/// nothing deviates that is found.
#[test]
fn deviations_are_as_stated() {
    let Some(program) = compile("deviations") else {
        return;
    };
    let dir = scratch(&common::first(), "deviations");
    let plain = run(&program, &dir, "plain", &[]);
    if let Some(reason) = plain.skipped() {
        common::skip(reason);
        return common::remove(&dir);
    }
    let env = common::preloaded(&library(), &[("ADIT_ADOPT_BYTES", "0")]);
    let adit = run(&program, &dir, "adit", &env);
    let (plain_said, adit_said) = (plain.output(), adit.output());
    assert!(
        !wrong(&plain, &adit),
        "plain:\n{plain_said}adit:\n{adit_said}"
    );
    assert!(wrong(&plain, &plain) && wrong(&adit, &adit));
    common::remove(&dir);
}

/// Without ADIT_MODE the library must be inert, whatever else is set.
#[test]
fn inert_without_a_mode() {
    let Some(plain) = compile("plain") else {
        return;
    };
    let dir = scratch(&common::first(), "inert");
    let expected = run(&plain, &dir, "plain", &[]);
    let mut env = common::preloaded(&library(), &[("ADIT_ADOPT_BYTES", "0")]);
    env.retain(|(k, _)| k != "ADIT_MODE");
    same(&expected, &run(&plain, &dir, "inert", &env), "inert");
    common::remove(&dir);
}

/// The comparison itself must be able to fail, in each of its parts.
#[test]
fn differences_are_found() {
    let dir = scratch(&common::first(), "differences");
    let shell = |name: &str, script: &str| {
        let program = dir.join(format!("{name}.sh"));
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
        common::make_executable(&program);
        run(&program, &dir, name, &[])
    };
    let good = shell("good", "echo out; echo file >f; exit 3");
    assert!(
        good.difference(&shell("again", "echo out; echo file >f; exit 3"))
            .is_none()
    );
    for (name, script) in [
        ("output", "echo other; echo file >f; exit 3"),
        ("status", "echo out; echo file >f; exit 4"),
        ("contents", "echo out; echo fill >f; exit 3"),
        ("missing", "echo out; exit 3"),
        ("surplus", "echo out; echo file >f; echo >g; exit 3"),
        ("mode", "echo out; echo file >f; chmod 600 f; exit 3"),
        ("signal", "echo out; echo file >f; kill -9 $$"),
    ] {
        assert!(
            good.difference(&shell(name, script)).is_some(),
            "{name} went unnoticed"
        );
    }
    common::remove(&dir);
}

#[test]
#[ignore = "a helper process of the test below"]
fn helper_skips() {
    if let Ok(reason) = std::env::var("T_SKIPS") {
        common::skip(&reason);
    }
}

/// What is missing on a machine is a failure in continuous integration, and told elsewhere; also what a program says.
#[test]
fn what_is_skipped_is_found() {
    let dir = scratch(&common::first(), "skipped");
    let program = dir.join("skips.sh");
    let script = "#!/bin/sh\necho before\necho SKIP there is no ring\n";
    std::fs::write(&program, script).expect("a script");
    common::make_executable(&program);
    let outcome = run(&program, &dir, "skips", &[]);
    assert_eq!(outcome.skipped(), Some("there is no ring"));
    common::remove(&dir);
    let passes = |integration: &str, reason: &str| {
        let mut helper = Command::new(std::env::current_exe().expect("this program"));
        helper.args(["--ignored", "--exact", "helper_skips", "--nocapture"]);
        let said = helper
            .env("T_SKIPS", reason)
            .env("CI", integration)
            .output();
        let said = said.expect("it starts");
        let told = String::from_utf8_lossy(&said.stdout);
        assert!(told.contains(&format!("skipped: {reason}\n")), "{told}");
        said.status.success()
    };
    assert!(passes("", "there is no ring"));
    assert!(!passes("true", "there is no ring"));
    assert!(passes("true", "it concerns another medium"));
}
