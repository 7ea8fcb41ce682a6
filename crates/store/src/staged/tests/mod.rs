//! The staged engine on simulated media: what each test proves stands at its head.
//!
//! `crashes.rs` crashes everything everywhere; `planted.rs` shows that it would notice; `model.rs`
//! compares with a plain vector, from several threads too; `buffers.rs` hands in bad buffers;
//! `pressure.rs` runs out of space; `ended.rs` fails when all is done; `reads.rs` lets the publisher move in the middle of a copy;
//! `recycled.rs` uses pages again that newer writes cover; `board.rs` has one thread log for another;
//! `interplay.rs` has pages used again, relinks, slow fences and other publishers in one story;
//! `together.rs` has one attachment write what another publishes and takes away; `group.rs` commits
//! several files at one instant; `shared.rs` has several attachments write one file; `appends.rs` stages appends alone;
//! `followed.rs` has others go on where somebody looks; `lives.rs` has life after life of one pool end with a crash. `lost.rs` has a medium that cannot read all
//! of it. `forward.rs` is what the media and base files made for one test
//! share.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

#[macro_use]
mod forward;

mod appends;
mod board;
mod buffers;
mod cached;
mod crashes;
mod ended;
mod followed;
mod group;
mod interplay;
mod lives;
mod lost;
mod model;
mod planted;
mod pressure;
mod reads;
mod recycled;
mod shared;
mod together;

use std::sync::Arc;

use adit_pmem::{BaseFile, Medium};
use adit_pool::layout::Geometry;
use adit_pool::{BootId, CreateOptions, FileName, LocalLocks, Pool, SlotLocks};
use adit_sim::{Config, SimFile, SimMedium, World};
use rustix::io::Errno;

use forward::AnyMedium;

use super::*;

/// 8 KB chunks, 4 slots, 4 files: small enough to be filled and enumerated.
const TINY: Geometry = Geometry {
    chunk_shift: 13,
    max_chunks: 64,
    slot_count: 4,
    file_count: 4,
};

fn tiny_size(chunks: u32) -> u64 {
    TINY.chunk(TINY.header_chunks() + chunks)
}

fn boot(n: u64) -> BootId {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    BootId(id)
}

fn create_pool(world: &World, boot: BootId) {
    let options = CreateOptions {
        geometry: TINY,
        uuid: *b"a pool for tests",
        boot,
    };
    Pool::create(&world.medium(), &options).expect("create");
}

fn open_pool(
    medium: impl Medium + 'static,
    boot: BootId,
) -> adit_pool::Result<Arc<Pool<AnyMedium>>> {
    open_locked(medium, LocalLocks::default(), boot)
}

/// [`open_pool`] with locks that something else looks at, too.
fn open_locked(
    medium: impl Medium + 'static,
    locks: impl SlotLocks + 'static,
    boot: BootId,
) -> adit_pool::Result<Arc<Pool<AnyMedium>>> {
    Pool::open(AnyMedium(Box::new(medium)), Box::new(locks), boot)
}

fn config(name: &str, chunks: u32, states: u64) -> Config {
    Config {
        exhaustive: 32,
        samples: 8,
        torn: 4,
        nested_points: 2,
        nested_images: 2,
        max_states: states,
        threads: 2,
        ..Config::new(name, tiny_size(chunks))
    }
}

/// The name by which a simulated file is found again: its handle.
fn name_of(file: &SimFile) -> FileName {
    FileName {
        handle_type: 1,
        handle: file.handle().to_le_bytes().to_vec(),
        path: b"dir/file".to_vec(),
        device: 42,
    }
}

/// A simulated base file, or the pool's own file beside it.
#[derive(Clone)]
enum SimBase {
    File(SimFile, Can),
    Pool(SimMedium),
}

/// What a base file system can do, and how badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Can {
    Exchange,
    Clone,
    /// Says it can exchange, and cannot.
    Promise,
    Copy,
    /// Exchanges twice, as somebody would who repeats what he does not know to be done.
    ExchangeTwice,
    /// Never syncs.
    ExchangeUnsynced,
    CloneUnsynced,
}

