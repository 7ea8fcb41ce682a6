//! # Safety
//!
//! The tests send signals to helper processes they started.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Tests run without the preload.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

mod closed;
mod declared;
mod leases;
mod open;
mod times;

use super::*;
use crate::registry::{FileSlot, Listing, Registry, layout, list};
use crate::testing::{
    Helper, Scratch, alone, argument, eventually, id_of, is_helper, listen, modified, old, open_rw,
    registry, runtime_at, say, scratch::limit, spawn,
};

/// Clears the runtime directory when a test fails, so that a monitor which runs beside it in a
/// thread finds nobody to stay for and the test ends.
struct Evict<'a>(&'a Scratch);

impl Drop for Evict<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let run = std::fs::read_dir(self.0.path("run"));
            for entry in run.into_iter().flatten().flatten() {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// A program that is attached: a monitor that nobody else needs yet stays for it.
struct Needed(&'static Registry);

impl Needed {
    fn new(scratch: &Scratch) -> Self {
        let registry = registry(&scratch.path("run"));
        attach(registry, &open_rw(&scratch.old_file("needed")));
        Self(registry)
    }
}

impl Drop for Needed {
    fn drop(&mut self) {
        self.0.detach();
    }
}

fn quick() -> Options {
    Options {
        poll: Duration::from_millis(20),
        idle: Duration::from_millis(300),
        grace: Duration::ZERO,
        // What is quiet is what a test waits for, mostly.
        pace: Pace {
            give_back_after: Duration::from_secs(3600),
            ..Pace::default()
        },
        ..Options::default()
    }
}

/// How long nothing is staged of what a monitor gives back that was told so. Who goes on must be quicker than that.
fn quiet_for() -> Duration {
    limit(3)
}

/// A monitor in a process of its own.
fn monitor(scratch: &Scratch) -> Helper {
    monitor_with(scratch, &[])
}

fn monitor_with(scratch: &Scratch, arguments: &[(&str, &Path)]) -> Helper {
    let all = [&[("T_DIR", scratch.0.as_path())], arguments].concat();
    let mut helper = Helper::start("monitor::tests::helper_monitor", &all);
    helper.wait_for("running");
    let dir = runtime_at(&scratch.path("run"));
    eventually("the monitor answers", || join(&dir, 0).is_ok());
    helper
}

/// Tells a monitor in a process of its own to end.
fn tell_to_end(scratch: &Scratch) {
    tell(scratch, libc::SIGTERM);
}

fn tell(scratch: &Scratch, signal: libc::c_int) {
    let thread = std::fs::read_to_string(scratch.path("thread")).expect("the monitor's");
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).expect("it runs");
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let number = |text: &str| text.trim().parse::<i32>().expect("a number");
    let (process, thread) = (number(process.expect("its process")), number(&thread));
    // SAFETY: integers only.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
    assert_eq!(sent, 0);
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_monitor() {
    if !is_helper() {
        return;
    }
    // As the command does: without it nothing is stored where a pool on a disk is mapped.
    adit_pmem::fault::install().expect("handlers");
    let state = std::env::var(STATE).ok();
    let options = Options {
        idle: Duration::from_secs(60),
        inherited: state.and_then(|number| number.parse().ok()),
        ..quick()
    };
    let options = match std::env::var_os("T_STANDBY") {
        // Nobody ends the last of them. Tests beside this one may keep it from asking for some seconds.
        Some(_) => Options {
            idle: Duration::from_secs(10),
            successor: Some(same_again()),
            ..options
        },
        None => options,
    };
    let options = match std::env::var_os("T_ENDS_AFTER") {
        // Files that are published for their age are taken away from nobody, and not counted.
        Some(_) => Options {
            pace: Pace {
                publish_after: Duration::from_secs(3600),
                ..options.pace
            },
            ..options
        },
        None => options,
    };
    let options = match std::env::var_os("T_GIVES_BACK") {
        Some(_) => Options {
            pace: Pace {
                give_back_after: quiet_for(),
                ..options.pace
            },
            ..options
        },
        None => options,
    };
    let options = match std::env::var_os("T_GRACE") {
        Some(_) => Options {
            grace: Duration::from_secs(3600),
            ..options
        },
        None => options,
    };
    if let Some(limit) = std::env::var_os("T_DESCRIPTORS") {
        let limit = limit.to_str().and_then(|limit| limit.parse().ok());
        let limit = rustix::process::Rlimit {
            current: limit,
            maximum: limit,
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("limit");
    }
    if std::env::var_os("T_LEASE_FIRST").is_some() {
        held::planted::lease_first();
    }
    if std::env::var_os("T_ONE_BY_ONE").is_some() {
        held::planted::one_by_one();
    }
    if std::env::var_os("T_BURIES_SLOWLY").is_some() {
        held::planted::bury_slowly();
    }
    if std::env::var_os("T_AGES_SLOWLY").is_some() {
        held::planted::age_slowly();
    }
    if std::env::var_os("T_SHARES_SLOWLY").is_some() {
        held::planted::share_slowly();
    }
    if let Some(times) = std::env::var_os("T_SHARES_AFTER") {
        let times = times.to_str().and_then(|times| times.parse().ok());
        held::planted::share_after(times.expect("a number"));
    }
    if std::env::var_os("T_TRIES_SHORTLY").is_some() {
        super::leases::planted::try_shortly();
    }
    if let Some(records) = std::env::var_os("T_WITHOUT_ROOM") {
        let records = records.to_str().and_then(|records| records.parse().ok());
        records::planted::without_room(records.expect("a number"));
    }
    if let Some(looks) = std::env::var_os("T_BLIND") {
        let looks = looks.to_str().and_then(|looks| looks.parse().ok());
        adopt::planted::blind(looks.expect("a number"));
    }
    if let Some(threads) = std::env::var_os("T_THREADS") {
        let threads = threads.to_str().and_then(|threads| threads.parse().ok());
        workers::planted::threads_left(threads.expect("a number"));
    }
    if let Some(files) = std::env::var_os("T_ENDS_AFTER") {
        let files = files.to_str().and_then(|files| files.parse().ok());
        held::planted::end_after(files.expect("a number"));
    }
    // Of the thread that is the main one elsewhere; here that is the test harness's.
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() }.to_string();
    std::fs::write(argument("T_DIR").join("thread"), thread).expect("write");
    say("running");
    let outcome = run(&runtime_at(&argument("T_DIR").join("run")), &options);
    if options.inherited.is_none() {
        say(&format!("{outcome:?}"));
    }
}

/// This helper again.
fn same_again() -> Successor {
    let text = |text: &std::ffi::OsStr| {
        std::ffi::CString::new(text.as_encoded_bytes()).expect("no zero bytes")
    };
    let variables = std::env::vars_os().filter(|(name, _)| name != STATE);
    Successor {
        program: text(std::env::current_exe().expect("own path").as_os_str()),
        arguments: std::env::args_os().map(|word| text(&word)).collect(),
        variables: variables
            .map(|(mut variable, value)| {
                variable.push("=");
                variable.push(value);
                text(&variable)
            })
            .collect(),
    }
}

/// A program that has stored to the file `data` and goes on living.
fn program(scratch: &Scratch) -> Helper {
    let mut helper = Helper::start("monitor::tests::helper_program", &[("T_DIR", &scratch.0)]);
    helper.wait_for("stored");
    helper
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_program() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let registry = registry(&dir.join("run"));
    let file = open_rw(&dir.join("data"));
    let slot = attach(registry, &file);
    slot.stored_now();
    for other in ["1", "2", "3"] {
        let other = dir.join(other);
        if other.exists() {
            attach(registry, &open_rw(&other)).stored_now();
        }
    }
    say("stored");
    loop {
        listen();
        slot.stored_now();
        say("again");
    }
}

fn attach(registry: &'static Registry, file: &std::fs::File) -> FileSlot {
    registry.file(id_of(file), file.as_raw_fd()).expect("slot")
}

fn listing(scratch: &Scratch) -> Listing {
    list(&runtime_at(&scratch.path("run"))).expect("list")
}

fn is_recent(path: &Path) -> bool {
    SystemTime::now()
        .duration_since(modified(path))
        .map_or(true, |age| age < Duration::from_secs(3600))
}

fn make_old(path: &Path) {
    open_rw(path).set_modified(old()).expect("set time");
}

#[test]
fn living_processes_are_settled_again_and_again() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let mut program = program(&scratch);
    assert_eq!(modified(&path), old());
    let _monitor = monitor(&scratch);
    eventually("the time is advanced", || is_recent(&path));
    eventually("the mark is gone", || {
        !listing(&scratch).processes[0].files[0].pending
    });
    assert!(listing(&scratch).processes[0].files[0].settled_at > 0);
    make_old(&path);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(modified(&path), old(), "nothing was stored since");
    program.go_on();
    program.wait_for("again");
    eventually("the time is advanced again", || is_recent(&path));
}

/// A monitor and a program that settles a file and sets its times itself, over and over again. What can happen between
/// the steps of both is in `times`.
#[test]
fn times_the_program_sets_win_against_a_settlement_under_way() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let path = scratch.old_file("data");
    let file = open_rw(&path);
    let registry = registry(&scratch.path("run"));
    let slot = attach(registry, &file);
    let options = Options {
        poll: Duration::from_micros(200),
        ..quick()
    };
    std::thread::scope(|scope| {
        let _evict = Evict(&scratch);
        let monitor = scope.spawn(|| run(&dir, &options).expect("run"));
        let settled = || super::times::planted::SETTLED.load(Ordering::Relaxed);
        for (takes, rounds, pause) in [(300, 100, 20), (40_000, 5, 2_000)] {
            super::times::planted::MICROSECONDS.store(takes, Ordering::Relaxed);
            // And as often as it takes until the two have met.
            let (mut met, mut round) = (0, 0);
            let begun = Instant::now();
            while round < rounds || met < 5 {
                assert!(
                    begun.elapsed() < limit(60),
                    "the two hardly met: {met} times"
                );
                let before = settled();
                slot.stored_now();
                // Any point of the monitor's round.
                std::thread::sleep(Duration::from_micros(round % 50 * pause));
                slot.settle(file.as_raw_fd());
                file.set_modified(old()).expect("set time");
                let settling = || listing(&scratch).processes[0].files[0].pending;
                eventually("the monitor is through", || !settling());
                assert_eq!(modified(&path), old(), "{takes}, round {round}");
                met += u32::from(settled() != before);
                round += 1;
            }
        }
        super::times::planted::MICROSECONDS.store(0, Ordering::Relaxed);
        registry.detach();
        monitor.join().expect("monitor");
    });
}

