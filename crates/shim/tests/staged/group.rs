//! Several files committed at one instant: `adit_commit_group`, and `fsync` under `ADIT_COMMIT=together`.
//!
//! What a loss of power would leave is found by playing the next boot on what is there: program and
//! monitor are killed, and the pool is recovered as if it had been left by another boot.

use super::*;

use std::os::unix::fs::OpenOptionsExt as _;

use adit_pool::{BootId, LocalLocks, Pool, PoolFile};
use adit_store::staged;

/// The program, with the two files and the pool in the place.
fn start(place: &Place, program: &Path, mode: &str, commit: &str) -> Told {
    let mut command = place.command(program, Some(mode));
    command.args([place.dir.join("A"), place.dir.join("B")]);
    Told::of(command.env("ADIT_COMMIT", commit))
}

/// Kills the monitor and whoever would take over from it: from now on nobody publishes.
fn end_the_watch(place: &mut Place) {
    let monitor = place.monitors_pid();
    signal("-STOP", &monitor);
    for standby in started_by(&monitor).split_whitespace() {
        signal("-KILL", standby);
    }
    signal("-KILL", &monitor);
    let _ = place.monitor.wait();
}

/// Both files as the next boot finds them.
fn after_a_loss_of_power(place: &Place) -> [String; 2] {
    // Who was killed may take a moment to end, and his leases with him.
    for name in ["A", "B"] {
        let mut open = fs::OpenOptions::new();
        open.read(true).custom_flags(libc::O_NONBLOCK);
        wait_for(name, || open.open(place.dir.join(name)).is_ok());
    }
    let file = PoolFile::open(&place.pool()).expect("the pool");
    let medium = file.pool().medium().clone();
    let locks = Box::new(LocalLocks::default());
    let next = Pool::open(medium, locks, BootId([9; 16])).expect("open");
    let attachment = next.attach().expect("attach");
    let report = staged::recover(&attachment, &staged::open_by_name);
    let report = report.expect("recover");
    assert!(report.kept.is_empty(), "{report:?}");
    ["A", "B"].map(|name| fs::read_to_string(place.dir.join(name)).expect(name))
}

/// What is left of the two files after a loss of power, when the program was told this.
fn left(name: &str, mode: &str, commit: &str, told: &[&str]) -> Option<[String; 2]> {
    let mut place = Place::new(name)?;
    let program = place.compile("group");
    let mut group = start(&place, &program, mode, commit);
    group.all_well(&["wA 1", "wB 1"]);
    // From now on nothing is published by age.
    end_the_watch(&mut place);
    group.all_well(told);
    group.kill();
    Some(after_a_loss_of_power(&place))
}

fn texts(a: &str, b: &str) -> Option<[String; 2]> {
    Some([a.to_owned(), b.to_owned()])
}

/// A lease outlives those who held it, and the next monitor does not know it. A file that is not staged any
/// more must not keep it all the same: whoever opens the file would wait for nobody.
#[test]
fn a_lease_that_no_monitor_knows_goes_with_the_staging() {
    let Some(mut place) = Place::new("unknown") else {
        return;
    };
    let program = place.compile("group");
    let mut group = start(&place, &program, "strict", "each");
    group.all_well(&["wA 1"]);
    end_the_watch(&mut place);
    let path = place.dir.join("A");
    let without_waiting = || {
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        options.open(&path).and_then(std::io::read_to_string)
    };
    assert!(without_waiting().is_err(), "the lease is the program's");
    // It knows of no pool either, so it does not look for the leases of those who are attached to one.
    place.monitor = Place::watch(&place.dir, "elsewhere", None).expect("a monitor");
    group.all_well(&["s"]);
    assert_eq!(without_waiting().expect("nobody has it"), "1");
    group.kill();
}

