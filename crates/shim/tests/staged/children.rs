//! Programs that fork: a description that their children do not use stays staged; one that only they had comes back
//! when they have ended; and no byte depends on it.

use super::*;

/// What a case says on standard output and leaves, and what it says on standard error.
fn case(place: &Place, mode: Option<&str>, words: [&str; 2]) -> (String, String, String) {
    let program = place.dir.join("children");
    let [case, flags] = words;
    let mut command = place.command(&program, mode);
    let output = run(command.arg(case).arg(place.file()).arg(flags));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), place.content(), text(&output.stderr))
}

/// Bytes and answers are as plainly every time. What the monitor does not answer in time is the kernel's for some
/// seconds: on a machine that stood still for a moment who has the file is asked again, and that is said. The other
/// way round no stall explains it.
#[track_caller]
fn answers(place: &Place, mode: &str, words: [&str; 2], expected: &[&str]) {
    let (said, left, _) = case(place, None, words);
    for attempt in 1.. {
        let adit = case(place, Some(mode), words);
        assert_eq!(adit.0, said, "mode {mode}, {words:?}");
        assert!(adit.1 == left, "mode {mode}, {words:?}: {}", adit.1);
        let told: Vec<&str> = adit.2.lines().collect();
        if told == expected {
            return;
        }
        let pairs = || expected.iter().zip(&told);
        let stalled = told.len() == expected.len()
            && pairs().all(|(hoped, told)| {
                hoped == told || hoped.replace("staged", "the kernel's") == *told
            });
        assert!(stalled && attempt < 3, "mode {mode}, {words:?}: {told:?}");
        println!("mode {mode}, {words:?}: {told:?}; asking again");
    }
}

#[test]
fn a_file_comes_back_when_the_children_have_ended() {
    let Some(place) = Place::new("children") else {
        return;
    };
    place.compile("children");
    let round = ["before: staged", "beside: staged", "after: staged"];
    let returns = [&round[..], &round, &round, &["cut: staged"]].concat();
    for mode in MODES {
        for flags in ["a", "-"] {
            answers(&place, mode, ["returns", flags], &returns);
            answers(&place, mode, ["unwaited", flags], &["unwaited: staged"]);
            let visited = ["visited: the kernel's", "alone: staged"];
            answers(&place, mode, ["visited", flags], &visited);
        }
    }
    // On trial the kernel has it for good once a child has used it.
    let (said, left, _) = case(&place, None, ["returns", "a"]);
    let adit = case(&place, Some(APPENDS), ["returns", "a"]);
    assert_eq!((adit.0, adit.1), (said, left));
}

#[test]
fn what_a_child_passed_on_never_comes_back() {
    let Some(place) = Place::new("passed-on") else {
        return;
    };
    place.compile("children");
    for mode in MODES {
        for flags in ["a", "-"] {
            let kernels = |case: &str, when: &[&str]| {
                let told: Vec<String> = when.iter().map(|w| format!("{w}: the kernel's")).collect();
                let told: Vec<&str> = told.iter().map(String::as_str).collect();
                answers(&place, mode, [case, flags], &told);
            };
            let used = ["grandchild: staged", "last: the kernel's"];
            answers(&place, mode, ["grandchild", flags], &used);
            kernels("program", &["program"]);
            kernels("spawned", &["spawned"]);
            kernels("redirected", &["redirected"]);
            kernels("renumbered", &["renumbered"]);
            kernels("inherited", &["inherited"]);
            kernels("flags", &["flags"]);
            kernels("flags_twice", &["flags_twice"]);
            kernels("flags_then_copied", &["flags_then_copied"]);
            let copied = ["copied: staged", "then_flags: the kernel's"];
            answers(&place, mode, ["copied_then_flags", flags], &copied);
            // These use it when it was looked at, or not at all.
            answers(&place, mode, ["nested", flags], &["nested: staged"]);
            answers(&place, mode, ["many", flags], &["many: staged"]);
        }
    }
}

#[test]
fn a_child_that_cannot_ask_moves_no_offset() {
    let Some(place) = Place::new("cannot-ask") else {
        return;
    };
    place.compile("children");
    for mode in MODES {
        for flags in ["a", "-"] {
            answers(&place, mode, ["cannot_ask", flags], &[]);
        }
    }
}

