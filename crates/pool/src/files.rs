//! The file table: which files have staged data, found by handle, named by handle and path.
//!
//! An entry is the file record of the log: records name it by its id, and they count only while the
//! entry lives and only beyond its `retired` mark. So removing an entry, one 8-byte store, retires
//! every record of the file at once, in whatever log it lies.

use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use adit_pmem::Medium;

use crate::alloc::Purpose;
use crate::error::{Error, Result};
use crate::layout::{
    ChunkKind, FileEntry, HANDLE_MAX, NAME_PAGES, NAMES, Name, PAGE, PATH_LIMIT, SHARED, at,
    checked_value, checked_word,
};
use crate::lock::{Acquired, LONG, LockWord, Locked, PATIENCE};
use crate::log::FileGuard;
use crate::pool::{Attachment, Pool};

/// Entries looked at for one handle: so many of each group, then anywhere in the table.
const NEAR: u32 = 16;
const WINDOW: u32 = 32;

/// Between two looks for an entry, as long as those that are free are being emptied.
const PAUSE: Duration = Duration::from_millis(1);

/// How often an entry is looked at that changes while it is: each time it was given up or made.
const LOOKS: u32 = 64;

/// Value of [`FileEntry::end`] when nobody said yet where the file ends.
pub(crate) const END_UNKNOWN: u64 = u64::MAX;

/// A file of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileRef {
    pub(crate) id: u64,
}

impl FileRef {
    /// The id that log records carry.
    #[must_use]
    pub fn id(self) -> u64 {
        self.id
    }

    /// A file by an id read from a record; it may not exist.
    #[must_use]
    pub fn from_id(id: u64) -> Self {
        Self { id }
    }

    fn at(index: u32, generation: u64) -> Self {
        Self {
            id: generation << FileEntry::INDEX_BITS | u64::from(index),
        }
    }

    pub(crate) fn index(self) -> u32 {
        (self.id & ((1 << FileEntry::INDEX_BITS) - 1)) as u32
    }
}

/// What a file is known by.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FileName {
    /// Type of the handle, from `name_to_handle_at`.
    pub handle_type: u32,
    /// Bytes of the handle.
    pub handle: Vec<u8>,
    /// Last known path, as bytes.
    pub path: Vec<u8>,
    /// Device number when it was entered.
    pub device: u64,
}

impl FileName {
    fn key(&self) -> u64 {
        // The device is not part of it: its number changes over reboots.
        let low = crc32c::crc32c(&self.handle);
        let high = crc32c::crc32c_append(low ^ self.handle_type, &self.handle);
        u64::from(high) << 32 | u64::from(low)
    }

    fn encode(&self, file_id: u64) -> Vec<u8> {
        let head = Name {
            magic: Name::MAGIC,
            file_id,
            handle_type: self.handle_type,
            handle_len: self.handle.len() as u32,
            path_len: self.path.len() as u32,
            reserved: 0,
        };
        [&head.encode()[..], &self.handle, &self.path].concat()
    }

    fn has_handle_of(&self, other: &Self) -> bool {
        (self.handle_type, &self.handle) == (other.handle_type, &other.handle)
    }
}

impl<M: Medium> Pool<M> {
    pub(crate) fn read_entry(&self, index: u32) -> Result<FileEntry> {
        let mut bytes = [0; FileEntry::SIZE];
        self.medium()
            .read(self.geometry().file_entry(index), &mut bytes)?;
        Ok(FileEntry::decode(&bytes))
    }

    /// The same word by word, for who finds it unsound: `None` where it was given up or made meanwhile. All else is stored
    /// before the `state` of an entry that lives, and zero before any of it is changed; so what says that it lives before
    /// and after is whole in between, but for damage.
    fn read_entry_alone(&self, index: u32) -> Result<Option<FileEntry>> {
        let offset = self.geometry().file_entry(index);
        let mut bytes = [0; FileEntry::SIZE];
        for (i, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *word = self.load(offset + i as u64 * 8)?.to_le_bytes();
        }
        let entry = FileEntry::decode(&bytes);
        let is_alone = self.load(offset + at!(FileEntry.state))? == entry.state;
        Ok(is_alone.then_some(entry))
    }

    /// Fails when the file is no longer in the table. Cheap: as long as it is, nothing else of the entry is looked at.
    pub fn ensure_live(&self, file: FileRef) -> Result<()> {
        if file.index() >= self.geometry().file_count {
            return Err(Error::Forgotten);
        }
        let entry = self.geometry().file_entry(file.index());
        let state = self.load(entry + at!(FileEntry.state))?;
        let id = self.load(entry + at!(FileEntry.file_id))?;
        self.ensure_says(state, id, file)
    }

