//! libc's own streams.
//!
//! stdio calls the kernel inside libc, where no interposed name is seen. Its five ways there are the
//! read, write, seek, close and stat slots of two tables, `_IO_file_jumps` and `_IO_wfile_jumps`. Once
//! a program opens a stream that matters, these slots are replaced, for all streams at once, by
//! functions that look at the descriptor's word exactly as the interposed `read`, `write`, `lseek`,
//! `close` and `fstat` do: for a foreign descriptor libc's own slot is what runs. From then on the
//! descriptor of such a stream is as good as one that the program opened itself.
//!
//! In `posix` mode streams stay libc's: few programs would gain (random reads of a file that is read
//! many times), and all would pay for the replacement. In the modes that stage files, streams that may
//! write are served.
//!
//! **In doubt nothing is replaced, for ever.** The tables are part of libc's ABI, but their layout is
//! not promised. So the slots must hold what libc exports under their names, a stream must look as
//! expected, and after the replacement a stream over a file in memory must read, write, move, tell its
//! size and close, byte for byte, or all goes back. Each slot is one pointer and one store, and for
//! every stream that is open the old and the new function do the same, so other threads may use
//! streams meanwhile.
//!
//! # Safety
//! Streams are the program's: alive, and around the slots locked, as C demands. The fields used here
//! lie where [`Trial::looks_right`] has seen them. The tables are libc's, are never unmapped, and their words
//! are accessed as atomics.
#![allow(unsafe_code)]

use crate::real::{self, call_real};
use crate::stubs::stub;
use crate::{data, declared, descriptors, fds, init, names, sys, table, vfork};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use libc::FILE;

/// Where a stream keeps its flags, descriptor, second flags, known offset, and table.
const FLAGS: usize = 0;
pub(crate) const FILENO: usize = 112;
const FLAGS2: usize = 116;
const OFFSET: usize = 144;
const TABLE: usize = 216;

/// The flag of a stream that moves to the end before it writes.
const APPENDS: u32 = 0x1000;
/// What the upper half of the flags always says.
const MAGIC: u32 = 0xfbad_0000;
/// The flag behind `ferror`.
const ERROR: u32 = 0x20;
/// The second flag of a stream whose calls must not be cancellation points.
const NOT_CANCELLED: u32 = 2;

/// Looked at by the stubs: whether streams may matter in this process.
pub(crate) static WANTED: AtomicU32 = AtomicU32::new(0);
/// Whether streams that only read are served, too.
static READERS: AtomicBool = AtomicBool::new(false);

/// At the start: `staging` says that the mode promises more than the kernel does; `asked` is what the
/// environment says: 0 for never, 1 for every stream in every mode.
pub(crate) fn configure(staging: bool, asked: Option<u64>) {
    READERS.store(asked == Some(1), Ordering::Relaxed);
    let wanted = asked.map_or(staging, |asked| asked != 0);
    WANTED.store(wanted.into(), Ordering::Relaxed);
}

/// A field of a stream.
///
/// # Safety
/// `file` is a stream; `at` is one of the constants above.
unsafe fn field<T: Copy>(file: *const FILE, at: usize) -> T {
    // SAFETY: the caller's promise; streams are longer than this and aligned for pointers.
    unsafe { file.cast::<u8>().add(at).cast::<T>().read_volatile() }
}

/// As [`field`], for a stream that the caller may change.
///
/// # Safety
/// As [`field`].
unsafe fn set_field<T: Copy>(file: *mut FILE, at: usize, value: T) {
    // SAFETY: the caller's promise.
    unsafe { file.cast::<u8>().add(at).cast::<T>().write_volatile(value) }
}

fn fileno(file: *const FILE) -> c_int {
    // SAFETY: called by the slots, on streams.
    unsafe { field(file, FILENO) }
}

/// The slots that are replaced: where in a table, and what libc calls its own.
const FIRST: usize = 14;
const SLOTS: usize = 5;
const NAMES: [&CStr; SLOTS] = [
    c"_IO_file_read",
    c"_IO_file_write",
    c"_IO_file_seek",
    c"_IO_file_close",
    c"_IO_file_stat",
];

type Slots = [*mut (); SLOTS];

/// libc's own functions; null until they are known, which is before ours are called.
static LIBC_READ: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static LIBC_WRITE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static LIBC_SEEK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static LIBC_CLOSE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static LIBC_STAT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static LIBC: [&AtomicPtr<()>; SLOTS] =
    [&LIBC_READ, &LIBC_WRITE, &LIBC_SEEK, &LIBC_CLOSE, &LIBC_STAT];

