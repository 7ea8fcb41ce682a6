//! The measurements of suites sync, atomic and strict.
//!
//! Each side has files of its own: a file that is open twice is not staged. The kernel's side is
//! volatile where a store to the medium is as durable as it gets, because there the promise is what
//! Adit adds; on a disk it makes the same bytes durable as often as the mode does.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_pmem::MediumKind as Medium;

use super::cases::{
    Case, Goal, LINE, Maker, PAGE, Stage, buffer, of_kernel, of_raw, page, per_operation, places,
    plain, remove, timed, together,
};
use super::sides::{Adit, Mapped, Plain};
use crate::args::Suite;

/// Rows of a report.
pub(super) const CASES: usize = 12;

/// Bytes that one round writes, well below what a pool of the usual size holds.
const WRITTEN: usize = 16 << 20;
/// Bytes of the files that are overwritten.
const FILE: usize = 32 << 20;
/// Operations that each wait for a device, where there is one.
const WAITING: usize = 256;
/// Files made one after the other.
const FILES: usize = 64;

const CREATE: libc::c_int = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

/// Makes sure that files are staged at all: else the kernel would be compared with itself.
pub(super) fn check(stage: &Stage) -> Result<(), String> {
    if stages(&stage.path("probe"))? {
        return Ok(());
    }
    Err("the library stages no file here; adit doctor says what it needs".into())
}

/// Whether a new file of this name is staged when it is written.
pub(super) fn stages(path: &Path) -> Result<bool, String> {
    let file = Adit::open(path, CREATE)?;
    file.cut();
    file.write(&page());
    // What the kernel, asked past the library, knows of a staged file is what it was before.
    let known = rustix::fs::stat(path.as_os_str().as_bytes()).map_err(crate::failure::words);
    drop(file);
    remove(path);
    Ok(known?.st_size == 0)
}

/// The groups of a suite, in the order of the report.
pub(super) fn groups(suite: Suite) -> &'static [Maker] {
    match suite {
        Suite::Atomic => &[buffered_writes, reads, commits, published, threads],
        _ => &[durable_writes, reads, commits, published, threads],
    }
}

/// A mode in which the call's return says that the bytes are durable.
fn durable_writes(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    writes(stage, stage.medium == Medium::Cached)
}

/// A mode in which `fsync` says so.
fn buffered_writes(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    writes(stage, false)
}

/// What the kernel's side does after each write.
fn settle(file: &Plain, wait: bool) {
    if wait {
        file.sync_data();
    }
}

/// Appends and overwrites of a page and of a line. With `wait` every one of them waits for the
/// device, on both sides.
fn writes(stage: &Stage, wait: bool) -> Result<Vec<Case<'_>>, String> {
    let mut cases = Vec::new();
    for (size, append, goal) in [
        (PAGE, true, goal(wait, of_raw(1.5))),
        (LINE, true, goal(wait, of_raw(3.0))),
        (PAGE, false, goal(wait, of_kernel(1.0 / 1.5))),
        (LINE, false, goal(wait, of_kernel(1.0))),
    ] {
        let count = if wait {
            WAITING
        } else {
            (WRITTEN / size).min(1 << 14)
        };
        let what = if append { "append" } else { "pwrite" };
        let unit = if size == PAGE { "4 KB" } else { "64 B" };
        let place = if append { "" } else { ", random" };
        let (pa, pk, pr) = if append {
            let path = |side| stage.path(&format!("{what}-{size}-{side}"));
            (path("adit"), path("kernel"), stage.file("raw", FILE)?)
        } else {
            let file = |side| stage.file(&format!("{what}-{size}-{side}"), FILE);
            (file("adit")?, file("kernel")?, file("raw")?)
        };
        let flags = if append {
            CREATE | libc::O_APPEND
        } else {
            libc::O_RDWR
        };
        let at = places(count, FILE, size);
        let (ap, kp) = (at.clone(), at);
        let (a, k, r) = (buffer(size), buffer(size), buffer(size));
        let raw = Mapped::new(&pr, FILE)?;
        cases.push(Case {
            name: format!("{what} {unit}{place}"),
            adit: Box::new(move || {
                let file = Adit::open(&pa, flags)?;
                if append {
                    file.cut();
                }
                Ok(per_operation(count, |i| match append {
                    true => file.write(&a),
                    false => file.write_at(&a, ap[i]),
                }))
            }),
            kernel: Box::new(move || {
                let file = plain(&pk, flags)?;
                Ok(per_operation(count, |i| {
                    match append {
                        true => file.write(&k),
                        false => file.write_at(&k, kp[i]),
                    }
                    settle(&file, wait);
                }))
            }),
            raw: vec![Box::new(move || {
                Ok(per_operation(count, |i| {
                    let at = (i * size % (FILE / 2)) as u64;
                    raw.stream(&r, at);
                    raw.stream(&r[..LINE], (FILE / 2 + i * LINE % (FILE / 2)) as u64);
                }))
            })],
            raw_is: "the bytes and one line streamed past the cache, with a fence each",
            goal,
        });
    }
    Ok(cases)
}

/// On a disk what counts is how often it is waited for.
fn goal(wait: bool, otherwise: Option<Goal>) -> Option<Goal> {
    if wait { of_kernel(0.7) } else { otherwise }
}

