//! `adit run`: prepares the environment, starts the monitor and becomes the program.
//!
//! It `exec`s instead of waiting for a child, so the exit status, signals, the terminal and job
//! control are the program's own.
//!
//! # Safety
//!
//! The one unsafe call is `execve` itself: its arrays are built from `CString`s that live until it
//! returns, and it returns only when it failed.
#![allow(unsafe_code)]

mod appends;
pub(crate) mod environment;
pub(crate) mod library;
mod monitor;
mod target;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;

use adit_pool::{PoolFile, Rejected};
use adit_store::{recovery, staged};

use crate::args::{Appends, Commit, Mode, PaceArgs, RunArgs};
use crate::failure::{Failure, Outcome, RUN_FAILED, RUN_NOT_EXECUTABLE, RUN_NOT_FOUND, words};
use crate::output::quoted;
use crate::{limits, runtime};
use environment::Environment;
use target::{Judgement, Why};

pub(crate) use monitor::OFF as NO_MONITOR;

/// Becomes the program.
pub(crate) fn run(mut args: RunArgs) -> Outcome {
    check_directories(&mut args)?;
    check_commit(&args)?;
    let name = &args.command[0];
    let mut environment = Environment::inherited();
    let file = find(name, environment.get("PATH"))?;
    let judgement = target::judge(&file);
    recover(&args)?;
    prepare(&mut environment, &args, &judgement)?;
    announce(&args);
    exec(&file, &args.command, &environment).map(|never| match never {})
}

/// Whoever asks for commits of several files believes that there are any. What only the environment says is inherited from a
/// program in another mode, perhaps.
fn check_commit(args: &RunArgs) -> Result<(), Failure> {
    let is_inherited = std::env::var_os("ADIT_COMMIT").is_some_and(|value| !value.is_empty());
    if args.mode == Mode::Atomic || args.commit == Commit::Each || is_inherited {
        return Ok(());
    }
    let what = format!(
        "in mode {} nothing is committed, so not together either",
        args.mode.name()
    );
    let next = "add --mode atomic, or leave --commit out";
    Err(Failure::new(what).next(next).code(RUN_FAILED))
}

/// The monitor may be somebody's whose list of pools is another. Without a runtime directory there is none, and
/// nothing is staged.
fn announce(args: &RunArgs) {
    if let Ok(dir) = runtime::directory(args.runtime_dir.as_deref()) {
        let _ = runtime::places(&dir).announce();
    }
}

/// Before a program reads anything, what dead ones staged goes into its files. A look at each pool that
/// was left clean is all that this costs. Under a limit that forbids it there is no program: what it writes now would be
/// written over by whoever recovers the pool later.
fn recover(args: &RunArgs) -> Result<(), Failure> {
    let Ok(dir) = runtime::directory(args.runtime_dir.as_deref()) else {
        return Ok(());
    };
    for pool in limits::lifted_for(|| recovery::recover_all(&runtime::places(&dir))) {
        let (path, named) = (pool.path.display(), quoted(&pool.path));
        // Where others live in it their monitor recovers what the dead left.
        let is_left = || PoolFile::is_in_use_at(&pool.path).is_ok_and(|used| !used);
        let forbids = limits::too_low().filter(|_| is_for_a_limit(&pool.result) && is_left());
        let (what, why, next) = match pool.result {
            Err(error) => (
                "nothing is recovered from this pool, or staged beside it",
                error.to_string(),
                format!("adit pool check {named}"),
            ),
            Ok(done) => {
                say(args, || {
                    format!("{path}: {} files recovered", done.published.len())
                });
                let waits = |kept: &&recovery::Kept| !kept.needs_nobody();
                match (done.kept.iter().find(waits), done.rejected) {
                    (Some(kept), _) => (
                        "staged bytes are still in the pool",
                        kept.reason.to_string(),
                        format!("adit pool recover {named}"),
                    ),
                    (None, 0) => continue,
                    // What was freed with them no later look at the pool finds.
                    (None, lines) => (
                        "what dead programs wrote is not all recovered",
                        damage(lines, done.lines.first()),
                        "look through the files that they wrote last".to_owned(),
                    ),
                }
            }
        };
        if let Some(limit) = forbids {
            let what = format!(
                "{path}: what killed programs wrote cannot be recovered under this program's {limit}: {why}"
            );
            let next = format!("adit pool recover {named}, without the limit");
            return Err(Failure::new(what).next(next).code(RUN_FAILED));
        }
        // Not into an output that something else may read: it is no fault of this program's.
        if args.verbose || std::io::stderr().is_terminal() {
            eprintln!("adit: {path}: {what}: {why}\n  next: {next}");
        }
    }
    Ok(())
}

/// So many lines were not believed; of the first it is known where, and why.
fn damage(lines: u64, first: Option<&Rejected>) -> String {
    let first = first.map(|line| format!(", the first at byte {}: {}", line.offset, line.reason));
    format!("{lines} log lines are damaged{}", first.unwrap_or_default())
}