#[test]
fn a_renamed_file_of_a_living_process_is_found() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let _program = program(&scratch);
    let elsewhere = scratch.path("sub");
    std::fs::create_dir(&elsewhere).expect("mkdir");
    std::fs::rename(&path, elsewhere.join("renamed")).expect("rename");
    let decoy = scratch.old_file("data");
    let _monitor = monitor(&scratch);
    eventually("advanced", || is_recent(&elsewhere.join("renamed")));
    assert_eq!(modified(&decoy), old());
}

#[test]
fn a_killed_program_is_repaired_and_cleared_away() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let mut program = program(&scratch);
    program.kill();
    eventually("it is dead", || !listing(&scratch).processes[0].alive);
    assert_eq!(modified(&path), old(), "nobody looked after it yet");
    let outcome = run(&runtime_at(&scratch.path("run")), &quick()).expect("run");
    let work = Work {
        settled: 1,
        cleared: 1,
    };
    assert_eq!(outcome, Outcome::Idle(work));
    assert!(is_recent(&path));
    assert!(listing(&scratch).processes.is_empty());
}

#[test]
fn a_killed_programs_renamed_file_is_found_and_no_other_touched() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let mut program = program(&scratch);
    program.kill();
    std::fs::rename(&path, scratch.path("renamed")).expect("rename");
    let decoy = scratch.old_file("data");
    run(&runtime_at(&scratch.path("run")), &quick()).expect("run");
    assert!(is_recent(&scratch.path("renamed")));
    assert_eq!(modified(&decoy), old());
}