impl Can {
    fn exchanges(self) -> bool {
        matches!(
            self,
            Self::Exchange | Self::ExchangeTwice | Self::ExchangeUnsynced
        )
    }

    fn clones(self) -> bool {
        matches!(self, Self::Clone | Self::CloneUnsynced)
    }

    fn syncs(self) -> bool {
        !matches!(self, Self::ExchangeUnsynced | Self::CloneUnsynced)
    }
}

impl SimBase {
    fn file(&self) -> &SimFile {
        match self {
            Self::File(file, _) => file,
            Self::Pool(_) => panic!("the pool's own file is only a source of relinks"),
        }
    }

    fn can(&self) -> Can {
        match self {
            Self::File(_, can) => *can,
            Self::Pool(_) => Can::Copy,
        }
    }
}

/// Relinks runs of a page from a machine's medium.
fn relink_from(world: &World) -> Relink<SimBase> {
    let medium = world.medium();
    let open = move || Ok(SimBase::Pool(medium.clone()));
    Relink::new(Arc::default(), open).from_length(4096)
}

impl BaseFile for SimBase {
    fn size(&self) -> Result<u64, Errno> {
        self.file().size()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        self.file().read_at(offset, into)
    }
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.file().write_at(offset, from)
    }
    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.file().set_size(size)
    }
    fn reserve(&self, offset: u64, len: u64) -> Result<(), Errno> {
        match self {
            Self::File(file, _) => file.reserve(offset, len),
            Self::Pool(_) => Ok(()),
        }
    }
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        match self {
            Self::File(file, _) => file.punch(offset, len),
            Self::Pool(medium) => {
                let zeros = vec![0; len as usize];
                medium
                    .write_streaming(offset, &zeros)
                    .map_err(|_| Errno::INVAL)
            }
        }
    }
    fn clone_range(&self, at: u64, from: &Self, from_at: u64, len: u64) -> Result<(), Errno> {
        match from {
            Self::Pool(_) if self.can().clones() => self.file().clone_from_medium(at, from_at, len),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
    fn exchange_range(&self, at: u64, with: &Self, from: u64, len: u64) -> Result<(), Errno> {
        match with {
            Self::Pool(_) if self.can().exchanges() => {
                self.file().exchange_with_medium(at, from, len)?;
                if self.can() == Can::ExchangeTwice {
                    self.file().exchange_with_medium(at, from, len)?;
                }
                Ok(())
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
    fn may_exchange(&self, _: u64, _: &Self, _: u64, _: u64) -> Result<(), Errno> {
        if self.can().exchanges() || self.can() == Can::Promise {
            Ok(())
        } else {
            Err(Errno::OPNOTSUPP)
        }
    }
    fn sync(&self) -> Result<(), Errno> {
        if self.can().syncs() {
            self.file().sync()?;
        }
        Ok(())
    }
}

/// One step of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Append(usize),
    Write(usize, usize),
    Truncate(usize),
    /// Makes the file this long, unless it is longer.
    Extend(usize),
    Fsync,
    /// Publishes everything: a commit point as well.
    Publish,
    /// Publishes what is committed: changes nothing that a program can see.
    PublishCommitted,
    /// Writes what is committed to the base file, and no more.
    Show,
    /// Brings everything to where it is seen by who does not look at the pool: a commit point as well.
    ShowAll,
    /// Ends the staging; the next step begins it anew.
    TakeAway,
    /// Another attachment writes.
    WriteByOther(usize, usize),
    /// Another attachment publishes everything.
    PublishByOther,
    /// Another attachment ends the staging; the next step begins it anew.
    TakeAwayByOther,
    /// The same of what is published whole.
    GiveBackByOther,
}

/// What the base file holds before the story.
fn first_bytes() -> Vec<u8> {
    (0..300_u32).map(|at| at as u8 | 1).collect()
}

/// The bytes that step `nth` writes: different in every step and every place.
fn bytes_of(nth: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((nth * 41 + at * 3 + at / 64) as u8).max(1))
        .collect()
}

impl Step {
    fn change(self, nth: usize, model: &mut Vec<u8>) {
        match self {
            Self::Append(len) => model.extend(bytes_of(nth, len)),
            Self::Write(at, len) | Self::WriteByOther(at, len) => {
                if model.len() < at + len {
                    model.resize(at + len, 0);
                }
                model[at..at + len].copy_from_slice(&bytes_of(nth, len));
            }
            Self::Truncate(size) => model.resize(size, 0),
            Self::Extend(size) => model.resize(model.len().max(size), 0),
            _ => {}
        }
    }

    fn is_commit(self) -> bool {
        !matches!(
            self,
            Self::Append(_)
                | Self::Write(..)
                | Self::WriteByOther(..)
                | Self::Truncate(_)
                | Self::Extend(_)
                | Self::PublishCommitted
                | Self::Show
        )
    }

    fn takes_away(self) -> bool {
        matches!(
            self,
            Self::TakeAway | Self::TakeAwayByOther | Self::GiveBackByOther
        )
    }

    fn is_by_other(self) -> bool {
        matches!(
            self,
            Self::WriteByOther(..)
                | Self::PublishByOther
                | Self::TakeAwayByOther
                | Self::GiveBackByOther
        )
    }

    fn run<M: Medium, B: BaseFile>(self, nth: usize, file: &StagedFile<M, B>) -> Result<()> {
        match self {
            Self::Append(len) => file.append(&bytes_of(nth, len)).map(|_| ()),
            Self::Write(at, len) | Self::WriteByOther(at, len) => {
                file.write_at(at as u64, &bytes_of(nth, len))
            }
            Self::Truncate(size) => file.truncate(size as u64),
            Self::Extend(size) => file.extend(size as u64),
            Self::Fsync => file.fsync(),
            Self::Publish | Self::PublishByOther => file.publish(Scope::Everything).map(|_| ()),
            Self::TakeAway | Self::TakeAwayByOther => file.take_away(|| {}).map(|_| ()),
            Self::GiveBackByOther => file.take_away_published(|| {}),
            Self::PublishCommitted => file.publish(Scope::Committed).map(|_| ()),
            Self::Show => file.show_committed(),
            Self::ShowAll => file.show_outside(Scope::Everything),
        }
    }
}

/// The file after each step: `[0]` is before the first.
fn states(steps: &[Step]) -> Vec<Vec<u8>> {
    let mut model = first_bytes();
    let mut all = vec![model.clone()];
    for (nth, step) in steps.iter().enumerate() {
        step.change(nth + 1, &mut model);
        all.push(model.clone());
    }
    all
}

/// A crash damages nothing: what it left of a line, or of a line's bytes, was cut off. A torn line is told to be unreadable
/// where others behind it are whole: behind a page cache nothing orders them. One that lacks a bit alone counts.
fn nothing_is_damaged<M: Medium>(attachment: &adit_pool::Attachment<M>) -> Result<(), String> {
    use adit_pool::Rejection::{BitFlip, Torn, TornData, Unreadable};
    let is_cut_off = |line: &adit_pool::Rejected| {
        matches!(line.reason, Torn | TornData | Unreadable | BitFlip { .. })
    };
    let found = attachment.recovery();
    let rejected = found.map_or(&[][..], |found| &found.rejected);
    match rejected.iter().find(|line| !is_cut_off(line)) {
        Some(line) => Err(format!("called damaged: {line:?}")),
        None => Ok(()),
    }
}

fn contents(base: &impl BaseFile) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; base.size()? as usize];
    let read = base.read_at(0, &mut bytes)?;
    assert_eq!(read, bytes.len());
    Ok(bytes)
}

/// The whole staged file, as a program would read it.
fn read_all<M: Medium, B: BaseFile>(file: &StagedFile<M, B>) -> Vec<u8> {
    let mut bytes = vec![0xff; file.size().expect("size") as usize];
    let read = file.read_at(0, &mut bytes).expect("read");
    assert_eq!(read, bytes.len());
    bytes
}
