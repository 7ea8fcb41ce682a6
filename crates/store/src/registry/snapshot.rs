//! Copies of other processes' registry files.
//!
//! Whatever lies in the runtime directory was written by somebody else: it may be cut, garbage, a
//! file of another build, or change while it is read. So files are read with `pread` (a mapping of
//! a file that is cut would fault), every number is checked or only shown, and no loop is longer
//! than the layout says.

use core::mem::{MaybeUninit, offset_of};

use rustix::fd::AsFd as _;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::layout::{ABI, Counters, HEADER, Header, MAGIC, PATH, SLOT, SLOTS, STRIPES, Slot};
use super::layout::{SIZE, slot_offset, state};
use super::sys::{self, Fd};
use super::text::{Text, number};
use super::{FileId, Reason};
use crate::clock;

/// Files looked at per pass; more than a user can have processes.
const MOST_FILES: usize = 1 << 17;

/// A file whose lock is free counts as given up only after this long if it never became ready.
const MAKING: u64 = 10_000_000_000;

/// Name of a registry file.
pub(crate) type Name = Text<64>;

/// What a file in the runtime directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Belongs to a living process.
    Alive,
    /// Its process is gone.
    Dead,
    /// Still being made.
    Making,
    /// Not of this build's layout, and its process lives or may live.
    Foreign,
    /// Not of this build's layout, and nobody holds it.
    Rubbish,
}

/// The names of all registry files in a directory.
pub(crate) fn names(dir: &Fd) -> Result<Vec<Name>, Errno> {
    // A description of our own, because reading moves its position.
    let own = sys::open_at(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
    let mut entries = RawDir::new(own.as_fd(), &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if let Some(name) = registry_name(entry.file_name().to_bytes()) {
            names.push(name);
        }
        if names.len() >= MOST_FILES {
            break;
        }
    }
    Ok(names)
}

/// `proc.PID.NONCE` and nothing else.
fn registry_name(bytes: &[u8]) -> Option<Name> {
    let mut parts = bytes.strip_prefix(b"proc.")?.split(|byte| *byte == b'.');
    number(parts.next()?)?;
    number(parts.next()?)?;
    if parts.next().is_some() {
        return None;
    }
    let mut name = Name::new();
    name.push(bytes).as_c_str()?;
    Some(name)
}

/// An open registry file with a copy of its header.
pub(crate) struct Snapshot {
    fd: Fd,
    header: Box<[u8; HEADER]>,
    age: u64,
    whole: bool,
}

impl Snapshot {
    /// Opens a registry file. `flags` says whether also for writing.
    pub(crate) fn open(dir: &Fd, name: &Name, flags: OFlags) -> Result<Self, Errno> {
        let path = name.as_c_str().ok_or(Errno::INVAL)?;
        // Not blocking, in case somebody put a pipe there.
        let fd = sys::open_at(dir, path, flags | OFlags::NONBLOCK, Mode::empty())?;
        let stat = rustix::fs::fstat(fd.as_fd())?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::PERM);
        }
        let mut header = Box::new([0u8; HEADER]);
        let read = sys::read_full(&fd, &mut header[..], 0)?;
        let modified = clock::nanoseconds(stat.st_mtime as i64, stat.st_mtime_nsec as i64);
        Ok(Self {
            fd,
            header,
            // A time that lies ahead says nothing; such a file is not being made now.
            age: clock::now().checked_sub(modified).unwrap_or(u64::MAX),
            whole: read == HEADER && stat.st_size as u64 == SIZE as u64,
        })
    }

    /// Judges the file, testing its lock only where that cannot disturb a process which is just
    /// about to take it.
    pub(crate) fn condition(&self) -> Result<Condition, Errno> {
        let ours = self.whole && self.long(offset_of!(Header, magic)) == MAGIC;
        let ours = ours && self.long(offset_of!(Header, abi)) == ABI;
        let ready = ours && self.word(offset_of!(Header, ready)) == 1;
        if !ready && self.age < MAKING {
            return Ok(Condition::Making);
        }
        let free = sys::try_lock(&self.fd, FlockOperation::NonBlockingLockShared)?;
        if free {
            let _ = rustix::fs::flock(self.fd.as_fd(), FlockOperation::Unlock);
        }
        Ok(match (ours, free) {
            (true, true) => Condition::Dead,
            (true, false) => Condition::Alive,
            (false, true) => Condition::Rubbish,
            (false, false) => Condition::Foreign,
        })
    }

    /// The file's descriptor.
    pub(crate) fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Slots that have ever been used.
    pub(crate) fn used(&self) -> usize {
        (self.word(offset_of!(Header, used)) as usize).min(SLOTS)
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.word(offset_of!(Header, pid))
    }

    /// Start time of the process.
    pub(crate) fn start_time(&self) -> u64 {
        self.long(offset_of!(Header, start_time))
    }

    /// When it attached.
    pub(crate) fn attached_at(&self) -> u64 {
        self.long(offset_of!(Header, attached_at))
    }

    /// Files that found no slot.
    pub(crate) fn refused(&self) -> u32 {
        self.word(offset_of!(Header, refused))
    }

    /// Name of the program.
    pub(crate) fn comm(&self) -> String {
        self.text(offset_of!(Header, comm), 16)
    }

    /// Name of its mode.
    pub(crate) fn mode(&self) -> String {
        self.text(offset_of!(Header, mode), 8)
    }

    fn text(&self, start: usize, most: usize) -> String {
        let bytes = self.header.get(start..start + most).unwrap_or_default();
        let len = bytes.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(bytes.get(..len.unwrap_or(most)).unwrap_or_default()).into_owned()
    }

    /// Counters of slots that were given away.
    pub(crate) fn retired(&self) -> Numbers {
        let mut numbers = Numbers::default();
        numbers.add(&self.header[..], offset_of!(Header, retired));
        numbers
    }

    /// Whether slot `index` waits for a settlement, or was left in the middle of one.
    pub(crate) fn unsettled(&self, index: usize) -> bool {
        let at = |start: usize| self.word(start + 4 * (index % SLOTS)) != 0;
        at(offset_of!(Header, pending)) || at(offset_of!(Header, settling))
    }

    /// A copy of slot `index`, unless it holds nothing.
    pub(crate) fn slot(&self, index: usize) -> Option<SlotCopy> {
        let mut bytes = Box::new([0u8; SLOT]);
        let offset = slot_offset(index) as u64;
        let read = sys::read_full(&self.fd, &mut bytes[..], offset).ok()?;
        let copy = SlotCopy { bytes };
        let state = copy.state() & state::MASK;
        (read == SLOT && matches!(state, state::OPEN | state::CLOSED)).then_some(copy)
    }

    fn word(&self, offset: usize) -> u32 {
        word(&self.header[..], offset)
    }

    fn long(&self, offset: usize) -> u64 {
        long(&self.header[..], offset)
    }
}

