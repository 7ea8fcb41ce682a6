//! Processes that share descriptors: fork, exec, spawn, passing over sockets, appending.
//!
//! # Safety
//!
//! The two unsafe calls hand a fresh descriptor, and a hook that does nothing, to the standard library.

use crate::outside::{self, Act, Helper};
use crate::process::{
    in_child, joined, kill, pipe, raw_close, raw_read, raw_write, receive_fd, send_fd, socket_pair,
    wait_for,
};
use crate::records::{self, RECORD, Stage};
use crate::rng::Rng;
use crate::twin::{Plant, same_bytes};
use crate::way::Way;
use std::os::fd::FromRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

const W: Way = Way::Libc;

type Scenario = (&'static str, fn(&Stage) -> Result<(), String>);

/// Every scenario by name.
pub(crate) const ALL: &[Scenario] = &[
    ("children read from one offset", fork_reads),
    ("parent and child take turns", turns),
    ("a duplicate and a child", duplicate_and_child),
    ("children write at one offset", fork_writes),
    ("a spawned program inherits", spawn_inherits),
    ("a forked and executed program inherits", exec_inherits),
    ("a spawned program's standard input", spawn_stdin),
    ("a descriptor passed over a socket", passed),
    ("processes append", appends),
    ("programs append", programs_append),
    ("an outsider writes, we read, and back", coherence),
    ("a child overwrites and exits", child_overwrites),
    ("a child is killed while it overwrites", killed),
    ("a child closes and reopens", child_reopens),
    ("forks among busy threads", fork_among_threads),
];

/// What a program started by a scenario does: `read:FD:BYTES`, `append:PATH:FIRST:COUNT`.
pub(crate) fn child_program(order: &str) -> Result<(), String> {
    let parts: Vec<&str> = order.split(':').collect();
    let number = |i: usize| {
        parts
            .get(i)
            .and_then(|p| p.parse::<i64>().ok())
            .ok_or(format!("bad order {order}"))
    };
    match parts[0] {
        "read" => {
            let mut buf = vec![0u8; number(2)? as usize];
            let n = W.read(number(1)? as i32, buf.as_mut_ptr(), buf.len());
            outside::write_all(W, 1, &buf[..n.max(0) as usize]);
            Ok(())
        }
        "append" => {
            let path = records::path_in(std::path::Path::new("/"), parts[1]);
            let fd = W.open(&path, libc::O_RDWR | libc::O_APPEND, 0, 0) as i32;
            for i in 0..number(3)? {
                let r = records::record((number(2)? + i) as u64);
                if W.write(fd, r.as_ptr(), RECORD) != RECORD as i64 {
                    return Err("append".into());
                }
            }
            Ok(())
        }
        _ => Err(format!("bad order {order}")),
    }
}

fn report(to: i32, numbers: &[u64]) -> Result<(), String> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    for part in bytes.chunks(4096) {
        if raw_write(to, part) != part.len() as i64 {
            return Err("cannot report".into());
        }
    }
    Ok(())
}

fn collect(from: i32) -> Vec<u64> {
    let mut all = Vec::new();
    let mut buf = [0u8; 4096];
    loop {
        let n = raw_read(from, &mut buf);
        if n <= 0 {
            break;
        }
        all.extend_from_slice(&buf[..n as usize]);
    }
    all.chunks_exact(8)
        .map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes")))
        .collect()
}

fn fork_reads(st: &Stage) -> Result<(), String> {
    let count = 30_000;
    let path = st.path("fork-reads");
    records::make(&path, count)?;
    let fd = records::open_warm(&path, libc::O_RDONLY)?;
    let p = pipe();
    // A first piece before the fork: the children must go on from there.
    let mut first = [0u8; 10 * RECORD];
    W.read(fd, first.as_mut_ptr(), first.len());
    let mut all = records::numbers(&first)?;
    let children: Vec<i32> = (0..3)
        .map(|t| in_child(|| report(p[1], &records::read_to_end(fd, st.seed ^ t)?)))
        .collect();
    raw_close(p[1]);
    let own = records::read_to_end(fd, st.seed ^ 99)?;
    all.extend(collect(p[0]));
    all.extend(own);
    raw_close(p[0]);
    for c in children {
        joined(c)?;
    }
    W.close(fd);
    if st.plant == Some(Plant::Read) {
        all.push(5);
    }
    records::each_once(all, count)
}

