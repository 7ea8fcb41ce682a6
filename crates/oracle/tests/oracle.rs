//! The oracle itself: without Adit it always agrees, with damage planted it never does, and with
//! `libadit.so` preloaded it agrees again, having been served.
// Tests start programs: that is what the standard library is for.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn oracle(dir: &Path, args: &[&str], env: &[(String, String)]) -> Output {
    let mut c = Command::new("timeout");
    c.args(["-k", "2", "60", "env"]);
    c.args(env.iter().map(|(k, v)| format!("{k}={v}")));
    c.arg(env!("CARGO_BIN_EXE_adit-oracle"))
        .arg("--dir")
        .arg(dir)
        .args(args);
    for key in [
        "LD_PRELOAD",
        "ADIT_MODE",
        "ADIT_ADOPT_BYTES",
        "ADIT_ADOPT_PERCENT",
    ] {
        c.env_remove(key);
    }
    let runtime = dir.join("runtime");
    std::fs::create_dir_all(&runtime).expect("a runtime directory");
    c.env("ADIT_RUNTIME_DIR", runtime)
        .output()
        .expect("timeout(1)")
}

#[track_caller]
fn agrees(dir: &Path, args: &[&str], env: &[(String, String)]) {
    let said = oracle(dir, args, env);
    assert!(
        said.status.success(),
        "{args:?} on {}: {}\n{}{}",
        dir.display(),
        said.status,
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
}

fn media() -> Vec<PathBuf> {
    [Some(common::first()), common::second()]
        .into_iter()
        .flatten()
        .collect()
}

/// Both media beside each other, a number of seeds, each in the given mode.
fn seeds(name: &str, mode: &str, ops: &str, seeds: std::ops::Range<u32>, preload: bool) {
    std::thread::scope(|scope| {
        for (i, medium) in media().into_iter().enumerate() {
            let (dir, seeds) = (format!("{name}{i}"), seeds.clone());
            scope.spawn(move || {
                let dir = common::scratch(&medium, &dir);
                for seed in seeds {
                    seed_agrees(&dir, mode, ops, seed, preload);
                }
                common::remove(&dir);
            });
        }
    });
}

fn seed_agrees(dir: &Path, mode: &str, ops: &str, seed: u32, preload: bool) {
    let seed_text = seed.to_string();
    let mut args = vec!["--mode", mode, "--ops", ops, "--seed", &seed_text];
    let mut env = Vec::new();
    if preload {
        // Every other seed lets use pay first, as programs will see it.
        let forced: &[_] = if seed.is_multiple_of(2) {
            &[("ADIT_ADOPT_BYTES", "0")]
        } else {
            &[]
        };
        env = common::preloaded(&common::library(), forced);
        if mode == "single" {
            args.push("--expect-served");
        }
    } else if mode == "single" {
        args.push("--exact-holes");
    }
    agrees(dir, &args, &env);
}

#[test]
fn kernel_against_kernel() {
    seeds("k-single", "single", "3000", 0..6, false);
    seeds("k-threads", "threads", "800", 0..1, false);
    seeds("k-procs", "procs", "800", 0..1, false);
}

#[test]
fn adit_single() {
    seeds("a-single", "single", "4000", 100..124, true);
}

#[test]
fn adit_threads() {
    seeds("a-threads", "threads", "1500", 100..104, true);
}

#[test]
fn adit_procs() {
    seeds("a-procs", "procs", "1500", 100..104, true);
}

/// Each kind of damage to twin A is reported, so an agreement means something.
#[test]
fn planted_damage_is_found() {
    let dir = common::scratch(&common::first(), "planted");
    for (mode, plants) in [
        (
            "single",
            &["read", "file", "offset", "size", "errno", "mtime"][..],
        ),
        ("threads", &["read", "file"][..]),
        ("procs", &["read", "file"][..]),
    ] {
        for plant in plants {
            let args = [
                "--mode", mode, "--seed", "7", "--ops", "1000", "--plant", plant,
            ];
            let said = oracle(&dir, &args, &[]);
            let text = String::from_utf8_lossy(&said.stdout);
            assert!(
                said.status.code() == Some(1) && text.contains("MISMATCH seed 7"),
                "{mode} {plant}: {} {text}",
                said.status
            );
        }
    }
    common::remove(&dir);
}

/// A library that does nothing must not pass for one that serves.
#[test]
fn idleness_is_found() {
    let dir = common::scratch(&common::first(), "idle");
    let said = oracle(&dir, &["--expect-served", "--ops", "500"], &[]);
    assert_eq!(
        said.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&said.stdout)
    );
    common::remove(&dir);
}

/// Shrinking leaves only operations that are needed for the mismatch, and it replays.
#[test]
fn any_part_of_a_run_is_a_run() {
    let dir = common::scratch(&common::first(), "parts");
    for only in ["0-50", "0-5,20-400", "300-500"] {
        agrees(&dir, &["--ops", "500", "--seed", "9", "--only", only], &[]);
    }
    common::remove(&dir);
}
