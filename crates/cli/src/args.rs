//! The command line: every command, every flag, and the environment variable that mirrors it.
//!
//! Man pages and shell completions are generated from these definitions, so the help texts here
//! are the documentation.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use adit_store::monitor::Pace;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// How often what is staged is published, in seconds.
pub(crate) const PUBLISH_AFTER: &str = "ADIT_PUBLISH_AFTER";
/// How long a file that nobody writes stays staged, in seconds.
pub(crate) const GIVE_BACK_AFTER: &str = "ADIT_GIVE_BACK_AFTER";

/// User-space direct storage access for unmodified programs.
#[derive(Debug, Parser)]
#[command(name = "adit", version, propagate_version = true)]
#[command(
    after_help = "Exit status: 0 done, 1 the answer is no, 2 bad usage, 3 could not be done. \
`adit run` passes on the program's own status (125 adit failed or bad usage, 126 not executable, 127 not found)."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program with Adit: its reads and writes become loads and stores where that is safe
    #[command(
        after_help = "Exit status: the program's own; 125 when Adit failed or was used wrongly, 126 when the \
program is not executable, 127 when there is none of that name."
    )]
    Run(RunArgs),
    /// Say what Adit can promise for the files under a path, and why
    #[command(
        after_help = "Exit status: 0 when the promise of the mode is kept here, 1 when it is not, 2 bad usage, \
3 when that cannot be found out."
    )]
    Doctor(DoctorArgs),
    /// Make, inspect, check, recover or remove a pool
    #[command(
        subcommand,
        after_help = "Exit status: 0 done; 1 when `check` finds damage, or `recover` leaves \
something behind; 2 bad usage; 3 could not be done, as with a file that is no pool."
    )]
    Pool(PoolCommand),
    /// Show the attached programs and what Adit does for them
    Stat(StatArgs),
    /// Make a file's bytes, size and times visible to everyone and durable, but for what waits in mode atomic for its
    /// fsync
    #[command(
        after_help = "Exit status: 0 done; 1 when everything is durable, but the times of a file are not current; 2 bad \
usage; 3 when a file could not be flushed."
    )]
    Flush(FlushArgs),
    /// Measure Adit beside the kernel and beside the raw copy, in one run
    Bench(BenchArgs),
    /// Run real programs plainly and under Adit, compare every byte, show the times
    Demo(DemoArgs),
    /// The transient process that serves the attached programs of one user
    #[command(hide = true)]
    Monitor(MonitorArgs),
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// Where to write them
        dir: PathBuf,
    },
    /// Print the completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// One side of a measurement, started by `adit bench` under the library
    #[command(hide = true)]
    BenchWorker(BenchWorkerArgs),
    /// Exit with 0 when the library serves this process
    #[command(hide = true)]
    Served {
        /// And stages what it writes here
        dir: Option<PathBuf>,
    },
}

/// What a program is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// What the kernel promises, faster
    Posix,
    /// Durable when the call returns
    Sync,
    /// Everything since the last fsync entirely or not at all
    Atomic,
    /// Every call durable and atomic when it returns
    Strict,
}

impl Mode {
    /// All modes, weakest first.
    pub(crate) const ALL: [Self; 4] = [Self::Posix, Self::Sync, Self::Atomic, Self::Strict];

    /// The name used on the command line and in `ADIT_MODE`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Posix => "posix",
            Self::Sync => "sync",
            Self::Atomic => "atomic",
            Self::Strict => "strict",
        }
    }

    /// What is left of the mode for a file that is not staged.
    pub(crate) fn without_staging(self) -> &'static str {
        match self {
            Self::Posix => "the kernel serves the file",
            Self::Sync => "the kernel makes each write durable before it returns",
            Self::Atomic => "writes are durable at fsync, and not atomic",
            Self::Strict => "the kernel makes each write durable before it returns, not atomic",
        }
    }
}

/// What an `fsync` of mode `atomic` commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Commit {
    /// The file that is synced
    Each,
    /// All staged files of the process on its file system, at one instant
    Together,
}

impl Commit {
    /// The name used on the command line and in `ADIT_COMMIT`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Each => "each",
            Self::Together => "together",
        }
    }
}

/// When a file of a disk is published that its program has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Closed {
    /// Before the close returns
    Now,
    /// A short one soon after that, many beside each other; at the latest before its name changes, or the program ends,
    /// forks or starts another one. Until then its size is the old one for who looks without Adit and does not open it
    Soon,
}

impl Closed {
    /// The name used on the command line and in `ADIT_CLOSED`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Soon => "soon",
        }
    }
}

