//! Full pools, full logs, full disks, files that are gone, and what is relinked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_pool::{Attachment, ReplayOp};

use super::fold::Fold;
use super::overlay::Overlay;
use super::*;

const PAGE: usize = 4096;

struct Setup {
    world: World,
    file: SimFile,
    pool: Arc<Pool<AnyMedium>>,
}

fn set_up(chunks: u32) -> Setup {
    let world = World::new(tiny_size(chunks));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &first_bytes()).expect("write");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    Setup { world, file, pool }
}

impl Setup {
    /// The file, staged by an attachment of its own.
    fn staged(&self, mode: Mode) -> StagedFile<AnyMedium, SimFile> {
        let stage = Stage::new(self.pool.attach().expect("attach"));
        StagedFile::open(&stage, &name_of(&self.file), self.file.clone(), mode).expect("stage")
    }
}

/// Appends so many bytes at a time, and all of them succeed.
fn append_all(
    staged: &StagedFile<AnyMedium, SimFile>,
    model: &mut Vec<u8>,
    lengths: impl IntoIterator<Item = usize>,
) {
    for (nth, len) in lengths.into_iter().enumerate() {
        let bytes = bytes_of(nth, len);
        let appended = staged.append(&bytes);
        appended.unwrap_or_else(|e| panic!("{:?} {nth}: {e}", staged.mode));
        model.extend(bytes);
    }
}

/// In `posix`, `sync` and `strict` mode a full pool is published, and the program never notices.
#[test]
fn a_full_pool_is_published() {
    for mode in [Mode::Posix, Mode::Sync, Mode::Strict] {
        let setup = set_up(6);
        let staged = setup.staged(mode);
        let mut model = first_bytes();
        append_all(&staged, &mut model, [3000; 60]);
        assert_eq!(read_all(&staged), model);
        staged.close().expect("close");
        assert_eq!(contents(&setup.file).expect("read"), model);
    }
}

/// What would make a file longer than any file system may have it is the kernel's to refuse, before anybody is told of it.
#[test]
fn nothing_is_appended_beyond_the_farthest_end() {
    let staged = set_up(6).staged(Mode::Strict);
    staged.extend(FARTHEST - 10).expect("extend");
    let refused = |len| matches!(staged.append(&vec![1; len]), Err(Error::TooLarge));
    assert!(refused(11));
    assert_eq!(staged.append(&[1; 10]).expect("append"), FARTHEST - 10);
    assert!(refused(1));
    assert_eq!(staged.size().expect("size"), FARTHEST);
    // What is refused takes no room.
    assert!((0..100).all(|_| refused(3000)));
}

#[test]
fn a_full_log_is_published() {
    let staged = set_up(12).staged(Mode::Posix);
    staged.stage.attachment().limit_log(2);
    let mut model = first_bytes();
    append_all(&staged, &mut model, [20; 2000]);
    assert_eq!(read_all(&staged), model);
}

/// Data may take the last chunk just when the log has come to the end of its own. What waits can be
/// committed nevertheless, and so published, and the data's chunks go to where they are needed.
#[test]
fn a_pool_full_of_data_can_always_be_committed() {
    for small in 0..140 {
        println!("{small} small ones");
        let staged = set_up(6).staged(Mode::Posix);
        let mut model = first_bytes();
        let lengths = (0..small).map(|_| 20).chain([3000; 20]);
        append_all(&staged, &mut model, lengths);
        assert_eq!(read_all(&staged), model);
    }
}

/// What bounds the time of a recovery: however much is written, the logs of a pool stay below their
/// limit together, because publishing frees them.
#[test]
fn the_logs_together_never_outgrow_their_limit() {
    let Setup { world, pool, .. } = set_up(40);
    let limit = 7;
    let stages: Vec<_> = (0..3)
        .map(|_| Stage::new(pool.attach().expect("attach")))
        .collect();
    let staged: Vec<_> = stages
        .iter()
        .enumerate()
        .map(|(nth, stage)| {
            stage.attachment().limit_logs_together(limit);
            let file = world.create(&format!("dir/{nth}")).expect("create");
            StagedFile::open(stage, &name_of(&file), file, Mode::Posix).expect("stage")
        })
        .collect();
    let mut most = 0;
    for nth in 0..4000 {
        for staged in &staged {
            staged.append(&bytes_of(nth, 20)).expect("append");
        }
        most = most.max(pool.log_chunks().expect("chunks"));
    }
    // 12,000 records, of which 128 fill a chunk. The limit was reached, and kept, but for the chunk that
    // each may take to have its share, or to commit.
    assert!((limit..=limit + 3).contains(&most), "{most}");
}

