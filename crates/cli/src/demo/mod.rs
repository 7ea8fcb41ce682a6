//! `adit demo`: real programs plainly and under Adit, every byte compared, the times side by side.

mod compare;
mod side;
mod table;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_pmem::MediumKind;
use serde::Serialize;

use crate::args::{DemoArgs, Mode};
use crate::bench::serves;
use crate::doctor;
use crate::failure::{Failure, NO, Outcome};
use crate::janitor::Janitor;
use crate::output::{self, Progress, Table};
use crate::run;
use table::{CASES, Case};

/// What became of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// Everything is the same.
    Same,
    /// Something is not.
    Differs,
    /// It failed on both sides or only plainly, so nothing was compared.
    Broken,
    /// A program it needs is not installed.
    Skipped,
}

/// One row.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    #[serde(serialize_with = "output::lossy")]
    dir: PathBuf,
    medium: &'static str,
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adit_s: Option<f64>,
    notes: Vec<String>,
}

/// Runs the cases and compares.
pub(crate) fn demo(args: &DemoArgs) -> Outcome {
    let cases = chosen(&args.only)?;
    let program = std::env::current_exe()?;
    let dirs = directories(&args.dir)?;
    check_library(&dirs, args.mode)?;
    // In the other modes this would also refuse files that cannot be staged, as every script has some.
    let require = (args.mode == Mode::Posix).then_some("--require");
    let prefix: Vec<&OsStr> = [program.as_os_str()]
        .into_iter()
        .chain(["run", "--mode", args.mode.name()].map(OsStr::new))
        .chain(require.map(OsStr::new))
        .chain([OsStr::new("--")])
        .collect();
    let progress = Progress::new();
    let mut rows = Vec::new();
    for dir in &dirs {
        for case in &cases {
            progress.at(rows.len(), cases.len() * dirs.len(), case.name);
            rows.push(compare_sides(case, dir, &prefix, args)?);
        }
    }
    drop(progress);
    if args.json {
        output::json(&rows)?;
    } else {
        print(&rows);
    }
    let bad = rows
        .iter()
        .any(|row| matches!(row.verdict, Verdict::Differs | Verdict::Broken));
    Ok(if bad { NO } else { 0 })
}

fn chosen(only: &[String]) -> Result<Vec<&'static Case>, Failure> {
    let wanted =
        |case: &&Case| only.is_empty() || only.iter().any(|o| case.name.contains(o.as_str()));
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        let names: Vec<&str> = CASES.iter().map(|c| c.name).collect();
        return Err(
            Failure::new(format!("no case is called {}", only.join(" or ")))
                .next(format!("choose from: {}", names.join("; "))),
        );
    }
    Ok(cases)
}

/// A comparison of the kernel with itself would show that all is well.
fn check_library(dirs: &[PathBuf], mode: Mode) -> Result<(), Failure> {
    if !serves(mode, None)? {
        let what = "the library is not loaded into the programs, so there is nothing to compare";
        return Err(Failure::new(what).next("check the library with adit doctor"));
    }
    for dir in dirs.iter().filter(|_| mode != Mode::Posix) {
        if !serves(mode, Some(dir))? {
            let (mode, place) = (mode.name(), dir.display());
            let what =
                format!("mode {mode} stages no file in {place}, so there is nothing to compare");
            let next = format!(
                "adit doctor --mode {mode} {} says what it needs",
                output::quoted(dir)
            );
            return Err(Failure::new(what).next(next));
        }
    }
    Ok(())
}

fn directories(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    if named.is_empty() {
        let here = std::env::current_dir()?;
        let memory = PathBuf::from("/dev/shm");
        let is_another =
            ![doctor::medium_of(&memory), MediumKind::Other].contains(&doctor::medium_of(&here));
        let second = is_another.then_some(here);
        return Ok([Some(memory), second].into_iter().flatten().collect());
    }
    named.iter().map(|dir| directory(dir)).collect()
}