/// Nor does the program's, when it finds the staging ended by a monitor that was killed before it gave the lease up: no
/// monitor finds a lease whose file is not in the pool.
#[test]
fn a_lease_that_a_killed_monitor_has_left_goes_when_its_program_looks() {
    let Some(mut place) = Place::new("left-over") else {
        return;
    };
    let program = place.compile("group");
    let mut group = start(&place, &program, "strict", "each");
    group.all_well(&["wA 1"]);
    end_the_watch(&mut place);
    let file = PoolFile::open(&place.pool()).expect("the pool");
    let attachment = file.attach().expect("attach");
    let files = file.pool().files().expect("files");
    let [staged] = files[..] else {
        panic!("{files:?}");
    };
    let mut guard = attachment.lock_file(staged).expect("lock");
    let last = guard.next_seq().expect("a number") - 1;
    guard.retire(last).expect("retire");
    guard.forget().expect("forget");
    file.detach(attachment).expect("detach");
    let mut outsider = fs::OpenOptions::new();
    outsider.read(true).custom_flags(libc::O_NONBLOCK);
    let path = place.dir.join("A");
    assert!(outsider.open(&path).is_err(), "the lease is the program's");
    group.all_well(&["s"]);
    outsider.open(&path).expect("nobody has it");
    group.kill();
}

/// A monitor that comes when all others were killed lets openers in. It does not know that the program appends;
/// the program does, also when it forks before it writes again.
#[test]
fn a_monitor_that_comes_later_takes_the_leases_over() {
    for next in [&["wA 4"][..], &["p", "wA 4"]] {
        if let Some(place) = Place::new("later") {
            taken_over_later(place, next);
        }
    }
}

fn taken_over_later(mut place: Place, next: &[&str]) {
    let program = place.compile("group");
    let mut group = start(&place, &program, "atomic", "each");
    group.all_well(&["wA 1", "wB 1"]);
    end_the_watch(&mut place);
    group.all_well(&["wA 2"]);
    place.monitor = Place::watch(&place.dir, "run", None).expect("a monitor");
    let mut outsider = Command::new("timeout")
        .args(["-k", "1", &scratch::seconds(20), "sh", "-c"])
        // What is marked so is not staged again.
        .arg("cat $0; printf 3 >> $0; chmod u+s $0")
        .arg(place.dir.join("A"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("an outsider");
    let let_in = outsider.wait().expect("wait").success();
    if !let_in && !may_look_into_others() {
        println!("skipped: processes may not look into each other");
        group.kill();
        return;
    }
    let mut seen = String::new();
    let mut said = outsider.stdout.take().expect("a pipe");
    std::io::Read::read_to_string(&mut said, &mut seen).expect("its output");
    assert_eq!((let_in, seen.as_str()), (true, "12"));
    group.all_well(next);
    group.all_well(&["cA", "cB"]);
    let read = |name| fs::read_to_string(place.dir.join(name)).expect(name);
    assert_eq!(["A", "B"].map(read), ["1234", "1"]);
    group.kill();
}

/// A user has a monitor for each runtime directory. One that comes later leaves alone what another knows: it
/// ends when nobody needs it, though the program goes on.
#[test]
fn a_monitor_that_comes_later_leaves_leases_to_one_that_lives() {
    let Some(place) = Place::new("beside") else {
        return;
    };
    let program = place.compile("group");
    let mut group = start(&place, &program, "atomic", "each");
    group.all_well(&["wA 1", "wB 1"]);
    let other = place.dir.join("other");
    fs::create_dir(&other).expect("a directory");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&other, private).expect("chmod");
    let (_, command) = built().expect("what runs already");
    let mut needed = Command::new("sleep").arg("0.5").spawn().expect("sleep(1)");
    let monitor = Command::new("timeout")
        .args(["-k", "1", &scratch::seconds(60)])
        .arg(command)
        .args(["monitor", "--stay-for", &needed.id().to_string()])
        .env("ADIT_RUNTIME_DIR", &other)
        .env("XDG_STATE_HOME", place.dir.join("run"))
        .status()
        .expect("adit monitor");
    assert!(
        monitor.success(),
        "{monitor}: it holds leases of the other one"
    );
    assert!(needed.wait().expect("wait").success());
    group.all_well(&["wA 2", "cA", "cB"]);
    group.kill();
}

pub(super) fn may_look_into_others() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.map_or(true, |scope| scope.trim() == "0")
}

