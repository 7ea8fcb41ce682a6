//! How many instructions a call takes. On a machine that counts one instruction as one nanosecond
//! the clock is an instruction counter.
// What is measured is what Adit does to a program that goes through libc.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const PAGES: u64 = 256;
const PAGE: usize = 4096;
const ROUNDS: u64 = 1000;
/// So many calls come first: a file is adopted, its pages are mapped.
const WARM_UP: u64 = 2 * PAGES;

fn main() -> ExitCode {
    let Some(dir) = std::env::args().nth(1) else {
        println!("usage: path-lengths DIR");
        return ExitCode::FAILURE;
    };
    match measure(Path::new(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{dir}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Prints `path NAME INSTRUCTIONS` for each call.
fn measure(dir: &Path) -> std::io::Result<()> {
    let base = dir.join("base");
    let mut file = File::create(&base)?;
    file.write_all(&vec![1; PAGES as usize * PAGE])?;
    file.sync_all()?;
    drop(file);
    let file = OpenOptions::new().read(true).write(true).open(&base)?;
    let mut page = vec![2; PAGE];
    // Every page comes once before the first comes again, in an order that is no sequence.
    let place = |i: u64| i * 97 % PAGES * PAGE as u64;
    mean("read-4K", |i| file.read_exact_at(&mut page, place(i)))?;
    mean("read-64", |i| file.read_exact_at(&mut page[..64], place(i)))?;
    mean("overwrite-4K", |i| file.write_all_at(&page, place(i)))?;
    mean("overwrite-64", |i| file.write_all_at(&page[..64], place(i)))?;
    drop(file);
    let mut appended = File::create(dir.join("append"))?;
    mean("append-4K", |_| appended.write_all(&page))?;
    drop(appended);
    let mut synced = File::create(dir.join("append-fsync"))?;
    mean("append-4K+fsync", |_| {
        synced.write_all(&page)?;
        synced.sync_all()
    })?;
    drop(synced);
    mean("open+close", |_| File::open(&base).map(drop))?;
    for name in ["base", "append", "append-fsync"] {
        std::fs::remove_file(dir.join(name))?;
    }
    Ok(())
}

fn mean(name: &str, mut call: impl FnMut(u64) -> std::io::Result<()>) -> std::io::Result<()> {
    for i in 0..WARM_UP {
        call(i)?;
    }
    let begun = Instant::now();
    for i in 0..ROUNDS {
        call(i)?;
    }
    println!(
        "path {name} {}",
        begun.elapsed().as_nanos() / u128::from(ROUNDS)
    );
    Ok(())
}
