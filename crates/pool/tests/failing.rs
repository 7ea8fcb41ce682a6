//! A real disk that fails for a moment: what the kernel takes for written then, and is not.
//!
//! # Safety
//!
//! The unsafe code gives this thread a mount namespace of its own, and sets the length of a loop device.
#![allow(unsafe_code, reason = "the kernel is asked for what no crate asks for")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests are not the engine"
)]

mod common;
#[path = "../../../tests/scratch.rs"]
mod scratch;

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use adit_pool::layout::Geometry;
use adit_pool::{Attachment, Error, FileMedium, FileRef, PoolFile, When};
use common::{name, stage};

/// A file system in an image, mounted for the thread that made it, for as long as that runs.
struct Disk {
    place: PathBuf,
    mounted: PathBuf,
}

impl Disk {
    /// What the image is called, and what it would be after a loss of power.
    const IMAGE: &str = "image";
    const CUT: &str = "cut";

    fn new() -> Option<Self> {
        Self::of(&["mkfs.ext4", "-q"], 64 << 20)
    }

    fn of(make: &[&str], len: u64) -> Option<Self> {
        let place = scratch::disk(env!("CARGO_TARGET_TMPDIR"))?;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = place.join(format!("adit-failing-{}-{next}", std::process::id()));
        let disk = Self {
            mounted: place.join("image.mounted"),
            place,
        };
        fs::create_dir_all(&disk.mounted).unwrap();
        let image = disk.place.join(Self::IMAGE);
        File::create(&image).unwrap().set_len(len).unwrap();
        // SAFETY: it changes what this thread sees of mounts, and nothing else.
        let alone = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
        let ready = alone
            && runs("mount", &["--make-rprivate", "/"])
            && runs(make[0], &[&make[1..], &[path(&image)]].concat())
            && disk.mount(Self::IMAGE).is_some();
        if !ready {
            println!("skipped: it takes root, loop devices and {}", make[0]);
        }
        ready.then_some(disk)
    }

    fn mount(&self, image: &str) -> Option<PathBuf> {
        let dir = self.place.join(format!("{image}.mounted"));
        fs::create_dir_all(&dir).unwrap();
        let image = self.place.join(image);
        // The kernel may name a free device that somebody else takes first, or that a file system still has that was just
        // unmounted.
        let mount = |nth: u32| {
            std::thread::sleep(std::time::Duration::from_millis(100) * nth.min(1));
            runs("mount", &["-o", "loop", path(&image), path(&dir)])
        };
        (0..30).any(mount).then_some(dir)
    }

    /// Refuses to write anything behind so many bytes; all of it works when there are none.
    fn limit(&self, bytes: u64) {
        const SIZE_LIMIT: usize = 32;
        let device = fs::metadata(&self.mounted).unwrap().st_dev();
        let device = File::options()
            .read(true)
            .write(true)
            .open(format!("/dev/loop{}", libc::minor(device)))
            .unwrap();
        let mut status = [0_u8; 232];
        // SAFETY: it writes as many bytes as there are.
        let got = unsafe { libc::ioctl(device.as_raw_fd(), 0x4C05, &mut status) };
        status[SIZE_LIMIT..][..8].copy_from_slice(&bytes.to_le_bytes());
        // SAFETY: it reads as many bytes as there are.
        let set = unsafe { libc::ioctl(device.as_raw_fd(), 0x4C04, &status) };
        assert_eq!((got, set), (0, 0), "{}", std::io::Error::last_os_error());
    }

    fn pool(&self) -> PathBuf {
        self.mounted.join("pool")
    }

    /// A pool with one durable record, so that nothing which the next one needs is new.
    fn with_a_record(&self) -> (Attachment<FileMedium>, FileRef) {
        let file = PoolFile::create(&self.pool(), 8 << 20, Geometry::default()).unwrap();
        let attachment = file.attach().unwrap();
        let staged = attachment.enter_file(&name(1)).unwrap();
        stage(&attachment, staged, 0, &[1; 100], When::Now).unwrap();
        self.settle();
        (attachment, staged)
    }

    fn settle(&self) {
        assert!(runs("sync", &["-f", path(&self.mounted)]));
    }

