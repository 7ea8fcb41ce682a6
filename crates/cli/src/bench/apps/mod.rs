//! `adit bench apps`: whole programs, plainly and in each mode.
//!
//! The sides of a load run in turn, each beginning with the same files. After every run programs of
//! the kernel's side look at what is left, which must be whole, and the same for all sides where the
//! load says what it is: a fast side that loses something is no result.

mod redis;
mod side;
mod sqlite;
mod ycsb;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_pmem::MediumKind as Medium;

use super::cases::{Goal, of_kernel};
use super::report::{Report, Row};
use super::serves;
use super::worker::{Measured, whose};
use crate::args::{BenchArgs, Mode};
use crate::doctor;
use crate::failure::{Failure, said, words};
use crate::janitor::Janitor;
use crate::output::Progress;
use side::Side;

/// What one run of a load gave.
pub(super) struct Ran {
    /// Nanoseconds per operation, one for each row.
    times: Vec<f64>,
    /// What it left, in words that are the same for all sides.
    left: String,
}

/// Whether a load can be run here.
enum Ready {
    Yes,
    /// What has to be installed first.
    Missing(&'static str),
}

/// A program and what it is made to do.
trait Load {
    /// What it is called.
    fn name(&self) -> &'static str;
    /// What is timed.
    fn rows(&self) -> &'static [&'static str];
    /// Whether it waits for the medium again and again.
    fn waits(&self) -> bool;
    /// Whether the kernel's side does what the mode does. A program that does not sync is no measure for
    /// one whose every write waits for a disk.
    fn is_comparable(&self, mode: Mode, medium: Medium) -> bool {
        let each_waits = matches!(mode, Mode::Sync | Mode::Strict) && medium == Medium::Cached;
        self.waits() || !each_waits
    }
    /// Makes what all runs begin with.
    fn prepare(&mut self, room: &Room) -> Result<Ready, String>;
    /// Runs it once in an empty directory.
    fn run(&self, side: &Side, work: &Path) -> Result<Ran, String>;
}

fn loads() -> Vec<Box<dyn Load>> {
    vec![
        Box::new(sqlite::Sqlite::new(sqlite::Journal::Rollback)),
        Box::new(sqlite::Sqlite::new(sqlite::Journal::WriteAhead)),
        Box::new(ycsb::Ycsb::new(false)),
        Box::new(ycsb::Ycsb::new(true)),
        Box::new(redis::Redis::new(1)),
        Box::new(redis::Redis::new(50)),
    ]
}

/// A directory for everything, and what waiting for the medium costs in it.
struct Room {
    path: PathBuf,
    _janitor: Janitor,
    medium: Medium,
    sync: Duration,
}

/// How long a run should take that waits all the time.
const RUN: Duration = Duration::from_millis(1200);

impl Room {
    fn new(dir: &Path) -> Result<Self, String> {
        let path = dir.join(format!("adit-bench-apps-{}", std::process::id()));
        // Before there is a directory: who is killed right after making it leaves none.
        let janitor = Janitor::of(&path).map_err(|e| format!("sh: {}", said(&e)))?;
        if let Err(e) = std::fs::create_dir(&path) {
            janitor.leave();
            return Err(format!("{}: {}", path.display(), said(&e)));
        }
        let mut room = Self {
            _janitor: janitor,
            path,
            medium: doctor::medium_of(dir),
            sync: Duration::ZERO,
        };
        room.sync = room.time_of_sync().map_err(|e| said(&e))?;
        Ok(room)
    }

    fn time_of_sync(&self) -> std::io::Result<Duration> {
        use std::io::Write;
        const TRIES: usize = 9;
        let mut file = std::fs::File::create(self.path.join("sync"))?;
        let mut times = Vec::new();
        for _ in 0..TRIES {
            let begun = Instant::now();
            file.write_all(&[7; 4096])?;
            file.sync_data()?;
            times.push(begun.elapsed());
        }
        times.sort();
        Ok(times[TRIES / 2])
    }

