//! What must be there after the cut.

use crate::kinds::{FILE, Kind, Place, SHORTS, WORD};
use crate::promise::Promise;

/// Says what was found, or what is missing.
pub(crate) fn run(place: &Place, acknowledged: u64, promise: Promise) -> Result<String, String> {
    match place.kind {
        Kind::Overwrite | Kind::Unwritten => {
            overwrites(place, acknowledged, promise, &content(place)?)
        }
        Kind::Append => appends(place, acknowledged, promise, &content(place)?),
        Kind::Replace if acknowledged == 0 && !place.file().exists() => {
            Ok("nothing was acknowledged".into())
        }
        Kind::Replace => replacement(place, acknowledged, &content(place)?),
        Kind::Short => {
            let looks: Result<Vec<_>, String> = (0..SHORTS).map(|n| look(place, n)).collect();
            shorts(place, acknowledged, &looks?)
        }
    }
}

fn content(place: &Place) -> Result<Vec<u8>, String> {
    std::fs::read(place.file()).map_err(|e| format!("{}: {e}", place.file().display()))
}

fn integer(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The file must be as some number of operations left it, not fewer than were acknowledged, and of
/// the next one any words may be there, unless the mode is atomic.
fn overwrites(
    place: &Place,
    acknowledged: u64,
    promise: Promise,
    content: &[u8],
) -> Result<String, String> {
    if content.len() as u64 != FILE {
        return Err(format!("{} bytes instead of {FILE}", content.len()));
    }
    let found: Vec<u64> = content.chunks(WORD as usize).map(integer).collect();
    let newest = found.iter().map(|w| w >> 32).max().unwrap_or(0);
    // A damaged word can name any operation.
    if newest > acknowledged + (1 << 20) {
        return Err(format!("a word names operation {newest}"));
    }
    let mut last = vec![0; found.len()];
    let mut before = vec![0; found.len()];
    for operation in 1..=newest {
        let (offset, len) = place.range(operation);
        let words = (offset / WORD) as usize..((offset + len) / WORD) as usize;
        if operation == newest {
            before.copy_from_slice(&last);
        }
        last[words].fill(operation);
    }
    let torn = matches!(promise, Promise::Posix | Promise::Sync);
    match compare(place, &found, &last, &last) {
        Ok(()) if newest >= acknowledged => Ok(format!(
            "{newest} operations are there, {acknowledged} were acknowledged"
        )),
        Ok(()) => Err(format!(
            "only {newest} operations are there, {acknowledged} were acknowledged"
        )),
        // Its completion was not acknowledged: it may be there in part.
        Err(_) if newest > acknowledged && torn => {
            compare(place, &found, &last, &before)?;
            Ok(format!(
                "{} operations are there and a part of one, {acknowledged} were acknowledged",
                newest - 1
            ))
        }
        Err(e) => Err(e),
    }
}

/// Every word is as one of the two operations left it.
fn compare(place: &Place, found: &[u64], one: &[u64], other: &[u64]) -> Result<(), String> {
    for (i, &word) in found.iter().enumerate() {
        let right = |operation| place.word(operation, i as u64) == word;
        if !right(one[i]) && !right(other[i]) {
            return Err(format!(
                "offset {}: {word:#018x} (of operation {}), but operation {} wrote {:#018x}",
                i as u64 * WORD,
                word >> 32,
                one[i],
                place.word(one[i], i as u64)
            ));
        }
    }
    Ok(())
}

/// The file is a sequence of whole records, all that were acknowledged; of the next one any part that the mode
/// lets be there.
fn appends(
    place: &Place,
    acknowledged: u64,
    promise: Promise,
    content: &[u8],
) -> Result<String, String> {
    let mut at = 0;
    let mut whole = 0;
    loop {
        let record = place.record(whole + 1);
        if content[at..].starts_with(&record) {
            at += record.len();
            whole += 1;
            continue;
        }
        if whole < acknowledged {
            return Err(format!(
                "record {} at {at} is not there ({} bytes follow), {acknowledged} were acknowledged",
                whole + 1,
                content.len() - at
            ));
        }
        let rest = &content[at..];
        if rest.len() > record.len() {
            return Err(format!(
                "{} bytes too many after record {whole}",
                rest.len()
            ));
        }
        if let Some(i) = (0..rest.len()).find(|&i| rest[i] != 0 && rest[i] != record[i]) {
            return Err(format!("wrong byte {:#x} at {}", rest[i], at + i));
        }
        let whole_calls = |len: usize| place.pieces(whole + 1).any(|end| end == len);
        match promise {
            Promise::Atomic if !rest.is_empty() => {
                return Err(format!(
                    "a part of record {}: {} bytes",
                    whole + 1,
                    rest.len()
                ));
            }
            Promise::Strict if !rest.is_empty() && !whole_calls(rest.len()) => {
                return Err(format!(
                    "a part of a call of record {}: {} bytes",
                    whole + 1,
                    rest.len()
                ));
            }
            _ => {}
        }
        return Ok(format!(
            "{whole} records are there and {} bytes of the next, {acknowledged} were acknowledged",
            rest.len()
        ));
    }
}

/// The file is one version as a whole, not older than the last that was acknowledged.
fn replacement(place: &Place, acknowledged: u64, content: &[u8]) -> Result<String, String> {
    let version = integer(content.get(..8).ok_or("shorter than any version")?);
    if version == 0 || place.record(version) != content {
        return Err(format!("{} bytes are not version {version}", content.len()));
    }
    if version < acknowledged {
        return Err(format!(
            "version {version}, but {acknowledged} was acknowledged"
        ));
    }
    Ok(format!(
        "version {version}, {acknowledged} was acknowledged"
    ))
}

/// What a short file holds, if it is there.
fn look(place: &Place, number: u64) -> Result<Option<Vec<u8>>, String> {
    let path = place.short(number);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

/// Each file is one version as a whole, not older than the last that was acknowledged. One of them may be about to be
/// made anew: then it is missing, or empty.
fn shorts(place: &Place, acknowledged: u64, found: &[Option<Vec<u8>>]) -> Result<String, String> {
    let (mut underway, mut newest) = (0, 0);
    for (number, content) in (0..).zip(found) {
        let turn = (acknowledged % SHORTS + SHORTS - number) % SHORTS;
        let least = acknowledged
            .checked_sub(turn)
            .filter(|version| *version > 0);
        let content = content.as_deref().unwrap_or_default();
        if content.is_empty() {
            underway += u64::from(least.is_some());
            continue;
        }
        let version = integer(content.get(..8).ok_or("shorter than any version")?);
        if version % SHORTS != number || place.record(version) != content {
            return Err(format!(
                "{} bytes in {number} are not version {version}",
                content.len()
            ));
        }
        if Some(version) < least {
            return Err(format!(
                "version {version} in {number}, but {least:?} was acknowledged"
            ));
        }
        newest = newest.max(version);
    }
    if underway > 1 {
        return Err(format!("{underway} files are missing or empty"));
    }
    Ok(format!("version {newest}, {acknowledged} was acknowledged"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSIX: Promise = Promise::Posix;

    fn place(kind: Kind) -> Place {
        Place {
            kind,
            dir: "/nonexistent".into(),
            seed: 7,
        }
    }

    /// What a number of operations leave.
    fn written(place: &Place, operations: u64) -> Vec<u8> {
        let mut content = match place.kind {
            Kind::Overwrite => place.bytes(0, 0, FILE),
            _ => vec![0; FILE as usize],
        };
        for operation in 1..=operations {
            let (offset, len) = place.range(operation);
            let at = offset as usize;
            let bytes = place.bytes(operation, offset, len);
            content[at..at + len as usize].copy_from_slice(&bytes);
        }
        content
    }

    #[test]
    fn overwrites_are_judged() {
        for kind in [Kind::Overwrite, Kind::Unwritten] {
            let place = place(kind);
            let content = written(&place, 300);
            for acknowledged in [0, 299, 300] {
                overwrites(&place, acknowledged, POSIX, &content).expect("all there");
            }
            overwrites(&place, 301, POSIX, &content).expect_err("one is missing");
            assert!(overwrites(&place, 0, POSIX, &content[8..]).is_err());
            // Each word of each operation that is still to be seen, back to an older state.
            let older = written(&place, 250);
            let mut lost = 0;
            for at in (0..content.len()).step_by(WORD as usize) {
                let word = at..at + WORD as usize;
                if older[word.clone()] != content[word.clone()] {
                    let mut damaged = content.clone();
                    damaged[word.clone()].copy_from_slice(&older[word]);
                    let judged = overwrites(&place, 300, POSIX, &damaged);
                    judged.expect_err("a word of an acknowledged operation is lost");
                    lost += 1;
                }
                if lost > 50 {
                    break;
                }
            }
            assert!(lost > 50);
        }
    }

    #[test]
    fn only_the_operation_in_flight_may_be_there_in_part() {
        let place = place(Kind::Overwrite);
        let (before, after) = (written(&place, 20), written(&place, 21));
        let (offset, len) = place.range(21);
        assert!(len >= 64, "choose another operation");
        let middle = (offset + len / 2) as usize;
        let torn = [&after[..middle], &before[middle..]].concat();
        overwrites(&place, 20, POSIX, &torn).expect("in flight");
        overwrites(&place, 21, POSIX, &torn).expect_err("acknowledged");
        overwrites(&place, 20, Promise::Strict, &torn).expect_err("calls are atomic");
        overwrites(&place, 20, Promise::Strict, &after).expect("whole");
        let mut foreign = after;
        foreign[FILE as usize / 2 + 5] ^= 1;
        overwrites(&place, 0, POSIX, &foreign).expect_err("nobody wrote this");
    }

    #[test]
    fn appends_are_judged() {
        let place = place(Kind::Append);
        let all: Vec<u8> = (1..=9).flat_map(|n| place.record(n)).collect();
        let start = all.len() - place.record(9).len();
        appends(&place, 9, POSIX, &all).expect("all there");
        appends(&place, 8, POSIX, &all[..all.len() - 1]).expect("in flight");
        appends(&place, 9, POSIX, &all[..all.len() - 1])
            .expect_err("a byte of an acknowledged one");
        let cut = &all[..all.len() - 1];
        appends(&place, 8, Promise::Atomic, cut).expect_err("a part of a transaction");
        appends(&place, 8, Promise::Strict, cut).expect_err("a part of a call");
        appends(&place, 8, Promise::Atomic, &all[..start]).expect("nothing of it");
        for end in place.pieces(9) {
            appends(&place, 8, Promise::Strict, &all[..start + end]).expect("whole calls");
        }
        let mut zeros = all.clone();
        zeros[start..].fill(0);
        appends(&place, 8, POSIX, &zeros).expect("blocks without contents");
        appends(&place, 9, POSIX, &zeros).expect_err("contents are lost");
        let mut wrong = all.clone();
        wrong[start + 3] ^= 0x10;
        appends(&place, 8, POSIX, &wrong).expect_err("nobody wrote this");
        let long = [&all[..], &[0; 7000]].concat();
        appends(&place, 9, POSIX, &long).expect_err("longer than the next record");
    }

    #[test]
    fn replacements_are_judged() {
        let place = place(Kind::Replace);
        let version = place.record(5);
        replacement(&place, 5, &version).expect("there");
        replacement(&place, 4, &version).expect("newer");
        replacement(&place, 6, &version).expect_err("older");
        replacement(&place, 0, &version[..version.len() - 1]).expect_err("cut short");
        replacement(&place, 0, &[]).expect_err("empty");
    }

    #[test]
    fn short_files_are_judged() {
        let place = place(Kind::Short);
        let mut files = vec![None; SHORTS as usize];
        for version in 1..=300 {
            files[(version % SHORTS) as usize] = Some(place.record(version));
        }
        shorts(&place, 300, &files).expect("there");
        shorts(&place, 290, &files).expect("newer");
        shorts(&place, 301, &files).expect_err("one was acknowledged that is not there");
        let with = |number: usize, content: Option<Vec<u8>>| {
            let mut files = files.clone();
            files[number] = content;
            files
        };
        shorts(&place, 300, &with(45, None)).expect("about to be made anew");
        shorts(&place, 300, &with(45, Some(vec![]))).expect("made");
        let mut two = with(45, None);
        two[46] = None;
        shorts(&place, 300, &two).expect_err("two at once");
        let whole = place.record(301);
        let cut = whole[..whole.len() - 1].to_vec();
        shorts(&place, 300, &with(45, Some(cut))).expect_err("torn");
        shorts(&place, 300, &with(45, Some(whole))).expect("done");
        shorts(&place, 300, &with(45, Some(place.record(302)))).expect_err("another's bytes");
    }
}
