//! The pool as a whole: creating and opening it, attaching and detaching.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use adit_pmem::Medium;

use crate::alloc::ChunkMap;
use crate::error::{Error, Result};
use crate::fork;
use crate::layout::{
    ABI, ChunkKind, ChunkWord, Geometry, MAGIC, PAGE, SHARED, SUPERBLOCK_A, SUPERBLOCK_B, Slot,
    Superblock, VERSION, at,
};
use crate::lock::Owner;
use crate::recover::Rebuilt;
use crate::slots::{Hold, SlotLocks};

/// Identity of one boot of the system: what the kernel gives as `random/boot_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Of a pool that nobody has used.
    pub const NONE: Self = Self([0; 16]);

    /// The short form that log records carry.
    #[must_use]
    pub fn tag(&self) -> u32 {
        crc32c::crc32c(&self.0)
    }
}

/// What a pool is created with.
#[derive(Debug, Clone, Copy)]
pub struct CreateOptions {
    /// Sizes of its parts.
    pub geometry: Geometry,
    /// Random identity.
    pub uuid: [u8; 16],
    /// The boot in which others may have used its file already, or [`BootId::NONE`].
    pub boot: BootId,
}

/// An open pool. Looking needs no attachment; changing goes through an [`Attachment`].
pub struct Pool<M: Medium> {
    medium: M,
    geometry: Geometry,
    uuid: [u8; 16],
    boot: BootId,
    locks: Box<dyn SlotLocks>,
    /// Chunks that the superblock said when we opened or attached.
    opened_chunks: AtomicU32,
    /// Whether this process has attached, to what the first one of all had rebuilt by then.
    rebuilt: AtomicBool,
    boot_tag: u32,
    /// Threads that a walk over the logs may use.
    walkers: AtomicUsize,
}

impl<M: Medium> std::fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

impl<M: Medium> Pool<M> {
    /// Makes a pool of everything the medium holds. The medium's old contents are lost. The pool
    /// exists from the moment its superblocks are durable, and not before.
    pub fn create(medium: &M, options: &CreateOptions) -> Result<()> {
        let geometry = options.geometry;
        if !geometry.is_valid() {
            return Err(Error::Invalid("sizes that the format cannot express"));
        }
        let chunks = (medium.size() >> geometry.chunk_shift).min(u64::from(geometry.max_chunks));
        let chunks = chunks as u32;
        if chunks <= geometry.header_chunks() {
            return Err(Error::Invalid(
                "too small for a pool: no chunk is left beside the tables",
            ));
        }
        // The superblocks first, durably: a half-made pool over an older one must not look whole.
        let zeros = [0; PAGE as usize];
        medium.write_streaming(SUPERBLOCK_A, &zeros)?;
        medium.write_streaming(SUPERBLOCK_B, &zeros)?;
        medium.fence();
        let mut offset = SHARED;
        while offset < geometry.header_len() {
            medium.write_streaming(offset, &zeros)?;
            offset += PAGE;
        }
        for chunk in 0..geometry.header_chunks() {
            let word = ChunkWord {
                kind: ChunkKind::Header,
                owner: 0,
                generation: 1,
            };
            medium.store(geometry.chunk_word(chunk), word.encode())?;
        }
        medium.flush(
            geometry.chunk_table(),
            u64::from(geometry.header_chunks()) * 8,
        )?;
        let shared = SHARED + at!(Shared.chunk_count);
        medium.store(shared, u64::from(chunks))?;
        medium.flush(shared, 8)?;
        medium.fence();
        let mut superblock = Superblock {
            magic: MAGIC,
            version: VERSION,
            flags: Superblock::CLEAN,
            abi: ABI,
            update: 1,
            uuid: options.uuid,
            boot_id: options.boot.0,
            chunk_shift: geometry.chunk_shift,
            chunk_count: chunks,
            max_chunks: geometry.max_chunks,
            slot_count: geometry.slot_count,
            file_count: geometry.file_count,
            first_chunks: chunks,
            reserved: [0; 36],
            crc: 0,
        };
        write_superblock(medium, &mut superblock)
    }

