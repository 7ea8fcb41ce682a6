//! `adit doctor`: what Adit can promise for the files under a path, and why.

pub(crate) mod medium;
mod probes;
mod promises;
mod system;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::{DoctorArgs, Mode};
use crate::failure::{Failure, NO, Outcome};
use crate::output::{self, Table};
use crate::run::library;
use medium::Medium;
use probes::Probe;
use promises::Promise;
use system::{Limit, Machine, Mount};

/// The whole report.
#[derive(Debug, Serialize)]
struct Report {
    path: PathBuf,
    medium: Medium,
    mount: Mount,
    library: Option<PathBuf>,
    works: bool,
    promises: Vec<Promise>,
    probes: Vec<Probe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_probed: Option<String>,
    machine: Machine,
    limits: Vec<Limit>,
    advice: Vec<String>,
}

/// Reports, and says by its status whether mode posix works here.
pub(crate) fn doctor(args: &DoctorArgs) -> Outcome {
    let report = examine(&args.path)?;
    if args.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(if report.works { 0 } else { NO })
}

/// The medium that files made in `dir` will lie on.
pub(crate) fn medium_of(dir: &Path) -> Medium {
    medium::detect(dir, &probes::all(dir).unwrap_or_default())
}

fn examine(path: &Path) -> Result<Report, Failure> {
    let dir = system::directory(path).map_err(|e| {
        Failure::new(format!(
            "{}: {}",
            path.display(),
            e.to_string().split(" (os").next().unwrap_or("")
        ))
        .next("name a file or directory that exists")
    })?;
    let (probes, not_probed) = match probes::all(&dir) {
        Ok(probes) => (probes, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let mount = system::mount(&dir).unwrap_or_default();
    let medium = medium::detect(&dir, &probes);
    let limits = system::limits();
    let library = library::find();
    let (obstacle, advice) = obstacle(medium, &mount, &limits, &library);
    let promises = promises::all(medium, obstacle.as_deref());
    Ok(Report {
        path: dir,
        medium,
        mount,
        library: library.ok(),
        works: promises.iter().any(|p| p.mode == Mode::Posix && p.works),
        promises,
        probes,
        not_probed,
        machine: system::machine(),
        limits,
        advice,
    })
}

/// What keeps Adit from working here, and what to do about it.
fn obstacle(
    medium: Medium,
    mount: &Mount,
    limits: &[Limit],
    library: &Result<PathBuf, Failure>,
) -> (Option<String>, Vec<String>) {
    let mut found = Vec::new();
    let mut advice = Vec::new();
    if let Err(failure) = library {
        found.push(failure.what.clone());
        advice.extend(failure.next.clone());
    }
    if medium == Medium::Passed {
        found.push(format!(
            "{} is passed through: every call goes to the kernel",
            mount.kind
        ));
        advice.push("use tmpfs, ext4, XFS or btrfs for the files that should be fast".into());
    }
    if limits
        .iter()
        .any(|l| l.name == "RLIMIT_AS" && l.value.is_some())
    {
        found.push("the address space is limited, so programs are passed through".into());
        advice.push("lift the limit: ulimit -v unlimited".into());
    }
    ((!found.is_empty()).then(|| found.join("; ")), advice)
}

fn print(report: &Report) {
    let (name, meaning) = report.medium.words();
    println!("{}: medium {name} ({meaning})", report.path.display());
    let mount = &report.mount;
    println!(
        "  {} on {} ({}), options {}",
        mount.kind, mount.on, mount.source, mount.options
    );
    match &report.library {
        Some(library) => println!("  library {}", library.display()),
        None => println!("  library not found"),
    }
    println!();
    let mut table = Table::new(&["mode", "works", "durable", "atomic", "why"]);
    for promise in &report.promises {
        let works = yes(promise.works);
        table.row([
            promise.mode.name(),
            works,
            &promise.durable,
            &promise.atomic,
            &promise.why,
        ]);
    }
    table.print();
    println!();
    print_probes(report);
    print_machine(report);
    for advice in &report.advice {
        println!("next: {advice}");
    }
}

fn print_probes(report: &Report) {
    if let Some(why) = &report.not_probed {
        println!("The file system was not probed: {why}");
        return;
    }
    let mut table = Table::new(&["tried", "works", "used for", "why not"]);
    for probe in &report.probes {
        let why = probe.why.as_deref().unwrap_or("");
        table.row([probe.name, yes(probe.works), probe.used_for, why]);
    }
    table.print();
}

fn print_machine(report: &Report) {
    let machine = &report.machine;
    println!();
    println!("kernel {} on {}", machine.kernel, machine.processor);
    println!(
        "copy {}, streaming copy {}, write-back {}",
        machine.copy, machine.streaming_copy, machine.write_back
    );
    println!(
        "huge pages {}, in memory files {}",
        machine.huge_pages, machine.huge_pages_shmem
    );
    for limit in &report.limits {
        let value = limit
            .value
            .map_or("unlimited".to_owned(), |v| v.to_string());
        let effect = limit.effect.map(|e| format!(" ({e})")).unwrap_or_default();
        println!("{} {value}{effect}", limit.name);
    }
}

fn yes(works: bool) -> &'static str {
    if works { "yes" } else { "no" }
}
