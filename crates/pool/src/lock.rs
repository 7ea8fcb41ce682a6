//! Locks in the pool that outlive their owners.
//!
//! A lock word says who holds it: attachment slot, the slot's incarnation, thread. Waiters find out
//! whether that owner still lives; a dead owner's word is replaced by their own and they are told to
//! repair what the lock guards. The same happens when the owner is the waiting thread itself: it
//! jumped out of the engine and came back. What each lock guards, the order in which they are taken
//! and the repair of each is in `docs/processes.md`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use adit_pmem::{Medium, Pauses, Words};

use crate::error::{Error, Result};
use crate::layout::{FileEntry, at};
use crate::pool::{Attachment, Pool};

/// How long somebody alive is waited for who holds a lock.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How often a lock is looked at before its holder is, without and with letting others go first.
const SPINS: u32 = 200;
const YIELDS: u32 = 200;

/// The first pause of who has spun in vain.
const PAUSE: Duration = Duration::from_micros(50);

/// Bit of a lock word, above the number of the thread: its holder works for longer than that, and said so.
pub(crate) const LONG: u64 = 1 << 63;

/// Bits of the number of a thread.
const THREADS: u32 = u32::MAX >> 1;

static LAST_THREAD: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// A number for this thread, unique in its process. Cheaper than asking the kernel, and never equal
/// in two threads of one attachment: the counter is copied by fork, the attachment is not.
pub(crate) fn thread_token() -> u32 {
    THREAD.with(|token| {
        if token.get() == 0 {
            let next = LAST_THREAD.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            token.set((next & THREADS).max(1));
        }
        token.get()
    })
}

/// An attachment as the owner of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Its slot.
    pub slot: u32,
    /// The slot's incarnation.
    pub incarnation: u64,
}

impl Owner {
    /// The lock word of this owner's calling thread.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.slot + 1)
            | (self.incarnation & 0xffff) << 16
            | u64::from(thread_token()) << 32
    }
}

/// What a lock word says.
pub(crate) struct Holder {
    pub(crate) slot: u32,
    pub(crate) incarnation: u16,
    pub(crate) thread: u32,
}

impl Holder {
    pub(crate) fn of(word: u64) -> Self {
        Self {
            slot: u32::from(word as u16).wrapping_sub(1),
            incarnation: (word >> 16) as u16,
            thread: (word >> 32) as u32 & THREADS,
        }
    }
}

/// How a lock was got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// It was free.
    Clean,
    /// Its owner died, or is this thread: what it guards must be repaired.
    OwnerDied,
}

impl<M: Medium> Pool<M> {
    /// Whether the holder that a lock word names can still release it.
    pub(crate) fn holder_lives(&self, word: u64) -> Result<bool> {
        let holder = Holder::of(word);
        if holder.slot >= self.geometry().slot_count {
            return Ok(false);
        }
        let incarnation = self.load(self.geometry().slot(holder.slot) + at!(Slot.incarnation))?;
        Ok(incarnation as u16 == holder.incarnation && self.locks().is_alive(holder.slot))
    }

    /// Takes a lock, waiting up to `patience` for each owner that lives.
    #[inline(always)]
    pub(crate) fn take_lock<const N: usize, const AT: usize>(
        &self,
        name: &'static str,
        lock: &LockWord<'_, N, AT>,
        owner: Owner,
        patience: Duration,
    ) -> Result<Acquired> {
        let mine = owner.word();
        match lock.swap(0, mine)? {
            Ok(_) => Ok(Acquired::Clean),
            Err(_) => self.wait_for_lock(name, lock, mine, patience),
        }
    }