    /// Opens the pool on `medium`: nothing is written.
    pub fn open(medium: M, locks: Box<dyn SlotLocks>, boot: BootId) -> Result<Arc<Self>> {
        let superblock = read_superblock(&medium)?;
        let geometry = superblock.geometry();
        let expected = u64::from(superblock.chunk_count) << geometry.chunk_shift;
        if medium.size() < expected {
            return Err(Error::Truncated {
                expected,
                found: medium.size(),
            });
        }
        Ok(Arc::new(Self {
            medium,
            geometry,
            uuid: superblock.uuid,
            boot,
            locks,
            opened_chunks: AtomicU32::new(superblock.chunk_count),
            rebuilt: AtomicBool::new(false),
            boot_tag: boot.tag(),
            walkers: AtomicUsize::new(1),
        }))
    }

    /// The medium below.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Sizes of the pool's parts.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Identity of the pool.
    #[must_use]
    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// The boot this process runs in.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.boot
    }

    /// Tag of the boot this process runs in, as records carry it.
    pub(crate) fn boot_tag(&self) -> u32 {
        self.boot_tag
    }

    pub(crate) fn locks(&self) -> &dyn SlotLocks {
        self.locks.as_ref()
    }

    /// Lets walks over the logs use several threads. Not for a program that only came to have a pool: it
    /// never asked for threads.
    pub fn walk_with(&self, threads: usize) {
        self.walkers.store(threads.max(1), Ordering::Relaxed);
    }

    pub(crate) fn walkers(&self) -> usize {
        self.walkers.load(Ordering::Relaxed)
    }

    /// The superblock that counts now. One of another pool, or of one of other sizes, is none: everything would lie elsewhere.
    pub fn superblock(&self) -> Result<Superblock> {
        let superblock = read_superblock(&self.medium)?;
        if superblock.geometry() == self.geometry && superblock.uuid == self.uuid {
            return Ok(superblock);
        }
        let what = "it is another pool's than when this one was opened";
        Err(Error::damaged("superblock", SUPERBLOCK_A, what))
    }

    /// Whether any file is staged anywhere: one load, so that cheap doors stay cheap.
    #[must_use]
    pub fn anything_staged(&self) -> bool {
        self.load(SHARED + at!(Shared.staged_files))
            .map_or(true, |files| files != 0)
    }

    /// Chunks of the pool now. It is an error when not all of them can be mapped: who looked only at
    /// some would take what others have staged for published.
    pub fn chunk_count(&self) -> Result<u32> {
        let (chunks, mapped) = self.chunks_and_mapped()?;
        if mapped < chunks {
            return Err(Error::NotMapped { chunks, mapped });
        }
        Ok(mapped)
    }

    /// Chunks that can be used here: all of them, where nothing is wrong.
    pub(crate) fn mapped_chunks(&self) -> Result<u32> {
        self.chunks_and_mapped().map(|(_, mapped)| mapped)
    }

    fn chunks_and_mapped(&self) -> Result<(u32, u32)> {
        // The shared word is volatile: after a loss of power it may say less than the superblock did
        // when we opened. After the pool was cut it says less rightly, until we attach; what was cut off is
        // marked absent.
        let said = self.load(SHARED + at!(Shared.chunk_count))?;
        let said = said
            .min(u64::from(self.geometry.max_chunks))
            .max(u64::from(self.opened_chunks.load(Ordering::Relaxed)));
        if said << self.geometry.chunk_shift <= self.medium.size() {
            return Ok((said as u32, said as u32));
        }
        // The superblock is what can be believed, and never says more than the file holds.
        let chunks = said.min(u64::from(self.superblock()?.chunk_count));
        self.medium.reach(chunks << self.geometry.chunk_shift);
        let mapped = chunks.min(self.medium.size() >> self.geometry.chunk_shift);
        Ok((chunks as u32, mapped as u32))
    }

    #[inline]
    pub(crate) fn load(&self, offset: u64) -> Result<u64> {
        Ok(self.medium.load(offset)?)
    }

    #[inline]
    pub(crate) fn store(&self, offset: u64, value: u64) -> Result<()> {
        Ok(self.medium.store(offset, value)?)
    }

    #[inline]
    pub(crate) fn cas(&self, offset: u64, current: u64, new: u64) -> Result<Result<u64, u64>> {
        Ok(self.medium.compare_exchange(offset, current, new)?)
    }

    /// Stores a word and makes it durable.
    pub(crate) fn persist(&self, offset: u64, value: u64) -> Result<()> {
        self.medium.store(offset, value)?;
        self.make_durable(offset, 8)
    }

    pub(crate) fn make_durable(&self, offset: u64, len: u64) -> Result<()> {
        self.medium.flush(offset, len)?;
        self.fence()
    }

    /// Everything flushed or streamed is durable on return, or it is an error.
    pub(crate) fn fence(&self) -> Result<()> {
        self.medium.fence();
        Ok(self.medium.sound()?)
    }

    /// Stores that are seen, and durable with whatever is made durable next: for what nobody misses
    /// before that.
    pub(crate) fn make_ordered(&self, offset: u64, len: u64) -> Result<()> {
        self.medium.flush(offset, len)?;
        self.medium.order();
        Ok(())
    }

    pub(crate) fn read_slot(&self, slot: u32) -> Result<Slot> {
        let mut bytes = [0; Slot::SIZE];
        self.medium.read(self.geometry.slot(slot), &mut bytes)?;
        Ok(Slot::decode(&bytes))
    }

    /// Slots whose holders live. The kernel is asked about those that say they are taken; where none does it is not believed.
    #[must_use]
    pub fn living_slots(&self) -> Vec<u32> {
        let state = |slot| self.load(self.geometry.slot(slot) + at!(Slot.state));
        let taken = |slot: &u32| state(*slot).map_or(true, |state| state != Slot::FREE);
        let slots = 0..self.geometry.slot_count;
        let alive = |slot: &u32| self.locks.is_alive(*slot);
        let known: Vec<u32> = slots.clone().filter(taken).filter(alive).collect();
        if known.is_empty() && self.locks.is_any_alive(self.geometry.slot_count) {
            return slots.filter(alive).collect();
        }
        known
    }

    /// How often a slot was taken: it tells whoever has it from who had it before.
    pub fn incarnation(&self, slot: u32) -> Result<u64> {
        self.load(self.geometry.slot(slot) + at!(Slot.incarnation))
    }

    /// Holds the gate, with nobody attached.
    pub fn exclusive(&self) -> Result<Exclusive<'_, M>> {
        let gate = self.locks.gate()?;
        let attached = self.living_slots().len() as u32;
        if attached > 0 {
            return Err(Error::InUse { attached });
        }
        Ok(Exclusive {
            pool: self,
            _gate: gate,
        })
    }

    /// Attaches this process. The first attachment after an unclean end, or in another boot, resets
    /// the shared volatile state and rebuilds it from the logs; staged data of dead attachments stays
    /// where it is until it was recovered ([`Pool::scan`], [`Attachment::release_orphans`]).
    pub fn attach(self: &Arc<Self>) -> Result<Attachment<M>> {
        let epoch = fork::enter()?;
        let gate = self.locks.gate()?;
        let first = self.living_slots().is_empty();
        self.rebuilt.store(!first, Ordering::Release);
        if first {
            self.medium.begin_anew()?;
        }
        let superblock = self.superblock()?;
        // It may have been cut since we opened it, and is not while anybody is attached.
        let chunks = superblock.chunk_count;
        self.opened_chunks.store(chunks, Ordering::Relaxed);
        let mut recovery = None;
        if first {
            // Unclean from here on, and durably so before anything can be logged.
            self.mark(&superblock, 0)?;
            recovery = Some(self.rebuild(&superblock)?);
            self.rebuilt.store(true, Ordering::Release);
        } else {
            self.take_over_growth(&superblock)?;
        }
        let (slot, incarnation, hold) = self.claim_slot()?;
        drop(gate);
        let maps = (0..self.geometry.max_chunks)
            .map(|_| std::sync::OnceLock::new())
            .collect();
        Ok(Attachment {
            pool: Arc::clone(self),
            owner: Owner { slot, incarnation },
            epoch,
            hold: Some(hold),
            maps,
            state: AttachmentState::default(),
            recovery,
        })
    }

    /// Whoever makes the pool larger may be stopped or killed when the superblock says so, and before it is durable or
    /// the others are told. Whoever uses the new chunks makes it durable first, and tells them.
    fn take_over_growth(&self, superblock: &Superblock) -> Result<()> {
        let shared = SHARED + at!(Shared.chunk_count);
        let chunks = u64::from(superblock.chunk_count);
        let mut said = self.load(shared)?;
        if said >= chunks {
            return Ok(());
        }
        self.medium.flush(SUPERBLOCK_A, Superblock::SIZE as u64)?;
        self.medium.flush(SUPERBLOCK_B, Superblock::SIZE as u64)?;
        self.fence()?;
        while said < chunks {
            match self.cas(shared, said, chunks)? {
                Ok(_) => break,
                Err(other) => said = other,
            }
        }
        Ok(())
    }

    fn claim_slot(&self) -> Result<(u32, u64, Box<dyn Hold>)> {
        for slot in 0..self.geometry.slot_count {
            if self.read_slot(slot)?.state != Slot::FREE {
                continue;
            }
            let Some(hold) = self.locks.claim(slot)? else {
                continue;
            };
            let offset = self.geometry.slot(slot);
            let incarnation = self.incarnation(slot)?.wrapping_add(1);
            self.store(offset + at!(Slot.incarnation), incarnation)?;
            self.store(offset + at!(Slot.pid), u64::from(std::process::id()))?;
            self.store(offset + at!(Slot.boot), u64::from(self.boot.tag()))?;
            self.store(offset + at!(Slot.state), Slot::ATTACHED)?;
            // Every boot frees all slots.
            if let Err(error) = self.make_ordered(offset, Slot::SIZE as u64) {
                // Nobody is in it. Who tries again and again would use up all of them.
                self.store(offset + at!(Slot.state), Slot::FREE)?;
                return Err(error);
            }
            return Ok((slot, incarnation, hold));
        }
        Err(Error::NoSlot {
            slots: self.geometry.slot_count,
        })
    }

    /// Whether all that was ever written is durable: who marks a pool clean writes the second copy of the superblock when
    /// the sync of the first has not failed.
    pub(crate) fn is_surely_clean(&self) -> Result<bool> {
        let a = read_copy(&self.medium, SUPERBLOCK_A)?;
        let b = read_copy(&self.medium, SUPERBLOCK_B)?;
        let both = a.zip(b).is_some_and(|(a, b)| {
            a.update == b.update && a.flags & b.flags & Superblock::CLEAN != 0
        });
        Ok(both)
    }

    /// Whether nothing is left, as far as this process knows, of what a loss of power had left in part.
    pub(crate) fn is_rebuilt(&self) -> bool {
        self.rebuilt.load(Ordering::Acquire)
    }

    /// Rewrites the superblocks with other flags and this boot.
    pub(crate) fn mark(&self, old: &Superblock, flags: u32) -> Result<()> {
        let mut superblock = Superblock {
            flags,
            boot_id: self.boot.0,
            ..*old
        };
        write_superblock(&self.medium, &mut superblock)
    }
}

