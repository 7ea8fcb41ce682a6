//! A medium in plain memory that counts accesses outside of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_pmem::{Medium, OutOfRange};

#[derive(Clone)]
pub(crate) struct Memory {
    words: Arc<[AtomicU64]>,
    strays: Arc<AtomicU64>,
    slow: bool,
    /// Of a word that cannot be stored to, plus one.
    broken: Arc<AtomicU64>,
    full: Arc<AtomicBool>,
    /// How many write-backs and streams succeed yet.
    room: Arc<AtomicU64>,
    fences: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
    held: Arc<Mutex<Option<HeldFence>>>,
    beside: Arc<Mutex<Option<(u64, Happens)>>>,
}

/// What happens beside a read.
type Happens = Box<dyn FnOnce() + Send>;

/// A fence that is to wait: it says so, and then waits to be told to go on.
type HeldFence = (Sender<()>, Receiver<()>);

impl Memory {
    /// The next fence waits: the first channel says when it does, and the second lets it go on.
    pub(crate) fn hold_next_fence(&self) -> (Receiver<()>, Sender<()>) {
        let (says, waits) = channel();
        let (lets, goes_on) = channel();
        *self.held.lock().unwrap() = Some((says, goes_on));
        (waits, lets)
    }

    /// Something happens beside whoever reads next where this offset is the first.
    pub(crate) fn when_read(&self, offset: u64, happens: impl FnOnce() + Send + 'static) {
        *self.beside.lock().unwrap() = Some((offset, Box::new(happens)));
    }

    /// Whether that has happened.
    pub(crate) fn was_read(&self) -> bool {
        self.beside.lock().unwrap().is_none()
    }

    /// Whether nothing can be written back, as on a disk that is full.
    pub(crate) fn refuse_write_backs(&self, refuse: bool) {
        self.full.store(refuse, Ordering::SeqCst);
    }

    /// So many write-backs and streams succeed yet, and none after them.
    pub(crate) fn refuse_after(&self, room: u64) {
        self.room.store(room, Ordering::SeqCst);
    }

    fn take_room(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let less = |room: u64| match room {
            u64::MAX => Some(room),
            room => room.checked_sub(1),
        };
        let taken = self
            .room
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        taken.map_err(|_| OutOfRange::outside(offset, len, self.size()))?;
        self.check(offset, len)
    }

    /// From now on no store to the word at this offset succeeds.
    pub(crate) fn break_word(&self, offset: Option<u64>) {
        self.broken
            .store(offset.map_or(0, |offset| offset + 1), Ordering::SeqCst);
    }

    /// One whose fences wait for a device, as those of a page cache.
    pub(crate) fn slow(bytes: &[u8]) -> Self {
        Self {
            slow: true,
            ..Self::new(bytes)
        }
    }

    pub(crate) fn new(bytes: &[u8]) -> Self {
        let words = bytes
            .chunks_exact(8)
            .map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().unwrap())))
            .collect();
        Self {
            words,
            strays: Arc::default(),
            slow: false,
            broken: Arc::default(),
            full: Arc::default(),
            room: Arc::new(AtomicU64::new(u64::MAX)),
            fences: Arc::default(),
            reads: Arc::default(),
            held: Arc::default(),
            beside: Arc::default(),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .collect()
    }

    /// Accesses that were refused.
    pub(crate) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// Reads so far, of whatever length; words that are loaded are none.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Fences so far.
    pub(crate) fn fences(&self) -> u64 {
        self.fences.load(Ordering::Relaxed)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => {
                self.strays.fetch_add(1, Ordering::Relaxed);
                Err(OutOfRange::outside(offset, len, size))
            }
        }
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        self.check(offset, 8)?;
        assert_eq!(offset % 8, 0, "an unaligned word");
        Ok(&self.words[(offset / 8) as usize])
    }
}

impl Medium for Memory {
    fn size(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn fence_is_slow(&self) -> bool {
        self.slow
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        if self.broken.load(Ordering::SeqCst) == offset + 1 {
            let size = self.size();
            return Err(OutOfRange::outside(offset, 8, size));
        }
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, OutOfRange> {
        let word = self.word(offset)?;
        Ok(word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let happens = (self.beside.lock().unwrap()).take_if(|(place, _)| *place == offset);
        if let Some((_, happens)) = happens {
            happens();
        }
        self.check(offset, into.len() as u64)?;
        for (i, byte) in into.iter_mut().enumerate() {
            let at = offset as usize + i;
            *byte = self.words[at / 8].load(Ordering::Acquire).to_le_bytes()[at % 8];
        }
        Ok(())
    }

    fn write_streaming(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.take_room(offset, from.len() as u64)?;
        for (i, byte) in from.iter().enumerate() {
            let at = offset as usize + i;
            let mut word = self.words[at / 8].load(Ordering::Acquire).to_le_bytes();
            word[at % 8] = *byte;
            self.words[at / 8].store(u64::from_le_bytes(word), Ordering::Release);
        }
        Ok(())
    }

    fn flush(&self, offset: u64, len: u64) -> Result<(), OutOfRange> {
        if self.full.load(Ordering::SeqCst) {
            return Err(OutOfRange::outside(offset, len, self.size()));
        }
        self.take_room(offset, len)
    }

    fn fence(&self) {
        self.fences.fetch_add(1, Ordering::Relaxed);
        let held = self.held.lock().unwrap().take();
        if let Some((says, goes_on)) = held {
            let _ = says.send(());
            let _ = goes_on.recv_timeout(Duration::from_secs(30));
        }
    }
}
