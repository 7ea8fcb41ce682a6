//! Real processes, real files, real `SIGKILL`: promise 1 ("process death loses nothing acknowledged").
//!
//! A round starts a few writers on a file (a different pattern each round), lets them work, kills some
//! of them at random instants, waits for the rest, and then compares the file with what the writers had
//! acknowledged over their pipes. All operations of a writer follow from the round's seed, so the driver
//! knows every byte it must find, and which bytes the one unfinished operation of a dead writer may have
//! changed.
//!
//! Writers use ordinary calls, so they run under a preloaded library as well as without.

// The writers stand for any program: their calls are meant to be interposed.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod adit;
mod append;
mod counter;
mod driver;
mod group;
mod mixed;
mod overwrite;
mod staged;
mod trouble;
mod writer;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::rng::mix;
pub use driver::run;
pub use writer::writer_main;

/// What to torture, and how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rounds to run.
    pub rounds: u64,
    /// Decides everything but the exact instants.
    pub seed: u64,
    /// Where the files are made; created when missing.
    pub dir: PathBuf,
    /// Library preloaded into the writers.
    pub preload: Option<PathBuf>,
    /// Command put in front of the writers' own (`adit run --`). It must become the writer, as `exec`
    /// does, so that the kill reaches it.
    pub wrap: Vec<OsString>,
    /// The `adit` command, and the mode of its `run --mode` that is put in front of the writers, under
    /// a monitor of their own that is stopped and killed as well. `each`: all modes in turn.
    pub adit: Option<(PathBuf, String)>,
    /// The directory is declared (`adit run --path`): writers share their files, and nobody else comes near them.
    pub declared: bool,
    /// Command started beside the writers, killed at random as well and started again.
    pub monitor: Vec<OsString>,
    /// A process killed once, at a random instant.
    pub monitor_pid: Option<i32>,
    /// Command run after the deaths and before the comparison (`adit pool recover`).
    pub recover: Vec<OsString>,
    /// A bug to plant in the writers, to show that the driver notices.
    pub plant: Plant,
    /// Only this pattern.
    pub pattern: Option<Pattern>,
    /// The program that has the writer's role: this one.
    pub program: PathBuf,
}

impl Options {
    /// Plain writers in `dir`, a few hundred rounds.
    pub fn new(program: PathBuf, dir: PathBuf) -> Self {
        Self {
            rounds: 200,
            seed: 1,
            dir,
            preload: None,
            wrap: Vec::new(),
            adit: None,
            declared: false,
            monitor: Vec::new(),
            monitor_pid: None,
            recover: Vec::new(),
            plant: Plant::Nothing,
            pattern: None,
            program,
        }
    }
}

/// A deliberate bug of the writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// None.
    Nothing,
    /// Acknowledges before it writes.
    Lose,
    /// Emulates `O_APPEND` by seeking to the end, which lets two writers take the same place.
    Seek,
    /// Recovers nothing after the monitor and a writer were killed.
    Forget,
    /// Forgets the middle byte of some writes.
    Corrupt,
}

/// What the writers of a round do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Several processes append checksummed records to one file.
    Append,
    /// Random pages of one file are overwritten in place and read back.
    Overwrite,
    /// Writes of all sizes inside, across and beyond the end of the file, and truncations.
    Mixed,
    /// One counter, readers that must never see it go back, and a writer that is replaced when killed.
    Counter,
    /// Appends to files of their own, which are renamed, duplicated, reopened and shared with children,
    /// and which an outsider reads and appends to.
    Staged,
    /// The same records in two files of one's own, which are committed together.
    Group,
}

impl Pattern {
    const ALL: [Self; 6] = [
        Self::Append,
        Self::Overwrite,
        Self::Mixed,
        Self::Counter,
        Self::Staged,
        Self::Group,
    ];

    /// The pattern of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|pattern| pattern.to_string() == name)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Append => "append",
            Self::Overwrite => "overwrite",
            Self::Mixed => "mixed",
            Self::Counter => "counter",
            Self::Staged => "staged",
            Self::Group => "group",
        })
    }
}

