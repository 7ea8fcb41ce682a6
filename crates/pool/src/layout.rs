//! Every type that lies in the pool file, and nothing else: what a byte on the medium means.
//!
//! `docs/format.md` holds the same tables for readers; a test compares the two. All numbers are
//! little-endian. Words that several processes change at once are 8 bytes wide and change by one
//! atomic store or compare-and-swap; everything wider is guarded by a CRC32C.

/// First eight bytes of every pool.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ADITPOOL");
/// Version of the format that this code reads and writes.
pub const VERSION: u32 = 1;
/// Size of a page, the unit of whole-page extents and of the areas in the header.
pub const PAGE: u64 = 4096;
/// Size of a cache line, the smallest extent and the size of a log record.
pub const LINE: u64 = 64;
/// Offset of the first copy of the superblock.
pub const SUPERBLOCK_A: u64 = 0;
/// Offset of the second copy of the superblock.
pub const SUPERBLOCK_B: u64 = PAGE;
/// Offset of the shared words ([`Shared`]).
pub const SHARED: u64 = 2 * PAGE;
/// Offset of the name-chunk table: one word per group of file entries.
pub const NAMES: u64 = 3 * PAGE;
/// Offset of the attachment slots; the chunk table and the file table follow.
pub const SLOTS: u64 = 4 * PAGE;
/// Pages that hold one file's name (handle and path).
pub const NAME_PAGES: u64 = 2;
/// Largest file handle the kernel gives (`MAX_HANDLE_SZ`).
pub const HANDLE_MAX: usize = 128;
/// Longest path kept with a file.
pub const PATH_LIMIT: usize = 4096;
/// Owner number of chunks whose attachment died and whose log still waits for recovery.
pub const ORPHAN: u16 = u16::MAX;

/// A value with a fixed place in a media structure.
pub trait Field: Copy {
    /// Bytes it takes.
    const SIZE: usize;
    /// Writes it, little-endian.
    fn put(self, into: &mut [u8]);
    /// Reads it back.
    fn get(from: &[u8]) -> Self;
}

macro_rules! integer_field {
    ($($t:ty),*) => {$(
        impl Field for $t {
            const SIZE: usize = size_of::<$t>();
            fn put(self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_le_bytes());
            }
            fn get(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$t>()];
                bytes.copy_from_slice(from);
                <$t>::from_le_bytes(bytes)
            }
        }
    )*};
}
integer_field!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;
    fn put(self, into: &mut [u8]) {
        into.copy_from_slice(&self);
    }
    fn get(from: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(from);
        bytes
    }
}

/// Where a field of a media structure lies: what `docs/format.md` is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldPlace {
    /// Name of the field.
    pub name: &'static str,
    /// Offset from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

macro_rules! media_struct {
    ($(#[$doc:meta])* $name:ident : $size:literal { $($(#[$fdoc:meta])* $field:ident : $t:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $t,)* }

        impl $name {
            /// Bytes on the medium.
            pub const SIZE: usize = $size;
            /// The place of every field.
            pub const FIELDS: &'static [FieldPlace] = &[$(FieldPlace {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
                size: <$t as Field>::SIZE,
            },)*];

            /// The bytes of this structure on the medium.
            #[must_use]
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $({
                    let at = std::mem::offset_of!($name, $field);
                    self.$field.put(&mut bytes[at..at + <$t as Field>::SIZE]);
                })*
                bytes
            }

            /// Reads the structure from its bytes; nothing is validated.
            #[must_use]
            pub fn decode(bytes: &[u8; $size]) -> Self {
                Self {$($field: {
                    let at = std::mem::offset_of!($name, $field);
                    <$t as Field>::get(&bytes[at..at + <$t as Field>::SIZE])
                },)*}
            }
        }

        // Padding would be bytes without a meaning: the fields must fill the structure.
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(0 $(+ <$t as Field>::SIZE)* == $size);
        };
    };
}

