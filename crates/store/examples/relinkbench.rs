//! What relinking costs and whether it is right, on the file system of a directory.
//!
//! `cargo run --release -p adit-store --example relinkbench -- COMMAND DIR`:
//!
//! - `bench`: medians of alternating rounds, each way of publishing runs of several lengths;
//! - `check`: contents, holes, sizes, times, mapped readers and readers in the middle; says what was
//!   relinked, and fails when bytes differ;
//! - `kill ROUNDS`: as `victim`, killed at random instants, and recovered;
//! - `victim`: writes and publishes for ever, and says on standard output what was acknowledged; as
//!   `victim DIR early` it says so before it is durable, which must be found out;
//! - `verify`: recovers, and compares with what a victim said, from standard input. A line `cut` says that
//!   what follows was said while the power was cut.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Runs without the preload.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adit_pool::layout::Geometry;
use adit_pool::{FileMedium, FileName, PoolFile};
use adit_store::staged::{
    KernelFile, Mode, Published, Relink, Scope, Stage, StagedFile, handle_of, open_by_name, recover,
};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode as FileMode, OFlags};

const PAGE: usize = 4096;
const POOL: u64 = 64 << 20;
/// Bytes of the file that a victim writes to.
const VICTIM: u64 = 8 << 20;

type Staged = StagedFile<FileMedium, KernelFile<OwnedFd>>;

/// A pool, and this process's seat at it.
struct Place {
    dir: PathBuf,
    pool: Arc<PoolFile>,
    stage: Arc<Stage<FileMedium>>,
}

impl Place {
    fn new(dir: &Path) -> Self {
        let path = dir.join("pool");
        let geometry = Geometry {
            max_chunks: 1024,
            ..Geometry::default()
        };
        let pool = if path.exists() {
            PoolFile::open(&path).expect("pool")
        } else {
            PoolFile::create(&path, POOL, geometry).expect("pool")
        };
        let stage = Stage::new(pool.attach().expect("attach"));
        Self {
            dir: dir.to_owned(),
            pool: Arc::new(pool),
            stage,
        }
    }

    fn staged(&self, name: &str, mode: Mode) -> Staged {
        let path = self.dir.join(name);
        let fd = opened(&path);
        let (handle_type, handle) = handle_of(&fd).expect("handle");
        let name = FileName {
            handle_type,
            handle,
            path: path.as_os_str().as_bytes().to_vec(),
            device: rustix::fs::fstat(&fd).expect("stat").st_dev,
        };
        let base = KernelFile::new(fd).expect("base");
        StagedFile::open(&self.stage, &name, base, mode).expect("stage")
    }

    /// Of any length, where the engine relinks at all.
    fn relink(&self) -> Option<Relink<KernelFile<OwnedFd>>> {
        let relink = Relink::from_pool(&self.pool, &self.stage)?;
        Some(relink.from_length(PAGE as u64))
    }

    /// Of any length, and on memory, too: whether it is worth it is for `bench` to say.
    fn relink_anywhere(&self) -> Relink<KernelFile<OwnedFd>> {
        let pool = Arc::clone(&self.pool);
        let open = move || KernelFile::new(pool.reopen()?);
        let relink = Relink::new(Arc::clone(self.stage.relinks()), open);
        relink.from_length(PAGE as u64)
    }
}

fn opened(path: &Path) -> OwnedFd {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let rights = FileMode::RUSR | FileMode::WUSR;
    rustix::fs::open(path.as_os_str().as_bytes(), flags, rights).expect("open")
}

/// A number that follows from another, and looks like none.
fn next(seed: &mut u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) ^ (*seed >> 17)
}

fn below(seed: &mut u64, limit: u64) -> usize {
    (next(seed) % limit) as usize
}

