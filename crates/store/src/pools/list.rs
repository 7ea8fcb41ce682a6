//! The list of a user's pools: text, one pool a line, `UUID PATH`, or `UUID BOOT-DEVICE PATH` of one that lies in
//! memory; lines that are not understood are passed over. It is replaced as a whole, under a lock, so no reader sees half
//! of it, and survives reboots with the user's state directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fd::AsFd as _;
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::TMPFS;
use crate::clock;
use crate::registry::sys::{self, Fd};

/// The list is never longer than this; what is longer was not written by us.
const LONGEST_LIST: usize = 1 << 20;

/// How long somebody else who changes the list is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lists whose names this process has made durable: which file each directory had by that name. A program that asks for a
/// pool should not wait for a disk each time.
static DURABLE: Mutex<BTreeMap<PathBuf, Version>> = Mutex::new(BTreeMap::new());

/// A list as somebody has put it there: device, inode number, and the nanosecond of its last change.
type Version = (u64, u64, u64);

/// The list of a user's pools.
#[derive(Clone, Debug)]
pub struct PoolList {
    pub(super) dir: PathBuf,
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The pool's identity.
    pub uuid: [u8; 16],
    /// Where it was seen last.
    pub path: PathBuf,
    /// Where it lay in memory: which that was.
    memory: Option<Memory>,
}

/// A file system in memory. Another mount namespace may have another one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    /// Of the boot's id: no memory outlasts it, and devices are numbered anew.
    boot: u64,
    device: u64,
}

impl PoolList {
    /// The list of this user: in `adit` below `XDG_STATE_HOME`, else below `.local/state` in the home
    /// directory. Where there is none and he can make none, as for a service, whose home may be `/nonexistent` or root's,
    /// below the runtime directory: it then lasts as long as that.
    #[must_use]
    pub fn of_user(xdg_state_home: Option<&OsStr>, home: Option<&OsStr>, runtime: &Path) -> Self {
        let absolute = |name: &&OsStr| Path::new(name).is_absolute();
        let state = xdg_state_home.filter(absolute).map(PathBuf::from);
        let state = state.or_else(|| {
            let home = home.filter(absolute)?;
            Some(Path::new(home).join(".local/state"))
        });
        let list = state.map(|state| Self::at(&state.join("adit")));
        let usable = |list: &Self| is_there(&list.dir.join("pools")) || list.can_be_begun();
        list.filter(usable).unwrap_or_else(|| Self::at(runtime))
    }

    /// The list in a directory, which is made when there is something to list.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Where it is, or will be.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    /// All pools, each once. A list that is not there or cannot be read is empty.
    #[must_use]
    pub fn read(&self) -> Vec<Listed> {
        self.lines().unwrap_or_default()
    }

