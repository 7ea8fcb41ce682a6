//! Pools in words and tables.

use std::path::Path;

use adit_pool::layout::RecordKind;
use adit_pool::{CheckReport, Dump, FileName, Info, Rejected};

use crate::output::{Table, bytes};

/// What a pool is and holds.
pub(super) fn info(file: &Path, info: &Info) {
    println!(
        "{}: pool {}, format {}",
        file.display(),
        info.uuid,
        info.version
    );
    println!(
        "  {} in chunks of {}",
        bytes(info.size),
        bytes(info.chunk_size)
    );
    let state = match (info.clean, info.attached) {
        (_, 1..) => "in use",
        (true, _) => "closed cleanly",
        (false, _) => "not closed cleanly: the next process to attach recovers it",
    };
    println!(
        "  {state}; {} attached, {} files staged",
        info.attached, info.files
    );
    if !info.same_boot {
        println!("  last used before this boot of the system, or on another disk");
    }
    for (kind, count) in &info.chunks {
        println!("  {count} chunks {}", plain(kind));
    }
}

/// The result of a check.
pub(super) fn checked(file: &Path, unusable: Option<&str>, report: Option<&CheckReport>) {
    let name = file.display();
    if let Some(why) = unusable {
        println!("{name}: NOT SOUND: {why}");
    }
    let Some(report) = report else { return };
    let verdict = if report.is_sound() {
        "sound"
    } else {
        "NOT SOUND"
    };
    let log = &report.log;
    println!(
        "{name}: {verdict}; {} log lines, {} count, {} rejected",
        log.lines, log.live, log.rejected
    );
    for (word, problems) in [("problem", &report.problems), ("note", &report.notes)] {
        for problem in problems {
            println!(
                "  {word}: {} at offset {}: {}",
                problem.structure, problem.offset, problem.what
            );
        }
    }
}

/// Everything in a pool.
pub(super) fn dump(file: &Path, dump: &Dump) {
    info(file, &dump.info);
    let mut slots = Table::new(&[">slot", ">incarnation", ">pid", "state"]);
    for slot in &dump.slots {
        let state = if slot.alive { "alive" } else { "dead" };
        slots.row([
            slot.slot.to_string(),
            slot.incarnation.to_string(),
            slot.pid.to_string(),
            state.to_owned(),
        ]);
    }
    let mut chunks = Table::new(&[">chunk", ">count", "kind", ">owner"]);
    for run in &dump.chunks {
        let kind = run.kind.as_ref().map_or("damaged".to_owned(), plain);
        chunks.row([
            run.first.to_string(),
            run.count.to_string(),
            kind,
            run.owner.to_string(),
        ]);
    }
    let mut files = Table::new(&[">file", ">retired", ">sealed", ">next", "path"]);
    let number = |value: Option<u64>| value.map_or("damaged".to_owned(), |v| v.to_string());
    for file in &dump.files {
        let name = file.name.as_ref().map_or("(name damaged)".to_owned(), path);
        files.row([
            file.file_id.to_string(),
            number(file.retired),
            number(file.sealed),
            file.next_seq.to_string(),
            name,
        ]);
    }
    let mut records = Table::new(&[
        ">at", ">file", ">seq", "kind", ">offset", ">length", ">data at", "counts",
    ]);
    for record in &dump.records {
        records.row([
            record.at.to_string(),
            record.file_id.to_string(),
            record.seq.to_string(),
            plain(&record.kind),
            record.file_offset.to_string(),
            record.len.to_string(),
            record.pool_offset.to_string(),
            match record.kind {
                RecordKind::Commit => "commits",
                _ if record.committed => "committed",
                _ => "in this boot",
            }
            .to_owned(),
        ]);
    }
    for (title, count, table) in [
        ("attachments", dump.slots.len(), slots),
        ("chunks", dump.chunks.len(), chunks),
        ("files", dump.files.len(), files),
        ("records", dump.records.len(), records),
    ] {
        println!("\n{title}: {count}");
        if count > 0 {
            table.print();
        }
    }
    rejected(&dump.rejected);
}

/// Log lines that were not believed.
pub(super) fn rejected(lines: &[Rejected]) {
    for line in lines {
        println!("rejected at {}: {}", line.offset, plain(&line.reason));
    }
}

/// A path from a pool, which may hold anything, for a terminal.
pub(super) fn path(name: &FileName) -> String {
    printable(&name.path)
}

/// A path for a terminal.
pub(super) fn printable(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The word that JSON has for a value.
fn plain(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => "?".to_owned(),
    }
}
