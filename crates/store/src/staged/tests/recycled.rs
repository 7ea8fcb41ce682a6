//! Pages that newer writes cover are used again before they are published, and no sooner than it is
//! right.

use std::sync::atomic::AtomicU64;

use adit_pool::{Extent, Op, When};
use adit_sim::History;

use super::crashes::{MODES, boot_of, crash_everywhere, recovered};
use super::planted::{Meddled, found};
use super::*;

use Step::{Append, Fsync, Publish, PublishByOther, PublishCommitted, TakeAway, Truncate, Write};

const PAGE: usize = 4096;

/// Where the bytes of a file lie in the pool, page by page.
fn places<M: Medium, B: BaseFile>(staged: &StagedFile<M, B>) -> Vec<Source> {
    let view = staged.look();
    view.overlay.staged().map(|piece| piece.source).collect()
}

#[test]
fn a_covered_page_is_the_next_but_one() {
    for mode in MODES {
        let world = World::new(tiny_size(8));
        create_pool(&world, boot(1));
        let file = world.create("dir/file").expect("create");
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        let staged = StagedFile::open(&stage, &name_of(&file), file, mode).expect("stage");
        let commits = matches!(mode, Mode::Posix | Mode::Atomic);
        let mut seen = Vec::new();
        for round in 0..40_u8 {
            staged.write_at(0, &[round; PAGE]).expect("write");
            if commits {
                staged.fsync().expect("fsync");
            }
            let place = places(&staged);
            if !seen.contains(&place) {
                seen.push(place);
            }
            assert_eq!(read_all(&staged), [round; PAGE]);
        }
        // One that is shown, one that is being filled, and one that waits for its commit.
        assert!(seen.len() <= 3, "{mode:?}: {seen:?}");
        staged.close().expect("close");
        stage.reclaim().expect("reclaim");
        let attachment = stage.into_attachment().expect("the last");
        attachment.release_empty().expect("release");
        assert!(pool.check().expect("check").problems.is_empty());
        let free = pool.free_chunks().expect("chunks");
        assert!(free >= 6, "{mode:?}: {free} of 8 chunks are free");
    }
}

/// What waits for its commit covers nothing: a crash may take it back.
#[test]
fn nothing_uncommitted_covers_a_page() {
    let world = World::new(tiny_size(20));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Atomic).expect("stage");
    let mut seen = Vec::new();
    for round in 0..10_u8 {
        staged.write_at(0, &[round; PAGE]).expect("write");
        let place = places(&staged);
        assert!(!seen.contains(&place), "used again before the commit");
        seen.push(place);
    }
}

/// What is logged and shown was written, also where the pages that it gives back cannot be: who is told that it failed writes
/// it again, behind itself.
#[test]
fn an_append_is_there_once_though_no_page_can_be_given_back() {
    let world = World::new(tiny_size(20));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file, Mode::Atomic).expect("stage");
    for round in 1..3_u8 {
        staged.write_at(0, &[round; PAGE]).expect("write");
    }
    staged.fsync().expect("fsync");
    // A bit of the entry's device.
    let device = pool.geometry().file_entry(0) + 40;
    let seen = world.medium().load(device).expect("load");
    world.medium().store(device, seen ^ 1).expect("store");
    assert!(pool.may_be_relinked(staged.file()).is_err());
    let bytes = [9; 100];
    assert_eq!(staged.append(&bytes).expect("append"), PAGE as u64);
    assert_eq!(staged.size().expect("size"), (PAGE + bytes.len()) as u64);
}

/// What was covered when everything was published is anybody's: it does not come back to the file as a covered page.
#[test]
fn a_published_page_is_covered_no_more() {
    for by_other in [false, true] {
        let world = World::new(tiny_size(20));
        create_pool(&world, boot(1));
        let file = world.create("dir/file").expect("create");
        let other = world.create("dir/other").expect("create");
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let stages = [0; 2].map(|_| Stage::new(pool.attach().expect("attach")));
        let open = |stage: &Arc<Stage<AnyMedium>>, file: &SimFile| {
            StagedFile::open(stage, &name_of(file), file.clone(), Mode::Posix).expect("stage")
        };
        let staged = open(&stages[0], &file);
        let neighbour = open(&stages[0], &other);
        // The last of them is not committed, so that what it covers waits for that.
        for round in 0..3_u8 {
            staged.write_at(0, &[round; PAGE]).expect("write");
        }
        if by_other {
            let theirs = StagedFile::open_unread(&stages[1], staged.file(), file, Mode::Sync);
            let published = theirs.and_then(|theirs| theirs.publish(Scope::Everything));
            published.expect("publish");
        } else {
            staged.publish(Scope::Everything).expect("publish");
        }
        stages[0].reclaim().expect("reclaim");
        for _ in 0..6 {
            neighbour.append(&[7; PAGE]).expect("append");
        }
        for round in 10..20_u8 {
            staged.write_at(0, &[round; PAGE]).expect("write");
            staged.fsync().expect("fsync");
        }
        assert_eq!(read_all(&neighbour), [7; 6 * PAGE]);
    }
}