    /// How many operations that sync so often each fit into a run.
    fn operations(&self, syncs: u32, least: usize, most: usize) -> usize {
        let each = (self.sync * syncs).as_nanos().max(1);
        let fit = usize::try_from(RUN.as_nanos() / each).unwrap_or(most);
        fit.clamp(least, most)
    }

    /// Has the file system write what the side before has left to it.
    fn settle(&self) -> Result<(), String> {
        use rustix::fs::{Mode, OFlags};
        let path = self.path.as_os_str().as_encoded_bytes();
        let room = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        room.and_then(rustix::fs::syncfs).map_err(words)
    }

    /// An empty directory, of the same name for every side.
    fn work(&self) -> Result<PathBuf, String> {
        let work = self.path.join("work");
        if work.exists() {
            std::fs::remove_dir_all(&work)
                .map_err(|e| format!("{}: {}", work.display(), said(&e)))?;
        }
        std::fs::create_dir(&work).map_err(|e| format!("{}: {}", work.display(), said(&e)))?;
        Ok(work)
    }
}

/// The same numbers for every side.
struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Measures everything that is installed.
pub(super) fn measure(dir: &Path, args: &BenchArgs, report: &mut Report) -> Result<(), Failure> {
    let rounds = args.rounds;
    let mut loads = chosen(&args.only)?;
    let room =
        Room::new(dir).map_err(|why| Failure::new(why).next("name a directory with --dir"))?;
    report.medium = room.medium.name().to_owned();
    report.library_active = serves(Mode::Posix, None)?;
    if !report.library_active {
        return Ok(());
    }
    check_staging(&room)?;
    let progress = Progress::new();
    let each = (WARM_UP + rounds) as usize;
    let all = loads.len() * each;
    for (i, load) in loads.iter_mut().enumerate() {
        let name = load.name();
        let tick = |round: u32| progress.at(i * each + round as usize, all, name);
        match load.prepare(&room) {
            Ok(Ready::Missing(what)) => report.skipped.push(format!("{name}: {what} is missing")),
            Err(why) => report.failed.push(format!("{name}: {why}")),
            Ok(Ready::Yes) => {
                let mut lanes = lanes()?;
                lanes.retain(|lane| {
                    lane.side
                        .mode
                        .is_none_or(|mode| load.is_comparable(mode, room.medium))
                });
                alternate(load.as_ref(), &room, rounds, &mut lanes, &tick);
                tell(load.as_ref(), room.medium, &lanes, report);
            }
        }
    }
    Ok(())
}

/// The loads whose name contains one of these words; all of them without any.
fn chosen(only: &[String]) -> Result<Vec<Box<dyn Load>>, Failure> {
    let wanted = |name: &str| only.iter().any(|word| name.contains(word));
    let mut chosen = loads();
    chosen.retain(|load| only.is_empty() || wanted(load.name()));
    if chosen.is_empty() {
        let names: Vec<_> = loads().iter().map(|load| load.name()).collect();
        return Err(
            Failure::new(format!("no program is called {}", only.join(" or ")))
                .next(format!("choose from: {}", names.join("; "))),
        );
    }
    Ok(chosen)
}

/// Where nothing is staged the kernel would be compared with itself.
fn check_staging(room: &Room) -> Result<(), Failure> {
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Posix) {
        if !serves(mode, Some(&room.path))? {
            let what = format!("mode {} stages no file in this directory", mode.name());
            return Err(Failure::new(what).next("adit doctor DIR says what it needs"));
        }
    }
    Ok(())
}

/// A side and what it has done so far.
struct Lane {
    side: Side,
    /// For each row, one time for each round.
    times: Vec<Vec<f64>>,
    failed: Option<String>,
}

