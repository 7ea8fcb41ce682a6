//! What tests have a compiler make of programs in C, once for as long as these stay what they are: an emulated processor
//! takes seconds for each. Included by path in the tests of several crates.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a compiler makes of a source with these arguments.
///
/// # Errors
///
/// Those of starting the compiler: it is not there.
pub(crate) fn compiled(
    compiler: &str,
    source: &Path,
    out: &str,
    arguments: &[&str],
) -> io::Result<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "compiled-{:016x}",
        all_of_it(compiler, source, arguments)
    ));
    let target = dir.join(out);
    if target.exists() {
        return Ok(target);
    }
    fs::create_dir_all(&dir).expect("a directory for programs");
    // Two tests may build the same program; each moves a whole one into place.
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let own = dir.join(format!("{out}.{process}.{thread:?}"));
    let mut command = Command::new(compiler);
    command.arg("-o").arg(&own).arg(source).args(arguments);
    let said = command.stdin(Stdio::null()).output()?;
    let told = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{}: {told}", source.display());
    fs::rename(&own, &target).expect("the program in place");
    Ok(target)
}

/// A number for all that a program is made of, and how.
fn all_of_it(compiler: &str, source: &Path, arguments: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (compiler, arguments).hash(&mut hasher);
    texts(source, &mut hasher);
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/adit.h");
    texts(&installed, &mut hasher);
    hasher.finish()
}

/// The text of a file, and of what it includes from beside it.
fn texts(file: &Path, hasher: &mut DefaultHasher) {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.hash(hasher);
    let beside = text
        .lines()
        .filter_map(|line| line.strip_prefix("#include \""));
    for name in beside.filter_map(|rest| rest.split('"').next()) {
        texts(&file.with_file_name(name), hasher);
    }
}
