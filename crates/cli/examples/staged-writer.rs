//! Writes through the staged engine, without the preloaded library, until the power is cut.
//!
//! `lab/vm/run --engine-cuts N` runs it inside the machine. It does the operations of `powercut write`, derived from
//! the same seed and judged by the same checker, and sends one line over the serial line after each.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Runs without the preload.
#![allow(dead_code)] // The shared modules have more than is needed here.

#[path = "../../../lab/vm/powercut/src/kinds.rs"]
mod kinds;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_pool::{FileMedium, FileName, PoolFile};
use adit_store::staged::{KernelFile, Mode, Scope, Stage, StagedFile, handle_of};
use kinds::{FILE, Kind, Place};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode as FileMode, OFlags};

const USAGE: &str =
    "usage: staged-writer sync|atomic|strict overwrite|append DIR SEED PORT TAG POOL [early]";
/// Publishes after so many operations, as the monitor does after a second.
const PUBLISHED: u64 = 40;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, kind, dir, seed, port, tag, pool, plant @ ..] = &args[..] else {
        return Err(USAGE.into());
    };
    let mode = match mode.as_str() {
        "sync" => Mode::Sync,
        "atomic" => Mode::Atomic,
        "strict" => Mode::Strict,
        _ => return Err(USAGE.into()),
    };
    let place = Place {
        kind: Kind::parse(kind).ok_or(USAGE)?,
        dir: PathBuf::from(dir),
        seed: seed.parse()?,
    };
    let early = plant.first().is_some_and(|word| word == "early");
    prepare(&place)?;
    let mut port = OpenOptions::new().write(true).open(port)?;
    let file = stage(&place, Path::new(pool), mode)?;
    for number in 1.. {
        let line = format!("{tag} {number}\n");
        if early {
            port.write_all(line.as_bytes())?;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        operation(&place, &file, mode, number)?;
        if !early {
            port.write_all(line.as_bytes())?;
        }
        if place.draw(number, 9).is_multiple_of(PUBLISHED) {
            file.publish(Scope::Committed)?;
        }
    }
    Ok(())
}

/// What the operations start from, durable with its name.
fn prepare(place: &Place) -> Outcome<()> {
    let mut file = File::create(place.file())?;
    if place.kind == Kind::Overwrite {
        file.write_all(&place.bytes(0, 0, FILE))?;
    }
    file.sync_all()?;
    Ok(File::open(&place.dir)?.sync_all()?)
}

type Staged = StagedFile<FileMedium, KernelFile<OwnedFd>>;

fn stage(place: &Place, pool: &Path, mode: Mode) -> Outcome<Staged> {
    let pool = PoolFile::open(pool)?;
    let stage = Stage::new(pool.attach()?);
    // Open as long as the process lives.
    std::mem::forget(pool);
    let path = place.file();
    let base = rustix::fs::open(path.as_os_str().as_bytes(), OFlags::RDWR, FileMode::empty())
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let (handle_type, handle) = handle_of(&base).map_err(|e| e.to_string())?;
    let name = FileName {
        handle_type,
        handle,
        path: path.as_os_str().as_bytes().to_vec(),
        device: std::fs::metadata(&path)?.dev(),
    };
    let base = KernelFile::new(base).map_err(|e| e.to_string())?;
    Ok(StagedFile::open(&stage, &name, base, mode)?)
}

fn operation(place: &Place, file: &Staged, mode: Mode, number: u64) -> Outcome<()> {
    if place.kind == Kind::Overwrite {
        let (offset, len) = place.range(number);
        file.write_at(offset, &place.bytes(number, offset, len))?;
    } else {
        let record = place.record(number);
        let mut begin = 0;
        for end in place.pieces(number) {
            file.append(&record[begin..end])?;
            begin = end;
        }
    }
    if mode == Mode::Atomic {
        file.fsync()?;
    }
    Ok(())
}
