//! Random 4 KB overwrites in one file; each writer has pages of its own and reads them back.

use super::{Ended, Job, word};
use crate::rng::Rng;

pub(super) const PAGES: u64 = 96;
pub(super) const PAGE: usize = 4096;

/// Where the `nth` operation of `job` writes.
pub(super) fn page_of(job: &Job, nth: u64) -> u64 {
    let own = PAGES / job.writers;
    Rng::at(&[job.nonce, job.writer, nth, 2]).below(own) * job.writers + job.writer
}

/// The contents of `page` after operation `version - 1` of its writer; version 0 is the first.
pub(super) fn contents(nonce: u64, page: u64, version: u64) -> Vec<u8> {
    super::fill(nonce, page, version, PAGE)
}

pub(super) fn initial(nonce: u64) -> Vec<u8> {
    (0..PAGES)
        .flat_map(|page| contents(nonce, page, 0))
        .collect()
}

/// The version of every page after `operations` operations of `job`.
pub(super) fn versions(job: &Job, operations: u64) -> Vec<u64> {
    let mut versions = vec![0; PAGES as usize];
    for nth in 0..operations {
        versions[page_of(job, nth) as usize] = nth + 1;
    }
    versions
}

/// Each word of each page is of the acknowledged version, or of the unfinished operation's.
pub(super) fn verify(bytes: &[u8], writers: &[Ended]) -> Result<(), String> {
    if bytes.len() != PAGES as usize * PAGE {
        return Err(format!("the file has {} bytes", bytes.len()));
    }
    for ended in writers {
        let job = &ended.job;
        let versions = versions(job, ended.acknowledged);
        let unfinished = ended.killed.then(|| page_of(job, ended.acknowledged));
        for page in (0..PAGES).filter(|page| page % job.writers == job.writer) {
            let version = versions[page as usize];
            let newer = (unfinished == Some(page)).then_some(ended.acknowledged + 1);
            let at = page as usize * PAGE;
            check_page(&bytes[at..at + PAGE], job.nonce, page, version, newer)?;
        }
    }
    Ok(())
}

fn check_page(
    bytes: &[u8],
    nonce: u64,
    page: u64,
    version: u64,
    newer: Option<u64>,
) -> Result<(), String> {
    for (nth, found) in (0..).zip(bytes.chunks_exact(8)) {
        let is = |version: u64| word(nonce, page, version, nth).to_le_bytes() == found;
        if !is(version) && !newer.is_some_and(is) {
            return Err(format!(
                "page {page}, word {nth} is not of version {version}"
            ));
        }
    }
    Ok(())
}
