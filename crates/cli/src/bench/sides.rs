//! The three sides of every comparison.
//!
//! - **Adit**: libc's functions, which the preloaded library interposes, on a descriptor that was
//!   opened through libc's `open`.
//! - **Kernel**: the same functions of libc itself, looked up past the library, on another
//!   descriptor of the same file: what the program would call without Adit. System call
//!   instructions of our own would flatter the kernel by up to a third on small reads: without a
//!   function's return behind the call, which the processor mispredicts after the kernel's
//!   safeguards, the next operation's cache misses overlap.
//! - **Raw**: copies between a buffer and a mapping that was made by a system call of our own; for
//!   what copies nothing, the bare system call.
//!
//! # Safety
//!
//! The functions of libc take descriptors that [`Adit`] owns and buffers given as slices with their
//! own length. Pointers into [`Mapped`] are formed only for ranges that were checked to lie inside
//! of it, and it is unmapped when it is dropped. Nobody else changes the files while they are
//! measured but threads of the same measurement, which copy bytes and never look at them.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::worker::fail;
use crate::janitor::Janitor;

/// A descriptor that the library may serve.
pub(crate) struct Adit(libc::c_int);

impl Adit {
    /// Opens through libc.
    pub(crate) fn open(path: &Path, flags: libc::c_int) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: a C string that lives during the call; the mode follows because O_CREAT may be set.
        let fd = unsafe { libc::open(name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
        if fd < 0 {
            Err(last(path))
        } else {
            Ok(Self(fd))
        }
    }

    /// `read` at the description's offset.
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) {
        // SAFETY: the buffer has the length that is passed.
        let n = unsafe { libc::read(self.0, into.as_mut_ptr().cast(), into.len()) };
        expect(n, into.len());
    }

    /// `pread`.
    #[inline]
    pub(crate) fn read_at(&self, into: &mut [u8], at: u64) {
        // SAFETY: the buffer has the length that is passed.
        let n = unsafe { libc::pread(self.0, into.as_mut_ptr().cast(), into.len(), at as i64) };
        expect(n, into.len());
    }

    /// `write` at the description's offset or, with O_APPEND, at the end.
    #[inline]
    pub(crate) fn write(&self, from: &[u8]) {
        // SAFETY: the buffer has the length that is passed.
        let n = unsafe { libc::write(self.0, from.as_ptr().cast(), from.len()) };
        expect(n, from.len());
    }

    /// `pwrite`.
    #[inline]
    pub(crate) fn write_at(&self, from: &[u8], at: u64) {
        // SAFETY: the buffer has the length that is passed.
        let n = unsafe { libc::pwrite(self.0, from.as_ptr().cast(), from.len(), at as i64) };
        expect(n, from.len());
    }

    /// Cuts a file that is empty: from then on it is staged, where first writes to a short one may be the kernel's.
    pub(crate) fn cut(&self) {
        // SAFETY: takes no memory.
        expect(unsafe { libc::ftruncate(self.0, 0) } as isize, 0);
    }

    /// Back to the beginning.
    pub(crate) fn rewind(&self) {
        // SAFETY: takes no memory.
        unsafe { libc::lseek(self.0, 0, libc::SEEK_SET) };
    }

    /// `fsync`.
    pub(crate) fn sync(&self) {
        // SAFETY: takes no memory.
        expect(unsafe { libc::fsync(self.0) } as isize, 0);
    }
}

impl Drop for Adit {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and not used any more.
        unsafe { libc::close(self.0) };
    }
}

/// A pipe whose ends the library knows as foreign.
pub(crate) fn pipe() -> Result<(Adit, Adit), String> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    match unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } {
        0 => Ok((Adit(ends[0]), Adit(ends[1]))),
        _ => Err(last(Path::new("pipe"))),
    }
}

