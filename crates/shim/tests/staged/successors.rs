//! A monitor that cannot use a pool any more, a successor that cannot yet; and what others get of a program's descriptors.

use super::group::may_look_into_others;
use super::stopped::{Ticks, judge};
use super::*;

/// Whether a standby has become the monitor: only they are started with the directory as an argument.
fn has_successor(place: &Place) -> bool {
    successor(place).is_some()
}

fn successor(place: &Place) -> Option<String> {
    let dir = place.dir.join("run");
    let dir = std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str());
    let read = |pid: &str, what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let is_it = |pid: &String| {
        let words = read(pid, "cmdline");
        let mut words = words.split(|byte| *byte == 0);
        words.any(|word| word == dir) && !read(pid, "comm").starts_with(b"adit-standby")
    };
    let entries = fs::read_dir("/proc").expect("the processes");
    let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.find(is_it)
}

fn end_successor(place: &Place) {
    if let Some(pid) = successor(place) {
        let _ = Command::new("kill").arg(pid).status();
    }
}

/// What the monitor stores after a sync of its pool has failed, it cannot make durable any more. Its standby opens the
/// pool anew, and the program learns nothing of it.
#[test]
fn a_monitor_whose_sync_has_failed_gives_way() {
    let Some(place) = Place::on_disk("gives-way") else {
        return;
    };
    if !has_strace() {
        return;
    }
    if !may_look_into_others() {
        println!("skipped: processes may not look into each other");
        return;
    }
    let program = place.compile("ticks");
    let ticks = Ticks::start(&place, &program, "strict");
    assert!(!has_successor(&place));
    let trace = place.dir.join("monitors-trace");
    // Those that it opens the pool with have been: if they fail, it never had it.
    let mut tracer = Command::new("strace")
        .args(["-f", "-qq", "-p", &place.monitors_pid()])
        .args(["-e", "inject=msync:error=EIO", "-o"])
        .arg(&trace)
        .spawn()
        .expect("strace");
    wait_for("a sync that fails", || {
        fs::read_to_string(&trace).is_ok_and(|trace| trace.contains("(INJECTED)"))
    });
    let tracers = tracer.id().to_string();
    let ended = Command::new("kill").args(["-TERM", &tracers]).status();
    assert!(ended.expect("kill").success());
    tracer.wait().expect("wait");
    wait_for("the successor", || has_successor(&place));
    let before = ticks.acknowledged();
    wait_for("the next records", || ticks.acknowledged() > before + 20);
    ticks.stop();
    let acknowledged = ticks.acknowledged();
    ticks.signal("-KILL");
    let found = fs::read(place.file()).expect("who opens it is let in");
    judge(
        &found,
        acknowledged,
        acknowledged + 1,
        "after a monitor gave way",
    );
    drop(ticks);
    end_successor(&place);
}

/// The pool may be on a disk that is full just then. The lease is kept for as long: whoever opened the file would find
/// it without what is staged.
#[test]
fn who_takes_over_waits_for_a_pool() {
    let Some(place) = Place::new("postponed") else {
        return;
    };
    let (pool, away) = (place.dir.join("own"), place.dir.join("away"));
    Place::make_pool(&pool, None);
    let program = place.compile("ticks");
    let mode = format!("strict ADIT_POOL={}", pool.display());
    let ticks = Ticks::start(&place, &program, &mode);
    wait_for("the lease", || place.is_leased());
    // It was made before the first lease was given.
    fs::rename(&pool, &away).expect("the pool goes away");
    fs::create_dir(&pool).expect("something that is no pool");
    let killed = Command::new("kill")
        .args(["-9", &place.monitors_pid()])
        .status();
    assert!(killed.expect("kill").success());
    wait_for("the successor", || has_successor(&place));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(place.is_leased(), "given up, with bytes staged");
    ticks.stop();
    let acknowledged = ticks.acknowledged();
    ticks.signal("-KILL");
    std::thread::sleep(Duration::from_millis(700));
    assert!(place.is_leased(), "given up when its program died");
    fs::remove_dir(&pool).expect("its place is free");
    fs::rename(&away, &pool).expect("the pool comes back");
    wait_for("the bytes", || !place.is_leased());
    let found = fs::read(place.file()).expect("the file");
    judge(
        &found,
        acknowledged,
        acknowledged + 1,
        "after the pool came back",
    );
    drop(ticks);
    end_successor(&place);
}

/// On a disk each write opens the pool for a moment. A child would keep it, with its locks, and what another thread says
/// on a standard descriptor that is closed would go into the pool.
#[test]
fn what_is_open_for_a_moment_is_nobody_elses() {
    let Some(place) = Place::on_disk("forks") else {
        return;
    };
    let program = place.compile("forks");
    for mode in ["atomic", "strict"] {
        let mut command = place.command(&program, Some(mode));
        let pool = place.named_pool().expect("a pool of its own");
        let output = run(command.arg(place.file()).arg(pool));
        assert_eq!(output.stdout, b"0 0\n", "mode {mode}");
        let _ = fs::remove_file(place.file());
    }
}

/// The monitor has a duplicate of the description, and with it its locks: they end before somebody else is let in.
#[test]
fn locks_end_with_their_program() {
    let Some(place) = Place::new("locked") else {
        return;
    };
    let program = place.compile("locked");
    for round in 0..20 {
        let mut command = place.command(&program, Some("strict"));
        let child = command.arg(place.file()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("timeout(1)");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(said.next().expect("a line").expect("text"), "locked");
        let id = child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let pid = children.expect("children").trim().to_owned();
        let killed = Command::new("kill").args(["-KILL", &pid]).status();
        assert!(killed.expect("kill").success());
        child.wait().expect("wait");
        let file = fs::File::open(place.file()).expect("the file");
        assert!(file.try_lock().is_ok(), "round {round}");
        assert_eq!(place.content(), "locked\n");
        fs::remove_file(place.file()).expect("rm");
    }
}
