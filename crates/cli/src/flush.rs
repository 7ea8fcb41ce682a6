//! `adit flush PATH`: bytes, size and times of a file visible to everyone and durable.
//!
//! What a program has staged is published by the monitor, which keeps its lease, so the program goes
//! on as before; in mode atomic that is what was committed. What no monitor knows of, since there is none or it is of
//! another runtime directory, is looked for in the pools: what dead programs have staged is recovered here, and a file of
//! which something stays in a pool is not said to be durable. A living program that has no monitor keeps its lease.
//! Of other files the bytes are visible at all times, because they lie in the file's own pages, and the
//! kernel syncs them here. What may lag behind in either case is the modification time of a file that is
//! changed by stores, for up to a second: so this waits until no attached program has such a change left.

use std::fs::{Metadata, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_pool::layout::Superblock;
use adit_pool::{FileName, PoolFile, RecoveredFile};
use adit_store::monitor::client::{self, Refused};
use adit_store::pools::Places;
use adit_store::recovery::recover_all;
use adit_store::registry::RuntimeDir;
use adit_store::staged::handle_of;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::args::FlushArgs;
use crate::failure::{FAILED, Failure, NO, Outcome};
use crate::output;
use crate::{runtime, stat};

/// The monitor advances times within a second; one that has to start needs a little more.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long it is waited for that somebody else brings what is in a pool into its file: a monitor that has just begun
/// recovers pools, and a program that closes a file publishes it.
const OTHERS: Duration = Duration::from_secs(3);

/// How long publishing a file may take: the disk has to write what it has.
const PUBLISHING: Duration = Duration::from_secs(60);

/// How often the list of locks is read before a lease is not in it: the kernel gives it a page at a time, and what others
/// unlock between two pages moves a line from the second into the first. Of some hundred locks that two processes took and
/// gave, each hundredth list lacked a lease.
const LOOKS: usize = 10;

/// What was done for a file.
#[derive(Debug, Serialize)]
struct Flushed {
    #[serde(serialize_with = "output::lossy")]
    path: PathBuf,
    /// Whether the kernel has made the bytes durable.
    durable: bool,
    /// Whether the times show every change made before.
    times_current: bool,
    /// Attached programs that have it open.
    users: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What to do about that.
    #[serde(skip)]
    next: String,
}

/// Flushes each path.
pub(crate) fn flush(args: &FlushArgs) -> Outcome {
    let dir = runtime::directory(args.runtime_dir.as_deref())?;
    let mut done = Vec::new();
    for path in &args.paths {
        done.push(flush_one(&dir, path)?);
    }
    if args.json {
        output::json(&done)?;
    } else {
        done.iter().for_each(print);
    }
    Ok(done.iter().map(status).max().unwrap_or(0))
}

fn status(flushed: &Flushed) -> u8 {
    match (flushed.durable, flushed.times_current) {
        (false, _) => FAILED,
        (true, false) => NO,
        (true, true) => 0,
    }
}

fn flush_one(dir: &RuntimeDir, path: &Path) -> Result<Flushed, Failure> {
    let mut flushed = Flushed {
        path: path.to_owned(),
        durable: false,
        times_current: false,
        users: Vec::new(),
        error: None,
        next: "check the path and its permissions".to_owned(),
    };
    // Asking for the file's identity does not open it: that would end the staging.
    let data = match path.metadata() {
        Ok(data) => data,
        Err(e) => {
            flushed.error = Some(plain(&e));
            return Ok(flushed);
        }
    };
    // Synced alone it would be called durable, with all that is in it.
    if data.is_dir() {
        flushed.error = Some(
            "a directory: nothing that is staged of the files in it is published by this"
                .to_owned(),
        );
        flushed.next = format!(
            "find {} -type f -exec adit flush {{}} +",
            output::quoted(path)
        );
        return Ok(flushed);
    }
    let id = (data.dev(), data.ino());
    let published = client::publish(dir, id.0, id.1, PUBLISHING);
    flushed.times_current = wait_for_times(dir, id, &mut flushed.users)?;
    match published {
        Ok(true) => {
            flushed.durable = true;
            // Whoever copies it next may not wait for anybody. A program that goes on writing keeps it.
            let _ = client::give_back(dir, id.0, id.1, PUBLISHING);
        }
        Ok(false) | Err(Refused::NoMonitor(_)) => {
            flushed.by_opening(&runtime::places(dir), is_watched(path, &data));
        }
        Err(refused) => flushed.error = Some(refused.to_string()),
    }
    Ok(flushed)
}

impl Flushed {
    /// Syncs a file that no monitor of this runtime directory has. Who has it staged by a lease publishes it for who opens
    /// it, if he `is_watched`. Otherwise nobody does, and an open that waits would take the lease by force in the end: so
    /// what is in a pool is not opened.
    fn by_opening(&mut self, places: &Places, is_watched: bool) {
        let opened = if is_watched { sync(&self.path) } else { Ok(()) };
        let left = left_in_the_end(places, &self.path);
        let is_staged = || left.is_some() || left_in(places, &self.path, |_| true).is_some();
        let synced = if !is_watched && is_staged() {
            sync_around(&self.path)
        } else {
            opened.and_then(|()| sync(&self.path))
        };
        self.durable = synced.is_ok();
        self.error = synced.err().as_ref().map(plain);
        if let Some(left) = left {
            self.stays(&left);
        }
    }

    fn stays(&mut self, left: &Left) {
        let pool = left.pool.display();
        let why = match &left.error {
            None => format!("its newest bytes are in the pool {pool}"),
            Some(error) => format!(
                "its newest bytes may be in the pool {pool}, which cannot be looked at ({error})"
            ),
        };
        self.durable = false;
        self.error = Some(format!(
            "{why}, and no monitor answers that brings them here"
        ));
        let named = output::quoted(&left.pool);
        self.next = format!(
            "adit pool recover {named}; or --runtime-dir DIR, of the monitor that serves the program which writes it"
        );
    }
}

/// Whether a monitor that lives has a lease of this file, maybe one of another runtime directory: who opens the file waits
/// until that has published it. Of a lease that a monitor has taken over the kernel names the one before, which has ended;
/// then nothing is known of it here.
fn is_watched(path: &Path, data: &Metadata) -> bool {
    let lives = |pid: &str| {
        // Of one that has ended, and that nobody has waited for, it is empty.
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
    };
    let devices = devices_of(path, data);
    let is_its = |device: &_, inode: u64| inode == data.ino() && devices.contains(device);
    (0..LOOKS).any(|_| {
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        leases(&locks).any(|(pid, device, inode)| is_its(&device, inode) && lives(pid))
    })
}

/// The leases of a list of locks, each with its owner, and the device and the inode number of its file.
fn leases(locks: &str) -> impl Iterator<Item = (&str, (u32, u32), u64)> {
    locks.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().filter(|kind| *kind == "LEASE")?;
        let (pid, file) = (words.nth(2)?, words.next()?);
        let mut numbers = file.split(':');
        let mut hexadecimal = || u32::from_str_radix(numbers.next()?, 16).ok();
        let device = (hexadecimal()?, hexadecimal()?);
        Some((pid, device, numbers.next()?.parse().ok()?))
    })
}

