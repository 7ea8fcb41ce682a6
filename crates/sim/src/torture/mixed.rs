//! Writes of all sizes inside, across and beyond the end of a file of one's own, and truncations.

use super::{Ended, Job, fill};
use crate::rng::Rng;

const MOST: u64 = 300_000;

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    /// `pwrite`.
    WriteAt(u64, Vec<u8>),
    /// `write` at the file's own offset.
    Write(Vec<u8>),
    /// `ftruncate`.
    Truncate(u64),
}

/// What the file should be.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) bytes: Vec<u8>,
    offset: u64,
    done: u64,
}

impl Model {
    /// The next operation; it depends on those before.
    pub(super) fn next(&self, job: &Job) -> Operation {
        let mut rng = Rng::at(&[job.nonce, job.writer, self.done, 3]);
        let size = self.bytes.len() as u64;
        let len = match rng.below(10) {
            0 => 1 + rng.below(40_000),
            1..=4 => 1 + rng.below(5000),
            5 => 4096,
            _ => 1 + rng.below(100),
        };
        let data = || fill(job.nonce, job.writer, self.done, len as usize);
        match rng.below(100) {
            0..=3 => Operation::Truncate(rng.below(size + 1)),
            _ if size + len > MOST => Operation::Truncate(rng.below(MOST / 2)),
            4..=33 if self.offset < size + 10_000 => Operation::Write(data()),
            34..=43 => Operation::WriteAt(size + rng.below(9000), data()),
            44..=63 => Operation::WriteAt(size.saturating_sub(rng.below(5000)), data()),
            _ => Operation::WriteAt(rng.below(size + 1), data()),
        }
    }

    pub(super) fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::WriteAt(offset, data) => self.write(*offset, data),
            Operation::Write(data) => {
                self.write(self.offset, data);
                self.offset += data.len() as u64;
            }
            Operation::Truncate(size) => self.bytes.resize(*size as usize, 0),
        }
        self.done += 1;
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(data);
    }

    pub(super) fn after(job: &Job, operations: u64) -> Self {
        let mut model = Self::default();
        for _ in 0..operations {
            let operation = model.next(job);
            model.apply(&operation);
        }
        model
    }
}

/// The file is as acknowledged, but for what the unfinished operation may have changed.
pub(super) fn verify(bytes: &[u8], ended: &Ended) -> Result<(), String> {
    let before = Model::after(&ended.job, ended.acknowledged);
    let mut after = before.clone();
    if ended.killed {
        let operation = before.next(&ended.job);
        after.apply(&operation);
    }
    let (small, large) = (
        before.bytes.len().min(after.bytes.len()),
        before.bytes.len().max(after.bytes.len()),
    );
    if !(small..=large).contains(&bytes.len()) {
        return Err(format!(
            "the file has {} bytes, not {small} to {large}",
            bytes.len()
        ));
    }
    for (at, &found) in bytes.iter().enumerate() {
        let is = |model: &Model| model.bytes.get(at).copied().unwrap_or(0) == found;
        if !is(&before) && !is(&after) {
            return Err(format!(
                "byte {at} of {} is wrong after {} operations",
                bytes.len(),
                ended.acknowledged
            ));
        }
    }
    Ok(())
}
