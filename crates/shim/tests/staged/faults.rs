//! Calls of the monitor and of its standby that fail, at any time: nothing acknowledged is lost, who opens the file is let
//! in, and programs go on.

use super::group::may_look_into_others;
use super::stopped::{Ticks, judge};
use super::*;

/// What a call may fail with, whatever it does.
const ERRORS: [&str; 5] = ["EINTR", "ENOSPC", "EIO", "EMFILE", "ENOMEM"];
/// Calls whose failure is nobody's to handle: they cannot fail, tell their failure in another way, or have ended what
/// they were to end.
const SPARED: [&str; 16] = [
    "arch_prctl",
    "brk",
    "clock_gettime",
    "close",
    "geteuid",
    "getuid",
    "gettid",
    "prlimit64",
    "exit",
    "exit_group",
    "futex",
    "getpid",
    "rseq",
    "rt_sigprocmask",
    "set_robust_list",
    "sched_yield",
];

/// When the program has written all but the last of its records, it has gone on.
const LAST: usize = 299_999;

/// Whose calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Monitor,
    Standby,
}

/// A tracer of a process that runs, by whom its calls fail; it lets go when this ends.
pub(super) struct Tracer(Child);

impl Tracer {
    pub(super) fn of(process: &str, trace: &Path, inject: Option<&str>) -> Self {
        let mut tracer = Command::new("timeout");
        tracer.args([&scratch::seconds(60), "strace", "-f", "-qq"]);
        tracer.args(["-p", process, "-o"]).arg(trace);
        if let Some(inject) = inject {
            tracer.args(["-e", &format!("inject={inject}")]);
        }
        let tracer = Self(tracer.stderr(Stdio::null()).spawn().expect("strace"));
        wait_for("the tracer", || {
            let status = fs::read_to_string(format!("/proc/{process}/status"));
            status.is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
        });
        tracer
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// What a monitor does for a program: it publishes, lets somebody in who opens the file, leases it again, and gives what
/// is staged to the file when the program has died. Calls fail from the start on, and a while longer than the first. The
/// names of those that were made.
fn served(name: &str, who: Who, inject: Option<&str>) -> Option<Vec<String>> {
    let place = Place::new(name)?;
    let program = place.compile("ticks");
    let ticks = Ticks::start(&place, &program, "strict");
    wait_for("the lease", || place.is_leased());
    let monitor = place.monitors_pid();
    let standby = started_by(&monitor);
    let trace = place.dir.join("trace");
    let (traced, case) = match who {
        Who::Monitor => (&monitor, format!("the monitor's {inject:?}")),
        Who::Standby => (&standby, format!("the standby's {inject:?}")),
    };
    let mut tracer = Some(Tracer::of(traced, &trace, inject));
    if who == Who::Standby {
        signal("-KILL", &monitor);
    }
    let before = ticks.acknowledged();
    let opener = opens(&place);
    let fails = || fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("(INJECTED)"));
    wait_for(&case, || opener.is_finished() || fails());
    if fails() {
        std::thread::sleep(Duration::from_millis(300));
        tracer = None;
    }
    // What fails in its start the standby's loader alone can know of; then the next monitor looks for the lease. As long
    // as the standby tries, there is none.
    while who == Who::Standby && !opener.is_finished() {
        let _ = begins_another(&place);
        std::thread::sleep(Duration::from_millis(300));
    }
    let found = let_in(opener, &case);
    judge(&found, before, ticks.acknowledged() + 1, &case);
    let before = ticks.acknowledged();
    let goes_on = || ticks.acknowledged() > (before + 20).min(LAST);
    wait_for(&case, goes_on);
    ticks.stop();
    let acknowledged = ticks.acknowledged();
    ticks.signal("-KILL");
    std::thread::sleep(Duration::from_millis(300));
    drop(tracer);
    begins_another(&place)?;
    let found = let_in(opens(&place), &case);
    judge(&found, acknowledged, acknowledged + 1, &case);
    let trace = fs::read_to_string(&trace).expect("the trace");
    if let Some(successor) = monitors::monitor_of(&place.dir.join("run")) {
        let _ = Command::new("kill")
            .args(["-INT", &successor.to_string()])
            .status();
    }
    let call = |line: &str| {
        let (_, call) = line.split_once(' ')?;
        Some(call.trim_start().split_once('(')?.0.to_owned())
    };
    Some(trace.lines().filter_map(call).collect())
}

type Opener = std::thread::JoinHandle<(Vec<u8>, Duration)>;

/// Somebody outside opens the file.
fn opens(place: &Place) -> Opener {
    let file = place.file();
    std::thread::spawn(move || {
        let begun = Instant::now();
        (fs::read(file).expect("the file"), begun.elapsed())
    })
}

/// What he finds. Without a monitor he would wait for 45 seconds.
fn let_in(opener: Opener, case: &str) -> Vec<u8> {
    let (found, took) = opener.join().expect("an opener");
    assert!(
        took < scratch::limit(30),
        "{case}: an opener waited {took:?}"
    );
    found
}

/// A program under `adit run`, which recovers, and starts a monitor where there is none.
pub(super) fn begins_another(place: &Place) -> Option<Output> {
    let (_, adit) = built()?;
    let mut next = Command::new("timeout");
    next.args([&scratch::seconds(30)]).arg(adit);
    next.args(["run", "--mode", "strict", "true"]);
    next.env("ADIT_LIB", &place.library);
    next.env("ADIT_RUNTIME_DIR", place.dir.join("run"));
    next.env("XDG_STATE_HOME", place.dir.join("run"));
    Some(run(&mut next))
}

fn any_call_fails(name: &str, who: Who) {
    if !has_strace() || built().is_none() {
        return;
    }
    if !may_look_into_others() {
        println!("skipped: processes may not look into each other");
        return;
    }
    let mut calls = served(name, who, None).expect("a monitor");
    // Who meets nobody waits for nobody.
    calls.push("nanosleep".into());
    calls.sort();
    calls.dedup();
    calls.retain(|call| !SPARED.contains(&call.as_str()) && !call.contains("resumed"));
    assert!(calls.len() > 10, "{calls:?}");
    let all = env::var_os("ADIT_TEST_ALL").is_some();
    let mut cases: Vec<String> = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        for (number, error) in ERRORS.iter().enumerate() {
            if all || (at + number) % ERRORS.len() == 0 {
                cases.push(format!("{call}:error={error}:when=1+2"));
            }
            if all {
                cases.push(format!("{call}:error={error}:when=2+2"));
            }
        }
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let wrong = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (next, wrong, cases) = (&next, &wrong, &cases);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { return };
                    let name = format!("{name}-{worker}-{at}");
                    let served = || served(&name, who, Some(case));
                    if std::panic::catch_unwind(served).is_err() {
                        eprintln!("WRONG {case}");
                        wrong.lock().expect("a lock").push(case.clone());
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("a lock");
    assert!(wrong.is_empty(), "{who:?}: {wrong:?}");
}

#[test]
fn any_call_of_the_monitor_may_fail() {
    any_call_fails("monitor-faults", Who::Monitor);
}

#[test]
fn any_call_of_the_standby_may_fail() {
    any_call_fails("standby-faults", Who::Standby);
}

/// Bytes that are relinked where a file system can do that.
const LONG: usize = 16 << 20;

/// A program that publishes what it has staged, by relinking, hears of what fails at its close at the latest. What was
/// acknowledged is in the file when somebody has recovered, and a copy does as well where relinking fails.
#[test]
fn any_call_of_relinking_may_fail() {
    if scratch::is_memory() || !has_strace() {
        println!("skipped: it concerns file systems on disks that share or exchange blocks");
        return;
    }
    let Some(place) = Place::new("relink-faults") else {
        return;
    };
    let program = place.compile("writes");
    let writes = |inject: Option<&str>| {
        let _ = fs::remove_file(place.file());
        let mut command = place.traced(&program, "strict", inject);
        let done = command.arg(place.file()).args(["1", &LONG.to_string()]);
        done.status().expect("timeout(1)")
    };
    assert!(writes(None).success());
    if !place.trace().contains("FICLONERANGE") && !place.trace().contains("0x58, 0x81") {
        println!("skipped: it concerns file systems that share or exchange blocks");
        return;
    }
    let expected = vec![b'w'; LONG];
    let mut reached = 0;
    for (at, call) in ["ioctl", "fallocate", "fsync", "msync", "pwrite64"]
        .iter()
        .enumerate()
    {
        for nth in 1..=4 {
            let error = ERRORS[(at + nth) % ERRORS.len()];
            let case = format!("{call}:error={error}:when={nth}");
            let ended = writes(Some(&case));
            assert!(ended.code().is_some_and(|code| code < 2), "{case}: {ended}");
            if !place.trace().contains("(INJECTED)") {
                break;
            }
            reached += 1;
            begins_another(&place);
            // A write that failed was acknowledged to nobody.
            let found = let_in(opens(&place), &case);
            let none = !ended.success() && found.is_empty();
            assert!(none || found == expected, "{case}: {} bytes", found.len());
        }
    }
    assert!(reached > 4, "only {reached} calls were made to fail");
}