/// In `atomic` mode uncommitted bytes never reach the base file: the answer is `ENOSPC`, nothing of the
/// refused call is there, and after an `fsync` there is room again.
#[test]
fn an_atomic_group_that_is_too_large_is_refused() {
    let setup = set_up(6);
    let (staged, file) = (setup.staged(Mode::Atomic), &setup.file);
    let mut model = first_bytes();
    let refused = (0..60).find_map(|nth| {
        let bytes = bytes_of(nth, 10_000);
        match staged.append(&bytes) {
            Ok(_) => {
                model.extend(bytes);
                None
            }
            Err(error) => Some(error),
        }
    });
    assert_eq!(refused.expect("refused").errno(), Errno::NOSPC);
    assert_eq!(read_all(&staged), model);
    assert_eq!(contents(file).expect("read"), first_bytes());
    staged.fsync().expect("fsync");
    staged.append(&[5; 10_000]).expect("there is room again");
    model.extend([5; 10_000]);
    assert_eq!(read_all(&staged), model);
    assert!(contents(file).expect("read").len() < model.len());
}

/// A transaction fills the pool, its program is killed, and the pool cannot grow: whoever comes then has a place for
/// the commit, and so publishes what was acknowledged, and has room again.
#[test]
fn a_full_pool_of_a_dead_program_can_be_committed() {
    for chunks in [6, 9, 15, 24] {
        for len in [50, 2000, 10_000] {
            let Setup { world, file, pool } = set_up(chunks);
            let other = world.create("dir/other").expect("create");
            let stage = Stage::new(pool.attach().expect("attach"));
            // Its logs take what they can get, too.
            stage.attachment().limit_log(chunks);
            stage.attachment().limit_logs_together(chunks);
            let open = |file: &SimFile| {
                StagedFile::open(&stage, &name_of(file), file.clone(), Mode::Atomic).expect("stage")
            };
            let files = [(open(&file), &file), (open(&other), &other)];
            let mut models = [first_bytes(), Vec::new()];
            let refused = (0..20_000).find_map(|nth| {
                let bytes = bytes_of(nth, len);
                match files[nth % 2].0.append(&bytes) {
                    Ok(_) => {
                        models[nth % 2].extend(bytes);
                        None
                    }
                    Err(error) => Some(error.errno()),
                }
            });
            assert_eq!(refused, Some(Errno::NOSPC));
            assert!(models[0].len() > first_bytes().len(), "{chunks} {len}");
            drop((files, stage));
            let attachment = pool.attach().expect("attach");
            let find = |name: &FileName| {
                let found = [&file, &other]
                    .into_iter()
                    .find(|file| name_of(file).handle == name.handle);
                Ok(found.expect("one of the two").clone())
            };
            let report = recover(&attachment, &find).expect("recover");
            assert!(report.kept.is_empty(), "{chunks} {len}: {:?}", report.kept);
            assert_eq!(contents(&file).expect("read"), models[0]);
            assert_eq!(contents(&other).expect("read"), models[1]);
            attachment.detach().expect("detach");
            assert_eq!(pool.log_chunks().expect("chunks"), 0);
        }
    }
}