/// A directory in which Adit serves files.
fn directory(named: &Path) -> Result<PathBuf, Failure> {
    let refused = |why: &str| Failure::new(format!("--dir {}: {why}", named.display()));
    let found = named.canonicalize().ok().filter(|dir| dir.is_dir());
    let found =
        found.ok_or_else(|| refused("no such directory").next("name directories that exist"))?;
    if doctor::medium_of(&found) == MediumKind::Other {
        let next = format!("adit doctor {} says why", output::quoted(&found));
        return Err(refused("Adit serves no files there").next(next));
    }
    Ok(found)
}

fn compare_sides(
    case: &'static Case,
    dir: &Path,
    prefix: &[&OsStr],
    args: &DemoArgs,
) -> Result<Row, Failure> {
    let medium = doctor::medium_of(dir).name();
    let mut row = Row {
        case: case.name,
        dir: dir.to_owned(),
        medium,
        verdict: Verdict::Same,
        plain_s: None,
        adit_s: None,
        notes: Vec::new(),
    };
    let missing: Vec<&str> = case
        .needs
        .iter()
        .copied()
        .filter(|name| !run::is_installed(name))
        .collect();
    if !missing.is_empty() {
        row.verdict = Verdict::Skipped;
        row.notes
            .push(format!("not installed: {}", missing.join(", ")));
        return Ok(row);
    }
    let name: String = case
        .name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let path = dir.join(format!("adit-demo-{}-{name}", std::process::id()));
    let janitor = Janitor::of(&path)?;
    if let Err(e) = std::fs::create_dir(&path) {
        janitor.leave();
        let what = format!("{}: {}", path.display(), crate::failure::said(&e));
        return Err(Failure::new(what).next("name a directory with --dir"));
    }
    judge(case, &mut row, (&path, &janitor), prefix, args)?;
    // Its contents are evidence then.
    if args.keep && row.verdict == Verdict::Differs {
        janitor.leave();
        row.notes.push(format!("kept in {}", path.display()));
    }
    Ok(row)
}

/// Runs both sides in turn, until the rounds are over or something is not the same. The other side
/// begins in every second round: whoever comes second finds warmer caches.
fn judge(
    case: &Case,
    row: &mut Row,
    (room, janitor): (&Path, &Janitor),
    prefix: &[&OsStr],
    args: &DemoArgs,
) -> Result<(), Failure> {
    let limit = Duration::from_secs(args.limit);
    let run_plain = || side::run(case, (room, janitor), "plain", &[], limit);
    let run_adit = || side::run(case, (room, janitor), "adit", prefix, limit);
    let (mut plain_times, mut adit_times) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let (plain, adit) = if round % 2 == 0 {
            (run_plain()?, None)
        } else {
            let adit = run_adit()?;
            (run_plain()?, Some(adit))
        };
        if let Some(why) = plain.failed {
            row.verdict = Verdict::Broken;
            row.notes.push(format!("even plainly, {why}"));
            return Ok(());
        }
        let adit = match adit {
            Some(adit) => adit,
            None => run_adit()?,
        };
        plain_times.push(plain.took);
        adit_times.push(adit.took);
        row.notes.extend(adit.failed);
        if plain.out != adit.out {
            let lines = first_lines(&plain.out, &adit.out);
            row.notes.push(format!("the output differs: {lines}"));
        }
        row.notes.extend(compare::trees(&plain.tree, &adit.tree));
        if !row.notes.is_empty() {
            row.verdict = Verdict::Differs;
            break;
        }
    }
    row.plain_s = middle(plain_times);
    row.adit_s = middle(adit_times);
    Ok(())
}

/// The median, in seconds.
fn middle(mut times: Vec<Duration>) -> Option<f64> {
    times.sort();
    let (below, above) = (times.len().checked_sub(1)? / 2, times.len() / 2);
    Some((times[below] + times[above]).as_secs_f64() / 2.0)
}