/// libc's own functions, past the library: what a program calls without Adit.
#[derive(Clone, Copy)]
pub(crate) struct Libc {
    open: unsafe extern "C" fn(*const libc::c_char, libc::c_int, ...) -> libc::c_int,
    close: unsafe extern "C" fn(libc::c_int) -> libc::c_int,
    read: unsafe extern "C" fn(libc::c_int, *mut libc::c_void, usize) -> isize,
    write: unsafe extern "C" fn(libc::c_int, *const libc::c_void, usize) -> isize,
    pipe: unsafe extern "C" fn(*mut libc::c_int, libc::c_int) -> libc::c_int,
    pread: unsafe extern "C" fn(libc::c_int, *mut libc::c_void, usize, i64) -> isize,
    pwrite: unsafe extern "C" fn(libc::c_int, *const libc::c_void, usize, i64) -> isize,
    lseek: unsafe extern "C" fn(libc::c_int, i64, libc::c_int) -> i64,
    fsync: unsafe extern "C" fn(libc::c_int) -> libc::c_int,
    fdatasync: unsafe extern "C" fn(libc::c_int) -> libc::c_int,
}

/// Of glibc: the first ones of two processors, and that with which `pipe2` came.
const VERSIONS: [&std::ffi::CStr; 3] = [c"GLIBC_2.2.5", c"GLIBC_2.9", c"GLIBC_2.17"];

impl Libc {
    /// Looks the functions up in libc itself, by their versions: by their names alone the library finds its own.
    pub(crate) fn find() -> Result<Self, String> {
        // SAFETY: a C string; libc is loaded already, so this only finds it.
        let libc =
            unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        let symbol = |name: &std::ffi::CStr| {
            let found = VERSIONS.iter().find_map(|version| {
                // SAFETY: a handle or null (then the search is global), and two C strings.
                let found = unsafe { libc::dlvsym(libc, name.as_ptr(), version.as_ptr()) };
                (!found.is_null()).then_some(found)
            });
            let found = found.filter(|_| !libc.is_null());
            found.ok_or_else(|| format!("libc has no {}", name.to_string_lossy()))
        };
        let found = (
            symbol(c"open")?,
            symbol(c"close")?,
            symbol(c"read")?,
            symbol(c"write")?,
            symbol(c"pipe2")?,
            symbol(c"pread64")?,
            symbol(c"pwrite64")?,
            symbol(c"lseek64")?,
            symbol(c"fsync")?,
            symbol(c"fdatasync")?,
        );
        // SAFETY: the functions of these names have these types in every libc.
        unsafe {
            Ok(Self {
                open: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(*const libc::c_char, libc::c_int, ...) -> libc::c_int,
                >(found.0),
                close: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int) -> libc::c_int,
                >(found.1),
                read: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int, *mut libc::c_void, usize) -> isize,
                >(found.2),
                write: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int, *const libc::c_void, usize) -> isize,
                >(found.3),
                pipe: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(*mut libc::c_int, libc::c_int) -> libc::c_int,
                >(found.4),
                pread: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int, *mut libc::c_void, usize, i64) -> isize,
                >(found.5),
                pwrite: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int, *const libc::c_void, usize, i64) -> isize,
                >(found.6),
                lseek: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int, i64, libc::c_int) -> i64,
                >(found.7),
                fsync: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int) -> libc::c_int,
                >(found.8),
                fdatasync: std::mem::transmute::<
                    *mut libc::c_void,
                    unsafe extern "C" fn(libc::c_int) -> libc::c_int,
                >(found.9),
            })
        }
    }

    /// Opens past the library.
    pub(crate) fn open(self, path: &Path, flags: libc::c_int) -> Result<Plain, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: libc's open, a C string that lives during the call, and a mode.
        let fd = unsafe { (self.open)(name.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
        if fd < 0 {
            Err(last(path))
        } else {
            Ok(Plain(fd, self))
        }
    }

    /// A pipe past the library.
    pub(crate) fn pipe(self) -> Result<(Plain, Plain), String> {
        let mut ends = [0; 2];
        // SAFETY: libc's pipe2 and room for two descriptors.
        match unsafe { (self.pipe)(ends.as_mut_ptr(), libc::O_CLOEXEC) } {
            0 => Ok((Plain(ends[0], self), Plain(ends[1], self))),
            _ => Err(last(Path::new("pipe"))),
        }
    }
}

