//! Which descriptions have their appends staged in mode `posix`, and from when on.
//!
//! Only a description that was opened for writing alone: where the program reads as well, a mapping
//! serves reads and overwrites better than the pool does. Its writes go to the kernel until so much was
//! written that the price of staging (a lease, an entry, and taking it away again) disappears in it, and
//! then only if the file has grown by them. Everything else becomes foreign at that time.
//!
//! In a process with one thread it is a candidate until then, which costs nothing; in others its
//! [`Writer`] is there from the start, because another thread may be between its decision to call the
//! kernel and the call. The kernel keeps the offset until the file is staged.

use crate::ofd::{self, Backing, Users};
use crate::process::With;
use crate::writer::Writer;
use crate::{descriptors, fds, init, process, signal, sys};
use adit_pmem::MediumKind;
use adit_store::staged::Mode;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes (and [`fds::CALL`] per call) that go through the kernel before a file is staged: staging one
/// and taking it away costs some hundred microseconds, two percent of what these take.
const PRICE: u64 = 16 << 20;

/// Set where appends are not staged any more.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whose appends are staged.
pub(crate) fn asked() -> Option<Appends> {
    init::appends().filter(|_| !STOPPED.load(Ordering::Relaxed))
}

/// Nothing is staged from here on; what is read and overwritten in place stays as it is.
pub(crate) fn stop() -> Result<(), c_int> {
    STOPPED.store(true, Ordering::SeqCst);
    process::unstage_all()
}

/// Whose appends are staged, as the environment says it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appends {
    /// Of files on DAX file systems, where they pay.
    Paying,
    /// Of all files in memory, at once and through any description. For tests.
    All,
}

impl Appends {
    /// The value of `ADIT_APPENDS`; `None` leaves all to the kernel.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"auto" => Some(Self::Paying),
            b"staged" => Some(Self::All),
            _ => None,
        }
    }

    /// Whether a description that was opened with this access mode is watched.
    pub(crate) fn watches(self, access: c_int) -> bool {
        access == libc::O_WRONLY || self == Self::All
    }

    fn price(self) -> u64 {
        match self {
            Self::Paying => init::asked_credit().unwrap_or(PRICE),
            Self::All => 0,
        }
    }

    /// Whether staging can pay on the medium of `fd`.
    fn fits(self, fd: c_int) -> bool {
        adit_pmem::is_marked_dax(fd)
            || (self == Self::All && adit_pmem::kind_of_fd(fd) == MediumKind::Ram)
    }
}

/// What a description writes through the kernel before its file is staged.
pub(crate) struct Trial {
    appends: Appends,
    /// What is left of the price.
    left: AtomicU64,
    /// The size of the file at the start, and what was written since.
    size: AtomicU64,
    moved: AtomicU64,
}

impl Trial {
    fn new(appends: Appends, price: u64, size: u64) -> Self {
        Self {
            appends,
            left: AtomicU64::new(price),
            size: AtomicU64::new(size),
            moved: AtomicU64::new(0),
        }
    }

    /// Notes what the kernel has written; whether the price is paid. Of threads that race some go free.
    pub(crate) fn wrote(&self, bytes: u64) -> bool {
        let relaxed = Ordering::Relaxed;
        self.moved
            .store(self.moved.load(relaxed).saturating_add(bytes), relaxed);
        self.pay(bytes + fds::CALL)
    }

    fn pay(&self, price: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(price);
        self.left.store(left, Ordering::Relaxed);
        left == 0
    }

    /// Notes an `fsync`, which takes as long as some appends.
    pub(crate) fn synced(&self) {
        self.pay(4 * fds::CALL);
    }

    /// Whether most of what was written has made the file grow.
    pub(crate) fn is_appender(&self, fd: c_int) -> bool {
        let relaxed = Ordering::Relaxed;
        let size = descriptors::regular_file(fd).map_or(0, |stat| stat.st_size as u64);
        let grown = size.saturating_sub(self.size.load(relaxed));
        self.appends == Appends::All || grown >= self.moved.load(relaxed).div_ceil(2)
    }

    /// The file was staged and is not any more.
    pub(crate) fn begin_anew(&self, fd: c_int) {
        let size = descriptors::regular_file(fd).map_or(0, |stat| stat.st_size as u64);
        self.size.store(size, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        self.left.store(self.appends.price(), Ordering::Relaxed);
    }
}

/// Watches a descriptor that the program has just opened with `flags`.
pub(crate) fn note_open(fd: c_int, flags: c_int, appends: Appends) {
    if descriptors::may_be_shared(fd) || flags & descriptors::KERNEL_ONLY != 0 {
        return;
    }
    let alone = flags & libc::O_ACCMODE == libc::O_WRONLY && init::single_threaded();
    if alone {
        return fds::set_candidate(fd, appends.price(), false);
    }
    if let Some(ofd) = promote(fd, flags, appends, appends.price()) {
        fds::set_promoted(fd, &ofd);
        if descriptors::may_be_shared(fd) {
            // Nothing is staged yet that could fail.
            let _ = process::share(fd, With::Anybody);
        }
    }
}

/// A candidate has written what staging costs. Without `alone`, somebody may be in a call on it.
pub(crate) fn look_at(
    fd: c_int,
    flags: c_int,
    alone: bool,
    appends: Appends,
) -> Option<Users<'static>> {
    let at_the_end = || {
        let size = descriptors::regular_file(fd).map(|stat| stat.st_size as usize);
        let offset = sys::lseek(fd as usize, 0, libc::SEEK_CUR as usize).ok();
        size.is_some() && size == offset
    };
    let appending = appends == Appends::All || flags & libc::O_APPEND != 0 || at_the_end();
    (alone && init::single_threaded() && appending)
        .then(|| promote(fd, flags, appends, 0))
        .flatten()
}

fn promote(fd: c_int, flags: c_int, appends: Appends, price: u64) -> Option<Users<'static>> {
    let stat = descriptors::regular_file(fd)?;
    // Before a call can hold something that a handler of a fault that was sent would wait for.
    if stat.st_nlink == 0 || !appends.fits(fd) || !signal::ready() {
        return None;
    }
    let trial = Trial::new(appends, price, stat.st_size as u64);
    let writer = Writer::new(Mode::Posix, flags, true).on_trial(trial);
    ofd::allocate(Backing::Writer(writer), None, None)
}