/// The monitor answers nobody meanwhile.
#[test]
fn a_directory_is_read_once_for_all_that_a_killed_program_had_there() {
    let scratch = Scratch::new();
    scratch.runtime();
    let names = ["data", "1", "2", "3"];
    let paths = names.map(|name| scratch.old_file(name));
    let mut program = program(&scratch);
    let renamed = names.map(|name| scratch.path(&format!("{name} renamed")));
    for (path, renamed) in paths.iter().zip(&renamed) {
        std::fs::rename(path, renamed).expect("rename");
    }
    std::fs::remove_file(&renamed[0]).expect("remove");
    program.kill();
    eventually("it is dead", || !listing(&scratch).processes[0].alive);
    let before = super::times::planted::NAMES.get();
    let outcome = run(&runtime_at(&scratch.path("run")), &quick()).expect("run");
    let work = Work {
        settled: 3,
        cleared: 1,
    };
    assert_eq!(outcome, Outcome::Idle(work));
    assert!(renamed[1..].iter().all(|path| is_recent(path)));
    let there = std::fs::read_dir(&scratch.0).expect("read").count() + 2;
    let seen = super::times::planted::NAMES.get() - before;
    assert!(seen <= there, "{seen} of {there}");
}

/// It may be noticed after the monitor has done what is due.
#[test]
fn a_recovery_that_is_due_ends_a_wait() {
    let scratch = Scratch::new();
    let dir = scratch.runtime().open_or_create().expect("directory");
    let runtime = scratch.path("run");
    let places = Places {
        list: PoolList::at(&runtime),
        runtime,
    };
    let records = Records::new().expect("records");
    let (standby, means) = (Standby::new(None), Means::get().expect("means"));
    let pace = Pace::default();
    let mut leases = Leases::new(places, records, standby, pace, means, Marks::new(&dir));
    for _ in 0..2 {
        assert_eq!(leases.interval(), Duration::ZERO);
        leases.tick(Instant::now(), &Ready::default());
        assert!(leases.interval() > Duration::ZERO, "it has begun");
        eventually("it is over", || {
            let mut wait = Vec::new();
            leases.wait_for(&mut wait);
            let ready = Ready(wait.iter().map(|each| each.as_fd().as_raw_fd()).collect());
            leases.tick(Instant::now(), &ready);
            leases.is_empty()
        });
        assert!(leases.interval() > Duration::ZERO, "nothing is due");
        leases.somebody_died();
    }
}

#[test]
fn a_link_in_place_of_a_killed_programs_file_is_not_followed() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let victim = scratch.old_file("victim");
    let mut program = program(&scratch);
    program.kill();
    std::fs::remove_file(&path).expect("remove");
    symlink(&victim, &path).expect("symlink");
    run(&runtime_at(&scratch.path("run")), &quick()).expect("run");
    assert_eq!(modified(&victim), old());
}

#[test]
fn a_killed_monitor_loses_nothing() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let mut program = program(&scratch);
    for _ in 0..5 {
        let mut monitor = monitor(&scratch);
        make_old(&path);
        program.go_on();
        program.wait_for("again");
        monitor.kill();
    }
    let mut last = monitor(&scratch);
    eventually("the next one goes on", || is_recent(&path));
    make_old(&path);
    // One that dies between taking the mark and advancing the time leaves the settling word.
    last.kill();
    program.kill();
    let name = listing(&scratch).processes[0].file.clone();
    let offset = core::mem::offset_of!(layout::Header, settling) as u64;
    let file = open_rw(&scratch.path("run").join(name));
    std::os::unix::fs::FileExt::write_all_at(&file, &1u32.to_ne_bytes(), offset).expect("write");
    drop(file);
    assert!(listing(&scratch).processes[0].files[0].pending);
    run(&runtime_at(&scratch.path("run")), &quick()).expect("run");
    assert!(is_recent(&path));
}