/// One side's share of the turns: everything it does moves an offset that both know.
fn turn(fd: i32, rng: &mut Rng, expected: &mut i64, size: i64) -> Result<(), String> {
    let mut buf = vec![0u8; 2000];
    let len = rng.range(1, 2000) as i64;
    match rng.below(4) {
        0 => {
            *expected = rng.below(size as u64) as i64;
            let r = W.lseek(fd, *expected, libc::SEEK_SET, 0);
            if r != *expected {
                return Err(format!("lseek: {r}"));
            }
        }
        1 => {
            let n = W.write(fd, buf.as_ptr(), 0);
            if n != 0 {
                return Err(format!("empty write: {n}"));
            }
        }
        _ => {
            let n = W.read(fd, buf.as_mut_ptr(), len as usize);
            let want = len.min((size - *expected).max(0));
            if n != want {
                return Err(format!("read at {expected}: {n} instead of {want}"));
            }
            check_bytes(&buf[..n as usize], *expected)?;
            *expected += n;
        }
    }
    let at = W.lseek(fd, 0, libc::SEEK_CUR, 0);
    if at == *expected {
        Ok(())
    } else {
        Err(format!("offset {at} instead of {expected}"))
    }
}

/// Whether bytes are those of the record file at this position.
fn check_bytes(bytes: &[u8], at: i64) -> Result<(), String> {
    let first = at as usize / RECORD;
    let last = (at as usize + bytes.len()) / RECORD;
    let all: Vec<u8> = (first..=last)
        .flat_map(|n| records::record(n as u64))
        .collect();
    let skip = at as usize - first * RECORD;
    same_bytes(
        &format!("read at {at}"),
        bytes,
        &all[skip..skip + bytes.len()],
    )
}

fn turns(st: &Stage) -> Result<(), String> {
    let count = 4000;
    let size = count * RECORD as i64;
    let path = st.path("turns");
    records::make(&path, count as u64)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let (go, back) = (pipe(), pipe());
    // Both draw the same numbers, so each knows what the other did to the offset.
    let play = |mine: u64, from: i32, to: i32| -> Result<(), String> {
        let mut rng = Rng::new(st.seed);
        let mut expected = 0;
        for i in 0..300 {
            let seed = rng.next();
            if i % 2 == mine {
                if i > 0 {
                    let mut e = [0u8; 8];
                    raw_read(from, &mut e);
                    expected = i64::from_le_bytes(e);
                }
                turn(fd, &mut Rng::new(seed), &mut expected, size)
                    .map_err(|e| format!("turn {i}: {e}"))?;
                raw_write(to, &expected.to_le_bytes());
            }
        }
        Ok(())
    };
    let child = in_child(|| {
        raw_close(go[1]);
        raw_close(back[0]);
        play(1, go[0], back[1])
    });
    raw_close(back[1]);
    let mine = play(0, back[0], go[1]);
    raw_close(go[1]);
    let theirs = joined(child);
    raw_close(go[0]);
    raw_close(back[0]);
    W.close(fd);
    mine.and(theirs)
}

fn duplicate_and_child(st: &Stage) -> Result<(), String> {
    let path = st.path("dup-child");
    records::make(&path, 4000)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let other = W.dup(fd) as i32;
    let third = W.fcntl(fd, libc::F_DUPFD, 60, 1) as i32;
    let mut buf = vec![0u8; 1000];
    let mut at = 0;
    for (i, one) in [fd, other, third, fd, third].into_iter().enumerate() {
        let n = W.read(one, buf.as_mut_ptr(), buf.len());
        check_bytes(&buf, at).map_err(|e| format!("read {i}: {n}, {e}"))?;
        at += n;
    }
    let child = in_child(|| {
        let mut buf = vec![0u8; 3000];
        let n = W.read(other, buf.as_mut_ptr(), buf.len());
        check_bytes(&buf[..n.max(0) as usize], at)?;
        W.close(other);
        W.lseek(third, 4096, libc::SEEK_SET, 0);
        Ok(())
    });
    joined(child)?;
    for one in [fd, other, third] {
        let now = W.lseek(one, 0, libc::SEEK_CUR, 1);
        if now != 4096 {
            return Err(format!("offset {now} where the child left 4096"));
        }
        W.close(one);
    }
    Ok(())
}