    /// How many records are found in the pool after a loss of power now, with those that nobody committed: they count no
    /// more.
    fn records_after_a_cut(&self) -> u64 {
        fs::copy(self.place.join(Self::IMAGE), self.place.join(Self::CUT)).unwrap();
        let pool = self.mount(Self::CUT).unwrap().join("pool");
        let found = PoolFile::open_read_only(&pool).unwrap().scan().unwrap();
        let counting: u64 = found.files.iter().map(|file| file.records).sum();
        counting + found.counts.uncommitted
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for image in [Self::CUT, Self::IMAGE] {
            let dir = self.place.join(format!("{image}.mounted"));
            let _ = runs("umount", &["-l", path(&dir)]);
        }
        let _ = fs::remove_dir_all(&self.place);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn runs(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

/// Who opens a pool in which the kernel has two records acknowledges what builds on both.
fn who_opens_it_believes_no_more_than_the_disk_has(disk: &Disk) {
    let later = PoolFile::open(&disk.pool()).unwrap().attach().unwrap();
    let found = &later.recovery().unwrap().files;
    let records: u64 = found.iter().map(|file| file.records).sum();
    assert_eq!(records, 2, "the kernel has it");
    later.pool().settle().unwrap();
    assert_eq!(disk.records_after_a_cut(), 2, "it was taken for durable");
}

/// A file is forgotten, and the sync of that fails. Who comes later finds it forgotten, and says so to a program that
/// goes on without the pool; were its records still on the disk, they would be replayed over what that has written.
#[test]
fn what_a_failed_sync_left_is_written_again_before_it_is_believed() {
    let Some(disk) = Disk::new() else { return };
    let (first, staged) = disk.with_a_record();
    let bystander = PoolFile::open(&disk.pool()).unwrap().attach().unwrap();

    disk.limit(1 << 20);
    let forgotten = first.forget_file(staged);
    disk.limit(0);
    assert!(forgotten.is_err(), "the disk has not failed");
    let told = bystander.pool().settle();
    assert!(told.is_err(), "it was spared a sync");

    let later = PoolFile::open(&disk.pool()).unwrap().attach().unwrap();
    let found = later.pool().ensure_not_forgotten(staged);
    assert!(matches!(found, Err(Error::Forgotten)), "{found:?}");
    later.pool().settle().unwrap();
    assert_eq!(disk.records_after_a_cut(), 0, "they would be replayed");
}

/// The kernel tells who grows the pool that what another has written could not be, and it tells nobody who opens the pool
/// later: such a sync would succeed, and spare the other his own, which would not.
#[test]
fn what_a_growing_process_is_told_all_are() {
    let Some(disk) = Disk::new() else { return };
    let (first, staged) = disk.with_a_record();
    let longer = File::options().write(true).open(disk.pool()).unwrap();
    longer.set_len(12 << 20).unwrap();
    disk.settle();

    stage(&first, staged, 100, &[2; 100], When::WithCommit).unwrap();
    let file = PoolFile::open(&disk.pool()).unwrap();
    let grower = file.attach().unwrap();
    disk.limit(1 << 20);
    let grown = file.grow(&grower, 10 << 20);
    disk.limit(0);
    assert!(grown.is_err(), "the disk has not failed");
    let later = PoolFile::open(&disk.pool()).unwrap().attach().unwrap();
    later.pool().settle().unwrap();
    if first.pool().settle().is_ok() {
        assert_eq!(disk.records_after_a_cut(), 2, "it was taken for durable");
    }
}

/// A record is written, and the sync of that fails. Who comes when all have gone, and what they knew of the failure with
/// them, finds it, and acknowledges what builds on it.
#[test]
fn where_nobody_knows_whether_a_sync_failed_all_is_written_again() {
    let Some(disk) = Disk::new() else { return };
    let (first, staged) = disk.with_a_record();

    disk.limit(1 << 20);
    stage(&first, staged, 100, &[2; 100], When::WithCommit).unwrap();
    let synced = first.pool().settle();
    disk.limit(0);
    assert!(synced.is_err(), "the disk has not failed");
    drop(first);
    fs::remove_file(disk.mounted.join("pool.tables")).unwrap();
    who_opens_it_believes_no_more_than_the_disk_has(&disk);
}

/// The kernel tells a process that is killed while it waits for a sync, and it tells nobody else. Who opens the pool when
/// all are gone finds what the process has written.
#[test]
fn a_sync_that_fails_while_its_process_is_killed_is_known() {
    let Some(disk) = Disk::new() else { return };
    let (first, staged) = disk.with_a_record();

    stage(&first, staged, 100, &[2; 100], When::WithCommit).unwrap();
    disk.limit(1 << 20);
    // What the kernel does for a process whose sync returns to a signal that kills it, and what that leaves.
    let synced = File::open(disk.pool()).unwrap().sync_all();
    disk.limit(0);
    assert!(synced.is_err(), "the disk has not failed");
    drop(first);
    let tables = disk.mounted.join("pool.tables");
    let tables = File::options().read(true).write(true).open(tables).unwrap();
    let asked = tables.metadata().unwrap().len() - adit_pmem::MIRROR_TAIL + 272;
    let mut count = [0; 8];
    tables.read_exact_at(&mut count, asked).unwrap();
    let count = u64::from_le_bytes(count) + 1;
    tables.write_all_at(&count.to_le_bytes(), asked).unwrap();
    who_opens_it_believes_no_more_than_the_disk_has(&disk);
}

/// Where a file system writes elsewhere what changes, all of a pool is written again although there is not room for it twice.
/// What was left clean is not written again.
#[test]
fn all_is_written_again_on_a_disk_that_is_nearly_full() {
    let Some(disk) = Disk::of(&["mkfs.btrfs", "-q", "-f"], 1200 << 20) else {
        return;
    };
    adit_pmem::fault::install().unwrap();
    let pool = disk.pool();
    let file = PoolFile::create(&pool, 512 << 20, Geometry::default()).unwrap();
    let forget = || {
        let tables = disk.mounted.join("pool.tables");
        fs::remove_file(fs::read_link(tables).unwrap()).unwrap();
    };
    file.detach(file.attach().unwrap()).unwrap();
    drop(file);
    forget();
    let written = || {
        let io = fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = io
            .lines()
            .find_map(|line| line.strip_prefix("write_bytes: "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = written();
    let file = PoolFile::open(&pool).unwrap();
    let attachment = file.attach().unwrap();
    let cost = written() - before;
    assert!(cost < 200 << 20, "it was clean: {cost} bytes were written");
    let staged = attachment.enter_file(&name(1)).unwrap();
    stage(&attachment, staged, 0, &[1; 100], When::Now).unwrap();
    drop((attachment, file));
    // What it was made of are extents of hundreds of megabytes, of which each is kept as long as any part of it is.
    forget();
    drop(PoolFile::open(&pool).unwrap().attach().unwrap());
    forget();
    let left = "df --output=avail -B1M . | tail -1";
    let fill = format!("fallocate -l $(($({left}) - 120))M fill && sync -f .");
    let filled = Command::new("sh")
        .args(["-c", &fill])
        .current_dir(&disk.mounted)
        .status();
    assert!(filled.unwrap().success());
    let file = PoolFile::open(&pool).unwrap();
    let attachment = file.attach().unwrap();
    attachment.pool().settle().unwrap();
}
