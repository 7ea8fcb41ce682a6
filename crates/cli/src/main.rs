//! The `adit` command: runs programs with Adit, says what it can promise, and proves it.
//!
//! # Safety
//!
//! The process enters through C's `main` instead of Rust's, because the standard library's start
//! code changes what a program started by `adit run` would inherit: it ignores SIGPIPE and opens
//! `/dev/null` in place of closed standard descriptors. `main` is defined once and has the
//! signature that the C runtime calls; its arguments are not used, the standard library has them
//! from an initialiser of its own.
#![cfg_attr(not(test), no_main)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this command is a program of its own, not code that runs inside others"
)]

// Its macros take the place of the standard library's in all that follow.
#[macro_use]
mod output;

mod args;
mod bench;
mod demo;
mod doctor;
mod failure;
mod flush;
mod generate;
mod janitor;
mod limits;
mod monitor;
mod pool;
mod run;
mod runtime;
mod stat;

use std::io::Write;
use std::mem;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{Arg, CommandFactory, FromArgMatches};
use rustix::fd::AsRawFd as _;
use rustix::fs::{Mode, OFlags};

use args::{Cli, Command};
use failure::{Outcome, RUN_FAILED, USAGE};

/// Where the C runtime enters.
#[allow(unsafe_code, reason = "see # Safety: the name must be the C runtime's")]
#[cfg_attr(not(test), unsafe(export_name = "main"))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn main_c(_count: libc::c_int, _arguments: *const *const libc::c_char) -> libc::c_int {
    // A pool that is cut short, or finds no space, under its mapping is an error here, not the end. What `adit run`
    // becomes has what was there before.
    let _ = adit_pmem::fault::install();
    fill_standard_descriptors();
    let status = match understood().and_then(refuse_unknown_options) {
        Ok(cli) => report(dispatch(cli.command)),
        Err(error) => usage(&error),
    };
    output::is_written(std::io::stdout().flush());
    libc::c_int::from(status)
}

/// Where a standard descriptor is closed its number would be that of the next file, and what is said would be written into
/// a pool. What `adit run` becomes has it closed again.
fn fill_standard_descriptors() {
    let highest = libc::STDERR_FILENO;
    loop {
        match rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) if fd.as_raw_fd() <= highest => mem::forget(fd),
            _ => return,
        }
    }
}

/// What the command line and the environment say. A variable that is set to nothing says nothing, here as in the library:
/// the parser would ask for the value of an option that nobody gave.
fn understood() -> Result<Cli, clap::Error> {
    let unless_empty = |arg: Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        match value.is_some_and(|value| value.is_empty()) {
            true => arg.env(Resettable::Reset),
            false => arg,
        }
    };
    let command = Cli::command().mut_subcommands(|command| command.mut_args(unless_empty));
    Cli::from_arg_matches(&command.try_get_matches()?)
}

/// Everything after the program's name is the program's, so the parser takes an unknown option for
/// that name. Only behind `--` may a program's name begin with a dash.
fn refuse_unknown_options(cli: Cli) -> Result<Cli, clap::Error> {
    let Command::Run(run) = &cli.command else {
        return Ok(cli);
    };
    let name = &run.command[0];
    let given: Vec<_> = std::env::args_os().collect();
    let before = given
        .len()
        .checked_sub(run.command.len() + 1)
        .and_then(|at| given.get(at));
    if !name.as_encoded_bytes().starts_with(b"-") || before.is_some_and(|word| word == "--") {
        return Ok(cli);
    }
    let mut command = Cli::command();
    command.build();
    let of_run = command.find_subcommand_mut("run").expect("it is defined");
    let what = format!("unknown option {}", name.display());
    Err(of_run.error(ErrorKind::UnknownArgument, what))
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::BenchWorker(args) => bench::work(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Served { dir } => Ok(match bench::served(dir.as_deref()) {
            true => 0,
            false => failure::NO,
        }),
        Command::Stat(args) => stat::stat(&args),
        Command::Flush(args) => flush::flush(&args),
        Command::Monitor(args) => monitor::monitor(&args),
        Command::Man { dir } => generate::man(&dir),
        Command::Completions { shell } => generate::completions(shell),
        Command::Pool(command) => pool::pool(&command),
    }
}

fn report(outcome: Outcome) -> u8 {
    match outcome {
        Ok(status) => status,
        Err(failure) => {
            eprintln!("{failure}");
            failure.code
        }
    }
}

/// A command line that cannot be understood. With `adit run` that is a failure of adit's own, which
/// must not be mistaken for the program's status.
fn usage(error: &clap::Error) -> u8 {
    let printed = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::is_written(printed);
            0
        }
        _ if std::env::args_os()
            .nth(1)
            .is_some_and(|command| command == "run") =>
        {
            RUN_FAILED
        }
        _ => USAGE,
    }
}