/// Whether a limit of this process may be why not all of a pool was recovered.
fn is_for_a_limit(result: &staged::Result<staged::Recovered>) -> bool {
    let limits = |error: &staged::Error| {
        let errno = match error {
            staged::Error::Pool(adit_pool::Error::Kernel { errno, .. }) => *errno,
            staged::Error::Pool(adit_pool::Error::Mapping(_)) => Errno::NOMEM,
            error => error.errno(),
        };
        [Errno::FBIG, Errno::NOMEM, Errno::MFILE].contains(&errno)
    };
    match result {
        Err(error) => limits(error),
        Ok(done) => done.kept.iter().any(|kept| limits(&kept.reason)),
    }
}

/// Declared directories must exist, and are passed on as absolute paths, because the programs
/// that read them may run elsewhere.
fn check_directories(args: &mut RunArgs) -> Result<(), Failure> {
    for dir in &mut args.paths {
        let found = dir.canonicalize().ok().filter(|d| d.is_dir());
        let Some(found) = found else {
            let what = match dir.exists() {
                true => "no directory",
                false => "no such directory",
            };
            return Err(Failure::new(format!("--path {}: {what}", dir.display()))
                .next("declare directories that exist; colons separate several")
                .code(RUN_FAILED));
        };
        if found.as_os_str().as_bytes().contains(&b':') {
            return Err(Failure::new(format!(
                "--path {}: a colon cannot be passed on, it separates directories",
                dir.display()
            ))
            .code(RUN_FAILED));
        }
        *dir = found;
    }
    if let Some(pool) = &mut args.pool {
        if pool.is_dir() {
            let what = format!(
                "--pool {}: a pool is a file, this is a directory",
                pool.display()
            );
            let next = format!(
                "leave --pool out, or make one in it: adit pool create {}",
                quoted(&pool.join("pool"))
            );
            return Err(Failure::new(what).next(next).code(RUN_FAILED));
        }
        let Some(found) = pool.canonicalize().ok().filter(|p| p.is_file()) else {
            return Err(
                Failure::new(format!("--pool {}: no such pool file", pool.display()))
                    .next(format!("make one: adit pool create {}", quoted(pool)))
                    .code(RUN_FAILED),
            );
        };
        *pool = found;
        crate::pool::usable(pool).map_err(|failure| failure.code(RUN_FAILED))?;
    }
    if let Some(dir) = &mut args.runtime_dir {
        *dir = std::path::absolute(&*dir).map_err(|e| Failure::from(e).code(RUN_FAILED))?;
        // One that was asked for must be usable; where none can be had, programs only lose the
        // monitor.
        let usable =
            runtime::directory(Some(dir)).and_then(|dir| dir.create().map_err(runtime::unusable));
        usable.map_err(|failure| failure.code(RUN_FAILED))?;
    }
    Ok(())
}

/// The file that will be executed: the first candidate the kernel would accept.
fn find(name: &OsStr, path: Option<&OsStr>) -> Result<OsString, Failure> {
    let mut seen = Errno::NOENT;
    for file in target::candidates(name, path) {
        match target::executable(&file) {
            Ok(()) => return Ok(file),
            // execvp goes on searching after EACCES, and reports it in the end.
            Err(Errno::ACCESS) => seen = Errno::ACCESS,
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(other) if seen == Errno::NOENT => seen = other,
            Err(_) => {}
        }
    }
    Err(cannot_start(name, seen))
}

fn cannot_start(name: &OsStr, why: Errno) -> Failure {
    let failure = Failure::new(format!("{}: {}", name.display(), words(why)));
    if why == Errno::NOENT {
        let next = "check the spelling, or give the path of the program";
        return failure.next(next).code(RUN_NOT_FOUND);
    }
    let failure = failure.code(RUN_NOT_EXECUTABLE);
    match why {
        Errno::ACCESS => {
            failure.next("it must be a regular file with execute permission (chmod +x)")
        }
        _ => failure,
    }
}

fn prepare(
    environment: &mut Environment,
    args: &RunArgs,
    judgement: &Judgement,
) -> Result<(), Failure> {
    if let Some(why) = judgement.without {
        let library = library::find().ok();
        return run_without(environment, args, judgement, why, library);
    }
    let library = library::find().map_err(|failure| failure.code(RUN_FAILED))?;
    environment.describe(args);
    environment.preload(&library);
    environment.allow_before_sanitizer();
    say(args, || {
        format!(
            "preloading {} in mode {}",
            library.display(),
            args.mode.name()
        )
    });
    let awaited = args.mode != Mode::Posix || args.appends == Appends::Staged;
    match monitor::start(args.runtime_dir.as_deref(), &args.pace, awaited) {
        Err(why) => without_monitor(args, why),
        Ok(()) => Ok(()),
    }
}

