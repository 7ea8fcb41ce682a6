//! Calls that make, copy and end descriptors, and the decision to promote one.
//!
//! # Safety
//! These are C entry points and hooks called from the stubs with the program's arguments; pointers
//! among them are passed on, never followed.
#![allow(unsafe_code)]

use crate::fds::{self, Kind};
use crate::ofd::{self, Ofd};
use crate::real::call_real;
use crate::{data, init, process, signal, sys, table};
use adit_pmem::MediumKind;
use adit_store::direct::DirectFile;
use adit_store::registry::FileId;
use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering;

/// Opens whose data path is the kernel's: not readable through a mapping, or with a promise about
/// every write that only the kernel can keep (PROTOCOLS F1, F8).
const KERNEL_ONLY: c_int = libc::O_DIRECT | libc::O_DSYNC | libc::O_PATH | libc::O_DIRECTORY;

/// After `open(path, flags, …)`.
pub(crate) extern "C" fn opened(_path: usize, flags: c_int, _mode: usize, fd: c_int) {
    note_open(fd, flags);
}

/// After `openat(directory, path, flags, …)`.
pub(crate) extern "C" fn opened_at(_directory: usize, _path: usize, flags: c_int, fd: c_int) {
    note_open(fd, flags);
}

/// After the `mkstemp` family, which opens for reading and writing.
pub(crate) extern "C" fn opened_temporary(_a: usize, _b: usize, _c: usize, fd: c_int) {
    note_open(fd, libc::O_RDWR);
}

fn note_open(fd: c_int, flags: c_int) {
    if process::in_vfork_child() {
        return;
    }
    forget_stale(fd);
    let mode = flags & libc::O_ACCMODE;
    if fd <= fds::LAST_STANDARD
        || mode == libc::O_WRONLY
        || mode == libc::O_ACCMODE
        || flags & KERNEL_ONLY != 0
    {
        return;
    }
    let Some(credit) = init::credit() else { return };
    let shared = flags & libc::O_APPEND != 0;
    fds::set_candidate(fd, credit, shared || process::sharing());
    if process::sharing() {
        process::share(fd);
    }
}

/// After a call that returns a descriptor which is no file: a word left over means that the number
/// was closed where we could not see it (PROTOCOLS F6).
pub(crate) extern "C" fn returned(_a: usize, _b: usize, _c: usize, fd: c_int) {
    if !process::in_vfork_child() {
        forget_stale(fd);
    }
}

/// As [`returned`] for calls that fill an array of two.
fn returned_pair(result: c_int, pair: *const c_int) -> c_int {
    if result == 0 && !process::in_vfork_child() {
        // SAFETY: libc has just stored both there.
        let [first, second] = unsafe { [pair.read(), pair.add(1).read()] };
        forget_stale(first);
        forget_stale(second);
    }
    result
}

pub(crate) extern "C" fn pipe(pair: *mut c_int) -> c_int {
    type Function = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    returned_pair(unsafe { call_real!(table::pipe, Function)(pair) }, pair)
}

pub(crate) extern "C" fn pipe2(pair: *mut c_int, flags: c_int) -> c_int {
    type Function = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    let result = unsafe { call_real!(table::pipe2, Function)(pair, flags) };
    returned_pair(result, pair)
}

pub(crate) extern "C" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    let result = unsafe { call_real!(table::socketpair, Function)(domain, kind, protocol, pair) };
    returned_pair(result, pair)
}

