//! Random operations against a plain vector, with reads in between; several threads at one file.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_pool::PoolFile;
use adit_sim::Rng;
use rustix::fs::{Mode as FileMode, OFlags};

use super::*;
use crate::testing::Scratch;

fn random_step(rng: &mut Rng) -> Step {
    let (at, len) = (rng.below(20_000) as usize, 1 + rng.below(6_000) as usize);
    match rng.below(17) {
        0..4 => Step::Append(1 + len % 300),
        4..6 => Step::Append(len),
        6..10 => Step::Write(at, 1 + len % 500),
        10..12 => Step::Write(at, len),
        12 => Step::Truncate(at),
        13 => Step::Fsync,
        14 => Step::Publish,
        15 => Step::Extend(at),
        _ => Step::PublishCommitted,
    }
}

/// Reads agree with the model after every step, in every mode, also after the file was opened anew and
/// the overlay made from the log alone; and the base file agrees in the end.
#[test]
fn random_operations_agree_with_a_plain_vector() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let world = World::new(tiny_size(40));
        create_pool(&world, boot(1));
        let file = world.create("dir/file").expect("create");
        file.write_at(0, &first_bytes()).expect("write");
        let pool = open_pool(world.medium(), boot(1)).expect("open");
        let stage = Stage::new(pool.attach().expect("attach"));
        let mode = [Mode::Posix, Mode::Sync, Mode::Atomic, Mode::Strict][seed as usize % 4];
        let open = || {
            let can = [Can::Exchange, Can::Clone, Can::Promise][seed as usize % 3];
            let base = SimBase::File(file.clone(), can);
            let staged = StagedFile::open(&stage, &name_of(&file), base, mode).expect("stage");
            staged.with_relink(relink_from(&world))
        };
        let mut staged = open();
        let mut model = first_bytes();
        for nth in 1..=100 {
            let step = random_step(&mut rng);
            // An atomic group that is larger than the pool is refused, which `pressure.rs` is about.
            if mode == Mode::Atomic && nth % 5 == 0 {
                staged.fsync().expect("fsync");
            }
            step.run(nth, &staged)
                .unwrap_or_else(|e| panic!("seed {seed}, {step:?}: {e}"));
            step.change(nth, &mut model);
            if rng.chance(1) {
                drop(staged);
                staged = open();
            }
            assert_eq!(
                staged.size().expect("size"),
                model.len() as u64,
                "seed {seed}, {step:?}"
            );
            let at = rng.below(model.len() as u64 + 10) as usize;
            let end = (at + rng.below(3_000) as usize).min(model.len());
            let mut bytes = vec![0xff; 3_000];
            let read = staged.read_at(at as u64, &mut bytes).expect("read");
            let wanted = model.get(at..end).unwrap_or_default();
            assert!(read >= wanted.len(), "seed {seed}, {step:?}");
            assert_eq!(&bytes[..wanted.len()], wanted, "seed {seed}, {step:?}");
        }
        assert_eq!(read_all(&staged), model, "seed {seed}");
        staged.close().expect("close");
        assert_eq!(contents(&file).expect("read"), model, "seed {seed}");
        assert!(pool.check().expect("check").problems.is_empty());
        let attachment = stage.into_attachment().expect("the only one");
        attachment.detach().expect("detach");
    }
}

/// A new file of the kernel's.
fn kernel_file(path: &std::path::Path) -> KernelFile<rustix::fd::OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = rustix::fs::open(
        path.as_os_str().as_bytes(),
        flags,
        FileMode::RUSR | FileMode::WUSR,
    )
    .expect("open");
    KernelFile::new(fd).expect("base")
}

/// A record of a writer: who, which, how long, and bytes that follow from these.
fn record(writer: u32, nth: u32) -> Vec<u8> {
    let len = 12 + (nth * 7919 + writer * 104_729) % 3000;
    let mut bytes = Vec::new();
    for word in [writer, nth, len] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(len as usize, (writer * 31 + nth) as u8);
    bytes
}

/// Splits the file into records; each has to be whole, and in its writer's order.
fn count_records(bytes: &[u8], writers: u32) -> u32 {
    let mut next = vec![0; writers as usize];
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("word"));
        let (writer, nth, len) = (word(0), word(4), word(8) as usize);
        assert_eq!(nth, next[writer as usize], "lost or out of order");
        assert_eq!(&rest[..len], record(writer, nth), "torn");
        next[writer as usize] += 1;
        rest = &rest[len..];
    }
    next.iter().sum()
}

/// Four writers append, one thread publishes, one reads: no record is lost or torn, for the reader at
/// any instant and in the base file at the end. The pool is small, so that its pages are used again and
/// again.
#[test]
fn several_threads() {
    const WRITERS: u32 = 4;
    const RECORDS: u32 = 800;
    let scratch = Scratch::new();
    let geometry = Geometry {
        chunk_shift: 16,
        max_chunks: 256,
        slot_count: 16,
        file_count: 16,
    };
    let pool = PoolFile::create(&scratch.path("pool"), 4 << 20, geometry).expect("pool");
    let path = scratch.path("file");
    let base = kernel_file(&path);
    let name = FileName {
        handle_type: 1,
        handle: vec![1; 8],
        path: b"file".to_vec(),
        device: 1,
    };
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name, base, Mode::Posix).expect("stage");
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let staged = &staged;
                scope.spawn(move || {
                    for nth in 0..RECORDS {
                        staged.append(&record(writer, nth)).expect("append");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while going.load(Ordering::Relaxed) {
                match staged.publish(Scope::Everything) {
                    Ok(_) | Err(Error::Publishing { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        scope.spawn(|| {
            while going.load(Ordering::Relaxed) {
                count_records(&read_all(&staged), WRITERS);
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        going.store(false, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.expect("writer"));
    });
    staged.close().expect("close");
    let bytes = std::fs::read(&path).expect("read");
    assert_eq!(count_records(&bytes, WRITERS), WRITERS * RECORDS);
}

/// An overwrite of several pages is read entirely or not at all, while it is staged, published and
/// overwritten again.
#[test]
fn reads_of_overwrites_never_tear() {
    const LEN: usize = 64 << 10;
    let scratch = Scratch::new();
    let geometry = Geometry {
        chunk_shift: 17,
        max_chunks: 256,
        slot_count: 16,
        file_count: 16,
    };
    let pool = PoolFile::create(&scratch.path("pool"), 8 << 20, geometry).expect("pool");
    let path = scratch.path("file");
    let base = kernel_file(&path);
    base.write_at(0, &[0; LEN]).expect("file");
    let name = FileName {
        handle_type: 1,
        handle: vec![2; 8],
        path: b"file".to_vec(),
        device: 1,
    };
    let stage = Stage::new(pool.attach().expect("attach"));
    let staged = StagedFile::open(&stage, &name, base, Mode::Strict).expect("stage");
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rounds = || {
                for round in 0..2000_u32 {
                    staged.write_at(0, &[round as u8; LEN])?;
                    if round % 3 == 0 {
                        staged.publish(Scope::Everything)?;
                    }
                }
                Ok::<(), Error>(())
            };
            let ended = rounds();
            going.store(false, Ordering::Relaxed);
            ended.expect("write or publish");
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut bytes = vec![0; LEN];
                while going.load(Ordering::Relaxed) {
                    assert_eq!(staged.read_at(0, &mut bytes).expect("read"), LEN);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn");
                }
            });
        }
    });
}
