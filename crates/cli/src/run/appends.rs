//! Whether the library has to look out for appends in mode `posix`.
//!
//! It would have to keep signals off its engine, and to watch what is opened for writing, in every program.
//! Where no file system is mounted that maps its medium directly, that is for nothing.

use crate::args::Appends;

/// What the library is told.
pub(crate) fn resolved(asked: Appends) -> Appends {
    match asked {
        Appends::Auto if !has_dax(&mounts()) => Appends::Kernel,
        asked => asked,
    }
}

fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Whether a mounted file system may map its medium directly: it says so, or it lies on persistent memory,
/// where single files can be marked.
fn has_dax(mountinfo: &str) -> bool {
    mountinfo.lines().any(|mount| {
        let fields = mount.split_once(" - ").map_or("", |(_, after)| after);
        let mut fields = fields.split(' ').skip(1);
        let (source, options) = (fields.next(), fields.next());
        let dax =
            |option: &str| option == "dax" || (option.starts_with("dax=") && option != "dax=never");
        source.is_some_and(|source| source.starts_with("/dev/pmem"))
            || options.is_some_and(|options| options.split(',').any(dax))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_map_their_medium() {
        let line = |source: &str, options: &str| {
            format!("29 1 8:1 / / rw,relatime shared:1 - ext4 {source} {options}\n")
        };
        for (source, options, expected) in [
            ("/dev/sda1", "rw,errors=remount-ro", false),
            ("/dev/sda1", "rw,dax=never", false),
            ("/dev/sda1", "rw,dax=always", true),
            ("/dev/mapper/it", "rw,dax", true),
            ("/dev/pmem0p1", "rw", true),
            ("daxfs", "rw,name=dax", false),
        ] {
            let other = line("/dev/sdb", "rw");
            assert_eq!(
                has_dax(&(other + &line(source, options))),
                expected,
                "{source} {options}"
            );
        }
        assert!(!has_dax("") && !has_dax("no mounts"));
    }
}
