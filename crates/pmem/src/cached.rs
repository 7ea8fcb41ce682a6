//! A file behind the page cache that keeps the crash model of persistent memory.
//!
//! There a store is durable only after a kernel sync, and what a sync costs depends on how the bytes
//! got into the file: one page dirtied through a mapping makes it longer, twice as long where all of a large folio has to
//! be written for it (`docs/performance.md`). So nothing that is synced by itself is dirtied through a mapping:
//!
//! - **Chunks** (records, staged bytes, names) are written with `pwrite`, through a descriptor that is
//!   opened for it and closed at once, and read through the mapping. Both are the same pages. Opening
//!   costs as much as writing does, so the bytes of a short write wait for its record, and share its
//!   descriptor.
//! - **Short writes that nobody syncs**, from the third on, are stored through the mapping, where their pages are in memory:
//!   what that adds to the one sync of them all is less than their descriptors would take.
//! - **Tables** (everything before the first chunk: locks, words, entries) are worked on in a mirror, a
//!   second file that all processes map. It plays the processor's cache: stores are visible there and
//!   nowhere else, and a flush is what writes them to the file. Words that are never flushed, such as
//!   locks, never cost a write.
//! - **A fence** asks the kernel to sync the file, through the mapping, so that no descriptor is
//!   needed. Three counters in the mirror tell when there is nothing to sync, whoever wrote last, and a fourth word
//!   how far they have written: who has not mapped all of that, because the file has grown, syncs for himself alone.
//! - **A sync that fails** leaves pages that the kernel takes for written, which no later sync writes. It tells those who
//!   had the file mapped, once; so each of them syncs for himself. Before anybody's sync counts again, all of the file
//!   is written once more. Words in the mirror tell, also of who was killed before he could.
//! - **An order** costs nothing: whoever relies on it has a CRC to tell what came too late.
//!
//! When no descriptor can be had (the program has used them up, or may write no file that long), chunks
//! are written through the mapping after all: slower, and never refused. So is everything of a file that has been removed or
//! has another name by now.
//!
//! # Safety
//!
//! The unsafe code passes a program's buffer on to the mapping of the file, under the caller's promise.
#![allow(unsafe_code)]

use crate::ahead::{self, Ahead};
use crate::brief::{self, Brief};
use crate::copy::LINE;
use crate::fault;
use crate::limit;
use crate::map::{MapError, PAGE};
use crate::mapped::{MappedMedium, MediumError};
use crate::medium::{Medium, OutOfRange, TransferError};
use crate::range_lock;
use crate::rest::Pauses;
use crate::words::Words;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use core::time::Duration;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// How a medium gets at its file without keeping a descriptor that a program would notice.
pub trait Reopen: Send + Sync {
    /// Opens the very file that is mapped, for reading and writing, and says how long it is.
    fn reopen(&self) -> Result<(OwnedFd, u64), Errno>;
}

/// Words behind the tables in the mirror, each in a line of its own: writes begun, writes ended, how many of the
/// ended ones a sync has covered, and where the farthest of them ends.
const BEGUN: u64 = 0;
const ENDED: u64 = LINE as u64;
const SYNCED: u64 = 2 * LINE as u64;
const REACH: u64 = 3 * LINE as u64;

/// In one line, as they hardly ever change: how many syncs have failed, and how many of those the file was written again
/// after.
const FAILED: u64 = 4 * LINE as u64;
const HEALED: u64 = FAILED + 8;
/// Beside them: how many syncs were asked for, and how many have returned and told what came of it. A process that is killed
/// in between may be the only one whom the kernel has told of a failure.
const ASKED: u64 = FAILED + 16;
const TOLD: u64 = FAILED + 24;

/// Bytes that a mirror has behind the tables, of which the medium uses the first half of a page.
pub const MIRROR_TAIL: u64 = 4096;

/// What the tail of a new mirror holds. Where the file is in `doubt`, as others may have worked on it since the system
/// was started, and nobody knows how that ended, it is as if a sync had failed.
pub fn mirror_tail(doubt: bool) -> [u8; MIRROR_TAIL as usize] {
    let mut tail = [0; MIRROR_TAIL as usize];
    for (word, value) in [(BEGUN, 1), (ENDED, 1), (FAILED, u64::from(doubt))] {
        tail[word as usize..][..8].copy_from_slice(&value.to_le_bytes());
    }
    tail
}

