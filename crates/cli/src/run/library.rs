//! Finds the library to preload.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Names the library explicitly.
pub(crate) const VARIABLE: &str = "ADIT_LIB";
const NAME: &str = "libadit.so";

/// The library: the one `ADIT_LIB` names, else the one installed or built beside this program.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return named_library(named);
    }
    let program = std::env::current_exe()
        .map_err(|e| Failure::new(format!("where this program is cannot be found out: {e}")))?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [dir.join("../lib/adit"), dir.join("../lib"), dir.to_owned()];
    for place in &places {
        // Made canonical, because the program may change its directory before it starts another.
        if let Ok(file) = place.join(NAME).canonicalize()
            && file.is_file()
        {
            return preloadable(file);
        }
    }
    let searched: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    Err(
        Failure::new(format!("{NAME} was not found in {}", searched.join(", "))).next(format!(
            "install it there, or name it with {VARIABLE}=/path/to/{NAME}"
        )),
    )
}

fn named_library(named: OsString) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(&named);
    match path.canonicalize() {
        Ok(file) if file.is_file() => preloadable(file),
        Ok(_) => Err(Failure::new(format!(
            "{VARIABLE} names {}, which is no file",
            path.display()
        ))
        .next(format!("set {VARIABLE} to the file {NAME}"))),
        Err(error) => Err(Failure::new(format!(
            "{VARIABLE} names {}, which cannot be used: {}",
            path.display(),
            without_number(&error)
        ))
        .next(format!("set {VARIABLE} to the file {NAME}, or unset it"))),
    }
}

/// The dynamic linker splits `LD_PRELOAD` at blanks and colons and knows no way to quote them.
fn preloadable(file: PathBuf) -> Result<PathBuf, Failure> {
    let bytes = file.as_os_str().as_encoded_bytes();
    if bytes.iter().any(|b| b.is_ascii_whitespace() || *b == b':') {
        return Err(Failure::new(format!(
            "{} has a blank or a colon in its path, so the dynamic linker cannot preload it",
            file.display()
        ))
        .next(format!(
            "copy or link it to a path without them and set {VARIABLE} to that"
        )));
    }
    Ok(file)
}

fn without_number(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unquotable_paths_are_refused() {
        assert!(preloadable(PathBuf::from("/a b/libadit.so")).is_err());
        assert!(preloadable(PathBuf::from("/a:b/libadit.so")).is_err());
        assert!(preloadable(PathBuf::from("/ab/libadit.so")).is_ok());
    }
}
