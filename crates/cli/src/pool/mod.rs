//! `adit pool`: make, inspect, check, recover and remove pools.

mod recover;
mod show;

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use adit_pool::layout::{Geometry, MAGIC, SUPERBLOCK_A, SUPERBLOCK_B};
use adit_pool::{Error, PoolFile};
use rustix::io::Errno;
use serde::Serialize;

use crate::args::{PoolCommand, PoolFile as Named};
use crate::failure::{Failure, NO, Outcome, words};
use crate::limits;
use crate::output::{self, bytes};

/// Does what was asked for.
pub(crate) fn pool(command: &PoolCommand) -> Outcome {
    match command {
        PoolCommand::Create { file, size } => create(file, *size),
        PoolCommand::Info(named) => info(named),
        PoolCommand::Check(named) => check(named),
        PoolCommand::Dump(named) => dump(named),
        PoolCommand::Recover { pool, give_up } => recover::recover(pool, give_up),
        PoolCommand::Rm { file, force } => remove(file, *force),
    }
}

/// An error of the pool, with the file's name. Its words end in what to do next, behind the last
/// semicolon.
fn failure(file: &Path, error: &Error) -> Failure {
    let name = file.display();
    if let Error::Kernel { call, errno } = error {
        return Failure::new(format!("{name}: {} ({call})", words(*errno))).next(remedy(*errno));
    }
    // Who would follow the advice for a pool might lock others out of a file of theirs, or remove it.
    let is_none = match error {
        Error::OpenToOthers { .. } => !is_pool(file),
        Error::Truncated { .. } | Error::Unfinished => is_something_else(file),
        _ => false,
    };
    if is_none {
        return Failure::new(format!("{name}: this is not an Adit pool"))
            .next("choose another file");
    }
    let text = match (error, file.metadata()) {
        // Not how much of it could be mapped.
        (&Error::Truncated { expected, .. }, Ok(now)) => {
            let found = now.len();
            Error::Truncated { expected, found }.to_string()
        }
        _ => error.to_string(),
    };
    match text.rsplit_once("; ") {
        Some((what, next)) => Failure::new(format!("{name}: {what}")).next(next),
        None => Failure::new(format!("{name}: {text}")),
    }
}

/// Says, for `adit run --pool`, what is wrong with a pool.
pub(crate) fn usable(file: &Path) -> Result<(), Failure> {
    let opened = PoolFile::open_read_only(file);
    opened.map(drop).map_err(|error| {
        // Whose it is and who may open it matters once it is a pool.
        if is_pool(file) {
            return failure(file, &error);
        }
        Failure::new(format!(
            "{}: this is not a pool, the file in which Adit keeps what programs have written until it is \
             in their files",
            file.display()
        ))
        .next("leave --pool out, or make one with a name of its own: adit pool create FILE")
    })
}

/// Whether a file that can be read has what a pool begins with, in one of the two places.
fn is_pool(file: &Path) -> bool {
    let Ok(file) = std::fs::File::open(file) else {
        return true;
    };
    [SUPERBLOCK_A, SUPERBLOCK_B].into_iter().any(|at| {
        let mut start = [0; 8];
        let read = file.read_exact_at(&mut start, at);
        read.is_ok() && u64::from_le_bytes(start) == MAGIC
    })
}

/// Whether a file that can be read has something in it, and never was a pool.
fn is_something_else(file: &Path) -> bool {
    !is_pool(file) && !is_empty(file).unwrap_or(false)
}

/// Whether a file has nothing in it but zeros, as a pool has that was not made to its end.
fn is_empty(file: &Path) -> std::io::Result<bool> {
    let mut file = std::fs::File::open(file)?;
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(true),
            read if block[..read].iter().any(|&byte| byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// What to do about an error of the kernel.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC | Errno::DQUOT => {
            "make room on its file system, or have a smaller one with --size"
        }
        Errno::FBIG => {
            "lift the limit on file sizes (ulimit -f), or have a smaller one with --size"
        }
        Errno::NOMEM => "lift the limits on memory (ulimit -v, ulimit -d)",
        Errno::MFILE | Errno::NFILE => "lift the limit on open files (ulimit -n)",
        Errno::ROFS => "mount its file system for writing: mount -o remount,rw",
        Errno::ISDIR => "name the file that is the pool",
        Errno::IO => "look for what the kernel says of the device (dmesg)",
        _ => "check the path and its permissions",
    }
}

