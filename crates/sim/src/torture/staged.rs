//! A file of one's own, appended to by a program that does to it what makes a staged file somebody
//! else's business: it forks and executes, renames, duplicates, closes, reopens and unlinks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::sleep;
use std::time::Duration;

use super::{Job, append, fill};
use crate::rng::Rng;

/// Records between two of the deeds that share or move the file, on average.
const CALM: u64 = 24;

/// What the threads of a writer share.
struct Shared<'a> {
    job: &'a Job,
    file: RwLock<File>,
    /// How many records were written; whoever holds it writes the next one.
    done: Mutex<u64>,
    ended: AtomicBool,
}

/// The job's records in order, from one thread or two, beside a third that duplicates and closes.
pub(super) fn write(job: &Job) -> io::Result<()> {
    let shared = Shared {
        job,
        file: RwLock::new(open(&job.file)?),
        done: Mutex::new(0),
        ended: AtomicBool::new(false),
    };
    let threads = Rng::at(&[job.nonce, job.writer, 8]).below(4) == 0;
    if !threads {
        return shared.work(6);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| shared.duplicate());
        let other = scope.spawn(|| shared.work(7));
        let own = shared.work(6);
        let others = other
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        shared.ended.store(true, Ordering::Relaxed);
        own.and(others)
    })
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).open(path)
}

/// Where a file is for a moment.
pub(super) fn away(file: &Path) -> PathBuf {
    beside(file, "away")
}

/// A file of that writer's which is gone again soon.
pub(super) fn scratch(file: &Path) -> [PathBuf; 2] {
    [beside(file, "scratch"), beside(file, "target")]
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

impl Shared<'_> {
    fn work(&self, stream: u64) -> io::Result<()> {
        let mut rng = Rng::at(&[self.job.nonce, self.job.writer, stream]);
        loop {
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            if *done == self.job.operations {
                return Ok(());
            }
            self.append(*done, &mut rng)?;
            *done += 1;
            if rng.below(CALM) == 0 {
                self.disturb(&mut rng)?;
            }
        }
    }

    /// One record, and a look at it where the offset says it ends.
    fn append(&self, nth: u64, rng: &mut Rng) -> io::Result<()> {
        use std::io::Seek;
        let record = self.job.spoil(nth, append::record(self.job, nth));
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let mut file = &*file;
        self.job.operation(|| file.write_all(&record))?;
        if rng.below(4) > 0 {
            return Ok(());
        }
        let end = file.stream_position()?;
        let start = end
            .checked_sub(record.len() as u64)
            .ok_or_else(|| io::Error::other("the offset is in front of what was appended"))?;
        let mut found = vec![0; record.len()];
        file.read_exact_at(&mut found, start)?;
        if found != record {
            return Err(io::Error::other(format!(
                "record {nth} at {start} reads wrong"
            )));
        }
        if file.metadata()?.len() < end {
            return Err(io::Error::other("the file ends in front of its end"));
        }
        Ok(())
    }

    fn disturb(&self, rng: &mut Rng) -> io::Result<()> {
        let path = &self.job.file;
        match rng.below(7) {
            0 => {
                let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
                file.sync_data()
            }
            1 => {
                fs::rename(path, away(path))?;
                fs::rename(away(path), path)
            }
            2 => self.seen_by_a_child(),
            3 => {
                let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
                drop(file.try_clone()?);
                Ok(())
            }
            4 => self.scratch(rng, false),
            5 => self.scratch(rng, true),
            _ => {
                let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
                *file = open(path)?;
                Ok(())
            }
        }
    }

    /// A program that this one starts sees everything that was written.
    fn seen_by_a_child(&self) -> io::Result<()> {
        let size = |path: &Path| fs::metadata(path).map(|found| found.len());
        let before = size(&self.job.file)?;
        let output = Command::new("cat")
            .arg(&self.job.file)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() || (output.stdout.len() as u64) < before {
            return Err(io::Error::other(format!(
                "a child sees {} of {before} bytes ({})",
                output.stdout.len(),
                output.status
            )));
        }
        Ok(())
    }

    /// A file that loses its name, or gets another one's, while it is written.
    fn scratch(&self, rng: &mut Rng, unlink: bool) -> io::Result<()> {
        let [path, target] = scratch(&self.job.file);
        let half = fill(
            self.job.nonce,
            rng.next_u64(),
            0,
            1 + rng.below(9000) as usize,
        );
        if !unlink {
            fs::write(&target, b"of the old file")?;
        }
        let mut file = File::create(&path)?;
        file.write_all(&half)?;
        match unlink {
            true => fs::remove_file(&path)?,
            false => fs::rename(&path, &target)?,
        }
        file.write_all(&half)?;
        let mut found = Vec::new();
        if unlink {
            if file.metadata()?.len() != 2 * half.len() as u64 {
                return Err(io::Error::other("an unlinked file has another size"));
            }
            return Ok(());
        }
        drop(file);
        File::open(&target)?.read_to_end(&mut found)?;
        fs::remove_file(&target)?;
        if found != [&half[..], &half].concat() {
            return Err(io::Error::other("a renamed file reads wrong"));
        }
        Ok(())
    }

    /// Duplicates and closes until the writers are done.
    fn duplicate(&self) {
        while !self.ended.load(Ordering::Relaxed) {
            let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
            drop(file.try_clone());
            drop(file);
            sleep(Duration::from_micros(300));
        }
    }
}
