//! Runs a workload, crashes it at every point in every affordable way, and asks the judge.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::choice::{Choice, Effort, choices};
use crate::rng::Rng;
use crate::world::{History, Snapshot, World};

/// What to enumerate, and how much of it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names the enumeration in its replay strings. Letters, digits, `-` and `_`.
    pub name: String,
    /// Bytes of the simulated medium.
    pub size: u64,
    /// Where all chance comes from.
    pub seed: u64,
    /// All combinations of versions are tried when a crash point has no more than this many.
    pub exhaustive: u64,
    /// Otherwise this many random subsets of lines.
    pub samples: u64,
    /// Images with torn lines, at each crash point.
    pub torn: u64,
    /// Whether the power fails.
    pub power_cuts: bool,
    /// Whether all processes die at each crash point, too.
    pub kills: bool,
    /// Crash points tried inside the recovery of one image (0: none).
    pub nested_points: u64,
    /// Images at each of them.
    pub nested_images: u64,
    /// Images in all, nested ones included.
    pub max_states: u64,
    /// Images tried at the same time (1 or 2).
    pub threads: usize,
}

impl Config {
    /// The usual effort: a few seconds for a small structure.
    pub fn new(name: &str, size: u64) -> Self {
        Self {
            name: name.to_owned(),
            size,
            seed: 1,
            exhaustive: 256,
            samples: 24,
            torn: 12,
            power_cuts: true,
            kills: true,
            nested_points: 4,
            nested_images: 4,
            max_states: 200_000,
            threads: 1,
        }
    }
}

/// What an enumeration that found nothing has tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Crash points of the workload.
    pub points: u64,
    /// Of these, how many the budget left out.
    pub points_skipped: u64,
    /// Images judged after one crash.
    pub states: u64,
    /// Of these, how many the power left, and how many of those with torn pieces; the others are of killed processes.
    pub power_cuts: u64,
    /// See `power_cuts`.
    pub torn: u64,
    /// Images judged after a second crash inside recovery.
    pub nested_states: u64,
    /// Images not judged because an equal one had been, with the same history.
    pub repeated: u64,
}

impl Report {
    /// Whether processes were killed, the power was cut, and pieces were torn: a budget that is short for its workload must
    /// leave none of them out.
    pub fn is_of_all_kinds(&self) -> bool {
        self.states > self.power_cuts && self.power_cuts > self.torn && self.torn > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} crash points ({} skipped), {} states, {} states after a crash inside recovery, \
             {} repeated states left out, {} of power cuts, {} torn",
            self.points,
            self.points_skipped,
            self.states,
            self.nested_states,
            self.repeated,
            self.power_cuts,
            self.torn
        )
    }
}

/// A crash that the structure under test did not survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Give this to [`replay`], or to the test in `ADIT_SIM_SEED`.
    pub replay: String,
    /// What the judge said.
    pub message: String,
    /// Identifies the contents of the crash image.
    pub fingerprint: u64,
    /// What clients had been told.
    pub history: History,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n  crashes {:?}, acknowledged {:?}, in flight {:?}\n  image {:016x}\n  \
             replay with ADIT_SIM_SEED={}",
            self.message,
            self.history.crashes(),
            self.history.completed(),
            self.history.in_flight(),
            self.fingerprint,
            self.replay
        )
    }
}

impl std::error::Error for Failure {}

/// A crash image by name: at which point of the workload, and which stores survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    point: u64,
    choice: Choice,
}

/// Enumerates the crashes of `workload` and judges each with `recover_and_judge`.
///
/// The workload must do the same in every run. `recover_and_judge` gets a machine after a crash: it
/// runs the recovery under test, calls [`World::judging`], and compares what it finds with the
/// [`History`]. It is run on one image many times, so it must not keep state; a panic in it counts as
/// a failure.
///
/// With `ADIT_SIM_SEED` set to a string that an enumeration of this name printed, only that crash is
/// replayed.
pub fn enumerate<W, J>(
    config: &Config,
    workload: W,
    recover_and_judge: J,
) -> Result<Report, Box<Failure>>
where
    W: Fn(&World) + Sync,
    J: Fn(&World, &History) -> Result<(), String> + Sync,
{
    if let Some(text) = replay_wanted(config) {
        replay(config, &text, workload, recover_and_judge)?;
        return Ok(Report {
            points: 1,
            points_skipped: 0,
            states: 1,
            power_cuts: 0,
            torn: 0,
            nested_states: 0,
            repeated: 0,
        });
    }
    let points = count_points(config, &workload);
    let run = Run::new(config, points, &recover_and_judge);
    run.whole_workload(&workload);
    run.finish()
}

