//! `adit stat`: the attached programs and what Adit does for them.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_pool::{PUBLISHER, PoolFile, ReplayOp, SHARED};
use adit_store::pools::Places;
use adit_store::registry::Skipped;
use adit_store::registry::{self, Counts, DirError, FileStat, Listing, ProcessStat, RuntimeDir};
use rustix::io::Errno;
use serde::Serialize;

use crate::args::{Mode, StatArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{self, Table, bytes};
use crate::runtime;

/// Shows them once, or every second.
pub(crate) fn stat(args: &StatArgs) -> Outcome {
    let dir = runtime::directory(args.runtime_dir.as_deref())?;
    let places = runtime::places(&dir);
    loop {
        show(&Shown::of(&list(&dir)?, &places), args)?;
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

/// Everything there is to show.
#[derive(Serialize)]
struct Shown<'a> {
    processes: Vec<Process<'a>>,
    skipped: &'a [Skipped],
    staged: Vec<Staged>,
    weaker: Vec<Weaker<'a>>,
}

/// A process with the mode it was started in.
#[derive(Serialize)]
struct Process<'a> {
    #[serde(flatten)]
    stat: &'a ProcessStat,
    mode: Option<Mode>,
}

/// A file whose newest bytes lie in a pool. The promise of its program's mode holds for it.
#[derive(Serialize)]
struct Staged {
    path: String,
    #[serde(serialize_with = "crate::output::lossy")]
    pool: PathBuf,
    /// Operations that wait to be published.
    records: u64,
    /// How many of them wait for a commit.
    uncommitted: u64,
    /// Bytes of them.
    bytes: u64,
    /// How often something of it was published since it was staged.
    publishes: u64,
}

/// An open file for which its program's mode promises more than it gets: it could not be staged.
#[derive(Serialize)]
struct Weaker<'a> {
    pid: u32,
    mode: Option<Mode>,
    path: String,
    /// What is missing.
    lacks: &'static str,
    /// Operations left to the kernel, by reason.
    passed: &'a BTreeMap<&'static str, u64>,
}

impl<'a> Shown<'a> {
    fn of(listing: &'a Listing, places: &Places) -> Self {
        let process = |stat: &'a ProcessStat| Process {
            stat,
            mode: Mode::ALL.into_iter().find(|mode| mode.name() == stat.mode),
        };
        let processes: Vec<Process<'a>> = listing.processes.iter().map(process).collect();
        Self {
            weaker: processes.iter().flat_map(weaker).collect(),
            processes,
            skipped: &listing.skipped,
            // A pool that cannot be read, or went meanwhile, is what `adit pool check` is for.
            staged: places
                .pools()
                .iter()
                .flat_map(|pool| staged_in(&pool.path).unwrap_or_default())
                .collect(),
        }
    }
}

/// The open files of a process that have only a weaker promise.
fn weaker<'a>(process: &Process<'a>) -> Vec<Weaker<'a>> {
    let (stat, mode) = (process.stat, process.mode);
    let open = |file: &&FileStat| stat.alive && file.open && file.promise == "weaker";
    let files = stat.files.iter().filter(open);
    files
        .map(|file| Weaker {
            pid: stat.pid,
            mode,
            path: name(file),
            lacks: match mode {
                Some(Mode::Strict) => "each write is durable, not atomic",
                _ => "what one fsync covers is not atomic",
            },
            passed: &file.counts.passed,
        })
        .collect()
}

/// What is staged in a pool now.
fn staged_in(path: &Path) -> adit_pool::Result<Vec<Staged>> {
    let pool = PoolFile::open_read_only(path)?;
    let found = pool.scan()?;
    let mut all = Vec::new();
    for file in pool.files()? {
        // It may be forgotten while we look.
        let Ok(name) = pool.file_name(file) else {
            continue;
        };
        let waiting = found.files.iter().find(|each| each.file() == file);
        let ops = found.records(&pool, file).filter_map(Result::ok);
        all.push(Staged {
            path: String::from_utf8_lossy(&name.path).into_owned(),
            pool: path.to_owned(),
            records: waiting.map_or(0, |each| each.records),
            uncommitted: waiting.map_or(0, |each| each.uncommitted),
            bytes: ops.map(|replay| written(replay.op)).sum(),
            publishes: pool.version(file).map_or(0, publishes),
        });
    }
    Ok(all)
}

/// Each claim of a publisher moves the word by one, above the number of the publisher. What is above the count says other
/// things of the file: that it is shared, and what was relinked.
fn publishes(version: u64) -> u64 {
    (version & (SHARED - 1)) >> PUBLISHER.count_ones()
}

