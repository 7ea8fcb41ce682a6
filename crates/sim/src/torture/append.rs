//! Several processes append to one file: no record is lost, torn or written twice.

use std::collections::BTreeMap;

use super::{Ended, Job, fill};
use crate::rng::Rng;

const MAGIC: u32 = 0xad17_10c5;
/// magic, length, writer, sequence, checksum.
const HEADER: usize = 20;

/// The record that `job` appends as its `nth` operation.
pub(super) fn record(job: &Job, nth: u64) -> Vec<u8> {
    let mut rng = Rng::at(&[job.nonce, job.writer, nth, 1]);
    let len = HEADER as u64
        + match rng.below(20) {
            0 => 5000 + rng.below(30_000),
            1..=7 => 200 + rng.below(4800),
            _ => rng.below(200),
        };
    let mut record = Vec::with_capacity(len as usize);
    for field in [MAGIC, len as u32, job.writer as u32, nth as u32, 0] {
        record.extend(field.to_le_bytes());
    }
    record.extend(fill(job.nonce, job.writer, nth, len as usize - HEADER));
    let sum = checksum(&record);
    record[16..HEADER].copy_from_slice(&sum.to_le_bytes());
    record
}

fn checksum(record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&record[..16]), &record[HEADER..])
}

/// A whole record at the start of `bytes`: writer, sequence, length.
fn parse(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let field = |nth: usize| {
        Some(u32::from_le_bytes(
            bytes.get(nth * 4..nth * 4 + 4)?.try_into().ok()?,
        ))
    };
    let len = field(1)? as usize;
    if field(0)? != MAGIC || len < HEADER {
        return None;
    }
    let record = bytes.get(..len)?;
    (checksum(record) == field(4)?).then_some((u64::from(field(2)?), u64::from(field(3)?), len))
}

/// Compares the file with what its writers acknowledged.
pub(super) fn verify(bytes: &[u8], writers: &[Ended]) -> Result<(), String> {
    let mut next: BTreeMap<u64, u64> = writers.iter().map(|w| (w.job.writer, 0)).collect();
    // The operation that was cut short, of writers that were killed: once each.
    let mut unfinished: BTreeMap<u64, Vec<u8>> = writers
        .iter()
        .filter(|w| w.killed)
        .map(|w| (w.job.writer, record(&w.job, w.acknowledged)))
        .collect();
    let mut at = 0;
    while at < bytes.len() {
        if let Some((writer, sequence, len)) = parse(&bytes[at..]) {
            let expected = next
                .get_mut(&writer)
                .ok_or(format!("{at}: nobody's record"))?;
            if sequence != *expected {
                return Err(format!(
                    "at {at}: record {sequence} of writer {writer} where {expected} should be"
                ));
            }
            let ended = writers.iter().find(|w| w.job.writer == writer);
            let whole = ended.map(|w| record(&w.job, sequence));
            if whole.as_deref() != Some(&bytes[at..at + len]) {
                return Err(format!(
                    "at {at}: record {sequence} of writer {writer} is another"
                ));
            }
            *expected += 1;
            at += len;
        } else {
            at += leading_part(&bytes[at..], &mut unfinished).ok_or_else(|| {
                format!(
                    "at {at} of {}: neither a record nor the part of one cut short",
                    bytes.len()
                )
            })?;
        }
    }
    for ended in writers {
        let found = next[&ended.job.writer];
        let at_most = ended.acknowledged + u64::from(ended.killed);
        if found < ended.acknowledged || found > at_most {
            return Err(format!(
                "writer {} acknowledged {} records, {found} are there",
                ended.job.writer, ended.acknowledged
            ));
        }
    }
    Ok(())
}

