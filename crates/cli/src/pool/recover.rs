//! `adit pool recover`: what dead programs staged goes into their files.
//!
//! Records name a file by its handle and its last known path. Only the path can be opened without
//! privilege, so it is opened and its handle compared: bytes go into the file that they were
//! written to, or stay in the pool and are reported. Records are retired only when the kernel has
//! made the file durable, so a recovery that is interrupted can be repeated.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use adit_pmem::Medium;
use adit_pool::{
    Attachment, FileMedium, FileName, Pool, PoolFile, RecoveredFile, Recovery, Released, ReplayOp,
};
use serde::Serialize;

use super::{failure, show};
use crate::args::PoolFile as Named;
use crate::failure::{NO, Outcome};
use crate::handle;
use crate::output;

/// Bytes copied at once.
const BLOCK: usize = 1 << 20;

/// What became of one file.
#[derive(Debug, Serialize)]
struct Published {
    path: String,
    records: u64,
    bytes: u64,
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
    released: Released,
}

/// Recovers a pool.
pub(super) fn recover(named: &Named) -> Outcome {
    let path = named.file.as_path();
    let fail = |error: adit_pool::Error| failure(path, &error);
    let file = PoolFile::open(path).map_err(fail)?;
    let attachment = file.attach().map_err(fail)?;
    let found = file.pool().scan().map_err(fail)?;
    let files: Vec<Published> = found
        .files
        .iter()
        .map(|each| publish(&attachment, &found, each))
        .collect();
    let released = attachment.release_orphans().map_err(fail)?;
    let report = Report {
        files,
        rejected: found.counts.rejected,
        released,
    };
    attachment.detach().map_err(fail)?;
    file.sync().map_err(fail)?;
    if named.json {
        output::json(&report)?;
    } else {
        print(path, &report);
    }
    let kept = report.files.iter().any(|each| each.kept.is_some());
    Ok(if kept || report.rejected > 0 { NO } else { 0 })
}

fn publish(
    attachment: &Attachment<FileMedium>,
    found: &Recovery,
    each: &RecoveredFile,
) -> Published {
    let mut published = Published {
        path: each
            .name
            .as_ref()
            .map_or("(name damaged)".to_owned(), show::path),
        records: each.records,
        bytes: 0,
        kept: None,
    };
    if !each.orphaned {
        published.kept = Some("a living program is writing it; it publishes itself".to_owned());
        return published;
    }
    match publish_one(attachment, found, each) {
        Ok(bytes) => published.bytes = bytes,
        Err(why) => published.kept = Some(why),
    }
    published
}

/// Applies a file's records in order, makes them durable, and retires them. The file's lock is held
/// all the while, so nobody adds records in between.
fn publish_one(
    attachment: &Attachment<FileMedium>,
    found: &Recovery,
    each: &RecoveredFile,
) -> Result<u64, String> {
    let pool = attachment.pool();
    let name = each.name.as_ref().ok_or_else(|| {
        each.name_error
            .clone()
            .unwrap_or_else(|| "its name is damaged".to_owned())
    })?;
    let base = open_base(name)?;
    let words = |error: adit_pool::Error| error.to_string();
    let mut guard = attachment.lock_file(each.file()).map_err(words)?;
    let mut bytes = 0;
    for replay in found.records(pool, each.file()) {
        let op = replay.map_err(words)?.op;
        bytes += apply(pool, &base, op).map_err(|e| format!("it cannot be written: {e}"))?;
    }
    base.sync_all()
        .map_err(|e| format!("it cannot be made durable: {e}"))?;
    guard.retire(each.last_seq).map_err(words)?;
    drop(guard);
    attachment.forget_file(each.file()).map_err(words)?;
    Ok(bytes)
}

/// The file that the records were written for, or why it cannot be had.
fn open_base(name: &FileName) -> Result<File, String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let path = Path::new(OsStr::from_bytes(&name.path));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|e| format!("it cannot be opened: {e}"))?;
    let data = file.metadata().map_err(|e| e.to_string())?;
    if !data.is_file() {
        return Err("its name belongs to something that is no file now".to_owned());
    }
    if data.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another user now".to_owned());
    }
    let found = handle::of(&file).map_err(|e| format!("its handle cannot be read: {e}"))?;
    if (found.kind, &found.bytes) != (name.handle_type, &name.handle) {
        return Err("another file has its name now".to_owned());
    }
    Ok(file)
}

/// Does one operation to the base file; the result is the number of bytes written.
fn apply(pool: &Pool<FileMedium>, base: &File, op: ReplayOp) -> Result<u64, std::io::Error> {
    match op {
        ReplayOp::Truncate { size } => base.set_len(size).map(|()| 0),
        ReplayOp::Zero { file_offset, len } => {
            // Zeroing does not extend a file.
            let end = base.metadata()?.len();
            let stop = file_offset.saturating_add(len.into()).min(end);
            let zeros = vec![0; BLOCK];
            copy(file_offset, stop, |at, n| {
                base.write_all_at(&zeros[..n], at)
            })
        }
        // Exchanging is one way of writing. The walk has checked that the pool still holds the
        // bytes that the record means, so copying them is right whether or not the exchange
        // happened.
        ReplayOp::Write {
            file_offset,
            pool_offset,
            len,
        }
        | ReplayOp::Exchange {
            file_offset,
            pool_offset,
            len,
            ..
        } => {
            let mut block = vec![0; BLOCK.min(len as usize)];
            copy(0, len.into(), |at, n| {
                pool.medium()
                    .read(pool_offset + at, &mut block[..n])
                    .map_err(std::io::Error::other)?;
                let to = file_offset
                    .checked_add(at)
                    .ok_or(std::io::ErrorKind::FileTooLarge)?;
                base.write_all_at(&block[..n], to)
            })
        }
    }
}

/// Calls `part` for the blocks of a range.
fn copy(
    from: u64,
    to: u64,
    mut part: impl FnMut(u64, usize) -> Result<(), std::io::Error>,
) -> Result<u64, std::io::Error> {
    let mut at = from;
    while at < to {
        let n = (to - at).min(BLOCK as u64) as usize;
        part(at, n)?;
        at += n as u64;
    }
    Ok(to.saturating_sub(from))
}

fn print(path: &Path, report: &Report) {
    for file in &report.files {
        match &file.kept {
            None => println!(
                "{}: {} records, {}",
                file.path,
                file.records,
                output::bytes(file.bytes)
            ),
            Some(why) => println!("{}: STILL IN THE POOL: {why}", file.path),
        }
    }
    let released = &report.released;
    println!(
        "{}: {} files recovered, {} attachments of dead programs cleared, {} chunks freed",
        path.display(),
        report.files.iter().filter(|f| f.kept.is_none()).count(),
        released.slots,
        released.chunks
    );
    if report.rejected > 0 {
        println!(
            "{} log lines were not believed: adit pool dump lists them",
            report.rejected
        );
    }
}
