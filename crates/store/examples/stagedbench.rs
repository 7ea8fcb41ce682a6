//! What staged appends, overwrites and reads cost, beside the kernel's and beside the raw copy.
//!
//! `cargo run --release -p adit-store --example stagedbench [DIR [WORD]]`; DIR is on tmpfs by default;
//! with WORD only the cases that have it in their name. Nanoseconds per operation: median and least of
//! alternating rounds, and the median of what all processors together spent on it, which says more
//! where others use them, too. Of several threads it is the time of all, divided by the operations of all.
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
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 9;
const APPENDS: usize = 4096;
const LEN: usize = 4096;
const POOL: u64 = 64 << 20;
/// Length of the file that is overwritten.
const FILE: usize = 32 << 20;
const OVERWRITES: usize = 8192;

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
        drop(self.empty_file());
        self.staged_as_it_is(mode)
    }

    fn staged_as_it_is(&self, mode: Mode) -> StagedFile<FileMedium, KernelFile<OwnedFd>> {
        self.staged_by(&self.stage, mode)
    }

    fn staged_by(
        &self,
        stage: &Arc<Stage<FileMedium>>,
        mode: Mode,
    ) -> StagedFile<FileMedium, KernelFile<OwnedFd>> {
        let name = FileName {
            handle_type: 1,
            handle: vec![1; 8],
            path: b"file".to_vec(),
            device: 1,
        };
        let path = self.dir.join("file");
        let fd = rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDWR, FileMode::empty())
            .expect("open");
        let base = KernelFile::new(fd).expect("base");
        StagedFile::open(stage, &name, base, mode).expect("stage")
    }

    fn kernel_append(&self) -> Sample {
        let file = self.empty_file();
        timed(|nth| {
            file.write_all_at(&self.bytes, (nth * LEN) as u64)
                .expect("write")
        })
    }

    fn kernel_overwrite(&self) -> Sample {
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
    fn raw(&self) -> Sample {
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

    fn full_file(&self) -> File {
        let file = self.empty_file();
        let all = vec![1; 1 << 20];
        for at in (0..FILE).step_by(all.len()) {
            file.write_all_at(&all, at as u64).expect("write");
        }
        file
    }

    /// Random overwrites by the kernel.
    fn kernel_overwrites(&self, len: usize, threads: usize) -> Sample {
        let file = self.full_file();
        together(threads, len, |at| {
            file.write_all_at(&self.bytes[..len], at).expect("write");
        })
    }

    /// The same, staged and strict. What has to be published meanwhile is in the time.
    fn overwrites(&self, len: usize, threads: usize) -> Sample {
        drop(self.full_file());
        let staged = self.staged_as_it_is(Mode::Strict);
        let ns = together(threads, len, |at| {
            staged.write_at(at, &self.bytes[..len]).expect("write");
        });
        staged.close().expect("close");
        ns
    }

    /// What an overwrite of a few bytes would cost if it were one of its page.
    fn overwrites_as_pages(&self, len: usize) -> Sample {
        drop(self.full_file());
        let staged = self.staged_as_it_is(Mode::Strict);
        let ns = together(1, len, |at| {
            let mut page = [0; LEN];
            let (page_at, inside) = (at / LEN as u64 * LEN as u64, at as usize % LEN);
            staged.read_at(page_at, &mut page).expect("read");
            page[inside..inside + len].copy_from_slice(&self.bytes[..len]);
            staged.write_at(page_at, &page).expect("write");
        });
        staged.close().expect("close");
        ns
    }

    fn raw_overwrites(&self, len: usize, threads: usize) -> Sample {
        let medium = self.pool.pool().medium();
        let record = [7; 64];
        let start = POOL - FILE as u64 - (1 << 20);
        together(threads, len, |at| {
            medium
                .write_streaming(start + at, &self.bytes[..len])
                .expect("bytes");
            medium.fence();
            medium
                .write_streaming(POOL - (1 << 20) + at / len as u64 % (1 << 14) * 64, &record)
                .expect("record");
            medium.fence();
        })
    }

    fn append(&self, mode: Mode) -> Sample {
        let staged = self.staged(mode);
        let ns = timed(|_| {
            black_box(staged.append(&self.bytes).expect("append"));
        });
        staged.close().expect("close");
        ns
    }

    /// The same, in a process that is new to a pool which others have used.
    fn first_appends(&self) -> Sample {
        let pool = PoolFile::open(&self.dir.join("pool")).expect("pool");
        let stage = Stage::new(pool.attach().expect("attach"));
        drop(self.empty_file());
        let staged = self.staged_by(&stage, Mode::Strict);
        let ns = timed(|_| {
            black_box(staged.append(&self.bytes).expect("append"));
        });
        staged.close().expect("close");
        let attachment = stage.into_attachment().expect("no file is open");
        attachment.detach().expect("detach");
        ns
    }

    /// Appends, then one `fsync`, then everything published: what the bytes cost in all.
    fn append_and_publish(&self, mode: Mode) -> Sample {
        let staged = self.staged(mode);
        let clocks = Clocks::now();
        for _ in 0..APPENDS {
            staged.append(&self.bytes).expect("append");
        }
        staged.fsync().expect("fsync");
        staged.publish(Scope::Committed).expect("publish");
        let ns = clocks.since(APPENDS);
        staged.close().expect("close");
        ns
    }

    fn read(&self) -> Sample {
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

/// Nanoseconds per operation: on the wall, and of all processors.
#[derive(Clone, Copy)]
struct Sample {
    wall: f64,
    cpu: f64,
}

struct Clocks {
    wall: Instant,
    cpu: f64,
}

impl Clocks {
    fn now() -> Self {
        Self {
            wall: Instant::now(),
            cpu: Self::cpu(),
        }
    }

    fn cpu() -> f64 {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        used.tv_sec as f64 * 1e9 + used.tv_nsec as f64
    }

    fn since(&self, operations: usize) -> Sample {
        Sample {
            wall: self.wall.elapsed().as_nanos() as f64 / operations as f64,
            cpu: (Self::cpu() - self.cpu) / operations as f64,
        }
    }
}

/// One operation's share of many.
fn timed(mut call: impl FnMut(usize)) -> Sample {
    let clocks = Clocks::now();
    (0..APPENDS).for_each(&mut call);
    clocks.since(APPENDS)
}

/// Threads that call with random places in the file, `OVERWRITES` times each: nanoseconds from the first
/// start to the last end, divided by the calls of all.
fn together(threads: usize, len: usize, call: impl Fn(u64) + Sync) -> Sample {
    let barrier = std::sync::Barrier::new(threads + 1);
    let run = |thread: usize| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread as u64 + 1);
        barrier.wait();
        barrier.wait();
        for _ in 0..OVERWRITES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            call(state % (FILE / len) as u64 * len as u64);
        }
        barrier.wait();
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let run = &run;
            scope.spawn(move || run(thread));
        }
        // They are all there; the clocks run before the first begins.
        barrier.wait();
        let clocks = Clocks::now();
        barrier.wait();
        barrier.wait();
        clocks.since(OVERWRITES * threads)
    })
}