/// Reading what was just written and is not published.
fn reads(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    // A disk is waited for with each page, and a monitor for nobody.
    let count = if stage.medium == Medium::Cached {
        WAITING
    } else {
        WRITTEN / PAGE
    };
    let at = places(WRITTEN / PAGE, count * PAGE, PAGE);
    let (ap, kp, rp) = (at.clone(), at.clone(), at);
    let (pa, pk) = (stage.path("read-adit"), stage.path("read-kernel"));
    let raw = Mapped::new(&stage.file("raw", FILE)?, FILE)?;
    let bytes = page();
    let (mut a, mut k, mut r) = (page(), page(), page());
    Ok(vec![Case {
        name: "pread 4 KB, random, just written".into(),
        adit: Box::new(move || {
            let file = Adit::open(&pa, CREATE)?;
            file.cut();
            (0..count).for_each(|_| file.write(&bytes));
            Ok(per_operation(ap.len(), |i| file.read_at(&mut a, ap[i])))
        }),
        kernel: Box::new(move || {
            let file = plain(&pk, CREATE)?;
            (0..count).for_each(|_| file.write(&page()));
            Ok(per_operation(kp.len(), |i| file.read_at(&mut k, kp[i])))
        }),
        raw: vec![Box::new(move || {
            Ok(per_operation(rp.len(), |i| raw.read(&mut r, rp[i])))
        })],
        raw_is: "copy out of a mapping",
        goal: None,
    }])
}

/// A page appended and made durable, again and again.
fn commits(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let disk = stage.medium == Medium::Cached;
    let count = if disk { WAITING } else { WRITTEN / PAGE };
    let (pa, pk) = (stage.path("commit-adit"), stage.path("commit-kernel"));
    let (a, k) = (page(), page());
    Ok(vec![Case {
        name: "append 4 KB, fsync".into(),
        adit: Box::new(move || {
            let file = Adit::open(&pa, CREATE)?;
            Ok(per_operation(count, |_| {
                file.write(&a);
                file.sync();
            }))
        }),
        kernel: Box::new(move || {
            let file = plain(&pk, CREATE)?;
            Ok(per_operation(count, |_| {
                file.write(&k);
                file.sync();
            }))
        }),
        raw: Vec::new(),
        raw_is: "",
        goal: disk.then_some(of_kernel(0.7)).flatten(),
    }])
}

/// Everything that a file costs from open to close: staged bytes are published by then.
fn published(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let (pa, pk) = (stage.path("long-adit"), stage.path("long-kernel"));
    let (a, k) = (page(), page());
    let long = Case {
        name: "append 4 KB, published: open to close of 16 MB".into(),
        adit: Box::new(move || {
            timed(WRITTEN / PAGE, || {
                let file = Adit::open(&pa, CREATE)?;
                (0..WRITTEN / PAGE).for_each(|_| file.write(&a));
                Ok(())
            })
        }),
        kernel: Box::new(move || {
            timed(WRITTEN / PAGE, || {
                let file = plain(&pk, CREATE)?;
                (0..WRITTEN / PAGE).for_each(|_| file.write(&k));
                Ok(())
            })
        }),
        raw: Vec::new(),
        raw_is: "",
        goal: of_kernel(1.0 / 1.2),
    };
    let paths = |side: &str| -> Vec<PathBuf> {
        (0..FILES)
            .map(|i| stage.path(&format!("many-{side}-{i}")))
            .collect()
    };
    let (pa, pk) = (paths("adit"), paths("kernel"));
    let (a, k) = (page(), page());
    let many = Case {
        name: "create, write 4 KB, close, unlink".into(),
        adit: Box::new(move || {
            each(&pa, |path| {
                Adit::open(path, CREATE)?.write(&a);
                Ok(())
            })
        }),
        kernel: Box::new(move || {
            each(&pk, |path| {
                plain(path, CREATE)?.write(&k);
                Ok(())
            })
        }),
        raw: Vec::new(),
        raw_is: "",
        goal: None,
    };
    Ok(vec![long, many])
}

fn each(paths: &[PathBuf], one: impl Fn(&Path) -> Result<(), String>) -> Result<f64, String> {
    timed(paths.len(), || {
        paths.iter().try_for_each(|path| {
            one(path)?;
            remove(path);
            Ok(())
        })
    })
}

/// Pages of one file, written by several threads.
fn threads(stage: &Stage) -> Result<Vec<Case<'_>>, String> {
    let mut cases = Vec::new();
    for count in [1usize, 2, 4] {
        let adit = [Adit::open(
            &stage.file(&format!("threads-{count}-adit"), FILE)?,
            libc::O_RDWR,
        )?];
        let kernel = [plain(
            &stage.file(&format!("threads-{count}-kernel"), FILE)?,
            libc::O_RDWR,
        )?];
        let raw = [Mapped::new(&stage.file("raw", FILE)?, FILE)?];
        cases.push(Case {
            name: format!("pwrite 4 KB, random, {count} threads, one file"),
            adit: Box::new(move || {
                let time = together(&adit, count, |f: &Adit, b, at| f.write_at(b, at));
                // Mode atomic keeps in the pool what nobody has synced.
                adit[0].sync();
                Ok(time)
            }),
            kernel: Box::new(move || Ok(together(&kernel, count, |f, b, at| f.write_at(b, at)))),
            raw: vec![Box::new(move || {
                Ok(together(&raw, count, |f: &Mapped, b, at| f.stream(b, at)))
            })],
            raw_is: "the bytes streamed past the cache, with a fence",
            goal: (count == 4 && stage.medium != Medium::Cached)
                .then_some(of_kernel(0.125))
                .flatten(),
        });
    }
    Ok(cases)
}