    /// The same when somebody was seen to hold it.
    #[cold]
    #[inline(never)]
    fn wait_for_lock<const N: usize, const AT: usize>(
        &self,
        name: &'static str,
        lock: &LockWord<'_, N, AT>,
        mine: u64,
        patience: Duration,
    ) -> Result<Acquired> {
        let mut waiting = None;
        let mut pauses = Pauses::new(PAUSE, Duration::MAX);
        let mut spins = 0_u32;
        loop {
            let seen = match lock.swap(0, mine)? {
                Ok(_) => return Ok(Acquired::Clean),
                Err(seen) => seen,
            };
            // What its former self said was of another work.
            if seen & !LONG == mine && (seen == mine || lock.swap(seen, mine)?.is_ok()) {
                return Ok(Acquired::OwnerDied);
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            // The holder may want this processor. Whether he lives takes several system calls to find out.
            if spins < SPINS + YIELDS && !patience.is_zero() {
                std::thread::yield_now();
                continue;
            }
            if !self.holder_lives(seen)? {
                if lock.swap(seen, mine)?.is_ok() {
                    return Ok(Acquired::OwnerDied);
                }
                continue;
            }
            // Behind many, each of whom is soon done with it, it may take longer than that until it is this one's turn.
            let (holder, since) = *waiting.get_or_insert_with(|| (seen, Instant::now()));
            if holder != seen {
                waiting = None;
            } else if since.elapsed() > patience {
                let Holder { slot, thread, .. } = Holder::of(seen);
                return Err(Error::Busy {
                    lock: name,
                    slot,
                    thread,
                });
            }
            pauses.rest();
        }
    }
}

/// The `AT`th of some words of the pool, which is a lock.
pub(crate) struct LockWord<'a, const N: usize, const AT: usize> {
    pub(crate) words: Words<'a, N>,
}

/// Words of a file's entry, and which of them is its lock.
const ENTRY: usize = FileEntry::SIZE / 8;
const ITS_LOCK: usize = at!(FileEntry.lock) as usize / 8;

/// The lock of a file, among the words of its entry.
pub(crate) type FileLock<'a> = LockWord<'a, ENTRY, ITS_LOCK>;

impl<'a> FileLock<'a> {
    /// Of the entry at an offset.
    #[inline]
    pub(crate) fn of_entry<M: Medium>(pool: &'a Pool<M>, offset: u64) -> Result<Self> {
        let words = pool.medium().words(offset)?;
        Ok(Self { words })
    }
}

impl<'a> LockWord<'a, 1, 0> {
    /// The lock at an offset.
    pub(crate) fn at<M: Medium>(pool: &'a Pool<M>, offset: u64) -> Result<Self> {
        let words = pool.medium().words(offset)?;
        Ok(Self { words })
    }
}

impl<const N: usize, const AT: usize> LockWord<'_, N, AT> {
    #[inline]
    fn swap(&self, seen: u64, new: u64) -> Result<Result<u64, u64>> {
        Ok(self.words.compare_exchange(AT, seen, new)?)
    }

    /// Changes the word, unless it is no longer this thread's. As long as it is, nobody else does, so this takes no locked
    /// instruction.
    #[inline]
    fn set(&self, owner: Owner, word: u64) {
        // An error means that the medium is lost, and the lock with it.
        let seen = self.words.load(AT);
        if seen.is_ok_and(|seen| seen & !LONG == owner.word()) {
            let _ = self.words.store(AT, word);
        }
    }

    #[inline]
    pub(crate) fn release(&self, owner: Owner) {
        self.set(owner, 0);
    }
}

/// A lock of an attachment, held until dropped.
pub(crate) struct Locked<'a, M: Medium, const N: usize = 1, const AT: usize = 0> {
    pub(crate) attachment: &'a Attachment<M>,
    pub(crate) word: LockWord<'a, N, AT>,
}

/// A file, locked.
pub(crate) type LockedFile<'a, M> = Locked<'a, M, ENTRY, ITS_LOCK>;

/// A word that nobody who lives has, of a slot that no pool has: the lock of a dead owner whose repair failed.
pub(crate) const NOBODY: u64 = 0xffff | 1 << 32;