/// The gate, held while nobody is attached.
pub struct Exclusive<'a, M: Medium> {
    pool: &'a Pool<M>,
    _gate: Box<dyn Hold>,
}

impl<M: Medium> Exclusive<'_, M> {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool<M> {
        self.pool
    }
}

/// Writes both copies, one after the other, so that one of them is whole at every instant.
pub(crate) fn write_superblock<M: Medium>(medium: &M, superblock: &mut Superblock) -> Result<()> {
    superblock.update += 1;
    superblock.crc = superblock.expected_crc();
    if !superblock.is_valid() {
        // Somebody has forged the number of times: nobody could open the pool any more.
        let what = "it cannot be written once more";
        return Err(Error::damaged("superblock", SUPERBLOCK_A, what));
    }
    // What we see may be a dead writer's and not durable yet: the copy that we keep has to be.
    medium.flush(SUPERBLOCK_A, Superblock::SIZE as u64)?;
    medium.flush(SUPERBLOCK_B, Superblock::SIZE as u64)?;
    medium.fence();
    let bytes = superblock.encode();
    // The copy that is not valid, or older, goes first.
    let keep_a = read_copy(medium, SUPERBLOCK_A)?.is_some_and(|a| {
        read_copy(medium, SUPERBLOCK_B).is_ok_and(|b| b.is_none_or(|b| a.update > b.update))
    });
    let order = if keep_a {
        [SUPERBLOCK_B, SUPERBLOCK_A]
    } else {
        [SUPERBLOCK_A, SUPERBLOCK_B]
    };
    for offset in order {
        medium.write_streaming(offset, &bytes)?;
        medium.fence();
    }
    Ok(medium.sound()?)
}

