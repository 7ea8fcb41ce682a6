//! What staging and logging an append costs, on a pool in a directory of your choice.
//!
//! `cargo run --release -p adit-pool --example append_cost -- /dev/shm`
#![allow(clippy::print_stdout, reason = "it reports")]

use std::path::PathBuf;
use std::time::Instant;

use adit_pool::layout::Geometry;
use adit_pool::{Attachment, Error, FileMedium, FileName, FileRef, Op, PoolFile, Result, When};

const ROUNDS: u64 = 20_000;

/// One append: allocate, stream the bytes in, log. Nanoseconds per operation, the best of some rounds.
fn appends(a: &Attachment<FileMedium>, file: FileRef, len: usize, with_crc: bool) -> Result<f64> {
    let bytes = vec![7; len];
    let mut best = f64::MAX;
    for _ in 0..7 {
        let started = Instant::now();
        for i in 0..ROUNDS {
            let extent = a.alloc(len as u32)?;
            a.fill(extent, 0, &bytes)?;
            let data_crc = with_crc.then(|| crc32c::crc32c(&bytes));
            let file_offset = i * len as u64;
            let op = Op::Write {
                file_offset,
                extent,
                len: len as u32,
                data_crc,
            };
            a.lock_file(file)?.append(&op, When::Now)?;
        }
        best = best.min(started.elapsed().as_nanos() as f64 / ROUNDS as f64);
        let mut guard = a.lock_file(file)?;
        let last = guard.next_seq()? - 1;
        guard.retire(last)?;
        drop(guard);
        a.reclaim()?;
    }
    Ok(best)
}

fn main() -> Result<()> {
    let place = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from("."), PathBuf::from);
    let path = place.join(format!("append-cost-{}", std::process::id()));
    let pool = PoolFile::create(&path, 512 << 20, Geometry::default())?;
    let result = measure(&pool);
    pool.remove(true)?;
    result
}

fn measure(pool: &PoolFile) -> Result<()> {
    let started = Instant::now();
    let a = pool.attach()?;
    println!(
        "first attach: {:.1} ms",
        started.elapsed().as_secs_f64() * 1e3
    );
    let started = Instant::now();
    pool.attach()?.detach()?;
    println!(
        "attach and detach beside it: {:.1} ms",
        started.elapsed().as_secs_f64() * 1e3
    );
    let name = FileName {
        handle_type: 1,
        handle: vec![1; 12],
        path: b"/file".to_vec(),
        device: 0,
    };
    let file = a.enter_file(&name)?;
    println!("medium {}", pool.kind());
    for (len, with_crc) in [(64, true), (64, false), (4096, true), (4096, false)] {
        let nanos = appends(&a, file, len, with_crc)?;
        println!("append {len:>5} bytes, data CRC {with_crc:<5}: {nanos:>7.0} ns");
    }
    let started = Instant::now();
    let records = 100_000_u64;
    for _ in 0..records {
        match a
            .lock_file(file)?
            .append(&Op::Truncate { size: 0 }, When::Now)
        {
            Ok(_) => {}
            Err(Error::LogFull { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    println!(
        "record alone              : {:>7.0} ns",
        started.elapsed().as_nanos() as f64 / records as f64
    );
    let started = Instant::now();
    let found = pool.pool().scan()?;
    println!(
        "walk of {} lines: {:.1} ms",
        found.counts.lines,
        started.elapsed().as_secs_f64() * 1e3
    );
    let mut guard = a.lock_file(file)?;
    let last = guard.next_seq()? - 1;
    guard.retire(last)?;
    drop(guard);
    a.forget_file(file)?;
    a.detach()
}