/// Who has the appends of mode `posix`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Appends {
    /// The pool on DAX file systems, for files that are only written and appended to enough; else the kernel
    Auto,
    /// The kernel
    Kernel,
    /// The pool wherever files are in memory, from the first write: for tests, it does not pay
    Staged,
}

impl Appends {
    /// The name used on the command line and in `ADIT_APPENDS`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Staged => "staged",
        }
    }
}

/// `adit run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What the program is promised
    #[arg(long, env = "ADIT_MODE", value_enum, default_value = "posix")]
    pub(crate) mode: Mode,
    /// In mode atomic, what one fsync or fdatasync of a file that is open for writing commits
    #[arg(long, env = "ADIT_COMMIT", value_enum, default_value = "each")]
    pub(crate) commit: Commit,
    /// In the other modes but posix, on a disk, when a file is published that the program has closed
    #[arg(long, env = "ADIT_CLOSED", value_enum, default_value = "now")]
    pub(crate) closed: Closed,
    /// In mode posix, who has the bytes that are appended to a file, until it is published
    #[arg(long, env = "ADIT_APPENDS", value_enum, default_value = "auto")]
    pub(crate) appends: Appends,
    /// Fail instead of running with a weaker promise, or without Adit: it is about the files that the program opens
    /// itself. What it is started with, and what becomes its descriptor 0, 1 or 2, is the kernel's
    #[arg(long, env = "ADIT_REQUIRE", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) require: bool,
    /// The pool file to use
    #[arg(long, env = "ADIT_POOL", value_name = "FILE")]
    pub(crate) pool: Option<PathBuf>,
    /// How large a pool is made where there is none, 16M at least: what a program may stage before it is published, four
    /// times as much in memory and on DAX
    /// [default: by medium and free space, 16M to 256M]
    #[arg(long, env = "ADIT_POOL_SIZE", value_name = "SIZE", value_parser = parse_made_pool_size)]
    pub(crate) pool_size: Option<u64>,
    /// How much of a pool's log the program may fill before what it has staged is published, from 4M to 128M (65,536
    /// to 2,097,152 writes). In mode atomic, where only a commit lets that happen, more writes between two are refused; a
    /// file that was never synced and is only appended to is committed then, unless `--require`, `--commit together` or
    /// `--path` says more
    /// [default: 32M]
    #[arg(long, env = "ADIT_LOG_SIZE", value_name = "SIZE", value_parser = parse_log_size)]
    pub(crate) log_size: Option<u64>,
    /// How much of a file is mapped at once, a power of two from 2M to 512M: more takes fewer mappings, and is mapped
    /// later [default: 2M]
    #[arg(long, env = "ADIT_MAP_SIZE", value_name = "SIZE", value_parser = parse_map_size)]
    pub(crate) map_size: Option<u64>,
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
    /// Declare that no program writes under this directory, or reads there between fsyncs, that is not started with
    /// the same declaration: these stage its files at the same time, and see each other at once. May be repeated, or
    /// several separated by colons
    #[arg(
        long = "path",
        env = "ADIT_PATH",
        value_name = "DIR",
        value_delimiter = ':'
    )]
    pub(crate) paths: Vec<PathBuf>,
    /// Where the attached programs of this user register
    /// [default: $XDG_RUNTIME_DIR/adit if it is this user's, else /dev/shm/adit-UID]
    #[arg(long, env = "ADIT_RUNTIME_DIR", value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Say what is done, and why a program runs without Adit
    #[arg(long, short, env = "ADIT_VERBOSE", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) verbose: bool,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        required = true,
        value_name = "CMD",
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,
}

/// `adit doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The file or directory to judge
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// The mode whose promise the exit status tells about
    #[arg(long, value_enum, default_value = "posix")]
    pub(crate) mode: Mode,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `adit pool …`.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Make a pool file
    Create {
        /// The pool file; it must not exist
        file: PathBuf,
        /// Its size, 8M at least: bytes, or a number with K, M, G or T; less what is not a multiple of 2M
        #[arg(long, default_value = "64M", value_parser = parse_pool_size)]
        size: u64,
    },
    /// Show a pool's identity, geometry and use
    Info(PoolFile),
    /// Verify every structure of a pool without changing it
    Check(PoolFile),
    /// List the records of a pool
    Dump(PoolFile),
    /// Bring back what dead programs left in a pool
    Recover {
        #[command(flatten)]
        pool: PoolFile,
        /// Lose what is staged of this file, if it is not there any more; as `recover` has named it. May be repeated
        #[arg(long, value_name = "PATH")]
        give_up: Vec<PathBuf>,
    },
    /// Remove a pool file nobody uses and that holds nothing unpublished
    Rm {
        /// The pool file
        file: PathBuf,
        /// Remove it even if acknowledged bytes in it were never published
        #[arg(long)]
        force: bool,
    },
}

