//! Calls that make, copy and end descriptors, and the decision to promote one.
//!
//! # Safety
//! These are C entry points and hooks called from the stubs with the program's arguments; pointers
//! among them are passed on, never followed.
#![allow(unsafe_code)]

use crate::fds::{self, Kind};
use crate::ofd::{self, Backing, Users};
use crate::process::{Patience, RightOfWay, With};
use crate::real::call_real;
use crate::sys::{self, ProcPath};
use crate::writer::{self, Writer};
use crate::{
    appends, closed, data, declared, init, numbers, pointers, process, record_locks, signal, stack,
    stage, stdio, table, vfork,
};
use adit_pmem::{MediumKind, brief};
use adit_store::direct::DirectFile;
use adit_store::registry::FileId;
use adit_store::staged::Mode;
use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Opens whose data path is the kernel's: not readable through a mapping, or with a promise about
/// every write that only the kernel can keep (PROTOCOLS F1, F8).
pub(crate) const KERNEL_ONLY: c_int =
    libc::O_DIRECT | libc::O_DSYNC | libc::O_PATH | libc::O_DIRECTORY;

/// After `open(path, flags, …)`.
pub(crate) extern "C" fn opened(_path: usize, flags: c_int, _mode: usize, fd: c_int) -> c_int {
    note_open(fd, flags)
}

/// After `openat(directory, path, flags, …)`.
pub(crate) extern "C" fn opened_at(
    _directory: usize,
    _path: usize,
    flags: c_int,
    fd: c_int,
) -> c_int {
    note_open(fd, flags)
}

/// After `openat2(directory, path, how, …)`.
pub(crate) extern "C" fn opened_how(directory: usize, path: usize, how: usize, fd: c_int) -> c_int {
    match numbers::flags_of(how) {
        Some(flags) => note_open(fd, flags),
        // Another thread has taken away what the kernel has just read.
        None => returned(directory, path, how, fd),
    }
}

/// Longer than publishing a file takes; who has stopped the program that stages it is told `EAGAIN` then.
const LET_GO: Duration = Duration::from_secs(2);
const PAUSES: Range<Duration> = Duration::from_micros(20)..Duration::from_millis(2);

/// After an `open(path, flags, …)` that failed.
pub(crate) extern "C" fn refused(path: usize, flags: c_int) -> c_int {
    refused_at(libc::AT_FDCWD, path, flags)
}

/// After an `openat(directory, path, flags, …)` that failed. Whoever says `O_NONBLOCK` of a regular file, as `tar` does
/// of all that it reads, never has to wait for one, and takes `EAGAIN` for an error: but a file that another program
/// stages is under a lease, and the kernel says so instead of waiting until it is published.
pub(crate) extern "C" fn refused_at(directory: c_int, path: usize, flags: c_int) -> c_int {
    if flags & libc::O_NONBLOCK == 0 || sys::errno() != libc::EAGAIN {
        return -1;
    }
    let dir = directory as usize;
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    let link = match flags & libc::O_NOFOLLOW {
        0 => 0,
        _ => libc::AT_SYMLINK_NOFOLLOW as usize,
    };
    let looked = sys::newfstatat(dir, path, stat.as_mut_ptr() as usize, link);
    // SAFETY: all zero is a valid stat, and the kernel has filled it if it could.
    let mode = unsafe { stat.assume_init() }.st_mode;
    let mut result = Err(libc::EAGAIN);
    if looked.is_ok() && mode & libc::S_IFMT == libc::S_IFREG {
        let (begun, mut pause) = (Instant::now(), PAUSES.start);
        // There is a file: nothing is to be made any more.
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL);
        while result == Err(libc::EAGAIN) && begun.elapsed() < LET_GO {
            adit_pmem::rest(pause);
            pause = (2 * pause).min(PAUSES.end);
            result = sys::openat(dir, path, flags as usize, 0);
        }
    }
    sys::to_libc(result) as c_int
}

/// After a call of the `mkstemp` family that failed, which is for none of this.
pub(crate) extern "C" fn still_refused() -> c_int {
    -1
}

/// After the `mkstemp` family, which opens for reading and writing, and to append where `mkostemp` is told so.
pub(crate) extern "C" fn opened_temporary(_a: usize, _b: usize, _c: usize, fd: c_int) -> c_int {
    let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
    note_open(fd, flags.map_or(libc::O_RDWR, |flags| flags as c_int))
}

/// Notes what a new descriptor is; returns it, or -1 with errno set where it must not be had.
pub(crate) fn note_open(fd: c_int, flags: c_int) -> c_int {
    if vfork::in_child() {
        vfork::has_left(fd);
        return fd;
    }
    stack::with_room(|| note_here(fd, flags))
}