/// Runs the one crash that `text` names. `Ok` when it is survived now.
pub fn replay<W, J>(
    config: &Config,
    text: &str,
    workload: W,
    recover_and_judge: J,
) -> Result<(), Box<Failure>>
where
    W: Fn(&World),
    J: Fn(&World, &History) -> Result<(), String>,
{
    replay_one(config, text, &workload, &recover_and_judge)
}

fn replay_one(
    config: &Config,
    text: &str,
    workload: &dyn Fn(&World),
    recover_and_judge: Judge<'_>,
) -> Result<(), Box<Failure>> {
    let (seed, steps) = parse(text).unwrap_or_else(|error| panic!("replay string {text}: {error}"));
    let world = World::new(config.size);
    let mut snapshot = snapshot_at(&world, steps[0].point, || workload(&world));
    let mut image = snapshot.crash(steps[0].choice, &snapshot.units(), seed);
    for step in &steps[1..] {
        snapshot = snapshot_at(&image, step.point, || {
            let _ = judge(&image, recover_and_judge);
        });
        image = snapshot.crash(step.choice, &snapshot.units(), seed);
    }
    let fingerprint = image.fingerprint();
    judge(&image, recover_and_judge).map_err(|message| {
        let history = image.history();
        Box::new(Failure {
            replay: text.to_owned(),
            message,
            fingerprint,
            history,
        })
    })
}

fn replay_wanted(config: &Config) -> Option<String> {
    let text = std::env::var("ADIT_SIM_SEED").ok()?;
    let name = text.split_once(':')?.0;
    (name == config.name).then_some(text)
}

fn count_points(config: &Config, workload: &dyn Fn(&World)) -> u64 {
    let world = World::new(config.size);
    workload(&world);
    world.end_watch()
}

/// The state of `world` at crash point `point` of `work`.
fn snapshot_at(world: &World, point: u64, work: impl FnOnce()) -> Snapshot {
    snapshots_at(world, vec![point], work)
        .pop()
        .unwrap_or_else(|| panic!("the run has no crash point {point}"))
}

/// The states of `world` at some crash points of `work`.
fn snapshots_at(world: &World, points: Vec<u64>, work: impl FnOnce()) -> Vec<Snapshot> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&kept);
    world.watch(Box::new(move |snapshot| {
        if points.contains(&snapshot.point) {
            sink.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(snapshot);
        }
    }));
    work();
    world.end_watch();
    std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Recovery and verdict on one image; a panic is a verdict, too.
fn judge(image: &World, recover_and_judge: Judge<'_>) -> Result<(), String> {
    let history = image.history();
    catch_unwind(AssertUnwindSafe(|| recover_and_judge(image, &history))).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("(no message)");
        Err(format!("recovery or judge panicked: {text}"))
    })
}

/// Recovery and what is said of it. All that enumerates is compiled once, whoever calls it.
type Judge<'a> = &'a dyn Fn(&World, &History) -> Result<(), String>;

/// One enumeration under way.
struct Run<'a> {
    config: &'a Config,
    points: u64,
    /// Images at the first level, and nested ones.
    budget: u64,
    nested_budget: u64,
    recover_and_judge: &'a (dyn Fn(&World, &History) -> Result<(), String> + Sync),
    seen: Mutex<HashSet<u64>>,
    failure: Mutex<Option<(u64, Box<Failure>)>>,
    states: AtomicU64,
    power_cuts: AtomicU64,
    torn: AtomicU64,
    nested_states: AtomicU64,
    repeated: AtomicU64,
    skipped: AtomicU64,
}