media_struct! {
    /// Geometry and state of the pool. Two copies; the valid one with the higher `update` counts.
    Superblock: 128 {
        /// [`MAGIC`].
        magic: u64,
        /// [`VERSION`].
        version: u32,
        /// [`Superblock::CLEAN`].
        flags: u32,
        /// [`ABI`]: layout, byte order and page size of the writer.
        abi: u64,
        /// Number of times the superblock was written.
        update: u64,
        /// Random identity of the pool.
        uuid: [u8; 16],
        /// Boot id of the system that used the pool last.
        boot_id: [u8; 16],
        /// Binary logarithm of the chunk size.
        chunk_shift: u32,
        /// Chunks the pool has now, header included.
        chunk_count: u32,
        /// Chunks the chunk table has room for.
        max_chunks: u32,
        /// Attachment slots.
        slot_count: u32,
        /// Entries of the file table.
        file_count: u32,
        /// Chunks the pool was made with: it is never cut below.
        first_chunks: u32,
        /// Zero.
        reserved: [u8; 36],
        /// CRC32C of the bytes before.
        crc: u32,
    }
}

impl Superblock {
    /// Flag: nothing is staged and nobody is attached.
    pub const CLEAN: u32 = 1;
    /// So often no superblock was ever written.
    const NEVER: u64 = 1 << 63;

    /// The CRC that belongs to the other fields.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c::crc32c(&self.encode()[..Self::SIZE - 4])
    }

    /// Whether magic, CRC and geometry are sound (version and ABI are judged apart).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.magic == MAGIC
            && self.crc == self.expected_crc()
            && self.update < Self::NEVER
            && self.geometry().is_valid()
            && (self.geometry().header_chunks() + 1..=self.max_chunks).contains(&self.chunk_count)
    }

    /// The sizes that decide where everything lies.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry {
            chunk_shift: self.chunk_shift,
            max_chunks: self.max_chunks,
            slot_count: self.slot_count,
            file_count: self.file_count,
        }
    }
}

media_struct! {
    /// Words shared by all attachments. Locks and counters are volatile: reset by the first
    /// attachment after an unclean end.
    Shared: 320 {
        /// Lock over the superblock and growing.
        super_lock: u64,
        /// Fills the line.
        pad0: [u8; 56],
        /// Lock over adding and removing file entries.
        files_lock: u64,
        /// Fills the line.
        pad1: [u8; 56],
        /// Lock over repairing after dead attachments.
        recovery_lock: u64,
        /// Fills the line.
        pad2: [u8; 56],
        /// Files that have an entry: zero says that nothing is staged anywhere.
        staged_files: u64,
        /// Fills the line.
        pad3: [u8; 56],
        /// Chunks the pool has now, mirrored from the superblock.
        chunk_count: u64,
        /// Fills the line.
        pad4: [u8; 56],
    }
}

media_struct! {
    /// One attachment slot. Alive exactly while the slot's byte of the pool file is locked.
    Slot: 64 {
        /// 0 free, 1 attached.
        state: u64,
        /// Number of times the slot was taken.
        incarnation: u64,
        /// Process id as its own namespace numbers it: for people, never for decisions.
        pid: u64,
        /// Tag of the boot in which the slot was taken.
        boot: u64,
        /// Zero.
        reserved: [u8; 32],
    }
}

impl Slot {
    /// State of a slot nobody holds.
    pub const FREE: u64 = 0;
    /// State of a slot that was taken (and is alive while its byte is locked).
    pub const ATTACHED: u64 = 1;

    /// Whether the state is one that exists.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.state <= Self::ATTACHED
    }
}

media_struct! {
    /// One staged file: identity (first line) and progress (second line).
    FileEntry: 128 {
        /// Low byte: [`FileEntry::EMPTY`] or [`FileEntry::LIVE`]; above [`FileEntry::CACHED`]; high half: CRC32C of the
        /// identity.
        state: u64,
        /// Generation of the entry (upper 40 bits) and its index (lower 24).
        file_id: u64,
        /// Hash of the handle, by which the entry is found.
        key: u64,
        /// Bytes of the name ([`Name`] and what follows).
        name_len: u32,
        /// CRC32C of the name.
        name_crc: u32,
        /// Device number of the file when it was entered.
        device: u64,
        /// Tag of the boot in which the entry was made.
        boot: u32,
        /// Zero.
        reserved: [u8; 12],
        /// When the file was last written, in nanoseconds since 1970; 0 when not known (volatile).
        modified: u64,
        /// Records up to this sequence number are in the base file (checked word, durable).
        retired: u64,
        /// Data CRCs of records up to this sequence number no longer count (checked word, durable).
        sealed: u64,
        /// Lock of the file (volatile).
        lock: u64,
        /// Sequence number of the next record (volatile).
        next_seq: u64,
        /// End of the file with everything staged (volatile).
        end: u64,
        /// Sequence number of the last record written (volatile).
        last_seq: u64,
        /// Place in the log of the record being written, plus one (volatile).
        pending: u64,
        /// Who publishes the file, slot + 1 in bits 0-15; how often that changed, bits 16-38; whether several
        /// programs may have it staged, bit 39; how often staged bytes were relinked, bits 40-62; whether they
        /// are right now, bit 63 (volatile).
        version: u64,
    }
}