/// A pool to report about.
#[derive(Debug, Args)]
pub(crate) struct PoolFile {
    /// The pool file
    pub(crate) file: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `adit stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Repeat every second until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// Report as JSON (one object per line with --watch)
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the attached programs of this user register
    /// [default: $XDG_RUNTIME_DIR/adit if it is this user's, else /dev/shm/adit-UID]
    #[arg(long, env = "ADIT_RUNTIME_DIR", value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
}

/// `adit flush`.
#[derive(Debug, Args)]
pub(crate) struct FlushArgs {
    /// The files to flush
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the attached programs of this user register
    /// [default: $XDG_RUNTIME_DIR/adit if it is this user's, else /dev/shm/adit-UID]
    #[arg(long, env = "ADIT_RUNTIME_DIR", value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
}

/// `adit monitor`.
#[derive(Debug, Args)]
pub(crate) struct MonitorArgs {
    /// Where the attached programs of this user register
    /// [default: $XDG_RUNTIME_DIR/adit if it is this user's, else /dev/shm/adit-UID]
    #[arg(long, env = "ADIT_RUNTIME_DIR", value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Stay at least as long as this process lives
    #[arg(long, value_name = "PID")]
    pub(crate) stay_for: Option<u32>,
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
}

/// What the user's monitor does for all programs alike: whoever starts it decides.
#[derive(Debug, Default, Clone, Copy, Args)]
pub(crate) struct PaceArgs {
    /// How often what programs have staged is published while they go on, from 0.1 to 3600 seconds. The user's monitor
    /// does it for all programs alike: whoever starts it decides [default: 0.5]
    #[arg(long, env = PUBLISH_AFTER, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) publish_after: Option<Duration>,
    /// How long nothing may be written to a staged file until it is given back, from 0.1 to 3600 seconds: from then on
    /// others open it at once, also without waiting, until it is written again. As above, for all programs alike
    /// [default: 10]
    #[arg(long, env = GIVE_BACK_AFTER, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) give_back_after: Option<Duration>,
}

impl PaceArgs {
    /// What was asked for, by the variables that say it.
    pub(crate) fn asked(&self) -> impl Iterator<Item = (&'static str, String)> {
        let all = [
            (PUBLISH_AFTER, self.publish_after),
            (GIVE_BACK_AFTER, self.give_back_after),
        ];
        all.into_iter()
            .filter_map(|(name, time)| Some((name, time?.as_secs_f64().to_string())))
    }

    /// What a monitor goes by.
    pub(crate) fn pace(&self) -> Pace {
        let usual = Pace::default();
        Pace {
            publish_after: self.publish_after.unwrap_or(usual.publish_after),
            give_back_after: self.give_back_after.unwrap_or(usual.give_back_after),
        }
    }
}

/// The measurements there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// What mode posix does: reads, overwrites, appends, foreign descriptors
    Posix,
    /// Mode sync on files that it may stage
    Sync,
    /// Mode atomic on files that it may stage
    Atomic,
    /// Mode strict on files that it may stage
    Strict,
    /// SQLite, LevelDB and Redis, plainly and in each mode
    Apps,
}

impl Suite {
    /// The mode that the measured process runs in; none where each of several runs in its own.
    pub(crate) fn mode(self) -> Option<Mode> {
        match self {
            Self::Posix => Some(Mode::Posix),
            Self::Sync => Some(Mode::Sync),
            Self::Atomic => Some(Mode::Atomic),
            Self::Strict => Some(Mode::Strict),
            Self::Apps => None,
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        self.mode().map_or("apps", Mode::name)
    }
}

/// `adit bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure, one suite after the other
    #[arg(value_enum, default_value = "posix", value_name = "SUITE")]
    pub(crate) suites: Vec<Suite>,
    /// Where to put the test files
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Measure only the programs whose name contains this (suite apps)
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Alternating rounds; the medians are reported
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..=1000))]
    pub(crate) rounds: u32,
    /// Write the report as JSON into this file, or to standard output for -
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report as one HTML page into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Show what is known of another library beside the operations that both have, as it was measured on another machine
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) peer: Vec<Peer>,
    /// Exit with 1 when a goal is not met
    #[arg(long)]
    pub(crate) goals: bool,
}

