//! The command line: every command, every flag, and the environment variable that mirrors it.
//!
//! Man pages and shell completions are generated from these definitions, so the help texts here
//! are the documentation.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// User-space direct storage access for unmodified programs.
#[derive(Debug, Parser)]
#[command(name = "adit", version, propagate_version = true)]
#[command(
    after_help = "Exit status: 0 done, 1 the answer is no, 2 bad usage, 3 could not be done. \
`adit run` passes on the program's own status (125 adit failed, 126 not executable, 127 not found)."
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
    Run(RunArgs),
    /// Say what Adit can promise for the files under a path, and why
    Doctor(DoctorArgs),
    /// Make, inspect, check, recover or remove a pool
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Show the attached programs and what Adit does for them
    Stat(StatArgs),
    /// Make a file's bytes, size and times visible to everyone and durable
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
    Served,
}

/// What a program is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// What the kernel promises, faster
    Posix,
    /// Durable when the call returns (not in this version)
    Sync,
    /// Everything since the last fsync entirely or not at all (not in this version)
    Atomic,
    /// Every call durable and atomic when it returns (not in this version)
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

    /// Whether this version keeps the mode's promise.
    pub(crate) fn available(self) -> bool {
        self == Self::Posix
    }
}

/// `adit run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What the program is promised
    #[arg(long, env = "ADIT_MODE", value_enum, default_value = "posix")]
    pub(crate) mode: Mode,
    /// Fail instead of running with a weaker promise, or without Adit
    #[arg(long, env = "ADIT_REQUIRE", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) require: bool,
    /// The pool file to use
    #[arg(long, env = "ADIT_POOL", value_name = "FILE")]
    pub(crate) pool: Option<PathBuf>,
    /// Declare that no outsider writes under this directory, or reads there between fsyncs
    #[arg(
        long = "path",
        env = "ADIT_PATH",
        value_name = "DIR",
        value_delimiter = ':'
    )]
    pub(crate) paths: Vec<PathBuf>,
    /// Where the attached programs of this user register
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
        /// Its size: bytes, or a number with K, M, G or T
        #[arg(long, default_value = "64M", value_parser = parse_size)]
        size: u64,
    },
    /// Show a pool's identity, geometry and use
    Info(PoolFile),
    /// Verify every structure of a pool without changing it
    Check(PoolFile),
    /// List the records of a pool
    Dump(PoolFile),
    /// Bring back what dead programs left in a pool
    Recover(PoolFile),
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
    #[arg(long, env = "ADIT_RUNTIME_DIR", value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
}

/// `adit monitor`.
#[derive(Debug, Args)]
pub(crate) struct MonitorArgs {
    /// Where the attached programs of this user register
    #[arg(long, env = "ADIT_RUNTIME_DIR", value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Stay at least as long as this process lives
    #[arg(long, value_name = "PID")]
    pub(crate) stay_for: Option<u32>,
}

/// The measurements there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// What mode posix does: reads, overwrites, appends, foreign descriptors
    Posix,
}

/// `adit bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_enum, default_value = "posix")]
    pub(crate) suite: Suite,
    /// Where to put the test files
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Alternating rounds; the medians are reported
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(5..=1000))]
    pub(crate) rounds: u32,
    /// Write the report as JSON into this file, or to standard output for -
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the report as one HTML page into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Exit with 1 when a goal is not met
    #[arg(long)]
    pub(crate) goals: bool,
}

/// The side of a measurement that runs under the library.
#[derive(Debug, Args)]
pub(crate) struct BenchWorkerArgs {
    /// The directory for the test files
    pub(crate) dir: PathBuf,
    /// Alternating rounds
    pub(crate) rounds: u32,
}

/// `adit demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to run; repeat it for several media (default: /dev/shm and the current directory)
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Vec<PathBuf>,
    /// Run only the cases whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Alternating rounds; each is compared, the medians of the times are shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
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