/// How long the writing back of table words waits for another process that does it, and how long at first.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(250);

/// Behind so many writes that nobody has synced others are stored through the mapping, unless they are longer: each page
/// that is stored to for the first time since a sync takes a fault, and a descriptor takes as long as some of them.
const MANY: u64 = 2;
const AT_MOST: usize = 16 << 10;

/// Pages that are remembered to have been in memory, and those that the kernel is asked about at once: what is staged lies
/// one behind the other.
const KNOWN: usize = 64;
const LOOKED_AT: usize = 16;

/// Bytes of the file that are written at once. The kernel may keep them in one folio from then on, and a store to a page of
/// it through the mapping has all of it written: with a megabyte each sync took twice as long.
pub const FOLIO: usize = 16 << 10;

/// Bytes of tables handled at once.
const BLOCK: usize = 4096;

/// Bytes of the file that are written again at once.
const AT_ONCE: u64 = 8 << 20;

/// Bytes of the tables that are compared at once while they are written back. They lie on the stack of whoever writes,
/// which may be a small one of a handler of signals.
const WORDS: usize = 256;

/// See the module.
pub struct CachedMedium {
    file: MappedMedium,
    mirror: MappedMedium,
    /// Where the tables end and the chunks begin.
    tables: u64,
    opener: Box<dyn Reopen>,
    /// How many syncs had failed when the file was mapped, or before the last one of this process that did not.
    asked: AtomicU64,
    /// Pages that were seen in memory, each where its number says. (The first one is no chunk's.)
    in_memory: Box<[AtomicU64; KNOWN]>,
    ahead: Ahead,
    /// A sync failed here: what the file holds is not known any more, and never will be by this process.
    failed: AtomicBool,
}

/// Whether the path of a file leads to nothing, or to another one, by why it cannot be opened.
fn is_elsewhere(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::STALE)
}

/// The pages of a range.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = u64> {
    let end = offset + len as u64;
    offset / PAGE as u64..end.div_ceil(PAGE as u64)
}

impl core::fmt::Debug for CachedMedium {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CachedMedium")
            .field("file", &self.file)
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

impl CachedMedium {
    /// A medium of `file`, whose first `tables` bytes are worked on in `mirror`, which is that long and
    /// [`MIRROR_TAIL`] longer.
    pub fn new(
        file: MappedMedium,
        mirror: MappedMedium,
        tables: u64,
        opener: Box<dyn Reopen>,
    ) -> Result<CachedMedium, OutOfRange> {
        mirror.address(0, tables + MIRROR_TAIL)?;
        file.address(0, tables)?;
        let asked = AtomicU64::new(mirror.load(tables + FAILED)?);
        // What the kernel reads ahead lies in large folios, as what is written at once does ([`FOLIO`]): [`Ahead`].
        file.read_singly();
        Ok(CachedMedium {
            file,
            mirror,
            tables,
            opener,
            asked,
            in_memory: Box::new([const { AtomicU64::new(0) }; KNOWN]),
            ahead: Ahead::default(),
            failed: AtomicBool::new(false),
        })
    }

    /// The mapping of the file: where chunks are read.
    pub fn mapped(&self) -> &MappedMedium {
        &self.file
    }

    /// Whether a range belongs to the tables; ranges do not cross.
    fn in_tables(&self, offset: u64) -> bool {
        offset < self.tables
    }

    fn lost(&self, offset: u64, len: u64, errno: Errno) -> OutOfRange {
        self.file.refused(offset, len, errno)
    }

    /// Bytes of the file, which somebody may have cut since it was mapped, or made longer. As many as are mapped, where
    /// nobody can tell.
    fn there(&self) -> u64 {
        let _brief = brief::begin();
        let size = self.opener.reopen().map(|(_, size)| size);
        size.map_or_else(|_| self.file.size(), |size| size - size % PAGE as u64)
    }

    /// Maps that much of the file. Until all of it is kept from children none is forked.
    fn extend(&self, size: u64) {
        let _brief = brief::begin();
        self.file.reach(size);
    }

    fn count(&self, what: u64) -> Result<u64, OutOfRange> {
        self.mirror.load(self.tables + what)
    }

