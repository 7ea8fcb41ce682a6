//! The user's runtime directory, where attached programs register.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use adit_store::registry::{DirError, Env, RuntimeDir};

use crate::failure::Failure;

/// The directory that the flag names, else the one the environment says.
pub(crate) fn directory(named: Option<&Path>) -> Result<RuntimeDir, Failure> {
    let named = named.map(std::path::absolute).transpose()?;
    let xdg = std::env::var_os("XDG_RUNTIME_DIR");
    RuntimeDir::resolve(&Env {
        adit_runtime_dir: named.as_ref().map(|path| path.as_os_str().as_bytes()),
        xdg_runtime_dir: xdg.as_ref().map(|path| path.as_bytes()),
    })
    .map_err(unusable)
}

/// Why a runtime directory cannot be used, with what to do.
pub(crate) fn unusable(error: DirError) -> Failure {
    Failure::new(error.to_string())
        .next("name a directory of your own with --runtime-dir DIR or ADIT_RUNTIME_DIR")
}
