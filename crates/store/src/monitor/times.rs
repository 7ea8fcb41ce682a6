//! Advancing the times of files that were changed by stores: of living processes through their own
//! descriptor tables, of dead ones by path.

use core::mem::offset_of;
use std::collections::BTreeMap;
use std::time::Instant;

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use crate::clock;
use crate::registry::layout::{Header, Slot, slot_offset};
use crate::registry::settle::{PROMPT, times};
use crate::registry::snapshot::{SlotCopy, Snapshot};
use crate::registry::sys::{self, Fd};
use crate::registry::text::Text;
use crate::registry::{FileId, birth};

/// Names looked at when files of a dead process are no longer where they were.
const MOST_NAMES: usize = 1 << 16;

/// What became of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The time was advanced.
    Advanced,
    /// It can be tried again later.
    Later,
    /// There was nothing to do, or nothing can be done.
    Nothing,
}

/// Settles one slot of a living process.
///
/// The order is the protocol of [`crate::registry::settle`]: note the count, look at the mark, show ourselves, look
/// at the count again, and only then take the mark and the time.
pub(super) fn of_living(snapshot: &Snapshot, index: usize) -> Settled {
    let marks = Marks { snapshot, index };
    let Some(slot) = snapshot.slot(index) else {
        return Settled::Nothing;
    };
    let left = marks.settling();
    if !left && !marks.pending() {
        return Settled::Nothing;
    }
    let pin = pin_through_process(snapshot.pid(), &slot).or_else(|| pin_by_path(&slot));
    if pin.is_none() && !slot.is_open() {
        // It will not come back, and until both marks are gone nobody uses the slot for anything else.
        marks.set_pending(0);
        marks.set_settling(0);
        return Settled::Nothing;
    }
    #[cfg(test)]
    planted::at(planted::Point::Looked);
    let begun = Instant::now();
    marks.set_settling(1);
    #[cfg(test)]
    planted::at(planted::Point::Shown);
    // Or the process has settled the file itself, or taken over what a dead monitor left; or the slot is another
    // file's, whose mark is not ours.
    let ours = snapshot
        .slot(index)
        .is_some_and(|now| now.generation() == slot.generation() && now.taken() == slot.taken());
    let settled = match pin.filter(|_| ours) {
        Some(pin) => settle_shown(&marks, &pin, begun),
        None => {
            if ours && left {
                // An open descriptor may be reachable again (a process that is not dumpable for now).
                marks.set_pending(1);
            }
            Settled::Later
        }
    };
    marks.set_settling(0);
    settled
}

fn settle_shown(marks: &Marks<'_>, pin: &Fd, begun: Instant) -> Settled {
    #[cfg(test)]
    planted::at(planted::Point::Ours);
    if begun.elapsed() > PROMPT {
        // The mark may be a newer one, of what was stored since the process has lost patience. If it has not, there may be
        // none any more, where another monitor has died over it.
        if marks.settling() {
            marks.set_pending(1);
        }
        return Settled::Later;
    }
    marks.set_pending(0);
    #[cfg(test)]
    planted::at(planted::Point::Taken);
    if begun.elapsed() > PROMPT {
        // The process may lose patience at any moment, and set the times itself. If it has done so, it has seen to
        // what was stored before.
        if marks.settling() {
            marks.set_pending(1);
        }
        return Settled::Later;
    }
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    match advance(pin, now) {
        Ok(()) => {
            marks.note(offset_of!(Slot, settled_at), clock::now());
            Settled::Advanced
        }
        Err(_) => Settled::Nothing,
    }
}

/// Settles what a dead process has left. Returns of how many files the time was advanced.
pub(super) fn of_dead(snapshot: &Snapshot) -> u64 {
    let mut advanced = 0;
    let mut elsewhere: BTreeMap<Vec<u8>, Vec<SlotCopy>> = BTreeMap::new();
    let unsettled = (0..snapshot.used()).filter(|index| snapshot.unsettled(*index));
    for slot in unsettled.filter_map(|index| snapshot.slot(index)) {
        match pin_by_path(&slot) {
            Some(pin) => advanced += settle_pinned(&pin),
            None => {
                if let Some(dir) = slot.path().and_then(directory_of) {
                    elsewhere.entry(dir.to_vec()).or_default().push(slot);
                }
            }
        }
    }
    // Nobody is answered meanwhile: each directory is read once, whatever it has lost, and no more than so many names.
    let mut names = MOST_NAMES;
    for (dir, slots) in elsewhere {
        advanced += settle_in(&dir, slots, &mut names);
    }
    advanced
}

fn settle_pinned(pin: &Fd) -> u64 {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    u64::from(advance(pin, now).is_ok())
}

/// The two marks of one slot, read and written with calls: a mapping of a file that somebody cuts
/// would kill the monitor.
struct Marks<'a> {
    snapshot: &'a Snapshot,
    index: usize,
}

impl Marks<'_> {
    fn pending(&self) -> bool {
        self.get(offset_of!(Header, pending))
    }

    fn settling(&self) -> bool {
        self.get(offset_of!(Header, settling))
    }

    fn set_pending(&self, value: u32) {
        self.set(offset_of!(Header, pending), value);
    }

    fn set_settling(&self, value: u32) {
        self.set(offset_of!(Header, settling), value);
    }

    fn get(&self, words: usize) -> bool {
        let mut bytes = [0u8; 4];
        let offset = (words + 4 * self.index) as u64;
        let read = sys::read_full(self.snapshot.fd(), &mut bytes, offset);
        read == Ok(4) && bytes != [0; 4]
    }

    fn set(&self, words: usize, value: u32) {
        let offset = (words + 4 * self.index) as u64;
        let _ = rustix::io::pwrite(self.snapshot.fd().as_fd(), &value.to_ne_bytes(), offset);
    }

    fn note(&self, field: usize, value: u64) {
        let offset = (slot_offset(self.index) + field) as u64;
        let _ = rustix::io::pwrite(self.snapshot.fd().as_fd(), &value.to_ne_bytes(), offset);
    }
}

