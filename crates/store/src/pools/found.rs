//! Pools in which something may have been left: found by lists, and by where pools are made.
//!
//! Programs of one user may have different state directories, or none that they can write to, and the
//! monitor has that of whoever started it. So `adit run` announces its list in the runtime directory, and a
//! pool is entered in each list there. And whoever recovers looks where pools are made besides: a pool in
//! such a place needs no list. What is in neither stages nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use adit_pool::PoolFile;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::list::{Listed, is_there};
use super::{POOL, Places, PoolList, TMPFS};

/// File systems that files are staged on, as the kernel calls them.
const SERVED: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"];

/// Lists that are looked at, at most.
const MOST_LISTS: usize = 256;

/// A pool that somebody may have left something in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is, or was.
    pub path: PathBuf,
    /// The only device whose files it may stage, when no list names it: what was made beside its files may be
    /// a copy of that by now, and name files of the original.
    pub only: Option<u64>,
}

/// A pool where pools are made, and which no list names.
struct Unlisted {
    path: PathBuf,
    uuid: [u8; 16],
    /// Device and inode: mounts may show a file more than once.
    identity: (u64, u64),
}

impl Unlisted {
    /// Copies of what is in memory do not outlive it.
    fn only(&self) -> Option<u64> {
        let fs = rustix::fs::statfs(self.path.as_os_str().as_bytes()).ok();
        let in_memory = fs.is_some_and(|fs| fs.f_type as u64 == TMPFS);
        (!in_memory).then_some(self.identity.0)
    }

    /// What is there, if it is a pool of this user.
    fn at(path: PathBuf) -> Option<Self> {
        let stat = rustix::fs::statat(CWD, path.as_os_str().as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.ok()?;
        let pool = PoolFile::open_read_only(&path).ok()?;
        Some(Self {
            uuid: *pool.uuid(),
            identity: (stat.st_dev, stat.st_ino),
            path,
        })
    }
}

impl Places {
    /// Tells the monitor of this runtime directory, and who recovers what is left under it, where the list
    /// is. Nothing is made where the list will be.
    pub fn announce(&self) -> Result<(), Errno> {
        let names = self.announced();
        let target = self.list.dir.as_os_str().as_bytes();
        // Two lists for whose directories one name comes out are one too many for this.
        let link = names.join(format!("{:08x}", crc32c::crc32c(target)));
        let link = link.as_os_str().as_bytes();
        let is_there = rustix::fs::readlinkat(CWD, link, Vec::new());
        if is_there.is_ok_and(|there| there.to_bytes() == target) {
            return Ok(());
        }
        match rustix::fs::mkdirat(CWD, names.as_os_str().as_bytes(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => rustix::fs::symlinkat(target, CWD, link),
            Err(errno) => Err(errno),
        }
    }

    fn announced(&self) -> PathBuf {
        self.runtime.join("lists")
    }

    /// Its own list, and those that were announced by programs whose home directory is still there.
    pub(super) fn lists(&self) -> Vec<PoolList> {
        let mut all = vec![self.list.clone()];
        let names = self.announced();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(names.as_os_str().as_bytes(), flags, Mode::empty());
        let Some(entries) = opened.ok().and_then(|fd| Dir::read_from(fd).ok()) else {
            return all;
        };
        for entry in entries.filter_map(Result::ok).take(MOST_LISTS) {
            let link = names.join(OsStr::from_bytes(entry.file_name().to_bytes()));
            let Ok(dir) = rustix::fs::readlinkat(CWD, link.as_os_str().as_bytes(), Vec::new())
            else {
                continue;
            };
            let dir = Path::new(OsStr::from_bytes(dir.to_bytes())).to_owned();
            let list = PoolList { dir };
            if list.may_be_made() && all.iter().all(|known| known.dir != list.dir) {
                all.push(list);
            }
        }
        all
    }

    /// The pools of all lists, each path once.
    pub(crate) fn listed(&self) -> Vec<Listed> {
        let mut all: Vec<Listed> = Vec::new();
        for line in self.lists().iter().flat_map(PoolList::read) {
            if all.iter().all(|known| known.path != line.path) {
                all.push(line);
            }
        }
        all
    }

    /// All pools that dead programs may have left something in: those of the lists, and those that lie where
    /// pools are made and are in no list.
    #[must_use]
    pub fn pools(&self) -> Vec<Found> {
        let listed = self.listed();
        let own = [self.runtime.join(POOL), self.list.dir.join(POOL)];
        let mut unlisted: Vec<Unlisted> = Vec::new();
        for path in own.into_iter().chain(usual_places()) {
            if listed.iter().any(|known| known.path == path) {
                continue;
            }
            let Some(found) = Unlisted::at(path) else {
                continue;
            };
            let elsewhere = |known: &Listed| known.uuid == found.uuid && is_there(&known.path);
            let again = |known: &Unlisted| known.identity == found.identity;
            if !listed.iter().any(elsewhere) && !unlisted.iter().any(again) {
                unlisted.push(found);
            }
        }
        // Of a pool and its copy, on a snapshot of its file system for instance, only a list can say which is
        // the copy: what is in that was published long ago, and overwritten.
        let alone = |found: &&Unlisted| {
            let same = |other: &&Unlisted| other.uuid == found.uuid;
            unlisted.iter().filter(same).count() == 1
        };
        let unlisted = unlisted.iter().filter(alone).map(|found| Found {
            path: found.path.clone(),
            only: found.only(),
        });
        let listed = listed.iter().map(|line| Found {
            path: line.path.clone(),
            only: None,
        });
        listed.chain(unlisted).collect()
    }

    /// Takes the pools that are gone for good out of all lists.
    pub(crate) fn forget_the_gone(&self) {
        for list in self.lists() {
            // A list that cannot be changed only stays longer than it need be.
            let _ = list.forget_the_gone();
        }
    }
}

/// Where every `adit run` of this user looks for pools, whatever its environment says.
pub(super) fn usual_places() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let memory = [
        format!("/dev/shm/adit-{user}"),
        format!("/run/user/{user}/adit"),
    ];
    let mounts = adit_pmem::detect::mounts().into_iter();
    // To look at a mount of another kind may mean to wait for another machine.
    let served = mounts.filter(|mount| SERVED.contains(&mount.fs_type.as_str()));
    let on_mounts =
        served.map(move |mount| Path::new(&mount.mount_point).join(format!(".adit-{user}")));
    let all = memory.into_iter().map(PathBuf::from).chain(on_mounts);
    all.map(|dir| dir.join(POOL))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