    fn raise(&self, what: u64, by: impl Fn(u64) -> u64) -> Result<(), OutOfRange> {
        let at = self.tables + what;
        let mut seen = self.mirror.load(at)?;
        while let Err(other) = self.mirror.compare_exchange(at, seen, by(seen))? {
            seen = other;
        }
        Ok(())
    }

    /// Changes the file. A process that dies in between leaves more writes begun than ended, and then
    /// no fence is spared any more.
    fn counted(&self, write: impl FnOnce() -> Result<(), OutOfRange>) -> Result<(), OutOfRange> {
        self.sound()?;
        self.raise(BEGUN, |count| count + 1)?;
        write()?;
        self.raise(ENDED, |count| count + 1)
    }

    /// A descriptor for a write that ends at `end`, to be closed before the first of the two goes; why there is none when
    /// the mapping has to do.
    fn descriptor(&self, end: u64) -> Result<(Brief, Result<OwnedFd, Errno>), OutOfRange> {
        let brief = brief::begin();
        // The limit of the program, by which the kernel would kill it for writing our file.
        if limit::file_size().is_none_or(|limit| limit < end) {
            return Ok((brief, Err(Errno::FBIG)));
        }
        match self.opener.reopen() {
            // Cut short by somebody: writing would make it long again, with nothing in it.
            Ok((_, size)) if size < end => Err(self.lost(end, 0, Errno::IO)),
            Ok((fd, _)) => Ok((brief, Ok(fd))),
            Err(errno) => Ok((brief, Err(errno))),
        }
    }

    fn put(&self, fd: &OwnedFd, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let mut done = 0;
        while done < from.len() {
            let part = from.len().min(done + FOLIO);
            match rustix::io::pwrite(fd, &from[done..part], offset + done as u64) {
                Ok(0) => return Err(self.lost(offset, from.len() as u64, Errno::NOSPC)),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.lost(offset, from.len() as u64, errno)),
            }
        }
        Ok(())
    }

    /// Writes to chunks: behind others that nobody has synced where they are mapped, or else all through one descriptor.
    fn write_chunks(&self, writes: &[(u64, &[u8])]) -> Result<(), OutOfRange> {
        let (mut end, mut len) = (0, 0);
        for (offset, from) in writes {
            self.file.address(*offset, from.len() as u64)?;
            end = end.max(offset + from.len() as u64);
            len += from.len();
        }
        // Before it has ended: who sees that it has sees this.
        if self.count(REACH)? < end {
            self.raise(REACH, |reach| reach.max(end))?;
        }
        if len <= AT_MOST && self.is_one_of_many()? && self.are_stored(writes)? {
            return Ok(());
        }
        let (_brief, fd) = self.descriptor(end)?;
        self.counted(|| match &fd {
            Ok(fd) => writes
                .iter()
                .try_for_each(|&(offset, from)| self.put(fd, offset, from)),
            Err(_) => self.store_chunks(writes),
        })
    }

    fn store_chunks(&self, writes: &[(u64, &[u8])]) -> Result<(), OutOfRange> {
        writes
            .iter()
            .try_for_each(|&(offset, from)| self.file.write_streaming(offset, from))
    }

    /// Whether several writes wait for a sync. Who has each of them synced never sees that.
    fn is_one_of_many(&self) -> Result<bool, OutOfRange> {
        let synced = self.count(SYNCED)?;
        Ok(self.count(ENDED)?.saturating_sub(synced) >= MANY)
    }

    /// Whether these could be stored where they are mapped. They are not where nobody survives a fault, or a page would have
    /// to be read first; and cannot be when one is gone, or a file system that moves what changes (btrfs) finds no space for
    /// it. Then some of them may have been, and a descriptor tells what is wrong.
    fn are_stored(&self, writes: &[(u64, &[u8])]) -> Result<bool, OutOfRange> {
        let mut pages = writes
            .iter()
            .flat_map(|&(offset, from)| pages(offset, from.len()));
        if !fault::is_survived() || !pages.all(|page| self.is_in_memory(page)) {
            return Ok(false);
        }
        let mut all = false;
        self.counted(|| {
            all = self.store_chunks(writes).is_ok();
            Ok(())
        })?;
        Ok(all)
    }

    /// Has the kernel read what is about to be read, and what lies behind it.
    fn bring_in(&self, offset: u64, len: u64) {
        for at in self.ahead.blocks(offset, len) {
            self.file.read_soon(at, ahead::BLOCK);
        }
    }

