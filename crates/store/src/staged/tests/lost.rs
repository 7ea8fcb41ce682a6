//! A page of the pool that the medium cannot read: it costs nobody else's bytes, and its own only if they are given up.

use adit_sim::{Crash, SimMedium};

use super::crashes::boot_of;
use super::*;

const FILES: usize = 3;
const PAGE: u64 = 4096;

/// Writes of each file, and how long they are: the files' bytes meet within a page.
const WRITES: usize = 6;
const LEN: usize = 1000;

fn path(nth: usize) -> String {
    format!("dir/{nth}")
}

fn whole(nth: usize) -> Vec<u8> {
    (0..WRITES)
        .flat_map(|at| bytes_of(nth * WRITES + at, LEN))
        .collect()
}

/// What a program that was killed, or a power cut, has left of some files.
fn left_by(crash: Crash, mode: Mode, is_cached: bool) -> World {
    let world = World::new(tiny_size(12));
    if is_cached {
        world.put_behind_page_cache(TINY.header_len());
    }
    create_pool(&world, boot(world.boot_id()));
    let pool = open_pool(world.medium(), boot(world.boot_id())).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    for nth in 0..FILES {
        let file = world.create(&path(nth)).expect("create");
        let staged = StagedFile::open(&stage, &name_of(&file), file, mode);
        let staged = staged.expect("stage");
        for part in whole(nth).chunks(LEN) {
            staged.append(part).expect("append");
        }
    }
    // Everything.
    let left = world.after(crash, 1);
    drop(stage);
    left
}

fn find(world: &World, name: &FileName) -> super::Result<SimFile> {
    let handle = u64::from_le_bytes(name.handle[..8].try_into().expect("handle"));
    world.open_by_handle(handle).map_err(Error::from)
}

fn recovered(world: &World, medium: &SimMedium, skips: bool) -> super::Result<Recovered> {
    let pool = open_pool(medium.clone(), boot_of(world))?;
    if skips {
        pool.skip_unreadable();
    }
    let attachment = pool.attach()?;
    let mut report = recover(&attachment, |name| find(world, name))?;
    if let Some(rebuilt) = attachment.recovery() {
        report.has_seen(&rebuilt.counts, &rebuilt.rejected);
    }
    Ok(report)
}

/// Whether something is kept because nobody knows which file it is of.
fn are_nameless(report: &Recovered) -> bool {
    report.kept.iter().any(|kept| kept.name.is_none())
}

fn contents_of(world: &World, nth: usize) -> Vec<u8> {
    let file = world.open(&path(nth)).expect("file");
    let mut bytes = vec![0; file.size().expect("size") as usize];
    file.read_at(0, &mut bytes).expect("read");
    bytes
}

fn are_whole(world: &World) -> usize {
    (0..FILES)
        .filter(|nth| contents_of(world, *nth) == whole(*nth))
        .count()
}

/// A new file, and more records than a log's first chunk has.
fn write_anew(world: &World, attachment: adit_pool::Attachment<SimMedium>) -> super::Result<()> {
    let stage = Stage::new(attachment);
    let file = world.create("dir/new").expect("create");
    let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Strict)?;
    for nth in 0..200 {
        staged.append(&[nth])?;
    }
    staged.close().map(drop)
}

fn pages() -> impl Iterator<Item = core::ops::Range<u64>> {
    let pages = TINY.header_len() / PAGE..tiny_size(12) / PAGE;
    pages.map(|page| page * PAGE..(page + 1) * PAGE)
}

/// What happened, in which mode, and whether behind a page cache. In atomic nothing is committed.
const CASES: [(Crash, Mode, bool); 6] = [
    (Crash::Kill, Mode::Strict, false),
    (Crash::Kill, Mode::Strict, true),
    (Crash::Kill, Mode::Atomic, false),
    (Crash::Kill, Mode::Atomic, true),
    (Crash::Power, Mode::Strict, false),
    (Crash::Power, Mode::Strict, true),
];

/// One of staged bytes keeps the files that they belong to in the pool, and no other; one of a log everything, as nobody
/// knows what it tells. When the medium can read it again all of it is there.
#[test]
fn a_page_that_cannot_be_read_keeps_what_may_be_in_it() {
    for (crash, mode, is_cached) in CASES {
        let (mut logs, mut names, mut kept) = (0, 0, 0);
        for page in pages() {
            let world = left_by(crash, mode, is_cached);
            let medium = world.medium();
            medium.lose(std::slice::from_ref(&page));
            match recovered(&world, &medium, false) {
                Err(Error::Pool(adit_pool::Error::LostLog { offset })) => {
                    assert_eq!(offset, page.start);
                    assert_eq!(are_whole(&world), 0, "{page:?}");
                    logs += 1;
                }
                report => {
                    let report = report.expect("recover");
                    let lost = |kept: &Kept| {
                        matches!(&kept.reason, Error::Pool(adit_pool::Error::OutOfRange(_)))
                    };
                    assert!(report.kept.iter().all(lost), "{:?}", report.kept);
                    assert_eq!(are_whole(&world), FILES - report.kept.len(), "{page:?}");
                    if are_nameless(&report) {
                        names += report.kept.len();
                    } else {
                        assert!(report.kept.len() <= 2, "{page:?}: {:?}", report.kept);
                        kept += report.kept.len();
                    }
                }
            }
            let pool = open_pool(medium.clone(), boot_of(&world)).expect("open");
            let problems = pool.check().expect("check").problems;
            assert_eq!(problems.is_empty(), are_whole(&world) == FILES, "{page:?}");
            medium.lose(&[]);
            let report = recovered(&world, &medium, false).expect("recover");
            assert!(report.kept.is_empty(), "{page:?}: {:?}", report.kept);
            assert_eq!(are_whole(&world), FILES, "{page:?}");
        }
        // Of the second page of the log nobody knows that it is empty.
        assert_eq!((logs, names), (2, FILES), "{crash:?}, {mode:?}");
        // Five pages, of which some are of two files.
        assert!((5..=8).contains(&kept), "{crash:?}, {mode:?}: {kept}");
    }
}

/// Whoever gives up what cannot be read has the rest, in the order in which it was written, and can use the pool again,
/// though the page is as bad as before.
#[test]
fn what_cannot_be_read_is_given_up_if_somebody_says_so() {
    for (crash, mode, is_cached) in CASES {
        let mut logs = 0;
        for page in pages() {
            let world = left_by(crash, mode, is_cached);
            let medium = world.medium();
            medium.lose(std::slice::from_ref(&page));
            let report = recovered(&world, &medium, true).expect("recover");
            // Where the bytes of a file without a name belong nobody can say.
            if are_nameless(&report) {
                continue;
            }
            assert!(report.kept.is_empty(), "{page:?}: {:?}", report.kept);
            let lost = FILES - are_whole(&world);
            assert!(report.rejected > 0 || lost == 0, "{page:?}");
            let pool = open_pool(medium.clone(), boot_of(&world)).expect("open");
            assert_eq!(pool.files().expect("files"), [], "{page:?}");
            let attachment = pool.attach().expect("attach");
            attachment.release_orphans().expect("release");
            // Whoever writes into that page is told; a log begins elsewhere.
            match write_anew(&world, attachment) {
                Ok(()) => logs += usize::from(lost == FILES),
                Err(Error::Pool(adit_pool::Error::OutOfRange(_))) => {}
                Err(other) => panic!("{page:?}: {other}"),
            }
        }
        assert_eq!(logs, 1, "{crash:?}, {mode:?}");
    }
}