    /// The same for who replaces the list: one that is there and cannot be read is not empty.
    fn lines(&self) -> Result<Vec<Listed>, Errno> {
        let fd = match self.open("pools", OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            fd => fd?,
        };
        // Others can make one in a directory that is not there yet, and root may run with another's home directory.
        if rustix::fs::fstat(fd.as_fd())?.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::PERM);
        }
        let mut text = vec![0; LONGEST_LIST];
        let len = sys::read_full(&fd, &mut text, 0)?;
        text.truncate(len);
        let mut all: Vec<Listed> = Vec::new();
        for line in text.split(|byte| *byte == b'\n').filter_map(parse) {
            // Of two lines for one place or one pool the later is right.
            all.retain(|known| known.path != line.path && known.uuid != line.uuid);
            all.push(line);
        }
        Ok(all)
    }

    /// Enters a pool.
    pub fn add(&self, uuid: &[u8; 16], path: &Path) -> Result<(), Errno> {
        let new = Listed::at(uuid, path);
        let name = path.as_os_str().as_bytes();
        if !path.is_absolute() || name.contains(&b'\n') {
            return Err(Errno::INVAL);
        }
        if self.read().contains(&new) {
            return self.make_name_durable();
        }
        self.change(|all| {
            all.retain(|known| known.path != new.path && known.uuid != new.uuid);
            all.push(new);
        })
    }

    /// Makes sure that a list which is there is found under its name after a loss of power as well: whoever has put it there
    /// may be just about to, or was killed before. Its bytes are durable before it gets the name.
    fn make_name_durable(&self) -> Result<(), Errno> {
        let durable = || DURABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version()?;
        if durable().get(&self.dir) != Some(&version) {
            make_durable(&self.dir)?;
            durable().insert(self.dir.clone(), version);
        }
        Ok(())
    }

    fn version(&self) -> Result<Version, Errno> {
        let path = self.dir.join("pools");
        let stat = rustix::fs::lstat(path.as_os_str().as_bytes())?;
        let changed = clock::nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64);
        Ok((stat.st_dev, stat.st_ino, changed))
    }

    /// Takes out the pools that are gone for good: they are not there, and lay in memory. What is
    /// missing elsewhere may be on a file system that is mounted again.
    pub fn forget_the_gone(&self) -> Result<(), Errno> {
        if !self.read().iter().any(is_gone) {
            return Ok(());
        }
        self.change(|all| all.retain(|known| !is_gone(known)))
    }

    /// Replaces the list. The lock is a file of its own, because the list's own is replaced.
    fn change(&self, change: impl FnOnce(&mut Vec<Listed>)) -> Result<(), Errno> {
        self.make_directory()?;
        // Of another user's list nothing is made.
        drop(self.lines()?);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let lock = self.open("pools.lock", flags)?;
        lock_patiently(&lock)?;
        let mut all = self.lines()?;
        change(&mut all);
        let text: Vec<u8> = all.iter().flat_map(Listed::line).collect();
        if text.len() > LONGEST_LIST {
            return Err(Errno::FBIG);
        }
        let new = self.open("pools.new", flags | OFlags::TRUNC)?;
        let mut rest = &text[..];
        while !rest.is_empty() {
            let written = rustix::io::write(new.as_fd(), rest)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        rustix::fs::fsync(new.as_fd())?;
        let path = |name: &str| self.dir.join(name).into_os_string();
        rustix::fs::renameat(
            CWD,
            path("pools.new").as_bytes(),
            CWD,
            path("pools").as_bytes(),
        )?;
        make_durable(&self.dir)
    }

    /// Whether its directory is there, or what it would be made in: a home directory that somebody has removed is
    /// not made again. In another user's nothing is made, a list neither, who could not use it (`sudo` may leave `HOME` as
    /// it was).
    pub(super) fn may_be_made(&self) -> bool {
        let is_to_be_had = || is_there(&self.dir) || self.home().is_some_and(is_there);
        self.dir.is_absolute() && is_to_be_had() && !self.lies_in_anothers()
    }

    /// Whether this user could make it, where there is none.
    fn can_be_begun(&self) -> bool {
        let nearest = self.dir.ancestors().find(|dir| is_there(dir));
        let can_write = |dir: &Path| {
            let access = Access::WRITE_OK | Access::EXEC_OK;
            rustix::fs::accessat(CWD, dir.as_os_str().as_bytes(), access, AtFlags::EACCESS).is_ok()
        };
        self.may_be_made() && nearest.is_some_and(|dir| dir.is_dir() && can_write(dir))
    }

    /// Whether its directory, or what there is of the way to it, is another user's, and not root's.
    fn lies_in_anothers(&self) -> bool {
        let stat = |dir: &Path| rustix::fs::stat(dir.as_os_str().as_bytes()).ok();
        let own = rustix::process::geteuid().as_raw();
        let nearest = self.dir.ancestors().find_map(stat);
        nearest.is_some_and(|stat| stat.st_uid != own && stat.st_uid != 0)
    }

    /// Whether not even that is there in which its directory would be made.
    pub(super) fn has_lost_its_home(&self) -> bool {
        self.home().is_some_and(is_missing)
    }

    fn home(&self) -> Option<&Path> {
        let state = self.dir.parent().unwrap_or(&self.dir);
        let levels = if state.ends_with(".local/state") {
            2
        } else {
            1
        };
        state.ancestors().nth(levels)
    }

    pub(super) fn make_directory(&self) -> Result<(), Errno> {
        let missing: Vec<&Path> = self
            .dir
            .ancestors()
            .take_while(|dir| {
                let name = dir.as_os_str().as_bytes();
                let there = rustix::fs::accessat(CWD, name, Access::EXISTS, AtFlags::empty());
                there == Err(Errno::NOENT)
            })
            .collect();
        for dir in missing.into_iter().rev() {
            match rustix::fs::mkdirat(CWD, dir.as_os_str().as_bytes(), Mode::RWXU) {
                // What may be written to but not be read cannot be synced by us.
                Ok(()) => drop(make_durable(dir.parent().unwrap_or(dir))),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Fd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = self.dir.join(name);
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::open(path.as_os_str().as_bytes(), flags, mode).map(Fd::new)?;
        if flags.contains(OFlags::CREATE) {
            // The umask may have taken bits away.
            rustix::fs::fchmod(fd.as_fd(), mode)?;
        }
        Ok(fd)
    }
}

pub(super) fn is_there(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    rustix::fs::accessat(CWD, name, Access::EXISTS, AtFlags::empty()).is_ok()
}

fn is_missing(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    let there = rustix::fs::accessat(CWD, name, Access::EXISTS, AtFlags::empty());
    matches!(there, Err(Errno::NOENT | Errno::NOTDIR))
}

/// Locks the list, or fails when somebody who has it does not give it back: he may have been stopped.
fn lock_patiently(lock: &Fd) -> Result<(), Errno> {
    let started = Instant::now();
    while !sys::try_lock(lock, FlockOperation::NonBlockingLockExclusive)? {
        if started.elapsed() > PATIENCE {
            return Err(Errno::AGAIN);
        }
        adit_pmem::rest(Duration::from_millis(1));
    }
    Ok(())
}

/// Makes the names in a directory durable: what is staged in a pool is found after a reboot by the list alone.
fn make_durable(dir: &Path) -> Result<(), Errno> {
    #[cfg(test)]
    tests::SYNCS.with(|syncs| syncs.set(syncs.get() + 1));
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir.as_os_str().as_bytes(), flags, Mode::empty()).map(Fd::new)?;
    rustix::fs::fsync(dir.as_fd())
}

/// Where memory is mounted, and nothing else below.
const IN_MEMORY: [&str; 2] = ["/dev/shm", "/run/user"];

/// Whether a pool is not there, and the nearest directory that is lies in memory, in the pool's if it is known which that
/// was. Mount points may lie there as well, so this is said of places alone in which nothing is mounted.
fn is_gone(known: &Listed) -> bool {
    if !IN_MEMORY.iter().any(|at| known.path.starts_with(at)) {
        return false;
    }
    let kind = |dir: &Path| rustix::fs::statfs(dir.as_os_str().as_bytes());
    let missing = |error| matches!(error, Errno::NOENT | Errno::NOTDIR);
    let mut above = known.path.ancestors().map(|dir| (dir, kind(dir)));
    let not_there = above
        .next()
        .is_some_and(|(_, seen)| seen.is_err_and(missing));
    let nearest = above.find(|(_, seen)| !seen.as_ref().is_err_and(|error| missing(*error)));
    not_there
        && nearest.is_some_and(|(dir, seen)| {
            seen.is_ok_and(|fs| fs.f_type as u64 == TMPFS)
                && known.memory.is_none_or(|memory| memory.is_seen_in(dir))
        })
}

impl Memory {
    /// What a path lies in.
    fn of(path: &Path) -> Option<Self> {
        let adit_pool::BootId(boot) = adit_pool::boot_id().ok()?;
        let stat = rustix::fs::stat(path.as_os_str().as_bytes()).ok()?;
        Some(Self {
            boot: u64::from_be_bytes(*boot.first_chunk()?),
            device: stat.st_dev,
        })
    }

    /// Whether a directory lies in this memory, or this memory is no more.
    fn is_seen_in(self, dir: &Path) -> bool {
        Self::of(dir).is_some_and(|here| here == self || here.boot != self.boot)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (boot, device) = core::str::from_utf8(text).ok()?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Self {
            boot: number(boot)?,
            device: number(device)?,
        })
    }
}