#[test]
fn an_interrupted_settlement_of_a_living_process_is_repeated() {
    let scratch = Scratch::new();
    scratch.runtime();
    let path = scratch.old_file("data");
    let _program = program(&scratch);
    let first = monitor(&scratch);
    eventually("settled", || is_recent(&path));
    drop(first);
    make_old(&path);
    let name = listing(&scratch).processes[0].file.clone();
    let offset = core::mem::offset_of!(layout::Header, settling) as u64;
    let file = open_rw(&scratch.path("run").join(name));
    std::os::unix::fs::FileExt::write_all_at(&file, &1u32.to_ne_bytes(), offset).expect("write");
    let _second = monitor(&scratch);
    eventually("settled by the next one", || is_recent(&path));
    eventually("the word is cleared", || {
        !listing(&scratch).processes[0].files[0].pending
    });
}

#[test]
fn there_is_one_monitor_and_it_ends_when_idle() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let first = monitor(&scratch);
    assert_eq!(run(&dir, &quick()).expect("run"), Outcome::AlreadyRunning);
    drop(first);
    let started = Instant::now();
    let outcome = run(&dir, &quick()).expect("run");
    assert_eq!(outcome, Outcome::Idle(Work::default()));
    // How long the end of it takes depends on what else there is to be recovered on the machine.
    assert!(started.elapsed() >= quick().idle);
    assert!(join(&dir, std::process::id()).is_err(), "nobody listens");
    assert!(!scratch.path("run/monitor.sock").exists());
}

/// Tables of pools in memory that nobody has open or mapped are removed when a monitor ends, and no other file.
#[test]
fn tables_in_memory_go_with_the_monitor() {
    use std::os::unix::fs::PermissionsExt as _;
    const LEN: usize = 3 * 4096;
    let all = ["unused", "mapped", "open", "readable", "foreign", "short"];
    let path = |name: &str| format!("/dev/shm/adit-tables-{}-{name}", std::process::id());
    for name in all {
        let mut bytes = [0; LEN];
        let at = LEN - adit_pmem::MIRROR_TAIL as usize / 2;
        bytes[at..at + 8].copy_from_slice(if name == "foreign" {
            b"ADITTABX"
        } else {
            b"ADITTABL"
        });
        let len = if name == "short" { 100 } else { LEN };
        std::fs::write(path(name), &bytes[..len]).expect("tables");
        let mode = if name == "readable" { 0o644 } else { 0o600 };
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path(name), mode).expect("chmod");
    }
    let mapped = rustix::fs::open(path("mapped"), OFlags::RDWR, Mode::empty()).expect("open");
    // SAFETY: a new mapping, which nobody uses.
    let mapping = unsafe {
        let (prot, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        rustix::mm::mmap(core::ptr::null_mut(), LEN, prot, flags, &mapped, 0).expect("mmap")
    };
    drop(mapped);
    let open = open_rw(Path::new(&path("open")));
    let scratch = Scratch::new();
    let run_one = || run(&scratch.runtime(), &quick()).expect("a monitor");
    assert!(matches!(run_one(), Outcome::Idle(_)));
    let left = |name: &&str| Path::new(&path(name)).exists();
    let found: Vec<&str> = all.into_iter().filter(left).collect();
    drop(open);
    // SAFETY: the mapping of above.
    unsafe { rustix::mm::munmap(mapping, LEN).expect("munmap") };
    assert!(matches!(run_one(), Outcome::Idle(_)));
    let found_later: Vec<&str> = all.into_iter().filter(left).collect();
    for name in all {
        let _ = std::fs::remove_file(path(name));
    }
    assert_eq!(found, all[1..]);
    assert_eq!(found_later, all[3..]);
}

#[test]
fn many_that_start_at_once_agree_on_one() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let program = Helper::start("monitor::tests::helper_sleeps", &[("T_DIR", &scratch.0)]);
    let options = Options {
        stay_for: Some(program.child.id()),
        ..quick()
    };
    let (running, agreed) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let outcome = run(&dir, &options).expect("run");
                if outcome == Outcome::AlreadyRunning {
                    agreed.fetch_add(1, Ordering::Relaxed);
                } else {
                    running.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("the others agree", || agreed.load(Ordering::Relaxed) == 7);
        // Much longer than it stays for nobody.
        std::thread::sleep(quick().idle * 3);
        assert_eq!(running.load(Ordering::Relaxed), 0, "it stays");
        eventually("it answers", || join(&dir, 0).is_ok());
        drop(program);
    });
    assert_eq!(running.into_inner(), 1);
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_sleeps() {
    if is_helper() {
        listen();
    }
}

#[test]
fn it_stays_for_whoever_joined() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let program = Helper::start("monitor::tests::helper_sleeps", &[("T_DIR", &scratch.0)]);
    std::thread::scope(|scope| {
        let _evict = Evict(&scratch);
        let needed = Needed::new(&scratch);
        let monitor = scope.spawn(|| run(&dir, &quick()).expect("run"));
        eventually("joined", || join(&dir, program.child.id()).is_ok());
        drop(needed);
        std::thread::sleep(quick().idle * 3);
        assert!(!monitor.is_finished());
        let path = scratch.old_file("data");
        let file = open_rw(&path);
        let registry = registry(&scratch.path("run"));
        attach(registry, &file).stored_now();
        eventually("an attachment is noticed", || is_recent(&path));
        registry.detach();
        drop(program);
        monitor.join().expect("monitor");
    });
}