    use super::*;
    use crate::pools::{NoPool, SMALLEST, geometry};
    use crate::testing::Scratch;

    fn pool_at(path: &Path) -> [u8; 16] {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("create");
        let pool = PoolFile::create(path, SMALLEST, geometry(SMALLEST)).expect("a pool");
        *pool.pool().uuid()
    }

    /// What the machine that runs the tests has itself.
    fn usual() -> Vec<Found> {
        let nowhere = PathBuf::from("/no such directory");
        let places = Places {
            runtime: nowhere.clone(),
            list: PoolList::at(&nowhere),
        };
        places.pools()
    }

    /// A list that cannot be written costs the recovery, in this boot as well: such a pool stages nothing. An
    /// announced list is as good, whoever's monitor it is.
    #[test]
    fn a_pool_that_nobody_would_find_is_none() {
        let scratch = Scratch::new();
        std::fs::create_dir(scratch.path("run")).expect("create");
        let places = Places {
            runtime: scratch.path("run"),
            // Not even root makes directories there.
            list: PoolList::at(Path::new("/proc/no/such/directory")),
        };
        let path = scratch.path("pool");
        let uuid = pool_at(&path);
        let refused = places.opened(&path).expect_err("in no list");
        assert!(matches!(refused, NoPool::Unlisted { .. }), "{refused}");
        assert_eq!(places.pools(), usual());
        let other = Places {
            list: PoolList::at(&scratch.path("home/.local/state/adit")),
            ..places.clone()
        };
        other.announce().expect("announce");
        other.announce().expect("announce again");
        assert!(places.opened(&path).is_err(), "a home that is gone");
        assert!(!scratch.path("home").exists(), "it is not made again");
        std::fs::create_dir(scratch.path("home")).expect("create");
        places.opened(&path).expect("a list that was announced");
        let line = Listed {
            uuid,
            path: path.clone(),
        };
        assert_eq!(other.list.read(), [line]);
        for places in [&places, &other] {
            let found = places.pools().into_iter().next().expect("a pool");
            assert_eq!((found.path, found.only), (path.clone(), None));
        }
        // Where everybody looks no list is needed.
        let user = rustix::process::geteuid().as_raw();
        let usual = PathBuf::from(format!("/dev/shm/adit-{user}/pool"));
        std::fs::remove_dir_all(scratch.path("run/lists")).expect("remove");
        places.enter(&uuid, &usual).expect("found without a list");
    }

    #[test]
    fn pools_are_found_without_a_list_and_their_copies_are_not() {
        let scratch = Scratch::new();
        let places = Places {
            runtime: scratch.path("run"),
            list: PoolList::at(&scratch.path("state")),
        };
        let found = || {
            let all = places.pools().into_iter().map(|found| found.path);
            all.filter(|path| path.starts_with(&scratch.0))
                .collect::<Vec<_>>()
        };
        assert!(found().is_empty());
        let [here, there] = ["run/pool", "state/pool"].map(|name| scratch.path(name));
        let uuid = pool_at(&here);
        assert_eq!(found(), std::slice::from_ref(&here));
        // A second name is no copy.
        std::fs::create_dir(scratch.path("state")).expect("create");
        std::fs::hard_link(&here, &there).expect("link");
        assert_eq!(found(), std::slice::from_ref(&here));
        // Of a pool and its copy none is taken, unless a list knows which is which.
        std::fs::remove_file(&there).expect("remove");
        std::fs::copy(&here, &there).expect("copy");
        assert!(found().is_empty());
        places.list.add(&uuid, &there).expect("add");
        assert_eq!(found(), std::slice::from_ref(&there));
        // What a list says and is not there is no pool that another could be a copy of.
        std::fs::remove_file(&there).expect("remove");
        assert_eq!(found(), [there, here]);
    }

    #[test]
    fn every_mount_is_looked_at() {
        let user = rustix::process::geteuid().as_raw();
        let mount = adit_pmem::detect::mount_of_fd(
            rustix::fs::open("/dev/shm", OFlags::RDONLY, Mode::empty()).expect("open"),
        );
        let mount = mount.expect("its mount");
        let place = Path::new(&mount.mount_point).join(format!(".adit-{user}/pool"));
        assert!(usual_places().any(|usual| usual == place), "{place:?}");
        assert!(usual_places().all(|usual| !usual.starts_with("/proc")));
    }
}