impl FileEntry {
    /// Names no file. Its `file_id` still says which generation comes next.
    pub const EMPTY: u8 = 0;
    /// Names a file; its records count.
    pub const LIVE: u8 = 1;
    /// Beside [`FileEntry::LIVE`]: made where a fence is a kernel sync, so that a loss of power may have left a part of it.
    pub const CACHED: u64 = 1 << 8;
    /// Bits of `file_id` that number the entry.
    pub const INDEX_BITS: u32 = 24;

    /// CRC32C of the identity: the bytes between the state and the words that change, behind whether it is
    /// [`FileEntry::CACHED`].
    #[must_use]
    pub fn identity_crc(&self) -> u32 {
        crc32c::crc32c_append(u32::from(self.is_cached()), &self.encode()[8..56])
    }

    /// The state word of a live entry with this identity, made where this one was.
    #[must_use]
    pub fn live_state(&self) -> u64 {
        let live = u64::from(Self::LIVE) | self.state & Self::CACHED;
        u64::from(self.identity_crc()) << 32 | live
    }

    /// Whether it says that it was made where a fence is a kernel sync.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.state & Self::CACHED != 0
    }

    /// Low byte of the state.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.state.to_le_bytes()[0]
    }

    /// Whether the entry is sound at place `index` of the table.
    #[must_use]
    pub fn is_valid(&self, index: u32) -> bool {
        match self.kind() {
            Self::EMPTY => self.state == 0,
            Self::LIVE => {
                self.is_itself(index)
                    && self.name_len as usize <= Name::SIZE + HANDLE_MAX + PATH_LIMIT
                    && checked_value(self.retired, self.file_id).is_some()
                    && checked_value(self.sealed, self.file_id).is_some()
            }
            _ => false,
        }
    }

    /// Whether it lives, at place `index` of the table, and its `state` agrees with all that its file is known by.
    #[must_use]
    pub fn is_itself(&self, index: u32) -> bool {
        self.state == self.live_state()
            && self.file_id & ((1 << Self::INDEX_BITS) - 1) == u64::from(index)
    }

    /// Whether the words are zero that an entry behind a page cache gives up when its file is forgotten.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.encode()[16..56].iter().all(|byte| *byte == 0)
    }

    /// Whether an entry that says it lives, and is not sound, is a part of one that was made over a blank one
    /// ([`FileEntry::is_blank`]), or of one that was being made blank: a word of it is missing, or its number or its
    /// marks are still those of the file before. Only where a fence is a kernel sync nothing keeps its parts in order.
    #[must_use]
    pub fn is_unfinished(&self, index: u32) -> bool {
        if self.kind() != Self::LIVE || !self.is_cached() || self.is_valid(index) {
            return false;
        }
        let bytes = self.encode();
        // Key, length and CRC of the name, device, boot: of a sound entry none is zero.
        let mut words = bytes[16..48].chunks_exact(8);
        let generation = 1 << Self::INDEX_BITS;
        let next = Self {
            file_id: self.file_id.wrapping_add(generation),
            ..*self
        };
        let before = self.file_id.wrapping_sub(generation);
        let of_either = |mark: u64| {
            checked_value(mark, self.file_id).is_some() || checked_value(mark, before).is_some()
        };
        let marks_are_old =
            || self.state == self.live_state() && of_either(self.retired) && of_either(self.sealed);
        words.any(|word| word == [0; 8]) || next.state == next.live_state() || marks_are_old()
    }
}