fn read_copy<M: Medium>(medium: &M, offset: u64) -> Result<Option<Superblock>> {
    let superblock = read_raw(medium, offset)?;
    Ok(superblock.is_valid().then_some(superblock))
}

pub(crate) fn read_raw<M: Medium>(medium: &M, offset: u64) -> Result<Superblock> {
    let mut bytes = [0; Superblock::SIZE];
    medium.read(offset, &mut bytes)?;
    Ok(Superblock::decode(&bytes))
}

/// So often two copies are read again of which none is whole.
const READS: u32 = 8;

/// The valid superblock that was written last, or why there is none.
pub(crate) fn read_superblock<M: Medium>(medium: &M) -> Result<Superblock> {
    if medium.size() < SHARED {
        return Err(Error::Truncated {
            expected: SHARED,
            found: medium.size(),
        });
    }
    let read = || -> Result<[Superblock; 2]> {
        Ok([
            read_raw(medium, SUPERBLOCK_A)?,
            read_raw(medium, SUPERBLOCK_B)?,
        ])
    };
    let mut copies = read()?;
    // Somebody may have been at the one while that was read, and at the other one then.
    for _ in 0..READS {
        let is_ours = |copy: &Superblock| copy.magic == MAGIC;
        if copies.iter().any(Superblock::is_valid) || !copies.iter().any(is_ours) {
            break;
        }
        std::thread::yield_now();
        copies = read()?;
    }
    let best = copies
        .iter()
        .filter(|copy| copy.is_valid())
        .max_by_key(|copy| copy.update);
    if let Some(superblock) = best {
        if superblock.version != VERSION {
            return Err(Error::NewerVersion {
                found: superblock.version,
                known: VERSION,
            });
        }
        if superblock.abi != ABI {
            return Err(Error::OtherAbi {
                found: superblock.abi,
                known: ABI,
            });
        }
        return Ok(*superblock);
    }
    Err(why_no_superblock(&copies))
}