fn fork_writes(st: &Stage) -> Result<(), String> {
    let each = (st.rounds as u64).min(1500);
    let path = st.path("fork-writes");
    records::make(&path, each * 2 + 9)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let children: Vec<i32> = (0..4)
        .map(|t| {
            in_child(|| {
                for i in 0..each {
                    let r = records::record(t * each + i);
                    let n = W.write(fd, r.as_ptr(), RECORD);
                    if n != RECORD as i64 {
                        return Err(format!("write: {n}"));
                    }
                }
                Ok(())
            })
        })
        .collect();
    for c in children {
        joined(c)?;
    }
    let end = W.lseek(fd, 0, libc::SEEK_CUR, 0);
    W.close(fd);
    if end != (4 * each) as i64 * RECORD as i64 {
        return Err(format!("offset {end} after all"));
    }
    records::each_once(records::numbers(&records::raw_contents(&path)?)?, 4 * each)
}

fn program(order: &str, preloaded: bool) -> Result<Command, String> {
    let mut c = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    c.args(["--child", order]);
    if !preloaded {
        c.env_remove("LD_PRELOAD").env_remove("ADIT_MODE");
    }
    Ok(c)
}

/// The program reads next; then we do, from where it stopped.
fn inherits(st: &Stage, forked: bool) -> Result<(), String> {
    let path = st.path("inherit");
    records::make(&path, 6000)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let mut at = 0;
    for round in 0..4 {
        let len = 5000 + 777 * round;
        let mut c = program(&format!("read:{fd}:{len}"), round % 2 == 0)?;
        if forked {
            // Something to do between fork and exec makes the library take that path.
            c.arg0("adit-oracle-child").current_dir(&st.dir);
            do_before_exec(&mut c);
        }
        let out = c
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| e.to_string())?;
        if out.stdout.len() != len {
            return Err(format!("the program read {} of {len}", out.stdout.len()));
        }
        check_bytes(&out.stdout, at)?;
        at += len as i64;
        let mut buf = vec![0u8; 3333];
        let n = W.read(fd, buf.as_mut_ptr(), buf.len());
        check_bytes(&buf[..n.max(0) as usize], at).map_err(|e| format!("afterwards: {e}"))?;
        at += n;
    }
    W.close(fd);
    Ok(())
}

fn spawn_inherits(st: &Stage) -> Result<(), String> {
    inherits(st, false)
}

fn exec_inherits(st: &Stage) -> Result<(), String> {
    inherits(st, true)
}

fn spawn_stdin(st: &Stage) -> Result<(), String> {
    let path = st.path("stdin");
    records::make(&path, 6000)?;
    let fd = records::open_warm(&path, libc::O_RDONLY)?;
    let mut buf = vec![0u8; 12_345];
    W.read(fd, buf.as_mut_ptr(), buf.len());
    let mut c = Command::new("head");
    let out = c
        .args(["-c", "5000"])
        .stdin(stdio_of(W.dup(fd) as i32))
        .output()
        .map_err(|e| e.to_string())?;
    check_bytes(&out.stdout, 12_345)?;
    // head reads a whole block; where the offset is now is for the kernel to say.
    let now = W.lseek(fd, 0, libc::SEEK_CUR, 0);
    W.close(fd);
    if out.stdout.len() == 5000 && now >= 17_345 {
        Ok(())
    } else {
        Err(format!("{} bytes, offset {now}", out.stdout.len()))
    }
}