/// Between two looks, of which there are few while nobody is attached, it was needed as well.
#[test]
fn it_stays_for_a_while_after_whoever_joined() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let program = Helper::start("monitor::tests::helper_sleeps", &[("T_DIR", &scratch.0)]);
    let idle = Duration::from_secs(2);
    let needed = Needed::new(&scratch);
    let options = Options { idle, ..quick() };
    let monitor = {
        let dir = runtime_at(&scratch.path("run"));
        std::thread::spawn(move || run(&dir, &options).expect("run"))
    };
    eventually("joined", || join(&dir, program.child.id()).is_ok());
    drop(needed);
    std::thread::sleep(idle * 9 / 10);
    let ended = Instant::now();
    drop(program);
    eventually("nobody is stayed for", || monitor.is_finished());
    assert!(ended.elapsed() >= idle, "{:?}", ended.elapsed());
}

/// A program in another namespace of processes: the number that it says is somebody else's here.
#[test]
#[ignore = "a helper process of the tests"]
fn helper_joins() {
    if !is_helper() {
        return;
    }
    let dir = runtime_at(&argument("T_DIR").join("run"));
    let pid = argument("T_PID").to_str().and_then(|pid| pid.parse().ok());
    let request = Request::Join {
        pid: pid.expect("a number"),
    };
    let asked = || ask(&dir.open().expect("open"), &request, None, wire::PATIENCE);
    eventually("joined", || asked().is_ok_and(|answer| answer.agreed()));
    say("joined");
    listen();
}

#[test]
fn it_stays_for_whoever_asks_and_not_for_the_number_that_is_said() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let own = std::process::id().to_string();
    let arguments = [("T_DIR", scratch.0.as_path()), ("T_PID", Path::new(&own))];
    let mut program = Helper::start("monitor::tests::helper_joins", &arguments);
    let needed = Needed::new(&scratch);
    let monitor = std::thread::spawn(move || run(&dir, &quick()).expect("run"));
    program.wait_for("joined");
    drop(needed);
    std::thread::sleep(quick().idle * 3);
    assert!(!monitor.is_finished(), "the program lives");
    drop(program);
    eventually("nobody is stayed for", || monitor.is_finished());
}

#[test]
fn what_is_no_process_is_not_stayed_for() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let fd = dir.open().expect("open");
    let needed = Needed::new(&scratch);
    let monitor = std::thread::spawn(move || run(&dir, &quick()).expect("run"));
    let null = open_rw(Path::new("/dev/null"));
    let null = sys::borrow(null.as_raw_fd());
    let join = Request::Join { pid: 1 };
    let asked = || ask(&fd, &join, null, wire::PATIENCE);
    eventually("refused", || asked().is_ok_and(|answer| !answer.agreed()));
    drop(needed);
    eventually("nobody is stayed for", || monitor.is_finished());
}

/// Who is told that it stays begins without a look at whether it still does.
#[test]
fn it_says_so_when_it_has_no_room_to_stay_for_somebody() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let arguments = [
        ("T_DESCRIPTORS", Path::new("200")),
        ("T_WITHOUT_ROOM", Path::new("1")),
    ];
    let _monitor = monitor_with(&scratch, &arguments);
    // A monitor that does not get its turn says nothing.
    let ask = || leases::patiently(|| join(&dir, std::process::id()));
    assert_eq!(ask(), Err(Refused::TooMany), "it cannot be written down");
    let stayed_for = (0..200).take_while(|_| ask().is_ok()).count();
    assert!((100..150).contains(&stayed_for), "{stayed_for}");
    assert_eq!(ask(), Err(Refused::TooMany));
    assert_eq!(leases::patiently(|| join(&dir, 0)), Ok(()));
    // Whoever would begin beside it leaves it alone.
    let options = Options {
        stay_for: Some(std::process::id()),
        ..quick()
    };
    let outcome = run(&dir, &options).expect("run");
    assert_eq!(outcome, Outcome::AlreadyRunning);
}

#[test]
fn rubbish_is_survived_and_cleared_away() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let victim = scratch.old_file("victim");
    let meta = std::fs::metadata(&victim).expect("metadata");
    let put = |name: &str, bytes: &[u8]| {
        let path = scratch.path("run").join(name);
        std::fs::write(&path, bytes).expect("write");
        make_old(&path);
    };
    put("proc.1.1", b"");
    put("proc.1.2", &vec![0xff; layout::SIZE]);
    put("unrelated", b"stays");
    // The right words in front of garbage which claims that everything is pending; one slot names
    // a real file, but not its birth time.
    let mut garbage = vec![0xff; layout::SIZE];
    garbage[..8].copy_from_slice(&layout::MAGIC.to_ne_bytes());
    garbage[8..16].copy_from_slice(&layout::ABI.to_ne_bytes());
    garbage[16..20].copy_from_slice(&1u32.to_ne_bytes());
    for index in 0..layout::SLOTS {
        garbage[layout::slot_offset(index)] = layout::state::OPEN as u8;
    }
    let slot = layout::slot_offset(0);
    let mut set = |field: usize, bytes: &[u8]| {
        garbage[slot + field..slot + field + bytes.len()].copy_from_slice(bytes);
    };
    let text = victim.to_str().expect("path").as_bytes();
    set(core::mem::offset_of!(layout::Slot, path), text);
    set(
        core::mem::offset_of!(layout::Slot, path_len),
        &(text.len() as u32).to_ne_bytes(),
    );
    set(
        core::mem::offset_of!(layout::Slot, dev),
        &meta.dev().to_ne_bytes(),
    );
    set(
        core::mem::offset_of!(layout::Slot, ino),
        &meta.ino().to_ne_bytes(),
    );
    put("proc.1.3", &garbage);
    // The same in a file that looks alive, because somebody holds its lock.
    put("proc.1.4", &garbage);
    let locked = open_rw(&scratch.path("run/proc.1.4"));
    locked.lock().expect("lock");
    std::thread::scope(|scope| {
        let _evict = Evict(&scratch);
        let monitor = scope.spawn(|| run(&dir, &quick()).expect("run"));
        let gone = |name: &str| !scratch.path("run").join(name).exists();
        eventually("cleared", || {
            gone("proc.1.1") && gone("proc.1.2") && gone("proc.1.3")
        });
        assert!(!gone("proc.1.4") && !gone("unrelated"));
        // Cut while it is looked at.
        locked.set_len(100).expect("cut");
        locked.set_modified(old()).expect("set time");
        std::thread::sleep(Duration::from_millis(100));
        drop(locked);
        monitor.join().expect("monitor");
    });
    assert_eq!(modified(&victim), old());
}

