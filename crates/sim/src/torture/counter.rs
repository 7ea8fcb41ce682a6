//! A counter that readers must never see going back, and pages that say which count wrote them.

use super::{Ended, fill};

pub(super) const PAGE: usize = 4096;
/// The counter lies in the first page, the rest in the pages behind it.
pub(super) const PAGES: u64 = 12;

/// The counter as it is stored: itself and its complement, so that a torn read can be told.
pub(super) fn encode(count: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&(!count).to_le_bytes());
    bytes
}

/// The count, unless the bytes are torn.
pub(super) fn decode(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let count = word(0)?;
    (word(8)? == !count).then_some(count)
}

/// The count, where a writer may have died between the two halves: the first is written first.
pub(super) fn decode_torn(bytes: &[u8; 16]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *bytes;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The page that count `count` writes.
pub(super) fn place(count: u64) -> u64 {
    (1 + count % PAGES) * PAGE as u64
}

pub(super) fn contents(nonce: u64, count: u64) -> Vec<u8> {
    fill(nonce, 0, count, PAGE)
}

pub(super) fn initial() -> Vec<u8> {
    let mut bytes = vec![0; (1 + PAGES as usize) * PAGE];
    bytes[..16].copy_from_slice(&encode(0));
    bytes
}

/// `writers` are those that followed one another; their acknowledgements add up.
///
/// A killed writer may have advanced the counter once more than it could say.
pub(super) fn verify(bytes: &[u8], writers: &[Ended]) -> Result<(), String> {
    let Some(first) = writers.first() else {
        return Ok(());
    };
    let acknowledged: u64 = writers.iter().map(|w| w.acknowledged).sum();
    let killed = writers.iter().filter(|w| w.killed).count() as u64;
    let torn_by_the_last = writers.last().is_some_and(|w| w.killed);
    let head: &[u8; 16] = bytes.first_chunk().ok_or("the file is short")?;
    if decode(head).is_none() && !torn_by_the_last {
        return Err(String::from("the counter is torn"));
    }
    let count = decode_torn(head);
    if count < acknowledged || count > acknowledged + killed {
        return Err(format!(
            "the counter is {count}: {acknowledged} acknowledged, {killed} killed"
        ));
    }
    let unfinished = torn_by_the_last.then(|| place(count + 1));
    for count in (1..=count).rev().take(PAGES as usize) {
        let at = place(count);
        let page = bytes
            .get(at as usize..at as usize + PAGE)
            .ok_or("the file is short")?;
        if unfinished != Some(at) && page != contents(first.job.nonce, count) {
            return Err(format!("the page of count {count} is wrong"));
        }
    }
    Ok(())
}