#[allow(unsafe_code)]
fn do_before_exec(c: &mut Command) {
    // SAFETY: the hook does nothing at all.
    unsafe { c.pre_exec(|| Ok(())) };
}

#[allow(unsafe_code)]
fn stdio_of(fd: i32) -> Stdio {
    // SAFETY: the descriptor is a fresh duplicate that nobody else closes.
    unsafe { Stdio::from_raw_fd(fd) }
}

fn passed(st: &Stage) -> Result<(), String> {
    let sockets = socket_pair();
    let path = st.path("passed");
    let child = in_child(|| {
        // This process existed before the file was opened: it gets the descriptor by mail alone.
        let fd = receive_fd(sockets[1])?;
        let mut buf = vec![0u8; 1000];
        let n = W.read(fd, buf.as_mut_ptr(), buf.len());
        check_bytes(&buf[..n.max(0) as usize], 700)?;
        W.lseek(fd, 64_000, libc::SEEK_SET, 0);
        let back = W.open(&path, libc::O_RDWR, 0, 0) as i32;
        W.lseek(back, 777, libc::SEEK_SET, 0);
        send_fd(sockets[1], back)?;
        let mut go = [0u8];
        raw_read(sockets[1], &mut go);
        let now = W.lseek(back, 0, libc::SEEK_CUR, 0);
        if now == 1777 {
            Ok(())
        } else {
            Err(format!("offset {now} after the parent's read"))
        }
    });
    records::make(&path, 3000)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let mut buf = vec![0u8; 1000];
    W.read(fd, buf.as_mut_ptr(), 700);
    send_fd(sockets[0], fd)?;
    let got = receive_fd(sockets[0])?;
    let now = W.lseek(fd, 0, libc::SEEK_CUR, 0);
    if now != 64_000 {
        return Err(format!("offset {now} after the child moved it to 64000"));
    }
    let n = W.read(got, buf.as_mut_ptr(), 1000);
    check_bytes(&buf[..n.max(0) as usize], 777)?;
    raw_write(sockets[0], b"g");
    let r = joined(child);
    for one in [fd, got] {
        W.close(one);
    }
    sockets.into_iter().for_each(raw_close);
    r
}

fn appends(st: &Stage) -> Result<(), String> {
    let each = (st.rounds as u64).min(1500);
    let path = st.path("appends");
    records::make(&path, 1000)?;
    let shared = records::open_warm(&path, libc::O_RDWR | libc::O_APPEND)?;
    let children: Vec<i32> = (0..4)
        .map(|t| {
            in_child(|| {
                let own = W.open(&path, libc::O_WRONLY | libc::O_APPEND, 0, 0) as i32;
                for i in 0..each {
                    let r = records::record(1000 + t * each + i);
                    let fd = if i % 2 == 0 { own } else { shared };
                    let n = W.write(fd, r.as_ptr(), RECORD);
                    if n != RECORD as i64 {
                        return Err(format!("append: {n}"));
                    }
                }
                Ok(())
            })
        })
        .collect();
    for c in children {
        joined(c)?;
    }
    W.close(shared);
    let mut seen = records::numbers(&records::raw_contents(&path)?)?;
    if st.plant == Some(Plant::File) {
        seen.swap_remove(3);
    }
    records::each_once(seen, 1000 + 4 * each)
}

fn programs_append(st: &Stage) -> Result<(), String> {
    let each = (st.rounds as u64).min(800);
    let path = st.path("programs");
    records::make(&path, 1000)?;
    let fd = records::open_warm(&path, libc::O_RDWR | libc::O_APPEND)?;
    let name = path.to_string_lossy();
    let mut running = Vec::new();
    for t in 0..4 {
        let order = format!("append:{name}:{}:{each}", 1000 + t * each);
        running.push(
            program(&order, t % 2 == 0)?
                .spawn()
                .map_err(|e| e.to_string())?,
        );
    }
    for i in 0..each {
        let r = records::record(1000 + 4 * each + i);
        W.write(fd, r.as_ptr(), RECORD);
    }
    W.close(fd);
    for mut c in running {
        if !c.wait().map_err(|e| e.to_string())?.success() {
            return Err("a program failed".into());
        }
    }
    records::each_once(
        records::numbers(&records::raw_contents(&path)?)?,
        1000 + 5 * each,
    )
}