    /// The same for who has looked.
    #[inline]
    pub(crate) fn ensure_says(&self, state: u64, id: u64, file: FileRef) -> Result<()> {
        if state as u8 == FileEntry::LIVE && id == file.id {
            return Ok(());
        }
        self.why_not_live(file)
    }

    /// Whether an entry that does not say that it is this file's has been given up, or is damaged: who believes that its
    /// file is not staged any more goes on with the base file, which lacks what is staged. An entry that was given up has
    /// a `state` of zero, and that of the next file agrees with all that this one is known by. A bit that changes in the
    /// `state` or the `file_id` of one that lives makes neither of them.
    #[cold]
    #[inline(never)]
    fn why_not_live(&self, file: FileRef) -> Result<()> {
        let index = file.index();
        for _ in 0..LOOKS {
            match self.read_entry_alone(index)? {
                None => {}
                Some(entry) if entry.state == 0 => return Err(Error::Forgotten),
                Some(entry) if !entry.is_itself(index) => return Err(self.damaged_entry(index)),
                Some(entry) if entry.file_id != file.id => return Err(Error::Forgotten),
                Some(_) => return Ok(()),
            }
        }
        // Others have it, one after the other.
        Err(Error::Forgotten)
    }

    fn damaged_entry(&self, index: u32) -> Error {
        let offset = self.geometry().file_entry(index);
        Error::damaged("file entry", offset, "its checks disagree")
    }

    /// The same for who goes on with the base file when it is not: that is durable by then, also where whoever has
    /// forgotten it died over it. A loss of power would bring its records back, over what is written there now.
    pub fn ensure_not_forgotten(&self, file: FileRef) -> Result<()> {
        let live = self.ensure_live(file);
        if matches!(live, Err(Error::Forgotten)) {
            self.make_seen_durable(file)?;
        }
        live
    }

    /// The same for who may not wait for a device: whether the file is forgotten, and that is durable already.
    pub fn is_durably_forgotten(&self, file: FileRef) -> Result<bool> {
        match self.ensure_live(file) {
            Err(Error::Forgotten) => self.is_seen_durable(file),
            live => live.map(|()| false),
        }
    }

    /// The file's publishing word: see [`crate::FileGuard::version`]. Of another file, when this one is
    /// not in the table any more: ask [`Pool::ensure_live`] afterwards.
    pub fn version(&self, file: FileRef) -> Result<u64> {
        if file.index() >= self.geometry().file_count {
            return Err(Error::Forgotten);
        }
        let offset = self.geometry().file_entry(file.index());
        self.load(offset + at!(FileEntry.version))
    }