media_struct! {
    /// Head of a file's name; handle bytes and path follow it.
    Name: 32 {
        /// [`Name::MAGIC`].
        magic: u64,
        /// The entry it belongs to.
        file_id: u64,
        /// Type of the handle, as `name_to_handle_at` gave it.
        handle_type: u32,
        /// Bytes of the handle.
        handle_len: u32,
        /// Bytes of the path.
        path_len: u32,
        /// Zero.
        reserved: u32,
    }
}

impl Name {
    /// First word of every name.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"ADITNAME");

    /// Whether the head is sound for the entry `file_id` whose name has `len` bytes.
    #[must_use]
    pub fn is_valid(&self, file_id: u64, len: usize) -> bool {
        self.magic == Self::MAGIC
            && self.file_id == file_id
            && self.handle_len as usize <= HANDLE_MAX
            && self.path_len as usize <= PATH_LIMIT
            && Self::SIZE + self.handle_len as usize + self.path_len as usize == len
    }
}

media_struct! {
    /// One log record, one cache line. The CRC covers the rest and, as its seed, the pool and the
    /// record's place, so that a record found elsewhere is not believed.
    Record: 64 {
        /// CRC32C, seeded with uuid, chunk and position.
        crc: u32,
        /// A [`RecordKind`], or [`Record::ERASED`].
        kind: u8,
        /// [`Record::COMMITTED`], [`Record::GROUP`], [`Record::DATA_CRC`], [`Record::CHAINED`],
        /// [`Record::TOGETHER`], [`Record::PAGED`].
        flags: u8,
        /// Zero.
        reserved: u16,
        /// The file entry.
        file_id: u64,
        /// Position in the file's order.
        seq: u64,
        /// Offset in the file; the new size for a truncate.
        file_offset: u64,
        /// Offset in the pool of the staged bytes.
        pool_offset: u64,
        /// Number of bytes; for the commit of a group, the number of its records.
        len: u32,
        /// CRC32C of the staged bytes, when `DATA_CRC` is set.
        data_crc: u32,
        /// Tag of the boot in which it was written.
        boot: u32,
        /// Generation of the log chunk; an older one is a leftover.
        generation: u32,
        /// Sequence number of the file's record written before this one, 0 for the first: the chain
        /// by which a commit knows what it covers, gaps left by dead writers skipped.
        prev: u64,
    }
}

impl Record {
    /// Flag: counts after a crash of the system without a commit record.
    pub const COMMITTED: u8 = 1;
    /// Flag: part of a group, counts only when the group's commit record is there.
    pub const GROUP: u8 = 2;
    /// Flag: `data_crc` is set.
    pub const DATA_CRC: u8 = 4;
    /// Flag: the record `prev` was not known to be durable when this one was written, so after a crash of
    /// the system this one counts only if that one is there.
    pub const CHAINED: u8 = 8;
    /// Flag of a commit: one of a ring, each of another file, which count only all together.
    pub const TOGETHER: u8 = 16;
    /// Flag: written where a fence is a kernel sync, so a loss of power may have kept any part of what it names.
    pub const PAGED: u8 = 32;
    /// Kind of a record that was erased: its first word alone says so.
    pub const ERASED: u8 = 255;

    /// The first word of the line at `position` of `chunk`, once the record there is erased. One word cannot be torn, so
    /// whatever a loss of power leaves of the others, there is the record or none. Its CRC is that of a record with no
    /// other word, so a word that decays is not taken for it.
    #[must_use]
    pub fn erased_word(uuid: &[u8; 16], chunk: u32, position: u32) -> u64 {
        let words = [u64::from(Self::ERASED) << 32, 0, 0, 0, 0, 0, 0, 0];
        words[0] | u64::from(crc_of_words(&words, uuid, chunk, position))
    }

    /// Whether the record that was at `position` of `chunk` is erased.
    #[must_use]
    pub fn is_erased(&self, uuid: &[u8; 16], chunk: u32, position: u32) -> bool {
        self.kind == Self::ERASED && self.words()[0] == Self::erased_word(uuid, chunk, position)
    }

    /// The words of the record on the medium, which are quicker to make and to write than bytes.
    #[must_use]
    #[inline]
    pub fn words(&self) -> [u64; 8] {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let kinds = u32::from(self.kind) | u32::from(self.flags) << 8;
        [
            two(self.crc, kinds | u32::from(self.reserved) << 16),
            self.file_id,
            self.seq,
            self.file_offset,
            self.pool_offset,
            two(self.len, self.data_crc),
            two(self.boot, self.generation),
            self.prev,
        ]
    }