fn written(op: ReplayOp) -> u64 {
    match op {
        ReplayOp::Write { len, .. } => len.into(),
        ReplayOp::Truncate { .. } | ReplayOp::Zero { .. } | ReplayOp::Relinked { .. } => 0,
    }
}

fn show(shown: &Shown<'_>, args: &StatArgs) -> Result<(), Failure> {
    if args.json && args.watch {
        let line = serde_json::to_string(shown).map_err(|e| Failure::new(e.to_string()))?;
        println!("{line}");
        std::io::stdout().flush()?;
    } else if args.json {
        output::json(shown)?;
    } else {
        if args.watch && std::io::stdout().is_terminal() {
            output::clear_screen()?;
        }
        print(shown);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn print(shown: &Shown<'_>) {
    if !shown.processes.is_empty() {
        table(shown).print();
    }
    if !shown.staged.is_empty() {
        staged_table(shown).print();
    }
    if !shown.weaker.is_empty() {
        weaker_table(shown).print();
    }
    if shown.processes.is_empty() && shown.staged.is_empty() {
        println!("no program is attached");
    }
    for process in shown.processes.iter().filter(|p| p.stat.refused > 0) {
        println!("{}", left_out(process.stat));
    }
    for skipped in shown.skipped {
        println!("{}: {}", printable(&skipped.file), skipped.reason);
    }
}

/// Of a process whose files have no room in the list: how often it has opened such a file.
fn left_out(process: &ProcessStat) -> String {
    let (pid, comm, times) = (process.pid, printable(&process.comm), process.refused);
    format!(
        "{pid} {comm}: it has more files than this list has room for: {times} left out so far, some perhaps with a weaker \
         promise"
    )
}

fn staged_table(shown: &Shown<'_>) -> Table {
    let mut table = Table::new(&[
        "staged file",
        ">bytes",
        ">operations",
        ">uncommitted",
        ">publishes",
        "pool",
    ]);
    for file in &shown.staged {
        table.row([
            printable(&file.path),
            bytes(file.bytes),
            file.records.to_string(),
            file.uncommitted.to_string(),
            file.publishes.to_string(),
            printable(&file.pool.display().to_string()),
        ]);
    }
    table
}

fn weaker_table(shown: &Shown<'_>) -> Table {
    let mut table = Table::new(&[
        ">pid",
        "mode",
        "file with a weaker promise",
        "what is missing",
        ">to the kernel",
        "because of",
    ]);
    for file in &shown.weaker {
        let reasons: Vec<&str> = file.passed.keys().copied().collect();
        table.row([
            file.pid.to_string(),
            file.mode.map_or("?", Mode::name).to_owned(),
            printable(&file.path),
            file.lacks.to_owned(),
            file.passed.values().sum::<u64>().to_string(),
            reasons.join(", "),
        ]);
    }
    table
}

fn table(shown: &Shown<'_>) -> Table {
    let mut table = Table::new(&[
        ">pid",
        "program",
        "mode",
        "file",
        ">reads",
        ">bytes",
        ">writes",
        ">bytes",
        ">to the kernel",
        "mostly because of",
        "state",
    ]);
    for process in &shown.processes {
        let stat = process.stat;
        for file in &stat.files {
            let state = state(stat, Some(file));
            row(&mut table, process, &name(file), state, &file.counts);
        }
        if stat.files.is_empty() || stat.retired != Counts::default() {
            let state = state(stat, None);
            row(&mut table, process, "(closed before)", state, &stat.retired);
        }
    }
    table
}

fn row(table: &mut Table, process: &Process<'_>, file: &str, state: &str, counts: &Counts) {
    let reason = counts.passed.iter().max_by_key(|(_, count)| **count);
    table.row([
        process.stat.pid.to_string(),
        printable(&process.stat.comm),
        process.mode.map_or("?", Mode::name).to_owned(),
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
        Some(file) if file.open && file.promise == "weaker" => "open, weaker promise",
        Some(file) if file.open && file.promise == "staged" => "open, staged",
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
    fn a_shared_file_is_published_no_more_often() {
        let relinks = |count: u64| count << 40 | 1 << 63;
        assert_eq!(publishes(3 << 16), 3);
        assert_eq!(publishes(3 << 16 | 7), 3, "somebody publishes it just now");
        assert_eq!(publishes(3 << 16 | SHARED | relinks(5)), 3);
        assert_eq!(publishes(SHARED - 1), 0x7f_ffff);
    }

    #[test]
    fn nothing_attached() {
        let dir = std::env::temp_dir().join("adit-no-such-runtime-directory");
        let dir = runtime::directory(Some(&dir)).unwrap();
        assert!(list(&dir).unwrap().processes.is_empty());
    }
}