/// The kernel's lane comes first.
fn lanes() -> Result<Vec<Lane>, Failure> {
    let modes = Mode::ALL.iter().copied().map(Some);
    std::iter::once(None)
        .chain(modes)
        .map(|mode| {
            Ok(Lane {
                side: Side::new(mode)?,
                times: Vec::new(),
                failed: None,
            })
        })
        .collect()
}

/// Rounds before the first one that counts.
const WARM_UP: u32 = 1;

/// Runs the sides in turn, as [`whose`] says, each beginning with a disk that nothing waits for. A side that fails is not run
/// again, and without the kernel's there is nothing to compare.
fn alternate(load: &dyn Load, room: &Room, rounds: u32, lanes: &mut [Lane], tick: &dyn Fn(u32)) {
    // The first run of all is the kernel's.
    let mut expected = None;
    for round in 0..WARM_UP + rounds {
        tick(round);
        for turn in 0..lanes.len() {
            if lanes[0].failed.is_some() {
                return;
            }
            let lane = whose(turn, round, lanes.len());
            let lane = &mut lanes[lane];
            if lane.failed.is_some() {
                continue;
            }
            let ran = room.work().and_then(|work| {
                room.settle()?;
                load.run(&lane.side, &work)
            });
            match ran.and_then(|ran| same(ran, &mut expected)) {
                Ok(times) if round >= WARM_UP => lane.keep(&times),
                Ok(_) => {}
                Err(why) => lane.failed = Some(why),
            }
        }
    }
}

/// The times of a run that left what every run leaves.
fn same(ran: Ran, expected: &mut Option<String>) -> Result<Vec<f64>, String> {
    let expected = expected.get_or_insert_with(|| ran.left.clone());
    if *expected == ran.left {
        return Ok(ran.times);
    }
    Err(format!(
        "it leaves {:?} where the kernel's side left {expected:?}",
        ran.left
    ))
}

impl Lane {
    fn keep(&mut self, times: &[f64]) {
        self.times.resize(times.len(), Vec::new());
        for (row, time) in self.times.iter_mut().zip(times) {
            row.push(*time);
        }
    }

    fn name(&self) -> &'static str {
        self.side.mode.map_or("plainly", Mode::name)
    }
}

/// One row for each mode and thing timed, and what went wrong.
fn tell(load: &dyn Load, medium: Medium, lanes: &[Lane], report: &mut Report) {
    for lane in lanes {
        if let Some(why) = &lane.failed {
            let what = format!("{}, {}: {why}", load.name(), lane.name());
            report.failed.push(what);
        }
    }
    let (kernel, modes) = lanes.split_first().expect("the kernel's lane");
    for (i, row) in load.rows().iter().enumerate() {
        for lane in modes.iter().filter(|lane| lane.failed.is_none()) {
            let (Some(adit), Some(kernel)) = (lane.times.get(i), kernel.times.get(i)) else {
                continue;
            };
            let mode = lane.side.mode.unwrap_or(Mode::Posix);
            report.rows.extend(Row::new(Measured {
                name: format!("{}: {row}, {}", load.name(), mode.name()),
                adit: adit.clone(),
                kernel: kernel.clone(),
                raw: Vec::new(),
                raw_is: String::new(),
                goal: goal(load, row, mode, medium),
            }));
        }
    }
}

/// What mostly writes. The others gain by being read fast, if at all.
const WRITES: [&str; 5] = ["transaction", "load", "A", "F", "SET"];

