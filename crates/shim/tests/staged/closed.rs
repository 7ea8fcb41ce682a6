//! Files that a program has closed and left to the monitor, behind a page cache (`--closed soon`): who must not notice does
//! not.

use super::declared::kill_both;
use super::faults::Tracer;
use super::*;

/// What could be noticed, if it did not wait for what was closed.
const NOTICED: [&str; 21] = [
    "rename",
    "link",
    "times",
    "sync",
    "open",
    "truncate",
    "unlink",
    "system",
    "identity",
    "fork",
    "vfork",
    "spawn",
    "walk",
    "program",
    "script",
    "own times",
    "written since",
    "only looked at",
    "time of none",
    "times synced",
    "stream",
];

/// So long the monitor needs for each sync, in microseconds: whoever does not wait for it is sooner.
const LATE: &str = "fsync:delay_enter=100000";

fn place(name: &str) -> Option<(Place, PathBuf)> {
    if !has_strace() {
        return None;
    }
    let place = Place::on_disk(name)?;
    let program = place.compile("closed");
    Some((place, program))
}

fn clear(place: &Place) {
    let _ = fs::remove_file(place.file());
    let _ = fs::remove_file(place.file().with_extension("other"));
}

/// What the program says in a case, what is in the file right after its end, and whether somebody has it then.
fn told(
    place: &Place,
    program: &Path,
    mode: Option<&str>,
    case: &str,
) -> (String, u64, bool, bool) {
    clear(place);
    let mut command = place.command(program, mode);
    let said = run(command.arg(place.file()).arg(case)).stdout;
    let is_old = |stat: &fs::Metadata| {
        let changed = stat.modified().expect("a time");
        changed < std::time::UNIX_EPOCH + Duration::from_secs(2_000_000)
    };
    let said = String::from_utf8(said).expect("text");
    let Ok(left) = fs::metadata(place.file()) else {
        return (said, 0, false, false);
    };
    (said, left.len(), is_old(&left), place.is_leased())
}

#[test]
fn nobody_notices_that_a_closed_file_is_published_later() {
    let Some((place, program)) = place("closed") else {
        return;
    };
    let tracer = Tracer::of(&place.monitors_pid(), &place.dir.join("trace"), Some(LATE));
    // Others see at once how long a file is that was closed.
    let plain = told(&place, &program, None, "stat");
    for mode in MODES {
        let adit = told(&place, &program, Some(mode), "stat");
        assert_eq!(adit, plain, "mode {mode}");
    }
    for case in NOTICED.into_iter().chain(["own mode", "close"]) {
        let plain = told(&place, &program, None, case);
        for mode in MODES {
            let soon = format!("{mode} ADIT_CLOSED=soon");
            for mode in [mode, &soon] {
                let adit = told(&place, &program, Some(mode), case);
                assert_eq!(adit, plain, "{case}, mode {mode}");
            }
        }
    }
    drop(tracer);
    clear(&place);
}

/// A file whose times were set is published by its `fsync`, and the others are committed with it all the same.
#[test]
fn an_fsync_of_times_commits_the_other_files() {
    let Some((place, program)) = place("closed-times") else {
        return;
    };
    let mode = Some("atomic ADIT_COMMIT=together");
    let (said, ..) = told(&place, &program, mode, "others");
    assert_eq!(said, "5004 bytes, mode 600, time -1\n");
    clear(&place);
}

/// So many that some of them have to be waited for meanwhile.
#[test]
fn many_files_are_closed_and_whole_when_their_program_has_ended() {
    let Some((place, program)) = place("closed-many") else {
        return;
    };
    for mode in MODES.map(|mode| format!("{mode} ADIT_CLOSED=soon")) {
        run(place
            .command(&program, Some(&mode))
            .arg(place.file())
            .arg("many"));
        let looks = (0..200).map(|nth| {
            let path = place.file().with_extension(nth.to_string());
            let bytes = fs::metadata(&path).expect("a file").len();
            assert_eq!(fs::read(&path).expect("a file").len() as u64, bytes);
            fs::remove_file(&path).expect("a file");
            bytes
        });
        assert_eq!(
            looks.filter(|bytes| *bytes == 5000).count(),
            200,
            "mode {mode}"
        );
    }
}

/// A close waits for no device: what the monitor needs for it takes longer than the test lets it.
#[test]
fn a_close_waits_for_no_device() {
    let Some((place, program)) = place("closed-at-once") else {
        return;
    };
    let late = "fsync,msync:delay_enter=3000000:when=1..2";
    let tracer = Tracer::of(&place.monitors_pid(), &place.dir.join("trace"), Some(late));
    let mode = Some("atomic ADIT_CLOSED=soon");
    let said = told(&place, &program, mode, "close");
    assert_eq!(said, ("at once\n".to_owned(), 5000, false, false));
    drop(tracer);
    clear(&place);
}

/// Nobody is left who would publish it but its program.
#[test]
fn what_was_closed_is_published_without_monitor_and_standby() {
    for mode in MODES {
        let Some((mut place, program)) = place(&format!("closed-alone-{mode}")) else {
            return;
        };
        let soon = format!("{mode} ADIT_CLOSED=soon");
        let mut command = place.command(&program, Some(&soon));
        command.arg(place.file()).arg("wait");
        let mut waiting = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut said = BufReader::new(waiting.stdout.take().expect("its output"));
        let mut line = String::new();
        let mut hear = || {
            line.clear();
            said.read_line(&mut line).expect("a line");
            line.clone()
        };
        assert_eq!(hear(), "written\n");
        let monitor = place.monitors_pid();
        wait_for("the standby", || !started_by(&monitor).is_empty());
        let late = "fsync:delay_enter=3000000";
        let tracer = Tracer::of(&monitor, &place.dir.join("trace"), Some(late));
        let mut words = waiting.stdin.take().expect("its input");
        words.write_all(b"\n").expect("a word");
        assert_eq!(hear(), "closed\n");
        kill_both(&mut place);
        drop(tracer);
        words.write_all(b"\n").expect("a word");
        assert_eq!(hear(), "5000 bytes, mode 600, time -1\n", "mode {mode}");
        // What somebody writes then stays, whoever recovers.
        let other = place.file().with_extension("other");
        fs::write(&other, "written since").expect("the file");
        drop(words);
        assert!(waiting.wait().expect("its end").success());
        super::faults::begins_another(&place).expect("what runs already");
        assert_eq!(fs::read(&other).expect("the file"), b"written since");
    }
}
