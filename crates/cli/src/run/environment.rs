//! The environment the program is started with.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::args::{PaceArgs, RunArgs};

/// The variable the dynamic linker reads.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
const ASAN_ORDER: &str = "verify_asan_link_order";

/// What the user has set for Adit, for programs that are started in other directories.
pub(crate) fn settings() -> impl Iterator<Item = (OsString, OsString)> {
    let ours = |(name, _): &(OsString, OsString)| name.as_encoded_bytes().starts_with(b"ADIT_");
    std::env::vars_os().filter(ours).map(|(name, value)| {
        let value = if name == "ADIT_PATH" {
            let paths = split_at_colons(&value).map(absolute);
            paths.collect::<Vec<_>>().join(OsStr::new(":"))
        } else if PATHS.iter().any(|path| *path == name) {
            absolute(&value)
        } else {
            value
        };
        (name, value)
    })
}

/// The settings that name one file each.
const PATHS: [&str; 3] = ["ADIT_LIB", "ADIT_POOL", "ADIT_RUNTIME_DIR"];

fn split_at_colons(paths: &OsStr) -> impl Iterator<Item = &OsStr> {
    let parts = paths.as_bytes().split(|byte| *byte == b':');
    parts.map(OsStr::from_bytes)
}

/// An empty one, which stands for none, stays so.
fn absolute(path: &OsStr) -> OsString {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), PathBuf::into_os_string)
}

/// An environment under construction.
pub(crate) struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// The environment of this process.
    pub(crate) fn inherited() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// The value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_os_str())
    }

    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        let value = value.into();
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some(entry) => entry.1 = value,
            None => self.0.push((name.into(), value)),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| n != name);
    }

    /// Adds what the library reads. Flags become variables, so that they reach every program that
    /// the program starts.
    pub(crate) fn describe(&mut self, args: &RunArgs) {
        self.set("ADIT_MODE", args.mode.name());
        self.set("ADIT_COMMIT", args.commit.name());
        self.set("ADIT_CLOSED", args.closed.name());
        self.set(
            "ADIT_APPENDS",
            super::appends::resolved(args.appends).name(),
        );
        if args.require {
            self.set("ADIT_REQUIRE", "1");
        } else {
            self.remove("ADIT_REQUIRE");
        }
        if let Some(pool) = &args.pool {
            self.set("ADIT_POOL", pool);
        }
        for (name, size) in [
            ("ADIT_POOL_SIZE", args.pool_size),
            ("ADIT_LOG_SIZE", args.log_size),
            ("ADIT_MAP_SIZE", args.map_size),
        ] {
            if let Some(size) = size {
                self.set(name, size.to_string());
            }
        }
        self.pace(&args.pace);
        if !args.paths.is_empty() {
            let dirs: Vec<&OsStr> = args.paths.iter().map(|p| p.as_os_str()).collect();
            self.set("ADIT_PATH", dirs.join(OsStr::new(":")));
        }
        if let Some(dir) = &args.runtime_dir {
            self.set("ADIT_RUNTIME_DIR", dir);
        }
    }

    /// What a monitor is told that this program starts, or one that it starts.
    pub(crate) fn pace(&mut self, asked: &PaceArgs) {
        for (name, seconds) in asked.asked() {
            self.set(name, seconds);
        }
    }

    /// Adds the library to the preloaded ones, behind those that are there already: the first
    /// library's functions win, and whoever put another one there wants it to see every call.
    /// What that one passes on reaches Adit next.
    pub(crate) fn preload(&mut self, library: &Path) {
        let library = library.as_os_str();
        let mut all = OsString::new();
        if let Some(before) = self.get(PRELOAD) {
            let present = split(before).any(|entry| entry == library.as_encoded_bytes());
            if present {
                return;
            }
            all.push(before);
        }
        if !all.is_empty() {
            all.push(":");
        }
        all.push(library);
        self.set(PRELOAD, all);
    }

    /// Removes the library where a surrounding `adit run` preloaded it, and the mode with it, so
    /// that the programs this one starts agree with what was decided for it.
    pub(crate) fn without_library(&mut self, library: Option<&Path>) {
        self.remove("ADIT_MODE");
        let (Some(library), Some(before)) = (library, self.get(PRELOAD)) else {
            return;
        };
        let library = library.as_os_str().as_encoded_bytes();
        let kept: Vec<&[u8]> = split(before).filter(|entry| *entry != library).collect();
        if kept.is_empty() {
            self.remove(PRELOAD);
        } else {
            let joined = kept.join(&b':');
            self.set(
                PRELOAD,
                <OsString as std::os::unix::ffi::OsStringExt>::from_vec(joined),
            );
        }
    }

    /// The AddressSanitizer refuses to start behind another library; tells it not to, unless the
    /// user has already decided. Whatever is started: programs start others, which nobody looks at.
    pub(crate) fn allow_before_sanitizer(&mut self) {
        let before = self.get(ASAN_OPTIONS).unwrap_or_default().to_owned();
        if before
            .as_encoded_bytes()
            .windows(ASAN_ORDER.len())
            .any(|w| w == ASAN_ORDER.as_bytes())
        {
            return;
        }
        let mut options = before;
        if !options.is_empty() {
            options.push(":");
        }
        options.push(format!("{ASAN_ORDER}=0"));
        self.set(ASAN_OPTIONS, options);
    }

    /// The variables as `name=value`.
    pub(crate) fn entries(&self) -> impl Iterator<Item = OsString> + '_ {
        self.0.iter().map(|(name, value)| {
            let mut entry = name.clone();
            entry.push("=");
            entry.push(value);
            entry
        })
    }
}

fn split(list: &OsStr) -> impl Iterator<Item = &[u8]> {
    list.as_encoded_bytes()
        .split(|b| *b == b':' || b.is_ascii_whitespace())
        .filter(|entry| !entry.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_preload(value: &str) -> Environment {
        Environment(vec![(PRELOAD.into(), value.into())])
    }

    #[test]
    fn preload_keeps_what_is_there() {
        let library = Path::new("/l/libadit.so");
        let mut env = with_preload("/a.so /b.so");
        env.preload(library);
        assert_eq!(env.get(PRELOAD).unwrap(), "/a.so /b.so:/l/libadit.so");
        env.preload(library);
        assert_eq!(env.get(PRELOAD).unwrap(), "/a.so /b.so:/l/libadit.so");
        env.without_library(Some(library));
        assert_eq!(env.get(PRELOAD).unwrap(), "/a.so:/b.so");

        let mut env = Environment(Vec::new());
        env.preload(library);
        assert_eq!(env.get(PRELOAD).unwrap(), "/l/libadit.so");
        env.without_library(Some(library));
        assert_eq!(env.get(PRELOAD), None);
    }

    #[test]
    fn the_users_sanitizer_options_stay() {
        let mut env = Environment(vec![(ASAN_OPTIONS.into(), "detect_leaks=0".into())]);
        env.allow_before_sanitizer();
        assert_eq!(
            env.get(ASAN_OPTIONS).unwrap(),
            "detect_leaks=0:verify_asan_link_order=0"
        );
        env.allow_before_sanitizer();
        assert_eq!(
            env.get(ASAN_OPTIONS).unwrap(),
            "detect_leaks=0:verify_asan_link_order=0"
        );
    }
}
