//! Which files anybody under Adit may have staged: a filter in shared memory.
//!
//! The kernel knows a staged file as it was when it was last published, and a program that looks at it
//! (`stat`) makes nobody publish it. So a program that stages nothing itself, and has no pool, needs a cheap
//! way to learn that the kernel's answer may be old: one word says whether anything is staged, one bit by
//! device and inode number whether this file may be. Only then the monitor is asked.
//!
//! The filter is one file of the runtime directory. `adit run` makes it before the first program, and nobody
//! removes it, so a mapping is good for as long as its process lives. **Only the monitor writes it**: a bit is set before it
//! grants the file, and cleared after everything is in the file and it was counted as gone ([`Filter::gone`]).
//! A monitor leaves the bits of one that was killed as they are until it holds nothing itself: a bit too many
//! costs a question, one too few would show an old size.
//!
//! # Safety
//!
//! The `unsafe` blocks map the file and turn the mapping into a reference. Invariants: the file has its full
//! size and all of its blocks before it is mapped, every field is an atomic, and a mapping of which a
//! reference was made is never unmapped.
#![allow(unsafe_code)]

use core::cell::{Cell, RefCell};
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::collections::BTreeMap;
use std::rc::Rc;

use rustix::fd::AsFd as _;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::FileId;
use super::dir::{DirError, RuntimeDir};
use super::sys::{self, Fd};

/// Its name has the version of the layout.
const NAME: &CStr = c"staged.1";

const BITS: usize = 1 << 16;
const SIZE: usize = size_of::<Page>();

#[repr(C)]
struct Page {
    /// 1 while anything may be staged.
    any: AtomicU32,
    _unused: AtomicU32,
    /// How many files were staged and are not any more.
    gone: AtomicU64,
    bits: [AtomicU64; BITS / 64],
}

fn bit(id: FileId) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (id.ino ^ id.dev.rotate_left(40)).wrapping_mul(ODD);
    (mixed >> (64 - BITS.trailing_zeros())) as usize
}

impl Page {
    fn word(&self, bit: usize) -> (&AtomicU64, u64) {
        (&self.bits[bit / 64 % self.bits.len()], 1 << (bit % 64))
    }

