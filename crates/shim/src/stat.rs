//! What a program sees of the files that it stages when it looks at them.
//!
//! The kernel knows a staged file as it was when it was last published. So while anybody stages
//! anything, the `stat` family asks the kernel and then puts size, blocks and times right where the
//! answer is about a file of ours, or of another program under Adit. What sets times publishes the file first, so that no older write
//! overtakes it; what walks a tree looks inside libc, so everything is published first.
//!
//! # Safety
//! C entry points: libc's own functions are called with the program's own arguments, and what they
//! filled in is then changed in place, as they did.
#![allow(unsafe_code)]

use crate::declared::{self, Asked};
use crate::real::call_real;
use crate::{descriptors, elsewhere, fds, names, process, stack, stage, table, times, vfork};
use adit_store::registry::{FileId, Filter};
use core::ffi::{c_char, c_int, c_uint};
use core::sync::atomic::Ordering;

/// A staged file as this process knows it.
#[derive(Clone, Copy)]
pub(crate) struct Logical {
    pub(crate) size: u64,
    /// Seconds and nanoseconds of the last write, if it was not published yet.
    pub(crate) modified: Option<(i64, i64)>,
}

impl Logical {
    /// Of this size, and written at a time in nanoseconds since 1970; zero when nobody said.
    pub(crate) fn written_at(size: u64, at: u64) -> Self {
        let time = ((at / 1_000_000_000) as i64, (at % 1_000_000_000) as i64);
        Self {
            size,
            modified: (at != 0).then_some(time),
        }
    }
}

/// The staged file of this process with this identity.
fn logical(device: u64, inode: u64) -> Option<Logical> {
    if stage::STAGED.load(Ordering::SeqCst) == 0 {
        return None;
    }
    fds::each_promoted().find_map(|(fd, ofd)| ofd.writer()?.logical(&ofd, fd, device, inode))
}

/// The blocks (of 512 bytes) that the file will take, given what the kernel says it takes now. What is
/// beyond the kernel's end is taken to have no holes, as it is nearly always.
fn blocks(now: u64, kernel_size: u64, size: u64) -> u64 {
    const PAGE: u64 = 4096;
    let all = |bytes: u64| bytes.div_ceil(PAGE) * (PAGE / 512);
    if size > kernel_size {
        now + (all(size) - all(kernel_size))
    } else {
        now.min(all(size))
    }
}

/// A program's buffer of either kind.
pub(crate) trait Answer: Copy {
    fn identity(&self) -> (u64, u64);
    /// Whether it is of a regular file, as far as it says.
    fn is_regular(&self) -> bool;
    fn correct(&mut self, logical: Logical);
}

impl Answer for libc::stat {
    fn identity(&self) -> (u64, u64) {
        (self.st_dev, self.st_ino)
    }

    fn is_regular(&self) -> bool {
        self.st_mode & libc::S_IFMT == libc::S_IFREG
    }

    fn correct(&mut self, logical: Logical) {
        let kernel = self.st_size as u64;
        self.st_blocks = blocks(self.st_blocks as u64, kernel, logical.size) as i64;
        self.st_size = logical.size as i64;
        if let Some((seconds, nanoseconds)) = logical.modified {
            (self.st_mtime, self.st_mtime_nsec) = (seconds, nanoseconds);
            if (self.st_ctime, self.st_ctime_nsec) < (seconds, nanoseconds) {
                (self.st_ctime, self.st_ctime_nsec) = (seconds, nanoseconds);
            }
        }
    }
}

impl Answer for libc::statx {
    fn identity(&self) -> (u64, u64) {
        let device = libc::makedev(self.stx_dev_major, self.stx_dev_minor);
        (device, self.stx_ino)
    }

    fn is_regular(&self) -> bool {
        let told = self.stx_mask & libc::STATX_TYPE != 0;
        !told || u32::from(self.stx_mode) & libc::S_IFMT == libc::S_IFREG
    }

    fn correct(&mut self, logical: Logical) {
        let has = |field: c_uint| self.stx_mask & field != 0;
        if has(libc::STATX_BLOCKS) && has(libc::STATX_SIZE) {
            self.stx_blocks = blocks(self.stx_blocks, self.stx_size, logical.size);
        }
        if has(libc::STATX_SIZE) {
            self.stx_size = logical.size;
        }
        let Some((seconds, nanoseconds)) = logical.modified else {
            return;
        };
        let time = |from: libc::statx_timestamp| (from.tv_sec, i64::from(from.tv_nsec));
        let set = |to: &mut libc::statx_timestamp| {
            (to.tv_sec, to.tv_nsec) = (seconds, nanoseconds as u32);
        };
        set(&mut self.stx_mtime);
        if time(self.stx_ctime) < (seconds, nanoseconds) {
            set(&mut self.stx_ctime);
        }
    }
}

/// Asks the kernel and corrects its answer. A file that was taken away after the kernel answered may
/// have been published in between: it is asked again.
pub(crate) fn look<A: Answer>(answer: *mut A, asked: Asked, kernel: impl Fn() -> c_int) -> c_int {
    if vfork::in_child() {
        return kernel();
    }
    stack::with_room(|| look_here(answer, asked, kernel))
}

