//! A page of the pool that the medium cannot read: what may be in it stays, as it is, and costs nobody else's bytes.

use adit_sim::{Crash, SimMedium};

use super::crashes::boot_of;
use super::*;

const FILES: usize = 3;
const PAGE: u64 = 4096;

/// Writes of each file, and how long they are: they take more than one page of the pool, and lie far from each other in the
/// file. Where no page cache is between no CRC is taken of them.
const WRITES: usize = 6;
const LEN: usize = 1800;
const APART: usize = 10_000;

fn path(nth: usize) -> String {
    format!("dir/{nth}")
}

fn parts(nth: usize) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let part = move |at: usize| {
        let bytes = bytes_of(nth * WRITES + at, LEN);
        (at * APART, bytes)
    };
    (0..WRITES).map(part)
}

fn whole(nth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, part) in parts(nth) {
        bytes.resize(at, 0);
        bytes.extend(part);
    }
    bytes
}

/// What a program that was killed, or a power cut, has left of some files.
fn left_by(crash: Crash, mode: Mode, is_cached: bool) -> World {
    left_after(crash, mode, is_cached, |files| {
        for staged in files.iter().filter(|_| crash == Crash::Power) {
            staged.fsync().expect("sync");
        }
    })
}

fn left_after(
    crash: Crash,
    mode: Mode,
    is_cached: bool,
    ends: impl FnOnce(&[StagedFile<AnyMedium, SimFile>]),
) -> World {
    let world = World::new(tiny_size(12));
    if is_cached {
        world.put_behind_page_cache(TINY.header_len());
    }
    create_pool(&world, boot(world.boot_id()));
    let pool = open_pool(world.medium(), boot(world.boot_id())).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let files = (0..FILES).map(|nth| {
        let file = world.create(&path(nth)).expect("create");
        let staged = StagedFile::open(&stage, &name_of(&file), file, mode);
        let staged = staged.expect("stage");
        for (at, part) in parts(nth) {
            staged.write_at(at as u64, &part).expect("write");
        }
        staged
    });
    ends(&files.collect::<Vec<_>>());
    // Everything.
    let left = world.after(crash, 1);
    drop(stage);
    left
}

fn find(world: &World, name: &FileName) -> super::Result<SimFile> {
    let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
    world.open_by_handle(handle).map_err(Error::from)
}

fn recovered(world: &World, medium: &SimMedium) -> super::Result<Recovered> {
    let pool = open_pool(medium.clone(), boot_of(world))?;
    let attachment = pool.attach()?;
    recover(&attachment, &|name| find(world, name))
}

fn contents_of(world: &World, nth: usize) -> Vec<u8> {
    let file = world.open(&path(nth)).expect("file");
    let mut bytes = vec![0; file.size().expect("size") as usize];
    file.read_at(0, &mut bytes).expect("read");
    bytes
}

/// How many files have all that was written to them, and how many nothing of it.
fn are(world: &World) -> [usize; 2] {
    let count = |is: &dyn Fn(usize) -> bool| (0..FILES).filter(|nth| is(*nth)).count();
    [
        count(&|nth| contents_of(world, nth) == whole(nth)),
        count(&|nth| contents_of(world, nth).is_empty()),
    ]
}

fn pages() -> impl Iterator<Item = core::ops::Range<u64>> {
    let pages = TINY.header_len() / PAGE..tiny_size(12) / PAGE;
    pages.map(|page| page * PAGE..(page + 1) * PAGE)
}

/// What happened, in which mode, and whether behind a page cache. What was killed in atomic has committed nothing.
const CASES: [(Crash, Mode, bool); 8] = [
    (Crash::Kill, Mode::Strict, false),
    (Crash::Kill, Mode::Strict, true),
    (Crash::Kill, Mode::Atomic, false),
    (Crash::Kill, Mode::Atomic, true),
    (Crash::Power, Mode::Strict, false),
    (Crash::Power, Mode::Strict, true),
    (Crash::Power, Mode::Atomic, false),
    (Crash::Power, Mode::Atomic, true),
];