    /// Changes the file's publishing word to what `change` makes of it, whether or not somebody has the file's lock; false
    /// where it makes nothing of it. It is asked again when the word was changed meanwhile. [`Error::Forgotten`] when the
    /// file is not in the table any more.
    pub fn update_version(
        &self,
        file: FileRef,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<bool> {
        loop {
            self.ensure_live(file)?;
            let word = self.version(file)?;
            let Some(next) = change(word) else {
                return Ok(false);
            };
            let offset = self.geometry().file_entry(file.index());
            if self
                .cas(offset + at!(FileEntry.version), word, next)?
                .is_ok()
            {
                return Ok(true);
            }
        }
    }

    /// The sequence number of the last record of the file that is whole. As [`Pool::version`], of any file.
    pub fn last_seq(&self, file: FileRef) -> Result<u64> {
        if file.index() >= self.geometry().file_count {
            return Err(Error::Forgotten);
        }
        let offset = self.geometry().file_entry(file.index());
        self.load(offset + at!(FileEntry.last_seq))
    }

    /// The word that says up to which record the file's are in its base file, as it is seen. As
    /// [`Pool::version`], of any file.
    pub fn retired_word(&self, file: FileRef) -> Result<u64> {
        if file.index() >= self.geometry().file_count {
            return Err(Error::Forgotten);
        }
        let offset = self.geometry().file_entry(file.index());
        self.load(offset + at!(FileEntry.retired))
    }

    /// Where the file ends with everything staged, if anybody has said so.
    pub fn end(&self, file: FileRef) -> Result<Option<u64>> {
        self.ensure_live(file)?;
        let offset = self.geometry().file_entry(file.index());
        let end = self.load(offset + at!(FileEntry.end))?;
        self.ensure_live(file)?;
        Ok((end != END_UNKNOWN).then_some(end))
    }

    /// When the file was last written, in nanoseconds since 1970; 0 when nobody said.
    pub fn modified(&self, file: FileRef) -> Result<u64> {
        self.ensure_live(file)?;
        let offset = self.geometry().file_entry(file.index());
        let modified = self.load(offset + at!(FileEntry.modified))?;
        self.ensure_live(file)?;
        Ok(modified)
    }

    /// The entry of a file that is still in the table.
    pub(crate) fn live_entry(&self, file: FileRef) -> Result<FileEntry> {
        if file.index() >= self.geometry().file_count {
            return Err(Error::Forgotten);
        }
        let index = file.index();
        let its = |entry: FileEntry| {
            let is_its = entry.kind() == FileEntry::LIVE && entry.file_id == file.id;
            is_its.then_some(entry).ok_or(Error::Forgotten)
        };
        let entry = self.read_entry(index)?;
        if entry.is_valid(index) {
            return its(entry);
        }
        // One that is just being emptied, or filled, is seen in part; what stays as it is, is damaged, and may be this file's.
        for _ in 0..LOOKS {
            match self.read_entry_alone(index)? {
                None => {}
                Some(entry) if entry.is_valid(index) => return its(entry),
                Some(entry) if self.is_unfinished(index, &entry) => return Err(Error::Forgotten),
                Some(_) => return Err(self.damaged_entry(index)),
            }
        }
        Err(Error::Forgotten)
    }

    /// Whether a loss of power has left a part of an entry that was just made, or was being forgotten. Where a fence
    /// is a kernel sync nothing keeps its parts in order, and nobody was told of anything that hangs on them. Who attaches
    /// first empties all of these: what looks like one afterwards is the damaged entry of a file that is staged.
    pub(crate) fn is_unfinished(&self, index: u32, entry: &FileEntry) -> bool {
        !self.is_rebuilt() && entry.is_unfinished(index)
    }

    /// Empties an entry, to be made durable by the caller: the range that has to be. Where a fence is a kernel sync the
    /// identity goes as well: what is left of the next one after a loss of power is told by what it lacks. Not that of one
    /// that was made elsewhere: what is left of it would be told to be damage. The next one is then made durable before it
    /// lives, as anywhere else.
    pub(crate) fn empty_entry(&self, index: u32) -> Result<(u64, u64)> {
        let offset = self.geometry().file_entry(index);
        let was_cached = self.load(offset + at!(FileEntry.state))? & FileEntry::CACHED != 0;
        self.store(offset + at!(FileEntry.state), 0)?;
        if !(was_cached && self.medium().fence_is_slow()) {
            return Ok((offset, 8));
        }
        // Not the number, by which whoever still waits for the file is told, and the next one made; nor the marks: a loss of
        // power that keeps the rest of the entry must not bring back what they retire.
        for word in (at!(FileEntry.key)..at!(FileEntry.modified)).step_by(8) {
            self.store(offset + word, 0)?;
        }
        Ok((offset, at!(FileEntry.modified)))
    }

    /// Offset of the name of entry `index`; `None` before its group has a chunk.
    pub(crate) fn name_place(&self, index: u32) -> Result<Option<u64>> {
        let geometry = self.geometry();
        let group = u64::from(index) / geometry.names_per_chunk();
        let offset = NAMES + group * 8;
        let word = self.load(offset)?;
        if word == 0 {
            return Ok(None);
        }
        let count = u64::from(self.chunk_count()?);
        let chunk = checked_value(word, group)
            .filter(|chunk| *chunk >= u64::from(geometry.header_chunks()) && *chunk < count)
            .ok_or_else(|| Error::damaged("name table", offset, "no chunk number"))?;
        let word = self.chunk_word(chunk as u32)?;
        if word.is_some_and(|word| word.kind != ChunkKind::Names) {
            let what = format!("chunk {chunk} holds no names");
            return Err(Error::damaged("name table", offset, what));
        }
        let inside = u64::from(index) % geometry.names_per_chunk() * NAME_PAGES * PAGE;
        Ok(Some(geometry.chunk(chunk as u32) + inside))
    }

    /// Handle and path of a file.
    pub fn file_name(&self, file: FileRef) -> Result<FileName> {
        let entry = self.live_entry(file)?;
        self.name_of(file.index(), &entry)
    }

    pub(crate) fn name_of(&self, index: u32, entry: &FileEntry) -> Result<FileName> {
        let (place, bytes) = self.name_bytes(index, entry)?;
        if crc32c::crc32c(&bytes) != entry.name_crc {
            return Err(Error::damaged("name", place, "its CRC disagrees"));
        }
        let mut head = [0; Name::SIZE];
        head.copy_from_slice(&bytes[..Name::SIZE]);
        let head = Name::decode(&head);
        if !head.is_valid(entry.file_id, bytes.len()) {
            return Err(Error::damaged("name", place, "it belongs to another file"));
        }
        let (handle, path) = bytes[Name::SIZE..].split_at(head.handle_len as usize);
        Ok(FileName {
            handle_type: head.handle_type,
            handle: handle.to_vec(),
            path: path.to_vec(),
            device: entry.device,
        })
    }

    /// Whether one flipped bit is all that is wrong with the bytes of a name, which say whose they are: a loss of power
    /// leaves those of the file that the entry had before, whose number may differ by a bit as well.
    pub(crate) fn is_name_flipped(&self, index: u32, entry: &FileEntry) -> Result<bool> {
        let bytes = match self.name_bytes(index, entry) {
            Ok((_, bytes)) => bytes,
            Err(Error::Damaged { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let at = at!(Name.file_id) as usize;
        if bytes[at..at + 8] != entry.file_id.to_le_bytes() {
            return Ok(false);
        }
        let off = crc32c::crc32c(&bytes) ^ entry.name_crc;
        Ok(crate::crc::is_flipped(off, bytes.len() * 8))
    }

    /// Where the name of an entry is, and its bytes, whatever they are.
    fn name_bytes(&self, index: u32, entry: &FileEntry) -> Result<(u64, Vec<u8>)> {
        let Some(place) = self.name_place(index)? else {
            return Err(Error::damaged(
                "name table",
                NAMES,
                "the file's names have no chunk",
            ));
        };
        let len = entry.name_len as usize;
        if !(Name::SIZE..=Name::SIZE + HANDLE_MAX + PATH_LIMIT).contains(&len) {
            return Err(Error::damaged(
                "file entry",
                place,
                "impossible length of the name",
            ));
        }
        let mut bytes = vec![0; len];
        self.medium().read(place, &mut bytes)?;
        Ok((place, bytes))
    }

    /// Whether the last file of an entry that is empty was this one: the name stays until the next one's.
    fn was_entry_of(&self, index: u32, name: &FileName) -> Result<bool> {
        let entry = self.geometry().file_entry(index);
        let file_id = self.load(entry + at!(FileEntry.file_id))?;
        Ok(self.named_at(index, name)? == Some(file_id))
    }

    /// The number of the file whose name stands at the place of an entry, if that is of this handle.
    fn named_at(&self, index: u32, name: &FileName) -> Result<Option<u64>> {
        let Some(place) = self.name_place(index)? else {
            return Ok(None);
        };
        let mut head = [0; Name::SIZE];
        self.medium().read(place, &mut head)?;
        let head = Name::decode(&head);
        let kind = (head.handle_type, head.handle_len as usize);
        if kind != (name.handle_type, name.handle.len()) {
            return Ok(None);
        }
        let mut handle = vec![0; name.handle.len()];
        self.medium().read(place + Name::SIZE as u64, &mut handle)?;
        Ok((handle == name.handle).then_some(head.file_id))
    }

    /// Names have their place by the number of their entry, and a group of them takes a chunk that it keeps. So a
    /// pool uses a group only when there is no place in those before. `made`: groups that were never used are
    /// passed over.
    fn window(&self, key: u64, made: bool) -> impl Iterator<Item = u32> + '_ {
        let geometry = self.geometry();
        let count = geometry.file_count;
        let group = (geometry.names_per_chunk() as u32).clamp(1, count);
        let used = move |nth: &u32| {
            !made
                || self
                    .load(NAMES + u64::from(*nth) * 8)
                    .is_ok_and(|chunk| chunk != 0)
        };
        let near = (0..count.div_ceil(group))
            .filter(used)
            .flat_map(move |nth| {
                let first = nth * group;
                let len = group.min(count - first);
                let start = (key % u64::from(len)) as u32;
                (0..NEAR.min(len)).map(move |i| first + (start + i) % len)
            });
        let start = (key % u64::from(count)) as u32;
        near.chain((0..WINDOW.min(count)).map(move |i| (start + i) % count))
    }

    /// The entry of this file, if it is staged. Takes no lock. Before records are written for it,
    /// [`Attachment::enter_file`] has to be called once. [`Error::Damaged`] where an entry that may be its is, or its name:
    /// who took that for none would go on without what is staged of the file.
    pub fn find_file(&self, name: &FileName) -> Result<Option<FileRef>> {
        let found = self.find_handle(name)?;
        let its = found.filter(|(_, entry)| !self.is_elsewhere(entry, name));
        Ok(its.map(|(file, _)| file))
    }

    /// Whether an entry is of a file on another device that has the same handle: an image and its copy, say, of which one
    /// pool may stage both. In another boot devices had other numbers, and say nothing.
    fn is_elsewhere(&self, entry: &FileEntry, name: &FileName) -> bool {
        entry.boot == self.boot_tag() && entry.device != name.device
    }

    /// The entry of a file with this handle, on whatever device; fails where none is sound and one may be damaged.
    fn find_handle(&self, name: &FileName) -> Result<Option<(FileRef, FileEntry)>> {
        let found = self.find_sound(name)?;
        if found.is_none() {
            self.ensure_none_damaged(name)?;
        }
        Ok(found)
    }

    fn find_sound(&self, name: &FileName) -> Result<Option<(FileRef, FileEntry)>> {
        let key = name.key();
        for index in self.window(key, true) {
            let offset = self.geometry().file_entry(index);
            if self.load(offset + at!(FileEntry.key))? != key {
                continue;
            }
            let entry = self.read_entry(index)?;
            if entry.kind() != FileEntry::LIVE || !entry.is_valid(index) || entry.key != key {
                continue;
            }
            // The entry may be removed and reused while we read its name; then it is not the file.
            let found = match self.name_of(index, &entry) {
                Err(error @ Error::NotMapped { .. }) => return Err(error),
                Err(_) => continue,
                Ok(found) => found,
            };
            let unchanged = self.load(offset)? == entry.state
                && self.load(offset + at!(FileEntry.file_id))? == entry.file_id;
            if unchanged && found.has_handle_of(name) {
                return Ok(Some((FileRef { id: entry.file_id }, entry)));
            }
        }
        Ok(None)
    }

    /// Fails where an entry of this file, or its name, is damaged. Made anew beside it, the file would have two: the
    /// records of the old one would be nobody's, and once it is repaired they would be replayed over newer ones.
    #[cold]
    fn ensure_none_damaged(&self, name: &FileName) -> Result<()> {
        for index in self.window(name.key(), true) {
            if self.load(self.geometry().file_entry(index))? != 0 {
                self.ensure_not_damaged(index, name)?;
            }
        }
        Ok(())
    }

    /// The same of one entry. It is its own name that says whose a damaged one is, or what it is found by.
    fn ensure_not_damaged(&self, index: u32, name: &FileName) -> Result<()> {
        for _ in 0..LOOKS {
            let Some(entry) = self.read_entry_alone(index)? else {
                continue;
            };
            if entry.is_valid(index) {
                return self.ensure_named(index, &entry, name);
            }
            if self.is_unfinished(index, &entry) {
                return Ok(());
            }
            let stands = match self.named_at(index, name) {
                Err(Error::Damaged { .. }) => false,
                named => named?.is_some(),
            };
            let may_be_its = stands || entry.key == name.key();
            return if may_be_its {
                Err(self.damaged_entry(index))
            } else {
                Ok(())
            };
        }
        // Others have it, one after the other.
        Ok(())
    }

    /// Fails where a sound entry that this file would be found by has a damaged name. Before who attaches first has
    /// emptied them, a loss of power may have left some without one.
    fn ensure_named(&self, index: u32, entry: &FileEntry, name: &FileName) -> Result<()> {
        let may_be_cut_off =
            !self.is_rebuilt() && entry.is_cached() && entry.boot != self.boot_tag();
        if entry.kind() != FileEntry::LIVE || entry.key != name.key() || may_be_cut_off {
            return Ok(());
        }
        let named = self.name_of(index, entry).map(drop);
        // What stands there when the entry was given up meanwhile is another file's name.
        match self.live_entry(FileRef { id: entry.file_id }) {
            Err(Error::Forgotten) => Ok(()),
            _ => named,
        }
    }

    /// Entries that have a file or may have: a damaged one has, until somebody repairs it.
    pub(crate) fn used_entries(&self) -> Result<u64> {
        let mut used = 0;
        for index in 0..self.geometry().file_count {
            if self.load(self.geometry().file_entry(index))? != 0 {
                let entry = self.read_entry(index)?;
                used += u64::from(!self.is_unfinished(index, &entry));
            }
        }
        Ok(used)
    }

    /// All files of the table.
    pub fn files(&self) -> Result<Vec<FileRef>> {
        let mut files = Vec::new();
        for index in 0..self.geometry().file_count {
            if self.load(self.geometry().file_entry(index))?.to_le_bytes()[0] == FileEntry::LIVE {
                let entry = self.read_entry(index)?;
                if entry.is_valid(index) {
                    files.push(FileRef { id: entry.file_id });
                }
            }
        }
        Ok(files)
    }

    /// Counts the entries in use anew.
    pub(crate) fn recount_files(&self) -> Result<()> {
        let files = self.used_entries()?;
        self.store(SHARED + at!(Shared.staged_files), files)
    }
}

impl<M: Medium> Attachment<M> {
    pub(crate) fn lock_shared(
        &self,
        name: &'static str,
        offset: u64,
    ) -> Result<(Locked<'_, M>, Acquired)> {
        self.ensure_current()?;
        let word = LockWord::at(&self.pool, offset)?;
        let acquired = self.pool.take_lock(name, &word, self.owner, PATIENCE)?;
        let attachment = self;
        Ok((Locked { attachment, word }, acquired))
    }

    /// The same of a lock whose holder may say that he takes long: then he is waited for while he lives.
    fn lock_patiently(&self, name: &'static str, offset: u64) -> Result<(Locked<'_, M>, Acquired)> {
        loop {
            match self.lock_shared(name, offset) {
                Err(Error::Busy { .. }) if self.pool.load(offset)? & LONG != 0 => {}
                locked => return locked,
            }
        }
    }

    /// Takes the recovery lock. Whoever has it walks over all logs, and says so: it may be for a program that cannot go on
    /// without.
    pub(crate) fn lock_recovery(&self) -> Result<Locked<'_, M>> {
        let offset = SHARED + at!(Shared.recovery_lock);
        let (lock, _) = self.lock_patiently("recovery lock", offset)?;
        lock.takes_long();
        Ok(lock)
    }

    fn lock_files(&self) -> Result<Locked<'_, M>> {
        let offset = SHARED + at!(Shared.files_lock);
        let (lock, acquired) = self.lock_patiently("files lock", offset)?;
        if acquired == Acquired::OwnerDied {
            // A half-written entry is not live, one that was being emptied is locked, and a chunk without a group
            // is found by the next rebuild; only the count may be off.
            lock.takes_long();
            let recounted = self.pool.recount_files();
            let repaired = recounted.and_then(|()| self.make_name_table_durable());
            repaired.inspect_err(|_| lock.leave_unrepaired())?;
            lock.takes_no_longer();
        }
        Ok(lock)
    }

    /// The file's entry, made if there is none. Durable with the first record that is. [`Error::OtherDevice`] while another
    /// device's file of this handle has one: nobody could tell the two apart in the next boot.
    pub fn enter_file(&self, name: &FileName) -> Result<FileRef> {
        if name.handle.len() > HANDLE_MAX {
            return Err(Error::Invalid("a file handle has at most 128 bytes"));
        }
        if name.path.len() > PATH_LIMIT {
            return Err(Error::Invalid("a path has at most 4096 bytes"));
        }
        let mut waits = None;
        loop {
            let lock = self.lock_files()?;
            if let Some((file, entry)) = self.pool.find_handle(name)? {
                if self.pool.is_elsewhere(&entry, name) {
                    return Err(Error::OtherDevice);
                }
                // Nobody who enters or forgets another file is to wait for this fence.
                drop(lock);
                self.write_names_back(file.index())?;
                self.pool.make_mark_durable(file)?;
                return Ok(file);
            }
            // That may take syncs of the device, and a walk over the logs for somebody dead.
            lock.takes_long();
            let made = self.make_entry(name);
            if let Err(Error::OutOfRange(_)) = made {
                // A chunk may have names by now, and not durably so.
                lock.leave_unrepaired();
            }
            if let Some(file) = made? {
                return Ok(file);
            }
            drop(lock);
            // Not what the files lock was waited for.
            let since = waits.get_or_insert_with(Instant::now);
            if since.elapsed() > PATIENCE {
                let limit = self.pool.geometry().file_count;
                return Err(Error::TooManyFiles { limit });
            }
            adit_pmem::rest(PAUSE);
        }
    }

    /// Makes an entry; nothing as long as somebody has to be waited for who is emptying one. The caller has the files lock.
    fn make_entry(&self, name: &FileName) -> Result<Option<FileRef>> {
        let pool = &self.pool;
        // A loss of power would bring back the one that the file had before, beside this one.
        for index in pool.window(name.key(), true) {
            if self.is_being_emptied(index)? && pool.was_entry_of(index, name)? {
                return Ok(None);
            }
        }
        let mut waits = false;
        for index in pool.window(name.key(), false) {
            if self.is_being_emptied(index)? {
                waits = true;
                continue;
            }
            let entry = pool.read_entry(index)?;
            if entry.state == 0 {
                return self.write_entry(index, &entry, name).map(Some);
            }
        }
        let limit = pool.geometry().file_count;
        waits.then_some(None).ok_or(Error::TooManyFiles { limit })
    }

    /// Whether an entry is empty, and perhaps not durably so: who empties one has its lock until it is. What somebody dead
    /// left, this makes durable. The caller has the files lock, so the entry is not emptied meanwhile, nor filled.
    fn is_being_emptied(&self, index: u32) -> Result<bool> {
        let entry = self.pool.geometry().file_entry(index);
        if self.pool.load(entry + at!(FileEntry.lock))? == 0
            || self.pool.load(entry + at!(FileEntry.state))? != 0
        {
            return Ok(false);
        }
        let id = self.pool.load(entry + at!(FileEntry.file_id))?;
        let former = FileRef::at(index, id >> FileEntry::INDEX_BITS);
        match self.try_lock_file(former) {
            Ok(guard) => Ok(guard.is_none()),
            Err(Error::Forgotten) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn write_entry(&self, index: u32, old: &FileEntry, name: &FileName) -> Result<FileRef> {
        let pool = &self.pool;
        let place = self.name_place_or_lease(index)?;
        let generation = (old.file_id >> FileEntry::INDEX_BITS).wrapping_add(1);
        let file_id = FileRef::at(index, generation).id;
        let bytes = name.encode(file_id);
        pool.medium().write_streaming(place, &bytes)?;
        let mut entry = FileEntry {
            state: 0,
            file_id,
            key: name.key(),
            name_len: bytes.len() as u32,
            name_crc: crc32c::crc32c(&bytes),
            device: name.device,
            boot: pool.boot_tag(),
            reserved: [0; 12],
            modified: 0,
            retired: 0,
            sealed: 0,
            lock: 0,
            next_seq: 1,
            end: END_UNKNOWN,
            last_seq: 0,
            pending: 0,
            version: 0,
        };
        if pool.medium().fence_is_slow() {
            entry.state = FileEntry::CACHED;
        }
        entry.state = entry.live_state();
        let offset = pool.geometry().file_entry(index);
        let encoded = entry.encode();
        // Word by word, and never the lock: somebody who still waits for the old file may hold it.
        for (i, word) in encoded.chunks_exact(8).enumerate().skip(1) {
            let at = i as u64 * 8;
            if at != at!(FileEntry.lock) {
                pool.store(offset + at, <u64 as crate::layout::Field>::get(word))?;
            }
        }
        // All else is durable before that it lives. A part of what replaces nothing is told from damage, so where a
        // fence takes a kernel sync all of it waits for that of the first record, which says so.
        let waits = pool.medium().fence_is_slow() && old.is_blank();
        if !waits {
            pool.make_durable(offset, FileEntry::SIZE as u64)?;
        }
        self.count_files(1)?;
        // That it lives has to be durable with the first record that counts, not sooner.
        let stored = pool.store(offset + at!(FileEntry.state), entry.state);
        let len = if waits { FileEntry::SIZE as u64 } else { 8 };
        let file = FileRef { id: file_id };
        let lives = stored.and_then(|()| pool.make_ordered(offset, len));
        lives.inspect_err(|_| self.unmake_entry(file))?;
        Ok(file)
    }

    /// Empties an entry that was made just now, and of which nobody was told: the caller has the files lock.
    fn unmake_entry(&self, file: FileRef) {
        let guard = match self.try_lock_file(file) {
            Ok(Some(guard)) => guard,
            // It does not live even so.
            Err(Error::Forgotten) => return drop(self.count_files(-1)),
            // Somebody still waits for the file that the entry had before: it stays, for who tries again.
            _ => return,
        };
        let emptied = self.empty(file.index());
        let durable = emptied.and_then(|(entry, len)| self.pool.make_durable(entry, len));
        if durable.is_err() {
            // Who makes the next one here waits for that, or does it.
            guard.lock.leave_unrepaired();
        }
    }

    /// Writes back what another attachment wrote of a file's name and perhaps died over: records that
    /// name the entry are worth nothing without it. The caller fences.
    fn write_names_back(&self, index: u32) -> Result<()> {
        let pool = &self.pool;
        let group = u64::from(index) / pool.geometry().names_per_chunk();
        if let Some(place) = pool.name_place(index)? {
            pool.medium().flush(place, NAME_PAGES * PAGE)?;
            let chunk = (place >> pool.geometry().chunk_shift) as u32;
            pool.medium().flush(pool.geometry().chunk_word(chunk), 8)?;
        }
        Ok(pool.medium().flush(NAMES + group * 8, 8)?)
    }

    /// Makes durable which chunks have names. Whoever died over naming one, or could not, may have left that unsaid, and what is
    /// entered there next is only ordered behind it. That such a chunk is one of names is derived anew from this.
    fn make_name_table_durable(&self) -> Result<()> {
        let geometry = self.pool.geometry();
        let groups = u64::from(geometry.file_count).div_ceil(geometry.names_per_chunk());
        self.pool.make_durable(NAMES, groups * 8)
    }

    fn name_place_or_lease(&self, index: u32) -> Result<u64> {
        let pool = &self.pool;
        if let Some(place) = pool.name_place(index)? {
            self.write_names_back(index)?;
            return Ok(place);
        }
        let group = u64::from(index) / pool.geometry().names_per_chunk();
        let hint = AtomicU32::new(0);
        let chunk = pool.lease(Purpose::Names, 0, true, &hint)?;
        let named = pool.persist(NAMES + group * 8, checked_word(u64::from(chunk), group));
        if named.is_err() && pool.load(NAMES + group * 8)? == 0 {
            // Nobody would find it. One that is named, durably or not, is found by who tries again.
            pool.untake_names(chunk)?;
        }
        named?;
        pool.name_place(index)?
            .ok_or(Error::Invalid("name chunk vanished"))
    }

    fn count_files(&self, by: i64) -> Result<()> {
        // Under the files lock, so a load and a store are enough.
        let offset = SHARED + at!(Shared.staged_files);
        let count = self.pool.load(offset)?.saturating_add_signed(by);
        self.pool.store(offset, count)
    }

    /// Empties an entry that counts, to be made durable by the caller, who has the files lock as well as the file's.
    fn empty(&self, index: u32) -> Result<(u64, u64)> {
        let emptied = self.pool.empty_entry(index)?;
        self.count_files(-1)?;
        Ok(emptied)
    }

    /// Removes a file's entry, and with it, in one durable store, every record of the file. The
    /// caller has made the base file durable, or gives the staged bytes up.
    pub fn forget_file(&self, file: FileRef) -> Result<()> {
        self.lock_file(file)?.forget()
    }

    /// Ends what was staged of several files up to a record each, with one fence for all: those of which nothing was logged
    /// since are forgotten, the records of the others are retired. The base files are durable already. Says of each, in their
    /// order, whether that is durable. The guards are of this attachment and of different files; locked in the order of
    /// [`FileRef`], as everybody does who locks several.
    ///
    /// Of several files any may end first, also of those that were committed together. Nobody believes of any of them that
    /// it has ended before the fence, as its lock is held until then.
    pub fn end_together(&self, files: Vec<(FileGuard<'_, M>, u64)>) -> Vec<Result<()>> {
        let ended: Vec<_> = files
            .iter()
            .map(|(guard, last)| guard.end_up_to(*last))
            .collect();
        self.pool.medium().fence();
        let is_durable = |(ended, (guard, _)): (Result<()>, (FileGuard<'_, M>, u64))| {
            let durable = ended.and_then(|()| Ok(self.pool.medium().sound()?));
            durable.inspect_err(|_| guard.lock.leave_unrepaired())
        };
        ended.into_iter().zip(files).map(is_durable).collect()
    }
}

impl<M: Medium> FileGuard<'_, M> {
    /// [`Attachment::forget_file`], of a file that is locked already.
    pub fn forget(self) -> Result<()> {
        let durable = self.empty().and_then(|()| self.pool().fence());
        // Everybody sees the mark by now. Where it is not durable, whoever takes the lock next has to make it so before
        // he believes it.
        durable.inspect_err(|_| self.lock.leave_unrepaired())
    }

    /// [`FileGuard::forget`], up to the fence.
    fn empty(&self) -> Result<()> {
        let attachment = self.attachment();
        let lock = attachment.lock_files()?;
        let emptied = attachment.empty(self.file().index());
        // Others' files are entered and forgotten beside the fence: the file's own lock says that it is still to come.
        drop(lock);
        let (entry, len) = emptied?;
        Ok(self.pool().medium().flush(entry, len)?)
    }

    /// One of [`Attachment::end_together`], up to the fence.
    fn end_up_to(&self, last: u64) -> Result<()> {
        if self.next_seq()? == last + 1 {
            self.empty()
        } else {
            self.raise_retired(last).map(drop)
        }
    }
}