    /// For the monitor: makes the file where it is missing.
    fn make(dir: &Fd) -> Result<*mut Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = sys::open_at(dir, NAME, flags, mode)?;
        // Whatever the caller's umask: others of this user could not open it.
        rustix::fs::fchmod(file.as_fd(), mode)?;
        // Without its blocks a look could meet a full file system.
        rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), 0, SIZE as u64)?;
        Self::map(&file, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn find(dir: &Fd) -> Result<*mut Self, Errno> {
        // What another thread writes to this number, which the program may have left closed, goes nowhere.
        let file = sys::open_at(dir, NAME, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let stat = rustix::fs::fstat(file.as_fd())?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || stat.st_size < SIZE as i64 {
            return Err(Errno::INVAL);
        }
        Self::map(&file, ProtFlags::READ)
    }

    fn map(file: &Fd, protection: ProtFlags) -> Result<*mut Self, Errno> {
        let (anywhere, shared) = (ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping of a file that is so long, anywhere.
        let page = unsafe { mmap(anywhere, SIZE, protection, shared, file.as_fd(), 0) };
        page.map(<*mut _>::cast)
    }
}

/// Makes the filter of a runtime directory, for programs that look before the monitor is there.
pub fn prepare(dir: &RuntimeDir) -> Result<(), DirError> {
    let page = Page::make(&dir.open()?).map_err(DirError::Kernel)?;
    // SAFETY: nobody has seen this mapping.
    unsafe { munmap(page.cast(), SIZE) }.map_err(DirError::Kernel)
}

/// A place for the filter. Made for a `static`.
///
/// All methods may be called from any thread and from a signal handler.
pub struct Anywhere(AtomicPtr<Page>);

impl Anywhere {
    /// Without a filter so far.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The filter, if it was opened.
    #[must_use]
    pub fn get(&self) -> Option<Filter> {
        // SAFETY: what is kept here is a mapping that nobody unmaps.
        unsafe { self.0.load(SeqCst).as_ref() }.map(Filter)
    }

    /// Opens the filter of a runtime directory, which the monitor has made, or [`prepare`]; makes nothing.
    pub fn open(&self, dir: &RuntimeDir) -> Result<Filter, DirError> {
        let page = Page::find(&dir.open()?).map_err(DirError::Kernel)?;
        if self
            .0
            .compare_exchange(ptr::null_mut(), page, SeqCst, SeqCst)
            .is_err()
        {
            // SAFETY: another thread was faster, and nobody has seen this one.
            let _ = unsafe { munmap(page.cast(), SIZE) };
        }
        self.get().ok_or(DirError::Kernel(Errno::INVAL))
    }
}

impl Default for Anywhere {
    fn default() -> Self {
        Self::new()
    }
}

/// What this process sees of the filter.
#[derive(Clone, Copy)]
pub struct Filter(&'static Page);

impl Filter {
    /// The word that is zero while nothing is staged.
    #[must_use]
    pub fn any(&self) -> &'static AtomicU32 {
        &self.0.any
    }

    /// How many files were staged and are not any more. Who has asked the kernel about a file, sees no bit
    /// of it, and sees this number unchanged since before, knows that it was not staged.
    #[must_use]
    pub fn gone(&self) -> u64 {
        self.0.gone.load(SeqCst)
    }

    /// Whether anybody may have the file staged.
    #[must_use]
    pub fn may_have(&self, id: FileId) -> bool {
        let (word, mask) = self.0.word(bit(id));
        self.any().load(SeqCst) != 0 && word.load(SeqCst) & mask != 0
    }
}

/// The monitor's side of the filter.
#[derive(Clone)]
pub(crate) struct Marks(Rc<Marked>);

struct Marked {
    /// Of a runtime directory that has no room for it: nobody sees anything there.
    page: Option<&'static Page>,
    /// How many files have each bit.
    files: RefCell<BTreeMap<usize, u32>>,
    /// Bits may be set that a monitor before this one has left.
    inherited: Cell<bool>,
}

impl Marks {
    /// Goes on with the filter of a directory.
    pub(crate) fn new(dir: &Fd) -> Self {
        let page = Page::make(dir).ok();
        // SAFETY: the mapping is never unmapped.
        let page = page.and_then(|page| unsafe { page.as_ref() });
        Self(Rc::new(Marked {
            page,
            files: RefCell::default(),
            inherited: Cell::new(true),
        }))
    }

    /// From now on a file may be staged, until the mark is dropped.
    pub(crate) fn add(&self, id: FileId) -> Mark {
        let bit = bit(id);
        *self.0.files.borrow_mut().entry(bit).or_insert(0) += 1;
        if let Some(page) = self.0.page {
            let (word, mask) = page.word(bit);
            word.fetch_or(mask, SeqCst);
            page.any.store(1, SeqCst);
        }
        Mark {
            marks: self.clone(),
            bit,
        }
    }

    /// Nobody stages anything: what others have left is cleared, too.
    pub(crate) fn clear(&self) {
        let Some(page) = self.0.page else {
            return;
        };
        if !self.0.inherited.get() || !self.0.files.borrow().is_empty() {
            return;
        }
        self.0.inherited.set(false);
        page.gone.fetch_add(1, SeqCst);
        page.any.store(0, SeqCst);
        for word in &page.bits {
            word.store(0, SeqCst);
        }
    }

    fn remove(&self, bit: usize) {
        let mut files = self.0.files.borrow_mut();
        if let Some(page) = self.0.page {
            page.gone.fetch_add(1, SeqCst);
        }
        let Some(count) = files.get_mut(&bit) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        files.remove(&bit);
        if let Some(page) = self.0.page {
            let (word, mask) = page.word(bit);
            word.fetch_and(!mask, SeqCst);
            page.any.store(
                u32::from(!files.is_empty() || self.0.inherited.get()),
                SeqCst,
            );
        }
    }
}

/// A file that may be staged.
pub(crate) struct Mark {
    marks: Marks,
    bit: usize,
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.marks.remove(self.bit);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // Tests run without the preload.
mod tests {
    use super::*;
    use crate::testing::Scratch;

    fn id(ino: u64) -> FileId {
        FileId { dev: 7, ino }
    }

    #[test]
    fn a_file_is_seen_while_it_is_marked() {
        let scratch = Scratch::new();
        let dir = scratch.runtime();
        let here = Anywhere::new();
        assert!(here.get().is_none());
        assert!(here.open(&dir).is_err(), "nobody has made it");
        prepare(&dir).expect("a filter");
        let filter = here.open(&dir).expect("a filter");
        let marks = Marks::new(&dir.open().expect("a directory"));
        marks.clear();
        assert_eq!(filter.any().load(SeqCst), 0);
        let (first, again) = (marks.add(id(1)), marks.add(id(1)));
        assert!(filter.may_have(id(1)) && !filter.may_have(id(2)));
        let gone = filter.gone();
        drop(first);
        assert!(filter.may_have(id(1)), "another has it");
        assert!(filter.gone() > gone);
        drop(again);
        assert!(!filter.may_have(id(1)));
        assert_eq!(filter.any().load(SeqCst), 0);
    }

    #[test]
    fn what_a_killed_monitor_left_stays_until_nothing_is_held() {
        let scratch = Scratch::new();
        let dir = scratch.runtime();
        let opened = dir.open().expect("a directory");
        core::mem::forget(Marks::new(&opened).add(id(1)));
        let here = Anywhere::new();
        let filter = here.open(&dir).expect("a filter");
        let marks = Marks::new(&opened);
        let mark = marks.add(id(2));
        marks.clear();
        assert!(filter.may_have(id(1)) && filter.may_have(id(2)));
        drop(mark);
        assert!(filter.may_have(id(1)));
        marks.clear();
        assert!(!filter.may_have(id(1)));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let scratch = Scratch::new();
        let dir = scratch.runtime();
        let path = scratch.path("run/staged.1");
        let refused = || Anywhere::new().open(&dir).is_err();
        std::fs::write(&path, [0xff; SIZE - 1]).expect("a short one");
        assert!(refused());
        std::fs::remove_file(&path).expect("remove");
        std::os::unix::fs::symlink("elsewhere", &path).expect("a link");
        assert!(refused() && prepare(&dir).is_err());
        std::fs::remove_file(&path).expect("remove");
        std::fs::create_dir(&path).expect("a directory");
        assert!(refused() && prepare(&dir).is_err());
        // The monitor does without it.
        drop(Marks::new(&dir.open().expect("a directory")).add(id(1)));
        std::fs::remove_dir(&path).expect("remove");
        let made = crate::testing::spawn(std::process::Command::new("mkfifo").arg(&path)).wait();
        assert!(made.expect("mkfifo(1)").success());
        assert!(refused() && prepare(&dir).is_err());
    }
}