fn note_here(fd: c_int, flags: c_int) -> c_int {
    forget_stale(fd);
    let mode = flags & libc::O_ACCMODE;
    if mode == libc::O_ACCMODE || flags & libc::O_PATH != 0 {
        return fd;
    }
    let Some(credit) = init::credit() else {
        return fd;
    };
    if fd <= fds::LAST_STANDARD {
        declared::is_the_kernels(fd);
        return fd;
    }
    let declared = init::declared_mode().filter(|_| declared::is_shareable(fd));
    if declared.is_none() {
        declared::follows_nobody(fd);
    }
    let staging = declared.or(init::mode().filter(|_| mode != libc::O_RDONLY));
    if let Some(staging) = staging
        && let Some(fd) = note_writer(fd, flags, staging, declared.is_some())
    {
        return fd;
    }
    if fds::word(fd).is_none() {
        return fd;
    }
    if mode != libc::O_RDONLY
        && let Some(appends) = appends::asked().filter(|appends| appends.watches(mode))
    {
        appends::note_open(fd, flags, appends);
        return fd;
    }
    if mode == libc::O_WRONLY || flags & KERNEL_ONLY != 0 {
        return fd;
    }
    let shared = flags & libc::O_APPEND != 0;
    fds::set_candidate(fd, credit, shared || may_be_shared(fd));
    if may_be_shared(fd) {
        let _ = process::share(fd, With::Anybody);
    }
    fd
}

/// Gives a descriptor that was opened for writing its [`Writer`], at once: nobody can be in a call on
/// a descriptor that its open has not returned, so its offset can be ours in a process of many
/// threads, too. `None` where the mode has nothing to add to what the kernel does.
fn note_writer(fd: c_int, flags: c_int, mode: Mode, declared: bool) -> Option<c_int> {
    let stat = regular_file(fd)?;
    let kind = adit_pmem::kind_of_fd(fd);
    if kind == MediumKind::Other && adit_pmem::is_synthetic_fd(fd) {
        // A switch of the kernel's, of which no mode promises anything.
        return None;
    }
    if stat.st_nlink == 0 && !writer::is_linkable(flags) {
        // Nor of a file that no crash leaves anything of.
        return None;
    }
    let stageable = flags & KERNEL_ONLY == 0 && stat.st_nlink > 0 && kind != MediumKind::Other;
    // What is durable by its own flags, and in mode `atomic` what only the kernel writes.
    let plain = flags & libc::O_DSYNC != 0 || matches!(mode, Mode::Atomic | Mode::Posix);
    let offset = stageable.then_some(0);
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let writer = || {
        let writer = Writer::new(mode, flags, stageable).on(kind);
        if declared { writer.declared() } else { writer }
    };
    let promote = || {
        fds::word(fd)?;
        let ofd = (stageable || (!plain && writes))
            .then(|| Backing::Writer(writer()))
            .and_then(|backing| ofd::allocate(backing, None, offset))?;
        fds::set_promoted(fd, &ofd);
        Some(ofd)
    };
    let required = init::required() && writes && mode != Mode::Posix;
    if stageable {
        wait_while(
            process::has_vfork_children,
            if required { process::MAKING } else { CHILDS },
        );
    }
    // Before a call can hold something that a handler of a fault that was sent would wait for.
    let _ = signal::ready();
    let mut ofd = promote();
    let mut shared = may_be_shared(fd);
    let way = (shared && required && stageable).then(RightOfWay::ask);
    for _ in 0..ATTEMPTS {
        let begun = process::begun();
        if !(shared && way.is_some() && is_ours_alone(fd, flags)) {
            break;
        }
        forget(fd);
        ofd = promote();
        // What begins from here on finds it.
        shared = process::begun() != begun || may_be_shared(fd);
    }
    if declared
        && !(stageable && ofd.is_some())
        // It is the kernel's from here on. Who only reads may read what is in the file.
        && let Err(errno) = declared::bar_or_wait_for_no_answer(fd)
        && writes
    {
        close(fd);
        sys::set_errno(errno);
        return Some(-1);
    }
    if declared && stageable {
        stage::take_seat(fd, stat.st_dev);
    }
    if shared {
        // Nothing is staged yet that could fail.
        let _ = process::share(fd, With::Anybody);
    }
    if required {
        let staged = match ofd.as_ref().and_then(|ofd| Some((ofd, ofd.writer()?))) {
            Some((_, writer)) if !writer.must_stage() => Ok(()),
            Some((ofd, writer)) => writer.stage(ofd, fd),
            // What the mode adds nothing to is the kernel's.
            None if plain && mode == Mode::Sync => Ok(()),
            None => Err(libc::EOPNOTSUPP),
        };
        if let Err(refusal) = staged {
            close(fd);
            sys::set_errno(refusal);
            return Some(-1);
        }
    }
    ofd.map(|_| fd)
}