/// A candidate has used up its credit: promote it, let it go, or give it more credit.
pub(crate) extern "C" fn consider(fd: c_int) {
    let Some(word) = fds::word(fd) else { return };
    let seen = word.load(Ordering::Acquire);
    if seen & fds::CANDIDATE == 0 || process::in_vfork_child() {
        return;
    }
    let verdict = match init::credit() {
        None => Verdict::Foreign,
        Some(_) => look_at(fd, seen & fds::SHARED != 0, seen & fds::WAITED != 0),
    };
    let new = match verdict {
        Verdict::Foreign => 0,
        Verdict::Later(credit) => {
            (seen & fds::SHARED) | fds::CANDIDATE | fds::WAITED | (credit << fds::CREDIT_SHIFT)
        }
        Verdict::Promote(ofd) => ofd.word(),
    };
    let written = word
        .compare_exchange(seen, new, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok();
    if let Verdict::Promote(ofd) = verdict {
        if !written {
            ofd.hand_over(fd);
            ofd.drop_name(fd);
        } else if process::sharing() {
            process::share(fd);
        }
    }
}

/// Credit for a file that is too small or too strange today and may not be tomorrow.
const LATER: u64 = 1 << 20;
/// The most that a large file's reader is made to wait: promotion costs some tens of microseconds,
/// which two per cent of this many bytes through the kernel exceed.
const PATIENCE: u64 = 32 << 20;
/// Below this a file's reads nearly always touch its last page, which is the kernel's.
const SMALLEST: u64 = 4 * 4096;

enum Verdict {
    Foreign,
    Later(u64),
    Promote(&'static Ofd),
}

/// Asks the kernel what `fd` is and whether its use can be served.
fn look_at(fd: c_int, shared: bool, waited: bool) -> Verdict {
    let Some(stat) = regular_file(fd) else {
        return Verdict::Foreign;
    };
    let Ok(flags) = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0) else {
        return Verdict::Foreign;
    };
    let flags = flags as c_int;
    let mode = flags & libc::O_ACCMODE;
    if mode == libc::O_WRONLY || flags & KERNEL_ONLY != 0 || init::address_space_limited() {
        return Verdict::Foreign;
    }
    let kind = adit_pmem::kind_of_fd(fd);
    if kind == MediumKind::Other {
        return Verdict::Foreign;
    }
    // Huge pages of tmpfs are mapped whole across the end of the file, so the probe behind a range
    // would find a page where there is no file (the kernel keeps it so on purpose). tmpfs tells by
    // its preferred block size that it uses them.
    if kind == MediumKind::Ram && stat.st_blksize > 4096 {
        return Verdict::Foreign;
    }
    let size = stat.st_size as u64;
    if size < SMALLEST {
        return Verdict::Later(LATER);
    }
    let adoption = init::adoption(kind);
    if !waited && adoption.percent > 0 {
        // A pass over the file in calls of a page, or as much as makes promotion disappear in it.
        return Verdict::Later(size.saturating_mul(5).div_ceil(2).min(PATIENCE));
    }
    if !signal::ready() {
        return Verdict::Foreign;
    }
    let append = flags & libc::O_APPEND != 0;
    // A write to a set-id file, or to one with capabilities, must strip them: the kernel does.
    let privileged = stat.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 || has_capabilities(fd);
    // Only an owner may set one of the two times, which overwrites through a mapping need.
    // SAFETY: geteuid has no preconditions.
    let me = unsafe { libc::geteuid() };
    let owner = me == 0 || me == stat.st_uid;
    let writable = mode == libc::O_RDWR && !append && !shared && !privileged && owner;
    let Some(file) = DirectFile::new(kind, size, writable, adoption) else {
        return Verdict::Later(LATER);
    };
    // Where file sizes are limited, making the registry's own file could exceed the limit, and the
    // signal for that would be the program's.
    let limited = data::KERNEL_WRITES.load(Ordering::Relaxed);
    let slot = (!limited)
        .then(|| {
            init::REGISTRY.file(
                FileId {
                    dev: stat.st_dev,
                    ino: stat.st_ino,
                },
                fd,
            )
        })
        .flatten();
    match ofd::allocate(file, slot, own_offset(fd, shared || append)) {
        Some(ofd) => Verdict::Promote(ofd),
        None => Verdict::Later(LATER),
    }
}

/// Takes the offset from the kernel, if nobody else can be moving it: not a duplicate, not another
/// process, and not another thread between its decision to call the kernel and the call.
fn own_offset(fd: c_int, shared: bool) -> Option<u64> {
    if shared || !init::single_threaded() {
        return None;
    }
    sys::lseek(fd as usize, 0, libc::SEEK_CUR as usize)
        .ok()
        .map(|at| at as u64)
}

fn regular_file(fd: c_int) -> Option<libc::stat> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    sys::fstat(fd as usize, stat.as_mut_ptr() as usize).ok()?;
    // SAFETY: all zero is a valid stat, and the kernel has filled it.
    let stat = unsafe { stat.assume_init() };
    (stat.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(stat)
}

fn has_capabilities(fd: c_int) -> bool {
    sys::fgetxattr(fd as usize, c"security.capability".as_ptr() as usize, 0, 0).is_ok()
}

/// Makes `fd` foreign because its number already means something else: a word left over says that
/// the old descriptor was closed where we could not see it. The old file's times are left to the
/// monitor; settling them through this number would touch the new file.
fn forget_stale(fd: c_int) {
    let Some(word) = fds::word(fd) else { return };
    if word.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Kind::Promoted(ofd) = fds::kind(word.swap(0, Ordering::SeqCst)) {
        ofd.drop_name(-1);
    }
}

/// Makes `fd` foreign because its number is about to mean something else.
pub(crate) fn forget(fd: c_int) {
    let Some(word) = fds::word(fd) else { return };
    if word.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Kind::Promoted(ofd) = fds::kind(word.swap(0, Ordering::SeqCst)) {
        ofd.drop_name(fd);
    }
}

/// Gives everything about `fd`'s description back to the kernel: its offset, and all its names in
/// this process become foreign. Right at any time.
pub(crate) extern "C" fn release(fd: c_int) {
    if process::in_vfork_child() {
        return;
    }
    let Some(word) = fds::word(fd) else { return };
    match fds::kind(word.load(Ordering::SeqCst)) {
        Kind::Foreign => {}
        Kind::Candidate => word.store(0, Ordering::SeqCst),
        Kind::Promoted(ofd) => {
            ofd.hand_over(fd);
            ofd::each_promoted(|name, other| {
                if core::ptr::eq(other, ofd) {
                    forget(name);
                }
            });
        }
    }
}

/// Gives every description back to the kernel and promotes none again: for processes that change
/// what they may do, so that no later call of ours surprises a sandbox (PROTOCOLS C5).
pub(crate) extern "C" fn release_all() {
    if process::in_vfork_child() {
        return;
    }
    init::stop_promoting();
    for fd in fds::all() {
        release(fd);
    }
}

/// Before a call that may leave holes in the file of `fd`.
pub(crate) extern "C" fn before_holes(fd: c_int) {
    if let Some(ofd) = fds::promoted(fd) {
        ofd.file().holes_from(0);
    }
}

/// Before `truncate`, which names its file by path: any of ours may be meant.
pub(crate) extern "C" fn before_holes_somewhere() {
    ofd::each_promoted(|fd, _| before_holes(fd));
}

/// The kernel is about to use the offset of `fd`.
pub(crate) extern "C" fn hand_over(fd: c_int) {
    if let Some(ofd) = fds::promoted(fd) {
        ofd.hand_over(fd);
    }
}

/// Before a call that uses the offsets of two descriptors: `copy_file_range`, `splice` pass the
/// first and third argument, `sendfile` the first and second.
pub(crate) extern "C" fn hand_over_pair(first: c_int, second: c_int) {
    hand_over(first);
    hand_over(second);
}

/// As [`hand_over_pair`] for calls whose second descriptor is the third argument.
pub(crate) extern "C" fn hand_over_first_third(first: c_int, _offset: usize, third: c_int) {
    hand_over_pair(first, third);
}

pub(crate) extern "C" fn close(fd: c_int) -> c_int {
    if !process::in_vfork_child() {
        forget(fd);
    }
    sys::to_libc(sys::close(fd as usize)) as c_int
}

/// Before `close_range(first, last, flags)`.
pub(crate) extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if flags & CLOSE_RANGE_CLOEXEC == 0 && !process::in_vfork_child() {
        fds::all()
            .filter(|&fd| (first..=last).contains(&(fd as c_uint)))
            .for_each(forget_handing_over);
    }
}

