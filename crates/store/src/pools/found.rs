//! Pools in which something may have been left: found by lists, and by where pools are made.
//!
//! Programs of one user may have different state directories, or none that they can write to, and the
//! monitor has that of whoever started it. So `adit run` announces its list in the runtime directory, and a
//! pool is entered in each list there. And whoever recovers looks where pools are made besides: a pool in
//! such a place needs no list. What is in neither stages nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_pool::{FileName, PoolFile};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use super::list::Listed;
use super::{POOL, Places, PoolList, TMPFS};
use crate::clock;
use crate::staged::Within;

/// File systems that files are staged on, as the kernel calls them.
const SERVED: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs"];

/// Lists that are looked at, at most.
const MOST_LISTS: usize = 256;

/// How long a list stays announced whose home directory is gone, after the last program that had it was started: somebody
/// may make that again.
const ANNOUNCED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// A pool that somebody may have left something in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is, or was.
    pub path: PathBuf,
    /// The file system that it lies on, beside its files ([`Places::file_system_of`]).
    pub within: Option<Within>,
}

impl Found {
    /// Whether a file that is open now may be staged there: a copy stages none of its original's.
    #[must_use]
    pub fn may_stage(&self, file: &FileName) -> bool {
        let within = self.within.as_ref();
        within.is_none_or(|within| !within.alone || within.device == file.device)
    }
}

/// What lies somewhere, if it is a pool of this user.
struct Seen {
    uuid: [u8; 16],
    /// Device and inode: mounts may show a file more than once.
    identity: (u64, u64),
}