/// How often a file is opened again because of processes that are being made.
const ATTEMPTS: usize = 100;

/// How long a child of `vfork` is waited for, which mostly does no more than to execute something.
const CHILDS: Duration = Duration::from_millis(100);

/// Whether others may have a descriptor that was just opened or promoted: a process that is being made, or a child of `vfork` that
/// runs and does not have it in its list.
pub(crate) fn may_be_shared(fd: c_int) -> bool {
    process::shares(fd) || process::has_vfork_children()
}

/// Waits as long as that is so, but hardly longer than this.
fn wait_while(is_so: impl Fn() -> bool, at_most: Duration) {
    let mut patience = Patience::of(at_most);
    while is_so() && patience.waits() {}
}

/// Opens the file of a new descriptor once more, as a process that was just made may have the description; whether the number
/// leads to one that only this process has then, if no process was made meanwhile. No such process knows the number, as
/// the program does not know it yet; but a child of `vfork` may be told by its parent, so it is waited for.
fn is_ours_alone(fd: c_int, flags: c_int) -> bool {
    let ends = || may_be_shared(fd) && !process::shares_for_good();
    wait_while(ends, RightOfWay::LASTS);
    // The locks that the program has on the file would end with the first description.
    !may_be_shared(fd) && !record_locks::are_on(fd) && opened_again(fd, flags)
}

/// Gives a descriptor that nobody knows yet a description whose writes wait for the medium, as libc will make them itself. Not
/// where the program has locks on the file, which would end with the first description.
pub(crate) fn write_through(fd: c_int, flags: c_int) {
    let at = sys::lseek(fd as usize, 0, libc::SEEK_CUR as usize);
    let opened = !record_locks::are_on(fd) && opened_again(fd, flags | libc::O_DSYNC);
    if let (true, Ok(at @ 1..)) = (opened, at) {
        let _ = sys::lseek(fd as usize, at, libc::SEEK_SET as usize);
    }
}

/// Puts another description of the file behind its number, which begins at the start.
fn opened_again(fd: c_int, flags: c_int) -> bool {
    let made = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    let (dir, path) = (libc::AT_FDCWD as usize, ProcPath::of_file(fd));
    let closes = match ends_with_us(fd) {
        true => libc::O_CLOEXEC,
        false => 0,
    };
    let _brief = brief::begin();
    let again = (flags & !made) | libc::O_CLOEXEC;
    let Ok(other) = sys::openat(dir, path.as_ptr(), again as usize, 0) else {
        return false;
    };
    let renamed = sys::dup3(other, fd as usize, closes as usize);
    let _ = sys::close(other);
    renamed.is_ok()
}

/// After a call that returns a descriptor which is no file: a word left over means that the number
/// was closed where we could not see it (PROTOCOLS F6).
pub(crate) extern "C" fn returned(_a: usize, _b: usize, _c: usize, fd: c_int) -> c_int {
    if vfork::in_child() {
        vfork::has_left(fd);
    } else {
        forget_stale(fd);
    }
    fd
}

