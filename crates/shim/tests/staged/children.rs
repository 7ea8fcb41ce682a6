//! Programs that fork: a description that only their children had comes back when these have ended, and no
//! byte depends on it.

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
    let round = ["before: staged", "beside: the kernel's", "after: staged"];
    let returns = [&round[..], &round, &round, &["cut: staged"]].concat();
    for mode in MODES {
        for flags in ["a", "-"] {
            answers(&place, mode, ["returns", flags], &returns);
            answers(&place, mode, ["unwaited", flags], &["unwaited: staged"]);
            let visited = ["visited: the kernel's", "alone: staged"];
            answers(&place, mode, ["visited", flags], &visited);
        }
    }
    // On trial the kernel has it for good.
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
            kernels("grandchild", &["grandchild", "last"]);
            kernels("program", &["program"]);
            kernels("spawned", &["spawned"]);
            kernels("flags", &["flags"]);
            kernels("flags_twice", &["flags_twice"]);
            kernels("nested", &["nested"]);
            kernels("many", &["many"]);
        }
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
    for mode in MODES {
        let _ = fs::remove_file(place.file());
        let mut command = place.tracing(&program, mode, "openat,fsync,pwrite64");
        let output = run(command.arg("reopened").arg(place.file()).arg("-"));
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told, "reopened: staged\n", "mode {mode}");
        let trace = place.trace();
        let file = format!("<{}>", place.file().display());
        let (_, since) = trace
            .rsplit_once("file\", O_RDONLY)")
            .expect("the second open");
        let does = |call: &str| {
            let mut lines = since.lines().skip(1);
            let place = lines.position(|line| line.contains(call) && line.contains(&file));
            place.unwrap_or_else(|| panic!("mode {mode}: no {call} in {since}"))
        };
        // Publishing writes, and syncs what it wrote.
        assert!(does("fsync(") < does("pwrite64("), "mode {mode}: {since}");
    }
}

/// Threads write, children come and go, and the file with them: each line is there once, and nothing else.
#[test]
fn threads_and_children_leave_no_hole() {
    let Some(place) = Place::new("comings") else {
        return;
    };
    place.compile("children");
    for mode in MODES {
        for flags in ["a", "-"] {
            // It is looked for the children at each write.
            let eager = format!("{mode} ADIT_ADOPT_BYTES=0");
            let (said, left, told) = case(&place, Some(&eager), ["crowd", flags]);
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
            let staged = told.split(' ').nth(1).map(number);
            assert_ne!(staged, Some(0), "mode {mode} {flags}: {told}");
        }
    }
}

fn number(text: &str) -> usize {
    text.parse()
        .unwrap_or_else(|_| panic!("no number: {text:?}"))
}
