//! A monitor that cannot use a pool any more, and a successor that cannot yet.

use super::group::may_look_into_others;
use super::stopped::{Ticks, judge};
use super::*;

/// The standby that has become the monitor: only they are started with the directory as an argument.
fn successor(place: &Place) -> Option<u32> {
    monitors::monitor_of(&place.dir.join("run"))
}

fn has_successor(place: &Place) -> bool {
    successor(place).is_some()
}

fn end_successor(place: &Place) {
    if let Some(process) = successor(place) {
        let _ = Command::new("kill")
            .args(["-INT", &process.to_string()])
            .status();
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
    signal("-TERM", &tracer.id().to_string());
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
    signal("-KILL", &place.monitors_pid());
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
