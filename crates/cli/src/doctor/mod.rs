//! `adit doctor`: what Adit can promise for the files under a path, and why.

mod device;
mod probes;
mod promises;
mod staging;
mod system;

use std::path::{Path, PathBuf};

use adit_pmem::{MediumKind, detect};
use serde::Serialize;

use crate::args::{DoctorArgs, Mode};
use crate::failure::{Failure, NO, Outcome};
use crate::output::{self, Lossy, Table};
use crate::run::library;
use device::Device;
use probes::Probe;
use promises::{Obstacle, Promise};
use system::Limit;

/// The whole report.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(serialize_with = "crate::output::lossy")]
    path: PathBuf,
    medium: &'static str,
    why: String,
    file_system: FileSystem,
    #[serde(skip_serializing_if = "Option::is_none")]
    persistent_memory: Option<Device>,
    library: Option<Lossy>,
    works: bool,
    promises: Vec<Promise>,
    probes: Vec<Probe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_probed: Option<String>,
    machine: Machine,
    limits: Vec<Limit>,
    advice: Vec<String>,
}

/// Where the path lies.
#[derive(Debug, Serialize)]
struct FileSystem {
    kind: String,
    mounted_on: Option<String>,
    source: Option<String>,
    options: Vec<String>,
    block_size: u64,
    total_bytes: u64,
    available_bytes: u64,
}

/// The kernel and how this processor moves bytes.
#[derive(Debug, Serialize)]
struct Machine {
    kernel: String,
    architecture: &'static str,
    copy: &'static str,
    streaming_copy: &'static str,
    write_back: &'static str,
    faults_guarded: bool,
    huge_pages: String,
    huge_pages_tmpfs: String,
}

/// Reports, and says by its status whether a mode works here.
pub(crate) fn doctor(args: &DoctorArgs) -> Outcome {
    let report = examine(&args.path, args.mode)?;
    if args.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(if report.works { 0 } else { NO })
}

/// The medium that files made in `dir` will lie on.
pub(crate) fn medium_of(dir: &Path) -> MediumKind {
    detect::Report::of(dir, detect::Probe::Try)
        .map_or(MediumKind::Other, |report| report.detected.kind)
}

