//! Making the process's registry file, lazily, and finding slots in it.
//!
//! The file is opened twice. One description carries the lock: its descriptor is closed at once and
//! only a mapping that forks do not inherit keeps it open, so the lock lives exactly as long as
//! this program in this process: a kill, an exit and an exec drop it, a forked child does not keep
//! it. The other description is mapped for the data, and forks do inherit that: a child that was
//! made behind our back finds valid memory.
//!
//! # Safety
//!
//! The `unsafe` blocks map the file and turn the mapping into references. Invariants: the file has
//! its full size before it is mapped, pages are populated before the first store to them (a full
//! file system is an error here instead of a signal later), every field is an atomic, and neither
//! mapping is ever unmapped, so references into them are good for the rest of the process. The
//! configuration is written only by the thread that moves the registry out of `UNCONFIGURED` and
//! the file's path only by the one that holds `ATTACHING`; others read them afterwards.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::fd::{AsFd as _, RawFd};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, Statx};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::dir::{DirError, Env, LONGEST, RuntimeDir};
use super::layout::{ABI, HEADER, Header, MAGIC, PATH, SIZE, SLOTS, Slot, slot_offset, state};
use super::slot::FileSlot;
use super::sys::{self, Fd};
use super::text::{Text, number};
use super::{FileId, Promise, birth, settle};
use crate::clock;

/// States of a registry.
mod phase {
    pub(super) const UNCONFIGURED: u32 = 0;
    pub(super) const CONFIGURING: u32 = 1;
    pub(super) const DETACHED: u32 = 2;
    pub(super) const ATTACHING: u32 = 3;
    pub(super) const ATTACHED: u32 = 4;
    pub(super) const GAVE_UP: u32 = 5;
}

/// How often attaching is tried before the process stays unrecorded: a full descriptor table may
/// pass, a missing directory does not.
const ATTEMPTS: u32 = 3;

/// What the environment said, copied because programs overwrite their environment.
struct Config {
    adit: Text<LONGEST>,
    xdg: Text<LONGEST>,
}

/// The process's attachment to the runtime directory. Made for a `static`.
///
/// All methods may be called from any thread and from a signal handler: they allocate nothing and
/// wait for nobody. When something fails, files are simply not recorded.
pub struct Registry {
    phase: AtomicU32,
    failures: AtomicU32,
    attachment: AtomicU32,
    base: AtomicPtr<u8>,
    /// As the header has it.
    mode: AtomicU64,
    config: UnsafeCell<Config>,
    file: UnsafeCell<Text<LONGEST>>,
}

// SAFETY: the two cells are written by one thread under a phase that excludes others, see the
// module's safety section; everything else is atomic.
unsafe impl Sync for Registry {}