impl<'a> Run<'a> {
    fn new(
        config: &'a Config,
        points: u64,
        recover_and_judge: &'a (dyn Fn(&World, &History) -> Result<(), String> + Sync),
    ) -> Self {
        let nested = if config.nested_points > 0 {
            config.max_states / 2
        } else {
            0
        };
        Self {
            config,
            points,
            budget: config.max_states - nested,
            nested_budget: nested,
            recover_and_judge,
            seen: Mutex::default(),
            failure: Mutex::default(),
            states: AtomicU64::new(0),
            power_cuts: AtomicU64::new(0),
            torn: AtomicU64::new(0),
            nested_states: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// Runs the workload once more; its crash points flow to the judging threads.
    fn whole_workload(&self, workload: &dyn Fn(&World)) {
        let (sender, receiver) = sync_channel::<Snapshot>(4);
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            for _ in 0..self.config.threads.clamp(1, 2) {
                scope.spawn(|| self.judge_points(&receiver));
            }
            let world = World::new(self.config.size);
            world.watch(Box::new(move |snapshot| {
                // The receivers outlive the sender; a closed channel cannot happen.
                let _ = sender.send(snapshot);
            }));
            workload(&world);
            let points = world.end_watch();
            if points != self.points {
                self.fail(
                    u64::MAX,
                    Failure {
                        replay: String::from("none"),
                        message: format!(
                            "the workload is not repeatable: {} crash points, then {points}",
                            self.points
                        ),
                        fingerprint: 0,
                        history: world.history(),
                    },
                );
            }
        });
    }