/// Which devices a file may be listed with: its own and that of its mount, which is another one on btrfs.
fn devices_of(path: &Path, data: &Metadata) -> Vec<(u32, u32)> {
    let own = (rustix::fs::major(data.dev()), rustix::fs::minor(data.dev()));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mount_of(path).and_then(|id| device_of_mount(&mounts, id));
    [own].into_iter().chain(mounted).collect()
}

fn mount_of(path: &Path) -> Option<u64> {
    // To open it otherwise would end the staging.
    let mut options = OpenOptions::new();
    let fd = options.read(true).custom_flags(libc::O_PATH).open(path);
    let fd = fd.ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let info = info.ok()?;
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

fn device_of_mount(mounts: &str, id: u64) -> Option<(u32, u32)> {
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| word.parse() == Ok(id))?;
        let (major, minor) = words.nth(1)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

/// A pool in which there is more of a file than what waits for its program's commit, or that cannot be looked at.
struct Left {
    pool: PathBuf,
    error: Option<adit_pool::Error>,
}

/// The pool in which something of a file stays, when the dead are recovered and others had time.
fn left_in_the_end(places: &Places, path: &Path) -> Option<Left> {
    let begun = Instant::now();
    left_in(places, path, |its| its.is_some_and(|its| its.records > 0))?;
    // What becomes of this file is looked at afterwards.
    drop(recover_all(places));
    loop {
        let waits =
            |its: Option<&RecoveredFile>| its.is_some_and(|its| its.records > its.uncommitted);
        let left = left_in(places, path, waits)?;
        if begun.elapsed() > OTHERS {
            return Some(left);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first pool that has an entry of the file for which it is so with what waits there.
fn left_in(
    places: &Places,
    path: &Path,
    is: impl Fn(Option<&RecoveredFile>) -> bool,
) -> Option<Left> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_os_str().as_bytes(), flags, Mode::empty()).ok()?;
    // What has no handle is not staged.
    let (handle_type, handle) = handle_of(&file).ok()?;
    let name = FileName {
        handle_type,
        handle,
        path: Vec::new(),
        device: rustix::fs::fstat(&file).ok()?.st_dev,
    };
    let mut pools = places.pools().into_iter();
    pools.find_map(|found| {
        if !found.may_stage(&name) {
            return None;
        }
        let error = match has(&found.path, &name, &is) {
            Ok(false) => return None,
            Ok(true) => None,
            Err(error) => Some(error),
        };
        let pool = found.path;
        Some(Left { pool, error })
    })
}

fn has(
    path: &Path,
    name: &FileName,
    is: impl Fn(Option<&RecoveredFile>) -> bool,
) -> adit_pool::Result<bool> {
    let seen = match PoolFile::open_read_only(path) {
        Err(adit_pool::Error::Kernel { errno, .. }) if errno == Errno::NOENT => return Ok(false),
        seen => seen?.superblock()?,
    };
    if seen.flags & Superblock::CLEAN != 0 {
        return Ok(false);
    }
    // Not as it is on the disk: until whoever recovers it is through, that has nothing, or everything.
    let file = PoolFile::open_without_children(path)?;
    let pool = file.pool();
    let Some(file) = pool.find_file(name)? else {
        return Ok(false);
    };
    // Another file system's files may have the same handles.
    if pool.file_name(file)?.device != name.device {
        return Ok(false);
    }
    let found = pool.scan()?;
    Ok(is(found.files.iter().find(|its| its.file() == file)))
}

/// Syncs a file. What another user has staged of it, or a program whose monitor this command does not know, is published for
/// whoever opens it and waits.
fn sync(path: &Path) -> std::io::Result<()> {
    // The open of a FIFO must not wait for its writer.
    let flags = if path.is_file() { 0 } else { libc::O_NONBLOCK };
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(flags);
    options.open(path)?.sync_all()
}

/// Syncs a file without opening it, with all others of its file system.
fn sync_around(path: &Path) -> std::io::Result<()> {
    let path = path.canonicalize()?;
    let dir = path.parent().unwrap_or(&path).as_os_str().as_bytes();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let synced = rustix::fs::open(dir, flags, Mode::empty()).and_then(rustix::fs::syncfs);
    synced.map_err(|errno| std::io::Error::from_raw_os_error(errno.raw_os_error()))
}

/// Waits until every change that was there at the beginning has reached the times. A program that
/// goes on storing makes new ones: seeing the times advance once is then enough.
fn wait_for_times(dir: &RuntimeDir, id: (u64, u64), users: &mut Vec<u32>) -> Result<bool, Failure> {
    let begun = Instant::now();
    let mut at_first: Option<Vec<(u32, i32, u64)>> = None;
    loop {
        let mut pending = Vec::new();
        users.clear();
        for process in stat::list(dir)?.processes {
            for file in process.files.iter().filter(|f| (f.dev, f.ino) == id) {
                if file.open && process.alive && !users.contains(&process.pid) {
                    users.push(process.pid);
                }
                if file.pending {
                    pending.push((process.pid, file.fd, file.settled_at));
                }
            }
        }
        let first = at_first.get_or_insert_with(|| pending.clone());
        if !pending.iter().any(|change| first.contains(change)) {
            return Ok(true);
        }
        if begun.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn print(flushed: &Flushed) {
    let path = flushed.path.display();
    match &flushed.error {
        Some(error) => {
            eprintln!("adit: {path}: {error}\n  next: {}", flushed.next)
        }
        None if !flushed.times_current => eprintln!(
            "adit: {path}: durable, but its times do not yet show the last changes\n  \
             next: see adit stat; a monitor advances them (adit run starts one)"
        ),
        None => println!("{path}: durable, times current"),
    }
}

fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "1: LEASE  ACTIVE    WRITE 812 fd:1a:77 0 EOF\n\
                         2: POSIX  ADVISORY  WRITE 813 fd:1a:78 0 EOF\n\
                         3: LEASE  BREAKING  READ  814 00:19:77 0 EOF\n";

    /// Files of two file systems often have the same number.
    #[test]
    fn a_lease_is_that_of_one_device() {
        let found: Vec<_> = leases(LOCKS).collect();
        let expected = [("812", (0xfd, 0x1a), 77), ("814", (0, 0x19), 77)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_mount_has_a_device() {
        let mounts =
            "21 1 0:19 / /proc rw - proc proc rw\n33 21 253:26 /x /y rw - btrfs /dev/z rw\n";
        assert_eq!(device_of_mount(mounts, 33), Some((253, 26)));
        assert_eq!(device_of_mount(mounts, 253), None);
    }

    #[test]
    fn a_file_is_listed_with_its_own_device() {
        let path = Path::new("/proc/self/stat");
        let data = path.metadata().expect("metadata");
        let own = (rustix::fs::major(data.dev()), rustix::fs::minor(data.dev()));
        assert_eq!(devices_of(path, &data), [own, own]);
    }

    /// Another program that has a lease of a new file, and takes and gives some hundred locks for as long as it lives.
    struct Locking(std::process::Child);

    impl Locking {
        fn begin(leased: &Path) -> Self {
            let program = "import fcntl, os, sys, time\n\
                           new = lambda name: os.open(name, os.O_RDWR | os.O_CREAT)\n\
                           fds = [new(f'{sys.argv[1]}-{i}') for i in range(200)]\n\
                           fcntl.fcntl(new(sys.argv[1] + '-new'), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                           os.rename(sys.argv[1] + '-new', sys.argv[1])\n\
                           end = time.time() + 60\n\
                           while time.time() < end:\n\
                           \x20   for fd in fds: fcntl.lockf(fd, fcntl.LOCK_EX)\n\
                           \x20   for fd in fds: fcntl.lockf(fd, fcntl.LOCK_UN)\n";
            let mut python = std::process::Command::new("/usr/bin/python3");
            Self(
                python
                    .args(["-c", program])
                    .arg(leased)
                    .spawn()
                    .expect("python3"),
            )
        }
    }

    impl Drop for Locking {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Without its lease a file that a monitor has would not be opened, and said to be in nobody's care.
    #[test]
    fn a_lease_is_found_beside_programs_that_lock() {
        if !Path::new("/usr/bin/python3").exists() {
            println!("skipped: python3 is not installed");
            return;
        }
        let dir = std::env::temp_dir().join(format!("adit-flush-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let paths = [dir.join("one"), dir.join("other")];
        let all = paths.each_ref().map(|path| Locking::begin(path));
        let begun = Instant::now();
        while !paths.iter().all(|path| path.exists()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "no lease");
            std::thread::sleep(Duration::from_millis(5));
        }
        let data = paths
            .each_ref()
            .map(|path| path.metadata().expect("metadata"));
        let are_watched = || (0..2).all(|i| is_watched(&paths[i], &data[i]));
        let missed = (0..800).filter(|_| !are_watched()).count();
        drop(all);
        std::fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(missed, 0, "of 800");
    }
}
