//! The library and the command with which tests run programs. Cargo builds neither for the tests of other crates, nor a
//! crate's C library for its own, so whoever asks first has them built: what an earlier build left would be tested for
//! what is there now. `ADIT_LIB` and `ADIT_BIN` name others. Included by path in the tests of several crates.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The preloaded library.
pub(crate) fn library() -> PathBuf {
    named("ADIT_LIB", "libadit.so")
}

/// The command.
#[allow(dead_code, reason = "some tests need the library alone")]
pub(crate) fn command() -> PathBuf {
    named("ADIT_BIN", "adit")
}

fn named(variable: &str, name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let path = profile().join(name);
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

/// Where cargo puts what it builds for this test run, with both there.
fn profile() -> &'static Path {
    static PROFILE: OnceLock<PathBuf> = OnceLock::new();
    PROFILE.get_or_init(|| {
        let test = std::env::current_exe().expect("own path");
        let profile = test.ancestors().nth(2).expect("target directory");
        let mut cargo = Command::new(env!("CARGO"));
        // The whole, as `make test` has built it: parts alone would be built anew, with other features of what they need.
        cargo.args(["build", "--quiet", "--locked"]);
        cargo.args(["--workspace", "--manifest-path"]);
        cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        cargo
            .arg("--target-dir")
            .arg(profile.parent().expect("target"));
        if profile.file_name() == Some(OsStr::new("release")) {
            cargo.arg("--release");
        }
        let done = cargo.status().expect("cargo starts").success();
        assert!(done, "the library does not build");
        profile.to_path_buf()
    })
}