/// A stage whose pool becomes larger once, for this reason: `hog` has most of it, and leaves.
fn growing(pool: &Arc<Pool<AnyMedium>>, hog: SimFile, reason: Growth) -> Arc<Stage<AnyMedium>> {
    let other = Stage::new(pool.attach().expect("attach"));
    let hogging = StagedFile::open(&other, &name_of(&hog), hog, Mode::Atomic).expect("stage");
    while pool.free_chunks().expect("chunks") > 6 {
        hogging.append(&[1; 8192]).expect("append");
    }
    let hogging = std::sync::Mutex::new(Some((hogging, other)));
    let grow = move |_: &_, growth| {
        let leaves = growth == reason;
        let left = leaves.then(|| hogging.lock().expect("lock").take());
        let Some((staged, stage)) = left.flatten() else {
            return false;
        };
        staged.close().expect("close");
        let left = stage.into_attachment().expect("all closed");
        left.detach().expect("detach");
        true
    };
    Stage::growing(pool.attach().expect("attach"), Box::new(grow))
}

/// Whoever publishes the file, and is in no hurry, is no reason to refuse what the pool can be made
/// large enough for.
#[test]
fn a_pool_grows_while_somebody_publishes() {
    let Setup { world, file, pool } = set_up(40);
    let hog = world.create("dir/hog").expect("create");
    let stage = growing(&pool, hog, Growth::Needed);
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Atomic);
    let staged = staged.expect("stage");
    let other = pool.attach().expect("attach");
    let entry = pool
        .find_file(&name_of(&file))
        .expect("find")
        .expect("entered");
    let guard = other.lock_file(entry).expect("lock");
    let claim = claim::Claim::take(&other, &guard).expect("claim");
    drop(guard);
    let mut model = first_bytes();
    append_all(&staged, &mut model, [10_000; 20]);
    assert_eq!(read_all(&staged), model);
    drop(claim);
    staged.close().expect("close");
    assert_eq!(contents(&file).expect("read"), model);
}

/// What fills a pool that can be made larger is not published for that.
#[test]
fn a_pool_grows_before_it_is_published() {
    let Setup { world, file, pool } = set_up(40);
    let hog = world.create("dir/hog").expect("create");
    let stage = growing(&pool, hog, Growth::Ahead);
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Strict);
    let staged = staged.expect("stage");
    let mut model = first_bytes();
    append_all(&staged, &mut model, [10_000; 20]);
    let published = || contents(&file).expect("read") != first_bytes();
    assert!(!published());
    assert!(read_all(&staged) == model);
    // What is too much for it then is.
    append_all(&staged, &mut model, [10_000; 60]);
    assert!(published());
    staged.close().expect("close");
    assert!(contents(&file).expect("read") == model);
}

/// Who takes a file away may have to commit what its program has not, and a log for that needs a place, too.
#[test]
fn a_pool_grows_for_who_takes_an_uncommitted_file_away() {
    let Setup { world, file, pool } = set_up(3);
    let staged = StagedFile::open(
        &Stage::new(pool.attach().expect("attach")),
        &name_of(&file),
        file.clone(),
        Mode::Atomic,
    );
    let staged = staged.expect("stage");
    let mut model = first_bytes();
    append_all(&staged, &mut model, [100]);
    assert_eq!(pool.free_chunks().expect("chunks"), 0);
    let medium = world.medium();
    let grow = move |attachment: &Attachment<AnyMedium>, growth| {
        growth == Growth::ToPublish && {
            let pool = attachment.pool();
            let chunks = pool.chunk_count().expect("chunks") + 1;
            medium.grow(pool.geometry().chunk(chunks));
            matches!(attachment.grow_to(chunks), Ok(now) if now == chunks)
        }
    };
    let other = Stage::growing(pool.attach().expect("attach"), Box::new(grow));
    let taken = StagedFile::open(&other, &name_of(&file), file.clone(), Mode::Atomic);
    taken.expect("stage").take_away(|| ()).expect("take away");
    assert_eq!(contents(&file).expect("read"), model);
}

/// Where a pool cannot grow, somebody else's publication is waited for: it is all the room there will be.
#[test]
fn another_publisher_is_waited_for() {
    let setup = set_up(6);
    let staged = setup.staged(Mode::Sync);
    let Setup { file, pool, .. } = setup;
    let other = pool.attach().expect("attach");
    let entry = pool
        .find_file(&name_of(&file))
        .expect("find")
        .expect("entered");
    let mut model = first_bytes();
    std::thread::scope(|scope| {
        let guard = other.lock_file(entry).expect("lock");
        let claim = claim::Claim::take(&other, &guard).expect("claim");
        drop(guard);
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(claim);
        });
        append_all(&staged, &mut model, [3000; 30]);
    });
    assert_eq!(read_all(&staged), model);
}