/// The first lines that are not the same.
fn first_lines(plain: &[u8], adit: &[u8]) -> String {
    let (plain, adit) = (
        String::from_utf8_lossy(plain),
        String::from_utf8_lossy(adit),
    );
    let (mut plain, mut adit) = (plain.lines(), adit.lines());
    loop {
        match (plain.next(), adit.next()) {
            (None, None) => return "in the last line's end".to_owned(),
            (left, right) if left == right => {}
            (left, right) => {
                let show = |line: Option<&str>| match line {
                    Some(line) => format!("{:?}", line.chars().take(100).collect::<String>()),
                    None => "the end".to_owned(),
                };
                return format!("{} plainly, {} under adit", show(left), show(right));
            }
        }
    }
}

fn print(rows: &[Row]) {
    let mut table = Table::new(&[
        "program",
        "medium",
        "result",
        ">plain s",
        ">adit s",
        ">adit/plain",
    ]);
    for row in rows {
        let seconds = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{s:.2}"));
        let ratio = row
            .plain_s
            .zip(row.adit_s)
            .map(|(plain, adit)| adit / plain.max(1e-9));
        let verdict = match row.verdict {
            Verdict::Same => "same",
            Verdict::Differs => "DIFFERS",
            Verdict::Broken => "BROKEN",
            Verdict::Skipped => "skipped",
        };
        let (plain, adit) = (seconds(row.plain_s), seconds(row.adit_s));
        table.row([
            row.case.to_owned(),
            row.medium.to_owned(),
            verdict.to_owned(),
            plain,
            adit,
            seconds(ratio),
        ]);
    }
    table.print();
    for row in rows {
        for note in &row.notes {
            println!("{} in {}: {note}", row.case, row.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that does what its environment says stands for a library with a bug: the comparison
    /// must see it.
    fn verdict(script: &'static str) -> (Verdict, Vec<String>) {
        static CASE_NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = CASE_NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let case: &'static Case = Box::leak(Box::new(Case {
            name: "planted",
            needs: &["bash"],
            script,
            argument: "",
        }));
        let dir = std::env::temp_dir().join(format!("adit-demo-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let args = DemoArgs {
            mode: Mode::Posix,
            dir: Vec::new(),
            only: Vec::new(),
            rounds: 3,
            limit: 2,
            json: false,
            keep: false,
        };
        let prefix = [OsStr::new("env"), OsStr::new("BUG=1")];
        let row = compare_sides(case, &dir, &prefix, &args).unwrap();
        // Fails when anything was left behind.
        std::fs::remove_dir(&dir).unwrap();
        (row.verdict, row.notes)
    }

    #[test]
    fn the_comparison_can_fail() {
        assert_eq!(verdict("echo same; echo same >file").0, Verdict::Same);
        assert_eq!(verdict("echo ${BUG-none}").0, Verdict::Differs);
        assert_eq!(verdict("echo ${BUG-none} >file").0, Verdict::Differs);
        assert_eq!(verdict("exit ${BUG-0}").0, Verdict::Differs);
        assert_eq!(verdict("exit 1").0, Verdict::Broken);
        assert_eq!(verdict("kill -9 $$").0, Verdict::Broken);
        let (verdict, notes) = verdict("if [ ${BUG-0} = 1 ]; then sleep 60; fi");
        assert_eq!(verdict, Verdict::Differs);
        assert!(notes[0].contains("longer than 2 s"), "{notes:?}");
    }

    #[test]
    fn of_two_times_the_middle_is_between() {
        let seconds =
            |times: &[u64]| middle(times.iter().copied().map(Duration::from_secs).collect());
        assert_eq!(seconds(&[]), None);
        assert_eq!(seconds(&[3]), Some(3.0));
        assert_eq!(seconds(&[4, 1]), Some(2.5));
        assert_eq!(seconds(&[9, 1, 4]), Some(4.0));
    }

    #[test]
    fn output_is_quoted_where_it_differs() {
        let text = first_lines(b"a\nb\nc\n", b"a\nx\nc\n");
        assert_eq!(text, "\"b\" plainly, \"x\" under adit");
        assert!(first_lines(b"a\n", b"a\nb\n").contains("the end plainly"));
    }
}