impl<M: Medium, const N: usize, const AT: usize> Locked<'_, M, N, AT> {
    /// Not in a child that was forked while the lock was held: it has a copy of this guard, not of the lock.
    fn set(&self, word: u64) {
        let Attachment { epoch, owner, .. } = self.attachment;
        if epoch.is_current() {
            self.word.set(*owner, word);
        }
    }

    /// Whoever takes the lock next is told again that its owner died: what he left could not be repaired.
    pub(crate) fn leave_unrepaired(&self) {
        self.set(NOBODY);
    }

    /// Who wants the lock waits from here on for as long as this thread's process lives.
    pub(crate) fn takes_long(&self) {
        self.set(self.attachment.owner.word() | LONG);
    }

    /// What took long is over: who wants the lock from here on waits for as long as for any other.
    pub(crate) fn takes_no_longer(&self) {
        self.set(self.attachment.owner.word());
    }
}

impl<M: Medium, const N: usize, const AT: usize> Drop for Locked<'_, M, N, AT> {
    #[inline(always)]
    fn drop(&mut self) {
        // A child forked while the lock was held has a copy of this guard, not of the lock.
        let Attachment { epoch, owner, .. } = self.attachment;
        if epoch.is_current() {
            self.word.release(*owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::PoolFile;
    use crate::layout::{Geometry, SHARED};
    use crate::scratch;

    /// Each of those before has the lock for less than anybody is waited for, all of them together for longer.
    #[test]
    fn who_is_behind_many_waits_for_each() {
        const TURN: Duration = Duration::from_millis(50);
        let path = scratch::place().join(format!("adit-pool-turns-{}", std::process::id()));
        let pool = PoolFile::create(&path, 8 << 20, Geometry::default()).expect("create");
        let [one, other, last] = [(); 3].map(|()| pool.attach().expect("attach"));
        let lock = || {
            let offset = SHARED + at!(Shared.files_lock);
            LockWord::at(pool.pool(), offset).expect("lock")
        };
        let wait = || {
            let lock = lock();
            let acquired = pool
                .pool()
                .take_lock("files lock", &lock, last.owner, 20 * TURN);
            lock.release(last.owner);
            acquired
        };
        let hand_on = |from: u64, to: u64| {
            assert!(matches!(lock().swap(from, to), Ok(Ok(_))));
            adit_pmem::rest(TURN);
        };
        let [first, second] = [&one, &other].map(|attachment| attachment.owner.word());
        let acquired = std::thread::scope(|scope| {
            hand_on(0, first);
            let waiter = scope.spawn(wait);
            for _ in 0..25 {
                hand_on(first, second);
                hand_on(second, first);
            }
            hand_on(first, 0);
            waiter.join().expect("the waiter")
        });
        assert!(matches!(acquired, Ok(Acquired::Clean)), "{acquired:?}");
        // One who keeps it is not waited for any longer.
        hand_on(0, first);
        assert!(matches!(wait(), Err(Error::Busy { .. })));
        hand_on(first, 0);
        for attachment in [one, other, last] {
            attachment.detach().expect("detach");
        }
        pool.remove(true).expect("remove");
    }

    /// Who walks over the logs with the recovery lock may need longer for it than anybody waits otherwise.
    #[test]
    fn who_recovers_is_waited_for() {
        let path = scratch::place().join(format!("adit-pool-recovers-{}", std::process::id()));
        let pool = PoolFile::create(&path, 8 << 20, Geometry::default()).expect("create");
        let [one, other] = [(); 2].map(|()| pool.attach().expect("attach"));
        let lock = one.lock_recovery().expect("lock");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| other.release_orphans().map(drop));
            adit_pmem::rest(PATIENCE + Duration::from_millis(500));
            assert!(!waiter.is_finished());
            drop(lock);
            waiter.join().expect("the waiter").expect("the lock");
        });
        for attachment in [one, other] {
            attachment.detach().expect("detach");
        }
        pool.remove(true).expect("remove");
    }
}
