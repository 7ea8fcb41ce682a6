//! The kill -9 driver: a short run of each pattern loses nothing, and planted losses are noticed.
#![allow(clippy::disallowed_methods, reason = "a test outside the engine")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("adit-torture-{name}-{}", std::process::id())))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn torture(dir: &Dir, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adit-torture"))
        .arg("--dir")
        .arg(&dir.0)
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn plain_writers_lose_nothing() {
    let dir = Dir::new("plain");
    let output = torture(&dir, &["--rounds", "80", "--seed", "3"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("80 rounds, ") && said.contains(" acknowledged records, 0 lost"));
    let numbers: Vec<u64> = said
        .split(|c: char| !c.is_ascii_digit())
        .flat_map(str::parse)
        .collect();
    let [80, acknowledged, 0, killed, outsiders] = numbers[..] else {
        panic!("{said}")
    };
    assert!(
        acknowledged > 1000 && killed > 20 && outsiders > 0,
        "{said}"
    );
    assert_eq!(
        std::fs::read_dir(&dir.0).unwrap().count(),
        0,
        "files are left behind"
    );
}

#[test]
fn planted_losses_are_noticed_in_every_pattern() {
    let plants = [
        (
            "lose",
            &["append", "overwrite", "mixed", "counter", "staged", "group"][..],
        ),
        (
            "corrupt",
            &["append", "overwrite", "mixed", "counter", "staged", "group"],
        ),
        ("seek", &["append"]),
    ];
    for (plant, patterns) in plants {
        for pattern in patterns {
            let dir = Dir::new(&format!("{plant}-{pattern}"));
            let arguments = ["--rounds", "300", "--plant", plant, "--pattern", pattern];
            let output = torture(&dir, &arguments);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{plant} {pattern}: {said}");
            assert!(said.contains("LOST in round"), "{said}");
        }
    }
}

#[test]
fn a_monitor_is_killed_and_started_again() {
    let dir = Dir::new("monitor");
    let output = torture(&dir, &["--rounds", "30", "--monitor", "sleep 60"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.contains("monitors"), "{said}");
    let output = torture(&dir, &["--rounds", "30", "--monitor", "false"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("the monitor ended"));
}

#[test]
fn commands_around_the_writers_are_run() {
    let dir = Dir::new("commands");
    let output = torture(
        &dir,
        &["--rounds", "8", "--recover", "true", "--", "env", "A=b"],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = torture(&dir, &["--rounds", "8", "--recover", "false"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("recovery command failed"));
}

#[test]
fn bad_arguments_are_explained() {
    for (arguments, reason) in [
        (&["--rounds"][..], "needs a value"),
        (&["--rounds", "x"], "needs a number"),
        (&["--plant", "tulips"], "no plant"),
        (&["--pattern", "tartan"], "no pattern"),
        (&["--preload", "/nowhere/lib.so"], "no such library"),
        (&["--what", "1"], "unknown argument"),
        (&["--mode", "careless"], "no mode"),
        (
            &["--dir", ".", "--adit", "/nowhere/adit"],
            "no such command",
        ),
    ] {
        let output = torture(&Dir::new("bad"), arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(reason), "{arguments:?}");
    }
}
