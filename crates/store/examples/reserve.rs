//! What reserving blocks ahead of an appender gains: alternating rounds with and without the
//! monitor's service, medians. Usage: `reserve DIR [ROUNDS]`; DIR on tmpfs.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Not preloaded.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_store::monitor::{self, Options};
use adit_store::registry::{Env, FileId, Registry, RuntimeDir};

const APPEND: usize = 4096;

/// A way to append.
struct Load {
    name: &'static str,
    burst: u32,
    pause: Duration,
    appends: u32,
}

const LOADS: [Load; 5] = [
    Load {
        name: "sustained",
        burst: 1,
        pause: Duration::ZERO,
        appends: 20_000,
    },
    Load {
        name: "16 then 200 us pause",
        burst: 16,
        pause: Duration::from_micros(200),
        appends: 24_000,
    },
    Load {
        name: "32 then 1 ms pause",
        burst: 32,
        pause: Duration::from_millis(1),
        appends: 24_000,
    },
    Load {
        name: "256 then 5 ms pause",
        burst: 256,
        pause: Duration::from_millis(5),
        appends: 24_000,
    },
    Load {
        name: "1 then 50 us pause",
        burst: 1,
        pause: Duration::from_micros(50),
        appends: 8_000,
    },
];

/// Costs of one round in nanoseconds.
#[derive(Clone, Copy)]
struct Round {
    mean: u64,
    slow: u64,
    close: u64,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("a directory on tmpfs"));
    let rounds = arguments.next().and_then(|text| text.parse().ok());
    if std::env::var_os("RESERVE_MONITOR").is_some() {
        monitor::run(&runtime(&dir), &Options::default()).expect("monitor");
        return;
    }
    std::fs::create_dir_all(&dir).expect("directory");
    runtime(&dir).create().expect("runtime directory");
    let mut helper = std::process::Command::new(std::env::current_exe().expect("own path"))
        .arg(&dir)
        .env("RESERVE_MONITOR", "1")
        .spawn()
        .expect("monitor");
    while monitor::join(&runtime(&dir), std::process::id()).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    for load in &LOADS {
        compare(&dir, load, rounds.unwrap_or(7));
    }
    let _ = helper.kill();
    let _ = helper.wait();
    let _ = std::fs::remove_dir_all(&dir);
}

fn runtime(dir: &Path) -> RuntimeDir {
    RuntimeDir::at(dir.join("run").as_os_str().as_bytes()).expect("path")
}

fn compare(dir: &Path, load: &Load, rounds: u32) {
    let registry: &'static Registry = Box::leak(Box::new(Registry::new()));
    registry.configure(&Env {
        adit_runtime_dir: Some(dir.join("run").as_os_str().as_bytes()),
        xdg_runtime_dir: None,
    });
    let mut plain = Vec::new();
    let mut served = Vec::new();
    for _ in 0..rounds {
        plain.push(round(dir, load, None));
        served.push(round(dir, load, Some(registry)));
    }
    let median = |rounds: &[Round], pick: fn(&Round) -> u64| {
        let mut values: Vec<_> = rounds.iter().map(pick).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let (before, after) = (median(&plain, |r| r.mean), median(&served, |r| r.mean));
    println!(
        "{:24} mean {before:5} -> {after:5} ns ({:.2} x), p99 {:6} -> {:6}, close {:6} -> {:6}",
        load.name,
        after as f64 / before as f64,
        median(&plain, |r| r.slow),
        median(&served, |r| r.slow),
        median(&plain, |r| r.close),
        median(&served, |r| r.close),
    );
    registry.detach();
}

fn round(dir: &Path, load: &Load, registry: Option<&'static Registry>) -> Round {
    let path = dir.join("log");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).append(true).open(&path).expect("open");
    let meta = file.metadata().expect("metadata");
    let id = FileId {
        dev: meta.dev(),
        ino: meta.ino(),
    };
    let fd = file.as_raw_fd();
    let slot = registry.and_then(|registry| registry.file(id, fd));
    let bytes = [7u8; APPEND];
    let mut costs = Vec::with_capacity(load.appends as usize);
    for index in 0..load.appends {
        if index % load.burst == 0 {
            pause(load.pause);
        }
        let start = Instant::now();
        file.write_all(&bytes).expect("append");
        if let (Some(registry), Some(slot)) = (registry, &slot)
            && slot.appended(APPEND, u64::from(index + 1) * APPEND as u64)
        {
            registry.reserve_ahead(slot, fd);
        }
        costs.push(start.elapsed().as_nanos() as u64);
    }
    let start = Instant::now();
    if let (Some(registry), Some(slot)) = (registry, &slot) {
        registry.release(slot);
        slot.close(fd);
    }
    let blocks = file.metadata().expect("metadata").blocks();
    let expected = u64::from(load.appends) * (APPEND as u64 / 512);
    assert!(
        blocks <= expected + 8,
        "{blocks} blocks, {expected} expected"
    );
    drop(file);
    let close = start.elapsed().as_nanos() as u64;
    std::fs::remove_file(&path).expect("remove");
    let mean = costs.iter().sum::<u64>() / costs.len() as u64;
    costs.sort_unstable();
    Round {
        mean,
        slow: costs[costs.len() * 99 / 100],
        close,
    }
}

/// Short pauses by spinning, as a program that computes; long ones by sleeping.
fn pause(time: Duration) {
    if time >= Duration::from_millis(1) {
        std::thread::sleep(time);
        return;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        core::hint::spin_loop();
    }
}