    /// Whether a store to a page need not wait for it to be read, as far as is known: the kernel may have taken it since.
    fn is_in_memory(&self, page: u64) -> bool {
        let known = |page: u64| &self.in_memory[page as usize % KNOWN];
        if known(page).load(Ordering::Relaxed) == page {
            return true;
        }
        let mut there = [0; LOOKED_AT];
        let count = self.file.in_memory(page, &mut there);
        let there = there[..count].iter().map(|answer| answer & 1 == 1);
        for (page, _) in (page..).zip(there.clone()).filter(|(_, there)| *there) {
            known(page).store(page, Ordering::Relaxed);
        }
        there.take(1).any(|there| there)
    }

    /// Writes table words to the file, if they differ there.
    ///
    /// One at a time, over all processes: of two that write the same words, the one with the older
    /// values must not be the last. The lock is the kernel's, on these bytes for the description of this one write, and
    /// ends with it or with its process. Looking first needs no lock, because no word that is flushed
    /// ever returns to a value it had: they count, or carry what counts.
    fn write_back(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let mut block = [0; WORDS];
        let mut there = [0; WORDS];
        let mut at = offset / 8 * 8;
        let end = (offset + len).next_multiple_of(8);
        while at < end {
            let part = (end - at).min(WORDS as u64) as usize;
            self.mirror.read(at, &mut block[..part])?;
            self.file.read(at, &mut there[..part])?;
            if block[..part] != there[..part] || self.is_being_written(at, part as u64)? {
                self.write_back_alone(at, &mut block[..part], &mut there[..part])?;
            }
            at += part as u64;
        }
        Ok(())
    }

