//! Programs that this one executes and that the library must not be loaded into: of another C library, 32-bit ones, Go
//! programs (PROTOCOLS F9, F6). Their dynamic linker would fail, complain, or let half of the calls through.
//!
//! The library's path in `LD_PRELOAD` is covered with separators, in the strings that are handed to the new program. When
//! the call has failed, or in the parent of a `vfork` child, it is put back before the next program is looked at: the
//! strings are the program's own. What another thread executes in between runs without the library, as the stranger does.
//!
//! # Safety
//! The program's memory is read and written by the kernel, which finds bad pointers out: what is handed to the new
//! program may be anything. The one string that was changed is remembered under a flag that one thread has at a time.
#![allow(unsafe_code)]

use crate::{init, sys};
use adit_store::elf::{self, Bytes};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use rustix::fd::{FromRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// What `adit run` preloads, wherever it lies.
const LIBRARY: &[u8] = b"libadit.so";
/// Scripts whose interpreter is a script: the kernel gives up after this many, too.
const MAX_SCRIPTS: usize = 5;
/// The kernel reads this much of a script's first line.
const LINE: usize = 256;
const MAX_STRING: usize = 4096;
/// Variables that are looked at.
const MAX_VARIABLES: usize = 1 << 14;

/// What was covered: where, and how it read.
struct Covered {
    taken: AtomicBool,
    at: AtomicUsize,
    len: AtomicUsize,
    text: UnsafeCell<[u8; MAX_STRING]>,
}

// SAFETY: the text is only touched by who has taken the flag.
unsafe impl Sync for Covered {}

static COVERED: Covered = Covered {
    taken: AtomicBool::new(false),
    at: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
    text: UnsafeCell::new([0; MAX_STRING]),
};

/// Copies between this process's memory and itself; `None` where part of it is not there.
fn copy(number: i64, own: *mut u8, other: usize, len: usize) -> Option<()> {
    let [own, other] = [(own as usize, len), (other, len)].map(|(at, len)| libc::iovec {
        iov_base: at as *mut _,
        iov_len: len,
    });
    let pid = sys::getpid().ok()?;
    let args = [
        pid,
        &raw const own as usize,
        1,
        &raw const other as usize,
        1,
        0,
    ];
    // SAFETY: the first vector names a live local; the kernel checks the second.
    (unsafe { sys::call(number, args) } == Ok(len)).then_some(())
}

fn read(at: usize, into: &mut [u8]) -> Option<()> {
    copy(
        libc::SYS_process_vm_readv,
        into.as_mut_ptr(),
        at,
        into.len(),
    )
}

fn write(at: usize, from: &[u8]) -> Option<()> {
    let own = from.as_ptr().cast_mut();
    copy(libc::SYS_process_vm_writev, own, at, from.len())
}

/// The string at an address, if it fits; pages behind its end may be missing.
fn string(at: usize, into: &mut [u8]) -> Option<&CStr> {
    let mut done = 0;
    while done < into.len() {
        let to_page = 4096 - (at + done) % 4096;
        let end = into.len().min(done + to_page);
        read(at + done, &mut into[done..end])?;
        if into[done..end].contains(&0) {
            return CStr::from_bytes_until_nul(into).ok();
        }
        done = end;
    }
    None
}

/// A program's file, and its first bytes, where nearly all that is asked for lies.
struct Program {
    file: OwnedFd,
    start: [u8; FIRST],
    len: usize,
}

const FIRST: usize = 1024;

impl Program {
    fn new(file: OwnedFd) -> Self {
        let mut start = [0; FIRST];
        let len = rustix::io::pread(&file, &mut start, 0).unwrap_or(0);
        Self { file, start, len }
    }
}

impl Bytes for Program {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        let known = usize::try_from(offset)
            .ok()
            .and_then(|start| self.start[..self.len].get(start..start.checked_add(into.len())?));
        if let Some(known) = known {
            into.copy_from_slice(known);
            return Some(());
        }
        (rustix::io::pread(&self.file, &mut *into, offset) == Ok(into.len())).then_some(())
    }
}

/// Whether the library must not be loaded into the program in an open file. Of scripts their interpreter decides.
fn is_stranger(mut file: OwnedFd) -> bool {
    for _ in 0..MAX_SCRIPTS {
        let program = Program::new(file);
        let line = &program.start[..program.len.min(LINE)];
        let Some(script) = line.strip_prefix(b"#!") else {
            return elf::inspect(&program).is_some_and(|elf| elf.is_foreign());
        };
        let line = script.split(|byte| *byte == b'\n').next();
        let mut words = line
            .unwrap_or_default()
            .split(|byte| matches!(byte, b' ' | b'\t'));
        let interpreter = words.find(|word| !word.is_empty()).unwrap_or_default();
        let mut name = [0; LINE + 1];
        name[..interpreter.len()].copy_from_slice(interpreter);
        match CStr::from_bytes_until_nul(&name).ok().and_then(open) {
            Some(opened) => file = opened,
            None => return false,
        }
    }
    false
}