#[test]
fn a_group_is_committed_at_one_instant() {
    let told = ["wA 2", "wB 2", "g", "wA 3", "wB 3"];
    let Some(left) = left("group", "atomic", "each", &told) else {
        return;
    };
    assert_eq!(left, ["12".to_owned(), "12".to_owned()]);
}

/// Files that an `fsync` of each would commit with all others do not come apart from these in a group either.
#[test]
fn a_group_commits_what_an_fsync_of_each_would() {
    let told = ["wA 2", "wB 2", "hA", "wA 3", "wB 3"];
    let each = left("group-of-one", "atomic", "each", &told);
    if each.is_none() {
        return;
    }
    assert_eq!(each, texts("12", ""));
    let all = left("group-of-all", "atomic", "together", &told);
    assert_eq!(all, texts("12", "12"));
}

/// Times that a program has set are durable when the group is: on a disk the kernel's `fsync` has them so.
#[test]
fn a_group_makes_times_durable() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::on_disk("timed-group") else {
        return;
    };
    let program = place.compile("group");
    let mut command = place.tracing(&program, "atomic", "fsync,fdatasync");
    let [a, b] = ["A", "B"].map(|name| place.file().with_file_name(name));
    let mut group = Told::of(command.args([&a, &b]));
    let name = format!("{}>", a.display());
    let is_synced = |line: &&str| line.contains("sync(") && line.contains(&name);
    let syncs = || place.trace().lines().filter(is_synced).count();
    group.all_well(&["wA 1", "wB 1", "g", "wA 2", "wB 2", "g"]);
    let before = syncs();
    group.all_well(&["wA 3", "wB 3", "g"]);
    assert_eq!(syncs(), before, "it is durable in the pool");
    group.all_well(&["wA 4", "wB 4", "tA", "g"]);
    assert!(syncs() > before, "{}", place.trace());
    group.end();
    let changed = fs::metadata(&a).expect("A").modified().expect("a time");
    let since = changed.duration_since(std::time::UNIX_EPOCH);
    assert_eq!(since.expect("a time").as_secs(), 2_000_000);
    assert_eq!(fs::read_to_string(a).expect("A"), "1234");
}

/// One `fsync` for all, or for the file alone: as the user has asked.
#[test]
fn an_fsync_commits_what_the_user_asked_for() {
    let told = ["wA 2", "wB 2", "fA", "wA 3", "wB 3"];
    let each = left("each", "atomic", "each", &told);
    if each.is_none() {
        return;
    }
    assert_eq!(each, texts("12", ""));
    assert_eq!(left("all", "atomic", "together", &told), texts("12", "12"));
    let told = ["wA 2", "wB 2", "dB", "wB 3"];
    assert_eq!(left("data", "atomic", "together", &told), texts("12", "12"));
    // Closing publishes a file, which commits it: and so the other one.
    let told = ["wA 2", "wB 2", "cA", "wB 3"];
    assert_eq!(
        left("close", "atomic", "together", &told),
        texts("12", "12")
    );
    assert_eq!(left("alone", "atomic", "each", &told), texts("12", ""));
    // Whatever is asked for, strict writes are durable at once.
    let told = ["wA 2", "wB 2"];
    assert_eq!(
        left("strict", "strict", "together", &told),
        texts("12", "12")
    );
}

/// What a group may not hold commits nothing, and says why.
#[test]
fn a_group_that_cannot_be_committed_is_refused() {
    let Some(mut place) = Place::new("refused") else {
        return;
    };
    let program = place.compile("group");
    let mut group = start(&place, &program, "atomic", "each");
    group.all_well(&["wA 1", "wB 1", "g"]);
    end_the_watch(&mut place);
    group.all_well(&["wA 2", "wB 2"]);
    assert_eq!(group.tell("r"), "-1 EINVAL");
    assert_eq!(group.tell("x"), "-1 EBADF");
    group.kill();
    assert_eq!(Some(after_a_loss_of_power(&place)), texts("1", "1"));
    // Elsewhere it is what fsync of each is, and says what fsync says.
    for mode in ["posix", "sync", "strict"] {
        let mut group = start(&place, &program, mode, "each");
        group.all_well(&["wA 3", "wB 3", "g"]);
        assert_eq!(
            group.tell("r"),
            "-1 EINVAL",
            "{mode}: no pipe can be synced"
        );
        assert_eq!(group.tell("x"), "-1 EBADF", "{mode}");
        group.kill();
    }
}