/// With a helper process that is not preloaded: both see what the other finished, at once.
fn coherence(st: &Stage) -> Result<(), String> {
    let path = st.path("coherence");
    records::make(&path, 10_000)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let mut model = records::raw_contents(&path)?;
    let mut helper = Helper::start().map_err(|e| e.to_string())?;
    let mut rng = Rng::new(st.seed);
    let mut buf = vec![0u8; 9000];
    for i in 0..st.rounds {
        let at = rng.below(model.len() as u64 - 9000) as usize;
        let len = rng.range(1, 9000) as usize;
        let seed = rng.next();
        let bytes = outside::bytes(seed, len);
        if rng.chance(50) {
            let kind = rng.pick(&[outside::OVERWRITE, outside::STORE]);
            let act = Act {
                kind,
                pos: at as i64,
                len: len as i64,
                seed,
            };
            helper.act(&path, act).map_err(|e| e.to_string())?;
        } else {
            W.pwrite(fd, bytes.as_ptr(), len, at as i64, 0);
        }
        model[at..at + len].copy_from_slice(&bytes);
        let from = at.saturating_sub(rng.below(500) as usize);
        let n = W.pread(fd, buf.as_mut_ptr(), len, from as i64, 1);
        if n != len as i64 {
            return Err(format!("round {i}: pread {n} of {len}"));
        }
        same_bytes(&format!("round {i}"), &buf[..len], &model[from..from + len])?;
    }
    helper.stop();
    W.close(fd);
    same_bytes("afterwards", &records::raw_contents(&path)?, &model)
}

fn child_overwrites(st: &Stage) -> Result<(), String> {
    let path = st.path("child-overwrites");
    records::make(&path, 4000)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let before = Way::Raw.stat(-1, &path, 1).1.mtime;
    std::thread::sleep(std::time::Duration::from_millis(12));
    let child = in_child(|| {
        for i in 0..4000u64 {
            let r = records::record(9_000_000 + i);
            let n = W.pwrite(fd, r.as_ptr(), RECORD, i as i64 * 64, 0);
            if n != RECORD as i64 {
                return Err(format!("pwrite: {n}"));
            }
        }
        Ok(())
    });
    joined(child)?;
    let after = Way::Raw.stat(-1, &path, 1).1.mtime;
    let own = records::numbers(&records::raw_contents(&path)?)?;
    if !own.iter().copied().eq(9_000_000..9_004_000) {
        return Err("the child's overwrites are not all there".into());
    }
    let mut buf = vec![0u8; 4000 * RECORD];
    W.pread(fd, buf.as_mut_ptr(), buf.len(), 0, 0);
    W.close(fd);
    same_bytes("the parent's view", &buf, &records::raw_contents(&path)?)?;
    if after == before {
        Err("the mtime stood still".into())
    } else {
        Ok(())
    }
}

fn killed(st: &Stage) -> Result<(), String> {
    let path = st.path("killed");
    let mut rng = Rng::new(st.seed);
    for round in 0..(st.rounds / 100).clamp(2, 8) {
        records::make(&path, 8000)?;
        let p = pipe();
        let child = in_child(|| {
            let fd = records::open_warm(&path, libc::O_RDWR)?;
            for i in 0..1_000_000u64 {
                let slot = i % 12_000;
                let r = records::record(i + 1_000_000);
                W.pwrite(fd, r.as_ptr(), RECORD, slot as i64 * 64, 0);
                raw_write(p[1], &i.to_le_bytes());
            }
            Ok(())
        });
        raw_close(p[1]);
        let stop = rng.range(1, (st.rounds as u64 * 8).clamp(2, 20_000));
        let mut last = [0u8; 8];
        for _ in 0..stop {
            if raw_read(p[0], &mut last) != 8 {
                return Err("the child stopped early".into());
            }
        }
        kill(child);
        wait_for(child);
        // What was reported before it died counts, too.
        let rest = collect(p[0]);
        raw_close(p[0]);
        let acknowledged = rest.last().copied().unwrap_or(u64::from_le_bytes(last));
        let seen = records::raw_contents(&path)?;
        for i in acknowledged.saturating_sub(11_999)..=acknowledged {
            let at = (i % 12_000) as usize * RECORD;
            let got = records::number_of(&seen[at..at + RECORD]);
            // The one after the last acknowledged may have replaced it.
            let fine = matches!(got, Ok(n) if n == i + 1_000_000 || n == acknowledged + 1_000_001);
            let under_way = got.is_err() && (acknowledged + 1) % 12_000 == i % 12_000;
            if !(fine || under_way) {
                return Err(format!(
                    "round {round}: record {i} of {acknowledged}: {got:?}"
                ));
            }
        }
    }
    Ok(())
}