#[test]
fn a_directory_of_somebody_else_is_refused() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(scratch.path("run"), Some(1234), None).expect("chown");
        let refused = run(&dir, &quick()).expect_err("refused");
        assert!(matches!(
            refused,
            MonitorError::Dir(DirError::OwnedBy { owner: 1234 })
        ));
        assert!(join(&dir, 1).is_err());
    }
}

#[test]
fn a_thousand_processes_attach() {
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    scratch.old_file("data");
    let mut helper = Helper::start("monitor::tests::helper_thousand", &[("T_DIR", &scratch.0)]);
    helper.wait_for("attached");
    let all = listing(&scratch).processes;
    assert_eq!(all.len(), 1000);
    assert!(
        all.iter()
            .all(|process| process.alive && process.files.len() == 1)
    );
    std::thread::scope(|scope| {
        let _evict = Evict(&scratch);
        let monitor = scope.spawn(|| run(&dir, &quick()).expect("run"));
        let pending = |process: &crate::registry::ProcessStat| process.files[0].pending;
        eventually("all settled", || {
            !listing(&scratch).processes.iter().any(pending)
        });
        helper.go_on();
        helper.wait_for("killed");
        eventually("all cleared", || listing(&scratch).processes.is_empty());
        let Outcome::Idle(work) = monitor.join().expect("monitor") else {
            panic!("the only monitor");
        };
        assert_eq!(work.cleared, 1000);
        assert!(work.settled >= 1000);
    });
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_thousand() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let registry = registry(&dir.join("run"));
    let file = open_rw(&dir.join("data"));
    let (id, fd) = (id_of(&file), file.as_raw_fd());
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let mut children = Vec::new();
    for _ in 0..1000 {
        // SAFETY: the child only calls what a signal handler may call.
        let child = unsafe { libc::fork() };
        if child == 0 {
            registry.after_fork_child();
            let slot = registry.file(id, fd);
            if let Some(slot) = slot {
                slot.stored_now();
            }
            let byte = u8::from(slot.is_some());
            // SAFETY: one byte from a local; then the process waits for its end.
            unsafe {
                libc::write(pipe[1], (&raw const byte).cast(), 1);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::alarm(600);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(child > 0, "fork");
        children.push(child);
    }
    for _ in 0..1000 {
        let mut byte = 0u8;
        // SAFETY: one byte into a local.
        unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
        assert_eq!(byte, 1);
    }
    say("attached");
    listen();
    for child in children {
        // SAFETY: the pids are those of children that were not reaped yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
    }
    say("killed");
    listen();
}

/// A program that appends, in this process, with the monitor in another one.
struct Appender {
    path: std::path::PathBuf,
    file: std::fs::File,
    registry: &'static Registry,
    slot: FileSlot,
}

impl Appender {
    fn new(scratch: &Scratch) -> Self {
        scratch.runtime();
        Self::in_dir(scratch, &scratch.0)
    }

    fn in_dir(scratch: &Scratch, dir: &Path) -> Self {
        let path = dir.join("log");
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).append(true).open(&path).expect("open");
        let registry = registry(&scratch.path("run"));
        let slot = attach(registry, &file);
        Self {
            path,
            file,
            registry,
            slot,
        }
    }

    fn append(&self, byte: u8) {
        use std::io::Write as _;
        (&self.file).write_all(&[byte; 5000]).expect("append");
    }

    fn ask(&self) -> bool {
        self.registry
            .reserve_ahead(&self.slot, self.file.as_raw_fd())
    }

    /// Blocks as a plain run would have them.
    fn plain_blocks(&self) -> u64 {
        self.file.metadata().expect("metadata").len().div_ceil(4096) * 8
    }

    fn blocks(&self) -> u64 {
        self.file.metadata().expect("metadata").blocks()
    }

    /// Appends, and is quiet for up to a second each time: only then blocks are reserved.
    fn wait_for_blocks(&self) {
        eventually("blocks are reserved", || {
            self.append(b'w');
            (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(2));
                self.blocks() > self.plain_blocks()
            })
        });
    }

    /// A new slot for the file: each asks once.
    fn start_over(&mut self) {
        self.slot.close(self.file.as_raw_fd());
        self.slot = attach(self.registry, &self.file);
    }

    /// Asks until a busy monitor has answered in time.
    fn ask_patiently(&mut self) {
        eventually("the monitor agrees", || {
            let agreed = self.ask();
            if !agreed {
                self.registry.release(&self.slot);
                self.start_over();
            }
            agreed
        });
    }

    /// Reservations that the monitor has made for this slot.
    fn reservations(&self) -> u64 {
        self.slot.slot.reservations.load(Ordering::Acquire)
    }
}