fn fresh(dir: &Path, name: &str) -> PathBuf {
    let dir = dir.join(format!("adit-relink-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("directory");
    dir
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let dir = PathBuf::from(args.next().expect("relinkbench COMMAND DIR"));
    match command.as_str() {
        "bench" => bench(&dir),
        "check" => check(&dir),
        "kill" => kill(&dir, args.next().map_or(10, |n| n.parse().expect("rounds"))),
        "victim" => victim(&dir, args.next().as_deref() == Some("early")),
        "verify" => verify(&dir),
        _ => panic!("bench, check, kill, victim or verify"),
    }
    ExitCode::SUCCESS
}

/// Random operations, compared with a plain vector; then a file whose readers are watched.
fn check(dir: &Path) {
    let dir = fresh(dir, "check");
    let place = Place::new(&dir);
    let mut done = Published::default();
    for seed in 1..=8 {
        add(&mut done, random_operations(&place, seed));
    }
    holes_and_times(&place, &mut done);
    mapped_readers(&place, &mut done);
    readers_in_the_middle(&place, &mut done);
    println!(
        "exchanged={} cloned={} copied={}",
        done.exchanged, done.cloned, done.copied
    );
    std::fs::remove_dir_all(&dir).expect("remove");
}

fn add(done: &mut Published, more: Published) {
    done.exchanged += more.exchanged;
    done.cloned += more.cloned;
    done.copied += more.copied;
}

fn random_operations(place: &Place, seed: u64) -> Published {
    let mut rng = seed;
    let name = format!("random-{seed}");
    let staged = place
        .staged(&name, Mode::Atomic)
        .with_relink(place.relink());
    let mut model: Vec<u8> = Vec::new();
    let mut done = Published::default();
    for nth in 0..60_u64 {
        let pages = [1, 3, 160, 300, 700][below(&mut rng, 5)];
        let ragged = if below(&mut rng, 3) == 0 { 77 } else { 0 };
        let len = pages * PAGE + ragged;
        match below(&mut rng, 8) {
            0 => {
                let size = below(&mut rng, model.len() as u64 + 100_000);
                staged.truncate(size as u64).expect("truncate");
                model.resize(size, 0);
            }
            1 => add(
                &mut done,
                staged.publish(Scope::Committed).expect("publish"),
            ),
            2 => add(
                &mut done,
                staged.publish(Scope::Everything).expect("publish"),
            ),
            which => {
                let page = below(&mut rng, 2000) * PAGE;
                let at = if which < 5 { model.len() } else { page };
                let bytes: Vec<u8> = (0..len)
                    .map(|i| (nth as usize * 7 + i / 64) as u8)
                    .collect();
                staged.write_at(at as u64, &bytes).expect("write");
                if model.len() < at + len {
                    model.resize(at + len, 0);
                }
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        if below(&mut rng, 3) == 0 {
            staged.fsync().expect("fsync");
        }
        let mut bytes = vec![0; model.len()];
        assert_eq!(staged.read_at(0, &mut bytes).expect("read"), model.len());
        assert!(
            bytes == model,
            "seed {seed}, operation {nth}: a read differs"
        );
    }
    add(&mut done, staged.close().expect("close"));
    let now = std::fs::read(place.dir.join(&name)).expect("read");
    assert_eq!(now.len(), model.len(), "seed {seed}: the size differs");
    assert!(now == model, "seed {seed}: the file differs");
    done
}

fn holes_and_times(place: &Place, done: &mut Published) {
    let staged = place
        .staged("holes", Mode::Strict)
        .with_relink(place.relink());
    let (run, far) = (vec![5; 2 << 20], 64 << 20);
    staged.write_at(far, &run).expect("write");
    let written = staged.last_write().expect("time").expect("written");
    add(done, staged.close().expect("close"));
    let stat = std::fs::metadata(place.dir.join("holes")).expect("stat");
    assert_eq!(stat.len(), far + run.len() as u64);
    assert!(stat.blocks() * 512 < 16 << 20, "the hole has blocks");
    assert_eq!(
        (stat.mtime(), stat.mtime_nsec()),
        (written.tv_sec, written.tv_nsec)
    );
}

fn mapped_readers(place: &Place, done: &mut Published) {
    let len = 2 << 20;
    let path = place.dir.join("mapped");
    std::fs::write(&path, vec![1; len]).expect("write");
    let file = opened(&path);
    let map = adit_pmem::map::Mapping::new(&file, 0, len, adit_pmem::map::Access::Read, false);
    let map = map.expect("map");
    let seen = |at: usize| {
        let mut byte = [0];
        let from = map.base().wrapping_add(at);
        // SAFETY: the address lies in the mapping, and the copy is guarded.
        #[allow(unsafe_code, reason = "a mapped reader is the point")]
        unsafe { adit_pmem::copy::guarded_copy(byte.as_mut_ptr(), from, 1) }.expect("read");
        byte[0]
    };
    assert_eq!((seen(0), seen(len - 1)), (1, 1));
    let staged = place
        .staged("mapped", Mode::Strict)
        .with_relink(place.relink());
    for value in 2..6 {
        staged.write_at(0, &vec![value; len]).expect("write");
        add(done, staged.publish(Scope::Everything).expect("publish"));
        for at in (0..len).step_by(PAGE) {
            assert_eq!(seen(at), value, "a mapped reader sees old bytes at {at}");
        }
    }
    add(done, staged.close().expect("close"));
}

/// One process overwrites, another publishes, and threads read all the while.
fn readers_in_the_middle(place: &Place, done: &mut Published) {
    let len = 1 << 20;
    let staged = place.staged("read", Mode::Strict);
    staged.write_at(0, &vec![1; len]).expect("write");
    let other = Place::new(&place.dir);
    let base = KernelFile::new(opened(&place.dir.join("read")));
    let theirs = StagedFile::open_entry(
        &other.stage,
        staged.file(),
        base.expect("base"),
        Mode::Strict,
    )
    .expect("stage")
    .with_relink(other.relink());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut bytes = vec![0; len];
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(staged.read_at(0, &mut bytes).expect("read"), len);
                    let torn = bytes.iter().any(|byte| *byte != bytes[0]);
                    assert!(!torn && bytes[0] >= last, "a read is torn, or goes back");
                    last = bytes[0];
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(2);
        for value in 2..200 {
            staged.write_at(0, &vec![value; len]).expect("write");
            add(done, theirs.publish(Scope::Everything).expect("publish"));
            if Instant::now() > end {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(theirs);
    add(done, staged.close().expect("close"));
}

/// Writes runs whose pages each carry a number, says when a run is durable, and publishes. One that says
/// so early takes its time, and publishes seldom: it is wrong at nearly any instant.
fn victim(dir: &Path, early: bool) {
    let place = Place::new(dir);
    let (mode, period) = if early {
        (Mode::Atomic, 32)
    } else {
        (Mode::Strict, 3)
    };
    let staged = place.staged("victim", mode).with_relink(place.relink());
    let mut out = std::io::stdout();
    let mut seed = u64::from(std::process::id());
    for number in 1_u64.. {
        let pages = 130 + below(&mut seed, 130) as u64;
        let first = below(&mut seed, VICTIM / PAGE as u64 - pages) as u64;
        say(&mut out, "begin", number, first, pages);
        let run: Vec<u8> = (0..pages).flat_map(|_| page_of(number)).collect();
        if staged.write_at(first * PAGE as u64, &run).is_err() {
            return;
        }
        say(&mut out, "done", number, first, pages);
        if early {
            std::thread::sleep(Duration::from_millis(5));
        }
        if number % period == 0 {
            let Ok(done) = staged.publish(Scope::Everything) else {
                return;
            };
            say(&mut out, "relinked", done.exchanged + done.cloned, 0, 0);
        }
    }
}

fn say(out: &mut std::io::Stdout, what: &str, number: u64, first: u64, pages: u64) {
    let _ = writeln!(out, "{what} {number} {first} {pages}");
    let _ = out.flush();
}

fn page_of(number: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    page.chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    page
}

/// A run: its number, its first page, how many.
type Run = (u64, u64, u64);

/// What a victim said.
#[derive(Default)]
struct Said {
    /// Runs that were acknowledged, in order.
    done: Vec<Run>,
    /// Runs that may be there or not.
    open: Vec<Run>,
    /// Bytes relinked.
    relinked: u64,
}

impl Said {
    /// What is said from the cut on may have happened or not, and so may what was begun before it.
    fn of(text: &str) -> Self {
        let mut said = Self::default();
        let mut lines = text.lines();
        for line in lines.by_ref().take_while(|line| *line != "cut") {
            match event(line) {
                Some(("begin", run)) => said.open = vec![run],
                Some(("done", run)) => {
                    said.open.clear();
                    said.done.push(run);
                }
                Some((_, run)) => said.relinked += run.0,
                None => {}
            }
        }
        let begun = |line| event(line).and_then(|(what, run)| (what == "begin").then_some(run));
        said.open.extend(lines.filter_map(begun));
        said
    }

    fn allows(&self, nth: u64, page: &[u8; PAGE]) -> bool {
        let covers = |run: &&Run| (run.1..run.1 + run.2).contains(&nth);
        let must = self.done.iter().rev().find(covers).map_or(0, |run| run.0);
        let mut may = self.open.iter().filter(covers).map(|run| run.0);
        *page == page_of(must) || may.any(|number| *page == page_of(number))
    }
}

/// One line of a victim's.
fn event(line: &str) -> Option<(&str, Run)> {
    let mut words = line.split(' ');
    let what = words.next()?;
    let mut number = || words.next()?.parse().ok();
    Some((what, (number()?, number()?, number()?)))
}

/// Recovers the pool, and compares the file with what its victim said.
fn verified(dir: &Path, said: &Said) {
    let pool = PoolFile::open(&dir.join("pool")).expect("pool");
    let attachment = pool.attach().expect("attach");
    let report = recover(&attachment, &open_by_name).expect("recover");
    assert!(report.kept.is_empty(), "kept: {:?}", report.kept);
    attachment.detach().expect("detach");
    let file = File::open(dir.join("victim")).expect("open");
    let size = file.metadata().expect("stat").len();
    for nth in 0..VICTIM / PAGE as u64 {
        let at = nth * PAGE as u64;
        let mut page = [0; PAGE];
        if at < size {
            file.read_exact_at(&mut page, at).expect("read");
        }
        let right = said.allows(nth, &page);
        assert!(right, "page {nth} is not what it was: {:?}", &page[..8]);
    }
}

fn verify(dir: &Path) {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("read");
    let said = Said::of(&text);
    verified(dir, &said);
    println!("relinked={}", said.relinked);
}

fn kill(dir: &Path, rounds: u64) {
    let mut seed = 7;
    let mut relinked = 0;
    for _ in 0..rounds {
        let dir = fresh(dir, "kill");
        drop(Place::new(&dir));
        let mut command = Command::new(std::env::current_exe().expect("self"));
        command.arg("victim").arg(&dir).stdout(Stdio::piped());
        let mut child = command.spawn().expect("spawn");
        let mut out = BufReader::new(child.stdout.take().expect("out")).lines();
        let mut text = String::new();
        while !text.contains("done") {
            text += &out.next().expect("a line").expect("read");
            text.push('\n');
        }
        let reader = std::thread::spawn(move || {
            let rest: Vec<String> = out.map_while(Result::ok).collect();
            text + &rest.join("\n")
        });
        std::thread::sleep(Duration::from_micros(100_000 + next(&mut seed) % 400_000));
        child.kill().expect("kill");
        child.wait().expect("wait");
        let text = reader.join().expect("reader");
        let said = Said::of(&text);
        verified(&dir, &said);
        relinked += said.relinked;
        std::fs::remove_dir_all(&dir).expect("remove");
    }
    println!("rounds={rounds} relinked={relinked}");
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Copy,
    Exchange,
    Clone,
}

fn bench(dir: &Path) {
    println!("us per run, medians: committed to the pool + published = both; and against a copy");
    for overwrite in [false, true] {
        for kb in [512, 1024, 2048, 4096, 8192, 16384, 24576] {
            let ways = [Way::Copy, Way::Exchange, Way::Clone];
            let mut all: Vec<(Way, Vec<f64>, Vec<f64>)> = Vec::new();
            let mut benches: Vec<_> = ways
                .map(|way| (way, Bench::new(dir, way, overwrite)))
                .into();
            benches
                .iter()
                .for_each(|(way, _)| all.push((*way, Vec::new(), Vec::new())));
            for round in 0..16 {
                for ((_, bench), (_, staged, published)) in benches.iter_mut().zip(&mut all) {
                    let (one, two) = bench.round(kb << 10, round);
                    // The pool is used a second time from the middle on.
                    if round >= 4 {
                        staged.push(one);
                        published.push(two);
                    }
                }
            }
            let mut base = 0.0;
            for ((way, bench), (_, mut staged, mut published)) in benches.into_iter().zip(all) {
                if !bench.went(way) {
                    continue;
                }
                let (one, two) = (median(&mut staged), median(&mut published));
                if way == Way::Copy {
                    base = one + two;
                }
                let what = if overwrite { "overwrite" } else { "append" };
                println!(
                    "{what:9} {kb:5} KB {:9} {one:7.0} + {two:7.0} = {:7.0}  {:.2}",
                    format!("{way:?}"),
                    one + two,
                    (one + two) / base
                );
            }
        }
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Bench {
    place: Place,
    staged: Option<Staged>,
    overwrite: bool,
    done: Published,
}

impl Bench {
    fn new(dir: &Path, way: Way, overwrite: bool) -> Self {
        let place = Place::new(&fresh(dir, &format!("{way:?}")));
        if overwrite {
            std::fs::write(place.dir.join("file"), vec![1; 32 << 20]).expect("write");
        }
        if way == Way::Clone {
            place.stage.relinks().never_exchange();
        }
        let relink = (way != Way::Copy).then(|| place.relink_anywhere());
        let staged = place.staged("file", Mode::Atomic).with_relink(relink);
        Self {
            place,
            staged: Some(staged),
            overwrite,
            done: Published::default(),
        }
    }

    /// Microseconds to commit a run to the pool, and to publish it.
    fn round(&mut self, len: usize, round: u64) -> (f64, f64) {
        let staged = self.staged.as_ref().expect("open");
        let bytes = vec![round as u8 + 1; len];
        if !self.overwrite {
            staged.truncate(0).expect("truncate");
            staged.publish(Scope::Everything).expect("publish");
        }
        let at = 0;
        let start = Instant::now();
        for (nth, part) in bytes.chunks(64 << 10).enumerate() {
            staged
                .write_at(at + (nth * (64 << 10)) as u64, part)
                .expect("write");
        }
        staged.fsync().expect("fsync");
        let committed = start.elapsed();
        add(
            &mut self.done,
            staged.publish(Scope::Committed).expect("publish"),
        );
        let all = start.elapsed();
        (
            committed.as_secs_f64() * 1e6,
            (all - committed).as_secs_f64() * 1e6,
        )
    }

    fn went(&self, way: Way) -> bool {
        match way {
            Way::Copy => true,
            Way::Exchange => self.done.exchanged > 0,
            Way::Clone => self.done.cloned > 0,
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(self.staged.take());
        let _ = std::fs::remove_dir_all(&self.place.dir);
    }
}