fn child_reopens(st: &Stage) -> Result<(), String> {
    let (one, two) = (st.path("reopen1"), st.path("reopen2"));
    records::make(&one, 3000)?;
    let fd = records::open_warm(&one, libc::O_RDWR)?;
    let swapped: Vec<u8> = (0..3000u64)
        .flat_map(|n| records::record(n + 50_000))
        .collect();
    let new = W.open(&two, libc::O_RDWR | libc::O_CREAT, 0o644, 0) as i32;
    outside::write_all(W, new, &swapped);
    W.close(new);
    let child = in_child(|| {
        W.close(fd);
        let again = records::open_warm(&two, libc::O_RDWR)?;
        if again != fd {
            return Err(format!("descriptor {again} instead of {fd}"));
        }
        let mut r = [0u8; RECORD];
        for i in 0..3000u64 {
            W.pread(again, r.as_mut_ptr(), RECORD, i as i64 * 64, 0);
            let n = records::number_of(&r)?;
            if n != i + 50_000 {
                return Err(format!("record {n} instead of {}", i + 50_000));
            }
        }
        Ok(())
    });
    joined(child)?;
    let mut buf = vec![0u8; 20_000];
    let n = W.read(fd, buf.as_mut_ptr(), buf.len());
    W.close(fd);
    check_bytes(&buf[..n.max(0) as usize], 0)
}

/// Threads overwrite and read while another one forks children that do the same.
fn fork_among_threads(st: &Stage) -> Result<(), String> {
    let path = st.path("among");
    records::make(&path, 8000)?;
    let fd = records::open_warm(&path, libc::O_RDWR)?;
    let done = std::sync::atomic::AtomicBool::new(false);
    let busy = |t: u64| -> Result<(), String> {
        let mut rng = Rng::new(st.seed ^ t);
        let mut r = [0u8; RECORD];
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            let i = rng.below(8000);
            if rng.chance(30) {
                let r = records::record(i);
                W.pwrite(fd, r.as_ptr(), RECORD, i as i64 * 64, 0);
            }
            let n = W.pread(fd, r.as_mut_ptr(), RECORD, i as i64 * 64, 0);
            if n != 64 || records::number_of(&r)? != i {
                return Err(format!("record {i}: {n}"));
            }
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..2).map(|t| s.spawn(move || busy(t))).collect();
        let mut result = Ok(());
        for round in 0..(st.rounds / 40).clamp(4, 30) as u64 {
            let child = in_child(|| {
                // After a fork among threads only calls that need no lock of this process.
                let mut r = [0u8; RECORD];
                for i in 0..200 {
                    let i = (i * 37 + round) % 8000;
                    W.pread(fd, r.as_mut_ptr(), RECORD, i as i64 * 64, 0);
                    if r != records::record(i) {
                        crate::process::exit_now(3);
                    }
                    W.pwrite(fd, r.as_ptr(), RECORD, i as i64 * 64, 0);
                }
                Ok(())
            });
            result = result.and(joined(child));
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        for t in threads {
            result = result.and(t.join().unwrap_or_else(|_| Err("a thread panicked".into())));
        }
        W.close(fd);
        result
    })
}