stub!(slot_data read_slot LIBC_READ, read);
stub!(slot_data write_slot LIBC_WRITE, write);
stub!(slot_served seek_slot LIBC_SEEK, seek);
stub!(slot_live close_slot LIBC_CLOSE, close);
stub!(slot_served stat_slot LIBC_STAT, stat);

fn ours() -> Slots {
    [
        read_slot as *mut (),
        write_slot as *mut (),
        seek_slot as *mut (),
        close_slot as *mut (),
        stat_slot as *mut (),
    ]
}

extern "C" fn read(file: *mut FILE, into: *mut c_void, len: isize) -> isize {
    data::read(fileno(file), into, len as usize)
}

/// As libc's: goes on after a short write, notes an error, keeps what the stream knows of its offset.
extern "C" fn write(file: *mut FILE, from: *const c_void, len: isize) -> isize {
    let mut done = 0;
    while done < len {
        let rest = from.cast::<u8>().wrapping_offset(done);
        let now = data::write(fileno(file), rest.cast(), (len - done) as usize);
        if now < 0 {
            // SAFETY: libc holds the stream's lock around its slots.
            unsafe { set_field(file, FLAGS, field::<u32>(file, FLAGS) | ERROR) };
            break;
        }
        done += now;
    }
    // SAFETY: as above.
    unsafe {
        let known: i64 = field(file, OFFSET);
        if known >= 0 {
            set_field(file, OFFSET, known + done as i64);
        }
    }
    done
}

extern "C" fn seek(file: *mut FILE, offset: i64, whence: c_int) -> i64 {
    data::lseek(fileno(file), offset, whence)
}

extern "C" fn close(file: *mut FILE) -> c_int {
    descriptors::close(fileno(file))
}

extern "C" fn stat(file: *mut FILE, into: *mut libc::stat) -> c_int {
    crate::stat::fstat64(fileno(file), into)
}

// What happens to streams before they are used.

/// For libc to make the stream.
const GO_ON: isize = 0;
/// It could not be made; errno says why.
const FAILED: isize = -1;

/// Before a stream without a name is made: nothing is known of it yet.
pub(crate) extern "C" fn before_temporary() -> isize {
    GO_ON
}

/// Before `fopen(path, mode)`: as before any open, what this process stages itself is published. Where the file has to
/// be cut in a transaction the stream is made here.
pub(crate) extern "C" fn before_open(path: *const c_char, mode: *const c_char) -> isize {
    names::lend(libc::AT_FDCWD, path);
    // SAFETY: libc reads the same string next.
    let letters = unsafe { CStr::from_ptr(mode) };
    bar_before_a_cut(path, letters);
    match cutting(letters).and_then(|flags| names::open_for_stream(path, flags)) {
        None => GO_ON,
        Some(opened) => opened
            .and_then(|(fd, made)| cut_stream(fd, mode, made))
            .unwrap_or_else(|errno| {
                sys::set_errno(errno);
                FAILED
            }),
    }
}

/// Letters of a mode that libc reads behind the first. It passes over others.
const LETTERS: usize = 6;

/// The flags with which `fopen` opens a file that it cuts; `None` of other modes, and of those that `fdopen` does not
/// know.
fn cutting(mode: &CStr) -> Option<c_int> {
    let letters = mode.to_bytes().strip_prefix(b"w")?;
    let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY;
    let add = |flags: c_int, letter: &u8| match letter {
        b'+' => Some(flags & !libc::O_ACCMODE | libc::O_RDWR),
        b'e' => Some(flags | libc::O_CLOEXEC),
        b'x' | b'm' | b'c' => None,
        _ => Some(flags),
    };
    if letters.contains(&b',') {
        return None;
    }
    letters.iter().take(LETTERS).try_fold(flags, add)
}

/// Before libc opens a stream itself and cuts the file by that: what is staged of a declared one goes to the file before, or
/// it would be published over the cut.
fn bar_before_a_cut(path: *const c_char, mode: &CStr) {
    let letters = mode.to_bytes();
    // Of those that are there already `x` cuts none.
    let cuts = letters.starts_with(b"w")
        && !letters
            .iter()
            .take(LETTERS + 1)
            .any(|letter| *letter == b'x');
    let is_libcs = || cutting(mode).is_none() || !init::declared().is_empty() && !ready();
    if cuts && is_libcs() {
        declared::bar_name(libc::AT_FDCWD, path, 0);
    }
}