/// Whatever a child does with a description that its parent has gone on with, it finds and leaves all as it is plainly.
#[test]
fn a_child_asks_for_what_it_uses() {
    const USES: [&str; 20] = [
        "writes",
        "reads",
        "preads",
        "pwrites",
        "seeks_end",
        "seeks_set",
        "seeks_hole",
        "looks",
        "flags_of",
        "syncs",
        "cuts",
        "reserves",
        "duplicates",
        "locks",
        "executes",
        "maps",
        "sends",
        "opens",
        "changes",
        "nothing",
    ];
    let Some(place) = Place::new("uses") else {
        return;
    };
    let program = place.compile("children");
    let run_as = |mode: Option<&str>, case: &str, flags: &str, using: &str| {
        let _ = fs::remove_file(place.file());
        let mut command = place.command(&program, mode);
        let output = run(command.arg(case).arg(place.file()).args([flags, using]));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), place.content(), text(&output.stderr))
    };
    let mut stayed = [0; 2];
    for (stayed, case) in stayed.iter_mut().zip(["uses", "vfork_uses"]) {
        for flags in ["a", "-"] {
            for using in USES {
                let (said, left, _) = run_as(None, case, flags, using);
                assert!(said.lines().count() > 3, "{using}: {said}");
                for mode in MODES {
                    let adit = run_as(Some(mode), case, flags, using);
                    assert_eq!(adit.0, said, "mode {mode}, {case}, {using} {flags}");
                    assert_eq!(adit.1, left, "mode {mode}, {case}, {using} {flags}");
                    *stayed += usize::from(adit.2.is_empty());
                }
            }
        }
    }
    // What a stalled monitor does not answer is the kernel's.
    let all = 2 * USES.len() * MODES.len();
    assert!(stayed[0] > all / 2, "{stayed:?} of {all} stayed staged");
    // What a child of `vfork` has used is so for good: it writes in any case.
    assert_eq!(stayed[1], 0);
}

/// The parent is killed, stopped or gone when its child uses the description that it had staged; the offset is where it
/// left it.
#[test]
fn a_child_does_not_depend_on_its_parent() {
    let Some(place) = Place::new("left") else {
        return;
    };
    place.compile("children");
    for mode in MODES {
        for flags in ["a", "-"] {
            for how in ["killed", "removed", "stopped", "closed"] {
                fs::write(place.file(), "").expect("a file");
                answers(&place, mode, [how, flags], &["left: staged"]);
            }
            answers(&place, mode, ["room", flags], &["room: staged"]);
            let closes = ["closed: staged", "end: staged"];
            answers(&place, mode, ["closes_all", flags], &closes);
            answers(&place, mode, ["flags_then_used", flags], &[]);
            answers(&place, mode, ["handler", flags], &["handler: staged"]);
        }
    }
}

/// What is preloaded when `first.c` is.
fn with_first(place: &Place) -> String {
    let library = place.dir.join("libfirst.so");
    let source = format!("{}/tests/staged/first.c", env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-shared", "-fPIC", "-o"]);
    gcc.args([&library, Path::new(&source)]);
    assert!(gcc.status().expect("gcc").success(), "{source}");
    format!("{}:{}", place.library.display(), library.display())
}

/// In a child the handlers of libraries that were started before Adit run before its own.
#[test]
fn a_child_that_was_not_told_asks_for_what_it_uses() {
    let Some(place) = Place::new("first") else {
        return;
    };
    place.compile("children");
    let libraries = with_first(&place);
    for mode in MODES {
        let both = format!("{mode} LD_PRELOAD={libraries}");
        for flags in ["a", "-"] {
            answers(&place, &both, ["handler", flags], &["handler: staged"]);
            answers(
                &place,
                &both,
                ["fresh_handler", flags],
                &["handler: staged"],
            );
        }
    }
}

/// A child asks for a file that its parent is just about to stage, and finds its flags as the program made them. The
/// parent is slow between looking at them and changing them.
#[test]
fn a_child_finds_the_flags_while_its_parent_stages() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::new("both") else {
        return;
    };
    let program = place.compile("children");
    for mode in MODES {
        let _ = fs::remove_file(place.file());
        let slow = place.traced(&program, mode, Some("fcntl:delay_enter=300000"));
        let mut command = Command::new(slow.get_program());
        // Its children are not slow.
        command.args(slow.get_args().filter(|word| *word != "-f"));
        run(command.arg("both").arg(place.file()).arg("a"));
        let left = place.content();
        let mut lines: Vec<&str> = left.lines().collect();
        lines.sort_unstable();
        let all = ["child 0", "child 1", "parent 0"];
        assert_eq!(lines, all, "mode {mode}: {left:?}");
    }
}