fn examine(path: &Path, mode: Mode) -> Result<Report, Failure> {
    let failed = |why: String| {
        Failure::new(format!("{}: {why}", path.display()))
            .next("name a file or directory that exists")
    };
    let dir = system::directory(path).map_err(|e| failed(words(e)))?;
    let found = detect::Report::of(path, detect::Probe::Try)
        .map_err(|e| failed(crate::failure::words(e.error)))?;
    let (probes, not_probed) = match probes::all(&dir) {
        Ok(probes) => (probes, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let limits = system::limits();
    let library = library::find();
    let (obstacle, mut advice) = obstacle(&found, &limits, &library);
    if found.shared_blocks_confuse_kernel() {
        advice.push(
            "before Linux 6.2 the kernel confuses mapped DAX pages that files share (it warns in dax_insert_entry): \
             clone no files here, or make the file system with mkfs.xfs -m reflink=0, or take a newer kernel"
                .into(),
        );
    }
    if found.detected.kind == MediumKind::Cached && found.fs_name == "xfs" {
        advice.extend(probes::relinking(&probes).map(Into::into));
    }
    let promises = promises::all(found.detected.kind, &obstacle);
    let device = Device::of(path);
    let of_device = device
        .as_ref()
        .map(|device| device.advice(found.detected.kind, found.detected.reason))
        .unwrap_or_default();
    let staging = staging::obstacle(&dir, &found, &probes);
    let promises = match &staging {
        Some(staging) if obstacle.is_none() => promises::without_staging(promises, &staging.why),
        _ => promises,
    };
    let promises = if has_huge_pages(&found) && obstacle.is_none() {
        promises::with_huge_pages(promises)
    } else {
        promises
    };
    let of_staging = staging.map(|staging| staging.next).into_iter().collect();
    Ok(Report {
        path: path.canonicalize().unwrap_or(dir),
        medium: found.detected.kind.name(),
        why: found.detected.reason.to_string(),
        library: library.ok().map(Lossy),
        works: promises.iter().any(|p| p.mode == mode && p.works),
        promises,
        probes,
        not_probed,
        machine: machine(&found),
        file_system: file_system(found),
        persistent_memory: device,
        limits,
        advice: [advice, of_device, of_staging].concat(),
    })
}

/// Whether this is a tmpfs whose files may have huge pages.
fn has_huge_pages(found: &detect::Report) -> bool {
    let options = found.mount.iter().flat_map(|mount| &mount.options);
    let mut huge = options.filter_map(|option| option.strip_prefix("huge="));
    found.detected.kind == MediumKind::Ram && huge.any(|how| how != "never")
}

fn machine(found: &detect::Report) -> Machine {
    Machine {
        kernel: found.kernel_release.clone(),
        architecture: std::env::consts::ARCH,
        copy: found.copy.name(),
        streaming_copy: found.streaming.name(),
        write_back: found.write_back.name(),
        faults_guarded: found.guarded,
        huge_pages: found.huge_pages.ordinary.clone(),
        huge_pages_tmpfs: found.huge_pages.tmpfs.clone(),
    }
}

fn file_system(found: detect::Report) -> FileSystem {
    let mount = found.mount;
    FileSystem {
        kind: mount
            .as_ref()
            .map_or(found.fs_name.to_owned(), |m| m.fs_type.clone()),
        mounted_on: mount.as_ref().map(|m| m.mount_point.clone()),
        source: mount.as_ref().map(|m| m.source.clone()),
        options: mount.map(|m| m.options).unwrap_or_default(),
        block_size: found.block_size,
        total_bytes: found.total_bytes,
        available_bytes: found.available_bytes,
    }
}

/// What keeps Adit from working here, and what to do about it.
fn obstacle(
    found: &detect::Report,
    limits: &[Limit],
    library: &Result<PathBuf, Failure>,
) -> (Obstacle, Vec<String>) {
    let mut why = Vec::new();
    let mut advice = Vec::new();
    if let Err(failure) = library {
        why.push(failure.what.clone());
        advice.extend(failure.next.clone());
    }
    if !found.guarded {
        why.push("copies are not guarded on this architecture".into());
    }
    if limits
        .iter()
        .any(|l| l.name == "RLIMIT_AS" && l.value.is_some())
    {
        why.push("the address space is limited, so programs are passed through".into());
        advice.push("lift the limit: ulimit -v unlimited".into());
    }
    let nothing_is_done = !why.is_empty();
    if found.detected.kind == MediumKind::Other {
        let reason = found.detected.reason;
        why.push(format!("every call goes to the kernel: {reason}"));
        advice.push("use tmpfs, ext4, XFS or btrfs for the files that should be fast".into());
    }
    let obstacle = Obstacle {
        why,
        nothing_is_done,
    };
    (obstacle, advice)
}

fn words(error: std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

fn print(report: &Report) {
    let fs = &report.file_system;
    println!(
        "{}: medium {} ({})",
        report.path.display(),
        report.medium,
        report.why
    );
    println!(
        "  {} on {} ({}), options {}, {} of {} free",
        fs.kind,
        fs.mounted_on.as_deref().unwrap_or("?"),
        fs.source.as_deref().unwrap_or("?"),
        fs.options.join(","),
        output::bytes(fs.available_bytes),
        output::bytes(fs.total_bytes)
    );
    if let Some(device) = &report.persistent_memory {
        println!("  {}", in_words(device));
    }
    match &report.library {
        Some(Lossy(library)) => println!("  library {}", library.display()),
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

fn in_words(device: &Device) -> String {
    let namespace = match device.namespace {
        device::Namespace::Fsdax => "fsdax",
        device::Namespace::Raw => "raw",
        device::Namespace::Sector => "sector",
    };
    format!(
        "persistent memory {}: namespace {namespace}, direct access {}, aligned for huge pages {}",
        device.name,
        yes(device.dax),
        yes(device.aligned)
    )
}

fn print_probes(report: &Report) {
    if let Some(why) = &report.not_probed {
        println!("The file system was not probed: {why}");
        return;
    }
    let mut table = Table::new(&["tried", "works", "since Linux", "used for", "why not"]);
    for probe in &report.probes {
        let why = probe.why.as_deref().unwrap_or("");
        let works = yes(probe.works);
        table.row([probe.name, works, probe.since, probe.used_for, why]);
    }
    table.print();
}

fn print_machine(report: &Report) {
    let machine = &report.machine;
    println!();
    println!("kernel {} on {}", machine.kernel, machine.architecture);
    println!(
        "copy {}, streaming copy {}, write-back {}",
        machine.copy, machine.streaming_copy, machine.write_back
    );
    println!(
        "huge pages {}, on tmpfs {}",
        machine.huge_pages, machine.huge_pages_tmpfs
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
