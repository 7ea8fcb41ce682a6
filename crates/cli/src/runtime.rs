//! The user's runtime directory, where attached programs register, and the list of his pools.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use adit_store::pools::{Places, PoolList};
use adit_store::registry::{DirError, Env, RuntimeDir};

use crate::failure::{Failure, words};

/// The directory that the flag, or the variable that goes with it, names; else the one that is anybody's.
pub(crate) fn directory(named: Option<&Path>) -> Result<RuntimeDir, Failure> {
    let named = named.map(std::path::absolute).transpose()?;
    let xdg = std::env::var_os("XDG_RUNTIME_DIR");
    RuntimeDir::resolve(&Env {
        adit_runtime_dir: named.as_ref().map(|path| path.as_os_str().as_bytes()),
        xdg_runtime_dir: xdg.as_ref().map(|path| path.as_bytes()),
    })
    .map_err(unusable)
}

/// Where this user's pools are made, and listed.
pub(crate) fn places(dir: &RuntimeDir) -> Places {
    places_under(Path::new(OsStr::from_bytes(dir.as_bytes())))
}

/// The one that the environment says, for who has no flag to name one.
pub(crate) fn usual_directory() -> Result<RuntimeDir, Failure> {
    let named = std::env::var_os("ADIT_RUNTIME_DIR").filter(|value| !value.is_empty());
    directory(named.as_deref().map(Path::new))
}

/// The places of who needs no runtime directory.
pub(crate) fn known_places() -> Places {
    usual_directory().map_or_else(|_| places_under(Path::new("")), |dir| places(&dir))
}

fn places_under(runtime: &Path) -> Places {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let (state, home) = (variable("XDG_STATE_HOME"), variable("HOME"));
    Places {
        runtime: runtime.to_owned(),
        list: PoolList::of_user(state.as_deref(), home.as_deref(), runtime),
    }
}

/// Why a runtime directory cannot be used, with what to do.
pub(crate) fn unusable(error: DirError) -> Failure {
    let what = match error {
        DirError::Kernel(errno) => {
            format!("the runtime directory cannot be used: {}", words(errno))
        }
        other => other.to_string(),
    };
    Failure::new(what)
        .next("name a directory of your own with --runtime-dir DIR or ADIT_RUNTIME_DIR")
}