/// Pins the file behind a descriptor of a living process. No description is opened, and what the
/// number leads to by now is checked: the program may have closed it.
fn pin_through_process(pid: u32, slot: &SlotCopy) -> Option<Fd> {
    let mut path = Text::<64>::new();
    path.push(b"/proc/").push_number(u64::from(pid));
    path.push(b"/fd/");
    path.push_number(u64::try_from(slot.fd()).ok()?);
    let pin = sys::pin(path.as_c_str()?, OFlags::empty()).ok()?;
    is_file(&pin, slot).then_some(pin)
}

/// Pins what has the recorded path, if it still is the file.
fn pin_by_path(slot: &SlotCopy) -> Option<Fd> {
    let mut path = Text::<1024>::new();
    path.push(slot.path()?);
    let pin = sys::pin(path.as_c_str()?, OFlags::NOFOLLOW).ok()?;
    is_file(&pin, slot).then_some(pin)
}

fn directory_of(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte == b'/')?;
    path.get(..end.max(1))
}

/// Settles files that have another name by now in the directory they were in: programs write under a temporary name and
/// rename. Looks at so many `names` at most.
fn settle_in(dir: &[u8], mut slots: Vec<SlotCopy>, names: &mut usize) -> u64 {
    let mut path = Text::<1024>::new();
    path.push(dir);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Some(Ok(dir)) = path.as_c_str().map(|path| sys::open(path, flags)) else {
        return 0;
    };
    let mut advanced = 0;
    let mut buffer = [core::mem::MaybeUninit::<u8>::uninit(); 8192];
    let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
    while *names > 0
        && !slots.is_empty()
        && let Some(Ok(entry)) = entries.next()
    {
        *names -= 1;
        #[cfg(test)]
        planted::NAMES.set(planted::NAMES.get() + 1);
        if slots.iter().all(|slot| slot.id().ino != entry.ino()) {
            continue;
        }
        let Ok(pin) = sys::open_at(&dir, entry.file_name(), OFlags::PATH, Mode::empty()) else {
            continue;
        };
        let left = slots.len();
        slots.retain(|slot| !is_file(&pin, slot));
        if slots.len() < left {
            advanced += settle_pinned(&pin);
        }
    }
    advanced
}

/// Whether a pin holds the slot's file, and not one that inherited its number.
fn is_file(pin: &Fd, slot: &SlotCopy) -> bool {
    sys::statx(pin.as_fd())
        .is_ok_and(|stat| FileId::of(&stat) == slot.id() && birth(&stat) == slot.born())
}

/// Sets the modification time of a pinned file and leaves the access time alone; where only the
/// owner may, both to now.
fn advance(pin: &Fd, modification: Timespec) -> Result<(), Errno> {
    let only = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: modification,
    };
    match set_times(pin, &only) {
        Err(Errno::PERM | Errno::ACCESS) if modification.tv_nsec == UTIME_NOW => {
            set_times(pin, &times(UTIME_NOW, UTIME_NOW))
        }
        other => other,
    }
}

fn set_times(pin: &Fd, times: &Timestamps) -> Result<(), Errno> {
    match rustix::fs::utimensat(pin.as_fd(), c"", times, AtFlags::EMPTY_PATH) {
        // Older kernels reach a pinned file through its magic link only.
        Err(Errno::INVAL) => {
            let mut path = Text::<64>::new();
            path.push(b"/proc/self/fd/");
            path.push_number(u64::try_from(pin.raw()).map_err(|_| Errno::BADF)?);
            let path = path.as_c_str().ok_or(Errno::BADF)?;
            rustix::fs::utimensat(CWD, path, times, AtFlags::empty())
        }
        other => other,
    }
}

/// What a test does between the steps of a settlement.
#[cfg(test)]
pub(super) mod planted {
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::cell::{Cell, RefCell};

    /// Where the settlement is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::monitor) enum Point {
        /// The mark was seen.
        Looked,
        /// The process can see that the monitor is settling.
        Shown,
        /// It was seen that the slot is the same, and the mark is about to be taken.
        Ours,
        /// The mark was taken, and the time is about to be.
        Taken,
    }

    type Act = Box<dyn FnMut(Point)>;

    std::thread_local! {
        static ACT: RefCell<Option<Act>> = const { RefCell::new(None) };
        /// Names that monitors of this thread have looked at.
        pub(in crate::monitor) static NAMES: Cell<usize> = const { Cell::new(0) };
    }

    /// How long the monitors of this process take for a settlement.
    pub(in crate::monitor) static MICROSECONDS: AtomicU64 = AtomicU64::new(0);
    /// Settlements that they have come to.
    pub(in crate::monitor) static SETTLED: AtomicU64 = AtomicU64::new(0);

    /// Has settlements of this thread do something in between.
    pub(in crate::monitor) fn act(act: impl FnMut(Point) + 'static) {
        ACT.set(Some(Box::new(act)));
    }

    pub(super) fn at(point: Point) {
        ACT.with_borrow_mut(|act| {
            if let Some(act) = act {
                act(point);
            }
        });
        if point == Point::Taken {
            SETTLED.fetch_add(1, Ordering::Relaxed);
            let time = MICROSECONDS.load(Ordering::Relaxed);
            adit_pmem::rest(core::time::Duration::from_micros(time));
        }
    }
}
