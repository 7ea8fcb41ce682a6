//! What the next monitor has to know, in memory that outlives this one: which descriptor is what.
//!
//! The descriptors themselves outlive a monitor in the table that its standby shares
//! ([`super::standby`]). Each record is one write that a kill cannot divide, made before anybody relies
//! on what it says, and taken back before the descriptor it names is closed. So what a dead monitor leaves
//! here is true.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fd::AsFd as _;
use rustix::fs::MemfdFlags;
use rustix::io::{Errno, FdFlags};

use super::standby::patiently;
use crate::registry::sys::{self, Fd, insist};
use crate::registry::wire::LONGEST;

/// First word of the memory. A successor of another build starts with nothing.
const MAGIC: u64 = u64::from_le_bytes(*b"ADITMON\x06");

/// Bytes of a record, and of the head.
const RECORD: usize = 64;

/// Pools that can be named, and where their names begin; behind them come the records.
const MOST_POOLS: usize = 64;
const NAMES: usize = 4096;
const RECORDS: usize = NAMES + MOST_POOLS * LONGEST;

/// More records than a monitor ever has.
const MOST: u32 = 1 << 17;

/// Kinds of records.
const NOTHING: u32 = 0;
const LIFE: u32 = 1;
const LEASE: u32 = 2;
const BARRED: u32 = 3;

/// Where the head says that there may be barred files of which there is no record.
const UNSURE: u64 = 16;

/// Where it says that there may be leases and seats of which there is none.
const UNKNOWN: u64 = 20;

/// A leased file, as its program described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseRecord {
    /// The duplicate of the program's description.
    pub(super) fd: i32,
    /// The program's pidfd, which other records may name as well.
    pub(super) life: i32,
    /// Its number, or zero.
    pub(super) pid: i32,
    /// What the program calls the lease.
    pub(super) number: u64,
    pub(super) file: u64,
    pub(super) slot: u32,
    pub(super) incarnation: u64,
    pub(super) mode: u32,
    pub(super) restore_append: bool,
    pub(super) declared: bool,
    pub(super) closed: bool,
    pub(super) pool: PathBuf,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The pidfd of a process to stay for.
    Life(i32),
    Lease(LeaseRecord),
    /// Device and inode number of a declared file that the kernel may be writing to.
    Barred(u64, u64),
}

/// The descriptors that every monitor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) lock: i32,
    pub(super) listener: i32,
}

/// The memory.
#[derive(Debug)]
pub(super) struct Records {
    fd: Fd,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<u32>,
    used: u32,
    pools: Vec<Named>,
}

/// A pool whose name is written down.
#[derive(Debug, Default)]
struct Named {
    path: PathBuf,
    /// Records that name it. Where there are none, another one may get its place.
    records: u32,
}

/// What a dead monitor has written down.
pub(super) struct Heritage {
    pub(super) records: Rc<Records>,
    pub(super) base: Base,
    pub(super) found: Vec<(Listed, Record)>,
    /// There may be barred files of which there is no record.
    pub(super) unsure: bool,
    /// There may be leases and seats of which there is no record.
    pub(super) unknown: bool,
}

/// A record that is taken back when this is dropped.
#[derive(Debug)]
pub(super) struct Listed {
    records: Rc<Records>,
    /// `None` when there was no room: then a successor knows nothing of it.
    place: Option<u32>,
    /// The number of the pool that it names.
    pool: Option<u32>,
}

impl Listed {
    /// Whether a successor will know of it.
    pub(super) fn is_known(&self) -> bool {
        self.place.is_some()
    }

    /// Says something else in its place. What cannot be written stays as it was.
    pub(super) fn becomes(&self, record: &Record) {
        if let Some(place) = self.place
            && let Some(bytes) = self.records.encode(record)
        {
            let _ = write(&self.records.fd, offset_of(place), &bytes);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let nothing = NOTHING.to_ne_bytes();
            let _ = write(&self.records.fd, offset_of(place), &nothing);
            let mut state = self.records.state.borrow_mut();
            state.free.push(place);
            if let Some(named) = state.named(self.pool) {
                named.records -= 1;
            }
        }
    }
}

fn offset_of(place: u32) -> u64 {
    RECORDS as u64 + u64::from(place) * RECORD as u64
}