/// A case: its name, and what it measures.
type Case = (&'static str, fn(&Bench) -> Sample);

const CASES: [Case; 28] = [
    ("kernel append", Bench::kernel_append),
    ("kernel overwrite", Bench::kernel_overwrite),
    ("raw: stream 4 KB, fence, stream 64 B, fence", Bench::raw),
    ("staged append, posix", |b| b.append(Mode::Posix)),
    ("staged append, strict", |b| b.append(Mode::Strict)),
    (
        "staged append, strict, new to the pool",
        Bench::first_appends,
    ),
    ("staged append, posix, published", |b| {
        b.append_and_publish(Mode::Posix)
    }),
    ("staged append, strict, published", |b| {
        b.append_and_publish(Mode::Strict)
    }),
    ("staged read", Bench::read),
    ("kernel random 4 KB", |b| b.kernel_overwrites(4096, 1)),
    ("raw random 4 KB", |b| b.raw_overwrites(4096, 1)),
    ("strict random 4 KB", |b| b.overwrites(4096, 1)),
    ("kernel random 64 B", |b| b.kernel_overwrites(64, 1)),
    ("raw random 64 B", |b| b.raw_overwrites(64, 1)),
    ("strict random 64 B", |b| b.overwrites(64, 1)),
    ("strict random 512 B", |b| b.overwrites(512, 1)),
    ("strict random 2 KB", |b| b.overwrites(2048, 1)),
    ("strict random 64 B, as a page", |b| {
        b.overwrites_as_pages(64)
    }),
    ("strict random 2 KB, as a page", |b| {
        b.overwrites_as_pages(2048)
    }),
    ("kernel random 4 KB, 2 threads", |b| {
        b.kernel_overwrites(4096, 2)
    }),
    ("raw random 4 KB, 2 threads", |b| b.raw_overwrites(4096, 2)),
    ("strict random 4 KB, 2 threads", |b| b.overwrites(4096, 2)),
    ("kernel random 4 KB, 4 threads", |b| {
        b.kernel_overwrites(4096, 4)
    }),
    ("raw random 4 KB, 4 threads", |b| b.raw_overwrites(4096, 4)),
    ("strict random 4 KB, 4 threads", |b| b.overwrites(4096, 4)),
    ("kernel random 64 B, 4 threads", |b| {
        b.kernel_overwrites(64, 4)
    }),
    ("raw random 64 B, 4 threads", |b| b.raw_overwrites(64, 4)),
    ("strict random 64 B, 4 threads", |b| b.overwrites(64, 4)),
];

fn main() {
    let parent = std::env::args_os()
        .nth(1)
        .unwrap_or_else(|| "/dev/shm".into());
    let bench = Bench::new(Path::new(&parent));
    let word = std::env::args().nth(2).unwrap_or_default();
    let cases: Vec<Case> = CASES
        .iter()
        .filter(|case| case.0.contains(&word))
        .copied()
        .collect();
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
    println!("{:<46}{:>9}{:>9}{:>9}", "ns", "wall", "least", "cpu");
    for ((name, _), times) in cases.iter().zip(&times) {
        let sorted = |of: fn(&Sample) -> f64| {
            let mut all: Vec<f64> = times.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let (wall, cpu) = (sorted(|time| time.wall), sorted(|time| time.cpu));
        let middle = wall.len() / 2;
        println!(
            "{name:<46}{:>9.0}{:>9.0}{:>9.0}",
            wall[middle], wall[0], cpu[middle]
        );
    }
}
