//! What a staged append costs, beside the kernel's append and beside the raw copy.
//!
//! `cargo run --release -p adit-store --example stagedbench [DIR]`; DIR is on tmpfs by default. Medians
//! of alternating rounds, in nanoseconds per 4 KB.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Runs without the preload.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use adit_pmem::Medium as _;
use adit_pool::layout::Geometry;
use adit_pool::{FileMedium, FileName, PoolFile};
use adit_store::staged::{KernelFile, Mode, Scope, Stage, StagedFile};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode as FileMode, OFlags};

const ROUNDS: usize = 9;
const APPENDS: usize = 4096;
const LEN: usize = 4096;
const POOL: u64 = 64 << 20;

/// Everything a case needs, in a directory of its own that goes with it.
struct Bench {
    dir: PathBuf,
    pool: PoolFile,
    stage: Arc<Stage<FileMedium>>,
    bytes: Vec<u8>,
}

impl Bench {
    fn new(parent: &Path) -> Self {
        let dir = parent.join(format!("adit-stagedbench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let geometry = Geometry {
            max_chunks: 1024,
            ..Geometry::default()
        };
        let pool = PoolFile::create(&dir.join("pool"), POOL, geometry).expect("pool");
        let medium = pool.pool().medium();
        medium
            .mapped()
            .populate(0, medium.size())
            .expect("populate");
        let stage = Stage::new(pool.attach().expect("attach"));
        Self {
            dir,
            pool,
            stage,
            bytes: (0..LEN).map(|at| at as u8).collect(),
        }
    }

    fn empty_file(&self) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        options.open(self.dir.join("file")).expect("file")
    }

    fn staged(&self, mode: Mode) -> StagedFile<FileMedium, KernelFile<OwnedFd>> {
        let name = FileName {
            handle_type: 1,
            handle: vec![1; 8],
            path: b"file".to_vec(),
            device: 1,
        };
        drop(self.empty_file());
        let path = self.dir.join("file");
        let fd = rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDWR, FileMode::empty())
            .expect("open");
        let base = KernelFile::new(fd).expect("base");
        StagedFile::open(&self.stage, &name, base, mode).expect("stage")
    }

    fn kernel_append(&self) -> f64 {
        let file = self.empty_file();
        timed(|nth| {
            file.write_all_at(&self.bytes, (nth * LEN) as u64)
                .expect("write")
        })
    }

    fn kernel_overwrite(&self) -> f64 {
        let file = self.empty_file();
        let all = vec![1; APPENDS * LEN];
        file.write_all_at(&all, 0).expect("write");
        timed(|nth| {
            file.write_all_at(&self.bytes, (nth * LEN) as u64)
                .expect("write")
        })
    }

    /// The physical limit: stream the bytes, fence, stream a record, fence. Into the pool's last third,
    /// which the staged appends of these rounds do not reach.
    fn raw(&self) -> f64 {
        let medium = self.pool.pool().medium();
        let record = [7; 64];
        let start = POOL - ((APPENDS * LEN) as u64) - (1 << 20);
        timed(|nth| {
            let at = start + (nth * LEN) as u64;
            medium.write_streaming(at, &self.bytes).expect("bytes");
            medium.fence();
            medium
                .write_streaming(POOL - (1 << 20) + nth as u64 * 64, &record)
                .expect("record");
            medium.fence();
        })
    }

    fn append(&self, mode: Mode) -> f64 {
        let staged = self.staged(mode);
        let ns = timed(|_| {
            black_box(staged.append(&self.bytes).expect("append"));
        });
        staged.close().expect("close");
        ns
    }

    /// Appends, then one `fsync`, then everything published: what the bytes cost in all.
    fn append_and_publish(&self, mode: Mode) -> f64 {
        let staged = self.staged(mode);
        let started = Instant::now();
        for _ in 0..APPENDS {
            staged.append(&self.bytes).expect("append");
        }
        staged.fsync().expect("fsync");
        staged.publish(Scope::Committed).expect("publish");
        let ns = started.elapsed().as_nanos() as f64 / APPENDS as f64;
        staged.close().expect("close");
        ns
    }

    fn read(&self) -> f64 {
        let staged = self.staged(Mode::Strict);
        for _ in 0..APPENDS {
            staged.append(&self.bytes).expect("append");
        }
        let mut into = vec![0; LEN];
        let ns = timed(|nth| {
            black_box(staged.read_at((nth * LEN) as u64, &mut into).expect("read"));
        });
        staged.close().expect("close");
        ns
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Nanoseconds per call.
fn timed(mut call: impl FnMut(usize)) -> f64 {
    let started = Instant::now();
    (0..APPENDS).for_each(&mut call);
    started.elapsed().as_nanos() as f64 / APPENDS as f64
}

/// A case: its name, and what it measures.
type Case = (&'static str, fn(&Bench) -> f64);

fn main() {
    let parent = std::env::args_os()
        .nth(1)
        .unwrap_or_else(|| "/dev/shm".into());
    let bench = Bench::new(Path::new(&parent));
    let cases: [Case; 8] = [
        ("kernel append", Bench::kernel_append),
        ("kernel overwrite", Bench::kernel_overwrite),
        ("raw: stream 4 KB, fence, stream 64 B, fence", Bench::raw),
        ("staged append, posix", |b| b.append(Mode::Posix)),
        ("staged append, strict", |b| b.append(Mode::Strict)),
        ("staged append, posix, published", |b| {
            b.append_and_publish(Mode::Posix)
        }),
        ("staged append, strict, published", |b| {
            b.append_and_publish(Mode::Strict)
        }),
        ("staged read", Bench::read),
    ];
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..=ROUNDS {
        for (times, (_, run)) in times.iter_mut().zip(&cases) {
            let ns = run(&bench);
            // The first round warms everything up.
            if round > 0 {
                times.push(ns);
            }
        }
    }
    let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
    println!(
        "{:<46}{:>9}{:>10}{:>8}",
        "per 4 KB", "ns", "x kernel", "x raw"
    );
    for ((name, _), ns) in cases.iter().zip(&medians) {
        println!(
            "{name:<46}{ns:>9.0}{:>10.2}{:>8.2}",
            ns / medians[0],
            ns / medians[2]
        );
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
