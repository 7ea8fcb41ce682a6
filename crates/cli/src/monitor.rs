//! `adit monitor`: the transient process that serves the attached programs of one user.
//!
//! `adit run` starts it. It ends by itself when nobody needs it any more. When it is killed, its standby
//! executes this again and takes over.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use adit_store::monitor::{self, Options, STATE, Successor};
use adit_store::registry::RuntimeDir;

use crate::args::{MonitorArgs, PaceArgs};
use crate::failure::{Failure, Outcome};
use crate::run::environment::Environment;
use crate::runtime;

/// Serves until nobody needs it.
pub(crate) fn monitor(args: &MonitorArgs) -> Outcome {
    let dir = runtime::directory(args.runtime_dir.as_deref())?;
    let state = std::env::var(STATE).ok();
    let options = Options {
        stay_for: args.stay_for,
        pace: args.pace.pace(),
        pools: Some(runtime::places(&dir).list),
        successor: successor(&dir, &args.pace),
        inherited: state.and_then(|number| number.parse().ok()),
        ..Options::default()
    };
    match monitor::run(&dir, &options) {
        Ok(_) => Ok(0),
        Err(error) => Err(Failure::new(error.to_string())
            .next("name a directory of your own with --runtime-dir DIR")),
    }
}

/// The same program again. Whom to stay for is inherited, and no number of a process.
fn successor(dir: &RuntimeDir, pace: &PaceArgs) -> Option<Successor> {
    let program = std::env::current_exe().ok()?;
    let words = [
        OsStr::new("adit"),
        "monitor".as_ref(),
        "--runtime-dir".as_ref(),
        OsStr::from_bytes(dir.as_bytes()),
    ];
    let arguments = words.iter().map(|word| CString::new(word.as_bytes()));
    let mut environment = Environment::inherited();
    environment.remove(STATE);
    environment.pace(pace);
    let variables = environment
        .entries()
        .map(|entry| CString::new(entry.into_vec()));
    Some(Successor {
        program: CString::new(program.as_os_str().as_bytes()).ok()?,
        arguments: arguments.collect::<Result<_, _>>().ok()?,
        variables: variables.filter_map(Result::ok).collect(),
    })
}