/// Before `closefrom(first)`.
pub(crate) extern "C" fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// Before `daemon`, which puts /dev/null on the standard descriptors and forks.
pub(crate) extern "C" fn release_standard() {
    (0..3).for_each(|fd| release(fd));
    process::share_all();
}

/// Before `login_tty(fd)`, which puts `fd` on the standard descriptors and closes it.
pub(crate) extern "C" fn release_standard_and(fd: c_int) {
    (0..3).for_each(|fd| release(fd));
    release(fd);
}

/// The call that follows may fail and leave `fd` open, so its offset goes to the kernel first.
fn forget_handing_over(fd: c_int) {
    hand_over(fd);
    forget(fd);
}

/// `fd` is a new name of what `old` names.
fn alias(old: c_int, fd: c_int) {
    if process::in_vfork_child() {
        return;
    }
    forget_stale(fd);
    if fd <= fds::LAST_STANDARD {
        return process::share(old);
    }
    let Some(word) = fds::word(old) else { return };
    let seen = word.load(Ordering::SeqCst);
    match fds::kind(seen) {
        Kind::Foreign => {}
        Kind::Candidate => {
            // Two words cannot share one offset: only positional reads can be served from here on.
            word.fetch_or(fds::SHARED, Ordering::SeqCst);
            fds::set_candidate(fd, seen >> fds::CREDIT_SHIFT, true);
        }
        Kind::Promoted(ofd) => {
            ofd.add_name();
            fds::set_promoted(fd, ofd);
        }
    }
}

pub(crate) extern "C" fn dup(old: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    let fd = unsafe { call_real!(table::dup, Function)(old) };
    if fd >= 0 {
        alias(old, fd);
    }
    fd
}

pub(crate) extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old != new && !process::in_vfork_child() {
        forget_handing_over(new);
    }
    type Function = unsafe extern "C" fn(c_int, c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    let fd = unsafe { call_real!(table::dup2, Function)(old, new) };
    if fd >= 0 && old != new {
        alias(old, fd);
    }
    fd
}

pub(crate) extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old != new && !process::in_vfork_child() {
        forget_handing_over(new);
    }
    type Function = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    let fd = unsafe { call_real!(table::dup3, Function)(old, new, flags) };
    if fd >= 0 {
        alias(old, fd);
    }
    fd
}

/// Before `fcntl(fd, command, argument)` on a descriptor with a word.
pub(crate) extern "C" fn before_fcntl(fd: c_int, command: c_int, _argument: usize) {
    match command {
        // New status flags may add O_APPEND or O_DIRECT.
        libc::F_SETFL => release(fd),
        // A range may be given relative to the offset.
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => hand_over(fd),
        _ => {}
    }
}

/// After `fcntl` on a descriptor with a word.
pub(crate) extern "C" fn after_fcntl(fd: c_int, command: c_int, _argument: usize, result: c_int) {
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
        alias(fd, result);
    }
}
