//! Blocks reserved ahead of programs that append.
//!
//! An append to tmpfs whose pages are there already costs half. Reserving takes the file's inode
//! lock, which an append needs too, so it pays only in time the program does not append in: measured
//! with one program appending without a pause, reserving beside it gained nothing, on tmpfs and on
//! ext4. So blocks are reserved in short steps and only while the file is quiet, and only on tmpfs
//! (on ext4 the gain was within the noise and the slowest appends became slower).
//!
//! What is reserved and not used must go again, and no call frees blocks beyond the end of a file
//! *if the end is still where it was looked up*: an append in between would lose its bytes. So they
//! are freed only when nobody can append: the program is waiting for our answer inside its own
//! `close` (or has died), and a write lease, which the kernel grants only while there is no other
//! open description, keeps everybody else out. Where the lease is refused, the blocks stay.

use core::mem::offset_of;
use core::time::Duration;
use std::time::Instant;

use rustix::fd::AsFd as _;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::lease;
use crate::registry::layout::{SLOTS, Slot, reserving::ASKED, slot_offset};
use crate::registry::snapshot::Name;
use crate::registry::sys::{self, Fd};
use crate::registry::wire::Target;

/// Bytes per reservation call: long enough to be worth a call, short enough that an append which
/// comes meanwhile hardly waits (about 5 microseconds on tmpfs).
const STEP: u64 = 16 << 10;

/// Steps per file before other files and requests get their turn.
const STEPS: u32 = 32;

/// Bytes kept ahead of a file at first, and at most.
const FIRST: u64 = 256 << 10;
const MOST: u64 = 2 << 20;

/// Files served at a time.
const MOST_FILES: usize = 64;

/// A file is quiet when its size has not changed for this long. With pauses much shorter than
/// that, reserving meets the next append more often than not, and measured slower than without.
const QUIET: Duration = Duration::from_micros(150);

/// A file that was never quiet in so many looks is left alone for good.
const LOOKS: u32 = 30;

/// The file system must have this many times the reserved bytes free, so that nobody else meets a
/// full one because of us.
const SPARE: u64 = 64;

const TMPFS: u64 = 0x0102_1994;

/// The files that blocks are kept ahead of.
pub(super) struct Reservations {
    files: Vec<Reservation>,
    /// The thread that hears of breaks; the leases taken here are given up in a moment anyway.
    owner: i32,
}

struct Reservation {
    target: Target,
    fd: Fd,
    owner: i32,
    registry: Fd,
    size: u64,
    reserved_to: u64,
    /// The highest end ever reserved: what lies between it and the end of the file is freed.
    highest: u64,
    want: u64,
    calls: u64,
    grown_at: Instant,
    /// Looks in a row at which the file was not quiet.
    restless: u32,
    given_up: bool,
}

impl Reservations {
    pub(super) fn new(owner: i32) -> Self {
        Self {
            files: Vec::new(),
            owner,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// How long until the next [`tick`](Self::tick).
    pub(super) fn interval(&self) -> Duration {
        let active = self.files.iter().filter(|file| !file.given_up);
        let age = active.map(|file| file.grown_at.elapsed()).min();
        match age {
            None => Duration::from_secs(3600),
            Some(age) if age < Duration::from_millis(50) => Duration::from_micros(300),
            Some(age) if age < Duration::from_secs(5) => Duration::from_millis(50),
            Some(_) => Duration::from_secs(1),
        }
    }

    /// Takes a file on; `false` when it cannot or should not be served.
    pub(super) fn add(&mut self, dir: &Fd, target: Target, fd: Fd) -> bool {
        let known = self.files.iter().any(|file| file.target == target);
        if known || self.files.len() >= MOST_FILES || target.index as usize >= SLOTS {
            return false;
        }
        let Some(size) = servable(&fd, self.owner) else {
            return false;
        };
        let name = name_of(target);
        let Some(path) = name.as_c_str() else {
            return false;
        };
        // The pauses of programs are short against the 50 microseconds a timer is late by default.
        let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1000));
        let Ok(registry) = sys::open_at(dir, path, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())
        else {
            return false;
        };
        self.files.push(Reservation {
            target,
            fd,
            owner: self.owner,
            registry,
            size,
            reserved_to: size,
            highest: size,
            want: FIRST,
            calls: 0,
            grown_at: Instant::now(),
            restless: 0,
            given_up: false,
        });
        true
    }

    /// The program is closing the descriptor and waits.
    pub(super) fn release(&mut self, target: Target) -> bool {
        let found = self.files.iter().position(|file| file.target == target);
        found.is_some_and(|index| {
            self.files.swap_remove(index).free();
            true
        })
    }

    /// The process whose registry file has this name is gone.
    pub(super) fn process_died(&mut self, name: &Name) {
        let dead = |file: &Reservation| name_of(file.target).as_bytes() == name.as_bytes();
        let (gone, kept) = self.files.drain(..).partition::<Vec<_>, _>(dead);
        self.files = kept;
        gone.into_iter().for_each(Reservation::free);
    }

    /// Reserves what is missing where the program is quiet.
    pub(super) fn tick(&mut self, now: Instant) {
        let mut short = Vec::new();
        for file in &mut self.files {
            if file.follow(now) && file.is_short() {
                short.push(file);
            }
        }
        if short.is_empty() {
            return;
        }
        adit_pmem::rest(QUIET);
        for file in short {
            file.reserve_if_quiet();
        }
        self.files.retain(|file| !file.is_pointless());
    }
}

impl Reservation {
    /// Whether blocks should be reserved when the program lets us.
    fn is_short(&self) -> bool {
        self.reserved_to.saturating_sub(self.size) < self.want / 2
    }

