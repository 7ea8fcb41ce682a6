//! The limits of this process that decide whether Adit works, and where it is asked about.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// A limit and what it means.
#[derive(Debug, Serialize)]
pub(crate) struct Limit {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its value; none when unlimited.
    pub(crate) value: Option<u64>,
    /// What it does to Adit, where it does something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<&'static str>,
}

/// The limits that matter.
pub(crate) fn limits() -> Vec<Limit> {
    let of = |resource| getrlimit(resource).current;
    let address_space = of(Resource::As);
    let maps = read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|t| t.trim().parse().ok());
    vec![
        Limit {
            name: "RLIMIT_AS",
            value: address_space,
            effect: address_space
                .map(|_| "programs with a limited address space are passed through"),
        },
        Limit {
            name: "RLIMIT_NOFILE",
            value: of(Resource::Nofile),
            effect: None,
        },
        Limit {
            name: "RLIMIT_FSIZE",
            value: of(Resource::Fsize),
            effect: of(Resource::Fsize).map(|_| "files grow through the kernel, which enforces it"),
        },
        Limit {
            name: "RLIMIT_MEMLOCK",
            value: of(Resource::Memlock),
            effect: None,
        },
        Limit {
            name: "vm.max_map_count",
            value: maps,
            effect: None,
        },
    ]
}

/// The directory whose file system is meant by `path`: itself, or the one it lies in.
pub(crate) fn directory(path: &Path) -> Result<PathBuf, std::io::Error> {
    let path = path.canonicalize()?;
    if path.is_dir() {
        return Ok(path);
    }
    Ok(path.parent().unwrap_or(Path::new("/")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_directory_is_its_own() {
        let program = std::env::current_exe().unwrap();
        assert_eq!(
            directory(&program).unwrap(),
            program.parent().unwrap().canonicalize().unwrap()
        );
        assert_eq!(directory(Path::new("/")).unwrap(), Path::new("/"));
        assert!(directory(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn limits_have_values() {
        let limits = limits();
        assert!(
            limits
                .iter()
                .any(|l| l.name == "vm.max_map_count" && l.value.is_some())
        );
    }
}
