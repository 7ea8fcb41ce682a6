//! The simulated base file system as the engine sees it.

use adit_pmem::BaseFile;
use rustix::io::Errno;

use crate::disk::{Content, PAGE, bytes_of};
use crate::world::{State, World};

/// Pages that one extent of a clone has: a crash can come between two extents.
const EXTENT_PAGES: u64 = 2;

/// An open file of a [`World`]. Dropping it closes nothing; an unlinked file keeps its bytes.
#[derive(Clone)]
pub struct SimFile {
    world: World,
    file: u64,
}

/// The names of the base file system. Directories are the parts of names before slashes; they need
/// not be made.
impl World {
    /// Creates an empty file, or `EEXIST`.
    pub fn create(&self, name: &str) -> Result<SimFile, Errno> {
        let file = self.change(|state| {
            if state.disk.find(name).is_some() {
                return Err(Errno::EXIST);
            }
            let at = state.tick();
            Ok(state.disk.create(name, at))
        })?;
        Ok(self.handle_of(file))
    }

    /// Opens an existing file, or `ENOENT`.
    pub fn open(&self, name: &str) -> Result<SimFile, Errno> {
        let file = self
            .look(|state| state.disk.find(name))
            .ok_or(Errno::NOENT)?;
        Ok(self.handle_of(file))
    }

    /// Opens the file that [`SimFile::handle`] named, under whatever name it has now, or `ESTALE`.
    pub fn open_by_handle(&self, handle: u64) -> Result<SimFile, Errno> {
        if self.look(|state| state.disk.is_linked(handle)) {
            Ok(self.handle_of(handle))
        } else {
            Err(Errno::STALE)
        }
    }

    /// Renames `from` to `to`, replacing a file that is there.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        self.change(|state| {
            state.disk.find(from).ok_or(Errno::NOENT)?;
            let at = state.tick();
            state.disk.rename(from, to, at);
            Ok(())
        })
    }

    /// Removes a name.
    pub fn unlink(&self, name: &str) -> Result<(), Errno> {
        self.change(|state| {
            state.disk.find(name).ok_or(Errno::NOENT)?;
            let at = state.tick();
            state.disk.unlink(name, at);
            Ok(())
        })
    }

    /// Makes the names in `directory` durable (`""` is the top).
    pub fn sync_directory(&self, directory: &str) {
        self.event(|state| state.disk.sync_directory(directory));
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.look(|state| state.disk.names().cloned().collect())
    }

    /// Leaves `free` blocks of 4 KB on the disk (`None`: endless).
    pub fn limit_disk(&self, free: Option<u64>) {
        self.adjust(|state| state.disk.limit(free));
    }

    fn handle_of(&self, file: u64) -> SimFile {
        SimFile {
            world: self.clone(),
            file,
        }
    }

    /// An event that can fail. The dead are told `EINTR`; they do not listen.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T, Errno>) -> Result<T, Errno> {
        self.event(change).unwrap_or(Err(Errno::INTR))
    }
}

fn words_of(content: &Content) -> Vec<u64> {
    let words = bytes_of(content);
    let words = words.chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    });
    words.collect()
}

impl SimFile {
    /// Names the file for ever; never used again for another one.
    pub fn handle(&self) -> u64 {
        self.file
    }

    /// Clones a range of the machine's medium, as a pool file is cloned into a base file.
    /// The kernel makes the range durable first.
    pub fn clone_from_medium(&self, offset: u64, from: u64, len: u64) -> Result<(), Errno> {
        let size = self.world.look(|state| state.cells.size());
        if !from.is_multiple_of(PAGE) || from.checked_add(len).is_none_or(|end| end > size) {
            return Err(Errno::INVAL);
        }
        self.change(|state| {
            state.cells.settle_range(from, len);
            Ok(())
        })?;
        self.clone_extents(offset, len, &|state, nth| {
            state.medium_page(from / PAGE + nth)
        })
    }

    /// Exchanges a range of the file with one of the machine's medium, as with a pool's file.
    pub fn exchange_with_medium(&self, offset: u64, from: u64, len: u64) -> Result<(), Errno> {
        let inside = |start: u64, size: u64| start.checked_add(len).is_some_and(|end| end <= size);
        let aligned = [offset, from, len].iter().all(|at| at.is_multiple_of(PAGE));
        let size = self.world.look(|state| state.cells.size());
        if !aligned || !inside(offset, self.size()?) || !inside(from, size) {
            return Err(Errno::INVAL);
        }
        self.change(|state| {
            state.cells.settle_range(from, len);
            state.disk.write_out(self.file, Self::pages(offset, len));
            Ok(())
        })?;
        self.change(|state| {
            let first = offset / PAGE;
            let pages = len / PAGE;
            let staged = (0..pages).map(|nth| state.medium_page(from / PAGE + nth));
            let staged: Vec<Content> = staged.collect();
            let given: Vec<u64> = (first..first + pages)
                .flat_map(|page| words_of(&state.disk.page(self.file, page)))
                .collect();
            let words = from / 8..(from + len) / 8;
            let before = words.clone().map(|word| state.cells.load(word)).collect();
            let at = state.tick();
            state
                .disk
                .exchange_with_medium(self.file, first, staged, words.start, before, at);
            state.cells.replace(words.start, &given);
            Ok(())
        })
    }