    /// The CRC that belongs to this record at `position` of `chunk`.
    #[must_use]
    pub fn expected_crc(&self, uuid: &[u8; 16], chunk: u32, position: u32) -> u32 {
        crc_of_words(&self.words(), uuid, chunk, position)
    }

    /// Whether the record belongs where it lies and is complete (not whether it makes sense).
    #[must_use]
    pub fn is_valid(&self, uuid: &[u8; 16], chunk: u32, position: u32) -> bool {
        self.crc == self.expected_crc(uuid, chunk, position)
    }

    /// The record that belongs at `position` of `chunk` and differs in no more than one bit from this one, and which bit
    /// that is. A line of zeros is none: it was never written. Nor is one that was erased.
    #[must_use]
    pub fn mended(self, uuid: &[u8; 16], chunk: u32, position: u32) -> Option<(Self, Option<u32>)> {
        if self.is_erased(uuid, chunk, position) {
            return None;
        }
        let off = self.crc ^ self.expected_crc(uuid, chunk, position);
        if off == 0 {
            return Some((self, None));
        }
        let mut bytes = self.encode();
        let bit = crate::crc::flipped_bit(off).filter(|_| bytes != [0; Self::SIZE])?;
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
        Some((Self::decode(&bytes), Some(bit)))
    }
}

/// CRC32C of an encoded record's bytes 4..64, seeded with where it lies, and inverted: so a line of zeros is
/// never a valid record.
#[must_use]
pub fn crc_of_record(bytes: &[u8; 64], uuid: &[u8; 16], chunk: u32, position: u32) -> u32 {
    crc_of_words(&Record::decode(bytes).words(), uuid, chunk, position)
}

/// [`crc_of_record`] of a record's words.
#[inline]
pub(crate) fn crc_of_words(words: &[u64; 8], uuid: &[u8; 16], chunk: u32, position: u32) -> u32 {
    let [first, rest @ ..] = words;
    let uuid = u128::from_le_bytes(*uuid);
    let place = [
        uuid as u64,
        (uuid >> 64) as u64,
        u64::from(chunk) | u64::from(position) << 32,
    ];
    let head = (first >> 32) as u32;
    crate::crc::Covered { place, head, rest }.inverse_crc()
}

/// What a record does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[repr(u8)]
pub enum RecordKind {
    /// The bytes of an extent become the file's bytes at an offset (overwrite or append).
    Write = 1,
    /// The file gets a new size.
    Truncate = 2,
    /// A range of the file becomes zeros.
    Zero = 3,
    /// Staged bytes are about to be handed to the file without being copied: where they are no longer
    /// what they were, the file has them.
    Relink = 4,
    /// The records before it count after a crash of the system; with `GROUP`, they count at all.
    Commit = 5,
}

impl RecordKind {
    /// The kind with this number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::Write,
            Self::Truncate,
            Self::Zero,
            Self::Relink,
            Self::Commit,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }

    /// Whether the record has an extent of the pool. A relink only names what writes before it have.
    #[must_use]
    pub fn has_extent(self) -> bool {
        self == Self::Write
    }
}

/// What a chunk is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[repr(u8)]
pub enum ChunkKind {
    /// Nobody's.
    Free = 0,
    /// Superblock and tables.
    Header = 1,
    /// Staged pages.
    Data = 2,
    /// Log records.
    Log = 3,
    /// Names of files.
    Names = 4,
    /// Page trees of regions.
    Region = 5,
    /// Cut off, or about to be.
    Absent = 6,
}

impl ChunkKind {
    /// The kind with this number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::Free,
            Self::Header,
            Self::Data,
            Self::Log,
            Self::Names,
            Self::Region,
            Self::Absent,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// One word of the chunk table: kind (byte 0), check (byte 1), owner (bytes 2..4: slot + 1, 0 for
/// nobody, [`ORPHAN`]), generation (bytes 4..8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkWord {
    /// What it is used for.
    pub kind: ChunkKind,
    /// Slot + 1, 0 or [`ORPHAN`].
    pub owner: u16,
    /// Grows with every change of use.
    pub generation: u32,
}

