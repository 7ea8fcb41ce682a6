//! `adit monitor`: the transient process that serves the attached programs of one user.
//!
//! `adit run` starts it. It ends by itself when nobody needs it any more.

use adit_store::monitor::{self, Options};

use crate::args::MonitorArgs;
use crate::failure::{Failure, Outcome};
use crate::runtime;

/// Serves until nobody needs it.
pub(crate) fn monitor(args: &MonitorArgs) -> Outcome {
    let dir = runtime::directory(args.runtime_dir.as_deref())?;
    let options = Options {
        stay_for: args.stay_for,
        ..Options::default()
    };
    match monitor::run(&dir, &options) {
        Ok(_) => Ok(0),
        Err(error) => Err(Failure::new(error.to_string())
            .next("name a directory of your own with --runtime-dir DIR")),
    }
}
