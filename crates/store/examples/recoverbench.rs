//! How long a recovery takes, and how much memory, by the number of records that the dead left.
//!
//! `cargo run --release -p adit-store --example recoverbench -- [RECORDS] [FILES] [THREADS] [DIR]`, by default
//! 2,000,000 records of 64 bytes in 16 files, with a thread for each processor, on tmpfs.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Runs without the preload.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use adit_pool::layout::Geometry;
use adit_pool::{FileName, Op, PoolFile, When};
use adit_store::recovery::walkers;
use adit_store::staged::{KernelFile, recover};
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

const LEN: u32 = 64;

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| {
        arguments
            .next()
            .map_or(default, |n| n.parse().expect("number"))
    };
    let (records, files) = (number(2_000_000), number(16));
    let threads = number(walkers() as u64) as usize;
    let parent = arguments.next().unwrap_or_else(|| "/dev/shm".to_owned());
    let scratch = Scratch(Path::new(&parent).join(format!("adit-recover-{}", std::process::id())));
    std::fs::create_dir_all(&scratch.0).expect("directory");
    let path = scratch.0.join("pool");
    leave(&path, records, files);

    let before = memory("VmRSS");
    let pool = PoolFile::open(&path).expect("open");
    pool.pool().walk_with(threads);
    let started = Instant::now();
    let busy = busy_so_far();
    let attachment = pool.attach().expect("attach");
    let attached = started.elapsed().as_secs_f64();
    let attach_busy = busy_so_far() - busy;
    let found = attachment.recovery().expect("the first");
    assert_eq!(found.counts.live, records);
    let scanned = Instant::now();
    let busy = busy_so_far();
    drop(pool.pool().scan().expect("scan"));
    let scan = scanned.elapsed().as_secs_f64();
    let scan_busy = busy_so_far() - busy;
    let started = Instant::now();
    let busy = busy_so_far();
    let report = recover(&attachment, &|name| {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let fd = rustix::fs::open(
            scratch
                .0
                .join(std::ffi::OsStr::from_bytes(&name.path))
                .as_os_str()
                .as_bytes(),
            flags,
            Mode::RUSR | Mode::WUSR,
        )?;
        Ok(KernelFile::new(fd)?)
    })
    .expect("recover");
    let recovered = started.elapsed().as_secs_f64();
    let recover_busy = busy_so_far() - busy;
    assert_eq!(report.done.records, records);
    assert!(report.kept.is_empty());
    println!("{records} records of {LEN} bytes in {files} files, {threads} threads");
    println!("one scan                {scan:>7.2} s, of the first thread {scan_busy:.2} s");
    println!("first attachment        {attached:>7.2} s, of the first thread {attach_busy:.2} s");
    println!("replay and release      {recovered:>7.2} s, of the first thread {recover_busy:.2} s");
    println!(
        "records per second      {:>7.0}",
        records as f64 / (attached + recovered)
    );
    let (peak, shared) = (memory("VmHWM"), memory("RssShmem") + memory("RssFile"));
    println!(
        "peak memory             {:>7} MB of its own, and {} MB of the pool mapped",
        peak.saturating_sub(before + shared) >> 10,
        shared >> 10
    );
}

/// Fills a pool and dies, as far as the pool can tell.
fn leave(path: &Path, records: u64, files: u64) {
    let lines = records * 64;
    let size = (2 * lines + (64 << 20)).next_multiple_of(2 << 20);
    let pool = PoolFile::create(path, size, Geometry::default()).expect("pool");
    let attachment = pool.attach().expect("attach");
    attachment.limit_log(u32::MAX);
    attachment.limit_logs_together(u32::MAX);
    let entered: Vec<_> = (0..files)
        .map(|nth| {
            attachment.enter_file(&FileName {
                handle_type: 1,
                handle: nth.to_le_bytes().to_vec(),
                path: format!("file-{nth}").into_bytes(),
                device: 1,
            })
        })
        .map(|file| file.expect("entry"))
        .collect();
    for nth in 0..records {
        let file = entered[(nth % files) as usize];
        let bytes = [nth as u8; LEN as usize];
        let extent = attachment.alloc(LEN).expect("space");
        attachment.fill(extent, 0, &bytes).expect("bytes");
        let op = Op::Write {
            file_offset: nth / files * u64::from(LEN),
            extent,
            len: LEN,
            data_crc: Some(crc32c::crc32c(&bytes)),
        };
        let mut guard = attachment.lock_file(file).expect("lock");
        guard.append(&op, When::WithCommit).expect("record");
    }
    println!("{} log chunks", attachment.log_chunks());
}

/// Processor time of this thread: what is left of a phase where others have processors of their own.
fn busy_so_far() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A line of the process's status, in KB.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with(field));
    let value = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    value.expect("a number")
}