/// Libraries that figures are known of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// MadFS, on tmpfs
    Madfs,
}

/// The side of a measurement that runs under the library.
#[derive(Debug, Args)]
pub(crate) struct BenchWorkerArgs {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) suite: Suite,
    /// The directory for the test files
    pub(crate) dir: PathBuf,
    /// Alternating rounds
    pub(crate) rounds: u32,
}

/// `adit demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// What the programs are promised
    #[arg(long, value_enum, default_value = "posix")]
    pub(crate) mode: Mode,
    /// Where to run; repeat it for several media (default: /dev/shm, and the current directory if that is another medium)
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Vec<PathBuf>,
    /// Run only the cases whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Alternating rounds; each is compared, the medians of the times are shown. The other side begins in every second
    /// one, as whoever comes second finds warmer caches
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Seconds a case may take on each side
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub(crate) limit: u64,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Keep the directories in which results differ
    #[arg(long)]
    pub(crate) keep: bool,
}

/// A chunk each for the tables, for names, for a log and for what is logged.
const SMALLEST_POOL: u64 = 8 << 20;
/// What the default geometry has addresses for.
const LARGEST_POOL: u64 = 128 << 30;

/// Reads "0.5": what something may wait.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let asked = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let may_be = Duration::from_millis(100)..=Duration::from_secs(3600);
    asked
        .filter(|asked| may_be.contains(asked))
        .ok_or_else(|| "give seconds, from 0.1 to 3600".into())
}

/// As [`parse_size`], for what a pool can have.
fn parse_pool_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    within(size, SMALLEST_POOL, LARGEST_POOL)
        .ok_or_else(|| "a pool has 8M at least, and 128G at most".into())
}

/// As [`parse_size`], for a pool that is made on its first use.
fn parse_made_pool_size(text: &str) -> Result<u64, String> {
    within(parse_size(text)?, 16 << 20, LARGEST_POOL)
        .ok_or_else(|| "a pool that is made by itself has 16M at least, and 128G at most".into())
}

/// As [`parse_size`], for a program's share of a log: a chunk to fill and one to empty, and not more than all share.
fn parse_log_size(text: &str) -> Result<u64, String> {
    within(parse_size(text)?, 4 << 20, 128 << 20)
        .ok_or_else(|| "give a size from 4M to 128M".into())
}

/// As [`parse_size`], for what is mapped at once (SplitFS 3.6).
fn parse_map_size(text: &str) -> Result<u64, String> {
    within(parse_size(text)?, 2 << 20, 512 << 20)
        .filter(|size| size.is_power_of_two())
        .ok_or_else(|| "give a power of two from 2M to 512M".into())
}

fn within(size: u64, least: u64, most: u64) -> Option<u64> {
    (least..=most).contains(&size).then_some(size)
}

/// Reads "64M", "1G", "4096".
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a size: use 4096, 64K, 64M or 2G"))?;
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        unit => return Err(format!("{unit:?} is not a unit of size: use K, M, G or T")),
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text:?} is larger than 64 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        for bad in ["", "M", "-1", "1.5G", "12Q", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad:?} was taken");
        }
        assert!(parse_pool_size("7M").is_err());
        assert_eq!(parse_pool_size("8M"), Ok(8 << 20));
        assert_eq!(parse_pool_size("128G"), Ok(LARGEST_POOL));
        assert!(parse_pool_size("129G").is_err());
    }

    #[test]
    fn tunables_have_limits() {
        for (read, right, wrong) in [
            (
                parse_map_size as fn(&str) -> _,
                ["2M", "512M"],
                ["1M", "1G"],
            ),
            (parse_map_size, ["64M", "4M"], ["3M", "0"]),
            (parse_log_size, ["4M", "128M"], ["3M", "129M"]),
            (parse_made_pool_size, ["16M", "128G"], ["15M", "129G"]),
        ] {
            for text in right {
                assert_eq!(read(text), parse_size(text), "{text}");
            }
            for text in wrong {
                assert!(read(text).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn publishing_waits_from_a_moment_to_an_hour() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["0", "0.01", "3601", "-1", "NaN", "inf", "1e99", "soon", ""] {
            assert!(parse_seconds(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_programs_own_flags_are_not_ours() {
        let cli = Cli::try_parse_from(["adit", "run", "ls", "--json", "-l"]).unwrap();
        let Command::Run(run) = cli.command else {
            panic!("not run")
        };
        assert_eq!(run.command, ["ls", "--json", "-l"]);
    }
}