fn create(file: &Path, size: u64) -> Outcome {
    if file.symlink_metadata().is_ok() {
        let name = file.display();
        let next = match is_pool(file) {
            true => {
                let named = output::quoted(file);
                format!("choose another name, or remove it: adit pool rm {named}")
            }
            false => "choose another name".to_owned(),
        };
        return Err(Failure::new(format!("{name}: there is a file already")).next(next));
    }
    let make = || PoolFile::create(file, size, Geometry::default());
    let made = limits::lifted_for(make).map_err(|e| failure(file, &e))?;
    let info = made.pool().info().map_err(|e| failure(file, &e))?;
    println!(
        "{}: pool {} of {} made",
        file.display(),
        info.uuid,
        bytes(info.size)
    );
    Ok(0)
}

fn info(named: &Named) -> Outcome {
    let pool = PoolFile::open_as_left(&named.file).map_err(|e| failure(&named.file, &e))?;
    let info = pool.info().map_err(|e| failure(&named.file, &e))?;
    if named.json {
        output::json(&info)?;
    } else {
        show::info(&named.file, &info);
    }
    Ok(0)
}

/// What `adit pool check` reports, also about a pool that cannot even be opened.
#[derive(Serialize)]
struct Checked<'a> {
    #[serde(serialize_with = "output::lossy")]
    file: &'a Path,
    sound: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<adit_pool::CheckReport>,
}

fn check(named: &Named) -> Outcome {
    let file = named.file.as_path();
    let opened = PoolFile::open_as_left(file).and_then(|pool| pool.check());
    let checked = match opened {
        Ok(report) => Checked {
            file,
            sound: report.is_sound(),
            unusable: None,
            report: Some(report),
        },
        Err(error) if is_about_the_contents(&error) => Checked {
            file,
            sound: false,
            unusable: Some(error.to_string()),
            report: None,
        },
        Err(error) => return Err(failure(file, &error)),
    };
    if named.json {
        output::json(&checked)?;
    } else {
        show::checked(file, checked.unusable.as_deref(), checked.report.as_ref());
    }
    Ok(if checked.sound { 0 } else { NO })
}

/// Whether an error is an answer of the check, and not a reason why there is none.
fn is_about_the_contents(error: &Error) -> bool {
    matches!(
        error,
        Error::ForeignMagic { .. }
            | Error::Unfinished
            | Error::NewerVersion { .. }
            | Error::OtherAbi { .. }
            | Error::Truncated { .. }
            | Error::Superblock
            | Error::Damaged { .. }
    )
}

fn dump(named: &Named) -> Outcome {
    let pool = PoolFile::open_as_left(&named.file).map_err(|e| failure(&named.file, &e))?;
    let dump = pool.dump().map_err(|e| failure(&named.file, &e))?;
    if named.json {
        output::json(&dump)?;
    } else {
        show::dump(&named.file, &dump);
    }
    Ok(0)
}

/// A pool that cannot be opened holds nothing that could be published: with --force it is removed
/// like any file, if it is this user's. What never was a pool is not ours to remove.
fn remove(file: &PathBuf, force: bool) -> Outcome {
    // Only the link would go, and the pool, with all that is staged in it, be taken for removed.
    if file.is_symlink()
        && let Ok(pool) = file.canonicalize()
    {
        let failure = Failure::new(format!("{}: a link, not the pool", file.display()));
        return Err(failure.next(format!("adit pool rm {}", output::quoted(&pool))));
    }
    match PoolFile::open(file) {
        Ok(opened) => opened.remove(force).map_err(|error| {
            let failure = failure(file, &error);
            match error {
                Error::Unpublished { .. } => failure.next(format!(
                    "adit pool recover {}; or lose it with --force",
                    output::quoted(file)
                )),
                _ => failure,
            }
        })?,
        Err(error @ Error::ForeignMagic { .. }) => return Err(failure(file, &error)),
        Err(error) if is_about_the_contents(&error) && is_something_else(file) => {
            return Err(failure(file, &Error::Unfinished));
        }
        Err(error) if force && is_about_the_contents(&error) => std::fs::remove_file(file)?,
        Err(error) if is_about_the_contents(&error) => {
            return Err(failure(file, &error).next("remove it anyway with --force"));
        }
        Err(error) => return Err(failure(file, &error)),
    }
    println!("{}: removed", file.display());
    Ok(0)
}
