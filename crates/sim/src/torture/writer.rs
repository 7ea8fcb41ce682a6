//! The writer's role: one process, one job, one byte on standard output for each finished operation.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::mixed::{Model, Operation};
use super::{Job, Pattern, Plant, append, counter, group, overwrite, staged};
use crate::rng::Rng;

/// Said for each finished operation.
pub(super) const ACKNOWLEDGED: u8 = b'a';
/// Readers last no longer than this, should the driver forget them.
const READERS_END: Duration = Duration::from_secs(10);

/// Runs the role that `arguments` describe (see `Job::arguments`). An error is for standard error and
/// a non-zero exit.
pub fn writer_main(arguments: &[String]) -> Result<(), String> {
    let job = Job::parse(arguments).ok_or("bad arguments of a writer")?;
    let result = match (job.pattern, job.reader) {
        (Pattern::Append, _) => append_records(&job),
        (Pattern::Overwrite, _) => overwrite_pages(&job),
        (Pattern::Mixed, _) => mixed_operations(&job),
        (Pattern::Counter, false) => count_up(&job),
        (Pattern::Staged, _) => staged::write(&job),
        (Pattern::Group, _) => group::write(&job),
        (Pattern::Counter, true) => watch_counter(&job),
    };
    result.map_err(|error| format!("{} writer {}: {error}", job.pattern, job.writer))
}

impl Job {
    pub(super) fn arguments(&self) -> Vec<String> {
        vec![
            self.pattern.to_string(),
            self.file.display().to_string(),
            self.nonce.to_string(),
            self.writer.to_string(),
            self.writers.to_string(),
            self.operations.to_string(),
            self.plant.to_string(),
            self.reader.to_string(),
        ]
    }

    fn parse(arguments: &[String]) -> Option<Self> {
        let [
            pattern,
            file,
            nonce,
            writer,
            writers,
            operations,
            plant,
            reader,
        ] = arguments
        else {
            return None;
        };
        Some(Self {
            pattern: Pattern::from_name(pattern)?,
            file: file.into(),
            nonce: nonce.parse().ok()?,
            writer: writer.parse().ok()?,
            writers: writers.parse().ok()?,
            operations: operations.parse().ok()?,
            plant: Plant::from_name(plant)?,
            reader: reader.parse().ok()?,
        })
    }

    /// One operation and its acknowledgement, in the right order unless a bug is planted.
    pub(super) fn operation(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.plant == Plant::Lose {
            acknowledge()?;
            return work();
        }
        work()?;
        acknowledge()
    }

    /// The bytes to write: the right ones unless a bug is planted.
    pub(super) fn spoil(&self, nth: u64, mut bytes: Vec<u8>) -> Vec<u8> {
        let middle = bytes.len() / 2;
        if self.plant == Plant::Corrupt && nth % 16 == 15 {
            bytes[middle] ^= 0x40;
        }
        bytes
    }
}

/// One byte, at once. An error means that the driver is gone.
fn acknowledge() -> io::Result<()> {
    let mut pipe = io::stdout();
    pipe.write_all(&[ACKNOWLEDGED])?;
    pipe.flush()
}

fn wrong(what: String) -> io::Error {
    io::Error::other(what)
}

/// Operations between two syncs: in mode `atomic` what waits for one must fit into the pool.
const SYNC: u64 = 2048;

fn append_records(job: &Job) -> io::Result<()> {
    let seek = job.plant == Plant::Seek;
    let mut file = OpenOptions::new()
        .append(!seek)
        .write(true)
        .open(&job.file)?;
    for nth in 0..job.operations {
        let record = job.spoil(nth, append::record(job, nth));
        job.operation(|| {
            if seek {
                file.seek(SeekFrom::End(0))?;
            }
            file.write_all(&record)
        })?;
        if nth % SYNC == SYNC - 1 {
            file.sync_data()?;
        }
    }
    Ok(())
}

fn overwrite_pages(job: &Job) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(&job.file)?;
    let mut versions = overwrite::versions(job, 0);
    let mut rng = Rng::at(&[job.nonce, job.writer, 4]);
    let mut found = vec![0; overwrite::PAGE];
    for nth in 0..job.operations {
        let page = overwrite::page_of(job, nth);
        let bytes = job.spoil(nth, overwrite::contents(job.nonce, page, nth + 1));
        job.operation(|| file.write_all_at(&bytes, page * overwrite::PAGE as u64))?;
        versions[page as usize] = nth + 1;

        let page = rng.below(overwrite::PAGES / job.writers) * job.writers + job.writer;
        file.read_exact_at(&mut found, page * overwrite::PAGE as u64)?;
        let version = versions[page as usize];
        if found != overwrite::contents(job.nonce, page, version) {
            return Err(wrong(format!(
                "page {page} reads other than its version {version}"
            )));
        }
    }
    Ok(())
}

fn mixed_operations(job: &Job) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(&job.file)?;
    let mut model = Model::default();
    let mut rng = Rng::at(&[job.nonce, job.writer, 5]);
    for nth in 0..job.operations {
        let operation = model.next(job);
        job.operation(|| match &operation {
            Operation::WriteAt(offset, data) => {
                file.write_all_at(&job.spoil(nth, data.clone()), *offset)
            }
            Operation::Write(data) => file.write_all(&job.spoil(nth, data.clone())),
            Operation::Truncate(size) => file.set_len(*size),
        })?;
        model.apply(&operation);
        check_range(&file, &model, &mut rng)?;
    }
    if file.metadata()?.len() != model.bytes.len() as u64 {
        return Err(wrong(String::from("the size is wrong")));
    }
    Ok(())
}

/// Reads a random range, across the end of the file sometimes.
fn check_range(file: &File, model: &Model, rng: &mut Rng) -> io::Result<()> {
    let size = model.bytes.len();
    let start = rng.below(size as u64 + 1);
    let mut found = vec![0xa5; 1 + rng.below(9000) as usize];
    let expected = &model.bytes[start as usize..size.min(start as usize + found.len())];
    let mut len = 0;
    while len < found.len() {
        match file.read_at(&mut found[len..], start + len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    if &found[..len] != expected {
        return Err(wrong(format!(
            "{} bytes at {start} of {size} read wrong",
            expected.len()
        )));
    }
    Ok(())
}

fn count_up(job: &Job) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(&job.file)?;
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 0)?;
    let mut count = counter::decode_torn(&bytes);
    for nth in 0..job.operations {
        count += 1;
        let page = job.spoil(nth, counter::contents(job.nonce, count));
        job.operation(|| {
            file.write_all_at(&page, counter::place(count))?;
            file.write_all_at(&counter::encode(count), 0)
        })?;
    }
    Ok(())
}

fn watch_counter(job: &Job) -> io::Result<()> {
    let mut file = File::open(&job.file)?;
    let start = Instant::now();
    let mut newest = 0;
    let mut bytes = [0; 16];
    let mut reads = 0_u64;
    while start.elapsed() < READERS_END {
        if reads.is_multiple_of(2) {
            file.read_exact_at(&mut bytes, 0)?;
        } else {
            file.seek(SeekFrom::Start(0))?;
            file.read_exact(&mut bytes)?;
        }
        reads += 1;
        let Some(count) = counter::decode(&bytes) else {
            continue;
        };
        if count < newest {
            return Err(wrong(format!(
                "the counter went from {newest} back to {count}"
            )));
        }
        newest = count;
    }
    Ok(())
}