/// A stream on a file that was opened to be cut, and may be `made` by that.
fn cut_stream(fd: c_int, mode: *const c_char, made: bool) -> Result<isize, c_int> {
    type Function = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
    // SAFETY: libc's own function with the program's own mode.
    let file = unsafe { call_real!(table::fdopen, Function)(fd, mode) };
    if file.is_null() {
        let errno = sys::errno();
        let _ = sys::close(fd as usize);
        return Err(errno);
    }
    let cut = if note(file) {
        names::cut_open(fd, made)
    } else {
        Err(sys::errno())
    };
    cut.map(|()| file as isize).inspect_err(|_| {
        // SAFETY: the program will not see it.
        unsafe { libc::fclose(file) };
    })
}

/// `freopen`, which puts another file on the stream's descriptor. What is buffered still belongs to the old one. Where the
/// new one has to be cut in a transaction it is put there here. Who prints to the stream meanwhile waits, as for libc's own.
pub(crate) extern "C" fn reopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    hand_over_before_reopen(path, file);
    // SAFETY: libc reads the same string next.
    let letters = unsafe { CStr::from_ptr(mode) };
    let cuts = (!path.is_null()).then(|| {
        bar_before_a_cut(path, letters);
        names::cuts_for_stream(path, cutting(letters)?)
    });
    let cuts = cuts.flatten().filter(|_| ready());
    // From here on: who flushes all streams waits for this one, with a lock that libc takes to change the file of any.
    let held = Held::of(file);
    let reopened = match cuts {
        Some(made) => reopen_and_cut(path, letters, file, made),
        None => reopen_by_libc(path, mode, file),
    };
    drop(held);
    reopened.unwrap_or_else(|refused| {
        let errno = match refused {
            Refused::ByLibc(errno) => errno,
            Refused::ByUs(errno) => {
                close_for_good(file);
                errno
            }
        };
        sys::set_errno(errno);
        ptr::null_mut()
    })
}

/// Why a stream has no file.
enum Refused {
    /// And is closed.
    ByLibc(c_int),
    /// Its file must be staged and cannot be.
    ByUs(c_int),
}

/// A stream that nobody else uses meanwhile, by a thread that is not cancelled: the lock would stay taken for ever.
struct Held {
    file: *mut FILE,
    _whole: NotCancelled,
}