    fn judge_points(&self, receiver: &Mutex<Receiver<Snapshot>>) {
        loop {
            let next = receiver
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv();
            let Ok(snapshot) = next else { return };
            if self.has_failed_before(snapshot.point) {
                continue;
            }
            if self.affordable(snapshot.point) {
                self.point(&snapshot);
            } else {
                self.skipped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// When there are more crash points than images, chance decides which are tried.
    fn affordable(&self, point: u64) -> bool {
        self.points <= self.budget
            || Rng::at(&[self.config.seed, 5, point]).below(self.points) < self.budget
    }

    /// What is left of a budget, shared fairly among the crash points from `point` on.
    fn share(&self, budget: u64, spent: &AtomicU64, point: u64) -> u64 {
        let left = budget.saturating_sub(spent.load(Ordering::Relaxed));
        left / self.points.saturating_sub(point).max(1)
    }

    fn effort(&self, at_most: u64) -> Effort {
        Effort {
            exhaustive: self.config.exhaustive,
            samples: self.config.samples,
            torn: self.config.torn,
            at_most: at_most.max(1),
            kills: self.config.kills,
            power_cuts: self.config.power_cuts,
        }
    }

    fn point(&self, snapshot: &Snapshot) {
        let units = snapshot.units();
        let mut rng = Rng::at(&[self.config.seed, 6, snapshot.point]);
        let share = self.share(self.budget, &self.states, snapshot.point);
        let mut nested_left = self.share(self.nested_budget, &self.nested_states, snapshot.point);
        for choice in choices(units.all(), &self.effort(share), &mut rng) {
            let image = snapshot.crash(choice, &units, self.config.seed);
            let step = Step {
                point: snapshot.point,
                choice,
            };
            if !self.is_new(&image) {
                continue;
            }
            self.count(choice);
            if !self.verdict(&image, &[step]) {
                return;
            }
            if nested_left > 0 {
                // The first run has changed the image: make it again.
                let points = image.crash_points();
                let image = snapshot.crash(choice, &units, self.config.seed);
                if !self.inside_recovery(&image, points, step, &mut nested_left) {
                    return;
                }
            }
        }
    }

    /// Crashes the recovery of `image`, which passes `points` crash points, at some of them.
    fn inside_recovery(&self, image: &World, points: u64, first: Step, left: &mut u64) -> bool {
        let mut rng = Rng::at(&[self.config.seed, 7, first.point, *left]);
        let chosen = sample_of(points, self.config.nested_points, &mut rng);
        let snapshots = snapshots_at(image, chosen, || {
            let _ = judge(image, self.recover_and_judge);
        });
        for snapshot in snapshots {
            let units = snapshot.units();
            let all = choices(units.all(), &nested_effort(self.effort(64)), &mut rng);
            let few = self.config.nested_images.min(*left);
            for nth in sample_of(all.len() as u64, few, &mut rng) {
                let choice = all[nth as usize];
                let image = snapshot.crash(choice, &units, self.config.seed);
                if !self.is_new(&image) {
                    continue;
                }
                self.nested_states.fetch_add(1, Ordering::Relaxed);
                *left = left.saturating_sub(1);
                let step = Step {
                    point: snapshot.point,
                    choice,
                };
                if !self.verdict(&image, &[first, step]) {
                    return false;
                }
                if *left == 0 {
                    return true;
                }
            }
        }
        true
    }

    fn count(&self, choice: Choice) {
        self.states.fetch_add(1, Ordering::Relaxed);
        let is_cut = u64::from(choice != Choice::Kill);
        self.power_cuts.fetch_add(is_cut, Ordering::Relaxed);
        self.torn
            .fetch_add(u64::from(choice.tears()), Ordering::Relaxed);
    }

    fn is_new(&self, image: &World) -> bool {
        let mut hasher = DefaultHasher::new();
        let history = image.history();
        image.fingerprint().hash(&mut hasher);
        history.hash(&mut hasher);
        if !history.lost_power() {
            // Equal contents may still have different stores outstanding.
            image.outstanding_fingerprint().hash(&mut hasher);
        }
        let key = hasher.finish();
        let new = self
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key);
        if !new {
            self.repeated.fetch_add(1, Ordering::Relaxed);
        }
        new
    }

    /// True when the image is survived.
    fn verdict(&self, image: &World, steps: &[Step]) -> bool {
        let fingerprint = image.fingerprint();
        let history = image.history();
        match judge(image, self.recover_and_judge) {
            Ok(()) => true,
            Err(message) => {
                let replay = replay_text(&self.config.name, self.config.seed, steps);
                self.fail(
                    steps[0].point,
                    Failure {
                        replay,
                        message,
                        fingerprint,
                        history,
                    },
                );
                false
            }
        }
    }

    /// Keeps the failure at the earliest crash point, whatever thread found it first.
    fn fail(&self, point: u64, failure: Failure) {
        let mut kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(earliest, _)| point < *earliest) {
            *kept = Some((point, Box::new(failure)));
        }
    }

    fn has_failed_before(&self, point: u64) -> bool {
        let kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().is_some_and(|(earliest, _)| *earliest < point)
    }

    fn finish(self) -> Result<Report, Box<Failure>> {
        let failure = self
            .failure
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match failure {
            Some((_, failure)) => Err(failure),
            None => Ok(Report {
                points: self.points,
                points_skipped: self.skipped.into_inner(),
                states: self.states.into_inner(),
                power_cuts: self.power_cuts.into_inner(),
                torn: self.torn.into_inner(),
                nested_states: self.nested_states.into_inner(),
                repeated: self.repeated.into_inner(),
            }),
        }
    }
}

/// A second crash is one of everything the first could be, few of each.
fn nested_effort(effort: Effort) -> Effort {
    Effort {
        samples: 8,
        torn: 4,
        ..effort
    }
}

/// Up to `count` different numbers below `bound`, ascending; all of them when they are few.
fn sample_of(bound: u64, count: u64, rng: &mut Rng) -> Vec<u64> {
    if bound <= count {
        return (0..bound).collect();
    }
    let mut chosen = BTreeSet::new();
    while (chosen.len() as u64) < count {
        chosen.insert(rng.below(bound));
    }
    chosen.into_iter().collect()
}

fn replay_text(name: &str, seed: u64, steps: &[Step]) -> String {
    let steps: Vec<String> = steps
        .iter()
        .map(|step| format!("{}.{}", step.point, step.choice))
        .collect();
    format!("{name}:{seed}:{}", steps.join("/"))
}

fn parse(text: &str) -> Result<(u64, Vec<Step>), String> {
    let mut fields = text.splitn(3, ':');
    let (Some(_name), Some(seed), Some(steps)) = (fields.next(), fields.next(), fields.next())
    else {
        return Err(String::from(
            "expected NAME:SEED:POINT.CHOICE[/POINT.CHOICE]",
        ));
    };
    let seed = seed.parse().map_err(|_| format!("no number: {seed:?}"))?;
    let steps = steps
        .split('/')
        .map(parse_step)
        .collect::<Result<Vec<_>, _>>()?;
    Ok((seed, steps))
}

fn parse_step(text: &str) -> Result<Step, String> {
    let (point, choice) = text
        .split_once('.')
        .ok_or_else(|| format!("expected POINT.CHOICE, not {text:?}"))?;
    let point = point
        .parse()
        .map_err(|_| format!("no crash point: {point:?}"))?;
    Ok(Step {
        point,
        choice: choice.parse()?,
    })
}
