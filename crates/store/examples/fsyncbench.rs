//! What durable appends of 4 KB cost through the staged engine, beside the kernel's ways to have them.
//!
//! `cargo run --release -p adit-store --example fsyncbench -- DIR [ROUNDS]`; DIR lies on the file system to
//! measure. Medians of alternating rounds, in microseconds per append, and medians of each round's ratios to
//! the kernel's ways: a disk that others use as well changes its pace between rounds.
//! `plain` rows end without a sync: what a write costs that the next `fsync` makes durable. `raw` rows are what a commit
//! has to write, into blocks that were written before: the bytes and a record, apart as they lie in a pool, or side by side.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Runs without the preload.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use adit_pool::layout::Geometry;
use adit_pool::{FileMedium, FileName, PoolFile};
use adit_store::staged::{KernelFile, Mode, Stage, StagedFile};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode as FileMode, OFlags};

const APPENDS: usize = 64;
const LEN: usize = 4096;
/// From one page of a raw row to the next, which are two runs.
const APART: u64 = 16 << 10;
const O_DSYNC: i32 = 0o10000;

type Staged = StagedFile<FileMedium, KernelFile<OwnedFd>>;

struct Bench {
    dir: PathBuf,
    stage: Arc<Stage<FileMedium>>,
    bytes: Vec<u8>,
}

impl Bench {
    fn new(parent: &Path) -> Self {
        let dir = parent.join(format!("adit-fsyncbench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let pool = PoolFile::create(&dir.join("pool"), 64 << 20, Geometry::default());
        let pool = pool.expect("pool");
        println!("{}: {:?}", parent.display(), pool.kind());
        let stage = Stage::new(pool.attach().expect("attach"));
        Self {
            dir,
            stage,
            bytes: (0..LEN).map(|at| at as u8).collect(),
        }
    }

    fn empty_file(&self, flags: i32) -> File {
        let path = self.dir.join("file");
        let _ = std::fs::remove_file(&path);
        let mut options = File::options();
        options.append(true).create(true).custom_flags(flags);
        let file = options.open(path).expect("file");
        file.sync_all().expect("sync");
        file
    }

    fn kernel(&self, flags: i32, sync: impl Fn(&File)) -> f64 {
        let mut file = self.empty_file(flags);
        timed(|| {
            file.write_all(&self.bytes).expect("write");
            sync(&file);
        })
    }

    /// A page and a record go to where pages were: where the record of the nth page lies, in bytes, `record` says.
    fn raw(&self, record: fn(u64) -> u64) -> f64 {
        let file = File::create(self.dir.join("raw")).expect("file");
        let zeros = vec![0; APART as usize];
        for nth in 0..2 * APPENDS as u64 {
            file.write_all_at(&zeros, nth * APART).expect("zeros");
        }
        file.sync_all().expect("sync");
        let mut nth = 0;
        timed(|| {
            let page = nth * APART;
            file.write_all_at(&self.bytes, page).expect("bytes");
            file.write_all_at(&self.bytes[..64], record(nth))
                .expect("record");
            file.sync_data().expect("fdatasync");
            nth += 1;
        })
    }

    fn staged(&self, mode: Mode) -> Staged {
        drop(self.empty_file(0));
        let path = self.dir.join("file");
        let fd = rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDWR, FileMode::empty());
        let base = KernelFile::new(fd.expect("open")).expect("base");
        let name = FileName {
            handle_type: 1,
            handle: vec![1; 8],
            path: b"file".to_vec(),
            device: 1,
        };
        let staged = StagedFile::open(&self.stage, &name, base, mode).expect("stage");
        // Log, chunk and entry are ready from here on.
        staged.append(&self.bytes).expect("append");
        staged.fsync().expect("fsync");
        staged
    }

    fn adit(&self, mode: Mode, sync: impl Fn(&Staged)) -> f64 {
        let staged = self.staged(mode);
        let us = timed(|| {
            staged.append(&self.bytes).expect("append");
            sync(&staged);
        });
        staged.fsync().expect("fsync");
        staged.close().expect("close");
        us
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Microseconds per call.
fn timed(mut call: impl FnMut()) -> f64 {
    let started = Instant::now();
    (0..APPENDS).for_each(|_| call());
    started.elapsed().as_secs_f64() * 1e6 / APPENDS as f64
}

/// A case: its name, and what it measures.
type Case = (&'static str, fn(&Bench) -> f64);

/// The first rows are the kernel's, to which the others are compared.
const KERNELS: usize = 3;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let parent = arguments.next().expect("a directory to measure in");
    let rounds = arguments.next().and_then(|n| n.to_str()?.parse().ok());
    let rounds: usize = rounds.unwrap_or(25);
    let bench = Bench::new(Path::new(&parent));
    let cases: [Case; 9] = [
        ("kernel: append, fsync", |b| {
            b.kernel(0, |file| file.sync_all().expect("fsync"))
        }),
        ("kernel: append, fdatasync", |b| {
            b.kernel(0, |file| file.sync_data().expect("fdatasync"))
        }),
        ("kernel: append, O_DSYNC", |b| b.kernel(O_DSYNC, |_| ())),
        ("adit atomic: append, fsync", |b| {
            b.adit(Mode::Atomic, |file| file.fsync().expect("fsync"))
        }),
        ("adit strict: append", |b| b.adit(Mode::Strict, |_| ())),
        ("raw: record apart, fdatasync", |b| {
            b.raw(|nth| APPENDS as u64 * APART + nth * 64)
        }),
        ("raw: record beside, fdatasync", |b| {
            b.raw(|nth| nth * APART + LEN as u64)
        }),
        ("kernel: plain append", |b| b.kernel(0, |_| ())),
        ("adit atomic: plain append", |b| {
            b.adit(Mode::Atomic, |_| ())
        }),
    ];
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..=rounds {
        for (times, (_, run)) in times.iter_mut().zip(&cases) {
            let us = run(&bench);
            // The first round warms everything up.
            if round > 0 {
                times.push(us);
            }
        }
    }
    println!(
        "{:<30}{:>8}{:>9}{:>12}{:>10}",
        "4 KB", "us", "x fsync", "x fdatasync", "x O_DSYNC"
    );
    for ((name, _), us) in cases.iter().zip(&times) {
        print!("{name:<30}{:>8.1}", median(us.clone()));
        for (kernel, width) in times[..KERNELS].iter().zip([9, 12, 10]) {
            let ratios = us.iter().zip(kernel).map(|(us, kernel)| us / kernel);
            print!("{:>width$.2}", median(ratios.collect()));
        }
        println!();
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