/// A base file of which it matters only how much is written to it.
struct Counted {
    size: AtomicU64,
    written: AtomicU64,
}

impl BaseFile for Counted {
    fn size(&self) -> Result<u64, Errno> {
        Ok(self.size.load(Ordering::Relaxed))
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let len = from.len() as u64;
        self.written.fetch_add(len, Ordering::Relaxed);
        self.size.fetch_max(offset + len, Ordering::Relaxed);
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    fn reserve(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn clone_range(&self, _: u64, _: &Self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn exchange_range(&self, _: u64, _: &Self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
}

/// Zeros that somebody has forged fill no disk: behind a file's end there are some already.
#[test]
fn zeros_behind_the_end_are_not_written() {
    let setup = set_up(6);
    let base = Counted {
        size: AtomicU64::new(1000),
        written: AtomicU64::new(0),
    };
    let zeros = (0..1000u64).map(|nth| ReplayOp::Zero {
        file_offset: 500 + (nth << 32),
        len: u32::MAX,
    });
    let long = ReplayOp::Truncate { size: 1 << 43 };
    let plan = Overlay::of(1000, [long].into_iter().chain(zeros));
    let mut fold = Fold::new(&setup.pool, &base, Published::default());
    fold.run(&plan, 0, None).expect("fold");
    assert_eq!(base.written.into_inner(), 500);
    assert_eq!(base.size.into_inner(), 1 << 43);
}

/// A commit that another thread is just making durable makes room.
#[test]
fn a_commit_on_its_way_is_waited_for() {
    let setup = set_up(6);
    let staged = setup.staged(Mode::Atomic);
    let mut model = first_bytes();
    let full = (0..).find_map(|nth| {
        let bytes = bytes_of(nth, 3000);
        let appended = staged.append(&bytes);
        model.extend(appended.is_ok().then_some(bytes).into_iter().flatten());
        appended.err()
    });
    assert!(matches!(full, Some(Error::NoSpace)), "{full:?}");
    let logged = {
        let mut view = staged.change();
        view.commit = view.last();
        view.commit
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            staged.change().commit_is_durable(logged);
        });
        append_all(&staged, &mut model, [3000]);
    });
    assert_eq!(read_all(&staged), model);
}

/// A base file whose file system is so full that each write asks for its blocks.
struct Tight(SimFile);

impl BaseFile for Tight {
    base_of!(0: size read_at write_at sync);

