//! Threads of one process on shared descriptors.

use crate::records::{self, RECORD, Stage};
use crate::rng::Rng;
use crate::twin::{Plant, same_bytes};
use crate::way::Way;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const W: Way = Way::Libc;
const THREADS: u64 = 4;

type Scenario = (&'static str, fn(&Stage) -> Result<(), String>);

/// Every scenario by name.
pub(crate) const ALL: &[Scenario] = &[
    ("own ranges of one descriptor", own_ranges),
    ("reads that share an offset", shared_reads),
    ("overwrites that share an offset", shared_overwrites),
    ("writes that share an offset across the end", shared_growth),
    ("O_APPEND through several descriptors", appends),
    ("readers while the file is resized", resizing),
    ("descriptors that come and go", churn),
    (
        "a descriptor closed under its readers",
        closed_under_readers,
    ),
    ("a reader sees what a writer finished", freshness),
];

fn join_all<T: Send>(
    count: u64,
    work: impl Fn(u64) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    thread::scope(|s| {
        let work = &work;
        let all: Vec<_> = (0..count).map(|t| s.spawn(move || work(t))).collect();
        all.into_iter()
            .map(|h| h.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    })
}

fn own_ranges(st: &Stage) -> Result<(), String> {
    const RANGE: usize = 700_001;
    let path = st.path("ranges");
    records::make(&path, THREADS * RANGE as u64 / RECORD as u64 + 500)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let start = records::raw_contents(&path)?;
    let parts = join_all(THREADS, |t| {
        let mut rng = Rng::new(st.seed ^ t);
        let base = t as usize * RANGE;
        let mut model = start[base..base + RANGE].to_vec();
        for _ in 0..st.rounds {
            let at = rng.below(RANGE as u64) as usize;
            let len = (rng.range(1, 20_000) as usize).min(RANGE - at);
            let mut buf = vec![0; len];
            let pos = (base + at) as i64;
            if rng.chance(50) {
                rng.fill(&mut buf);
                let n = W.pwrite(fd, buf.as_ptr(), len, pos, 0);
                if n != len as i64 {
                    return Err(format!("pwrite {len} at {pos}: {n}"));
                }
                model[at..at + len].copy_from_slice(&buf);
            } else {
                let n = W.pread(fd, buf.as_mut_ptr(), len, pos, 0);
                if n != len as i64 {
                    return Err(format!("pread {len} at {pos}: {n}"));
                }
                same_bytes(&format!("pread at {pos}"), &buf, &model[at..at + len])?;
            }
        }
        Ok(model)
    })?;
    W.close(fd);
    let mut whole: Vec<u8> = parts.concat();
    whole.extend_from_slice(&start[whole.len()..]);
    if st.plant == Some(Plant::File) {
        whole[12_345] ^= 1;
    }
    same_bytes(
        "the file afterwards",
        &records::raw_contents(&path)?,
        &whole,
    )
}

fn shared_reads(st: &Stage) -> Result<(), String> {
    let count = 40_000 + st.seed % 100;
    let path = st.path("reads");
    records::make(&path, count)?;
    let fd = records::open_warm(&path, libc::O_RDONLY)?;
    let mut all = join_all(THREADS, |t| records::read_to_end(fd, st.seed ^ t))?.concat();
    if st.plant == Some(Plant::Read) {
        all.pop();
    }
    let end = W.lseek(fd, 0, libc::SEEK_CUR, 0);
    W.close(fd);
    if end != count as i64 * RECORD as i64 {
        return Err(format!("offset {end} after all"));
    }
    records::each_once(all, count)
}

/// Threads write numbered records at one offset; each must land whole in a place of its own.
fn write_records(fd: i32, each: u64) -> Result<(), String> {
    join_all(THREADS, |t| {
        for i in 0..each {
            let r = records::record(t * each + i);
            let n = W.write(fd, r.as_ptr(), RECORD);
            if n != RECORD as i64 {
                return Err(format!("write: {n}"));
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn written_once(st: &Stage, fd: i32, path: &std::ffi::CStr, count: u64) -> Result<(), String> {
    let end = W.lseek(fd, 0, libc::SEEK_CUR, 0);
    W.close(fd);
    if end != (count as usize * RECORD) as i64 {
        return Err(format!("offset {end} after {count} records"));
    }
    let mut seen = records::numbers(&records::raw_contents(path)?[..count as usize * RECORD])?;
    if st.plant == Some(Plant::File) {
        seen[7] = seen[8];
    }
    records::each_once(seen, count)
}

fn shared_overwrites(st: &Stage) -> Result<(), String> {
    let each = (st.rounds as u64 * 4).min(8000);
    let path = st.path("overwrites");
    records::make(&path, each * THREADS + 1000)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    write_records(fd, each)?;
    written_once(st, fd, &path, each * THREADS)
}

fn shared_growth(st: &Stage) -> Result<(), String> {
    let each = (st.rounds as u64 * 4).min(8000);
    let path = st.path("growth");
    records::make(&path, each * THREADS / 2 + 3)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    write_records(fd, each)?;
    written_once(st, fd, &path, each * THREADS)
}

fn appends(st: &Stage) -> Result<(), String> {
    let each = (st.rounds as u64).min(3000);
    let path = st.path("appends");
    records::make(&path, 2000)?;
    join_all(THREADS, |t| {
        let fd = records::open_warm(&path, libc::O_RDWR | libc::O_APPEND)?;
        for i in 0..each {
            let r = records::record(2000 + t * each + i);
            let n = W.write(fd, r.as_ptr(), RECORD);
            if n != RECORD as i64 {
                return Err(format!("append: {n}"));
            }
            // Reading the front through the same descriptor must not disturb the appends.
            let mut front = [0u8; RECORD];
            let at = i % 2000;
            W.pread(fd, front.as_mut_ptr(), RECORD, at as i64 * RECORD as i64, 0);
            if records::number_of(&front)? != at {
                return Err(format!("record {at} changed"));
            }
        }
        W.close(fd);
        Ok(())
    })?;
    records::each_once(
        records::numbers(&records::raw_contents(&path)?)?,
        2000 + each * THREADS,
    )
}

/// The byte that belongs to a position, never zero, which is what holes read as.
fn pattern(pos: usize) -> u8 {
    (pos as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_le_bytes()[5]
        | 1
}

fn patterned(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(pattern).collect()
}

fn resizing(st: &Stage) -> Result<(), String> {
    const SIZE: usize = 1 << 20;
    let path = st.path("resizing");
    let fd = W.open(&path, libc::O_RDWR | libc::O_CREAT, 0o644, 0) as i32;
    let whole = patterned(0, SIZE);
    W.pwrite(fd, whole.as_ptr(), SIZE, 0, 0);
    W.close(fd);
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let done = AtomicBool::new(false);
    let result = thread::scope(|s| {
        let resizer = s.spawn(|| {
            let mut rng = Rng::new(st.seed);
            for _ in 0..st.rounds / 4 {
                let to = rng.below(SIZE as u64) as i64;
                let way = if rng.chance(50) { W } else { Way::Raw };
                let to = if rng.chance(40) { to & !4095 } else { to };
                if rng.chance(50) {
                    way.ftruncate(fd, to, 0)
                } else {
                    way.truncate(&path, to, 0)
                };
                way.pwrite(fd, whole.as_ptr(), SIZE, 0, 0);
            }
            done.store(true, Ordering::SeqCst);
        });
        let r = join_all(THREADS - 1, |t| {
            let mut rng = Rng::new(st.seed ^ t ^ 77);
            let mut buf = vec![0u8; 20_000];
            while !done.load(Ordering::SeqCst) {
                let at = rng.below(SIZE as u64) as usize;
                let len = rng.range(1, 20_000) as usize;
                if rng.chance(30) {
                    let len = len.min(SIZE - at);
                    let n = W.pwrite(fd, whole[at..].as_ptr(), len, at as i64, 0);
                    if n != len as i64 {
                        return Err(format!("pwrite {len} at {at}: {n}"));
                    }
                    continue;
                }
                let n = W.pread(fd, buf.as_mut_ptr(), len, at as i64, 0);
                if n < 0 || n as usize > len || at + n as usize > SIZE {
                    return Err(format!("pread {len} at {at}: {n}"));
                }
                let bad = (0..n as usize).find(|&i| buf[i] != 0 && buf[i] != pattern(at + i));
                if let Some(i) = bad {
                    return Err(format!(
                        "at {}: {} is neither data nor hole",
                        at + i,
                        buf[i]
                    ));
                }
            }
            Ok(())
        });
        let _ = resizer.join();
        r
    });
    W.close(fd);
    result.map(|_| ())
}

fn tagged_files(st: &Stage, count: u64) -> Result<Vec<std::ffi::CString>, String> {
    (0..count)
        .map(|i| {
            let path = st.path(&format!("tag{i}"));
            let fd = W.open(&path, libc::O_RDWR | libc::O_CREAT, 0o644, 0) as i32;
            let all = vec![i as u8 + 1; 150_000];
            let n = W.write(fd, all.as_ptr(), all.len());
            W.close(fd);
            if n == 150_000 {
                Ok(path)
            } else {
                Err(format!("tagged file: {n}"))
            }
        })
        .collect()
}

/// Descriptor numbers are reused all the time; a read must always be of the file opened last.
fn churn(st: &Stage) -> Result<(), String> {
    let files = tagged_files(st, 6)?;
    join_all(THREADS, |t| {
        let mut rng = Rng::new(st.seed ^ (t << 8));
        let mut open: Vec<(i32, u8)> = Vec::new();
        let mut buf = vec![0u8; 16_384];
        for _ in 0..st.rounds {
            match rng.below(8) {
                0 | 1 if open.len() < 12 => {
                    let i = rng.below(6) as usize;
                    let flags = rng.pick(&[libc::O_RDWR, libc::O_RDONLY]);
                    let fd = W.open(&files[i], flags, 0, rng.below(4) as u8);
                    open.push((fd as i32, i as u8 + 1));
                }
                2 if !open.is_empty() => {
                    let (fd, tag) = open[rng.below(open.len() as u64) as usize];
                    let new = if rng.chance(50) {
                        W.dup(fd)
                    } else {
                        W.fcntl(fd, libc::F_DUPFD_CLOEXEC, 20, 0)
                    };
                    open.push((new as i32, tag));
                }
                3 if open.len() > 1 => {
                    let from = open[0];
                    let to = open.len() - 1;
                    let three = rng.pick(&[None, Some(libc::O_CLOEXEC)]);
                    if from.0 != open[to].0 {
                        W.dup_to(from.0, open[to].0, three);
                        open[to].1 = from.1;
                    }
                }
                4 | 5 if open.len() > 6 => {
                    let gone = open.swap_remove(rng.below(open.len() as u64) as usize);
                    if W.close(gone.0) != 0 {
                        return Err(format!("close {}", gone.0));
                    }
                }
                _ => {
                    for &(fd, tag) in &open {
                        let at = rng.below(130_000) as i64;
                        let n = W.pread(fd, buf.as_mut_ptr(), buf.len(), at, 0);
                        if n != buf.len() as i64 || buf.iter().any(|&b| b != tag) {
                            return Err(format!("fd {fd}, tag {tag}: {n}, {:?}", &buf[..4]));
                        }
                    }
                }
            }
        }
        for (fd, _) in open {
            W.close(fd);
        }
        Ok(())
    })?;
    Ok(())
}

/// One thread reopens another file under the same number; a read is of one file or the other.
fn closed_under_readers(st: &Stage) -> Result<(), String> {
    const FD: i32 = 150;
    let files = tagged_files(st, 2)?;
    let first = records::open_warm(&files[0], libc::O_RDONLY)?;
    W.dup_to(first, FD, None);
    W.close(first);
    let done = AtomicBool::new(false);
    let result = thread::scope(|s| {
        let swapper = s.spawn(|| {
            for i in 0..st.rounds / 2 {
                let fd = W.open(&files[i % 2], libc::O_RDONLY, 0, 0) as i32;
                let mut b = [0u8; 4096];
                W.pread(fd, b.as_mut_ptr(), 4096, 0, 0);
                if i % 3 == 0 {
                    W.close(FD);
                }
                W.dup_to(fd, FD, None);
                W.close(fd);
            }
            done.store(true, Ordering::SeqCst);
        });
        let r = join_all(THREADS - 1, |t| {
            let mut rng = Rng::new(st.seed ^ t);
            let mut buf = vec![0u8; 20_000];
            while !done.load(Ordering::SeqCst) {
                let at = rng.below(120_000) as i64;
                let n = W.pread(FD, buf.as_mut_ptr(), buf.len(), at, 0);
                if n == -i64::from(libc::EBADF) {
                    continue;
                }
                let tag = buf[0];
                let whole = n == buf.len() as i64 && (1..=2).contains(&tag);
                if !whole || buf.iter().any(|&b| b != tag) {
                    return Err(format!("a mixed read at {at}: {n}, tag {tag}"));
                }
            }
            Ok(())
        });
        let _ = swapper.join();
        r
    });
    W.close(FD);
    result.map(|_| ())
}

/// Once a write returned, every later read has it, whichever descriptor either uses.
fn freshness(st: &Stage) -> Result<(), String> {
    let path = st.path("fresh");
    records::make(&path, 4000)?;
    let writer = records::open_warm(&path, libc::O_RDWR)?;
    let reader = records::open_warm(&path, libc::O_RDONLY)?;
    let raw = Way::Raw.open(&path, libc::O_RDWR | libc::O_CLOEXEC, 0, 0) as i32;
    let zero = 0u64;
    W.pwrite(writer, (&raw const zero).cast(), 8, 8192, 0);
    let (written, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let result = thread::scope(|s| {
        s.spawn(|| {
            for i in 1..=st.rounds as u64 * 20 {
                let (way, fd) = if i % 3 == 0 {
                    (Way::Raw, raw)
                } else {
                    (W, writer)
                };
                way.pwrite(fd, (&raw const i).cast(), 8, 8192, 0);
                written.store(i, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
        });
        join_all(2, |t| {
            let (way, fd) = if t == 0 { (W, reader) } else { (Way::Raw, raw) };
            while !done.load(Ordering::SeqCst) {
                let before = written.load(Ordering::SeqCst);
                let mut seen = 0u64;
                way.pread(fd, (&raw mut seen).cast(), 8, 8192, 0);
                if seen < before {
                    return Err(format!("{way:?} read {seen} after {before} was written"));
                }
            }
            Ok(())
        })
    });
    for fd in [writer, reader] {
        W.close(fd);
    }
    Way::Raw.close(raw);
    result.map(|_| ())
}
