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
/// Calls are counted in batches, and the least of all batches counts: what ran beside one of them, such as a commit of
/// the journal, is not in all.
const BATCHES: usize = 5;
/// What is written is written so often from the start. What is staged the first time goes to pages of the pool that nobody
/// has touched before, unless an earlier program has; closing the file gives them back, and the next rounds find them. Which
/// pages these are depends on what the monitor has just taken, so one round more is not always enough.
const ROUNDS: usize = 4;

fn main() -> ExitCode {
    let Some(dir) = std::env::args().nth(1) else {
        println!("usage: path-lengths DIR [slow]");
        return ExitCode::FAILURE;
    };
    let slow = std::env::args().nth(2).is_some_and(|word| word == "slow");
    match measure(Path::new(&dir), slow) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("{dir}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Prints `path NAME INSTRUCTIONS` for each call.
fn measure(dir: &Path, slow: bool) -> std::io::Result<()> {
    let base = dir.join("base");
    let mut file = File::create(&base)?;
    file.write_all(&vec![1; PAGES as usize * PAGE])?;
    file.sync_all()?;
    drop(file);
    let mut least = Least::default();
    for round in 0..ROUNDS {
        in_place(&mut least, &base, slow)?;
        if !slow {
            appends(&mut least, dir)?;
        }
        if !slow && round == 0 {
            files(&mut least, dir, &base)?;
        }
    }
    for (name, instructions) in least.0 {
        println!("path {name} {instructions}");
    }
    std::fs::remove_file(base)
}

/// Reads and overwrites. Every page comes once before the first comes again, in an order that is no sequence.
fn in_place(least: &mut Least, base: &Path, slow: bool) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(base)?;
    let mut page = vec![2; PAGE];
    let place = |i: u64| i * 97 % PAGES * PAGE as u64;
    least.count("read-4K", |i| {
        // The planted detour: the budget must notice it.
        if slow {
            file.metadata()?;
        }
        file.read_exact_at(&mut page, place(i))
    })?;
    if slow {
        return Ok(());
    }
    least.count("read-64", |i| file.read_exact_at(&mut page[..64], place(i)))?;
    least.count("overwrite-4K", |i| file.write_all_at(&page, place(i)))?;
    least.count("overwrite-64", |i| file.write_all_at(&page[..64], place(i)))
}

fn appends(least: &mut Least, dir: &Path) -> std::io::Result<()> {
    let page = [2; PAGE];
    for (name, sync) in [("append-4K", false), ("append-4K+fsync", true)] {
        let path = dir.join(name);
        let mut file = File::create(&path)?;
        least.count(name, |_| {
            file.write_all(&page)?;
            if sync { file.sync_all() } else { Ok(()) }
        })?;
        drop(file);
        std::fs::remove_file(path)?;
    }
    // With what comes of it: to close the file publishes what is staged.
    let path = dir.join("whole");
    for _ in 0..BATCHES {
        let mut file = Some(File::create(&path)?);
        least.batch("append-4K+close", |i| {
            let mut writer = file.take_if(|_| i + 1 == PAGES);
            writer
                .as_mut()
                .or(file.as_mut())
                .map_or(Ok(()), |file| file.write_all(&page))
        })?;
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

/// What concerns a file as a whole: each call has a batch of its own.
fn files(least: &mut Least, dir: &Path, base: &Path) -> std::io::Result<()> {
    for _ in 0..BATCHES {
        let mut open = Vec::with_capacity(PAGES as usize);
        least.batch("open", |_| File::open(base).map(|f| open.push(f)))?;
        least.batch("close", |_| {
            open.pop();
            Ok(())
        })?;
        let name = |i: u64| dir.join(format!("file-{i}"));
        for i in 0..PAGES {
            File::create(name(i))?.write_all(&[3; PAGE])?;
        }
        least.batch("unlink", |i| std::fs::remove_file(name(i)))?;
    }
    Ok(())
}

/// The fewest instructions of each call so far.
#[derive(Default)]
struct Least(Vec<(&'static str, u64)>);

impl Least {
    fn count(
        &mut self,
        name: &'static str,
        mut call: impl FnMut(u64) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        (0..BATCHES).try_for_each(|_| self.batch(name, &mut call))
    }

    fn batch(
        &mut self,
        name: &'static str,
        mut call: impl FnMut(u64) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let begun = Instant::now();
        for i in 0..PAGES {
            call(i)?;
        }
        let each = (begun.elapsed().as_nanos() / u128::from(PAGES)) as u64;
        match self.0.iter_mut().find(|(have, _)| *have == name) {
            Some((_, least)) => *least = each.min(*least),
            None => self.0.push((name, each)),
        }
        Ok(())
    }
}
