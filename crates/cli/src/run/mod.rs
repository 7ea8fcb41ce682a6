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

mod elf;
mod environment;
pub(crate) mod library;
mod monitor;
mod target;

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::args::{Mode, RunArgs};
use crate::failure::{Failure, Outcome, RUN_FAILED, RUN_NOT_EXECUTABLE, RUN_NOT_FOUND, words};
use crate::runtime;
use environment::Environment;
use target::{Judgement, Why};

/// Becomes the program.
pub(crate) fn run(mut args: RunArgs) -> Outcome {
    refuse_unkept_promises(args.mode)?;
    check_directories(&mut args)?;
    let name = &args.command[0];
    let mut environment = Environment::inherited();
    let file = find(name, environment.get("PATH"))?;
    let judgement = target::judge(&file);
    prepare(&mut environment, &args, &judgement)?;
    exec(&file, &args.command, &environment).map(|never| match never {})
}

/// A mode that this version does not have is refused: running with less than was asked for
/// without saying so would be a broken promise.
fn refuse_unkept_promises(mode: Mode) -> Result<(), Failure> {
    if mode.available() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "this version cannot keep the promise of mode {}, and does not run with a weaker one",
        mode.name()
    ))
    .next("use --mode posix, and fsync where the program needs durability")
    .code(RUN_FAILED))
}

/// Declared directories must exist, and are passed on as absolute paths, because the programs
/// that read them may run elsewhere.
fn check_directories(args: &mut RunArgs) -> Result<(), Failure> {
    for dir in &mut args.paths {
        let found = dir.canonicalize().ok().filter(|d| d.is_dir());
        let Some(found) = found else {
            return Err(
                Failure::new(format!("--path {}: no such directory", dir.display()))
                    .next("declare directories that exist")
                    .code(RUN_FAILED),
            );
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
        let Some(found) = pool.canonicalize().ok().filter(|p| p.is_file()) else {
            return Err(
                Failure::new(format!("--pool {}: no such pool file", pool.display()))
                    .next(format!("make one: adit pool create {}", pool.display()))
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
    if judgement.sanitized {
        environment.allow_before_sanitizer();
    }
    say(args, || {
        format!(
            "preloading {} in mode {}",
            library.display(),
            args.mode.name()
        )
    });
    if let Err(why) = monitor::start(args.runtime_dir.as_deref()) {
        say(args, || format!("the monitor could not be started: {why}"));
    }
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
    say(args, || format!("running without Adit: {reason}"));
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

/// Lets a command of our own run under the library in mode posix, as `adit run` would.
pub(crate) fn under_library(command: &mut std::process::Command) -> Result<(), Failure> {
    let library = library::find()?;
    let mut environment = Environment::inherited();
    environment.preload(&library);
    let preload = environment.get(environment::PRELOAD).unwrap_or_default();
    command
        .env(environment::PRELOAD, preload)
        .env("ADIT_MODE", Mode::Posix.name());
    // A measurement or comparison goes on without the monitor; what it adds is then missing.
    let _ = monitor::start(None);
    Ok(())
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