fn why_no_superblock(copies: &[Superblock; 2]) -> Error {
    if copies.iter().all(|copy| copy.magic == 0) {
        return Error::Unfinished;
    }
    let Some(ours) = copies.iter().find(|copy| copy.magic == MAGIC) else {
        return Error::ForeignMagic {
            found: copies[0].magic,
        };
    };
    // A newer format may have another CRC: both copies saying so is no accident.
    if ours.version > VERSION && copies[0].version == copies[1].version {
        return Error::NewerVersion {
            found: ours.version,
            known: VERSION,
        };
    }
    Error::Superblock
}

/// State of an attachment that lives in this process only.
#[derive(Default)]
pub(crate) struct AttachmentState {
    /// Current log chunk (upper half; 0 for none) and next position in it (lower half).
    pub(crate) log: std::sync::atomic::AtomicU64,
    /// First of the chain of data chunks, plus one.
    pub(crate) data: std::sync::atomic::AtomicU32,
    /// Data chunk in which room was found last.
    pub(crate) current: std::sync::atomic::AtomicU32,
    /// Where the search for free chunks begins.
    pub(crate) hint: std::sync::atomic::AtomicU32,
    /// Log chunks held at most; 0 for the default.
    pub(crate) log_limit: std::sync::atomic::AtomicU32,
    /// Log chunks of all attachments together at most; 0 for the default.
    pub(crate) logs_together: std::sync::atomic::AtomicU32,
    /// Held while a thread looks for log chunks to give back.
    pub(crate) reclaiming: std::sync::Mutex<()>,
    /// Bytes that are written with the record that names them, by the offset of their extent.
    pub(crate) unwritten: std::sync::Mutex<Vec<(u64, Vec<u8>)>>,
    /// How many these are: most media have none, and then nobody takes the lock.
    pub(crate) waits_unwritten: std::sync::atomic::AtomicUsize,
}