/// A descriptor used through libc's own functions.
pub(crate) struct Plain(libc::c_int, Libc);

impl Plain {
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) {
        // SAFETY: libc's read; the buffer has the length that is passed.
        let n = unsafe { (self.1.read)(self.0, into.as_mut_ptr().cast(), into.len()) };
        expect(n, into.len());
    }

    #[inline]
    pub(crate) fn write(&self, from: &[u8]) {
        // SAFETY: libc's write; the buffer has the length that is passed.
        let n = unsafe { (self.1.write)(self.0, from.as_ptr().cast(), from.len()) };
        expect(n, from.len());
    }

    #[inline]
    pub(crate) fn read_at(&self, into: &mut [u8], at: u64) {
        // SAFETY: libc's pread; the buffer has the length that is passed.
        let n = unsafe { (self.1.pread)(self.0, into.as_mut_ptr().cast(), into.len(), at as i64) };
        expect(n, into.len());
    }

    #[inline]
    pub(crate) fn write_at(&self, from: &[u8], at: u64) {
        // SAFETY: libc's pwrite; the buffer has the length that is passed.
        let n = unsafe { (self.1.pwrite)(self.0, from.as_ptr().cast(), from.len(), at as i64) };
        expect(n, from.len());
    }

    pub(crate) fn rewind(&self) {
        // SAFETY: libc's lseek; takes no memory.
        unsafe { (self.1.lseek)(self.0, 0, libc::SEEK_SET) };
    }

    /// `fsync`.
    pub(crate) fn sync(&self) {
        // SAFETY: libc's fsync; takes no memory.
        expect(unsafe { (self.1.fsync)(self.0) } as isize, 0);
    }

    /// `fdatasync`.
    pub(crate) fn sync_data(&self) {
        // SAFETY: libc's fdatasync; takes no memory.
        expect(unsafe { (self.1.fdatasync)(self.0) } as isize, 0);
    }

    /// Reserves blocks behind the end, as the raw limit of an append.
    pub(crate) fn reserve(&self, len: u64) {
        // SAFETY: takes no memory.
        unsafe {
            libc::syscall(
                libc::SYS_fallocate,
                self.0,
                libc::FALLOC_FL_KEEP_SIZE,
                0u64,
                len,
            );
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: libc's close; the descriptor is ours and not used any more.
        unsafe { (self.1.close)(self.0) };
    }
}

/// A descriptor used by system call instructions of our own.
pub(crate) struct Bare(OwnedFd);

impl Bare {
    /// Opens with a system call of our own.
    pub(crate) fn open(path: &Path, flags: OFlags) -> Result<Self, String> {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::open(path.as_os_str().as_bytes(), flags | OFlags::CLOEXEC, mode)
            .map(Self)
            .map_err(|e| format!("{}: {}", path.display(), crate::failure::words(e)))
    }

    /// A pipe of our own.
    pub(crate) fn pipe() -> Result<(Self, Self), String> {
        let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(crate::failure::words)?;
        Ok((Self(from), Self(to)))
    }

    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) {
        let len = into.len();
        expect(
            rustix::io::read(&self.0, into).map_or(-1, |n| n as isize),
            len,
        );
    }

    #[inline]
    pub(crate) fn write(&self, from: &[u8]) {
        expect(
            rustix::io::write(&self.0, from).map_or(-1, |n| n as isize),
            from.len(),
        );
    }
}