impl ChunkWord {
    /// The word on the medium. A table of zeros is a table of free chunks.
    #[must_use]
    pub fn encode(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[0] = self.kind as u8;
        bytes[2..4].copy_from_slice(&self.owner.to_le_bytes());
        bytes[4..].copy_from_slice(&self.generation.to_le_bytes());
        bytes[1] = Self::check(&bytes);
        u64::from_le_bytes(bytes)
    }

    /// Reads a word; `None` when no chunk word looks like this.
    #[must_use]
    pub fn decode(word: u64) -> Option<Self> {
        let mut bytes = word.to_le_bytes();
        let check = std::mem::take(&mut bytes[1]);
        let kind = ChunkKind::from_byte(bytes[0])?;
        (check == Self::check(&bytes)).then_some(Self {
            kind,
            owner: u16::from_le_bytes([bytes[2], bytes[3]]),
            generation: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
    }

    fn check(bytes: &[u8; 8]) -> u8 {
        if bytes == &[0; 8] {
            return 0;
        }
        // CRC-8 with polynomial 0x07: sees every flip of one, two or an odd number of bits.
        bytes
            .iter()
            .fold(0, |crc: u8, byte| CRC8[usize::from(crc ^ byte)])
    }
}

/// CRC-8 with polynomial 0x07 of each byte.
const CRC8: [u8; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut crc = at as u8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x80 == 0 { 0 } else { 0x07 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

/// A sequence number with 16 check bits in one atomic word; `salt` ties it to its entry.
#[must_use]
pub fn checked_word(value: u64, salt: u64) -> u64 {
    let value = value & VALUE_MASK;
    if value == 0 {
        return 0;
    }
    value | check16(value, salt) << 48
}

/// The number in a checked word; `None` when the check bits disagree.
#[must_use]
pub fn checked_value(word: u64, salt: u64) -> Option<u64> {
    let value = word & VALUE_MASK;
    (checked_word(value, salt) == word).then_some(value)
}

const VALUE_MASK: u64 = (1 << 48) - 1;

fn check16(value: u64, salt: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes[8..].copy_from_slice(&salt.to_le_bytes());
    // CRC-16 with polynomial 0x1021: sees every flip of one or two bits of the value.
    let crc = bytes.iter().fold(0xffff_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    u64::from(crc)
}

/// The sizes chosen at creation. Everything's place follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Geometry {
    /// Binary logarithm of the chunk size.
    pub chunk_shift: u32,
    /// Chunks the chunk table has room for.
    pub max_chunks: u32,
    /// Attachment slots.
    pub slot_count: u32,
    /// Entries of the file table.
    pub file_count: u32,
}

impl Default for Geometry {
    /// 2 MB chunks up to 128 GB, 256 attachments, 8192 files with staged data.
    fn default() -> Self {
        Self {
            chunk_shift: 21,
            max_chunks: 1 << 16,
            slot_count: 256,
            file_count: 8192,
        }
    }
}

impl Geometry {
    /// Whether the sizes are within what the format can express.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        (13..=21).contains(&self.chunk_shift)
            && (1..=1 << 20).contains(&self.max_chunks)
            && (1..=4096).contains(&self.slot_count)
            && (1..=1 << 20).contains(&self.file_count)
            && u64::from(self.file_count).div_ceil(self.names_per_chunk()) <= PAGE / 8
            && self.header_chunks() < self.max_chunks
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_size(&self) -> u64 {
        1 << self.chunk_shift
    }

    /// Log records that fit into a chunk.
    #[must_use]
    pub fn records_per_chunk(&self) -> u32 {
        (self.chunk_size() / LINE) as u32
    }

    /// File names that fit into a chunk.
    #[must_use]
    pub fn names_per_chunk(&self) -> u64 {
        self.chunk_size() / (NAME_PAGES * PAGE)
    }

    /// Words of the name-chunk table that are used.
    #[must_use]
    pub fn name_groups(&self) -> u64 {
        u64::from(self.file_count).div_ceil(self.names_per_chunk())
    }

    /// Offset of an attachment slot.
    #[must_use]
    pub fn slot(&self, slot: u32) -> u64 {
        SLOTS + u64::from(slot) * Slot::SIZE as u64
    }

    /// Offset of the chunk table.
    #[must_use]
    pub fn chunk_table(&self) -> u64 {
        SLOTS + (u64::from(self.slot_count) * Slot::SIZE as u64).next_multiple_of(PAGE)
    }

    /// Offset of a chunk's word.
    #[must_use]
    pub fn chunk_word(&self, chunk: u32) -> u64 {
        self.chunk_table() + u64::from(chunk) * 8
    }

    /// Offset of the file table.
    #[must_use]
    pub fn file_table(&self) -> u64 {
        self.chunk_table() + (u64::from(self.max_chunks) * 8).next_multiple_of(PAGE)
    }

    /// Offset of a file entry.
    #[must_use]
    pub fn file_entry(&self, index: u32) -> u64 {
        self.file_table() + u64::from(index) * FileEntry::SIZE as u64
    }

    /// Bytes from the start that the tables take.
    #[must_use]
    pub fn header_len(&self) -> u64 {
        (self.file_table() + u64::from(self.file_count) * FileEntry::SIZE as u64)
            .next_multiple_of(PAGE)
    }

    /// Chunks that the tables take.
    #[must_use]
    pub fn header_chunks(&self) -> u32 {
        self.header_len().div_ceil(self.chunk_size()) as u32
    }

    /// Offset of a chunk's first byte.
    #[must_use]
    pub fn chunk(&self, chunk: u32) -> u64 {
        u64::from(chunk) << self.chunk_shift
    }

    /// Offset of a record.
    #[must_use]
    pub fn record(&self, chunk: u32, position: u32) -> u64 {
        self.chunk(chunk) + u64::from(position) * LINE
    }
}

/// Counts changes of what programs that share a pool must agree on and no field tells: 1, where the entry of
/// a file is looked for; 2, that several programs may have a file staged.
const RULES: u64 = 2;

/// Signature of everything that must agree between programs sharing a pool: structure sizes and
/// field places, byte order, page and line size, rules that no field tells.
pub const ABI: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    hash = mix_fields(hash, Superblock::FIELDS);
    hash = mix_fields(hash, Shared::FIELDS);
    hash = mix_fields(hash, Slot::FIELDS);
    hash = mix_fields(hash, FileEntry::FIELDS);
    hash = mix_fields(hash, Name::FIELDS);
    hash = mix_fields(hash, Record::FIELDS);
    hash = mix(hash, PAGE);
    hash = mix(hash, LINE);
    hash = mix(hash, RULES);
    mix(hash, if cfg!(target_endian = "little") { 1 } else { 2 })
};

const fn mix(hash: u64, value: u64) -> u64 {
    (hash ^ value)
        .wrapping_mul(0x0000_0100_0000_01b3)
        .rotate_left(23)
}

const fn mix_fields(mut hash: u64, fields: &[FieldPlace]) -> u64 {
    let mut i = 0;
    while i < fields.len() {
        hash = mix(hash, fields[i].offset as u64);
        hash = mix(hash, fields[i].size as u64);
        i += 1;
    }
    hash
}

/// Offset of a field inside a media structure, as `u64` for arithmetic on media offsets.
macro_rules! at {
    ($structure:ident . $field:ident) => {
        std::mem::offset_of!($crate::layout::$structure, $field) as u64
    };
}
pub(crate) use at;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_record_are_its_bytes() {
        let bytes: [u8; 64] = std::array::from_fn(|at| (at * 37 + 11) as u8);
        let words = Record::decode(&bytes).words();
        let bytes_of = |words: [u64; 8]| words.map(u64::to_le_bytes).concat();
        assert_eq!(bytes_of(words), bytes);
    }

    #[test]
    fn the_crc_of_a_record_is_of_its_place_and_bytes() {
        let bytes: [u8; 64] = std::array::from_fn(|at| (at * 91 + 5) as u8);
        let uuid = std::array::from_fn(|at| (at * 7) as u8);
        let (chunk, position) = (0x0102_0304_u32, 0x0506_0708_u32);
        let place = [chunk.to_le_bytes(), position.to_le_bytes()].concat();
        let all = [&uuid[..], &place, &bytes[4..]].concat();
        assert_eq!(
            crc_of_record(&bytes, &uuid, chunk, position),
            !crc32c::crc32c(&all)
        );
    }
}