/// Whether blocks are reserved ahead on the medium under test.
fn reserves_here() -> bool {
    let reserves = crate::testing::scratch::medium() == adit_pmem::MediumKind::Ram;
    if !reserves {
        println!("skipped: it concerns tmpfs, where alone blocks are reserved ahead");
    }
    reserves
}

#[test]
fn elsewhere_the_monitor_reserves_nothing() {
    if crate::testing::scratch::medium() == adit_pmem::MediumKind::Ram {
        println!("skipped: it concerns disks and DAX; on tmpfs blocks are reserved ahead");
        return;
    }
    let scratch = Scratch::new();
    let appender = Appender::new(&scratch);
    let _monitor = monitor(&scratch);
    appender.append(b'a');
    assert!(!appender.ask());
    appender.registry.release(&appender.slot);
    assert_eq!(appender.reservations(), 0);
    appender.registry.detach();
}

#[test]
fn blocks_are_reserved_ahead_and_freed_at_close() {
    if !reserves_here() {
        return;
    }
    let scratch = Scratch::new();
    let mut appender = Appender::new(&scratch);
    let _monitor = monitor(&scratch);
    appender.append(b'a');
    appender.ask_patiently();
    assert!(!appender.ask(), "asked once per slot");
    appender.wait_for_blocks();
    eventually("the listing shows it", || {
        let shown = listing(&scratch).processes[0].files[0].reserved_to;
        shown > appender.file.metadata().expect("metadata").len()
    });
    for _ in 0..100 {
        appender.append(b'b');
    }
    // Reserving counts as a modification, freeing does not. One that came between the two looks at the
    // time would hide what the release does.
    eventually("a release with no reservation right before it", || {
        appender.wait_for_blocks();
        let calls = appender.reservations();
        let time = modified(&appender.path);
        let before = std::fs::read(&appender.path).expect("read");
        appender.registry.release(&appender.slot);
        // At once, unless the machine is so busy that the answer did not come in time.
        eventually("freed", || appender.blocks() == appender.plain_blocks());
        assert_eq!(std::fs::read(&appender.path).expect("read"), before);
        let undisturbed = appender.reservations() == calls;
        if undisturbed {
            assert_eq!(modified(&appender.path), time);
        } else {
            appender.start_over();
            appender.ask_patiently();
        }
        undisturbed
    });
    // Nothing is held any more: the kernel grants a lease only to the one open description.
    let duplicate = open_rw(&appender.path);
    drop(appender.file);
    eventually("the monitor has let go", || {
        // SAFETY: integers only.
        let lease = unsafe { libc::fcntl(duplicate.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        lease == 0
    });
    appender.registry.detach();
}

#[test]
fn a_file_that_others_have_open_is_not_reserved_for() {
    let scratch = Scratch::new();
    let appender = Appender::new(&scratch);
    let _monitor = monitor(&scratch);
    let _other = open_rw(&appender.path);
    assert!(!appender.ask());
    appender.registry.release(&appender.slot);
    appender.registry.detach();
}

#[test]
fn an_outsider_that_appends_during_the_release_loses_nothing() {
    use std::io::Write as _;
    if !reserves_here() {
        return;
    }
    let scratch = Scratch::new();
    let mut appender = Appender::new(&scratch);
    let _monitor = monitor(&scratch);
    appender.ask_patiently();
    appender.wait_for_blocks();
    let start = appender.file.metadata().expect("metadata").len();
    let mut options = std::fs::OpenOptions::new();
    let mut outsider = options.append(true).open(&appender.path).expect("open");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                outsider.write_all(&[b'o'; 1000]).expect("append");
                written += 1000;
                // Slowly enough that the release falls into what was reserved.
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(20) {
                    core::hint::spin_loop();
                }
            }
            written
        });
        std::thread::sleep(Duration::from_millis(2));
        appender.registry.release(&appender.slot);
        std::thread::sleep(Duration::from_millis(2));
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("writer")
    });
    let bytes = std::fs::read(&appender.path).expect("read");
    assert_eq!(bytes.len(), start as usize + written);
    assert!(bytes[start as usize..].iter().all(|byte| *byte == b'o'));
    appender.registry.detach();
}

#[test]
fn what_a_killed_appender_had_reserved_is_freed() {
    if !reserves_here() {
        return;
    }
    let scratch = Scratch::new();
    scratch.runtime();
    let _monitor = monitor(&scratch);
    let mut program = Helper::start("monitor::tests::helper_appends", &[("T_DIR", &scratch.0)]);
    program.wait_for("reserved");
    let log = scratch.path("log");
    let meta = || std::fs::metadata(&log).expect("metadata");
    let plain = meta().len().div_ceil(4096) * 8;
    assert!(meta().blocks() > plain);
    program.kill();
    eventually("freed", || meta().blocks() == plain);
    assert!(
        std::fs::read(&log)
            .expect("read")
            .iter()
            .all(|byte| *byte == b'w')
    );
}

#[test]
#[ignore = "a helper process of the tests"]
fn helper_appends() {
    if !is_helper() {
        return;
    }
    let dir = argument("T_DIR");
    let scratch = Scratch(dir.clone());
    let mut appender = Appender::in_dir(&scratch, &dir);
    // The directory is the test's, not ours to remove.
    std::mem::forget(scratch);
    appender.ask_patiently();
    appender.wait_for_blocks();
    say("reserved");
    listen();
}