/// Opens a program to look at it.
fn open(path: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// What libc finds under a name without a slash.
fn search(name: &CStr) -> Option<OwnedFd> {
    if name.to_bytes().contains(&b'/') {
        return open(name);
    }
    // SAFETY: libc's own search reads the same string next, which is null or ends.
    let path = unsafe {
        let path = libc::getenv(c"PATH".as_ptr());
        if path.is_null() {
            c"/bin:/usr/bin"
        } else {
            CStr::from_ptr(path)
        }
    };
    let mut file = [0; MAX_STRING];
    path.to_bytes().split(|byte| *byte == b':').find_map(|dir| {
        let slash: &[u8] = if dir.is_empty() { b"" } else { b"/" };
        let mut end = 0;
        for part in [dir, slash, name.to_bytes_with_nul()] {
            file.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        let file = CStr::from_bytes_until_nul(&file).ok()?;
        let allowed = rustix::fs::access(file, rustix::fs::Access::EXEC_OK);
        allowed.ok().and_then(|()| open(file))
    })
}

/// Which program is to be executed.
pub(crate) enum Named {
    Path(usize),
    /// As `execvp` looks for it.
    Searched(usize),
    Descriptor(c_int),
    /// Relative to a directory, or its descriptor where the name is empty.
    At(c_int, usize),
}

impl Named {
    fn open(self) -> Option<OwnedFd> {
        let mut text = [0; MAX_STRING];
        match self {
            Self::Path(at) => open(string(at, &mut text)?),
            Self::Searched(at) => search(string(at, &mut text)?),
            Self::Descriptor(fd) => of_descriptor(fd),
            Self::At(dir, at) => match string(at, &mut text)? {
                path if path.is_empty() => of_descriptor(dir),
                path => {
                    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
                    let path = path.as_ptr() as usize;
                    let fd = sys::openat(dir as usize, path, flags, 0).ok()?;
                    // SAFETY: the kernel has just opened it for us.
                    Some(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
                }
            },
        }
    }
}

/// Another description of what a descriptor is of, which may be open to be executed only.
fn of_descriptor(fd: c_int) -> Option<OwnedFd> {
    let mut path = *b"/proc/thread-self/fd/0000000000\0";
    let digits = path.len() - 11;
    let mut rest = u32::try_from(fd).ok()?;
    for place in (digits..digits + 10).rev() {
        path[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // Leading zeros are no number of the kernel's.
    let zeros = path[digits..digits + 9]
        .iter()
        .take_while(|byte| **byte == b'0')
        .count();
    path.copy_within(digits + zeros.., digits);
    open(CStr::from_bytes_until_nul(&path).ok()?)
}

/// Before a program is executed with these variables: takes the library out of them where it must run without.
pub(crate) fn look_at(named: Named, variables: usize) {
    show();
    if init::credit().is_none() {
        return;
    }
    if named.open().is_some_and(is_stranger) {
        hide(variables);
    }
}

/// The variables of this process.
pub(crate) fn own() -> usize {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: libc's own variable, which it reads itself next.
    (unsafe { (&raw const environ).read_volatile() }) as usize
}

fn hide(variables: usize) {
    for nth in 0..MAX_VARIABLES {
        let mut word = [0; size_of::<usize>()];
        if read(variables + nth * word.len(), &mut word).is_none() {
            return;
        }
        let at = usize::from_ne_bytes(word);
        if at == 0 {
            return;
        }
        let mut text = [0; MAX_STRING];
        let variable = string(at, &mut text).map_or(&b""[..], CStr::to_bytes);
        if let Some(list) = variable.strip_prefix(PRELOAD) {
            if let Some((start, len)) = place_of_library(list) {
                cover(at + PRELOAD.len() + start, &list[start..start + len]);
            }
            return;
        }
    }
}

/// Where the library's path lies in a list.
fn place_of_library(list: &[u8]) -> Option<(usize, usize)> {
    let separates = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    let mut start = 0;
    for path in list.split(separates) {
        if path.rsplit(|byte| *byte == b'/').next() == Some(LIBRARY) {
            return Some((start, path.len()));
        }
        start += path.len() + 1;
    }
    None
}

fn cover(at: usize, path: &[u8]) {
    if COVERED.taken.swap(true, Ordering::Acquire) {
        // Another thread is about to start a stranger of its own.
        return;
    }
    // SAFETY: the flag is ours.
    let text = unsafe { &mut *COVERED.text.get() };
    text[..path.len()].copy_from_slice(path);
    COVERED.len.store(path.len(), Ordering::Relaxed);
    COVERED.at.store(at, Ordering::Relaxed);
    let blank = [b':'; 64];
    let mut pieces = (0..path.len()).step_by(blank.len());
    let done = pieces.all(|start| {
        let len = blank.len().min(path.len() - start);
        write(at + start, &blank[..len]).is_some()
    });
    if !done {
        show();
    }
}

/// Puts back what was covered.
pub(crate) fn show() {
    let at = COVERED.at.swap(0, Ordering::Acquire);
    if at == 0 {
        return;
    }
    // SAFETY: who has taken the address has the flag with it.
    let text = unsafe { &*COVERED.text.get() };
    let _ = write(at, &text[..COVERED.len.load(Ordering::Relaxed)]);
    COVERED.taken.store(false, Ordering::Release);
}