/// The bytes of a file as memory.
pub(crate) struct Mapped {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; all access is by copies of bytes nobody interprets.
unsafe impl Send for Mapped {}
// SAFETY: as above; concurrent copies may tear, and nobody looks at the result.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps all of a file, filled.
    pub(crate) fn new(path: &Path, len: usize) -> Result<Self, String> {
        let file = Bare::open(path, OFlags::RDWR)?;
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::POPULATE,
        );
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, &file.0, 0) };
        match base {
            Ok(base) => Ok(Self {
                base: base.cast(),
                len,
            }),
            Err(e) => Err(format!("{}: {}", path.display(), crate::failure::words(e))),
        }
    }

    fn at(&self, at: u64, len: usize) -> *mut u8 {
        let at = at as usize;
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "outside the mapping"
        );
        // SAFETY: just checked to lie inside the mapping.
        unsafe { self.base.add(at) }
    }

    /// A plain copy out.
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8], at: u64) {
        let from = self.at(at, into.len());
        // SAFETY: `at` checked the range; a private buffer does not overlap a mapping of a file.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        std::hint::black_box(into.first());
    }

    /// A plain copy in.
    #[inline]
    pub(crate) fn write(&self, from: &[u8], at: u64) {
        let to = self.at(at, from.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// A copy in past the cache, and a fence. `at` and the length are multiples of 64.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn stream(&self, from: &[u8], at: u64) {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        assert!(at.is_multiple_of(16) && from.len().is_multiple_of(16));
        let to = self.at(at, from.len()).cast::<__m128i>();
        let words = from.as_ptr().cast::<__m128i>();
        for word in 0..from.len() / 16 {
            // SAFETY: inside both ranges; the target is aligned because the mapping is and `at` is
            // a multiple of 16; loads need no alignment. SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(to.add(word), _mm_loadu_si128(words.add(word))) };
        }
        // SAFETY: an instruction without operands.
        unsafe { _mm_sfence() };
    }

    /// Without such instructions, the plain copy.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn stream(&self, from: &[u8], at: u64) {
        self.write(from, at);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, and no pointer into it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// Whether the library is loaded and serves this process.
pub(crate) fn active() -> bool {
    // SAFETY: a C string; the result is null or a function without arguments that returns an int,
    // as the library declares it.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"adit_active".as_ptr());
        if symbol.is_null() {
            return false;
        }
        let function: extern "C" fn() -> libc::c_int = std::mem::transmute(symbol);
        function() == 1
    }
}

/// A directory that goes away with this value, and with this process.
pub(crate) struct Scratch {
    path: PathBuf,
    _janitor: Janitor,
}

impl Scratch {
    /// A directory of our own in `dir`.
    pub(crate) fn new(dir: &Path) -> Result<Self, String> {
        let path = dir.join(format!("adit-bench-{}", std::process::id()));
        let said = crate::failure::said;
        let janitor = Janitor::of(&path).map_err(|e| format!("sh: {}", said(&e)))?;
        if let Err(e) = std::fs::create_dir(&path) {
            janitor.leave();
            return Err(format!("{}: {}", path.display(), said(&e)));
        }
        Ok(Self {
            path,
            _janitor: janitor,
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A written file of `len` bytes, made through the kernel.
    pub(crate) fn file(&self, name: &str, len: usize) -> Result<PathBuf, String> {
        let path = self.path.join(name);
        let file = Bare::open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        let chunk = vec![0xadu8; 1 << 20];
        let mut left = len;
        while left > 0 {
            let part = left.min(chunk.len());
            match rustix::io::write(&file.0, &chunk[..part]) {
                Ok(n) if n > 0 => left -= n,
                Ok(_) => return Err("the file system takes no more bytes".into()),
                Err(e) => return Err(format!("{}: {}", path.display(), crate::failure::words(e))),
            }
        }
        Ok(path)
    }
}

#[inline]
fn expect(result: isize, len: usize) {
    if result != len as isize {
        failed(result, len);
    }
}

#[cold]
fn failed(result: isize, len: usize) -> ! {
    let why = std::io::Error::last_os_error();
    fail(match result {
        -1 => format!("a call for {len} bytes: {}", crate::failure::said(&why)),
        moved => format!("a call moved {moved} of {len} bytes"),
    })
}

fn last(path: &Path) -> String {
    format!("{}: {}", path.display(), std::io::Error::last_os_error())
}