    fn clone_extents(
        &self,
        offset: u64,
        len: u64,
        source: &dyn Fn(&State, u64) -> Content,
    ) -> Result<(), Errno> {
        if !offset.is_multiple_of(PAGE) || offset.checked_add(len).is_none() {
            return Err(Errno::INVAL);
        }
        let mut done = 0;
        while done < len {
            let step = (EXTENT_PAGES * PAGE).min(len - done);
            self.change(|state| {
                let first = done / PAGE;
                let contents = (first..first + step.div_ceil(PAGE))
                    .map(|nth| source(state, nth))
                    .collect();
                let at = state.tick();
                let end = offset + done + step;
                state
                    .disk
                    .clone_extent(self.file, (offset + done) / PAGE, contents, end, at);
                Ok(())
            })?;
            done += step;
        }
        Ok(())
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T, Errno>) -> Result<T, Errno> {
        self.world.change(change)
    }

    fn pages(offset: u64, len: u64) -> std::ops::Range<u64> {
        offset / PAGE..offset.saturating_add(len).div_ceil(PAGE)
    }
}

impl BaseFile for SimFile {
    fn size(&self) -> Result<u64, Errno> {
        Ok(self.world.look(|state| state.disk.size(self.file)))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        self.world.look(|state| {
            let size = state.disk.size(self.file);
            let len = (into.len() as u64).min(size.saturating_sub(offset)) as usize;
            let mut done = 0;
            while done < len {
                let at = offset + done as u64;
                let skip = (at % PAGE) as usize;
                let step = (PAGE as usize - skip).min(len - done);
                let bytes = bytes_of(&state.disk.page(self.file, at / PAGE));
                into[done..done + step].copy_from_slice(&bytes[skip..skip + step]);
                done += step;
            }
            Ok(len)
        })
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        // Page by page: a kill can end the kernel's own loop between two pages.
        let mut done = 0;
        while done < from.len() {
            let at_byte = offset.checked_add(done as u64).ok_or(Errno::FBIG)?;
            let step = (PAGE - at_byte % PAGE).min((from.len() - done) as u64) as usize;
            self.change(|state| {
                let page = at_byte / PAGE;
                if !state.disk.allocate(self.file, page..page + 1) {
                    return Err(Errno::NOSPC);
                }
                let at = state.tick();
                state
                    .disk
                    .write(self.file, at_byte, &from[done..done + step], at);
                Ok(())
            })?;
            done += step;
        }
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.change(|state| {
            let at = state.tick();
            state.disk.set_size(self.file, size, at);
            Ok(())
        })
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.change(|state| {
            if !state.disk.allocate(self.file, Self::pages(offset, len)) {
                return Err(Errno::NOSPC);
            }
            let at = state.tick();
            state.disk.reserved(self.file, at);
            Ok(())
        })
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        offset.checked_add(len).ok_or(Errno::FBIG)?;
        self.change(|state| {
            let at = state.tick();
            state.disk.punch(self.file, offset, len, at);
            Ok(())
        })
    }

    fn clone_range(
        &self,
        offset: u64,
        from: &Self,
        from_offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let end = from_offset.checked_add(len).ok_or(Errno::INVAL)?;
        let size = from.size()?;
        let aligned = from_offset.is_multiple_of(PAGE) && (len.is_multiple_of(PAGE) || end == size);
        if !aligned || end > size {
            return Err(Errno::INVAL);
        }
        self.change(|state| {
            state
                .disk
                .write_out(from.file, Self::pages(from_offset, len));
            Ok(())
        })?;
        self.clone_extents(offset, len, &|state, nth| {
            state.disk.page(from.file, from_offset / PAGE + nth)
        })
    }

    fn exchange_range(
        &self,
        offset: u64,
        other: &Self,
        other_offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let inside = |start: u64, size: u64| start.checked_add(len).is_some_and(|end| end <= size);
        let aligned = [offset, other_offset, len]
            .iter()
            .all(|at| at.is_multiple_of(PAGE));
        if !aligned || !inside(offset, self.size()?) || !inside(other_offset, other.size()?) {
            return Err(Errno::INVAL);
        }
        self.change(|state| {
            state.disk.write_out(self.file, Self::pages(offset, len));
            state
                .disk
                .write_out(other.file, Self::pages(other_offset, len));
            Ok(())
        })?;
        self.change(|state| {
            let at = state.tick();
            let one = (self.file, offset / PAGE);
            let two = (other.file, other_offset / PAGE);
            state.disk.exchange(one, two, len / PAGE, at);
            Ok(())
        })
    }

    fn sync(&self) -> Result<(), Errno> {
        self.change(|state| {
            state.disk.sync(self.file);
            Ok(())
        })
    }
}
