//! `adit monitor`: the transient process that serves the attached programs of one user.
//!
//! `adit run` starts it. It ends by itself when nobody needs it any more. When it is killed, its standby
//! executes this again and takes over.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Duration;

use adit_store::monitor::{self, Options, STATE, Successor};
use adit_store::registry::RuntimeDir;

use crate::args::MonitorArgs;
use crate::failure::{Failure, Outcome};
use crate::runtime;

/// Serves until nobody needs it.
pub(crate) fn monitor(args: &MonitorArgs) -> Outcome {
    let dir = runtime::directory(args.runtime_dir.as_deref())?;
    let state = std::env::var(STATE).ok();
    let options = Options {
        stay_for: args.stay_for,
        publish_after: args.publish_after,
        pools: Some(runtime::places(&dir).list),
        successor: successor(&dir, args.publish_after),
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
fn successor(dir: &RuntimeDir, publish_after: Duration) -> Option<Successor> {
    let program = std::env::current_exe().ok()?;
    let publish_after = OsString::from(publish_after.as_secs_f64().to_string());
    let words = [
        OsStr::new("adit"),
        "monitor".as_ref(),
        "--runtime-dir".as_ref(),
        OsStr::from_bytes(dir.as_bytes()),
        "--publish-after".as_ref(),
        publish_after.as_ref(),
    ];
    let arguments = words.iter().map(|word| CString::new(word.as_bytes()));
    let variables = std::env::vars_os().filter(|(name, _)| name != STATE);
    Some(Successor {
        program: CString::new(program.as_os_str().as_bytes()).ok()?,
        arguments: arguments.collect::<Result<_, _>>().ok()?,
        variables: variables.filter_map(variable).collect(),
    })
}

fn variable((name, value): (OsString, OsString)) -> Option<CString> {
    let mut text = name.into_vec();
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    CString::new(text).ok()
}
