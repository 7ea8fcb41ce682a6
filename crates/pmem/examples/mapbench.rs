//! What a mapped page costs: `cargo run --release -p adit-pmem --example mapbench -- DIR…`
//!
//! Compares ways to fill the page table of a shared read-only mapping of a file that is in memory.
//! Prints medians of alternating rounds in ns per 4 KB page, beside one pass of `pread`.
//!
//! # Safety
//! Loads from a mapping of a file of its own, inside its size.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Runs without the preload.

use adit_pmem::map::{Access, Mapping, PAGE};
use rustix::fd::BorrowedFd;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

const BYTES: usize = 32 << 20;
const ROUNDS: usize = 9;

fn touch(mapping: &Mapping, step: usize) {
    for at in (0..BYTES).step_by(step) {
        // SAFETY: inside the mapping, which is inside the file.
        unsafe { mapping.base().add(at).read_volatile() };
    }
}

fn per_page(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / (BYTES / PAGE) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pass(file: &File) -> f64 {
    let mut buffer = vec![0u8; PAGE];
    let start = Instant::now();
    for at in (0..BYTES).step_by(PAGE) {
        file.read_exact_at(&mut buffer, at as u64).expect("read");
    }
    per_page(start)
}

type Fill = (&'static str, fn(&Mapping));

const FILLS: [Fill; 3] = [
    ("MADV_POPULATE_READ", |mapping| {
        mapping.populate(0, BYTES).expect("populate")
    }),
    ("a load every 64 KB", |mapping| touch(mapping, 64 << 10)),
    ("a load every 4 KB", |mapping| touch(mapping, PAGE)),
];

fn measure(directory: &str) -> std::io::Result<()> {
    let path =
        std::path::Path::new(directory).join(format!("adit-mapbench-{}", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    for at in (0..BYTES).step_by(1 << 20) {
        file.write_all_at(&vec![1; 1 << 20], at as u64)?;
    }
    // SAFETY: the file stays open until the end of this function.
    let descriptor = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) };
    let mut times = vec![(Vec::new(), Vec::new()); FILLS.len()];
    let mut passes = Vec::new();
    for _ in 0..ROUNDS {
        for ((_, fill), (filled, unmapped)) in FILLS.iter().zip(&mut times) {
            let mapping = Mapping::new(descriptor, 0, BYTES, Access::Read, false).expect("mapping");
            let start = Instant::now();
            fill(&mapping);
            filled.push(per_page(start));
            let start = Instant::now();
            mapping.unmap().expect("unmap");
            unmapped.push(per_page(start));
        }
        passes.push(pass(&file));
    }
    println!(
        "{directory}: one pass of pread {:.0} ns per page",
        median(passes)
    );
    for ((name, _), (filled, unmapped)) in FILLS.iter().zip(times) {
        println!(
            "  {name:<20} fill {:4.0}  unmap {:4.0}",
            median(filled),
            median(unmapped)
        );
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    std::env::args()
        .skip(1)
        .try_for_each(|directory| measure(&directory))
}