impl Listed {
    /// A pool that is at this path.
    pub(super) fn at(uuid: &[u8; 16], path: &Path) -> Self {
        let in_memory = IN_MEMORY.iter().any(|at| path.starts_with(at));
        Self {
            uuid: *uuid,
            path: path.to_owned(),
            memory: in_memory.then(|| Memory::of(path)).flatten(),
        }
    }

    fn line(&self) -> Vec<u8> {
        let mut line: Vec<u8> = self
            .uuid
            .iter()
            .flat_map(|byte| format!("{byte:02x}").into_bytes())
            .collect();
        if let Some(Memory { boot, device }) = self.memory {
            line.extend(format!(" {boot:x}-{device:x}").into_bytes());
        }
        line.push(b' ');
        line.extend_from_slice(self.path.as_os_str().as_bytes());
        line.push(b'\n');
        line
    }
}

fn parse(line: &[u8]) -> Option<Listed> {
    let (digits, rest) = line.split_at_checked(32)?;
    let rest = rest.strip_prefix(b" ")?;
    let slash = rest.iter().position(|byte| *byte == b'/')?;
    let (memory, path) = rest.split_at(slash);
    let memory = match memory.strip_suffix(b" ") {
        None if memory.is_empty() => None,
        memory => Some(Memory::parse(memory?)?),
    };
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |index: usize| char::from(*pair.get(index)?).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(Listed {
        uuid,
        path: Path::new(OsStr::from_bytes(path)).to_owned(),
        memory,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

    use super::*;
    use crate::testing::Scratch;
    use std::cell::Cell;

    std::thread_local! {
        /// How many directories were synced.
        pub(super) static SYNCS: Cell<u32> = const { Cell::new(0) };
    }

    fn paths(list: &PoolList) -> Vec<PathBuf> {
        list.read().into_iter().map(|known| known.path).collect()
    }

    #[test]
    fn the_list_keeps_each_pool_once_and_what_may_come_back() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.path("state/adit"));
        assert_eq!(list.read(), []);
        list.forget_the_gone().expect("nothing to do");
        assert!(
            !scratch.path("state").exists(),
            "nothing is made for nothing"
        );
        let here = scratch.path("here");
        std::fs::write(&here, b"").expect("write");
        let gone = scratch.path("no/such/directory/pool");
        // The root is no memory, or the test sees that only what is there is kept.
        let elsewhere = Path::new("/no such mount/pool");
        let lasting = rustix::fs::statfs("/").expect("statfs").f_type as u64 != TMPFS;
        for (uuid, path) in [(1, &here), (2, &gone), (3, &elsewhere.to_owned())] {
            list.add(&[uuid; 16], path).expect("add");
            list.add(&[uuid; 16], path).expect("add again");
        }
        assert_eq!(paths(&list), [&here, &gone, elsewhere]);
        list.forget_the_gone().expect("forget");
        let mut kept = vec![here.clone()];
        // Under another medium than memory there may be a mount point.
        kept.extend((!gone.starts_with("/dev/shm")).then(|| gone.clone()));
        kept.extend(lasting.then(|| elsewhere.to_owned()));
        assert_eq!(paths(&list), kept);
        // The place of a pool that was made anew, and a pool that was moved.
        list.add(&[4; 16], &here).expect("add");
        list.add(&[4; 16], &scratch.path("there")).expect("add");
        assert!(!paths(&list).contains(&here));
        assert!(paths(&list).contains(&scratch.path("there")));
    }

    /// A container may have the home directory of the host and a `/dev/shm` of its own.
    #[test]
    fn a_pool_in_memory_that_is_not_seen_here_is_kept() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.0);
        let shm = Path::new("/dev/shm");
        let here = Memory::of(shm).expect("memory");
        let named = |name: &str, memory| Listed {
            uuid: [name.len() as u8; 16],
            path: shm.join("no such directory").join(name),
            memory: Some(memory),
        };
        let device = here.device ^ 1;
        let of_another = named("of another", Memory { device, ..here });
        let boot = here.boot ^ 1;
        let gone = [
            named("removed", here),
            named("of the boot before", Memory { boot, device }),
        ];
        let all = [&gone[..], core::slice::from_ref(&of_another)].concat();
        let lines: Vec<u8> = all.iter().flat_map(Listed::line).collect();
        std::fs::write(scratch.path("pools"), lines).expect("write");
        assert_eq!(list.read(), all);
        list.forget_the_gone().expect("forget");
        assert_eq!(list.read(), [of_another]);
    }

    /// What is entered says where it lies.
    #[test]
    fn a_pool_in_memory_is_entered_with_its_memory() {
        let list_in = Scratch::new();
        let list = PoolList::at(&list_in.0);
        list.add(&[1; 16], Path::new("/dev/shm")).expect("add");
        assert_eq!(list.read()[0].memory, Memory::of(Path::new("/dev/shm")));
        list.add(&[2; 16], Path::new("/")).expect("add");
        assert_eq!(list.read()[1].memory, None);
    }

    /// Whoever has entered a pool may be about to sync that, or was killed before: then a loss of power takes it back, and
    /// nobody finds what is staged in the pool.
    #[test]
    fn what_somebody_else_has_just_entered_is_made_durable() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.0);
        let pool = Listed::at(&[1; 16], &scratch.path("pool"));
        let entered_by_another = || {
            let new = scratch.path("pools.new");
            std::fs::write(&new, pool.line()).expect("write");
            std::fs::rename(&new, scratch.path("pools")).expect("rename");
        };
        let synced = || {
            let before = SYNCS.get();
            list.add(&pool.uuid, &pool.path).expect("add");
            SYNCS.get() - before
        };
        entered_by_another();
        assert_eq!((synced(), synced()), (1, 0));
        entered_by_another();
        assert_eq!((synced(), synced()), (1, 0));
    }

    /// Programs start without it: the list is changed by the next one.
    #[test]
    fn who_was_stopped_over_the_list_stops_nobody_else() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.0);
        let pool = scratch.path("pool");
        let stopped = list.open("pools.lock", OFlags::RDWR | OFlags::CREATE);
        let stopped = stopped.expect("open");
        lock_patiently(&stopped).expect("lock");
        assert_eq!(list.add(&[1; 16], &pool), Err(Errno::AGAIN));
        assert_eq!(list.read(), []);
        drop(stopped);
        list.add(&[1; 16], &pool).expect("add");
        assert_eq!(paths(&list), [pool]);
    }

    /// Root may run with the home directory of the user whose list it is (`sudo`): replaced, it would be root's, with
    /// none of the user's pools, and closed to him.
    #[test]
    fn a_list_that_cannot_be_read_is_not_replaced() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.0);
        let (pool, path) = (scratch.path("pool"), scratch.path("pools"));
        list.add(&[1; 16], &pool).expect("add");
        if rustix::process::geteuid().is_root() {
            let before = std::fs::read(&path).expect("read");
            std::os::unix::fs::chown(&path, Some(65534), None).expect("chown");
            assert_eq!(list.read(), []);
            let other = scratch.path("other");
            std::fs::remove_file(scratch.path("pools.lock")).expect("remove");
            assert_eq!(list.add(&[2; 16], &other), Err(Errno::PERM));
            assert_eq!(std::fs::read(&path).expect("read"), before);
            assert!(!scratch.path("pools.lock").exists(), "it would be root's");
            // Nor is one begun for him.
            assert!(list.may_be_made());
            std::os::unix::fs::chown(&scratch.0, Some(65534), None).expect("chown");
            assert!(!list.may_be_made());
            std::os::unix::fs::chown(&scratch.0, Some(0), None).expect("chown");
        } else {
            println!("skipped: it concerns root");
        }
        // Whatever else keeps it from being read.
        std::fs::remove_file(&path).expect("remove");
        std::os::unix::fs::symlink(&pool, &path).expect("link");
        assert_eq!(list.add(&[3; 16], &pool), Err(Errno::LOOP));
        assert!(path.is_symlink());
    }

    /// The home directory of a service may be `/nonexistent`, or a file, or one in which it can make nothing.
    #[test]
    fn who_has_no_home_to_write_to_has_his_list_where_he_registers() {
        let scratch = Scratch::new();
        let (home, runtime) = (scratch.path("home"), scratch.path("run"));
        let of = |home: &Path| PoolList::of_user(None, Some(home.as_os_str()), &runtime).dir;
        assert_eq!(of(&home), runtime);
        std::fs::write(&home, "").expect("write");
        assert_eq!(of(&home), runtime);
        std::fs::remove_file(&home).expect("remove");
        std::fs::create_dir(&home).expect("make");
        assert_eq!(of(&home), home.join(".local/state/adit"));
        let set_mode = |path: &Path, mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("chmod");
        };
        if !rustix::process::geteuid().is_root() {
            set_mode(&home, 0o500);
            assert_eq!(of(&home), runtime);
            set_mode(&home, 0o700);
        }
        // One that is there is read, whether or not it can be changed now.
        let list = PoolList::at(&of(&home));
        list.add(&[1; 16], &scratch.path("pool")).expect("add");
        set_mode(list.directory(), 0o500);
        assert_eq!(of(&home), list.dir);
        set_mode(list.directory(), 0o700);
    }

    #[test]
    fn lines_that_make_no_sense_are_passed_over() {
        let scratch = Scratch::new();
        let list = PoolList::at(&scratch.0);
        let good = Listed {
            uuid: *b"0123456789abcdef",
            path: "/a pool".into(),
            memory: None,
        };
        let mut text = b"\n\xff\xfe /x\n0123 /short\n".to_vec();
        text.extend([b'z'; 32]);
        text.extend(b" /no digits\n");
        text.extend(good.line());
        text.extend(b"30313233343536373839616263646566 relative");
        std::fs::write(scratch.path("pools"), text).expect("write");
        assert_eq!(list.read(), [good]);
    }
}
