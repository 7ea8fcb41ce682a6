//! `adit stat`: the attached programs and what Adit does for them.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use adit_store::registry::{self, Counts, DirError, FileStat, Listing, ProcessStat, RuntimeDir};
use rustix::io::Errno;

use crate::args::StatArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{self, Table, bytes};
use crate::runtime;

/// Shows them once, or every second.
pub(crate) fn stat(args: &StatArgs) -> Outcome {
    let dir = runtime::directory(args.runtime_dir.as_deref())?;
    loop {
        show(&list(&dir)?, args)?;
        if !args.watch {
            return Ok(0);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// What is registered. A directory that was never made means that nothing ever was.
pub(crate) fn list(dir: &RuntimeDir) -> Result<Listing, Failure> {
    match registry::list(dir) {
        Err(DirError::Kernel(Errno::NOENT)) => Ok(Listing::default()),
        other => other.map_err(runtime::unusable),
    }
}

fn show(listing: &Listing, args: &StatArgs) -> Result<(), Failure> {
    if args.json && args.watch {
        let line = serde_json::to_string(listing).map_err(|e| Failure::new(e.to_string()))?;
        println!("{line}");
        std::io::stdout().flush()?;
    } else if args.json {
        output::json(listing)?;
    } else {
        if args.watch && std::io::stdout().is_terminal() {
            print!("\x1b[H\x1b[2J");
        }
        print(listing);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn print(listing: &Listing) {
    if listing.processes.is_empty() {
        println!("no program is attached");
    } else {
        table(listing).print();
    }
    for skipped in &listing.skipped {
        println!("{}: {}", printable(&skipped.file), skipped.reason);
    }
}

fn table(listing: &Listing) -> Table {
    let mut table = Table::new(&[
        ">pid",
        "program",
        "file",
        ">reads",
        ">bytes",
        ">writes",
        ">bytes",
        ">to the kernel",
        "mostly because of",
        "state",
    ]);
    for process in &listing.processes {
        for file in &process.files {
            row(
                &mut table,
                process,
                &name(file),
                state(process, Some(file)),
                &file.counts,
            );
        }
        if process.files.is_empty() || process.retired != Counts::default() {
            row(
                &mut table,
                process,
                "(closed before)",
                state(process, None),
                &process.retired,
            );
        }
    }
    table
}

fn row(table: &mut Table, process: &ProcessStat, file: &str, state: &str, counts: &Counts) {
    let reason = counts.passed.iter().max_by_key(|(_, count)| **count);
    table.row([
        process.pid.to_string(),
        printable(&process.comm),
        printable(file),
        counts.reads.to_string(),
        bytes(counts.read_bytes),
        counts.writes.to_string(),
        bytes(counts.write_bytes),
        counts.passed_total().to_string(),
        reason.map_or(String::new(), |(name, _)| (*name).to_owned()),
        state.to_owned(),
    ]);
}

fn name(file: &FileStat) -> String {
    file.path
        .clone()
        .unwrap_or_else(|| format!("inode {} on device {}", file.ino, file.dev))
}

fn state(process: &ProcessStat, file: Option<&FileStat>) -> &'static str {
    match file {
        _ if !process.alive => "dead, not yet looked after",
        Some(file) if file.pending => "times not yet advanced",
        Some(file) if file.open => "open",
        _ => "closed",
    }
}

/// Names come from other processes: nothing in them may steer a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }

    #[test]
    fn nothing_attached() {
        let dir = std::env::temp_dir().join("adit-no-such-runtime-directory");
        let dir = runtime::directory(Some(&dir)).unwrap();
        assert!(list(&dir).unwrap().processes.is_empty());
    }
}