impl Plant {
    const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Lose,
        Self::Seek,
        Self::Forget,
        Self::Corrupt,
    ];

    /// The plant of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|plant| plant.to_string() == name)
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Lose => "lose",
            Self::Seek => "seek",
            Self::Forget => "forget",
            Self::Corrupt => "corrupt",
        })
    }
}

/// What was survived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rounds run.
    pub rounds: u64,
    /// Those of each mode of `adit run`, where it was asked for.
    pub by_mode: Vec<(String, u64)>,
    /// Operations whose success a writer had reported.
    pub acknowledged: u64,
    /// Writers killed.
    pub killed: u64,
    /// How many of them were still `adit run`.
    pub runs_killed: u64,
    /// `adit run` killed while it recovered what others had left.
    pub recoveries_killed: u64,
    /// Times the monitor was killed.
    pub monitors_killed: u64,
    /// Times its standby was killed.
    pub standbys_killed: u64,
    /// Times an outsider read or appended while writers were at work.
    pub outsiders: u64,
}

impl Summary {
    /// A round in a mode begins.
    pub(crate) fn round_in(&mut self, mode: &str) {
        match self.by_mode.iter_mut().find(|(known, _)| known == mode) {
            Some((_, rounds)) => *rounds += 1,
            None => self.by_mode.push((mode.to_owned(), 1)),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds, {} acknowledged records, 0 lost ({} writers killed at work",
            self.rounds,
            self.acknowledged,
            self.killed - self.runs_killed
        )?;
        for (count, what) in [
            (self.runs_killed, "adit run before they were writers"),
            (self.recoveries_killed, "recoveries"),
            (self.monitors_killed, "monitors"),
            (self.standbys_killed, "standbys"),
            (self.outsiders, "outsiders"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        write!(f, ")")?;
        if self.by_mode.len() > 1 {
            let modes = self.by_mode.iter();
            let modes: Vec<String> = modes.map(|(mode, n)| format!("{n} in {mode}")).collect();
            write!(f, "; rounds: {}", modes.join(", "))?;
        }
        Ok(())
    }
}

/// Why a run ended early.
#[derive(Debug)]
pub enum Defeat {
    /// Acknowledged bytes are not there, or a writer saw something it must not.
    Lost {
        /// Round and pattern, for the report.
        round: u64,
        /// What the writers did.
        pattern: Pattern,
        /// What is wrong.
        what: String,
        /// The file, kept for inspection.
        file: PathBuf,
    },
    /// The run could not be made.
    Setup(String),
}

impl fmt::Display for Defeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost {
                round,
                pattern,
                what,
                file,
            } => {
                write!(
                    f,
                    "LOST in round {round} ({pattern}): {what}; kept {}",
                    file.display()
                )
            }
            Self::Setup(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Defeat {}

/// One writer's part of a round; everything it does follows from this.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) pattern: Pattern,
    pub(crate) file: PathBuf,
    /// Different in every round.
    pub(crate) nonce: u64,
    pub(crate) writer: u64,
    pub(crate) writers: u64,
    /// Operations until it is done.
    pub(crate) operations: u64,
    pub(crate) plant: Plant,
    /// A reader instead of a writer (of [`Pattern::Counter`]).
    pub(crate) reader: bool,
}

/// What the driver knows of a writer at the end.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) job: Job,
    pub(crate) acknowledged: u64,
    pub(crate) killed: bool,
}

/// Eight bytes that are the same nowhere else.
pub(crate) fn word(nonce: u64, what: u64, version: u64, nth: u64) -> u64 {
    mix(mix(mix(nonce ^ mix(what)) ^ version) ^ nth)
}

/// `len` bytes that tell where they belong.
pub(crate) fn fill(nonce: u64, what: u64, version: u64, len: usize) -> Vec<u8> {
    let words =
        (0..len.div_ceil(8) as u64).flat_map(|nth| word(nonce, what, version, nth).to_le_bytes());
    words.take(len).collect()
}