/// As [`returned`] for calls that fill an array of two.
fn returned_pair(result: c_int, pair: *const c_int) -> c_int {
    if result == 0 {
        // SAFETY: libc has just stored both there.
        let pair = unsafe { [pair.read(), pair.add(1).read()] };
        for fd in pair {
            returned(0, 0, 0, fd);
        }
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
    if seen & fds::CANDIDATE == 0 || vfork::in_child() {
        return;
    }
    let verdict = match init::credit() {
        None => Verdict::Foreign,
        Some(_) => look_at(fd, seen & fds::SHARED != 0, seen & fds::WAITED != 0),
    };
    let new = match &verdict {
        Verdict::Foreign => 0,
        Verdict::Later(credit) => {
            (seen & fds::SHARED) | fds::CANDIDATE | fds::WAITED | (*credit << fds::CREDIT_SHIFT)
        }
        Verdict::Promote(ofd) => ofd.word(),
    };
    let written = fds::change(fd, seen, new);
    if let Verdict::Promote(ofd) = verdict {
        if !written {
            ofd.hand_over_offset(fd);
            ofd.drop_name(fd);
        } else if may_be_shared(fd) {
            let _ = process::share(fd, With::Anybody);
        }
    }
}

/// Credit for a file that is too small or too strange today and may not be tomorrow.
pub(crate) const LATER: u64 = 1 << 20;
/// The most that a large file's reader is made to wait: promotion costs some tens of microseconds,
/// which two per cent of this many bytes through the kernel exceed.
const PATIENCE: u64 = 32 << 20;
/// Below this a file's reads nearly always touch its last page, which is the kernel's.
pub(crate) const SMALLEST: u64 = 4 * 4096;

/// What is to go through the kernel before a file is mapped: a pass over it in calls of a page, or as
/// much as makes promotion disappear in it.
pub(crate) fn price_of_a_look(size: u64) -> u64 {
    size.saturating_mul(5).div_ceil(2).min(PATIENCE)
}

/// Whether a mapping of a file on this medium can serve it.
pub(crate) fn is_mappable(kind: MediumKind, stat: &libc::stat) -> bool {
    // Huge pages of tmpfs are mapped whole across the end of the file, so the probe behind a range
    // would find a page where there is no file (the kernel keeps it so on purpose). tmpfs tells by
    // its preferred block size that it uses them.
    let huge = kind == MediumKind::Ram && stat.st_blksize > 4096;
    kind != MediumKind::Other && !huge && !init::address_space_limited()
}

/// Whether the program may seal the file: not while it is mapped to be written. Files of a mounted tmpfs are sealed
/// against that.
fn may_be_sealed(kind: MediumKind, fd: c_int) -> bool {
    let seals = || sys::fcntl(fd as usize, libc::F_GET_SEALS as usize, 0);
    kind == MediumKind::Ram && seals().is_ok_and(|seals| seals as c_int & libc::F_SEAL_SEAL == 0)
}

enum Verdict {
    Foreign,
    Later(u64),
    Promote(Users<'static>),
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
    if mode == libc::O_WRONLY
        && flags & KERNEL_ONLY == 0
        && let Some(appends) = appends::asked()
    {
        let ofd = appends::look_at(fd, flags, !shared, appends);
        return ofd.map_or(Verdict::Foreign, Verdict::Promote);
    }
    if mode == libc::O_WRONLY || flags & KERNEL_ONLY != 0 {
        return Verdict::Foreign;
    }
    let kind = adit_pmem::kind_of_fd(fd);
    if !is_mappable(kind, &stat) || (mode == libc::O_RDWR && may_be_sealed(kind, fd)) {
        return Verdict::Foreign;
    }
    let size = stat.st_size as u64;
    if size < SMALLEST {
        return Verdict::Later(LATER);
    }
    let adoption = init::adoption(kind);
    if !waited && adoption.percent > 0 {
        return Verdict::Later(price_of_a_look(size));
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
    match ofd::allocate(
        Backing::Direct(file),
        slot,
        own_offset(fd, shared || append),
    ) {
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

pub(crate) fn regular_file(fd: c_int) -> Option<libc::stat> {
    stat_of(fd).filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// What the kernel says of a descriptor's file.
pub(crate) fn stat_of(fd: c_int) -> Option<libc::stat> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    sys::fstat(fd as usize, stat.as_mut_ptr() as usize).ok()?;
    // SAFETY: all zero is a valid stat, and the kernel has filled it.
    Some(unsafe { stat.assume_init() })
}

/// What the file system of `fd` is.
pub(crate) fn file_system(fd: c_int) -> Option<libc::statfs> {
    let mut fs = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    sys::fstatfs(fd as usize, fs.as_mut_ptr() as usize).ok()?;
    // SAFETY: all zero is a valid statfs, and the kernel has filled it.
    Some(unsafe { fs.assume_init() })
}

fn has_capabilities(fd: c_int) -> bool {
    sys::fgetxattr(fd as usize, c"security.capability".as_ptr() as usize, 0, 0).is_ok()
}

/// Makes `fd` foreign because its number already means something else: a word left over says that
/// the old descriptor was closed where we could not see it. The old file's times are left to the
/// monitor; settling them through this number would touch the new file.
fn forget_stale(fd: c_int) {
    if let Some(ofd) = fds::take(fd) {
        ofd.drop_name(-1);
    }
}

/// Makes `fd` foreign because its number is about to mean something else.
pub(crate) fn forget(fd: c_int) {
    if let Some(ofd) = fds::take(fd) {
        ofd.drop_name(fd);
    }
}

/// What a hook of the refusing shapes says: zero to go on, or why the call must not be made.
pub(crate) fn refusal(ready: Result<(), c_int>) -> c_int {
    ready.err().unwrap_or(0)
}

/// The answer of a refused call: -1, with errno set.
pub(crate) extern "C" fn minus_one(errno: c_int) -> i64 {
    sys::to_libc(Err(errno)) as i64
}

/// Gives everything about `fd`'s description back to the kernel: its offset, and all its names in
/// this process become foreign. Right at any time. What cannot be published stays as it is.
pub(crate) fn release(fd: c_int) -> Result<(), c_int> {
    loop {
        match fds::kind(fd) {
            Kind::Foreign => return Ok(()),
            Kind::Candidate(word) => {
                if fds::change(fd, word, 0) {
                    return Ok(());
                }
            }
            Kind::Promoted(ofd) => {
                ofd.hand_over(fd)?;
                // What another thread has closed meanwhile is no name of this any more.
                fds::all()
                    .filter(|&name| fds::change(name, ofd.word(), 0))
                    .for_each(|name| ofd.enter().drop_name(name));
                return Ok(());
            }
        }
    }
}

/// Before libc keeps `fd` to itself.
pub(crate) extern "C" fn before_keeping(fd: c_int) -> c_int {
    refusal(release(fd))
}

/// Gives every description back to the kernel and promotes none again: for processes that change
/// what they may do, so that no later call of ours surprises a sandbox (PROTOCOLS C5). What cannot be
/// published stays staged: a program that gives up its rights must not be kept from it.
pub(crate) extern "C" fn release_all() {
    if vfork::in_child() {
        // Later it might not be able to ask.
        let _ = process::share_all();
        return;
    }
    // While it is known that anything is staged.
    stack::with_room(|| {
        init::stop_promoting();
        for fd in fds::all() {
            let _ = release(fd);
        }
        closed::wait();
        stage::leave();
    });
}

/// Before a call that may leave holes in the file of `fd`.
pub(crate) extern "C" fn before_holes(fd: c_int) -> c_int {
    let Some(ofd) = fds::promoted(fd) else {
        return 0;
    };
    match ofd.file() {
        Some(file) => {
            file.holes_from(0);
            0
        }
        None => refusal(ofd.hand_over(fd)),
    }
}

/// Before `truncate`, which names its file by path: any of ours may be meant.
pub(crate) fn before_holes_somewhere() {
    for (_, ofd) in fds::each_promoted() {
        match ofd.writer() {
            Some(writer) => writer.holes_somewhere(),
            None => drop(ofd.file().map(|file| file.holes_from(0))),
        }
    }
}

/// Before the file of `fd` is mapped: the mapping shows what the kernel has. Who asks for `MAP_SYNC` asks whether the file
/// can be mapped like this at all, as databases do of their logs: where it cannot, it stays as it is.
pub(crate) extern "C" fn before_mapping(
    _address: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> c_int {
    let mapped = if flags & libc::MAP_SYNC == 0 {
        Ok(())
    } else {
        can_be_mapped(len, protection, flags, fd, offset)
    };
    refusal(mapped.and_then(|()| unstage(fd)))
}

/// Whether the kernel maps a file like this, somewhere.
fn can_be_mapped(
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<(), c_int> {
    let flags = flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let (protection, flags) = (protection as usize, flags as usize);
    let address = sys::mmap(0, len, protection, flags, fd as usize, offset as usize)?;
    let _ = sys::munmap(address, len);
    Ok(())
}

/// Before `madvise(address, len, advice)`, which may punch a hole into the file that is mapped there.
pub(crate) extern "C" fn before_advice(_address: usize, _len: usize, advice: c_int) {
    if advice == libc::MADV_REMOVE {
        before_holes_somewhere();
    }
}

/// Before `aio_read(request)` and `aio_write(request)`, which use the descriptor in other threads.
pub(crate) extern "C" fn before_aio(request: *const libc::aiocb) -> c_int {
    if !init::staging() {
        return 0;
    }
    // SAFETY: libc reads the same field next.
    refusal(unstage(unsafe { (*request).aio_fildes }))
}

/// Before `aio_fsync(operation, request)`.
pub(crate) extern "C" fn before_aio_fsync(_operation: c_int, request: *const libc::aiocb) -> c_int {
    before_aio(request)
}

/// After `aio_error(request)`: the program learns that it is done, so what was written is durable where writes are.
pub(crate) extern "C" fn aio_was_asked(
    request: *const libc::aiocb,
    _b: usize,
    _c: usize,
    error: c_int,
) -> c_int {
    match error {
        0 => sync_written(request).err().unwrap_or(0),
        // Under way, or failed.
        error => error,
    }
}

/// After `aio_return(request)`, which may be the first that the program asks.
pub(crate) extern "C" fn aio_has_returned(
    request: *const libc::aiocb,
    _b: usize,
    _c: usize,
    done: c_int,
) -> isize {
    match sync_written(request) {
        // No request is longer.
        Ok(()) => done as isize,
        Err(errno) => minus_one(errno) as isize,
    }
}

/// libc's threads have written it themselves.
fn sync_written(request: *const libc::aiocb) -> Result<(), c_int> {
    if !init::staging() {
        return Ok(());
    }
    // SAFETY: libc has just read what it says of the same request.
    let (fd, operation) = unsafe { ((*request).aio_fildes, (*request).aio_lio_opcode) };
    if operation == libc::LIO_WRITE && is_durable(fd) {
        sys::fdatasync(fd as usize)?;
    }
    Ok(())
}

/// Whether what is written through `fd` is durable when the call returns.
fn is_durable(fd: c_int) -> bool {
    let durable = |ofd: Users| ofd.writer().is_some_and(|own| own.kernel_flags() != 0);
    !vfork::in_child() && fds::promoted(fd).is_some_and(durable)
}

/// Gives what is staged through `fd` to the kernel, for good.
pub(crate) fn unstage(fd: c_int) -> Result<(), c_int> {
    match fds::served(fd)? {
        Some(ofd) if ofd.writer().is_some() => ofd.hand_over(fd),
        _ => Ok(()),
    }
}

/// The kernel is about to use the offset of `fd`.
pub(crate) fn hand_over(fd: c_int) -> Result<(), c_int> {
    fds::served(fd)?.map_or(Ok(()), |ofd| ofd.hand_over(fd))
}

/// Before a call that uses the offset of its third argument.
pub(crate) extern "C" fn before_third(_a: usize, _b: usize, fd: c_int) {
    let _ = hand_over(fd);
}

/// Before a call of the kernel's that uses the offset of `fd`.
pub(crate) extern "C" fn before_offset(fd: c_int) -> c_int {
    refusal(hand_over(fd))
}

/// After `dprintf(fd, …)`, which has written so many bytes: they are durable where writes are. libc has written them itself,
/// in some versions through a slot of a stream that is not served.
pub(crate) extern "C" fn formatted(fd: c_int, _b: usize, _c: usize, written: c_int) -> c_int {
    if !is_durable(fd) {
        return written;
    }
    match sys::fdatasync(fd as usize) {
        Ok(_) => written,
        Err(errno) => minus_one(errno) as c_int,
    }
}

pub(crate) extern "C" fn close(fd: c_int) -> c_int {
    if vfork::in_child() {
        vfork::has_left(fd);
        return sys::to_libc(sys::close(fd as usize)) as c_int;
    }
    let closed = in_turn(fd, || {
        let published = publish(fd);
        forget(fd);
        let closed = sys::close(fd as usize);
        closed.and_then(|zero| published.map(|()| zero))
    });
    sys::to_libc(closed) as c_int
}

/// Takes the number from a description while no other thread is in the middle of a write by it: the kernel goes on with the
/// file that a call has begun with, and a write that has claimed its place there would find another one by the number.
fn in_turn<T>(fd: c_int, leave: impl FnOnce() -> T) -> T {
    let writer = fds::promoted(fd).filter(|ofd| ofd.writer().is_some());
    let _turn = writer.as_ref().and_then(|ofd| ofd.turn_to_leave());
    leave()
}

/// Publishes what is staged through `fd` and leaves it to the kernel, as when its last name is about to
/// go: what is staged has one.
pub(crate) fn publish(fd: c_int) -> Result<(), c_int> {
    let Some(ofd) = fds::promoted(fd) else {
        return Ok(());
    };
    ofd.writer()
        .map_or(Ok(()), |writer| writer.finish(&ofd, fd))
}

/// The same at the end of this process: see [`Writer::finish_in_use`].
pub(crate) fn publish_at_the_end(fd: c_int) -> Result<(), c_int> {
    let Some(ofd) = fds::promoted(fd) else {
        return Ok(());
    };
    ofd.writer()
        .map_or(Ok(()), |writer| writer.finish_in_use(&ofd, fd))
}

/// See [`Writer::put_down`].
pub(crate) fn put_down(fd: c_int) {
    if let Some(ofd) = fds::promoted(fd)
        && let Some(writer) = ofd.writer()
    {
        // What cannot be published stays staged, as when it is closed.
        let _ = writer.put_down(&ofd, fd);
    }
    declared::put_down(fd);
}

/// Before the times of a file are set by its descriptor: as `utimensat` is about to set them, what is staged is published
/// with them. Where that cannot be it is published before.
pub(crate) fn set_times(fd: c_int, times: usize) {
    // libc's own call sets them once more, or tells the error.
    let set = || match sys::utimensat(fd as usize, 0, times, 0) {
        Ok(_) => Ok(()),
        Err(errno) => Err(Errno::from_raw_os_error(errno)),
    };
    let ofd = fds::promoted(fd).filter(|_| !vfork::in_child());
    let writer = ofd.as_ref().and_then(|ofd| ofd.writer());
    if !writer.is_some_and(|writer| writer.set_times(fd, set)) {
        put_down(fd);
    }
}

/// Before `close_range(first, last, flags)`.
pub(crate) extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) {
    const CLOSE_RANGE_UNSHARE: c_int = 2;
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    // The kernel refuses it, and nothing is closed.
    if first > last || flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) != 0 {
        return;
    }
    if vfork::in_child() {
        // With other flags it may not be closed.
        if flags & !CLOSE_RANGE_UNSHARE == 0 {
            vfork::has_left_all(first..=last);
        }
        return;
    }
    // Two threads' descriptors are not the same from here on, and one table cannot tell them apart.
    if flags & CLOSE_RANGE_UNSHARE != 0 && !init::single_threaded() {
        release_all();
    }
    if flags & CLOSE_RANGE_CLOEXEC == 0 {
        fds::all()
            .filter(|&fd| (first..=last).contains(&(fd as c_uint)))
            .for_each(|fd| {
                // A range that is one is closed; with other flags it may not be.
                if flags == 0 && is_the_parents(fd) && !process::has_vfork_children() {
                    forget(fd);
                } else {
                    forget_handing_over(fd);
                }
            });
    }
}

/// Before `closefrom(first)`.
pub(crate) extern "C" fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// Before `daemon`, which puts /dev/null on the standard descriptors and forks.
pub(crate) extern "C" fn before_daemon() -> c_int {
    // The kernel has them already, but for what was put there behind our back.
    for fd in 0..3 {
        let _ = release(fd);
    }
    refusal(process::share_all())
}

/// Before `login_tty(fd)`, which puts `fd` on the standard descriptors and closes it.
pub(crate) extern "C" fn before_login(fd: c_int) {
    for fd in (0..3).chain([fd]) {
        let _ = release(fd);
    }
}

/// The call that follows may fail and leave `fd` open, so its offset goes to the kernel first. What
/// cannot be published is the monitor's from here on: these calls have no way to say so.
pub(crate) fn forget_handing_over(fd: c_int) {
    in_turn(fd, || {
        let _ = hand_over(fd);
        forget(fd);
    });
}

/// Before `fd` gets another name: the engine knows a description by one number, which may be closed
/// first. What cannot be published keeps its one name; with two, it would be published through the
/// number of another file one day. Another thread that uses the new number does so by the kernel's offset until it is in
/// the table, and may close the old one before.
fn before_alias(fd: c_int) -> Result<(), c_int> {
    let Some(ofd) = fds::served(fd)? else {
        return Ok(());
    };
    match ofd.writer() {
        Some(writer) => writer.unstage(&ofd, fd),
        None if init::single_threaded() => Ok(()),
        None => ofd.hand_over(fd),
    }
}

/// Whether `exec` closes it.
pub(crate) fn ends_with_us(fd: c_int) -> bool {
    sys::fcntl(fd as usize, libc::F_GETFD as usize, 0)
        .is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize != 0)
}

/// Before `exec` closes `fd` no more. Another thread may be starting a command just now, that found it to be closed.
pub(crate) fn before_inheriting(fd: c_int) -> Result<(), c_int> {
    if ends_with_us(fd) {
        unstage(fd)
    } else {
        Ok(())
    }
}

/// Whether libc may read and write through the number `fd` inside itself: of the standard streams, and
/// while the slots are libc's of whatever is open and not ours.
fn may_be_a_stream(fd: c_int) -> bool {
    let foreign = || fds::word(fd).is_some_and(|word| word.load(Ordering::SeqCst) == 0);
    let open = || sys::fcntl(fd as usize, libc::F_GETFD as usize, 0).is_ok();
    fd <= fds::LAST_STANDARD || (!stdio::serves() && foreign() && open())
}

/// `fd` is a new name of what `old` names; libc itself may use the number, or it is one that is always foreign.
fn alias(old: c_int, fd: c_int, of_stream: bool) {
    if vfork::in_child() {
        return vfork::has_left(fd);
    }
    forget_stale(fd);
    if of_stream || fd <= fds::LAST_STANDARD || fds::word(fd).is_none() {
        // What is staged has become the kernel's before it got this name.
        let _ = process::share(old, With::Anybody);
        return;
    }
    loop {
        match fds::kind(old) {
            Kind::Foreign => return,
            Kind::Candidate(word) => {
                // Two words cannot share one offset: only positional reads can be served from here on.
                if fds::change(old, word, word | fds::SHARED) {
                    return fds::set_candidate(fd, word >> fds::CREDIT_SHIFT, true);
                }
            }
            Kind::Promoted(ofd) => {
                // Without a name left it was closed meanwhile, and the new one is the kernel's.
                if ofd.add_name() {
                    fds::set_promoted(fd, &ofd);
                }
                return;
            }
        }
    }
}

pub(crate) extern "C" fn dup(old: c_int) -> c_int {
    if let Err(errno) = before_alias(old) {
        return sys::to_libc(Err(errno)) as c_int;
    }
    type Function = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    let fd = unsafe { call_real!(table::dup, Function)(old) };
    if fd >= 0 {
        alias(old, fd, false);
    }
    fd
}

fn is_known(fd: c_int) -> bool {
    fds::word(fd).is_some_and(|word| word.load(Ordering::SeqCst) != 0)
}

/// Whether a descriptor of this process may have the number. The kernel refuses others before it looks at anything.
fn is_a_number(fd: c_int) -> bool {
    let below = init::limit(libc::RLIMIT_NOFILE).is_none_or(|limit| (fd as u64) < limit);
    fd >= 0 && below
}

/// What `dup2` and `dup3` do before and after: `old` gets the name `new`, which may be in use.
fn dup_onto(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if old == new || (is_known(old) && !is_a_number(new)) {
        return call();
    }
    if let Err(errno) = before_alias(old) {
        return sys::to_libc(Err(errno)) as c_int;
    }
    if vfork::in_child() {
        let fd = call();
        vfork::has_left(fd);
        return fd;
    }
    let known = is_known(old);
    // Nothing happens to it where the call fails.
    if is_known(new) && sys::fcntl(old as usize, libc::F_GETFD as usize, 0).is_err() {
        return call();
    }
    let of_stream = known && may_be_a_stream(new);
    forget_handing_over(new);
    let fd = call();
    if fd >= 0 {
        alias(old, fd, of_stream);
    }
    fd
}

pub(crate) extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int) -> c_int;
    dup_onto(old, new, || {
        // SAFETY: libc's own function with the program's own arguments.
        unsafe { call_real!(table::dup2, Function)(old, new) }
    })
}

pub(crate) extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    type Function = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    // SAFETY: libc's own function with the program's own arguments.
    let call = || unsafe { call_real!(table::dup3, Function)(old, new, flags) };
    // The kernel refuses other flags, and nothing happens to either descriptor.
    if flags & !libc::O_CLOEXEC != 0 {
        return call();
    }
    dup_onto(old, new, call)
}

const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
const F_SETOWN_EX: c_int = 15;
const F_GETOWN_EX: c_int = 16;

/// Before `fcntl(fd, command, argument)` on a descriptor with a word.
pub(crate) extern "C" fn before_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    refusal(ready_for_fcntl(fd, command, argument))
}