/// What the kernel was given meanwhile can be committed with no others, also when the files are staged again.
/// Once it is synced there is nothing left of it to commit.
#[test]
fn a_group_is_refused_until_what_the_kernel_got_is_synced() {
    let Some(mut place) = Place::new("bypassed") else {
        return;
    };
    let program = place.compile("group");
    let mut group = start(&place, &program, "atomic", "each");
    // A child that has them and does not use them changes nothing.
    group.all_well(&["wA 1", "wB 1", "g", "k", "g", "q", "u"]);
    assert_eq!(group.tell("g"), "-1 EINVAL", "a child uses them, too");
    group.all_well(&["wB 2", "q"]);
    assert_eq!(group.tell("g"), "-1 EINVAL");
    // Staged again, and the bytes before are the kernel's as much as they were.
    group.all_well(&["wA 2", "wB 3"]);
    assert_eq!(group.tell("g"), "-1 EINVAL");
    group.all_well(&["fB", "g"]);
    // What the kernel refused to do has changed nothing.
    assert_eq!(group.tell("iA"), "-1 EBADF", "it is open for writing only");
    group.all_well(&["wA 3", "g", "cA", "cB"]);
    group.kill();
    end_the_watch(&mut place);
    // Without a monitor nothing is staged for now.
    let mut group = start(&place, &program, "atomic", "each");
    assert_eq!(group.tell("g"), "0 -", "nothing was written");
    group.all_well(&["wA 4", "wB 4"]);
    assert_eq!(group.tell("g"), "-1 EINVAL");
    group.all_well(&["fA"]);
    assert_eq!(group.tell("g"), "-1 EINVAL");
    group.all_well(&["dB", "g"]);
    group.kill();
    let read = |name| fs::read_to_string(place.dir.join(name)).expect(name);
    assert_eq!(["A", "B"].map(read), ["1234", "1234"]);
}

/// A program that is linked against the library, as the installed header and its description say, runs
/// by itself, under the preload, and where the library is not: then the weak name is null.
#[test]
fn programs_link_against_the_library() {
    let Some(place) = Place::new("linked") else {
        return;
    };
    let program = place.compile("group");
    let without = |command: &mut Command| {
        let input = place.dir.join("input");
        fs::write(&input, "wA 1\nwB 1\ng\n").expect("input");
        command
            .args([place.dir.join("A"), place.dir.join("B")])
            .stdin(fs::File::open(input).expect("input"))
            .output()
            .expect("timeout(1)")
    };
    let said = without(&mut place.command(&program, None));
    assert_eq!(String::from_utf8_lossy(&said.stdout), "0 -\n0 -\n77 -\n");
    // In other code the linker would settle the question, wrongly.
    let source = format!("{}/tests/staged/group.c", env!("CARGO_MANIFEST_DIR"));
    let include = format!("-I{}/../../include", env!("CARGO_MANIFEST_DIR"));
    let compiled = |how: &str| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", how, "-fsyntax-only", &include, &source])
            .output()
            .expect("gcc")
    };
    assert!(compiled("-fPIE").status.success());
    let refused = compiled("-fno-pie");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("ADIT_WEAK needs -fPIE"),
        "{said}"
    );
    let linked = place.dir.join("linked");
    let source = format!("{}/tests/staged/linked.c", env!("CARGO_MANIFEST_DIR"));
    let library = place.library.parent().expect("its directory");
    let status = Command::new("gcc")
        .args(["-O1", "-Wall", "-Werror", &include, "-o"])
        .args([&linked, Path::new(&source)])
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-ladit")
        .status();
    assert!(status.expect("gcc").success());
    let expected =
        "both: 0 -\none of them twice: 0 -\nnone: 0 -\nno descriptor: -1 Bad file descriptor\n";
    // Of another copy of the library than the preloaded one.
    let copied = place.dir.join("libadit.so");
    fs::copy(&place.library, &copied).expect("a copy");
    let loaded = Command::new(&linked)
        .env("LD_LIBRARY_PATH", &place.dir)
        .env("LD_PRELOAD", &place.library)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output();
    let loaded = String::from_utf8(loaded.expect("the linker's list").stdout).expect("text");
    assert_eq!(loaded.matches("libadit.so").count(), 1, "{loaded}");
    for (mode, active) in [(None, "active 0\n"), (Some("atomic"), "active 1\n")] {
        let mut command = place.command(&linked, mode);
        let done = run(command.args([place.dir.join("A"), place.dir.join("B")]));
        assert_eq!(String::from_utf8_lossy(&done.stdout), expected, "{mode:?}");
        assert_eq!(String::from_utf8_lossy(&done.stderr), active, "{mode:?}");
    }
}

