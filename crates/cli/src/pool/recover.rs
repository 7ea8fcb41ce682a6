//! `adit pool recover`: what dead programs staged goes into their files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use adit_pool::{FileName, PoolFile, Rejected, Released};
use adit_store::recovery::{recover_with, walkers};
use adit_store::staged::{Error, Recovered};
use serde::Serialize;

use super::{failure, show};
use crate::args::PoolFile as Named;
use crate::failure::{Failure, NO, Outcome, words};
use crate::{limits, output, runtime};

/// What became of one file.
#[derive(Debug, Serialize)]
struct Published {
    path: String,
    records: u64,
    bytes: u64,
    /// It was not there, and its bytes are gone: somebody asked for that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    given_up: bool,
    /// Its path, as it is, where it is for its user to say what becomes of them.
    #[serde(skip)]
    missing: Option<PathBuf>,
    /// Why its bytes are still in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Report {
    files: Vec<Published>,
    /// Log lines that were not believed.
    rejected: u64,
    /// The first of them.
    lines: Vec<Rejected>,
    /// Log lines that were cut off while they were written, as a power cut leaves them.
    torn: u64,
    released: Released,
}

/// Recovers a pool; of files that are not there any more those that are given up lose what is staged of them.
pub(super) fn recover(named: &Named, give_up: &[PathBuf]) -> Outcome {
    limits::lifted_for(|| recover_now(named, give_up))
}

fn recover_now(named: &Named, give_up: &[PathBuf]) -> Outcome {
    let path = named.file.as_path();
    let fail = |error: adit_pool::Error| failure(path, &error);
    // Its place is told by where it lies, not by the link or the directory from which it was named.
    let lies = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let within = runtime::known_places().for_chosen(&lies);
    let within = within.map_err(|original| copy_of(path, &original))?;
    let file = PoolFile::open(path).map_err(fail)?;
    file.pool().walk_with(walkers());
    let attachment = file.attach().map_err(fail)?;
    let recovered =
        recover_with(&attachment, within.as_ref(), give_up).map_err(|error| match &error {
            Error::Pool(error) => failure(path, error),
            error => Failure::new(format!("{}: {error}", path.display())),
        })?;
    file.detach(attachment).map_err(fail)?;
    let report = report(recovered);
    if named.json {
        output::json(&report)?;
    } else {
        print(path, &report);
    }
    let kept = report.files.iter().any(|each| each.kept.is_some());
    if let Some(not_there) = give_up.iter().find(|path| !report.has_given_up(path)) {
        return Err(Failure::new(format!(
            "{}: nothing of it was given up: no file that is not there has this path in {}",
            not_there.display(),
            path.display()
        ))
        .next("give the path as this command names it"));
    }
    Ok(if kept || report.rejected > 0 { NO } else { 0 })
}

/// The path of a file that bytes wait for, where there is not even that any more.
fn nowhere(name: &FileName, reason: &Error) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(&name.path));
    let is = matches!(reason, Error::OtherFile(_)) && path.symlink_metadata().is_err();
    is.then(|| path.to_owned())
}

impl Report {
    fn has_given_up(&self, path: &Path) -> bool {
        let path = show::printable(path.as_os_str().as_bytes());
        self.files
            .iter()
            .any(|file| file.given_up && file.path == path)
    }
}

fn copy_of(path: &Path, original: &Path) -> Failure {
    let (path, original) = (output::quoted(path), output::quoted(original));
    Failure::new(format!(
        "{path}: a copy of the pool {original}: what is in it was written to the same files long ago, and would undo what \
         was written since"
    ))
    .next(format!("adit pool recover {original}, and remove the copy: adit pool rm --force {path}"))
}

fn report(recovered: Recovered) -> Report {
    let path = |name: Option<&FileName>| name.map_or("(name damaged)".to_owned(), show::path);
    let published = recovered.published.iter().map(|each| Published {
        path: show::path(&each.name),
        records: each.records,
        bytes: each.bytes,
        given_up: each.given_up,
        missing: None,
        kept: None,
    });
    let kept = recovered.kept.iter().map(|each| Published {
        path: path(each.name.as_ref()),
        records: each.records,
        bytes: 0,
        given_up: false,
        missing: each
            .name
            .as_ref()
            .and_then(|name| nowhere(name, &each.reason)),
        kept: Some(match &each.reason {
            Error::Base(errno) => format!("its file: {}", words(*errno)),
            reason => reason.to_string(),
        }),
    });
    let living = recovered.living.iter().map(|(name, records)| Published {
        path: path(name.as_ref()),
        records: *records,
        bytes: 0,
        given_up: false,
        missing: None,
        kept: Some("a living program is writing it; it publishes itself".to_owned()),
    });
    Report {
        files: published.chain(kept).chain(living).collect(),
        rejected: recovered.rejected,
        lines: recovered.lines,
        torn: recovered.torn,
        released: recovered.released,
    }
}

fn print(path: &Path, report: &Report) {
    for file in &report.files {
        match &file.kept {
            None if file.given_up => println!("{}: given up: {} records", file.path, file.records),
            None => println!(
                "{}: {} records, {}",
                file.path,
                file.records,
                output::bytes(file.bytes)
            ),
            Some(why) => println!("{}: STILL IN THE POOL: {why}", file.path),
        }
    }
    if let Some(missing) = report.files.iter().find_map(|file| file.missing.as_deref()) {
        println!(
            "next: put the file back where it was, or lose what is staged of it: adit pool recover {} --give-up {}",
            output::quoted(path),
            output::quoted(missing)
        );
    }
    let released = &report.released;
    println!(
        "{}: {} files recovered, {} attachments of dead programs cleared, {} chunks freed",
        path.display(),
        report
            .files
            .iter()
            .filter(|f| f.kept.is_none() && !f.given_up)
            .count(),
        released.slots,
        released.chunks
    );
    if report.torn > 0 {
        println!(
            "{} log lines were cut off while they were written",
            report.torn
        );
    }
    show::rejected(&report.lines);
    if report.rejected > 0 {
        println!(
            "{} log lines were not believed: what they staged was acknowledged, and is lost",
            report.rejected
        );
    }
}