#[test]
fn a_stopped_or_killed_monitor_does_not_stop_the_program() {
    if !reserves_here() {
        return;
    }
    let scratch = Scratch::new();
    let appender = Appender::new(&scratch);
    assert!(!appender.ask(), "no monitor");
    let slot = |appender: &Appender| {
        appender.slot.close(appender.file.as_raw_fd());
        attach(appender.registry, &appender.file)
    };
    let mut appender = Appender {
        slot: slot(&appender),
        ..appender
    };
    let mut monitor = monitor(&scratch);
    appender.ask_patiently();
    appender.wait_for_blocks();
    let pid = monitor.child.id() as i32;
    // SAFETY: the pid is that of our child.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let start = Instant::now();
    appender.registry.release(&appender.slot);
    assert!(start.elapsed() < Duration::from_secs(2));
    monitor.kill();
    appender.append(b'a');
    let start = Instant::now();
    appender.registry.release(&appender.slot);
    assert!(start.elapsed() < Duration::from_millis(100));
    appender.registry.detach();
}

#[test]
fn a_small_file_system_is_left_to_the_program() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    let small = scratch.path("small");
    std::fs::create_dir(&small).expect("mkdir");
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]);
    let mounted = spawn(mount.arg(&small)).wait();
    if !mounted.is_ok_and(|status| status.success()) {
        return;
    }
    scratch.runtime();
    let monitor = monitor(&scratch);
    let mut appender = Appender::in_dir(&scratch, &small);
    appender.ask_patiently();
    for _ in 0..20 {
        appender.append(b'a');
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(appender.blocks(), appender.plain_blocks());
    }
    appender.registry.release(&appender.slot);
    appender.registry.detach();
    drop((appender, monitor));
    let mut unmount = std::process::Command::new("umount");
    let unmounted = {
        let _alone = alone();
        unmount.arg(&small).status()
    };
    assert!(unmounted.expect("umount").success());
}

#[test]
fn appends_in_bursts_are_noticed() {
    let scratch = Scratch::new();
    let appender = Appender::new(&scratch);
    let noticed = |pause: &dyn Fn(u64)| {
        let mut noticed = 0;
        for count in 0..4096u64 {
            pause(count);
            noticed += u32::from(appender.slot.appended(1, count));
        }
        noticed
    };
    let burst = |count: u64| {
        if count.is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    assert!(noticed(&burst) > 0);
    // Nothing but pauses is no burst.
    let single = |count: u64| {
        if count.is_multiple_of(8) {
            std::thread::sleep(Duration::from_micros(300));
        }
    };
    assert_eq!(noticed(&single), 0);
    appender.registry.detach();
}

#[test]
fn requests_that_make_no_sense_are_survived() {
    use rustix::net::{RecvFlags, SendFlags};
    let scratch = Scratch::new();
    let dir = scratch.runtime();
    let _monitor = monitor(&scratch);
    let fd = dir.open().expect("open");
    let connect = || {
        let socket = crate::registry::wire::socket().expect("socket");
        let address = crate::registry::wire::address(&fd).expect("address");
        rustix::net::connect(socket.as_fd(), &address).expect("connect");
        socket
    };
    for bytes in [&[][..], &[1], &[0xff; 48], &[2; 48], &[5; 300], &[7; 4096]] {
        let socket = connect();
        let _ = rustix::net::send(socket.as_fd(), bytes, SendFlags::NOSIGNAL);
    }
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    // Who does not get his turn between two calls is not hung up on.
    std::thread::sleep(Duration::from_millis(300));
    for peer in &silent {
        let heard = rustix::net::recv(peer.as_fd(), &mut [0; 8], RecvFlags::DONTWAIT);
        assert_eq!(heard.map(|(_, len)| len), Err(Errno::AGAIN));
    }
    let target = crate::registry::wire::Target {
        nonce: 1,
        pid: 1,
        index: u32::MAX,
    };
    eventually("it answers again", || join(&dir, 0).is_ok());
    let agreed = |request: Request<'_>, along| {
        let asked = || ask(&fd, &request, along, Duration::from_secs(10));
        // Who says nothing for a moment is not waited for.
        let mut answer = asked();
        for _ in 0..10 {
            if matches!(answer, Err(Errno::PIPE | Errno::CONNRESET)) {
                answer = asked();
            }
        }
        answer.map(|answer| answer.agreed())
    };
    let directory = Some(fd.as_fd());
    for along in [None, directory] {
        assert_eq!(agreed(Request::Reserve(target), along), Ok(false));
        assert_eq!(agreed(Request::Release(target), along), Ok(false));
        assert_eq!(agreed(Request::Drop { lease: 1, ino: 1 }, along), Ok(false));
        let asked = &b"/nowhere/pool"[..];
        let in_memory = along.is_some();
        let size = 0;
        assert_eq!(agreed(Request::Pool { asked, size }, along), Ok(in_memory));
        for pool in [&b"/nowhere/pool"[..], b"/dev/null", b"relative", b"/"] {
            for (file, slot, mode) in [(0, 0, 2), (u64::MAX, u32::MAX, 2), (1, 1, u32::MAX)] {
                let staged = crate::registry::wire::Staged {
                    pool,
                    file,
                    slot,
                    mode,
                    restore_append: true,
                    declared: false,
                };
                assert_eq!(agreed(Request::Acquire(staged), along), Ok(false));
            }
        }
    }
    drop(silent);
}
