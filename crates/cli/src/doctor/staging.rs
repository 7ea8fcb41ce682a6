//! Whether files can be staged at all: the modes beyond `posix` promise less where they cannot.

use std::fs::metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use adit_pmem::{MediumKind, detect};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::process::{Resource, getrlimit};

use super::probes::Probe;
use crate::limits;
use crate::output::quoted;
use crate::run::NO_MONITOR;
use crate::runtime;

/// Why nothing is staged, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) why: String,
    pub(crate) next: String,
}

fn because(why: impl Into<String>, next: impl Into<String>) -> Option<Obstacle> {
    let (why, next) = (why.into(), next.into());
    Some(Obstacle { why, next })
}

/// What keeps files in `dir` from being staged, as far as that can be told without making a pool.
pub(crate) fn obstacle(dir: &Path, found: &detect::Report, probes: &[Probe]) -> Option<Obstacle> {
    if found.detected.kind == MediumKind::Other {
        return None;
    }
    if let Some(mount) = found.mount.as_ref().filter(|mount| is_read_only(mount)) {
        return because(
            "the file system is mounted read-only, and no pool can be on it",
            format!(
                "mount it for writing: mount -o remount,rw {}",
                quoted(Path::new(&mount.mount_point))
            ),
        );
    }
    let refused = |name: &str| {
        probes
            .iter()
            .find(|probe| probe.name == name && !probe.works)
    };
    for name in ["F_SETLEASE", "file handles"] {
        if let Some(probe) = refused(name) {
            let why = probe.why.as_deref().unwrap_or("refused");
            return because(
                format!("{name} does not work here ({why})"),
                "use a directory of your own on tmpfs, ext4, XFS or btrfs",
            );
        }
    }
    if std::env::var_os(NO_MONITOR).is_some_and(|value| !value.is_empty()) {
        return because(
            format!("{NO_MONITOR} is set, and files are staged with a monitor only"),
            format!("unset {NO_MONITOR}"),
        );
    }
    limited().or_else(|| {
        let mount = found
            .mount
            .as_ref()
            .map(|mount| Path::new(&mount.mount_point));
        nowhere(dir, found.detected.kind, mount)
    })
}

/// Of the mount's options, or of the file system's.
fn is_read_only(mount: &detect::Mount) -> bool {
    mount.options.iter().any(|option| option == "ro")
}

/// The limits under which no monitor is started, or a program stages nothing.
fn limited() -> Option<Obstacle> {
    let is_limited = |resource| {
        let limit = getrlimit(resource);
        limit.maximum.is_some() || limit.current.is_some()
    };
    let found = [
        (Resource::Data, "data", "ulimit -d unlimited"),
        (Resource::Fsize, "file sizes", "ulimit -f unlimited"),
    ]
    .into_iter()
    .find(|(resource, ..)| is_limited(*resource));
    if let Some((_, what, how)) = found {
        return because(
            format!("there is a limit on {what}, under which nothing is staged"),
            format!("lift the limit: {how}"),
        );
    }
    // Of these two a soft limit is no obstacle, nor is a hard one that is not small.
    let limit = limits::too_low()?;
    because(
        format!("no monitor is started under this {limit}, and files are staged with one only"),
        "lift the hard limit",
    )
}

/// Where no pool can be.
fn nowhere(dir: &Path, kind: MediumKind, mount: Option<&Path>) -> Option<Obstacle> {
    let own = rustix::process::geteuid().as_raw();
    let runtime = runtime::usual_directory().ok()?;
    let places = if kind == MediumKind::Ram {
        let runtime = PathBuf::from(std::ffi::OsStr::from_bytes(runtime.as_bytes()));
        vec![runtime, PathBuf::from(format!("/dev/shm/adit-{own}"))]
    } else {
        let on_mount = mount.map(|mount| mount.join(format!(".adit-{own}")));
        let state = Some(runtime::places(&runtime).list.directory().to_owned());
        [on_mount, state].into_iter().flatten().collect()
    };
    let device = metadata(dir).ok().map(|dir| dir.dev());
    let fits = |place: &PathBuf| {
        let same =
            |at: &Path| kind == MediumKind::Ram || metadata(at).ok().map(|at| at.dev()) == device;
        can_be_made(place, own, same)
    };
    let named = |places: &[PathBuf], between: &str| {
        let names: Vec<String> = places.iter().map(|at| at.display().to_string()).collect();
        names.join(between)
    };
    let all = named(&places, " nor ");
    let fitting: Vec<PathBuf> = places.into_iter().filter(fits).collect();
    if !fitting.is_empty() {
        return without_room(
            &fitting,
            adit_store::pools::has_room,
            named(&fitting, " or "),
        );
    }
    let mine = dir.join("adit.pool");
    because(
        format!("there is no place for a pool: neither {all} can be used"),
        format!(
            "make a pool in a directory of your own there and name it: adit pool create {0}; adit run --pool {0}",
            quoted(&mine)
        ),
    )
}