    fn available(&self) -> Result<u64, Errno> {
        Ok(0)
    }
}

/// What a full disk has no room for is refused at the write; what was accepted can be published.
#[test]
fn a_write_is_refused_that_could_not_be_published() {
    for mode in [Mode::Atomic, Mode::Strict] {
        let Setup { world, file, pool } = set_up(12);
        let stage = Stage::new(pool.attach().expect("attach"));
        let staged = StagedFile::open(&stage, &name_of(&file), Tight(file.clone()), mode);
        let staged = staged.expect("stage");
        world.limit_disk(Some(6));
        let mut model = first_bytes();
        let refused = (0..10).find_map(|nth| {
            // The second half of them in groups of records.
            let bytes = bytes_of(nth, if nth < 2 { 3000 } else { 9000 });
            match staged.append(&bytes) {
                Ok(_) => {
                    model.extend(bytes);
                    None
                }
                Err(error) => Some(error),
            }
        });
        assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
        assert!(model.len() > first_bytes().len(), "some were accepted");
        assert_eq!(contents(&file).expect("read"), first_bytes());
        assert_eq!(staged.size().expect("size"), model.len() as u64);
        staged.close().expect("what was accepted is published");
        assert_eq!(contents(&file).expect("read"), model);
    }
}

/// A full disk keeps everything in the pool; when there is room again, it is published.
#[test]
fn a_full_disk_keeps_the_bytes_in_the_pool() {
    let setup = set_up(12);
    let staged = setup.staged(Mode::Strict);
    let Setup { world, file, .. } = setup;
    let bytes = bytes_of(1, 20_000);
    staged.append(&bytes).expect("append");
    world.limit_disk(Some(2));
    let error = staged.publish(Scope::Everything).expect_err("no space");
    assert_eq!(error.errno(), Errno::NOSPC);
    let model = [first_bytes(), bytes].concat();
    assert_eq!(read_all(&staged), model);
    staged.truncate(5000).expect("truncate");
    world.limit_disk(None);
    staged.truncate(7000).expect("truncate");
    let mut model = model[..5000].to_vec();
    model.resize(7000, 0);
    assert_eq!(read_all(&staged), model);
    staged.close().expect("close");
    assert_eq!(contents(&file).expect("read"), model);
}

/// Bytes of a file that cannot be found are kept and reported; those of the others are published.
#[test]
fn unmatched_files_are_kept() {
    let Setup { world, file, pool } = set_up(12);
    let lost = world.create("dir/lost").expect("create");
    let stage = Stage::new(pool.attach().expect("attach"));
    let open = |file: &SimFile| {
        StagedFile::open(&stage, &name_of(file), file.clone(), Mode::Strict).expect("stage")
    };
    let (one, two) = (open(&file), open(&lost));
    one.append(b"of the one").expect("append");
    two.append(b"of the lost").expect("append");
    drop((one, two));
    drop(stage); // Without detaching: it died.
    let attachment = pool.attach().expect("attach");
    let lost_handle = name_of(&lost).handle;
    let find = |name: &FileName| match name.handle == lost_handle {
        true => Err(Error::Base(Errno::STALE)),
        false => Ok(file.clone()),
    };
    for _ in 0..2 {
        let report = recover(&attachment, &find).expect("recover");
        assert_eq!(report.kept.len(), 1);
        let kept = &report.kept[0];
        assert_eq!(
            kept.name.as_ref().map(|name| &name.handle),
            Some(&lost_handle)
        );
        assert_eq!((kept.records, kept.reason.errno()), (1, Errno::STALE));
    }
    let published = [first_bytes(), b"of the one".to_vec()].concat();
    assert_eq!(contents(&file).expect("read"), published);
    let report = recover(&attachment, &|_: &FileName| Ok(lost.clone())).expect("recover");
    assert!(report.kept.is_empty());
    assert_eq!(contents(&lost).expect("read"), b"of the lost");
}

/// A file that cannot be synced before its first commit is not committed: a crash may take it away.
#[test]
fn what_cannot_be_made_durable_first_is_not_committed() {
    let Setup { file, pool, .. } = set_up(12);
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Atomic);
    let staged = staged.expect("stage");
    staged.append(b"not committed").expect("append");
    drop(staged);
    drop(stage); // Without detaching: it died.
    let attachment = pool.attach().expect("attach");
    let uncommitted = || {
        let found = attachment.scan().expect("scan");
        found.files.iter().map(|file| file.uncommitted).sum::<u64>()
    };
    let first = std::cell::Cell::new(true);
    let find = |_: &FileName| match first.replace(false) {
        // Its lease is somebody's, and is given back then.
        true => Err(Error::Base(Errno::AGAIN)),
        false => Ok(Unsynced(file.clone())),
    };
    let report = recover(&attachment, &find).expect("recover");
    assert_eq!((report.kept.len(), uncommitted()), (1, 1));
    assert_eq!(contents(&file).expect("read"), first_bytes());
    let report = recover(&attachment, &|_: &FileName| Ok(file.clone())).expect("recover");
    assert_eq!((report.kept.len(), uncommitted()), (0, 0));
    let all = [first_bytes(), b"not committed".to_vec()].concat();
    assert_eq!(contents(&file).expect("read"), all);
}

/// A file of a disk that syncs nothing.
struct Unsynced(SimFile);

impl BaseFile for Unsynced {
    base_of!(0: size read_at write_at);

    fn sync(&self) -> std::result::Result<(), Errno> {
        Err(Errno::IO)
    }
}