impl Registry {
    /// A registry that records nothing until it is configured.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            phase: AtomicU32::new(phase::UNCONFIGURED),
            failures: AtomicU32::new(0),
            attachment: AtomicU32::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            mode: AtomicU64::new(0),
            config: UnsafeCell::new(Config {
                adit: Text::new(),
                xdg: Text::new(),
            }),
            file: UnsafeCell::new(Text::new()),
        }
    }

    /// Remembers where the runtime directory is. Makes no system call: a process that never
    /// promotes a file pays for a copy of two strings. Only the first call counts.
    pub fn configure(&self, env: &Env<'_>) {
        if !self.advance(phase::UNCONFIGURED, phase::CONFIGURING) {
            return;
        }
        // SAFETY: only the thread that made this transition gets here, and readers wait for the
        // next phase.
        let config = unsafe { &mut *self.config.get() };
        config.adit.push(env.adit_runtime_dir.unwrap_or_default());
        config.xdg.push(env.xdg_runtime_dir.unwrap_or_default());
        self.phase.store(phase::DETACHED, Ordering::Release);
    }

    /// Says in which mode the process is, by its name of up to eight bytes; before it registers a file.
    pub fn has_mode(&self, name: &[u8]) {
        let mut padded = [0; 8];
        for (to, from) in padded.iter_mut().zip(name) {
            *to = *from;
        }
        self.mode
            .store(u64::from_ne_bytes(padded), Ordering::Relaxed);
    }

    /// Registers an open file, attaching the process first if need be. `None` when there is no
    /// runtime directory, no room, or the descriptor does not lead to `id`: then nobody advances
    /// the file's times later, so stores through a mapping must not be made where only a later
    /// settlement would show them.
    pub fn file(&self, id: FileId, fd: RawFd) -> Option<FileSlot> {
        let stat = sys::statx(sys::borrow(fd)?).ok()?;
        if FileId::of(&stat) != id {
            return None;
        }
        let header = self.header_or_attach()?;
        let (slot, index, generation) = self.claim(header, id, birth(&stat))?;
        fill(slot, id, fd, &stat);
        slot.state
            .store(generation | state::OPEN, Ordering::Release);
        Some(FileSlot {
            slot,
            header,
            index,
            attachment: self.attachment(),
        })
    }

    /// Settles every file of the process whose times are behind: before `exec` and at exit.
    pub fn settle_all(&self) {
        self.each_open(|handle| {
            if handle.behind() {
                settle::by_recorded_descriptor(handle);
            }
        });
    }

    /// Settles the files that are `id`, so that a `stat` which follows (or follows again) tells the
    /// truth. Returns whether any time was advanced.
    pub fn settle_file(&self, id: FileId) -> bool {
        let mut advanced = false;
        self.each_open(|handle| {
            if handle.behind() && FileId::recorded(handle.slot) == id {
                advanced |= settle::by_recorded_descriptor(handle);
            }
        });
        advanced
    }

    /// Whether any file of the process waits for a settlement: lets `stat` skip everything else.
    #[must_use]
    pub fn any_pending(&self) -> bool {
        let mut any = false;
        self.each_open(|handle| any |= handle.pending());
        any
    }

    /// The child of a fork attaches anew when it next registers a file. Until then its copies of
    /// the parent's handles report to the parent's slots.
    pub fn after_fork_child(&self) {
        let phase = self.phase.load(Ordering::Acquire);
        if matches!(phase, phase::UNCONFIGURED | phase::GAVE_UP) {
            return;
        }
        // A phase in transition belongs to a thread that does not exist in this process.
        if phase == phase::CONFIGURING {
            self.phase.store(phase::GAVE_UP, Ordering::Release);
            return;
        }
        // Never attached, as most processes that fork: nothing is written, so no page is copied.
        if phase == phase::DETACHED && self.base.load(Ordering::Acquire).is_null() {
            return;
        }
        self.attachment.fetch_add(1, Ordering::AcqRel);
        self.base.store(ptr::null_mut(), Ordering::Release);
        self.phase.store(phase::DETACHED, Ordering::Release);
    }

    /// The process is about to end: settles and removes its file. The file stays for the monitor
    /// when a time could not be advanced. Never call it in a child that shares the parent's memory.
    pub fn detach(&self) {
        if self.phase.load(Ordering::Acquire) != phase::ATTACHED {
            return;
        }
        self.settle_all();
        let owner = self
            .header()
            .map(|header| header.pid.load(Ordering::Relaxed));
        let ours = owner == Some(own_pid());
        if !ours || self.any_pending() || !self.advance(phase::ATTACHED, phase::ATTACHING) {
            return;
        }
        // SAFETY: the phase excludes another writer; see the module's safety section.
        if let Some(path) = unsafe { &*self.file.get() }.as_c_str() {
            let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
        }
        self.attachment.fetch_add(1, Ordering::AcqRel);
        self.base.store(ptr::null_mut(), Ordering::Release);
        self.phase.store(phase::GAVE_UP, Ordering::Release);
    }

    /// Number of the present attachment; see [`FileSlot::is_stale`].
    #[inline]
    #[must_use]
    pub fn attachment(&self) -> u32 {
        self.attachment.load(Ordering::Acquire)
    }

    /// The path of the process's registry file, while there is one.
    #[must_use]
    pub fn file_path(&self) -> Option<&core::ffi::CStr> {
        let attached = self.phase.load(Ordering::Acquire) == phase::ATTACHED;
        // SAFETY: in this phase the path is only read; it is written again only after a fork, by
        // the child, in its own copy.
        attached.then(|| unsafe { &*self.file.get() }.as_c_str())?
    }

    fn advance(&self, from: u32, to: u32) -> bool {
        self.phase
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn header(&self) -> Option<&'static Header> {
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: a base that is not null is the start of a mapping of SIZE bytes which is never
        // unmapped, page aligned, and all fields are atomics.
        (!base.is_null()).then(|| unsafe { &*base.cast::<Header>() })
    }

    fn slot(&self, index: usize) -> Option<&'static Slot> {
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: as for the header; `slot_offset` never exceeds SIZE - SLOT and is a multiple of
        // the slot's alignment.
        (!base.is_null()).then(|| unsafe { &*base.add(slot_offset(index)).cast::<Slot>() })
    }

    fn header_or_attach(&self) -> Option<&'static Header> {
        if self.phase.load(Ordering::Acquire) != phase::ATTACHED {
            if !self.advance(phase::DETACHED, phase::ATTACHING) {
                return None;
            }
            let next = self.attach_now();
            self.phase.store(next, Ordering::Release);
        }
        self.header()
    }

    /// Attaches and says which phase follows. The caller holds `ATTACHING`.
    fn attach_now(&self) -> u32 {
        match self.make_file() {
            Ok((path, base)) => {
                // SAFETY: the phase excludes every other reader and writer of the path.
                unsafe { *self.file.get() = path };
                self.attachment.fetch_add(1, Ordering::AcqRel);
                self.base.store(base.cast(), Ordering::Release);
                phase::ATTACHED
            }
            Err(_) if self.failures.fetch_add(1, Ordering::Relaxed) + 1 < ATTEMPTS => {
                phase::DETACHED
            }
            Err(_) => phase::GAVE_UP,
        }
    }

    /// Where the runtime directory is; `None` before the registry is configured.
    pub fn runtime_dir(&self) -> Option<Result<RuntimeDir, DirError>> {
        if self.phase.load(Ordering::Acquire) < phase::DETACHED {
            return None;
        }
        // SAFETY: the configuration is not written after the phases before this one.
        let config = unsafe { &*self.config.get() };
        Some(RuntimeDir::resolve(&Env {
            adit_runtime_dir: Some(config.adit.as_bytes()),
            xdg_runtime_dir: Some(config.xdg.as_bytes()),
        }))
    }

    fn make_file(&self) -> Result<(Text<LONGEST>, *mut c_void), DirError> {
        let dir = self.runtime_dir().unwrap_or(Err(DirError::BadPath))?;
        let dir_fd = dir.open_or_create()?;
        let (name, data) = create(&dir_fd).map_err(DirError::Kernel)?;
        let mode = self.mode.load(Ordering::Relaxed);
        let made = prepare(&dir_fd, &name, &data, mode);
        if made.is_err()
            && let Some(name) = name.as_c_str()
        {
            let _ = rustix::fs::unlinkat(dir_fd.as_fd(), name, AtFlags::empty());
        }
        Ok((dir.file(name.as_bytes()), made.map_err(DirError::Kernel)?))
    }

    fn each_open(&self, mut action: impl FnMut(&FileSlot)) {
        let Some(header) = self.header() else {
            return;
        };
        let used = (header.used.load(Ordering::Acquire) as usize).min(SLOTS);
        for index in 0..used {
            let Some(slot) = self.slot(index) else {
                return;
            };
            if slot.state.load(Ordering::Acquire) & state::MASK == state::OPEN {
                action(&FileSlot {
                    slot,
                    header,
                    index,
                    attachment: self.attachment(),
                });
            }
        }
    }

    /// Claims a slot: one that was this file's before, so that a program which opens a file again
    /// and again keeps one set of numbers; else one never used; else any that is closed.
    fn claim(
        &self,
        header: &'static Header,
        id: FileId,
        born: u64,
    ) -> Option<(&'static Slot, usize, u32)> {
        let used = (header.used.load(Ordering::Acquire) as usize).min(SLOTS);
        let same =
            |slot: &Slot| FileId::recorded(slot) == id && slot.born.load(Ordering::Relaxed) == born;
        self.claim_closed(header, used, same, false)
            .or_else(|| self.claim_new(header))
            .or_else(|| self.claim_closed(header, used, |_| true, true))
            .or_else(|| {
                header.refused.fetch_add(1, Ordering::Relaxed);
                None
            })
    }

    fn claim_closed(
        &self,
        header: &'static Header,
        used: usize,
        wanted: impl Fn(&Slot) -> bool,
        retire: bool,
    ) -> Option<(&'static Slot, usize, u32)> {
        (0..used).find_map(|index| {
            let slot = self.slot(index)?;
            let word = slot.state.load(Ordering::Acquire);
            let free = matches!(word & state::MASK, state::FREE | state::CLOSED);
            // A closed file whose time is still behind waits for the monitor.
            let busy = header.pending[index].load(Ordering::Acquire) != 0
                || header.settling[index].load(Ordering::Acquire) != 0;
            if !free || busy || !wanted(slot) {
                return None;
            }
            let generation = take(slot, word)?;
            if retire {
                retire_counters(header, slot);
            }
            Some((slot, index, generation))
        })
    }

    fn claim_new(&self, header: &'static Header) -> Option<(&'static Slot, usize, u32)> {
        loop {
            let used = header.used.load(Ordering::Acquire);
            let index = used as usize;
            if index >= SLOTS {
                return None;
            }
            let slot = self.slot(index)?;
            let page = ptr::from_ref(slot).cast::<u8>().cast_mut();
            // Without the page in place the first store could meet a full file system.
            populate(page).ok()?;
            let next = used + 1;
            let won = header
                .used
                .compare_exchange(used, next, Ordering::AcqRel, Ordering::Relaxed);
            if won.is_err() {
                continue;
            }
            let word = slot.state.load(Ordering::Acquire);
            if word & state::MASK == state::FREE
                && let Some(generation) = take(slot, word)
            {
                return Some((slot, index, generation));
            }
        }
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

/// Moves a slot to `CLAIMED`; the next generation, ready for a state, when this thread won.
fn take(slot: &Slot, word: u32) -> Option<u32> {
    let generation = (word & !state::MASK).wrapping_add(state::GENERATION);
    slot.state
        .compare_exchange(
            word,
            generation | state::CLAIMED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
        .then_some(generation)
}

/// Adds a slot's counters to the process's totals and clears them.
fn retire_counters(header: &Header, slot: &Slot) {
    let drain = |from: &AtomicU64, into: &AtomicU64| {
        into.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    };
    let total = &header.retired;
    for stripe in &slot.stripes {
        drain(&stripe.reads, &total.reads);
        drain(&stripe.read_bytes, &total.read_bytes);
        drain(&stripe.writes, &total.writes);
        drain(&stripe.write_bytes, &total.write_bytes);
        for (from, into) in stripe.passed.iter().zip(&total.passed) {
            drain(from, into);
        }
    }
    for word in [
        &slot.appended,
        &slot.appends,
        &slot.settled_at,
        &slot.reservations,
    ] {
        word.store(0, Ordering::Relaxed);
    }
}

fn fill(slot: &Slot, id: FileId, fd: RawFd, stat: &Statx) {
    slot.fd.store(fd, Ordering::Relaxed);
    slot.dev.store(id.dev, Ordering::Relaxed);
    slot.ino.store(id.ino, Ordering::Relaxed);
    slot.born.store(birth(stat), Ordering::Relaxed);
    slot.opened_at.store(clock::now(), Ordering::Relaxed);
    slot.reserved_to.store(0, Ordering::Relaxed);
    slot.append_position.store(0, Ordering::Relaxed);
    slot.window_at.store(0, Ordering::Relaxed);
    slot.windows.store(0, Ordering::Relaxed);
    slot.reserving.store(0, Ordering::Relaxed);
    slot.taken.store(0, Ordering::Relaxed);
    slot.promise.store(Promise::Kept as u32, Ordering::Relaxed);
    let mut buffer = [0u8; PATH];
    let len = path_of(fd, &mut buffer).unwrap_or(0);
    for (word, bytes) in slot.path.iter().zip(buffer.chunks_exact(8)) {
        let bytes = bytes.try_into().unwrap_or_default();
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
    slot.path_len.store(len as u32, Ordering::Relaxed);
}

/// Where a descriptor leads, unless the path is too long to be kept whole.
fn path_of(fd: RawFd, buffer: &mut [u8; PATH]) -> Option<usize> {
    let mut link = Text::<64>::new();
    link.push(b"/proc/thread-self/fd/");
    link.push_number(u64::try_from(fd).ok()?);
    let len = rustix::fs::readlinkat_raw(CWD, link.as_c_str()?, &mut buffer[..]).ok()?;
    let whole = len < PATH;
    if !whole {
        buffer.fill(0);
    }
    whole.then_some(len)
}

fn own_pid() -> u32 {
    u32::try_from(rustix::process::getpid().as_raw_nonzero().get()).unwrap_or(0)
}

/// Creates the process's file under a name nobody has used.
fn create(dir: &Fd) -> Result<(Text<64>, Fd), Errno> {
    let mut nonce = clock::now();
    for _ in 0..8 {
        let mut name = Text::new();
        name.push(b"proc.").push_number(u64::from(own_pid()));
        name.push(b".").push_number(nonce);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let path = name.as_c_str().ok_or(Errno::NAMETOOLONG)?;
        match sys::open_at(dir, path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => {
                // The monitor opens it, too; the program's mask may have taken its owner's rights.
                rustix::fs::fchmod(fd.as_fd(), Mode::RUSR | Mode::WUSR)?;
                return Ok((name, fd));
            }
            Err(Errno::EXIST) => nonce = nonce.wrapping_add(1),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EXIST)
}

/// Sizes, locks and maps a new file and fills in its header.
fn prepare(dir: &Fd, name: &Text<64>, data: &Fd, mode: u64) -> Result<*mut c_void, Errno> {
    rustix::fs::ftruncate(data.as_fd(), SIZE as u64)?;
    let name = name.as_c_str().ok_or(Errno::NAMETOOLONG)?;
    let lock = sys::open_at(dir, name, OFlags::RDONLY, Mode::empty())?;
    if !sys::try_lock(&lock, FlockOperation::NonBlockingLockExclusive)? {
        return Err(Errno::AGAIN);
    }
    let base = map(data, SIZE, ProtFlags::READ | ProtFlags::WRITE)?;
    let made = first_page(base, data).and_then(|()| keep_lock(&lock));
    if let Err(error) = made {
        // SAFETY: the mapping was made above and nothing refers to it yet.
        let _ = unsafe { munmap(base, SIZE) };
        return Err(error);
    }
    // SAFETY: the mapping has SIZE bytes, is page aligned, zero filled, and all fields are atomics.
    let header = unsafe { &*base.cast::<Header>() };
    describe(header);
    header.mode.store(mode, Ordering::Relaxed);
    header.ready.store(1, Ordering::Release);
    Ok(base)
}

/// Makes sure that the header page, or on an old kernel the whole file, has its memory.
fn first_page(base: *mut c_void, data: &Fd) -> Result<(), Errno> {
    if populate(base.cast())? {
        return Ok(());
    }
    rustix::fs::fallocate(data.as_fd(), FallocateFlags::empty(), 0, SIZE as u64)
}

/// Keeps the lock's description open through a mapping that forks do not inherit.
fn keep_lock(lock: &Fd) -> Result<(), Errno> {
    let page = map(lock, HEADER, ProtFlags::READ)?;
    // SAFETY: the range is the mapping just made.
    let advised = unsafe { madvise(page, HEADER, Advice::LinuxDontFork) };
    if advised.is_err() {
        // SAFETY: as above, and nothing refers to the mapping.
        let _ = unsafe { munmap(page, HEADER) };
    }
    advised
}

fn map(fd: &Fd, len: usize, protection: ProtFlags) -> Result<*mut c_void, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    unsafe {
        mmap(
            ptr::null_mut(),
            len,
            protection,
            MapFlags::SHARED,
            fd.as_fd(),
            0,
        )
    }
}

/// Gives the page around `at` its memory now. `Ok(false)` means that the kernel (before 5.14) does
/// not know how; then the whole file is allocated when it is made.
fn populate(at: *mut u8) -> Result<bool, Errno> {
    let page = at.map_addr(|address| address & !(HEADER - 1));
    // SAFETY: the page lies in the mapping of the file; populating changes no contents.
    match unsafe { madvise(page.cast(), HEADER, Advice::LinuxPopulateWrite) } {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Fills in who the process is.
fn describe(header: &Header) {
    header.magic.store(MAGIC, Ordering::Relaxed);
    header.abi.store(ABI, Ordering::Relaxed);
    header.pid.store(own_pid(), Ordering::Relaxed);
    header.attached_at.store(clock::now(), Ordering::Relaxed);
    let mut buffer = [0u8; 512];
    let read = sys::open(c"/proc/self/stat", OFlags::RDONLY)
        .and_then(|fd| sys::read_full(&fd, &mut buffer, 0));
    let Some((comm, start)) = buffer.get(..read.unwrap_or(0)).and_then(parse_stat) else {
        return;
    };
    header.start_time.store(start, Ordering::Relaxed);
    let mut padded = [0u8; 16];
    for (to, from) in padded.iter_mut().zip(comm) {
        *to = *from;
    }
    for (word, bytes) in header.comm.iter().zip(padded.chunks_exact(8)) {
        let bytes = bytes.try_into().unwrap_or_default();
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

/// Program name and start time out of `/proc/PID/stat`. The name may contain spaces and
/// parentheses, so the fields are counted from the last one.
fn parse_stat(text: &[u8]) -> Option<(&[u8], u64)> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let comm = text.get(open + 1..close)?;
    let start = text.get(close + 2..)?.split(|byte| *byte == b' ').nth(19)?;
    Some((comm, number(start)?))
}

#[cfg(test)]
mod tests {
    use super::parse_stat;

    #[test]
    fn a_program_name_may_look_like_anything() {
        let text = b"12 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(parse_stat(text), Some((&b"a) R (b"[..], 4711)));
        assert_eq!(parse_stat(b"12 (cut"), None);
        assert_eq!(parse_stat(b""), None);
    }
}