/// A copy of one slot.
pub(crate) struct SlotCopy {
    bytes: Box<[u8; SLOT]>,
}

impl SlotCopy {
    /// The state word with its generation.
    pub(crate) fn state(&self) -> u32 {
        word(&self.bytes[..], offset_of!(Slot, state))
    }

    /// Which use of the slot it was.
    pub(crate) fn generation(&self) -> u32 {
        self.state() & !state::MASK
    }

    /// Whether the descriptor was open.
    pub(crate) fn is_open(&self) -> bool {
        self.state() & state::MASK == state::OPEN
    }

    /// Descriptor number in the process.
    pub(crate) fn fd(&self) -> i32 {
        word(&self.bytes[..], offset_of!(Slot, fd)) as i32
    }

    /// Which file it is.
    pub(crate) fn id(&self) -> FileId {
        FileId {
            dev: self.long(offset_of!(Slot, dev)),
            ino: self.long(offset_of!(Slot, ino)),
        }
    }

    /// The inode's birth time.
    pub(crate) fn born(&self) -> u64 {
        self.long(offset_of!(Slot, born))
    }

    /// How often the process has taken its mark itself.
    pub(crate) fn taken(&self) -> u32 {
        word(&self.bytes[..], offset_of!(Slot, taken))
    }

    /// The path, if it was kept.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        let len = word(&self.bytes[..], offset_of!(Slot, path_len)) as usize;
        let start = offset_of!(Slot, path);
        let path = self.bytes.get(start..start + len.min(PATH))?;
        let sound = path.first() == Some(&b'/') && !path.contains(&0);
        sound.then_some(path)
    }

    /// A short word by its offset.
    pub(crate) fn word(&self, offset: usize) -> u32 {
        word(&self.bytes[..], offset)
    }

    /// A counter or time by its offset.
    pub(crate) fn long(&self, offset: usize) -> u64 {
        long(&self.bytes[..], offset)
    }

    /// All counters, added up.
    pub(crate) fn numbers(&self) -> Numbers {
        let mut numbers = Numbers::default();
        for stripe in 0..STRIPES {
            let start = offset_of!(Slot, stripes) + stripe * size_of::<Counters>();
            numbers.add(&self.bytes[..], start);
        }
        numbers
    }
}

/// Counters as plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) passed: [u64; Reason::COUNT],
}

impl Numbers {
    fn add(&mut self, bytes: &[u8], start: usize) {
        let add = |sum: &mut u64, offset: usize| {
            *sum = sum.wrapping_add(long(bytes, start + offset));
        };
        add(&mut self.reads, offset_of!(Counters, reads));
        add(&mut self.read_bytes, offset_of!(Counters, read_bytes));
        add(&mut self.writes, offset_of!(Counters, writes));
        add(&mut self.write_bytes, offset_of!(Counters, write_bytes));
        for (index, sum) in self.passed.iter_mut().enumerate() {
            add(sum, offset_of!(Counters, passed) + 8 * index);
        }
    }
}

fn word(bytes: &[u8], offset: usize) -> u32 {
    let bytes = bytes.get(offset..offset + 4).unwrap_or_default();
    u32::from_ne_bytes(bytes.try_into().unwrap_or_default())
}

fn long(bytes: &[u8], offset: usize) -> u64 {
    let bytes = bytes.get(offset..offset + 8).unwrap_or_default();
    u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::registry_name;

    #[test]
    fn only_names_of_registry_files_count() {
        assert!(registry_name(b"proc.12.345").is_some());
        for bad in [
            &b"proc"[..],
            b"proc.",
            b"proc.12",
            b"proc.12.",
            b"proc.12.3.4",
            b"proc.x.3",
            b"proc.12.-3",
            b"monitor.lock",
            b"..",
            b"proc.12345678901234567890123456789012345678901234567890.1",
        ] {
            assert!(registry_name(bad).is_none());
        }
    }
}