/// Unless one of the places has room.
fn without_room(
    places: &[PathBuf],
    has_room: impl Fn(&Path) -> bool,
    named: String,
) -> Option<Obstacle> {
    if places.iter().any(|place| has_room(place)) {
        return None;
    }
    because(
        format!(
            "there is no room for a pool, which takes 16 MB at least and a third of what is free at most, in {named}"
        ),
        "make room on the file system",
    )
}

/// Whether a private directory is there, or can be made, where `right` says that it fits.
fn can_be_made(place: &Path, own: u32, right: impl Fn(&Path) -> bool) -> bool {
    if let Ok(there) = std::fs::symlink_metadata(place) {
        let private =
            there.is_dir() && there.uid() == own && there.permissions().mode() & 0o077 == 0;
        return private && right(place);
    }
    let Some(above) = place.ancestors().skip(1).find(|dir| dir.is_dir()) else {
        return false;
    };
    let writable = rustix::fs::accessat(
        CWD,
        above.as_os_str().as_bytes(),
        Access::WRITE_OK,
        AtFlags::EACCESS,
    );
    writable.is_ok() && right(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_for_a_pool_is_private_and_on_the_right_device() {
        let room = std::env::temp_dir().join(format!("adit-staging-{}", std::process::id()));
        std::fs::create_dir(&room).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let place = room.join("a/b");
        assert!(can_be_made(&place, own, |_| true));
        assert!(!can_be_made(&place, own, |_| false));
        std::fs::create_dir_all(&place).unwrap();
        for (mode, expected) in [(0o700, true), (0o750, false)] {
            std::fs::set_permissions(&place, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(can_be_made(&place, own, |_| true), expected, "{mode:o}");
        }
        assert!(!can_be_made(&place, own + 1, |_| true));
        assert!(!can_be_made(Path::new("/proc/adit"), own, |_| false));
        std::fs::remove_dir_all(&room).unwrap();
    }

    #[test]
    fn a_place_without_room_is_named() {
        let places = ["/a", "/b"].map(PathBuf::from);
        let told = without_room(&places, |_| false, "/a or /b".into()).unwrap();
        assert!(told.why.contains("no room") && told.why.contains("/a or /b"));
        assert_eq!(
            without_room(&places, |at| at.ends_with("b"), String::new()),
            None
        );
    }

    #[test]
    fn a_mount_that_is_read_only_is_named() {
        let mut found = detect::Report::of(&std::env::temp_dir(), detect::Probe::Look).unwrap();
        let mount = found.mount.as_mut().unwrap();
        mount.options = ["relatime", "errors=remount-ro", "ro"]
            .map(Into::into)
            .to_vec();
        let told = obstacle(Path::new("/tmp"), &found, &[]).unwrap();
        assert!(
            told.why.contains("read-only") && told.next.contains("remount,rw"),
            "{told:?}"
        );
        found.mount.as_mut().unwrap().options.pop();
        let others = obstacle(Path::new("/tmp"), &found, &[]);
        assert!(others.is_none_or(|other| !other.why.contains("read-only")));
    }

    #[test]
    fn what_the_kernel_refuses_is_named() {
        let found = detect::Report::of(&std::env::temp_dir(), detect::Probe::Look).unwrap();
        let probe = Probe {
            name: "F_SETLEASE",
            works: false,
            why: Some("not today".into()),
            since: "",
            used_for: "",
        };
        let found = obstacle(Path::new("/tmp"), &found, &[probe]).unwrap();
        assert!(found.why.contains("F_SETLEASE") && found.why.contains("not today"));
        assert!(!found.next.is_empty());
    }
}
