//! Full pools, full logs, full disks, files that are gone, and what is relinked.

use super::*;

struct Setup {
    world: World,
    file: SimFile,
    pool: Arc<Pool<SimMedium>>,
}

fn set_up(chunks: u32) -> Setup {
    let world = World::new(tiny_size(chunks));
    create_pool(&world, boot(1));
    let file = world.create("dir/file").expect("create");
    file.write_at(0, &first_bytes()).expect("write");
    let pool = open_pool(world.medium(), boot(1)).expect("open");
    Setup { world, file, pool }
}

/// In `posix`, `sync` and `strict` mode a full pool is published, and the program never notices.
#[test]
fn a_full_pool_is_published() {
    for mode in [Mode::Posix, Mode::Sync, Mode::Strict] {
        let Setup { file, pool, .. } = set_up(6);
        let stage = Stage::new(pool.attach().expect("attach"));
        let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), mode).expect("stage");
        let mut model = first_bytes();
        for nth in 0..60 {
            let bytes = bytes_of(nth, 3000);
            staged
                .append(&bytes)
                .unwrap_or_else(|e| panic!("{mode:?} {nth}: {e}"));
            model.extend(bytes);
        }
        assert_eq!(read_all(&staged), model);
        staged.close().expect("close");
        assert_eq!(contents(&file).expect("read"), model);
    }
}

#[test]
fn a_full_log_is_published() {
    let Setup { file, pool, .. } = set_up(12);
    let stage = Stage::new(pool.attach().expect("attach"));
    stage.attachment().limit_log(2);
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Posix);
    let staged = staged.expect("stage");
    let mut model = first_bytes();
    for nth in 0..2000 {
        let bytes = bytes_of(nth, 20);
        staged
            .append(&bytes)
            .unwrap_or_else(|e| panic!("{nth}: {e}"));
        model.extend(bytes);
    }
    assert_eq!(read_all(&staged), model);
}

/// In `atomic` mode uncommitted bytes never reach the base file: the answer is `ENOSPC`, nothing of the
/// refused call is there, and after an `fsync` there is room again.
#[test]
fn an_atomic_group_that_is_too_large_is_refused() {
    let Setup { file, pool, .. } = set_up(6);
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Atomic);
    let staged = staged.expect("stage");
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
    assert_eq!(contents(&file).expect("read"), first_bytes());
    staged.fsync().expect("fsync");
    staged.append(&[5; 10_000]).expect("there is room again");
    model.extend([5; 10_000]);
    assert_eq!(read_all(&staged), model);
    assert!(contents(&file).expect("read").len() < model.len());
}

/// A full disk keeps everything in the pool; when there is room again, it is published.
#[test]
fn a_full_disk_keeps_the_bytes_in_the_pool() {
    let Setup { world, file, pool } = set_up(12);
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Strict);
    let staged = staged.expect("stage");
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
    let find = |name: &FileName| Ok((name.handle != lost_handle).then(|| file.clone()));
    for _ in 0..2 {
        let report = recover(&attachment, find).expect("recover");
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
    let report = recover(&attachment, |_: &FileName| Ok(Some(lost.clone()))).expect("recover");
    assert!(report.kept.is_empty());
    assert_eq!(contents(&lost).expect("read"), b"of the lost");
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
    assert_eq!(open().expect("stage").size(), 304);
}

/// A base file that grew behind our back is reported, and nothing of the outsider's is cut off.
#[test]
fn a_base_that_grew_is_reported() {
    let Setup { file, pool, .. } = set_up(12);
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name_of(&file), file.clone(), Mode::Strict);
    let staged = staged.expect("stage");
    staged.append(b"ours").expect("append");
    file.write_at(300, b"an outsider's bytes").expect("write");
    let done = staged.publish(Scope::Everything).expect("publish");
    assert!(done.base_grew);
    assert_eq!(file.size().expect("size"), 319);
}

/// Long runs are relinked, their ragged ends copied; the pool's pages are then its own again.
#[test]
fn long_runs_are_relinked() {
    let Setup { world, file, pool } = set_up(12);
    let stage = Stage::new(pool.attach().expect("attach"));
    let base = SimBase::File(file.clone());
    let staged = StagedFile::open(&stage, &name_of(&file), base, Mode::Strict);
    let staged = staged.expect("stage").with_relink(Relink {
        pool: SimBase::Pool(world.medium()),
        min: 8192,
    });
    let mut model = first_bytes();
    for (nth, len) in [3796, 8192, 100, 5000].into_iter().enumerate() {
        let bytes = bytes_of(nth, len);
        staged.append(&bytes).expect("append");
        model.extend(bytes);
    }
    let done = staged.publish(Scope::Everything).expect("publish");
    assert_eq!((done.relinked, done.copied), (8192, 3796 + 100 + 5000));
    assert_eq!(contents(&file).expect("read"), model);
    staged
        .write_at(0, &[9; 8192])
        .expect("the pages are used again");
    assert_eq!(contents(&file).expect("read"), model);
}