impl Held {
    /// A stream of the program's.
    fn of(file: *mut FILE) -> Self {
        let whole = NotCancelled::until_dropped();
        // SAFETY: a stream that is alive.
        unsafe { flockfile(file) };
        Self {
            file,
            _whole: whole,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: what could not be opened is closed, and still the program's.
        unsafe { funlockfile(self.file) };
    }
}

/// Has this thread come to the end of what it does.
struct NotCancelled(c_int);

impl NotCancelled {
    fn until_dropped() -> Self {
        let mut before = 0;
        // SAFETY: a state of this thread's.
        unsafe { pthread_setcancelstate(NEVER_CANCELLED, &raw mut before) };
        Self(before)
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
    }
}

/// `PTHREAD_CANCEL_DISABLE`.
const NEVER_CANCELLED: c_int = 1;

unsafe extern "C" {
    fn flockfile(file: *mut FILE);
    fn funlockfile(file: *mut FILE);
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

fn reopen_by_libc(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> Result<*mut FILE, Refused> {
    let reopened = libcs_reopen(path, mode, file)?;
    if note(reopened) {
        Ok(reopened)
    } else {
        Err(Refused::ByUs(sys::errno()))
    }
}

fn libcs_reopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> Result<*mut FILE, Refused> {
    type Function = unsafe extern "C" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
    // SAFETY: libc's own function with the program's own stream, and strings that end.
    let reopened = unsafe { call_real!(table::freopen, Function)(path, mode, file) };
    if reopened.is_null() {
        Err(Refused::ByLibc(sys::errno()))
    } else {
        Ok(reopened)
    }
}

/// A stream that is refused is left as `freopen` leaves one for which there is no file, wherever libc keeps that: closed, and
/// still the program's.
fn close_for_good(file: *mut FILE) {
    hand_over_before_reopen(ptr::null(), file);
    let _ = libcs_reopen(c"".as_ptr(), c"r".as_ptr(), file);
}

fn hand_over_before_reopen(path: *const c_char, file: *mut FILE) {
    if !path.is_null() {
        names::lend(libc::AT_FDCWD, path);
    }
    // SAFETY: the program's own stream.
    let fd = unsafe { libc::fileno(file) };
    if vfork::in_child() || !has_word(fd) {
        return;
    }
    // SAFETY: as above.
    unsafe {
        if __fpending(file) > 0 {
            libc::fflush(file);
        }
    }
    descriptors::forget_handing_over(fd);
}

/// The one mode of libc's that makes a file and leaves what is in one appends. So the stream appends until libc is done.
fn reopen_and_cut(
    path: *const c_char,
    mode: &CStr,
    file: *mut FILE,
    made: bool,
) -> Result<*mut FILE, Refused> {
    let mut appending = [0; LETTERS + 2];
    let letters = mode.to_bytes().iter().take(LETTERS + 1);
    for (into, letter) in appending.iter_mut().zip(letters) {
        *into = *letter;
    }
    appending[0] = b'a';
    let file = libcs_reopen(path, appending.as_ptr().cast(), file)?;
    // SAFETY: the caller has seen that the layout is known, and holds the stream.
    unsafe { set_field(file, FLAGS, field::<u32>(file, FLAGS) & !APPENDS) };
    let fd = fileno(file);
    let cut = begin_at_the_start(fd).and_then(|()| {
        let noted = note(file);
        if noted {
            names::cut_open(fd, made)
        } else {
            Err(sys::errno())
        }
    });
    cut.map(|()| file).map_err(Refused::ByUs)
}

/// Undoes what appending has done to a description.
fn begin_at_the_start(fd: c_int) -> Result<(), c_int> {
    let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0)?;
    let flags = flags & !(libc::O_APPEND as usize);
    sys::fcntl(fd as usize, libc::F_SETFL as usize, flags)?;
    sys::lseek(fd as usize, 0, libc::SEEK_SET as usize).map(drop)
}

/// After `fopen` and `tmpfile`: a stream that matters gets its descriptor noted, as `open` would have.
pub(crate) extern "C" fn opened(_a: usize, _b: usize, _c: usize, file: *mut FILE) -> *mut FILE {
    if note(file) {
        return file;
    }
    let errno = sys::errno();
    // SAFETY: libc has just made it, and the program will not see it.
    unsafe { libc::fclose(file) };
    sys::set_errno(errno);
    ptr::null_mut()
}

/// After `tmpfile`: as [`opened`]. In the modes that stage its file is the kernel's, as everything is that has no name
/// and can get none.
pub(crate) extern "C" fn opened_temporary(
    a: usize,
    b: usize,
    c: usize,
    file: *mut FILE,
) -> *mut FILE {
    if !init::staging() || vfork::in_child() {
        return opened(a, b, c, file);
    }
    // SAFETY: libc has just made it, and nobody else has it.
    descriptors::returned(a, b, c, unsafe { libc::fileno(file) });
    file
}

/// Notes the descriptor of a new stream, which libc has just made, or the caller holds. False, with errno set, if the file must be staged and cannot be.
fn note(file: *mut FILE) -> bool {
    // SAFETY: libc has just made it, and nobody else has it.
    let fd = unsafe { libc::fileno(file) };
    descriptors::returned(0, 0, 0, fd);
    if vfork::in_child() {
        return true;
    }
    let Some(flags) = flags_worth_serving(fd) else {
        if fd <= fds::LAST_STANDARD && init::credit().is_some() {
            declared::is_the_kernels(fd);
            let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
            begin_at_the_end(file, flags.map_or(0, |flags| flags as c_int));
        }
        return true;
    };
    if flags & libc::O_ACCMODE != libc::O_RDONLY
        && let Err(errno) = names::stream_opened(fd)
    {
        sys::set_errno(errno);
        return false;
    }
    if !ready() || !is_ordinary(file) {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if init::required() && writes {
            sys::set_errno(libc::EOPNOTSUPP);
            return false;
        }
        if writes {
            names::stream_is_libcs(fd, flags);
        }
        declared::is_the_kernels(fd);
        begin_at_the_end(file, flags);
        return true;
    }
    // libc has moved it where a stream appends.
    let at = sys::lseek(fd as usize, 0, libc::SEEK_CUR as usize);
    if descriptors::note_open(fd, flags) < 0 {
        // The descriptor is closed; streams without one are closed for good.
        // SAFETY: as above, and the layout is known.
        unsafe { set_field(file, FILENO, -1i32) };
        return false;
    }
    if let Ok(at @ 1..) = at {
        data::lseek(fd, at as i64, libc::SEEK_SET);
    }
    begin_at_the_end(file, flags);
    true
}

/// libc has begun a stream that does nothing but append at the end that the kernel knew then, and remembers that place. Of
/// a declared file there may be more by now, or less, as its open does not publish what is staged.
fn begin_at_the_end(file: *mut FILE, flags: c_int) {
    let only_appends = libc::O_WRONLY | libc::O_APPEND;
    if flags & (libc::O_ACCMODE | libc::O_APPEND) != only_appends || init::declared().is_empty() {
        return;
    }
    // SAFETY: libc has just made it, and nobody else has it.
    unsafe { libc::fseeko(file, 0, libc::SEEK_END) };
}

/// Before `fdopen(fd, mode)` of a descriptor with a word. Streams that do not use the slots, and all
/// when the slots are libc's, take it out of the table; so does one that makes it append.
pub(crate) extern "C" fn before_fdopen(fd: c_int, mode: *const c_char) -> c_int {
    // SAFETY: libc reads the same string next.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    if !is_wanted()
        || mode.iter().any(|letter| b"mc".contains(letter))
        || vfork::in_child()
        || !ready()
    {
        return descriptors::before_keeping(fd);
    }
    let appends = || {
        sys::fcntl(fd as usize, libc::F_GETFL as usize, 0)
            .is_ok_and(|flags| flags as c_int & libc::O_APPEND != 0)
    };
    if mode.starts_with(b"a") {
        // While it is staged its description does not append, and libc looks at that as well.
        descriptors::put_down(fd);
        if !appends() {
            return descriptors::before_fcntl(fd, libc::F_SETFL, 0);
        }
    }
    0
}

/// What a refused `fdopen` returns.
pub(crate) extern "C" fn null(errno: c_int) -> i64 {
    sys::set_errno(errno);
    0
}

fn has_word(fd: c_int) -> bool {
    fds::word(fd).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
}

/// The flags of a descriptor whose stream is to be served.
fn flags_worth_serving(fd: c_int) -> Option<c_int> {
    if fd <= fds::LAST_STANDARD || init::credit().is_none() {
        return None;
    }
    let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0).ok()? as c_int;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    (writes || READERS.load(Ordering::Relaxed))
        .then(|| descriptors::regular_file(fd))
        .flatten()
        .map(|_| flags)
}

/// Whether a stream goes through the slots, and its calls may be cancelled.
fn is_ordinary(file: *const FILE) -> bool {
    let Some(tables) = Tables::find() else {
        return false;
    };
    // SAFETY: a stream; the layout is known because the slots are ours.
    unsafe {
        let table: *const Jumps = field(file, TABLE);
        tables.0.iter().any(|&known| ptr::eq(known, table))
            && field::<u32>(file, FLAGS2) & NOT_CANCELLED == 0
    }
}

// The replacement.

const UNTRIED: u32 = 0;
const TRYING: u32 = 1;
const READY: u32 = 2;
const REFUSED: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(UNTRIED);

/// How often another thread's attempt is waited for. It takes some tens of microseconds, and a process
/// forked in the middle of it waits for nobody.
const PATIENCE: usize = 10_000;

fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// Whether the slots are ours already.
pub(crate) fn serves() -> bool {
    STATE.load(Ordering::SeqCst) == READY
}

/// Makes the slots ours before the first stream is opened, where that is wanted.
pub(crate) fn prepare() {
    if is_wanted() && !vfork::in_child() {
        let _ = ready();
    }
}

/// Whether the slots are ours. Tries, once, and again where it was for want of something that may be there later.
fn ready() -> bool {
    for _ in 0..PATIENCE {
        match STATE.compare_exchange(UNTRIED, TRYING, Ordering::SeqCst, Ordering::SeqCst) {
            Err(READY) => return true,
            Err(REFUSED) => return false,
            Err(_) => {
                let _ = sys::sched_yield();
            }
            Ok(_) => {
                let errno = sys::errno();
                let _whole = NotCancelled::until_dropped();
                let done = sys::with_signals_blocked(|| install(ours()));
                sys::set_errno(errno);
                STATE.store(done.err().unwrap_or(READY), Ordering::SeqCst);
                return done.is_ok();
            }
        }
    }
    false
}

/// A table: two words that are zero, then functions.
type Jumps = [AtomicPtr<()>; 21];

#[derive(Clone, Copy)]
struct Tables([&'static Jumps; 2]);

fn symbol(name: &CStr) -> Option<*mut ()> {
    let found = real::next(name);
    (!found.is_null()).then_some(found.cast())
}

impl Tables {
    fn find() -> Option<Self> {
        static FOUND: [AtomicPtr<Jumps>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
        let known = |(found, name): (&AtomicPtr<Jumps>, &CStr)| {
            let mut table = found.load(Ordering::Relaxed);
            if table.is_null() {
                table = symbol(name)?.cast();
                found.store(table, Ordering::Relaxed);
            }
            // SAFETY: libc's table, which is never unmapped and whose words are atomics to us.
            table.is_aligned().then(|| unsafe { &*table })
        };
        Some(Self([
            known((&FOUND[0], c"_IO_file_jumps"))?,
            known((&FOUND[1], c"_IO_wfile_jumps"))?,
        ]))
    }

    /// Whether the tables are laid out as expected, told by functions that libc exports.
    fn hold(&self, slots: &Slots) -> bool {
        const OTHERS: [[(usize, &CStr); 4]; 2] = [
            [
                (3, c"_IO_file_overflow"),
                (4, c"_IO_file_underflow"),
                (9, c"_IO_file_seekoff"),
                (7, c"_IO_file_xsputn"),
            ],
            [
                (3, c"_IO_wfile_overflow"),
                (4, c"_IO_wfile_underflow"),
                (9, c"_IO_wfile_seekoff"),
                (7, c"_IO_wfile_xsputn"),
            ],
        ];
        let at = |table: &Jumps, index: usize| table[index].load(Ordering::Relaxed);
        self.0.iter().zip(OTHERS).all(|(table, others)| {
            (0..2).all(|index| at(table, index).is_null())
                && (0..SLOTS).all(|slot| at(table, FIRST + slot) == slots[slot])
                && others
                    .iter()
                    .all(|&(index, name)| symbol(name) == Some(at(table, index)))
        })
    }

    /// The pages on which the tables lie.
    fn pages(&self) -> (usize, usize) {
        const PAGE: usize = 4096;
        let first = self.0.iter().map(|&table| &raw const *table as usize);
        let low = first.clone().min().unwrap_or(0) & !(PAGE - 1);
        let high = first.max().unwrap_or(0) + size_of::<Jumps>();
        (low, high.next_multiple_of(PAGE) - low)
    }

    /// Stores the slots of both. The linker made their pages read-only after it had filled them.
    fn store(&self, slots: &Slots) -> bool {
        let (start, len) = self.pages();
        let protect = |protection: c_int| sys::mprotect(start, len, protection as usize).is_ok();
        if len > 1 << 16
            || !is_read_only(start, len)
            || !protect(libc::PROT_READ | libc::PROT_WRITE)
        {
            return false;
        }
        for table in self.0 {
            for (slot, &function) in slots.iter().enumerate() {
                table[FIRST + slot].store(function, Ordering::SeqCst);
            }
        }
        protect(libc::PROT_READ)
    }
}

/// Whether a range lies in what an object's `PT_GNU_RELRO` made read-only: only that may be made so
/// again.
fn is_read_only(start: usize, len: usize) -> bool {
    struct Search {
        range: (usize, usize),
        found: bool,
    }
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the loader passes a live description, and our own pointer.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: below the number of headers.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            if header.p_type == libc::PT_GNU_RELRO {
                let start = info.dlpi_addr as usize + header.p_vaddr as usize;
                let end = start + header.p_memsz as usize;
                search.found |= start & !4095 <= search.range.0 && search.range.1 <= end & !4095;
            }
        }
        c_int::from(search.found)
    }
    let mut search = Search {
        range: (start, start + len),
        found: false,
    };
    // SAFETY: the callback is called during this call only.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// Puts `slots` into libc's tables if everything is as expected and a stream then works; else says what is to be made of it.
fn install(slots: Slots) -> Result<(), u32> {
    let tables = Tables::find().ok_or(REFUSED)?;
    let mut known = [ptr::null_mut(); SLOTS];
    for (slot, name) in NAMES.into_iter().enumerate() {
        let function = symbol(name).ok_or(REFUSED)?;
        known[slot] = function;
        LIBC[slot].store(function, Ordering::SeqCst);
    }
    if !tables.hold(&known) {
        return Err(REFUSED);
    }
    let trial = Trial::new().map_err(|errno| match errno {
        libc::EMFILE | libc::ENFILE | libc::ENOMEM => UNTRIED,
        _ => REFUSED,
    })?;
    let works = trial.looks_right(&tables)
        && tables.store(&slots)
        && trial.works(&tables)
        && tables.hold(&slots);
    let works = trial.ends() && works;
    if !works && !tables.hold(&known) {
        tables.store(&known);
    }
    if works { Ok(()) } else { Err(REFUSED) }
}

unsafe extern "C" {
    fn __fpending(file: *mut FILE) -> usize;
}

/// A stream over a file in memory.
struct Trial {
    file: *mut FILE,
    fd: c_int,
}

const SAMPLE: usize = 200;
const BUFFER: usize = 32;
/// What the trial's descriptor may use up: more than it does.
const CREDIT: u64 = 1 << 40;

impl Trial {
    fn new() -> Result<Self, c_int> {
        // A limit on the size of files would send the program a signal for what we write.
        if data::KERNEL_WRITES.load(Ordering::Relaxed) {
            return Err(libc::EFBIG);
        }
        let name = c"adit".as_ptr() as usize;
        let fd = sys::memfd_create(name, libc::MFD_CLOEXEC as usize)? as c_int;
        type Function = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
        // SAFETY: libc's own function.
        let file = unsafe { call_real!(table::fdopen, Function)(fd, c"r+".as_ptr()) };
        if file.is_null() {
            let errno = sys::errno();
            let _ = sys::close(fd as usize);
            return Err(errno);
        }
        Ok(Self { file, fd })
    }

    /// Whether the fields of a stream are where they should be.
    fn looks_right(&self, tables: &Tables) -> bool {
        let file = self.file;
        // SAFETY: a live stream of ours. glibc's streams are longer than all these offsets, and its
        // tables have been recognised.
        unsafe {
            let flags: u32 = field(file, FLAGS);
            let table: *const Jumps = field(file, TABLE);
            let table_there = ptr::eq(table, tables.0[0]);
            let plain = flags & 0xffff_0000 == MAGIC && flags & ERROR == 0;
            let fresh =
                field::<i64>(file, OFFSET) == -1 && field::<u32>(file, FLAGS2) & NOT_CANCELLED == 0;
            set_field(file, FLAGS, flags | ERROR);
            let seen = libc::ferror(file) != 0;
            libc::clearerr(file);
            let cleared = field::<u32>(file, FLAGS) & ERROR == 0;
            fileno(file) == self.fd && table_there && plain && fresh && seen && cleared
        }
    }

    /// Writes, moves and reads, through the stream and through the slots, and compares every answer
    /// with what the kernel has.
    fn works(&self, tables: &Tables) -> bool {
        let sample: [u8; SAMPLE] = core::array::from_fn(|at| (at * 37 + at / 7) as u8);
        let mut buffer = [0u8; BUFFER];
        let mut back = [0u8; SAMPLE];
        fds::set_candidate(self.fd, CREDIT, true);
        let file = self.file;
        // SAFETY: a live stream of ours, and buffers that outlive its use of them: it flushes and is
        // given none before they go.
        unsafe {
            libc::setvbuf(file, buffer.as_mut_ptr().cast(), libc::_IOFBF, BUFFER);
            let written = libc::fwrite(sample.as_ptr().cast(), 1, SAMPLE, file) == SAMPLE
                && libc::fflush(file) == 0
                && self.holds(&sample);
            let paid = CREDIT - self.credit();
            let read = libc::fseeko(file, 7, libc::SEEK_SET) == 0
                && libc::ftello(file) == 7
                && libc::fread(back.as_mut_ptr().cast(), 1, 100, file) == 100
                && back[..100] == sample[7..107]
                && libc::fseeko(file, -3, libc::SEEK_END) == 0
                && libc::fread(back.as_mut_ptr().cast(), 1, SAMPLE, file) == 3
                && back[..3] == sample[SAMPLE - 3..]
                && libc::feof(file) != 0
                && libc::ferror(file) == 0;
            let read_too = CREDIT - self.credit() > paid;
            libc::rewind(file);
            let each = tables.0.iter().all(|table| self.slots_work(table, &sample));
            libc::rewind(file);
            libc::setvbuf(file, ptr::null_mut(), libc::_IONBF, 0);
            // Every call costs a page besides its bytes.
            written && read && each && paid % fds::CALL == SAMPLE as u64 && read_too
        }
    }

    /// Each slot of a table called as libc would.
    fn slots_work(&self, table: &Jumps, sample: &[u8; SAMPLE]) -> bool {
        let slot = |index: usize| table[FIRST + index].load(Ordering::Relaxed);
        let mut back = [0u8; SAMPLE];
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        type Move = unsafe extern "C" fn(*mut FILE, *mut c_void, isize) -> isize;
        type Seek = unsafe extern "C" fn(*mut FILE, i64, c_int) -> i64;
        type Stat = unsafe extern "C" fn(*mut FILE, *mut libc::stat) -> c_int;
        // SAFETY: slots of a recognised table have these types; the arguments are live.
        unsafe {
            let read = core::mem::transmute::<*mut (), Move>(slot(0));
            let write = core::mem::transmute::<*mut (), Move>(slot(1));
            let seek = core::mem::transmute::<*mut (), Seek>(slot(2));
            let tell = core::mem::transmute::<*mut (), Stat>(slot(4));
            let whole = SAMPLE as isize;
            seek(self.file, 10, libc::SEEK_SET) == 10
                && read(self.file, back.as_mut_ptr().cast(), whole) == whole - 10
                && back[..SAMPLE - 10] == sample[10..]
                && seek(self.file, 0, libc::SEEK_SET) == 0
                && write(self.file, sample.as_ptr().cast_mut().cast(), whole) == whole
                && self.at() == Ok(SAMPLE)
                && seek(self.file, 0, libc::SEEK_END) == whole as i64
                && self.holds(sample)
                && tell(self.file, stat.as_mut_ptr()) == 0
                && stat.assume_init().st_size == whole as i64
        }
    }

    fn at(&self) -> sys::Result {
        sys::lseek(self.fd as usize, 0, libc::SEEK_CUR as usize)
    }

    /// What credit is left; zero when the descriptor is no candidate.
    fn credit(&self) -> u64 {
        let word = fds::word(self.fd).map_or(0, |word| word.load(Ordering::SeqCst));
        word >> fds::CREDIT_SHIFT
    }

    /// Whether the file has exactly these bytes.
    fn holds(&self, sample: &[u8; SAMPLE]) -> bool {
        let mut there = [0u8; SAMPLE + 1];
        let into = there.as_mut_ptr() as usize;
        sys::pread(self.fd as usize, into, there.len(), 0) == Ok(SAMPLE)
            && there[..SAMPLE] == sample[..]
    }

    /// Closes it; whether the entry in the table is gone by that.
    fn ends(self) -> bool {
        let before = self.credit();
        // SAFETY: a live stream, which nobody uses afterwards.
        let closed = unsafe { libc::fclose(self.file) } == 0;
        if before != 0 && self.credit() == before {
            descriptors::returned(0, 0, 0, self.fd);
            let _ = sys::close(self.fd as usize);
            return false;
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    type Move = unsafe extern "C" fn(*mut FILE, *mut c_void, isize) -> isize;

    unsafe extern "C" fn loses_a_byte(file: *mut FILE, from: *mut c_void, len: isize) -> isize {
        // SAFETY: libc's own slot with its own arguments.
        let write =
            unsafe { core::mem::transmute::<*mut (), Move>(LIBC_WRITE.load(Ordering::Relaxed)) };
        // SAFETY: as above.
        unsafe { write(file, from, len - 1) + 1 }
    }
    unsafe extern "C" fn reads_elsewhere(file: *mut FILE, into: *mut c_void, len: isize) -> isize {
        // SAFETY: libc's own slot with its own arguments, a byte short.
        let read =
            unsafe { core::mem::transmute::<*mut (), Move>(LIBC_READ.load(Ordering::Relaxed)) };
        // SAFETY: as above; the first byte is the buffer's.
        unsafe {
            let got = read(file, into, len);
            if got > 0 {
                *into.cast::<u8>() ^= 1;
            }
            got
        }
    }
    unsafe extern "C" fn stays(_: *mut FILE, offset: i64, _: c_int) -> i64 {
        offset
    }
    unsafe extern "C" fn keeps(_: *mut FILE) -> c_int {
        0
    }
    unsafe extern "C" fn knows_nothing(_: *mut FILE, _: *mut c_void) -> c_int {
        0
    }

    /// The trial must find every slot that does not do its work, put libc's back, and accept ours.
    #[test]
    fn planted_slots_are_refused() {
        let planted: [*mut (); SLOTS] = [
            reads_elsewhere as *mut (),
            loses_a_byte as *mut (),
            stays as *mut (),
            keeps as *mut (),
            knows_nothing as *mut (),
        ];
        let known = NAMES.map(|name| symbol(name).expect("glibc exports it"));
        let tables = Tables::find().expect("glibc exports them");
        for (slot, &bad) in planted.iter().enumerate() {
            let mut slots = ours();
            slots[slot] = bad;
            assert_eq!(install(slots), Err(REFUSED), "slot {slot}");
            assert!(tables.hold(&known), "slot {slot} was left");
        }
        assert_eq!(install(ours()), Ok(()));
        assert!(tables.hold(&ours()));
        // What somebody else has replaced is left alone.
        assert_eq!(install(ours()), Err(REFUSED));
        assert!(tables.hold(&ours()));
        assert!(tables.store(&known));
    }
}