pub(crate) fn ready_for_fcntl(fd: c_int, command: c_int, argument: usize) -> Result<(), c_int> {
    match command {
        // The kernel's answer has to be that of the program's own flags.
        libc::F_GETFL => fds::served(fd).map(drop),
        libc::F_SETFD if argument & libc::FD_CLOEXEC as usize == 0 => before_inheriting(fd),
        // A second name of what is staged would be published through the number of another file.
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if is_a_number(argument as c_int) => before_alias(fd),
        // New status flags may add O_APPEND or O_DIRECT: to a writer that is the kernel's alone, any
        // may come.
        libc::F_SETFL if is_writer(fd) => unstage(fd),
        libc::F_SETFL => release(fd),
        // A range that begins at a number needs neither the offset nor the size, and nobody else has
        // a staged file open, so locks on it are the kernel's business alone.
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
            if is_writer(fd) && begins_at_a_number(argument as *const libc::flock) =>
        {
            // To ask later would end the lock.
            ask_the_parent(fd)
        }
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => hand_over(fd),
        // The lease is the monitor's, and so is who is told when it breaks.
        libc::F_GETLEASE
        | libc::F_SETLEASE
        | libc::F_GETOWN
        | libc::F_SETOWN
        | F_GETSIG
        | F_SETSIG
        | F_GETOWN_EX
        | F_SETOWN_EX => unstage(fd),
        _ => Ok(()),
    }
}