/// The kernel makes durable what is in a file that was taken away, also what others have written to it since.
#[test]
fn an_fsync_reaches_a_file_that_was_taken_away() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::new("taken-together") else {
        return;
    };
    let (file, program) = (place.file(), place.compile("sharer"));
    fs::write(&file, "").expect("the file");
    let mode = "atomic ADIT_COMMIT=together";
    let traced = place.tracing(&program, mode, "fsync,fdatasync");
    let mut one = Told::of(&mut place.for_the_file_alone(&traced));
    one.all_well(&[
        &format!("o0 rwa {}", file.display()),
        "w0 one ",
        "f0",
        "w0 two ",
    ]);
    // Whoever opens it has it taken away first.
    let mut open = fs::OpenOptions::new();
    let mut outsider = open.append(true).open(&file).expect("the file");
    outsider.write_all(b"other").expect("write");
    let trace = || fs::read_to_string(place.dir.join("trace")).expect("the trace");
    let name = format!("{}>", file.display());
    let is_synced = |line: &&str| line.contains("sync(") && line.contains(&name);
    let syncs = || trace().lines().filter(is_synced).count();
    // On a disk, and on DAX, there are some before.
    let before = syncs();
    one.all_well(&["f0"]);
    let since = syncs() - before;
    one.end();
    assert_eq!(place.content(), "one two other");
    let trace = trace();
    assert_eq!(
        since, 1,
        "what the outsider wrote is durable nowhere: {trace}"
    );
}

/// What others have written to a new file before it was staged is no part of what is staged, and its `fsync` is about that as
/// well. Of one that nobody has written it says nothing: the name was durable before.
#[test]
fn an_fsync_reaches_what_others_wrote_before_the_staging() {
    if !has_strace() {
        return;
    }
    for (others, expected) in [("", 0), ("other ", 1)] {
        let Some(place) = Place::on_disk("written-before") else {
            return;
        };
        let (file, program) = (place.file(), place.compile("sharer"));
        let mut one = Told::of(&mut place.tracing(&program, "strict", "fsync,fdatasync"));
        one.all_well(&[&format!("o0 rwc {}", file.display())]);
        let mut open = fs::OpenOptions::new();
        let mut outsider = open.write(true).open(&file).expect("the file");
        outsider.write_all(others.as_bytes()).expect("write");
        drop(outsider);
        let trace = || fs::read_to_string(place.dir.join("trace")).expect("the trace");
        let name = format!("{}>", file.display());
        let is_synced = |line: &&str| line.contains("sync(") && line.contains(&name);
        let syncs = || trace().lines().filter(is_synced).count();
        let before = syncs();
        one.all_well(&[&format!("p0 {} one", others.len()), "f0"]);
        assert_eq!(syncs() - before, expected, "{}", trace());
        let mut open = fs::OpenOptions::new();
        let opened = open.read(true).custom_flags(libc::O_NONBLOCK).open(&file);
        assert!(opened.is_err(), "it is staged");
        one.end();
        assert_eq!(place.content(), format!("{others}one"));
    }
}

