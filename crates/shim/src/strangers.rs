//! Programs that this one executes and that the library must not be loaded into: of another C library, 32-bit ones, Go
//! programs (PROTOCOLS F9, F6). Their dynamic linker would fail, complain, or let half of the calls through.
//!
//! They get the variables that the caller hands on, but for the library's path in `LD_PRELOAD`, in a list that is made
//! for the call: nothing of the program's own is changed. `execve` and its kind are made here then, and end as libc's
//! would; where a search in `PATH` has found a program that cannot be executed, libc goes on.
//!
//! # Safety
//! What a caller hands on may be anything: the kernel reads it, and finds bad pointers out. Lists are built in memory
//! mapped for them, inside of its length. A `vfork` child leaves its list to its parent, which unmaps it when it goes on.
#![allow(unsafe_code)]

use crate::stage::ProgramFd;
use crate::sys::{self, ProcPath};
use crate::{init, record_locks, stack, vfork};
use adit_store::elf::{self, Bytes};
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};
use rustix::fd::{FromRawFd as _, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// What `adit run` preloads, wherever it lies.
const LIBRARY: &[u8] = b"libadit.so";
const MAX_STRING: usize = 4096;
/// Variables that are looked at.
const MAX_VARIABLES: usize = 1 << 14;
const WORD: usize = size_of::<usize>();

/// Reads the program's memory; `None` where part of it is not there.
pub(crate) fn read(at: usize, into: &mut [u8]) -> Option<()> {
    let [own, other] = [into.as_mut_ptr() as usize, at].map(|at| libc::iovec {
        iov_base: at as *mut _,
        iov_len: into.len(),
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
    // SAFETY: the first vector names a live buffer; the kernel checks the second.
    let read = unsafe { sys::call(libc::SYS_process_vm_readv, args) };
    (read == Ok(into.len())).then_some(())
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
    file: ProgramFd,
    start: [u8; FIRST],
    len: usize,
}

const FIRST: usize = 1024;

impl Program {
    fn new(file: ProgramFd) -> Self {
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
fn is_stranger(mut file: ProgramFd) -> bool {
    for _ in 0..elf::MAX_SCRIPTS {
        let program = Program::new(file);
        let line = &program.start[..program.len.min(elf::SCRIPT_LINE)];
        let Some(interpreter) = elf::interpreter(line) else {
            return elf::inspect(&program).is_some_and(|elf| elf.is_foreign());
        };
        let mut name = [0; elf::SCRIPT_LINE + 1];
        name[..interpreter.len()].copy_from_slice(interpreter);
        match CStr::from_bytes_until_nul(&name).ok().and_then(open) {
            Some(opened) => file = opened,
            None => return false,
        }
    }
    false
}

/// Opens a program to look at it: a file, and no device that an open would move.
fn open(path: &CStr) -> Option<ProgramFd> {
    open_at(libc::AT_FDCWD, path.as_ptr() as usize)
}

fn open_at(dir: c_int, path: usize) -> Option<ProgramFd> {
    let dir = dir as usize;
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    sys::newfstatat(dir, path, stat.as_mut_ptr() as usize, 0).ok()?;
    // SAFETY: all zero is a valid stat, and the kernel has filled it.
    let stat = unsafe { stat.assume_init() };
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    if let Some(open) = already_open(&stat) {
        return open.map(ProgramFd::Program);
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let fd = sys::openat(dir, path, flags as usize, 0).ok()?;
    // SAFETY: the kernel has just opened it for us.
    Some(unsafe { OwnedFd::from_raw_fd(fd as c_int) }.into())
}

/// The descriptor by which the program itself can read a file: to close another one would end the locks that it has on it,
/// and `exec` keeps them. What it has locked and cannot read so nobody looks at: it is open to be written, and the kernel
/// executes no such file. Without `/proc` nobody knows, and a stranger could not begin with the library.
fn already_open(file: &libc::stat) -> Option<Option<c_int>> {
    let mut locked = false;
    let reads = |fd: c_int| {
        let flags = sys::fcntl(fd as usize, libc::F_GETFL as usize, 0);
        let flags = flags.map_or(libc::O_PATH, |flags| flags as c_int);
        let plain = flags & (libc::O_PATH | libc::O_DIRECT) == 0;
        if plain && flags & libc::O_ACCMODE != libc::O_WRONLY {
            return true;
        }
        locked |= flags & libc::O_PATH == 0 && record_locks::have_come_by(fd);
        false
    };
    match record_locks::find_open(file, reads) {
        Ok(None) | Err(_) if !locked => None,
        found => Some(found.ok().flatten()),
    }
}

/// What libc finds under a name without a slash: the path is left in `file`.
fn search(name: &CStr, file: &mut [u8; MAX_STRING]) -> Option<ProgramFd> {
    if name.to_bytes().contains(&b'/') {
        file.get_mut(..name.count_bytes() + 1)?
            .copy_from_slice(name.to_bytes_with_nul());
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
    path.to_bytes().split(|byte| *byte == b':').find_map(|dir| {
        let slash: &[u8] = if dir.is_empty() { b"" } else { b"/" };
        let mut end = 0;
        for part in [dir, slash, name.to_bytes_with_nul()] {
            file.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        let found = CStr::from_bytes_until_nul(file).ok()?;
        let allowed = rustix::fs::access(found, rustix::fs::Access::EXEC_OK);
        allowed.ok().and_then(|()| open(found))
    })
}

/// Which program is to be executed, by pointers of the caller's.
#[derive(Clone, Copy)]
pub(crate) enum Named {
    Path(usize),
    /// As `execvp` looks for it.
    Searched(*const c_char),
    /// Relative to a directory, or its descriptor where the name is empty; with the flags of `execveat`.
    At(c_int, usize, c_int),
}

impl Named {
    fn open(self, found: &mut [u8; MAX_STRING]) -> Option<ProgramFd> {
        match self {
            Self::Path(path) => open_at(libc::AT_FDCWD, path),
            Self::Searched(name) if name.is_null() => None,
            // SAFETY: libc reads the same string next.
            Self::Searched(name) => search(unsafe { CStr::from_ptr(name) }, found),
            Self::At(dir, path, flags) => open_at(dir, path).or_else(|| {
                (flags & libc::AT_EMPTY_PATH != 0)
                    .then(|| of_descriptor(dir))
                    .flatten()
            }),
        }
    }
}

/// Another description of what a descriptor is of, which may be open to be executed only.
fn of_descriptor(fd: c_int) -> Option<ProgramFd> {
    open(ProcPath::of_file(fd).as_c_str())
}

/// The variables for a program into which the library must not be loaded. It takes some pages of stack to find that out.
fn of_stranger(named: Named, variables: usize) -> Option<List> {
    init::was_asked().then(|| stack::with_room(|| look_for_stranger(named, variables)))?
}

// Not in the frame of who asks for room.
#[inline(never)]
fn look_for_stranger(named: Named, variables: usize) -> Option<List> {
    let mut found = [0; MAX_STRING];
    let is_one = named.open(&mut found).is_some_and(is_stranger);
    let found = CStr::from_bytes_until_nul(&found).ok()?;
    is_one
        .then(|| List::without_library(variables, found))
        .flatten()
}

/// Before a program is executed: zero for libc to do it, or the error of having done it here.
pub(crate) fn execute(named: Named, arguments: usize, variables: usize) -> c_int {
    let Some(list) = of_stranger(named, variables) else {
        return 0;
    };
    list.is_left_to_the_parent();
    let call = |number: i64, args: [usize; 6]| {
        // SAFETY: the caller's own pointers, a list that ends, and a path that does.
        unsafe { sys::call(number, args) }
            .err()
            .unwrap_or(libc::EFAULT)
    };
    let list_at = list.at as usize;
    let errno = match named {
        Named::Path(path) => call(libc::SYS_execve, [path, arguments, list_at, 0, 0, 0]),
        Named::Searched(_) => {
            call(
                libc::SYS_execve,
                [list.found(), arguments, list_at, 0, 0, 0],
            );
            0
        }
        Named::At(dir, path, flags) => {
            let args = [dir as usize, path, arguments, list_at, flags as usize, 0];
            call(libc::SYS_execveat, args)
        }
    };
    list.unmap_here();
    errno
}

/// For a spawn: lets it have the variables that it is to hand on.
pub(crate) fn spawn<T>(named: Named, variables: usize, spawn: impl FnOnce(usize) -> T) -> T {
    let list = of_stranger(named, variables);
    let spawned = spawn(list.as_ref().map_or(variables, |list| list.at as usize));
    if let Some(list) = list {
        list.unmap();
    }
    spawned
}

/// The variables of this process.
pub(crate) fn own() -> usize {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: libc's own variable, which it reads itself next.
    (unsafe { (&raw const environ).read_volatile() }) as usize
}

/// Variables for a stranger, in memory of their own, with the path at which it was found behind them.
struct List {
    at: *mut u8,
    len: usize,
    path: usize,
}

/// What `vfork` children have left to their parents, by the slot of the thread: where, and how long.
static LEFT: [[AtomicUsize; 2]; vfork::AT_A_TIME] =
    [const { [const { AtomicUsize::new(0) }; 2] }; vfork::AT_A_TIME];

/// In the parent of a `vfork` child, when it goes on.
pub(crate) fn child_is_gone(slot: usize) {
    if let Some([at, len]) = LEFT.get(slot) {
        let at = at.swap(0, Ordering::SeqCst);
        if at != 0 {
            let len = len.load(Ordering::SeqCst);
            List {
                at: at as *mut u8,
                len,
                path: 0,
            }
            .unmap();
        }
    }
}

impl List {
    /// A copy of the list at an address, without the library; `None` where it does not name it.
    fn without_library(variables: usize, found: &CStr) -> Option<Self> {
        let word = |nth: usize| {
            let mut word = [0; WORD];
            read(variables + nth * WORD, &mut word)?;
            Some(usize::from_ne_bytes(word))
        };
        let (mut count, mut preload) = (0, None);
        loop {
            let at = word(count).filter(|_| count < MAX_VARIABLES)?;
            if at == 0 {
                break;
            }
            let mut name = [0; PRELOAD.len()];
            if preload.is_none() && read(at, &mut name).is_some() && name == PRELOAD {
                preload = Some((count, at + PRELOAD.len()));
            }
            count += 1;
        }
        let (nth, at) = preload?;
        let mut text = [0; MAX_STRING];
        let all = string(at, &mut text)?.to_bytes();
        if !paths(all).any(is_library) {
            return None;
        }
        let pointers = (count + 1) * WORD;
        let found = found.to_bytes_with_nul();
        let list = Self::map(pointers + PRELOAD.len() + all.len() + 1, found.len())?;
        // SAFETY: the mapping is so long, and nobody else knows of it; its bytes are zero.
        let (words, text) =
            unsafe { core::slice::from_raw_parts_mut(list.at, list.len) }.split_at_mut(pointers);
        let (text, path) = text.split_at_mut(list.path - pointers);
        path.copy_from_slice(found);
        if read(variables, &mut words[..pointers - WORD]).is_none() {
            list.unmap();
            return None;
        }
        let others = paths(all).filter(|path| !is_library(path));
        let len = join(others, text);
        if len == PRELOAD.len() {
            words.copy_within((nth + 1) * WORD.., nth * WORD);
        } else {
            let at = text.as_ptr() as usize;
            words[nth * WORD..(nth + 1) * WORD].copy_from_slice(&at.to_ne_bytes());
        }
        Some(list)
    }

    fn map(path: usize, more: usize) -> Option<Self> {
        let len = path + more;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, anywhere.
        let at = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, protection, MapFlags::PRIVATE)
        };
        Some(Self {
            at: at.ok()?.cast(),
            len,
            path,
        })
    }

    /// Where the path is.
    fn found(&self) -> usize {
        self.at as usize + self.path
    }

    fn unmap(self) {
        // SAFETY: our own mapping, which nobody reads any more.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }

    /// When the call has failed: there is nothing left to the parent.
    fn unmap_here(self) {
        if let Some([at, _]) = vfork::slot().and_then(|slot| LEFT.get(slot)) {
            at.store(0, Ordering::SeqCst);
        }
        self.unmap();
    }

    /// A `vfork` child's memory is its parent's, and it does not come back to give it up.
    fn is_left_to_the_parent(&self) {
        if let Some([at, len]) = vfork::slot().and_then(|slot| LEFT.get(slot)) {
            len.store(self.len, Ordering::SeqCst);
            at.store(self.at as usize, Ordering::SeqCst);
        }
    }
}

fn paths(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b':' || byte.is_ascii_whitespace())
        .filter(|path| !path.is_empty())
}

fn is_library(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next() == Some(LIBRARY)
}

/// Writes the variable with these paths, which fit; how long it is.
fn join<'a>(paths: impl Iterator<Item = &'a [u8]>, into: &mut [u8]) -> usize {
    into[..PRELOAD.len()].copy_from_slice(PRELOAD);
    let mut end = PRELOAD.len();
    for path in paths {
        if end > PRELOAD.len() {
            into[end] = b':';
            end += 1;
        }
        into[end..end + path.len()].copy_from_slice(path);
        end += path.len();
    }
    end
}