/// This process's seat at a pool: a slot, leased chunks, a log.
///
/// Dropping it without [`Attachment::detach`] is what the death of the process does: its log waits
/// for recovery. In a forked child every operation says [`Error::NotAttached`].
pub struct Attachment<M: Medium> {
    pub(crate) pool: Arc<Pool<M>>,
    pub(crate) owner: Owner,
    pub(crate) epoch: fork::Epoch,
    hold: Option<Box<dyn Hold>>,
    pub(crate) maps: Box<[std::sync::OnceLock<Box<ChunkMap>>]>,
    pub(crate) state: AttachmentState,
    recovery: Option<Rebuilt>,
}

impl<M: Medium> std::fmt::Debug for Attachment<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl<M: Medium> Attachment<M> {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// What was found, when this attachment was the first: the files to publish before anything else,
    /// and what could not be believed. [`Attachment::scan`] finds their records.
    #[must_use]
    pub fn recovery(&self) -> Option<&Rebuilt> {
        self.recovery.as_ref()
    }

    /// Slot number.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.owner.slot
    }

    /// Fails in a process that inherited the attachment instead of making it.
    pub fn ensure_current(&self) -> Result<()> {
        if self.epoch.is_current() {
            Ok(())
        } else {
            Err(Error::NotAttached)
        }
    }

    /// Gives everything back. Chunks with records that are not retired are left to recovery. The last
    /// one to leave an empty pool marks it clean.
    pub fn detach(self) -> Result<()> {
        self.leave(|superblock| Ok(superblock.chunk_count), |_| {})
    }

    /// [`Attachment::detach`]. The last one to leave an empty pool takes out of use what it has grown by
    /// and what is free at its end, and `cut` makes the medium shorter, to so many chunks, also where it is
    /// longer because somebody was killed while he grew or cut it. Nobody can attach meanwhile, so nobody
    /// grows it.
    pub fn detach_and_cut(self, cut: impl FnOnce(u32)) -> Result<()> {
        let pool = Arc::clone(&self.pool);
        self.leave(|superblock| pool.take_out_the_end(superblock), cut)
    }

    fn leave(
        mut self,
        keep: impl FnOnce(&Superblock) -> Result<u32>,
        cut: impl FnOnce(u32),
    ) -> Result<()> {
        self.ensure_current()?;
        self.reclaim()?;
        let gate = self.pool.locks().gate()?;
        self.give_back_chunks()?;
        let state = self.pool.geometry().slot(self.owner.slot) + at!(Slot.state);
        self.pool.store(state, Slot::FREE)?;
        self.pool.make_ordered(state, 8)?;
        self.hold = None;
        if self.pool.living_slots().is_empty() && self.pool.is_empty()? {
            let before = self.pool.superblock()?;
            let chunk_count = keep(&before)?;
            let now = Superblock {
                chunk_count,
                ..before
            };
            self.pool.mark(&now, Superblock::CLEAN)?;
            if chunk_count < before.chunk_count {
                let shared = SHARED + at!(Shared.chunk_count);
                self.pool.store(shared, u64::from(chunk_count))?;
            }
            cut(chunk_count);
        }
        drop(gate);
        Ok(())
    }
}

impl<M: Medium> Drop for Attachment<M> {
    fn drop(&mut self) {
        // A child has a copy of the hold, whose mapping it did not inherit: releasing it would unmap
        // an address that may be something else by now.
        if let Some(hold) = self.hold.take()
            && !self.epoch.is_current()
        {
            std::mem::forget(hold);
        }
    }
}