/// The file that a program syncs for all of them may be given back at any time, of which the program knows nothing.
#[test]
fn an_fsync_of_a_file_that_was_taken_away_commits_the_others() {
    let Some(mut place) = Place::new("taken-and-synced") else {
        return;
    };
    let program = place.compile("group");
    let mut group = start(&place, &program, "atomic", "together");
    group.all_well(&["wA 1", "wB 1", "fA"]);
    let seen = fs::read_to_string(place.dir.join("A"));
    assert_eq!(seen.expect("the file"), "1");
    // Who finds it taken away, and who knows already that it is not staged.
    group.all_well(&["wB 2", "fA", "wB 3", "fA", "wB 4"]);
    end_the_watch(&mut place);
    group.kill();
    assert_eq!(Some(after_a_loss_of_power(&place)), texts("1", "123"));
}

/// It is no sync of anything else: what it is asked of may be given back at any time, of which the program knows nothing.
#[test]
fn a_range_that_is_synced_of_a_file_that_was_taken_away_commits_no_others() {
    let Some(mut place) = Place::new("taken-and-ranged") else {
        return;
    };
    let program = place.compile("group");
    let mut group = start(&place, &program, "atomic", "together");
    group.all_well(&["wA 1", "wB 1", "eA"]);
    let seen = fs::read_to_string(place.dir.join("A"));
    assert_eq!(seen.expect("the file"), "1");
    // Who finds it taken away, and who knows already that it is not staged.
    group.all_well(&["wB 2", "eA", "fA", "wB 3", "eA"]);
    end_the_watch(&mut place);
    group.kill();
    assert_eq!(Some(after_a_loss_of_power(&place)), texts("1", "12"));
}

/// A file of the group that was given back is the kernel's, with what others have written to it since.
#[test]
fn a_group_reaches_a_file_that_was_taken_away() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::new("taken-from-a-group") else {
        return;
    };
    let program = place.compile("group");
    let mut command = place.tracing(&program, "atomic", "fsync,fdatasync");
    let [a, b] = ["A", "B"].map(|name| place.dir.join(name));
    let mut group = Told::of(command.args([&a, &b]));
    group.all_well(&["wA 1", "wB 1", "g"]);
    let mut outsider = fs::OpenOptions::new();
    let mut outsider = outsider.append(true).open(&a).expect("the file");
    outsider.write_all(b"other").expect("write");
    let name = format!("{}>", a.display());
    let is_synced = |line: &&str| line.contains("sync(") && line.contains(&name);
    let syncs = || place.trace().lines().filter(is_synced).count();
    let before = syncs();
    group.all_well(&["wB 2", "g"]);
    let since = syncs() - before;
    group.end();
    assert_eq!(fs::read_to_string(a).expect("the file"), "1other");
    let trace = place.trace();
    assert_eq!(
        since, 1,
        "what the outsider wrote is durable nowhere: {trace}"
    );
}

/// Who reads a declared file without Adit finds in it what a sync has committed.
#[test]
fn an_fsync_shows_what_it_commits_of_a_declared_file() {
    let Some(mut place) = Place::new("shown-together") else {
        return;
    };
    place.end_monitor();
    place.monitor = Place::watch_and_publish(&place.dir, "run", None, "3600").expect("a monitor");
    let (file, program) = (place.file(), place.compile("sharer"));
    fs::write(&file, "").expect("the file");
    let declared = file.with_file_name("");
    let mode = format!(
        "atomic ADIT_COMMIT=together ADIT_PATH={}",
        declared.display()
    );
    let mut sharers = [(), ()].map(|()| Told::of(&mut place.command(&program, Some(&mode))));
    for sharer in &mut sharers {
        sharer.all_well(&[&format!("o0 rwa {}", file.display())]);
    }
    sharers[0].all_well(&["w0 one "]);
    sharers[1].all_well(&["w0 two "]);
    assert_eq!(place.content(), "", "there was nothing to be shown");
    sharers[0].all_well(&["f0"]);
    assert_eq!(place.content(), "one two ");
    sharers[1].all_well(&["w0 three ", "C0"]);
    assert_eq!(place.content(), "one two three ");
    // Nor is one whose description has not been used behind the others.
    let mut unused = Told::of(&mut place.command(&program, Some(&mode)));
    unused.all_well(&[&format!("o0 rw {}", file.display())]);
    sharers[1].all_well(&["w0 four "]);
    unused.all_well(&["C0"]);
    assert_eq!(place.content(), "one two three four ");
    unused.end();
    for sharer in sharers {
        sharer.end();
    }
}