/// The records of `job` and of the outsider in a file that `job`'s writer is at work on: all that were
/// acknowledged are there, in order, and what follows is the beginning of the next one.
pub(super) fn count(bytes: &[u8], job: &Job, acknowledged: u64) -> Result<[u64; 2], String> {
    let outsider = Job {
        writer: super::trouble::OUTSIDER,
        ..job.clone()
    };
    let jobs = [job, &outsider];
    let mut found = [0; 2];
    let mut at = 0;
    while let Some((writer, sequence, len)) = parse(&bytes[at..]) {
        let nth = jobs
            .iter()
            .position(|job| job.writer == writer)
            .ok_or(format!("{at}: nobody's record"))?;
        if sequence != found[nth] || record(jobs[nth], sequence) != bytes[at..at + len] {
            return Err(format!(
                "at {at}: record {sequence} of writer {writer} where {} should be",
                found[nth]
            ));
        }
        found[nth] += 1;
        at += len;
    }
    if !record(job, found[0]).starts_with(&bytes[at..]) {
        return Err(format!("at {at} of {}: not the next record", bytes.len()));
    }
    match found[0] < acknowledged {
        true => Err(format!(
            "{} records of writer {}, which had acknowledged {acknowledged}",
            found[0], job.writer
        )),
        false => Ok(found),
    }
}

/// The length of the leading part of an unfinished record that `bytes` starts with.
fn leading_part(bytes: &[u8], unfinished: &mut BTreeMap<u64, Vec<u8>>) -> Option<usize> {
    let common = |record: &Vec<u8>| bytes.iter().zip(record).take_while(|(a, b)| a == b).count();
    let (&writer, len) = unfinished
        .iter()
        .map(|(w, record)| (w, common(record)))
        .max_by_key(|(_, len)| *len)?;
    unfinished.remove(&writer);
    // What follows the part may happen to start as the rest of the record does: one time in 256 with
    // one byte.
    let shorter = (1..len)
        .rev()
        .take(8)
        .find(|len| parse(&bytes[*len..]).is_some());
    let ends_here = len == bytes.len() || parse(&bytes[len..]).is_some();
    (len > 0).then_some(if ends_here {
        len
    } else {
        shorter.unwrap_or(len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::{Pattern, Plant};

    fn ended(writer: u64, acknowledged: u64, killed: bool) -> Ended {
        let job = Job {
            pattern: Pattern::Append,
            file: "f".into(),
            nonce: 7,
            writer,
            writers: 2,
            operations: 10,
            plant: Plant::Nothing,
            reader: false,
        };
        Ended {
            job,
            acknowledged,
            killed,
        }
    }

    fn file(writers: &[Ended], order: &[(usize, u64)]) -> Vec<u8> {
        order
            .iter()
            .flat_map(|(w, nth)| record(&writers[*w].job, *nth))
            .collect()
    }

    #[test]
    fn accepts_interleaved_and_cut_records_only() {
        let writers = [ended(0, 2, false), ended(1, 1, true)];
        let whole = file(&writers, &[(0, 0), (1, 0), (0, 1)]);
        verify(&whole, &writers).unwrap();
        let unacknowledged = file(&writers, &[(0, 0), (1, 0), (1, 1), (0, 1)]);
        verify(&unacknowledged, &writers).unwrap();
        let unfinished = record(&writers[1].job, 1);
        let part = &unfinished[..unfinished.len() / 2];
        let mut cut = file(&writers, &[(0, 0), (1, 0)]);
        cut.extend(part);
        cut.extend(record(&writers[0].job, 1));
        verify(&cut, &writers).unwrap();

        // The record behind the part starts with a byte that the cut record goes on with.
        let writers_again = [ended(0, 2, false), ended(1, 0, true)];
        let cut_at = (0..).find_map(|nonce| {
            let job = Job {
                nonce,
                ..writers_again[1].job.clone()
            };
            let record = record(&job, 0);
            let at = (25..record.len()).find(|at| record[*at] == MAGIC.to_le_bytes()[0])?;
            Some((nonce, at))
        });
        let (nonce, at) = cut_at.unwrap();
        let again = writers_again.map(|w| Ended {
            job: Job { nonce, ..w.job },
            ..w
        });
        let mut bytes = record(&again[1].job, 0)[..at].to_vec();
        bytes.extend(file(&again, &[(0, 0), (0, 1)]));
        verify(&bytes, &again).unwrap();

        for wrong in [
            &[(0, 0), (0, 1)][..],
            &[(0, 0), (1, 0), (0, 1), (0, 2)],
            &[(1, 0), (0, 1)],
        ] {
            verify(&file(&writers, wrong), &writers).unwrap_err();
        }
        let mut twice_cut = cut.clone();
        twice_cut.extend(part);
        verify(&twice_cut, &writers).unwrap_err();
        let mut flipped = whole;
        flipped[25] ^= 1;
        verify(&flipped, &writers).unwrap_err();
    }
}