fn write(fd: &Fd, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    match rustix::io::pwrite(fd.as_fd(), bytes, offset)? {
        len if len == bytes.len() => Ok(()),
        _ => Err(Errno::NOSPC),
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Records {
    /// Empty ones.
    pub(super) fn new() -> Result<Rc<Self>, Errno> {
        let fd = Fd::new(rustix::fs::memfd_create(
            c"adit-monitor",
            MemfdFlags::CLOEXEC,
        )?);
        write(&fd, 0, &[0; RECORD])?;
        Ok(Rc::new(Self {
            fd,
            state: RefCell::default(),
        }))
    }

    /// Says which descriptors are the monitor's own. From now on there is something to inherit.
    pub(super) fn begin(&self, base: Base) -> Result<(), Errno> {
        let mut head = [0; 16];
        head[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        head[8..12].copy_from_slice(&base.lock.to_ne_bytes());
        head[12..].copy_from_slice(&base.listener.to_ne_bytes());
        write(&self.fd, 0, &head)
    }

    /// Not all barred files are written down. The page of the head is there, so this needs no memory.
    pub(super) fn be_unsure(&self) {
        let _ = write(&self.fd, UNSURE, &1u32.to_ne_bytes());
    }

    /// Nor are all leases and seats.
    pub(super) fn be_unknown(&self) {
        let _ = write(&self.fd, UNKNOWN, &1u32.to_ne_bytes());
    }

    /// What cannot be read may say anything.
    fn says(&self, word: u64) -> bool {
        let mut bytes = [0; 4];
        let read = sys::read_full(&self.fd, &mut bytes, word);
        read != Ok(bytes.len()) || bytes != [0; 4]
    }

    /// The memory's descriptor.
    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Those of a dead monitor. `None` when they are not such. What cannot be read is not taken for nothing: a lease
    /// that is forgotten keeps whoever opens its file waiting for as long as the kernel has patience.
    pub(super) fn inherit(fd: Fd) -> Result<Option<Heritage>, Errno> {
        let Some(recalled) = patiently(|| recall(&fd))? else {
            return Ok(None);
        };
        let Recalled { base, found, state } = recalled;
        let records = Rc::new(Self {
            fd,
            state: RefCell::new(state),
        });
        let listed = |(place, record): (u32, Record)| {
            let listed = Listed {
                records: Rc::clone(&records),
                place: Some(place),
                pool: records.counted(&record),
            };
            (listed, record)
        };
        let found = found.into_iter().map(listed).collect();
        let (unsure, unknown) = (records.says(UNSURE), records.says(UNKNOWN));
        Ok(Some(Heritage {
            records,
            base,
            found,
            unsure,
            unknown,
        }))
    }

    /// Writes a record down.
    pub(super) fn list(self: &Rc<Self>, record: &Record) -> Listed {
        let place = self.put(record);
        Listed {
            records: Rc::clone(self),
            place,
            pool: place.and_then(|_| self.counted(record)),
        }
    }

    fn put(&self, record: &Record) -> Option<u32> {
        #[cfg(test)]
        if planted::is_without_room() {
            return None;
        }
        let bytes = self.encode(record)?;
        let mut state = self.state.borrow_mut();
        let place = match state.free.pop() {
            Some(place) => place,
            None if state.used < MOST => {
                state.used += 1;
                state.used - 1
            }
            None => return None,
        };
        if write(&self.fd, offset_of(place), &bytes).is_err() {
            state.free.push(place);
            return None;
        }
        Some(place)
    }

    fn encode(&self, record: &Record) -> Option<[u8; RECORD]> {
        let mut bytes = [0; RECORD];
        let mut at = 0;
        let mut put = |value: &[u8]| {
            bytes[at..at + value.len()].copy_from_slice(value);
            at += value.len();
        };
        match record {
            Record::Life(fd) => {
                put(&LIFE.to_ne_bytes());
                put(&fd.to_ne_bytes());
            }
            Record::Lease(lease) => {
                let pool = self.pool_number(&lease.pool)?;
                put(&LEASE.to_ne_bytes());
                for number in [lease.fd, lease.life, lease.pid] {
                    put(&number.to_ne_bytes());
                }
                for number in [
                    lease.slot,
                    lease.mode,
                    u32::from(lease.restore_append)
                        | u32::from(lease.declared) << 1
                        | u32::from(lease.closed) << 2,
                    pool,
                ] {
                    put(&number.to_ne_bytes());
                }
                put(&lease.number.to_ne_bytes());
                put(&lease.file.to_ne_bytes());
                put(&lease.incarnation.to_ne_bytes());
            }
            Record::Barred(device, inode) => {
                put(&BARRED.to_ne_bytes());
                put(&[0; 4]);
                put(&device.to_ne_bytes());
                put(&inode.to_ne_bytes());
            }
        }
        Some(bytes)
    }

    /// The number of the pool that a record names, as one more of those that do.
    fn counted(&self, record: &Record) -> Option<u32> {
        let Record::Lease(lease) = record else {
            return None;
        };
        let mut state = self.state.borrow_mut();
        let number = state.number_of(&lease.pool);
        state.named(number)?.records += 1;
        number
    }

    fn pool_number(&self, pool: &Path) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        if let Some(known) = state.number_of(pool) {
            return Some(known);
        }
        let unused = state.pools.iter().position(|named| named.records == 0);
        let number = unused.unwrap_or(state.pools.len());
        let mut name = pool.as_os_str().as_bytes().to_vec();
        name.push(0);
        if number >= MOST_POOLS || name.len() > LONGEST {
            return None;
        }
        if number == state.pools.len() {
            state.pools.push(Named::default());
        }
        let named = state.pools.get_mut(number)?;
        // Nobody's until all of it is written.
        named.path.clear();
        write(&self.fd, (NAMES + number * LONGEST) as u64, &name).ok()?;
        pool.clone_into(&mut named.path);
        u32::try_from(number).ok()
    }
}

impl State {
    fn number_of(&self, pool: &Path) -> Option<u32> {
        let number = self.pools.iter().position(|named| named.path == pool)?;
        u32::try_from(number).ok()
    }

    fn named(&mut self, number: Option<u32>) -> Option<&mut Named> {
        self.pools.get_mut(number? as usize)
    }
}

/// What the memory says.
struct Recalled {
    base: Base,
    found: Vec<(u32, Record)>,
    state: State,
}

fn recall(fd: &Fd) -> Result<Option<Recalled>, Errno> {
    let Some(base) = base_of(fd)? else {
        return Ok(None);
    };
    let mut found = Vec::new();
    let mut state = State::default();
    each(fd, |place, bytes| {
        state.used = place + 1;
        match decode(fd, bytes)? {
            Some(record) => found.push((place, record)),
            None => state.free.push(place),
        }
        Ok(())
    })?;
    for at in 0..MOST_POOLS {
        match pool_name(fd, at)? {
            Some(path) => state.pools.push(Named { path, records: 0 }),
            None => break,
        }
    }
    Ok(Some(Recalled { base, found, state }))
}

/// Reads what is written down. What the kernel refuses once is asked for again at once.
fn read(fd: &Fd, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    insist(|| {
        #[cfg(test)]
        planted::may_be_read()?;
        sys::read_full(fd, into, offset)
    })
}

fn base_of(fd: &Fd) -> Result<Option<Base>, Errno> {
    let mut head = [0; 16];
    let len = read(fd, &mut head, 0)?;
    if len != head.len() || long(&head, 0) != Some(MAGIC) {
        return Ok(None);
    }
    let number = |at| word(&head, at).map(|number| number as i32);
    Ok(number(8)
        .zip(number(12))
        .map(|(lock, listener)| Base { lock, listener }))
}

/// Goes over all places that were ever used. Allocates nothing: the standby calls it after a fork.
fn each(fd: &Fd, mut visit: impl FnMut(u32, &[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut some = [0; RECORD * 64];
    let mut place = 0;
    while place < MOST {
        let len = read(fd, &mut some, offset_of(place))?;
        for record in some.get(..len).unwrap_or_default().chunks_exact(RECORD) {
            visit(place, record)?;
            place += 1;
        }
        if len < some.len() {
            break;
        }
    }
    Ok(())
}

fn decode(fd: &Fd, bytes: &[u8]) -> Result<Option<Record>, Errno> {
    let number = |at| word(bytes, at).unwrap_or(0);
    match number(0) {
        LIFE => Ok(Some(Record::Life(number(4) as i32))),
        LEASE => {
            let pool = pool_name(fd, number(28) as usize)?;
            let lease = pool.map(|pool| LeaseRecord {
                fd: number(4) as i32,
                life: number(8) as i32,
                pid: number(12) as i32,
                slot: number(16),
                mode: number(20),
                restore_append: number(24) & 1 != 0,
                declared: number(24) & 2 != 0,
                closed: number(24) & 4 != 0,
                pool,
                number: long(bytes, 32).unwrap_or(0),
                file: long(bytes, 40).unwrap_or(0),
                incarnation: long(bytes, 48).unwrap_or(0),
            });
            Ok(lease.map(Record::Lease))
        }
        BARRED => Ok(Some(Record::Barred(
            long(bytes, 8).unwrap_or(0),
            long(bytes, 16).unwrap_or(0),
        ))),
        _ => Ok(None),
    }
}

fn pool_name(fd: &Fd, number: usize) -> Result<Option<PathBuf>, Errno> {
    if number >= MOST_POOLS {
        return Ok(None);
    }
    let mut name = [0; LONGEST];
    let len = read(fd, &mut name, (NAMES + number * LONGEST) as u64)?;
    let name = name.get(..len).unwrap_or_default();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    let name = name.get(..end).filter(|name| !name.is_empty());
    Ok(name.map(|name| Path::new(OsStr::from_bytes(name)).to_owned()))
}

/// Lets all descriptors that are written down, and the memory's own, live through `exec`. For the
/// standby: it allocates nothing. Where one of them would not, all are the caller's to try again: with the last
/// descriptor that its monitor had, a lease is nobody's who would let an opener in.
pub(super) fn keep_through_exec(fd: &Fd) -> Result<(), Errno> {
    let keep = |raw: i32| {
        let Some(fd) = sys::borrow(raw) else {
            return Ok(());
        };
        match insist(|| rustix::io::fcntl_setfd(fd, FdFlags::empty())) {
            // It was closed, and its record was about to be taken back.
            Err(Errno::BADF) => Ok(()),
            kept => kept,
        }
    };
    let base = base_of(fd)?.ok_or(Errno::INVAL)?;
    for raw in [base.lock, base.listener, fd.raw()] {
        keep(raw)?;
    }
    each(fd, |_, bytes| {
        let number = |at| word(bytes, at).map_or(-1, |number| number as i32);
        match word(bytes, 0) {
            Some(LIFE) => keep(number(4)),
            Some(LEASE) => keep(number(4)).and_then(|()| keep(number(8))),
            _ => Ok(()),
        }
    })
}

/// Reads that the kernel refuses, and records that there is no room for.
#[cfg(test)]
pub(super) mod planted {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::cell::Cell;

    static WITHOUT_ROOM: AtomicU32 = AtomicU32::new(0);

    /// There is no room for so many.
    pub(in crate::monitor) fn without_room(records: u32) {
        WITHOUT_ROOM.store(records, Ordering::Relaxed);
    }

    pub(super) fn is_without_room() -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        WITHOUT_ROOM
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
    }

    /// Whether it refuses the read of a number, counted from one.
    pub(super) type Refuses = fn(u32) -> bool;

    std::thread_local! {
        static READS: Cell<(u32, Refuses)> = const { Cell::new((0, |_| false)) };
    }

    pub(super) fn refuse(refuses: Refuses) {
        READS.set((0, refuses));
    }

    pub(super) fn may_be_read() -> Result<(), Errno> {
        let (before, refuses) = READS.get();
        READS.set((before + 1, refuses));
        match refuses(before + 1) {
            true => Err(Errno::NOSPC),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(number: u64) -> Record {
        Record::Lease(LeaseRecord {
            fd: 7,
            life: 8,
            pid: -1,
            number,
            file: u64::MAX - 1,
            slot: 255,
            incarnation: u64::MAX - 2,
            mode: 2,
            restore_append: true,
            declared: true,
            closed: !number.is_multiple_of(2),
            pool: format!("/pool {}", number % 3).into(),
        })
    }

    fn again(records: &Records) -> (Base, Vec<Record>) {
        let fd = rustix::io::fcntl_dupfd_cloexec(records.fd.as_fd(), 0).expect("dup");
        let heritage = Records::inherit(Fd::new(fd)).expect("read");
        let heritage = heritage.expect("inherit");
        let found = heritage.found.into_iter();
        let all = found.map(|(listed, record)| {
            // It is the first's, who still uses it.
            std::mem::forget(listed);
            record
        });
        (heritage.base, all.collect())
    }

    #[test]
    fn what_is_listed_is_inherited_and_nothing_else() {
        let records = Records::new().expect("memory");
        let base = Base {
            lock: 3,
            listener: 4,
        };
        assert_eq!(base_of(&records.fd), Ok(None), "nothing has begun");
        records.begin(base).expect("begin");
        let mut listed: Vec<Listed> = (0..300).map(|n| records.list(&lease(n))).collect();
        let life = records.list(&Record::Life(9));
        let barred = records.list(&Record::Barred(5, u64::MAX));
        drop(listed.drain(100..200));
        let (there, found) = again(&records);
        assert_eq!(there, base);
        let mut expected: Vec<Record> = (0..100).chain(200..300).map(lease).collect();
        expected.push(Record::Life(9));
        expected.push(Record::Barred(5, u64::MAX));
        assert_eq!(found, expected);
        // Places are used again.
        listed.extend((0..100).map(|n| records.list(&lease(1000 + n))));
        assert_eq!(records.state.borrow().used, 302);
        assert_eq!(again(&records).1.len(), 302);
        drop((life, barred));
        drop(listed);
        assert_eq!(again(&records).1, []);
    }

    /// A successor is told what is not written down.
    #[test]
    fn what_is_not_listed_is_known_not_to_be() {
        let said = |say: fn(&Records)| {
            let records = Records::new().expect("memory");
            let base = Base {
                lock: 3,
                listener: 4,
            };
            records.begin(base).expect("begin");
            say(&records);
            (records.says(UNSURE), records.says(UNKNOWN))
        };
        assert_eq!(said(|_| ()), (false, false));
        assert_eq!(said(Records::be_unsure), (true, false));
        assert_eq!(said(Records::be_unknown), (false, true));
    }

    /// A monitor may see many of them come and go, on file systems that are mounted for a while say.
    #[test]
    fn pools_that_are_gone_leave_room_for_others() {
        let in_pool = |pool: usize| match lease(1) {
            Record::Lease(lease) => Record::Lease(LeaseRecord {
                pool: format!("/pool {pool}{}", "'".repeat(pool % 3)).into(),
                ..lease
            }),
            _ => unreachable!(),
        };
        let first = Records::new().expect("memory");
        first
            .begin(Base {
                lock: 3,
                listener: 4,
            })
            .expect("begin");
        let kept = first.list(&in_pool(0));
        let other = |records: &Rc<Records>, pool| {
            let other = records.list(&in_pool(pool));
            assert!(other.is_known(), "{pool}");
            assert_eq!(again(records).1, [in_pool(0), in_pool(pool)]);
        };
        (1..3 * MOST_POOLS).for_each(|pool| other(&first, pool));
        // So it is with a monitor that takes over.
        let fd = rustix::io::fcntl_dupfd_cloexec(first.fd.as_fd(), 0).expect("dup");
        let heritage = Records::inherit(Fd::new(fd)).expect("read");
        let heritage = heritage.expect("inherit");
        (1..3 * MOST_POOLS).for_each(|pool| other(&heritage.records, pool));
        drop(heritage.found);
        assert_eq!(again(&first).1, []);
        std::mem::forget(kept);
    }

    #[test]
    fn what_has_no_room_is_not_inherited() {
        let records = Records::new().expect("memory");
        let base = Base {
            lock: 0,
            listener: 0,
        };
        records.begin(base).expect("begin");
        let long = Record::Lease(LeaseRecord {
            pool: "x".repeat(LONGEST).into(),
            ..match lease(1) {
                Record::Lease(lease) => lease,
                _ => unreachable!(),
            }
        });
        let listed = records.list(&long);
        assert_eq!(again(&records).1, []);
        drop(listed);
    }

    fn closes_on_exec(fd: &Fd) -> bool {
        let flags = rustix::io::fcntl_getfd(fd.as_fd()).expect("it is open");
        flags.contains(FdFlags::CLOEXEC)
    }

    /// A read that fails is not an end: a standby that took it for one would go on without a lease of the monitor, and
    /// close the last descriptor by which an opener of its file could be let in.
    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        let memory = || Records::new().expect("memory");
        let (lock, listener, life, held) = (memory(), memory(), memory(), memory());
        let fds = || [&lock, &listener, &life, &held].map(|memory| &memory.fd);
        let records = memory();
        let base = Base {
            lock: lock.fd.raw(),
            listener: listener.fd.raw(),
        };
        records.begin(base).expect("begin");
        let Record::Lease(lease) = lease(1) else {
            unreachable!()
        };
        let lease = Record::Lease(LeaseRecord {
            fd: held.fd.raw(),
            life: life.fd.raw(),
            ..lease
        });
        let _listed = records.list(&lease);

        planted::refuse(|nth| nth > 1);
        assert_eq!(keep_through_exec(&records.fd), Err(Errno::NOSPC));
        assert!(closes_on_exec(&held.fd));
        planted::refuse(|nth| nth > 1);
        assert!(recall(&records.fd).is_err());

        // Every second one, as strace has them fail.
        planted::refuse(|nth| nth % 2 == 1);
        assert_eq!(keep_through_exec(&records.fd), Ok(()));
        assert!(fds().into_iter().all(|fd| !closes_on_exec(fd)));
        assert!(!closes_on_exec(&records.fd));
        let recalled = recall(&records.fd).expect("read").expect("it has begun");
        assert_eq!(recalled.found, [(0, lease)]);
        planted::refuse(|_| false);
    }
}
