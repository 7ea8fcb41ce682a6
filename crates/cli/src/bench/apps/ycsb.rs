//! LevelDB under the workloads of YCSB, by a program that is compiled where the compiler is there.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::side::{Running, Side, plainly};
use super::{Load, Ran, Ready, Room};
use crate::failure::said;
use crate::run;

const SOURCE: &str = include_str!("ycsb.cc");
const HEADER: &str = "/usr/include/leveldb/db.h";
const ROWS: [&str; 8] = ["load", "A", "B", "C", "D", "E", "F", "start to end"];

/// The load.
pub(super) struct Ycsb {
    sync: bool,
    records: usize,
    operations: usize,
    program: PathBuf,
}

impl Ycsb {
    /// With `sync`, every write waits for the medium.
    pub(super) fn new(sync: bool) -> Self {
        Self {
            sync,
            records: 0,
            operations: 0,
            program: PathBuf::new(),
        }
    }

    fn compile(&mut self, room: &Room) -> Result<(), String> {
        self.program = room.path.join("ycsb");
        if self.program.exists() {
            return Ok(());
        }
        let source = room.path.join("ycsb.cc");
        fs::write(&source, SOURCE).map_err(|e| said(&e))?;
        let arguments = [
            "-std=c++17".as_ref(),
            "-O2".as_ref(),
            "-o".as_ref(),
            self.program.as_os_str(),
            source.as_os_str(),
            "-lleveldb".as_ref(),
            "-lpthread".as_ref(),
        ];
        plainly("g++", &arguments, &room.path)?;
        Ok(())
    }
}

impl Load for Ycsb {
    fn name(&self) -> &'static str {
        if self.sync {
            "leveldb, ycsb, sync"
        } else {
            "leveldb, ycsb"
        }
    }

    fn rows(&self) -> &'static [&'static str] {
        &ROWS
    }

    fn waits(&self) -> bool {
        self.sync
    }

    fn prepare(&mut self, room: &Room) -> Result<Ready, String> {
        if !run::is_installed("g++") {
            return Ok(Ready::Missing("package g++"));
        }
        if !Path::new(HEADER).exists() {
            return Ok(Ready::Missing("package libleveldb-dev"));
        }
        (self.records, self.operations) = if self.sync {
            let writes = room.operations(4, 100, 5000);
            (writes, writes)
        } else {
            (20_000, 10_000)
        };
        self.compile(room)?;
        Ok(Ready::Yes)
    }

    fn run(&self, side: &Side, work: &Path) -> Result<Ran, String> {
        let out = work.join("ycsb.out");
        let mut command = side.command(&self.program, work);
        command.args(["run", "db"]);
        let numbers = [self.records, self.operations, self.sync.into()];
        command.args(numbers.map(|number: usize| number.to_string()));
        command.stdout(fs::File::create(&out).map_err(|e| said(&e))?);
        let begun = Instant::now();
        Running::start(&mut command, work.join("ycsb.log"))?.wait()?;
        let took = begun.elapsed().as_nanos() as f64;
        let printed = fs::read_to_string(&out).map_err(|e| said(&e))?;
        let mut times = times(&printed).ok_or_else(|| format!("it prints {printed:?}"))?;
        times.push(took / (self.records + 6 * self.operations) as f64);
        let left = plainly(&self.program, &["check", "db"].map(OsStr::new), work)?;
        Ok(Ran { times, left })
    }
}

/// One time for each workload, in the order of the rows.
fn times(printed: &str) -> Option<Vec<f64>> {
    let mut lines = printed.lines();
    let times = ROWS[..ROWS.len() - 1].iter().map(|row| {
        let (name, time) = lines.next()?.split_once(' ')?;
        let time: f64 = time.parse().ok()?;
        (name.eq_ignore_ascii_case(row) && time > 0.0).then_some(time)
    });
    times.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_not_taken_on_trust() {
        let good = "load 1.5\na 2\nb 3\nc 4\nd 5\ne 6\nf 7.0\n";
        assert_eq!(times(good).unwrap().len(), ROWS.len() - 1);
        assert_eq!(times(&good.replace("b 3\n", "")), None);
        assert_eq!(times(&good.replace("f 7.0", "f nan")), None);
        assert_eq!(times(""), None);
    }
}