/// See [`Writer::is_the_parents`].
fn is_the_parents(fd: c_int) -> bool {
    let ofd = fds::promoted(fd);
    ofd.is_some_and(|ofd| ofd.writer().is_some_and(Writer::is_the_parents))
}

/// See [`Writer::ask_the_parent`].
fn ask_the_parent(fd: c_int) -> Result<(), c_int> {
    let Some(ofd) = fds::promoted(fd) else {
        return Ok(());
    };
    ofd.writer()
        .map_or(Ok(()), |writer| writer.ask_the_parent(&ofd, fd))
}

fn is_writer(fd: c_int) -> bool {
    fds::promoted(fd).is_some_and(|ofd| ofd.writer().is_some())
}

fn begins_at_a_number(lock: *const libc::flock) -> bool {
    let whence = lock as usize + core::mem::offset_of!(libc::flock, l_whence);
    let mut number = [0; size_of::<libc::c_short>()];
    let copied = pointers::read(whence, &mut number);
    copied.is_some() && libc::c_short::from_ne_bytes(number) == libc::SEEK_SET as libc::c_short
}

/// After `fcntl` on a descriptor with a word; returns what the program is to see.
pub(crate) extern "C" fn after_fcntl(
    fd: c_int,
    command: c_int,
    _argument: usize,
    result: c_int,
) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if result >= 0 => alias(fd, result, false),
        libc::F_GETFL => {
            if let Some(ofd) = fds::promoted(fd)
                && let Some(writer) = ofd.writer()
            {
                return writer.status_flags(&ofd, fd, result);
            }
        }
        _ => {}
    }
    result
}