impl Seen {
    fn at(path: &Path) -> Option<Self> {
        let name = path.as_os_str().as_bytes();
        let stat = rustix::fs::statat(CWD, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        Some(Self {
            uuid: PoolFile::uuid_at(path).ok()?,
            identity: (stat.st_dev, stat.st_ino),
        })
    }

    /// What lies at these paths.
    fn all(paths: impl Iterator<Item = PathBuf>) -> Vec<(PathBuf, Self)> {
        let seen = |path: PathBuf| Self::at(&path).map(|seen| (path, seen));
        paths.filter_map(seen).collect()
    }
}

impl Places {
    /// Tells the monitor of this runtime directory, and who recovers what is left under it, where the list
    /// is. Nothing is made where the list will be.
    pub fn announce(&self) -> Result<(), Errno> {
        if !is_private(&self.runtime) {
            return Err(Errno::PERM);
        }
        let names = self.announced();
        let target = self.list.dir.as_os_str().as_bytes();
        // Two lists for whose directories one name comes out are one too many for this.
        let link = names.join(format!("{:08x}", crc32c::crc32c(target)));
        let link = link.as_os_str().as_bytes();
        let is_there = rustix::fs::readlinkat(CWD, link, Vec::new());
        if is_there.is_ok_and(|there| there.to_bytes() == target) {
            return announce_anew(link, target);
        }
        let directory = names.as_os_str().as_bytes();
        match rustix::fs::mkdirat(CWD, directory, Mode::RWXU) {
            // The umask may have taken bits away.
            Ok(()) => rustix::fs::chmodat(CWD, directory, Mode::RWXU, AtFlags::empty())?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        rustix::fs::symlinkat(target, CWD, link)
    }

    /// Takes back what was announced by programs whose home directory is gone, as one is that somebody has made for a day's
    /// work: each start would read all of them. An announcement counts under any name, so it is moved out of the way of
    /// those who announce it again just then ([`announce_anew`]), and looked at once more before it goes.
    fn forget_announcements_of_the_gone(&self) {
        for (link, list) in self.announcements() {
            if !is_old(&link) || !list.has_lost_its_home() {
                continue;
            }
            let mut aside = link.clone().into_os_string();
            aside.push(".gone");
            let aside = PathBuf::from(aside);
            let [name, gone] = [&link, &aside].map(|path| path.as_os_str().as_bytes());
            if rustix::fs::renameat(CWD, name, CWD, gone).is_ok() {
                let _ = if is_old(&aside) {
                    rustix::fs::unlinkat(CWD, gone, AtFlags::empty())
                } else {
                    rustix::fs::renameat(CWD, gone, CWD, name)
                };
            }
        }
    }

    /// What is announced, and by which links. Before the directory is ours, somebody else may have made it.
    fn announcements(&self) -> Vec<(PathBuf, PoolList)> {
        if !is_private(&self.runtime) {
            return Vec::new();
        }
        let names = self.announced();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(names.as_os_str().as_bytes(), flags, Mode::empty());
        let entries = opened.ok().and_then(|fd| Dir::read_from(fd).ok());
        let entries = entries.into_iter().flatten().filter_map(Result::ok);
        let announced = entries.filter_map(|entry| {
            let link = names.join(OsStr::from_bytes(entry.file_name().to_bytes()));
            let dir = rustix::fs::readlinkat(CWD, link.as_os_str().as_bytes(), Vec::new()).ok()?;
            let dir = Path::new(OsStr::from_bytes(dir.to_bytes())).to_owned();
            Some((link, PoolList { dir }))
        });
        announced.collect()
    }

    fn announced(&self) -> PathBuf {
        self.runtime.join("lists")
    }

    /// Its own list, and those that were announced. Whose home directory is not there has none.
    pub(super) fn lists(&self) -> Vec<PoolList> {
        let own = Some(self.list.clone()).filter(PoolList::may_be_made);
        let mut all: Vec<PoolList> = own.into_iter().collect();
        for (_, list) in self.announcements() {
            if all.len() == MOST_LISTS {
                break;
            }
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
        let mut unlisted: Vec<(PathBuf, Seen)> = Vec::new();
        let own = [&self.runtime, &self.list.dir].into_iter();
        let own = own.filter(|dir| is_private(dir)).map(|dir| dir.join(POOL));
        for path in own.chain(usual_places()) {
            if listed.iter().any(|known| known.path == path) {
                continue;
            }
            let Some(seen) = Seen::at(&path) else {
                continue;
            };
            let is_it =
                |known: &Listed| Seen::at(&known.path).is_some_and(|it| it.uuid == seen.uuid);
            let elsewhere = |known: &Listed| known.uuid == seen.uuid && is_it(known);
            let again = |(_, known): &(PathBuf, Seen)| known.identity == seen.identity;
            if !listed.iter().any(elsewhere) && !unlisted.iter().any(again) {
                unlisted.push((path, seen));
            }
        }
        // Of a pool and its copy, on a snapshot of its file system for instance, only a list can say which is
        // the copy: what is in that was published long ago, and overwritten.
        let alone = |(_, seen): &&(PathBuf, Seen)| {
            let same = |(_, other): &&(PathBuf, Seen)| other.uuid == seen.uuid;
            unlisted.iter().filter(same).count() == 1
        };
        let unlisted = unlisted.iter().filter(alone);
        let found = |path: &PathBuf, is_listed: bool| Found {
            path: path.clone(),
            within: self.beside(path, !is_listed),
        };
        let listed = listed.iter().map(|line| found(&line.path, is_there(line)));
        let unlisted = unlisted.map(|(path, _)| found(path, false));
        listed.chain(unlisted).collect()
    }

    /// The pool in which somebody has a file staged, for who can ask no monitor; `asked` is the one that the user has
    /// asked for, which may be in no list that is known here. Where no other pool has it, one that cannot be looked at
    /// is an error: it may.
    pub fn pool_with(
        &self,
        name: &FileName,
        asked: Option<&Path>,
    ) -> adit_pool::Result<Option<PathBuf>> {
        let asked = asked.map(|path| Found {
            path: path.to_owned(),
            within: self.file_system_of(path),
        });
        let mut unknown = Ok(None);
        for found in asked.into_iter().chain(self.pools()) {
            if !found.may_stage(name) {
                continue;
            }
            match has_entry(&found.path, name) {
                Ok(true) => return Ok(Some(found.path)),
                Ok(false) => {}
                Err(error) => unknown = Err(error),
            }
        }
        unknown
    }

    /// The file system of a pool that was made beside its files. It may be a copy of that by now, on a snapshot, and
    /// name files of the original, which have the same handles: unless a list says that it is the pool, what is in it goes
    /// to files of its own file system alone. Copies of memory do not outlive it.
    #[must_use]
    pub fn file_system_of(&self, path: &Path) -> Option<Within> {
        let is_it = |known: &Listed| known.path == path && is_there(known);
        self.beside(path, !self.listed().iter().any(is_it))
    }

    fn beside(&self, path: &Path, alone: bool) -> Option<Within> {
        let dir = path.parent()?;
        let is_on_mount = dir
            .file_name()
            .is_some_and(|name| name.as_bytes().starts_with(b".adit-"));
        let is_beside_list = || self.lists().iter().any(|list| list.dir == dir);
        if path.file_name() != Some(OsStr::new(POOL)) || !(is_on_mount || is_beside_list()) {
            return None;
        }
        let name = path.as_os_str().as_bytes();
        let in_memory = rustix::fs::statfs(name).ok()?.f_type as u64 == TMPFS;
        let device = rustix::fs::stat(name).ok()?.st_dev;
        let root = dir.parent().filter(|_| is_on_mount).map(Path::to_owned);
        (!in_memory).then_some(Within {
            device,
            root,
            alone,
        })
    }

    /// The same for a pool that somebody has named to be recovered; or else the pool that it is a copy of, with which it
    /// has files in common: what is in a copy was written long ago, and overwritten since. One that has no other is as good
    /// as listed.
    pub fn for_chosen(&self, path: &Path) -> Result<Option<Within>, PathBuf> {
        let within = self.file_system_of(path);
        let Some(seen) = Seen::at(path) else {
            return Ok(within);
        };
        let listed = Seen::all(self.listed().into_iter().map(|line| line.path));
        if listed.iter().any(|(_, it)| it.identity == seen.identity) {
            return Ok(within);
        }
        let mut others = listed;
        others.extend(Seen::all(usual_places()));
        others.retain(|(_, it)| it.uuid == seen.uuid && it.identity != seen.identity);
        let shares = |device: u64| within.as_ref().is_none_or(|it| it.device == device);
        match others.iter().find(|(_, it)| shares(it.identity.0)) {
            Some((original, _)) => Err(original.clone()),
            None => Ok(within.map(|within| Within {
                alone: !others.is_empty(),
                ..within
            })),
        }
    }

    /// The pool that a pool is a copy of: a list knows that, and it is still there.
    pub(super) fn original_of(&self, uuid: &[u8; 16], path: &Path) -> Option<PathBuf> {
        let identity = Seen::at(path)?.identity;
        let is_other = |known: &Listed| {
            let other = Seen::at(&known.path);
            other.is_some_and(|other| other.uuid == *uuid && other.identity != identity)
        };
        let mut listed = self.listed().into_iter();
        let original =
            listed.find(|known| known.uuid == *uuid && known.path != path && is_other(known));
        original.map(|known| known.path)
    }

    /// Takes the pools that are gone for good out of all lists, and takes back the announcements of lists that are.
    pub(crate) fn forget_the_gone(&self) {
        self.forget_announcements_of_the_gone();
        for list in self.lists() {
            // A list that cannot be changed only stays longer than it need be.
            let _ = list.forget_the_gone();
        }
    }
}

/// Whether nobody has said for long that he relies on an announcement.
fn is_old(link: &Path) -> bool {
    let name = link.as_os_str().as_bytes();
    let stat = rustix::fs::statat(CWD, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| {
        let said = clock::nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64);
        clock::now().saturating_sub(said) > ANNOUNCED_FOR.as_nanos() as u64
    })
}

/// Says of an announcement that somebody relies on it still, or makes it where it was just moved away.
fn announce_anew(link: &[u8], target: &[u8]) -> Result<(), Errno> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    match rustix::fs::utimensat(CWD, link, &times, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => rustix::fs::symlinkat(target, CWD, link),
        // It is there; at worst it is taken for older than it is.
        _ => Ok(()),
    }
}

/// Whether what lies at the path of a line is the pool that it is about. Another disk may be mounted there by now, somebody
/// else's perhaps, with a pool that names files of ours.
fn is_there(line: &Listed) -> bool {
    Seen::at(&line.path).is_some_and(|seen| seen.uuid == line.uuid)
}

fn has_entry(pool: &Path, name: &FileName) -> adit_pool::Result<bool> {
    let pool = match PoolFile::open_read_only(pool) {
        Err(adit_pool::Error::Kernel { errno, .. }) if errno == Errno::NOENT => return Ok(false),
        pool => pool?,
    };
    // How many are staged is not asked: of those who are dead a mirror may not know any more.
    let Some(file) = pool.find_file(name)? else {
        return Ok(false);
    };
    // Another file system's files may have the same handles.
    Ok(pool.file_name(file)?.device == name.device)
}

/// Where every `adit run` of this user looks for pools, whatever its environment says, and where nobody else
/// can have put any.
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
    let safe = all.filter(|dir| is_private(dir) && dir.parent().is_some_and(keeps_its_names));
    safe.map(|dir| dir.join(POOL))
}

