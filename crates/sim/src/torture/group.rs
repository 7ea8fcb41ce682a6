//! Two files of one's own that belong together: each record is appended to both, and every few records both are
//! committed at one instant, by an `fsync` of one of them (`adit run --commit together`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Ended, Job, append};
use crate::rng::Rng;

/// The file beside a writer's own.
pub(super) fn second(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".second");
    name.into()
}

/// The job's records in order, each in both files.
pub(super) fn write(job: &Job) -> io::Result<()> {
    let open = |path: &Path| OpenOptions::new().append(true).open(path);
    let mut files: [File; 2] = [open(&job.file)?, open(&second(&job.file))?];
    let mut rng = Rng::at(&[job.nonce, job.writer, 9]);
    for nth in 0..job.operations {
        let record = append::record(job, nth);
        job.operation(|| {
            files[0].write_all(&record)?;
            files[1].write_all(&job.spoil(nth, record.clone()))?;
            match rng.below(12) {
                0 => files[rng.below(2) as usize].sync_all(),
                1 => files[rng.below(2) as usize].sync_data(),
                _ => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// Everything acknowledged is in both.
pub(super) fn verify(
    read: impl Fn(&Path) -> Result<Vec<u8>, String>,
    ended: &Ended,
) -> Result<(), String> {
    append::verify(&read(&ended.job.file)?, core::slice::from_ref(ended))?;
    append::verify(
        &read(&second(&ended.job.file))?,
        core::slice::from_ref(ended),
    )
    .map_err(|what| format!("the second file: {what}"))
}