    /// Whether somebody is just writing these bytes: the kernel may not know yet that they are to be synced.
    fn is_being_written(&self, at: u64, len: u64) -> Result<bool, OutOfRange> {
        if self.nobody_writes()? {
            return Ok(false);
        }
        let (brief, fd) = self.descriptor(at + len)?;
        let is_locked = |fd: &OwnedFd| range_lock::is_locked(fd, at as i64, len as i64);
        match fd.as_ref().map(is_locked) {
            Ok(Ok(locked)) => return Ok(locked),
            Err(errno) if is_elsewhere(*errno) => return Ok(true),
            _ => drop((fd, brief)),
        }
        // Without a descriptor it may be these bytes, whoever writes.
        let mut pauses = Pauses::new(PAUSE, PATIENCE);
        while !self.nobody_writes()? {
            if !pauses.rest() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether nobody was writing anything when this began to look. In the other order a write that has ended in between
    /// would stand for one that has not.
    fn nobody_writes(&self) -> Result<bool, OutOfRange> {
        let ended = self.count(ENDED)?;
        Ok(self.count(BEGUN)? == ended)
    }

    /// Writes table words whose bytes are locked, unless somebody else has, for whom this one has waited.
    fn write_locked(
        &self,
        fd: &OwnedFd,
        at: u64,
        block: &mut [u8],
        there: &mut [u8],
    ) -> Result<(), OutOfRange> {
        self.mirror.read(at, block)?;
        self.file.read(at, there)?;
        if block == there {
            return Ok(());
        }
        // Who cannot lock them, as the file has another name by now, may store newer ones meanwhile.
        self.counted(|| {
            loop {
                self.put(fd, at, block)?;
                self.mirror.read(at, there)?;
                if block == there {
                    return Ok(());
                }
                block.copy_from_slice(there);
            }
        })
    }

    /// Stores table words where the file is mapped. Its path leads to nothing by now, or to another file: nobody gets at it
    /// any more to lock them. Whoever stores an older value than another looks once more, and stores the newer one. Words that
    /// are in the file already are stored again, or a sync might not know of them.
    fn store_words(&self, at: u64, len: u64) -> Result<(), OutOfRange> {
        if !fault::is_survived() {
            return Err(self.lost(at, len, Errno::NOENT));
        }
        let store = |at| {
            let mut there = self.file.load(at)?;
            loop {
                let word = self.mirror.load(at)?;
                match self.file.compare_exchange(at, there, word)? {
                    Ok(_) if self.mirror.load(at)? == word => return Ok(()),
                    Ok(_) => there = word,
                    Err(other) => there = other,
                }
            }
        };
        self.counted(|| (at..at + len).step_by(8).try_for_each(store))
    }

    fn write_back_alone(
        &self,
        at: u64,
        block: &mut [u8],
        there: &mut [u8],
    ) -> Result<(), OutOfRange> {
        let len = block.len() as u64;
        let (_brief, fd) = self.descriptor(at + len)?;
        let fd = match fd {
            Ok(fd) => fd,
            Err(errno) if is_elsewhere(errno) => return self.store_words(at, len),
            Err(errno) => return Err(self.lost(at, len, errno)),
        };
        let mut pauses = Pauses::new(PAUSE, PATIENCE);
        loop {
            match range_lock::try_lock(&fd, at as i64, len as i64) {
                Ok(true) => {
                    let written = self.write_locked(&fd, at, block, there);
                    // A child that somebody has made meanwhile has the descriptor, too, and with it the lock.
                    let _ = range_lock::unlock_all(&fd);
                    return written;
                }
                Ok(false) if pauses.rest() => {}
                Ok(false) | Err(_) => return Err(self.lost(at, len, Errno::IO)),
            }
        }
    }

    /// Syncs, unless every write that anybody ever began has ended and was covered, and no sync has failed since.
    fn sync(&self) -> Result<(), OutOfRange> {
        self.sound()?;
        let mut failed = self.count(FAILED)?;
        while !self.sync_after(failed)? {
            // The kernel may have told somebody else alone of pages that this one was to write. Each process fails once.
            failed = self.count(FAILED)?;
        }
        Ok(())
    }

    /// The same after so many have `failed`; `false` when there were more in the end.
    fn sync_after(&self, failed: u64) -> Result<bool, OutOfRange> {
        let ended = self.count(ENDED)?;
        let healed = self.count(HEALED)? >= failed;
        let asked = self.asked.load(Ordering::Acquire) == failed;
        if healed && asked && self.count(BEGUN)? == ended && self.count(SYNCED)? >= ended {
            return Ok(true);
        }
        let reach = self.count(REACH)?;
        if !healed {
            self.extend(reach);
        }
        // What is synced is what is mapped, which is at least this much.
        let all = reach <= self.file.size();
        self.asking(|| self.ask(!healed))??;
        if self.count(FAILED)? != failed {
            return Ok(false);
        }
        self.asked.store(failed, Ordering::Release);
        if all {
            self.raise(HEALED, |count| count.max(failed))?;
            self.raise(SYNCED, |count| count.max(ended))?;
        }
        Ok(true)
    }

    /// A sync of the file through a description that is newer than what is mapped. Where pages could not be written the kernel
    /// may tell whoever asks by it, and then nobody who opens the file later.
    pub fn synced_by<E>(
        &self,
        sync: impl FnOnce() -> Result<(), E>,
    ) -> Result<Result<(), E>, OutOfRange> {
        self.asking(|| {
            let synced = sync();
            if synced.is_err() {
                self.raise(FAILED, |count| count + 1)?;
            }
            Ok(synced)
        })?
    }

    /// Others learn of a sync that does not come back.
    fn asking<T>(&self, sync: impl FnOnce() -> T) -> Result<T, OutOfRange> {
        self.raise(ASKED, |count| count + 1)?;
        let synced = sync();
        self.raise(TOLD, |count| count + 1)?;
        Ok(synced)
    }

    fn ask(&self, all_again: bool) -> Result<(), OutOfRange> {
        if all_again {
            self.write_again()?;
        }
        self.file.sync().map_err(|error| self.unsynced(&error))
    }

    /// Tells the others of a sync that failed.
    fn unsynced(&self, error: &MediumError) -> OutOfRange {
        let about = match error {
            // Of this process alone, whose mapping is gone; not where a device lacked memory. One more begun than will ever
            // end: who syncs for himself covers what it has written.
            MediumError::Map(MapError::Kernel(Errno::NOMEM)) if !self.file.is_whole() => BEGUN,
            _ => FAILED,
        };
        let _ = self.raise(about, |count| count + 1);
        self.lost(0, self.size(), Errno::IO)
    }

    /// Has every page written, whatever the kernel takes for written. The bytes stay as they are, as others may be writing
    /// theirs. Some at a time: where a file system writes elsewhere what changes (btrfs), there need not be room for all.
    fn write_again(&self) -> Result<(), OutOfRange> {
        // Behind that nobody has written, and the file need not be as long as it was when it was mapped.
        let reach = self.count(REACH)?.next_multiple_of(PAGE as u64);
        let size = self.file.size().min(reach);
        for part in (0..size).step_by(AT_ONCE as usize) {
            let end = size.min(part + AT_ONCE);
            self.bring_in(part, end - part);
            for at in (part..end).step_by(PAGE) {
                let word = self.file.load(at)?;
                // If it is another one by now, its page is dirty.
                let _ = self.file.compare_exchange(at, word, word)?;
            }
            let synced = self.file.sync_part(part, end - part);
            synced.map_err(|error| self.unsynced(&error))?;
        }
        Ok(())
    }
}

impl Medium for CachedMedium {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn reach(&self, size: u64) {
        self.extend(size);
    }

    #[inline]
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        if self.in_tables(offset) {
            self.mirror.load(offset)
        } else {
            self.file.load(offset)
        }
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        if self.in_tables(offset) {
            self.mirror.store(offset, value)
        } else {
            self.write_chunks(&[(offset, &value.to_le_bytes())])
        }
    }

    /// Only tables have words that several processes change.
    #[inline]
    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        if self.in_tables(offset) {
            self.mirror.compare_exchange(offset, current, new)
        } else {
            Err(OutOfRange::outside(offset, 8, self.tables))
        }
    }