#[test]
fn crashes_around_pages_that_are_used_again() {
    let steps = [
        Write(0, PAGE),
        Write(0, PAGE),
        Fsync,
        Write(PAGE, PAGE),
        Write(0, PAGE),
        Fsync,
        Truncate(5000),
        Write(0, PAGE),
        Append(PAGE),
        PublishCommitted,
        Write(0, PAGE),
        Publish,
        Write(0, PAGE),
        Write(0, PAGE),
        PublishByOther,
        Write(0, PAGE),
    ];
    for mode in MODES {
        assert!(crash_everywhere("recycle", &steps, mode, 4_000) > 300);
    }
    let steps = [
        Write(0, PAGE),
        Write(0, PAGE),
        Write(0, PAGE),
        TakeAway,
        Write(0, PAGE),
        Write(0, PAGE),
        Write(PAGE, PAGE),
    ];
    for mode in [Mode::Atomic, Mode::Strict] {
        assert!(crash_everywhere("recycle-taken", &steps, mode, 2_000) > 100);
    }
}

/// One page written, committed and covered; the covered one is used again for the page behind it,
/// before or after the commit of what covers it.
fn use_again(world: &World, early: bool) {
    let (pool, file) = world.setup(|| {
        create_pool(world, boot_of(world));
        let file = world.create("dir/file").expect("create");
        let pool = open_pool(world.medium(), boot_of(world)).expect("open");
        (pool, file)
    });
    let attachment = pool.attach().expect("attach");
    let entry = attachment.enter_file(&name_of(&file)).expect("enter");
    let write = |at: usize, extent: Extent, byte: u8| {
        attachment.fill(extent, 0, &[byte; PAGE]).expect("fill");
        let op = Op::Write {
            file_offset: at as u64,
            extent,
            len: PAGE as u32,
            data_crc: None,
        };
        let mut guard = attachment.lock_file(entry).expect("lock");
        guard.append(&op, When::WithCommit).expect("append");
    };
    let commit = || {
        let mut guard = attachment.lock_file(entry).expect("lock");
        guard.commit().expect("commit");
    };
    let space = || attachment.alloc(PAGE as u32).expect("space");
    world.begin(1);
    let first = space();
    write(0, first, 1);
    commit();
    world.acknowledge(1);
    write(0, space(), 2);
    if !early {
        commit();
    }
    assert!(attachment.take_over(first));
    write(PAGE, first, 3);
    commit();
}

fn use_again_judge(world: &World, history: &History) -> std::result::Result<(), String> {
    let found = recovered(world, boot_of(world))?;
    let acknowledged = history.completed().len();
    let pages: Vec<u8> = found.chunks(PAGE).map(|page| page[0]).collect();
    let is_whole = found
        .chunks(PAGE)
        .all(|page| page.iter().all(|byte| *byte == page[0]));
    match pages[..] {
        [] if acknowledged == 0 => Ok(()),
        [1] | [2] | [2, 3] if is_whole => Ok(()),
        _ => Err(format!("pages {pages:?}, whole: {is_whole}")),
    }
}

#[test]
fn a_page_used_again_after_the_commit_of_what_covers_it() {
    let config = config("staged-use-again", 12, 4_000);
    let report = adit_sim::enumerate(
        &config,
        |world: &World| use_again(world, false),
        use_again_judge,
    );
    println!("{}", report.unwrap_or_else(|failure| panic!("{failure}")));
}

#[test]
fn a_page_used_again_too_early() {
    let workload = |world: &World| use_again(world, true);
    found("use-again", workload, use_again_judge);
}

/// A publisher's plan may name a page that is covered while he works.
#[test]
fn nothing_is_taken_back_while_somebody_publishes() {
    let world = World::new(tiny_size(30));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged: Arc<std::sync::OnceLock<StagedFile<_, _>>> = Arc::default();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let meddle = {
        let (staged, seen) = (Arc::downgrade(&staged), Arc::clone(&seen));
        move || {
            let staged = staged.upgrade().expect("staged");
            let staged: &StagedFile<_, Meddled<Box<dyn Fn() + Send + Sync>>> =
                staged.get().expect("staged");
            for round in 10..20_u8 {
                staged.write_at(0, &[round; PAGE]).expect("write");
                seen.lock().expect("seen").extend(places(staged));
            }
        }
    };
    let base: Meddled<Box<dyn Fn() + Send + Sync>> = Meddled {
        file: file.clone(),
        writes: AtomicU64::new(0),
        meddle: Box::new(meddle),
    };
    let opened = StagedFile::open(&stage, &name_of(&file), base, Mode::Strict).expect("stage");
    let staged_now = {
        assert!(staged.set(opened).is_ok());
        staged.get().expect("staged")
    };
    staged_now.write_at(0, &[1; PAGE]).expect("write");
    seen.lock().expect("seen").extend(places(staged_now));
    staged_now.publish(Scope::Everything).expect("publish");
    let mut seen = std::mem::take(&mut *seen.lock().expect("seen"));
    assert_eq!(seen.len(), 11);
    seen.sort_by_key(|source| format!("{source:?}"));
    seen.dedup();
    assert_eq!(seen.len(), 11, "a page was used again: {seen:?}");
    assert_eq!(read_all(staged_now), [19; PAGE]);
}