#[test]
fn a_process_stages_a_file_once() {
    let Setup { file, pool, .. } = set_up(12);
    let stage = Stage::new(pool.attach().expect("attach"));
    let open = || StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Strict);
    let staged = open().expect("stage");
    staged.append(b"once").expect("append");
    assert_eq!(open().err().expect("refused").errno(), Errno::BUSY);
    drop(staged);
    assert_eq!(open().expect("stage").size().expect("size"), 304);
}

/// Of a base file that grew behind our back nothing is cut off.
#[test]
fn a_base_that_grew_stays_as_long() {
    let setup = set_up(12);
    let (staged, file) = (setup.staged(Mode::Strict), &setup.file);
    staged.append(b"ours").expect("append");
    file.write_at(300, b"an outsider's bytes").expect("write");
    staged.publish(Scope::Everything).expect("publish");
    assert_eq!(file.size().expect("size"), 319);
}

/// Long runs are relinked, their ragged ends copied; the pool's pages are then its own again.
#[test]
fn long_runs_are_relinked() {
    for can in [Can::Exchange, Can::Clone, Can::Promise, Can::Copy] {
        let Setup { world, file, pool } = set_up(12);
        let stage = Stage::new(pool.attach().expect("attach"));
        let base = SimBase::File(file.clone(), can);
        let staged = StagedFile::open(&stage, &name_of(&file), base, Mode::Strict);
        let relink = relink_from(&world).from_length(8192);
        let staged = staged.expect("stage").with_relink(relink);
        let mut model = first_bytes();
        for (nth, len) in [3796, 8192, 100, 5000].into_iter().enumerate() {
            let bytes = bytes_of(nth, len);
            staged.append(&bytes).expect("append");
            model.extend(bytes);
        }
        let done = staged.publish(Scope::Everything).expect("publish");
        let ends = 3796 + 100 + 5000;
        let expected = match can {
            Can::Exchange => (8192, 0, ends),
            Can::Clone => (0, 8192, ends),
            _ => (0, 0, 8192 + ends),
        };
        assert_eq!((done.exchanged, done.cloned, done.copied), expected);
        assert_eq!(contents(&file).expect("read"), model, "{can:?}");
        assert_eq!(read_all(&staged), model, "{can:?}");
        staged
            .write_at(0, &[9; 8192])
            .expect("the pages are used again");
        assert_eq!(contents(&file).expect("read"), model, "{can:?}");
    }
}

/// Space of what somebody else has published comes back, whether or not anybody has used the file since: neither does
/// the pool grow nor is anything published for want of it.
#[test]
fn what_is_published_of_idle_files_makes_room() {
    let setup = set_up(12);
    let grown = Arc::new(AtomicBool::new(false));
    let grow = {
        let grown = Arc::clone(&grown);
        move |_: &Attachment<AnyMedium>, _| {
            grown.store(true, Ordering::Relaxed);
            false
        }
    };
    let stage = Stage::growing(setup.pool.attach().expect("attach"), Box::new(grow));
    let other = Stage::new(setup.pool.attach().expect("attach"));
    let open = |stage: &Arc<Stage<AnyMedium>>, file: &SimFile| {
        StagedFile::open(stage, &name_of(file), file.clone(), Mode::Strict).expect("stage")
    };
    let idle: Vec<_> = (0..3)
        .map(|nth| {
            let file = setup.world.create(&format!("dir/{nth}")).expect("create");
            (open(&stage, &file), file)
        })
        .collect();
    let busy = open(&stage, &setup.file);
    for (staged, file) in &idle {
        staged.append(&[1; 5 * PAGE]).expect("append");
        let theirs = StagedFile::open_unread(&other, staged.file(), file.clone(), Mode::Sync);
        theirs
            .and_then(|theirs| theirs.publish(Scope::Everything))
            .expect("publish");
    }
    let mut model = first_bytes();
    append_all(&busy, &mut model, [PAGE; 10]);
    assert_eq!(read_all(&busy), model);
    assert!(!grown.load(Ordering::Relaxed));
    assert!(!busy.is_clean(), "it was published");
    for (staged, _) in &idle {
        assert_eq!(read_all(staged), [1; 5 * PAGE]);
    }
}