/// What others have written to a file meanwhile is durable with the next bytes that are staged of it: no `fsync` of
/// the program's reaches the kernel any more.
#[test]
fn a_file_that_others_had_is_synced_before_it_is_staged_again() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::on_disk("reopened") else {
        return;
    };
    let program = place.compile("children");
    let since_reopened = |mode: &str| {
        let _ = fs::remove_file(place.file());
        let mut command = place.tracing(&program, mode, "openat,fsync,pwrite64");
        let output = run(command.arg("reopened").arg(place.file()).arg("-"));
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told, "reopened: staged\n", "mode {mode}");
        let trace = place.trace();
        let since = trace.rsplit_once("file\", O_RDONLY)");
        since.expect("the second open").1.to_owned()
    };
    let file = format!("<{}>", place.file().display());
    let first = |since: &str, call: &str| {
        let mut lines = since.lines().skip(1);
        lines.position(|line| line.contains(call) && line.contains(&file))
    };
    for mode in MODES {
        // What has aged by then the monitor has published.
        let tries = (0..3).map(|_| since_reopened(mode));
        let mut tries = tries.skip_while(|since| first(since, "pwrite64(").is_none());
        let since = tries.next().expect("it publishes itself");
        let synced = first(&since, "fsync(");
        // Publishing writes, and syncs what it wrote.
        assert!(
            synced.is_some() && synced < first(&since, "pwrite64("),
            "mode {mode}: {since}"
        );
    }
}

/// A new file is durable as it was made. What others have changed since, its name too, is so with the first bytes that are
/// staged of it.
#[test]
fn a_new_file_that_others_have_changed_is_synced_before_it_is_staged() {
    if !has_strace() {
        return;
    }
    let Some(place) = Place::on_disk("changed") else {
        return;
    };
    let program = place.compile("changed");
    let other = place.file().with_extension("other");
    let syncs = |mode: &str, how: &str| {
        let _ = fs::remove_file(place.file());
        let _ = fs::remove_file(&other);
        let mut command = place.tracing(&program, mode, "fsync,pwrite64");
        run(command.arg(place.file()).arg(how).arg(&other));
        let paths = [place.file(), other.clone()].map(|path| format!("<{}>", path.display()));
        let trace = place.trace();
        let of_the_file = |line: &&str| paths.iter().any(|path| line.contains(path));
        // Publishing writes, and syncs what it wrote.
        let before = trace.lines().filter(of_the_file);
        let before = before.take_while(|line| !line.contains("pwrite64("));
        before.filter(|line| line.contains("fsync(")).count()
    };
    for mode in ["sync", "strict"] {
        let counts = ["left alone", "cut", "renamed"].map(|how| syncs(mode, how));
        assert_eq!(counts, [1, 2, 2], "mode {mode}");
    }
}

/// Threads write, children come and go, and the file with them: each line is there once, and nothing else.
#[test]
fn threads_and_children_leave_no_hole() {
    let Some(place) = Place::new("comings") else {
        return;
    };
    place.compile("children");
    comings_and_goings(&place, "");
}

/// The same when the children write before Adit is told of them. What threads of their parent had locked is locked in
/// their memory, and stays so.
#[test]
fn children_that_were_not_told_wait_for_no_thread() {
    let Some(place) = Place::new("untold") else {
        return;
    };
    place.compile("children");
    comings_and_goings(&place, &format!(" LD_PRELOAD={}", with_first(&place)));
}

#[track_caller]
fn comings_and_goings(place: &Place, more: &str) {
    for mode in MODES {
        for flags in ["a", "-"] {
            // It is looked for the children at each write.
            let eager = format!("{mode} ADIT_ADOPT_BYTES=0{more}");
            let (said, left, told) = case(place, Some(&eager), ["crowd", flags]);
            let counts: Vec<usize> = said.split_whitespace().map(number).collect();
            let mut seen = [vec![0; counts[0]], vec![0; counts[1]]];
            for line in left.lines() {
                let (who, nth) = line.split_once(' ').unwrap_or_default();
                let whose = ["child", "parent"].iter().position(|known| *known == who);
                let whose =
                    whose.unwrap_or_else(|| panic!("{mode} {flags}: a torn line: {line:?}"));
                seen[whose][number(nth)] += 1;
            }
            for (who, seen) in ["children", "parent"].iter().zip(&seen) {
                let odd = seen.iter().filter(|times| **times != 1).count();
                assert_eq!(odd, 0, "{mode} {flags}: lines of the {who} lost, or twice");
            }
            // On a disk the next child is there before the file is staged again.
            let staged = told.split(' ').nth(1).map(number);
            assert!(
                staged != Some(0) || !scratch::is_memory(),
                "mode {mode} {flags}: {told}"
            );
        }
    }
}

fn number(text: &str) -> usize {
    text.parse()
        .unwrap_or_else(|_| panic!("no number: {text:?}"))
}
