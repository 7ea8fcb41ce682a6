//! Facts about the machine and the mount that decide how well Adit works, or whether.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;

/// A mount.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Mount {
    /// Where it is mounted.
    pub(crate) on: String,
    /// The kind of file system.
    pub(crate) kind: String,
    /// The device or other source.
    pub(crate) source: String,
    /// Options of the mount and of the file system.
    pub(crate) options: String,
}

/// The kernel and the processor.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The processor architecture.
    pub(crate) processor: String,
    /// The routine for plain copies.
    pub(crate) copy: String,
    /// The routine for copies past the cache.
    pub(crate) streaming_copy: String,
    /// The instruction that writes cache lines back.
    pub(crate) write_back: String,
    /// Transparent huge pages for files in memory.
    pub(crate) huge_pages_shmem: String,
    /// Transparent huge pages in general.
    pub(crate) huge_pages: String,
}

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

/// The mount that `path` lies on.
pub(crate) fn mount(path: &Path) -> Option<Mount> {
    let bytes = path.as_os_str().as_bytes();
    let found =
        rustix::fs::statx(rustix::fs::CWD, bytes, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    parse_mount(
        &read_to_string("/proc/self/mountinfo").ok()?,
        found.stx_mnt_id,
    )
}

/// Finds a mount by its number in the kernel's list.
fn parse_mount(list: &str, id: u64) -> Option<Mount> {
    let line = list.lines().find(|line| {
        line.split(' ')
            .next()
            .and_then(|first| first.parse::<u64>().ok())
            == Some(id)
    })?;
    let (place, file_system) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(4);
    let (on, options) = (place.next()?, place.next()?);
    let mut file_system = file_system.split(' ');
    let (kind, source) = (file_system.next()?, file_system.next()?);
    let more = file_system.next().unwrap_or_default();
    Some(Mount {
        on: unescape(on),
        kind: kind.to_owned(),
        source: unescape(source),
        options: format!("{options},{more}"),
    })
}

/// The kernel writes blanks in names as `\040`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// The machine this runs on.
pub(crate) fn machine() -> Machine {
    let name = rustix::system::uname();
    let text = |path: &str| match read_to_string(path) {
        Ok(text) => chosen(&text),
        Err(_) => "unknown".to_owned(),
    };
    Machine {
        kernel: name.release().to_string_lossy().into_owned(),
        processor: name.machine().to_string_lossy().into_owned(),
        copy: super::medium::copy_routine(),
        streaming_copy: super::medium::streaming_routine(),
        write_back: super::medium::write_back(),
        huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled"),
        huge_pages_shmem: text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    }
}

/// The chosen word of `always [madvise] never`.
fn chosen(text: &str) -> String {
    match text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
    {
        Some((word, _)) => word.to_owned(),
        None => text.trim().to_owned(),
    }
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
    fn a_line_of_mountinfo() {
        let list = "21 1 0:19 / /proc rw - proc proc rw\n\
                    36 35 98:0 /mnt1 /my\\040disk rw,noatime master:1 - ext4 /dev/root rw,dax=always\n";
        let mount = parse_mount(list, 36).unwrap();
        assert_eq!(
            (mount.on.as_str(), mount.kind.as_str()),
            ("/my disk", "ext4")
        );
        assert_eq!(mount.options, "rw,noatime,rw,dax=always");
        assert!(parse_mount(list, 37).is_none());
        assert!(parse_mount("36 35\n", 36).is_none());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mount(Path::new("/")).is_some_and(|m| m.on == "/"));
    }

    #[test]
    fn chosen_words() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("plain\n"), "plain");
    }
}