/// Files are staged only with a monitor. In mode posix nobody misses it but the times of files; in the
/// others a promise hangs on it, so its absence is never passed over in silence.
fn without_monitor(args: &RunArgs, why: Failure) -> Result<(), Failure> {
    if args.mode == Mode::Posix {
        say(args, || format!("no monitor: {}", why.what));
        return Ok(());
    }
    let what = format!(
        "mode {} needs the monitor, and there is none: {}",
        args.mode.name(),
        why.what
    );
    if args.require {
        let next = why
            .next
            .unwrap_or_else(|| "name a directory of your own with --runtime-dir DIR".to_owned());
        return Err(Failure::new(what).next(next).code(RUN_FAILED));
    }
    eprintln!(
        "adit: {what}\n  what happens: {}",
        args.mode.without_staging()
    );
    Ok(())
}

fn run_without(
    environment: &mut Environment,
    args: &RunArgs,
    judgement: &Judgement,
    why: Why,
    library: Option<PathBuf>,
) -> Result<(), Failure> {
    let reason = format!("{}: {why}", judgement.decided_by.display());
    if args.require {
        return Err(Failure::new(format!("{reason}; it cannot run with Adit"))
            .next("run it without --require to let it use the kernel directly")
            .code(RUN_FAILED));
    }
    if args.verbose || args.mode != Mode::Posix {
        eprintln!("adit: running without Adit: {reason}");
    }
    // A static program never loads it, but the programs it starts may. Any other kind would load
    // it, or complain.
    if why == Why::Static
        && let Some(library) = &library
    {
        environment.describe(args);
        environment.preload(library);
    } else {
        environment.without_library(library.as_deref());
    }
    Ok(())
}

/// Whether a program of this name would be found.
pub(crate) fn is_installed(name: &str) -> bool {
    find(name.as_ref(), std::env::var_os("PATH").as_deref()).is_ok()
}

/// Lets a command of our own run under the library, as `adit run` would.
pub(crate) fn under_library(
    command: &mut std::process::Command,
    mode: Mode,
) -> Result<(), Failure> {
    let directory =
        environment::settings().find(|(name, dir)| name == "ADIT_RUNTIME_DIR" && !dir.is_empty());
    let directory = directory.map(|(_, dir)| PathBuf::from(dir));
    let library = library::find()?;
    let mut environment = Environment::inherited();
    environment.preload(&library);
    let preload = environment.get(environment::PRELOAD).unwrap_or_default();
    command
        .envs(environment::settings())
        .env(environment::PRELOAD, preload)
        .env("ADIT_MODE", mode.name())
        .env("ADIT_APPENDS", appends::resolved(asked_appends()).name());
    // A measurement or comparison goes on without the monitor; what it adds is then missing.
    let _ = monitor::start(
        directory.as_deref(),
        &PaceArgs::default(),
        mode != Mode::Posix,
    );
    Ok(())
}

/// What a surrounding `adit run`, or the user, has said.
fn asked_appends() -> Appends {
    let asked = std::env::var("ADIT_APPENDS");
    let known = asked
        .ok()
        .and_then(|name| <Appends as clap::ValueEnum>::from_str(&name, true).ok());
    known.unwrap_or(Appends::Auto)
}

fn say(args: &RunArgs, text: impl FnOnce() -> String) {
    if args.verbose {
        eprintln!("adit: {}", text());
    }
}

/// Replaces this process. Returns only the reason why it could not.
fn exec(
    file: &OsStr,
    command: &[OsString],
    environment: &Environment,
) -> Result<Infallible, Failure> {
    let arguments = strings(command.iter().cloned())?;
    let variables = strings(environment.entries())?;
    let errno = execve(&string(file)?, &arguments, &variables);
    if errno == Errno::NOENT && target::executable(file).is_ok() {
        // The file is there, so what is missing is what the file asks for.
        let what = format!(
            "{}: its interpreter or dynamic linker does not exist",
            file.display()
        );
        return Err(Failure::new(what).code(RUN_NOT_FOUND));
    }
    if errno != Errno::NOEXEC {
        return Err(cannot_start(file, errno));
    }
    // No format the kernel knows: the shell reads it, as with execvp.
    let shell = c"/bin/sh".to_owned();
    let mut shell_arguments = vec![shell.clone(), string(file)?];
    shell_arguments.extend(arguments.into_iter().skip(1));
    let errno = execve(&shell, &shell_arguments, &variables);
    Err(cannot_start(file, errno))
}

fn execve(file: &CString, arguments: &[CString], variables: &[CString]) -> Errno {
    let arguments = pointers(arguments);
    let variables = pointers(variables);
    adit_pmem::fault::ignore_again();
    // SAFETY: the path and both arrays are zero-terminated and live until the call returns.
    unsafe { libc::execve(file.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
    let error = std::io::Error::last_os_error();
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

fn strings(list: impl Iterator<Item = OsString>) -> Result<Vec<CString>, Failure> {
    list.map(|text| string(&text)).collect()
}

fn string(text: &OsStr) -> Result<CString, Failure> {
    CString::new(text.as_bytes())
        .map_err(|_| Failure::new("a zero byte in an argument").code(RUN_FAILED))
}
