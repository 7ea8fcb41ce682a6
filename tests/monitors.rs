//! Which process is a monitor. Included by path in the tests of several crates.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The monitor that was started with a runtime directory among its arguments: by `adit run`, or as a successor. One that
/// still stands by is none.
pub(crate) fn monitor_of(runtime: &Path) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|number: &u32| {
        let read = |what: &str| std::fs::read(format!("/proc/{number}/{what}")).unwrap_or_default();
        let words = read("cmdline");
        let mut words = words.split(|byte| *byte == 0);
        words.any(|word| word == runtime.as_os_str().as_bytes())
            && !read("comm").starts_with(b"adit-standby")
    })
}