/// One of staged bytes keeps the files that they belong to, one of names the file of that name, and no other; one of a log
/// everything, as nobody knows what it tells. When the medium can read it again all of it is there.
#[test]
fn a_page_that_cannot_be_read_keeps_what_may_be_in_it() {
    for (crash, mode, is_cached) in CASES {
        let what = format!("{crash:?}, {mode:?}, {is_cached}");
        let (mut logs, mut names, mut kept) = (0, 0, 0);
        for page in pages() {
            let world = left_by(crash, mode, is_cached);
            let medium = world.medium();
            medium.lose(std::slice::from_ref(&page));
            match recovered(&world, &medium) {
                Err(Error::Pool(adit_pool::Error::LostLog { offset })) => {
                    assert_eq!(offset, page.start);
                    assert_eq!(are(&world), [0, FILES], "{what}, {page:?}");
                    logs += 1;
                }
                report => {
                    let report = report.unwrap_or_else(|e| panic!("{what}, {page:?}: {e}"));
                    let count = report.kept.len();
                    assert_eq!(are(&world), [FILES - count, count], "{what}, {page:?}");
                    if report.kept.iter().any(|kept| kept.name.is_none()) {
                        names += count;
                    } else {
                        assert!(count <= 2, "{what}, {page:?}: {:?}", report.kept);
                        kept += count;
                    }
                }
            }
            let pool = open_pool(medium.clone(), boot_of(&world)).expect("open");
            let problems = pool.check().expect("check").problems;
            let [whole, _] = are(&world);
            assert_eq!(problems.is_empty(), whole == FILES, "{what}, {page:?}");
            medium.lose(&[]);
            let report = recovered(&world, &medium).expect("recover");
            assert!(
                report.kept.is_empty(),
                "{what}, {page:?}: {:?}",
                report.kept
            );
            assert_eq!(are(&world), [FILES, 0], "{what}, {page:?}");
        }
        // Of the second page of the log nobody knows that it is empty.
        assert_eq!((logs, names), (2, FILES), "{what}");
        assert!(kept >= FILES, "{what}: {kept}");
    }
}

/// Of files that were committed at one instant behind a page cache none is published as long as one cannot be: its bytes may
/// have been cut off.
#[test]
fn files_that_are_committed_together_wait_together() {
    let mut waited = 0;
    for page in pages() {
        let world = left_after(Crash::Power, Mode::Atomic, true, |files| {
            let all: Vec<_> = files.iter().collect();
            StagedFile::commit_group(&all).expect("commit");
        });
        let medium = world.medium();
        medium.lose(std::slice::from_ref(&page));
        let is_named = |kept: &Kept| kept.name.is_some();
        if recovered(&world, &medium).is_ok_and(|report| report.kept.iter().all(is_named)) {
            let [all, none] = are(&world);
            assert!([all, none].contains(&FILES), "{page:?}: {all} and {none}");
            waited += usize::from(none == FILES);
        }
        medium.lose(&[]);
        recovered(&world, &medium).expect("recover");
        assert_eq!(are(&world), [FILES, 0], "{page:?}");
    }
    assert!(waited >= FILES, "{waited}");
}

/// A file that is staged for some time, whatever comes of it.
fn stage_one(
    world: &World,
    medium: &SimMedium,
    attachment: adit_pool::Attachment<AnyMedium>,
) -> super::Result<()> {
    let stage = Stage::new(attachment);
    let file = world.create("dir/new").expect("create");
    let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Strict);
    // A size needs no place but that in the log.
    let written = staged.and_then(|staged| {
        for size in 0..200 {
            staged.truncate(size)?;
        }
        staged.close()
    });
    world.unlink("dir/new").expect("unlink");
    let attachment = stage.into_attachment().expect("alone");
    medium.lose(&[]);
    attachment.detach().expect("detach");
    written.map(drop)
}

/// A log begins in another chunk where one cannot be zeroed, and that one is free as before.
#[test]
fn a_chunk_that_cannot_be_written_is_passed_over() {
    let world = World::new(tiny_size(12));
    create_pool(&world, boot(1));
    let medium = world.medium();
    let pool = open_pool(medium.clone(), boot(1)).expect("open");
    // From then on there is a chunk for names.
    stage_one(&world, &medium, pool.attach().expect("attach")).expect("staged");
    let free = pool.free_chunks().expect("count");
    let mut failed = 0;
    for page in pages() {
        let attachment = pool.attach().expect("attach");
        medium.lose(std::slice::from_ref(&page));
        failed += usize::from(stage_one(&world, &medium, attachment).is_err());
        assert_eq!(pool.free_chunks().expect("count"), free, "{page:?}");
    }
    // The name has two pages.
    assert_eq!(failed, 2);
}