    /// Only tables are read and written where they are mapped.
    #[inline]
    fn words<const N: usize>(&self, offset: u64) -> Result<Words<'_, N>, OutOfRange> {
        if self.in_tables(offset) {
            self.mirror.words(offset)
        } else {
            Ok(Words::asking(self, offset))
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        if self.in_tables(offset) {
            return self.mirror.read(offset, into);
        }
        self.file.address(offset, into.len() as u64)?;
        self.bring_in(offset, into.len() as u64);
        self.file.read(offset, into)
    }

    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        if self.in_tables(offset) {
            self.mirror.write_streaming(offset, from)?;
            self.write_back(offset, from.len() as u64)
        } else {
            self.write_chunks(&[(offset, from)])
        }
    }

    fn write_both(&self, one: (u64, &[u8]), other: (u64, &[u8])) -> Result<(), OutOfRange> {
        if self.in_tables(one.0) || self.in_tables(other.0) {
            self.write_streaming(one.0, one.1)?;
            return self.write_streaming(other.0, other.1);
        }
        self.write_chunks(&[one, other])
    }

    unsafe fn read_into(
        &self,
        offset: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<(), TransferError> {
        let from = if self.in_tables(offset) {
            &self.mirror
        } else {
            &self.file
        };
        // SAFETY: the caller vouches for the destination.
        unsafe { from.read_into(offset, into, len) }
    }

    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        self.file.address(offset, len)?;
        // Chunks are in the file from the moment they are written, whoever wrote them.
        let len = len.min(self.tables.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        self.write_back(offset, len)
    }

    fn fence(&self) {
        if self.sync().is_err() {
            self.failed.store(true, Ordering::Release);
        }
    }

    fn order(&self) {
        fence(Ordering::Release);
    }

    fn fence_is_slow(&self) -> bool {
        true
    }

    fn sound(&self) -> Result<(), OutOfRange> {
        if self.failed.load(Ordering::Acquire) {
            Err(self.lost(0, self.size(), Errno::IO))
        } else {
            Ok(())
        }
    }

    fn begin_anew(&self) -> Result<(), OutOfRange> {
        let mut block = [0; BLOCK];
        let mut at = 0;
        self.bring_in(0, self.tables);
        while at < self.tables {
            let part = (self.tables - at).min(BLOCK as u64) as usize;
            self.file.read(at, &mut block[..part])?;
            self.mirror.write_streaming(at, &block[..part])?;
            at += part as u64;
        }
        let asked = self.count(ASKED)?;
        if self.count(TOLD)? != asked {
            self.raise(FAILED, |count| count + 1)?;
            self.mirror.store(self.tables + TOLD, asked)?;
        }
        // Nothing is known to be durable: as if one write had ended and none were covered. What others have written behind
        // the end of what was mapped is to be covered as well.
        let there = self.there();
        self.extend(there);
        self.mirror.store(self.tables + SYNCED, 0)?;
        self.mirror.store(self.tables + REACH, there)?;
        self.mirror.store(self.tables + BEGUN, 1)?;
        self.mirror.store(self.tables + ENDED, 1)
    }
}