fn look_here<A: Answer>(answer: *mut A, asked: Asked, kernel: impl Fn() -> c_int) -> c_int {
    times::settle_all();
    let anywhere = elsewhere::filter();
    let mut published = None;
    for _ in 0..LOOKS {
        let gone = gone(anywhere);
        // Asked first: what is not staged then is in the file, for the kernel to see.
        let others = declared::logical(asked);
        let result = kernel();
        if result != 0 {
            return result;
        }
        // SAFETY: the kernel has just filled it in.
        let mut seen = unsafe { answer.read_unaligned() };
        let (device, inode) = seen.identity();
        let others = others.filter(|(file, _)| *file == (device, inode));
        let others = others.map(|(_, logical)| logical);
        if let Some(logical) = logical(device, inode).or(others) {
            seen.correct(logical);
            // SAFETY: as above.
            unsafe { answer.write_unaligned(seen) };
            return result;
        }
        let file = FileId {
            dev: device,
            ino: inode,
        };
        let is_file = seen.is_regular();
        if is_file
            && published != Some(file)
            && anywhere.is_some_and(|filter| filter.may_have(file))
        {
            if let Some(logical) = elsewhere::logical(file) {
                seen.correct(logical);
                // SAFETY: as above.
                unsafe { answer.write_unaligned(seen) };
                return result;
            }
            // It is in the file by now, for the kernel to see.
            published = Some(file);
        } else if gone == self::gone(anywhere) {
            return result;
        }
    }
    // Somebody takes files away faster than this one can be looked at.
    kernel()
}

/// How often a file is looked at while others are taken away.
const LOOKS: u32 = 64;

/// How many files were staged and are not any more, by this process and by any.
fn gone(anywhere: Option<Filter>) -> (u64, u64) {
    let here = stage::GONE.load(Ordering::SeqCst);
    (here, anywhere.map_or(0, |filter| filter.gone()))
}

/// Defines the entries of each signature: libc's function of the name is called, then what it left in
/// the buffer is corrected.
macro_rules! looks {
    ($($arguments:tt $buffer:ident: $answer:ty, $asked:expr, { $($name:ident)* })*) => {$(
        looks!(@each $arguments $buffer $answer, $asked, $($name)*);
    )*};
    (@each $arguments:tt $buffer:ident $answer:ty, $asked:expr, $($name:ident)*) => {$(
        looks!(@one $name $arguments $buffer $answer, $asked);
    )*};
    (@one $name:ident ($($argument:ident: $kind:ty),*) $buffer:ident $answer:ty, $asked:expr) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        pub(crate) extern "C" fn $name($($argument: $kind),*) -> c_int {
            type Function = unsafe extern "C" fn($($kind),*) -> c_int;
            look::<$answer>($buffer, $asked, || {
                // SAFETY: libc's own function with the program's own arguments.
                unsafe { call_real!(table::$name, Function)($($argument),*) }
            })
        }
    };
}

fn here(path: Path, flags: c_int) -> Asked {
    Asked::Path(libc::AT_FDCWD, path, flags)
}

type Stat = *mut libc::stat;
type Path = *const c_char;

looks! {
    (path: Path, buffer: Stat) buffer: libc::stat, here(path, 0), { stat stat64 }
    (path: Path, buffer: Stat) buffer: libc::stat, here(path, libc::AT_SYMLINK_NOFOLLOW), { lstat lstat64 }
    (fd: c_int, buffer: Stat) buffer: libc::stat, Asked::Fd(fd), { fstat fstat64 }
    (dir: c_int, path: Path, buffer: Stat, flags: c_int) buffer: libc::stat, Asked::Path(dir, path, flags), { fstatat fstatat64 }
    (dir: c_int, path: Path, flags: c_int, mask: c_uint, buffer: *mut libc::statx) buffer: libc::statx, Asked::Path(dir, path, flags), { statx }
    (version: c_int, path: Path, buffer: Stat) buffer: libc::stat, here(path, 0), { __xstat __xstat64 }
    (version: c_int, path: Path, buffer: Stat) buffer: libc::stat, here(path, libc::AT_SYMLINK_NOFOLLOW), { __lxstat __lxstat64 }
    (version: c_int, fd: c_int, buffer: Stat) buffer: libc::stat, Asked::Fd(fd), { __fxstat __fxstat64 }
    (version: c_int, dir: c_int, path: Path, buffer: Stat, flags: c_int) buffer: libc::stat, Asked::Path(dir, path, flags), { __fxstatat __fxstatat64 }
}

/// Before `utime`, `utimes`, `lutimes`: times of the file of this path.
pub(crate) extern "C" fn before_times(path: Path) {
    times::settle_all();
    names::put_down(libc::AT_FDCWD, path, 0);
}

/// Before `utimensat(directory, path, times, flags)`.
pub(crate) extern "C" fn before_utimensat(dir: c_int, path: Path, times: usize, flags: c_int) {
    if path.is_null() && flags == 0 {
        before_futimens(dir, times);
    } else {
        before_times_at(dir, path);
    }
}

/// Before `futimens(fd, times)`.
pub(crate) extern "C" fn before_futimens(fd: c_int, times: usize) {
    times::settle_all();
    stack::with_room(|| descriptors::set_times(fd, times));
}

/// Before `futimesat`.
pub(crate) extern "C" fn before_times_at(dir: c_int, path: Path) {
    times::settle_all();
    if path.is_null() {
        descriptors::put_down(dir);
    } else {
        names::put_down(dir, path, libc::AT_EMPTY_PATH);
    }
}

/// Before `futimes`.
pub(crate) extern "C" fn before_times_of(fd: c_int) {
    times::settle_all();
    descriptors::put_down(fd);
}

/// Before libc walks a tree.
pub(crate) extern "C" fn before_walk() {
    times::settle_all();
    let _ = process::unstage_all();
}