/// On a disk, fewer waits; on DAX what SplitFS reports against ext4-DAX in mode posix. Memory has no
/// published figure.
fn goal(load: &dyn Load, row: &str, mode: Mode, medium: Medium) -> Option<Goal> {
    let waits = load.waits() && mode != Mode::Posix && WRITES.contains(&row);
    match (medium, row) {
        (Medium::Cached, _) if waits => of_kernel(1.0 / 1.4),
        (Medium::Dax, "load") => of_kernel(1.0 / 1.89),
        (Medium::Dax, "A") => of_kernel(1.0 / 2.0),
        (Medium::Dax, "SET") => of_kernel(1.0 / 1.27),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load that does what its test wants of it.
    struct Planted(fn(&Side) -> Result<Ran, String>);

    impl Load for Planted {
        fn name(&self) -> &'static str {
            "planted"
        }
        fn rows(&self) -> &'static [&'static str] {
            &["transaction"]
        }
        fn waits(&self) -> bool {
            true
        }
        fn prepare(&mut self, _: &Room) -> Result<Ready, String> {
            Ok(Ready::Yes)
        }
        fn run(&self, side: &Side, _: &Path) -> Result<Ran, String> {
            self.0(side)
        }
    }

    fn ran(time: f64, left: &str) -> Result<Ran, String> {
        Ok(Ran {
            times: vec![time],
            left: left.into(),
        })
    }

    fn report_of(name: &str, behaviour: fn(&Side) -> Result<Ran, String>) -> Report {
        let dir = std::env::temp_dir().join(format!("adit-apps-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let mut report = Report::default();
        {
            let room = Room::new(&dir).unwrap();
            let mut lanes = lanes().unwrap();
            let load = Planted(behaviour);
            alternate(&load, &room, 5, &mut lanes, &|_| {});
            tell(&load, Medium::Cached, &lanes, &mut report);
        }
        // Fails when something was left behind.
        std::fs::remove_dir(&dir).unwrap();
        report
    }

    #[test]
    fn what_somebody_else_has_made_stays() {
        let dir = std::env::temp_dir().join(format!("adit-apps-there-{}", std::process::id()));
        let there = dir.join(format!("adit-bench-apps-{}", std::process::id()));
        std::fs::create_dir_all(there.join("kept")).unwrap();
        let refused = Room::new(&dir).err().expect("it is there already");
        assert!(refused.contains("exists"), "{refused}");
        std::fs::remove_dir(there.join("kept")).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn sides_that_agree_are_compared() {
        let report = report_of("agree", |side| {
            ran(if side.mode.is_none() { 140.0 } else { 98.0 }, "all")
        });
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        assert_eq!(report.rows.len(), Mode::ALL.len());
        assert!(report.rows.iter().all(|row| row.adit_to_kernel == 0.7));
        let met: Vec<_> = report.rows.iter().map(|row| row.met).collect();
        assert_eq!(met, [None, Some(true), Some(true), Some(true)]);
    }

    #[test]
    fn a_disk_is_waited_for_on_both_sides_or_on_none() {
        let comparable = |sync, medium| {
            let load = ycsb::Ycsb::new(sync);
            let modes = Mode::ALL
                .iter()
                .filter(|mode| load.is_comparable(**mode, medium));
            modes.count()
        };
        assert_eq!(comparable(true, Medium::Cached), 4);
        assert_eq!(comparable(false, Medium::Cached), 2);
        assert_eq!(comparable(false, Medium::Ram), 4);
    }

    #[test]
    fn a_side_that_loses_something_has_no_numbers() {
        let report = report_of("loses", |side| match side.mode {
            Some(Mode::Atomic) => ran(1.0, "less"),
            Some(Mode::Sync) => Err("no luck".into()),
            _ => ran(100.0, "all"),
        });
        assert_eq!(report.rows.len(), 2, "{:?}", report.rows);
        assert_eq!(report.failed.len(), 2, "{:?}", report.failed);
        assert!(report.failed[0].contains("sync: no luck"));
        assert!(report.failed[1].contains("atomic") && report.failed[1].contains("less"));
    }

    #[test]
    fn nothing_is_compared_with_a_kernel_that_failed() {
        let report = report_of("kernel", |side| {
            if side.mode.is_none() {
                Err("no".into())
            } else {
                ran(1.0, "all")
            }
        });
        assert!(report.rows.is_empty());
        assert_eq!(report.failed, ["planted, plainly: no"]);
    }
}
