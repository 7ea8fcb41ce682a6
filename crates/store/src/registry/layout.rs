//! What a registry file looks like: one header page, then [`SLOTS`] slots of fixed size.
//!
//! Every field is an atomic, so a reference into the mapping is sound whatever other processes do
//! to the bytes; every value read from here is checked before it is used as a number of anything.
//! The processes of one user may run different builds of Adit, so [`ABI`] names everything that
//! the layout depends on and a file with another word is left alone while its owner lives.

use core::mem::offset_of;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// First word of a registry file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ADITREG\0");

/// Files that one process can have registered at a time.
pub const SLOTS: usize = 256;

/// Independent sets of counters per file. Threads are spread over them, so that two threads which
/// share a file do not share a cache line.
pub const STRIPES: usize = 8;

/// Bytes of a path that are kept; a longer path is left out.
pub const PATH: usize = 512;

/// Bytes of the header page.
pub const HEADER: usize = 4096;

/// Bytes of one slot.
pub const SLOT: usize = 2048;

/// Bytes of a registry file.
pub const SIZE: usize = HEADER + SLOTS * SLOT;

/// Version of the meaning of the fields.
const VERSION: u64 = 4;

/// Second word of a registry file: meaning, geometry and byte order.
pub const ABI: u64 = VERSION
    | (SLOTS as u64) << 8
    | (SLOT as u64) << 20
    | (STRIPES as u64) << 36
    | (super::Reason::COUNT as u64) << 44
    | if cfg!(target_endian = "little") {
        0
    } else {
        1 << 63
    };

/// The header page.
#[repr(C, align(4096))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`ABI`].
    pub abi: AtomicU64,
    /// 1 once the file is complete and its lock is held: an unlocked file that is not ready is
    /// still being made, an unlocked file that is ready belongs to a dead process.
    pub ready: AtomicU32,
    /// Process id as the process itself sees it.
    pub pid: AtomicU32,
    /// Start time of the process in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_time: AtomicU64,
    /// When the process attached, nanoseconds since 1970.
    pub attached_at: AtomicU64,
    /// Name of the program, zero padded.
    pub comm: [AtomicU64; 2],
    /// Slots from this one on have never been used.
    pub used: AtomicU32,
    /// Files that found no free slot.
    pub refused: AtomicU32,
    /// Name of the process's mode, zero padded. Programs write over their environment.
    pub mode: AtomicU64,
    /// Counters of slots that were given to another file.
    pub retired: Counters,
    /// Per slot: 1 while mapped stores have not advanced the kernel's modification time. Kept
    /// together, so that the monitor reads them with one call; written seldom, so that sharing
    /// lines costs the writers nothing.
    pub pending: [AtomicU32; SLOTS],
    /// Per slot: 1 while the monitor takes the pending mark and advances the time; the process waits
    /// for that. A monitor that finds it set knows that its predecessor died there.
    pub settling: [AtomicU32; SLOTS],
}

/// One set of counters.
#[repr(C, align(128))]
pub struct Counters {
    /// Reads served in user space.
    pub reads: AtomicU64,
    /// Bytes of them.
    pub read_bytes: AtomicU64,
    /// Overwrites served in user space.
    pub writes: AtomicU64,
    /// Bytes of them.
    pub write_bytes: AtomicU64,
    /// Operations left to the kernel, by [`Reason`](super::Reason).
    pub passed: [AtomicU64; super::Reason::COUNT],
}

/// One open file of the process.
#[repr(C, align(2048))]
pub struct Slot {
    /// Low 8 bits: one of the `state` constants. Above: a generation that grows by one each time
    /// the slot is claimed, so that an observer notices that the slot changed under it.
    pub state: AtomicU32,
    /// Descriptor number in the process.
    pub fd: AtomicI32,
    /// Device of the file.
    pub dev: AtomicU64,
    /// Inode number of the file.
    pub ino: AtomicU64,
    /// Birth time of the inode in nanoseconds, zero where the file system has none: an inode
    /// number that was given to another file has another birth time.
    pub born: AtomicU64,
    /// When the file was registered, nanoseconds since 1970.
    pub opened_at: AtomicU64,
    /// Length of the path in [`path`](Self::path), zero when unknown.
    pub path_len: AtomicU32,
    /// Grows each time the process takes the mark in [`Header::pending`] itself, or what a monitor left
    /// in [`Header::settling`]: a settlement that began before is no longer anybody's to make.
    pub taken: AtomicU32,
    /// When the kernel's modification time was last advanced, nanoseconds since 1970.
    pub settled_at: AtomicU64,
    /// A [`Promise`](super::Promise).
    pub promise: AtomicU32,
    _pad00: AtomicU32,
    _pad0: [AtomicU64; 8],
    /// Bytes appended through this descriptor (128 bytes in, a line of its own).
    pub appended: AtomicU64,
    /// File position after the last append.
    pub append_position: AtomicU64,
    /// Number of appends.
    pub appends: AtomicU64,
    /// When the present window of appends began, nanoseconds since 1970.
    pub window_at: AtomicU64,
    /// One of the [`reserving`] constants.
    pub reserving: AtomicU32,
    /// Windows of appends judged, and how many of them were fast and slow, one byte each.
    pub windows: AtomicU32,
    _pad1: [AtomicU64; 11],
    /// Written by the monitor: blocks are reserved up to here.
    pub reserved_to: AtomicU64,
    /// Written by the monitor: reservations made.
    pub reservations: AtomicU64,
    _pad2: [AtomicU64; 30],
    /// Path of the file when it was registered, best effort.
    pub path: [AtomicU64; PATH / 8],
    /// Counters, one set per stripe.
    pub stripes: [Counters; STRIPES],
}

/// Values of the low 8 bits of [`Slot::state`].
pub mod state {
    /// Never used, or given back.
    pub const FREE: u32 = 0;
    /// Being filled in.
    pub const CLAIMED: u32 = 1;
    /// Belongs to an open descriptor.
    pub const OPEN: u32 = 2;
    /// The descriptor is closed; the counters are kept until the slot is needed.
    pub const CLOSED: u32 = 3;
    /// Mask of the state within the word.
    pub const MASK: u32 = 0xff;
    /// One generation.
    pub const GENERATION: u32 = 0x100;
}

/// Values of [`Slot::reserving`].
pub mod reserving {
    /// Blocks ahead were never asked for.
    pub const NEVER: u32 = 0;
    /// They were asked for, and the monitor holds nothing of the file.
    pub const ASKED: u32 = 1;
    /// The monitor holds a duplicate of the description.
    pub const HELD: u32 = 2;
}

const _: () = {
    assert!(size_of::<Header>() == HEADER);
    assert!(size_of::<Slot>() == SLOT);
    assert!(size_of::<Counters>() == 128);
    assert!(offset_of!(Slot, appended) == 128);
    assert!(offset_of!(Slot, reserved_to) == 256);
    assert!(offset_of!(Slot, path) == 512);
    assert!(offset_of!(Slot, stripes) == 1024);
};

/// Where slot `index` starts in the file.
#[must_use]
pub const fn slot_offset(index: usize) -> usize {
    HEADER + (index % SLOTS) * SLOT
}