    /// Whether it can be let go of at once, because nothing was ever reserved. The program learns
    /// that it need not ask for a release.
    fn is_pointless(&self) -> bool {
        let pointless = self.given_up && self.calls == 0;
        if pointless {
            let offset = slot_offset(self.target.index as usize) + offset_of!(Slot, reserving);
            let asked = ASKED.to_ne_bytes();
            let _ = rustix::io::pwrite(self.registry.as_fd(), &asked, offset as u64);
        }
        pointless
    }

    fn reserve_if_quiet(&mut self) {
        if self.size_now() != Some(self.size) {
            self.restless += 1;
            self.given_up = self.restless >= LOOKS;
            return;
        }
        self.restless = 0;
        if !has_room(&self.fd, self.want) {
            return;
        }
        for _ in 0..STEPS {
            if self.reserved_to >= self.size.saturating_add(self.want) {
                break;
            }
            if self.reserve_step().is_err() {
                // No space, over quota, or not possible here: the program's own appends will get
                // the kernel's answer.
                self.given_up = true;
                break;
            }
            if self.size_now() != Some(self.size) {
                break;
            }
        }
        self.show();
    }

    /// Follows the end of the file; `false` when the file cannot be looked at.
    fn follow(&mut self, now: Instant) -> bool {
        if self.given_up {
            return false;
        }
        let Some(size) = self.size_now() else {
            self.given_up = true;
            return false;
        };
        if size != self.size {
            self.grown_at = now;
        }
        if size > self.reserved_to && self.calls > 0 {
            // A burst was longer than what was kept for it.
            self.want = (self.want * 2).min(MOST);
        }
        if size > self.reserved_to || size < self.size {
            // Cut files lose what was reserved; the kernel frees it.
            self.reserved_to = size;
        }
        self.size = size;
        true
    }

    fn reserve_step(&mut self) -> Result<(), Errno> {
        let flags = FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd.as_fd(), flags, self.reserved_to, STEP)?;
        self.reserved_to = self.reserved_to.saturating_add(STEP);
        self.highest = self.highest.max(self.reserved_to);
        self.calls += 1;
        Ok(())
    }

    fn size_now(&self) -> Option<u64> {
        let stat = rustix::fs::fstat(self.fd.as_fd()).ok()?;
        u64::try_from(stat.st_size).ok()
    }

    /// Shows in the registry what is reserved.
    fn show(&self) {
        let slot = slot_offset(self.target.index as usize);
        let put = |field: usize, value: u64| {
            let offset = (slot + field) as u64;
            let _ = rustix::io::pwrite(self.registry.as_fd(), &value.to_ne_bytes(), offset);
        };
        put(offset_of!(Slot, reserved_to), self.reserved_to);
        put(offset_of!(Slot, reservations), self.calls);
    }

    /// Frees what is reserved beyond the end, if nobody else can append, and lets go of the file.
    fn free(mut self) {
        if self.calls > 0 && lease::take(self.fd.as_fd(), self.owner).is_ok() {
            let _ = self.punch();
            lease::give_up(self.fd.as_fd());
        }
        self.reserved_to = 0;
        self.show();
    }

    fn punch(&self) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(self.fd.as_fd())?;
        let size = u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)?;
        let start = size.next_multiple_of(4096);
        // A page that is covered in part is only cleared; 64 KB are whole pages everywhere.
        let end = self.highest.next_multiple_of(64 << 10);
        if self.highest <= start {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.fd.as_fd(), flags, start, end - start)?;
        restore_time(&self.fd, &stat)
    }
}

/// Freeing blocks counts as a modification for the kernel; the program made none.
fn restore_time(fd: &Fd, before: &rustix::fs::Stat) -> Result<(), Errno> {
    let after = rustix::fs::fstat(fd.as_fd())?;
    let same = (after.st_mtime, after.st_mtime_nsec) == (before.st_mtime, before.st_mtime_nsec);
    if same {
        return Ok(());
    }
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: before.st_mtime,
            tv_nsec: before.st_mtime_nsec as i64,
        },
    };
    rustix::fs::futimens(fd.as_fd(), &times)
}

/// The size of a file that can be served: a regular file on tmpfs, open for writing, and nobody
/// else has it open, so that its blocks can be freed again.
fn servable(fd: &Fd, owner: i32) -> Option<u64> {
    let stat = rustix::fs::fstat(fd.as_fd()).ok()?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let flags = rustix::fs::fcntl_getfl(fd.as_fd()).ok()?;
    let writable = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    let tmpfs = rustix::fs::fstatfs(fd.as_fd()).is_ok_and(|fs| fs.f_type as u64 == TMPFS);
    if !(regular && writable && tmpfs) {
        return None;
    }
    lease::take(fd.as_fd(), owner).ok()?;
    lease::give_up(fd.as_fd());
    u64::try_from(stat.st_size).ok()
}

/// Whether the file system has so much room that a reservation hurts nobody.
fn has_room(fd: &Fd, bytes: u64) -> bool {
    rustix::fs::fstatfs(fd.as_fd()).is_ok_and(|fs| {
        let free = fs
            .f_bavail
            .saturating_mul(u64::try_from(fs.f_bsize).unwrap_or(0));
        // A tmpfs without a limit reports no blocks at all.
        fs.f_blocks == 0 || free >= bytes.saturating_mul(SPARE)
    })
}

fn name_of(target: Target) -> Name {
    let mut name = Name::new();
    name.push(b"proc.").push_number(u64::from(target.pid));
    name.push(b".").push_number(target.nonce);
    name
}