/// Whether a directory is this user's alone, and no link to one.
fn is_private(dir: &Path) -> bool {
    let stat = rustix::fs::statat(CWD, dir.as_os_str().as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let own = stat.st_uid == rustix::process::geteuid().as_raw();
        directory && own && stat.st_mode & 0o077 == 0
    })
}

/// Whether nobody else can put another directory in the place of one that is this user's.
fn keeps_its_names(dir: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    rustix::fs::stat(dir.as_os_str().as_bytes()).is_ok_and(|stat| {
        let own = [0, user].contains(&stat.st_uid);
        own && (stat.st_mode & 0o022 == 0 || stat.st_mode & 0o1000 != 0)
    })
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

    /// A directory where the tests lie, on a disk mostly, and where its user's lists are.
    fn beside_the_tests(name: &str) -> (PathBuf, Scratch, Places) {
        let program = std::env::current_exe().expect("own path");
        let disk = program.with_file_name(format!("{name}-{}", std::process::id()));
        let scratch = Scratch::new();
        let places = Places {
            runtime: scratch.path("run"),
            list: PoolList::at(&scratch.path("state")),
        };
        (disk, scratch, places)
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
        private(&scratch.path("run"), 0o700);
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
        let line = Listed::at(&uuid, &path);
        assert_eq!(other.list.read(), [line]);
        for places in [&places, &other] {
            let found = places.pools().into_iter().next().expect("a pool");
            assert_eq!((found.path, found.within), (path.clone(), None));
        }
        // Where everybody looks no list is needed.
        let user = rustix::process::geteuid().as_raw();
        let usual = PathBuf::from(format!("/dev/shm/adit-{user}/pool"));
        std::fs::remove_dir_all(scratch.path("run/lists")).expect("remove");
        private(usual.parent().expect("a directory"), 0o700);
        // It is there as soon as anything has run without a directory of its own, and stays.
        if !usual.exists() {
            pool_at(&usual);
        }
        places.enter(&uuid, &usual).expect("found without a list");
    }

    /// Each temporary home directory would leave an announcement that every start reads.
    #[test]
    fn what_was_announced_from_a_home_that_is_gone_is_taken_back() {
        let scratch = Scratch::new();
        private(&scratch.path("run"), 0o700);
        let at = |home: &str| Places {
            runtime: scratch.path("run"),
            list: PoolList::at(&scratch.path(home).join(".local/state/adit")),
        };
        let all = || {
            std::fs::read_dir(scratch.path("run/lists"))
                .expect("lists")
                .count()
        };
        for home in ["there", "gone", "gone lately", "again"] {
            at(home).announce().expect("announce");
        }
        std::fs::create_dir(scratch.path("there")).expect("create");
        let yesterday = Timespec {
            tv_sec: (clock::now() / 1_000_000_000) as i64 - 25 * 60 * 60,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: yesterday,
            last_modification: yesterday,
        };
        for (link, list) in at("there").announcements() {
            if !list.dir.starts_with(scratch.path("gone lately")) {
                let link = link.as_os_str().as_bytes();
                rustix::fs::utimensat(CWD, link, &times, AtFlags::SYMLINK_NOFOLLOW).expect("age");
            }
        }
        at("again").announce().expect("announce again");
        at("there").forget_the_gone();
        assert_eq!(all(), 3);
        let gone = scratch.path("gone");
        let announced = at("there").announcements();
        assert!(
            announced
                .iter()
                .all(|(_, list)| !list.dir.starts_with(&gone))
        );
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
        for name in ["run", "state"] {
            private(&scratch.path(name), 0o700);
        }
        let uuid = pool_at(&here);
        assert_eq!(found(), std::slice::from_ref(&here));
        // A second name is no copy.
        std::fs::hard_link(&here, &there).expect("link");
        assert_eq!(found(), std::slice::from_ref(&here));
        // Of a pool and its copy none is taken, unless a list knows which is which.
        std::fs::remove_file(&there).expect("remove");
        std::fs::copy(&here, &there).expect("copy");
        assert!(found().is_empty());
        places.list.add(&uuid, &there).expect("add");
        assert_eq!(found(), std::slice::from_ref(&there));
        // To write beside the copy does not make it the pool.
        let copy = places.opened(&here).expect_err("a copy");
        assert!(matches!(copy, NoPool::Copy { .. }), "{copy}");
        assert_eq!(found(), std::slice::from_ref(&there));
        // What a list says and is not there, or is another pool by now, is none that another could be a copy of.
        std::fs::remove_file(&there).expect("remove");
        assert_eq!(found(), [there.clone(), here.clone()]);
        pool_at(&there);
        assert_eq!(found(), [there, here]);
    }

    fn private(dir: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::create_dir_all(dir).expect("create");
        let rights = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(dir, rights).expect("chmod");
    }

    /// Others may make directories where pools are looked for, and put links to files of this user there.
    #[test]
    fn what_somebody_else_could_have_put_there_is_not_believed() {
        let scratch = Scratch::new();
        let places = Places {
            runtime: scratch.path("run"),
            list: PoolList::at(&scratch.path("state")),
        };
        private(&scratch.path("run/lists"), 0o700);
        private(&scratch.path("theirs"), 0o700);
        private(&scratch.path("run"), 0o700);
        let [pool, other] = ["run/pool", "theirs/other"].map(|name| scratch.path(name));
        pool_at(&pool);
        let uuid = pool_at(&other);
        let theirs = PoolList::at(&scratch.path("theirs"));
        theirs.add(&uuid, &other).expect("add");
        std::os::unix::fs::symlink(scratch.path("theirs"), scratch.path("run/lists/x"))
            .expect("link");
        let found = || {
            let all = places.pools().into_iter().map(|found| found.path);
            all.filter(|path| path.starts_with(&scratch.0))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(), [other.clone(), pool.clone()]);
        // A directory that others can write to may be theirs.
        private(&scratch.path("run"), 0o770);
        assert!(found().is_empty());
        assert!(places.announce().is_err());
        private(&scratch.path("run"), 0o700);
        // A link is not followed, to a pool or to a directory of pools.
        std::fs::remove_file(&pool).expect("remove");
        std::os::unix::fs::symlink(&other, &pool).expect("link");
        std::fs::remove_file(scratch.path("run/lists/x")).expect("remove");
        assert!(found().is_empty());
        std::fs::remove_file(&pool).expect("remove");
        pool_at(&pool);
        std::fs::rename(scratch.path("run"), scratch.path("moved")).expect("rename");
        std::os::unix::fs::symlink(scratch.path("moved"), scratch.path("run")).expect("link");
        assert!(found().is_empty());
        if rustix::process::geteuid().is_root() {
            // A list that is somebody else's says nothing.
            assert_eq!(theirs.read().len(), 1);
            let list = scratch.path("theirs/pools");
            std::os::unix::fs::chown(list, Some(65534), None).expect("chown");
            assert_eq!(theirs.read(), []);
        }
        assert!(keeps_its_names(Path::new("/dev/shm")));
        private(&scratch.path("open"), 0o777);
        assert!(!keeps_its_names(&scratch.path("open")));
    }

    /// What was made beside its files is for these alone, in whatever list it is.
    #[test]
    fn a_pool_beside_its_files_stages_no_others() {
        let program = std::env::current_exe().expect("own path");
        let in_memory = rustix::fs::statfs(program.as_os_str().as_bytes()).expect("statfs");
        let disk = program.with_file_name(format!("beside-{}", std::process::id()));
        let scratch = Scratch::new();
        let places = Places {
            runtime: scratch.path("run"),
            list: PoolList::at(&disk.join("state")),
        };
        for dir in [disk.join(".adit-7"), disk.join("state"), disk.join("asked")] {
            std::fs::create_dir_all(&dir).expect("create");
            std::fs::write(dir.join(POOL), "").expect("write");
        }
        if in_memory.f_type as u64 != TMPFS {
            // On an overlay files have another device than directories.
            let pool = std::fs::metadata(disk.join("state/pool")).expect("it");
            let device = std::os::unix::fs::MetadataExt::dev(&pool);
            let within = |name: &str| places.file_system_of(&disk.join(name));
            let on = |root: Option<&PathBuf>| {
                let (root, alone) = (root.cloned(), true);
                Some(Within {
                    device,
                    root,
                    alone,
                })
            };
            assert_eq!(within(".adit-7/pool"), on(Some(&disk)));
            assert_eq!(within("state/pool"), on(None));
            assert_eq!((within("asked/pool"), within("state/other")), (None, None));
        }
        std::fs::remove_dir_all(&disk).expect("remove");
        private(&scratch.path(".adit-7"), 0o700);
        std::fs::write(scratch.path(".adit-7/pool"), "").expect("write");
        let there =
            std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(&scratch.0).expect("it"));
        let tmpfs = crate::testing::scratch::medium() == adit_pmem::MediumKind::Ram;
        let within = places.file_system_of(&scratch.path(".adit-7/pool"));
        let device = within.map(|within| within.device);
        assert_eq!(device, (!tmpfs).then_some(there));
    }

    /// A list knows a pool by more than its path: what lies there by now, another disk's, is for files on its own device.
    #[test]
    fn a_pool_in_the_place_of_a_listed_one_is_not_listed() {
        let (disk, _scratch, places) = beside_the_tests("replaced");
        let (list, pool) = (places.list.clone(), disk.join(".adit-7/pool"));
        let listed = pool_at(&pool);
        list.add(&listed, &pool).expect("a list");
        let both = || {
            let all = places.pools().into_iter();
            let found = all.filter(|found| found.path == pool);
            let found = found.map(|found| found.within).next().expect("listed");
            assert_eq!(found, places.file_system_of(&pool));
            found.map(|within| within.alone)
        };
        let its = both();
        std::fs::remove_file(&pool).expect("remove");
        assert_ne!(pool_at(&pool), listed);
        let another = both();
        std::fs::remove_dir_all(&disk).expect("remove");
        // In memory there are no other disks.
        assert!(
            matches!((its, another), (Some(false), Some(true)) | (None, None)),
            "{its:?} {another:?}"
        );
    }

    /// Of a pool and its copy the one that a list knows is the pool. A copy on another device, as on a snapshot, is for files
    /// there; any other one is refused as long as the pool is there.
    #[test]
    fn a_copy_that_somebody_names_is_for_no_files_of_the_original() {
        let (disk, scratch, places) = beside_the_tests("copies");
        let (list, pool) = (places.list.clone(), disk.join(".adit-7/pool"));
        let uuid = pool_at(&pool);
        let chosen = |path: &Path| places.for_chosen(path);
        let alone = |path: &Path| chosen(path).map(|within| within.map(|within| within.alone));
        // The only one there is may have staged files of other file systems.
        let beside = alone(&pool).expect("no copy");
        assert!(beside.is_none_or(|alone| !alone), "{beside:?}");
        list.add(&uuid, &pool).expect("a list");
        assert_eq!(alone(&pool), Ok(beside));
        let copies = [
            disk.join("copy"),
            disk.join(".adit-7.old/pool"),
            scratch.path("copy"),
        ];
        for copy in &copies {
            std::fs::create_dir_all(copy.parent().expect("a directory")).expect("create");
            std::fs::copy(&pool, copy).expect("copy");
            assert_eq!(chosen(copy), Err(pool.clone()), "{copy:?}");
        }
        assert_eq!(alone(&pool), Ok(beside));
        // A second name is the pool.
        std::fs::hard_link(&pool, disk.join("link")).expect("link");
        assert_eq!(chosen(&disk.join("link")), Ok(None));
        // On another device.
        let device =
            |path: &Path| std::os::unix::fs::MetadataExt::dev(&path.metadata().expect("it"));
        if beside.is_some() && device(&disk) != device(&scratch.0) {
            let there = scratch.path("pool");
            std::fs::rename(disk.join("link"), &pool).expect("rename");
            std::fs::copy(&pool, &there).expect("copy");
            list.add(&uuid, &there).expect("a list");
            std::fs::remove_file(&pool).expect("remove");
            assert_eq!(alone(&disk.join(".adit-7.old/pool")), Ok(Some(true)));
            std::fs::remove_file(&there).expect("remove");
        }
        // What is left of a pool that is gone is all there is.
        let _ = std::fs::remove_file(&pool);
        assert_eq!(chosen(&copies[0]), Ok(None));
        assert_eq!(alone(&copies[1]), Ok(beside));
        std::fs::remove_dir_all(&disk).expect("remove");
    }

    #[test]
    fn usual_places_are_looked_at_when_they_are_private() {
        let user = rustix::process::geteuid().as_raw();
        let place = PathBuf::from(format!("/dev/shm/.adit-{user}"));
        // The lab runs this test on several media at once.
        let memory = std::fs::File::open("/dev/shm").expect("a file system in memory");
        memory.lock().expect("flock");
        // It may be somebody's who runs Adit here.
        let mine = std::fs::create_dir(&place).is_ok();
        if mine {
            private(&place, 0o700);
        }
        let found = |place: &Path| usual_places().any(|usual| usual == place.join(POOL));
        assert!(found(&place), "{place:?}");
        if mine {
            private(&place, 0o755);
            assert!(!found(&place), "{place:?}");
            std::fs::remove_dir(&place).expect("remove");
        }
        assert!(usual_places().all(|usual| !usual.starts_with("/proc")));
    }

    /// Who can ask no monitor finds the pool that has a file, in a list or not, and none that has another device's.
    #[test]
    fn the_pool_that_has_a_file_is_found() {
        let scratch = Scratch::new();
        private(&scratch.path("run"), 0o700);
        let places = Places {
            runtime: scratch.path("run"),
            list: PoolList::at(&scratch.path("run")),
        };
        let (own, asked) = (scratch.path("run/pool"), scratch.path("asked"));
        pool_at(&own);
        pool_at(&asked);
        let data = scratch.old_file("data");
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::open(data.as_os_str().as_bytes(), flags, Mode::empty());
        let file = file.expect("a file");
        let (handle_type, handle) = crate::staged::handle_of(&file).expect("a handle");
        let name = FileName {
            handle_type,
            handle,
            path: Vec::new(),
            device: rustix::fs::fstat(&file).expect("stat").st_dev,
        };
        let elsewhere = FileName {
            device: name.device + 1,
            ..name.clone()
        };
        let pool_with = |name: &FileName, asked| places.pool_with(name, asked).expect("known");
        assert_eq!(pool_with(&name, Some(&asked)), None);
        for (path, asks) in [(&asked, true), (&own, false)] {
            let pool = PoolFile::open(path).expect("it is there");
            let attachment = pool.attach().expect("attach");
            let entry = attachment.enter_file(&name).expect("an entry");
            assert_eq!(pool_with(&name, Some(&asked)).as_ref(), Some(path));
            assert_eq!(pool_with(&name, None).is_some(), !asks);
            assert_eq!(pool_with(&elsewhere, Some(&asked)), None);
            attachment
                .lock_file(entry)
                .and_then(|file| file.forget())
                .expect("forget");
            pool.detach(attachment).expect("detach");
        }
        // One that cannot be looked at may have it; one that is gone has nothing.
        std::fs::write(&asked, b"no pool").expect("write");
        assert!(places.pool_with(&name, Some(&asked)).is_err());
        std::fs::remove_file(&asked).expect("remove");
        assert_eq!(pool_with(&name, Some(&asked)), None);
    }
}
